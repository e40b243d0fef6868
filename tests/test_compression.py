"""Compression figures and denoising: one pass for all numbers of components, against arithmetic written out."""

from __future__ import annotations

import tracemalloc

import dask.array as da
import numpy as np
import pytest

import streampca
from streampca.errors import BudgetError, DataError, ModelError, RequestError
from streampca.models.compression import peak_of
from streampca.models.load import load_model
from streampca.planning import component_chunks
from streampca.units import MIB

N, K = 200, 12
FRAME = np.hypot(*np.meshgrid(np.arange(9) - 4, np.arange(10) - 4.5)) < 4.3  # 10 x 9, round
PREPARATIONS = {
    "plain": {},
    "masked and scaled": {"mask": FRAME, "scale": 0.5},
    "normalized": {"normalize": "norm"},
}


def waves(seed=0, noise=20.0):
    """Images of a few smooth patterns, 8 bits, and the same with noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:10, :9]
    patterns = np.stack([np.sin((i + 1) * y / 3) * np.cos(i * x / 2) for i in range(6)])
    clean = 120 + np.tensordot(rng.normal(size=(N, 6)) * [40, 25, 15, 10, 6, 3], patterns, 1)
    noisy = clean + rng.normal(0, noise, clean.shape)
    found = [np.clip(np.round(images), 0, 255).astype(np.uint8) for images in (clean, noisy)]
    for images in found:
        images.flags.writeable = False
    return found


@pytest.fixture(scope="module")
def images():
    return waves()


@pytest.fixture(scope="module")
def model(images):
    return streampca.fit(images[1], n_components=K, memory="128MiB")


def by_hand(model, rows, other):
    """Errors of every number of components, with everything written out in float64."""
    mean, components = model.subspace.mean, np.asarray(model.subspace.components, np.float64)
    scores = (rows - mean) @ components.T
    return np.array([
        np.sqrt(np.mean(np.square(mean + scores[:, :k] @ components[:k] - other))) for k in range(1, K + 1)
    ])  # fmt: skip


@pytest.mark.parametrize("name", PREPARATIONS)
def test_one_pass_gives_what_reconstructing_each_gives(images, name):
    clean, noisy = images
    preparation = streampca.Preparation(**PREPARATIONS[name])
    model = streampca.fit(noisy, n_components=K, memory="128MiB", preparation=preparation)
    rows, other = (model.prepared(each).read(slice(0, N)).astype(np.float64) for each in (noisy, clean))
    np.testing.assert_allclose(model.compression(noisy).rmse, by_hand(model, rows, rows), rtol=1e-5)
    denoised = model.compression(noisy, against=clean)
    np.testing.assert_allclose(denoised.rmse, by_hand(model, rows, other), rtol=1e-5)
    assert denoised.given_rmse == pytest.approx(np.sqrt(np.mean(np.square(rows - other))))


@pytest.mark.parametrize("weighted", [False, True])
def test_of_the_samples_fitted_the_variances_say_the_same(images, model, weighted):
    if weighted:
        weights = np.random.default_rng(1).integers(1, 4, N)
        model = streampca.fit(images[1], n_components=K, sample_weight=weights, memory="128MiB")
        repeated = np.repeat(images[1], weights, axis=0)
    else:
        repeated = images[1]
    foreseen, measured = model.compression(), model.compression(repeated)
    np.testing.assert_allclose(foreseen.rmse, measured.rmse, rtol=1e-5)
    assert (np.diff(measured.psnr) > 0).all(), "more components, less is lost"
    if not weighted:
        np.testing.assert_array_equal(foreseen.stored_bytes, measured.stored_bytes)
        assert foreseen.original_bytes == measured.original_bytes == images[1].nbytes
        assert foreseen.peak == measured.peak == 255


def test_bytes_are_those_of_what_would_be_kept(images, model):
    figures, kept = model.compression(images[1], [3, 1, 12]), model.transform(images[1])
    np.testing.assert_array_equal(figures.n_components, [1, 3, 12])
    for k, count in zip(figures.n_components, figures.stored_bytes, strict=True):
        assert count == kept[:, :k].nbytes + model.components[:k].nbytes + model.mean.nbytes
    np.testing.assert_allclose(figures.ratio * figures.stored_bytes, images[1].nbytes)


def test_noise_is_lost_before_the_image_is(images, model):
    """The best number of components lies between: fewer lose the images' own, more bring the noise back."""
    clean, noisy = images
    figures = model.compression(noisy, against=clean)
    errors = [np.sqrt(np.mean(np.square(model.reconstruct(noisy, k).astype(float) - clean))) for k in (1, 5, K)]
    assert figures.best in range(2, K)
    assert figures.rmse.min() < min(errors) + 1e-3
    assert figures.psnr.max() > figures.given_psnr + 3
    assert figures.at(figures.best).psnr[0] == figures.psnr.max()


