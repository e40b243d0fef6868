"""The contract of collections as this suite inherits it: from one method, `make`."""

from __future__ import annotations

import pytest

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
