"""Table of files with their names, sizes and times, which can be stored.

Listing a million files takes seconds from memory and minutes from a network disk. A stored listing is used again while
the time of change of every folder is the same, as adding, renaming and removing files changes it.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import time
import uuid
import zipfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...arrays import Array
from ...errors import OutputError, RequestError
from ...storage import remote
from ...storage.disk import named_beside, open_regular
from ..collection import State, group_size, span_of
from ..tags import TagRules
from .names import FileNames

_FORMAT = "streampca listing 1"

# A folder that changed within this time before it was listed can change again without a new time of change, whose
# resolution is limited (2 s on FAT).
_SETTLED_NS = 2 * 10**9

_MOST_INODE, _UNKNOWN = 2**63 - 1, -1


class ListedFolders(NamedTuple):
    """Listed folders: the topmost one, names below it, and the time of each one's last change (ns, 0: unknown)."""

    top: str
    names: FileNames
    times: Array

    def unchanged(self) -> bool:
        """Return whether every folder exists and has not changed."""
        try:
            return all(
                os.stat(os.path.join(self.top, name)).st_mtime_ns == time
                for name, time in zip(self.names, self.times.tolist(), strict=True)
            )
        except OSError:
            return False


class Listing:
    """Files in order.

    Attributes
    ----------
    again : callable or None
        Function that finds the current files of the same source; set by the caller if these are all of them.
    reading : TagRules
        Rules for the tags of the files.
    left_out : tuple of str
        System folders that the search for the files did not enter.
    """

    def __init__(
        self, root: str, names: FileNames, states: Array | None = None, folders: ListedFolders | None = None
    ) -> None:
        self.root, self.names, self.folders = root, names, folders
        self.again: Callable[[], Listing] | None = None
        self.reading = TagRules()
        self.left_out: tuple[str, ...] = ()
        self._known = states
        self._groups: list[State] | None = None

    @classmethod
    def of(cls, paths: Sequence[str]) -> Listing:
        """Return the listing of paths, as their common folder, if they are written with one, and names below it."""
        if any(map(remote.is_url, paths)):
            root = remote.common_folder(paths)
        else:
            if len(set(map(os.path.isabs, paths))) > 1:
                paths = [os.path.abspath(path) for path in paths]
            root = os.path.commonpath({os.path.dirname(path) for path in paths} or {""})
        start = os.path.join(root, "")
        if not all(path.startswith(start) for path in paths):
            root = start = ""
        return cls(root, FileNames(path[len(start) :] for path in paths))

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> str:
        """Return the path of one file."""
        return os.path.join(self.root, self.names[index])

    def unnamed(self, source: str) -> Iterator[str]:
        """Yield the paths of the files if `source` is not a path or glob, because it was a list."""
        if not os.path.exists(source) and not glob.has_magic(source):
            yield from map(self.path, range(len(self)))

    @property
    def states(self) -> Array:
        """Sizes and times of change, int64, shape (2, n), at the time of opening or of the first access."""
        return self._asked[:2]

    @property
    def identities(self) -> Array:
        """Devices and inodes, int64, shape (2, n), which all paths of one file share; -1 for a missing file.

        Files behind URLs are identified by their URL alone.
        """
        if len(self) and remote.is_url(self.path(0)):
            return np.array([(0, hash(name)) for name in self.names], np.int64).T
        return self._asked[2:]

    @property
    def _asked(self) -> Array:
        if self._known is None:
            self._known = states_of(self.root, self.names)
        return self._known

    def repeats(self) -> dict[int, int]:
        """Return the index of each file that occurs earlier, under the same path or another, with the earlier index."""
        devices, inodes = self.identities
        order = np.lexsort((inodes, devices))  # stable: the first of each comes first
        same = (np.diff(devices[order]) == 0) & (np.diff(inodes[order]) == 0) & (inodes[order][1:] != _UNKNOWN)
        # Each entry of a run of equal files points to the run's beginning.
        first = np.maximum.accumulate(np.where(np.append(False, same), 0, np.arange(len(order))))
        again = np.flatnonzero(np.append(False, same))
        return dict(sorted(zip(order[again].tolist(), order[first[again]].tolist(), strict=True)))

    def select(self, places: Array) -> Listing:
        """Return the files at some ascending indices; the listing itself if these are all."""
        if len(places) == len(self):
            return self
        mask = np.zeros(len(self), np.bool_)
        mask[places] = True
        listing = Listing(self.root, self.names.select(mask), None if self._known is None else self._known[:, mask])
        listing.reading = self.reading
        return listing

    def first(self, count: int) -> Listing:
        """Return the first files, unaffected by files added after them."""
        listing = Listing(self.root, self.names.select(np.arange(len(self)) < count))
        listing.reading = self.reading
        return listing

    def settled(self, seconds: float) -> int:
        """Return the number of complete files: all but the last, and also that one if it is older than `seconds`."""
        changed = os.stat(self.path(len(self) - 1)).st_mtime_ns
        return len(self) if changed <= time.time_ns() - seconds * 1e9 else len(self) - 1

    def groups(self, *, now: bool = False) -> list[State]:
        """Return states of runs of files: names, sizes, times, and rules for tags; see `Collection.states`."""
        if now:
            return self.current()._grouped(group_size(len(self)))
        if self._groups is None:
            self._groups = self._grouped(group_size(len(self)))
        return self._groups

    def current(self) -> Listing:
        """Return the listing with current states, searched again if folders have changed since."""
        unchanged = self.folders is not None and self.folders.unchanged()
        listing = Listing(self.root, self.names) if self.again is None or unchanged else self.again()
        listing.reading = self.reading
        return listing

    def _grouped(self, size: int) -> list[State]:
        groups, n, (text, ends) = [], len(self), self.names.held
        for start in range(0, n, size):
            stop = min(start + size, n)
            cuts = ends[start : stop + 1]
            names = text[cuts[0] : cuts[-1]], cuts - cuts[0]
            state = _digest(*names, self.states[:, start:stop], np.array(self.reading))
            groups.append(State(start, span_of(self.path(start), self.path(stop - 1)), state))
        return groups

    def __getstate__(self) -> dict[str, Any]:
        # States belong to the process that opened the listing; another one asks the system again.
        return self.__dict__ | {"_known": None, "folders": None}


