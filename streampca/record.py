"""A run directory's record: the run as asked (``config.yaml``), its log, and what it was (``run.json``)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from .config import Run, load_run
from .errors import ConfigError, OutputError, first_line
from .events import (
    Converging,
    Event,
    FileSkipped,
    Finished,
    Listener,
    PassFinished,
    PassStarted,
    Planned,
    Warned,
)
from .outputs import check_place, staged, writing
from .units import format_bytes, format_seconds

CONFIG, LOG, SUMMARY, LISTING = "config.yaml", "run.log", "run.json", "files.npz"
REPORT, PICTURES = "report.html", "pictures"


def check_directory(folder: str, *, overwrite: bool) -> None:
    """Refuse a directory that cannot be written to, or that holds files of our names that no run wrote.

    Raises
    ------
    OutputError
        Before anything is written.
    """
    check_place(os.path.join(folder, LOG))
    found = (name for name in (CONFIG, SUMMARY, REPORT, PICTURES) if os.path.lexists(os.path.join(folder, name)))
    foreign = next(found, None)
    if foreign and not overwrite and not os.path.lexists(os.path.join(folder, LOG)):
        raise OutputError(
            f"{folder} holds a {foreign} that no run wrote (there is no {LOG}); choose another directory, or replace "
            "it with --overwrite (output.overwrite: true)."
        )


def recorded_run(folder: str) -> Run | None:
    """The run that a directory's record says it is of, or None where it has none."""
    try:
        return load_run(os.path.join(folder, CONFIG))
    except ConfigError:
        return None


@contextmanager
def recorded(folder: str, run: Run, listener: Listener) -> Iterator[Listener]:
    """Write down what is asked, then what happens; gives the listener that does so and tells `listener` too."""
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
        file = open(os.path.join(folder, LOG), "ab", buffering=0)  # noqa: SIM115 - closed below

    def note(line: str) -> None:
        text = f"{datetime.now().isoformat(timespec='seconds')} {line}\n"
        with suppress(OSError):  # a full disk is told by the outputs, which matter more
            file.write(text.encode("utf-8", "backslashreplace"))

    def told(event: Event) -> None:
        line = describe(event)
        if line:
            note(line)
        listener(event)

    with file:
        try:
            _write(folder, CONFIG, run.to_yaml())
            yield told
        except BaseException as error:
            note("stopped" if isinstance(error, KeyboardInterrupt) else f"failed: {first_line(error)}")
            raise
        note("finished")


def write_summary(folder: str, provenance: Mapping[str, Any]) -> str:
    """Write down where the model comes from, with versions, plan and peak; returns the path."""
    return _write(folder, SUMMARY, json.dumps(dict(provenance), indent=1) + "\n")


def _write(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with staged(path) as partial:
        Path(partial).write_text(text, encoding="utf-8")
    return path


def describe(event: Event) -> str | None:
    """One line for a log, or None for events too frequent for one."""
    match event:
        case Planned(plan):
            memory = f"{format_bytes(plan.bill.total)} of {format_bytes(plan.memory)}"
            return f"plan: {plan.method}, {_passes(plan.passes)}, {memory}"
        case PassStarted(label, samples=samples, bytes=count):
            return f"{label}: started, {samples} samples, {format_bytes(count)}"
        case PassFinished(seconds):
            return f"pass finished after {format_seconds(seconds)}"
        case Converging(passes, residual, tol):
            reached = f"largest residual {residual:.1e}, to reach {tol:.1e}"
            return f"after {_passes(passes)}: {reached if residual < math.inf else 'not all components are found yet'}"
        case Finished(what, seconds):
            return f"{what} finished after {format_seconds(seconds)}"
        case Warned(message):
            return f"warning: {message}"
        case FileSkipped(path, reason):
            return f"skipped {path}: {reason}"
    return None


def _passes(count: float) -> str:
    return "1 pass" if count == 1 else f"{count:g} passes"
