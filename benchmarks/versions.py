"""Two checkouts of this package side by side: time and peak memory of fits, large and small, and of transforms.

    python benchmarks/versions.py ../streampca-before ../streampca-after

Each command is a process of its own, started in turns; its times and its peak are those of the whole process, importing
included. Shown are medians over the rounds, of ratios those of the second checkout to the first.
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

# Collections, and the options of the fit; the smallest are as large as iris and as digits of scikit-learn.
FITS = {
    "covariance": (strokes, 200000, 28, ["-k", "20", "--method", "covariance"]),
    "dual": (textures, 1000, 512, ["-k", "20", "--method", "dual"]),
    "randomized": (strokes, 30000, 128, ["-k", "20", "--method", "randomized"]),
    "isomap": (strokes, 3000, 28, ["--kind", "isomap", "-k", "2", "--pca-components", "50"]),
    "digits": (strokes, 1797, 8, ["-k", "20"]),
    "iris": (strokes, 150, 2, ["-k", "2"]),
}


class Took(NamedTuple):
    """Seconds, seconds of processors, and most bytes of a process."""

    seconds: float
    cpu: float
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
    return Took(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("before", type=Path, help="folder that holds streampca/")
    options.add_argument("after", type=Path)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--scale", type=float, default=1.0, help="of the numbers of samples")
    options.add_argument("--only", choices=FITS, help="one case")
    options.add_argument("--directory", type=Path, help="where data are kept for the next run")
    given = options.parse_args()
    print(machine())
    rows = []
    with folder(given.directory) as directory:
        for case, (draw, samples, side, asked) in FITS.items():
            if given.only not in (None, case):
                continue
            path = npy_of(directory, draw, max(100, int(samples * given.scale)), side)
            warm(path)
            model, scores = str(directory / f"{case}.zarr"), str(directory / f"{case}-scores.npy")
            fit = ["fit", str(path), *asked, "-o", model]
            for name, words in {"fit": fit, "transform": ["transform", model, str(path), "-o", scores]}.items():
                before, after = alternating(
                    given.rounds,
                    {"before": partial(took, given.before, words), "after": partial(took, given.after, words)},
                ).values()
                rows.append([f"{case} {name}", *_compared(before, after)])
    print_table(
        ["", "before CPU s", "after CPU s", "ratio", "least", "most", "ratio of s", "before MiB", "after MiB"], rows
    )


def _compared(before: list[Took], after: list[Took]) -> list[str]:
    """Return medians of processor time and its ratio, the median ratio of seconds, and peaks."""
    cpu, seconds = (
        [getattr(b, name) / getattr(a, name) for a, b in zip(before, after, strict=True)] for name in ("cpu", "seconds")
    )
    ratios = [statistics.median(cpu), min(cpu), max(cpu), statistics.median(seconds)]
    return [
        *(f"{statistics.median(took.cpu for took in side):.2f}" for side in (before, after)),
        *(f"{ratio:.3f}" for ratio in ratios),
        *(mib(statistics.median(took.peak for took in side)) for side in (before, after)),
    ]


if __name__ == "__main__":
    main()
