"""`InvertibleModel` and `ImageModel`: images made of scores, and of samples projected on components."""

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
from .components import ComponentsModel
from .compression import Compression, check_compared, fitted_compression, measured_compression, written_compression
from .data_arrays import COMPONENT, MapResult, NamedSamples, component_numbers, units_of
from .model import Model, numbered
from .subspace import Subspace
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
    """Return scores along components, of which there are `most`, as an array, (n, j); refuse what is none."""
    array = scores if is_dask_array(scores) else np.asanyarray(as_source(scores))
    if array.ndim != 2 or not min(1, most) <= array.shape[1] <= most:
        raise RequestError(
            f"scores have shape {tuple(array.shape)}; give n rows of 1 to {most} components, as an array; "
            "write_reconstruction takes files."
        )
    return array


class InvertibleModel(Model):
    """Model whose scores are those of images that can be made of them: sums of a mean and patterns."""

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
            given = given.numbered(self.n_scores) if is_checked(coordinates) else given
            images = self.inverse_transform(given.values, whiten=whiten)
            units = units_of(self, replace(self.preparation, scale=None, standardize=False))
            return given.named(images, MapResult(self.sample_dims, "images", self.coordinates, units))
        scores = array_of_scores(scores, self.n_scores)
        function = partial(images_of, self.subspace, frame=self.frame, whiten=whiten)  # of samples of unknown dates
        dtype, named = np.float32 if scores.dtype == np.float32 else np.float64, partial(numbered, source="the scores")
        return map_array(scores, function, shape=self.sample_shape, dtype=dtype, named=named)


class ImageModel(InvertibleModel, ComponentsModel):
    """Model that reconstructs images from the span of its components."""

    def as_images(self) -> ComponentsModel:
        """Return the model itself; see `Model.as_images`."""
        return self

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

    def _images(self, samples: Any, subspace: Subspace, opening: OpeningOptions, *, residual: bool = False) -> Any:
        """Return images made of samples that are not normalized yet."""
        function = OfNumbered(partial(reconstructions_of, subspace, residual=residual), self.frame)
        images = MapResult(self.sample_dims, coordinates=self.coordinates, shape=self.sample_shape)
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

    def _frame_of(self, collection: Collection) -> Frame:
        """Return the frame with groups and dates of a collection's samples, or of scores of such; see `keys_of`."""
        if isinstance(collection, Prepared):
            return replace(self.frame, keys=collection.frame.keys)
        return replace(self.frame, keys=keys_of(self.preparation, SampleFacts.of(collection)))

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
