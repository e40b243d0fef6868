"""Landmarks of a feature map: samples that all others are compared with.

The choice depends on nothing but the samples and a seed, so that a resumed fit makes it again.

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

from ..accumulators.products import double_products
from ..arrays import Array, Float64
from ..errors import DataError, RequestError
from ..events import BlockDone, Listener, PassStarted, reported, silent
from ..machine import hand_back
from ..planning.landmarks import NAME, LandmarkSizes, check_landmarks
from ..preprocessing import Prepared
from ..preprocessing.feature_map import FeatureMap, FourierMap, KernelMap
from ..preprocessing.kernel_features import KernelFeatures
from ..preprocessing.kernels import MEDIAN_OF, Kernel
from ..preprocessing.sizes_for_planning import problem_of
from ..readers.collection import unchanged
from ..readers.views.chosen import Chosen
from ..signals import safe_point

Places = npt.NDArray[np.intp]

CANDIDATES = 5  # samples read for each landmark that k-means++ or leverage scores choose among them
READ_BYTES = 2**23  # bytes of samples read at a time


def mapped_for(
    collection: Prepared,
    features: KernelFeatures,
    *,
    weights: Float64 | None = None,
    memory: int | None = None,
    foreseen: bool = False,
    device: str = "",
    listener: Listener = silent,
) -> Prepared:
    """Return a collection behind a feature map whose landmarks are chosen among its samples.

    Parameters
    ----------
    collection : Prepared
        Collection before the map; read once, or not at all if the map is `foreseen`.
    features : KernelFeatures
        Options of the map.
    weights, memory, foreseen, listener
        As for `learned_for`. Samples of weight 0 never become landmarks; foreseen arrays may be larger than the final
        ones.
    device : str
        Device that compares samples with landmarks, by default the processor.

    Raises
    ------
    RequestError
        If there are fewer samples than landmarks, or a user's own kernel is not symmetric or positive.
    DataError
        If a chosen sample, or a value of the kernel, is NaN or infinite.
    BudgetError
        If the map does not fit the budget; before samples are read.
    """
    n, p = collection.n_samples, collection.n_features
    places = np.arange(n) if weights is None else np.flatnonzero(weights)
    count = 0 if features.random_features is not None else features.count_of(len(places))
    n_read = _rows_to_read(features, count, len(places))
    mapping = features.foreseen(len(places), p, collection.dtype)
    kernel, problem = features.kernel, problem_of(collection)
    sizes = LandmarkSizes(problem=problem, landmarks=count, rows=n_read, weights=mapping.held_bytes)
    check_landmarks(sizes, memory, median=not kernel.is_resolved, is_exact=features.is_exact)
    if not foreseen:
        random = np.random.default_rng(features.seed)
        sample = _read(collection, np.sort(random.permutation(places)[:n_read]), listener)
        if n_read < len(places):  # in a random order, so that the first rows are a uniform choice; else as stored
            sample = sample[random.permutation(n_read)]
        mapping = _map_of(sample, features, count)
        kernel = mapping.kernel
    mapping = mapping.on(double_products(device))
    steps = replace(collection.preparation, feature_map=replace(features, kernel=kernel), mapped=mapping)
    made = collection.with_steps(steps)
    made.learning_bytes = max(collection.learning_bytes, sizes.memory_estimate.total)
    return made


def _rows_to_read(features: KernelFeatures, landmarks: int, n: int) -> int:
    """Return the number of samples to read: landmarks, more to choose among, or enough for a median of distances."""
    if features.is_exact:
        return n
    among = landmarks if features.choice == "uniform" else CANDIDATES * landmarks
    return min(n, max(among, 1 if features.kernel.is_resolved else MEDIAN_OF, 1))


def sampled(collection: Prepared, weights: Float64 | None, count: int, seed: tuple[int, ...]) -> tuple[Array, Places]:
    """Return up to `count` random samples of weight above 0, (m, p), and their places, ascending."""
    candidates = np.arange(collection.n_samples) if weights is None else np.flatnonzero(weights)
    places = np.sort(np.random.default_rng(seed).permutation(candidates)[:count])
    return _read(collection, places, silent), places


def _read(collection: Prepared, places: Places, listener: Listener) -> Array:
    """Read the samples at ascending places, (m, p), in blocks."""
    count = len(places)
    chosen = (
        collection
        if count == collection.n_samples
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
    """Refuse NaN and infinity in the rows of samples from number `start` on, naming the first such sample."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise DataError(
            f"{collection.named(start + int(np.argmin(finite)))} holds NaN or infinity, and so cannot be compared "
            "with others; leave such samples out, with --missing drop-samples (missing='drop-samples')."
        )


