"""Search for the image files of a folder, a glob or a list."""

from __future__ import annotations

import glob
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from ...errors import SourceError
from ...signals import safe_point
from ...storage import remote
from ..idx import is_idx
from ..system_folders import is_system_folder, matching
from .listing import ListedFolders, Listing, settled, states_of
from .names import FileNames, ending, natural, natural_name
from .other_formats import UNREAD, format_by_ending

EXTENSIONS = frozenset(
    (
        ".png", ".jpg", ".jpeg", ".jpe", ".tif", ".tiff", ".bmp", ".dib", ".pgm", ".ppm", ".pbm", ".pnm", ".gif",
        ".webp", ".avif", ".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx", ".fits", ".fit", ".fts", ".fz",
    )
)  # fmt: skip
IMAGES = EXTENSIONS | UNREAD
# Endings among these of files that can hold several images.
STACKS, CUBES = frozenset((".tif", ".tiff")), frozenset((".fits", ".fit", ".fts", ".fz"))
# Endings of files that hold many samples each.
MANY = frozenset((".npy", ".npz", ".h5", ".hdf5", ".he5", ".nc", ".nc4", ".cdf", ".mat", ".zarr"))
_LOOKED_AT, _NAMED = 100, 4  # files of a folder without images that are examined, and IDX files that an error names


def find_images(source: str | Sequence[str], *, skip: bool = False) -> Listing:
    """Find the image files of a source.

    A folder is searched recursively, and so are the folders that a glob matches; both give files in natural order (s2
    before s10). A list keeps its own order; folders in it are searched. With `skip`, files of a list that do not exist
    are listed, too, and left out when they are opened.
    """
    left_out: list[str] = []
    if isinstance(source, str):
        if remote.is_url(source):
            return Listing.of(sorted(_behind(source, skip), key=natural))
        if os.path.isdir(source):
            return _Search(source).listing(skip)
        paths = sorted(_matching(source, skip, left_out), key=natural) if not os.path.exists(source) else [source]
    else:
        paths = [path for item in source for path in _listed(item, skip, left_out)]
        if not paths:
            raise SourceError("the list of image files is empty; give at least two files.")
    listing = Listing.of(paths)
    listing.left_out = tuple(left_out)
    return listing


def _behind(url: str, skip: bool) -> list[str]:
    """Return the images of a URL: itself, the matches of a glob, or the files that its server lists below it."""
    if ending(url) in IMAGES and not remote.is_pattern(url):
        return [url]
    paths = remote.matching(url)
    _check_kinds(url, Counter(map(ending, paths)), skip)
    return [path for path in paths if ending(path) in IMAGES]


def _listed(item: str, skip: bool, left_out: list[str]) -> Iterable[str]:
    if remote.is_url(item):
        return sorted(_behind(item, skip), key=natural)
    if os.path.isdir(item):
        listing = _Search(item).listing(skip)
        left_out += listing.left_out
        return map(listing.path, range(len(listing)))
    if not skip and not os.path.isfile(item):
        raise SourceError(
            f"{item} does not exist or is not a file; take it off the list, or leave out such files by "
            '--on-bad-file skip (on_bad_file="skip").'
        )
    return [item]


def _matching(pattern: str, skip: bool, left_out: list[str]) -> list[str]:
    matches = [*matching(pattern, left_out)]
    files = [path for path in matches if os.path.isfile(path)]
    images = [path for path in files if ending(path) in IMAGES]
    kinds = Counter(map(ending, files))
    # With ** the files of a matching folder are matches already.
    if not images or "**" not in pattern:
        for folder in filter(os.path.isdir, matches):
            search = _Search(folder)
            images.extend(os.path.join(folder, name) for name in search)
            kinds.update(search.kinds)
            left_out += search.left_out
    _check_kinds(pattern, kinds, skip)
    return images


def has_images(folder: str) -> bool:
    """Return whether there is an image file below a folder; Zarr stores are not searched."""
    try:
        return any(True for _ in _Search(folder))
    except SourceError:  # a folder that cannot be listed is reported when its images are opened
        return True


def _check_kinds(source: str, kinds: Counter[str], skip: bool) -> None:
    """Refuse files, counted by ending, that hold no images, or of which some would be left out silently."""
    images, unread, arrays, others = (
        Counter({kind: count for kind, count in kinds.items() if count and kind in endings})
        for endings in (EXTENSIONS, UNREAD, MANY, kinds.keys() - IMAGES)
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
            f"{images.total()} others{_conversion(unread)}; or give a glob or list of the others, or leave them out by "
            '--on-bad-file skip (on_bad_file="skip").'
        )


