"""Slots: what was saved comes back, and one that is damaged, cut short or half written is never taken for whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streampca.errors import OutputError
from streampca.execution import slots as slot_files
from streampca.execution.slots import LAST, Slots
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


@given(about=st.dictionaries(st.text(), PLAIN, max_size=4), saved=st.dictionaries(st.text(), arrays(), max_size=4))
def test_loading_undoes_saving(about, saved):
    with tempfile.TemporaryDirectory() as folder:
        Slots(folder, "state").save(about, saved)
        found, loaded = Slots(folder, "state").load()
        assert found == about
        assert list(loaded) == list(saved)
        assert all(same(loaded[name], saved[name]) for name in saved)
        assert all(array.flags.writeable for array in loaded.values())


@given(array=arrays(), piece=st.integers(1, 40))
def test_any_pieces_give_the_same_file(array, piece):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        Slots(folder, "whole").save({}, {"x": array})
        patch.setattr(slot_files, "PIECE", piece)
        Slots(folder, "pieces").save({}, {"x": array})
        assert Path(folder, "whole.a").read_bytes() == Path(folder, "pieces.a").read_bytes()
        assert same(Slots(folder, "whole").load()[1]["x"], array)


def test_order_is_kept(tmp_path):
    square = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    Slots(str(tmp_path), "s").save({}, {"f": square, "c": square.copy("C")})
    _, loaded = Slots(str(tmp_path), "s").load()
    assert loaded["f"].flags.f_contiguous
    assert loaded["c"].flags.c_contiguous


def test_slots_take_turns_and_the_newest_is_loaded(tmp_path):
    slots = Slots(str(tmp_path / "made"), "state")
    assert slots.load() is None
    written = []
    for number in range(5):
        before = {path: path.read_bytes() for path in tmp_path.glob("made/*")}
        slots.save({"number": number}, {})
        written += [path.name for path in tmp_path.glob("made/*") if path.read_bytes() != before.get(path)]
        assert Slots(str(tmp_path / "made"), "state").load()[0] == {"number": number}
    assert written == ["state.a", "state.b", "state.a", "state.b", "state.a"]
    slots.discard()
    assert os.listdir(tmp_path) == []
    assert slots.load() is None


def test_a_fresh_process_never_writes_over_the_newest(tmp_path):
    for number in range(4):
        Slots(str(tmp_path), "s").save({"number": number}, {"x": np.arange(number)})
    damage(newest(tmp_path), 10)
    assert Slots(str(tmp_path), "s").load()[0] == {"number": 2}
    whole = [path for path in tmp_path.iterdir() if path != newest(tmp_path)]
    kept = whole[0].read_bytes()
    Slots(str(tmp_path), "s").save({"number": 9}, {})  # without having loaded: the damaged one is written over
    assert whole[0].read_bytes() == kept
    assert Slots(str(tmp_path), "s").load()[0] == {"number": 9}


def test_names_are_apart_and_other_files_stay(tmp_path):
    one, other = Slots(str(tmp_path), "one"), Slots(str(tmp_path), "other")
    one.save({"is": 1}, {})
    other.save({"is": 2}, {})
    (tmp_path / "notes.txt").write_text("mine")
    one.discard()
    assert one.load() is None
    assert other.load() == ({"is": 2}, {})
    other.discard()
    assert os.listdir(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("array", [np.array([{}]), np.zeros(2, [("a", "i4")])], ids=["objects", "fields"])
def test_what_is_no_plain_array_is_refused(tmp_path, array):
    with pytest.raises(TypeError, match=r"array 'x' has dtype .*, which no checkpoint holds"):
        Slots(str(tmp_path), "s").save({}, {"x": array})
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
    """A folder with two slots, the bytes of the newer, and a way to see what is loaded when these are others."""
    slots = Slots(str(tmp_path), "state")
    for number in range(2):
        slots.save({"number": number}, {"x": np.arange(5.0) + number, "flag": np.array(True), "none": np.zeros((0, 3))})
    path = newest(tmp_path)
    content = path.read_bytes()

    def number_loaded(changed):
        path.write_bytes(changed)
        about, arrays = Slots(str(tmp_path), "state").load()
        np.testing.assert_array_equal(arrays["x"], np.arange(5.0) + about["number"])
        return about["number"]

    assert number_loaded(content) == 1
    return content, number_loaded


@pytest.mark.parametrize("mask", [0xFF, 0x01])
def test_every_damaged_byte_is_noticed(two, mask):
    content, number_loaded = two
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= mask
        assert number_loaded(bytes(changed)) == 0, at


def test_every_cut_is_noticed(two):
    content, number_loaded = two
    for length in range(len(content)):
        assert number_loaded(content[:length]) == 0, length
        assert number_loaded(content[:length] + bytes(len(content) - length)) == 0, length
    assert number_loaded(content + b"\0") == 0


def test_nothing_is_loaded_where_both_are_damaged(tmp_path):
    for number in range(2):
        Slots(str(tmp_path), "s").save({"number": number}, {})
    for path in tmp_path.iterdir():
        damage(path, 20)
    assert Slots(str(tmp_path), "s").load() is None


def test_a_newer_format_is_refused_by_name_and_left_alone(tmp_path):
    Slots(str(tmp_path), "s").save({}, {})
    path, text = tmp_path / "s.a", b""
    content = path.read_bytes()
    length, _, end = LAST.unpack(content[-LAST.size :])
    index = json.loads(content[-LAST.size - length : -LAST.size]) | {"format": 2}
    text = json.dumps(index).encode()
    path.write_bytes(content[: -LAST.size - length] + text + LAST.pack(len(text), zlib.crc32(text), end))
    before = path.read_bytes()
    for use in (Slots(str(tmp_path), "s").load, lambda: Slots(str(tmp_path), "s").save({}, {})):
        with pytest.raises(OutputError, match=rf"{path} is a checkpoint of format 2 and this version reads up to 1"):
            use()
    assert path.read_bytes() == before
    Slots(str(tmp_path), "s").discard()  # as the message says
    Slots(str(tmp_path), "s").save({}, {})


# -- writing that breaks off

BIG = """
import os, signal, sys
import numpy as np
from streampca.execution import slots as slot_files

