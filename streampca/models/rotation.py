"""Varimax and promax rotation of components: patterns of few large loadings that span what the components span.

References
----------
H. Kaiser, "The varimax criterion for analytic rotation in factor analysis", Psychometrika 23, 1958.
A. Hendrickson, P. White, "Promax: a quick method for rotation to oblique simple structure", British Journal of
Statistical Psychology 17, 1964.
M. Richman, "Rotation of principal components", Journal of Climatology 6, 1986.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ..eigensolvers.signs import extremes
from ..errors import ModelError, RequestError
from ..planning.blocks import Span, blocks_of
from ..planning.budget import check_budget
from ..planning.memory import RUNTIME_BYTES
from ..preprocessing import unflatten
from ..preprocessing.sizes_for_planning import this_machine
from ..readers.coordinates import CHECK
from ..readers.detect import is_data_array
from ..signals import safe_point
from ..storage.components import StoredRows
from ..units import counted, parse_bytes, whole_number
from .accuracy import check_variances
from .data_arrays import COMPONENT, NamedSamples, component_numbers, dataset_of
from .subspace import PIECE
from .transform import is_dask_array

if TYPE_CHECKING:
    from xarray import Dataset

    from .pca import PCAModel

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

MOST_ITERATIONS = 1000
TOLERANCE = 1e-10  # of entries of the rotation matrix from one iteration to the next, at which varimax stops


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotated components of a model, with what is needed to apply them to raw images.

    Attributes
    ----------
    model : PCAModel
        Whose first components were rotated; it is as it was.
    components : ndarray of shape (k, *sample_shape)
        Of unit length, by descending variance; not orthogonal. The largest loading of each is positive. NaN outside the
        mask.
    explained_variance : ndarray of shape (k,)
        Sum of each one's squared loadings. By varimax they add up to the variances of the components rotated.
    correlation : ndarray of shape (k, k)
        Correlations of the scores of the samples fitted: the identity by varimax.
    matrix : ndarray of shape (k, k)
        Loadings of the components, each times its standard deviation, times this are the rotated loadings.
    """

    model: PCAModel
    components: Array
    explained_variance: Float64
    correlation: Float64
    matrix: Float64

    @property
    def n_components(self) -> int:
        """Number of rotated components, k."""
        return len(self.explained_variance)

    @property
    def explained_variance_ratio(self) -> Float64:
        """Share of the total variance of each rotated component."""
        return self.explained_variance / self.model.total_variance

    def __repr__(self) -> str:
        ratio = float(self.explained_variance_ratio.sum())
        return f"Rotation({counted(self.n_components, 'component')} of {self.model!r}, {ratio:.1%} of the variance)"

    def transform(self, samples: Any, *, coordinates: str = CHECK) -> Any:
        """Scores of samples along the rotated components, in the units of the samples.

        Over the samples fitted they have the variances `explained_variance`. Missing values are treated as in the fit.

        Parameters
        ----------
        samples, coordinates
            As for `PCAModel.transform`, as are result and errors.
        """
        scores = self.model.transform(samples, coordinates=coordinates)
        deviations = np.sqrt(self.model.explained_variance[: self.n_components])
        back = np.linalg.inv(self.matrix).T / deviations[:, None] * np.sqrt(self.explained_variance)
        some = scores.isel({COMPONENT: slice(self.n_components)}) if is_data_array(scores) else scores
        return _multiplied(some if is_data_array(scores) else scores[:, : self.n_components], back)

    def inverse_transform(self, scores: Any, *, coordinates: str = CHECK) -> Any:
        """Images from scores along the first rotated components, or those of a DataArray's numbers.

        Parameters
        ----------
        scores, coordinates
            As for `PCAModel.inverse_transform`, as are result and errors.
        """
        deviations = np.sqrt(self.model.explained_variance[: self.n_components])
        forth = (self.matrix * deviations[:, None] / np.sqrt(self.explained_variance)).T
        if is_data_array(scores):
            given = NamedSamples.scores(scores)
            given = given.numbered(self.n_components) if coordinates == CHECK else given
            scores = given.array.rename({given.array.dims[-1]: COMPONENT})
        elif not is_dask_array(scores):
            scores = np.asanyarray(scores)
        if scores.ndim < 2 or not 1 <= scores.shape[-1] <= self.n_components:
            raise RequestError(
                f"scores have shape {tuple(scores.shape)}; give n rows of 1 to {self.n_components} rotated components, "
                "as an array."
            )
        return self.model.inverse_transform(_multiplied(scores, forth[: scores.shape[-1]]))

    def to_xarray(self) -> Dataset:
        """The rotated components with their variances and shares as an `xarray.Dataset`, with coordinates."""
        whole = dataset_of(self.model).isel({COMPONENT: slice(self.n_components)})
        made = whole[["mean", "explained_variance", "explained_variance_ratio", "components", "total_variance"]]
        names = ("components", "explained_variance", "explained_variance_ratio")
        made = made.assign({name: made[name].copy(data=getattr(self, name)) for name in names})
        made["components"].attrs["long_name"] = "rotated components, of unit length over the pixels"
        made["explained_variance"].attrs["long_name"] = "variance along each rotated component"
        return made.assign_attrs(title="rotated principal components")


