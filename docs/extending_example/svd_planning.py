"""Plans of method 'svd': all samples in memory at once, and their singular value decomposition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .blocks import Span, block_lengths
from .candidate_sizes import Cost, MethodSizes, Schedule
from .decoding import read_boxes
from .memory import Phase, block_items, runtime
from .plan import Plan
from .rates import Work
from .request import Problem, Request

KINDS = ("pca",)
APPROXIMATE = False  # it finds every component, exactly


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield the only schedule: blocks of any length, the largest first."""
    k = problem.most_components
    sizes = Svd(problem=problem, request=request, k=k, dense_room=k)
    yield Schedule("svd", [[replace(sizes, block_rows=rows, product_rows=rows)] for rows in block_lengths(problem)])


@dataclass(frozen=True, kw_only=True)
class Svd(MethodSizes):
    """Sizes of the method."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """One span, as all samples are decomposed together."""
        return (Span(0, self.problem.n_samples),)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory while samples are read, and while they are decomposed."""
        n, p = self.problem.n_samples, self.problem.n_features
        smaller = min(n, p)
        samples = {"samples as float64, and a copy": 2 * 8 * n * p}
        yield Phase.of("pass", samples, block_items(self.problem, self.block_rows, 1, 0), runtime())
        decomposing = {
            "singular vectors, and the components of them": 8 * smaller * (n + 3 * p),
            "LAPACK's copy and workspace": 8 * n * p + 8 * 7 * smaller**2,
        }
        yield Phase.of("decomposition", samples, decomposing, runtime())

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes sent to every worker before the pass, none, and of a sum as workers send it: here, samples."""
        return 0, 8 * self.problem.n_samples * self.problem.n_features

    @cached_property
    def cost(self) -> Cost:
        """Cost of one read, and of the decomposition."""
        n, p = self.problem.n_samples, self.problem.n_features
        read = read_boxes(self.problem, self.block_rows, p)
        work = read.work(self.problem) + Work(centring=n * p, solving=6.0 * n * p * min(n, p))
        return Cost(1, read.bytes, work)

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        why = "all samples fit in memory; exact, in one pass"
        return self.planned("svd", why, precision="double", solver="dense")
