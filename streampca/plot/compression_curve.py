"""Quality and size of compression against the number of components."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array
from ..errors import ModelError
from ..models.images import ImageModel
from ..models.model import Model, require
from ..units import counted, format_bytes
from .drawing import BLUE, RED, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..models.compression import Compression


def compression(figures: Compression, ax: Axes | None = None) -> Axes:
    """Draw the quality and the stored bytes of reconstructions against the number of components.

    Parameters
    ----------
    figures : Compression
        Result of `PCAModel.compression`.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
        Axes of the peak signal-to-noise ratio (dB), or of the root mean square error if no peak is known; second axes
        on the right show the bytes of scores, components and mean, in per cent of the original. If noisy samples were
        compared with clean ones, the error of the noisy samples is drawn too, and the best number is marked.

    Raises
    ------
    ModelError
        If a model is given in place of its figures.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> figures = model.compression(digits)
    >>> axes = streampca.plot.compression(figures)
    """
    from matplotlib.ticker import MaxNLocator

    if isinstance(figures, Model):
        model = require(figures, ImageModel, "the figure is of images made of principal components")
        raise ModelError(f"{model.name} is a model, and the figure is of its compression; give model.compression().")
    ax = ax if ax is not None else new_figure(6.4, 4.2).add_subplot()
    numbers = np.asarray(figures.n_components)
    has_peak = figures.psnr is not None
    # The PSNR of an exact reconstruction is infinite, and leaves a gap.
    quality = np.asarray(figures.psnr if has_peak else figures.rmse, np.float64)
    ax.plot(numbers, np.where(np.isfinite(quality), quality, np.nan), "o-", color=BLUE, markersize=4, linewidth=1.2)
    _against_clean(ax, figures, quality)
    ax.set_xlabel("components")
    ax.set_ylabel(f"PSNR (dB) for a peak of {figures.peak:.6g}" if has_peak else "RMSE", color=BLUE)
    # Most of the change is at small numbers.
    if len(numbers) > 1 and numbers.max() > 30 * numbers.min():
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    right = ax.twinx()
    share = 100 * np.asarray(figures.stored_bytes, np.float64) / figures.original_bytes
    right.plot(numbers, share, "s--", color=RED, markersize=3, linewidth=1.2)
    right.set_ylabel("stored bytes (% of the original)", color=RED)
    right.set_ylim(0, 1.08 * max(share.max(), 1e-9))
    if share.max() >= 100:
        right.axhline(100, color=RED, linestyle=":", linewidth=0.8)
    ax.set_title(f"{figures.n_samples} samples, originally {format_bytes(figures.original_bytes)}")
    return ax


def _against_clean(ax: Axes, figures: Compression, quality: Array) -> None:
    """Draw the error of the noisy samples themselves, and the best number of components."""
    noisy = figures.given_rmse if figures.psnr is None else figures.given_psnr
    if noisy is None:
        return
    ax.axhline(noisy, color="black", linestyle=":", linewidth=1, label="the noisy samples themselves")
    at = int(np.flatnonzero(figures.n_components == figures.best)[0])
    label = f"best: {counted(figures.best, 'component')}"
    ax.plot(figures.best, quality[at], "D", color="black", markerfacecolor="none", markersize=9, label=label)
    legend_below(ax, 2)
