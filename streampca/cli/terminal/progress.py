"""Progress of a run: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console
from rich.table import Column
from rich.text import Text

from ... import events
from ...errors import readable
from ...events import (
    Assumed,
    BlockDone,
    Converging,
    Drawing,
    Event,
    Kept,
    PassFinished,
    PassStarted,
    Planned,
    Resumed,
    Solving,
    Stored,
    Warned,
)
from ...units import format_bytes, format_seconds

FIRST_LINE, NEXT_LINE = 2.0, 10.0  # seconds of a pass before the first line in a log, and between lines


class Progress:
    """Listener that shows the progress of a run, and its warnings; use it as a context manager.

    On a terminal, and in a notebook with ipywidgets, it shows a bar with rates and remaining time. Elsewhere it prints
    a line when a pass starts, one when it finishes, and in between one after 2 s and then at most one every 10 s.

    Parameters
    ----------
    console : rich.console.Console, optional
        Console to write to; standard error by default.
    quiet : bool, default=False
        Show warnings only.
    clock : callable, optional
        Returns seconds; for tests.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> from streampca.cli.terminal import Progress
    >>> images = np.random.default_rng(0).integers(0, 256, (500, 8, 8), dtype=np.uint8)
    >>> with Progress() as listener:
    ...     model = streampca.fit(images, n_components=5, listener=listener)
    """

    def __init__(
        self, console: Console | None = None, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet, self._clock = quiet, clock
        on_page = self._console.is_jupyter and find_spec("ipywidgets") is not None  # rich needs ipywidgets to draw
        live = on_page or (self._console.is_terminal and not self._console.is_dumb_terminal)
        live = live and not quiet
        self._bars = _bar(self._console) if live else None
        self._task: bars.TaskID | None = None
        self._reached = ""  # text of the last residual, at the end of the bar's description
        self._pass: _Pass | None = None
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Warned():
                self._print(events.describe(event), "yellow")
            case _ if self._quiet:
                return
            case Planned(assumed=line) | Assumed(line) if line:
                self._print(line)
            case PassStarted():
                self._pass = current = _Pass.of(event, self._clock())
                self._next_line = current.started + FIRST_LINE
                size = f", {format_bytes(current.bytes)}" if current.bytes else ""
                line = f"{current.label}: {current.samples} samples{size}"
                self._begin(current.label, line, current.samples)
            case BlockDone() if self._pass:
                self._pass.samples_done += event.samples
                self._pass.bytes_done += event.bytes
                if not self._pass.samples_told and self._clock() >= self._pass.started + FIRST_LINE:
                    self._tell_resumed(self._pass)
                self._advance(self._pass)
            case Resumed() if self._pass:
                self._pass.samples_done += event.samples
                self._pass.bytes_done += event.bytes
                self._pass.samples_kept += event.samples
                self._pass.bytes_kept += event.bytes
            case PassFinished() if self._pass:
                self._tell_resumed(self._pass)
                self._clear()
                self._print(f"{self._pass.label}: {format_seconds(event.seconds)}, {self._pass.rates(event.seconds)}")
                self._pass = None
            case Stored() | Kept():
                self._clear()
                self._print(events.describe(event))
            case Solving():
                self._begin(events.describe(event), events.describe(event))
            case Drawing():
                self._draw(event)
            case Converging():
                self._converge(event)

    def _print(self, line: str, style: str = "") -> None:
        # soft_wrap: a log keeps one fact to a line, and a terminal wraps by itself.
        self._console.print(Text(readable(line), style), soft_wrap=True)

    def _begin(self, description: str, line: str, total: float | None = None) -> None:
        """Show the current work: as a new bar, or as a line of a log."""
        if self._bars is None:
            self._print(line)
            return
        self._clear()
        rated = self._pass is not None
        self._task = self._bars.add_task(readable(description) + self._reached, total=total, bytes_done=0, rated=rated)

    def _draw(self, event: Drawing) -> None:
        """Show which picture is drawn: several share a bar, which shows the remaining time."""
        if self._bars is None or self._task is None or event.number < 2:
            self._begin(events.describe(event), events.describe(event), event.of or None)
        else:
            self._bars.update(self._task, description=readable(events.describe(event)), completed=event.number - 1)

    def _clear(self) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None

    def _advance(self, current: _Pass) -> None:
        now = self._clock()
        if self._bars is not None:
            if self._task is not None:
                self._bars.update(self._task, completed=current.samples_done, bytes_done=current.bytes_done)
        elif now >= self._next_line and current.samples_done < current.samples:
            self._next_line = now + NEXT_LINE
            self._print(current.so_far(now - current.started))

    def _tell_resumed(self, current: _Pass) -> None:
        """Print in one line what checkpoints cover, of which each span has its own."""
        if count := current.samples_kept - current.samples_told:
            current.samples_told = current.samples_kept
            self._print(f"{current.label}: {events.describe(Resumed(count, 0))}")

    def _converge(self, event: Converging) -> None:
        if self._bars is None:
            self._print(events.describe(event))
            return
        before = self._reached
        self._reached = f", {event.measure.split()[-1]} {event.residual:.0e}" if math.isfinite(event.residual) else ""
        if self._task is not None:
            description = self._bars.tasks[-1].description.removesuffix(before)
            self._bars.update(self._task, description=description + self._reached)


@dataclass
class _Pass:
    """The current pass: its label, its size, and the progress so far."""

    label: str
    samples: int
    bytes: int
    started: float
    samples_done: int = 0
    bytes_done: int = 0
    samples_kept: int = 0  # from a checkpoint, and so not counted in rates
    bytes_kept: int = 0
    samples_told: int = 0  # of those from a checkpoint

    @classmethod
    def of(cls, event: PassStarted, now: float) -> _Pass:
        """Label a pass by its number if there are several."""
        total = f" of {event.of}" if event.of else ""
        label = event.label if event.of == 1 else f"{event.label}, pass {event.number}{total}"
        return cls(label, event.samples, event.bytes, now)

    def rates(self, seconds: float) -> str:
        seconds = max(seconds, 1e-3)
        samples, count = self.samples_done - self.samples_kept, self.bytes_done - self.bytes_kept
        return ", ".join([_sample_rate(samples / seconds), *([f"{format_bytes(count / seconds)}/s"] if count else [])])

    def so_far(self, seconds: float) -> str:
        done = min(1.0, self.samples_done / max(1, self.samples))
        this_run = done - self.samples_kept / max(1, self.samples)
        remaining = f", {format_seconds(seconds * (1 - done) / this_run)} left" if this_run > 0 else ""
        return f"{self.label}: {100 * done:.0f} %, {self.rates(seconds)}{remaining}"


def _bar(console: Console) -> bars.Progress:
    """Return a bar of the current pass; each finished pass leaves one line above it."""
    return bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=None, table_column=Column(ratio=1)),  # the bar shrinks before the figures do
        bars.TaskProgressColumn("{task.percentage:>3.0f} %"),
        _Rates(),
        bars.TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        expand=True,
    )


class _Rates(bars.ProgressColumn):
    """Rates in samples and stored bytes a second, over the last blocks."""

    def render(self, task: bars.Task) -> Text:
        if not task.speed or not task.completed or not task.fields["rated"]:
            return Text("")
        rates, count = [_sample_rate(task.speed)], task.fields["bytes_done"]
        if count:
            rates.append(f"{format_bytes(task.speed * count / task.completed)}/s")
        return Text(" ".join(rates), style="progress.data.speed", no_wrap=True)


def _sample_rate(rate: float) -> str:
    return f"{rate:.0f} samples/s" if rate >= 10 else f"{rate:.2g} samples/s"
