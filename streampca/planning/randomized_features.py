"""Plans of method 'randomized' along features: a few passes with a block, where neither p x p nor n x n fits.

Block Lanczos on the scatter matrix without forming it. A pass is one product X^T (X Q); a wider block Q costs more
flops a pass and takes fewer passes, a basis of fewer blocks is restarted and takes more. Of the widths, bases and
blocks of samples that fit the budget the fastest are taken, or those with fewer passes that take little longer, as
data are often slower to read than rates say. So for a number of components more memory makes the fastest plan no
slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..units import MIB, format_shape
from .blocks import block_rows, spans_of
from .budget import MOST_BLOCK, most_that_fits, precision_of, span_count
from .decoding import Reading, read_boxes, read_runs
from .memory import COMPONENT_COPIES, RUNTIME_BYTES, THREAD_BYTES, MemoryEstimate, Phase, decoding_bytes, smallest_of
from .plan import Plan
from .rates import Work, products
from .request import Problem, Request
from .sizes import CHECK_ROWS, basis_bytes, dense_flops, scatter_block_bytes, step_bytes, thread_count

# Columns of a block for every component, and passes to a residual of 1e-4: of images, whose spectra fall slowly
# (30000 x 128 x 128, k = 50; 1/f images).
WIDTHS = ((1.3, 7), (2.0, 6), (2.5, 5), (6.0, 4))
USUAL_TOL = 1e-4  # that those are for; a factor of ten is a pass
LEAST_BESIDE = 10  # columns beside those for the components
SPARE = 1  # blocks of a basis that is never restarted, beside one a pass: should it take a pass more
RESTARTS = ((4, 1), (3, 2), (2, 5), (1, 10))  # blocks of a smaller one, and the passes more that its restarts take
OPEN_COMPONENTS, OPEN_WIDTH = 100, 1.25  # counted on where k is open, when the basis grows with every pass
OPEN_SHARE = 2  # columns of an open basis for every component that there is to be room for
FEWER_PASSES = 1.5  # times as long that a plan with fewer passes may take
LEAST_ROOM = 0.9  # for components where k is open, to what there could be
AT_ONCE = 1.1  # and one in threads (0.83 of the time; 30000 x 128 x 128), or that reads ahead: rates know neither
PRODUCT_ROWS, LEAST_PRODUCT_ROWS = 512, 32  # samples multiplied at a time ...
PRODUCT_BYTES = (128 * MIB, 32 * MIB)  # ... as many as take so much as float64; of few, adding up costs the most
MOST_AGAIN = 4  # times that a chunk may be decoded in a pass; smaller budgets are refused, not read for days
BLOCKS = (MOST_BLOCK, 4 * MIB, MIB)  # bytes of a block of samples
SAMPLE_BLOCKS = 6  # rows of the start sample for every column of the block that is made of them
SAMPLE_RUNS = 8  # that they are read in, or more where storage chunks are short
CHECK_COPIES = 2  # as float64, and centred, while probes are checked in the first pass
GRAM_COPIES = 3  # of the sample: itself, LAPACK's copy, and its vectors and workspace
TWICE = 2 * THREAD_BYTES  # packing buffers of two libraries of BLAS: passes use the one, steps the other
MEAN_BYTES = 8 * (3 + 5 * 8)  # a feature: means and the products of probes, of which eight are kept to the end


class Basis(NamedTuple):
    """Columns of a block and of the basis, and the passes it takes, those for restarts included."""

    width: int
    columns: int
    passes: int
    restarting: int


_Price = tuple[int, int, Reading, Work, float]  # the last fields of a `Choice`


class Choice(NamedTuple):
    """Sizes with what they take; `late` passes that are wanted beyond those allowed."""

    basis: Basis
    sizes: Sizes
    k: int
    passes: int
    late: int
    read: Reading
    work: Work
    seconds: float


def randomized_plan(problem: Problem, request: Request, memory: int, source: str) -> Plan | None:
    """The fastest plan that fits the budget, or one near it with fewer passes; None where none fits."""
    found = list(_choices(problem, request, memory))
    return _planned(problem, request, _preferred(found), memory, source) if found else None


def least_randomized(problem: Problem, request: Request) -> MemoryEstimate:
    """The least memory that the method can do with, item by item."""
    k, lengths = counted_on(problem, request), _block_lengths(problem)
    estimates = [
        randomized_memory(problem, sizes, k, workers=request.workers)
        for basis in bases(problem, request, problem.n_features)
        for sizes in _cuttings(problem, request, basis, lengths)
    ]
    return smallest_of(estimates)[1]


def is_open(problem: Problem, request: Request) -> bool:
    """Tell whether the number of components depends on the data."""
    return isinstance(request.counted_on(problem.most_components), float)


def counted_on(problem: Problem, request: Request) -> int:
    """Components to make room for."""
    wanted = request.counted_on(problem.most_components)
    return min(wanted if isinstance(wanted, int) else OPEN_COMPONENTS, problem.most_components)


def precision_of_products(problem: Problem, request: Request) -> str:
    """Choose the precision from the size of the problem alone: it must not change with the budget."""
    return precision_of(problem, request, 2 * problem.n_samples * problem.n_features * counted_on(problem, request))


# -- what there is to choose from


def bases(problem: Problem, request: Request, size: int, *, later: int = 0) -> Iterator[Basis]:
    """Every width, with every basis for it; where k is open, with the least, which is to grow.

    Parameters
    ----------
    problem, request : Problem, Request
        What is to be done.
    size : int
        Of vectors: as many numbers as there are features, or samples.
    later : int
        Passes more than from a sample's components.
    """
    k, most = counted_on(problem, request), problem.most_components
    opened = is_open(problem, request)
    for ratio, passes in ((OPEN_WIDTH, WIDTHS[0][1]),) if opened else WIDTHS:
        width = min(max(math.ceil(ratio * k), k + LEAST_BESIDE), most)
        least = min(width + k, most + width, size)
        passes = _to_tolerance(passes, request.tol) + later
        blocks = {passes + SPARE, *(number for number, _ in RESTARTS)}
        larger = {min(number * width, most + width, size) for number in blocks}
        for columns in (least,) if opened else sorted({least} | {each for each in larger if each > least}):
            yield basis_of(problem, size, width, columns, passes)


def _to_tolerance(passes: int, tol: float) -> int:
    """Passes to a tolerance, given those to the usual one."""
    return max(2, passes - math.floor(math.log10(tol / USUAL_TOL) + 1e-9))


def basis_of(problem: Problem, size: int, width: int, columns: int, passes: int) -> Basis:
    """With the passes its restarts take: none where all fit, or where it holds everything there is.

    Blocks of random features lie outside of what fewer samples span; those of samples do not.
    """
    most = problem.most_components
    passes = min(passes, -(-most // width) + (most < size == problem.n_features))
    if columns >= min(passes * width, most):
        return Basis(width, columns, passes, 0)
    restarting = next(more for blocks, more in RESTARTS if columns >= blocks * width)
    return Basis(width, columns, passes + restarting, restarting)


def _cuttings(problem: Problem, request: Request, basis: Basis, lengths: tuple[int, ...]) -> Iterator[Sizes]:
    """Blocks of each of some lengths, read ahead or not, in several threads or one."""
    narrow = precision_of_products(problem, request) == "single"
    several = thread_count(problem.machine.cores) if narrow and request.workers == 1 else 1
    for rows in lengths:
        for most in sorted({min(_product_rows(problem, size), rows) for size in PRODUCT_BYTES}, reverse=True):
            for ahead in (1, 0) if problem.fills else (0,):
                for threads in sorted({len(spans_of(problem.n_samples, several, rows)), 1}):
                    yield Sizes(basis.width, basis.columns, rows, most, ahead, threads)


def _product_rows(problem: Problem, size: int) -> int:
    rows = min(PRODUCT_ROWS, size // (8 * problem.n_features))
    return min(max(LEAST_PRODUCT_ROWS, rows), problem.n_samples)


def _block_lengths(problem: Problem) -> tuple[int, ...]:
    """Samples to a block: storage chunks within so many bytes, as many as are multiplied at a time, and parts of them.

    They do not depend on the budget, so what there is to choose from only grows with it.
    """
    n, chunk = problem.n_samples, min(problem.chunk_samples, problem.n_samples)
    row = problem.row_bytes + problem.prepared_bytes
    lengths = {min(n, block_rows(row, chunk, max(limit, chunk * row))) for limit in BLOCKS}
    whole = min(n, -(-_product_rows(problem, PRODUCT_BYTES[0]) // chunk) * chunk)
    lengths |= {-(-whole // 2**power) for power in range(17)}
    most = MOST_AGAIN * n * problem.row_bytes
    kept = {rows for rows in lengths if read_boxes(problem, rows, problem.n_features).bytes <= most}
    return tuple(sorted(kept or {max(lengths)}, reverse=True))


# -- what fits, and what it takes


def _choices(problem: Problem, request: Request, memory: int) -> Iterator[Choice]:
    k, lengths = counted_on(problem, request), _block_lengths(problem)
    prices: dict[tuple[Basis, int, int], _Price] = {}
    for basis in bases(problem, request, problem.n_features):
        some = Sizes(basis.width, basis.columns, 1, 1)
        if max(phase.total for phase in lasting_phases(problem, some, k)) > memory:
            continue
        for sizes in _cuttings(problem, request, basis, lengths):
            if pass_phase(problem, sizes, workers=request.workers).total <= memory:
                grown, own, room = _grown(problem, request, basis, sizes, memory)
                # Threads and reading ahead change no price: candidates that differ in these alone have it in common.
                key = grown, own.block_rows, own.product_rows
                if key not in prices:
                    prices[key] = _price(problem, request, grown, own)
                yield Choice(grown, own, room, *prices[key])


def _grown(problem: Problem, request: Request, basis: Basis, sizes: Sizes, memory: int) -> tuple[Basis, Sizes, int]:
    """Where k is open, the largest basis that there is memory for, and room for components of it."""
    k, most = counted_on(problem, request), problem.most_components
    if not is_open(problem, request):
        return basis, sizes, k

    def fits(columns: int) -> bool:
        grown = replace(sizes, columns=columns)
        room = max(k, min(columns // OPEN_SHARE, most))
        return randomized_memory(problem, grown, room, workers=request.workers).total <= memory

    columns = max(basis.columns, most_that_fits(fits, min(problem.n_features, most + basis.width)))
    grown = replace(sizes, columns=columns)
    room = most_that_fits(lambda k: components_phase(problem, grown, k).total <= memory, min(most, columns))
    passes = basis.passes - basis.restarting
    return basis_of(problem, problem.n_features, basis.width, columns, passes), grown, max(k, room)


def _price(problem: Problem, request: Request, basis: Basis, sizes: Sizes) -> _Price:
    """Return the passes, those that are missing, what is read, the work and its time."""
    passes, precision = min(basis.passes, request.max_passes or basis.passes), precision_of_products(problem, request)
    sample = sample_rows(problem.n_samples, sizes.width)
    once = read_boxes(problem, sizes.block_rows, problem.n_features)
    read = once.times(passes).plus(read_runs(problem, sample, SAMPLE_RUNS))
    work = read.work(problem)
    work += _passing(problem, precision, sizes, passes) + _starting(problem, precision, sizes, sample)
    return passes, basis.passes - passes, read, work, work.seconds(problem.machine.cores, request.workers)


def _passing(problem: Problem, precision: str, sizes: Sizes, passes: int) -> Work:
    """The passes' products, added up piece by piece, and the steps between, of a basis that grows block by block."""
    n, p, width = float(problem.n_samples), float(problem.n_features), sizes.width
    held = float(min(passes * width, problem.most_components))
    adding = passes * n / sizes.product_rows * p * width
    work = products(4 * n * p * width * passes, precision) + Work(centring=n * p * passes, adding=adding)
    return work + products((4 * p * held * width + 8 * p * width**2) * passes, "double")


