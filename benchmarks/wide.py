"""Ways to fit pictures with many more pixels than there are pictures, beside one another.

1000 float32 pictures of 512 x 512 (1 GB) are fitted within 512 MiB. `limits.py --case textures` has the floor of the
dual method, and `peers.py --problem textures` its peers:

    python benchmarks/wide.py schedules             # of the dual method, by how pictures are stored
    python benchmarks/wide.py sides                 # of the randomized method: along features, and along samples
    python benchmarks/wide.py budgets               # 3 GB under 64 MiB to 2 GiB, peaks and estimates; 1 if one exceeds
"""

from __future__ import annotations

import argparse
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fresh import alternating, folder, in_fresh_process, machine, measured, mib, print_table, spread, tell
from synthetic import npy_of, textures

LAYOUTS = {"npy": "npy", "zarr": "Zarr, a chunk a picture", "tiff": "TIFF, a file a picture"}
SCHEDULES = ("sweep", "scratch")
SIDES = ("along features", "along samples")
BUDGETS = ("64MiB", "128MiB", "256MiB", "512MiB", "1GiB", "2GiB")


class Fit(NamedTuple):
    """What one fit took and found."""

    seconds: float
    peak: int | None
    estimate: int
    variances: list[float]
    predicted: float = 0.0
    bound: float = 0.0


def our_fit(path: Path, k: int, memory: str, output: Path | None = None) -> Fit:
    """Fit a collection."""
    import streampca
    from streampca.events import Planned

    streampca.fit(np.random.default_rng(0).random((20, 30, 30), dtype=np.float32), streampca.PCA(3, method="dual"))
    plans: list[Any] = []

    def listen(event: object) -> None:
        if isinstance(event, Planned):
            plans.append(event.plan)

    options = {"n_components": k, "memory": memory, "output": output, "overwrite": True, "listener": listen}
    predicted = streampca.plan(path, n_components=k, memory=memory, output=output).seconds
    collection = streampca.open_collection(path)
    model, seconds, peak = measured(partial(streampca.fit, collection, **options))
    return Fit(seconds, peak, plans[0].memory_estimate.total, model.explained_variance.tolist(), predicted)


# -- schedules


def stored(directory: Path, layout: str, n: int, side: int) -> Path:
    """The pictures in a layout."""
    if layout == "npy":
        return npy_of(directory, textures, n, side)
    path = directory / f"textures-{n}x{side}x{side}.{layout}"
    if not path.exists():
        part = path.with_suffix(".partial")
        shutil.rmtree(part, ignore_errors=True)
        pictures = (picture[0] for picture in textures(n, side))
        as_tiff(part, pictures) if layout == "tiff" else as_zarr(part, pictures, n, side)
        part.rename(path)
    return path


def as_tiff(path: Path, pictures: Any) -> None:
    import tifffile

    path.mkdir()
    for number, picture in enumerate(pictures):
        tifffile.imwrite(path / f"{number:05d}.tif", picture)


def as_zarr(path: Path, pictures: Any, n: int, side: int) -> None:
    import zarr

    array = zarr.create_array(path, shape=(n, side, side), chunks=(1, side, side), dtype="float32")
    for number, picture in enumerate(pictures):
        array[number] = picture