@pytest.fixture
def small_tiles(monkeypatch):
    """Components on disk in many pieces."""
    for name, size in {"TILE": 512, "CHUNK": 64, "TOGETHER": 2, "LEAST_RUN": 16, "POOLS": 0}.items():
        monkeypatch.setattr(component_chunks, name, size)


def test_components_on_disk_give_the_same_within_the_budget(images, model, tmp_path, monkeypatch, small_tiles):
    model.save(tmp_path / "m.zarr")
    stored = load_model(tmp_path / "m.zarr", memory="1B")
    clean, noisy = images
    with monkeypatch.context() as patch:
        patch.setattr("streampca.models.transform.measurement.plan_application", refuse)
        found = stored.compression(noisy, against=clean, memory="200MiB")
    np.testing.assert_allclose(found.rmse, model.compression(noisy, against=clean).rmse, rtol=1e-5)
    with pytest.raises(BudgetError, match=r"in ranges needs .* Set memory to at least \S+\.") as refused:
        stored.compression(noisy, memory="1B")
    remedy = refused.value.args[0].rpartition("at least ")[2].removesuffix(".")
    stored.compression(noisy, memory=remedy)


def refuse(**given):
    raise BudgetError("too large")


@pytest.mark.parametrize("name", PREPARATIONS)
def test_what_is_kept_and_what_is_left_are_the_sample(images, tmp_path, monkeypatch, small_tiles, name):
    """This holds for arrays, lazily, and for files written with components in memory or on disk."""
    x = images[1]
    model = streampca.fit(x, n_components=4, memory="128MiB", preparation=streampca.Preparation(**PREPARATIONS[name]))
    expected = np.where(np.isnan(model.mean), np.nan, x)
    kept, left = model.reconstruct(x), model.residual(x)
    np.testing.assert_allclose(kept + left, expected, atol=1e-4)
    np.testing.assert_allclose(model.residual(da.from_array(x, chunks=(30, -1, -1))), left, atol=1e-4)
    model.save(tmp_path / "m.zarr")
    model.write_reconstruction(x, tmp_path / "whole.npy", residual=True, memory="128MiB")
    monkeypatch.setattr("streampca.models.transform.write.plan_application", refuse)
    stored = load_model(tmp_path / "m.zarr", memory="1B")
    figures = stored.write_reconstruction(x, tmp_path / "pieces.npy", residual=True, memory="32MiB")
    for output in ("whole.npy", "pieces.npy"):
        np.testing.assert_allclose(np.load(tmp_path / output), left, atol=1e-4)
    np.testing.assert_allclose(figures.rmse, model.compression(x, [4]).rmse, rtol=1e-4)


