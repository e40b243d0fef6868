"""Two processes and one checkpoint folder: the second is refused in one line that is true, whatever the first does."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from shell import succeeded

import streampca
from streampca.errors import OutputError
from streampca.events import Resumed
from streampca.storage import locks as locking
from streampca.storage.locks import alone_in

# Does what its arguments say, and waits for ever at the first checkpoint, having said so.
AT_WORK = """
import time
from functools import partial
import streampca
from streampca.fitting import fit as fitting
from streampca.events import Checkpoint

def listener(event):
    if isinstance(event, Checkpoint):
        print("at work", flush=True)
        time.sleep(600)

fitting.Checkpointing = partial(fitting.Checkpointing, every=0.0)
{call}
"""
FIT = (
    "streampca.fit('x.npy', n_components=2, method='covariance', memory='16 MiB', output='m.zarr', checkpoint='ck', "
    "listener=listener)"
)
SCORES = (
    "streampca.load_model('known.zarr').write_scores('x.npy', 's.npy', memory='16 MiB', checkpoint='ck', "
    "checkpoint_every=0, listener=listener)"
)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(40_000, 24)).astype(np.float32)
    np.save("x.npy", x)
    streampca.fit(x[:200], n_components=2).save("known.zarr")


@pytest.mark.parametrize("call", [FIT, SCORES], ids=["fit", "scores"])
def test_a_second_process_is_refused_until_the_first_is_dead(data, call):
    heard = []
    names = {"streampca": streampca, "listener": heard.append}
    script = AT_WORK.replace("{call}", call)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout.readline() == "at work\n"
            before = {path: path.read_bytes() for path in Path("ck").iterdir()}
            message = rf"^ck holds the checkpoints of process {first.pid} on \S+.*end it"
            with pytest.raises(OutputError, match=message):
                eval(call, names)  # noqa: S307 - what the other process does
            assert {path: path.read_bytes() for path in Path("ck").iterdir()} == before, "and nothing of it is touched"
        finally:
            first.kill()
    eval(call, names)  # noqa: S307 - the remedy
    assert sum(event.samples for event in heard if isinstance(event, Resumed)) > 0, "it goes on where that one was"
    assert not Path("ck").exists()


# Takes the folder again and again; two at once would both make the file that only one can.
TURNS = """
import os, sys
from streampca.errors import OutputError
from streampca.storage.locks import alone_in
had = 0
while had < 200:
    try:
        with alone_in("ck"):
            os.close(os.open("one at a time", os.O_CREAT | os.O_EXCL))
            os.remove("one at a time")
            had += 1
    except OutputError:
        pass
"""


def test_no_two_have_it_at_once(tmp_path):
    """However often they make and remove the file."""
    started = [subprocess.Popen([sys.executable, "-c", TURNS], cwd=tmp_path) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert os.listdir(tmp_path) == []


def test_a_file_removed_by_its_holder_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    """As when it ends between opening and locking."""
    flock, path = fcntl.flock, tmp_path / locking.LOCK

    def removed_first(handle, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with alone_in(str(tmp_path)), pytest.raises(OutputError), alone_in(str(tmp_path)):
        pass


def test_the_holder_is_named_and_no_folder_is_no_concern(tmp_path):
    folder = str(tmp_path / "ck")
    refused = pytest.raises(OutputError, match=f"process {os.getpid()} on ")
    with alone_in(folder), alone_in(None), refused, alone_in(folder):
        pass
    assert os.listdir(tmp_path) == []


def test_what_else_is_there_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with alone_in(str(tmp_path)):
        pass
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_of_a_holder_that_could_not_sign_nothing_is_made_up(tmp_path, monkeypatch):
    monkeypatch.setattr(locking, "_sign", lambda handle: None)
    first, second = alone_in(str(tmp_path)), alone_in(str(tmp_path))
    with first, pytest.raises(OutputError, match="another process"), second:
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, None])
def test_without_locks_work_goes_on(data, monkeypatch, code):
    """On file systems that have none, and where the system has none (Windows)."""

    class NoLocks:
        LOCK_EX = LOCK_NB = 0

        def flock(self, handle, how):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locking, "fcntl", NoLocks() if code else None)
    streampca.fit("x.npy", n_components=2, checkpoint="ck")
    assert not Path("ck").exists()


def test_a_run_killed_before_it_saved_leaves_nothing_in_the_way(data):
    """Its lock is there, and the run that makes the output removes it."""
    folder = Path("m.zarr.streampca-checkpoint")
    folder.mkdir()
    (folder / locking.LOCK).write_text("999999 elsewhere")
    succeeded("fit", "x.npy", "-k", 2, "-q", "-o", "m.zarr")
    assert not [name for name in os.listdir() if "checkpoint" in name]
