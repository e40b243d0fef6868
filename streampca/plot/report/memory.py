"""Memory of a report: the budget divided between components, samples in memory at once, and drawing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, cast

import numpy as np

from ...errors import BudgetError
from ...machine import hand_back
from ...models.components import ComponentsModel
from ...models.rotation import RotatedComponents
from ...models.sample_images import FEW, sample_view
from ...planning import Application, plan_application
from ...planning.candidate_sizes import check_budget, most_that_fits
from ...planning.memory import RUNTIME_BYTES, decoding_bytes
from ...preprocessing import Prepared
from ...preprocessing.sizes_for_planning import problem_of, this_machine
from ...readers.collection import sample_dims
from ...storage.components import StoredComponents
from ...units import MIB, parse_bytes
from ..components import grid_size
from ..drawing import DPI
from ..quantile_grid import QUANTILES, quantiles_size
from ..reconstruction import LABEL, TALL
from ..series import series_size

if TYPE_CHECKING:
    from ...models.pca import PCAModel

DRAWING = 3 * MIB  # texts and layout; this and the next two are maxima measured with pictures of several shapes
LEAST_PICTURE = 14 * MIB  # least memory of the largest picture: small images have as many lines and texts
RASTERS = 1.25  # copies of the largest picture's raster: one as drawn, and a quarter for all encoded pictures
RECODED = 24  # bytes for each pixel of the largest picture while it is encoded again, in fewer bytes
PANELS = 1.5  # copies of the pixels of its panels in double precision: the pictures, and matplotlib's
MOST_DOTS = 100_000  # largest number of samples drawn as dots, or counted by cells
SCORES = 8  # scores of a sample that is drawn as a dot
DOT_BYTES = 208  # bytes of a dot: its values, and matplotlib's objects
DOTS_SHARE = 16  # dots use at most this fraction (1/16) of the budget
THUMBNAILS = 400  # largest number of samples with small images
LEAST_TILE, TILE = 12, 56  # pixels of the longer side of a small image
SHEET = 2 * MIB  # largest sheet of small images
SHEET_SHARE = 32  # small images use at most this fraction (1/32) of the budget
SHEET_COPIES = 4  # copies of all small images: bytes, reconstructions in single precision, and the sheet of both
TOGETHER = 8  # largest number of samples drawn in one picture
FEWEST = 4  # least number of these
PANELS_BESIDE = 3  # panels of a sample: it, its reconstruction and the difference
COPIES = 3  # copies of a sample in double precision besides the stored one: prepared, centred, and a spare one
IMAGES_SHARE = 2  # raw images to draw use at most this fraction (1/2) of the memory left by drawing


@dataclass(frozen=True)
class Share:
    """Division of the memory.

    Attributes
    ----------
    model : ComponentsModel
        Model with the leading components that fit, in memory.
    block_rows, ahead : int
        Samples in memory at once, and blocks read ahead.
    examining : int
        Bytes that a process needs to examine samples.
    dots : int
        Number of samples that can be drawn as dots.
    together : int
        Number of samples that can be drawn as images in one picture.
    images : int
        Bytes available for raw images.
    sheet : int
        Bytes available for small images.
    recodes : bool
        Whether there is memory to encode pictures again, in fewer bytes.
    """

    model: ComponentsModel
    block_rows: int
    ahead: int
    examining: int
    dots: int
    together: int
    images: int
    sheet: int
    recodes: bool


def share_of(memory: int | str | None, model: ComponentsModel, collection: Prepared) -> Share:
    """Divide a budget between a model and a collection prepared by the model.

    Blocks are whole storage chunks if one fits.

    Raises
    ------
    BudgetError
        If a single component and sample do not fit; names the budget that would suffice.
    """
    budget, _ = this_machine().budget(parse_bytes(memory))
    itemsize = model.components.dtype.itemsize
    count = check_room(memory, collection, model)
    if not isinstance(model, RotatedComponents):
        count = most_that_fits(lambda count: _fits(collection, count, itemsize, budget), model.n_components)
    chunk = collection.chunks.samples
    plan = _application(collection, count, itemsize, budget)
    # Whole chunks are decoded once.
    rows = plan.block_rows // chunk * chunk or plan.block_rows
    free = budget - _drawing_bytes(collection, count, itemsize, budget)
    images = free // IMAGES_SHARE
    together = min(TOGETHER, images // _sample_bytes(collection))
    recodes = RECODED * DPI**2 * _inches(collection) <= free - images
    examining = plan.memory_estimate.total + DOT_BYTES * _dots(budget) + SHEET_COPIES * _sheet(budget)
    reading = (rows, plan.ahead, examining)
    return Share(leading(model, count), *reading, _dots(budget), together, images, _sheet(budget), recodes)


def check_room(memory: int | str | None, collection: Prepared, model: ComponentsModel | None = None) -> int:
    """Refuse a budget that is too small for a report of a collection, even with the fewest components.

    Parameters
    ----------
    memory : int, str or None
        Budget, as for `fit`.
    collection : Prepared
        Collection prepared by the model.
    model : ComponentsModel, optional
        The model; by default one that is still to be fitted.

    Returns
    -------
    int
        The fewest components.

    Raises
    ------
    BudgetError
        If it is too small; names the budget that would suffice.
    """
    budget, source = this_machine().budget(parse_bytes(memory))
    what = f"a report on samples of {collection.n_features} features"
    itemsize = 8 if model is None else model.components.dtype.itemsize
    # Rotated scores are of all components before rotation, which are held beside the rotated ones.
    least = 2 * model.n_components if isinstance(model, RotatedComponents) else 1
    check_budget(what, lambda memory: _fits(collection, least, itemsize, memory), budget, source)
    return least


def _fits(collection: Prepared, count: int, itemsize: int, memory: int) -> bool:
    try:
        _application(collection, count, itemsize, memory)
    except BudgetError:
        return False
    drawing = _drawing_bytes(collection, count, itemsize, memory)
    reading = drawing - picture_bytes(collection) + decoding_bytes(problem_of(collection), 1)  # between figures
    return max(drawing, reading) + IMAGES_SHARE * FEWEST * _sample_bytes(collection) <= memory


def _application(collection: Prepared, count: int, itemsize: int, memory: int) -> Application:
    return plan_application(
        problem=problem_of(collection),
        components_shape=(count, collection.n_features),
        component_itemsize=itemsize,
        out_bytes=8 * (2 * count + 4),  # scores in double precision, their squares, and sums of these
        memory=memory - DOT_BYTES * _dots(memory) - SHEET_COPIES * _sheet(memory),
        ahead=1,
    )


def _sheet(memory: int) -> int:
    return min(SHEET, memory // SHEET_SHARE // SHEET_COPIES)


def _dots(memory: int) -> int:
    return min(MOST_DOTS, memory // DOTS_SHARE // DOT_BYTES)


def _drawing_bytes(collection: Prepared, count: int, itemsize: int, memory: int) -> int:
    """Return the bytes in memory while figures are drawn: components as loaded and as rows, mean, and drawing."""
    drawing = DRAWING + picture_bytes(collection) + DOT_BYTES * _dots(memory) + RUNTIME_BYTES
    drawing += collection.preparing.held_bytes
    return drawing + prod(collection.sample_shape) * (2 * count * itemsize + 4 * 8)


def picture_bytes(collection: Prepared) -> int:
    """Return the bytes of the largest figure: unusual samples, samples at quantiles, or components with scores."""
    few, one = (sample_view(collection.sample_shape, sample_dims(collection), slices=count) for count in (FEW, 1))
    pixels = max(TOGETHER * PANELS_BESIDE * prod(few.picture_shape), len(QUANTILES) ** 2 * prod(one.picture_shape))
    return max(LEAST_PICTURE, round(RASTERS * 4 * DPI**2 * _inches(collection) + PANELS * 8 * pixels))


def _inches(collection: Prepared) -> float:
    """Return the square inches of the largest figure."""
    few, one = (sample_view(collection.sample_shape, sample_dims(collection), slices=count) for count in (FEW, 1))
    blocks = 2  # columns of samples with reconstructions and differences
    rows, columns = TOGETHER // blocks, blocks * PANELS_BESIDE
    unusual = grid_size(few, rows, columns, side=blocks * LABEL, rest=1.0, least=TALL)
    return max(prod(unusual), prod(quantiles_size(one, len(QUANTILES))), prod(series_size(few, SCORES)))


def _sample_bytes(collection: Prepared) -> int:
    """Return the bytes of a sample while it is drawn with others."""
    return collection.raw.row_bytes + COPIES * 8 * prod(collection.sample_shape)


def leading(model: ComponentsModel, count: int) -> ComponentsModel:
    """Return the model with its first components in memory, or the model itself if it already holds just these."""
    if isinstance(model, RotatedComponents):
        pca = cast("PCAModel", leading(model.rotated.pca, model.n_components))
        return replace(model, rotated=replace(model.rotated, pca=pca))
    if count >= model.n_components and not isinstance(model.components, StoredComponents):
        return model
    components = np.asarray(model.components[:count])
    hand_back()  # memory used for decoding
    return replace(
        model,
        components=components,
        explained_variance=model.explained_variance[:count],
        residual_bound=model.residual_bound[:count],
        angle_bound=model.angle_bound[:count],
        error_bound=model.error_bound[:count],
    )
