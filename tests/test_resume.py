"""Fits that are killed, stopped or damaged at any moment, and go on to the same answer, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resumed import Died, bits, dying, number, undisturbed
from shell import python, typed

import streampca
from streampca.cli.config import make_run
from streampca.cli.pipeline import execute
from streampca.errors import DataError, OutputError, RequestError, Stopped
from streampca.events import BlockDone, Checkpoint, PassFinished, PassStarted, Resumed, Warned
from streampca.execution import checkpoint
from streampca.execution.checkpoint import Checkpointing
from streampca.execution.signals import Switch
from streampca.fitting.fit import Place, fit_collection
from streampca.fitting.plan import prepared
from streampca.models.pca import load_model
from streampca.planning import dual
from streampca.planning.request import Request
from streampca.units import parse_bytes

pytestmark = pytest.mark.usefixtures("unsynced")

KINDS = ("covariance", "sweep", "scratch")
MEMORY = {"covariance": "40MiB", "sweep": "48MiB", "scratch": "48MiB"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A collection for each method: many small images, few large ones."""
    folder, rng = tmp_path_factory.mktemp("resume"), np.random.default_rng(0)
    np.save(folder / "covariance.npy", rng.integers(0, 255, (60_000, 16, 16), dtype=np.uint8))
    np.save(folder / "dual.npy", rng.random((150, 200, 200), dtype=np.float32))
    return folder


def source_of(files, kind):
    return files / ("covariance.npy" if kind == "covariance" else "dual.npy")


def run(path, kind, folder=None, listener=lambda event: None, switch=None, k=10, **stops):
    """A fit by one method and schedule, kept after every block."""
    schedules = dual.SCHEDULES
    dual.SCHEDULES = (kind,)
    try:
        method = "covariance" if kind == "covariance" else "dual"
        scratch = Path(path).parent if kind == "scratch" else None
        request = Request(k, method, parse_bytes(MEMORY[kind]), "single", scratch=scratch, **stops)
        how = None if folder is None else Checkpointing(str(folder), 0, switch or Switch())
        return fit_collection(
            prepared(streampca.open_collection(path), None), request, checkpoint=how, listener=listener
        )
    finally:
        dual.SCHEDULES = schedules


@pytest.fixture(scope="module")
def unbroken(files):
    """Of a kind: the answer, and what happened."""
    return undisturbed(lambda kind, listener: run(source_of(files, kind), kind, listener=listener))


@pytest.mark.parametrize("kind", KINDS)
def test_dead_after_any_block(files, tmp_path, unbroken, kind):
    """At every block of every pass; what was kept is not done again, and the folder is gone in the end."""
    expected, events = unbroken(kind)
    blocks = number(BlockDone, events)
    assert blocks >= 4
    for count in range(1, blocks + 1):
        folder = tmp_path / f"{count}"
        with pytest.raises(Died):
            run(source_of(files, kind), kind, folder, dying(count))
        after = []
        assert bits(run(source_of(files, kind), kind, folder, after.append)) == expected
        assert number(BlockDone, after) <= blocks - count + 1
        assert any(isinstance(event, Resumed) for event in after)
        assert not folder.exists()
    assert not [path for path in files.iterdir() if path.suffix != ".npy"]  # no scratch copy is left


@pytest.mark.parametrize("kind", KINDS)
def test_dead_between_passes(files, tmp_path, unbroken, kind):
    expected, events = unbroken(kind)
    passes = number(PassStarted, events)
    for count in range(1, passes + 1):
        with pytest.raises(Died):
            run(source_of(files, kind), kind, tmp_path / "kept", dying(count, PassFinished))
        after = []
        assert bits(run(source_of(files, kind), kind, tmp_path / "kept", after.append)) == expected


def test_resumed_samples_and_blocks_are_all_samples(files, tmp_path):
    with pytest.raises(Died):
        run(source_of(files, "covariance"), "covariance", tmp_path / "kept", dying(5))
    after = []
    run(source_of(files, "covariance"), "covariance", tmp_path / "kept", after.append)
    assert sum(event.samples for event in after if isinstance(event, BlockDone | Resumed)) == 60_000


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_resume as tests
from streampca.events import BlockDone, PassFinished

_, _, path, kind, folder, moment = sys.argv
seen = {"block": 0, "save": 0}

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def listen(event):
    seen["block"] += isinstance(event, BlockDone)
    if moment == f"block {seen['block']}" or (moment == "pass" and isinstance(event, PassFinished)):
        die()

if moment == "writing":
    from streampca.execution import slots
    whole = slots._write_array

    def half(file, name, array):
        seen["save"] += 1
        if seen["save"] == 20:
            file.write(b"begun")
            file.flush()
            die()
        return whole(file, name, array)

    slots._write_array = half
