"""Samples arranged by their scores: what changes along two components, shown by real images.

References
----------
T. Hastie, R. Tibshirani, J. Friedman, "The Elements of Statistical Learning", 2nd edition, 2009, figure 14.23 (the
handwritten threes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..errors import RequestError
from ..models.kernel_pca import KernelPCAModel
from ..models.sample_images import SampleView, view_of
from .components import explain, scale_of
from .drawing import SMALL, AxesGrid, draw, new_figure
from .reconstruction import prepared_rows
from .score_plots import check_axes, ring, scores_of
from .score_plots import scores as draw_scores

if TYPE_CHECKING:
    from ..models.model import Model
    from .drawing import AnyFigure
    from .score_plots import Labels

CUT = (0.5, 99.5)  # percentiles of the pixels of all images that are drawn black and white
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SCATTER, TILE = 6.0, 1.3  # widths in inches of the scatter and of an image


def quantiles(
    model: Model,
    scores: Any,
    samples: Any,
    quantiles: Sequence[float] = QUANTILES,
    axes: tuple[int, int] = (1, 2),
    labels: Labels | None = None,
    figure: AnyFigure | None = None,
    n_samples: int | None = None,
) -> AxesGrid:
    """Draw samples by two scores, and images of the samples nearest to a grid of quantiles in the same arrangement.

    Parameters
    ----------
    model : Model
        The model.
    scores : array of shape (n, k), collection or path of one
        As `PCAModel.transform` returns them.
    samples : array, sequence or mapping of images, collection, or a source for `open_collection`
        Raw images, ``samples[i]`` for row i of the scores; only the rows of `nearest_to_quantiles` are read.
    quantiles : sequence of float
        Between 0 and 1, ascending.
    axes : (int, int)
        Which components, counted from 1: the first grows to the right, the second upwards.
    labels : sequence of shape (n,), optional
        One for each row of the scores.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; a new figure by default.
    n_samples : int, optional
        Total number of samples, if `scores` are of some of them only; shown in the title.

    Returns
    -------
    ndarray of Axes of shape (len(quantiles), len(quantiles))
        Axes of the images, on one scale; the extreme 0.5 % of the pixels at either end are black and white. The scatter
        beside them has lines at the quantiles, and rings around the shown samples.

    Raises
    ------
    RequestError
        If quantiles do not ascend from 0 to 1, `axes` are not two components of the scores, scores are not finite, or
        labels are not one for each sample.
    ModelError
        If a sample is not of the shape the model was fitted on.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> figure = streampca.plot.quantiles(model, model.transform(digits), digits)
    """
    scores = scores_of(scores)
    nearest = nearest_to_quantiles(scores, quantiles, axes)
    check_axes(axes, model.n_scores)
    width, height = quantiles_size(view_of(model.as_images(), 1), len(quantiles))
    figure = figure if figure is not None else new_figure(SCATTER + width, max(4.5, height))
    left, right = cast("AxesGrid", figure.subfigures(1, 2, width_ratios=(SCATTER, width)))
    # The scatter shows where in the cloud the images on the right are.
    ax = draw_scores(model, scores, labels, axes, left.subplots(), n_samples)
    x, y = (np.asarray(scores[:, number - 1]) for number in axes)
    for draw_line, values in ((ax.axvline, x), (ax.axhline, y)):
        for value in np.quantile(values, quantiles):
            draw_line(value, color="black", linestyle=":", linewidth=0.7)
    ring(ax, x[nearest.ravel()], y[nearest.ravel()])
    return quantile_images(model, scores, samples, quantiles, axes, right)


def quantile_images(
    model: Model,
    scores: Any,
    samples: Any,
    quantiles: Sequence[float] = QUANTILES,
    axes: tuple[int, int] = (1, 2),
    figure: AnyFigure | None = None,
) -> AxesGrid:
    """Draw images of the samples nearest to a grid of quantiles of two scores, arranged by these.

    Parameters
    ----------
    model, scores, samples, quantiles, axes, figure
        As for `quantiles`, which draws a scatter beside them.

    Returns
    -------
    ndarray of Axes of shape (len(quantiles), len(quantiles))
        Axes of the images, on one scale.

    Raises
    ------
    RequestError, ModelError
        As `quantiles`.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> grid = streampca.plot.quantile_images(model, model.transform(digits), digits)
    """
    nearest = nearest_to_quantiles(scores_of(scores), quantiles, axes)
    check_axes(axes, model.n_scores)
    samples, view, count = model.raw_samples(samples), view_of(model.as_images(), 1), len(quantiles)
    figure = figure if figure is not None else new_figure(*quantiles_size(view, count))
    grid: AxesGrid = figure.subplots(count, count, squeeze=False)
    _arranged(grid, model, view, samples, nearest)
    _name_quantiles(figure, grid, quantiles, axes, model.noun)
    explain(figure, view, "value")
    return grid


def quantiles_size(view: SampleView, count: int) -> tuple[float, float]:
    """Return the size in inches of images of `count` quantiles each way."""
    return TILE * count, 0.8 + (TILE - 0.1) * count * view.aspect


def nearest_to_quantiles(
    scores: Any, quantiles: Sequence[float] = QUANTILES, axes: tuple[int, int] = (1, 2)
) -> npt.NDArray[np.intp]:
    """Return the rows whose scores are nearest to the crossings of quantiles of two components.

    Parameters
    ----------
    scores : array of shape (n, k), collection or path of one
        As `PCAModel.transform` returns them.
    quantiles : sequence of float of length q
        Between 0 and 1, ascending.
    axes : (int, int)
        Which components, counted from 1.

    Returns
    -------
    ndarray of int of shape (q, q)
        Rows in the arrangement of a picture: the first component grows to the right, the second upwards, from the last
        row to the first. One sample can be nearest to several crossings. Cost: n q^2 operations, n numbers in memory.

    Raises
    ------
    RequestError
        If quantiles do not ascend from 0 to 1, `axes` are not two components of the scores, or scores are empty or not
        finite.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> streampca.plot.nearest_to_quantiles(model.transform(digits)).shape
    (5, 5)
    """
    scores = scores_of(scores)
    check_axes(axes, scores.shape[1])
    levels = np.asarray(quantiles, np.float64)
    if levels.size == 0 or not (levels[0] >= 0 and levels[-1] <= 1 and np.all(np.diff(levels) > 0)):
        raise RequestError(f"quantiles are {tuple(quantiles)}; give numbers between 0 and 1 that ascend.")
    if len(scores) == 0:
        raise RequestError("there are no scores to take quantiles of; give 1 row or more.")
    x, y = (np.asarray(scores[:, number - 1], np.float64) for number in axes)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise RequestError(f"scores along the components {axes} hold NaN or infinity; leave such samples out.")
    rows = [
        # The nearest sample in both scores, as hardly any sample lies on a crossing.
        [int(np.argmin((x - right) ** 2 + (y - up) ** 2)) for right in np.quantile(x, levels)]
        for up in np.quantile(y, levels)[::-1]
    ]
    return np.array(rows, np.intp)


def _arranged(grid: AxesGrid, model: Model, view: SampleView, samples: Any, nearest: npt.NDArray[np.intp]) -> None:
    """Draw prepared samples on one scale; they are read and reduced to pictures one at a time."""
    # A sample that is nearest to several crossings is read once.
    rows, where = np.unique(nearest, return_inverse=True)
    of_kernel = model.image_frame if isinstance(model, KernelPCAModel) else None
    frame = of_kernel or model.frame
    pictures = np.empty((len(rows), *view.picture_shape), model.basis.components.dtype)  # float32 if that holds them
    for at, row in enumerate(rows.tolist()):
        prepared = prepared_rows(model, [np.asarray(samples[row])], of_kernel)
        pictures[at] = view.one(frame.images(prepared)[0])
    limits = _without_extremes(view, pictures)
    for ax, at in zip(grid.ravel(), where.ravel().tolist(), strict=True):
        draw(ax, pictures[at], limits, captions=view.captions, x=view.along)


def _without_extremes(view: SampleView, pictures: Array) -> Array:
    """Return limits without the extreme pixels, as one hot pixel would make all images black."""
    values, low, high = pictures[np.isfinite(pictures)], -np.inf, np.inf
    if len(values) and not view.is_line:
        low, high = map(float, np.percentile(values, CUT, overwrite_input=True))
    limits = np.stack([scale_of(view, np.clip(picture, low, high)) for picture in pictures])
    return np.stack([limits[..., 0].min(axis=0), limits[..., 1].max(axis=0)], axis=-1)


def _name_quantiles(
    figure: AnyFigure, grid: AxesGrid, quantiles: Sequence[float], axes: tuple[int, int], noun: str
) -> None:
    for ax, share in zip(grid[0], quantiles, strict=True):
        ax.set_title(f"{100 * share:g} %", fontsize=SMALL)
    for ax, share in zip(grid[::-1, 0], quantiles, strict=True):
        ax.set_ylabel(f"{100 * share:g} %", fontsize=SMALL)
    figure.suptitle(
        f"samples nearest to quantiles of {noun} {axes[0]} (across) and {axes[1]} (upwards)", fontsize=SMALL
    )
