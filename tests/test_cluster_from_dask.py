"""Fits as seen from dask: names of tasks, clusters that adapt, workers that are paused or restarted."""

from __future__ import annotations

import threading
from collections import Counter

import by_options
import numpy as np
import pytest
from faulty import Counted, Held, Slow

import streampca
from streampca.events import BlockDone, PassStarted
from streampca.fitting.fit import fit_collection
from streampca.fitting.open_fit import Opened, prepare
from streampca.readers import open_collection
from streampca.units import MIB

distributed = pytest.importorskip("distributed")
from clusters import pause, processes_here, wait_until  # noqa: E402 - needs distributed
from dask.utils import key_split  # noqa: E402 - the same
from distributed.utils import key_split_group  # noqa: E402 - the same

from streampca.execution.executor import executing  # noqa: E402 - the same
from streampca.execution.workers import Workers  # noqa: E402 - the same

pytestmark = pytest.mark.slow

N, P = 96000, 64


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("from-dask") / "images.npy"
    # Whole numbers, whose sums are exact: bits are equal for any number of spans.
    np.save(path, np.random.default_rng(0).integers(0, 255, (N, P), np.uint8))
    return str(path)


@pytest.fixture(scope="module")
def expected(images):
    return by_options.fit(images, n_components=3, method="covariance", memory="16 MiB")


@pytest.fixture
def cluster(tmp_path):
    with processes_here(tmp_path, 2) as cluster:
        yield cluster


def fitted(source, cluster, **how):
    with executing(cluster) as executor:
        request = by_options.request(3, "covariance", 16 * MIB, workers=executor.workers)
        return fit_collection(Opened(prepare(source, None), request), executor=executor, **how)


def same_bits(model, expected):
    for name in ("mean", "components", "explained_variance"):
        np.testing.assert_array_equal(getattr(model, name), getattr(expected, name), err_msg=name)


def test_tasks_are_called_what_their_pass_is_called(tmp_path, images, cluster):
    """Equal passes have a prefix, by which dask counts and colours tasks, and each pass has a group."""
    noted = tmp_path / "keys"
    with distributed.Client(cluster, set_as_default=False) as client:
        client.register_plugin(Counted(noted))
        how = {"cluster": client, "memory": "24 MiB"}
        model = streampca.fit(images, streampca.PCA(3, method="covariance"), **how)
        model.write_scores(images, tmp_path / "scores.npy", **how)
        passes = streampca.fit(images, streampca.PCA(3, method="randomized", tol=1e-2), **how).provenance["passes"]
    keys = set(noted.read_text().splitlines())
    prefixes, groups = Counter(map(key_split, keys)), Counter(map(key_split, {key_split_group(key) for key in keys}))
    assert {prefix for prefix in prefixes if not prefix.startswith(("send-", "merge-"))} == {
        "check-reading", "scatter-matrix", "scores", "products-with-vectors"
    }  # fmt: skip
    assert {prefix.removeprefix("merge-") for prefix in prefixes if prefix.startswith("merge-")} <= set(prefixes)
    assert prefixes["scatter-matrix"] == len(model.provenance["plan"]["spans"])
    assert groups["products-with-vectors"] == passes > 1
    assert groups["scatter-matrix"] == groups["scores"] == 1


def workers_of(client):
    """What the scheduler knows of its workers; `Client.scheduler_info` has none of them, now and then."""
    return client.sync(client.scheduler.identity, n_workers=-1)["workers"]


def status_of(client, address):
    return workers_of(client)[address]["status"]


def test_an_adaptive_cluster_grows_for_a_fit_and_shrinks_after_it(tmp_path, images, expected, cluster):
    """From no worker to as many as it may have, which the plan is made for, and to none; and once more."""
    cluster.scale(0)
    cluster.adapt(minimum=0, maximum=3, interval="50ms", target_duration="100ms", wait_count=2)
    wait_until(lambda: not cluster.scheduler_info["workers"])
    for name in ("once", "again"):
        go = tmp_path / f"go-{name}"
        grown = threading.Thread(
            target=lambda go=go: (wait_until(lambda: len(cluster.scheduler_info["workers"]) == 3, 60), go.touch())
        )
        grown.start()
        model = fitted(Held(open_collection(images), go), cluster)
        grown.join()
        same_bits(model, expected)
        assert model.provenance["plan"]["workers"] == 3
        wait_until(lambda: not cluster.scheduler_info["workers"], 60)


def test_all_workers_are_seen_at_every_look(cluster):
    """Though the client's own regular looks, which ask for none of them, come between."""
    with distributed.Client(cluster, set_as_default=False) as client:
        client._periodic_callbacks["scheduler-info"].callback_time = 1  # ms
        workers = Workers(client)
        assert {workers.size for _ in range(500)} == {2}


@pytest.mark.parametrize("moment", [PassStarted, BlockDone])
@pytest.mark.parametrize("security", [None, pytest.param("tls", marks=pytest.mark.campaign)])
def test_nobody_waits_for_a_paused_worker(tmp_path, images, expected, security, moment):
    """Before it begins or in its span: it ends what it has begun, and the other does the rest, with its sum."""
    heard, how = [], {"security": distributed.Security.temporary()} if security else {}
    with processes_here(tmp_path, 2, **how) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        paused, _ = workers_of(client)

        def listener(event):
            if isinstance(event, moment) and not any(isinstance(before, moment) for before in heard):
                client.run(pause, 1e-9, workers=[paused])
                wait_until(lambda: status_of(client, paused) == "paused")
            heard.append(event)

        model = fitted(Slow(open_collection(images), 0.05), client, listener=listener)
        assert status_of(client, paused) == "paused"
        client.run(pause, 0.8, workers=[paused])
    same_bits(model, expected)
    assert sum(event.samples for event in heard if isinstance(event, BlockDone)) == N


@pytest.mark.parametrize("security", [None, pytest.param("tls", marks=pytest.mark.campaign)])
def test_a_worker_that_is_restarted_loses_its_span_alone(tmp_path, images, expected, security):
    """Over TLS with credentials made for the cluster, too."""
    heard, how = [], {"security": distributed.Security.temporary()} if security else {}
    with processes_here(tmp_path, 2, **how) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        restarted, _ = workers_of(client)

        def listener(event):
            if isinstance(event, BlockDone) and not any(isinstance(before, BlockDone) for before in heard):
                client.restart_workers([restarted])
            heard.append(event)

        model = fitted(Slow(open_collection(images), 0.05), client, listener=listener)
    same_bits(model, expected)
    assert sum(event.samples for event in heard if isinstance(event, BlockDone)) == N
