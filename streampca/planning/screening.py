"""Plans of method 'screening': scores of single features in one pass, and scatter matrices of the best in a second.

The matrices are of the features that are tried, one for each fold of the samples. The components and the prediction
error of every training set and number of kept features follow from them; no further pass is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from ..errors import RequestError
from .blocks import block_lengths, concurrencies
from .candidate_sizes import DENSE_FEATURES, Cost, MethodSizes, Schedule, most_that_fits, precision_of
from .decoding import read_boxes
from .device import among_phase
from .memory import COMPONENT_COPIES, GROUP_PIECE, Phase, block_items, dense_bytes, in_threads, runtime, scatter_bytes
from .plan import Plan
from .rates import Work, products, solve_work
from .request import Problem, Request

KINDS = ("supervised-principal-components",)
APPROXIMATE = False
PRODUCT_ROWS = 512  # samples of a fold multiplied at a time
LEAST_TRIED = 64  # features that there must be memory to try
STEP = 1.5  # from one number of kept features that is tried to the next
PATH = STEP**2 / (STEP**2 - 1)  # time of solving for all these numbers by Lanczos, in times of the largest
LANCZOS_FEATURES = 256  # from so many on, a few leading pairs are found by Lanczos: 10 times as fast at 2000


def solver_of(size: int, count: object) -> str:
    """Return the solver for the components of so many features, of which many are solved for in turn."""
    few = isinstance(count, int) and 8 * count <= size
    return "lanczos" if few and size >= LANCZOS_FEATURES else "dense"


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield the only schedule: any cut of the samples, read ahead or not, the fastest first.

    Raises
    ------
    RequestError
        If there are fewer samples than folds.
    """
    options = request.options
    if options.threshold == "auto" and options.n_folds > problem.n_samples:
        raise RequestError(
            f"n_folds={options.n_folds} exceeds the {problem.n_samples} samples; ask for at most as many, or give a "
            "threshold such as 0.3, which takes no folds."
        )
    sizes = ScreeningSizes(problem=problem, request=request, k=0, tried=0)
    sizes = sizes.trying(sizes.least_tried)
    candidates = [
        replace(sizes, block_rows=rows, product_rows=min(PRODUCT_ROWS, rows), ahead=ahead)
        for rows in block_lengths(problem)
        for _, ahead in concurrencies(problem, rows, 1)
    ]
    yield Schedule("screening", [candidates])


@dataclass(frozen=True, kw_only=True)
class ScreeningSizes(MethodSizes):
    """Sizes with which features could be screened; fields as in `Plan`.

    Attributes
    ----------
    tried : int
        Number of features of which there are scatter matrices.
    """

    tried: int

    @property
    def n_groups(self) -> int:
        """Number of scatter matrices: folds, or 1 where the threshold is given."""
        return self.request.options.n_folds if self.request.options.threshold == "auto" else 1

    @property
    def least_tried(self) -> int:
        """Features to try at least: those of every training set, and of all samples, may be others."""
        asked = self.request.n_components
        k = asked if isinstance(asked, int) else 1
        return min(self.problem.n_features, max(LEAST_TRIED, (self.n_groups + 1) * k))

    @property
    def most_tried(self) -> int:
        """Features to try at most: solving for more in each training set would take minutes."""
        p = self.problem.n_features
        return p if self.n_groups == 1 else min(p, max(DENSE_FEATURES, self.least_tried))

    def trying(self, count: int) -> Self:
        """Return the sizes with so many features tried."""
        asked, most = self.request.n_components, min(count, self.problem.most_components)
        return replace(self, tried=count, k=min(asked, most) if isinstance(asked, int) else most)

    def within(self, memory: int) -> Iterator[Self]:
        """Yield the sizes with as many features tried as the memory allows, if that is enough of them."""
        if self.fits(memory):
            yield self.trying(most_that_fits(lambda count: self.trying(count).fits(memory), self.most_tried))

    @property
    def rank(self) -> int:
        """Features tried, the most first."""
        return -self.tried

    @property
    def precision(self) -> str:
        """Precision of the products in the second pass; scores are always double."""
        return precision_of(self.problem, self.request, self.problem.n_samples * self.tried**2)

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        number = "all" if self.tried == self.problem.n_features else f"up to {self.tried} of the"
        folds = f" for each of {self.n_groups} folds" if self.n_groups > 1 else ""
        why = f"scores of single features in one pass, and the scatter matrix of {number} features{folds} in a second"
        solver = solver_of(self.tried, self.request.n_components)
        plan = self.planned("screening", why, precision=self.precision, solver=solver)
        return replace(plan, product_features=self.tried, dense_room=self.k)

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device in the second pass, with the matrices of all folds."""
        m, others = self.tried, self.n_groups - 1
        phase = among_phase("scatter matrix", self.problem, m, self.product_rows, self.precision)
        yield Phase.of(phase.name, dict(phase.items), {f"matrices of {others} other folds": 12 * others * m * m})

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        problem, p, m, groups = self.problem, self.problem.n_features, self.tried, self.n_groups
        blocks = block_items(problem, self.block_rows, 1, self.ahead)
        target = {f"target, weights and folds of {problem.n_samples} samples": 5 * 8 * problem.n_samples}
        moments = {f"moments of {p} features in {groups} folds" if groups > 1 else "moments": 3 * 8 * p * groups}
        piece = {"samples in float64, about their mean": 2 * 8 * max(GROUP_PIECE, p) + 6 * 8 * p}
        several = self.request.workers > 1
        sent = {"moments of another worker, as sent and merged": 2 * 3 * 8 * p * groups} if several else {}
        yield Phase.of("pass", target, moments, piece, sent, blocks, runtime())
        yield Phase.of("scores", target, moments, {"scores of features, and their order": 10 * 8 * p}, runtime())
        kept = {"scores and means": 3 * 8 * p, "moments of the features tried": 2 * 3 * 8 * m * groups}
        sums = in_threads(scatter_bytes(m, self.precision, self.product_rows), groups)
        copies = (m < p) + 0.5  # the features tried, and the samples of a fold
        chosen = {"features and samples chosen of a block": int(copies * self.block_rows * m * problem.itemsize)}
        merged = {"scatter matrices of another worker, merged": 8 * m * m * groups} if several else {}
        yield Phase.of("second pass", target, kept, sums, chosen, merged, blocks, runtime())
        solving = {
            f"scatter matrices, {groups} of {m} x {m} float64": 8 * m * m * groups,
            "those of a training set joined": 8 * m * m,
            "LAPACK eigensolver, and what it overwrites": 8 * m * m + dense_bytes(m, self.k),
            f"{self.k} components": COMPONENT_COPIES * 8 * p * self.k,
        }
        yield Phase.of("solve", target, kept, solving, runtime())

    @property
    def sent(self) -> tuple[int, int]:
        """No vectors; the scatter matrices of the second pass, or the moments of the first where these are more."""
        return 0, 8 * self.n_groups * max(self.tried**2, 3 * self.problem.n_features)

    @cached_property
    def cost(self) -> Cost:
        """Cost of two reads; no more features are assumed to be kept than are tried by cross-validation."""
        problem, n, p = self.problem, float(self.problem.n_samples), self.problem.n_features
        read = read_boxes(problem, self.block_rows, p).times(2)
        m = min(self.tried, DENSE_FEATURES)
        solves = PATH * self.n_groups + 1 if self.n_groups > 1 else 1
        solving = solve_work(m, solver_of(m, self.request.n_components)).solving
        work = read.work(problem) + products(n * m * m, self.precision)
        return Cost(2, read.bytes, work + Work(centring=8 * n * p, solving=solves * solving))
