"""Application of maps to rows, with an error that names a sample that is not finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...accumulators.finite import incomplete_rows
from ...arrays import Array
from ...errors import DataError
from ...preprocessing import Frame, SampleError
from ...preprocessing.learned import SampleKeys

RowMap = Callable[[Array], Array]
Named = Callable[[int], str]  # the name of a sample by its number, such as `Collection.named`


@dataclass(frozen=True)
class OfNumbered:
    """A map of rows that depends on the samples' groups or dates: ``function(rows, frame=..., start=first)``."""

    function: Callable[..., Array]
    frame: Frame

    def with_keys(self, keys: SampleKeys | None) -> OfNumbered:
        """Return the map for samples with these groups and dates."""
        return replace(self, frame=replace(self.frame, keys=keys))

    def starting_at(self, start: int) -> RowMap:
        """Return the map of the rows of samples from index `start` on."""
        return partial(self.function, frame=self.frame, start=start)


@dataclass(frozen=True)
class OfSparse:
    """A map of dense rows, or of sparse ones (CSR), which it multiplies as they are."""

    function: RowMap

    def __call__(self, rows: Array) -> Array:
        """Map rows."""
        return self.function(rows)


def applied(
    function: RowMap | OfNumbered,
    rows: Array,
    named: Named,
    start: int = 0,
    *,
    frame: Frame | None = None,
    missing: str = "error",
    fills_in: bool = False,
) -> Array:
    """Map rows of features, those of samples from index `start` on; a `frame` prepares raw rows first.

    Samples that are not finite are refused if `missing` is "error", with a remedy for models for which "em" is possible
    if `fills_in`; otherwise `function` treats them.

    Raises
    ------
    DataError
        If a sample is not finite, or cannot be normalized; names the first.
    """
    with np.errstate(invalid="ignore"):  # infinity minus infinity; an error names the sample instead
        try:
            rows = rows if frame is None else frame.rows(rows, start)
            result = (function.starting_at(start) if isinstance(function, OfNumbered) else function)(rows)
        except SampleError as error:
            raise error.of(named, start) from None
        # The result is smaller than the rows, and not finite if they are not; with no components it is empty.
        checked = result if result.size else rows
        finite = missing != "error" or rows.dtype.kind != "f" or np.isfinite(np.sum(checked, dtype=np.float64))
    if not finite:
        refuse_bad(named, rows, start, fills_in=fills_in)
    return result


def refuse_bad(named: Named, rows: Array, start: int, *, fills_in: bool = False) -> None:
    """Refuse rows, those of samples from index `start` on, if any is not finite.

    Raises
    ------
    DataError
        Names the first.
    """
    bad = incomplete_rows(rows)
    if len(bad):
        observed = ', or use what is there, with --missing em (missing="em")' if fills_in else ""
        raise DataError(
            f"{named(start + int(bad[0]))} holds NaN or infinity, which has no scores; leave the sample out, with "
            f'--missing drop-samples (missing="drop-samples"), which gives it scores of NaN{observed}.'
        )
