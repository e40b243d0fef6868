"""Preparation of samples: by blocks, compared with plain numpy, and stored with models."""

from __future__ import annotations

import json
import math
from itertools import cycle

import numpy as np
import pytest
from contract import Contract, over
from hypothesis import given
from hypothesis import strategies as st
from pictured import assert_pictured
from PIL import Image

import streampca
from streampca import plot
from streampca.cli.config import make_run
from streampca.cli.pipeline import execute
from streampca.errors import DataError, ModelError, RequestError, SourceError
from streampca.preprocessing import (
    Frame,
    NormalizeError,
    Preparation,
    Prepared,
    check_raw,
    missing_share,
    resolved,
    unflatten,
    valid_mask,
)
from streampca.preprocessing.mask_files import read_mask, read_scale
from streampca.preprocessing.sizes_for_planning import problem_of
from streampca.readers import open_collection
from streampca.readers.collection import Collection
from streampca.storage.coordinate import Coordinate

LUMA = np.array([0.299, 0.587, 0.114], np.float32)


class Pictures(Collection):
    """Images of any sizes in memory, as a folder of files would be."""

    def __init__(self, images):
        self.images, self.source = images, "pictures"
        self.dtype = images[0].dtype
        self.shape = (len(images), *max((image.shape for image in images), key=math.prod))
        self.mixed = len({image.shape for image in images}) > 1

    def read(self, rows, features=None):
        assert not self.mixed or rows.start == rows.stop
        read = np.stack(self.images[rows]).reshape(-1, self.n_features) if rows.stop > rows.start else None
        read = np.empty((0, self.n_features), self.dtype) if read is None else read
        return np.ascontiguousarray(read if features is None else read[:, features])

    def each(self, rows, function):
        for at in range(rows.start, rows.stop):
            function(at - rows.start, self.images[at])

    def where(self, index):
        return f"picture {index}"


class Globe(Collection):
    """An array with named axes and coordinates."""

    def __init__(self, values, axes=("lat", "lon"), **coordinates):
        self.values, self.source, self.shape, self.dtype = values, "globe", values.shape, values.dtype
        self.axes, self.known = axes, {name: Coordinate(np.asarray(v)) for name, v in coordinates.items()}

    coordinates = property(lambda self: self.known)

    def sample_coordinates(self):
        return {"time": Coordinate(np.arange(self.n_samples), {"units": "days"})}

    def read(self, rows, features=None):
        read = self.values[rows].reshape(-1, self.n_features)
        return np.ascontiguousarray(read if features is None else read[:, features])


def mixed(dtype="u1", channels=((), (3,), (4,)), n=23):
    rng = np.random.default_rng(3)
    sizes = rng.integers(9, 40, size=(n, 2))
    shapes = [(*map(int, size), *channels[number % len(channels)]) for number, size in enumerate(sizes)]
    if np.dtype(dtype).kind == "f":
        return [rng.normal(size=shape).astype(dtype) for shape in shapes]
    return [rng.integers(0, np.iinfo(dtype).max, size=shape).astype(dtype) for shape in shapes]


def by_pillow(plane, height, width):
    return np.asarray(Image.fromarray(plane.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR))


def grey_by_hand(image):
    return image.astype(np.float32) if image.ndim == 2 else (image[..., :3].astype(np.float32) * LUMA).sum(axis=-1)


def same_size(dtype="u1", shape=(23, 12, 10, 3)):
    """Images of one size, (n, *image shape)."""
    return np.stack([np.resize(image, shape[1:]) for image in mixed(dtype, n=shape[0])])


# -- by blocks and by hand


@pytest.mark.parametrize("dtype", ["u1", ">u2", "f4", "f8"])
def test_resizing_is_pillows_on_each_channel(dtype):
    images = same_size(dtype)
    rows = Prepared(Pictures(list(images)), Preparation(resize=(5, 7))).read(slice(0, len(images)))
    for row, image in zip(rows, images, strict=True):
        hand = np.stack([by_pillow(image[..., channel], 5, 7) for channel in range(3)], axis=-1)
        if dtype == "u1":
            np.testing.assert_array_equal(row, hand.ravel())
        else:  # less the mean of its plane, which rounds less
            np.testing.assert_allclose(row, hand.ravel(), rtol=3e-7, atol=3e-7)


