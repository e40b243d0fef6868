"""Paths as people write them, and syncing: files and names that are on disk and survive a failure of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

MOST_UNSYNCED = 1000  # files
BLOCK = 512  # bytes, in which the system counts what a file takes


def expanded(path: str | os.PathLike[str]) -> str:
    """Return a path as text, its leading ``~`` or ``~user`` replaced by the home folder."""
    return os.path.expanduser(os.fspath(path))


def bytes_on_disk(path: str) -> int:
    """Return the bytes that a file takes, or all files of a folder; 0 where there is neither."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names] or [path]
    found = 0
    for each in paths:
        with suppress(FileNotFoundError):
            found += os.stat(each).st_blocks * BLOCK
    return found


def sync_files(paths: Iterable[str], root: str) -> None:
    """Put files on disk, and their names in the folders above them up to `root`; those that are not there are left out.

    Raises
    ------
    OSError
        If the system could not write what it had taken.
    """
    folders, root = {os.path.abspath(root)}, os.path.abspath(root)
    for path in paths:
        with suppress(FileNotFoundError):  # a chunk of nothing but the fill value may have no file
            _sync(path)
        folder = os.path.dirname(os.path.abspath(path))
        while folder not in folders and folder.startswith(root):
            folders.add(folder)
            folder = os.path.dirname(folder)
    for folder in sorted(folders, reverse=True):
        sync_folder(folder)


class UnsyncedFiles:
    """Files that were written and are not yet on disk for certain, with the folders above them up to `root`."""

    def __init__(self, root: str) -> None:
        self._root, self._paths = root, set[str]()

    def add(self, paths: Iterable[str]) -> None:
        """Remember files; many are synced at once."""
        for path in paths:
            self._paths.add(path)
            if len(self._paths) >= MOST_UNSYNCED:
                self.sync()

    def sync(self) -> None:
        """Put them on disk, see `sync_files`."""
        if self._paths:
            sync_files(self._paths, self._root)
            self._paths.clear()


def sync_folder(path: str) -> None:
    """Put the names in a folder on disk, where the system can."""
    with suppress(OSError):  # some file systems sync no folders
        _sync(path)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
