"""Plans of method 'probabilistic': those of method 'covariance', under another name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .candidate_sizes import Schedule
from .covariance import CovarianceSizes
from .plan import Plan
from .request import Problem, Request

KINDS = ("probabilistic-pca",)
APPROXIMATE = False


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield the only schedule: blocks of samples."""
    yield Schedule("probabilistic", Probabilistic(problem=problem, request=request).concurrent())


class Probabilistic(CovarianceSizes):
    """Sizes of the scatter matrix."""

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        return replace(super().plan(), method="probabilistic")