def _map_of(sample: Array, features: KernelFeatures, count: int) -> FeatureMap:
    """Return the feature map by landmarks of a sample, or by random features about its mean."""
    kernel, seed = features.kernel.resolved(sample), features.seed
    if features.random_features is not None:
        return FourierMap.random(kernel, sample.mean(axis=0, dtype=np.float64), features.random_features, seed)
    landmarks = sample if count == len(sample) else CHOOSE[features.choice](sample, kernel, count, seed)
    return KernelMap.nystroem(kernel, landmarks, rank=features.rank, centred=features.is_centred)


def _far_apart(sample: Array, kernel: Kernel, count: int, seed: int) -> Array:
    """Draw landmarks by k-means++, in the kernel's feature space.

    The probability of a sample is proportional to its squared distance to the nearest landmark drawn before.
    """
    random, origin = np.random.default_rng([2, seed]), sample.mean(axis=0, dtype=np.float64)
    rows = kernel.compared(sample, origin)
    squared_norms = kernel.diagonal(rows)
    chosen, nearest = [int(random.integers(len(rows)))], np.full(len(rows), np.inf)
    while len(chosen) < count:
        safe_point()
        last = chosen[-1]
        distances: Float64 = squared_norms + squared_norms[last] - 2 * kernel.between(rows[last : last + 1], rows)[0]
        np.minimum(nearest, np.maximum(distances, 0), out=nearest)
        nearest[last] = 0  # rounding may have left a little, and no sample is drawn twice
        total = float(nearest.sum())
        if not total > 0:
            raise RequestError(
                f"the kernel tells only {len(chosen)} points of the samples apart, and landmarks={count}; give at most "
                f"{len(chosen)}."
            )
        chosen.append(int(random.choice(len(rows), p=nearest / total)))
    landmarks: Array = sample[np.sort(chosen)]
    return landmarks


def _by_leverage(sample: Array, kernel: Kernel, count: int, seed: int) -> Array:
    """Draw landmarks by ridge leverage scores, which the map of uniformly chosen landmarks approximates."""
    first = KernelMap.nystroem(kernel, sample[:count], centred=kernel.centred_only)
    rows = first(sample)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    residuals: Float64 = np.maximum(first.squared_norms(sample) - np.square(rows).sum(axis=1), 0)
    # The tail beyond half of the landmarks, over the other half, is a ridge at which scores add up to at most `count`.
    tail = np.sort(values)[::-1][count // 2 :]
    ridge = (max(float(tail.sum()), 0.0) + float(residuals.sum())) / max(1, count - count // 2)
    ridge = max(ridge, np.finfo(float).eps * float(values.max()))
    # The squared norm that the first landmarks leave out adds to a sample's leverage (Musco and Musco, lemma 6).
    scores = np.square(rows @ vectors / np.sqrt(np.maximum(values, 0) + ridge)).sum(axis=1) + residuals / ridge
    random, scores = np.random.default_rng([3, seed]), np.maximum(scores, np.finfo(float).tiny)
    places = np.sort(random.choice(len(sample), count, replace=False, p=scores / scores.sum()))
    landmarks: Array = sample[places]
    return landmarks


# Each chooses among the rows of a random sample, by a kernel, so many landmarks, with a seed.
CHOOSE: dict[str, Callable[[Array, Kernel, int, int], Array]] = {
    "uniform": lambda sample, kernel, count, seed: sample[:count].copy(),
    "k-means++": _far_apart,
    "leverage": _by_leverage,
}
