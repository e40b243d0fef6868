"""Scores and images that go on after a kill: bit for bit the unbroken output, and nothing incomplete taken for whole.

Processes are killed by SIGKILL, from inside and at known places: at a block, halfway through writing one or through
recording one, and before the finished output takes its name.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import re
import signal
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import streampca
from streampca.errors import BudgetError, DataError, OutputError, Stopped
from streampca.events import BlockDone, Checkpoint, PassFinished, Resumed, Warned
from streampca.execution.checkpoint import Checkpointing
from streampca.execution.checkpoint_file import CheckpointFile
from streampca.execution.signals import Switch
from streampca.models.pca import load_model
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


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A working folder with these in it."""
    for name in ("x.npy", "m.zarr", "known.npy"):
        os.symlink(made / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def dying(folder, killed, at, what, output, plan):
    """Write, in a process that dies at the `at`-th time of something; notes events that matter."""
    os.chdir(folder)
    os.fsync = lambda handle: None
    count = iter(range(1, 10**9))

    def note(event):
        with open("events.txt", "a") as file:
            file.write(json.dumps([type(event).__name__, getattr(event, "samples", None)]) + "\n")

    def listener(event):
        if isinstance(event, (Resumed, Checkpoint)):
            note(event)
        if killed == type(event).__name__ and next(count) == at:
            die()

    _plant(killed, at, count)
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


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "streampca.models.pca", "streampca.models.transform.write"])


def died(folder, killed, at, *words):
    """Write in a process of its own; returns whether it died before it was done."""
    process = CONTEXT.Process(target=dying, args=(str(folder), killed, at, *words))
    process.start()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def content(path):
    """Every file of an output, and its bytes."""
    path = Path(path)
    if path.is_file():
        return path.read_bytes()
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def unbroken(what, output, plan):
    """The same output by a run that is not broken."""
    sources = [os.path.realpath(name) for name in ("x.npy", "m.zarr", "known.npy")]
    key = (what, output, plan, *sources)
    if key not in _UNBROKEN:
        os.mkdir("unbroken")
        with contextlib.chdir("unbroken"):  # so that names in the output are the same
            for source in sources:
                os.symlink(source, os.path.basename(source))
            write(what, output, plan, checkpoint=None)
        _UNBROKEN[key] = content(f"unbroken/{output}")
    return _UNBROKEN[key]


_UNBROKEN: dict[tuple[str, ...], object] = {}


def left():
    """What is in the folder beside what was there before."""
    return sorted(set(os.listdir()) - {"x.npy", "m.zarr", "known.npy", "unbroken", "events.txt"})


CASES = [
    ("scores", "s.npy", "whole"), ("scores", "s.csv", "whole"), ("whitened", "s.zarr", "whole"),
    ("images", "i.zarr", "whole"), ("from scores", "i.npy", "whole"),
    ("whitened", "s.npy", "panel"), ("scores", "s.zarr", "range"), ("scores", "s.csv", "range"),
    ("images", "i.zarr", "panel"), ("images", "i.npy", "range"), ("from scores", "i.zarr", "panel"),
    ("residuals", "i.npy", "whole"), ("residuals", "i.zarr", "range"),
]  # fmt: skip


KILLS = itertools.cycle([("write", 2), ("record", 5), ("Checkpoint", 4)])


@pytest.mark.parametrize(("case", "kill"), list(zip(CASES, KILLS, strict=False)))
def test_a_killed_run_goes_on(here, case, kill):
    (what, output, plan), (killed, at) = case, kill
    expected = unbroken(what, output, plan)
    assert died(here, killed, at, what, output, plan)
    assert not os.path.exists(output)
    write(what, output, plan)
    assert content(output) == expected
    assert left() == [output], "records and partial outputs are gone"


@pytest.mark.parametrize(("what", "output", "plan"), [CASES[1], CASES[3]])
def test_a_run_killed_again_and_again_loses_nothing_recorded(here, what, output, plan):
    expected, deaths = unbroken(what, output, plan), 0
    while died(here, "BlockDone", 2, what, output, plan):
        deaths += 1
    assert deaths == 2  # of five blocks each process does and records two, and the last does one
    assert content(output) == expected
    events = [json.loads(line) for line in Path("events.txt").read_text().splitlines()]
    assert [samples for name, samples in events if name == "Resumed"] == [20, 40]
    saved = [samples for name, samples in events if name == "Checkpoint"]
    assert list(dict.fromkeys(saved)) == [10, 20, 30, 40, N]


def test_killed_before_anything_is_recorded(here):
    expected = unbroken("scores", "s.npy", "whole")
    assert died(here, "write", 1, "scores", "s.npy", "whole")
    assert os.listdir("ck") == [LOCK]
    assert [name.endswith(".streampca-partial") for name in left()] == [False, True]
    write("scores", "s.npy")
    assert content("s.npy") == expected
    assert left() == ["s.npy"]


