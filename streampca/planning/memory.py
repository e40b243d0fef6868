"""Memory estimates of a run, item by item: the arrays that accumulators and eigensolvers hold, and those of each phase.

The constants stand here for the modules that allocate by them; `tests/test_memory.py` ties the formulas to the peaks
of fresh processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..units import MIB, format_bytes, format_shape
from .request import Problem

PROBES = 8  # columns of W, in the only pass: bounds are 12 times the truth, at a failure probability of 1e-6
PROBES_OF_PASS = 16  # in one pass of several: bounds are 6 to 7 times the truth (benchmarks/bounds.py)
MORE_PROBES = 32  # where these are cheap: bounds are 3 times the truth
FEW_VALUES = 2**17  # values of a collection whose probes take a millisecond, however many, ...
FEW_SHARE = 8  # ... where these are features for each probe at least: products of probes are at most half of the others
MORE_SHARE = 64  # features for each probe that make them cheap anyway: a sixteenth of the products
CHECK_ROWS = 128  # rows of a piece whose products are repeated in float64, so many bytes of them at a time ...
CHECK_BYTES = 2**22
CHECK_FEATURES = 128  # ... or features, where these are what tiles are cut along ...
CENTRE_ROWS = 64  # rows of a block that tell whether it lies far from the centre
GROUP_PIECE = 2**18  # values that moments of groups convert to float64 at a time: 2 MiB
SPARSE_TILE = 2**21  # entries of a product of sparse rows with one another that are dense at a time: 16 MiB
SQUARES = 32  # squares added in float32 before the sum is added in float64; 4 % of the product at 784 features
MOST_THREADS = 4  # multiplying pieces, each with buffers of its own; beyond, BLAS's threads share a piece
THREADED_SAMPLES = 2048  # up to so many a tile is so small that BLAS's threads would wait a lot
FRACTION_SHARE = 4  # a fraction of the variance may need a basis of up to p over this; then a dense solver is cheaper
PAIRED_ROWS = 512  # rows of a piece of pairs, where their product is larger than the piece
REGRESSED_FEATURES = 512  # features whose regressions on latent scores are multiplied at a time
SOLVED_FEATURES = 64  # features whose normal equations are solved at a time
INTEGER_TILE = 400  # most columns of bytes that are multiplied at a time, with those before them, on integer units
INTEGER_BYTES = 2**23  # of a piece whose products there are added up in int32 ...
LEAST_INTEGER_ROWS = 256  # ... or so many rows
INTEGER_RUN = 5 * 2**19  # bytes of a run of its rows: longer ones leave the cache (784 features: a third slower)
INTEGER_LIBRARY = 40 * 2**20  # bytes of onnxruntime and a session: 29 MiB, and 9 more in its first product
MEASURED_ROWS, LEAST_MEASURED = 64, 4  # samples by which the rounding of a preparation is measured ...
MEASURED_BYTES = 2**18  # ... of which so many bytes are held ...
MEASURED_WIDTH = 2**13  # ... of each so many values at most, which are sums of its features: products then hold to 2 %
MEASURED_PIECE, MEASURED_AT_ONCE = 2**15, 8  # bytes of them prepared at a time, or one sample; and most samples
REGRESSED_INVERSES = 2**20  # bytes of an array of inverses, by which scores of some rows at a time are made
HELD = "means, trends and deviations of features, or landmarks"
COMPONENT_COPIES = 3  # the solver's vectors, the components as stored, and the model's as float64 for its certificate
RUNTIME_BYTES = 9 * MIB  # BLAS packing buffers of two threads, thread stacks and pools, small things of Python
THREAD_BYTES = 4 * MIB  # of each thread: packing buffers of numpy's BLAS, stack and pool; 3.5 measured
DECODE_LEAST = 4 * MIB  # memory pools of decoding threads that have seen small pieces only


def probe_columns(problem: Problem) -> int:
    """Columns of W in the only pass over samples: more where their products are cheap beside those of the matrix."""
    p = problem.n_features
    if problem.kind != "f" or problem.sparse_values is not None:
        return PROBES  # sums of whole numbers are exact
    few = problem.n_samples * p <= FEW_VALUES
    count = p // (FEW_SHARE if few else MORE_SHARE)
    return max(PROBES, min(MORE_PROBES, count // PROBES * PROBES))


def check_rows(n_features: int) -> int:
    """Rows whose products are repeated in float64 at a time."""
    return max(8, min(CHECK_ROWS, CHECK_BYTES // (8 * n_features)))


def measured_rows(n_features: int) -> int:
    """Samples of which the rounding of a preparation is measured."""
    return max(LEAST_MEASURED, min(MEASURED_ROWS, MEASURED_BYTES // (8 * n_features)))


def measuring_bytes(n_features: int, at_once: int) -> int:
    """Bytes held while that is measured: rows and errors, pieces of those of a few samples, and inner products."""
    rows, width = measured_rows(n_features), min(n_features, MEASURED_WIDTH)
    return 2 * 8 * rows * width + 10 * 8 * at_once * width + 12 * 8 * (2 * rows) ** 2


def thread_count(cores: int) -> int:
    """Threads that keep so many cores busy, a piece of work each."""
    return min(cores, MOST_THREADS)


def gram_threads(n_samples: int, precision: str, cores: int) -> int:
    """Tiles of features worth multiplying at a time."""
    return thread_count(cores) if precision == "single" and n_samples <= THREADED_SAMPLES else 1


def in_double(product_features: int, threads: int) -> tuple[int, int]:
    """Features of a tile, and threads, that take no more memory in double precision than these do in single."""
    return (product_features, threads // 2) if threads > 1 else (max(1, product_features // 2), 1)


def scatter_bytes(n_features: int, precision: str, product_rows: int, probes: int = PROBES) -> dict[str, int]:
    """Bytes by name while a scatter matrix absorbs samples, with so many probes."""
    p, item = n_features, 8 if precision == "double" else 4
    shape = f"{p} x {p}"
    items = {f"scatter matrix, {shape} float64": 8 * p * p}
    if precision == "single":
        items[f"product of a piece, {shape} float32"] = 4 * p * p
    items[f"centred piece, {product_rows} samples"] = product_rows * p * item
    items["probes and means"] = (4 * 8 + 2 * item) * probes * p + CENTRE_ROWS * p * 8 * 3
    return items


def integer_rows(width: int) -> int:
    """Rows of so many bytes that are multiplied at a time on integer units."""
    return max(LEAST_INTEGER_ROWS, INTEGER_BYTES // width)


def integer_bytes(n_columns: int, bytes_a_number: int, rows: int) -> dict[str, int]:
    """Bytes by name that products of columns on integer units take beside their sum, so many rows at a time."""
    width = n_columns * bytes_a_number
    return {
        "pieces of whole numbers, as bytes": 4 * rows * width,
        "tile of their products": 16 * min(INTEGER_TILE, width) * width,
    }


def scatter_block_bytes(n_features: int, width: int, product_rows: int) -> dict[str, int]:
    """Bytes by name while the product of a scatter matrix with a block absorbs samples, in either precision."""
    p = n_features
    return {
        f"product with {width} vectors, {p} x {width} float64": 8 * p * width,
        "product of a piece, and the vectors as multiplied": 16 * p * width,
        f"centred piece, {product_rows} samples": 8 * product_rows * (p + width),
        "mean, sums and probes": (3 + 6 * PROBES_OF_PASS + product_rows // SQUARES) * 8 * p,
    }


def paired_rows(n_features: int, n_targets: int, device: str = "") -> int:
    """Return the rows that are multiplied with their label features at a time.

    Multiplying few rows takes less time than adding the product; as many as label features are no larger than it.
    """
    rows = max(1, GROUP_PIECE // max(1, n_features), min(n_targets, PAIRED_ROWS))
    return max(rows, PAIRED_ROWS) if device else rows


def cross_scatter_bytes(n_features: int, n_targets: int, block_rows: int, device: str = "") -> dict[str, int]:
    """Return the bytes by name while products of samples with label features are added up."""
    p, width = n_features, n_targets
    rows = min(block_rows, paired_rows(p, width, device))
    return {
        f"products with {width} label features, {p} x {width} float64": 8 * p * width,
        "product of a piece, and the shift of the means": 2 * 8 * p * width,
        f"centred piece, {rows} samples, and means": 2 * 8 * rows * p + 8 * 8 * p,
        "label features of a block and a piece": 8 * width * (block_rows + 3 * rows),
    }


def gram_block_bytes(
    n_samples: int, width: int, product_features: int, *, itemsize: int = 4, threads: int = 1
) -> dict[str, int]:
    """Bytes by name while the product of a Gram matrix with a block absorbs features."""
    n, probes = n_samples, PROBES_OF_PASS + PROBES
    return {
        f"product with {width} vectors, {n} x {width} float64": 8 * n * width,
        "the vectors as multiplied": itemsize * n * width,
        "tile of it, centred": threads * itemsize * product_features * n,
        "product of a tile": threads * itemsize * (n * width + product_features * (width + PROBES)),
        "sums and probes": (4 + 3 * PROBES_OF_PASS + 2 * PROBES) * 8 * n
        + threads * (3 * probes + product_features // (2 * SQUARES)) * 8 * n,
        f"{CHECK_FEATURES} features multiplied again, as a check": 2 * 8 * CHECK_FEATURES * n if itemsize < 8 else 0,
    }


def dense_flops(p: int) -> float:
    """Cost of a dense solver for few vectors; measured, it runs at the rate of Lanczos steps of some dozen columns."""
    return 8 / 3 * float(p) ** 3


def dense_bytes(p: int, k: int) -> int:
    """Bytes of a dense solver: its copy of the matrix, the vectors, and LAPACK's workspace, with 1.4 MiB measured."""
    return 8 * p * p + 8 * p * k + 8 * 64 * p + 3 * 2**19


