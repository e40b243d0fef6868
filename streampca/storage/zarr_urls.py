"""Zarr stores behind URLs."""

from __future__ import annotations

import posixpath
from typing import Any

from zarr.storage import FsspecStore

from . import remote

METADATA = "zarr.json"


def to_write(path: str) -> str | FsspecStore:
    """Return what Zarr takes to write a group: a local path as it is, or the store behind a URL."""
    return zarr_store(path, read_only=False) if remote.is_url(path) else path


class SealedStore(FsspecStore):
    """Store of a complete model, in which a chunk that is missing is damage, not a run of fill values."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """Return the bytes of an object, or of a part of it; None if there are no metadata of this name."""
        value = await super().get(key, prototype, byte_range)
        if value is None and posixpath.basename(key) != METADATA:
            raise ValueError(f"values are missing, {key} is not there")
        return value


def zarr_store(url: str, *, read_only: bool = True, sealed: bool = False) -> FsspecStore:
    """Return a store for Zarr that calls the process's one file system in threads.

    fsspec's asynchronous file systems are avoided: nothing closes their connections, and each belongs to the event loop
    that made it.
    """
    fs, path = remote.filesystem(url)
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    kind = SealedStore if sealed else FsspecStore
    return kind(AsyncFileSystemWrapper(fs, asynchronous=True), read_only=read_only, path=path)
