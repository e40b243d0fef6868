"""One sample or component in one panel: as a grey, colour or signed image, or as a line; what `plot` is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    AnyFigure: TypeAlias = Figure | SubFigure

Array = npt.NDArray[Any]
AxesGrid: TypeAlias = npt.NDArray[np.object_]

DPI = 150
SMALL = 8  # points of the text at a panel
BLUE, GREY = "#004488", "#BBBBBB"  # the blue of Paul Tol's "high-contrast" scheme


def draw(ax: Axes, image: Array, limits: tuple[float, float] | None = None, *, signed: bool = False) -> None:
    """Draw a picture; NaN stays blank. Signed ones get a scale symmetric about zero, others grey between limits."""
    low, high = limits or limits_of(image)
    if signed:
        high = max(-low, high) or 1.0
        low = -high
    if image.ndim == 1:
        _line(ax, image, (low, high), signed)
        return
    if image.ndim == 3:
        known = np.isfinite(image).all(axis=-1, keepdims=True)
        shown = np.clip((np.where(known, image, low) - low) / ((high - low) or 1.0), 0, 1)
        ax.imshow(np.concatenate([shown, known], axis=-1), interpolation="nearest")
    else:
        ax.imshow(image, cmap="RdBu_r" if signed else "gray", vmin=low, vmax=high, interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(color=GREY, linewidth=0.5)


def picture(sample: Array) -> Array:
    """Make a sample of any number of axes drawable: (x,), (y, x) or (y, x, 3).

    Of more axes the middle slice is taken, until two axes or three channels are left. Alpha is left out.
    """
    if sample.ndim > 1 and sample.shape[-1] == 1:
        sample = sample[..., 0]
    while sample.ndim > 2:
        if sample.ndim == 3 and sample.shape[-1] in (3, 4):
            return sample[..., :3]
        sample = sample[sample.shape[0] // 2]
    return sample


def limits_of(image: Array) -> tuple[float, float]:
    """Least and greatest value; in colour black and 8-bit white stay, else stretching would change the colours."""
    finite = image[np.isfinite(image)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if image.ndim == 3:
        return min(low, 0.0), 255.0 if 1 < high <= 255 else high
    return low, high


def _line(ax: Axes, values: Array, limits: tuple[float, float], signed: bool) -> None:
    if signed:
        ax.axhline(0, color=GREY, linewidth=0.5)
    ax.plot(values, color=BLUE if signed else "black", linewidth=0.8)
    margin = 0.05 * (limits[1] - limits[0]) or 1.0
    ax.set_ylim(limits[0] - margin, limits[1] + margin)
    ax.tick_params(labelsize=SMALL - 2)
    ax.locator_params(nbins=3)


def sign_scale(figure: AnyFigure, axes: AxesGrid) -> None:
    """Say what the colours of the components mean."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(-1, 1), "RdBu_r")
    bar = figure.colorbar(scale, ax=list(axes), location="bottom", shrink=0.6, aspect=40, ticks=[-1, 0, 1])
    bar.ax.set_xticklabels(["\N{MINUS SIGN}max", "0", "+max"], fontsize=SMALL)
    bar.set_label("loading, each component on its own scale", fontsize=SMALL)


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of a size in inches that keeps its texts apart."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def grid_size(
    sample: Array, rows: int, columns: int, *, wide: float = 1.4, caption: float = 0.25, rest: float = 0.3
) -> tuple[float, float]:
    """Inches for a grid of pictures of a sample, each `wide` and with `caption` of text, and `rest` for other texts."""
    image = picture(sample)
    aspect = float(np.clip(image.shape[0] / image.shape[1], 0.3, 2.5)) if image.ndim > 1 else 0.8
    return wide * columns, (wide * aspect + caption) * rows + rest
