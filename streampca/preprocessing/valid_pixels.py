"""Masks and scales read off a collection once: pixels that are finite in every sample, areas of pixels."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..errors import DataError, RequestError
from ..events import BlockDone, Listener, PassFinished, PassStarted, silent
from ..planning.blocks import Span, block_rows, blocks_of
from ..readers.collection import Collection
from ..units import MIB
from .coordinates import is_latitude
from .preparation import Preparation
from .prepared import Prepared

LOOKED_AT = 64  # samples in which `missing_share` looks for what is always missing
LOOKED_AT_BYTES = 64 * MIB  # most that it reads, chunks decoded for a sample counted whole


def resolved(
    preparation: Preparation, raw: Collection, listener: Listener = silent, *, memory: int = 24 * MIB
) -> Preparation:
    """Replace ``mask="valid"`` and ``scale="area"`` by the arrays they stand for in a collection."""
    if isinstance(preparation.mask, str):
        mask = valid_mask(Prepared(raw, preparation.of_images), listener, memory=memory)
        preparation = replace(preparation, mask=None if mask.all() else mask)
    if isinstance(preparation.scale, str):
        preparation = replace(preparation, scale=area_scale(Prepared(raw, preparation.of_images)))
    return preparation


def valid_mask(collection: Collection, listener: Listener = silent, *, memory: int = 24 * MIB) -> npt.NDArray[np.bool_]:
    r"""Find the features that are finite in every sample, in one pass.

    Returns
    -------
    ndarray of bool, shape (\*sample_shape)
    """
    valid = np.ones(collection.n_features, dtype=bool)
    if collection.dtype.kind == "f":
        began = time.perf_counter()
        listener(PassStarted("valid pixels", 1, 1, collection.n_samples, collection.nbytes))
        # Beside a block of rows stands what is true of them, a byte a value.
        row = collection.row_bytes + getattr(collection, "prepared_bytes", 0) + collection.n_features
        for block in blocks_of(Span(0, collection.n_samples), block_rows(row, collection.chunks.samples, memory)):
            valid &= np.isfinite(collection.read(slice(*block))).all(axis=0)
            listener(BlockDone(block.size, block.size * collection.row_bytes))
        listener(PassFinished(time.perf_counter() - began))
    if not valid.any():
        raise DataError(
            f"{collection.source} has no pixel that is finite in every sample; leave samples out, or fill values in."
        )
    return valid.reshape(collection.sample_shape)


def area_scale(collection: Collection) -> npt.NDArray[np.float64]:
    r"""Return sqrt(cos(latitude)), the root of the area of each pixel but for a factor, shape (\*sample_shape)."""
    known = collection.coordinates
    for axis, name in enumerate(collection.axes or ()):
        if name in known and is_latitude(name, known[name]):
            height = np.sqrt(np.clip(np.cos(np.deg2rad(known[name].values.astype(np.float64))), 0, None))
            shape = [-1 if other == axis else 1 for other in range(len(collection.sample_shape))]
            return np.broadcast_to(height.reshape(shape), collection.sample_shape)
    raise RequestError(
        f'scale "area" needs latitudes, and samples of {collection.source} have none along an axis; give the factors '
        "as an array."
    )


def missing_share(collection: Prepared) -> float:
    """Share of features that are missing (NaN or infinite) in all of some samples spread over a collection.

    At most 64 samples and 64 MiB are read, at least one sample.
    """
    seen = Prepared(collection.raw, collection.preparation.unnormalized)
    chunk = max(1, seen.chunks.samples * seen.row_bytes)
    count = max(1, min(LOOKED_AT, seen.n_samples, LOOKED_AT_BYTES // chunk))
    missing = np.ones(seen.n_features, dtype=bool)
    for at in np.linspace(0, seen.n_samples - 1, count).astype(int):
        missing &= ~np.isfinite(seen.read(slice(at, at + 1))[0])
    return float(missing.mean())
