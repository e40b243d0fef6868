"""Coordinates of a sample's axes: their preparation along with the pixels, and their comparison with a model's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import ModelError, RequestError
from ..readers.collection import Collection
from ..readers.coordinates import (
    OVERRIDE,
    CommonGrid,
    Grid,
    Order,
    in_orders,
    is_longitude,
    is_straight,
    order_of,
    over_axes,
)
from ..readers.opening_record import OpeningRecord
from ..readers.stored.axis_roles import Role, role_of
from ..storage.coordinate import Coordinate
from ..storage.georeference import SIDES, SPATIAL_REF, moved
from .preparation import Preparation
from .resize import resampled


def prepared_coordinates(
    preparation: Preparation, coordinates: Mapping[str, Coordinate], axes: Sequence[str], raw_shape: tuple[int, ...]
) -> Mapping[str, Coordinate]:
    """Return coordinates of prepared samples by name; text and dates are left out along axes with merged pixels."""
    if preparation.maps or not coordinates:
        return {}
    dims, prepared = axes[: len(preparation.of_images.shape_of(raw_shape))], {}
    for name in (*(dim for dim in dims if dim in coordinates), *(name for name in coordinates if name not in axes)):
        coordinate = over_axes(coordinates[name], name, dims)
        if coordinate is None:
            continue
        if name == SPATIAL_REF:
            prepared[name] = _prepared_reference(preparation, coordinate, dims, raw_shape)
            continue
        values: Array | None = np.asarray(coordinate.values)
        around = is_longitude(name, coordinate)
        for at, axis in enumerate(coordinate.along(name)):
            values = _prepared(preparation, dims.index(axis), values, raw_shape, at, around=around)
        if values is not None:
            prepared[name] = coordinate._replace(values=values)
    return prepared


def _prepared_reference(
    preparation: Preparation, reference: Coordinate, dims: Sequence[str], raw_shape: tuple[int, ...]
) -> Coordinate:
    """Return a reference whose transform of rotated pixels is adapted to the cut and merged pixels."""
    ranges = preparation.ranges(raw_shape)
    for side, name in enumerate(SIDES):
        if name not in dims:
            continue
        axis = dims.index(name)
        start, stop = ranges[axis] if axis < len(ranges) else (0, raw_shape[axis])
        step = 1.0
        if axis < 2:
            step = (
                (stop - start) / preparation.resize[axis] if preparation.resize is not None else 1
            ) * preparation.bin
        reference = moved(reference, side, start, step)
    return reference


def axes_record(raw: Collection) -> dict[str, Any]:
    """Return the entry for the axes of raw samples in a model's provenance; empty if they have no names."""
    if raw.axes is None:
        return {}
    return {"axes": {"sample": list(raw.axes), "samples": list(raw.samples_along), "counts": _counts(raw)}}


def check_axes(raw: Collection, provenance: Mapping[str, Any], model: str) -> None:
    """Refuse raw samples with other axes than the samples of a model's fit, or with their axes in another order.

    Raises
    ------
    ModelError
        If an axis of a sample counted samples in the fit, or the other way round, or x and y changed places.
    """
    fitted = provenance.get("axes")
    if fitted is None or raw.axes is None:
        return
    axes, fitted_axes = list(raw.axes), list(fitted["sample"])
    counts = zip(_counts(raw), fitted["counts"], strict=False)
    swapped = {*raw.samples_along} & {*fitted_axes} or {*axes} & {*fitted["samples"]}
    turned = axes != fitted_axes and sorted(axes) == sorted(fitted_axes)
    if not (swapped or turned or any(role and fitted_role and role != fitted_role for role, fitted_role in counts)):
        return
    along = ", ".join(raw.samples_along) or "none with a name"
    were = ", ".join(fitted["samples"]) or "none with a name"
    raise ModelError(
        f"samples of {raw.source} have axes {', '.join(axes)} (samples are counted along {along}), and those that "
        f"{model} was fitted on {', '.join(fitted_axes)} (along {were}); open it with the axes of one sample in the "
        f"model's order, --sample-axes {','.join(fitted_axes)} (sample_axes={tuple(fitted_axes)!r}), or {OVERRIDE}."
    )


def check_guess(raw: Collection, provenance: Mapping[str, Any], model: str) -> None:
    """Refuse samples whose axes were chosen by position, if the model's sample axes were given by other numbers.

    Raises
    ------
    ModelError
        If the model was fitted with axes given by number that are not the last ones in order.
    """
    guessed, numbers = raw.guessed_axes, []
    with suppress(ModelError):  # what is given was opened without the model's record, which may be damaged
        opened = OpeningRecord.from_json(provenance.get("opened"), model)
        numbers = [
            int(axis) for axis in opened.options.get("sample_axes", ()) if str(axis).removeprefix("-").isdecimal()
        ]
    if guessed is None or not numbers or len(numbers) != len(guessed.sample):
        return
    in_order = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    if in_order and numbers[0] != 0:
        return
    listed = ",".join(map(str, numbers))
    raise ModelError(
        f"samples of {raw.source} are taken along axis {', '.join(map(str, guessed.samples))} by its position alone, "
        f"and {model} was fitted to samples of axes {listed}; name the axes of one sample, --sample-axes {listed} "
        f"(sample_axes={tuple(numbers)!r}) as there, or {','.join(map(str, guessed.sample))} where these are right."
    )


