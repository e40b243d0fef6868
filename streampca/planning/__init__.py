"""Integers in; method, schedule, blocks, spans, passes and memory estimate out. Never touches data.

A `Problem` (how large, how stored) and a `Request` (what the user asked) give a `Plan`, a frozen value: the same
request on the same kind of problem gives the same plan everywhere. Every method and schedule that fits the budget is
priced by fixed rates (`streampca.planning.rates`), and the one that takes least time is chosen; the plan says why each
other lost. What does not fit is refused here, before anything is read, naming the largest share and a remedy that
works.

One file a method, with its candidates, memory by name, work and passes: `covariance`, `dual` and `randomized` (along
features or along samples), `em` for missing values, `cross_scatter`, `class_scatter` and `screening` for supervised
kinds, and `symmetric` for matrices of distances; they read by blocks of samples (`by_samples`) or by ranges of features
(`by_features`). `choose_method` takes the fastest that fits, `parts_and_merge` plans collections that several processes
analyse part by part, and `incremental` fits whose samples come in batches.
"""

from .budget import DENSE_FEATURES
from .choose_method import least_memory, make_plan
from .parts_and_merge import merge_plan, part_plan
from .plan import Plan
from .randomized import SAMPLE_RUNS, passes_beside, sample_rows
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
