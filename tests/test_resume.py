"""Fits of every method that die, are killed or are told to stop anywhere, and resume to the same answer bit for bit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import by_options
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from judged import of, warnings
from resumed import IN_STORE, KINDS, Died, bits, dying, ended, ends_at, in_store, number, run, source_of
from shell import python, typed
from threadpoolctl import threadpool_limits

import streampca
from streampca.cli.config import make_run
from streampca.cli.pipeline import execute
from streampca.errors import DataError, OutputError, RequestError, Stopped
from streampca.events import BlockDone, Checkpoint, Converging, PassFinished, PassStarted, Planned, Resumed
from streampca.execution import checkpoint
from streampca.execution.checkpoint import FOLDER, Checkpointing
from streampca.execution.checkpoint_file import CheckpointFile
from streampca.fitting.fit import fit_collection
from streampca.fitting.open_fit import Opened, prepare
from streampca.models.load import load_model
from streampca.signals import stopping_on_signals
from streampca.storage.outputs import SCRATCH

pytestmark = pytest.mark.usefixtures("unsynced")


def test_these_fits_do_what_they_are_named_for(unbroken):
    """The other tests rely on this."""
    happened = {kind: unbroken(kind)[1] for kind in KINDS}
    passes = {kind: number(PassStarted, events) for kind, events in happened.items()}
    labels = {kind: [event.label for event in of(PassStarted, events)] for kind, events in happened.items()}
    told = {kind: warnings(events) for kind, events in happened.items()}
    (plans,) = zip(*(of(Planned, events) for events in happened.values()), strict=True)
    sides = {kind: event.plan.side for kind, event in zip(happened, plans, strict=True)}
    assert {side for kind, side in sides.items() if kind.startswith("samples")} == {"samples"}
    assert min(number(BlockDone, events) for events in happened.values()) >= 4
    assert passes["covariance"] == 1
    assert passes["dual sweep"] == 2
    assert passes["begins again"] > passes["randomized"] >= 3
    assert labels["begins again"] == ["products with 18 vectors"] * passes["begins again"]
    assert passes["to double"] > passes["randomized"]
    assert passes["em, weighted, in ranges"] >= 3 * 2
    assert passes["em"] == number(Converging, happened["em"]) >= 2
    assert passes["off"] == number(Converging, happened["off"]) + 1
    assert passes["samples, begins again"] > passes["samples"] >= 4
    assert labels["samples, weighted, scratch"][0] == "scratch copy"
    assert labels["samples"][-1] == labels["dual sweep, stored"][-1] == "components"
    assert "memory allows" in told.pop("full basis")[0]
    assert "after 2 passes" in told.pop("sketch")[0]
    assert not any(told.values())


@settings(max_examples=settings.default.max_examples * 3 // 5)  # each takes several fits
@example(kind="weighted, in threads", ends=[(BlockDone, 0.4, "stops"), (BlockDone, 0.6, "dies")], store=None)
@example(kind="screening", ends=[(BlockDone, 0.3, "dies"), (BlockDone, 0.8, "dies")], store=IN_STORE)
@example(kind="dual scratch, stored", ends=[(BlockDone, 0.3, "dies"), (BlockDone, 0.8, "stops")], store=IN_STORE)
@given(
    kind=st.sampled_from(list(KINDS)),
    ends=ends_at(BlockDone, PassFinished, Converging, Checkpoint),
    store=st.sampled_from([None, IN_STORE]),
)
def test_a_fit_resumes_wherever_it_ended(files, unbroken, tmp_path_factory, kind, ends, store):
    """However often it ended, the answer has the same bits, and nothing is left behind, also in an object store."""
    (expected, events), here = unbroken(kind), tmp_path_factory.mktemp("ends")
    output, folder = here / "m.zarr", store or here / "kept"
    again = partial(run, source_of(files, kind), kind, output, folder)
    with contextlib.chdir(here):  # where scratch copies beside a URL are
        found, last = ended(again, events, output, folder, ends)
    assert bits(found) == expected
    if kind.startswith("covariance"):
        assert sum(event.samples for event in of(BlockDone | Resumed, last)) == found.n_samples
    assert bits(load_model(str(output))) == expected
    assert os.listdir(here) == [output.name]
    assert not in_store()


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import resumed
from streampca.execution import checkpoint_file
from streampca.storage.components import ComponentWriter

_, _, path, kind, output, folder, moment, count = sys.argv
seen = []

def is_last():
    seen.append(moment)
    return len(seen) == int(count)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def half(file, array):
    if is_last():
        file.write(b"begun")
        die()
    return whole(file, array)

def write(self, features, values):
    written(self, features, values)
    if is_last():
        die()

if moment == "state":
    whole, checkpoint_file._write_array = checkpoint_file._write_array, half
elif moment == "components":
    written, ComponentWriter.write = ComponentWriter.write, write
listener = resumed.dying(int(count)) if moment == "block" else print
try:
    resumed.run(path, kind, Path(output), folder, listener=listener)
except resumed.Died:
    die()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "moment", "count"),
    [
        ("covariance", "block", 2),
        ("covariance", "state", 20),
        ("dual sweep", "state", 20),
        ("dual scratch, stored", "components", 5),
        ("randomized", "state", 45),
        ("samples, fraction, stored", "components", 3),
    ],
)
def test_killed(files, tmp_path, unbroken, kind, moment, count):
    """The system kills it in a pass, while a state is written, or after components that the state lacks."""
    path, folder, output = source_of(files, kind), tmp_path / "kept", tmp_path / "m.zarr"
    done = python(CHILD, Path(__file__).parent, path, kind, output, folder, moment, count)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    if moment == "components":  # as if some of the last were not on disk
        last = max(tmp_path.glob("m.zarr.*/components/c/*/*/*"), key=os.path.getmtime)
        last.write_bytes(last.read_bytes()[:10])
    after = []
    assert bits(run(path, kind, output, folder, listener=after.append)) == unbroken(kind)[0]
    assert number(Resumed, after)
    assert os.listdir(tmp_path) == ["m.zarr"]


@pytest.mark.parametrize(
    ("kind", "stage", "count", "damaged"),
    [
        ("dual sweep", "gram", 3, 2),
        ("dual scratch, stored", "components", 9, 1),
        ("randomized", "lanczos", 6, 1),
        ("randomized", "product", 11, 2),
    ],
)
def test_a_damaged_state_is_passed_over(files, tmp_path, unbroken, kind, stage, count, damaged):
    """The one before is taken; with both damaged it begins again from what the rest allows."""
    path, folder, output = source_of(files, kind), tmp_path / "kept", tmp_path / "m.zarr"
    with pytest.raises(Died):
        run(path, kind, output, folder, listener=dying(count))
    files = sorted(folder.glob(f"{stage}-0.*"), key=os.path.getmtime)
    assert len(files) == 2
    for file in files[-damaged:]:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    assert bits(run(path, kind, output, folder)) == unbroken(kind)[0]
    assert os.listdir(tmp_path) == ["m.zarr"]


@pytest.fixture
def begun(files, tmp_path):
    """A fit by sweeps that died after two blocks: `again` calls it again, perhaps with other options."""
    path, folder, output = source_of(files, "dual sweep"), tmp_path / "kept", tmp_path / "m.zarr"

    def again(path=path, **options):
        return run(path, "dual sweep", output, folder, **options)

    with pytest.raises(Died):
        again(listener=dying(2))
    return SimpleNamespace(path=path, folder=folder, output=output, again=again)


# -- another request, other data, another plan


def test_another_fit_is_refused_by_name(begun):
    for options, message in (
        ({"n_components": 7}, r"n_components 5, and this one has 7; .* remove the folder"),
        ({"tol": 1e-6}, r"tol None, and this one has 1e-06; run it with the same options"),
        ({"max_passes": 4}, r"max_passes None, and this one has 4; run it with the same options"),
        ({"random_state": 3}, "random_state 0, and this one has 3"),
    ):
        with pytest.raises(OutputError, match=message):
            begun.again(**options)
    shutil.rmtree(begun.folder)
    assert begun.again(n_components=7).n_components == 7


def test_other_data_are_refused_by_name(begun, tmp_path):
    other = tmp_path / "other.npy"
    np.save(other, np.load(begun.path))
    with pytest.raises(OutputError, match=r"source '.*wide\.npy', and this one has '.*other\.npy'"):
        begun.again(other)
    with pytest.raises(Died):
        run(other, "dual sweep", begun.output, tmp_path / "another", listener=dying(2))
    np.save(other, np.load(begun.path) + 1)
    with pytest.raises(OutputError, match=r"with state of \S+other\.npy '.*; run it with the same options"):
        run(other, "dual sweep", begun.output, tmp_path / "another")


def test_another_plan_is_refused_by_name(files, tmp_path):
    """A fit along samples is not resumed along features."""
    with pytest.raises(Died):
        run(source_of(files, "samples"), "samples", tmp_path / "m.zarr", tmp_path / "kept", listener=dying(6))
    collection = prepare(streampca.open_collection(source_of(files, "samples")), None)
    request = by_options.request(5, "randomized", 64 * 2**20, "single", output=True)
    with pytest.raises(OutputError, match="holds an unfinished run planned with"):
        fit_collection(Opened(collection, request), checkpoint=Checkpointing(str(tmp_path / "kept")))


def test_the_stored_plan_goes_on_whatever_memory_is_free(files, tmp_path, monkeypatch):
    collection = prepare(streampca.open_collection(files / "tall.npy"), None)
    request, how = by_options.request(5, "covariance", None, "single"), Checkpointing(str(tmp_path / "kept"), 0)
    expected = bits(fit_collection(Opened(collection, request)))
    with pytest.raises(Died):
        fit_collection(Opened(collection, request), checkpoint=how, listener=dying(1))
    monkeypatch.setattr("streampca.machine.memory_limit", lambda: (60 * 2**20, "a smaller machine"))
    assert bits(fit_collection(Opened(collection, request), checkpoint=how)) == expected


def test_overwriting_begins_anew_where_another_fit_was_begun(begun, tmp_path):
    events = []
    begun.again(n_components=4, overwrite=True, listener=events.append)
    assert "this one starts from the beginning" in warnings(events)[0]
    assert os.listdir(tmp_path) == ["m.zarr"]


# -- what a folder holds, and who removes it


def test_saves_keep_their_interval(files, tmp_path):
    """Not one in a run that is shorter than it."""
    events, collection = [], prepare(streampca.open_collection(files / "tall.npy"), None)
    request, how = by_options.request(5, "covariance", 40 * 2**20, "single"), Checkpointing(str(tmp_path / "kept"))
    fit_collection(Opened(collection, request), checkpoint=how, listener=events.append)
    assert not number(Checkpoint, events)


@pytest.mark.parametrize("patience", [0.0, -1.0], ids=["by its size", "by the last"])
def test_told_to_stop_without_time_to_save(begun, monkeypatch, patience):
    """The last checkpoint is kept, and the message says how much is lost."""
    kept = {path.name: path.read_bytes() for path in begun.folder.iterdir()}
    monkeypatch.setattr(checkpoint, "PATIENCE", patience)
    late = r"stopped by SIGINT; the last .* of work are lost, as saving them would take too long\.$"
    with stopping_on_signals(owns_process=True), pytest.raises(Stopped, match=late):  # noqa: PT012 - raised before
        signal.raise_signal(signal.SIGINT)
        begun.again()
    assert {path.name: path.read_bytes() for path in begun.folder.iterdir()} == kept


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_a_finished_run_could_not_remove_is_in_nobodys_way(files, tmp_path, monkeypatch, overwrite):
    """It died when the model had its name, and the folder was still there; another run of any kind may follow."""
    output = tmp_path / "m.zarr"

    def command(k, **more):
        data = {"collection": {"source": str(files / "wide.npy")}, "output": {"model": str(output)}}
        data |= {"model": {"n_components": k}, "run": {"memory": "48MiB", "checkpoint_every": 0, **more}}
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


@pytest.mark.parametrize("name", [f"m.zarr{FOLDER}", "saved"])
def test_the_same_call_removes_what_a_finished_run_could_not(files, tmp_path, monkeypatch, name):
    """Beside the output: a folder elsewhere may hold what another run saved."""
    scratch, other = (tmp_path / name / f"{each}{SCRATCH}" for each in ("copy", "other"))

    def call():
        how = Checkpointing(tmp_path / name, every=0)
        streampca.fit(files / "wide.npy", n_components=3, output=tmp_path / "m.zarr", checkpoint=how)

    begin = checkpoint.CheckpointFolder.begin
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.CheckpointFolder, "clear", lambda saver: None)
        patched.setattr(
            checkpoint.CheckpointFolder, "begin", lambda *given, **how: begin(*given, **how | {"scratch": str(scratch)})
        )
        call()
    for each in (scratch, other):
        each.mkdir()
        os.utime(each, (0, 0))  # older than the model
    before = sorted(os.listdir(tmp_path / name))
    with pytest.raises(OutputError, match="exists already"):
        call()
    left = sorted(os.listdir(tmp_path / name))
    assert left == (before if name == "saved" else [other.name])


def test_a_replacement_that_was_killed_goes_on(begun):
    """The output to be replaced stays until then, and is older than the checkpoint."""
    streampca.fit(begun.path, n_components=3, memory="48MiB", output=begun.output)
    folder = Path(f"{begun.output}.streampca-checkpoint")
    with pytest.raises(Died):
        run(begun.path, "dual sweep", begun.output, folder, listener=dying(2), overwrite=True)
    checkpoint.clear_finished(str(begun.output))
    assert len(list(folder.iterdir())) > 1


def test_two_fits_of_one_scratch_folder_keep_apart(files, tmp_path, unbroken):
    """Each dies after its copy, and goes on with its own, or makes another where it is gone or was cut short."""
    names = ("x", "y", "z")

    def fit(name, **options):
        more = {"scratch": str(tmp_path), **options}
        return run(files / "wide.npy", "dual scratch", tmp_path / f"{name}.zarr", tmp_path / name, **more)

    for name in names:
        with pytest.raises(Died):
            fit(name, listener=dying(1, PassFinished))
    copies = sorted(tmp_path.glob("*.streampca-scratch"), key=os.path.getmtime)
    assert len(copies) == len(names)
    copies[-1].unlink()
    os.truncate(copies[0], os.path.getsize(copies[0]) - 1)
    for name in names:
        assert bits(fit(name)) == unbroken("dual scratch")[0]
    assert sorted(os.listdir(tmp_path)) == ["x.zarr", "y.zarr", "z.zarr"]


def test_what_is_not_ours_stays(files, tmp_path):
    """Whatever its name."""
    folder = tmp_path / "work"
    (folder / "copy").mkdir(parents=True)
    mine = [folder / "copy" / "precious.txt", folder / "gram-0.a", folder / "run-1.a"]
    for path in mine:
        path.write_text("mine")
    run(files / "tall.npy", "covariance", tmp_path / "m.zarr", folder)
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(mine)


@pytest.mark.parametrize("kind", ["covariance", "randomized"])
def test_data_that_will_not_do_leave_nothing(files, tmp_path, kind):
    """They are found when something was saved already; they are changed, and the same call is made again."""
    x, events = np.load(files / "tall.npy"), []
    x[-3, 3, 3] = np.nan
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(DataError, match=r"sample 497 .*NaN"):
        run(tmp_path / "x.npy", kind, tmp_path / "m.zarr", tmp_path / "kept", listener=events.append)
    assert number(Checkpoint, events)
    assert os.listdir(tmp_path) == ["x.npy"]


def test_places_that_will_not_do(files, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="is not a folder"):
        run(files / "tall.npy", "covariance", tmp_path / "m.zarr", tmp_path / "file")
    for folder in ("m.zarr", "m.zarr/kept"):
        words = {"output": tmp_path / "m.zarr", "checkpoint": tmp_path / folder}
        with pytest.raises(RequestError, match="or lies in it; choose a folder beside it"):
            by_options.fit(files / "tall.npy", n_components=3, **words)


@settings(max_examples=10)
@given(block=st.floats(1, 20), cost=st.floats(0.001, 60), growth=st.floats(1, 1.05))
def test_saving_takes_less_than_three_hundredths(block, cost, growth):
    """Whatever a block and a save take, and though saves grow: by a clock of our own."""
    now, spent = 0.0, 0.0
    state = SimpleNamespace(state=lambda *, copy=True: {"sum": np.zeros(2**18)})  # 2 MiB, which is measured

    def save(self, file, at, state):
        nonlocal now, spent, cost
        now, spent, cost = now + cost, spent + cost, cost * growth

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(checkpoint.time, "monotonic", lambda: now)
        patch.setattr(checkpoint.CheckpointFolder, "_save", save)
        stage = checkpoint.CheckpointFolder(Checkpointing(folder), {}, listener=lambda event: None).stage("scatter")
        while now < 300 * max(cost, 10):
            now += block
            stage.save_if_due(0, 0, int(now), state)
    assert 0 < spent < 0.03 * now


# -- checkpoints that somebody else wrote, and machines that round otherwise


@pytest.mark.parametrize("planted", ["absolute", "above", "a link", "a slot"])
def test_a_planted_checkpoint_touches_nothing_outside(files, tmp_path, unbroken, planted):
    """Whatever path its record names, and wherever its files lead."""
    folder, victim = tmp_path / "kept", tmp_path / "victim.streampca-scratch"
    with pytest.raises(Died):
        run(files / "wide.npy", "dual scratch", tmp_path / "m.zarr", folder, listener=dying(3))
    victim.mkdir()
    (victim / "precious.txt").write_text("mine")
    record, scratch = CheckpointFile(str(folder), "run"), folder / "planted.streampca-scratch"
    known, _ = record.load()
    for old in folder.glob("*.streampca-scratch"):
        old.unlink()
    paths = {"absolute": victim, "above": folder / ".." / victim.name, "a link": scratch, "a slot": scratch}
    record.save({**known, "scratch": str(paths[planted])}, {})
    if planted == "a link":
        scratch.symlink_to(victim)
    elif planted == "a slot":
        (folder / "gram-0.a").unlink(missing_ok=True)
        for name in ("run.a", "gram-0.a"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(victim / "precious.txt")
    again = run(files / "wide.npy", "dual scratch", tmp_path / "m.zarr", folder)
    assert bits(again) == unbroken("dual scratch")[0]
    assert (victim / "precious.txt").read_text() == "mine"
    assert os.listdir(victim) == ["precious.txt"]
    if planted == "a slot":  # links stay where nobody says whose they are
        shutil.rmtree(folder, ignore_errors=True)
    assert sorted(os.listdir(tmp_path)) == ["m.zarr", victim.name]


def test_another_blas_is_warned_of_and_refused_where_bits_matter(files, tmp_path):
    """Threads of BLAS stand for its kernel, which one process cannot change."""
    collection = prepare(streampca.open_collection(files / "tall.npy"), None)
    request, how = by_options.request(5, "covariance", 40 * 2**20, "single"), Checkpointing(str(tmp_path / "kept"), 0)
    with pytest.raises(Died):
        fit_collection(Opened(collection, request), checkpoint=how, listener=dying(1))
    strict, events, die = replace(how, require_same_bits=True), [], dying(1, Resumed)

    def listen(event):
        events.append(event)
        die(event)

    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(
            OutputError, match=r", 1 thread.*, and this process has .*, 2 threads; resume it on the same"
        ):
            fit_collection(Opened(collection, request), checkpoint=strict)
        with pytest.raises(Died):
            fit_collection(Opened(collection, request), checkpoint=how, listener=listen)
    assert ["may differ in its last bits" in warning for warning in warnings(events)] == [True]
    with pytest.raises(OutputError, match="2 threads, and this process has"):
        fit_collection(Opened(collection, request), checkpoint=strict)
    fit_collection(Opened(collection, request), checkpoint=how)


def test_the_same_bits_are_required_by_an_option(files, tmp_path):
    words = ["fit", str(files / "tall.npy"), "-k", "5", "--memory", "40MiB", "-o", str(tmp_path / "m.zarr"), "-q"]
    data = {"collection": {"source": words[1]}, "model": {"n_components": 5}, "output": {"model": words[-2]}}
    saved = make_run(data | {"run": {"checkpoint_every": 0, "memory": "40MiB"}}, "test")
    with threadpool_limits(1, user_api="blas"), pytest.raises(Died):
        execute(saved, dying(1, Checkpoint))
    with threadpool_limits(2, user_api="blas"):
        said = typed(*words, "--require-same-bits")
    assert said.code == 1
    assert "without --require-same-bits" in said.complaint
    with threadpool_limits(1, user_api="blas"):
        assert typed(*words, "--require-same-bits").code == 0
    assert os.listdir(tmp_path) == ["m.zarr"]


# -- by the estimator and the command line


def test_the_estimator_goes_on(files, tmp_path, monkeypatch):
    """Other files of the folder are left alone."""
    path, folder = files / "tall.npy", tmp_path / "kept"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    whole = checkpoint.CheckpointFolder.save
    pca = streampca.PCA(5, precision="single", run=streampca.Run(memory="40MiB", checkpoint=folder))

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
    assert bits(pca.model_) == bits(streampca.fit(path, streampca.PCA(5, precision="single"), memory="40MiB"))
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_stop_between_passes_is_heeded(files, tmp_path):
    """Also in a pass after a fit that was kept."""
    data = {"collection": {"source": str(files / "wide.npy")}, "model": {"n_components": 3, "method": "dual"}}
    data |= {"output": {"directory": str(tmp_path / "run"), "transform": True}}

    def listen(event):
        if isinstance(event, PassStarted) and event.label == "scores":
            signal.raise_signal(signal.SIGTERM)

    with stopping_on_signals(owns_process=True), pytest.raises(Stopped):
        execute(make_run(data, "test"), listen)
    execute(make_run(data, "test"))


SIGNALLED = """
import signal, sys
from streampca.fitting.methods.tasks import SamplesTask
from streampca.cli.commands import main

