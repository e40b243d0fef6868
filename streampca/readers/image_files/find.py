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
from .listing import ListedFolders, Listing, settled
from .names import FileNames, name_of, natural, natural_name

EXTENSIONS = frozenset(
    (
        ".png", ".jpg", ".jpeg", ".jpe", ".tif", ".tiff", ".bmp", ".dib", ".pgm", ".ppm", ".pbm", ".pnm", ".gif",
        ".webp", ".avif", ".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx", ".fits", ".fit", ".fts", ".fz",
    )
)  # fmt: skip
# Endings of images that nothing here decodes: never left out without a word, for they may be half of a collection.
UNREAD = frozenset(
    (
        ".heic", ".heif", ".hif", ".jxl", ".jxr", ".wdp", ".dcm", ".psd", ".tga", ".exr", ".hdr", ".dng", ".nef",
        ".cr2", ".cr3", ".arw", ".orf", ".rw2", ".raf", ".pef", ".czi", ".nd2", ".lif", ".svs", ".ndpi", ".vsi",
    )
)  # fmt: skip
IMAGES = EXTENSIONS | UNREAD
# Of these, files that may hold several images.
STACKS, CUBES = frozenset((".tif", ".tiff")), frozenset((".fits", ".fit", ".fts", ".fz"))
# Endings of files that hold many samples each.
MANY = frozenset((".npy", ".npz", ".h5", ".hdf5", ".he5", ".nc", ".nc4", ".cdf", ".mat", ".zarr"))
_SEPARATOR = os.fsencode(os.sep)

# What follows the sort key of an entry; a zero byte first, so that the key ends there for sorting too.
_STATE = struct.Struct(">xqq")
_IS_FOLDER = -2  # in place of a size


def find_images(source: str | Sequence[str], *, skip: bool = False) -> Listing:
    """Find the image files of a source.

    A folder is searched to the bottom, and so are the folders that a glob matches; both give files in natural order
    (s2 before s10). A list keeps its own order; folders in it are searched. With `skip`, files of a list that do not
    exist are listed too, to be left out when they are opened.
    """
    if isinstance(source, str):
        if remote.is_url(source):
            return _listing_of(sorted(_behind(source, skip), key=natural))
        if os.path.isdir(source):
            return _Search(source).listing(skip)
        paths = sorted(_matching(source, skip), key=natural) if not os.path.exists(source) else [source]
    else:
        paths = [path for item in source for path in _listed(item, skip)]
        if not paths:
            raise SourceError("the list of image files is empty; give at least two files.")
    return _listing_of(paths)


def _listing_of(paths: list[str]) -> Listing:
    root = _common_folder(paths)
    return Listing(root, FileNames(_below(root, path) for path in paths))


def _behind(url: str, skip: bool) -> list[str]:
    """Images that a URL stands for: itself, what a glob matches, or what its server lists below it."""
    if ending(url) in IMAGES and not remote.is_pattern(url):
        return [url]
    found = remote.matching(url)
    _check_kinds(url, Counter(map(ending, found)), skip)
    return [path for path in found if ending(path) in IMAGES]


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


def _listed(item: str, skip: bool) -> Iterable[str]:
    if remote.is_url(item):
        return sorted(_behind(item, skip), key=natural)
    if os.path.isdir(item):
        found = _Search(item).listing(skip)
        return map(found.path, range(len(found)))
    if not skip and not os.path.isfile(item):
        raise SourceError(
            f"{item} does not exist or is not a file; take it off the list, or leave out such files by "
            '--on-bad-file skip (on_bad_file="skip").'
        )
    return [item]


def _matching(pattern: str, skip: bool) -> list[str]:
    matches = glob.glob(pattern, recursive=True)
    files = [path for path in matches if os.path.isfile(path)]
    images = [path for path in files if ending(path) in IMAGES]
    kinds = Counter(map(ending, files))
    # With ** the files of a matching folder match by themselves.
    if not images or "**" not in pattern:
        for folder in filter(os.path.isdir, matches):
            search = _Search(folder)
            kinds.update(search.kinds)
            images.extend(search.paths())
    _check_kinds(pattern, kinds, skip)
    return images


def has_images(folder: str) -> bool:
    """Return whether there is an image file below a folder; Zarr stores are not searched."""
    for here, folders, names in os.walk(folder, followlinks=True):
        if any(ending(name) in IMAGES and not name.startswith(".") for name in names):
            return True
        # A link back to a folder above would be walked for ever.
        above = os.path.realpath(here) + os.sep
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and ending(name) != ".zarr"
            and not above.startswith(os.path.realpath(os.path.join(here, name)) + os.sep)
        ]
    return False


