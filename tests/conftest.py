"""A working folder of one's own, with images and a model in it: what commands are tried on; and a disk that fills."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from shell import not_drawn, pictures, succeeded
from threadpoolctl import threadpool_limits

# Tests run side by side: threads of BLAS would wait for each other's cores. In processes that tests start too, whose
# bits are compared with ours, and which are forked: by a process without threads, therefore.
threadpool_limits(1, user_api="blas")
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# Each of the processes that tests start would compile the package anew, which takes a fifth of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("house", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("campaign", deadline=None, max_examples=500)
settings.load_profile("house")


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, whole: what a module shares is made once, and small tests are left to share."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module")
def unsynced():
    """For tests that save after every block: a kill loses nothing that the system was given, only power cuts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="class")
def pair(request, tmp_path_factory):
    """A collection and what it holds, of a row of `sources.SOURCES`: made once for all tests of a contract."""
    return request.param(tmp_path_factory.mktemp("source"))


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


@pytest.fixture(scope="session")
def fitted_once(tmp_path_factory):
    """A folder with images and the model of them."""
    folder = tmp_path_factory.mktemp("fitted")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.save("images.npy", pictures())
        succeeded("fit", "images.npy", "-k", 3, "-o", "model.zarr", "-q")
    return folder


@pytest.fixture
def model(fitted_once, source):
    shutil.copytree(fitted_once, ".", dirs_exist_ok=True)
    return "model.zarr"


@pytest.fixture
def undrawn(monkeypatch):
    """Reports whose pictures are not drawn, which takes most of their time."""
    monkeypatch.setattr("streampca.plot.report.page.drawn", not_drawn)


@pytest.fixture
def disk(here):
    """A file system of 4 MiB."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if mount is None or unmount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    os.mkdir("disk")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", "disk"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield Path("disk")
    subprocess.run([unmount, "-l", here / "disk"], check=True)