def _starting(problem: Problem, precision: str, sizes: Sizes, sample: int) -> Work:
    """The sample's inner products, its eigenvectors, and the block made of them."""
    p = float(problem.n_features)
    work = products(p * sample**2, precision) + products(2 * p * sample * sizes.width, "double")
    return work + Work(centring=p * sample, solving=dense_flops(sample))


def _preferred(found: list[Choice]) -> Choice:
    """The fastest, or one with fewer passes, or in threads, or that reads ahead, if it takes little longer.

    Where more passes are wanted than are allowed, each that is missing counts for more than time.
    """
    late = min(choice.late for choice in found)
    found = [choice for choice in found if choice.late == late]
    fastest = min(choice.seconds for choice in found)
    near = [choice for choice in found if choice.seconds <= FEWER_PASSES * fastest]
    passes = min(choice.passes for choice in near)
    near = [choice for choice in near if choice.passes == passes]
    fastest = min(choice.seconds for choice in near)
    room = max(choice.k for choice in near)
    near = [choice for choice in near if choice.seconds <= AT_ONCE * fastest and choice.k >= LEAST_ROOM * room] or near
    most = max((choice.sizes.threads, choice.sizes.ahead) for choice in near)
    near = [choice for choice in near if (choice.sizes.threads, choice.sizes.ahead) == most]
    return min(near, key=lambda choice: (choice.seconds, -choice.sizes.columns))


