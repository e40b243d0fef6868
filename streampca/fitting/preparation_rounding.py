"""Rounding of the steps of a preparation, measured on some samples, as a part of the error bounds of a model.

The rows x' of a fit differ from those of exact arithmetic x by d = x' - x. With r = (x + x') / 2, and both about their
means, the covariance is off by E = sum of (r d^T + d r^T), exactly. For a component v, |E v| adds to its residual. It
takes only inner products of rows and errors with v and with one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..machine import hand_back
from ..models.components import ComponentsModel
from ..models.pca import PCAModel
from ..models.subspace import Subspace
from ..planning.blocks import Span, blocks_of
from ..planning.sizes import MEASURED_WIDTH, measured_rows
from ..preprocessing import Prepared
from ..preprocessing.learned import Learned
from ..storage.components import StoredRows

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
SAFETY = 3  # times what the samples that are measured amount to, as they stand for all
SHARE = 32  # ... of the samples, and of the chunks, are decoded once more
SEED = 20  # of the sums of features of long samples: the same samples have the same bounds


@dataclass(frozen=True)
class PreparedErrors:
    """Rows of samples, half-way between those prepared and the exact ones, and the errors of those prepared.

    Attributes
    ----------
    sketches : ndarray of shape (2, m, w)
        Rows and errors less their means, divided by their units: sums of features with random signs, at most
        `MEASURED_WIDTH` of them; inner products of rows and errors are those of the sums, to 2 %.
    along : ndarray of shape (2, m, k)
        Inner products of these rows and errors with components.
    weights : ndarray of shape (m,)
        Adding up to 1, or a little more: m / (m - 1).
    row_unit, error_unit : float
        Powers of two.
    eps : float
        Relative spacing of the dtype that samples are prepared to; 0 where no error was seen.
    """

    sketches: Float64
    along: Float64
    weights: Float64
    row_unit: float
    error_unit: float
    eps: float

    def residuals(self) -> Float64:
        """Bound |E v| of each component, (k,), for E of the covariance.

        Errors of samples that cancel in those measured may not do so in others: their squares are added.
        """
        own_rows, own_errors = self.along * self.weights[:, None]
        factors, products = np.concatenate([own_errors, own_rows]), self._products
        squares = np.einsum("ij,ij->j", factors, products @ factors)
        m = len(self.weights)
        within = [products[:m, :m].diagonal(), products[m:, m:].diagonal(), products[:m, m:].diagonal()]
        squares += within[0] @ own_errors**2 + within[1] @ own_rows**2 + 2 * within[2] @ (own_errors * own_rows)
        found: Float64 = SAFETY * self.row_unit * self.error_unit * np.sqrt(np.maximum(squares, 0.0))
        return found

    @property
    def norm(self) -> float:
        """Bound on the largest eigenvalue of E, either way."""
        m, products = len(self.weights), self._products
        swapped = np.concatenate([products[m:] * self.weights[:, None], products[:m] * self.weights[:, None]])
        largest = float(np.abs(np.linalg.eigvals(swapped)).max(initial=0.0))
        return SAFETY * self.row_unit * self.error_unit * largest

    @property
    def _products(self) -> Float64:
        """Inner products of rows and errors, (2 m, 2 m), rows first."""
        both = self.sketches.reshape(-1, self.sketches.shape[-1])
        products: Float64 = both @ both.T
        return products


def measured_errors(
    collection: Prepared,
    weights: Float64 | None = None,
    centre: Float64 | None = None,
    subspace: Subspace | None = None,
) -> PreparedErrors | None:
    """Prepare some samples as a fit does and exactly; None where nothing is rounded, none counts or one is not finite.

    Samples are in memory one after another, exact ones a few features at a time. Rows are computed about a centre near
    them, which one sample alone needs, and then about their mean.
    """
    if not collection.preparation.rounds:
        return None
    places = _places(collection)
    if weights is not None:  # samples that do not count may hold anything
        places = places[weights[places] > 0]
    if not len(places) or (len(places) == 1 and centre is None):
        return None
    if centre is None:
        centre = collection.read(slice(int(places[0]), int(places[0]) + 1))[0].astype(np.float64)
    counts = np.ones(len(places)) if weights is None else weights[places]
    sums = _Sums(len(places), centre, float(np.finfo(collection.dtype).eps), subspace)
    reads = not (subspace is None or subspace.is_held)
    for some in _runs(places, collection.measured_at_once):
        if reads:
            hand_back()  # what reading tiles of components took, and the fit before
        rows, pieces = collection.read_with_exact(some)
        if reads:
            hand_back()  # what preparing took
        sums.add(rows, pieces)
        del rows, pieces  # before the next are read
    return sums.errors(counts / counts.sum())


class _Sums:
    """Sums over the features of rows and errors, sample by sample."""

    def __init__(self, count: int, centre: Float64, eps: float, subspace: Subspace | None) -> None:
        self._centre, self._eps, self._subspace = centre, eps, subspace
        self._sketches = np.zeros((2, count, min(len(centre), MEASURED_WIDTH)))
        self._along = np.zeros((2, count, 0 if subspace is None else subspace.n_scores))
        self._unit, self._at, self._rounds = 0.0, 0, False

    def add(self, rows: Array, pieces: Iterator[tuple[slice, Array]]) -> None:
        """Add some samples as they are prepared, (m, p), and exact pieces of them."""
        self._unit = self._unit or max(_unit(self._centre), _unit(rows)) or 1.0
        own = slice(self._at, self._at + len(rows))
        loadings = None if self._subspace is None else _Loadings(self._subspace)
        for features, exact in pieces:
            own_rows = rows[:, features]
            errors = np.subtract(own_rows, exact, dtype=exact.dtype).astype(np.float64) / (self._eps * self._unit)
            apart = (own_rows - self._centre[features]) / self._unit - self._eps / 2 * errors
            both = np.stack([apart, errors])
            self._rounds = self._rounds or bool(errors.any())
            self._sketches[:, own] += self._sketched(both, features)
            if loadings is not None:
                self._along[:, own] += loadings.times(both, features)
        self._at = own.stop

    def _sketched(self, values: Float64, features: slice) -> Float64:
        """Return the share of some features in the sketches, (2, m, features) to (2, m, w)."""
        width = self._sketches.shape[-1]
        out = np.zeros((*values.shape[:2], width))
        if width == len(self._centre):
            out[:, :, features] = values
            return out
        places = np.random.default_rng((SEED, features.start)).integers(0, 2 * width, values.shape[-1])
        for place in np.ndindex(*values.shape[:2]):  # half of the places are of those whose sign is turned
            plus, minus = np.bincount(places, values[place], 2 * width).reshape(2, width)
            out[place] = plus - minus
        return out

    def errors(self, share: Float64) -> PreparedErrors | None:
        """Return them about their means, of weights that add up to 1; None where one is not finite."""
        if not np.isfinite(self._sketches).all():  # named where the values are used
            return None
        if len(share) > 1:
            for values in (self._sketches, self._along):
                values -= (share @ values)[:, None]
            share = share * (len(share) / (len(share) - 1))
        unit, eps = self._unit, self._eps
        return PreparedErrors(self._sketches, self._along, share, unit, eps * unit, eps if self._rounds else 0.0)


class _Loadings:
    """Loadings of ascending ranges of features, read piece by piece."""

    def __init__(self, subspace: Subspace) -> None:
        self._pieces, self._span, self._count = subspace.pieces(), Span(0, 0), subspace.n_scores
        self._loadings: Array = np.empty((0, 0))

    def times(self, values: Float64, features: slice) -> Float64:
        """Multiply values of the features that come next, (2, m, features) to (2, m, k)."""
        out, at = np.zeros((*values.shape[:2], self._count)), features.start
        while at < features.stop:
            if at == self._span.stop:
                self._loadings = np.empty((0, 0))  # before the next are read
                self._span, piece = next(self._pieces)
                self._loadings = np.asarray(piece.components)
            stop = min(features.stop, self._span.stop)
            own = self._loadings[:, at - self._span.start : stop - self._span.start]
            some = values[..., at - features.start : stop - features.start]
            out += some.astype(own.dtype) @ own.T
            at = stop
        return out


def with_rounding(
    model: ComponentsModel, collection: Prepared, weights: Float64 | None, rows: StoredRows | None = None
) -> ComponentsModel:
    """Return a model with bounds that hold the rounding of its preparation, where they are known.

    Its components are read from `rows` where they are given, as those that are being written are. Where a kernel matrix
    stands for a feature map, components have no loadings of the samples' features, and bounds hold for samples as they
    are prepared.
    """
    measurable = collection.preparation.rounds and collection.pending is None
    if not (measurable and np.isfinite(model.error_bound).any()):
        return model
    subspace = model.subspace if rows is None else replace(model.subspace, components=rows)
    found = measured_errors(collection, weights, subspace.mean, subspace)
    if found is None:
        return model
    weight = model.total_weight or model.n_samples
    scale = weight / (weight - 1)
    values, statistic = model.explained_variance, model.statistic if isinstance(model, PCAModel) else None
    extra = scale * found.residuals() + found.eps * values  # samples unlike those that are measured
    extra += _of_deviations(collection.preparation.learned) * (values + values.max(initial=0.0))
    if statistic is not None and hasattr(statistic, "slack"):
        statistic.slack = weight * found.norm
    relative = np.divide(extra, values, out=np.full(len(values), np.inf), where=values > 0)
    return replace(
        model,
        error_bound=model.error_bound + relative,
        angle_bound=_wider_angles(model, extra),
        variance_bound=None if model.variance_bound is None else model.variance_bound + relative,
        outside=None if model.outside is None else model.outside + scale * found.norm,
    )


def _of_deviations(learned: Learned | None) -> float:
    """Bound the relative rounding of deviations about means of groups, which are held to the digits of float64 only."""
    if learned is None or learned.groups is None or learned.deviation is None:
        return 0.0
    largest = np.maximum(learned.means.max(axis=0), -learned.means.min(axis=0))
    varies = learned.deviation > 0
    return EPS * float((largest[varies] / learned.deviation[varies]).max(initial=0.0))


def _wider_angles(model: ComponentsModel, extra: Float64) -> Float64:
    """Return bounds on angles for residuals that are larger by `extra`: these also narrow the gaps on both sides."""
    residuals, angles = model.error_bound * model.explained_variance, model.angle_bound
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = np.where(angles > 0, residuals / angles, np.inf) - 2 * extra.max(initial=0.0)
        wider = (residuals + extra) / gaps
    return np.where((gaps > 0) & (wider < 1), wider, np.nan)


def _places(collection: Prepared) -> npt.NDArray[np.intp]:
    """Return the numbers of the samples to measure: spread over all, or over few chunks where these are decoded."""
    n, at_once = collection.n_samples, collection.measured_at_once
    count = min(n, measured_rows(collection.n_features))
    places = -(-count // at_once)
    if collection.storage.encoded:
        count = min(count, max(2, n // SHARE))
        places = max(1, min(places, n // (SHARE * collection.chunks.samples)))
    run = -(-count // places)
    starts = (np.arange(places) * max(0, n - run)) // max(1, places - 1)
    return np.unique((starts[:, None] + np.arange(run)).clip(max=n - 1))


def _runs(places: npt.NDArray[np.intp], most: int) -> list[slice]:
    """Cut ascending numbers into runs of consecutive ones, each of so many at most."""
    ends = np.flatnonzero(np.diff(places) > 1) + 1
    whole = [Span(int(run[0]), int(run[-1]) + 1) for run in np.split(places, ends)]
    return [slice(*some) for run in whole for some in blocks_of(run, most)]


def _unit(array: Array) -> float:
    """Return the power of two just below the largest size of some values; 0 where there is none but 0."""
    largest = max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))
    return float(np.ldexp(1.0, np.frexp(largest)[1] - 1)) if np.isfinite(largest) and largest else 0.0
