"""`Sizes`, the idiom in which every planner states what could be done: memory by name, work and passes.

Candidates come in groups, the preferred group first and the one that needs least memory last. `search` takes the best
of the first group of which any fit, and the refusal of a budget quotes the smallest of the last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from ..errors import BudgetError
from ..units import MIB, budget_size, format_bytes
from .blocks import Span, span_count, spans_of
from .device import device_refusal
from .memory import MemoryEstimate, Phase
from .network import NETWORK, SharedPasses, Sharing
from .plan import Plan, PlannedSizes
from .rates import Work
from .request import Problem, Request

S = TypeVar("S", bound="Sizes")
S_co = TypeVar("S_co", bound="Sizes", covariant=True)


SMALL_PRODUCT = 2 * 10**9  # multiplications that double precision takes a few hundredths of a second for
DENSE_FEATURES = 2048  # below, LAPACK's whole spectrum costs less than a second (benchmarks/choices.py)
NO_MACHINE = 2**40  # MiB


class Family(Protocol[S_co]):
    """Candidates that differ in some sizes only, such as the length of a block: `Sizes` are a family of their own."""

    def within(self, memory: int) -> Iterator[S_co]:
        """Yield the members to choose from that fit in so many bytes."""

    def smallest(self) -> Iterator[S_co]:
        """Yield members one of which needs least memory."""


Groups = Sequence[Iterable[Family[S_co]]]


class Cost(NamedTuple):
    """Reads of all the data, bytes of them and of a copy, all work, and passes wanted beyond those allowed."""

    passes: float
    bytes_read: int
    work: Work
    late: int = 0


@dataclass(frozen=True, kw_only=True)
class Sizes(ABC):
    """Sizes with which something could be done to a problem, to be compared with others in memory and time."""

    problem: Problem

    @abstractmethod
    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""

    def plan(self) -> Any:
        """Return the plan with these sizes: themselves, unless a plan is another value."""
        return self

    @property
    def memory_estimate(self) -> MemoryEstimate:
        """Memory of all phases."""
        return MemoryEstimate(tuple(self.phases()))

    @property
    def least_budget(self) -> int:
        """Smallest budget, in bytes and whole MiB, in which these sizes fit."""
        return -(-self.memory_estimate.total // MIB) * MIB

    @property
    def rank(self) -> Any:
        """Sort key among candidates of one group, the best first; among equals the earlier is taken."""
        return 0

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase on a device that multiplies, where what is done does so."""
        return iter(())

    @property
    def on_device(self) -> Phase | None:
        """The phase that needs most of the device's memory, if a device multiplies."""
        if self.problem.machine.device_memory is None:
            return None
        return max(self.device_phases(), key=lambda phase: phase.total, default=None)

    @property
    def fits_device(self) -> bool:
        """True if a device that multiplies has enough memory, or none does."""
        most, phase = self.problem.machine.device_memory, self.on_device
        return most is None or phase is None or phase.total <= most

    def fits(self, memory: int) -> bool:
        """Tell whether every phase does with so much memory, and with what a device has."""
        return self.fits_budget(memory) and self.fits_device

    def fits_budget(self, memory: int) -> bool:
        """Tell the same of this process alone, whatever a device has."""
        return all(phase.total <= memory for phase in self.phases())

    def within(self, memory: int) -> Iterator[Self]:
        """Yield these sizes if they fit."""
        if self.fits(memory):
            yield self

    def smallest(self) -> Iterator[Self]:
        """Yield these sizes."""
        yield self

    def grown(self, memory: int) -> Self:
        """Return the sizes with more room, where they are chosen and the memory allows it; the same by default."""
        return self

    @classmethod
    def preferred(cls, fitting: Sequence[Self]) -> Self:
        """Return the best of a group's candidates, which all fit."""
        return min(fitting, key=lambda sizes: sizes.rank)