def test_resizing_neither_rings_nor_leaves_the_range():
    """Beside a step the filter stays between its two sides, up and down, and keeps the mean of an even image."""
    step = np.zeros((1, 40, 40), np.float32)
    step[:, :, 20:] = 1
    for size in ((30, 30), (64, 7), (200, 90), (1, 1)):
        row = Prepared(Pictures(list(step)), Preparation(resize=size)).read(slice(0, 1))
        assert row.min() >= 0
        assert row.max() <= 1 + 1e-6
        assert row.mean() == pytest.approx(0.5, abs=1e-3)


def test_the_steps_are_taken_in_order():
    images = same_size()
    mask, scale = np.zeros((3, 2), bool), np.linspace(1, 2, 6).reshape(3, 2)
    mask[1:] = True
    preparation = Preparation(
        crop=((1, -1), (None, -2)), grey=True, resize=(6, 5), bin=2, mask=mask, scale=scale, normalize="mean"
    )
    rows = Prepared(Pictures(list(images)), preparation).read(slice(0, 23))
    for row, image in zip(rows, images, strict=True):
        small = by_pillow(grey_by_hand(image[1:11, 0:8]), 6, 5)
        squares = small[:6, :4].reshape(3, 2, 2, 2).mean(axis=(1, 3))
        kept = (squares * scale)[mask]
        np.testing.assert_allclose(row, kept - kept.mean(), rtol=1e-5, atol=1e-4)


PREPARATIONS = {
    "scale": Preparation(scale=0.25),
    "scale a pixel": Preparation(scale=np.linspace(0.5, 2, 120).reshape(12, 10)),
    "mean": Preparation(normalize="mean"),
    "norm": Preparation(normalize="norm", grey=True),
    "ratio": Preparation(normalize="ratio", mask=np.arange(120).reshape(12, 10) % 3 > 0),
    "resize": Preparation(resize=(5, 7), bin=2),
    "margins": Preparation(crop=((2, -3), (None, -1))),
    "all": Preparation(
        crop=((1, 11), (0, 9)), grey=True, resize=(8, 6), bin=2, mask=np.tri(4, 3, 1, bool), scale=3.0, normalize="norm"
    ),
}


def prepared(raw, preparation):
    """Return a row of sources; what is read at once, row by row, is what the contract finds in any cut."""

    def make(folder):
        collection = Prepared(raw(folder), preparation)
        rows = [collection.read(slice(at, at + 1))[0] for at in range(collection.n_samples)]
        shape = (-1,) if collection.mask is not None else collection.sample_shape
        return collection, np.stack(rows).reshape(len(rows), *shape)

    return make


def padded(folder):
    return Pictures([np.pad(image, [(4, 4), (4, 4), (0, 0)][: image.ndim]) for image in mixed()])


def files(folder):
    """PNG files of several sizes, grey and colour, decoded and resized in threads."""
    for number, image in enumerate(mixed()):
        Image.fromarray(image).save(folder / f"p{number}.png")
    raw = open_collection(folder)
    assert raw.mixed
    return raw


ROWS = {
    f"{name}, {dtype}": prepared(lambda folder, dtype=dtype: Pictures(list(same_size(dtype))), preparation)
    for (name, preparation), dtype in zip(PREPARATIONS.items(), cycle(("u1", "f4")), strict=False)
}
SMALL = Preparation(resize=(9, 8), grey=True)
ROWS |= {"mixed": prepared(padded, SMALL), "mixed, all": prepared(padded, PREPARATIONS["all"])}


@over(ROWS | {"mixed files": prepared(files, SMALL)})
class TestPrepared(Contract):
    cuts = 5

    def held_bytes(self, expected):
        return 2**20

    def test_shape_and_dtype(self, collection, expected):
        if collection.mask is None:
            super().test_shape_and_dtype(collection, expected)
        assert collection.n_features == expected[0].size

    def test_is_sliced_as_an_array(self, collection, expected):
        """Images, NaN outside the mask."""
        super().test_is_sliced_as_an_array(collection, unflatten(expected, collection.sample_shape, collection.mask))


def test_storage_in_chunks_is_read_by_the_chunk():
    """Only where each image is stored by itself is it read by itself: others would be decoded again for each."""
    raw = Pictures(list(same_size()))
    assert Prepared(raw, Preparation(resize=(5, 5))).row_bytes == 4 * 5 * 5 * 3
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array({}, shape=(23, 12, 10), dtype="u1", chunks=(5, 12, 10))
    array[...] = same_size()[..., 0]
    chunked = Prepared(open_collection(array), Preparation(resize=(5, 5)))
    assert chunked.row_bytes == 120
    images = Prepared(Pictures(list(same_size()[..., 0])), Preparation(resize=(5, 5)))
    np.testing.assert_array_equal(chunked.read(slice(0, 23)), images.read(slice(0, 23)))


