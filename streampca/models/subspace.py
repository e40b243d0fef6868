"""The numbers alone: a mean and components that project and reconstruct plain arrays of rows.

Components may be larger than memory: what is computed from them is a sum, or is put together, over ranges of features,
each with its part of the mean and of the components.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from ..planning.blocks import Span, blocks_of
from ..signals import safe_point
from ..storage.components import StoredRows
from .least_squares import NormalEquations, groups

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

PIECE = 2**17  # values whose squares are added at a time: 1 MiB in float64, which stays in the cache
# Samples are centred and multiplied so many bytes at a time, in memory that is used again: 3.4 ms in place of 4.5 for
# 3000 samples of 784 features; and at least so many rows, as every piece reads all components.
TILE_BYTES, TILE_ROWS = 2**21, 64


def working_dtype(rows: npt.DTypeLike, components: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype in which rows and components are multiplied, which is that of the result.

    float32 when the components are and the rows are integers of up to 16 bits or floats of up to 32; else float64.
    """
    dtype = np.dtype(rows)
    narrow = dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    return np.dtype(np.float32 if narrow and np.dtype(components) == np.float32 else np.float64)


def squared_lengths(rows: Array, others: Array) -> Float64:
    """Squared distance of each row from another, shape (m,), in float64, a piece at a time.

    Parameters
    ----------
    rows : ndarray of shape (m, p)
        Of any dtype.
    others : ndarray of shape (p,) or (m, p)
        One for all rows, or one for each.
    """
    lengths, others = np.zeros(len(rows)), np.broadcast_to(others, rows.shape)
    step = max(1, PIECE // rows.shape[1])
    for row, left in product(range(0, rows.shape[0], step), range(0, rows.shape[1], PIECE)):
        some, features = slice(row, row + step), slice(left, left + PIECE)
        apart = np.subtract(rows[some, features], others[some, features], dtype=np.float64)
        lengths[some] += np.einsum("ij,ij->i", apart, apart)
    return lengths


@dataclass(frozen=True)
class Subspace:
    """An affine subspace of R^p with a basis of unit vectors, orthonormal unless there is a `triangle`.

    Small to pickle next to the blocks it is applied to, and free of storage, units and names.

    Attributes
    ----------
    mean : ndarray of shape (p,)
        float64.
    components : ndarray or StoredRows of shape (k, p)
        Orthonormal rows, or rows of unit length where there is a `triangle`; float32 or float64.
    variance : ndarray of shape (k,)
        Variances along the components, for whitening and T2; 0 of a null direction.
    missing : {"error", "drop-samples", "em"}
        Treatment of rows in which values are missing (NaN or infinite). "error": these are not looked for, and callers
        refuse NaN in the scores. "drop-samples": their scores are NaN. "em": their scores are those of least squares
        over the features that are observed, and NaN only where there is none.
    triangle : ndarray of shape (k, k) or None
        Upper triangular factor R of components^T = Q R, with orthonormal columns Q; None where components are
        orthonormal. Rows are reconstructed by projection on the span of the components.
    """

    mean: Float64
    components: Array | StoredRows
    variance: Float64
    missing: str = "error"
    triangle: Float64 | None = None

    @property
    def n_features(self) -> int:
        """Length of a row, p."""
        return len(self.mean)

    @property
    def n_scores(self) -> int:
        """Number of scores that a row has, k."""
        return len(self.components)

    @property
    def works_by_parts(self) -> bool:
        """True where scores are sums over ranges of features: least squares need all components at once."""
        return self.missing != "em"

    @property
    def is_held(self) -> bool:
        """True where the components are in memory."""
        return isinstance(self.components, np.ndarray)

    def held(self) -> Subspace:
        """Return the subspace with its components in memory."""
        return replace(self, components=np.asarray(self.components))

    def first(self, count: int) -> Subspace:
        """The subspace of the first `count` components."""
        own = self.components
        first = own[:count] if isinstance(own, np.ndarray) else own.first(count)
        triangle = None if self.triangle is None else self.triangle[:count, :count]
        return replace(self, components=first, variance=self.variance[:count], triangle=triangle)

    def ranges(self, most_features: int) -> list[Span]:
        """Cut the features into ranges of at most so many, or the fewest that storage keeps together."""
        if not isinstance(self.components, np.ndarray):
            return self.components.ranges(most_features)
        return list(blocks_of(Span(0, self.n_features), most_features))

    def piece(self, features: Span) -> Subspace:
        """The part of mean and components along a range of features, in memory.

        Its components are orthonormal together with those of the other ranges only: scores by pieces add up.
        """
        cut, own = slice(*features), self.components
        part = own[:, cut] if isinstance(own, np.ndarray) else own.read(features)
        return replace(self, mean=self.mean[cut], components=part)

    def pieces(self) -> Iterator[tuple[Span, Subspace]]:
        """Every range of features with its piece; all features at once where components are in memory."""
        if isinstance(self.components, np.ndarray):
            yield Span(0, self.n_features), self
        else:
            for features in self.components.ranges():
                safe_point()
                yield features, self.piece(features)

    def project(self, rows: Array, *, whiten: bool = False) -> Array:
        """Return scores of rows: (m, p) to (m, k). Sums over pieces are float64.

        Cost: 2 m p k flops, and up to p k^2 + k^3 for each row that takes least squares.
        """
        found = self._scores(rows)
        if self.missing != "error" and rows.dtype.kind == "f":
            partly = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            found[partly] = np.nan
            if self.missing == "em":
                for some in groups(partly, *self.components.shape[::-1]):
                    found[some] = self._least_squares(rows[some])
        return self.whitened(found) if whiten else found

    def _least_squares(self, rows: Array) -> Float64:
        """Return the scores of rows in which values are missing."""
        equations = NormalEquations(len(rows), len(self.components))
        for features, piece in self.pieces():
            equations.add(rows[:, slice(*features)], piece.mean, cast("Array", piece.components))
        found = equations.solved()
        return found if self.triangle is None else found @ (self.triangle.T @ self.triangle)

    def _scores(self, rows: Array) -> Array:
        """Return the scores of complete rows."""
        scores: Array | None = None
        for features, piece in self.pieces():
            part = piece.part_of_scores(rows[:, slice(*features)])
            if features.size == self.n_features:
                scores = part
            else:
                scores = part.astype(np.float64) if scores is None else np.add(scores, part, out=scores)
            del piece  # before the next is read
        return cast("Array", scores).astype(working_dtype(rows.dtype, self.components.dtype), copy=False)

    def part_of_scores(self, rows: Array) -> Array:
        """Return the share of some features in the scores, of the piece along them: (m, features) to (m, k)."""
        dtype = self._dtype_of(rows)
        loadings = cast("Array", self.components).T.astype(dtype, copy=False)
        scores: Array = np.empty((len(rows), loadings.shape[1]), dtype)
        count = max(TILE_ROWS, TILE_BYTES // (dtype.itemsize * max(1, rows.shape[1])))
        centred = np.empty((min(len(rows), count), rows.shape[1]), dtype)
        for start in range(0, len(rows), count):
            tile = rows[start : start + count]
            np.matmul(self._centred(tile, centred[: len(tile)]), loadings, out=scores[start : start + count])
        if scores.dtype == np.float32:
            scores -= self._left
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
        """Rows from scores of the first components: (m, j) to (m, p), j at most k."""
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
        """Return some features of rows, of the piece along them: (m, j) to (m, features), in the scores' dtype."""
        loads = self.coefficients(scores)
        rows: Array = loads @ cast("Array", self.components)[: loads.shape[1]].astype(scores.dtype, copy=False)
        rows += self.mean.astype(scores.dtype)
        return rows

    def squared_error(self, rows: Array, scores: Array | None = None) -> Array:
        """Return the squared distance of each row from the subspace over its observed features, shape (m,), float64.

        Reads stored components twice, or once where the rows' scores are given, as `project` makes them.
        """
        scores, error = self.project(rows) if scores is None else scores, np.zeros(len(rows))
        loads = self.coefficients(scores)
        for features, piece in self.pieces():
            # What `_centred` leaves of the mean lies below the rounding of the rows themselves.
            centred = piece._centred(rows[:, slice(*features)])
            centred -= loads @ cast("Array", piece.components).astype(centred.dtype, copy=False)
            if self.missing == "em":
                np.copyto(centred, 0, where=~np.isfinite(rows[:, slice(*features)]))
            error += np.einsum("ij,ij->i", centred, centred, dtype=np.float64)
            del piece, centred
        if self.missing == "em":
            error[np.isnan(scores).any(axis=1)] = np.nan
        return error

    def t2(self, rows: Array, scores: Array | None = None) -> Float64:
        """Hotelling's T2 of each row, shape (m,), float64: squared scores over variances, those above rounding.

        Made of the rows' scores where they are given, as `project` makes them.
        """
        scores = self.project(rows) if scores is None else scores
        variance = self._known(scores.dtype)
        precisions = np.divide(1.0, variance, out=np.zeros(len(variance)), where=variance > 0)
        found: Float64 = np.square(scores, dtype=np.float64) @ precisions
        return found

    def along_basis(self, scores: Array) -> Array:
        """Return scores of the first components along an orthonormal basis of the same nested spans."""
        if self.triangle is None:
            return scores
        own = self.triangle[: scores.shape[1], : scores.shape[1]]
        return np.asarray(solve_triangular(own, scores.T, trans=1, check_finite=False).T, dtype=scores.dtype)

    def coefficients(self, scores: Array) -> Array:
        """Return the coefficients of the first components in the projections of rows with these scores, (m, j)."""
        if self.triangle is None:
            return scores
        own = self.triangle[: scores.shape[1], : scores.shape[1]]
        along = self.along_basis(scores)
        return np.asarray(solve_triangular(own, along.T, check_finite=False).T, dtype=scores.dtype)

    def _centred(self, rows: Array, out: Array | None = None) -> Array:
        """Return rows less the mean, in the working dtype; in `out` where it is given."""
        out = np.empty(rows.shape, self._dtype_of(rows)) if out is None else out
        np.copyto(out, rows, casting="unsafe")  # and then subtract: faster than both at once
        out -= self.mean.astype(out.dtype, copy=False)
        return out

    def _dtype_of(self, rows: Array) -> np.dtype[Any]:
        """Return the dtype in which rows are centred and multiplied."""
        return working_dtype(rows.dtype, self.components.dtype)

    @cached_property
    def _left(self) -> Array:
        """Scores of what float32 does not hold of the mean, shape (k,).

        Where data have a large offset its rounding would be seen in the scores; it is taken off them instead.
        """
        left = self.mean - self.mean.astype(np.float32)
        return cast("Array", self.components) @ left.astype(np.float32)

    def _known(self, dtype: npt.DTypeLike) -> Float64:
        """Return the variances, shape (k,), with 0 for those that scores of a dtype do not tell from rounding."""
        return np.where(self.variance > np.finfo(dtype).eps * self.variance[:1], self.variance, 0.0)

    def _deviations(self) -> Float64:
        """Return the standard deviations, shape (k,); 0 of a null direction."""
        # Not by the dtype of the scores: their rounding is small beside every deviation that is kept, and going back
        # has to undo whitening whatever dtype the scores were stored in meanwhile.
        return np.sqrt(self._known(np.float64))
