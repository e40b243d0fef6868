"""`CheckpointFolder`, where a run saves how far it is: at an interval, and when it is told to stop.

A folder holds one run: a record of which work it is and with which plan, and the partial results of its stages. Each
is a `CheckpointFile`, so that one is whole whenever the process dies.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from ..errors import RESUMABLE, ChangedError, ClusterLostError, DataError, ModelError, OutputError, Stopped, first_line
from ..events import Checkpoint, Listener, Warned
from ..kinds.run import Run
from ..signals import stop_asked
from ..storage.disk import check_place, expanded, is_own
from ..storage.locks import checkpoint_lock
from ..storage.outputs import SCRATCH, discard
from ..units import MIB, format_seconds
from .checkpoint_file import CheckpointFile, is_checkpoint_file
from .fingerprint import first_difference
from .task import SavedPartial, Stateful
from .threads import blas_in_use

Array = npt.NDArray[Any]

RECORD = "run"  # name of the file that says which work the folder holds
FILE = re.compile(r"[a-z]+(-[a-z]+)*(-\d+)?\.[ab]")  # names of checkpoint files, in a folder that may hold others
SCRATCH_NAME = re.compile(r"\w+" + re.escape(SCRATCH))  # of a scratch copy or folder, wherever it may lie
FOLDER = ".streampca-checkpoint"  # ending of the name of a folder that lies beside an output
EVERY = 30.0  # seconds between saves, or more ...
SHARE = 0.025  # ... so that they take no more of the time than this
PATIENCE = 20.0  # seconds that a save may take when the run is told to stop
UNMEASURED = 100 * MIB  # bytes a second, until a save has been measured


@dataclass(frozen=True)
class Checkpointing:
    """Folder and interval of a run's checkpoints.

    Attributes
    ----------
    folder : str
        Made when something is saved, removed when the run is complete.
    every : float
        Least seconds between saves; 0 saves after every block.
    require_same_bits : bool
        Refuse to resume a run that began with other threads or another kernel of BLAS, which may round otherwise; by
        default that is a warning.
    """

    folder: str
    every: float = EVERY
    require_same_bits: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", expanded(self.folder))


def checkpointing_of(run: Run) -> Checkpointing | None:
    """Return the folder and interval of a run's checkpoints; None for none."""
    if run.checkpoint is None or isinstance(run.checkpoint, Checkpointing):
        return run.checkpoint
    return Checkpointing(os.fspath(run.checkpoint), run.checkpoint_every, run.require_same_bits)


class _Save(NamedTuple):
    """A file, the position that is saved in it, and the state there."""

    file: CheckpointFile
    position: Mapping[str, int]
    stateful: Stateful


