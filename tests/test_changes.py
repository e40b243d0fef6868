"""Sources that change: during a fit, and between a kill and its resumption; each is named, and none is used."""

from __future__ import annotations

import os
import shutil

import h5py
import numpy as np
import pytest
import zarr
from PIL import Image
from resumed import Died, dying

import streampca
from streampca.beforehand import asked, prepared
from streampca.collection import first_change
from streampca.errors import ChangedError, OutputError, SourceError
from streampca.events import BlockDone, PassStarted
from streampca.fitting import Place, fit_collection
from streampca.saving import Checkpointing

N, SIDE = 1000, 12


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
    """1000 chunks, each a sample."""
    zarr.create_array(path, data=images(seed=seed).reshape(N, -1), chunks=(1, SIDE * SIDE))


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
    np.lib.format.open_memmap(path, mode="r+")[900] += 1


def replaced_npy(path):
    np.save(path.with_name("other.npy"), images(seed=1))
    os.replace(path.with_name("other.npy"), path)


def truncated(path):
    os.truncate(path, os.path.getsize(path) // 2)


def extended_npy(path):
    np.save(path, images(N + 1))


def changed_chunk(path):
    zarr.open_array(path, mode="r+")[900] += 1


def removed_chunk(path):
    (path / "c" / "900" / "0").unlink()


def truncated_chunk(path):
    truncated(path / "c" / "900" / "0")


def replaced_zarr(path):
    path.rename(path.with_name("old.zarr"))
    shutil.copytree(path.with_name("old.zarr"), path, copy_function=shutil.copyfile)


def extended_zarr(path):
    zarr.open_array(path, mode="r+").append(images(1).reshape(1, -1))


def changed_hdf5(path):
    """As another process would: this one has the file open."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        file.write(b"streampca")


def replaced_hdf5(path):
    write_hdf5(path.with_name("other.h5"), seed=1)
    os.replace(path.with_name("other.h5"), path)


def extended_hdf5(path):
    with open(path, "ab") as file:
        file.write(b"streampca")


def changed_picture(path):
    Image.fromarray(images(seed=1)[0]).save(path / "200.png")


def truncated_picture(path):
    truncated(path / "200.png")


def removed_picture(path):
    (path / "200.png").unlink()


def added_picture(path):
    shutil.copy(path / "0.png", path / "300.png")


def changed_file(path):
    np.lib.format.open_memmap(path / "17.npy", mode="r+")[0] += 1


def added_file(path):
    shutil.copy(path / "0.npy", path / "20.npy")


CASES = {
    "npy changed": ("x.npy", changed_npy, "x.npy"),
    "npy replaced": ("x.npy", replaced_npy, "x.npy"),
    "npy truncated": ("x.npy", truncated, "x.npy"),
    "npy extended": ("x.npy", extended_npy, "x.npy"),
    "chunk 900 of 1000 changed": ("x.zarr", changed_chunk, "one of c/900/0 to c/903/0"),
    "chunk removed": ("x.zarr", removed_chunk, "one of c/900/0 to c/903/0"),
    "chunk truncated": ("x.zarr", truncated_chunk, "one of c/900/0 to c/903/0"),
    "zarr replaced": ("x.zarr", replaced_zarr, "one of c/0/0 to c/3/0"),
    "zarr extended": ("x.zarr", extended_zarr, "c/1000/0"),
    "hdf5 changed": ("x.h5", changed_hdf5, "x.h5"),
    "hdf5 replaced": ("x.h5", replaced_hdf5, "x.h5"),
    "hdf5 truncated": ("x.h5", truncated, "x.h5"),
    "hdf5 extended": ("x.h5", extended_hdf5, "x.h5"),
    "picture changed": ("pictures", changed_picture, "200.png"),
    "picture truncated": ("pictures", truncated_picture, "200.png"),
    "picture removed": ("pictures", removed_picture, "200.png"),
    "picture added": ("pictures", added_picture, "300.png"),
    "one of several files changed": ("several", changed_file, "17.npy"),
    "a file added": ("several", added_file, "20.npy"),
}


def run(source, listener=lambda event: None, output=None, checkpoint=None, method="covariance"):
    """A fit in several blocks; with a checkpoint, it is kept after each."""
    how = {} if checkpoint is None else {"checkpoint": Checkpointing(str(checkpoint), 0)}
    request = asked(5, method, "40MiB", "auto", output=output is not None, scratch=None)
    place = None if output is None else Place(str(output))
    collection = prepared(streampca.open_collection(source), None)
    return fit_collection(collection, request, place=place, listener=listener, **how)


def changing(change, source, kind=PassStarted):
    """A listener that changes a source when the first event of a kind comes."""
    left = [change]

    def listen(event):
        if isinstance(event, kind) and left:
            left.pop()(source)

    return listen


@pytest.mark.parametrize("kind", [PassStarted, BlockDone], ids=["before it is read", "when it has been read"])
@pytest.mark.parametrize("case", CASES)
def test_a_change_during_a_fit_is_named_and_nothing_is_kept(copied, tmp_path, case, kind):
    source, change, name = CASES[case]
    source, output, kept = copied(source), tmp_path / "model.zarr", tmp_path / "kept"
    with pytest.raises(SourceError) as caught:
        run(source, changing(change, source, kind), output, kept)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
    assert isinstance(caught.value, ChangedError)
    assert "run the same again" in str(caught.value)
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

    with pytest.raises(ChangedError, match=r"^numpy array \(rows \d+ to \d+\) was changed while it was read:"):
        run(x, changing(change, x, kind), tmp_path / "model.zarr", tmp_path / "kept")
    assert not list(tmp_path.iterdir())


def test_rows_changed_in_place_between_a_kill_and_its_resumption_are_found(tmp_path):
    x = images(20_000)
    with pytest.raises(Died):
        run(x, dying(1), checkpoint=tmp_path / "kept")
    x[some_rows(x)] += 1
    with pytest.raises(OutputError, match=r"other data: numpy array \(rows \d+ to \d+\) has changed; give what"):
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


@pytest.mark.parametrize("case", CASES)
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
