"""Finds the image files a folder, a glob or a list stands for, and keeps their names small."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from ..errors import SourceError

EXTENSIONS = frozenset(
    (".png", ".jpg", ".jpeg", ".jpe", ".tif", ".tiff", ".bmp", ".dib", ".pgm", ".ppm", ".pbm", ".pnm", ".gif")
)


class FileNames(Sequence[str]):
    """File names as one run of bytes and its cuts: about their own length each, where a list of str takes 60 more.

    Parameters
    ----------
    names : iterable of str
        In order.
    """

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._text = b"".join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return os.fsdecode(self._text[self._ends[at] : self._ends[at + 1]])


def find_images(source: str | Sequence[str]) -> tuple[str, FileNames]:
    """Return the folder that image files lie under and their paths from there.

    A folder is searched to the bottom and a glob may hold ``**``; both give files in natural order (s2 before s10).
    A list keeps its own order; folders in it are searched.

    Raises
    ------
    SourceError
        If there are none.
    """
    if isinstance(source, str):
        if os.path.isdir(source):
            within = len(os.path.join(source, ""))
            found = sorted((path[within:] for path in _images_under(source)), key=natural)
            return source, FileNames(found)
        paths = sorted(_matching(source), key=natural) if not os.path.exists(source) else [source]
    else:
        paths = [path for item in source for path in _listed(item)]
        if not paths:
            raise SourceError("the list of image files is empty; give at least two files.")
    root = _common_folder(paths)
    return root, FileNames(os.path.relpath(path, root or ".") for path in paths)


def _common_folder(paths: list[str]) -> str:
    folders = {os.path.dirname(path) for path in paths}
    if len({os.path.isabs(folder) for folder in folders}) > 1:
        folders = {os.path.abspath(folder) for folder in folders}
    return os.path.commonpath(folders)


def natural(path: str) -> tuple[Any, ...]:
    """Sort key that puts numbers in names in the order of their values, folder by folder."""
    parts = [re.split(r"([0-9]+)", part) for part in path.split(os.sep)]
    # Text and numbers alternate, so that equal positions always compare alike.
    return ([[int(piece) if odd % 2 else piece for odd, piece in enumerate(part)] for part in parts], path)


def _listed(item: str) -> list[str]:
    if os.path.isdir(item):
        return sorted(_images_under(item), key=natural)
    if not os.path.isfile(item):
        raise SourceError(f"{item} does not exist or is not a file; take it off the list.")
    return [item]


def _matching(pattern: str) -> list[str]:
    matches = glob.glob(pattern, recursive=True)
    files = [path for path in matches if os.path.isfile(path)]
    # With ** the files of a matching folder match by themselves.
    if not files:
        files = [path for folder in matches for path in _files_under(folder)]
    return _only_images(files, pattern)


def _images_under(folder: str) -> list[str]:
    return _only_images(_files_under(folder), folder)


def _only_images(files: Iterable[str], source: str) -> list[str]:
    """Keep files by their extension; refuse to find none."""
    others: Counter[str] = Counter()
    images = []
    for path in files:
        extension = os.path.splitext(path)[1].lower()
        if extension in EXTENSIONS:
            images.append(path)
        else:
            others[extension or "none"] += 1
    if images:
        return images
    known = ", ".join(sorted(EXTENSIONS))
    if not others:
        raise SourceError(f"{source} matches no files; give a folder or glob of image files ({known}).")
    found = ", ".join(f"{extension} ({count})" for extension, count in others.most_common(8))
    zarr = (
        " A Zarr store has zarr.json or .zarray in its folder; this one was not written." if ".zarr" in source else ""
    )
    raise SourceError(f"{source} holds no images; the extensions found are {found} and images have {known}.{zarr}")


def _files_under(folder: str) -> Iterator[str]:
    """Yield files below a folder, links followed, hidden ones left out; refuse what cannot be listed."""
    seen = set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        state = os.stat(here)
        if (state.st_dev, state.st_ino) in seen:  # a link back to a folder above
            folders.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = os.path.join(here, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def _refuse(error: OSError) -> None:
    raise SourceError(f"{error.filename} cannot be listed: {error.strerror}; check its permissions.") from error
