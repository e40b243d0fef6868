"""The demonstration's collections: the same for a seed, whole or visibly not, and made in little memory and time."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys

import numpy as np
import pytest
import zarr
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

import streampca
from streampca.cli import demo_data as demo
from streampca.errors import OutputError, RequestError
from streampca.units import parse_bytes

MAKERS = {"digits": demo.make_digits, "patches": demo.make_patches}
each_collection = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def images(path):
    return zarr.open_array(path, mode="r")[:]


def contents(folder):
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@each_collection
def test_collections_are_zarr_v3_arrays_of_images(make, tmp_path):
    path = make(tmp_path / "pictures.zarr", 1500)
    array = zarr.open_array(path, mode="r")
    assert array.shape == (1500, 32, 32)
    assert array.dtype == np.uint8
    assert array.chunks == (512, 32, 32)
    assert array.metadata.zarr_format == 3
    assert array.metadata.dimension_names == ("sample", "y", "x")
    assert sorted(tmp_path.glob("*partial")) == []


@each_collection
def test_a_seed_gives_the_same_bytes_and_another_seed_others(make, tmp_path):
    """A shorter collection is the beginning of a longer one."""
    asked = enumerate([(1100, 3), (1100, 3), (1100, 4), (2100, 3)])
    first, again, other, longer = (make(tmp_path / f"{number}.zarr", *each) for number, each in asked)
    assert contents(first) == contents(again)
    assert (images(first) != images(other)).any(axis=(1, 2)).mean() > 0.9
    np.testing.assert_array_equal(images(first), images(longer)[:1100])


def test_digits_are_whole_sharp_and_various_and_labels_say_which(tmp_path):
    path = demo.make_digits(tmp_path / "digits.zarr", 3000)
    labels = np.load(demo.labels_path(path))
    assert demo.labels_path(path) == tmp_path / "digits-labels.npy"
    assert labels.shape == (3000,)
    assert set(labels) == set(range(10))
    whole = images(path)
    assert len(np.unique(whole, axis=0)) == 3000
    edge = np.concatenate([whole[:, 0], whole[:, -1], whole[:, :, 0], whole[:, :, -1]], axis=1)
    assert (edge > 0).mean() < 0.03, "hardly any stroke is cut"
    assert (whole == 0).mean() > 0.6
    assert (whole > 200).mean() > 0.08
    x = whole.reshape(3000, -1).astype(float)
    # Shifted and turned digits are still told apart by their nearest neighbours; wrong labels would give 10 %.
    known = KNeighborsClassifier(3).fit(x[:2500], labels[:2500])
    assert known.score(x[2500:], labels[2500:]) > 0.85


def test_patches_are_cut_from_the_photographs(tmp_path):
    from sklearn.datasets import load_sample_images

    told = []
    path = demo.make_patches(tmp_path / "patches.zarr", 64, listener=told.append)
    assert [type(event).__name__ for event in told] == ["PassStarted", "BlockDone", "PassFinished"]
    windows = [
        np.lib.stride_tricks.sliding_window_view(demo._grey(image), (32, 32)) for image in load_sample_images().images
    ]
    for patch in images(path)[:8]:
        turned = [np.rot90(side, turn) for turn in range(4) for side in (patch, patch.T)]
        corners = [(view[..., 0, 0] == version[0, 0]) & (view[..., 31, 31] == version[31, 31])
                   for version in turned for view in windows]  # fmt: skip
        pairs = [(version, view) for version in turned for view in windows]
        assert any(
            (view[where] == version).all(axis=(1, 2)).any()
            for (version, view), where in zip(pairs, corners, strict=True)
        )


@each_collection
def test_a_whole_collection_is_kept_and_another_refused(make, tmp_path):
    path = make(tmp_path / "pictures.zarr", 100)
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    assert make(path, 100) == path
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
    with pytest.raises(OutputError, match=r"'n': 100.* and .*'n': 200.* is asked for; remove it"):
        make(path, 200)


@each_collection
def test_an_interrupted_collection_is_made_again(make, tmp_path, monkeypatch):
    path = tmp_path / "pictures.zarr"
    whole = contents(make(tmp_path / "whole.zarr", 2100))
    name = {demo.make_digits: "_warped_digits", demo.make_patches: "_patches"}[make]
    real, calls = getattr(demo, name), []

    def stop_at_the_second(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(demo, name, stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        make(path, 2100)
    assert not list(tmp_path.glob("pictures*"))
    monkeypatch.undo()
    assert contents(make(path, 2100)) == whole


@each_collection
def test_places_that_are_taken_and_nothing_are_refused(make, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for name in ("file", "folder"):
        with pytest.raises(OutputError, match="not a collection of the demo; remove it or give another path"):
            make(tmp_path / name, 10)
        assert (tmp_path / name).exists()
    with pytest.raises(OutputError, match=r"file/images\.zarr cannot be written: .*file is not a folder"):
        make(tmp_path / "file" / "images.zarr", 10)
    with pytest.raises(RequestError, match="n is 0"):
        make(tmp_path / "images.zarr", 0)


# Runs the demo with fewer patches, and measures the peak of making each collection.
_METERED = """
import json, sys
from functools import partial

import sklearn.datasets
from streampca.cli import demo
from streampca.cli.commands import main
from streampca.machine import PeakMeter

def metered(make):
    def made(path, **how):
        meter = PeakMeter()
        found = make(path, **how)
        print(json.dumps(meter.peak()), file=sys.stderr)
        return found
    return made

demo.make_digits, demo.make_patches = metered(demo.make_digits), metered(partial(demo.make_patches, n=6000))
main()
"""


@pytest.mark.slow
def test_the_demonstration_takes_little_memory_and_time(here):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", _METERED, "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # seconds of cores: those that pass depend on the neighbours
    assert used.ru_utime + used.ru_stime - (before.ru_utime + before.ru_stime) < 60
    assert os.listdir() == ["streampca-demo"]
    for stem in MAKERS:
        with Image.open(f"streampca-demo/{stem}.png") as picture:
            picture.load()
        assert streampca.load(f"streampca-demo/{stem}-model.zarr").n_components == 16
    assert "not taken   dual: no gain" in done.stdout
    assert "streampca fit path/to/images" in done.stdout
    making = [json.loads(line) for line in done.stderr.splitlines() if line == "null" or line.isdecimal()]
    fitting = re.findall(r"planned, (.*?) actual, (.*?) allowed\ndata +(.*)", done.stdout)
    assert len(making) == 2
    if None in making:
        pytest.skip("this system does not tell a process its peak")
    assert max(making) < 24 * 2**20, "the array of digits holds 59 MiB"
    sizes = [[parse_bytes(number) for number in each] for each in fitting]
    assert all(peak <= budget == 32 * 2**20 for peak, budget, _ in sizes)
    assert [size > 1.8 * budget for _, budget, size in sizes] == [True, False]
