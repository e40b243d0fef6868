"""What method 'randomized' holds along samples, phase by phase: a basis of vectors with a number for every sample.

Beside it, pieces of the data as the dual method holds them: every sample of a range of features. On a cluster the basis
is counted for a worker too: the process that has it may be one of them.
"""

from __future__ import annotations

from ..units import format_shape
from .dual_memory import (
    Arithmetic,
    Cutting,
    components_phase,
    copy_phase,
    held_items,
    polish_phase,
    pool_bytes,
    read_items,
    writing_phase,
)
from .memory import COMPONENT_COPIES, RUNTIME_BYTES, THREAD_BYTES, MemoryEstimate, Phase
from .randomized_features_memory import TWICE
from .request import Problem
from .sizes import PROBES, PROBES_OF_PASS, basis_bytes, gram_block_bytes, in_double, step_bytes, thread_count

START_COPIES = 4  # of the start block: as drawn, made orthogonal to the roots, and LAPACK's
BOUND_COPIES = 8  # of products with probes, while bounds are made of them
PROBE_BYTES = 8 * (2 * PROBES_OF_PASS + 2 * PROBES)  # a sample, kept to the end


def along_samples_memory(
    problem: Problem, arithmetic: Arithmetic, cutting: Cutting, width: int, columns: int, k: int
) -> MemoryEstimate:
    """Memory of all phases, for k components, blocks of `width` vectors and a basis of `columns`."""
    n = problem.n_samples
    basis = {f"basis, {format_shape((n, columns))} float64": basis_bytes(n, columns)}
    held = held_items(problem, cutting)
    runtime = {"BLAS and Python": RUNTIME_BYTES + TWICE + pool_bytes(problem, arithmetic, cutting)}
    start = {f"start block, {format_shape((n, width))} float64": START_COPIES * 8 * n * width}
    step = {
        f"product with {width} vectors, being projected, and small matrices": step_bytes(n, width, columns),
        "probes": PROBE_BYTES * n,
    }
    bounds = {
        f"{k} eigenvectors of {n} samples": COMPONENT_COPIES * 8 * n * k + 8 * 5 * columns**2,
        "probes, and bounds of errors": (PROBE_BYTES + BOUND_COPIES * 8 * PROBES_OF_PASS) * n,
    }
    phases = [copy_phase(problem, cutting)] if cutting.schedule == "scratch" else []
    phases += [Phase("start", tuple((basis | start | runtime).items()))]
    phases += [_pass_phase(problem, arithmetic, cutting, width, basis | held)]
    phases += [Phase("step", tuple((basis | held | step | runtime).items()))]
    phases += [Phase("bounds", tuple((basis | held | bounds | runtime).items()))]
    made = components_phase(problem, arithmetic, cutting, k)
    beside = {"products of samples with probes": 4 * 8 * PROBES * n, "a second library of BLAS": TWICE}
    phases += [Phase(made.name, tuple((dict(made.items) | beside).items()))]
    if not cutting.stored:
        phases.append(polish_phase(problem, k, arithmetic.precision))
    if arithmetic.output and not cutting.stored:
        phases.append(writing_phase(problem, k))
    return MemoryEstimate(tuple(phases))


def _pass_phase(
    problem: Problem, arithmetic: Arithmetic, cutting: Cutting, width: int, beside: dict[str, int]
) -> Phase:
    """Memory while ranges of features are multiplied, also where products in single precision turn out not to do."""
    n, threads = problem.n_samples, thread_count(problem.machine.cores)
    tile = min(cutting.product_features, problem.n_features)
    items = beside | read_items(problem, cutting)
    planned = gram_block_bytes(n, width, tile, itemsize=arithmetic.itemsize, threads=threads)
    fewer, less = in_double(tile, threads)
    doubled = planned if arithmetic.itemsize == 8 else gram_block_bytes(n, width, fewer, itemsize=8, threads=less)
    items |= {name: max(count, doubled[name]) for name, count in planned.items()}
    items["the vectors, as handed to a task"] = 8 * n * width
    items["probes"] = PROBE_BYTES * n
    if arithmetic.workers > 1:
        items["product of another worker, as sent and merged"] = 2 * 8 * n * (width + 2 * (PROBES_OF_PASS + PROBES))
    if problem.weighted:
        items["sample weights"] = 2 * 8 * n
    runtime = RUNTIME_BYTES + TWICE + pool_bytes(problem, arithmetic, cutting)
    items["BLAS and Python"] = runtime + (THREAD_BYTES * threads if threads > 1 else 0)
    return Phase("pass", tuple(items.items()))
