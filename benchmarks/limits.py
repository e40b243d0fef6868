"""How close fits and transforms come to the machine: their time beside bare reading and bare products.

The floor is what no method of its kind can do without: reading every byte, as often as the plan reads it (`preadv`
into one buffer), or multiplying every row (BLAS, over float32 rows that are in memory already), whichever takes longer;
where an array is written, writing it by Zarr alone, too. For whole numbers the floor is that of floating point, so
integer units can be faster than it; for 16 bits it is of float64 rows, as float32 products are not exact. The parts
share the same cores, so our time over their sum is shown as well. Each is timed in a fresh process of its own, in
alternating rounds, on a file that is in the system's cache:

    python benchmarks/limits.py                      # digits: 200000 x 28 x 28 uint8, exact covariance
    python benchmarks/limits.py --case all           # every case; ends with 1 if one misses what is promised
    python benchmarks/limits.py --phases             # and where the time of a fit by covariance goes, part by part

"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr
from fresh import alternating, folder, in_fresh_process, machine, measured, mib, print_table, spread, warm
from scipy.linalg import blas
from synthetic import Draw, clouds, counts, npy_of, photographs, strokes, textures

PIECES = (1024, 2048)  # rows multiplied at a time
TILE = 4096  # features multiplied at a time, of rows that are fewer than features
IN_MEMORY = 2**30  # bytes of rows the bare product walks through, over and over if need be: beyond any cache
OURS, WATCHED = "ours", "ours, watched"
BLOCK = 8 * 2**20  # bytes read at a time


class Case(NamedTuple):
    """Pictures, what is done with them, and the most it may take of the floor.

    `with_units` gives other limits for some kinds of integer units; None runs without any.
    """

    draw: Draw
    samples: int
    side: int
    most: float
    memory: str | None = None
    job: str = "fit"
    with_units: tuple[tuple[str, float], ...] | None = ()


CASES = {
    "digits": Case(strokes, 200_000, 28, 1.15, with_units=(("vnni", 0.9), ("amx", 0.6))),
    "digits_in_float": Case(strokes, 200_000, 28, 1.15, with_units=None),
    "counts": Case(counts, 100_000, 32, 1.25, with_units=(("amx", 0.67),)),
    "clouds": Case(clouds, 200_000, 32, 1.25),
    "textures": Case(textures, 1000, 512, 1.35, "512 MiB"),
    "photographs_dual": Case(photographs, 1000, 512, 1.35, "512 MiB", with_units=(("vnni", 0.8), ("amx", 0.8))),
    "photographs": Case(photographs, 30_000, 128, 1.25, "1 GiB"),
    "transform": Case(strokes, 200_000, 28, 1.3, job="transform"),
    "reconstruct": Case(strokes, 200_000, 28, 1.3, job="reconstruct"),
}


class Took(NamedTuple):
    """What one of our jobs took."""

    seconds: float
    peak: int | None
    passes: float
    phases: dict[str, float]
    calls: dict[str, int]


# -- floors


def bare_reading(path: Path, passes: float) -> float:
    """Seconds to read a file in blocks into one buffer whose pages are there already, so many times."""
    buffer = np.ones(BLOCK, np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    began, position = time.perf_counter(), 0
    while count := os.preadv(descriptor, [buffer.data], position):
        position += count
    seconds = time.perf_counter() - began
    os.close(descriptor)
    return passes * seconds


def floats_of(stored: npt.NDArray[Any]) -> np.dtype[Any]:
    """The dtype of rows that are multiplied: products of 16 bits are exact in double precision only."""
    return np.dtype(np.float64 if stored.dtype.itemsize == 2 else np.float32)


def held_rows(path: Path, floats: npt.DTypeLike = np.float32) -> tuple[npt.NDArray[Any], int]:
    """The first rows of a file, centred, as floats, and how many there are in all."""
    stored = np.load(path, mmap_mode="r")
    n, p = len(stored), int(np.prod(stored.shape[1:]))
    held = stored[: min(n, IN_MEMORY // (np.dtype(floats).itemsize * p))].reshape(-1, p).astype(floats)
    held -= np.rint(held[:1024].mean(axis=0))
    return held, n


def in_pieces(
    path: Path, rows: int, multiply: Callable[[npt.NDArray[Any]], Any], floats: npt.DTypeLike = np.float32
) -> float:
    """Seconds to multiply all rows of a file in pieces of so many."""
    held, n = held_rows(path, floats)
    multiply(held[:rows])  # BLAS starts its threads
    began = time.perf_counter()
    for start in range(0, n, rows):
        first = start % max(1, len(held) - rows)
        multiply(held[first : first + min(rows, n - start)])
    return time.perf_counter() - began


def bare_scatter(path: Path, rows: int) -> float:
    """Seconds of `ssyrk` over all rows, or of `dsyrk` for samples of 16 bits."""
    stored = np.load(path, mmap_mode="r")
    p, dtype = int(np.prod(stored.shape[1:])), floats_of(stored)
    product, multiply = np.zeros((p, p), dtype, order="F"), blas.ssyrk if dtype == np.float32 else blas.dsyrk
    return in_pieces(path, rows, lambda piece: multiply(1.0, piece.T, beta=0.0, c=product, overwrite_c=1), dtype)


def bare_vectors(path: Path, rows: int, width: int, passes: float, both: bool = True) -> float:
    """Seconds to multiply all rows with so many vectors, and what comes of it with the rows again, so many times."""
    p = int(np.prod(np.load(path, mmap_mode="r").shape[1:]))
    vectors = np.ones((p, width), np.float32, order="F")

    def multiply(piece: npt.NDArray[np.float32]) -> None:
        products = blas.sgemm(1.0, piece.T, vectors, trans_a=1)
        if both:
            blas.sgemm(1.0, piece.T, products)

    return passes * in_pieces(path, rows, multiply)


def bare_images(path: Path, rows: int, k: int) -> float:
    """Seconds to find scores of all rows, and images of the scores."""
    p = int(np.prod(np.load(path, mmap_mode="r").shape[1:]))
    vectors = np.ones((p, k), np.float32, order="F")
    return in_pieces(path, rows, lambda piece: vectors @ (vectors.T @ piece.T))


def bare_gram(path: Path, k: int) -> float:
    """Seconds for the products of all pairs of rows, and for the projection that makes k components of them."""
    x = held_rows(path)[0]
    vectors = np.ones((k, len(x)), np.float32)
    np.dot(x[:, :TILE], x[:, :TILE].T)
    began = time.perf_counter()
    np.dot(x, x.T)  # of a matrix with its own transpose: `ssyrk`
    np.dot(vectors, x)
    return time.perf_counter() - began


def bare_writing(output: Path) -> float:
    """Seconds in which Zarr alone writes an output's largest array again, to the same chunks and codecs."""
    stored = max((array for _, array in zarr.open_group(output, mode="r").arrays()), key=lambda array: array.size)
    values, path = stored[...], output.with_suffix(".bare.zarr")
    began = time.perf_counter()
    zarr.from_array(path, data=stored, write_data=False, overwrite=True)[...] = values
    return time.perf_counter() - began


