"""`CheckpointFolder`: the progress of one run, saved at an interval and when the run is asked to stop.

A folder, or prefix in an object store, holds one run: a record that identifies the work and its plan, and the partial
results of its stages. Each is a `CheckpointFile`, of which one version is complete at any time, whenever the process
dies.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from ..arrays import Array
from ..errors import (
    RESUMABLE,
    ChangedError,
    ClusterLostError,
    DataError,
    ModelError,
    OutputError,
    Stopped,
    first_line,
    without_secrets,
)
from ..events import Checkpoint, Listener, Warned
from ..kinds.run import Run
from ..signals import stop_asked
from ..storage import object_store
from ..storage.disk import check_place, expanded, is_own, named_beside
from ..storage.locks import checkpoint_lock
from ..storage.outputs import SCRATCH, discard
from ..storage.remote import is_url
from ..units import MIB, format_seconds
from .checkpoint_file import CheckpointFile, is_checkpoint_file
from .fingerprint import first_difference
from .task import RemoteSum, SavedPartial, Stateful
from .threads import blas_in_use

RECORD = "run"  # name of the file that identifies the work of the folder
FILE = re.compile(r"[a-z]+(-[a-z]+)*(-\d+)?\.[ab]")  # names of checkpoint files, in a folder that can hold others
SCRATCH_NAME = re.compile(r"\w+" + re.escape(SCRATCH))  # name of a scratch copy or folder
FOLDER = ".streampca-checkpoint"  # ending of the name of a checkpoint folder beside an output
EVERY = 30.0  # seconds between saves, or more ...
SHARE = 0.025  # ... so that they take no more than this share of the time
PATIENCE = 20.0  # most seconds for a save when the run is asked to stop
UNMEASURED = 100 * MIB  # assumed bytes a second, until a save has been measured


@dataclass(frozen=True)
class Checkpointing:
    """Folder and interval of a run's checkpoints.

    Attributes
    ----------
    folder : str
        Folder, created at the first save and removed when the run is complete, or URL of one.
    every : float
        Least seconds between saves; 0 saves after every block.
    require_same_bits : bool
        Refuse to resume a run that began with other threads or another kernel of BLAS, whose rounding can differ; by
        default a warning.
    """

    folder: str
    every: float = EVERY
    require_same_bits: bool = False

    def __post_init__(self) -> None:
        folder = expanded(self.folder)
        object.__setattr__(self, "folder", folder.rstrip("/") if is_url(folder.rstrip("/")) else folder)


def checkpointing_of(run: Run) -> Checkpointing | None:
    """Return the folder and interval of a run's checkpoints; None if it saves none."""
    if run.checkpoint is None or isinstance(run.checkpoint, Checkpointing):
        return run.checkpoint
    return Checkpointing(os.fspath(run.checkpoint), run.checkpoint_every, run.require_same_bits)


class _Save(NamedTuple):
    """A file, a position, and the accumulator at that position whose state is saved in the file."""

    file: CheckpointFile
    position: Mapping[str, Any]
    stateful: Stateful


