"""Maps of rows that refuse a sample they make no number of, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DataError
from ...preprocessing import Frame, SampleError
from ...preprocessing.learned import SampleKeys

Array = npt.NDArray[Any]
RowMap = Callable[[Array], Array]
Named = Callable[[int], str]  # the name of a sample by its number, such as `Collection.named`


@dataclass(frozen=True)
class OfNumbered:
    """A map of rows to images that goes by the numbers of the samples: ``function(rows, frame=..., start=first)``."""

    function: Callable[..., Array]
    frame: Frame

    def of(self, keys: SampleKeys | None) -> OfNumbered:
        """Return the map for samples of these groups and dates."""
        return replace(self, frame=replace(self.frame, keys=keys))

    def at(self, start: int) -> RowMap:
        """Return the map of rows of samples from number `start` on."""
        return partial(self.function, frame=self.frame, start=start)


def applied(
    function: RowMap | OfNumbered,
    rows: Array,
    named: Named,
    start: int = 0,
    *,
    frame: Frame | None = None,
    missing: str = "error",
) -> Array:
    """Map rows of features, of samples from number `start` on; raw rows if there is a `frame`, which prepares them.

    Samples that are not finite are refused if `missing` is "error"; otherwise the map is left to follow that rule.

    Raises
    ------
    DataError
        If a sample is not finite, or cannot be normalized; names the first.
    """
    with np.errstate(invalid="ignore"):  # infinity less infinity; the sample is named instead
        try:
            rows = rows if frame is None else frame.rows(rows, start)
            result = (function.at(start) if isinstance(function, OfNumbered) else function)(rows)
        except SampleError as error:
            raise error.of(named, start) from None
        seen = result if result.size else rows  # without components there are no scores
        finite = missing != "error" or rows.dtype.kind != "f" or np.isfinite(np.sum(seen, dtype=np.float64))
    if not finite:
        refuse_bad(named, rows, start)
    return result


def refuse_bad(named: Named, rows: Array, start: int) -> None:
    """Refuse rows of samples from number `start` on, if any is not finite.

    Raises
    ------
    DataError
        Names the first.
    """
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise DataError(
            f"{named(start + int(bad[0]))} holds NaN or infinity, which has no scores; leave the sample out, with "
            '--missing drop-samples (missing="drop-samples"), which gives it scores of NaN, or use what is there, with '
            '--missing em (missing="em").'
        )
