"""A disk that fills, a file that may not grow, a folder that may not be written to: one line, and nothing is lost.

What was finished before is intact, and the same command finishes once there is room. A full disk is a small file system
where one can be mounted; a limit on the size of files (``ulimit -f``) fails in the same places everywhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr
from pyarrow import parquet
from shell import pictures, python, refused, said_by, succeeded, typed

import streampca

LIMIT = 8_000  # bytes a file may have where files are limited: less than a page without pictures
NO_ROOM = {"disk": "No space left on device", "limit": "File too large"}


def fill(disk, free):
    """Leave so many bytes free."""
    size = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    Path(disk, "filler").write_bytes(bytes(size - free))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with images and a model."""
    folder = tmp_path_factory.mktemp("fitted")
    np.save(folder / "images.npy", pictures(1500, 20, 20))
    succeeded("fit", folder / "images.npy", "-k", 20, "-o", folder / "model.zarr", "-q")
    return folder


def test_full_disk_keeps_what_was_to_be_replaced(disk, fitted):
    words = ("transform", fitted / "model.zarr", fitted / "images.npy", "-o", "disk/scores.zarr")
    succeeded(*words, "-q")
    before = zarr.open_group("disk/scores.zarr")["scores"][...]
    fill(disk, 32 * 2**10)
    assert "No space left" in refused(*words, "--whiten", "--overwrite")
    np.testing.assert_array_equal(zarr.open_group("disk/scores.zarr")["scores"][...], before)


@pytest.mark.parametrize("free", [0, 16 * 2**10, 400 * 2**10, 700 * 2**10])
def test_full_disk_during_a_run(disk, free, undrawn):
    np.save("images.npy", pictures(4000, 10, 10))
    text = "collection: {source: images.npy}\nfit: {n_components: 30}\noutput: {directory: disk/out, transform: true, "
    Path("run.yaml").write_text(text + "report: true, images: disk/images.npy}")
    fill(disk, free)
    line = refused("run", "run.yaml")
    assert "No space left on device" in line
    made = Path("disk/out/model.zarr")
    finished = streampca.load_model(made).provenance["created"] if free >= 400 * 2**10 else None
    os.remove("disk/filler")
    succeeded("run", "run.yaml", "-q")
    assert len(os.listdir("disk/out/pictures")) == 9
    assert np.load("disk/images.npy").shape == (4000, 10, 10)
    if finished:
        assert streampca.load_model(made).provenance["created"] == finished, "what was finished is used again"


def refuses_to_write(source, model, folder):
    for command in (["fit", source, "-k", 2], ["transform", model, source], ["reconstruct", model, source]):
        line = refused(*command, "-o", f"{folder}/deep/out.zarr")
        assert f"no permission to write in {os.path.abspath(folder)}" in line
    Path("run.yaml").write_text(f"collection: {{source: images.npy}}\noutput: {{directory: {folder}/out}}")
    assert "no permission to write in" in refused("run", "run.yaml")


def test_folder_that_may_only_be_read(source, model, disk):
    subprocess.run([shutil.which("mount"), "-o", "remount,ro", disk.absolute()], check=True)
    refuses_to_write(source, model, "disk")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission(source, model):
    os.mkdir("locked", 0o500)
    refuses_to_write(source, model, "locked")


# -- every command, in processes of their own


def limited(*words, limit):
    """Run a command in a process of its own whose files may not grow beyond so many bytes; reports draw nothing."""
    script = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY)); "
    script += "import shell; from streampca.plot.report import page; page.drawn = shell.not_drawn; "
    return said_by(python(f"{script}from streampca.cli.commands import main; main()", *words))


def state(*paths):
    """Digest of every file below some paths."""
    files = [
        file for path in paths for file in (sorted(Path(path).rglob("*")) if Path(path).is_dir() else [Path(path)])
    ]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


