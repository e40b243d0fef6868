"""The reader keeps the contract of every collection."""

import numpy as np
import pytest
from raw_reader import open_raw

from streampca.testing import CollectionContract


class TestRawFile(CollectionContract):
    """Inherits a dozen tests, from cuts of rows and features to pickling and reading from threads."""

    @pytest.fixture
    def expected(self):
        """What the file holds."""
        return np.random.default_rng(0).integers(0, 65536, (23, 6, 5)).astype("<u2")

    @pytest.fixture
    def collection(self, tmp_path, expected):
        """The file, opened."""
        path = tmp_path / "cells_23x6x5_uint16.raw"
        expected.tofile(path)
        return open_raw(str(path))
