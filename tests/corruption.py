"""Damages small files, models and checkpoints in seeded ways: run by test_fuzz.py, in a process of its own with limits.

``python tests/corruption.py FORMAT:FIRST-LAST ...`` tries these seeds and prints one line of JSON a case that broke the
law, and before each case its name, so that after a crash or a hang the last line says which case it was.
``python tests/corruption.py FORMAT:SEED`` repeats one and raises what it raised.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import resource
import shutil
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

import numpy as np
from sources import SOURCES

import streampca
from streampca.errors import StreampcaError
from streampca.execution.checkpoint_file import CheckpointFile

SECONDS = 10  # for one case; they take milliseconds
ROOM = 2**30  # bytes a case may add to what this process has mapped
MOST_READ = 2**26  # bytes read at once of a collection that says it is large
DEFLATE = 1032  # most bytes that a byte of deflated data can stand for


# name -> how many decoded bytes a stored byte can stand for (None: any number, for chunks that are not stored read as
# the fill value, as the format says)
FORMATS = {
    "npy": 1,
    "npy, Fortran": 1,
    "npz": 1,
    "npz, deflated": DEFLATE,
    "idx": 1,
    "idx, gzipped": DEFLATE,
    "zarr 3": None,
    "zarr, sharded": None,
    "zarr 2": None,
    "hdf5, contiguous": 1,
    "hdf5, chunked": None,
    "tiff": 1,
    "tiff, pages apart": 1,
    "tiff, deflate": DEFLATE,
    "imagej": 1,
    "png": 0,
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
    """Handler that collects the package's warnings."""

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
    x, factor = SOURCES[name].read, FORMATS[name]
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
    row, told = SOURCES[name], Told()
    logging.getLogger("streampca").addHandler(told)
    (folder / "fuzzed").mkdir()
    source = row.write(folder / "fuzzed", row.x)
    kind, what = damage(folder, np.random.default_rng([seed, *name.encode()]))
    try:
        collection, _ = row.opened(source)
        wrong = broken_law(name, kind, source, collection, values_of(collection), told.lines)
    except StreampcaError as error:
        wrong = None if "\n" not in str(error) and "fuzzed" in str(error) else f"the message is {error}"
    finally:
        logging.getLogger("streampca").removeHandler(told)
    return f"{kind}: {what}", wrong


@cache
def whole_model():
    """Model to damage copies of, and the folder that it lies in."""
    x = np.random.default_rng(0).integers(0, 256, (20, 6, 5)).astype(np.uint8)
    fitted, folder = (
        streampca.fit(x, streampca.PCA(3, method="covariance"), listener=lambda event: None),
        tempfile.mkdtemp(),
    )
    fitted.save(f"{folder}/m.zarr")
    return fitted, Path(folder, "m.zarr")


def outcome_of_model(seed, folder):
    """Damage a model and load it; return what was done and what is wrong with what came of it, or None."""
    whole, place = whole_model()
    shutil.copytree(place, folder / "fuzzed")
    kind, what = damage(folder / "fuzzed", np.random.default_rng([seed, *b"model"]))
    try:
        found = streampca.load(folder / "fuzzed", statistic=True, memory="64MiB")
        same = all(np.array_equal(getattr(found, name), getattr(whole, name)) for name in ("components", "mean"))
        wrong = None if same and found.n_samples == whole.n_samples else "another model was loaded"
    except StreampcaError as error:
        wrong = None if "\n" not in str(error) and "fuzzed" in str(error) else f"the message is {error}"
    return f"{kind}: {what}", wrong


def outcome_of_checkpoint(seed, folder):
    """Damage a slot of a checkpoint and load it: one of the two that were saved must come, or none."""
    (folder / "fuzzed").mkdir()
    saved = [np.arange(100.0) + number for number in range(2)]
    for number, values in enumerate(saved):
        CheckpointFile(str(folder / "fuzzed"), "state").save({"number": number}, {"x": values})
    kind, what = damage(folder / "fuzzed", np.random.default_rng([seed, *b"checkpoint"]))
    try:
        found = CheckpointFile(str(folder / "fuzzed"), "state").load()
        whole = found is not None and np.array_equal(found[1]["x"], saved[found[0]["number"]])
        wrong = None if whole else f"{found} was loaded"
    except StreampcaError as error:
        wrong = None if "\n" not in str(error) and "fuzzed" in str(error) else f"the message is {error}"
    return f"{kind}: {what}", wrong


OTHERS = {"model": outcome_of_model, "checkpoint": outcome_of_checkpoint}


def attempt(name, seed):
    """Run one case in a folder of its own, under a clock; return what went wrong, or None."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        what, wrong = OTHERS[name](seed, folder) if name in OTHERS else outcome(name, seed, folder)
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
