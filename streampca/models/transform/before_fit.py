"""Refusal, before any data are read, of a model to be fitted that could not be applied within a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...planning import Application
from ...planning.budget import check_budget
from ...planning.transform_pieces import Piecewise
from ...preprocessing import Frame
from ...preprocessing.sizes_for_planning import this_machine
from ...readers import Collection
from ...storage.components import RowsToCome
from ...units import parse_bytes
from ..subspace import Subspace
from .patches import patches_of
from .projection import Projection
from .write import fits, planned


@dataclass(frozen=True)
class ComponentsToCome:
    """Components of a model that is not fitted yet.

    Attributes
    ----------
    count : int
        Their number.
    dtype : dtype
        The narrower that they may have, float32 or float64.
    stored : bool
        Whether they will be on disk, or in memory throughout.
    """

    count: int
    dtype: npt.DTypeLike
    stored: bool


def check_foreseen(
    collection: Collection,
    frame: Frame,
    components: ComponentsToCome,
    *,
    makes_images: bool,
    residual: bool = False,
    whole: bool = False,
    memory: int | str | None,
) -> Application | Piecewise:
    """Refuse scores or images of a collection that could not be made with as many components, or return their plan.

    Parameters
    ----------
    collection : Collection
        Of prepared samples, not normalized yet where images are made of them.
    frame : Frame
        Of the model.
    components : ComponentsToCome
        Components of the model that are used.
    makes_images : bool
        Whether images are made, or scores.
    residual : bool
        Whether, of images, what they leave of the samples.
    whole : bool
        Whether pictures are put together of windows.
    memory : int, str or None
        Budget; the default as for `Request`.

    Returns
    -------
    Application or Piecewise
        Plan with components of their narrower dtype.

    Raises
    ------
    BudgetError
        If not even the smallest pieces fit, naming the budget that would do.
    RequestError
        If pictures are to be put together, and samples are no windows.
    """
    windows, wide = patches_of(collection, frame).windows if whole else None, np.dtype(np.float64)
    made: dict[str, Any] = {"makes_images": makes_images, "residual": residual, "windows": windows}
    kinds = (np.dtype(components.dtype), wide)
    works = [_foreseen(collection, frame, replace(components, dtype=kind), **made) for kind in kinds]
    budget, source = this_machine().budget(parse_bytes(memory))
    if not fits(works[0], budget):  # the fit says which of them it will be
        what = f"applying {components.count} components of {frame.n_features} features"
        check_budget(what, lambda count: all(fits(work, count) for work in works), budget, source)
    return planned(works[0], "", budget, workers=1)


def _foreseen(collection: Collection, frame: Frame, components: ComponentsToCome, **made: Any) -> Projection:
    """Return what is to be made, with numbers that take no memory in the place of the model's."""
    p, count, dtype = frame.n_features, components.count, np.dtype(components.dtype)
    rows = RowsToCome.of((count, *frame.sample_shape), dtype, frame.mask) if components.stored else None
    zero = np.zeros((), dtype)
    subspace = Subspace(
        np.broadcast_to(np.float64(0), p),
        np.broadcast_to(zero, (count, p)) if rows is None else rows,
        np.broadcast_to(np.float64(1), count),
    )
    return Projection(subspace, frame, collection, **made)
