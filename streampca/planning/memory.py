"""Memory estimates of a run, item by item.

`sizes` gives what single arrays take; here they are put together. `tests/test_memory.py` holds them against the
peaks of fresh processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..units import MIB, format_bytes, format_shape
from .request import Problem, Request
from .sizes import dense_bytes, lanczos_bytes, scatter_bytes

COMPONENT_COPIES = 3  # the solver's vectors, the components as stored, and the model's as float64 for its certificate
RUNTIME_BYTES = 9 * MIB  # BLAS packing buffers of two threads, thread stacks and pools, small things of Python
THREAD_BYTES = 4 * MIB  # of each thread: packing buffers of numpy's BLAS, stack and pool; 3.5 measured
DECODE_LEAST = 4 * MIB  # memory pools of decoding threads that have seen small pieces only


@dataclass(frozen=True)
class Phase:
    """One part of a run, with the items that are in memory at the same time as (name, bytes)."""

    name: str
    items: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Bytes of all items."""
        return sum(count for _, count in self.items)

    @property
    def largest_share(self) -> str:
        """The largest item in words."""
        name, count = max(self.items, key=lambda item: item[1])
        return f"{name} ({format_bytes(count)})"


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory computed beforehand, phase by phase; the largest phase is what is needed."""

    phases: tuple[Phase, ...]

    @property
    def largest(self) -> Phase:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def total(self) -> int:
        """Bytes of the largest phase."""
        return self.largest.total

    def __str__(self) -> str:
        name, count = max(self.largest.items, key=lambda item: item[1])
        return f"needs {format_bytes(self.total)}, of which the {name} {format_bytes(count)}"


def smallest_of(estimates: Iterable[MemoryEstimate]) -> tuple[int, MemoryEstimate]:
    """Return the smallest estimate, and before it the budget in whole MiB that it takes."""
    estimate = min(estimates, key=lambda estimate: estimate.total)
    return -(-estimate.total // MIB) * MIB, estimate


def pass_memory(
    problem: Problem,
    precision: str,
    rows: int,
    product_rows: int,
    *,
    threads: int = 1,
    ahead: int = 0,
    workers: int = 1,
) -> Phase:
    """Memory while samples are absorbed in blocks of `rows`, in so many threads, so many blocks of each read ahead."""
    items = scatter_bytes(problem.n_features, precision, product_rows)
    if threads > 1:
        items = {f"{name}, {threads} times": threads * count for name, count in items.items()}
    if workers > 1:
        items["scatter matrix of another worker, merged"] = 8 * problem.n_features**2
    blocks = threads * (1 + ahead)
    name = f"block of {rows} samples as read" if blocks == 1 else f"{blocks} blocks of {rows} samples as read"
    items[name] = blocks * rows * (problem.row_bytes + problem.prepared_bytes)
    if problem.weighted:
        beside = threads * rows * problem.row_bytes
        items["sample weights, and rows of a block that have any"] = 8 * problem.n_samples + beside
    if problem.decode_bytes or problem.scratch_bytes:
        items["storage being decoded"] = threads * decoding_bytes(problem, rows)
    items["BLAS and Python"] = RUNTIME_BYTES + (THREAD_BYTES * threads if threads > 1 else 0)
    return Phase("pass", tuple(items.items()))


def decoding_bytes(problem: Problem, rows: int) -> int:
    """Bytes held while a block is read: what the reader says, or less where a block is small, and in preparing it."""
    decoding = min(problem.decode_bytes, DECODE_LEAST + 3 * max(rows, problem.chunk_samples) * problem.row_bytes)
    return decoding + problem.scratch_bytes


def component_room(problem: Problem, request: Request, solver: str, memory: int) -> int:
    """Most components there is memory for: all that were asked for, or for a fraction what the budget leaves."""
    most = problem.most_components
    wanted = request.counted_on(most)
    if not isinstance(wanted, float):
        return wanted or most
    left = memory - scatter_solve_memory(problem, request, solver, 0).total
    return max(1, min(most, left // (COMPONENT_COPIES * 8 * problem.n_features)))


def scatter_solve_memory(problem: Problem, request: Request, solver: str, room: int) -> Phase:
    """Memory while the p x p problem is solved; for a fraction of the variance, up to a quarter of p components."""
    p, wanted = problem.n_features, request.counted_on(problem.most_components)
    return solve_memory("scatter matrix", p, wanted, solver, min(room, p // 4) if isinstance(wanted, float) else room)


def solve_memory(name: str, size: int, wanted: int | float | None, solver: str, k: int) -> Phase:
    """Memory while k leading eigenvectors of a matrix of order `size` are found, beside the matrix itself."""
    items = {f"{name}, {format_shape((size, size))} float64": 8 * size * size}
    if solver == "dense":
        items["LAPACK eigensolver"] = dense_bytes(size, k)
    else:
        items["Lanczos basis and blocks"] = lanczos_bytes(size, wanted)
    items[f"{k} components" if name == "scatter matrix" else f"{k} eigenvectors"] = (
        (COMPONENT_COPIES - 1) * 8 * size * k
    )
    items["BLAS and Python"] = RUNTIME_BYTES
    return Phase(f"{solver} solve", tuple(items.items()))
