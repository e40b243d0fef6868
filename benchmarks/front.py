"""Time against error of every setting of streampca and its peers, and where a peer is ahead.

Three spectra (images whose amplitudes fall as 1/f, a slow decay, low rank and noise) in three shapes (many more samples
than features, about as many, many more features), each as float32 in one `.npy` file. Every setting starts once from
the file, loading included, and once from the array in memory, in alternating rounds of one process per problem. A
setting that is far behind after the first round is not run again. The error is the largest relative error of a wanted
variance against a reference in float64, the angle the sine of the largest angle between the two subspaces:

    python benchmarks/front.py --json front.json --figure front.svg
    python benchmarks/front.py --quick --clock cpu               # small, and on a machine with other work
    python benchmarks/front.py --spectra decaying --shapes 3000x48 --components 50 --all
    python benchmarks/front.py --results front.json --figure front.svg  # tables and the figure of an earlier run

All of it takes half an hour. Parts that were run one by one, each with its own --json, become one by --results:

    python benchmarks/front.py --spectra textures --shapes 600x144 --components 50 --json part1.json
    python benchmarks/front.py --results part1.json part2.json --json front.json --figure front.svg

It ends with 1 if, between errors of 0.3 and 1e-8, a peer reaches an error in less than 1/1.1 of the time of our fastest
setting that is at least as accurate, or in less than half of it where errors are larger. Peers that are not installed
are named: `pip install fbpca scikit-learn-intelex` adds them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fresh import alternating, folder, in_fresh_process, machine, print_table, warm
from peers import array, mapped
from scipy.linalg import eigh
from synthetic import decaying, low_rank, npy_of, textures

Floats = npt.NDArray[np.floating[Any]]
Pairs = tuple[Floats, Floats]  # variances (k,) and components (k, p)
Points = dict[str, dict[str, Any]]  # of each setting: package, seconds and processor of each round, error, angle

SPECTRA = {"textures": textures, "decaying": decaying, "low_rank": low_rank}
TITLES = {"textures": "1/f and noise", "decaying": "slow decay", "low_rank": "low rank and noise"}
SHAPES = "40000x24,3000x48,600x144"  # samples, and pixels along each side
QUICK = "8000x16,800x24,200x64"
SOURCES = {"file": "from the file", "memory": "from memory"}
CLOCKS = {"wall": "seconds", "cpu": "processor"}
LEAST, MOST = 1e-8, 0.3  # errors between which we are to be ahead; smaller ones count as the first
MARGIN, CHEAP = 1.1, 2.0  # our time to a peer's at most: there, and where errors are larger
BEHIND = 2.0  # times the time of a setting that is more accurate, after which one is not run again


class Setting(NamedTuple):
    """One setting of a package: ``fit(source, k)``, of a file where it reads files, else of an array in memory.

    One that solves a p x p problem is left out where samples are fewer: it would take minutes.
    """

    package: str
    reads: bool
    fit: Callable[[Any, int], Pairs]
    solves_features: bool = False


class Took(NamedTuple):
    """Seconds by the clock and of the processor."""

    seconds: float
    processor: float


# -- ours and theirs


def ours(source: Path | Floats, k: int, **options: Any) -> Pairs:
    import streampca

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tolerance that was not reached within max_passes
        model = streampca.fit(source, streampca.PCA(k, **options))
    return model.explained_variance, np.asarray(model.components).reshape(k, -1)


def sklearn_pca(data: Floats, k: int, solver: str, dtype: type = np.float32, iterations: int | str = "auto") -> Pairs:
    from sklearn.decomposition import PCA

    return _pairs(PCA(k, svd_solver=solver, iterated_power=iterations, random_state=0), data.astype(dtype, copy=False))


def sklearn_incremental(data: Floats, k: int) -> Pairs:
    from sklearn.decomposition import IncrementalPCA

    return _pairs(IncrementalPCA(k), data)


def onedal_pca(data: Floats, k: int, dtype: type = np.float32) -> Pairs:
    from sklearnex.decomposition import PCA

    return _pairs(PCA(k, svd_solver="covariance_eigh"), data.astype(dtype, copy=False))


def onedal_incremental(data: Floats, k: int) -> Pairs:
    from sklearnex.preview.decomposition import IncrementalPCA

    return _pairs(IncrementalPCA(k), data)


def _pairs(estimator: Any, data: Floats) -> Pairs:
    estimator.fit(data)
    return estimator.explained_variance_, estimator.components_


def dask_compressed(source: Path | Floats, k: int, iterations: int) -> Pairs:
    import dask
    import dask.array as da

    rows = mapped(source) if isinstance(source, Path) else source
    data = da.from_array(rows, chunks=(max(1, 2**22 // rows.shape[1]), -1), name=False, asarray=False)
    centred = data - data.mean(axis=0)
    _, sizes, components = da.linalg.svd_compressed(centred, k, n_power_iter=iterations, seed=0)
    sizes, components = dask.compute(sizes, components)
    return sizes**2 / (len(rows) - 1), components


def fbpca_pca(data: Floats, k: int, iterations: int) -> Pairs:
    import fbpca

    np.random.seed(0)  # noqa: NPY002, its only source of random numbers
    _, sizes, components = fbpca.pca(data, k, raw=False, n_iter=iterations)
    return sizes**2 / (len(data) - 1), components


def _own(**options: Any) -> Setting:
    return Setting("streampca", True, partial(ours, **options))


SETTINGS: dict[str, Setting] = {
    "streampca": _own(),
    **{f"streampca tol={tol:g}": _own(tol=tol) for tol in (0.3, 0.1, 1e-2, 1e-3)},
    **{f"streampca tol_variance={tol:g}": _own(tol_variance=tol) for tol in (0.3, 0.1, 1e-2, 1e-4, 1e-6)},
    **{f"streampca max_passes={passes}": _own(max_passes=passes) for passes in (1, 2, 3, 4)},
    "streampca precision=double": _own(precision="double"),
    **{
        f"sklearn randomized n_iter={count}": Setting(
            "sklearn", False, partial(sklearn_pca, solver="randomized", iterations=count)
        )
        for count in range(8)
    },
    **{
        f"sklearn {solver} {np.dtype(dtype)}": Setting(
            "sklearn", False, partial(sklearn_pca, solver=solver, dtype=dtype), solver == "covariance_eigh"
        )
        for solver in ("arpack", "covariance_eigh")
        for dtype in (np.float32, np.float64)
    },
    "sklearn IncrementalPCA": Setting("sklearn", False, sklearn_incremental),
    **{
        f"dask svd_compressed n_power_iter={count}": Setting("dask", True, partial(dask_compressed, iterations=count))
        for count in range(5)
    },
    **{f"fbpca n_iter={count}": Setting("fbpca", False, partial(fbpca_pca, iterations=count)) for count in range(5)},
    **{
        f"sklearnex covariance_eigh {np.dtype(dtype)}": Setting(
            "sklearnex", False, partial(onedal_pca, dtype=dtype), solves_features=True
        )
        for dtype in (np.float32, np.float64)
    },
    "sklearnex IncrementalPCA": Setting("sklearnex", False, onedal_incremental, solves_features=True),
}


# -- measuring


def exact(path: Path, k: int) -> Pairs:
    """Leading pairs in float64, from the products of all pairs of features, or of samples where these are fewer."""
    data = array(path, np.float64)
    data -= data.mean(axis=0)
    n, p = data.shape
    least = min(n, p)
    products = data.T @ data if p == least else data @ data.T
    values, vectors = eigh(products, subset_by_index=(least - k, least - 1))
    components = vectors if p == least else np.linalg.qr(data.T @ vectors)[0]
    return values[::-1] / (n - 1), components.T[::-1]


def errors(found: Pairs, truth: Pairs) -> tuple[float, float]:
    """Largest relative error of a variance, and sine of the largest angle between the subspaces."""
    (variances, components), (true_variances, true_components) = found, truth
    components = np.linalg.qr(components.T.astype(np.float64))[0].T
    outside = components - (components @ true_components.T) @ true_components
    return float(np.abs(variances / true_variances - 1).max()), float(np.linalg.norm(outside, 2))


def timed(work: Callable[[], Any]) -> tuple[Any, Took]:
    began, used = time.perf_counter(), time.process_time()
    result = work()
    return result, Took(time.perf_counter() - began, time.process_time() - used)


def took(setting: Setting, path: Path, data: Floats, k: int) -> tuple[Pairs, dict[str, Took]]:
    """Run one setting from the file and from memory; who reads no files loads the array first."""
    if setting.reads:
        _, from_file = timed(lambda: setting.fit(path, k))
        found, from_memory = timed(lambda: setting.fit(data, k))
        return found, {"file": from_file, "memory": from_memory}
    loaded, loading = timed(lambda: np.load(path).reshape(data.shape))
    found, fit = timed(lambda: setting.fit(loaded, k))
    return found, {"file": Took(*map(sum, zip(loading, fit, strict=True))), "memory": fit}


def measure(path: Path, truth: Pairs, names: list[str], rounds: int, clock: str) -> tuple[dict[str, Points], list[str]]:
    """Run settings in turns in this process: their points for each source, and why others failed."""
    warnings.simplefilter("ignore")  # peers' own
    data, k = array(path), len(truth[0])
    points: dict[str, Points] = {source: {} for source in SOURCES}
    failures: list[str] = []

    def run(name: str) -> None:
        setting = SETTINGS[name]
        try:
            if name not in points["file"]:  # imports, and what is done once in a process, take no time later
                setting.fit(np.ascontiguousarray(data[:100, :64]), 3)
            found, times = took(setting, path, data, k)
        except Exception as error:  # peers fail in their own ways, and the others are still of interest
            failures.append(f"{name}: failed, {type(error).__name__}: {error}".partition("\n")[0])
            return
        error, angle = (float(f"{off:.3g}") for off in errors(found, truth))
        for source, each in times.items():
            new = {"package": setting.package, "seconds": [], "processor": [], "error": error, "angle": angle}
            point = points[source].setdefault(name, new)
            point["seconds"].append(round(each.seconds, 4))
            point["processor"].append(round(each.processor, 4))

    names = [name for name in names if data.shape[0] > data.shape[1] or not SETTINGS[name].solves_features]
    alternating(1, {name: partial(run, name) for name in names})
    near = [name for name in names if any(is_near(name, points[source], clock) for source in SOURCES)]
    alternating(rounds - 1, {name: partial(run, name) for name in near})
    return points, failures


def is_near(name: str, points: Points, clock: str) -> bool:
    """Tell if no setting that is at least as accurate takes less than a part of the time."""
    if name not in points:
        return False
    error, seconds = accuracy(points[name]), seconds_of(points[name], clock)
    return best(points, error, clock)[0] * BEHIND >= seconds


# -- who is ahead


def accuracy(point: dict[str, Any]) -> float:
    return max(float(point["error"]), LEAST)


def seconds_of(point: dict[str, Any], clock: str) -> float:
    return statistics.median(point[CLOCKS[clock]])


def best(points: Points, error: float, clock: str, package: str | None = None) -> tuple[float, str]:
    """Least time, and the setting that takes it, of those at least as accurate, of one package or of all."""
    times = [
        (seconds_of(point, clock), name)
        for name, point in points.items()
        if accuracy(point) <= error and package in (None, point["package"])
    ]
    return min(times, default=(math.inf, "none"))


def is_on_front(name: str, points: Points, clock: str) -> bool:
    return best(points, accuracy(points[name]), clock)[1] == name


def losses(points: Points, clock: str) -> Iterator[tuple[str, float, str]]:
    """Yield each setting of a peer that is ahead, how many times its time ours takes, and the setting of ours."""
    for name, point in points.items():
        error = accuracy(point)
        seconds, own = best(points, error, clock, "streampca")
        ratio = seconds / seconds_of(point, clock)
        if point["package"] != "streampca" and ratio > (MARGIN if error <= MOST else CHEAP):
            yield name, ratio, own


def report(problem: dict[str, Any], clock: str, *, everything: bool) -> int:
    """Print the front of a problem for each source, and the settings of peers that are ahead; return how many are."""
    count = 0
    for source, points in problem["points"].items():
        ahead = {name: (ratio, own) for name, ratio, own in losses(points, clock)}
        count += len(ahead)
        print(f"\n{heading(problem)}, {SOURCES[source]}: {len(ahead)} settings of peers ahead of ours")
        rows = [
            [
                name,
                *(f"{seconds_of(points[name], each):.3f}" for each in CLOCKS),
                *(f"{points[name][key]:.0e}" for key in ("error", "angle")),
                *((f"{ahead[name][0]:.2f}", ahead[name][1]) if name in ahead else ("", "")),
            ]
            for name in sorted(points, key=lambda name: seconds_of(points[name], clock))
            if everything or name in ahead or is_on_front(name, points, clock)
        ]
        print_table(("", "s", "CPU s", "error", "angle", "ours to it", ""), rows)
    for failure in problem["failures"]:
        print(failure)
    return count


def heading(problem: dict[str, Any]) -> str:
    n, side = problem["shape"]
    return f"{TITLES[problem['spectrum']]}, {n} x {side * side}, k = {problem['k']}"


TIMES, ERRORS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50), (1, 1e-2, 1e-4, 1e-6, 1e-8)  # ticks of the figure
# Grey that is read on white and on black, without a background; text as text takes a third of the size, and without
# random names equal results make equal files.
STYLE = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), "#808080")
STYLE |= {"svg.fonttype": "none", "svg.hashsalt": "streampca", "font.sans-serif": ["DejaVu Sans"]}


def figure(problems: list[dict[str, Any]], clock: str, path: Path) -> None:
    """Draw the front of each package, errors against times from the file, for every spectrum and shape."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    most = max(problem["k"] for problem in problems)
    problems = [problem for problem in problems if problem["k"] == most]
    spectra = list(dict.fromkeys(problem["spectrum"] for problem in problems))
    shapes = list(dict.fromkeys(tuple(problem["shape"]) for problem in problems))
    packages = list(dict.fromkeys(setting.package for setting in SETTINGS.values()))
    with rc_context(STYLE):
        drawn = Figure(figsize=(3.2 * len(shapes), 2.4 * len(spectra) + 0.7), layout="constrained")
        grid = drawn.subplots(len(spectra), len(shapes), squeeze=False, sharey=True)
        for problem in problems:
            panel = grid[spectra.index(problem["spectrum"]), shapes.index(tuple(problem["shape"]))]
            panel.set(xscale="log", yscale="log", ylim=(LEAST / 2, 1.5))
            for axis, ticks in ((panel.xaxis, TIMES), (panel.yaxis, ERRORS)):
                axis.set_major_locator(FixedLocator(ticks))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_locator(NullLocator())
            panel.set_title(heading(problem).rpartition(",")[0], fontsize="medium")
            for number, package in enumerate(packages):
                own = {name: point for name, point in problem["points"]["file"].items() if point["package"] == package}
                draw_front(panel, own, clock, colour=f"C{number}", wide=package == "streampca")
        for panel in grid[-1]:
            panel.set_xlabel("seconds, loading included" if clock == "wall" else "CPU seconds, loading included")
        for panel in grid[:, 0]:
            panel.set_ylabel(f"largest error of {most} variances", fontsize="small")
        lines = grid[0, 0].get_lines()
        drawn.legend(handles=lines, labels=packages, loc="outside lower center", ncols=len(packages), frameon=False)
        is_svg = path.suffix == ".svg"
        drawn.savefig(path, transparent=True, metadata={"Date": None, "Creator": None} if is_svg else None)
    if is_svg:  # in attributes a tenth of a point does, and lines need no breaks: half the size
        text = re.sub(r'"[^"]*"', lambda value: re.sub(r"(\.\d)\d+", r"\1", value[0]), path.read_text(encoding="utf-8"))
        path.write_text(re.sub(r" *\n *", " ", text).replace("> <", "><") + "\n", encoding="utf-8")


