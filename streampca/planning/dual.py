"""Plans of method 'dual': n x n instead of p x p, for images with more pixels than there are images.

Every two samples are multiplied with one another, which takes ranges of features with all samples in memory; see
`by_features`.

Of the sizes that fit the fastest are taken, so for a given number of components more memory makes the
fastest plan no slower. A plan that keeps components in memory, or has room for a dense solve, is preferred to a faster
one if it takes at most a fourth longer. Where the number of components is open, memory makes room for more of them
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Self

from ..units import format_shape
from .by_features import SCHEDULES, WORTH_CHANGING, SizesByFeatures, places, reason_against_schedule
from .candidate_sizes import Cost, Schedule, solver_of
from .device import among_phase
from .integer_units import bytes_a_number, integer_items, worthwhile_units
from .memory import PROBES, Phase, solve_memory
from .plan import Plan
from .rates import Work, integer_products, products, solve_work
from .request import Problem, Request

OPEN_SHARES = (4, 16, 64)  # components counted on where k is open: a fourth of n, or what there is memory for

APPROXIMATE = False
KINDS = ("pca", "classical-mds")


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield sweeps of the collection, and of a scratch copy; "auto" leaves both out where there is no gain."""
    n, p = problem.n_samples, problem.n_features
    if request.method == "auto" and n >= p:
        samples, features = ("images", "pixels") if len(problem.sample_shape) == 2 else ("samples", "features")
        compared = f"more {samples} ({n}) than" if n > p else f"as many {samples} as"
        yield Schedule("dual", [], f"no gain, as there are {compared} {features} ({p})")
        return
    for name in SCHEDULES:
        reason = reason_against_schedule(name, request)
        yield Schedule(f"dual ({name})", [] if reason else _candidate_sizes(problem, request, name), reason)


def _candidate_sizes(problem: Problem, request: Request, schedule: str) -> list[list[DualSizes]]:
    """Return sizes with room for a dense solve or without, and components in memory or stored, the preferred first.

    Each with integer units first, where they are worthwhile; all for several numbers of components where k is open.
    """
    shares = (1, *OPEN_SHARES) if request.output else OPEN_SHARES  # with an output none need be left out
    sizes = DualSizes(problem=problem, request=request, schedule=schedule, k=0)
    groups = []
    for k in components_counted_on(problem, request, shares):
        group = []
        for dense, stored in product(sizes.dense_choices, places(request)):
            candidate = replace(sizes, k=k, dense=dense, stored=stored)
            if (units := candidate.worthwhile_units()) != "none":
                group.append(replace(candidate, integer_units=units))
            group.append(candidate)
        groups.append(group)
    return groups


