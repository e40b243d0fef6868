"""`Sizes`, the idiom in which every planner states what could be done: memory by name, work and passes.

Candidates come in groups, the preferred group first and the one that needs least memory last. `budget.search` takes the
best of the first group of which any fit, and a refusal quotes the smallest of the last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from ..units import MIB
from .blocks import Span
from .budget import most_that_fits, smallest
from .memory import MemoryEstimate, Phase
from .plan import Plan
from .rates import Work
from .request import Problem, Request

S_co = TypeVar("S_co", bound="Sizes", covariant=True)


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

    def fits(self, memory: int) -> bool:
        """Tell whether every phase does with so much memory."""
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
        memory = smallest(lambda memory: self.cut(memory).fits(memory), at_least=self.lower_bound)
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
class MethodSizes(Sizes):
    """Sizes with which a method could find k components of a problem; fields as in `Plan`.

    ``room`` is the number of components that there is memory for, where their number is open and that is more than k.
    """

    request: Request
    k: int
    room: int = 0
    dense_room: int = 0
    schedule: str = "samples"
    block_rows: int = 1
    product_rows: int = 0
    block_features: int = 0
    product_features: int = 0
    stored: bool = False
    threads: int = 1
    ahead: int = 0
    integer_units: str = "none"

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """Passes, bytes and work."""

    @property
    @abstractmethod
    def spans(self) -> tuple[Span, ...]:
        """Spans that tasks fold."""

    @property
    def bytes_written(self) -> int:
        """Bytes of a scratch copy."""
        return 0

    @property
    def seconds(self) -> float:
        """Predicted time."""
        return self.cost.work.seconds(self.problem.machine.cores, self.request.workers)

    @property
    def rank(self) -> Any:
        """Predicted time."""
        return self.seconds

    @abstractmethod
    def plan(self) -> Plan:
        """Return the plan with these sizes."""

    def planned(self, method: str, why: str, *, precision: str, solver: str) -> Plan:
        """Return the plan of a method with these sizes."""
        cost = self.cost
        return Plan(
            problem=self.problem,
            request=self.request,
            method=method,
            why=why,
            precision=precision,
            solver=solver,
            room=max(self.k, self.room),
            dense_room=self.dense_room,
            schedule=self.schedule,
            block_rows=self.block_rows,
            product_rows=self.product_rows,
            block_features=self.block_features or self.problem.n_features,
            product_features=self.product_features,
            stored=self.stored,
            spans=self.spans,
            threads=self.threads,
            ahead=self.ahead,
            integer_units=self.integer_units,
            passes=cost.passes,
            bytes_read=cost.bytes_read,
            bytes_written=self.bytes_written,
            memory_estimate=self.memory_estimate,
            work=cost.work,
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