def block_width(count: Any) -> int:
    """Columns of a Lanczos block by default: enough beyond k that the last wanted pairs converge as the first do."""
    k = count if isinstance(count, int) else 50
    return k + max(10, k // 4)


def basis_bytes(p: int, columns: int) -> int:
    """Bytes of the columns of basis and block."""
    return 8 * p * columns


def step_bytes(p: int, width: int, columns: int) -> int:
    """Bytes that a Lanczos step holds beside them: the product and three of its size, and small matrices.

    Those are the projected matrix, its eigenvectors and LAPACK's copies of both.
    """
    return 8 * (4 * p * width + 5 * columns * columns)


def lanczos_bytes(p: int, count: Any) -> int:
    """Bytes block Lanczos needs at its default width and limit."""
    width = min(block_width(count), p)
    limit = min(4 * width, p) if isinstance(count, int) else max(min(4 * width, p), p // FRACTION_SHARE)
    return basis_bytes(p, limit) + step_bytes(p, width, limit)


def upper_entries(size: int) -> int:
    """Entries of the upper triangle of a symmetric matrix, its diagonal included."""
    return size * (size + 1) // 2


def regression_bytes(n_features: int, n_range: int, width: int, product_rows: int, itemsize: int) -> dict[str, int]:
    """Return the bytes by name while normal equations of a range of features on latent scores absorb samples."""
    p, rows, tile = n_features, product_rows, min(REGRESSED_FEATURES, n_features)
    numbers = upper_entries(width + 1) + width + 1
    return {
        f"normal equations of {n_range} features on {width} latent variables": 8 * n_range * numbers,
        "the vectors as multiplied": itemsize * p * width + 4 * 8 * p,
        f"centred piece, {rows} samples, and which values are observed": rows * p * (itemsize + 3) + p + 4096,
        "scores of a piece, and their moments": rows * (2 * 8 + itemsize) * numbers + 6 * REGRESSED_INVERSES,
        "tile of it": tile
        * (rows * (itemsize + 8) + (2 * itemsize + 8) * numbers + 2 * itemsize * upper_entries(width)),
    }


@dataclass(frozen=True)
class Phase:
    """One part of a run, with the items that are in memory at the same time as (name, bytes)."""

    name: str
    items: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, name: str, *parts: Mapping[str, int]) -> Phase:
        """Make a phase of the items of several mappings."""
        items: dict[str, int] = {}
        for part in parts:
            items.update(part)
        return cls(name, tuple(items.items()))

    def plus_item(self, name: str, count: int) -> Phase:
        """Return the phase with one more item, if that takes any bytes."""
        return Phase(self.name, (*self.items, (name, count))) if count else self

    @property
    def total(self) -> int:
        """Bytes of all items."""
        return sum(count for _, count in self.items)

    @property
    def largest_share(self) -> str:
        """The largest item in words."""
        name, count = max(self.items, key=lambda item: item[1])
        return f"{name} ({format_bytes(count)})"


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory computed beforehand, phase by phase; the largest phase is what is needed."""

    phases: tuple[Phase, ...]

    def plus_preparation(self, problem: Problem) -> MemoryEstimate:
        """Return the estimate with what a preparation has learned in every phase, and with the pass that learns it."""
        if not (problem.held_bytes or problem.learning_bytes or problem.bytes_after):
            return self
        phases = [phase.plus_item(HELD, problem.held_bytes) for phase in self.phases]
        if problem.learning_bytes:
            phases.append(Phase("pass before the fit", (("blocks, and what is made of them", problem.learning_bytes),)))
        reading = next((phase for phase in phases if phase.name == "pass"), phases[0])
        if problem.following_bytes:
            name = "rows of the kernel matrix, and what they are multiplied with"
            phases.append(Phase("residuals", reading.plus_item(name, problem.following_bytes).items))
        if problem.measuring_bytes:
            name = "pieces of samples prepared with more digits"
            reading = next((phase for phase in phases if phase.name == "components"), reading)
            phases.append(Phase("rounding of the preparation", reading.plus_item(name, problem.measuring_bytes).items))
        return MemoryEstimate(tuple(phases))

    @property
    def largest(self) -> Phase:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def total(self) -> int:
        """Bytes of the largest phase."""
        return max(phase.total for phase in self.phases)

    @property
    def largest_share(self) -> str:
        """The largest item of that phase in words."""
        return self.largest.largest_share

    def __str__(self) -> str:
        return f"needs {format_bytes(self.total)}; the largest share is the {self.largest_share}"


def runtime(threads: int = 1, more: int = 0) -> dict[str, int]:
    """Bytes that BLAS and Python hold in so many threads, and some more."""
    return {"BLAS and Python": RUNTIME_BYTES + more + (THREAD_BYTES * threads if threads > 1 else 0)}


def in_threads(items: Mapping[str, int], threads: int) -> dict[str, int]:
    """Return what each of so many threads holds, for all of them."""
    return dict(items) if threads == 1 else {f"{name}, {threads} times": threads * size for name, size in items.items()}


def block_items(problem: Problem, rows: int, threads: int, ahead: int) -> dict[str, int]:
    """Bytes by name of blocks of samples, in so many threads, so many of each read ahead, and of what decodes them."""
    blocks = threads * (1 + ahead)
    name = f"block of {rows} samples as read" if blocks == 1 else f"{blocks} blocks of {rows} samples as read"
    items = {name: blocks * rows * problem.sample_bytes}
    if problem.weighted:
        beside = threads * rows * problem.row_bytes
        items["sample weights, and rows of a block that have any"] = 8 * problem.n_samples + beside
    return items | decoding_items(problem, rows, threads)


def decoding_items(problem: Problem, rows: int, threads: int = 1) -> dict[str, int]:
    """Bytes by name that are held while blocks are read, a block in each of so many threads."""
    size = threads * decoding_bytes(problem, rows)
    return {"storage being decoded": size} if size else {}


def decoding_bytes(problem: Problem, rows: int) -> int:
    """Bytes held while a block is read: what the reader says, or less where a block is small, and in preparing it."""
    decoding = min(problem.decode_bytes, DECODE_LEAST + 3 * max(rows, problem.chunk_samples) * problem.row_bytes)
    return decoding + problem.scratch_bytes


def solve_memory(name: str, size: int, count: int | float | None, solver: str, k: int) -> Phase:
    """Memory while k leading eigenvectors of a matrix of order `size` are found, beside the matrix itself."""
    items = {f"{name}, {format_shape((size, size))} float64": 8 * size * size}
    if solver == "dense":
        items["LAPACK eigensolver"] = dense_bytes(size, k)
    else:
        items["Lanczos basis and blocks"] = lanczos_bytes(size, count)
    vectors = f"{k} components" if name == "scatter matrix" else f"{k} eigenvectors"
    items[vectors] = (COMPONENT_COPIES - 1) * 8 * size * k
    return Phase.of(f"{solver} solve", items, runtime())
