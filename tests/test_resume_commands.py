"""Copies, merges and reports that go on after a kill: nothing finished is done again, and the output is the same."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from judged import of
from resumed import number
from shell import not_drawn, pictures, python, succeeded, typed, undated

from streampca.events import BlockDone, Checkpoint, Drawing, Resumed
from streampca.execution import session
from streampca.planning import copy_plan
from streampca.plot.report.memory import share_of

pytestmark = pytest.mark.usefixtures("unsynced")

N = 60
# Each command, its output, the event at which it is killed, and how many of these an unbroken run has.
COMMANDS = {
    "copy": ("copy images.npy -o copied.zarr", "copied.zarr", BlockDone, 4),
    "merge": ("merge part1.zarr part2.zarr part3.zarr -o merged.zarr", "merged.zarr", BlockDone, 3),
    "merge sketches": ("merge a.zarr b.zarr c.zarr --approximate -o merged.zarr", "merged.zarr", BlockDone, 3),
    "report": ("report model.zarr -o page.html --figures drawn", "page.html", BlockDone, 4),
    "report, while it is drawn": ("report model.zarr -o page.html --figures drawn", "page.html", Drawing, 10),
}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Folder with what the commands read."""
    folder = tmp_path_factory.mktemp("given")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.save("images.npy", pictures(N, 8, 7))
        for output, words in {
            "model.zarr": "", "part1.zarr": "--part 1/3", "part2.zarr": "--part 2/3", "part3.zarr": "--part 3/3",
            "a.zarr": "--method randomized --samples :20", "b.zarr": "--method randomized --samples 20:40",
            "c.zarr": "--method randomized --samples 40:",
        }.items():  # fmt: skip
            method = [] if "--method" in words else ["--method", "covariance"]
            succeeded("fit", "images.npy", "-k", 3, *method, *words.split(), "-q", "-o", output)
    return folder


@pytest.fixture
def working(given, tmp_path, monkeypatch):
    """Work in a folder with these in it."""
    for path in given.iterdir():
        os.symlink(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    cut_small(monkeypatch)
    return tmp_path


def cut_small(patch):
    """Cut copies into small tiles, read few samples at a time for reports, and draw no figure of these."""
    for name, size in {"MOST_SHARD": 896, "CHUNK": 448, "LEAST_CHUNK": 56, "LATER_BLOCK": 448}.items():
        patch.setattr(copy_plan, name, size)
    survey = import_module("streampca.plot.report.survey")  # whose package has a function of that name
    patch.setattr(survey, "share_of", lambda *inputs: replace(share_of(*inputs), block_rows=16))
    patch.setattr("streampca.plot.report.page.drawn", not_drawn)


def heard(patch, listen):
    """Tell events of whatever is done in a session."""
    whole = session.one_at_a_time

    def both(listener):
        def told(event):
            listener(event)
            listen(event)

        return whole(told)

    patch.setattr(session, "one_at_a_time", both)


def dying(moment, count, *words):
    """Carry out a command in a process of its own, which kills itself at the `count`-th event of a kind."""
    events = []

    def listen(event):
        events.append(type(event).__name__)
        if events.count(moment) == int(count):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        cut_small(patch)
        heard(patch, listen)
        succeeded(*words)


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from test_resume_commands import dying
dying(*sys.argv[2:])
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_goes_on(working, monkeypatch, name):
    """Twice killed, it does each block and each figure once, and no file differs from those of an unbroken run."""
    words, output, moment, count = COMMANDS[name]
    told = [*words.split(), "--checkpoint-every", "0", "-q"]
    outputs, before = [output, "drawn"], set(os.listdir())
    unbroken, events = [], []
    with pytest.MonkeyPatch.context() as patch:
        heard(patch, unbroken.append)
        succeeded(*words.split(), "--no-checkpoint", "-q")
    assert number(moment, unbroken) == count
    assert not of(Checkpoint, unbroken)
    expected, made = undated(outputs), set(os.listdir())
    for path in made - before:
        os.rename(path, f"whole.{path}")
    for at in (2, 1) if moment is BlockDone else (2, 2):  # of the events of each process
        done = python(CHILD, Path(__file__).parent, moment.__name__, at, *told)
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
        assert not os.path.exists(output)
    heard(monkeypatch, events.append)
    succeeded(*told)
    kept = 3 if moment is BlockDone else 2  # a figure is saved after it is told
    assert number(moment, events) == count - kept
    assert of(Resumed, events)
    assert moment is BlockDone or not of(BlockDone, events), "no sample is read again"
    assert undated(outputs) == expected
    assert {path for path in os.listdir() if not path.startswith("whole.")} == made


def test_a_stopped_copy_says_that_it_can_be_resumed(working, monkeypatch):
    heard(monkeypatch, lambda event: isinstance(event, BlockDone) and signal.raise_signal(signal.SIGTERM))
    said = typed("copy", "images.npy", "-o", "copied.zarr", "-q")
    assert said.code == 75
    assert "progress is saved in copied.zarr.streampca-checkpoint. Resume with: streampca copy" in said.complaint
