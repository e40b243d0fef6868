"""`CheckpointFile`: saved state in two files that alternate, so that one is complete whenever the run dies.

Each file is an uncompressed zip archive of plain data (``streampca-checkpoint.json``) and arrays (``.npy``), without
pickles. The directory that makes an archive valid comes last, and members have checksums, so truncated or damaged files
are recognized. No file is renamed, so that file systems without atomic renames suffice. In an object store a file is an
object, which its last request makes visible as a whole; then the older one is removed.
"""

from __future__ import annotations

import copy
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy

from ..arrays import Array
from ..errors import OutputError, SourceError, without_secrets
from ..storage import object_store
from ..storage.disk import open_regular, sync_folder
from ..storage.free_space import writing
from ..storage.outputs import discard
from ..storage.remote import PIECE as REQUEST
from ..storage.remote import MissingError, first_bytes, is_url, open_file
from ..units import MIB

FORMAT = 1
INDEX = "streampca-checkpoint.json"  # the first member, which distinguishes our files from other archives
HEAD = 30  # bytes of a zip member's header before its name
PIECE = 4 * MIB  # bytes written at a time


class CheckpointFile:
    """Two files ``<name>.a`` and ``<name>.b`` in a folder, written in turn.

    Parameters
    ----------
    folder : str
        Folder, created at the first save, or URL of one.
    name : str
        Name of the state that is saved.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.folder, self.name = folder, name
        self._paths = [os.path.join(folder, f"{name}.{letter}") for letter in "ab"]
        self._newest: str | None = None
        self._sequence: int | None = None  # number of the last file, valid or not; None before a search

    def absolute(self) -> CheckpointFile:
        """Return the file by its absolute path, for processes that work elsewhere."""
        if is_url(self.folder):
            return self
        file = copy.copy(self)
        file.folder, file._paths = os.path.abspath(self.folder), [os.path.abspath(path) for path in self._paths]
        file._newest = None if self._newest is None else os.path.abspath(self._newest)
        return file

    def save(self, about: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Save plain data and arrays in place of the older file; they are on disk when the call returns.

        Parameters
        ----------
        about : mapping
            Plain data for JSON.
        arrays : mapping of str to ndarray
            Arrays of any dtype but object; not copied if they are contiguous in C or Fortran order.

        Raises
        ------
        OutputError
            If they cannot be written; the last saved state is kept.
        """
        if self._sequence is None:
            self.load(keep=False)
        sequence = (self._sequence or 0) + 1
        older, path = self._newest, next(path for path in self._paths if path != self._newest)
        with _created(path, sum(array.nbytes for array in arrays.values())) as file:
            _write(file, {"format": FORMAT, "sequence": sequence, "about": dict(about)}, arrays)
        self._newest, self._sequence = path, sequence
        if older is not None and is_url(older):  # locally its space is used again
            with suppress(OutputError):  # two are as good as one
                object_store.remove_object(older)

    def load(self, *, keep: bool = True) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Return plain data and arrays (unless not `keep`) of the newest complete file; None if there is no such file.

        Raises
        ------
        OutputError
            If a newer version wrote it, or its store does not answer.
        """
        files = [(index, path) for path in self._paths if (index := _index(path)) is not None]
        files.sort(key=lambda file: file[0]["sequence"], reverse=True)
        self._newest, self._sequence = None, files[0][0]["sequence"] if files else 0
        for index, path in files:
            arrays = _arrays(path, index["names"], keep=keep)
            if arrays is not None:
                self._newest = path
                return index["about"], arrays
        return None


def is_checkpoint_file(path: str) -> bool:
    """Return whether a file is, or starts like, one of a checkpoint."""
    if is_url(path):
        content = first_bytes(path, HEAD + len(INDEX))
        start, name = content[:HEAD], content[HEAD:]
    else:
        with open_regular(path) as file:
            start, name = file.read(HEAD), file.read(len(INDEX))
    return b"PK\x03\x04".startswith(start[:4]) and INDEX.encode().startswith(name)


def _opened(path: str) -> IO[bytes]:
    """Open a file, or an object in a store, for reading."""
    return open_file(path, block=REQUEST) if is_url(path) else open_regular(path)


@contextmanager
def _created(path: str, size: int) -> Iterator[IO[bytes]]:
    """Yield a new file of about `size` bytes, complete on disk or in its store when the block ends without error."""
    if is_url(path):
        with object_store.created(path, size) as file:
            yield file
        return
    folder = os.path.dirname(path)
    with writing(path):
        os.makedirs(folder, exist_ok=True)
        with suppress(FileNotFoundError):  # removed first: writing would follow a link, or change a hard link
            os.remove(path)
        try:
            with open(path, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                discard(path)  # it is not valid, and takes space
            raise
        sync_folder(folder)


@contextmanager
def _invalid_as_none(path: str) -> Iterator[None]:
    """Pass over what makes a file invalid; not over a store that does not answer, which can hold a valid one."""
    try:
        yield
    except MemoryError:
        raise
    except MissingError:
        pass
    except SourceError as error:
        if is_url(path):
            raise OutputError(str(error)) from error
    except Exception:  # noqa: S110 - damage leads zipfile and numpy to many kinds of errors
        pass


def _write(file: IO[bytes], index: dict[str, Any], arrays: Mapping[str, Array]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(INDEX), json.dumps({**index, "names": list(arrays)}))
        for number, array in enumerate(arrays.values()):
            with archive.open(zipfile.ZipInfo(f"{number}.npy"), "w", force_zip64=True) as member:
                _write_array(member, array)


def _write_array(file: IO[bytes], array: Array) -> None:
    """Write an array as numpy does, but in smaller pieces and without copying contiguous arrays."""
    header = npy.header_data_from_array_1_0(array)
    npy.write_array_header_2_0(file, header)
    order: Literal["C", "F"] = "F" if header["fortran_order"] else "C"
    count = max(1, PIECE // max(1, array.itemsize))
    with np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], order=order, buffersize=count) as parts:
        for part in parts:
            file.write(np.ascontiguousarray(part).view(np.uint8).data)


def _index(path: str) -> dict[str, Any] | None:
    """Return the index of a file, or None if there is no valid archive.

    Raises
    ------
    OutputError
        If a newer version wrote it.
    """
    index: dict[str, Any] | None = None
    with _invalid_as_none(path), _opened(path) as file, zipfile.ZipFile(file) as archive:
        index = json.loads(archive.read(INDEX))
    if index is not None and index["format"] > FORMAT:
        subject = without_secrets(path)
        raise OutputError(
            f"{subject} is a checkpoint of format {index['format']} and this version reads up to {FORMAT}; upgrade "
            f"streampca, or delete {os.path.dirname(subject)} to start again."
        )
    return index


def _arrays(path: str, names: list[str], *, keep: bool) -> dict[str, Array] | None:
    """Return all arrays, or an empty mapping unless `keep`; None if one is damaged."""
    arrays: dict[str, Array] = {}
    with _invalid_as_none(path), _opened(path) as file, zipfile.ZipFile(file) as archive:
        if not keep:
            return arrays if archive.testzip() is None else None
        for number, name in enumerate(names):
            # Checksums are compared at the end of a member: a damaged shape must not allocate memory before that.
            size = archive.getinfo(f"{number}.npy").file_size
            with archive.open(f"{number}.npy") as member:
                npy.read_magic(member)
                shape, _, dtype = npy.read_array_header_2_0(member)
                if math.prod(shape) * dtype.itemsize != size - member.tell():
                    return None
            with archive.open(f"{number}.npy") as member:
                arrays[name] = npy.read_array(member, allow_pickle=False)
                if member.read(1):
                    return None
        return arrays
    return None
