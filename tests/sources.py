"""Every kind of source that the package opens, small: a table of how each is made, and of what is read of it.

A row is a function of an empty folder that returns a collection and its samples. `test_readers.py` holds each to the
contract of collections; a new reader is a row here.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import dask.array as da
import h5py
import numpy as np
import scipy.sparse
import tifffile
import xarray
import zarr
from astropy.io import fits
from contract import values
from PIL import Image

from streampca.readers import open_collection
from streampca.readers.views.reordered import Reordered


class Row:
    """An array that `write(folder, array)` makes a source of, read as the array or as `read` with these options."""

    def __init__(self, write, x, read=None, opening=open_collection, **options):
        self.write, self.x, self.read = write, x, x if read is None else read
        self.opening, self.options = opening, options

    def __call__(self, folder):
        return self.opened(self.write(folder, self.x))

    def opened(self, source):
        """Open the source, or a copy of it elsewhere."""
        return self.opening(source, **self.options), self.read


# -- arrays in memory, and objects that hold arrays


def as_it_is(folder, x):
    return x


def dask(folder, x):
    return da.from_array(x, chunks=(7, 2, 5))


def named(*dims):
    return lambda folder, x: xarray.DataArray(x, dims=dims)


def h5py_dataset(folder, x):
    data = h5py.File(folder / "x.h5", "w").create_dataset("g/x", data=x, chunks=(4, 6, 5))
    data.file.flush()  # another process opens the file by its path
    return data


def zarr_array(folder, x):
    return zarr.create_array(folder / "x.zarr", data=x, chunks=(5, 6, 2))


def masked(dtype="u2", shape=(23, 6, 5)):
    """A masked array, and what is read of it: its values, NaN where it is masked."""
    x, mask = values(dtype, shape), np.random.default_rng(8).random(shape) < 0.1
    wider = x.dtype if x.dtype.kind == "f" else np.dtype("f4" if x.dtype.itemsize <= 2 else "f8")
    return np.ma.masked_array(x, mask), np.where(mask, wider.type(np.nan), x.astype(wider))


def sparse(form, matrix=scipy.sparse.coo_array):
    return lambda folder, x: matrix(x).asformat(form)


MASKED, MASKED_READ = masked()
FILLED = np.where(values("u1", (23, 30)) > 200, values("f4", (23, 30)), 0)
FOUR_AXES = values("i2", (4, 5, 3, 6))
NAMED = values("f4", (5, 4, 6, 7))
MEMORY = {
    "numpy": Row(as_it_is, values("f4")),
    "numpy, read-only and transposed": Row(
        as_it_is, FOUR_AXES, FOUR_AXES.transpose(0, 2, 3, 1).reshape(12, 6, 5), sample_axes=(3, 1)
    ),
    # numpy unpickles it in the machine's own byte order
    "numpy, big-endian": Row(as_it_is, values(">i2")),
    "dask": Row(dask, values("f8")),
    "dask, big-endian": Row(dask, values(">i2")),
    "xarray": Row(named("lat", "time", "z", "lon"), NAMED, NAMED.transpose(1, 0, 2, 3)),
    "xarray over dask": Row(lambda folder, x: named("time", "y", "x")(folder, dask(folder, x)), values("f4")),
    "masked": Row(as_it_is, MASKED, MASKED_READ.transpose(0, 2, 1), sample_axes=(2, 1)),
    "masked dask": Row(dask, *masked("i4")),
    "masked xarray": Row(lambda folder, x: named("time", "y", "x")(folder, dask(folder, x)), *masked("f4")),
    "zarr array": Row(zarr_array, values("f4")),
    "sparse, CSR": Row(sparse("csr"), FILLED),
    "sparse, CSC": Row(sparse("csc"), FILLED.astype("i8")),
    "sparse, COO matrix": Row(sparse("coo", scipy.sparse.coo_matrix), FILLED > 0),
    "sparse, lists": Row(sparse("lil"), FILLED.astype("f8")),
    "h5py dataset": Row(h5py_dataset, values(">i4")),
}
FOUR_AXES.setflags(write=False)


# -- flat arrays


def npy(order="C"):
    def write(folder, x):
        np.save(folder / "x.npy", np.asarray(x, order=order))
        return folder / "x.npy"

    return write


def npz(save, order="C"):
    def write(folder, x):
        save(folder / "x.npz", y=np.arange(23), images=np.asarray(x, order=order), z=values())
        return folder / "x.npz"

    return write


def idx(name, opener=open):
    """Write an IDX file, which is known by its content."""

    def write(folder, x):
        code = {"u1": 8, "i1": 9, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}[x.dtype.str[1:]]
        with opener(folder / name, "wb") as file:
            file.write(struct.pack(f">BBBB{x.ndim}I", 0, 0, code, x.ndim, *x.shape) + x.tobytes())
        return folder / name

    return write


LONG_ROWS = values("f8", (11, 3, 12001))  # of several pages, with gaps too wide to be read over
PICKED = values("u2", (4, 5, 3, 6))
PICKED_READ = PICKED[:, 1:4].transpose(1, 2, 3, 0).reshape(9, 6, 4)
PICKS = {"sample_axes": (-1, 0), "select": {1: slice(1, 4)}}
FLAT = {
    "npy": Row(npy(), values()),
    "npy, Fortran": Row(npy("F"), values("f4")),
    "npy, big-endian": Row(npy(), values(">u2")),
    "npy, bool": Row(npy(), values() > 100),
    "npy, long rows": Row(npy(), LONG_ROWS),
    "npy, long rows, Fortran": Row(npy("F"), LONG_ROWS),
    "npy, transposed": Row(npy(), PICKED, PICKED_READ, **PICKS),
    "npy, transposed, Fortran": Row(npy("F"), PICKED, PICKED_READ, **PICKS),
    "npz": Row(npz(np.savez), values(">f4"), key="images"),
    "npz, deflated": Row(npz(np.savez_compressed), values(">f4"), key="images"),
    "npz, deflated, Fortran": Row(npz(np.savez_compressed, "F"), values(">f4"), key="images"),
    "idx": Row(idx("some"), values()),
    "idx, gzipped": Row(idx("some.gz", gzip.open), values(">f4")),
}


# -- Zarr


def zarr_store(**options):
    def write(folder, x):
        zarr.create_array(folder / "x.zarr", data=x, **options)
        return folder / "x.zarr"

    return write


def zarr_group(folder, x):
    group = zarr.open_group(folder / "x.zarr", mode="w")
    names = ("t", "x", "y", "channel")
    group.create_array("deep/data", shape=x.shape, dtype=x.dtype, chunks=(2, 3, 4, 5), dimension_names=names)[...] = x
    group.create_array("t", shape=(3,), dtype="f8")[...] = [1, 2, 3]
    (folder / "x.zarr" / "notes.txt").write_text("not Zarr's")
    return folder / "x.zarr"


GROUP = values("i2", (3, 7, 4, 5))
ZARR = {
    "zarr 3": Row(zarr_store(chunks=(5, 6, 5)), values("f4")),
    "zarr 2": Row(zarr_store(chunks=(5, 6, 5), zarr_format=2), values("f4")),
    "zarr, sharded": Row(zarr_store(chunks=(2, 3, 5), shards=(10, 6, 5)), values("f4")),
    "zarr, cut across features": Row(zarr_store(chunks=(23, 2, 3)), values("f4")),
    "zarr, cut everywhere": Row(zarr_store(chunks=(4, 4, 2)), values("f4")),
    "zarr group": Row(zarr_group, GROUP, GROUP.transpose(0, 3, 2, 1).reshape(15, 4, 7), sample_axes=("y", "x")),
}


# -- HDF5 and NetCDF

DECODED_CHUNKS = {"compression": "gzip", "shuffle": True, "fletcher32": True}


def hdf5(name="x", userblock=0, **options):
    def write(folder, x):
        with h5py.File(folder / "x.h5", "w", userblock_size=userblock) as file:
            file.create_dataset(name, data=x, **options)
            file.create_dataset("labels", data=np.arange(len(x)))
        return folder / "x.h5"

    return write


def hdf5_virtual(folder, x):
    layout = h5py.VirtualLayout(shape=x.shape, dtype=x.dtype)
    for at in range(3):
        part = x[4 * at : 4 * at + 4]
        with h5py.File(folder / f"part{at}.h5", "w") as file:
            file.create_dataset("x", data=part, chunks=(2, *x.shape[1:]), compression="gzip")
        layout[4 * at : 4 * at + 4] = h5py.VirtualSource(f"part{at}.h5", "x", shape=part.shape)
    with h5py.File(folder / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    return folder / "all.h5"


def hdf5_linked(folder, x):
    with h5py.File(folder / "data.h5", "w") as file:
        file["x"] = x
    with h5py.File(folder / "index.h5", "w") as file:
        file["images"] = h5py.ExternalLink("data.h5", "/x")
    return folder / "index.h5"


def packed_maps(dtype="f4"):
    """Temperatures with land, which is NaN in every map."""
    maps = np.random.default_rng(3).normal(285, 8, size=(23, 6, 5)).astype(dtype)
    maps[:, 2:4, 1] = np.nan
    return maps


def netcdf(form):
    """Write packed maps; return the row that compares with xarray's decoding."""

    def make(folder):
        encoding = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 285.0, "_FillValue": -32767}
        xarray.Dataset({"t2m": (("time", "lat", "lon"), packed_maps())}).to_netcdf(
            folder / "t.nc", format=form, encoding={"t2m": encoding}, unlimited_dims=("time",), engine="netcdf4"
        )
        with xarray.open_dataset(folder / "t.nc", engine="netcdf4") as dataset:
            return open_collection(folder / "t.nc"), dataset["t2m"].values

    return make


