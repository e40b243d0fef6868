"""The pictures of a model, one function each; matplotlib is loaded by the first that is called.

Figures are made as objects, never through pyplot: nothing global is set, nothing is left open, and any backend the
caller chose stays. Each function draws into the axes or figure it is given, or makes its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from .errors import OutputError, RequestError
from .outputs import staged
from .panels import BLUE, DPI, GREY, SMALL, Array, AxesGrid, draw, grid_size, limits_of, new_figure, picture, sign_scale
from .trust import digits_trusted, sharpest_bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .model import PCAModel
    from .panels import AnyFigure

    Labels: TypeAlias = Sequence[Any] | Array

MARKS = (0.80, 0.90, 0.95, 0.99)  # shares of the variance that people ask the number of components for
CROWD = 20_000  # points beyond which a scatter plot shows its own ink and not the data

# Paul Tol's "high-contrast" red, and his "muted" scheme for labels: told apart with any colour vision, and each label
# has its own marker for print.
_RED = "#BB5566"
_MUTED = ("332288", "CC6677", "117733", "DDCC77", "88CCEE", "882255", "44AA99", "999933", "AA4499", "555555")
_MARKERS = "os^DvPX<>*"


def scree(model: PCAModel, ax: Axes | None = None) -> Axes:
    """Draw the share of the variance of each component, and of the first so many together.

    Parameters
    ----------
    model : PCAModel
        Its kept components are shown.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the single shares, on a logarithmic scale where they span more than a factor of 30; a second axes
        on the right has the sums, with the components that reach 80, 90, 95 and 99 % where these do.
    """
    from matplotlib.ticker import MaxNLocator

    ax = ax if ax is not None else new_figure(6.4, 4.0).add_subplot()
    ratios = np.asarray(model.explained_variance_ratio, dtype=np.float64)
    sums, numbers = np.cumsum(ratios), np.arange(1, len(ratios) + 1)
    positive = ratios[ratios > 0]
    ax.plot(numbers, 100 * np.where(ratios > 0, ratios, np.nan), "o-", color=BLUE, markersize=3, linewidth=1)
    if len(positive) and positive.max() > 30 * positive.min():
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
    else:
        ax.set_ylim(0, 105 * ratios.max(initial=0.01))
    ax.set_xlabel("component")
    ax.set_ylabel("share of the variance, each (%)", color=BLUE)
    count = f"{len(ratios)} components hold" if len(ratios) > 1 else "1 component holds"
    ax.set_title(f"{count} {100 * sums[-1]:.3g} % of the variance")
    ax.set_xlim(0.5, len(ratios) + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _sums(ax, numbers, sums)
    return ax


def mean_and_components(model: PCAModel, count: int = 8, figure: AnyFigure | None = None) -> AxesGrid:
    """Draw the mean and the first components as images.

    Parameters
    ----------
    model : PCAModel
        Samples of shape (y, x), (y, x, 3), (z, y, x) (the middle slice is drawn) or (x,) (drawn as lines).
    count : int, default=8
        Components to draw; fewer where the model has fewer.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; a new figure by default.

    Returns
    -------
    ndarray of Axes of shape (count + 1,)
        The mean's, then the components'. Each component has its own scale, symmetric about zero. Under its share of
        the variance stands how many digits of it the model's error bound vouches for.

    Raises
    ------
    RequestError
        If `count` is less than 1.
    """
    if count < 1:
        raise RequestError(f"count is {count}; draw at least 1 component.")
    count = min(count, model.n_components)
    columns = min(count + 1, max(3, -(-(count + 1) // 2)))
    rows = -(-(count + 1) // columns)
    figure = figure if figure is not None else new_figure(*grid_size(model.mean, rows, columns, caption=0.4, rest=0.7))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for spare in axes[count + 1 :]:
        spare.remove()
    mean, bounds = picture(model.mean), sharpest_bounds(model)
    draw(axes[0], mean, _mean_limits(model, mean))
    axes[0].set_title("mean", fontsize=SMALL)
    for index, ax in enumerate(axes[1 : count + 1]):
        draw(ax, picture(model.components[index]), signed=True)
        digits = digits_trusted(bounds[index])
        share = f"{index + 1}: {100 * model.explained_variance_ratio[index]:.3g} %"
        ax.set_title(f"{share}\ngood to {digits}" if digits else share, fontsize=SMALL)
    if picture(model.mean).ndim == 2:
        sign_scale(figure, axes[: count + 1])
    return axes[: count + 1]


def reconstructions(
    model: PCAModel,
    samples: Sequence[Array],
    ladder: Sequence[int] | None = None,
    count: int = 4,
    figure: AnyFigure | None = None,
) -> AxesGrid:
    r"""Draw samples beside what 1, a few, and all components keep of them.

    Parameters
    ----------
    model : PCAModel
        The model.
    samples : sequence of ndarray of shape raw_shape
        Before the model's preparation (of any size, if it resizes). The first `count` are drawn, as prepared.
    ladder : sequence of int, optional
        Numbers of components; by default up to four between 1 and all, evenly spaced in their logarithm.
    count : int, default=4
        Samples to draw.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; a new figure by default.

    Returns
    -------
    ndarray of Axes of shape (samples drawn, 1 + len(ladder))
        Originals in the first column. Under each reconstruction stands what is left of the sample's distance from the
        mean: 100 % when nothing is kept.

    Raises
    ------
    RequestError
        If there is nothing to draw, or the ladder asks for components that the model has not.
    """
    images = [np.asarray(image) for image in samples[: max(0, count)]]
    steps = _ladder(model.n_components, ladder)
    if not images or (model.preparation.resize is None and images[0].shape != model.raw_shape):
        shapes = [image.shape for image in images]
        raise RequestError(f"samples to draw have shapes {shapes}; give 1 or more of shape {model.raw_shape}.")
    figure = figure if figure is not None else new_figure(*grid_size(model.mean, len(images), len(steps) + 1))
    axes: AxesGrid = figure.subplots(len(images), len(steps) + 1, squeeze=False)
    for row, versions in enumerate(_versions(model, images, steps)):
        _row(axes[row], versions)
    axes[0, 0].set_title("original", fontsize=SMALL)
    for ax, step in zip(axes[0, 1:], steps, strict=True):
        ax.set_title(f"{step} component{'s' if step > 1 else ''}", fontsize=SMALL)
    return axes


def _mean_limits(model: PCAModel, mean: Array) -> tuple[float, float]:
    """Least and greatest value, at least a pixel's typical deviation apart: an even mean shall look even."""
    low, high = limits_of(mean)
    spread = np.sqrt(model.total_variance / model.n_features)
    if mean.ndim == 2 and high - low < spread:
        middle = (low + high) / 2
        return middle - spread / 2, middle + spread / 2
    return low, high


