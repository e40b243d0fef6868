"""Regression of every feature on latent scores, over the samples in which it is observed: one step of EM.

Rows are y = m + V z + noise, with z normal of diagonal covariance L and noise of variance s2 in every feature
(probabilistic PCA; Tipping & Bishop, 1999). Where the features O of a row are observed, let M = V_O^T V_O + s2 L^-1:
its scores have mean M^-1 V_O^T (y_O - m_O) and covariance s2 M^-1 (Ilin & Raiko, JMLR 11, 2010). The normal equations
of a feature's row of V and its mean are sums over the rows in which it is observed: of the second moments of scores,
and of products of scores with its values. V is orthonormal, so M is near the identity whatever the spectrum, and
float32 holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..execution.panels import owned
from ..execution.threads import one_blas_thread
from ..planning.blocks import Span, blocks_of
from ..planning.memory import REGRESSED_FEATURES, REGRESSED_INVERSES, upper_entries
from .centering import centre_samples, split
from .finite import is_finite, not_finite
from .plain_state import add_sums, restore_sums, sums_of
from .products import Block, Products, products_on
from .protocol import Accumulator
from .weighted_pieces import weighted_pieces

HELD_OUT = 1 / 64  # share of the observed values that are predicted but not learned from
SHIFTS = 4093  # number of offsets at which a row's pattern of held-out values can begin, a prime
SPREAD = 2654435761  # maps consecutive rows to offsets far apart (Knuth, TAOCP 3, 6.4)
INVERTED = REGRESSED_INVERSES // 8  # entries of the matrices M inverted at a time
_STREAM = 5  # separates these draws from others of the same seed
_MODEL = ("vectors", "variances", "noise", "centre", "features", "product_rows", "held_out", "seed")
_NUMBERS = ("n_samples", "weight", "empty", "observed", "squares")
_SUMS = ("moments", "products", "score_moments", "held")


class ObservedRegression(Accumulator):
    """Accumulate the normal equations of a range of features on the scores of partly observed rows.

    Parameters
    ----------
    vectors : ndarray of shape (p, l)
        V, orthonormal columns.
    variances : ndarray of shape (l,)
        L, above 0.
    noise : float
        s2, above 0.
    centre : ndarray of shape (p,)
        m.
    features : Span, optional
        Range of features whose equations are added up; all by default. Scores always use all features.
    precision : {"single", "double"}
        Precision of products; sums are always float64.
    product_rows : int
        Largest number of rows multiplied at a time.
    held_out : float
        Share of the observed values that are excluded from the sums, and predicted.
    seed : int
        Seed of the choice of these values.
    device : str, default=""
        Device that multiplies (`streampca.accumulators.products`), by default the processor.

    Attributes
    ----------
    n_samples, weight : int, float
        Number of rows with any value, except those of weight 0, and the sum of their weights.
    empty, observed : float
        Weight of the rows without a value, and of all observed values, including those held out.
    moments : ndarray of shape (f, (l + 1)(l + 2) / 2)
        Sums of the upper triangle of E[z z^T], of E[z] and of the weights, over the rows in which each feature is
        observed.
    products : ndarray of shape (f, l + 1)
        Sums of the centred values times E[z], and of the values.
    squares : float
        Sum of the squares of the centred values of these features.
    score_moments : ndarray of shape ((l + 1)(l + 2) / 2,)
        The same sums over all rows with any value.
    held : ndarray of shape (3,)
        Number of values held out, and the sums of squared errors of their predictions and of the mean m.

    Notes
    -----
    Cost: about 2 n p (l + 1)(l + 2) flops where all features are in the range, and n l^3.
    """

    kind = "observed_regression"
    axis: Literal["samples", "features"] = "samples"
    constants = ("vectors",)

    def __init__(
        self,
        vectors: Array,
        variances: Float64,
        noise: float,
        centre: Float64,
        *,
        features: Span | None = None,
        precision: str = "single",
        product_rows: int = 256,
        held_out: float = HELD_OUT,
        seed: int = 0,
        device: str = "",
    ) -> None:
        p, width = vectors.shape
        self.n_features, self.precision, self.product_rows = p, precision, product_rows
        self.features = Span(0, p) if features is None else Span(*features)
        self._dtype = np.dtype(np.float64 if precision == "double" else np.float32)
        self.vectors = vectors.astype(self._dtype, order="C")
        self.variances, self.noise = np.array(variances, np.float64), float(noise)
        # Rows are centred on what both parts hold, so the model's mean is that too.
        self._parts = split(centre, self._dtype)
        self.centre = self._parts[0].astype(np.float64) + self._parts[1]
        self.held_out, self.seed = float(held_out), int(seed)
        count = upper_entries(width + 1)
        self.n_samples, self.weight, self.empty, self.observed, self.squares = 0, 0.0, 0.0, 0.0, 0.0
        self._multiplier: Products[Any, Any] = products_on(device, self._dtype, one_thread=True)
        self._moments = self._multiplier.sum(np.zeros((self.features.size, count)))
        self._products = self._multiplier.sum(np.zeros((self.features.size, width + 1)))
        self.score_moments: Float64 = np.zeros(count)
        self.held: Float64 = np.zeros(3)
        self._upper = np.triu_indices(width)
        self._pattern: npt.NDArray[np.bool_] | None = None
        self._work: Array | None = None

    @property
    def moments(self) -> Float64:
        """Sums of moments of the scores, see the class."""
        return self._moments.values  # type: ignore[no-any-return]

    @moments.setter
    def moments(self, values: Float64) -> None:
        self._moments.values = values

    @property
    def products(self) -> Float64:
        """Sums of products of the values with scores, see the class."""
        return self._products.values  # type: ignore[no-any-return]

    @products.setter
    def products(self, values: Float64) -> None:
        self._products.values = values

    @property
    def width(self) -> int:
        """Number of latent variables, l."""
        return len(self.variances)

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb rows, shape (rows, p); values that are NaN or infinite are not observed.

        Raises
        ------
        NotFiniteError
            If the products of a row's values overflow. The accumulator must then be discarded.
        """
        for places, piece in weighted_pieces(block, weights, self.product_rows):
            counts = np.ones(len(places)) if weights is None else weights[places].astype(np.float64)
            self._absorb_piece(piece, counts, at + places)

    def _absorb_piece(self, piece: Array, weights: Float64, places: npt.NDArray[np.intp]) -> None:
        """Absorb rows that are multiplied at once, given their positions in the collection."""
        observed = np.isfinite(piece)
        self.observed += float(weights @ np.count_nonzero(observed, axis=1))
        centred = self._centred(piece, observed)
        rows, features = self._held_out(observed, places)
        # Rows keep at least one value: without any they would count as empty.
        remaining = np.count_nonzero(observed, axis=1) - np.bincount(rows, minlength=len(observed))
        held = rows[remaining[rows] > 0], features[remaining[rows] > 0]
        # Held-out values are predicted by scores that have not seen them.
        truth = centred[held]
        observed[held], centred[held] = False, 0
        has_values = observed.any(axis=1)
        self.empty += float(weights[~has_values].sum())
        weights = np.where(has_values, weights, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            # E step: moments of each row's scores; M step: their sums for each feature.
            scores, factors = self._scores(observed, centred, weights)
            self._regress(observed, centred, factors, weights)
            if not is_finite(factors) or not self._products.is_finite() or not np.isfinite(self.squares):
                # Missing values are not the fault: only values that overflow are named.
                raise not_finite(np.where(np.isfinite(piece), piece, 0), places, self.precision)
        self.n_samples += int(np.count_nonzero(has_values))
        self.weight += float(weights.sum())
        self.score_moments += factors.sum(axis=0, dtype=np.float64)
        predicted = np.einsum("ij,ij->i", scores[held[0]], self.vectors[held[1]])
        errors, squares = np.sum(np.square(truth - predicted)), np.sum(np.square(truth, dtype=float))
        self.held += len(truth), float(errors), float(squares)

    def _centred(self, piece: Array, observed: npt.NDArray[np.bool_]) -> Array:
        """Return rows less the mean, 0 where they are not observed, in working memory."""
        if self._work is None or len(self._work) < len(piece):
            self._work = np.empty((len(piece), self.n_features), self._dtype)
        centred = self._work[: len(piece)]
        centre_samples(piece, self._parts, centred)
        np.copyto(centred, 0, where=~observed)
        return centred

    def _held_out(self, observed: npt.NDArray[np.bool_], places: npt.NDArray[np.intp]) -> tuple[Array, Array]:
        """Return rows and features of the held-out values, which depend on the position of a row, not on blocks."""
        if not self.held_out:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        p = self.n_features
        if self._pattern is None:
            rng = np.random.default_rng([_STREAM, self.seed])
            self._pattern = rng.random(p + SHIFTS, dtype=np.float32) < self.held_out
        rows, features = [], []
        for row, seen in enumerate(observed):
            # The pattern of a row depends on its position alone: any blocks and workers hold out the same values.
            start = int(places[row]) * SPREAD % SHIFTS
            columns = np.flatnonzero(self._pattern[start : start + p] & seen)
            rows.append(np.full(len(columns), row))
            features.append(columns)
        return np.concatenate(rows), np.concatenate(features)

    def _scores(self, observed: npt.NDArray[np.bool_], centred: Array, weights: Float64) -> tuple[Array, Array]:
        """Return mean scores, (m, l), and the terms of the sums: weighted E[z z^T], E[z] and 1, (m, q)."""
        rows, width, (left, right) = len(centred), self.width, self._upper
        # V_O^T V_O and V_O^T (y_O - m_O) of each row: sums over its observed features.
        grams, sides = np.zeros((rows, len(left))), np.zeros((rows, width))
        block, whole = self._multiplier.block(centred), slice(None)
        sums = self._multiplier.sum(grams), self._multiplier.sum(sides)
        for tile in self._tiles(Span(0, self.n_features)):
            loadings = self._loadings[tile]
            sums[0].add(whole, self._multiplier.block(observed[:, tile]), loadings.pairs())
            sums[1].add(whole, block.T[tile].T, loadings)
        grams, sides = sums[0].values, sums[1].values
        scores = np.empty((rows, width), np.float64)
        factors = np.empty((rows, upper_entries(width + 1)), self._dtype)
        step = max(1, INVERTED // width**2)
        with one_blas_thread():  # several threads slow down products of small matrices
            for start in range(0, rows, step):
                chunk = slice(start, start + step)
                matrix = np.empty((len(grams[chunk]), width, width))
                matrix[:, left, right] = matrix[:, right, left] = grams[chunk]
                # M = V_O^T V_O + s2 L^-1 of each row; then the mean M^-1 V_O^T (y_O - m_O) and the covariance s2 M^-1.
                matrix[:, np.arange(width), np.arange(width)] += self.noise / self.variances
                spread = np.linalg.inv(matrix)
                mean = scores[chunk] = np.einsum("nij,nj->ni", spread, sides[chunk])
                second = self.noise * spread[:, left, right] + mean[:, left] * mean[:, right]
                factors[chunk, : len(left)] = second * weights[chunk, None]
                factors[chunk, len(left) : -1] = mean * weights[chunk, None]
        factors[:, -1] = weights
        return scores, factors

    def _regress(self, observed: npt.NDArray[np.bool_], centred: Array, factors: Array, weights: Float64) -> None:
        """Add to the normal equations of the range of features."""
        first, block = self.features.start, self._multiplier.block(centred)
        moments = self._multiplier.block(factors)
        for tile in self._tiles(self.features):
            equations = slice(tile.start - first, tile.stop - first)
            self._moments.add(equations, self._multiplier.block(observed[:, tile]).T, moments)
            self._products.add(equations, block.T[tile], moments.T[-self.width - 1 :].T)
            self.squares += float(weights @ np.square(centred[:, tile], dtype=np.float64).sum(axis=1))

    @cached_property
    def _loadings(self) -> Block:
        """V as it is multiplied, which stays on a device."""
        return self._multiplier.block(self.vectors)  # type: ignore[no-any-return]

    def _tiles(self, features: Span) -> Iterator[slice]:
        yield from (slice(*tile) for tile in blocks_of(features, REGRESSED_FEATURES))

    def absorb(self, other: Self) -> None:
        """Add the rows of another accumulator of the same model and range of features.

        Raises
        ------
        ValueError
            If the two differ in any of these.
        """
        same = self.features == other.features and self.noise == other.noise and self.held_out == other.held_out
        for name in ("vectors", "variances", "centre"):
            same = same and np.array_equal(getattr(self, name), getattr(other, name))
        if not same:
            raise ValueError("regressions on other scores, or of other features, cannot be added")
        add_sums(self, other, (*_NUMBERS, *_SUMS))

    def release(self) -> None:
        """Free the working memory; `update` allocates it again."""
        self._work = self._pattern = None
        self.__dict__.pop("_loadings", None)
        self._multiplier.release()

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; without `copy` the sums themselves, to be stored but not written to."""
        arrays, sums = sums_of(self, (*_MODEL, *_NUMBERS), copy=True), sums_of(self, _SUMS, copy=copy)
        return {**arrays, **sums, "double": np.array(self.precision == "double")}

    @classmethod
    def from_state(
        cls, state: dict[str, Array], *, vectors: Array | None = None, copy: bool = True, device: str = ""
    ) -> Self:
        """Return the accumulator whose `state` this is; without `copy` its sums are taken over.

        `vectors` are used instead of those of the state, which can lack them.
        """
        new = cls(
            state["vectors"] if vectors is None else vectors,
            np.array(state["variances"]),
            float(state["noise"]),
            np.array(state["centre"]),
            features=Span(*np.asarray(state["features"]).tolist()),
            precision="double" if state["double"] else "single",
            product_rows=int(state["product_rows"]),
            held_out=float(state["held_out"]),
            seed=int(state["seed"]),
            device=device,
        )
        restore_sums(new, state, _NUMBERS)
        for name in _SUMS:
            setattr(new, name, owned(state[name], copy=copy))
        return new
