"""Nearest neighbours of samples by Euclidean distance: exact, or by a graph of small worlds (HNSW).

A finder returns candidates, by matrix products, a k-d tree or HNSW. Their distances are then computed again from
differences in float64, so that distances of near-duplicates have all digits, and candidates at the same distance are
ordered by their numbers. An exact search requests more candidates until no other reference can be as near as the last
neighbour: the answer equals a comparison of all pairs, and does not depend on blocks or threads.

References
----------
Malkov and Yashunin (2020), Efficient and robust approximate nearest neighbor search using hierarchical navigable small
world graphs.
Maneewongvatana and Mount (1999), It's okay to be skinny, if your friends are fat (k-d trees, as in scipy).
Sterbenz (1974), Floating-point computation: differences of numbers within a factor of two are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree
from threadpoolctl import threadpool_limits

from .. import machine
from ..arrays import Array, Float64
from ..errors import RequestError
from ..execution.threads import map_in_threads
from ..planning.neighbors import EF_CONSTRUCTION, LINKS, MARGIN, PIECE, candidates_at_once
from ..signals import safe_point

Ints = npt.NDArray[np.intp]

EPS = float(np.finfo(np.float64).eps)
LEAST_PIECE = 128  # rows from which another thread is worthwhile


class NeighborSearch:
    """Search for the nearest references.

    Parameters
    ----------
    references : ndarray of shape (n, d)
        Finite numbers. Dtypes of up to 16 bits and float32 are held as float32, others as float64.
    algorithm : {"products", "tree", "hnsw"}
        Search for candidates: by matrix products or a k-d tree, which are exact, or by HNSW.
    ef_search : int, default=64
        Candidates that HNSW keeps while it searches, at least twice the number of neighbours.
    numbers : ndarray of shape (n,), optional
        Numbers of the references, ascending; 0 to n - 1 by default.
    shifted : bool, default=False
        Whether an origin has already been subtracted from the references; see `origin_of`.
    """

    def __init__(
        self,
        references: Array,
        algorithm: str,
        *,
        ef_search: int = 64,
        numbers: Ints | None = None,
        shifted: bool = False,
    ) -> None:
        dtype = held_dtype(references.dtype)
        self._origin = np.zeros(references.shape[1], dtype)
        if not shifted and len(references):
            self._origin = origin_of(references.min(axis=0).astype(dtype), references.max(axis=0).astype(dtype))
        if self._origin.any():
            references = references.astype(dtype, copy=False) - self._origin
        self._references = np.ascontiguousarray(references, dtype)
        self._algorithm, self._ef_search, self._numbers = algorithm, ef_search, numbers

    @cached_property
    def _exact(self) -> _Finder:
        return _Tree(self._references) if self._algorithm == "tree" else _Products(self._references)

    @cached_property
    def _finder(self) -> _Finder:
        return _Hnsw(self._references, self._ef_search) if self._algorithm == "hnsw" else self._exact

    def build(self) -> None:
        """Build the index of the search; otherwise the first query does."""
        _ = self._finder

    def query(self, rows: Array, k: int, own: Ints | None = None) -> tuple[Ints, Float64]:
        """Return the numbers and distances of the k nearest references of every row.

        Parameters
        ----------
        rows : ndarray of shape (m, d)
        k : int
            Number of neighbours, at most the number of references.
        own : ndarray of shape (m,), optional
            Number of each row among the references, which is excluded from its neighbours.

        Returns
        -------
        indices : ndarray of shape (m, k)
            Numbers, nearest first; at the same distance by number.
        distances : ndarray of shape (m, k)
        """
        # A row among the references finds itself too.
        n_candidates, m = k + (own is not None), len(self._references)
        shifted = np.subtract(rows, self._origin, dtype=np.float64)
        places, distances = np.empty((len(rows), n_candidates), np.intp), np.empty((len(rows), n_candidates))
        finder, count, remaining = self._finder, min(m, n_candidates + MARGIN), np.arange(len(rows))

        def compared(piece: Ints) -> Ints:
            """Fill in the neighbours of a piece of the rows; return the rows that need more candidates."""
            candidates, bound = finder.find(shifted[piece], count)
            squares = _squared_distances(shifted[piece], self._references, candidates)
            lengths = np.sqrt(squares)
            # By distance, then by number.
            order = np.lexsort((candidates, lengths), axis=-1)[:, :n_candidates]
            places[piece] = np.take_along_axis(candidates, order, axis=1)
            distances[piece] = np.take_along_axis(lengths, order, axis=1)
            last = np.take_along_axis(squares, order[:, -1:], axis=1)[:, 0]
            # Another reference can be as near as the last neighbour: search these rows again.
            again: Ints = piece[(bound < np.inf) & ~(last < bound)]
            return again

        while len(remaining):
            threads = min(finder.threads, -(-len(remaining) // LEAST_PIECE))
            pieces = np.array_split(remaining, max(threads, -(-len(remaining) // candidates_at_once(count))))
            remaining = np.concatenate(list(map_in_threads(compared, pieces, threads)))
            # HNSW answers once; rows that lack candidates are searched exactly, by ever more candidates.
            count, finder = min(m, 2 * count), self._exact
        numbers = places if self._numbers is None else self._numbers[places]
        return (numbers, distances) if own is None else _leave_out(numbers, distances, own)


def held_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the floating-point type that holds all values of a type, or nearly so: float32 or float64."""
    return np.result_type(dtype, np.float32) if dtype.itemsize < 8 else np.dtype(np.float64)


