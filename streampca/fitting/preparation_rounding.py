"""Rounding errors of a preparation, measured on some samples and added to the error bounds of a model.

Rounding turns the exact row x of a sample into x' = x + d. Let r = (x + x') / 2, and r and d be centred. Then the error
of the covariance is E = sum of (r d^T + d r^T), exactly, and |E v| adds to the residual of a component v. It follows
from the inner products of the r and d with v and with one another, so that no p x p matrix is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..eigensolvers.error_bounds import gaps_around
from ..machine import hand_back
from ..models.accuracy import bound_on_variance_after
from ..models.components import ComponentsModel
from ..models.pca import PCAModel
from ..models.subspace import Subspace
from ..planning.blocks import Span, blocks_of
from ..planning.memory import MEASURED_WIDTH, measured_rows
from ..preprocessing import Prepared
from ..preprocessing.learned import Learned
from ..storage.components import StoredRows

EPS = float(np.finfo(np.float64).eps)
EXACT_BYTES = 8  # of float64
SAFETY = 3  # factor of the bounds, as a few samples stand for all
SHARE = 32  # one sample in so many, of one chunk in so many, is decoded once more
SEED = 20  # of the signs of sketches: the same samples have the same bounds


@dataclass(frozen=True)
class PreparedErrors:
    """Rows of samples, half-way between prepared and exact ones, and the errors of the prepared ones.

    Attributes
    ----------
    sketches : ndarray of shape (2, m, w)
        Centred rows and errors, in their units. Of more than `MEASURED_WIDTH` features they are sums of features with
        random signs, whose inner products are those of rows and errors to 2 %.
    along : ndarray of shape (2, m, k)
        Inner products of these rows and errors with the components.
    weights : ndarray of shape (m,)
        Weights that add up to m / (m - 1), or to 1 for one sample.
    row_unit, error_unit : float
        Powers of two by which rows and errors are divided.
    eps : float
        Relative spacing of the dtype of prepared samples; 0 where no error was seen.
    """

    sketches: Float64
    along: Float64
    weights: Float64
    row_unit: float
    error_unit: float
    eps: float

    def residuals(self) -> Float64:
        """Bound |E v| for each component v, (k,), with E the error of the covariance."""
        along_rows, along_errors = self.along * self.weights[:, None]
        factors, products = np.concatenate([along_errors, along_rows]), self._products
        # E v = sum of (r (d.v) + d (r.v)): its square is a quadratic form of the inner products of all r and d.
        squares = np.einsum("ij,ij->j", factors, products @ factors)
        # Errors that cancel among the measured samples need not cancel among all: the square of each is added again.
        m = len(self.weights)
        rows, errors, both = products[:m, :m].diagonal(), products[m:, m:].diagonal(), products[:m, m:].diagonal()
        squares += rows @ along_errors**2 + errors @ along_rows**2 + 2 * both @ (along_errors * along_rows)
        bounds: Float64 = SAFETY * self.row_unit * self.error_unit * np.sqrt(np.maximum(squares, 0.0))
        return bounds

    @property
    def norm(self) -> float:
        """Bound on the largest absolute eigenvalue of E."""
        m, products = len(self.weights), self._products
        # With F = (R, D) and J swapping the two, E = F J F^T has the non-zero eigenvalues of the small J F^T F.
        swapped = np.concatenate([products[m:] * self.weights[:, None], products[:m] * self.weights[:, None]])
        largest = float(np.abs(np.linalg.eigvals(swapped)).max(initial=0.0))
        return SAFETY * self.row_unit * self.error_unit * largest

    @property
    def _products(self) -> Float64:
        """Inner products of the rows and errors with one another, (2 m, 2 m), rows first."""
        both = self.sketches.reshape(-1, self.sketches.shape[-1])
        products: Float64 = both @ both.T
        return products


def measured_errors(
    collection: Prepared,
    weights: Float64 | None = None,
    centre: Float64 | None = None,
    subspace: Subspace | None = None,
) -> PreparedErrors | None:
    """Prepare some samples both as a fit does and exactly, and return the differences.

    Returns None where nothing is rounded, all measured samples have weight 0, or one is not finite. Samples are held
    one after another, exact ones a few features at a time. A centre near the samples is subtracted first, then their
    mean; a single sample has no mean of its own, and needs the centre.
    """
    if not collection.preparation.rounds or _maps_exactly(collection):
        return None
    places = _places(collection)
    if weights is not None:  # samples of weight 0 may hold anything, also NaN
        places = places[weights[places] > 0]
    if not len(places) or (len(places) == 1 and centre is None):
        return None
    if centre is None:
        centre = collection.read(slice(int(places[0]), int(places[0]) + 1))[0].astype(np.float64)
    counts = np.ones(len(places)) if weights is None else weights[places]
    sums = _Sums(len(places), centre, float(np.finfo(collection.dtype).eps), subspace)
    reads_components = not (subspace is None or subspace.is_held)
    ends = np.flatnonzero(np.diff(places) > 1) + 1  # of runs of consecutive samples, which are read together
    runs = [Span(int(run[0]), int(run[-1]) + 1) for run in np.split(places, ends)]
    for block in (block for run in runs for block in blocks_of(run, collection.measured_at_once)):
        if reads_components:
            hand_back()  # the memory of the fit, and of tiles of components
        rows, pieces = collection.read_with_exact(slice(*block))
        if reads_components:
            hand_back()  # the memory of preparing
        sums.add(rows, pieces)
        del rows, pieces  # before the next are read
    return sums.errors(counts / counts.sum())


def _maps_exactly(collection: Prepared) -> bool:
    """Return whether float64 holds the samples, which a feature map takes as stored, and what the map makes of them.

    The exact samples are then the prepared ones, bit for bit.
    """
    preparation, raw = collection.preparation, collection.raw.dtype
    maps = preparation.mapped is not None and not preparation.unmapped.rounds
    return maps and raw.kind == "f" and raw.itemsize <= EXACT_BYTES and collection.dtype.itemsize == EXACT_BYTES


class _Sums:
    """Sketches of rows and errors, and their products with components, accumulated over features and samples."""

    def __init__(self, count: int, centre: Float64, eps: float, subspace: Subspace | None) -> None:
        self._centre, self._eps, self._subspace = centre, eps, subspace
        self._sketches = np.zeros((2, count, min(len(centre), MEASURED_WIDTH)))
        self._along = np.zeros((2, count, 0 if subspace is None else subspace.n_scores))
        self._unit, self._n_added, self._rounds = 0.0, 0, False

    def add(self, rows: Array, pieces: Iterator[tuple[slice, Array]]) -> None:
        """Add prepared samples, (m, p), and ranges of features of the exact ones."""
        self._unit = self._unit or max(_unit(self._centre), _unit(rows)) or 1.0
        added = slice(self._n_added, self._n_added + len(rows))
        loadings = None if self._subspace is None else _Loadings(self._subspace)
        for features, exact in pieces:
            prepared = rows[:, features]
            # The difference is taken in the dtype of the exact values, which has digits enough to show it.
            errors = np.subtract(prepared, exact, dtype=exact.dtype).astype(np.float64) / (self._eps * self._unit)
            middle = (prepared - self._centre[features]) / self._unit - self._eps / 2 * errors
            both = np.stack([middle, errors])
            self._rounds = self._rounds or bool(errors.any())
            self._sketches[:, added] += self._sketched(both, features)
            if loadings is not None:
                self._along[:, added] += loadings.times(both, features)
        self._n_added = added.stop

    def _sketched(self, values: Float64, features: slice) -> Float64:
        """Return the contribution of a range of features to the sketches, (2, m, features) to (2, m, w)."""
        width = self._sketches.shape[-1]
        out = np.zeros((*values.shape[:2], width))
        if width == len(self._centre):
            out[:, :, features] = values
            return out
        places = np.random.default_rng((SEED, features.start)).integers(0, 2 * width, values.shape[-1])
        for index in np.ndindex(*values.shape[:2]):  # a place from w on stands for place - w with a negative sign
            plus, minus = np.bincount(places, values[index], 2 * width).reshape(2, width)
            out[index] = plus - minus
        return out

    def errors(self, weights: Float64) -> PreparedErrors | None:
        """Return the centred sums, for weights that add up to 1; None where one is not finite."""
        if not np.isfinite(self._sketches).all():  # the pass that uses the values names the sample
            return None
        if len(weights) > 1:
            for values in (self._sketches, self._along):
                values -= (weights @ values)[:, None]
            weights = weights * (len(weights) / (len(weights) - 1))
        unit, eps = self._unit, self._eps
        return PreparedErrors(self._sketches, self._along, weights, unit, eps * unit, eps if self._rounds else 0.0)


class _Loadings:
    """Loadings of ascending ranges of features, read tile by tile."""

    def __init__(self, subspace: Subspace) -> None:
        self._pieces, self._span, self._count = subspace.pieces(), Span(0, 0), subspace.n_scores
        self._loadings: Array = np.empty((0, 0))

    def times(self, values: Float64, features: slice) -> Float64:
        """Multiply values of the next range of features by its loadings, (2, m, features) to (2, m, k)."""
        out, at = np.zeros((*values.shape[:2], self._count)), features.start
        while at < features.stop:
            if at == self._span.stop:
                self._loadings = np.empty((0, 0))  # before the next are read
                self._span, piece = next(self._pieces)
                self._loadings = np.asarray(piece.components)
            stop = min(features.stop, self._span.stop)
            loadings = self._loadings[:, at - self._span.start : stop - self._span.start]
            piece_values = values[..., at - features.start : stop - features.start]
            out += piece_values.astype(loadings.dtype) @ loadings.T
            at = stop
        return out


def with_rounding(
    model: ComponentsModel, collection: Prepared, weights: Float64 | None, rows: StoredRows | None = None
) -> ComponentsModel:
    """Return a model whose error bounds include the rounding errors of its preparation.

    Components that are still being written are read from `rows`. Components of a kernel matrix have no loadings of the
    samples' features; their bounds stay, and hold for the samples as prepared.
    """
    measurable = collection.preparation.rounds and collection.pending is None
    if not (measurable and np.isfinite(model.residual_bound).any()):
        return model
    subspace = model.subspace if rows is None else replace(model.subspace, components=rows)
    errors = measured_errors(collection, weights, subspace.mean, subspace)
    if errors is None:
        return model
    weight = model.total_weight or model.n_samples
    scale = weight / (weight - 1)
    values, statistic = model.explained_variance, model.statistic if isinstance(model, PCAModel) else None
    extra = scale * errors.residuals() + errors.eps * values  # the second for samples unlike the measured ones
    extra += _deviation_rounding(collection.preparation.learned) * (values + values.max(initial=0.0))
    if statistic is not None and hasattr(statistic, "slack"):
        statistic.slack = weight * errors.norm  # for models that are updated or merged from it
    relative = np.divide(extra, values, out=np.full(len(values), np.inf), where=values > 0)
    return replace(
        model,
        residual_bound=model.residual_bound + relative,
        angle_bound=_wider_angles(model, extra),
        error_bound=model.error_bound + relative,
        outside=None if model.outside is None else model.outside + scale * errors.norm,
    )


def _deviation_rounding(learned: Learned | None) -> float:
    """Bound the relative error of deviations about means of groups, which float64 rounds."""
    if learned is None or learned.groups is None or learned.deviation is None:
        return 0.0
    largest = np.maximum(learned.means.max(axis=0), -learned.means.min(axis=0))
    varies = learned.deviation > 0
    return EPS * float((largest[varies] / learned.deviation[varies]).max(initial=0.0))


def _wider_angles(model: ComponentsModel, extra: Float64) -> Float64:
    """Return bounds on angles for residuals that are larger by `extra`, which also narrows the gaps."""
    values, residuals = model.explained_variance, model.residual_bound * model.explained_variance
    after = bound_on_variance_after(model)
    gaps = gaps_around(values, residuals, after) - 2 * extra.max(initial=0.0)
    # An angle is a residual over a gap, which was at most the distance of the variances, plus rounding.
    with np.errstate(divide="ignore", invalid="ignore"):
        wider = (model.angle_bound * gaps_around(values, np.zeros(len(values)), after) + extra) / gaps
    return np.where((gaps > 0) & (wider < 1), wider, np.nan)


def _places(collection: Prepared) -> npt.NDArray[np.intp]:
    """Return the numbers of the samples to measure: spread evenly, or over few chunks if these must be decoded."""
    n, at_once = collection.n_samples, collection.measured_at_once
    count = min(n, measured_rows(collection.n_features))
    places = -(-count // at_once)
    if collection.storage.encoded:
        count = min(count, max(2, n // SHARE))
        places = max(1, min(places, n // (SHARE * collection.chunks.samples)))
    run = -(-count // places)
    starts = (np.arange(places) * max(0, n - run)) // max(1, places - 1)
    return np.unique((starts[:, None] + np.arange(run)).clip(max=n - 1))


def _unit(array: Array) -> float:
    """Return the power of two just below the largest absolute value of an array; 0 if all are 0."""
    largest = max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))
    return float(np.ldexp(1.0, np.frexp(largest)[1] - 1)) if np.isfinite(largest) and largest else 0.0
