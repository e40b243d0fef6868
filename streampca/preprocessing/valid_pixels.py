"""Properties of a whole collection, determined once: complete pixels, complete samples, and areas of pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, RequestError
from ..events import BlockDone, Listener, PassStarted, Warned, reported, silent
from ..execution.decoded_chunks import keeping
from ..planning.blocks import MOST_BLOCK, Span, block_rows, blocks_of
from ..readers.collection import Collection, Skipped
from ..readers.coordinates import is_latitude
from ..readers.views.compose import choose
from ..units import MIB, counted
from .coordinates import placed
from .preparation import Preparation
from .prepared import Prepared

LISTED = 1000  # most dropped samples that a model lists by name; it always stores their number
LOOKED_AT = 64  # samples that `missing_share` reads
LOOKED_AT_BYTES = 64 * MIB  # most bytes that it reads, where a chunk decoded for a sample counts whole


def resolved(
    preparation: Preparation,
    raw: Collection,
    listener: Listener = silent,
    *,
    block_bytes: int = MOST_BLOCK,
    drops_features: bool = False,
) -> Preparation:
    """Replace ``mask="valid"`` and ``scale="area"`` by arrays for a collection, and order given arrays by its axes.

    Samples are read in blocks that take at most `block_bytes` with everything computed from them. With
    `drops_features`, a mask that is an array is narrowed to the features that are finite in every sample.
    """
    if preparation.grids:
        images = Prepared(raw, preparation.of_images)
        named = {name: (getattr(preparation, name), grid) for name, grid in preparation.grids.items()}
        words = {"mask": "mask", "scale": "scale (weights)"}
        ordered: dict[str, Any] = {name: placed(*pair, images, words[name]) for name, pair in named.items()}
        preparation = replace(preparation, grids={}, **ordered)
    if isinstance(preparation.mask, str) or drops_features:
        array_mask = None if isinstance(preparation.mask, str) else preparation.mask
        images = Prepared(raw, replace(preparation.of_images, mask=array_mask))
        mask = valid_mask(images, listener, block_bytes=block_bytes)
        preparation = replace(preparation, mask=None if mask.all() else mask)
    if isinstance(preparation.scale, str):
        preparation = replace(preparation, scale=area_scale(Prepared(raw, preparation.of_images)))
    return preparation


def valid_mask(
    collection: Collection, listener: Listener = silent, *, block_bytes: int = MOST_BLOCK
) -> npt.NDArray[np.bool_]:
    r"""Find the features that are finite in every sample, in one pass.

    Returns
    -------
    ndarray of bool, shape (\*sample_shape)
    """
    valid = np.ones(collection.n_features, dtype=bool)
    if collection.dtype.kind == "f":
        for _, finite in _finite(collection, "valid pixels", listener, block_bytes):
            valid &= finite.all(axis=0)
    if not valid.any():
        raise DataError(
            f"{collection.source} has no pixel that is finite in every sample; leave out samples instead, with "
            '--missing drop-samples (missing="drop-samples"), or, for kind "pca", fit what is there, with --missing em '
            '(missing="em").'
        )
    return _over(collection, valid)


def complete_samples(collection: Prepared, listener: Listener = silent, *, block_bytes: int = MOST_BLOCK) -> Prepared:
    """Leave out the samples with missing values, in one pass.

    Features that are missing in every sample (land, say) do not distinguish samples, and are masked.

    Returns
    -------
    Prepared
        Complete samples, with `dropped` and `n_dropped` set; the collection itself if nothing is missing.

    Raises
    ------
    DataError
        If fewer than two samples are complete.
    """
    if collection.dtype.kind != "f":
        return collection
    seen = Prepared(collection.raw, collection.preparation.unnormalized)
    ever, missing = np.zeros(seen.n_features, dtype=bool), np.zeros(seen.n_samples, dtype=np.int64)
    for block, finite in _finite(seen, "complete samples", listener, block_bytes):
        ever |= finite.any(axis=0)
        missing[slice(*block)] = seen.n_features - np.count_nonzero(finite, axis=1)
    missing -= np.count_nonzero(~ever)  # these features are masked below
    complete = missing == 0
    if np.count_nonzero(complete) < 2 <= seen.n_samples:
        raise DataError(
            f"{seen.source} has {counted(int(np.count_nonzero(complete)), 'sample')} without missing values, of "
            f'{seen.n_samples}; leave out pixels instead, with --missing drop-features (missing="drop-features"), or, '
            'for kind "pca", fit what is there, with --missing em (missing="em").'
        )
    preparation, raw = collection.preparation, collection.raw
    if not ever.all():
        preparation = replace(preparation, mask=_over(seen, ever))
    if complete.all():
        return Prepared(raw, preparation) if preparation is not collection.preparation else collection
    chosen = choose(raw, np.flatnonzero(complete))
    chosen.kept = complete
    if raw.kept is not None:  # columns of weights are for all samples of the source, skipped ones included
        chosen.kept = raw.kept.copy()
        chosen.kept[raw.kept] = complete
    remaining, places = Prepared(chosen, preparation), np.flatnonzero(~complete)
    remaining.n_dropped, p = len(places), int(np.count_nonzero(ever))
    remaining.dropped = tuple(
        Skipped(raw.where(at), f"holds NaN or infinity in {missing[at]} of its {p} features")
        for at in places[:LISTED].tolist()
    )
    listener(
        Warned(
            f"{counted(len(places), 'sample')} of the {seen.n_samples} of {seen.source} "
            f"{'is' if len(places) == 1 else 'are'} left out: values are missing. The model lists them."
        )
    )
    return remaining


def observed_features(collection: Prepared, listener: Listener = silent, *, block_bytes: int = MOST_BLOCK) -> Prepared:
    """Mask the features that are missing in every sample, in one pass; the others will be filled in.

    Raises
    ------
    RequestError
        If samples are normalized: the mean or norm of a sample with missing values is unknown.
    DataError
        If no value is finite.
    """
    if collection.dtype.kind != "f":
        return collection
    if collection.preparation.normalize is not None:
        raise RequestError(
            f"normalize {collection.preparation.normalize!r} needs all values of a sample, and missing is 'em'; leave "
            "normalize out, or use missing 'drop-features' or 'drop-samples'."
        )
    ever = np.zeros(collection.n_features, dtype=bool)
    for _, finite in _finite(collection, "observed pixels", listener, block_bytes):
        ever |= finite.any(axis=0)
    if not ever.any():
        raise DataError(f"{collection.source} holds no finite value; check the array that is read.")
    if ever.all():
        return collection
    return Prepared(collection.raw, replace(collection.preparation, mask=_over(collection, ever)))


def _finite(
    collection: Collection, label: str, listener: Listener, block_bytes: int
) -> Iterator[tuple[Span, npt.NDArray[np.bool_]]]:
    """Read a collection once; yield blocks of samples, and masks of their finite values."""
    # The mask takes one more byte per value of a block.
    prepared = collection.preparing.prepared_bytes if isinstance(collection, Prepared) else 0
    row = collection.row_bytes + prepared + collection.n_features
    size = block_rows(row, collection.chunks.samples, block_bytes)
    with reported(listener, PassStarted(label, 1, 1, collection.n_samples, collection.nbytes)), keeping():
        for block in blocks_of(Span(0, collection.n_samples), size):
            yield block, np.isfinite(collection.read(slice(*block)))
            listener(BlockDone(block.size, block.size * collection.row_bytes))


def _over(collection: Collection, features: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return a choice of features as a mask of whole samples, False outside the collection's own mask."""
    mask = getattr(collection, "mask", None)
    if mask is None:
        return features.reshape(collection.sample_shape)
    whole: npt.NDArray[np.bool_] = np.zeros(collection.sample_shape, dtype=bool)
    whole[mask] = features
    return whole


