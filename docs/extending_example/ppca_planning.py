"""Plans of method 'ppca': those of method 'covariance', under another name.

Inside the package it is streampca/planning/ppca.py, with the rows ``"ppca": ".ppca"`` in
`planning.registry.METHODS` and ``"ppca": ""`` in `KINDS` there: it takes no target.
"""

from dataclasses import replace

from streampca.planning import covariance
from streampca.planning.plan import Candidate

KINDS = ("ppca",)
APPROXIMATE = covariance.APPROXIMATE
least = covariance.least


def reason_against(problem):
    """Return why "auto" leaves the method out of fits of its kind; never."""
    return ""


def candidates(problem, request):
    """Yield the plan of the scatter matrix if it fits."""
    for _, plan, reason in covariance.candidates(problem, request):
        yield Candidate("ppca", None if plan is None else replace(plan, method="ppca"), reason)
