"""Outputs are kept apart from what is read, however either is spelled."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image
from shell import typed

from streampca.errors import RequestError
from streampca.readers import check_apart, paths_of

REPLACED, PART = "is what the run reads", "would become part of the collection"


@pytest.fixture
def place(here):
    """Image files, stacks of arrays, a list and a table of files."""
    for name in ("scans/a.png", "scans/b.png", "scans/deep/c.png"):
        os.makedirs(os.path.dirname(name), exist_ok=True)
        Image.fromarray(np.eye(4, dtype=np.uint8)).save(name)
    os.mkdir("stacks")
    for name in ("stacks/a.npy", "stacks/b.npy"):
        np.save(name, np.ones((3, 4, 4)))
    (here / "list.txt").write_text("scans/a.png\nscans/b.png\n")
    (here / "table.csv").write_text("file,label\nscans/a.png,1\nscans/b.png,2\n")
    os.symlink("scans", "link")
    return here


@pytest.mark.parametrize(
    ("source", "output", "problem"),
    [
        ("scans/a.png", "link/a.png", REPLACED),
        ("@list.txt", "list.txt", REPLACED),
        ("@list.txt", "scans/b.png", REPLACED),
        ("@list.txt", "scans/c.png", None),
        ("table.csv:file", "table.csv", REPLACED),
        ("table.csv:file", "link/b.png", REPLACED),
        (["scans/a.png", "scans/b.png"], "scans/b.png", REPLACED),
        ("scans", "scans", REPLACED),
        ("scans", "link/deep/new.png", PART),
        ("scans", "scans/model.zarr", None),
        ("scans", "scans/report.html", None),
        (["stacks/a.npy", "scans"], "scans/new.png", PART),
        ("scans/*.png", "{here}/scans/new.png", PART),
        ("{here}/scans/*.png", "scans/new.png", PART),
        ("scans/*.png", "scans/out/new.png", None),
        ("scans/*.png", "scans/report.html", None),
        ("scans/*", "scans/report.html", PART),
        ("sca*", "scans/new/new.png", PART),
        ("scans/**/*.png", "scans/new/deep/new.png", PART),
        ("scans/**/*.png", "scans/new.png", PART),
        ("stacks", "stacks/scores.npy", PART),
        ("stacks", "stacks/more/scores.npy", None),
        ("stacks", "stacks/scores.csv", None),
        ("stacks/*.npy", "stacks/scores.npy", PART),
        (np.ones((3, 4, 4)), "scans/new.png", None),
    ],
)
def test_outputs_are_kept_apart(place, source, output, problem):
    source = source.format(here=place) if isinstance(source, str) else source
    files = ["elsewhere.zarr", output.format(here=place)]
    if problem is None:
        check_apart(files, paths_of(source))
    else:
        with pytest.raises(RequestError, match=problem):
            check_apart(files, paths_of(source))


@pytest.mark.parametrize("directory", ["scans", "scans/runs/first"])
def test_pictures_of_a_run_stay_out_of_its_images(place, directory):
    (place / "run.yaml").write_text("collection: {source: scans/**/*.png}\nfit: {n_components: 1}\n")
    said = typed("run", "run.yaml", "--set", f"output.directory={directory}", "--set", "output.report=true")
    assert f"output {directory}/pictures/scree.png {PART}" in said.complaint
    assert said.code == 2
