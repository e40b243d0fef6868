"""Plans of method 'symmetric': eigenpairs of a centred n x n matrix of distances or of a kernel, read by rows.

Where the matrix fits, it is held and solved as a whole: all eigenvalues are then known, the negative ones too. Where it
does not, or few dimensions are wanted and that is much faster, it is read pass after pass and multiplied with a block
of vectors, which extend a basis (see `randomized.bases`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from ..errors import RequestError
from ..units import MIB, counted_passes, format_shape
from .blocks import MOST_BLOCK, block_rows, concurrencies
from .candidate_sizes import Cost, MethodSizes, Schedule, search
from .decoding import Reading, read_boxes
from .device import vectors_phase
from .lanczos_basis import Basis, bases, counted_on
from .memory import (
    COMPONENT_COPIES,
    PROBES_OF_PASS,
    THREAD_BYTES,
    Phase,
    block_items,
    in_threads,
    runtime,
    solve_memory,
    thread_count,
)
from .plan import Plan
from .randomized import MOST_AGAIN, RANDOM_START_PASSES
from .rates import Work, products, solve_work
from .request import Problem, Request

WORTH_ITERATING = 20  # times longer that a dense solve may take than products with a block of vectors
PRODUCT_ROWS = 64  # rows that are float64 at a time
BLOCKS = (8 * MIB, 2 * MIB, 0)  # bytes of a block of rows; 0 is one row
MEASURES = 2 * PROBES_OF_PASS + 6  # numbers a row: random directions, products with them, means, asymmetry
MEASURED_COPIES = 4  # copies of products with random directions, while bounds are made of them

APPROXIMATE = False
KINDS = ("classical-mds",)


def check_matrix(problem: Problem, request: Request) -> None:
    """Refuse a matrix that is not square, and options that need samples of features.

    Raises
    ------
    RequestError
        Naming what does not go together.
    """
    n, p, given = problem.n_samples, problem.n_features, request.input_option
    if problem.is_prepared:
        raise RequestError(
            f"a matrix of pairs of samples is analysed as it is; leave preparation and landmarks out with {given}."
        )
    if n != p:
        raise RequestError(
            f"{given} takes a square matrix, and this one has {n} rows of {p} columns; give all pairs of samples, or "
            "leave the option out for samples of features."
        )
    if problem.weighted:
        raise RequestError(
            f"samples of a matrix of pairs count alike; leave sample_weight and half_life out with {given}."
        )


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield the schedule that holds the matrix, and the one that reads it again and again.

    Raises
    ------
    RequestError
        If the matrix is not square, or options are of samples of features.
    """
    check_matrix(problem, request)
    memory, _ = problem.machine.budget(request.memory)
    held, streamed, reason = [_held_sizes(problem, request)], [], ""
    if isinstance(request.n_components, int):
        streamed = [_streamed_sizes(problem, request)]
    else:
        reason = f"finds the leading eigenvalues only, and n_components={request.n_components!r} needs all"
    if (dense := search(held, memory)) and (products := search(streamed, memory)):
        if dense.seconds <= WORTH_ITERATING * products.seconds:
            reason = "finds the leading eigenvalues only; dense finds all"
        held, streamed = [[dense]], [[products]]
    yield Schedule("symmetric (dense)", held)
    yield Schedule("symmetric (products)", streamed, reason)


def _cuts(problem: Problem, threads: int) -> Iterator[tuple[int, int, int]]:
    """Yield rows to a block, threads, and blocks that each thread reads ahead."""
    row, chunk, n = problem.sample_bytes, problem.chunk_samples, problem.n_samples
    lengths = {block_rows(row, chunk, max(limit, row)) for limit in BLOCKS}
    if chunk * row <= MOST_BLOCK:
        lengths.add(chunk)
    lengths = {min(n, length) for length in lengths}
    most = MOST_AGAIN * n * problem.row_bytes
    kept = {rows for rows in lengths if read_boxes(problem, rows, problem.n_features).bytes <= most}
    for rows in sorted(kept or {max(lengths)}, reverse=True):
        yield from ((rows, *counts) for counts in concurrencies(problem, rows, threads))


def _held_sizes(problem: Problem, request: Request) -> list[HeldSizes]:
    """Return sizes for any cut of the rows, with room for the dimensions asked for, or for all there can be."""
    count, most = request.counted_on(problem.most_components), problem.most_components
    k = 1 if isinstance(count, float) else min(count or most, most)
    return [
        HeldSizes(problem=problem, request=request, k=k, block_rows=rows, ahead=ahead)
        for rows, _, ahead in _cuts(problem, 1)
    ]


