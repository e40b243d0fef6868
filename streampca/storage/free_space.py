"""Free space on disk: compared with outputs before they are written, and reported when a write fails for lack of it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..errors import OutputError
from ..events import Listener, Warned
from ..units import MIB, format_bytes
from .remote import is_url

FULL = 1 * MIB  # a disk with less free space counts as full
REMEDY = "free some space, or choose another place, then run the same command again."


def check_free_space(
    path: str, needed: int, what: str, remedy: str = REMEDY, *, at_most: Listener | None = None
) -> None:
    """Refuse to write `needed` bytes at a path whose disk has less free space.

    Parameters
    ----------
    path : str
        Path to write. An output that it replaces still takes its space until the new one is complete.
    needed : int
        Bytes that will be written.
    what : str
        Name of the output, for the message.
    remedy : str
        End of the message.
    at_most : callable, optional
        Listener that is warned instead of a refusal, for outputs that can need fewer bytes, such as compressed ones.

    Raises
    ------
    OutputError
        If there is less free space, and no listener.
    """
    folder, free = _free(path)
    if free >= needed:
        return
    compared = f"{format_bytes(needed)} and {folder} has {format_bytes(free)} left"
    if at_most is None:
        raise OutputError(f"{what} takes {compared}; {remedy}")
    at_most(Warned(f"{what} takes up to {compared}; if the disk fills, {remedy}"))


def check_free_spaces(needed: Mapping[str, int], *, at_most: Listener | None = None) -> None:
    """Refuse to write these numbers of bytes at each path, all of which are kept; see `check_free_space`."""
    disks: dict[int, list[str]] = {}
    for path in needed:
        # Outputs on the same disk share its free space.
        disks.setdefault(os.stat(_free(path)[0]).st_dev, []).append(path)
    for paths in disks.values():
        total, takes = sum(needed[path] for path in paths), ", ".join(paths)
        check_free_space(paths[0], total, takes if len(paths) == 1 else f"all of {takes}", at_most=at_most)


def _free(path: str) -> tuple[str, int]:
    """Return the nearest existing folder above a path, of a URL that where outputs are staged; and its free bytes."""
    folder = tempfile.gettempdir() if is_url(path) else os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder, shutil.disk_usage(folder).free


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Convert an OSError of the block to an OutputError with the remedy."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(problem_of(path, error)) from error


def problem_of(path: str, error: OSError) -> str:
    """Return one line about a failed write, with the remedy."""
    folder, free = _free(path)
    # If one thread cannot create a folder for lack of space, another can fail because the folder is missing.
    starved = error.errno == errno.ENOENT and os.path.isdir(os.path.dirname(os.path.abspath(path))) and free < FULL
    if starved or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"{path} could not be written: {os.strerror(errno.ENOSPC if starved else error.errno or errno.ENOSPC)} "
            f"({free // MIB} MiB free in {folder}). "
            "Free some space or choose another place, then run the same command again."
        )
    return f"{path} could not be written: {error.strerror or error}; check the folder and its permissions."
