"""Plans of method 'covariance': one pass for p x p."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Self

from ..units import MIB, format_shape
from .blocks import BLOCK_SHARES, CHUNK_SHARE, MOST_BLOCK, block_rows
from .candidate_sizes import Cost, MethodSizes, Schedule, SizesByBudget, precision_of, solver_of
from .decoding import read_boxes
from .device import among_phase
from .integer_units import bytes_a_number, integer_items, worthwhile_units
from .memory import (
    COMPONENT_COPIES,
    Phase,
    block_items,
    in_threads,
    integer_rows,
    probe_columns,
    runtime,
    scatter_bytes,
    solve_memory,
    thread_count,
)
from .plan import Plan
from .rates import Work, integer_products, products, solve_work
from .request import Problem, Request

MOST_PRODUCT_ROWS = 2048  # adding up p x p then costs little beside making it (benchmarks/limits.py --phases)
LEAST_PRODUCT_ROWS = 64
THREAD_BLOCK = 8 * MIB  # of a block in a thread: as fast as 24, and two of each thread are in memory
THREAD_SHARES = 3  # of the shares below that are tried with threads: smaller blocks cost more than threads gain
# Beyond, adding p x p to the sum of each thread takes what BLAS's threads lose (benchmarks/choices.py).
THREAD_FEATURES = 2048
# That writing a scatter matrix takes beside it: 3.3 MiB for 400 features, 4.5 for 576, 7.7 for 784, 15 for 2100, and 30
# for 3000 were measured.
MOST_WRITING_BYTES = 64 * MIB

APPROXIMATE = False
KINDS = ("pca", "kernel-pca", "classical-mds")


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield the only schedule: blocks of samples, on integer units where these are faster."""
    sizes, units = CovarianceSizes(problem=problem, request=request), "none"
    # Roots of weights make fractions of samples. Most floating-point ones are, which threads of their own do not suit.
    if not problem.weighted and (problem.kind != "f" or sizes.suits_threads):
        units = worthwhile_units(problem, request, problem.n_samples * problem.n_features**2, sizes.precision)
    yield Schedule("covariance", sizes.concurrent(units))


