"""Samples, their reconstructions and the differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import Array, Float64
from ..errors import RequestError
from ..models.kernel_pca import KernelPCAModel
from ..models.rotation import RotatedPCAModel
from ..models.sample_images import FEW, SampleView, factors_of, mean_pictures, short_text, view_of
from ..models.subspace import squared_lengths
from ..models.transform import refuse_bad
from ..preprocessing import Frame, given_shape
from ..units import counted, format_shape
from .components import check_components, explain, grid_size, scale_of
from .drawing import LITERAL, SMALL, AxesGrid, draw, new_figure, sign_scale

if TYPE_CHECKING:
    from ..models.components import ComponentsModel
    from ..models.model import Model
    from .drawing import AnyFigure

TOGETHER = 16  # components read at a time: those of one storage chunk
LABEL, TALL = 1.3, 0.7  # width and height in inches of the text beside a sample
UNSEEN = 1e-3  # share of a sample's distance from the mean below which errors are rounding


def reconstructions(
    model: Model,
    samples: Any,
    ladder: Sequence[int] | None = None,
    count: int = 4,
    figure: AnyFigure | None = None,
) -> AxesGrid:
    r"""Draw samples beside their reconstructions from 1, a few, and all components.

    Parameters
    ----------
    model : Model
        The model.
    samples : array of shape (n, \*raw_shape), sequence of images, collection, or a source for `open_collection`
        Raw samples (of any size, if the model resizes). The first `count` are read, prepared and drawn.
    ladder : sequence of int, optional
        Numbers of components; by default up to four between 1 and all, evenly spaced in their logarithm.
    count : int, default=4
        Samples to draw.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; a new figure by default.

    Returns
    -------
    ndarray of Axes of shape (samples drawn, 1 + len(ladder))
        Originals in the first column. Below each reconstruction is the remaining share of the sample's distance from
        the mean, in features as analysed: 100 % if the components explain nothing.

    Raises
    ------
    RequestError
        If there are no samples, or the ladder exceeds the model's components.
    ModelError
        If a sample is not of the shape the model was fitted on, or the model is an embedding.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> figure = streampca.plot.reconstructions(model, digits, count=4)
    """
    whole = _reconstructing(model)
    images, steps = _images(model, samples, count), _ladder(whole.n_components, ladder)
    view = view_of(model.as_images(), FEW)
    figure = figure if figure is not None else new_figure(*grid_size(view, len(images), len(steps) + 1))
    axes: AxesGrid = figure.subplots(len(images), len(steps) + 1, squeeze=False)
    for row, drawn in zip(axes, _reconstructed(whole, view, images, steps), strict=True):
        # Reconstructions are on the scale of their original, so that they can be compared.
        limits = scale_of(view, drawn.original)
        for ax, pictures in zip(row, (drawn.original, *drawn.versions), strict=True):
            draw(ax, pictures, limits, captions=view.captions, x=view.along)
        for ax, error in zip(row[1:], drawn.errors, strict=True):
            words = f"error {100 * error:.3g} %" if error > UNSEEN else f"error < {100 * UNSEEN:g} %"
            ax.set_xlabel(words, fontsize=SMALL)
    axes[0, 0].set_title("original", fontsize=SMALL)
    for ax, step in zip(axes[0, 1:], steps, strict=True):
        ax.set_title(counted(step, "component"), fontsize=SMALL)
    explain(figure, view, "value")
    return axes


def unusual(
    model: Model,
    samples: Any,
    t2: Array,
    spe: Array,
    names: Sequence[object] | None = None,
    figure: AnyFigure | None = None,
) -> AxesGrid:
    r"""Draw unusual samples beside their reconstructions and the differences.

    Parameters
    ----------
    model : Model
        The model.
    samples : array of shape (n, \*raw_shape), sequence of images, collection, or a source for `open_collection`
        Samples, all of which are drawn, such as ``collection[numbers]``.
    t2, spe : array_like of shape (n,)
        Hotelling's T2 and the squared prediction error of each sample, written beside it.
    names : sequence of shape (n,), optional
        Names of the samples; shown shortened.
    figure : matplotlib.figure.Figure or SubFigure, optional
        Where to draw; a new figure by default.

    Returns
    -------
    ndarray of Axes of shape (n, 3)
        Each sample, its reconstruction on the same grey scale, and the difference on a signed scale of its own. Samples
        are numbered from 1, like the marked ones of `outliers`.

    Raises
    ------
    RequestError
        If there are no samples, or numbers and names are not one for each.
    ModelError
        If a sample is not of the shape the model was fitted on, or the model is an embedding.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> t2, spe = model.hotelling_t2(digits), model.reconstruction_error(digits)
    >>> strangest = spe.argsort()[-3:]
    >>> figure = streampca.plot.unusual(model, digits[strangest], t2[strangest], spe[strangest])
    """
    whole = _reconstructing(model)
    images = _images(model, samples)
    for what, entries in (("t2", t2), ("spe", spe), ("names", images if names is None else names)):
        if len(entries) != len(images):
            raise RequestError(f"{what} has {len(entries)} entries for {len(images)} samples; give one for each.")
    view = view_of(model.as_images(), FEW)
    # Many samples are arranged in two columns of three panels.
    blocks = 1 if len(images) < 4 else 2
    rows = -(-len(images) // blocks)
    size = grid_size(view, rows, 3 * blocks, caption=0.1, rest=1.0, side=LABEL * blocks, least=TALL)
    figure = figure if figure is not None else new_figure(*size)
    grid: AxesGrid = figure.subplots(rows, 3 * blocks, squeeze=False)
    # One row of axes for each sample, the second column after the first.
    axes = np.concatenate([grid[:, 3 * block : 3 * block + 3] for block in range(blocks)])
    for spare in axes[len(images) :].flat:
        spare.remove()
    axes = axes[: len(images)]
    for number, (row, drawn) in enumerate(
        zip(axes, _reconstructed(whole, view, images, [whole.n_components]), strict=True)
    ):
        _beside(row, view, drawn)
        name = f" {short_text(names[number], 14)}" if names is not None else ""
        label = f"{number + 1}{name}\nT\N{SUPERSCRIPT TWO} {t2[number]:.3g}\nSPE {spe[number]:.3g}"
        row[0].set_ylabel(label, fontsize=SMALL, rotation=0, ha="right", va="center", **LITERAL)
    for first in axes[::rows]:
        for ax, title in zip(first, ("sample", "rebuilt", "residual"), strict=True):
            ax.set_title(title, fontsize=SMALL)
    if view.is_line:
        explain(figure, view, "value")
    elif view.colour is None:
        what = "sample less reconstruction, each on its own scale"
        sign_scale(figure, axes, "; ".join(part for part in (what, view.note) if part))
    else:
        figure.supxlabel("difference of each colour: mid-grey 0, each sample on its own scale", fontsize=SMALL)
    return axes


def _beside(row: AxesGrid, view: SampleView, drawn: ReconstructedSample) -> None:
    """Draw a sample, its reconstruction and their difference."""
    (version,), limits = drawn.versions, scale_of(view, drawn.original)
    for ax, pictures in zip(row, (drawn.original, version), strict=False):
        draw(ax, pictures, limits, captions=view.captions, x=view.along)
    draw(row[2], drawn.original - version, signed=True, captions=view.captions, x=view.along)


def _reconstructing(model: Model) -> ComponentsModel:
    """Return the components that images are reconstructed from; refuse a model without any."""
    return check_components(model.as_images() if isinstance(model, RotatedPCAModel) else model)


@dataclass(frozen=True)
class ReconstructedSample:
    """Pictures of one sample.

    Attributes
    ----------
    original : ndarray of shape (pictures, ...)
        Prepared sample, with the scale undone.
    versions : sequence of ndarray
        Reconstructions, one for each number of components.
    errors : ndarray
        Distance of each reconstruction from the sample, relative to the sample's distance from the mean, in features as
        analysed.
    """

    original: Float64
    versions: Float64
    errors: Float64


def _reconstructed(
    model: ComponentsModel, view: SampleView, images: list[Array], steps: list[int]
) -> Iterator[ReconstructedSample]:
    """Yield pictures of samples and their reconstructions, holding pictures of few components at a time."""
    if isinstance(model, KernelPCAModel):
        yield from _pre_images(model, view, images, steps)
        return
    frame, subspace, rows = model.frame, model.subspace, prepared_rows(model, images)
    normalized, numbers = frame.normalized(rows)
    scores = np.asarray(subspace.project(normalized), np.float64)
    if subspace.missing == "error":
        distance = squared_lengths(normalized, subspace.mean)
        # By Pythagoras, as reconstructions are projections.
        remaining = np.stack([distance - subspace.first(step).explained_squares(scores) for step in steps], axis=1)
    else:  # components are not orthogonal over the observed values alone
        distance = squared_lengths(np.where(np.isfinite(normalized), normalized, subspace.mean), subspace.mean)
        squares = [subspace.first(step).squared_error(normalized, scores[:, :step]) for step in steps]
        remaining = np.stack(squares, axis=1)
    del normalized
    errors = _relative(remaining, distance)
    versions = weighted_pictures(model, view, [model.weights_of(scores[:, :step]) for step in steps], numbers)
    for number, row in enumerate(rows):
        original = view.one(frame.images(row[None])[0])
        yield ReconstructedSample(original, versions[:, number], errors[number])


def _pre_images(
    model: KernelPCAModel, view: SampleView, images: list[Array], steps: list[int]
) -> Iterator[ReconstructedSample]:
    """Yield pictures of samples and pre-images of their projections; errors are distances in the kernel's features."""
    rows = prepared_rows(model, images, model.image_frame)
    mapped = model.mapping(rows)
    scores = np.asarray(model.subspace.project(mapped), np.float64)
    distance = squared_lengths(mapped, model.mean)
    errors = _relative(distance[:, None] - np.cumsum(scores**2, axis=1)[:, np.array(steps) - 1], distance)
    versions = [view.read(np.asarray(model.inverse_transform(scores[:, :step]))) for step in steps]
    for number, original in enumerate(view.read(model.image_frame.images(rows))):
        yield ReconstructedSample(original, np.stack([version[number] for version in versions]), errors[number])


