"""Arrays of feature maps in stored models; landmarks that do not fit in memory are written and read box by box."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from ..errors import ModelError
from ..machine import hand_back
from ..preprocessing.feature_map import FeatureMap, FourierMap, KernelMap
from ..preprocessing.kernel_features import KernelFeatures
from ..preprocessing.kernels import KERNELS, Kernel
from ..preprocessing.landmark_rows import LandmarkRows, RowsOfModel
from ..preprocessing.prepared import MAPPED
from ..storage.components import StoredComponents
from ..storage.integrity import CHECKED, OpenModel
from ..storage.writers import EVERY_CHUNK

Array = npt.NDArray[Any]

MAP = "map_"  # prefix of the names of a feature map's arrays
# axes of these arrays
MAP_AXES: dict[str, tuple[str, ...]] = {
    "landmarks": ("landmark", "pixel"),
    "weights": (*MAPPED, "landmark"),
    "offset": MAPPED,
    "origin": ("pixel",),
    "level": (),
    "frequencies": (*MAPPED, "pixel"),
    "phases": MAPPED,
}


def write_rows(group: zarr.Group, name: str, dims: tuple[str, ...], rows: LandmarkRows) -> None:
    """Write landmarks that are not in memory, a box of them at a time."""
    made = group.create_array(
        name,
        shape=rows.shape,
        dtype=rows.dtype,
        chunks=rows.box,
        compressors=CHECKED,
        dimension_names=dims,
        fill_value=np.nan if rows.dtype.kind == "f" else None,
        config=EVERY_CHUNK,
    )
    for some, features, values in rows.pieces():
        made[slice(*some), slice(*features)] = values
        hand_back()  # what Zarr's threads encoded with


def read_map(
    opened: OpenModel, prepared: Mapping[str, Any], function: Callable[..., float] | None, memory: int
) -> tuple[KernelFeatures, FeatureMap] | tuple[None, None]:
    """Read the feature map of an opened model; `function` is its kernel, where that is not a built-in one.

    Landmarks that would take more than half of the memory stay on disk, where the kernel is of inner products.
    """
    name = prepared["feature_map"]["kernel"]["name"] if "feature_map" in prepared else None
    if function is not None and (name is None or name in KERNELS):
        held = "no kernel" if name is None else f"kernel {name!r}"
        raise ModelError(f"model {opened.path} was fitted with {held}, which takes no function; leave kernel out.")
    if name is None:
        return None, None
    if name not in KERNELS and function is None:
        raise ModelError(
            f"model {opened.path} was fitted with the kernel {name!r}, a function of its author's, which models do not "
            f"hold; give it: load_model({opened.path!r}, kernel={name})."
        )
    wanted = KernelFeatures.from_json(prepared["feature_map"], function)
    kind = FourierMap if wanted.random_features else KernelMap
    arrays, lengths = {}, {MAPPED[0]: opened.array("mean").shape[0]}
    for each in kind.array_names():
        stored = _streamed_landmarks(opened, wanted.kernel, memory) if each == "landmarks" else None
        values: Any = required(opened, f"{MAP}{each}") if stored is None else stored
        expected = tuple(
            lengths.setdefault(axis, length) for axis, length in zip(MAP_AXES[each], values.shape, strict=False)
        )
        if len(values.shape) != len(MAP_AXES[each]) or values.shape != expected:
            raise opened.damaged(f"{MAP}{each}", f"it has shape {values.shape}, and others are of {lengths}")
        if stored is None and not bool(np.isfinite(values).all()):
            raise opened.damaged(f"{MAP}{each}", "values are missing")
        arrays[each] = values
    return wanted, kind(kernel=wanted.kernel, **arrays)


def _streamed_landmarks(opened: OpenModel, kernel: Kernel, memory: int) -> RowsOfModel | None:
    """Return landmarks that stay on disk; None for those to be read into memory."""
    name = f"{MAP}landmarks"
    array = opened.array(name)
    if array is None or array.ndim != 2 or not kernel.is_of_products:
        return None
    if 2 * math.prod(array.shape) * (array.dtype.itemsize + 8) <= memory:  # as stored, and as they are compared
        return None
    stored = StoredComponents.of(opened.path, array, digest=opened.digest(name), name=name)
    return RowsOfModel.of(stored, array.shards or array.chunks)


def required(opened: OpenModel, name: str) -> Array:
    """Read an array without which the model is damaged."""
    values = opened.read(name)
    if values is None:
        raise opened.damaged(name, "there is no such array")
    return values
