"""Collections taken for arrays: samples by number, lazy views, values of pixels, all as numpy's or dask's array."""

from __future__ import annotations

import pickle
import re

import dask.array as da
import numpy as np
import pytest
import zarr
from PIL import Image

import streampca
from streampca import machine
from streampca.errors import BudgetError, IndexingError, RequestError
from streampca.readers import Chunks, Collection, Storage, open_collection
from streampca.units import MIB

X = np.random.default_rng(7).integers(0, 256, (23, 6, 5), np.uint8)
KEYS = [
    slice(2, 10), slice(-5, None), slice(None), slice(None, None, 3), slice(20, 3, -4), slice(4, 100), [3], [1, 2, 3],
    [0, 5, 6, 22], [9, 2, -1, 0], np.arange(23) % 3 == 1, np.random.default_rng(0).permutation(23),
    np.array([7, 3], "u1"),
]  # fmt: skip


class Recorded(Collection):
    """An array that counts which samples and features are read of it, in chunks of 8 samples."""

    def __init__(self, x):
        self.source, self.shape, self.dtype, self.x, self.reads = "recorded", x.shape, x.dtype, x, []
        self.storage = Storage(Chunks(8, self.n_features))

    def read(self, rows, features=None):
        self.reads.append((rows.start, rows.stop, *(() if features is None else (features.start, features.stop))))
        return self.x.reshape(len(self.x), -1)[rows, features or slice(None)]


@pytest.fixture
def folder(tmp_path):
    """Images as files, 1.png to 23.png."""
    for number, image in enumerate(X, 1):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_views_are_what_numpy_takes(key):
    base = Recorded(X)
    view = base[key]
    assert base.reads == []
    assert isinstance(view, Collection)
    assert (len(view), view.shape, view.ndim) == (len(X[key]), X[key].shape, 3)
    np.testing.assert_array_equal(view, X[key])
    np.testing.assert_array_equal(
        view[1:][::-1] if len(view) > 1 else view, X[key][1:][::-1] if len(view) > 1 else X[key]
    )
    np.testing.assert_array_equal(list(pickle.loads(pickle.dumps(view))), X[key])  # noqa: S301 - our own


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_views_of_files_know_their_names(folder, key):
    """Also in another order: a file is named by its own place."""
    view = open_collection(folder)[key]
    numbers = np.arange(1, 24)[key]
    assert [view.where(at).rsplit("/", 1)[1] for at in range(len(view))] == [f"{number}.png" for number in numbers]
    assert list(view.sample_names()) == [f"{number}.png" for number in numbers]
    np.testing.assert_array_equal(view, X[key])
    given = {}
    view.each(slice(0, len(view)), lambda at, image: given.__setitem__(at, image.copy()))
    np.testing.assert_array_equal([given[at] for at in range(len(view))], X[key])


@pytest.mark.parametrize(
    "key",
    [
        3,
        -1,
        (3, 2),
        (3, slice(1, 3), -2),
        (..., 4),
        (slice(None), 3, 4),
        (slice(2, 9), 1),
        (slice(2, 9), slice(4, 1, -1), slice(1, None, 2)),
        ([4, 2], ..., 1),
        (0, ...),
        (slice(3, 5), slice(2, 2)),
    ],
    ids=str,
)
def test_pixels_are_what_numpy_takes(key):
    found = Recorded(X)[key]
    assert isinstance(found, np.ndarray | np.generic)
    np.testing.assert_array_equal(found, X[key])
    assert found.dtype == X.dtype


def test_the_course_of_a_pixel_reads_that_pixel(monkeypatch):
    base = Recorded(X)
    np.testing.assert_array_equal(base[4:12, 3, 1:3], X[4:12, 3, 1:3])
    assert base.reads == [(4, 12, 16, 18)]


def test_whole_slices_are_the_collection_itself():
    base = Recorded(X)
    for key in (slice(None), ..., (), (slice(0, 23), slice(0, 6)), (..., slice(None))):
        assert base[key] is base


def test_samples_are_the_callers():
    """Writing to samples, iterated and computed ones too, does not change the source."""
    x = X.copy()
    collection = open_collection(x)
    for values in (
        collection[2],
        np.asarray(collection),
        collection[:, 0],
        next(iter(collection)),
        collection.to_dask().compute(scheduler="sync"),
    ):
        values[...] = 0
    np.testing.assert_array_equal(x, X)


def test_chunks_are_read_once_in_turn(monkeypatch):
    monkeypatch.setattr("streampca.readers.views.blocks._PIECE", 1)
    base = Recorded(X)
    np.testing.assert_array_equal(list(base), X)
    assert base.reads == [(0, 8), (8, 16), (16, 23)]


def test_labels_and_coordinates_follow_the_samples(tmp_path):
    labels = np.arange(23) % 4
    made = zarr.create_array(tmp_path / "x.zarr", data=X, dimension_names=("t", "y", "x"))
    collection = open_collection(made, labels=labels)
    order = np.argsort(-labels, kind="stable")
    np.testing.assert_array_equal(collection[order].labels, labels[order])
    np.testing.assert_array_equal(collection[collection.labels == 3], X[labels == 3])
    assert collection[order].axes == ("y", "x")