@dataclass(frozen=True)
class RemoteSave:
    """A save that another process carries out if it sees the folder of the checkpoint; picklable.

    Attributes
    ----------
    file : CheckpointFile
        File to write.
    position : mapping
        Plain data that are saved with a state; ``run`` identifies the run.
    """

    file: CheckpointFile
    position: Mapping[str, Any]

    def write(self, state: Mapping[str, Array]) -> CheckpointFile | None:
        """Save a state; return the file as it is then, or None if this process does not see the folder.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        # The record also shows that the run has not ended, whose folder must not be created again.
        record = CheckpointFile(self.file.folder, RECORD).load()
        if record is None or record[0].get("run") != self.position["run"]:
            return None
        self.file.save(self.position, state)
        return self.file


class CheckpointFolder:
    """The progress of one run, in a folder.

    Parameters
    ----------
    options : Checkpointing
        Folder and interval.
    identity : mapping
        Plain data that distinguish this work from other work.
    overwrite : bool, default=False
        Remove the checkpoint of other work, with a warning, instead of refusing it.
    scratch_folder : str, optional
        Folder for scratch copies of this run, besides that of the checkpoint. A scratch copy that a record places
        elsewhere is neither used nor removed, as anybody can have written the record.
    listener : callable
        Receiver of an event at every save.

    Attributes
    ----------
    folder : str
        Folder or URL.
    local_folder : str
        Folder of this machine for scratch copies: `scratch_folder`, `folder`, or the current directory beside a URL.
    record : mapping
        Record by `begin` of the run that is resumed: ``plan``, ``scratch`` and details; empty for a new run.
    is_recorded : bool
        True if the record is in the folder; otherwise there is nothing to resume.

    Raises
    ------
    OutputError
        If the folder holds other work, with the first difference; or if it is not a folder.
    """

    def __init__(
        self,
        options: Checkpointing,
        identity: Mapping[str, Any],
        *,
        overwrite: bool = False,
        scratch_folder: str | None = None,
        listener: Listener,
    ) -> None:
        if not is_url(options.folder):
            if os.path.lexists(options.folder) and not os.path.isdir(options.folder):
                raise OutputError(f"checkpoint {options.folder} is not a folder; choose another.")
            check_place(options.folder)
        self._options, self._listener, self.folder = options, listener, options.folder
        self.local_folder = scratch_folder or (os.getcwd() if is_url(options.folder) else options.folder)
        self._identity = json.loads(json.dumps(identity, default=lambda value: value.item()))
        self._file = CheckpointFile(options.folder, RECORD)
        self._stages: dict[str, StageCheckpoint] = {}
        self._lock, self._rate = threading.Lock(), float(UNMEASURED)
        saved = self._file.load()
        self.record: Mapping[str, Any] = {} if saved is None else saved[0]
        self._replaced: Mapping[str, Any] = {}
        self.is_recorded = saved is not None
        if saved is not None and (difference := first_difference(self.record.get("identity", {}), self._identity)):
            problem = f"{self} holds an unfinished run with {difference}"
            if not overwrite and not self.record.get("refused"):
                raise OutputError(
                    f"{problem}; run it with the same options and data to resume, or remove the folder to start again."
                )
            listener(Warned(f"{problem}; this one starts from the beginning."))
            self._replaced, self.record = self.record, {}  # its files stay until this run has a plan

    def begin(
        self, plan: Mapping[str, Any], *, resumes: bool = True, scratch: str | None = None, **details: Any
    ) -> None:
        """Record the plan of a new run; check that the plan of a resumed run is the same.

        Parameters
        ----------
        plan : mapping
            Plain data that determine the bits of the result and the limits of blocks.
        resumes : bool, default=True
            False if the output that the saved state belongs to no longer exists.
        scratch : str, optional
            File or folder that is removed with the checkpoint; a resumed run keeps the one that it began with.
        **details
            Plain data that are in `record` when the run is resumed.

        Raises
        ------
        OutputError
            If the plan differs, as on a machine with more cores; or BLAS, if the same bits are required.
        """
        blas = blas_in_use()
        if not self.record or not resumes:
            self.clear()  # partial results of unknown work
            run = {"identity": self._identity, "plan": dict(plan), "scratch": scratch, "blas": [blas]}
            run["run"] = uuid.uuid4().hex
            self.record = {**run, **details}
            if scratch is not None:
                discard(scratch)  # anything at this path: this run has not written it
                self._save_record()  # before the copy exists: after a kill only the record says whose it is
            return
        if difference := first_difference(self.record.get("plan", {}), plan):
            name, before, now = difference
            raise OutputError(
                f"{self} holds an unfinished run planned with {name} {before}, and on this machine it "
                f"is {now}; resume it where it was begun, or remove the folder to start again."
            )
        self._check_blas(blas)
        record = {name: value for name, value in self.record.items() if name != "refused"}
        record["blas"] = [*dict.fromkeys([*record.get("blas", ()), blas])]
        record["scratch"] = self.scratch or scratch
        # A link planted in place of the scratch copy could lead this run to write somewhere else.
        if record["scratch"] is not None and not (is_url(record["scratch"]) or is_own(record["scratch"])):
            discard(record["scratch"])
        if record != self.record:
            self.record = record
            self._save_record()

    def _check_blas(self, blas: str) -> None:
        """Warn of another BLAS than that of the run so far; refuse it if the same bits are required."""
        others = [name for name in self.record.get("blas", ()) if name != blas]
        if not others:
            return
        problem = f"{self} was begun with {others[0]}, and this process has {blas}"
        if self._options.require_same_bits:
            raise OutputError(
                f"{problem}; resume it on the same kind of machine, with OPENBLAS_NUM_THREADS as it was, or without "
                "--require-same-bits (require_same_bits=True)."
            )
        self._listener(Warned(f"{problem}: the result may differ in its last bits from that of an unbroken run."))

    def __str__(self) -> str:
        """Return the folder, for messages."""
        return without_secrets(self.folder)

    @property
    def run(self) -> str | None:
        """Identity of the run that saves: states by others, such as workers of a killed run, are ignored."""
        return self.record.get("run")

    @property
    def scratch(self) -> str | None:
        """Scratch copy or folder of the run; None if it lies outside the folders that this run writes scratch to."""
        return _scratch_within((self.folder, self.local_folder), self.record)

    def refuse(self) -> None:
        """Keep the state of a run that is refused: the same work can resume it, and other work replaces it."""
        self.record = {**self.record, "refused": True}
        self._save_record()

    def _save_record(self) -> None:
        self._file.save(self.record, {})
        self.is_recorded = True

    def stage(self, name: str) -> StageCheckpoint:
        """Return the checkpoint of one fold."""
        return self._stages.setdefault(name, StageCheckpoint(self, name))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Remove the checkpoint when the run is complete, or fails because of its data."""
        try:
            yield
        except (DataError, ChangedError, ModelError):
            if "refused" not in self.record:
                self.clear()
            raise
        except ClusterLostError as error:
            error.exit_code = RESUMABLE
            raise
        except Stopped as error:
            if not self.is_recorded or error.exit_code == RESUMABLE:
                raise
            progress = f"progress up to the last checkpoint is saved in {self}."
            raise Stopped(f"{first_line(error)}; {progress}", resumable=True) from None
        self.clear()

    def clear(self) -> None:
        """Remove all files of the checkpoint, and the folder if it holds nothing else."""
        try:
            for record in (self._replaced, self.record):
                if (scratch := _scratch_within((self.folder, self.local_folder), record)) is not None:
                    discard(scratch)
            _clear(self.folder)
        except OutputError as error:
            if not is_url(self.folder):
                raise
            # The result is complete, or about to be made anew: no reason to lose it.
            self._listener(Warned(f"{error} The checkpoint in {self} is left there; remove it."))
        self.is_recorded = False

    def save(self, saves: list[_Save], since: float, cost: float) -> float:
        """Save states in order, and return the seconds that it took; a failed save is a warning, not an error.

        `since` is the time of the last save of these states, and `cost` the seconds that it took.

        Raises
        ------
        Stopped
            If the run was asked to stop.
        """
        signal, began = stop_asked(), time.monotonic()
        loss = f"the last {format_seconds(began - since)} of work are lost, as saving them would take too long."
        if signal and cost > PATIENCE:
            raise Stopped(f"stopped by {signal}; {loss}", resumable=self.is_recorded)
        states = [(save, save.stateful.state(copy=False)) for save in saves]
        count = sum(array.nbytes for _, state in states for array in state.values())
        if signal and count / self._rate > PATIENCE:
            raise Stopped(f"stopped by {signal}; {loss}", resumable=self.is_recorded)
        try:
            for save, state in states:
                self._save(save.file, save.position, state)
        except OutputError as error:
            if signal:
                lost = f"work since the last checkpoint is lost: {error}"
                raise Stopped(f"stopped by {signal}; {lost}", resumable=self.is_recorded) from None
            self._listener(
                Warned(f"{error} The run continues; if it is stopped now, it resumes from an earlier checkpoint.")
            )
        now = time.monotonic()
        if count > MIB:  # of fewer bytes the time is mostly latency
            self._rate = count / max(now - began, 1e-3)
        if signal:
            raise Stopped(f"stopped by {signal}; progress is saved in {self}.", resumable=True)
        return now - began

    def _save(self, file: CheckpointFile, position: Mapping[str, Any], state: Mapping[str, Array]) -> None:
        with self._lock:
            if not self.is_recorded:
                self._save_record()
            file.save(position, state)
            self.report(position)

    def prepare(self, saves: Iterable[_Save]) -> bool:
        """Save the record, and states on which a save by another process depends; return whether that succeeded."""
        with suppress(OutputError):
            if not self.is_recorded:
                self._save_record()
            for save in saves:
                self._save(save.file, save.position, save.stateful.state(copy=False))
            return True
        return False

    def report(self, position: Mapping[str, Any]) -> None:
        """Send the event of a save."""
        self._listener(Checkpoint(str(self), position["at"]))

    def is_due(self, since: float, cost: float) -> bool:
        """Return whether to save: the run was asked to stop, or the last save is long enough ago for its cost."""
        waited, every = time.monotonic() - since, self._options.every
        return bool(stop_asked()) or every == 0 or waited >= max(every, cost / SHARE)


