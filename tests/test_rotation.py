"""Varimax and promax rotation: the published algorithms, and xeofs where it is installed."""

from __future__ import annotations

import re
from dataclasses import fields
from itertools import combinations

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from shell import succeeded

import streampca
from streampca.errors import BudgetError, ModelError, RequestError
from streampca.fitting.foresee_outputs import AppliedOutputs, foresee_applying
from streampca.kinds.run import Run
from streampca.models import rotation
from streampca.models.transform import write
from streampca.plot.report.survey import survey as survey_of

SHAPE = 10, 14


def blobs(count, seed=0):
    """Patterns that hardly overlap."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    centres = rng.permutation([(a, b) for a in (2, 7) for b in (2, 7, 12)])[:count]
    return np.array([np.exp(-((y - a) ** 2 + (x - b) ** 2) / rng.uniform(2, 5)) for a, b in centres])


def field_of(count=4, n=150, seed=0):
    """Four patterns of nearly the same variance, which principal components mix, in noise."""
    rng = np.random.default_rng(seed)
    values = np.tensordot(rng.normal(size=(n, count)) * np.linspace(3.2, 3, count), blobs(count, seed), 1)
    values += 0.1 * rng.normal(size=values.shape)
    coords = {"time": np.arange(n), "lat": np.linspace(-45, 45, SHAPE[0]), "lon": np.arange(SHAPE[1]) * 20.0}
    return xr.DataArray(values, coords, ("time", "lat", "lon"), "t", {"units": "K"})


@pytest.fixture(scope="module")
def field():
    return field_of()


@pytest.fixture(scope="module")
def model(field):
    return streampca.fit(field, n_components=4)


def loadings_of(model, count):
    """Components times standard deviations, (p, k), and the length of each row."""
    rows = model.components[:count].reshape(count, -1).T * np.sqrt(model.explained_variance[:count])
    return rows, np.linalg.norm(rows, axis=1, keepdims=True)


def by_planes(loadings):
    """Kaiser's rotations in one plane after another, each by the angle that he gives, until none turns."""
    turned = loadings.copy()
    for _ in range(500):
        largest = 0.0
        for i, j in combinations(range(loadings.shape[1]), 2):
            x, y = turned[:, i].copy(), turned[:, j].copy()
            u, v = x**2 - y**2, 2 * x * y
            top = 2 * (len(u) * (u * v).sum() - u.sum() * v.sum())
            bottom = len(u) * (u**2 - v**2).sum() - (u.sum() ** 2 - v.sum() ** 2)
            angle = np.arctan2(top, bottom) / 4
            turned[:, i], turned[:, j] = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
            largest = max(largest, abs(angle))
        if largest < 1e-13:
            return turned
    raise AssertionError("Kaiser's planes did not come to rest")


def in_order(loadings):
    """Return unit loadings by descending squares, with positive largest entries, and the sums of squares."""
    squares = (loadings**2).sum(axis=0)
    order = np.argsort(-squares)
    rows = (loadings[:, order] / np.sqrt(squares[order])).T
    return rows * np.sign(rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)])[:, None], squares[order]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [2, 4])
def test_varimax_is_kaisers(seed, count):
    model = streampca.fit(field_of(seed=seed), n_components=4)
    found = model.rotate(count)
    loadings, lengths = loadings_of(model, count)
    rows, squares = in_order(by_planes(loadings / lengths) * lengths)
    np.testing.assert_allclose(found.components.reshape(count, -1), rows, atol=1e-6)
    np.testing.assert_allclose(found.explained_variance, squares, rtol=1e-6)
    np.testing.assert_allclose(found.explained_variance.sum(), model.explained_variance[:count].sum())
    np.testing.assert_allclose(found.correlation, np.eye(count), atol=1e-12)


