"""Fits on dask clusters of real processes: the same bits, whatever happens to a worker, or one clear line."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import by_options
import numpy as np
import psutil
import pytest
import zarr
from faulty import Counted, Hungry, Killing, Noting, Slow
from shell import fresh, succeeded, typed
from threadpoolctl import threadpool_limits

import streampca
from streampca import machine
from streampca.accumulators import ClassScatter, CrossScatter, Gram, GramBlock, GroupScatter, Scatter, ScatterBlock
from streampca.cli.config import load_run, make_run
from streampca.cli.pipeline import execute
from streampca.errors import RESUMABLE, ClusterError, ConfigError, DataError, RequestError, Stopped
from streampca.events import BlockDone, PassStarted, Planned, Resumed, Warned, silent
from streampca.execution import ClusterOptions, LocalExecutor
from streampca.execution.checkpoint import Checkpointing
from streampca.execution.connect import joined
from streampca.execution.executor import executing
from streampca.execution.workers import budget_within, limit_around
from streampca.fitting.fit import fit_collection
from streampca.fitting.methods.tasks import FeatureRanges, FeaturesTask, SamplesTask
from streampca.fitting.open_fit import Opened, prepare
from streampca.planning import copy_plan as planning_of_copies
from streampca.planning.blocks import spans_of
from streampca.preprocessing.copy import copy_collection
from streampca.readers import open_collection
from streampca.signals import stopping_on_signals
from streampca.units import MIB, parse_bytes

distributed = pytest.importorskip("distributed")
from clusters import (  # noqa: E402 - needs distributed
    PATHS,
    free_address,
    processes_here,
    scheduler,
    tree_sum,
    wait_until,
    worker,
)
from distributed.comm import connect  # noqa: E402 - the same

from streampca.execution.cluster import DaskExecutor  # noqa: E402 - needs distributed

pytestmark = pytest.mark.slow

N, P, SPANS, ROWS = 40000, 60, 8, 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def images(folder):
    path = folder / "images.npy"
    x = np.random.default_rng(0).normal(size=(N, P)) * np.geomspace(3, 0.1, P) + 10
    np.save(path, x.astype(np.float32))
    return str(path)


@pytest.fixture(scope="module")
def cluster(folder):
    with processes_here(folder, 2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(1)  # one that died may be on its way back
        yield client


def task_of(name, collection):
    """A task of each kind, its spans, and how partials merge."""
    along = {"precision": "single", "product_rows": 512}
    if name == "scatter":
        task = SamplesTask(partial(Scatter, P, **along), partial(Scatter.from_state, copy=False), collection, ROWS)
        return task, spans_of(N, SPANS, ROWS), Scatter.absorb
    if name == "scatter_block":
        vectors = np.random.default_rng(5).standard_normal((P, 5))
        new = partial(ScatterBlock, vectors, np.full(P, 7.0), **along)
        task = SamplesTask(new, partial(ScatterBlock.from_state, vectors=vectors, copy=False), collection, ROWS)
        return task, spans_of(N, SPANS, ROWS), ScatterBlock.absorb
    if name == "cross_scatter":
        new = partial(CrossScatter, P, 3, np.arange(N) % 3)
        task = SamplesTask(new, partial(CrossScatter.from_state, copy=False), collection, ROWS)
        return task, spans_of(N, SPANS, ROWS), CrossScatter.absorb
    if name == "class_scatter":
        codes = np.arange(N) % 3
        restored = partial(ClassScatter.from_state, copy=False)
        task = SamplesTask(partial(ClassScatter, P, 3, codes, **along), restored, collection, ROWS)
        return task, spans_of(N, SPANS, ROWS), ClassScatter.absorb
    if name == "group_scatter":
        new = partial(GroupScatter, np.arange(0, P, 2), 3, np.arange(N) % 3, **along)
        task = SamplesTask(new, partial(GroupScatter.from_state, copy=False), collection, ROWS)
        return task, spans_of(N, SPANS, ROWS), GroupScatter.absorb
    ranges = FeatureRanges(open_collection(collection.read(slice(0, 48)).copy()), 16, 4)
    if name == "sweep":
        kind, new = Gram, partial(Gram, 48, product_features=16)
    else:
        vectors = np.random.default_rng(5).standard_normal((48, 5))
        kind, new = GramBlock, partial(GramBlock, vectors, roots=np.arange(48.0) % 3, product_features=16)
    given = {"vectors": vectors} if kind is GramBlock else {}
    task = FeaturesTask(new, partial(kind.from_state, copy=False, **given), ranges, "single")
    return task, spans_of(P, SPANS, 4), kind.absorb


def same(one, other):
    one, other = one.state(), other.state()
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], strict=True, err_msg=name)


# -- the same answer


@pytest.mark.parametrize(
    "name", ["scatter", "scatter_block", "cross_scatter", "class_scatter", "group_scatter", "sweep", "gram_block"]
)
def test_every_executor_gives_the_same_bits(client, images, name):
    task, spans, merge = task_of(name, open_collection(images))
    assert len(spans) == SPANS
    with threadpool_limits(1):
        expected = tree_sum(task, spans, merge)
        if name == "scatter":  # the others hold what they read, and are planned with one thread
            here = LocalExecutor().fold(task, spans, merge, listener=silent)
            same(LocalExecutor().fold(task, spans, merge, threads=2, ahead=1, listener=silent), here)
    blocks = [task.counts(block) for span in spans for block in task.blocks(span)]
    for ahead in (0, 1) if name == "scatter" else (0,):
        heard = []
        same(DaskExecutor(client).fold(task, spans, merge, ahead=ahead, listener=heard.append), expected)
        assert sorted(heard, key=repr) == sorted(blocks, key=repr), "each block is told of once"


@pytest.mark.parametrize("method", ["covariance", "dual"])
def test_weights_travel(client, images, method):
    weights = np.random.default_rng(1).integers(0, 4, 48)
    how = {"n_components": 4, "method": method, "precision": "double", "sample_weight": weights, "samples": slice(48)}
    here, there = by_options.fit(images, **how), by_options.fit(images, **how, cluster=client)
    np.testing.assert_allclose(there.explained_variance, here.explained_variance, rtol=1e-10)
    assert abs(np.sum(there.components * here.components, axis=1)).min() > 1 - 1e-9


@pytest.mark.skipif(machine.integer_units() == "none", reason="this processor, or onnxruntime, has no integer units")
@pytest.mark.parametrize(("method", "shape"), [("covariance", (20_000, 400)), ("dual", (400, 20_000))])
def test_workers_multiply_whole_numbers_on_integer_units(client, folder, method, shape):
    path = folder / f"{method}-bytes.npy"
    np.save(path, np.random.default_rng(1).integers(0, 255, shape, np.uint8))
    how = {"n_components": 4, "method": method, "memory": "384 MiB"}
    here, there = by_options.fit(path, **how), by_options.fit(path, **how, cluster=client)
    assert there.provenance["samples_on_integer_units"] == shape[0]
    np.testing.assert_array_equal(there.explained_variance, here.explained_variance)


def test_an_update_is_shared_and_gives_the_bits_of_one_fit(client, folder, monkeypatch):
    monkeypatch.setattr("streampca.fitting.incremental.WAITING_BYTES", 1)  # samples are read as one batch
    x = np.random.default_rng(1).integers(0, 255, (3000, 16), dtype=np.uint8)
    np.save(folder / "later.npy", x[1000:])
    before = streampca.fit(x[:1000], streampca.PCA(3, method="covariance"))
    plans = []

    def listen(event):
        plans.extend([event.plan] if isinstance(event, Planned) else [])

    updated = streampca.update(before, folder / "later.npy", cluster=client, listener=listen)
    whole = streampca.fit(x, streampca.PCA(3, method="covariance"))
    assert plans[0].workers == 2
    np.testing.assert_array_equal(updated.components, whole.components)


def test_kernel_pca_has_the_same_bits_on_workers(client, folder):
    np.save(folder / "few.npy", np.random.default_rng(1).integers(0, 255, (600, 8, 8), np.uint8))
    asked = {"n_components": 5, "kind": "kernel-pca"}
    shared = by_options.fit(folder / "few.npy", landmarks=40, memory="256 MiB", cluster=client, **asked)
    collection = prepare(open_collection(folder / "few.npy"), shared.preparation)
    alone = fit_collection(Opened(collection, by_options.request(memory=256 * MIB, workers=2, **asked)))
    for name in ("components", "mean", "explained_variance"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name))
    np.testing.assert_allclose(shared.residual_estimate, alone.residual_estimate, rtol=1e-12)


def test_state_of_a_span_goes_on_where_it_was(client, images):
    """A fit may be begun in threads and ended on a cluster."""

    class Half:
        """State of a stopped run: two spans are merged, and half of the fourth is done."""

        def __init__(self, task, spans):
            first, fourth = (
                LocalExecutor().fold(task, some, Scatter.absorb, listener=silent)
                for some in (spans[:2], [spans[3]._replace(stop=spans[3].start + ROWS)])
            )
            self.kept = {0: (1, spans[1].stop, first), 3: (3, spans[3].start + ROWS, fourth)}
            self.offered = []

        def load(self, first):
            from streampca.execution import SavedPartial

            found = self.kept.get(first)
            return found and SavedPartial(*found[:2], found[2].state())

        def save_if_due(self, first, last, at, accumulator, *, now=False):
            self.offered.append((first, last, at))

    task, spans, merge = task_of("scatter", open_collection(images))
    with threadpool_limits(1):
        expected = tree_sum(task, spans, merge)
        checkpoint, heard = Half(task, spans), []
    same(DaskExecutor(client).fold(task, spans, merge, listener=heard.append, checkpoint=checkpoint), expected)
    assert sum(event.samples for event in heard if isinstance(event, Resumed)) == spans[1].stop + ROWS
    assert sum(event.samples for event in heard if isinstance(event, BlockDone)) == N - spans[1].stop - ROWS
    assert checkpoint.offered[-1] == (0, SPANS - 1, N)


# -- faults


def test_what_is_wrong_with_a_sample_is_said_as_ever(client, folder):
    x = np.ones((200, 5))
    x[150, 2] = np.nan
    np.save(folder / "bad.npy", x)
    with pytest.raises(DataError, match="sample 150"):
        streampca.fit(folder / "bad.npy", cluster=client)


def test_a_fit_that_is_told_to_stop_goes_on_later(client, folder, images):
    """Without waiting for the spans that workers are in."""
    collection = prepare(Slow(open_collection(images), 0.1), None)
    request = by_options.request(3, "covariance", 16 * MIB)
    how = {"checkpoint": Checkpointing(str(folder / "stopped")), "executor": DaskExecutor(client)}

    def stop(event):
        if isinstance(event, BlockDone):
            signal.raise_signal(signal.SIGTERM)

    with stopping_on_signals(owns_process=True), pytest.raises(Stopped, match="stopped by SIGTERM"):
        fit_collection(Opened(collection, request), **how, listener=stop)
    wait_until(lambda: not any(client.processing().values()), 5)
    model = fit_collection(Opened(collection, request), **how)
    expected = fit_collection(Opened(collection, request), executor=DaskExecutor(client))
    np.testing.assert_array_equal(model.components, expected.components)


def test_waiting_for_workers_ends_at_a_signal(client):
    """The first Ctrl-C, not when the time for waiting is over."""
    interrupting = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    with stopping_on_signals(owns_process=True), pytest.raises(Stopped, match="SIGINT"):  # noqa: PT012
        interrupting.start()
        with joined(client, ClusterOptions(workers=99)):
            pass
    assert time.monotonic() - began < 5
    interrupting.join()


def test_a_worker_of_too_little_memory_is_named_and_the_remedy_works(client, images):
    base = open_collection(images)
    with pytest.raises(ClusterError, match=r"have 1.0 GiB of memory.*this one needs 2.0 GiB") as error:
        DaskExecutor(client).check(partial(base.read, slice(0, 1)), 2048 * MIB, silent)
    least = parse_bytes(re.search(r"at least (\S+),", str(error.value))[1])
    assert budget_within(least) >= 2048 * MIB
    most = parse_bytes(re.search(r"at most (.*)\.$", str(error.value))[1])
    DaskExecutor(client).check(partial(base.read, slice(0, 1)), most, silent)


@pytest.mark.parametrize("budget", [MIB, 1000 * MIB + 1, 2**40 + 7])
def test_memory_around_a_budget_holds_it(budget):
    assert budget <= budget_within(limit_around(budget)) <= budget + 2


def test_a_worker_without_a_package_is_named(client, monkeypatch):
    monkeypatch.setattr("streampca.execution.workers.SHOWN", 1)
    monkeypatch.setattr("streampca.execution.workers.PACKAGES", ("numpy", "no_such_package"))
    with pytest.raises(ClusterError, match=r"^workers tcp://\S+ and 1 more lack no_such_package; .*pip install"):
        DaskExecutor(client).check(int, MIB, silent)


def test_a_worker_that_comes_later_and_is_unfit_is_left_out(client):
    """It would fail the spans that others can do; the run does not wait for the answers of those that join."""
    heard, asked, answer = [], [], threading.Event()
    executor = DaskExecutor(client)
    executor.check(int, MIB, heard.append)
    workers = executor._workers
    late, other = workers._suitable
    workers._suitable.discard(late)

    def present():
        workers._looked = 0.0
        return workers.present()

    def dies(workers):
        asked.append(list(workers))
        answer.wait(20)
        raise OSError

    workers._problems_of = dies
    assert present() == present() == [other]
    wait_until(lambda: asked == [[late]])
    assert present() == [other]
    workers._problems_of = lambda workers: [([*workers], f"worker {', '.join(workers)} cannot read the collection.")]
    answer.set()
    wait_until(lambda: present() == [other] and heard)
    assert heard == [Warned(f"a worker is left out: worker {late} cannot read the collection.")], "it was asked again"
    workers._unsuitable.clear()
    workers._problems_of = lambda workers: []
    wait_until(lambda: sorted(present()) == sorted([late, other]))


def test_a_collection_in_memory_is_not_sent_if_it_is_large(client, monkeypatch):
    monkeypatch.setattr("streampca.execution.workers.MOST_SENT", MIB)
    with pytest.raises(ClusterError, match=r"is 1.5 MiB in this process's memory.*save it"):
        streampca.fit(np.ones((1536, 128)), cluster=client)


# -- how it is asked for


def test_tasks_are_as_few_as_predicted(client, folder):
    """They grow with spans, never with chunks, of which there are 5000."""
    path, noted = str(folder / "chunks.zarr"), folder / "tasks"
    x = np.random.default_rng(0).integers(0, 255, (5000, 1024), dtype=np.uint8)
    zarr.create_array(path, data=x, chunks=(1, 1024), shards=(1000, 1024))
    client.register_plugin(Counted(noted))
    model = streampca.fit(path, streampca.PCA(3, method="covariance"), memory="48 MiB", cluster=client)
    spans = len(model.provenance["plan"]["spans"])
    assert spans > 1
    # One that holds what a check takes and one a worker that checks; one that holds the work of the pass; one a span,
    # and at most one for each sum that travels.
    assert 0 <= len(set(noted.read_text().splitlines())) - (1 + 2 + 1 + spans) < spans
    client.unregister_scheduler_plugin("counted")


def test_run_files_name_clusters(folder, images):
    config = f"""
