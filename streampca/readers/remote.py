"""Files behind URLs, through fsspec (https://filesystem-spec.readthedocs.io): whatever scheme it knows, read by ranges.

File systems are looked up by their URL for every call, not held: fsspec keeps one a process for each kind and set of
options, so that collections pickle small and work in any process. Retrying is left to it; waiting is bounded.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import SourceError
from ..units import MIB, format_bytes

# Seconds until a server must have taken a connection, and between any two pieces it sends: it may be slow, not silent.
_CONNECT, _SILENT = 20.0, 60.0
# Bytes asked for at once: what fsspec hands out is a copy, and this bounds it.
PIECE = 4 * MIB
# Files whose state is asked for at a time: servers take long to answer, whatever they are asked.
_AT_ONCE = 16
# Longer files are not images to be fetched whole.
_MOST_FETCHED = 256 * MIB
# Blocks of an opened file that are kept, and their bytes: headers and indices are read here and there.
_BLOCK, _BLOCKS = MIB, 4
# What an opened file holds, with the copy it hands out.
OPENED_BYTES = (_BLOCKS + 2) * _BLOCK
# A scheme has two letters or more: one is a Windows drive. Chains of file systems are fsspec's ("simplecache::s3://").
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]+)*://")
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Schemes of object stores, whose paths begin with a bucket.
_STORES = frozenset(("s3", "gs", "abfs", "az"))
# What file systems call the state of a file, beside its size.
_STATES = ("etag", "last-modified", "lastmodified", "mtime", "updated", "generation", "created", "content-md5")


def is_url(source: Any) -> bool:
    """Return whether it is text that begins with a scheme."""
    return isinstance(source, str) and _URL.match(source) is not None


def without_query(source: str) -> str:
    """Return a URL up to its query, which may sign it and hides how the file is called; a path as it is."""
    return source.partition("?")[0] if "://" in source and is_url(source) else source


def refuse(source: str, kind: str) -> None:
    """Refuse a URL of a kind of file that is read from disks only."""
    if is_url(source):
        raise SourceError(f"{source} is {kind}, which is not read through URLs; download it and give the file.")


def is_pattern(url: str) -> bool:
    """Return whether it stands for what it matches; a question mark does not: it begins the query of a web address."""
    return "*" in url or "[" in url


def is_local(url: str) -> bool:
    """Return whether a URL stands for a file of this machine."""
    return url.partition("://")[0].lower() in ("file", "local")


def local_path(url: str) -> str:
    """Return the path that a ``file://`` URL stands for, and any other URL or path as it is."""
    return str(filesystem(url)[1]) if is_local(url) else url


def filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system a URL belongs to and its path there."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise SourceError(
            f"{url} is read with fsspec, which is not installed; pip install 'streampca[cloud]'."
        ) from error
    try:
        fs, path = url_to_fs(url, **_options(url))
    except ImportError as error:
        raise SourceError(
            f"{url} cannot be opened ({_first_line(error)}); pip install 'streampca[cloud]', or what it names."
        ) from error
    except (ValueError, OSError) as error:
        raise SourceError(f"{url} cannot be opened ({_first_line(error)}); check the address.") from error
    return fs, path.rstrip("/") or path


def _options(url: str) -> dict[str, Any]:
    """Return what fsspec's file system for HTTP is told: bounds on waiting, and no compression, which hides lengths."""
    schemes = [scheme for scheme in ("http", "https") if re.search(rf"(^|:){scheme}://", url)]
    if not schemes:
        return {}
    try:
        from aiohttp import ClientTimeout
    except ImportError:
        return {}  # fsspec says so itself
    timeout = ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENT)
    options = {"client_kwargs": {"timeout": timeout}, "headers": {"Accept-Encoding": "identity"}}
    return dict.fromkeys(schemes, options)


