"""Components from eigenvectors of the Gram matrix, V = X^T U, computed range by range of features.

They are kept in memory, or written as they are computed if they are larger than memory. The same reads give the mean,
and the products X^T (X W) with probe directions, from the stored values, which bound the errors of both. The checkpoint
of this last pass holds the eigenpairs as well, so that a fit resumes without its Gram matrix.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import blas, eigh, lapack

from ...accumulators import Directions
from ...accumulators.blas import times
from ...accumulators.centering import mean_parts, sum_of_parts
from ...accumulators.plain_state import as_arrays, as_values
from ...accumulators.probes import CHECK_EVERY
from ...accumulators.products import Block, Products, products_on
from ...arrays import Array, Float64, is_sparse
from ...eigensolvers import Certificate, Sketch, extremes, larger
from ...events import BlockDone
from ...execution.consecutive_rows import ConsecutiveRows
from ...execution.threads import map_in_threads
from ...machine import hand_back
from ...planning.blocks import Span, blocks_of
from ...planning.memory import CHECK_FEATURES, PROBES
from ...storage.components import ComponentWriter, UnfinishedComponents
from .gram_pairs import APART, ORTHONORMAL, RANK, Factors, Pairs
from .tasks import FeatureRanges

PART_BYTES = 4 * 2**20  # bytes of kept components processed at a time
LEAST_PART = 64  # least number of features processed at a time
PAIRS, SKETCH, UNROUNDED = "pairs.", "sketch.", "unrounded."  # prefixes of the names of their arrays in a state


class FeatureRange(NamedTuple):
    """Tile of features, projected on the vectors.

    Attributes
    ----------
    features : Span
        Features of the tile.
    values : ndarray of shape (k, width)
        Components, in the precision of products.
    products, rounding : ndarray of shape (width, 8)
        S W, and its rounding error on the measured features; 0 on the others.
    mean : ndarray of shape (width,)
        Mean of the samples, float64.
    checked : int
        Number of values from which `rounding` was measured.
    """

    features: Span
    values: Array
    products: Float64
    rounding: Float64
    mean: Float64
    checked: int


def project(factors: Factors, features: Span, stored: Array, multiplies: Products[Any, Any]) -> FeatureRange:
    """Project features of all samples, (n, width) as stored, which are centred and multiplied by `multiplies`."""
    parts = mean_parts(stored, multiplies.dtype)
    centred: Block = multiplies.centre(stored, parts)
    # The approximate mean that was subtracted, plus the mean of what remains.
    mean = sum_of_parts(parts, features.size) + factors.mean_of(centred)
    product = centred.combined(factors.working)
    values, products = product[:-PROBES], product[-PROBES:].T
    rounding: Float64 = np.zeros(products.shape)
    checked = 0
    # Float64 products need no check; others are checked in one of `CHECK_EVERY` tiles.
    if centred.dtype == np.float32 and features.start // factors.tile % CHECK_EVERY == 0:
        few = stored[:, :CHECK_FEATURES].astype(np.float64)
        few -= few[0]  # X^T (X W) does not depend on the centre, as the rows of X W add up to zero
        exact = times(few.T, factors.along, one_thread=factors.one_thread)
        rounding[:CHECK_FEATURES] = products[:CHECK_FEATURES] - exact
        checked = few.size
    return FeatureRange(features, values, products.astype(np.float64), rounding, mean, checked)


class DualBasis(abc.ABC):
    """Components while they are computed, the mean, and measurements that bound their errors.

    Parameters
    ----------
    shape : (int, int)
        Numbers of components and features, (k, p).
    pairs : Pairs
        Eigenpairs of the Gram matrix.
    seed : int
        Seed of the probe directions.

    Attributes
    ----------
    mean : ndarray of shape (p,)
        Mean of the samples.
    components : ndarray of shape (k, p) or None
        Components that are in memory.
    """

    components: Array | None = None

    def __init__(self, shape: tuple[int, int], pairs: Pairs, seed: int) -> None:
        self.mean: Float64 = np.zeros(shape[1])
        self._shape, self._pairs, self._directions = shape, pairs, Directions(seed)
        self._rounding: Float64 = np.zeros((PROBES, shape[0]))
        self._seen = self._checked = 0
        self._unrounded: Sketch = Sketch()  # of components before storage, if that rounds them
        self.moved: Float64 = np.zeros(shape[0])  # distances by which stored components were moved afterwards

    def take(self, made: FeatureRange) -> None:
        """Add a finished range."""
        values = made.values.astype(self._pairs.dtype, copy=False)
        self.mean[slice(*made.features)] = made.mean
        if made.checked:
            self._rounding += times(made.rounding.T, values.T.astype(np.float64, copy=False))
        self._checked += made.checked
        if made.values.dtype != values.dtype:
            self._unrounded.add(made.values.T, self._directions.rows(*made.features), made.products)
        self._seen += len(self._pairs.vectors) * made.features.size
        self._put(made, values)

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything, and the eigenpairs, as plain arrays; without `copy` the arrays in use."""
        arrays = {"mean": self.mean, "rounding": self._rounding, "counts": np.array([self._seen, self._checked])}
        arrays |= as_arrays(vars(self._unrounded), UNROUNDED)
        state = {**arrays, **self._own_state(), **as_arrays(self._pairs.state(), PAIRS)}
        return {name: array.copy(order="K") if copy else array for name, array in state.items()}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore what `state` returned."""
        self.mean, self._rounding = state["mean"], state["rounding"]
        self._seen, self._checked = state["counts"].tolist()
        self._unrounded = Sketch(**as_values(state, UNROUNDED))

    @abc.abstractmethod
    def _own_state(self) -> dict[str, Array]:
        """Return the arrays of this subclass."""

    @abc.abstractmethod
    def _put(self, made: FeatureRange, values: Array) -> None:
        """Store the components of a range in their final dtype; written ones must come in order."""

    @abc.abstractmethod
    def _sketch(self) -> Sketch:
        """Return the sketch of all stored components."""

    def certificates(
        self, values: Float64, next_value: float | None, rounding: Float64
    ) -> tuple[Certificate, Certificate | None]:
        """Bound the errors of the stored components, and of those before they were rounded, if they were.

        Parameters
        ----------
        values : ndarray of shape (k,)
            Eigenvalues of X^T X.
        next_value : float or None
            See `certify`.
        rounding : ndarray of shape (8, k)
            Error of X W along the components.
        """
        # Errors of different features are independent, so their squares add up: scale from checked to all values.
        scale = (self._seen / max(1, self._checked)) ** 0.5
        error = rounding + scale * self._rounding
        stored = replace(self._sketch(), rounding=error).certificate(values, next_value=next_value)
        if not np.ndim(self._unrounded.products):
            return stored, None
        return stored, replace(self._unrounded, rounding=error).certificate(values, next_value=next_value)


class ProjectedRows(ConsecutiveRows):
    """Projected features, one after another, as workers hand them to the process that makes the basis of them."""

    @classmethod
    def reserved(cls, factors: Factors, most: int) -> ProjectedRows:
        """Return no rows, with memory for so many features of a span."""
        values = (factors.vectors.shape[1],), factors.dtype
        measured = (PROBES,), np.float64
        forms: dict[str, Any] = {"values": values, "products": measured, "rounding": measured}
        return cls({**forms, "mean": ((), np.float64), "checked": ((), np.int64)}, most)

    def take(self, made: FeatureRange) -> None:
        """Add a finished range, which follows the others."""
        checked = np.zeros(made.features.size, np.int64)
        checked[0] = made.checked
        rows = {"products": made.products, "rounding": made.rounding, "mean": made.mean, "checked": checked}
        self.put(made.features.start, values=made.values.T, **rows)

    def ranges(self, tiles: Iterable[Span]) -> Iterator[FeatureRange]:
        """Yield the ranges again, by their features."""
        for tile in tiles:
            part = slice(*tile)
            measured = (self["products"][part], self["rounding"][part], self["mean"][part])
            yield FeatureRange(tile, self["values"][part].T, *measured, int(self["checked"][part][0]))


class KeptBasis(DualBasis):
    """Components in memory, with the products of the probes."""

    components: Array

    def __init__(self, shape: tuple[int, int], pairs: Pairs, seed: int) -> None:
        super().__init__(shape, pairs, seed)
        self.components = np.empty(shape, pairs.dtype)
        self._products = np.empty((shape[1], PROBES), pairs.dtype)

    def _own_state(self) -> dict[str, Array]:
        return {"components": self.components, "products": self._products}

    def restore(self, state: dict[str, Array]) -> None:
        """See `DualBasis.restore`."""
        super().restore(state)
        self.components, self._products = state["components"], state["products"]

    def _put(self, made: FeatureRange, values: Array) -> None:
        self.components[:, slice(*made.features)] = values
        self._products[slice(*made.features)] = made.products

    def _sketch(self) -> Sketch:
        sketch = Sketch()
        for part in self._parts():
            directions = self._directions.rows(*part)
            sketch.add(self.components[:, slice(*part)].T, directions, self._products[slice(*part)])
        return sketch

    def gram(self) -> Float64:
        """Return V V^T, (k, k)."""
        total: Float64 = np.zeros((len(self.components), len(self.components)))
        for part in self._parts():
            values = np.ascontiguousarray(self.components[:, slice(*part)])
            syrk = blas.ssyrk if values.dtype == np.float32 else blas.dsyrk
            total += syrk(1.0, values.T, trans=1)
        for row in range(1, len(total)):  # BLAS fills the upper triangle
            total[row, :row] = total[:row, row]
        return total

    def turn(self, matrix: Float64) -> None:
        """Replace the components by ``matrix @ components``, for a matrix (m, k) with m at most k."""
        working, count = matrix.astype(self.components.dtype, copy=False), len(matrix)
        squares = np.zeros(count)
        for part in self._parts():
            values = self.components[:, slice(*part)]
            turned = times(working, np.ascontiguousarray(values))
            if np.ndim(self._unrounded.products):
                # Variances and angles are those of the components before storage: only their distance changes.
                step = turned - values[:count]
                squares += np.einsum("ij,ij->i", step, step, dtype=np.float64)
            values[:count] = turned
        self.moved = self.moved[:count] + np.sqrt(squares)
        self._unrounded = self._unrounded.first(count)
        self.components = self.components[: len(matrix)]
        # Errors along the components combine like the components.
        self._rounding = self._rounding @ matrix.T

    def fix_signs(self) -> None:
        """Negate components whose loading of largest magnitude is negative (`streampca.eigensolvers.signs`)."""
        largest = np.zeros(len(self.components))
        for part in self._parts():
            largest = larger(largest, extremes(self.components[:, slice(*part)]))
        for number in np.flatnonzero(largest < 0):
            self.components[number] *= -1

    def _parts(self) -> Iterable[Span]:
        """Return the ranges of features processed at a time."""
        return blocks_of(Span(0, self._shape[1]), max(LEAST_PART, PART_BYTES // (8 * self._shape[0])))


class WrittenBasis(DualBasis):
    """Components written to a sink as they are computed, a tile of the storage at a time.

    Signs depend on all loadings, and are known at the end only: then each tile is read again, and written again if rows
    must be negated. This can be interrupted anywhere. The state holds the sign of the largest loading of every tile and
    component as first written, which shows the rows of a tile that were already negated.
    """

    def __init__(self, shape: tuple[int, int], pairs: Pairs, seed: int, sink: ComponentWriter) -> None:
        super().__init__(shape, pairs, seed)
        self._sketched, self._sink, self._tiles, dtype = Sketch(), sink, sink.ranges(1), pairs.dtype
        self._largest = np.zeros(shape[0], dtype)  # largest loading of each component so far
        self._tile_signs = np.zeros((len(self._tiles), shape[0]), np.int8)
        self._buffer = np.empty((shape[0], max(features.size for features in self._tiles)), dtype)
        self._written = self._filled = 0  # tiles written; features of the next tile in the buffer

    def _own_state(self) -> dict[str, Array]:
        self._sink.sync()  # components are on disk, not in the state
        return {
            **as_arrays(vars(self._sketched), SKETCH),
            "identity": np.array(self._sink.identity),
            "written": np.array(self._tiles[self._written - 1].stop if self._written else 0),
            "buffer": self._buffer[:, : self._filled],
            "largest": self._largest,
            "tile_signs": self._tile_signs,
        }

    def restore(self, state: dict[str, Array]) -> None:
        """See `DualBasis.restore`; the sink holds the written components."""
        super().restore(state)
        self._sketched = Sketch(**as_values(state, SKETCH))
        self._largest, self._tile_signs = state["largest"], state["tile_signs"]
        features = unfinished_components(state).features
        self._written, self._filled = sum(tile.stop <= features for tile in self._tiles), state["buffer"].shape[1]
        self._buffer[:, : self._filled] = state["buffer"]

    def _put(self, made: FeatureRange, values: Array) -> None:
        self._sketched.add(values.T, self._directions.rows(*made.features), made.products)
        stored = 0
        while stored < values.shape[1]:
            tile = self._tiles[self._written]
            count = min(values.shape[1] - stored, tile.size - self._filled)
            self._buffer[:, self._filled : self._filled + count] = values[:, stored : stored + count]
            self._filled += count
            stored += count
            if self._filled == tile.size:
                # A complete tile: record the signs of its largest loadings, and write it.
                full = self._buffer[:, : tile.size]
                largest = extremes(full)
                self._tile_signs[self._written] = np.sign(largest)
                self._largest = larger(self._largest, largest)
                self._sink.write(tile, full)
                self._written, self._filled = self._written + 1, 0

    def fix_signs(self, after_tile: Callable[[], None]) -> None:
        """Negate components whose loading of largest magnitude is negative, a tile of the storage at a time."""
        self._buffer = self._buffer[:, :0].copy()  # reading a tile needs the memory
        negated = self._largest < 0
        for tile, signs in zip(self._tiles if negated.any() else [], self._tile_signs, strict=False):
            values = self._sink.read(tile)
            hand_back()  # memory that Zarr's threads used for decoding stays in their pools
            # Compare with the sign as first written: a row that was negated before has the other one.
            wrong = np.flatnonzero(np.sign(extremes(values)) != np.where(negated, -signs, signs))
            for row in wrong:
                values[row] *= -1
            if len(wrong):
                self._sink.write(tile, values)
            del values
            hand_back()
            after_tile()

    def _sketch(self) -> Sketch:
        return self._sketched


def unfinished_components(state: dict[str, Array]) -> UnfinishedComponents:
    """Return the components that had been written when a `WrittenBasis` had this state."""
    return UnfinishedComponents(state["identity"].item(), state["written"].item())


@dataclass(frozen=True)
class RangesTask:
    """Compute components from ranges with all samples, a tile of features at a time.

    A block is a position in `order`, the sequence of ranges. Without a basis, what is computed are rows for one.
    """

    source: FeatureRanges
    order: tuple[Span, ...]
    factors: Factors
    threads: int
    basis: DualBasis | None = None
    longest: int = 0  # features of a span, without a basis
    _free: list[Products[Any, Any]] = field(default_factory=list, repr=False)

    def start(self) -> DualBasis | ProjectedRows:
        """Return the basis without components, or no rows."""
        return ProjectedRows.reserved(self.factors, self.longest) if self.basis is None else self.basis

    def restore(self, state: dict[str, Array]) -> DualBasis | ProjectedRows:
        """Return the basis with the components of a state, or its rows."""
        if self.basis is None:
            return ProjectedRows.from_state(state, self.longest)
        self.basis.restore(state)
        return self.basis

    def blocks(self, span: Span) -> Iterable[Span]:
        """Return the positions of a span, one range at a time."""
        return blocks_of(span, 1)

    def counts(self, block: Span) -> BlockDone:
        """Return the share of all samples that a range amounts to."""
        return self.source.done(self.order[block.start])

    def fetch(self, block: Span) -> Array:
        """Read a range."""
        return self.source.read(self.order[block.start])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_free": []}

    def tiles(self) -> Iterator[Span]:
        """Yield the tiles of all ranges, in order."""
        for wide in self.order:
            yield from blocks_of(wide, self.factors.tile)

    def feed(self, accumulator: DualBasis | ProjectedRows, block: Span, fetched: Array) -> None:
        """Compute the components of a range."""
        wide, factors = self.order[block.start], self.factors
        while len(self._free) < self.threads:
            self._free.append(products_on(factors.device, factors.dtype, one_thread=factors.one_thread))
            # Allocated here, as memory that threads free would stay in their pools.
            most = 0 if is_sparse(fetched) else len(fetched) * min(factors.tile, self.source.collection.n_features)
            self._free[-1].reserve(most)

        def project_range(features: Span) -> tuple[FeatureRange, Products[Any, Any]]:
            products = self._free.pop()
            cut = slice(features.start - wide.start, features.stop - wide.start)
            stored = fetched if features == wide else fetched[:, cut]  # slices of sparse rows are copies
            return project(factors, features, stored, products), products

        for projected, products in map_in_threads(project_range, blocks_of(wide, factors.tile), self.threads):
            accumulator.take(projected)
            self._free.append(products)


def polished(basis: KeptBasis, pairs: Pairs) -> Pairs:
    """Correct the rounding of float32 products in the pairs, by the products of the components with one another.

    For Z = X^T U the matrix Z^T Z is U^T G U with the true G: its eigenpairs are the best in the span of U (Rayleigh
    and Ritz), with errors of second order, and show which directions are rounding alone.
    """
    values, turned = (array[..., ::-1] for array in eigh(basis.gram(), check_finite=False))
    count = int(np.count_nonzero(values > RANK * values[0]))
    values = values[:count]
    # Unit vectors: Z^T Z has the squared lengths of the combinations as eigenvalues.
    mixed = (turned[:, :count] / np.sqrt(values)).T
    basis.turn(mixed)
    solution = pairs.solution
    spectrum = solution.spectrum
    if spectrum is not None:
        # Values of directions that are not corrected stay below those that are.
        spectrum = np.concatenate([values, np.minimum(spectrum[count:], values[-1])])
    # Without directions above rounding, nothing is left.
    after = solution.next_value if count == len(solution.values) else 0.0
    return replace(pairs, solution=replace(solution, values=values, spectrum=spectrum, next_value=after), mixed=mixed)


def orthonormal(basis: KeptBasis, pairs: Pairs) -> Pairs:
    """Orthogonalise components, as components of small variance are computed with parts along the others.

    In a component X^T u / sqrt(mu), the rounding of u lies along components of larger variance, magnified by the root
    of the ratio of the variances. So each is made orthogonal to the ones before, which do not change, by the Cholesky
    factor L of their products: L^-1 V. Components that are determined by the ones before are dropped.
    """
    values = pairs.solution.values
    # Rounding is magnified too little to matter: skip the product.
    if values[-1] >= APART * values[0]:
        return pairs
    products = basis.gram()
    if np.abs(products - np.eye(len(products))).max() <= ORTHONORMAL[pairs.dtype.name]:
        return pairs
    # Cholesky fails at the first component that the ones before determine.
    lower, failed = lapack.dpotrf(products, lower=1, overwrite_a=1)
    if failed:
        # Keep the components before it, and orthogonalise these.
        count = failed - 1
        basis.turn(np.eye(count, len(values)))
        solution = replace(pairs.solution.first(count), next_value=0.0)
        return orthonormal(basis, replace(pairs, solution=solution, mixed=pairs.mixed[:count]))
    turn = np.tril(lapack.dtrtri(lower, lower=1, overwrite_c=1)[0])
    basis.turn(turn)
    return replace(pairs, mixed=turn @ pairs.mixed)
