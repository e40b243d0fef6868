"""Plans of method 'cross-scatter': one pass for the products of samples with label features, p x l, and one to measure.

The singular vectors of the cross-scatter are the axes; a second pass finds the variances along them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ..units import format_shape
from .blocks import block_lengths, concurrencies
from .candidate_sizes import Cost, MethodSizes, Schedule, precision_of
from .decoding import read_boxes
from .device import paired_phase, vectors_phase
from .memory import (
    COMPONENT_COPIES,
    Phase,
    block_items,
    cross_scatter_bytes,
    paired_rows,
    runtime,
    scatter_block_bytes,
)
from .plan import Plan
from .rates import Work, products
from .request import Problem, Request

KINDS = ("supervised-pca",)
APPROXIMATE = False
PRODUCT_ROWS = 512  # samples multiplied at a time in the second pass


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield the only schedule: any cut of the samples, read ahead or not, the fastest first."""
    asked, most = request.n_components, problem.most_components
    k = min(asked, most) if isinstance(asked, int) else most
    sizes = CrossScatterSizes(problem=problem, request=request, k=k)
    groups = [
        [replace(sizes, block_rows=rows, product_rows=min(PRODUCT_ROWS, rows), ahead=ahead)]
        for rows in block_lengths(problem)
        for _, ahead in concurrencies(problem, rows, 1)
    ]
    yield Schedule("cross-scatter", groups)


@dataclass(frozen=True, kw_only=True)
class CrossScatterSizes(MethodSizes):
    """Sizes with which samples could be multiplied with label features; fields as in `Plan`."""

    @property
    def precision(self) -> str:
        """Precision of the products in the second pass; those with label features are always double."""
        problem = self.problem
        return precision_of(problem, self.request, 2 * problem.n_samples * problem.n_features * self.k)

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        shape = format_shape((self.problem.n_features, self.problem.target_width))
        why = f"products of samples with label features, {shape}, in one pass; variances along the axes in a second"
        return self.planned("cross-scatter", why, precision=self.precision, solver="dense")

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device in either pass."""
        problem, p, width = self.problem, self.problem.n_features, self.problem.target_width
        rows = min(self.block_rows, paired_rows(p, width, problem.machine.device))
        yield paired_phase(problem, rows, width)
        yield vectors_phase(problem, p, self.product_rows, self.k)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        problem, p, width, k = self.problem, self.problem.n_features, self.problem.target_width, self.k
        target = {f"target of {problem.n_samples} samples, as read and as label features": 16 * problem.n_samples}
        if width > problem.target_rank + 1 or width == problem.target_rank:  # numbers, not classes
            target = {f"target, {problem.n_samples} x {width} float64": 16 * problem.n_samples * width}
        blocks = block_items(problem, self.block_rows, 1, self.ahead)
        sums = cross_scatter_bytes(p, width, self.block_rows, problem.machine.device)
        shared = {} if self.request.workers == 1 else {"products of another worker, as sent and merged": 16 * p * width}
        yield Phase.of("pass", target, sums, shared, blocks, runtime())
        small = min(p, width)
        solving = {
            f"cross-scatter, {format_shape((p, width))} float64, and LAPACK's copies": 3 * 8 * p * width,
            "singular vectors": 8 * (p + width) * small + 3 * 8 * small * small,
        }
        yield Phase.of("solve", target, solving, runtime())
        components = {f"{k} components": COMPONENT_COPIES * 8 * p * k}
        yield Phase.of("variances", target, components, scatter_block_bytes(p, k, self.product_rows), blocks, runtime())

    @property
    def sent(self) -> tuple[int, int]:
        """The axes, which the second pass measures along; the cross-scatter of the first."""
        p = self.problem.n_features
        return 8 * p * self.k, 8 * p * (self.problem.target_width + 2)

    @cached_property
    def cost(self) -> Cost:
        """Cost of two reads, with products of label features and of axes."""
        problem, n, p, width = self.problem, self.problem.n_samples, self.problem.n_features, self.problem.target_width
        read = read_boxes(problem, self.block_rows, p).times(2)
        work = read.work(problem) + products(2.0 * n * p * width, "double")
        work += products(4.0 * n * p * self.k, self.precision)
        work += Work(centring=5.0 * n * p, solving=6.0 * p * float(min(p, width)) * width)
        return Cost(2, read.bytes, work)
