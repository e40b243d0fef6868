"""What every accumulator offers."""

from __future__ import annotations

from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from ..errors import DataError, StreampcaError

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

MOST_DOUBLE = 1e70  # fourth powers of values up to here, of which a solver takes norms, fit float64


class NotFiniteError(DataError):
    """A block holds NaN or infinity, or values whose products overflow.

    Attributes
    ----------
    sample : int
        Position of the first such sample in the collection.
    problem : str
        What is wrong with it, in words, e.g. ``"holds NaN or infinity in 3 of 784 features"``.
    """

    def __init__(self, sample: int, problem: str) -> None:
        super().__init__(f"sample {sample} {problem}")
        self.sample = sample
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.sample, self.problem)


class Accumulator(Protocol):
    """A statistic built up from pieces of a collection.

    `kind` names the statistic where its state is stored; `axis` says along which axis the pieces are cut. `update`
    and `absorb` mutate only the accumulator itself; nothing writes to an argument, and nothing returned shares memory
    with the accumulator.
    """

    kind: str
    axis: Literal["samples", "features"]

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb a piece of shape (rows, features) whose first row (or feature) has position `at`.

        Weights, (rows,), say how often each sample counts.
        """

    def merge(self, other: Self) -> Self:
        """Return the statistic of both pieces together as a new value."""

    def absorb(self, other: Self) -> None:
        """Do what `merge` does, in place: afterwards this is the statistic of both."""

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything there is to know as plain arrays; `from_state` is its exact inverse.

        Without `copy`, large arrays may be read-only views, for writing them down at once.
        """

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Self:
        """Return the accumulator whose `state` this is."""


def is_finite(array: Array) -> bool:
    """Return whether an array holds neither NaN nor infinity, without a temporary array of its size."""
    return bool(np.isfinite(array.max(initial=0)) and np.isfinite(array.min(initial=0)))


def check_finite(total: Array) -> None:
    """Refuse a sum of products of finite samples that is not finite: no solver would make anything of it.

    Raises
    ------
    StreampcaError
        If it holds NaN or infinity.
    """
    if not is_finite(total):
        raise StreampcaError(
            "products of finite samples came out infinite or NaN, so the machine's memory or processor is faulty. "
            "Remove the checkpoint, if there is one, and fit again, on another machine if this is seen twice."
        )


def not_finite(block: Array, at: int, precision: str) -> NotFiniteError:
    """Name the first row to blame and what is wrong with it."""
    finite = np.isfinite(block) if block.dtype.kind == "f" else np.ones(block.shape, bool)
    bad_rows = np.flatnonzero(~finite.all(axis=1))
    if len(bad_rows):
        row = int(bad_rows[0])
        missing = int(np.count_nonzero(~finite[row]))
        return NotFiniteError(at + row, f"holds NaN or infinity in {missing} of its {block.shape[1]} features")
    row = int(np.argmax(np.abs(block.astype(np.float64)).max(axis=1)))
    value = float(np.abs(block[row]).max())
    remedy = "use precision='double'" if precision == "single" and value < MOST_DOUBLE else "divide all samples by that"
    return NotFiniteError(at + row, f"holds values up to {value:.3g}, whose squares overflow; {remedy}")
