"""Run directories over many runs: each does what is missing and keeps what stands, as its dry run foretells.

A sequence is a list of steps. A step is the settings of a run and, after =>, the outputs it writes (+), replaces (~)
and updates (^); it keeps the others that it is asked for. Steps that begin with "do" are what happens between runs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from shell import pictures, python, refused, succeeded, typed

import streampca
from streampca.cli.config import load_run
from streampca.cli.pipeline import execute
from streampca.errors import OutputError
from streampca.models.pca import PCAModel
from streampca.readers.stored.flat import FlatArray

RUN = """
collection: {source: images/*.npy}
model: {n_components: 3}
output: {directory: out}
"""
PATHS = {
    "model": "out/model.zarr", "scores": "out/scores.zarr", "table": "table.csv", "report": "out/report.html",
    "images": "rebuilt.npy", "copy": "copy.zarr", "graph": "graph.zarr",
}  # fmt: skip
# Settings by short names.
WORDS = {
    "scores": "output.transform=true", "table": "output.scores=table.csv", "report": "output.report=true",
    "images": "output.images=rebuilt.npy", "copy": "output.collection=copy.zarr", "graph": "output.graph=graph.zarr",
    "k": "model.n_components", "whiten": "output.whiten=true", "update": "update={enabled: true}",
    "by-model": "output.n_components",
}  # fmt: skip
# Kills the process of a run after it has recorded that an output begins, or has saved a checkpoint of it, or before it
# records that it is complete.
KILLED = """
import os, signal, sys

from streampca.cli.commands import main
from streampca.cli.run_record import Record
from streampca.execution.checkpoint import CheckpointFolder

moment, output = sys.argv[1:3]
del sys.argv[1:3]
original = getattr(Record, moment, None)

def killed(self, path, *others):
    is_last = output == (path if moment == "begin" else path[0])
    if moment == "begin" or not is_last:
        original(self, path, *others)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)

def killed_after(self, *others):
    save(self, *others)
    if self.folder.startswith(output):
        os.kill(os.getpid(), signal.SIGKILL)

save = CheckpointFolder._save
if moment == "checkpoint":
    CheckpointFolder._save = killed_after
else:
    setattr(Record, moment, killed)
main()
"""
ROWS = 40  # samples of each file
FATES = {"+": "to write", "~": "to replace", "^": "to update", "": "stands"}

SEQUENCES = {
    # -- outputs added and left out
    "the same run again": ["scores => +model +scores", "scores =>"],
    "scores later": ["=> +model", "scores => +scores", "=>"],
    "a report later": ["scores => +model +scores",
                       "scores report => +report",
                       "report =>"],
    "a table in place of the scores, and back": [
        "scores => +model +scores", "table => +table",
        "scores =>", "table =>"],
    "all outputs, one by one": [
        "=> +model", "scores => +scores", "scores images => +images",
        "scores images copy => +copy",
        "scores images copy graph => +graph",
        "scores images copy graph report => +report",
        "scores images copy graph report =>"],
    "scores beside a copy": ["copy => +model +copy", "scores copy => +scores"],
    "a graph later": ["scores => +model +scores", "scores graph => +graph", "scores graph =>"],
    # -- settings changed
    "whitened": ["scores => +model +scores", "scores whiten => ~scores",
                 "scores whiten =>", "scores => ~scores"],
    "more components": ["scores => +model +scores", "scores k=4 => ~model ~scores"],
    "fewer components": ["scores => +model +scores", "scores k=2 => ~model ~scores",
                         "scores k=2 =>"],
    "fewer components read nothing for the model": ["k=6 => +model", "k=2 => ~model", "k=2 =>"],
    "back to more components": ["k=4 => +model", "k=2 => ~model", "k=4 => ~model"],
    "another seed": ["model.random_state=1 => +model", "model.random_state=2 => ~model"],
    "another method": ["=> +model", "model.method=dual => ~model", "model.method=dual =>"],
    "another tolerance": ["=> +model", "model.tol=1e-6 => ~model"],
    "a preparation": ["scores copy => +model +scores +copy",
                      "scores copy prepare.bin=2 => ~model ~scores ~copy",
                      "scores copy prepare.bin=2 =>"],
    "samples left out": ["scores => +model +scores",
                         "scores collection.samples=[0,60] => ~model ~scores"],
    "another source": ["scores => +model +scores",
                       "scores collection.source=other.npy => ~model ~scores"],
    "another kind": ["scores => +model +scores",
                     "scores model.kind=kernel-pca model.kernel=rbf => ~model ~scores"],
    "images of fewer components": ["images => +model +images", "images by-model=2 => ~images"],
    "a report of other figures": ["report => +model +report",
                                   "report output.figure_format=svg => ~report",
                                   "report output.figure_format=svg output.figure_width=85 => ~report"],
    "a report of fewer samples": ["report => +model +report",
                                  "report output.examine=50 => ~report"],
    "another mask at the same path": ["scores prepare.mask=mask.npy => +model +scores", "do mask",
                                      "scores prepare.mask=mask.npy => ~model ~scores",
                                      "scores prepare.mask=mask.npy =>"],
    "another scale at the same path": ["copy prepare.scale=scale.npy => +model +copy", "do scale",
                                       "copy prepare.scale=scale.npy => ~model ~copy",
                                       "copy prepare.scale=scale.npy =>"],
    "neighbours": ["scores graph => +model +scores +graph",
                   "scores graph neighbors.n_neighbors=4 => ~graph"],
    "how it is run decides nothing": ["scores => +model +scores",
                                      "scores run.memory=200MiB run.checkpoint=false =>"],
    "everything anew": ["scores => +model +scores",
                        "scores run.overwrite=true => ~model ~scores"],
    # -- sources that grow and change
    "grown without update": ["scores => +model +scores", "do grow",
                             "scores => refused: 40 samples were added to",
                             "scores run.overwrite=true => ~model ~scores"],
    "grown with update": ["scores update => +model +scores", "do grow",
                          "scores update => ^model ~scores",
                          "scores update =>"],
    "update that finds nothing new": ["update => +model", "update =>"],
    "grown twice": ["update => +model", "do grow", "update => ^model", "do grow", "update => ^model"],
    "grown and other settings": ["update => +model", "do grow", "update k=2 => ~model"],
    "grown at the front": ["scores => +model +scores", "do insert",
                           "scores update => refused: was fitted before images/00.npy was added",
                           "scores run.overwrite=true => ~model ~scores"],
    "a file that changed": ["scores => +model +scores", "do change", "scores => refused: 1.npy has changed",
                            "scores update => refused: 1.npy has changed",
                            "scores run.overwrite=true => ~model ~scores"],
    "a file that is gone": ["scores => +model +scores", "do shrink", "scores => refused: out/model.zarr was fitted"],
    # -- outputs lost, and outputs of others
    "scores removed": ["scores => +model +scores", "do remove out/scores.zarr",
                       "scores => +scores"],
    "model removed": ["scores => +model +scores", "do remove out/model.zarr",
                      "scores => +model ~scores"],
    "a figure removed": ["report => +model +report", "do remove out/figures/scree.pdf",
                          "report => ~report"],
    "a model spoiled": ["scores => +model +scores", "do spoil out/model.zarr",
                        "scores => refused: out/model.zarr exists and is not a model written by streampca"],
    "a table that somebody wrote": ["do foreign table.csv", "table => refused: table.csv exists and is not scores",
                                    "scores => +model +scores"],
    "a table that somebody changed": [
        "table => +model +table", "do foreign table.csv", "table => refused: table.csv exists and is not scores",
        "table run.overwrite=true => refused: table.csv exists and is not scores",
        "do remove table.csv", "table => +table"],
    "a model that somebody rotated": ["scores => +model +scores", "do rotate out/model.zarr",
                                      "scores => refused: out/model.zarr was fitted with",
                                      "scores run.overwrite=true => ~model ~scores"],
    "scores of another model": ["scores => +model +scores", "do foreign out/scores.zarr",
                                "scores => refused: out/scores.zarr exists already",
                                "scores run.overwrite=true => ~model ~scores"],
    "a model that somebody put there": ["do foreign model", "=> refused: out/model.zarr was fitted with"],
    "a first run that is refused": ["k=500 => refused: n_components=500 exceeds",
                                    "copy prepare.mask=mask.npy => refused: a copy of images/*.npy holds whole images",
                                    "=> +model"],
    "a record lost": ["scores => +model +scores", "do remove out/run.json",
                      "scores => refused: out/scores.zarr exists already", "=>"],
    "all of it moved": ["table => +model +table", "do move", "table =>"],
    # -- runs that were killed
    "killed as the model begins": ["killed at begin out/model.zarr: scores", "scores => +model +scores"],
    "killed with the model written": ["killed at finish out/model.zarr: scores", "scores => +scores"],
    "killed with the scores written": ["killed at finish out/scores.zarr: scores", "scores =>"],
    "killed as the model is replaced": ["scores => +model +scores", "killed at begin out/model.zarr: k=4 scores",
                                        "scores k=4 => ~model ~scores"],
    "killed with the model replaced": ["scores => +model +scores", "killed at finish out/model.zarr: k=4 scores",
                                       "scores k=4 => ~scores"],
    "killed as the scores are replaced": ["scores => +model +scores", "killed at begin out/scores.zarr: scores whiten",
                                          "scores whiten => ~scores", "scores whiten =>"],
    "killed with the scores replaced": ["scores => +model +scores", "killed at finish out/scores.zarr: scores whiten",
                                        "scores whiten =>", "scores => ~scores"],
    "scores by somebody after a kill": ["killed at finish out/scores.zarr: scores", "do foreign out/scores.zarr",
                                        "scores => refused: out/scores.zarr exists already"],
    "scores by somebody before any": ["killed at begin out/scores.zarr: scores", "do foreign out/scores.zarr",
                                     "scores => refused: out/scores.zarr exists already"],
    "killed amid the model": ["killed at checkpoint out/model.zarr: run.checkpoint_every=0 run.memory=14MiB",
                                              "k=2 => +model"],
    "killed amid the scores": ["=> +model",
                                               "killed at checkpoint out/scores.zarr: scores run.checkpoint_every=0",
                                               "scores whiten => +scores"],
    "killed as the model is updated": ["scores update => +model +scores", "do grow",
                                       "killed at finish out/model.zarr: scores update", "scores update => ~scores"],
}  # fmt: skip


@pytest.fixture
def project(here):
    """Folder with a source of three files and a run file."""
    os.mkdir("images")
    for number in range(3):
        _add(number)
    np.save("other.npy", pictures(ROWS, seed=77))
    _do("mask")
    _do("scale")
    Path("run.yaml").write_text(RUN)
    return here


def _add(number: int, seed: int = 0) -> None:
    np.save(f"images/{number}.npy", pictures(ROWS, seed=number + seed))


def _do(action: str, *paths: str) -> None:
    """Carry out what happens between two runs."""
    number = len(os.listdir("images"))
    match action:
        case "grow":
            _add(number)
        case "insert":
            np.save("images/00.npy", pictures(ROWS, seed=number))
        case "shrink":
            os.unlink(f"images/{number - 1}.npy")
        case "change":
            _add(1, seed=100)
            os.utime("images/1.npy", (1, 1))
        case "mask" | "scale":  # one row fewer, or heavier, than before
            shape = np.load("other.npy").shape[1:]
            values = (
                np.load(f"{action}.npy")
                if os.path.exists(f"{action}.npy")
                else np.ones(shape, bool if action == "mask" else float)
            )
            values[int(np.sum(values[:, 0] != 1))] = 0 if action == "mask" else 2
            np.save(f"{action}.npy", values)
        case "remove":
            shutil.rmtree(paths[0]) if os.path.isdir(paths[0]) else os.unlink(paths[0])
        case "spoil":
            os.unlink(f"{paths[0]}/zarr.json")
        case "rotate":
            streampca.load(paths[0]).rotate().save(paths[0], overwrite=True)
        case "foreign" if paths[0] == "model":
            os.mkdir("out")
            streampca.fit("other.npy", n_components=2, output="out/model.zarr")
        case "foreign" if paths[0].endswith(".zarr"):
            streampca.fit("other.npy", n_components=2).write_scores(
                "other.npy", paths[0], run=streampca.Run(overwrite=True)
            )
        case "foreign":
            Path(paths[0]).write_text("sample,mine\n0,1\n")
        case "move":
            shutil.copytree(".", "../elsewhere")
            os.chdir("../elsewhere")


def _states() -> dict[str, tuple[int, int]]:
    """Return inode and time of every output that exists."""
    marks = {name: f"{path}/zarr.json" if path.endswith(".zarr") else path for name, path in PATHS.items()}
    stats = {name: os.stat(mark) for name, mark in marks.items() if os.path.exists(mark)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def _settings(words: str) -> list[str]:
    pairs = [word.partition("=") for word in words.split()]
    texts = [WORDS.get(name, name) + equals + value for name, equals, value in pairs]
    return [word for text in texts for word in ("--set", text)]


def _take(step: str, rows: list[int]) -> None:
    """Carry out a step, and compare what it does with what is expected and with what its dry run says."""
    words, _, expected = step.partition("=>")
    if words.startswith("do "):
        _do(*words.split()[1:])
        return
    if words.startswith("killed at "):
        moment, output = words.split()[2:4]
        done = python(KILLED, moment, output.rstrip(":"), "run", "run.yaml", *_settings(words.partition(": ")[2]), "-q")
        assert done.returncode == -signal.SIGKILL, done.stderr
        return
    settings, before, is_new = _settings(words), _states(), not os.path.exists("out")
    asked = {"model", *({*words.split()} & {*PATHS})}
    foretold = typed("run", "run.yaml", *settings, "--dry-run")
    assert sum(rows) == 0
    assert _states() == before
    said = typed("run", "run.yaml", *settings, "-q")
    after = _states()
    if "refused:" in expected:
        refusal = expected.partition("refused: ")[2]
        assert said.code in (1, 2)
        assert refusal in said.err, said.err
        assert (foretold.code, foretold.err) == (said.code, said.err)
        assert after == before
        assert is_new == (not os.path.exists("out"))
        assert sum(rows) == 0
        return
    assert said.code == 0, said.err
    marks = {mark[1:]: mark[0] for mark in expected.split()}
    assert {name for name in PATHS if after.get(name) != before.get(name)} == {*marks}
    for name in asked:
        fate, path = marks.get(name, ""), PATHS[name]
        assert re.search(rf"^{FATES[fate]} +{re.escape(path)}", foretold.out, re.MULTILINE), foretold.out
        assert (f"kept {path}\n" in said.out, f"wrote {path}\n" in said.out) == (not fate, bool(fate))
    # Without a new model each output takes one pass over the source; a report looks at it twice, a graph at scores.
    if "model" not in marks or "the first" in said.err:
        passes = {"report": 2, "graph": 0, "model": 0}
        assert sum(rows) <= sum(passes.get(name, 1) for name in marks) * ROWS * len(os.listdir("images"))


SLOW = [name for name, steps in SEQUENCES.items() if any(step.startswith("killed") for step in steps)]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SEQUENCES])
def test_each_run_does_what_is_missing(name, project, undrawn, monkeypatch):
    rows, read_into = [], FlatArray.read_into

    def counted(self, box, out):
        rows.append(len(out))
        return read_into(self, box, out)

    monkeypatch.setattr(FlatArray, "read_into", counted)
    for step in SEQUENCES[name]:
        rows.clear()
        _take(step, rows)


def test_two_runs_of_a_directory_at_once(project, monkeypatch):
    """The second is refused, and keeps what the first wrote when that is over."""
    write_scores, said = PCAModel.write_scores, []

    def meanwhile(*args, **options):
        with ThreadPoolExecutor() as pool:  # locks are those of a thread
            pool.submit(lambda: said.append(_refusal_of_a_run())).result()
        return write_scores(*args, **options)

    monkeypatch.setattr(PCAModel, "write_scores", meanwhile)
    succeeded("run", "run.yaml", *_settings("scores"), "-q")
    assert "out/model.zarr is being written by process" in said[0]
    assert "kept out/scores.zarr\n" in succeeded("run", "run.yaml", *_settings("scores"), "-q")


def _refusal_of_a_run() -> str:
    with pytest.raises(OutputError) as refusal:
        execute(load_run("run.yaml"))
    return str(refusal.value)


def test_a_run_on_a_disk_that_fills(project, disk, monkeypatch):
    """Outputs that were written stand, and the others follow once there is room."""
    np.save("images/0.npy", pictures(ROWS, 100, 100))
    for number in (1, 2):
        os.unlink(f"images/{number}.npy")
    Path("run.yaml").write_text(RUN.replace("directory: out", "directory: disk/out, images: disk/rebuilt.npy"))
    write_reconstruction = PCAModel.write_reconstruction

    def on_a_full_disk(*args, **options):
        Path("disk/filler").write_bytes(b"\0" * (3 << 20))
        return write_reconstruction(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(PCAModel, "write_reconstruction", on_a_full_disk)
        assert "disk/rebuilt.npy" in refused("run", "run.yaml", *_settings("scores"))
    os.unlink("disk/filler")
    said = succeeded("run", "run.yaml", "-q", *_settings("scores"))
    assert all(f"kept disk/out/{name}.zarr\n" in said for name in ("model", "scores"))
    assert "wrote disk/rebuilt.npy\n" in said