def _versions(model: PCAModel, images: list[Array], steps: list[int]) -> Iterator[tuple[Array, ...]]:
    """Give each image as prepared, what no component keeps of it (the mean), and what each number of them does."""
    frame, subspace = model.frame, model.subspace
    each = [replace(frame.unnormalized, raw_shape=image.shape).rows(image.reshape(1, -1)) for image in images]
    normalized, numbers = frame.normalized(rows := np.concatenate(each))
    scores = subspace.project(normalized)
    kept = [frame.denormalized(subspace.reconstruct(scores[:, :step]), numbers) for step in (0, *steps)]
    return zip(*(frame.images(made) for made in (rows.astype(np.float64), *kept)), strict=True)


def _row(axes: AxesGrid, versions: Sequence[Array]) -> None:
    """Draw an original and its reconstructions on one scale, with the error under each."""
    original, mean, *kept = versions
    limits = limits_of(picture(original))
    draw(axes[0], picture(original), limits)
    distance = np.sqrt(np.nansum((original - mean) ** 2)) or 1.0
    for ax, version in zip(axes[1:], kept, strict=True):
        draw(ax, picture(version), limits)
        error = np.sqrt(np.nansum((original - version) ** 2)) / distance
        ax.set_xlabel(f"error {100 * error:.3g} %" if error > 1e-5 else "error < 0.001 %", fontsize=SMALL)


