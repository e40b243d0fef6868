"""Paths: outputs are kept apart from what is read, however either is spelled; the home folder; endings."""

from __future__ import annotations

import os
from pathlib import Path

import by_options
import numpy as np
import pytest
from PIL import Image
from shell import pictures, refused, succeeded, typed

import streampca
from streampca.cli.demo_data import make_digits
from streampca.errors import RequestError
from streampca.fitting.merge import merge
from streampca.models.export import export_components
from streampca.plot.report import write_report
from streampca.preprocessing.copy import copy_collection
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


PNG = ("--set", "output.figure_format=png")


@pytest.mark.parametrize("directory", ["scans", "scans/runs/first"])
def test_pictures_of_a_run_stay_out_of_its_images(place, directory):
    (place / "run.yaml").write_text("collection: {source: scans/**/*.png}\nmodel: {n_components: 1}\n")
    said = typed("run", "run.yaml", "--set", f"output.directory={directory}", "--set", "output.report=true", *PNG)
    assert f"output {directory}/figures/series.png {PART}" in said.complaint
    assert said.code == 2


# -- the home folder


@pytest.fixture
def home(here, monkeypatch):
    """A home folder with images, labels and a list in it, beside the working folder."""
    folder = here.parent / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    np.save(folder / "images.npy", pictures(40))
    np.save(folder / "labels.npy", np.arange(40) % 3)
    np.save(folder / "mask.npy", np.eye(8, 7, dtype=bool))
    (folder / "list.txt").write_text("images.npy\n")
    return folder


def new_in(home):
    """Names of what was made there, but for what matplotlib keeps in hidden folders."""
    there = {"images.npy", "labels.npy", "mask.npy", "list.txt"}
    return sorted(name for name in os.listdir(home) if name not in there and not name.startswith("."))


def test_commands_expand_the_home_folder(here, home, undrawn):
    about = ["--labels", "~/labels.npy", "--sample-weight", "~/labels.npy", "--mask", "~/mask.npy"]
    how = ["--scratch", "~", "--checkpoint-every", 0, "-q"]
    succeeded("fit", "~/images.npy", "-k", 2, "-o", "~/m.zarr", *about, *how)
    succeeded("fit", "~/images.npy", "-k", 2, "-o", "~/whole.zarr", "--method", "covariance", "-q")
    succeeded("transform", "~/m.zarr", "@~/list.txt", "-o", "~/s.csv", "-q")
    succeeded("reconstruct", "~/m.zarr", "~/images.npy", "-o", "~/i.zarr", "-q")
    succeeded("copy", "~/images.npy", "-o", "~/c.zarr", "-q")
    succeeded("export", "~/m.zarr", "-o", "~/e.tif")
    succeeded("report", "~/m.zarr", "-o", "~/r.html", "--figures", "~/p", "--labels", "~/labels.npy", "-q")
    succeeded("merge", "~/whole.zarr", "-o", "~/merged.zarr", "-q")
    succeeded("inspect", "~/m.zarr")
    made = ["c.zarr", "e.tif", "i.zarr", "m.zarr", "merged.zarr", "p", "r.html", "s.csv", "whole.zarr"]
    assert new_in(home) == made
    assert os.listdir(here) == []


def test_run_files_expand_the_home_folder(here, home, undrawn):
    (home / "run.yaml").write_text(
        "collection: {source: ~/images.npy, labels: ~/labels.npy, sample_weight: ~/labels.npy}\n"
        "prepare: {mask: ~/mask.npy}\nmodel: {n_components: 2}\nrun: {scratch: '~'}\n"
        "output: {directory: ~/out, transform: true, report: true, images: ~/i.npy, collection: ~/c.zarr}\n"
    )
    succeeded("run", "~/run.yaml", "--set", "prepare.mask=null", "-q")
    (home / "apply.yaml").write_text(
        "collection: {source: ~/images.npy}\napply: ~/out/model.zarr\noutput: {scores: ~/s.npy}\n"
    )
    succeeded("run", "~/apply.yaml", "-q")
    assert new_in(home) == ["apply.yaml", "c.zarr", "i.npy", "out", "run.yaml", "s.npy"]
    assert os.listdir(here) == []