class StageCheckpoint:
    """The partial results of one fold of a run; a `streampca.execution.Checkpointer`.

    Attributes
    ----------
    number : int
        Number of the pass, if a stage is folded several times: partial results of other passes are ignored.
    is_shared : bool
        True if workers may save the states that they hold; False where this process must count what is on disk.
    """

    is_shared = True

    def __init__(self, folder: CheckpointFolder, name: str) -> None:
        self._folder, self._name, self._is_ignored, self.number = folder, name, False, 0
        self._files: dict[int, CheckpointFile] = {}
        self._stopped: dict[int, tuple[int, int]] = {}  # span and position at which a partial was saved to stop
        self._since: dict[int, float] = {}
        self._cost: dict[int, float] = {}
        self._first: list[_Save] = []

    def restart(self) -> StageCheckpoint:
        """Ignore the saved state of this fold: a file that it depends on no longer exists."""
        self._is_ignored = True
        return self

    def save_first(self, stage: str, at: int, stateful: Stateful) -> None:
        """Save the state of another stage, which this one depends on, with the next save of this one and before it."""
        file, run = self._folder.stage(stage)._file(0), self._folder.run
        self._first = [_Save(file, {"first": 0, "last": 0, "at": at, "run": run}, stateful)]

    def load(self, first: int) -> SavedPartial | None:
        """Return the saved partial of the spans from `first` on, or None."""
        saved = None if self._is_ignored else self._file(first).load()
        if saved is None or saved[0].get("number", 0) != self.number or saved[0].get("run") != self._folder.run:
            return None
        position, state = saved
        return SavedPartial(position["last"], position["at"], state)

    def load_any(self) -> SavedPartial | None:
        """Return the first saved partial of any spans, or None."""
        with suppress(FileNotFoundError):
            names = [name for name in _listed(self._folder.folder) if FILE.fullmatch(name)]
            prefix = f"{self._name}-"
            for first in sorted({int(name[len(prefix) : -2]) for name in names if name.startswith(prefix)}):
                if (saved := self.load(first)) is not None:
                    return saved
        return None

    def save_if_due(self, first: int, last: int, at: int, accumulator: Stateful, *, now: bool = False) -> None:
        """Save an accumulator if a save is due, or if `now`."""
        # Counted from its own first block, not from the last save of any partial: else others could delay it for ever.
        since, cost = self._since.setdefault(first, time.monotonic()), self._cost.get(first, 0.0)
        if self._stopped.get(first) == (last, at) or not (now or self._folder.is_due(since, cost)):
            return
        position = {"first": first, "last": last, "at": at, "number": self.number, "run": self._folder.run}
        save = _Save(self._file(first), position, accumulator)
        if isinstance(accumulator, RemoteSum) and self._begin_remote(save, accumulator):
            return
        try:
            self._cost[first] = self._folder.save([*self._first, save], since, cost)
        except Stopped:
            self._stopped[first] = last, at
            raise
        self._since[first], self._first = time.monotonic(), []

    def _begin_remote(self, save: _Save, accumulator: RemoteSum) -> bool:
        """Let the worker that holds a sum save it; return whether it is going to try."""
        first = save.position["first"]

        def note(file: CheckpointFile, seconds: float) -> None:
            self._files[first], self._cost[first] = file, seconds
            self._folder.report(save.position)

        if not self.is_shared or not self._folder.prepare(self._first):
            return False
        self._since[first], self._first = time.monotonic(), []
        return accumulator.begin_save(RemoteSave(save.file.absolute(), save.position), note)

    def _file(self, first: int) -> CheckpointFile:
        if first not in self._files:
            self._files[first] = CheckpointFile(self._folder.folder, f"{self._name}-{first}")
        return self._files[first]


