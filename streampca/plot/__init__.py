"""Figures of a model and its samples.

Each function takes a model, draws into given axes or a given figure, or a new one, and returns matplotlib axes; the
first call loads matplotlib. Figures are created as objects, never through pyplot: no global state changes, no figure is
left open, and the backend stays the one that the caller chose.

One file per kind of figure, all drawn with `drawing`; `streampca.models.sample_images` decides which part of a sample
is drawn, and reduces components that are larger than memory to pictures.
"""

from __future__ import annotations

from .components import mean_and_components, walks
from .compression_curve import compression
from .dimensions import eigengap, residual_variance
from .embedding_quality import graph_components, neighborhoods
from .overview_figure import overview, save
from .quantile_grid import nearest_to_quantiles, quantile_images, quantiles
from .reconstruction import reconstructions, unusual
from .score_plots import outliers, scores
from .series import series
from .spectrum import scree

__all__ = [
    "compression",
    "eigengap",
    "graph_components",
    "mean_and_components",
    "nearest_to_quantiles",
    "neighborhoods",
    "outliers",
    "overview",
    "quantile_images",
    "quantiles",
    "reconstructions",
    "residual_variance",
    "save",
    "scores",
    "scree",
    "series",
    "unusual",
    "walks",
]
