"""Locks: a second process is refused in one line that is true, whatever the first does; with and without `flock`."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from shell import FORKED, succeeded

import streampca
from streampca.errors import OutputError
from streampca.events import Checkpoint, Resumed
from streampca.storage import locks as locking
from streampca.storage.locks import checkpoint_lock, output_lock
from streampca.storage.outputs import staged

CALLS = {
    "fit": lambda **how: streampca.fit("x.npy", streampca.PCA(2, method="covariance"), output="m.zarr", **how),
    "scores": lambda **how: streampca.load("known.zarr").write_scores("x.npy", "s.npy", **how),
}


def call(name, listener):
    CALLS[name](checkpoint="ck", checkpoint_every=0, memory="16 MiB", listener=listener)


def wait_at_work(name, folder, ready):
    """Make a call, and wait for ever at its first checkpoint, having said so."""
    os.chdir(folder)

    def listener(event):
        if isinstance(event, Checkpoint):
            ready.set()
            time.sleep(600)

    call(name, listener)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    x = np.random.default_rng(0).normal(size=(40_000, 24)).astype(np.float32)
    np.save(folder / "x.npy", x)
    streampca.fit(x[:200], n_components=2).save(folder / "known.zarr")
    return folder


@pytest.fixture
def data(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x.npy", "known.zarr"):
        os.symlink(written / name, name)


@pytest.mark.parametrize("name", CALLS)
def test_a_second_process_is_refused_until_the_first_is_dead(data, name):
    heard, ready = [], FORKED.Event()
    first = FORKED.Process(target=wait_at_work, args=(name, os.getcwd(), ready))
    first.start()
    try:
        assert ready.wait(60)
        before = {path: path.read_bytes() for path in Path("ck").iterdir()}
        with pytest.raises(
            OutputError, match=rf"^(ck|m.zarr) is being written by process {first.pid} on \S+, since [\d: -]+ UTC; wait"
        ):
            call(name, heard.append)
        assert {path: path.read_bytes() for path in Path("ck").iterdir()} == before, "and nothing of it is touched"
    finally:
        first.kill()
        first.join(60)
    call(name, heard.append)  # the remedy
    assert sum(event.samples for event in heard if isinstance(event, Resumed)) > 0, "it goes on where that one was"
    assert not Path("ck").exists()


def take_turns(folder):
    """Take the folder again and again; two at once would both make the file that only one can."""
    os.chdir(folder)
    had = 0
    while had < 200:
        with suppress(OutputError), checkpoint_lock("ck"):
            os.close(os.open("one at a time", os.O_CREAT | os.O_EXCL))
            os.remove("one at a time")
            had += 1


def test_no_two_have_it_at_once(tmp_path):
    """However often they make and remove the file."""
    started = [FORKED.Process(target=take_turns, args=(str(tmp_path),)) for _ in range(3)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0, 0, 0]
    assert os.listdir(tmp_path) == []


def test_a_file_removed_by_its_holder_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    """The holder may end between opening and locking."""
    flock, path = fcntl.flock, tmp_path / locking.LOCK

    def removed_first(handle, how):
        if path.exists():  # else it is the file that shows whether there are locks
            monkeypatch.setattr(fcntl, "flock", flock)
            path.unlink()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with checkpoint_lock(str(tmp_path)), pytest.raises(OutputError), checkpoint_lock(str(tmp_path)):
        pass


def test_the_holder_is_named_and_no_folder_is_no_concern(tmp_path):
    folder = str(tmp_path / "ck")
    refused = pytest.raises(OutputError, match=f"process {os.getpid()} on ")
    with checkpoint_lock(folder), checkpoint_lock(None), refused, checkpoint_lock(folder):
        pass
    assert os.listdir(tmp_path) == []


def test_what_else_is_there_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with checkpoint_lock(str(tmp_path)):
        pass
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_of_a_holder_that_could_not_sign_nothing_is_made_up(tmp_path, monkeypatch):
    monkeypatch.setattr(locking, "_sign", lambda handle: None)
    first, second = checkpoint_lock(str(tmp_path)), checkpoint_lock(str(tmp_path))
    with first, pytest.raises(OutputError, match="another process"), second:
        pass


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def without_flock(request, monkeypatch):
    """A file system without locks."""

    class NoLocks:
        LOCK_EX = LOCK_NB = 0

        def flock(self, handle, how):
            raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(locking, "fcntl", NoLocks())


def grown_old(path):
    """Let a lock be as if it had not been refreshed for longer than its holder can live."""
    then = time.time() - locking.STALE - 1
    os.utime(path, (then, then))


def test_without_flock_a_lock_is_a_file_that_grows_stale(data, without_flock):
    streampca.fit(np.load("x.npy", mmap_mode="r")[:200], n_components=2, checkpoint="ck")
    assert not Path("ck").exists()
    with checkpoint_lock("ck"):
        with pytest.raises(OutputError, match=f"process {os.getpid()} on "), checkpoint_lock("ck"):
            pass
        grown_old(f"ck/{locking.LOCK}")
        with checkpoint_lock("ck"):
            assert os.listdir("ck") == [locking.LOCK]
    assert not Path("ck").exists()


def test_a_lock_that_is_held_is_refreshed(tmp_path, without_flock, monkeypatch):
    monkeypatch.setattr(locking, "REFRESHED", 0.01)
    with checkpoint_lock(str(tmp_path)):
        path = tmp_path / locking.LOCK
        grown_old(path)
        deadline = time.monotonic() + 20
        while path.stat().st_mtime < time.time() - locking.STALE:
            assert time.monotonic() < deadline


def test_who_lost_its_lock_while_suspended_replaces_nothing(tmp_path, without_flock):
    path, has_begun, may_end = tmp_path / "x.npy", threading.Event(), threading.Event()

    def other():
        with staged(str(path)) as partial:
            Path(partial).write_text("theirs")
            has_begun.set()
            assert may_end.wait(20)

    thread = threading.Thread(target=other)

    def suspended():
        with staged(str(path)) as partial:
            Path(partial).write_text("ours")
            grown_old(f"{path}{locking.BESIDE}")
            thread.start()
            assert has_begun.wait(20)

    with pytest.raises(OutputError, match=f"{path} is being written by process"):
        suspended()
    may_end.set()
    thread.join()
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["x.npy"]


def test_an_output_is_locked_again_by_the_call_that_has_it_and_by_no_other_thread(tmp_path):
    path, errors = str(tmp_path / "deep" / "x.npy"), []

    def other():
        try:
            with output_lock(path):
                pass
        except OutputError as error:
            errors.append(str(error))

    with output_lock(path), output_lock(os.path.relpath(path)):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert errors[0].startswith(f"{path} is being written by process {os.getpid()} on ")
    assert os.listdir(tmp_path) == [], "folders made for it are gone, too"


def test_a_run_killed_before_it_saved_leaves_nothing_in_the_way(data):
    """Its lock is there, and the run that makes the output removes it."""
    folder = Path("m.zarr.streampca-checkpoint")
    folder.mkdir()
    (folder / locking.LOCK).write_text("999999 elsewhere")
    succeeded("fit", "x.npy", "-k", 2, "-q", "-o", "m.zarr")
    assert not [name for name in os.listdir() if "checkpoint" in name]


# The command, on a file system without locks; with STUCK it never ends, once it has begun.
WITHOUT_FLOCK = """#!{python}
import os, time
from pathlib import Path
from streampca.__main__ import main
from streampca.accumulators import Scatter
from streampca.storage import locks

