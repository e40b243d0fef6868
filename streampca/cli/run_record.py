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

from ..errors import ConfigError, OutputError, first_line
from ..events import Converging, Event, FileSkipped, Finished, Listener, PassFinished, PassStarted, Planned, Warned
from ..readers.collection import digest, file_state
from ..storage.outputs import check_place, staged, writing
from ..units import format_bytes, format_seconds
from .config import load_run
from .options import Run

CONFIG, LOG, SUMMARY, LISTING = "config.yaml", "run.log", "run.json", "files.npz"
RECORDS = (CONFIG, LOG, SUMMARY, LISTING)
REPORT, PICTURES = "report.html", "pictures"
OUTPUTS = "outputs"  # in the summary: what a run has made of its model


def check_directory(folder: str) -> None:
    """Refuse a directory that cannot be written to, or that holds files of our names that no run wrote.

    Raises
    ------
    OutputError
        Before anything is written.
    """
    check_place(os.path.join(folder, LOG))
    found = [name for name in (CONFIG, SUMMARY, REPORT, PICTURES) if os.path.lexists(os.path.join(folder, name))]
    missing = f"there is no {LOG}" if not os.path.lexists(os.path.join(folder, LOG)) else ""
    if not missing and CONFIG in found and not _is_record(folder):
        found, missing = [CONFIG], "it is no run file"
    if found and missing:
        raise OutputError(f"{folder} holds a {found[0]} that no run wrote ({missing}); choose another directory.")


def _is_record(folder: str) -> bool:
    try:
        load_run(os.path.join(folder, CONFIG))
    except ConfigError:
        return False
    return True


class Record:
    """What a run directory says of its outputs; where there is no directory, nothing is written down.

    Parameters
    ----------
    folder : str or None
        The directory.
    run : Run
        What is asked.
    outputs : mapping of str to str
        Paths of what is made of a model or beside it, by a name.
    """

    def __init__(self, folder: str | None, run: Run, outputs: Mapping[str, str]) -> None:
        self._folder, self._run, self._outputs = folder, run, outputs
        self._asked = run.output.model_dump(mode="json", exclude={"overwrite"})
        self._made: dict[str, list[int]] = {}
        self._begun = False

    def made_before(self, provenance: Mapping[str, Any]) -> set[str]:
        """Return the paths of outputs that the same run made with the model of this provenance, and left as they are.

        Each is whole, or would not have its name.
        """
        try:
            text = Path(self._folder or "", SUMMARY).read_text(encoding="utf-8")
            noted = json.loads(text).pop(OUTPUTS)
            if noted["asked"] != self._asked or noted["model"] != _identity(provenance):
                return set()
            self._made = {name: noted["made"][name] for name in self._outputs if self._is_same(name, noted["made"])}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return set()
        return {self._outputs[name] for name in self._made}

    def _is_same(self, name: str, made: Mapping[str, Any]) -> bool:
        path = self._outputs[name]
        return name in made and os.path.exists(path) and made[name] == _state(path)

    def begin(self) -> None:
        """Write down what is asked, if that is not done."""
        if self._folder and not self._begun:
            _write(self._folder, CONFIG, self._run.to_yaml())
            self._begun = True

    def note(self, path: str | None, provenance: Mapping[str, Any] | None) -> str | None:
        """Write down that an output is complete, and where its model comes from; return the path of that file."""
        self.begin()
        if not self._folder or provenance is None:
            return None
        self._made |= {name: _state(place) for name, place in self._outputs.items() if place == path}
        noted = {"model": _identity(provenance), "asked": self._asked, "made": self._made}
        return _write(self._folder, SUMMARY, json.dumps({**provenance, OUTPUTS: noted}, indent=1) + "\n")


def _identity(provenance: Mapping[str, Any]) -> str:
    """A short text that tells a model from others: each fit has a provenance of its own."""
    return digest(json.dumps(dict(provenance), sort_keys=True))


def _state(path: str) -> list[int]:
    """Size and time of an output that tell whether somebody has written it anew."""
    return list(file_state(os.path.join(path, "zarr.json") if os.path.isdir(path) else path))


@contextmanager
def recorded(folder: str, listener: Listener) -> Iterator[Listener]:
    """Write down what happens; gives the listener that does so and tells `listener` too."""
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
            yield told
        except BaseException as error:
            note("stopped" if isinstance(error, KeyboardInterrupt) else f"failed: {first_line(error)}")
            raise
        note("finished")


def _write(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with staged(path) as partial:
        Path(partial).write_text(text, encoding="utf-8")
    return path


def describe(event: Event) -> str | None:
    """One line for a log, or None for events too frequent for one."""
    match event:
        case Planned(plan):
            memory = f"{format_bytes(plan.memory_estimate.total)} of {format_bytes(plan.memory)}"
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
