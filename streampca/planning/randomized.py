"""Plans of method 'randomized': along features or along samples, whichever side its vectors have an entry for.

A pass costs the same either way. Along features it is one read in the order of storage, and the first block comes from
a sample; along samples it is a sweep of ranges of features, a pass or two more, and far less memory for the basis.
"""

from __future__ import annotations

from collections.abc import Iterator

from .memory import MemoryEstimate, smallest_of
from .plan import Candidate, Plan
from .randomized_features import least_randomized, randomized_plan
from .randomized_samples import along_samples_plan, least_along_samples
from .request import Problem, Request

# Of the predicted time along features, what going along samples must take less than: predictions favour the former
# (benchmarks/wide.py --sides: 0.6 predicted, 0.2 measured), and the order of storage is the safer one to read in.
WORTH_TURNING = 0.5
WORTH_SECONDS = 1.0  # along features, below which nobody waits


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out; never."""
    return ""


def candidates(problem: Problem, request: Request, memory: int, source: str) -> Iterator[Candidate]:
    """Yield the plan along the better side."""
    plan = _plan(problem, request, memory, source)
    yield Candidate("randomized", plan, "" if plan else str(least(problem, request)[1]))


def least(problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
    """Return the smallest budget that would do, and its memory estimate."""
    along_samples = least_along_samples(problem, request) if _turns(problem) else []
    return smallest_of([least_randomized(problem, request), *along_samples])


def _plan(problem: Problem, request: Request, memory: int, source: str) -> Plan | None:
    """The plan along features, or along samples where that alone fits the budget or is much faster; None if none is."""
    plan = randomized_plan(problem, request, memory, source)
    if not _turns(problem):
        return plan
    turned = along_samples_plan(problem, request, memory, source, late=plan is None)
    if plan is None or turned is None:
        return plan or turned
    is_faster = turned.seconds < WORTH_TURNING * plan.seconds
    return turned if is_faster and plan.seconds > WORTH_SECONDS else plan


def _turns(problem: Problem) -> bool:
    """Tell whether samples are the smaller side."""
    return problem.n_samples < problem.n_features