collection: {{source: {images}}}
model: {{n_components: 3}}
run: {{memory: 64 MiB, cluster: local, workers: 2}}
output: {{model: {folder / "run.zarr"}}}
"""
    (folder / "run.yaml").write_text(config)
    succeeded("run", folder / "run.yaml", "-q")
    assert streampca.load(folder / "run.zarr").provenance["plan"]["workers"] == 2


def test_processes_of_this_machine(folder, images):
    succeeded("fit", images, "-k", 3, "--workers", 2, "--memory", "64MiB", "-o", folder / "two.zarr", "-q")
    plan = streampca.load(folder / "two.zarr").provenance["plan"]
    assert (plan["workers"], plan["cores"]) == (2, 1), "one core of each"


def test_a_script_without_a_guard_is_told_of_it(folder, images):
    script = folder / "unguarded.py"
    call = f"streampca.fit({images!r}, n_components=2, samples=slice(100), memory='64 MiB', workers=2)"
    for guard in ("", 'if __name__ == "__main__": '):
        script.write_text(f"import streampca\n{guard}{call}\n")
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) == bool(guard), done.stderr
        if not guard:
            assert done.stderr.count("Traceback") == 1
            assert 'put the call under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


def test_workers_copy_what_one_process_copies(client, folder, images, monkeypatch):
    monkeypatch.setattr(planning_of_copies, "MOST_SHARD", 64 * 2**10)
    pids, heard = folder / "pids-copied", []
    copy_collection(open_collection(images), folder / "alone.zarr")
    copy_collection(
        Noting(open_collection(images), pids),
        folder / "shared.zarr",
        executor=DaskExecutor(client),
        listener=heard.append,
    )
    assert content(folder / "shared.zarr" / "images") == content(folder / "alone.zarr" / "images")
    assert sum(event.samples for event in heard if isinstance(event, BlockDone)) == N
    assert str(os.getpid()) not in pids.read_text().split()


def content(path):
    """Bytes of every file of an output."""
    files = [file for file in [path, *path.rglob("*")] if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.mark.parametrize(("run", "message"), [
    ({"worker_memory": "1GiB"}, "worker_memory is an option of clusters; give workers or cluster with it"),
    ({"cluster": "configured"}, "needs its kind or address"),
    ({"cluster": "configured", "worker_memory": "1GiB"}, "needs its kind or address"),
    ({"cluster": "slurm"}, "give their number, workers"),
    ({"cluster": "tcp://x", "cluster_options": {"cores": 1}}, "give cluster with them"),
    ({"cluster": "tcp://x", "worker_memory": "1GiB"}, "worker_memory is for workers that are started"),
    ({"cluster": "pbs", "workers": 1, "worker_memory": "1GiB", "cluster_options": {"memory": "1GiB"}}, "leave one"),
    ({"cluster": "os.system"}, "cluster 'os.system' is not known; give one of local, slurm"),
    ({"cluster": "sge", "cluster_options": {"job_cls": "os.system"}}, "'job_cls' of a cluster is not known"),
    ({"cluster": "sge", "cluster_options": {"queue": "a\nrm -r x"}}, "as it goes to a shell"),
    ({"cluster": "sge", "cluster_options": {"local_directory": "$(rm)"}}, "as it goes to a shell"),
    ({"cluster": "sge", "cluster_options": {"interface": "--preload"}}, "as it goes to a shell"),
    ({"cluster": "sge", "cluster_options": {"memory": "1 ; rm"}}, "'1 ; rm'"),
    ({"cluster": "sge", "cluster_options": {"cores": "2"}}, "cores = '2' is not a number of at least 1"),
    ({"workers": 0}, "run.workers = 0"),
    ({"kind": "dask"}, "run.kind is not a key of run files"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(run, message):
    with pytest.raises((ConfigError, RequestError), match=re.escape(message)):
        execute(make_run({"collection": {"source": "x"}, "output": {"model": "m"}, "run": run}))


@pytest.mark.parametrize(("cluster", "error", "message"), [
    (ClusterOptions("no_such_module.Cluster"), RequestError, "is not known; give one of local, slurm"),
    (ClusterOptions("slurm", options={"colour": 1, "memory": 1}), RequestError, "refuses its options: .*colour"),
    (ClusterOptions("slurm"), RequestError, "must have a memory; give worker_memory"),
    (ClusterOptions("slurm", options={"shared_temp_directory": "/no"}, memory=1), ClusterError, "into /no: No such"),
    (ClusterOptions("slurm", options={"shared_temp_directory": "a b"}, memory=1), RequestError, "called 'a b'"),
    (0, RequestError, "cluster = 0: give a kind of cluster"),
    (True, RequestError, "cluster = True: give a kind of cluster"),
    (3.5, RequestError, "cluster = 3.5: give a kind of cluster"),
    (4, RequestError, "cluster = 4 is a number of processes; give workers=4 in its place"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*Cluster.__del__")  # of dask, for one that it did not make
def test_clusters_that_are_none(images, cluster, error, message):
    with pytest.raises(error, match=message):
        streampca.fit(images, cluster=cluster)


def test_an_address_where_nobody_is(images, folder, monkeypatch):
    monkeypatch.setattr("streampca.execution.connect.REACH", 0.5)
    said = typed("fit", images, "--cluster", free_address(), "-o", folder / "none.zarr")
    assert said.code == 1
    assert re.search(r"^streampca: cannot reach tcp://127.0.0.1:\d+: .*check the address", said.err)
    assert not (folder / "none.zarr").exists()


# -- who may use a scheduler


def listening(process):
    """TCP ports on which a process and those that it started listen."""
    family = [process, *process.children(recursive=True)]
    found = [connection for one in family for connection in one.net_connections("tcp")]
    return sorted({connection.laddr.port for connection in found if connection.status == psutil.CONN_LISTEN})


async def connected_to(ports):
    """Addresses at these ports that take somebody without credentials, or with others."""
    securities = {"tcp": distributed.Security(), "tls": distributed.Security.temporary()}
    tried = {}
    for port in ports:
        for protocol, security in securities.items():
            address = f"{protocol}://127.0.0.1:{port}"
            tried[address] = asyncio.wait_for(connect(address, timeout=1, **security.get_connection_args("client")), 3)
    found = await asyncio.gather(*tried.values(), return_exceptions=True)
    return [address for address, result in zip(tried, found, strict=True) if not isinstance(result, OSError)]


def test_a_cluster_of_dask_is_used_with_its_credentials(images, folder):
    """Its address alone is refused in a line, as nobody has its credentials."""
    with processes_here(folder / "tls", 1, security=distributed.Security.temporary()) as cluster:
        model = streampca.fit(images, n_components=3, cluster=cluster)
        with pytest.raises(ClusterError, match=r"^tls://\S+ takes credentials, .* \(distributed\.comm\.tls\)"):
            streampca.fit(images, n_components=3, cluster=cluster.scheduler_address)
    np.testing.assert_allclose(model.explained_variance, streampca.fit(images, n_components=3).explained_variance)


def test_nobody_else_on_this_machine_can_use_the_processes_of_a_run(images, folder):
    """Every port of it is tried, without credentials and with others."""
    before = set(listening(psutil.Process()))
    with executing(2) as executor:
        ports = set(listening(psutil.Process())) - before
        assert len(ports) >= 5, "a scheduler and its web server, two nannies, two workers"
        assert asyncio.run(connected_to(ports)) == []
        answers = []
        for port in ports:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/info/main/workers.html", timeout=1)
            except urllib.error.HTTPError as error:
                answers.append(error.code)
            except OSError:
                continue
        assert set(answers) <= {404}, "web servers have no pages"
        assert executor._client.submit(abs, -3).result(10) == 3, "with its credentials, a run uses it"


# -- clusters of batch systems: stand-ins for sbatch and scancel start jobs as processes of this machine

SUBMITS = """#!/bin/bash
cp "$1" "$0.script"
setsid bash "$0.script" > "$0.log" 2>&1 < /dev/null &
echo "Submitted batch job $!"
"""
FAILS = """#!/bin/bash
echo "sbatch: error: invalid partition specified: nowhere" >&2
exit 1
"""
QUEUES = """#!/bin/bash
echo "Submitted batch job 4711"
"""
KILLS = (
    SUBMITS
    + """