def classic_records(folder, x):
    """Write records of several variables, which lie between each other on disk."""
    data = {"a": (("t", "y", "x"), x), "b": (("t", "u"), values("i2", (len(x), 7)))}
    xarray.Dataset(data).to_netcdf(folder / "x.nc", engine="scipy", format="NETCDF3_CLASSIC", unlimited_dims=["t"])
    return folder / "x.nc"


SHORT_RECORDS = values("i2", (23, 3, 3))  # 18 bytes a record, filled up to 20
LONG_RECORDS = values("f4", (7, 50, 60))
HDF5 = {
    "hdf5, contiguous": Row(hdf5("deep/x"), values("f4")),
    "hdf5, behind a block of the user's": Row(hdf5("deep/x", 2048), values(">i2")),
    "hdf5, chunked": Row(hdf5(chunks=(4, 6, 5), **DECODED_CHUNKS), values(">i4")),
    "hdf5, cut everywhere": Row(hdf5(chunks=(7, 2, 3), **DECODED_CHUNKS), values(">i4")),
    "hdf5, cut everywhere, plain": Row(hdf5(chunks=(7, 2, 3)), values(">i4")),
    "hdf5, bool": Row(hdf5(chunks=(5, 6, 5)), values() > 100),
    "hdf5, transposed": Row(hdf5(chunks=(2, 2, 2, 2), compression="lzf"), PICKED, PICKED_READ, **PICKS),
    "hdf5, virtual": Row(hdf5_virtual, values("f4", (12, 6, 5))),
    "hdf5, linked": Row(hdf5_linked, values("f4")),
    "netcdf 4": netcdf("NETCDF4"),
    "netcdf 3": netcdf("NETCDF3_CLASSIC"),
    "netcdf 3, short records": Row(classic_records, SHORT_RECORDS, SHORT_RECORDS.astype(">i2"), key="a"),
    "netcdf 3, long records": Row(classic_records, LONG_RECORDS, LONG_RECORDS.astype(">f4"), key="a"),
}


