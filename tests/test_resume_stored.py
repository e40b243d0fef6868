"""Fits that write components as they are computed, and end meanwhile: what of them is taken, and what is made again."""

from __future__ import annotations

import os

import numpy as np
import pytest
import zarr
from judged import check_signs
from resumed import Died, bits, number, run, source_of

import streampca
import streampca.models.store
from streampca.errors import ModelError, OutputError
from streampca.events import BlockDone, PassFinished, PassStarted, Resumed, Warned
from streampca.execution.checkpoint_file import CheckpointFile
from streampca.fitting.methods.dual import GONE
from streampca.models.load import load_model
from streampca.models.store import ModelWriter
from streampca.storage import disk
from streampca.storage.components import ComponentWriter
from streampca.storage.outputs import PARTIAL

pytestmark = pytest.mark.usefixtures("unsynced")

BLOCKS = 4  # of the pass of components
KINDS = ("dual sweep, stored", "dual scratch, stored")


@pytest.fixture
def fit(files, tmp_path):
    """A fit to m.zarr, saved in m.zarr.kept unless told otherwise."""

    def fit(kind=KINDS[0], *, kept=True, **options):
        folder = tmp_path / "m.zarr.kept" if kept else None
        return run(source_of(files, kind), kind, tmp_path / "m.zarr", folder, **options)

    return fit


def dying(count):
    """A listener that ends everything at a block of the components' pass; at its start for 0."""
    seen = []

    def listen(event):
        if seen or (isinstance(event, PassStarted) and event.label == "components"):
            seen.append(event)
            if number(BlockDone, seen) == count:
                raise Died

    return listen


def dies(fit, count, *kind, **options):
    with pytest.raises(Died):
        fit(*kind, listener=dying(count), **options)


def partial_of(folder):
    """The model that is not complete."""
    (found,) = folder.glob(f"m.zarr.*{PARTIAL}")
    return found


def resumed_events(fit, expected, folder, *kind, **options):
    """Run the fit again to its end; return what was told."""
    events = []
    assert bits(fit(*kind, listener=events.append, **options)) == expected
    assert bits(load_model(str(folder / "m.zarr"))) == expected
    assert os.listdir(folder) == ["m.zarr"]
    return events


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_made_is_kept_under_its_identity(fit, tmp_path, unbroken, kind):
    """Stored components are not made again, though some are not in a whole tile yet."""
    dies(fit, 2, kind)
    array = zarr.open_array(partial_of(tmp_path) / "components", mode="r")
    saved = CheckpointFile(str(tmp_path / "m.zarr.kept"), "components-0").load()
    assert saved[1]["buffer"].size > 0 or kind != KINDS[1]
    events = resumed_events(fit, unbroken(kind)[0], tmp_path, kind)
    after = zarr.open_array(tmp_path / "m.zarr" / "components", mode="r")
    assert after.attrs["streampca"]["id"] == array.attrs["streampca"]["id"]
    assert number(BlockDone, events) <= BLOCKS - 1
    assert number(Resumed, events)
    assert not number(Warned, events)


def dies_while_signs_are_fixed(fit, monkeypatch, count):
    """Right after a tile is written again, before a state knows of it."""
    read, write, reads = ComponentWriter.read, ComponentWriter.write, []

    def noted(self, features):
        reads.append(features)
        return read(self, features)

    def dying(self, features, values):
        write(self, features, values)
        if len(reads) == count:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(ComponentWriter, "read", noted)
        patch.setattr(ComponentWriter, "write", dying)
        with pytest.raises(Died):
            fit()


def test_dead_while_signs_are_fixed(fit, tmp_path, unbroken, monkeypatch):
    """A tile that was written again keeps its signs; twice, further on each time."""
    for count in (3, 5):
        dies_while_signs_are_fixed(fit, monkeypatch, count)
    events = resumed_events(fit, unbroken(KINDS[0])[0], tmp_path)
    assert number(Resumed, events)
    assert not number(Warned, events)


def test_a_tile_damaged_while_signs_are_fixed_is_made_again(fit, tmp_path, unbroken, monkeypatch):
    """The damage is that of a power cut, and the next run but one repairs it."""
    dies_while_signs_are_fixed(fit, monkeypatch, 5)
    last = max((partial_of(tmp_path) / "components").rglob("c/*/*/*"), key=os.path.getmtime)
    last.write_bytes(last.read_bytes()[:10])
    with pytest.raises(OutputError, match="start it again to make them again"):
        fit()
    events = resumed_events(fit, unbroken(KINDS[0])[0], tmp_path)
    assert [event.message for event in events if isinstance(event, Warned)] == [GONE]


