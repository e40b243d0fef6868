"""Scatter plots of samples: by their scores, and by their distances from the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ..arrays import Array
from ..errors import RequestError
from ..models.components import ComponentsModel
from ..models.sample_images import short_text
from ..readers import open_collection
from ..readers.image_files.names import natural
from ..units import counted, format_shape
from .drawing import BLUE, GREY, LITERAL, RED, SMALL, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..models.model import Model

    Labels: TypeAlias = Sequence[Any] | Array

CROWD = 4_000  # largest number of points: more cover one another and hide the data
MANY = 2_000  # number of points above which a vector file holds an image of them, instead of megabytes of points
UNEVEN = 1.5  # ratio of spreads above which equal scales would hide the smaller one
UNKNOWN = "unknown"  # name of a label that is NaN
USUAL = 99  # per cent of the samples below the lines in the figure of outliers

# Paul Tol's "muted" scheme for labels, distinguishable with any colour vision; markers distinguish labels in print.
_MUTED = ("332288", "CC6677", "117733", "DDCC77", "88CCEE", "882255", "44AA99", "999933", "AA4499", "555555")
_MARKERS = "os^DvPX<>*"


def scores(
    model: Model,
    scores: Any,
    labels: Labels | None = None,
    axes: tuple[int, int] = (1, 2),
    ax: Axes | None = None,
    n_samples: int | None = None,
) -> Axes:
    """Draw samples by their scores on two components.

    Parameters
    ----------
    model : Model
        Model, for the components' shares of the variance.
    scores : array of shape (n, k), collection or path of one
        Result of `PCAModel.transform` or `PCAModel.write_scores`. Of more than 4000 samples, a random choice of 4000 is
        drawn over the density of all. A single component is drawn as a histogram.
    labels : sequence of shape (n,), optional
        Labels that colour the samples: names and whole numbers by group (the ten most frequent, or nine and the rest),
        with the name of each group at its median; other numbers on a scale. Long names are shortened; NaN is unknown.
    axes : (int, int)
        Which components, counted from 1.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.
    n_samples : int, optional
        Total number of samples, if `scores` are of some of them only; shown in the title.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    RequestError
        If `axes` are not two components of the scores, or labels are not one per sample.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> axes = streampca.plot.scores(model, model.transform(digits), load_digits().target)
    """
    scores = scores_of(scores)
    n, k = scores.shape
    categories = None if labels is None else np.asarray(labels)
    if categories is not None and categories.shape != (n,):
        raise RequestError(f"there are {format_shape(categories.shape)} labels for {n} samples; give one for each.")
    if k == 1 and axes == (1, 2):
        return _histogram(model, np.asarray(scores[:, 0]), categories, ax, n_samples)
    check_axes(axes, min(k, model.n_scores))
    ax = ax if ax is not None else new_figure(6.4, 5.0).add_subplot()
    x, y = (np.asarray(scores[:, number - 1]) for number in axes)
    ax.set_xlabel(component_label(model, axes[0]))
    ax.set_ylabel(component_label(model, axes[1]))
    ax.set_title(_title(n, n_samples))
    _cloud(ax, x, y, categories)
    return ax


def outliers(
    model: Model,
    t2: Array,
    spe: Array,
    marked: Sequence[int] | Array | None = None,
    ax: Axes | None = None,
    n_samples: int | None = None,
) -> Axes:
    """Draw samples by their distances from the mean inside the model's subspace, and from the subspace.

    Parameters
    ----------
    model : Model
        Model, for the number of components.
    t2, spe : ndarray of shape (n,)
        Hotelling's T2 (squared distance from the mean in standard deviations, inside the subspace), and the squared
        prediction error (squared distance from the subspace).
    marked : sequence of int, optional
        Rows to ring and to number from 1, in this order, as `unusual` numbers its samples.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.
    n_samples : int, optional
        Total number of samples, if `t2` and `spe` are of some of them only; shown in the title.

    Returns
    -------
    matplotlib.axes.Axes
        Logarithmic scales; zeros are drawn at the smallest positive number. Of more than 4000 samples, a random choice
        of 4000 is drawn over the density of all. 99 % of the samples are below the lines.

    Raises
    ------
    RequestError
        If `t2` and `spe` differ in length, or a marked row does not exist.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> axes = streampca.plot.outliers(model, model.hotelling_t2(digits), model.reconstruction_error(digits))
    """
    # Logarithmic scales cannot show zeros.
    across, upwards = (_positive(np.asarray(values, np.float64)) for values in (t2, spe))
    rows = np.asarray([] if marked is None else marked, int)
    if len(across) != len(upwards) or len(across) == 0:
        raise RequestError(f"t2 has {len(across)} entries and spe {len(upwards)}; give one of each for every sample.")
    if rows.size and not (rows.min() >= 0 and rows.max() < len(across)):
        raise RequestError(f"marked has rows {rows.min()} to {rows.max()} of {len(across)}; count rows from 0.")
    ax = ax if ax is not None else new_figure(6.4, 5.0).add_subplot()
    ax.set(xscale="log", yscale="log")
    shown = _some_over_density(ax, across, upwards, xscale="log", yscale="log")
    _scatter(ax, across[shown], upwards[shown])
    _plain(ax.xaxis, across)
    _plain(ax.yaxis, upwards)
    _set_limits(ax.set_xlim, across)
    _set_limits(ax.set_ylim, upwards)
    _percentile_lines(ax, across, upwards)
    _numbered(ax, across[rows], upwards[rows])
    ax.set_xlabel(f"T\N{SUPERSCRIPT TWO}: inside the {counted(model.basis.n_components, 'component')} (squared sd)")
    ax.set_ylabel("squared prediction error: outside them")
    ax.set_title(_title(len(across), n_samples))
    return ax


def scores_of(scores: Any) -> Any:
    """Return scores that can be sliced, opening paths; refuse anything else, such as samples."""
    if isinstance(scores, (str, os.PathLike)):
        scores = open_collection(scores)
    if getattr(scores, "ndim", None) != 2 or not hasattr(scores, "__getitem__"):
        raise RequestError(
            f"scores are a {type(scores).__name__}, not an array of shape (n, k); give model.transform(samples)."
        )
    return scores


def check_axes(axes: tuple[int, int], k: int) -> None:
    """Refuse components, counted from 1, that the scores do not have."""
    if not all(1 <= number <= k for number in axes):
        raise RequestError(f"axes are {axes} and the scores have components 1 to {k}; choose two of these.")


def component_label(model: Model, number: int) -> str:
    """Return the label of a component, with its share of the variance, or of an axis of an embedding."""
    if not isinstance(model, ComponentsModel):
        return f"{model.noun} {number}"
    return f"component {number} ({100 * model.explained_variance_ratio[number - 1]:.3g} %)"


def _title(n: int, n_samples: int | None) -> str:
    """Return the number of shown samples, and of those drawn as points, in words."""
    text = samples_of(n, n_samples or n)
    return f"{text}, {CROWD} of them as points" if n > CROWD else text


def _cloud(ax: Axes, x: Array, y: Array, labels: Array | None) -> None:
    """Draw points, over their density if there are many, on equal scales if spreads are similar."""
    widths = [float(np.ptp(values)) if len(values) else 0.0 for values in (x, y)]
    if max(widths) <= UNEVEN * min(widths):
        ax.set_aspect("equal", adjustable="datalim")
    shown = _some_over_density(ax, x, y)
    if labels is None:
        _scatter(ax, x[shown], y[shown])
    else:
        _labelled(ax, x[shown], y[shown], labels[shown])


def _some_over_density(ax: Axes, x: Array, y: Array, **scales: Any) -> Array | slice:
    """Draw the density of samples if there are many; return the samples to draw as points."""
    n = len(x)
    if n <= CROWD:
        return slice(None)
    ax.hexbin(x, y, gridsize=60, bins="log", mincnt=1, cmap="Greys", alpha=0.5, linewidths=0.1, zorder=0, **scales)
    # A random choice: a stride over samples with alternating classes would show some classes only.
    return np.sort(np.random.default_rng(0).choice(n, CROWD, replace=False))


def samples_of(some: int, n: int) -> str:
    """Return the number of samples of all in words: ``"20000 of 100000000 samples"``."""
    return f"{some} of {n} samples" if some < n else counted(n, "sample")


def _dot(n: int) -> float:
    """Return a marker size in points for which n samples cover about the same area."""
    return float(np.clip(150 / np.sqrt(max(n, 1)), 2, 6))


def _scatter(ax: Axes, x: Array, y: Array) -> None:
    look: dict[str, Any] = {"color": BLUE, "alpha": 0.7, "markeredgewidth": 0, "rasterized": len(x) > MANY}
    ax.plot(x, y, ".", markersize=_dot(len(x)), **look)


def _labelled(ax: Axes, x: Array, y: Array, labels: Array) -> None:
    """Draw groups in their own colours and markers, or numbers on a colour scale."""
    size = _dot(len(x))
    look: dict[str, Any] = {"rasterized": len(x) > MANY}
    if is_scale(labels):
        finite = np.isfinite(labels)
        points = ax.scatter(x[finite], y[finite], c=labels[finite], s=size**2, cmap="cividis", linewidths=0, **look)
        ax.figure.colorbar(points, ax=ax, label="label")
        if not finite.all():
            ax.plot(x[~finite], y[~finite], "x", color=GREY, markersize=size, label=UNKNOWN, **look)
            legend_below(ax)
        return
    groups = label_groups(labels)
    look |= {"markersize": size, "markeredgewidth": 0, "alpha": 0.8, "linestyle": ""}
    drawn = [ax.plot(x[g.members], y[g.members], g.marker, color=g.colour, **look)[0] for g in groups]
    _name(ax, drawn, groups, markerscale=max(1.0, 5 / size))
    _name_centres(ax, x, y, groups)


class LabelGroup(NamedTuple):
    """Samples of one label, as a mask of all, with its name, colour and marker."""

    members: Array
    name: str
    colour: str
    marker: str

    @property
    def is_one_label(self) -> bool:
        """False for the group of rare labels."""
        return self.colour != GREY


def is_scale(labels: Array) -> bool:
    """Return whether labels are numbers on a scale rather than groups."""
    return labels.dtype.kind == "f" and bool(np.any(labels[np.isfinite(labels)] % 1))


def label_groups(labels: Array) -> list[LabelGroup]:
    """Group samples by label, in natural order, after one group of the rare labels if there are too many."""
    # Objects of mixed types cannot be sorted.
    labels = labels.astype(str) if labels.dtype.kind == "O" else labels
    names, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if names.dtype.kind == "U":
        order = np.array(sorted(range(len(names)), key=lambda at: natural(str(names[at]))), np.intp)
        # `codes` refer to sorted names: renumber them in natural order.
        names, codes, counts = names[order], np.argsort(order)[codes], counts[order]
    groups, frequent = [], np.arange(len(names))
    if len(names) > len(_MUTED):
        frequent = np.sort(np.argsort(-counts, kind="stable")[: len(_MUTED) - 1])
        # The rare labels are drawn first, below the others.
        groups.append(LabelGroup(~np.isin(codes, frequent), f"{len(names) - len(frequent)} others", GREY, "."))
    for number, colour, marker in zip(frequent, _MUTED, _MARKERS, strict=False):
        groups.append(LabelGroup(codes == number, shown_label(names[number]), f"#{colour}", marker))
    return groups


def shown_label(label: Any) -> str:
    """Return a label as short text."""
    if isinstance(label, np.floating):
        return UNKNOWN if np.isnan(label) else f"{label:g}"
    return short_text(label, 20)


def _name(ax: Axes, drawn: Sequence[Any], groups: Sequence[LabelGroup], **look: Any) -> None:
    """Add a legend of labels beside the axes, unless there is only one."""
    if len(groups) < 2:
        return
    # Names are set afterwards, as a legend skips names that begin with an underscore, and parses mathematics.
    look = {"title": "label", "fontsize": SMALL, "frameon": False, **look}
    legend = ax.legend(drawn, ["-"] * len(groups), loc="center left", bbox_to_anchor=(1.0, 0.5), **look)
    for text, group in zip(legend.get_texts(), groups, strict=True):
        text.set(text=group.name, **LITERAL)


def _histogram(model: Model, values: Array, labels: Array | None, ax: Axes | None, n_samples: int | None) -> Axes:
    ax, count = ax if ax is not None else new_figure(6.4, 4.0).add_subplot(), len(values)
    finite = np.isfinite(values)  # a histogram has no place for others
    values, labels = values[finite], None if labels is None else labels[finite]
    # The number of bins is limited: with a rule for their width, one distant sample would give millions of bins.
    edges: Any = np.histogram_bin_edges(values, int(np.clip(len(values) ** 0.5, 10, 100)))
    if labels is None or is_scale(labels):
        ax.hist(values, edges, color=BLUE)
    else:
        groups = label_groups(labels)
        parts = [values[group.members] for group in groups]
        bars: Any = ax.hist(parts, edges, stacked=True, color=[group.colour for group in groups])[2]
        _name(ax, list(bars) if len(groups) > 1 else [bars], groups)
    ax.set_xlabel(component_label(model, 1))
    ax.set_ylabel("samples")
    ax.set_title(samples_of(count, n_samples or count))
    return ax


def _name_centres(ax: Axes, x: Array, y: Array, groups: Sequence[LabelGroup]) -> None:
    """Write the names of groups near their medians, without covering one another."""
    named = [group for group in groups if group.is_one_label]
    if len(named) < 2:
        return
    centres = np.array([(np.median(x[group.members]), np.median(y[group.members])) for group in named])
    texts = [short_text(group.name, 12) for group in named]
    sizes = [(7.0 * len(text), 14.0) for text in texts]
    for group, text, at, offset in zip(named, texts, centres, _offsets(ax, centres, sizes), strict=True):
        look: dict[str, Any] = {"color": group.colour, "fontsize": SMALL + 2, "fontweight": "bold"}
        _annotate(ax, text, at, offset, **look)


# -- outliers


def _positive(values: Array) -> Array:
    """Clip values to the range of a logarithmic scale: from the smallest positive to the largest value."""
    above = values[np.isfinite(values) & (values > 0)]
    least, greatest = (above.min(), above.max()) if above.size else (1.0, 1.0)
    return np.clip(np.fmax(values, least), least, greatest)


def _plain(axis: Any, values: Array) -> None:
    """Label a logarithmic axis by numbers such as 20 and 100, not by powers, if they are short."""
    from matplotlib.ticker import LogFormatter

    if values.min() >= 1 and values.max() <= 10_000:
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))


def _set_limits(set_limits: Any, values: Array) -> None:
    """Set limits for values that are equal up to rounding, for which matplotlib finds none."""
    if values.max() <= values.min() * (1 + 1e-6):
        set_limits(values.min() / 2, values.max() * 2)


def _percentile_lines(ax: Axes, across: Array, upwards: Array) -> None:
    """Draw lines above most samples, and a legend for them."""
    look: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 0.8}
    ax.axhline(np.percentile(upwards, USUAL), label=f"{USUAL} % of the samples lie below", **look)
    ax.axvline(np.percentile(across, USUAL), **look)
    legend_below(ax)


def ring(ax: Axes, x: Array, y: Array) -> None:
    """Draw rings around points, visible on any colour."""
    look: dict[str, Any] = {"markersize": 8, "markerfacecolor": "none", "linestyle": "", "path_effects": _halo()}
    ax.plot(x, y, "o", color="black", **look)


def _halo() -> list[Any]:
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=3, foreground="white"), Normal()]


def _numbered(ax: Axes, across: Array, upwards: Array) -> None:
    """Draw rings around points and number them from 1, without covering other numbers or rings."""
    ring(ax, across, upwards)
    ax.margins(0.08)
    ax.autoscale_view()
    ax.set_autoscale_on(False)  # positions of texts depend on these limits
    points = np.column_stack([across, upwards])
    sizes = [(13.0, 11.0)] * len(points)
    for number, (at, offset) in enumerate(zip(points, _offsets(ax, points, sizes, clear=9), strict=True), start=1):
        _annotate(ax, f"{number}", at, offset, color=RED, fontsize=SMALL + 1, fontweight="bold")


def _annotate(ax: Axes, text: str, at: Array, offset: tuple[float, float], **look: Any) -> None:
    """Write text at a point, with an offset in points of type."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "path_effects": _halo(), **look, **LITERAL}
    ax.annotate(text, tuple(at), xytext=offset, textcoords="offset points", **style)


