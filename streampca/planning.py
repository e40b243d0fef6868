"""Integers in; method, blocks, spans, passes and memory bill out. Never touches data.

A `Problem` (how large, how stored) and a `Request` (what the user asked) give a `Plan`, a frozen value: the same
request on the same kind of problem gives the same plan everywhere. What does not fit the budget is refused here, before
anything is read, naming the largest share and a remedy that works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from . import machine
from .bill import RUNTIME_BYTES, Bill, Phase, component_room, pass_bill, solve_bill
from .blocks import Span, block_rows, spans_of
from .errors import BudgetError, RequestError
from .prepare import Prepared
from .readers import Collection
from .request import Problem, Request
from .units import MIB, budget_size, format_bytes, format_shape

MOST_BLOCK = 24 * MIB  # of a block: glibc keeps the pages of up to 32 MiB for the next one (benchmarks/choices.py)
LEAST_CHUNK = 4 * MIB  # of an output
BLOCK_SHARES = (8, 16, 32, 64, 128)  # a block takes at most this fraction of the budget: the first that fits ...
CHUNK_SHARE = 4  # ... or this one, when that saves decoding a storage chunk several times
MOST_PRODUCT_ROWS = 2048  # adding up p x p then costs little beside making it (benchmarks/limits.py --phases)
LEAST_PRODUCT_ROWS = 64
SMALL_PRODUCT = 2 * 10**9  # multiplications that double precision takes a few hundredths of a second for
DENSE_FEATURES = 2048  # below, LAPACK's whole spectrum costs less than a second (benchmarks/choices.py)


@dataclass(frozen=True)
class Plan:
    """What will be done; printable, comparable, storable.

    Attributes
    ----------
    method, why : str
        The method and the reason for it.
    rejected : tuple of (method, reason)
        Why not the others.
    precision : {"single", "double"}
        Of products.
    solver : {"dense", "lanczos"}
        For the p x p problem.
    room, dense_room : int
        Most components there is memory for, by the solver and by a dense one, which takes over from Lanczos where it
        converges slowly; 0 where a dense one does not fit.
    block_rows, product_rows : int
        Samples in memory at once; samples multiplied at a time.
    spans : tuple of Span
        What each task folds.
    passes : int
        Reads of all the data.
    bytes_read : int
        Decoded bytes over all passes, chunks decoded more than once counted so.
    bytes_written : int
        Of scratch copies; the model itself is not counted.
    bill : Bill
        Memory.
    memory : int
        Budget, bytes.
    budget_source : str
        Where the budget comes from.
    cores : int
        Cores used.
    """

    problem: Problem
    request: Request
    method: str
    why: str
    rejected: tuple[tuple[str, str], ...]
    precision: str
    solver: str
    room: int
    dense_room: int
    block_rows: int
    product_rows: int
    spans: tuple[Span, ...]
    passes: int
    bytes_read: int
    bytes_written: int
    bill: Bill
    memory: int
    budget_source: str = field(compare=False)
    cores: int = field(compare=False)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, equal to itself when read back from JSON: lists, not tuples."""
        data = asdict(self)
        data["problem"]["sample_shape"] = list(self.problem.sample_shape)
        data["rejected"] = [list(pair) for pair in self.rejected]
        data["bill"] = {phase.name: dict(phase.items) for phase in self.bill.phases}
        data["bill_total"] = self.bill.total
        data["spans"] = [list(span) for span in self.spans]
        return data

    def __str__(self) -> str:
        return "\n".join(f"{name:<12}{text}" if name else f"{'':<12}{text}" for name, text in self.lines())

    def lines(self) -> Iterator[tuple[str, str]]:
        """The plan in words, as (heading, text) pairs."""
        p = self.problem
        size = p.n_samples * p.n_features * p.itemsize
        yield "collection", f"{p.n_samples} samples of {format_shape(p.sample_shape)}, {format_bytes(size)}"
        yield "method", f"{self.method}: {self.why}"
        for name, reason in self.rejected:
            yield "", f"not {name}: {reason}"
        passes = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        yield "reading", f"{passes}, {format_bytes(self.bytes_read)} in blocks of {self.block_rows} samples"
        again = self.bytes_read / (self.passes * p.n_samples * p.row_bytes)
        if again > 1.5:
            yield "", f"storage chunks do not fit a block: each is decoded about {again:.0f} times"
        yield "computing", f"{self.precision} precision products on {self.cores} cores, {self.solver} eigensolver"
        yield "memory", f"{format_bytes(self.bill.total)} of {format_bytes(self.memory)} allowed ({self.budget_source})"
        for name, count in self.bill.largest.items:
            yield "", f"{format_bytes(count):>9}  {name}"


