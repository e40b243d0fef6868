"""The sum of all spans on a cluster: its bits whatever happens to workers, and what travels for it."""

from __future__ import annotations

import errno
import os
import signal
from functools import partial

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from streampca.accumulators import Scatter, ScatterBlock
from streampca.events import BlockDone, Checkpoint, Resumed, Warned, silent
from streampca.execution import LocalExecutor, checkpoint_file
from streampca.execution.checkpoint import CheckpointFolder, Checkpointing
from streampca.execution.reduction import RUN, Node, Tree
from streampca.fitting.methods.tasks import SamplesTask
from streampca.planning.blocks import spans_of
from streampca.readers import open_collection

distributed = pytest.importorskip("distributed")
from clusters import (  # noqa: E402 - the same
    count_bytes,
    counted_bytes,
    free_address,
    processes_here,
    scheduler,
    troubled,
    worker,
)
from faulty import Slow  # noqa: E402 - the same
from shell import python  # noqa: E402 - the same

from streampca.execution import cluster  # noqa: E402 - the same
from streampca.execution.cluster import MOST_BY_SCHEDULER, DaskExecutor  # noqa: E402 - the same

pytestmark = pytest.mark.slow

N, P, SPANS, ROWS = 24000, 60, 12, 1000
PANEL = 4096  # bytes of a panel, of a matrix of 28800


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("reduction") / "images.npy"
    np.save(path, np.random.default_rng(0).normal(size=(N, P)).astype(np.float32))
    return str(path)


def task_of(collection, vectors=None):
    along = {"precision": "single", "product_rows": 512}
    if vectors is None:
        return SamplesTask(partial(Scatter, P, **along), partial(Scatter.from_state, copy=False), collection, ROWS)
    new = partial(ScatterBlock, vectors, np.zeros(P), **along)
    return SamplesTask(new, partial(ScatterBlock.from_state, vectors=vectors, copy=False), collection, ROWS)


@pytest.fixture(scope="module")
def expected(images):
    """Three runs of four spans: the sum of the first two absorbs the third one's."""
    spans, task = spans_of(N, SPANS, ROWS), task_of(open_collection(images))
    assert Tree(0, SPANS).partner(Node(0, 2 * RUN - 1)) == (Node(2 * RUN, SPANS - 1), False)
    with threadpool_limits(1):
        runs = [
            LocalExecutor().fold(task, spans[run : run + RUN], Scatter.absorb, listener=silent)
            for run in range(0, SPANS, RUN)
        ]
    runs[0].absorb(runs[1])
    runs[0].absorb(runs[2])
    return runs[0].state()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(1, 20))])
def test_bits_are_equal_whatever_happens_to_workers(tmp_path, images, expected, seed, monkeypatch):
    monkeypatch.setattr(cluster, "PANEL", PANEL)
    spans, task = spans_of(N, SPANS, ROWS), task_of(Slow(open_collection(images), 0.1))
    with (
        processes_here(tmp_path, 3) as workers,
        distributed.Client(workers, set_as_default=False) as client,
        troubled(workers, client, seed),
    ):
        found = DaskExecutor(client).fold(task, spans, Scatter.absorb, listener=silent).state()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_large_sums_meet_by_panels(tmp_path, images, expected, monkeypatch):
    spans, task, largest = spans_of(N, SPANS, ROWS), task_of(open_collection(images)), []
    with processes_here(tmp_path, 2) as workers, distributed.Client(workers, set_as_default=False) as client:
        for panel in (PANEL, expected["scatter"].nbytes):
            monkeypatch.setattr(cluster, "PANEL", panel)
            client.run(count_bytes)
            found = DaskExecutor(client).fold(task, spans, Scatter.absorb, listener=silent).state()
            largest.append(max(counts["largest"] for counts in client.run(counted_bytes).values()))
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert largest[0] < 2 * PANEL < expected["scatter"].nbytes <= largest[1]


def saved_in(folder, heard):
    """A checkpoint in which every sum is saved at once."""
    saved = CheckpointFolder(Checkpointing(str(folder), 0), {}, listener=heard.append)
    saved.begin({})
    return saved.stage("scatter")


def test_a_worker_killed_while_it_holds_saved_sums(tmp_path, images, expected, monkeypatch):
    """The saved sums go to the other worker, though the killed one was there at the last look."""
    monkeypatch.setattr("streampca.execution.workers.LOOK", 5.0)
    monkeypatch.setattr(cluster, "TAKES", 0.5)
    spans, task = spans_of(N, SPANS, ROWS), task_of(Slow(open_collection(images), 0.05))
    with processes_here(tmp_path, 2) as workers, distributed.Client(workers, set_as_default=False) as client:
        pids = client.run(os.getpid)

        class Killing(list):
            def append(self, event):
                super().append(event)
                if len(self) == 4:
                    os.kill(pids[min(pids)], signal.SIGKILL)

        checkpoint = saved_in(tmp_path / "checkpoint", Killing())
        found = DaskExecutor(client).fold(task, spans, Scatter.absorb, listener=silent, checkpoint=checkpoint).state()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


