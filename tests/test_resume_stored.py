"""Fits that write components as they are made, and die meanwhile: the model they go on to is the unbroken one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zarr
from resumed import Died, bits, number
from shell import python

import streampca
import streampca.models.store
import streampca.planning.component_chunks as component_chunks
from streampca.errors import ModelError, OutputError, Stopped
from streampca.events import BlockDone, PassFinished, PassStarted, Resumed, Warned
from streampca.execution.checkpoint import Checkpointing
from streampca.execution.signals import Switch
from streampca.execution.slots import Slots
from streampca.fitting.fit import Place, fit_collection
from streampca.fitting.methods.dual import GONE
from streampca.fitting.plan import prepared
from streampca.models.pca import load_model
from streampca.models.store import ModelWriter
from streampca.planning import dual
from streampca.planning.request import Request
from streampca.storage import disk
from streampca.storage.outputs import PARTIAL

pytestmark = pytest.mark.usefixtures("unsynced")

KINDS = ("sweep", "scratch")
SHAPE = (150, 100, 160)
TILE = 16 * 2**10  # bytes, so that there are many


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "x.npy"
    np.save(path, np.random.default_rng(0).random(SHAPE, dtype=np.float32))
    return path


@contextmanager
def planned(kind: str) -> Iterator[None]:
    """Components are stored as they are made, a few tiles at a time, by one schedule."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dual, "SCHEDULES", (kind,))
        patch.setattr(dual, "places", lambda request: (True,))
        patch.setattr(component_chunks, "TILE", TILE)
        patch.setattr(component_chunks, "LEAST_RUN", 512)
        patch.setattr(dual, "WRITTEN", 7 * TILE)
        yield


def run(path, kind, output, *, kept=True, listener=lambda event: None, switch=None, **options):
    """A fit to an output, kept beside it after every block."""
    request = Request(10, "dual", 24 * 2**20, "single", output=True)
    how = Checkpointing(f"{output}.kept", 0, switch or Switch()) if kept else None
    collection = prepared(streampca.open_collection(path), None)
    with planned(kind):
        return fit_collection(
            collection, request, place=Place(str(output), **options), checkpoint=how, listener=listener
        )


def dying(count):
    """A listener that ends everything at a block of the components' pass."""
    seen = []

    def listen(event):
        if isinstance(event, PassStarted) and event.label == "components":
            seen.append("pass")
        if seen and isinstance(event, BlockDone):
            seen.append("block")
            if len(seen) == count + 1:
                raise Died

    return listen


def dies(path, kind, output, count, **options):
    with pytest.raises(Died):
        run(path, kind, output, listener=dying(count), **options)


def blocks_of_components(events):
    passed = next(
        number for number, event in enumerate(events) if isinstance(event, PassStarted) and event.label == "components"
    )
    return number(BlockDone, events[passed:])


@pytest.fixture(scope="module")
def unbroken(path, tmp_path_factory):
    """The answers, and how many blocks components take."""
    found = {}
    for kind in KINDS:
        events = []
        model = run(path, kind, tmp_path_factory.mktemp(kind) / "m.zarr", kept=False, listener=events.append)
        assert model.provenance["plan"]["stored"]
        found[kind] = bits(model), blocks_of_components(events)
    return found


def partial_of(output):
    """The model that is not complete."""
    (found,) = output.parent.glob(f"{output.name}.*{PARTIAL}")
    return found


def identity_of(folder):
    return zarr.open_array(folder / "components", mode="r").attrs["streampca"]["id"]


def resumed_events(path, kind, output, unbroken, **options):
    """Run the fit again to its end; return what was told."""
    events = []
    assert bits(run(path, kind, output, listener=events.append, **options)) == unbroken[kind][0]
    assert bits(load_model(str(output))) == unbroken[kind][0]
    assert os.listdir(output.parent) == [output.name]
    return events


