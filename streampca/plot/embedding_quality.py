"""Figures of the quality of an embedding: the neighbours it keeps, and the components of its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ModelError
from ..models.embedding import EmbeddingModel
from ..models.model import Model, require
from ..units import counted
from .drawing import BLUE, GREY, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def neighborhoods(model: Model, ax: Axes | None = None) -> Axes:
    """Draw the trustworthiness and continuity of an embedding by the number of neighbours.

    The same measures for as many principal components are dashed: an embedding is worthwhile where it is above these.

    Parameters
    ----------
    model : EmbeddingModel
        The model.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModelError
        If the model is not an embedding, or holds no such measurements.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits[:500], streampca.Isomap(n_neighbors=10))
    >>> axes = streampca.plot.neighborhoods(model)
    """
    curves = _measured(model, "neighborhoods", "measurements of several numbers of neighbours")
    ax = ax if ax is not None else new_figure(6.4, 4.4).add_subplot()
    numbers = curves["neighbors"]
    reference = counted(curves["components"], "principal component")
    for name, color in (("trustworthiness", BLUE), ("continuity", RED)):
        ax.plot(numbers, curves[name], color=color, marker="o", label=name)
        ax.plot(numbers, curves[f"components_{name}"], ".--", color=color, label=f"{name}, {reference}")
    ax.set_xscale("log")
    ax.set_xticks(numbers, [str(number) for number in numbers])
    # Minor ticks of a logarithmic axis would be labelled between the levels.
    ax.set_xticks([], minor=True)
    ax.set_ylim(top=1)
    ax.set_xlabel("neighbours")
    ax.set_ylabel("trustworthiness, continuity")
    ax.legend(fontsize="small", frameon=False)
    return ax


def graph_components(model: Model, ax: Axes | None = None) -> Axes:
    """Draw the sizes of the connected components of an embedding's graph, the largest first.

    Parameters
    ----------
    model : EmbeddingModel
        The model.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModelError
        If the model is not an embedding, or holds no facts about its graph.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits[:500], streampca.Isomap(n_neighbors=10))
    >>> axes = streampca.plot.graph_components(model)
    """
    facts = _measured(model, "facts", "facts of its graph")["components"]
    assert isinstance(model, EmbeddingModel)  # noqa: S101 - `_measured` refuses others
    ax = ax if ax is not None else new_figure(6.4, 4.4).add_subplot()
    sizes = np.array(facts["sizes"])
    numbers = np.arange(1, len(sizes) + 1)
    # Either the largest component alone is embedded, or all of them.
    embedded = 1 if len(model.embedding) < model.n_samples else len(sizes)
    ax.bar_label(ax.bar(numbers[:embedded], sizes[:embedded], color=BLUE, label="embedded"), fmt="{:.0f}")
    if embedded < len(sizes):
        ax.bar_label(ax.bar(numbers[embedded:], sizes[embedded:], color=GREY, label="left out"), fmt="{:.0f}")
        ax.legend(fontsize="small", frameon=False)
    ax.set_yscale("log")
    ax.set_ylim(0.5, 3 * sizes[0])
    ax.set_xticks(numbers)
    ax.set_xlabel("component" + (f", the largest of {facts['count']}" if facts["count"] > len(sizes) else ""))
    ax.set_ylabel("samples")
    more = f"; {facts['connecting']} connect them" if facts["count"] > 1 and facts["connecting"] is not None else ""
    ax.set_title(f"{counted(facts['count'], 'component')} by {model.n_neighbors} neighbours{more}")
    return ax


def _measured(model: Model, name: str, what: str) -> Any:
    """Return a measurement of an embedding; refuse other models."""
    measured = require(model, EmbeddingModel, "the figure is of embeddings").measured
    if name not in measured:
        raise ModelError(f"{model.name} is of kind {model.kind!r}, which holds no {what}; give another embedding.")
    return measured[name]
