"""`Subspace`: a mean and components that project and reconstruct plain rows, without names or units.

Components can be larger than memory: scores are summed, and rows are assembled, over ranges of features, each with its
part of the mean and of the components.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from threading import Lock
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from .. import machine
from ..accumulators.finite import incomplete_rows
from ..accumulators.products import Block, Products, products_on
from ..accumulators.sparse_rows import product_about
from ..arrays import Array, Float64, is_sparse
from ..kinds.run import run_of
from ..planning.blocks import Span, blocks_of
from ..planning.device import check_applied, rows_on_device
from ..signals import safe_point
from ..storage.components import StoredRows
from .least_squares import NormalEquations, groups

_ONE_AT_A_TIME = Lock()
PIECE = 2**17  # values whose squares are added at a time: 1 MiB in float64, which stays in the cache
# Samples are centred and multiplied by tiles of this size, in a buffer that is used again: 3.4 ms in place of 4.5 for
# 3000 samples of 784 features. A tile has at least TILE_ROWS rows, as every tile reads all components.
TILE_BYTES, TILE_ROWS = 2**21, 64


def working_dtype(rows: npt.DTypeLike, components: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype in which rows and components are multiplied, which is that of the result.

    float32 if the components are and the rows are integers of up to 16 bits or floats of up to 32; else float64.
    """
    dtype = np.dtype(rows)
    narrow = dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    return np.dtype(np.float32 if narrow and np.dtype(components) == np.float32 else np.float64)


