"""Masks and factors with one value per pixel from files: ``.npy``, FITS, and for masks any image."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..errors import BudgetError, SourceError, first_line
from ..machine import memory_limit
from ..readers.fits import read_first_image
from ..readers.image_files.decode import Kind, format_kind, read_picture
from ..readers.image_files.find import MANY
from ..readers.image_files.names import ending
from ..readers.npy import read_header
from ..readers.stored.files import opened
from ..storage import remote
from ..storage.disk import expanded
from ..units import MIB, budget_size, format_bytes
from .preparation import is_mask

_WORDS = {"mask": "valid", "scale": "area"}  # words that ask for values computed from the data
COPIES = 4  # copies in memory while a file is read: as stored, as numbers, as compared and as a mask
SMALL = 16 * MIB  # always read, as importing the package takes more memory
FITS = (".fits", ".fit", ".fts", ".fits.gz")


def read_mask(path: str, memory: int | None = None) -> npt.NDArray[np.bool_]:
    """Read a mask of the pixels to keep: those that are not 0 (in an image, not black; alpha is ignored).

    Raises
    ------
    SourceError
        If the file cannot be read, or is not a mask.
    BudgetError
        If reading it takes more than `memory` bytes, by default half of the machine's limit.
    """
    values = _values(path, "mask", memory)
    if not is_mask(values):
        raise SourceError(
            f"mask {path} is not an array of True and False, or of 0 and 1; save it as a boolean .npy file."
        )
    mask: npt.NDArray[np.bool_] = values != 0
    return mask


def read_scale(path: str, memory: int | None = None) -> npt.NDArray[np.float64]:
    """Read factors, one per pixel, from a ``.npy`` or FITS file; raises the errors of `read_mask`."""
    return _values(path, "scale", memory).astype(np.float64)


def _values(path: str, what: str, memory: int | None) -> Array:
    """Return the numbers of a file; for a colour image, True where a pixel is not black."""

    def check(kind: Kind) -> None:
        (shape, dtype), allowed = kind, memory_limit()[0] // 2 if memory is None else memory
        needed = COPIES * math.prod(map(int, shape)) * max(dtype.itemsize, 8 if what == "scale" else 1)
        if needed > max(allowed, SMALL):
            raise BudgetError(
                f"{what} {path} is {format_kind(kind)}, reading it takes {format_bytes(needed)}, and memory allows "
                f"{format_bytes(allowed)}; give the {what} of one image, or set memory to at least "
                f"{budget_size(needed)}."
            )

    path = expanded(path)
    if not remote.is_url(path) and not os.path.exists(path):
        raise SourceError(f"{what} {path} does not exist; check the path, or give {_WORDS[what]!r}.")
    if path.lower().endswith(".npy"):
        values = _npy(path, what, check)
    elif path.lower().endswith(FITS):
        image = read_first_image(path, check)
        if image is None:
            raise SourceError(f"{what} {path} holds no image; save the array as a .npy file.")
        values = image
    elif what == "mask" and ending(path) not in MANY:
        picture = read_picture(path, check)
        colours = picture if picture.ndim == 2 or picture.shape[-1] in (1, 3) else picture[..., :-1]  # without alpha
        values = colours if picture.ndim == 2 else np.asarray(colours.any(axis=-1))
    else:
        images = ", or of a mask an image" if what == "mask" else ""
        raise SourceError(f"{what} {path} is not a .npy or FITS file{images}; save it as one of these.")
    if values.dtype.kind not in "biuf" or not values.ndim:
        raise SourceError(
            f"{what} {path} holds {values.dtype} values of shape {values.shape}; save an array of numbers."
        )
    return values


def _npy(path: str, what: str, check: Callable[[Kind], None]) -> Array:
    try:
        with opened(path) as file:
            if file.read(6) == b"\x93NUMPY":
                file.seek(0)
                header = read_header(file, f"{what} {path}")
                check((header.shape, header.dtype))
            file.seek(0)
            values = np.load(file, allow_pickle=False)
    except SourceError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(
            f"{what} {path} cannot be read: {first_line(error)}; give a .npy file of numbers, or of True and False."
        ) from None
    if not isinstance(values, np.ndarray):
        values.close()
        raise SourceError(f"{what} {path} holds several arrays; save the one as a .npy file.")
    return values