# -- FITS


def fits_image(x, name="x.fits", *, number=0, compressed=None, **header):
    """Return the row of a FITS image, compared with what astropy gives."""

    def make(folder):
        hdu = fits.PrimaryHDU(x) if compressed is None else fits.CompImageHDU(x, **compressed)
        hdu.header.update(header)
        fits.HDUList([fits.PrimaryHDU()] * (compressed is not None) + [hdu]).writeto(folder / name)
        collection = open_collection(folder / name)
        with fits.open(folder / name, memmap=False) as hdus:
            decoded = hdus[int(compressed is not None)].data.copy()
        order = collection.dtype.byteorder
        return collection, decoded.astype(decoded.dtype.newbyteorder(order))

    return make


def with_blanks(x):
    x[2, 3:5] = np.nan
    return x


SKY = (11, 12, 13)
FITS = {
    "fits": fits_image(values("f4", SKY)),
    "fits, gzipped": fits_image(values("f4", SKY), "x.fits.gz"),
    "fits, whole numbers": fits_image(values("i2", (3, 4, 12, 13))),
    "fits, scaled with blanks": fits_image(values("i2", SKY) % 200, BSCALE=0.1, BZERO=7.0, BLANK=5),
    "fits, scaled": fits_image(values("f8", SKY), BSCALE=0.1, BZERO=7.0),
    "fits, Rice": fits_image(values("i2", SKY), compressed={"compression_type": "RICE_1", "tile_shape": (1, 5, 13)}),
    "fits, gzip tiles": fits_image(
        values("u2", SKY), compressed={"compression_type": "GZIP_2", "tile_shape": (4, 5, 5)}
    ),
    "fits, quantized": fits_image(with_blanks(values("f4", SKY)), compressed={"quantize_level": 16}),
}


