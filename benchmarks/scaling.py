"""A pass by 1 to 4096 workers, simulated event by event, beside what the plan says and what a cluster does.

The simulation gives out the tasks that the package does (`streampca.execution.reduction`), to workers of one task at a
time, whose links carry what they send and what they receive side by side. The process that was started and the
scheduler handle one message after another. Spans differ a little; workers may die, or be slow:

    python benchmarks/scaling.py table       30 problems: plan and simulation, ends with 1 where they differ by 1.5
    python benchmarks/scaling.py curve       one problem by 1 to 4096 workers
    python benchmarks/scaling.py constants   seconds of a task by dask, bytes a second: measured, and as planned with
    python benchmarks/scaling.py real        clusters of processes: what is sent, by 4 and 8; seconds, by 1 and 2

A table of seconds needs an idle machine; bytes and tasks do not.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fresh import folder, in_fresh_process, machine, print_table
from synthetic import npy_of, strokes

import streampca
from streampca.events import PassFinished, Planned
from streampca.execution.reduction import Addition, Reduction, Tree
from streampca.planning.network import BRANCHES, LATENCY, TASK, TASK_OF_WORKER, Sharing
from streampca.units import format_rate, format_seconds

WITHIN, WITHIN_REAL = 1.5, 1.25
OTHER_TASKS = ("send-", "check-reading-", "wait-for-workers-")  # beginnings of names of tasks that fold nothing
NOTICED = 1.0  # seconds until a dead worker is given up


class Costs(NamedTuple):
    """Seconds of a task in the process that was started, the scheduler, and a worker beside its work; of a message."""

    client: float = 0.15 * TASK
    scheduler: float = 0.85 * TASK
    worker: float = TASK_OF_WORKER
    latency: float = LATENCY


@dataclass(frozen=True)
class Trouble:
    """What goes wrong: the spread of spans' times, slow workers and by how much, and deaths of a worker in an hour."""

    spread: float = 0.05
    slow_share: float = 0.0
    slow_times: float = 3.0
    deaths: float = 0.0
    restart: float = 30.0
    seed: int = 0


PLANNED, USUAL = Costs(), Trouble()


@dataclass
class Sent:
    """What a pass took: seconds, tasks, sums that travelled, bytes of them, and of vectors."""

    seconds: float = 0.0
    tasks: int = 0
    sums: int = 0
    sum_bytes: int = 0
    vector_bytes: int = 0