def origin_of(low: Array, high: Array) -> Array:
    """Return a point near samples within a box, (d,), whose differences from them are exact.

    Products of samples far from the origin lose digits of their distances. A feature between `low` and `high` is moved
    if these are within a factor of two: differences with a number between them are then exact (Sterbenz).
    """
    middle = low / 2 + high / 2
    same = np.sign(low) == np.sign(high)
    least, most = np.minimum(np.abs(low), np.abs(high)), np.maximum(np.abs(low), np.abs(high))
    return np.where(same & (most <= 2 * least), middle, 0).astype(low.dtype)


class _Finder(Protocol):
    """Search for candidates, for several pieces of the rows at a time in threads."""

    @property
    def threads(self) -> int: ...

    def find(self, rows: Float64, count: int) -> tuple[Ints, Float64]:
        """Return the places of candidates of every row, (m, count), and a lower bound on other squared distances, (m,).

        An infinite bound accepts the candidates as they are.
        """


class _Products:
    """Search by products of blocks of rows with all references, in float64 (scikit-learn)."""

    def __init__(self, references: Array) -> None:
        from sklearn.neighbors import NearestNeighbors

        self._search = NearestNeighbors(algorithm="brute").fit(references)
        self._references, self._dtype, self._all = references, references.dtype, len(references)
        self._norm = max(_norms(references[at : at + 4096]).max() for at in range(0, len(references), 4096))

    @property
    def threads(self) -> int:
        return machine.cores()

    def __reduce__(self) -> Any:  # workers make it again, by the references that they have
        return _Products, (self._references,)

    def find(self, rows: Float64, count: int) -> tuple[Ints, Float64]:
        multiplied = rows.astype(self._dtype)
        # Pieces run in threads of ours: scikit-learn's wait for each other and take twice as long on busy cores.
        with threadpool_limits(1, user_api="openmp"):
            distances, places = self._search.kneighbors(multiplied, count)
        if count == self._all:
            return places, np.full(len(rows), np.inf)
        # Rounding of |x|^2 + |y|^2 - 2 x y, and of rows to float32.
        error = 4 * (rows.shape[1] + 4) * EPS * (_norms(multiplied) + self._norm) ** 2
        reach = np.maximum(distances[:, -1] * (1 - 4 * EPS) - _norms(rows - multiplied), 0)
        return places, reach**2 - error


class _Tree:
    """Search by a k-d tree (scipy)."""

    def __init__(self, references: Array) -> None:
        self._tree, self._references, self._all = cKDTree(references), references, len(references)

    @property
    def threads(self) -> int:
        return machine.cores()

    def __reduce__(self) -> Any:  # workers make it again, which takes little of the time of a search
        return _Tree, (self._references,)

    def find(self, rows: Float64, count: int) -> tuple[Ints, Float64]:
        nearest = np.arange(1, count + 1)  # a list, as scipy drops the axis for k = 1
        distances, places = self._tree.query(rows, nearest)
        if count == self._all:
            return places, np.full(len(rows), np.inf)
        return places, (distances[:, -1] * (1 - 4 * (rows.shape[1] + 4) * EPS)) ** 2


