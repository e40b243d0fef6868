"""Product of a centred symmetric matrix with a block, H A H Q, n x l, from the rows of A; H = I - (1/n) 1 1^T.

A is -D^2 / 2 for a matrix D of distances, squared entry by entry as it is read (Torgerson, 1952; Gower, 1966), or a
kernel matrix itself. Q is orthogonal to the ones, so H A H Q = H (A Q): rows of A are multiplied as they come, and the
product is centred once, at the end. No array of the size of A is held.

One pass also measures the trace and the Frobenius norm of H A H, the means of the rows, products with random directions
that bound errors, and A w - A^T w for a random w. The last is 0 if A is symmetric and, almost surely, only then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..errors import DataError
from ..execution.panels import owned
from ..planning.memory import PROBES_OF_PASS
from .finite import MOST_DOUBLE
from .gram_probes import remove_mean_part, sample_directions
from .plain_state import add_sums, as_arrays, as_values
from .products import Block, Products, products_on
from .protocol import Accumulator

# Tolerance, relative to the largest entry of A, by bytes of a floating-point number, for diagonal entries that should
# be 0 and for differences of entries that should be equal. Distances computed as |x|^2 - 2 x.y + |y|^2 have such errors
# in their squares.
ROUNDING = {2: 1e-3, 4: 1e-5, 8: 1e-10}
_STREAM = 7  # separates these draws from others of the same seed
_MEASURED = "measured_"


class EntryError(DataError):
    """Entry of a matrix that is invalid as a number or as a distance.

    Attributes
    ----------
    row, column : int
        Position of the entry.
    problem : str
        Description of the problem.
    """

    def __init__(self, row: int, column: int, problem: str) -> None:
        super().__init__(f"entry ({row}, {column}) {problem}")
        self.row, self.column, self.problem = row, column, problem

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.row, self.column, self.problem)


def tolerance_of(dtype: npt.DTypeLike) -> float:
    """Return the tolerance for entries of a stored dtype, relative to the largest of A; 0 for whole numbers."""
    kind = np.dtype(dtype)
    return ROUNDING.get(kind.itemsize, 0.0) if kind.kind == "f" else 0.0


def check_entries(rows: Array, at: int, *, distances: bool) -> None:
    """Refuse rows of a matrix, the first of which is row `at`, if they hold an invalid entry.

    Raises
    ------
    EntryError
        If an entry is not finite or too large, or a distance is negative or not 0 on the diagonal; names the first.
    """
    if not rows.size:
        return
    least, most = float(rows.min()), float(rows.max())
    if not (least >= -MOST_DOUBLE and most <= MOST_DOUBLE):  # NaN compares as false
        row, column = _first(~(np.abs(rows.astype(np.float64)) <= MOST_DOUBLE))
        problem = "is not finite" if not np.isfinite(rows[row, column]) else f"is {rows[row, column]:.3g}, too large"
        raise EntryError(at + row, column, problem)
    if not distances:
        return
    if least < 0:
        row, column = _first(rows < 0)
        raise EntryError(at + row, column, f"is {rows[row, column]:.6g}, and no distance is negative")
    diagonal = rows[np.arange(len(rows)), at + np.arange(len(rows))]
    # The tolerance holds for squares of distances, so its root holds for distances.
    nonzero = np.flatnonzero(diagonal > tolerance_of(rows.dtype) ** 0.5 * most)
    if len(nonzero):
        place, value = at + int(nonzero[0]), diagonal[nonzero[0]]
        raise EntryError(place, place, f"is {value:.6g}, the distance of a sample from itself, which is 0")


def _first(wrong: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return the row and column of the first entry that is true."""
    place = int(np.argmax(wrong))
    return place // wrong.shape[1], place % wrong.shape[1]


def entries_of(rows: Array, *, distances: bool, out: Float64 | None = None) -> Float64:
    """Return rows of A in float64, given stored rows: -1/2 times squared distances, or the values as they are."""
    if not distances:
        return np.add(rows, 0.0, out=out, dtype=np.float64)
    entries: Float64 = np.multiply(rows, rows, out=out, dtype=np.float64)
    entries *= -0.5
    return entries


