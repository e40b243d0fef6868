"""Pictures put back from overlapping patches: exact where these agree, their mean where not, in bounded memory."""

from __future__ import annotations

import tracemalloc
from itertools import permutations

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from shell import succeeded
from sklearn.datasets import load_sample_image

import streampca
from streampca.errors import BudgetError, RequestError, Stopped
from streampca.events import BlockDone
from streampca.readers import windows


@st.composite
def cuttings(draw):
    """An image of one to three axes, perhaps with colours, and how it is cut."""
    sides = draw(st.integers(1, 3))
    size = tuple(draw(st.integers(1, 4)) for _ in range(sides))
    step = tuple(draw(st.integers(1, 5)) for _ in range(sides))
    shape = tuple(side + draw(st.integers(0, 6)) for side in size) + ((3,) if draw(st.booleans()) else ())
    return (
        draw(hnp.arrays(draw(st.sampled_from(["f8", "f4", "u1", "i2"])), (draw(st.integers(1, 2)), *shape))),
        size,
        step,
    )


def cut(images, size, step):
    """All windows, by numpy alone, and which pixels are in any."""
    axes = tuple(range(1, 1 + len(size)))
    views = np.lib.stride_tricks.sliding_window_view(images, size, axes)
    views = views[(slice(None), *(slice(None, None, each) for each in step))]
    sides = len(size)
    views = np.moveaxis(views, range(1 + sides, images.ndim), range(1 + 2 * sides, images.ndim + sides))
    covered = np.zeros(images.shape, bool)
    for place in np.ndindex(*views.shape[1 : 1 + sides]):
        covered[
            (slice(None), *(slice(at, at + side) for at, side in zip(np.multiply(place, step), size, strict=True)))
        ] = True
    return views.reshape(-1, *views.shape[1 + sides :]), covered


@given(cutting=cuttings(), memory=st.integers(1, 4000), band=st.integers(1, 2000))
def test_windows_of_a_picture_give_it_back_to_the_last_bit(cutting, memory, band):
    images, size, step = cutting
    patches, covered = cut(images, size, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "BAND", band)
        found = streampca.from_patches(patches, images.shape[1:], size, step, memory=f"{memory}B")
    found = found if len(images) > 1 else found[None]
    np.testing.assert_array_equal(found[covered], images[covered])
    assert np.isnan(found[~covered]).all()


@given(cutting=cuttings(), seed=st.integers(0, 9))
def test_windows_that_differ_are_averaged(cutting, seed):
    images, size, step = cutting
    patches = np.random.default_rng(seed).normal(size=cut(images, size, step)[0].shape)
    patches[0].flat[0] = np.nan  # left to the others
    places, _ = cut(np.arange(images.size).reshape(images.shape), size, step)
    known = np.isfinite(patches)
    total, count = (np.bincount(places[known], of, images.size) for of in (patches[known], None))
    with np.errstate(invalid="ignore"):
        expected = (total / count).reshape(images.shape)
    found = streampca.from_patches(patches, images.shape[1:], size, step)
    np.testing.assert_allclose(found, expected if len(images) > 1 else expected[0], atol=1e-12)


@pytest.mark.parametrize("values", [(np.inf, 0, 5), (-np.inf, 0, np.nan), (np.inf, -np.inf, 0), (np.inf, np.inf, 1)])
def test_an_infinite_value_makes_an_infinite_mean_in_any_order(values):
    for order in permutations(values):
        patches = np.zeros((3, 1, 3))
        patches[range(3), 0, [2, 1, 0]] = order  # the pixel that all three hold
        found = streampca.from_patches(patches, (1, 5), (1, 3), (1, 1))
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(found, [[0, 0, np.nanmean(order), 0, 0]])


def test_dask_is_computed_chunk_by_chunk_and_once():
    image = np.random.default_rng(0).normal(size=(40, 30))
    patches, _ = cut(image[None], (5, 6), (1, 2))
    computed = []

    def noted(block, block_info=None):
        computed.append(block_info[0]["chunk-location"] if block_info else None)
        return block

    lazy = da.from_array(patches, chunks=(50, -1, -1)).map_blocks(noted, meta=patches[:0])
    np.testing.assert_array_equal(streampca.from_patches(lazy, (40, 30), (5, 6), (1, 2)), image)
    assert len(computed) == len(set(computed)) == lazy.numblocks[0]


@pytest.mark.slow
def test_a_picture_larger_than_memory_goes_to_what_takes_slices(tmp_path, monkeypatch):
    shape, count = (2048, 512), 255 * 63
    monkeypatch.setattr(windows, "BAND", 2**16)
    patches = np.lib.stride_tricks.as_strided(np.float32([7]), (count, 16, 16), (0, 0, 0))
    out = np.lib.format.open_memmap(tmp_path / "p.npy", "w+", "f8", shape)
    tracemalloc.start()
    assert streampca.from_patches(patches, shape, 16, 8, out=out, memory="1MiB") is out
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < out.nbytes / 4
    assert (out[::100] == 7).all()


@pytest.mark.parametrize(
    ("count", "shape", "said"),
    [(7, (6, 6), "give 4 for each image, of 9 values"), (0, (6, 6), "give 4"), (4, (2, 6), "are of no image of 2 x 6")],
)
def test_what_is_no_picture_is_refused(count, shape, said):
    with pytest.raises(RequestError, match=said):
        streampca.from_patches(np.zeros((count, 3, 3)), shape, 3)
    with pytest.raises(RequestError, match="give 2 for each image, of 4 values"):
        streampca.from_patches(5.0, (2, 4), 2)


