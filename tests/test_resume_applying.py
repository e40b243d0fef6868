"""Scores and images that go on after a kill: bit for bit the unbroken output, and nothing incomplete taken for whole.

Processes are killed by SIGKILL, from inside and at known places: at a block, halfway through writing one or through
recording one, and before the finished output takes its name. In this process runs end anywhere else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import of
from resumed import IN_STORE, ended, ends_at, in_store
from shell import python

import streampca
from streampca.errors import BudgetError, DataError, OutputError, Stopped
from streampca.events import BlockDone, Checkpoint, PassFinished, Resumed, Warned
from streampca.execution.checkpoint import Checkpointing
from streampca.execution.checkpoint_file import CheckpointFile
from streampca.models.load import load_model
from streampca.models.transform import projection as pieces
from streampca.models.transform import write as writing
from streampca.planning import Application, component_chunks
from streampca.planning.memory import MemoryEstimate, Phase
from streampca.planning.transform_pieces import Piecewise
from streampca.storage import outputs, writers
from streampca.storage.locks import LOCK

pytestmark = pytest.mark.usefixtures("unsynced")

N = 47
PLANS = {
    "whole": Application(10, 5, Phase("apply", ())),
    "panel": Piecewise(20, 4, 3, 13, 40, 10, 5, 0, MemoryEstimate((Phase("apply", ()),))),
    "range": Piecewise(20, 0, 3, 13, 40, 10, 5, 0, MemoryEstimate((Phase("apply", ()),))),
}
WHAT = {
    "scores": ("write_scores", "x.npy", {}),
    "whitened": ("write_scores", "x.npy", {"whiten": True}),
    "images": ("write_reconstruction", "x.npy", {"n_components": 3}),
    "residuals": ("write_reconstruction", "x.npy", {"n_components": 3, "residual": True}),
    "from scores": ("write_reconstruction", "known.npy", {}),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with images, a model that normalizes them, and scores by it."""
    folder = tmp_path_factory.mktemp("made")
    x = np.random.default_rng(0).integers(0, 256, (N, 9, 8), dtype=np.uint8)
    np.save(folder / "x.npy", x)
    model = streampca.fit(x, n_components=5, memory="64MiB", preparation=streampca.Preparation(normalize="mean"))
    with pytest.MonkeyPatch.context() as patch:  # many small tiles
        for name, size in {"TILE": 512, "CHUNK": 64, "TOGETHER": 2, "LEAST_RUN": 16}.items():
            patch.setattr(component_chunks, name, size)
        model.save(folder / "m.zarr")
    model.write_scores(x, folder / "known.npy")
    return folder


SOURCES = ("x.npy", "m.zarr", "known.npy")


@contextlib.contextmanager
def working(made, folder):
    """Work in a folder with these in it."""
    for name in SOURCES:
        os.symlink(made / name, folder / name)
    with contextlib.chdir(folder):
        yield folder


@pytest.fixture
def here(made, tmp_path):
    with working(made, tmp_path) as folder:
        yield folder


def write(what, output, plan="whole", **options):
    """Write something in the blocks of a plan."""
    planned = PLANS[plan]
    how = {"checkpoint": "ck", "checkpoint_every": 0.0} | options
    name, source, more = WHAT[what]
    model = load_model("m.zarr", memory=None if plan == "whole" else "1B")
    found = {"return_value": planned} if plan == "whole" else {"side_effect": BudgetError("too large")}
    with (
        mock.patch.object(pieces, "plan_pieces", return_value=planned),
        mock.patch.object(writing, "plan_application", **found),
    ):
        return getattr(model, name)(source, output, **more, **how)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def dying(killed, at, what, output, plan):
    """Write, and die at the `at`-th time of something; notes events that matter."""
    os.fsync = lambda handle: None
    count = iter(range(1, 10**9))

    def listener(event):
        if isinstance(event, (Resumed, Checkpoint)):
            with open("events.txt", "a") as file:
                file.write(json.dumps([type(event).__name__, event.samples]) + "\n")
        if killed == type(event).__name__ and next(count) == int(at):
            die()

    _plant(killed, int(at), count)
    write(what, output, plan, listener=listener)


