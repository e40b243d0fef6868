"""`--overwrite` replaces only its own kind, and only when the new output is complete.

Whatever ends a command in its middle (a bad option, a full disk, a kill), what was there is still there bit for bit.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pytest
import tifffile
import xarray
import zarr
from pyarrow import parquet
from shell import diagonal, not_drawn, pictures, python, refused, succeeded, typed

import streampca
from streampca.cli.demo import guided_tour
from streampca.cli.demo_data import make_digits
from streampca.errors import ModelError, OutputError, RequestError
from streampca.execution.checkpoint_file import CheckpointFile
from streampca.models.export import export_components
from streampca.preprocessing.copy import copy_collection
from streampca.readers import paths_of
from streampca.storage import outputs
from streampca.storage.locks import BESIDE
from streampca.storage.outputs import PARTIAL, REPLACED

RUN = """
collection: {source: images.npy}
model: {n_components: 3}
output: {directory: DISK/out, transform: true, images: DISK/run-images.npy, collection: DISK/run-copy.zarr}
"""
# Each command, what it writes, and options with which it is refused late, when all but the data have been looked at.
COMMANDS = {
    "fit": ("fit images.npy -k 3 --method covariance -o DISK/model.zarr", ["model.zarr"], "--memory 1MiB"),
    "transform to zarr": ("transform whole.zarr images.npy -o DISK/scores.zarr", ["scores.zarr"], "--memory 1MiB"),
    "merge": ("merge whole.zarr -o DISK/merged.zarr", ["merged.zarr"], "--memory 1MiB"),
    "transform to npy": ("transform whole.zarr images.npy -o DISK/scores.npy", ["scores.npy"], "--memory 1MiB"),
    "transform to csv": ("transform whole.zarr images.npy -o DISK/scores.csv", ["scores.csv"], "--memory 1MiB"),
    "transform to parquet": (
        "transform whole.zarr images.npy -o DISK/scores.parquet",
        ["scores.parquet"],
        "--memory 1MiB",
    ),
    "reconstruct to tif": ("reconstruct whole.zarr images.npy -o DISK/rebuilt.tif", ["rebuilt.tif"], "--whole"),
    "reconstruct to zarr": ("reconstruct whole.zarr images.npy -o DISK/images.zarr", ["images.zarr"], "-k 99"),
    "reconstruct to npy": ("reconstruct whole.zarr images.npy -o DISK/rebuilt.npy", ["rebuilt.npy"], "--whole"),
    "copy": ("copy images.npy -o DISK/copy.zarr", ["copy.zarr"], "--memory 1MiB"),
    "export to tif": ("export whole.zarr -o DISK/components.tif", ["components.tif"], "-k 99"),
    "export to npy": ("export whole.zarr -o DISK/components.npy", ["components.npy"], "-k 99"),
    "report": ("report whole.zarr -o DISK/page.html --figures DISK/drawn", ["page.html", "drawn"], "--memory 1MiB"),
    "run": ("run run.yaml", ["out", "run-images.npy", "run-copy.zarr"], "--set prepare.mask=mask.npy"),
}


BEGUN = re.compile(rf"({re.escape(PARTIAL)}|/[^/]*\.streampca-checkpoint|{re.escape(BESIDE)})(/|$)")


def words_of(name, *more, disk="."):
    command = COMMANDS[name][0].replace("DISK", str(disk)).split()
    quiet = [] if command[0] == "export" else ["-q"]
    return [*command, *more, *quiet]


def state(*paths):
    """Digest of every file below some paths, but for a run's log, and what is begun and has no name of its own yet."""
    files = [file for path in paths for file in ([Path(path)] if Path(path).is_file() else Path(path).rglob("*"))]
    kept = sorted(file for file in files if file.is_file() and file.name != "run.log" and not BEGUN.search(str(file)))
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in kept}


def outputs_of(name, disk="."):
    return [os.path.join(disk, path) for path in COMMANDS[name][1]]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder in which every command has run once."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("streampca.plot.report.page.drawn", not_drawn)
        np.save("images.npy", pictures(400, 8, 7))
        np.save("mask.npy", np.eye(8, 7, dtype=bool))
        Path("run.yaml").write_text(RUN.replace("DISK", "."))
        Path("on-disk.yaml").write_text(RUN.replace("DISK", "disk"))
        succeeded("fit", "images.npy", "-k", 3, "--method", "covariance", "-o", "whole.zarr", "-q")
        for name in COMMANDS:
            succeeded(*words_of(name))
    return folder


