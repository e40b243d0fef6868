"""Models in Zarr, format 1: one group that is one xarray Dataset, complete or visibly not.

The root attribute ``streampca`` marks the group as ours from the start; it becomes ``complete: true`` after the last
array is written, then the metadata are consolidated. An incomplete group is replaced by the next run; a group without
the attribute belongs to another program and is never touched.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import zarr

from ..accumulators import Accumulator, FrequentDirections, Scatter
from ..arrays import Array
from ..errors import RequestError
from ..machine import hand_back
from ..planning.component_chunks import PIECE, TILE
from ..preprocessing import Preparation, unflatten
from ..preprocessing.landmark_rows import LandmarkRows
from ..preprocessing.learned import Learned
from ..readers.stored.axis_roles import grid_mapping
from ..signals import safe_point
from ..storage.components import NAME as COMPONENTS
from ..storage.components import ComponentWriter, RowsToCome, StoredComponents, StoredRows, UnfinishedComponents
from ..storage.coordinate import Coordinate
from ..storage.disk import sync_files
from ..storage.integrity import (
    FORMAT,
    OpenModel,
    check_metadata,
    damaged,
    metadata_digest,
    naming_damage,
    read_model,
    seal,
)
from ..storage.locks import output_lock
from ..storage.outputs import check_existing, discard, group_attribute, recover, staged
from ..storage.stored_arrays import NamedArray, write_arrays
from ..storage.stored_names import (
    log_renamed,
    original_names,
    originals_of,
    renamed_axes,
    renamed_coordinates,
    stored_names,
)
from ..storage.writers import ATTRIBUTE, UnfinishedOutput, consolidate, files_but
from ..storage.zarr_urls import METADATA
from .map_arrays import MAP, MAP_AXES, read_map, write_rows
from .ome_metadata import ome_attribute
from .registry import MODEL_KINDS

if TYPE_CHECKING:
    from .model import Model
    from .pca import PCAModel


_ENDING = re.compile(r"\.[^\W\d]\w*$")  # ending of a file format; the .95 of model-0.95 is not one
HELD_SHARE = 4  # components are read into memory up to 1 / 4 of the budget, as work on them makes copies
PIECE_SHARE = 16  # other components are read in pieces of 1 / 16 of the budget
OME = "ome"  # root attribute that programs for OME-Zarr read
BESIDE = "coordinates"  # root attribute that xarray reads: names of coordinates other than those of axes
STATE = "state"  # sub-group of the mergeable statistic
BOUNDS = ("residual_bound", "angle_bound", "error_bound")
PER_COMPONENT = ("explained_variance", "explained_variance_ratio", "singular_values", *BOUNDS)
SAMPLE = ("sample",)  # placeholder for the names of the sample's axes
# Arrays other than components and coordinates, with their axes: those of `REQUIRED`, and optional ones.
AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(PER_COMPONENT, ("component",)),
    **dict.fromkeys(("mean", "mask", "scale"), SAMPLE),
    **dict.fromkeys(("n_samples", "total_variance", "total_weight", "outside"), ()),
    "eigenvalues": ("eigenvalue",),
}
BEFORE_MAP = "pixel_"  # prefix of mask and scale before a map, and of the axes of pixels
GROUP = "group"  # axis of means of groups
DERIVED = ("explained_variance_ratio", "singular_values")  # written for other programs, and not read
REQUIRED = ("mean", "explained_variance", *BOUNDS, "n_samples", "total_variance")


@dataclass(frozen=True)
class OverPixels:
    """Lazy view of rows of features, (m, p), as arrays of pixels, (m, *sample_shape), NaN outside the mask."""

    rows: Array
    sample_shape: tuple[int, ...]
    mask: npt.NDArray[np.bool_] | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of pixels."""
        return (len(self.rows), *self.sample_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the rows."""
        return self.rows.dtype

    def __getitem__(self, rows: slice) -> Array:
        return unflatten(self.rows[rows], self.sample_shape, self.mask)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)


class ModelWriter:
    """Writer of a model and, range by range, its components; the folder gets its final name when it is complete.

    Parameters
    ----------
    path : str
        New folder.
    overwrite : bool, default=False
        Replace an existing model.
    keeps : bool, default=False
        Keep the partial folder if writing is interrupted after `ComponentWriter.sync`, so that another writer can
        resume it. It is created with the components. By default it is created at once, and removed on an interruption.

    Raises
    ------
    OutputError
        If the path exists, or cannot be written.

    Examples
    --------
    >>> with ModelWriter("model.zarr") as writer:  # doctest: +SKIP
    ...     sink = writer.components((k, *sample_shape), dims=("y", "x"), dtype="f4", mask=None)
    ...     for features in sink.ranges(most_features):
    ...         sink.write(features, loadings(features))
    ...     writer.finish(model)
    """

    def __init__(self, path: str, *, overwrite: bool = False, keeps: bool = False) -> None:
        self._path, self._overwrite, self._keeps = path, overwrite, keeps
        self._sink: ComponentWriter | None = None
        self._stack = ExitStack()

    def __enter__(self) -> ModelWriter:
        with self._stack as stack:  # a failure in here also removes the folder and the lock
            stack.enter_context(output_lock(self._path))
            check_model_output(self._path, overwrite=self._overwrite)
            if not self._keeps:
                self._open(stack, None)
            self._stack = stack.pop_all()
        return self

    def _open(self, stack: ExitStack, unfinished: UnfinishedOutput | None) -> None:
        """Create the folder, or reopen a partial one and remove everything but its components."""
        self._partial = stack.enter_context(staged(self._path, unfinished))
        if unfinished is not None and unfinished.is_resumable:
            for name in os.listdir(self._partial):
                if name != COMPONENTS:
                    discard(os.path.join(self._partial, name))
        attributes = {ATTRIBUTE: {"format": FORMAT, "complete": False}}
        self._root = zarr.create_group(self._partial, zarr_format=3, attributes=attributes)

    def __exit__(self, *raised: Any) -> bool | None:
        return self._stack.__exit__(*raised)

    def components(
        self,
        shape: tuple[int, ...],
        *,
        dims: tuple[str, ...],
        dtype: npt.DTypeLike,
        mask: npt.NDArray[np.bool_] | None = None,
        attributes: Mapping[str, Any] | None = None,
        identity: str | None = None,
        resume: UnfinishedComponents | None = None,
    ) -> ComponentWriter:
        """Create the array of components, (k, *sample_shape), which is written by ranges of features.

        Parameters
        ----------
        shape : tuple of int
            (k, *sample_shape).
        dims : tuple of str
            Names of the sample's axes.
        dtype : dtype
            float32 or float64.
        mask : ndarray of bool, optional
            Pixels that are features; NaN is stored outside.
        attributes : mapping, optional
            Further attributes of the array.
        identity : str, optional
            Identity of the components that these are a copy of.
        resume : UnfinishedComponents, optional
            State of an interrupted writer with `keeps`; resumed if its folder exists, see `ComponentWriter.resumed`.
        """
        unfinished = None
        if self._keeps:
            unfinished = UnfinishedOutput() if resume is None else resume.output
            self._open(self._stack, unfinished)
        self._sink = ComponentWriter(
            self._root,
            shape,
            dims=dims,
            dtype=dtype,
            mask=mask,
            attributes=attributes,
            identity=identity,
            unfinished=unfinished,
            resume=resume,
        )
        return self._sink

    def stored(self) -> StoredComponents:
        """Return the components being written, readable when the model is complete."""
        array: Any = self._root[COMPONENTS]
        digest = metadata_digest(os.path.join(self._partial, COMPONENTS, METADATA))
        return StoredComponents.of(self._path, array, digest=digest)

    def unfinished_rows(self, mask: npt.NDArray[np.bool_] | None = None) -> StoredRows:
        """Return the components being written as rows of the features inside a mask, readable before the end."""
        array: Any = self._root[COMPONENTS]
        return RowsToCome(StoredComponents.of(self._partial, array, TILE, digest=None), array.shape[0], mask)

    def finish(self, model: Model, statistic: Accumulator | None = None) -> None:
        """Write the remaining arrays, and mark the model complete.

        Parameters
        ----------
        model : Model
            The model; its components are written unless `components` was called.
        statistic : Accumulator, optional
            Mergeable statistic, for the sub-group ``state``.
        """
        if self._sink is not None:
            self._sink.write_outside()
        arrays = model_arrays(model)
        components = arrays.pop(COMPONENTS)
        if self._sink is None:
            values = components.values
            sink = self.components(
                values.shape,
                dims=components.dims[1:],
                dtype=values.dtype,
                attributes=components.attributes,
                identity=values.identity if isinstance(values, StoredComponents) else None,
            )
            sink.copy(values)
        for name in [name for name, array in arrays.items() if isinstance(array.values, LandmarkRows)]:
            landmarks = arrays.pop(name)
            write_rows(self._root, name, landmarks.dims, landmarks.values)
        write_arrays(self._root, arrays)
        if statistic is not None:
            self._write_state(statistic)
        # The attribute that says `complete` is written last: until then a reader refuses the model.
        dims, coordinates, names = stored_axes(model.sample_dims, model.coordinates, type(model))
        attribute = {"format": FORMAT, "kind": model.kind, "complete": True, **model_attributes(model)}
        attribute |= originals_of(names, ())
        log_renamed(names, self._path)
        others = " ".join(name for name in coordinates if name not in dims)
        ome = ome_attribute(model.basis)
        self._root.attrs.put(
            {ATTRIBUTE: attribute} | ({BESIDE: others} if others else {}) | ({OME: ome} if ome else {})
        )
        consolidate(self._partial)
        seal(self._partial)
        if self._keeps and self._sink is not None:
            self._sink.sync()
            sync_files(files_but(self._partial, COMPONENTS), self._partial)

    def _write_state(self, statistic: Accumulator) -> None:
        """Write the mergeable statistic: its numbers as attributes of the sub-group, as an array takes two files."""
        state = statistic.state(copy=False)
        numbers = {name: values.item() for name, values in state.items() if not values.ndim}
        group = self._root.create_group(STATE, attributes={"kind": statistic.kind, **numbers})
        arrays = {name: values for name, values in state.items() if values.ndim}
        write_arrays(
            group,
            {
                name: NamedArray(tuple(f"{name}_{axis}" for axis in range(values.ndim)), values)
                for name, values in arrays.items()
            },
        )


def _in_fortran_order(array: Any) -> Array:
    """Read an array, a matrix in Fortran order as LAPACK requires it, in chunks and so without a second copy."""
    if array.ndim < 2:
        return np.asarray(array[...])
    matrix = np.empty(array.shape, array.dtype, order="F")
    rows = max(1, array.chunks[0])
    for start in range(0, len(matrix), rows):
        safe_point()
        matrix[start : start + rows] = array[start : start + rows]
    return matrix


def kind_of_statistic(model: str | PCAModel) -> str | None:
    """Return the kind of the statistic of a model, in memory or at a path; None if it has none.

    Raises
    ------
    ModelError
        As `read_model`.
    """
    if not isinstance(model, str):
        return None if model.statistic is None else model.statistic.kind
    state = read_model(model, MODEL_KINDS).metadata.get(STATE)
    return None if state is None else str(state.attributes.get("kind"))


def read_statistic(path: str, *, memory: int | None = None) -> Scatter | FrequentDirections | None:
    """Read the statistic to which samples, or other models, can be added; None if the model has none.

    Raises
    ------
    ModelError
        As `read_model`, and if the statistic is damaged.
    BudgetError
        If it takes more than `memory` bytes.
    """
    opened = read_model(path, MODEL_KINDS, memory=memory)
    if STATE not in opened.metadata:
        return None
    attributes = opened.metadata[STATE].attributes
    kind = attributes.get("kind")
    statistics: tuple[Scatter | FrequentDirections, ...] = (Scatter(1), FrequentDirections(1, rows=1))
    empty = {statistic.kind: statistic for statistic in statistics}.get(str(kind))
    if empty is None:
        raise damaged(path, STATE, f"it is of kind {kind!r}")
    # Only the arrays of this statistic are read, whatever else the group holds.
    names = [name for name, values in empty.state().items() if values.ndim]
    opened.check_fits(*(f"{STATE}/{name}" for name in names))
    arrays = {name: opened.read(f"{STATE}/{name}", _in_fortran_order) for name in names}
    with naming_damage(path, STATE):
        state = {name: values for name, values in arrays.items() if values is not None}
        state |= {name: np.array(value) for name, value in attributes.items() if isinstance(value, (int, float))}
        if isinstance(empty, Scatter):
            p = len(state["centre"])
            fits = state["scatter"].shape == (p, p) and state["total"].shape == (p,)
        else:
            p, rows = len(state["mean"]), int(state["rows"])
            fits = rows <= p and len(state["sketch"]) <= 2 * rows
            fits = fits and state["sketch"].shape[1:] == state["squares"].shape == (p,)
        if not fits:
            raise ValueError(f"its arrays have the shapes {[values.shape for values in state.values()]}")
        return type(empty).from_state(state, copy=False)


def model_arrays(model: Model, further: Iterable[str] = ()) -> dict[str, NamedArray]:
    """Return the arrays of a model's root Dataset: those of its components, and those that its kind declares.

    No axis or coordinate has a name of `further` arrays.
    """
    dims, coordinates, _ = stored_axes(model.sample_dims, model.coordinates, type(model), further)
    basis = model.basis
    arrays = {
        "component": NamedArray(("component",), np.arange(1, len(basis.components) + 1)),
        "components": NamedArray(("component", *dims), basis.components),
    }
    values = {name: None if name == "scale" else getattr(basis, name) for name in AXES}
    values["scale"] = model.preparation.full_scale(model.sample_shape)
    values |= {f"{model.prefix}{name}": getattr(model, name) for name in model.own_arrays()}
    for name, axes in {**AXES, **stored_arrays(type(model))}.items():
        if values[name] is not None:
            arrays[name] = NamedArray(over_pixels(axes, dims), np.asarray(values[name]))
    arrays |= _learned_arrays(model, dims) | _map_arrays(model)
    for name, array in arrays.items():
        arrays[name] = replace(array, attributes=grid_mapping(array.dims, coordinates))
    for name, coordinate in coordinates.items():
        arrays[name] = NamedArray(coordinate.along(name), coordinate.values, coordinate.attributes)
    return arrays


def stored_arrays(kind: type[Model]) -> dict[str, tuple[str, ...]]:
    """Return the names under which the arrays that a kind declares are stored, with their axes."""
    return {f"{kind.prefix}{name}": axes for name, axes in kind.own_arrays().items()}


def over_pixels(axes: tuple[str, ...], dims: tuple[str, ...]) -> tuple[str, ...]:
    """Return axes with `SAMPLE` replaced by the names of a sample's axes."""
    return tuple(name for axis in axes for name in (dims if axis == SAMPLE[0] else (axis,)))


def stored_axes(
    dims: Sequence[str], coordinates: Mapping[str, Coordinate], kind: type[Model], further: Iterable[str] = ()
) -> tuple[tuple[str, ...], dict[str, Coordinate], dict[str, str]]:
    """Return the names of a sample's axes and the coordinates as a kind of model stores them, and what is renamed."""
    names = stored_names((*dims, *coordinates), names_of_arrays(kind) | {*further})
    return renamed_axes(dims, names), renamed_coordinates(coordinates, names), names


def kept_coordinates(coordinates: Mapping[str, Coordinate], dims: tuple[str, ...]) -> dict[str, Coordinate]:
    """Return the coordinates along the axes `dims` that models can store."""
    unstorable = unstorable_coordinates(coordinates, dims)
    return {name: along for name, along in _coordinates_along(coordinates, dims).items() if name not in unstorable}


def unstorable_coordinates(coordinates: Mapping[str, Coordinate], dims: tuple[str, ...]) -> list[str]:
    """Return the coordinates along `dims` whose names cannot be folders of a store, or parts of a list with spaces."""

    def is_storable(name: str) -> bool:
        separators = any(letter.isspace() or letter in "/\\" for letter in name)
        return bool(name) and not name.startswith((".", "_")) and not separators

    return [name for name in _coordinates_along(coordinates, dims) if not (name in dims or is_storable(name))]


def _coordinates_along(coordinates: Mapping[str, Coordinate], dims: tuple[str, ...]) -> dict[str, Coordinate]:
    return {name: entry for name, entry in coordinates.items() if set(entry.along(name)) <= set(dims)}


def names_of_arrays(kind: type[Model]) -> set[str]:
    """Return the names of the arrays of a kind of model, and of their axes other than a sample's."""
    arrays = {**AXES, **stored_arrays(kind)}
    names = {COMPONENTS, "group_mean", "group_weight", GROUP, "trend", "deviation", STATE, *DERIVED, *arrays}
    return names.union(*arrays.values()) - {*SAMPLE}


def _learned_arrays(model: Model, dims: tuple[str, ...]) -> dict[str, NamedArray]:
    """Return the arrays that the preparation has learned, over pixels: NaN outside the mask.

    The axes of a sample are called `dims`.
    """
    learned = model.preparation.learned
    if learned is None:
        return {}
    if model.preparation.maps:
        dims, shape, mask = _before_map(model)
    else:
        shape, mask = model.sample_shape, model.mask
    arrays = {"group_mean": NamedArray((GROUP, *dims), OverPixels(learned.means, shape, mask))}
    arrays["group_weight"] = NamedArray((GROUP,), learned.weights)
    for name, values in (("trend", learned.trend), ("deviation", learned.deviation)):
        if values is not None:
            arrays[name] = NamedArray(dims, unflatten(values[None], shape, mask)[0])
    return arrays if learned.groups is None else arrays | {GROUP: NamedArray((GROUP,), learned.groups)}


def _before_map(model: Model) -> tuple[tuple[str, ...], tuple[int, ...], npt.NDArray[np.bool_] | None]:
    """Return names and lengths of the axes of pixels before the feature map, and their mask."""
    before = model.frame.before_map
    dims = tuple(f"{BEFORE_MAP}{axis}" for axis in range(len(before.sample_shape)))
    return dims, before.sample_shape, before.mask


def _map_arrays(model: Model) -> dict[str, NamedArray]:
    """Return the arrays of the preparation's feature map, and of the steps before it."""
    mapped = model.preparation.mapped
    if mapped is None:
        return {}
    arrays = {f"{MAP}{name}": NamedArray(MAP_AXES[name], values) for name, values in mapped.arrays().items()}
    dims, shape, mask = _before_map(model)
    if mask is not None:
        arrays[f"{BEFORE_MAP}mask"] = NamedArray(dims, mask)
    scale = model.preparation.unmapped.full_scale(shape)
    return arrays if scale is None else arrays | {f"{BEFORE_MAP}scale": NamedArray(dims, scale)}


def _read_learned(
    opened: OpenModel, prepared: Mapping[str, Any], mask: Array | None, sample: tuple[int, ...]
) -> Learned | None:
    """Read the arrays that an opened model's preparation has learned; None if it has no learned step."""
    if not any(prepared[name] for name in ("anomaly", "detrend", "standardize")):
        return None
    p = math.prod(sample) if mask is None else int(np.count_nonzero(mask))

    def features(array: Any) -> Array:
        """Read an array of pixels, or of groups by pixels, a chunk at a time, as rows of features."""
        if array.shape not in (sample, (*array.shape[:1], *sample)):
            raise ValueError(f"it has shape {tuple(array.shape)}, and samples have {sample}")
        is_single = array.shape == sample
        rows = np.empty((1 if is_single else array.shape[0], p))
        step = len(rows) if is_single else max(1, array.chunks[0])
        for start in range(0, len(rows), step):
            pixels = np.asarray(array[...] if is_single else array[start : start + step]).reshape(-1, math.prod(sample))
            rows[start : start + step] = pixels if mask is None else pixels.compress(mask.ravel(), axis=1)
            if not _is_finite(rows[start : start + step], None):
                raise ValueError("values are missing")
        return rows[0] if is_single else rows

    means, trend, deviation = (opened.read(name, features) for name in ("group_mean", "trend", "deviation"))
    hand_back()  # memory freed by decoding, else the peak would grow with the next arrays
    weights, groups = opened.read("group_weight"), None
    if means is not None and prepared["anomaly"]:
        groups = opened.read(GROUP)
    needed = {
        "group_mean": (means, True),
        "group_weight": (weights, True),
        "group": (groups, prepared["anomaly"]),
        "trend": (trend, prepared["detrend"]),
        "deviation": (deviation, prepared["standardize"]),
    }
    for name, (values, is_needed) in needed.items():
        if is_needed and values is None:
            raise opened.damaged(name, "there is no such array")
        if means is not None and name in ("group_weight", "group") and values is not None and len(values) != len(means):
            raise opened.damaged(name, f"it has {len(values)} entries for {len(means)} groups")
    return Learned(
        means=cast("Array", means),
        weights=cast("Array", weights),
        groups=None if groups is None else _as_strings(groups),
        trend=trend,
        origin=float(prepared.get("trend_origin", 0.0)),
        calendar=str(prepared.get("calendar", "")),
        deviation=deviation,
    )


def model_attributes(model: Model) -> dict[str, Any]:
    """Return the data of a model that are stored as attributes: provenance and preparation."""
    raw: dict[str, Any] = {"raw_shape": list(model.raw_shape), "raw_kind": model.raw_kind}
    learned = model.preparation.learned
    if learned is not None and learned.trend is not None:
        raw |= {"trend_origin": learned.origin, "calendar": learned.calendar}
    return {"provenance": dict(model.provenance), "preparation": {**model.preparation.to_json(), **raw}}


def read_fields(opened: OpenModel, memory: int, function: Callable[..., float] | None = None) -> dict[str, Any]:
    """Read the fields of an opened model's components; raises as `read_model`.

    Components stay on disk if they take more than 1 / `HELD_SHARE` of `memory` bytes. Only arrays that the format and
    the kind declare are read. `function` is the kernel of the model, if that is not a built-in one.
    """
    path = opened.path
    names, dims = _checked_names(opened)
    opened.check_fits(*names)
    arrays = {name: values for name in names if (values := opened.read(name)) is not None}
    mask = arrays["mask"].astype(bool) if "mask" in arrays else None
    if not _is_finite(arrays["mean"], mask):
        raise damaged(path, "mean", "values are missing")
    with naming_damage(path, "its attributes"):  # any error that attributes written by others cause
        prepared, provenance = opened.about["preparation"], _checked_provenance(opened.about["provenance"])
        raw = {"raw_shape": tuple(prepared["raw_shape"]), "raw_kind": prepared["raw_kind"]}
        feature_map, mapped = read_map(opened, prepared, function, memory)
        pixels, scale, sample = mask, arrays.get("scale"), opened.array("mean").shape
        if mapped is not None:  # mean and mask are of mapped features; these steps come before the map
            pixels, scale = (opened.read(f"{BEFORE_MAP}{name}") for name in ("mask", "scale"))
            pixels = None if pixels is None else pixels.astype(bool)
            sample = Preparation.from_json({**prepared, "scale": None}).of_images.shape_of(raw["raw_shape"])
        learned = _read_learned(opened, prepared, pixels, sample)
        preparation = Preparation.from_json(prepared, pixels, scale, learned, feature_map, mapped)
    fields = {name: arrays.get(name) for name in AXES if name not in (*DERIVED, "mask", "scale")}
    along = {
        name: Coordinate(_as_strings(arrays[name]), dict(opened.array(name).attrs)) for name in dims if name in arrays
    }
    originals = original_names(opened.about)
    return {
        **{name: array.item() if array is not None and not array.ndim else array for name, array in fields.items()},
        "components": _components(opened, memory, mask),
        "coordinates": renamed_coordinates(along | _coordinates_beside(opened, dims), originals),
        "sample_dims": renamed_axes(dims, originals),
        **raw,
        "mask": mask,
        "preparation": preparation,
        "provenance": provenance,
        "name": path,
    }


def _checked_provenance(provenance: Any) -> Any:
    """Return a provenance whose plan and request, if it has them, are mappings, as every reader of it expects."""
    plan = provenance.get("plan") or {}
    for name, entry in (("plan", plan), ("plan.request", plan.get("request") or {})):
        if not isinstance(entry, Mapping):
            raise TypeError(f"provenance.{name} is no mapping")
    return provenance


def _coordinates_beside(opened: OpenModel, dims: tuple[str, ...]) -> dict[str, Coordinate]:
    """Read the coordinates that are not named like an axis."""
    coordinates, lengths = {}, dict(zip(dims, opened.array("mean").shape, strict=False))
    for name in str(opened.group.attrs.get(BESIDE, "")).split():
        array = opened.array(name)
        if array is None:
            raise opened.damaged(name, "there is no such array")
        axes = tuple(map(str, array.metadata.dimension_names or ()))
        if tuple(array.shape) != tuple(lengths.get(axis) for axis in axes):
            raise opened.damaged(name, f"it has shape {tuple(array.shape)}, and axes {', '.join(axes) or 'of no name'}")
        with naming_damage(opened.path, name):
            coordinates[name] = Coordinate(_as_strings(np.asarray(array[...])), dict(array.attrs), axes)
    return coordinates


def _as_strings(values: Array) -> Array:
    """Return text, which Zarr reads as objects, with a dtype of fixed-width strings; numbers as they are."""
    return np.array(values.tolist(), np.str_) if values.dtype.kind in "OT" else values


def _checked_names(opened: OpenModel) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the arrays of a model, without components and those of its kind, and of a sample's axes.

    Raises
    ------
    ModelError
        If a required array is missing, or an array has a wrong shape or kind of values.
    """
    components, mean = opened.array(COMPONENTS), opened.array("mean")
    if components is None or mean is None or components.ndim < 2:
        raise opened.damaged(COMPONENTS if mean is not None else "mean", "there is no such array of two axes or more")
    k, sample = components.shape[0], components.shape[1:]
    dims = tuple(map(str, mean.metadata.dimension_names or ()))
    # Without eigenvalues, whose number is not fixed.
    lengths: dict[tuple[str, ...], tuple[int, ...]] = {SAMPLE: sample, ("component",): (k,), (): ()}
    shapes: dict[str, tuple[int, ...] | None] = {name: (length,) for name, length in zip(dims, sample, strict=False)}
    shapes |= {name: lengths.get(axes) for name, axes in AXES.items() if name not in DERIVED}
    for name, shape in shapes.items():
        array = opened.array(name)
        if array is None and name in REQUIRED:
            raise opened.damaged(name, "there is no such array")
        if array is None:
            continue
        if tuple(array.shape) != shape and not (shape is None and array.ndim == 1):
            expected = f"components of shape {tuple(components.shape)}"
            raise opened.damaged(name, f"it has shape {tuple(array.shape)}, which does not go with {expected}")
        if name not in dims and array.dtype.kind not in "fiub":
            raise opened.damaged(name, f"it holds {array.dtype} values, not numbers")
    return [*shapes], dims


class Verified(NamedTuple):
    """Number of arrays of a verified model or graph, and their bytes as decoded."""

    arrays: int
    nbytes: int


def verify_model(path: str) -> Verified:
    """Read all of a model, one file at a time, and compare it with its checksums.

    Raises
    ------
    ModelError
        As `read_model`, or if an array is damaged; names the first.
    """
    opened = read_model(path, MODEL_KINDS)
    _checked_names(opened)
    # The consolidated metadata list exactly the arrays that were written.
    names = [name for name, metadata in opened.metadata.items() if metadata.node_type == "array"]
    if STATE in opened.metadata:
        check_metadata(path, STATE, opened.digest(STATE))
    return Verified(len(names), sum(map(opened.verify, sorted(names))))


def _is_finite(values: Array, mask: Array | None) -> bool:
    """Return whether all values inside the mask are finite; copies these values."""
    return bool(np.isfinite(values if mask is None else values[mask]).all())


def _components(opened: OpenModel, memory: int, mask: Array | None) -> Any:
    array = opened.array(COMPONENTS)
    piece = min(PIECE, max(1, memory // PIECE_SHARE))
    stored = StoredComponents.of(opened.path, array, piece, digest=opened.digest(COMPONENTS))
    if not fits_in_memory(stored.nbytes, memory):
        return stored
    components = np.asarray(stored)
    if not all(_is_finite(component, mask) for component in components):
        raise opened.damaged(COMPONENTS, "values are missing")
    return components


def fits_in_memory(nbytes: int, memory: int) -> bool:
    """Return whether components of `nbytes` bytes are read into memory when a model is loaded."""
    return HELD_SHARE * nbytes <= memory


def check_model_output(path: str, *, overwrite: bool) -> None:
    """Refuse a path where a model cannot be written.

    Raises
    ------
    RequestError
        If the name has the ending of another format.
    OutputError
        If a complete model exists and `overwrite` is false, or if the path holds anything else.
    """
    bare = path.rstrip("/")
    if _ENDING.search(bare) and not bare.lower().endswith(".zarr"):
        raise RequestError(f"output {path} does not end in .zarr, and models are Zarr folders; choose such a name.")
    recover(bare)
    attribute = group_attribute(bare) or {}
    is_model = "format" in attribute and attribute.get("kind") in (None, *MODEL_KINDS)
    is_empty = os.path.isdir(bare) and not os.listdir(bare)
    replaceable = overwrite or is_empty or not attribute.get("complete")
    check_existing(bare, "a model", overwrite=replaceable, is_another=lambda _: not (is_model or is_empty))
