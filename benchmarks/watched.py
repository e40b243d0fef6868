"""A command as ``python -m streampca`` carries it out, with notes of blocks and saves that outlive a kill.

    python benchmarks/watched.py NOTES SCHEDULE fit pictures.npy -k 20 -o model.zarr

SCHEDULE is the one that the dual method is held to, or empty.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Note(NamedTuple):
    """One line about a run: when, by which thread, what, and how many samples or seconds."""

    at: float
    thread: int
    what: str
    much: float


def read_notes(path: Path) -> list[Note]:
    """What was noted; nothing where the process was killed before."""
    lines = path.read_text().splitlines() if path.exists() else []
    words = (line.split() for line in lines)
    return [Note(float(at), int(thread), what, float(much)) for at, thread, what, much in words]


class Notes:
    """Lines of a file, each there although the process is killed right after: ``done``, ``pass`` and ``saved``."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._saves: Counter[int] = Counter()  # by thread

    def add(self, what: str, much: float) -> None:
        """Note what has just happened."""
        os.write(self._file, f"{time.monotonic()} {threading.get_ident()} {what} {much}\n".encode())

    def listening(self, show: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """A method that shows events, and notes them."""
        from streampca.events import BlockDone, Checkpoint, PassStarted

        def noted(progress: Any, event: Any) -> None:
            match event:
                case BlockDone():
                    self.add("done", event.samples)
                case PassStarted():
                    self.add("pass", event.samples)
                case Checkpoint():
                    self._saves[threading.get_ident()] += 1
            show(progress, event)

        return noted

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method, and its seconds noted whenever it has saved."""

        def noted(*arguments: Any, **options: Any) -> Any:
            began, before = time.monotonic(), self._saves[threading.get_ident()]
            try:
                return method(*arguments, **options)
            finally:
                if self._saves[threading.get_ident()] > before:
                    self.add("saved", time.monotonic() - began)

        return noted


def main() -> None:
    """Put the notes in place, and hand over to the command line."""
    from streampca.cli.terminal import Progress
    from streampca.execution.checkpoint import CheckpointFolder
    from streampca.planning import dual

    _, path, schedule, *words = sys.argv
    notes = Notes(path)
    changes: list[tuple[Any, str, Any]] = [
        (Progress, "__call__", notes.listening(Progress.__call__)),
        (CheckpointFolder, "save", notes.timed(CheckpointFolder.save)),
    ]
    if schedule:
        changes.append((dual, "SCHEDULES", (schedule,)))
    for owner, name, value in changes:
        setattr(owner, name, value)
    sys.argv = ["streampca", *words]
    runpy.run_module("streampca", run_name="__main__")


if __name__ == "__main__":
    main()