def _relative(remaining: Float64, distance: Float64) -> Float64:
    """Return distances from samples relative to distances from the mean, (m, steps), given squares of both."""
    relative: Float64 = np.sqrt(np.maximum(remaining, 0) / np.where(distance > 0, distance, 1)[:, None])
    return relative


def weighted_pictures(
    model: ComponentsModel, view: SampleView, weights: Sequence[Array], numbers: Float64 | None
) -> Float64:
    """Return pictures of reconstructions, (steps, samples, ...): components times their weights, (samples, step)."""
    factors, mean = factors_of(model), mean_pictures(model, view)
    # All versions start from the mean; components are added as they are read.
    versions = np.tile(mean, (len(weights), len(weights[0]), *(1,) * mean.ndim))
    ends = {array.shape[1] for array in weights}
    # Ranges of components end where a version does, so that each is complete after its last range.
    for start, stop in pairwise(sorted({0, *ends, *range(0, max(ends), TOGETHER)})):
        components = view.read(model.components, start, stop, over=factors)
        for version, weight in zip(versions, weights, strict=True):
            if stop <= weight.shape[1]:
                version += np.tensordot(weight[:, start:stop], components, axes=1)
    if numbers is not None:
        weight = numbers.reshape(1, -1, *(1,) * (versions.ndim - 2))
        # Undo the normalisation of each sample: add its mean, or multiply by its norm.
        if model.preparation.normalize == "mean":
            versions += weight * view.read(np.ones((1, *model.sample_shape)), over=factors)
        else:
            versions *= weight
    return versions