def scores(
    model: PCAModel,
    scores: Array,
    labels: Labels | None = None,
    axes: tuple[int, int] = (1, 2),
    ax: Axes | None = None,
) -> Axes:
    """Draw samples by their scores on two components.

    Parameters
    ----------
    model : PCAModel
        Gives the components' shares of the variance.
    scores : ndarray of shape (n, k)
        As `PCAModel.transform` returns them. Beyond 20000 samples their density is drawn; with labels, 20000 evenly
        spaced samples.
    labels : sequence of shape (n,), optional
        Whole numbers and text name groups: the nine most frequent get colours, all others one. Other numbers are
        shown on a colour scale.
    axes : (int, int), default=(1, 2)
        Which components, counted from 1. Of a single component a histogram is drawn.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        Equally scaled in both directions, so that distances are right.

    Raises
    ------
    RequestError
        If `axes` are not two components of the scores, or labels are not one per sample.
    """
    n, k = scores.shape
    if k == 1 and axes == (1, 2):
        return _histogram(model, np.asarray(scores[:, 0]), ax)
    if not all(1 <= number <= min(k, model.n_components) for number in axes):
        raise RequestError(f"axes are {axes} and the scores have components 1 to {k}; choose two of these.")
    if labels is not None and len(labels) != n:
        raise RequestError(f"there are {len(labels)} labels for {n} samples; give one for each.")
    ax = ax if ax is not None else new_figure(6.4, 5.0).add_subplot()
    x, y = (np.asarray(scores[:, number - 1]) for number in axes)
    title = _cloud(ax, x, y, None if labels is None else np.asarray(labels))
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel(_component(model, axes[0]))
    ax.set_ylabel(_component(model, axes[1]))
    ax.set_title(title)
    return ax


def overview(model: PCAModel, scores: Array, samples: Sequence[Array], labels: Labels | None = None) -> Figure:
    r"""Draw all of it on one page: variances and scores above, components and reconstructions below.

    Parameters
    ----------
    model : PCAModel
        The model.
    scores : ndarray of shape (n, k)
        As `PCAModel.transform` returns them.
    samples : sequence of ndarray of shape raw_shape
        A few to reconstruct; the first three are drawn.
    labels : sequence of shape (n,), optional
        One for each row of the scores.

    Returns
    -------
    matplotlib.figure.Figure
    """
    height = max(3.0, grid_size(model.mean, 3, 5, wide=1.2, rest=0.6)[1])
    figure = new_figure(12.0, 4.2 + height)
    above, below = cast("AxesGrid", figure.subfigures(2, 1, height_ratios=(4.2, height), hspace=0.03))
    left, right = above.subplots(1, 2)
    scree(model, left)
    _scores_of(model, scores, labels, ax=right)
    components, kept = cast("AxesGrid", below.subfigures(1, 2, wspace=0.03))
    components.suptitle("Mean and components, with their shares of the variance", fontsize="medium")
    kept.suptitle("Samples and their reconstructions", fontsize="medium")
    mean_and_components(model, 8, components)
    reconstructions(model, samples, count=3, figure=kept)
    return figure


_scores_of = scores  # `overview` has an argument of the same name


def save(figure_or_axes: Figure | Axes | AxesGrid, path: str | os.PathLike[str]) -> None:
    """Write the figure that these axes are on, in the format the file's ending names (png, pdf, svg).

    Raises
    ------
    OutputError
        If the ending names no format or the file cannot be written.
    """
    first: Any = figure_or_axes.flat[0] if isinstance(figure_or_axes, np.ndarray) else figure_or_axes
    figure = getattr(first, "figure", first).canvas.figure  # axes may be on a part of the figure
    ending = os.path.splitext(path)[1].lstrip(".").lower()
    if ending not in figure.canvas.get_supported_filetypes():
        raise OutputError(f"{os.fspath(path)} has no ending that names a picture format; call it .png, .pdf or .svg.")
    with staged(os.fspath(path)) as partial:
        figure.savefig(partial, dpi=DPI, format=ending)


def _ladder(n_components: int, ladder: Sequence[int] | None) -> list[int]:
    if ladder is None:
        return [int(step) for step in np.unique(np.geomspace(1, n_components, 4).round())]
    if not ladder or not all(1 <= step <= n_components for step in ladder):
        raise RequestError(
            f"ladder is {list(ladder)} and the model has {n_components} components; stay within 1 to these."
        )
    return [int(step) for step in ladder]


