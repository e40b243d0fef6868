r"""`Slots`, where a run keeps how far it is: two files taking turns, so that one is whole whenever the run dies.

A slot is plain data and plain arrays, nothing pickled::

    8 bytes      b"\x93SPCSLOT"
    the arrays   their bytes one after the other, in C or in Fortran order, as they are in memory
    the index    JSON: format, sequence, about, and of every array name, dtype, shape, order and CRC-32
    20 bytes     length of the index and its CRC-32, little-endian, and b"SPCEND\r\n"

What makes a slot valid comes last, and every byte is covered by a checksum or compared: one that was cut short, or
damaged anywhere, is not taken. No file is renamed, so that places without renaming would do as well.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..errors import OutputError
from ..storage.disk import sync_folder
from ..storage.free_space import writing
from ..storage.outputs import discard
from ..units import MIB

Array = npt.NDArray[Any]

FORMAT = 1
START, END = b"\x93SPCSLOT", b"SPCEND\r\n"
LAST = struct.Struct("<QI8s")  # length of the index, its checksum, END
PIECE = 4 * MIB  # checked and written, or read and checked, at a time: stays in the cache in between
PLAIN = "biufcSUmM"  # kinds of dtype whose bytes are their values


class Slots:
    """Two files ``<name>.a`` and ``<name>.b`` in a folder that take turns.

    Parameters
    ----------
    folder : str
        Made when something is saved.
    name : str
        Of what is kept there.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.folder, self.name = folder, name
        self._places = [os.path.join(folder, f"{name}.{letter}") for letter in "ab"]
        self._newest: str | None = None
        self._sequence: int | None = None  # of the last slot, valid or not; None: nobody has looked

    def save(self, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Save plain data and arrays in the place of the older slot, on disk when the call returns.

        Parameters
        ----------
        about : mapping
            What JSON can hold.
        arrays : mapping of str to ndarray
            Of numbers, text of fixed width or times. Those contiguous in C or Fortran order are not copied.

        Raises
        ------
        OutputError
            If it cannot be written; what was saved last is still there.
        """
        for name, array in arrays.items():
            if array.dtype.kind not in PLAIN:
                raise TypeError(f"array {name!r} has dtype {array.dtype}, which no checkpoint holds")
        if self._sequence is None:
            self._look(keep=False)
        sequence = (self._sequence or 0) + 1
        place = next(place for place in self._places if place != self._newest)
        with writing(place):
            os.makedirs(self.folder, exist_ok=True)
            try:
                _write(place, {"format": FORMAT, "sequence": sequence, "about": dict(about)}, arrays)
            except BaseException:
                with suppress(OSError):
                    discard(place)  # gives room back; it is not valid
                raise
            sync_folder(self.folder)
        self._newest, self._sequence = place, sequence

    def load(self) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Return what was saved last and is whole, plain data and arrays; None if there is nothing.

        Raises
        ------
        OutputError
            If a newer version wrote it.
        """
        return self._look(keep=True)

    def discard(self) -> None:
        """Remove both slots, and their folder if nothing else is in it."""
        with writing(self.folder):
            for place in self._places:
                discard(place)
        with suppress(OSError):
            os.rmdir(self.folder)
        self._newest, self._sequence = None, 0

    def _look(self, *, keep: bool) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Find the newest slot that is whole; return its contents, without the arrays unless `keep`."""
        found = [slot for slot in map(_open, self._places) if slot is not None]
        found.sort(key=lambda slot: slot.sequence, reverse=True)
        self._newest, self._sequence = None, found[0].sequence if found else 0
        for slot in found:
            arrays = slot.arrays(keep=keep)
            if arrays is not None:
                self._newest = slot.path
                return slot.about, arrays
        return None


def is_slot(path: str) -> bool:
    """Return whether a file is a slot, or the beginning of one."""
    with open(path, "rb") as file:
        return START.startswith(file.read(len(START)))


@dataclass(frozen=True)
class _Entry:
    """One array in a slot: its type, its checksum, and where its bytes are."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: str
    checksum: int
    offset: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape)

    def read(self, file: IO[bytes]) -> Array | None:
        """Return the array, or None where its bytes are not those that were written."""
        array = np.empty(self.shape, self.dtype, order="F" if self.order == "F" else "C")
        checksum = 0
        file.seek(self.offset)
        for piece in _pieces(array, self.order):
            if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                return None
            checksum = zlib.crc32(piece, checksum)
        return array if checksum == self.checksum else None

    def is_whole(self, file: IO[bytes]) -> bool:
        """Return whether the bytes are those that were written; holds one piece of them at a time."""
        checksum, left = 0, self.nbytes
        file.seek(self.offset)
        while left > 0:
            piece = file.read(min(PIECE, left))
            if not piece:
                return False
            checksum, left = zlib.crc32(piece, checksum), left - len(piece)
        return checksum == self.checksum