def draw_front(panel: Any, points: Points, clock: str, *, colour: str, wide: bool) -> None:
    """Draw the settings of a package that none of its own beats, joined by a line."""
    places = sorted((seconds_of(point, clock), accuracy(point)) for point in points.values())
    front = [place for number, place in enumerate(places) if all(place[1] < error for _, error in places[:number])]
    times, errors_of = zip(*front, strict=True) if front else ((), ())
    panel.step(times, errors_of, "o-", where="post", color=colour, markersize=5 if wide else 3, linewidth=1 + wide)


# -- the script


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run everything that was asked for, and yield a problem for each spectrum, shape and number of components."""
    words = args.only.split(",")
    names = [name for name, each in SETTINGS.items() if find_spec(each.package) and any(word in name for word in words)]
    shapes = args.shapes or (QUICK if args.quick else SHAPES)
    counts = [int(count) for count in args.components.split(",")]
    with folder(args.directory) as directory:
        for spectrum, shape in product(args.spectra.split(","), shapes.split(",")):
            n, side = map(int, shape.split("x"))
            path = npy_of(directory, SPECTRA[spectrum], n, side)
            warm(path)
            variances, components = in_fresh_process(exact, path, max(counts))
            for k in counts:
                truth = variances[:k], components[:k]
                points, failures = in_fresh_process(measure, path, truth, names, args.rounds, args.clock)
                problem = {"spectrum": spectrum, "shape": (n, side), "k": k}
                yield {**problem, "points": points, "failures": failures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spectra", default=",".join(SPECTRA), help="default: %(default)s")
    parser.add_argument("--shapes", help=f"samples x side, default: {SHAPES}")
    parser.add_argument("--components", default="10,50", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help=f"small: {QUICK}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="by which settings are compared")
    parser.add_argument("--only", default="", help="words, one of which a setting's name has")
    parser.add_argument("--all", action="store_true", help="print every setting, not the front alone")
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--results", type=Path, nargs="+", help="results of earlier runs, instead of measuring")
    parser.add_argument("--figure", type=Path, help="draw errors against times: .svg, .png or .pdf")
    args = parser.parse_args()
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in args.results or ()]
    # Before the rounds, whose load is not that of others.
    about = "; ".join(dict.fromkeys(results["machine"] for results in kept)) or machine()
    print(f"{about}; by {'the clock' if args.clock == 'wall' else 'CPU time'}", flush=True)
    problems, ahead = [], []
    for problem in [problem for results in kept for problem in results["problems"]] or measured(args):
        problems.append(problem)
        ahead.append(report(problem, args.clock, everything=args.all))
        sys.stdout.flush()
        if args.json is not None:
            args.json.write_text(json.dumps({"machine": about, "problems": problems}) + "\n", encoding="utf-8")
    if args.figure is not None:
        figure(problems, args.clock, args.figure)
    for package in dict.fromkeys(setting.package for setting in SETTINGS.values()):
        if not find_spec(package):
            print(f"{package}: not installed")
    print(f"\n{sum(ahead)} settings of peers are ahead of ours, on {sum(map(bool, ahead))} of {len(ahead)} problems")
    sys.exit(any(ahead))


if __name__ == "__main__":
    main()
