"""Files on disk: paths as people write them, refusal of links, devices and placeholders, and syncing."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from ..errors import OutputError, SourceError
from . import remote

LONGEST_NAME = 255  # bytes, of Linux's and macOS's file systems
LONGEST_ENDING = 32  # bytes that are added to an output's name for what lies beside it
MOST_UNSYNCED = 1000  # files remembered before they are synced
BLOCK = 512  # bytes of a block, in which the system counts the size of a file on disk
# Programs that keep large files elsewhere and leave a text in their place: its first bytes, their name, their remedy.
PLACEHOLDERS = (
    (b"version https://git-lfs.github.com/spec/", "Git LFS", "git lfs pull"),
    (b"/annex/objects/", "git-annex", "git annex get ."),
)
_LONGEST_PLACEHOLDER = 1024  # bytes (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md)
_NO_LINK, _NO_WAIT = os.O_NOFOLLOW, os.O_NONBLOCK


def expanded(path: str | os.PathLike[str]) -> str:
    """Return a path as text, ``~`` or ``~user`` at its start replaced by the home folder; of a ``file://`` URL too."""
    return remote.local_path(os.path.expanduser(os.fspath(path)))


def named_beside(path: str) -> str:
    """Return the path to which endings of files beside an output are added: its own, or one with a shorter name.

    A name too long for endings is cut, and a digest of the whole name tells it from others.
    """
    folder, name = os.path.split(path)
    if len(stored := os.fsencode(name)) <= LONGEST_NAME - LONGEST_ENDING:
        return path
    digest = "-" + hashlib.sha256(stored).hexdigest()[:16]
    start = stored[: LONGEST_NAME - LONGEST_ENDING - len(digest)].decode("utf-8", "ignore")  # no half of a character
    return os.path.join(folder, start + digest)


