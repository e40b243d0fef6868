"""Collections behind URLs: in fsspec's memory, and on a web server on this machine's own loopback."""

from __future__ import annotations

import functools
import io
import pickle
import re
import threading
import warnings
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import zarr
from contract import WholeContract, refused, said
from PIL import Image
from sources import SOURCES

from streampca import fit, load
from streampca.errors import DuplicatesError, RequestError, SourceError, without_secrets
from streampca.readers import open_collection
from streampca.storage import remote

fsspec = pytest.importorskip("fsspec", reason="URLs are read with fsspec")
pytest.importorskip("aiohttp", reason="fsspec speaks HTTP with aiohttp")


def values(shape=(23, 6, 5), dtype="u2"):
    return np.random.default_rng(7).integers(0, 999, shape).astype(dtype)


class Server(ThreadingHTTPServer):
    """Serves a folder; `mood` says how badly."""

    def handle_error(self, request, client_address):
        """Say nothing: a client that closes a connection early is no failure of the test."""

    daemon_threads = True
    mood = "good"
    requests = 0


class Handler(SimpleHTTPRequestHandler):
    """Sends the range that is asked for, unless the server's mood is another."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it would hold every body back for 40 ms

    def log_message(self, *args):
        pass

    def list_directory(self, path):
        if self.server.mood == "unlisted":
            self.send_error(404)
            return None
        return super().list_directory(path)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.requests += 1
        if self.server.mood == "angry":
            self.send_error(500)
        elif self.server.mood in ("silent", "gone"):
            if self.server.mood == "silent":
                self.server.wake.wait(20)
            self.close_connection = True
        else:
            self.send_part()

    def send_part(self):
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        with io.BytesIO() as body:
            path = self.translate_path(self.path)
            try:
                with open(path, "rb") as file:
                    body.write(file.read())
            except OSError:
                super().do_GET() if self.command == "GET" else super().do_HEAD()
                return
            whole = body.getvalue()
        if asked and self.server.mood != "whole":
            last = int(asked[2] or len(whole) - 1)
            start, stop = (int(asked[1]), last + 1) if asked[1] else (max(0, len(whole) - last), len(whole))
            part = whole[start:stop]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(whole)}")
        else:
            part = whole
            self.send_response(200)
        if self.server.mood == "short" and asked and asked[1] not in ("", "0"):
            part = part[: len(part) // 2]
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{hash(whole)}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)


@contextmanager
def served(folder):
    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    server.wake = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.mood = "gone"
        server.wake.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def web(tmp_path):
    """A server, and the URL of what lies in `tmp_path`."""
    with served(tmp_path) as (server, url):
        yield server, url


def forget(fs):
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture
def memory():
    fs = fsspec.filesystem("memory")
    yield fs
    forget(fs)


@pytest.fixture(params=["memory", "http"])
def place(request, tmp_path):
    """``place(name, bytes) -> URL`` of a new file."""
    fs = request.getfixturevalue("memory") if request.param == "memory" else None
    url = "memory://box" if fs else request.getfixturevalue("web")[1]

    def put(name, data):
        if fs:
            fs.pipe_file(f"/box/{name}", data)
        else:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        return f"{url}/{name}"

    return put


def npy_bytes(x, order="C"):
    with io.BytesIO() as file:
        np.save(file, np.asarray(x, order=order))
        return file.getvalue()


def copied(folder, put, name):
    """A folder's files behind a URL."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            put(f"{name}/{path.relative_to(folder)}", path.read_bytes())
    return put(f"{name}/end", b"").rpartition("/")[0]


