"""X^T X and X X^T of blocks of whole numbers of 8 or 16 bits, exactly and fast, on integer units of the processor.

Special instructions (VNNI, AMX, those of ARM) add up products of unsigned with signed bytes in int32. The left factor
is the block x, the right one x - 128, which is x with its first bit flipped: X^T (X - 128) lacks 128 times the sums of
the columns, which are added afterwards. Numbers of 16 bits are two features of 8 bits each, low and high, and their
products are ll + 256 (lh + hl) + 65536 hh. A sum of r products is at most 255 * 128 * r, which int32 holds up to 65793
rows; pieces are shorter. Centring can follow the product here, because float64 holds all whole numbers on the way: with
column sums s and whole numbers c, the sum of (x - c)(x - c)^T is X^T X - c t^T - s c^T for t = s - r c. Only then is it
added to the total, which can hold fractions from other samples.

The products are computed by `MatMulInteger` of onnxruntime, in a graph of four nodes that is written here byte by byte
(`graph`). On processors without such instructions the same kernels add pairs of products in 16 bits, which saturate:
`is_exact` detects this by trying, and the caller multiplies in floating point instead.

References
----------
ONNX operator MatMulInteger, https://onnx.ai/onnx/operators/onnx__MatMulInteger.html
ONNX intermediate representation (onnx.proto), https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas

from ..arrays import Array, Float64
from ..planning.memory import INTEGER_RUN, INTEGER_TILE, LEAST_INTEGER_ROWS, integer_rows

Bytes = npt.NDArray[np.uint8]

UINT8, INT8, INT32, INT64 = 2, 3, 6, 7  # element types of onnx.proto
SIGNED = {"amx": True, "vnni": True, "arm": True}  # kernel class: whether the right factor is signed
# Row counts of the products that are tried: one instruction, a few of them, and remainders. A single row has no pair of
# products, so it cannot saturate.
TRIED_ROWS = (2, 3, 4, 5, 6, 7, 8, 9, 15, 31, 33, 63, 64, 65, 67)
NARROW = 16  # columns of the products of a whole run of rows that are tried
SUMMED_ROWS = 256  # rows of bytes whose sums 16 bits hold
TURNED_COLUMNS = 256  # columns transposed at a time, in the cache: 1000 rows of 4096 bytes in 3 ms, all at once in 14
_FIRST = threading.Lock()  # threads that start together create one session, and try it once


@dataclass(frozen=True)
class IntegerKernel:
    """Product of bytes with int32 sums.

    Attributes
    ----------
    multiply : callable
        ``multiply(x, y, start, stop, out)`` writes x[:, start:stop]^T y[:, :stop] to `out`, (stop - start, stop) int32,
        for bytes x and y, (rows, p).
    signed : bool
        If true, y holds signed bytes.
    """

    multiply: Callable[[Bytes, Array, int, int, npt.NDArray[np.int32]], None]
    signed: bool

    @property
    def most_rows(self) -> int:
        """Largest number of rows whose sums int32 holds."""
        return (2**31 - 1) // (255 * (128 if self.signed else 255))

    def piece_rows(self, width: int) -> int:
        """Return the number of rows, of `width` bytes each, whose products are added up in int32."""
        return min(integer_rows(width), self.most_rows)

    def run_rows(self, width: int) -> int:
        """Return the number of rows that are multiplied at a time."""
        return min(max(LEAST_INTEGER_ROWS, INTEGER_RUN // width), self.piece_rows(width))


# -- the graph, as bytes of onnx.proto: each field is written as its number and wire type, and its value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def _node(op: str, inputs: str, output: str, attribute: bytes = b"") -> bytes:
    """Return a NodeProto: input = 1, output = 2, op_type = 4, attribute = 5."""
    named = b"".join(_bytes(1, name) for name in inputs.split())
    return named + _bytes(2, output) + _bytes(4, op) + attribute


def _value(name: str, kind: int, *axes: str | int) -> bytes:
    """Return a ValueInfoProto: name = 1, type = 2 of tensor_type = 1 of elem_type = 1 and shape = 2."""
    dims = (_bytes(2, axis) if isinstance(axis, str) else _number(1, axis) for axis in axes)
    shape = b"".join(_bytes(1, dim) for dim in dims)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, kind) + _bytes(2, shape)))


def _constant(name: str, value: int) -> bytes:
    """Return a TensorProto of one int64: dims = 1, data_type = 2, name = 8, raw_data = 9."""
    return _number(1, 1) + _number(2, INT64) + _bytes(8, name) + _bytes(9, value.to_bytes(8, "little"))


def graph(*, signed: bool) -> bytes:
    """Return a ModelProto, ir_version = 1, graph = 7, opset_import = 8, of x[:, start:stop]^T y[:, :stop]."""
    turn = _bytes(1, "perm") + _number(8, 1) + _number(8, 0) + _number(20, 7)  # AttributeProto: ints = 8, type = INTS
    nodes = (
        _node("Slice", "x start stop axis", "some"),
        _node("Transpose", "some", "turned", _bytes(5, turn)),
        _node("Slice", "y zero stop axis", "columns"),
        _node("MatMulInteger", "turned columns", "product"),
    )
    inputs = (
        _value("x", UINT8, "rows", "p"),
        _value("y", INT8 if signed else UINT8, "rows", "p"),
        _value("start", INT64, 1),
        _value("stop", INT64, 1),
    )
    parts = (
        *(_bytes(1, node) for node in nodes),
        _bytes(2, "products"),
        _bytes(5, _constant("axis", 1)),
        _bytes(5, _constant("zero", 0)),
        *(_bytes(11, value) for value in inputs),
        _bytes(12, _value("product", INT32, "some columns", "columns")),
    )
    return _number(1, 8) + _bytes(7, b"".join(parts)) + _bytes(8, _number(2, 13))


@cache
def onnxruntime_kernel(*, signed: bool) -> IntegerKernel:
    """Return the product by onnxruntime, which runs in the calling thread; several threads can call it at a time.

    Raises
    ------
    ImportError
        If onnxruntime is not installed.
    """
    import onnxruntime  # 20 MiB, loaded on first use only

    options = onnxruntime.SessionOptions()
    # Callers multiply in threads of their own, so the session must not start more.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # an arena keeps its largest size
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph(signed=signed), options, providers=["CPUExecutionProvider"])

    def multiply(x: Bytes, y: Array, start: int, stop: int, out: npt.NDArray[np.int32]) -> None:
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("y", y)
        binding.bind_cpu_input("start", np.array([start], np.int64))
        binding.bind_cpu_input("stop", np.array([stop], np.int64))
        binding.bind_output("product", "cpu", 0, np.int32, out.shape, out.ctypes.data)
        session.run_with_iobinding(binding)

    return IntegerKernel(multiply, signed)


# -- the trial of exactness


def tile_columns(width: int) -> int:
    """Return the number of columns multiplied at a time: tiles of similar size, multiples of one instruction."""
    columns = -(-width // -(-width // INTEGER_TILE))
    return min(columns + -columns % NARROW, INTEGER_TILE)


def tiles_of(width: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each tile of columns, which is multiplied with all columns before its stop."""
    for start in range(0, width, columns):
        yield start, min(start + columns, width)


