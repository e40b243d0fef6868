"""Feature maps: functions of samples whose inner products equal or approximate a kernel.

A linear method on mapped rows is a kernel method on rows: their principal components are those of kernel PCA.

References
----------
Williams and Seeger (2001), Using the Nyström method to speed up kernel machines.
Rahimi and Recht (2007), Random features for large-scale kernel machines.
Sutherland and Schneider (2015), On the error of random Fourier features.
Avron, Sindhwani, Yang and Mahoney (2016), Quasi-Monte Carlo feature maps for shift-invariant kernels.
De Silva and Tenenbaum (2004), Sparse multidimensional scaling using landmark points.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..errors import DataError, ModelError, RequestError
from ..planning.blocks import blocks_of
from ..planning.component_chunks import POOLS, READ_COPIES
from ..planning.landmarks import TILE_FEATURES, TILE_ROWS
from .kernels import VALUE_FLOPS, Compared, Kernel
from .landmark_rows import LandmarkRows

EPS = float(np.finfo(np.float64).eps)
LEAST_EIGENVALUE = 1e-12  # relative to the largest; smaller ones are rounding errors, as in scikit-learn
MOST_DIMENSIONS = 21_201  # largest dimension with tabulated direction numbers of the Sobol sequence
_MAKING, _ON_DEVICE = Lock(), Lock()

NewProducts = Callable[[], Any]  # float64 products of a device, of `streampca.accumulators`, which lies a layer above


class _MapOfArrays:
    """Base of feature maps that consist of a kernel and arrays."""

    kernel: Kernel
    products: NewProducts | None

    def __getstate__(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "products": self.products, **self.arrays()}

    def on(self, products: NewProducts | None) -> Self:
        """Return the map whose products a device computes, or the processor for None; it is not stored."""
        return self if products is self.products else replace(self, products=products)  # type: ignore[type-var]

    @cached_property
    def _products(self) -> Any:
        return None if self.products is None else self.products()

    @cached_property
    def _multiplied(self) -> Any:
        """The matrix that rows are multiplied with last, where it lies."""
        return self._products.block(self._matrix)

    @property
    def _matrix(self) -> Float64:
        raise NotImplementedError

    def _times_matrix(self, rows: Float64) -> Float64:
        """Return the products of rows with those of the matrix."""
        if self._products is None:
            return rows @ self._matrix.T
        product: Float64 = self._products.block(rows).times(self._multiplied.T)
        return product

    def __call__(self, rows: Array) -> Float64:
        """Map rows (n, p) to (n, q), each row by itself; NaN where a row is not finite."""
        # Threads take turns on a device, as its memory is counted for one of them.
        with nullcontext() if self.products is None else _ON_DEVICE:
            return self._mapped_finite(rows)

    def _mapped_finite(self, rows: Array) -> Float64:
        if rows.dtype.kind != "f":
            return self._mapped(rows)
        with np.errstate(invalid="ignore", over="ignore"):
            # Sums find candidates without a mask as large as the rows; a sum can also overflow for finite values.
            bad = np.flatnonzero(~np.isfinite(rows.sum(axis=1, dtype=np.float64)))
        bad = bad[~np.isfinite(rows[bad]).all(axis=1)]
        if not len(bad):
            return self._mapped(rows)
        rows = rows.copy()
        rows[bad] = 0
        mapped = self._mapped(rows)
        mapped[bad] = np.nan
        return mapped

    def _mapped(self, rows: Array) -> Float64:
        raise NotImplementedError

    @classmethod
    def array_names(cls) -> list[str]:
        """Return the names of the arrays: all fields except the kernel, and what multiplies."""
        return [entry.name for entry in fields(cls) if entry.name not in ("kernel", "products")]  # type: ignore[arg-type]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays in memory."""
        return sum(array.nbytes for array in self.arrays().values() if isinstance(array, np.ndarray))

    @property
    def streamed_bytes(self) -> int:
        """Bytes held while landmarks outside memory are read; 0 if there are none."""
        return 0

    def arrays(self) -> dict[str, Any]:
        """Return the arrays by name, including landmarks outside memory."""
        return {name: getattr(self, name) for name in self.array_names()}

    @cached_property
    def digest(self) -> str:
        """Digest of the kernel and all values."""
        hasher = hashlib.sha256(repr(sorted(self.kernel.to_json().items())).encode())
        for name, array in self.arrays().items():
            if name == "landmarks":  # they can be outside memory, and the weights depend on them
                continue
            hasher.update(repr((name, array.shape)).encode())
            hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return hasher.hexdigest()[:16]


