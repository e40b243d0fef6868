"""`session`: what everything long does around its work, in one place.

It locks the output and the folder of checkpoints, so that no other process writes the same; stops at safe points when a
signal asks for it; hands events on one at a time; opens the executor; makes or resumes the checkpoint; and measures
time and peak memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import RequestError
from ..events import Finished, Listener, check_listener, logged, one_at_a_time, or_logged
from ..kinds.run import Run
from ..machine import PeakMeter
from ..signals import stopping_on_signals
from ..storage.locks import checkpoint_lock, output_lock
from .checkpoint import CheckpointFolder, Checkpointing, checkpointing_of, clear_finished
from .executor import cluster_of, executing
from .local import LocalExecutor
from .task import Executor


@dataclass(frozen=True)
class Session:
    """One piece of work while it is carried out.

    Attributes
    ----------
    output : str or None
        Path that is written to, which no other process writes meanwhile.
    overwrite : bool
        Replace what is there.
    executor : Executor
        Folds tasks.
    checkpointing : Checkpointing or None
        Folder and interval of checkpoints, if any are saved.
    listener : callable
        Told what happens, one event at a time.
    began : float
        Time by `time.perf_counter`.
    meter : PeakMeter
        Measures the peak memory.
    """

    output: str | None
    overwrite: bool
    executor: Executor
    checkpointing: Checkpointing | None
    listener: Listener
    began: float = field(default_factory=time.perf_counter)
    meter: PeakMeter = field(default_factory=PeakMeter)

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.perf_counter() - self.began

    def checkpoint(self, identity: Mapping[str, Any], **how: Any) -> CheckpointFolder | None:
        """Open the checkpoint of the work that an identity describes, new or to be resumed; None without checkpoints.

        Raises
        ------
        OutputError
            If the folder holds other work, and is not to be overwritten.
        """
        if self.checkpointing is None:
            return None
        options = {"overwrite": self.overwrite, **how}
        return CheckpointFolder(self.checkpointing, identity, listener=self.listener, **options)

    @contextmanager
    def resumable(
        self, identity: Callable[[], Mapping[str, Any]], plan: Mapping[str, Any]
    ) -> Iterator[CheckpointFolder | None]:
        """Save the progress of the work inside, where that is asked for; what an identity and a plan tell is resumed.

        Raises
        ------
        OutputError
            As `checkpoint`; or if the work was begun with another plan.
        """
        if self.checkpointing is None:
            yield None
            return
        saved = CheckpointFolder(
            self.checkpointing,
            {"version of streampca": __version__, **identity()},
            overwrite=self.overwrite,
            listener=self.listener,
        )
        saved.begin(plan)
        with saved.running():
            yield saved


@contextmanager
def session(
    name: str,
    *,
    output: str | None = None,
    overwrite: bool = False,
    executor: Executor | None = None,
    checkpointing: Checkpointing | None = None,
    listener: Listener = logged,
) -> Iterator[Session]:
    """Carry out the work inside; `name` says at the end what has finished, unless it is empty.

    Raises
    ------
    RequestError
        If checkpoints would lie in the output.
    OutputError
        If another process writes the output or the checkpoints.
    """
    check_listener(listener)
    folder = None if checkpointing is None else checkpointing.folder
    if folder and output and Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(output)):
        raise RequestError(f"checkpoint {folder} is the output {output} or lies in it; choose a folder beside it.")
    if output is not None:
        clear_finished(output)
    with stopping_on_signals(), output_lock(output), checkpoint_lock(folder):
        current = Session(output, overwrite, executor or LocalExecutor(), checkpointing, one_at_a_time(listener))
        yield current
    if name:
        current.listener(Finished(name, current.seconds))


@contextmanager
def run_session(name: str, run: Run, output: str | None = None) -> Iterator[Session]:
    """Carry out the work inside as a run asks for: on its cluster, with its checkpoints and listener; see `session`."""
    listener = or_logged(run.listener)
    check_listener(listener)
    with executing(cluster_of(run), run.budget, listener=listener) as executor:
        how: dict[str, Any] = {"executor": executor, "checkpointing": checkpointing_of(run), "listener": listener}
        with session(name, output=output, overwrite=run.overwrite, **how) as current:
            yield current