def varimax(
    model: PCAModel,
    n_components: int | None = None,
    *,
    max_iterations: int = MOST_ITERATIONS,
    memory: int | str | None = None,
) -> Rotation:
    """Rotate the first components of a model so that each has few large loadings; their scores stay uncorrelated.

    Loadings are components times their standard deviations, each pixel's set to unit length while rotating (Kaiser's
    normalization): the result depends on how many components are rotated.

    Parameters
    ----------
    model : PCAModel
        Fitted by any method; not changed.
    n_components : int, optional
        How many of its components, 2 at least; all by default.
    max_iterations : int, default=1000
        Most iterations, each a pass over the components: 4 p k^2 flops.
    memory : int or str, optional
        Most bytes to use; half of what the machine allows by default.

    Returns
    -------
    Rotation
        Components beyond memory are read piece by piece; the rotated ones are in memory.

    Raises
    ------
    RequestError
        If there are not so many components, or one of them has no variance.
    ModelError
        If iterations do not converge.
    BudgetError
        If the rotated components do not fit the budget.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> turned = streampca.varimax(model, n_components=4)
    >>> turned.transform(digits).shape
    (1797, 4)
    """
    count = _checked(model, n_components, memory)
    return _rotated(model, _varimax(model, count, max_iterations))


def promax(
    model: PCAModel,
    n_components: int | None = None,
    *,
    power: float = 4,
    max_iterations: int = MOST_ITERATIONS,
    memory: int | str | None = None,
) -> Rotation:
    """Rotate components by varimax, then obliquely towards the same loadings raised to a power: scores correlate.

    Parameters
    ----------
    model, n_components, max_iterations, memory
        As for `varimax`.
    power : float, default=4
        At least 1, which is varimax; the higher, the simpler the patterns and the more their scores correlate.

    Returns
    -------
    Rotation

    Raises
    ------
    RequestError, ModelError, BudgetError
        As `varimax`; or if the power is below 1.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> turned = streampca.promax(model, n_components=4)
    >>> turned.transform(digits).shape
    (1797, 4)
    """
    if not 1 <= power < np.inf:
        raise RequestError(f"power {power!r} is not a number of at least 1; use for example 4.")
    count = _checked(model, n_components, memory)
    turned = _varimax(model, count, max_iterations)
    inner, target, most = np.zeros((count, count)), np.zeros((count, count)), np.zeros(count)
    for normalized in _normalized(model, count):
        rotated = normalized @ turned
        inner += rotated.T @ rotated
        target += rotated.T @ (rotated * np.abs(rotated) ** (power - 1))
        np.maximum(most, np.abs(rotated).max(axis=0), out=most)
    fitted = np.linalg.solve(inner, target / most**power)  # the least squares of Richman 1986, appendix
    fitted *= np.sqrt(np.diag(np.linalg.inv(fitted.T @ fitted)))  # scores of unit variance
    return _rotated(model, turned @ fitted)


