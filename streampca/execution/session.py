"""`session`: the frame of all long work, in one place.

A session locks the output and the folder of checkpoints against other processes, stops at safe points after a signal,
passes events on one at a time, opens the executor, creates or resumes the checkpoint, and measures time and peak
memory.
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
from ..errors import RequestError, without_secrets
from ..events import Finished, Listener, check_listener, logged, one_at_a_time, or_logged
from ..kinds.run import Run
from ..signals import stopping_on_signals
from ..storage.locks import checkpoint_lock, output_lock
from ..storage.remote import is_url, place
from .checkpoint import CheckpointFolder, Checkpointing, checkpointing_of, clear_finished
from .executor import LocalExecutor, cluster_of, executing
from .task import Executor


@dataclass(frozen=True)
class Session:
    """Context of a piece of work that is being carried out.

    Attributes
    ----------
    output : str or None
        Path of the output, locked against other processes.
    overwrite : bool
        Replace an existing output.
    executor : Executor
        Executor that folds tasks.
    checkpointing : Checkpointing or None
        Folder and interval of checkpoints, if any are saved.
    listener : callable
        Receiver of events, called by one thread at a time.
    began : float
        Start time by `time.perf_counter`.
    """

    output: str | None
    overwrite: bool
    executor: Executor
    checkpointing: Checkpointing | None
    listener: Listener
    began: float = field(default_factory=time.perf_counter)

    @property
    def checkpoint_disk(self) -> str | None:
        """Folder of checkpoints on a disk of this machine; None if none are saved, or at a URL."""
        folder = None if self.checkpointing is None else self.checkpointing.folder
        return None if folder is None or is_url(folder) else folder

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.perf_counter() - self.began

    def checkpoint(self, identity: Mapping[str, Any], **options: Any) -> CheckpointFolder | None:
        """Open the new or resumed checkpoint of the work that an identity describes; None without checkpoints.

        Raises
        ------
        OutputError
            If the folder holds other work, and is not to be overwritten.
        """
        if self.checkpointing is None:
            return None
        options = {"overwrite": self.overwrite, **options}
        return CheckpointFolder(self.checkpointing, identity, listener=self.listener, **options)

    @contextmanager
    def resumable(
        self, identity: Callable[[], Mapping[str, Any]], plan: Mapping[str, Any], **details: Any
    ) -> Iterator[CheckpointFolder | None]:
        """Open a checkpoint for the work inside, if there are any, and resume a run with this identity and plan.

        Details, plain data, are in the `record` of the run that is resumed, as they were when it began.

        Raises
        ------
        OutputError
            As `checkpoint`; or if the run was begun with another plan.
        """
        # The identity can take a while, as it has digests of the data.
        saved = self.checkpoint({"version of streampca": __version__, **identity()}) if self.checkpointing else None
        if saved is None:
            yield None
            return
        saved.begin(plan, **details)
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
    """Carry out the work inside, and send an event with its name at the end, unless the name is empty.

    Raises
    ------
    RequestError
        If checkpoints would lie in the output.
    OutputError
        If another process writes the output or the checkpoints.
    """
    check_listener(listener)
    folder = None if checkpointing is None else checkpointing.folder
    if folder and output and Path(_place(folder)).is_relative_to(_place(output)):
        subject = without_secrets(f"checkpoint {folder} is the output {output}")
        raise RequestError(f"{subject} or lies in it; choose a folder beside it.")
    if output is not None:
        clear_finished(output)
    with stopping_on_signals(), output_lock(output), checkpoint_lock(folder):
        current = Session(output, overwrite, executor or LocalExecutor(), checkpointing, one_at_a_time(listener))
        yield current
    if name:
        current.listener(Finished(name, current.seconds))


def _place(path: str) -> str:
    """Return one text for all names of a path or URL."""
    return place(path) if is_url(path) else os.path.realpath(path)


@contextmanager
def run_session(name: str, run: Run, output: str | None = None) -> Iterator[Session]:
    """Carry out the work inside with the cluster, checkpoints and listener of a run; see `session`."""
    listener = or_logged(run.listener)
    check_listener(listener)
    with (
        executing(cluster_of(run), run.budget, listener=listener) as executor,
        session(
            name,
            output=output,
            overwrite=run.overwrite,
            executor=executor,
            checkpointing=checkpointing_of(run),
            listener=listener,
        ) as current,
    ):
        yield current