class Simulation:
    """One pass, from the vectors sent to the sum received.

    Parameters
    ----------
    sharing : Sharing
        The pass as planned.
    costs : Costs
        Seconds of messages and tasks.
    trouble : Trouble
        What goes wrong.
    folding : float, optional
        Seconds that one worker takes to fold all spans; by default as planned.
    """

    def __init__(
        self, sharing: Sharing, costs: Costs = PLANNED, trouble: Trouble = USUAL, folding: float | None = None
    ) -> None:
        self.sharing, self.costs, self.trouble = sharing, costs, trouble
        self.folding = sharing.folding if folding is None else folding
        self.luck = random.Random(trouble.seed)  # noqa: S311 - nothing secret
        self.reduction = Reduction(Tree(0, sharing.n_spans))
        self.reduction.fold(range(sharing.n_spans))
        self.sent = Sent()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self._now = self._client_free = self._scheduler_free = 0.0
        self._inbox: list[tuple[int, Addition]] = []
        self._born = count()
        self._speeds: dict[int, float] = {}  # of workers that are there
        self._sending: dict[int, float] = {}  # until when the links are busy
        self._receiving: dict[int, float] = {}

    def run(self) -> Sent:
        """Return what the pass took."""
        for _ in range(self.sharing.workers):
            self._join()
        self._now = self._client_free = self._broadcast()
        self._assign(self._speeds)
        while not self.reduction.is_complete:
            self._now, _, event, arguments = heapq.heappop(self._events)
            event(*arguments)
        self.sent.seconds = self._client_free + self.costs.latency + self.sharing.shared.partial / self.sharing.network
        return self.sent

    def _at(self, moment: float, event: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), event, arguments))

    def _broadcast(self) -> float:
        """Return the seconds of sending the vectors, in rounds: each worker asks one of those that have them."""
        size, latency, workers = self.sharing.shared.vectors, self.costs.latency, self.sharing.workers
        if not size:
            return 0.0
        seconds, have = latency + size / self.sharing.network, 1
        while have < workers:
            asked = [0] * have
            asking = min(workers - have, BRANCHES * have)
            for _ in range(asking):
                asked[self.luck.randrange(have)] += 1
            seconds += 2 * latency + self.costs.scheduler + max(asked) * size / self.sharing.network
            have += asking
        self.sent.vector_bytes = size * (workers - 1)  # one has them from the process that was started
        return seconds

    # -- the process that was started, and the scheduler

    def _assign(self, workers: Iterable[int]) -> None:
        """Give idle workers their next tasks, as `streampca.execution.cluster` does."""
        for worker in sorted(workers, key=lambda worker: (len(self.reduction.held_by(worker)), worker)):
            if worker in self._speeds and worker not in self.reduction.jobs:
                job = self.reduction.start(worker)
                if job is not None:
                    self._client_free = max(self._client_free, self._now) + self.costs.client / 2
                    self._at(self._client_free + self.costs.latency, self._pass_on, self._receive, worker, job)

    def _pass_on(self, event: Callable[..., None], worker: int, job: Addition) -> None:
        """Let the scheduler handle a message, one after another."""
        self._scheduler_free = max(self._scheduler_free, self._now) + self.costs.scheduler / 2
        self._at(self._scheduler_free + self.costs.latency, event, worker, job)

    def _hear(self, worker: int, job: Addition) -> None:
        """Note a message, which is read with all others when the process is free."""
        if not self._inbox:
            self._at(max(self._now, self._client_free), self._read)
        self._inbox.append((worker, job))

    def _read(self) -> None:
        messages, self._inbox, idle = self._inbox, [], set[int]()
        self._client_free = max(self._now, self._client_free)
        for worker, job in messages:
            self._client_free += self.costs.client / 2
            if self.reduction.jobs.get(worker) is not job:
                continue  # taken back
            idle |= {worker, *(self.reduction.held[part] for part in job.inputs)}
            self.reduction.finish(worker)
            partner = self.reduction.tree.partner(job.result)
            if partner is not None and partner[0] in self.reduction.held:
                idle.add(self.reduction.held[partner[0]])
        self._assign(idle)

    # -- workers

    def _receive(self, worker: int, job: Addition) -> None:
        """Start a task on its worker: fetch sums of others, and compute."""
        if self.reduction.jobs.get(worker) is not job or worker not in self._speeds:
            return
        begin, size = self._now, self.sharing.shared.partial
        for holder in (self.reduction.held[part] for part in job.inputs):
            if holder != worker:
                free = max(self._now, self._sending.get(holder, 0.0), self._receiving.get(worker, 0.0))
                begin = free + self.costs.latency + size / self.sharing.network
                self._sending[holder] = self._receiving[worker] = begin
                self.sent.sums, self.sent.sum_bytes = self.sent.sums + 1, self.sent.sum_bytes + size
        took = self.sharing.adding
        if job.span is not None:
            took *= 1 + (job.left is not None)
            took += self.folding / self.sharing.n_spans * self.luck.lognormvariate(0, self.trouble.spread)
        self.sent.tasks += 1
        end = begin + (took + self.costs.worker) / self._speeds[worker]
        self._at(end + self.costs.latency, self._pass_on, self._hear, worker, job)

    def _join(self) -> None:
        worker, slow = next(self._born), self.luck.random() < self.trouble.slow_share
        self._speeds[worker] = 1 / self.trouble.slow_times if slow else 1.0
        if self.trouble.deaths:
            self._at(self._now + self.luck.expovariate(self.trouble.deaths / 3600), self._die, worker)

    def _die(self, worker: int) -> None:
        del self._speeds[worker]
        self._at(self._now + NOTICED, self._give_up, worker)
        self._at(self._now + self.trouble.restart, self._return)

    def _return(self) -> None:
        self._join()
        self._assign(self._speeds)

    def _give_up(self, worker: int) -> None:
        """Take back the task of a dead worker and those that use its sums, whose spans are folded again."""
        parts = self.reduction.held_by(worker)
        for other, job in [*self.reduction.jobs.items()]:
            if other == worker or any(part in parts for part in job.inputs):
                self.reduction.give_back(other)
        for part in parts:
            self.reduction.lose(part)
            self.reduction.fold(range(part.first, part.last + 1))
        self._assign(self._speeds)


# -- plans beside the simulation

