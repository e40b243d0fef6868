"""Scatter plots of samples: by their scores, and by how far they lie from the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ..errors import RequestError
from ..models.embedding import EmbeddingModel
from ..models.sample_images import Array, short_text
from ..readers import open_collection
from ..units import counted, format_shape
from .drawing import BLUE, GREY, LITERAL, RED, SMALL, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..models.pca import PCAModel

    Labels: TypeAlias = Sequence[Any] | Array

CROWD = 20_000  # points beyond which a scatter plot shows its own ink and not the data
MANY = 2_000  # points beyond which a vector file holds them as an image: it would be megabytes of them
UNEVEN = 1.5  # spreads whose ratio is greater leave nothing to see on equal scales
UNKNOWN = "unknown"  # name of a label that is NaN
USUAL = 99  # per cent of the samples below the lines in the figure of outliers

# Paul Tol's "muted" scheme for labels: told apart with any colour vision, and each label has its own marker for print.
_MUTED = ("332288", "CC6677", "117733", "DDCC77", "88CCEE", "882255", "44AA99", "999933", "AA4499", "555555")
_MARKERS = "os^DvPX<>*"


def scores(
    model: PCAModel,
    scores: Any,
    labels: Labels | None = None,
    axes: tuple[int, int] = (1, 2),
    ax: Axes | None = None,
    n_samples: int | None = None,
) -> Axes:
    """Draw samples by their scores on two components.

    Parameters
    ----------
    model : PCAModel
        Gives the components' shares of the variance.
    scores : array of shape (n, k), collection or path of one
        As `PCAModel.transform` returns them or `PCAModel.write_scores` writes them. Beyond 20000 samples their density
        is drawn; with labels, 20000 samples taken at random. A single component is drawn as a histogram.
    labels : sequence of shape (n,), optional
        Colours the samples: names and whole numbers by group (the ten most frequent, or nine and the rest), other
        numbers on a scale. Shown as they are, shortened; NaN as unknown.
    axes : (int, int)
        Which components, counted from 1.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.
    n_samples : int, optional
        How many samples there are, where `scores` are of some of them only; the title says so.

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
    named = None if labels is None else np.asarray(labels)
    if named is not None and named.shape != (n,):
        raise RequestError(f"there are {format_shape(named.shape)} labels for {n} samples; give one for each.")
    if k == 1 and axes == (1, 2):
        return _histogram(model, np.asarray(scores[:, 0]), named, ax, n_samples)
    check_axes(axes, min(k, model.n_scores))
    ax = ax if ax is not None else new_figure(6.4, 5.0).add_subplot()
    x, y = (np.asarray(scores[:, number - 1]) for number in axes)
    drawn = _cloud(ax, x, y, named)
    ax.set_xlabel(_component_label(model, axes[0]))
    ax.set_ylabel(_component_label(model, axes[1]))
    ax.set_title(samples_of(drawn, n_samples or n))
    return ax


def outliers(
    model: PCAModel,
    t2: Array,
    spe: Array,
    marked: Sequence[int] | Array | None = None,
    ax: Axes | None = None,
    n_samples: int | None = None,
) -> Axes:
    """Draw samples by how far they lie inside the model's subspace, and how far outside.

    Parameters
    ----------
    model : PCAModel
        Says of how many components.
    t2, spe : ndarray of shape (n,)
        Hotelling's T2 (squared distance from the mean in standard deviations, inside the subspace), and the squared
        prediction error (squared distance from the subspace).
    marked : sequence of int, optional
        Rows to ring and to number from 1, in this order, as `unusual` numbers its samples.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.
    n_samples : int, optional
        How many samples there are, where `t2` and `spe` are of some of them only; the title says so.

    Returns
    -------
    matplotlib.axes.Axes
        Logarithmic scales; numbers that are zero are drawn at the least that is not. A density beyond 20000 samples.
        Lines leave 99 % of the samples below.

    Raises
    ------
    RequestError
        If there is not one T2 for each squared prediction error, or a marked row is not there.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> axes = streampca.plot.outliers(model, model.hotelling_t2(digits), model.reconstruction_error(digits))
    """
    across, upwards = (_positive(np.asarray(values, np.float64)) for values in (t2, spe))
    rows = np.asarray([] if marked is None else marked, int)
    if len(across) != len(upwards) or len(across) == 0:
        raise RequestError(f"t2 has {len(across)} entries and spe {len(upwards)}; give one of each for every sample.")
    if rows.size and not (rows.min() >= 0 and rows.max() < len(across)):
        raise RequestError(f"marked has rows {rows.min()} to {rows.max()} of {len(across)}; count rows from 0.")
    ax = ax if ax is not None else new_figure(6.4, 5.0).add_subplot()
    ax.set(xscale="log", yscale="log")
    if len(across) > CROWD:
        _density(ax, across, upwards, xscale="log", yscale="log")
    else:
        _scatter(ax, across, upwards)
    _plain(ax.xaxis, across)
    _plain(ax.yaxis, upwards)
    _set_limits(ax.set_xlim, across)
    _set_limits(ax.set_ylim, upwards)
    _percentile_lines(ax, across, upwards)
    _numbered(ax, across[rows], upwards[rows])
    ax.set_xlabel(f"T\N{SUPERSCRIPT TWO}: inside the {counted(model.n_components, 'component')} (squared sd)")
    ax.set_ylabel("squared prediction error: outside them")
    ax.set_title(samples_of(len(across), n_samples or len(across)))
    return ax