@dataclass(frozen=True, kw_only=True)
class CovarianceSizes(SizesByBudget, MethodSizes):
    """Sizes of the method; `shares` of the budget, one in so many, are tried for blocks and products in turn."""

    k: int = 0
    shares: tuple[int, ...] = BLOCK_SHARES
    most_block: int = MOST_BLOCK
    product_rows: int = 1

    @cached_property
    def precision(self) -> str:
        """Precision of products."""
        return precision_of(self.problem, self.request, self.problem.n_samples * self.problem.n_features**2)

    @cached_property
    def solver(self) -> str:
        """Solver of the p x p problem."""
        return solver_of(self.problem.n_features, self.request, self.problem.most_components)

    @property
    def suits_threads(self) -> bool:
        """True if threads with sums of their own are worth their memory."""
        return self.precision == "single" and self.problem.n_features <= THREAD_FEATURES

    # -- the search

    def concurrent(self, units: str = "none", thread_block: int = THREAD_BLOCK) -> list[list[Self]]:
        """Return the same in threads, and reading ahead or not, each by itself: fastest first.

        The library for integer units multiplies in the thread that calls it, so that all cores need threads, or
        workers. Workers without the library multiply in floating point.

        Parameters
        ----------
        units : str
            Integer units to try before floating point.
        thread_block : int
            Most bytes of a block in a thread.
        """
        threads, fills = thread_count(self.problem.machine.cores), self.problem.fills
        by_workers = self.request.workers > 1
        in_threads = [units] if units != "none" else []
        in_threads += ["none"] if self.suits_threads else []
        shares = tuple(threads * share for share in BLOCK_SHARES[:THREAD_SHARES])
        most = MOST_BLOCK if threads == 1 else thread_block
        candidates = [
            replace(self, integer_units=kind, threads=threads, ahead=int(fills), shares=shares, most_block=most)
            for kind in ([] if by_workers else in_threads)
        ]
        alone = dict.fromkeys((units, "none") if by_workers else ("none",))
        candidates += [
            replace(self, integer_units=kind, ahead=ahead, most_block=MOST_BLOCK)
            for kind, ahead in product(alone, (1, 0) if fills else (0,))
        ]
        return [[sizes] for sizes in candidates]

    def within(self, memory: int) -> Iterator[Self]:
        """Yield the sizes with the first share, which makes the largest blocks, that fit."""
        for share in self.shares:
            sizes = replace(self, shares=(share,)).cut(memory)
            if sizes.fits(memory):
                yield sizes
                return

    def cut(self, memory: int) -> Self:
        """Return the sizes with the largest blocks of the last share, and room for components, for so many bytes."""
        problem, limit, itemsize = self.problem, memory // self.shares[-1], 8 if self.precision == "double" else 4
        most_rows = min(MOST_PRODUCT_ROWS, max(LEAST_PRODUCT_ROWS, limit // (problem.n_features * itemsize)))
        while most_rows > LEAST_PRODUCT_ROWS and not replace(self, product_rows=most_rows).fits_device:
            most_rows = max(most_rows // 2, LEAST_PRODUCT_ROWS)
        chunk = problem.chunk_samples * problem.sample_bytes
        most = max(chunk, min(limit, self.most_block)) if chunk <= limit else limit
        rows = block_rows(problem.sample_bytes, problem.chunk_samples, most)
        # Whole storage chunks where that is affordable.
        if rows < problem.chunk_samples and chunk <= memory // max(self.shares[-1] // 2, CHUNK_SHARE):
            rows = problem.chunk_samples
        rows = min(rows, problem.n_samples)
        room, dense_room = self._room(self.solver, memory), 0
        if self.solver == "dense":
            dense_room = room
        elif self._solve_phase("dense", room).total <= memory:
            dense_room = self._room("dense", memory)
        return replace(
            self,
            block_rows=rows,
            product_rows=min(most_rows, max(rows, LEAST_PRODUCT_ROWS)),
            k=room,
            dense_room=dense_room,
            threads=min(self.threads, -(-problem.n_samples // rows)),
        )

    def _room(self, solver: str, memory: int) -> int:
        """Components there is memory for: all that were asked for, or for a fraction what the budget leaves."""
        most = self.problem.most_components
        count = self.request.counted_on(most)
        if not isinstance(count, float):
            return count or most
        remaining = memory - self._solve_phase(solver, 0).total
        return max(1, min(most, remaining // (COMPONENT_COPIES * 8 * self.problem.n_features)))

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        matrix = format_shape((self.problem.n_features,) * 2)
        why = f"the {matrix} scatter matrix fits the budget; exact, in one pass"
        return self.planned("covariance", why, precision=self.precision, solver=self.solver)

    # -- memory

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device in the pass."""
        p, rows = self.problem.n_features, self.product_rows
        yield among_phase("scatter matrix", self.problem, p, rows, self.precision)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        yield self.pass_phase()
        yield self._solve_phase(self.solver, self.k)
        if self.dense_room and self.solver != "dense":
            yield self._solve_phase("dense", min(self.k, self.dense_room))
        p = self.problem.n_features
        matrix = 8 * p * p
        saved = {  # the statistic a file at a time (`streampca.storage.stored_arrays`)
            f"scatter matrix, {format_shape((p, p))} float64": matrix,
            "files of it being written": min(2 * MIB + 6 * matrix // 5, 6 * MIB + 2 * matrix // 5, MOST_WRITING_BYTES),
            f"{self.k} components": 8 * p * self.k,
        }
        yield Phase.of("saving", saved, runtime())

    def pass_phase(self) -> Phase:
        """Memory while samples are absorbed in blocks."""
        problem, p, threads = self.problem, self.problem.n_features, self.threads
        probes = probe_columns(problem)
        items = in_threads(scatter_bytes(p, self.precision, self.product_rows, probes), threads)
        if self.request.workers > 1:
            items["scatter matrix of another worker, merged"] = 8 * p * p
        blocks = block_items(problem, self.block_rows, threads, self.ahead)
        if self.integer_units != "none":
            at_once = min(self.block_rows, integer_rows(p * bytes_a_number(problem)))
            blocks |= integer_items(p, bytes_a_number(problem), at_once, threads)
        return Phase.of("pass", items, blocks, runtime(threads))

    def _solve_phase(self, solver: str, k: int) -> Phase:
        """Memory while the p x p problem is solved; for a fraction of the variance, up to a quarter of p components."""
        p, count = self.problem.n_features, self.request.counted_on(self.problem.most_components)
        return solve_memory("scatter matrix", p, count, solver, min(k, p // 4) if self.request.is_open else k)

    # -- work

    @property
    def sent(self) -> tuple[int, int]:
        """No vectors; the scatter matrix, with means and products with probes."""
        p = self.problem.n_features
        return 0, 8 * p * (p + 2 * probe_columns(self.problem) + 2)

    @property
    def alone(self) -> Work:
        """The solve."""
        return self.solve_work

    @property
    def solve_work(self) -> Work:
        """Work of the p x p problem."""
        return solve_work(self.problem.n_features, self.solver)

    @cached_property
    def cost(self) -> Cost:
        """Cost of the only pass, and of the solve."""
        problem, n, p = self.problem, float(self.problem.n_samples), float(self.problem.n_features)
        read = read_boxes(problem, self.block_rows, problem.n_features)
        work = read.work(problem) + Work(centring=n * p) + self.solve_work
        if self.integer_units != "none" and problem.kind != "f":
            count = bytes_a_number(problem)
            work += integer_products(n * p * p * count**2, self.integer_units)
            # Half of p x p is joined, centred twice and added.
            work += Work(adding=n / min(self.block_rows, integer_rows(problem.n_features * count)) * 2 * p * p)
        else:
            work += products(n * p * p, self.precision)
            work += Work(adding=n / self.product_rows * p * p if self.precision == "single" else 0.0)
        return Cost(1, read.bytes, work)