def prepared_rows(model: Model, images: Sequence[Array], frame: Frame | None = None) -> Array:
    """Return raw samples, of several sizes if the model resizes, as rows of features, (m, p), not normalized.

    Missing values are refused unless the model has a rule for them.
    """
    frame, rows = frame or model.frame.unnormalized, []
    if frame.lacks_keys:
        raise RequestError(
            "the images given say no dates or labels, by which the model takes means off them; draw them with "
            "streampca.write_report or 'streampca report', which read them with the samples."
        )
    for image in images:
        shape = given_shape((1, *image.shape), model.preparation, model.raw_shape, model.name)
        # Samples can differ in size: each has a frame of its own until it is resized.
        rows.append(replace(frame, raw_shape=shape).rows(image.reshape(1, -1)))
    stacked = np.concatenate(rows)
    if model.rule_for(None) == "error":
        refuse_bad("sample {} of those given".format, stacked, 0)
    return stacked


def _images(model: Model, samples: Any, count: int | None = None) -> list[Array]:
    samples = model.raw_samples(samples)
    first = samples[:count] if count is None or count > 0 else []
    images = [np.asarray(image) for image in first]
    if not images:
        raise RequestError(f"there are no samples to draw; give 1 or more of {format_shape(model.raw_shape)}.")
    return images


def _ladder(n_components: int, ladder: Sequence[int] | None) -> list[int]:
    if ladder is None:
        return [int(step) for step in np.unique(np.geomspace(1, n_components, 4).round())]
    if not len(ladder) or not all(1 <= step <= n_components for step in ladder):
        raise RequestError(
            f"ladder is {list(ladder)} and the model has {n_components} components; stay within 1 to these."
        )
    return [int(step) for step in ladder]
