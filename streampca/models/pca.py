"""`PCAModel`: what people hold. Projects and reconstructs samples, saves, loads, and says what it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np
import numpy.typing as npt

from ..accumulators import Accumulator
from ..events import Listener, logged
from ..preprocessing import Preparation
from ..preprocessing.sizes_for_planning import this_machine
from ..readers.coordinates import CHECK
from ..storage.components import StoredComponents
from ..storage.coordinate import Coordinate
from ..storage.disk import expanded
from ..storage.integrity import read_model, read_unreplaced
from ..units import GIB, counted, format_shape, parse_bytes
from .accuracy import null_directions, trust_of
from .compression import Compression, check_compared, fitted_compression, measured_compression
from .data_arrays import dataset_of, named_scores
from .likelihood import check_matrix_fits, density_of, mean_log_density, noise_variance_of
from .linear_map import LinearMap
from .notebook import model_html
from .registry import MODEL_KINDS, model_class
from .store import PER_COMPONENT, SAMPLE, ModelWriter, read_fields, read_statistic
from .subspace import Subspace

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

STATE_LIMIT = 1 * GIB  # a larger statistic is not kept with a model unless asked for


@dataclass(frozen=True, eq=False, kw_only=True)
class PCAModel(LinearMap):
    """Principal components of a collection, with what is needed to apply them to raw images.

    Arrays are mapped at once where they are numpy's and lazily where they are dask's; an `xarray.DataArray` gives one
    with its coordinates; collections, and what `open_collection` takes, give lazy dask arrays, or are written to files.

    Attributes
    ----------
    components : ndarray or StoredComponents of shape (k, *sample_shape)
        Orthonormal, by descending variance; NaN outside the mask. In memory, or on disk where they are large (see
        `load_model`), and then read when they are sliced.
    mean : ndarray of shape sample_shape
        Of prepared samples, near 0 where means of groups were taken off them; NaN outside the mask.
    explained_variance, explained_variance_ratio, singular_values : ndarray of shape (k,)
        As in scikit-learn: variances divide by n - 1, ratios are of the exact total, singular values are of the
        centred data.
    error_bound : ndarray of shape (k,)
        |C v - lambda v| / lambda is at most this, for the stored component v and variance lambda, except with a
        probability of 1e-6 over all components. NaN where unknown. Some true variance is then as near to lambda; it is
        that of the same rank where nothing larger was left outside: for ``summary()["trust"]["leading"]`` components.
    angle_bound : ndarray of shape (k,)
        The component is within this angle (radians) of the true one; NaN where neighbouring variances lie too close.
    variance_bound : ndarray of shape (k,) or None
        A bound on each variance's relative error that is sharper than `error_bound`, where one is known; of the
        distance to some true variance, too.
    outside : float or None
        No direction left outside has a larger variance, except with a probability of 1e-6; None where not measured.
    eigenvalues : ndarray or None
        All variances of the collection, descending, where known.
    total_variance : float
        Sum of the variances of all features.
    n_samples : int
        Samples fitted.
    total_weight : float or None
        Sum of their weights, in place of n_samples wherever that counts; None where no weights were given.
    coordinates : mapping of str to Coordinate
        Values along the sample's axes (lat, lon, ...), by the axis' name, where the source has them.
    sample_dims : tuple of str
        Names of the sample's axes.
    mask : ndarray of bool or None
        Pixels that are features.
    preparation : Preparation
        Preparation of every raw collection, applied first.
    raw_shape, raw_kind : tuple of int, str
        Shape of a raw sample and numpy's kind of its dtype.
    provenance : mapping
        Plain data: source, request, plan, versions.
    statistic : Accumulator or None
        The mergeable statistic, where kept.
    """

    kind: ClassVar[str] = "pca"  # as stored, and in `MODEL_KINDS`
    own_arrays: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # fields that another kind stores too: names of their axes

    components: Array | StoredComponents
    mean: Float64
    explained_variance: Float64
    error_bound: Float64
    angle_bound: Float64
    total_variance: float
    n_samples: int
    sample_dims: tuple[str, ...]
    raw_shape: tuple[int, ...]
    raw_kind: str
    total_weight: float | None = None
    variance_bound: Float64 | None = None
    outside: float | None = None
    eigenvalues: Float64 | None = None
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    mask: npt.NDArray[np.bool_] | None = None
    preparation: Preparation = field(default_factory=Preparation)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    statistic: Accumulator | None = None
    name: str = "the model"

    @property
    def n_features(self) -> int:
        """Pixels analysed, p."""
        return int(self.mask.sum()) if self.mask is not None else int(np.prod(self.sample_shape))

    @property
    def constant_features(self) -> npt.NDArray[np.intp]:
        """Places of pixels that `standardize` found constant, and left as they are: shape (m, axes of a sample)."""
        learned = self.preparation.learned
        if learned is None or learned.deviation is None:
            return np.empty((0, len(self.sample_shape)), np.intp)
        constant = np.flatnonzero(learned.deviation == 0)
        places = constant if self.mask is None else np.flatnonzero(self.mask)[constant]
        return np.column_stack(np.unravel_index(places, self.sample_shape))

    @property
    def variance_left(self) -> float:
        """Bound on the sum of the variances that the components leave."""
        return float(self.total_variance - self.explained_variance.sum())

    @property
    def explained_variance_ratio(self) -> Float64:
        """Share of the total variance along each component."""
        return self.explained_variance / self.total_variance

    @property
    def singular_values(self) -> Float64:
        """Singular values of the centred data, each sample times the root of its weight: sqrt((n - 1) variance)."""
        return np.sqrt(((self.total_weight or self.n_samples) - 1) * self.explained_variance)

    @property
    def about_axes(self) -> str:
        """A sentence that describes components that are not principal ones; empty for principal ones."""
        return ""

    def __repr__(self) -> str:
        ratio = float(self.explained_variance_ratio.sum())
        shape = self.sample_shape
        of = f"{format_shape(shape)} samples" if len(shape) > 1 else counted(shape[0], "feature")
        return (
            f"{type(self).__name__}({counted(self.n_components, 'component')} of {of}, {ratio:.1%} of the variance of "
            f"{self.n_samples} samples)"
        )

    def _repr_html_(self) -> str:
        return model_html(self)

    def summary(self) -> dict[str, Any]:
        """The numbers as plain data, and how far to trust them; None for what is not finite."""
        names = (*PER_COMPONENT, *(() if self.variance_bound is None else ("variance_bound",)))
        table = {name: [x if np.isfinite(x) else None for x in getattr(self, name).tolist()] for name in names}
        return {
            "kind": self.kind,
            "n_components": self.n_components,
            "n_samples": self.n_samples,
            "n_features": self.n_features,
            "sample_shape": list(self.sample_shape),
            "sample_dims": list(self.sample_dims),
            "total_variance": self.total_variance,
            **table,
            **{
                name: np.asarray(getattr(self, name)).tolist()
                for name, axes in self.own_arrays.items()
                if axes != SAMPLE
            },
            **({"constant_features": self.constant_features.tolist()} if self.preparation.standardize else {}),
            "trust": trust_of(self).to_json(),
            "preparation": self.preparation.to_json(),
            "provenance": dict(self.provenance),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a kind of model adds to those on how far its numbers can be trusted."""
        return ()

    @property
    def subspace(self) -> Subspace:
        """Mean and components as plain rows of features, without names."""
        own, features = self.components, self.frame.features
        rows = own.rows if isinstance(own, StoredComponents) else features(own)
        null = null_directions(self)
        variance = np.where(null, 0.0, self.explained_variance)
        return Subspace(features(self.mean[None])[0], rows, variance, self.rule_for(None))

    # -- as a density

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

    # -- what it keeps

    def compression(
        self,
        samples: Any = None,
        ladder: Sequence[int] | None = None,
        *,
        against: Any = None,
        peak: float | None = None,
        memory: int | str | None = None,
        coordinates: str = CHECK,
    ) -> Compression:
        """Bytes of scores and components against those of samples, and the error of reconstructions.

        Parameters
        ----------
        samples
            A raw collection, or what `open_collection` takes; read once, within the budget. By default the samples
            fitted: their errors follow from the variances, and nothing is read.
        ladder : sequence of int, optional
            Numbers of components; all by default, which costs no more.
        against
            Raw samples to compare the reconstructions with, one for each of `samples`, in their order: the same
            images without noise. By default the samples themselves.
        peak : float, optional
            The range of values of prepared samples, for the PSNR; above 0. By default 2^bits - 1 of whole numbers,
            times the scale; of fractions none is known.
        memory : int or str, optional
            Budget; half of what the machine allows by default.
        coordinates : {"check", "ignore"}
            As for `transform`.

        Returns
        -------
        Compression
            ``best`` says with how many components reconstructions come nearest to `against`.

        Raises
        ------
        RequestError
            If the ladder asks for components there are not, the peak is not positive, or there is nothing to compare.
        ModelError
            If samples are not of the shape or kind the model was fitted on, or not as many.
        BudgetError
            If not even single samples fit the budget.
        """
        check_compared(samples, against, peak)
        if samples is None:
            return fitted_compression(self, ladder, peak)
        other = None if against is None else self.prepared(against, coordinates=coordinates)
        given = self.prepared(samples, coordinates=coordinates)
        return measured_compression(self, given, other, ladder, peak=peak, memory=memory)

    @overload
    def to_xarray(self) -> Dataset: ...
    @overload
    def to_xarray(self, scores: Any, samples: Any = None) -> DataArray: ...
    def to_xarray(self, scores: Any = None, samples: Any = None) -> Dataset | DataArray:
        """Return the model as an `xarray.Dataset`, or scores as a DataArray, with names, coordinates and units.

        A Dataset holds what is stored, under the same names; components on disk stay there, in a lazy dask array. Of a
        field (time, lat, lon) the components are the empirical orthogonal functions (EOFs), (component, lat, lon);
        `transform` gives their time series.

        Parameters
        ----------
        scores : ndarray or dask array of shape (n, j), optional
            Scores as `transform` returns them, not whitened; by default the model itself is returned. They stay lazy.
        samples : path, glob, list of paths or Collection, optional
            Samples of the scores, whose coordinates and names are then those of the rows; opened as by `transform`.

        Raises
        ------
        ImportError
            If xarray is not installed; ``pip install "streampca[xarray]"``.
        RequestError
            If scores are of more components than there are, or not as many as samples.
        """
        return dataset_of(self) if scores is None else named_scores(self, scores, samples)

    def merge(
        self,
        *others: PCAModel | str | os.PathLike[str],
        n_components: int | float | str | None = None,
        approximate: bool = False,
        memory: int | str | None = None,
        coordinates: str = CHECK,
        listener: Listener = logged,
    ) -> PCAModel:
        """Return the model of this one's samples and those of others, without reading a sample again.

        Parameters
        ----------
        *others : PCAModel or path
            Fitted alike, to other samples.
        n_components, approximate, memory, coordinates, listener
            As for `streampca.merge`, which this is, and which takes many models at a time.
        """
        # By name: to merge is to solve anew, which `fitting` does, a layer above.
        found: PCAModel = import_module("streampca.fitting.merge").merge(
            [self, *others],
            n_components=n_components,
            approximate=approximate,
            memory=memory,
            coordinates=coordinates,
            listener=listener,
        )
        return found

    # -- saving

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, keep_state: bool | None = None) -> None:
        """Write the model to a folder in Zarr: one xarray Dataset.

        Parameters
        ----------
        path : path
            Folder to make, ``.zarr`` or without an ending; complete only when the call returns.
        overwrite : bool, default=False
            Replace a model already there.
        keep_state : bool, optional
            Whether to keep the statistic that `merge` and `partial_fit` add to (8 p^2 bytes, or those of a sketch); by
            default up to 1 GiB, and that of parts always.

        Raises
        ------
        OutputError
            If something is there already, or it cannot be written.
        """
        if keep_state is None:
            state = {} if self.statistic is None else self.statistic.state(copy=False)
            size = sum(values.nbytes for values in state.values())
            keep_state = "part" in self.provenance or size <= STATE_LIMIT
        with ModelWriter(expanded(path), overwrite=overwrite) as writer:
            writer.finish(self, self.statistic if keep_state else None)

    def without_statistic(self) -> PCAModel:
        """Return the model without the p x p statistic, whose memory is given back."""
        return replace(self, statistic=None)