@pytest.mark.parametrize("kind", KINDS)
def test_signs_are_those_of_components_in_memory(fit, files, kind):
    held = streampca.fit(files / "wide.npy", streampca.PCA(5, method="dual", precision="double"))
    written = fit(kind, kept=False)
    check_signs(written, held)
    assert np.any(np.asarray(held.components).min(axis=(1, 2)) < 0)


def test_what_is_kept_as_written_is_on_disk(fit, tmp_path, monkeypatch):
    """Before a state says that it is: files, and the folders that name them."""
    synced, found = set(), []
    sync, save = disk._sync, CheckpointFile.save

    def noted(path):
        sync(path)
        synced.add(path)

    def checked(self, about, arrays):
        if self.name.startswith("components"):
            partial = partial_of(tmp_path)
            found.append({str(place) for place in (partial.parent, partial, *partial.rglob("*"))})
            assert found[-1] <= synced
        save(self, about, arrays)

    monkeypatch.setattr(disk, "_sync", noted)
    monkeypatch.setattr(CheckpointFile, "save", checked)
    fit(KINDS[1])
    assert len(found) >= 3
    assert len(found[0]) < len(found[-1])


def lost(partial):
    partial.rename(partial.parent.parent / f"{partial.parent.name}-elsewhere")


def empty(partial):
    for name in list(partial.iterdir()):
        name.rename(partial.parent.parent / f"{partial.parent.name}-{name.name}")


def holed(partial):
    min((partial / "components").rglob("c/*/*/*")).unlink()


def another(partial):
    zarr.open_array(partial / "components", mode="r+").attrs.put({"streampca": {"id": "0" * 32}})


def unreadable(partial):
    (partial / "components" / "zarr.json").write_text("{")


@pytest.mark.parametrize("harm", [lost, empty, holed, another, unreadable])
def test_what_is_gone_is_made_again_from_the_pairs(fit, tmp_path, unbroken, harm):
    """The pairs need no Gram matrix, and this stage is resumable in its turn."""
    dies(fit, 2)
    harm(partial_of(tmp_path))
    events, end = [], dying(2)
    with pytest.raises(Died):
        fit(listener=lambda event: (events.append(event), end(event)))
    assert [event.message for event in events if isinstance(event, Warned)] == [GONE]
    events = resumed_events(fit, unbroken(KINDS[0])[0], tmp_path)
    assert not number(Warned, events)
    assert number(BlockDone, events) <= BLOCKS - 1


@pytest.mark.parametrize("moment", ["finish", "consolidate", "sync_files"])
def test_dead_while_it_is_completed(fit, tmp_path, unbroken, monkeypatch, moment):
    """A model that says it is complete before it has its name is not taken for one, and is finished again."""

    def die(*args, **options):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(*((ModelWriter, "finish") if moment == "finish" else (streampca.models.store, moment)), die)
        with pytest.raises(Died):
            fit()
    assert not (tmp_path / "m.zarr").exists()
    resumed_events(fit, unbroken(KINDS[0])[0], tmp_path)


def test_what_is_replaced_stays_until_then(fit, tmp_path, unbroken):
    before = bits(fit(KINDS[1]))
    with pytest.raises(OutputError, match="overwrite=True"):
        fit()
    dies(fit, 2, overwrite=True)
    assert bits(load_model(str(tmp_path / "m.zarr"))) == before
    with pytest.raises(ModelError, match="not a complete model"):
        load_model(str(partial_of(tmp_path)))
    resumed_events(fit, unbroken(KINDS[0])[0], tmp_path, overwrite=True)


def test_a_fit_that_is_not_kept_leaves_nothing_and_takes_the_place(fit, tmp_path, unbroken):
    dies(fit, 2, kept=False)
    assert not os.listdir(tmp_path)
    dies(fit, 2)
    assert bits(fit(kept=False)) == unbroken(KINDS[0])[0]
    assert sorted(os.listdir(tmp_path)) == ["m.zarr", "m.zarr.kept"]
    events = resumed_events(fit, unbroken(KINDS[0])[0], tmp_path, overwrite=True)
    assert [event.message for event in events if isinstance(event, Warned)] == [GONE]


def test_dead_before_anything_was_kept(fit, tmp_path, unbroken):
    """The partial output is useless then, and is removed."""
    dies(fit, 0)
    assert os.listdir(tmp_path) == ["m.zarr.kept"]
    events = resumed_events(fit, unbroken(KINDS[0])[0], tmp_path)
    assert number(PassFinished, events) == 2
