"""`KernelSide`: one of the two collections whose dependence is measured, with its kernel and feature map."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..accumulators.finite import has_safe_squares, not_finite
from ..arrays import Array, Float64
from ..errors import DataError, RequestError
from ..events import Listener
from ..planning.hsic import DELTA, HsicRequest, Side
from ..preprocessing.exact_maps import ClassMap, IdentityMap
from ..preprocessing.feature_map import FourierMap, KernelMap
from ..preprocessing.kernels import AUTO, Kernel
from ..preprocessing.sizes_for_planning import problem_of
from ..readers import Collection, open_collection, open_column
from ..readers.collection import digest
from ..readers.target import as_labels, target_type_of
from ..readers.views.chosen import Chosen, compact
from .methods.data_checks import bad_sample

SideMap = ClassMap | IdentityMap | KernelMap | FourierMap

CHECKED = 100  # rows on which a user's own kernel is checked, and whose mean kernel is the level


@dataclass(frozen=True)
class KernelSide:
    """Collection with a kernel of its samples.

    Attributes
    ----------
    collection : Collection
        Samples, or with `classes` the number of each sample's class from 0, (n, 1).
    kernel : Kernel
        Kernel of the samples.
    classes : ndarray of shape (c,) or None
        Labels of the classes, which the delta kernel compares; None for other kernels.
    origin : ndarray of shape (p,)
        Point near the samples, subtracted if the kernel is linear or depends on differences, for accuracy.
    level : float
        Approximate mean of the kernel between samples.
    """

    collection: Collection
    kernel: Kernel
    classes: Array | None = None
    origin: Float64 | None = None
    level: float = 0.0

    @property
    def sizes(self) -> Side:
        """Sizes for planning."""
        if self.classes is not None:
            width: int | None = len(self.classes)
        else:
            width = self.collection.n_features if self.kernel.name == "linear" else None
        name = self.kernel.name if self.classes is None else DELTA
        return Side(problem_of(self.collection), width, name)

    @property
    def gamma(self) -> float | None:
        """Gamma of the resolved kernel; None for kernels without one."""
        gamma = None if self.classes is not None else self.kernel.to_json().get("gamma")
        return None if gamma is None else float(gamma)

    @property
    def identity(self) -> dict[str, Any]:
        """Kernel and classes as plain data, for checkpoints."""
        codes = None if self.classes is None else digest(self.collection.read(slice(0, len(self.collection))).tobytes())
        return {**self.kernel.to_json(), "classes": codes}

    def __str__(self) -> str:
        return str(self.kernel) if self.classes is None else f"{DELTA} ({len(self.classes)} classes)"

    def read(self, rows: slice) -> Array:
        """Read samples; raise a DataError that names a sample with NaN or infinity."""
        return checked(self.collection.read(rows), self.collection, rows.start)

    def read_rows(self, places: npt.NDArray[np.intp], within: slice = slice(None)) -> Array:
        """Read the samples at ascending places, or at a range of these, all finite; raises as `read`."""
        start, stop, _ = within.indices(len(places))
        n = self.collection.n_samples
        chosen = self.collection if len(places) == n else Chosen(self.collection, compact(places, n))
        return checked(chosen.read(slice(start, stop)), chosen, start)

    def resolved(self, random: np.random.Generator) -> KernelSide:
        """Return the side with the origin, level and parameters of the kernel found in a random sample.

        Raises
        ------
        RequestError
            If gamma is automatic and most samples are equal, or a user's own kernel is not symmetric or positive.
        """
        if self.classes is not None:
            return self
        rows = self.read_rows(drawn(self.collection.n_samples, self.sizes.median_rows, random))
        kernel, origin = self.kernel.resolved(rows), rows.mean(axis=0, dtype=np.float64)
        resolved, few = replace(self, kernel=kernel, origin=origin), rows[:CHECKED]
        matrix = resolved.matrix(few, few.copy())  # given one array twice, scikit-learn computes one half only
        if kernel.function is not None:
            KernelMap.nystroem(kernel, few)  # refuses a kernel that is not symmetric, or not positive
        if not np.isfinite(matrix).all():
            raise DataError(f"kernel {kernel} of some samples is NaN or infinite; give a smaller gamma or degree.")
        return replace(resolved, level=float(matrix.mean()))

    def matrix(self, rows: Array, others: Array) -> Float64:
        """Return the kernel between rows (n, p) and others (m, p), shape (n, m)."""
        if self.classes is not None:
            equal: Float64 = (rows == others.T).astype(np.float64)
            return equal
        if self.kernel.name == "linear":
            assert self.origin is not None  # noqa: S101 - resolved
            product: Float64 = (rows - self.origin) @ (others - self.origin).T
            return product
        with np.errstate(over="ignore", invalid="ignore"):  # the estimates are checked for infinity in the end
            return self.kernel.matrix(rows, others, self.origin)

    def feature_map(self, method: str, request: HsicRequest, random: np.random.Generator) -> SideMap:
        """Return the map to features whose inner products are the kernel: exact, of landmarks, or Fourier's."""
        sizes = self.sizes
        width = sizes.width(method, request)
        if sizes.is_exact(method, request):
            if self.classes is not None:
                return ClassMap(n_features=width)
            assert self.origin is not None  # noqa: S101 - resolved
            return IdentityMap(origin=self.origin)
        if method == "fourier":
            assert self.origin is not None  # noqa: S101 - resolved
            return FourierMap.random(self.kernel, self.origin, width, random)
        landmarks = self.read_rows(drawn(self.collection.n_samples, width, random))
        return KernelMap.nystroem(self.kernel, landmarks)


