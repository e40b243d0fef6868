"""Equal samples: searching among a few of them gives the same neighbours as searching among all.

Neighbours at the same distance are ordered by their numbers, so only the first k + 1 of equal samples are among the k
nearest of any sample. Without the others, no sample has more than k + 1 neighbours at one point, however many black
images there are, and an exact search has only so many ties to break.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..signals import safe_point

Ints = npt.NDArray[np.intp]

PIECE = 2**18  # values that are compared at a time


def searched_samples(samples: Array, most: int) -> tuple[Ints, Ints] | None:
    """Return the samples to search among, and which of these equals each sample.

    Parameters
    ----------
    samples : ndarray of shape (n, d)
        float32 or float64, C-contiguous.
    most : int
        Number of equal samples to keep.

    Returns
    -------
    kept : ndarray of shape (m,)
        Numbers of the first `most` of equal samples, and of all others, ascending.
    places : ndarray of shape (n,)
        Place in `kept` of a sample equal to each.

    Returns None, for all samples, if no more than `most` are equal.

    Notes
    -----
    Cost: linear, and sorting n digests of 64 bits. Samples with the same digest are compared.
    """
    digests = _digests(samples)
    order = np.argsort(digests, kind="stable")
    # Runs of equal digests; the stable sort keeps samples of a run in the order of their numbers.
    starts = np.flatnonzero(np.diff(digests[order], prepend=~digests[order[:1]]))
    sizes = np.diff(starts, append=len(order))
    if sizes.max() <= most:
        return None
    first, rank = np.empty(len(order), np.intp), np.empty(len(order), np.intp)
    # For every sample: the first of its run, and its rank in the run.
    first[order] = np.repeat(order[starts], sizes)
    rank[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    step = max(1, PIECE // samples.shape[1])
    for at in range(0, len(samples), step):
        safe_point()
        rows = slice(at, at + step)
        differs = (samples[rows] != samples[first[rows]]).any(axis=1)
        numbers = at + np.flatnonzero(differs)  # different samples with the same digest
        first[numbers], rank[numbers] = numbers, 0
    kept = np.flatnonzero(rank < most)
    return kept, np.searchsorted(kept, first)


def _digests(samples: Array) -> npt.NDArray[np.uint64]:
    """Return a digest of every sample, equal for equal samples: its words times random odd numbers, added mod 2^64."""
    word = np.uint32 if samples.dtype.itemsize == 4 else np.uint64
    factors = np.random.default_rng(0).integers(0, 2**64, samples.shape[1], np.uint64) | np.uint64(1)
    digests = np.empty(len(samples), np.uint64)
    step = max(1, PIECE // samples.shape[1])
    for at in range(0, len(samples), step):
        safe_point()
        words = (samples[at : at + step] + samples.dtype.type(0)).view(word)  # turns -0.0 into 0.0, which equals it
        mixed = words.astype(np.uint64)
        # Shifts mix high into low bits, which products modulo 2^64 do not.
        mixed ^= mixed >> np.uint64(29)
        mixed *= factors
        mixed ^= mixed >> np.uint64(32)
        digests[at : at + step] = mixed.sum(axis=1, dtype=np.uint64)
    return digests
