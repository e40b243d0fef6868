"""Collections in an S3 bucket, which moto plays on this machine's own loopback."""

from __future__ import annotations

import io
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest
import zarr
from contract import WholeContract, everything, refused
from PIL import Image
from shell import python, succeeded

import streampca
from streampca import events
from streampca.errors import ModelError, OutputError
from streampca.execution.checkpoint import FOLDER
from streampca.readers import open_collection

REASON = "pip install 's3fs>=2024.12' 'moto[s3]' flask-cors"
s3fs = pytest.importorskip("s3fs", "2024.12", reason=REASON)
server = pytest.importorskip("moto.server", reason=REASON, exc_type=ImportError)
werkzeug_app = pytest.importorskip("moto.moto_server.werkzeug_app", reason=REASON)
# The server that plays S3 leaves files of its own open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
REQUESTS: Counter[tuple[str, str]] = Counter()  # that the server has had, by method and path
FAULTS: Counter[str] = Counter()  # of the server by kind, and the number of requests; none where it is empty
KINDS = ("500 Internal Server Error", "503 Slow Down", "lost", "cut", "late")
CHUNKS, ROWS = 1200, 20  # of a collection, and samples of a chunk
SHARE = 0.02  # of requests, of each kind
LUCK = random.Random(0)  # noqa: S311 - nothing secret


