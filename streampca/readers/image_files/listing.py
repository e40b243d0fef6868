"""The table of files: names, sizes and times of any number of them, kept in a file where asked.

Listing a million files takes seconds from memory and minutes from a network's disk. A listing that was kept is used
again while every folder's time of change is what it was: files are added to, renamed in and taken from a folder by
changing it.
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

from ...errors import OutputError, RequestError
from ...storage.disk import open_regular
from .. import remote
from ..collection import Array, State, group_size, span_of
from ..tags import TagRules
from .names import FileNames

_FORMAT = "streampca listing 1"

# A folder that changed so shortly before it was listed may change again within its time's resolution (FAT's is 2 s),
# and its time would not tell.
_SETTLED_NS = 2 * 10**9

_MOST_INODE, _UNKNOWN = 2**63 - 1, -1


class ListedFolders(NamedTuple):
    """Folders that were listed: the topmost, their names below it, and when each last changed (ns, 0: unknown)."""

    top: str
    names: FileNames
    times: Array

    def unchanged(self) -> bool:
        """Return whether each is there and has not changed."""
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
        Finds the files of the same source as they are now; set by who found these, where they are all there is.
    reading : TagRules
        How they are read.
    """

    def __init__(
        self, root: str, names: FileNames, states: Array | None = None, folders: ListedFolders | None = None
    ) -> None:
        self.root, self.names, self.folders = root, names, folders
        self.again: Callable[[], Listing] | None = None
        self.reading = TagRules()
        self._known = states
        self._groups: list[State] | None = None

    @classmethod
    def of(cls, paths: Sequence[str]) -> Listing:
        """Hold paths as their common folder, where they are written as below one, and names below it."""
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
        """Path of one file."""
        return os.path.join(self.root, self.names[index])

    def unnamed(self, source: str) -> Iterator[str]:
        """Paths of the files where the text a collection has for its source names none: it was a list."""
        if not os.path.exists(source) and not glob.has_magic(source):
            yield from map(self.path, range(len(self)))

    @property
    def states(self) -> Array:
        """Sizes and times of change, int64, shape (2, n), as they were when this was opened or first asked."""
        return self._asked[:2]

    @property
    def identities(self) -> Array:
        """Devices and inodes, int64, shape (2, n), which all paths of one file share; -1 for what is not there.

        Behind URLs a file is told from others by its URL alone.
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
        """Return the places of files that stand at an earlier place, too, by the same path or another, with that."""
        devices, inodes = self.identities
        order = np.lexsort((inodes, devices))  # stable: the first of each comes first
        same = (np.diff(devices[order]) == 0) & (np.diff(inodes[order]) == 0) & (inodes[order][1:] != _UNKNOWN)
        first = np.maximum.accumulate(np.where(np.append(False, same), 0, np.arange(len(order))))
        again = np.flatnonzero(np.append(False, same))
        return dict(sorted(zip(order[again].tolist(), order[first[again]].tolist(), strict=True)))

    def taken(self, places: Array) -> Listing:
        """Only the files at some ascending places; itself where these are all."""
        if len(places) == len(self):
            return self
        kept = np.zeros(len(self), np.bool_)
        kept[places] = True
        some = Listing(self.root, self.names.taken(kept), None if self._known is None else self._known[:, kept])
        some.reading = self.reading
        return some

    def first(self, count: int) -> Listing:
        """Only the first files, whatever is added behind them."""
        some = Listing(self.root, self.names.taken(np.arange(len(self)) < count))
        some.reading = self.reading
        return some

    def settled(self, seconds: float) -> int:
        """Return how many files are complete: all but the last one, and that too where it is older than so long."""
        changed = os.stat(self.path(len(self) - 1)).st_mtime_ns
        return len(self) if changed <= time.time_ns() - seconds * 1e9 else len(self) - 1

    def groups(self, *, now: bool = False) -> list[State]:
        """Return states of runs of files: names, sizes and times, and how they are read; see `Collection.states`."""
        if now:
            return self.current()._grouped(group_size(len(self)))
        if self._groups is None:
            self._groups = self._grouped(group_size(len(self)))
        return self._groups

    def current(self) -> Listing:
        """Return the files that there are now, where folders have changed since, with their states of now."""
        unchanged = self.folders is not None and self.folders.unchanged()
        found = Listing(self.root, self.names) if self.again is None or unchanged else self.again()
        found.reading = self.reading
        return found

    def _grouped(self, size: int) -> list[State]:
        found, n, (text, ends) = [], len(self), self.names.held
        for start in range(0, n, size):
            stop = min(start + size, n)
            cuts = ends[start : stop + 1]
            names = text[cuts[0] : cuts[-1]], cuts - cuts[0]
            state = _digest(*names, self.states[:, start:stop], np.array(self.reading))
            found.append(State(start, span_of(self.path(start), self.path(stop - 1)), state))
        return found

    def __getstate__(self) -> dict[str, Any]:
        # What was found is for the process that opened it; whoever needs more asks the system again.
        return self.__dict__ | {"_known": None, "folders": None}


def states_of(root: str, names: FileNames) -> Array:
    """Sizes in bytes, times of last change in nanoseconds, devices and inodes, shape (4, n); -1 for what is not there.

    Behind URLs there are the first two, shape (2, n).
    """
    paths = (os.path.join(root, name) for name in names)
    if len(names) and remote.is_url(os.path.join(root, names[0])):
        return np.array(remote.state_numbers(list(paths)), np.int64).T
    states = array("q")
    for path in paths:
        try:
            state = os.stat(path)
            # Some file systems number files by all of 64 bits, and some, by no number but 0, not at all.
            inode = state.st_ino & _MOST_INODE or _UNKNOWN
            states.extend((state.st_size, state.st_mtime_ns, state.st_dev & _MOST_INODE, inode))
        except OSError:
            states.extend((-1, -1, -1, _UNKNOWN))
    return np.frombuffer(states, np.int64).reshape(-1, 4).T


def settled(time_ns: int) -> int:
    """Return a folder's time of change, or 0 if it is too young to tell a later change by."""
    return time_ns if time_ns < time.time_ns() - _SETTLED_NS else 0


