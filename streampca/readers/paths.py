"""Paths that a source names: their resolution before opening, and checks that outputs do not overwrite them."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RequestError, SourceError, nearest
from ..storage import remote
from ..storage.disk import expanded, open_regular
from .collection import Collection, file_and_key
from .detect import is_array_files, is_zarr
from .image_files.find import EXTENSIONS, MANY
from .stored.files import check_kind
from .system_folders import matching
from .views.columns import TABLES, array_of_table, cells, short_lines, table_column, undecoded


def resolve_source(source: Any, *, allow_remote: bool = False) -> Any:
    """Turn paths into text, a list file into its list, a glob with one match into that; refuse missing paths.

    URLs in a list file are refused unless `allow_remote`: the file can be somebody else's.
    """
    requested, source = source, _spelled_out(source)
    if isinstance(source, list) and isinstance(requested, (str, os.PathLike)) and not allow_remote:
        check_not_remote(source, f"the list {os.fspath(requested)}")
    if not isinstance(source, str) or remote.is_url(source):
        return source
    if os.path.exists(source):
        check_kind(source)
        return source
    if not glob.has_magic(source):
        raise SourceError(f"{source} does not exist{_parent_hint(source)} Check the path.")
    matches = [*matching(source)]
    for match in matches:
        check_kind(match)
    return matches[0] if len(matches) == 1 else source


def check_not_remote(paths: Any, subject: str, verb: str = "fetched") -> None:
    """Refuse URLs among paths, a text or a list of texts, except those of files of this machine.

    The verb says what is done with them.

    Raises
    ------
    RequestError
        Names the first one.
    """
    for path in [paths] if isinstance(paths, str) else paths if isinstance(paths, list) else ():
        if isinstance(path, str) and remote.is_url(path) and not remote.is_local(path):
            raise RequestError(
                f"{subject} names {path}, and URLs in it are {verb} only with --allow-remote "
                "(allow_remote=True); give that if you trust it, or take the URL out."
            )


def paths_of(source: Any) -> list[str]:
    """Return the files, folders, globs and URLs that a source is read from; none for an object in memory.

    For a list they are its items and the file that holds it; for an array or a collection, the files it knows.
    """
    if isinstance(source, Collection):
        paths: list[Any] = source.paths()
    else:
        spelled = _spelled_out(source)
        paths = [*(spelled if isinstance(spelled, list) else [spelled]), *files_beside(source)]
    return [path for path in paths if isinstance(path, str)]


def files_beside(source: Any) -> list[str]:
    """Return the files of an array, or the file of a list of paths, which a collection's `source` does not name."""
    if isinstance(source, (str, os.PathLike)):
        if not isinstance(_spelled_out(source), list):
            return []
        text = expanded(source)  # ``@list.txt`` or ``table.csv:column``
        return [expanded(text[1:]) if text.startswith("@") else text.rpartition(":")[0]]
    return [] if isinstance(source, (list, tuple, Collection)) else files_behind(source)


def column_paths(*columns: Any) -> list[str]:
    """Return the files of columns, and of masks or factors by pixel; none for arrays in memory."""
    paths = []
    for column in columns:
        if isinstance(column, (str, os.PathLike)):
            path = expanded(column)
            table, _, _ = path.rpartition(":")
            paths += [path, table] if remote.is_url(path) else [path] if os.path.exists(path) or not table else [table]
        elif column is not None:
            paths += files_behind(column)
    return [path for path in paths if remote.is_url(path) or os.path.exists(path)]


def fitted_on(provenance: Mapping[str, Any]) -> list[str]:
    """Return the file, store or URL that a model was fitted on, by its provenance; not a file that is gone."""
    source = provenance.get("source")
    path = file_and_key(source)[0] if isinstance(source, str) else ""
    return [path] if remote.is_url(path) or os.path.isfile(path) or is_zarr(path) else []


def check_apart(files: Sequence[str], sources: Sequence[str], reader: str = "the run reads") -> None:
    """Refuse outputs that would replace a source, or become part of it."""
    _check_urls_apart([path for path in files if remote.is_url(path)], sources, reader)
    files, sources = ([path for path in paths if not remote.is_url(path)] for paths in (files, sources))
    outputs = {identity[:2]: path for path in files if (identity := _identity(path))}
    places = {path: os.path.realpath(path) for path in files}
    folders = {os.path.join(place, ""): path for path, place in places.items() if os.path.isdir(path)}
    for source in sources:
        identity = _identity(source)
        if identity and identity[:2] in outputs:
            raise RequestError(f"output {outputs[identity[:2]]} is what {reader}; choose another output.")
        held = next((path for folder, path in folders.items() if os.path.realpath(source).startswith(folder)), None)
        if identity and held:
            raise RequestError(f"output {held} holds {source}, which {reader}; choose another output.")
        if identity and not stat.S_ISDIR(identity[2]):
            continue
        store = os.path.join(os.path.realpath(source), "") if is_zarr(source) else None
        for path in files:
            if store is not None and places[path].startswith(store):
                raise RequestError(f"output {path} lies in {source}, which {reader}; choose an output outside.")
            if _finds(source, path):
                raise RequestError(
                    f"output {path} would become part of the collection {source} the next time; choose an output "
                    "elsewhere."
                )


