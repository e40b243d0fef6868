"""`weighted_pieces`: cut the rows of a block that have a weight into pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def weighted_pieces(
    block: Array, weights: npt.NDArray[np.float64] | None, rows: int
) -> Iterator[tuple[npt.NDArray[np.intp], Array]]:
    """Yield pieces of at most `rows` rows, none of weight 0: places in the block, and rows (a view if they adjoin)."""
    kept = np.arange(len(block)) if weights is None else np.flatnonzero(weights)
    for start in range(0, len(kept), rows):
        some = kept[start : start + rows]
        yield some, block[some[0] : some[-1] + 1] if len(some) == some[-1] - some[0] + 1 else block[some]
