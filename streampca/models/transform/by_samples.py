"""`BySamples`: application of a model to blocks of whole samples, with all its components in memory."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from ...arrays import Array
from ...execution.task import SampleBlocks
from ...planning.blocks import Span
from ...readers import Collection
from ...readers.windows import Mosaic
from ...storage.writers import Writer
from .finite import OfNumbered, applied
from .lazy import reading
from .patches import write_lines
from .projection import Projection
from .row_maps import images_of, reconstructions_of, scores_of

SHARED = ("totals", "size")  # entries that every state of `Written` has


class Written:
    """Accumulator of a fold that writes rows to an output.

    Parameters
    ----------
    writer : Writer
        Writer of the rows.
    totals : ndarray of shape (2,), optional
        Number of samples written, and sum of the squared errors of images.
    arrays : mapping of str to ndarray, optional
        Other state that a task keeps from one block to the next.
    """

    def __init__(self, writer: Writer, totals: Array | None = None, arrays: dict[str, Array] | None = None) -> None:
        self.writer, self.arrays = writer, {} if arrays is None else arrays
        self.mosaic: Mosaic | None = None
        self.totals = np.zeros(2) if totals is None else np.array(totals)

    def absorb(self, other: Written) -> None:
        """Add the totals of another run of samples."""
        self.totals += other.totals

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Flush the rows to disk, and return the totals, the `size` of the output's file and the other arrays."""
        return {"totals": self.totals.copy(), "size": np.array(self.writer.sync()), **self.arrays}

    @classmethod
    def from_state(cls, writer: Writer, state: dict[str, Array]) -> Self:
        """Undo `state`."""
        return cls(writer, state["totals"], {name: array for name, array in state.items() if name not in SHARED})


@dataclass(frozen=True, kw_only=True)
class BySamples(SampleBlocks):
    """Fold blocks of samples into an output; see `streampca.execution.Task`.

    Attributes
    ----------
    work : Projection
        Scores or images to compute.
    writer : Writer
        Writer of the rows.
    block_rows : int
        Samples in memory at once.
    """

    work: Projection
    writer: Writer
    block_rows: int

    def start(self) -> Written:
        """Return an empty sum."""
        return self.restore({"totals": np.zeros(2)})

    def restore(self, state: dict[str, Array]) -> Written:
        """Return the sum of this state."""
        _ = self._held  # compute it here: later several threads would do so at the same time
        written = Written.from_state(self.writer, state)
        if self.work.windows is not None:
            written.mosaic = Mosaic(self.work.windows, written.arrays or None)
            written.arrays = written.mosaic.state()
        return written

    @property
    def collection(self) -> Collection:
        """Samples to read."""
        return self.work.collection

    def fetch(self, block: Span) -> Any:
        """Read a block, as sparse rows where their scores are products with few values."""
        takes_sparse = self.work.subspace.takes_sparse and not self.work.makes_images
        read, _ = reading(self.collection, takes_sparse=takes_sparse)
        return read(slice(*block))

    def feed(self, accumulator: Written, block: Span, fetched: Array) -> None:
        """Compute the scores or images of a block and write them; raises as `applied`."""
        work, errors = self._held, [0.0]
        function: Any = scores_of(work.subspace, whiten=work.whiten)
        if work.from_scores:
            function = OfNumbered(partial(images_of, work.subspace, whiten=work.whiten), work.frame)
        elif work.makes_images:
            row_map = partial(reconstructions_of, work.subspace, residual=work.residual, errors=errors)
            function = OfNumbered(row_map, work.frame)
        rule: Any = {"missing": work.subspace.missing, "fills_in": work.subspace.fills_in and not work.from_scores}
        result = applied(function, fetched, work.collection.named, block.start, **rule)
        if accumulator.mosaic is None or work.windows is None:
            self.writer.write(block.start, result)
        else:
            several = work.collection.n_samples > work.windows.per_image
            write_lines(self.writer, accumulator.mosaic.add(block.start, result), work.windows, several=several)
        accumulator.totals += block.size, sum(errors)

    @cached_property
    def _held(self) -> Projection:
        """The projection with its components in memory, read once in each process."""
        return replace(self.work, subspace=self.work.subspace.held())

    def __getstate__(self) -> dict[str, Any]:  # without `_held`: workers read components from disk
        return {field.name: getattr(self, field.name) for field in fields(self)}