def _check_urls_apart(outputs: Sequence[str], sources: Sequence[str], reader: str) -> None:
    """Refuse outputs at URLs that are a source, lie in it, hold it, or match it, a glob; nothing is fetched."""
    if not outputs:
        return
    for source in filter(remote.is_url, sources):
        read = remote.place(source)
        for output, written in ((output, remote.place(output)) for output in outputs):
            if read == written:
                raise RequestError(f"output {output} is what {reader}; choose another output.")
            if read.startswith(f"{written}/"):
                raise RequestError(f"output {output} holds {source}, which {reader}; choose another output.")
            if written.startswith(f"{read}/"):
                raise RequestError(f"output {output} lies in {source}, which {reader}; choose an output outside.")
            parts = (Path(written), *Path(written).parents)
            if remote.is_pattern(read) and any(_matches(str(Path(read)), str(part)) for part in parts):
                raise RequestError(
                    f"output {output} would become part of the collection {source} the next time; choose an output "
                    "elsewhere."
                )


def _identity(path: str) -> tuple[int, int, int] | None:
    """Return device, inode and mode of a path, which are the same for every spelling of it; None if it is missing."""
    with suppress(OSError, ValueError):
        state = os.stat(path)
        return state.st_dev, state.st_ino, state.st_mode
    return None


def _finds(source: str, path: str) -> bool:
    """Return whether a source, a glob or a folder, would match an output that is yet to be written."""
    output, place = Path(os.path.realpath(path)), os.path.realpath(source)
    if not os.path.exists(source):
        return glob.has_magic(source) and any(_matches(place, str(part)) for part in (output, *output.parents))
    kind = output.suffix.lower()
    if kind in EXTENSIONS:
        return output.is_relative_to(place)
    return kind in MANY and str(output.parent) == place and is_array_files(source)


def _matches(pattern: str, path: str) -> bool:
    """Return whether a glob would match a path that does not exist yet."""
    if "**" in pattern:  # which can match no folder at all
        return fnmatch(path, pattern.replace(os.path.join("**", ""), "*"))
    return Path(path).match(pattern)


def _spelled_out(source: Any) -> Any:
    """Return paths as text and a list file as its list; anything else, such as globs and missing paths, as it is."""
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, (list, tuple)) and all(isinstance(item, (str, os.PathLike)) for item in source):
        return [expanded(item) for item in source]
    if isinstance(source, str) and remote.is_url(source):
        source = remote.local_path(source)
    if not isinstance(source, str) or remote.is_url(source):
        return source
    source = expanded(source)
    if os.path.exists(source):
        return source
    if source.startswith("@"):
        return _listed(expanded(source[1:]))
    table = table_column(source)
    if table is None:
        return source
    paths = [_from(os.path.dirname(table[0]), cell) for cell in cells(*table) if cell]
    if paths and not _may_exist(paths[0]) and (saving := array_of_table(table[0])) is not None:
        raise SourceError(f"{source} holds numbers, not paths; make an array of a table of pixels by {saving}.")
    return paths


def _listed(path: str) -> list[str]:
    """Read paths, one per line; relative ones start at the list's own folder."""
    try:
        with open_regular(path, "r", encoding="utf-8-sig") as file:  # some editors begin UTF-8 with a byte order mark
            lines = [line.strip() for line in short_lines(file, path)]
    except UnicodeDecodeError as error:
        raise undecoded(path, error) from error
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read as a list of paths ({error.strerror}); give a text file of them."
        ) from error
    paths = [_from(os.path.dirname(path), line) for line in lines if line]
    if paths and path.lower().endswith(TABLES) and not _may_exist(paths[0]):
        raise RequestError(f"{path} is a table; take its column of paths by {path}:COLUMN, without the @.")
    for line in lines:
        if line[:1] in ("'", '"') and line[-1] == line[0] and not _may_exist(_from(os.path.dirname(path), line)):
            raise SourceError(f"{path} has paths in quotation marks, such as {line}; write them without.")
    return paths


def _may_exist(path: str) -> bool:
    return remote.is_url(path) or glob.has_magic(path) or os.path.exists(path)


def _from(folder: str, path: str) -> str:
    """Return a path relative to a folder; URLs and absolute paths stay as they are."""
    return path if remote.is_url(path) else os.path.join(folder, expanded(path))


def _parent_hint(path: str) -> str:
    """Return a hint at the first missing part of a path and the nearest existing names."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(parent):
        path, parent = parent, os.path.dirname(parent)
    missing = os.path.basename(os.path.abspath(path))
    entries = os.listdir(parent)[:2000] if os.path.isdir(parent) else []
    return f" (no {missing!r} in {parent}).{nearest(missing, entries)}" if entries else "."


def files_behind(source: Any) -> list[str]:
    """Return the files and folders behind an array or a group of arrays; none for arrays in memory.

    Supported are `numpy.memmap` and its views, zarr, h5py, numpy's archives, xarray, and dictionaries of these.
    """
    candidates = (path for path in _candidates(source) if isinstance(path, (str, os.PathLike)))
    return [os.fspath(path) for path in candidates if remote.is_url(path) or os.path.exists(path)]


def _candidates(source: Any) -> Iterator[Any]:
    package = type(source).__module__.partition(".")[0]
    if isinstance(source, np.ndarray):
        while source is not None:
            yield getattr(source, "filename", None)
            source = getattr(source, "base", None)
    elif package == "zarr":
        place = source.store_path
        root = getattr(place.store, "root", None) or getattr(place.store, "path", None)
        if (fs := getattr(place.store, "fs", None)) is not None:
            yield getattr(fs, "sync_fs", fs).unstrip_protocol(f"{root}/{place.path}")
        elif isinstance(root, (str, os.PathLike)):
            inside = os.path.join(root, place.path)
            yield inside if os.path.exists(inside) else root
    elif package == "h5py":
        yield source.file.filename if source else None
    elif package == "numpy":
        yield getattr(getattr(source, "zip", None), "filename", None)
    elif isinstance(source, dict):
        for member in source.values():
            yield from _candidates(member)
    else:
        yield getattr(source, "encoding", {}).get("source")
        for member in getattr(source, "data_vars", {}).values():
            yield member.encoding.get("source")