def _plant(killed, at, count):
    """Let writing die halfway through a block, a record, or the last step."""
    if killed == "write":
        for sink in (writers.ZarrWriter, writers._NpyWriter, writers._CsvWriter):
            sink.write = _half(sink.write, at, count)
    elif killed == "record":
        end = zipfile.ZipFile._write_end_record
        zipfile.ZipFile._write_end_record = lambda archive: die() if next(count) == at else end(archive)
    elif killed == "rename":
        outputs._take_place = lambda *args: die()
    elif killed == "close":
        writers.consolidate = lambda path: die()


def _half(whole, at, count):
    def half(sink, start, rows, *inside):
        if next(count) < at:
            return whole(sink, start, rows, *inside)
        whole(sink, start, rows[: max(1, len(rows) // 2)], *inside)
        if hasattr(sink, "_file"):
            sink._file.flush()
        else:
            Path(sink._path, sink._table.name, "0.0123.partial").write_bytes(b"as Zarr leaves them")
        return die()

    return half


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from test_resume_applying import dying
dying(*sys.argv[2:])
"""


def died(*words):
    """Write in a process of its own; returns whether it died before it was done."""
    done = python(CHILD, Path(__file__).parent, *words)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-2000:]
    return done.returncode != 0


def content(path):
    """Every file of an output, and its bytes."""
    path = Path(path)
    if path.is_file():
        return path.read_bytes()
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def unbroken(what, output, plan):
    """The same output by a run that is not broken: its content, what the run returned, and what happened."""
    sources = [os.path.realpath(name) for name in SOURCES]
    key = (what, output, plan, *sources)
    if key not in _UNBROKEN:
        os.mkdir("unbroken")
        events = []
        with contextlib.chdir("unbroken"):  # so that names in the output are the same
            for source in sources:
                os.symlink(source, os.path.basename(source))
            found = write(what, output, plan, checkpoint=None, listener=events.append)
        _UNBROKEN[key] = content(f"unbroken/{output}"), found, events
    return _UNBROKEN[key]


_UNBROKEN: dict[tuple[str, ...], object] = {}


def left():
    """Return the files of the folder that were not there before."""
    return sorted(set(os.listdir()) - {*SOURCES, "unbroken", "events.txt"})


CASES = [
    ("scores", "s.npy", "whole"), ("scores", "s.csv", "whole"), ("whitened", "s.zarr", "whole"),
    ("images", "i.zarr", "whole"), ("from scores", "i.npy", "whole"),
    ("whitened", "s.npy", "panel"), ("scores", "s.zarr", "range"), ("scores", "s.csv", "range"),
    ("images", "i.zarr", "panel"), ("images", "i.npy", "range"), ("from scores", "i.zarr", "panel"),
    ("residuals", "i.npy", "whole"), ("residuals", "i.zarr", "range"),
    ("images", "i.tif", "whole"), ("images", "i.tif", "range"),
]  # fmt: skip


@settings(max_examples=settings.default.max_examples * 2 // 5)  # each takes several runs
@given(case=st.sampled_from(CASES), ends=ends_at(BlockDone, Checkpoint), folder=st.sampled_from(["ck", IN_STORE]))
def test_an_output_resumes_wherever_it_was_ended(made, tmp_path_factory, case, ends, folder):
    """However often it ended, bytes and errors are the same, recorded rows are not repeated, and nothing is left."""
    what, output, plan = case

    def again(listener):
        return write(what, output, plan, checkpoint=Checkpointing(folder, 0.0), listener=listener)

    with working(made, tmp_path_factory.mktemp("ends")):
        expected, whole, events = unbroken(*case)
        found, last = ended(again, events, output, folder, ends)
        assert content(output) == expected
        assert left() == [output]
        assert not in_store()
    if what == "residuals":
        assert found.rmse == whole.rmse
    before = [event.samples for event in of(Resumed, last)] or [0]
    assert before[0] + sum(event.samples for event in of(BlockDone, last)) == N
    assert isinstance(last[-1], PassFinished)


# Halfway through a block or a record, and before the output takes its name.
@pytest.mark.slow
@pytest.mark.parametrize(("killed", "at", "case"), [
    ("write", 2, CASES[1]), ("write", 2, CASES[9]), ("write", 5, CASES[8]), ("record", 5, CASES[6]),
    ("close", 1, CASES[3]), ("rename", 1, CASES[0]), ("write", 2, ("images", "i.tif", "whole")),
])  # fmt: skip
def test_a_killed_run_goes_on(here, killed, at, case):
    (what, output, plan), events = case, []
    expected = unbroken(*case)[0]
    assert died(killed, at, *case)
    assert not os.path.exists(output)
    write(what, output, plan, listener=events.append)
    assert content(output) == expected
    assert left() == [output], "records and partial outputs are gone"
    if killed == "rename":
        assert [event for event in events if isinstance(event, (Resumed, BlockDone))] == [Resumed(N, N * 72)]


@pytest.mark.slow
def test_a_killed_parquet_file_is_begun_again(here):
    """Nothing takes its name before it is complete, and nothing is left of what was begun."""
    expected = unbroken("scores", "s.parquet", "whole")[0]
    assert died("BlockDone", 3, "scores", "s.parquet", "whole")
    assert "s.parquet.streampca-partial" in left()
    assert "s.parquet" not in left()
    write("scores", "s.parquet")
    assert content("s.parquet") == expected
    assert left() == ["s.parquet"]


@pytest.mark.slow
def test_a_run_killed_again_and_again_loses_nothing_recorded(here):
    case, deaths = CASES[3], 0
    expected = unbroken(*case)[0]
    while died("BlockDone", 2, *case):
        deaths += 1
    assert deaths == 2  # of five blocks each process does and records two, and the last does one
    assert content("i.zarr") == expected
    events = [json.loads(line) for line in Path("events.txt").read_text().splitlines()]
    assert [samples for name, samples in events if name == "Resumed"] == [20, 40]
    saved = [samples for name, samples in events if name == "Checkpoint"]
    assert list(dict.fromkeys(saved)) == [10, 20, 30, 40, N]


@pytest.mark.slow
def test_killed_before_anything_is_recorded(here):
    expected = unbroken("scores", "s.npy", "whole")[0]
    assert died("write", 1, "scores", "s.npy", "whole")
    assert os.listdir("ck") == [LOCK]
    assert sorted(name.rpartition(".")[2] for name in left()) == ["ck", "streampca-lock", "streampca-partial"]
    write("scores", "s.npy")
    assert content("s.npy") == expected
    assert left() == ["s.npy"]


def test_errors_are_those_of_what_is_left_over(here):
    found = write("residuals", "i.npy")
    left_over = np.load("i.npy").astype(float)
    assert found.rmse[0] == pytest.approx(np.sqrt(np.mean(np.square(left_over))), rel=1e-5)


# -- stopped, and failing


def stop_at(block):
    """A listener that stops a run at a block."""
    count = iter(range(1, 10**9))

    def listener(event):
        if isinstance(event, BlockDone) and next(count) == block:
            raise Stopped

    return listener


def test_without_a_checkpoint_nothing_is_left(here):
    with pytest.raises(Stopped):
        write("scores", "s.npy", checkpoint=None, listener=stop_at(3))
    assert left() == []


def test_bad_data_leave_nothing(here):
    x = np.load("x.npy").astype(np.float32)
    x[31, 2, 1] = np.nan
    model = streampca.fit(np.load("x.npy").astype(np.float32), n_components=2, memory="64MiB")
    plan = mock.patch.object(writing, "plan_application", return_value=PLANS["whole"])
    with plan, pytest.raises(DataError, match="sample 31"):
        model.write_scores(x, "s.npy", checkpoint="ck", checkpoint_every=0)
    assert left() == []


def test_a_failed_write_keeps_what_is_recorded(here):
    expected = unbroken("scores", "s.npy", "whole")[0]
    whole = writers._NpyWriter.write

    def full(sink, start, rows, *inside):
        if start == 30:
            raise OSError(28, "No space left on device")
        whole(sink, start, rows, *inside)

    with mock.patch.object(writers._NpyWriter, "write", full), pytest.raises(OutputError, match="No space left"):
        write("scores", "s.npy")
    events = []
    write("scores", "s.npy", listener=events.append)
    assert [event.samples for event in events if isinstance(event, Resumed)] == [30]
    assert content("s.npy") == expected


# -- what is recorded is not what is there


def begun(*, blocks=3, output="s.npy", **options):
    """Stop a run after some blocks; returns its partial output."""
    with pytest.raises(Stopped):
        write("scores", output, listener=stop_at(blocks), **options)
    return next(Path().glob(f"{output}.*.streampca-partial"))


def went_on(output="s.npy", **options):
    """Write to the end; returns from which sample, None where it began anew, and what was warned of."""
    events = []
    write("scores", output, listener=events.append, **options)
    resumed = [event.samples for event in events if isinstance(event, Resumed)]
    return (resumed or [None])[0], [event.message for event in events if isinstance(event, Warned)]


@pytest.mark.parametrize("output", ["s.npy", "s.zarr"])
def test_without_records_or_partial_output_it_begins_anew(here, output):
    expected = unbroken("scores", output, "whole")[0]
    begun(output=output)
    for path in Path("ck").iterdir():
        path.write_bytes(b"")
    assert went_on(output) == (None, [])
    assert content(output) == expected
    os.rename(output, "elsewhere")
    outputs.discard(str(begun(output=output)))
    assert went_on(output) == (None, [])
    assert content(output) == expected
    assert left() == sorted(["elsewhere", output])


def test_a_file_shorter_than_recorded_is_begun_anew(here):
    expected = unbroken("scores", "s.npy", "whole")[0]
    partial = begun()
    os.truncate(partial, partial.stat().st_size - 1)
    assert went_on() == (None, [])
    assert content("s.npy") == expected


def test_the_partial_output_of_another_run_is_not_taken(here):
    """Another run to the same place removes what the first left, and is killed in turn."""
    expected = unbroken("scores", "s.npy", "whole")[0]
    begun(blocks=4)
    os.rename("ck", "first")
    begun(blocks=1)
    assert went_on(checkpoint="first") == (None, [])
    assert content("s.npy") == expected


def another_model():
    os.remove("m.zarr")
    streampca.fit(np.load("x.npy")[:40], n_components=5, memory="64MiB").save("m.zarr")


@pytest.mark.parametrize(("change", "options", "words"), [
    (lambda: None, {"memory": "1GiB"}, "memory None, and this one has 1073741824"),
    (another_model, {}, r"digest of the model '\w+', and this one has '\w+'"),
])  # fmt: skip
def test_another_request_is_refused_unless_it_may_replace(here, change, options, words):
    begun()
    change()
    with pytest.raises(OutputError, match=f"ck holds an unfinished run with {words}; run it with the same options"):
        went_on(**options)
    start, warned = went_on(overwrite=True, **options)
    assert start is None
    assert re.fullmatch(f"ck holds an unfinished run with {words}; this one starts from the beginning.", warned[0])
    assert left() == ["s.npy"]


def test_a_source_that_changed_is_refused_and_the_remedy_works(here):
    x = np.load("x.npy")
    begun()
    os.remove("x.npy")
    np.save("x.npy", x[::-1].copy())
    os.utime("x.npy", (1, 1))
    with pytest.raises(OutputError, match=r"with state of x\.npy '.*', and this one has .*remove the folder"):
        went_on()
    for path in Path("ck").iterdir():
        path.unlink()
    assert went_on() == (None, [])
    assert content("s.npy") == unbroken("scores", "s.npy", "whole")[0]


def test_what_is_replaced_stays_until_the_end(here):
    Path("s.npy").write_bytes(b"before")
    begun(overwrite=True)
    assert Path("s.npy").read_bytes() == b"before"
    assert went_on(overwrite=True) == (30, [])
    assert np.load("s.npy").shape == (N, 5)


def test_the_stored_plan_is_gone_on_with(here, monkeypatch):
    """Whatever the machine would plan now, blocks stay as they were."""
    expected = unbroken("scores", "s.zarr", "whole")[0]
    begun(output="s.zarr")
    monkeypatch.setitem(PLANS, "whole", Application(7, 7, Phase("apply", ())))
    assert went_on("s.zarr") == (30, [])
    assert content("s.zarr") == expected


# -- what is on disk, and what it costs


@pytest.mark.parametrize(("output", "plan"), [("i.npy", "whole"), ("i.zarr", "panel")])
def test_rows_are_on_disk_before_they_are_recorded(here, output, plan):
    synced, save, checks = {}, CheckpointFile.save, []

    def noted(handle):
        state = os.fstat(handle)
        synced[state.st_ino] = state.st_mtime_ns

    def checked(file, about, arrays):
        if file.name == "run":
            return save(file, about, arrays)
        partial = next(Path().glob(f"{output}.*.streampca-partial"))
        for path in (Path(), partial, *partial.rglob("*")):
            if path != Path() or not checks:  # saving makes another name there
                assert synced[path.stat().st_ino] == path.stat().st_mtime_ns, path
        checks.append(about["at"])
        return save(file, about, arrays)

    with mock.patch.object(os, "fsync", noted), mock.patch.object(CheckpointFile, "save", checked):
        write("images", output, plan)
    assert len(checks) > 4
