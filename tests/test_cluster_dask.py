"""Collections that dask computes, fitted on clusters of real processes: no task waits for another in its thread."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import by_options
import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import xarray
import zarr
from faulty import Held, Killing, Slow, read_never

import streampca
from streampca.errors import RESUMABLE, ClusterError, ClusterLostError, SourceError
from streampca.events import BlockDone, Resumed, Warned
from streampca.execution.checkpoint import Checkpointing
from streampca.fitting.fit import fit_collection
from streampca.fitting.open_fit import Opened, prepare
from streampca.readers import open_collection
from streampca.units import MIB

distributed = pytest.importorskip("distributed")
pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")

from test_cluster import processes_here, wait_until  # noqa: E402 - needs distributed

from streampca.execution.cluster import DaskExecutor  # noqa: E402 - the same

pytestmark = pytest.mark.slow

N, SIDE, ROWS = 96_000, 8, 2000
HOW = {"kind": streampca.PCA(3, method="covariance")}
MEMORY, OF_FRAMES = "16 MiB", "12 MiB"  # 8 spans of several blocks for 2 workers
# Whole numbers, whose sums are exact: the bits are the same for any blocks.
RANDOM = da.random.default_rng(3).integers(0, 255, (N, SIDE, SIDE), dtype="u1", chunks=(ROWS, SIDE, SIDE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dask")


@pytest.fixture(scope="module")
def cluster(folder):
    with processes_here(folder, 2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2)  # one that died may be on its way back
        yield client


@pytest.fixture
def restarted(folder):
    """Client of a cluster of its own: of one that is restarted, dask gets a worker back late or never, now and then."""
    with processes_here(folder, 2) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(scope="module")
def crowded(folder):
    """Client of a cluster for fits in tasks: one that waited for ever would keep the threads of other tests."""
    with processes_here(folder, 2) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


def restart(client):
    with distributed.Client(client.cluster, set_as_default=False) as other:
        other.restart(wait_for_workers=False)


@pytest.fixture(scope="module")
def path(folder):
    x = RANDOM.compute(scheduler="sync")
    zarr.create_array(str(folder / "images.zarr"), data=x, chunks=(ROWS, SIDE, SIDE))
    return str(folder / "images.zarr")


@pytest.fixture(scope="module")
def expected(cluster, path):
    """Model of the same data as a file."""
    with distributed.Client(cluster, set_as_default=False) as client:
        return streampca.fit(path, cluster=client, memory=MEMORY, **HOW)


def same_bits(model, expected):
    for name in ("mean", "components", "explained_variance"):
        found, wanted = (np.ravel(getattr(each, name)) for each in (model, expected))
        np.testing.assert_array_equal(found, wanted, strict=True)


# -- what dask computes


def rows_at(path, at, count=ROWS):
    return zarr.open_array(path, mode="r")[at : at + count]


def frame_at(path, at):
    return pandas.DataFrame(rows_at(path, at, 4 * ROWS).reshape(4 * ROWS, -1)).add_prefix("c")


def of_parts(read, *given):
    """An array of parts that a function makes, which may be a local one."""
    parts = [dask.delayed(read)(*given, at) for at in range(0, N, ROWS)]
    return da.concatenate([da.from_delayed(part, (ROWS, SIDE, SIDE), np.dtype("u1")) for part in parts])


def computing(x):
    return of_parts(lambda at: x[at : at + ROWS].compute())


def frame_of(path):
    return frames.from_map(partial(frame_at, path), range(0, N, 4 * ROWS), meta=frame_at(path, 0)[:0])


def hdf5_of(path):
    with h5py.File(f"{path}.h5", "w") as file:
        file.create_dataset("x", data=zarr.open_array(path, mode="r")[:], chunks=(ROWS, SIDE, SIDE))
    return da.from_array(h5py.File(f"{path}.h5")["x"], chunks=(ROWS, SIDE, SIDE))


SOURCES = {
    "from_zarr": lambda client, path: da.from_zarr(path),
    "random": lambda client, path: RANDOM,
    "from_array of an HDF5 file": lambda client, path: hdf5_of(path),
    "from_delayed, a lambda": lambda client, path: of_parts(lambda at: rows_at(path, at)),
    "from_delayed that computes": lambda client, path: of_parts(
        lambda at: da.from_zarr(path)[at : at + ROWS].compute()
    ),
    "futures in tasks": lambda client, path: of_parts(
        lambda x, at: x[at : at + ROWS], client.submit(lambda: zarr.open_array(path, mode="r")[:])
    ),
    "persisted": lambda client, path: client.persist(da.from_zarr(path)),
    "xarray": lambda client, path: xarray.DataArray(da.from_zarr(path), dims=("time", "y", "x")),
    "xarray, persisted": lambda client, path: xarray.DataArray(
        client.persist(da.from_zarr(path)).map_blocks(lambda block: block, dtype="u1"), dims=("time", "y", "x")
    ),
    "frame": lambda client, path: frame_of(path),
    "frame, persisted": lambda client, path: client.persist(frame_of(path)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_dask_computes_is_fitted_on_one_thread_a_worker(client, folder, path, expected, name):
    """With the bits of the same data as a file, though a worker is killed."""
    source, note = SOURCES[name](client, path), folder / f"killed-{name}"
    how = {**HOW, "memory": OF_FRAMES if name.startswith("frame") else MEMORY, "cluster": client}
    model = streampca.fit(source, **how)
    assert len(model.provenance["plan"]["spans"]) >= 8
    same_bits(model, expected)
    same_bits(streampca.fit(Killing(open_collection(source), N // 2, str(note)), **how), expected)
    assert note.exists(), "a worker was killed"


@pytest.mark.parametrize("name", ["from_zarr", "persisted", "frame, persisted"])
def test_a_process_reads_what_the_client_of_others_computes(cluster, path, expected, name):
    """This process, with a client that is dask's default; then a task of the cluster, by lazy blocks and by a fit."""
    with distributed.Client(cluster) as client:
        source = SOURCES[name](client, path)
        same_bits(streampca.fit(source, memory=MEMORY, **HOW), expected)
        lazy = open_collection(source).to_dask().rechunk((ROWS * 4, *[-1] * (source.ndim - 1)))
        assert client.compute(lazy.astype("u8").sum()).result() == RANDOM.sum(dtype="u8").compute(scheduler="sync")
        if name == "from_zarr":
            fit = partial(streampca.fit, memory=MEMORY, **HOW)
            same_bits(client.submit(lambda: fit(da.from_zarr(path))).result(), expected)