def _scratch_within(folders: Iterable[str], record: Mapping[str, Any]) -> str | None:
    """Return the scratch copy or folder that a record names; None if it does not lie directly in one of the folders."""
    folder, name = os.path.split(str(record.get("scratch") or ""))
    is_own = _absolute(folder) in map(_absolute, folders) and SCRATCH_NAME.fullmatch(name)
    return os.path.join(folder, name) if is_own else None


def _absolute(folder: str) -> str:
    return folder if is_url(folder) else os.path.abspath(folder)


def path_beside(output: str) -> str:
    """Return the path that endings of local files are added to; of an output at a URL, in the current directory."""
    if is_url(output):
        return f"{output.rstrip('/').rpartition('/')[2]}-{sha256(output.encode()).hexdigest()[:8]}"
    return named_beside(output.rstrip("/"))


def folder_beside(output: str) -> str:
    """Return the folder of checkpoints beside an output, or its URL."""
    return (output.rstrip("/") if is_url(output) else path_beside(output)) + FOLDER


def clear_finished(output: str) -> None:
    """Remove the checkpoint beside a complete output that is newer: its run died before it removed it."""
    folder, path = folder_beside(output), output.rstrip("/")
    is_newer = _is_newer_at_url if is_url(output) else _is_newer
    with suppress(FileNotFoundError, NotADirectoryError):
        if is_newer(path, folder):
            with suppress(OutputError), checkpoint_lock(folder):  # a process that has the lock removes it itself
                saved = CheckpointFile(folder, RECORD).load()
                folders = (folder, os.getcwd() if is_url(folder) else folder)
                if saved is not None and (scratch := _scratch_within(folders, saved[0])) is not None:
                    discard(scratch)
                _clear(folder)