def drawn(n: int, count: int, random: np.random.Generator) -> npt.NDArray[np.intp]:
    """Draw `count` of n samples without replacement, ascending; all if n is no larger."""
    return np.arange(n) if count >= n else np.sort(random.choice(n, count, replace=False))


def checked(rows: Array, collection: Collection, at: int) -> Array:
    """Return rows unchanged; raise a DataError that names a sample with NaN or infinity."""
    if not has_safe_squares(rows, "double"):
        raise bad_sample(
            not_finite(rows, at, "double"), collection, "Leave it out of both collections (samples=, where=)."
        )
    return rows


def kernel_of(kernel: str | Kernel, gamma: float | str | None) -> Kernel:
    """Return a kernel that is given as an object, or by its name and gamma.

    Raises
    ------
    RequestError
        If there is no such kernel, or gamma is given beside an object.
    """
    if not isinstance(kernel, Kernel):
        return Kernel(kernel, gamma=gamma)
    if gamma != AUTO:
        raise RequestError(
            f"gamma {gamma!r} is for kernels given by name; give Kernel({kernel.name!r}, gamma={gamma!r}), or the name."
        )
    return kernel


def target_side(target: Any, collection: Collection, request: HsicRequest, listener: Listener) -> KernelSide:
    """Return the side of a target: labels compared by the delta kernel, or numbers, by the given kernel.

    Raises
    ------
    DataError
        If all labels are equal, or all are different.
    RequestError
        If a kernel of numbers is given for text or classes; and as `target_type_of`.
    """
    values, kernel, target_type = open_column(target, collection), request.y_kernel, request.target_type
    if kernel is not None and values.dtype.kind == "U":
        raise RequestError(
            f"the target of {collection.source} is text, such as {str(values[0])!r}; leave its kernel out."
        )
    if kernel is not None and target_type == "classes":
        raise RequestError(f"kernel {kernel} compares numbers, and target_type is 'classes'; leave one of the two out.")
    declared_type = "numbers" if kernel is not None else target_type
    if target_type_of(values, collection, declared_type, listener) == "classes":
        classes, codes = np.unique(as_labels(values, collection), return_inverse=True)
        if len(classes) < 2:
            raise DataError(
                f"the target of {collection.source} is {classes[0]} for every sample, and dependence needs two "
                "classes; give another target, or samples of another class too."
            )
        if len(classes) == len(values):
            raise DataError(
                f"the target of {collection.source} differs for each of its {len(values)} samples, so it has no "
                "classes; give labels that several samples share, or numbers with --target-type numbers "
                "(target_type='numbers')."
            )
        return KernelSide(_as_collection(codes.astype(np.int64), target), Kernel("linear"), classes)
    return KernelSide(_as_collection(values, target), kernel_of(kernel or "rbf", request.y_gamma))


def _as_collection(values: Array, target: Any) -> Collection:
    """Return a collection of one value a sample, named after the source of the values."""
    collection = open_collection(values[:, None])
    collection.source = os.fspath(target) if isinstance(target, (str, os.PathLike)) else "target"
    return collection
