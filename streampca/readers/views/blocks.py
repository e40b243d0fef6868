"""Reads many samples of one collection by pieces: bounded in size, and cut where storage cuts."""

from __future__ import annotations

from ...planning.blocks import Span, block_rows, blocks_of
from ...units import MIB
from ..collection import Array, Collection

# Bytes of a piece. A chunk of up to the second is read whole: in parts it would be decoded once for each of them.
_PIECE = 8 * MIB
_LARGEST = 64 * MIB


def piece_bytes(base: Collection) -> int:
    """Most bytes a piece of a collection takes."""
    chunk = base.chunks.samples * base.row_bytes
    piece = max(chunk if chunk <= _LARGEST else 0, _PIECE, base.row_bytes)
    return min(piece, base.nbytes)


def piece_rows(base: Collection, features: slice | None) -> int:
    """Samples to a piece, where some features of each are read; whole storage chunks where one fits."""
    width = base.n_features if features is None else features.stop - features.start
    return block_rows(width * base.dtype.itemsize, base.chunks.samples, piece_bytes(base))


def fill(base: Collection, rows: slice, features: slice | None, out: Array) -> None:
    """Read samples into the caller's rows, shape (rows, features), holding one piece beside them."""
    for span in blocks_of(Span(rows.start, rows.stop), piece_rows(base, features)):
        out[span.start - rows.start : span.stop - rows.start] = base.read(slice(*span), features)
