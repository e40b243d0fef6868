"""Kinds of input to an estimator: tables that scikit-learn checks, images, batches, and all that can be opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from numbers import Integral
from typing import Any, TypeGuard

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_random_state

from ..readers import Collection
from ..readers.detect import is_dataset, is_lazy_frame


def is_batches(X: Any) -> TypeGuard[Iterator[Any]]:
    """Return whether samples come in batches, each of which is there once: a generator, or another iterator."""
    return isinstance(X, Iterator) and not hasattr(X, "shape")


def is_table(X: Any) -> bool:
    """Return whether scikit-learn takes `X`: a two-dimensional array, sparse or not, or data frame, or a list."""
    if isinstance(X, (str, os.PathLike, Collection)) or getattr(X, "ndim", 2) > 2 or is_lazy_frame(X) or is_dataset(X):
        return False
    if isinstance(X, (list, tuple)) and X and all(isinstance(item, (str, os.PathLike)) for item in X):
        return False  # image files
    return isinstance(X, (np.ndarray, list, tuple)) or issparse(X) or hasattr(X, "iloc") or not hasattr(X, "dtype")


def seed_of(random_state: Any) -> int:
    """Return the seed that scikit-learn's `random_state` stands for; one is drawn from generators and None."""
    is_number = isinstance(random_state, Integral)
    return int(random_state) if is_number else int(check_random_state(random_state).randint(2**31 - 1))


def stacked(X: Any) -> Any:
    """Return a list of images of one shape as an array of them, and anything else as it is."""
    if not isinstance(X, (list, tuple)) or not X or isinstance(X[0], (str, os.PathLike)) or np.ndim(X[0]) < 2:
        return X
    return np.stack(X) if len({np.shape(image) for image in X}) == 1 else X
