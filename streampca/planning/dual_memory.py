"""Memory of method 'dual', phase by phase: the Gram matrix, n x n, and every sample of a range of features."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..units import MIB, format_shape
from .component_chunks import POOLS, WRITE_COPIES, tile_bytes
from .memory import RUNTIME_BYTES, THREAD_BYTES, MemoryEstimate, Phase, decoding_bytes, solve_memory
from .request import Problem
from .sizes import PROBES

POLISH_PART = 8 * MIB  # of components being multiplied with one another, and as much of what comes of it
# k x k: their products, a part's, LAPACK's copy and work, eigenvectors, and these scaled; or a Cholesky factor of them.
POLISH_SQUARES = {"single": 6, "double": 3}
WRITTEN = 16 * MIB  # of components gathered before they are written
COPY_POOLS = 26 * MIB  # 8 to 25 measured, with Zarr


@dataclass(frozen=True)
class Cutting:
    """How the data are cut; fields as in `Plan`."""

    schedule: str
    block_rows: int
    block_features: int
    product_features: int
    component_features: int = 0
    stored: bool = False


@dataclass(frozen=True)
class Arithmetic:
    """How it is computed.

    Attributes
    ----------
    precision, solver, dense
        As in `Plan`; `dense` says whether there is room for a dense solve.
    wanted : int, float or None
        Components to solve for.
    workers, threads : int
        Processes; tiles multiplied at a time.
    output : bool
        Whether the model is written.
    """

    precision: str
    solver: str
    dense: bool
    wanted: int | float | None
    workers: int = 1
    threads: int = 1
    output: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of a value being multiplied."""
        return 8 if self.precision == "double" else 4


def dual_memory(problem: Problem, arithmetic: Arithmetic, cutting: Cutting, k: int) -> MemoryEstimate:
    """Memory of all phases, for k components."""
    phases = [copy_phase(problem, cutting)] if cutting.schedule == "scratch" else []
    phases += [gram_phase(problem, arithmetic, cutting), *_solve_phases(problem, arithmetic, cutting, k)]
    phases.append(components_phase(problem, arithmetic, cutting, k))
    if not cutting.stored:
        phases.append(polish_phase(problem, k, arithmetic.precision))
    if arithmetic.output and not cutting.stored:
        phases.append(writing_phase(problem, k))
    return MemoryEstimate(tuple(phases))


def gram_phase(problem: Problem, arithmetic: Arithmetic, cutting: Cutting) -> Phase:
    """Memory while the Gram matrix is added up."""
    n, p = problem.n_samples, problem.n_features
    items = {f"Gram matrix, {format_shape((n, n))} float64": 8 * n * n}
    if arithmetic.workers > 1:
        items["Gram matrix of another worker, merged"] = 8 * n * n
    items |= held_items(problem, cutting)
    items |= read_items(problem, cutting)
    tile = _tile(problem, cutting)
    items["tile of it, centred"] = arithmetic.threads * n * tile * arithmetic.itemsize
    if arithmetic.precision == "single":  # in double precision products are added up at once
        items["product of a tile"] = arithmetic.threads * 4 * n * n
    items["mean"] = 16 * p
    items["probes"] = PROBES * (2 * 8 * n + arithmetic.threads * 12 * tile)
    if problem.weighted:
        items["sample weights"] = 8 * n
    items["BLAS and Python"] = RUNTIME_BYTES + pool_bytes(problem, arithmetic, cutting)
    return Phase("Gram matrix", tuple(items.items()))


def components_phase(problem: Problem, arithmetic: Arithmetic, cutting: Cutting, k: int) -> Phase:
    """Memory while components are made from the eigenvectors of the Gram matrix."""
    n, p = problem.n_samples, problem.n_features
    tile = _tile(problem, cutting)
    items = {f"{k} eigenvectors of {n} samples, as found and scaled": n * k * (24 if arithmetic.itemsize == 8 else 28)}
    items |= held_items(problem, cutting) | read_items(problem, cutting)
    # Components much smaller than the first are made in double precision, which the plan cannot know beforehand.
    items["tile of it, centred, and of the components"] = arithmetic.threads * (n + 2 * k + 2 * PROBES) * tile * 8
    width = cutting.component_features
    if cutting.stored:
        items[f"{width} features of components being written"] = 8 * k * width + WRITE_COPIES * _tile_bytes(problem, k)
    else:
        items |= _kept(problem, k)
    items["mean"] = 24 * p
    items["BLAS and Python"] = RUNTIME_BYTES + pool_bytes(problem, arithmetic, cutting)
    return Phase("components", tuple(items.items()))


def polish_phase(problem: Problem, k: int, precision: str) -> Phase:
    """Memory while components are multiplied with one another, to make good what rounding did; the data are let go."""
    items = {
        f"{k} eigenvectors of {problem.n_samples} samples, as found": 8 * problem.n_samples * k,
        f"products of components, {format_shape((k, k))} float64": POLISH_SQUARES[precision] * 8 * k * k,
        **_kept(problem, k),
        "parts of components, multiplied": 2 * min(POLISH_PART, 8 * k * problem.n_features),
        "mean": 24 * problem.n_features,
        "BLAS and Python": RUNTIME_BYTES,
    }
    return Phase("polish", tuple(items.items()))


