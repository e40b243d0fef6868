"""`Recorder`, which records how far an output is, so that the same call resumes there after a kill.

A record holds how far each span is, what is in memory beside the output there, the plan's numbers, and what tells one
call from another. Rows are on disk before they are recorded, and what is written again after a kill
is written in the same place: the output is bit for bit that of an unbroken run.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ChangedError, DataError, OutputError
from ...events import Checkpoint, Event, Listener, Warned
from ...execution import SavedPartial
from ...execution.slots import Slots
from ...execution.task import Stateful
from ...preprocessing import Frame, Prepared
from ...readers import Collection
from ...readers.collection import encoded_states, first_change, unchanged
from ...storage.components import StoredRows
from ...storage.disk import sync_folder
from ...storage.outputs import check_place, open_writer
from ...storage.writers import OutputArray, UnfinishedOutput, Writer
from ..subspace import Subspace

Array = npt.NDArray[Any]

EVERY = 30.0  # seconds between records
PATIENCE = 40  # a record that took s seconds is followed by none for 40 s: under 3 % of the run
STOP_SECONDS = 20.0  # of what still is saved when a run is stopped: schedulers kill 30 s after they warn


class Recorder:
    """Records how far an output is, and where to resume: the `Checkpointer` of the fold that writes it.

    Parameters
    ----------
    folder : str or None
        For the records; None: nothing is recorded, and what breaks off is removed.
    name : str
        Of what is written, ``"scores"`` or ``"images"``.
    request : mapping
        Plain data that tell this call from others.
    collection : Collection
        What is read, prepared or not.
    every : float
        Seconds between records, more where recording takes more than a fortieth of that; 0: after every block.
    listener : callable
        Told of records.

    Attributes
    ----------
    plan : dict of str to int or None
        Numbers of the plan that is resumed.

    Raises
    ------
    OutputError
        If what was recorded is of a source that has changed since, or nothing can be recorded there.
    """

    def __init__(
        self,
        folder: str | None,
        name: str,
        request: Mapping[str, Any],
        *,
        collection: Collection,
        every: float,
        listener: Listener,
    ) -> None:
        self._listener, self._every, self._collection = listener, every, collection
        self._slots = None if folder is None else Slots(folder, name)
        self._unfinished: UnfinishedOutput | None = None
        self._about: dict[str, Any] = {}
        self._parts: dict[int, SavedPartial] = {}  # by their first span
        self._lock, self._stopped, self._is_newer = threading.Lock(), False, False
        self.plan: dict[str, int] | None = None
        self._cost, self._next, self._replaces = 0.0, time.monotonic() + every, False
        if self._slots is not None:
            check_place(os.path.join(self._slots.folder, name))
            raw = collection.raw if isinstance(collection, Prepared) else collection
            self._states = raw.states()
            self._about = {
                "asked": json.loads(json.dumps(dict(request))),
                "samples": raw.n_samples,
                "states": encoded_states(self._states),
            }
            self._unfinished = UnfinishedOutput()
            self._resume(self._slots, raw.source)

    def _resume(self, slots: Slots, source: str) -> None:
        """Resume what was recorded, if it is of this call."""
        found = slots.load()
        if found is None:
            return
        before, arrays = found
        changed = _change(before["asked"], self._about["asked"])
        if changed:
            self._listener(Warned(f"{slots.folder} holds a run with {changed}; this one begins anew."))
            self._replaces = True  # what was recorded is removed when this one has a plan
            return
        changed = first_change(before.get("states", ""), self._states)
        if before.get("samples") != self._about["samples"]:
            changed = source
        if changed is not None:
            raise OutputError(
                f"{self._about['asked']['output']} was begun with other data: {changed} has changed since, or is "
                f"opened with other options (key, select, samples ...). Give it the same data, or delete {slots.folder}"
                " to begin anew."
            )
        if "parts" not in before:  # of a version that recorded otherwise
            self._replaces = True
            return
        self._unfinished, self.plan = UnfinishedOutput(*before["partial"]), before["plan"]
        states: dict[int, dict[str, Array]] = {first: {} for first, *_ in before["parts"]}
        for key, array in arrays.items():
            first, name = key.split(".", 1)
            states[int(first)][name] = array
        self._parts = {first: SavedPartial(last, at, states[first]) for first, last, at in before["parts"]}

    @property
    def records(self) -> bool:
        """Whether there is a folder to record in."""
        return self._slots is not None

    @contextmanager
    def output(self, path: str, table: OutputArray, plan: Mapping[str, int], *, overwrite: bool) -> Iterator[Writer]:
        """Open an output to write or to resume; what was recorded is removed when it is complete.

        Raises
        ------
        OutputError
            As `open_writer`.
        ChangedError
            If the collection changed while it was read: nothing is written then.
        """
        self._about["plan"] = dict(plan)
        with open_writer(path, table, overwrite=overwrite, unfinished=self._unfinished) as self._writer:
            if self._slots is not None and self._replaces:
                self._slots.discard()
            if self._unfinished is None or not self._unfinished.is_resumable:
                self._parts = {}
            try:
                with unchanged(self._collection):
                    yield self._writer
            except (DataError, ChangedError):  # whose remedy is other data
                if self._slots is not None and self._unfinished is not None:
                    self._unfinished.size = None
                    self._slots.discard()
                raise
            except BaseException:
                if self._stopped and self._is_newer and self._cost <= STOP_SECONDS:
                    with suppress(OutputError):  # what was recorded before is still there, and why it stops says more
                        self._record()
                raise
        if self._slots is not None:
            sync_folder(os.path.dirname(os.path.abspath(path)))  # its name is there before the records are not
            self._slots.discard()

    def told(self, event: Event) -> None:
        """Tell the listener; when it stops the run, everything is in place, and the last block is recorded."""
        try:
            self._listener(event)
        except BaseException:
            self._stopped = True
            raise

    def load(self, first: int) -> SavedPartial | None:
        """What was recorded of the spans from `first` on."""
        return self._parts.get(first)

    def save_if_due(self, first: int, last: int, at: int, accumulator: Stateful, *, now: bool = False) -> None:
        """Record how far all parts are where it is time."""
        state = accumulator.state(copy=False)
        with self._lock:
            merged = [other for other in self._parts if first < other <= last]
            for other in merged:
                del self._parts[other]
            before = self._parts.get(first)
            self._is_newer = self._is_newer or before is None or (before.last, before.at) != (last, at)
            self._parts[first] = SavedPartial(last, at, state)
            if self._is_newer and (now or time.monotonic() >= self._next):
                self._record()

    def _record(self) -> None:
        if self._slots is None or self._unfinished is None:
            return
        began = time.monotonic()
        size = self._writer.sync()
        parts = [(first, saved.last, saved.at) for first, saved in self._parts.items()]
        arrays = {f"{first}.{name}": a for first, saved in self._parts.items() for name, a in saved.state.items()}
        about = {**self._about, "parts": parts, "partial": [self._unfinished.token, size]}
        self._slots.save(about, arrays)
        self._unfinished.size, self._is_newer = size, False
        ended = time.monotonic()
        self._cost = ended - began
        self._next = ended + max(self._every, PATIENCE * self._cost) if self._every else ended
        samples = sum(int(saved.state["totals"][0]) for saved in self._parts.values())
        self._listener(Checkpoint(self._slots.folder, samples))


def _change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Describe the first difference between two requests; None if there is none."""
    for key in {**now, **before}:
        if before.get(key) != now.get(key):
            return "another model" if key == "model" else f"{key} {before.get(key)!r} and not {now.get(key)!r}"
    return None


def numbers_of(plan: Any) -> dict[str, int]:
    """The integers of a plan, without its memory estimate."""
    return {field.name: getattr(plan, field.name) for field in fields(plan) if field.name != "memory_estimate"}


def digest_of(subspace: Subspace, frame: Frame) -> str:
    """Digest of a model's numbers; reads components where they are in memory."""
    found = hashlib.sha256(repr((frame.raw_shape, frame.sample_shape, frame.preparation.to_json())).encode())
    arrays: list[Any] = [subspace.mean, subspace.variance, frame.mask, frame.preparation.scale, frame.preparation.mask]
    components = subspace.components
    if isinstance(components, StoredRows):
        stored = components.components
        found.update(repr((stored.identity or stored.path, components.shape, str(components.dtype))).encode())
    else:
        arrays += [*np.asarray(components)]  # a row at a time: the digest copies what is not contiguous
    for array in arrays:
        if isinstance(array, np.ndarray):
            found.update(repr((array.shape, array.dtype.str)).encode())
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()[:16]
