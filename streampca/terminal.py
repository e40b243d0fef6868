"""What a run looks like in a terminal: progress, small pictures and a table; in a log, the same facts as plain lines.

Everything goes through `rich`, which knows what the terminal can show.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from rich import progress as bars
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from .events import BlockDone, Event, PassFinished, PassStarted, Resumed, Solving, Warned
from .panels import limits_of, picture
from .plot import digits_trusted
from .units import format_bytes, format_seconds

if TYPE_CHECKING:
    from .model import PCAModel

FIRST_LINE, NEXT_LINE = 2.0, 10.0  # seconds into a pass before a log gets its first line, and between lines
GAP = 2  # blank cells between pictures
TALLEST = 48  # pixels of a picture, two to a line, so that a row of pictures stays on a screen of 24 lines

Floats = npt.NDArray[np.float64]
_MAGNITUDE = " .:-=+*#%@"  # from dark to bright
_ABOVE, _BELOW = " .+*#@", " '-=oO"  # from zero away, for components


class Progress:
    """A listener that shows a run's passes and warnings on standard error; use it as a context manager.

    On a terminal it is a bar with rates and remaining time. Elsewhere it is a line when a pass starts, one when it
    finishes, and in between one after 2 s and then at most one every 10 s.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to write; standard error by default.
    quiet : bool, default=False
        Show nothing, warnings included.
    clock : callable, optional
        Returns seconds; for tests.

    Examples
    --------
    >>> from streampca.events import PassStarted
    >>> with Progress(quiet=True) as listener:
    ...     listener(PassStarted("scatter", 1, 1, samples=100, bytes=6400))
    """

    def __init__(
        self, console: Console | None = None, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        console = console or Console(stderr=True)
        self._view: _Lines | None = None
        if not quiet:
            live = console.is_terminal and not console.is_dumb_terminal
            self._view = _Bar(console, clock) if live else _Lines(console, clock)

    def __enter__(self) -> Self:
        if self._view:
            self._view.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._view:
            self._view.close()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if self._view:
            self._view.show(event)


@dataclass
class _Pass:
    """The pass being shown: what it is called, what there is to do and what is done."""

    label: str
    samples: int
    bytes: int
    started: float
    samples_done: int = 0
    bytes_done: int = 0
    samples_kept: int = 0  # done before, and not counted in rates
    bytes_kept: int = 0

    @classmethod
    def of(cls, event: PassStarted, now: float) -> _Pass:
        """Name a pass by its number only where there are several."""
        total = f" of {event.of}" if event.of else ""
        label = event.label if event.of == 1 else f"{event.label}, pass {event.number}{total}"
        return cls(label, event.samples, event.bytes, now)

    def rates(self, seconds: float) -> str:
        seconds = max(seconds, 1e-3)
        samples, count = self.samples_done - self.samples_kept, self.bytes_done - self.bytes_kept
        return f"{samples / seconds:.0f} samples/s, {format_bytes(count / seconds)}/s"

    def so_far(self, seconds: float) -> str:
        done = min(1.0, self.samples_done / max(1, self.samples))
        now = done - self.samples_kept / max(1, self.samples)
        left = f", {format_seconds(seconds * (1 - done) / now)} left" if now > 0 else ""
        return f"{self.label}: {100 * done:.0f} %, {self.rates(seconds)}{left}"


class _Lines:
    """Plain lines, for logs and pipes."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._pass: _Pass | None = None
        self._next_line = 0.0

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def show(self, event: Event) -> None:
        match event:
            case PassStarted():
                self._pass = _Pass.of(event, self._clock())
                self._start(self._pass)
            case BlockDone() if self._pass:
                self._pass.samples_done += event.samples
                self._pass.bytes_done += event.bytes
                self._advance(self._pass)
            case Resumed() if self._pass:
                self._pass.samples_done += event.samples
                self._pass.bytes_done += event.bytes
                self._pass.samples_kept += event.samples
                self._pass.bytes_kept += event.bytes
                self._print(f"{self._pass.label}: {event.samples} samples were done before")
            case PassFinished() if self._pass:
                self._finish(f"{self._pass.label}: {format_seconds(event.seconds)}, {self._pass.rates(event.seconds)}")
                self._pass = None
            case Solving():
                self._solve(f"solving: {event.what}")
            case Warned():
                self._print(f"warning: {event.message}", "yellow")

    def _print(self, line: str, style: str = "") -> None:
        # soft_wrap: a log keeps one fact to a line, and a terminal wraps by itself.
        self._console.print(Text(line, style), soft_wrap=True)

    def _start(self, current: _Pass) -> None:
        self._next_line = current.started + FIRST_LINE
        self._print(f"{current.label}: {current.samples} samples, {format_bytes(current.bytes)}")

    def _advance(self, current: _Pass) -> None:
        now = self._clock()
        if now >= self._next_line and current.samples_done < current.samples:
            self._next_line = now + NEXT_LINE
            self._print(current.so_far(now - current.started))

    def _finish(self, line: str) -> None:
        self._print(line)

    def _solve(self, line: str) -> None:
        self._print(line)


class _Bar(_Lines):
    """A bar for the current pass; each finished pass leaves one line above it."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        super().__init__(console, clock)
        self._task: bars.TaskID | None = None
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=None, table_column=Column(ratio=1)),  # the bar gives way, the figures do not
            bars.TaskProgressColumn("{task.percentage:>3.0f} %"),
            _Rates(),
            bars.TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            expand=True,
        )

    def open(self) -> None:
        self._bars.start()

    def close(self) -> None:
        self._bars.stop()

    def _replace(self, description: str, total: float | None) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(description, total=total, bytes_done=0)

    def _start(self, current: _Pass) -> None:
        self._replace(current.label, current.samples)

    def _advance(self, current: _Pass) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=current.samples_done, bytes_done=current.bytes_done)

    def _finish(self, line: str) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
        self._print(line)

    def _solve(self, line: str) -> None:
        self._replace(line, None)


class _Rates(bars.ProgressColumn):
    """Samples and stored bytes a second, over the last blocks."""

    def render(self, task: bars.Task) -> Text:
        if not task.speed or not task.completed:
            return Text("")
        rate = format_bytes(task.speed * task.fields["bytes_done"] / task.completed)
        return Text(f"{task.speed:.0f} samples/s {rate}/s", style="progress.data.speed", no_wrap=True)


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
    shown = [np.atleast_2d(picture(np.asarray(image, dtype=np.float64))) for image in images]
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


def components_table(model: PCAModel, count: int = 10) -> Table:
    """Lay out the first `count` components: share of the variance, the sum so far, and how far each can be trusted."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("component", "variance", "sum so far", "good to", "direction within"):
        table.add_column(heading, justify="right")
    ratios = np.asarray(model.explained_variance_ratio)
    rows = zip(ratios, np.cumsum(ratios), model.error_bound, model.angle_bound, strict=True)
    for number, (ratio, total, bound, angle) in enumerate(rows, start=1):
        if number > count:
            break
        trusted = digits_trusted(bound) or "not measured"
        turned = f"{max(np.degrees(angle), 0.001):.1g}°" if np.isfinite(angle) else "unresolved"
        table.add_row(str(number), f"{100 * ratio:.3g} %", f"{100 * total:.4g} %", trusted, turned)
    return table


def _has_colour(console: Console) -> bool:
    """Whether the console shows many colours and half blocks; sixteen colours are too few for a picture."""
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