def written(path, x, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata are not part of the standard of Zarr 3 yet
        group = zarr.open_group(path, mode="w", zarr_format=options.get("zarr_format", 3))
        group.create_array("deep/images", data=x, chunks=(4, 6, 2), **options)
        group.create_array("times", data=np.arange(3))
        zarr.consolidate_metadata(path)
    return path


def refused_text(source, **options):
    with pytest.raises((SourceError, DuplicatesError)) as caught:
        open_collection(source, **options)
    return said(caught)


@contextmanager
def elsewhere(kind, path):
    """The URL of a copy of a file or folder."""
    if kind == "http":
        with served(path.parent) as (_, url):
            yield f"{url}/{path.name}"
        return
    fs = fsspec.filesystem("memory")
    fs.put(str(path), f"/box/{path.name}", recursive=True)
    yield f"memory://box/{path.name}"
    forget(fs)


REMOTE = [
    "npy",
    "npy, Fortran",
    "npz",
    "npz, deflated",
    "idx, gzipped",
    "zarr group",
    "zarr, sharded",
    "tiff, deflate",
    "tiff",
]


@pytest.fixture(scope="class")
def pair(kind, name, tmp_path_factory):
    folder, source = tmp_path_factory.mktemp("local"), SOURCES[name]
    with elsewhere(kind, source.write(folder, source.x)) as url:
        yield source.opened(url)


@pytest.mark.parametrize("name", REMOTE, scope="class")
@pytest.mark.parametrize("kind", ["memory", "http"], scope="class")
class TestRemote(WholeContract):
    cuts = 2


def test_an_ome_zarr_needs_no_listing(tmp_path, web):
    """Most web servers have no pages of links, and many stores no consolidated metadata."""
    server, url = web
    server.mood = "unlisted"
    x = values((2, 3, 6, 8))
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    group.attrs["multiscales"] = [{"axes": list("tcyx"), "datasets": [{"path": "0"}, {"path": "1"}], "version": "0.3"}]
    for name, step in (("0", 1), ("1", 2)):
        group.create_array(name, data=x[..., ::step, ::step].copy())
    np.testing.assert_array_equal(open_collection(f"{url}/x.zarr").read(slice(0, 2)), x.reshape(2, -1))
    assert open_collection(f"{url}/x.zarr", key="1").shape == (2, 3, 3, 4)
    refused(f"{url}/labels.zarr")


def test_bytes_are_read_in_bounded_pieces(memory, monkeypatch):
    x = values((40, 30, 20), "f8")
    memory.pipe_file("/x.npy", npy_bytes(x))
    monkeypatch.setattr(remote, "PIECE", 1000)
    asked = []
    fetch = type(memory).cat_file
    monkeypatch.setattr(
        type(memory),
        "cat_file",
        lambda self, path, start=None, end=None: asked.append(end - start) or fetch(self, path, start=start, end=end),
    )
    read = open_collection("memory://x.npy").read(slice(3, 9))
    np.testing.assert_array_equal(read, x[3:9].reshape(6, -1))
    assert max(asked) <= 1000


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_a_changed_file_has_another_fingerprint(kind, tmp_path, place):
    x = values()

    def put(x):
        if kind == "npy":
            return place("x.npy", npy_bytes(x))
        return copied(written(tmp_path / "local.zarr", x), place, "x.zarr")

    url = put(x)
    before = open_collection(url).fingerprint()
    assert open_collection(url).fingerprint() == before
    put(x + 1)
    assert open_collection(url).fingerprint() != before


def test_what_a_file_system_remembers_is_asked_again(memory, monkeypatch):
    """File systems of object stores answer from cached listings."""
    kind, kept = type(memory), {}
    monkeypatch.setattr(kind, "info", lambda self, path, asked=kind.info: kept.setdefault(path, asked(self, path)))
    monkeypatch.setattr(kind, "invalidate_cache", lambda self, path=None: kept.clear())
    memory.pipe_file("/x.npy", npy_bytes(values()))
    before = open_collection("memory://x.npy").fingerprint()
    memory.pipe_file("/x.npy", npy_bytes(values((30, 6, 5))))
    changed = open_collection("memory://x.npy")
    assert changed.shape == (30, 6, 5)
    assert changed.fingerprint() != before


def test_what_is_not_there_is_said_in_a_line(place):
    url = place("x.npy", npy_bytes(values()))
    missing = url.replace("x.npy", "y.npy")
    refused(missing, "does not exist")
    refused(missing.replace("y.npy", "y.zarr"), "y.zarr")


def test_secrets_in_urls_are_not_shown(tmp_path, web):
    secret = web[1].replace("://", "://someone:pass@word@") + "/x.npy?X-Signature=a;b,hidden"
    shown = web[1].replace("://", "://***@") + "/x.npy?***"
    (tmp_path / "x.npy").write_bytes(npy_bytes(values()))
    found = open_collection(secret)
    assert found.source == shown
    np.testing.assert_array_equal(found.read(slice(0, 23)), values().reshape(23, -1))
    assert fit(found, n_components=2).provenance["source"] == shown
    with pytest.raises(DuplicatesError, match="is there twice"):
        open_collection([secret, secret])
    assert open_collection([secret, secret], duplicates="all").where(30).startswith("sample 7 of http://***@")
    (tmp_path / "x.npy").write_bytes(npy_bytes(values())[:-1])
    for source, options in ((secret, {}), ([secret, secret], {"duplicates": "all"}), ([secret, secret], {})):
        message = refused_text(source, **options)
        assert shown in message
        assert "word" not in message
        assert "hidden" not in message


def test_signed_urls_are_known_by_what_comes_before_the_query(tmp_path, web):
    (tmp_path / "x.png").write_bytes(png_bytes(values((6, 5), "u1")))
    np.savez(tmp_path / "x.npz", values())
    assert open_collection(web[1] + "/x.npz?signature=1").shape == (23, 6, 5)
    assert open_collection([web[1] + "/x.png?signature=1"] * 2, duplicates="all").shape == (2, 6, 5)


@pytest.mark.parametrize(
    "text",
    [
        "no URL: a@b?c",
        "s3://bucket/a@b:c.npy",
        "gs://bucket@x/y, array 'z'.",
        "ab://c/d (http://e/f?***) at u@host:1?x",
    ],
)
def test_what_is_no_secret_stays(text):
    assert without_secrets(text) == text


@pytest.mark.parametrize("source", ["@{}/list.txt", "{}/list.csv:url"])
def test_a_list_in_another_folder_may_name_urls(tmp_path, place, source):
    urls = [place(f"{at}.npy", npy_bytes(values()[at : at + 4])) for at in (0, 4)]
    (tmp_path / "list.txt").write_text("\n".join(urls))
    (tmp_path / "list.csv").write_text("\n".join(["url", *urls]))
    found = open_collection(source.format(tmp_path), allow_remote=True)
    np.testing.assert_array_equal(found.read(slice(0, 8)), values()[:8].reshape(8, -1))
    with pytest.raises(RequestError, match="fetched only with allow_remote=True"):
        open_collection(source.format(tmp_path))


def test_a_cut_file_is_refused(place):
    url = place("x.npy", npy_bytes(values())[:-10])
    refused(url, "was cut short")


def test_a_file_cut_while_it_is_read_is_refused(place):
    x = values()
    collection = open_collection(place("x.npy", npy_bytes(x)))
    place("x.npy", npy_bytes(x)[:400])
    with pytest.raises(SourceError) as caught:
        collection.read(slice(0, 23))
    said(caught, "x.npy", "check")


@pytest.mark.parametrize("mood", ["angry", "short"])
def test_a_failing_server_is_named(tmp_path, web, mood):
    server, url = web
    np.save(tmp_path / "x.npy", values())
    written(tmp_path / "x.zarr", values())
    for name in ("x.npy", "x.zarr") if mood == "angry" else ("x.npy",):
        server.mood = "good"
        collection = open_collection(f"{url}/{name}")
        server.mood = mood
        with pytest.raises(SourceError) as caught:
            collection.read(slice(0, 23))
        said(caught, f"{url}/{name}")
    if mood == "angry":
        refused(f"{url}/x.npy", "500")


@pytest.mark.parametrize("name", ["x.npy", "x.zarr"])
def test_a_server_that_is_gone_is_named(tmp_path, name):
    np.save(tmp_path / "x.npy", values())
    written(tmp_path / "x.zarr", values())
    with served(tmp_path) as (_, url):
        collection = open_collection(f"{url}/{name}")
        collection.read(slice(0, 1))
    with pytest.raises(SourceError) as caught:
        collection.read(slice(5, 23))
    said(caught, f"{url}/{name}", "check that its server answers")
    refused(f"{url}/{name}", "check that its server answers")


@pytest.mark.parametrize("name", ["x.npy", "x.zarr"])
def test_a_silent_server_is_not_waited_for(tmp_path, web, monkeypatch, name):
    server, url = web
    monkeypatch.setattr(remote, "_SILENT", 0.3)
    np.save(tmp_path / "x.npy", values())
    written(tmp_path / "x.zarr", values())
    collection = open_collection(f"{url}/{name}")
    server.mood = "silent"
    with pytest.raises(SourceError) as caught:
        collection.read(slice(0, 23))
    said(caught, f"{url}/{name}", "did not answer in time")


def test_a_server_without_ranges_is_refused(tmp_path, web):
    server, url = web
    np.save(tmp_path / "x.npy", values((100, 60, 50)))
    server.mood = "whole"
    refused(f"{url}/x.npy", "does not send parts of files", "download it")


def test_unknown_schemes_and_missing_packages_are_named(monkeypatch):
    refused("nosuch://bucket/x.zarr", "Protocol not known: nosuch")
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    refused("memory://x.npy", "pip install 'streampca[cloud]'")


def test_file_urls_are_paths(tmp_path):
    x = values()
    np.save(tmp_path / "x.npy", x)
    collection = open_collection(f"file://{tmp_path}/x.npy")
    assert collection.source == f"{tmp_path}/x.npy"
    np.testing.assert_array_equal(collection.read(slice(0, 23)), x.reshape(23, -1))


# --- pictures ---


def png_bytes(pixels):
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "png")
        return file.getvalue()