@pytest.fixture
def there(made, here):
    """A copy of that folder to work in."""
    shutil.copytree(made, here, dirs_exist_ok=True)
    return here


def test_a_command_that_is_refused_removes_nothing(there, undrawn):
    before = state(".")
    for name, (_, _, late) in COMMANDS.items():
        if name != "run":  # which goes on with what is there
            assert "exists already" in typed(*words_of(name)).complaint, name
        said = typed(*words_of(name, "--overwrite", *late.split()))
        assert said.code != 0, name
        assert said.complaint, name
        assert state(".") == before, name


@pytest.mark.every(5)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_leaves_what_was_there(there, disk, undrawn, name):
    for path in COMMANDS[name][1]:
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, disk / path)
    before = state(disk)
    assert before
    words = words_of(name, "--overwrite", disk=disk)
    words = ["on-disk.yaml" if word == "run.yaml" else word for word in words]
    free = os.statvfs(disk)
    Path("disk/filler").write_bytes(bytes(free.f_bavail * free.f_frsize))
    line = typed(*words).complaint
    is_foreseen = COMMANDS[name][1][0].endswith((".npy", ".tif")) or name == "run"
    assert (" has 0 B left; free some space" if is_foreseen else "No space left on device") in line
    os.remove("disk/filler")
    assert state(disk) == before
    succeeded(*words)


_KILLED = """
import os, signal, sys
from streampca.storage import outputs
from streampca.cli.commands import main
from streampca.plot.report import page
import shell

page.drawn = shell.not_drawn
moment = sys.argv.pop(1)
place, replace = outputs._partial, os.replace

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def begun(*given):
    place(*given)
    die()

def between(old, new):
    if str(old).endswith(outputs.PARTIAL):
        die()
    replace(old, new)

if moment == "begun":
    outputs._partial = begun
elif moment == "whole":
    outputs._take_place = die
else:
    os.replace = between
main()
"""


@pytest.mark.every(4)
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "run"])
def test_a_signal_after_the_output_took_its_name_says_that_it_is_complete(there, undrawn, monkeypatch, name):
    """The command ends as usual and does not ask to be given again, which would not replace the output."""
    take_place = outputs._take_place

    def asked_then(*paths):
        take_place(*paths)
        monkeypatch.setattr(outputs, "_take_place", take_place)  # a second signal ends the process at once
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(outputs, "_take_place", asked_then)
    before = os.stat(outputs_of(name)[0]).st_ino
    said = typed(*words_of(name, "--overwrite"))
    assert (said.code, said.err) == (0, "")
    assert f"wrote {outputs_of(name)[0]}" in said.out
    assert os.stat(outputs_of(name)[0]).st_ino != before
    assert not list(Path().rglob("*streampca-*"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "moment"), diagonal(COMMANDS, ["begun", "whole", "between"]))
def test_a_kill_leaves_what_was_there(there, undrawn, name, moment):
    """Just begun; when the new output is whole; and between its taking the name and the old one's giving it up."""
    before = state(*outputs_of(name))
    words = words_of(name, "--overwrite")
    done = python(_KILLED, moment, *words)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if moment == "between" and name in ("fit", "merge"):
        line = refused("inspect", COMMANDS[name][1][0])
        assert "does not exist: a run that was to replace it was killed" in line
    if moment == "between" and name != "run":
        assert "exists already" in typed(*words_of(name)).complaint, "which is there again"
    elif moment == "between":
        refused("run", "run.yaml", "--set", "model.n_components=2")
    assert state(*outputs_of(name)) == before
    succeeded(*words)
    assert not [path for path in os.listdir() if path.endswith((PARTIAL, REPLACED))]


# -- only the same kind


