"""`weighted_pieces`: cut the rows of a block that have a weight into pieces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..arrays import Array


def weighted_pieces(
    block: Array, weights: npt.NDArray[np.float64] | None, rows: int
) -> Iterator[tuple[npt.NDArray[np.intp], Array]]:
    """Yield pieces of at most `rows` rows of nonzero weight: positions in the block, and rows (a view if adjacent)."""
    kept = np.arange(len(block)) if weights is None else np.flatnonzero(weights)
    for start in range(0, len(kept), rows):
        places = kept[start : start + rows]
        yield places, block[places[0] : places[-1] + 1] if len(places) == places[-1] - places[0] + 1 else block[places]