tests.run(path, kind, folder, listen)
"""


@pytest.mark.parametrize("moment", ["block 1", "block 4", "pass", "writing"])
@pytest.mark.parametrize("kind", ["covariance", "sweep"])
def test_killed(files, tmp_path, unbroken, kind, moment):
    """By the system: at the first block, in a pass, between two, and while a state is written."""
    path, folder = source_of(files, kind), tmp_path / "kept"
    words = [str(Path(__file__).parent), str(path), kind, str(folder), moment]
    done = python(CHILD, *words)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    after = []
    assert bits(run(path, kind, folder, after.append)) == unbroken(kind)[0]
    assert any(isinstance(event, Resumed) for event in after)


@pytest.mark.parametrize("kind", KINDS)
def test_told_to_stop(files, tmp_path, unbroken, kind):
    """It ends at the end of the block, and loses nothing."""
    switch, events = Switch(), []

    def listen(event):
        events.append(event)
        if isinstance(event, BlockDone):
            switch.asked = "SIGTERM"

    with pytest.raises(Stopped, match=r"stopped by SIGTERM; what was done is kept in .*kept\.$"):
        run(source_of(files, kind), kind, tmp_path / "kept", listen, switch)
    after = []
    assert bits(run(source_of(files, kind), kind, tmp_path / "kept", after.append)) == unbroken(kind)[0]
    done = [number(BlockDone, some) for some in (events, after, unbroken(kind)[1])]
    assert done[0] + done[1] <= done[2]


def test_told_to_stop_without_time_to_save(files, tmp_path, monkeypatch):
    """What was saved last is kept, and how much is lost is said."""
    with pytest.raises(Died):
        run(source_of(files, "sweep"), "sweep", tmp_path / "kept", dying(2))
    kept = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.0)
    switch = Switch()
    switch.asked = "SIGINT"
    with pytest.raises(Stopped, match=r"stopped by SIGINT; saving would take too long: the last .* done again\.$"):
        run(source_of(files, "sweep"), "sweep", tmp_path / "kept", switch=switch)
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == kept


def test_a_damaged_state_is_passed_over(files, tmp_path, unbroken):
    """The one before is taken; with both damaged the stage begins again."""
    path = source_of(files, "sweep")
    for damaged in (1, 2):
        with pytest.raises(Died):
            run(path, "sweep", tmp_path / "kept", dying(3))
        slots = sorted((tmp_path / "kept").glob("gram-0.*"), key=os.path.getmtime)
        assert len(slots) == 2
        for slot in slots[-damaged:]:
            content = bytearray(slot.read_bytes())
            content[len(content) // 2] ^= 1
            slot.write_bytes(content)
        assert bits(run(path, "sweep", tmp_path / "kept")) == unbroken("sweep")[0]


def test_another_fit_is_refused_by_name(files, tmp_path):
    path, folder = source_of(files, "sweep"), tmp_path / "kept"
    with pytest.raises(Died):
        run(path, "sweep", folder, dying(2))
    with pytest.raises(OutputError, match=r"n_components 10, and this one has 7; .* remove the folder"):
        run(path, "sweep", folder, k=7)
    other = tmp_path / "other.npy"
    np.save(other, np.load(path))
    with pytest.raises(OutputError, match=r"source '.*dual\.npy', and this one has '.*other\.npy'"):
        run(other, "sweep", folder)
    with pytest.raises(OutputError, match=r"tol 0\.0001, and this one has 1e-06; give what that one had"):
        run(path, "sweep", folder, tol=1e-6)
    with pytest.raises(OutputError, match=r"max_passes None, and this one has 4; give what that one had"):
        run(path, "sweep", folder, max_passes=4)
    for slot in folder.iterdir():
        slot.unlink()
    folder.rmdir()
    run(path, "sweep", folder, k=7)


def test_a_source_that_changed_is_refused(tmp_path):
    path, folder = tmp_path / "x.npy", tmp_path / "kept"
    x = np.random.default_rng(0).random((150, 200, 200), dtype=np.float32)
    np.save(path, x)
    with pytest.raises(Died):
        run(path, "sweep", folder, dying(2))
    np.save(path, x + 1)
    with pytest.raises(OutputError, match=r"with state of \S+x\.npy '.*; give what that one had"):
        run(path, "sweep", folder)


def test_the_stored_plan_goes_on_whatever_memory_is_free(files, tmp_path, monkeypatch):
    collection = prepared(streampca.open_collection(source_of(files, "covariance")), None)
    request = Request(5, "covariance", None, "single")
    expected = bits(fit_collection(collection, request))
    how = Checkpointing(str(tmp_path / "kept"), 0)
    with pytest.raises(Died):
        fit_collection(collection, request, checkpoint=how, listener=dying(1))
    monkeypatch.setattr("streampca.machine.memory_limit", lambda: (60 * 2**20, "a smaller machine"))
    assert bits(fit_collection(collection, request, checkpoint=how)) == expected


def test_saves_keep_their_interval(files, tmp_path):
    """Not one in a run that is shorter than it."""
    events = []
    collection = prepared(streampca.open_collection(source_of(files, "covariance")), None)
    request = Request(5, "covariance", 40 * 2**20, "single")
    fit_collection(collection, request, checkpoint=Checkpointing(str(tmp_path / "kept")), listener=events.append)
    assert not any(isinstance(event, Checkpoint) for event in events)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_a_finished_run_could_not_remove_is_in_nobodys_way(files, tmp_path, monkeypatch, overwrite):
    """It died when the model had its name, and the folder was still there; another run of any kind may follow."""
    output = tmp_path / "m.zarr"

    def command(k, **more):
        data = {"collection": {"source": str(source_of(files, "sweep"))}, "checkpoint": {"every": 0}}
        data |= {"fit": {"n_components": k, "memory": "48MiB"}, "output": {"model": str(output), **more}}
        return execute(make_run(data, "test"))

    monkeypatch.setattr(checkpoint.CheckpointFolder, "clear", lambda saver: None)
    command(3)
    monkeypatch.undo()
    assert len(os.listdir(tmp_path)) == 2
    if overwrite:
        assert command(4, overwrite=True).model.n_components == 4
    else:
        with pytest.raises(OutputError, match="exists already"):
            command(3)
    assert os.listdir(tmp_path) == ["m.zarr"]


def test_two_fits_of_one_scratch_folder_keep_apart(tmp_path, unbroken):
    """One dies after its copy, so does the other; each goes on with its own."""
    rng, answers = np.random.default_rng(1), {}
    for name in "xy":
        np.save(tmp_path / f"{name}.npy", rng.random((150, 200, 200), dtype=np.float32))
        answers[name] = bits(run(tmp_path / f"{name}.npy", "scratch"))
        with pytest.raises(Died):
            run(tmp_path / f"{name}.npy", "scratch", tmp_path / f"kept-{name}", dying(1, PassFinished))
    for name in "xy":
        assert bits(run(tmp_path / f"{name}.npy", "scratch", tmp_path / f"kept-{name}")) == answers[name]
    assert sorted(os.listdir(tmp_path)) == ["x.npy", "y.npy"]


def test_a_scratch_copy_that_is_gone_is_made_again(files, tmp_path, unbroken):
    path = source_of(files, "scratch")
    with pytest.raises(Died):
        run(path, "scratch", tmp_path / "kept", dying(2, PassFinished))
    for copy in files.glob("*.streampca-scratch"):
        copy.unlink()
    assert bits(run(path, "scratch", tmp_path / "kept")) == unbroken("scratch")[0]


def test_what_is_not_ours_stays(files, tmp_path):
    """Whatever its name."""
    folder = tmp_path / "work"
    (folder / "copy").mkdir(parents=True)
    mine = [folder / "copy" / "precious.txt", folder / "gram-0.a", folder / "run-1.a"]
    for path in mine:
        path.write_text("mine")
    run(source_of(files, "covariance"), "covariance", folder)
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(mine)


def test_data_that_will_not_do_leave_nothing(tmp_path):
    """They are changed, and the same call is made again."""
    x = np.random.default_rng(0).random((60_000, 16, 16), dtype=np.float32)
    x[-1, 3, 3] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(DataError, match="sample 59999"):
        run(tmp_path / "x.npy", "covariance", tmp_path / "kept")
    assert os.listdir(tmp_path) == ["x.npy"]


def test_places_that_will_not_do(files, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="is not a folder"):
        run(source_of(files, "covariance"), "covariance", tmp_path / "file")
    for folder in ("m.zarr", "m.zarr/kept"):
        words = {"output": tmp_path / "m.zarr", "checkpoint": tmp_path / folder}
        with pytest.raises(RequestError, match="or lies in it; choose a folder beside it"):
            streampca.fit(source_of(files, "covariance"), n_components=3, **words)


def test_overwriting_begins_anew_where_another_fit_was_begun(files, tmp_path):
    events, path = [], source_of(files, "sweep")
    request = Request(4, "dual", 48 * 2**20, "single", output=True)
    how = Checkpointing(str(tmp_path / "kept"), 0)
    with pytest.raises(Died):
        run(path, "sweep", tmp_path / "kept", dying(2))
    collection = prepared(streampca.open_collection(path), None)
    place = Place(str(tmp_path / "m.zarr"), overwrite=True)
    fit_collection(collection, request, checkpoint=how, place=place, listener=events.append)
    assert any("this one begins anew" in event.message for event in events if isinstance(event, Warned))
    assert os.listdir(tmp_path) == ["m.zarr"]


def test_a_stop_between_passes_is_heeded(files, tmp_path):
    """Also in a pass after a fit that was kept."""
    data = {"collection": {"source": str(source_of(files, "sweep"))}, "fit": {"n_components": 3, "method": "dual"}}
    data |= {"output": {"directory": str(tmp_path / "run"), "transform": True}}
    switch = Switch()

    def listen(event):
        if isinstance(event, PassStarted) and event.label == "scores":
            switch.asked = "SIGTERM"

    with pytest.raises(Stopped):
        execute(make_run(data, "test"), listen, switch)
    execute(make_run(data, "test"))


def test_a_replacement_that_was_killed_goes_on(files, tmp_path):
    """What is to be replaced stays until then, and is older than what was saved."""
    words = {"n_components": 3, "memory": "48MiB"}
    streampca.fit(source_of(files, "sweep"), output=tmp_path / "m.zarr", **words)
    folder = tmp_path / "m.zarr.streampca-checkpoint"
    with pytest.raises(Died):
        run(source_of(files, "sweep"), "sweep", folder, dying(2), k=4)
    checkpoint.clear_finished(str(tmp_path / "m.zarr"))
    assert len(list(folder.iterdir())) > 1


@settings(max_examples=40)
@given(block=st.floats(1, 20), cost=st.floats(0.001, 60), growth=st.floats(1, 1.05))
def test_saving_takes_less_than_three_hundredths(block, cost, growth):
    """Whatever a block and a save take, and though saves grow: by a clock of our own."""
    now, spent = 0.0, 0.0

    class State:
        def state(self, *, copy=True):
            return {"sum": np.zeros(1)}

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(checkpoint.time, "monotonic", lambda: now)
        stage = checkpoint.CheckpointFolder(checkpoint.Checkpointing(folder), {}, listener=lambda event: None).stage(
            "scatter"
        )

        def save(self, at, state):
            nonlocal now, spent, cost
            now, spent, cost = now + cost, spent + cost, cost * growth

        patch.setattr(checkpoint.CheckpointFolder, "_save", lambda self, slots, at, state: save(slots, at, state))
        while now < 300 * max(cost, 10):
            now += block
            stage.save_if_due(0, 0, int(now), State())
    assert 0 < spent < 0.03 * now


def test_the_estimator_goes_on(files, tmp_path, monkeypatch):
    """And leaves alone what else lies in the folder."""
    path, folder = source_of(files, "covariance"), tmp_path / "kept"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)
    whole = checkpoint.CheckpointFolder.save
    pca = streampca.StreamingPCA(5, memory="40MiB", precision="single", checkpoint=folder)

    def last(*words):
        whole(*words)
        raise Died

    monkeypatch.setattr(checkpoint.CheckpointFolder, "save", last)
    monkeypatch.setattr(checkpoint.CheckpointFolder, "is_due", lambda *words: True)
    with pytest.raises(Died):
        pca.fit(path)
    assert len(list(folder.iterdir())) > 1
    monkeypatch.undo()
    pca.fit(path)
    assert bits(pca.model_) == bits(streampca.fit(path, n_components=5, memory="40MiB", precision="single"))
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


SLOW = """
import sys, time
from streampca.fitting import methods
from streampca.fitting.methods import covariance
whole = covariance.ScatterTask.feed

