"""Reads of bytes by position, from a file, a URL or a stream that only runs forward, for flat arrays.

Positioned reads into the caller's buffer are used rather than a memory map: mapped pages count against a memory budget,
and a mapped file that shrinks kills the process.
"""

from __future__ import annotations

import abc
import gzip
import os
import threading
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import IO, Any, cast

import numpy as np

from ...arrays import Array
from ...errors import SourceError
from ...storage import remote
from ...storage.disk import check_regular, open_regular, read_at
from ..collection import State, digest, file_state, group_size, span_of

# Most bytes of one system call: Linux transfers at most 2^31 - 4096.
_MOST_AT_ONCE = 2**30
# Bytes of a piece of a stream, which bounds the copy that a stream returns. Larger pieces were not faster.
_STREAM_PIECE = 2**18
# Streams kept open for one file, so that as many readers at different positions each have their own.
_MOST_STREAMS = 4


class Reopening:
    """Base of objects with handles that pickling drops, and that are opened again on first use.

    Subclasses set the attributes that are not pickled in `_forget`, to their values when nothing is open; their
    constructors call it.
    """

    def _forget(self) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        blank = object.__new__(type(self))
        blank._forget()
        return {name: value for name, value in self.__dict__.items() if name not in blank.__dict__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


class FileStates:
    """Files from which any sample of an array can be read, and their states when it was opened."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._states = self.states(now=True)

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the files, see `Collection.states`."""
        if not now:
            return self._states
        size = group_size(len(self.paths))
        groups = (self.paths[start : start + size] for start in range(0, len(self.paths), size))
        return [State(0, span_of(group[0], group[-1]), digest(*map(state_of, group))) for group in groups]


class ByteSource(abc.ABC):
    """Bytes that can be read by position from any thread; opened on first use, closed by pickling.

    Attributes
    ----------
    files : FileStates
        State of the file.
    path, label : str
        The file, and the name in messages of the part of it that is read.
    page : int
        Bytes below which a read costs as much as one of this size.
    held_bytes : int
        Most bytes that a read holds besides its buffer.
    """

    page: int = 4096
    held_bytes: int = 0

    def __init__(self, path: str, label: str | None = None) -> None:
        self.path, self.label = path, label or path
        self.files = FileStates((path,))

    @abc.abstractmethod
    def pread(self, offset: int, buffer: Array) -> None:
        """Fill `buffer` (C-contiguous) with the bytes that begin at `offset`."""


class PlainFile(Reopening, ByteSource):
    """A file from byte `offset` on."""

    def __init__(self, path: str, offset: int = 0, label: str | None = None) -> None:
        super().__init__(path, label)
        self._offset = offset
        self._forget()

    def _forget(self) -> None:
        self._descriptor = -1
        self._lock = threading.Lock()

    def pread(self, offset: int, buffer: Array) -> None:
        """Read straight into the buffer, by several threads at once."""
        rest = _as_bytes(buffer)
        position = self._offset + offset
        descriptor = self._open()
        while rest:
            try:
                count = read_at(descriptor, rest[:_MOST_AT_ONCE], position)
            except OSError as error:
                raise SourceError(
                    f"{self.label} cannot be read at byte {position}: {error.strerror}; check the disk it lies on."
                ) from error
            if count == 0:
                raise SourceError(
                    f"{self.label} ends at byte {position}, {len(rest)} bytes short of what was there when it was "
                    "opened; leave it alone while it is read."
                )
            rest, position = rest[count:], position + count

    def _open(self) -> int:
        with self._lock:
            if self._descriptor < 0:
                try:
                    with open_regular(self.path) as file:
                        self._descriptor = os.dup(file.fileno())
                except OSError as error:
                    raise SourceError(f"{self.label} cannot be opened: {error.strerror}; check the path.") from error
            return self._descriptor

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0 and os is not None:  # None while the interpreter shuts down
            os.close(self._descriptor)


class RemoteFile(ByteSource):
    """A file behind a URL from byte `offset` on, read by ranges."""

    # Bytes that a server sends within its latency, at 10 MB/s and 6 ms; 16 pages still fit in scratch.
    page = 2**16
    # The bytes that fsspec returns, and the parts that it joins them from.
    held_bytes = 2 * remote.PIECE

    def __init__(self, url: str, offset: int = 0, label: str | None = None) -> None:
        super().__init__(url, label)
        self._offset = offset

    def pread(self, offset: int, buffer: Array) -> None:
        """Request the range in pieces, one after another."""
        remote.read_into(self.path, self._offset + offset, _as_bytes(buffer))


def positioned(path: str, offset: int = 0, label: str | None = None) -> ByteSource:
    """Return the bytes of a file or URL from byte `offset` on."""
    return RemoteFile(path, offset, label) if remote.is_url(path) else PlainFile(path, offset, label)


def opened(path: str) -> IO[bytes]:
    """Open a file or URL for random access."""
    if remote.is_url(path):
        return remote.open_file(path)
    try:
        return open_regular(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}; check its permissions.") from error


def check_kind(path: str, remedy: str = "give a file or a folder") -> None:
    """Raise SourceError of what is neither a file nor a folder, or is a link to such: a pipe, a device."""
    try:
        check_regular(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; {remedy}.") from None


def is_gzip(path: str) -> bool:
    """Return whether a file begins with gzip's magic number."""
    with opened(path) as file:
        return file.read(2) == b"\x1f\x8b"


def unzipped(path: str) -> IO[bytes]:
    """Open a gzipped file or URL as a stream of decompressed bytes."""
    if not remote.is_url(path):
        check_kind(path)
    return cast("IO[bytes]", gzip.open(opened(path) if remote.is_url(path) else path, "rb"))


def state_of(path: str) -> tuple[object, ...]:
    """Return the size of a file or URL, and the time of its last change or an entity tag."""
    return remote.file_state(path) if remote.is_url(path) else file_state(path)


def size_of(path: str) -> int:
    """Return the size of a file or URL in bytes."""
    return remote.file_state(path)[0] if remote.is_url(path) else os.path.getsize(path)


class StreamFile(Reopening, ByteSource):
    """A compressed file or member of an archive, decoded forwards.

    Reading forwards decodes every byte once; reading backwards starts again at the beginning. Streams at a few
    positions stay open, so that tasks that each read their own part do not force each other to start again.
    """

    def __init__(self, path: str, opener: Callable[[], IO[bytes]], size: int, label: str | None = None) -> None:
        super().__init__(path, label)
        self._opener, self._size = opener, size
        self.held_bytes = (_MOST_STREAMS + 1) * remote.OPENED_BYTES if remote.is_url(path) else 0
        self._forget()

    def _forget(self) -> None:
        self._streams: list[IO[bytes]] = []
        self._lock = threading.Lock()

    def pread(self, offset: int, buffer: Array) -> None:
        """Decode from the nearest open stream before `offset`."""
        try:
            stream = self._take(offset)
            try:
                while stream.tell() < offset:
                    _next(stream, offset - stream.tell())
                view = _as_bytes(buffer)
                while view:
                    data = _next(stream, len(view))
                    view[: len(data)] = data
                    view = view[len(data) :]
                if stream.tell() >= self._size:
                    stream.read(1)  # at the end, so that a checksum is compared
            except BaseException:
                stream.close()
                raise
        except EOFError as error:
            raise SourceError(
                f"{self.label} ends before byte {offset + buffer.nbytes} of its decoded data; it was cut short, copy "
                "it again."
            ) from error
        except (OSError, zlib.error, zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as error:
            raise SourceError(f"{self.label} cannot be decoded ({error}); it is damaged, copy it again.") from error
        with self._lock:
            self._streams.append(stream)
            dropped = self._streams.pop(0) if len(self._streams) > _MOST_STREAMS else None
        if dropped:
            dropped.close()

    def _take(self, offset: int) -> IO[bytes]:
        with self._lock:
            before = [stream for stream in self._streams if stream.tell() <= offset]
            if before:
                stream = max(before, key=lambda stream: stream.tell())
                self._streams.remove(stream)
                return stream
        return self._opener()

    def __del__(self) -> None:
        for stream in getattr(self, "_streams", ()):
            stream.close()


def _next(stream: IO[bytes], most: int) -> bytes:
    """Decode at most `most` bytes of a stream."""
    data = stream.read(min(_STREAM_PIECE, most))
    if not data:
        raise EOFError
    return data


def _as_bytes(buffer: Array) -> memoryview:
    # memoryview.cast would refuse big-endian numbers.
    return buffer.reshape(-1).view(np.uint8).data
