"""Refusal, before any data are read, of a fit whose model could not be applied within a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...planning import Application
from ...planning.candidate_sizes import check_budget
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
    """Size of the components of a model that is not fitted yet.

    Attributes
    ----------
    count : int
        Number of components.
    dtype : dtype
        The narrower of the possible dtypes, float32 or float64.
    stored : bool
        True if they will be on disk, False if in memory throughout.
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
    device: str | None = None,
) -> Application | Piecewise:
    """Plan the scores or images of a collection with that many components; refuse them if they exceed the budget.

    Parameters
    ----------
    collection : Collection
        Prepared samples, not normalized yet if images are computed from them.
    frame : Frame
        Frame of the model.
    components : ComponentsToCome
        Components of the model that are used.
    makes_images : bool
        True for images, False for scores.
    residual : bool
        Images are replaced by the samples minus the images.
    whole : bool
        Pictures are assembled from windows.
    memory : int, str or None
        Budget; the default is that of `Request`.
    device : str, optional
        Device that multiplies.

    Returns
    -------
    Application or Piecewise
        Plan with components of their narrower dtype.

    Raises
    ------
    BudgetError
        If not even the smallest pieces fit; names a sufficient budget, or the device.
    RequestError
        If pictures are to be assembled, and samples are not windows.
    """
    windows = patches_of(collection, frame).windows if whole else None
    works = []
    for dtype in (np.dtype(components.dtype), np.dtype(np.float64)):
        subspace = _placeholder(frame, replace(components, dtype=dtype))
        works.append(
            Projection(subspace, frame, collection, makes_images=makes_images, residual=residual, windows=windows)
        )
    budget, source = this_machine().budget(parse_bytes(memory))
    # Only the fit decides the dtype: the budget must suffice for one, and the remedy must suffice for both.
    if not fits(works[0], budget):
        subject = f"applying {components.count} components of {frame.n_features} features"
        check_budget(subject, lambda size: all(fits(work, size) for work in works), budget, source)
    there = replace(works[0], subspace=replace(works[0].subspace, device=device or ""))
    return planned(there, "", budget, workers=1)


def _placeholder(frame: Frame, components: ComponentsToCome) -> Subspace:
    """Return a subspace with the sizes of the model's, whose arrays take no memory."""
    p, count, dtype = frame.n_features, components.count, np.dtype(components.dtype)
    rows = RowsToCome.of((count, *frame.sample_shape), dtype, frame.mask) if components.stored else None
    return Subspace(
        np.broadcast_to(np.float64(0), p),
        np.broadcast_to(np.zeros((), dtype), (count, p)) if rows is None else rows,
        np.broadcast_to(np.float64(1), count),
    )