@pytest.mark.parametrize("power", [2, 3, 4])
def test_promax_is_a_least_squares_fit_of_powers(model, power):
    loadings, lengths = loadings_of(model, 4)
    turned = by_planes(loadings / lengths)
    target = (turned / np.abs(turned).max(axis=0)) * np.abs(turned / np.abs(turned).max(axis=0)) ** (power - 1)
    fitted = np.linalg.lstsq(turned, target)[0]
    fitted = fitted @ np.diag(np.sqrt(np.diag(np.linalg.inv(fitted.T @ fitted))))
    rows, squares = in_order(turned @ fitted * lengths)
    found = model.rotate(power=power)
    np.testing.assert_allclose(found.components.reshape(4, -1), rows, atol=1e-6)
    np.testing.assert_allclose(found.explained_variance, squares, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("power", [1, 2, 4])
@pytest.mark.filterwarnings("ignore:::xeofs")  # it calls xarray by names that xarray has deprecated
def test_rotations_are_those_of_xeofs(seed, power):
    xeofs = pytest.importorskip("xeofs")
    field = field_of(seed=seed)
    eof = xeofs.single.EOF(n_modes=4, solver="full").fit(field, dim="time")
    theirs = xeofs.single.EOFRotator(n_modes=4, power=power, max_iter=10_000, rtol=1e-15).fit(eof)
    model = streampca.fit(field, n_components=4)
    ours = model.rotate(power=power)
    patterns = theirs.components().transpose("mode", "lat", "lon").values
    signs = np.sign((patterns * ours.components).sum(axis=(1, 2)))
    np.testing.assert_allclose(ours.components, patterns * signs[:, None, None], atol=1e-6)
    np.testing.assert_allclose(ours.explained_variance, theirs.explained_variance().values, rtol=1e-6)
    scores = theirs.scores(normalized=False).transpose("time", "mode").values * signs
    np.testing.assert_allclose(ours.transform(field), scores, atol=1e-6 * np.abs(scores).max())


@pytest.mark.parametrize("seed", range(3))
def test_patterns_that_components_mix_are_found(seed):
    model = streampca.fit(field_of(seed=seed), n_components=4)
    truth = blobs(4, seed).reshape(4, -1)
    nearest = [
        np.abs(np.corrcoef(truth, patterns.reshape(4, -1))[:4, 4:]).max(axis=1).min()
        for patterns in (model.components, model.rotate().components, model.rotate(power=4).components)
    ]
    assert nearest[0] < 0.9
    assert min(nearest[1:]) > 0.98


# -- applied to samples


@pytest.mark.parametrize("power", [1, 4])
def test_scores_have_the_variances_and_correlations_said(model, field, power):
    rotated = model.rotate(3, power=power)
    scores = rotated.transform(field)
    assert (scores.dims, scores.sizes["component"], scores.attrs["units"]) == (("time", "component"), 3, "K")
    np.testing.assert_array_equal(scores["component"], [1, 2, 3])
    np.testing.assert_allclose(scores.var("time", ddof=1), rotated.explained_variance)
    np.testing.assert_allclose(np.corrcoef(scores.values.T), rotated.correlation, atol=1e-9)
    back = rotated.inverse_transform(scores)
    xr.testing.assert_allclose(back, model.reconstruct(field, 3))
    assert (back.dims, back.attrs["units"]) == (("time", "lat", "lon"), "K")


def test_every_kind_of_samples_gives_the_same(model, field, tmp_path):
    rotated, rows = model.rotate(), field.values
    expected = rotated.transform(rows)
    np.save(tmp_path / "x.npy", rows)
    for given in (da.from_array(rows, chunks=(40, 10, 14)), tmp_path / "x.npy", field, field.chunk(time=40)):
        found = rotated.transform(given)
        assert isinstance(getattr(found, "data", found), da.Array) == (given is not field)
        np.testing.assert_allclose(found, expected, atol=1e-9)
        np.testing.assert_allclose(rotated.inverse_transform(found), model.reconstruct(rows), atol=1e-9)


def test_some_rotated_components_go_back_by_their_numbers(model, field):
    rotated = model.rotate(power=4)
    scores = rotated.transform(field)
    expected = model.mean + np.tensordot(scores.values[:, [1, 3]], rotated.components[[1, 3]], 1)
    for some in (scores.sel(component=[2, 4]), scores.sel(component=[4, 2])):
        np.testing.assert_allclose(rotated.inverse_transform(some), expected, atol=1e-12)
    first = model.mean + np.tensordot(scores.values[:, :1], rotated.components[:1], 1)
    np.testing.assert_allclose(rotated.inverse_transform(scores.values[:, :1]), first, atol=1e-12)
    np.testing.assert_allclose(rotated.inverse_transform(scores.sel(component=1)), first, atol=1e-12)


def test_values_that_are_missing_are_left_to_least_squares():
    """Scores of samples that lack values rebuild them as the principal components do."""
    values = field_of(n=80).values.copy()
    values[3, 2:5, 4:9] = np.nan
    model = streampca.fit(values, streampca.PCA(4, missing="em"))
    rotated = model.rotate(power=4)
    np.testing.assert_allclose(
        rotated.inverse_transform(rotated.transform(values)), model.reconstruct(values), atol=1e-9
    )


def test_masked_images_in_single_precision():
    rng = np.random.default_rng(0)
    images = (40 * np.tensordot(rng.random((80, 4)), blobs(4), 1) + rng.integers(0, 9, (80, *SHAPE))).astype(np.uint8)
    mask = np.indices(SHAPE).sum(axis=0) > 3
    model = streampca.fit(images, n_components=4, preparation=streampca.Preparation(mask=mask, scale=0.5))
    rotated = model.rotate()
    assert rotated.components.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(rotated.components[0]), ~mask)
    back = rotated.inverse_transform(rotated.transform(images))
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, model.reconstruct(images), atol=1e-3)


