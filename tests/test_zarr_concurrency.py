"""How many chunks Zarr works on at a time is limited for all threads, until the last that asks for it has left."""

import zarr

from streampca.storage.zarr_concurrency import chunks_at_once


def limit():
    return zarr.config.get("async.concurrency")


def test_limits_are_lifted_in_any_order():
    """Two threads leave in the order they came, which contexts of Zarr's configuration do not allow."""
    before, first, second = limit(), chunks_at_once(3), chunks_at_once(2)
    first.__enter__()
    assert limit() == 3
    second.__enter__()
    first.__exit__(None, None, None)
    assert limit() == 2
    second.__exit__(None, None, None)
    assert limit() == before
