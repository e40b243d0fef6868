"""Samples, scores and images with names: `xarray.DataArray` in, `xarray.DataArray` out, and a model as a Dataset.

The axes that are not the sample's are the samples', however many and wherever they are: of a field (time, lat, lon)
scores are (time, component), one time series a component, and reconstructions (time, lat, lon) again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

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
from .store import model_arrays
from .transform import lazy_components

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

    from .model import Model

COMPONENT = "component"

Array = npt.NDArray[Any]
Named = TypeVar("Named", "DataArray", "Dataset")


@dataclass(frozen=True)
class MapResult:
    """Result of a map of samples: axes, name and units.

    Attributes
    ----------
    dims : tuple
        Names of its axes beside that of the samples.
    name : str or None
        What it is called; None: as the samples, of whose kind it is, with all that is said of them.
    coordinates : mapping of str to Coordinate
        Along its axes, where samples with names have none of their own.
    units : str or None
        Where they are known and it has a name.
    shape : tuple of int
        Lengths of its axes.
    dtype : dtype or None
        None: that in which rows are multiplied.
    """

    dims: tuple[str, ...]
    name: str | None = None
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    units: str | None = None
    shape: tuple[int, ...] = ()
    dtype: npt.DTypeLike | None = None


@dataclass(frozen=True, eq=False)
class NamedSamples:
    """Samples with names, put in the order in which a model takes them.

    Attributes
    ----------
    array : xarray.DataArray
        Axes of the samples first, then those of one sample.
    outer : tuple of str
        Names of the former.
    inner : tuple of str
        What the model calls the latter; colours that it makes grey, the last, it calls nothing.
    """

    array: DataArray
    outer: tuple[str, ...]
    inner: tuple[str, ...]

    @classmethod
    def samples(cls, array: DataArray, dims: Sequence[str], raw_shape: tuple[int, ...]) -> NamedSamples:
        """Samples as they are stored.

        Parameters
        ----------
        array : DataArray
            With the axes of a raw sample, by the model's names in any order. If it has none of these names, axes are
            told apart as where a collection is opened; of some of them only, what the others are would be a guess.
        dims : sequence of str
            Names of a prepared sample's axes.
        raw_shape : tuple of int
            Of a raw sample; it has axes more than the prepared one where colours were made grey.

        Raises
        ------
        ModelError
            If no axis of samples is left, or only some of the names are there.
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
        unnamed = [name for name in dims if name not in names]
        inner += _further_axes(array, rest, unnamed, len(raw_shape) - len(inner))
        outer = tuple(name for name in names if name not in inner)
        return cls(array.transpose(*outer, *inner), outer, tuple(dims))

    @classmethod
    def scores(cls, array: DataArray) -> NamedSamples:
        """Scores, by their axis ``component``, or the last one; of one component where that is a single coordinate."""
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
        """Scores in the order of their components' numbers, from 1 on, and 0 along those that are left out.

        Parameters
        ----------
        count : int
            Components there are.

        Raises
        ------
        RequestError
            If numbers are not those of components, or one occurs twice.
        """
        given = self.array.coords.get(COMPONENT)
        if given is None or given.dims != (COMPONENT,) or given.dtype.kind not in "iuf":
            return self
        numbers = given.values.tolist()
        order = order_of(Coordinate(given.values), component_numbers(len(numbers))[COMPONENT])
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
        """Coordinates of one sample, under the model's names of its axes: first those of axes, then the others."""
        own = [str(name) for name in self.array.dims[len(self.outer) :]]
        known, called = named_coordinates(self.array), dict(zip(own, self.inner, strict=False))
        found = {}
        for name in (*(dim for dim in own if dim in known), *(name for name in known if name not in own)):
            each = over_axes(known[name], name, own)
            if each is not None and set(each.along(name)) <= called.keys():
                axes = tuple(called[dim] for dim in each.along(name))
                found[called.get(name, name)] = each._replace(axes=axes)
        return found

    @property
    def grid(self) -> Grid:
        """The axes of one sample, by the model's names, and coordinates along them."""
        return Grid(self.inner, self.coordinates)

    def facts(self, subject: str) -> SampleFacts:
        """Return what the array knows of its samples: coordinates along any of their axes, repeated over the others."""
        axis = self.outer[0] if self.outer else None
        return SampleFacts(subject, f"sample {{}} of {subject}".format, self._sample_coordinates, axis)

    def _sample_coordinates(self) -> dict[str, Coordinate]:
        found = {}
        for name, each in named_coordinates(self.array).items():
            own = over_axes(each, name, self.outer)
            if own is not None and own.along(name):
                sides = zip(self.outer, self.outer_shape, strict=True)
                values = own.values.reshape([length if dim in own.along(name) else 1 for dim, length in sides])
                found[name] = Coordinate(np.broadcast_to(values, self.outer_shape).reshape(-1), each.attributes)
        return found

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Lengths of the axes of one sample."""
        return self.array.shape[len(self.outer) :]

    def ordered(self, orders: Mapping[int, Order]) -> NamedSamples:
        """Put the entries of axes of one sample, by their numbers, in other orders."""
        places = {
            self.array.dims[len(self.outer) + axis]: slice(None, None, -1) if is_straight(order[::-1]) else order
            for axis, order in orders.items()  # turning an axis round copies nothing
        }
        return replace(self, array=self.array.isel(places)) if places else self

    @property
    def outer_shape(self) -> tuple[int, ...]:
        """Lengths of the axes of samples."""
        return self.array.shape[: len(self.outer)]

    @property
    def values(self) -> Any:
        """Samples as an array of shape (n, *sample): numpy where it is in memory, else lazy.

        A file that xarray has not read is cut into chunks of the bytes that dask is set to (``array.chunk-size``).
        """
        array = self.array
        if not _is_read(array):
            array = array.chunk(dict.fromkeys(array.dims[len(self.outer) :], -1) | dict.fromkeys(self.outer, "auto"))
        return array.data.reshape(math.prod(self.outer_shape), *array.shape[len(self.outer) :])

    def prepared_coordinates(self, preparation: Preparation) -> Mapping[str, Coordinate]:
        """The samples' own along the axes of prepared ones, by the model's names."""
        return prepared_coordinates(preparation, self.coordinates, self.inner, self.sample_shape)

    def named(self, values: Any, result: MapResult) -> DataArray:
        """Name what was made of the samples, (n, *lengths of its other axes), with all that is known along these.

        Coordinates that the result does not bring come from the samples, where they have the same axes and lengths.
        """
        from xarray import DataArray

        whole, shape = (*self.outer, *result.dims), (*self.outer_shape, *values.shape[1:])
        if len(set(whole)) < len(whole):
            raise ModelError(
                f"an axis of the samples is called like one of the result ({', '.join(result.dims)}); rename it."
            )
        lengths = dict(zip(whole, shape, strict=True))
        brought = {name: each for name, each in result.coordinates.items() if set(each.along(name)) <= set(result.dims)}
        left_out = [
            name
            for name, own in self.array.coords.items()
            if name in (*result.dims, *brought) or any(lengths.get(str(dim)) != n for dim, n in own.sizes.items())
        ]
        own = self.array.coords.to_dataset().drop_vars(left_out)  # also drops an index of several levels
        about: Mapping[Any, Any] = {"units": result.units} if result.units else {}
        about = self.array.attrs if result.name is None else about
        made = DataArray(values.reshape(shape), own.coords, whole, name=result.name or self.array.name, attrs=about)
        return with_coordinates(made, brought)


def _further_axes(array: DataArray, rest: list[str], dims: Sequence[str], count: int) -> list[str]:
    """Choose so many axes of one sample for those that a model calls `dims`: by default the last ones of the rest."""
    names = [str(name) for name in array.dims]
    roles = roles_of(names, described_coordinates(array))
    taken = [axis for axis in default_axes(range(len(names)), array.shape, roles).inner if names[axis] in rest]
    if len(taken) != count:
        return rest[len(rest) - count :]
    wanted = [role_of(dim, {}) for dim in dims]
    if len(set(wanted)) == count and {roles[axis] for axis in taken} == set(wanted):  # y for y, x for x
        taken.sort(key=lambda axis: wanted.index(roles[axis]))
    return [names[axis] for axis in taken]


def one_array(dataset: Dataset, names: Sequence[str], dims: Sequence[str], model: str) -> DataArray:
    """Stack variables of a Dataset along an axis ``variable``; lazily where one is not in memory.

    Raises
    ------
    ModelError
        If a variable is not there, or has other axes than the first.
    """
    missing = next((name for name in names if name not in dataset.data_vars), None)
    if missing is not None:
        raise ModelError(
            f"the Dataset has no variable {missing!r}, on which {model} was fitted ({', '.join(names)}); its variables "
            f"are {', '.join(map(str, dataset.data_vars))}."
        )
    own = dataset[[*names]]
    for name in names:
        axes, first = (", ".join(map(str, own[each].dims)) for each in (name, names[0]))
        if set(own[name].dims) != set(own[names[0]].dims):
            raise ModelError(
                f"variable {name!r} of the Dataset has axes {axes}, and {names[0]!r} has {first}; give variables of "
                "the same axes."
            )
    if any(not _is_read(own[name]) for name in names):
        own = own.chunk({dim: -1 if dim in dims else "auto" for dim in own.sizes})
    return own.to_dataarray(VARIABLE)


def by_variable(made: DataArray, given: Dataset) -> Dataset:
    """Return images of several variables as a Dataset, with the attributes that the samples have."""
    found = made.to_dataset(VARIABLE)
    for name in found.data_vars:
        found[name].attrs = dict(given[name].attrs)
    return found.assign_attrs(given.attrs)


def _is_read(array: DataArray) -> bool:
    """Return False for an array in a file that xarray has not read, True for one in memory or of dask."""
    # No public attribute says whether xarray has read a file yet; `data` would read all of it.
    return array.chunks is not None or isinstance(getattr(array.variable, "_data", None), np.ndarray)


def with_coordinates(made: Named, coordinates: Mapping[str, Coordinate]) -> Named:
    """Return an array or Dataset with coordinates assigned; levels marked as such become a MultiIndex again."""
    found: dict[str, tuple[tuple[str, ...], Array, dict[str, Any]]] = {}
    for name, each in coordinates.items():
        about = {key: value for key, value in each.attributes.items() if key != LEVEL}
        is_level = LEVEL in each.attributes
        values = decoded_times(each.values, about) if is_level else each.values
        found[name] = (each.along(name), values, {} if is_level else about)
    return made.assign_coords(found).set_index(_indexes_of(coordinates))


def _indexes_of(coordinates: Mapping[str, Coordinate]) -> dict[Any, list[Hashable]]:
    """Return the names of the levels, in order, of each MultiIndex that has all of them, by its axis."""
    levels: dict[str, dict[int, str]] = {}
    for name, each in coordinates.items():
        if LEVEL in each.attributes:
            levels.setdefault(each.along(name)[0], {})[int(each.attributes[LEVEL])] = name
    return {
        dim: [name for _, name in sorted(own.items())]
        for dim, own in levels.items()
        if sorted(own) == [*range(1, len(own) + 1)]
    }


def decoded_times(values: Array, attributes: Mapping[str, Any]) -> Array:
    """Convert numbers with units of time to times; return other values as they are."""
    from xarray import Variable, conventions

    if time_of(Coordinate(values, attributes)) is None:
        return values
    return np.asarray(conventions.decode_cf_variable("level", Variable(("level",), values, dict(attributes))).values)


def dataset_of(model: Model) -> Dataset:
    """Return a model as an `xarray.Dataset`; components on disk stay there, in a lazy dask array."""
    from xarray import Dataset

    own = {
        name: (
            entry.dims,
            lazy_components(entry.values) if isinstance(entry.values, StoredComponents) else np.asarray(entry.values),
            dict(entry.attributes or {}),
        )
        for name, entry in model_arrays(model).items()
        if name not in model.coordinates
    }
    about = {key: model.provenance[key] for key in ("source", "created", "streampca") if key in model.provenance}
    title = "principal components" if model.kind == "pca" else f"model of kind {model.kind}"
    made = Dataset(own, attrs={"title": title, **about})
    for name, attributes in _attributes(model).items():
        if name in made:
            made[name].attrs.update(attributes)
    return with_coordinates(made, model.coordinates)


def named_scores(model: Model, scores: Any, samples: Any) -> DataArray:
    """Return scores with the numbers of their components, and the coordinates and names of samples if these are given.

    Raises
    ------
    RequestError
        If scores are of more components than there are, or not as many as samples.
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
    known = {} if raw is None else raw.sample_coordinates()
    along = {name: item._replace(values=decoded_times(item.values, item.attributes)) for name, item in known.items()}
    along = {
        name: item if item.values.dtype.kind != "M" else item._replace(attributes={}) for name, item in along.items()
    }
    axis = "sample" if raw is None else counting_dim(raw, ())
    if raw is not None and not along and (names := raw.sample_names()) is not None:
        along[axis] = Coordinate(np.array([*names]))
    units = units_of(model, model.preparation)
    made = DataArray(scores, dims=(axis, COMPONENT), name="scores", attrs={} if units is None else {"units": units})
    return with_coordinates(made, {**along, **component_numbers(scores.shape[1])})