def _component(model: PCAModel, number: int) -> str:
    return f"component {number} ({100 * model.explained_variance_ratio[number - 1]:.3g} %)"


def _dot(n: int) -> float:
    """Marker size in points that keeps the ink of n samples about the same."""
    return float(np.clip(150 / np.sqrt(max(n, 1)), 2, 6))


def _histogram(model: PCAModel, values: Array, ax: Axes | None) -> Axes:
    ax = ax if ax is not None else new_figure(6.4, 4.0).add_subplot()
    ax.hist(values, bins="auto" if len(values) <= CROWD else 100, color=BLUE)
    ax.set_xlabel(_component(model, 1))
    ax.set_ylabel("samples")
    ax.set_title(f"{len(values)} samples")
    return ax


def _cloud(ax: Axes, x: Array, y: Array, labels: Array | None) -> str:
    """Draw points in the way that suits their number, and say how many are drawn."""
    n = len(x)
    if labels is not None:
        step = -(-n // CROWD)
        _labelled(ax, x[::step], y[::step], labels[::step])
        return f"{len(x[::step])} of {n} samples" if step > 1 else f"{n} samples"
    if n > CROWD:
        density = ax.hexbin(x, y, gridsize=60, bins="log", mincnt=1, cmap="cividis", linewidths=0.1)
        ax.figure.colorbar(density, ax=ax, label="samples to a cell", format="%g")
    else:
        ax.plot(x, y, ".", color=BLUE, markersize=_dot(n), alpha=0.7, markeredgewidth=0)
    return f"{n} samples"


def _labelled(ax: Axes, x: Array, y: Array, labels: Array) -> None:
    """Scatter groups in their own colours and markers, other numbers on a colour scale."""
    size = _dot(len(x))
    if labels.dtype.kind == "f" and np.any(labels % 1):
        points = ax.scatter(x, y, c=labels, s=size**2, cmap="cividis", linewidths=0)
        ax.figure.colorbar(points, ax=ax, label="label")
        return
    names, counts = np.unique(labels, return_counts=True)
    if len(names) > len(_MUTED):
        frequent = np.sort(np.argsort(-counts, kind="stable")[: len(_MUTED) - 1])
        rest = ~np.isin(labels, names[frequent])
        others = f"{len(names) - len(frequent)} others"
        ax.plot(x[rest], y[rest], ".", color=GREY, markersize=size, label=others, zorder=1)
        names = names[frequent]
    for name, colour, marker in zip(names, _MUTED, _MARKERS, strict=False):
        look: dict[str, Any] = {"color": f"#{colour}", "markersize": size, "markeredgewidth": 0, "alpha": 0.8}
        ax.plot(x[labels == name], y[labels == name], marker, label=str(name), **look)
    legend: dict[str, Any] = {"title": "label", "fontsize": SMALL, "frameon": False, "markerscale": max(1.0, 5 / size)}
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), **legend)


def _sums(ax: Axes, numbers: Array, sums: Array) -> None:
    """Draw the cumulative curve on axes of its own and mark where it reaches each share people ask for."""
    right = ax.twinx()
    right.plot(numbers, 100 * sums, color=_RED, linewidth=1.5, marker="." if len(sums) == 1 else "")
    right.set_ylabel("share of the variance, together (%)", color=_RED)
    right.set_ylim(0, 104)
    # Of marks that one component reaches together only the highest is worth a text.
    reached = {int(np.argmax(sums >= mark)) + 1: mark for mark in MARKS if sums[-1] >= mark}
    level = np.inf
    for number, mark in reversed(reached.items()):
        # From the highest mark down, each text goes below the one before: beside its mark it could cover another.
        level = min(100 * mark - 5, level - 7)
        at = (number, 100 * sums[number - 1])
        right.plot(*at, "o", color=_RED, markersize=4)
        right.annotate(
            f"{100 * mark:.0f} % by {number}",
            at,
            xytext=(number, level),
            horizontalalignment="right" if number > 0.7 * len(sums) else "left",
            verticalalignment="top",
            fontsize=SMALL,
            arrowprops={"arrowstyle": "-", "color": _RED, "linewidth": 0.5, "shrinkA": 0},
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )
