"""Plans of method 'kernel-matrix': the kernel between all samples from their inner products, n x n, for any p.

As in `dual`, samples are read by ranges of features. The matrix becomes that of the kernel where it lies, and is
solved; components of features are not made. All samples fitted, which new ones are compared with, are written to the
output box by box, or read from the source when the model is applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from ..errors import RequestError
from ..units import format_shape
from .by_features import COPY_POOLS, SCHEDULES, reason_against_schedule
from .candidate_sizes import Cost, Schedule
from .component_chunks import POOLS, WRITE_COPIES
from .dual import OPEN_SHARES, DualSizes, components_counted_on
from .landmarks import box_bytes
from .memory import Phase, decoding_items, runtime, solve_memory
from .plan import Plan
from .rates import Work, products, solve_work
from .request import Problem, Request

APPROXIMATE = False
KINDS = ("kernel-pca",)
KERNEL_COLUMNS = 64  # of the matrix made into kernel values at a time


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield sweeps of the collection, and of a scratch copy.

    Raises
    ------
    RequestError
        For rules for the number of components that are of samples of features.
    """
    if request.n_components in ("mp", "mle"):
        raise RequestError(
            f"n_components={request.n_components!r} is a rule for samples of features, and method 'kernel-matrix' "
            "compares samples with one another; ask for a number such as 10, or a fraction such as 0.9."
        )
    for name in SCHEDULES:
        reason = reason_against_schedule(name, request)
        sizes = KernelMatrixSizes(problem=problem, request=request, schedule=name, k=0)
        groups = [
            [replace(sizes, k=k, dense=dense) for dense in sizes.dense_choices]
            for k in components_counted_on(problem, request, (1, *OPEN_SHARES))
        ]
        yield Schedule(f"kernel-matrix ({name})", [] if reason else groups, reason)


@dataclass(frozen=True, kw_only=True)
class KernelMatrixSizes(DualSizes):
    """Sizes of the method."""

    @cached_property
    def precision(self) -> str:
        """Precision of products: single only for 8-bit whole numbers, whose products are exact in it.

        Differences of samples have then all their digits in any case, and no error of the kernel needs a bound.
        """
        return "single" if self.problem.kind in "biu" and self.problem.itemsize == 1 else "double"

    @property
    def makes_components(self) -> bool:
        """False: components are of features of the kernel."""
        return False

    def runtime(self, more: int = 0) -> dict[str, int]:
        """Bytes that threads hold, see `SizesByFeatures.runtime`; chunks that were copied uncompressed retain some."""
        copied = self.schedule == "scratch" and not self.problem.encoded and self.problem.decode_bytes > 0
        return super().runtime(more + (COPY_POOLS if copied else 0))

    @classmethod
    def preferred(cls, fitting: Sequence[Self]) -> Self:
        """Return the fastest; among equals one with room for a dense solve."""
        return min(fitting, key=lambda sizes: sizes.seconds)

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        side = format_shape((self.problem.n_samples,) * 2)
        why = f"the {side} kernel matrix fits the budget, with some features of all samples at a time; exact"
        return self.solved("kernel-matrix", why)

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device while inner products are added up, the only pass there."""
        yield next(super().device_phases())

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        yield from self.copy_phases()
        yield self._gram_phase()
        n, count = self.problem.n_samples, self.request.counted_on(self.problem.most_components)
        beside = {"centre of the samples": 8 * self.problem.n_features}
        columns = {"columns of the matrix, as they become kernel values": 3 * KERNEL_COLUMNS * 8 * n}
        for solver in (self.solver, "dense") if self.dense and self.solver != "dense" else (self.solver,):
            phase = solve_memory("kernel matrix", n, count, solver, self.k)
            residuals = {"products of the matrix with eigenvectors": 8 * n * self.k}
            yield Phase.of(phase.name, dict(phase.items), residuals, columns, beside)
        yield self._model_phase()

    def _model_phase(self) -> Phase:
        """Memory while the model is made and written, with the samples that others are compared with."""
        n, p, k, problem = self.problem.n_samples, self.problem.n_features, self.k, self.problem
        chunk = (problem.chunk_samples, problem.chunk_features)
        box = max(box_bytes((n, p), chunk, problem.itemsize), problem.sample_bytes)
        items = {f"weights of {n} samples in {k} components": 3 * 8 * n * k, "centre of the samples": 2 * 8 * p}
        items["box of samples as read"] = 2 * box
        written = {"samples being written": WRITE_COPIES * box + POOLS} if self.request.output else {}
        return Phase.of("model", items, written, decoding_items(problem, 1), runtime())

    @property
    def alone(self) -> Work:
        """The solve, and reading and writing the samples that the model holds."""
        size = self.problem.n_samples * self.problem.row_bytes * self.request.output
        return self.reading(0)[0] + Work(reading=size) + solve_work(self.problem.n_samples, self.solver)

    @cached_property
    def cost(self) -> Cost:
        """Passes, bytes and work."""
        n, p = self.problem.n_samples, self.problem.n_features
        work, bytes_read, _ = self.reading(1)
        work += Work(centring=2.0 * n * p) + products(float(n) * n * p, self.precision) + solve_work(n, self.solver)
        if self.precision == "single":
            work += Work(adding=float(n) * n * -(-p // self.product_features))
        if self.request.output:
            bytes_read += n * self.problem.row_bytes
            work += Work(reading=n * self.problem.row_bytes, writing=n * p * self.problem.itemsize)
        return Cost(1 + (self.schedule == "scratch") + self.request.output, bytes_read, work)
