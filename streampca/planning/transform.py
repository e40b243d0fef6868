"""Plans of applying a model to a collection, block by block: `plan_application` chooses blocks that fit the budget."""

from __future__ import annotations

from dataclasses import dataclass

from ..units import MIB
from .blocks import Span, spans_of
from .budget import MOST_BLOCK, SPANS_A_WORKER, too_small
from .memory import RUNTIME_BYTES, Phase, runtime
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
    n_features: int,
    n_components: int,
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
    n_features, n_components, component_itemsize : int
        p and k of the model, and bytes of one value of a component.
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
    budget, source = problem.machine.budget(memory)
    p = n_features
    model = 3 * p * n_components * component_itemsize + 4 * 8 * p  # as loaded, as rows, and turned for the product
    model += problem.held_bytes
    # Landmarks that are not in memory are read for every block, which is as large as there is memory for, and alone.
    streams = problem.landmark_bytes > 0
    row = (1 if streams else 2) * problem.sample_bytes + 2 * p * max(4, component_itemsize) + 2 * out_bytes
    beside = problem.decode_bytes + problem.scratch_bytes
    left = budget - model - RUNTIME_BYTES - beside
    most = problem.n_samples if streams else min(max(1, MOST_BLOCK // row), problem.n_samples)
    rows = min(left // row, most)
    if rows < 1:
        least = budget - left + row
        raise too_small(f"applying {n_components} components of {p} features", least, (budget, source))
    chunk_rows = max(1, min(rows, LEAST_CHUNK // max(1, out_bytes)))
    rows = rows // chunk_rows * chunk_rows
    blocks = -(-problem.n_samples // rows)

    def phase(threads: int, ahead: int) -> Phase:
        items = {
            "components and mean": model,
            f"{threads} blocks of {rows} samples, stored to result": threads * rows * row,
            f"{threads * ahead} blocks read ahead": threads * ahead * rows * problem.sample_bytes,
            "storage being decoded": threads * beside,
        }
        return Phase.of("apply", items, runtime(threads))

    ways = ((1, 0),) if streams else ((min(threads, blocks), ahead), (1, ahead), (1, 0))
    threads, ahead = next(way for way in ways if way == (1, 0) or phase(*way).total <= budget)
    pieces = SPANS_A_WORKER * workers * threads if workers * threads > 1 else 1
    if problem.keeps:  # a chunk is kept for a piece: many pieces of one would each decode it
        pieces = min(pieces, max(workers * threads, -(-problem.n_samples // problem.chunk_samples)))
    return Application(rows, chunk_rows, phase(threads, ahead), threads, ahead, pieces)
