"""Collections whose reading goes wrong in known ways, and what counts tasks: modules that workers can import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
from distributed.diagnostics.plugin import SchedulerPlugin

from streampca.readers.views.chosen import Chosen


class Killing(Chosen):
    """Kills the process that reads sample `at`, unless it is this one; but once, where there is a file to note it."""

    def __init__(self, base, at, note=None):
        super().__init__(base, range(base.n_samples))
        self.at, self.note, self.pid = at, note, os.getpid()

    def read(self, rows, features=None):
        if (
            rows.start <= self.at < rows.stop
            and os.getpid() != self.pid
            and not (self.note and os.path.exists(self.note))
        ):
            if self.note:
                Path(self.note).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(rows, features)


class Noting(Chosen):
    """Notes in a file which process reads several samples."""

    def __init__(self, base, path):
        super().__init__(base, range(base.n_samples))
        self.path = str(path)

    def read(self, rows, features=None):
        if rows.stop - rows.start > 1:
            with open(self.path, "a") as file:
                file.write(f"{os.getpid()}\n")
        return super().read(rows, features)


class Slow(Chosen):
    """Takes its time for every read of several samples."""

    def __init__(self, base, seconds):
        super().__init__(base, range(base.n_samples))
        self.seconds = seconds

    def read(self, rows, features=None):
        if rows.stop - rows.start > 1:
            time.sleep(self.seconds)
        return super().read(rows, features)


class Held(Chosen):
    """Reads several samples no sooner than there is a file."""

    def __init__(self, base, path):
        super().__init__(base, range(base.n_samples))
        self.path = str(path)

    def read(self, rows, features=None):
        until = time.monotonic() + 60
        while rows.stop - rows.start > 1 and not os.path.exists(self.path) and time.monotonic() < until:
            time.sleep(0.02)
        return super().read(rows, features)


class Hungry(Chosen):
    """Takes so many bytes a second, up to 2 GiB, where another process reads several samples, from some sample on."""

    def __init__(self, base, rate, start=0):
        super().__init__(base, range(base.n_samples))
        self.step, self.start, self.pid = rate // 5, start, os.getpid()

    def read(self, rows, features=None):
        if os.getpid() != self.pid and rows.stop - rows.start > 1 and rows.start >= self.start:
            held = []
            while len(held) * self.step < 2**31:
                held.append(np.ones(self.step, np.uint8))
                time.sleep(0.2)
        return super().read(rows, features)


class Counted(SchedulerPlugin):
    """Writes the key of every task that a scheduler is given into a file."""

    name = "counted"

    def __init__(self, path):
        self.path = str(path)

    def update_graph(self, scheduler, *, tasks, **others):
        with open(self.path, "a") as file:
            file.writelines(f"{key}\n" for key in tasks)


def read_never(asked):
    """Note in a file that a worker was asked to read, and do not come back."""
    Path(asked).touch()
    time.sleep(120)