@dataclass(frozen=True)
class _Slot:
    """A slot whose index is whole."""

    path: str
    sequence: int
    about: dict[str, Any]
    entries: list[_Entry]

    def arrays(self, *, keep: bool) -> dict[str, Array] | None:
        """Return all arrays, or none of them unless `keep`; None where one is damaged."""
        found: dict[str, Array] = {}
        with suppress(OSError), open(self.path, "rb") as file:
            for entry in self.entries:
                if not keep:
                    if not entry.is_whole(file):
                        return None
                    continue
                array = entry.read(file)
                if array is None:
                    return None
                found[entry.name] = array
            return found
        return None


def _write(path: str, index: dict[str, Any], arrays: Mapping[str, Array]) -> None:
    with open(path, "wb") as file:
        file.write(START)
        index["arrays"] = [_write_array(file, name, array) for name, array in arrays.items()]
        text = json.dumps(index).encode()
        file.write(text)
        file.write(LAST.pack(len(text), zlib.crc32(text), END))
        file.flush()
        os.fsync(file.fileno())


def _write_array(file: IO[bytes], name: str, array: Array) -> dict[str, Any]:
    """Write the bytes of an array; return what the index says of it."""
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    checksum = 0
    for piece in _pieces(array, order):
        checksum = zlib.crc32(piece, checksum)
        file.write(piece)
    shape = [int(length) for length in array.shape]
    return {"name": name, "dtype": array.dtype.str, "shape": shape, "order": order, "crc32": checksum}


def _pieces(array: Array, order: str) -> Iterator[memoryview]:
    """Yield the bytes of an array in an order, without a copy where it is contiguous in that order."""
    array = array.T if order == "F" else array
    if array.nbytes == 0:
        return
    if array.flags.c_contiguous:
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), PIECE):
            yield flat[start : start + PIECE].data
        return
    some = max(1, PIECE // array.dtype.itemsize)
    with np.nditer(array, ["external_loop", "buffered"], order="C", buffersize=some) as parts:
        for part in parts:
            yield np.ascontiguousarray(part).view(np.uint8).data


def _open(path: str) -> _Slot | None:
    """Return the slot at a path by its index, or None where there is none that is whole.

    Raises
    ------
    OutputError
        If a newer version wrote it.
    """
    try:
        with open(path, "rb") as file:
            text, offset = _index(file)
    except OSError:
        return None
    if text is None:
        return None
    index = json.loads(text)
    if index["format"] > FORMAT:
        raise OutputError(
            f"{path} is a checkpoint of format {index['format']} and this version reads up to {FORMAT}; upgrade "
            f"streampca, or delete {os.path.dirname(path)} to start again."
        )
    entries, at = [], len(START)
    for one in index["arrays"]:
        entry = _Entry(one["name"], np.dtype(one["dtype"]), tuple(one["shape"]), one["order"], one["crc32"], offset=at)
        if entry.dtype.kind not in PLAIN:
            return None
        entries.append(entry)
        at += entry.nbytes
    return _Slot(path, index["sequence"], index["about"], entries) if at == offset else None


def _index(file: IO[bytes]) -> tuple[bytes | None, int]:
    """Return the text of the index and where it begins; None where start, end or checksum are wrong."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size < len(START) + LAST.size or file.read(len(START)) != START:
        return None, 0
    file.seek(size - LAST.size)
    length, checksum, end = LAST.unpack(file.read(LAST.size))
    offset = size - LAST.size - length
    if end != END or offset < len(START):
        return None, 0
    file.seek(offset)
    text = file.read(length)
    return (text, offset) if zlib.crc32(text) == checksum else (None, 0)
