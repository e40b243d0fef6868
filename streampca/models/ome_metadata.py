"""Metadata that let microscopy software open components: their names, and the ``ome`` attribute of a model's group.

Version 0.5 of OME-Zarr: https://ngff.openmicroscopy.org/0.5 (multiscales, omero).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..storage.components import NAME as COMPONENTS
from ..storage.pixel_sizes import LENGTHS, AxisScaling, channel_names, holds_channels, is_colour, pixel_sizes
from ..storage.stored_names import renamed_axes, stored_names

if TYPE_CHECKING:
    from .components import ComponentsModel

VERSION = "0.5"
_COLOUR = "FFFFFF"  # each channel is white: components are shown in grey


def component_labels(ratio: Sequence[float] | np.ndarray[Any, Any]) -> list[str]:
    """Return ``"component 1: 9.7 %"`` and so on, given each component's share of the variance."""
    return [f"component {number}: {100 * share:.2g} %" for number, share in enumerate(ratio, 1)]


def ome_attribute(model: ComponentsModel) -> dict[str, Any] | None:
    """Return the attribute ``ome`` that makes a model's components an OME-Zarr picture; None if they cannot be one.

    Components of pictures and of stacks are channels. If the pictures have channels on their first axis, components
    become the axis of time, as OME-Zarr has one axis of channels. Channels after y and x, as in colour photographs,
    and mapped features cannot be stored in it.
    """
    dims = model.sample_dims
    if model.preparation.maps or len(dims) not in (2, 3) or any(map(holds_channels, dims[1:])):
        return None
    has_channels = is_colour(dims[0])
    sizes = pixel_sizes(dims, model.coordinates)
    axes: list[dict[str, str]] = [{"name": "component", "type": "time" if has_channels else "channel"}]
    stored = renamed_axes(dims, stored_names(dims, {"component"}))
    for number, name in enumerate(dims):
        axis = {"name": stored[number], "type": "channel" if number == 0 and has_channels else "space"}
        unit = sizes[name].unit if name in sizes else None
        axes.append(axis | ({"unit": unit} if unit in LENGTHS else {}))
    scalings = [sizes.get(name, AxisScaling()) for name in dims]
    # Scales must be positive: a descending axis keeps its step and loses its offset.
    offsets = [scaling.offset if scaling.scale > 0 else 0.0 for scaling in scalings]
    transformations = [
        {"type": "scale", "scale": [1.0, *(abs(scaling.scale) for scaling in scalings)]},
        {"type": "translation", "translation": [0.0, *offsets]},
    ]
    labels = component_labels([float(share) for share in model.explained_variance_ratio])
    names = channel_names(dims[0], model.coordinates) if has_channels else labels
    datasets = [{"path": COMPONENTS, "coordinateTransformations": transformations}]
    picture = {"name": COMPONENTS, "axes": axes, "datasets": datasets}
    attribute: dict[str, Any] = {"version": VERSION, "multiscales": [picture]}
    if names is not None:
        windows = _windows(model, len(names)) if not has_channels else [None] * len(names)
        attribute["omero"] = {
            "channels": [
                {"label": label, "color": _COLOUR, "active": True} | ({"window": window} if window else {})
                for label, window in zip(names, windows, strict=True)
            ]
        }
    return attribute


def _windows(model: ComponentsModel, count: int) -> Sequence[dict[str, float] | None]:
    """Return ranges of grey values that show zero as middle grey; None for components on disk."""
    if not isinstance(model.components, np.ndarray):
        return [None] * count
    most = [float(np.nanmax(np.abs(component), initial=0)) for component in model.components]
    return [{"min": -value, "max": value, "start": -value, "end": value} for value in most]
