"""`Model`: the base of all kinds of model: opening, transforming, saving, describing and showing."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt

from ..accumulators.products import double_products
from ..errors import ModelError, RequestError, nearest, worded
from ..kinds.opening import OpeningOptions
from ..kinds.options import MISSING
from ..preprocessing import Frame, Preparation, Prepared, check_raw, given_shape, shape_like
from ..preprocessing.coordinates import check_axes, check_guess, raw_orders
from ..preprocessing.learned import SampleKeys
from ..preprocessing.run_options import OF_FITS, FitOptions, run_and_opening
from ..preprocessing.sample_keys import keys_of, lacking
from ..readers import (
    Collection,
    check_apart,
    check_columns,
    check_names,
    check_reading,
    fitted_on,
    open_collection,
    paths_of,
)
from ..readers.collection import check_dtype
from ..readers.coordinates import CHECK, IGNORE, Grid, Order, is_checked
from ..readers.detect import is_data_array, is_dataset, is_sparse
from ..readers.source import as_source
from ..readers.views.reordered import Reordered
from ..readers.views.variables import VARIABLE, variables_fitted
from ..storage.coordinate import Coordinate
from ..storage.disk import expanded
from .data_arrays import (
    COMPONENT,
    MapResult,
    NamedSamples,
    by_variable,
    component_numbers,
    dataset_of,
    named_scores,
    one_array,
    units_of,
)
from .notebook import model_html
from .store import SAMPLE, ModelWriter
from .subspace import Subspace, multiplied_there, working_dtype
from .transform import (
    OfNumbered,
    Projection,
    RowMap,
    is_dask_array,
    map_array,
    map_collection,
    map_now,
    scores_of,
    write_projection,
)

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

    from .components import ComponentsModel

AnyModel = TypeVar("AnyModel", bound="Model")

# Axes along which arrays are too long to list in a summary.
LONG = {*SAMPLE, "fitted_sample", "reference", "landmark", "bootstrap_draw"}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Model(ABC):
    """Map of raw samples to scores that was learned from a collection, with what is needed to apply it to others.

    A kind of model declares the arrays that it adds to those of its components, and how rows of features are mapped
    (`subspace`). Arrays are mapped at once where they are numpy's and lazily where they are dask's; an
    `xarray.DataArray` gives one with its coordinates; collections, and what `open_collection` takes, give lazy dask
    arrays, or are written to files.

    Attributes
    ----------
    n_samples : int
        Samples fitted.
    sample_dims : tuple of str
        Names of the sample's axes.
    raw_shape, raw_kind : tuple of int, str
        Shape of a raw sample and numpy's kind of its dtype.
    coordinates : mapping of str to Coordinate
        Values along the sample's axes (lat, lon, ...), by the axis' name, where the source has them.
    mask : ndarray of bool or None
        Pixels that are features.
    preparation : Preparation
        Preparation of every raw collection, applied first.
    provenance : mapping
        Plain data: source, request, plan, versions.
    name : str
        Path of a stored model, for messages.
    """

    kind: ClassVar[str]  # as stored, and in `MODEL_KINDS`
    prefix: ClassVar[str] = ""  # of the names under which its arrays are stored
    noun: ClassVar[str] = "axis"  # name of the direction of one score
    whitens: ClassVar[bool] = True  # False where scores have no variances to be divided by

    n_samples: int
    sample_dims: tuple[str, ...]
    raw_shape: tuple[int, ...]
    raw_kind: str
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    mask: npt.NDArray[np.bool_] | None = None
    preparation: Preparation = field(default_factory=Preparation)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    name: str = "the model"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Refuse an unknown attribute, and name the kind of model that has it."""
            # A property of this class that raised AttributeError leads here too: raise its own error again.
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            from .pca import PCAModel

            is_principal = hasattr(PCAModel, name) or name in PCAModel.__dataclass_fields__
            remedy = f", which needs principal components; {self.instead}" if is_principal else ""
            raise AttributeError(worded(f"{type(self).__name__} has no attribute {name!r}{remedy}."))

    # -- declared by each kind

    @property
    def instead(self) -> str:
        """Remedy where principal components are required."""
        return "fit a model of kind 'pca' for it"

    @classmethod
    def own_arrays(cls) -> dict[str, tuple[str, ...]]:
        """Return the fields that are stored beside the components, with the names of their axes; see `over`."""
        return {entry.name: entry.metadata["axes"] for entry in fields(cls) if "axes" in entry.metadata}

    @classmethod
    def of_fields(cls, shared: Mapping[str, Any], kind_fields: Mapping[str, Any]) -> Self:
        """Make a model from the fields that all models have, and from those that its kind declares."""
        return cls(**shared, **kind_fields)

    @property
    @abstractmethod
    def basis(self) -> ComponentsModel:
        """The model of components that rows are projected on: this one, or the one that it contains."""

    @property
    def shown(self) -> ComponentsModel:
        """The model whose components are listed and pictured: `basis`, unless this kind has components of its own."""
        return self.basis

    @property
    @abstractmethod
    def subspace(self) -> Subspace:
        """The map of plain rows of features to scores, without names."""

    @property
    @abstractmethod
    def n_scores(self) -> int:
        """Number of scores of a sample: one along each component, or one for each axis of an embedding."""

    @property
    def fills_in(self) -> bool:
        """True if scores can be estimated from observed values (``missing="em"``); not where samples are compared."""
        return not self.preparation.maps

    @property
    def _can_fill_in(self) -> bool:
        """True if "em" is a rule for missing values of samples; not where all values of each normalize it."""
        return self.fills_in and self.preparation.normalize is None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the accuracy of the numbers that only this kind of model has."""
        return ()

    @property
    def failure(self) -> str | None:
        """Sentence that says why the model cannot be used, if its iteration ended far from the answer; else None."""
        return None

    def as_images(self) -> ComponentsModel:
        """Return the model whose mean and components are drawn as images in place of this one.

        Raises
        ------
        ModelError
            If there are no images to draw.
        """
        raise ModelError(f"{self.name} is of kind {self.kind!r}, which has no images; draw its scores.")

    # -- samples

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a prepared sample."""
        return self.basis.mean.shape

    @property
    def n_features(self) -> int:
        """Pixels analysed, p."""
        return int(self.mask.sum()) if self.mask is not None else math.prod(self.sample_shape)

    @property
    def constant_features(self) -> npt.NDArray[np.intp]:
        """Indices of pixels that `standardize` did not scale because they are constant: shape (m, axes of a sample)."""
        learned = self.preparation.learned
        if learned is None or learned.deviation is None:
            return np.empty((0, len(self.sample_shape)), np.intp)
        constant = np.flatnonzero(learned.deviation == 0)
        indices = constant if self.mask is None else np.flatnonzero(self.mask)[constant]
        return np.column_stack(np.unravel_index(indices, self.sample_shape))

    @cached_property
    def frame(self) -> Frame:
        """Conversion of raw images to rows of features, and back."""
        return Frame(self.preparation, self.raw_shape, self.sample_shape, self.mask)

    # -- scores

    def transform(
        self,
        samples: Any,
        /,
        *,
        whiten: bool = False,
        missing: str | None = None,
        device: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Scores of samples along the components.

        Parameters
        ----------
        samples : ndarray or dask array of shape (n, *raw_shape) or (n, p), DataArray, sparse matrix, collection or path
            Raw samples: the model's preparation is applied to them. Arrays may have any dtype; a collection must have
            the dtype kind that the model was fitted on. The axes of one sample in an `xarray.DataArray` are
            those of the model's names, or the last ones where it has none of these names.
        whiten : bool, default=False
            Divide by the standard deviation along each component. Scores along null components, whose variance is
            no more than rounding, are then 0.
        missing : {"error", "drop-features", "drop-samples", "em"}, optional
            Treatment of samples in which a feature is NaN or infinite; by default as when the model was fitted.
            "error": the first is named in an error. "drop-features": features missing when the model was fitted lie
            outside its mask, and others are an error. "drop-samples": such samples keep their place, and every score is
            NaN. "em": scores are those of least squares over the observed features (NaN where there are none), from
            which `reconstruct` fills in the others; errors are over the observed features.
        device : str, optional
            Device that multiplies, such as cuda, see `Run`; by default the processor.
        **opening
            ``key``, ``select`` ...: how a path is opened, see `Opening`; by default as the samples of the fit were, see
            the parameter `like` of `open_collection`. ``coordinates="check"`` requires the coordinates of the model, in
            any order; "ignore" matches pixels by position, as without coordinates.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n, k)
            numpy for numpy and sparse, a DataArray of axes (..., component) for one, else lazy. float32 for integers of
            up to 16 bits and float32, else float64.

        Raises
        ------
        RequestError
            If `whiten` is given for coordinates in an embedding, or the device is not here.
        BudgetError
            If the components do not fit in the memory of the device.
        ModelError
            If the samples have another raw shape or kind than the model was fitted on, some but not all of their axes
            have the model's names, or their coordinates differ from the model's; or if the model subtracts the means
            of groups or a trend, and the samples have an unknown group, or neither dates nor labels.
        DataError
            If a feature of a sample is NaN or infinite and `missing` does not allow it; where the result is lazy, when
            it is computed.
        """
        k, units = self.n_scores, None if whiten else units_of(self, self.preparation)
        scores = MapResult((COMPONENT,), "scores", component_numbers(k), units, shape=(k,))
        subspace = multiplied_there(self._map(missing, whiten), device, self.frame.device_bytes)
        function, steps = scores_of(subspace, whiten=whiten), self.preparation.multiplying(double_products(device))
        return self._mapped(samples, function, scores, steps, opening=opening, missing=subspace.missing)

    def number_of_each(
        self, samples: Any, function: RowMap, name: str, /, *, missing: str = "error", **opening: Unpack[OpeningOptions]
    ) -> Any:
        """Return one number for each sample, computed from its row of features: (n,), float64, lazy as `transform`.

        Parameters
        ----------
        samples
            As for `transform`.
        function : callable
            Maps prepared rows, (m, p), to m numbers.
        name : str
            Name of the result where it is a DataArray.
        missing : str
            "error" refuses samples with missing values; otherwise `function` receives them.
        **opening
            As for `transform`.
        """
        result = MapResult((), name, dtype=np.float64)
        return self._mapped(samples, function, result, opening=opening, missing=missing)

    def _map(self, missing: str | None, whiten: bool) -> Subspace:
        """Return the subspace with a rule for missing values; refuse to whiten coordinates in an embedding."""
        if whiten and not self.whitens:
            raise RequestError(
                f"{self.name} is of kind {self.kind!r}, whose coordinates are not whitened; leave whiten out."
            )
        return replace(self.subspace, missing=self.rule_for(missing), fills_in=self._can_fill_in)

    def rule_for(self, missing: str | None) -> str:
        """Return the treatment of samples with missing values: `missing`, or by default that of the fit.

        Raises
        ------
        RequestError
            If there is no such rule.
        """
        if missing is None:
            # An embedding by all features has no plan of a fit: its own request is stored as "embedding".
            request = self.provenance.get("embedding") or (self.provenance.get("plan") or {}).get("request") or {}
            missing = request.get("missing", "error")
        if missing not in MISSING:
            raise RequestError(
                f"missing {missing!r} is not one of {', '.join(MISSING)}.{nearest(str(missing), list(MISSING))}"
            )
        if missing == "em" and not self._can_fill_in:
            uses = "compares samples as a whole" if not self.fills_in else "normalizes each sample by all its values"
            raise RequestError(
                f"{self.name} {uses}, so missing 'em' cannot fill single values in; use 'drop-samples', which gives "
                "samples that lack some scores of NaN."
            )
        return "error" if missing == "drop-features" else missing

    def _mapped(
        self,
        samples: Any,
        function: RowMap | OfNumbered,
        result: MapResult,
        preparation: Preparation | None = None,
        source: str | None = None,
        *,
        keys: SampleKeys | None = None,
        opening: OpeningOptions,
        missing: str,
    ) -> Any:
        """Map prepared rows: numpy and sparse input at once, all else lazily; a DataArray gives a DataArray.

        `keys` are the groups or dates of an array's samples, where they are known.
        """
        check_names(opening)
        check_columns(samples, self)
        samples = as_source(samples, self.raw_shape, dtype=opening.get("dtype"))
        in_memory = isinstance(samples, np.ndarray) or is_sparse(samples)
        if any(value is not None for option, value in opening.items() if option != "coordinates"):
            samples = open_collection(samples, like=self, **opening)
        preparation, checked = preparation or self.preparation, is_checked(opening.get("coordinates", CHECK))
        if is_dataset(samples) and (names := variables_fitted(self.sample_dims, self.coordinates)) is not None:
            stacked = one_array(samples, names, self.sample_dims, self.name)
            mapped = self._mapped(
                stacked, function, result, preparation, source, keys=keys, opening=opening, missing=missing
            )
            return by_variable(mapped, samples) if VARIABLE in result.dims else mapped
        if is_data_array(samples):
            subject = "the DataArray"
            named = NamedSamples.samples(samples, self.sample_dims, self.raw_shape)
            named.check(result)
            if checked:
                named = named.ordered(self._orders_of(named.grid, named.sample_shape, subject))
            keys = keys_of(preparation, named.facts(subject))
            # The plain array has lost its coordinates, which were compared above.
            ignoring: OpeningOptions = {"coordinates": IGNORE}
            mapped = self._mapped(
                named.values, function, result, preparation, subject, keys=keys, opening=ignoring, missing=missing
            )
            coordinates = {**result.coordinates, **named.prepared_coordinates(preparation)}
            return named.named(mapped, replace(result, coordinates=coordinates))
        if isinstance(samples, np.ndarray) or is_dask_array(samples):
            if any(math.isnan(length) for length in samples.shape):
                raise ModelError("the dask array has chunks of unknown size; call its compute_chunk_sizes() first.")
            check_dtype(samples.dtype, source or "the array")
            shape = given_shape(samples.shape, self.preparation, self.raw_shape, self.name)
            frame = self.frame
            if keys is not None or shape != frame.raw_shape or preparation is not frame.preparation:
                frame = replace(frame, preparation=preparation, raw_shape=shape, keys=keys)
            dtype = result.dtype or working_dtype(frame.row_dtype(samples.dtype), self.basis.components.dtype)
            subject = source or f"{'numpy' if isinstance(samples, np.ndarray) else 'dask'} array"
            if frame.lacks_keys:
                raise lacking(preparation, f"the {subject}" if source is None else subject)
            function = function.with_keys(keys) if isinstance(function, OfNumbered) else function
            naming = partial(numbered, source=subject)
            return map_array(
                samples,
                function,
                shape=result.shape,
                dtype=dtype,
                named=naming,
                frame=frame,
                missing=missing,
                fills_in=self._can_fill_in,
            )
        collection = self.prepared(samples, preparation, coordinates=CHECK if checked else IGNORE)
        dtype = result.dtype or working_dtype(collection.dtype, self.basis.components.dtype)
        function = function.with_keys(collection.frame.keys) if isinstance(function, OfNumbered) else function
        map_rows = map_now if in_memory else map_collection
        return map_rows(
            collection, function, shape=result.shape, dtype=dtype, missing=missing, fills_in=self._can_fill_in
        )

    def _orders_of(self, grid: Grid, shape: tuple[int, ...], subject: str) -> dict[int, Order]:
        """Return, for each axis, the order that puts raw samples of a shape on the model's grid; see `raw_orders`."""
        steps = self.preparation.of_images
        try:
            fits = steps.shape_of(shape) == self.sample_shape
        except RequestError:
            fits = False
        if not fits:  # `given_shape` or `check_raw` refuses the samples later, and names both shapes
            return {}
        return raw_orders(steps, grid, shape, Grid(self.sample_dims, self.coordinates), subject, self.name)

    def prepared(
        self, source: Any, preparation: Preparation | None = None, **opening: Unpack[OpeningOptions]
    ) -> Prepared:
        """Open a raw collection with this model's preparation; see `open_collection` for what can be opened.

        Parameters
        ----------
        source
            Raw samples.
        preparation : Preparation, optional
            A part of the model's steps; all by default.
        **opening
            As for `transform`.

        Raises
        ------
        ModelError
            If it has another raw shape or kind than the model was fitted on, or another grid, or consists of image
            files that are read with other options than those of the fit.
        """
        check_names(opening)
        raw: Collection = open_collection(source, like=self, **opening)
        check_reading(raw, self.provenance, self.name)
        raw = raw.fitting(partial(shape_like, self.preparation, self.raw_shape))
        check_raw(raw, self.preparation, self.raw_shape, self.raw_kind, self.name)
        if raw.compares_coordinates and raw.axes is None:
            check_guess(raw, self.provenance, self.name)
        elif raw.compares_coordinates and raw.axes is not None:
            grid = Grid(raw.axes, raw.coordinates if self.coordinates else {})
            orders = self._orders_of(grid, raw.sample_shape, raw.source)
            check_axes(raw, self.provenance, self.name)
            raw = Reordered(raw, orders) if orders else raw
        return Prepared(raw, preparation or self.preparation)

    def raw_samples(self, samples: Any) -> Any:
        """Return raw samples that can be indexed, their pixels in the model's order.

        Parameters
        ----------
        samples : array, sequence or mapping of images, DataArray, collection, path, glob or list of paths
            Arrays and sequences are returned as they are, a DataArray as an array; all else is opened.

        Raises
        ------
        SourceError, ModelError
            As `prepared`.
        """
        if is_data_array(samples):
            named = NamedSamples.samples(samples, self.sample_dims, self.raw_shape)
            return named.ordered(self._orders_of(named.grid, named.sample_shape, "the DataArray")).values
        paths = samples if isinstance(samples, (list, tuple)) and len(samples) else [samples]
        opens = isinstance(samples, Collection) or is_dataset(samples)
        if opens or all(isinstance(path, (str, os.PathLike)) for path in paths):
            return self.prepared(samples).raw
        return samples

    def write_scores(
        self,
        source: Any,
        path: str | os.PathLike[str],
        *,
        whiten: bool = False,
        missing: str | None = None,
        **options: Unpack[FitOptions],
    ) -> None:
        """Write the scores of a collection to ``.zarr``, ``.npy``, ``.csv`` or ``.parquet`` within a memory budget.

        Rows are in the collection's order. All formats but ``.npy`` store the names of samples that have them; Zarr and
        Parquet (which needs ``pip install "streampca[parquet]"``) also store the coordinates along the samples.
        `missing` is as for `transform`, `options` are those of `streampca.Run`, and ``key``, ``select`` ... as for
        `transform`. After a kill a Parquet file is written again from its first row. Workers write their own rows, so
        the output must lie where they can write; csv and Parquet files are written by this process alone.

        Raises
        ------
        RequestError
            If the output is, contains or lies in the source, the model or a file that the model was fitted on.
        OutputError
            If the output exists, or the checkpoint is of another run (and `overwrite` is false), or it cannot be
            written.
        BudgetError
            If not even pieces of the components and one sample fit the budget.
        """
        run, opening = run_and_opening(self.write_scores, options, unused=(*OF_FITS, "output"))
        run.check_device()
        steps = self.preparation.multiplying(double_products(run.device))
        output, collection = self._output(path, source), self.prepared(source, steps, **opening)
        subspace = replace(self._map(missing, whiten), device=run.device or "")
        write_projection(
            Projection(subspace, self.frame, collection, whiten, grid_bytes=self._grid_bytes),
            output,
            model=self.name,
            dims=(COMPONENT,),
            coordinates=component_numbers(self.n_scores),
            run=run,
        )

    @property
    def _grid_bytes(self) -> int:
        """Bytes of the coordinates along several axes: those of the model, and those of the samples to compare."""
        arrays = [np.asarray(coordinate.values) for coordinate in self.coordinates.values()]
        return 2 * sum(array.nbytes for array in arrays if array.ndim > 1)

    def _output(self, path: str | os.PathLike[str], source: Any) -> str:
        """Return the path of an output; refuse one that would replace the source, this model or its own source."""
        output = expanded(path)
        check_apart([output], [*paths_of(source), self.name])
        check_apart([output], fitted_on(self.provenance), "the model was fitted on")
        return output

    # -- describing, saving

    def _repr_html_(self) -> str:
        return model_html(self)

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain data, None for values that are not finite; no arrays over samples or features."""
        listed = [name for name, axes in self.own_arrays().items() if not LONG.intersection(axes)]
        constant = {"constant_features": self.constant_features.tolist()} if self.preparation.standardize else {}
        return {
            "kind": self.kind,
            "n_samples": self.n_samples,
            "n_features": self.n_features,
            "sample_shape": list(self.sample_shape),
            "sample_dims": list(self.sample_dims),
            **{name: plain(getattr(self, name)) for name in listed},
            **constant,
            "preparation": self.preparation.to_json(),
            "provenance": dict(self.provenance),
        }

    @overload
    def to_xarray(self) -> Dataset: ...
    @overload
    def to_xarray(self, scores: Any, samples: Any = None) -> DataArray: ...
    def to_xarray(self, scores: Any = None, samples: Any = None) -> Dataset | DataArray:
        """Return the model as an `xarray.Dataset`, or scores as a DataArray, with names, coordinates and units.

        A Dataset holds the stored arrays under the same names; components on disk stay there, as a lazy dask array. The
        components of a field (time, lat, lon) are its empirical orthogonal functions (EOFs), (component, lat, lon);
        `transform` gives their time series.

        Parameters
        ----------
        scores : ndarray or dask array of shape (n, j), optional
            Scores as `transform` returns them, not whitened; by default the model itself is returned. They stay lazy.
        samples : path, glob, list of paths or Collection, optional
            Samples of the scores; their coordinates and names become those of the rows. Opened as by `transform`.

        Raises
        ------
        ImportError
            If xarray is not installed; ``pip install "streampca[xarray]"``.
        RequestError
            If scores have more columns than there are components, or another number of rows than samples.
        """
        return dataset_of(self) if scores is None else named_scores(self, scores, samples)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a folder in Zarr: one xarray Dataset.

        Parameters
        ----------
        path : path
            New folder, ``.zarr`` or without an ending; complete only when the call returns.
        overwrite : bool, default=False
            Replace an existing model.

        Raises
        ------
        OutputError
            If the path exists, or cannot be written.
        """
        with ModelWriter(expanded(path), overwrite=overwrite) as writer:
            writer.finish(self)


def over(*axes: str) -> dict[str, tuple[str, ...]]:
    """Return the metadata of a field that is stored as an array of these axes, or as a number where there are none."""
    return {"axes": axes}


def require(model: Model, kind: type[AnyModel], what: str) -> AnyModel:
    """Return the model if it is of a class, and refuse it otherwise.

    Parameters
    ----------
    model : Model
        Any model.
    kind : type
        Required class.
    what : str
        Start of the sentence that refuses other models, such as "images are made of principal components".

    Raises
    ------
    ModelError
        If the model is of another class; the message names a remedy.
    """
    from .pca import PCAModel

    if isinstance(model, kind):
        return model
    instead = f"; {model.instead}" if issubclass(PCAModel, kind) else ""
    raise ModelError(f"{what}, and {model.name} is of kind {model.kind!r}{instead}.")


def plain(values: Any) -> Any:
    """Return an array, or a number, as plain data: None for values that are not finite."""
    array = np.asarray(values).astype(object)
    array[~np.isfinite(values)] = None
    return array.tolist()


def numbered(index: int, source: str) -> str:
    """Name a sample of an array by its number."""
    return f"sample {index} of {source}"
