"""Plans of method 'probabilistic': those of method 'covariance', under another name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from . import covariance
from .plan import Candidate
from .request import Problem, Request

KINDS = ("probabilistic-pca",)
APPROXIMATE = False
least = covariance.least


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out of fits of its kind; never."""
    return ""


def candidates(problem: Problem, request: Request) -> Iterator[Candidate]:
    """Yield the plan of the scatter matrix if it fits."""
    for _, plan, reason in covariance.candidates(problem, request):
        yield Candidate("probabilistic", None if plan is None else replace(plan, method="probabilistic"), reason)
