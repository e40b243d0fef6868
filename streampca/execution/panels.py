"""`PanelArray`: an array of another process that is added to one of this process panel by panel.

A merge adds large arrays of one sum to those of another. Where one of the two lies elsewhere, only two of its panels
are here at a time: the one that is being added and the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ..arrays import Array

Index: TypeAlias = tuple[slice, ...]


class ArrayForm(NamedTuple):
    """Shape, dtype and order in memory of an array."""

    shape: tuple[int, ...]
    dtype: str
    order: str

    @classmethod
    def of(cls, array: Array) -> ArrayForm:
        """Return the form of an array."""
        is_turned = array.flags.f_contiguous and not array.flags.c_contiguous
        return cls(array.shape, array.dtype.str, "F" if is_turned else "C")

    def panels(self, most: int) -> list[Index]:
        """Cut the array into panels of at most so many bytes, or one row or column, each contiguous in memory."""
        length, rest = (self.shape[-1], self.shape[:-1]) if self.order == "F" else (self.shape[0], self.shape[1:])
        step = max(1, most // max(1, int(np.prod(rest)) * np.dtype(self.dtype).itemsize))
        ranges = [slice(start, min(start + step, length)) for start in range(0, length, step)]
        return [(..., part) if self.order == "F" else (part,) for part in ranges]  # type: ignore[misc]


class PanelArray(NDArrayOperatorsMixin):
    """Array of another process.

    In-place addition, with this array on either side, reads panels; anything else reads the whole array first.

    Parameters
    ----------
    form : ArrayForm
        Shape, dtype and order.
    most : int
        Bytes of a panel.
    begin : callable
        ``begin(index)`` begins to read a panel, and returns a function that waits for it.
    """

    def __init__(self, form: ArrayForm, most: int, begin: Callable[[Index], Callable[[], Array]]) -> None:
        self.form, self._most, self._begin = form, most, begin
        self.shape, self.dtype, self.ndim = form.shape, np.dtype(form.dtype), len(form.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # numpy looks for other protocols by such names
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __iadd__(self, here: Array) -> Array:  # type: ignore[misc]  # of NDArrayOperatorsMixin, which returns Any
        """Add this array to one of this process, which is returned: both sums have the same bits."""
        return self._add_to(here)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the whole array."""
        whole: Array = np.empty(self.shape, self.dtype, order="F" if self.form.order == "F" else "C")
        for index, panel in self._panels():
            whole[index] = panel
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        """Add this array in place, panel by panel; for other functions, read it."""
        is_addition = ufunc is np.add and method == "__call__" and not options
        if is_addition and len(out) == 1 and out[0] is inputs[0] and inputs[1] is self:
            return self._add_to(out[0])
        arrays = [np.asarray(value) if isinstance(value, PanelArray) else value for value in inputs]
        return getattr(ufunc, method)(*arrays, **options, **({"out": out} if out else {}))

    def _add_to(self, here: Array) -> Array:
        for index, panel in self._panels():
            here[index] += panel
            del panel
        return here

    def _panels(self) -> Iterator[tuple[Index, Array]]:
        """Yield the panels, each with its place, while the next is being read."""
        indices = self.form.panels(self._most)
        begun = deque(self._begin(index) for index in indices[:1])
        for number, index in enumerate(indices, 1):
            panel = begun.popleft()()
            begun.extend(self._begin(following) for following in indices[number : number + 1])
            yield index, panel


def owned(values: Any, *, copy: bool, dtype: Any = None, order: Any = "K") -> Any:
    """Return an array to add to: a copy, or without `copy` the array itself, and one of another process as it is."""
    is_elsewhere = isinstance(values, PanelArray) and not copy
    return values if is_elsewhere else np.array(values, dtype, order=order, copy=copy or None)