name, feed = sys.argv.pop(1), SamplesTask.feed

def signalled(self, *words):
    feed(self, *words)
    signal.raise_signal(getattr(signal, name))

SamplesTask.feed = signalled
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_ends_a_command_that_then_goes_on(files, tmp_path, name):
    """Exit 75, one line that names the command, and the same model as without."""
    words = ["fit", str(files / "tall.npy"), "-k", "5", "--memory", "40MiB", "--precision", "single"]
    output = ["-o", str(tmp_path / "m.zarr"), "--checkpoint-every", "0", "--method", "covariance"]
    done = python(SIGNALLED, name, *words, *output)
    assert done.returncode == 75
    assert f"stopped by {name}; progress is saved in {tmp_path}/m.zarr.streampca-checkpoint." in done.stderr
    assert done.stderr.splitlines()[-1].endswith("Resume with: streampca " + " ".join([*words, *output]))
    assert not (tmp_path / "m.zarr").exists()
    again = typed(*words, *output)
    assert again.code == 0, again.err
    assert "samples of the pass were done before" in again.err
    expected = streampca.fit(words[1], streampca.PCA(5, method="covariance", precision="single"), memory="40MiB")
    assert bits(load_model(str(tmp_path / "m.zarr"))) == bits(expected)
    assert sorted(os.listdir(tmp_path)) == ["m.zarr"]
    assert json.loads((tmp_path / "m.zarr" / "zarr.json").read_text())["attributes"]["streampca"]["complete"]
