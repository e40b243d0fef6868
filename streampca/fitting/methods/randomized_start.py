"""Start of block Lanczos: the components of a few samples, and random columns.

From the sample alone, the iteration can converge to the wrong components, with small residuals: directions that the
sample lacks are never multiplied. Random columns contain a part of every direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from ...accumulators import not_finite
from ...accumulators.centering import GRID_ROWS, rounded_centre
from ...accumulators.products import products_on
from ...accumulators.sparse_rows import sparse_centre
from ...arrays import Array, Float64
from ...execution.threads import one_blas_thread
from ...planning import SAMPLE_RUNS, sample_rows
from ...planning.blocks import Span
from ...planning.decoding import runs_within
from ...readers import Collection
from .data_checks import bad_sample
from .job import Job

RANDOM = 10  # number of random columns, at most half of a narrow block
NEGLIGIBLE = 1e-10  # share of the sample's first variance below which directions are dropped
_STREAM = 2  # separates these draws from the start blocks of solvers


@dataclass(frozen=True)
class Start:
    """Centre and first block of an iteration.

    Attributes
    ----------
    centre : ndarray of shape (p,)
        Mean of the sample; rounded for whole numbers, and where one subtraction does.
    block : ndarray of shape (p, l)
        Columns that span the first block; not orthogonal.
    """

    centre: Float64
    block: Float64


@one_blas_thread()
def started(job: Job) -> Start:
    """Read a sample, and return the start of the iteration.

    Raises
    ------
    DataError
        If one of its samples holds NaN or infinity.
    """
    collection, width = job.collection, job.plan.width
    if job.plan.sparse:
        return _sparse_start(job)
    n = collection.n_samples
    runs = sample_runs(n, sample_rows(n, collection.n_features, width), collection.chunks.samples)
    rows = _sampled(collection, runs, job.weights)
    exponent = int(np.frexp(np.abs(rows).max())[1])
    np.ldexp(rows, -exponent, out=rows)  # exact, and prevents overflow of sums and differences of the largest numbers
    mean = rows.mean(axis=0, dtype=np.float64)
    centre = np.ldexp(mean, exponent)
    rows -= mean.astype(rows.dtype)
    spread = float(np.ldexp(np.sqrt(np.mean(np.square(rows[:: max(1, len(rows) // GRID_ROWS)]))), exponent))
    # The scale does not change directions, and without it squares could overflow.
    rows /= max(float(np.abs(rows).max()), np.finfo(rows.dtype).tiny)
    centre = np.rint(centre) if collection.dtype.kind in "biu" else rounded_centre(centre, spread, job.plan.precision)
    random = min(RANDOM, -(-width // 2))
    block: Float64 = np.empty((collection.n_features, width), order="F")
    leading = leading_vectors(rows, width - random, job.plan.request.device)
    block[:, : leading.shape[1]] = leading
    rng = np.random.default_rng([_STREAM, job.plan.request.seed])
    for column in range(leading.shape[1], width):
        # Columns of about unit length, one at a time to save memory.
        block[:, column] = rng.standard_normal(len(block)) / len(block) ** 0.5
    return Start(centre, block)


def _sparse_start(job: Job) -> Start:
    """Return the centre of sparse samples, and a random block: narrow blocks gain nothing by a sample."""
    collection, rng = job.collection, np.random.default_rng([_STREAM, job.plan.request.seed])
    rows = collection.read_sparse(slice(0, collection.n_samples))
    centre = sparse_centre(rows if job.weights is None else rows[np.flatnonzero(job.weights)])
    block = rng.standard_normal((collection.n_features, job.plan.width))
    return Start(np.rint(centre) if collection.dtype.kind in "biu" else centre, block)


def sample_runs(n: int, count: int, chunk: int) -> list[Span]:
    """Return runs of about `count` samples, spread over `n`; each begins with a chunk and stays inside it, or a few."""
    runs, chunk = runs_within(count, chunk, SAMPLE_RUNS)
    # Rounded down to beginnings of chunks, without repetition.
    starts = sorted({i * n // runs // chunk * chunk for i in range(runs)})
    size = -(-count // len(starts))  # with few large chunks, runs are longer
    ends = [*starts[1:], n]
    return [Span(start, min(start + size, end)) for start, end in zip(starts, ends, strict=True)]


def _sampled(collection: Collection, runs: list[Span], weights: Float64 | None) -> Array:
    """Read the samples of nonzero weight in runs, or the first such sample, as float32 if that is exact."""
    narrow = collection.dtype.itemsize <= (4 if collection.dtype.kind == "f" else 2)
    rows = np.empty((sum(run.size for run in runs), collection.n_features), np.float32 if narrow else np.float64)
    filled = 0
    for run in runs:
        read = collection.read(slice(*run))
        target = rows[filled : filled + len(read)]
        target[...] = read
        kept = np.arange(len(read)) if weights is None else np.flatnonzero(weights[slice(*run)])
        bad = kept[~np.isfinite(target[kept]).all(axis=1)]
        if len(bad):
            raise bad_sample(not_finite(read[bad[0] :][:1], run.start + int(bad[0]), "double"), collection)
        # Keep samples of nonzero weight, in place.
        target[: len(kept)] = target[kept]
        filled += len(kept)
    if filled == 0 and weights is not None:
        first = int(np.argmax(weights > 0))
        return _sampled(collection, [Span(first, first + 1)], None)
    return rows[:filled]


def leading_vectors(rows: Array, count: int, device: str) -> Float64:
    """Return approximate leading right singular vectors of centred rows, (p, count) or fewer, by products on a device.

    Few rows: the small Gram matrix gives the right singular vectors.
    """
    first = max(0, len(rows) - count)
    if count <= 0 or not len(rows):
        return np.empty((rows.shape[1], 0))
    products = products_on(device, rows.dtype, one_thread=True)
    block, gram = products.block(rows), products.sum(np.zeros((len(rows), len(rows)), order="F"))
    products.symmetric(block, gram)
    products.add(gram)
    upper = gram.values
    products.release()
    values, vectors = eigh(upper, subset_by_index=(first, len(rows) - 1), lower=False, check_finite=False)
    kept = values > NEGLIGIBLE * values[-1]
    turned = (vectors[:, kept] / np.sqrt(values[kept])).astype(rows.dtype)
    return np.asarray(block.combined(turned.T).T[:, ::-1], np.float64)
