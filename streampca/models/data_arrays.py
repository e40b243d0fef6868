"""Samples, scores and images with names: `xarray.DataArray` in, `xarray.DataArray` out, and a model as a Dataset.

All axes that are not those of one sample number the samples, in any order: the scores of a field (time, lat, lon) are
(time, component), one time series for each component, and its reconstructions are (time, lat, lon).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..errors import ModelError, RequestError
from ..preprocessing import Preparation
from ..preprocessing.coordinates import prepared_coordinates
from ..preprocessing.sample_keys import SampleFacts
from ..readers.collection import counting_dim
from ..readers.coordinates import (
    LEVEL,
    Grid,
    Order,
    described_coordinates,
    is_straight,
    named_coordinates,
    order_of,
    over_axes,
    time_of,
)
from ..readers.stored.axis_roles import default_axes, role_of, roles_of
from ..readers.views.variables import VARIABLE
from ..storage.components import StoredComponents
from ..storage.coordinate import Coordinate
from ..storage.stored_names import log_renamed, renamed_coordinates, stored_names
from .store import model_arrays, stored_axes
from .transform import lazy_components

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

    from .model import Model

COMPONENT = "component"

Named = TypeVar("Named", "DataArray", "Dataset")


@dataclass(frozen=True)
class MapResult:
    """Result of a map of samples: axes, name and units.

    Attributes
    ----------
    dims : tuple
        Names of the axes other than that of the samples.
    name : str or None
        Name of the result; if None, it has the name and attributes of the samples.
    coordinates : mapping of str to Coordinate
        Coordinates along these axes.
    units : str or None
        Units, if they are known and the result has a name.
    shape : tuple of int
        Lengths of the axes.
    dtype : dtype or None
        Dtype; if None, the one in which rows are multiplied.
    """

    dims: tuple[str, ...]
    name: str | None = None
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    units: str | None = None
    shape: tuple[int, ...] = ()
    dtype: npt.DTypeLike | None = None


@dataclass(frozen=True, eq=False)
class NamedSamples:
    """Samples with names, their axes in the order that a model requires.

    Attributes
    ----------
    array : xarray.DataArray
        Axes of samples first, then the axes of one sample.
    outer : tuple of str
        Names of the axes of samples.
    inner : tuple of str
        The model's names of the axes of one sample; none for a last axis of colours that it converts to grey.
    """

    array: DataArray
    outer: tuple[str, ...]
    inner: tuple[str, ...]

    @classmethod
    def samples(cls, array: DataArray, dims: Sequence[str], raw_shape: tuple[int, ...]) -> NamedSamples:
        """Return raw samples with the axes of one sample last.

        Parameters
        ----------
        array : DataArray
            Samples whose axes have the model's names, in any order. If it has none of these names, axes are assigned by
            the rules for opening a collection; an array with only some of them is refused.
        dims : sequence of str
            Names of a prepared sample's axes.
        raw_shape : tuple of int
            Shape of a raw sample; it has one more axis than a prepared one if colours are converted to grey.

        Raises
        ------
        ModelError
            If no axis of samples remains, or only some of the names occur.
        """
        names = [str(name) for name in array.dims]
        inner = [name for name in dims if name in names]
        rest = [name for name in names if name not in inner]
        if len(names) <= len(raw_shape):
            raise ModelError(
                f"a DataArray of axes {', '.join(names)} has no axis of samples beside the {len(raw_shape)} of one "
                f"({', '.join(dims)}); give one of n samples, such as array.expand_dims('sample') of a single one, or "
                "array.data of samples that are rows of features."
            )
        if 0 < len(inner) < len(dims):
            missing = next(name for name in dims if name not in inner)
            like = max(reversed(rest), key=lambda name: SequenceMatcher(None, name, missing).ratio())
            raise ModelError(
                f"a DataArray of axes {', '.join(names)} has {', '.join(inner)} and not {missing} of one sample's axes "
                f"({', '.join(dims)}); rename the one that it is, such as array.rename({{{like!r}: {missing!r}}})."
            )
        # Either all of the model's names occur, or none, when axes are assigned by their roles.
        unnamed = [name for name in dims if name not in names]
        inner += _further_axes(array, rest, unnamed, len(raw_shape) - len(inner))
        outer = tuple(name for name in names if name not in inner)
        return cls(array.transpose(*outer, *inner), outer, tuple(dims))

    @classmethod
    def scores(cls, array: DataArray) -> NamedSamples:
        """Return scores with their axis ``component``, or else the last axis, last.

        A scalar coordinate ``component``, as of ``scores.sel(component=1)``, becomes an axis of length 1.
        """
        # `sel` with a single number drops the axis and leaves a scalar coordinate.
        if COMPONENT not in array.dims and COMPONENT in array.coords and not array.coords[COMPONENT].ndim:
            array = array.expand_dims(COMPONENT)
        names = [str(name) for name in array.dims]
        inner = COMPONENT if COMPONENT in names else names[-1] if names else ""
        outer = tuple(name for name in names if name != inner)
        if not outer:
            raise RequestError(
                f"scores of axes {', '.join(names) or 'none'} have none of samples; give such as (time, {COMPONENT})."
            )
        return cls(array.transpose(*outer, inner), outer, (COMPONENT,))

    def numbered(self, count: int) -> NamedSamples:
        """Return scores in the order of their components' numbers, from 1, with 0 along omitted components.

        Parameters
        ----------
        count : int
            Number of the model's components.

        Raises
        ------
        RequestError
            If a number is not that of a component, or occurs twice.
        """
        coordinate = self.array.coords.get(COMPONENT)
        if coordinate is None or coordinate.dims != (COMPONENT,) or coordinate.dtype.kind not in "iuf":
            return self
        numbers = coordinate.values.tolist()
        order = order_of(Coordinate(coordinate.values), component_numbers(len(numbers))[COMPONENT])
        if order is not None:
            return self if is_straight(order) else replace(self, array=self.array.isel({COMPONENT: order}))
        if len(set(numbers)) == len(numbers) and all(1 <= number <= count and number % 1 == 0 for number in numbers):
            return replace(self, array=self.array.reindex({COMPONENT: range(1, int(max(numbers)) + 1)}, fill_value=0))
        place = next(place for place, number in enumerate(numbers, 1) if number != place)
        raise RequestError(
            f"scores in place {place} are of component {numbers[place - 1]}, and those of the model are numbered 1 to "
            f"{count}, each once; if they are in order from 1, number them so: "
            f"scores.assign_coords(component=range(1, {len(numbers) + 1}))."
        )

    @property
    def coordinates(self) -> dict[str, Coordinate]:
        """Coordinates of one sample by the model's names of its axes: those named like an axis first."""
        dims = [str(name) for name in self.array.dims[len(self.outer) :]]
        coordinates, model_names = named_coordinates(self.array), dict(zip(dims, self.inner, strict=False))
        renamed = {}
        for name in (*(dim for dim in dims if dim in coordinates), *(name for name in coordinates if name not in dims)):
            # None if the coordinate also varies along an axis of samples.
            coordinate = over_axes(coordinates[name], name, dims)
            if coordinate is not None and set(coordinate.along(name)) <= model_names.keys():
                axes = tuple(model_names[dim] for dim in coordinate.along(name))
                renamed[model_names.get(name, name)] = coordinate._replace(axes=axes)
        return renamed

    @property
    def grid(self) -> Grid:
        """The axes of one sample by the model's names, and coordinates along them."""
        return Grid(self.inner, self.coordinates)

    def facts(self, subject: str) -> SampleFacts:
        """Return names, coordinates and axis of the samples; coordinates of one axis are repeated over the others."""
        axis = self.outer[0] if self.outer else None
        return SampleFacts(subject, f"sample {{}} of {subject}".format, self._sample_coordinates, axis)

    def check(self, result: MapResult) -> None:
        """Refuse samples with an axis that is called like one of the result.

        Raises
        ------
        ModelError
        """
        name = next((name for name in self.outer if name in result.dims), None)
        if name is not None:
            raise ModelError(
                f"axis {name!r} of the samples is called like one of the result ({', '.join(result.dims)}); rename it, "
                f"such as array.rename({{{name!r}: {name + '_'!r}}})."
            )

    def _sample_coordinates(self) -> dict[str, Coordinate]:
        flat = {}
        for name, coordinate in named_coordinates(self.array).items():
            outer = over_axes(coordinate, name, self.outer)
            if outer is not None and outer.along(name):
                sides = zip(self.outer, self.outer_shape, strict=True)
                values = outer.values.reshape([length if dim in outer.along(name) else 1 for dim, length in sides])
                flat[name] = Coordinate(np.broadcast_to(values, self.outer_shape).reshape(-1), coordinate.attributes)
        return flat

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Lengths of the axes of one sample."""
        return self.array.shape[len(self.outer) :]

    def ordered(self, orders: Mapping[int, Order]) -> NamedSamples:
        """Return the samples with the entries along axes of one sample, by index of the axis, in other orders."""
        indices = {
            self.array.dims[len(self.outer) + axis]: slice(None, None, -1) if is_straight(order[::-1]) else order
            for axis, order in orders.items()  # a slice reverses an axis without a copy
        }
        return replace(self, array=self.array.isel(indices)) if indices else self

    @property
    def outer_shape(self) -> tuple[int, ...]:
        """Lengths of the axes of samples."""
        return self.array.shape[: len(self.outer)]

    @property
    def values(self) -> Any:
        """Samples as an array of shape (n, *sample): numpy if they are in memory, else a dask array.

        A file that xarray has not read gets chunks of dask's configured size (``array.chunk-size``).
        """
        array = self.array
        if not _is_read(array):
            array = array.chunk(dict.fromkeys(array.dims[len(self.outer) :], -1) | dict.fromkeys(self.outer, "auto"))
        return array.data.reshape(math.prod(self.outer_shape), *array.shape[len(self.outer) :])

    def prepared_coordinates(self, preparation: Preparation) -> Mapping[str, Coordinate]:
        """Return the samples' coordinates along the axes of prepared ones, by the model's names."""
        return prepared_coordinates(preparation, self.coordinates, self.inner, self.sample_shape)

    def named(self, values: Any, result: MapResult) -> DataArray:
        """Return the values of a result, (n, *lengths of its other axes), as a DataArray with names and coordinates.

        The samples' coordinates are kept along axes that the result has with the same length.
        """
        from xarray import DataArray

        dims, shape = (*self.outer, *result.dims), (*self.outer_shape, *values.shape[1:])
        lengths = dict(zip(dims, shape, strict=True))
        new = {name: item for name, item in result.coordinates.items() if set(item.along(name)) <= set(result.dims)}
        dropped = [
            name
            for name, coordinate in self.array.coords.items()
            if name in (*result.dims, *new) or any(lengths.get(str(dim)) != n for dim, n in coordinate.sizes.items())
        ]
        # Dropped in a Dataset, which drops an index of several levels with them.
        kept = self.array.coords.to_dataset().drop_vars(dropped).coords
        attributes: Mapping[Any, Any] = {"units": result.units} if result.units else {}
        attributes = self.array.attrs if result.name is None else attributes
        name = result.name or self.array.name
        return with_coordinates(DataArray(values.reshape(shape), kept, dims, name=name, attrs=attributes), new)


def _further_axes(array: DataArray, rest: list[str], dims: Sequence[str], count: int) -> list[str]:
    """Choose `count` of the axes `rest` for the axes that a model calls `dims`: by their roles, else the last ones."""
    names = [str(name) for name in array.dims]
    roles = roles_of(names, described_coordinates(array))
    axes = [axis for axis in default_axes(range(len(names)), array.shape, roles).inner if names[axis] in rest]
    if len(axes) != count:
        return rest[len(rest) - count :]
    model_roles = [role_of(dim, {}) for dim in dims]
    if len(set(model_roles)) == count and {roles[axis] for axis in axes} == set(model_roles):  # y for y, x for x
        axes.sort(key=lambda axis: model_roles.index(roles[axis]))
    return [names[axis] for axis in axes]


def one_array(dataset: Dataset, names: Sequence[str], dims: Sequence[str], model: str) -> DataArray:
    """Stack variables of a Dataset along an axis ``variable``; lazily if one is not in memory.

    Raises
    ------
    ModelError
        If a variable is missing, or has other axes than the first.
    """
    missing = next((name for name in names if name not in dataset.data_vars), None)
    if missing is not None:
        raise ModelError(
            f"the Dataset has no variable {missing!r}, on which {model} was fitted ({', '.join(names)}); its variables "
            f"are {', '.join(map(str, dataset.data_vars))}."
        )
    variables = dataset[[*names]]
    for name in names:
        axes, first = (", ".join(map(str, variables[variable].dims)) for variable in (name, names[0]))
        if set(variables[name].dims) != set(variables[names[0]].dims):
            raise ModelError(
                f"variable {name!r} of the Dataset has axes {axes}, and {names[0]!r} has {first}; give variables of "
                "the same axes."
            )
    if any(not _is_read(variables[name]) for name in names):
        variables = variables.chunk({dim: -1 if dim in dims else "auto" for dim in variables.sizes})
    return variables.to_dataarray(VARIABLE)


def by_variable(images: DataArray, samples: Dataset) -> Dataset:
    """Return images of several variables as a Dataset, with the attributes of the samples."""
    dataset = images.to_dataset(VARIABLE)
    for name in dataset.data_vars:
        dataset[name].attrs = dict(samples[name].attrs)
    return dataset.assign_attrs(samples.attrs)


def _is_read(array: DataArray) -> bool:
    """Return False for an array in a file that xarray has not read, True for one in memory or a dask array."""
    # No public attribute says whether xarray has read a file yet; `data` would read all of it.
    return array.chunks is not None or isinstance(getattr(array.variable, "_data", None), np.ndarray)


def with_coordinates(target: Named, coordinates: Mapping[str, Coordinate]) -> Named:
    """Return an array or Dataset with coordinates assigned; those marked as levels become a MultiIndex again."""
    variables: dict[str, tuple[tuple[str, ...], Array, dict[str, Any]]] = {}
    for name, coordinate in coordinates.items():
        attributes = {key: value for key, value in coordinate.attributes.items() if key != LEVEL}
        is_level = LEVEL in coordinate.attributes
        values = decoded_times(coordinate.values, attributes) if is_level else coordinate.values
        variables[name] = (coordinate.along(name), values, {} if is_level else attributes)
    return target.assign_coords(variables).set_index(_indexes_of(coordinates))


def _indexes_of(coordinates: Mapping[str, Coordinate]) -> dict[Any, list[Hashable]]:
    """Return the names of the levels, in order, of each complete MultiIndex, by its axis."""
    levels: dict[str, dict[int, str]] = {}
    for name, coordinate in coordinates.items():
        if LEVEL in coordinate.attributes:
            levels.setdefault(coordinate.along(name)[0], {})[int(coordinate.attributes[LEVEL])] = name
    return {
        dim: [name for _, name in sorted(names.items())]
        for dim, names in levels.items()
        if sorted(names) == [*range(1, len(names) + 1)]
    }


def decoded_times(values: Array, attributes: Mapping[str, Any]) -> Array:
    """Convert numbers with units of time to times; return other values as they are."""
    from xarray import Variable, conventions

    if time_of(Coordinate(values, attributes)) is None:
        return values
    return np.asarray(conventions.decode_cf_variable("level", Variable(("level",), values, dict(attributes))).values)


def dataset_of(model: Model, *further: str) -> Dataset:
    """Return a model as an `xarray.Dataset`; components on disk stay there, as a lazy dask array.

    Names of `further` variables that will be added to it are left free.
    """
    from xarray import Dataset

    _, coordinates, names = stored_axes(model.sample_dims, model.coordinates, type(model), further)
    log_renamed(names, "the dataset")
    variables = {
        name: (
            entry.dims,
            lazy_components(entry.values) if isinstance(entry.values, StoredComponents) else np.asarray(entry.values),
            dict(entry.attributes or {}),
        )
        for name, entry in model_arrays(model, further).items()
        if name not in coordinates
    }
    origin = {key: model.provenance[key] for key in ("source", "created", "streampca") if key in model.provenance}
    title = "principal components" if model.kind == "pca" else f"model of kind {model.kind}"
    dataset = Dataset(variables, attrs={"title": title, **origin})
    for name, attributes in _attributes(model).items():
        if name in dataset:
            dataset[name].attrs.update(attributes)
    return with_coordinates(dataset, coordinates)


def named_scores(model: Model, scores: Any, samples: Any) -> DataArray:
    """Return scores as a DataArray with the numbers of components, and coordinates and names of `samples` if passed.

    Raises
    ------
    RequestError
        If scores have more columns than there are components, or another number of rows than samples.
    """
    from xarray import DataArray

    if getattr(scores, "ndim", 0) != 2 or scores.shape[1] > model.n_scores:
        raise RequestError(
            f"scores have shape {tuple(np.shape(scores))}; give n rows of up to {model.n_scores} columns, as transform "
            "returns them."
        )
    raw = None if samples is None else model.prepared(samples).raw
    if raw is not None and raw.n_samples != len(scores):
        raise RequestError(
            f"{raw.source} has {raw.n_samples} samples and there are {len(scores)} scores; give as many."
        )
    axis, coordinates = "sample" if raw is None else counting_dim(raw), {}
    for name, item in ({} if raw is None else raw.sample_coordinates()).items():
        values = decoded_times(item.values, item.attributes)
        # Units of time describe the numbers, not the decoded dates.
        attributes = {} if values.dtype.kind == "M" else item.attributes
        coordinates[name] = Coordinate(values, attributes, () if name == axis else (axis,))
    if raw is not None and not coordinates and (names := raw.sample_names()) is not None:
        coordinates[axis] = Coordinate(np.array([*names]))
    renamed = stored_names((axis, *coordinates), {COMPONENT})
    log_renamed(renamed, "the scores")
    coordinates, axis = renamed_coordinates(coordinates, renamed), renamed.get(axis, axis)
    units = units_of(model, model.preparation)
    array = DataArray(scores, dims=(axis, COMPONENT), name="scores", attrs={} if units is None else {"units": units})
    return with_coordinates(array, {**coordinates, **component_numbers(scores.shape[1])})


def _attributes(model: Model) -> dict[str, dict[str, str]]:
    """Return long names of a model's arrays, and their units if those of the samples are known."""
    units = units_of(model, model.preparation)
    squared = None if units is None else f"({units})^2"
    stored = model.provenance.get("units")
    in_kernel = "components, orthonormal in the features of a kernel"
    descriptions = {
        "component": ("number of the component", None),
        "components": (in_kernel if model.preparation.maps else model.basis.about_components, "1"),
        "mean": ("mean of the samples", units),
        "explained_variance": ("variance along each component", squared),
        "explained_variance_ratio": ("share of the total variance", "1"),
        "singular_values": ("singular values of the centred samples", units),
        "eigenvalues": ("all variances", squared),
        "total_variance": ("sum of the variances of all pixels", squared),
        "residual_bound": ("bound on the residual, relative to the variance", "1"),
        "error_bound": ("bound on the relative error of the variance", "1"),
        "angle_bound": ("bound on the angle to the true component", "radian"),
        "n_samples": ("samples fitted", "1"),
        "mask": ("pixels analysed", None),
        "scale": ("factors that the samples were multiplied by", "1"),
        "group_mean": ("mean of each group of samples, taken off them", stored),
        "group_weight": ("sum of the weights of each group's samples", "1"),
        "trend": ("change a day, taken off the samples", None if stored is None else f"{stored} day-1"),
        "deviation": ("standard deviation that the samples were divided by", stored),
        "rotated_components": ("rotated components, of unit length over the pixels", "1"),
        "rotated_explained_variance": ("variance along each rotated component", squared),
        "rotated_correlation": ("correlations of scores along rotated components", "1"),
    }
    return {
        name: {"long_name": text} | ({"units": unit} if unit else {}) for name, (text, unit) in descriptions.items()
    }


def units_of(model: Any, preparation: Preparation) -> str | None:
    """Return the units of samples after a preparation, and of their scores; None if unknown."""
    units = model.provenance.get("units")
    changed = preparation.scale is not None or preparation.standardize or preparation.normalize not in (None, "mean")
    return None if changed or units is None else str(units)


def component_numbers(count: int) -> dict[str, Coordinate]:
    """Return the coordinate along the axis of components: their numbers from 1."""
    return {COMPONENT: Coordinate(np.arange(1, count + 1), {"long_name": "number of the principal component"})}
