"""The pictures of a model: people look before they read.

Each function takes a model, draws into the axes or figure it is given or makes its own, and returns matplotlib axes;
matplotlib is loaded by the first that is called. Figures are made as objects, never through pyplot: nothing global is
set, nothing is left open, and any backend the caller chose stays.

One file a family of pictures: `spectrum` (the variances), `images` (mean, components, walks along them), `kept`
(reconstructions and what they miss), `points` (scores, outliers), `arranged` (samples at quantiles of their scores),
`sizes` (compression), `pages` (all on one page, and files). `views` decides which part of a sample is drawn, and makes
pictures of components that are larger than memory.
"""

from __future__ import annotations

from .components import mean_and_components, walks
from .compression_curve import compression
from .overview_figure import overview, save
from .quantile_grid import nearest_to_quantiles, quantiles
from .reconstruction import reconstructions, unusual
from .score_plots import outliers, scores
from .spectrum import scree

__all__ = [
    "compression",
    "mean_and_components",
    "nearest_to_quantiles",
    "outliers",
    "overview",
    "quantiles",
    "reconstructions",
    "save",
    "scores",
    "scree",
    "unusual",
    "walks",
]
