"""Scores in the order of the samples, or along a coordinate such as time, beside their components."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Array
from ..errors import RequestError
from ..models.rotation import RotatedPCAModel
from ..models.sample_images import FEW, SampleView, layout_of, view_of
from ..units import format_shape
from .components import check_components
from .drawing import BLUE, GREY, LITERAL, SMALL, AxesGrid, draw, new_figure
from .score_plots import scores_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..models.model import Model
    from .drawing import AnyFigure

BINS = 1_000  # parts of a long series, of which the smallest and the largest score are drawn
PAGE, TALL, WIDEST = 8.0, 0.85, 2.2  # inches: width of the figure, height and largest width of a component
CAPTIONED = 0.9  # width in inches of each of several pictures, enough for its caption


def series(
    model: Model,
    scores: Any,
    along: Array | None = None,
    name: str = "sample",
    count: int = 8,
    figure: AnyFigure | None = None,
) -> AxesGrid:
    """Draw the first components as images, each beside its scores in the order of the samples.

    Parameters
    ----------
    model : Model
        As for `mean_and_components`.
    scores : array of shape (n, k), collection or path of one
        Result of `PCAModel.transform`; NaN leaves a gap, and a sample between two gaps is drawn as a dot.
    along : ndarray of shape (n,), optional
        Positions of the samples along the horizontal axis: numbers, or datetime64; by default numbers from 0.
    name : str
        Label of that axis.
    count : int, default=8
        Components to draw, at most those of the scores.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; a new figure by default.

    Returns
    -------
    ndarray of Axes of shape (components, 2)
        Axes of the images, with outlines of missing pixels, and of the scores. Of more than 2000 samples, the smallest
        and the largest score in each of 1000 equal parts are drawn, or in more of them, so that no part spans a gap.

    Raises
    ------
    RequestError
        If `count` is less than 1, or `along` is not one value for each sample.
    ModelError
        If the model is an embedding.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=3)
    >>> axes = streampca.plot.series(model, model.transform(digits))
    """
    whole = model if isinstance(model, RotatedPCAModel) else check_components(model)
    scores = scores_of(scores)
    n, count = len(scores), min(count, scores.shape[1], whole.n_components)
    if count < 1:
        raise RequestError(f"count is {count}; draw at least 1 component.")
    where = np.arange(n) if along is None else np.asarray(along)
    if where.shape != (n,):
        raise RequestError(f"along has the shape {format_shape(where.shape)} for {n} samples; give one value for each.")
    images = model.as_images()
    view = view_of(images, FEW)
    wide, _ = _panel(view)
    figure = figure if figure is not None else new_figure(*series_size(view, count))
    # All scores share the horizontal axis, labelled below the last.
    grid: AxesGrid = figure.subplots(count, 2, squeeze=False, width_ratios=(wide, PAGE - wide), sharex="col")
    components = view.read(images.components, 0, count)
    for number, ((left, right), pictures) in enumerate(zip(grid, components, strict=True)):
        draw(left, pictures, signed=True, captions=view.captions, x=view.along)
        right.axhline(0, color=GREY, linewidth=0.5)
        _line(right, *_shortened(where, np.asarray(scores[:, number], np.float64)))
        share = 100 * whole.explained_variance_ratio[number]
        right.set_title(f"component {number + 1}: {share:.3g} %", fontsize=SMALL, loc="left")
        right.tick_params(labelsize=SMALL)
        right.locator_params(axis="y", nbins=3)
        right.margins(x=0.01)
        right.spines[["top", "right"]].set_visible(False)
    if where.dtype.kind == "M":
        _as_dates(grid[-1, 1])
    grid[-1, 1].set_xlabel(name, fontsize=SMALL, **LITERAL)
    return grid


def series_size(view: SampleView, count: int) -> tuple[float, float]:
    """Return the size in inches of a figure with `count` components."""
    return PAGE, (_panel(view)[1] + 0.3) * count + 0.4


def _panel(view: SampleView) -> tuple[float, float]:
    """Return the width and the height in inches of a component."""
    if len(view.positions) == 1:
        return float(np.clip(TALL / view.aspect, 0.5, WIDEST)), TALL
    wide = CAPTIONED * layout_of(view.picture_shape).columns
    return wide, wide * view.aspect


def _shortened(where: Array, values: Array) -> tuple[Array, Array]:
    """Return a series to draw as a line; a long one as the smallest and the largest value of equal parts."""
    if len(values) <= 2 * BINS:
        return where, values
    starts = np.linspace(0, len(values), BINS, endpoint=False).astype(int)
    # A gap ends one part and begins another: the extremes of a part that spans it would be joined across it.
    gaps = np.flatnonzero(np.diff(np.isnan(values))) + 1
    starts = np.union1d(starts, gaps)
    ends = [np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)]
    return np.repeat(where[starts], 2), np.stack(ends, axis=1).ravel()


def _line(ax: Axes, where: Array, values: Array) -> None:
    """Draw a series as a line with gaps, and values between two gaps as dots, which a line would leave out."""
    ax.plot(where, values, color=BLUE, linewidth=0.8)
    missing = np.pad(np.isnan(values), 1, constant_values=True)
    alone = ~missing[1:-1] & missing[:-2] & missing[2:]
    if alone.any():
        ax.plot(where[alone], values[alone], ".", color=BLUE, markersize=2)


def _as_dates(ax: Any) -> None:
    """Label an axis of dates by years, months or days, depending on their range."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    # These classes of matplotlib have no type annotations.
    untyped: Any = AutoDateLocator, ConciseDateFormatter
    locator = untyped[0](minticks=3, maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(untyped[1](locator))
