"""Files behind URLs of any scheme that fsspec knows (https://filesystem-spec.readthedocs.io), read by ranges.

File systems are looked up by URL in every call and not held, so that collections pickle small and work in any process:
fsspec caches one per process, kind and set of options. fsspec also retries; waiting is bounded here.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import RequestError, SourceError, without_secrets
from ..units import MIB, format_bytes

# Seconds until a server must accept a connection, and between two pieces it sends: slow servers pass, silent ones fail.
_CONNECT, _SILENT = 20.0, 60.0
# Bytes per request, which bounds the copy that fsspec returns.
PIECE = 4 * MIB
# Concurrent requests for the states of files: the latency of a server dominates.
_AT_ONCE = 16
# Longest file that is fetched whole: larger ones are not images.
_MOST_FETCHED = 256 * MIB
# Bytes of a block of an opened file, and blocks that are cached: headers and indices are read at scattered positions.
_BLOCK, _BLOCKS = MIB, 4
# Bytes of memory of an opened file: its cached blocks, and the copies that it hands out.
OPENED_BYTES = (_BLOCKS + 2) * _BLOCK
# A scheme has two letters or more: one is a Windows drive. fsspec chains file systems ("simplecache::s3://").
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]+)*://")
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Schemes of object stores, whose paths begin with a bucket.
_STORES = frozenset(("s3", "gs", "abfs", "az"))
# Schemes by the other ones of the same store.
_SAME = {"s3a": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}
# Keys under which file systems return the state of a file, besides its size.
_STATES = ("etag", "last-modified", "lastmodified", "mtime", "updated", "generation", "created", "content-md5")


# Options of file systems by the start of the URLs that they are for; of the process, as the caches of fsspec are.
_GIVEN: dict[str, Mapping[str, Any]] = {}


def storage_options(url: str, options: Mapping[str, Any] | None) -> None:
    """Use options of a store for a URL and all below it, in this process and in the workers of its runs.

    They are given to the file system of fsspec that opens these URLs, and are written nowhere. Commands, and Python by
    default, use the environment variables and files of the store's own tools, and fsspec's configuration.

    Parameters
    ----------
    url : str
        Start of the URLs up to a slash, such as ``s3://bucket``: ``s3://bucket-of-another`` is not meant. Where several
        fit, the longest holds. Give a bucket or folder, as the locks of outputs lie beside them.
    options : mapping of str to object, or None
        Keywords of the file system, such as ``{"anon": True}`` or ``{"endpoint_url": ..., "key": ..., "secret": ...}``
        of s3fs, which can be pickled; None forgets those that were given.

    Raises
    ------
    RequestError
        If it is no URL.

    Examples
    --------
    >>> import streampca
    >>> streampca.storage_options("s3://open-data", {"anon": True})
    >>> streampca.storage_options("s3://open-data", None)
    """
    if not is_url(url):
        raise RequestError(f"url = {without_secrets(str(url))!r} is not a URL; give its start, such as s3://bucket.")
    if options is None:
        _GIVEN.pop(url, None)
    else:
        _GIVEN[url] = dict(options)


def given_options() -> dict[str, Mapping[str, Any]]:
    """Return the options that were given, by the start of URLs, for the workers of a run."""
    return dict(_GIVEN)


def use_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace the options that were given, by the start of URLs, by others."""
    _GIVEN.update(options)
    for url in _GIVEN.keys() - options.keys():
        _GIVEN.pop(url, None)


def is_url(source: Any) -> bool:
    """Return whether a source is a text that begins with a scheme."""
    return isinstance(source, str) and _URL.match(source) is not None


def without_query(source: str) -> str:
    """Return a URL up to its query, which would hide the extension of the file; a path as it is."""
    return source.partition("?")[0] if "://" in source and is_url(source) else source


def place(url: str) -> str:
    """Return one text for all spellings of a URL, without asking its server: no query, user, or dots in its path."""
    scheme, _, rest = without_query(url).partition("://")
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    host, _, path = rest.lstrip("/").partition("/")
    host = host.partition("@")[0] if scheme == "abfs" else host.rpartition("@")[2]  # container@account, user@host
    return f"{scheme}://{posixpath.normpath(f'{host}/{path}').strip('/')}"


def refuse(source: str, kind: str) -> None:
    """Refuse a URL of a format that is read from local files only."""
    if is_url(source):
        raise SourceError(f"{source} is {kind}, which is not read through URLs; download it and give the file.")