def _is_newer(path: str, folder: str) -> bool:
    """Return whether an output was changed after all files of its checkpoint."""
    completed = os.stat(os.path.join(path, "zarr.json") if os.path.isdir(path) else path).st_mtime_ns
    return all(os.stat(os.path.join(folder, name)).st_mtime_ns <= completed for name in os.listdir(folder))


def _is_newer_at_url(url: str, folder: str) -> bool:
    """Return whether an output was written after all objects of its checkpoint, if there are any."""
    with suppress(OutputError):  # whoever writes there says what is the matter
        if names := object_store.names_in(folder):
            completed = object_store.written_at(url) or object_store.written_at(f"{url}/zarr.json")
            times = [object_store.written_at(f"{folder}/{name}") for name in names]
            return completed is not None and all(time is None or time <= completed for time in times)
    return False


def _listed(folder: str) -> list[str]:
    return object_store.names_in(folder) if is_url(folder) else os.listdir(folder)


def _clear(folder: str) -> None:
    """Remove the files of a checkpoint and nothing else, then the folder if it is empty."""
    with suppress(FileNotFoundError):
        for name in _listed(folder):
            path = os.path.join(folder, name)
            if FILE.fullmatch(name) and (is_url(path) or os.path.isfile(path)) and is_checkpoint_file(path):
                (object_store.remove_object if is_url(path) else os.remove)(path)
    with suppress(OSError):
        if not is_url(folder):
            os.rmdir(folder)