slots = slot_files.Slots(sys.argv[1], "state")
slots.load()
pieces = slot_files._pieces

def killed(array, order):
    for number, piece in enumerate(pieces(array, order)):
        if number == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield piece

slot_files.PIECE, slot_files._pieces = 1000, killed
slots.save({"number": 2}, {"x": np.arange(10_000.0)})
"""


def test_a_killed_writer_leaves_the_newest_whole(tmp_path):
    for number in range(2):
        Slots(str(tmp_path), "state").save({"number": number}, {"x": np.arange(10_000.0) + number})
    done = subprocess.run([sys.executable, "-c", BIG, tmp_path, "40"], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    about, arrays = Slots(str(tmp_path), "state").load()
    assert about == {"number": 1}
    np.testing.assert_array_equal(arrays["x"], np.arange(10_000.0) + 1)


def test_a_full_disk_leaves_the_newest_whole_and_gives_room_back(disk):
    slots = Slots("disk/ck", "state")
    for number in range(2):
        slots.save({"number": number}, {"x": np.full(100_000, number)})
    with pytest.raises(OutputError, match=r"disk/ck/state\.a could not be written: No space left on device"):
        slots.save({"number": 2}, {"x": np.full(600_000, 2)})
    assert os.listdir("disk/ck") == ["state.b"]
    assert slots.load()[0] == {"number": 1}
    slots.save({"number": 3}, {"x": np.full(100_000, 3)})
    assert Slots("disk/ck", "state").load()[0] == {"number": 3}


def test_a_slot_is_on_disk_when_saving_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, os.fstat(handle).st_size)))
    Slots(str(tmp_path), "s").save({}, {"x": np.arange(5)})
    slot, folder = (tmp_path / "s.a").stat(), tmp_path.stat()
    assert [inode for inode, _ in synced] == [slot.st_ino, folder.st_ino]
    assert synced[0][1] == slot.st_size


def test_a_place_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/s\.a could not be written: .*check the folder"):
        Slots(str(tmp_path / "file"), "s").save({}, {})
    assert Slots(str(tmp_path / "file"), "s").load() is None


@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_is_that_of_the_arrays(tmp_path, order):
    state = np.ones((2000, 4000), order=order)  # 61 MiB
    slots = Slots(str(tmp_path), "s")
    meter = PeakMeter()
    slots.save({}, {"x": state})
    saving = meter.peak()
    if saving is None:
        pytest.skip("this system does not say what was held at most")
    meter = PeakMeter()
    _, arrays = slots.load()
    loading = meter.peak()
    np.testing.assert_array_equal(arrays["x"], state)
    assert saving < 12 * MIB
    assert loading < state.nbytes + 12 * MIB
