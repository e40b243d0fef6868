"""Memory estimates of a run, item by item.

`sizes` gives what single arrays take; here they are put together. `tests/test_memory.py` holds them against the
peaks of fresh processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..units import MIB, format_bytes, format_shape
from .request import Problem
from .sizes import dense_bytes, lanczos_bytes

HELD = "means, trends and deviations of features, or landmarks"
COMPONENT_COPIES = 3  # the solver's vectors, the components as stored, and the model's as float64 for its certificate
RUNTIME_BYTES = 9 * MIB  # BLAS packing buffers of two threads, thread stacks and pools, small things of Python
THREAD_BYTES = 4 * MIB  # of each thread: packing buffers of numpy's BLAS, stack and pool; 3.5 measured
DECODE_LEAST = 4 * MIB  # memory pools of decoding threads that have seen small pieces only


@dataclass(frozen=True)
class Phase:
    """One part of a run, with the items that are in memory at the same time as (name, bytes)."""

    name: str
    items: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, name: str, *parts: Mapping[str, int]) -> Phase:
        """Make a phase of the items of several mappings."""
        items: dict[str, int] = {}
        for part in parts:
            items.update(part)
        return cls(name, tuple(items.items()))

    def plus_item(self, name: str, count: int) -> Phase:
        """Return the phase with one more item, if that takes any bytes."""
        return Phase(self.name, (*self.items, (name, count))) if count else self

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

    def plus_preparation(self, problem: Problem) -> MemoryEstimate:
        """Return the estimate with what a preparation has learned in every phase, and with the pass that learns it."""
        if not (problem.held_bytes or problem.learning_bytes or problem.bytes_after):
            return self
        phases = [phase.plus_item(HELD, problem.held_bytes) for phase in self.phases]
        if problem.learning_bytes:
            phases.append(Phase("pass before the fit", (("blocks, and what is made of them", problem.learning_bytes),)))
        reading = next((phase for phase in phases if phase.name == "pass"), phases[0])
        if problem.following_bytes:
            name = "rows of the kernel matrix, and what they are multiplied with"
            phases.append(Phase("residuals", reading.plus_item(name, problem.following_bytes).items))
        if problem.measuring_bytes:
            name = "pieces of samples prepared with more digits"
            reading = next((phase for phase in phases if phase.name == "components"), reading)
            phases.append(Phase("rounding of the preparation", reading.plus_item(name, problem.measuring_bytes).items))
        return MemoryEstimate(tuple(phases))

    @property
    def largest(self) -> Phase:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def total(self) -> int:
        """Bytes of the largest phase."""
        return max(phase.total for phase in self.phases)

    @property
    def largest_share(self) -> str:
        """The largest item of that phase in words."""
        return self.largest.largest_share

    def __str__(self) -> str:
        return f"needs {format_bytes(self.total)}; the largest share is the {self.largest_share}"


def runtime(threads: int = 1, more: int = 0) -> dict[str, int]:
    """Bytes that BLAS and Python hold in so many threads, and some more."""
    return {"BLAS and Python": RUNTIME_BYTES + more + (THREAD_BYTES * threads if threads > 1 else 0)}


def in_threads(items: Mapping[str, int], threads: int) -> dict[str, int]:
    """Return what each of so many threads holds, for all of them."""
    return dict(items) if threads == 1 else {f"{name}, {threads} times": threads * size for name, size in items.items()}


def block_items(problem: Problem, rows: int, threads: int, ahead: int) -> dict[str, int]:
    """Bytes by name of blocks of samples, in so many threads, so many of each read ahead, and of what decodes them."""
    blocks = threads * (1 + ahead)
    name = f"block of {rows} samples as read" if blocks == 1 else f"{blocks} blocks of {rows} samples as read"
    items = {name: blocks * rows * problem.sample_bytes}
    if problem.weighted:
        beside = threads * rows * problem.row_bytes
        items["sample weights, and rows of a block that have any"] = 8 * problem.n_samples + beside
    return items | decoding_items(problem, rows, threads)


def decoding_items(problem: Problem, rows: int, threads: int = 1) -> dict[str, int]:
    """Bytes by name that are held while blocks are read, a block in each of so many threads."""
    size = threads * decoding_bytes(problem, rows)
    return {"storage being decoded": size} if size else {}


def decoding_bytes(problem: Problem, rows: int) -> int:
    """Bytes held while a block is read: what the reader says, or less where a block is small, and in preparing it."""
    decoding = min(problem.decode_bytes, DECODE_LEAST + 3 * max(rows, problem.chunk_samples) * problem.row_bytes)
    return decoding + problem.scratch_bytes


def solve_memory(name: str, size: int, count: int | float | None, solver: str, k: int) -> Phase:
    """Memory while k leading eigenvectors of a matrix of order `size` are found, beside the matrix itself."""
    items = {f"{name}, {format_shape((size, size))} float64": 8 * size * size}
    if solver == "dense":
        items["LAPACK eigensolver"] = dense_bytes(size, k)
    else:
        items["Lanczos basis and blocks"] = lanczos_bytes(size, count)
    vectors = f"{k} components" if name == "scatter matrix" else f"{k} eigenvectors"
    items[vectors] = (COMPONENT_COPIES - 1) * 8 * size * k
    return Phase.of(f"{solver} solve", items, runtime())