# -- normalize


def test_normalizing_is_what_it_says():
    rows = np.random.default_rng(0).normal(3, 1, (50, 7)).astype("f4")
    raw = Pictures(list(rows.reshape(50, 7, 1)))

    def prepared(how):
        return Prepared(raw, Preparation(normalize=how)).read(slice(0, 50)).astype("f8")

    np.testing.assert_allclose(prepared("mean").mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(prepared("norm"), axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(prepared("ratio"), rows / rows.mean(axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("how", ["norm", "ratio"])
def test_what_cannot_be_normalized_is_named(how):
    images = np.random.default_rng(0).normal(3, 1, (9, 4, 4)).astype("f4")
    images[6] = 0
    with pytest.raises(DataError, match=rf"^picture 6 \(sample 6\) has .* 0.*normalize {how!r}.*leave the sample out"):
        Prepared(Pictures(list(images)), Preparation(normalize=how)).read(slice(4, 8))
    with pytest.raises(DataError, match="picture 6"):
        Prepared(Pictures(list(images)), Preparation(resize=(2, 2), normalize=how)).read(slice(4, 8))
    frame = Frame.of(Preparation(normalize=how), (4, 4))
    with pytest.raises(NormalizeError, match="sample 2 of those given"):
        frame.rows(images[4:].reshape(5, 16))
    images[6] = np.where(np.arange(16).reshape(4, 4) % 2, 0.1, -0.1)  # rounding leaves a mean of about 1e-18
    if how == "ratio":
        with pytest.raises(DataError, match="mean of 0"):
            Prepared(Pictures(list(images)), Preparation(normalize=how)).read(slice(0, 9))


# -- options that are wrong


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resize": (0, 4)}, "resize 0 x 4 .* at least 1"),
        ({"resize": 4}, r"resize 4 is not a height and a width"),
        ({"resize": (4, 4, 4)}, "not a height and a width"),
        ({"normalize": "men"}, "normalize 'men' is not one of mean, norm, ratio. Did you mean 'mean'"),
        ({"scale": 0}, "scale 0 is not a positive number"),
        ({"scale": -1.5}, "scale -1.5 is not"),
        ({"scale": np.nan}, "scale nan is not"),
        ({"scale": "aera"}, "scale 'aera' is not 'area'"),
        ({"scale": {}}, "a dict is no array of numbers"),
        ({"mask": "vlaid"}, "mask 'vlaid' is not 'valid'"),
    ],
)
def test_options_wrong_by_themselves(options, words):
    with pytest.raises(RequestError, match=words):
        Preparation(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"crop": ((-13, None),)}, "crop -13: lies outside an axis of 12"),
        ({"crop": ((3, -9),)}, "crop 3:-9 takes nothing of an axis of 12"),
        ({"grey": True, "mask": np.ones((3, 3), bool)}, "mask has shape 3 x 3 and prepared samples have 12 x 10"),
        ({"scale": np.ones(11)}, "scale has shape 11 and prepared samples have 12 x 10 x 3"),
        ({"scale": np.arange(12.0)}, "scale is not a positive number at 30 of the pixels.*mask"),
        ({"mask": "valid"}, "resolved"),
        ({"scale": "area"}, "resolved"),
    ],
)
def test_options_wrong_for_a_collection(options, words):
    with pytest.raises(RequestError, match=words):
        Prepared(Pictures(list(same_size())), Preparation(**options))


def test_pixels_outside_the_mask_need_no_factor():
    scale = np.arange(12.0)
    scale[3] = np.nan
    mask = (scale > 0) & np.isfinite(scale)
    prepared = Prepared(Pictures(list(same_size())), Preparation(mask=mask, scale=scale))
    assert np.isfinite(prepared.read(slice(0, 23))).all()


def test_what_can_and_what_must_be_resized():
    with pytest.raises(RequestError, match="resize needs samples of two axes"):
        Prepared(Globe(np.ones((3, 4)), axes=("x",)), Preparation(resize=(2, 2)))
    with pytest.raises(SourceError, match=r"pictures holds images of several sizes.*resize=\(64, 64\)"):
        Prepared(Pictures(mixed()), Preparation())


