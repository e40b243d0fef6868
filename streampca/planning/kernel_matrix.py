"""Plans of method 'kernel-matrix': the kernel between all samples from their inner products, n x n, for any p.

As in `dual`, samples are read by ranges of features. The matrix becomes that of the kernel where it lies, and is
solved; components of features are not made. All samples fitted, which new ones are compared with, are written to the
output box by box, or read from the source when the model is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ..errors import RequestError
from ..units import format_shape
from .budget import most_that_fits, solver_of
from .by_features import COPY_POOLS, SCHEDULES, against
from .component_chunks import POOLS, WRITE_COPIES
from .dual import OPEN_SHARES, Dual
from .landmarks import box_bytes
from .memory import MemoryEstimate, Phase, decoding_items, runtime, smallest_of, solve_memory
from .plan import Candidate, Cost, Plan
from .rates import Work, products, solve_work
from .request import Problem, Request

APPROXIMATE = False
KINDS = ("kernel-pca",)
KERNEL_COLUMNS = 64  # of the matrix made into kernel values at a time


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out; it is taken for samples that are not mapped before, and only there."""
    return ""


def candidates(problem: Problem, request: Request) -> Iterator[Candidate]:
    """Yield the fastest plan of each schedule."""
    _check_rule(request)
    memory, _ = problem.machine.budget(request.memory)
    for schedule in SCHEDULES:
        name, reason = f"kernel-matrix ({schedule})", against(schedule, request)
        if reason:
            yield Candidate(name, None, reason)
            continue
        for k in _components_counted_on(problem, request):
            fit = [each for sizes in _tried(problem, request, schedule, k) for each in sizes.that_fit(memory)]
            if fit:
                yield Candidate(name, min(fit, key=lambda sizes: sizes.seconds).plan(memory))
                break
        else:
            yield Candidate(name, None, str(_least(problem, request, schedule)))


def least(problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
    """Return the smallest budget that would do, and its memory estimate."""
    return smallest_of(_least(problem, request, name) for name in SCHEDULES if not against(name, request))


def _check_rule(request: Request) -> None:
    """Refuse rules for the number of components that are of samples of features."""
    if request.n_components in ("mp", "mle"):
        raise RequestError(
            f"n_components={request.n_components!r} is a rule for samples of features, and method 'kernel-matrix' "
            "compares samples with one another; ask for a number such as 10, or a fraction such as 0.9."
        )


def _least(problem: Problem, request: Request, schedule: str) -> MemoryEstimate:
    k = _components_counted_on(problem, request)[-1]
    tried = _tried(problem, request, schedule, k)
    return smallest_of(cut.memory_estimate for sizes in tried for cut in sizes.smallest())[1]


def _tried(problem: Problem, request: Request, schedule: str, k: int) -> Iterator[KernelMatrix]:
    """Yield sizes with room for a dense solve where Lanczos converges slowly, or without."""
    is_dense = solver_of(problem.n_samples, request, problem.most_components) == "dense"
    for dense in (True,) if is_dense else (True, False):
        yield KernelMatrix(problem=problem, request=request, schedule=schedule, k=k, stored=False, dense=dense)


def _components_counted_on(problem: Problem, request: Request) -> list[int]:
    """Components to reserve memory for: those asked for, or where k is open several counts, to be tried in turn."""
    wanted = request.counted_on(problem.most_components)
    if not isinstance(wanted, float):
        return [wanted or problem.most_components]
    return [max(1, problem.most_components // share) for share in (1, *OPEN_SHARES)] + [1]


@dataclass(frozen=True, kw_only=True)
class KernelMatrix(Dual):
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

    def plan(self, memory: int) -> Plan:
        """Return the plan with these sizes, and room for the components asked for, or all that there is memory for."""

        def fits(k: int) -> bool:
            return replace(self, k=k).fits(memory)

        room = max(self.k, most_that_fits(fits, self.problem.most_components)) if self.request.is_open else self.k
        side = format_shape((self.problem.n_samples,) * 2)
        why = f"the {side} kernel matrix fits the budget, with some features of all samples at a time; exact"
        dense_room = room if self.dense or self.solver == "dense" else 0
        return self.planned("kernel-matrix", why, solver=self.solver, room=room, dense_room=dense_room)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        yield from self.copy_phases()
        yield self._gram_phase()
        n, wanted = self.problem.n_samples, self.request.counted_on(self.problem.most_components)
        beside = {"centre of the samples": 8 * self.problem.n_features}
        columns = {"columns of the matrix, as they become kernel values": 3 * KERNEL_COLUMNS * 8 * n}
        for solver in (self.solver, "dense") if self.dense and self.solver != "dense" else (self.solver,):
            phase = solve_memory("kernel matrix", n, wanted, solver, self.k)
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