( while sleep 0.2 && kill -0 $!; do
    used=$(ps -o rss= -g $! | awk '{kib += $1} END {print int(kib / 1024)}')
    [ "$used" -gt 780 ] && kill -9 -- -$!
  done ) > /dev/null 2>&1 &
"""
)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Return a function that puts an sbatch on the path, and describes a cluster that uses it."""
    monkeypatch.setenv("PYTHONPATH", PATHS)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)

    def described(sbatch, **options):
        scripts = {"sbatch": sbatch, "scancel": f'#!/bin/bash\ntouch {tmp_path}/cancelled; kill -9 -- "-$1"\n'}
        for name, script in scripts.items():
            Path(name).write_text(script)
            Path(name).chmod(0o755)
        return ClusterOptions("slurm", workers=1, **{"memory": 800 * MIB, "timeout": 60.0, **options})

    return described


def test_a_fit_in_jobs_of_a_batch_system(images, slurm, tmp_path):
    (tmp_path / "run.yaml").write_text(f"""
collection: {{source: {images}}}
model: {{n_components: 3}}
output: {{model: model.zarr}}
run:
  memory: 64 MiB
  cluster: dask_jobqueue.SLURMCluster
  workers: 1
  cluster_options: {{walltime: "00:10:00", queue: day}}
""")
    slurm(SUBMITS)
    prologue = "run.cluster_options.job_script_prologue=[export MARK=3]"
    succeeded("run", "run.yaml", "-q", "--set", prologue)
    assert streampca.load("model.zarr").provenance["plan"]["workers"] == 2, "others may come"
    script = (tmp_path / "sbatch.script").read_text()
    for line in ("#SBATCH -t 00:10:00", "#SBATCH -p day", "export MARK=3", "--tls-key", "--no-dashboard"):
        assert line in script
    assert (tmp_path / "cancelled").exists(), "jobs are taken back"
    assert not list(tmp_path.glob(".streampca-*")), "no credentials are left"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_a_cluster_runs_is_not_chosen_by_a_run_file(tmp_path):
    text = """
collection: {source: x}
output: {model: m}
run: {cluster: slurm, workers: 1, cluster_options: {job_script_prologue: [rm -r x]}}
"""
    (tmp_path / "run.yaml").write_text(text)
    message = r"job_script_prologue chooses what a cluster runs; .* --set run.cluster_options.job_script_prologue="
    with pytest.raises(ConfigError, match=message):
        load_run(str(tmp_path / "run.yaml"))
    (tmp_path / "run.yaml").write_text(text.replace(", cluster_options: {job_script_prologue: [rm -r x]}", ""))
    run = load_run(str(tmp_path / "run.yaml"), ["run.cluster_options.job_script_prologue=[module load x]"])
    assert run.run.cluster_options == {"job_script_prologue": ["module load x"]}
    assert "module" not in run.to_yaml(), "records of a run are run files"


