"""Models, scores and images at URLs, in fsspec's memory: as in files, or in one line refused."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import zarr
from contract import everything
from PIL import Image
from shell import typed

import streampca
from streampca import events
from streampca.cli.pipeline import execute
from streampca.cli.printing import console, say
from streampca.cli.run_file import make_run
from streampca.cli.run_record import Record
from streampca.cli.terminal.tables import print_fit
from streampca.errors import ModelError, OutputError, RequestError, SourceError
from streampca.execution import packing
from streampca.execution.checkpoint import FOLDER, CheckpointFolder
from streampca.execution.checkpoint_file import CheckpointFile
from streampca.fitting.fit import scratch_name
from streampca.planning.request import Request
from streampca.storage import remote, store_locks
from streampca.storage.free_space import check_free_space
from streampca.storage.lock_holder import Holder
from streampca.storage.locks import checkpoint_lock, output_lock
from streampca.storage.outputs import group_attribute, staged

fsspec = pytest.importorskip("fsspec", reason="URLs are written with fsspec")
X = np.random.default_rng(3).integers(0, 250, (60, 6, 5)).astype("u2")
MODEL = streampca.fit(X, n_components=2)


@pytest.fixture
def fs():
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def ended(*_):
    raise KeyboardInterrupt


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def content(fs, name):
    """Return what is at a URL, and at a path of this name, each as bytes by name; without the names of both."""
    there = {path.removeprefix(f"/a/{name}"): bytes(fs.cat_file(path)) for path in fs.find(f"/a/{name}")}
    files = [os.path.join(above, file) for above, _, names in os.walk(name) for file in names] or [name]
    here = {path.removeprefix(name): Path(path).read_bytes() for path in files}
    return there, here


WRITTEN = {
    "m.zarr": lambda path, **how: MODEL.save(path, **how),
    "s.zarr": lambda path, **how: MODEL.write_scores(X, path, **how),
    "s.npy": lambda path, **how: MODEL.write_scores(X, path, **how),
    "s.csv": lambda path, **how: MODEL.write_scores(X, path, **how),
    "i.zarr": lambda path, **how: MODEL.write_reconstruction(X, path, **how),
    "i.tif": lambda path, **how: MODEL.write_reconstruction(X, path, **how),
    "c.zarr": lambda path, **how: streampca.copy(X, output=path, **how),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_to_a_url_is_what_is_written_to_a_file(fs, folder, name):
    write, url = WRITTEN[name], f"memory://a/{name}"
    write(name)
    write(url)
    there, here = content(fs, name)
    assert there.keys() == here.keys()
    different = {key for key in here if here[key] != there[key]}
    assert different <= {"/zarr.json", "/components/zarr.json"}, "which hold identities that are given anew"
    with pytest.raises(OutputError, match=rf"^{url} exists already; .* overwrite=True"):
        write(url)
    write(url, overwrite=True)
    assert fs.ls("/a", detail=False) == [f"/a/{name}"]


@pytest.mark.parametrize("name", ["s.zarr", "s.npy", "s.csv", "m.zarr"])
def test_what_another_program_wrote_stays(fs, name):
    fs.pipe_file(f"/a/{name}", b"mine") if name != "m.zarr" else fs.pipe_file("/a/m.zarr/notes.txt", b"mine")
    if name == "s.npy":
        np.save(fs.open("/a/s.npy", "wb"), np.zeros(3, "i4"))
    with pytest.raises(OutputError, match="exists and is not"):
        WRITTEN[name](f"memory://a/{name}", overwrite=True)
    assert len(fs.find("/a")) == 1


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("file:///", "output '/' names no file or folder to write; give one, such as model.zarr."),
        ("memory://", "memory:// names no output in a store; add one, such as memory://folder/name.zarr"),
        ("s3://box/", "s3://box/ names no output in a store; add one, such as s3://box/folder/name.zarr"),
        ("foo://x/m.zarr", "foo://x/m.zarr cannot be opened (ValueError: Protocol not known: foo); check the address"),
    ],
)
def test_a_url_that_no_output_can_have_is_named(folder, url, complaint):
    if url.startswith("s3"):
        pytest.importorskip("s3fs")
    with pytest.raises(OutputError, match="^" + re.escape(complaint)):
        MODEL.save(url)
    assert os.listdir() == []


def test_memory_is_of_one_process(fs, folder):
    MODEL.write_scores(X, "memory://a/s.zarr", workers=2)
    np.testing.assert_array_equal(everything("memory://a/s.zarr"), MODEL.transform(X))
    np.save("x.npy", X)
    said = typed("fit", "x.npy", "-k", 2, "-o", "memory://a/m.zarr", "-q")
    assert (said.code, said.out) == (1, "")
    assert "is in the memory of this process, which ends with the command; give a path" in said.complaint


def test_a_store_that_refuses_to_answer_holds_nothing_of_another_program(fs):
    MODEL.save("memory://a/m.zarr")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs, "cat_file", refuses)
        with pytest.raises(SourceError, match=r"^memory://a/m.zarr cannot be read \(PermissionError: Forbidden\)"):
            group_attribute("memory://a/m.zarr")


@pytest.mark.parametrize("directly", [False, True])
def test_what_fails_leaves_what_was_there(fs, directly):
    MODEL.save("memory://a/m.zarr")
    before = fs.find("/a", detail=True)

    def fails():
        with staged("memory://a/m.zarr", directly=directly) as partial:
            if directly:
                fs.pipe_file(partial.removeprefix("memory:/") + "/x", b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert fs.find("/a", detail=True) == before


def test_an_output_that_has_not_taken_its_place_is_said_and_recovered(fs, monkeypatch):
    def fails(*_):
        raise OSError("down")

    monkeypatch.setattr(fs, "cp_file", fails)
    with pytest.raises(OutputError, match=r"^memory://a/m.zarr cannot be written \(OSError: down\); check that"):
        MODEL.save("memory://a/m.zarr")
    monkeypatch.undo()
    with pytest.raises(ModelError, match=r"^memory://a/m.zarr is not complete: .*\. Wait for its end, or run the same"):
        streampca.load("memory://a/m.zarr")
    with pytest.raises(OutputError, match="exists already"):  # by the remedy
        MODEL.save("memory://a/m.zarr")
    np.testing.assert_array_equal(streampca.load("memory://a/m.zarr").components, MODEL.components)
    assert fs.ls("/a", detail=False) == ["/a/m.zarr"]


def test_a_note_of_a_complete_output_names_what_was_staged_and_nothing_else(fs):
    fs.pipe_file("/a/m.zarr.streampca-complete", b"/../other")
    with pytest.raises(OutputError, match="names nothing that was staged"):
        MODEL.save("memory://a/m.zarr")


@pytest.mark.parametrize("url", ["memory://a/x*.zarr", "memory://run[1]/m.zarr", "memory://a/?.zarr"])
def test_an_output_that_stores_would_take_for_a_glob_is_refused(fs, url):
    MODEL.save("memory://a/xother.zarr")
    with pytest.raises(OutputError, match=r"is a glob; choose an output whose URL has none of \* \? \[ in it"):
        MODEL.save(url, overwrite=True)
    assert fs.ls("/", detail=False) == ["/a"]
    assert fs.ls("/a", detail=False) == ["/a/xother.zarr"]


def test_there_is_no_model_where_none_is_complete(fs):
    for url in ("memory://a/m.zarr", "memory://nowhere"):
        with pytest.raises(ModelError, match=rf"^{url} holds no complete model; give the URL of one"):
            streampca.load(url)


def test_outputs_at_urls_are_apart_from_what_is_read(fs):
    np.save(fs.open("/a/x.npy", "wb"), X)
    source, before = "memory://a/x.npy", fs.cat_file("/a/x.npy")
    fitted = streampca.fit(source, n_components=2)
    fitted.save("memory://a/m.zarr")
    stored, how = streampca.load("memory://a/m.zarr"), {"overwrite": True}
    zarr.create_array("memory://a/x.zarr", data=X)
    handle, zarrs = zarr.open_array("memory://a/x.zarr"), ["memory://a/m.zarr", "memory://a/x.zarr"]
    cases = [
        (lambda: fitted.write_scores(source, source, **how), "is what the run reads"),
        (lambda: fitted.write_scores(X, "memory:///a/y/../x.npy", **how), "is what the model was fitted on"),
        (lambda: stored.write_scores(X, "memory://a/m.zarr/s.npy", **how), "lies in memory://a/m.zarr, which"),
        (lambda: fitted.write_scores([source, source], source, **how), "is what the run reads"),
        (lambda: fitted.write_scores("memory://a/**/*.npy", "memory://a/b/s.npy"), "would become part of"),
        (lambda: fitted.write_scores("memory://a/x.*", "memory://a/x.zarr", **how), "would become part of"),
        (lambda: fitted.write_scores(handle, "memory://a/x.zarr", **how), "is what the run reads"),
        (lambda: streampca.fit(f"{zarrs[0]}/x.npy", n_components=2, output=zarrs[0], **how), "holds memory://a/m"),
        (
            lambda: streampca.fit(X, n_components=2, sample_weight=zarrs[1], output=zarrs[1], **how),
            "is what the run reads",
        ),
    ]
    for call, message in cases:
        with pytest.raises(RequestError, match=message):
            call()
    assert fs.cat_file("/a/x.npy") == before
    fitted.write_scores(source, "memory://a/x.npy.scores.zarr")
    fitted.write_scores("memory://a/x*.npy", "memory://a/s.npy")


def test_passwords_of_output_urls_are_in_nothing_that_is_written_or_printed(fs, folder, capsys):
    np.save("x.npy", X)
    secret = "memory://me:hush@a"  # noqa: S105
    streampca.fit(X, n_components=2, output=f"{secret}/p.zarr")
    stored = streampca.load(f"{secret}/p.zarr")
    stored.write_scores(X, f"{secret}/s.zarr")
    stored.write_scores(X, "s.zarr")
    for model, scores in ((f"{secret}/m.zarr", f"{secret}/m.zarr"), (f"{secret}/m.zarr", f"{secret}/s.npy")):
        run = make_run(
            {"collection": {"source": "x.npy"}, "output": {"directory": "run", "model": model, "scores": scores}}
        )
        with pytest.raises(
            RequestError, match=r"\*\*\*@a/.*(the run file in run would tell|are the same, or)"
        ) as refused:
            execute(run)
        assert "hush" not in str(refused.value)
    assert not Path("run").exists()
    assert events.describe(events.Kept(f"{secret}/m.zarr", "is kept")) == "memory://***@a/m.zarr is kept"
    written = [fs.cat_file(path) for path in fs.find("/")] + [p.read_bytes() for p in Path().rglob("*") if p.is_file()]
    assert not [content for content in written if b"hush" in content]
    say(f"wrote {secret}/m.zarr")
    print_fit(console(), None, None, [f"{secret}/m.zarr"])
    assert capsys.readouterr().out == "wrote memory://***@a/m.zarr\n" * 2


# -- locks


def test_a_url_is_locked_by_one_process(fs, monkeypatch):
    with output_lock("memory://a/m.zarr") as lock:
        lock.check()
        fs.pipe_file("/a/m.zarr.streampca-lock", Holder(7, "elsewhere", 1, "job", 0, "nonce").signature)
        with pytest.raises(OutputError, match=r"process 7 on elsewhere, job job, since 1970-01-01 00:00:01 UTC; wait"):
            lock.check()
    with pytest.raises(OutputError, match="process 7 on elsewhere"):
        MODEL.save("memory://a/m.zarr")
    monkeypatch.setattr(store_locks, "STALE", 0.0)
    MODEL.save("memory://a/m.zarr")
    assert fs.ls("/a", detail=False) == ["/a/m.zarr"]


def test_a_requeued_job_takes_its_lock_over_at_once(fs, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    fs.pipe_file("/a/m.zarr.streampca-lock", Holder(7, "elsewhere", 1, "12", 0, "nonce").signature)
    with pytest.raises(OutputError, match="process 7 on elsewhere, job 12"):
        MODEL.save("memory://a/m.zarr")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    MODEL.save("memory://a/m.zarr")


def test_a_lock_that_was_taken_over_and_removed_is_another_process(fs):
    """The suspended run must not replace what the other one wrote."""

    def suspended():
        with staged("memory://a/s.npy") as partial:
            Path(partial).write_bytes(b"older")
            fs.rm_file("/a/s.npy.streampca-lock")
            MODEL.write_scores(X, "memory://b/s.npy")
            fs.mv("/b/s.npy", "/a/s.npy")

    with pytest.raises(OutputError, match=r"^memory://a/s.npy may have been written by another process, as the lock"):
        suspended()
    np.testing.assert_array_equal(np.load(fs.open("/a/s.npy")), MODEL.transform(X))
    assert fs.ls("/a", detail=False) == ["/a/s.npy"]


def test_a_lock_names_no_object_of_another(fs):
    fs.pipe_file("/a/precious", b"mine")
    fs.pipe_file("/a/m.zarr.streampca-lock", b"7 elsewhere 1 - 0 x/../../precious space")
    lock = store_locks.locked_in_store("memory://a/m.zarr.streampca-lock", "memory://a/m.zarr")
    touched = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_locks, "STALE", 0.0)
        write = fs.pipe_file
        patch.setattr(fs, "pipe_file", lambda path, *args, **how: touched.append(path) or write(path, *args, **how))
        with lock:
            pass
    assert touched
    assert not [path for path in touched if ".." in path or "precious" in path]


def test_what_is_no_lock_stays(fs):
    fs.pipe_file("/a/m.zarr.streampca-lock", b"7 elsewhere 99999999999999999999 - 0 nonce -")
    with pytest.raises(OutputError, match="it holds something else"):
        MODEL.save("memory://a/m.zarr")
    fs.pipe_file("/a/m.zarr.streampca-lock", b"my notes")
    with pytest.raises(OutputError, match="cannot be taken for a lock: it holds something else"):
        MODEL.save("memory://a/m.zarr")


def test_a_store_without_conditional_writes_is_named_once(fs, monkeypatch, caplog):
    write = type(fs).pipe_file
    monkeypatch.setattr(type(fs), "pipe_file", lambda fs, path, value, mode="", **options: write(fs, path, value))
    with caplog.at_level(logging.WARNING, "streampca"):
        MODEL.save("memory://a/m.zarr")
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "memory://a/m.zarr is not locked: its store has no conditional writes"
    ]


# -- checkpoints


def refuses(*_, **__):
    raise PermissionError("Forbidden")


def test_an_object_takes_the_place_of_the_older_one(fs):
    """One that was not sent whole, or is damaged, is passed over."""
    file = CheckpointFile("memory://a/ck", "state")
    for number in range(3):
        file.save({"number": number}, {"x": np.arange(number)})
        assert fs.find("/a") == [f"/a/ck/state.{'ab'[number % 2]}"]
    broken = CheckpointFile("memory://a/ck", "state")
    with pytest.raises(TypeError, match="holds references"):
        broken.save({}, {"x": np.array([{}])})
    about, arrays = CheckpointFile("memory://a/ck", "state").load()
    np.testing.assert_array_equal(arrays["x"], [0, 1])
    assert about == {"number": 2}
    fs.pipe_file("/a/ck/state.a", bytes(fs.cat_file("/a/ck/state.a"))[:-1])
    assert CheckpointFile("memory://a/ck", "state").load() is None


def test_a_store_that_does_not_answer_may_hold_a_checkpoint(fs, monkeypatch):
    """Another run does not take its place."""
    CheckpointFile("memory://a/ck", "run").save({"identity": {}}, {})
    monkeypatch.setattr(fs, "cat_file", refuses)
    with pytest.raises(OutputError, match=r"^memory://a/ck/run.a cannot be read \(PermissionError: Forbidden\)"):
        streampca.fit(X, n_components=2, checkpoint="memory://a/ck")


def test_a_result_is_not_lost_where_its_checkpoint_cannot_be_removed(fs, monkeypatch):
    remove, warned = fs.rm_file, []
    monkeypatch.setattr(fs, "rm_file", lambda path: refuses() if path.endswith("run.a") else remove(path))
    how = {"checkpoint": "memory://me:hush@a/ck", "checkpoint_every": 0.0, "listener": warned.append}
    model = streampca.fit(X, n_components=2, **how)
    np.testing.assert_array_equal(model.components, MODEL.components)
    (said,) = {event.message for event in warned if isinstance(event, events.Warned)}
    assert said.startswith("memory://***@a/ck/run.a cannot be written (PermissionError: Forbidden)")
    assert said.endswith("The checkpoint in memory://***@a/ck is left there; remove it.")
    assert {event.path for event in warned if isinstance(event, events.Checkpoint)} == {"memory://***@a/ck"}


def test_a_folder_of_checkpoints_at_a_url_is_locked_and_apart_from_the_output(fs):
    how = {"n_components": 2, "output": "memory://a/m.zarr"}
    with checkpoint_lock("memory://a/ck"), pytest.raises(OutputError, match=r"^memory://a/ck is being written by"):
        streampca.fit(X, checkpoint="memory://a/ck", **how)
    for inside in ("memory://a/m.zarr", "memory:///a/b/../m.zarr/ck/"):
        with pytest.raises(RequestError, match=r"checkpoint memory://.* is the output memory://a/m.zarr or lies in it"):
            streampca.fit(X, checkpoint=inside, **how)


def test_the_checkpoint_of_a_run_that_died_when_it_was_complete_is_removed(fs, monkeypatch):
    url, clear = "memory://a/m.zarr", CheckpointFolder.clear
    how = {"n_components": 2, "output": url, "checkpoint": url + FOLDER, "checkpoint_every": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "clear", lambda folder: ended() if fs.exists("/a/m.zarr") else clear(folder))
        with pytest.raises(KeyboardInterrupt):
            streampca.fit(X, **how)
    assert fs.exists("/a/m.zarr" + FOLDER)
    with pytest.raises(OutputError, match="exists already"):
        streampca.fit(X, **how)
    assert fs.ls("/a", detail=False) == ["/a/m.zarr"]


def test_an_embedding_resumes_from_a_store(fs, folder, monkeypatch):
    """The components, scores and graph that it has made lie there, too."""
    kind = streampca.Isomap(2, n_neighbors=8, pca_components=5)
    expected, heard, how = streampca.fit(X, kind), [], {"checkpoint": "memory://a/ck", "checkpoint_every": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr("streampca.fitting.embed.embedded", ended)
        with pytest.raises(KeyboardInterrupt):
            streampca.fit(X, kind, **how)
    stages = {path.split("/")[4] for path in fs.find("/a/ck/stages.streampca-scratch")}
    assert stages == {"graph.zarr", "pca.zarr", "scores.npy"}
    resumed = streampca.fit(X, kind, listener=heard.append, **how)
    assert not [event for event in heard if isinstance(event, events.BlockDone) and event.bytes], (
        "nothing is read again"
    )
    np.testing.assert_array_equal(resumed.embedding, expected.embedding)
    assert not fs.find("/a")
    assert not os.listdir()


# -- options


def test_options_of_the_longest_start_of_a_url_hold(fs):
    starts = {"memory://a": 1, "memory://a/deep": 2, "memory://c/": 3}
    for start, number in starts.items():
        streampca.storage_options(start, {"number": number})
    try:
        given = [
            remote.filesystem(f"memory://{name}")[0].storage_options.get("number")
            for name in ("a", "a/x", "a/deep/x", "a/deeper/x", "c/x", "b", "a.another/x", "a-of-another")
        ]
    finally:
        for start in starts:
            streampca.storage_options(start, None)
    assert given == [1, 1, 2, 1, 3, None, None, None], "up to a slash"
    assert "number" not in remote.filesystem("memory://a/x")[0].storage_options
    with pytest.raises(RequestError, match="url = 'a/x' is not a URL; give its start, such as s3://bucket"):
        streampca.storage_options("a/x", {})


def test_a_worker_has_the_options_of_one_client_at_a_time_and_shows_none(monkeypatch):
    packs = []
    for options in ({"secret": "hush"}, None):
        streampca.storage_options("memory://a", options)
        packs.append(packing.packed("work"))
    assert "hush" not in repr(packs)
    assert [packing.unpacked(packs[0]), remote.given_options()] == ["work", {}], "a client keeps its own"
    monkeypatch.setattr(packing, "_IMPORTED", "in another process")
    given = [(packing.unpacked(pack), remote.given_options()) for pack in packs]
    assert given == [("work", {"memory://a": {"secret": "hush"}}), ("work", {})]


# -- runs of a directory


@pytest.fixture
def run(folder):
    """Apply the model in the directory d, with scores at a URL or path."""
    MODEL.save("m.zarr")
    np.save("x.npy", X)

    def run(scores):
        output = {"directory": "d", "scores": scores}
        return execute(make_run({"collection": {"source": "x.npy"}, "apply": "m.zarr", "output": output}))

    return run


@pytest.mark.parametrize("name", ["s.npy", "s.zarr"])
def test_a_run_knows_scores_that_were_complete_when_it_was_ended(fs, run, name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "finish", ended)
        with pytest.raises(KeyboardInterrupt):
            run(f"memory://a/{name}")
    assert run(f"memory://a/{name}").kept == [f"memory://a/{name}"]
    before = bytes(fs.cat_file(inner := f"/a/{name}" + ("/zarr.json" if name == "s.zarr" else "")))
    fs.pipe_file(inner, before[:-1] + b" ")  # by another program
    with pytest.raises(OutputError, match="exists"):
        run(f"memory://a/{name}")


def test_nothing_of_an_output_at_a_url_is_taken_for_a_local_path(fs, folder):
    os.mkdir("in")
    for at, picture in enumerate(X[:3].astype("u1")):
        Image.fromarray(picture).save(f"in/{at}.png")
    collection, url = {"source": "in", "on_bad_file": "skip"}, "memory://a/c.zarr"
    execute(make_run({"collection": collection, "output": {"collection": url}}))
    assert os.listdir() == ["in"]
    assert "/" not in str(scratch_name(Request(), url))
    with pytest.raises(OutputError, match=rf"takes .* and {tempfile.gettempdir()} has "):
        check_free_space(url, 2**70, url)


def test_a_record_makes_a_run_ask_for_no_url(fs, run, monkeypatch):
    run("s.npy")
    record = json.loads(Path("d/run.json").read_text())
    record["outputs"]["../s.npy"]["files"]["memory://planted/secret"] = [1, 2]
    Path("d/run.json").write_text(json.dumps(record))
    monkeypatch.setattr(remote, "_info", ended)
    assert run("s.npy").kept == []
