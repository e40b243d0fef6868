"""Tags of image files: orientation, polarity and depth are as Pillow shows them, and a model says how it read them."""

from __future__ import annotations

import io
import struct
import zlib

import by_options
import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps
from shell import refused, succeeded
from sources import png_chunk

import streampca
from streampca import load, open_collection
from streampca.errors import ModelError, RequestError

ORIENTATIONS = range(1, 9)
# Model without a record of how its images were read.


def pixels(seed=0, shape=(7, 5)):
    return np.random.default_rng(seed).integers(0, 256, shape, "u1")


def some_of(ways):
    """Every orientation in the first way, and each of the others in two."""
    return [(one, way) for at, way in enumerate(ways) for one in ORIENTATIONS if at == 0 or one in (6, 1 + at)]


def exif(orientation):
    tags = Image.Exif()
    tags[274] = orientation
    return tags


# What decodes each: libjpeg by Pillow, libpng by imagecodecs, Pillow for palettes, tifffile.
WAYS = {
    "grey.jpg": lambda x: (Image.fromarray(x[..., 0]), {"quality": 100}),
    "colour.jpg": lambda x: (Image.fromarray(x), {"quality": 100}),
    "grey.png": lambda x: (Image.fromarray(x[..., 0]), {}),
    "colour.png": lambda x: (Image.fromarray(x), {}),
    "palette.png": lambda x: (Image.fromarray(x).quantize(16), {}),
    "plain.tif": lambda x: (Image.fromarray(x), {}),
    "lzw.tif": lambda x: (Image.fromarray(x[..., 0]), {"compression": "tiff_lzw"}),
    "colour.webp": lambda x: (Image.fromarray(x), {"lossless": True}),
}


def write(path, x, orientation, way):
    image, options = WAYS[way](x)
    image.save(path, exif=exif(orientation), **options)


def shown(path):
    """An image as Pillow shows it, in grey or colour."""
    # Not by its path: Pillow 13 maps plain grey TIFF files into memory by the sides they have when turned.
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        whole = ImageOps.exif_transpose(image)
        return np.asarray(whole.convert("RGB") if whole.mode == "P" else whole)


@pytest.mark.parametrize(("orientation", "way"), some_of(WAYS))
def test_images_are_turned_as_pillow_turns_them(tmp_path, orientation, way):
    for at in range(2):
        write(tmp_path / f"{at}{way[way.rindex('.') :]}", pixels(at, (7, 5, 3)), orientation, way)
    paths = sorted(tmp_path.iterdir())
    expected = np.stack([shown(path) for path in paths])
    collection = open_collection(tmp_path)
    assert collection.shape == expected.shape
    np.testing.assert_array_equal(collection.read(slice(0, 2)), expected.reshape(2, -1))
    kept = open_collection(tmp_path, keep_orientation=True)
    assert kept.sample_shape[:2] == (7, 5)
    back = Image.fromarray(kept.read(slice(0, 1)).reshape(kept.sample_shape))
    back.getexif()[274] = orientation
    np.testing.assert_array_equal(np.asarray(ImageOps.exif_transpose(back)), expected[0])


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
SAYING = {
    "eXIf after the pixels": (png_chunk(b"eXIf", exif(6).tobytes()[6:]), True),
    "eXIf before the pixels": (png_chunk(b"eXIf", exif(6).tobytes()[6:]), False),
    "XMP": (png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP), False),
    "XMP after the pixels": (png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP), True),
}
NOT_SAYING = {
    "nothing": b"",
    "a damaged eXIf": png_chunk(b"eXIf", b"II*\0\xff\xff\xff\xff"),
    "a comment": png_chunk(b"tEXt", b"Comment\0tiff:Orientation=6"),
}


def write_png(path, way, seed, added=b"", after=False):
    """Write a PNG file with more chunks, before its pixels or after them."""
    image, _ = WAYS[way](pixels(seed, (7, 5, 3)))
    image.save(path)
    whole = path.read_bytes()
    place = whole.index(b"IEND" if after else b"IDAT") - 4
    path.write_bytes(whole[:place] + added + whole[place:])


@pytest.mark.parametrize("saying", SAYING)
@pytest.mark.parametrize("way", ["grey.png", "palette.png"])
def test_wherever_a_png_file_says_it(tmp_path, saying, way):
    for at in range(2):
        write_png(tmp_path / f"{at}.png", way, at, *SAYING[saying])
    expected = shown(tmp_path / "1.png")
    assert expected.shape[:2] == (5, 7)
    read = open_collection(tmp_path).read(slice(1, 2))
    np.testing.assert_array_equal(read, expected.reshape(1, -1))