def _counts(raw: Collection) -> list[str]:
    """Return the role of each axis of a sample: y, x or colours; empty for any other."""
    roles_compared, coordinates = (Role.Y, Role.X, Role.COLOURS), raw.coordinates
    roles = (role_of(axis, coordinates[axis].attributes if axis in coordinates else {}) for axis in raw.axes or ())
    return [role.value if role in roles_compared else "" for role in roles]


def placed(values: Array, grid: Grid, samples: Collection, name: str) -> Array:
    r"""Return values by pixel, given along named axes, in the order of the samples' axes and coordinates.

    Parameters
    ----------
    values : ndarray
        One for each pixel, along the axes of `grid`.
    grid : Grid
        Names of the values' axes, all of which are axes of the samples, and coordinates along them.
    samples : Collection
        Samples without a mask. If their axes have no names, values are matched by position.
    name : str
        Name of the values, for messages.

    Returns
    -------
    ndarray of shape (\*sample_shape), or of its leading axes

    Raises
    ------
    RequestError
        If the samples lack an axis, or a coordinate has other values than the samples'.
    """
    axes = samples.axes
    if axes is None:
        return values
    by_place = "or give its values (.values), which are taken by place"
    for at, dim in enumerate(grid.dims):
        if dim not in axes:
            raise RequestError(
                f"{name} has an axis {dim!r}, and samples of {samples.source} have {', '.join(axes)}; name its axes as "
                f"theirs, {by_place}."
            )
        along, reference = grid.coordinates.get(dim), samples.coordinates.get(dim)
        if along is None or reference is None:
            continue
        order = order_of(along, reference, dim)
        if order is None:
            raise RequestError(
                f"{dim} of {name} has other values than {dim} of {samples.source}; bring {name} to their grid, "
                f"{by_place}."
            )
        values = np.take(values, order, axis=at)
    values = values.transpose([grid.dims.index(axis) for axis in axes if axis in grid.dims])
    shape = samples.sample_shape
    lengths = [length if axis in grid.dims else 1 for axis, length in zip(axes, shape, strict=True)]
    # Values with an axis of another length are refused when samples are prepared.
    return np.broadcast_to(values.reshape(lengths), shape) if values.size == math.prod(lengths) else values


def raw_orders(
    preparation: Preparation, raw: Grid, raw_shape: tuple[int, ...], fitted: Grid, subject: str, model: str
) -> dict[int, Order]:
    """Find the order of raw entries along each axis that makes prepared samples match a model's grid.

    Along an axis whose pixels are cut or merged, only the given and the reverse order are tried: for any other order,
    the raw pixels of a prepared one are unknown.

    Returns
    -------
    dict of int to ndarray of int
        See `orders_between`.
    """
    coordinates, dims = dict(raw.coordinates), raw.dims[: len(fitted.dims)]
    ranges, merges = preparation.ranges(raw_shape), preparation.resize is not None or preparation.bin > 1
    is_cut = [axis < len(ranges) and ranges[axis] != (0, raw_shape[axis]) for axis in range(len(dims))]
    changed = [axis for axis in range(len(dims)) if is_cut[axis] or (axis < 2 and merges)]
    orders: dict[int, Order] = {}
    for axis in changed:
        name, reference = dims[axis], fitted.coordinates.get(fitted.dims[axis])
        if name in coordinates and reference is not None:
            order = np.arange(raw_shape[axis])[::-1]
            back = in_orders(coordinates, dims, {axis: order})
            straight, turned = (
                prepared_coordinates(preparation, {name: before_steps[name]}, dims, raw_shape).get(name)
                for before_steps in (coordinates, back)
            )
            if _agrees(turned, reference, name) and not _agrees(straight, reference, name):
                coordinates, orders[axis] = back, order
    common = CommonGrid(ModelError, fixed=changed)
    common.add(fitted, model)
    return orders | common.add(Grid(dims, prepared_coordinates(preparation, coordinates, dims, raw_shape)), subject)


def _agrees(coordinate: Coordinate | None, reference: Coordinate, name: str) -> bool:
    return coordinate is not None and is_straight(order_of(coordinate, reference, name))


def _prepared(
    preparation: Preparation, axis: int, values: Array | None, raw_shape: tuple[int, ...], at: int, *, around: bool
) -> Array | None:
    """Cut and merge values along a sample's axis, which is their axis `at`; with `around`, they are modulo 360."""
    if values is None:
        return None
    ranges = preparation.ranges(raw_shape)
    values = np.moveaxis(values, at, 0)
    if axis < len(ranges):
        values = values[slice(*ranges[axis])]
    if axis > 1 or (preparation.resize is None and preparation.bin == 1):
        return np.moveaxis(values, 0, at)
    if values.dtype.kind not in "iuf":
        return None
    values = values.astype(np.float64)
    if around and np.isfinite(values).all():  # a mean of 359 and 1 degrees must be 360, not 180
        values = np.unwrap(values, period=360, axis=0)
    if preparation.resize is not None:
        values = resampled(values, preparation.resize[axis])
    whole = len(values) // preparation.bin * preparation.bin
    values = values[:whole].reshape(-1, preparation.bin, *values.shape[1:]).mean(axis=1)
    return np.moveaxis(values, 0, at)