def area_scale(collection: Collection) -> npt.NDArray[np.float64]:
    r"""Return sqrt(cos(latitude)), the root of the area of each pixel up to a factor, shape (\*sample_shape)."""
    axes, shape = collection.axes or (), collection.sample_shape
    for name, coordinate in collection.coordinates.items():  # coordinates of axes come first
        if is_latitude(name, coordinate):
            height = np.sqrt(np.clip(np.cos(np.deg2rad(coordinate.values.astype(np.float64))), 0, None))
            along = coordinate.along(name)
            lengths = [length if axis in along else 1 for axis, length in zip(axes, shape, strict=True)]
            return np.broadcast_to(height.reshape(lengths), shape)
    raise RequestError(
        f'scale "area" needs latitudes in degrees, and samples of {collection.source} have none; give the factors as '
        "an array."
    )


def missing_share(collection: Prepared) -> float:
    """Return the share of features that are missing (NaN or infinite) in all of a few samples spread over a collection.

    At most 64 samples and 64 MiB are read, but at least one sample.
    """
    seen = Prepared(collection.raw, collection.preparation.unnormalized)
    chunk = max(1, seen.chunks.samples * seen.row_bytes)
    count = max(1, min(LOOKED_AT, seen.n_samples, LOOKED_AT_BYTES // chunk))
    missing = np.ones(seen.n_features, dtype=bool)
    for at in np.linspace(0, seen.n_samples - 1, count).astype(int):
        missing &= ~np.isfinite(seen.read(slice(at, at + 1))[0])
    return float(missing.mean())