def problem_of(collection: Collection) -> Problem:
    """What planning needs to know of a collection."""
    own = (collection.prepared_bytes, collection.scratch_bytes) if isinstance(collection, Prepared) else (0, 0)
    return Problem(
        n_samples=collection.n_samples,
        n_features=collection.n_features,
        sample_shape=collection.sample_shape,
        row_bytes=collection.row_bytes,
        prepared_bytes=own[0],
        itemsize=collection.dtype.itemsize,
        kind=collection.dtype.kind,
        chunk_samples=collection.chunks.samples,
        decode_bytes=collection.decode_bytes,
        scratch_bytes=own[1],
    )


def make_plan(problem: Problem, request: Request) -> Plan:
    """Decide how a request is carried out on a problem.

    Parameters
    ----------
    problem : Problem
        The collection's size and storage.
    request : Request
        What was asked.

    Returns
    -------
    Plan

    Raises
    ------
    RequestError
        If the request cannot be met on a collection of this size by any budget.
    BudgetError
        If nothing fits the budget; the message says which memory would do.
    """
    if request.method in ("dual", "randomized"):
        raise RequestError(f"method {request.method!r} is not part of this version; use 'covariance' or 'auto'.")
    if isinstance(request.n_components, int) and request.n_components > problem.most_components:
        raise RequestError(
            f"n_components={request.n_components} exceeds {problem.most_components}, the most that {problem.n_samples} "
            f"samples of {problem.n_features} features have (min(n_samples - 1, n_features)); ask for at most that."
        )
    if request.n_components == "mle" and problem.n_samples < problem.n_features:
        raise RequestError(
            f"n_components='mle' needs at least as many samples as features, and there are {problem.n_samples} samples "
            f"of {problem.n_features} features; use 'elbow', 'mp' or a fraction such as 0.95."
        )
    memory, source = budget_of(request.memory)
    plan = _first_that_fits(problem, request, memory, source)
    if plan.bill.total > memory:
        raise BudgetError(_refusal(plan, _least_memory(problem, request)))
    return plan


def budget_of(asked: int | None) -> tuple[int, str]:
    """Bytes allowed, as asked or half of what the machine has, and where that comes from."""
    if asked is not None:
        return asked, "as asked"
    limit, what = machine.memory_limit()
    return limit // 2, f"half of {what}"


def _first_that_fits(problem: Problem, request: Request, memory: int, source: str) -> Plan:
    """The plan with the largest blocks that keep within the budget, else the one with the smallest."""
    plans = (_covariance_plan(problem, request, memory, source, share) for share in BLOCK_SHARES)
    last = None
    for last in plans:
        if last.bill.total <= memory:
            break
    return cast("Plan", last)