# -- image files


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def files(extension="png", x=None, write=save, read=lambda x: x, source="{}", **options):
    """Return the row of a folder of image files beside others, which are read as `read(x)`."""
    x = values("u1", (12, 6, 5)) if x is None else x

    def write_all(folder, x):
        paths = [folder / "in" / f"s{at // 4}" / f"{at}.{extension}" for at in range(len(x))]
        for path, pixels in zip(paths, x, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, pixels)
        (folder / "in" / "readme.txt").write_text("no image")
        (folder / "in" / ".hidden.png").write_text("no image")
        return paths[::-1] if source is None else source.format(folder / "in")

    return Row(write_all, x, read(x), **options)


def read_jpeg(x):
    """Return what Pillow reads of what it writes."""
    read = []
    for pixels in x:
        with io.BytesIO() as file:
            Image.fromarray(pixels).save(file, "jpeg")
            read.append(np.asarray(Image.open(file)))
    return np.stack(read)


def opened_twice(*, listing=False, spoiled=False, **options):
    """Return what opens a folder as it does a second time, with its listing stored, or a bad file skipped, or both."""

    def opening(source):
        how = options | ({"listing": f"{source}.npz"} if listing else {})
        if spoiled:
            (Path(source) / "s0" / "0b.png").write_bytes(b"")
            how["on_bad_file"] = "skip"
        open_collection(source, **how)
        return open_collection(source, **how)

    return opening


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def write_palette(path, pixels):
    image = Image.new("P", pixels.shape[::-1])
    image.putdata(list((pixels // 64).ravel()))
    image.putpalette(range(10, 130, 10))
    image.save(path)


def read_palette(x):
    return np.arange(10, 130, 10, dtype="u1").reshape(4, 3)[x // 64]


def write_bits(path, pixels):
    Image.fromarray(pixels > 99).save(path)


def read_bits(x):
    return (x > 99) * np.uint8(255)


def write_pgm(path, pixels):
    """Write 12 bits, which are kept as stored, not stretched to 16."""
    header = f"P5\n# twelve bits\n{pixels.shape[1]} {pixels.shape[0]}\n4095\n".encode()
    path.write_bytes(header + pixels.astype(">u2").tobytes())


def write_plain_pgm(path, pixels):
    path.write_text(f"P2\n5 6 # size\n255\n{' '.join(map(str, pixels.ravel()))}\n")


def tiff_page(**options):
    return lambda path, pixels: tifffile.imwrite(path, pixels, **options)


def planes(path, pixels):
    tifffile.imwrite(path, np.moveaxis(pixels, -1, 0), photometric="rgb", planarconfig="separate")


COLOUR = values("u1", (12, 6, 5, 3))
IMAGES = {
    "png": files(),
    "png, colour": files(x=COLOUR),
    "png, alpha": files(x=values("u1", (12, 6, 5, 4))),
    "png, 16 bits": files(x=values("u2", (12, 6, 5))),
    "png, palette": files(write=write_palette, read=read_palette),
    "png, bits": files(write=write_bits, read=read_bits),
    "jpeg": files("jpg", read=read_jpeg),
    "pgm": files("pgm"),
    "pgm, 12 bits": files("pgm", values("u2", (12, 6, 5)) % 4096, write_pgm),
    "pgm, plain": files("pgm", write=write_plain_pgm),
    "ppm": files("ppm", COLOUR),
    "pbm": files("pbm", write=write_bits, read=read_bits),
    "bmp": files("bmp", COLOUR),
    "bmp, palette": files("bmp", write=write_palette, read=read_palette),
    "gif": files("gif"),
    "tiff images": files("tif", values("f4", (12, 6, 5)), tiff_page(compression="zlib")),
    "tiff images, planes": files("tif", values("u2", (12, 6, 5, 3)), planes),
    "glob": files(source="{}/**/*.png"),
    "list": files(source=None, read=lambda x: x[::-1]),
    "picked images": files(
        x=COLOUR,
        read=lambda x: x[2:9, 1:4, :, 1],
        select={"channel": 1, "sample": slice(2, 9), "y": slice(1, 4)},
    ),
    "folder, listed": files(opening=opened_twice(listing=True)),
    "folder, spoiled": files(opening=opened_twice(spoiled=True)),
    "folder, listed and spoiled": files(opening=opened_twice(listing=True, spoiled=True)),
    "folder, part of a listing": files(
        opening=opened_twice(listing=True, select={0: slice(1, 12)}), read=lambda x: x[1:]
    ),
}


# -- stacks


def tiff(name="x.tif", **options):
    def write(folder, x):
        tifffile.imwrite(folder / name, x, **{"photometric": "minisblack"} | options)
        return folder / name

    return write


def tiff_planes(folder, x):
    options = {"planarconfig": "separate", "photometric": "rgb", "tile": (32, 32), "compression": "zstd"}
    return tiff(metadata=None, **options)(folder, np.moveaxis(x, -1, 1))


def pages_apart(folder, x):
    with tifffile.TiffWriter(folder / "x.tif") as file:
        for page in x:
            file.write(page, photometric="minisblack", contiguous=False)
    return folder / "x.tif"


def gif(folder, x):
    first, *others = [Image.fromarray(image) for image in x]
    first.save(folder / "x.gif", save_all=True, append_images=others, duration=40)
    return folder / "x.gif"


def moving(x):
    """Frames redrawn in part: most of a picture stays from one to the next."""
    x[3:6, 4:] = x[2, 4:]
    return x


FRAMES = moving(values("u1", (9, 12, 10)))
HYPERSTACK = values("u2", (2, 3, 4, 6, 5))
SCENE = (7, 48, 64)
STACKS = {
    "tiff": Row(tiff(), values("u2")),
    "tiff, uncompressed pages": Row(tiff(byteorder=">", metadata=None), values("u2")),
    "tiff, pages apart": Row(pages_apart, values()),
    "tiff, lzw": Row(tiff(metadata=None, compression="lzw", predictor=True), values("u2", SCENE)),
    "tiff, deflate": Row(tiff(metadata=None, compression="zlib", predictor=True), values("f4", SCENE)),
    "tiff, zstd": Row(tiff(metadata=None, compression="zstd"), values("i2", SCENE)),
    "tiff, packbits": Row(tiff(metadata=None, compression="packbits"), values("u1", SCENE)),
    "tiff, large": Row(tiff(metadata=None, bigtiff=True, compression="lzw"), values("f8", SCENE)),
    "tiff, big-endian": Row(tiff(metadata=None, byteorder=">", compression="zlib"), values("u4", SCENE)),
    "tiff, tiled": Row(tiff(metadata=None, tile=(16, 32), compression="lzw"), values("u2", SCENE)),
    "tiff, tiled colour": Row(tiff(metadata=None, tile=(32, 32), photometric="rgb"), values("u2", (5, 48, 64, 3))),
    "tiff, planes": Row(tiff_planes, values("u1", (5, 48, 64, 3))),
    "tiff, turned": Row(
        tiff(metadata=None, compression="zlib", extratags=[(274, "H", 1, 6, False)]),
        values("u1", (5, 8, 6)),
        np.rot90(values("u1", (5, 8, 6)), -1, axes=(1, 2)),
    ),
    "imagej": Row(
        tiff(imagej=True, metadata={"axes": "TZCYX"}), HYPERSTACK, HYPERSTACK[:, :, 2].reshape(6, 6, 5), select={"c": 2}
    ),
    "ome-tiff": Row(
        tiff("x.ome.tif", metadata={"axes": "TZCYX"}, compression="zlib"), HYPERSTACK, HYPERSTACK.reshape(6, 4, 6, 5)
    ),
    "gif frames": Row(gif, FRAMES, np.repeat(FRAMES[..., None], 3, axis=-1)),
}


# -- views of others


def windows(images, size, step):
    """Return all windows of images, one after another: the slow way."""
    shape, axes = images.shape[1:], range(len(size))
    counts = [(shape[axis] - size[axis]) // step[axis] + 1 for axis in axes]
    return np.array([
        image[tuple(slice(at * step[axis], at * step[axis] + size[axis]) for axis, at in enumerate(place))]
        for image in images
        for place in np.ndindex(*counts)
    ])  # fmt: skip


def parts(extension, write, x, cuts, order=slice(None)):
    """Return what cuts samples into files, the source of which is a folder, or with `order` a list."""

    def make(folder, _=None):
        paths = [folder / f"part{number + 8}.{extension}" for number in range(len(cuts) + 1)]  # in order of numbers
        for path, part in zip(paths, np.split(x, cuts), strict=True):
            write(path, part)
        return folder if order == slice(None) else paths[order]

    return make


def write_hdf5(path, x):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, chunks=(2, *x.shape[1:]))


def write_zarr(path, x):
    zarr.create_array(path, data=x, chunks=(2, 3, 4))


def write_zarr_image(path, x):
    zarr.create_array(path, shape=x.shape[1:], dtype="u1", chunks=(4, 5), dimension_names=("y", "x"))[...] = x[0]


def write_pages(path, x):
    tifffile.imwrite(path, x, photometric="minisblack", metadata=None, compression="lzw")


def table_of_files(folder, x):
    (folder / "scans").mkdir()
    for at in range(2):
        np.save(folder / "scans" / f"{at}.npy", x[2 * at : 2 * at + 2])
    (folder / "table.csv").write_text('who,path\n"A, the first",scans/1.npy\n\nB,scans/0.npy\n')
    return f"{folder}/table.csv:path"


def joined(extension, write, x, cuts, read=None, **options):
    return Row(parts(extension, write, x, cuts), x, read, **options)


def chosen_twice(folder):
    x = values("u1", (15, 3, 3))
    first = open_collection(parts("npy", np.save, x, [5, 10])(folder), samples=(1, 14, 2))
    return open_collection(first, samples=[0, 1, 5]), x[[1, 3, 11]]


def colour_first(folder, x):
    """Name axes: colours come last in the window, wherever they are stored."""
    array = zarr.create_array(
        folder / "x.zarr", shape=x.shape, dtype=x.dtype, chunks=(1, 4, 4), dimension_names=("c", "y", "x")
    )
    array[...] = x
    return folder / "x.zarr"


def picture(folder, x):
    return save(folder / "x.png", x)


def reordered(folder):
    x = values("u1", (23, 4, 5, 3))
    orders = {0: np.arange(4)[::-1], 2: np.array([2, 0, 1])}
    return Reordered(open_collection(npy()(folder, x)), orders), x[:, ::-1][..., [2, 0, 1]]


def variables(folder):
    """Two variables of a file, one of them in chunks of floats."""
    first, second = values("i2", (23, 4, 5)), values("f4", (23, 4, 5))
    with h5py.File(folder / "x.h5", "w") as file:
        file["u"] = first
        file.create_dataset("v", data=second, chunks=(5, 3, 2), compression="gzip")
    return open_collection(folder / "x.h5", key="u,v"), np.stack([first, second], axis=-1).astype("f4")


def widths(folder):
    """Files of two byte orders and widths."""
    x = values("i2", (13, 4, 5))
    np.save(folder / "0.npy", x[:5].astype(">i2"))
    np.save(folder / "1.npy", x[5:].astype("i4"))
    return open_collection(folder), x.astype("i4")


PAGE, PHOTO, VOLUME = values("f4", (23, 18)), values("u1", (13, 11, 3)), values("f8", (6, 7, 8))
BANDS, PAGES, HALVES = values("u2", (3, 9, 8)), values("u2", (5, 9, 7)), values("u1", (4, 6, 6))
LABELLED = values("u1", (30, 2, 3))
VIEWS = {
    "joined npy": joined("npy", np.save, values("f4", (13, 4, 5)), [3, 4, 11]),
    "joined hdf5": joined("h5", write_hdf5, values("i2", (12, 3, 6)), [4, 8]),
    "joined zarr": Row(
        parts("zarr", write_zarr, values("f8", (10, 6, 4)), [5], order=slice(None, None, -1)),
        values("f8", (10, 6, 4)),
        np.roll(values("f8", (10, 6, 4)), 5, axis=0),
    ),
    "joined fits": joined("fits", fits.writeto, values(">i2", (6, 4, 5)), [3, 4]),
    "joined tiff": joined("tif", write_pages, values("u2", (6, 4, 5)), [3, 5]),
    "joined images": joined("zarr", write_zarr_image, values("u1", (3, 4, 5)), [1, 2]),
    "joined table": Row(table_of_files, values("u1", (4, 3, 3)), values("u1", (4, 3, 3))[[2, 3, 0, 1]]),
    "chosen by step": Row(npy(), values(), values()[1:22:3], samples=slice(1, 22, 3)),
    "chosen in chunks": Row(zarr_store(chunks=(5, 3, 5)), values(), values()[2::2], samples=(2, None, 2)),
    "chosen by number": Row(npy(), values(), values()[[20, 3, 4, 5, 11]], samples=[20, 3, 4, 5, 11]),
    "chosen by label": Row(
        npy(), LABELLED, LABELLED[np.isin(np.arange(30) % 7, (2, 3))], labels=np.arange(30) % 7, where="label=2,3"
    ),
    "chosen files": files(read=lambda x: x[[7, 1, 2], 1:3], samples=[7, 1, 2], select={"y": slice(1, 3)}),
    "chosen twice": chosen_twice,
    "patches": Row(npy(), PAGE, windows(PAGE[None], (4, 4), (4, 4)), patches=4),
    "patches, colour": Row(
        picture, PHOTO, windows(PHOTO[None], (5, 4), (2, 3)), patches={"size": (5, 4), "step": (2, 3)}
    ),
    "patches, colour first": Row(
        colour_first, BANDS, windows(BANDS.transpose(1, 2, 0)[None], (3, 3), (2, 2)), patches={"size": 3, "step": 2}
    ),
    "patches of a stack": Row(tiff(), PAGES, windows(PAGES, (4, 3), (3, 2)), patches={"size": (4, 3), "step": (3, 2)}),
    "patches of a volume": Row(
        zarr_store(chunks=(3, 7, 4)), VOLUME, windows(VOLUME[None], (2, 3, 3), (2, 3, 3)), patches=(2, 3, 3)
    ),
    "patches of joined": joined(
        "npy", np.save, HALVES, [2], windows(HALVES, (3, 3), (3, 3))[1::2], patches=3, samples=(1, None, 2)
    ),
    "converted": Row(zarr_store(chunks=(5, 3, 5)), values("u2"), values("u2").astype("f4"), dtype="float32"),
    "joined widths": widths,
    "reordered": reordered,
    "variables": variables,
}

SOURCES = MEMORY | FLAT | ZARR | HDF5 | FITS | IMAGES | STACKS | VIEWS

# Read in pieces of a few bytes, and by threads, wherever they are cut or decoded.
IN_PIECES = [
    "dask", "sparse, CSR", "zarr, cut everywhere", "hdf5, chunked", "hdf5, cut everywhere", "netcdf 3, short records",
    "fits, Rice", "png", "tiff, lzw", "joined npy", "chosen in chunks", "patches of a stack", "reordered", "variables",
]  # fmt: skip