class _Hnsw:
    """Approximate search by hierarchical navigable small world graphs (faiss).

    One thread adds the samples: with several, the graph depends on their order. One thread answers each query.
    """

    threads = 1  # faiss has threads of its own

    def __init__(self, references: Array, ef_search: int) -> None:
        faiss = load_faiss()
        self._faiss, self._ef_search, self._all = faiss, ef_search, len(references)
        largest = max(float(np.abs(references[at : at + 4096]).max()) for at in range(0, len(references), 4096))
        # Squares of larger numbers overflow float32; scaling by a power of two rounds nothing.
        self._scale = 2.0 ** -np.ceil(np.log2(largest)) if largest > 1e15 or 0 < largest < 1e-15 else 1.0
        scaled = references if self._scale == 1 else references * references.dtype.type(self._scale)
        self._index = faiss.IndexHNSWFlat(references.shape[1], LINKS)
        self._index.hnsw.efConstruction = EF_CONSTRUCTION
        with _threads(faiss, 1):
            self._index.add(np.ascontiguousarray(scaled, np.float32))

    def __getstate__(self) -> dict[str, Any]:  # one thread makes the index, in the time of all searches by one
        return {**vars(self), "_faiss": None, "_index": self._faiss.serialize_index(self._index)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        faiss = load_faiss()
        vars(self).update(state, _faiss=faiss, _index=faiss.deserialize_index(state["_index"]))

    def find(self, rows: Float64, count: int) -> tuple[Ints, Float64]:
        parameters = self._faiss.SearchParametersHNSW(efSearch=max(self._ef_search, 2 * count))
        with _threads(self._faiss, machine.cores()):
            _, places = self._index.search(np.float32(rows * self._scale), count, params=parameters)
        missing = places < 0
        places[missing] = 0  # a bound below 0 has these rows searched again, exactly
        bound = np.where(missing.any(axis=1), -np.inf, np.inf)
        return places.astype(np.intp, copy=False), bound


def load_faiss() -> ModuleType:
    """Import faiss.

    Raises
    ------
    RequestError
        If it is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise RequestError(
            "method 'hnsw' needs faiss, which is not installed; pip install \"streampca[manifold]\", or use method "
            "'exact'."
        ) from None
    return faiss


@contextmanager
def _threads(faiss: ModuleType, count: int) -> Iterator[None]:
    """Let faiss use `count` threads, and restore the number of threads afterwards."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _squared_distances(rows: Float64, references: Array, places: Ints) -> Float64:
    """Return squared distances of rows to the references at `places`, (m, count), from differences in float64."""
    squares, features = np.empty(places.shape), rows.shape[1]
    columns = min(places.shape[1], max(1, PIECE // (8 * features)))
    step = max(1, PIECE // (8 * features * columns))
    for row in range(0, len(rows), step):
        safe_point()
        for column in range(0, places.shape[1], columns):
            tile = slice(row, row + step), slice(column, column + columns)
            # Differences in float64 keep the digits of near-duplicates, which |x|^2 - 2 x.y + |y|^2 loses.
            differences = np.subtract(references[places[tile]], rows[tile[0], None], dtype=np.float64)
            np.multiply(differences, differences, out=differences)
            differences.sum(axis=-1, out=squares[tile])
    return squares


def _leave_out(numbers: Ints, distances: Float64, own: Ints) -> tuple[Ints, Float64]:
    """Remove the number of each row itself from its neighbours, or the last neighbour if it is not among them."""
    kept = numbers != own[:, None]
    # Duplicates can displace a row from its own candidates.
    kept[kept.all(axis=1), -1] = False
    shape = len(numbers), numbers.shape[1] - 1
    return numbers[kept].reshape(shape), distances[kept].reshape(shape)


def _norms(rows: Array) -> Float64:
    squares: Float64 = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return np.sqrt(squares)