def _offsets(
    ax: Axes, points: Array, sizes: Sequence[tuple[float, float]], clear: float = 0.0
) -> list[tuple[float, float]]:
    """Return the offset of each point's text, in points of type, so that texts of these sizes do not overlap.

    Texts also keep the distance `clear` from all points; with 0, a text is on its point if possible.
    """
    ax.autoscale_view()
    ax.apply_aspect()
    # From data to points of type, in which sizes of texts are given.
    places = ax.transData.transform(points) * 72 / ax.figure.dpi
    occupied: list[tuple[float, float, float, float]] = []
    offsets = []
    for (x, y), (wide, tall) in zip(places, sizes, strict=True):
        at = _free((x, y), (wide, tall), occupied, places, clear)
        occupied.append((*at, wide, tall))
        offsets.append((at[0] - float(x), at[1] - float(y)))
    return offsets


def _free(
    at: tuple[float, float],
    size: tuple[float, float],
    occupied: list[tuple[float, float, float, float]],
    rings: Array,
    clear: float,
) -> tuple[float, float]:
    """Return a free position at or near a point, clear of other texts and of rings."""
    # Search along circles of growing radius.
    for radius in range(11 if clear else 0, 90, 6):
        for angle in np.arange(0.25, 2.25, 0.25) * np.pi:
            x, y = at[0] + radius * np.cos(angle), at[1] + radius * np.sin(angle)
            free = all(abs(x - a) > (size[0] + w) / 2 or abs(y - b) > (size[1] + h) / 2 for a, b, w, h in occupied)
            if free and (not clear or bool((np.hypot(x - rings[:, 0], y - rings[:, 1]) > clear).all())):
                return float(x), float(y)
    return float(at[0]), float(at[1])