def writing_phase(problem: Problem, k: int) -> Phase:
    """Memory while a model whose components are in memory is written."""
    items = {
        **_kept(problem, k),
        "components being written": WRITE_COPIES * min(_tile_bytes(problem, k), 8 * k * problem.n_features) + POOLS,
        "mean": 24 * problem.n_features,
        "BLAS and Python": RUNTIME_BYTES,
    }
    return Phase("writing the model", tuple(items.items()))


def _kept(problem: Problem, k: int) -> dict[str, int]:
    """Components in memory, and what is kept beside them; with a mask, also as they go into the model."""
    p, frame = problem.n_features, math.prod(problem.sample_shape)
    items = {f"{k} components": 8 * k * p, "probes of components": PROBES * 8 * p}
    return items if frame == p else {**items, "components in their frame": 8 * k * frame}


def written_features(problem: Problem, k: int) -> int:
    """Features of components that are gathered before they are written: whole tiles of the storage."""
    width = _tile_bytes(problem, k) // (8 * k)
    return width * max(1, WRITTEN // (8 * k * width))


def _tile_bytes(problem: Problem, k: int) -> int:
    return tile_bytes((k, *problem.sample_shape), 8)


def _solve_phases(problem: Problem, arithmetic: Arithmetic, cutting: Cutting, k: int) -> list[Phase]:
    """By the solver, and by a dense one where it may take over; beside what is kept of the data."""
    n, p = problem.n_samples, problem.n_features
    beside = {"mean": 16 * p, **held_items(problem, cutting)}
    solvers = [arithmetic.solver, *(["dense"] if arithmetic.dense and arithmetic.solver != "dense" else [])]
    phases = [solve_memory("Gram matrix", n, arithmetic.wanted, solver, k) for solver in solvers]
    return [Phase(phase.name, phase.items + tuple(beside.items())) for phase in phases]


def copy_phase(problem: Problem, cutting: Cutting) -> Phase:
    """Memory while a scratch copy is written."""
    items = {
        **read_items(problem, cutting, wide=True),
        "the same, turned to be written": cutting.block_rows * problem.n_features * problem.itemsize,
        "BLAS and Python": RUNTIME_BYTES,
    }
    return Phase("scratch copy", tuple(items.items()))


def held_items(problem: Problem, cutting: Cutting) -> dict[str, int]:
    """What stays while it is multiplied, as stored."""
    width = min(cutting.block_features, problem.n_features)
    name = "all samples as stored" if width == problem.n_features else f"{width} features of all samples, as stored"
    return {name: problem.n_samples * width * problem.itemsize}


def read_items(problem: Problem, cutting: Cutting, *, wide: bool = False) -> dict[str, int]:
    """A block as it is read, and what decodes it; all samples of a range read at once are the range itself."""
    rows = cutting.block_rows
    items = {}
    at_once = cutting.schedule == "scratch" or rows >= problem.n_samples
    if wide or not (at_once and _is_read_in_place(problem, cutting)):
        items[f"block of {rows} samples as read"] = rows * read_bytes(problem, cutting, wide=wide)
    if (wide or cutting.schedule != "scratch") and (problem.decode_bytes or problem.scratch_bytes):
        items["storage being decoded"] = decoding_bytes(problem, rows)
    return items


def read_bytes(problem: Problem, cutting: Cutting, *, wide: bool) -> int:
    """Bytes held for one sample of a read: whole, or the features asked for within what covers them."""
    p, item = problem.n_features, problem.itemsize
    width = min(cutting.block_features, p)
    if wide:
        return problem.row_bytes + problem.prepared_bytes
    if _is_read_in_place(problem, cutting):
        return width * item
    if problem.is_prepared:
        return problem.row_bytes + problem.prepared_bytes + (width * item if width < p else 0)
    line = math.prod(problem.sample_shape[1:])
    return (min(p, width + 2 * line) + width) * item


def _is_read_in_place(problem: Problem, cutting: Cutting) -> bool:
    """Whether a range of features is read as it will be held: of the copy, or whole lines of samples as stored."""
    width, line = min(cutting.block_features, problem.n_features), math.prod(problem.sample_shape[1:])
    if cutting.schedule == "scratch":
        return True
    return not problem.is_prepared and (width % line == 0 or width == problem.n_features)


def _tile(problem: Problem, cutting: Cutting) -> int:
    return min(cutting.product_features, problem.n_features)


def pool_bytes(problem: Problem, arithmetic: Arithmetic, cutting: Cutting) -> int:
    """What threads hold beside tiles and products, and what threads that decoded for a copy keep."""
    threads = THREAD_BYTES * arithmetic.threads if arithmetic.threads > 1 else 0
    return threads + (COPY_POOLS if cutting.schedule == "scratch" and problem.encoded else 0)