def test_an_image_that_cannot_be_prepared_is_named():
    images = [np.zeros((20, 20, 3), np.uint8), np.zeros((8, 30, 3), np.uint8), np.zeros((20, 19), np.uint8)]
    with pytest.raises(SourceError, match=r"^picture 2 \(sample 2\) is 20 x 19 and others are 20 x 20 x 3.*grey=True"):
        Prepared(Pictures(images), Preparation(resize=(4, 4))).read(slice(0, 3))
    with pytest.raises(SourceError, match=r"^picture 1 .* crop 2:12 lies outside an axis of 8"):
        Prepared(Pictures(images), Preparation(crop=((2, 12),), resize=(4, 4), grey=True)).read(slice(0, 3))


# -- on disk


@given(
    crop=st.none() | st.just(((1, None), (None, -2))),
    grey=st.booleans(),
    resize=st.none() | st.tuples(st.integers(1, 50), st.integers(1, 50)),
    bin=st.integers(1, 4),
    mask=st.sampled_from([None, np.eye(3, dtype=bool)]),
    scale=st.sampled_from([None, 0.5, np.arange(1.0, 4.0), "area"]),
    normalize=st.sampled_from([None, "mean", "norm", "ratio"]),
)
def test_plain_data_and_back(**options):
    preparation = Preparation(**options)
    text = json.loads(json.dumps(preparation.to_json()))
    scale = preparation.scale if isinstance(preparation.scale, np.ndarray) else None
    again = Preparation.from_json(text | {"raw_shape": [4, 4]}, preparation.mask, scale)
    assert again.to_json() == preparation.to_json()
    for name in ("mask", "scale"):
        np.testing.assert_array_equal(getattr(again, name), getattr(preparation, name))


# -- coordinates


def test_coordinates_follow_the_pixels():
    lat, lon = np.linspace(87.5, -87.5, 36), np.arange(72) * 5.0
    raw = Globe(np.zeros((2, 36, 72), "f4"), lat=lat, lon=lon)

    def coordinates(**options):
        return {name: c.values for name, c in Prepared(raw, Preparation(**options)).coordinates.items()}

    np.testing.assert_array_equal(coordinates()["lat"], lat)
    np.testing.assert_array_equal(coordinates(crop=((3, -3),))["lat"], lat[3:-3])
    np.testing.assert_allclose(coordinates(bin=5)["lon"], lon[:70].reshape(14, 5).mean(axis=1))
    np.testing.assert_allclose(coordinates(resize=(18, 24))["lat"], lat.reshape(18, 2).mean(axis=1))
    np.testing.assert_allclose(coordinates(resize=(18, 24))["lon"], lon.reshape(24, 3).mean(axis=1))
    up = coordinates(resize=(72, 144))["lat"]
    np.testing.assert_allclose(np.diff(up), -2.5)  # at the edges too
    assert Prepared(raw, Preparation(bin=2)).sample_coordinates()["time"].attributes == {"units": "days"}


def test_pixels_and_coordinates_are_resampled_alike():
    """An image that is its own coordinate stays so, but for the edges, where the filter has less to see."""
    x = np.linspace(0, 1, 60)
    raw = Globe(np.tile(x.astype("f4"), (2, 40, 1)), lat=np.arange(40.0), lon=x)
    for size in ((40, 23), (20, 60), (40, 90)):
        prepared = Prepared(raw, Preparation(resize=size))
        image = prepared.read(slice(0, 1)).reshape(size)
        np.testing.assert_allclose(image[:, 3:-3] - prepared.coordinates["lon"].values[3:-3], 0, atol=2e-3)


def test_coordinates_without_numbers_are_cut_but_not_merged():
    raw = Globe(np.zeros((2, 4, 6), "f4"), lat=np.array(list("abcd")), lon=np.arange(6))
    assert list(Prepared(raw, Preparation(crop=((1, 3),))).coordinates["lat"].values) == ["b", "c"]
    assert set(Prepared(raw, Preparation(bin=2)).coordinates) == {"lon"}


def test_grey_drops_the_channels_coordinate():
    raw = Globe(np.zeros((2, 4, 6, 3), "u1"), ("y", "x", "band"), y=np.arange(4), band=np.arange(3))
    assert set(Prepared(raw, Preparation(grey=True)).coordinates) == {"y"}