# -- ours


def our_job(case: Case, path: Path, k: int, phases: bool) -> Took:
    """Do a case's job; imports, and what is done once in a process, are done before on a tiny array."""
    if case.with_units is None:
        sys.modules["onnxruntime"] = None  # type: ignore[assignment]  # as where it is not installed
    import streampca
    from streampca import machine as hardware
    from streampca.accumulators.integer_products import integer_products
    from streampca.events import PassStarted

    integer_products(hardware.integer_units(), int(np.prod(np.load(path, mmap_mode="r").shape[1:])))
    output = path.with_suffix(f".{case.job}.zarr")
    tiny = streampca.fit(next(strokes(512, 8)), n_components=4)
    if case.job != "fit":
        model = streampca.load(model_of(path))
        tiny.transform(next(strokes(512, 8)))
        write = model.write_scores if case.job == "transform" else model.write_reconstruction
        _, seconds, peak = measured(partial(write, path, output, overwrite=True, memory=case.memory))
        return Took(seconds, peak, 1, {}, {})
    clock, passes = Clock(), Counter[type]()
    if phases:
        watch_parts(clock)
    told = partial(streampca.fit, path, n_components=k, memory=case.memory, listener=lambda e: passes.update([type(e)]))
    _, seconds, peak = measured(told)
    clock.seconds["the rest"] = seconds - sum(clock.seconds.values())
    return Took(seconds, peak, passes[PassStarted], dict(clock.seconds), dict(clock.calls))