def states_of(root: str, names: FileNames) -> Array:
    """Return sizes in bytes, times of last change in ns, devices and inodes, shape (4, n); -1 for a missing file.

    For URLs only the first two are returned, shape (2, n).
    """
    paths = (os.path.join(root, name) for name in names)
    if len(names) and remote.is_url(os.path.join(root, names[0])):
        return np.array(remote.state_numbers(list(paths)), np.int64).T
    states = array("q")
    for path in paths:
        try:
            state = os.stat(path)
            # Some file systems use all 64 bits for the inode, and some give every file the inode 0.
            inode = state.st_ino & _MOST_INODE or _UNKNOWN
            states.extend((state.st_size, state.st_mtime_ns, state.st_dev & _MOST_INODE, inode))
        except OSError:
            states.extend((-1, -1, -1, _UNKNOWN))
    return np.frombuffer(states, np.int64).reshape(-1, 4).T


def settled(time_ns: int) -> int:
    """Return a folder's time of change, or 0 if it is too recent to detect a later change."""
    return time_ns if time_ns < time.time_ns() - _SETTLED_NS else 0


def listing_in(table: Mapping[str, Array], folder: str) -> Listing | None:
    """Return the listing of a folder from a table, if the table is for this folder and it has not changed.

    Sizes and times of files are not taken from the table: they can change while the folder does not.
    """
    names = FileNames.of(table["folder_text"], table["folder_ends"])
    folders = ListedFolders(folder, names, table["folder_times"])
    if str(table["root"]) != os.path.realpath(folder) or not len(names) or not folders.unchanged():
        return None
    return Listing(folder, FileNames.of(table["text"], table["ends"]), None, folders)


def read_table(path: str) -> dict[str, Array] | None:
    """Read a table; None if the file does not exist."""
    if not os.path.lexists(path):
        return None
    try:
        # Opened here, as numpy would leave a file open that is not a whole archive.
        with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
            table = {name: archive[name] for name in archive.files}
        if str(table["format"]) == _FORMAT:  # whole, by the archive's checksums
            return table
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
        pass
    raise RequestError(f"{path} is there and is no listing of files; give listing another path, or remove it.")


def write_table(path: str, listing: Listing, **more: Array) -> None:
    """Write a listing and more arrays about its files to a table, atomically."""
    folders = listing.folders or ListedFolders("", FileNames(()), np.empty(0, np.int64))
    _check_outside(path, listing)
    text, ends = listing.names.held
    folder_text, folder_ends = folders.names.held
    arrays: dict[str, Any] = {
        "format": np.array(_FORMAT), "root": np.array(os.path.realpath(listing.root)),
        "text": text, "ends": ends, "states": listing.states,
        "folder_text": folder_text, "folder_ends": folder_ends, "folder_times": folders.times, **more,
    }  # fmt: skip
    # Not staged like other outputs, as several runs can write one table at the same time.
    partial = f"{named_beside(path)}.{uuid.uuid4().hex[:8]}.streampca-partial"
    try:
        os.makedirs(os.path.dirname(partial) or ".", exist_ok=True)
        with open(partial, "xb") as file:
            np.savez(file, **arrays)
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror}; give listing another path.") from error
    finally:
        with contextlib.suppress(OSError):  # after success the partial file no longer exists
            os.unlink(partial)


def _check_outside(path: str, listing: Listing) -> None:
    if listing.folders is None:
        return
    inside = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    top = os.path.realpath(listing.folders.top)
    if os.path.commonpath([inside, top]) == top:
        raise RequestError(
            f"{path} lies in {listing.folders.top}, the folder it lists, which writing it would change; give listing "
            "a path outside."
        )


def _digest(*arrays: Array) -> str:
    hasher = hashlib.sha256()
    for values in arrays:
        hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()[:16]
