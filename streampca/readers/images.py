"""A folder, glob or list of image files, one sample a file."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import machine
from ..collection import Array, Collection, digest, file_state, refuse_key
from ..errors import SourceError
from ..units import MIB, format_shape
from . import pnm
from .array import ArrayCollection, StoredArray
from .axes import Axis, Box, Selection
from .bitmap import open_bitmap
from .files import FileNames, find_images
from .picture import Picture, decoding
from .quiet import quiet
from .threads import for_each
from .tiff import opened_page

# Headers looked at on opening, spread over the files; the others are checked when they are decoded.
_LOOKED_AT = 64

Kind = tuple[tuple[int, ...], np.dtype[Any]]


def open_images(
    source: str | Sequence[str],
    *,
    key: str | None = None,
    sample_axes: Sequence[Axis] | None = None,
    select: Selection | None = None,
) -> Collection:
    """Open image files of one size and mode; axes are ``sample, y, x`` and, in colour, ``channel``."""
    root, names = find_images(source)
    label = source if isinstance(source, str) else f"a list of {len(names)} image files"
    refuse_key(key, label)
    array = ImageFiles(root, names, label, _common_kind(root, names, label))
    dims = ("sample", "y", "x", "channel")[: len(array.shape)]
    return ImageCollection(array, source=label, dims=dims, sample_axes=sample_axes, select=select)


class ImageCollection(ArrayCollection):
    """Image files as samples."""

    def where(self, index: int) -> str:
        """Path of the file, from where the source was named."""
        files = self._files()
        return super().where(index) if files is None else files.path(self.layout.place(index)[0])

    def sample_names(self) -> Sequence[str] | None:
        """Paths of the files below their common folder, where each is a sample."""
        files, taken = self._files(), self.layout.index[0]
        if files is None or not isinstance(taken, slice):
            return None
        return files.names if taken == slice(0, len(files.names)) else files.names[taken]

    def _files(self) -> ImageFiles | None:
        return self.array if isinstance(self.array, ImageFiles) and self.layout.outer == (0,) else None


class ImageFiles(StoredArray):
    """Image files as one array of shape (files, height, width[, channels]).

    Parameters
    ----------
    root : str
        The folder they lie under.
    names : FileNames
        Their paths from there.
    label : str
        What messages call them all.
    kind : tuple
        Shape and dtype of each.
    """

    def __init__(self, root: str, names: FileNames, label: str, kind: Kind) -> None:
        self.names = names
        self._root, self._label, self._kind = root, label, kind
        self.shape, self.dtype = (len(names), *kind[0]), kind[1]
        self.chunk_shape = (1, *kind[0])
        # Each thread: the picture (Pillow keeps 4 bytes for a colour pixel), its values, and the file's buffers.
        self.decode_bytes = machine.cores() * (3 * math.prod(kind[0]) * kind[1].itemsize + MIB)

    def path(self, index: int) -> str:
        """Path of one file."""
        return os.path.join(self._root, self.names[index])

    def read_into(self, box: Box, out: Array) -> None:
        """Decode each file of the box, some at a time."""

        def read_one(at: int) -> None:
            path = self.path(box[0].start + at)
            picture = read_picture(path)
            _check_kind(path, (picture.shape, picture.dtype), self._kind, self._label)
            out[at] = picture[box[1:]]

        with quiet():
            for_each(read_one, box[0].stop - box[0].start, math.prod(self.shape[1:]) * self.dtype.itemsize)

    def fingerprint(self) -> str:
        """Digest of every file's name, size and time."""
        return digest([(name, *file_state(self.path(at))) for at, name in enumerate(self.names)])


def read_kind(path: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape, (height, width) or (height, width, channels), and dtype of an image, from its header."""
    with _opened(path) as picture:
        return picture.shape, picture.dtype


def read_picture(path: str) -> Array:
    """Decode an image file, shape (height, width) or (height, width, channels).

    Raises
    ------
    SourceError
        If it is broken, cut short, claims to be larger than it can be, has several frames or colours that are neither
        grey nor RGB; the message names the file.
    """
    with _opened(path) as picture:
        pixels = picture.load()
    if pixels.shape != picture.shape or pixels.dtype != picture.dtype:
        raise SourceError(
            f"{path} decodes to {format_shape(pixels.shape)} {pixels.dtype} and its header says "
            f"{format_shape(picture.shape)} {picture.dtype}; save it again."
        )
    return pixels


@contextmanager
def _opened(path: str) -> Iterator[Picture]:
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed by the with below; errors of opening are told apart
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}; check that it is there.") from error
    with file, decoding(path):
        magic = file.read(8)
        file.seek(0)
        if magic[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            with opened_page(path) as picture:
                yield picture
        elif magic[:1] == b"P" and magic[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6"):
            header = pnm.read_header(file)
            yield Picture(header.shape, header.dtype, lambda: pnm.read_pixels(file, header))
        else:
            yield open_bitmap(file, path)


def _common_kind(root: str, names: FileNames, label: str) -> Kind:
    """Shape and dtype of some files spread over the list; all must have the same."""
    count = len(names)
    looked_at = sorted({at * (count - 1) // _LOOKED_AT for at in range(_LOOKED_AT + 1)})
    kinds = {path: read_kind(path) for path in (os.path.join(root, names[at]) for at in looked_at)}
    common = Counter(kinds.values()).most_common(1)[0][0]
    for path, kind in kinds.items():
        _check_kind(path, kind, common, label)
    return common


def _check_kind(path: str, kind: Kind, common: Kind, label: str) -> None:
    if kind != common:
        raise SourceError(
            f"{path} is {_say(kind)}, unlike most images of {label} ({_say(common)}); convert it to that, "
            "or leave it out."
        )


def _say(kind: Kind) -> str:
    return f"{format_shape(kind[0])} {kind[1]}"