DIES = """
import os, signal, sys
import distributed
from test_cluster_reduction import DaskExecutor, Resumed, Scatter, SPANS, N, ROWS, Slow
from test_cluster_reduction import open_collection, saved_in, silent, spans_of, task_of

class Dying(list):
    def append(self, event):
        super().append(event)
        if len(self) == 4:
            os.kill(os.getpid(), signal.SIGKILL)

images, address, folder = sys.argv[1:]
with distributed.Client(address, timeout=60, set_as_default=False) as client:
    client.wait_for_workers(2)
    task = task_of(Slow(open_collection(images), 0.05))
    checkpoint = saved_in(folder, Dying())
    DaskExecutor(client).fold(task, spans_of(N, SPANS, ROWS), Scatter.absorb, listener=silent, checkpoint=checkpoint)
"""


@pytest.mark.parametrize("sees", [True, False])
def test_a_killed_client_resumes_with_the_sums_that_workers_have_written(tmp_path, images, expected, sees, monkeypatch):
    """Workers that do not see its folder, which the system finds for each process in another place, send their sums."""
    address, heard, saves = free_address(), [], []
    here, there = (tmp_path / name for name in ("here", "there"))
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    folder = "checkpoint" if sees else "/proc/self/cwd/checkpoint"
    with scheduler(tmp_path, address), worker(there, address), worker(there, address):
        died = python(DIES, images, address, folder)
        assert died.returncode == -signal.SIGKILL, died.stderr
        with distributed.Client(address, timeout=60, set_as_default=False) as client:
            checkpoint = saved_in(folder, saves)
            found = DaskExecutor(client).fold(
                task_of(open_collection(images)), spans_of(N, SPANS, ROWS), Scatter.absorb,
                listener=heard.append, checkpoint=checkpoint,
            ).state()  # fmt: skip
    resumed = sum(event.samples for event in heard if isinstance(event, Resumed))
    assert resumed >= 4 * N // SPANS - N // SPANS
    assert resumed + sum(event.samples for event in heard if isinstance(event, BlockDone)) == N
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert not list(there.glob("checkpoint*"))


WRITE = checkpoint_file._write


def fail_to_write(times, noted):
    """Let the disk of this process be full so many times, and note which process writes after that."""
    failures = iter(range(times))

    def write(path, index, arrays):
        if next(failures, None) is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        WRITE(path, index, arrays)
        with open(noted, "a") as file:
            file.write(f"{os.getpid()}\n")

    checkpoint_file._write = write


@pytest.mark.parametrize("times", [1, 10**6])
def test_a_write_that_fails_is_tried_again_and_then_warned_of(tmp_path, images, expected, times, monkeypatch):
    """Not taken for a folder that the worker does not see; where all fail, this process fetches the sums."""
    monkeypatch.setattr(checkpoint_file, "_write", WRITE)
    spans, heard, noted = spans_of(N, SPANS, ROWS), [], tmp_path / "noted"
    with processes_here(tmp_path, 2) as workers, distributed.Client(workers, set_as_default=False) as client:
        client.run(fail_to_write, times, noted)
        fail_to_write(0, noted)  # this process notes what it writes
        checkpoint = saved_in(tmp_path / "checkpoint", heard)
        task = task_of(Slow(open_collection(images), 0.02))
        found = DaskExecutor(client).fold(
            task, spans, Scatter.absorb, listener=heard.append, checkpoint=checkpoint
        ).state()  # fmt: skip
    warnings = [event.message for event in heard if isinstance(event, Warned)]
    assert len(warnings) == (times > 1)
    assert all("No space left on device" in warning and "tried twice" in warning for warning in warnings)
    writers = noted.read_text().split()[1:]  # the first is the record, of this process
    assert (str(os.getpid()) in writers) == (times > 1)
    assert any(isinstance(event, Checkpoint) for event in heard)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_one_sum_comes_here_and_large_vectors_go_to_each_worker_once(tmp_path, images, monkeypatch):
    """Bytes are counted where a process reads and writes them; scheduler and workers are processes of their own.

    The scheduler's active memory manager, which is on by default, drops replicas that no task waits for, here at once.
    """
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__INTERVAL", "1ms")
    n = N // 12
    spans, address, saves = spans_of(n, SPANS, n // SPANS), free_address(), []
    vectors = np.random.default_rng(1).normal(size=(P, 18000))
    task = task_of(open_collection(images, samples=slice(0, n)), vectors)
    state = sum(array.nbytes for name, array in task.start().state().items() if name != "vectors")
    assert vectors.nbytes > MOST_BY_SCHEDULER
    with (
        scheduler(tmp_path, address),
        worker(tmp_path, address),
        worker(tmp_path, address),
        distributed.Client(address, timeout=60, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        checkpoint = saved_in(tmp_path / "checkpoint", saves)
        client.run(count_bytes)
        count_bytes()
        DaskExecutor(client).fold(task, spans, ScatterBlock.absorb, listener=silent, checkpoint=checkpoint)
        counts, by_worker = counted_bytes(), client.run(counted_bytes)
    assert len(saves) >= SPANS // RUN, "workers have written their sums"
    assert state <= counts["received"] <= 1.2 * state
    assert 0 < counts[f"sent to {address}"] <= 0.01 * state
    assert counts["sent"] >= vectors.nbytes
    by_workers = sum(counts["received"] for counts in by_worker.values())
    assert by_workers < 2.2 * vectors.nbytes + SPANS // 2 * state
