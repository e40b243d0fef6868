"""Small images of samples, collected during the survey of a collection."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from ...arrays import Array
from ...models.components import ComponentsModel
from ...models.images import ImageModel
from ...models.model import Model
from ...models.sample_images import FEW, SampleView, factors_of, layout_of, mean_pictures, view_of
from ...planning.blocks import Span
from ...preprocessing import Frame
from ..components import scale_of
from ..reconstruction import TOGETHER
from .memory import LEAST_TILE, SCORES, THUMBNAILS, TILE

UNKNOWN = (235, 175)  # grey levels of the hatching of missing pixels
QUALITY = 80  # JPEG quality of the sheet


@dataclass(frozen=True)
class Sheet:
    """Thumbnails of samples in one image.

    Attributes
    ----------
    image : bytes
        JPEG, with each sample above its reconstruction.
    tile : (int, int)
        Height and width of a thumbnail.
    columns : int
        Number of samples in a line.
    rows, positions : range
        Rows of the samples in the survey's scores, and their positions among the examined samples.
    scores : ndarray of shape (samples, 8 or fewer)
        First scores of the samples.
    """

    image: bytes
    tile: tuple[int, int]
    columns: int
    rows: range
    positions: range
    scores: Array


class Thumbnails:
    """Small images of some samples and their reconstructions, collected while the samples are read.

    Parameters
    ----------
    model : ComponentsModel
        Model with its components in memory.
    frame : Frame
        Frame of the samples.
    places : range
        Positions of the samples whose values are kept.
    most_bytes : int
        Largest size of all images together.
    """

    def __init__(self, model: ComponentsModel, frame: Frame, places: range, most_bytes: int) -> None:
        self._model, self._frame = model, frame
        self.rows = range(0, len(places), max(1, -(-len(places) // THUMBNAILS)))
        self.positions = places[:: self.rows.step]
        colours = 1 if view_of(model).colour is None else 3
        # Samples and reconstructions of all tiles share the budget of the sheet.
        side = max(LEAST_TILE, min(TILE, math.isqrt(most_bytes // (2 * colours * len(self.positions)))))
        self.view = reduced(view_of(model, FEW), lambda shape: max(_panel(shape)) <= side)
        self._tile = (*_panel(self.view.picture_shape), 3)[: 2 if self.view.colour is None else 3]
        count, pictures = len(self.positions), len(self.view.positions) if self.view.has_bands else 1
        self._samples = np.empty((count, *self._tile), np.uint8)
        self._limits = np.empty((count, pictures, 2))
        self._scores = np.empty((count, model.n_components), np.float32)

    @property
    def arrays(self) -> dict[str, Array]:
        """Pictures collected so far, in writable arrays."""
        return {"thumbnails": self._samples, "limits": self._limits, "thumbnail_scores": self._scores}

    def add(self, block: Span, rows: Array) -> None:
        """Add the samples of a block of prepared ones that get a thumbnail."""
        for number in self._within(block):
            row = rows[self.positions[number] - block.start][None].astype(np.float64)  # masked pixels are NaN
            pictures = self.view.one(self._frame.images(row)[0])
            self._limits[number] = scale_of(self.view, pictures)
            self._samples[number] = self._as_tile(pictures, number)
            self._scores[number] = self._model.subspace.project(row)[0]

    def absorb(self, other: Thumbnails, samples: Span) -> None:
        """Absorb the pictures of consecutive samples that another collection of thumbnails has."""
        numbers = self._within(samples)
        for name, array in self.arrays.items():
            array[numbers.start : numbers.stop] = other.arrays[name][numbers.start : numbers.stop]

    def _within(self, samples: Span) -> range:
        """Return the numbers of the thumbnails of consecutive samples."""
        step = self.positions.step
        return range(-(-samples.start // step), -(-samples.stop // step))

    def sheet(self) -> Sheet:
        """Return one image of all tiles, each sample above its reconstruction."""
        count, (tall, wide) = len(self._samples), self._tile[:2]
        # About a square sheet of pairs.
        columns = max(1, math.isqrt(2 * count * tall // wide))
        lines = -(-count // columns)
        sheet = np.full((lines * 2 * tall, columns * wide, *self._tile[2:]), UNKNOWN[0], np.uint8)
        for number, reconstruction in enumerate(self._reconstructed()):
            top, left = number // columns * 2 * tall, number % columns * wide
            sheet[top : top + tall, left : left + wide] = self._samples[number]
            sheet[top + tall : top + 2 * tall, left : left + wide] = self._as_tile(reconstruction, number)
        scores = self._scores[:, :SCORES].copy()
        image = encoded(sheet, "JPEG", quality=QUALITY)
        return Sheet(image, (tall, wide), columns, self.rows, self.positions, scores)

    def _reconstructed(self) -> Array:
        """Return pictures of the samples' reconstructions, float32, holding pictures of few components at a time."""
        model, view = self._model, self.view
        weights = model.weights_of(self._scores)
        mean, factors = mean_pictures(model, view), factors_of(model)
        # As `weighted_pictures`, in float32 to save memory.
        images = np.repeat(mean[None].astype(np.float32), len(weights), axis=0)
        for start in range(0, weights.shape[1], TOGETHER):
            stop = min(start + TOGETHER, weights.shape[1])
            components = view.read(model.components, start, stop, over=factors).astype(np.float32)
            for image, weight in zip(images, weights[:, start:stop].astype(np.float32), strict=True):
                image += np.tensordot(weight, components, axes=1)
        return images

    def _as_tile(self, pictures: Array, number: int) -> Array:
        """Return pictures of a sample side by side, in grey levels of its own scale, with missing pixels hatched."""
        layout, (_, tall, wide) = layout_of(pictures.shape), pictures.shape[:3]
        tile = np.full(self._tile, UNKNOWN[0], np.uint8)
        # Diagonal lines, four pixels apart.
        hatched = np.where(np.indices((tall, wide)).sum(axis=0) % 4, *UNKNOWN).astype(np.uint8)
        for at, (picture, (low, high)) in enumerate(
            zip(pictures, np.broadcast_to(self._limits[number], (len(pictures), 2)), strict=True)
        ):
            row, column = divmod(at, layout.columns)
            finite = np.isfinite(picture)
            share = (np.where(finite, picture, low) - low) / ((high - low) or 1.0)
            grey = np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8)
            shown = np.where(finite, grey, hatched.reshape(tall, wide, *(1,) * (picture.ndim - 2)))
            top, left = row * (tall + 1), column * (wide + 1)
            tile[top : top + tall, left : left + wide] = shown
        return tile


def _panel(pictures: tuple[int, ...]) -> tuple[int, int]:
    """Return the height and the width of the tile of pictures of a shape, one pixel apart."""
    layout, (tall, wide) = layout_of(pictures), pictures[1:3]
    return layout.rows * (tall + 1) - 1, layout.columns * (wide + 1) - 1


def reduced(view: SampleView, fits: Callable[[tuple[int, ...]], bool]) -> SampleView:
    """Return the view with the smallest reduction for which the shape of its pictures fits."""
    while not fits(view.picture_shape):
        view = replace(view, bin=view.bin + 1)
    return view


def moves(model: Model) -> bool:
    """Return whether a page of a model is interactive: samples are images, and sums of mean and components."""
    return isinstance(model, ImageModel) and not view_of(model).is_line


def encoded(values: Array, kind: str, **how: Any) -> bytes:
    """Return an 8-bit image as a file in a format of Pillow."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind, **how)
    return file.getvalue()
