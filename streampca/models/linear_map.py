"""`LinearMap`: a mean and components applied to raw samples, in memory, lazily or written to files."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import index as as_index
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import ModelError, RequestError, nearest
from ..kinds.opening import OpeningOptions
from ..kinds.options import MISSING
from ..preprocessing import Frame, Preparation, Prepared, check_raw, given_shape, shape_like
from ..preprocessing.coordinates import check_axes, check_guess, raw_orders
from ..preprocessing.learned import SampleKeys
from ..preprocessing.run_options import OF_FITS, FitOptions, run_and_opening
from ..preprocessing.sample_keys import SampleFacts, keys_of, lacking
from ..readers import Collection, check_apart, check_reading, fitted_on, open_collection, paths_of
from ..readers.coordinates import CHECK, IGNORE, Grid, Order, is_checked, orders_between
from ..readers.detect import is_data_array, is_dataset, is_sparse
from ..readers.source import as_source
from ..readers.views.reordered import Reordered
from ..readers.views.variables import VARIABLE, variables_fitted
from ..storage.components import StoredComponents
from ..storage.coordinate import Coordinate
from ..storage.disk import expanded
from .compression import Compression, written_compression
from .data_arrays import (
    COMPONENT,
    MapResult,
    NamedSamples,
    by_variable,
    component_numbers,
    one_array,
    units_of,
)
from .subspace import Subspace, working_dtype
from .transform import (
    OfNumbered,
    Projection,
    RowMap,
    images_of,
    is_dask_array,
    map_array,
    map_collection,
    map_now,
    patches_of,
    reconstructions_of,
    write_projection,
)

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


class LinearMap(ABC):
    """Projects raw samples on components and back; `PCAModel` says what its attributes are."""

    components: Array | StoredComponents
    mean: Float64
    sample_dims: tuple[str, ...]
    raw_shape: tuple[int, ...]
    raw_kind: str
    coordinates: Mapping[str, Coordinate]
    mask: npt.NDArray[np.bool_] | None
    preparation: Preparation
    provenance: Mapping[str, Any]
    name: str

    @property
    @abstractmethod
    def subspace(self) -> Subspace:
        """Mean and components as plain rows of features, without names."""

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return len(self.components)

    @property
    def n_scores(self) -> int:
        """Number of scores of a sample: one along each component, or one for each axis of an embedding."""
        return self.n_components

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of a prepared sample."""
        return self.mean.shape

    @property
    def frame(self) -> Frame:
        """Conversion of raw images to rows of features, and back."""
        return Frame(self.preparation, self.raw_shape, self.sample_shape, self.mask)

    # -- arrays

    def transform(
        self, samples: Any, /, *, whiten: bool = False, missing: str | None = None, **opening: Unpack[OpeningOptions]
    ) -> Any:
        """Scores of samples along the components.

        Parameters
        ----------
        samples : ndarray or dask array of shape (n, *raw_shape) or (n, p), DataArray, sparse matrix, collection or path
            Raw samples: the model's preparation is applied to them. Arrays are taken at their values; a collection
            must be of the dtype kind the model was fitted on. The axes of one sample in an `xarray.DataArray` are
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
        **opening
            ``key``, ``select`` ...: how a path is opened, see `Opening`; by default as the samples of the fit were, see
            the parameter `like` of `open_collection`. ``coordinates`` says whether the coordinates of samples must be
            those of the model, in any order, or pixels are taken by place, as those without coordinates are.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n, k)
            numpy for numpy and sparse, a DataArray of axes (..., component) for one, else lazy. float32 for integers of
            up to 16 bits and float32, else float64.

        Raises
        ------
        ModelError
            If the samples are not of the raw shape or kind the model was fitted on, some but not all of their axes have
            the model's names, or their coordinates are other than the model's; or if the model takes the means of
            groups or a trend off samples, and they are of no group that it knows, or come without dates or labels.
        DataError
            If a feature of a sample is NaN or infinite and `missing` does not allow it; where the result is lazy, when
            it is computed.
        """
        k, units = self.n_scores, None if whiten else units_of(self, self.preparation)
        scores = MapResult((COMPONENT,), "scores", component_numbers(k), units, shape=(k,))
        subspace = self._first(None, missing)
        function = partial(subspace.project, whiten=whiten)
        return self._mapped(samples, function, scores, opening=opening, missing=subspace.missing)

    def inverse_transform(self, scores: Any, *, whiten: bool = False, coordinates: str = CHECK) -> Any:
        """Images from scores: ``mean + scores @ components``.

        Parameters
        ----------
        scores : ndarray, dask array or DataArray of shape (n, j)
            Scores along the first j components, j <= k. A DataArray goes by the numbers along its axis ``component``,
            in any order, with 0 along those that are left out: ``scores.sel(component=[1, 3])``.
        whiten : bool
            Whether the scores were whitened.
        coordinates : {"check", "ignore"}
            Whether to go by the components' numbers where scores have them, or by place.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n, *sample_shape)
            Prepared images, scale and standardize undone; NaN outside the mask. A model that normalizes gives
            normalized images: what each sample's own mean or norm was, scores do not say. One that takes anomalies, or
            a trend, off samples gives anomalies: scores do not say of which group or date they are. `reconstruct` and
            `write_reconstruction` add the means of groups and the trend again.

        Raises
        ------
        RequestError
            If scores are no array of two axes, or are of more components than there are, or numbered otherwise.
        DataError
            If a score is NaN or infinite; where the result is lazy, when it is computed.
        """
        if is_data_array(scores):
            given = NamedSamples.scores(scores)
            given = given.numbered(self.n_components) if is_checked(coordinates) else given
            images = self.inverse_transform(given.values, whiten=whiten)
            units = units_of(self, replace(self.preparation, scale=None, standardize=False))
            return given.named(images, MapResult(self.sample_dims, "images", self.coordinates, units))
        scores = scores if is_dask_array(scores) else np.asanyarray(as_source(scores))
        if scores.ndim != 2 or not min(1, self.n_components) <= scores.shape[1] <= self.n_components:
            raise RequestError(
                f"scores have shape {tuple(scores.shape)}; give n rows of 1 to {self.n_components} components, as an "
                "array; write_reconstruction takes files."
            )
        function = partial(images_of, self.subspace, frame=self.frame, whiten=whiten)  # of samples of unknown dates
        dtype, named = np.float32 if scores.dtype == np.float32 else np.float64, partial(_numbered, source="the scores")
        return map_array(scores, function, shape=self.sample_shape, dtype=dtype, named=named)

    def reconstruct(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Samples projected on the first components and back: what the model keeps of them.

        Parameters
        ----------
        samples, missing
            As for `transform`. Images are NaN where scores are.
        n_components : int, optional
            How many components to use; all by default.
        **opening
            As for `transform`.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n, *sample_shape)
            Prepared images, all steps after the mask undone; NaN outside the mask. A DataArray keeps its coordinates,
            cut or averaged as the pixels are, in the model's order; those of the samples fitted stand where it has
            none.
        """
        return self._images(samples, self._first(n_components, missing), opening)

    def residual(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Return each prepared sample less its reconstruction.

        Parameters and shapes are those of `reconstruct`, in the same units: the two add up to the prepared samples
        as they are inside the mask, before any later step.
        """
        return self._images(samples, self._first(n_components, missing), opening, residual=True)

    def reconstruction_error(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Squared distance of each prepared sample from its reconstruction, shape (n,), float64.

        In features as analysed: inside the mask, scaled and normalized.
        Over the samples fitted it averages to (n - 1)/n times the sum of the variances left out.
        """
        subspace = self._first(n_components, missing)
        return self.number_of_each(
            samples, subspace.squared_error, "reconstruction_error", missing=subspace.missing, **opening
        )

    def hotelling_t2(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Hotelling's T2 of each sample, shape (n,), float64: how far out it lies along the components.

        The sum of its squared scores, each over its component's variance; components whose variance is rounding are
        left out. Over the samples fitted it averages to (n - 1)/n a component. What lies beside the components is
        `reconstruction_error`'s.
        """
        subspace = self._first(n_components, missing)
        return self.number_of_each(samples, subspace.t2, "hotelling_t2", missing=subspace.missing, **opening)

    def number_of_each(
        self, samples: Any, function: RowMap, name: str, /, *, missing: str = "error", **opening: Unpack[OpeningOptions]
    ) -> Any:
        """Map each sample's row of features to a number: shape (n,), float64, lazily as `transform` does.

        Parameters
        ----------
        samples
            As for `transform`.
        function : callable
            From prepared rows, (m, p), to m numbers.
        name : str
            Name of a DataArray of the result.
        missing : str
            "error" refuses samples in which values are missing; another rule leaves them to `function`.
        **opening
            As for `transform`.
        """
        result = MapResult((), name, dtype=np.float64)
        return self._mapped(samples, function, result, opening=opening, missing=missing)

    @property
    def makes_images(self) -> bool:
        """True where images can be made of scores; False for models of a matrix of pairs of samples."""
        return True

    def rule_for(self, missing: str | None) -> str:
        """Return the treatment of samples with missing values: as asked for, or as when the model was fitted.

        Raises
        ------
        RequestError
            If there is no such rule.
        """
        if missing is None:
            missing = ((self.provenance.get("plan") or {}).get("request") or {}).get("missing", "error")
        if missing not in MISSING:
            raise RequestError(
                f"missing {missing!r} is not one of {', '.join(MISSING)}.{nearest(str(missing), list(MISSING))}"
            )
        if missing == "em" and self.preparation.normalize is not None:
            raise RequestError(
                f"{self.name} normalizes each sample by all its values, so missing 'em' cannot fill any in; use "
                "'drop-samples', which gives samples that lack some scores of NaN."
            )
        if missing == "em" and (self.preparation.maps or not self.makes_images):
            raise RequestError(
                f"{self.name} compares samples as a whole, so missing 'em' cannot fill single values in; use "
                "'drop-samples', which gives samples that lack some scores of NaN."
            )
        return "error" if missing == "drop-features" else missing

    def count_of(self, asked: int | None) -> int:
        """Return a number of components as asked for, all by default; refuses what there is not."""
        most = self.n_components
        try:
            count = most if asked is None else as_index(asked)
        except TypeError:
            count = 0
        if not min(1, most) <= count <= most:
            raise RequestError(f"n_components={asked!r} is no whole number between 1 and {most}, what {self.name} has.")
        return count

    def _first(self, asked: int | None, missing: str | None = None) -> Subspace:
        subspace = replace(self.subspace, missing=self.rule_for(missing))
        return subspace if asked is None else subspace.first(self.count_of(asked))

    def _images(self, samples: Any, subspace: Subspace, opening: OpeningOptions, *, residual: bool = False) -> Any:
        """Return images made of samples that are not normalized yet."""
        function = OfNumbered(partial(reconstructions_of, subspace, residual=residual), self.frame)
        images = MapResult(self.sample_dims, coordinates=self.coordinates, shape=self.sample_shape)
        steps = self.preparation.unnormalized
        return self._mapped(samples, function, images, steps, opening=opening, missing=subspace.missing)

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
        """Map prepared rows of what was given: numpy and sparse at once, the rest lazily; named where samples are.

        Arrays have `keys` where groups or dates of their samples are known.
        """
        samples = as_source(samples, self.raw_shape)
        is_here = isinstance(samples, np.ndarray) or is_sparse(samples)
        if any(value is not None for option, value in opening.items() if option != "coordinates"):
            samples = open_collection(samples, like=self, **opening)
        preparation, checked = preparation or self.preparation, is_checked(opening.get("coordinates", CHECK))
        how: dict[str, Any]
        if is_dataset(samples) and (names := variables_fitted(self.sample_dims, self.coordinates)) is not None:
            given_as = one_array(samples, names, self.sample_dims, self.name)
            how = {"keys": keys, "opening": opening, "missing": missing}
            made = self._mapped(given_as, function, result, preparation, source, **how)
            return by_variable(made, samples) if VARIABLE in result.dims else made
        if is_data_array(samples):
            given = NamedSamples.samples(samples, self.sample_dims, self.raw_shape)
            if checked:
                given = given.ordered(self._orders_of(given.grid, given.sample_shape, "the DataArray"))
            keys = keys_of(preparation, given.facts("the DataArray"))
            how = {"keys": keys, "opening": {"coordinates": IGNORE}, "missing": missing}
            made = self._mapped(given.values, function, result, preparation, "the DataArray", **how)
            along = {**result.coordinates, **given.prepared_coordinates(preparation)}
            return given.named(made, replace(result, coordinates=along))
        if isinstance(samples, np.ndarray) or is_dask_array(samples):
            if any(math.isnan(length) for length in samples.shape):
                raise ModelError("the dask array has chunks of unknown size; call its compute_chunk_sizes() first.")
            shape = given_shape(samples.shape, self.preparation, self.raw_shape, self.name)
            frame = replace(self.frame, preparation=preparation, raw_shape=shape, keys=keys)
            dtype = result.dtype or working_dtype(frame.row_dtype(samples.dtype), self.components.dtype)
            subject = source or f"{'numpy' if isinstance(samples, np.ndarray) else 'dask'} array"
            if frame.lacks_keys:
                raise lacking(preparation, f"the {subject}" if source is None else subject)
            function = function.of(keys) if isinstance(function, OfNumbered) else function
            how = {"named": partial(_numbered, source=subject), "frame": frame, "missing": missing}
            return map_array(samples, function, shape=result.shape, dtype=dtype, **how)
        collection = self.prepared(samples, preparation, coordinates=CHECK if checked else IGNORE)
        dtype = result.dtype or working_dtype(collection.dtype, self.components.dtype)
        function = function.of(collection.frame.keys) if isinstance(function, OfNumbered) else function
        mapped = map_now if is_here else map_collection
        return mapped(collection, function, shape=result.shape, dtype=dtype, missing=missing)

    def _orders_of(self, grid: Grid, shape: tuple[int, ...], subject: str) -> dict[int, Order]:
        """The order along each axis in which raw samples of a shape lie on the model's grid; see `raw_orders`."""
        steps = self.preparation.of_images
        try:
            fits = steps.shape_of(shape) == self.sample_shape
        except RequestError:
            fits = False
        if not fits:  # which is said, with the shapes, where samples are prepared
            return {}
        return raw_orders(steps, grid, shape, Grid(self.sample_dims, self.coordinates), subject, self.name)

    def prepared(
        self, source: Any, preparation: Preparation | None = None, **opening: Unpack[OpeningOptions]
    ) -> Prepared:
        """Open a raw collection as this model sees it; see `open_collection` for what can be opened.

        Parameters
        ----------
        source
            Raw samples.
        preparation : Preparation, optional
            Some of the model's steps only; all by default.
        **opening
            As for `transform`.

        Raises
        ------
        ModelError
            If it is not of the raw shape and kind the model was fitted on, or not on its grid, or it is of
            image files and was opened to be read in another way than those.
        """
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
        """Return raw samples to take by number, their pixels in the model's order.

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
            given = NamedSamples.samples(samples, self.sample_dims, self.raw_shape)
            return given.ordered(self._orders_of(given.grid, given.sample_shape, "the DataArray")).values
        return self.prepared(samples).raw if _is_opened(samples) else samples

    # -- files

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

        Rows are in the collection's order; all but ``.npy`` carry the samples' names where they have any, Zarr and
        Parquet (which needs ``pip install "streampca[parquet]"``) the coordinates along the samples, too. `missing` is
        as for `transform`, `options` are those of `streampca.Run`, and ``key``, ``select`` ... as for `transform`. A
        Parquet file is begun again after a kill. Workers write their own rows to the output, which they must reach, but
        csv and Parquet files are written by this process alone.

        Raises
        ------
        RequestError
            If the output is the source, the model or what that was fitted on, holds it or lies in it.
        OutputError
            If the output exists, or the checkpoint is of another run (and `overwrite` is false), or it cannot be
            written.
        BudgetError
            If not even pieces of the components and one sample fit the budget.
        """
        run, opening = run_and_opening(self.write_scores, options, unused=(*OF_FITS, "output"))
        output, collection = self._output(path, source), self.prepared(source, **opening)
        write_projection(
            Projection(self._first(None, missing), self.frame, collection, whiten, grid_bytes=self._grid_bytes),
            output,
            model=self.name,
            dims=(COMPONENT,),
            coordinates=component_numbers(self.n_scores),
            run=run,
        )

    @property
    def _grid_bytes(self) -> int:
        """Bytes of the model's coordinates along several axes, and of as many of the samples compared with them."""
        arrays = [np.asarray(each.values) for each in self.coordinates.values()]
        return 2 * sum(array.nbytes for array in arrays if array.ndim > 1)

    def _output(self, path: str | os.PathLike[str], source: Any) -> str:
        """The path of an output, which is neither the source nor this model nor what it was fitted on."""
        output = expanded(path)
        check_apart([output], [*paths_of(source), self.name])
        check_apart([output], fitted_on(self.provenance), "the model was fitted on")
        return output

    def _frame_of(self, collection: Collection) -> Frame:
        """Return the frame with groups and dates of a collection's samples, or of scores of such; see `keys_of`."""
        if isinstance(collection, Prepared):
            return replace(self.frame, keys=collection.frame.keys)
        return replace(self.frame, keys=keys_of(self.preparation, SampleFacts.of(collection)))

    def write_reconstruction(
        self,
        source: Any,
        path: str | os.PathLike[str],
        *,
        n_components: int | None = None,
        residual: bool = False,
        whole: bool = False,
        whiten: bool = False,
        missing: str | None = None,
        **options: Unpack[FitOptions],
    ) -> Compression:
        """Write images reconstructed from a collection, or from its scores, to a file within a memory budget.

        The name ends in ``.zarr``, ``.npy``, or ``.tif``: float32 pages for ImageJ and Fiji, an OME-TIFF above 4 GiB,
        for colours, or if the name ends in ``.ome.tif``.

        A collection of k features each, k components, is taken for scores; images are read and projected first.
        Scores in Zarr say themselves whether they are whitened; of others `whiten` says so. With `residual`, what
        reconstruction leaves of each sample is written in its place: samples are needed for it, not scores. With
        `whole`, samples that are patches of pictures are put back: a pixel is the mean of all that hold it, as by
        `from_patches`. The rest is as for scores.

        Returns
        -------
        Compression
            Of these samples and so many components; the error was added up on the way. Scores do not say it: with
            them it is that of the samples fitted. Where components do not fit in memory it is what is left of the
            samples' squares less those of their scores: with float32 components, an rmse of less than about 3e-4 of
            the samples' standard deviation is rounding.

        Raises
        ------
        RequestError
            As `write_scores`; or if residuals are asked for and scores given, or pictures and samples that are no
            patches.
        OutputError
            As `write_scores`.
        BudgetError
            As `write_scores`; with `whole`, if not all components fit beside one sample and the lines of a picture
            that are put together: give more memory or fewer `n_components`, or write the patches, and put them
            together with `from_patches`, which takes and fills arrays on disk.
        """
        run, opening = run_and_opening(self.write_reconstruction, options, unused=(*OF_FITS, "output"))
        output, subspace = self._output(path, source), self._first(n_components, missing)
        raw = open_collection(source, like=self, **opening)
        collection = self.check_reconstruction(raw, n_components=n_components, residual=residual, whole=whole)
        given = self._holds_scores(raw)
        whitened = given and bool(raw.attributes.get("whiten", whiten))
        windows = patches_of(collection, self.frame).windows if whole else None
        frame = self._frame_of(collection)
        squares = write_projection(
            Projection(subspace, frame, collection, whitened, given, True, residual, windows, self._grid_bytes),
            output,
            model=self.name,
            dims=self.sample_dims,
            coordinates={**self.coordinates, **({} if given else collection.coordinates)},
            run=run,
        )
        return written_compression(self, collection, len(subspace.components), squares)

    def _ordered_scores(self, scores: Collection) -> Collection:
        """Scores in the order of the model's components, by their numbers where they have them."""
        axes = scores.axes or ()
        if not scores.compares_coordinates or axes != (COMPONENT,):
            return scores
        wanted = Grid(axes, component_numbers(self.n_components))
        orders = orders_between(Grid(axes, scores.coordinates), wanted, scores.source, self.name, RequestError)
        return Reordered(scores, orders) if orders else scores

    def _holds_scores(self, raw: Collection) -> bool:
        return raw.sample_shape == (self.n_components,) != self.raw_shape

    def check_reconstruction(
        self, raw: Collection, *, n_components: int | None = None, residual: bool = False, whole: bool = False
    ) -> Collection:
        """Return what `write_reconstruction` reads, scores or samples as they are to be projected, or refuse it.

        Raises
        ------
        ModelError, RequestError
            As `write_reconstruction`, before anything is read or written.
        """
        self._first(n_components)
        from_scores = self._holds_scores(raw)
        if from_scores and residual:
            raise RequestError(
                f"{raw.source} holds scores, which do not say what is left of the samples; give the samples "
                "themselves for --residual (residual=True)."
            )
        collection = self._ordered_scores(raw) if from_scores else self.prepared(raw, self.preparation.unnormalized)
        self._frame_of(collection)
        if whole:
            patches_of(collection, self.frame)
        return collection


def _is_opened(samples: Any) -> bool:
    """Return whether samples are a collection, a Dataset, or paths of one."""
    paths = samples if isinstance(samples, (list, tuple)) and len(samples) else [samples]
    is_open = isinstance(samples, Collection) or is_dataset(samples)
    return is_open or all(isinstance(path, (str, os.PathLike)) for path in paths)


def _numbered(index: int, source: str) -> str:
    """Name a sample of an array by its number."""
    return f"sample {index} of {source}"
