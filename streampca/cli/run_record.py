"""Record of a run in its directory: run file (``config.yaml``), log, and provenance (``run.json``)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import OutputError, SourceError, Stopped, first_line, readable, without_secrets
from ..events import Event, Listener, describe
from ..execution.fingerprint import first_difference
from ..readers.collection import digest, file_state
from ..storage.disk import check_place, file_bytes, is_file, is_own, open_own, open_regular
from ..storage.free_space import writing
from ..storage.locks import BESIDE
from ..storage.outputs import is_present, staged
from ..storage.remote import is_url, state_numbers
from ..units import MIB
from .config import is_run_file
from .run_file import RunFile

CONFIG, LOG, SUMMARY, LISTING = "config.yaml", "run.log", "run.json", "files.npz"
RECORDS = (CONFIG, LOG, SUMMARY, LISTING)
REPORT, FIGURES, FIGURE_DATA = "report.html", "figures", "data"
OUTPUTS = "outputs"  # key of run.json for the outputs, by name
SETTINGS, FILES, UNFINISHED = "settings", "files", "unfinished"  # keys of an output
MODEL, DATA, MASK, SCALE = "model", "data of the source", "mask", "scale"  # settings that hold digests
DIGESTED = (MODEL, DATA, MASK, SCALE)
_COMPARED = MIB  # first bytes of a file at a URL


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
    for name in (FIGURES, FIGURE_DATA):
        if os.path.islink(path := os.path.join(folder, name)):
            raise OutputError(
                f"{path} is a link, and runs write {name} into it; remove it, or choose another directory."
            )
    # A run starts its log before anything else: without a log, no run wrote the other files.
    foreign = [
        name for name in (CONFIG, SUMMARY, REPORT, FIGURES, FIGURE_DATA) if os.path.lexists(os.path.join(folder, name))
    ]
    reason = f"there is no {LOG}" if not os.path.lexists(log) else ""
    if not reason and CONFIG in foreign and not is_run_file(os.path.join(folder, CONFIG)):
        foreign, reason = [CONFIG], "it is not a run file"
    if foreign and reason:
        raise OutputError(f"{folder} holds a {foreign[0]} that no run wrote ({reason}); choose another directory.")


class Record:
    """Outputs that runs of a directory wrote, each with the settings that decided it; without a directory, none.

    Parameters
    ----------
    folder : str or None
        Path of the directory.
    run : RunFile
        Run that is carried out.
    """

    def __init__(self, folder: str | None, run: RunFile) -> None:
        self.folder, self._run, self._started = folder, run, False
        self._provenance: dict[str, Any] = {}
        self._outputs: dict[str, dict[str, Any]] = {}
        # The file may be anything: without a record that can be read, existing outputs are of unknown origin.
        with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
            with open_regular(os.path.join(folder or "", SUMMARY), "r", encoding="utf-8") as file:
                data = json.loads(file.read())
            outputs = data.pop(OUTPUTS)
            if all(isinstance(entry[part], dict) for entry in outputs.values() for part in (SETTINGS, FILES)):
                self._provenance, self._outputs = data, outputs

    def is_own(self, path: str) -> bool:
        """Return whether what exists at a path is as runs of this directory left it."""
        entry = self._outputs.get(self._key(path))
        if entry is None or not is_present(path):
            return False
        # A run that was ended after it began this output left the one before it, or the complete one.
        return _is_in_state(path, entry[FILES].get(self._key(path))) or _is_in_state(path, entry.get(UNFINISHED))

    def is_begun(self, path: str) -> bool:
        """Return whether a run began an output and was ended without any, so that its checkpoint is one of ours."""
        return not is_present(path) and UNFINISHED in self._outputs.get(self._key(path), {})

    def difference(self, path: str, settings: Mapping[str, Any]) -> str | None:
        """Return the first setting that decides a recorded output otherwise, in words; None if there is none."""
        before = self._outputs[self._key(path)][SETTINGS]
        changed = first_difference(_flat(before), _flat(_plain(settings)))
        if changed is None:
            return "a run that was to replace it was ended" if self._is_unfinished(path) else None
        if changed.name in DIGESTED:
            return f"the {changed.name} is another"
        return f"{changed.name} was {changed.before!r} and is {changed.now!r}"

    def stands(self, path: str, settings: Mapping[str, Any]) -> bool:
        """Return whether an output is complete, unchanged, and as the run would make it."""
        if not self.is_own(path) or self.difference(path, settings) is not None:
            return False
        own, folder = self._key(path), self.folder or ""
        files = self._outputs[own][FILES]
        # No URL of the record is asked: the directory, and the record with it, can be somebody else's.
        return all(
            _is_in_state(path, state)
            if key == own
            else not is_url(key) and _is_in_state(os.path.join(folder, key), state)
            for key, state in files.items()
        )

    def _is_unfinished(self, path: str) -> bool:
        """Return whether a run began to replace what exists at a path, and was ended before it did."""
        entry = self._outputs[self._key(path)]
        return UNFINISHED in entry and _is_in_state(path, entry[UNFINISHED])

    def start(self) -> None:
        """Write the run file, once."""
        if self.folder and not self._started:
            _write(self.folder, CONFIG, self._run.to_yaml(complete=True))
            self._started = True

    def begin(self, path: str, settings: Mapping[str, Any]) -> None:
        """Record that an output is about to be written, so that a later run knows it for one of its own."""
        before = _state(path) if is_present(path) else None
        self._outputs[self._key(path)] = {SETTINGS: _plain(settings), FILES: {}, UNFINISHED: before}
        self._write()

    def note(self, partial: str, path: str) -> None:
        """Record the state of an output before it gets its name: one by somebody else in its place has another."""
        entry = self._outputs.get(self._key(path), {})
        if UNFINISHED in entry:
            # Copies at URLs have the content of what was staged, and other times.
            entry[FILES][self._key(path)] = _content(partial) if is_url(path) else _state(partial)
            self._write()

    def finish(self, files: Sequence[str], settings: Mapping[str, Any], model: Mapping[str, Any] | None) -> None:
        """Record that an output is complete: its path and those of its further files; and its model's provenance."""
        states = {self._key(file): _state(file) for file in files}
        self._outputs[self._key(files[0])] = {SETTINGS: _plain(settings), FILES: states}
        self._provenance = self._provenance if model is None else dict(model)
        self._write()

    def complete(self) -> str | None:
        """Write the run file and the record, also if all outputs stand; return the path of the record."""
        self._write()
        return os.path.join(self.folder, SUMMARY) if self.folder else None

    def remove_if_empty(self) -> None:
        """Remove the files of the record if no recorded output exists, and nothing else is in the directory."""
        folder = self.folder or ""
        names = {name for name in os.listdir(folder) if not name.endswith(BESIDE)}
        if names <= {*RECORDS} and not any(self._may_exist(key) for key in self._outputs):
            for name in names:
                os.unlink(os.path.join(folder, name))

    def _write(self) -> None:
        self.start()
        if self.folder:
            _write(self.folder, SUMMARY, json.dumps({**self._provenance, OUTPUTS: self._outputs}, indent=1) + "\n")

    def _key(self, path: str) -> str:
        """Return the name of a path in the record: relative to the directory, so that both may be moved together."""
        if is_url(path):
            return without_secrets(path)
        return os.path.relpath(os.path.realpath(path), os.path.realpath(self.folder or ""))

    def _may_exist(self, key: str) -> bool:
        """Return whether a recorded output exists; of one at a URL, whether it was ever complete."""
        return bool(self._outputs[key][FILES]) if is_url(key) else is_present(os.path.join(self.folder or "", key))


