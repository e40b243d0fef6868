"""Fits beside other busy processes, twice as many as there are cores, to their fair share of the machine.

A fair share is (busy processes + threads of the fit) / cores times the time of a fit alone; threads that spin while
they wait take more. Rounds alone and beside others alternate. Processor time is shown too, which only spinning adds to.
The number of threads is that of the plan, or of cores where the plan has one thread and BLAS its own.

One fit has so little memory that it multiplies 32 rows at a time.

    python benchmarks/busy.py
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fresh import alternating, folder, in_fresh_process, machine, print_table, warm
from synthetic import npy_of, strokes, textures

import streampca
from streampca.machine import cores

FITS = {  # by method, memory: what it draws, samples and side
    ("covariance", "1 GiB"): (strokes, 200_000, 28),
    ("dual", "1 GiB"): (textures, 1000, 512),
    ("randomized", "1 GiB"): (strokes, 30_000, 64),
    ("randomized", "44 MiB"): (strokes, 6_000, 64),
}
MOST = 1.3  # times the fair share
TINY = 16  # samples of the fit before the clock starts, which imports


class Took(NamedTuple):
    """Seconds by the clock and of the processor, and threads that the fit may have kept busy."""

    seconds: float
    processor: float
    threads: int


def fitted(path: Path, method: str, memory: str, k: int) -> Took:
    """Fit in this process, after everything is imported."""
    pca = streampca.PCA(k, method=method)
    threads = streampca.plan(path, pca, memory=memory).threads
    streampca.fit(path, streampca.PCA(2, method=method), memory=memory, samples=slice(0, TINY))
    began, used = time.perf_counter(), time.process_time()
    streampca.fit(path, pca, memory=memory)
    return Took(time.perf_counter() - began, time.process_time() - used, threads if threads > 1 else cores())


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def beside(count: int, path: Path, method: str, memory: str, k: int) -> Took:
    with busy(count):
        return in_fresh_process(fitted, path, method, memory, k)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of samples")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--busy", type=int, help="processes beside; default: twice the cores")
    parser.add_argument("--only", choices=sorted({method for method, _ in FITS}), help="one method")
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    args = parser.parse_args()
    count = 2 * cores() if args.busy is None else args.busy
    print(f"{count} busy processes; {machine()}")
    rows = []
    with folder(args.directory) as directory:
        for (method, memory), (draw, samples, side) in FITS.items():
            if args.only in (None, method):
                path = npy_of(directory, draw, int(samples * args.scale), side)
                warm(path)
                job = partial(beside, path=path, method=method, memory=memory, k=args.components)
                found = alternating(args.rounds, {"alone": partial(job, 0), "beside": partial(job, count)})
                alone, others = (
                    [statistics.median(each) for each in zip(*found[name], strict=True)] for name in ("alone", "beside")
                )
                fair = max(1.0, (count + alone[2]) / cores()) * alone[0]
                ratio = others[0] / fair
                times = [alone[0], others[0], fair, ratio, alone[1], others[1]]
                rows.append([f"{method}, {memory}", f"{alone[2]:.0f}", *(f"{value:.2f}" for value in times)])
    headings = ("", "threads", "alone s", "beside s", "fair s", "to fair", "cpu alone s", "cpu beside s")
    print_table(headings, rows)
    late = [row[0] for row in rows if float(row[5]) > MOST]
    if late:
        sys.exit(f"more than {MOST} times the fair share: {', '.join(late)}")


if __name__ == "__main__":
    main()