class CheckpointFolder:
    """The progress of one run, in a folder.

    Parameters
    ----------
    how : Checkpointing
        Where, how often, and when to end.
    identity : mapping
        Plain data that tell this work from other work.
    overwrite : bool, default=False
        Whether the checkpoint of other work is removed, with a warning, instead of refused.
    scratch_folder : str, optional
        Folder that this run has for scratch copies, besides that of the checkpoint. What a record says lies elsewhere
        is neither used nor removed: anybody may have written it.
    listener : callable
        Told of every save.

    Attributes
    ----------
    record : mapping
        Record that `begin` made of the run that is resumed: ``plan``, ``scratch`` and its details; empty for a new one.
    is_recorded : bool
        True where the record is in the folder: a run that ends without it leaves nothing to resume.

    Raises
    ------
    OutputError
        If the folder holds other work, naming the first difference; or is not a folder.
    """

    def __init__(
        self,
        how: Checkpointing,
        identity: Mapping[str, Any],
        *,
        overwrite: bool = False,
        scratch_folder: str | None = None,
        listener: Listener,
    ) -> None:
        if os.path.lexists(how.folder) and not os.path.isdir(how.folder):
            raise OutputError(f"checkpoint {how.folder} is not a folder; choose another.")
        check_place(how.folder)
        self._how, self._listener, self.folder = how, listener, how.folder
        self._scratch_folders = [os.path.abspath(each) for each in (how.folder, scratch_folder) if each is not None]
        self._identity = json.loads(json.dumps(identity, default=lambda value: value.item()))
        self._file = CheckpointFile(how.folder, RECORD)
        self._stages: dict[str, StageCheckpoint] = {}
        self._lock, self._rate = threading.Lock(), float(UNMEASURED)
        found = self._file.load()
        self.record: Mapping[str, Any] = {} if found is None else found[0]
        self._replaced: Mapping[str, Any] = {}
        self.is_recorded = found is not None
        if found is not None and (difference := first_difference(self.record.get("identity", {}), self._identity)):
            differs = f"{self.folder} holds an unfinished run with {difference}"
            if not overwrite and not self.record.get("refused"):
                raise OutputError(
                    f"{differs}; run it with the same options and data to resume, or remove the folder to start again."
                )
            listener(Warned(f"{differs}; this one starts from the beginning."))
            self._replaced, self.record = self.record, {}  # removed once this run has a plan

    def begin(
        self, plan: Mapping[str, Any], *, resumes: bool = True, scratch: str | None = None, **details: Any
    ) -> None:
        """Note the plan that is carried out; of a run that is resumed, check that it is still the same.

        Parameters
        ----------
        plan : mapping
            Plain data that decide the bits of the answer, and where blocks begin.
        resumes : bool, default=True
            False where what was saved is of an output that is gone.
        scratch : str, optional
            File or folder that is removed with the checkpoint; a resumed run has the one that it began with.
        **details
            Plain data to find in `record` when the run is resumed.

        Raises
        ------
        OutputError
            If the plan is another, as on a machine of more cores; or BLAS, where the same bits are required.
        """
        blas = blas_in_use()
        if not self.record or not resumes:
            self.clear()  # partial results of unknown work
            self.record = {
                "identity": self._identity,
                "plan": dict(plan),
                "scratch": scratch,
                "blas": [blas],
                **details,
            }
            if scratch is not None:
                discard(scratch)  # whatever it is: this run has written none of it
                self._save_record()  # before the copy is there: else nobody would know whose it is
            return
        if difference := first_difference(self.record.get("plan", {}), plan):
            name, before, now = difference
            raise OutputError(
                f"{self.folder} holds an unfinished run planned with {name} {before}, and on this machine it "
                f"is {now}; resume it where it was begun, or remove the folder to start again."
            )
        self._check_blas(blas)
        now = {name: value for name, value in self.record.items() if name != "refused"}
        now["blas"] = [*dict.fromkeys([*now.get("blas", ()), blas])]
        now["scratch"] = self.scratch or scratch
        if now["scratch"] is not None and not is_own(now["scratch"]):  # what it leads to is not ours to write
            discard(now["scratch"])
        if now != self.record:
            self.record = now
            self._save_record()

    def _check_blas(self, blas: str) -> None:
        """Refuse to resume with another BLAS than that of a run so far where the same bits are required, or warn."""
        others = [each for each in self.record.get("blas", ()) if each != blas]
        if not others:
            return
        differs = f"{self.folder} was begun with {others[0]}, and this process has {blas}"
        if self._how.require_same_bits:
            raise OutputError(
                f"{differs}; resume it on the same kind of machine, with OPENBLAS_NUM_THREADS as it was, or without "
                "--require-same-bits (require_same_bits=True)."
            )
        self._listener(Warned(f"{differs}: the result may differ in its last bits from that of an unbroken run."))

    @property
    def scratch(self) -> str | None:
        """Scratch copy or folder of the run, where it lies in a folder that this run may write scratch to."""
        return self._own_scratch(self.record)

    def _own_scratch(self, record: Mapping[str, Any]) -> str | None:
        return _scratch_within(self._scratch_folders, record)

    def refuse(self) -> None:
        """Keep what was saved of a run that is refused: the same work may resume there, and other work replaces it."""
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
        """Remove what was saved when the run is complete, or cannot be because of its data."""
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
            kept = f"progress up to the last checkpoint is saved in {self.folder}."
            raise Stopped(f"{first_line(error)}; {kept}", resumable=True) from None
        self.clear()

    def clear(self) -> None:
        """Remove everything that was saved, and the folder if it holds nothing else."""
        for record in (self._replaced, self.record):
            if (scratch := self._own_scratch(record)) is not None:
                discard(scratch)
        _clear(self.folder)
        self.is_recorded = False

    def save(self, saves: list[_Save], since: float, cost: float) -> float:
        """Save states in order, and return the seconds it took; a save that fails is a warning, not an error.

        `since` is when these were saved last, and `cost` the seconds it took then.

        Raises
        ------
        Stopped
            If the run was told to stop.
        """
        signal, began = stop_asked(), time.monotonic()
        again = f"the last {format_seconds(began - since)} of work are lost, as saving them would take too long."
        if signal and cost > PATIENCE:
            raise Stopped(f"stopped by {signal}; {again}", resumable=self.is_recorded)
        states = [(each, each.stateful.state(copy=False)) for each in saves]
        count = sum(array.nbytes for _, state in states for array in state.values())
        if signal and count / self._rate > PATIENCE:
            raise Stopped(f"stopped by {signal}; {again}", resumable=self.is_recorded)
        try:
            for each, state in states:
                self._save(each.file, each.position, state)
        except OutputError as error:
            if signal:
                lost = f"work since the last checkpoint is lost: {error}"
                raise Stopped(f"stopped by {signal}; {lost}", resumable=self.is_recorded) from None
            self._listener(
                Warned(f"{error} The run continues; if it is stopped now, it resumes from an earlier checkpoint.")
            )
        now = time.monotonic()
        if count > MIB:
            self._rate = count / max(now - began, 1e-3)
        if signal:
            raise Stopped(f"stopped by {signal}; progress is saved in {self.folder}.", resumable=True)
        return now - began

    def _save(self, file: CheckpointFile, position: Mapping[str, int], state: Mapping[str, Array]) -> None:
        with self._lock:
            if not self.is_recorded:
                self._save_record()
            file.save(position, state)
            self._listener(Checkpoint(self.folder, position["at"]))

    def is_due(self, since: float, cost: float) -> bool:
        """Return whether to save: told to stop, or so long after the last save that its cost does not matter."""
        waited, every = time.monotonic() - since, self._how.every
        return bool(stop_asked()) or every == 0 or waited >= max(every, cost / SHARE)


