"""The contract of collections as this suite inherits it: from one method, `make`; and what its sources hold."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.errors import SourceError
from streampca.readers import open_collection
from streampca.testing import CollectionContract


class Contract(CollectionContract):
    """One subclass a kind of source: ``make(tmp_path)`` returns the collection and what it should hold."""

    @pytest.fixture
    def pair(self, tmp_path):
        return self.make(tmp_path)

    @pytest.fixture
    def collection(self, pair):
        return pair[0]

    @pytest.fixture
    def expected(self, pair):
        return pair[1]


def values(dtype="u1", shape=(23, 6, 5)):
    """All that a dtype can hold: whole numbers of its range, or normal ones."""
    rng = np.random.default_rng(7)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, size=shape, endpoint=True, dtype=np.dtype(dtype).newbyteorder("=")).astype(
        dtype
    )


def read_all(collection):
    return collection.read(slice(0, collection.n_samples)).reshape(collection.shape)


def everything(source, **options):
    """Open a source and read it."""
    return read_all(open_collection(source, **options))


def refused(source, *parts, error=SourceError, **options):
    """Assert that opening a source fails in one line that names it and holds all these parts; return it."""
    with pytest.raises(error) as caught:
        open_collection(source, **options)
    return said(caught, source, *parts)


def said(caught, *parts):
    """Assert that an error is one line that holds all these parts; return it."""
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message
    return message