OTHERS = {
    "model.zarr": ("scores.zarr", "copy.zarr"),
    "merged.zarr": ("scores.zarr", "images.zarr"),
    "scores.zarr": ("model.zarr", "images.zarr"),
    "images.zarr": ("model.zarr", "scores.zarr"),
    "copy.zarr": ("model.zarr", "scores.zarr"),
    "scores.npy": ("rebuilt.npy", "components.npy"),
    "rebuilt.npy": ("scores.npy",),
    "components.npy": ("scores.npy",),
}


def others_of(name, folder):
    """Outputs of other commands under the ending that this one writes, and people's own files and folders."""
    target = COMMANDS[name][1][0]
    suffix = os.path.splitext(target)[1]
    yield from OTHERS.get(target, ())
    own = folder / f"own{suffix}"
    if suffix == ".zarr":
        zarr.create_group(own).create_array("images", data=np.ones((3, 2)))
        (folder / "folder.zarr").mkdir()
        (folder / "folder.zarr" / "thesis.txt").write_text("thesis")
        shutil.copytree(target, folder / "annotated.zarr")
        (folder / "annotated.zarr" / "notes.txt").write_text("notes")
        (folder / "text.zarr").write_text("precious")
        yield from ("own.zarr", "folder.zarr", "annotated.zarr", "text.zarr")
    elif suffix == ".npy":
        np.save(own, np.ones((30, 5, 4), np.uint8))
        yield own.name
    elif suffix == ".csv":
        own.write_text("file,label\na.png,1\n")
        yield own.name
    elif suffix == ".parquet":
        parquet.write_table(pyarrow.table({"sample": [1, 2]}), own)
        yield own.name
    elif suffix == ".tif":
        tifffile.imwrite(own, np.ones((4, 5), np.uint16))
        yield own.name
    elif suffix == ".html":
        own.write_text("<!DOCTYPE html>\n<html><head><title>My thesis</title></head></html>")
        yield own.name
    (folder / f"directory{suffix}").mkdir()
    (folder / f"directory{suffix}" / "thesis.txt").write_text("thesis")
    yield f"directory{suffix}"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "run"])
def test_only_the_same_kind_is_replaced(there, undrawn, name):
    others = list(others_of(name, there))
    assert len(others) >= 2
    before = state(".")
    for other in others:
        words = [other if word == f"./{COMMANDS[name][1][0]}" else word for word in words_of(name, "--overwrite")]
        assert other in words
        said = typed(*words)
        assert said.code == 1, other
        assert f"{other} exists and is not" in said.complaint or f"{other} is a folder" in said.complaint
        assert state(".") == before


def test_a_run_replaces_no_file_of_others(there):
    (there / "labels.csv").write_text("file,label\na.png,1\n")
    before = state(".")
    line = refused("run", "run.yaml", "--overwrite", "--set", "output.scores=labels.csv")
    assert "labels.csv exists and is not scores written by streampca" in line
    assert state(".") == before


def test_run_files_of_others_are_not_replaced_even_if_asked(there):
    os.mkdir("mine")
    Path("mine/config.yaml").write_text("precious: 1")
    set_to = ("--set", "output.directory=mine", "--overwrite")
    assert "mine holds a config.yaml that no run wrote" in refused("run", "run.yaml", *set_to)
    Path("mine/run.log").write_text("of another program")
    assert "mine holds a config.yaml that no run wrote" in refused("run", "run.yaml", *set_to)
    assert Path("mine/config.yaml").read_text() == "precious: 1"
    assert "mask.npy is not a folder" in refused("run", "run.yaml", "--set", "output.directory=mask.npy")


def test_outputs_of_a_run_are_apart(there):
    before = state(".")
    for change in (
        "output.scores=run-images.npy",
        "output.model=out/scores.zarr",
        "output.images=out/model.zarr/i.npy",
    ):
        line = refused("run", "run.yaml", "--overwrite", "--set", change, code=2)
        assert "are the same, or one lies in the other" in line
    assert state(".") == before


def test_scores_that_somebody_else_wrote_are_not_taken_for_a_runs_own(there):
    succeeded("run", "run.yaml", "-q")
    np.save("others.npy", pictures(50, 8, 7, seed=1))
    succeeded("transform", "out/model.zarr", "others.npy", "-o", "out/scores.zarr", "--overwrite", "-q")
    assert "scores.zarr exists already" in refused("run", "run.yaml")


