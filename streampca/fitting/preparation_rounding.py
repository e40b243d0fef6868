"""Rounding of the steps of a preparation, measured on some samples, as a part of the error bounds of a model.

The rows x' of a fit differ from those of exact arithmetic x by d = x' - x. With r = (x + x') / 2, and both about their
means, the covariance is off by E = sum of (r d^T + d r^T), exactly. For a component v, |E v| adds to its residual. It
takes only inner products of rows and errors with v and with one another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..accumulators.blas import times
from ..models.pca import PCAModel
from ..models.subspace import Subspace
from ..planning.blocks import Span, blocks_of
from ..planning.sizes import measured_rows
from ..preprocessing import Prepared
from ..preprocessing.learned import Learned
from ..signals import safe_point

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
SAFETY = 3  # times what the samples that are measured amount to, as they stand for all
SHARE = 32  # ... of the samples, and of the chunks, are decoded once more
TILE = 2**17  # values of components converted at a time


@dataclass(frozen=True)
class PreparedErrors:
    """Rows of samples, half-way between those prepared and the exact ones, and the errors of those prepared.

    Attributes
    ----------
    rows, errors : ndarray of shape (m, p)
        Less their means, float32, which bounds do not need more than; divided by `row_unit` and `error_unit`.
    weights : ndarray of shape (m,)
        Adding up to 1, or a little more: m / (m - 1).
    row_unit, error_unit : float
        Powers of two.
    eps : float
        Relative spacing of the dtype that samples are prepared to; 0 where no error was seen.
    """

    rows: Float32
    errors: Float32
    weights: Float64
    row_unit: float
    error_unit: float
    eps: float

    def residuals(self, subspace: Subspace) -> Float64:
        """Bound |E v| of each component, (k,), for E of the covariance.

        Errors of samples that cancel in those measured may not do so in others: their squares are added.
        """
        along = np.zeros((2, len(self.rows), subspace.n_scores))
        for features, piece in subspace.pieces():
            components: Any = piece.components
            width = max(1, TILE // max(1, len(components)))
            for some in blocks_of(Span(0, features.size), width):
                loadings = components[:, slice(*some)].T.astype(np.float32)
                own = slice(features.start + some.start, features.start + some.stop)
                for sums, values in zip(along, (self.errors, self.rows), strict=True):
                    sums += times(values[:, own], loadings)
        factors = (along * self.weights[:, None]).reshape(-1, subspace.n_scores)
        products = self._products
        squares = np.einsum("ij,ij->j", factors, products @ factors)
        m = len(self.rows)
        own_errors, own_rows = factors[:m], factors[m:]
        within = [products[:m, :m].diagonal(), products[m:, m:].diagonal(), products[:m, m:].diagonal()]
        squares += within[0] @ own_errors**2 + within[1] @ own_rows**2 + 2 * within[2] @ (own_errors * own_rows)
        found: Float64 = SAFETY * self.row_unit * self.error_unit * np.sqrt(np.maximum(squares, 0.0))
        return found

    @property
    def norm(self) -> float:
        """Bound on the largest eigenvalue of E, either way."""
        m, products = len(self.rows), self._products
        swapped = np.concatenate([products[m:] * self.weights[:, None], products[:m] * self.weights[:, None]])
        largest = float(np.abs(np.linalg.eigvals(swapped)).max(initial=0.0))
        return SAFETY * self.row_unit * self.error_unit * largest

    @property
    def _products(self) -> Float64:
        """Inner products of rows and errors, (2 m, 2 m), rows first."""
        both = np.empty((2, 2, len(self.rows), len(self.rows)))
        for i, first in enumerate((self.rows, self.errors)):
            for j, second in enumerate((self.rows, self.errors)):
                both[i, j] = times(first, second.T)
        return np.ascontiguousarray(both.transpose(0, 2, 1, 3)).reshape(2 * len(self.rows), 2 * len(self.rows))


def measured_errors(
    collection: Prepared, weights: Float64 | None = None, centre: Float64 | None = None
) -> PreparedErrors | None:
    """Prepare some samples as a fit does and exactly; None where nothing is rounded, none counts or one is not finite.

    Rows are about their mean, or about a centre, which one sample alone needs.
    """
    if not collection.preparation.rounds:
        return None
    places = _places(collection)
    if weights is not None:  # samples that do not count may hold anything
        places = places[weights[places] > 0]
    if not len(places) or (len(places) == 1 and centre is None):
        return None
    counts = np.ones(len(places)) if weights is None else weights[places]
    rows, errors = (np.empty((len(places), collection.n_features), np.float32) for _ in range(2))
    eps, unit, at = float(np.finfo(collection.dtype).eps), 0.0, 0
    for some in _runs(places, collection.measured_at_once):
        safe_point()
        found, exact = collection.read(some), collection.read_exactly(some)
        if at == 0:
            centre = exact[0].astype(np.float64) if centre is None else centre
        unit = unit or _unit(exact)
        own = slice(at, at + len(found))
        np.divide(np.subtract(found, exact, dtype=exact.dtype), eps * (unit or 1.0), out=errors[own], casting="unsafe")
        exact -= centre
        np.divide(exact, unit or 1.0, out=rows[own], casting="unsafe")
        rows[own] += eps / 2 * errors[own]
        at = own.stop
    if not (np.isfinite(rows).all() and np.isfinite(errors).all()):  # named where the values are used
        return None
    share = counts / counts.sum()
    if len(rows) > 1:
        for values in (rows, errors):
            values -= (share @ values).astype(np.float32)
        share *= len(rows) / (len(rows) - 1)
    unit = unit or 1.0
    return PreparedErrors(rows, errors, share, unit, eps * unit, eps if errors.any() else 0.0)


def with_rounding(model: PCAModel, collection: Prepared, weights: Float64 | None) -> PCAModel:
    """Return a model with bounds that hold the rounding of its preparation, where they are known."""
    if not np.isfinite(model.error_bound).any() or (found := measured_errors(collection, weights)) is None:
        return model
    weight = model.total_weight or model.n_samples
    scale = weight / (weight - 1)
    values, statistic = model.explained_variance, model.statistic
    extra = scale * found.residuals(model.subspace) + found.eps * values  # samples unlike those that are measured
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


def _wider_angles(model: PCAModel, extra: Float64) -> Float64:
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
    if collection.encoded:
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


def _unit(array: npt.NDArray[Any]) -> float:
    """Return the power of two just below the largest size of some values; 0 where there is none but 0."""
    largest = float(np.abs(array).max(initial=0.0))
    return float(np.ldexp(1.0, np.frexp(largest)[1] - 1)) if np.isfinite(largest) and largest else 0.0
