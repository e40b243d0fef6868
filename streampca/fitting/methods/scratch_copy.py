"""Scratch copy: a collection written once to a temporary file that is fast to read by ranges of features.

Ranges of features follow one another, each with all samples, so that a range is one contiguous read. Values are stored
as prepared. The file is at a given path (beside the output), never in the system's temporary folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import numpy as np

from ...arrays import Array
from ...errors import SourceError
from ...events import PassStarted
from ...execution import LocalExecutor
from ...execution.checkpoint import StageCheckpoint
from ...execution.fold import one_span
from ...execution.task import SampleBlocks
from ...machine import hand_back
from ...planning.blocks import Span, blocks_of
from ...readers.collection import Collection, Filled
from ...readers.storage_record import Chunks, Storage
from ...storage.disk import bytes_on_disk, open_own, read_at
from ...storage.free_space import check_free_space, writing
from .job import Job

STAGE = "scratch"  # name of the stage of copying


class ScratchCopy(Filled):
    """Collection read from its scratch copy; for this process only, as the file is open.

    Parameters
    ----------
    file : file
        File, open for reading and writing.
    copied : Collection
        Copied collection.
    width : int
        Number of features of a range; the last can have fewer.
    """

    def __init__(self, file: IO[bytes], copied: Collection, width: int) -> None:
        self.source, self.dtype, self.copied = copied.source, copied.dtype, copied
        self.shape = (copied.n_samples, copied.n_features)
        self._file, self._width = file, width
        # The smallest piece that can be read is a range of features of one sample.
        self.storage = Storage(Chunks(1, width), fills=True)

    def where(self, index: int) -> str:
        """Return the place of a sample in the copied collection."""
        return self.copied.where(index)

    def sample_names(self) -> Sequence[str] | None:
        """Return the names of the copied collection's samples."""
        return self.copied.sample_names()

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Read into an array, directly if it is a whole range; see `Collection.read_into`."""
        requested = Span(0, self.n_features) if features is None else Span(features.start, features.stop)
        for part in blocks_of(requested, self._width):
            whole = self._range(part.start)
            direct = part == whole == requested
            piece = out if direct else np.empty((len(out), whole.size), self.dtype)
            self._fill(piece, self._offset(whole, rows.start))
            if not direct:
                # Storage is read by whole ranges: cut out the requested features.
                kept = piece[:, part.start - whole.start : part.stop - whole.start]
                out[:, part.start - requested.start : part.stop - requested.start] = kept

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Sync the file, which is the whole state."""
        os.fsync(self._file.fileno())
        return {}

    def write(self, start: int, block: Array) -> None:
        """Write all features of samples `start` onwards."""
        for part in blocks_of(Span(0, self.n_features), self._width):
            piece = np.ascontiguousarray(block[:, slice(*part)])
            remaining, offset = memoryview(piece.data).cast("B"), self._offset(part, start)
            while remaining:
                count = os.pwrite(self._file.fileno(), remaining, offset)
                remaining, offset = remaining[count:], offset + count

    def holds(self, rows: int) -> bool:
        """Return whether the file is long enough for the first `rows` samples."""
        last = self._range(self.n_features - 1)
        return os.fstat(self._file.fileno()).st_size >= (self._offset(last, rows) if rows else 0)

    def _range(self, feature: int) -> Span:
        start = feature // self._width * self._width
        return Span(start, min(start + self._width, self.n_features))

    def _offset(self, whole: Span, row: int) -> int:
        """Return the offset in the file, in bytes, of a sample of a range of features."""
        return (whole.start * self.n_samples + row * whole.size) * self.dtype.itemsize

    def _fill(self, piece: Array, offset: int) -> None:
        remaining = memoryview(piece.data).cast("B")
        while remaining:
            count = read_at(self._file.fileno(), remaining, offset)
            if count == 0:
                raise SourceError(
                    f"the scratch copy of {self.source} was cut short while it was read; fit again to make it anew."
                )
            remaining, offset = remaining[count:], offset + count


@contextmanager
def scratch_copy(job: Job) -> Iterator[ScratchCopy]:
    """Copy a collection to a file that is removed when the block or the process ends, however that ends.

    Without checkpoints, the name of the file is removed as soon as it is open: no other process finds it, and the
    system reclaims its space. With checkpoints, the file keeps its name and stays.

    Raises
    ------
    OutputError
        If the disk has too little space, or the file cannot be written.
    """
    path, plan, source = job.scratch or "", job.plan, job.collection.source
    folder = os.path.dirname(os.path.abspath(path))
    with writing(path):
        os.makedirs(folder, exist_ok=True)
    remedy = "free some space, or choose another folder by --scratch (scratch=)."
    checkpoint = job.checkpoint(STAGE)
    # A resumed copy has part of its space already.
    existing = 0 if checkpoint is None else bytes_on_disk(path)
    check_free_space(path, plan.bytes_written - existing, f"a scratch copy of {source}", remedy)
    with _file(path, checkpoint is None) as file:
        copy = ScratchCopy(file, job.collection, plan.block_features)
        if checkpoint is not None and (saved := checkpoint.load(0)) and not copy.holds(saved.at):
            checkpoint.restart()  # the file was removed or truncated
        _write(copy, path, job, checkpoint)
        hand_back()
        yield copy


@contextmanager
def _file(path: str, loses_its_name: bool) -> Iterator[IO[bytes]]:
    """Open the file; a resumable one is removed with the checkpoint."""
    with writing(path):
        if loses_its_name:
            folder, name = os.path.split(os.path.abspath(path))
            descriptor, made = tempfile.mkstemp(prefix=f"{name}.", dir=folder)
            # The open file has no name any more; it is removed when it is closed.
            os.unlink(made)
        else:
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT, 0o600)
    with open(descriptor, "r+b", buffering=0) as file:
        yield file


@dataclass(frozen=True)
class CopyTask(SampleBlocks):
    """Copy blocks of samples; the accumulator is the file."""

    copy: ScratchCopy
    block_rows: int

    def start(self) -> ScratchCopy:
        """Return the copy, to be written from the beginning."""
        return self.copy

    def restore(self, state: dict[str, Array]) -> ScratchCopy:
        """Return the copy, which holds what was written."""
        return self.copy

    @property
    def collection(self) -> Collection:
        """Samples to copy."""
        return self.copy.copied

    def feed(self, accumulator: ScratchCopy, block: Span, fetched: Array) -> None:
        """Write a block."""
        accumulator.write(block.start, fetched)


def _write(copy: ScratchCopy, path: str, job: Job, checkpoint: StageCheckpoint | None) -> None:
    plan, collection = job.plan, job.collection
    # Copy, Gram matrix and components; one less if all features fit in one range; unknown for a solver.
    passes = None if plan.width else 2 if plan.block_features >= collection.n_features else 3
    spans = (Span(0, collection.n_samples),)
    started = PassStarted("scratch copy", 1, passes, collection.n_samples, collection.nbytes)
    with job.reporting_pass(started), writing(path):
        task = CopyTask(copy, plan.block_rows)
        LocalExecutor().fold(task, spans, one_span, listener=job.listener, checkpoint=checkpoint)
