"""Metadata that let microscopy software open components: their names, and the ``ome`` attribute of a model's group.

Version 0.5 of OME-Zarr: https://ngff.openmicroscopy.org/0.5 (multiscales, omero).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..storage.components import NAME as COMPONENTS
from ..storage.pixel_sizes import LENGTHS, AxisScaling, channel_names, holds_channels, is_colour, pixel_sizes

if TYPE_CHECKING:
    from .components import ComponentsModel

VERSION = "0.5"
_COLOUR = "FFFFFF"  # of every channel: components are shown in grey


def component_labels(ratio: Sequence[float] | np.ndarray[Any, Any]) -> list[str]:
    """Return ``"component 1: 9.7 %"`` and so on, given each component's share of the variance."""
    return [f"component {number}: {100 * share:.2g} %" for number, share in enumerate(ratio, 1)]


def ome_attribute(model: ComponentsModel) -> dict[str, Any] | None:
    """Return the attribute ``ome`` that makes a model's components an OME-Zarr picture; None where they are none.

    Components of pictures, and of stacks of them, are channels. Where pictures have channels, which come first, they
    are the axis of time, as OME-Zarr has one axis of channels; channels after y and x, as of colour photographs, and
    mapped features have no place in it.
    """
    dims = model.sample_dims
    if model.preparation.maps or len(dims) not in (2, 3) or any(map(holds_channels, dims[1:])):
        return None
    has_channels = is_colour(dims[0])
    sizes = pixel_sizes(dims, model.coordinates)
    axes: list[dict[str, str]] = [{"name": "component", "type": "time" if has_channels else "channel"}]
    for at, name in enumerate(dims):
        axis = {"name": name, "type": "channel" if at == 0 and has_channels else "space"}
        unit = sizes[name].unit if name in sizes else None
        axes.append(axis | ({"unit": unit} if unit in LENGTHS else {}))
    known = [sizes.get(name, AxisScaling()) for name in dims]
    placed = [
        {"type": "scale", "scale": [1.0, *(abs(each.scale) for each in known)]},
        {"type": "translation", "translation": [0.0, *(each.offset if each.scale > 0 else 0.0 for each in known)]},
    ]
    names = channel_names(dims[0], model.coordinates) if has_channels else component_labels(_shares(model))
    datasets = [{"path": COMPONENTS, "coordinateTransformations": placed}]
    picture = {"name": COMPONENTS, "axes": axes, "datasets": datasets}
    about: dict[str, Any] = {"version": VERSION, "multiscales": [picture]}
    if names is not None:
        windows = _windows(model, len(names)) if not has_channels else [None] * len(names)
        about["omero"] = {
            "channels": [
                {"label": label, "color": _COLOUR, "active": True} | ({"window": window} if window else {})
                for label, window in zip(names, windows, strict=True)
            ]
        }
    return about


def _shares(model: ComponentsModel) -> list[float]:
    return [float(share) for share in model.explained_variance_ratio]


def _windows(model: ComponentsModel, count: int) -> Sequence[dict[str, float] | None]:
    """Return the grey values that show zero as middle grey, of components in memory."""
    if not isinstance(model.components, np.ndarray):
        return [None] * count
    most = [float(np.nanmax(np.abs(component), initial=0)) for component in model.components]
    return [{"min": -value, "max": value, "start": -value, "end": value} for value in most]