@pytest.mark.parametrize("plan", ["panel", "range"])
def test_pieces_killed_again_and_again(here, plan):
    expected = unbroken("images", "i.zarr", plan)
    deaths = 0
    while died(here, "Checkpoint", 15, "images", "i.zarr", plan):
        deaths += 1
    assert deaths > 2
    assert content("i.zarr") == expected


@pytest.mark.parametrize("plan", PLANS)
def test_errors_added_up_before_a_stop_count(here, plan):
    whole = write("residuals", "whole.npy", plan, checkpoint=None)
    for _ in range(2):
        with pytest.raises(Stopped):
            write("residuals", "i.npy", plan, listener=stop_at(2))
    found = write("residuals", "i.npy", plan)
    assert found.rmse == whole.rmse
    left_over = np.load("i.npy").astype(float)
    assert found.rmse[0] == pytest.approx(np.sqrt(np.mean(np.square(left_over))), rel=1e-5)


@pytest.mark.parametrize(("what", "output"), [("scores", "s.zarr"), ("scores", "s.npy"), ("scores", "s.csv")])
def test_killed_before_the_output_takes_its_name(here, what, output):
    expected = unbroken(what, output, "whole")
    assert died(here, "rename", 1, what, output, "whole")
    assert not os.path.exists(output)
    events = []
    write(what, output, listener=events.append)
    assert content(output) == expected
    assert [event for event in events if isinstance(event, (Resumed, BlockDone))] == [Resumed(N, N * 72)]


def test_killed_while_names_and_coordinates_are_written(here):
    expected = unbroken("images", "i.zarr", "whole")
    assert died(here, "close", 1, "images", "i.zarr", "whole")
    write("images", "i.zarr")
    assert content("i.zarr") == expected


# -- stopped, and failing


def stop_at(block, error=Stopped):
    """A listener that stops a run at a block."""
    count = iter(range(1, 10**9))

    def listener(event):
        if isinstance(event, BlockDone) and next(count) == block:
            raise error

    return listener


def told_to_stop(block):
    """Options of a run that is told to stop at a block, and saves nothing before."""
    switch, count = Switch(), iter(range(1, 10**9))

    def listener(event):
        if isinstance(event, BlockDone) and next(count) == block:
            switch.asked = "SIGTERM"

    return {"checkpoint": Checkpointing("ck", 1000.0, switch), "listener": listener}


@pytest.mark.parametrize(("what", "output", "plan"), CASES)
def test_a_stopped_run_saves_the_block_it_finished(here, what, output, plan):
    expected = unbroken(what, output, plan)
    for _ in range(2):
        with pytest.raises(Stopped, match="what was done is kept in ck"):
            write(what, output, plan, **told_to_stop(1))
        assert not os.path.exists(output)
    events = []
    write(what, output, plan, listener=events.append)
    assert content(output) == expected
    resumed = [event for event in events if isinstance(event, Resumed)]
    done = [event for event in events if isinstance(event, BlockDone)]
    assert resumed[0].samples > 0
    assert resumed[0].samples + sum(event.samples for event in done) == N
    assert isinstance(events[-1], PassFinished)


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
    expected = unbroken("scores", "s.npy", "whole")
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


@pytest.mark.parametrize("output", ["s.npy", "s.csv", "s.zarr"])
def test_without_records_or_partial_output_it_begins_anew(here, output):
    expected = unbroken("scores", output, "whole")
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
    expected = unbroken("scores", "s.npy", "whole")
    partial = begun()
    os.truncate(partial, partial.stat().st_size - 1)
    assert went_on() == (None, [])
    assert content("s.npy") == expected


def test_the_partial_output_of_another_run_is_not_taken(here):
    """Another run to the same place removes what the first left, and is killed in turn."""
    expected = unbroken("scores", "s.npy", "whole")
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
    with pytest.raises(OutputError, match=f"ck holds an unfinished run with {words}; give what that one had"):
        went_on(**options)
    start, warned = went_on(overwrite=True, **options)
    assert start is None
    assert re.fullmatch(f"ck holds an unfinished run with {words}; this one begins anew.", warned[0])
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
    assert content("s.npy") == unbroken("scores", "s.npy", "whole")


def test_what_is_replaced_stays_until_the_end(here):
    Path("s.npy").write_bytes(b"before")
    begun(overwrite=True)
    assert Path("s.npy").read_bytes() == b"before"
    assert went_on(overwrite=True) == (30, [])
    assert np.load("s.npy").shape == (N, 5)


def test_the_stored_plan_is_gone_on_with(here, monkeypatch):
    """Whatever the machine would plan now, blocks stay as they were."""
    expected = unbroken("scores", "s.zarr", "whole")
    begun(output="s.zarr")
    monkeypatch.setitem(PLANS, "whole", Application(7, 7, Phase("apply", ())))
    assert went_on("s.zarr") == (30, [])
    assert content("s.zarr") == expected


# -- what is on disk, and what it costs


@pytest.mark.parametrize("output", ["i.npy", "i.zarr"])
@pytest.mark.parametrize("plan", ["whole", "panel"])
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