def test_python_expands_the_home_folder(here, home, undrawn):
    x = streampca.open_collection("~/images.npy", labels="~/labels.npy")
    how = {"n_components": 2, "method": "covariance", "scratch": "~", "checkpoint": "~/kept"}
    model = by_options.fit("~/images.npy", output="~/fitted.zarr", sample_weight="~/labels.npy", **how)
    streampca.PCA(2, run=streampca.Run(checkpoint="~/kept")).fit("~/images.npy")
    model.save("~/saved.zarr")
    loaded = streampca.load("~/saved.zarr", statistic=True)
    loaded.write_scores(x, "~/s.npy", checkpoint="~/kept")
    loaded.write_reconstruction(["~/images.npy"], "~/i.npy", checkpoint="~/kept")
    copy_collection(x, "~/c.zarr")
    export_components("~/saved.zarr", "~/e.npy")
    write_report("~/saved.zarr", "~/r.html", figures="~/p")
    merge(["~/saved.zarr"], output="~/merged.zarr")
    streampca.plot.save(streampca.plot.scree(model), "~/scree.png")
    make_digits("~/digits.zarr", n=5)
    made = ["c.zarr", "digits-labels.npy", "digits.zarr", "e.npy", "fitted.zarr", "i.npy", "merged.zarr", "p", "r.html"]
    assert new_in(home) == [*made, "s.npy", "saved.zarr", "scree.png"]
    assert os.listdir(here) == []


# -- endings


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("fit", "images.npy", "-k", 2, "-o", "m.h5"), "output m.h5 does not end in .zarr, and models are Zarr"),
        (("merge", "model.zarr", "-o", "m.nc", "-q"), "output m.nc does not end in .zarr, and models are Zarr"),
        (("transform", "model.zarr", "images.npy", "-o", "s.txt"), "output s.txt ends in none of .zarr, .npy, .csv"),
        (("reconstruct", "model.zarr", "images.npy", "-o", "x.csv"), "output x.csv ends in none of .zarr, .npy, .tif"),
        (("copy", "images.npy", "-o", "c.npy"), "output c.npy does not end in .zarr, and copies are Zarr"),
        (("export", "model.zarr", "-o", "e.csv"), "output e.csv ends in none of .tif, .tiff, .npy"),
        (("report", "model.zarr", "-o", "r.pdf", "-q"), "output r.pdf ends in none of .html, .htm"),
    ],
)  # fmt: skip
def test_endings_that_a_command_cannot_write_are_refused_by_name(source, model, words, problem):
    assert problem in refused(*words, code=2)
    assert sorted(os.listdir()) == ["images.npy", "model.zarr"]


def test_run_files_are_refused_endings_that_cannot_be_written(source):
    for key in ("model", "scores", "images", "collection"):
        Path("run.yaml").write_text(f"collection: {{source: images.npy}}\noutput: {{{key}: x.pdf}}")
        assert "output x.pdf " in refused("run", "run.yaml", code=2)
        assert sorted(os.listdir()) == ["images.npy", "run.yaml"]


def test_models_are_saved_under_no_other_formats_name(model):
    loaded = streampca.load(model)
    for name in ("m.nc", "m.H5", "m.npy", "m.model/", "m.v2"):
        for save in (loaded.save, lambda name: streampca.fit("images.npy", n_components=2, output=name)):
            with pytest.raises(RequestError, match=f"output {name} does not end in .zarr"):
                save(name)
    for name in ("m", "m.ZARR", "m.zarr/", "v0.95", "some.day/m"):
        loaded.save(name, overwrite=True)
        assert streampca.load(name).n_components == 3