@pytest.mark.parametrize("saying", NOT_SAYING)
@pytest.mark.parametrize("way", ["grey.png", "palette.png"])
def test_images_that_do_not_say_it_stay_as_they_are(tmp_path, saying, way):
    for folder, added in (("plain", b""), ("more", NOT_SAYING[saying])):
        (tmp_path / folder).mkdir()
        for at in range(2):
            write_png(tmp_path / folder / f"{at}.png", way, at, added)
    plain, more = (open_collection(tmp_path / folder) for folder in ("plain", "more"))
    assert more.sample_shape[:2] == (7, 5)
    np.testing.assert_array_equal(more.read(slice(0, 2)), plain.read(slice(0, 2)))


# --- stacks ---


def tagged(orientation):
    return [(274, "H", 1, orientation, False)]


STACKS = {
    "pages": {"metadata": None, "compression": "zlib"},
    "contiguous": {},
    "imagej": {"imagej": True, "metadata": {"axes": "TYX"}},
    "ome": {"ome": True, "metadata": {"axes": "TYX"}},
}


def write_stack(path, x, orientation, kind, **options):
    tifffile.imwrite(path, x, photometric="minisblack", extratags=tagged(orientation), **{**STACKS[kind], **options})
    return str(path)


@pytest.mark.parametrize(("orientation", "kind"), some_of(STACKS))
def test_pages_are_turned(tmp_path, orientation, kind):
    x = pixels(1, (4, 7, 5))
    path = write_stack(tmp_path / "x.tif", x, orientation, kind)
    tifffile.imwrite(tmp_path / "first.tif", x[0], photometric="minisblack", extratags=tagged(orientation))
    collection, kept = open_collection(path), open_collection(path, keep_orientation=True)
    expected = shown(tmp_path / "first.tif")
    assert collection.sample_shape == expected.shape
    np.testing.assert_array_equal(collection.read(slice(0, 1)), expected.reshape(1, -1))
    np.testing.assert_array_equal(kept.read(slice(0, 4)), x.reshape(4, -1))


# --- polarity and depth ---


def write_grey(path, numbers, bits, photometric):
    if bits == 1:
        tifffile.imwrite(path, numbers.astype(bool), photometric=photometric, metadata=None)
    else:
        dtype = "u1" if bits <= 8 else "u2"
        options = {} if bits in (8, 16) else {"bitspersample": bits}
        tifffile.imwrite(path, numbers.astype(dtype), photometric=photometric, metadata=None, **options)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("photometric", ["miniswhite", "minisblack"])
def test_greys_are_those_of_pillow(tmp_path, bits, photometric):
    numbers = np.random.default_rng(3).integers(0, 2**bits, (2, 6, 8))
    for at, one in enumerate(numbers):
        write_grey(tmp_path / f"{at}.tif", one, bits, photometric)
    with Image.open(tmp_path / "1.tif") as image:
        expected = np.asarray(image.convert("L"))
    collection = open_collection(tmp_path)
    assert collection.dtype == np.uint8
    np.testing.assert_array_equal(collection.read(slice(1, 2)), expected.reshape(1, -1))


@pytest.mark.parametrize(("bits", "most"), [(12, 4095), (16, 65535)])
def test_deep_white_is_the_largest_number(tmp_path, bits, most):
    numbers = np.random.default_rng(4).integers(0, most + 1, (2, 6, 8))
    for at, one in enumerate(numbers):
        write_grey(tmp_path / f"{at}.tif", one, bits, "miniswhite")
    read = open_collection(tmp_path).read(slice(0, 2))
    np.testing.assert_array_equal(read, (most - numbers).reshape(2, -1))


@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_of_signed_numbers_and_fractions_nothing_says_what_is_black(tmp_path, dtype):
    x = np.random.default_rng(5).normal(size=(3, 6, 8)).astype(dtype)
    tifffile.imwrite(tmp_path / "x.tif", x, photometric="miniswhite")
    np.testing.assert_array_equal(open_collection(tmp_path / "x.tif").read(slice(0, 3)), x.reshape(3, -1))