def tried_shapes(kernel: IntegerKernel, width: int) -> Iterator[tuple[int, int]]:
    """Yield the rows and columns of the products that are tried, for rows of `width` bytes.

    Tiles at other positions differ in their number of columns by whole tiles. A run of full length, and one that lacks
    a few rows, are tried with few columns.
    """
    tile = tile_columns(width)
    columns = width if width <= 2 * tile else tile + (width - 1) % tile + 1
    yield from ((rows, columns) for rows in TRIED_ROWS)
    yield from ((kernel.run_rows(width) - missing, min(width, NARROW)) for missing in (0, 5))


@cache
def is_exact(kernel: IntegerKernel, width: int) -> bool:
    """Return whether products of the largest values are right, in the shapes that rows of `width` bytes need.

    This is tried once per process: 0.04 s for 784 features, at most 0.06 s on slow processors.
    """
    tile = tile_columns(width)
    return all(_is_exact(kernel, rows, columns, tile) for rows, columns in tried_shapes(kernel, width))


def _is_exact(kernel: IntegerKernel, rows: int, columns: int, tile: int) -> bool:
    x = np.random.default_rng([rows, columns]).choice(np.array([0, 255], np.uint8), (rows, columns))
    # Every third column holds the largest value, so that products of 255 with 127 and with -128 are added up.
    x[:, ::3] = 255
    y, wide = signed_bytes(x) if kernel.signed else x, x.astype(np.float64)
    for start, stop in tiles_of(columns, tile):
        out = np.empty((stop - start, stop), np.int32)
        kernel.multiply(x, y, start, stop, out)
        if not np.array_equal(out, wide[:, start:stop].T @ y[:, :stop].astype(np.float64)):
            return False
    return True


