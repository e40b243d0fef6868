"""How a model is applied to a collection: in which blocks, and with how much memory."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BudgetError
from ..units import MIB, budget_size, format_bytes
from .budget import MOST_BLOCK
from .memory import RUNTIME_BYTES, Phase
from .request import Problem

LEAST_CHUNK = 4 * MIB  # of an output


@dataclass(frozen=True)
class Application:
    """How a model is applied to a collection block by block.

    Attributes
    ----------
    block_rows : int
        Samples in memory at once, a whole multiple of `chunk_rows`.
    chunk_rows : int
        Rows to a chunk of the output.
    memory_estimate : Phase
        Memory.
    """

    block_rows: int
    chunk_rows: int
    memory_estimate: Phase


def plan_application(
    *,
    problem: Problem,
    n_features: int,
    n_components: int,
    component_itemsize: int,
    out_bytes: int,
    memory: int | None,
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

    Raises
    ------
    BudgetError
        If not even single samples fit.
    """
    budget, source = problem.machine.budget(memory)
    p = n_features
    model = 3 * p * n_components * component_itemsize + 4 * 8 * p  # as loaded, as rows, and turned for the product
    row = 2 * (problem.row_bytes + problem.prepared_bytes) + 2 * p * max(4, component_itemsize) + 2 * out_bytes
    beside = problem.decode_bytes + problem.scratch_bytes
    left = budget - model - RUNTIME_BYTES - beside
    rows = min(left // row, MOST_BLOCK // row, problem.n_samples)
    if rows < 1:
        least = budget - left + row
        raise BudgetError(
            f"applying {n_components} components of {p} features needs {format_bytes(least)} and memory "
            f"allows {format_bytes(budget)} ({source}). Set memory to at least {budget_size(least)}."
        )
    chunk_rows = max(1, min(rows, LEAST_CHUNK // max(1, out_bytes)))
    rows = rows // chunk_rows * chunk_rows
    items = (("components and mean", model), (f"block of {rows} samples, stored to result", rows * row))
    rest = (("storage being decoded", beside), ("BLAS and Python", RUNTIME_BYTES))
    return Application(rows, chunk_rows, Phase("apply", items + rest))
