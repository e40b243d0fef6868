"""Masks and factors, one value a pixel, from files: ``.npy``, FITS, and for masks any image."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from ..errors import SourceError, first_line
from ..readers import remote
from ..readers.collection import Array
from ..readers.fits import read_first_image
from ..readers.image_files.decode import read_picture
from ..storage.disk import expanded

_WORDS = {"mask": "valid", "scale": "area"}  # what is no path, and means what the data say
FITS = (".fits", ".fit", ".fts", ".fits.gz")


def read_mask(path: str) -> npt.NDArray[np.bool_]:
    """Read which pixels to keep: those that are not 0 (not black, in an image; alpha does not count)."""
    values = _values(path, "mask")
    if values.dtype.kind == "f" and not np.isin(values, (0, 1)).all():
        raise SourceError(
            f"mask {path} is not an array of True and False, or of 0 and 1; save it as a boolean .npy file."
        )
    kept: npt.NDArray[np.bool_] = values != 0
    return kept


def read_scale(path: str) -> npt.NDArray[np.float64]:
    """Read factors, one a pixel, from a ``.npy`` or FITS file; raises as `read_mask`."""
    return _values(path, "scale").astype(np.float64)


def _values(path: str, what: str) -> Array:
    """Numbers of a file; of an image in colour, whether a pixel is not black."""
    path = expanded(path)
    if not remote.is_url(path) and not os.path.exists(path):
        raise SourceError(f"{what} {path} does not exist; check the path, or give {_WORDS[what]!r}.")
    if path.lower().endswith(".npy"):
        values = _npy(path, what)
    elif path.lower().endswith(FITS):
        found = read_first_image(path)
        if found is None:
            raise SourceError(f"{what} {path} holds no image; save the array as a .npy file.")
        values = found
    elif what == "mask":
        picture = read_picture(path)
        values = picture if picture.ndim == 2 else np.asarray(picture[..., :3].any(axis=-1))
    else:
        raise SourceError(f"{what} {path} is not a .npy or FITS file; save it as one of these.")
    if values.dtype.kind not in "biuf" or not values.ndim:
        raise SourceError(
            f"{what} {path} holds {values.dtype} values of shape {values.shape}; save an array of numbers."
        )
    return values


def _npy(path: str, what: str) -> Array:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(
            f"{what} {path} cannot be read: {first_line(error)}; give a .npy file of numbers, or of True and False."
        ) from None
    if not isinstance(values, np.ndarray):
        values.close()
        raise SourceError(f"{what} {path} holds several arrays; save the one as a .npy file.")
    return values