def _streamed_sizes(problem: Problem, request: Request) -> list[StreamedSizes]:
    """Return sizes for any basis and cut of the rows, for a number of dimensions."""
    threads = thread_count(problem.machine.cores) if request.workers == 1 else 1
    k, cuts = counted_on(problem, request), list(_cuts(problem, threads))
    return [
        StreamedSizes(
            problem=problem, request=request, k=k, basis=basis, schedule="products", block_rows=rows,
            product_rows=min(PRODUCT_ROWS, rows), threads=count, ahead=ahead,
        )
        for basis in bases(problem, request, problem.n_samples, later=RANDOM_START_PASSES)
        for rows, count, ahead in cuts
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RowSizes(MethodSizes):
    """Sizes with which rows of the matrix could be read; fields as in `Plan`."""

    @property
    def read(self) -> Reading:
        """Reading of one pass."""
        return read_boxes(self.problem, self.block_rows, self.problem.n_features)

    @property
    def rank(self) -> tuple[float, ...]:
        """Predicted time; among equals more threads, then reading ahead."""
        return self.seconds, -self.threads, -self.ahead


@dataclass(frozen=True, kw_only=True)
class HeldSizes(RowSizes):
    """Sizes with which the matrix could be held in memory and solved as a whole."""

    def grown(self, memory: int) -> Self:
        """Return the sizes with room for all dimensions that there is memory for, where their number is open."""
        return self.with_room(memory)

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        why = f"the {self._shape} matrix fits the budget; exact, in one pass"
        plan = self.planned("symmetric", why, precision="double", solver="dense")
        return replace(plan, dense_room=plan.room)

    @property
    def _shape(self) -> str:
        return format_shape((self.problem.n_samples,) * 2)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        n = self.problem.n_samples
        items = {f"matrix, {self._shape} float64": 8 * n * n}
        if self.request.workers > 1:
            items["matrix of another worker, as sent and merged"] = 2 * 8 * n * n
        yield Phase.of(
            "pass", items, block_items(self.problem, self.block_rows, 1, self.ahead), runtime(more=THREAD_BYTES)
        )
        solve = solve_memory("matrix", n, None, "dense", self.k)
        measured = {"products with random directions": MEASURED_COPIES * 8 * PROBES_OF_PASS * n}
        yield Phase.of(solve.name, dict(solve.items), measured)

    @property
    def sent(self) -> tuple[int, int]:
        """No vectors; the matrix."""
        return 0, 8 * self.problem.n_samples**2

    @cached_property
    def cost(self) -> Cost:
        """Cost of one pass and a dense solve."""
        read, n = self.read, self.problem.n_samples
        work = read.work(self.problem) + Work(centring=4.0 * n * n) + solve_work(n, "dense")
        return Cost(1, read.bytes, work)


@dataclass(frozen=True, kw_only=True)
class StreamedSizes(RowSizes):
    """Sizes with which rows could be multiplied with a block of vectors, pass after pass."""

    basis: Basis

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        problem, cost, basis = self.problem, self.cost, self.basis
        passes, matrix = counted_passes(cost.passes), format_shape((problem.n_samples,) * 2)
        why = f"{passes} with {basis.width} vectors; the {matrix} matrix does not fit the budget, or takes far longer"
        if basis.restarting:
            why += f"; {basis.restarting} fewer would do with a larger basis, which does not fit the budget"
        plan = self.planned("symmetric", why, precision="double", solver="lanczos")
        return replace(plan, width=basis.width, columns=basis.columns)

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device in a pass."""
        yield vectors_phase(self.problem, self.problem.n_samples, self.product_rows, self.basis.width)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        problem, n, basis, threads = self.problem, self.problem.n_samples, self.basis, self.threads
        width = basis.width
        products_of_task = {
            f"vectors, and the product with them, {format_shape((n, width))} float64": 2 * 8 * n * width,
            "random directions, products with them, and means": MEASURES * 8 * n,
            f"{self.product_rows} rows in float64": 8 * n * self.product_rows,
        }
        shared = {"the vectors, as handed to a task, and the product so far": (2 * width + MEASURES) * 8 * n}
        if self.request.workers > 1:
            shared["product of another worker, as sent and merged"] = 2 * 8 * n * (width + MEASURES)
        blocks = block_items(problem, self.block_rows, threads, self.ahead)
        yield Phase.of("pass", basis.items(n), in_threads(products_of_task, threads), shared, blocks, runtime(threads))
        kept = {"means and products with random directions": MEASURED_COPIES * 8 * PROBES_OF_PASS * n}
        yield Phase.of("step", basis.items(n), basis.step_items(n), kept, runtime())
        components = {f"{self.k} components": COMPONENT_COPIES * 8 * n * self.k}
        yield Phase.of("components", basis.items(n), components, kept, runtime())

    @property
    def sent(self) -> tuple[int, int]:
        """The vectors; the product with them, and what is measured of each row."""
        n, width = self.problem.n_samples, self.basis.width
        return 8 * n * width, 8 * n * (width + MEASURES)

    @property
    def alone(self) -> Work:
        """Steps between the passes."""
        basis, passes, n = self.basis, self.cost.passes, float(self.problem.n_samples)
        held = float(min(passes * basis.width, basis.columns))
        return products((4 * n * held * basis.width + 8 * n * basis.width**2) * passes, "double")

    @cached_property
    def cost(self) -> Cost:
        """Cost of the passes' products, and of the steps between them."""
        basis, n = self.basis, float(self.problem.n_samples)
        passes = min(basis.passes, self.request.max_passes or basis.passes)
        read, width = self.read.times(passes), basis.width
        held = float(min(passes * width, basis.columns))
        work = read.work(self.problem) + Work(centring=passes * n * n)
        work += products(2 * n * n * (width * passes + PROBES_OF_PASS), "double")
        work += products((4 * n * held * width + 8 * n * width**2) * passes, "double")
        return Cost(passes, read.bytes, work, basis.passes - passes)