def _attributes(model: Model) -> dict[str, dict[str, str]]:
    """Return long names of a model's arrays, with units where they follow from those of the samples."""
    units = units_of(model, model.preparation)
    squared = None if units is None else f"({units})^2"
    stored = model.provenance.get("units")
    in_kernel = "components, orthonormal in the features of a kernel"
    known = {
        "component": ("number of the component", None),
        "components": (in_kernel if model.preparation.maps else model.basis.about_components, "1"),
        "mean": ("mean of the samples", units),
        "explained_variance": ("variance along each component", squared),
        "explained_variance_ratio": ("share of the total variance", "1"),
        "singular_values": ("singular values of the centred samples", units),
        "eigenvalues": ("all variances", squared),
        "total_variance": ("sum of the variances of all pixels", squared),
        "error_bound": ("bound on the residual, relative to the variance", "1"),
        "variance_bound": ("bound on the relative error of the variance", "1"),
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
    return {name: {"long_name": text} | ({"units": unit} if unit else {}) for name, (text, unit) in known.items()}


def units_of(model: Any, preparation: Preparation) -> str | None:
    """The units of samples prepared by some of a model's steps, and of their scores; None where they are not known."""
    units = model.provenance.get("units")
    changed = preparation.scale is not None or preparation.standardize or preparation.normalize not in (None, "mean")
    return None if changed or units is None else str(units)


def component_numbers(count: int) -> dict[str, Coordinate]:
    """The coordinate of components: from 1."""
    return {COMPONENT: Coordinate(np.arange(1, count + 1), {"long_name": "number of the principal component"})}
