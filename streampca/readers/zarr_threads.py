"""Reading of a Zarr array one chunk after another, in threads that nothing else uses.

Zarr decodes in a few more threads than there are cores, and glibc gives each thread its own memory pool. Blocks of up
to 64 MiB that a thread frees stay at the end of its pool and are not returned to the system: chunks of 30 MiB, decoded
by changing threads, left 60 MiB in each of six.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import zarr
from zarr.buffer.cpu import NDBuffer

from ..arrays import Array
from .stored.layout import Box


class OneChunkReader:
    """A Zarr array whose chunks are fetched and decoded in one thread, which ends with the object.

    Memory holds the stored and the decoded bytes of one chunk, and for a sharded array a piece of the shard.
    """

    def __init__(self, handle: Any) -> None:
        self._array = zarr.AsyncArray(handle.metadata, handle.store_path)
        self._process = os.getpid()
        # Zarr's event loop gets its own thread, for two reasons: (a) the caller's thread may run a loop, as notebooks
        # do; (b) the loop's small objects would fragment the decoding thread's pool, which would grow by a chunk.
        self._looping, self._decoding = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    @property
    def is_here(self) -> bool:
        """True if the threads belong to this process: a fork does not inherit them."""
        return self._process == os.getpid()

    def read(self, piece: Box) -> Array:
        """Return a piece of one chunk as decoded, without a copy."""
        buffer = _AdoptingBuffer(tuple(part.stop - part.start for part in piece), self._array.dtype)
        self._looping.submit(self._read, piece, buffer).result()
        return buffer.values

    def read_into(self, piece: Box, out: Array) -> None:
        """Read a piece into an array of its shape, of any strides; threads that call it take turns."""
        target: Any = out  # numpy's argument names differ from those of Zarr's protocol
        self._looping.submit(self._read, piece, NDBuffer.from_ndarray_like(target)).result()

    def _read(self, piece: Box, out: NDBuffer) -> None:
        # A new loop for each piece (0.1 ms): a kept one would be shared with forks, and break when they close it.
        loop = asyncio.new_event_loop()
        try:
            loop.set_default_executor(_BorrowedExecutor(self._decoding))
            loop.run_until_complete(self._array.get_orthogonal_selection(piece, out=out))
        finally:
            loop.close()


class _AdoptingBuffer(NDBuffer):
    """A buffer that adopts the one array assigned to it, where Zarr's own would copy."""

    values: Array

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        placeholder: Any = np.broadcast_to(np.zeros((), dtype), shape)  # needs no memory
        super().__init__(placeholder)

    def __setitem__(self, key: Any, value: Any) -> None:
        values = value.as_numpy_array() if isinstance(value, NDBuffer) else value  # a number for a chunk never written
        self.values = np.broadcast_to(np.asarray(values, self.dtype), self.shape)


class _BorrowedExecutor(ThreadPoolExecutor):
    """Pass work to an executor that outlives the event loop, which shuts its own down and accepts no other class."""

    def __init__(self, to: ThreadPoolExecutor) -> None:
        super().__init__(1)
        self._to = to

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return self._to.submit(work, *args, **options)