class Solved(NamedTuple):
    """Eigenvalues of a kernel matrix, descending, and the linear functions of its rows that give unit features.

    With `weights` of shape (q, m) and `offset` of shape (q,), features are weights k - offset. `level` is the mean of
    the matrix if it was centred, else 0.
    """

    values: Float64
    weights: Float64
    offset: Float64
    level: float


def solved(
    matrix: Float64, name: str, rank: int | None = None, *, centred: bool, may_be_negative: bool = False
) -> Solved:
    """Solve a kernel matrix (m, m) for features whose inner products are its entries.

    Parameters
    ----------
    matrix : ndarray of shape (m, m)
        Symmetric.
    name : str
        Name of the matrix in messages.
    rank : int, optional
        Largest number of features, q; all eigenvalues above rounding by default.
    centred : bool
        If True, subtract the means of rows and columns first.
    may_be_negative : bool
        If True, drop negative eigenvalues instead of refusing them.

    Raises
    ------
    RequestError
        If no eigenvalue is above rounding, or some are below it.
    """
    means, m = matrix.mean(axis=0), len(matrix)
    level = float(means.mean()) if centred else 0.0
    values, vectors = np.linalg.eigh(matrix - means - means[:, None] + level if centred else matrix)
    values, vectors = values[::-1], vectors[:, ::-1]
    # Entries carry the rounding of the matrix before its means were subtracted.
    rounding = max(m * EPS, LEAST_EIGENVALUE) * float(np.abs(values).max(initial=0.0))
    rounding = max(rounding, m * EPS * float(np.abs(means).max(initial=0.0)))
    if values[-1] < -100 * rounding and not may_be_negative:
        raise RequestError(
            f"{name} of the samples has the eigenvalue {values[-1]:.3g} (its largest is {values[0]:.3g}): it is no "
            "inner product of any features. Give another kernel."
        )
    positive = int(np.count_nonzero(values > rounding))
    if not positive:
        raise RequestError(f"{name} of the samples has no eigenvalue above 0; give another kernel.")
    q = positive if rank is None else min(rank, positive)
    weights = np.ascontiguousarray((vectors[:, :q] / np.sqrt(values[:q])).T)
    if centred:
        # Rounding mixes the constant vector into eigenvectors of the smallest eigenvalues, by 1e-4 or so. Divided by
        # the root of such an eigenvalue it outweighs all features: 5e5 in place of 45, for 300 points on two circles.
        weights -= weights.mean(axis=1, keepdims=True)
    return Solved(values, weights, weights @ means if centred else np.zeros(q), level)


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelMap(_MapOfArrays):
    """Linear functions of the kernel between a sample and landmarks: weights k(x) - offset.

    Attributes
    ----------
    kernel : Kernel
        Resolved kernel.
    landmarks : ndarray or LandmarkRows of shape (m, p)
        Landmarks outside memory, for kernels of inner products only, are read for every block of samples.
    weights : ndarray of shape (q, m)
    offset : ndarray of shape (q,)
    origin : ndarray of shape (p,)
        Point subtracted from samples and landmarks before they are compared, for kernels of differences.
    level : ndarray of shape ()
        Mean of the kernel between landmarks if their mean is the origin of the features; else 0.
    """

    kernel: Kernel
    landmarks: Array | LandmarkRows
    weights: Float64
    offset: Float64
    origin: Float64
    level: Float64
    products: NewProducts | None = field(default=None, repr=False)

    @classmethod
    def nystroem(cls, kernel: Kernel, landmarks: Array, *, rank: int | None = None, centred: bool = False) -> Self:
        """Return the Nystroem map of landmarks.

        With K = U diag(mu) U^T for the landmarks, a sample is mapped to diag(mu)^(-1/2) U^T k(x). Inner products of
        mapped landmarks equal K; those of other samples are the best approximation by functions k(., landmark).

        Parameters
        ----------
        kernel : Kernel
            Resolved kernel.
        landmarks : ndarray of shape (m, p)
        rank : int, optional
            Largest q; all eigenvalues above rounding by default.
        centred : bool, default=False
            If True, decompose H K H, H = I - (1/m) 1 1^T, so that the landmarks' mean is the origin. If all samples are
            landmarks, mapped samples are then the scores of kernel PCA. Kernel "distance" is always centred.

        Raises
        ------
        RequestError
            If the kernel is not positive: no eigenvalue is above rounding, or some are below it.
        DataError
            If the kernel of some landmarks is NaN or infinite.

        Notes
        -----
        Cost: 2 m^2 p + 9 m^3 flops, 3 m x m arrays.
        """
        origin = np.asarray(landmarks, np.float64).mean(axis=0)
        matrix = kernel.matrix(landmarks, landmarks, origin)
        if not np.isfinite(matrix).all():
            raise DataError(f"kernel {kernel} of some samples is NaN or infinite; give a smaller gamma or degree.")
        kernel.check_symmetric(landmarks)
        may_be_negative = kernel.name == "sigmoid"
        solution = solved(
            matrix, f"kernel {kernel}", rank, centred=centred or kernel.centred_only, may_be_negative=may_be_negative
        )
        return cls(
            kernel=kernel,
            landmarks=np.asarray(landmarks),
            weights=solution.weights,
            offset=solution.offset,
            origin=origin,
            level=np.array(solution.level),
        )

    @classmethod
    def foreseen(cls, kernel: Kernel, landmarks: int, n_features: int, q: int, dtype: npt.DTypeLike) -> Self:
        """Return a map with the sizes of a fitted one, for planning; it needs no memory and cannot map samples."""

        def zeros(*shape: int) -> Float64:
            return np.broadcast_to(0.0, shape)

        like = np.broadcast_to(np.zeros((), dtype), (landmarks, n_features))
        arrays: dict[str, Any] = {
            "weights": zeros(q, landmarks),
            "offset": zeros(q),
            "origin": zeros(n_features),
            "level": zeros(),
        }
        return cls(kernel=kernel, landmarks=like, **arrays)

    @property
    def n_features(self) -> int:
        """Number of features, q."""
        return len(self.weights)

    @property
    def held_bytes(self) -> int:
        """Bytes of all arrays, and of the landmarks as `compared`."""
        return self.nbytes + (0 if self.is_streamed else 8 * self.landmarks.size)

    @property
    def is_streamed(self) -> bool:
        """True if landmarks are outside memory."""
        return isinstance(self.landmarks, LandmarkRows)

    @property
    def streamed_bytes(self) -> int:
        """Bytes to read a box of landmarks, and of a tile of it; 0 if landmarks are in memory."""
        if not isinstance(self.landmarks, LandmarkRows):
            return 0
        return POOLS + READ_COPIES * self.landmarks.box_bytes + 8 * TILE_ROWS * min(TILE_FEATURES, len(self.origin))

    @property
    def row_bytes(self) -> int:
        """Bytes held while a row is mapped, including the result."""
        m, p = self.landmarks.shape
        p = min(p, TILE_FEATURES) if self.is_streamed else p
        return self.kernel.row_bytes(p, m) + 8 * self.n_features

    @property
    def row_flops(self) -> int:
        """Flops of a matrix product that take as long as mapping a row."""
        m, p = len(self.landmarks), len(self.origin)
        return self.kernel.row_flops(p, m) + 2 * m * self.n_features

    @property
    def compared(self) -> Float64:
        """Landmarks in the form that is compared with samples; computed once.

        Raises
        ------
        ModelError
            If they are outside memory.
        """
        if isinstance(self.landmarks, LandmarkRows):
            raise ModelError(
                "this takes all landmarks in memory, and the model reads them from where they are stored; save it, and "
                "load it with more memory: streampca.load(..., memory=...)."
            )
        with _MAKING:  # several threads map blocks; one computes it
            return self._compared

    @cached_property
    def _comparison(self) -> Compared:
        return Compared(self.kernel, self.compared, self._products)

    @property
    def _matrix(self) -> Float64:
        return self.weights

    def device_bytes(self, rows: int) -> int:
        """Return the bytes of a device that compares so many rows with landmarks, a tile of these if streamed."""
        m, p = int(self.landmarks.shape[0]), int(self.landmarks.shape[1])
        return 8 * (self.n_features * m + (TILE_ROWS if self.is_streamed else m) * p) + 2 * rows * self.row_bytes

    @cached_property
    def _compared(self) -> Float64:
        return self.kernel.compared(np.asarray(self.landmarks), self.origin)

    def similarities(self, rows: Array) -> Float64:
        """Return the kernel between rows (n, p) and the landmarks, (n, m)."""
        if isinstance(self.landmarks, LandmarkRows):
            return self._streamed(rows, self.landmarks)
        return self._comparison.kernel_with(self.kernel.compared(rows, self.origin))

    def _streamed(self, rows: Array, landmarks: LandmarkRows) -> Float64:
        """Return the kernel between rows and landmarks read box by box, from sums of inner products over features."""
        products: Float64 = np.zeros((len(rows), len(landmarks)))
        squares, landmark_squares = np.zeros(len(rows)), np.zeros(len(landmarks))
        for landmark_rows, features, values in landmarks.pieces():
            for part in blocks_of(features, TILE_FEATURES):
                origin = self.origin[slice(*part)]
                within = slice(part.start - features.start, part.stop - features.start)
                first = self.kernel.compared(rows[:, slice(*part)], origin)
                # Squared norms of the rows are the same for all landmarks, and are added up only once.
                squares += np.einsum("ij,ij->i", first, first) if landmark_rows.start == 0 else 0.0
                for at in blocks_of(landmark_rows, TILE_ROWS):
                    tile = values[at.start - landmark_rows.start : at.stop - landmark_rows.start, within]
                    second = self.kernel.compared(tile, origin)
                    if self._products is None:
                        products[:, slice(*at)] += first @ second.T
                    else:
                        products[:, slice(*at)] += self._products.block(first).times(self._products.block(second).T)
                    landmark_squares[slice(*at)] += np.einsum("ij,ij->i", second, second)
        return self.kernel.of_products(products, squares, landmark_squares)

    def squared_norms(self, rows: Array) -> Float64:
        """Return the squared distance of samples from the map's origin in the kernel's own feature space, (n,)."""
        first = self.kernel.compared(rows, self.origin)
        diagonal = self.kernel.diagonal(first)
        if not self.offset.any():
            return diagonal
        # |phi(x) - m|^2 for the mean m of the mapped landmarks, by kernel values alone.
        centred: Float64 = diagonal - 2 * self.similarities(rows).mean(axis=1) + self.level
        return centred

    def _mapped(self, rows: Array) -> Float64:
        """Map finite rows: 2 n m (p + q) flops."""
        mapped = self._times_matrix(self.similarities(rows))
        mapped -= self.offset
        return mapped