# -- what the data decide


def sea(n=40, dtype="f8"):
    """Samples of 6 x 8 with land, NaN in all, and one pixel that is missing once."""
    values = np.random.default_rng(0).normal(size=(n, 6, 8)).astype(dtype)
    values[:, :2, :5] = np.nan
    values[7, 5, 5] = np.inf
    return values


def test_valid_pixels_are_finite_in_every_sample():
    x = sea()
    for memory in (1, 5000, 2**20):
        np.testing.assert_array_equal(valid_mask(Globe(x), block_bytes=memory), np.isfinite(x).all(axis=0))
    events = []
    whole = resolved(Preparation(mask="valid"), Globe(np.zeros((3, 4, 4), "u2")), events.append)
    assert whole.mask is None
    assert events == []  # whole numbers are always there
    with pytest.raises(DataError, match="globe has no pixel that is finite in every sample"):
        valid_mask(Globe(np.full((3, 2, 2), np.nan)))


def test_valid_pixels_are_looked_for_after_the_other_steps():
    x = sea()
    found = resolved(Preparation(crop=((0, 4),), bin=2, mask="valid", normalize="mean"), Globe(x))
    squares = np.isfinite(x[:, :4]).all(axis=0).reshape(2, 2, 4, 2).all(axis=(1, 3))
    np.testing.assert_array_equal(found.mask, squares)
    assert found.normalize == "mean"


def test_areas_come_from_latitudes():
    lat = np.array([80.0, 40, 0, -40, -80, -90])
    for name in ("lat", "Latitude"):
        raw = Globe(np.ones((3, 6, 8), "f4"), axes=(name, "x"), **{name: lat})
        scale = resolved(Preparation(scale="area", bin=2), raw).scale
        cut = lat.reshape(3, 2).mean(axis=1)
        np.testing.assert_allclose(scale, np.sqrt(np.cos(np.deg2rad(cut)))[:, None] * np.ones(4))
    with pytest.raises(RequestError, match='scale "area" needs latitudes'):
        resolved(Preparation(scale="area"), Globe(np.ones((3, 6, 8))))


def test_the_share_that_is_missing():
    assert missing_share(Prepared(Globe(sea()), Preparation(normalize="mean"))) == 10 / 48


# -- masks from files


def test_masks_are_read_from_any_picture(tmp_path):
    mask = np.arange(48).reshape(6, 8) % 3 == 0
    np.save(tmp_path / "m.npy", mask)
    np.save(tmp_path / "n.npy", mask * 1.0)
    Image.fromarray(mask.astype(np.uint8) * 255).save(tmp_path / "m.png")
    colour = np.zeros((6, 8, 4), np.uint8)
    colour[..., 1], colour[..., 3] = mask, 255
    Image.fromarray(colour).save(tmp_path / "rgba.png")
    Image.fromarray(colour[..., [1, 3]]).save(tmp_path / "grey_and_alpha.png")
    Image.fromarray(mask).save(tmp_path / "one_bit.tif")
    for name in ("m.npy", "n.npy", "m.png", "rgba.png", "grey_and_alpha.png", "one_bit.tif"):
        np.testing.assert_array_equal(read_mask(str(tmp_path / name)), mask, err_msg=name)
    np.save(tmp_path / "f.npy", np.arange(5, dtype="f4"))
    np.testing.assert_array_equal(read_scale(str(tmp_path / "f.npy")), np.arange(5.0))


@pytest.mark.parametrize("mask", [[[np.nan, 1.0], [0, 1]], [[0.5, 1.0], [0, 1]], [["a", "b"]]])
def test_arrays_that_are_no_masks(mask):
    with pytest.raises(RequestError, match="mask is not an array of True and False, or of 0 and 1"):
        Preparation(mask=mask)
    assert Preparation(mask=[[0.0, 1.0]]).mask.tolist() == Preparation(mask=[[0, 7]]).mask.tolist() == [[False, True]]


@pytest.mark.parametrize(
    "steps", [{"resize": "64"}, {"resize": (64.9, 32)}, {"crop": ((1.9, 3),)}, {"crop": (("1", 3),)}]
)
def test_sizes_are_whole_numbers(steps):
    with pytest.raises(RequestError, match="is not a"):
        Preparation(**steps)