def _check_kinds(source: str, kinds: Counter[str], skip: bool) -> None:
    """Refuse files, so many of each ending, without images, or of which a part would be left out without a word."""
    images, unread, arrays, others = (
        Counter({kind: count for kind, count in kinds.items() if count and kind in those})
        for those in (EXTENSIONS, UNREAD, MANY, kinds.keys() - IMAGES)
    )
    if not images and not unread:
        raise _no_images(source, others)
    if (images + unread).total() < arrays.total():
        raise SourceError(
            f"{source} holds {arrays.total()} files of arrays ({_counted(arrays)}) and {(images + unread).total()} of "
            f"images ({_counted(images + unread)}), which do not make one collection; give a glob of one kind, such as "
            f"'*{arrays.most_common(1)[0][0]}', or a list of files."
        )
    if unread and not skip:
        raise SourceError(
            f"{source} holds {unread.total()} files of image formats that are not read ({_counted(unread)}) and "
            f"{images.total()} others; save them as TIFF or PNG, give a glob or list of the others, or leave them out "
            'by --on-bad-file skip (on_bad_file="skip").'
        )


class _Search:
    """The image files below a folder, links followed, hidden ones left out, in natural order.

    Names and states are added to flat arrays as the folders are walked in order; entries of one folder at a time, and
    of those above it, are held as Python's, 100 bytes a file.
    """

    def __init__(self, top: str) -> None:
        self.top = top
        self.kinds: Counter[str] = Counter()  # files of each ending
        self._text, self._ends = bytearray(), array("q", [0])
        self._sizes, self._times = array("q"), array("q")
        self._folders: list[str] = []
        self._folder_times = array("q")
        self._seen: set[tuple[int, int]] = set()
        self._walk()

    def listing(self, skip: bool) -> Listing:
        """Return the files found; refuse none, or files that do not make one collection."""
        _check_kinds(self.top, self.kinds, skip)
        return self._found()

    def _found(self) -> Listing:
        names = FileNames.of(np.frombuffer(self._text, np.uint8), np.frombuffer(self._ends, np.int64))
        folders = ListedFolders(self.top, FileNames(self._folders), np.frombuffer(self._folder_times, np.int64))
        return Listing(self.top, names, np.array([self._sizes, self._times]), folders)

    def paths(self) -> Iterator[str]:
        """Paths of the files."""
        return map(self._found().path, range(len(self._sizes)))

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
        tail = name[name.rfind(b".") :].lower()
        # The general way takes 2 us, two seconds for a million.
        kind = os.fsdecode(tail) if tail.startswith(b".") and tail != b".gz" else ending(os.fsdecode(name))
        if entry.is_dir():
            if kind != ".zarr":
                return natural_name(name) + _STATE.pack(_IS_FOLDER, 0)
            self.kinds[kind] += 1  # a store is like a file, of which no part is an image
            return b""
        if kind not in IMAGES:
            self.kinds[kind] += entry.is_file()
            return b""
        size, time = -1, -1
        if entry.is_file():
            state = entry.stat()
            size, time = state.st_size, state.st_mtime_ns
        elif not entry.is_symlink():
            return b""  # a link to nothing was meant as a sample; what is neither (a pipe, a socket) was not
        self.kinds[kind] += 1
        return natural_name(name) + _STATE.pack(size, time)


def _unpacked(entry: bytes) -> tuple[bytes, int, int]:
    """Name, size and time of a packed entry."""
    size, time = _STATE.unpack(entry[-_STATE.size :])
    return name_of(entry[: -_STATE.size]), size, time


def ending(path: str) -> str:
    """Return the ending that names a file's format, in small letters; ``.gz`` after it says that it is packed."""
    return os.path.splitext(remote.without_query(path).lower().removesuffix(".gz"))[1]


def _counted(extensions: Counter[str]) -> str:
    return ", ".join(f"{extension or 'none'} ({count})" for extension, count in extensions.most_common(8))


def _no_images(source: str, others: Counter[str]) -> SourceError:
    known = ", ".join(sorted(EXTENSIONS))
    if not others.total():
        return SourceError(f"{source} matches no files; give a folder or glob of image files ({known}).")
    zarr = (
        " A Zarr store has zarr.json or .zarray in its folder; this one was not written."
        if ".zarr" in source
        else " Images whose names end otherwise are known by their content in a list: @list.txt, or a list of paths."
    )
    return SourceError(
        f"{source} holds no images; the extensions found are {_counted(others)} and images have {known}.{zarr}"
    )