def signed_bytes(x: Bytes) -> npt.NDArray[np.int8]:
    """Return x - 128."""
    return (x ^ np.uint8(128)).view(np.int8)


def integer_products(units: str, n_features: int) -> IntegerProducts | None:
    """Return the products of a kernel class; None if it does not exist, is not installed or is not exact."""
    if units not in SIGNED or sys.byteorder != "little":
        return None
    with _FIRST:
        try:
            kernel = onnxruntime_kernel(signed=SIGNED[units])
        except ImportError:
            return None
        return IntegerProducts(kernel) if all(is_exact(kernel, count * n_features) for count in (1, 2)) else None


# -- blocks


@dataclass(frozen=True)
class Whole:
    """Block of whole numbers as bytes.

    Attributes
    ----------
    words : ndarray of uint8 or uint16, shape (rows, p)
        Numbers less `least`.
    least : int
        Smallest number of their dtype.
    """

    words: Array
    least: int


def as_whole(block: Array) -> Whole | None:
    """Return a block of whole numbers as bytes (a view if unsigned); None if 16 bits do not hold them."""
    dtype = block.dtype
    if dtype.kind == "f":
        low, high = float(block.min(initial=0)), float(block.max(initial=0))
        fitting = (
            word for word in (np.uint8, np.uint16, np.int16) if np.iinfo(word).min <= low <= high <= np.iinfo(word).max
        )
        word = next(fitting, None)
        if word is None:
            return None
        block = block.astype(word)
    elif dtype.kind == "b":
        block = block.view(np.uint8)
    elif dtype.itemsize > 2:
        return None
    if not (block.flags.c_contiguous and block.dtype.isnative):
        block = np.ascontiguousarray(block, block.dtype.newbyteorder("="))
    if block.dtype.kind == "u":
        return Whole(block, 0)
    # Flipping the sign bit subtracts the smallest number of the dtype.
    unsigned = np.dtype(f"u{block.itemsize}")
    least = int(np.iinfo(block.dtype).min)
    return Whole(block.view(unsigned) ^ unsigned.type(-least), least)


