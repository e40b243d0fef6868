"""Pictures of samples and components: choice of slices, reduction in size, orientation; samples are read in bands.

A picture consists of means over blocks of pixels, at most `MOST` a side. Block means are linear, so pictures of
reconstructions are sums of pictures of components, and a band of rows at a time suffices for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from ..arrays import Array, Float64
from ..preprocessing import unflatten
from ..readers.collection import COLOURS
from ..readers.coordinates import LATITUDES, LONGITUDES
from ..readers.stored.axis_roles import Role, role_of
from ..storage.components import StoredComponents
from ..storage.coordinate import Coordinate
from ..storage.pixel_sizes import is_colour
from ..units import MIB

MOST = 300  # pixels of the longer side of a panel; one of 1.4 inches at 150 dots has 210
LONGEST = 2000  # values of a line
ASPECT = 1.4  # desired width over height of a panel with several pictures
GAP = 0.06  # space between the pictures of one panel, relative to their width
SLICES = 6  # largest number of slices of a sample with more axes than an image
FEW = 4  # largest number of slices where many samples are drawn
BAND = 8 * MIB  # bytes read at a time: the size of a tile of components on disk
PART = 1 * MIB  # bytes of a band reduced at a time, with several copies in float64

NORTHINGS = ("latitude", "grid_latitude", "projection_y_coordinate")  # CF standard names
EASTINGS = ("longitude", "projection_x_coordinate")
_BANDS = {"band", "bands", "wavelength", "variable"}  # axes of images that are drawn side by side, as colours are


class PanelLayout(NamedTuple):
    """Arrangement of pictures in a panel, in their own pixels; `head` is the height of a caption above each."""

    columns: int
    rows: int
    step_x: float
    step_y: float
    width: float
    height: float
    head: float


def layout_of(pictures: tuple[int, ...]) -> PanelLayout:
    """Arrange pictures of a shape (pictures, y, x, ...) in a panel near `ASPECT`, with few empty places."""
    count, tall, wide = pictures[:3]
    if count == 1:
        return PanelLayout(1, 1, wide, tall, wide, tall, 0)
    step_x = wide * (1 + GAP)
    head = 0.14 * step_x  # a picture is about 0.8 inch wide
    step_y = tall + wide * GAP + head

    def penalty(columns: int) -> float:
        rows = -(-count // columns)
        return abs(math.log(columns * step_x / (rows * step_y) / ASPECT)) + 2 * (1 - count / (rows * columns))

    columns = min(range(1, count + 1), key=penalty)
    rows = -(-count // columns)
    return PanelLayout(columns, rows, step_x, step_y, columns * step_x, rows * step_y - head, head)


@dataclass(frozen=True)
class SampleView:
    """The part of a sample that is drawn, and its orientation and reduction.

    Attributes
    ----------
    shape : tuple of int
        Shape of a sample.
    names : tuple of str
        Names of the drawn axes, (y, x) or (x,).
    axes : tuple of int
        Indices of these axes in the sample, in its order.
    colour : int or None
        The axis of colours, the last.
    positions : tuple of dict
        Positions along all other axes, one dict for each picture.
    captions : tuple of str
        Name of each picture; empty for a single one.
    note : str
        Caption of a single slice, or the number of slices drawn out of all.
    has_bands : bool
        True if pictures show different quantities (channels), each with its own grey scale.
    bin : int
        Pixels in a block along each drawn axis.
    flipped : tuple of bool
        True for axes drawn backwards, so that north is up and east to the right.
    swapped : bool
        True if x comes before y in the sample.
    coordinates : mapping of str to ndarray
        Coordinates along the drawn axes, if they are numbers.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    axes: tuple[int, ...]
    colour: int | None
    positions: tuple[Mapping[int, int], ...]
    captions: tuple[str, ...]
    note: str
    has_bands: bool
    bin: int
    flipped: tuple[bool, ...]
    swapped: bool
    coordinates: Mapping[str, Float64]

    @property
    def is_line(self) -> bool:
        """True if samples are drawn as lines."""
        return len(self.axes) == 1

    @property
    def picture_shape(self) -> tuple[int, ...]:
        """Shape of the pictures of one row."""
        sides = [-(-self.shape[axis] // self.bin) for axis in self.axes]
        colours = [] if self.colour is None else [3]
        return (len(self.positions), *(reversed(sides) if self.swapped else sides), *colours)

    @property
    def wide(self) -> float:
        """Width of a panel in inches."""
        return 1.4 if self.is_line or len(self.positions) == 1 else 1.9 if len(self.positions) <= FEW else 2.4

    @property
    def aspect(self) -> float:
        """Height of a panel over its width, limited to 0.3 to 2.5."""
        if self.is_line:
            return 0.8
        layout = layout_of(self.picture_shape)
        return float(np.clip(layout.height / layout.width, 0.3, 2.5))

    @property
    def along(self) -> Float64:
        """Positions of the values of a line: its coordinates, or counted from 0."""
        values: Array | None = self.coordinates.get(self.names[-1])
        if values is None:
            values = np.arange(self.shape[self.axes[-1]])
        return _block_means(values, (0,), self.bin)

    def ranges(self) -> tuple[str, ...]:
        """Return the range of each axis as text, bottom to top and left to right; empty without coordinates."""
        texts = []
        for name, flipped in zip(self.names, self.flipped, strict=True):
            values = self.coordinates.get(name)
            upwards = name == self.names[0] and not self.is_line
            if values is not None:
                ends = values[[0, -1]] if flipped == upwards else values[[-1, 0]]
                texts.append(f"{short_text(name)} {_number(ends[0])} to {_number(ends[1])}")
            else:
                texts.append("")
        return tuple(texts)

    def read(
        self, rows: Array | StoredComponents, start: int = 0, stop: int | None = None, over: Array | float | None = None
    ) -> Float64:
        """Read pictures of rows start to stop, each divided by `over`, a number or an array of a sample's shape.

        Returns
        -------
        ndarray of shape (rows, pictures, y, x), (rows, pictures, y, x, 3) or (rows, 1, x)
            The rows are read in bands of about 8 MiB.
        """
        run = slice(start, rows.shape[0] if stop is None else stop)
        return np.stack([self._picture(rows, run, dict(position), over) for position in self.positions], axis=1)

    def one(self, sample: Array, over: Array | float | None = None) -> Float64:
        """Return the pictures of one sample."""
        return cast("Float64", self.read(sample[None], over=over)[0])

    def _picture(
        self, rows: Array | StoredComponents, run: slice, position: dict[int, int], over: Array | float | None
    ) -> Float64:
        """Read the pictures at a position along the other axes: (rows, y, x), with colours last."""
        first, *rest = self.axes
        line = max(1, run.stop - run.start) * math.prod(self.shape[axis] for axis in rest) * rows.dtype.itemsize
        step = self.bin * max(1, BAND // (line * self.bin * (1 if self.colour is None else 3)))
        bands = []
        for begin in range(0, self.shape[first], step):
            key = tuple(self._index(axis, position, slice(begin, begin + step)) for axis in range(len(self.shape)))
            values = np.asarray(rows[(run, *key)])
            if over is not None:
                values = values / (over[key] if isinstance(over, np.ndarray) else over)
            bands.append(_block_means(values, tuple(range(1, 1 + len(self.axes))), self.bin))
        pictures = bands[0] if len(bands) == 1 else np.concatenate(bands, axis=1)
        pictures = np.swapaxes(pictures, 1, 2) if self.swapped else pictures
        backwards = tuple(axis for axis, flipped in enumerate(self.flipped, start=1) if flipped)
        return np.flip(pictures, backwards)

    def _index(self, axis: int, position: dict[int, int], band: slice) -> int | slice:
        if axis in position:
            return position[axis]
        if axis == self.colour:
            return slice(0, 3)
        return band if axis == self.axes[0] else slice(None)


def _block_means(values: Array, axes: Sequence[int], size: int) -> Float64:
    """Return means over blocks along the axes, ignoring NaN; the last block can be smaller."""
    if size == 1:
        return values.astype(np.float64)
    lines = np.moveaxis(values, axes[0], 0)
    step = size * max(1, PART // max(1, size * 8 * math.prod(lines.shape[1:])))
    parts = (np.moveaxis(lines[start : start + step], 0, axes[0]) for start in range(0, len(lines), step))
    return np.concatenate([_means(part, axes, size) for part in parts], axis=axes[0])


def _means(values: Array, axes: Sequence[int], size: int) -> Float64:
    """Return means over blocks, with several copies of the values in memory."""
    finite = np.isfinite(values)
    total, count = np.where(finite, values, 0).astype(np.float64), finite.astype(np.float64)
    for axis in axes:
        starts = np.arange(0, total.shape[axis], size)
        total, count = np.add.reduceat(total, starts, axis), np.add.reduceat(count, starts, axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def view_of(model: Any, slices: int = SLICES) -> SampleView:
    """Return the view of a `PCAModel`'s samples, with at most `slices` slices."""
    return sample_view(model.sample_shape, model.sample_dims, model.coordinates, slices)


def mean_pictures(model: Any, view: SampleView) -> Float64:
    """Return pictures of a `PCAModel`'s mean (pictures, ...), in the units of prepared images or anomalies."""
    if model.preparation.learned is not None:
        return view.one(model.frame.images(model.frame.features(model.mean[None]))[0])
    return view.one(model.mean, factors_of(model))


def factors_of(model: Any) -> Array | float | None:
    """Return the factors that a `PCAModel` multiplies pixels by: an array of a sample's shape, a number, or None."""
    if model.preparation.learned is not None:
        factors = model.frame.factors(np.float64)
        return None if factors is None else cast("Array", unflatten(factors[None], model.sample_shape, model.mask)[0])
    full, scale = model.preparation.full_scale(model.sample_shape), model.preparation.scale
    return cast("float | None", scale) if full is None else full


def sample_view(
    shape: tuple[int, ...],
    dims: tuple[str, ...] = (),
    coordinates: Mapping[str, Coordinate] | None = None,
    slices: int = SLICES,
) -> SampleView:
    """Return the view of samples of a shape: a line, an image, or several slices.

    Parameters
    ----------
    shape : tuple of int
        Shape of a sample; axes of length 1 are not drawn.
    dims : tuple of str
        Names of the axes, from which axes of colours and channels are recognized.
    coordinates : mapping of str to Coordinate, optional
        Coordinates by name of axis.
    slices : int, default=6
        Largest number of slices, spread evenly.
    """
    coordinates = coordinates or {}
    dims = dims if len(dims) == len(shape) else tuple(f"axis_{axis}" for axis in range(len(shape)))
    drawn, colour = _axes(shape, dims)
    others = [axis for axis in range(len(shape)) if axis not in (*drawn, colour)]
    positions, captions, note = _slices(shape, dims, coordinates, others, slices)
    names = tuple(dims[axis] for axis in drawn)
    across = [role_of(name, coordinates[name].attributes if name in coordinates else {}) is Role.X for name in names]
    swapped = across == [True, False]
    names = names[::-1] if swapped else names
    return SampleView(
        shape,
        names,
        drawn,
        colour,
        positions,
        captions,
        note,
        has_bands=any(_is_band(dims[axis]) for axis in others if shape[axis] > 1),
        bin=_bin([shape[axis] for axis in drawn], len(positions)),
        flipped=_flipped(names, coordinates),
        swapped=swapped,
        coordinates={name: numbers for name in names if (numbers := _numbers(coordinates, name)) is not None},
    )


def _axes(shape: tuple[int, ...], dims: tuple[str, ...]) -> tuple[tuple[int, ...], int | None]:
    """Return the drawn axes, (y, x) or (x,), and the axis of colours."""
    long = [axis for axis, length in enumerate(shape) if length > 1] or [len(shape) - 1]
    last = long[-1]
    if len(long) < 3 or not _is_band(dims[last]):
        return tuple(long[-2:]), None
    coloured = shape[last] in COLOURS and is_colour(dims[last])
    return tuple(long[-3:-1]), last if coloured else None


def _bin(sides: list[int], pictures: int) -> int:
    """Return the pixels in a block: a side of a panel has at most `MOST` blocks, a line at most `LONGEST`."""
    if len(sides) == 1:
        return -(-sides[0] // LONGEST)
    layout = layout_of((pictures, *sides))
    return math.ceil(max(layout.columns * sides[1], layout.rows * sides[0]) / MOST)


def _flipped(names: tuple[str, ...], coordinates: Mapping[str, Coordinate]) -> tuple[bool, ...]:
    """Return which drawn axes run against the map: northings that ascend (rows count down), eastings that descend."""
    flipped = []
    for name in names:
        values = _numbers(coordinates, name)
        standard_name = coordinates[name].attributes.get("standard_name") if values is not None else None
        is_northing = name.lower() in LATITUDES or standard_name in NORTHINGS
        is_easting = name.lower() in LONGITUDES or standard_name in EASTINGS
        if values is None or len(names) == 1:  # a line is drawn in its own order
            flipped.append(False)
        else:
            ascends = bool(values[0] < values[-1])
            flipped.append((is_northing and ascends) or (is_easting and bool(values[0] > values[-1])))
    return tuple(flipped)


def _numbers(coordinates: Mapping[str, Coordinate], name: str) -> Float64 | None:
    if name not in coordinates:
        return None
    values = np.asarray(coordinates[name].values)
    return values.astype(np.float64) if values.ndim == 1 and values.dtype.kind in "iuf" else None


def _slices(
    shape: tuple[int, ...],
    dims: tuple[str, ...],
    coordinates: Mapping[str, Coordinate],
    others: list[int],
    most: int,
) -> tuple[tuple[Mapping[int, int], ...], tuple[str, ...], str]:
    """Choose at most `most` positions along the axes that are not drawn, spread evenly, with captions and a note."""
    lengths = tuple(shape[axis] for axis in others)
    count = math.prod(lengths)
    numbers = ((np.arange(min(count, most)) + 0.5) * count / min(count, most)).astype(int)
    long = [axis for axis in others if shape[axis] > 1]
    positions, captions = [], []
    for number in numbers:
        position = dict(zip(others, map(int, np.unravel_index(number, lengths) if lengths else ()), strict=True))
        positions.append(position)
        captions.append(", ".join(_caption(dims[axis], position[axis], coordinates, len(long)) for axis in long))
    if len(numbers) == 1:
        return tuple(positions), (), captions[0]
    axes = " and ".join(short_text(dims[axis], 12) for axis in long)
    note = f"{len(numbers)} of {count} along {axes}" if len(numbers) < count else ""
    return tuple(positions), tuple(captions), note


def _caption(name: str, position: int, coordinates: Mapping[str, Coordinate], n_names: int) -> str:
    """Return the name of a slice: its coordinate if a number or text, else its position from 0."""
    values = np.asarray(coordinates[name].values) if name in coordinates else None
    if values is not None and values.dtype.kind in "UT":
        return short_text(values[position], 12)
    number = _number(values[position]) if values is not None and values.dtype.kind in "iuf" else f"{position}"
    return f"{short_text(name, 12 // n_names)} {number}"


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}")


def limits_of(image: Array) -> tuple[float, float]:
    """Return the least and greatest value; colours keep black and 8-bit white, as stretching would change them.

    Parameters
    ----------
    image : ndarray of shape (..., y, x, 3), (pictures, y, x), (y, x) or (x,)
        A last axis of length three holds colours.
    """
    finite = image[np.isfinite(image)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if image.ndim >= 3 and image.shape[-1] == 3:
        return min(low, 0.0), 255.0 if 1 < high <= 255 else high
    return low, high


def short_text(text: object, most: int = 24) -> str:
    """Return text that can be drawn: on one line, with an ellipsis in the middle if it is longer than `most`."""
    valid = str(text).encode("utf-8", "replace").decode()  # names of files can hold bytes that are not UTF-8
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in valid).split())
    if len(words) <= most:
        return words
    return f"{words[: most // 2]}\N{HORIZONTAL ELLIPSIS}{words[len(words) - (most - most // 2 - 1) :]}"


def _is_band(dim: str) -> bool:
    return is_colour(dim) or dim.lower() in _BANDS