@pytest.mark.parametrize("kind", KINDS)
def test_dead_after_any_block(path, tmp_path, unbroken, kind):
    """The same bits, under the same identity; what was made is not made again, and nothing is left behind."""
    blocks = unbroken[kind][1]
    assert blocks >= 3
    buffered = 0
    for count in range(1, blocks + 1, max(1, blocks // 6)):
        output = tmp_path / f"{count}" / "m.zarr"
        dies(path, kind, output, count)
        identity = identity_of(partial_of(output))
        buffered += partly_filled(output)
        events = resumed_events(path, kind, output, unbroken)
        assert identity_of(output) == identity
        assert number(BlockDone, events) <= blocks - count
        assert any(isinstance(event, Resumed) for event in events)
        assert not any(isinstance(event, Warned) for event in events)
    assert buffered or kind != "scratch", "some end within a range that is written"


def partly_filled(output):
    """Whether some components are made that are not written yet."""
    found = Slots(f"{output}.kept", "components-0").load()
    return found[1]["basis.buffer"].size > 0


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_resume_stored as tests
from streampca.storage.components import ComponentWriter

_, _, path, kind, output, count = sys.argv
whole, seen = ComponentWriter.write, []

def write(self, features, values):
    whole(self, features, values)
    seen.append(features)
    if len(seen) == int(count):
        os.kill(os.getpid(), signal.SIGKILL)

ComponentWriter.write = write
tests.run(path, kind, tests.Path(output))
"""


def test_killed(path, tmp_path, unbroken):
    """By the system, when more was written than was kept; twice, as if some of it were not on disk."""
    output = tmp_path / "m.zarr"
    for count in ("7", "4"):
        words = [str(Path(__file__).parent), str(path), "scratch", str(output), count]
        done = python(CHILD, *words)
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
        last = max((partial_of(output) / "components").rglob("c/*/*/*"), key=os.path.getmtime)
        last.write_bytes(last.read_bytes()[:10])
    assert any(isinstance(event, Resumed) for event in resumed_events(path, "scratch", output, unbroken))


def test_what_is_kept_as_written_is_on_disk(path, tmp_path, monkeypatch):
    """Before a state says that it is: files, and the folders that name them."""
    output, synced, found = tmp_path / "m.zarr", set(), []
    sync, save = disk._sync, Slots.save

    def noted(path):
        sync(path)
        synced.add(path)

    def checked(self, about, arrays):
        if self.name.startswith("components"):
            partial = partial_of(output)
            found.append({str(place) for place in (partial.parent, partial, *partial.rglob("*"))})
            assert found[-1] <= synced
        save(self, about, arrays)

    monkeypatch.setattr(disk, "_sync", noted)
    monkeypatch.setattr(Slots, "save", checked)
    run(path, "scratch", output)
    assert len(found) >= 3
    assert len(found[0]) < len(found[1])


def test_told_to_stop(path, tmp_path, unbroken):
    switch, output = Switch(), tmp_path / "m.zarr"

    def listen(event):
        if isinstance(event, PassStarted) and event.label == "components":
            switch.asked = "SIGTERM"

    with pytest.raises(Stopped, match="what was done is kept"):
        run(path, "sweep", output, listener=listen, switch=switch)
    assert any(isinstance(event, Resumed) for event in resumed_events(path, "sweep", output, unbroken))


def lost(output):
    partial_of(output).rename(output.parent.parent / "elsewhere")


def empty(output):
    for name in list(partial_of(output).iterdir()):
        name.rename(output.parent.parent / name.name)


def holed(output):
    min((partial_of(output) / "components").rglob("c/*/*/*")).unlink()


def another(output):
    array = zarr.open_array(partial_of(output) / "components", mode="r+")
    array.attrs.put({"streampca": {"id": "0" * 32}})


def unreadable(output):
    (partial_of(output) / "components" / "zarr.json").write_text("{")


@pytest.mark.parametrize("harm", [lost, empty, holed, another, unreadable])
def test_what_is_gone_is_made_again_from_the_pairs(path, tmp_path, unbroken, harm):
    """Which need no Gram matrix; what is made then is gone on with in its turn."""
    output, blocks = tmp_path / "here" / "m.zarr", unbroken["sweep"][1]
    dies(path, "sweep", output, 2)
    harm(output)
    events = []
    with pytest.raises(Died):
        run(path, "sweep", output, listener=lambda event: (events.append(event), dying_second(event, events)))
    assert [event.message for event in events if isinstance(event, Warned)] == [GONE]
    events = resumed_events(path, "sweep", output, unbroken)
    assert not any(isinstance(event, Warned) for event in events)
    assert number(BlockDone, events) == blocks - 2


def dying_second(event, events):
    if isinstance(event, BlockDone) and number(BlockDone, events) == 2:
        raise Died


def test_a_damaged_state_is_passed_over(path, tmp_path, unbroken):
    """The one before is taken, of which more is written than it says; with both damaged, of the Gram matrix."""
    for damaged in (1, 2):
        output = tmp_path / f"{damaged}" / "m.zarr"
        dies(path, "scratch", output, 2)
        slots = sorted(Path(f"{output}.kept").glob("components-0.*"), key=os.path.getmtime)
        for slot in slots[-damaged:]:
            content = bytearray(slot.read_bytes())
            content[len(content) // 2] ^= 1
            slot.write_bytes(content)
        resumed_events(path, "scratch", output, unbroken)


@pytest.mark.parametrize("moment", ["finish", "consolidate", "sync_files"])
def test_dead_while_it_is_completed(path, tmp_path, unbroken, monkeypatch, moment):
    """A model that says it is complete before it has its name is not taken for one, and is finished again."""
    output = tmp_path / "m.zarr"

    def die(*args, **options):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(*((ModelWriter, "finish") if moment == "finish" else (streampca.models.store, moment)), die)
        with pytest.raises(Died):
            run(path, "sweep", output)
    assert not output.exists()
    resumed_events(path, "sweep", output, unbroken)


def test_what_is_replaced_stays_until_then(path, tmp_path, unbroken):
    output = tmp_path / "m.zarr"
    before = bits(run(path, "scratch", output))
    with pytest.raises(OutputError, match="--overwrite"):
        run(path, "sweep", output)
    dies(path, "sweep", output, 2, overwrite=True)
    assert bits(load_model(str(output))) == before
    with pytest.raises(ModelError, match="not a complete model"):
        load_model(str(partial_of(output)))
    resumed_events(path, "sweep", output, unbroken, overwrite=True)


def test_a_fit_that_is_not_kept_leaves_nothing_and_takes_the_place(path, tmp_path, unbroken):
    output = tmp_path / "m.zarr"
    with pytest.raises(Died):
        run(path, "sweep", output, kept=False, listener=dying(2))
    assert not os.listdir(tmp_path)
    dies(path, "sweep", output, 2)
    assert bits(run(path, "sweep", output, kept=False)) == unbroken["sweep"][0]
    assert sorted(os.listdir(tmp_path)) == ["m.zarr", "m.zarr.kept"]
    events = resumed_events(path, "sweep", output, unbroken, overwrite=True)
    assert [event.message for event in events if isinstance(event, Warned)] == [GONE]


def test_dead_before_anything_was_kept(path, tmp_path, unbroken, monkeypatch):
    """What has begun to be written is of no use then, and is removed."""
    output = tmp_path / "m.zarr"

    def listen(event):
        if isinstance(event, PassStarted) and event.label == "components":
            raise Died

    with pytest.raises(Died):
        run(path, "sweep", output, listener=listen)
    assert os.listdir(tmp_path) == ["m.zarr.kept"]
    events = resumed_events(path, "sweep", output, unbroken)
    assert number(PassFinished, events) == 2
