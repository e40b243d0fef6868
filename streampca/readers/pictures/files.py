"""Finds the image files that a folder, a glob or a list stands for."""

from __future__ import annotations

import glob
import os
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ...errors import SourceError
from .. import remote
from .listing import Folders, Listing, settled
from .names import FileNames, name_of, natural, natural_name

EXTENSIONS = frozenset(
    (
        ".png", ".jpg", ".jpeg", ".jpe", ".tif", ".tiff", ".bmp", ".dib", ".pgm", ".ppm", ".pbm", ".pnm", ".gif",
        ".fits", ".fit", ".fts", ".fz",
    )
)  # fmt: skip
_ENCODED = frozenset(map(os.fsencode, EXTENSIONS))
_SEPARATOR = os.fsencode(os.sep)

# What follows the sort key of an entry; a zero byte first, so that the key ends there for sorting too.
_STATE = struct.Struct(">xqq")
_IS_FOLDER = -2  # in place of a size


def find_images(source: str | Sequence[str]) -> Listing:
    """Find the image files of a source.

    A folder is searched to the bottom and a glob may hold ``**``; both give files in natural order (s2 before s10).
    A list keeps its own order; folders in it are searched.

    Raises
    ------
    SourceError
        If there are none.
    """
    if isinstance(source, str):
        if remote.is_url(source):
            return _listing_of(sorted(_behind(source), key=natural))
        if os.path.isdir(source):
            return _Search(source).listing()
        paths = sorted(_matching(source), key=natural) if not os.path.exists(source) else [source]
    else:
        paths = [path for item in source for path in _listed(item)]
        if not paths:
            raise SourceError("the list of image files is empty; give at least two files.")
    return _listing_of(paths)


def _listing_of(paths: list[str]) -> Listing:
    root = _common_folder(paths)
    return Listing(root, FileNames(_below(root, path) for path in paths))


def _behind(url: str) -> list[str]:
    """Images that a URL stands for: itself, what a glob matches, or what its server lists below it."""
    if _extension(url) in EXTENSIONS and not remote.is_pattern(url):
        return [url]
    found = remote.matching(url)
    images = [path for path in found if _extension(path) in EXTENSIONS]
    if not images:
        raise _no_images(url, Counter(map(_extension, found)))
    return images


def _common_folder(paths: list[str]) -> str:
    if any(map(remote.is_url, paths)):
        return remote.common_folder(paths)
    folders = {os.path.dirname(path) for path in paths}
    if len({os.path.isabs(folder) for folder in folders}) > 1:
        folders = {os.path.abspath(folder) for folder in folders}
    return os.path.commonpath(folders)


def _below(root: str, path: str) -> str:
    if not root and remote.is_url(path):
        return path
    start = os.path.join(root, "")
    # The general way takes 10 us, ten seconds for a million.
    return path[len(start) :] if root and path.startswith(start) else os.path.relpath(path, root or ".")


def _listed(item: str) -> Iterable[str]:
    if remote.is_url(item):
        return sorted(_behind(item), key=natural)
    if os.path.isdir(item):
        found = _Search(item).listing()
        return map(found.path, range(len(found)))
    if not os.path.isfile(item):
        raise SourceError(f"{item} does not exist or is not a file; take it off the list.")
    return [item]


def _matching(pattern: str) -> list[str]:
    matches = glob.glob(pattern, recursive=True)
    files = [path for path in matches if os.path.isfile(path)]
    others: Counter[str] = Counter()
    # With ** the files of a matching folder match by themselves.
    if not files:
        searches = [_Search(folder) for folder in matches]
        for search in searches:
            others.update(search.others)
        files = [path for search in searches for path in search.paths()]
    others.update(extension for path in files if (extension := _extension(path)) not in EXTENSIONS)
    images = [path for path in files if _extension(path) in EXTENSIONS]
    if not images:
        raise _no_images(pattern, others)
    return images