class StageCheckpoint:
    """The partial results of one fold of a run; a `streampca.execution.Checkpointer`.

    Attributes
    ----------
    number : int
        Number of the pass, where a stage is folded several times: partial results of another pass are ignored.
    """

    def __init__(self, folder: CheckpointFolder, name: str) -> None:
        self._folder, self._name, self._is_ignored, self.number = folder, name, False, 0
        self._files: dict[int, CheckpointFile] = {}
        self._stopped: dict[int, tuple[int, int]] = {}  # last span and position of a part that was told to stop
        self._since: dict[int, float] = {}
        self._cost: dict[int, float] = {}
        self._first: list[_Save] = []

    def restart(self) -> StageCheckpoint:
        """Ignore what was saved of this fold: something it needs is gone."""
        self._is_ignored = True
        return self

    def save_first(self, stage: str, at: int, stateful: Stateful) -> None:
        """Save the state of another stage, without which this one makes no sense, before the next save of this one."""
        self._first = [_Save(self._folder.stage(stage)._of(0), {"first": 0, "last": 0, "at": at}, stateful)]

    def load(self, first: int) -> SavedPartial | None:
        """Return what was saved of the spans from `first` on."""
        found = None if self._is_ignored else self._of(first).load()
        if found is None or found[0].get("number", 0) != self.number:
            return None
        return SavedPartial(found[0]["last"], found[0]["at"], found[1])

    def load_any(self) -> SavedPartial | None:
        """Return what was saved of some spans, the first if there are any of them."""
        for first in sorted(set(_parts(self._folder.folder, self._name))):
            if (found := self.load(first)) is not None:
                return found
        return None

    def save_if_due(self, first: int, last: int, at: int, accumulator: Stateful, *, now: bool = False) -> None:
        """Save an accumulator if it is time to, or `now`."""
        # Since its own first block: since the last save of any part, others could keep it from its turn for ever.
        since, cost = self._since.setdefault(first, time.monotonic()), self._cost.get(first, 0.0)
        if self._stopped.get(first) == (last, at) or not (now or self._folder.is_due(since, cost)):
            return
        save = _Save(self._of(first), {"first": first, "last": last, "at": at, "number": self.number}, accumulator)
        try:
            self._cost[first] = self._folder.save([*self._first, save], since, cost)
        except Stopped:
            self._stopped[first] = last, at
            raise
        self._since[first], self._first = time.monotonic(), []

    def _of(self, first: int) -> CheckpointFile:
        if first not in self._files:
            self._files[first] = CheckpointFile(self._folder.folder, f"{self._name}-{first}")
        return self._files[first]


def _scratch_within(folders: Iterable[str], record: Mapping[str, Any]) -> str | None:
    """Return the scratch copy or folder that a record names, where it lies in one of some folders."""
    folder, name = os.path.split(str(record.get("scratch") or ""))
    is_own = os.path.abspath(folder) in map(os.path.abspath, folders) and SCRATCH_NAME.fullmatch(name)
    return os.path.join(folder, name) if is_own else None


def clear_finished(output: str) -> None:
    """Remove the checkpoint beside an output that was completed later: its run died before it could."""
    folder, path = output.rstrip("/") + FOLDER, output.rstrip("/")
    with suppress(FileNotFoundError, NotADirectoryError):
        made = os.stat(os.path.join(path, "zarr.json") if os.path.isdir(path) else path).st_mtime_ns
        if all(os.stat(os.path.join(folder, name)).st_mtime_ns <= made for name in os.listdir(folder)):
            with suppress(OutputError), checkpoint_lock(folder):  # else whoever is at work there removes it
                found = CheckpointFile(folder, RECORD).load()
                if found is not None and (scratch := _scratch_within((folder,), found[0])) is not None:
                    discard(scratch)
                _clear(folder)


def _parts(folder: str, stage: str) -> Iterator[int]:
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if FILE.fullmatch(name) and name.startswith(f"{stage}-"):
                yield int(name[len(stage) + 1 : -2])


def _clear(folder: str) -> None:
    """Remove files of a checkpoint, nothing else, and the folder if it is empty then."""
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if FILE.fullmatch(name) and os.path.isfile(path) and is_checkpoint_file(path):
                os.remove(path)
    with suppress(OSError):
        os.rmdir(folder)
