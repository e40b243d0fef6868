"""Reading of many samples of one collection in pieces that are bounded in size and aligned with storage chunks."""

from __future__ import annotations

from ...arrays import Array
from ...planning.blocks import Span, block_rows, blocks_of
from ...units import MIB
from ..collection import Collection

# Bytes of a piece. A chunk of up to the second size is read whole: in parts it would be decoded once for each part.
_PIECE = 8 * MIB
_LARGEST = 64 * MIB


def piece_bytes(base: Collection) -> int:
    """Return the largest number of bytes of a piece of a collection."""
    chunk = base.chunks.samples * base.row_bytes
    piece = max(chunk if chunk <= _LARGEST else 0, _PIECE, base.row_bytes)
    return min(piece, base.nbytes)


def piece_rows(base: Collection, features: slice | None) -> int:
    """Return the number of samples in a piece with the given features; whole storage chunks if one fits."""
    width = base.n_features if features is None else features.stop - features.start
    return block_rows(width * base.dtype.itemsize, base.chunks.samples, piece_bytes(base))


def fill(base: Collection, rows: slice, features: slice | None, out: Array) -> None:
    """Read samples into `out`, (rows, features), with one piece in memory besides."""
    for span in blocks_of(Span(rows.start, rows.stop), piece_rows(base, features)):
        out[span.start - rows.start : span.stop - rows.start] = base.read(slice(*span), features)