class _Search:
    """The image files below a folder, links followed, hidden ones left out, in natural order.

    Names and states are added to flat arrays as the folders are walked in order; entries of one folder at a time, and
    of those above it, are held as Python's, 100 bytes a file.
    """

    def __init__(self, top: str) -> None:
        self.top = top
        self.others: Counter[str] = Counter()
        self._text, self._ends = bytearray(), array("q", [0])
        self._sizes, self._times = array("q"), array("q")
        self._folders: list[str] = []
        self._folder_times = array("q")
        self._seen: set[tuple[int, int]] = set()
        self._walk()

    def listing(self) -> Listing:
        """What was found, refused if it is nothing."""
        if not self._sizes:
            raise _no_images(self.top, self.others)
        names = FileNames.of(np.frombuffer(self._text, np.uint8), np.frombuffer(self._ends, np.int64))
        folders = Folders(self.top, FileNames(self._folders), np.frombuffer(self._folder_times, np.int64))
        return Listing(self.top, names, np.array([self._sizes, self._times]), folders)

    def paths(self) -> Iterator[str]:
        """Paths of the files."""
        return map(self.listing().path, range(len(self._sizes))) if self._sizes else iter(())

    def _walk(self) -> None:
        """Depth first, each folder's files and folders in their common order, without recursion."""
        pending = [(b"", self._entries(b""))]
        while pending:
            above, entries = pending[-1]
            if not entries:
                pending.pop()
                continue
            name, size, time = _unpacked(entries.pop())
            path = above + name
            if size == _IS_FOLDER:
                pending.append((path + _SEPARATOR, self._entries(path + _SEPARATOR)))
            else:
                self._text += path
                self._ends.append(len(self._text))
                self._sizes.append(size)
                self._times.append(time)

    def _entries(self, folder: bytes) -> list[bytes]:
        """Image files and folders of a folder as packed entries, the last in natural order first."""
        here = os.path.join(os.fsencode(self.top), folder)
        try:
            state = os.stat(here)
            if (state.st_dev, state.st_ino) in self._seen:  # a link back to a folder above
                return []
            self._seen.add((state.st_dev, state.st_ino))
            self._folders.append(os.fsdecode(folder))
            self._folder_times.append(settled(state.st_mtime_ns))
            with os.scandir(here) as found:
                entries = [packed for entry in found if (packed := self._packed(entry))]
        except OSError as error:
            raise SourceError(
                f"{os.fsdecode(here)} cannot be listed: {error.strerror}; check its permissions."
            ) from error
        entries.sort(reverse=True)
        return entries

    def _packed(self, entry: os.DirEntry[bytes]) -> bytes:
        """Sort key, size and time of an image file or folder; nothing for what is neither."""
        name = entry.name
        if name.startswith(b"."):
            return b""
        if entry.is_dir():
            return natural_name(name) + _STATE.pack(_IS_FOLDER, 0)
        if name[name.rfind(b".") :].lower() not in _ENCODED:
            self.others[_extension(os.fsdecode(name))] += entry.is_file()
            return b""
        if entry.is_file():
            state = entry.stat()
            return natural_name(name) + _STATE.pack(state.st_size, state.st_mtime_ns)
        # A link to nothing was meant as a sample; what is neither file nor link (a pipe, a socket) was not.
        return natural_name(name) + _STATE.pack(-1, -1) if entry.is_symlink() else b""


def _unpacked(entry: bytes) -> tuple[bytes, int, int]:
    """Name, size and time of a packed entry."""
    size, time = _STATE.unpack(entry[-_STATE.size :])
    return name_of(entry[: -_STATE.size]), size, time


def _extension(path: str) -> str:
    return os.path.splitext(remote.without_query(path))[1].lower()


def _no_images(source: str, others: Counter[str]) -> SourceError:
    known = ", ".join(sorted(EXTENSIONS))
    if not others.total():
        return SourceError(f"{source} matches no files; give a folder or glob of image files ({known}).")
    found = ", ".join(f"{extension or 'none'} ({count})" for extension, count in others.most_common(8))
    zarr = (
        " A Zarr store has zarr.json or .zarray in its folder; this one was not written." if ".zarr" in source else ""
    )
    return SourceError(f"{source} holds no images; the extensions found are {found} and images have {known}.{zarr}")