CPUS = {"memory": "64GiB", "k": 50, "dtype": "float32"}
# Samples, lengths of a sample, workers, and what else differs.
PROBLEMS: list[tuple[int, tuple[int, ...], int, dict[str, Any]]] = [
    (10**5, (28, 28), 2, {}),
    (10**6, (28, 28), 8, {}),
    (10**7, (28, 28), 32, {}),
    (10**8, (28, 28), 16, {}),
    (10**8, (28, 28), 165, {}),
    (10**8, (28, 28), 1024, {}),
    (10**8, (28, 28), 64, {"network": "1Gbit"}),
    (10**9, (28, 28), 512, {"dtype": "uint8"}),
    (10**5, (64, 64), 4, {}),
    (10**6, (64, 64), 32, {}),
    (10**6, (64, 64), 1024, {}),
    (10**8, (64, 64), 256, {}),
    (10**8, (64, 64), 1024, {}),
    (10**8, (64, 64), 4096, {}),
    (10**8, (64, 64), 1024, {"network": "100Gbit"}),
    (10**7, (96, 96), 64, {"network": "1Gbit", "method": "covariance"}),
    (10**8, (8192,), 1024, {"method": "covariance"}),
    (10**6, (8192,), 128, {"method": "covariance"}),
    (2000, (512, 512), 2, {"method": "dual"}),
    (10**4, (512, 512), 16, {"method": "dual"}),
    (20000, (1024, 1024), 128, {"method": "dual"}),
    (10**5, (128, 128), 4, {"method": "randomized"}),
    (10**6, (256, 256), 16, {"method": "randomized", "k": 100}),
    (10**7, (256, 256), 256, {"method": "randomized", "k": 100}),
    (10**8, (256, 256), 1024, {"method": "randomized", "k": 100}),
    (10**6, (1000, 1000), 64, {"method": "randomized", "k": 100}),
    (10**8, (1000, 1000), 1024, {"method": "randomized", "k": 100}),
    (10**8, (1000, 1000), 1024, {"method": "randomized", "k": 100, "network": "25Gbit"}),
    (10**6, (64, 64), 16, {"method": "em", "missing": "em", "k": 10}),
    (10**7, (64, 64), 256, {"method": "em", "missing": "em", "k": 10}),
]  # fmt: skip


def sharing_of(samples: int, lengths: tuple[int, ...], workers: int, options: dict[str, Any]) -> Sharing:
    """Return the passes of a plan that workers share; workers have one core each."""
    from streampca.machine import limit_cores

    how = {**CPUS, **options}
    model = streampca.PCA(how.pop("k"), **{name: how.pop(name) for name in ("method", "missing") if name in how})
    with limit_cores(1):
        return streampca.plan(shape=(samples, *lengths), kind=model, workers=workers, **how).sharing


def described(samples: int, lengths: tuple[int, ...], options: dict[str, Any]) -> str:
    shape = " x ".join(map(str, (f"{samples:.0e}".replace("e+0", "e"), *lengths)))
    return " ".join([shape, *(str(value) for name, value in options.items() if name not in ("missing",))])


def table(costs: Costs, trouble: Trouble) -> bool:
    """Print plans and simulations of all problems; return whether all agree."""
    rows, agree = [], True
    for samples, lengths, workers, options in PROBLEMS:
        sharing = sharing_of(samples, lengths, workers, options)
        found = Simulation(sharing, costs, trouble).run()
        ratio = sharing.seconds_a_pass / found.seconds
        most = sharing.most_workers
        at_most = Simulation(sharing.of(min(most, 4096)), costs, trouble).run().seconds
        agree &= 1 / WITHIN <= ratio <= WITHIN
        rows.append([
            described(samples, lengths, options), workers, sharing.n_spans, format_seconds(found.seconds),
            format_seconds(sharing.seconds_a_pass), f"{ratio:.2f}",
            f"{sharing.folding / workers / found.seconds:.2f}", most,
            f"{sharing.folding / min(most, 4096) / at_most:.2f}",
        ])  # fmt: skip
    heads = ["problem", "workers", "spans", "simulated", "planned", "ratio", "efficiency", "most workers", "theirs"]
    print_cells(heads, rows)
    return agree


def print_cells(heads: list[str], rows: list[list[Any]]) -> None:
    """Print a table of anything."""
    print_table(heads, [[str(cell) for cell in row] for row in rows])


def curve(sharing: Sharing, costs: Costs, trouble: Trouble) -> None:
    """Print a pass by 1 to 4096 workers."""
    rows = []
    for workers in (2**power for power in range(13)):
        shared = sharing.of(workers)
        found = Simulation(shared, costs, trouble).run()
        efficiency = shared.folding / workers / found.seconds
        rows.append(
            [
                workers,
                shared.n_spans,
                found.tasks,
                found.sums,
                format_seconds(found.seconds),
                format_seconds(shared.seconds_a_pass),
                f"{efficiency:.2f}",
                f"{shared.efficiency:.2f}",
            ]
        )
    print_cells(["workers", "spans", "tasks", "sums sent", "simulated", "planned", "efficiency", "planned"], rows)
    print(f"by the plan more than {sharing.most_workers} workers gain little")


