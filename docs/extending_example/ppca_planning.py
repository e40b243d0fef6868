"""Plans of method 'ppca': those of method 'covariance', under another name.

Inside the package it is streampca/planning/ppca.py, with the row ``"ppca": ".ppca"`` in `planning.registry.METHODS`.
"""

from dataclasses import replace

from streampca.planning import covariance
from streampca.planning.plan import Candidate

APPROXIMATE = covariance.APPROXIMATE
least = covariance.least


def reason_against(problem):
    """Return why "auto" leaves the method out: it makes models of another kind."""
    return "makes a model of kind 'ppca', and has to be asked for"


def candidates(problem, request):
    """Yield the plan of the scatter matrix if it fits."""
    for _, plan, reason in covariance.candidates(problem, request):
        yield Candidate("ppca", None if plan is None else replace(plan, method="ppca"), reason)
