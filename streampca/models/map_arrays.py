"""Arrays of feature maps in stored models; landmarks larger than memory are written and read in boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import zarr

from ..arrays import Array
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
    """Write landmarks that are on disk, one box at a time."""
    array = group.create_array(
        name,
        shape=rows.shape,
        dtype=rows.dtype,
        chunks=rows.box,
        compressors=CHECKED,
        dimension_names=dims,
        fill_value=np.nan if rows.dtype.kind == "f" else None,
        config=EVERY_CHUNK,
    )
    for samples, features, values in rows.pieces():
        array[slice(*samples), slice(*features)] = values
        hand_back()  # buffers in which Zarr's threads encoded


def read_map(
    opened: OpenModel, prepared: Mapping[str, Any], function: Callable[..., float] | None, memory: int
) -> tuple[KernelFeatures, FeatureMap] | tuple[None, None]:
    """Read the feature map of an opened model; `function` is its kernel, if that is not a built-in one.

    Landmarks of a kernel of inner products stay on disk if they would take more than half of the memory.
    """
    name = prepared["feature_map"]["kernel"]["name"] if "feature_map" in prepared else None
    if function is not None and (name is None or name in KERNELS):
        fitted = "no kernel" if name is None else f"kernel {name!r}"
        raise ModelError(f"model {opened.path} was fitted with {fitted}, which takes no function; leave kernel out.")
    if name is None:
        return None, None
    if name not in KERNELS and function is None:
        raise ModelError(
            f"model {opened.path} was fitted with the kernel {name!r}, a function of its author's, which models do not "
            f"hold; give it: streampca.load({opened.path!r}, kernel={name})."
        )
    features = KernelFeatures.from_json(prepared["feature_map"], function)
    kind = FourierMap if features.random_features else KernelMap
    arrays, lengths = {}, {MAPPED[0]: opened.array("mean").shape[0]}
    for entry in kind.array_names():
        stored_name, axes = f"{MAP}{entry}", MAP_AXES[entry]
        stored = _streamed_landmarks(opened, features.kernel, memory) if entry == "landmarks" else None
        values: Any = required(opened, stored_name) if stored is None else stored
        # The first array with an axis sets its length for the others.
        expected = tuple(lengths.setdefault(axis, length) for axis, length in zip(axes, values.shape, strict=False))
        if len(values.shape) != len(axes) or values.shape != expected:
            raise opened.damaged(stored_name, f"it has shape {values.shape}, and others are of {lengths}")
        if stored is None and not bool(np.isfinite(values).all()):
            raise opened.damaged(stored_name, "values are missing")
        arrays[entry] = values
    return features, kind(kernel=features.kernel, **arrays)


def _streamed_landmarks(opened: OpenModel, kernel: Kernel, memory: int) -> RowsOfModel | None:
    """Return landmarks that stay on disk; None if they are to be read into memory."""
    name = f"{MAP}landmarks"
    array = opened.array(name)
    if array is None or array.ndim != 2 or not kernel.is_of_products:
        return None
    if 2 * math.prod(array.shape) * (array.dtype.itemsize + 8) <= memory:  # as stored, and in float64
        return None
    stored = StoredComponents.of(opened.path, array, digest=opened.digest(name), name=name)
    return RowsOfModel.of(stored, array.shards or array.chunks)


def required(opened: OpenModel, name: str) -> Array:
    """Read an array; the model is damaged if it does not exist."""
    values = opened.read(name)
    if values is None:
        raise opened.damaged(name, "there is no such array")
    return values
