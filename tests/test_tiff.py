"""Every way in which TIFF files keep stacks, copies and masks beside images, and values that are missing."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
from contract import refused_as
from PIL import Image

from streampca import open_collection
from streampca.errors import SourceError
from streampca.readers.tiff import open_tiff


def stack(dtype="u2", shape=(7, 48, 64)):
    return np.random.default_rng(1).integers(0, 250, shape).astype(dtype)


def opened(path, x, **options):
    tifffile.imwrite(path, x, **options)
    return open_tiff(str(path))


@pytest.mark.parametrize(("photometric", "shape"), [("minisblack", (3, 64, 48)), ("rgb", (3, 64, 48, 3))])
def test_jpeg_in_tiff(tmp_path, photometric, shape):
    ramp = np.linspace(0, 255, 48).reshape(48, *[1] * (len(shape) - 3)).astype("u1")
    x = np.broadcast_to(ramp, shape)
    collection = opened(tmp_path / "x.tif", x, compression="jpeg", photometric=photometric, metadata=None)
    read = collection.read(slice(0, 3)).reshape(shape)
    assert np.abs(read.astype(int) - x).max() < 12


@pytest.mark.parametrize("kind", ["imagej", "ome"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_hyperstacks_keep_their_axes(tmp_path, kind, compression):
    x = stack("u2", (3, 4, 2, 12, 10))
    options = {"metadata": {"axes": "TZCYX"}, "photometric": "minisblack", "compression": compression, kind: True}
    path = str(tmp_path / "x.tif")
    tifffile.imwrite(path, x, **options)
    second = open_tiff(path, select={"c": 1})
    np.testing.assert_array_equal(second.read(slice(0, 12)), x[:, :, 1].reshape(12, -1))
    assert second.where(5) == f"{path}, page 12"
    together = open_tiff(path)
    assert (together.sample_shape, together.axes) == ((2, 12, 10), ("c", "y", "x"))
    np.testing.assert_array_equal(together.read(slice(0, 12)), x.reshape(12, -1))


PLANE = '<TiffData IFD="{page}" FirstT="{t}" FirstZ="{z}" FirstC="0" PlaneCount="1">{file}</TiffData>'


def ome(planes, t, z):
    """OME metadata that lay out planes (t, z, page, file) of 12 x 10 pixels."""
    data = "".join(
        PLANE.format(t=t, z=z, page=page, file=f'<UUID FileName="{file}">urn:uuid:{file}</UUID>' if file else "")
        for t, z, page, file in planes
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">'
        '<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYZTC" Type="uint16" SizeX="10" SizeY="12" '
        f'SizeZ="{z}" SizeC="1" SizeT="{t}"><Channel ID="Channel:0:0" SamplesPerPixel="1"/>{data}'
        "</Pixels></Image></OME>"
    )


def write_pages(path, pages, description):
    with tifffile.TiffWriter(path) as writer:
        for at, page in enumerate(pages):
            text = description if at == 0 else None
            writer.write(page, description=text, metadata=None, photometric="minisblack", contiguous=False)
    return str(path)


def test_ome_pages_in_another_order_come_as_laid_out(tmp_path):
    x = stack("u2", (3, 4, 12, 10))
    places = [(t, z) for t in range(3) for z in range(4)]
    shuffled = np.random.default_rng(2).permutation(12)
    planes = [(t, z, int(page), "") for (t, z), page in zip(places, shuffled, strict=True)]
    pages = np.empty((12, 12, 10), "u2")
    pages[shuffled] = x.reshape(12, 12, 10)
    collection = open_tiff(write_pages(tmp_path / "x.ome.tif", pages, ome(planes, 3, 4)))
    np.testing.assert_array_equal(collection.read(slice(0, 12)), x.reshape(12, -1))
    assert collection.where(5).endswith(f"x.ome.tif, page {shuffled[5] + 1}")
    second = open_tiff(str(tmp_path / "x.ome.tif"), select={"z": 2})
    np.testing.assert_array_equal(second.read(slice(0, 3)), x[:, 2].reshape(3, -1))
    holed = write_pages(tmp_path / "holed.ome.tif", pages, ome(planes[:6] + planes[7:], 3, 4))
    with pytest.raises(SourceError, match=r"holed\.ome\.tif lacks 1 of the 12 pages .* the first at t 1, z 2"):
        open_tiff(holed)


def test_a_series_over_several_files_is_refused_by_name(tmp_path):
    x = stack("u2", (6, 12, 10))
    planes = [(0, z, z % 3, "a.ome.tif" if z < 3 else "b.ome.tif") for z in range(6)]
    for name, pages in (("a", x[:3]), ("b", x[3:])):
        write_pages(tmp_path / f"{name}.ome.tif", pages, ome(planes, 1, 6))
    for name in "ab":
        with pytest.raises(
            SourceError, match=rf"{name}\.ome\.tif is one of 2 files of an OME series \(a\.ome\.tif, b\.ome\.tif\)"
        ):
            open_tiff(str(tmp_path / f"{name}.ome.tif"))


def test_planes_of_a_series_one_a_file_are_images(tmp_path):
    x = stack("u2", (3, 12, 10))
    planes = [(t, 0, 0, f"{t}.ome.tif") for t in range(3)]
    for t in range(3):
        write_pages(tmp_path / f"{t}.ome.tif", x[t : t + 1], ome(planes, 3, 1))
    np.testing.assert_array_equal(open_collection(str(tmp_path)).read(slice(0, 3)), x.reshape(3, -1))


@pytest.mark.parametrize("pages", [1, 2])
def test_a_virtual_stack_of_imagej_is_refused_by_name(tmp_path, pages):
    path = write_pages(tmp_path / "x.tif", stack()[:pages], "ImageJ=1.53\nimages=7\nslices=7\n")
    with pytest.raises(SourceError, match=rf"x\.tif announces 7 pages and holds {pages}; .* save it as one file"):
        open_tiff(path)


def test_the_index_of_pages_is_in_the_memory_estimate(tmp_path):
    few, many = (
        opened(
            tmp_path / f"{n}.tif", stack("u1", (n, 5, 5)), compression="zlib", photometric="minisblack", metadata=None
        )
        for n in (10, 2000)
    )
    assert many.storage.decode_bytes - few.storage.decode_bytes == 1990 * 48


# --- pages beside the images ---


def write_beside(path, images, *, first=None, **options):
    """Write images, each with a reduced copy and a mask after it, as GDAL does."""
    with tifffile.TiffWriter(path, **options) as writer:
        for image in images:
            plain = {"photometric": "minisblack", "metadata": None, "contiguous": False}
            writer.write(image, **plain, subfiletype=first)
            writer.write(image[::2, ::2], **plain, subfiletype=1)
            writer.write(image > 100, photometric="minisblack", metadata=None, subfiletype=4)
    return str(path)


@pytest.mark.parametrize("options", [{}, {"bigtiff": True}, {"byteorder": ">"}], ids=["plain", "bigtiff", "big-endian"])
def test_reduced_copies_and_masks_are_no_samples(tmp_path, options):
    x = stack("u1", (3, 12, 10))
    collection = open_tiff(write_beside(tmp_path / "x.tif", x, **options))
    np.testing.assert_array_equal(collection.read(slice(0, 3)), x.reshape(3, -1))
    assert [collection.where(at)[-6:] for at in range(3)] == ["page 1", "page 4", "page 7"]


def test_a_folder_of_images_with_reduced_copies_is_one_of_images(tmp_path):
    x = stack("u1", (3, 12, 10))
    for at, image in enumerate(x):
        write_beside(tmp_path / f"{at}.tif", image[None])
    collection = open_collection(str(tmp_path))
    assert collection.where(1) == str(tmp_path / "1.tif")
    np.testing.assert_array_equal(collection.read(slice(0, 3)), x.reshape(3, -1))


def test_pages_of_which_all_say_that_they_are_reduced_are_taken(tmp_path):
    x = stack("u1", (3, 12, 10))
    collection = opened(tmp_path / "x.tif", x, photometric="minisblack", metadata=None, subfiletype=1)
    np.testing.assert_array_equal(collection.read(slice(0, 3)), x.reshape(3, -1))


def test_the_old_tag_of_reduced_copies_is_known(tmp_path):
    x = stack("u1", (2, 12, 10))
    with tifffile.TiffWriter(tmp_path / "x.tif") as writer:
        for kind, image in zip((1, 2), x, strict=True):
            tags = [(255, "H", 1, kind, True)]
            writer.write(image, photometric="minisblack", metadata=None, extratags=tags, contiguous=False)
    np.testing.assert_array_equal(open_tiff(str(tmp_path / "x.tif")).read(slice(0, 1)), x[:1].reshape(1, -1))


@pytest.mark.parametrize("grey", [True, False])
def test_palette_with_alpha(tmp_path, grey):
    rng = np.random.default_rng(3)
    table = rng.integers(0, 256, (256, 3), "u1")
    picture = Image.fromarray(rng.integers(0, 256, (6, 5), "u1")).convert("P")
    picture.putpalette((table[:, :1].repeat(3, axis=1) if grey else table).tobytes())
    picture = picture.convert("PA")
    picture.putalpha(Image.fromarray(rng.integers(0, 256, (6, 5), "u1")))
    path = str(tmp_path / "x.tif")
    picture.save(path)
    with Image.open(path) as stored:
        expected = np.asarray(stored.convert("RGBA"))[..., [0, 3] if grey else [0, 1, 2, 3]]
    read = open_tiff(path).read(slice(0, 1))
    np.testing.assert_array_equal(read.reshape(expected.shape), expected)


# --- missing values ---

NO_DATA = 42113  # GDAL's tag


def tagged(number, once=True):
    return [(NO_DATA, "s", 0, number, once)]


LAYOUTS = {
    "contiguous": {},
    "pages": {"metadata": None, "compression": "zlib"},
    "big-endian": {"byteorder": ">"},
    "imagej": {"imagej": True, "metadata": {"axes": "TYX"}},
}


@pytest.mark.parametrize(
    ("dtype", "number", "read"),
    [
        ("u1", "7", "f4"),
        ("u1", "7.0", "f4"),
        ("u2", "7", "f4"),
        ("f4", "7", "f4"),
        ("u1", "-9999", "u1"),  # what no pixel can be
        ("u2", "nan", "u2"),
        ("f4", "nan", "f4"),
        ("f4", "1e400", "f4"),
    ],
)
def test_no_data_is_missing(tmp_path, dtype, number, read):
    x = stack(dtype, (5, 6, 8)) % 9
    expected = np.where(x == float(number), np.nan, x)
    for layout, options in LAYOUTS.items():
        path = tmp_path / f"{layout}.tif"
        collection = opened(path, x, photometric="minisblack", extratags=tagged(number), **options)
        assert collection.dtype.newbyteorder("=") == read
        assert collection.read(slice(3, 4)).dtype == collection.dtype
        np.testing.assert_array_equal(collection.read(slice(0, 5)), expected.reshape(5, -1))


@pytest.mark.parametrize("dtype", ["i4", "f8"])
def test_no_data_of_32_bits_and_more_needs_double(tmp_path, dtype):
    x = np.where(stack(dtype, (5, 6, 8)) % 9 == 3, -(2**31), 2**31 - 5).astype(dtype)
    options = {"photometric": "minisblack", "metadata": None, "extratags": tagged(str(-(2**31)))}
    read = opened(tmp_path / "x.tif", x, **options).read(slice(0, 5))
    np.testing.assert_array_equal(read, np.where(x < 0, np.nan, x.astype("f8")).reshape(5, -1))


def test_no_data_in_colours_and_palettes(tmp_path):
    x = stack("u1", (4, 6, 8, 3))
    x[0, 0, 0] = (0, 9, 0)
    options = {"metadata": None, "extratags": tagged("0", once=False)}
    read = opened(tmp_path / "x.tif", x, photometric="rgb", **options).read(slice(0, 1)).reshape(6, 8, 3)
    np.testing.assert_array_equal(read, np.where(x[0] == 0, np.nan, x[0].astype("f4")))
    table = np.random.default_rng(4).integers(0, 65536, (3, 256), "u2")
    entries = x[0, ..., 0]
    read = opened(tmp_path / "p.tif", entries, photometric="palette", colormap=table, **options).read(slice(0, 1))
    colours = np.where(entries[..., None] == 0, np.nan, (table.T >> 8)[entries].astype("f4"))
    np.testing.assert_array_equal(read.reshape(6, 8, 3), colours)


def test_no_data_in_a_folder(tmp_path):
    x = stack("u2", (3, 6, 8)) % 5
    for at, image in enumerate(x):
        tifffile.imwrite(tmp_path / f"{at}.tif", image, extratags=tagged("2"), photometric="minisblack")
    read = open_collection(tmp_path).read(slice(0, 3))
    np.testing.assert_array_equal(read, np.where(x == 2, np.nan, x.astype("f4")).reshape(3, -1))
    tifffile.imwrite(tmp_path / "3.tif", x[0], photometric="minisblack")
    refused_as(tmp_path, r"3\.tif is 6 x 8 uint16, unlike most images of .* \(6 x 8 float32\)")


def test_a_no_data_tag_that_is_no_number_is_refused_by_name(tmp_path):
    with pytest.raises(SourceError, match=r"x\.tif has the NODATA tag 'none', which is not a number; correct the tag"):
        opened(tmp_path / "x.tif", stack(), photometric="minisblack", extratags=tagged("none"))
