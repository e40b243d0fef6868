"""Plans of method 'symmetric': eigenpairs of a centred n x n matrix of distances or of a kernel, read by rows.

Where the matrix fits, it is held and solved as a whole: all eigenvalues are then known, the negative ones too. Where it
does not, or few dimensions are wanted and that is much faster, it is read pass after pass and multiplied with a block
of vectors, which extend a basis (see `randomized.bases`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from ..errors import RequestError
from ..units import MIB, counted_passes, format_shape
from .blocks import block_rows
from .budget import MOST_BLOCK, most_that_fits
from .by_samples import SizesBySamples, concurrencies
from .decoding import Reading, read_boxes
from .memory import (
    COMPONENT_COPIES,
    THREAD_BYTES,
    MemoryEstimate,
    Phase,
    block_items,
    in_threads,
    runtime,
    smallest_of,
    solve_memory,
)
from .plan import Candidate, Cost, Plan, Sizes
from .randomized import LATER, MOST_AGAIN, Basis, bases
from .rates import Work, products, solve_work
from .request import Problem, Request
from .sizes import PROBES_OF_PASS, thread_count

WORTH_ITERATING = 20  # times longer that a dense solve may take than products with a block of vectors
PRODUCT_ROWS = 64  # rows that are float64 at a time
BLOCKS = (8 * MIB, 2 * MIB, 0)  # bytes of a block of rows; 0 is one row
MEASURES = 2 * PROBES_OF_PASS + 6  # numbers a row: random directions, products with them, means, asymmetry
MEASURED_COPIES = 4  # copies of products with random directions, while bounds are made of them

APPROXIMATE = False
KINDS = ("classical-mds",)

R = TypeVar("R", bound="_Rows")


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out; it is taken for matrices of pairs of samples, and only there."""
    return ""


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


def candidates(problem: Problem, request: Request) -> Iterator[Candidate]:
    """Yield the plan that holds the matrix, and the fastest that reads it again and again."""
    check_matrix(problem, request)
    memory, _ = problem.machine.budget(request.memory)
    held = _fastest(sizes for sizes in _held(problem, request) if sizes.fits(memory))
    streamed = _fastest(sizes for sizes in _streamed(problem, request) if sizes.fits(memory))
    slow = held is not None and streamed is not None and held.seconds > WORTH_ITERATING * streamed.seconds
    if held is not None and not slow:
        yield Candidate("symmetric (dense)", held.plan(memory))
        if streamed is not None:
            yield Candidate("symmetric (products)", None, "finds the leading eigenvalues only; dense finds all")
        return
    if streamed is not None:
        yield Candidate("symmetric (products)", streamed.plan())
    elif request.is_open or request.n_components is None:
        asked = f"finds the leading eigenvalues only, and n_components={request.n_components!r} needs all"
        yield Candidate("symmetric (products)", None, asked)
    if held is not None:
        yield Candidate("symmetric (dense)", held.plan(memory))
    else:
        needed = smallest_of(sizes.memory_estimate for sizes in _held(problem, request))[1]
        yield Candidate("symmetric (dense)", None, str(needed))