def is_pattern(url: str) -> bool:
    """Return whether a URL is a glob; a question mark is not one, as it begins the query of a web address."""
    return "*" in url or "[" in url


def is_local(url: str) -> bool:
    """Return whether a URL names a file of this machine."""
    return url.partition("://")[0].lower() in ("file", "local")


def local_path(url: str) -> str:
    """Return the path of a ``file://`` URL, and any other URL or path as it is."""
    return str(filesystem(url)[1]) if is_local(url) else url


def filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
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
    except (ValueError, TypeError, OSError) as error:
        raise SourceError(f"{url} cannot be opened ({_first_line(error)}); check the address.") from error
    return fs, path.rstrip("/") or path


def is_in_store(url: str) -> bool:
    """Return whether a URL names more than a store or a bucket of one."""
    fs, path = filesystem(url)
    return bool(path.strip("/")) and ("/" in path.strip("/") or _STORES.isdisjoint(_protocols(fs)))


def is_in_memory(url: str) -> bool:
    """Return whether what is at a URL is in the memory of this process alone."""
    return "memory" in _protocols(filesystem(url)[0])


def _options(url: str) -> dict[str, Any]:
    """Return the options of fsspec's file systems by scheme.

    HTTP gets timeouts, and no compression, which would hide lengths. s3fs asks for the size of each object that it may
    read in several parts at once: one part is one request, and several objects are read at once here.
    """
    schemes = {scheme for scheme in ("http", "https", "s3", "s3a") if re.search(rf"(^|:){scheme}://", url)}
    options: dict[str, Any] = {scheme: {"max_concurrency": 1} for scheme in schemes & {"s3", "s3a"}}
    with suppress(ImportError):  # fsspec reports the missing package itself
        if schemes - options.keys():
            from aiohttp import ClientTimeout

            timeout = ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENT)
            by_http = {"client_kwargs": {"timeout": timeout}, "headers": {"Accept-Encoding": "identity"}}
            options |= dict.fromkeys(schemes - options.keys(), by_http)
    if starts := [start for start in [*_GIVEN] if _begins(url, start)]:
        scheme = url.partition("://")[0].rpartition("::")[2]
        options[scheme] = {**options.get(scheme, {}), **_GIVEN[max(starts, key=len)]}
    return options


def _begins(url: str, start: str) -> bool:
    """Return whether a URL is another or lies below it: hosts and buckets can begin with the names of others."""
    return url == start or url.startswith(start if start.endswith("/") else f"{start}/")


def first_bytes(url: str, count: int) -> bytes:
    """Return the first bytes of a file; nothing if there is no file (a folder, a glob)."""
    fs, path = filesystem(url)
    with suppress(MissingError), _asking(url):
        if _speaks_http(fs):
            with fs.open(path, block_size=count, cache_type="none", size=count) as file:
                return bytes(file.read(count))
        # An object store raises no error of a missing file for a whole bucket.
        if "/" in path or _STORES.isdisjoint(_protocols(fs)):
            return bytes(fs.cat_file(path, start=0, end=count))
    return b""


def exists(url: str) -> bool:
    """Return whether a file exists, by its server's answer."""
    return _info(url) is not None


def is_file(url: str) -> bool:
    """Return whether a URL names a file, not a folder."""
    return bool((_info(url) or {}).get("type", "directory") != "directory")


def _info(url: str) -> dict[str, Any] | None:
    """Return what a server says of a file now; None where there is none."""
    fs, path = filesystem(url)
    with suppress(MissingError), _asking(url):
        # Object stores answer from their last listing of the folder, however old it is.
        fs.invalidate_cache(path)
        return dict(fs.info(path))
    return None


def file_state(url: str) -> tuple[int, str]:
    """Return size in bytes, and entity tag or time of last change: a cheap way to detect changes of a file."""
    state = _state_of(_info(url), url)
    if state is None:
        raise _missing(url)
    return state


