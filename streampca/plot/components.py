"""Images of a model: its mean, its components, and walks from the mean along components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array, Float64
from ..errors import RequestError
from ..models.components import ComponentsModel
from ..models.kernel_pca import KernelPCAModel
from ..models.model import Model, require
from ..models.sample_images import FEW, SampleView, factors_of, limits_of, mean_pictures, short_text, view_of
from .drawing import LITERAL, SMALL, AxesGrid, draw, new_figure, sign_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .drawing import AnyFigure

OWN, APART = "each component on its own scale", "each channel on its own grey scale"
NAMED = 0.9  # height in inches of a row of panels with a name of two lines beside it
PAGE = 8.0  # width in inches that a grid of components should not exceed by much
STRETCHED = 1.35  # largest factor by which a grid is enlarged to this width


def mean_and_components(model: Model, count: int = 8, figure: AnyFigure | None = None) -> AxesGrid:
    """Draw the mean and the first components as images.

    Parameters
    ----------
    model : Model
        Samples of shape (y, x) or (y, x, 3); with more axes, up to six slices of each; (x,) as lines. Latitude is
        drawn upwards, whichever way it is stored.
    count : int, default=8
        Components to draw, at most those of the model. No others are read.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; a new figure by default.

    Returns
    -------
    ndarray of Axes of shape (count + 1,)
        Axes of the mean, then of the components, each with its share of the variance and its own scale, symmetric
        about zero.

    Raises
    ------
    RequestError
        If `count` is less than 1.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> figure = streampca.plot.mean_and_components(model, count=9)
    """
    drawn = model.as_images()
    view, count = view_of(drawn), _component_count(count, drawn)
    # At least two rows from five panels on, and no wider than the page.
    columns = min(count + 1, max(4, -(-(count + 1) // 2)), max(2, round(PAGE / view.wide)))
    rows = -(-(count + 1) // columns)
    size = grid_size(view, rows, columns, caption=0.25, rest=0.8)
    stretch = PAGE / size[0] if 1 < PAGE / size[0] < STRETCHED else 1.0  # of a grid that nearly fills the page
    figure = figure if figure is not None else new_figure(size[0] * stretch, size[1] * stretch)
    # Panels beyond the components stay empty, and are removed.
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for spare in axes[count + 1 :]:
        spare.remove()
    axes = axes[: count + 1]
    _mean(axes[0], drawn, view)
    for index, (ax, pictures) in enumerate(zip(axes[1:], view.read(drawn.components, 0, count), strict=True)):
        draw(ax, pictures, signed=True, captions=view.captions, x=view.along)
        ax.set_title(f"{index + 1}: {100 * drawn.explained_variance_ratio[index]:.3g} %", fontsize=SMALL)
    _explain(figure, axes, view)
    return axes


def walks(
    model: Model, count: int = 4, deviations: Sequence[float] = (-2, -1, 0, 1, 2), figure: AnyFigure | None = None
) -> AxesGrid:
    """Draw the mean moved along each component by multiples of its standard deviation.

    Parameters
    ----------
    model : Model
        As for `mean_and_components`.
    count : int, default=4
        Components to walk along, at most those of the model.
    deviations : sequence of float
        Steps, in standard deviations of the scores.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; a new figure by default.

    Returns
    -------
    ndarray of Axes of shape (count, len(deviations))
        All on one grey scale, in the units of prepared images.

    Raises
    ------
    RequestError
        If `count` is less than 1, or `deviations` are empty.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> figure = streampca.plot.walks(model, count=3)
    """
    drawn = model.as_images()
    view, count = view_of(drawn, FEW), _component_count(count, drawn)
    if not len(deviations):
        raise RequestError("deviations are empty; give 1 or more, such as (-2, 0, 2).")
    steps = np.asarray(deviations, np.float64)
    # Images of kernel PCA are not sums of components: their walks go through pre-images.
    if isinstance(model, KernelPCAModel):
        images = _pre_images(model, view, count, steps)
    else:
        images = _walked(drawn, view, count, steps)
    limits = scale_of(view, images)
    size = grid_size(view, count, len(deviations), caption=0.1, least=NAMED)
    figure = figure if figure is not None else new_figure(*size)
    axes: AxesGrid = figure.subplots(count, len(deviations), squeeze=False)
    for ax, pictures in zip(axes.ravel(), images.reshape(-1, *images.shape[2:]), strict=True):
        draw(ax, pictures, limits, captions=view.captions, x=view.along)
    for ax, step in zip(axes[0], deviations, strict=True):
        ax.set_title(f"{step:+g} sd".replace("-", "\N{MINUS SIGN}") if step else "mean", fontsize=SMALL)
    for number, ax in enumerate(axes[:, 0]):
        share = 100 * drawn.explained_variance_ratio[number]
        ax.set_ylabel(f"component {number + 1}\n({share:.3g} %)", fontsize=SMALL)
    explain(figure, view, "value")
    return axes


def _walked(model: ComponentsModel, view: SampleView, count: int, deviations: Float64) -> Float64:
    """Return pictures (count, deviations, pictures, ...) of the mean plus each step along each component."""
    components = view.read(model.components, 0, count, over=factors_of(model))
    # Steps in units of the scores.
    lengths = np.sqrt(np.maximum(model.explained_variance[:count], 0))[:, None] * deviations
    walked: Float64 = np.einsum("cd,c...->cd...", lengths, components)
    walked += mean_pictures(model, view)
    return walked


def check_components(model: Model) -> ComponentsModel:
    """Return a model whose scores lie along components; refuse others.

    Raises
    ------
    ModelError
        If the model is an embedding, or has no components.
    """
    components = require(model, ComponentsModel, "the figure is of principal components")
    components.count_of(None)
    return components


def _pre_images(model: KernelPCAModel, view: SampleView, count: int, deviations: Float64) -> Float64:
    """Return pictures of pre-images at each step along each component, in the shape of `_walked`."""
    scores = np.zeros((count, len(deviations), count))
    # Walk along one component at a time: all other scores stay 0.
    scores[np.arange(count), :, np.arange(count)] = np.sqrt(model.explained_variance[:count])[:, None] * deviations
    images = np.asarray(model.inverse_transform(scores.reshape(-1, count)))
    return np.stack([view.one(image) for image in images]).reshape(count, len(deviations), *view.one(images[0]).shape)


def scale_of(view: SampleView, images: Array) -> Array:
    """Return the values of black and white for pictures (..., pictures, y, x): (1, 2), or (pictures, 2) by channel."""
    if not view.has_bands:
        return np.array([limits_of(images)])
    # The axis of pictures, each of which is a channel.
    at = images.ndim - len(view.picture_shape)
    return np.array([limits_of(np.take(images, number, at)) for number in range(images.shape[at])])


def grid_size(
    view: SampleView,
    rows: int,
    columns: int,
    *,
    caption: float = 0.25,
    rest: float = 0.5,
    side: float = 0.3,
    least: float = 0.0,
) -> tuple[float, float]:
    """Return the size in inches of a grid of panels of at least height `least`, each with `caption` of text."""
    return view.wide * columns + side, (max(view.wide * view.aspect, least) + caption) * rows + rest


def explain(figure: AnyFigure, view: SampleView, what: str) -> None:
    """Label a grid of lines once for all panels; below pictures, name the drawn slices and scales."""
    if view.is_line:
        figure.supxlabel(short_text(view.names[0]), fontsize=SMALL, **LITERAL)
        figure.supylabel(what, fontsize=SMALL)
    elif text := "; ".join(part for part in (view.note, APART if view.has_bands else "") if part):
        figure.supxlabel(text, fontsize=SMALL, **LITERAL)


def _component_count(count: int, model: ComponentsModel) -> int:
    if count < 1:
        raise RequestError(f"count is {count}; draw at least 1 component.")
    return min(count, model.count_of(None))


def _mean(ax: Axes, model: ComponentsModel, view: SampleView) -> None:
    """Draw the mean, with the ranges of its coordinates."""
    mean = mean_pictures(model, view)
    limits = scale_of(view, mean)
    if view.colour is None and not view.is_line and not view.has_bands:
        # Colours and channels have scales of their own.
        limits = _no_steeper(limits, _spread(model))
    draw(ax, mean, limits, captions=view.captions, x=view.along)
    ax.set_title(f"mean, {view.note}" if view.note else "mean", fontsize=SMALL, **LITERAL)
    if not view.is_line:
        upwards, sideways = view.ranges()
        ax.set_xlabel(sideways, fontsize=SMALL, **LITERAL)
        ax.set_ylabel(upwards, fontsize=SMALL, **LITERAL)


def _spread(model: ComponentsModel) -> float:
    """Return the standard deviation of a pixel in prepared units, assuming that all pixels have the same."""
    # Variances are in analysed features; factors convert them to prepared units.
    factors = model.frame.factors(np.float64)
    spread = np.broadcast_to(1.0 if factors is None else factors, model.n_features)
    return float(np.sqrt(model.total_variance / np.einsum("p,p", spread, spread)))


def _no_steeper(limits: Array, spread: float) -> Array:
    """Widen limits to a pixel's typical deviation, so that an even mean looks even."""
    if np.ptp(limits) >= spread:
        return limits
    middle = float(limits.mean())
    return np.array([[middle - spread / 2, middle + spread / 2]])


def _explain(figure: AnyFigure, axes: AxesGrid, view: SampleView) -> None:
    """Explain the colours, or the axes, of components."""
    if view.is_line:
        explain(figure, view, "mean, and loadings")
    elif view.colour is None:
        sign_scale(figure, axes, f"loading, {OWN}" + (f";\nof the mean {APART}" if view.has_bands else ""))
    else:
        text = f"loadings: mid-grey 0, brighter positive,\n{OWN}"
        figure.supxlabel(text, fontsize=SMALL)
