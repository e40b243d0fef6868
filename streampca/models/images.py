"""Models that make images: from scores, and from samples, as sums of a mean and patterns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np

from ..errors import RequestError
from ..kinds.opening import OpeningOptions
from ..preprocessing import Frame, Prepared
from ..preprocessing.run_options import OF_FITS, FitOptions, run_and_opening
from ..preprocessing.sample_keys import SampleFacts, keys_of
from ..readers import Collection, open_collection
from ..readers.coordinates import CHECK, Grid, is_checked, orders_between
from ..readers.detect import is_data_array
from ..readers.source import as_source
from ..readers.views.reordered import Reordered
from .components import ComponentsModel, CountedModel
from .compression import Compression, check_compared, fitted_compression, measured_compression, written_compression
from .data_arrays import COMPONENT, MapResult, NamedSamples, component_numbers, units_of
from .model import Model, numbered
from .subspace import Subspace, multiplied_there
from .transform import (
    OfNumbered,
    Projection,
    images_of,
    is_dask_array,
    map_array,
    patches_of,
    reconstructions_of,
    write_projection,
)


def array_of_scores(scores: Any, most: int) -> Any:
    """Return scores along at most `most` components as an array, (n, j); refuse other shapes."""
    array = scores if is_dask_array(scores) else np.asanyarray(as_source(scores))
    if array.ndim != 2 or not min(1, most) <= array.shape[1] <= most:
        raise RequestError(
            f"scores have shape {tuple(array.shape)}; give n rows of 1 to {most} components, as an array; "
            "write_reconstruction takes files."
        )
    return array


class InvertibleModel(Model):
    """Model whose scores can be converted back to images: a mean plus a weighted sum of patterns."""

    def inverse_transform(
        self, scores: Any, *, whiten: bool = False, coordinates: str = CHECK, device: str | None = None
    ) -> Any:
        """Return images from scores: ``mean + scores @ components``.

        Parameters
        ----------
        scores : ndarray, dask array or DataArray of shape (n, j)
            Scores along the first j components, j <= k. The numbers along the axis ``component`` of a DataArray
            say which component a score belongs to; omitted ones count as 0: ``scores.sel(component=[1, 3])``.
        whiten : bool
            True if the scores were whitened.
        coordinates : {"check", "ignore"}
            "check" matches scores to components by their numbers, if they have them; "ignore" by position.
        device : str, optional
            As for `transform`.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n, *sample_shape)
            Prepared images, scale and standardize undone; NaN outside the mask. A model that normalizes gives
            normalized images, as scores do not contain the mean or norm of a sample. One that subtracts means of groups
            or a trend gives anomalies, as scores do not contain the group or date; `reconstruct` and
            `write_reconstruction` add the means of groups and the trend again.

        Raises
        ------
        RequestError
            If scores do not have two axes, have more columns than there are components, or have other numbers.
        DataError
            If a score is NaN or infinite; where the result is lazy, when it is computed.
        """
        if is_data_array(scores):
            named_scores = NamedSamples.scores(scores)
            units = units_of(self, replace(self.preparation, scale=None, standardize=False))
            result = MapResult(self.sample_dims, "images", self.coordinates, units)
            named_scores.check(result)
            named_scores = named_scores.numbered(self.n_scores) if is_checked(coordinates) else named_scores
            images = self.inverse_transform(named_scores.values, whiten=whiten, device=device)
            return named_scores.named(images, result)
        scores = array_of_scores(scores, self.n_scores)
        # Without dates or groups of the samples, which scores do not have: anomalies stay anomalies.
        function = partial(images_of, multiplied_there(self.subspace, device), frame=self.frame, whiten=whiten)
        dtype, named = np.float32 if scores.dtype == np.float32 else np.float64, partial(numbered, source="the scores")
        return map_array(scores, function, shape=self.sample_shape, dtype=dtype, named=named)


class ReconstructingModel(InvertibleModel, CountedModel):
    """Model that reconstructs samples, and writes images, from the span of its components."""

    def reconstruct(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        device: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Return images of samples from their scores along the first components: projections where all are used.

        Parameters
        ----------
        samples, missing, device
            As for `transform`. Images are NaN where scores are.
        n_components : int, optional
            Number of first components; all by default.
        **opening
            As for `transform`.

        Returns
        -------
        ndarray, dask array or DataArray of shape (n, *sample_shape)
            Prepared images, all steps after the mask undone; NaN outside the mask. A DataArray keeps its coordinates,
            cropped or averaged as the pixels are, in the model's order; without any, it gets the model's.
        """
        return self._images(samples, multiplied_there(self._first(n_components, missing), device), opening)

    def residual(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        device: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Return each prepared sample minus its reconstruction.

        Parameters, shapes and units are those of `reconstruct`: the two add up to the prepared samples inside the mask,
        before any later step.
        """
        subspace = multiplied_there(self._first(n_components, missing), device)
        return self._images(samples, subspace, opening, residual=True)

    def _images(self, samples: Any, subspace: Subspace, opening: OpeningOptions, *, residual: bool = False) -> Any:
        """Return reconstructions or residuals; samples are normalized inside, to undo it with their own numbers."""
        function = OfNumbered(partial(reconstructions_of, subspace, residual=residual), self.frame)
        images = MapResult(self.sample_dims, coordinates=self.coordinates, shape=self.sample_shape)
        # Rows are normalized inside the map, which keeps the numbers that undo it.
        steps = self.preparation.unnormalized
        return self._mapped(samples, function, images, steps, opening=opening, missing=subspace.missing)

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

        A source whose samples have shape (k,), for k components, is read as scores; other sources are projected first.
        Zarr arrays of scores record whether they are whitened; for other formats `whiten` says so. `residual` writes
        each sample minus its reconstruction, and requires samples. `whole` assembles pictures from samples that are
        patches: a pixel is the mean over all patches that contain it, as by `from_patches`. The other parameters are
        those of `write_scores`.

        Returns
        -------
        Compression
            Figures of these samples and components, with the error measured while writing; from scores, the error is
            that of the fitted samples. If components do not fit in memory, the error is the difference between the
            squares of samples and of scores: with float32 components, an rmse below about 3e-4 of the samples' standard
            deviation is rounding.

        Raises
        ------
        RequestError
            As `write_scores`; or if `residual` is used with scores, or `whole` with samples that are not patches.
        OutputError
            As `write_scores`.
        BudgetError
            As `write_scores`; with `whole`, if the components do not fit in memory beside one sample and the lines of
            a picture: give more memory or fewer `n_components`, or write the patches and assemble them with
            `from_patches`, which reads and fills arrays on disk.
        """
        run, opening = run_and_opening(self.write_reconstruction, options, unused=(*OF_FITS, "output"))
        run.check_device()
        output, subspace = self._output(path, source), self._first(n_components, missing)
        subspace = replace(subspace, device=run.device or "")
        raw = open_collection(source, like=self, **opening)
        collection = self.check_reconstruction(raw, n_components=n_components, residual=residual, whole=whole)
        from_scores = self._holds_scores(raw)
        whitened = from_scores and bool(raw.attributes.get("whiten", whiten))
        windows = patches_of(collection, self.frame).windows if whole else None
        frame = self._frame_of(collection)
        squares = write_projection(
            Projection(subspace, frame, collection, whitened, from_scores, True, residual, windows, self._grid_bytes),
            output,
            model=self.name,
            dims=self.sample_dims,
            coordinates={**self.coordinates, **({} if from_scores else collection.coordinates)},
            run=run,
        )
        return written_compression(self.shown, collection, subspace.n_components, squares)

    def _ordered_scores(self, scores: Collection) -> Collection:
        """Return scores in the order of the model's components, matched by their numbers if they have them."""
        axes = scores.axes or ()
        # Beside an axis of samples with this name, that of components is read with underscores after it.
        if not scores.compares_coordinates or [axis.rstrip("_") for axis in axes] != [COMPONENT]:
            return scores
        numbers = Grid(axes, {axes[0]: component_numbers(self.n_components)[COMPONENT]})
        orders = orders_between(Grid(axes, scores.coordinates), numbers, scores.source, self.name, RequestError)
        return Reordered(scores, orders) if orders else scores

    def _holds_scores(self, raw: Collection) -> bool:
        """Return whether samples have the shape of scores; where raw samples have it too, they are samples."""
        return raw.sample_shape == (self.n_components,) != self.raw_shape

    def _frame_of(self, collection: Collection) -> Frame:
        """Return the frame with the groups and dates of samples, or of those that scores belong to; see `keys_of`."""
        if isinstance(collection, Prepared):
            return replace(self.frame, keys=collection.frame.keys)
        return replace(self.frame, keys=keys_of(self.preparation, SampleFacts.of(collection)))

    def check_reconstruction(
        self, raw: Collection, *, n_components: int | None = None, residual: bool = False, whole: bool = False
    ) -> Collection:
        """Return the collection that `write_reconstruction` reads: ordered scores, or samples prepared for projection.

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


class ImageModel(ReconstructingModel, ComponentsModel):
    """Model of a mean and components whose reconstructions are projections on the span of the first components."""

    def as_images(self) -> ComponentsModel:
        """Return the model itself; see `Model.as_images`."""
        return self

    def compression(
        self,
        samples: Any = None,
        /,
        ladder: Sequence[int] | None = None,
        *,
        against: Any = None,
        peak: float | None = None,
        memory: int | str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Compression:
        """Compare the bytes of scores and components with those of samples, and measure the error of reconstructions.

        Parameters
        ----------
        samples
            A raw collection, or anything that `open_collection` opens; read once, within the budget. By default the
            fitted samples: their errors follow from the variances, and nothing is read.
        ladder : sequence of int, optional
            Numbers of components; all by default, which costs no more.
        against
            Raw samples to compare the reconstructions with, one for each of `samples`, in their order: for example the
            same images without noise. By default the samples themselves.
        peak : float, optional
            Range of values of prepared samples, for the PSNR; above 0. By default 2^bits - 1 times the scale for
            integers, and unknown for floats.
        memory : int or str, optional
            Budget; half of what the machine allows by default.
        **opening
            As for `transform`; how `samples`, and `against`, are opened.

        Returns
        -------
        Compression
            ``best`` is the number of components whose reconstructions are nearest to `against`.

        Raises
        ------
        RequestError
            If the ladder exceeds the number of components, the peak is not positive, or `against` has no samples.
        ModelError
            If samples have another shape or kind than the model was fitted on, or another number than `against`.
        BudgetError
            If not even single samples fit the budget.
        """
        check_compared(samples, against, peak)
        self.count_of(None)
        if samples is None:
            return fitted_compression(self, ladder, peak)
        other = None if against is None else self.prepared(against, **opening)
        prepared = self.prepared(samples, **opening)
        return measured_compression(self, prepared, other, ladder, peak=peak, memory=memory)