def test_scores_do_not_say_what_is_left(images, model, tmp_path):
    model.write_scores(images[1], tmp_path / "s.zarr")
    with pytest.raises(RequestError, match=r"give the samples themselves for residual=True"):
        model.write_reconstruction(tmp_path / "s.zarr", tmp_path / "r.npy", residual=True)
    figures = model.write_reconstruction(tmp_path / "s.zarr", tmp_path / "r.npy", n_components=3)
    assert figures.line().endswith(" over the samples fitted")
    measured = model.write_reconstruction(images[1], tmp_path / "i.npy", n_components=3)
    np.testing.assert_allclose(figures.rmse, measured.rmse, rtol=1e-5)
    assert figures.stored_bytes == measured.stored_bytes
    assert figures.original_bytes == measured.original_bytes


def test_blocks_are_all_that_is_in_memory(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (40_000, 16, 16), dtype=np.uint8)
    model = streampca.fit(x[:500], n_components=4, memory="128MiB")
    np.save(tmp_path / "x.npy", x)
    tracemalloc.start()
    model.compression(tmp_path / "x.npy", memory="16MiB")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * MIB, "the samples are 10 MB, and 40 MB as they are multiplied"


def test_peaks_follow_the_dtype_and_the_scale():
    plain = streampca.Preparation()
    known = [peak_of(plain, np.dtype(name)) for name in ("u1", "u2", "i2", "?", "f4")]
    assert known == [255, 65535, 65535, 1, None]
    assert peak_of(streampca.Preparation(scale=0.5), np.dtype("u1")) == 127.5
    assert peak_of(streampca.Preparation(scale=np.ones((3, 3))), np.dtype("u1")) is None
    assert peak_of(streampca.Preparation(normalize="mean"), np.dtype("u1")) is None


def test_a_model_keeps_the_dtype_of_its_samples(images, model, tmp_path):
    model.save(tmp_path / "m.zarr")
    assert streampca.load(tmp_path / "m.zarr").compression().peak == 255
    fractions = streampca.fit(images[1].astype(np.float32), n_components=2, memory="128MiB").compression()
    assert fractions.psnr is None
    assert fractions.original_bytes == 4 * images[1].size
    parts = [streampca.fit(images[1], n_components=2, part=(i, 2), memory="128MiB") for i in (1, 2)]
    assert streampca.merge(parts).compression().peak == 255


def test_a_table_of_figures(images, model):
    lines = str(model.compression(images[1], [1, 4], peak=200)).splitlines()
    assert lines[0].endswith(", peak 200")
    assert lines[1].split() == ["components", "stored", "ratio", "RMSE", "PSNR"]
    assert [line.split()[0] for line in lines[2:]] == ["1", "4"]
    assert lines[2].endswith(" dB")


def test_what_cannot_be_compared_is_named(images, model):
    clean, noisy = images
    with pytest.raises(ModelError, match=r"has 200 samples and .* has 199; give one for each"):
        model.compression(noisy, against=clean[:-1])
    with pytest.raises(RequestError, match="against is given without samples"):
        model.compression(against=clean)
    for ladder in ([0, 1], [13], [], [1.5], "ab"):
        with pytest.raises(RequestError, match="is not of whole numbers between 1 and 12"):
            model.compression(ladder=ladder)
    with pytest.raises(RequestError, match="peak -1 is not a positive number"):
        model.compression(peak=-1)
    unknown = da.from_array(noisy)[da.from_array(noisy).mean(axis=(1, 2)) > 0]
    with pytest.raises(ModelError, match=r"chunks of unknown size; call its compute_chunk_sizes\(\)"):
        model.transform(unknown)
    assert model.transform(unknown.compute_chunk_sizes()).shape == (N, K)
    assert model.inverse_transform([[1.0, 2.0]]).shape == (1, *noisy.shape[1:])
    with pytest.raises(RequestError, match="n_components=7 is not among the 2"):
        model.compression(ladder=[1, 2]).at(7)
    fractions = streampca.fit(noisy.astype(float), n_components=2, memory="128MiB")
    bad = noisy.astype(float)
    bad[7, 3, 2] = np.nan
    with pytest.raises(DataError, match=r"sample 7 of .* holds NaN or infinity"):
        fractions.compression(bad)