@pytest.mark.parametrize("source", ["{}/", "{}/*.png", None], ids=["folder", "glob", "list"])
def test_pictures_are_found_in_folders_globs_and_lists(place, source):
    x = values((12, 6, 5), "u1")
    for at in (*range(2, 12), 0, 1):
        folder = place(f"imgs/s{at}.png", png_bytes(x[at])).rpartition("/")[0]
    place("imgs/notes.txt", b"no image")
    found = open_collection(source.format(folder) if source else [f"{folder}/s{at}.png" for at in range(12)])
    np.testing.assert_array_equal(found.read(slice(0, 12)), x.reshape(12, -1))
    assert found.states(now=True) == found.states()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(found)).read(slice(3, 5)), x[3:5].reshape(2, -1))  # noqa: S301


def test_pictures_are_named_by_their_urls(place):
    for name in "ab":
        url = place(f"{name}/1.png", png_bytes(values((6, 5), "u1")))
    collection = open_collection([url.replace("b/1", "a/1"), url])
    assert collection.where(1) == url
    assert list(collection.sample_names()) == ["a/1.png", "b/1.png"]
    place("b/1.png", b"no image")
    with pytest.raises(SourceError) as caught:
        collection.read(slice(0, 2))
    said(caught, url)


@pytest.mark.parametrize("start", [b"P5 5 6 255\n", b"P2 5 6 255\n"])
def test_netpbm_pictures(place, start):
    x = values((6, 5), "u1")
    pixels = x.tobytes() if start.startswith(b"P5") else b" ".join(b"%d" % value for value in x.ravel())
    url = place("x.pgm", start + pixels)
    np.testing.assert_array_equal(open_collection([url]).read(slice(0, 1)), x.reshape(1, -1))
    refused(place("x.pgm", start + pixels[:20]), "of pixels and")


def test_no_pictures_behind_a_url_are_said_in_a_line(place):
    url = place("notes/a.txt", b"none").rpartition("/")[0]
    refused(f"{url}/*.txt", url, "holds no images")
    refused(f"{url}/*.png", url, "matches no files")


def test_what_is_not_there_or_not_answered_is_said_of_the_url_that_was_given():
    refused("memory://nothing.zarr", "memory://nothing.zarr does not exist, or holds no files")
    with pytest.raises(SourceError, match=r"^http://127.0.0.1:9/m.zarr cannot be read"):
        open_collection("http://127.0.0.1:9/m.zarr")
    with pytest.raises(SourceError, match=r"^http://127.0.0.1:9/m.zarr cannot be read"):
        load("http://127.0.0.1:9/m.zarr")


@pytest.mark.parametrize(
    ("name", "start"), [("x.h5", b"\x89HDF\r\n\x1a\n"), ("x.nc", b"CDF\x01"), ("x.fits", b"SIMPLE  =")]
)
def test_formats_read_from_disks_only_say_so(place, name, start):
    refused(place(name, start.ljust(4000)), "not read through URLs; download it")
