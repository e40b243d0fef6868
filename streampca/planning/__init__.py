"""Integers in; method, schedule, blocks, spans, passes and memory estimate out. Never touches data.

A `Problem` (how large, how stored) and a `Request` (what the user asked) give a `Plan`, a frozen value: the same
request on the same kind of problem gives the same plan everywhere. Every method and schedule that fits the budget is
priced by fixed rates (`streampca.planning.rates`), and the one that takes least time is chosen; the plan says why each
other lost. What does not fit is refused here, before anything is read, naming the largest share and a remedy that
works.

One file a method: `covariance`, `dual` (with `dual_memory`, its memory, and `dual_cost`, its time), `randomized` (with
`randomized_memory`, its memory), `along_samples` (the same method with vectors as long as there are samples) and
`sides` (which of the two); and `parts`, for collections that several processes analyse part by part.
"""

from .budget import DENSE_FEATURES
from .parts import merge_plan, part_plan
from .plan import Plan
from .randomized_features import sample_rows
from .randomized_features_memory import SAMPLE_RUNS
from .randomized_samples import passes_beside
from .search import least_memory, make_plan
from .transform import Application, plan_application

__all__ = [
    "DENSE_FEATURES",
    "SAMPLE_RUNS",
    "Application",
    "Plan",
    "least_memory",
    "make_plan",
    "merge_plan",
    "part_plan",
    "passes_beside",
    "plan_application",
    "sample_rows",
]
