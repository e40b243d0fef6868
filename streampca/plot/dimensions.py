"""Curves that show the number of dimensions or clusters of an embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..models.embedding import IsomapModel, SpectralEmbeddingModel
from ..models.model import Model, require
from .drawing import BLUE, GREY, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def residual_variance(model: Model, ax: Axes | None = None) -> Axes:
    """Draw the share of the variance of geodesic distances that an Isomap does not explain, by number of dimensions.

    Parameters
    ----------
    model : IsomapModel
        The model.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModelError
        If the model is of another kind.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits[:500], streampca.Isomap(n_neighbors=10))
    >>> axes = streampca.plot.residual_variance(model)
    """
    model = require(model, IsomapModel, "residual variances are of kind 'isomap'")
    ax = ax if ax is not None else new_figure(6.4, 4.4).add_subplot()
    numbers = np.arange(1, len(model.residual_variance) + 1)
    ax.plot(numbers, model.residual_variance, color=BLUE, marker="o")
    ax.axvline(model.n_scores, color=GREY, linewidth=0.8)
    # The bend of the curve is meaningful relative to 0 only.
    ax.set_ylim(bottom=0)
    ax.set_xticks(numbers)
    ax.set_xlabel("dimensions")
    ax.set_ylabel("residual variance")
    ax.set_title(f"{model.n_scores} dimensions leave {model.residual_variance[model.n_scores - 1]:.3g}")
    return ax


def eigengap(model: Model, ax: Axes | None = None) -> Axes:
    """Draw the smallest eigenvalues of the graph's Laplacian, and the largest gap between two of them.

    The number of eigenvalues before a large gap is the number of well-separated clusters.

    Parameters
    ----------
    model : SpectralEmbeddingModel
        The model, or a model of spectral clustering.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ModelError
        If the model is of another kind.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import make_moons
    >>> moons, _ = make_moons(300, noise=0.05, random_state=0)
    >>> model = streampca.fit(moons, streampca.SpectralClustering(2))
    >>> axes = streampca.plot.eigengap(model)
    """
    model = require(model, SpectralEmbeddingModel, "eigenvalues of the Laplacian are of spectral kinds")
    ax = ax if ax is not None else new_figure(6.4, 4.4).add_subplot()
    values = model.laplacian_eigenvalues
    numbers = np.arange(1, len(values) + 1)
    ax.plot(numbers, values, color=BLUE, marker="o", linestyle="none")
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("of the graph's Laplacian")
    if len(values) > 2:
        after = int(np.argmax(np.diff(values[1:]))) + 2  # the first eigenvalue is 0 in every connected graph
        ax.axvline(after + 0.5, color=GREY, linewidth=0.8)
        ax.set_title(f"largest gap: after eigenvalue {after}")
    ax.set_xticks(numbers)
    return ax
