"""Clusters of real processes for tests: forked ones, and schedulers and workers of dask's command line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import dask
import distributed
from distributed.comm import tcp
from shell import FORKED

from streampca.units import MIB

PATHS = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])  # of workers


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