@pytest.mark.parametrize(("sbatch", "message"), [
    (FAILS, r"slurm took no job: sbatch ended with 1: sbatch: error: invalid partition specified: nowhere; correct"),
    (None, r"slurm took no job: there is no command sbatch on this machine; start this where jobs are submitted"),
    ("#!/bin/bash\necho hello", r"slurm took no job: Could not parse job id .*"),
])  # fmt: skip
def test_jobs_that_cannot_be_submitted(images, slurm, sbatch, message):
    options = slurm(sbatch or "")
    if sbatch is None:
        Path("sbatch").unlink()
    began = time.monotonic()
    with pytest.raises(ClusterError, match=message) as error:
        streampca.fit(images, cluster=options)
    assert time.monotonic() - began < 10
    assert "\n" not in str(error.value)


def test_jobs_that_never_start(images, slurm):
    message = r"^slurm had no worker within 2.0 s; see what jobs 4711 wait for, or wait longer \(cluster_timeout\)"
    with pytest.raises(ClusterError, match=message):
        streampca.fit(images, cluster=slurm(QUEUES, timeout=2.0))


def test_a_batch_system_that_does_not_answer(images, slurm):
    slurm("#!/bin/bash\nexec sleep 3")
    how = ("--cluster", "slurm", "--workers", 1, "--worker-memory", "800MiB", "--cluster-timeout", "1s")
    said = fresh("fit", images, *how, "-o", "model.zarr", "-q")
    assert said.complaint.startswith("slurm took no job: it did not answer within 1.0 s")


