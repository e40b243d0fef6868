"""`Target`: classes or numbers of the samples, read from a column, for supervised kinds of model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..errors import DataError, RequestError
from ..events import Assumed, Listener, silent
from ..kinds.description import Description
from ..planning.request import Request
from . import open_column
from .collection import Collection, digest


@dataclass(frozen=True, eq=False)
class Target:
    """Class of each sample, or numbers of each sample.

    Attributes
    ----------
    values : ndarray of int, shape (n,), or of float64, shape (n, l)
        Index of each sample's label in `classes`, or its l numbers.
    classes : ndarray of shape (c,) or None
        Labels, ascending; None if samples have numbers.
    """

    values: Array
    classes: Array | None = None

    @property
    def type(self) -> str:
        """Type of the values, "classes" or "numbers"."""
        return "numbers" if self.classes is None else "classes"

    @property
    def width(self) -> int:
        """Number of label features: of classes, or of the numbers of a sample."""
        return len(self.classes) if self.classes is not None else int(self.values.shape[1])

    @property
    def rank(self) -> int:
        """Largest number of label features that are independent once their means are subtracted."""
        return self.width if self.classes is None else self.width - 1

    def scatter(self, weights: Array | None = None) -> float:
        """Return the sum of squares of the label features about their means, weighted."""
        shares = np.full(len(self.values), 1.0) if weights is None else weights
        total = float(shares.sum())
        if self.classes is not None:
            return total - float(np.square(np.bincount(self.values, shares)).sum()) / total
        mean = shares @ self.values / total
        return float(shares @ np.square(self.values - mean).sum(axis=1))

    @cached_property
    def digest(self) -> str:
        """Short digest of all values."""
        return digest(self.values.tobytes(), None if self.classes is None else self.classes.tolist())

    def to_json(self) -> dict[str, Any]:
        """Return the description of the target that a model's provenance holds."""
        return {"digest": self.digest, "classes": None if self.classes is None else self.classes.tolist()}


def check_target(target: Any, model: Description) -> None:
    """Refuse a target beside a kind of model that takes none, and a supervised kind without one."""
    rule, kind = model.target_rule, model.kind
    if target is not None and not rule:
        raise RequestError(
            f"target is what supervised kinds of model learn from, and kind is {kind!r}; leave --target (target) out."
        )
    if target is None and rule:
        raise RequestError(
            f"kind {kind!r} learns from {'the action after' if rule == 'actions' else 'a label or number of'} each "
            "sample; give --target COLUMN (target=column)."
        )


def target_of(
    column: Any,
    collection: Collection,
    request: Request,
    weights: Float64 | None = None,
    *,
    taken: Target | None = None,
    listener: Listener = silent,
) -> Target | None:
    """Return the target of a collection in the form that a kind of model uses; None if it uses none.

    Parameters
    ----------
    column
        Column, see `open_column`, or numbers of shape (n, l).
    collection : Collection
        The samples.
    request : Request
        The kind of model, whose `target_rule`, `target_type` and `n_slices` count. A kind that learns from
        classes takes text, whole numbers and yes or no for these; one that learns from one number a sample takes all
        numbers for numbers, and text of two labels for 0 and 1. For a kind that learns from either, see
        `target_type_of`.
    weights : ndarray of shape (n,), optional
        Weight of each sample; nothing is learned from samples of weight 0, whose values must be valid, too.
    taken : Target, optional
        Target of more samples, whose type also applies to these.
    listener : callable
        Function that receives an event if the type is a guess.

    Raises
    ------
    RequestError
        If a target is missing or not used, has another number of values than there are samples, or could be of either
        type.
    DataError
        If all samples have one class or the same numbers, or a number is NaN or infinite.
    """
    kind, rule = request.kind, request.model.target_rule
    check_target(column, request.model)
    if column is None:
        return None
    values = open_column(column, collection, wide=rule == "features")
    counted = np.ones(len(values), bool) if weights is None else weights > 0
    if rule == "slices":
        return _slices(values, counted, collection, request.options.n_slices)
    if rule == "number":
        return _one_number(values, counted, collection, request)
    target_type = request.options.target_type if taken is None else taken.type
    if rule == "classes":
        _check_labels(values, collection, request)
        return _classes(values, counted, collection, kind)
    if target_type_of(values, collection, target_type, listener) == "classes":
        return _classes(values, counted, collection, kind)
    return _numbers(values, counted, collection)


def target_type_of(
    values: Array, collection: Collection, target_type: str = "auto", listener: Listener = silent
) -> str:
    """Return whether the values of a target are classes or numbers, by request or by their values.

    Text and yes or no are classes, and so are whole numbers in any dtype, unless more than half of the values are
    different; other numbers are numbers, and so are several numbers per sample.

    Parameters
    ----------
    values : ndarray of shape (n,) or (n, l)
        Numbers or text.
    collection : Collection
        The samples.
    target_type : {"auto", "classes", "numbers"}
    listener : callable
        Function that receives an event with the type that was guessed, if values are repeated or whole numbers.

    Returns
    -------
    {"classes", "numbers"}

    Raises
    ------
    RequestError
        If the values cannot have the requested type, or could have either: whole numbers without gaps, like numbered
        classes, more than half of which are different, but not all.
    """
    subject = f"the target of {collection.source}"
    if values.ndim > 1 and target_type == "classes":
        raise RequestError(
            f"{subject} has {values.shape[1]} numbers a sample, which are no class; give one label a sample, or leave "
            "--target-type (target_type) out."
        )
    if values.dtype.kind == "U" and target_type == "numbers":
        raise RequestError(
            f"{subject} holds text such as {str(values[0])!r}, which is no number; give --target-type classes "
            "(target_type='classes'), or numbers."
        )
    if target_type != "auto":
        return target_type
    if values.ndim > 1 or values.dtype.kind in "bU":
        return "numbers" if values.ndim > 1 else "classes"
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return "numbers"  # whose check names the sample
    return _guessed(values, subject, listener)


