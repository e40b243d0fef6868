"""What sharing a fit among processes costs: two workers of one thread each beside one process of two threads.

Timed is the pass over the data, from the first task to the last partial merged; processes are started before. Beside it
stands the most memory that a worker held, above what it held before, and what the plan estimates:

    python benchmarks/cluster.py
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Client, LocalCluster
from fresh import alternating, folder, machine, mib, print_table, spread, warm
from synthetic import npy_of, strokes

import streampca
from streampca.events import PassFinished
from streampca.execution.workers import limit_around
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
    model = streampca.fit(path, n_components=20, method="covariance", memory=memory, cluster=client, listener=listener)
    after = client and client.run(held, False)
    peak = max(after[worker] - before[worker] for worker in before) if client else None
    return Took(sum(found), model.provenance["plan"]["bill_total"], peak)


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
        with LocalCluster(**how, dashboard_address="127.0.0.1:0") as cluster, Client(cluster) as client:
            fitted(path, given.memory, client)  # workers import what they need
            jobs: dict[str, Callable[[], Took]] = {
                "one process": partial(fitted, path, given.memory, None),
                f"{given.workers} workers": partial(fitted, path, given.memory, client),
            }
            found = alternating(given.rounds, jobs)
    report(found)


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


if __name__ == "__main__":
    main()
