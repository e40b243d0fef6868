"""`export_components`: mean and components as pictures for other programs, written page by page in bounded memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arrays import Array
from ..readers import check_apart, fitted_on
from ..signals import safe_point, stopping_on_signals
from ..storage.disk import expanded
from ..storage.free_space import check_free_space
from ..storage.locks import output_lock
from ..storage.outputs import check_ending, check_file, check_output, open_writer, staged
from ..storage.pixel_sizes import channel_names, holds_channels
from ..storage.stored_names import renamed_axes, stored_names
from ..storage.tiff_pages import ENDINGS as TIFF
from ..storage.tiff_pages import PageLayout, is_another_tiff, is_large, is_named_ome, scaled
from ..storage.writers import OutputArray
from ..units import MIB, format_shape
from .components import ComponentsModel
from .images import ImageModel, InvertibleModel
from .load import load_model
from .model import Model, require
from .ome_metadata import component_labels

READ = 64 * MIB  # bytes of components read at a time
ENDINGS = (*TIFF, ".npy")
COLOURS = ("red", "green", "blue", "alpha")


@stopping_on_signals()
def export_components(
    model: Model | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    n_components: int | None = None,
    mean: bool = True,
    overwrite: bool = False,
) -> None:
    """Write a model's mean and components to a file other programs open.

    Parameters
    ----------
    model : Model or path
        If it is a path, a few components are in memory at a time.
    path : path
        ``.tif`` or ``.tiff``: float32 pages for ImageJ and Fiji, labelled with each component's share of the variance,
        with pixel sizes and channel names from the model's coordinates; NaN outside the mask. Components of plain
        pictures are channels, each with its own contrast; those of stacks and of colour pictures are frames (T), with
        slices (Z) and channels (C) inside. Above 4 GiB, or if the name ends in ``.ome.tif``, an OME-TIFF. ``.npy``: one
        array (images, *sample_shape), as stored.
    n_components : int, optional
        Number of first components; all by default.
    mean : bool, default=True
        Write the mean as the first image.
    overwrite : bool, default=False
        Replace an existing file.

    Raises
    ------
    RequestError
        If there are fewer components, or the name has another ending.
    OutputError
        If the file exists (and `overwrite` is false) or cannot be written.
    ModelError
        If the path holds no complete model.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> model = streampca.fit(load_digits().images, n_components=10)
    >>> streampca.export_components(model, "components.tif")
    """
    path = expanded(path)
    with output_lock(path):
        suffix = _check_path(path, overwrite)
        opened = model if isinstance(model, Model) else load_model(model, components=False)
        if not isinstance(opened, InvertibleModel):
            require(opened, ImageModel, "images are made of principal components")
        image_model = opened.as_images()
        count = image_model.count_of(n_components)
        check_apart([path], [image_model.name])
        check_apart([path], fitted_on(image_model.provenance), "the model was fitted on")
        pictures = _Pictures(image_model, count, mean)
        if suffix == ".npy":
            _write_npy(pictures, path, overwrite)
        else:
            _write_tiff(pictures, path)


def _check_path(path: str, overwrite: bool) -> str:
    """Return the ending of an output; refuse others, and a file that would be lost."""
    suffix = check_ending(path, ENDINGS)
    if suffix == ".npy":
        check_output(path, "components", overwrite=overwrite)
    else:
        check_file(path, overwrite=overwrite, what="pages of components", is_another=is_another_tiff)
    return suffix


def _write_npy(pictures: _Pictures, path: str, overwrite: bool) -> None:
    dtype = np.result_type(pictures.model.components.dtype, *([pictures.model.mean.dtype] if pictures.mean else []))
    dims = pictures.model.sample_dims
    dims = renamed_axes(dims, stored_names(dims, {"component"}))
    table = OutputArray("components", pictures.shape, ("component", *dims), dtype)
    with open_writer(path, table, overwrite=overwrite) as sink:
        for number, image in enumerate(pictures.images()):
            sink.write(number, image[None])


# -- TIFF


def _write_tiff(pictures: _Pictures, path: str) -> None:
    """Write the pages, after a first read of the components for the contrast in ImageJ's metadata."""
    import tifffile

    large = is_large(pictures.pages.shape)
    ome = large or is_named_ome(path)
    check_free_space(path, 4 * math.prod(pictures.pages.shape), path)
    options = scaled(pictures.pages, pictures.model.coordinates, ome=ome)
    options["metadata"] |= pictures.ome() if ome else pictures.imagej()
    with staged(path) as partial, tifffile.TiffWriter(partial, imagej=not ome, ome=ome, bigtiff=large) as file:
        file.write(pictures.planes(), shape=pictures.pages.shape, dtype=np.float32, photometric="minisblack", **options)