def scores_of(scores: Any) -> Any:
    """Return scores to slice as an array, opening paths; refuse what is none, such as the samples they are made of."""
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


def _component_label(model: PCAModel, number: int) -> str:
    """Return the label of a component, with its share of the variance, or of an axis: its number from 1."""
    if isinstance(model, EmbeddingModel):
        return f"axis {number}"
    return f"component {number} ({100 * model.explained_variance_ratio[number - 1]:.3g} %)"


def _cloud(ax: Axes, x: Array, y: Array, labels: Array | None) -> int:
    """Draw points or their density, by their number; return how many samples are drawn."""
    n = len(x)
    if labels is not None:
        # At random: a stride over samples whose classes take turns would show some of the classes only.
        some = np.sort(np.random.default_rng(0).choice(n, CROWD, replace=False)) if n > CROWD else slice(None)
        _labelled(ax, x[some], y[some], labels[some])
        n = min(n, CROWD)
    elif n > CROWD:
        _density(ax, x, y)
    else:
        _scatter(ax, x, y)
    widths = [float(np.ptp(values)) if n else 0.0 for values in (x, y)]
    if max(widths) <= UNEVEN * min(widths):
        ax.set_aspect("equal", adjustable="datalim")
    return n


def samples_of(some: int, n: int) -> str:
    """Write how many samples of all were taken: ``"20000 of 100000000 samples"``."""
    return f"{some} of {n} samples" if some < n else counted(n, "sample")


def _dot(n: int) -> float:
    """Return a marker size in points for which n samples take about the same ink."""
    return float(np.clip(150 / np.sqrt(max(n, 1)), 2, 6))


def _scatter(ax: Axes, x: Array, y: Array) -> None:
    look: dict[str, Any] = {"color": BLUE, "alpha": 0.7, "markeredgewidth": 0, "rasterized": len(x) > MANY}
    ax.plot(x, y, ".", markersize=_dot(len(x)), **look)


def _density(ax: Axes, x: Array, y: Array, **scales: Any) -> None:
    density = ax.hexbin(x, y, gridsize=60, bins="log", mincnt=1, cmap="cividis", linewidths=0.1, **scales)
    ax.figure.colorbar(density, ax=ax, label="samples to a cell", format="%g")


def _labelled(ax: Axes, x: Array, y: Array, labels: Array) -> None:
    """Scatter groups in their own colours and markers, other numbers on a colour scale."""
    size = _dot(len(x))
    look: dict[str, Any] = {"rasterized": len(x) > MANY}
    if _is_scale(labels):
        known = np.isfinite(labels)
        points = ax.scatter(x[known], y[known], c=labels[known], s=size**2, cmap="cividis", linewidths=0, **look)
        ax.figure.colorbar(points, ax=ax, label="label")
        if not known.all():
            ax.plot(x[~known], y[~known], "x", color=GREY, markersize=size, label=UNKNOWN, **look)
            legend_below(ax)
        return
    groups = _groups(labels)
    look |= {"markersize": size, "markeredgewidth": 0, "alpha": 0.8, "linestyle": ""}
    drawn = [ax.plot(x[g.members], y[g.members], g.marker, color=g.colour, **look)[0] for g in groups]
    _name(ax, drawn, groups, markerscale=max(1.0, 5 / size))


class _Group(NamedTuple):
    """Samples of one label, its name, and how they are drawn."""

    members: Array
    name: str
    colour: str
    marker: str


def _is_scale(labels: Array) -> bool:
    return labels.dtype.kind == "f" and bool(np.any(labels[np.isfinite(labels)] % 1))


def _groups(labels: Array) -> list[_Group]:
    """Group samples by label, in the labels' order, after one group of the rare labels if there are too many."""
    labels = labels.astype(str) if labels.dtype.kind == "O" else labels
    names, own, counts = np.unique(labels, return_inverse=True, return_counts=True)
    groups, frequent = [], np.arange(len(names))
    if len(names) > len(_MUTED):
        frequent = np.sort(np.argsort(-counts, kind="stable")[: len(_MUTED) - 1])
        groups.append(_Group(~np.isin(own, frequent), f"{len(names) - len(frequent)} others", GREY, "."))
    for number, colour, marker in zip(frequent, _MUTED, _MARKERS, strict=False):
        groups.append(_Group(own == number, _called(names[number]), f"#{colour}", marker))
    return groups