def least(problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
    """Return the smallest budget that would do, and its memory estimate."""
    check_matrix(problem, request)
    every: Iterator[Sizes] = iter([*_held(problem, request), *_streamed(problem, request)])
    return smallest_of(sizes.memory_estimate for sizes in every)


def _fastest(found: Iterable[R]) -> R | None:
    """Return the fastest sizes; among equals those with more threads, then those that read ahead."""
    return min(found, key=lambda sizes: (sizes.seconds, -sizes.threads, -sizes.ahead), default=None)


def _ways(problem: Problem, threads: int) -> Iterator[tuple[int, int, int]]:
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


def _held(problem: Problem, request: Request) -> Iterator[_Held]:
    """Yield every way to hold the matrix."""
    k = _counted_on(problem, request)
    for rows, _, ahead in _ways(problem, 1):
        yield _Held(problem=problem, request=request, k=k, block_rows=rows, ahead=ahead)


def _streamed(problem: Problem, request: Request) -> Iterator[_Streamed]:
    """Yield every way to read the matrix pass after pass, where a number of dimensions is asked for."""
    if not isinstance(request.n_components, int):
        return
    threads = thread_count(problem.machine.cores) if request.workers == 1 else 1
    k, ways = _counted_on(problem, request), list(_ways(problem, threads))
    for basis in bases(problem, request, problem.n_samples, later=LATER):
        for rows, count, ahead in ways:
            how = {"block_rows": rows, "threads": count, "ahead": ahead}
            yield _Streamed(problem=problem, request=request, k=k, basis=basis, **how)


def _counted_on(problem: Problem, request: Request) -> int:
    """Return the dimensions to make room for: those asked for, or as many as there can be."""
    wanted, most = request.counted_on(problem.most_components), problem.most_components
    return 1 if isinstance(wanted, float) else min(wanted or most, most)


@dataclass(frozen=True, kw_only=True)
class _Rows(SizesBySamples):
    """Sizes with which rows of the matrix could be read; fields as in `Plan`."""

    @property
    def read(self) -> Reading:
        """Reading of one pass."""
        return read_boxes(self.problem, self.block_rows, self.problem.n_features)


@dataclass(frozen=True, kw_only=True)
class _Held(_Rows):
    """Sizes with which the matrix could be held in memory and solved as a whole."""

    def plan(self, memory: int) -> Plan:
        """Return the plan with these sizes, and room for the dimensions asked for, or all that there is memory for."""

        def fits(k: int) -> bool:
            return replace(self, k=k).fits(memory)

        room = max(self.k, most_that_fits(fits, self.problem.most_components)) if self.request.is_open else self.k
        why = f"the {self._shape} matrix fits the budget; exact, in one pass"
        plan = self.planned("symmetric", why, precision="double", solver="dense")
        return replace(plan, room=room, dense_room=room)

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

    @cached_property
    def cost(self) -> Cost:
        """Cost of one pass and a dense solve."""
        read, n = self.read, self.problem.n_samples
        work = read.work(self.problem) + Work(centring=4.0 * n * n) + solve_work(n, "dense")
        return Cost(1, read.bytes, work)


@dataclass(frozen=True, kw_only=True)
class _Streamed(_Rows):
    """Sizes with which rows could be multiplied with a block of vectors, pass after pass."""

    basis: Basis

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        problem, cost, basis = self.problem, self.cost, self.basis
        passes, matrix = counted_passes(cost.passes), format_shape((problem.n_samples,) * 2)
        why = f"{passes} with {basis.width} vectors; the {matrix} matrix does not fit the budget, or takes far longer"
        if basis.restarting:
            why += f"; {basis.restarting} fewer would do with a larger basis, which does not fit the budget"
        return replace(
            self.planned("symmetric", why, precision="double", solver="lanczos"),
            schedule="products",
            product_rows=self.product_rows,
            width=basis.width,
            columns=basis.columns,
        )

    @property
    def product_rows(self) -> int:
        """Rows that are float64 at a time."""
        return min(PRODUCT_ROWS, self.block_rows)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        problem, n, basis, threads = self.problem, self.problem.n_samples, self.basis, self.threads
        width = basis.width
        own = {
            f"vectors, and the product with them, {format_shape((n, width))} float64": 2 * 8 * n * width,
            "random directions, products with them, and means": MEASURES * 8 * n,
            f"{self.product_rows} rows in float64": 8 * n * self.product_rows,
        }
        shared = {"the vectors, as handed to a task, and the product so far": (2 * width + MEASURES) * 8 * n}
        if self.request.workers > 1:
            shared["product of another worker, as sent and merged"] = 2 * 8 * n * (width + MEASURES)
        blocks = block_items(problem, self.block_rows, threads, self.ahead)
        yield Phase.of("pass", basis.items(n), in_threads(own, threads), shared, blocks, runtime(threads))
        kept = {"means and products with random directions": MEASURED_COPIES * 8 * PROBES_OF_PASS * n}
        yield Phase.of("step", basis.items(n), basis.step_items(n), kept, runtime())
        found = {f"{self.k} components": COMPONENT_COPIES * 8 * n * self.k}
        yield Phase.of("components", basis.items(n), found, kept, runtime())

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
