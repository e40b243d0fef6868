"""Clusters of real processes for tests: forked ones, and schedulers and workers of dask's command line."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import dask
import distributed
from distributed.comm import tcp
from shell import FORKED

from streampca.events import silent
from streampca.execution import LocalExecutor
from streampca.execution.reduction import Node, Tree
from streampca.units import MIB

PATHS = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])  # of workers


def tree_sum(task, spans, merge):
    """The sum of all spans along the tree, each folded alone by this process."""
    tree, sums = Tree(0, len(spans)), {}
    for number, span in enumerate(spans):
        sums[Node(number, number)] = LocalExecutor().fold(task, [span], merge, listener=silent)
    while tree.root not in sums:
        left, right = next(
            (part, other) for part in sorted(sums)
            for other, is_left in [tree.partner(part)] if other in sums and not is_left
        )  # fmt: skip
        merge(sums[left], sums.pop(right))
        sums[Node(left.first, right.last)] = sums.pop(left)
    return sums[tree.root]


@contextmanager
def processes_here(folder, count, **options):
    """Start a cluster of processes forked from one that has imported the package, as tests kill and restart many."""
    forkserver.ensure_running()
    # Without this, MALLOC_TRIM_THRESHOLD_ stays set in this process and lowers peaks that later tests measure.
    how = {
        "worker.multiprocessing-method": FORKED.get_start_method(),
        "nanny.pre-spawn-environ": {},
        "scheduler.allowed-failures": 1,
    }
    with (
        dask.config.set({f"distributed.{name}": value for name, value in how.items()}),
        distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, memory_limit=1024 * MIB, dashboard_address="127.0.0.1:0",
            local_directory=str(folder / "dask"), silence_logs=50, **options,
        ) as cluster,
    ):  # fmt: skip
        yield cluster


@contextmanager
def process(folder, name, *options):
    """A process of dask's command line in a folder, killed afterwards."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *map(str, options)]
    with open(folder / f"{name}.log", "a") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": PATHS}, cwd=folder)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def free_address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{found.getsockname()[1]}"


def scheduler(folder, address):
    options = ("--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard", "--no-jupyter")
    return process(folder, "scheduler", *options)


def worker(folder, address):
    options = ("--nthreads", 1, "--no-dashboard", "--local-directory", folder / "space", "--memory-limit", "1GiB")
    return process(folder, "worker", address, *options)


def wait_until(true, seconds=20):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.05)


def pause(fraction, dask_worker):
    """Let dask pause a worker as for its memory, by a fraction of it that is always in use; or end that."""
    dask_worker.memory_manager.memory_pause_fraction = fraction


@contextmanager
def troubled(cluster, client, seed):
    """Kill, stop, pause, restart, add and retire workers at random moments, while the block runs."""
    ended = threading.Event()
    troubling = threading.Thread(target=_trouble, args=(cluster, client, random.Random(seed), ended))  # noqa: S311
    with dask.config.set({"distributed.scheduler.allowed-failures": 9}):
        troubling.start()
        try:
            yield
        finally:
            ended.set()
            troubling.join()


def _trouble(cluster, client, luck, ended):
    for _ in range(4):
        if ended.wait(luck.uniform(0.1, 1.0)):
            return
        pids = client.run(os.getpid, on_error="ignore")
        event = luck.choice(["kill", "stop", "pause", "add", "retire", "restart"])
        if event == "add" or len(pids) < 2:
            cluster.scale(len(cluster.workers) + 1)
            continue
        address = luck.choice(sorted(pids))
        if event == "retire":
            client.retire_workers([address])
        elif event == "restart":
            client.restart_workers([address], timeout=60, raise_for_error=False)
        elif event == "kill":
            os.kill(pids[address], signal.SIGKILL)
        elif event == "stop":
            os.kill(pids[address], signal.SIGSTOP)
            ended.wait(luck.uniform(0.2, 1.5))
            os.kill(pids[address], signal.SIGCONT)
        else:
            client.run(pause, 1e-9, workers=[address], on_error="ignore")
            ended.wait(luck.uniform(0.2, 1.5))
            client.run(pause, 0.8, workers=[address], on_error="ignore")


COUNTS = Counter()  # bytes over TCP: "received", "sent", and "sent to" each address; and of the "largest" message


def count_bytes():
    """Count from now on, in any process of a cluster."""
    COUNTS.clear()
    if hasattr(tcp, "counts"):
        return
    tcp.counts, read, write = True, tcp.read_bytes_rw, tcp.TCP.write

    async def read_and_counted(stream, n):
        COUNTS["received"] += n
        COUNTS["largest"] = max(COUNTS["largest"], n)
        return await read(stream, n)

    async def written_and_counted(self, message, **options):
        count = await write(self, message, **options)
        COUNTS["sent"] += count
        COUNTS[f"sent to {self.peer_address}"] += count
        return count

    tcp.read_bytes_rw, tcp.TCP.write = read_and_counted, written_and_counted


def counted_bytes():
    return dict(COUNTS)