@dataclass(frozen=True, kw_only=True)
class SizesByBudget(Sizes):
    """Family of sizes that are cut to the budget: the more memory there is, the larger its member."""

    least_memory: int = 0  # the smallest budget that the member of `smallest` was cut to

    @abstractmethod
    def cut(self, memory: int) -> Self:
        """Return the member for so many bytes, which may need more than these."""

    def within(self, memory: int) -> Iterator[Self]:
        """Yield the member for a budget if it fits."""
        yield from super(SizesByBudget, self.cut(memory)).within(memory)

    def smallest(self) -> Iterator[Self]:
        """Yield the member for the smallest budget that holds its own member."""
        memory = smallest(lambda memory: self.cut(memory).fits_budget(memory), at_least=self.lower_bound)
        yield replace(self.cut(memory), least_memory=memory)

    @property
    def lower_bound(self) -> int:
        """Bytes below which no member fits: as members grow with the budget, what the smallest of all needs."""
        return self.cut(1).memory_estimate.total

    @property
    def least_budget(self) -> int:
        """Smallest budget, in bytes and whole MiB, in which these sizes fit."""
        return self.least_memory or super().least_budget


@dataclass(frozen=True, kw_only=True)
class MethodSizes(PlannedSizes, Sizes):
    """Sizes with which a method could find k components of a problem.

    ``room`` is 0 unless their number is open and there is memory for more than k.
    """

    request: Request
    k: int

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """Passes, bytes and work."""

    @property
    @abstractmethod
    def sent(self) -> tuple[int, int]:
        """Bytes that every worker is sent before a pass, and of a sum over some samples, as sent to another worker."""

    @property
    def shared_passes(self) -> float:
        """Passes that workers share; all by default."""
        return self.cost.passes

    @property
    def alone(self) -> Work:
        """Work of the process that was started, where workers share the rest: solving, by default."""
        return Work(solving=self.cost.work.solving)

    @property
    def axis_of_spans(self) -> tuple[int, int, int]:
        """Samples, or features, that are cut into spans; those of a block, and the fewest that a span can end after."""
        return self.problem.n_samples, self.block_rows, self.problem.chunk_samples

    @cached_property
    def sharing(self) -> Sharing | None:
        """Passes that workers share, and what they are sent; None for one process."""
        if self.request.workers == 1:
            return None
        length, block, finest = self.axis_of_spans
        blocks, pieces = -(-length // block), -(-length // finest)
        shared = SharedPasses(self.shared_passes, self.cost.work - self.alone, *self.sent, blocks, pieces)
        network = self.request.network or NETWORK
        return Sharing(shared, self.request.workers, self.problem.machine.cores, network)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans that tasks fold: one for each thread, or as many as workers can use."""
        length, block, finest = self.axis_of_spans
        if self.sharing is None:
            return spans_of(length, span_count(1, self.threads), block)
        count = self.sharing.n_spans
        return spans_of(length, count, block if count <= self.sharing.shared.blocks else finest)

    @property
    def seconds(self) -> float:
        """Predicted time."""
        work, sharing = self.cost.work, self.sharing
        return work.seconds(self.problem.machine.cores) if sharing is None else sharing.seconds_of(work)

    @property
    def rank(self) -> Any:
        """Predicted time."""
        return self.seconds

    @abstractmethod
    def plan(self) -> Plan:
        """Return the plan with these sizes."""

    def planned(self, method: str, why: str, *, precision: str, solver: str, bytes_written: int = 0) -> Plan:
        """Return the plan of a method with these sizes."""
        cost = self.cost
        sizes = {size.name: getattr(self, size.name) for size in fields(PlannedSizes)}
        sizes |= {"room": max(self.k, self.room), "block_features": self.block_features or self.problem.n_features}
        return Plan(
            **sizes,
            problem=self.problem,
            request=self.request,
            method=method,
            why=why,
            precision=precision,
            solver=solver,
            spans=self.spans,
            passes=cost.passes,
            bytes_read=cost.bytes_read,
            bytes_written=bytes_written,
            memory_estimate=self.memory_estimate,
            device_bytes=0 if self.on_device is None else self.on_device.total,
            work=cost.work,
            shared=None if self.sharing is None else self.sharing.shared,
        )

    def with_room(self, memory: int) -> Self:
        """Return the sizes with room for as many components as fit, where their number is open."""
        if not self.request.is_open:
            return self
        return replace(
            self, room=most_that_fits(lambda k: replace(self, k=k).fits(memory), self.problem.most_components)
        )


class Schedule(NamedTuple):
    """Candidates of a method, or of one of its schedules, and why they are out of the question; empty if they are not.

    Groups are read once by a search and once more by a refusal.
    """

    name: str
    groups: Groups[MethodSizes]
    reason_against: str = ""


def search(groups: Groups[S], memory: int) -> S | None:
    """Return the best sizes of the first group of which any fit in so many bytes; None where none do."""
    for group in groups:
        fitting: list[S] = []
        for family in group:
            fitting.extend(family.within(memory))
        if fitting:
            best = fitting[0] if len(fitting) == 1 else fitting[0].preferred(fitting)
            return best.grown(memory)
    return None


def smallest_sizes(groups: Groups[S]) -> S:
    """Return the sizes that need least memory, which are in the last group."""
    return min((sizes for family in groups[-1] for sizes in family.smallest()), key=lambda sizes: sizes.least_budget)


def search_or_refuse(doing: str, groups: Groups[S], budget: tuple[int, str], more: str = "") -> S:
    """Return the best sizes that fit a budget, which is given with where it comes from.

    Raises
    ------
    BudgetError
        If none fit: the refusal quotes the smallest, and names other remedies (`more`).
    """
    sizes = search(groups, budget[0])
    if sizes is None:
        smallest = smallest_sizes(groups)
        machine, phase = smallest.problem.machine, smallest.on_device
        if phase is not None and smallest.fits_budget(budget[0]):
            raise device_refusal(doing, machine.device, format_bytes(phase.total), machine.device_memory or 0)
        raise refusal(doing, smallest.least_budget, smallest.memory_estimate, budget, more)
    return sizes


def refusal(
    doing: str, least: int, estimate: MemoryEstimate | Phase, budget: tuple[int, str], more: str = ""
) -> BudgetError:
    """Return the refusal of a budget in which not even the smallest sizes fit, with their estimate."""
    # Work before and after the methods, which their estimates leave out, can need more memory than they do.
    needed = estimate.total if estimate.total > budget[0] else least
    share = f"the largest share is the {estimate.largest_share}"
    return too_small(doing, least, budget, needed=needed, share=share, more=more)


def smallest(accepts: Callable[[int], bool], at_least: int = 1) -> int:
    """Return the least number of bytes, in whole MiB, that is accepted; more must be accepted too.

    Raises
    ------
    ValueError
        If as much as no machine has is not accepted: the fault is that of the question.
    """
    low, high, step = (at_least - 1) // MIB, -(-at_least // MIB), 1
    while not accepts(high * MIB):
        low, high, step = high, high + step, 2 * step
        if high > NO_MACHINE:
            raise ValueError("no number of bytes is accepted")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepts(middle * MIB) else (middle, high)
    return high * MIB


def check_budget(what: str, fits: Callable[[int], bool], budget: int, source: str, more: str = "") -> None:
    """Refuse a budget in bytes in which something does not fit, naming the smallest that would do, and other remedies.

    Raises
    ------
    BudgetError
        Says what does not fit, in words, and where the budget comes from.
    """
    if not fits(budget):
        raise too_small(what, smallest(fits), (budget, source), more=more)


def most_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """The largest count of 1 to `most` that fits, 0 where none does; fewer must fit where more do."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def too_small(
    doing: str, least: int, budget: tuple[int, str], *, needed: int = 0, share: str = "", more: str = ""
) -> BudgetError:
    """Return the refusal of a budget, naming the least that would do.

    Parameters
    ----------
    doing : str
        What does not fit.
    least : int
        Bytes that would do.
    budget : (int, str)
        Bytes allowed, and where that comes from.
    needed : int, optional
        Bytes that it needs, where that is not `least`.
    share : str, optional
        What takes much of it.
    more : str, optional
        Other remedies.
    """
    allowed, source = budget
    return BudgetError(
        f"{doing} needs {format_bytes(needed or least)} and memory allows {format_bytes(allowed)} ({source})"
        f"{share and '; '}{share}. Set memory to at least {budget_size(least)}{more}."
    )


def precision_of(problem: Problem, request: Request, multiplications: int) -> str:
    """Precision of products: single where float32 holds the values and there is enough to multiply."""
    if request.precision != "auto":
        return request.precision
    return "single" if problem.suits_single and multiplications > SMALL_PRODUCT else "double"


def solver_of(size: int, request: Request, most: int) -> str:
    """Solver of an eigenproblem of order `size`, of which `most` eigenvalues are not zero."""
    count = request.counted_on(most)
    if request.n_components == "mle" or size <= DENSE_FEATURES or count is None:
        return "dense"
    return "lanczos" if isinstance(count, float) or count <= size // 8 else "dense"