def first_bytes(url: str, count: int) -> bytes:
    """Return how a file begins; nothing where there is no file (a folder, a glob)."""
    fs, path = filesystem(url)
    with suppress(_MissingError), _asking(url):
        if _speaks_http(fs):
            with fs.open(path, block_size=count, cache_type="none", size=count) as file:
                return bytes(file.read(count))
        # An object store does not answer that a whole bucket is no file.
        if "/" in path or _STORES.isdisjoint(_protocols(fs)):
            return bytes(fs.cat_file(path, start=0, end=count))
    return b""


def exists(url: str) -> bool:
    """Return whether there is a file, as far as its server says."""
    return _info(url) is not None


def _info(url: str) -> dict[str, Any] | None:
    """Return what a server says of a file now; None where there is none."""
    fs, path = filesystem(url)
    with suppress(_MissingError), _asking(url):
        # Object stores answer from their last listing of the folder, however old it is.
        fs.invalidate_cache(path)
        return dict(fs.info(path))
    return None


def file_state(url: str) -> tuple[int, str]:
    """Size in bytes, and entity tag or time of last change: what tells one state of a file from another, cheaply."""
    state = _state_of(_info(url), url)
    if state is None:
        raise _missing(url)
    return state


def states(urls: Sequence[str]) -> list[tuple[int, str] | None]:
    """Return `file_state` of many files, None for those that are not there.

    From a listing of their folder where its server has one, else 16 at a time. Listings and answers for one file may
    differ in what they tell: states are compared with others got as they were.
    """
    folder = common_folder(urls)
    if len(urls) > 1 and folder and is_listed(folder):
        fs, path = filesystem(folder)
        with _asking(folder):
            fs.invalidate_cache()
            listed = fs.find(path, detail=True)
        infos = {_back(fs, name): info for name, info in listed.items()}
        if not infos.keys().isdisjoint(urls):  # else these URLs are written in another way
            return [_state_of(infos.get(url), url) for url in urls]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda url: _state_of(_info(url), url), urls))


def _state_of(info: Mapping[str, Any] | None, url: str) -> tuple[int, str] | None:
    if info is None:
        return None
    info = {str(name).lower(): value for name, value in info.items()}
    if info.get("size") is None or info.get("type") == "directory":
        raise SourceError(f"{url} is not a file whose length its server tells; download it and give the file.")
    return int(info["size"]), ", ".join(str(info[name]) for name in _STATES if info.get(name) is not None)


def is_listed(source: str) -> bool:
    """Return whether listings below a path or URL are complete: those of plain web servers need not be."""
    return not is_url(source) or not _speaks_http(filesystem(source)[0])


def read_into(url: str, start: int, view: memoryview) -> None:
    """Fill `view` with the bytes that begin at `start`, in pieces of at most `PIECE`."""
    fs, path = filesystem(url)
    while view:
        count = min(PIECE, len(view))
        with _asking(url):
            data = fs.cat_file(path, start=start, end=start + count)
        if len(data) != count:
            raise SourceError(
                f"{url} gave {len(data)} bytes where {count} were asked for, from byte {start}; it was cut short or "
                "changed while it was read, check the file."
            )
        view[:count] = data
        view, start = view[count:], start + count


def _check_ranges(url: str, size: int) -> None:
    """Refuse a server that sends whole files when asked for a part: each part would cost all of the file's memory."""
    fs, path = filesystem(url)
    if not _speaks_http(fs) or size < 2:
        return
    try:
        with _asking(url), fs.open(path, block_size=PIECE, cache_type="none", size=size) as file:
            file.seek(size - 1)
            file.read(1)
    except SourceError as error:
        if not isinstance(error.__cause__, ValueError):  # how fsspec says that the answer was not a part
            raise
        raise SourceError(
            f"{url} lies on a server that does not send parts of files (no range requests); download it and give the "
            "file."
        ) from error


