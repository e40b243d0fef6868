"""The demonstration's collections: the same for a seed, whole or visibly not, and made in little memory and time."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from streampca.cli import demo_data as demo
from streampca.errors import OutputError, RequestError

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
    assert array.chunks == (1024, 32, 32)
    assert array.metadata.zarr_format == 3
    assert array.metadata.dimension_names == ("sample", "y", "x")
    assert sorted(tmp_path.glob("*partial")) == []


@each_collection
def test_a_seed_gives_the_same_bytes_and_another_seed_others(make, tmp_path):
    first, again, other = (make(tmp_path / f"{i}.zarr", 1200, seed) for i, seed in enumerate((3, 3, 4)))
    assert contents(first) == contents(again)
    assert (images(first) != images(other)).any(axis=(1, 2)).mean() > 0.9


@each_collection
def test_a_shorter_collection_is_the_beginning_of_a_longer_one(make, tmp_path):
    short, long = make(tmp_path / "short.zarr", 1100), make(tmp_path / "long.zarr", 2100)
    np.testing.assert_array_equal(images(short), images(long)[:1100])


def test_labels_say_which_digit_is_shown(tmp_path):
    path = demo.make_digits(tmp_path / "digits.zarr", 3000)
    labels = np.load(demo.labels_path(path))
    assert demo.labels_path(path) == tmp_path / "digits-labels.npy"
    assert labels.shape == (3000,)
    assert set(labels) == set(range(10))
    x = images(path).reshape(3000, -1).astype(float)
    # Shifted and turned digits are still told apart by their nearest neighbours; wrong labels would give 10 %.
    known = KNeighborsClassifier(3).fit(x[:2500], labels[:2500])
    assert known.score(x[2500:], labels[2500:]) > 0.85


def test_digits_are_whole_sharp_and_various(tmp_path):
    x = images(demo.make_digits(tmp_path / "digits.zarr", 2048))
    edge = np.concatenate([x[:, 0], x[:, -1], x[:, :, 0], x[:, :, -1]], axis=1)
    assert (edge > 0).mean() < 0.03  # hardly any stroke is cut
    assert (x == 0).mean() > 0.6
    assert (x > 200).mean() > 0.08
    assert len(np.unique(x, axis=0)) == 2048


def test_an_unmoved_digit_keeps_its_pixels():
    class Still:
        """A random generator that always takes the middle."""

        def uniform(self, low, high, size=None):
            return (low + high) / 2 if size is None else np.full(size, (low + high) / 2)

    digit = load_digits().data[:1].astype(np.float32)
    drawn = (digit @ demo._warp(Still())).reshape(32, 32)
    # Every third pixel from the fifth falls on the middle of one of the 8 x 8 originals: 15.5 + 3 (i - 3.5) = 5 + 3 i.
    np.testing.assert_allclose(drawn[5:29:3, 5:29:3].ravel(), digit[0], atol=1e-4)


def test_patches_are_cut_from_the_photographs(tmp_path):
    from sklearn.datasets import load_sample_images

    path = demo.make_patches(tmp_path / "patches.zarr", 64)
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


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_no_collection_is_left_alone(kind, tmp_path):
    path = tmp_path / "mine"
    path.write_text("mine") if kind == "file" else path.mkdir()
    with pytest.raises(OutputError, match="not a collection of the demo; remove it or give another path"):
        demo.make_patches(path, 10)
    assert path.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"file/patches\.zarr could not be written"):
        demo.make_patches(tmp_path / "file" / "patches.zarr", 10)


@each_collection
def test_nothing_is_refused(make, tmp_path):
    with pytest.raises(RequestError, match="n is 0"):
        make(tmp_path / "pictures.zarr", 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is measured through /proc")
def test_all_60000_take_little_memory(tmp_path):
    script = """if True:
        import json, sys
        from pathlib import Path

        import sklearn.datasets, zarr
        from PIL import Image
        from streampca.cli import demo_data as demo
        from streampca.machine import PeakMeter

        peaks = {}
        for make in (demo.make_digits, demo.make_patches):
            meter = PeakMeter()
            make(Path(sys.argv[1]) / f"{make.__name__}.zarr")
            peaks[make.__name__] = meter.peak()
        print(json.dumps(peaks))
    """
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    for name, peak in json.loads(done.stdout).items():
        if peak is None:
            pytest.skip("this system does not let the high-water mark be reset")
        assert peak < 24 * 2**20, f"{name} took {peak} bytes"  # each array holds 59 MiB