def test_components_on_disk_are_read_piece_by_piece(tmp_path, monkeypatch):
    rows = field_of(n=60).values.repeat(20, axis=2).astype(np.float32)
    streampca.fit(rows, n_components=4, output=tmp_path / "m.zarr")
    held, stored = (streampca.load(tmp_path / "m.zarr", memory=memory) for memory in ("1GiB", "64KiB"))
    assert not stored.subspace.is_held
    monkeypatch.setattr(rotation, "PIECE", 900)
    for power in (1, 4):
        one, other = held.rotate(power=power), stored.rotate(power=power)
        np.testing.assert_allclose(one.components, other.components, atol=1e-6)
        np.testing.assert_allclose(one.matrix, other.matrix, atol=1e-9)
        scores = one.transform(rows)
        np.testing.assert_allclose(other.transform(rows), scores, atol=1e-4)
        other.write_scores(rows, tmp_path / "s.npy", memory="24MiB", overwrite=True)
        np.testing.assert_allclose(np.load(tmp_path / "s.npy"), scores, atol=1e-4)
        np.testing.assert_allclose(other.inverse_transform(scores), one.pca.reconstruct(rows), atol=1e-4)


def test_a_rotation_as_a_dataset(model):
    rotated = model.rotate(3)
    dataset = rotated.to_xarray()
    assert dataset["rotated_components"].dims == ("rotated_component", "lat", "lon")
    np.testing.assert_array_equal(dataset["rotated_components"][1], rotated.components[1])
    np.testing.assert_array_equal(dataset["components"], model.components)
    shares = dataset["rotated_explained_variance"] / dataset["total_variance"]
    np.testing.assert_allclose(shares, rotated.explained_variance_ratio)
    assert dataset["rotated_explained_variance"].attrs["units"] == "(K)^2"
    assert "RotatedPCAModel(3 components of PCAModel(4 components" in repr(rotated)


@pytest.mark.parametrize("power", [1, 4])
def test_rotated_components_are_drawn_and_exported(model, field, undrawn, tmp_path, power):
    """Not those before rotation, which the model contains."""
    rotated = model.rotate(3, power=power)
    of_rotated = rotated.explained_variance_ratio
    panels = streampca.plot.mean_and_components(rotated)
    assert [ax.get_title() for ax in panels[1:]] == [f"{i + 1}: {100 * of_rotated[i]:.3g} %" for i in range(3)]
    np.testing.assert_array_equal(panels[2].images[0].get_array(), rotated.components[1][::-1])  # latitude is upwards
    series = streampca.plot.series(rotated, rotated.transform(field))
    assert series[1, 1].get_title(loc="left") == f"component 2: {100 * of_rotated[1]:.3g} %"
    np.testing.assert_array_equal(series[1, 0].images[0].get_array(), rotated.components[1][::-1])
    rotated.save(tmp_path / "m.zarr")
    assert f" 1 {100 * of_rotated[0]:.2f} " in " ".join(succeeded("inspect", tmp_path / "m.zarr").split())
    streampca.write_report(rotated, tmp_path / "r.html", collection=field)
    page = (tmp_path / "r.html").read_text()
    (section,) = (text for text in page.split("<section ") if text.startswith('id="components"'))
    assert f"<td>{100 * of_rotated[0]:.2f}</td>" in section
    assert "components are rotated, and scores and unusual samples are along these" in page
    succeeded("export", tmp_path / "m.zarr", "-o", tmp_path / "c.npy", "--no-mean")
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), rotated.components)


def refuse_blocks(*_, **__):
    raise BudgetError("too small")


