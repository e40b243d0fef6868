"""Plans of method 'svd': all samples in memory at once, and their singular value decomposition."""

from __future__ import annotations

from .blocks import Span, block_rows
from .decoding import read_boxes
from .memory import RUNTIME_BYTES, MemoryEstimate, Phase, decoding_bytes, smallest_of
from .plan import Candidate, Plan
from .rates import Work
from .request import Problem, Request

KINDS = ("pca",)
APPROXIMATE = False  # it finds every component, exactly
BLOCK_SHARE = 16  # of the budget for a block


def reason_against(problem: Problem) -> str:
    """Return why "auto" leaves the method out: never, it is compared with the others by memory and time."""
    return ""


def candidates(problem: Problem, request: Request) -> list[Candidate]:
    """Return the plan if it fits the budget, else why not."""
    plan = plan_svd(problem, request)
    return [Candidate("svd", plan) if plan.fits else Candidate("svd", None, str(plan.memory_estimate))]


def least(problem: Problem, request: Request) -> tuple[int, MemoryEstimate]:
    """Return the smallest budget that would do, in bytes, and a memory estimate to quote."""
    return smallest_of([estimate(problem, 1)])


def estimate(problem: Problem, rows: int) -> MemoryEstimate:
    """Return what is in memory while samples are read in blocks of so many rows, and while they are decomposed."""
    n, p = problem.n_samples, problem.n_features
    smaller, runtime = min(n, p), ("BLAS and Python", RUNTIME_BYTES)
    samples = ("samples as float64, and a copy", 2 * 8 * n * p)
    block = (f"block of {rows} samples as read", rows * (problem.row_bytes + problem.prepared_bytes))
    vectors = ("singular vectors, and the components of them", 8 * smaller * (n + 3 * p))
    lapack = ("LAPACK's copy and workspace", 8 * n * p + 8 * 7 * smaller**2)
    reading = Phase("pass", (samples, block, ("storage being decoded", decoding_bytes(problem, rows)), runtime))
    return MemoryEstimate((reading, Phase("decomposition", (samples, vectors, lapack, runtime))))


def plan_svd(problem: Problem, request: Request) -> Plan:
    """Return the plan, whether it fits the budget or not."""
    n, p = problem.n_samples, problem.n_features
    memory, _ = problem.machine.budget(request.memory)
    rows = min(n, block_rows(problem.row_bytes, problem.chunk_samples, memory // BLOCK_SHARE))
    read = read_boxes(problem, rows, p)
    work = read.work(problem) + Work(centring=n * p, solving=6.0 * n * p * min(n, p))
    return Plan(
        problem=problem,
        request=request,
        method="svd",
        why="all samples fit in memory; exact, in one pass",
        precision="double",
        solver="dense",
        room=problem.most_components,
        dense_room=problem.most_components,
        block_rows=rows,
        product_rows=rows,
        spans=(Span(0, n),),
        passes=1,
        bytes_read=read.bytes,
        memory_estimate=estimate(problem, rows),
        block_features=p,
        work=work,
    )