class _Pictures:
    """Mean and components of a model, read a few at a time, as pages (y, x) in ImageJ's order of axes, T Z C Y X.

    Parameters
    ----------
    model : ComponentsModel
        Model in memory, or in its store.
    first : int
        Number of first components.
    mean : bool
        Put the mean before them.
    """

    def __init__(self, model: ComponentsModel, first: int, mean: bool) -> None:
        self.model, self.first, self.mean = model, first, mean
        inside = list(model.sample_shape)
        self.shape = (first + mean, *inside)
        channels = [axis for axis, dim in enumerate(model.sample_dims) if holds_channels(dim)]
        self._colour = channels[-1] if channels and len(inside) > 2 else None
        colours = inside.pop(self._colour) if self._colour is not None else 1
        y, x = (1, *inside)[-2:]
        depth = int(np.prod(inside[:-2], dtype=np.int64))
        self._stack = (depth, colours, y, x)
        self._frames = depth > 1 or colours > 1
        names = [dim for axis, dim in enumerate(model.sample_dims) if axis != self._colour]
        slices = names[0] if len(names) == 3 else ""
        colour = "" if self._colour is None else model.sample_dims[self._colour]
        inner = [axis for axis in ((depth, "Z", slices), (colours, "C", colour)) if axis[0] > 1]
        axes = ("T" if self._frames else "C") + "".join(axis for _, axis, _ in inner) + "YX"
        dims = ("", *(dim for _, _, dim in inner), *("", *names)[-2:])
        shape = (self.shape[0], *(length for length, _, _ in inner), y, x)
        self.pages = PageLayout(shape, axes, dict(zip(axes, dims, strict=True)))

    def images(self) -> Iterator[Array]:
        """Yield the pictures in order, each of the sample's shape."""
        if self.mean:
            yield self.model.mean
        # Several at a time: a chunk on disk holds several components, which are decoded together.
        step = max(1, READ // (8 * math.prod(self.shape[1:])))
        for start in range(0, self.first, step):
            safe_point()
            yield from self.model.components[start : min(start + step, self.first)]

    def planes(self) -> Iterator[Array]:
        """Yield the pages in order, float32."""
        depth, colours, y, x = self._stack
        for image in self.images():
            if self._colour is not None:
                last = np.moveaxis(image, self._colour, -1).reshape(depth, y, x, colours)
                image = np.moveaxis(last, -1, 1)
            yield from np.ascontiguousarray(image, np.float32).reshape(-1, y, x)

    def _labels(self) -> list[str]:
        """Return the name of each picture: ``"mean"``, then ``"component 1: 9.7 %"`` with its share of the variance."""
        names = component_labels(self.model.explained_variance_ratio[: self.first])
        return ["mean", *names] if self.mean else names

    def _page_labels(self) -> list[str]:
        """Return the name of each page: the picture's, and the slice and colour where there are several."""
        depth, colours = self._stack[:2]
        numbered = COLOURS if colours in (3, 4) else [f"channel {number}" for number in range(1, colours + 1)]
        channels = channel_names(self.pages.dims.get("C", ""), self.model.coordinates) or numbered
        return [
            label + (f", slice {z + 1}" if depth > 1 else "") + (f", {channels[c]}" if colours > 1 else "")
            for label in self._labels()
            for z in range(depth)
            for c in range(colours)
        ]

    def imagej(self) -> dict[str, Any]:
        """Return the metadata of a stack for ImageJ: labels, and contrast that shows zero as middle grey."""
        metadata: dict[str, Any] = {"mode": "grayscale", "Labels": self._page_labels()}
        # A component varies about zero, so its range is symmetric; the mean is shown from its least to largest value.
        largest = [float(np.nanmax(np.abs(image), initial=0)) for image in self.images()]
        ranges = [(-value, value) for value in largest]
        if self.mean:
            finite = self.model.mean[np.isfinite(self.model.mean)]
            ranges[0] = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        if self._frames:
            low, high = max(ranges[self.mean :], key=lambda pair: pair[1])
            return metadata | {"min": low, "max": high}
        return metadata | {"Ranges": tuple(value for pair in ranges for value in pair)}

    def ome(self) -> dict[str, Any]:
        """Return the metadata for OME: the labels as a description, one a line, and as names of channels."""
        metadata: dict[str, Any] = {"Name": format_shape(self.pages.shape), "Description": "\n".join(self._labels())}
        return metadata if self._frames else metadata | {"Channel": {"Name": self._labels()}}