def components_counted_on(problem: Problem, request: Request, shares: Sequence[int]) -> list[int]:
    """Return k, or where it is open several counts to be tried in turn: shares of all components, and one."""
    count = request.counted_on(problem.most_components)
    if not isinstance(count, float):
        return [count or problem.most_components]
    return [max(1, problem.most_components // share) for share in shares] + [1]


@dataclass(frozen=True, kw_only=True)
class DualSizes(SizesByFeatures):
    """Sizes of the method; `dense` says whether there is room for a dense solve."""

    dense: bool = False

    @property
    def dense_choices(self) -> tuple[bool, ...]:
        """Choices for `dense`: Lanczos may give way to a dense solve, or has all the memory."""
        return (True,) if self.solver == "dense" else (True, False)

    @property
    def multiplications(self) -> int:
        """Multiplications of the Gram matrix."""
        return self.problem.n_samples**2 * self.problem.n_features

    @property
    def solver(self) -> str:
        """Solver of the n x n problem."""
        return solver_of(self.problem.n_samples, self.request, self.problem.most_components)

    def worthwhile_units(self) -> str:
        """Return the integer units that multiply samples faster than floating point does, or "none"."""
        if self.precision == "double" or self.problem.kind == "f":
            return "none"
        return worthwhile_units(self.problem, self.request, self.multiplications, self.precision)

    # -- the search

    def within(self, memory: int) -> Iterator[Self]:
        """Yield the fastest of the ranges that fit."""
        if fitting := list(super().within(memory)):
            yield min(fitting, key=lambda sizes: sizes.seconds)

    def smallest(self) -> Iterator[Self]:
        """Yield the narrowest ranges, with no more room than they need for the solver."""
        if not self.dense or self.solver == "dense":
            yield from super().smallest()

    @classmethod
    def preferred(cls, fitting: Sequence[Self]) -> Self:
        """Return the first of those that take at most a fourth longer than the fastest."""
        fastest = min(sizes.seconds for sizes in fitting)
        return next(sizes for sizes in fitting if WORTH_CHANGING * sizes.seconds <= fastest)

    def grown(self, memory: int) -> Self:
        """Return the sizes with room for all components that there is memory for, where their number is open."""
        return self.with_room(memory)

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        side, passes = format_shape((self.problem.n_samples,) * 2), self.cost.passes
        in_passes = "one pass" if passes == 1 else f"{passes:g} passes"
        return self.solved("dual", f"the {side} Gram matrix fits the budget; exact, in {in_passes}")

    def solved(self, method: str, why: str) -> Plan:
        """Return the plan of a method that solves an n x n problem."""
        plan = self.planned(method, why, precision=self.precision, solver=self.solver, bytes_written=self.bytes_written)
        return replace(plan, dense_room=plan.room if self.dense or self.solver == "dense" else 0)

    # -- memory

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device in either pass."""
        n, tile = self.problem.n_samples, self.product_features
        yield among_phase("Gram matrix", self.problem, n, tile, self.precision)
        yield from super().device_phases()

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        yield from self.copy_phases()
        yield self._gram_phase()
        yield from self._solve_phases()
        yield self.components_phase()
        yield from self.last_phases()

    def _gram_phase(self) -> Phase:
        """Memory while the Gram matrix is added up."""
        n, p, tile = self.problem.n_samples, self.problem.n_features, self.product_features
        items = {f"Gram matrix, {format_shape((n, n))} float64": 8 * n * n}
        if self.request.workers > 1:
            items["Gram matrix of another worker, merged"] = 8 * n * n
        items |= self.held_items() | self.read_items()
        items["tile of it, centred"] = self.tiles_at_once * n * tile * self.itemsize
        if self.precision == "single":  # in double precision products are added up at once
            items["product of a tile"] = self.tiles_at_once * 4 * n * n
        if self.integer_units != "none":
            items |= integer_items(n + 1, bytes_a_number(self.problem), tile, self.tiles_at_once)
        items["mean"] = 16 * p
        items["probes"] = PROBES * (2 * 8 * n + self.tiles_at_once * 12 * tile)
        if self.problem.weighted:
            items["sample weights"] = 8 * n
        return Phase.of("Gram matrix", items, self.runtime())

    def _solve_phases(self) -> Iterator[Phase]:
        """Yield the memory of the solver, and of a dense one where it may take over, with the data held meanwhile."""
        n, count = self.problem.n_samples, self.request.counted_on(self.problem.most_components)
        beside = {"mean": 16 * self.problem.n_features, **self.held_items()}
        for solver in (self.solver, "dense") if self.dense and self.solver != "dense" else (self.solver,):
            phase = solve_memory("Gram matrix", n, count, solver, self.k)
            yield Phase.of(phase.name, dict(phase.items), beside)

    @property
    def shared_passes(self) -> float:
        """The pass for the Gram matrix, and that for components which are not written as they are computed."""
        return 1.0 if self.stored else 2.0

    @property
    def alone(self) -> Work:
        """The solve, and components that are written as they are computed, for which samples are read again."""
        n, p = self.problem.n_samples, self.problem.n_features
        if not self.stored:
            return solve_work(n, self.solver)
        made = Work(centring=float(n) * p) + products(2.0 * n * p * self.k, self.precision)
        return self.reading(0)[0] + made + solve_work(n, self.solver)

    @property
    def sent(self) -> tuple[int, int]:
        """No vectors; the Gram matrix, with products with probes, or as much as rows of components where they are more.

        Rows of ranges are put together: over all levels of the tree, about twice as many as there are travel.
        """
        n = self.problem.n_samples
        return 0, max(8 * n * (n + 2 * PROBES), 0 if self.stored else self.rows_bytes // 3)

    @cached_property
    def cost(self) -> Cost:
        """Passes, bytes and work."""
        n, p = self.problem.n_samples, self.problem.n_features
        work, bytes_read, again = self.reading(1)
        work += Work(centring=2.0 * n * p) + products(2.0 * n * p * self.k, self.precision) + solve_work(n, self.solver)
        if self.integer_units == "none":
            work += products(float(n) * n * p, self.precision)
        else:
            work += integer_products(float(n) * n * p * bytes_a_number(self.problem) ** 2, self.integer_units)
        if self.precision == "single":
            work += Work(adding=float(n) * n * -(-p // self.product_features))
        return Cost(round(1 + (self.schedule == "scratch") + again / p, 2), bytes_read, work)