def by_way(path: Path, way: str, k: int, memory: str) -> Fit | None:
    """Fit by one schedule of the dual method, or along one side, whatever the plan would choose; None if none fits."""
    import streampca
    from streampca.execution import LocalExecutor
    from streampca.fitting.methods import METHODS, Job
    from streampca.fitting.open_fit import prepare
    from streampca.kinds.pca import PCADescription
    from streampca.planning import dual, randomized
    from streampca.planning.candidate_sizes import search
    from streampca.planning.request import Request
    from streampca.preprocessing.sizes_for_planning import problem_of
    from streampca.units import parse_bytes

    collection, budget = prepare(streampca.open_collection(path), None), parse_bytes(memory)
    method, scratch = "randomized" if way in SIDES else "dual", str(path.parent / "copy.scratch")
    model, problem = PCADescription(k, method=method), problem_of(collection)
    request = Request(model, memory=budget, scratch=str(path.parent))
    if way in SIDES:
        groups = randomized.sides(problem, request)[way == "along samples"]
    else:
        groups = next(each.groups for each in dual.schedules(problem, request) if each.name == f"dual ({way})")
    sizes = search(groups, budget)
    if sizes is None:
        return None
    plan = sizes.plan()
    job = Job(collection, plan, LocalExecutor(), scratch=scratch)
    found, seconds, peak = measured(partial(METHODS[method], job))
    variances, bound = found.explained_variance.tolist(), float(found.residual_bound.max())
    return Fit(seconds, peak, plan.memory_estimate.total, variances, plan.seconds, bound)


def compare_ways(
    directory: Path, n: int, side: int, k: int, memory: str, rounds: int, ways: tuple[str, ...], layouts: list[str]
) -> None:
    """Print measured and predicted times of every way on some layouts."""
    for layout in layouts:
        path = stored(directory, layout, n, side)
        jobs = {name: partial(in_fresh_process, by_way, path, name, k, memory) for name in ways}
        rows = []
        for name, fits in alternating(rounds, jobs).items():
            done = [fit for fit in fits if fit is not None]
            if not done:
                rows.append([name, "does not fit", *[""] * 6])
                continue
            peak = max((fit.peak or 0) for fit in done)
            seconds = spread([fit.seconds for fit in done])
            parts = [f"{done[0].predicted:.2f}", mib(peak), mib(done[0].estimate), f"{done[0].bound:.0e}"]
            rows.append([name, *seconds, *parts])
        print(f"\n{LAYOUTS[layout]}")
        print_table(
            ("seconds", "median", "least", "most", "by fixed rates", "peak, MiB", "estimate, MiB", "largest bound"),
            rows,
        )


# -- budgets


def keep_within(directory: Path, n: int, side: int, k: int) -> bool:
    """Print peaks beside estimates for one collection under several budgets; whether all kept within."""
    from streampca.errors import BudgetError
    from streampca.units import parse_bytes

    path, kept, rows = npy_of(directory, textures, n, side), True, []
    for budget in BUDGETS:
        tell(f"under {budget}")
        try:
            fit = in_fresh_process(our_fit, path, k, budget, directory / "budget.zarr")
        except BudgetError as error:
            rows.append([budget, "", "", "", str(error)])
            continue
        kept = kept and (fit.peak or 0) <= parse_bytes(budget)
        rows.append([budget, f"{fit.seconds:.1f}", mib(fit.peak), mib(fit.estimate), ""])
    print_table(("budget", "seconds", "peak, MiB", "estimate, MiB", "refused"), rows)
    return kept


def main() -> None:
    """Read the command line and run."""
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("what", choices=("schedules", "sides", "budgets"), help="what is compared")
    about.add_argument("--samples", type=int, default=1000, help="three times as many for budgets")
    about.add_argument("--side", type=int, default=512)
    about.add_argument("--components", type=int, default=50)
    about.add_argument("--memory", default="512MiB")
    about.add_argument("--rounds", type=int, default=3)
    about.add_argument("--layouts", default=",".join(LAYOUTS), help="of those comparisons, which of: %(default)s")
    about.add_argument("--directory", type=Path, help="where the pictures are kept for the next run")
    asked = about.parse_args()
    print(machine(), file=sys.stderr)
    with folder(asked.directory) as directory:
        size = (directory, asked.samples, asked.side, asked.components)
        if asked.what == "budgets":
            sys.exit(not keep_within(directory, 3 * asked.samples, asked.side, asked.components))
        ways = SCHEDULES if asked.what == "schedules" else SIDES
        compare_ways(*size, asked.memory, asked.rounds, ways, asked.layouts.split(","))


if __name__ == "__main__":
    main()
