"""Sources that change: during a fit, and between a kill and its resumption; each is named, and none is used."""

from __future__ import annotations

import os
import shutil
from functools import partial

import by_options
import dask.array
import h5py
import numpy as np
import pytest
import scipy.sparse
import zarr
from PIL import Image
from resumed import Died, dying
from shell import diagonal

import streampca
from streampca.errors import ChangedError, OutputError, SourceError
from streampca.events import BlockDone, PassStarted
from streampca.execution.checkpoint import Checkpointing
from streampca.fitting.fit import ModelOutput, fit_collection
from streampca.fitting.open_fit import Opened, prepare
from streampca.preprocessing.copy import copy_collection
from streampca.readers import npy
from streampca.readers.collection import MOST_STATES, first_change

N, SIDE = 1000, 12
CHUNKS = 400  # more than there are states


def images(n=N, seed=0):
    return np.random.default_rng(seed).integers(0, 255, (n, SIDE, SIDE), dtype=np.uint8)


def aged(path):
    """Files that were written long ago: the resolution of the system's clock hides no change then."""
    for above, _, names in os.walk(path):
        for name in (above, *(os.path.join(above, name) for name in names)):
            os.utime(name, (1e9, 1e9))
    return path


def write_hdf5(path, seed=0):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=images(seed=seed), chunks=(10, SIDE, SIDE), compression="gzip")


def write_chunks(path, seed=0):
    """Chunks of a sample each."""
    zarr.create_array(path, data=images(CHUNKS, seed).reshape(CHUNKS, -1), chunks=(1, SIDE * SIDE))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One source of each kind, which tests copy."""
    place = tmp_path_factory.mktemp("written")
    np.save(place / "x.npy", images())
    write_chunks(place / "x.zarr")
    write_hdf5(place / "x.h5")
    (place / "pictures").mkdir()
    for at, image in enumerate(images(300)):
        Image.fromarray(image).save(place / "pictures" / f"{at}.png")
    (place / "several").mkdir()
    for at in range(20):
        np.save(place / "several" / f"{at}.npy", images(50, at))
    return aged(place)


@pytest.fixture
def copied(written, tmp_path):
    """A function that copies one of them, with its times."""

    def copy(name):
        if (written / name).is_dir():
            shutil.copytree(written / name, tmp_path / name)
        else:
            shutil.copy2(written / name, tmp_path / name)
        return tmp_path / name

    return copy


def changed_npy(path):
    np.lib.format.open_memmap(path, mode="r+")[40] += 1


def changed_chunk(path):
    zarr.open_array(path, mode="r+")[300] += 1


def changed_hdf5(path):
    """Change the file as another process would, as this one has it open."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        file.write(b"streampca")


