"""Locks on folders of checkpoints: a second process would resume from them and remove what the first is writing.

The lock is the system's (`flock`), which ends with the process that holds it, however that ends; the file names it.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..errors import OutputError

try:
    import fcntl
except ImportError:  # not on Windows: no locks there
    fcntl = None  # type: ignore[assignment]

LOCK = "at-work.lock"
TURNS = 100  # tries to lock a file that others create and remove meanwhile


@contextmanager
def alone_in(folder: str | None) -> Iterator[None]:
    """Lock a folder for the block; without effect where the system or its disk has no locks.

    Parameters
    ----------
    folder : str or None
        Created if missing, and removed afterwards if empty; None needs no lock.

    Raises
    ------
    OutputError
        If another process holds it, naming that process.
    """
    path = None if folder is None else os.path.join(folder, LOCK)
    handle = None if path is None or fcntl is None else _locked(path)
    try:
        yield
    finally:
        if path is not None and handle is not None:
            _remove(path)  # before it is released: afterwards it may be another's
            os.close(handle)


def _locked(path: str) -> int | None:
    """Return the open file, locked; None where there are no locks."""
    handle = None
    for _ in range(TURNS):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            break
        except OSError as error:
            if handle is None and _was_removed(os.path.dirname(path), error):
                continue
            if handle is not None:
                if not os.fstat(handle).st_size:  # nobody has signed it
                    _remove(path)
                os.close(handle)
            return None  # saving a checkpoint there says what is wrong
        if _is_at(handle, path):
            _sign(handle)
            return handle
        os.close(handle)
        handle = None
    raise OutputError(_refusal(path, handle))


def _was_removed(folder: str, error: OSError) -> bool:
    """Return whether a file could not be opened because another process removed its folder when it ended."""
    if not isinstance(error, FileNotFoundError | FileExistsError):
        return False
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode)  # and is there again
    except FileNotFoundError:
        return True


def _remove(path: str) -> None:
    """Remove the file, and the folder if nothing else is in it."""
    with suppress(OSError):
        os.remove(path)
        os.rmdir(os.path.dirname(path))


def _is_at(handle: int, path: str) -> bool:
    """Return whether an open file still has its name: the process that held the lock before removes it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    with suppress(OSError):  # on a full disk nobody is named
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {socket.gethostname()}".encode(), 0)


def _refusal(path: str, handle: int | None) -> str:
    """Return who holds the lock, and the remedy; close the file."""
    signed = ""
    if handle is not None:
        signed = os.pread(handle, 200, 0).decode(errors="replace")
        os.close(handle)
    pid, _, host = signed.partition(" ")
    who = f"process {pid} on {host}" if host else "another process"
    return (
        f"{os.path.dirname(path)} holds the checkpoints of {who}, which is running; wait until it ends, or end it, and "
        "then run the same command again."
    )
