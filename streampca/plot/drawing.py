"""Drawing in one panel: a sample or component as a grey, colour or signed image, as several, or as a line.

A panel shows *pictures*: an array (pictures, y, x) or (pictures, y, x, 3), or (1, x) for a line, NaN where nothing is
known. `streampca.models.sample_images` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..models.sample_images import Array, layout_of, limits_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    AnyFigure: TypeAlias = Figure | SubFigure

AxesGrid: TypeAlias = npt.NDArray[np.object_]

DPI = 150
SMALL, TINY = 8, 6  # points of the text at a panel, and inside it
MARGIN = 0.06  # inches around a figure that its layout leaves free
OUTLINE = "#555555"  # around pixels where nothing is known, such as coasts
MOST_OUTLINES = 5_000  # lines of them: more are around single pixels, and show nothing
# Paul Tol's "high-contrast" blue and red, told apart with any colour vision.
BLUE, RED, GREY = "#004488", "#BB5566", "#BBBBBB"
MISSING = "#D8D8D8"  # of the hatching where nothing is known: white would look like zero, grey like a value
LITERAL: dict[str, Any] = {"parse_math": False}  # of every text that comes from a file: a $ is a dollar


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
        Where.
    pictures : ndarray of shape (pictures, y, x), (pictures, y, x, 3) or (1, x)
        Images, or a line.
    limits : (low, high) or ndarray of shape (pictures, 2), optional
        Values drawn black and white; by default the least and greatest of all.
    signed : bool, default=False
        Use a scale from blue over white to red, symmetric about zero; else grey.
    captions : sequence of str
        One for each picture; none for one picture.
    x : ndarray of shape (x,), optional
        Where along the axis the values of a line are.
    """
    given = np.asarray(limits_of(pictures) if limits is None else limits, np.float64)
    if signed:
        given = np.array([-1.0, 1.0]) * (np.abs(given).max() or 1.0)
    if pictures.ndim == 2:
        _line(ax, np.arange(pictures.shape[1]) if x is None else x, pictures[0], given.ravel(), signed)
        return
    layout = layout_of(pictures.shape)
    each = np.broadcast_to(given, (len(pictures), 2))
    for number, (image, (low, high)) in enumerate(zip(pictures, each, strict=True)):
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
    """Draw one image with its upper left corner at a place."""
    from matplotlib.patches import Rectangle

    (low, high), (left, top), (tall, wide) = limits, at, image.shape[:2]
    known: Array = np.isfinite(image) if image.ndim == 2 else np.asarray(np.isfinite(image).all(axis=-1))
    look: dict[str, Any] = {"extent": (left, left + wide, top + tall, top), "interpolation": "antialiased"}
    if image.ndim == 3:
        shown = np.clip((np.where(known[..., None], image, low) - low) / ((high - low) or 1.0), 0, 1)
        ax.imshow(np.concatenate([shown, known[..., None]], axis=-1), **look)
    else:
        if high <= low:
            low, high = low - 0.5, high + 0.5  # an even image is grey, not black
        ax.imshow(image, cmap="RdBu_r" if signed else "gray", vmin=low, vmax=high, **look)
    hatch: dict[str, Any] = {} if known.all() else {"hatch": "/////", "zorder": -1}
    if hatch:
        _outline(ax, known, at)
    ax.add_patch(
        Rectangle(at, wide, tall, facecolor="none", edgecolor=MISSING if hatch else GREY, linewidth=0.5, **hatch)
    )


def _outline(ax: Axes, known: Array, at: tuple[float, float]) -> None:
    """Draw the outlines of the unknown pixels of an image with its upper left corner at a place."""
    from matplotlib.collections import LineCollection

    row, top, bottom = _runs((known[:, 1:] != known[:, :-1]).T)
    column, left, right = _runs(known[1:] != known[:-1])
    upright = np.array([[row + 1, top], [row + 1, bottom]])
    level = np.array([[left, column + 1], [right, column + 1]])
    lines = np.moveaxis(np.concatenate([upright, level], axis=-1), -1, 0) + at
    if len(lines) <= MOST_OUTLINES:
        ax.add_collection(LineCollection(lines.tolist(), colors=OUTLINE, linewidths=0.6), autolim=False)


def _runs(marked: Array) -> tuple[Array, Array, Array]:
    """Return the runs of marked entries in the rows of an array: their rows, first entries, and ends."""
    change = np.diff(np.pad(marked, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(change == 1)
    return rows, starts, np.nonzero(change == -1)[1]


def _line(ax: Axes, x: Array, values: Array, limits: Array, signed: bool) -> None:
    low, high = limits.min(), limits.max()
    if signed:
        ax.axhline(0, color=GREY, linewidth=0.5)
    ax.plot(x, values, color=BLUE if signed else "black", linewidth=0.8)
    margin = 0.05 * (high - low) or 1.0
    ax.set_ylim(low - margin, high + margin)
    ax.tick_params(labelsize=TINY)
    ax.locator_params(nbins=3)


def legend_below(ax: Axes, columns: int = 1) -> None:
    """Add a legend under the label of the horizontal axis."""
    # In units of the font's size, so that it stays clear of the label however small the axes are.
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
    """Return a figure of a size in inches, laid out so that texts do not overlap."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # The layout is exact to a few pixels only, by which titles of panels of several pictures would be cut.
    inner = (MARGIN / width, MARGIN / height, 1 - 2 * MARGIN / width, 1 - 2 * MARGIN / height)
    return Figure(figsize=(width, height), dpi=DPI, layout=ConstrainedLayoutEngine(rect=inner))
