"""Small pictures in a terminal: half blocks where there is colour, else characters."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from ...models.sample_images import limits_of, middle_slice

GAP = 2  # blank cells between pictures
TALLEST = 48  # pixels of a picture, two to a line, so that a row of pictures stays on a screen of 24 lines

Floats = npt.NDArray[np.float64]
_MAGNITUDE = " .:-=+*#%@"  # from dark to bright
_ABOVE, _BELOW = " .+*#@", " '-=oO"  # from zero away, for components


def draw_images(
    console: Console,
    images: Sequence[npt.NDArray[Any]],
    titles: Sequence[str],
    *,
    signed: Sequence[bool] | None = None,
    width: int = 18,
) -> None:
    """Draw small images side by side, each with its title under it, as many to a row as the console is wide.

    With colour a cell holds two pixels, one above the other; without, one character. Where an image is NaN nothing
    is drawn.

    Parameters
    ----------
    console : rich.console.Console
        Where to draw.
    images : sequence of ndarray
        Grey (y, x) or RGB (y, x, 3); of (z, y, x) the middle slice is drawn; one axis is drawn as a strip.
    titles : sequence of str
        One for each image.
    signed : sequence of bool, optional
        Which images are drawn on a blue-white-red scale symmetric about zero; by default those with negative values.
        The others go from dark at their least value to bright at their greatest.
    width : int, default=18
        Cells to an image.
    """
    shown = [np.atleast_2d(middle_slice(np.asarray(image, dtype=np.float64))) for image in images]
    if signed is None:
        signed = [bool(np.nanmin(image, initial=0.0) < 0) for image in shown]
    colour = _has_colour(console)
    draw = _blocks if colour else _characters
    width = max(1, min(width, console.width))
    columns = [
        [*(line for line in draw(_shrink(image, width), of_sign)), title]
        for image, of_sign, title in zip(shown, signed, titles, strict=True)
    ]
    to_row = max(1, (console.width + GAP) // (width + GAP))
    for first in range(0, len(columns), to_row):
        if first:
            console.print()
        for line in _side_by_side(columns[first : first + to_row], width):
            console.print(line, soft_wrap=True)
    if not colour and any(signed):
        console.print(Text(f"above zero {_ABOVE[1:]}   below zero {_BELOW[1:]}"), soft_wrap=True)


def _has_colour(console: Console) -> bool:
    """Return whether the console shows many colours and half blocks; sixteen colours are too few for a picture."""
    many = console.color_system in ("truecolor", "256")
    return many and not console.no_color and console.encoding.startswith("utf")


def _side_by_side(columns: list[list[Any]], width: int) -> list[Text]:
    """Join pictures, each a list of lines of `width` cells and a title last, into lines of the row."""
    titles = [textwrap.wrap(column[-1], width) or [""] for column in columns]
    height, deepest = max(len(column) for column in columns) - 1, max(map(len, titles))
    lines = []
    for number in range(height + deepest):
        row = Text()
        for column, title in zip(columns, titles, strict=True):
            if number < height:
                cell = column[number] if number < len(column) - 1 else Text()
            else:
                cell = Text(title[number - height].center(width) if number - height < len(title) else "")
            row.append_text(cell).append(" " * (width - cell.cell_len + GAP))
        row.rstrip()
        lines.append(row)
    return lines


def _shrink(image: Floats, width: int) -> Floats:
    """Resize an image (y, x) or (y, x, 3) to at most `width` pixels by means over blocks, ignoring NaN.

    Returns
    -------
    ndarray of shape (rows, columns) or (rows, columns, 3)
        `rows` is even.
    """
    tall, wide = image.shape[:2]
    scale = min(width / wide, TALLEST / tall)
    rows, columns = _overlap(2 * max(1, round(scale * tall / 2)), tall), _overlap(max(1, round(scale * wide)), wide)
    known = np.isfinite(image)
    total, weight = (
        np.einsum("ry,yx...,cx->rc...", rows, part, columns, optimize=True)
        for part in (np.where(known, image, 0.0), known.astype(np.float64))
    )
    mean: Floats = np.where(weight > 0, total / np.where(weight > 0, weight, 1), np.nan)
    return mean


def _overlap(target: int, source: int) -> Floats:
    """Length that each of `target` equal intervals shares with each of `source` pixels, shape (target, source)."""
    edges, pixels = np.linspace(0, source, target + 1)[:, None], np.arange(source)
    shared: Floats = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return np.clip(shared, 0, None)


def _unit(image: Floats, signed: bool) -> Floats:
    """Scale to -1..1 about zero, or to 0..1 from the least to the greatest value; NaN stays."""
    if signed:
        return np.divide(image, np.nanmax(np.abs(image), initial=0.0) or 1.0)
    low, high = limits_of(image)
    return np.subtract(image, low) / (high - low if high > low else 1.0)


def _colours(unit: Floats, signed: bool) -> npt.NDArray[np.uint8]:
    """Turn scaled values into RGB (y, x, 3)."""
    if unit.ndim == 3:
        levels = (unit + 1) / 2 if signed else unit
    elif signed:
        ends = np.where(unit[..., None] < 0, (33, 102, 172), (178, 24, 43)) / 255  # of ColorBrewer's RdBu
        levels = 1 - np.abs(unit[..., None]) * (1 - ends)
    else:
        levels = np.repeat(unit[..., None], 3, axis=-1)
    return np.rint(255 * np.nan_to_num(levels)).astype(np.uint8)


def _blocks(image: Floats, signed: bool) -> list[Text]:
    """Draw with half blocks: the upper pixel in the foreground colour, the lower in the background."""
    colours = [[Color.from_rgb(*map(float, pixel)) for pixel in row] for row in _colours(_unit(image, signed), signed)]
    known = np.isfinite(image if image.ndim == 2 else image.sum(axis=-1))
    lines = []
    for y in range(0, len(image), 2):
        line = Text()
        for x in range(image.shape[1]):
            upper, lower = colours[y][x], colours[y + 1][x]
            above, below = known[y, x], known[y + 1, x]
            if above:
                line.append("▀", Style(color=upper, bgcolor=lower if below else None))
            else:
                line.append("▄" if below else " ", Style(color=lower) if below else None)
        lines.append(line)
    return lines


def _characters(image: Floats, signed: bool) -> list[Text]:
    """Draw with one character to two pixels."""
    unit = _unit(image if image.ndim == 2 else image.mean(axis=-1), signed)
    cells = (unit[0::2] + unit[1::2]) / 2
    ramps = (_ABOVE, _BELOW) if signed else (_MAGNITUDE, _MAGNITUDE)
    return [Text("".join(_character(value, *ramps) for value in row)) for row in cells]


def _character(value: float, above: str, below: str) -> str:
    if not np.isfinite(value):
        return " "
    ramp = below if value < 0 else above
    return ramp[min(int(abs(value) * len(ramp)), len(ramp) - 1)]
