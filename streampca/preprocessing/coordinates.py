"""Coordinates of a sample's axes, taken through the steps that change its pixels, and compared with a model's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError, RequestError
from ..readers.collection import Array, Collection
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
from ..readers.stored.axis_roles import Role, role_of
from ..storage.coordinate import Coordinate
from ..storage.georeference import SIDES, SPATIAL_REF, moved
from .preparation import Preparation
from .resize import resampled


def prepared_coordinates(
    preparation: Preparation, known: Mapping[str, Coordinate], axes: Sequence[str], raw_shape: tuple[int, ...]
) -> Mapping[str, Coordinate]:
    """Return coordinates of prepared samples, by name; text and dates are left out where pixels are merged."""
    if preparation.maps:
        return {}
    dims, made = axes[: len(preparation.of_images.shape_of(raw_shape))], {}
    for name in (*(dim for dim in dims if dim in known), *(name for name in known if name not in axes)):
        each = over_axes(known[name], name, dims)
        if each is None:
            continue
        if name == SPATIAL_REF:
            made[name] = _prepared_reference(preparation, each, dims, raw_shape)
            continue
        values: Array | None = np.asarray(each.values)
        around = is_longitude(name, each)
        for at, axis in enumerate(each.along(name)):
            values = _prepared(preparation, dims.index(axis), values, raw_shape, at, around=around)
        if values is not None:
            made[name] = each._replace(values=values)
    return made


def _prepared_reference(
    preparation: Preparation, reference: Coordinate, dims: Sequence[str], raw_shape: tuple[int, ...]
) -> Coordinate:
    """Return a reference with its map of rotated pixels as these are cut and merged."""
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
    """Return what the provenance of a model says of the axes of its raw samples; nothing where they have no names."""
    if raw.axes is None:
        return {}
    return {"axes": {"sample": list(raw.axes), "samples": list(raw.samples_along), "counts": _counts(raw)}}


def check_axes(raw: Collection, provenance: Mapping[str, Any], model: str) -> None:
    """Refuse raw samples that are made of other axes than those a model was fitted on, or have them in another order.

    Raises
    ------
    ModelError
        If an axis of one sample counted samples there, or the other way round, or y stands where x did.
    """
    fitted = provenance.get("axes")
    if fitted is None or raw.axes is None:
        return
    own, their = list(raw.axes), list(fitted["sample"])
    counts = zip(_counts(raw), fitted["counts"], strict=False)
    other = {*raw.samples_along} & {*their} or {*own} & {*fitted["samples"]}
    turned = own != their and sorted(own) == sorted(their)
    if not (other or turned or any(one and two and one != two for one, two in counts)):
        return
    along = ", ".join(raw.samples_along) or "none with a name"
    were = ", ".join(fitted["samples"]) or "none with a name"
    raise ModelError(
        f"samples of {raw.source} have axes {', '.join(own)} (samples are counted along {along}), and those that "
        f"{model} was fitted on {', '.join(their)} (along {were}); open it with the axes of one sample in the model's "
        f"order, --sample-axes {','.join(their)} (sample_axes={tuple(their)!r}), or {OVERRIDE}."
    )


def check_guess(raw: Collection, provenance: Mapping[str, Any], model: str) -> None:
    """Refuse samples of an array without names taken by position, where the model's were taken along other axes.

    Raises
    ------
    ModelError
        If the model was fitted to samples whose axes were named by number, and are not the last ones in their order.
    """
    guessed = raw.guessed_axes
    named = ((provenance.get("opened") or {}).get("options") or {}).get("sample_axes")
    numbers = [int(axis) for axis in named or () if str(axis).removeprefix("-").isdecimal()]
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
    """Return what each axis of a sample is along: y, x or colours; empty where that is not known."""
    known, coordinates = (Role.Y, Role.X, Role.COLOURS), raw.coordinates
    found = (role_of(axis, coordinates[axis].attributes if axis in coordinates else {}) for axis in raw.axes or ())
    return [role.value if role in known else "" for role in found]


def placed(values: Array, grid: Grid, samples: Collection, name: str) -> Array:
    r"""Return values by pixel, whose axes have names, in the order of the axes and coordinates of samples.

    Parameters
    ----------
    values : ndarray
        One for each pixel, along the axes of `grid`.
    grid : Grid
        Names of these axes, each of which is one of the samples', and coordinates along them.
    samples : Collection
        Samples without a mask. Where their axes have no names, values are taken by place.
    name : str
        Name of the values, for messages.

    Returns
    -------
    ndarray of shape (\*sample_shape), or of its leading axes

    Raises
    ------
    RequestError
        If an axis is none of the samples', or a coordinate has other values than theirs.
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
        own, theirs = grid.coordinates.get(dim), samples.coordinates.get(dim)
        if own is None or theirs is None:
            continue
        order = order_of(own, theirs, dim)
        if order is None:
            raise RequestError(
                f"{dim} of {name} has other values than {dim} of {samples.source}; bring {name} to their grid, "
                f"{by_place}."
            )
        values = np.take(values, order, axis=at)
    values = values.transpose([grid.dims.index(axis) for axis in axes if axis in grid.dims])
    shape = samples.sample_shape
    lengths = [length if axis in grid.dims else 1 for axis, length in zip(axes, shape, strict=True)]
    # One of another length is refused where samples are prepared.
    return np.broadcast_to(values.reshape(lengths), shape) if values.size == math.prod(lengths) else values