def _planned(problem: Problem, request: Request, choice: Choice, memory: int, source: str) -> Plan:
    sizes = choice.sizes
    with_vectors = f"with {sizes.width} vectors"
    made = f"1 pass {with_vectors} needs" if choice.passes == 1 else f"{choice.passes} passes {with_vectors} need"
    return Plan(
        problem=problem,
        request=request,
        method="randomized",
        why=reason(made, problem, request, choice.basis, choice.late),
        rejected=(),
        precision=precision_of_products(problem, request),
        solver="lanczos",
        room=choice.k,
        dense_room=0,
        block_rows=sizes.block_rows,
        product_rows=sizes.product_rows,
        spans=spans_of(problem.n_samples, span_count(request.workers, sizes.threads), sizes.block_rows),
        passes=choice.passes,
        bytes_read=choice.read.bytes,
        bytes_written=0,
        memory_estimate=randomized_memory(problem, sizes, choice.k, workers=request.workers),
        memory=memory,
        budget_source=source,
        cores=problem.machine.cores,
        schedule="lanczos",
        block_features=problem.n_features,
        threads=sizes.threads,
        ahead=sizes.ahead,
        width=sizes.width,
        columns=sizes.columns,
        workers=request.workers,
        work=choice.work,
        seconds=choice.seconds,
    )


def reason(made: str, problem: Problem, request: Request, basis: Basis, late: int) -> str:
    """Say why the method is chosen, and which memory or passes it lacks."""
    n, p = problem.n_samples, problem.n_features
    why = f"{made} neither {format_shape((p, p))} nor {format_shape((n, n))}"
    if basis.restarting:
        why += f"; {basis.restarting} more than with a larger basis, which does not fit"
    if late:
        why += f"; a residual of {request.tol:g} would take about {basis.passes}"
    return why


# -- memory


@dataclass(frozen=True)
class Sizes:
    """Sizes of blocks of vectors and of samples; fields as in `Plan`."""

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
    """Memory of decoding and of BLAS."""
    items = {}
    if problem.decode_bytes or problem.scratch_bytes:
        items["storage being decoded"] = threads * decoding_bytes(problem, rows)
    items["BLAS and Python"] = RUNTIME_BYTES + TWICE + (THREAD_BYTES * threads if threads > 1 else 0)
    return items