def test_masks_are_read_from_fits(tmp_path):
    fits = pytest.importorskip("astropy.io.fits")
    mask = np.arange(48).reshape(6, 8) % 3 == 0
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(mask.astype("i2"))]).writeto(tmp_path / "m.fits")
    np.testing.assert_array_equal(read_mask(str(tmp_path / "m.fits")), mask)
    fits.PrimaryHDU().writeto(tmp_path / "empty.fits")
    with pytest.raises(SourceError, match=r"empty.fits holds no image"):
        read_mask(str(tmp_path / "empty.fits"))


def test_masks_that_cannot_be_read(tmp_path):
    def refused(name, words, read=read_mask):
        with pytest.raises(SourceError, match=words) as error:
            read(str(tmp_path / name))
        assert "\n" not in str(error.value)

    refused("none.npy", r"mask .*none.npy does not exist")
    (tmp_path / "mask.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    refused("mask.nc", r"mask.nc is not a .npy or FITS file, or of a mask an image; save it as one of these\.")
    refused("none.png", r"none.png does not exist")
    refused("none.fits", r"none.fits")
    (tmp_path / "bad.fits").write_bytes(b"nothing of the kind")
    refused("bad.fits", r"bad.fits")
    np.save(tmp_path / "nan.npy", np.array([1, np.nan]))
    refused("nan.npy", "not an array of True and False, or of 0 and 1")
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    refused("text.npy", "save an array of numbers")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    refused("objects.npy", "objects.npy cannot be read")
    np.savez(tmp_path / "several.npz", a=1)
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    refused("several.npy", "holds several arrays")
    (tmp_path / "factors.png").touch()
    refused("factors.png", "not a .npy or FITS file", read_scale)


# -- what it costs


def test_the_memory_estimate_counts_prepared_rows():
    """Large pictures resized to small ones: blocks hold the small, and the large are there a few at a time."""
    images = [np.zeros((400 + number, 300, 3), np.uint8) for number in range(5)]
    problem = problem_of(Prepared(Pictures(images), Preparation(resize=(10, 12), grey=True)))
    assert problem.row_bytes == 4 * 10 * 12
    assert problem.prepared_bytes == 0
    assert problem.scratch_bytes > 404 * 300 * 3
    whole = problem_of(Prepared(Pictures([images[0]] * 5), Preparation(grey=True, bin=2)))
    assert (whole.row_bytes, whole.prepared_bytes) == (400 * 300 * 3, 4 * 200 * 150)


def test_preparing_holds_no_more_than_it_says():
    """Measured by numpy's own accounts, beside the rows read and returned; Pillow's part is checked by arithmetic."""
    import tracemalloc

    for dtype in ("u1", "f4", "f8"):
        raw = same_size(dtype, (40, 200, 180, 3)).reshape(40, -1)
        for preparation in (
            Preparation(grey=True),
            Preparation(bin=2, normalize="norm"),
            Preparation(crop=((0, 150),), grey=True, scale=2.0),
            Preparation(normalize="ratio"),
            Preparation(mask=np.arange(200) % 2 == 0, scale=np.arange(1, 201), normalize="mean"),
            Preparation(resize=(100, 100)),
        ):
            frame = Frame.of(preparation, (200, 180, 3))
            frame.rows(raw[:1])
            tracemalloc.start()
            rows = frame.rows(raw)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak - rows.nbytes <= frame.scratch_bytes(raw.dtype) + 2**16, (dtype, preparation.to_json())


# -- a model keeps its preparation


def rows_of(preparation, x):
    return Prepared(Pictures(list(x)), preparation).read(slice(0, len(x)))


MODELS = {
    "scale": Preparation(scale=np.linspace(0.5, 2, 12), mask=np.arange(120).reshape(12, 10) % 5 > 0),
    "resize": Preparation(resize=(5, 7), scale=0.25, normalize="mean"),
    "norm": Preparation(grey=True, normalize="norm"),
    "ratio": Preparation(crop=((2, -2),), grey=True, bin=2, normalize="ratio", scale=np.arange(1.0, 5.0)),
}


@pytest.fixture(scope="module", params=MODELS.keys())
def fitted(request):
    x = same_size("u1", (60, 12, 10, 3))
    x = np.random.default_rng(5).permuted(x, axis=0)
    model = streampca.fit(
        x, streampca.PCA(None, precision="double"), memory="256MiB", preparation=MODELS[request.param]
    )
    return model, x, MODELS[request.param]


def test_raw_and_prepared_samples_have_the_same_scores(fitted):
    model, x, _ = fitted
    scores, preparation = model.transform(x), model.preparation
    np.testing.assert_array_equal(scores, model.subspace.project(rows_of(preparation, x)))
    np.testing.assert_array_equal(scores, np.asarray(model.transform(open_collection(x))))
    np.testing.assert_array_equal(scores, model.transform(x.reshape(60, -1)))
    da = pytest.importorskip("dask.array")
    lazy = model.transform(da.from_array(x, chunks=(13, 5, -1, 2)))
    np.testing.assert_allclose(scores, lazy.compute(), rtol=1e-9, atol=1e-11)


def test_reconstruct_undoes_scale_and_normalize(fitted, tmp_path):
    """All components give back the images, as they were before mask, scale and normalize."""
    model, x, preparation = fitted
    images = preparation.of_images.apply(x).astype("f8")
    if model.mask is not None:
        images[:, ~model.mask] = np.nan
    near = {"rtol": 2e-4, "atol": 0.05}
    np.testing.assert_allclose(model.reconstruct(x), images, **near)
    np.testing.assert_allclose(np.asarray(model.reconstruct(open_collection(x))), images, **near)
    model.write_reconstruction(x, tmp_path / "images.npy", memory="128MiB")
    np.testing.assert_allclose(np.load(tmp_path / "images.npy"), images, **near)
    assert np.asarray(model.reconstruction_error(x)).max() < 1e-2


def test_images_from_scores_say_what_they_are(fitted, tmp_path):
    """Scores do not say what each image's mean or norm was: images made of them stay normalized, and say so."""
    model, x, preparation = fitted
    images = model.inverse_transform(model.transform(x))
    rows = model.frame.features(images)
    scale = model.preparation.full_scale(model.sample_shape)
    scaled = rows * (1.0 if preparation.scale is None else preparation.scale if scale is None else scale_row(model))
    np.testing.assert_allclose(scaled, rows_of(preparation, x), rtol=1e-3, atol=0.02)
    model.write_scores(x, tmp_path / "s.zarr", memory="128MiB")
    model.write_reconstruction(tmp_path / "s.zarr", tmp_path / "i.zarr", memory="128MiB")
    zarr = pytest.importorskip("zarr")
    assert zarr.open_group(tmp_path / "i.zarr")["images"].attrs.get("normalized") == preparation.normalize
    np.testing.assert_allclose(zarr.open_group(tmp_path / "i.zarr")["images"][...], images, rtol=1e-5, atol=1e-4)


def scale_row(model):
    return model.frame.features(model.preparation.full_scale(model.sample_shape)[None])


def test_a_preparation_is_saved_with_its_model(fitted, tmp_path):
    model, x, preparation = fitted
    model.save(tmp_path / "m.zarr")
    loaded = streampca.load(tmp_path / "m.zarr")
    assert loaded.preparation.to_json() == {**preparation.to_json(), "precision": "double"}
    np.testing.assert_array_equal(loaded.transform(x), model.transform(x))
    np.testing.assert_array_equal(loaded.reconstruct(x), model.reconstruct(x))


def test_a_model_that_resizes_takes_images_of_any_size(tmp_path):
    """JPEG files, of many sizes, grey and in colour, in one call; then arrays of other sizes."""
    rng = np.random.default_rng(0)
    for number in range(90):
        height, width = rng.integers(20, 60, size=2)
        y, x = np.mgrid[0 : 1 : 1j * height, 0 : 1 : 1j * width]
        waves = np.sin(6 * x * rng.normal()) + np.cos(6 * y * rng.normal())
        picture = (127 + 60 * waves).astype(np.uint8)
        colours = np.stack([picture, 255 - picture, picture // 2], axis=-1)
        Image.fromarray(picture if number % 3 else colours).save(tmp_path / f"p{number}.jpg")
    preparation = Preparation(resize=(16, 16), grey=True)
    model = streampca.fit(tmp_path, n_components=5, memory="64MiB", preparation=preparation)
    assert model.n_samples == 90
    assert model.components.shape == (5, 16, 16)
    scores = np.asarray(model.transform(tmp_path))
    hand = []
    for number in range(90):
        with Image.open(tmp_path / f"p{number}.jpg") as file:
            hand.append(by_pillow(grey_by_hand(np.asarray(file)), 16, 16).ravel())
    exact = np.linalg.svd(np.array(hand) - np.mean(hand, axis=0), full_matrices=False)
    np.testing.assert_allclose(model.singular_values, exact.S[:5], rtol=1e-4)
    np.testing.assert_allclose(np.abs(scores), np.abs(exact.U * exact.S)[:, :5], rtol=1e-2, atol=0.1)
    for shape in ((2, 33, 21, 3), (2, 33, 21, 4), (2, 9, 70)):
        new = rng.integers(0, 255, size=shape, dtype=np.uint8)
        frame = np.stack([by_pillow(grey_by_hand(image), 16, 16).ravel() for image in new])
        np.testing.assert_allclose(model.transform(new), model.subspace.project(frame), rtol=1e-3, atol=0.05)
        lazy = model.transform(open_collection(new))
        np.testing.assert_array_equal(np.asarray(lazy), model.transform(new))
    with pytest.raises(ModelError, match=r"samples have shape 2 x 9 x 9 x 7 and the model was fitted"):
        model.transform(np.zeros((2, 9, 9, 7), np.uint8))
    with pytest.raises(ModelError, match=r"whole numbers"):
        check_raw(Pictures([np.zeros((5, 5))] * 2), model.preparation, model.raw_shape, model.raw_kind, "it")


def test_a_model_that_does_not_resize_takes_its_own_shape_only(fitted):
    model, x, preparation = fitted
    if preparation.resize is None:
        with pytest.raises(ModelError, match="12 x 10 x 3"):
            model.transform(x[:, 1:])
    else:
        assert model.transform(x[:, 1:]).shape == (60, model.n_components)
        with pytest.raises(ModelError, match="12 x 10 x 3"):
            model.transform(x[..., 0])  # no grey: a channel is missing


def test_valid_pixels_alone_are_what_land_left_out_gives():
    """The same to rounding as the columns of the sea alone, and applied to new data whatever the land holds."""
    x = sea(200)
    keep = np.isfinite(x).all(axis=0)
    model = streampca.fit(x, n_components=6, memory="64MiB", preparation=Preparation(mask="valid"))
    alone = streampca.fit(x[:, keep], n_components=6, memory="64MiB")
    np.testing.assert_array_equal(model.mask, keep)
    np.testing.assert_allclose(model.components[:, keep], alone.components, atol=1e-12)
    np.testing.assert_allclose(model.explained_variance, alone.explained_variance, rtol=1e-12)
    assert np.isnan(model.components[:, ~keep]).all()
    new = np.where(keep, x, 1e30)
    np.testing.assert_array_equal(model.transform(new), model.transform(x))


def test_missing_pixels_are_offered_a_mask(tmp_path):
    """The message's own remedy is followed."""
    np.save(tmp_path / "x.npy", sea())
    with pytest.raises(DataError, match=r"sample 0 .*21 % of its features are missing in all .*mask=.valid") as error:
        streampca.fit(tmp_path / "x.npy", n_components=2, memory="64MiB")
    assert 'mask="valid"' in str(error.value)
    assert "\n" not in str(error.value)
    streampca.fit(tmp_path / "x.npy", n_components=2, memory="64MiB", preparation=Preparation(mask="valid"))
    x = np.random.default_rng(0).normal(size=(40, 6, 8))
    x[3, 2, 2] = np.nan
    with pytest.raises(DataError, match=r"Leave the sample out with missing=.drop-samples.*drop-features"):
        streampca.fit(x, n_components=2, memory="64MiB")


def test_a_run_over_images_of_several_sizes_has_its_pictures(tmp_path, undrawn):
    """Fit, scores and pictures by one run file; the rest of a model's life is in the tests above."""
    folder, images = tmp_path / "in", mixed(n=20)
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"p{number}.png")
    result = execute(
        make_run(
            {
                "collection": {"source": str(folder)},
                "prepare": {"resize": [8, 9], "grey": True, "scale": 0.5, "normalize": "ratio"},
                "model": {"n_components": 1},
                "run": {"memory": "64MiB"},
                "output": {"directory": str(tmp_path / "out"), "transform": True, "report": True},
            }
        )
    )
    assert result.model.components.shape == (1, 8, 9)
    assert (tmp_path / "out" / "scores.zarr").exists()
    assert len(list((tmp_path / "out" / "figures").glob("*.pdf"))) == 8
    for ax in plot.reconstructions(result.model, images)[:, 0]:
        assert_pictured(ax)
