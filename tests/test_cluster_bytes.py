"""Bytes of a pass on a cluster: one sum comes to the process that was started, and next to nothing by the scheduler."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import streampca
from streampca.accumulators import Gram, ObservedRegression, Scatter, ScatterBlock
from streampca.events import silent
from streampca.fitting.methods.tasks import FeatureRanges, FeaturesTask, SamplesTask
from streampca.planning.blocks import SPANS_A_WORKER, spans_of
from streampca.readers import open_collection

distributed = pytest.importorskip("distributed")
from clusters import (  # noqa: E402 - needs distributed
    count_bytes,
    counted_bytes,
    free_address,
    processes_here,
    scheduler,
    tree_sum,
    troubled,
    worker,
)
from faulty import Slow  # noqa: E402 - the same

from streampca.execution.cluster import DaskExecutor  # noqa: E402 - the same

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module", params=[2, 4, 8])
def cluster(request, tmp_path_factory):
    """A client of so many one-thread workers, and their number; all in processes of their own."""
    folder, address = tmp_path_factory.mktemp("bytes"), free_address()
    with ExitStack() as stack:
        stack.enter_context(scheduler(folder, address))
        for _ in range(request.param):
            stack.enter_context(worker(folder, address))
        client = stack.enter_context(distributed.Client(address, timeout=60, set_as_default=False))
        client.wait_for_workers(request.param)
        yield client, request.param


def saved(folder, shape):
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    return str(folder / "x.npy")


def opened(folder, shape, seconds):
    return Slow(open_collection(saved(folder, shape)), seconds)


def pass_of(kind, folder, spans, seconds=0.0):
    """A task of each kind, whose reads take so long, the spans that it is cut into, and how sums merge."""
    rng, along = np.random.default_rng(1), {"precision": "single", "product_rows": 64}
    if kind == "dual":
        new, collection = partial(Gram, 2048, product_features=64), opened(folder, (2048, 64 * spans), seconds)
        task = FeaturesTask(new, partial(Gram.from_state, copy=False), FeatureRanges(collection, 2048, 64), "single")
        return task, spans_of(64 * spans, spans, 64), Gram.absorb
    p, rows = (65536, 8) if kind == "randomized" else (2048, 64)
    if kind == "covariance":
        new, restored = partial(Scatter, p, **along), Scatter.from_state
    elif kind == "randomized":
        vectors = rng.standard_normal((p, 64), dtype=np.float32)
        new = partial(ScatterBlock, vectors, np.zeros(p), **along)
        restored = partial(ScatterBlock.from_state, vectors=vectors)
    else:
        model = np.linalg.qr(rng.standard_normal((p, 50)))[0], np.ones(50), 0.1, np.zeros(p)
        new, restored = partial(ObservedRegression, *model), partial(ObservedRegression.from_state, vectors=model[0])
    collection = opened(folder, (rows * spans, p), seconds)
    task = SamplesTask(new, partial(restored, copy=False), collection, rows)
    return task, spans_of(rows * spans, spans, rows), new.func.absorb


def counted(client, run):
    """Bytes that this process received, and those that it sent to the scheduler, while something ran."""
    count_bytes()
    run()
    counts = counted_bytes()
    return counts["received"], counts[f"sent to {client.scheduler.address}"]


@pytest.mark.parametrize("kind", ["covariance", "dual", "randomized", "em"])
def test_one_sum_of_a_pass_comes_here(cluster, tmp_path, kind):
    client, workers = cluster
    task, spans, merge = pass_of(kind, tmp_path, SPANS_A_WORKER * workers)
    state = sum(array.nbytes for name, array in task.start().state().items() if name != "vectors")
    here, by_scheduler = counted(client, lambda: DaskExecutor(client).fold(task, spans, merge, listener=silent))
    shares = f"{here / state:.4f} here, {by_scheduler / state:.4f} to the scheduler"
    print(f"{kind}, {workers} workers: {state} bytes, {shares}")
    assert state <= here <= 1.2 * state
    assert 0 < by_scheduler <= 0.01 * state


def test_scores_do_not_come_here(cluster, tmp_path):
    client, workers = cluster
    path = saved(tmp_path, (1024 * workers, 2048))
    model = streampca.fit(path, n_components=16, memory="400 MiB")
    how = {"cluster": client, "overwrite": True, "memory": "400 MiB"}
    here, by_scheduler = counted(client, lambda: model.write_scores(path, tmp_path / "s.npy", **how))
    scores = 1024 * workers * 16 * 4
    print(f"transform, {workers} workers: {scores} bytes, {here} here, {by_scheduler} to the scheduler")
    assert here <= 0.5 * scores


@pytest.fixture(scope="module", params=[2, 4, 8])
def many(request, tmp_path_factory):
    """A cluster whose workers may be killed, and the number that it begins with."""
    with processes_here(tmp_path_factory.mktemp("troubled"), request.param) as cluster:
        yield cluster, request.param


@pytest.fixture
def client_of_many(many):
    cluster, workers = many
    cluster.scale(workers)
    with distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(workers)
        yield client


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["covariance", "dual", "randomized", "em"])
def test_sums_have_the_same_bits_whatever_happens_to_workers(many, client_of_many, tmp_path, kind, seed):
    """Workers are killed, stopped, paused, restarted, retired and added at random moments."""
    cluster, workers = many
    with threadpool_limits(1):
        expected = tree_sum(*pass_of(kind, tmp_path, SPANS_A_WORKER * workers)).state()
    task, spans, merge = pass_of(kind, tmp_path, SPANS_A_WORKER * workers, seconds=0.2)
    with troubled(cluster, client_of_many, seed):
        found = DaskExecutor(client_of_many).fold(task, spans, merge, listener=silent).state()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("seed", range(20))
def test_scores_have_the_same_bits_whatever_happens_to_workers(many, client_of_many, tmp_path, seed):
    cluster, workers = many
    path, how = saved(tmp_path, (4096 * workers, 2048)), {"overwrite": True, "memory": "64 MiB"}
    model = streampca.fit(path, n_components=16, memory="400 MiB", samples=slice(2048))
    with threadpool_limits(1, user_api="blas"):
        model.write_scores(path, tmp_path / "alone.npy", **how)
    with troubled(cluster, client_of_many, seed):
        model.write_scores(Slow(open_collection(path), 0.05), tmp_path / "shared.npy", cluster=client_of_many, **how)
    assert (tmp_path / "shared.npy").read_bytes() == (tmp_path / "alone.npy").read_bytes()
