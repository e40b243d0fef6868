"""`Recorder`, which records how far an output is, so that the same call goes on from there after a kill.

What is recorded: where in the plan the next block is, what is in memory beside the output there, the plan's numbers,
and what tells one call from another. Rows are on disk before they are recorded, and what is written again after a kill
is written in the same place: the output is bit for bit that of an unbroken run.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ChangedError, DataError, OutputError
from ...events import BlockDone, Checkpoint, Listener, Resumed, Warned
from ...execution.slots import Slots
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
    """Records how far an output is, and says where to go on.

    Parameters
    ----------
    folder : str or None
        For the records; None: nothing is recorded, and what breaks off is removed.
    name : str
        Of what is written, ``"scores"`` or ``"images"``.
    asked : mapping
        Plain data that tell this call from others.
    collection : Collection
        What is read, prepared or not.
    every : float
        Seconds between records, more where recording takes more than a fortieth of that; 0: after every block.
    listener : callable
        Told of blocks, of records, and of what is taken over.

    Attributes
    ----------
    plan : dict of str to int or None
        Numbers of the plan that is gone on with.
    position : dict
        Where to go on, as it was given to `done`; empty where nothing is done yet.
    arrays : dict of str to ndarray
        What was in memory there.

    Raises
    ------
    OutputError
        If what was recorded is of a source that has changed since, or nothing can be recorded there.
    """

    def __init__(
        self,
        folder: str | None,
        name: str,
        asked: Mapping[str, Any],
        *,
        collection: Collection,
        every: float,
        listener: Listener,
    ) -> None:
        self._listener, self._every, self._row_bytes = listener, every, collection.row_bytes
        self._collection = collection
        self._slots = None if folder is None else Slots(folder, name)
        self._unfinished: UnfinishedOutput | None = None
        self._about: dict[str, Any] = {}
        self.plan: dict[str, int] | None = None
        self.position: dict[str, Any] = {}
        self.arrays: dict[str, Array] = {}
        self._cost, self._next, self._replaces = 0.0, time.monotonic() + every, False
        if self._slots is not None:
            check_place(os.path.join(self._slots.folder, name))
            raw = collection.raw if isinstance(collection, Prepared) else collection
            self._states = raw.states()
            self._about = {
                "asked": json.loads(json.dumps(dict(asked))),
                "samples": raw.n_samples,
                "states": encoded_states(self._states),
            }
            self._unfinished = UnfinishedOutput()
            self._take_up(self._slots, raw.source)

    def _take_up(self, slots: Slots, source: str) -> None:
        """Go on from what was recorded, if it is of this call."""
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
        self._unfinished = UnfinishedOutput(*before["partial"])
        self.plan, self.position, self.arrays = before["plan"], before["position"], arrays

    @contextmanager
    def output(self, path: str, table: OutputArray, plan: Mapping[str, int], *, overwrite: bool) -> Iterator[Writer]:
        """Open an output to write or to go on with; what was recorded is removed when it is complete.

        `position` and `arrays` say afterwards where to go on.

        Raises
        ------
        OutputError
            As `open_writer`.
        ChangedError
            If the collection changed while it was read: nothing is written then.
        """
        self._about["plan"] = dict(plan)
        with open_writer(path, table, overwrite=overwrite, unfinished=self._unfinished) as self._sink:
            if self._slots is not None and self._replaces:
                self._slots.discard()
            if self._unfinished is None or not self._unfinished.is_resumable:
                self.position, self.arrays = {}, {}
            else:
                samples = self.position["samples"]
                self._listener(Resumed(samples, samples * self._row_bytes))
            try:
                with unchanged(self._collection):
                    yield self._sink
            except (DataError, ChangedError):  # whose remedy is other data
                self._forget()
                raise
        if self._slots is not None:
            sync_folder(os.path.dirname(os.path.abspath(path)))  # its name is there before the records are not
            self._slots.discard()

    def _forget(self) -> None:
        if self._slots is not None and self._unfinished is not None:
            self._unfinished.size = None
            self._slots.discard()

    def done(self, event: BlockDone | None, position: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Tell of a block that is done, and record it where it is time.

        A listener that stops the run does it here, where everything is in place: the block is recorded then, if that
        takes no longer than it may.

        Parameters
        ----------
        event : BlockDone or None
            What to tell, if anything.
        position : mapping
            Where to go on: plain data, with ``samples``, how many are done.
        arrays : mapping of str to ndarray
            What is in memory that is needed for it; may change afterwards.
        """
        try:
            if event is not None:
                self._listener(event)
        except BaseException:
            if self._cost <= STOP_SECONDS:
                with suppress(OutputError):  # what was recorded before is still there, and why it stops says more
                    self._record(position, arrays)
            raise
        if time.monotonic() >= self._next:
            self._record(position, arrays)

    def _record(self, position: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        if self._slots is None or self._unfinished is None:
            return
        began = time.monotonic()
        size = self._sink.sync()
        partial = [self._unfinished.token, size]
        self._slots.save({**self._about, "position": dict(position), "partial": partial}, arrays)
        self._unfinished.size = size
        ended = time.monotonic()
        self._cost = ended - began
        self._next = ended + max(self._every, PATIENCE * self._cost) if self._every else ended
        self._listener(Checkpoint(self._slots.folder, position["samples"]))


def _change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first thing that a call asks otherwise than one before it, in words."""
    for key in {**now, **before}:
        if before.get(key) != now.get(key):
            return "another model" if key == "model" else f"{key} {before.get(key)!r} and not {now.get(key)!r}"
    return None


def numbers_of(plan: Any) -> dict[str, int]:
    """The numbers of a plan, without its memory estimate."""
    return {field.name: getattr(plan, field.name) for field in fields(plan) if field.name != "memory_estimate"}


def digest_of(subspace: Subspace, frame: Frame) -> str:
    """A short text that tells one model from another by its numbers; reads components where they are in memory."""
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
