"""Products on a device, by torch: blocks travel as they are stored, and are centred, multiplied and added up there.

Products are float32 (never TF32) or float64, and sums are float64, as by BLAS: exact sums have the same bits, others
differ by rounding. Sums stay on the device from block to block; they are copied, bit by bit, when they are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..arrays import Array, Float64
from .centering import sum_of_parts
from .products import Block


class TorchBlock:
    """Block on a device."""

    def __init__(self, values: Any, owner: TorchProducts) -> None:
        self.values, self._owner = values, owner

    @property
    def shape(self) -> tuple[int, ...]:  # noqa: D102 - see `products.Block`
        return tuple(self.values.shape)

    @property
    def dtype(self) -> np.dtype[Any]:  # noqa: D102
        return np.dtype(np.float64 if self.values.dtype == torch.float64 else np.float32)

    @property
    def T(self) -> TorchBlock:  # noqa: D102, N802
        return TorchBlock(self.values.T, self._owner)

    def __getitem__(self, rows: slice) -> TorchBlock:
        return TorchBlock(self.values[rows], self._owner)

    def astype(self, dtype: Any) -> TorchBlock:  # noqa: D102
        return TorchBlock(self.values.to(_torch_dtype(np.dtype(dtype))), self._owner)

    def product(self, vectors: Array | Block) -> Any:
        """Return X Q on the device; see `times`."""
        return self.values @ self._owner.sent(vectors)

    def times(self, vectors: Array | Block) -> Array:  # noqa: D102
        return _array(self.product(vectors))

    def combined(self, factors: Array) -> Array:  # noqa: D102
        return _array(self._owner.sent(factors) @ self.values)

    def twice(self, vectors: Array) -> Array:  # noqa: D102
        return _array(self.values.T @ (self.values @ self._owner.sent(vectors)))

    def less(self, row: Float64) -> TorchBlock:  # noqa: D102
        self.values.sub_(self._owner.sent(row.astype(self.dtype)))
        return self

    def pairs(self) -> TorchBlock:  # noqa: D102
        left, right = torch.triu_indices(self.values.shape[1], self.values.shape[1], device=self.values.device)
        return TorchBlock(self.values[:, left] * self.values[:, right], self._owner)

    def sum(self, factors: Float64 | None = None) -> Float64:  # noqa: D102
        values = self.values
        if factors is not None:
            values = values * self._owner.sent(factors[:, None].astype(self.dtype))
        return _array(values.sum(0, dtype=torch.float64))

    def sum_of_squares(self) -> float:  # noqa: D102
        return float((self.values * self.values).sum(dtype=torch.float64))


class TorchSum:
    """Sum that lies on a device while products are added, and in this process while it is read.

    Attributes
    ----------
    values : ndarray
        The sum in this process, where it stays until the next product is added.
    """

    def __init__(self, values: Float64, device: Any) -> None:
        self._values, self._device = values, device
        self._sent: Any = None

    @property
    def values(self) -> Float64:
        """The sum in this process."""
        if self._sent is not None:
            if not self._values.flags.writeable:
                self._values = np.empty_like(self._values)
            torch.from_numpy(_in_c_order(self._values)).copy_(self._sent)
            self._sent = None
        return self._values

    @values.setter
    def values(self, values: Float64) -> None:
        self._values, self._sent = values, None

    @property
    def on_device(self) -> Any:
        """The sum on the device, or its transpose where `values` is in Fortran order: of symmetric sums only."""
        if self._sent is None:
            self._sent = torch.tensor(_in_c_order(self._values), device=self._device)
        return self._sent

    def add(self, rows: slice, block: TorchBlock, vectors: Array | Block) -> None:  # noqa: D102 - see `products.Sum`
        self.on_device[rows].add_(block.product(vectors))

    def is_finite(self) -> bool:  # noqa: D102
        return _is_finite(self.on_device)

    def __len__(self) -> int:
        return len(self._values)


class TorchProducts:
    """Products by torch.

    Parameters
    ----------
    dtype : dtype
        Dtype of products, float32 or float64.
    device : str
        Name of the device, as torch calls it: "cuda", "cuda:1", "cpu".
    """

    one_thread = False

    def __init__(self, dtype: np.dtype[Any], device: str) -> None:
        torch.set_float32_matmul_precision("highest")  # no TF32, which has 10 bits
        self.dtype, self._device = dtype, torch.device(device)
        self._product: Any = None
        self._pending: Any = None
        self._kept: dict[int, tuple[Array, Any]] = {}

    def reserve(self, values: int, product: tuple[int, int] = (0, 0)) -> None:
        """Do nothing: torch keeps the device's memory from block to block."""

    def release(self) -> None:  # noqa: D102 - see `products.Products`
        self._product = self._pending = None
        self._kept.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def sum(self, values: Float64) -> TorchSum:  # noqa: D102
        return TorchSum(values, self._device)

    def sent(self, array: Array | Block) -> Any:
        """Return an array on the device; read-only ones are kept there until `release`, and blocks are there."""
        if isinstance(array, TorchBlock):
            return array.values
        assert isinstance(array, np.ndarray)  # noqa: S101 - blocks of other products are never mixed with these
        if array.flags.writeable:
            return torch.tensor(array, device=self._device)
        if id(array) not in self._kept:
            # The array is kept too, as its number would otherwise become that of another one.
            self._kept[id(array)] = array, torch.tensor(array, device=self._device)
        return self._kept[id(array)][1]

    def centre(  # noqa: D102
        self, stored: Array, parts: tuple[Array, ...], roots: Float64 | None = None
    ) -> TorchBlock:
        dtype, there = _torch_dtype(self.dtype), self._as_stored(stored)
        # As `centering.centre_samples` does, operation by operation: centred values then have the same bits.
        if np.result_type(stored.dtype, self.dtype) != self.dtype:
            centre = torch.tensor(sum_of_parts(parts, stored.shape[1]), device=self._device)
            centred = there.to(torch.float64).sub_(centre).to(dtype)
        else:
            centred = there.to(dtype, copy=True)
            for part in parts:
                centred.sub_(torch.tensor(part, device=self._device))
        if roots is not None:
            centred.mul_(torch.tensor(roots[:, None].astype(self.dtype), device=self._device))
        return TorchBlock(centred, self)

    def _as_stored(self, values: Array) -> Any:
        """Return values on the device as they are stored: torch has native byte order only, and no negative strides."""
        return torch.tensor(np.ascontiguousarray(values, values.dtype.newbyteorder("=")), device=self._device)

    def half_squares(self, distances: Array, mean: Float64 | None = None) -> TorchBlock:  # noqa: D102
        squares = self._as_stored(distances).to(_torch_dtype(self.dtype), copy=True)
        squares.mul_(squares).mul_(-0.5)
        return TorchBlock(squares if mean is None else squares.sub_(self.sent(mean)), self)

    def block(self, values: Array) -> TorchBlock:  # noqa: D102
        # Narrower values, such as marks of a byte, become those of products on the device.
        return TorchBlock(self._as_stored(values).to(_torch_dtype(self.dtype)), self)

    def symmetric(self, block: TorchBlock, total: TorchSum) -> Array:  # noqa: D102
        rows, self._pending = block.values, None
        if rows.dtype == torch.float64:
            there = total.on_device
            before = there.diagonal().clone()
            there.addmm_(rows, rows.T)
            return _array(there.diagonal() - before)
        self._pending = self._multiplied(rows, rows.T)
        return _array(self._pending.diagonal())

    def twice(self, block: TorchBlock, vectors: Array) -> bool:  # noqa: D102
        along = block.values @ self.sent(vectors)
        self._pending = self._multiplied(along.T, block.values)
        return _is_finite(self._pending)

    def _multiplied(self, left: Any, right: Any) -> Any:
        """Return a product, in the memory of the one before if that has its shape."""
        shape = (left.shape[0], right.shape[1])
        if self._product is None or self._product.shape != shape:
            self._product = None  # its memory is free for the new one
            self._product = torch.empty(shape, dtype=left.dtype, device=self._device)
        return torch.matmul(left, right, out=self._product)

    def add(self, total: TorchSum) -> None:  # noqa: D102
        if self._pending is not None:
            total.on_device.add_(self._pending[: len(total)])

    def pending(self, start: int) -> Array:  # noqa: D102
        return _array(self._pending[start:])


def _is_finite(tensor: Any) -> bool:
    if not tensor.numel():
        return True
    least, most = torch.aminmax(tensor)
    return bool(torch.isfinite(least) & torch.isfinite(most))


def _torch_dtype(dtype: np.dtype[Any]) -> Any:
    return torch.float64 if dtype == np.float64 else torch.float32


def _array(tensor: Any) -> Array:
    """Return a copy of a tensor in this process."""
    return np.array(tensor.cpu().numpy())


def _in_c_order(values: Array) -> Array:
    return values if values.flags.c_contiguous else values.T
