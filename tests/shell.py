"""The command line as tests call it: in this process, in a fresh one, or stopped by Ctrl-C; and what it is tried on."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from streampca.cli.commands import main
from streampca.plot.report.figures import DrawnFigure, FigureForm, ReportFigure

DATA = Path(__file__).parents[2] / "shared" / "data"  # real collections, which lie beside the repository or nowhere

# Sends this process SIGINT, as Ctrl-C does, the first time the event or call named by the first argument comes.
_STOPPED = """
import os, signal, sys

from streampca.cli.commands import main
from streampca.cli.terminal import Progress

wanted = sys.argv.pop(1)

def stop():
    signal.raise_signal(signal.SIGINT)

if wanted == "create_array":
    import zarr

    made = []
    create_array = zarr.AsyncGroup.create_array

    def counted(*args, **options):
        made.append(args)
        if len(made) == 3:
            stop()
        return create_array(*args, **options)

    zarr.AsyncGroup.create_array = counted
else:
    show = Progress.__call__

    def told(self, event):
        show(self, event)
        if type(event).__name__ == wanted:
            stop()

    Progress.__call__ = told
main()
"""


DATED = re.compile(r"zarr\.json|run\.(json|log)|.*\.html")
# Warnings of outputs that are compressed, or checkpoints, which the disk has no room for.
MAY_FILL = re.compile(
    r"warning: (.* takes up to .* and .* has .* left; if the disk fills, free some space, or .*"
    r"|.*streampca-checkpoint/.* could not be written: .* Free some space .*)"
)


@dataclass(frozen=True)
class Said:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line a failed command leaves on standard error; progress lines must have been quieted.

        A warning that the disk may be too small may precede it.
        """
        lines = [line for line in self.err.splitlines() if line.strip() and not MAY_FILL.fullmatch(line)]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("streampca: "), self.err
        assert lines[0].endswith((".", "?", "--help")) or ". Resume with: streampca " in lines[0], self.err
        assert "Traceback" not in self.out
        return lines[0].removeprefix("streampca: ")


def pictures(n: int = 12, height: int = 8, width: int = 7, seed: int = 0) -> np.ndarray:
    """Images to run commands on, uint8."""
    return np.random.default_rng(seed).integers(0, 256, (n, height, width), dtype=np.uint8)


def diagonal(rows: Iterable[object], columns: Sequence[object]) -> list[object]:
    """Parameters of a test, all pairs: in the suite each row with one column, in turn, and the others in a campaign."""
    return [
        pytest.param(row, column, marks=[pytest.mark.campaign] * (at % len(columns) != number))
        for at, row in enumerate(rows)
        for number, column in enumerate(columns)
    ]


def undated(paths: Iterable[str]) -> dict[str, str]:
    """Return a digest of every file below some paths, but of those that say when, or by whom, they were written."""
    files = [file for path in paths for file in ([Path(path)] if Path(path).is_file() else Path(path).rglob("*"))]
    kept = sorted(file for file in files if file.is_file() and not DATED.fullmatch(file.name))
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in kept}


def not_drawn(picture: ReportFigure, form: FigureForm, *, recodes: bool = True) -> DrawnFigure:
    """Return a figure of a report that holds its name and nothing drawn."""
    assert picture.caption.endswith(".")
    assert picture.alt.endswith(".")
    texts = (picture.name, picture.title, picture.caption, picture.alt)
    return DrawnFigure(*texts, picture.name.encode(), form.kind, 1, 1)


def typed(*words: object) -> Said:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with mock.patch.object(sys, "argv", ["streampca", *map(str, words)]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code
    return Said(int(code or 0), out.getvalue(), err.getvalue())


def succeeded(*words: object) -> str:
    """Run a command that must succeed; returns what it printed."""
    said = typed(*words)
    assert said.code == 0, said.err
    return said.out


def refused(*words: object, code: int = 1) -> str:
    """Run a command that must fail and print one line; returns that line."""
    said = typed(*words, *(["-q"] if words[0] in ("fit", "transform", "reconstruct", "run", "copy") else []))
    assert said.out == ""
    line = said.complaint
    assert said.code == code, line
    return line


# Forked from one that has only imported the package, which takes a second of each fresh process.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["pytest", "hypothesis", "distributed", "streampca.cli.commands", "streampca.plot.report", "streampca.fitting.fit"]
)


def _forked(script: str, words: list[str], folder: str, environ: dict[str, str], printed: str) -> None:
    """Be ``python -c script words``."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(os.path.join(printed, name), os.O_WRONLY | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.path.insert(0, "")
    sys.argv = ["-c", *words]
    exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102


def python(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a script as ``python -c script words`` would, in a process that has imported the package already."""
    command = [sys.executable, "-c", script, *map(str, words)]
    with tempfile.TemporaryDirectory() as printed:
        texts = [Path(printed, name) for name in ("out", "err")]
        for text in texts:
            text.touch()
        given = (script, command[3:], os.getcwd(), dict(os.environ), printed)
        process = FORKED.Process(target=_forked, args=given)
        process.start()
        process.join(200)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(command, 200)
        return subprocess.CompletedProcess(command, process.exitcode, *(text.read_text() for text in texts))


def fresh(*words: object, folder: object = None) -> Said:
    """Run a command in a fresh process."""
    command = [sys.executable, "-m", "streampca", *map(str, words)]
    return said_by(subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False))


def stopped(at: str, *words: object) -> Said:
    """Run a command in a fresh process that gets SIGINT when the event (or call) `at` comes first."""
    return said_by(python(_STOPPED, at, *words))


def measured(script: str, *words: object) -> dict[str, Any]:
    """Run a script in a process of its own, not forked, and return what it says of its memory: ``peak`` and more."""
    command = [sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    if found["peak"] is None:
        pytest.skip("this system does not tell a process its peak")
    return found


def said_by(done: subprocess.CompletedProcess[str]) -> Said:
    return Said(done.returncode, done.stdout, done.stderr)