COMMANDS = {
    "fit": (["fit", "images.npy", "-k", "30", "-o", "{}/new.zarr", "-q"], "new.zarr"),
    "transform to zarr": (["transform", "model.zarr", "images.npy", "-o", "{}/new.zarr", "-q"], "new.zarr"),
    "transform to npy": (["transform", "model.zarr", "images.npy", "-o", "{}/new.npy", "-q"], "new.npy"),
    "transform to csv": (["transform", "model.zarr", "images.npy", "-o", "{}/new.csv", "-q"], "new.csv"),
    "transform to parquet": (["transform", "model.zarr", "images.npy", "-o", "{}/new.parquet", "-q"], "new.parquet"),
    "reconstruct to tif": (["reconstruct", "model.zarr", "images.npy", "-o", "{}/new.tif", "-q"], "new.tif"),
    "reconstruct": (["reconstruct", "model.zarr", "images.npy", "-o", "{}/new.npy", "-q"], "new.npy"),
    "copy": (["copy", "images.npy", "-o", "{}/new.zarr", "-q"], "new.zarr"),
    "export": (["export", "model.zarr", "-o", "{}/new.tif"], "new.tif"),
    "report": (["report", "model.zarr", "-o", "{}/new.html", "-q"], "new.html"),
}


# Bytes that are free on a full disk.
FREE = [("fit", 0), ("fit", 32_000), ("copy", LIMIT), ("export", LIMIT), ("report", LIMIT), ("reconstruct", LIMIT),
        ("transform to zarr", 32_000), ("transform to npy", 4_000), ("transform to csv", 100_000)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "free"), [*((name, None) for name in COMMANDS), *FREE])
def test_every_command(fitted, here, undrawn, name, free, request):
    shutil.copy(fitted / "images.npy", here)
    shutil.copytree(fitted / "model.zarr", here / "model.zarr")
    if free is None:
        Path("disk").mkdir()
    else:
        fill(request.getfixturevalue("disk"), free + 4096)
    Path("disk/precious.txt").write_text("finished before")
    words, made = COMMANDS[name]
    words = [word.format("disk") for word in words]
    before = state("images.npy", "model.zarr", "disk/precious.txt")
    said = limited(*words, limit=LIMIT) if free is None else typed(*words)
    assert said.code == 1
    assert f"disk/{made} could not be written: {NO_ROOM['limit' if free is None else 'disk']}" in said.complaint
    assert "run the same command again" in said.complaint
    assert state("images.npy", "model.zarr", "disk/precious.txt") == before
    assert set(os.listdir("disk")) <= {"precious.txt", "filler"}, "room is given back"
    Path("disk/filler").unlink(missing_ok=True)
    succeeded(*words)
    check(f"disk/{made}", name)


def check(path, name):
    """See that an output is whole."""
    if name == "fit":
        assert streampca.load_model(path).n_components == 30
    elif name == "export":
        assert tifffile.imread(path).shape == (21, 20, 20)
    elif name == "report":
        assert Path(path).read_text().endswith("</html>")
    elif path.endswith(".parquet"):
        assert parquet.read_table(path).shape == (1500, 21)
    elif path.endswith(".csv"):
        assert len(Path(path).read_text().splitlines()) == 1501
    else:
        assert streampca.open_collection(path).shape in ((1500, 20), (1500, 20, 20))


@pytest.mark.slow
def test_a_run_keeps_what_it_finished(here):
    """There is room for the model and none for the scores: the second run takes the model as it is."""
    np.save("images.npy", pictures(20_000, 6, 6))
    text = "collection: {source: images.npy}\nfit: {n_components: 5}\noutput: {directory: out, transform: true}"
    Path("run.yaml").write_text(text)
    said = limited("run", "run.yaml", "-q", limit=100_000)
    assert said.code == 1
    assert NO_ROOM["limit"] in said.complaint
    finished = state("out/model.zarr")
    assert streampca.load_model("out/model.zarr").n_components == 5
    succeeded("run", "run.yaml", "-q")
    assert {path: digest for path, digest in state("out/model.zarr").items() if path in finished} == finished
    assert streampca.open_collection("out/scores.zarr").shape == (20_000, 5)
