"""Spectrum of a model: variances, cumulative variances, and the numbers of components by rules of thumb."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..eigensolvers.n_components import Rule, above_noise, median_edge, noise_edge
from ..planning.request import ELBOW_SHOWN
from ..units import counted
from .components import check_components
from .drawing import BLUE, GREY, RED, SMALL, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..models.components import ComponentsModel

    Float64 = npt.NDArray[np.float64]

MARKS = (0.80, 0.90, 0.95, 0.99)  # shares of the variance whose number of components is marked
OFFSET = 0.03  # share of the axis between a mark and its text, clear of a steep start
ROUNDING = 1e-12  # share of the first variance below which values are rounding, and would stretch a logarithmic scale


def scree(model: ComponentsModel, ax: Axes | None = None) -> Axes:
    """Draw the share of the variance of each component, and the cumulative share.

    Parameters
    ----------
    model : ComponentsModel
        Model, whose kept components are shown; if more variances are known, at least the first 50.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        Axes of the single shares, on a logarithmic scale if they span more than a factor of 30; second axes on the
        right show the sums, and mark the numbers of components that reach 80, 90, 95 and 99 %. The elbow and the
        Marchenko-Pastur edge of white noise are drawn as found by ``n_components="elbow"`` and ``"mp"``, if enough
        variances are known.

    Raises
    ------
    ModelError
        If the model's scores do not lie along components, or it has none.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> axes = streampca.plot.scree(model)
    """
    from matplotlib.ticker import MaxNLocator

    check_components(model)
    ax = ax if ax is not None else new_figure(6.4, 4.4).add_subplot()
    variances = _KnownVariances.of(model)
    ratios, kept = variances.values / variances.total, len(model.explained_variance_ratio)
    _single(ax, ratios, kept)
    _rules(ax, variances)
    held = float(np.sum(ratios[:kept]))
    count = f"{kept} components hold" if kept > 1 else "1 component holds"
    ax.set_title(f"{count} {100 * held:.3g} % of the variance")
    ax.set_xlabel("component")
    ax.set_xlim(0.5, len(ratios) + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _sums(ax, np.cumsum(ratios), reached(model))
    return ax


def reached(model: ComponentsModel) -> dict[int, float]:
    """Return the numbers of components that reach `MARKS` in `scree`, each with the highest share it reaches."""
    variances = _KnownVariances.of(model)
    sums = np.cumsum(variances.values / variances.total)
    return {int(np.argmax(sums >= mark)) + 1: mark for mark in MARKS if sums[-1] >= mark}


@dataclass(frozen=True)
class _KnownVariances:
    """Leading variances, descending, and the sum and number of the others.

    Attributes
    ----------
    values : ndarray of shape (m,)
        Variances to draw: at least the model's.
    every : ndarray of shape (m or more,)
        All known variances.
    total : float
        Sum of all variances.
    most : int
        Largest possible number of variances above zero.
    rule : Rule
        Rule of the Marchenko-Pastur edge, with the numbers of samples and features.
    """

    values: Float64
    every: Float64
    total: float
    most: int
    rule: Rule

    @classmethod
    def of(cls, model: ComponentsModel) -> _KnownVariances:
        kept = np.asarray(model.explained_variance, np.float64)
        every = kept if model.eigenvalues is None else np.asarray(model.eigenvalues, np.float64)
        most = min(model.n_samples - 1, model.n_features)
        # The elbow is that of the first 50 variances: show them all.
        shown = every[: max(len(kept), min(ELBOW_SHOWN, most))]
        rule = Rule("mp", model.n_samples, model.n_features, model.total_weight)
        return cls(shown, every, model.total_variance, most, rule)

    @property
    def complete(self) -> bool:
        return len(self.every) >= self.most

    def elbow(self) -> int | None:
        """Return the elbow, if enough variances are known that further ones would not move it."""
        return replace(self.rule, name="elbow").count(self.every, self.total, self.complete)

    def edge(self) -> tuple[float, int] | None:
        """Return the edge of white noise and the number of variances above it; None if unknown."""
        if self.rule.copies < 3 or not self.every[0] > 0:
            return None
        size: Any = (self.rule.copies, self.rule.n_features)
        values = self.rule.of_copies(self.every) if self.complete else self.every
        count = above_noise(values, self.total, *size, complete=self.complete)
        if self.complete:
            return median_edge(values, *size), count
        return (noise_edge(self.every, self.total, count, *size), count) if count < len(self.every) else None


def _single(ax: Axes, ratios: Array, kept: int) -> None:
    """Draw the single shares, of kept components in blue, of others in grey."""
    numbers = np.arange(1, len(ratios) + 1)
    positive = ratios > ROUNDING * ratios[0]
    heights = 100 * np.where(positive, ratios, np.nan)
    ax.plot(numbers[:kept], heights[:kept], "o-", color=BLUE, markersize=3, linewidth=1, label="kept")
    if len(ratios) > kept:
        ax.plot(numbers[kept:], heights[kept:], "o", color=GREY, markersize=3, label="not kept")
    least, greatest = np.nanmin(heights, initial=np.inf), np.nanmax(heights, initial=0.0)
    if greatest > 30 * least:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
    else:
        ax.set_ylim(0, 1.05 * max(greatest, 1.0))
    ax.set_ylabel("variance (%)", color=BLUE)


def _rules(ax: Axes, variances: _KnownVariances) -> None:
    """Draw the elbow and the edge of noise, and add a legend below the axes."""
    bend, edge = variances.elbow(), variances.edge()
    if bend is not None:
        label = f"elbow: {counted(bend, 'component')}"
        ax.axvline(bend, color="black", linestyle=":", linewidth=0.8, label=label)
    if edge is not None:
        value, count = edge
        height, low = 100 * value / variances.total, ax.get_ylim()[0]
        label = f"Marchenko\N{EN DASH}Pastur edge of white noise: {count} above"
        if height >= low:
            ax.axhline(height, color="black", linestyle="--", linewidth=0.8, label=label)
        else:
            # An edge below the scale is mentioned in the legend only.
            ax.plot([], [], linestyle="", label=f"{label} (off the scale)")
    if len(ax.get_legend_handles_labels()[0]) > 1:
        legend_below(ax, 2)


def _sums(ax: Axes, sums: Array, marks: dict[int, float]) -> None:
    """Draw the cumulative curve on second axes, and mark where it reaches `MARKS`."""
    right = ax.twinx()
    right.plot(np.arange(1, len(sums) + 1), 100 * sums, color=RED, linewidth=1.5, marker="." if len(sums) == 1 else "")
    right.set_ylabel("cumulative variance (%)", color=RED)
    # Space above the curve, which ends at 100.
    right.set_ylim(0, 104)
    level = np.inf
    for number, mark in reversed(marks.items()):
        # From the highest mark down, each text is below the one before, as texts beside their marks could overlap.
        level = min(100 * mark - 5, level - 9)
        at, late = (number, 100 * sums[number - 1]), number > 0.7 * len(sums)
        right.plot(*at, "o", color=RED, markersize=4)
        right.annotate(
            f"{100 * mark:.0f} % by {number}",
            at,
            xytext=(number + OFFSET * len(sums) * (-1 if late else 1), level),
            horizontalalignment="right" if late else "left",
            verticalalignment="top",
            fontsize=SMALL,
            arrowprops={"arrowstyle": "-", "color": RED, "linewidth": 0.5, "shrinkA": 0},
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )
