"""`PCAModel`: what people hold. Saves, loads, transforms and reconstructs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from .accumulate import ACCUMULATORS, Accumulator
from .applying import (
    RowMap,
    errors_of,
    images_of,
    lazy_rows,
    map_array,
    map_rows,
    reconstructions_of,
    scores_of,
    write_images,
    write_scores,
)
from .collection import Coordinate
from .components import StoredComponents
from .errors import RequestError
from .events import Listener, silent
from .planning import budget_of
from .prepare import Frame, Preparation, Prepared, check_raw, given_shape
from .readers import Collection, open_collection
from .store import pca_arrays, pca_attributes, read_pca, read_state, write_model
from .subspace import Subspace, working_dtype
from .summary import summary_of
from .units import GIB, format_shape, parse_bytes

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

STATE_LIMIT = 1 * GIB  # a larger statistic is not kept with a model unless asked for


@dataclass(frozen=True, eq=False)
class PCAModel:
    """Principal components of a collection, with what is needed to apply them to raw images.

    Attributes
    ----------
    components : ndarray or StoredComponents of shape (k, *sample_shape)
        Orthonormal, by descending variance; NaN outside the mask. In memory, or on disk where they are large (see
        `load_model`), and then read when they are sliced.
    mean : ndarray of shape sample_shape
        NaN outside the mask.
    explained_variance, explained_variance_ratio, singular_values : ndarray of shape (k,)
        As in scikit-learn: variances divide by n - 1, ratios are of the exact total, singular values are of the
        centred data.
    error_bound : ndarray of shape (k,)
        |C v - lambda v| / lambda is at most this, for the stored component v and variance lambda, except with a
        probability of 1e-6 over all components. NaN where unknown.
    angle_bound : ndarray of shape (k,)
        The component is within this angle (radians) of the true one; NaN where neighbouring variances lie too close.
    variance_bound : ndarray of shape (k,) or None
        A bound on each variance's relative error that is sharper than `error_bound`, where one is known.
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
        Applied to every raw collection first.
    raw_shape, raw_kind : tuple of int, str
        Shape of a raw sample and numpy's kind of its dtype.
    provenance : mapping
        Plain data: source, request, plan, versions.
    statistic : Accumulator or None
        The mergeable statistic, where kept.
    """

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
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    variance_bound: Float64 | None = None
    outside: float | None = None
    eigenvalues: Float64 | None = None
    mask: npt.NDArray[np.bool_] | None = None
    preparation: Preparation = field(default_factory=Preparation)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    statistic: Accumulator | None = None
    name: str = "the model"

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return len(self.components)

    @property
    def n_features(self) -> int:
        """Pixels analysed, p."""
        return int(self.mask.sum()) if self.mask is not None else int(np.prod(self.sample_shape))

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a prepared sample."""
        return self.mean.shape

    @property
    def explained_variance_ratio(self) -> Float64:
        """Share of the total variance along each component."""
        return self.explained_variance / self.total_variance

    @property
    def singular_values(self) -> Float64:
        """Of the centred data, each sample times the root of its weight: sqrt((n - 1) variance)."""
        return np.sqrt(((self.total_weight or self.n_samples) - 1) * self.explained_variance)

    @property
    def subspace(self) -> Subspace:
        """Mean and components as plain rows of features, without names."""
        own, features = self.components, self.frame.features
        rows = own.rows if isinstance(own, StoredComponents) else features(own)
        return Subspace(features(self.mean[None])[0], rows, self.explained_variance)

    @property
    def frame(self) -> Frame:
        """How raw images become rows of features, and back."""
        return Frame(self.preparation, self.raw_shape, self.sample_shape, self.mask)

    def __repr__(self) -> str:
        ratio = float(self.explained_variance_ratio.sum())
        return (
            f"PCAModel({self.n_components} components of {format_shape(self.sample_shape)} samples, {ratio:.1%} of the "
            f"variance of {self.n_samples} samples)"
        )

    def summary(self) -> dict[str, Any]:
        """The numbers as plain data, and how far to trust them; None for what is not finite."""
        return summary_of(self)

    # -- what it does

    def transform(self, samples: Any, *, whiten: bool = False) -> Any:
        """Scores of samples along the components.

        Parameters
        ----------
        samples : ndarray of shape (n, *raw_shape) or (n, p), dask array, collection, or what `open_collection` takes
            Raw samples: the model's preparation is applied to them. Arrays are taken at their values; a collection
            must be of the dtype kind the model was fitted on.
        whiten : bool, default=False
            Divide by the standard deviation along each component.

        Returns
        -------
        ndarray or dask array of shape (n, k)
            numpy for numpy, else lazy. float32 for integers of up to 16 bits and float32, else float64.

        Raises
        ------
        ModelError
            If the samples are not of the raw shape or kind the model was fitted on.
        """
        return self._mapped(samples, partial(scores_of, self.subspace, whiten=whiten), (self.n_components,))

    def inverse_transform(self, scores: Any, *, whiten: bool = False) -> Any:
        """Images from scores: ``mean + scores @ components``.

        Parameters
        ----------
        scores : ndarray or dask array of shape (n, j)
            Scores along the first j components, j <= k.
        whiten : bool
            Whether the scores were whitened.

        Returns
        -------
        ndarray or dask array of shape (n, *sample_shape)
            Prepared images, scale undone; NaN outside the mask. A model that normalizes gives normalized images:
            what each sample's own mean or norm was, scores do not say.
        """
        if scores.ndim != 2 or not 1 <= scores.shape[1] <= self.n_components:
            raise RequestError(
                f"scores have shape {tuple(scores.shape)}; give n rows of 1 to {self.n_components} components."
            )
        function = partial(images_of, self.subspace, frame=self.frame, whiten=whiten)
        if isinstance(scores, da.Array):
            dtype = np.float32 if scores.dtype == np.float32 else np.float64
            return map_rows(scores.rechunk({1: -1}), function, shape=self.sample_shape, dtype=dtype)
        return function(np.asarray(scores))

    def reconstruct(self, samples: Any, n_components: int | None = None) -> Any:
        """Samples projected on the first components and back: what the model keeps of them.

        Parameters
        ----------
        samples
            As for `transform`.
        n_components : int, optional
            How many components to use; all by default.

        Returns
        -------
        ndarray or dask array of shape (n, *sample_shape)
            Prepared images, scale and normalize undone; NaN outside the mask.
        """
        function = partial(reconstructions_of, self._first(n_components), frame=self.frame)
        return self._mapped(samples, function, self.sample_shape, preparation=self.preparation.unnormalized)

    def reconstruction_error(self, samples: Any, n_components: int | None = None) -> Any:
        """Squared distance of each prepared sample from its reconstruction, shape (n,), float64.

        In features as analysed: inside the mask, scaled and normalized.
        Over the samples fitted it averages to (n - 1)/n times the sum of the variances left out.
        """
        return self._mapped(samples, partial(errors_of, self._first(n_components)), (), np.float64)

    def _first(self, asked: int | None) -> Subspace:
        if asked is None:
            return self.subspace
        if not 1 <= asked <= self.n_components:
            raise RequestError(f"n_components={asked} is not between 1 and {self.n_components}, what {self.name} has.")
        return self.subspace.first(asked)

    def _mapped(
        self,
        samples: Any,
        function: RowMap,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike | None = None,
        preparation: Preparation | None = None,
    ) -> Any:
        """Map prepared rows of whatever was given: numpy at once, the rest lazily."""
        preparation = preparation or self.preparation
        if isinstance(samples, (np.ndarray, da.Array)):
            given = given_shape(samples.shape, self.preparation, self.raw_shape, self.name)
            frame = replace(self.frame, preparation=preparation, raw_shape=given)
            dtype = dtype or working_dtype(frame.row_dtype(samples.dtype), self.components.dtype)
            return map_array(samples, frame, function, shape, dtype)
        collection = self.prepared(samples, preparation)
        dtype = dtype or working_dtype(collection.dtype, self.components.dtype)
        return map_rows(lazy_rows(collection), function, shape=shape, dtype=dtype)

    def prepared(self, source: Any, preparation: Preparation | None = None) -> Prepared:
        """Open a raw collection as this model sees it; see `open_collection` for what can be opened.

        Parameters
        ----------
        source
            Raw samples.
        preparation : Preparation, optional
            Some of the model's steps only; all by default.

        Raises
        ------
        ModelError
            If it is not of the raw shape and kind the model was fitted on.
        """
        raw: Collection = open_collection(source)
        check_raw(raw, self.preparation, self.raw_shape, self.raw_kind, self.name)
        return Prepared(raw, preparation or self.preparation)

    # -- writing

    def write_scores(
        self,
        source: Any,
        path: str | os.PathLike[str],
        *,
        whiten: bool = False,
        memory: int | str | None = None,
        overwrite: bool = False,
        checkpoint: str | None = None,
        checkpoint_every: float = 30.0,
        listener: Listener = silent,
    ) -> None:
        """Write the scores of a collection to ``.zarr``, ``.npy`` or ``.csv`` within a memory budget.

        Rows are in the collection's order; Zarr and csv carry the samples' names where they have any. With a folder
        `checkpoint`, progress is recorded there every so many seconds, and after a kill the same call goes on.

        Raises
        ------
        OutputError
            If the output exists (and `overwrite` is false), cannot be written, or was begun with other data.
        BudgetError
            If not even pieces of the components and one sample fit the budget.
        """
        how: dict[str, Any] = {"whiten": whiten, "memory": memory, "overwrite": overwrite, "listener": listener}
        how |= {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every}
        write_scores(self.subspace, self.frame, self.prepared(source), os.fspath(path), model=self.name, **how)

    def write_reconstruction(
        self,
        source: Any,
        path: str | os.PathLike[str],
        *,
        n_components: int | None = None,
        whiten: bool = False,
        memory: int | str | None = None,
        overwrite: bool = False,
        checkpoint: str | None = None,
        checkpoint_every: float = 30.0,
        listener: Listener = silent,
    ) -> None:
        """Write images reconstructed from a collection, or from its scores, to ``.zarr`` or ``.npy`` within a budget.

        A collection of k features each, k components, is taken for scores; images are read and projected first.
        Scores in Zarr say themselves whether they are whitened; of others `whiten` says so. The rest as for scores.
        """
        raw, subspace = open_collection(source), self._first(n_components)
        from_scores = raw.sample_shape == (self.n_components,) != self.raw_shape
        collection = raw if from_scores else self.prepared(raw, self.preparation.unnormalized)
        how: dict[str, Any] = {"memory": memory, "overwrite": overwrite, "listener": listener}
        how |= {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every}
        how |= {"dims": self.sample_dims, "coordinates": self.coordinates}
        how["whitened"] = bool(raw.attributes.get("whiten", whiten)) if from_scores else None
        write_images(subspace, self.frame, collection, os.fspath(path), model=self.name, **how)

    # -- saving

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, keep_state: bool | None = None) -> None:
        """Write the model to a folder in Zarr, format 1: one xarray Dataset.

        Parameters
        ----------
        path : path
            Folder to make; complete only when the call returns.
        overwrite : bool, default=False
            Replace a model already there.
        keep_state : bool, optional
            Whether to keep the mergeable statistic (8 p^2 bytes); by default up to 1 GiB, and that of parts always.

        Raises
        ------
        OutputError
            If something is there already, or it cannot be written.
        """
        if keep_state is None:
            keep_state = "part" in self.provenance or 8 * self.n_features**2 <= STATE_LIMIT
        how: dict[str, Any] = {"arrays": pca_arrays(self), "attributes": pca_attributes(self), "overwrite": overwrite}
        if self.statistic is not None and keep_state:
            how |= {"state": self.statistic.state(copy=False), "state_kind": self.statistic.kind}
        write_model(os.fspath(path), kind="pca", **how)

    def without_statistic(self) -> PCAModel:
        """The same model without the p x p statistic, which gives its memory back."""
        return replace(self, statistic=None)


def load_model(path: str | os.PathLike[str], *, statistic: bool = False, memory: int | str | None = None) -> PCAModel:
    """Load a model written by `PCAModel.save` or ``streampca fit``.

    Components of at most a quarter of the budget are read into memory. Larger ones stay on disk and are read piece by
    piece by whatever the model does: ``model.components`` is then a `streampca.components.StoredComponents`, which
    gives arrays when it is sliced.

    Parameters
    ----------
    path : path
        The model's folder.
    statistic : bool, default=False
        Load the mergeable statistic too, 8 p^2 bytes, where the model keeps one.
    memory : int or str, optional
        Most bytes that what follows is to use, such as ``"2 GiB"``; half of what the machine allows by default.

    Raises
    ------
    ModelError
        If there is none, or it is incomplete, damaged, or of a newer format.
    """
    budget, _ = budget_of(None if memory is None else parse_bytes(memory))
    fields = read_pca(os.fspath(path), budget)
    kept = read_state(os.fspath(path)) if statistic else None
    return PCAModel(**fields, statistic=ACCUMULATORS[kept[0]].from_state(kept[1]) if kept else None)