# Sources of fits that are tasks themselves, and so hold the threads that these sources are to be computed in.
IN_TASKS = {
    "persisted": SOURCES["persisted"],
    "persisted, opened": lambda client, path: open_collection(SOURCES["persisted"](client, path)),
    "persisted, of a frame": SOURCES["frame, persisted"],
    "xarray, persisted": SOURCES["xarray, persisted"],
    "futures in functions": lambda client, path: computing(client.persist(da.from_zarr(path))),
}


@pytest.mark.parametrize("name", IN_TASKS)
def test_fits_in_tasks_that_hold_all_threads_end(crowded, folder, path, expected, name):
    """By a lambda, and as an argument; though the process of one is killed, and what it held has to be made again."""
    source, note = IN_TASKS[name](crowded, path), str(folder / f"killed-in-{name}")
    fit = partial(streampca.fit, memory=OF_FRAMES if "frame" in name else MEMORY, **HOW)
    fits = [lambda: fit(source), lambda: fit(Killing(open_collection(source), N // 2, note))]
    running = [crowded.submit(each, pure=False) for each in [*fits, *fits]]
    for future in [*running, crowded.submit(fit, source, pure=False)]:
        same_bits(future.result(timeout=90), expected)


def test_fits_in_tasks_run_on_the_cluster_of_their_own(crowded, path, expected):
    def fit():
        return streampca.fit(path, cluster=distributed.get_client(), memory=MEMORY, **HOW)

    for future in [crowded.submit(fit, pure=False) for _ in range(3)]:
        same_bits(future.result(timeout=90), expected)


def test_a_span_that_waits_for_another_fit_leaves_its_thread(client, folder, path, expected):
    """A worker folds one span at a time; that of the first fit then waits for slices of what is persisted."""
    go = folder / "go-both"
    fit = partial(streampca.fit, cluster=client, memory=MEMORY, **HOW)

    def spans():
        return sum("scatter-matrix" in str(key) for keys in client.processing().values() for key in keys)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fit, Held(open_collection(client.persist(da.from_zarr(path))), go))
        wait_until(lambda: spans() == 2)
        second = pool.submit(fit, path)
        wait_until(lambda: spans() == 4)
        go.touch()
        same_bits(first.result(), expected)
        same_bits(second.result(), expected)


def test_what_cannot_be_sent_is_refused_in_one_line(client, path):
    source = da.from_zarr(path).map_blocks(lambda block, lock: block, threading.Lock(), dtype="u1")
    with pytest.raises(ClusterError, match=r"cannot be sent to workers \(TypeError: cannot pickle .*give the path\.$"):
        streampca.fit(source, cluster=client, memory=MEMORY, **HOW)


# -- what is waited for


def test_a_fit_that_finishes_no_block_says_what_it_waits_for(client, folder, path):
    go, heard = folder / "go", []

    def listener(event):
        heard.append(event)
        if isinstance(event, Warned):
            go.touch()

    executor = DaskExecutor(client, stalled=0.5)
    held = prepare(Held(open_collection(path), go), None)
    fit_collection(Opened(held, by_options.request(3, "covariance", 16 * MIB)), executor=executor, listener=listener)
    (told,) = (event.message for event in heard if isinstance(event, Warned))
    worker = r"span \d \(worker tcp://127.0.0.1:\d+\)"
    assert re.fullmatch(rf"no block was finished for 0\.\d s; waiting for {worker}, {worker} of 8\.", told)


@pytest.mark.parametrize("kind", ["file", "persisted"])
def test_a_client_that_is_restarted_ends_the_fit_which_goes_on_by_the_remedy(restarted, folder, path, kind):
    client = restarted
    lazy, kept = da.from_zarr(path), Checkpointing(str(folder / f"kept-{kind}"), every=0)
    source, heard = (client.persist(lazy) if kind == "persisted" else path), []

    def fitted(source, listener):
        slow, executor = prepare(Slow(open_collection(source), 0.02), None), DaskExecutor(client)
        request = by_options.request(3, "covariance", 16 * MIB)
        return fit_collection(Opened(slow, request), executor=executor, listener=listener, checkpoint=kept)

    def restart_halfway(event):
        heard.append(event)
        done = sum(each.samples for each in heard if isinstance(each, BlockDone))
        if isinstance(event, BlockDone) and done - event.samples <= N // 2 < done:
            restart(client)

    message = r"^the cluster was restarted, .*persist arrays again, and give the same command again\.$"
    with pytest.raises(ClusterLostError, match=message) as error:
        fitted(source, restart_halfway)
    assert error.value.exit_code == RESUMABLE
    if kind == "persisted":
        with pytest.raises(SourceError, match=r"has lost what a cluster held of it, .*; persist it again\.$"):
            streampca.fit(source, cluster=client, memory=MEMORY, **HOW)
        source = client.persist(lazy)
    heard.clear()
    model = fitted(source, heard.append)
    assert sum(event.samples for event in heard if isinstance(event, Resumed)) > 0
    np.testing.assert_array_equal(model.components, fitted(source, heard.append).components)


def test_a_restart_while_workers_are_checked_ends_the_fit_in_one_line(restarted, folder):
    asked = folder / "asked"
    with ThreadPoolExecutor(1) as thread:
        read = partial(read_never, str(asked))
        checking = thread.submit(DaskExecutor(restarted).check, read, 16 * MIB, lambda _: None)
        wait_until(asked.exists)
        restart(restarted)
        with pytest.raises(ClusterLostError, match=r"^the cluster was restarted while its workers were being checked"):
            checking.result()
