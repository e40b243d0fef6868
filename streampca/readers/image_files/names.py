"""Compact storage of many file names, and their natural order."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np

from ...arrays import Array
from ...storage import remote

_DIGITS = re.compile(rb"([0-9]+)")


class FileNames(Sequence[str]):
    """File names as one run of bytes and its cuts: about their own length each, 60 bytes less than in a list of str.

    Attributes
    ----------
    held : tuple of ndarray
        The run of bytes, uint8, and its n + 1 cuts, int64.
    """

    def __init__(self, names: Iterable[str]) -> None:
        text, ends = bytearray(), array("q", [0])
        for name in names:
            text += os.fsencode(name)
            ends.append(len(text))
        self.held = np.frombuffer(text, np.uint8), np.frombuffer(ends, np.int64)

    @classmethod
    def of(cls, text: Array, ends: Array) -> FileNames:
        """Return the names in a run of bytes, given its n + 1 cuts, the first of them 0."""
        names = cls(())
        names.held = text, ends
        return names

    def __len__(self) -> int:
        return len(self.held[1]) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        text, ends = self.held
        at = range(len(ends) - 1)[index]
        return os.fsdecode(text[ends[at] : ends[at + 1]].tobytes())

    def select(self, mask: Array) -> FileNames:
        """Return the names where `mask`, n bools, is True."""
        text, ends = self.held
        lengths = np.diff(ends)
        return FileNames.of(text[np.repeat(mask, lengths)], np.concatenate([[0], np.cumsum(lengths[mask])]))


def ending(path: str) -> str:
    """Return the extension of a file's format in lower case, without a ``.gz`` after it."""
    return os.path.splitext(remote.without_query(path).lower().removesuffix(".gz"))[1]


def natural(path: str) -> bytes:
    """Return a sort key that orders numbers in names by value, folder by folder."""
    return b"\0".join(natural_name(name) for name in os.fsencode(path).split(os.fsencode(os.sep)))


def natural_name(name: bytes) -> bytes:
    """Return a sort key of a name within its folder.

    The bytes compare like the list of the name's texts and numbers followed by the name. A text ends in a zero byte,
    which no name contains, so that a shorter one comes first; a number is its digits, preceded by their count (two
    bytes, counted from 1); two zero bytes, less than any number, end the list.
    """
    pieces = _DIGITS.split(name)
    for at in range(1, len(pieces), 2):
        digits = pieces[at].lstrip(b"0")
        pieces[at] = b"\0" + (len(digits) + 1).to_bytes(2, "big") + digits
    return b"%b\0\0\0%b" % (b"".join(pieces), name)