@dataclass
class MatrixMeasures:
    """Sums over the rows of A that are measured once; entries for rows not yet absorbed are 0.

    Attributes
    ----------
    products : ndarray of shape (n, 16)
        A W, for W random directions orthogonal to the ones.
    means : ndarray of shape (n,)
        Mean of each row, and, by symmetry, of each column.
    skew : ndarray of shape (n,)
        A w - A^T w.
    squares : float
        Sum of squares of the entries, each less the mean of its row.
    diagonal : float
        Trace of A.
    largest : float
        Largest absolute value of an entry.
    """

    products: Float64
    means: Float64
    skew: Float64
    squares: float = 0.0
    diagonal: float = 0.0
    largest: float = 0.0

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues of H A H."""
        return self.diagonal - float(self.means.sum())

    @property
    def norm_squared(self) -> float:
        """Sum of the squares of the eigenvalues of H A H."""
        spread = self.means - self.means.mean()
        return max(0.0, self.squares - len(self.means) * float(spread @ spread))


class SymmetricBlock(Accumulator):
    """Accumulate H A H Q over the rows of A.

    Parameters
    ----------
    vectors : ndarray of shape (n, l)
        Q, orthogonal to the ones.
    distances : bool, default=True
        If True, rows hold distances, and A is -1/2 times their squares; otherwise they hold A.
    measures : bool, default=True
        If True, check entries, and add up `MatrixMeasures` in the same pass.
    product_rows : int, default=64
        Rows converted to float64 at a time.
    seed : int, default=0
        Seed of the random directions.
    device : str, default=""
        Device that multiplies (`streampca.accumulators.products`), by default the processor.

    Notes
    -----
    Cost: 2 n^2 l flops.
    """

    kind = "symmetric_block"
    axis: Literal["samples", "features"] = "samples"
    constants = ("vectors",)

    def __init__(
        self,
        vectors: Array,
        *,
        distances: bool = True,
        measures: bool = True,
        product_rows: int = 64,
        seed: int = 0,
        device: str = "",
    ) -> None:
        self.vectors = np.ascontiguousarray(vectors, np.float64).view()
        self.vectors.flags.writeable = False  # a device keeps them
        self._products: Products[Any, Any] = products_on(device, np.dtype(np.float64), one_thread=True)
        self.distances, self.product_rows, self.seed = distances, product_rows, seed
        n = len(self.vectors)
        self._sum = self._products.sum(np.zeros(self.vectors.shape))
        self._measured: MatrixMeasures | None = None
        if measures:
            self._measured = MatrixMeasures(np.zeros((n, PROBES_OF_PASS)), np.zeros(n), np.zeros(n))
            self._along = np.random.default_rng([_STREAM, seed]).standard_normal(n)
            # Together, as one product is faster than three: the last gives the means.
            directions = sample_directions(np.ones(n), seed)
            self._directions = np.column_stack([directions, self._along, np.full(n, 1 / n)])
            self._directions.flags.writeable = False  # a device keeps them

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb rows of the matrix, (m, n), the first of which is row `at`; `weights` are not used here.

        Raises
        ------
        EntryError
            If an entry is invalid, see `check_entries`; checked only with `measures`.
        """
        if self._measured is not None:
            check_entries(block, at, distances=self.distances)
        for start in range(0, len(block), self.product_rows):
            self._absorb_piece(block[start : start + self.product_rows], at + start)

    def _absorb_piece(self, piece: Array, at: int) -> None:
        """Absorb rows that are converted together."""
        self._products.reserve(self.product_rows * len(self.vectors))
        products = self._products
        values = products.half_squares(piece) if self.distances else products.centre(piece, ())
        rows = slice(at, at + len(piece))
        self._sum.add(rows, values, self.vectors)
        if self._measured is not None:
            self._measure(self._measured, piece, values, rows)

    def _measure(self, measured: MatrixMeasures, stored: Array, values: Block, rows: slice) -> None:
        """Add the measures of rows, as stored and in float64; the latter are centred in place."""
        made = values.times(self._directions)
        products, skew, means = made[:, :-2], made[:, -2], made[:, -1]
        measured.products[rows] += products
        measured.skew[rows] += skew
        # Rows of A give A w at once and contributions to A^T w.
        measured.skew -= values.combined(self._along[None, rows])[0]
        few = entries_of(np.array([stored.min(), stored.max()]), distances=self.distances)
        measured.largest = max(measured.largest, *np.abs(few).tolist())
        diagonal = stored[np.arange(len(stored)), np.arange(rows.start, rows.stop)]
        measured.diagonal += float(entries_of(diagonal, distances=self.distances).sum())
        measured.means[rows] += means
        values.T.less(means)
        measured.squares += values.sum_of_squares()

    def absorb(self, other: Self) -> None:
        """Add the rows of another accumulator of the same Q to this one.

        Raises
        ------
        ValueError
            If blocks, matrices or measures of the two differ.
        """
        same = self.seed == other.seed and np.array_equal(self.vectors, other.vectors)
        if not same or (self._measured is None) != (other._measured is None) or self.distances != other.distances:
            raise ValueError("products with other blocks, or of another matrix, cannot be added")
        self._sum.values += other._sum.values
        mine, theirs = self._measured, other._measured
        if mine is None or theirs is None:
            return
        # Each one holds zeros in the other's rows.
        add_sums(mine, theirs, ("products", "means", "skew", "squares", "diagonal"))
        mine.largest = max(mine.largest, theirs.largest)

    def release(self) -> None:
        """Free the working memory; `update` allocates it again."""
        self._products.release()

    def take(self) -> Float64:
        """Return H A H Q, (n, l) in Fortran order; uses up the accumulator."""
        self.release()
        product: Float64 = self._sum.values
        # H (A Q), in place; H Q = Q as Q is orthogonal to the ones.
        product -= product.mean(axis=0)
        return np.asfortranarray(product)

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues of H A H, if measured."""
        if self._measured is None:
            raise ValueError("the trace was not measured")
        return self._measured.trace

    def probes(self) -> MatrixMeasures | None:
        """Return the measures with products of H A H in place of those of A; None if nothing was measured."""
        if self._measured is None:
            return None
        products = remove_mean_part(self._measured.products, np.ones(len(self.vectors)))
        return MatrixMeasures(**{**vars(self._measured), "products": products})

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; without `copy` the sums themselves, to be stored but not written to."""
        options = {"distances": self.distances, "product_rows": self.product_rows, "seed": self.seed}
        arrays = as_arrays({**options, "vectors": self.vectors, "product": self._sum.values}, copy=copy)
        return arrays if self._measured is None else arrays | as_arrays(vars(self._measured), _MEASURED, copy=copy)

    @classmethod
    def from_state(
        cls, state: dict[str, Array], *, vectors: Array | None = None, copy: bool = True, device: str = ""
    ) -> Self:
        """Return the accumulator whose `state` this is; without `copy` its sums are taken over.

        `vectors` are used instead of those of the state, which can lack them.
        """
        measured = as_values(state, _MEASURED)
        new = cls(
            np.array(state["vectors"]) if vectors is None else vectors,
            distances=bool(state["distances"]),
            measures=bool(measured),
            product_rows=int(state["product_rows"]),
            seed=int(state["seed"]),
            device=device,
        )
        new._sum.values = owned(state["product"], copy=copy)
        if measured:
            arrays: dict[str, Any] = {
                name: np.array(value) if np.ndim(value) else value for name, value in measured.items()
            }
            new._measured = MatrixMeasures(**arrays)
        return new


