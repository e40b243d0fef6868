"""Fixtures of several files: working folders with images and a model, a small disk, and settings of all tests."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
import warnings
import zlib
from collections import defaultdict
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from skips import failing_if_unlisted
from threadpoolctl import threadpool_limits

# The package, numpy and what needs them are imported in fixtures: the process that hands tests out needs none of them,
# and workers start after it has read this file, three seconds later.

# Tests run side by side, and threads of BLAS would wait for each other's cores. Processes that tests start are limited
# too, as their bits are compared with ours, and forking needs a process without threads.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# Shells let what they start in the background ignore SIGINT, which tests send, and processes pass that on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each worker would compile all test modules anew, which takes ten seconds, and each of the processes that tests start
# the package, which takes a fifth of its start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("house", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("campaign", deadline=None, max_examples=500)
settings.load_profile("house")


def pytest_addoption(parser):
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="run one test in N, chosen by its name")


def pytest_collection_modifyitems(config, items):
    """Mark slow all but each n-th case of tests marked `every(n)`; move whole files with slow tests to the front.

    Then small tests remain to be shared by workers. Of all, one in so many is kept where that is asked for.
    """
    cases = defaultdict(count)
    for item in items:
        every, asked = item.get_closest_marker("every"), item.get_closest_marker("campaign")
        if every and not asked and next(cases[item.parent, item.originalname]) % every.args[0]:
            item.add_marker("slow")
    share = config.getoption("--one-in")
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % share == 0]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_sessionstart(session):
    """Import test modules in an order that differs by worker, so that each compiles a part and loads what others did.

    In a fresh clone all workers would otherwise compile all modules at once. What fails fails again when collected.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    gc.disable()  # until tests are collected
    names = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    at = len(names) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    with warnings.catch_warnings(action="error"):
        for name in names[at:] + names[:at]:
            with suppress(Exception, pytest.skip.Exception):
                importlib.import_module(name)


def pytest_collection_finish():
    """Leave modules and collected tests out of garbage collections, which would go through them hundreds of times.

    Libraries of BLAS that take no notice of the environment are loaded by now.
    """
    threadpool_limits(1, user_api="blas")
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return failing_if_unlisted((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return failing_if_unlisted((yield))


@pytest.fixture(scope="module")
def unsynced():
    """Turn fsync off for tests that save after every block: a kill, unlike a power cut, loses nothing written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Folder with the collections that fits of `resumed.KINDS` are interrupted on."""
    from resumed import write_collections

    folder = tmp_path_factory.mktemp("resumed")
    write_collections(folder)
    return folder


@pytest.fixture(scope="session")
def unbroken(files, tmp_path_factory):
    """Function that returns the bits and the events of an uninterrupted fit of a kind."""
    from resumed import unbroken_fits

    return unbroken_fits(files, tmp_path_factory.mktemp("unbroken"))


@pytest.fixture(scope="class")
def pair(request, tmp_path_factory):
    """Collection and its values, from a row of `sources.SOURCES`, made once for all tests of a contract."""
    return request.param(tmp_path_factory.mktemp("source"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Empty working folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def source(here):
    import numpy as np
    from shell import pictures

    np.save("images.npy", pictures())
    return "images.npy"


@pytest.fixture(scope="session")
def fitted_once(tmp_path_factory):
    """Folder with images and a model fitted to them."""
    import numpy as np
    from shell import pictures, succeeded

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
    """Leave out the drawing of reports, which takes most of their time."""
    from shell import not_drawn

    monkeypatch.setattr("streampca.plot.report.page.drawn", not_drawn)


@pytest.fixture
def disk(here):
    """File system of 4 MiB."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if mount is None or unmount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    os.mkdir("disk")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", "disk"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield Path("disk")
    subprocess.run([unmount, "-l", here / "disk"], check=True)