locks._has_flock = lambda folder: False

def update(*args, **options):
    Path("stuck").touch()
    time.sleep(600)

if "STUCK" in os.environ:
    Scatter.update = update
main()
"""


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """Return a function that starts a job of the array in docs/clusters.md, here, as SLURM does."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).integers(0, 200, (200, 24), np.uint8))
    page = (Path(__file__).parents[1] / "docs" / "clusters.md").read_text()
    script, merge = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[:2]
    for before, after in {"/data/scans.zarr": "x.npy", "-k 50": "-k 2", "/scratch/": "", "6GiB": "64MiB"}.items():
        script, merge = script.replace(before, after), merge.replace(before, after)
    Path("streampca").write_text(WITHOUT_FLOCK.format(python=sys.executable))
    os.chmod("streampca", 0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")

    def start(task, restarts=None, **variables):
        job = {"SLURM_JOB_ID": str(4710 + task), "SLURM_ARRAY_TASK_ID": str(task), **variables}
        job |= {} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}
        text = merge if task == 0 else script
        return subprocess.Popen(["/bin/bash", "-c", text], env={**os.environ, **job}, stderr=subprocess.PIPE, text=True)

    return start


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [None, 1])
def test_a_requeued_job_of_an_array_goes_on_at_once(submit, restarts):
    first = submit(1, STUCK="1")
    while not Path("stuck").exists():
        assert first.poll() is None
        time.sleep(0.05)
    second = submit(1)
    assert re.search(rf"process {first.pid} on \S+, job 4711_1, since .* UTC; wait", second.communicate()[1])
    first.terminate()
    time.sleep(0.2)
    assert first.poll() is None, "SIGTERM does not end it"
    first.kill()
    first.communicate()
    for jobs in ([(1, restarts), (2,)], [(0,)]):  # the parts, then the merge
        processes = [submit(*job) for job in jobs]
        complaints = [process.communicate(timeout=60)[1] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(jobs), complaints
    whole = streampca.fit("x.npy", streampca.PCA(2, method="covariance"), memory="64 MiB")
    np.testing.assert_array_equal(streampca.load("model.zarr").components, whole.components)
    assert not [name for name in os.listdir() if "lock" in name]