class SymmetricRows(Accumulator):
    """Accumulate the rows of A in float64, for matrices that fit in memory.

    Parameters
    ----------
    size : int
        n.
    distances : bool, default=True
        See `SymmetricBlock`.
    """

    kind = "symmetric_rows"
    axis: Literal["samples", "features"] = "samples"

    def __init__(self, size: int, *, distances: bool = True) -> None:
        self.distances = distances
        self.matrix: Float64 = np.zeros((size, size))

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb rows, (m, n), the first of which is row `at`; `weights` are not used here.

        Raises
        ------
        EntryError
            If an entry is invalid, see `check_entries`.
        """
        check_entries(block, at, distances=self.distances)
        entries_of(block, distances=self.distances, out=self.matrix[at : at + len(block)])

    def absorb(self, other: Self) -> None:
        """Add the rows of another accumulator to this one."""
        self.matrix += other.matrix

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the matrix; without `copy` the array itself, to be stored but not written to."""
        return {"distances": np.array(self.distances), "matrix": self.matrix.copy() if copy else self.matrix}

    @classmethod
    def from_state(cls, state: dict[str, Array], *, copy: bool = True) -> Self:
        """Return the accumulator whose `state` this is; without `copy` its matrix is taken over."""
        new = cls(0, distances=bool(state["distances"]))
        new.matrix = owned(state["matrix"], copy=copy)
        return new