def squared_lengths(rows: Array, others: Array) -> Float64:
    """Return the squared distance between each row and another, shape (m,), in float64, a piece at a time.

    Parameters
    ----------
    rows : ndarray of shape (m, p)
        Rows of any dtype.
    others : ndarray of shape (p,) or (m, p)
        One row for all, or one for each.
    """
    lengths, others = np.zeros(len(rows)), np.broadcast_to(others, rows.shape)
    step = max(1, PIECE // rows.shape[1])
    for row, feature in product(range(0, rows.shape[0], step), range(0, rows.shape[1], PIECE)):
        block, features = slice(row, row + step), slice(feature, feature + PIECE)
        difference = np.subtract(rows[block, features], others[block, features], dtype=np.float64)
        lengths[block] += np.einsum("ij,ij->i", difference, difference)
    return lengths


def multiplied_there(subspace: Subspace, device: str | None, beside: int = 0) -> Subspace:
    """Return a subspace whose products a device computes, if one is given, with so many bytes for a feature map.

    Raises
    ------
    RequestError
        If it is no device, or not here.
    BudgetError
        If it has not enough memory for the components, or for a range of those on disk.
    """
    if device is None:
        return subspace
    device = cast("str", run_of({"device": device}).device)
    components = subspace.components
    ranges = [] if isinstance(components, np.ndarray) else [span.size for span in components.ranges()]
    features = max(ranges, default=subspace.n_features)
    check_applied(len(subspace.components), features, device, machine.device_memory(device) - beside)
    return replace(subspace, device=device)


@dataclass(frozen=True)
class Subspace:
    """An affine subspace of R^p with a basis of unit vectors, orthonormal unless there is a `triangle`.

    It pickles small beside the blocks it is applied to, and knows no storage, units or names.

    Attributes
    ----------
    mean : ndarray of shape (p,)
        Mean of the rows.
    components : ndarray or StoredRows of shape (k, p)
        Orthonormal rows, or rows of unit length where there is a `triangle`; float32 or float64.
    variance : ndarray of shape (k,)
        Variances along the components, for whitening and T2; 0 for a null direction.
    missing : {"error", "drop-samples", "em"}
        Treatment of rows with missing values (NaN or infinite). "error": no search for them, and callers refuse NaN in
        the scores. "drop-samples": their scores are NaN. "em": their scores are those of least squares over the
        observed features, and NaN only where no feature is observed.
    fills_in : bool
        True if `missing` could be "em" for these samples, which errors then offer as a remedy.
    triangle : ndarray of shape (k, k) or None
        Upper triangular factor R of components^T = Q R, with orthonormal columns Q; None where components are
        orthonormal. Rows are reconstructed by projection on the span of the components.
    device : str
        Device that multiplies rows and components (`streampca.accumulators.products`), by default the processor.
    """

    mean: Float64
    components: Array | StoredRows
    variance: Float64
    missing: str = "error"
    fills_in: bool = field(default=False, kw_only=True)
    triangle: Float64 | None = None
    device: str = field(default="", kw_only=True)

    def __getstate__(self) -> dict[str, Any]:  # without what is on a device, or computed from the rest
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @property
    def n_features(self) -> int:
        """Length of a row, p."""
        return len(self.mean)

    @property
    def n_scores(self) -> int:
        """Number of scores of a row, k."""
        return len(self.components)

    @property
    def n_components(self) -> int:
        """Number of components that rows are reconstructed from."""
        return len(self.components)

    @property
    def works_by_parts(self) -> bool:
        """True if scores are sums over ranges of features; least squares need all components at once."""
        return self.missing != "em"

    @property
    def takes_sparse(self) -> bool:
        """True if scores are products, which sparse rows are multiplied for as they are; not on a device."""
        return not self.device

    @property
    def is_held(self) -> bool:
        """True if the components are in memory."""
        return isinstance(self.components, np.ndarray)

    def held(self) -> Subspace:
        """Return the subspace with its components in memory."""
        return replace(self, components=np.asarray(self.components))

    def first(self, count: int) -> Subspace:
        """Return the subspace of the first `count` components."""
        rows = self.components
        first = rows[:count] if isinstance(rows, np.ndarray) else rows.first(count)
        triangle = None if self.triangle is None else self.triangle[:count, :count]
        return replace(self, components=first, variance=self.variance[:count], triangle=triangle)

    def ranges(self, most_features: int) -> list[Span]:
        """Cut the features into ranges of at most `most_features`, or of the smallest unit of storage."""
        if not isinstance(self.components, np.ndarray):
            return self.components.ranges(most_features)
        return list(blocks_of(Span(0, self.n_features), most_features))

    def piece(self, features: Span) -> Subspace:
        """Return the part of mean and components along a range of features, in memory.

        The components of one piece are not orthonormal, only those of all pieces together: scores of pieces add up.
        """
        cut, rows = slice(*features), self.components
        part = rows[:, cut] if isinstance(rows, np.ndarray) else rows.read(features)
        return replace(self, mean=self.mean[cut], components=part)

    def pieces(self) -> Iterator[tuple[Span, Subspace]]:
        """Yield each range of features with its piece; all features at once if components are in memory."""
        if isinstance(self.components, np.ndarray):
            yield Span(0, self.n_features), self
        else:
            for features in self.components.ranges():
                safe_point()
                yield features, self.piece(features)

    def project(self, rows: Array, *, whiten: bool = False) -> Array:
        """Return scores of dense or sparse (CSR) rows: (m, p) to (m, k). Sums over pieces are float64.

        Cost: 2 m p k flops, for sparse rows 2 k flops a value and 2 p k; and up to p k^2 + k^3 for each row that
        requires least squares.
        """
        scores = self._scores(rows)
        if self.missing != "error" and rows.dtype.kind == "f":
            incomplete = incomplete_rows(rows)
            scores[incomplete] = np.nan
            if self.missing == "em":
                for group in groups(incomplete, *self.components.shape[::-1]):
                    few = rows[group]
                    scores[group] = self._least_squares(few.toarray() if is_sparse(few) else few)
        return self.whitened(scores) if whiten else scores

    def _least_squares(self, rows: Array) -> Float64:
        """Return the scores of rows with missing values."""
        equations = NormalEquations(len(rows), len(self.components))
        for features, piece in self.pieces():
            equations.add(rows[:, slice(*features)], piece.mean, cast("Array", piece.components))
        coefficients = equations.solved()
        # Least squares give the coefficients b of the components V = Q R; a score is the product with V: R^T R b.
        return coefficients if self.triangle is None else coefficients @ (self.triangle.T @ self.triangle)

    def _scores(self, rows: Array) -> Array:
        """Return the scores of complete rows."""
        scores: Array | None = None
        for features, piece in self.pieces():
            is_whole = features.size == self.n_features
            part = piece.part_of_scores(rows if is_whole else rows[:, slice(*features)])
            if is_whole:
                scores = part
            else:
                scores = part.astype(np.float64) if scores is None else np.add(scores, part, out=scores)
            del piece  # before the next is read
        return cast("Array", scores).astype(working_dtype(rows.dtype, self.components.dtype), copy=False)

    def part_of_scores(self, rows: Array) -> Array:
        """Return what the features of this piece contribute to the scores: (m, features) to (m, k).

        Sparse rows are multiplied in float64, so that the part of the mean costs no digits.
        """
        if is_sparse(rows):
            return product_about(rows, self.mean, self._loadings)
        dtype = self._dtype_of(rows)
        products, components = self._multiplied_by(dtype)
        scores: Array = np.empty((len(rows), components.shape[0]), dtype)
        mean, p = self.mean.astype(dtype, copy=False), max(1, rows.shape[1])
        count = self._tile_rows(p, dtype) or max(TILE_ROWS, TILE_BYTES // (dtype.itemsize * p))
        with self._turn():
            for start in range(0, len(rows), count):
                tile = slice(start, start + count)
                scores[tile] = self._block(products, rows[tile], mean).times(components.T)
        if scores.dtype == np.float32:
            scores -= self._scores_of_mean_rounding
        return scores

    def whitened(self, scores: Array) -> Array:
        """Divide scores by the standard deviation along each component, in place; those of null directions become 0."""
        deviations = self._deviations()
        scores /= np.where(deviations > 0, deviations, np.inf).astype(scores.dtype)
        return scores

    def unwhitened(self, scores: Array) -> Array:
        """Undo `whitened` for the first components, (m, j) to (m, j)."""
        return scores * self._deviations()[: scores.shape[1]].astype(scores.dtype)  # type: ignore[no-any-return]

    def reconstruct(self, scores: Array, *, whiten: bool = False) -> Array:
        """Return rows from scores along the first components: (m, j) to (m, p), j at most k."""
        dtype = np.dtype(np.float32 if scores.dtype == np.float32 else np.float64)
        scores = scores.astype(dtype, copy=False)
        if whiten:
            scores = self.unwhitened(scores)
        if self.is_held:
            return self.part_of_rows(scores)
        rows = np.empty((len(scores), self.n_features), dtype)
        for features, piece in self.first(scores.shape[1]).pieces():
            rows[:, slice(*features)] = piece.part_of_rows(scores)
            del piece
        return rows

    def part_of_rows(self, scores: Array) -> Array:
        """Return the features of this piece of reconstructed rows: (m, j) to (m, features), in the scores' dtype."""
        rows = self._combined(self.coefficients(scores), scores.dtype)
        rows += self.mean.astype(scores.dtype)
        return rows

    def _combined(self, loads: Array, dtype: np.dtype[Any]) -> Array:
        """Return sums of the first components with these coefficients, (m, j) to (m, features)."""
        _, components = self._multiplied_by(dtype)
        loads = loads.astype(dtype, copy=False)
        first, count = components[: loads.shape[1]], self._tile_rows(self.n_features, dtype)
        with self._turn():
            if count is None or len(loads) <= count:
                return first.combined(loads)
            rows: Array = np.empty((len(loads), self.n_features), dtype)
            for start in range(0, len(loads), count):
                rows[start : start + count] = first.combined(loads[start : start + count])
        return rows

    def _turn(self) -> AbstractContextManager[Any]:
        """Return the lock of a device: threads take turns there, as its memory is counted for one of them."""
        return _ONE_AT_A_TIME if self.device else nullcontext()

    def _block(self, products: Products[Any, Any], rows: Array, mean: Array) -> Any:
        """Return rows minus the mean, as a block to be multiplied."""
        return products.centre(rows, (mean,))

    def _multiplied_by(self, dtype: np.dtype[Any]) -> tuple[Products[Any, Any], Block]:
        """Return products in a dtype, and the components as a block of these, which stays on a device."""
        if self.device and dtype in self._on_device:
            return self._on_device[dtype]
        # Several threads can apply the subspace; each then uses one of BLAS.
        products = products_on(self.device, dtype, one_thread=True)
        made = products, products.block(cast("Array", self.components).astype(dtype, copy=False))
        if self.device:
            self._on_device.clear()  # memory is counted for components in one dtype
            self._on_device[dtype] = made
        return made

    @cached_property
    def _on_device(self) -> dict[np.dtype[Any], tuple[Products[Any, Any], Block]]:
        return {}

    def _tile_rows(self, features: int, dtype: np.dtype[Any]) -> int | None:
        """Return how many rows a device multiplies at a time; None without one."""
        return rows_on_device(features, dtype.itemsize) if self.device else None

    def squared_error(self, rows: Array, scores: Array | None = None) -> Array:
        """Return the squared distance of each row from the subspace over its observed features, shape (m,), float64.

        Stored components are read twice, or once if the rows' scores, as by `project`, are passed.
        """
        scores, error = self.project(rows) if scores is None else scores, np.zeros(len(rows))
        loads = self.coefficients(scores)
        for features, piece in self.pieces():
            # The rounding of the mean lies below that of the rows. In this process, as the difference stays here.
            dtype = self._dtype_of(rows)
            here = products_on("", dtype, one_thread=True)
            centred = piece._block(here, rows[:, slice(*features)], piece.mean.astype(dtype, copy=False)).values
            centred -= piece._combined(loads, centred.dtype)
            if self.missing == "em":
                np.copyto(centred, 0, where=~np.isfinite(rows[:, slice(*features)]))
            error += np.einsum("ij,ij->i", centred, centred, dtype=np.float64)
            del piece, centred
        if self.missing == "em":
            error[np.isnan(scores).any(axis=1)] = np.nan
        return error

    def t2(self, rows: Array, scores: Array | None = None) -> Float64:
        """Return Hotelling's T2 of each row, shape (m,), float64: squared scores over variances above rounding.

        The rows' scores, as by `project`, are computed unless they are passed.
        """
        scores = self.project(rows) if scores is None else scores
        variance = self._variance_above_rounding(scores.dtype)
        precisions = np.divide(1.0, variance, out=np.zeros(len(variance)), where=variance > 0)
        return cast("Float64", np.square(scores, dtype=np.float64) @ precisions)

    def along_basis(self, scores: Array) -> Array:
        """Convert scores along the first components to an orthonormal basis of the same nested spans."""
        if self.triangle is None:
            return scores
        triangle = self.triangle[: scores.shape[1], : scores.shape[1]]
        return np.asarray(solve_triangular(triangle, scores.T, trans=1, check_finite=False).T, dtype=scores.dtype)

    def explained_squares(self, scores: Array) -> Float64:
        """Return the squared length of centred rows, shape (m,), less their squared error, from scores, (m, k).

        The scores can be along further components, too.
        """
        along = self.along_basis(scores[:, : self.n_components])
        return cast("Float64", np.einsum("ij,ij->i", along, along, dtype=np.float64))

    def coefficients(self, scores: Array) -> Array:
        """Return the coefficients of the first components that give the projections of rows, from scores, (m, j)."""
        if self.triangle is None:
            return scores
        triangle = self.triangle[: scores.shape[1], : scores.shape[1]]
        along = self.along_basis(scores)
        return np.asarray(solve_triangular(triangle, along.T, check_finite=False).T, dtype=scores.dtype)

    def _dtype_of(self, rows: Array) -> np.dtype[Any]:
        """Return the dtype in which rows are centred and multiplied."""
        return working_dtype(rows.dtype, self.components.dtype)

    @cached_property
    def _loadings(self) -> Float64:
        """Components as columns in float64, (p, k), in the order in which SciPy multiplies by them."""
        return np.ascontiguousarray(cast("Array", self.components).T, np.float64)

    @cached_property
    def _scores_of_mean_rounding(self) -> Array:
        """Scores of the mean's float32 rounding residual, shape (k,).

        With a large offset of the data, the rounding of the mean would shift all scores; they are corrected by it.
        """
        residual = self.mean - self.mean.astype(np.float32)
        return cast("Array", self.components) @ residual.astype(np.float32)

    def _variance_above_rounding(self, dtype: npt.DTypeLike) -> Float64:
        """Return the variances, shape (k,), with 0 for those within the rounding of scores of a dtype."""
        return np.where(self.variance > np.finfo(dtype).eps * self.variance[:1], self.variance, 0.0)

    def _deviations(self) -> Float64:
        """Return the standard deviations, shape (k,); 0 for a null direction."""
        # In float64 whatever the dtype of the scores: `unwhitened` has to undo `whitened` even if the scores were
        # stored in another dtype in between, and float32 rounding is small beside every deviation that is kept.
        return np.sqrt(self._variance_above_rounding(np.float64))