def other_version(folder):
    """Put another version of this package into a folder."""
    shutil.copytree(Path(streampca.__file__).parent, folder / "streampca", ignore=shutil.ignore_patterns("__pycache__"))
    init = folder / "streampca" / "__init__.py"
    init.write_text(init.read_text().replace(f'__version__ = "{streampca.__version__}"', '__version__ = "9.9"'))


def other_numpy(folder):
    """Have Python take its numpy for another version."""
    (folder / "sitecustomize.py").write_text('import numpy\nnumpy.__version__ = "1.0"\n')


@pytest.mark.parametrize(("changed", "message"), [
    (other_version, rf"lacks streampca {streampca.__version__} \(it has 9.9\); install there what is here: pip "),
    (other_numpy, rf"lacks numpy {np.__version__} \(it has 1.0\); .* numpy=={np.__version__}\.$"),
])  # fmt: skip
def test_a_worker_of_another_version(images, slurm, tmp_path, changed, message):
    changed(tmp_path)
    options = slurm(SUBMITS.replace("setsid", f"PYTHONPATH={tmp_path}:$PYTHONPATH setsid"))
    heard = []
    with pytest.raises(ClusterError, match=r"^worker tls://\S+ " + message):
        streampca.fit(images, cluster=options, listener=heard.append)
    assert [type(event) for event in heard] == [Warned], "before data are read"


