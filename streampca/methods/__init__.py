"""One file a method: its statistic, its schedule, its solver, and what comes out.

A method is a function of a collection, a plan, an executor and a listener that returns a `Decomposition`; `fitting`
picks it from the table below and makes a model of what it returns.
"""

from collections.abc import Callable

from .covariance import decompose, fit_covariance
from .dual import fit_dual
from .faults import check_variance
from .protocol import Decomposition
from .randomized import fit_randomized

__all__ = ["METHODS", "Decomposition", "check_variance", "decompose"]

METHODS: dict[str, Callable[..., Decomposition]] = {
    "covariance": fit_covariance,
    "dual": fit_dual,
    "randomized": fit_randomized,
}
