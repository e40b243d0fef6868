"""Likelihood of samples under probabilistic PCA: a Gaussian with a variance a component, and noise beside them.

Everything is computed from scores and squared distances; p x p matrices are made only where they are asked for.

Reference: M. Tipping, C. Bishop, "Probabilistic principal component analysis", J. R. Statist. Soc. B 61, 1999; the
formulas stand in `docs/mathematics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from ..planning.blocks import Span, blocks_of
from ..planning.budget import check_budget
from ..planning.memory import RUNTIME_BYTES
from ..preprocessing import SampleError
from ..preprocessing.sizes_for_planning import this_machine
from ..readers.coordinates import CHECK
from ..readers.detect import is_data_array
from ..units import MIB, parse_bytes
from .accuracy import null_directions, null_variance, rounding_unit
from .components import ComponentsModel
from .least_squares import NormalEquations, groups
from .subspace import PIECE, Subspace
from .transform import applied, is_dask_array, measure, rows_beside

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

PANEL_BYTES = 4 * MIB  # of a p x p matrix that are computed at a time


@dataclass(frozen=True)
class GaussianDensity:
    """A Gaussian density over rows of features, by its mean, its variances along components, and noise beside them.

    Attributes
    ----------
    subspace : Subspace
        Mean and components, with the variance along each; 0 along null components.
    noise : float
        Variance along every direction perpendicular to the components. Where it is 0, and in null directions, the
        Gaussian is degenerate: a density over the subspace, and none beside it.
    rounding : float
        Share of a row's squared length that may lie beside a degenerate Gaussian by rounding.
    """

    subspace: Subspace
    noise: float
    rounding: float

    @property
    def dimensions(self) -> int:
        """Number of directions that have a variance."""
        p = self.subspace.n_features
        return p if self.noise > 0 else int(np.count_nonzero(self.subspace.variance))

    def log_density(self, rows: Array) -> Float64:
        """Logarithm of the density at each row, (m, p) to (m,), float64; minus infinity beside a degenerate Gaussian.

        For rows in which values are missing, where the subspace takes these ("em"), this is the marginal density of
        the observed values; 0 where there are none.

        Computed in float64 whatever the rows and the components are. Cost: 4 m p k flops, and up to p k^2 + k^3 for
        each such row; components that are stored are read twice.

        Raises
        ------
        SampleError
            If a row holds NaN or infinity, and the subspace does not take these or the Gaussian is degenerate.
        """
        found = np.empty(len(rows))
        complete: npt.NDArray[np.bool_] = np.ones(len(rows), bool)
        if self.subspace.missing == "em" and rows.dtype.kind == "f" and self.noise > 0:
            complete[:] = np.isfinite(rows).all(axis=1)
            partly = np.flatnonzero(~complete)
            for some in groups(partly, *self.subspace.components.shape[::-1]):
                found[some] = self._marginal(rows[some].astype(np.float64))
        found[complete] = self._complete(rows if complete.all() else rows[complete], np.flatnonzero(complete))
        return found

    def _marginal(self, rows: Float64) -> Float64:
        """Return the logarithm of the marginal density of the observed values of rows, (m,)."""
        observed = np.isfinite(rows).sum(axis=1)
        equations = NormalEquations(len(rows), len(self.subspace.variance))
        for span, piece in self.subspace.pieces():
            equations.add(rows[:, slice(*span)], piece.mean, cast("Array", piece.components))
        # The residual of the most likely scores is a sum of squares, in which no digits cancel.
        scores, exponent = equations.shrunk(self.subspace.variance - self.noise, self.noise)
        for part, features, piece in _parts(self.subspace, rows):
            exponent[part] += piece.squared_error(rows[part, features], scores[part]) / self.noise
        found: Float64 = -0.5 * (observed * math.log(2 * math.pi * self.noise) + exponent)
        return found

    def _complete(self, rows: Array, numbers: npt.NDArray[np.intp]) -> Float64:
        """Return the logarithm of the density at complete rows, (m,), with these numbers."""
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
        beside = error + squares[:, null].sum(axis=1)
        with np.errstate(over="ignore"):
            exponent = squares[:, ~null] @ (1 / variance[~null])
            if self.noise > 0:
                exponent += beside / self.noise
        log_determinant = np.log(variance[~null]).sum()
        if self.noise > 0:
            log_determinant += (self.subspace.n_features - len(variance)) * math.log(self.noise)
        found: Float64 = -0.5 * (self.dimensions * math.log(2 * math.pi) + log_determinant + exponent)
        if self.dimensions < self.subspace.n_features:
            # A row is a sum of p rounded values, and may lie far from the origin.
            offset = np.square(4 * np.finfo(np.float64).eps) * np.square(self.subspace.mean).sum()
            found[beside > self.rounding * (error + squares.sum(axis=1)) + self.subspace.n_features * offset] = -np.inf
        return found

    def covariance(self) -> Float64:
        """Return the covariance, shape (p, p), float64. Cost 2 p^2 k flops."""
        return self._matrix(self.subspace.variance - self.noise, self.noise)

    def precision(self) -> Float64:
        """Return the inverse of the covariance, shape (p, p), float64, by the matrix inversion lemma; as costly.

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
        """Return ``V^T diag(along) V + everywhere I`` for components V, a panel of columns at a time."""
        own = np.asarray(self.subspace.components, dtype=np.float64)
        p = own.shape[1]
        weighted = own.T * along
        found = np.empty((p, p))
        for panel in blocks_of(Span(0, p), max(1, PANEL_BYTES // (8 * p))):
            # A product of a matrix with its own transpose would go to BLAS's symmetric update, whose threads write
            # beyond their buffers where p is large; see `accumulators.blas.update_among`.
            np.matmul(weighted[slice(*panel)], own, out=found[slice(*panel)])
        found.ravel()[:: p + 1] += everywhere
        return found


def density_of(model: ComponentsModel, count: int | None = None, *, whitened: bool = False) -> GaussianDensity:
    """Return the density of probabilistic PCA with the first components of a model.

    Parameters
    ----------
    model : ComponentsModel
        Fitted by any method.
    count : int, optional
        How many components; all by default.
    whitened : bool, default=False
        Take the variances that scikit-learn's PCA takes with ``whiten=True``: it multiplies the components by their
        standard deviations first, noise + variance (variance - noise) in the end.
    """
    subspace = model.subspace if count is None else model.subspace.first(count)
    noise = noise_variance_of(model, len(subspace.variance))
    variance = np.maximum(subspace.variance, noise)
    if whitened:
        variance = noise + subspace.variance * (variance - noise)
    rounding = max(rounding_unit(model), float(np.finfo(subspace.components.dtype).eps))
    return GaussianDensity(
        replace(subspace, variance=variance), noise, rounding * max(model.n_samples, model.n_features)
    )


def noise_variance_of(model: ComponentsModel, count: int) -> float:
    """Mean variance of the directions beside the first `count` components; 0 where it is no more than rounding.

    The directions are those that scikit-learn's PCA counts: min(n, p) less the components, where maximum likelihood has
    p of them. A sample of weight w counts w times.
    """
    p, n = model.n_features, model.n_samples
    if count >= min(p, n - 1) or (count and null_directions(model)[count - 1]):
        return 0.0
    if model.eigenvalues is None:
        left = model.total_variance - float(model.explained_variance[:count].sum())
    else:  # no digits cancel
        left = float(model.eigenvalues[count:].clip(min=0).sum())
    noise = left / (min(p, max(n, model.total_weight or 0)) - count)
    is_rounding = noise <= null_variance(model) or left <= rounding_unit(model) * model.total_variance
    return 0.0 if is_rounding else noise


def mean_log_density(
    density: GaussianDensity,
    model: ComponentsModel,
    samples: Any,
    memory: int | str | None = None,
    *,
    coordinates: str = CHECK,
) -> float:
    """Mean of the logarithm of a density over samples; collections are read once, within a budget."""
    if isinstance(samples, np.ndarray) or is_dask_array(samples) or is_data_array(samples):
        found = model.number_of_each(samples, density.log_density, "log_likelihood", coordinates=coordinates)
        return float(found.mean())
    collection = model.prepared(samples, coordinates=coordinates)
    fit = rows_beside(density.subspace, model.frame, [collection], memory)
    held = replace(density, subspace=density.subspace.held()) if fit.are_held else density
    total = np.zeros(1)

    def add(block: Span, read: list[Array]) -> None:
        total[:] += applied(held.log_density, read[0], collection.named, block.start).sum()

    measure(add, [collection], fit.at_once, ahead=fit.ahead)
    return float(total[0]) / collection.n_samples


def check_matrix_fits(density: GaussianDensity, name: str, memory: int | str | None) -> None:
    """Refuse a p x p matrix that does not fit a budget.

    Raises
    ------
    BudgetError
        Names the budget that would do.
    """
    k, p = density.subspace.components.shape
    needed = 8 * p * p + 3 * 8 * k * p + RUNTIME_BYTES  # components as they are, in float64, and weighted
    budget, source = this_machine().budget(parse_bytes(memory))
    what = f"the {name} of {p} x {p} features"
    more = "; score_samples needs no such matrix"
    check_budget(what, lambda size: size >= needed, budget, source, more)


def _scores_and_errors(subspace: Subspace, rows: Array) -> tuple[Float64, Float64]:
    """Scores of rows, (m, k), and their squared distances from the subspace, (m,), both float64."""
    scores, error = np.zeros((len(rows), len(subspace.variance))), np.zeros(len(rows))
    for part, features, piece in _parts(subspace, rows):
        scores[part] += piece.part_of_scores(rows[part, features])
    for part, features, piece in _parts(subspace, rows):
        error[part] += piece.squared_error(rows[part, features], scores[part])
    return scores, error


def _parts(subspace: Subspace, rows: Array) -> Iterator[tuple[slice, slice, Subspace]]:
    """Yield runs of rows by ranges of features, with mean and float64 components along these: `PIECE` values each."""
    width = max(1, PIECE // max(1, len(subspace.variance)))
    for features, piece in subspace.pieces():
        for some in blocks_of(Span(0, features.size), width):
            cut = piece.piece(some)
            wide = replace(cut, components=cast("Array", cut.components).astype(np.float64, copy=False))
            for part in blocks_of(Span(0, len(rows)), max(1, PIECE // some.size)):
                yield slice(*part), slice(features.start + some.start, features.start + some.stop), wide
            del cut, wide
        del piece


class DensityModel(ComponentsModel):
    """Principal components as a Gaussian density of samples: probabilistic PCA."""

    @property
    def noise_variance(self) -> float:
        """Variance along every direction beside the components, as in scikit-learn: the mean of those left out.

        It is what the components leave of the total variance, divided by min(n, p) - k; 0 where that is no more than
        rounding.
        """
        return noise_variance_of(self, self.n_components)

    def score_samples(self, samples: Any, n_components: int | None = None, *, coordinates: str = CHECK) -> Any:
        """Logarithm of the likelihood of each sample under probabilistic PCA, shape (n,), float64.

        The model is then a Gaussian density of prepared samples, with the components' variances along these and
        `noise_variance` along every direction beside them. No p x p array is made.

        Parameters
        ----------
        samples, coordinates
            As for `transform`.
        n_components : int, optional
            Take the first components only, and what the others hold for noise; all by default.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n,)
            Natural logarithms, at once or lazily as by `transform`. Where the noise is 0, the density is one over the
            subspace alone, as of ``scipy.stats.multivariate_normal`` with ``allow_singular=True``: minus infinity for
            samples that do not lie in it. After a fit with ``missing="em"``, samples in which values are missing have
            the marginal density of the observed ones, which is less negative the fewer these are; 0 for none.

        Raises
        ------
        RequestError
            If there are not so many components.
        ModelError, DataError
            As `transform`.

        Notes
        -----
        Computed in float64 whatever the samples are, in 4 n p k flops, and up to p k^2 + k^3 for each sample in which
        values are missing; components on disk are read twice for each chunk of samples.
        """
        density = density_of(self, self.count_of(n_components))
        return self.number_of_each(samples, density.log_density, "log_likelihood", coordinates=coordinates)

    def score(
        self,
        samples: Any,
        n_components: int | None = None,
        *,
        memory: int | str | None = None,
        coordinates: str = CHECK,
    ) -> float:
        """Mean of `score_samples` over samples: how likely they are under the model.

        Of samples that were not fitted it is largest for the number of components that describes them best.

        Parameters
        ----------
        samples, n_components, coordinates
            As for `score_samples`; collections, and what can be opened, are read once, within the budget.
        memory : int or str, optional
            Budget; half of what the machine allows by default.

        Raises
        ------
        RequestError, ModelError, DataError
            As `score_samples`.
        BudgetError
            If not even single samples fit the budget.
        """
        density = density_of(self, self.count_of(n_components))
        return mean_log_density(density, self, samples, memory, coordinates=coordinates)

    def get_covariance(self, n_components: int | None = None, *, memory: int | str | None = None) -> Float64:
        """Covariance of the features under probabilistic PCA: the components' part, and `noise_variance` on all sides.

        Parameters
        ----------
        n_components : int, optional
            Take the first components only, and what the others hold for noise; all by default.
        memory : int or str, optional
            Most bytes to use; half of what the machine allows by default.

        Returns
        -------
        ndarray of shape (p, p)
            float64; features are those inside the mask, prepared, in C order.

        Raises
        ------
        RequestError
            If there are not so many components.
        BudgetError
            If p x p numbers do not fit the budget; `score_samples` takes none.
        """
        density = density_of(self, self.count_of(n_components))
        check_matrix_fits(density, "covariance", memory)
        return density.covariance()

    def get_precision(self, n_components: int | None = None, *, memory: int | str | None = None) -> Float64:
        """Inverse of `get_covariance`, by the matrix inversion lemma; parameters and result are the same.

        Raises
        ------
        RequestError
            If there are not so many components.
        BudgetError
            If p x p numbers do not fit the budget.
        ModelError
            If the covariance has no inverse, as the components leave no noise.
        """
        density = density_of(self, self.count_of(n_components))
        check_matrix_fits(density, "precision", memory)
        return density.precision()
