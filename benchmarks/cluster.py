"""What sharing work among processes costs: a fit and a transform on two workers of one thread each, and on eight.

A fit is compared with one process of two threads, and with two processes of one thread that know nothing of each other,
each with its half of the data: timed are the passes over the data, from the first task to the last partial merged.
Beside it stands the most memory that a worker held, above what it held before, and what the plan estimates. A transform
is compared with what people do by hand: two such processes, each with a file of its own. All processes are started
before:

    python benchmarks/cluster.py --method randomized
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# Loaded before a cluster is: that leaves OPENBLAS_NUM_THREADS=1 in the environment, by which scipy's BLAS goes.
import scipy.linalg  # noqa: F401
from distributed import Client, LocalCluster
from fresh import alternating, folder, machine, mib, print_table, spread, warm
from synthetic import clouds, npy_of, strokes
from threadpoolctl import threadpool_limits

import streampca
from streampca.events import PassFinished
from streampca.execution.workers import limit_around
from streampca.machine import limit_cores
from streampca.units import parse_bytes

MOST = {"one process": 1.15, "halves": 1 / 0.9, "2 workers": 1.15}  # times these; the last of more workers than cores
MOST_BY_HAND = 1 / 0.9
CORES = 2  # of the process of several threads, and processes by hand
DATA = {"strokes": strokes, "clouds": clouds}
COMPONENTS = {"covariance": 20, "dual": 20, "randomized": 20, "em": 5}  # components that each method finds


class Took(NamedTuple):
    """Of a fit: seconds of its pass, bytes that its plan estimates, and most bytes that a worker held."""

    seconds: float
    estimate: int
    peak: int | None


def fitted(path: Path, method: str, memory: str, client: Client | None) -> Took:
    found: list[float] = []

    def listener(event: Any) -> None:
        if isinstance(event, PassFinished):
            found.append(event.seconds)

    before = client and client.run(held, True)
    model = streampca.fit(path, kind_of(method), memory=memory, cluster=client, listener=listener)
    after = client and client.run(held, False)
    peak = max(after[worker] - before[worker] for worker in before) if client else None
    shared = found[:1] if method == "dual" else found  # its components are computed by this process
    return Took(sum(shared), model.provenance["plan"]["memory_needed"], peak)


def kind_of(method: str) -> streampca.PCA:
    """Return the PCA that is fitted by a method, in as many passes each time."""
    passes = {"max_passes": 4} if method in ("randomized", "em") else {}
    return streampca.PCA(COMPONENTS[method], method=method, missing="em" if method == "em" else "error", **passes)


def fitted_by_hand(halves: list[Path], method: str, memory: str, pool: ProcessPoolExecutor) -> Took:
    """Fit each half in a process of its own, of one thread, at the same time; return the seconds of the slower one."""
    jobs = [pool.submit(fit_alone, half, method, memory) for half in halves]
    return max((job.result() for job in jobs), key=lambda took: took.seconds)


def fit_alone(path: Path, method: str, memory: str) -> Took:
    with limit_cores(1), threadpool_limits(1):
        return fitted(path, method, memory, None)


def halves_of(path: Path, method: str) -> list[Path]:
    """Write the halves of a collection: of its features for method dual, which workers share, else of its samples."""
    x = np.load(path, mmap_mode="r")
    cut = x.reshape(len(x), -1).shape[1] // 2 if method == "dual" else len(x) // 2
    halves = []
    for number, part in enumerate((slice(0, cut), slice(cut, None))):
        halves.append(path.with_name(f"{path.stem}-{method == 'dual'}-{number}.npy"))
        if not halves[-1].exists():
            np.save(halves[-1], x.reshape(len(x), -1)[:, part] if method == "dual" else x[part])
    return halves


def transformed(path: Path, model: Path, memory: str, client: Client) -> float:
    """Seconds of a transform on workers."""
    fitted_model, scores = streampca.load(model), path.with_name("scores.npy")
    began = time.perf_counter()
    fitted_model.write_scores(path, scores, memory=memory, cluster=client, overwrite=True)
    return time.perf_counter() - began


def transformed_by_hand(path: Path, model: Path, memory: str, pool: ProcessPoolExecutor, workers: int) -> float:
    """Seconds until each of some processes has transformed its part of the samples, one after the other."""
    began = time.perf_counter()
    jobs = [pool.submit(transform_part, path, model, memory, part, workers) for part in range(workers)]
    for job in jobs:
        job.result()
    return time.perf_counter() - began


def transform_part(path: Path, model: Path, memory: str, part: int, parts: int) -> None:
    """Transform one of several equal runs of samples in this process."""
    collection = streampca.open_collection(path)
    first, last = (collection.n_samples * each // parts for each in (part, part + 1))
    chosen = streampca.open_collection(path, samples=slice(first, last))
    scores = path.with_name(f"scores-{part}.npy")
    with limit_cores(1):
        streampca.load(model).write_scores(chosen, scores, memory=memory, overwrite=True)


def held(forget: bool) -> int:
    """Most bytes that this process has held; or those it holds, from which on the most is then counted."""
    status = Path("/proc/self/status").read_text()
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    key = "VmRSS:" if forget else "VmHWM:"
    return int(status.split(key)[1].split()[0]) * 1024


@contextmanager
def cluster_of(workers: int, memory: str) -> Iterator[Client]:
    """Start processes of one thread."""
    how: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    how["memory_limit"] = limit_around(parse_bytes(memory))
    how["silence_logs"] = logging.CRITICAL  # a worker may miss its scheduler as both end; other errors are raised
    with LocalCluster(**how) as cluster, Client(cluster) as client:
        yield client


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--method", choices=[*COMPONENTS], default="covariance")
    options.add_argument("--data", choices=[*DATA], default="strokes", help="pictures of bytes, or of float32")
    options.add_argument("--samples", type=int, default=250000)
    options.add_argument("--side", type=int, default=56, help="pixels")
    options.add_argument("--workers", type=int, nargs="+", default=[2, 8], help="numbers of workers")
    options.add_argument("--memory", default="1GiB", help="budget, of each")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--no-transform", action="store_true")
    options.add_argument("--directory", type=Path, help="where data are kept for the next run")
    given = options.parse_args()
    print(machine())
    method, memory = given.method, given.memory
    with folder(given.directory) as directory, ExitStack() as stack:
        path = npy_of(directory, DATA[given.data], given.samples, given.side)
        halves = halves_of(path, method)
        for each in (path, *halves):
            warm(each)
        clients = {f"{workers} workers": stack.enter_context(cluster_of(workers, memory)) for workers in given.workers}
        pool = stack.enter_context(ProcessPoolExecutor(CORES, mp_context=get_context("spawn")))
        jobs: dict[str, Callable[[], Took]] = {
            "one process": partial(fitted, path, method, memory, None),
            "halves": partial(fitted_by_hand, halves, method, memory, pool),
            **{name: partial(fitted, path, method, memory, client) for name, client in clients.items()},
        }
        for name, job in jobs.items():  # processes import what they need
            if name != "one process":
                job()
        report(alternating(given.rounds, jobs))
        if given.no_transform:
            return
        model, (name, client) = directory / "model.zarr", next(iter(clients.items()))
        streampca.fit(path, n_components=20, memory=memory, output=model, overwrite=True)
        applying: dict[str, Callable[[], float]] = {
            name: partial(transformed, path, model, memory, client),
            "by hand": partial(transformed_by_hand, path, model, memory, pool, given.workers[0]),
        }
        for apply in applying.values():
            apply()
        report_transforms(alternating(given.rounds, applying))


def report(found: dict[str, list[Took]]) -> None:
    rows = []
    for name, took in found.items():
        peaks = [each.peak for each in took if each.peak is not None]
        rows.append(
            [name, *spread([each.seconds for each in took]), mib(took[0].estimate), mib(max(peaks, default=None))]
        )
    print_table(["", "seconds", "least", "most", "estimate, MiB", "peak of a worker"], rows)
    few, *more = [name for name in found if name.endswith("workers")]
    for name, others in [(few, ["one process", "halves"]), *((each, [few]) for each in more)]:
        for other in others:
            ratios = [one.seconds / two.seconds for one, two in zip(found[name], found[other], strict=True)]
            print(f"{name} to {other}: {statistics.median(ratios):.2f} (at most {MOST.get(other, 1.15):.2f})")


def report_transforms(applied: dict[str, list[float]]) -> None:
    print_table(["transform", "seconds", "least", "most"], [[name, *spread(took)] for name, took in applied.items()])
    ratios = [many / by_hand for many, by_hand in zip(*applied.values(), strict=True)]
    print(f"transform by workers to processes by hand: {statistics.median(ratios):.2f} (at most {MOST_BY_HAND:.2f})")


if __name__ == "__main__":
    main()