def test_a_run_that_was_stopped_while_replacing_goes_on_with_its_own(there, monkeypatch):
    """The model was replaced, the scores were not: they are of the model before."""
    before = state("out/scores.zarr")

    def full(*given, **how):
        raise OutputError("out/scores.zarr could not be written.")

    with monkeypatch.context() as patch:
        patch.setattr(streampca.PCAModel, "write_scores", full)
        assert "could not be written" in refused("run", "run.yaml", "--overwrite")
    assert state("out/scores.zarr") == before
    said = typed("run", "run.yaml", "-q")
    assert said.code == 0, said.err
    assert "out/scores.zarr is replaced: a run that was to replace it was ended" in said.err
    assert "kept ./out/scores.zarr\n" in succeeded("run", "run.yaml", "-q")


def test_the_beginning_of_another_fit_stays_where_this_one_is_refused(there):
    os.mkdir("model.zarr.streampca-checkpoint")
    file = CheckpointFile("model.zarr.streampca-checkpoint", "run")
    about = {"identity": {"source": "other.npy"}, "plan": {}, "memory": None, "workers": 1, "scratch": None}
    file.save(about, {})
    os.utime("model.zarr/zarr.json", (1, 1))  # the model is older
    said = typed("fit", "images.npy", "-k", 3, "-o", "model.zarr", "--overwrite", "--memory", "1MiB", "-q")
    assert "Set memory to at least" in said.err
    assert CheckpointFile("model.zarr.streampca-checkpoint", "run").load() == (about, {})


# -- no output is a source


def python_sources(folder):
    """Sources that are arrays which know their file, and an output in its place."""
    x = np.random.default_rng(0).normal(size=(30, 4, 5)).astype(np.float32)
    np.save(folder / "x.npy", x)
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    copy_collection(streampca.open_collection(x), folder / "x.zarr")
    zarr_array = zarr.open_group(folder / "x.zarr", mode="r")["images"]
    with h5py.File(folder / "x.h5", "w") as file:
        file["images"] = x
    xarray.Dataset({"images": (("t", "y", "x"), x)}).to_netcdf(folder / "x.nc", engine="scipy")
    yield mapped, "x.npy"
    yield mapped[5:], "x.npy"
    yield np.asarray(mapped), "x.npy"
    yield zarr_array, "x.zarr"
    yield zarr.open_group(folder / "x.zarr", mode="r"), "x.zarr"
    yield streampca.open_collection(zarr_array), "x.zarr"
    yield streampca.open_collection(folder / "x.zarr", samples=slice(0, 20)), "x.zarr"
    yield streampca.open_collection([folder / "x.npy", folder / "x.npy"], duplicates="all"), "x.npy"


@pytest.mark.slow
def test_a_model_that_is_replaced_all_the_time_is_read_whole(here):
    """Mean, variances and components are of one model each time, and a lazy handle never mixes two."""
    noise = np.random.default_rng(0).normal(size=(20, 8, 8))
    models = [streampca.fit(noise * n + 40 * n, n_components=3) for n in (1, 2)]
    models[0].save("model.zarr")
    script = (
        "import sys, itertools, streampca, time\n"
        "models = [streampca.load(name) for name in sys.argv[1:]]\n"
        "print('ready', flush=True)\n"
        "for number in itertools.count(): models[number % 2].save('model.zarr', overwrite=True), time.sleep(0.05)"
    )
    for number, model in enumerate(models):
        model.save(f"{number}.zarr")
    command = [sys.executable, "-c", script, "0.zarr", "1.zarr"]
    seen, refused = set(), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            writer.stdout.readline()
            for _ in range(30):
                loaded = streampca.load("model.zarr", memory="1B")
                which = int(loaded.mean.mean() > 60)
                np.testing.assert_array_equal(loaded.explained_variance, models[which].explained_variance)
                try:
                    np.testing.assert_array_equal(np.asarray(loaded.components), models[which].components)
                except ModelError as error:
                    assert re.search("is another model than was opened|is no longer there", str(error))  # noqa: PT017
                    refused += 1
                seen.add(which)
        finally:
            writer.kill()
    assert seen == {0, 1}
    assert refused < 30