def identity_of_model(provenance: Mapping[str, Any]) -> str:
    """Return a digest of a provenance, which holds the time of the fit and so belongs to one fit only."""
    return digest(json.dumps(dict(provenance), sort_keys=True))


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON returns them."""
    return dict(json.loads(json.dumps(settings, default=str)))


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key, as messages name them."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _is_in_state(path: str, state: list[int] | None) -> bool:
    """Return whether an output exists and has a recorded state, or content."""
    return state is not None and (state == _state(path) or (is_url(path) and state == _content(path)))


def _state(path: str) -> list[int] | None:
    """Return the size and time of an output, which change when it is written again; None if it is gone."""
    try:
        if is_url(path):
            size, state = state_numbers([_representative(path)])[0]
            return None if size < 0 else [size, state]
        return list(file_state(_representative(path)))
    except SourceError:
        return None


def _content(path: str) -> list[int] | None:
    """Return the size of an output and a digest of its first bytes, which copies share; None if it is gone."""
    file = _representative(path)
    try:
        size = (state_numbers([file])[0] if is_url(file) else file_state(file))[0]
        return [size, int(sha256(file_bytes(file, _COMPARED)).hexdigest()[:14], 16)]
    except (SourceError, OSError):
        return None


def _representative(path: str) -> str:
    """Return the file of an output that is written last, and whose state is compared."""
    metadata = os.path.join(path, "zarr.json")
    return metadata if is_file(metadata) else path


@contextmanager
def recorded(record: Record, listener: Listener) -> Iterator[Listener]:
    """Yield a listener that passes events on to `listener` and appends them to the log of the directory, if any.

    The files of a first run that fails before it has written an output are removed; locks remove the empty directory.
    """
    if record.folder is None:
        yield listener
        return
    path = os.path.join(record.folder, LOG)
    is_first = not os.path.lexists(path)
    with writing(path):
        file = open(open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0)  # noqa: SIM115 - closed below

    def note(line: str) -> None:
        text = f"{datetime.now().astimezone().isoformat(timespec='seconds')} {readable(line)}\n"
        with suppress(OSError):  # a full disk is reported where the outputs are written
            file.write(text.encode("utf-8", "backslashreplace"))

    def log(event: Event) -> None:
        line = describe(event)
        if line:
            note(line)
        listener(event)

    with file:
        note(f"started by streampca {__version__}")
        try:
            yield log
        except BaseException as error:
            note("stopped" if isinstance(error, Stopped) else f"failed: {first_line(error)}")
            if is_first:
                record.remove_if_empty()
            raise
        note("finished")


def _write(folder: str, name: str, text: str) -> str:
    """Write a text file of a directory in one step, and return its path."""
    path = os.path.join(folder, name)
    with staged(path) as partial:
        Path(partial).write_text(text, encoding="utf-8")
    return path
