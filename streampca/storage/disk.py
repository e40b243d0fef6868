"""Files on disk: paths as people write them, what is no file, and syncing: files and names that survive a failure."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from ..errors import OutputError

MOST_UNSYNCED = 1000  # files
BLOCK = 512  # bytes, in which the system counts what a file takes
_NO_LINK, _NO_WAIT, _BINARY = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def expanded(path: str | os.PathLike[str]) -> str:
    """Return a path as text, its leading ``~`` or ``~user`` replaced by the home folder."""
    return os.path.expanduser(os.fspath(path))


def check_place(path: str) -> None:
    """Refuse a path where no file can be written, before anything is computed.

    Raises
    ------
    OutputError
        If it is an URL, or the nearest folder above that exists is none, or may not be written to.
    """
    if "://" in path:
        raise OutputError(f"{path} cannot be written: outputs are files and folders; give a path, and copy it there.")
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise OutputError(f"{path} cannot be written: {above} is not a folder; choose another output.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(f"{path} cannot be written: no permission to write in {above}; choose another output.")


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is neither a file nor a folder: who reads a pipe may wait for ever, and some devices never end.

    Raises
    ------
    OSError
        Its `strerror` says what is there; nothing is raised where there is nothing.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        _check_mode(os.stat(path).st_mode, path)


def open_regular(
    path: str | os.PathLike[str], mode: str = "rb", *, encoding: str | None = None, newline: str | None = None
) -> IO[Any]:
    """Open a file for reading; of anything but a file or a link to one, raise OSError at once, see `check_regular`."""
    check_regular(path)  # opening a device may do something
    # Another may have taken its place since, and a pipe that nobody writes to would be waited for.
    file = open(path, mode, encoding=encoding, newline=newline, opener=_opened_at_once)  # noqa: SIM115 - the caller's
    try:
        _check_mode(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | _NO_WAIT)


def open_own(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file that is written in place; refuse a link, what is no file, and a file of several names.

    Names of files that are written in place can be foretold, and who has planted a link there would have another file
    overwritten.

    Raises
    ------
    OSError
        Its `strerror` says what is there.
    """
    try:
        handle = os.open(path, flags | _NO_LINK | _NO_WAIT | _BINARY, mode)
    except OSError:
        if os.path.islink(path):
            raise OSError(errno.ELOOP, "it is a link", path) from None
        if os.path.isdir(path):
            raise OSError(errno.EISDIR, "it is a folder", path) from None
        raise
    try:
        state = os.fstat(handle)
        _check_mode(state.st_mode, path)
        if stat.S_ISDIR(state.st_mode):
            raise OSError(errno.EISDIR, "it is a folder", path)
        if state.st_nlink > 1:
            raise OSError(errno.EMLINK, "the file has other names, too", path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def is_own(path: str) -> bool:
    """Return whether a path is a file of one name, or a folder of such, without links: what `open_own` opens."""
    try:
        state = os.lstat(path)
        if not stat.S_ISDIR(state.st_mode):
            return stat.S_ISREG(state.st_mode) and state.st_nlink == 1
        with os.scandir(path) as entries:
            return all(is_own(entry.path) for entry in entries)
    except FileNotFoundError:
        return False


def _check_mode(mode: int, path: str | os.PathLike[str]) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
        what = kinds.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {what}, not a file", os.fspath(path))


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
