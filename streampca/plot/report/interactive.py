"""The two interactive parts of a page: sliders that change the mean image, and points that show their samples.

Each consists of a sheet of images and a few numbers, which `page.js` draws; without scripts only the figures are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays import Array, Float64
from ...models.components import ComponentsModel
from ...models.sample_images import FEW, mean_pictures, view_of
from ..components import scale_of
from ..reconstruction import weighted_pictures
from ..score_plots import component_label, is_scale, label_groups, shown_label
from .memory import SCORES
from .survey import Survey
from .text import place_of
from .thumbnails import encoded, reduced

VALUES = 12_000  # largest size of a component on sliders: 9 images, two bytes a value, are less than 300 kB as base64
STEPS = 2**16 - 2  # steps between the smallest and largest value of an image; one more is for missing pixels
WALK = 2  # standard deviations that the grey scale of the sliders covers


@dataclass(frozen=True)
class Widget:
    """Part of the page that a script draws: a sheet of images, its media type, and plain data as JSON."""

    name: str
    sheet: bytes
    media_type: str
    data: Mapping[str, Any]


def sliders_of(model: ComponentsModel) -> Widget:
    """Return sliders along the first components of a model that `moves`.

    Images have 16 bits a value, in two images of 8 bits: with 8 bits, the errors of 8 components add up to grey levels.
    """
    view = reduced(view_of(model, FEW), lambda shape: math.prod(shape) <= VALUES)
    count = min(SCORES, model.n_components)
    mean, deviations = mean_pictures(model, view), np.sqrt(np.maximum(model.explained_variance[:count], 0))
    weights = model.weights_of(np.eye(count))
    # Each component alone, by unit scores, less the mean.
    patterns = weighted_pictures(model, view, [weights], None)[0] - mean
    steps = patterns * deviations.reshape(-1, *(1,) * mean.ndim)
    # One grey scale for every position of a single slider.
    limits = scale_of(view, np.concatenate([mean[None], mean + WALK * steps, mean - WALK * steps]))
    images = np.concatenate([mean[None], patterns])
    ends = [_ends(image) for image in images]
    words = np.stack([_words(image, *bounds) for image, bounds in zip(images, ends, strict=True)])
    # High and low bytes, as canvases read 8 bits of a PNG only.
    halves = np.stack([words >> 8, words & 255], axis=1).astype(np.uint8)
    tall, wide = view.picture_shape[1:3]
    colours = 1 if view.colour is None else 3
    data = {
        "count": count,
        "pictures": len(mean),
        "tall": tall,
        "wide": wide,
        "colours": colours,
        "captions": list(view.captions),
        "ends": ends,
        "limits": np.broadcast_to(limits, (len(mean), 2)).tolist(),
        "deviations": deviations.tolist(),
        "shares": [f"{100 * share:.3g} %" for share in model.explained_variance_ratio[:count]],
    }
    return Widget("sliders", encoded(halves.reshape(-1, wide * colours), "PNG", optimize=True), "image/png", data)


def _ends(image: Float64) -> tuple[float, float]:
    """Return the smallest and the largest value of an image."""
    finite = image[np.isfinite(image)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def _words(image: Float64, low: float, high: float) -> Array:
    """Return values as whole numbers from 1, and missing values as 0."""
    finite = np.isfinite(image)
    share = (np.where(finite, image, low) - low) / ((high - low) or 1.0)
    return np.where(finite, 1 + np.rint(share * STEPS), 0).astype(np.uint16)


def points_of(survey: Survey) -> Widget | None:
    """Return the first scores of some samples with their thumbnails; None if a survey lacks them."""
    sheet = survey.thumbnails
    if sheet is None or sheet.scores.shape[1] < 2:
        return None
    labels = None if survey.labels is None else survey.labels[sheet.rows]
    # -1 for labels on a scale, or none.
    group = np.full(len(sheet.rows), -1)
    groups = [] if survey.labels is None or is_scale(survey.labels) else label_groups(survey.labels)
    for number, label_group in enumerate(groups):
        group[label_group.members[sheet.rows]] = number
    points = []
    for number, position in enumerate(sheet.positions):
        name = survey.raw.where(position) if survey.axis is None else survey.axis.name(position)
        points.append(
            {
                "name": place_of(name, survey.raw.source),
                "label": "" if labels is None else shown_label(labels[number]),
                "group": int(group[number]),
                # JSON has no NaN.
                "scores": [float(f"{score:.6g}") if np.isfinite(score) else None for score in sheet.scores[number]],
            }
        )
    data = {
        "tile": sheet.tile,
        "columns": sheet.columns,
        "axes": [component_label(survey.model, number + 1) for number in range(sheet.scores.shape[1])],
        "groups": [{"name": named.name, "colour": named.colour} for named in groups if len(groups) > 1],
        "points": points,
    }
    return Widget("points", sheet.image, "image/jpeg", data)
