"""One sample or component in one panel: as a grey, colour or signed image, as several, or as a line; `plot`'s bricks.

What a panel shows are *pictures*: an array (pictures, y, x) or (pictures, y, x, 3), or (1, x) for a line, NaN where
nothing is known. `streampca.models.views` makes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    AnyFigure: TypeAlias = Figure | SubFigure

Array = npt.NDArray[Any]
AxesGrid: TypeAlias = npt.NDArray[np.object_]

DPI = 150
SMALL, TINY = 8, 6  # points of the text at a panel, and inside it
WIDER = 1.4  # than tall, of several pictures in one panel
GAP = 0.06  # between pictures of one panel, of their width
# Paul Tol's "high-contrast" blue and red, told apart with any colour vision.
BLUE, RED, GREY = "#004488", "#BB5566", "#BBBBBB"
MISSING = "#D8D8D8"  # of the hatching where nothing is known: white would look like zero, grey like a value
LITERAL: dict[str, Any] = {"parse_math": False}  # of every text that comes from a file: a $ is a dollar


class Shape(NamedTuple):
    """How pictures stand in a panel, in their own pixels."""

    columns: int
    rows: int
    step_x: float
    step_y: float
    width: float
    height: float


def draw(
    ax: Axes,
    pictures: Array,
    limits: Array | tuple[float, float] | None = None,
    *,
    signed: bool = False,
    captions: Sequence[str] = (),
    x: Array | None = None,
) -> None:
    """Draw what belongs in one panel; NaN stays blank, hatched.

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
    shape = shape_of(pictures.shape)
    each = np.broadcast_to(given, (len(pictures), 2))
    for number, (image, (low, high)) in enumerate(zip(pictures, each, strict=True)):
        row, column = divmod(number, shape.columns)
        left, top = column * shape.step_x, row * shape.step_y
        _image(ax, image, (left - 0.5, top - 0.5), (float(low), float(high)), signed)
        if len(pictures) > 1:
            text: dict[str, Any] = {"fontsize": TINY, "verticalalignment": "bottom", "horizontalalignment": "left"}
            ax.text(left - 0.5, top - 0.5, captions[number], **text, **LITERAL)
    ax.set(xticks=[], yticks=[], aspect="equal")
    ax.set_xlim(-0.5, shape.width - 0.5)
    ax.set_ylim(shape.height - 0.5, -0.5 - (_head(shape.step_x) if len(pictures) > 1 else 0))
    ax.spines[:].set(color=GREY, linewidth=0.5, visible=len(pictures) == 1)


def shape_of(pictures: tuple[int, ...]) -> Shape:
    """How pictures of a shape (pictures, y, x, ...) stand in a panel: rather wider than tall, with few places empty."""
    count, tall, wide = pictures[:3]
    if count == 1:
        return Shape(1, 1, wide, tall, wide, tall)
    step_x = wide * (1 + GAP)
    step_y = tall + wide * GAP + _head(step_x)

    def odd(columns: int) -> float:
        rows = -(-count // columns)
        return abs(math.log(columns * step_x / (rows * step_y) / WIDER)) + 2 * (1 - count / (rows * columns))

    columns = min(range(1, count + 1), key=odd)
    rows = -(-count // columns)
    return Shape(columns, rows, step_x, step_y, columns * step_x, rows * step_y - _head(step_x))


def _head(width: float) -> float:
    """Room for a caption above a picture of a width, of about 0.8 inch."""
    return 0.14 * width


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
    ax.add_patch(
        Rectangle(at, wide, tall, facecolor="none", edgecolor=MISSING if hatch else GREY, linewidth=0.5, **hatch)
    )


def _line(ax: Axes, x: Array, values: Array, limits: Array, signed: bool) -> None:
    low, high = limits.min(), limits.max()
    if signed:
        ax.axhline(0, color=GREY, linewidth=0.5)
    ax.plot(x, values, color=BLUE if signed else "black", linewidth=0.8)
    margin = 0.05 * (high - low) or 1.0
    ax.set_ylim(low - margin, high + margin)
    ax.tick_params(labelsize=TINY)
    ax.locator_params(nbins=3)


def picture(sample: Array) -> Array:
    """Make a sample of any number of axes drawable in little room: (x,), (y, x) or (y, x, 3).

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
    """Least and greatest value; in colour black and 8-bit white stay, else stretching would change the colours.

    Parameters
    ----------
    image : ndarray of shape (..., y, x, 3), (pictures, y, x), (y, x) or (x,)
        Colours are taken for what they are by a last axis of three.
    """
    finite = image[np.isfinite(image)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if image.ndim >= 3 and image.shape[-1] == 3:
        return min(low, 0.0), 255.0 if 1 < high <= 255 else high
    return low, high


def shown(text: object, most: int = 24) -> str:
    """Text from a file, as it can be drawn: on one line, its middle left out where it is longer than `most`."""
    whole = str(text).encode("utf-8", "replace").decode()  # file names may hold what is no text
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in whole).split())
    if len(words) <= most:
        return words
    return f"{words[: most // 2]}\N{HORIZONTAL ELLIPSIS}{words[len(words) - (most - most // 2 - 1) :]}"


def legend_below(ax: Axes, columns: int = 1) -> None:
    """Name what is drawn, under the label of the horizontal axis."""
    # In units of the font's size, so that it stays clear of the label however small the axes are.
    look: dict[str, Any] = {"fontsize": SMALL, "frameon": False, "borderaxespad": 4.8}
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, **look)


def sign_scale(figure: AnyFigure, axes: AxesGrid, what: str) -> None:
    """Say what the colours of signed images mean."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(-1, 1), "RdBu_r")
    bar = figure.colorbar(
        scale, ax=axes.ravel().tolist(), location="bottom", shrink=0.6, aspect=40, pad=0.02, ticks=[-1, 0, 1]
    )
    bar.ax.set_xticklabels(["\N{MINUS SIGN}max", "0", "+max"], fontsize=SMALL)
    bar.set_label(what, fontsize=SMALL, **LITERAL)


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of a size in inches that keeps its texts apart."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")
