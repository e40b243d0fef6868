"""Equal samples: a search among few of them finds the same neighbours as one among all.

Neighbours at one distance are taken by their numbers. Of equal samples, therefore, only the first k + 1 are among the k
nearest of any sample. Without the others no sample has more than k + 1 neighbours at one place, however many black
images there are, and an exact search has no more ties than that to break.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..signals import safe_point

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.intp]

PIECE = 2**18  # values that are compared at a time


def searched_samples(samples: Array, most: int) -> tuple[Ints, Ints] | None:
    """Return which samples are searched among, and where among them each sample has its like.

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

    None stands for all samples, where no more than `most` are equal.

    Notes
    -----
    Cost: linear, and sorting n digests of 64 bits. Samples of one digest are compared.
    """
    digests = _digests(samples)
    order = np.argsort(digests, kind="stable")
    starts = np.flatnonzero(np.diff(digests[order], prepend=~digests[order[:1]]))
    sizes = np.diff(starts, append=len(order))
    if sizes.max() <= most:
        return None
    first, rank = np.empty(len(order), np.intp), np.empty(len(order), np.intp)
    first[order] = np.repeat(order[starts], sizes)
    rank[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    step = max(1, PIECE // samples.shape[1])
    for at in range(0, len(samples), step):
        safe_point()
        some = slice(at, at + step)
        differs = (samples[some] != samples[first[some]]).any(axis=1)
        numbers = at + np.flatnonzero(differs)  # whose digest is another's by chance
        first[numbers], rank[numbers] = numbers, 0
    kept = np.flatnonzero(rank < most)
    return kept, np.searchsorted(kept, first)


def _digests(samples: Array) -> npt.NDArray[np.uint64]:
    """Return a digest of every sample, equal for equal ones: a sum of its words times random odd numbers, mod 2^64."""
    word = np.uint32 if samples.dtype.itemsize == 4 else np.uint64
    factors = np.random.default_rng(0).integers(0, 2**64, samples.shape[1], np.uint64) | np.uint64(1)
    digests = np.empty(len(samples), np.uint64)
    step = max(1, PIECE // samples.shape[1])
    for at in range(0, len(samples), step):
        safe_point()
        words = (samples[at : at + step] + samples.dtype.type(0)).view(word)  # -0.0 is 0.0
        mixed = words.astype(np.uint64)
        mixed ^= mixed >> np.uint64(29)
        mixed *= factors
        mixed ^= mixed >> np.uint64(32)
        digests[at : at + step] = mixed.sum(axis=1, dtype=np.uint64)
    return digests
