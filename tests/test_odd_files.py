"""Every odd file of the world, alone and among good ones."""

from __future__ import annotations

import json
import os
import sys

import pytest
from shell import DATA, python

pytestmark = pytest.mark.slow

ODD = DATA / "odd"
needs_odd = pytest.mark.skipif(not ODD.is_dir(), reason="odd is not in ../shared/data")

# In a process of its own, which holds each attempt to 10 seconds and all to 500 MiB above what the imports took.
SCRIPT = """
import json, resource, shutil, signal, sys, time, warnings
from pathlib import Path
warnings.simplefilter("error")
import imagecodecs
import numpy as np
from PIL import Image
import streampca
from streampca import open_collection
from streampca.errors import SourceError
from streampca.readers import tiff

odd, work, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
good = np.random.default_rng(0).integers(0, 256, (6, 32, 24), dtype="u1")
streampca.fit(good, n_components=2)
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 500 * 2**20,) * 2)

def attempt(name, open_it):
    signal.alarm(10)  # ends the process: a decoder that hangs in C hears nothing else
    began = time.perf_counter()
    try:
        collection = open_it()
        if not collection.mixed:
            read = collection.read(slice(0, collection.n_samples))
            assert read.shape == (collection.n_samples, collection.n_features)
        said = "x".join(map(str, collection.shape)) + f" {collection.dtype}" + " mixed" * collection.mixed
        for path, reason in collection.skipped:
            assert path.endswith(name), path
            assert reason
            assert chr(10) not in reason
            said += " skipped: " + reason
    except SourceError as error:
        collection, said = None, str(error)
        assert name in said, said
        assert chr(10) not in said, said
    seconds = time.perf_counter() - began
    signal.alarm(0)
    return collection, said, seconds

for name in names:
    folder = work / name
    folder.mkdir()
    for at, pixels in enumerate(good):
        Image.fromarray(pixels).save(folder / f"good{at}.png")
    shutil.copy(odd / name, folder)
    _, alone, first = attempt(name, lambda: streampca.open_collection(str(odd / name)))
    _, among, second = attempt(name, lambda: open_collection(str(folder)))
    kept, _, third = attempt(name, lambda: open_collection(str(folder), on_bad_file="skip"))
    assert all(path.endswith(name) for path, _ in kept.skipped)
    model = streampca.fit(kept, n_components=2)
    ((path, reason),) = model.provenance["skipped"]
    assert path.endswith(name), path
    fitted = f"{model.n_samples} skipped: {reason}"
    print(json.dumps([name, alone, among, fitted, max(first, second, third)]), flush=True)
"""

LOADS = {
    "pillow_16bit.MM.cropped.tif": "1x64x64 uint16",
    "pillow_16bit.cropped.tif": "1x64x64 uint16",
    "imageio_newtonscradle.gif": "36x150x200x3 uint8",
    "pillow_chi.gif": "31x240x320x3 uint8",
    "pillow_hopper.png": "1x128x128x3 uint8",
    "pillow_hopper_16bit.pgm": "1x128x128 uint16",
    "pillow_hopper_bigtiff.tif": "1x128x128x3 uint8",
    "pillow_hopper_gray.jpg": "1x128x128 uint8",
    "pillow_hopper_lzma.tif": "1x128x128x3 uint8",
    "pillow_p_16.png": "1x128x128x4 uint8",
    "pillow_total-pages-zero.tif": "3x2156x1728 uint8",
    "skimage_checker_bilevel.png": "1x10x10 uint8",
    "skimage_multipage.tif": "2x15x10 uint8",
    "skimage_multipage_rgb.tif": "2x10x10x3 float64",
    "skimage_palette_gray.png": "1x10x10 uint8",
}
REFUSED = {
    "pillow_broken.png": "cannot be decoded",
    "pillow_decompression_bomb.gif": "is larger than is decoded (Image size (4364696535 pixels)",
    "pillow_libtiff_segfault.tif": "(3.5 TiB) in a file of 262 B",
    "pillow_negative_size.ppm": "width",
    "pillow_pil_sample_cmyk.jpg": "CMYK",
    "pillow_seek_too_large.tif": "without a readable page",
    "skimage_truncated.jpg": "cannot be decoded",
}


@needs_odd
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_odd_files_load_are_refused_or_left_out(tmp_path):
    names = sorted(os.listdir(ODD))
    done = python(SCRIPT, ODD, tmp_path, *names)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == names
    for name, alone, among, skip, seconds in lines:
        assert seconds < 10
        # The good ones are fitted without the odd one, which is unlike them if it is not broken.
        assert skip.startswith("6 skipped: "), (name, skip)
        if name in LOADS:
            assert alone == LOADS[name]
        if name in REFUSED:
            assert REFUSED[name] in alone
            assert REFUSED[name] in among
            assert REFUSED[name] in skip
        if name == "pillow_total-pages-zero.tif":
            assert "3 pages" in among
        if name == "pillow_multipage.tiff":
            assert "page 3 is 20 x 20" in alone
        assert " mixed" in among or "on_bad_file=" in among, (name, among)
    assert done.stderr.count("left out") == len(names)  # the last resort of logging, where no handler is installed
