"""The price of method 'randomized': several passes with a block of vectors, where neither p x p nor n x n fits.

Block Lanczos on the scatter matrix without forming it. Its pass is one product X^T (X Q); how many it takes is known
from images only, whose spectra fall slowly: with k and a quarter more columns, six or seven to 1e-4.
"""

from __future__ import annotations

from .. import machine
from ..bill import RUNTIME_BYTES, Bill, Phase, decoding_bytes
from ..blocks import block_rows, spans_of
from ..rates import Work, products
from ..request import Problem, Request
from ..units import MIB, format_shape
from .budget import MOST_BLOCK, precision_of, span_count
from .decoded import Reading, read_boxes
from .dual import can_copy
from .planned import Plan

PASSES = 6
BASIS_BLOCKS = 4  # a restart keeps one of them; with three it takes up to six passes more
OPEN_COMPONENTS = 100  # counted on where k is open
PIECE_ROWS = 256  # samples multiplied at a time
BLOCKS = (MOST_BLOCK, 4 * MIB, MIB, 1)  # bytes of a block as it is read; the first that fits


def randomized_plan(problem: Problem, request: Request, memory: int, source: str) -> Plan:
    """The plan with the largest blocks that keep within the budget, else the one with the smallest."""
    chunk = problem.chunk_samples
    row = problem.row_bytes + problem.prepared_bytes
    for limit in BLOCKS:
        rows = min(block_rows(row, chunk, max(limit, chunk * row) if limit > 1 else 1), problem.n_samples)
        plan = _with_blocks(problem, request, rows, memory, source)
        if plan.bill.total <= memory:
            break
    return plan


def columns(problem: Problem, request: Request) -> tuple[int, int]:
    """Components counted on, and columns of a block."""
    wanted = request.counted_on(problem.most_components)
    k = wanted if isinstance(wanted, int) else problem.most_components if wanted is None else OPEN_COMPONENTS
    k = min(k, problem.most_components)
    return k, min(k + max(10, k // 4), problem.most_components)


def _with_blocks(problem: Problem, request: Request, rows: int, memory: int, source: str) -> Plan:
    n, p = problem.n_samples, problem.n_features
    k, width = columns(problem, request)
    precision = precision_of(problem, request, n * p * width)
    copied, read, work = _reading(problem, request, rows)
    work += products(4.0 * n * p * width * PASSES, precision) + Work(centring=float(n) * p * PASSES)
    work += Work(double=8.0 * min(n, p) * width * width * BASIS_BLOCKS * PASSES)
    copy_bytes = n * p * problem.itemsize if copied else 0
    return Plan(
        problem=problem,
        request=request,
        method="randomized",
        why=f"{PASSES} passes with {width} vectors need neither {format_shape((p, p))} nor {format_shape((n, n))}",
        rejected=(),
        precision=precision,
        solver="lanczos",
        room=k,
        dense_room=0,
        block_rows=rows,
        product_rows=min(PIECE_ROWS, rows),
        spans=spans_of(n, span_count(request.workers), rows),
        passes=PASSES + 1 if copied else PASSES,
        bytes_read=read.bytes + PASSES * copy_bytes,
        bytes_written=copy_bytes,
        bill=Bill((_pass_bill(problem, request, precision, rows),)),
        memory=memory,
        budget_source=source,
        cores=machine.cores(),
        schedule="lanczos",
        block_features=p,
        workers=request.workers,
        work=work,
        seconds=work.seconds(machine.cores(), request.workers),
    )


def _reading(problem: Problem, request: Request, rows: int) -> tuple[bool, Reading, Work]:
    """Whether one scratch copy costs less than decoding again, and what is read of the collection."""
    cores = machine.cores()
    once = read_boxes(problem, rows, problem.n_features)
    plain = once.times(PASSES).work(encoded=problem.encoded, cores=cores)
    size = problem.n_samples * problem.n_features * problem.itemsize
    copying = once.work(encoded=problem.encoded, cores=cores) + Work(reading=PASSES * size, writing=size)
    if problem.encoded and can_copy(request) and copying.seconds(cores) < plain.seconds(cores):
        return True, once, copying
    return False, once.times(PASSES), plain


def _pass_bill(problem: Problem, request: Request, precision: str, rows: int) -> Phase:
    n, p = problem.n_samples, problem.n_features
    _, width = columns(problem, request)
    side, item = min(n, p), 8 if precision == "double" else 4
    basis = min(BASIS_BLOCKS * width, side)
    items = {
        f"basis, {format_shape((side, basis))} float64": 8 * side * basis,
        f"{width} vectors, and their product": (item + 2 * 8) * p * width,
        f"block of {rows} samples as read": rows * (problem.row_bytes + problem.prepared_bytes),
        "rows of it, centred, and their products": min(PIECE_ROWS, rows) * (p + width) * item,
        "mean and probes": (24 + 2 * 8 * 8) * p,
    }
    if request.workers > 1:
        items["product of another worker, merged"] = 8 * p * width
    if problem.decode_bytes or problem.scratch_bytes:
        items["storage being decoded"] = decoding_bytes(problem, rows)
    items["BLAS and Python"] = RUNTIME_BYTES
    return Phase("pass", tuple(items.items()))