def _covariance_plan(problem: Problem, request: Request, memory: int, source: str, share: int) -> Plan:
    n, p = problem.n_samples, problem.n_features
    precision = _precision(problem, request)
    rows = _rows_in_memory(problem, memory, share)
    product_rows = _product_rows(p, 8 if precision == "double" else 4, rows, memory // share)
    solver = "dense" if request.n_components == "mle" else _solver(p, request.counted_on(problem.most_components))
    decoded_again = max(1.0, problem.chunk_samples / rows) if rows < n else 1.0
    room = component_room(problem, request, solver, memory)
    dense_room = _dense_room(problem, request, solver, room, memory)
    phases = [pass_bill(problem, precision, rows, product_rows), solve_bill(problem, request, solver, room)]
    if dense_room and solver != "dense":
        phases.append(solve_bill(problem, request, "dense", min(room, dense_room)))
    bill = Bill(tuple(phases))
    side = format_shape((p, p))
    why = f"the {side} scatter matrix fits the budget; exact, in one pass"
    return Plan(
        problem=problem,
        request=request,
        method="covariance",
        why=why,
        rejected=_rejected(problem),
        precision=precision,
        solver=solver,
        room=room,
        dense_room=dense_room,
        block_rows=rows,
        product_rows=product_rows,
        spans=spans_of(n, 1, rows),
        passes=1,
        bytes_read=int(n * problem.row_bytes * decoded_again),
        bytes_written=0,
        bill=bill,
        memory=memory,
        budget_source=source,
        cores=machine.cores(),
    )


def _precision(problem: Problem, request: Request) -> str:
    if request.precision != "auto":
        return request.precision
    small = problem.n_samples * problem.n_features**2 <= SMALL_PRODUCT
    return "single" if problem.is_narrow and not small else "double"


def _rows_in_memory(problem: Problem, memory: int, share: int) -> int:
    """Samples to a block: within its share of the budget, whole storage chunks where that is affordable."""
    row_bytes = problem.row_bytes + problem.prepared_bytes
    chunk, limit = problem.chunk_samples * row_bytes, memory // share
    if chunk <= limit:
        limit = max(chunk, min(limit, MOST_BLOCK))
    rows = block_rows(row_bytes, problem.chunk_samples, limit)
    if rows < problem.chunk_samples and chunk <= memory // max(share // 2, CHUNK_SHARE):
        rows = problem.chunk_samples
    return min(rows, problem.n_samples)


def _product_rows(p: int, itemsize: int, rows: int, share_bytes: int) -> int:
    most = max(LEAST_PRODUCT_ROWS, share_bytes // (p * itemsize))
    return max(1, min(MOST_PRODUCT_ROWS, most, max(rows, LEAST_PRODUCT_ROWS)))


def _dense_room(problem: Problem, request: Request, solver: str, room: int, memory: int) -> int:
    """Components a dense solve has memory for, 0 where it does not fit beside as many as the bill counts on."""
    if solver == "dense":
        return room
    fits = solve_bill(problem, request, "dense", room).total <= memory
    return component_room(problem, request, "dense", memory) if fits else 0


def _solver(p: int, wanted: int | float | None) -> str:
    if p <= DENSE_FEATURES or wanted is None:
        return "dense"
    return "lanczos" if isinstance(wanted, float) or wanted <= p // 8 else "dense"


def _rejected(problem: Problem) -> tuple[tuple[str, str], ...]:
    n, p = problem.n_samples, problem.n_features
    dual = "not part of this version"
    if n >= p:
        dual = f"{n} samples are no fewer than {p} features, so n x n is no smaller a matrix"
    return (("dual", dual), ("randomized", "approximate and several passes, where one exact pass fits"))


def _least_memory(problem: Problem, request: Request) -> int:
    """Smallest budget, in whole MiB, that `make_plan` accepts."""
    return MIB * _smallest(
        lambda mib: _first_that_fits(problem, request, mib * MIB, "").bill.total <= mib * MIB,
    )


def _smallest(accepts: Callable[[int], bool]) -> int:
    low, high = 0, 1
    while not accepts(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepts(middle) else (middle, high)
    return high


def _refusal(plan: Plan, least: int) -> str:
    name, share = max(plan.bill.largest.items, key=lambda item: item[1])
    smaller = " or make p smaller (resize, bin, crop or mask)" if plan.problem.n_features > 64 else ""
    return (
        f"method 'covariance' needs {format_bytes(plan.bill.total)} and memory allows {format_bytes(plan.memory)} "
        f"({plan.budget_source}); the largest share is the {name} ({format_bytes(share)}). "
        f"Set memory to at least {budget_size(least)}{smaller}."
    )


@dataclass(frozen=True)
class Application:
    """How a model is applied to a collection block by block.

    Attributes
    ----------
    block_rows : int
        Samples in memory at once, a whole multiple of `chunk_rows`.
    chunk_rows : int
        Rows to a chunk of the output.
    bill : Phase
        Memory.
    """

    block_rows: int
    chunk_rows: int
    bill: Phase


def plan_application(
    *,
    problem: Problem,
    n_features: int,
    n_components: int,
    component_itemsize: int,
    out_bytes: int,
    memory: int | None,
) -> Application:
    """Choose the blocks in which a model is applied.

    Parameters
    ----------
    problem : Problem
        The collection, of images or of scores.
    n_features, n_components, component_itemsize : int
        p and k of the model, and bytes of one value of a component.
    out_bytes : int
        Bytes of one sample's result.
    memory : int or None
        Budget in bytes; the default as for `Request`.

    Raises
    ------
    BudgetError
        If not even single samples fit.
    """
    budget, source = budget_of(memory)
    p = n_features
    model = 3 * p * n_components * component_itemsize + 4 * 8 * p  # as loaded, as rows, and turned for the product
    row = 2 * (problem.row_bytes + problem.prepared_bytes) + 2 * p * max(4, component_itemsize) + 2 * out_bytes
    beside = problem.decode_bytes + problem.scratch_bytes
    left = budget - model - RUNTIME_BYTES - beside
    rows = min(left // row, MOST_BLOCK // row, problem.n_samples)
    if rows < 1:
        least = budget - left + row
        raise BudgetError(
            f"applying {n_components} components of {p} features needs {format_bytes(least)} and memory "
            f"allows {format_bytes(budget)} ({source}). Set memory to at least {budget_size(least)}."
        )
    chunk_rows = max(1, min(rows, LEAST_CHUNK // max(1, out_bytes)))
    rows = rows // chunk_rows * chunk_rows
    items = (("components and mean", model), (f"block of {rows} samples, stored to result", rows * row))
    rest = (("storage being decoded", beside), ("BLAS and Python", RUNTIME_BYTES))
    return Application(rows, chunk_rows, Phase("apply", items + rest))
