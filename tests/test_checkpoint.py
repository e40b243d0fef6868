"""Files of checkpoints: what was saved comes back, and damaged or half written ones are never taken for whole."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streampca.errors import OutputError
from streampca.execution import checkpoint_file
from streampca.execution.checkpoint_file import CheckpointFile
from streampca.machine import PeakMeter
from streampca.units import MIB

DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(endianness="?"), hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"), hnp.complex_number_dtypes(endianness="?"),
    hnp.unicode_string_dtypes(endianness="?"), hnp.byte_string_dtypes(), hnp.datetime64_dtypes(endianness="?"),
)  # fmt: skip
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def arrays(draw):
    """An array of any plain dtype and shape, in C or Fortran order, turned, or with gaps."""
    array = draw(hnp.arrays(DTYPES, SHAPES))
    layout = draw(st.sampled_from(["C", "F", "turned", "gaps", "backwards"]))
    if layout in "CF":
        return np.array(array, order=layout)
    if layout == "turned":
        return array.transpose(draw(st.permutations(range(array.ndim))))
    return array[..., ::2] if array.ndim and layout == "gaps" else array[::-1] if array.ndim else array


def same(one, other):
    """Whether arrays have one dtype, one shape and the same bytes."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@settings(max_examples=settings.default.max_examples // 2)
@given(about=st.dictionaries(st.text(), PLAIN, max_size=4), saved=st.dictionaries(st.text(), arrays(), max_size=4))
def test_loading_undoes_saving(about, saved):
    with tempfile.TemporaryDirectory() as folder:
        CheckpointFile(folder, "state").save(about, saved)
        found, loaded = CheckpointFile(folder, "state").load()
        assert found == about
        assert list(loaded) == list(saved)
        assert all(same(loaded[name], saved[name]) for name in saved)
        assert all(array.flags.writeable for array in loaded.values())


