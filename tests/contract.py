"""The contract of collections as this suite inherits it: over a table of sources; and what these hold."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from streampca.errors import SourceError
from streampca.readers import open_collection
from streampca.testing import CollectionContract


class Contract(CollectionContract):
    """The contract over a table of sources: rows are functions of an empty folder, see `sources.SOURCES`."""

    cuts = 8

    @pytest.fixture
    def collection(self, pair):
        return pair[0]

    @pytest.fixture
    def expected(self, pair):
        return pair[1]


class WholeContract:
    """All of the contract in one test of each source, which is opened once."""

    cuts = 2

    def test_contract(self, pair):
        suite, given = Contract(), dict(zip(("collection", "expected"), pair, strict=True))
        suite.cuts = self.cuts
        for name, check in inspect.getmembers(suite, inspect.ismethod):
            if name.startswith("test_"):
                check(**{word: given[word] for word in inspect.signature(check).parameters})


def over(sources):
    """Decorate a contract with the table of sources it holds for; each is made once."""
    return pytest.mark.parametrize("pair", sources.values(), ids=sources, indirect=True)


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
    """Assert that opening or reading a source fails in one line that names it and holds all these parts; return it."""
    with pytest.raises(error) as caught:
        everything(source, **options)
    named = [Path(source).name] if isinstance(source, str | Path) and not set("@*") & set(str(source)) else []
    return said(caught, *named, *parts)


def refused_as(source, pattern, **options):
    """Assert that a source is refused in one line that names it, whole if it is a path, and matches a pattern."""
    message = refused(source, *([source] if isinstance(source, Path) else []), **options)
    assert re.search(pattern, message), message
    return message


def said(caught, *parts):
    """Assert that an error is one line that holds all these parts; return it."""
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message
    return message
