"""Small pictures in a terminal: half blocks if it has colours, else characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.color import Color
from rich.columns import Columns
from rich.console import Console, Group
from rich.style import Style
from rich.text import Text

from ...errors import readable
from ...models.accuracy import percent
from ...models.notebook import coloured, small_images
from ...preprocessing.resize import resized

if TYPE_CHECKING:
    from ... import Model
    from ...arrays import Array

WIDTH, GAP = 18, 2  # width of a picture in cells, and of the space between pictures
DRAWN = 2 * WIDTH  # most pixels of a side of an image before it is resized to cells
_MAGNITUDE = " .:-=+*#%@"  # from dark to bright
_ABOVE, _BELOW = " .+*#@", " '-=oO"  # by distance from zero, for components


def draw_leading(console: Console, model: Model) -> None:
    """Draw a model's mean and leading components in two rows; nothing for samples of one axis."""
    shown = model.shown
    count = min(2 * max(1, console.width // (WIDTH + GAP)) - 1, shown.n_components)
    images = [_grey(image) for image in small_images(shown, DRAWN, count)]
    shares = shown.explained_variance_ratio[:count].tolist()
    titles = ["mean", *(f"{number}: {percent(share)}" for number, share in enumerate(shares, start=1))]
    if images:
        draw_images(console, images, titles, signed=[False, *([True] * count)])


def _grey(image: Array) -> Array:
    """Return an image, (y, x) or (y, x, 3), as grey values (y, x), with its mean in place of NaN."""
    plane = image if image.ndim == 2 else image.mean(axis=-1)
    finite = np.isfinite(plane)
    return np.where(finite, plane, plane[finite].mean() if finite.any() else 0.0)


def draw_images(
    console: Console, images: Sequence[Array], titles: Sequence[str], *, signed: Sequence[bool], width: int = WIDTH
) -> None:
    """Draw grey images (y, x) side by side, each above its title, in rows of the width of the console.

    A signed image goes from blue over white to red about zero, another from dark at its least value to bright at its
    greatest. With colours a cell shows two pixels, one above the other; without, one character.
    """
    # Sixteen colours are too few for a picture.
    has_colours = console.color_system in ("truecolor", "256") and not console.no_color
    draw = _blocks if has_colours and console.encoding.startswith("utf") else _characters
    width = max(1, min(width, console.width - GAP))
    tiles = []
    for image, is_signed, title in zip(images, signed, titles, strict=True):
        rows = 2 * max(1, round(width * min(2, image.shape[0] / image.shape[1]) / 2))  # taller images are squeezed
        lines = draw(resized(image[None], (rows, width), np.dtype(np.float32))[0], is_signed)
        tiles.append(Group(*lines, Text(readable(title), justify="center")))
    console.print(Columns(tiles, width=width, padding=(0, GAP)))
    if draw is _characters and any(signed):
        console.print(Text(f"above zero {_ABOVE[1:]}   below zero {_BELOW[1:]}"), soft_wrap=True)


def _blocks(image: Array, signed: bool) -> list[Text]:
    """Draw with half blocks: the upper pixel in the foreground colour, the lower in the background."""
    colours = [[Color.from_rgb(*pixel) for pixel in row] for row in coloured(image, signed)[..., :3].tolist()]
    return [
        Text.assemble(*(("▀", Style(color=top, bgcolor=below)) for top, below in zip(*pair, strict=True)))
        for pair in zip(colours[::2], colours[1::2], strict=True)
    ]


def _characters(image: Array, signed: bool) -> list[Text]:
    """Draw with one character for two pixels."""
    cells = (image[::2] + image[1::2]) / 2
    if not signed:
        cells = cells - cells.min()
    unit = cells / (np.abs(cells).max() or 1.0)
    return [Text("".join(_character(value, signed) for value in row)) for row in unit.tolist()]


def _character(value: float, signed: bool) -> str:
    ramp = (_BELOW if value < 0 else _ABOVE) if signed else _MAGNITUDE
    return ramp[min(int(abs(value) * len(ramp)), len(ramp) - 1)]
