"""Locks on outputs at URLs: objects that one process alone can create, where the store has conditional writes.

The holder writes its object again as long as it holds the lock. One that was not written for `STALE` seconds, by the
store's clock, or by a process that has ended (`Holder.is_past`), is taken over by the process that creates a second
object, which is named after the first one's content.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

from ..errors import OutputError, without_secrets
from . import remote
from .lock_holder import LONGEST, Holder, gone, refusal
from .object_store import writing

REFRESHED = 30.0  # seconds between two writes of a lock that is held
STALE = 120.0  # seconds without one after which the holder is dead
TURNS = 20  # tries to create a lock that others remove meanwhile
WAIT = 0.05  # seconds between two tries
# Answers of stores where an object exists already; s3fs before 2025 has no other error for it.
_EXISTS = ("PreconditionFailed", "ConditionalRequestConflict", "pre-conditions", "conditionNotMet")

_log = logging.getLogger("streampca")


@dataclass(frozen=True)
class StoreLock:
    """Lock at a URL that this process holds.

    Attributes
    ----------
    path : str
        URL of its object.
    subject : str
        Locked URL.
    signature : bytes
        Content of the object.
    """

    path: str
    subject: str
    signature: bytes

    @property
    def is_ours(self) -> bool:
        """False if another process took the lock over, and also if that one has ended and removed it."""
        return _content(self.path) == self.signature

    def check(self) -> None:
        """Raise OutputError unless the lock `is_ours`."""
        if (content := _content(self.path)) == self.signature:
            return
        subject = without_secrets(self.subject)
        if not content:
            raise OutputError(gone(subject))
        raise OutputError(refusal(subject, content))


@contextmanager
def locked_in_store(place: str, subject: str) -> Iterator[StoreLock]:
    """Hold the lock of a URL, whose object is at `place`, for the block.

    Raises
    ------
    OutputError
        If another process holds it, or nothing can be written there.
    """
    signature, ended = Holder.here().signature, threading.Event()
    with writing(subject):
        lock = _acquired(place, subject, signature)
    refresher = threading.Thread(target=_refresh, args=(lock, ended), daemon=True)
    refresher.start()
    try:
        yield lock
    finally:
        ended.set()
        refresher.join()
        with suppress(Exception):  # of any library; an object that stays grows stale
            if lock.is_ours:
                fs, path = remote.filesystem(place)
                fs.rm_file(path)


def _acquired(place: str, subject: str, signature: bytes) -> StoreLock:
    """Create the object of a lock, or take it over."""
    content = b""
    for _ in range(TURNS):
        if _create(place, signature) or (content := _content(place)) == signature:
            if _create(place, signature):
                _warn_unlocked(without_secrets(subject))
            return StoreLock(place, subject, signature)
        holder = Holder.of(content)
        if content and holder is None:
            raise OutputError(
                f"{without_secrets(place)} cannot be taken for a lock: it holds something else; remove it, or choose "
                "another place."
            )
        if holder is not None:
            if not (holder.is_past or _age(place) >= STALE):
                break
            if _taken_over(place, content, signature):
                return StoreLock(place, subject, signature)
        time.sleep(WAIT)
    raise OutputError(refusal(without_secrets(subject), content))


@cache
def _warn_unlocked(subject: str) -> None:
    """Say once of an output that it is not locked, however often its lock is taken."""
    _log.warning(
        "%s is not locked: its store has no conditional writes; let one process at a time write there.", subject
    )


def _taken_over(place: str, content: bytes, signature: bytes) -> bool:
    """Replace the content of a lock, unless another process does or did."""
    # A digest, as the content is another's text, and this names an object that is created and removed.
    fs, path = remote.filesystem(turn := f"{place}.{hashlib.sha256(content).hexdigest()[:32]}")
    if not _create(turn, signature):
        if _age(turn) >= STALE:  # who was to replace it died
            fs.rm_file(path)
        return False
    try:
        if _content(place) != content:
            return False
        fs, lock_path = remote.filesystem(place)
        fs.pipe_file(lock_path, signature)
        return True
    finally:
        fs.rm_file(path)


def _create(place: str, content: bytes) -> bool:
    """Create an object; return whether it did not exist."""
    fs, path = remote.filesystem(place)
    try:
        fs.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    except OSError as error:
        if any(sign in remote.reason_of(error) for sign in _EXISTS):
            return False
        raise
    return True


def _content(place: str) -> bytes:
    """Return the content of a lock; nothing if it is not there."""
    return remote.first_bytes(place, LONGEST + 1)


def _age(place: str) -> float:
    """Return the seconds since an object was written, by the store's clock: those of two hosts can differ."""
    fs, path = remote.filesystem(place)
    probe = f"{path}.{Holder.here().nonce}"
    fs.pipe_file(probe, b"-")
    try:
        fs.invalidate_cache()
        return float((fs.modified(probe) - fs.modified(path)).total_seconds())
    except FileNotFoundError:  # it was removed meanwhile
        return 0.0
    finally:
        fs.rm_file(probe)


def _refresh(lock: StoreLock, ended: threading.Event) -> None:
    fs, path = remote.filesystem(lock.path)
    while not ended.wait(REFRESHED):
        with suppress(Exception):  # of any library; a lock that is not refreshed grows stale
            if not lock.is_ours:
                return
            fs.pipe_file(path, lock.signature)
