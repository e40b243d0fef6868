"""Damages small files in seeded ways and opens them: run by test_fuzz.py, in a process of its own with limits.

``python tests/corruption.py FORMAT:FIRST-LAST ...`` tries these seeds and prints one line of JSON a case that broke the
law, and before each case its name, so that after a crash or a hang the last line says which case it was.
``python tests/corruption.py FORMAT:SEED`` repeats one and raises what it raised.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gzip
import json
import logging
import resource
import shutil
import struct
import sys
import tempfile
import traceback
from pathlib import Path

import h5py
import numpy as np
import tifffile
import zarr
from PIL import Image

import streampca
from streampca.errors import StreampcaError

SHAPE = (10, 6, 5)
SECONDS = 10  # for one case; they take milliseconds
ROOM = 2**30  # bytes a case may add to what this process has mapped
MOST_READ = 2**26  # bytes read at once of a collection that says it is large
DEFLATE = 1032  # most bytes that a byte of deflated data can stand for


def pictures(dtype="u1"):
    return np.random.default_rng(0).integers(0, 250, SHAPE).astype(dtype)


def npy(path, x):
    np.save(f"{path}.npy", x)
    return f"{path}.npy"


def npz(path, x):
    np.savez(f"{path}.npz", x)
    return f"{path}.npz"


def npz_deflated(path, x):
    np.savez_compressed(f"{path}.npz", x)
    return f"{path}.npz"


def idx_bytes(x):
    return struct.pack(">BBBB3i", 0, 0, 8, 3, *x.shape) + x.tobytes()


def idx(path, x):
    Path(f"{path}-ubyte").write_bytes(idx_bytes(x))
    return f"{path}-ubyte"


def idx_gz(path, x):
    Path(f"{path}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(x), mtime=0))
    return f"{path}-ubyte.gz"


def zarr_with(**options):
    def write(path, x):
        zarr.create_array(f"{path}.zarr", data=x, **options)
        return f"{path}.zarr"

    return write


def hdf5_with(**options):
    def write(path, x):
        with h5py.File(f"{path}.h5", "w") as file:
            file.create_dataset("images", data=x, **options)
        return f"{path}.h5"

    return write


def tiff_with(**options):
    def write(path, x):
        tifffile.imwrite(f"{path}.tif", x, photometric="minisblack", **options)
        return f"{path}.tif"

    return write


def tiff_pages(path, x):
    with tifffile.TiffWriter(f"{path}.tif") as file:
        for page in x:
            file.write(page, photometric="minisblack", contiguous=False)
    return f"{path}.tif"


def png(path, x):
    path.mkdir()
    for number, image in enumerate(x):
        Image.fromarray(image).save(path / f"{number}.png")
    return str(path)


# name -> how it is written, the values, and how many decoded bytes a stored byte can stand for (None: any number,
# for chunks that are not stored read as the fill value, as the format says)
FORMATS = {
    "npy": (npy, pictures(), 1),
    "npy-fortran": (npy, np.asfortranarray(pictures("f4")), 1),
    "npz": (npz, pictures("u2"), 1),
    "npz-deflated": (npz_deflated, pictures(), DEFLATE),
    "idx": (idx, pictures(), 1),
    "idx-gz": (idx_gz, pictures(), DEFLATE),
    "zarr": (zarr_with(chunks=(4, 6, 5)), pictures(), None),
    "zarr-sharded": (zarr_with(chunks=(2, 6, 5), shards=(4, 6, 5)), pictures("f4"), None),
    "zarr-2": (zarr_with(chunks=(10, 3, 5), zarr_format=2), pictures("i2"), None),
    "hdf5": (hdf5_with(), pictures(), 1),
    "hdf5-chunked": (hdf5_with(chunks=(4, 6, 5), compression="gzip"), pictures("f4"), None),
    "tiff": (tiff_with(), pictures("u2"), 1),
    "tiff-pages": (tiff_pages, pictures(), 1),
    "tiff-deflate": (tiff_with(compression="zlib"), pictures(), DEFLATE),
    "tiff-imagej": (tiff_with(imagej=True, metadata={"axes": "TYX"}), pictures("f4"), 1),
    "png": (png, pictures(), 0),
}


def damage(folder, rng):
    """Cut a file of a folder short or change some of its bytes, half the time near its start; return what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = files[rng.integers(len(files))]
    content = bytearray(file.read_bytes())
    if rng.random() < 0.4:
        kept = int(rng.integers(len(content)))
        file.write_bytes(content[:kept])
        return "cut", f"{file.name} to {kept} of {len(content)} bytes"
    reach = len(content) if rng.random() < 0.5 else min(len(content), 300)
    places = sorted({int(place) for place in rng.integers(0, reach, rng.integers(1, 5))})
    for place in places:
        content[place] ^= int(rng.integers(1, 256))
    file.write_bytes(content)
    return "changed", f"bytes {places} of {file.name}, now {[content[place] for place in places]}"


class Told(logging.Handler):
    """What the package warned of."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def values_of(collection):
    """All values, or of a collection that says it is large those at both ends."""
    n, p = collection.n_samples, collection.n_features
    if collection.nbytes <= MOST_READ:
        return collection.read(slice(0, n)).reshape(collection.shape)
    width = min(p, 4096)
    collection.read(slice(0, 1), slice(0, width))
    return collection.read(slice(n - 1, n), slice(p - width, p))


def broken_law(name, kind, source, collection, values, told):
    """Say what is wrong with what was read, or None.

    A file that was cut short is refused or still holds everything. One whose bytes were changed may hold other values;
    it may have another shape only where its header says so and the file can hold as much, or where it was warned that
    parts are not stored.
    """
    _, x, factor = FORMATS[name]
    same = (collection.shape, collection.dtype) == (x.shape, x.dtype)
    if kind == "cut":
        return None if same and np.array_equal(values, x) else f"cut short, and {collection.shape} was read"
    if same or (factor is None and told):
        return None
    path = Path(source)
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")))
    room = size * (DEFLATE if factor is None else factor)
    return None if collection.nbytes <= room else f"{collection.shape} {collection.dtype} was read of {size} bytes"


def outcome(name, seed, folder):
    """Damage one file, open and read it; return what was done and what is wrong with what came of it, or None."""
    write, x, _ = FORMATS[name]
    told = Told()
    logging.getLogger("streampca").addHandler(told)
    source = write(folder / "fuzzed", x)
    kind, what = damage(folder, np.random.default_rng([seed, *name.encode()]))
    try:
        collection = streampca.open_collection(source)
        wrong = broken_law(name, kind, source, collection, values_of(collection), told.lines)
    except StreampcaError as error:
        wrong = None if "\n" not in str(error) and "fuzzed" in str(error) else f"the message is {error}"
    finally:
        logging.getLogger("streampca").removeHandler(told)
    return f"{kind}: {what}", wrong


def attempt(name, seed):
    """Run one case in a folder of its own, under a clock; return what went wrong, or None."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        what, wrong = outcome(name, seed, folder)
    except Exception:  # what is not ours is what is looked for
        what, wrong = "", traceback.format_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(folder, ignore_errors=True)
    return wrong and f"{what}: {wrong}"


def limit_memory():
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, resource.RLIM_INFINITY))


def main(cases):
    faulthandler.enable()
    limit_memory()
    for case in cases:
        name, _, seeds = case.partition(":")
        first, _, last = seeds.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            print(f"{name}:{seed}", flush=True)
            wrong = attempt(name, seed)
            if wrong:
                print(json.dumps({"case": f"{name}:{seed}", "wrong": wrong}), flush=True)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1:])
