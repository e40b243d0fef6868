"""Free space on disk: checked before a large file is written, and named where a write fails for want of it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import OutputError
from ..units import MIB, format_bytes

FULL = 1 * MIB  # a disk with less free space counts as full


def check_free_space(path: str, needed: int, what: str, remedy: str) -> None:
    """Refuse to write `needed` bytes at a path whose disk has less free space."""
    folder, free = _free(path)
    if free < needed:
        raise OutputError(f"{what} takes {format_bytes(needed)} and {folder} has {format_bytes(free)} left; {remedy}")


def _free(path: str) -> tuple[str, int]:
    """Return the folder of a path and the bytes free there; 0 if it does not exist."""
    folder = os.path.dirname(os.path.abspath(path))
    return folder, shutil.disk_usage(folder).free if os.path.isdir(folder) else 0


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Raise an OSError of the block as an OutputError with the remedy."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(_problem(path, error)) from error


def _problem(path: str, error: OSError) -> str:
    """Return one line about a failed write, with the remedy."""
    folder, free = _free(path)
    # Where one thread cannot make a folder for want of space, another may be told that there is no such folder.
    starved = error.errno == errno.ENOENT and os.path.isdir(folder) and free < FULL
    if starved or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"{path} could not be written: {os.strerror(errno.ENOSPC if starved else error.errno or errno.ENOSPC)} "
            f"({free // MIB} MiB free in {folder}). "
            "Free some space or choose another place, then run the same command again."
        )
    return f"{path} could not be written: {error.strerror or error}; check the folder and its permissions."