def _called(label: Any) -> str:
    """Return a label as short text."""
    if isinstance(label, np.floating):
        return UNKNOWN if np.isnan(label) else f"{label:g}"
    return short_text(label, 20)


def _name(ax: Axes, drawn: Sequence[Any], groups: Sequence[_Group], **look: Any) -> None:
    """Add a legend of labels beside the axes."""
    # Names are set afterwards: a legend leaves out what begins with an underscore, and reads mathematics.
    look = {"title": "label", "fontsize": SMALL, "frameon": False, **look}
    legend = ax.legend(drawn, ["-"] * len(groups), loc="center left", bbox_to_anchor=(1.0, 0.5), **look)
    for text, group in zip(legend.get_texts(), groups, strict=True):
        text.set(text=group.name, **LITERAL)


def _histogram(model: PCAModel, values: Array, labels: Array | None, ax: Axes | None, n_samples: int | None) -> Axes:
    ax, count = ax if ax is not None else new_figure(6.4, 4.0).add_subplot(), len(values)
    known = np.isfinite(values)  # others have no place in it
    values, labels = values[known], None if labels is None else labels[known]
    # A fixed number of bins: by a rule for their width, one sample far away would make millions of them.
    edges: Any = np.histogram_bin_edges(values, int(np.clip(len(values) ** 0.5, 10, 100)))
    if labels is None or _is_scale(labels):
        ax.hist(values, edges, color=BLUE)
    else:
        groups = _groups(labels)
        parts = [values[group.members] for group in groups]
        bars: Any = ax.hist(parts, edges, stacked=True, color=[group.colour for group in groups])[2]
        _name(ax, list(bars) if len(groups) > 1 else [bars], groups)
    ax.set_xlabel(_component_label(model, 1))
    ax.set_ylabel("samples")
    ax.set_title(samples_of(count, n_samples or count))
    return ax


# -- outliers


def _positive(values: Array) -> Array:
    """Clip values to what a logarithmic scale can show: from the least above zero to the greatest."""
    above = values[np.isfinite(values) & (values > 0)]
    least, greatest = (above.min(), above.max()) if above.size else (1.0, 1.0)
    return np.clip(np.fmax(values, least), least, greatest)


def _plain(axis: Any, values: Array) -> None:
    """Label a logarithmic axis by numbers such as 20 and 100, not by powers, where they are short."""
    from matplotlib.ticker import LogFormatter

    if values.min() >= 1 and values.max() <= 10_000:
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))


def _set_limits(set_limits: Any, values: Array) -> None:
    """Set limits about values that are equal but for rounding: matplotlib finds none there."""
    if values.max() <= values.min() * (1 + 1e-6):
        set_limits(values.min() / 2, values.max() * 2)


def _percentile_lines(ax: Axes, across: Array, upwards: Array) -> None:
    """Draw lines with most samples below, and a legend that says so."""
    look: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 0.8}
    ax.axhline(np.percentile(upwards, USUAL), label=f"{USUAL} % of the samples lie below", **look)
    ax.axvline(np.percentile(across, USUAL), **look)
    legend_below(ax)


def ring(ax: Axes, x: Array, y: Array) -> None:
    """Ring points, visibly on any colour."""
    look: dict[str, Any] = {"markersize": 8, "markerfacecolor": "none", "linestyle": "", "path_effects": _halo()}
    ax.plot(x, y, "o", color="black", **look)


def _halo() -> list[Any]:
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=3, foreground="white"), Normal()]


def _numbered(ax: Axes, across: Array, upwards: Array) -> None:
    """Ring points and number them from 1, each number where it covers no other."""
    ring(ax, across, upwards)
    ax.margins(0.08)
    ax.autoscale_view()
    ax.set_autoscale_on(False)  # places are found for these limits
    places = ax.transData.transform(np.column_stack([across, upwards])) * 72 / ax.figure.dpi  # points
    rings = [(float(x), float(y)) for x, y in places]
    taken: list[tuple[float, float]] = []
    for number, (x, y) in enumerate(rings, start=1):
        taken.append(_free((x, y), taken, rings))
        ax.annotate(
            f"{number}",
            (across[number - 1], upwards[number - 1]),
            xytext=(taken[-1][0] - x, taken[-1][1] - y),
            textcoords="offset points",
            color=RED,
            fontsize=SMALL + 1,
            fontweight="bold",
            path_effects=_halo(),
            ha="center",
            va="center",
        )


def _free(
    at: tuple[float, float], taken: list[tuple[float, float]], rings: list[tuple[float, float]]
) -> tuple[float, float]:
    """Return a place near a point, in points, clear of other numbers and of rings."""
    for radius in range(11, 90, 6):
        for angle in np.arange(0.25, 2.25, 0.25) * np.pi:
            x, y = at[0] + radius * np.cos(angle), at[1] + radius * np.sin(angle)
            free = all(abs(x - a) > 13 or abs(y - b) > 11 for a, b in taken)
            if free and all(np.hypot(x - a, y - b) > 9 for a, b in rings):
                return float(x), float(y)
    return at