def _varimax(model: PCAModel, count: int, max_iterations: int) -> Float64:
    """Return the orthogonal matrix that makes loadings simplest, (k, k)."""
    most = whole_number(max_iterations, "max_iterations", least=1, example="1000")
    inner, features = np.zeros((count, count)), model.n_features
    for normalized in _normalized(model, count):
        inner += normalized.T @ normalized
    turned = np.eye(count)
    for _ in range(most):
        safe_point()
        cubes, squares = np.zeros((count, count)), np.zeros(count)
        for normalized in _normalized(model, count):
            rotated = normalized @ turned
            cubes += normalized.T @ rotated**3
            squares += np.einsum("ij,ij->j", rotated, rotated)
        left, _, right = np.linalg.svd(cubes - inner @ turned * (squares / features))
        before, turned = turned, left @ right
        if np.abs(turned - before).max() <= TOLERANCE:
            return cast("Float64", turned)
    raise ModelError(
        f"varimax of the first {count} components of {model.name} did not converge in {counted(most, 'iteration')}; "
        f"allow more, such as max_iterations={10 * most}, or rotate fewer components (n_components={count - 1})."
    )


def _normalized(model: PCAModel, count: int) -> Iterator[Float64]:
    """Yield loadings of ranges of features, (features, k), each feature's of unit length; 0 of those that have none."""
    subspace = model.subspace.first(count)
    deviations = np.sqrt(subspace.variance)
    for _, piece in subspace.pieces():
        own = cast("Array", piece.components)
        for some in blocks_of(Span(0, own.shape[1]), max(1, PIECE // count)):
            loadings = own[:, slice(*some)].T * deviations
            lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
            yield np.divide(loadings, lengths, out=loadings, where=lengths > 0)


def _rotated(model: PCAModel, matrix: Float64) -> Rotation:
    """Return the components of a model rotated by a matrix, which is put in order and its signs made those of all."""
    count = len(matrix)
    subspace = model.subspace.first(count)
    variance = np.square(matrix * np.sqrt(subspace.variance)[:, None]).sum(axis=0)
    order = np.argsort(-variance, kind="stable")
    matrix, variance = matrix[:, order], variance[order]
    rows = np.empty((count, model.n_features), model.components.dtype)
    patterns = (matrix * np.sqrt(subspace.variance)[:, None] / np.sqrt(variance)).T
    for features, piece in subspace.pieces():
        for some in blocks_of(Span(0, features.size), max(1, PIECE // count)):
            part = slice(features.start + some.start, features.start + some.stop)
            rows[:, part] = patterns @ cast("Array", piece.components)[:, slice(*some)]
    signs = np.sign(extremes(rows))
    rows *= signs[:, None]
    matrix = matrix * signs
    inverse = np.linalg.inv(matrix)
    return Rotation(model, unflatten(rows, model.sample_shape, model.mask), variance, inverse @ inverse.T, matrix)


def _checked(model: PCAModel, n_components: int | None, memory: int | str | None) -> int:
    """Return how many components are rotated, or refuse them."""
    count = model.count_of(n_components)
    if count < 2:
        raise RequestError(f"n_components={count} leaves nothing to rotate; give at least 2.")
    check_variances(model, count)
    itemsize = model.components.dtype.itemsize
    needed = (1 + (model.mask is not None)) * count * model.n_features * itemsize + RUNTIME_BYTES
    rows = model.subspace.components
    needed += rows.reading_bytes + rows.components.piece_bytes if isinstance(rows, StoredRows) else 0
    budget, source = this_machine().budget(parse_bytes(memory))
    what = f"rotating {count} components of {model.n_features} features"
    check_budget(what, lambda size: size >= needed, budget, source)
    return count


def _multiplied(scores: Any, matrix: Float64) -> Any:
    """Multiply scores, (..., j), by a matrix (j, i): numpy at once, dask lazily, a DataArray with its coordinates."""
    if not is_data_array(scores):
        return scores @ matrix.astype(scores.dtype if scores.dtype == np.float32 else np.float64)
    from xarray import apply_ufunc

    core: dict[str, Any] = {name: [[COMPONENT]] for name in ("input_core_dims", "output_core_dims")}
    made = apply_ufunc(
        lambda values: _multiplied(values, matrix), scores, **core, exclude_dims={COMPONENT}, dask="allowed",
        keep_attrs=True,
    )  # fmt: skip
    numbers = component_numbers(matrix.shape[1])[COMPONENT]
    return made.assign_coords({COMPONENT: (COMPONENT, numbers.values, dict(numbers.attributes))})
