"""How close a fit comes to the machine: its time beside bare reading and bare products, and where the rest goes.

The floor is what no exact method can do without: reading every byte (`preadv` into one buffer) and multiplying every
row (`ssyrk` over float32 rows that are in memory already, in pieces of 1024 and of 2048 rows). Each is timed in a
fresh process of its own, in alternating rounds, on a file that is in the system's cache:

    python benchmarks/limits.py
    python benchmarks/limits.py --phases     # and where our time goes, part by part
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fresh import alternating, folder, in_fresh_process, machine, measured, mib, print_table, spread, warm
from scipy.linalg import blas
from synthetic import npy_of, strokes

PIECES = (1024, 2048)  # rows multiplied at a time
IN_MEMORY = 2**30  # bytes of float32 rows the bare product walks through, over and over if need be: beyond any cache


class Fit(NamedTuple):
    """What one fit took."""

    seconds: float
    peak: int | None
    piece_rows: float
    phases: dict[str, float]
    calls: dict[str, int]


def bare_reading(path: Path, block_bytes: int) -> float:
    """Seconds to read a file in blocks into one buffer whose pages are there already."""
    buffer = np.ones(block_bytes, np.uint8)
    descriptor = os.open(path, os.O_RDONLY)
    began, position = time.perf_counter(), 0
    while count := os.preadv(descriptor, [buffer.data], position):
        position += count
    seconds = time.perf_counter() - began
    os.close(descriptor)
    return seconds


def bare_product(path: Path, rows: int) -> float:
    """Seconds to multiply all rows, in pieces, by the routine that a fit uses; conversion is done before."""
    stored = np.load(path, mmap_mode="r")
    n, p = len(stored), int(np.prod(stored.shape[1:]))
    held = stored[: min(n, IN_MEMORY // (4 * p))].reshape(-1, p).astype(np.float32)
    held -= np.rint(held[:1024].mean(axis=0))
    product = np.zeros((p, p), np.float32, order="F")

    def multiply(start: int) -> None:
        first = start % max(1, len(held) - rows)
        piece = held[first : first + min(rows, n - start)]
        blas.ssyrk(1.0, piece.T, beta=0.0, c=product, overwrite_c=1)

    multiply(0)  # BLAS starts its threads
    began = time.perf_counter()
    for start in range(0, n, rows):
        multiply(start)
    return time.perf_counter() - began


def our_fit(path: Path, components: int, options: dict[str, Any], phases: bool) -> Fit:
    """Fit the file; imports, and what is done once in a process, are done before on a tiny array."""
    import streampca

    streampca.fit(next(strokes(512, 8)), n_components=4)
    clock = Clock()
    if phases:
        watch_parts(clock)
    model, seconds, peak = measured(partial(streampca.fit, path, n_components=components, **options))
    pieces = int(model.statistic.state()["probe_pieces"])
    clock.seconds["the rest"] = seconds - sum(clock.seconds.values())
    return Fit(seconds, peak, model.n_samples / pieces, dict(clock.seconds), dict(clock.calls))


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
    from streampca.accumulators import scatter
    from streampca.accumulators.probes import Probes
    from streampca.fitting.methods import covariance
    from streampca.fitting.methods.samples_task import SamplesTask
    from streampca.planning import covariance as planning

    planned = planning.covariance_plan

    def in_one_thread(problem: Any, *words: Any, **_: Any) -> Any:
        return replace(planned(replace(problem, fills=False), *words), ahead=0)

    planning.THREAD_FEATURES, planning.covariance_plan = 0, in_one_thread
    clock.watch(SamplesTask, "fetch", "reading")
    clock.watch(scatter.Scatter, "_settle", "placing the centre")
    clock.watch(scatter.Scatter, "_centred", "centring, to float32")
    clock.watch(scatter, "symmetric_product", "product (ssyrk)")
    clock.watch(scatter.Scatter, "_sums", "sums of rows")
    clock.watch(scatter.Scatter, "_absorb_piece", "adding p x p, and checks")
    clock.watch(Probes, "update", "probes")
    clock.watch(covariance, "leading_pairs", "eigenvectors")
    clock.watch(covariance, "residual_bounds", "error bounds")


def report(times: dict[str, list[float]], fits: list[Fit]) -> None:
    """Print the table of times and what ours are to the floors."""
    print_table(("seconds", "median", "least", "most"), [[name, *spread(values)] for name, values in times.items()])
    print()
    print_table(("streampca.fit to", "medians", "least"), ratios(times))
    peaks = [fit.peak for fit in fits if fit.peak is not None]
    print(f"our pieces had {fits[0].piece_rows:.0f} rows on average; peak {mib(max(peaks, default=None))} MiB")


def ratios(times: dict[str, list[float]]) -> list[tuple[str, str, str]]:
    """Our time to each floor, by medians and, less disturbed by others on the machine, by least times."""
    (read_median, *products, ours), (read_least, *least_products, our_least) = (
        [pick(values) for values in times.values()] for pick in (statistics.median, min)
    )
    rows = [
        (f"ssyrk of {rows} rows", ours / one, our_least / least)
        for rows, one, least in zip(PIECES, products, least_products, strict=True)
    ]
    floors = max(read_median, min(products)), max(read_least, min(least_products))
    rows.append(("max(reading, ssyrk)", ours / floors[0], our_least / floors[1]))
    return [(name, f"{one:.2f}", f"{least:.2f}") for name, one, least in rows]


def report_phases(fits: list[Fit]) -> None:
    """Print where the time of the fastest watched fit went, the one least disturbed by others on the machine."""
    fastest = min(fits, key=lambda fit: fit.seconds)
    rows = [
        (name, f"{spent:.3f}", f"{spent / fastest.seconds:.1%}", str(fastest.calls.get(name, "")))
        for name, spent in sorted(fastest.phases.items(), key=lambda item: -item[1])
    ]
    print()
    print_table(("part of our time", "seconds", "share", "calls"), [*rows, ("all", f"{fastest.seconds:.3f}", "", "")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--side", type=int, default=28, help="pixels along each side of a sample")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--memory", help="our budget, such as 64MiB; by default half of what the machine allows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    parser.add_argument("--phases", action="store_true", help="print where our time goes")
    args = parser.parse_args()

    import streampca

    options = {"memory": args.memory}
    with folder(args.directory) as directory:
        path = npy_of(directory, strokes, args.samples, args.side)
        warm(path)
        plan = streampca.plan(path, n_components=args.components, **options)
        block_bytes = plan.block_rows * args.side**2
        fit = partial(in_fresh_process, our_fit, path, args.components, options)
        jobs: dict[str, Callable[[], Any]] = {
            f"reading {plan.block_rows} samples a block": partial(in_fresh_process, bare_reading, path, block_bytes)
        }
        for rows in PIECES:
            jobs[f"ssyrk of {rows} rows"] = partial(in_fresh_process, bare_product, path, rows)
        jobs["streampca.fit"] = partial(fit, False)
        if args.phases:
            jobs["streampca.fit, watched"] = partial(fit, True)
        print(f"{args.samples} x {args.side} x {args.side} uint8, k = {args.components}; {machine()}")
        results = alternating(args.rounds, jobs)
    watched = results.pop("streampca.fit, watched", [])
    fits = results["streampca.fit"]
    report({**results, "streampca.fit": [one.seconds for one in fits]}, fits)
    if watched:
        report_phases(watched)


if __name__ == "__main__":
    main()