class IntegerProducts:
    """Computes scatter and Gram matrices of blocks of whole numbers, and adds them to a total.

    Parameters
    ----------
    kernel : IntegerKernel
        Product of bytes.
    """

    def __init__(self, kernel: IntegerKernel) -> None:
        self._kernel, self.piece_rows = kernel, kernel.piece_rows
        self._adding = threading.Lock()

    def add(self, whole: Whole, centre: Float64, scatter: Float64) -> tuple[Float64, Float64]:
        """Add the scatter of rows about whole numbers to the upper triangle of a total.

        Parameters
        ----------
        whole : Whole
            At most `piece_rows` rows.
        centre : ndarray of shape (p,)
            Point that products are about, of whole numbers.
        scatter : ndarray of shape (p, p)
            Total, in Fortran order. Whole numbers below 2^51 stay exact.

        Returns
        -------
        sums, squares : ndarray of shape (p,)
            Sums of the rows less the centre, and of their squares.
        """
        words = whole.words
        rows, p = words.shape
        sums, about = _sums(words), centre - whole.least
        centred, squares = sums - rows * about, np.empty(p)
        for first, last, tile in self._tiles(words, sums):
            # X^T X - c t^T - s c^T, see the module's docstring.
            blas.dger(-1.0, about[:last], centred[first:last], a=tile.T, overwrite_a=1)
            blas.dger(-1.0, sums[:last], about[first:last], a=tile.T, overwrite_a=1)
            squares[first:last] = tile[:, first:].diagonal()
            scatter.T[first:last, :last] += tile
        return centred, squares

    def add_among(self, whole: Whole, centre: Float64, gram: Float64) -> Float64:
        """Add the inner products of samples about whole numbers to the upper triangle of a total; thread-safe.

        Parameters
        ----------
        whole : Whole
            Some features of all samples, (n, width); at most `piece_rows` features.
        centre : ndarray of shape (width,)
            Point that products are about: whole numbers between the least and the greatest of each feature.
        gram : ndarray of shape (n, n)
            Total, in Fortran order. Whole numbers below 2^51 stay exact.

        Returns
        -------
        squares : ndarray of shape (n,)
            Squared distance of each sample from the centre.

        Notes
        -----
        The centre c is multiplied as one more sample: (x - c)^T (y - c) is x^T y - x^T c - c^T y + c^T c.
        """
        words = whole.words
        n, width = words.shape
        turned = np.empty((width, n + 1), words.dtype)  # the centre comes first: every tile needs x^T c
        turned[:, 0] = centre - whole.least
        for start in range(0, width, TURNED_COLUMNS):
            columns = slice(start, start + TURNED_COLUMNS)
            turned[columns, 1:] = np.ascontiguousarray(words[:, columns]).T
        with_centre, squares = np.empty(n + 1), np.empty(n + 1)
        for first, last, tile in self._tiles(turned, _sums(turned)):
            with_centre[first:last] = tile[:, 0]
            tile -= (with_centre[first:last] - with_centre[0])[:, None]
            tile -= with_centre[:last]
            squares[first:last] = tile[:, first:].diagonal()
            # The first row and column belong to the centre, and are not part of the Gram matrix.
            begin = max(1, first)
            # Threads share the total.
            with self._adding:
                gram.T[begin - 1 : last - 1, : last - 1] += tile[begin - first :, 1:]
        return squares[1:]

    def _tiles(self, words: Array, sums: Float64) -> Iterator[tuple[int, int, Float64]]:
        """Yield start, stop and product of each tile of columns with all columns before its stop, given column sums."""
        count, (rows, p) = words.itemsize, words.shape
        x = words.view(np.uint8).reshape(rows, count * p)
        y = signed_bytes(x) if self._kernel.signed else x
        # X^T (X - 128) lacks 128 times the column sums; both bytes of 16 bits are shifted: 128 * (1 + 256).
        missing = 128 * (257 if count == 2 else 1) * sums
        for start, stop in tiles_of(count * p, tile_columns(count * p)):
            tile = _joined(self._products(x, y, start, stop), count)
            first, last = start // count, stop // count
            if self._kernel.signed:
                tile += missing[first:last, None]
            yield first, last, tile

    def _products(self, x: Bytes, y: Array, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the products of a tile of columns, added up over runs of rows."""
        step = self._kernel.run_rows(x.shape[1])
        out = np.empty((stop - start, stop), np.int32)
        # The first run writes to the sum itself, and so needs no second array if there is only one run.
        self._kernel.multiply(x[:step], y[:step], start, stop, out)
        more = np.empty_like(out) if len(x) > step else out
        for first in range(step, len(x), step):
            run = slice(first, first + step)
            self._kernel.multiply(x[run], y[run], start, stop, more)
            out += more
        return out


def _sums(words: Array) -> Float64:
    """Return the sums of columns.

    Bytes are added in 16 bits, which hold sums of 257 rows: three times as fast as in int64.
    """
    sums: Float64 = np.zeros(words.shape[1])
    if words.itemsize > 1:
        sums += words.sum(axis=0, dtype=np.int64)
        return sums
    for start in range(0, len(words), SUMMED_ROWS):
        sums += words[start : start + SUMMED_ROWS].sum(axis=0, dtype=np.uint16)
    return sums


def _joined(products: npt.NDArray[np.int32], count: int) -> Float64:
    """Return products of numbers of one or two (low, high) bytes, given the products of their bytes."""
    if count == 1:
        return products.astype(np.float64)
    low, high = products[::2], products[1::2]
    # ll + 256 (lh + hl) + 65536 hh by Horner's rule, in place.
    joined = high[:, 1::2].astype(np.float64)
    joined *= 256.0
    joined += low[:, 1::2]
    joined += high[:, ::2]
    joined *= 256.0
    joined += low[:, ::2]
    return joined
