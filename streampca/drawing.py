"""The pictures of a run: a model beside samples of a collection, picked so that few bytes are read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from . import plot
from .collection import Array, Collection
from .model import PCAModel
from .outputs import discard, writing
from .units import MIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURED_SAMPLES = 4  # shown beside their reconstructions
PICTURED_SCORES = 20_000  # dots in a scatter of scores
PICTURED_BYTES = 32 * MIB  # raw samples read for pictures


def draw(model: PCAModel, raw: Collection, folder: str) -> list[str]:
    """Write the run's pictures; returns their paths."""
    samples = picked(raw, PICTURED_SAMPLES)
    scores = _scores(model, raw)
    labels = _labels(raw)
    drawn: dict[str, Any] = {
        "overview": plot.overview(model, scores, samples, labels),
        "scree": plot.scree(model),
        "components": plot.mean_and_components(model),
        "reconstructions": plot.reconstructions(model, samples),
        "scores": plot.scores(model, scores, labels),
    }
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
    written = []
    for name, picture in drawn.items():
        path = os.path.join(folder, f"{name}.png")
        try:
            plot.save(picture, path)
        except BaseException:
            discard(path)  # a picture that breaks off
            raise
        written.append(path)
    return written


def overview(model: PCAModel, raw: Collection) -> Figure:
    """Draw a model and a few samples of a raw collection in one figure."""
    return plot.overview(model, _scores(model, raw), picked(raw, PICTURED_SAMPLES), _labels(raw))


def _scores(model: PCAModel, raw: Collection) -> Array:
    """Scores of many samples spread over a collection, (count, k)."""
    prepared = model.prepared(raw)
    rows = [prepared.read(run) for run in _runs(raw, PICTURED_SCORES)]
    return model.subspace.project(np.concatenate(rows))


def _labels(raw: Collection) -> Array | None:
    """Labels of the samples whose scores are drawn, where there are any."""
    labels = raw.labels
    return None if labels is None else np.concatenate([labels[run] for run in _runs(raw, PICTURED_SCORES)])


def picked(raw: Collection, count: int) -> list[Array]:
    """Up to `count` raw samples spread over a collection, each of its own shape."""
    return [image for run in _runs(raw, count) for image in _images(raw, run)]


def _images(raw: Collection, run: slice) -> list[Array]:
    found = {}

    def keep(at: int, image: Array) -> None:
        found[at] = image.copy()

    raw.each(run, keep)
    return [found[at] for at in sorted(found)]


def _runs(raw: Collection, count: int) -> list[slice]:
    """Which samples, about `count` of them and few bytes.

    Many are taken in runs, so that compressed storage is not decoded once for every one of them.
    """
    n = raw.n_samples
    count = max(1, min(count, n, PICTURED_BYTES * n // max(1, raw.nbytes)))
    runs = min(count, 8)
    length = count // runs
    starts = [round(i * (n - length) / max(1, runs - 1)) for i in range(runs)]
    return [slice(start, start + length) for start in starts]