def _guessed(values: Array, subject: str, listener: Listener) -> str:
    """Guess the type of finite numbers, one per sample, and report it; see `target_type_of`."""
    count, n = len(np.unique(values)), len(values)
    is_whole, is_repeated = _are_whole(values), 2 * count <= n
    if not (is_whole or is_repeated):
        return "numbers"  # like measurements: not worth a warning
    least, most = float(values.min()), float(values.max())
    if is_whole and not is_repeated and count < n and most - least + 1 == count:
        raise RequestError(
            f"{subject} holds the whole numbers from {least:.0f} to {most:.0f} in {n} samples, which may be classes of "
            "few samples, or numbers; give --target-type classes or numbers (target_type='classes' or 'numbers')."
        )
    is_class = is_whole and is_repeated
    why = f"{count} of {n} values are different" if is_whole else "not all are whole"
    listener(
        Assumed(
            f"{subject} is taken for {f'{count} classes' if is_class else 'numbers'}, as "
            f"{'it holds whole numbers' if is_class else why}; give --target-type classes or numbers "
            "(target_type='classes' or 'numbers') to settle it."
        )
    )
    return "classes" if is_class else "numbers"


def _are_whole(values: Array) -> bool:
    """Return whether all numbers are whole, in any dtype."""
    return values.dtype.kind != "f" or bool((values == np.rint(values)).all())


def as_labels(values: Array, collection: Collection) -> Array:
    """Return one label for each sample: whole floats as integers, anything else as it is.

    Raises
    ------
    DataError
        If a label is NaN or infinite.
    """
    if values.dtype.kind != "f":
        return values
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise _not_finite(collection, int(bad[0]), values[bad[:1]])
    is_exact = _are_whole(values) and float(np.abs(values).max(initial=0)) < 2**53
    return values.astype(np.int64) if is_exact else values


def _check_labels(values: Array, collection: Collection, request: Request) -> None:
    """Refuse fractions for a kind that learns from classes, unless they are said to be classes."""
    if request.options.target_type == "auto" and values.dtype.kind == "f" and np.isfinite(values).all():
        bad = np.flatnonzero(values != np.rint(values))
        if len(bad):
            raise RequestError(
                f"the target of {collection.named(int(bad[0]))} is {values[bad[0]]}, and kind {request.kind!r} learns "
                "from classes; give text or whole numbers, or --target-type classes (target_type='classes'), or use "
                "another kind, such as 'supervised-pca'."
            )


def _classes(values: Array, counted: npt.NDArray[np.bool_], collection: Collection, kind: str) -> Target:
    """Return a target of classes."""
    classes, codes = np.unique(as_labels(values, collection), return_inverse=True)
    present = np.bincount(codes[counted], minlength=len(classes)) > 0
    if present.sum() < 2:
        raise DataError(
            f"the target of {collection.source} is {classes[present][0]} for every sample, and kind {kind!r} needs two "
            "classes; give another target, or samples of another class too."
        )
    return Target(codes.astype(np.intp), classes)


def _slices(values: Array, counted: npt.NDArray[np.bool_], collection: Collection, count: int) -> Target:
    """Return a target of slices of nearly equal size, named by their smallest numbers; equal numbers stay together."""
    if values.dtype.kind not in "biuf":
        raise RequestError(
            f"the target of {collection.source} holds text such as {str(values[0])!r}, and slices are of sorted "
            "numbers; give numbers, or use kind 'fisher-discriminant' for classes."
        )
    numbers = _numbers(values, counted, collection).values
    seen = np.sort(numbers[counted, 0])
    edges = np.unique(seen[[part * len(seen) // count for part in range(1, count)]])
    edges = edges[edges > seen[0]]
    if not len(edges):  # the smallest number fills all slices except a part of the last
        edges = seen[seen > seen[0]][:1]
    return Target(np.searchsorted(edges, numbers[:, 0], side="right"), np.concatenate([seen[:1], edges]))


def _one_number(values: Array, counted: npt.NDArray[np.bool_], collection: Collection, request: Request) -> Target:
    """Return a target of one number a sample, or of two labels that stand for 0 and 1."""
    if values.dtype.kind in "biuf" or target_type_of(values, collection, request.options.target_type) == "numbers":
        return _numbers(values, counted, collection)
    target, kind = _classes(values, counted, collection, request.kind), request.kind
    if target.width > 2:
        raise RequestError(
            f"the target of {collection.source} has {target.width} labels, and kind {kind!r} learns from a number or "
            "from two labels; give numbers, leave samples of other labels out (--where, where=), or use kind "
            "'supervised-pca'."
        )
    return target


def _numbers(values: Array, counted: npt.NDArray[np.bool_], collection: Collection) -> Target:
    """Return a target of numbers."""
    numbers = values.astype(np.float64).reshape(len(values), -1)
    bad = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
    if len(bad):
        raise _not_finite(collection, int(bad[0]), numbers[bad[0]])
    seen = numbers[counted]
    if (seen == seen[:1]).all():
        raise DataError(
            f"the target of {collection.source} is {seen[0].tolist()} for every sample, from which nothing can be "
            "learned; give another target."
        )
    return Target(numbers)


def _not_finite(collection: Collection, at: int, value: Array) -> DataError:
    """Return the error for a target that is NaN or infinite."""
    return DataError(
        f"the target of {collection.named(at)} is {value.tolist()}; give finite numbers, or leave samples without one "
        "out (samples=, where=)."
    )
