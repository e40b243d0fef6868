"""How well reading hides behind computing: a fit of encoded files beside decoding alone and computing alone.

Decoding alone is reading every sample, by one thread that asks for block after block and by one a core, whichever is
faster, as often as the fit reads; computing alone is the fit, by the same method, of the same values in memory. No fit
can be faster than the slower of the two. Where both use every core it can't be faster than about their sum either: of
small pictures, whose decoding takes nearly as long as their products, that is more than is aimed at. Each is timed in
fresh processes, in alternating rounds, on files in the system's cache:

    python benchmarks/ahead.py
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
from fresh import alternating, folder, in_fresh_process, machine, measured, print_table, spread, tell, warm
from PIL import Image
from synthetic import textures

CHUNK = 128  # samples
# A fit to the larger of decoding and computing, at most.
AIMS = {"gzip HDF5": 1.25, "PNG": 1.4}


class Source(NamedTuple):
    """The same pictures encoded, and as one array."""

    encoded: Path
    plain: Path


def pictures(n: int, side: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Pictures of whole numbers, (n, side, side), with the noise of a camera: gzip halves them."""
    most, drawn = np.iinfo(dtype).max, textures(n, side)
    brightness = 16 if most < 2**10 else 64
    values = np.empty((n, side, side), dtype)
    for number, one in enumerate(drawn):
        values[number] = np.clip(one[0] * brightness + most // 8, 0, most)
    return values


def as_hdf5(directory: Path, n: int, side: int) -> Source:
    """One dataset of uint16, shuffled and deflated, in chunks of whole pictures."""
    source = Source(directory / f"ahead-{n}x{side}.h5", directory / f"ahead-{n}x{side}-uint16.npy")
    if not source.plain.exists():
        tell(f"making {source.encoded}")
        values = pictures(n, side, "u2")
        with h5py.File(source.encoded, "w") as file:
            chunks = (min(CHUNK, n), side, side)
            file.create_dataset("pictures", data=values, chunks=chunks, compression="gzip", shuffle=True)
        np.save(source.plain, values)  # last: it tells that all is there
    warm(source.encoded)
    return source


def as_png(directory: Path, n: int, side: int) -> Source:
    """A folder of uint8 files."""
    source = Source(directory / f"ahead-{n}x{side}", directory / f"ahead-{n}x{side}-uint8.npy")
    if not source.plain.exists():
        tell(f"making {source.encoded}")
        values = pictures(n, side, "u1")
        source.encoded.mkdir(exist_ok=True)
        for number, one in enumerate(values):
            Image.fromarray(one).save(source.encoded / f"{number:06d}.png")
        np.save(source.plain, values)
    for path in source.encoded.iterdir():
        warm(path)
    return source


def decoding(path: Path, rows: int, readers: int) -> float:
    """Seconds to open a collection and read every sample in blocks of `rows`, so many threads at a time."""
    import streampca

    ready(path)

    def work() -> None:
        opened = streampca.open_collection(path)

        def read(start: int) -> None:
            opened.read(slice(start, min(start + rows, opened.n_samples)))

        with ThreadPoolExecutor(readers) as pool:
            for _ in pool.map(read, range(0, opened.n_samples, rows)):
                pass

    return measured(work)[1]


def fitting(path: Path, components: int, method: str) -> float:
    """Return the seconds to fit a file, or an array that was loaded before the clock started."""
    import streampca

    ready(path)
    source = np.load(path) if path.suffix == ".npy" else path
    return measured(partial(streampca.fit, source, streampca.PCA(components, method=method)))[1]


def ready(path: Path) -> None:
    """Do what is done once in a process: a small fit, and a few samples of the source."""
    import streampca

    collection = streampca.open_collection(path)
    streampca.fit(collection.read(slice(0, min(CHUNK, collection.n_samples))), n_components=2)


def jobs_of(source: Source, components: int, cores: int) -> tuple[Any, dict[str, Callable[[], float]]]:
    """The plan of the fit, and what is timed."""
    import streampca

    collection = streampca.open_collection(source.encoded)
    plan = streampca.plan(collection, n_components=components)
    # Blocks as the fit reads them, but enough for every core.
    rows = min(plan.block_rows, max(CHUNK, collection.n_samples // (4 * cores) // CHUNK * CHUNK))
    jobs: dict[str, Callable[[], float]] = {
        f"decoding, {readers} at a time": partial(in_fresh_process, decoding, source.encoded, rows, readers)
        for readers in sorted({1, cores})
    }
    jobs["computing"] = partial(in_fresh_process, fitting, source.plain, components, plan.method)
    jobs["fit"] = partial(in_fresh_process, fitting, source.encoded, components, plan.method)
    return plan, jobs


def report(name: str, times: dict[str, list[float]], passes: float) -> None:
    """Print the parts, and the fit to the larger of them."""
    read = {job: [seconds * passes for seconds in spent] for job, spent in times.items() if "decoding" in job}
    medians = {job: statistics.median(spent) for job, spent in {**times, **read}.items()}
    floor = max(min(medians[job] for job in read), medians["computing"])
    print_table(
        ("seconds", "median", "least", "most"), [[job, *spread(spent)] for job, spent in (times | read).items()]
    )
    ratio = medians["fit"] / floor
    together = medians["fit"] / (min(medians[job] for job in read) + medians["computing"])
    print(
        f"{name}: the fit takes {ratio:.2f} times the larger of decoding and computing ({AIMS[name]} is aimed at), "
        f"{together:.2f} times their sum\n"
    )


def encoded_bytes(path: Path) -> int:
    return sum(one.stat().st_size for one in path.iterdir()) if path.is_dir() else path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=40_000, help="of the HDF5 file")
    parser.add_argument("--sides", type=int, nargs="*", default=[32, 48, 64], help="of its pictures")
    parser.add_argument("--pictures", type=int, default=8_000, help="PNG files")
    parser.add_argument("--picture-sides", type=int, nargs="*", default=[48, 64, 80])
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    print(machine())
    with folder(args.directory) as directory:
        sources = [("gzip HDF5", as_hdf5(directory, args.samples, side)) for side in args.sides]
        sources += [("PNG", as_png(directory, args.pictures, side)) for side in args.picture_sides]
        for name, source in sources:
            plan, jobs = jobs_of(source, args.components, cores)
            ratio = source.plain.stat().st_size / encoded_bytes(source.encoded)
            shape = " x ".join(map(str, np.load(source.plain, mmap_mode="r").shape))
            print(f"{name}: {shape}, packed {ratio:.1f} times, {plan.method}, read {plan.passes:g} times")
            report(name, alternating(args.rounds, jobs), plan.passes)


if __name__ == "__main__":
    main()
