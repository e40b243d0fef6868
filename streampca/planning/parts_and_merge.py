"""Plans of parts of a collection that processes analyse apart, and of merging what they found.

A part is planned as the whole is: what is merged must have been multiplied alike. Only method 'covariance' has a
statistic that adds up over samples and says nothing else of them; inner products of samples from two parts are in
neither.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ..errors import RequestError
from ..kinds.run import Part
from ..units import MIB, format_shape
from .blocks import span_of_part, spans_of
from .candidate_sizes import search_or_refuse
from .choose_method import make_plan
from .covariance import CovarianceSizes
from .memory import Phase, runtime
from .plan import Plan
from .rates import Work
from .request import Problem, Request

PIECES_BYTES = 28 * MIB  # of a stored statistic: chunks as read, decoded, and as rows (23 MiB measured at p = 3000)


def part_plan(problem: Problem, request: Request, part: Part) -> Plan:
    """Plan one part of the collection that `problem` is of: as the whole, but for the samples that are read.

    Raises
    ------
    RequestError
        If the method asked for has nothing to merge, or there are more parts than pairs of samples.
    BudgetError
        If p x p does not fit.
    """
    n, rows = problem.n_samples, span_of_part(part, problem.n_samples)
    if request.missing == "em" and problem.kind == "f":
        raise RequestError(
            "missing='em' takes several passes over the whole collection, and leaves no sum that parts could be merged "
            "from; leave --part (part) out, or use missing 'drop-samples' or 'drop-features'."
        )
    if request.kind != "pca":
        raise RequestError(
            f"models of kind {request.kind!r} are not merged from parts of a collection; leave --part (part) out."
        )
    if request.method not in ("auto", "covariance"):
        raise RequestError(
            f"method {request.method!r} leaves no sum that parts of a collection could be merged from; fit parts by "
            "method 'covariance' (or 'auto'), or the whole collection without --part (part)."
        )
    if n < 2 * part.of:
        raise RequestError(
            f"{n} samples cut into {part.of} parts may leave a part with fewer than 2, and variance needs two; use at "
            f"most {n // 2} parts."
        )
    whole = make_plan(problem, request.asking(method="covariance"))
    work = _share_of(whole.work, rows.size / n)
    shared = whole.shared and whole.shared._replace(work=_share_of(whole.shared.work, rows.size / n))
    return replace(
        whole,
        problem=replace(problem, n_samples=rows.size),
        request=request,
        spans=spans_of(rows.stop, len(whole.spans), whole.block_rows, start=rows.start),
        bytes_read=round(whole.bytes_read * rows.size / n),
        work=replace(work, solving=whole.work.solving),  # which takes as much as for all samples
        shared=shared,
    )


def _share_of(work: Work, share: float) -> Work:
    return Work(**{count.name: share * getattr(work, count.name) for count in fields(work)})


def merge_plan(problem: Problem, request: Request) -> Plan:
    """Plan the merging of scatter matrices, one after the other, and the solve for the whole collection.

    Raises
    ------
    BudgetError
        If it does not fit the budget.
    """
    candidates = MergeSizes(problem=problem, request=request).concurrent()
    return search_or_refuse("merging", candidates, problem.machine.budget(request.memory)).plan()


@dataclass(frozen=True, kw_only=True)
class MergeSizes(CovarianceSizes):
    """Sizes of the solve, after merging in place of a pass."""

    def pass_phase(self) -> Phase:
        """Memory while a part is merged."""
        p = self.problem.n_features
        matrix = f"{format_shape((p, p))} float64"
        merging = {
            f"scatter matrix, {matrix}": 8 * p * p,
            f"scatter matrix of a part, {matrix}": 8 * p * p,
            "pieces of it being read": min(PIECES_BYTES, 3 * 8 * p * p),
            "means and probes": 2 * (3 * 8 + 3) * 8 * p,
        }
        return Phase.of("merge", merging, runtime())
