"""A model as HTML for notebooks: facts, small pictures of the mean and components, and a table of components."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Array
from ..notebook import facts, images, numbers, view
from ..storage.components import StoredComponents
from ..units import format_shape
from .accuracy import COLUMNS, component_rows
from .sample_images import limits_of, mean_pictures, view_of

if TYPE_CHECKING:
    from .model import Model


SIDE = 96  # most pixels of the side of a picture
COUNT = 6  # components shown as pictures
ROWS = 8  # components in the table
KEYS = ("created", "streampca")  # of the provenance: date and version


def model_html(model: Model) -> str:
    """Return a model as HTML; components on disk are not read."""
    provenance, shape, basis = model.provenance, format_shape(model.sample_shape), model.basis
    stored = basis.components
    share = float(basis.explained_variance_ratio.sum())
    rows = [
        ("fitted on", f"{model.n_samples} samples of {shape} ({', '.join(model.sample_dims)})"),
        ("features", f"{model.n_features}" + ("" if model.mask is None else " inside the mask")),
        ("components", f"{basis.n_components}, {share:.1%} of the variance" if basis.n_components else None),
        (model.kind, None if basis is model else model.notes[0]),
        ("source", provenance.get("source")),
        ("method", (provenance.get("plan") or {}).get("method")),
        ("fitted", " by streampca ".join(str(provenance[key]) for key in KEYS if key in provenance)),
        ("components are", f"on disk, in {stored.path}" if isinstance(stored, StoredComponents) else None),
    ]
    not_listed = basis.n_components - ROWS
    more = f"<div>and {not_listed} more</div>" if not_listed > 0 else ""
    return view(
        type(model).__name__,
        facts(rows),
        images(thumbnails_of(basis)),
        numbers(COLUMNS, component_rows(basis, ROWS)) if basis.n_components else "",
        more,
    )


def thumbnails_of(model: Any) -> Iterator[tuple[str, bytes]]:
    """Yield name and PNG of a `PCAModel`'s mean and first components in memory; nothing for samples of one axis."""
    count = COUNT if isinstance(model.components, np.ndarray) else 0
    for number, image in enumerate(small_images(model, SIDE, count)):
        yield str(number or "mean"), png_of(image, signed=number > 0)


def small_images(model: Any, side: int, count: int) -> Iterator[Array]:
    """Yield images (y, x) or (y, x, 3) of a `PCAModel`'s mean and first components; nothing for samples of one axis.

    Their sides have at most `side` pixels. Samples with several slices are shown by the first.
    """
    view = view_of(model, 1)
    if view.is_line:
        return
    small = replace(view, bin=-(-max(view.shape[axis] for axis in view.axes) // side))
    yield mean_pictures(model, small)[0]
    for pictures in small.read(model.components, 0, count) if count else ():
        yield pictures[0]


def png_of(image: Array, *, signed: bool = False) -> bytes:
    """Encode an image (y, x) or (y, x, 3) as PNG, transparent at NaN; blue to red about zero if `signed`, else grey."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(coloured(image, signed)).save(file, "PNG")
    return file.getvalue()


def coloured(image: Array, signed: bool) -> Array:
    """Return an image as red, green, blue and alpha, (y, x, 4), uint8."""
    from matplotlib import colormaps

    opaque = np.asarray(np.isfinite(image.reshape(*image.shape[:2], -1)).all(axis=-1, keepdims=True))
    low, high = limits_of(image)
    if signed:
        high = max(-low, high) or 1.0
        low = -high
    share = np.clip((np.nan_to_num(image) - low) / ((high - low) or 1.0), 0, 1)
    map_name = "RdBu_r" if signed else "gray"
    colours = share if share.ndim == 3 else colormaps[map_name](share)[..., :3]
    return np.concatenate([np.round(255 * colours), 255 * opaque], axis=-1).astype(np.uint8)