def slowly(self, accumulator, block, fetched):
    whole(self, accumulator, block, fetched)
    print("block", end=" ", flush=True)
    time.sleep(0.2)

covariance.ScatterTask.feed = slowly
from streampca.cli.commands import main
main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_ends_a_command_that_then_goes_on(files, tmp_path, name):
    """Exit 75, one line that names the command, and the same model as without."""
    words = ["fit", str(source_of(files, "covariance")), "-k", "5", "--memory", "40MiB", "--precision", "single"]
    output = ["-o", str(tmp_path / "m.zarr"), "--checkpoint-every", "0"]
    command = [sys.executable, "-c", SLOW, *words, *output]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.read(5) == "block"
        process.send_signal(getattr(signal, name))
        _, said = process.communicate(timeout=60)
    assert process.returncode == 75
    assert f"stopped by {name}; what was done is kept in {tmp_path}/m.zarr.streampca-checkpoint." in said
    assert said.splitlines()[-1].endswith("Go on with: streampca " + " ".join([*words, *output]))
    assert not (tmp_path / "m.zarr").exists()
    again = typed(*words, *output)
    assert again.code == 0, again.err
    assert "samples were done before" in again.err
    expected = streampca.fit(words[1], n_components=5, memory="40MiB", precision="single")
    assert bits(load_model(str(tmp_path / "m.zarr"))) == bits(expected)
    assert sorted(os.listdir(tmp_path)) == ["m.zarr"]
    assert json.loads((tmp_path / "m.zarr" / "zarr.json").read_text())["attributes"]["streampca"]["complete"]
