"""Outputs at URLs, in stores that have no renaming: staged under another prefix, complete or visibly not there.

Everything is written under a name that ends in ``.streampca-partial``. When it is complete, an object that ends in
``.streampca-complete`` names it. Then the store copies what is staged to its place, the root's metadata last: without
them nothing can be opened there. A process that is killed before that object is written leaves what was there before,
and one that is killed afterwards leaves the rest to the next that writes there (`recover`).
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import IO, Any, cast

from ..errors import Door, OutputError, SourceError, door, without_secrets
from ..units import MIB
from . import remote
from .writers import UnfinishedOutput
from .zarr_urls import METADATA

PARTIAL, COMPLETE = ".streampca-partial", ".streampca-complete"
_AT_ONCE = 16  # concurrent requests: the latency of a store dominates
_PART, _MOST_PARTS = 8 * MIB, 9000  # bytes of a part of an object, and parts of one: S3 takes 10,000
_NAME = re.compile(rf"\.[0-9a-f]{{8}}{re.escape(PARTIAL)}")  # of what is staged, after the name of the output


@contextmanager
def staged_at_url(url: str, unfinished: UnfinishedOutput | None, *, directly: bool) -> Iterator[str]:
    """Yield where to write an output, which gets its URL when the block ends without an error.

    Parameters
    ----------
    url : str
        Of the output, which is locked.
    unfinished : UnfinishedOutput, optional
        Partial output to resume, if it is written directly and was left there; otherwise it is reset.
    directly : bool
        Yield a URL, under which objects are written one by one. By default a local path is yielded, of a file or folder
        that is sent when it is complete.
    """
    staging, is_complete = _staging(url, unfinished if directly else None), False
    if unfinished is not None and not directly:
        unfinished.token, unfinished.size = uuid.uuid4().hex[:8], None
    try:
        if directly:
            yield staging
        else:
            with tempfile.TemporaryDirectory(prefix="streampca-") as folder:
                local = os.path.join(folder, posixpath.basename(url) + PARTIAL)
                yield local
                if os.path.isfile(local):  # a store shows an object when it is complete
                    _put(local, url)
                    return
                _send(local, staging)
        _note_complete(staging, url)
        is_complete = True
    except BaseException:
        if not is_complete and (unfinished is None or not unfinished.is_resumable or not directly):
            with suppress(OutputError):
                remove(staging)
        raise
    _take_place(staging, url)


def check_url(url: str) -> None:
    """Refuse a URL that no output can have, before anything is asked there."""
    subject = without_secrets(url)
    if any(sign in url for sign in "*?["):  # stores take such names for globs
        raise OutputError(f"{subject} is a glob; choose an output whose URL has none of * ? [ in it.")
    scheme = url.rstrip("/")
    with writing(url):
        if scheme.endswith(":") or not remote.is_in_store(url):
            raise OutputError(
                f"{subject} names no output in a store; add one, such as {subject.rstrip('/')}"
                f"{'//' if scheme.endswith(':') else '/'}folder/name.zarr."
            )
        if door() is Door.COMMAND_LINE and remote.is_in_memory(url):
            raise OutputError(
                f"{subject} is in the memory of this process, which ends with the command; give a path, or a URL of a "
                "store."
            )


def recover(url: str) -> None:
    """Bring a complete output to its place, if a process was killed before it had done so; its lock is held."""
    fs, path = remote.filesystem(url)
    with writing(url):
        fs.invalidate_cache()
        if not is_taking_place(url):
            return
        name = bytes(fs.cat_file(path + COMPLETE, start=0, end=len(path) + 99)).decode(errors="replace")
        # A name and no path, as anybody may have written it.
        if not _NAME.fullmatch(name):
            raise OutputError(f"{url}{COMPLETE} names nothing that was staged; remove it, or choose another output.")
    _take_place(url + name, url)


def is_taking_place(url: str) -> bool:
    """Return whether a complete output still has to be brought to its place, see `recover`."""
    return remote.exists(url + COMPLETE)


def names_in(url: str) -> list[str]:
    """Return the names of the objects and prefixes right below a URL."""
    with writing(url):
        return _names(*remote.filesystem(url))


def is_there(url: str) -> bool:
    """Return whether there is an object at a URL, or one below it."""
    fs, path = remote.filesystem(url)
    with writing(url):
        fs.invalidate_cache()
        return bool(fs.exists(path))


@contextmanager
def created(url: str, size: int) -> Iterator[IO[bytes]]:
    """Yield a file to write in order, which the store shows as an object when the block ends without an error.

    Parameters
    ----------
    url : str
        Of the object.
    size : int
        Bytes that will be written, about; up to 8 MiB are one request, others are sent in parts.
    """
    with writing(url):
        fs, path = remote.filesystem(url)
        file = fs.open(path, "wb", block_size=max(_PART, -(-size // _MOST_PARTS)))
    try:
        yield cast("IO[bytes]", _Sent(url, file))
        with writing(url):
            file.close()
    except BaseException:
        with suppress(Exception):  # of any library
            file.discard()
        with suppress(AttributeError):
            file.closed = True  # else its finalizer would send what there is
        raise


def written_at(url: str) -> datetime | None:
    """Return when the object at a URL was written, by its store's clock; None if there is none."""
    fs, path = remote.filesystem(url)
    with writing(url), suppress(FileNotFoundError, IsADirectoryError, KeyError):  # which a prefix has no time of
        fs.invalidate_cache(path)
        written: datetime | None = fs.modified(path)
        return written
    return None