def listing_in(table: Mapping[str, Array], folder: str) -> Listing | None:
    """Return the listing of a folder that a table holds, if the table is of this folder and it has not changed.

    Sizes and times are not those of the table: they change without the folder's changing.
    """
    names = FileNames.of(table["folder_text"], table["folder_ends"])
    folders = ListedFolders(folder, names, table["folder_times"])
    if str(table["root"]) != os.path.realpath(folder) or not len(names) or not folders.unchanged():
        return None
    return Listing(folder, FileNames.of(table["text"], table["ends"]), None, folders)


def read_table(path: str) -> dict[str, Array] | None:
    """Read a table; None where there is none."""
    if not os.path.lexists(path):
        return None
    try:
        # Opened here: numpy leaves what it opened open where it is no whole archive.
        with open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
            table = {name: archive[name] for name in archive.files}
        if str(table["format"]) == _FORMAT:  # whole, by the archive's checksums
            return table
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
        pass
    raise RequestError(f"{path} is there and is no listing of files; give listing another path, or remove it.")


def write_table(path: str, listing: Listing, **more: Array) -> None:
    """Write a listing and more arrays about its files to a table: whole, or not at all."""
    folders = listing.folders or ListedFolders("", FileNames(()), np.empty(0, np.int64))
    _check_outside(path, listing)
    text, ends = listing.names.held
    folder_text, folder_ends = folders.names.held
    arrays: dict[str, Any] = {
        "format": np.array(_FORMAT), "root": np.array(os.path.realpath(listing.root)),
        "text": text, "ends": ends, "states": listing.states,
        "folder_text": folder_text, "folder_ends": folder_ends, "folder_times": folders.times, **more,
    }  # fmt: skip
    # Not as other outputs are staged: several runs may write one table at the same time.
    partial = f"{path}.{uuid.uuid4().hex[:8]}.streampca-partial"
    try:
        os.makedirs(os.path.dirname(partial) or ".", exist_ok=True)
        with open(partial, "xb") as file:
            np.savez(file, **arrays)
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error.strerror}; give listing another path.") from error
    finally:
        with contextlib.suppress(OSError):  # it is gone where it took its place
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
    found = hashlib.sha256()
    for values in arrays:
        found.update(np.ascontiguousarray(values).data)
    return found.hexdigest()[:16]