@settings(max_examples=settings.default.max_examples // 2)
@given(array=arrays(), piece=st.integers(1, 40))
def test_any_pieces_give_the_same_file(array, piece):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        CheckpointFile(folder, "whole").save({}, {"x": array})
        patch.setattr(checkpoint_file, "PIECE", piece)
        CheckpointFile(folder, "pieces").save({}, {"x": array})
        assert Path(folder, "whole.a").read_bytes() == Path(folder, "pieces.a").read_bytes()
        assert same(CheckpointFile(folder, "whole").load()[1]["x"], array)


def test_order_is_kept(tmp_path):
    square = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    CheckpointFile(str(tmp_path), "s").save({}, {"f": square, "c": square.copy("C")})
    _, loaded = CheckpointFile(str(tmp_path), "s").load()
    assert loaded["f"].flags.f_contiguous
    assert loaded["c"].flags.c_contiguous


def test_files_take_turns_and_the_newest_is_loaded(tmp_path):
    file = CheckpointFile(str(tmp_path / "made"), "state")
    assert file.load() is None
    written = []
    for number in range(5):
        before = {path: path.read_bytes() for path in tmp_path.glob("made/*")}
        file.save({"number": number}, {})
        written += [path.name for path in tmp_path.glob("made/*") if path.read_bytes() != before.get(path)]
        assert CheckpointFile(str(tmp_path / "made"), "state").load()[0] == {"number": number}
    assert written == ["state.a", "state.b", "state.a", "state.b", "state.a"]


def test_a_fresh_process_never_writes_over_the_newest(tmp_path):
    for number in range(4):
        CheckpointFile(str(tmp_path), "s").save({"number": number}, {"x": np.arange(number)})
    damage(newest(tmp_path), 50)
    assert CheckpointFile(str(tmp_path), "s").load()[0] == {"number": 2}
    whole = [path for path in tmp_path.iterdir() if path != newest(tmp_path)]
    kept = whole[0].read_bytes()
    CheckpointFile(str(tmp_path), "s").save({"number": 9}, {})  # without having loaded: the damaged one is written over
    assert whole[0].read_bytes() == kept
    assert CheckpointFile(str(tmp_path), "s").load()[0] == {"number": 9}


def test_names_are_apart(tmp_path):
    CheckpointFile(str(tmp_path), "one").save({"is": 1}, {})
    CheckpointFile(str(tmp_path), "other").save({"is": 2}, {})
    assert CheckpointFile(str(tmp_path), "one").load() == ({"is": 1}, {})


def test_objects_are_refused(tmp_path):
    with pytest.raises(TypeError, match="holds references"):
        CheckpointFile(str(tmp_path), "s").save({}, {"x": np.array([{}])})
    assert os.listdir(tmp_path) == []


# -- damage


def newest(folder):
    """The slot written last."""
    return max(Path(folder).iterdir(), key=lambda path: path.stat().st_mtime_ns)


def damage(path, at):
    """Turn over the bits of one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


@pytest.fixture
def two(tmp_path):
    """A folder with two files, the bytes of the newer, and a way to see what is loaded when these are others."""
    file = CheckpointFile(str(tmp_path), "state")
    for number in range(2):
        file.save({"number": number}, {"x": np.arange(5.0) + number, "flag": np.array(True), "none": np.zeros((0, 3))})
    path = newest(tmp_path)
    content = path.read_bytes()

    def number_loaded(changed):
        path.write_bytes(changed)
        about, arrays = CheckpointFile(str(tmp_path), "state").load()
        assert list(arrays) == ["x", "flag", "none"]
        np.testing.assert_array_equal(arrays["x"], np.arange(5.0) + about["number"])
        assert arrays["flag"].dtype == bool
        assert arrays["flag"] == np.array(True)
        assert arrays["none"].shape == (0, 3)
        return about["number"]

    assert number_loaded(content) == 1
    return content, number_loaded


# Of the bytes of a file, one in so many; it is a prime, so that they are of all kinds.
STEPS = [7, pytest.param(1, marks=pytest.mark.campaign)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("mask", [0xFF, 0x01])
def test_a_damaged_byte_changes_nothing_that_is_loaded(two, mask, step):
    """The older file is loaded, but for bytes that say nothing, such as dates."""
    content, number_loaded = two
    places, older = range(0, len(content), step), 0
    for at in places:
        changed = bytearray(content)
        changed[at] ^= mask
        older += number_loaded(bytes(changed)) == 0
    assert older > len(places) / 2


def test_a_damaged_shape_takes_no_memory(tmp_path):
    """Its checksum is compared when the array has been read."""
    for value in (1, 2):
        CheckpointFile(str(tmp_path), "state").save({"is": value}, {"x": np.full((1000, 10), value)})
    content = (tmp_path / "state.b").read_bytes()
    shape, huge = b"(1000, 10), }      ", b"(999999999999999,)}"
    assert content.count(shape) == 1
    assert len(huge) == len(shape)
    (tmp_path / "state.b").write_bytes(content.replace(shape, huge))
    assert CheckpointFile(str(tmp_path), "state").load()[0] == {"is": 1}


def test_archives_of_other_programs_are_no_checkpoints(tmp_path):
    CheckpointFile(str(tmp_path), "state").save({}, {})
    ours, theirs = (tmp_path / "state.a").read_bytes(), tmp_path / "photos.a"
    with theirs.open("wb") as file:
        np.savez(file, x=np.ones(3))
    assert not checkpoint_file.is_checkpoint_file(theirs)
    for length in (0, 3, 4, 20, 40, len(ours)):  # a run may die while it writes
        theirs.write_bytes(ours[:length])
        assert checkpoint_file.is_checkpoint_file(theirs)


@pytest.mark.parametrize("step", STEPS)
def test_every_cut_is_noticed(two, step):
    content, number_loaded = two
    for length in range(0, len(content), step):
        assert number_loaded(content[:length]) == 0, length
        if length < len(content.rstrip(b"\0")):
            assert number_loaded(content[:length] + bytes(len(content) - length)) == 0, length


def test_nothing_is_loaded_where_both_are_damaged(tmp_path):
    for number in range(2):
        CheckpointFile(str(tmp_path), "s").save({"number": number}, {})
    for path in tmp_path.iterdir():
        damage(path, 50)
    assert CheckpointFile(str(tmp_path), "s").load() is None


def test_a_newer_format_is_refused_by_name_and_left_alone(tmp_path):
    with zipfile.ZipFile(path := tmp_path / "s.a", "w") as archive:
        archive.writestr(checkpoint_file.INDEX, json.dumps({"format": 2, "sequence": 1}))
    before = path.read_bytes()
    for use in (CheckpointFile(str(tmp_path), "s").load, lambda: CheckpointFile(str(tmp_path), "s").save({}, {})):
        with pytest.raises(OutputError, match=rf"{path} is a checkpoint of format 2 and this version reads up to 1"):
            use()
    assert path.read_bytes() == before
    path.unlink()  # as the message says
    CheckpointFile(str(tmp_path), "s").save({}, {})


# -- writing that breaks off


def test_a_full_disk_leaves_the_newest_whole_and_gives_room_back(disk):
    file = CheckpointFile("disk/ck", "state")
    for number in range(2):
        file.save({"number": number}, {"x": np.full(100_000, number)})
    with pytest.raises(OutputError, match=r"disk/ck/state\.a could not be written: No space left on device"):
        file.save({"number": 2}, {"x": np.full(600_000, 2)})
    assert os.listdir("disk/ck") == ["state.b"]
    assert file.load()[0] == {"number": 1}
    file.save({"number": 3}, {"x": np.full(100_000, 3)})
    assert CheckpointFile("disk/ck", "state").load()[0] == {"number": 3}


def test_a_file_is_on_disk_when_saving_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, os.fstat(handle).st_size)))
    CheckpointFile(str(tmp_path), "s").save({}, {"x": np.arange(5)})
    file, folder = (tmp_path / "s.a").stat(), tmp_path.stat()
    assert [inode for inode, _ in synced] == [file.st_ino, folder.st_ino]
    assert synced[0][1] == file.st_size


def test_a_place_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/s\.a could not be written: .*check the folder"):
        CheckpointFile(str(tmp_path / "file"), "s").save({}, {})
    assert CheckpointFile(str(tmp_path / "file"), "s").load() is None


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_is_that_of_the_arrays(tmp_path, order):
    state = np.ones((2000, 4000), order=order)  # 61 MiB
    file = CheckpointFile(str(tmp_path), "s")
    meter = PeakMeter()
    file.save({}, {"x": state})
    saving = meter.peak()
    if saving is None:
        pytest.skip("this system does not tell a process its peak")
    meter = PeakMeter()
    _, arrays = file.load()
    loading = meter.peak()
    np.testing.assert_array_equal(arrays["x"], state)
    assert saving < 12 * MIB
    assert loading < state.nbytes + 12 * MIB