@dataclass(frozen=True, eq=False, kw_only=True)
class FourierMap(_MapOfArrays):
    """Random Fourier features: sqrt(2 / q) cos(frequencies (x - origin) + phases), for kernels of differences.

    Attributes
    ----------
    kernel : Kernel
        Resolved kernel "rbf" or "laplacian".
    frequencies : ndarray of shape (q, p)
    phases : ndarray of shape (q,)
    origin : ndarray of shape (p,)
        Point near the samples, so that differences from it keep all digits.
    """

    kernel: Kernel
    frequencies: Float64
    phases: Float64
    origin: Float64
    products: NewProducts | None = field(default=None, repr=False)

    @staticmethod
    def check(kernel: Kernel) -> None:
        """Refuse a kernel that has no random features; raises the errors of `random`."""
        if kernel.name not in ("rbf", "laplacian"):
            raise RequestError(
                f"random features are of kernels rbf and laplacian, and the kernel is {kernel.name}; give landmarks."
            )

    @classmethod
    def random(cls, kernel: Kernel, origin: Array, n_features: int, seed: int | np.random.Generator) -> Self:
        """Draw frequencies for a resolved kernel: normal for "rbf", Cauchy for "laplacian", each with cosine and sine.

        A scrambled Sobol sequence covers their distribution more evenly than independent draws: with 4096 features of
        3-dimensional samples, HSIC is 0.2 % off instead of 3.8 %. With the cosine and the sine of each frequency, the
        kernel of a sample with itself is exact for even `n_features`.

        Raises
        ------
        RequestError
            If the kernel is another one.
        """
        from scipy.special import ndtri

        cls.check(kernel)
        count, gamma = -(-n_features // 2), float(kernel.gamma)  # type: ignore[arg-type]
        uniform = _uniform(count, len(origin), np.random.default_rng(seed))
        if kernel.name == "rbf":
            frequencies = np.sqrt(2 * gamma) * ndtri(uniform)
        else:
            frequencies = gamma * np.tan(np.pi * (uniform - 0.5))
        # cos(t - pi / 2) = sin(t): the first half of the features are cosines, the second half sines.
        phases = np.repeat([0.0, -np.pi / 2], count)[:n_features]
        frequencies = np.tile(frequencies, (2, 1))[:n_features]
        return cls(kernel=kernel, frequencies=frequencies, phases=phases, origin=np.asarray(origin, np.float64))

    @classmethod
    def foreseen(cls, kernel: Kernel, n_features: int, q: int) -> Self:
        """Return a map with the sizes of a fitted one, for planning; it needs no memory and cannot map samples."""
        zeros = np.broadcast_to(0.0, (q, n_features))
        return cls(kernel=kernel, frequencies=zeros, phases=zeros[:, 0], origin=zeros[0])

    @property
    def n_features(self) -> int:
        """Number of features, q."""
        return len(self.frequencies)

    @property
    def held_bytes(self) -> int:
        """Bytes of all arrays."""
        return self.nbytes

    @property
    def row_bytes(self) -> int:
        """Bytes held while a row is mapped, including the result."""
        return 8 * (len(self.origin) + 2 * self.n_features)

    @property
    def _matrix(self) -> Float64:
        return self.frequencies

    def device_bytes(self, rows: int) -> int:
        """Return the bytes of a device that multiplies so many rows with frequencies."""
        return 8 * self.frequencies.size + 2 * rows * self.row_bytes

    @property
    def row_flops(self) -> int:
        """Flops of a matrix product that take as long as mapping a row."""
        return self.n_features * (2 * len(self.origin) + VALUE_FLOPS)

    def _mapped(self, rows: Array) -> Float64:
        """Map finite rows: 2 n p q flops and n q cosines."""
        mapped = self._times_matrix(rows - self.origin)
        mapped += self.phases
        np.cos(mapped, out=mapped)
        mapped *= np.sqrt(2 / self.n_features)
        return mapped


def _uniform(count: int, p: int, random: np.random.Generator) -> Float64:
    """Return points that fill the interior of the unit cube evenly, (count, p); too many dimensions use random ones."""
    if p > MOST_DIMENSIONS:
        points: Float64 = random.random((count, p))
    else:
        from scipy.stats import qmc

        points = qmc.Sobol(p, rng=random).random_base2((count - 1).bit_length())[:count]
    # The inverse distribution functions are infinite at 0 and 1.
    return points.clip(2.0**-40, 1 - 2.0**-40)


FeatureMap = KernelMap | FourierMap
