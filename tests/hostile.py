"""Small files that claim, or inflate to, far more than they hold: one function each, of an empty folder.

`FILES` names how each is used: as a source to fit, or as a model, mask, column of labels, list or run file.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import struct
import zipfile
import zlib

import h5py
import imagecodecs
import numcodecs
import numpy as np
import tifffile
import zarr
from zarr.codecs import GzipCodec, ZstdCodec

import streampca
from streampca.storage.integrity import seal
from streampca.storage.writers import consolidate

N, SIDE, CHUNK = 64, 32, 16
BOMB = 2**28  # bytes that compressed ones stand for
SPARSE = 2**31  # bytes of files with nothing in them


def images():
    return np.random.default_rng(0).integers(0, 256, (N, SIDE, SIDE)).astype(np.uint8)


def deflated(count, container=31):
    """Zeros, deflated: gzip by default, zlib by 15."""
    packer, zeros = zlib.compressobj(9, zlib.DEFLATED, container), bytes(2**20)
    return b"".join([*(packer.compress(zeros) for _ in range(count // 2**20)), packer.flush()])


def zstd(count, *, stated=True):
    """Zeros as a zstd frame of one byte a block, that states how many they are or does not."""
    blocks = count // 2**17
    body = b"".join(
        (int(number == blocks - 1) | 1 << 1 | 2**17 << 3).to_bytes(3, "little") + b"\0" for number in range(blocks)
    )
    header = bytes([0xC0, 0x38]) + struct.pack("<Q", count) if stated else bytes([0, 0x38])
    return b"\x28\xb5\x2f\xfd" + header + body


def stretched(path, size=SPARSE):
    with open(path, "r+b") as file:
        file.truncate(size)
    return path


def stored(folder, codec, chunk, **options):
    """Zarr array with something else in its first chunk."""
    path = folder / "x.zarr"
    zarr.create_array(path, data=images(), chunks=(CHUNK, SIDE, SIDE), compressors=codec, **options)
    next(path.rglob("c/0/0/0" if options.get("zarr_format") != 2 else "0.0.0")).write_bytes(chunk)
    return path


def zarr_sparse_chunk(folder):
    path = stored(folder, None, b"")
    stretched(path / "c/0/0/0")
    return path


def zarr_metadata(folder):
    path = stored(folder, None, b"")
    stretched(path / "zarr.json")
    return path


def zarr_shard(folder):
    path, bomb = folder / "x.zarr", zstd(BOMB)
    zarr.create_array(path, data=images(), chunks=(CHUNK, SIDE, SIDE), shards=(32, SIDE, SIDE), compressors=ZstdCodec())
    index = np.array([[0, len(bomb)]] * 2, "<u8").tobytes()
    (path / "c/0/0/0").write_bytes(bomb + index + bytes(numcodecs.CRC32C().encode(index)[:4]))
    return path


def zarr_beside(name, **array):
    """Zarr group whose coordinate has something else in its chunk."""

    def write(folder):
        group = zarr.create_group(folder / "x.zarr")
        group.create_array("v", data=images(), chunks=(CHUNK, SIDE, SIDE), dimension_names=("t", "y", "x"))
        group.create_array(name, dimension_names=(name,), compressors=ZstdCodec(), **array)
        chunk = folder / "x.zarr" / name / "c/0"
        chunk.parent.mkdir(exist_ok=True)
        chunk.write_bytes(zstd(BOMB))
        return folder / "x.zarr"

    return write


def hdf5(rows):
    def write(folder):
        with h5py.File(folder / "x.h5", "w") as file:
            made = file.create_dataset("x", (N, SIDE, SIDE), "u1", chunks=(rows, SIDE, SIDE), compression="gzip")
            made[...] = images()
            made.id.write_direct_chunk((0, 0, 0), deflated(BOMB, 15))
        return folder / "x.h5"

    return write


def npy_header(folder):
    (folder / "x.npy").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**30))
    return stretched(folder / "x.npy")


def npz(name, shape, dtype="<f8", header=None):
    def write(folder):
        path = folder / "x.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as file:
            if header is None:
                about = {"descr": dtype, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, about)
            else:
                file.write(header + b" " * BOMB)
            file.write(bytes(1000))
        return path

    return write


def idx(*shape, bomb=0):
    def write(folder):
        head = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
        path = folder / f"x-idx{len(shape)}-ubyte.gz"
        path.write_bytes(gzip.compress(head) + (deflated(bomb) if bomb else bytes(1000)))
        return path

    return write


def tiff_claims(folder):
    path = folder / "x.tif"
    tifffile.imwrite(path, images()[:1], compression="deflate", metadata=None)
    with tifffile.TiffFile(path, mode="r+") as file:
        for tag in (256, 257):
            file.pages[0].tags[tag].overwrite(100_000)
    return path


def tiff_strip(compression, data, size=None):
    def write(folder):
        path, count = folder / "x.tif", len(data) if size is None else size
        tags = [(256, SIDE), (257, SIDE), (258, 8), (259, compression), (262, 1), (273, 8), (277, 1), (278, SIDE)]
        offset = 8 + len(data) + len(data) % 2
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*tags, (279, count)])
        directory = struct.pack("<H", len(tags) + 1) + entries + bytes(4)
        path.write_bytes(b"II*\0" + struct.pack("<I", offset) + data + b"\0" * (len(data) % 2) + directory)
        return path if size is None else stretched(path)

    return write


def netcdf_claims(folder):
    from scipy.io import netcdf_file

    path = folder / "x.nc"
    with netcdf_file(path, "w") as file:
        for name, length in (("t", N), ("y", SIDE), ("x", SIDE)):
            file.createDimension(name, length)
        file.createVariable("v", "i1", ("t", "y", "x"))[:] = images().astype("i1")
    path.write_bytes(path.read_bytes().replace(struct.pack(">I", N), struct.pack(">I", 2**31 - 1), 1))
    return path


def fits(bits, *shape):
    def write(folder):
        cards = ["SIMPLE  =                    T", f"BITPIX  = {bits:>20}", f"NAXIS   = {len(shape):>20}"]
        cards += [f"NAXIS{axis:<3}= {length:>20}" for axis, length in enumerate(reversed(shape), 1)]
        head = b"".join(card.ljust(80).encode() for card in [*cards, "END"]).ljust(2880)
        (folder / "x.fits.gz").write_bytes(gzip.compress(head) + deflated(2**26))
        return folder / "x.fits.gz"

    return write


def png(side, pixels, size=None):
    def write(folder):
        def chunk(name, data):
            return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

        (folder / "pictures").mkdir()
        head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
        for number in range(3):
            path = folder / "pictures" / f"{number}.png"
            parts = chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
            path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
            if size:
                stretched(path, size)
        return folder / "pictures"

    return write


def jpeg_2000(folder):
    (folder / "pictures").mkdir()
    for number, image in enumerate(images()[:3]):
        path = folder / "pictures" / f"{number}.jp2"
        path.write_bytes(imagecodecs.jpeg2k_encode(image))
        stretched(path)
    return folder / "pictures"


def model(**arrays):
    """Model whose arrays of these names have other shapes, all zeros; sealed as a whole one is."""

    def write(folder):
        path = folder / "m.zarr"
        streampca.fit(images(), n_components=2, listener=lambda event: None).save(path)
        group = zarr.open_group(path, mode="r+", use_consolidated=False)
        for name, (shape, bomb) in arrays.items():
            shutil.rmtree(path / name, ignore_errors=True)
            dims = ("component", "y", "x")[-len(shape) :]
            group.create_array(
                name, shape=shape, dtype="f8", chunks=shape, dimension_names=dims, compressors=ZstdCodec()
            )
            chunk = path.joinpath(name, "c", *("0" for _ in shape))
            chunk.parent.mkdir(parents=True)
            chunk.write_bytes(zstd(bomb))
        document = json.loads((path / "zarr.json").read_text())
        document["attributes"]["streampca"].pop("digests", None)
        (path / "zarr.json").write_text(json.dumps(document))
        consolidate(str(path))
        seal(str(path))
        return path

    return write


def mask(folder):
    path = folder / "mask.npy"
    with open(path, "wb") as file:
        about = {"descr": "|b1", "fortran_order": False, "shape": (40_000, 50_000)}
        np.lib.format.write_array_header_1_0(file, about)
    return stretched(path)


def table(folder):
    (folder / "x.csv").write_bytes(b"y\n")
    return f"{stretched(folder / 'x.csv')}:y"


def paths(folder):
    (folder / "list.txt").touch()
    return f"@{stretched(folder / 'list.txt')}"


def run_file(folder):
    levels = "".join(f"    a{level}: &a{level} [{', '.join(10 * [f'*a{level - 1}'])}]\n" for level in range(1, 10))
    start = "collection: {source: x.npy}\nexecution:\n  kind: dask\n  cluster: x.Y\n  options:\n"
    (folder / "run.yaml").write_text(f"{start}    a0: &a0 [{', '.join(10 * 'x')}]\n{levels}")
    return folder / "run.yaml"


# name -> (how it is used, function that writes it)
FILES = {
    "zarr, zstd": ("fit", lambda folder: stored(folder, ZstdCodec(), zstd(BOMB))),
    "zarr, zstd of no stated size": ("fit", lambda folder: stored(folder, ZstdCodec(), zstd(BOMB, stated=False))),
    "zarr, gzip": ("fit", lambda folder: stored(folder, GzipCodec(), deflated(2**25))),
    "zarr 2, lzma": (
        "fit",
        lambda folder: stored(folder, numcodecs.LZMA(), lzma.compress(bytes(2**26), preset=0), zarr_format=2),
    ),
    "zarr, shard": ("fit", zarr_shard),
    "zarr, sparse chunk": ("fit", zarr_sparse_chunk),
    "zarr, metadata": ("fit", zarr_metadata),
    "zarr, coordinate": ("fit", zarr_beside("y", data=np.arange(float(SIDE)), chunks=(SIDE,))),
    "zarr, names": ("fit", zarr_beside("t", shape=(N,), dtype="string", chunks=(N,))),
    "hdf5, small chunks": ("fit", hdf5(4)),
    "hdf5, parts of chunks": ("some", hdf5(15)),
    "npy, header": ("fit", npy_header),
    "npz, header": ("fit", npz("x", (), header=b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**30))),
    "npz, claims": ("fit", npz("x", (4, 40_000, 50_000))),
    "idx, claims": ("fit", idx(2**31, 2**15, 2**15)),
    "tiff, claims": ("fit", tiff_claims),
    "tiff, strip of zstd": ("patches", tiff_strip(50000, zstd(BOMB))),
    "tiff, sparse strip": ("patches", tiff_strip(8, bytes(2), SPARSE - 200)),
    "netcdf, claims": ("fit", netcdf_claims),
    "fits, claims": ("fit", fits(-64, N, 40_000, 50_000)),
    "png, claims": ("fit", png(50_000, zlib.compress(bytes(1000)))),
    "png, sparse": ("fit", png(SIDE, zlib.compress(bytes(33 * SIDE)), SPARSE)),
    "jpeg 2000, sparse": ("fit", jpeg_2000),
    "model, claims": ("load", model(components=((2, 40_000, 50_000), 2**20), mean=((40_000, 50_000), 2**20))),
    "model, chunk": ("load", model(mean=((SIDE, SIDE), BOMB))),
    "mask": ("mask", mask),
    "mask, fits": ("mask", fits(8, 2**14, 2**14)),
    "labels, npz": ("labels", npz("y", (2**29,))),
    "labels, idx": ("labels", idx(2**28, bomb=BOMB)),
    "labels, table": ("labels", table),
    "list of paths": ("fit", paths),
    "run file": ("run", run_file),
}
