"""Landmarks of a feature map: samples, chosen over a stream, that all others are compared with.

All choices depend on a seed alone, so that a resumed fit chooses the same again.

References
----------
Zhang, Tsang and Kwok (2008), Improved Nyström low-rank approximation and error analysis (k-means).
Arthur and Vassilvitskii (2007), k-means++: the advantages of careful seeding.
Musco and Musco (2017), Recursive sampling for the Nyström method (ridge leverage scores).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..errors import DataError, RequestError
from ..events import BlockDone, Listener, PassStarted, reported, silent
from ..machine import hand_back
from ..planning.landmarks import NAME, LandmarkSizes, check_landmarks
from ..preprocessing import Prepared
from ..preprocessing.feature_map import FeatureMap, FourierMap, KernelMap
from ..preprocessing.kernel_features import KernelFeatures
from ..preprocessing.kernels import MEDIAN_OF, Kernel
from ..preprocessing.sizes_for_planning import problem_of
from ..readers.collection import Array, unchanged
from ..readers.views.chosen import Chosen
from ..signals import safe_point

Float64 = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

CANDIDATES = 5  # samples for each landmark, which k-means++ and leverage scores choose among
READ_BYTES = 2**23  # bytes of samples read at a time


def mapped_for(
    collection: Prepared,
    wanted: KernelFeatures,
    *,
    weights: Float64 | None = None,
    memory: int | None = None,
    foreseen: bool = False,
    listener: Listener = silent,
) -> Prepared:
    """Return a collection seen through a feature map whose landmarks are chosen among its samples.

    Parameters
    ----------
    collection : Prepared
        Collection before the map; read once, or not at all if it is `foreseen`.
    wanted : KernelFeatures
        Map that is asked for.
    weights, memory, foreseen, listener
        As for `learned_for`. Samples of weight 0 become no landmarks; foreseen arrays may be larger than those made.

    Raises
    ------
    RequestError
        If there are fewer samples than landmarks, or the kernel is not one.
    DataError
        If a sample that is chosen holds NaN or infinity, or the kernel does.
    BudgetError
        If the map does not fit the budget; before samples are read.
    """
    n, p = collection.n_samples, collection.n_features
    known = np.arange(n) if weights is None else np.flatnonzero(weights)
    count = 0 if wanted.random_features is not None else wanted.count_of(len(known))
    rows = _rows_to_read(wanted, count, len(known))
    like = wanted.foreseen(len(known), p, collection.dtype)
    problem = problem_of(collection)
    sizes = LandmarkSizes(problem=problem, landmarks=count, rows=rows, weights=like.held_bytes)
    check_landmarks(sizes, memory, median=not wanted.kernel.is_resolved)
    if foreseen:
        found, kernel = like, wanted.kernel
    else:
        found = _made(_sample(collection, known, rows, wanted.seed, listener), wanted, count)
        kernel = found.kernel
    steps = replace(collection.preparation, feature_map=replace(wanted, kernel=kernel), mapped=found)
    made = collection.with_steps(steps)
    made.learning_bytes = max(collection.learning_bytes, sizes.memory_estimate.total)
    return made


def _rows_to_read(wanted: KernelFeatures, landmarks: int, n: int) -> int:
    """Return the number of samples to read: landmarks, more to choose among, or enough for a median of distances."""
    if wanted.is_exact:
        return n
    among = landmarks if wanted.choice == "uniform" else CANDIDATES * landmarks
    return min(n, max(among, 1 if wanted.kernel.is_resolved else MEDIAN_OF, 1))


def sampled(collection: Prepared, weights: Float64 | None, count: int, seed: tuple[int, ...]) -> tuple[Array, Places]:
    """Return at most so many samples, chosen uniformly among those that count, (m, p), and their places, ascending."""
    known = np.arange(collection.n_samples) if weights is None else np.flatnonzero(weights)
    places = np.sort(np.random.default_rng(seed).permutation(known)[:count])
    return _read(collection, places, silent), places


def _sample(collection: Prepared, known: Places, count: int, seed: int, listener: Listener) -> Array:
    """Read samples chosen uniformly, (count, p), in a random order; where all are read, in the order stored."""
    random = np.random.default_rng(seed)
    rows = _read(collection, np.sort(random.permutation(known)[:count]), listener)
    return rows[random.permutation(count)] if count < len(known) else rows


def _read(collection: Prepared, places: Places, listener: Listener) -> Array:
    """Read the samples at some places, ascending."""
    count = len(places)
    chosen = (
        collection
        if len(places) == collection.n_samples
        else Prepared(Chosen(collection.raw, places), collection.preparation)
    )
    size = max(1, READ_BYTES // collection.row_bytes)
    rows = np.empty((count, collection.n_features), collection.dtype)
    with reported(listener, PassStarted(NAME, 1, 1, count, count * collection.row_bytes)), unchanged(collection):
        for start in range(0, count, size):
            block = slice(start, min(start + size, count))
            rows[block] = chosen.read(block)
            _check_finite(rows[block], chosen, start)
            listener(BlockDone(block.stop - start, (block.stop - start) * collection.row_bytes))
    hand_back()
    return rows


def _check_finite(rows: Array, collection: Prepared, start: int) -> None:
    """Refuse rows of samples from number `start` on that are not finite, naming the first."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise DataError(
            f"{collection.named(start + int(np.argmin(finite)))} holds NaN or infinity, and so is not to be compared "
            "with others; leave such samples out, with --missing drop-samples (missing='drop-samples')."
        )


