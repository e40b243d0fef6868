"""Sizes at which something else than memory runs out: names, open files, pages, chunks, and pixels of one row."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tifffile
import zarr
from shell import python

from streampca import fit, load
from streampca.readers import open_collection
from streampca.storage.disk import named_beside


def wide(path):
    """One row has 27 megapixels."""
    values = np.lib.format.open_memmap(path / "a.npy", mode="w+", dtype="u1", shape=(2, 5000, 5400))
    values[0, 2500], values[1, :, 7] = 1, 2
    found = open_collection(path / "a.npy")
    np.testing.assert_array_equal(found.read(slice(0, 2), slice(2500 * 5400, 2500 * 5400 + 9)), values[:, 2500, :9])
    assert fit(str(path / "a.npy"), n_components=1).explained_variance_ratio[0] == pytest.approx(1)


def pages(path):
    """A file has 70000 pages."""
    values = np.arange(70_000, dtype="u4")[:, None, None] + np.zeros((1, 2, 2), "u4")
    with tifffile.TiffWriter(path / "a.tif") as file:
        for page in values:
            file.write(page, contiguous=False, metadata=None)
    found = open_collection(path / "a.tif")
    assert found.shape == (70_000, 2, 2)
    np.testing.assert_array_equal(found.read(slice(69_995, 70_000))[:, 0], range(69_995, 70_000))


def chunks(path):
    """An array has 1e5 chunks."""
    zarr.create_array(path / "a.zarr", shape=(100_000, 1), chunks=(1, 1), dtype="f4", compressors=None)
    for at in range(100_000):
        place = path / "a.zarr" / "c" / str(at)
        place.mkdir(parents=True)
        (place / "0").write_bytes(np.float32(at).tobytes())
    found = open_collection(path / "a.zarr", sample_axes=(1,))
    assert found.shape == (100_000, 1)
    np.testing.assert_array_equal(found.read(slice(99_000, 100_000))[:, 0], range(99_000, 100_000))
    assert len(found.states(now=True)) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("case", [wide, pages, chunks], ids=lambda case: case.__name__)
def test_sources_of_any_number_of_parts_are_read(tmp_path, case):
    case(tmp_path)


FILES = """
import resource, sys
import numpy as np
from PIL import Image
import streampca
kind, count = sys.argv[1], 10_000
for at in range(count):
    pixels = np.full((1, 2, 2), at % 251, np.uint8)
    np.save(f"{at}.npy", pixels) if kind == "npy" else Image.fromarray(pixels[0]).save(f"{at}.png")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
found = streampca.open_collection(".")
assert found.shape == (count, 2, 2)
assert found.read(slice(0, count))[:, 0].tolist() == [at % 251 for at in range(count)]
print("read")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits open files as Linux does")
@pytest.mark.parametrize("kind", ["npy", "png"])
def test_many_files_need_few_open_ones(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    done = python(FILES, kind)
    assert done.stdout == "read\n", done.stderr[-3000:]


@pytest.mark.parametrize("letter", ["n", "é", "名"])
def test_names_of_255_bytes_are_read_and_written(tmp_path, letter):
    def longest(ending):
        return letter * ((255 - len(ending)) // len(letter.encode())) + ending

    source, output = tmp_path / longest(".npy"), tmp_path / longest(".zarr")
    np.save(source, np.random.default_rng(0).random((20, 3)))
    for overwrite in (False, True):  # the second moves the first aside
        model = fit(str(source), n_components=2, output=str(output), overwrite=overwrite)
    np.testing.assert_array_equal(load(output).components, model.components)
    assert {path.name for path in tmp_path.iterdir()} == {source.name, output.name}
    other = tmp_path / (longest(".zarr")[:-6] + "x.zarr" if letter == "n" else "x.zarr")
    assert named_beside(str(other)) != named_beside(str(output))