def test_a_job_of_too_little_memory(images, slurm):
    with pytest.raises(ClusterError, match=r"^worker tls://\S+ has 2\d\d MiB of memory, .* give workers at least"):
        streampca.fit(images, n_components=3, memory="100MiB", cluster=slurm(SUBMITS, memory=256 * MIB))


def test_a_job_that_does_not_see_the_files(images, slurm, tmp_path):
    shutil.copy(images, "here.npy")
    (tmp_path / "elsewhere").mkdir()
    options = slurm(SUBMITS.replace("setsid", f"cd {tmp_path}/elsewhere; setsid"))
    message = r"^worker tls://\S+ cannot read the collection \(.*\); put it where every worker"
    with pytest.raises(ClusterError, match=message):
        streampca.fit("here.npy", n_components=3, memory="100MiB", cluster=options)


def test_a_job_killed_by_its_memory_limit_is_named(images, slurm, monkeypatch):
    """All of it is killed, as some systems do, so nothing is left that could say why."""
    monkeypatch.setattr("streampca.execution.workers.RETURN", 1.0)
    source = Hungry(open_collection(images), 100 * MIB)
    with pytest.raises(ClusterError, match=KILLED) as error:
        streampca.fit(source, n_components=3, memory="16 MiB", cluster=slurm(KILLS, memory=800 * MIB))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("most", [2, 99])