# -- constants, and clusters of processes


def cluster_of(workers: int) -> Any:
    """Return a cluster of processes of one thread."""
    import dask
    from distributed import LocalCluster

    how: dict[str, Any] = {"threads_per_worker": 1, "memory_limit": "2GiB", "silence_logs": 50}
    # As on clusters that the package starts: copies of vectors are kept.
    with dask.config.set({"distributed.scheduler.active-memory-manager.start": False}):
        return LocalCluster(n_workers=workers, dashboard_address="127.0.0.1:0", **how)


def process_seconds() -> float:
    return time.process_time()


def measured_costs(path: Path, workers: int = 2, spans: int = 400) -> tuple[Costs, float]:
    """Return seconds of processor time of a task, by folding spans of a few samples, and bytes a second of a link."""
    from distributed import Client, wait

    from streampca.accumulators import Scatter
    from streampca.events import silent
    from streampca.execution.cluster import DaskExecutor
    from streampca.fitting.methods.tasks import SamplesTask
    from streampca.planning.blocks import spans_of

    collection = streampca.open_collection(path, samples=slice(0, spans))
    new = partial(Scatter, collection.n_features, precision="single", product_rows=1)
    task = SamplesTask(new, partial(Scatter.from_state, copy=False), collection, 1)
    with cluster_of(workers) as cluster, Client(cluster) as client:
        fold = partial(DaskExecutor(client).fold, task, merge=Scatter.absorb, listener=silent)
        fold(spans_of(spans, 20, 1))  # imports what it needs
        of_workers = client.run(process_seconds)
        here, thread = time.process_time(), time.thread_time()
        fold(spans_of(spans, spans, 1))
        here, thread = time.process_time() - here, time.thread_time() - thread
        there = sum(after - of_workers[worker] for worker, after in client.run(process_seconds).items())
        tasks, rates = spans + spans // 4 - 1, []
        first, second = client.scheduler_info()["workers"]
        for _ in range(3):
            sent = client.submit(bytes, 2**26, workers=[first], pure=False)
            wait(sent)
            began = time.perf_counter()
            wait(client.submit(len, sent, workers=[second], pure=False))
            rates.append(2**26 / (time.perf_counter() - began))
    return Costs(thread / tasks, (here - thread) / tasks, there / tasks), max(rates)


def constants(path: Path) -> None:
    costs, rate = measured_costs(path)
    rows = [
        (name, f"{1e3 * getattr(costs, name):.2f}", f"{1e3 * getattr(PLANNED, name):.2f}")
        for name in ("client", "scheduler", "worker")
    ]
    print_table(("milliseconds of a task", "measured", "planned with"), rows)
    print(f"a link on this machine: {format_rate(rate)}")


class Fitted(NamedTuple):
    """A fit: its plan, seconds of its passes, and what was sent."""

    plan: Any
    passes: list[float]
    sent: Sent


def fitted(path: Path, method: str, workers: int) -> Fitted:
    """Fit on a cluster of processes, and count what was sent; on none, in this process with one thread."""
    from streampca.machine import limit_cores

    plans, passes = [], []

    def listener(event: Any) -> None:
        plans.extend([event.plan] if isinstance(event, Planned) else [])
        passes.extend([event.seconds] if isinstance(event, PassFinished) else [])

    model = streampca.PCA(20, method=method, max_passes=4 if method == "randomized" else None)
    if not workers:
        with limit_cores(1):
            streampca.fit(path, model, memory="1GiB", listener=listener)
        return Fitted(plans[0], passes, Sent())
    from distributed import Client, get_task_stream

    with cluster_of(workers) as cluster, Client(cluster) as client:
        streampca.fit(path, model, memory="1GiB", cluster=client, listener=lambda event: None)  # imports
        client.run(note_sums)
        before = client.run(outgoing)
        with get_task_stream(client) as stream:
            streampca.fit(path, model, memory="1GiB", cluster=client, listener=listener)
        after, sums = client.run(outgoing), client.run(sums_read)
    keys = [key for each in stream.data if isinstance(key := each["key"], tuple) and not key[0].startswith(OTHER_TASKS)]
    last = list(dict.fromkeys(map(pass_of, keys)))[-len(passes) :]  # the first are of the fit before
    done = sum(pass_of(key) in last for key in keys)
    logged = [entry for worker, log in after.items() for entry in log[len(before[worker]) :] if entry[2] in after]
    read = [entry for entries in sums.values() for entry in entries]
    vectors = sum(size for key, size, _ in logged if "send-" in key)
    sizes = len({key for key, _ in read}), sum(size for _, size in read)
    return Fitted(plans[0], passes, Sent(sum(passes), done, *sizes, vectors))


