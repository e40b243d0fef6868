"""Reads a Zarr array one chunk after another, in threads that nothing else uses.

Zarr decodes in a few more threads than there are cores, and glibc gives each its own pool of memory. What a thread has
freed of up to 64 MiB stays at the end of its pool, from where nothing hands it back: chunks of 30 MiB, decoded now in
one thread and now in another, left 60 MiB in each of six.
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

from .collection import Array
from .stored.array_boxes import Box


class OneChunkReader:
    """A Zarr array whose chunks are fetched and decoded in one thread, which ends when this is dropped.

    A chunk's bytes as stored and as decoded are in memory together, nothing else; of a shard, also a piece of it.
    """

    def __init__(self, handle: Any) -> None:
        self._array = zarr.AsyncArray(handle.metadata, handle.store_path)
        self._process = os.getpid()
        # Zarr's loop has a thread too: the caller's may run one, as notebooks do; and small things it keeps for a while
        # would lie between chunks in the pool of the thread that decodes, which then needs room for one more.
        self._looping, self._decoding = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    @property
    def is_here(self) -> bool:
        """True where the threads are of this process: a fork of it has none of them."""
        return self._process == os.getpid()

    def read(self, piece: Box) -> Array:
        """Return a piece that lies in one chunk as it was decoded, which is not copied."""
        taken = _Taken(tuple(part.stop - part.start for part in piece), self._array.dtype)
        self._looping.submit(self._read, piece, taken).result()
        return taken.values

    def read_into(self, piece: Box, out: Array) -> None:
        """Read a piece into an array of its shape, of any strides; threads that call it take turns."""
        target: Any = out  # a protocol of Zarr's, which names arguments otherwise than numpy
        self._looping.submit(self._read, piece, NDBuffer.from_ndarray_like(target)).result()

    def _read(self, piece: Box, out: NDBuffer) -> None:
        # A loop a piece (0.1 ms): one that was kept would be shared with forks, and break when they close it.
        loop = asyncio.new_event_loop()
        try:
            loop.set_default_executor(_Handing(self._decoding))
            loop.run_until_complete(self._array.get_orthogonal_selection(piece, out=out))
        finally:
            loop.close()


class _Taken(NDBuffer):
    """A buffer that takes over what is put into it, all at once, where others copy."""

    values: Array

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        none: Any = np.broadcast_to(np.zeros((), dtype), shape)  # takes no memory
        super().__init__(none)

    def __setitem__(self, key: Any, value: Any) -> None:
        values = value.as_numpy_array() if isinstance(value, NDBuffer) else value  # a number for a chunk never written
        self.values = np.broadcast_to(np.asarray(values, self.dtype), self.shape)


class _Handing(ThreadPoolExecutor):
    """Hands work to an executor that outlives the loop, which shuts its own down and takes no other kind."""

    def __init__(self, to: ThreadPoolExecutor) -> None:
        super().__init__(1)
        self._to = to

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return self._to.submit(work, *args, **options)
