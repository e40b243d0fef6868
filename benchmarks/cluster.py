"""What sharing work among processes costs: a fit and a transform on two workers of one thread each.

A fit is compared with one process of two threads: timed is the pass over the data, from the first task to the last
partial merged. Beside it stands the most memory that a worker held, above what it held before, and what the plan
estimates. A transform is compared with what people do by hand: two processes of one thread, each with its half of the
samples and a file of its own. All processes are started before:

    python benchmarks/cluster.py
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

# Loaded before a cluster is: that leaves OPENBLAS_NUM_THREADS=1 in the environment, by which scipy's BLAS goes.
import scipy.linalg  # noqa: F401
from distributed import Client, LocalCluster
from fresh import alternating, folder, machine, mib, print_table, spread, warm
from synthetic import npy_of, strokes

import streampca
from streampca.events import PassFinished
from streampca.execution.workers import limit_around
from streampca.machine import limit_cores
from streampca.units import parse_bytes

AIM = 1.25  # times one process


class Took(NamedTuple):
    """Of a fit: seconds of its pass, bytes that its plan estimates, and most bytes that a worker held."""

    seconds: float
    estimate: int
    peak: int | None


def fitted(path: Path, memory: str, client: Client | None) -> Took:
    found: list[float] = []

    def listener(event: Any) -> None:
        if isinstance(event, PassFinished):
            found.append(event.seconds)

    before = client and client.run(held, True)
    pca = streampca.PCA(20, method="covariance")
    model = streampca.fit(path, pca, memory=memory, cluster=client, listener=listener)
    after = client and client.run(held, False)
    peak = max(after[worker] - before[worker] for worker in before) if client else None
    return Took(sum(found), model.provenance["plan"]["memory_needed"], peak)


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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--samples", type=int, default=250000)
    options.add_argument("--side", type=int, default=56, help="pixels")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--memory", default="1GiB", help="budget, of each")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--directory", type=Path, help="where data are kept for the next run")
    given = options.parse_args()
    print(machine())
    with folder(given.directory) as directory:
        path = npy_of(directory, strokes, given.samples, given.side)
        warm(path)
        limit = limit_around(parse_bytes(given.memory))
        how = {"n_workers": given.workers, "threads_per_worker": 1, "memory_limit": limit}
        how["silence_logs"] = logging.CRITICAL  # a worker may miss its scheduler as both end; other errors are raised
        spawn = get_context("spawn")
        with (
            LocalCluster(**how, dashboard_address="127.0.0.1:0") as cluster,
            Client(cluster) as client,
            ProcessPoolExecutor(given.workers, mp_context=spawn) as pool,
        ):
            fitted(path, given.memory, client)  # workers import what they need
            jobs: dict[str, Callable[[], Took]] = {
                "one process": partial(fitted, path, given.memory, None),
                f"{given.workers} workers": partial(fitted, path, given.memory, client),
            }
            found = alternating(given.rounds, jobs)
            model = directory / "model.zarr"
            streampca.fit(path, n_components=20, memory=given.memory, output=model, overwrite=True)
            applying: dict[str, Callable[[], float]] = {
                f"{given.workers} workers": partial(transformed, path, model, given.memory, client),
                "by hand": partial(transformed_by_hand, path, model, given.memory, pool, given.workers),
            }
            for job in applying.values():  # processes import what they need
                job()
            applied = alternating(given.rounds, applying)
    report(found)
    report_transforms(applied)


def report(found: dict[str, list[Took]]) -> None:
    rows = []
    for name, took in found.items():
        peaks = [each.peak for each in took if each.peak is not None]
        rows.append(
            [name, *spread([each.seconds for each in took]), mib(took[0].estimate), mib(max(peaks, default=None))]
        )
    print_table(["", "seconds", "least", "most", "estimate, MiB", "peak of a worker"], rows)
    one, many = (statistics.median(each.seconds for each in took) for took in found.values())
    print(f"workers to one process: {many / one:.2f} (at most {AIM})")


def report_transforms(applied: dict[str, list[float]]) -> None:
    print_table(["transform", "seconds", "least", "most"], [[name, *spread(took)] for name, took in applied.items()])
    ratios = [many / by_hand for many, by_hand in zip(*applied.values(), strict=True)]
    print(f"transform by workers to processes by hand: {statistics.median(ratios):.2f} (at most {AIM})")


if __name__ == "__main__":
    main()
