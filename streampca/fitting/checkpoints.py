"""Saving a fit as it goes: at an interval, when it is told to stop, and in such a way that it can go on."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..errors import ChangedError, ClusterLostError, DataError, OutputError, RequestError, Stopped
from ..events import Checkpoint, Listener, Warned
from ..execution import SavedPartial
from ..execution.checkpoint import Slots, is_slot
from ..execution.signals import Switch
from ..execution.task import Stateful
from ..planning import Plan
from ..planning.blocks import Part
from ..planning.request import HOW, Request
from ..preprocessing import Prepared
from ..readers.collection import State, digest, first_change
from ..storage.disk import expanded
from ..storage.locks import alone_in
from ..storage.outputs import SCRATCH, check_place, discard
from ..units import MIB, format_seconds

Array = npt.NDArray[Any]

STATES = "states of the source"  # what an identity calls them
FIT = "fit"  # what is kept in a folder that may hold more
FOLDER = ".streampca-checkpoint"  # what the name of a folder ends in that lies beside an output
EVERY = 30.0  # seconds between saves, or more ...
SHARE = 0.025  # ... so that they take no more of the time than this
PATIENCE = 20.0  # seconds that a save may take when the run is told to stop
UNMEASURED = 100 * MIB  # bytes a second, until a save has been measured

OURS = re.compile(
    r"(fit|scores|images|(scatter|gram|product|lanczos|components|scratch)-\d+)\.[ab]"
)  # in a folder that may hold more

# Of a plan: what decides the bits of the answer, and where its blocks begin.
CUTTING = (
    "method", "precision", "solver", "schedule", "block_rows", "product_rows", "spans", "block_features",
    "product_features", "component_features", "stored", "threads", "ahead", "width", "columns",
)  # fmt: skip


@dataclass(frozen=True)
class Checkpointing:
    """How a fit is kept as it goes.

    Attributes
    ----------
    folder : str
        Where; made when something is saved, removed when the fit is complete.
    every : float
        Least seconds between saves; 0 saves after every block.
    switch : Switch
        When it is turned, all is saved and the fit ends.
    """

    folder: str
    every: float = EVERY
    switch: Switch = field(default_factory=Switch)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", expanded(self.folder))


def identity_of(
    collection: Prepared,
    request: Request,
    digest_of_weights: str | None,
    part: Part | None,
    states: Sequence[State],
) -> dict[str, Any]:
    """Which fit it is, as plain data: what is asked, and of which data, by their states."""
    preparation, scale = collection.preparation, collection.preparation.scale
    asked = {name: value for name, value in vars(request).items() if name not in HOW or name == "memory"}
    return {
        "source": collection.source,
        **asked,
        **preparation.to_json(),
        "mask": None if collection.mask is None else digest(collection.mask.tobytes()),
        "scale": digest(scale.tobytes()) if isinstance(scale, np.ndarray) else scale,
        "part": part and list(part),
        "sample_weight": digest_of_weights,
        "version of streampca": __version__,
        "number of samples": collection.n_samples,
        STATES: [list(state) for state in states],
    }


def _states(plain: Sequence[Sequence[Any]]) -> list[State]:
    return [State(*state) for state in plain]


def check_beside(folder: str, output: str | None) -> None:
    """Refuse a checkpoint in the output's place, or inside it.

    Raises
    ------
    RequestError
        If it is there.
    """
    if output is not None and Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(output)):
        raise RequestError(f"checkpoint {folder} is the output {output} or lies in it; choose a folder beside it.")


class Needed(NamedTuple):
    """What is to be saved: where, which position it is of, and what it is."""

    slots: Slots
    at: Mapping[str, int]
    stateful: Stateful


class FitCheckpoint:
    """What a fit has done so far, in a folder.

    Parameters
    ----------
    how : Checkpointing
        Where, how often, and when to end.
    identity : mapping
        Plain data; see `identity_of`.
    listener : callable
        Told of every save.

    anew : bool, default=False
        Whether another fit's beginning is removed, not refused.

    Raises
    ------
    OutputError
        If the folder holds another fit, the message names what differs; or is none.
    """

    def __init__(
        self, how: Checkpointing, identity: Mapping[str, Any], *, anew: bool = False, listener: Listener
    ) -> None:
        if os.path.lexists(how.folder) and not os.path.isdir(how.folder):
            raise OutputError(f"checkpoint {how.folder} is no folder; choose another.")
        check_place(how.folder)
        self._how, self._listener, self.folder = how, listener, how.folder
        self._identity = json.loads(json.dumps(identity, default=lambda value: value.item()))
        self._about = Slots(how.folder, FIT)
        self._stages: dict[str, StageCheckpoint] = {}
        self._lock, self._rate, self.last = threading.Lock(), float(UNMEASURED), time.monotonic()
        found = self._about.load()
        self._begun: Mapping[str, Any] = {} if found is None else found[0]
        self._replaced: Mapping[str, Any] = {}
        self._noted = found is not None
        if found is not None:
            self._check(anew)

    def _check(self, anew: bool) -> None:
        """Refuse another fit's beginning, or remove it."""
        before = self._begun["identity"]
        for key, value in self._identity.items():
            if before.get(key) == value:
                continue
            differs = f"{self.folder} holds the beginning of a fit with {key} {before.get(key)!r}"
            now = f", and this one has {value!r}"
            if key == STATES:
                changed = first_change(_states(before.get(key, [])), _states(value))
                differs, now = f"{self.folder} holds the beginning of a fit of other data: {changed} has changed", ""
            if not anew:
                raise OutputError(
                    f"{differs}{now}; give what that one had to go on with it, or remove the folder to start again."
                )
            self._listener(Warned(f"{differs}; this one begins anew."))
            self._replaced, self._begun = self._begun, {}  # and is removed when this one has a plan
            return

    @property
    def memory(self) -> int | None:
        """The budget of the fit that is there already."""
        return self._begun.get("memory")

    @property
    def workers(self) -> int | None:
        """For how many processes the fit that is there already was planned."""
        return self._begun.get("workers")

    def begin(self, plan: Plan, scratch: str | None) -> None:
        """Note the plan that is carried out, or see that it is the one that was begun.

        Parameters
        ----------
        plan : Plan
            What is to be done.
        scratch : str, optional
            Folder for a scratch copy; that of the rest by default.

        Raises
        ------
        OutputError
            If it is another, as on a machine of more cores.
        """
        now = {name: value for name, value in plan.to_json().items() if name in CUTTING}
        if not self._begun:
            self.clear()  # states of nobody knows which fit
            copy = os.path.join(scratch or self.folder, f"{uuid.uuid4().hex[:12]}{SCRATCH}")
            self._begun = {
                "identity": self._identity,
                "plan": now,
                "memory": plan.memory,
                "workers": plan.workers,
                "scratch": copy if plan.schedule == "scratch" else None,
            }
            if plan.schedule == "scratch":
                self._note()  # else nobody would know whose the copy is
        for name, value in now.items():
            before = self._begun["plan"][name]
            if before != value:
                raise OutputError(
                    f"{self.folder} holds the beginning of a fit planned with {name} {before}, and on this machine it "
                    f"is {value}; go on where it was begun, or remove the folder to start again."
                )

    def _note(self) -> None:
        self._about.save(self._begun, {})
        self._noted = True

    def stage(self, name: str) -> StageCheckpoint:
        """The checkpoint of one fold."""
        self._how.switch.is_kept = True
        return self._stages.setdefault(name, StageCheckpoint(self, name))

    @property
    def scratch(self) -> str | None:
        """Name of a scratch copy that outlives the process, which nobody else has."""
        return self._begun.get("scratch")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Remove what was saved when the fit is complete, or when it cannot be: data that will not do are changed."""
        try:
            yield
        except (DataError, ChangedError):
            self.clear()
            raise
        except ClusterLostError as error:
            error.exit_code = Stopped.exit_code
            raise
        finally:
            self._how.switch.is_kept = False
        self.clear()

    def clear(self) -> None:
        """Remove what was saved, and the folder if it holds nothing else: the fit is complete, or begins anew."""
        for begun in (self._replaced, self._begun):
            if begun.get("scratch"):
                discard(begun["scratch"])
        _clear(self.folder)
        self._noted = False

    def save(
        self, slots: Slots, at: Mapping[str, int], accumulator: Stateful, since: float, before: Needed | None = None
    ) -> float:
        """Save, if there is time for it; return the seconds it took. What cannot be saved is no reason to end.

        Raises
        ------
        Stopped
            If the run was told to stop.
        """
        asked, began = self._how.switch.asked, time.monotonic()
        states = [Needed(slots, at, accumulator)] if before is None else [before, Needed(slots, at, accumulator)]
        kept = [(each, each.stateful.state(copy=False)) for each in states]
        count = sum(array.nbytes for _, state in kept for array in state.values())
        if asked and count / self._rate > PATIENCE:
            again = format_seconds(began - since)
            raise Stopped(f"stopped by {asked}; saving would take too long: the last {again} will be done again.")
        try:
            for each, state in kept:
                self._save(each.slots, each.at, state)
        except OutputError as error:
            if asked:
                raise Stopped(f"stopped by {asked}; what was done since the last save is lost: {error}") from None
            self._listener(
                Warned(f"{error} The fit goes on; were it stopped now, it would begin from an earlier state.")
            )
        self.last = time.monotonic()
        if count > MIB:
            self._rate = count / max(self.last - began, 1e-3)
        if asked:
            raise Stopped(f"stopped by {asked}; what was done is kept in {self.folder}.")
        return self.last - began

    def _save(self, slots: Slots, at: Mapping[str, int], state: Mapping[str, Array]) -> None:
        with self._lock:
            if not self._noted:
                self._note()
            slots.save(at, state)
            self._listener(Checkpoint(self.folder, at["at"]))

    def is_due(self, since: float, cost: float) -> bool:
        """Whether to save: told to stop, or so long since the last time that the cost does not matter."""
        waited, every = time.monotonic() - since, self._how.every
        return bool(self._how.switch.asked) or every == 0 or waited >= max(every, cost / SHARE)


def clear_finished(output: str) -> None:
    """Remove what was saved of an output beside it, if that was completed later: its run died before it could."""
    folder, path = output.rstrip("/") + FOLDER, output.rstrip("/")
    with suppress(FileNotFoundError, NotADirectoryError):
        made = os.stat(os.path.join(path, "zarr.json") if os.path.isdir(path) else path).st_mtime_ns
        if all(os.stat(os.path.join(folder, name)).st_mtime_ns <= made for name in os.listdir(folder)):
            with suppress(OutputError), alone_in(folder):  # else whoever is at work there removes it
                _clear(folder)


def _clear(folder: str) -> None:
    """Remove slots, nothing else, and the folder if it is empty then."""
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if OURS.fullmatch(name) and os.path.isfile(path) and is_slot(path):
                os.remove(path)
    with suppress(OSError):
        os.rmdir(folder)


class StageCheckpoint:
    """Keeps one fold of a run; see `streampca.execution.Checkpointer`."""

    def __init__(self, saver: FitCheckpoint, name: str) -> None:
        self._saver, self._name = saver, name
        self._slots: dict[int, Slots] = {}
        self._since: dict[int, float] = {}
        self._cost: dict[int, float] = {}
        self._needed: Needed | None = None

    def rest_on(self, stage: str, at: int, needed: Stateful) -> None:
        """Have something else saved, in a stage of its own, before anything of this one is."""
        self._needed = Needed(self._saver.stage(stage)._of(0), {"first": 0, "last": 0, "at": at}, needed)

    def load(self, first: int) -> SavedPartial | None:
        """What was saved of the spans from `first` on."""
        found = self._of(first).load()
        if found is None:
            return None
        about, state = found
        return SavedPartial(about["last"], about["at"], state)

    def save_if_due(self, first: int, last: int, at: int, accumulator: Stateful, *, now: bool = False) -> None:
        """Save, if it is time to."""
        since, cost = self._since.get(first, self._saver.last), self._cost.get(first, 0.0)
        if not (now or self._saver.is_due(since, cost)):
            return
        where = {"first": first, "last": last, "at": at}
        self._cost[first] = self._saver.save(self._of(first), where, accumulator, since, self._needed)
        self._since[first], self._needed = self._saver.last, None

    def _of(self, first: int) -> Slots:
        if first not in self._slots:
            self._slots[first] = Slots(self._saver.folder, f"{self._name}-{first}")
        return self._slots[first]
