"""Links planted where the package writes: what they lead to stays as it is, and the run is refused or goes round them.

Every name that can be foretold is tried: locks, partial and replaced outputs, scratch copies, checkpoints, records.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import socket
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import zarr
from shell import diagonal, pictures, refused, succeeded, typed

import streampca
from streampca.errors import OutputError
from streampca.execution.checkpoint_file import CheckpointFile
from streampca.storage import locks as locking
from streampca.storage.locks import checkpoint_lock, output_lock

PRECIOUS = b"precious " * 4000  # longer than what would be written, so that nothing of it is cut off unseen
SECONDS = 5.0

# name -> (words of the command, output)
COMMANDS = {
    "fit": ("fit x.npy -k 2 -q -o OUT", "out.zarr"),
    "update": ("fit y.npy --update m.zarr -q -o OUT", "out.zarr"),
    "embed": ("fit x.npy --kind isomap --n-neighbors 5 -q -o OUT", "out.zarr"),
    "merge": ("merge m.zarr n.zarr -q -o OUT", "out.zarr"),
    "transform": ("transform m.zarr x.npy -q -o OUT", "out.zarr"),
    "transform, npy": ("transform m.zarr x.npy -q -o OUT", "out.npy"),
    "transform, csv": ("transform m.zarr x.npy -q -o OUT", "out.csv"),
    "transform, parquet": ("transform m.zarr x.npy -q -o OUT", "out.parquet"),
    "reconstruct": ("reconstruct m.zarr x.npy -q -o OUT", "out.tif"),
    "neighbors": ("neighbors s.npy --n-neighbors 3 -q -o OUT", "out.zarr"),
    "report": ("report m.zarr --collection x.npy -q -o OUT", "out.html"),
    "copy": ("copy x.npy -q -o OUT", "out.zarr"),
    "export": ("export m.zarr -o OUT", "out.tif"),
    "run": ("run run.yaml -q", "out"),
}
# What is planted: a function of the name and of the precious file.
KINDS = {
    "link": lambda name, precious: name.symlink_to(precious),
    "hard link": lambda name, precious: name.hardlink_to(precious),
    "link to a folder": lambda name, precious: name.symlink_to(precious.parent),
}
BESIDE = ["{out}.streampca-partial", "{out}.streampca-replaced", "{out}.streampca-scratch"]
INSIDE = ["at-work.lock", "run.a", "run.b", "stages.streampca-scratch", "scatter-0.a", "rows-0.a", "transform-0.a"]
PLACES = [*BESIDE, *(f"{{out}}.streampca-checkpoint/{name}" for name in INSIDE)]
RECORDS = [
    "run.log",
    "config.yaml",
    "run.json",
    "files.npz",
    "model.zarr.streampca-lock",
    "scores.zarr.streampca-partial",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    images = pictures(200)
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", images[::-1])
    for name, some in (("m", images), ("n", images[::-1] // 2)):
        streampca.fit(some, n_components=2).save(folder / f"{name}.zarr")
    np.save(folder / "s.npy", np.random.default_rng(0).normal(size=(200, 3)))
    (folder / "run.yaml").write_text(
        "collection: {source: x.npy}\nmodel: {n_components: 2}\noutput: {directory: out, transform: true}\n"
    )
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A folder of its own with what commands read, and a precious file in another."""
    folder = tmp_path / "work"
    folder.mkdir()
    for path in made.iterdir():
        (folder / path.name).symlink_to(path)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def precious(tmp_path):
    path = tmp_path / "elsewhere" / "precious.txt"
    path.parent.mkdir()
    path.write_bytes(PRECIOUS)
    return path


def seen(precious):
    """All that is known of the precious file and of its folder, but for the number of its names."""
    state = precious.stat()
    return precious.read_bytes(), state.st_mode, state.st_mtime_ns, sorted(os.listdir(precious.parent))


def tried(name, place, kind, precious):
    """Plant something, and carry out a command; nothing of what it leads to may change."""
    words, out = COMMANDS[name]
    path = Path(place.format(out=out))
    path.parent.mkdir(exist_ok=True)
    KINDS[kind](path, precious)
    before, began = seen(precious), time.monotonic()
    said = typed(*words.replace("OUT", out).split())
    assert seen(precious) == before
    assert time.monotonic() - began < SECONDS
    if said.code:
        assert f"/{out}" in f"/{said.complaint}"
    else:
        assert Path(out).exists()
    return said


ROWS = [(name, kind) for name in COMMANDS for kind in KINDS]


