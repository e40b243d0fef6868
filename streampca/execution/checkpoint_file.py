"""`CheckpointFile`, where a run saves how far it is: two files taking turns, one of them whole whenever the run dies.

Each is an uncompressed zip archive of plain data (``streampca-checkpoint.json``) and arrays (``.npy``), nothing
pickled. What makes an archive valid comes last, and its members have checksums: one that was cut short or damaged is
not taken. No file is renamed, so that places without renaming would do as well.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from ..errors import OutputError
from ..storage.disk import open_regular, sync_folder
from ..storage.free_space import writing
from ..storage.outputs import discard
from ..units import MIB

Array = npt.NDArray[Any]

FORMAT = 1
INDEX = "streampca-checkpoint.json"  # the first member, by which files are told from archives of other programs
HEAD = 30  # bytes of a zip member's header before its name
PIECE = 4 * MIB  # written at a time


class CheckpointFile:
    """Two files ``<name>.a`` and ``<name>.b`` in a folder that take turns.

    Parameters
    ----------
    folder : str
        Made when something is saved.
    name : str
        Of what is kept there.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self.name = folder, name
        self._places = [os.path.join(folder, f"{name}.{letter}") for letter in "ab"]
        self._newest: str | None = None
        self._sequence: int | None = None  # of the last file, valid or not; None: nobody has looked

    def save(self, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Save plain data and arrays in the place of the older file, on disk when the call returns.

        Parameters
        ----------
        about : mapping
            What JSON can hold.
        arrays : mapping of str to ndarray
            Of anything but objects. Those contiguous in C or Fortran order are not copied.

        Raises
        ------
        OutputError
            If it cannot be written; what was saved last is still there.
        """
        if self._sequence is None:
            self._look(keep=False)
        sequence = (self._sequence or 0) + 1
        place = next(place for place in self._places if place != self._newest)
        with writing(place):
            os.makedirs(self._folder, exist_ok=True)
            with suppress(FileNotFoundError):  # not written over: it may be a link, or have another name, too
                os.remove(place)
            try:
                _write(place, {"format": FORMAT, "sequence": sequence, "about": dict(about)}, arrays)
            except BaseException:
                with suppress(OSError):
                    discard(place)  # gives room back; it is not valid
                raise
            sync_folder(self._folder)
        self._newest, self._sequence = place, sequence

    def load(self) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Return what was saved last and is whole, plain data and arrays; None if there is nothing.

        Raises
        ------
        OutputError
            If a newer version wrote it.
        """
        return self._look(keep=True)

    def _look(self, *, keep: bool) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Find the newest file that is whole; return its contents, without the arrays unless `keep`."""
        found = [(index, place) for place in self._places if (index := _index(place)) is not None]
        found.sort(key=lambda one: one[0]["sequence"], reverse=True)
        self._newest, self._sequence = None, found[0][0]["sequence"] if found else 0
        for index, place in found:
            arrays = _arrays(place, index["names"], keep=keep)
            if arrays is not None:
                self._newest = place
                return index["about"], arrays
        return None


def is_checkpoint_file(path: str) -> bool:
    """Return whether a file is one of a checkpoint, or the beginning of one."""
    with open_regular(path) as file:
        start, name = file.read(HEAD), file.read(len(INDEX))
    return b"PK\x03\x04".startswith(start[:4]) and INDEX.encode().startswith(name)


def _write(path: str, index: dict[str, Any], arrays: Mapping[str, Array]) -> None:
    with open(path, "xb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(zipfile.ZipInfo(INDEX), json.dumps({**index, "names": list(arrays)}))
            for number, array in enumerate(arrays.values()):
                with archive.open(zipfile.ZipInfo(f"{number}.npy"), "w", force_zip64=True) as member:
                    _write_array(member, array)
        file.flush()
        os.fsync(file.fileno())


def _write_array(file: IO[bytes], array: Array) -> None:
    """Write an array as numpy does, in smaller pieces and without copying those that are contiguous."""
    header = npy.header_data_from_array_1_0(array)
    npy.write_array_header_2_0(file, header)
    order: Literal["C", "F"] = "F" if header["fortran_order"] else "C"
    some = max(1, PIECE // max(1, array.itemsize))
    with np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], order=order, buffersize=some) as parts:
        for part in parts:
            file.write(np.ascontiguousarray(part).view(np.uint8).data)


def _index(path: str) -> dict[str, Any] | None:
    """Return the index of a file, or None where there is none that is whole.

    Raises
    ------
    OutputError
        If a newer version wrote it.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            index: dict[str, Any] = json.loads(archive.read(INDEX))
    except Exception:  # zipfile raises whatever damage leads it to
        return None
    if index["format"] > FORMAT:
        raise OutputError(
            f"{path} is a checkpoint of format {index['format']} and this version reads up to {FORMAT}; upgrade "
            f"streampca, or delete {os.path.dirname(path)} to start again."
        )
    return index


def _arrays(path: str, names: list[str], *, keep: bool) -> dict[str, Array] | None:
    """Return all arrays, or none of them unless `keep`; None where one is damaged."""
    found: dict[str, Array] = {}
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            if not keep:
                return found if archive.testzip() is None else None
            for number, name in enumerate(names):
                # Their checksums are compared at the end: a damaged shape must not take memory before.
                size = archive.getinfo(f"{number}.npy").file_size
                with archive.open(f"{number}.npy") as member:
                    npy.read_magic(member)
                    shape, _, dtype = npy.read_array_header_2_0(member)
                    if math.prod(shape) * dtype.itemsize != size - member.tell():
                        return None
                with archive.open(f"{number}.npy") as member:
                    found[name] = npy.read_array(member, allow_pickle=False)
                    if member.read(1):
                        return None
    except MemoryError:
        raise
    except Exception:  # as in _index, and numpy
        return None
    return found