def test_patches_come_in_what_is_like_an_array():
    patches = np.arange(36.0).reshape(4, 3, 3)
    expected = streampca.from_patches(patches, (6, 6), 3)
    np.testing.assert_array_equal(streampca.from_patches(patches.tolist(), [6, 6], np.array([3, 3])), expected)
    lazy = da.from_array(patches, chunks=(2, -1, -1))
    unknown = lazy[lazy.mean(axis=(1, 2)) >= 0]
    with pytest.raises(RequestError, match=r"unknown number; call dask's compute_chunk_sizes\(\)"):
        streampca.from_patches(unknown, (6, 6), 3)
    np.testing.assert_array_equal(streampca.from_patches(unknown.compute_chunk_sizes(), (6, 6), 3), expected)
    for wrong, said in (({"shape": 6}, "shape 6 is not"), ({"out": np.zeros((5, 5))}, "out has shape 5 x 5; give")):
        with pytest.raises(RequestError, match=said):
            streampca.from_patches(patches, **{"shape": (6, 6), "size": 3} | wrong)


# -- written


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photo")
    Image.fromarray(load_sample_image("flower.jpg")[100:221, 200:290]).save(folder / "photo.png")
    patches = streampca.open_collection(folder / "photo.png", patches={"size": 16, "step": 5})
    model = streampca.fit(patches, n_components=20, memory="256MiB")
    model.save(folder / "m.zarr")
    return folder, patches, model


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("output", ["p.npy", "p.zarr"])
def test_the_command_puts_a_photograph_back(photo, tmp_path, output, residual):
    folder, patches, model = photo
    asked = [
        "--patches",
        "16x16/5x5",
        "--n-components",
        "8",
        "--whole",
        "-o",
        tmp_path / output,
        *["--residual"][: int(residual)],
    ]
    words = succeeded("reconstruct", folder / "m.zarr", folder / "photo.png", *asked)
    assert "8 components: " in words
    assert "of samples, ratio" in words
    found = np.load(tmp_path / output) if output == "p.npy" else zarr.open_group(tmp_path / output)["images"][...]
    makes = model.residual if residual else model.reconstruct
    expected = streampca.from_patches(makes(patches, 8), (121, 90, 3), 16, 5)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_scores_of_overlapping_patches_stand_for_the_image_and_not_for_the_patches(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (1, 40, 40), dtype=np.uint8))
    patches = streampca.open_collection(tmp_path / "x.npy", patches={"size": 16, "step": 1})
    model = streampca.fit(patches, n_components=2, memory="128MiB")
    model.write_scores(patches, tmp_path / "s.npy")
    for source in (patches, tmp_path / "s.npy"):
        assert model.write_reconstruction(source, tmp_path / "i.npy", overwrite=True).original_bytes == 1600


def test_several_pictures_and_a_run_that_is_stopped(photo, tmp_path, monkeypatch):
    _, _, model = photo
    stack = np.random.default_rng(0).integers(0, 256, (3, 60, 50, 3), dtype=np.uint8)
    np.save(tmp_path / "x.npy", stack)
    given = streampca.open_collection(tmp_path / "x.npy", sample_axes=(1, 2, 3), patches={"size": 16, "step": 5})
    monkeypatch.setattr(windows, "BAND", 20_000)
    monkeypatch.setattr("streampca.planning.transform.MOST_BLOCK", 100_000)

    def stop(event):
        if isinstance(event, BlockDone):
            raise Stopped

    figures = model.write_reconstruction(given, tmp_path / "whole.zarr", whole=True)
    for _ in range(3):
        with pytest.raises(Stopped):
            model.write_reconstruction(
                given, tmp_path / "again.zarr", whole=True, checkpoint=str(tmp_path / "ck"), listener=stop
            )
    more = {"checkpoint": str(tmp_path / "ck"), "whole": True}
    assert model.write_reconstruction(given, tmp_path / "again.zarr", **more).rmse == figures.rmse
    whole, again = (zarr.open_group(tmp_path / name)["images"][...] for name in ("whole.zarr", "again.zarr"))
    np.testing.assert_array_equal(whole, again)
    np.testing.assert_allclose(
        whole, streampca.from_patches(model.reconstruct(given), (60, 50, 3), 16, 5), atol=1e-3, equal_nan=True
    )


def test_what_cannot_be_put_together_is_refused(photo, tmp_path):
    folder, patches, model = photo
    some = streampca.open_collection(folder / "photo.png", patches={"size": 16, "step": 5}, samples=(0, 10))
    windows_alone = np.asarray(patches.read(slice(0, 5))).reshape(5, 16, 16, 3)
    for samples in (some, windows_alone):
        with pytest.raises(RequestError, match="is not cut into patches"):
            model.write_reconstruction(samples, tmp_path / "p.npy", whole=True)
    binned = streampca.fit(patches, n_components=2, preparation=streampca.Preparation(bin=2), memory="256MiB")
    with pytest.raises(RequestError, match="prepared to another shape"):
        binned.write_reconstruction(patches, tmp_path / "p.npy", whole=True)
    with pytest.raises(BudgetError, match="Set memory to at least"):
        model.write_reconstruction(patches, tmp_path / "p.npy", whole=True, memory="1MiB")