def test_another_order_is_another_fingerprint(folder):
    """The same order has the same fingerprint."""
    for collection in (open_collection(folder), Recorded(X)):
        prints = [
            collection[key].fingerprint() for key in ([1, 2, 3], [3, 1, 2], [2, 1, 3], slice(1, 5), slice(4, 0, -1))
        ]
        assert len({collection.fingerprint(), *prints}) == 6
        assert collection[[3, 1, 2]].fingerprint() == prints[1]


def test_views_are_fitted_and_remembered(folder):
    """The model knows how its samples were taken, where that can be said."""
    collection = open_collection(folder)
    ours = streampca.fit(collection[5:20], n_components=3)
    theirs = streampca.fit(X[5:20], n_components=3)
    np.testing.assert_array_equal(ours.components, theirs.components)
    assert ours.provenance["opened"]["options"] == {"samples": {"slice": [5, 20, 1]}}
    again = open_collection(folder, samples=slice(*ours.provenance["opened"]["options"]["samples"]["slice"]))
    assert again.fingerprint() == collection[5:20].fingerprint()
    mixed = streampca.fit(collection[[5, 2, 9, 7]], n_components=2)
    assert mixed.provenance["opened"] == {"source": str(folder), "options": {"samples": [5, 2, 9, 7]}, "not_kept": []}
    np.testing.assert_allclose(mixed.transform(collection[[9, 5]]), mixed.transform(X[[9, 5]]), atol=1e-4)


def test_prepared_samples_are_images():
    """Outside the mask they are not known."""
    mask = np.indices((6, 5)).sum(axis=0) > 2
    prepared = streampca.fit(X, n_components=2, preparation=streampca.Preparation(mask=mask)).prepared(X)
    expected = np.where(mask, X.astype(np.float32), np.nan)
    for found in (prepared, prepared.to_dask(), list(prepared)):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(prepared[[4, 1]], expected[[4, 1]])
    np.testing.assert_array_equal(prepared[3], expected[3])
    with pytest.raises(IndexingError, match="is masked"):
        prepared[:, 3]


def test_images_of_several_sizes_are_taken_one_by_one(tmp_path):
    images = [X[0], X[1, :4], X[2, :, :3]]
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    collection = open_collection(tmp_path)
    for found, image in zip(collection, images, strict=True):
        np.testing.assert_array_equal(found, image)
    np.testing.assert_array_equal(collection[-1], images[-1])
    for found, at in zip(collection[[2, 1]], (2, 1), strict=True):
        np.testing.assert_array_equal(found, images[at])
    for call in (np.asarray, lambda given: given.to_dask(), lambda given: given[:, 0]):
        with pytest.raises(RequestError, match="holds images of several sizes, which make no array; take them one by"):
            call(collection)


# -- as arrays


def test_as_a_lazy_array():
    base = Recorded(X)
    lazy = base.to_dask()
    assert base.reads == []
    assert isinstance(lazy, da.Array)
    assert (lazy.shape, lazy.dtype) == (X.shape, X.dtype)
    np.testing.assert_array_equal(lazy[3:7, 2], X[3:7, 2])
    np.testing.assert_array_equal(base[::-2].to_dask().mean(axis=0), X[::-2].mean(axis=0))
    np.testing.assert_array_equal(da.from_array(Recorded(X), chunks=(9, 4, 5)), X)


def test_the_dtype_that_is_asked_for():
    assert np.asarray(Recorded(X), np.float32).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(Recorded(X), np.float32), X)
    with pytest.raises(ValueError, match="recorded cannot be an array without being read"):
        np.array(Recorded(X), copy=False)


def test_what_exceeds_the_memory_allowed_is_refused(monkeypatch):
    """Before anything is read, with remedies that work."""
    monkeypatch.setattr(machine, "memory_limit", lambda: (2 * MIB, "a test"))
    monkeypatch.setattr("streampca.readers.views.blocks._PIECE", 1)
    x = np.zeros((100, 160, 100), np.uint8)
    base = Recorded(x)
    with pytest.raises(
        BudgetError, match=r"100 samples of recorded as an array need 1.6 MiB and memory allows 1.0"
    ) as no:
        np.asarray(base)
    assert base.reads == []
    most = int(re.search(r"collection\[:(\d+)\]", str(no.value))[1])
    assert np.asarray(base[:most]).nbytes <= MIB
    with pytest.raises(BudgetError, match=r"take some samples at a time, such as collection\[:\d+\], or use"):
        np.asarray(base[: most + 20])
    assert int(base.to_dask().sum().compute(scheduler="sync")) == 0
    with pytest.raises(BudgetError, match="60 samples"):
        np.asarray(base[:60], np.uint16)
    with pytest.raises(BudgetError, match=r"allows 1\.0 MiB"):
        base[:, 10:]
    assert base[:, 10:50].shape == (100, 40, 100)
    with pytest.raises(BudgetError, match=r"\(half of a test\); use collection.to_dask\(\)"):
        np.asarray(Recorded(np.zeros((2, 2 * MIB), np.uint8)))