def fetch(url: str) -> bytes:
    """Return a whole file."""
    size = file_state(url)[0]
    if size > _MOST_FETCHED:
        raise SourceError(
            f"{url} has {format_bytes(size)}, and files fetched whole have at most {format_bytes(_MOST_FETCHED)}; "
            "download it and give the file."
        )
    fs, path = filesystem(url)
    with _asking(url):
        data = bytes(fs.cat_file(path))
    if len(data) != size:
        raise SourceError(f"{url} gave {len(data)} bytes and has {size}; it was cut short, fetch it again.")
    return data


def matching(url: str) -> list[str]:
    """URLs of the files that a glob matches or that lie below a folder, sorted; none where there are none.

    Plain web servers list their folders only where they show pages of links.
    """
    fs, path = filesystem(url)
    with suppress(_MissingError), _asking(url):
        fs.invalidate_cache()
        infos = (fs.glob if is_pattern(path) else fs.find)(path, detail=True)
        return sorted(_back(fs, name) for name, info in infos.items() if info.get("type") != "directory")
    return []


def _back(fs: Any, path: str) -> str:
    """Return the URL of a file system's path."""
    url = path if is_url(path) else str(fs.unstrip_protocol(path))
    return url.replace("memory:///", "memory://", 1)


def common_folder(urls: Sequence[str]) -> str:
    """Return the folder that all of these lie in, nothing where they have none in common."""
    # Not commonpath, which takes one of the two slashes of a scheme away.
    shared = os.path.commonprefix([f"{url.rpartition('/')[0]}/" for url in urls]).rpartition("/")[0]  # noqa: RUF071
    return shared if is_url(shared) and shared.partition("://")[2] else ""


def state_numbers(urls: Sequence[str]) -> list[tuple[int, int]]:
    """Return sizes in bytes and numbers of the rest of `states`, (-1, -1) for a file that is not there."""
    return [
        (-1, -1) if state is None else (state[0], int.from_bytes(hashlib.sha256(state[1].encode()).digest()[:7], "big"))
        for state in states(urls)
    ]


def open_file(url: str) -> io.BufferedReader:
    """Open a file for reading here and there; blocks of it are fetched and a few of them kept (4 MiB)."""
    from fsspec.spec import AbstractBufferedFile

    fs, path = filesystem(url)
    size = file_state(url)[0]
    _check_ranges(url, size)

    # Not `fs.open`: the file of ``memory://`` is one for all who open it, position included.
    class Ranges(AbstractBufferedFile):  # type: ignore[misc]
        def _fetch_range(self, start: int, end: int) -> bytes:
            data = bytearray(min(end, size) - start)
            read_into(url, start, memoryview(data))
            return bytes(data)

    cache = {"block_size": _BLOCK, "cache_type": "blockcache", "cache_options": {"maxblocks": _BLOCKS}}
    return io.BufferedReader(Ranges(fs, path, size=size, **cache), 2**16)


class _MissingError(SourceError):
    """Nothing is at a URL."""


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Turn what a file system raises, which is what its libraries do, into one line that names the URL."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise failure(url, error) from error


def _is_missing(error: BaseException) -> bool:
    """Return whether an error means that there is nothing at a URL, rather than that its server cannot be asked."""
    root = _root(error)
    if hasattr(root, "status"):  # aiohttp's, which fsspec hides behind a FileNotFoundError whatever it says
        return root.status in (404, 410)
    if isinstance(root, (OSError, TimeoutError)):
        return isinstance(root, _MISSING)
    return isinstance(error, _MISSING)


def failure(url: str, error: BaseException) -> SourceError:
    """Return the error that says in one line why a URL cannot be read."""
    if isinstance(error, SourceError):
        return error
    if _is_missing(error):
        return _missing(url)
    root = _root(error)
    reason = "it did not answer in time" if isinstance(root, TimeoutError) else _first_line(root)
    return SourceError(f"{url} cannot be read ({reason}); check that its server answers and lets you read it.")


def _missing(url: str) -> SourceError:
    return _MissingError(f"{url} does not exist; check the address.")


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")


def _speaks_http(fs: Any) -> bool:
    return "http" in _protocols(fs)


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
