"""Integers in; method, schedule, blocks, spans, passes and memory estimate out. Never touches data.

Every planner speaks one idiom. It offers candidates: values of a subclass of `candidate_sizes.Sizes`, which name the
memory of each phase (`phases`), for methods also the passes and the work (`cost`), and make a plan (`plan`).
Candidates come in groups, the preferred first: `search` takes the best of the first group of which any fit, by their
`rank`, which for methods is the time at fixed rates (`rates`). A family of candidates (`SizesByBudget`, ranges of
features) is cut to the budget first. Where nothing fits, `refusal` quotes the smallest sizes, before anything is read,
with their largest share and a remedy that works.

A `Problem` (how large, how stored) and a `Request` (kind of model and run) give the same plan everywhere. One file a
method, with a function `schedules`; `by_features` has what those share that read by ranges of features.
`choose_method` takes the fastest of all methods, and the plan says why the others lost. `incremental` and
`parts_and_merge` plan statistics that are added up; `neighbors`, `hsic`, `embedding`, `transform`,
`transform_pieces`, `copy_plan`, `learning` and `landmarks` plan what is no fit, each with one function `plan_...`
over its candidates.
"""

from .candidate_sizes import DENSE_FEATURES
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