def load_model(
    path: str | os.PathLike[str],
    *,
    statistic: bool = False,
    memory: int | str | None = None,
    kernel: Callable[[Any, Any], float] | None = None,
    components: bool = True,
) -> PCAModel:
    """Load a model written by `PCAModel.save` or ``streampca fit``.

    Components of at most a quarter of the budget are read into memory. Larger ones stay on disk and are read piece by
    piece by whatever the model does: ``model.components`` is then a `streampca.storage.components.StoredComponents`,
    which gives arrays when it is sliced.

    Parameters
    ----------
    path : path
        The model's folder.
    statistic : bool, default=False
        Load the statistic that `partial_fit` goes on from, too: 8 p^2 bytes, where the model keeps it.
    memory : int or str, optional
        Most bytes to use with the model, such as ``"2 GiB"``; half of what the machine allows by default.
    kernel : callable, optional
        Kernel that the model was fitted with, where that is a function of your own, of which models hold the name only.
    components : bool, default=True
        Read components into memory; False leaves them on disk whatever their size.

    Raises
    ------
    ModelError
        If there is none, or it is incomplete, damaged, of an unknown kind, or of a newer format.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10, output="model.zarr")
    >>> streampca.load_model("model.zarr")
    PCAModel(10 components of 8 x 8 samples, 73.8% of the variance of 1797 samples)
    """
    budget, _ = this_machine().budget(parse_bytes(memory))
    return _loaded(path, budget, held=budget if components else 0, statistic=statistic, kernel=kernel)


def load_but_components(
    path: str | os.PathLike[str], *, statistic: bool = False, memory: int | str | None = None
) -> PCAModel:
    """Load a model as `load_model` does, but for its components, which stay on disk whatever their size."""
    budget, _ = this_machine().budget(parse_bytes(memory))
    return _loaded(path, budget, held=0, statistic=statistic, kernel=None)


def _loaded(
    path: str | os.PathLike[str], budget: int, *, held: int, statistic: bool, kernel: Callable[[Any, Any], float] | None
) -> PCAModel:
    """Load a model within a budget, and components into memory where they may take so much of `held` bytes."""
    place = expanded(path)

    def read() -> PCAModel:
        opened = read_model(place, MODEL_KINDS, memory=budget)
        kind = model_class(opened.about["kind"])
        fields = read_fields(opened, kind.own_arrays, held, kernel)
        return kind(**fields, statistic=read_statistic(place, memory=budget) if statistic else None)

    return read_unreplaced(place, read)
