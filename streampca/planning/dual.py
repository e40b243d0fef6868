"""Plans of method 'dual': n x n instead of p x p, for images with more pixels than there are images.

Every two samples are multiplied with one another, which takes ranges of features with all samples in memory; see
`by_features`.

Of the sizes that fit the fastest are taken, so for a given number of components more memory makes the
fastest plan no slower. A plan that keeps components in memory, or has room for a dense solve, is preferred to a faster
one if it takes at most a fourth longer. Where the number of components is open, memory makes room for more of them
first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from ..units import format_shape
from .budget import most_that_fits, solver_of
from .by_features import SCHEDULES, WORTH_CHANGING, SizesByFeatures, against, places
from .integer_units import bytes_a_number, integer_items, worthwhile_units
from .memory import MemoryEstimate, Phase, smallest_of, solve_memory
from .plan import Candidate, Cost, Plan
from .rates import Work, integer_products, products, solve_work
from .request import Problem, Request
from .sizes import PROBES

OPEN_SHARES = (4, 16, 64)  # components counted on where k is open: a fourth of n, or what there is memory for

APPROXIMATE = False
KINDS = ("pca", "classical-mds")


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out; empty if it does not."""
    n, p = problem.n_samples, problem.n_features
    if n < p:
        return ""
    samples, features = ("images", "pixels") if len(problem.sample_shape) == 2 else ("samples", "features")
    compared = f"more {samples} ({n}) than" if n > p else f"as many {samples} as"
    return f"no gain, as there are {compared} {features} ({p})"


def candidates(problem: Problem, request: Request) -> Iterator[Candidate]:
    """Yield the fastest plan of each schedule."""
    for schedule in SCHEDULES:
        reason = against(schedule, request)
        plan = None if reason else dual_plan(problem, request, schedule)
        yield Candidate(
            f"dual ({schedule})", plan, reason if reason or plan else str(_least(problem, request, schedule))
        )


def least(problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
    """Return the smallest budget that would do, and its memory estimate."""
    return smallest_of(_least(problem, request, name) for name in SCHEDULES if not against(name, request))


def _least(problem: Problem, request: Request, schedule: str) -> MemoryEstimate:
    """The least memory that a schedule can do with, item by item."""
    k = _components_counted_on(problem, request)[-1]
    tried = _tried(problem, request, schedule, k, (False,))
    return smallest_of(cut.memory_estimate for sizes in tried for cut in sizes.smallest())[1]


def dual_plan(problem: Problem, request: Request, schedule: str) -> Plan | None:
    """The fastest plan of a schedule that fits the budget, or one to be preferred; None where none fits."""
    memory, _ = problem.machine.budget(request.memory)
    is_dense = solver_of(problem.n_samples, request, problem.most_components) == "dense"
    rooms = (True,) if is_dense else (True, False)  # Lanczos may give way to a dense solve
    for k in _components_counted_on(problem, request):
        that_fit = [list(sizes.that_fit(memory)) for sizes in _tried(problem, request, schedule, k, rooms)]
        found = [min(some, key=lambda sizes: sizes.seconds) for some in that_fit if some]
        if found:
            fastest = min(sizes.seconds for sizes in found)
            return next(sizes for sizes in found if WORTH_CHANGING * sizes.seconds <= fastest).plan(memory)
    return None


def _tried(problem: Problem, request: Request, schedule: str, k: int, rooms: tuple[bool, ...]) -> Iterator[Dual]:
    """Yield sizes with room for a dense solve or without, components in memory or stored; the preferred come first.

    Each with integer units first, where they are worthwhile.
    """
    for dense, stored in product(rooms, places(request)):
        sizes = Dual(problem=problem, request=request, schedule=schedule, k=k, stored=stored, dense=dense)
        if (units := sizes.worthwhile_units()) != "none":
            yield replace(sizes, integer_units=units)
        yield sizes


def _components_counted_on(problem: Problem, request: Request) -> list[int]:
    """Components to make room for: those asked for, or where k is open several counts, to be tried in turn."""
    wanted = request.counted_on(problem.most_components)
    if not isinstance(wanted, float):
        return [wanted or problem.most_components]
    shares = (1, *OPEN_SHARES) if request.output else OPEN_SHARES  # with an output none need be left out
    return [max(1, problem.most_components // share) for share in shares] + [1]


@dataclass(frozen=True, kw_only=True)
class Dual(SizesByFeatures):
    """Sizes of the method; `dense` says whether there is room for a dense solve."""

    dense: bool

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

    def plan(self, memory: int) -> Plan:
        """Return the plan with these sizes, and room for the components asked for, or all that there is memory for."""

        def fits(k: int) -> bool:
            return replace(self, k=k).fits(memory)

        room = max(self.k, most_that_fits(fits, self.problem.most_components)) if self.request.is_open else self.k
        side, passes = format_shape((self.problem.n_samples,) * 2), self.cost.passes
        in_passes = "one pass" if passes == 1 else f"{passes:g} passes"
        why = f"the {side} Gram matrix fits the budget; exact, in {in_passes}"
        dense_room = room if self.dense or self.solver == "dense" else 0
        return self.planned("dual", why, solver=self.solver, room=room, dense_room=dense_room)

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
        items["tile of it, centred"] = self.threads * n * tile * self.itemsize
        if self.precision == "single":  # in double precision products are added up at once
            items["product of a tile"] = self.threads * 4 * n * n
        if self.integer_units != "none":
            items |= integer_items(n + 1, bytes_a_number(self.problem), tile, self.threads)
        items["mean"] = 16 * p
        items["probes"] = PROBES * (2 * 8 * n + self.threads * 12 * tile)
        if self.problem.weighted:
            items["sample weights"] = 8 * n
        return Phase.of("Gram matrix", items, self.runtime())

    def _solve_phases(self) -> Iterator[Phase]:
        """Yield the memory of the solver, and of a dense one where it may take over, with the data held meanwhile."""
        n, wanted = self.problem.n_samples, self.request.counted_on(self.problem.most_components)
        beside = {"mean": 16 * self.problem.n_features, **self.held_items()}
        for solver in (self.solver, "dense") if self.dense and self.solver != "dense" else (self.solver,):
            phase = solve_memory("Gram matrix", n, wanted, solver, self.k)
            yield Phase.of(phase.name, dict(phase.items), beside)

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