def test_arrays_that_know_their_file_are_not_written_over(here):
    model = streampca.fit(np.random.default_rng(1).normal(size=(40, 4, 5)), n_components=2)
    for source, path in python_sources(here):
        before = state(".")
        with pytest.raises(RequestError, match=f"output {path} (is what|holds .*, which) the run reads"):
            model.write_reconstruction(source, path, overwrite=True)
        assert state(".") == before
    with h5py.File("x.h5") as file:
        assert paths_of(file["images"]) == ["x.h5"]
        assert "x.h5" in streampca.open_collection(file["images"]).paths()
    with xarray.open_dataset("x.nc", engine="scipy") as opened:
        assert paths_of(opened) == [str(here / "x.nc")]
        opened["images"].encoding["source"] = str(here / "x.nc")  # as other engines note it
        assert paths_of(opened["images"]) == [str(here / "x.nc")]


def test_what_a_model_was_fitted_on_is_not_written_over(here):
    np.save("x.npy", np.random.default_rng(0).normal(size=(30, 4, 5)))
    model = streampca.fit("x.npy", n_components=2, output="m.zarr")
    others = np.random.default_rng(1).normal(size=(30, 4, 5))
    before = state(".")
    with pytest.raises(RequestError, match=r"x\.npy is what the model was fitted on"):
        model.write_reconstruction(others, "x.npy", overwrite=True)
    for given in (model, "m.zarr"):
        with pytest.raises(RequestError, match=r"x\.npy is what the model was fitted on"):
            export_components(given, "x.npy", overwrite=True)
    assert "lies in m.zarr, which the run reads" in refused(
        "transform", "m.zarr", "x.npy", "-o", "m.zarr/s.npy", code=2
    )
    with pytest.raises(RequestError, match=r"lies in m\.zarr"):
        export_components("m.zarr", "m.zarr/e.tif")
    assert state(".") == before


def test_columns_masks_and_lists_are_not_written_over(here):
    np.save("x.npy", pictures(30, 8, 7))
    weights = np.linspace(1, 2, 60).reshape(30, 2)
    np.save("column.npy", weights[:, :1])
    np.save("mask.npy", np.eye(8, 7))
    streampca.fit("x.npy", n_components=2, output="m.zarr")
    before = state(".")
    words = ("--labels", "column.npy", "-o", "column.npy", "--overwrite")
    assert "column.npy is what the run reads" in refused("transform", "m.zarr", "x.npy", *words, code=2)
    Path("run.yaml").write_text("collection: {source: x.npy}\noutput: {model: n.zarr, scores: s.npy}")
    keys = ("collection.sample_weight=column.npy", "collection.target=column.npy")
    for key in (*keys, *(f"prepare.{step}=mask.npy" for step in ("mask", "scale"))):
        name = key.partition("=")[2]
        line = refused("run", "run.yaml", "--set", key, "--set", f"output.scores={name}", "--overwrite", code=2)
        assert f"{name} is what the run reads" in line
    os.remove("run.yaml")
    labelled = streampca.open_collection("x.npy", labels="column.npy")
    with pytest.raises(RequestError, match=r"column\.npy is what the run reads"):
        streampca.load("m.zarr").write_scores(labelled, "column.npy", overwrite=True)
    assert state(".") == before


def test_an_output_does_not_hold_its_source(there):
    before = state(".")
    line = refused("copy", "copy.zarr/images", "-o", "copy.zarr", "--overwrite", code=2)
    assert "output copy.zarr holds copy.zarr/images, which the run reads" in line
    assert state(".") == before


def test_the_demonstration_replaces_nothing_of_others(here):
    os.mkdir("demo")
    Path("demo/digits.png").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"digits.png exists and no demonstration wrote it"):
        guided_tour(None, "demo", "32MiB")
    np.save("demo/digits-labels.npy", np.ones(3))
    with pytest.raises(OutputError, match="does not hold the demonstration's labels"):
        make_digits("demo/digits.zarr", n=5)
    assert sorted(os.listdir("demo")) == ["digits-labels.npy", "digits.png"]
    assert Path("demo/digits.png").read_bytes() == b"mine"