def remove_object(url: str) -> None:
    """Remove the object at a URL, if it is there."""
    fs, path = remote.filesystem(url)
    with writing(url), suppress(FileNotFoundError):
        fs.rm_file(path)


def remove(url: str) -> None:
    """Remove the object at a URL and all below it, the root's metadata first, so that no half can be opened."""
    fs, path = remote.filesystem(url)
    with writing(url):
        below = _objects(fs, path)
        for names in ([name for name in below if name == METADATA], [name for name in below if name != METADATA]):
            if names:
                # Not `fs.rm`, which takes names with brackets or asterisks for globs.
                _each(fs.rm_file, [f"{path}/{name}" if name else path for name in names])
        with suppress(FileNotFoundError, NotImplementedError):  # of file systems with folders
            if fs.isdir(path):
                fs.rm(path, recursive=True)


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Convert an error of a store, which can be any of its library's, to an OutputError that names the URL."""
    try:
        yield
    except OutputError:
        raise
    except SourceError as error:  # of a package that is missing, or an address that nothing knows
        raise OutputError(str(error)) from error
    except Exception as error:
        raise failure(url, error) from error


def failure(url: str, error: BaseException) -> OutputError:
    """Return the error that tells in one line why nothing can be written at a URL."""
    return OutputError(
        f"{without_secrets(url)} cannot be written ({remote.reason_of(error)}); check that its store answers and lets "
        "you write there."
    )


class _Sent(io.RawIOBase):
    """File of a store that is written in order, whose errors name its URL."""

    def __init__(self, url: str, file: Any) -> None:
        self._url, self._file = url, file

    def write(self, data: Any) -> int:
        """Write bytes, and send them when they are enough for a part."""
        with writing(self._url):
            return int(self._file.write(data))


def _staging(url: str, unfinished: UnfinishedOutput | None) -> str:
    """Return the URL to stage an output at, after what other runs left was recovered or removed."""
    recover(url)
    token = uuid.uuid4().hex[:8]
    if unfinished is not None and unfinished.size is not None:
        token = unfinished.token
    staging, (fs, path) = f"{url}.{token}{PARTIAL}", remote.filesystem(url)
    with writing(url):
        beside = _names(fs, posixpath.dirname(path))
    name = posixpath.basename(path)
    endings = [other.removeprefix(name) for other in beside if other.startswith(name)]
    found = [url + ending for ending in endings if _NAME.fullmatch(ending)]
    for other in found:
        if other != staging:
            remove(other)
    if unfinished is not None and (unfinished.size is None or staging not in found):
        unfinished.token, unfinished.size = token, None
    return staging


def _note_complete(staging: str, url: str) -> None:
    fs, path = remote.filesystem(url)
    with writing(url):
        fs.pipe_file(path + COMPLETE, staging.removeprefix(url).encode())


def _take_place(staging: str, url: str) -> None:
    """Replace what is at a URL by what is staged, which is repeated from the start after a kill."""
    (fs, source), (_, target) = remote.filesystem(staging), remote.filesystem(url)
    with writing(url):
        names = sorted(_objects(fs, source), key=lambda name: (name == METADATA, name.endswith(METADATA)))
        if not names:  # it was removed after an error of the store, which had written the note nevertheless
            fs.rm_file(target + COMPLETE)
            return
    remove(url)
    with writing(url):
        _each(lambda name: fs.cp_file(f"{source}/{name}", f"{target}/{name}"), [name for name in names[:-1] if name])
        fs.cp_file(f"{source}/{names[-1]}", f"{target}/{names[-1]}")
        fs.rm_file(target + COMPLETE)
    with suppress(OutputError):  # the output is complete; the next run removes what is left
        remove(staging)


def _put(file: str, url: str) -> None:
    fs, path = remote.filesystem(url)
    with writing(url):
        fs.put_file(file, path)


def _send(folder: str, url: str) -> None:
    """Copy the files of a local folder to a URL."""
    fs, path = remote.filesystem(url)
    files = [
        posixpath.relpath(posixpath.join(above, name), folder) for above, _, names in os.walk(folder) for name in names
    ]
    with writing(url):
        _each(lambda name: fs.put_file(os.path.join(folder, name), f"{path}/{name}"), files)


def _names(fs: Any, path: str) -> list[str]:
    """Return the names of the objects and prefixes right below a path."""
    fs.invalidate_cache()
    try:
        found = fs.ls(path, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [posixpath.basename(str(name).rstrip("/")) for name in found if name != path]


def _objects(fs: Any, path: str) -> list[str]:
    """Return the names of all objects below a path, "" for one at the path itself."""
    fs.invalidate_cache()
    try:
        found = fs.find(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [str(name).removeprefix(path).lstrip("/") for name in found]


def _each(function: Callable[[str], object], names: Iterable[str]) -> None:
    """Call a function with each name, several at a time; raise the first error."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(function, names):
            pass
