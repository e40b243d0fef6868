"""Models in Zarr: format 1, one group that is one xarray Dataset, complete or visibly not.

The root attribute ``streampca`` marks the group as ours from the start; it says ``complete: true`` when the last
array is written, then the metadata are consolidated. What an interrupted run left is replaced by the next; a group
without the attribute is somebody else's, and is left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from .collection import Coordinate
from .components import NAME as COMPONENTS
from .components import PIECE, ComponentSink, StoredComponents
from .disk import sync_files, sync_folder
from .errors import ModelError, OutputError, RequestError, first_line
from .outputs import discard, staged
from .prepare import Preparation
from .resumable import Begun, ResumableSink, unfinished_of
from .sinks import ATTRIBUTE, Unfinished, consolidate, files_but
from .units import MIB

Array = npt.NDArray[Any]

FORMAT = 1
_ENDING = re.compile(r"\.[^\W\d]\w*$")  # of a format; the .95 of model-0.95 is none
PER_COMPONENT = ("explained_variance", "explained_variance_ratio", "singular_values", "error_bound", "angle_bound")
SCALARS = ("total_weight", "outside")  # that a model may lack
CHUNK_BYTES = 4 * MIB  # of one chunk: small enough to read a component alone, large enough for a disk
HELD_SHARE = 4  # components of at most this share of the budget are read into memory; they are worked on in copies
PIECE_SHARE = 16  # of the budget for what is read of others at a time
SHARD_BYTES = 16 * MIB  # of one file, so that large arrays do not become a million of them
CHECKED = (ZstdCodec(), Crc32cCodec())  # of a statistic: what is merged shows no damage, as a picture would


@dataclass(frozen=True)
class Stored:
    """An array, perhaps components on disk, and the names of its dimensions."""

    dims: tuple[str, ...]
    values: Any
    attributes: Mapping[str, Any] | None = None


class ModelWriter:
    """Writes a model of format 1, its components as they are made; the folder takes its name when all went well.

    Parameters
    ----------
    path : str
        A folder to make.
    kind : str, default="pca"
        Of model.
    overwrite : bool, default=False
        Replace a model already there.
    keeps : bool, default=False
        Leave the folder as it is, under its other name, when writing breaks off after `ComponentSink.sync`: another
        writer goes on with it. It is made when components are begun; without this at once, and then removed.

    Raises
    ------
    OutputError
        If something is there already, or it cannot be written.

    Examples
    --------
    >>> with ModelWriter("model.zarr") as writer:  # doctest: +SKIP
    ...     sink = writer.components((k, *sample_shape), dims=("y", "x"), dtype="f4", mask=None)
    ...     for features in sink.ranges(most_features):
    ...         sink.write(features, loadings(features))
    ...     writer.finish(arrays, attributes)
    """

    def __init__(self, path: str, *, kind: str = "pca", overwrite: bool = False, keeps: bool = False) -> None:
        check_model_output(path, overwrite=overwrite)
        self._path, self._kind, self._keeps = path, kind, keeps
        self._sink: ComponentSink | None = None
        self._stack = ExitStack()

    def __enter__(self) -> ModelWriter:
        with self._stack as stack:  # what fails here too leaves nothing
            if not self._keeps:
                self._open(stack, None)
            self._stack = stack.pop_all()
        return self

    def _open(self, stack: ExitStack, unfinished: Unfinished | None) -> None:
        """Make the folder, or open it with nothing in it but components that were begun."""
        self._partial = stack.enter_context(staged(self._path, unfinished))
        if unfinished is not None and unfinished.is_begun:
            for name in os.listdir(self._partial):
                if name != COMPONENTS:
                    discard(os.path.join(self._partial, name))
        about = {ATTRIBUTE: {"kind": self._kind, "complete": False}}
        self._root = zarr.create_group(self._partial, zarr_format=3, attributes=about)

    def __exit__(self, *raised: Any) -> bool | None:
        done = self._stack.__exit__(*raised)
        if self._keeps:
            sync_folder(os.path.dirname(os.path.abspath(self._path)))  # who kept what was begun may forget it now
        return done

    def components(
        self,
        shape: tuple[int, ...],
        *,
        dims: tuple[str, ...],
        dtype: npt.DTypeLike,
        mask: npt.NDArray[np.bool_] | None = None,
        identity: str | None = None,
        begun: Begun | None = None,
    ) -> ComponentSink:
        """Begin the components, an array of shape (k, *sample_shape) that is written range by range of features.

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
        identity : str, optional
            Of the components that these are a copy of.
        begun : Begun, optional
            What another writer that keeps the folder left, to go on with if it is there; the sink says whether it is.
        """
        like: dict[str, Any] = {"dims": dims, "dtype": dtype, "mask": mask}
        if not self._keeps:
            self._sink = ComponentSink(self._root, shape, **like, identity=identity)
            return self._sink
        unfinished = unfinished_of(begun)
        self._open(self._stack, unfinished)
        self._sink = ResumableSink(self._root, shape, **like, folder=self._partial, unfinished=unfinished, begun=begun)
        return self._sink

    def stored(self) -> StoredComponents:
        """The components that were begun, as they can be read when the model is complete."""
        array: Any = self._root[COMPONENTS]
        return StoredComponents.of(self._path, array)

    def finish(
        self,
        arrays: Mapping[str, Stored],
        attributes: Mapping[str, Any],
        *,
        state: Mapping[str, Array] | None = None,
        state_kind: str = "",
    ) -> None:
        """Write all that is left, and mark the model complete.

        Parameters
        ----------
        arrays : mapping of str to Stored
            The root Dataset; ``components`` in it are written unless they were begun before.
        attributes : mapping
            Plain data beside format and kind: provenance, preparation.
        state : mapping of str to ndarray, optional
            Sub-group ``state``: the mergeable statistic.
        state_kind : str
            Which statistic it is, e.g. ``"scatter"``.
        """
        for name, array in arrays.items():
            if name != COMPONENTS:
                _write_array(self._root, name, array)
            elif self._sink is None:
                values = array.values
                own = values.identity if isinstance(values, StoredComponents) else None
                self.components(values.shape, dims=array.dims[1:], dtype=values.dtype, identity=own).copy(values)
        if state:
            group = self._root.create_group("state", attributes={"kind": state_kind})
            for name, values in state.items():
                dims = tuple(f"{name}_{axis}" for axis in range(values.ndim))
                _write_array(group, name, Stored(dims, values), compressors=CHECKED)
        self._root.attrs.put({ATTRIBUTE: {"format": FORMAT, "kind": self._kind, "complete": True, **attributes}})
        consolidate(self._partial)
        if self._keeps and self._sink is not None:
            self._sink.sync()
            sync_files(files_but(self._partial, COMPONENTS), self._partial)


def write_model(
    path: str,
    *,
    kind: str,
    arrays: Mapping[str, Stored],
    attributes: Mapping[str, Any],
    state: Mapping[str, Array] | None = None,
    state_kind: str = "",
    overwrite: bool = False,
) -> None:
    """Write a model of format 1, whose components exist already; see `ModelWriter`."""
    with ModelWriter(path, kind=kind, overwrite=overwrite) as writer:
        writer.finish(arrays, attributes, state=state, state_kind=state_kind)


def _write_array(group: zarr.Group, name: str, array: Stored, *, compressors: Any = "auto") -> None:
    values = np.asarray(array.values)
    chunks, shards = _cut(values.shape, values.dtype.itemsize)
    made = group.create_array(
        name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        shards=shards,
        compressors=compressors,
        dimension_names=array.dims,
        attributes=dict(array.attributes or {}),
        fill_value=np.nan if values.dtype.kind == "f" else None,
    )
    if not values.shape:
        made[...] = values
    rows = max(1, (shards or chunks or (1,))[0])
    for start in range(0, len(values) if values.shape else 0, rows):  # a shard at a time: no copy of the whole
        made[start : start + rows] = values[start : start + rows]


def _cut(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Chunks of about `CHUNK_BYTES` along the first axis, gathered in shards where there would be many."""
    if not shape or 0 in shape:
        return tuple(max(1, length) for length in shape), None
    row = max(1, itemsize * int(np.prod(shape[1:], dtype=np.int64)))
    rows = min(shape[0], max(1, CHUNK_BYTES // row))
    many = min(-(-shape[0] // rows), max(1, SHARD_BYTES // (rows * row)))
    return (rows, *shape[1:]), ((many * rows, *shape[1:]) if many > 1 else None)


def read_model(path: str) -> tuple[zarr.Group, dict[str, Any]]:
    """Open a model's group for reading and return it with its attribute.

    Raises
    ------
    ModelError
        If there is none, or it is incomplete, or of a newer format.
    """
    if not os.path.exists(path):
        raise ModelError(f"{path} does not exist; give the folder of a model, as written by 'streampca fit -o'.")
    try:
        group = zarr.open_group(path, mode="r")
        about = dict(group.attrs).get(ATTRIBUTE)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path} is not a model: {first_line(error)}. Give a folder written by 'streampca fit'."
        ) from None
    if not isinstance(about, dict):
        raise ModelError(f"{path} is a Zarr group, but not a model; give a folder written by 'streampca fit'.")
    if about.get("complete") is not True:
        raise ModelError(f"{path} is not a complete model; the fit that wrote it did not finish. Run it again.")
    if about.get("format", 0) > FORMAT:
        raise ModelError(
            f"{path} is a model of format {about['format']} and this version reads up to {FORMAT}; upgrade streampca."
        )
    if about.get("kind") != "pca":
        raise ModelError(f"{path} holds a {about.get('kind')!r}, not a model of kind 'pca'; give a fitted model.")
    return group, about


def read_arrays(
    group: zarr.Group, *, but: str | None = None, read: Callable[[Any], Array] = lambda array: np.asarray(array[...])
) -> dict[str, Array]:
    """All arrays of a group, in memory; perhaps but one."""
    found = {}
    for name, array in group.arrays():
        if name == but:
            continue
        try:
            found[name] = read(array)
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(f"{group.store_path} is damaged in {name}: {first_line(error)}. Fit it again.") from None
    return found


def _by_columns(array: Any) -> Array:
    """An array, a matrix in Fortran order as LAPACK takes it; read a chunk at a time, without a second copy of it."""
    if array.ndim < 2:
        return np.asarray(array[...])
    whole = np.empty(array.shape, array.dtype, order="F")
    rows = max(1, array.chunks[0])
    for start in range(0, len(whole), rows):
        whole[start : start + rows] = array[start : start + rows]
    return whole


def read_state(path: str) -> tuple[str, dict[str, Array]] | None:
    """Kind and arrays of the mergeable statistic, matrices in Fortran order; None where the model keeps none."""
    state = zarr.open_group(path, mode="r").get("state")
    return (str(state.attrs["kind"]), read_arrays(state, read=_by_columns)) if isinstance(state, zarr.Group) else None


def pca_arrays(model: Any) -> dict[str, Stored]:
    """The root Dataset of a `PCAModel`."""
    dims = model.sample_dims
    arrays = {
        "component": Stored(("component",), np.arange(1, len(model.components) + 1)),
        "components": Stored(("component", *dims), model.components),
        "mean": Stored(dims, model.mean),
        **{name: Stored(("component",), getattr(model, name)) for name in PER_COMPONENT},
        "n_samples": Stored((), np.array(model.n_samples)),
        "total_variance": Stored((), np.array(model.total_variance)),
    }
    arrays |= {name: Stored((), np.array(value)) for name in SCALARS if (value := getattr(model, name)) is not None}
    for name, coordinate in model.coordinates.items():
        arrays[name] = Stored((name,), coordinate.values, coordinate.attributes)
    for name, dim in (("eigenvalues", "eigenvalue"), ("variance_bound", "component")):
        if getattr(model, name) is not None:
            arrays[name] = Stored((dim,), getattr(model, name))
    if model.mask is not None:
        arrays["mask"] = Stored(dims, np.asarray(model.mask))
    factors = model.preparation.full_scale(model.sample_shape)
    if factors is not None:
        arrays["scale"] = Stored(dims, factors)
    return arrays


def pca_attributes(model: Any) -> dict[str, Any]:
    """Plain data of a `PCAModel` beside its arrays."""
    raw = {"raw_shape": list(model.raw_shape), "raw_kind": model.raw_kind}
    return {"provenance": dict(model.provenance), "preparation": {**model.preparation.to_json(), **raw}}


def read_pca(path: str, memory: int) -> dict[str, Any]:
    """The fields of the `PCAModel` at a path; raises as `read_model`.

    Components stay on disk where they take more than a `HELD_SHARE` of `memory` bytes.
    """
    group, about = read_model(path)
    arrays, prepared = read_arrays(group, but=COMPONENTS), about["preparation"]
    arrays[COMPONENTS] = _components(path, group, memory)
    mask = arrays["mask"].astype(bool) if "mask" in arrays else None
    dims = group["mean"].metadata.dimension_names or ()  # type: ignore[union-attr]
    fields = ("components", "mean", "explained_variance", "error_bound", "angle_bound")
    return {
        **{field: arrays[field] for field in fields},
        **{field: arrays.get(field) for field in ("eigenvalues", "variance_bound")},
        "total_variance": float(arrays["total_variance"]),
        "n_samples": int(arrays["n_samples"]),
        **{name: float(arrays[name]) if name in arrays else None for name in SCALARS},
        "coordinates": {
            name: Coordinate(arrays[name], dict(group[name].attrs)) for name in map(str, dims) if name in arrays
        },
        "sample_dims": tuple(str(dim) for dim in dims),
        "raw_shape": tuple(prepared["raw_shape"]),
        "raw_kind": prepared["raw_kind"],
        "mask": mask,
        "preparation": Preparation.from_json(prepared, mask, arrays.get("scale")),
        "provenance": about["provenance"],
        "name": path,
    }


def _components(path: str, group: zarr.Group, memory: int) -> Any:
    array: Any = group[COMPONENTS]
    stored = StoredComponents.of(path, array, min(PIECE, max(1, memory // PIECE_SHARE)))
    return np.asarray(stored) if are_held(stored.nbytes, memory) else stored


def are_held(nbytes: int, memory: int) -> bool:
    """Whether components of so many bytes are read into memory when a model is loaded."""
    return HELD_SHARE * nbytes <= memory


def check_model_output(path: str, *, overwrite: bool) -> None:
    """Say whether a model may be written at a path.

    Raises
    ------
    RequestError
        If the name has the ending of another format.
    OutputError
        If a complete model is there and `overwrite` is false, or something that is not ours is.
    """
    ours, complete = _is_ours(path) if os.path.lexists(path) else (True, False)
    if not ours:
        raise OutputError(f"{path} exists and is not a model of streampca; choose another output.")
    if complete and not overwrite:
        raise OutputError(
            f"{path} exists already; choose another output, or replace it with --overwrite (overwrite=True)."
        )
    if _ENDING.search(path.rstrip("/")) and not path.rstrip("/").lower().endswith(".zarr"):
        raise RequestError(f"output {path} does not end in .zarr, and models are Zarr folders; choose such a name.")


def _is_ours(path: str) -> tuple[bool, bool]:
    """Whether a path is a group of ours or the beginning of one, and whether it is complete."""
    if not os.path.isdir(path) or not os.listdir(path):
        return os.path.isdir(path), False
    try:
        group = zarr.open_group(path, mode="r")
    except Exception:
        return False, False
    about = dict(group.attrs).get(ATTRIBUTE)
    return isinstance(about, dict), bool(isinstance(about, dict) and about.get("complete"))
