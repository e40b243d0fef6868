"""Plans of method 'class-scatter': one pass for p x p and the means of classes, for Fisher's discriminants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from ..units import format_shape
from .candidate_sizes import Cost, Schedule
from .covariance import CovarianceSizes
from .memory import COMPONENT_COPIES, MOST_THREADS, Phase, runtime
from .plan import Plan
from .rates import Work, products
from .request import Problem, Request

KINDS = ("fisher-discriminant", "sliced-inverse-regression")
APPROXIMATE = False


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield the only schedule: blocks of samples."""
    yield Schedule("class-scatter", ClassScatterSizes(problem=problem, request=request).concurrent())


@dataclass(frozen=True, kw_only=True)
class ClassScatterSizes(CovarianceSizes):
    """Sizes of the scatter matrix, with the sums of classes beside it and another solve."""

    solver = "dense"

    @property
    def _sums_bytes(self) -> int:
        """Bytes of the sums of classes, with those of a piece."""
        return 3 * 8 * self.problem.target_width * self.problem.n_features

    def cut(self, memory: int) -> Self:
        """Return the sizes whose blocks have the share of what sums and classes leave of the budget."""
        room = memory - MOST_THREADS * self._sums_bytes - 16 * self.problem.n_samples
        asked, most = self.request.n_components, self.problem.most_components
        k = min(asked, most) if isinstance(asked, int) else most
        return replace(super().cut(max(1, room)), k=k, dense_room=k)

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        width, matrix = self.problem.target_width, format_shape((self.problem.n_features,) * 2)
        groups = "slices" if self.request.kind == "sliced-inverse-regression" else "classes"
        why = f"the {matrix} scatter matrix and the means of {width} {groups} fit; exact, in one pass"
        return self.planned("class-scatter", why, precision=self.precision, solver=self.solver)

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device in the pass, with the sums of classes of a piece."""
        sums = {f"sums of {self.problem.target_width} classes": self._sums_bytes}
        for phase in super().device_phases():
            yield Phase.of(phase.name, dict(phase.items), sums)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        n, p, width, k = self.problem.n_samples, self.problem.n_features, self.problem.target_width, self.k
        sums = {"classes of samples": 16 * n, f"sums of {width} classes": self.threads * self._sums_bytes}
        if self.request.workers > 1:
            sums["sums of another worker"] = self._sums_bytes
        yield Phase.of("pass", dict(self.pass_phase().items), sums)
        solving = {
            f"scatter matrix, {format_shape((p, p))} float64": 8 * p * p,
            "the matrix solved with, and its triangle": 8 * p * p,
            "classes of samples": 16 * n,
            f"means of {width} classes, solved with": 5 * 8 * width * p,
            f"{k} components": (COMPONENT_COPIES + 2) * 8 * p * k,
        }
        if self.request.shrinkage:
            solving["inverse of the triangle, and the matrix of the shrunk problem"] = 4 * 8 * p * p
        yield Phase.of("solve", solving, runtime())

    @cached_property
    def cost(self) -> Cost:
        """Cost of the pass, with the sums of classes, and of the solve."""
        n, p, cost = self.problem.n_samples, self.problem.n_features, super().cost
        work = products(2.0 * n * p * self.problem.target_width, self.precision) + Work(centring=float(n) * p)
        return cost._replace(work=cost.work + work)

    @property
    def sent(self) -> tuple[int, int]:
        """No vectors; the scatter matrix and the sums of classes."""
        return 0, super().sent[1] + 8 * self.problem.target_width * self.problem.n_features

    @property
    def solve_work(self) -> Work:
        """Work of a Cholesky factor, and where covariances are shrunk of its inverse and products with that."""
        return products((3.0 if self.request.shrinkage else 1 / 3) * self.problem.n_features**3, "double")