def states(urls: Sequence[str]) -> list[tuple[int, str] | None]:
    """Return `file_state` of many files, None for missing ones.

    They come from a listing of the folder if its server has one, else from 16 requests at a time. A listing and an
    answer for one file can differ in detail, so only states obtained in the same way are compared.
    """
    folder = common_folder(urls)
    if len(urls) > 1 and folder and is_listed(folder):
        fs, path = filesystem(folder)
        with _asking(folder):
            fs.invalidate_cache()
            listed = fs.find(path, detail=True)
        infos = {_back(fs, name): info for name, info in listed.items()}
        if not infos.keys().isdisjoint(urls):  # otherwise the listing spells these URLs differently
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
    """Return whether listings below a path or URL are complete, which plain web servers do not guarantee."""
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
    """Refuse a server that ignores ranges and sends whole files: each part would need the memory of the whole file."""
    fs, path = filesystem(url)
    if not _speaks_http(fs) or size < 2:
        return
    try:
        with _asking(url), fs.open(path, block_size=PIECE, cache_type="none", size=size) as file:
            file.seek(size - 1)
            file.read(1)
    except SourceError as error:
        if not isinstance(error.__cause__, ValueError):  # fsspec's error for an answer that is not a part
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
    """Return the sorted URLs of the files that a glob matches or that lie below a folder.

    Plain web servers list a folder only if they show a page of links.
    """
    fs, path = filesystem(url)
    with suppress(MissingError), _asking(url):
        fs.invalidate_cache()
        infos = (fs.glob if is_pattern(path) else fs.find)(path, detail=True)
        return sorted(_back(fs, name) for name, info in infos.items() if info.get("type") != "directory")
    return []


def _back(fs: Any, path: str) -> str:
    """Return the URL of a path in a file system."""
    url = path if is_url(path) else str(fs.unstrip_protocol(path))
    return url.replace("memory:///", "memory://", 1)


def common_folder(urls: Sequence[str]) -> str:
    """Return the deepest folder that contains all URLs, an empty text if there is none."""
    # commonpath would drop one of the two slashes of a scheme.
    shared = os.path.commonprefix([f"{url.rpartition('/')[0]}/" for url in urls]).rpartition("/")[0]  # noqa: RUF071
    return shared if is_url(shared) and shared.partition("://")[2] else ""


def state_numbers(urls: Sequence[str]) -> list[tuple[int, int]]:
    """Return `states` as pairs of integers: size in bytes and a digest of the rest; (-1, -1) for a missing file."""
    return [
        (-1, -1) if state is None else (state[0], int.from_bytes(hashlib.sha256(state[1].encode()).digest()[:7], "big"))
        for state in states(urls)
    ]


def open_file(url: str, *, block: int = _BLOCK) -> io.BufferedReader:
    """Open a file for random access; blocks of so many bytes are fetched as needed, and the latest four cached."""
    from fsspec.spec import AbstractBufferedFile

    fs, path = filesystem(url)
    size = file_state(url)[0]
    _check_ranges(url, size)

    # `fs.open` is avoided: all users of a file of ``memory://`` would share one object and its position.
    class Ranges(AbstractBufferedFile):  # type: ignore[misc]
        def _fetch_range(self, start: int, end: int) -> bytes:
            data = bytearray(min(end, size) - start)
            read_into(url, start, memoryview(data))
            return bytes(data)

    cache = {"block_size": block, "cache_type": "blockcache", "cache_options": {"maxblocks": _BLOCKS}}
    return io.BufferedReader(Ranges(fs, path, size=size, **cache), 2**16)


class MissingError(SourceError):
    """Nothing is at a URL."""


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Turn errors of a file system, which can be any of its libraries', into a SourceError that names the URL."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        raise failure(url, error) from error


@contextmanager
def naming(url: str) -> Iterator[None]:
    """Name a URL in errors about the files below it."""
    try:
        yield
    except SourceError as error:
        if error.__cause__ is None:
            raise
        raise failure(url, error.__cause__) from error.__cause__


def _is_missing(error: BaseException) -> bool:
    """Return whether an error means that nothing exists at a URL, rather than that its server failed."""
    root = _root(error)
    if hasattr(root, "status"):  # aiohttp's error, which fsspec turns into a FileNotFoundError for every status
        return root.status in (404, 410)
    if isinstance(root, (OSError, TimeoutError)):
        return isinstance(root, _MISSING)
    return isinstance(error, _MISSING)


def failure(url: str, error: BaseException) -> SourceError:
    """Return the error that tells in one line why a URL cannot be read."""
    if isinstance(error, SourceError):
        return error
    if _is_missing(error):
        return _missing(url)
    return SourceError(
        f"{url} cannot be read ({reason_of(error)}); check that its server answers and lets you read it."
    )


def reason_of(error: BaseException) -> str:
    """Return the cause of an error of a file system in a line."""
    root = _root(error)
    return "it did not answer in time" if isinstance(root, TimeoutError) else _first_line(root)


def _missing(url: str) -> SourceError:
    return MissingError(f"{url} does not exist; check the address.")


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