@pytest.mark.every(7)
@pytest.mark.parametrize(("row", "place"), diagonal(ROWS, PLACES))
def test_what_a_planted_link_leads_to_stays(here, precious, row, place, undrawn):
    name, kind = row
    if name == "run":
        place = place.replace("{out}", "out/model.zarr")
        Path("out").mkdir()
    tried(name, place, kind, precious)


@pytest.mark.every(5)
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_has_the_name_of_a_lock_ends_every_command(here, precious, name, kind, undrawn):
    words, out = COMMANDS[name]
    place = "out/model.zarr.streampca-lock" if name == "run" else f"{out}.streampca-lock"
    assert f"{place} cannot be taken for a lock: " in tried(name, place, kind, precious).complaint
    Path(place).unlink()  # the remedy
    assert not typed(*words.replace("OUT", out).split()).code


@pytest.mark.every(5)
@pytest.mark.parametrize("place", RECORDS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_link_in_a_run_directory_leads_to_stays(here, precious, place, kind):
    Path("out").mkdir()
    if place != "run.log":
        Path("out/run.log").write_text("")
    tried("run", f"out/{place}", kind, precious)


def test_a_log_that_is_a_link_is_refused_with_a_remedy_that_works(here, precious):
    Path("out").mkdir()
    said = tried("run", "out/run.log", "link", precious)
    assert said.complaint == (
        "out/run.log is a link, or has other names, and runs append to it; remove it, or choose another directory."
    )
    Path("out/run.log").unlink()
    Path("elsewhere").mkdir()
    Path("out/figures").symlink_to("../elsewhere")
    said = typed("run", "run.yaml", "-q")
    assert said.complaint == (
        "out/figures is a link, and runs write figures into it; remove it, or choose another directory."
    )
    Path("out/figures").unlink()
    assert not typed("run", "run.yaml", "-q").code


# -- locks


def fifo(path):
    os.mkfifo(path)


def bound_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


LOCKS = {
    "link": (lambda path: path.symlink_to(path.parent / "target"), "it is a link"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "it is a link"),
    "loop of links": (lambda path: path.symlink_to(path.name), "it is a link"),
    "link to a device": (lambda path: path.symlink_to("/dev/zero"), "it is a link"),
    "hard link": (lambda path: path.hardlink_to(path.parent / "target"), "the file has other names, too"),
    "hard link to a lock": (lambda path: path.hardlink_to(path.parent / "signed"), "the file has other names, too"),
    "folder": (lambda path: path.mkdir(), "it is a folder"),
    "pipe": (fifo, "it is a pipe, not a file"),
    "socket": (bound_socket, ""),
    "another text": (lambda path: path.write_bytes(b"notes of mine\n"), "it holds something else"),
    "a signature and more": (lambda path: path.write_bytes(b"12 host\nmine"), "it holds something else"),
    "long": (lambda path: path.write_bytes(b"1" * 400 + b" host"), "it holds something else"),
    "bytes": (lambda path: path.write_bytes(bytes(20)), "it holds something else"),
}


@pytest.fixture(params=["flock", "no flock"])
def with_and_without_flock(request, monkeypatch):
    if request.param == "no flock":
        monkeypatch.setattr(locking, "_has_flock", lambda folder: False)


@pytest.mark.parametrize("kind", LOCKS)
@pytest.mark.parametrize(
    "locked", [lambda folder: output_lock(str(folder / "x")), lambda folder: checkpoint_lock(str(folder))]
)
def test_what_is_no_lock_is_refused(tmp_path, monkeypatch, with_and_without_flock, kind, locked):
    monkeypatch.chdir(tmp_path)
    plant, reason = LOCKS[kind]
    Path("target").write_bytes(PRECIOUS)
    Path("signed").write_bytes(b"999999 elsewhere")
    path = tmp_path / (f"x{locking.BESIDE}" if locked(tmp_path).args[0].endswith("x") else locking.LOCK)
    plant(path)
    os.utime(path, (0, 0), follow_symlinks=False)  # as old as that of a holder that died
    began = time.monotonic()
    with (
        pytest.raises(OutputError, match=rf"^{path} cannot be taken for a lock: .*{reason}; remove it"),
        locked(tmp_path),
    ):
        pass
    assert time.monotonic() - began < SECONDS
    assert Path("target").read_bytes() == PRECIOUS
    assert Path("signed").read_bytes() == b"999999 elsewhere"
    assert os.path.lexists(path), "it is for its owner to remove"


@pytest.mark.parametrize("content", [b"", b"999999 elsewhere", b"1 " + b"h" * 253])
def test_the_lock_of_a_process_that_died_is_taken_over(tmp_path, with_and_without_flock, content):
    path = tmp_path / f"x{locking.BESIDE}"
    path.write_bytes(content)
    os.utime(path, (0, 0))
    with output_lock(str(tmp_path / "x")) as lock:
        assert os.pread(lock.handle, 500, 0).startswith(f"{os.getpid()} {socket.gethostname()} ".encode())
    assert not path.exists()


def test_on_a_file_system_that_is_read_only_there_is_no_lock_and_that_is_said(tmp_path, monkeypatch, caplog):
    def read_only(*args, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(locking, "_has_flock", read_only)
    with caplog.at_level(logging.WARNING, "streampca"), output_lock(str(tmp_path / "x")) as lock:
        assert lock.handle is None
    assert caplog.messages == [f"{tmp_path}/x is not locked: its file system is read-only."]


@pytest.mark.parametrize("code", [errno.ELOOP, errno.EACCES, errno.EIO, errno.ENOSPC, errno.ENAMETOOLONG])
def test_whatever_else_keeps_a_lock_from_being_made_ends_the_run(tmp_path, monkeypatch, code):
    def failing(*args, **options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locking, "_has_flock", failing)
    with (
        pytest.raises(OutputError, match=f"could not be written: {os.strerror(code)}"),
        output_lock(str(tmp_path / "x")),
    ):
        pass


def test_a_lock_that_was_replaced_by_a_pipe_is_not_waited_for(tmp_path):
    """While its holder was suspended."""
    with output_lock(str(tmp_path / "x")) as lock:
        os.remove(lock.path)
        fifo(lock.path)
        with pytest.raises(OSError, match="it is a pipe, not a file"):
            lock.check()
    assert fcntl.flock is not None


def test_a_lock_whose_file_is_gone_was_taken_over_unless_it_is_a_flock(tmp_path, with_and_without_flock):
    with output_lock(str(tmp_path / "x")) as lock:
        os.remove(lock.path)
        with nullcontext() if lock.is_ours else pytest.raises(OutputError, match="x may have been written by another"):
            lock.check()
        assert lock.is_ours == locking._has_flock(tmp_path)


def own_folder(path):
    path.mkdir()
    (path / "thesis.txt").write_text("thesis")


def other_group(path):
    zarr.create_group(path)


ASIDE = {
    "link to a model": (lambda path: path.symlink_to("m.zarr"), "a link"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "a link"),
    "file": (lambda path: path.write_text("precious"), "not a folder"),
    "pipe": (fifo, "not a folder"),
    "folder": (own_folder, "a folder that streampca has not written"),
    "group": (other_group, "a folder that streampca has not written"),
}


def unread(path):
    """What the file system says of a path, but for the time of the last access."""
    found = os.lstat(path)
    return found.st_mode, found.st_ino, found.st_nlink, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@pytest.mark.parametrize(("name", "planted"), diagonal([name for name in COMMANDS if name != "run"], list(ASIDE)))
def test_only_an_output_that_was_moved_aside_is_recovered(here, undrawn, name, planted):
    words, out = COMMANDS[name]
    aside, (plant, said) = Path(f"{out}.streampca-replaced"), ASIDE[planted]
    plant(aside)
    before = unread(aside)
    line = refused(*words.replace("OUT", out).split())
    assert line == (
        f"{aside} is {said}, and only an output that a run was replacing when it was killed has such a name; remove or "
        "rename it."
    )
    assert unread(aside) == before
    assert not os.path.lexists(out)
    aside.rename("elsewhere")
    succeeded(*words.replace("OUT", out).split())


def test_a_model_that_was_moved_aside_is_recovered(here):
    shutil.copytree("m.zarr", "out.zarr.streampca-replaced")
    assert "exists already" in refused("fit", "x.npy", "-k", 2, "-o", "out.zarr")
    assert streampca.load("out.zarr").n_samples == 200


# -- what is resumed


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_checkpoint_is_saved_beside_what_was_planted(tmp_path, precious, kind):
    for letter in "ab":
        KINDS[kind](tmp_path / f"run.{letter}", precious)
    before, file = seen(precious), CheckpointFile(str(tmp_path), "run")
    for number in range(3):
        file.save({"number": number}, {"x": np.arange(5)})
    assert seen(precious) == before
    assert CheckpointFile(str(tmp_path), "run").load()[0] == {"number": 2}
