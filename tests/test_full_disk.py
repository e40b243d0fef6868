"""A disk that fills, a file that may not grow, a folder that may not be written to: one line, and nothing is lost.

What was finished before is intact, and the same command finishes once there is room. A full disk is a small file system
where one can be mounted; a limit on the size of files (``ulimit -f``) fails in the same places everywhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr
from pyarrow import parquet
from resumed import bits, run, source_of
from shell import MAY_FILL, pictures, python, refused, said_by, succeeded, typed, undated

import streampca
from streampca.cli.terminal import Progress
from streampca.errors import OutputError

LIMIT = 8_000  # bytes a file may have where files are limited: less than a page without pictures
NO_ROOM = {"disk": "No space left on device", "limit": "File too large"}


def fill(disk, free):
    """Leave so many bytes free."""
    Path(disk, "filler").unlink(missing_ok=True)
    size = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    with suppress(OSError):  # a thread of the command may have taken some of it meanwhile
        Path(disk, "filler").write_bytes(bytes(max(0, size - free)))


def filling(disk, moment, free=0, told=lambda event: None):
    """A listener that fills a disk when the event of this number comes, from 1; and the events."""
    seen = []

    def listen(event):
        told(event)
        seen.append(event)
        if len(seen) == moment:
            fill(disk, free)

    return listen, seen


def last_line(said):
    """Return how a command failed, after warnings of checkpoints that could not be written."""
    *warnings, line = said.err.splitlines()
    assert all(warning.startswith("warning: ") for warning in warnings), said.err
    assert line.startswith("streampca: ")
    return line


def typed_until(disk, moment, free, *words):
    """Run a command on a disk that fills at an event; returns what it said, and the number of events."""
    progress = Progress.__call__
    with pytest.MonkeyPatch.context() as patch:
        listen, seen = filling(disk, moment, free)

        def told(self, event):
            progress(self, event)
            listen(event)

        patch.setattr(Progress, "__call__", told)
        return typed(*words), len(seen)


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


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 16 * 2**10, 400 * 2**10, 700 * 2**10])
def test_full_disk_during_a_run(disk, free, undrawn):
    np.save("images.npy", pictures(4000, 10, 10))
    text = (
        "collection: {source: images.npy}\nmodel: {n_components: 30}\noutput: {directory: disk/out, transform: true, "
    )
    Path("run.yaml").write_text(text + "report: true, images: disk/images.zarr}")
    fill(disk, free)
    line = refused("run", "run.yaml")
    assert "No space left on device" in line
    made = Path("disk/out/model.zarr")
    finished = streampca.load(made).provenance["created"] if free >= 400 * 2**10 else None
    os.remove("disk/filler")
    succeeded("run", "run.yaml", "-q")
    assert len(os.listdir("disk/out/figures")) == 10
    assert streampca.open_collection("disk/images.zarr").shape == (4000, 10, 10)
    if finished:
        assert streampca.load(made).provenance["created"] == finished, "what was finished is used again"


def test_outputs_that_do_not_fit_together_are_refused_before_the_fit(disk):
    """Those that are not compressed are; of others there is a warning, as they may well fit."""
    np.save("images.npy", np.zeros((4000, 10, 10), np.uint8) + np.arange(10, dtype=np.uint8))
    text = "collection: {{source: images.npy}}\nmodel: {{n_components: 1}}\noutput: {{directory: disk/out, {}}}"
    fill(disk, 1_500_000)
    Path("run.yaml").write_text(text.format("scores: disk/scores.npy, images: disk/images.npy"))
    line = refused("run", "run.yaml")
    assert re.match(r"all of disk/scores.npy, disk/images.npy takes 1\.5 MiB and .*/disk has .* left; free", line)
    assert not Path("disk/out/model.zarr").exists()
    said = typed("copy", "images.npy", "--resize", "40x40", "-o", "disk/copy.zarr", "-q")
    assert said.code == 0
    assert MAY_FILL.fullmatch(said.err.strip())
    assert streampca.open_collection("disk/copy.zarr").shape == (4000, 40, 40)


def test_what_a_resumed_run_has_written_is_not_asked_for_again(disk, monkeypatch):
    np.save("images.npy", pictures(4000, 10, 10))
    succeeded("fit", "images.npy", "-k", 30, "-o", "model.zarr", "-q")
    words = ("reconstruct", "model.zarr", "images.npy", "-o", "disk/images.npy", "--checkpoint-every", 0, "-q")
    monkeypatch.setattr("streampca.planning.transform.MOST_BLOCK", 100_000)
    fill(disk, 2_000_000)
    said, _ = typed_until(disk, 20, 0, *words)
    assert "No space left on device" in last_line(said)
    assert not Path("disk/images.npy").exists()
    fill(disk, 1_450_000)  # less than the output
    succeeded(*words)


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
    if free is not None and made.endswith((".npy", ".tif")):
        assert re.match(rf"disk/{made} takes .* and .*/disk has .* left; free some space, ", said.complaint)
    else:
        assert f"disk/{made} could not be written: {NO_ROOM['limit' if free is None else 'disk']}" in said.complaint
    assert "run the same command again" in said.complaint
    assert state("images.npy", "model.zarr", "disk/precious.txt") == before
    checkpoint = f"{made}.streampca-checkpoint"  # what was done of a report, which the same command goes on from
    assert set(os.listdir("disk")) <= {"precious.txt", "filler", checkpoint}, "room is given back"
    Path("disk/filler").unlink(missing_ok=True)
    succeeded(*words)
    assert not Path("disk", checkpoint).exists()
    check(f"disk/{made}", name)


def check(path, name):
    """See that an output is whole."""
    if name == "fit":
        assert streampca.load(path).n_components == 30
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
    text = "collection: {source: images.npy}\nmodel: {n_components: 5}\noutput: {directory: out, transform: true}"
    Path("run.yaml").write_text(text)
    said = limited("run", "run.yaml", "-q", limit=100_000)
    assert said.code == 1
    assert NO_ROOM["limit"] in said.complaint
    finished = state("out/model.zarr")
    assert streampca.load("out/model.zarr").n_components == 5
    succeeded("run", "run.yaml", "-q")
    assert {path: digest for path, digest in state("out/model.zarr").items() if path in finished} == finished
    assert streampca.open_collection("out/scores.zarr").shape == (20_000, 5)


# -- a disk that fills at random moments


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(1, 10))]
IS_FULL = re.compile("No space left on device|left; free some space")
FREE_THEN = [0, 8_000, 60_000]  # bytes that are left
FITS = ["covariance", "covariance in threads", "dual sweep", "dual scratch", "dual scratch, stored", "randomized",
        "samples, weighted, scratch", "em"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", FITS)
def test_a_fit_goes_on_after_the_disk_was_full(files, unbroken, disk, kind, seed):
    (expected, events), random = unbroken(kind), np.random.default_rng(seed)
    moment, free = random.integers(1, len(events) + 1), random.choice(FREE_THEN)
    again = partial(run, source_of(files, kind), kind, disk / "m.zarr", disk / "kept")
    listen, _ = filling(disk, moment, free)
    found, said = None, ""
    try:
        found = again(listener=listen)
    except OutputError as error:
        said = str(error)
    Path(disk, "filler").unlink(missing_ok=True)
    if found is None:
        assert IS_FULL.search(said)
        found = again()
    assert bits(found) == bits(streampca.load(disk / "m.zarr")) == expected
    assert os.listdir(disk) == ["m.zarr"], "nothing is left behind"


LONG = {
    "fit": "fit images.npy -k 8 --method covariance -o disk/fitted.zarr --checkpoint-every 0",
    "part": "fit images.npy -k 8 --part 1/2 -o disk/part.zarr --checkpoint-every 0",
    "merge": "merge part1.zarr part2.zarr -o disk/merged.zarr",
    "transform to zarr": "transform model.zarr images.npy -o disk/scores.zarr --checkpoint-every 0",
    "transform to npy": "transform model.zarr images.npy -o disk/scores.npy --checkpoint-every 0",
    "transform to csv": "transform model.zarr images.npy -o disk/scores.csv --checkpoint-every 0",
    "reconstruct": "reconstruct model.zarr images.npy -o disk/images.npy --checkpoint-every 0",
    "copy": "copy images.npy -o disk/copy.zarr",
    "report": "report model.zarr -o disk/page.html --figures disk/drawn",
    "neighbors": "neighbors scores.npy -o disk/graph.zarr --checkpoint-every 0",
    "embed": "fit few.npy --kind isomap --n-neighbors 15 -o disk/embedded.zarr --checkpoint-every 0",
    "run": "run run.yaml",
}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A folder with what these commands read."""
    folder = tmp_path_factory.mktemp("given")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.save("images.npy", pictures(1000, 12, 10))
        np.save("few.npy", pictures(200, 12, 10))
        text = "collection: {source: images.npy}\nmodel: {n_components: 8}\nrun: {checkpoint_every: 0}\n"
        text += "output: {directory: disk/out, transform: true, report: true, images: disk/images.zarr}"
        Path("run.yaml").write_text(text)
        for words in ("-o model.zarr", "--part 1/2 -o part1.zarr", "--part 2/2 -o part2.zarr"):
            succeeded("fit", "images.npy", "-k", 8, "--method", "covariance", "-q", *words.split())
        succeeded("transform", "model.zarr", "images.npy", "-o", "scores.npy", "-q")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LONG)
def test_a_command_goes_on_after_the_disk_was_full(given, disk, undrawn, monkeypatch, name, seed):
    words, random = [*LONG[name].split(), "-q"], np.random.default_rng(seed)
    shutil.copytree(given, ".", dirs_exist_ok=True)
    for module in ("covariance", "transform", "neighbors"):
        monkeypatch.setattr(f"streampca.planning.{module}.MOST_BLOCK", 12_000)
    said, count = typed_until(disk, 0, 0, *words)
    assert said.code == 0, said.err
    expected, made = undated(["disk"]), sorted(os.listdir("disk"))
    for path in made:
        shutil.rmtree(disk / path) if (disk / path).is_dir() else (disk / path).unlink()
    said, _ = typed_until(disk, random.integers(1, count + 1), random.choice(FREE_THEN), *words)
    assert said.code in (0, 1)
    Path("disk/filler").unlink(missing_ok=True)
    if said.code:
        assert IS_FULL.search(last_line(said))
        succeeded(*words)
    assert undated(["disk"]) == expected
    assert sorted(os.listdir("disk")) == made
    assert not list(Path("disk").rglob("*streampca-*")), "nothing is left behind"