@pytest.mark.parametrize("options", [{}, {"compression": "zlib", "metadata": None}], ids=["contiguous", "pages"])
def test_stacks_are_inverted_too(tmp_path, options):
    x = pixels(6, (4, 6, 8))
    tifffile.imwrite(tmp_path / "x.tif", x, photometric="miniswhite", **options)
    np.testing.assert_array_equal(open_collection(tmp_path / "x.tif").read(slice(0, 4)), 255 - x.reshape(4, -1))


def grey_png(path, numbers, bits):
    """A PNG file of grey of less than 8 bits, which Pillow does not write."""
    packed = np.unpackbits(numbers.astype("u1")[..., None], axis=-1)[..., 8 - bits :]
    lines = np.packbits(packed.reshape(len(numbers), -1), axis=1)
    header = struct.pack(">IIBBBBB", numbers.shape[1], len(numbers), bits, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + line.tobytes() for line in lines))
    chunks = {b"IHDR": header, b"IDAT": data, b"IEND": b""}
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks.items()))


def test_one_picture_in_every_depth_and_polarity_is_one_image(tmp_path):
    """The picture has the four greys of two bits, in every format that can store them."""
    greys = np.random.default_rng(7).integers(0, 4, (6, 8))
    for bits, factor in ((2, 1), (4, 5), (8, 85)):
        write_grey(tmp_path / f"black{bits}.tif", greys * factor, bits, "minisblack")
        write_grey(tmp_path / f"white{bits}.tif", (3 - greys) * factor, bits, "miniswhite")
        if bits < 8:
            grey_png(tmp_path / f"{bits}.png", greys * factor, bits)
    Image.fromarray((greys * 85).astype("u1")).save(tmp_path / "8.png")
    read = open_collection(tmp_path).read(slice(0, 9))
    np.testing.assert_array_equal(read, np.broadcast_to(85 * greys.reshape(-1), (9, 48)))


# --- what is told of images before they are decoded ---


@pytest.fixture
def photos(tmp_path):
    """Landscapes as a camera stores them, a third of them held upright."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for at in range(12):
        write(folder / f"{at:02}.jpg", pixels(at, (8, 12, 3)), 6 if at % 3 == 0 else 1, "colour.jpg")
    return folder


def test_sizes_are_those_of_turned_images(photos, tmp_path):
    collection = open_collection(photos)
    assert collection.mixed
    assert not open_collection(photos, keep_orientation=True).mixed
    small = streampca.Preparation(resize=(4, 4))
    model = streampca.fit(photos, n_components=2, preparation=small)
    turned = [np.asarray(shown(path).astype("f4")) for path in sorted(photos.iterdir())]
    for at, path in enumerate(sorted(photos.iterdir())):
        Image.fromarray(turned[at].astype("u1")).save(tmp_path / f"{path.stem}.png")
    np.testing.assert_array_equal(
        streampca.fit(str(tmp_path / "*.png"), n_components=2, preparation=small).mean, model.mean
    )


def test_a_table_of_files_read_otherwise_is_not_taken_over(photos, tmp_path):
    table = str(tmp_path / "table.npz")
    how = {"on_bad_file": "skip", "listing": table}
    assert open_collection(photos, **how, keep_orientation=True).shape == (12, 8, 12, 3)
    turned = open_collection(photos, **how)
    expected = open_collection(photos, on_bad_file="skip")
    assert (turned.shape, turned.skipped) == (expected.shape, expected.skipped)
    assert open_collection(photos, **how, keep_orientation=True).n_samples == 12


def test_how_files_are_read_is_part_of_the_fingerprint(photos, tmp_path):
    stack = write_stack(tmp_path / "x.tif", pixels(1, (4, 7, 7)), 6, "pages")
    for source in (stack, str(photos)):
        found = {open_collection(source, **how).fingerprint() for how in ({}, {"keep_orientation": True})}
        assert len(found) == 2


def test_an_open_collection_cannot_be_opened_otherwise(photos):
    with pytest.raises(RequestError, match=r"keep_orientation was given for .* open already"):
        open_collection(open_collection(photos), keep_orientation=True)


# --- what a model says ---


@pytest.fixture
def scans(tmp_path):
    """Square scans, stored lying on their side and with white as 0."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for at in range(9):
        options = {"photometric": "miniswhite", "extratags": tagged(6), "metadata": None}
        tifffile.imwrite(folder / f"{at}.tif", pixels(at, (6, 6)), **options)
    return folder


