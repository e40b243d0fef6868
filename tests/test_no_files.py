"""What is no file, where one is read: pipes, sockets, devices, and links to them, are refused at once, in one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile
import zarr
from shell import diagonal, pictures, python

import streampca
from streampca.storage import disk
from streampca.units import MIB

SECONDS, BUDGET = 5, 64  # MiB

# Each case in a process of its own: a pipe that is waited for holds it for ever.
USED = """
import json, signal, sys
import numpy as np
import streampca
from streampca.cli.commands import main
from streampca.machine import PeakMeter

words, seconds = sys.argv[1:-1], int(sys.argv[-1])
streampca.fit(np.random.default_rng(0).normal(size=(20, 4, 4)), n_components=2)  # what this imports is not counted
meter = PeakMeter()
signal.alarm(seconds)
sys.argv = ["streampca", *words]
try:
    main()
    code = 0
except SystemExit as stopped:
    code = stopped.code or 0
print(json.dumps({"code": code, "peak": meter.peak()}))
"""


def pipe(path):
    os.mkfifo(path)


def bound_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


KINDS = {
    "pipe": pipe,
    "link to a pipe": lambda path: (os.mkfifo("a-pipe"), path.symlink_to(os.path.abspath("a-pipe"))),
    "socket": bound_socket,
    "endless": lambda path: path.symlink_to("/dev/zero"),
}


def replaced(path, kind):
    """Put something else in the place of a file."""
    path = Path(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    KINDS[kind](path)


def zarr_of(kind, name, **options):
    options = {"chunks": (20, 8, 7), "compressors": None} | options
    zarr.create_array("x.zarr", data=pictures(60), **options)
    replaced(f"x.zarr/{name}", kind)


def joined(kind):
    Path("many").mkdir()
    for number in range(3):
        np.save(f"many/{number}.npy", pictures())
    replaced("many/1.npy", kind)


def linked_hdf5(kind):
    with h5py.File("x.h5", "w") as file:
        file["x"] = h5py.ExternalLink("other.h5", "x")
    replaced("other.h5", kind)


def chained_hdf5(kind):
    """A soft link to a link to a file in which there is a link to no file."""
    with h5py.File("x.h5", "w") as file:
        file["x"] = h5py.SoftLink("/y/z")
        file["y"] = h5py.ExternalLink("middle.h5", "/")
    with h5py.File("middle.h5", "w") as file:
        file["z"] = h5py.ExternalLink("other.h5", "x")
    replaced("other.h5", kind)


def coordinates_hdf5(kind):
    with h5py.File("x.h5", "w") as file:
        file["x"] = pictures(60)
        file["x"].attrs["coordinates"] = "lat"
        for axis, label in zip(file["x"].dims, "tyx", strict=True):
            axis.label = label
        file["lat"] = h5py.ExternalLink("other.h5", "x")
    replaced("other.h5", kind)


def virtual_hdf5(kind):
    layout = h5py.VirtualLayout((60, 8, 7), "u1")
    layout[:] = h5py.VirtualSource("other.h5", "x", (60, 8, 7))
    with h5py.File("x.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    replaced("other.h5", kind)


def numbered_hdf5(kind):
    """A virtual dataset of as many files as there are: 0.h5, 1.h5 ..."""
    for number in range(3):
        with h5py.File(f"{number}.h5", "w") as file:
            file["x"] = pictures(20)
    block, unlimited = (20, 8, 7), h5py.h5s.UNLIMITED
    space = h5py.h5s.create_simple((60, 8, 7), (unlimited, 8, 7))
    space.select_hyperslab((0, 0, 0), (unlimited, 1, 1), stride=block, block=block)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_virtual(space, b"%b.h5", b"x", h5py.h5s.create_simple(block))
    with h5py.File("x.h5", "w") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_UINT8, space, plist)
    replaced("1.h5", kind)


def ome_series(kind, quote="'"):
    """An OME file that says its pages are in another one."""
    tifffile.imwrite("x.ome.tif", pictures(3), ome=True, metadata={"axes": "TYX"})
    with tifffile.TiffFile("x.ome.tif") as file:
        text = file.ome_metadata
    data = f"<UUID FileName={quote}other.ome.tif{quote}>urn:uuid:0</UUID></TiffData>"
    text, count = re.subn(r"(<TiffData[^>]*)/>", rf"\1>{data}", text)
    assert count == 1
    how = {"photometric": "minisblack", "metadata": None}
    tifffile.imwrite("x.ome.tif", pictures(3), description=text.encode(), **how)
    replaced("other.ome.tif", kind)


def model(kind, name):
    streampca.fit(pictures(), n_components=2).save("m.zarr")
    shutil.rmtree(f"m.zarr/{name}", ignore_errors=True)
    replaced(f"m.zarr/{name}", kind)


def listed(kind):
    Path("list.txt").write_text("0.npy\n1.npy\n")
    np.save("0.npy", pictures())
    replaced("1.npy", kind)


def named_images(kind):
    from PIL import Image

    Path("images").mkdir()
    for number, image in enumerate(pictures(3)):
        Image.fromarray(image).save(f"images/{number}.png")
    replaced("images/1.png", kind)
    if kind != "endless" and not os.path.islink("images/1.png"):
        os.rename("images/1.png", "no-image")
        os.symlink(os.path.abspath("no-image"), "images/1.png")


def checkpoint(kind):
    replaced("out.zarr.streampca-checkpoint/run.a", kind)


def run_record(kind):
    np.save("x.npy", pictures(200))
    Path("run.yaml").write_text("collection: {source: x.npy}\nmodel: {n_components: 2}\noutput: {directory: out}\n")
    Path("out").mkdir()
    Path("out/run.log").touch()
    replaced("out/run.json", kind)


FIT = ["-k", "2", "--memory", f"{BUDGET}MiB", "-q", "-o", "out.zarr"]
COMMANDS = ("run", "inspect", "fit")
# name -> (function that makes it, words of the command, what the line names)
CASES = {
    **{
        f"{ending}, source": (lambda kind, ending=ending: replaced(f"x{ending}", kind), [f"x{ending}"], f"x{ending}")
        for ending in (".npy", ".npz", ".h5", ".nc", ".fits", ".tif", ".png", ".gz", ".zarr", ".mat", "-idx3-ubyte", "")
    },
    "zarr, chunk": (lambda kind: zarr_of(kind, "c/1/0/0"), ["x.zarr"], "x.zarr"),
    "zarr, zstd chunk": (lambda kind: zarr_of(kind, "c/1/0/0", compressors="auto"), ["x.zarr"], "x.zarr"),
    "zarr, shard": (lambda kind: zarr_of(kind, "c/0/0/0", shards=(40, 8, 7)), ["x.zarr"], "x.zarr"),
    "zarr 2, chunk": (lambda kind: zarr_of(kind, "1.0.0", zarr_format=2), ["x.zarr"], "x.zarr"),
    "zarr 2, attributes": (lambda kind: zarr_of(kind, ".zattrs", zarr_format=2), ["x.zarr"], "x.zarr"),
    "zarr, metadata": (lambda kind: zarr_of(kind, "zarr.json"), ["x.zarr"], "x.zarr"),
    "glob": (joined, ["many/*.npy"], "many/1.npy"),
    "folder of arrays": (joined, ["many"], "many/1.npy"),
    "two sources": (joined, ["many/0.npy", "many/1.npy"], "many/1.npy"),
    "folder of images": (named_images, ["images"], "images/1.png"),
    "list": (lambda kind: replaced("list.txt", kind), ["@list.txt"], "list.txt"),
    "in a list": (listed, ["@list.txt"], "1.npy"),
    "table of paths": (lambda kind: replaced("t.csv", kind), ["t.csv:path"], "t.csv"),
    "hdf5, external link": (linked_hdf5, ["x.h5", "--key", "x"], "other.h5"),
    "hdf5, links": (chained_hdf5, ["x.h5", "--key", "x"], "other.h5"),
    "hdf5, links, no key": (chained_hdf5, ["x.h5"], "other.h5"),
    "hdf5, coordinate": (coordinates_hdf5, ["x.h5", "--key", "x"], "other.h5"),
    "hdf5, virtual by a pattern": (numbered_hdf5, ["x.h5"], "1.h5"),
    "hdf5, virtual": (virtual_hdf5, ["x.h5"], "other.h5"),
    "tiff, OME series": (ome_series, ["x.ome.tif"], "other.ome.tif"),
    "labels, npy": (lambda kind: replaced("y.npy", kind), ["GOOD", "--labels", "y.npy"], "y.npy"),
    "labels, npz": (lambda kind: replaced("y.npz", kind), ["GOOD", "--labels", "y.npz:y"], "y.npz"),
    "labels, csv": (lambda kind: replaced("y.csv", kind), ["GOOD", "--labels", "y.csv:y"], "y.csv"),
    "labels, other": (lambda kind: replaced("y", kind), ["GOOD", "--labels", "y"], "y"),
    "sample weights": (lambda kind: replaced("w.npy", kind), ["GOOD", "--sample-weight", "w.npy"], "w.npy"),
    "mask, npy": (lambda kind: replaced("mask.npy", kind), ["GOOD", "--mask", "mask.npy"], "mask.npy"),
    "mask, png": (lambda kind: replaced("mask.png", kind), ["GOOD", "--mask", "mask.png"], "mask.png"),
    "mask, fits": (lambda kind: replaced("mask.fits", kind), ["GOOD", "--mask", "mask.fits"], "mask.fits"),
    "scale": (lambda kind: replaced("s.npy", kind), ["GOOD", "--scale", "s.npy"], "s.npy"),
    "run file": (lambda kind: replaced("run.yaml", kind), ["run", "run.yaml"], "run.yaml"),
    "model": (lambda kind: replaced("m.zarr", kind), ["inspect", "m.zarr"], "m.zarr"),
    "model, metadata": (lambda kind: model(kind, "zarr.json"), ["inspect", "m.zarr"], "m.zarr"),
    "model, chunk": (lambda kind: model(kind, "mean/c/0/0"), ["inspect", "m.zarr"], "m.zarr"),
    "graph": (
        lambda kind: replaced("g.zarr/zarr.json", kind),
        ["fit", "GOOD", "--kind", "isomap", "--graph", "g.zarr", "-o", "e"],
        "g.zarr",
    ),
    "output": (lambda kind: replaced("out.zarr/zarr.json", kind), ["GOOD", "--overwrite"], "out.zarr"),
}  # fmt: skip
# Where what was saved is not used, the run goes on without it.
GOES_ON = {
    "checkpoint": (checkpoint, ["fit", "GOOD", "-k", "2", "-q", "-o", "out.zarr"]),
    "run record": (run_record, ["run", "run.yaml", "-q"]),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("good.npy", pictures(60))


def used(words):
    """Have a command use something, in a process of its own; return its exit code, what it said, and its peak."""
    command = [word.replace("GOOD", "good.npy") for word in words]
    done = python(USED, *command, SECONDS)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-1000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["peak"] is None or found["peak"] < BUDGET * MIB
    return found["code"], done.stderr


@pytest.mark.every(7)
@pytest.mark.parametrize(("name", "kind"), diagonal(CASES, list(KINDS)))
def test_what_is_no_file_is_refused_at_once(here, name, kind):
    make, words, named = CASES[name]
    make(kind)
    code, said = used(words if words[0] in COMMANDS else ["fit", *words, *FIT])
    assert code in (1, 2), said
    line = said.splitlines()[-1]  # that a chunk is missing may have been said before
    assert line.startswith("streampca: ")
    assert named in line


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GOES_ON)
def test_what_was_saved_and_is_no_file_is_not_waited_for(here, name, kind):
    make, words = GOES_ON[name]
    make(kind)
    code, said = used(words)
    assert code == 0, said


@pytest.mark.parametrize("labels", ["labels.npy", "labels.csv", "labels.csv:x", "labels.npz:x", "labels.idx"])
def test_labels_from_a_pipe_are_refused_with_a_remedy_that_works(here, labels):
    path = labels.partition(":")[0]
    os.mkfifo(path)
    with pytest.raises(streampca.errors.SourceError) as error:
        streampca.open_collection("good.npy", labels=labels)
    line = f"{path} cannot be read: it is a pipe, not a file; save what comes from there as a file, and give that."
    assert str(error.value) == line
    np.save("saved.npy", np.arange(60))
    assert streampca.open_collection("good.npy", labels="saved.npy").labels[-1] == 59


def test_a_store_whose_metadata_are_a_pipe_is_refused_with_a_remedy_that_works(here):
    streampca.fit("good.npy", n_components=2, output="m.zarr")
    shutil.copytree("m.zarr", "other.zarr")
    replaced("m.zarr/zarr.json", "pipe")
    known = (
        r"^m\.zarr is not a model: its zarr\.json cannot be read: it is a pipe, not a file\. Give a folder written by"
    )
    with pytest.raises(streampca.errors.ModelError, match=known):
        streampca.load("m.zarr")
    unknown = r"^m\.zarr/zarr\.json cannot be read: it is a pipe, not a file; copy the store again\.$"
    with pytest.raises(streampca.errors.SourceError, match=unknown):
        streampca.open_collection("m.zarr")
    shutil.rmtree("m.zarr")
    shutil.copytree("other.zarr", "m.zarr")
    assert streampca.load("m.zarr").n_components == 2


def test_pipes_in_a_folder_are_no_samples(here):
    """Only a link that is called as an image is meant as one."""
    named_images("pipe")
    os.remove("images/1.png")
    os.mkfifo("images/1.png")
    assert streampca.open_collection("images").n_samples == 2


def test_a_chunk_that_grows_is_read_to_its_limit(here, monkeypatch):
    """The size that was asked for may be out of date; the endless device says that it has none."""
    zarr.create_array("x.zarr", data=pictures(60), chunks=(20, 8, 7), compressors=None)
    replaced("x.zarr/c/1/0/0", "endless")
    monkeypatch.setattr(disk, "check_regular", lambda path, state=None: None)
    with pytest.raises(streampca.errors.SourceError, match=r"x\.zarr"):
        streampca.open_collection("x.zarr").read(slice(0, 60))