def raw_orders(
    preparation: Preparation, raw: Grid, raw_shape: tuple[int, ...], fitted: Grid, subject: str, model: str
) -> dict[int, Order]:
    """Find the order of raw samples' entries along each axis in which they are prepared to a model's grid.

    Along an axis whose pixels are cut or merged, entries are taken as they are or from the last to the first: of
    others, it is not known which raw pixels a prepared one was made of.

    Returns
    -------
    dict of int to ndarray of int
        See `orders_between`.
    """
    known, dims = dict(raw.coordinates), raw.dims[: len(fitted.dims)]
    changed = [axis for axis in range(len(dims)) if _changes(preparation, axis, raw_shape)]
    orders: dict[int, Order] = {}
    for axis in changed:
        name, their = dims[axis], fitted.coordinates.get(fitted.dims[axis])
        if name in known and their is not None:
            order = np.arange(raw_shape[axis])[::-1]
            back = in_orders(known, dims, {axis: order})
            straight, turned = (
                prepared_coordinates(preparation, {name: each[name]}, dims, raw_shape).get(name)
                for each in (known, back)
            )
            if _agrees(turned, their, name) and not _agrees(straight, their, name):
                known, orders[axis] = back, order
    common = CommonGrid(ModelError, fixed=changed)
    common.add(fitted, model)
    return orders | common.add(Grid(dims, prepared_coordinates(preparation, known, dims, raw_shape)), subject)


def _agrees(one: Coordinate | None, other: Coordinate, name: str) -> bool:
    return one is not None and is_straight(order_of(one, other, name))


def _changes(preparation: Preparation, axis: int, raw_shape: tuple[int, ...]) -> bool:
    """Return whether pixels along an axis are cut or merged."""
    ranges = preparation.ranges(raw_shape)
    merged = axis < 2 and (preparation.resize is not None or preparation.bin > 1)
    return merged or (axis < len(ranges) and ranges[axis] != (0, raw_shape[axis]))


def _prepared(
    preparation: Preparation, axis: int, values: Array | None, raw_shape: tuple[int, ...], at: int, *, around: bool
) -> Array | None:
    """Cut and merge values along a sample's axis, which is their axis `at`; with `around`, 360 equals 0."""
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
    if around and np.isfinite(values).all():
        values = np.unwrap(values, period=360, axis=0)
    if preparation.resize is not None:
        values = resampled(values, preparation.resize[axis])
    whole = len(values) // preparation.bin * preparation.bin
    values = values[:whole].reshape(-1, preparation.bin, *values.shape[1:]).mean(axis=1)
    return np.moveaxis(values, 0, at)
