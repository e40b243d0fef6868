"""Small images of samples, gathered while a collection is surveyed."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from ...models.kernel_pca import KernelPCAModel
from ...models.pca import PCAModel
from ...models.sample_images import FEW, Array, SampleView, factors_of, layout_of, mean_pictures, view_of
from ...planning.blocks import Span
from ...preprocessing import Frame
from ..components import scale_of
from ..reconstruction import TOGETHER
from .memory import LEAST_TILE, SCORES, THUMBNAILS, TILE

UNKNOWN = (235, 175)  # grey levels of the hatching of missing pixels
QUALITY = 80  # of the sheet as JPEG


@dataclass(frozen=True)
class Sheet:
    """Thumbnails of samples in one image.

    Attributes
    ----------
    image : bytes
        JPEG; each sample above its reconstruction.
    tile : (int, int)
        Height and width of one.
    columns : int
        Samples to a line.
    rows, positions : range
        Rows of the survey's scores that the samples are, and their positions among those examined.
    scores : ndarray of shape (samples, 8 or fewer)
        Their first scores.
    """

    image: bytes
    tile: tuple[int, int]
    columns: int
    rows: range
    positions: range
    scores: Array


class Thumbnails:
    """Small images of some samples, and of what the components make of them, gathered as the samples are read.

    Parameters
    ----------
    model : PCAModel
        With its components in memory.
    frame : Frame
        Of the samples that are read.
    places : range
        Positions of the samples that values are held of.
    most_bytes : int
        Largest size of all images.
    """

    def __init__(self, model: PCAModel, frame: Frame, places: range, most_bytes: int) -> None:
        self._model, self._frame = model, frame
        self.rows = range(0, len(places), max(1, -(-len(places) // THUMBNAILS)))
        self.positions = places[:: self.rows.step]
        colours = 1 if view_of(model).colour is None else 3
        side = max(LEAST_TILE, min(TILE, math.isqrt(most_bytes // (2 * colours * len(self.positions)))))
        self.view = reduced(view_of(model, FEW), lambda shape: max(_panel(shape)) <= side)
        self._tile = (*_panel(self.view.picture_shape), 3)[: 2 if self.view.colour is None else 3]
        count, pictures = len(self.positions), len(self.view.picked) if self.view.apart else 1
        self._samples = np.empty((count, *self._tile), np.uint8)
        self._limits = np.empty((count, pictures, 2))
        self._scores = np.empty((count, model.n_components), np.float32)

    def add(self, block: Span, rows: Array) -> None:
        """Take the samples that are wanted from a block of prepared ones."""
        first = -(-block.start // self.positions.step)
        for number in range(first, -(-block.stop // self.positions.step)):
            row = rows[self.positions[number] - block.start][None].astype(np.float64)  # masked pixels are NaN
            pictures = self.view.one(self._frame.images(row)[0])
            self._limits[number] = scale_of(self.view, pictures)
            self._samples[number] = self._as_tile(pictures, number)
            self._scores[number] = self._model.subspace.project(row)[0]

    def sheet(self) -> Sheet:
        """Return one image of all tiles, each sample above what the components make of it."""
        count, (tall, wide) = len(self._samples), self._tile[:2]
        columns = max(1, math.isqrt(2 * count * tall // wide))
        lines = -(-count // columns)
        sheet = np.full((lines * 2 * tall, columns * wide, *self._tile[2:]), UNKNOWN[0], np.uint8)
        for number, made in enumerate(self._reconstructed()):
            top, left = number // columns * 2 * tall, number % columns * wide
            sheet[top : top + tall, left : left + wide] = self._samples[number]
            sheet[top + tall : top + 2 * tall, left : left + wide] = self._as_tile(made, number)
        scores = self._scores[:, :SCORES].copy()
        image = encoded(sheet, "JPEG", quality=QUALITY)
        return Sheet(image, (tall, wide), columns, self.rows, self.positions, scores)

    def _reconstructed(self) -> Array:
        """Return pictures of the samples' reconstructions, float32, with few components in memory at a time."""
        model, view = self._model, self.view
        weights = model.subspace.coefficients(self._scores)
        mean, factors = mean_pictures(model, view), factors_of(model)
        made = np.repeat(mean[None].astype(np.float32), len(weights), axis=0)
        for start in range(0, weights.shape[1], TOGETHER):
            stop = min(start + TOGETHER, weights.shape[1])
            some = view.read(model.components, start, stop, over=factors).astype(np.float32)
            for image, own in zip(made, weights[:, start:stop].astype(np.float32), strict=True):
                image += np.tensordot(own, some, axes=1)
        return made

    def _as_tile(self, pictures: Array, number: int) -> Array:
        """Return pictures of a sample side by side, in grey levels of its own scale, missing pixels hatched."""
        layout, (_, tall, wide) = layout_of(pictures.shape), pictures.shape[:3]
        tile = np.full(self._tile, UNKNOWN[0], np.uint8)
        hatched = np.where(np.indices((tall, wide)).sum(axis=0) % 4, *UNKNOWN).astype(np.uint8)
        for at, (picture, (low, high)) in enumerate(
            zip(pictures, np.broadcast_to(self._limits[number], (len(pictures), 2)), strict=True)
        ):
            row, column = divmod(at, layout.columns)
            known = np.isfinite(picture)
            share = (np.where(known, picture, low) - low) / ((high - low) or 1.0)
            grey = np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8)
            shown = np.where(known, grey, hatched.reshape(tall, wide, *(1,) * (picture.ndim - 2)))
            top, left = row * (tall + 1), column * (wide + 1)
            tile[top : top + tall, left : left + wide] = shown
        return tile


def _panel(pictures: tuple[int, ...]) -> tuple[int, int]:
    """Return the height and the width of pictures of a shape as a tile, a pixel apart."""
    layout, (tall, wide) = layout_of(pictures), pictures[1:3]
    return layout.rows * (tall + 1) - 1, layout.columns * (wide + 1) - 1


def reduced(view: SampleView, fits: Callable[[tuple[int, ...]], bool]) -> SampleView:
    """Return the view with the least reduction by which the shape of its pictures fits."""
    while not fits(view.picture_shape):
        view = replace(view, bin=view.bin + 1)
    return view


def moves(model: PCAModel) -> bool:
    """Return whether samples of a model are images, and sums of the mean and its components."""
    return model.makes_images and not isinstance(model, KernelPCAModel) and not view_of(model).is_line


def encoded(values: Array, kind: str, **how: Any) -> bytes:
    """Return an 8-bit image as a file of a kind of Pillow's."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind, **how)
    return file.getvalue()
