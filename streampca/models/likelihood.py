"""Likelihood of samples under probabilistic PCA: a Gaussian with a variance along each component, and noise elsewhere.

Densities are computed from scores and squared distances; only `covariance` and `precision` form p x p matrices.

Reference: M. Tipping, C. Bishop, "Probabilistic principal component analysis", J. R. Statist. Soc. B 61, 1999; the
formulas are in `docs/mathematics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..errors import ModelError
from ..kinds.opening import OpeningOptions
from ..planning.blocks import Span, blocks_of
from ..planning.candidate_sizes import check_budget
from ..planning.memory import RUNTIME_BYTES
from ..preprocessing import SampleError
from ..preprocessing.sizes_for_planning import this_machine
from ..readers.detect import is_data_array
from ..units import MIB, parse_bytes
from .accuracy import null_directions, null_variance, rounding_unit
from .components import ComponentsModel
from .least_squares import NormalEquations, groups
from .subspace import PIECE, Subspace
from .transform import applied, is_dask_array, measure, rows_beside

PANEL_BYTES = 4 * MIB  # size of the panel of a p x p matrix that is computed at a time


@dataclass(frozen=True)
class GaussianDensity:
    """A Gaussian density over rows of features: mean, variances along components, and noise perpendicular to them.

    Attributes
    ----------
    subspace : Subspace
        Mean and components, with the variance along each; 0 along null components.
    noise : float
        Variance along every direction perpendicular to the components. If it is 0, or there are null directions, the
        Gaussian is degenerate: its density is over the subspace of positive variance.
    rounding : float
        Share of a row's squared length that can lie outside that subspace by rounding.
    """

    subspace: Subspace
    noise: float
    rounding: float

    @property
    def dimensions(self) -> int:
        """Number of directions with a positive variance."""
        p = self.subspace.n_features
        return p if self.noise > 0 else int(np.count_nonzero(self.subspace.variance))

    def log_density(self, rows: Array) -> Float64:
        """Return the logarithm of the density at each row, (m, p) to (m,), float64.

        Rows outside the subspace of a degenerate Gaussian have minus infinity. Rows with missing values have the
        marginal density of the observed ones if the subspace's `missing` is "em"; 0 if none is observed.

        Computed in float64 for any dtype of rows and components. Cost: 4 m p k flops, and up to p k^2 + k^3 for each
        incomplete row; components on disk are read twice.

        Raises
        ------
        SampleError
            If a row holds NaN or infinity, and `missing` is not "em" or the Gaussian is degenerate.
        """
        logarithms = np.empty(len(rows))
        complete: npt.NDArray[np.bool_] = np.ones(len(rows), bool)
        if self.subspace.missing == "em" and rows.dtype.kind == "f" and self.noise > 0:
            complete[:] = np.isfinite(rows).all(axis=1)
            for group in groups(np.flatnonzero(~complete), *self.subspace.components.shape[::-1]):
                logarithms[group] = self._marginal(rows[group].astype(np.float64))
        logarithms[complete] = self._complete(rows if complete.all() else rows[complete], np.flatnonzero(complete))
        return logarithms

    def _marginal(self, rows: Float64) -> Float64:
        """Return the logarithm of the marginal density of the observed values of rows, (m,)."""
        observed = np.isfinite(rows).sum(axis=1)
        equations = NormalEquations(len(rows), len(self.subspace.variance))
        for span, piece in self.subspace.pieces():
            equations.add(rows[:, slice(*span)], piece.mean, cast("Array", piece.components))
        # By the residual of the most likely scores: a sum of squares, in which no digits cancel.
        scores, exponent = equations.shrunk(self.subspace.variance - self.noise, self.noise)
        for part, features, piece in _blocks_of_values(self.subspace, rows):
            exponent[part] += piece.squared_error(rows[part, features], scores[part]) / self.noise
        return cast("Float64", -0.5 * (observed * math.log(2 * math.pi * self.noise) + exponent))

    def _complete(self, rows: Array, numbers: npt.NDArray[np.intp]) -> Float64:
        """Return the logarithm of the density at complete rows, (m,); an error names a row by its number."""
        scores, error = _scores_and_errors(self.subspace, rows)
        bad = np.flatnonzero(~np.isfinite(error))
        if len(bad):
            remedy = "leave it out, or fill it in by reconstruct"
            if self.subspace.missing == "em":
                remedy = "take fewer components (n_components), which leave noise beside them"
            raise SampleError(int(numbers[bad[0]]), f"holds NaN or infinity, so that it has no likelihood; {remedy}.")
        variance = self.subspace.variance
        null = variance == 0
        squares = np.square(scores)
        outside = error + squares[:, null].sum(axis=1)
        with np.errstate(over="ignore"):
            exponent = squares[:, ~null] @ (1 / variance[~null])
            if self.noise > 0:
                exponent += outside / self.noise
        log_determinant = np.log(variance[~null]).sum()
        if self.noise > 0:
            log_determinant += (self.subspace.n_features - len(variance)) * math.log(self.noise)
        logarithms: Float64 = -0.5 * (self.dimensions * math.log(2 * math.pi) + log_determinant + exponent)
        if self.dimensions < self.subspace.n_features:
            # A row counts as inside up to the rounding of its p values, which grows with its distance from the origin.
            offset = np.square(4 * np.finfo(np.float64).eps) * np.square(self.subspace.mean).sum()
            limit = self.rounding * (error + squares.sum(axis=1)) + self.subspace.n_features * offset
            logarithms[outside > limit] = -np.inf
        return logarithms

    def covariance(self) -> Float64:
        """Return the covariance, shape (p, p), float64. Cost 2 p^2 k flops."""
        return self._matrix(self.subspace.variance - self.noise, self.noise)

    def precision(self) -> Float64:
        """Return the inverse of the covariance, shape (p, p), float64, by the matrix inversion lemma, at the same cost.

        Raises
        ------
        ModelError
            If the Gaussian is degenerate.
        """
        k, p = self.subspace.components.shape
        if self.dimensions < p:
            raise ModelError(
                f"the covariance of {k} components has no inverse: they hold all variance there is, along "
                f"{self.dimensions} of {p} directions, and leave no noise; take fewer, such as "
                f"model.get_precision(n_components={max(1, self.dimensions - 1)})."
            )
        outside = 1 / self.noise if self.noise > 0 else 0.0
        return self._matrix(1 / self.subspace.variance - outside, outside)

    def _matrix(self, along: Float64, everywhere: float) -> Float64:
        """Return ``V^T diag(along) V + everywhere I`` for components V, computed in panels of rows."""
        components = np.asarray(self.subspace.components, dtype=np.float64)
        p = components.shape[1]
        weighted = components.T * along
        matrix = np.empty((p, p))
        for panel in blocks_of(Span(0, p), max(1, PANEL_BYTES // (8 * p))):
            # A product of a matrix with its own transpose would go to BLAS's symmetric update, whose threads write
            # beyond their buffers where p is large; see `accumulators.blas.update_among`.
            np.matmul(weighted[slice(*panel)], components, out=matrix[slice(*panel)])
        matrix.ravel()[:: p + 1] += everywhere
        return matrix


def density_of(model: ComponentsModel, count: int | None = None) -> GaussianDensity:
    """Return the density of probabilistic PCA with the first components of a model.

    Parameters
    ----------
    model : ComponentsModel
        Model fitted by any method.
    count : int, optional
        Number of first components; all by default.
    """
    subspace = model.subspace if count is None else model.subspace.first(count)
    noise = noise_variance_of(model, len(subspace.variance))
    variance = np.maximum(subspace.variance, noise)  # rounding can leave a variance below the noise
    rounding = max(rounding_unit(model), float(np.finfo(subspace.components.dtype).eps))
    return GaussianDensity(
        replace(subspace, variance=variance), noise, rounding * max(model.n_samples, model.n_features)
    )


def noise_variance_of(model: ComponentsModel, count: int) -> float:
    """Return the mean variance perpendicular to the first `count` components; 0 if it is rounding.

    The mean is over min(n, p) - count directions, as in scikit-learn's PCA; maximum likelihood has p - count. A sample
    of weight w counts w times.
    """
    p, n = model.n_features, model.n_samples
    if count >= min(p, n - 1) or (count and null_directions(model)[count - 1]):
        return 0.0
    if model.eigenvalues is None:
        remaining = model.total_variance - float(model.explained_variance[:count].sum())
    else:  # a sum, in which no digits cancel
        remaining = float(model.eigenvalues[count:].clip(min=0).sum())
    noise = remaining / (min(p, max(n, model.total_weight or 0)) - count)
    is_rounding = noise <= null_variance(model) or remaining <= rounding_unit(model) * model.total_variance
    return 0.0 if is_rounding else noise


def mean_log_density(
    density: GaussianDensity,
    model: ComponentsModel,
    samples: Any,
    memory: int | str | None = None,
    /,
    **opening: Unpack[OpeningOptions],
) -> float:
    """Return the mean logarithm of a density over samples; collections are read once, within a budget."""
    if isinstance(samples, np.ndarray) or is_dask_array(samples) or is_data_array(samples):
        values = model.number_of_each(samples, density.log_density, "log_likelihood", **opening)
        return float(values.mean())
    collection = model.prepared(samples, **opening)
    fit = rows_beside(density.subspace, model.frame, [collection], memory)
    if fit.are_held:
        density = replace(density, subspace=density.subspace.held())
    total = np.zeros(1)

    def add(block: Span, blocks: list[Array]) -> None:
        total[:] += applied(density.log_density, blocks[0], collection.named, block.start).sum()

    measure(add, [collection], fit.at_once, ahead=fit.ahead)
    return float(total[0]) / collection.n_samples


def check_matrix_fits(density: GaussianDensity, name: str, memory: int | str | None) -> None:
    """Refuse a p x p matrix that does not fit a budget.

    Raises
    ------
    BudgetError
        Names a sufficient budget.
    """
    k, p = density.subspace.components.shape
    needed = 8 * p * p + 3 * 8 * k * p + RUNTIME_BYTES  # components as stored, in float64, and weighted
    budget, source = this_machine().budget(parse_bytes(memory))
    subject = f"the {name} of {p} x {p} features"
    remedy = "; score_samples needs no such matrix"
    check_budget(subject, lambda size: size >= needed, budget, source, remedy)


def _scores_and_errors(subspace: Subspace, rows: Array) -> tuple[Float64, Float64]:
    """Return scores of rows, (m, k), and their squared distances from the subspace, (m,), both float64."""
    scores, error = np.zeros((len(rows), len(subspace.variance))), np.zeros(len(rows))
    for part, features, piece in _blocks_of_values(subspace, rows):
        scores[part] += piece.part_of_scores(rows[part, features])
    for part, features, piece in _blocks_of_values(subspace, rows):
        error[part] += piece.squared_error(rows[part, features], scores[part])
    return scores, error


def _blocks_of_values(subspace: Subspace, rows: Array) -> Iterator[tuple[slice, slice, Subspace]]:
    """Yield blocks of rows and features of at most `PIECE` values, with the float64 subspace along the features."""
    width = max(1, PIECE // max(1, len(subspace.variance)))
    for features, piece in subspace.pieces():
        for span in blocks_of(Span(0, features.size), width):
            part = piece.piece(span)
            part = replace(part, components=cast("Array", part.components).astype(np.float64, copy=False))
            columns = slice(features.start + span.start, features.start + span.stop)
            for block in blocks_of(Span(0, len(rows)), max(1, PIECE // span.size)):
                yield slice(*block), columns, part
            del part
        del piece


class DensityModel(ComponentsModel):
    """Principal components as a Gaussian density of samples: probabilistic PCA."""

    @property
    def noise_variance(self) -> float:
        """Variance along every direction perpendicular to the components, as in scikit-learn.

        The part of the total variance outside the components, divided by min(n, p) - k; 0 if it is rounding.
        """
        return noise_variance_of(self, self.n_components)

    def score_samples(self, samples: Any, /, n_components: int | None = None, **opening: Unpack[OpeningOptions]) -> Any:
        """Return the logarithm of the likelihood of each sample under probabilistic PCA, shape (n,), float64.

        Prepared samples have a Gaussian density, with the components' variances along these and `noise_variance` along
        every perpendicular direction. No p x p array is formed.

        Parameters
        ----------
        samples
            As for `transform`.
        n_components : int, optional
            Number of first components; the others count as noise. All by default.
        **opening
            As for `transform`.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n,)
            Natural logarithms, at once or lazily as by `transform`. If the noise is 0, the density is over the subspace
            only, as that of ``scipy.stats.multivariate_normal`` with ``allow_singular=True``: minus infinity for
            samples outside it. After a fit with ``missing="em"``, samples with missing values have the marginal density
            of the observed ones, which is less negative the fewer are observed; 0 for none.

        Raises
        ------
        RequestError
            If there are fewer components.
        ModelError, DataError
            As `transform`.

        Notes
        -----
        Computed in float64 for any dtype of samples, in 4 n p k flops, and up to p k^2 + k^3 for each sample with
        missing values; components on disk are read twice for each chunk of samples.
        """
        density = density_of(self, self.count_of(n_components))
        return self.number_of_each(samples, density.log_density, "log_likelihood", **opening)

    def score(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        memory: int | str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> float:
        """Return the mean of `score_samples` over samples.

        Over samples that were not fitted, it is largest for the best number of components.

        Parameters
        ----------
        samples, n_components
            As for `score_samples`; collections and paths are read once, within the budget.
        memory : int or str, optional
            Budget; half of what the machine allows by default.
        **opening
            As for `transform`.

        Raises
        ------
        RequestError, ModelError, DataError
            As `score_samples`.
        BudgetError
            If not even single samples fit the budget.
        """
        density = density_of(self, self.count_of(n_components))
        return mean_log_density(density, self, samples, memory, **opening)

    def get_covariance(self, n_components: int | None = None, *, memory: int | str | None = None) -> Float64:
        """Return the covariance of the features under probabilistic PCA: components, plus isotropic `noise_variance`.

        Parameters
        ----------
        n_components : int, optional
            Number of first components; the others count as noise. All by default.
        memory : int or str, optional
            Most bytes to use; half of what the machine allows by default.

        Returns
        -------
        ndarray of shape (p, p)
            float64; features are those inside the mask, prepared, in C order.

        Raises
        ------
        RequestError
            If there are fewer components.
        BudgetError
            If p x p numbers do not fit the budget; `score_samples` does not need them.
        """
        density = density_of(self, self.count_of(n_components))
        check_matrix_fits(density, "covariance", memory)
        return density.covariance()

    def get_precision(self, n_components: int | None = None, *, memory: int | str | None = None) -> Float64:
        """Return the inverse of `get_covariance`, by the matrix inversion lemma; parameters and result are the same.

        Raises
        ------
        RequestError
            If there are fewer components.
        BudgetError
            If p x p numbers do not fit the budget.
        ModelError
            If the covariance has no inverse, as the components leave no noise.
        """
        density = density_of(self, self.count_of(n_components))
        check_matrix_fits(density, "precision", memory)
        return density.precision()
