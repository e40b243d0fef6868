"""Float dtypes of the steps, the check for whole numbers beyond float64, and the error for a bad sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..errors import DataError

MOST_DIGITS = 2**53 - 1  # every whole number up to here is a float64


class SampleError(DataError):
    """A sample that cannot be prepared.

    Parameters
    ----------
    sample : int
        Its number among the given samples.
    problem : str
        Text that follows its name in a message.
    """

    def __init__(self, sample: int, problem: str) -> None:
        super().__init__(f"sample {sample} of those given {problem}")
        self.sample, self.problem = sample, problem

    def of(self, named: Callable[[int], str], start: int = 0) -> DataError:
        """Return the error with the sample's name in a collection, for a block that begins at `start`."""
        return DataError(f"{named(start + self.sample)} {self.problem}")


def check_digits(rows: Array, raw: np.dtype[Any]) -> None:
    """Refuse whole numbers with more digits than float64, which would be rounded before they are centred."""
    if has_float_digits(rows, raw):
        return
    sample = int(np.argmax(((rows < -MOST_DIGITS) | (rows > MOST_DIGITS)).any(axis=1)))
    value = max((int(rows[sample].min()), int(rows[sample].max())), key=abs)
    raise SampleError(
        sample,
        f"holds {value}, and float64 holds whole numbers up to {MOST_DIGITS} (2^53 - 1) only; subtract an offset from "
        "all samples, or store them as float64 if their last digits do not matter.",
    )


def has_float_digits(values: Array, raw: np.dtype[Any]) -> bool:
    """Return whether float64 holds all values of an array that are whole numbers in a dtype."""
    if raw.kind not in "iu" or raw.itemsize < 8:
        return True
    return not values.size or (int(values.min()) >= -MOST_DIGITS and int(values.max()) <= MOST_DIGITS)


def is_coarse(dtype: npt.DTypeLike) -> bool:
    """Return whether values are whole numbers of 8 bits: float32 has 16 bits more, wherever zero is."""
    return np.dtype(dtype).itemsize == 1


def float_of(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype of weighted values: float32 for integers of up to 16 bits and float32, else float64."""
    return np.result_type(np.dtype(dtype), np.float32)
