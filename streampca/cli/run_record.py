"""Record of a run in its directory: run file (``config.yaml``), log, and provenance (``run.json``)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import OutputError, Stopped, first_line, readable
from ..events import Event, Listener, describe
from ..readers.collection import digest, file_state
from ..storage.disk import check_place, is_own, open_own, open_regular
from ..storage.free_space import writing
from ..storage.outputs import staged
from .config import is_run_file
from .run_file import RunFile

CONFIG, LOG, SUMMARY, LISTING = "config.yaml", "run.log", "run.json", "files.npz"
RECORDS = (CONFIG, LOG, SUMMARY, LISTING)
REPORT, PICTURES = "report.html", "pictures"
OUTPUTS = "outputs"  # key of run.json for the outputs that depend on the model


def check_directory(folder: str) -> None:
    """Refuse a directory that cannot be written, or holds files with the names of a record that no run wrote.

    Raises
    ------
    OutputError
        Before anything is written.
    """
    check_place(log := os.path.join(folder, LOG))
    if os.path.lexists(log) and not is_own(log):
        raise OutputError(
            f"{log} is a link, or has other names, and runs append to it; remove it, or choose another directory."
        )
    if os.path.islink(pictures := os.path.join(folder, PICTURES)):
        raise OutputError(
            f"{pictures} is a link, and runs write pictures into it; remove it, or choose another directory."
        )
    # A run starts its log before anything else: without a log, no run wrote the other files.
    foreign = [name for name in (CONFIG, SUMMARY, REPORT, PICTURES) if os.path.lexists(os.path.join(folder, name))]
    reason = f"there is no {LOG}" if not os.path.lexists(log) else ""
    if not reason and CONFIG in foreign and not is_run_file(os.path.join(folder, CONFIG)):
        foreign, reason = [CONFIG], "it is not a run file"
    if foreign and reason:
        raise OutputError(f"{folder} holds a {foreign[0]} that no run wrote ({reason}); choose another directory.")


class Record:
    """Record of a run's outputs in its directory; without a directory, nothing is written.

    Parameters
    ----------
    folder : str or None
        Path of the directory.
    run : RunFile
        Run to record.
    outputs : mapping of str to str
        Paths of the outputs that a later run can reuse, by name.
    """

    def __init__(self, folder: str | None, run: RunFile, outputs: Mapping[str, str]) -> None:
        self._folder, self._run, self._outputs = folder, run, outputs
        self._options = asdict(run.output)
        if run.output.graph is not None:
            self._options["neighbors"] = asdict(run.neighbors)
        self._states: dict[str, list[int]] = {}
        self._started = False

    def reusable(self, provenance: Mapping[str, Any]) -> set[str]:
        """Return the paths of complete outputs that the same run wrote with the model of a provenance."""
        try:
            with open_regular(os.path.join(self._folder or "", SUMMARY), "r", encoding="utf-8") as file:
                text = file.read()
            record = json.loads(text).pop(OUTPUTS)
            if record["options"] != self._options or record["model"] != _identity(provenance):
                return set()
            states = record["states"]
            self._states = {name: states[name] for name in self._outputs if self._is_unchanged(name, states)}
        # The file may be anything: a record that cannot be read means that nothing is reused.
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return set()
        return {self._outputs[name] for name in self._states}

    def _is_unchanged(self, name: str, states: Mapping[str, Any]) -> bool:
        path = self._outputs[name]
        return name in states and os.path.exists(path) and states[name] == _state(path)

    def start(self) -> None:
        """Write the run file, once."""
        if self._folder and not self._started:
            _write(self._folder, CONFIG, self._run.to_yaml(complete=True))
            self._started = True

    def note(self, path: str | None, provenance: Mapping[str, Any] | None) -> str | None:
        """Record that an output is complete, and the provenance of its model; return the path of the record."""
        self.start()
        if not self._folder or provenance is None:
            return None
        self._states |= {name: _state(place) for name, place in self._outputs.items() if place == path}
        record = {"model": _identity(provenance), "options": self._options, "states": self._states}
        return _write(self._folder, SUMMARY, json.dumps({**provenance, OUTPUTS: record}, indent=1) + "\n")


def _identity(provenance: Mapping[str, Any]) -> str:
    """Return a digest of a provenance, which holds the time of the fit and so belongs to one fit only."""
    return digest(json.dumps(dict(provenance), sort_keys=True))


def _state(path: str) -> list[int]:
    """Return the size and time of an output, which change when it is written again."""
    return list(file_state(os.path.join(path, "zarr.json") if os.path.isdir(path) else path))


@contextmanager
def recorded(folder: str, listener: Listener) -> Iterator[Listener]:
    """Yield a listener that appends events to the log of a directory and passes them on to `listener`."""
    path = os.path.join(folder, LOG)
    with writing(path):
        os.makedirs(folder, exist_ok=True)
        file = open(open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0)  # noqa: SIM115 - closed below

    def note(line: str) -> None:
        text = f"{datetime.now().astimezone().isoformat(timespec='seconds')} {readable(line)}\n"
        with suppress(OSError):  # a full disk is reported where the outputs are written
            file.write(text.encode("utf-8", "backslashreplace"))

    def record(event: Event) -> None:
        line = describe(event)
        if line:
            note(line)
        listener(event)

    with file:
        note(f"started by streampca {__version__}")
        try:
            yield record
        except BaseException as error:
            note("stopped" if isinstance(error, Stopped) else f"failed: {first_line(error)}")
            raise
        note("finished")


def _write(folder: str, name: str, text: str) -> str:
    """Write a text file of a directory in one step, and return its path."""
    path = os.path.join(folder, name)
    with staged(path) as partial:
        Path(partial).write_text(text, encoding="utf-8")
    return path
