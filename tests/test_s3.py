"""Collections in an S3 bucket, which moto plays on this machine's own loopback."""

from __future__ import annotations

import io

import numpy as np
import pytest
import zarr
from contract import WholeContract, everything, refused
from PIL import Image

from streampca.readers import open_collection

REASON = "pip install 's3fs>=2024.12' 'moto[s3]' flask-cors"
s3fs = pytest.importorskip("s3fs", "2024.12", reason=REASON)
server = pytest.importorskip("moto.server", reason=REASON, exc_type=ImportError)


@pytest.fixture(scope="module")
def s3():
    """A file system of a new server, and nobody's credentials."""
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
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
        refused(url, "matches no files")


def test_a_changed_file_is_seen_whatever_was_listed_before(bucket):
    before = open_collection(put(bucket, "x.npy", values())).fingerprint()
    bucket.ls("box")
    elsewhere = s3fs.S3FileSystem(skip_instance_cache=True)
    changed = open_collection(put(elsewhere, "x.npy", values((20, 6, 5))))
    assert changed.shape == (20, 6, 5)
    assert changed.fingerprint() != before