def _made(sample: Array, wanted: KernelFeatures, count: int) -> FeatureMap:
    """Return the map that follows from a sample."""
    kernel = wanted.kernel.resolved(sample)
    if wanted.random_features is not None:
        return FourierMap.random(kernel, sample.mean(axis=0, dtype=np.float64), wanted.random_features, wanted.seed)
    landmarks = sample if count == len(sample) else CHOOSE[wanted.choice](sample, kernel, count, wanted.seed)
    return KernelMap.nystroem(kernel, landmarks, rank=wanted.rank, centred=wanted.is_centred)


def _uniform(sample: Array, kernel: Kernel, count: int, seed: int) -> Array:
    return sample[:count].copy()


def _far_apart(sample: Array, kernel: Kernel, count: int, seed: int) -> Array:
    """Draw landmarks by k-means++, each with a probability proportional to its squared distance from those before.

    Distances are those of the kernel's features.
    """
    random, origin = np.random.default_rng([2, seed]), sample.mean(axis=0, dtype=np.float64)
    rows = kernel.compared(sample, origin)
    own = kernel.diagonal(rows)
    chosen, nearest = [int(random.integers(len(rows)))], np.full(len(rows), np.inf)
    while len(chosen) < count:
        safe_point()
        last = chosen[-1]
        distances: Float64 = own + own[last] - 2 * kernel.between(rows[last : last + 1], rows)[0]
        np.minimum(nearest, np.maximum(distances, 0), out=nearest)
        nearest[last] = 0
        total = float(nearest.sum())
        if not total > 0:
            raise RequestError(
                f"the samples have only {len(chosen)} points that the kernel tells apart, and landmarks={count} are "
                f"asked for; give at most {len(chosen)}."
            )
        chosen.append(int(random.choice(len(rows), p=nearest / total)))
    found: Array = sample[np.sort(chosen)]
    return found


def _by_leverage(sample: Array, kernel: Kernel, count: int, seed: int) -> Array:
    """Draw landmarks by their ridge leverage scores, approximated by the map of landmarks chosen uniformly."""
    first = KernelMap.nystroem(kernel, sample[:count], centred=kernel.centred_only)
    rows = first(sample)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    left = _left_out(first, sample, rows)
    tail = np.sort(values)[::-1][count // 2 :]
    ridge = (max(float(tail.sum()), 0.0) + float(left.sum())) / max(1, count - count // 2)
    ridge = max(ridge, np.finfo(float).eps * float(values.max()))
    # The squared norm that the first landmarks leave out adds to a sample's leverage (Musco and Musco, lemma 6).
    scores = np.square(rows @ vectors / np.sqrt(np.maximum(values, 0) + ridge)).sum(axis=1) + left / ridge
    random, scores = np.random.default_rng([3, seed]), np.maximum(scores, np.finfo(float).tiny)
    places = np.sort(random.choice(len(sample), count, replace=False, p=scores / scores.sum()))
    chosen: Array = sample[places]
    return chosen


def _left_out(mapping: KernelMap, sample: Array, rows: Float64) -> Float64:
    """Return the squared norm that a map leaves out of each sample in feature space, (n,)."""
    own: Float64 = mapping.squared_norms(sample) - np.square(rows).sum(axis=1)
    return np.maximum(own, 0)


CHOOSE: dict[str, Callable[[Array, Kernel, int, int], Array]] = {
    "uniform": _uniform,
    "k-means++": _far_apart,
    "leverage": _by_leverage,
}
