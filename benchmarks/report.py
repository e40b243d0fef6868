"""Whether a report of a collection larger than its budget stays within it, and under twice the time of one pass.

A collection of 20 times the budget is fitted, and reported in fresh processes: by the samples that are examined unless
others are asked for, and by all of them. A peak is what is held above what the process held when everything had been
imported and fonts had been found. The pass is that of the fit. Ends with status 1 if a peak exceeds the budget, or a
report takes longer than two passes:

    python benchmarks/report.py                                    # 2.7 GB under 128 MiB
    python benchmarks/report.py --memory 64MiB --side 32
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fresh import folder, in_fresh_process, machine, measured, mib, print_table
from synthetic import npy_of, strokes

TIMES = 20  # the collection to its budget
PASSES = 2.0  # that a report may take the time of


class Made(NamedTuple):
    """What making a report took."""

    seconds: float
    peak: int | None


def fit(path: Path, model: Path, k: int, memory: str) -> float:
    """Fit a collection and write the model; return the seconds of the pass."""
    import streampca
    from streampca.events import PassFinished

    seconds: list[float] = []

    def listen(event: object) -> None:
        if isinstance(event, PassFinished):
            seconds.append(event.seconds)

    streampca.fit(path, n_components=k, memory=memory, output=model, overwrite=True, listener=listen)
    return max(seconds)


def report(model: Path, memory: str, **options: int | None) -> Made:
    """Write a report of the collection that a model was fitted on."""
    warm_up()
    from streampca import write_report

    with tempfile.TemporaryDirectory() as place:
        work = partial(write_report, model, Path(place) / "report.html", memory=memory, **options)
        return Made(*measured(work)[1:])


def warm_up() -> None:
    """Import what a report takes, and find the fonts."""
    import numpy as np
    from matplotlib.figure import Figure

    import_module("streampca.plot.report")
    figure = Figure(layout="constrained")
    ax = figure.add_subplot(title="a title")
    figure.colorbar(ax.hexbin(*np.eye(2, 9), bins="log"), ax=ax)
    figure.savefig(io.BytesIO(), format="png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="128MiB", help="the budget")
    parser.add_argument("--side", type=int, default=48, help="pixels along each side of a sample")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    args = parser.parse_args()

    from streampca.units import parse_bytes

    budget = parse_bytes(args.memory)
    n = TIMES * budget // args.side**2
    with folder(args.directory) as place:
        path, model = npy_of(place, strokes, n, args.side), place / "model.zarr"
        seconds = in_fresh_process(fit, path, model, args.components, args.memory)
        made = {
            "by default": in_fresh_process(report, model, args.memory),
            "all samples": in_fresh_process(partial(report, examine=None), model, args.memory),
        }
    print(f"{n} x {args.side} x {args.side}, {TIMES} times {args.memory}; one pass {seconds:.1f} s")
    rows = [
        (name, f"{m.seconds:.1f}", f"{m.seconds / seconds:.2f}", mib(m.peak), mib(budget)) for name, m in made.items()
    ]
    print_table(("report", "seconds", "to one pass", "peak, MiB", "budget, MiB"), rows)
    print(machine())
    if any(m.peak is None for m in made.values()):
        sys.exit("peaks of memory cannot be measured on this system")
    over = [name for name, m in made.items() if (m.peak or 0) > budget or m.seconds > PASSES * seconds]
    sys.exit(f"over the budget or two passes: {', '.join(over)}" if over else 0)


if __name__ == "__main__":
    main()
