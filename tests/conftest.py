"""A working folder of one's own, with images and a model in it: what commands are tried on."""

from __future__ import annotations

import numpy as np
import pytest
from shell import pictures, succeeded


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def source(here):
    np.save("images.npy", pictures())
    return "images.npy"


@pytest.fixture
def model(source):
    succeeded("fit", source, "-k", 3, "-o", "model.zarr", "-q")
    return "model.zarr"