def pass_of(key: tuple[str, ...]) -> str:
    """Return the name of the pass in which a task folds a span or adds two sums."""
    return key[0].removeprefix("merge-")


def note_sums(dask_worker: Any) -> None:
    """Let a worker note what others read of its sums, which they ask for without tasks."""
    from streampca.execution import peer_sums

    def noting(function: Any) -> Any:
        def noted(key: str, *arguments: Any, dask_worker: Any) -> Any:
            answer = function(key, *arguments, dask_worker=dask_worker)
            arrays = answer.values() if isinstance(answer, dict) else [answer]
            size = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
            dask_worker.sums_read.append((key, size))
            return answer

        noted.__module__, noted.__qualname__ = function.__module__, function.__qualname__  # found there by pickle
        return noted

    dask_worker.sums_read = []
    peer_sums._described, peer_sums._panel = noting(peer_sums._described), noting(peer_sums._panel)


def sums_read(dask_worker: Any) -> list[tuple[str, int]]:
    """Keys and bytes of what others have read of a worker's sums."""
    return dask_worker.sums_read


def outgoing(dask_worker: Any) -> list[tuple[str, int, str]]:
    """Keys and bytes that a worker has sent, and the address that asked for them."""
    return [
        (str(key), size or 0, str(entry["who"]))
        for entry in dask_worker.transfer_outgoing_log
        for key, size in entry["keys"].items()
    ]


def real(directory: Path, options: argparse.Namespace) -> bool:
    """Print what clusters of processes send, and the seconds they take; return whether the simulation agrees."""
    path, agree = npy_of(directory, strokes, options.samples, options.side), True
    costs, rate = measured_costs(path)
    rows, timed = [], []
    for method in ("covariance", "randomized"):
        alone = in_fresh_process(fitted, path, method, 0)
        for workers in (1, 2, 4, 8):
            there = in_fresh_process(fitted, path, method, workers)
            shared = replace(there.plan.sharing, workers=workers, network=rate)
            number = len(there.passes)
            folding = sum(alone.passes) / len(alone.passes)
            found = Simulation(shared, costs, folding=folding).run()
            if workers > 2:
                for name, measured in vars(there.sent).items():
                    if name != "seconds" and (simulated := number * getattr(found, name)):
                        ratio = measured / simulated
                        agree &= 1 / WITHIN_REAL <= ratio <= WITHIN_REAL
                        rows.append([method, workers, name, measured, simulated, f"{ratio:.2f}"])
                continue
            ratio = sum(there.passes) / (number * found.seconds)
            agree &= options.busy or 1 / WITHIN_REAL <= ratio <= WITHIN_REAL
            timed.append([method, workers, f"{sum(there.passes):.2f}", f"{number * found.seconds:.2f}", f"{ratio:.2f}"])
    print_cells(["all passes", "workers", "", "cluster", "simulated", "ratio"], rows)
    print()
    print_cells(["all passes", "workers", "seconds", "simulated", "ratio"], timed)
    return agree


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", nargs="?", choices=("table", "curve", "constants", "real"), default="table")
    options.add_argument("--measure", action="store_true", help="simulate with seconds of tasks measured here")
    options.add_argument("--slow", type=float, default=0.0, help="share of workers that are slow")
    options.add_argument("--deaths", type=float, default=0.0, help="deaths of a worker in an hour")
    options.add_argument("--shape", default="100000000x64x64", help="of a curve")
    options.add_argument("--network", help="of a curve, such as 25Gbit")
    options.add_argument("--samples", type=int, default=200000, help="of real clusters")
    options.add_argument("--side", type=int, default=32, help="pixels of real clusters")
    options.add_argument("--busy", action="store_true", help="seconds of real clusters are not judged")
    options.add_argument("--directory", type=Path, help="where data are kept for the next run")
    given = options.parse_args()
    print(machine())
    trouble, agree = Trouble(slow_share=given.slow, deaths=given.deaths), True
    with folder(given.directory) as directory:
        small = partial(npy_of, directory, strokes, 1000, 8)
        costs = measured_costs(small())[0] if given.measure else PLANNED
        if given.what == "constants":
            constants(small())
        elif given.what == "real":
            agree = real(directory, given)
        elif given.what == "table":
            agree = table(costs, trouble)
        else:
            samples, *lengths = map(int, given.shape.split("x"))
            network = {"network": given.network} if given.network else {}
            curve(sharing_of(samples, tuple(lengths), 2, network), costs, trouble)
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