def test_processes_killed_by_their_memory_limit_are_named(images, monkeypatch, most):
    """Also where the run ends by the number of deaths over one span, which can be noticed first."""
    monkeypatch.setattr("streampca.execution.workers.MOST_EXHAUSTED", most)
    source, options = Hungry(open_collection(images), 300 * MIB), ClusterOptions(workers=2, memory=400 * MIB)
    with pytest.raises(ClusterError, match=KILLED):
        streampca.fit(source, n_components=3, memory="16 MiB", cluster=options)


def test_a_fit_ended_by_a_memory_limit_resumes_where_there_is_more_memory(folder, images):
    """The resumed model has the same bits as that of an undisturbed run."""
    heard, kept = [], Checkpointing(str(folder / "kept-from-memory"), every=1000)

    def fitted(start, checkpoint=kept):
        source = prepare(Hungry(open_collection(images), 300 * MIB, start), None)
        request = by_options.request(3, "covariance", 16 * MIB)
        with executing(ClusterOptions(workers=2, memory=400 * MIB)) as executor:
            return fit_collection(
                Opened(source, request), executor=executor, listener=heard.append, checkpoint=checkpoint
            )

    with pytest.raises(ClusterError, match=KILLED):
        fitted(N * 3 // 4)
    heard.clear()
    resumed, undisturbed = fitted(N), fitted(N, None)
    assert sum(event.samples for event in heard if isinstance(event, Resumed)) > 0
    np.testing.assert_array_equal(resumed.components, undisturbed.components)
    np.testing.assert_array_equal(resumed.explained_variance, undisturbed.explained_variance)
    assert not (folder / "kept-from-memory").exists()


KILLED = (
    r"^worker tls://\S+ was killed by its memory limit, last seen with \d+ MiB of \d+ MiB in use; give workers more"
)


# -- clusters of the command line


def test_a_worker_that_comes_late_and_runs_elsewhere(folder, images, monkeypatch):
    """It cannot read a path relative to this folder; by the remedy it can, and one gives the bits of any number."""
    address, elsewhere = free_address(), folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(folder)
    how = {"n_components": 3, "cluster": address}
    listening = partial(distributed.Client, timeout=60, set_as_default=False)  # it waits until the scheduler does
    with scheduler(folder, address), listening(address) as client:
        message = r"had no worker within 3.0 s; start workers, or wait longer"
        with pytest.raises(ClusterError, match=message), executing(ClusterOptions(address, timeout=3)):
            pass
        with worker(elsewhere, address):
            message = r"^worker tcp://127.0.0.1:\d+ cannot read the collection \(.*absolute path"
            with pytest.raises(ClusterError, match=message):
                streampca.fit("images.npy", **how)
            assert streampca.fit(images, **how).n_components == 3
            task, spans, merge = task_of("scatter", open_collection(images))
            with threadpool_limits(1):
                expected = tree_sum(task, spans, merge)
            same(DaskExecutor(client).fold(task, spans, merge, listener=silent), expected)


def test_a_lost_scheduler_and_the_same_fit_again(folder, images):
    """What was saved is kept; another cluster at that address goes on from there."""
    address, heard = free_address(), []
    collection = prepare(Slow(open_collection(images), 0.1), None)
    request, kept = by_options.request(3, "covariance", 16 * MIB), Checkpointing(str(folder / "kept"), every=0)

    def fitted(listener, checkpoint):
        with executing(ClusterOptions(address, workers=2)) as executor:
            return fit_collection(
                Opened(collection, request), executor=executor, listener=listener, checkpoint=checkpoint
            )

    def lost(process, checkpoint):
        done = []

        def listener(event):
            done.append(event.samples if isinstance(event, BlockDone) else 0)
            if sum(done) > N // 2:
                process.kill()

        message = "scheduler was lost; when it is there again, give the same command"
        with pytest.raises(ClusterError, match=message) as error:
            fitted(listener, checkpoint)
        return error.value.exit_code

    with scheduler(folder, address) as process, worker(folder, address):
        assert lost(process, kept) == RESUMABLE, "stopped, and resumable"
    assert (folder / "kept").exists()
    with scheduler(folder, address) as process, worker(folder, address):
        model = fitted(heard.append, kept)
        assert lost(process, None) == 1, "nothing was kept"
    assert sum(event.samples for event in heard if isinstance(event, Resumed)) >= N // 4
    whole = fit_collection(
        Opened(prepare(open_collection(images), None), by_options.request(3, "covariance", 16 * MIB, workers=2))
    )
    np.testing.assert_allclose(model.explained_variance, whole.explained_variance, rtol=1e-12)
    assert not (folder / "kept").exists()


# -- workers that die: last, as one of several may not come back


@pytest.mark.parametrize("output", ["s.npy", "i.zarr"])
def test_workers_write_what_one_process_writes(client, folder, images, output):
    """Each its own rows, though a worker is killed; and what is left of them is written by this process alone."""
    model = streampca.fit(images, n_components=3, memory="16 MiB")
    base, note, pids = open_collection(images), folder / f"killed-{output}", folder / f"pids-{output}"
    write = model.write_scores if output.startswith("s") else model.write_reconstruction
    how = {"memory": "16 MiB", "checkpoint": str(folder / "ck"), "overwrite": True}
    with threadpool_limits(1, user_api="blas"):
        write(base, folder / output, **how)
    expected, heard = content(folder / output), []
    client.wait_for_workers(2)
    for source in (Noting(base, pids), Killing(base, N // 2, note)):
        heard.clear()
        write(source, folder / output, cluster=client, listener=heard.append, **how)
        assert content(folder / output) == expected
    assert note.exists(), "a worker was killed"
    assert sum(event.samples for event in heard if isinstance(event, BlockDone)) == N
    writers = set(pids.read_text().split())
    assert str(os.getpid()) not in writers
    assert len(writers) > 1

    told = []

    def stop(event):
        told.append(isinstance(event, BlockDone))
        if sum(told) == 4:
            raise Stopped

    with pytest.raises(Stopped):
        write(images, folder / f"again-{output}", cluster=client, listener=stop, checkpoint_every=0, **how)
    with threadpool_limits(1, user_api="blas"):
        write(images, folder / f"again-{output}", listener=heard.append, **how)
    assert any(isinstance(event, Resumed) and event.samples > 0 for event in heard)
    assert content(folder / f"again-{output}").keys() == expected.keys()


def test_a_worker_killed_in_its_span(client, folder, images):
    note, base = folder / "killed", open_collection(images, samples=slice(0, N))
    killing, heard = Killing(base, N // 2, str(note)), []
    how = {"n_components": 3, "method": "covariance", "memory": "16 MiB", "cluster": client}
    found = by_options.fit(killing, **how, listener=heard.append)
    assert note.exists(), "a worker was killed"
    expected = by_options.fit(base, **how)
    np.testing.assert_array_equal(found.components, expected.components)
    np.testing.assert_array_equal(found.explained_variance, expected.explained_variance)
    assert sum(event.samples for event in heard if isinstance(event, BlockDone)) == N


def test_a_worker_killed_in_every_pass(folder, images):
    """Each pass needs products that a task makes again; workers are the test's own, as some may not return."""
    note, passes = folder / "killed-pass", []
    base = open_collection(images)

    def listener(event):
        if isinstance(event, PassStarted):
            passes.append(note.exists())
            note.unlink(missing_ok=True)

    how = {"n_components": 3, "method": "randomized", "precision": "single", "memory": "48 MiB"}
    with processes_here(folder, 4) as cluster, distributed.Client(cluster, set_as_default=False) as other:
        expected = by_options.fit(base, **how, cluster=other)
        found = by_options.fit(Killing(base, N // 2, str(note)), **how, cluster=other, listener=listener)
    assert len(passes) > 2
    assert all(passes[1:])
    assert note.exists(), "a worker was killed in the last pass too"
    np.testing.assert_array_equal(found.components, expected.components)
    np.testing.assert_array_equal(found.explained_variance, expected.explained_variance)


def test_a_span_that_kills_every_worker(client, images):
    with pytest.raises(ClusterError, match=r"^2 workers died over the same span.*give workers more") as error:
        streampca.fit(Killing(open_collection(images), N // 2), n_components=3, memory="16 MiB", cluster=client)
    assert "\n" not in str(error.value)