@pytest.mark.parametrize("power", [1, 4])
@pytest.mark.parametrize("by_features", [False, True])
def test_images_are_written_from_rotated_components(tmp_path, monkeypatch, power, by_features):
    """By samples and by ranges of features, from samples and from scores, with the error that is measured."""
    if by_features:
        monkeypatch.setattr(write, "_plan_blocks", refuse_blocks)
    rows = field_of(n=60).values
    pca = streampca.fit(rows, n_components=4, output=tmp_path / "pca.zarr")
    rotated = streampca.load(tmp_path / "pca.zarr").rotate(3, power=power)
    rotated.save(tmp_path / "m.zarr")
    np.save(tmp_path / "x.npy", rows)
    scores = rotated.transform(rows)
    np.save(tmp_path / "s.npy", scores)
    np.testing.assert_allclose(rotated.reconstruct(rows), pca.reconstruct(rows, 3), atol=1e-9)
    for count in (2, 3):
        images = rotated.inverse_transform(scores[:, :count])
        np.testing.assert_allclose(rotated.reconstruct(rows, count), images, atol=1e-9)
        error = np.sqrt(np.mean((rows - images) ** 2))
        for source in ("x", "s"):
            said = succeeded(
                "reconstruct", tmp_path / "m.zarr", tmp_path / f"{source}.npy", "-o", tmp_path / f"{source}{count}.npy",
                "--n-components", count,
            )  # fmt: skip
            np.testing.assert_allclose(np.load(tmp_path / f"{source}{count}.npy"), images, atol=1e-9)
            assert f"RMSE {error:.4g}" in said
    np.testing.assert_allclose(rotated.residual(rows, 2), rows - rotated.reconstruct(rows, 2), atol=1e-9)


@pytest.mark.parametrize("power", [1, 4])
def test_a_report_examines_samples_along_rotated_components(model, field, power):
    """Scores are rotated; T2, which takes in their correlations, and the error are those of the same span."""
    rotated = model.rotate(3, power=power)
    survey = survey_of(rotated.shown, streampca.open_collection(field))
    np.testing.assert_allclose(survey.scores, rotated.transform(field), atol=1e-9)
    np.testing.assert_allclose(survey.t2, model.hotelling_t2(field, 3), rtol=1e-6)
    np.testing.assert_allclose(survey.spe, model.reconstruction_error(field, 3), rtol=1e-6)
    drawn = streampca.plot.reconstructions(rotated, field.values, ladder=[1, 3], count=2)
    expected = [np.linalg.norm(field[0] - rotated.reconstruct(field[:1], step)[0]) for step in (1, 3)]
    shares = 100 * np.array(expected) / np.linalg.norm(field[0] - model.mean)
    assert [ax.get_xlabel() for ax in drawn[0, 1:]] == [f"error {share:.3g} %" for share in shares]
    assert streampca.plot.unusual(rotated, field.values[:2], survey.t2[:2], survey.spe[:2]).shape == (2, 3)


def test_a_run_foresees_the_memory_of_a_report_on_rotated_components():
    """All of them are held, before and after rotation, while of others only some are looked at."""
    x = np.random.default_rng(0).normal(size=(9, 200, 200)) ** 3
    model = streampca.fit(x, n_components=6).rotate(6)
    outputs = {entry.name: None for entry in fields(AppliedOutputs)} | {"has_report": True, "run": Run(memory=2**20)}
    raw = streampca.open_collection(x)
    with pytest.raises(BudgetError, match="a report on samples of 40000 features needs") as refused:
        foresee_applying(model, raw, AppliedOutputs(**outputs))
    survey_of(model.shown, raw, memory=re.search(r"at least (\d+MiB)", str(refused.value))[1])


# -- what is refused


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda m: m.rotate(1), RequestError, "n_components=1 leaves nothing to rotate; give at least 2"),
    (lambda m: m.rotate(5), RequestError, "n_components=5 is no whole number between 1 and 4"),
    (lambda m: m.rotate(power=0.5), RequestError, "power 0.5 is not a number of at least 1"),
    (lambda m: m.rotate(max_iterations=0), RequestError, "max_iterations 0 is not a whole number"),
    (lambda m: m.rotate(max_iterations=1), ModelError, "in 1 iteration; allow more, .*=10, or .*=3"),
    (lambda m: m.rotate(memory="1MiB"), BudgetError, "rotating 4 components of 140 features needs"),
    (lambda m: m.rotate().inverse_transform(np.zeros((3, 5))), RequestError, "give n rows of 1 to 4 components"),
    (lambda m: m.rotate().inverse_transform(5.0), RequestError, r"shape \(\); give n rows of 1 to 4"),
    (lambda m: m.rotate().inverse_transform([5.0]), RequestError, r"shape \(1,\); give n rows of 1 to 4"),
    (lambda m: m.rotate().inverse_transform("s.zarr"), RequestError, "4 components, as an array"),
])  # fmt: skip
def test_what_cannot_be_rotated(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)


def test_components_without_variance_are_not_rotated():
    rows = np.random.default_rng(0).normal(size=(30, 3)) @ np.random.default_rng(1).normal(size=(3, 20))
    model = streampca.fit(rows, n_components=5)
    with pytest.raises(RequestError, match="component 4 of the model has no variance above rounding") as refused:
        model.rotate()
    remedy = int(re.search(r"n_components=(\d+)", str(refused.value))[1])
    assert model.rotate(remedy).n_components == 3
