"""Completion of commands, values and paths in the shells themselves, on a terminal of their own."""

from __future__ import annotations

import os
import pty
import select
import shutil
import sys
import time
from pathlib import Path

import pytest

SHELLS = {
    "bash": (["bash", "--norc", "-i"], "source <(_STREAMPCA_COMPLETE=bash_source streampca)"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -Uz compinit && compinit -u -D; source <(_STREAMPCA_COMPLETE=zsh_source streampca)",
    ),
}


class Terminal:
    """A shell on a terminal: keys go in, and what it shows comes out."""

    def __init__(self, words, folder):
        child, self.file = pty.fork()
        if child == 0:
            os.chdir(folder)
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            os.execvpe(words[0], words, os.environ | {"PS1": "> ", "TERM": "dumb", "PATH": path})  # noqa: S606
        self.child, self.shown = child, b""

    def typed(self, keys, until, seconds=60):
        """Type keys, and wait until the terminal shows a text that comes after them."""
        os.write(self.file, keys.encode())
        end = time.monotonic() + seconds
        while until.encode() not in self.shown:
            ready, _, _ = select.select([self.file], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{until!r} is not in {self.shown!r}"
            self.shown += os.read(self.file, 4096)
        self.shown = self.shown.partition(until.encode())[2]

    def close(self):
        os.close(self.file)  # hangs up, which ends the shell
        os.waitpid(self.child, 0)


@pytest.fixture(params=SHELLS)
def shell(request, tmp_path):
    words, setup = SHELLS[request.param]
    if shutil.which(words[0]) is None:
        pytest.skip(f"the shell {words[0]} is not installed")
    (tmp_path / "pictures.npy").touch()
    (tmp_path / "results").mkdir()
    terminal = Terminal(words, tmp_path)
    terminal.typed(f"{setup}; echo rea''dy\n", "ready\r\n")  # the echo of the keys has quotes in it
    yield terminal
    terminal.close()


@pytest.mark.slow
def test_commands_values_and_paths_are_completed(shell):
    shell.typed("streampca inf\t", "streampca info ")
    shell.typed("pict\t", "pictures.npy")
    shell.typed("\x15streampca fit pictures.npy -o res\t", "results/")
    shell.typed("\x15streampca fit pictures.npy --method cova\t", "covariance")