def replaced(path):
    """Replace the file by a copy with the same content and a new time."""
    before = path.rename(path.with_name("before"))
    if before.is_dir():
        shutil.copytree(before, path, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(before, path)


def truncated(path):
    os.truncate(path, os.path.getsize(path) // 2)


def extended_zarr(path):
    zarr.open_array(path, mode="r+").append(images(1).reshape(1, -1))


def added(name, like):
    return lambda path: shutil.copy(path / like, path / name)


CASES = {
    "npy changed": ("x.npy", changed_npy, "x.npy"),
    "npy replaced": ("x.npy", replaced, "x.npy"),
    "npy truncated": ("x.npy", truncated, "x.npy"),
    "npy extended": ("x.npy", lambda path: np.save(path, images(N + 1)), "x.npy"),
    "chunk 300 of 400 changed": ("x.zarr", changed_chunk, "one of c/300/0 to c/301/0"),
    "chunk removed": ("x.zarr", lambda path: (path / "c" / "300" / "0").unlink(), "one of c/300/0 to c/301/0"),
    "chunk truncated": ("x.zarr", lambda path: truncated(path / "c" / "300" / "0"), "one of c/300/0 to c/301/0"),
    "zarr replaced": ("x.zarr", replaced, "one of c/0/0 to c/1/0"),
    "zarr extended": ("x.zarr", extended_zarr, "c/400/0"),
    "hdf5 changed": ("x.h5", changed_hdf5, "x.h5"),
    "hdf5 truncated": ("x.h5", truncated, "x.h5"),
    "picture changed": ("pictures", lambda path: Image.fromarray(images(1, 1)[0]).save(path / "200.png"), "200.png"),
    "picture truncated": ("pictures", lambda path: truncated(path / "200.png"), "200.png"),
    "picture removed": ("pictures", lambda path: (path / "200.png").unlink(), "200.png"),
    "picture added": ("pictures", added("300.png", "0.png"), "300.png"),
    "one of several files changed": ("several", lambda path: changed_npy(path / "17.npy"), "17.npy"),
    "a file added": ("several", added("20.npy", "0.npy"), "20.npy"),
}


def run(source, listener=lambda event: None, output=None, checkpoint=None, method="covariance"):
    """A fit in several blocks; with a checkpoint, it is kept after each."""
    how = {} if checkpoint is None else {"checkpoint": Checkpointing(str(checkpoint), 0)}
    request = by_options.request(5, method, 40 * 2**20, "auto", output=output is not None)
    place = None if output is None else ModelOutput(str(output))
    collection = prepare(streampca.open_collection(source), None)
    return fit_collection(Opened(collection, request), output=place, listener=listener, **how)


def changing(change, source, kind=PassStarted):
    """A listener that changes a source when the first event of a kind comes."""
    left = [change]

    def listen(event):
        if isinstance(event, kind) and left:
            left.pop()(source)

    return listen


@pytest.mark.every(3)
@pytest.mark.parametrize(("case", "kind"), diagonal(CASES, [PassStarted, BlockDone]))
def test_a_change_during_a_fit_is_named_and_nothing_is_kept(copied, tmp_path, case, kind):
    source, change, name = CASES[case]
    source, output, kept = copied(source), tmp_path / "model.zarr", tmp_path / "kept"
    with pytest.raises(SourceError) as caught:
        run(source, changing(change, source, kind), output, kept)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
    assert isinstance(caught.value, ChangedError)
    assert "Run it again" in str(caught.value)
    assert not output.exists()
    assert not kept.exists()


def some_rows(x):
    """1 % of the rows, anywhere."""
    return np.random.default_rng(3).choice(len(x), len(x) // 100, replace=False)


@pytest.mark.parametrize("kind", [PassStarted, BlockDone], ids=["before it is read", "when it has been read"])
def test_rows_changed_in_place_during_a_fit_are_found(tmp_path, kind):
    x = images(20_000)

    def change(x):
        x[some_rows(x)] += 1

    with pytest.raises(ChangedError, match=r"^numpy array \(rows \d+ to \d+\) changed while it was read;"):
        run(x, changing(change, x, kind), tmp_path / "model.zarr", tmp_path / "kept")
    assert not list(tmp_path.iterdir())


def test_rows_changed_in_place_between_a_kill_and_its_resumption_are_found(tmp_path):
    x = images(20_000)
    with pytest.raises(Died):
        run(x, dying(1), checkpoint=tmp_path / "kept")
    x[some_rows(x)] += 1
    with pytest.raises(OutputError, match=r"state of numpy array \(rows \d+ to \d+\).*; run it with the same"):
        run(x, checkpoint=tmp_path / "kept")
    x[some_rows(x)] -= 1
    run(x, checkpoint=tmp_path / "kept")


@pytest.mark.parametrize("shape", [(20_000, 10), (300, 40), (5000, 3, 30_000), (2048, 1)])
def test_one_row_in_a_hundred_is_found_wherever_they_lie(shape):
    x = np.zeros(shape, np.uint8)
    collection, count = streampca.open_collection(x), max(3, shape[0] // 100)
    before = collection.states()
    assert collection.states() == before
    for rows in (slice(count), slice(-count, None), slice(7, None, 100), some_rows(x) if len(x) >= 300 else 0):
        x[rows] = 1
        assert first_change(before, collection.states()) is not None, rows
        x[rows] = 0
    assert collection.states() == before


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("shape", "columns"), [((1797, 64), range(64)), ((4096, 100), range(100)), ((300, 9000), (1, 7))]
)
def test_a_changed_column_is_found(shape, columns, sparse):
    x = np.ones(shape)
    source, column_of = x, [x[:, column] for column in columns]
    if sparse:  # of which every row has values of the same columns
        source = scipy.sparse.csr_array(x)
        column_of = [source.data.reshape(shape)[:, column] for column in columns]
    collection = streampca.open_collection(source)
    before = collection.states()
    for column, values in zip(columns, column_of, strict=True):
        values += 1
        assert first_change(before, collection.states()) is not None, column
        values -= 1


# A change that is found by the states alone, one that shows in the shape, and one that leaves nothing to open.
RESUMED = ["npy replaced", "npy truncated", "npy extended", "chunk removed", "picture changed", "a file added"]


@pytest.mark.parametrize(
    "case", [*RESUMED, *(pytest.param(case, marks=pytest.mark.campaign) for case in CASES if case not in RESUMED)]
)
def test_a_change_between_a_kill_and_its_resumption_is_named(copied, tmp_path, case):
    source, change, name = CASES[case]
    source, output, kept = copied(source), tmp_path / "model.zarr", tmp_path / "kept"
    with pytest.raises(Died):
        run(source, dying(1), output, kept)
    change(source)
    with pytest.raises((OutputError, SourceError)) as caught:  # of the source, where it cannot be opened any more
        run(source, output=output, checkpoint=kept)
    message = str(caught.value)
    assert "\n" not in message
    assert name in message or "number of samples" in message
    assert not output.exists()


@pytest.mark.parametrize("source", ["pictures", "several"])
def test_what_is_made_of_a_folder_and_lies_in_it_is_no_part_of_it(copied, tmp_path, source):
    folder = copied(source)
    before = streampca.open_collection(folder)
    model = streampca.fit(folder, n_components=5, output=tmp_path / "model.zarr", checkpoint=tmp_path / "kept")
    model.write_scores(folder, tmp_path / "scores.zarr")
    model.write_reconstruction(folder, tmp_path / "images.zarr")
    for name in ("model.zarr", "scores.zarr", "images.zarr"):
        shutil.move(tmp_path / name, folder / name)
    assert first_change(before.states(), before.states(now=True)) is None
    after = streampca.open_collection(folder)
    assert (after.fingerprint(), after.shape) == (before.fingerprint(), before.shape)


def test_copies_in_a_folder_are_a_collection_of_it(copied, tmp_path):
    """Where nothing else is there, so are scores."""
    source = streampca.open_collection(copied("x.npy"))
    (tmp_path / "copies").mkdir()
    for name in ("a.zarr", "b.zarr"):
        copy_collection(source, tmp_path / "copies" / name)
    model = streampca.fit(tmp_path / "copies", n_components=5)
    assert model.n_samples == 2 * N
    (tmp_path / "scores").mkdir()
    model.write_scores(source, tmp_path / "scores" / "a.zarr")
    assert streampca.open_collection(tmp_path / "scores").shape == (N, 5)


@pytest.mark.parametrize(
    ("case", "make"),
    diagonal(["npy changed", "chunk 300 of 400 changed", "picture removed"], ["scores", "images", "copy"]),
)
def test_nothing_made_of_a_source_that_changed_meanwhile_is_kept(copied, tmp_path, case, make):
    source, change, name = CASES[case]
    source = copied(source)
    collection, output = streampca.open_collection(source), tmp_path / "made.zarr"
    model = streampca.fit(source, n_components=5)
    made = {
        "scores": partial(model.write_scores, checkpoint=str(tmp_path / "kept")),
        "images": model.write_reconstruction,
        "copy": copy_collection,
    }
    with pytest.raises(ChangedError, match=name):
        made[make](collection, output, listener=changing(change, source, BlockDone))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(("made", "kept"))]


def test_states_of_samples_come_before_those_that_are_added(copied):
    """So that a model tells whether the samples it was fitted on are the first of those there are now."""
    for case in ("picture added", "zarr extended", "a file added"):
        name, change, _ = CASES[case]
        source = copied(name)
        before = streampca.open_collection(source).states()
        change(source)
        after = streampca.open_collection(source).states()
        assert after[: len(before)] == before
        assert len(after) == len(before) + 1


def test_models_keep_states_of_few_bytes(copied, tmp_path):
    source = copied("x.zarr")
    model = streampca.fit(source, n_components=5, output=tmp_path / "model.zarr")
    kept = streampca.load(tmp_path / "model.zarr").provenance["states"]
    assert kept == model.provenance["states"]
    assert len(kept) < 32 * MOST_STATES
    raw = streampca.open_collection(source)
    assert first_change(kept, prepare(raw).states()) is None
    assert first_change(kept, prepare(raw, streampca.Preparation(scale=2.0)).states()) is not None


def test_a_choice_is_changed_by_its_own_samples_only(copied):
    source = copied("x.zarr")
    chosen = [streampca.open_collection(source, samples=some) for some in ((0, 300), (300, CHUNKS), [5, 301, 350])]
    patched = streampca.open_collection(source, patches=[4], samples=(0, 32))
    before = [each.states() for each in (*chosen, patched)]
    changed_chunk(source)
    found = [
        first_change(*pair) for pair in zip(before, (each.states(now=True) for each in (*chosen, patched)), strict=True)
    ]
    assert [name is not None for name in found] == [False, True, True, False]


def test_a_file_that_is_written_while_it_is_opened_is_refused(copied, monkeypatch):
    path = copied("x.npy")
    opened = npy.open_npy

    def slowly(source, **options):
        found = opened(source, **options)
        np.save(source, images(10))
        return found

    monkeypatch.setattr(npy, "open_npy", slowly)
    with pytest.raises(ChangedError, match=r"x\.npy was changed while it was opened"):
        streampca.open_collection(path)


@pytest.mark.parametrize("name", ["array", "h5py", "h5py being written", "memory", "xarray", "dask"])
def test_objects_tell_what_they_can(copied, tmp_path, name):
    """A change in their file, or in 1 % of values in memory; of what is computed later only its name."""
    if name == "array":
        held, change = zarr.open_array(copied("x.zarr")), lambda: changed_chunk(tmp_path / "x.zarr")
    elif name == "h5py":
        held, change = h5py.File(copied("x.h5"))["x"], lambda: changed_hdf5(tmp_path / "x.h5")
    elif name == "h5py being written":
        held = h5py.File(copied("x.h5"), "r+")["x"]
        change = lambda: held.write_direct(images(seed=1))  # noqa: E731
    elif name == "memory":
        held = zarr.array(images(), chunks=(10, SIDE, SIDE))
        change = lambda: held.__setitem__(slice(None), images(seed=1))  # noqa: E731
    elif name == "xarray":
        held = pytest.importorskip("xarray").DataArray(images(), dims=("time", "y", "x"))
        change = lambda: held.values.__setitem__(some_rows(held), 1)  # noqa: E731
    else:
        held, change = dask.array.zeros((100, 5, 5)), None
    collection = streampca.open_collection(held)
    before = collection.states()
    assert collection.states(now=True) == before
    if change is not None:
        change()
        assert first_change(before, collection.states(now=True)) is not None


def test_what_a_preparation_reads_is_of_the_same_data(tmp_path):
    """The mask is read off before the fit begins."""
    path = tmp_path / "x.zarr"
    zarr.create_array(path, data=images(40).astype(np.float32), chunks=(1, SIDE, SIDE))
    collection = prepare(streampca.open_collection(path), streampca.Preparation(mask="valid"))
    os.utime(path / "c" / "20" / "0" / "0", (1e9, 1e9))
    with pytest.raises(ChangedError, match="c/20/0/0"):
        fit_collection(Opened(collection, by_options.request(5, "covariance", None, "auto")))
