"""Drawing of one panel: a sample or component as one or several grey, colour or signed images, or as a line.

A panel shows *pictures*: an array (pictures, y, x) or (pictures, y, x, 3), or (1, x) for a line, with NaN for missing
values. `streampca.models.sample_images` computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..models.sample_images import layout_of, limits_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    AnyFigure: TypeAlias = Figure | SubFigure

AxesGrid: TypeAlias = npt.NDArray[np.object_]

DPI = 150
SMALL, TINY = 8, 6  # size in points of text beside a panel, and inside it
MARGIN = 0.06  # inches around a figure that its layout leaves free
OUTLINE = "#555555"  # outline of missing pixels, such as coasts
MOST_OUTLINES = 5_000  # lines of outlines; more are around single pixels, and show nothing
# Paul Tol's "high-contrast" blue and red, which can be distinguished with any colour vision.
BLUE, RED, GREY = "#004488", "#BB5566", "#BBBBBB"
MISSING = "#D8D8D8"  # hatching of missing pixels: white would look like zero, grey like a value
LITERAL: dict[str, Any] = {"parse_math": False}  # for text from files, in which $ is a dollar sign


def draw(
    ax: Axes,
    pictures: Array,
    limits: Array | tuple[float, float] | None = None,
    *,
    signed: bool = False,
    captions: Sequence[str] = (),
    x: Array | None = None,
) -> None:
    """Draw the pictures of one panel; NaN is hatched and outlined.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Where to draw.
    pictures : ndarray of shape (pictures, y, x), (pictures, y, x, 3) or (1, x)
        Images, or a line.
    limits : (low, high) or ndarray of shape (pictures, 2), optional
        Values drawn black and white; by default the smallest and largest of all.
    signed : bool, default=False
        Use a scale from blue over white to red, symmetric about zero; otherwise grey.
    captions : sequence of str
        Caption of each picture; none for a single picture.
    x : ndarray of shape (x,), optional
        Positions of the values of a line along the axis.
    """
    levels = np.asarray(limits_of(pictures) if limits is None else limits, np.float64)
    if signed:
        # Symmetric, so that zero is white.
        levels = np.array([-1.0, 1.0]) * (np.abs(levels).max() or 1.0)
    if pictures.ndim == 2:
        _line(ax, np.arange(pictures.shape[1]) if x is None else x, pictures[0], levels.ravel(), signed)
        return
    layout = layout_of(pictures.shape)
    levels_of_pictures = np.broadcast_to(levels, (len(pictures), 2))
    for number, (image, (low, high)) in enumerate(zip(pictures, levels_of_pictures, strict=True)):
        row, column = divmod(number, layout.columns)
        left, top = column * layout.step_x, row * layout.step_y
        _image(ax, image, (left - 0.5, top - 0.5), (float(low), float(high)), signed)
        if len(pictures) > 1:
            text: dict[str, Any] = {"fontsize": TINY, "verticalalignment": "bottom", "horizontalalignment": "left"}
            ax.text(left - 0.5, top - 0.5, captions[number], **text, **LITERAL)
    ax.set(xticks=[], yticks=[], aspect="equal")
    ax.set_xlim(-0.5, layout.width - 0.5)
    ax.set_ylim(layout.height - 0.5, -0.5 - layout.head)
    ax.spines[:].set(color=GREY, linewidth=0.5, visible=len(pictures) == 1)


def _image(ax: Axes, image: Array, at: tuple[float, float], limits: tuple[float, float], signed: bool) -> None:
    """Draw one image with its upper left corner at `at`."""
    from matplotlib.patches import Rectangle

    from .hard_image import show

    (low, high), (left, top), (tall, wide) = limits, at, image.shape[:2]
    finite: Array = np.isfinite(image) if image.ndim == 2 else np.asarray(np.isfinite(image).all(axis=-1))
    extent = (left, left + wide, top + tall, top)
    if image.ndim == 3:
        # Colour images have no colour map: scale them to 0 to 1.
        shown = np.clip((np.where(finite[..., None], image, low) - low) / ((high - low) or 1.0), 0, 1)
        # An alpha channel makes missing pixels transparent, so that the hatching shows.
        show(ax, np.concatenate([shown, finite[..., None]], axis=-1), extent)
    else:
        if high <= low:
            low, high = low - 0.5, high + 0.5  # an even image is grey, not black
        show(ax, image, extent, cmap="RdBu_r" if signed else "gray", vmin=low, vmax=high)
    hatch: dict[str, Any] = {} if finite.all() else {"hatch": "/////", "zorder": -1}
    if hatch:
        _outline(ax, finite, at)
    ax.add_patch(
        Rectangle(at, wide, tall, facecolor="none", edgecolor=MISSING if hatch else GREY, linewidth=0.5, **hatch)
    )


def _outline(ax: Axes, finite: Array, at: tuple[float, float]) -> None:
    """Draw the outlines of the missing pixels of an image with its upper left corner at `at`."""
    from matplotlib.collections import LineCollection

    # One line for each run of borders between finite and missing pixels, not for each pixel.
    row, top, bottom = _runs((finite[:, 1:] != finite[:, :-1]).T)
    column, left, right = _runs(finite[1:] != finite[:-1])
    upright = np.array([[row + 1, top], [row + 1, bottom]])
    level = np.array([[left, column + 1], [right, column + 1]])
    lines = np.moveaxis(np.concatenate([upright, level], axis=-1), -1, 0) + at
    if len(lines) <= MOST_OUTLINES:
        ax.add_collection(LineCollection(lines.tolist(), colors=OUTLINE, linewidths=0.6), autolim=False)


def _runs(marked: Array) -> tuple[Array, Array, Array]:
    """Return runs of marked entries in the rows of an array: rows, first entries, and ends."""
    # Padding lets runs start and end at the borders.
    change = np.diff(np.pad(marked, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(change == 1)
    return rows, starts, np.nonzero(change == -1)[1]


def _line(ax: Axes, x: Array, values: Array, limits: Array, signed: bool) -> None:
    low, high = limits.min(), limits.max()
    if signed:
        ax.axhline(0, color=GREY, linewidth=0.5)
    ax.plot(x, values, color=BLUE if signed else "black", linewidth=0.8)
    # An even line is drawn in the middle.
    margin = 0.05 * (high - low) or 1.0
    ax.set_ylim(low - margin, high + margin)
    ax.tick_params(labelsize=TINY)
    ax.locator_params(nbins=3)


def legend_below(ax: Axes, columns: int = 1) -> None:
    """Add a legend under the label of the horizontal axis."""
    # The padding is in units of the font's size, so that the legend stays clear of the label of small axes too.
    look: dict[str, Any] = {"fontsize": SMALL, "frameon": False, "borderaxespad": 4.8}
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, **look)


def sign_scale(figure: AnyFigure, axes: AxesGrid, what: str) -> None:
    """Add a colour bar for signed images."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(-1, 1), "RdBu_r")
    bar = figure.colorbar(
        scale, ax=axes.ravel().tolist(), location="bottom", shrink=0.6, aspect=40, pad=0.02, ticks=[-1, 0, 1]
    )
    bar.ax.set_xticklabels(["\N{MINUS SIGN}max", "0", "+max"], fontsize=SMALL)
    bar.set_label(what, fontsize=SMALL, **LITERAL)


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of a size in inches, with a layout in which texts do not overlap."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # The layout is exact to a few pixels only, which would cut titles of panels of several pictures.
    inner = (MARGIN / width, MARGIN / height, 1 - 2 * MARGIN / width, 1 - 2 * MARGIN / height)
    return Figure(figsize=(width, height), dpi=DPI, layout=ConstrainedLayoutEngine(rect=inner))
