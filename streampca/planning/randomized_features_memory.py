"""What method 'randomized' holds in memory, phase by phase: a basis of vectors as long as a sample, and blocks of them.

Nothing is p x p or n x n. On a cluster the basis is counted for a worker too, which has none of its own: the process
that has it may be one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..units import format_shape
from .memory import COMPONENT_COPIES, RUNTIME_BYTES, THREAD_BYTES, MemoryEstimate, Phase, decoding_bytes
from .request import Problem
from .sizes import CHECK_ROWS, basis_bytes, scatter_block_bytes, step_bytes

SAMPLE_BLOCKS = 6  # rows of the start sample for every column of the block that is made of them
SAMPLE_RUNS = 8  # that they are read in, or more where storage chunks are short
CHECK_COPIES = 2  # as float64, and centred, while probes are checked in the first pass
GRAM_COPIES = 3  # of the sample: itself, LAPACK's copy, and its vectors and workspace
TWICE = 2 * THREAD_BYTES  # packing buffers of two libraries of BLAS: passes use the one, steps the other
MEAN_BYTES = 8 * (3 + 5 * 8)  # a feature: means and the products of probes, of which eight are kept to the end


@dataclass(frozen=True)
class Sizes:
    """How vectors and samples are cut; fields as in `Plan`."""

    width: int
    columns: int
    block_rows: int
    product_rows: int
    ahead: int = 0
    threads: int = 1


def sample_rows(n: int, width: int) -> int:
    """Samples that the start block of `width` columns is made from, of n."""
    return min(n, SAMPLE_BLOCKS * width)


def randomized_memory(problem: Problem, sizes: Sizes, k: int, *, workers: int = 1) -> MemoryEstimate:
    """Memory of all phases, for k components."""
    return MemoryEstimate((*lasting_phases(problem, sizes, k), pass_phase(problem, sizes, workers=workers)))


def lasting_phases(problem: Problem, sizes: Sizes, k: int) -> tuple[Phase, ...]:
    """Memory of the phases that blocks of samples have no part in."""
    return (_start_phase(problem, sizes), _step_phase(problem, sizes), components_phase(problem, sizes, k))


def pass_phase(problem: Problem, sizes: Sizes, *, workers: int = 1) -> Phase:
    """Memory while samples are multiplied, block by block."""
    rows, threads, blocks = sizes.block_rows, sizes.threads, sizes.threads * (1 + sizes.ahead)
    each = scatter_block_bytes(problem.n_features, sizes.width, sizes.product_rows)
    each["rows of it multiplied again, as a check"] = (
        CHECK_COPIES * 8 * min(CHECK_ROWS, sizes.product_rows) * problem.n_features
    )
    if threads > 1:
        each = {f"{name}, {threads} times": threads * count for name, count in each.items()}
    items = _basis(problem, sizes) | each
    items["the vectors, as handed to a task"] = 8 * problem.n_features * sizes.width
    if workers > 1:
        items["product of another worker, as sent and merged"] = 2 * 8 * problem.n_features * sizes.width
    name = f"block of {rows} samples as read" if blocks == 1 else f"{blocks} blocks of {rows} samples as read"
    items[name] = blocks * rows * (problem.row_bytes + problem.prepared_bytes)
    if problem.weighted:
        beside = threads * rows * problem.row_bytes
        items["sample weights, and rows of a block that have any"] = 8 * problem.n_samples + beside
    return Phase("pass", tuple((items | _beside(problem, rows, threads)).items()))


def components_phase(problem: Problem, sizes: Sizes, k: int) -> Phase:
    """Memory while k components are made of the basis."""
    p = problem.n_features
    items = {f"{k} components": COMPONENT_COPIES * 8 * p * k, "mean and probes": MEAN_BYTES * p}
    return Phase("components", tuple((_basis(problem, sizes) | items | {"BLAS and Python": RUNTIME_BYTES}).items()))


def _start_phase(problem: Problem, sizes: Sizes) -> Phase:
    """Memory while the first block is made of a sample's components and of random columns."""
    p, rows = problem.n_features, sample_rows(problem.n_samples, sizes.width)
    run = -(-rows // SAMPLE_RUNS)
    items = {
        f"sample of {rows} rows, centred": (4 if problem.is_narrow else 8) * rows * p,
        f"{run} rows of it as read": run * (problem.row_bytes + problem.prepared_bytes),
        f"Gram matrix of the sample, {format_shape((rows, rows))} float64, solved": GRAM_COPIES * 8 * rows * rows,
        f"start block, {format_shape((p, sizes.width))} float64": 2 * 8 * p * sizes.width,
    }
    return Phase("start", tuple((items | _beside(problem, run)).items()))


def _step_phase(problem: Problem, sizes: Sizes) -> Phase:
    """Memory while the basis is extended by a block."""
    p, width = problem.n_features, sizes.width
    items = {
        f"product with {width} vectors, being projected, and small matrices": step_bytes(p, width, sizes.columns),
        "mean and probes": MEAN_BYTES * p,
        "BLAS and Python": RUNTIME_BYTES,
    }
    return Phase("step", tuple((_basis(problem, sizes) | items).items()))


def _basis(problem: Problem, sizes: Sizes) -> dict[str, int]:
    shape = format_shape((problem.n_features, sizes.columns))
    return {f"basis, {shape} float64": basis_bytes(problem.n_features, sizes.columns)}


def _beside(problem: Problem, rows: int, threads: int = 1) -> dict[str, int]:
    """What reading takes beside the samples that are read, and what BLAS takes."""
    items = {}
    if problem.decode_bytes or problem.scratch_bytes:
        items["storage being decoded"] = threads * decoding_bytes(problem, rows)
    items["BLAS and Python"] = RUNTIME_BYTES + TWICE + (THREAD_BYTES * threads if threads > 1 else 0)
    return items