def check_place(path: str) -> None:
    """Refuse a path where a file cannot be written, before anything is computed.

    Raises
    ------
    OutputError
        If it is a URL, or the nearest existing path above is not a folder, or is not writable.
    """
    if "://" in path:
        raise OutputError(
            f"{path} cannot be written: only models, graphs, scores, images and copies are written to URLs; give a "
            "path, and copy it there."
        )
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise OutputError(f"{path} cannot be written: {above} is not a folder; choose another output.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(f"{path} cannot be written: no permission to write in {above}; choose another output.")


def check_regular(path: str | os.PathLike[str], state: os.stat_result | None = None) -> None:
    """Refuse paths that are neither files nor folders: reading a pipe can block forever, and some devices never end.

    Parameters
    ----------
    path : path
        File or folder.
    state : os.stat_result, optional
        State of the open file, as the path can have been replaced; by default that of the path.

    Raises
    ------
    OSError
        If it is something else, which `strerror` names. Nothing is raised for missing files.
    """
    try:
        mode = (os.stat(path) if state is None else state).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
        kind = kinds.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", os.fspath(path))


def open_regular(
    path: str | os.PathLike[str], mode: str = "rb", *, encoding: str | None = None, newline: str | None = None
) -> IO[Any]:
    """Open a file, or a link to one, for reading.

    Raises
    ------
    OSError
        At once if it is neither, see `check_regular`.
    SourceError
        If it is a placeholder of a file that was not fetched.
    """
    check_regular(path)  # opening a device can have effects
    # The path can have been replaced since, and opening a pipe without a writer would wait.
    file = open(  # noqa: SIM115 - the caller closes it
        path, mode, encoding=encoding, newline=newline, opener=lambda path, flags: os.open(path, flags | _NO_WAIT)
    )
    try:
        state = os.fstat(file.fileno())
        check_regular(path, state)
        if 0 < state.st_size < _LONGEST_PLACEHOLDER:
            _check_content(path, file.fileno())
    except BaseException:
        file.close()
        raise
    return file


def is_file(path: str) -> bool:
    """Return whether there is a file at a path or URL."""
    return remote.is_file(path) if remote.is_url(path) else os.path.isfile(path)


def file_bytes(path: str, most: int) -> bytes:
    """Return the bytes of a file at a path or URL, up to one more than `most`.

    Raises
    ------
    OSError
        As `open_regular`; FileNotFoundError if nothing is at a URL.
    """
    if remote.is_url(path):
        if not (content := remote.first_bytes(path, most + 1)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return content
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        return bytes(file.read(min(size, most) + 1))  # `read` allocates what it is asked for


def _check_content(path: str | os.PathLike[str], handle: int) -> None:
    """Refuse a placeholder of a file whose content is elsewhere; nothing was read of the open file yet."""
    start = os.read(handle, max(len(magic) for magic, _, _ in PLACEHOLDERS))
    os.lseek(handle, 0, os.SEEK_SET)
    for magic, program, command in PLACEHOLDERS:
        if start.startswith(magic):
            raise SourceError(
                f"{os.fspath(path)} is a pointer of {program} to a file that was not fetched; run '{command}' in its "
                "folder."
            )


def open_own(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file that is written in place; refuse links, paths that are not files, and files with several names.

    The names of such files can be predicted: an attacker who plants a link there would have another file overwritten.

    Raises
    ------
    OSError
        If it is refused; `strerror` names the reason.
    """
    try:
        handle = os.open(path, flags | _NO_LINK | _NO_WAIT, mode)
    except OSError:
        if os.path.islink(path):
            raise OSError(errno.ELOOP, "it is a link", path) from None
        if os.path.isdir(path):
            raise OSError(errno.EISDIR, "it is a folder", path) from None
        raise
    try:
        # Check the open file, as the path can be exchanged after any check of it.
        state = os.fstat(handle)
        check_regular(path, state)
        if stat.S_ISDIR(state.st_mode):
            raise OSError(errno.EISDIR, "it is a folder", path)
        if state.st_nlink > 1:
            raise OSError(errno.EMLINK, "the file has other names, too", path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def is_own(path: str) -> bool:
    """Return whether a path is a file that `open_own` opens, or a folder of such files, without links."""
    try:
        state = os.lstat(path)
        if not stat.S_ISDIR(state.st_mode):
            return stat.S_ISREG(state.st_mode) and state.st_nlink == 1
        with os.scandir(path) as entries:
            return all(is_own(entry.path) for entry in entries)
    except FileNotFoundError:
        return False


def read_at(descriptor: int, view: memoryview, position: int) -> int:
    """Read bytes of a file from a position into a buffer; returns their number, 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], position)
    data = os.pread(descriptor, len(view), position)  # Python for macOS before 11 lacks the one without a copy
    view[: len(data)] = data
    return len(data)


def bytes_on_disk(path: str) -> int:
    """Return the bytes on disk of a file, or of all files in a folder; 0 if the path does not exist."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names] or [path]
    total = 0
    for file in paths:
        with suppress(FileNotFoundError):
            total += os.stat(file).st_blocks * BLOCK
    return total


def sync_files(paths: Iterable[str], root: str) -> None:
    """Sync files to disk, and their names in the folders above up to `root`; missing files are skipped.

    Raises
    ------
    OSError
        If the system could not write data that it had buffered.
    """
    folders, root = {os.path.abspath(root)}, os.path.abspath(root)
    for path in paths:
        with suppress(FileNotFoundError):  # a chunk that holds only the fill value can lack a file
            _sync(path)
        folder = os.path.dirname(os.path.abspath(path))
        while folder not in folders and folder.startswith(root):
            folders.add(folder)
            folder = os.path.dirname(folder)
    # Innermost first: a name is on disk before the folder that leads to it.
    for folder in sorted(folders, reverse=True):
        sync_folder(folder)


class UnsyncedFiles:
    """Files that were written but not yet synced, with the folders above them up to `root`."""

    def __init__(self, root: str) -> None:
        self._root, self._paths = root, set[str]()

    def add(self, paths: Iterable[str]) -> None:
        """Remember files, and sync them when there are many."""
        for path in paths:
            self._paths.add(path)
            if len(self._paths) >= MOST_UNSYNCED:
                self.sync()

    def sync(self) -> None:
        """Sync the remembered files, see `sync_files`."""
        if self._paths:
            sync_files(self._paths, self._root)
            self._paths.clear()


def sync_folder(path: str) -> None:
    """Sync the names in a folder, if the system can."""
    with suppress(OSError):  # some file systems cannot sync folders
        _sync(path)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