def faulty(answer, environment, start):
    """Answer, or refuse to, do not, or half, or late; requests are served at once or in order, as they come."""
    fault = LUCK.choices([*KINDS, ""], [SHARE] * len(KINDS) + [1 - SHARE * len(KINDS)])[0]
    FAULTS[fault or "none"] += 1
    if fault[:1] == "5":
        start(fault, [("Content-Length", "0")])
        return
    if fault == "late":
        time.sleep(0.5)
    found = b"".join(answer(environment, start))
    yield found[: len(found) // 2] if fault == "cut" else b"" if fault == "lost" else found
    if fault in ("cut", "lost"):  # what was asked for is done, and its answer does not come
        environment["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def s3():
    """A file system of a new server, and nobody's credentials."""
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        answer = werkzeug_app.DomainDispatcherApplication.__call__

        def counted(app, environment, start):
            what = "COPY" if "HTTP_X_AMZ_COPY_SOURCE" in environment else environment["REQUEST_METHOD"]
            REQUESTS[what, environment["PATH_INFO"]] += 1
            return faulty(partial(answer, app), environment, start) if FAULTS else answer(app, environment, start)

        patch.setattr(werkzeug_app.DomainDispatcherApplication, "__call__", counted)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        yield s3fs.S3FileSystem()
        s3fs.S3FileSystem.clear_instance_cache()
    running.stop()


@pytest.fixture
def bucket(s3):
    s3.mkdir("box")
    yield s3
    s3.rm("box", recursive=True)


def values(shape=(12, 6, 5), dtype="u2"):
    return np.random.default_rng(7).integers(0, 250, shape).astype(dtype)


def put(fs, name, x):
    """Store an array as a file of the bucket; return its URL."""
    with io.BytesIO() as file:
        if name.endswith(".png"):
            Image.fromarray(x).save(file, "png")
        else:
            np.save(file, x)
        fs.pipe_file(f"box/{name}", file.getvalue())
    return f"s3://box/{name}"


class Stored(WholeContract):
    cuts = 3

    @pytest.fixture
    def pair(self, bucket, tmp_path):
        return self.make(bucket, tmp_path)


class TestNpy(Stored):
    def make(self, fs, tmp_path):
        return open_collection(put(fs, "x.npy", values())), values()


class TestZarr(Stored):
    name, shards = "deep/x.zarr", None

    def make(self, fs, tmp_path):
        zarr.create_array(tmp_path / "x.zarr", data=values(), chunks=(4, 6, 2), shards=self.shards)
        fs.put(f"{tmp_path}/x.zarr/", f"box/{self.name}", recursive=True)
        return open_collection(f"s3://box/{self.name}"), values()


class TestShardedZarrIsTheBucket(TestZarr):
    name, shards = "", (8, 6, 4)


@pytest.mark.parametrize("source", ["s3://box/scans", "s3://box/**/*.png", "s3://box"])
def test_pictures_are_found_in_folders_globs_and_buckets(bucket, source):
    x = values(dtype="u1")
    for at, image in enumerate(x):
        put(bucket, f"scans/s{at}.png", image)
    np.testing.assert_array_equal(everything(source), x)


def test_what_is_not_there_is_said_in_a_line(bucket):
    for url in ("s3://box/x.npy", "s3://nobody/x.npy"):
        refused(url, "does not exist")
    for url in ("s3://box/x.zarr", "s3://box", "s3://nobody"):
        refused(url, "does not exist, or holds no files")


def test_a_changed_file_is_seen_whatever_was_listed_before(bucket):
    before = open_collection(put(bucket, "x.npy", values())).fingerprint()
    bucket.ls("box")
    elsewhere = s3fs.S3FileSystem(skip_instance_cache=True)
    changed = open_collection(put(elsewhere, "x.npy", values((20, 6, 5))))
    assert changed.shape == (20, 6, 5)
    assert changed.fingerprint() != before


def requests(*, under):
    """Count the requests since the last call by method, of paths that contain a text, and forget all."""
    counts = Counter(method for (method, path), count in REQUESTS.items() if under in path for _ in range(count))
    REQUESTS.clear()
    return counts


def test_a_chunk_is_one_request(bucket, tmp_path):
    """In a process that has listed nothing, as a worker is."""
    zarr.create_array(tmp_path / "x.zarr", data=values((40, 6, 5)), chunks=(1, 6, 5))
    bucket.put(f"{tmp_path}/x.zarr/", "box/x.zarr", recursive=True)
    for url, part, gets in (("s3://box/x.zarr", "/c/", 40), (put(bucket, "x.npy", values((40, 6, 5))), "x.npy", 2)):
        collection = open_collection(url)
        s3fs.S3FileSystem.clear_instance_cache()
        REQUESTS.clear()
        for start in (0, 20):
            collection.read(slice(start, start + 20))
        assert requests(under=part) == {"GET": gets}


@pytest.fixture
def model(bucket):
    return streampca.fit(values(), n_components=2, output="s3://box/m.zarr")


def test_a_model_in_a_bucket_is_that_in_memory(bucket, model):
    loaded = streampca.load("s3://box/m.zarr", components=False)
    np.testing.assert_array_equal(np.asarray(loaded.components), np.asarray(model.components))
    np.testing.assert_array_equal(loaded.transform(values()), model.transform(values()))
    assert bucket.ls("box", refresh=True) == ["box/m.zarr"]
    bucket.rm("box/m.zarr/components/c", recursive=True)
    with pytest.raises(ModelError, match=r"is damaged in components: .*c/0/0/0 is not there"):
        streampca.load("s3://box/m.zarr")


def test_workers_write_each_chunk_once(bucket):
    x = values((2400, 40, 40))
    model = streampca.fit(x[:50], n_components=2)
    requests(under="")
    model.write_reconstruction(put(bucket, "x.npy", x), "s3://box/i.zarr", workers=2, memory="64 MiB")
    chunks = [count for (method, path), count in REQUESTS.items() if method == "PUT" and "/images/c/" in path]
    assert set(chunks) == {1}
    assert len(chunks) > 2
    assert requests(under="/images/c/")["COPY"] == len(chunks)
    np.testing.assert_allclose(everything("s3://box/i.zarr"), model.reconstruct(x), rtol=1e-6)


KILLED = """
import os, signal, sys
import s3fs, streampca

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

put, copy, moment, copied = s3fs.S3FileSystem.pipe_file, s3fs.S3FileSystem.cp_file, sys.argv[1], []

def counting(fs, *args, **options):
    copied.append(args)
    return die() if len(copied) == 2 else copy(fs, *args, **options)

def written(fs, path, *args, **options):
    put(fs, path, *args, **options)
    if "scores/c/" in path:
        die()

if moment == "copy":
    s3fs.S3FileSystem.cp_file = counting
else:
    s3fs.S3FileSystem.pipe_file = written
streampca.load("s3://box/m.zarr").write_scores("s3://box/x.npy", "s3://box/s.zarr", overwrite=True)
"""


@pytest.mark.parametrize("moment", ["write", "copy"])
def test_a_killed_run_leaves_the_old_scores_or_visibly_none(bucket, model, moment):
    x = values((300, 6, 5))
    url = put(bucket, "x.npy", x)
    model.write_scores(x[:50], "s3://box/s.zarr")
    assert subprocess.run([sys.executable, "-c", KILLED, moment], timeout=120).returncode == -signal.SIGKILL
    if moment == "copy":
        refused("s3://box/s.zarr", "does not exist")
    else:
        np.testing.assert_array_equal(everything("s3://box/s.zarr"), model.transform(x[:50]))
    if moment == "copy":  # all was written: it only has to be brought to its place
        with pytest.raises(OutputError, match="exists already"):
            model.write_scores(url, "s3://box/s.zarr")
    else:
        model.write_scores(url, "s3://box/s.zarr", overwrite=True)
    np.testing.assert_array_equal(everything("s3://box/s.zarr"), model.transform(x))
    assert sorted(bucket.ls("box", refresh=True)) == ["box/m.zarr", "box/s.zarr", "box/x.npy"]


# -- checkpoints


@pytest.mark.parametrize(("features", "puts", "posts"), [(30, 1, 0), (1100, 2, 2)])
def test_a_save_is_one_request_or_few_for_each_8_mebibytes(bucket, features, puts, posts):
    """The older state is removed afterwards, and all in the end, by one request each."""
    x, saves, requested = np.random.default_rng(0).random((1200, features), np.float32), [], []

    def listener(event):
        if isinstance(event, events.Checkpoint):
            saves.append(bucket.find("box/ck", refresh=True))
            requested.append(requests(under="/ck/scatter-0"))

    how = {"checkpoint": "s3://box/ck", "checkpoint_every": 0.0, "memory": "128 MiB", "listener": listener}
    requests(under="")
    streampca.fit(x, streampca.PCA(2, method="covariance"), **how)
    last = requests(under="/ck/")
    assert [names[-1].partition("/ck/")[2] for names in saves] == [
        f"scatter-0.{'ab'[at % 2]}" for at in range(len(saves))
    ]
    assert {len(names) for names in saves} == {3}, "lock, record and state"
    assert {(found["PUT"], found["POST"]) for found in requested} == {(puts, posts)}
    assert [found["DELETE"] for found in requested] == [0, *[1] * (len(saves) - 1)]
    assert len(saves) > 1 or features == 30
    assert last == {"GET": 3, "DELETE": 3}
    assert bucket.find("box", refresh=True) == []


KILLED_AT_A_SAVE = """
import os, signal, sys
from streampca.cli.commands import main
from streampca.execution.checkpoint import CheckpointFolder

saves, report = [], CheckpointFolder.report

def reported(folder, position):
    report(folder, position)
    saves.append(position)
    if len(saves) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

CheckpointFolder.report = reported
main()
"""


@pytest.mark.slow
def test_a_killed_command_resumes_elsewhere_from_the_bucket(bucket, tmp_path, monkeypatch):
    """From another folder, where nothing is: the checkpoint is beside the output."""
    url = put(bucket, "x.npy", values((200, 6, 5)))
    words = ("fit", url, "-k", "2", "--method", "randomized", "--checkpoint-every", "0", "-q", "-o")
    succeeded(*words, "s3://box/whole.zarr", "--no-checkpoint")
    killed = python(KILLED_AT_A_SAVE, *words, "s3://box/m.zarr")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    beside = {name.split("/")[1] for name in bucket.find("box", refresh=True)} - {"x.npy", "whole.zarr"}
    assert beside == {f"m.zarr{FOLDER}", "m.zarr.streampca-lock"}
    with pytest.raises(
        OutputError, match=r"^s3://box/m.zarr.streampca-checkpoint holds an unfinished run with n_components"
    ):
        streampca.fit(
            url, streampca.PCA(3, method="randomized"), output="s3://box/m.zarr", checkpoint=f"s3://box/m.zarr{FOLDER}"
        )
    monkeypatch.chdir(tmp_path)
    requests(under="")
    succeeded(*words, "s3://box/m.zarr")
    assert {path for path in bucket.find("box", refresh=True) if "checkpoint" in path} == set()
    whole, resumed = (streampca.load(f"s3://box/{name}.zarr") for name in ("whole", "m"))
    np.testing.assert_array_equal(resumed.components, whole.components)
    np.testing.assert_array_equal(resumed.explained_variance, whole.explained_variance)
    assert os.listdir(tmp_path) == []


def test_options_reach_workers_and_nothing_that_is_written(bucket, monkeypatch, caplog, tmp_path):
    """Credentials and address that are given in Python alone; the environment has others."""
    monkeypatch.chdir(tmp_path)
    x, secret = values((2400, 8, 8)), "hush-hush-key"
    url, address = put(bucket, "x.npy", x), os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    saved = set()

    def listener(event):
        assert secret not in repr(event)
        if isinstance(event, events.Checkpoint):
            names = bucket.find("box/ck", refresh=True)
            saved.update(names)
            assert not [name for name in names if secret.encode() in bucket.cat_file(name, start=0)]

    streampca.storage_options("s3://box", {"key": "somebody", "secret": secret, "endpoint_url": address})
    try:
        with caplog.at_level("DEBUG", "streampca"):
            how = {"memory": "64 MiB", "checkpoint": "s3://box/ck", "checkpoint_every": 0, "listener": listener}
            model = streampca.fit(url, n_components=2, output="s3://box/m.zarr", **how)
            streampca.load("s3://box/m.zarr").write_scores(url, "s3://box/s.zarr", workers=2, **how)
        np.testing.assert_allclose(everything("s3://box/s.zarr"), model.transform(x), rtol=1e-6)
    finally:
        streampca.storage_options("s3://box", None)
        s3fs.S3FileSystem.clear_instance_cache()
    assert {name.partition("/ck/")[2][:3] for name in saved} >= {"at-", "run", "sca", "sco"}
    assert secret not in caplog.text
    assert secret not in repr(model) + str(model.provenance)
    for name in bucket.find("box"):
        assert secret.encode() not in bucket.cat_file(name)


SHARED = """
import os, signal, sys
import streampca
from streampca import events

if __name__ == "__main__":
    name, address, moment, count = sys.argv[1:]
    seen, options = [], {"key": "somebody", "secret": "hush-hush-key", "endpoint_url": address}
    streampca.storage_options("s3://box", options)

    def listener(event):
        assert "hush" not in repr(event)
        print(events.describe(event), flush=True)
        seen.append(type(event).__name__)
        if seen.count(moment) == int(count):
            os.kill(os.getpid(), signal.SIGKILL)

    how = {"workers": 2, "memory": "256 MiB", "checkpoint_every": 0.0, "listener": listener, "overwrite": True}
    model, scores, kind = f"s3://box/{name}.zarr", f"s3://box/{name}-s.zarr", streampca.PCA(3, method="covariance")
    fitted = streampca.fit("s3://box/x.zarr", kind, output=model, checkpoint=model + "-saved", **how)
    fitted.write_scores("s3://box/x.zarr", scores, checkpoint=scores + "-saved", **how)
"""


@pytest.mark.campaign
@pytest.mark.timeout(600)  # five runs, of which four wait for late answers
def test_workers_are_right_through_faults_and_kills(bucket, tmp_path, monkeypatch):
    """Each kind of fault has 2 % of all requests. What a kill leaves is complete or visibly not, and has no secrets."""
    x, names = values((CHUNKS * ROWS, 6, 5)), ["whole", "faulty", "killed"]
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(ROWS, 6, 5))
    files = [path for path in (tmp_path / "x.zarr").rglob("*") if path.is_file()]
    bucket.pipe({f"box/{path.relative_to(tmp_path)}": path.read_bytes() for path in files})
    address, script = os.environ["AWS_ENDPOINT_URL"], tmp_path / "run.py"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    script.write_text(SHARED)

    def run(name, moment="", count=1):
        """Return what a process of its own said, and the objects that are there when it has ended."""
        command = [sys.executable, script, name, address, moment, str(count)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert ended.returncode == (-signal.SIGKILL if moment else 0), ended.stderr[-2000:]
        assert "hush" not in ended.stdout + ended.stderr
        found = bucket.find("box", refresh=True)
        written = [path for path in found if not path.startswith("box/x.zarr/")]
        assert not [path for path in written if b"hush" in bucket.cat_file(path, start=0)]
        return ended.stdout, {path.split("/")[1] for path in found}

    requests(under="")
    run("whole")
    assert requests(under="/x.zarr/c/") == {"GET": 2 * (CHUNKS + 2)}, "each of two workers first tries to read"
    monkeypatch.setattr(sys.modules[__name__], "FAULTS", Counter(none=0))
    run("faulty")
    assert min(FAULTS[kind] for kind in KINDS) > 0.01 * sum(FAULTS.values())
    gets = requests(under="/x.zarr/c/")
    assert 2 * CHUNKS < gets["GET"] < 2 * CHUNKS * (1 + 2 * SHARE * len(KINDS))
    assert gets.keys() == {"GET"}
    _, left = run("killed", "Checkpoint", 3)
    assert "killed.zarr-saved" in left, "with sums that workers have written"
    assert "killed.zarr" not in left
    said, left = run("killed", "PassStarted", 2)  # of the scores
    assert "resumed: " in said
    assert "killed-s.zarr" not in left
    _, left = run("killed")
    assert left == {"x.zarr", *(f"{name}{end}.zarr" for name in names for end in ("", "-s"))}
    FAULTS.clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    models = [streampca.load(f"s3://box/{name}.zarr") for name in names]
    scores = [everything(f"s3://box/{name}-s.zarr") for name in names]
    for model, projected in zip(models, scores, strict=True):
        np.testing.assert_array_equal(model.components, models[0].components)
        np.testing.assert_array_equal(projected, scores[0])
    np.testing.assert_allclose(scores[0], models[0].transform(x), rtol=1e-5, atol=1e-3)
    streampca.verify("s3://box/faulty.zarr")
