"""Plans of method 'em': probabilistic PCA of collections in which values are missing, by a few passes of EM.

A pass regresses every feature on the scores of a few latent variables, over the samples in which it is observed (see
`streampca.accumulators.observed_regression`). The normal equations of all features are the largest array: where they do
not fit the budget, each step of the iteration takes several passes, each for a range of features.

There are more latent variables than components asked for. What the components leave would otherwise be modelled as
noise of equal variance in all features, which that of images is not: with 30 % of the Frey faces missing, the first
five components come within 5.1 degrees of the complete ones with 5 latent variables, 3.4 with 10 and 2.1 with 20.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from ..units import format_shape
from .blocks import block_lengths, concurrencies
from .candidate_sizes import Cost, MethodSizes, Schedule, precision_of
from .decoding import read_boxes, read_runs
from .device import regression_phase, start_phase
from .memory import (
    COMPONENT_COPIES,
    REGRESSED_FEATURES,
    SOLVED_FEATURES,
    Phase,
    block_items,
    decoding_items,
    in_threads,
    regression_bytes,
    runtime,
    thread_count,
    upper_entries,
)
from .plan import Plan
from .rates import Work, products
from .request import Problem, Request

EXTRA = 15  # latent variables beside the components
OPEN_VARIABLES = 55  # latent variables where the number of components depends on the data
STEPS = 4  # steps to a tol of 1e-4, with 30 % missing in blobs; 2 or 3 with 10 % at random
MOST_RANGES = 256
PRODUCT_ROWS = (256, 64)  # samples multiplied at a time
SAMPLE_ROWS = 6  # rows of the start sample for every latent variable ...
SAMPLE_RUNS = 8  # ... and the runs they are read in

APPROXIMATE = True
KINDS = ("pca",)


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield the only schedule: any cut of features and samples, in threads or not, read ahead or not."""
    k, width = latent_variables(problem, request)
    p = problem.n_features
    precision = precision_of(problem, request, 2 * problem.n_samples * p * upper_entries(width + 1))
    several = thread_count(problem.machine.cores) if precision == "single" and request.workers == 1 else 1
    most = min(request.max_passes or MOST_RANGES, MOST_RANGES, -(-p // min(p, REGRESSED_FEATURES)))
    ranges = sorted({min(most, 2**power) for power in range(9)})
    sizes = RegressionSizes(
        problem=problem, request=request, k=k, width=width, precision=precision, schedule="em"
    )  # fmt: skip
    candidates = [
        replace(
            sizes, parts=parts, product_features=-(-p // parts), block_rows=rows, product_rows=min(most_rows, rows),
            threads=threads, ahead=ahead,
        )
        for parts, rows, most_rows in product(ranges, block_lengths(problem), PRODUCT_ROWS)
        for threads, ahead in concurrencies(problem, rows, several)
    ]  # fmt: skip
    yield Schedule("em", [candidates])


def latent_variables(problem: Problem, request: Request) -> tuple[int, int]:
    """Return the most components there is room for, and the number of latent variables."""
    most = problem.most_components
    asked = request.counted_on(most)
    if isinstance(asked, int):
        k = min(asked, most)
        return k, max(k, min(k + EXTRA, most // 2))
    width = max(1, min(OPEN_VARIABLES, most // 2))
    return width, width


def sample_rows(n_samples: int, width: int) -> int:
    """Return the number of samples that the iteration starts from."""
    return min(n_samples, SAMPLE_ROWS * width)


@dataclass(frozen=True, kw_only=True)
class RegressionSizes(MethodSizes):
    """Sizes with which features could be regressed on latent variables; fields as in `Plan`.

    ``parts`` is the number of ranges of features, a pass each.
    """

    width: int
    precision: str
    parts: int = 1

    @property
    def rank(self) -> tuple[float, ...]:
        """Passes of a step, then predicted time; among equals more threads, then reading ahead."""
        return self.parts, self.seconds, -self.threads, -self.ahead

    @property
    def itemsize(self) -> int:
        """Bytes of a number that is multiplied."""
        return 8 if self.precision == "double" else 4

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        why = f"values may be missing; probabilistic PCA with {self.width} latent variables"
        if self.parts > 1:
            why += f", {self.parts} passes a step, as the normal equations of all features do not fit"
        plan = self.planned("em", why, precision=self.precision, solver="dense")
        return replace(plan, width=self.width, columns=self.width)

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device at the start, and in a pass."""
        rows = sample_rows(self.problem.n_samples, self.width)
        yield start_phase(self.problem, rows, self.width)
        yield regression_phase(self.problem, self.product_features, self.width, self.product_rows, self.itemsize)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        problem, p, width, threads = self.problem, self.problem.n_features, self.width, self.threads
        state = {f"latent vectors and the next, {format_shape((p, width))} float64": 2 * 8 * p * width + 4 * 8 * p}
        rows = sample_rows(problem.n_samples, width)
        start = {
            f"sample of {rows} rows, centred": rows * p * (self.itemsize + 1),
            "start vectors, made orthonormal": 2 * 8 * p * width,
            f"Gram matrix of the sample, {format_shape((rows, rows))} float64, solved": 3 * 8 * rows * rows,
            "rows of it as read": -(-rows // SAMPLE_RUNS) * problem.sample_bytes,
        }
        yield Phase.of("start", state, start, decoding_items(problem, -(-rows // SAMPLE_RUNS)), runtime())
        regressing = regression_bytes(p, self.product_features, width, self.product_rows, self.itemsize)
        equations = 8 * self.product_features * (upper_entries(width + 1) + width + 1)
        shared = {"the vectors, as handed to a task": 8 * p * width}
        if self.request.workers > 1:
            shared["normal equations of another worker, as sent and merged"] = 2 * equations
        blocks = block_items(problem, self.block_rows, threads, self.ahead)
        yield Phase.of("pass", state, in_threads(regressing, threads), shared, blocks, runtime(threads))
        solving = {
            "normal equations": equations,
            "those of a tile, being solved": 4 * 8 * min(p, SOLVED_FEATURES) * (width + 1) ** 2,
            "vectors made orthonormal": 3 * 8 * p * width,
        }
        yield Phase.of("step", state, solving, runtime())
        yield Phase.of("components", state, {f"{self.k} components": COMPONENT_COPIES * 8 * p * self.k}, runtime())

    @property
    def sent(self) -> tuple[int, int]:
        """The latent vectors, with variances and means; the normal equations."""
        p, width = self.problem.n_features, self.width
        return 8 * p * (width + 2), 8 * self.product_features * (upper_entries(width + 1) + width + 1)

    @property
    def alone(self) -> Work:
        """Solving for the features."""
        return Work(solving=self.cost.passes * self.problem.n_features / self.parts * float(self.width) ** 3)

    @cached_property
    def cost(self) -> Cost:
        """Cost of the passes' products, of a small inverse for each sample, and of solving for the features."""
        problem, n, p, width = self.problem, self.problem.n_samples, self.problem.n_features, self.width
        passes = min(STEPS * self.parts, self.request.max_passes or math.inf)
        read = read_boxes(problem, self.block_rows, p).times(int(passes))
        read = read.plus(read_runs(problem, sample_rows(n, width), SAMPLE_RUNS))
        scores = 2.0 * n * p * (upper_entries(width) + width)
        equations = 2.0 * n * self.product_features * (upper_entries(width + 1) + width + 1)
        pieces = n / self.product_rows
        adding = pieces * (self.product_features + p) * upper_entries(width + 1)
        work = read.work(problem) + products(passes * (scores + equations), self.precision)
        work += Work(centring=passes * 4.0 * n * p, adding=passes * adding)
        work += Work(solving=passes * (2.0 * n + p / self.parts) * float(width) ** 3)
        return Cost(int(passes), read.bytes, work)
