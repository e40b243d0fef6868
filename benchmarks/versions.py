"""Two checkouts of this package side by side: time and peak memory of fits by each method, and of transforms.

    python benchmarks/versions.py ../streampca-before ../streampca-after

Each command is a process of its own, started in turns; its time and its peak are those of the whole process, importing
included. Shown is the median, over the rounds, of the ratio of the second checkout to the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fresh import alternating, folder, machine, mib, print_table, warm
from synthetic import npy_of, strokes, textures

FITS = {
    "covariance": (strokes, 200000, 28),
    "dual": (textures, 1000, 512),
    "randomized": (strokes, 30000, 128),
}


class Took(NamedTuple):
    """Seconds and most bytes of a process."""

    seconds: float
    peak: int


def took(checkout: Path, words: list[str]) -> Took:
    """Run a command by the package of a checkout, and wait for it."""
    # -P: without it the package in the working folder comes before that of the checkout.
    command = [sys.executable, "-P", "-m", "streampca", *words, "--overwrite", "-q"]
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(checkout.resolve())}
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{checkout}: {' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    return Took(time.perf_counter() - began, usage.ru_maxrss * 1024)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("before", type=Path, help="folder that holds streampca/")
    options.add_argument("after", type=Path)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--scale", type=float, default=1.0, help="of the numbers of samples")
    options.add_argument("--only", choices=FITS, help="one method")
    options.add_argument("--directory", type=Path, help="where data are kept for the next run")
    given = options.parse_args()
    print(machine())
    rows = []
    with folder(given.directory) as directory:
        for method, (draw, samples, side) in FITS.items():
            if given.only not in (None, method):
                continue
            path = npy_of(directory, draw, int(samples * given.scale), side)
            warm(path)
            model, scores = str(directory / f"{method}.zarr"), str(directory / f"{method}-scores.npy")
            fit = ["fit", str(path), "-k", "20", "--method", method, "-o", model]
            for name, words in {"fit": fit, "transform": ["transform", model, str(path), "-o", scores]}.items():
                found = alternating(
                    given.rounds,
                    {"before": partial(took, given.before, words), "after": partial(took, given.after, words)},
                )
                seconds, peaks = ([[each[i] for each in results] for results in found.values()] for i in (0, 1))
                ratios = [after / before for before, after in zip(*seconds, strict=True)]
                cells = [f"{statistics.median(each):.2f}" for each in seconds]
                ratio = [f"{value:.3f}" for value in (statistics.median(ratios), min(ratios), max(ratios))]
                rows.append([f"{method} {name}", *cells, *ratio, *(mib(statistics.median(each)) for each in peaks)])
    print_table(["", "before s", "after s", "ratio", "least", "most", "before MiB", "after MiB"], rows)


if __name__ == "__main__":
    main()
