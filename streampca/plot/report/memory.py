"""Memory of a report: the budget shared between components, samples in memory at once, and drawing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...errors import BudgetError
from ...machine import hand_back
from ...models.pca import PCAModel
from ...models.sample_images import FEW, sample_view
from ...planning import Application, plan_application
from ...planning.budget import check_budget, most_that_fits
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

DRAWING = 3 * MIB  # texts and layout; this and the next two are the most that pictures of several shapes took
LEAST_PICTURE = 14 * MIB  # of the largest picture, however small images are: lines and texts are as many
RASTERS = 1.25  # of the largest picture: as it is drawn, and a quarter for all pictures as encoded
RECODED = 24  # bytes a pixel of the largest picture while it is encoded again, in fewer bytes
PANELS = 1.5  # of the pixels of all its panels in double precision: as they are, and as matplotlib holds them
MOST_DOTS = 100_000  # samples drawn as dots, or counted by cells
SCORES = 8  # of a sample that is drawn as a dot
DOT_BYTES = 208  # of one: its values, and what matplotlib makes of them
DOTS_SHARE = 16  # of the budget, at most
THUMBNAILS = 400  # samples with small images, at most
LEAST_TILE, TILE = 12, 56  # pixels of their longer side
SHEET = 2 * MIB  # of small images, at most
SHEET_SHARE = 32  # of the budget, at most
SHEET_COPIES = 4  # of all small images: as bytes, their reconstructions in single precision, and the sheet made of both
TOGETHER = 8  # samples drawn in one picture, at most
FEWEST = 4  # ... and at least
PANELS_BESIDE = 3  # of a sample: it, its reconstruction and the difference
COPIES = 3  # of a sample in double precision beside the stored one: prepared, centred, and one to spare
IMAGES_SHARE = 2  # of what drawing leaves: raw images held to be drawn


@dataclass(frozen=True)
class Share:
    """Shares of the memory.

    Attributes
    ----------
    model : PCAModel
        The model with those of its leading components, in memory, that fit.
    block_rows, ahead : int
        Samples in memory at once, and blocks read ahead.
    dots : int
        Samples whose values may be held, to be drawn as dots.
    together : int
        Samples that may be drawn as images in one picture.
    images : int
        Bytes of raw images that may be held.
    sheet : int
        Bytes of small images that may be held.
    recodes : bool
        Whether there is room to encode pictures again, in fewer bytes.
    """

    model: PCAModel
    block_rows: int
    ahead: int
    dots: int
    together: int
    images: int
    sheet: int
    recodes: bool


def share_of(memory: int | str | None, model: PCAModel, collection: Prepared) -> Share:
    """Share a budget between a model and a collection, prepared as the model prepares it.

    Blocks are whole storage chunks where one fits.

    Raises
    ------
    BudgetError
        If not even one component and one sample fit, naming the budget that would do.
    """
    budget, _ = this_machine().budget(parse_bytes(memory))
    itemsize = model.components.dtype.itemsize
    check_room(memory, collection, itemsize)
    count = most_that_fits(lambda count: _fits(collection, count, itemsize, budget), model.n_components)
    chunk = collection.chunks.samples
    plan = _application(collection, count, itemsize, budget)
    rows = plan.block_rows // chunk * chunk or plan.block_rows
    free = budget - _drawing_bytes(collection, count, itemsize, budget)
    left = free // IMAGES_SHARE
    together = min(TOGETHER, left // _sample_bytes(collection))
    recodes = RECODED * DPI**2 * _inches(collection) <= free - left
    return Share(leading(model, count), rows, plan.ahead, _dots(budget), together, left, _sheet(budget), recodes)


def check_room(memory: int | str | None, collection: Prepared, itemsize: int = 8) -> None:
    """Refuse a budget that a report of a collection does not fit, however few components are used.

    Parameters
    ----------
    memory : int, str or None
        The budget, as for `fit`.
    collection : Prepared
        As the model prepares it.
    itemsize : int
        Bytes of a value of a component.

    Raises
    ------
    BudgetError
        Names the budget that would do.
    """
    budget, source = this_machine().budget(parse_bytes(memory))
    what = f"a report on samples of {collection.n_features} features"
    check_budget(what, lambda memory: _fits(collection, 1, itemsize, memory), budget, source)


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
        n_features=collection.n_features,
        n_components=count,
        component_itemsize=itemsize,
        out_bytes=8 * (2 * count + 4),  # scores in double precision, their squares, and what is made of them
        memory=memory - DOT_BYTES * _dots(memory) - SHEET_COPIES * _sheet(memory),
        ahead=1,
    )


def _sheet(memory: int) -> int:
    return min(SHEET, memory // SHEET_SHARE // SHEET_COPIES)


def _dots(memory: int) -> int:
    return min(MOST_DOTS, memory // DOTS_SHARE // DOT_BYTES)


def _drawing_bytes(collection: Prepared, count: int, itemsize: int, memory: int) -> int:
    """Bytes in memory while figures are drawn: the components as loaded and as rows, the mean, and drawing."""
    drawing = DRAWING + picture_bytes(collection) + DOT_BYTES * _dots(memory) + RUNTIME_BYTES + collection.held_bytes
    return drawing + prod(collection.sample_shape) * (2 * count * itemsize + 4 * 8)


def picture_bytes(collection: Prepared) -> int:
    """Bytes of the largest figure: unusual samples, those at quantiles, or components beside their scores."""
    few, one = (sample_view(collection.sample_shape, sample_dims(collection), slices=count) for count in (FEW, 1))
    pixels = max(TOGETHER * PANELS_BESIDE * prod(few.picture_shape), len(QUANTILES) ** 2 * prod(one.picture_shape))
    return max(LEAST_PICTURE, round(RASTERS * 4 * DPI**2 * _inches(collection) + PANELS * 8 * pixels))


def _inches(collection: Prepared) -> float:
    """Square inches of the largest figure."""
    few, one = (sample_view(collection.sample_shape, sample_dims(collection), slices=count) for count in (FEW, 1))
    blocks = 2  # of a sample, its reconstruction and the difference, side by side
    rows, columns = TOGETHER // blocks, blocks * PANELS_BESIDE
    unusual = grid_size(few, rows, columns, side=blocks * LABEL, rest=1.0, least=TALL)
    return max(prod(unusual), prod(quantiles_size(one, len(QUANTILES))), prod(series_size(few, SCORES)))


def _sample_bytes(collection: Prepared) -> int:
    """Bytes of one sample while it is drawn with others."""
    return collection.raw.row_bytes + COPIES * 8 * prod(collection.sample_shape)


def leading(model: PCAModel, count: int) -> PCAModel:
    """Return the model with its first components in memory; itself if it holds these and no more."""
    if count >= model.n_components and not isinstance(model.components, StoredComponents):
        return model
    bound, components = model.variance_bound, np.asarray(model.components[:count])
    hand_back()  # what decoding them left
    return replace(
        model,
        components=components,
        explained_variance=model.explained_variance[:count],
        error_bound=model.error_bound[:count],
        angle_bound=model.angle_bound[:count],
        variance_bound=None if bound is None else bound[:count],
        statistic=None,
    )
