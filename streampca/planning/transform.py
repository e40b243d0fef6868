"""Plans of applying a model to a collection, block by block: `plan_application` chooses blocks that fit the budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from ..units import MIB
from .blocks import MOST_BLOCK, SPANS_A_WORKER, Span, spans_of
from .candidate_sizes import SizesByBudget, search_or_refuse
from .device import TILE_BYTES, applied_phase
from .memory import Phase, runtime
from .request import Problem

LEAST_CHUNK = 4 * MIB  # of an output


@dataclass(frozen=True)
class Application:
    """Blocks in which a model is applied to a collection.

    Attributes
    ----------
    block_rows : int
        Samples in memory at once, a whole multiple of `chunk_rows`.
    chunk_rows : int
        Rows to a chunk of the output.
    memory_estimate : Phase
        Memory.
    threads, ahead, pieces : int
        Blocks worked on at a time, blocks of each thread read ahead, and runs of samples that the work is cut into.
    """

    block_rows: int
    chunk_rows: int
    memory_estimate: Phase
    threads: int = 1
    ahead: int = 0
    pieces: int = 1

    def spans(self, n_samples: int) -> tuple[Span, ...]:
        """Cut the samples into runs of whole blocks, so that no two write the same chunk."""
        return spans_of(n_samples, self.pieces, self.block_rows)


def plan_application(
    *,
    problem: Problem,
    components_shape: tuple[int, int],
    component_itemsize: int,
    out_bytes: int,
    memory: int | None,
    threads: int = 1,
    ahead: int = 0,
    workers: int = 1,
) -> Application:
    """Choose the blocks in which a model is applied.

    Parameters
    ----------
    problem : Problem
        The collection, of images or of scores.
    components_shape, component_itemsize : (int, int), int
        k and p of the model, and bytes of one value of a component.
    out_bytes : int
        Bytes of one sample's result.
    memory : int or None
        Budget in bytes; the default as for `Request`.
    threads, ahead : int
        Most blocks to work on at a time, and to read ahead, where the largest blocks still fit.
    workers : int
        Processes that share the work.

    Raises
    ------
    BudgetError
        If not even single samples fit.
    """
    k, p = components_shape
    sizes = ApplicationSizes(
        problem=problem, components_shape=components_shape, component_itemsize=component_itemsize,
        out_bytes=out_bytes, workers=workers,
    )  # fmt: skip
    # Landmarks that are not in memory are read for every block, which is as large as there is memory for, and alone.
    counts = ((1, 0),) if sizes.streams else ((threads, ahead), (1, ahead), (1, 0))
    candidates = [[replace(sizes, threads=count, ahead=blocks)] for count, blocks in counts]
    doing = f"applying {k} components of {p} features"
    return search_or_refuse(doing, candidates, problem.machine.budget(memory)).plan()


@dataclass(frozen=True, kw_only=True)
class ApplicationSizes(SizesByBudget):
    """Sizes with which a model could be applied; fields as in `Application` and `plan_application`."""

    components_shape: tuple[int, int]
    component_itemsize: int
    out_bytes: int
    workers: int
    threads: int = 1
    ahead: int = 0
    block_rows: int = 1
    chunk_rows: int = 1

    @property
    def streams(self) -> bool:
        """True where landmarks are read for every block."""
        return self.problem.landmark_bytes > 0

    @property
    def _row_bytes(self) -> int:
        """Bytes of a sample of a block, from reading it to having stored its result."""
        copies, p = 1 if self.streams else 2, self.components_shape[1]
        return copies * self.problem.sample_bytes + 2 * p * max(4, self.component_itemsize) + 2 * self.out_bytes

    def cut(self, memory: int) -> Self:
        """Return the sizes with the largest blocks that so many bytes hold, one at a time."""
        n, row = self.problem.n_samples, self._row_bytes
        most = n if self.streams else min(max(1, MOST_BLOCK // row), n)
        fixed = replace(self, threads=1, ahead=0, block_rows=0).memory_estimate.total
        rows = max(1, min((memory - fixed) // row, most))
        chunk_rows = max(1, min(rows, LEAST_CHUNK // max(1, self.out_bytes)))
        rows = rows // chunk_rows * chunk_rows
        return replace(self, block_rows=rows, chunk_rows=chunk_rows, threads=min(self.threads, -(-n // rows)))

    def plan(self) -> Application:
        """Return the plan with these sizes."""
        tasks, problem = self.workers * self.threads, self.problem
        pieces = SPANS_A_WORKER * tasks if tasks > 1 else 1
        if problem.keeps:  # a chunk is kept for a piece: many pieces of one would each decode it
            pieces = min(pieces, max(tasks, -(-problem.n_samples // problem.chunk_samples)))
        (phase,) = self.phases()
        return Application(self.block_rows, self.chunk_rows, phase, self.threads, self.ahead, pieces)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of the only phase."""
        problem, (k, p), threads, ahead = self.problem, self.components_shape, self.threads, self.ahead
        model = 3 * p * k * self.component_itemsize + 4 * 8 * p  # as loaded, as rows, and turned for the product
        rows = self.block_rows
        items = {
            "components and mean": model + problem.held_bytes,
            f"{threads} blocks of {rows} samples, stored to result": threads * rows * self._row_bytes,
            f"{threads * ahead} blocks read ahead": threads * ahead * rows * problem.sample_bytes,
            "storage being decoded": threads * (problem.decode_bytes + problem.scratch_bytes),
        }
        if problem.machine.device:
            items["results of a tile, from the device"] = TILE_BYTES
        yield Phase.of("apply", items, runtime(threads))

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device that multiplies."""
        # As models do: float32 only where samples and components both have no more digits.
        narrow = self.problem.itemsize <= (4 if self.problem.kind == "f" else 2) and self.component_itemsize <= 4
        yield applied_phase(self.problem.itemsize, *self.components_shape, 4 if narrow else 8)
