"""Locks on outputs and on folders of checkpoints, so that two processes do not mix their data.

A lock is a file that names its holder. If the file system has locks (`flock`), the file is locked; the lock ends with
the process that holds it, however that ends. Elsewhere, the file is created exclusively and refreshed as long as it is
held; a file that was not refreshed for two minutes was left by a process that died, perhaps on another host, and is
taken over. One of a process of this host that has ended, or of an earlier run of the same job, is taken over at once.

The name can be predicted, so anyone who can write to the folder can put something else there, such as a link to a
precious file. Only a file of one name that is empty or holds a signature is accepted as a lock; anything else is
refused.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass

from ..errors import OutputError
from .disk import check_place, named_beside, open_own
from .free_space import problem_of
from .lock_holder import LONGEST, Holder, gone, refusal
from .object_store import check_url
from .remote import is_url
from .store_locks import StoreLock, locked_in_store

LOCK = "at-work.lock"  # name of the lock's file in a folder of checkpoints
BESIDE = ".streampca-lock"  # ending of the name of a lock beside an output
TURNS = 100  # tries to lock a file that others create and remove meanwhile, or have not signed yet
UNSIGNED = 0.01  # seconds between two tries; a holder signs at once, unless the disk is full
REFRESHED = 30.0  # seconds between refreshes of a lock that is not a `flock`
STALE = 120.0  # seconds without a refresh after which the holder is dead

_log = logging.getLogger("streampca")


@dataclass(frozen=True)
class Lock:
    """Lock held by this process.

    Attributes
    ----------
    path : str
        Path of the lock's file.
    subject : str
        Locked path, for messages.
    handle : int or None
        Open file; None on a read-only file system.
    is_refreshed : bool
        True of a file that is no `flock`, which another process can take over, and remove when it ends.
    """

    path: str
    subject: str
    handle: int | None
    is_refreshed: bool = False

    @property
    def is_ours(self) -> bool:
        """False if another process took the lock over, as this one was suspended and did not refresh it."""
        # A `flock` holds without its file, whose name no process of ours removes meanwhile.
        is_held = not self.is_refreshed and not os.path.lexists(self.path)
        return self.handle is None or is_held or _is_at(self.handle, self.path)

    def check(self) -> None:
        """Raise OutputError unless the lock `is_ours`."""
        if not self.is_ours:
            if not os.path.lexists(self.path):
                raise OutputError(gone(self.subject))
            with open(open_own(self.path, os.O_RDONLY), "rb") as file:
                raise OutputError(refusal(self.subject, file.read(LONGEST)))


_HELD: ContextVar[tuple[Lock | StoreLock, ...]] = ContextVar("locks on outputs that the running call holds", default=())


@contextmanager
def output_lock(path: str | None) -> Iterator[Lock | StoreLock]:
    """Lock an output for the block; a call that holds the lock can lock it again.

    Parameters
    ----------
    path : str or None
        Path of the output. Folders above it are created, and removed afterwards if empty; None needs no lock.

    Raises
    ------
    OutputError
        If another process or thread holds the lock; names that process.
    """
    if path is None:
        yield Lock("", "", None)
        return
    if is_url(path.rstrip("/") + "//"):  # also a scheme alone
        check_url(path)
    elif not path.strip("/"):
        raise OutputError(f"output {path!r} names no file or folder to write; give one, such as model.zarr.")
    bare = path.rstrip("/") if is_url(path) else os.path.abspath(path)
    place = bare + BESIDE
    if not is_url(path):
        place = os.path.join(os.path.realpath(os.path.dirname(bare)), os.path.basename(named_beside(bare)) + BESIDE)
    # `flock` would refuse a second open file of the same process.
    held = next((lock for lock in _HELD.get() if lock.path == place), None)
    if held is not None:
        yield held
        return
    subject = path.rstrip("/")
    locked = locked_in_store(place, subject) if is_url(path) else _locked(place, subject, _missing_above(place))
    with locked as lock:
        # A context variable, so that calls inside this one see the lock and other threads do not.
        before = _HELD.set((*_HELD.get(), lock))
        try:
            yield lock
        finally:
            _HELD.reset(before)


@contextmanager
def checkpoint_lock(folder: str | None) -> Iterator[None]:
    """Lock a folder of checkpoints for the block.

    Parameters
    ----------
    folder : str or None
        Folder, which is created if missing, and removed afterwards if empty, or URL of one; None needs no lock.

    Raises
    ------
    OutputError
        If the lock is held already; names the process that holds it.
    """
    if folder is None:
        yield
        return
    if is_url(folder):
        check_url(folder)
        locked: AbstractContextManager[Lock | StoreLock] = locked_in_store(f"{folder.rstrip('/')}/{LOCK}", folder)
    else:
        place = os.path.join(os.path.abspath(folder), LOCK)
        locked = _locked(place, folder, _missing_above(place) or [os.path.dirname(place)])
    with locked:
        yield


def _missing_above(path: str) -> list[str]:
    """Return the folders above a path that do not exist, innermost first."""
    missing, above = [], os.path.dirname(path)
    while not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    return missing


@contextmanager
def _locked(path: str, subject: str, folders: Sequence[str]) -> Iterator[Lock]:
    """Hold a lock for the block, then remove its file, and those of `folders` that are empty."""
    handle, is_refreshed = _acquired(path, subject)
    ended = threading.Event()
    refresher = threading.Thread(target=_refresh, args=(handle, ended), daemon=True) if is_refreshed else None
    try:
        if handle is not None:
            _sign(handle)
        if refresher is not None:
            refresher.start()
        yield Lock(path, subject, handle, is_refreshed)
    finally:
        ended.set()
        if refresher is not None:
            refresher.join()
        if handle is not None:
            if _is_at(handle, path):
                with suppress(OSError):
                    os.remove(path)  # before the lock is released, as another process can hold it afterwards
            os.close(handle)
        with suppress(OSError):
            for folder in folders:
                os.rmdir(folder)


class _HeldError(Exception):
    """Another process, whose signature is the argument, holds a lock."""


def _acquired(path: str, subject: str) -> tuple[int | None, bool]:
    """Acquire a lock; return its open file, and whether it must be refreshed.

    On a read-only file system the file is None, which is logged.

    Raises
    ------
    OutputError
        If another process holds the lock, it cannot be created, or something else has its name.
    """
    folder, signed = os.path.dirname(path), b""
    for _ in range(TURNS):
        try:
            os.makedirs(folder, exist_ok=True)
            # Tried each time, as the folder can have been removed and created again.
            is_refreshed = not _has_flock(folder)
            handle = _created(path) if is_refreshed else _flocked(path)
        except _HeldError as held:
            signed = held.args[0]
            if signed:
                break
            time.sleep(UNSIGNED)
            continue
        except OSError as error:
            # The previous holder removes empty folders when it ends: create them again.
            if _was_removed(folder, error):
                continue
            if error.errno == errno.EROFS:
                _log.warning("%s is not locked: its file system is read-only.", subject)
                return None, False
            if isinstance(error, OutputError):
                raise
            if os.path.lexists(path):
                raise OutputError(_not_a_lock(path, error.strerror or str(error))) from error
            check_place(subject)
            check_place(path)
            raise OutputError(problem_of(subject, error)) from error
        if handle is not None:
            return handle, is_refreshed
    raise OutputError(refusal(subject, signed))


def _has_flock(folder: str) -> bool:
    """Return whether files of a folder can be locked, tried on a temporary file."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _flocked(path: str) -> int | None:
    """Return the open file with a `flock`; None if its holder has removed it meanwhile."""
    handle = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Checked before signing: a file with other contents is not overwritten.
        _check_signature(os.pread(handle, LONGEST + 1, 0), path)
        if _is_at(handle, path):
            return handle
    except BlockingIOError:
        signed = os.pread(handle, LONGEST, 0)
        os.close(handle)
        raise _HeldError(signed) from None
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _created(path: str) -> int | None:
    """Return the open file, created exclusively; None if its holder has ended meanwhile, or was dead."""
    with suppress(FileExistsError):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    with suppress(FileNotFoundError), open(open_own(path, os.O_RDONLY), "rb") as file:
        state, signed = os.fstat(file.fileno()), file.read(LONGEST + 1)
        _check_signature(signed, path)
        with tempfile.TemporaryFile(dir=os.path.dirname(path)) as probe:
            # The file system's clock gives both times, as the clocks of two hosts can differ.
            age = os.fstat(probe.fileno()).st_mtime - state.st_mtime
        holder = Holder.of(signed)
        if age < STALE and not (holder and holder.is_past):
            raise _HeldError(signed)
        aside = f"{path}.{uuid.uuid4().hex[:8]}"
        os.rename(path, aside)  # only one of two processes that find it stale removes it
        moved = os.lstat(aside)
        if not os.path.samestat(moved, state) or moved.st_mtime_ns != state.st_mtime_ns:
            os.rename(aside, path)  # a faster process has created a new lock; see `Lock.check`
            raise _HeldError(b"")
        os.remove(aside)
    return None


def _check_signature(content: bytes, path: str) -> None:
    """Refuse a file that holds anything but the signature of a lock."""
    if content and Holder.of(content) is None:
        raise OutputError(_not_a_lock(path, "it holds something else"))


def _refresh(handle: int, ended: threading.Event) -> None:
    while not ended.wait(REFRESHED):
        with suppress(OSError):
            os.utime(handle)


def _was_removed(folder: str, error: OSError) -> bool:
    """Return whether opening failed because another process removed the folder when it ended."""
    if not isinstance(error, FileNotFoundError | FileExistsError):
        return False
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode)  # it exists again
    except FileNotFoundError:
        return True


def _is_at(handle: int, path: str) -> bool:
    """Return whether an open file still has its name, which the previous holder of the lock removes."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    with suppress(OSError):  # on a full disk the lock stays unsigned
        os.ftruncate(handle, 0)
        os.pwrite(handle, Holder.here().signature, 0)


def _not_a_lock(path: str, reason: str) -> str:
    """Return a message on a file with the name of a lock that is not one, with the remedy."""
    return f"{path} cannot be taken for a lock: {reason[0].lower()}{reason[1:]}; remove it, or choose another place."
