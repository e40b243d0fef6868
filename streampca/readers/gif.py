"""Animated GIF files: one given alone is a collection of its frames; in a folder each file is one image."""

from __future__ import annotations

import math
import os
import threading
from typing import IO, Any, Unpack

import numpy as np
from PIL import GifImagePlugin

from ..arrays import Array
from ..errors import SourceError
from .collection import Collection, State, refuse_key
from .image_files.opened_image import check_size, decoding
from .stored.array import ArrayCollection, StoredArray
from .stored.files import FileStates, Reopening, opened
from .stored.layout import Box, SampleAxes

_TAIL = 1024  # bytes at the end of the file in which GIF's trailer is looked for, as padding can follow it


def open_gif(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open the frames of an animated GIF, in colour, as they are shown; axes are ``frame, y, x, channel``."""
    refuse_key(key, source)
    with decoding(source), opened(source) as file:
        _check_whole(file, source)
        image = GifImagePlugin.GifImageFile(file, source)
        shape = (image.height, image.width, 3)
        check_size(source, shape, np.dtype("u1"))
        array = GifFrames(source, (image.n_frames, *shape))
    dims = ("frame", "y", "x", "channel")
    return ArrayCollection(array, source=source, dims=dims, **axes)


def _check_whole(file: IO[bytes], source: str) -> None:
    """Refuse a file without GIF's trailer: Pillow would treat the frames before a break as all frames."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
    if file.read().rstrip(b"\0")[-1:] != b";":
        raise SourceError(f"{source} has no end; it was cut short, copy it again.")
    file.seek(0)


class GifFrames(Reopening, StoredArray):
    """Frames of a GIF file as an array of shape (frames, height, width, 3), uint8.

    A frame is drawn over the one before it, so that reading an earlier frame starts again at the first.
    """

    encoded = True
    _image: Any  # opened on first use
    _lock: threading.Lock

    def __init__(self, path: str, shape: tuple[int, ...]) -> None:
        self._path, self.shape, self.dtype, self._files = path, shape, np.dtype("u1"), FileStates((path,))
        self.chunk_shape = (1, *shape[1:])
        # The shown frame, the previous one and the one being drawn, each of up to 4 bytes a pixel, and its values.
        self.decode_bytes = 16 * math.prod(shape[1:3])
        self._forget()

    def read_into(self, box: Box, out: Array) -> None:
        """Draw frame after frame of the box."""
        with self._lock, decoding(self._path):
            if self._image is None:
                self._image = GifImagePlugin.GifImageFile(self._path)
            for at in range(box[0].stop - box[0].start):
                self._image.seek(box[0].start + at)
                frame = np.asarray(self._image.convert("RGB"))
                if frame.shape != self.shape[1:]:
                    raise SourceError(f"{self._path} has frames of several sizes; save them as PNG files and resize.")
                out[at] = frame[box[1:]]

    def states(self, *, now: bool = False) -> list[State]:
        """Return the state of the file."""
        return self._files.states(now=now)

    def _forget(self) -> None:
        self._image, self._lock = None, threading.Lock()

    def __del__(self) -> None:
        if getattr(self, "_image", None) is not None:
            self._image.close()