def rows(folder, turned, inverted):
    images = np.stack([tifffile.imread(path) for path in sorted(folder.iterdir())])
    images = np.rot90(images, -1, axes=(1, 2)) if turned else images
    return 255 - images if inverted else images


def same(model, scores, images):
    np.testing.assert_allclose(np.asarray(scores), model.transform(np.ascontiguousarray(images)), atol=1e-3)


def test_a_model_says_how_images_were_read(scans, tmp_path):
    fitted = {keep: streampca.fit(scans, n_components=3, keep_orientation=keep) for keep in (False, True)}
    assert fitted[False].provenance["reading"] == {"orientation": "applied"}
    assert fitted[True].provenance["reading"] == {"orientation": "kept"}
    assert streampca.fit(pixels(0, (9, 36)), n_components=3).provenance["reading"] is None
    for keep, model in fitted.items():
        same(model, model.transform(scans), rows(scans, not keep, inverted=True))
        model.save(tmp_path / f"{keep}.zarr")
        same(model, load(tmp_path / f"{keep}.zarr").transform(str(scans)), rows(scans, not keep, inverted=True))
        with pytest.raises(ModelError, match=r"images of .*scans are .* was fitted on were .*; give the path of"):
            model.transform(open_collection(scans, keep_orientation=not keep))
        same(model, model.transform(open_collection(scans, like=model)), rows(scans, not keep, inverted=True))


@pytest.mark.parametrize("view", [{"samples": (0, 5)}, {"samples": [0, 3, 4]}, {"patches": 3}, {"labels": range(9)}])
def test_views_say_it_too(scans, view):
    model = by_options.fit(scans, n_components=2, keep_orientation=True, **view)
    assert model.provenance["reading"]["orientation"] == "kept"
    with pytest.raises(ModelError, match="orientation tags"):
        model.transform(open_collection(scans, **view))


def test_joined_stacks_say_it_too(tmp_path):
    for at in range(3):
        write_stack(tmp_path / f"{at}.tif", pixels(at, (4, 6, 6)), 6, "pages")
    model = streampca.fit(tmp_path, n_components=2, keep_orientation=True)
    assert model.provenance["reading"]["orientation"] == "kept"
    same(model, model.transform(str(tmp_path)), np.concatenate([pixels(at, (4, 6, 6)) for at in range(3)]))
    with pytest.raises(ModelError, match="orientation tags"):
        model.transform(open_collection(tmp_path))


def test_commands_follow_the_model(scans, tmp_path):
    succeeded("fit", scans, "-k", 3, "--keep-orientation", "-o", tmp_path / "kept.zarr", "-q")
    succeeded("transform", tmp_path / "kept.zarr", scans, "-o", tmp_path / "kept.npy", "-q")
    kept = load(tmp_path / "kept.zarr")
    same(kept, np.load(tmp_path / "kept.npy"), rows(scans, turned=False, inverted=True))
    succeeded("fit", scans, "-k", 3, "-o", tmp_path / "turned.zarr", "-q")
    said = refused("transform", tmp_path / "turned.zarr", scans, "--keep-orientation", "-o", tmp_path / "s.npy")
    assert "leave out --keep-orientation" in said
    succeeded("transform", tmp_path / "turned.zarr", scans, "-o", tmp_path / "s.npy", "-q")


def test_a_report_opens_the_collection_as_it_was_read(scans, undrawn, tmp_path):
    model = streampca.fit(scans, n_components=3, keep_orientation=True)
    streampca.write_report(model, tmp_path / "r.html")
    assert "has changed" not in (tmp_path / "r.html").read_text()
    assert (tmp_path / "r.html").read_text().count("<svg") + (tmp_path / "r.html").read_text().count("<img") > 5


def test_models_of_images_read_in_two_ways_are_not_merged(scans, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for at in range(9):
        tifffile.imwrite(other / f"{at}.tif", pixels(20 + at, (6, 6)), photometric="minisblack")
    models = [
        streampca.fit(source, streampca.PCA(2, method="covariance"), keep_orientation=keep)
        for source, keep in ((scans, False), (other, False), (other, True))
    ]
    assert streampca.merge(models[:2]).provenance["reading"]["orientation"] == "applied"
    with pytest.raises(ModelError, match=r"model 2 was fitted on were .* left alone.*, and those of model 1 turned"):
        streampca.merge([models[0], models[2]])
