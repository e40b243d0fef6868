"""What is wrong with samples that have no scores, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..readers import Collection

Array = npt.NDArray[Any]


def refuse_bad(collection: Collection, rows: Array, start: int) -> None:
    """Refuse rows of a collection, from sample `start` on, if any is not finite.

    Raises
    ------
    DataError
        Names the first.
    """
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise DataError(
            f"{collection.named(start + int(bad[0]))} holds NaN or infinity, which has no scores; leave the sample "
            "out or fill the values in."
        )