class _Search:
    """Names of the image files below a folder, in natural order; links are followed, hidden files left out.

    Attributes
    ----------
    kinds : Counter of str
        Number of files of each ending that the search has seen so far.
    left_out : list of str
        System folders that it did not enter.
    """

    def __init__(self, top: str) -> None:
        self.top = top
        self.kinds: Counter[str] = Counter()
        self.left_out: list[str] = []
        self._folders: list[str] = []
        self._times: list[int] = []
        self._seen: set[tuple[int, int]] = set()

    def __iter__(self) -> Iterator[str]:
        """Walk depth first, each folder's files and folders in their common order, without recursion."""
        pending = self._entries("")
        while pending:
            safe_point()
            path = pending.pop()
            if path.endswith(os.sep):
                pending += self._entries(path)
            else:
                yield path

    def listing(self, skip: bool) -> Listing:
        """Return the image files; refuse a folder without any, or files that do not make one collection."""
        names = FileNames(self)
        _check_kinds(self.top, self.kinds, skip)
        folders = ListedFolders(self.top, FileNames(self._folders), np.array(self._times, np.int64))
        listing = Listing(self.top, names, states_of(self.top, names), folders)
        listing.left_out = tuple(self.left_out)
        return listing

    def _entries(self, folder: str) -> list[str]:
        """Return image files and folders in a folder, folders with a separator at the end, in reverse natural order."""
        here = os.path.join(self.top, folder)
        try:
            state = os.stat(here)
            if (state.st_dev, state.st_ino) in self._seen:  # a link back to a folder above
                return []
            self._seen.add((state.st_dev, state.st_ino))
            self._folders.append(folder)
            self._times.append(settled(state.st_mtime_ns))
            with os.scandir(here) as scan:
                names = [name for entry in scan if (name := self._entry_name(entry))]
        except OSError as error:
            raise SourceError(f"{here} cannot be listed: {error.strerror}; check its permissions.") from error
        names.sort(key=lambda name: natural_name(os.fsencode(name.removesuffix(os.sep))), reverse=True)
        return [folder + name for name in names]

    def _entry_name(self, entry: os.DirEntry[str]) -> str:
        """Return the name of an image file, or of a folder with a separator at its end; empty for any other entry."""
        kind = ending(entry.name)
        if is_system_folder(entry.name) and entry.is_dir():
            self.left_out.append(entry.path)
            return ""
        if entry.name.startswith("."):
            return ""
        if entry.is_dir() and kind != ".zarr":  # a Zarr store counts as a file: no part of it is an image
            return entry.name + os.sep
        # A broken link was meant as a sample; entries that are neither files nor folders (pipes, sockets) were not.
        there = entry.is_file() or entry.is_dir() or (kind in IMAGES and entry.is_symlink())
        self.kinds[kind] += there
        return entry.name if there and kind in IMAGES else ""


def _counted(extensions: Counter[str]) -> str:
    return ", ".join(f"{extension or 'none'} ({count})" for extension, count in extensions.most_common(8))


def _conversion(kinds: Counter[str]) -> str:
    """Return what converts files of the most common of some endings that is of a known format, for an error."""
    others = ((kind, other) for kind, _ in kinds.most_common() if (other := format_by_ending(kind)) is not None)
    return next((f"; {kind} is {other.name}: {other.remedy}" for kind, other in others), "")


def _no_images(source: str, others: Counter[str]) -> SourceError:
    extensions = ", ".join(sorted(EXTENSIONS))
    literal = source.replace("[", "[[]")
    if not others.total() and not os.path.exists(source) and any(glob.iglob(literal, recursive=True)):
        return SourceError(
            f"{source} matches no files, as [ ] of a pattern stand for one of the characters between them; give "
            f"{shlex.quote(literal)}, in which [[] is a bracket."
        )
    # IDX files have no extension of their own: the first files of the folder are looked into.
    names = sorted(os.listdir(source), key=natural)[:_LOOKED_AT] if os.path.isdir(source) else []
    if arrays := list(islice((name for name in names if is_idx(os.path.join(source, name))), _NAMED)):
        return SourceError(
            f"{source} holds no image files but IDX files ({', '.join(arrays)}), each an array of images or their "
            f"labels; give one of them, such as {os.path.join(source, arrays[0])}."
        )
    if not others.total():
        if remote.is_url(source) and not remote.is_pattern(source):
            return SourceError(f"{source} does not exist, or holds no files that are listed; check the address.")
        return SourceError(f"{source} matches no files; give a folder or glob of image files ({extensions}).")
    if conversion := _conversion(others):
        return SourceError(f"{source} holds no images that are read, but {_counted(others)}{conversion}.")
    zarr = (
        " A Zarr store has zarr.json or .zarray in its folder; this one was not written."
        if ".zarr" in source
        else " Images whose names end otherwise are known by their content in a list: @list.txt, or a list of paths."
    )
    return SourceError(
        f"{source} holds no images; the extensions found are {_counted(others)} and images have {extensions}.{zarr}"
    )