def model_of(path: Path) -> Path:
    return path.with_suffix(".model.zarr")


class Clock:
    """Seconds by name, each without the seconds of the watched parts it calls."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._inner = [0.0]

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Replace a function or method by one that is timed under a name."""
        original: Callable[..., Any] = getattr(owner, attribute)

        def timed(*arguments: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            began = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                spent = time.perf_counter() - began
                self.seconds[name] += spent - self._inner.pop()
                self._inner[-1] += spent
                self.calls[name] += 1

        setattr(owner, attribute, timed)


def watch_parts(clock: Clock) -> None:
    """Time the parts of a fit while it runs: apart from each other they have warm caches and idle threads.

    In one thread without reading ahead, so that the parts follow one another, and in floating point.
    """
    from streampca.accumulators import products, scatter
    from streampca.accumulators.probes import Probes
    from streampca.fitting.methods import covariance
    from streampca.fitting.methods.tasks import SamplesTask
    from streampca.planning import covariance as planning

    usual = planning.CovarianceSizes.concurrent

    def in_one_thread(sizes: Any, *_: Any) -> Any:
        return usual(replace(sizes, problem=replace(sizes.problem, fills=False)))

    planning.THREAD_FEATURES = 0
    setattr(planning.CovarianceSizes, "concurrent", in_one_thread)  # noqa: B010 - as mypy sees it, a method
    clock.watch(SamplesTask, "fetch", "reading")
    clock.watch(scatter.Scatter, "_settle", "placing the centre")
    clock.watch(scatter.Scatter, "_centred", "centring, to float32")
    clock.watch(products.BlasProducts, "symmetric", "product (ssyrk)")
    clock.watch(products.MemoryBlock, "sum", "sums of rows")
    clock.watch(products.MemoryBlock, "combined", "sums of rows")
    clock.watch(scatter.Scatter, "_absorb_piece", "adding p x p, and checks")
    clock.watch(Probes, "update", "probes")
    clock.watch(covariance, "leading_pairs", "eigenvectors")
    clock.watch(covariance, "residual_bounds", "error bounds")


def most_of(case: Case) -> float:
    """The most a case may take of its floor on this machine."""
    from streampca.machine import integer_units

    return dict(case.with_units or ()).get(integer_units(), case.most)


def report(name: str, times: dict[str, list[float]], ours: list[Took], most: float) -> bool:
    """Print the parts of a case, and our time to the floor, by medians and by least times; whether it is kept."""
    print_table(("seconds", "median", "least", "most"), [[part, *spread(values)] for part, values in times.items()])
    parts = defaultdict(list)
    for part, values in times.items():
        parts[part.partition(",")[0]].append(statistics.median(values))
    (taken,) = parts.pop(OURS)
    floors = [min(seconds) for seconds in parts.values()]
    ratio = taken / max(floors)
    peak = mib(max((took.peak for took in ours if took.peak is not None), default=None))
    print(f"{name}: {ratio:.2f} times the largest part ({most} at most), {taken / sum(floors):.2f} times all parts")
    print(f"peak {peak} MiB\n")
    return ratio <= most


def report_phases(watched: list[Took]) -> None:
    """Print where the time of the fastest watched fit went, the one least disturbed by others on the machine."""
    fastest = min(watched, key=lambda took: took.seconds)
    rows = [
        (name, f"{spent:.3f}", f"{spent / fastest.seconds:.1%}", str(fastest.calls.get(name, "")))
        for name, spent in sorted(fastest.phases.items(), key=lambda item: -item[1])
    ]
    print_table(("part of our time", "seconds", "share", "calls"), [*rows, ("all", f"{fastest.seconds:.3f}", "", "")])


def jobs_of(case: Case, path: Path, k: int) -> dict[str, Callable[[], Any]]:
    """The floors of a case: the best of each kind, which the comma ends, counts."""
    import streampca

    plan = streampca.plan(path, n_components=k, memory=case.memory)
    reading = f"reading, {plan.passes:g} times"
    jobs: dict[str, Callable[[], Any]] = {}
    if case.job != "fit":
        model_path, output = model_of(path), path.with_suffix(f".{case.job}.zarr")
        if not model_path.exists():
            streampca.fit(path, n_components=k, output=model_path)
        fresh = partial(in_fresh_process, our_job, case, path, k, False)
        fresh()  # leaves the output that is written again
        jobs["reading"] = partial(in_fresh_process, bare_reading, path, 1)
        jobs["writing by Zarr"] = partial(in_fresh_process, bare_writing, output)
        for rows in PIECES:
            products = (
                partial(bare_vectors, path, rows, k, 1, False)
                if case.job == "transform"
                else partial(bare_images, path, rows, k)
            )
            jobs[f"products, {rows} rows"] = partial(in_fresh_process, products)
        return jobs
    jobs[reading] = partial(in_fresh_process, bare_reading, path, plan.passes)
    if plan.method == "dual":
        jobs["products, of all pairs and with them"] = partial(in_fresh_process, bare_gram, path, k)
    for rows in () if plan.method == "dual" else PIECES:
        products = (
            partial(bare_scatter, path, rows)
            if plan.method == "covariance"
            else partial(bare_vectors, path, rows, plan.width, plan.passes)
        )
        jobs[f"products, {rows} rows"] = partial(in_fresh_process, products)
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[*CASES, "all"], default="digits")
    parser.add_argument("--samples", type=int, help="instead of the case's")
    parser.add_argument("--side", type=int, help="pixels along each side of a sample, instead of the case's")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--memory", help="our budget, such as 64MiB; instead of the case's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    parser.add_argument("--phases", action="store_true", help="print where the time of a fit by covariance goes")
    args = parser.parse_args()
    late = []
    print(machine())
    for name in CASES if args.case == "all" else [args.case]:
        case = CASES[name]
        case = case._replace(
            samples=args.samples or case.samples, side=args.side or case.side, memory=args.memory or case.memory
        )
        with folder(args.directory) as directory:
            path = npy_of(directory, case.draw, case.samples, case.side)
            warm(path)
            jobs = jobs_of(case, path, args.components)
            jobs[OURS] = partial(in_fresh_process, our_job, case, path, args.components, False)
            if args.phases:
                jobs[WATCHED] = partial(in_fresh_process, our_job, case, path, args.components, True)
            dtype = np.load(path, mmap_mode="r").dtype
            print(f"{name}: {case.job} of {case.samples} x {case.side} x {case.side} {dtype}, k = {args.components}")
            results = alternating(args.rounds, jobs)
        watched, ours = results.pop(WATCHED, []), results[OURS]
        times = {**results, OURS: [took.seconds for took in ours]}
        if not report(name, times, ours, most_of(case)):
            late.append(name)
        if watched:
            report_phases(watched)
    if late and args.case == "all":
        sys.exit(f"more than promised: {', '.join(late)}")


if __name__ == "__main__":
    main()
