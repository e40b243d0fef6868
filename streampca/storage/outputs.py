"""Staging of outputs: each is complete, or visibly not.

An output is written under a name ending in ``.streampca-partial`` and renamed when it is complete; until then, what it
replaces stays. The partial name of a resumable output holds a token too, so that no other run's is taken for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from importlib.util import find_spec
from typing import IO, Any

from numpy.lib import format as npy_format

from ..errors import ChangedError, DataError, OutputError, RequestError, SourceError
from ..events import Listener, silent
from .bounded_zarr import MOST_METADATA
from .disk import bytes_on_disk, check_place, file_bytes, is_file, is_own, named_beside, sync_folder
from .free_space import check_free_space, writing
from .locks import output_lock
from .object_store import is_there, names_in, staged_at_url
from .object_store import recover as recover_at_url
from .object_store import remove as remove_at_url
from .remote import is_url, naming, open_file
from .tiff_pages import ENDINGS as TIFF
from .tiff_pages import is_another_tiff
from .writers import ATTRIBUTE, PARQUET, WRITERS, OutputArray, UnfinishedOutput, Writer, wait_for_writes

PARTIAL, REPLACED = ".streampca-partial", ".streampca-replaced"  # names that are ours alone: what has them is removed
SCRATCH = ".streampca-scratch"  # ending of the name of a scratch copy
# Formats of each kind of array: images of more than one axis do not fit a table.
ENDINGS = {
    "scores": (".zarr", ".npy", ".csv", PARQUET),
    "images": (".zarr", ".npy", *TIFF),
    "components": (".npy",),
}
UNCOMPRESSED = (".npy", *TIFF)
CSV_START = b"sample,component_1"  # of scores

_note: ContextVar[Callable[[str, str], None] | None] = ContextVar("note", default=None)


@contextmanager
def open_writer(
    path: str,
    table: OutputArray,
    *,
    overwrite: bool = False,
    unfinished: UnfinishedOutput | None = None,
    listener: Listener = silent,
) -> Iterator[Writer]:
    """Open an output for writing in the format its name ends in; complete it when the block ends without an error.

    An `unfinished` output is resumed if its partial file matches, and stays if writing breaks off; see `staged`. The
    listener is warned where there may be too little space for it.

    Raises
    ------
    OutputError
        If it exists already and `overwrite` is false, cannot be written, or is too large for the disk, uncompressed.
    RequestError
        If the ending is of no format that holds such an array, see `ENDINGS`.
    """
    with output_lock(path):
        suffix = check_output(path, table.name, overwrite=overwrite, axes=len(table.shape))
        with staged(path, unfinished, directly=suffix == ".zarr") as partial:
            if not is_url(partial):
                place, missing = partial if is_url(path) else path, table.most_bytes(suffix) - bytes_on_disk(partial)
                check_free_space(place, missing, path, at_most=None if suffix in UNCOMPRESSED else listener)
            sink = WRITERS[suffix](partial, replace(table, path=path), unfinished)
            try:
                yield sink
                sink.close()
            except BaseException:
                sink.abandon()
                raise


@contextmanager
def staged(path: str, unfinished: UnfinishedOutput | None = None, *, directly: bool = False) -> Iterator[str]:
    """Yield the partial name to write an output under; renamed when the block ends without an error, else removed.

    What the output replaces stays until then. Folders above it are made. No other process writes it meanwhile; a caller
    that refuses what is there already does so under the same lock (`output_lock`), or it may be there by then.

    Parameters
    ----------
    path : str
        Of the output.
    unfinished : UnfinishedOutput, optional
        A partial output to resume; reset if it does not match what is on disk. What is resumable when the block breaks
        off is not removed, unless because of its data.
    directly : bool, default=False
        Whether the writer of an output at a URL takes a URL. Otherwise it is written here, and sent when complete.

    Raises
    ------
    OutputError
        If something cannot be written, or another process is writing it.
    """
    path = path.rstrip("/")
    if is_url(path):
        with output_lock(path) as lock, staged_at_url(path, unfinished, directly=directly) as partial:
            yield partial
            wait_for_writes()
            lock.check()
            _noted(partial, path)
        return
    with writing(path), output_lock(path) as lock:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        partial = _partial(path, unfinished)
        try:
            yield partial
            lock.check()
            _noted(partial, path)
            _take_place(partial, path)
            if unfinished is not None:  # the checkpoint is removed next: the output must have its name by then
                sync_folder(os.path.dirname(os.path.abspath(path)))
        except BaseException as error:
            is_useless = isinstance(error, DataError | ChangedError)  # whose remedy is other data
            if lock.is_ours and (unfinished is None or not unfinished.is_resumable or is_useless):
                wait_for_writes()
                with suppress(OSError):
                    discard(partial)
            raise


@contextmanager
def noting_outputs(note: Callable[[str, str], None]) -> Iterator[None]:
    """Call a function with the partial name and the path of each output, complete but not yet renamed, of this thread.

    What it records holds also if the process is killed right after the rename.
    """
    token = _note.set(note)
    try:
        yield
    finally:
        _note.reset(token)


def _noted(partial: str, path: str) -> None:
    if (note := _note.get()) is not None:
        note(partial, path)


def partial_bytes(path: str) -> int:
    """Return the bytes on disk of what a run has begun to write of an output, and another may resume."""
    return sum(bytes_on_disk(os.path.join(os.path.dirname(path), name)) for name in _partials(path))


def _partials(path: str) -> list[str]:
    """Return the partial names of an output that are in its folder."""
    folder, name = os.path.split(named_beside(path))
    ours = re.compile(re.escape(name) + r"(\.[0-9a-f]{8})?" + re.escape(PARTIAL))
    with suppress(FileNotFoundError):
        return [found for found in os.listdir(folder or ".") if ours.fullmatch(found)]
    return []


def _partial(path: str, unfinished: UnfinishedOutput | None) -> str:
    """Return the partial name to write or resume; remove what other runs left of the output, or recover it."""
    recover(path)
    resumed, beside = None, named_beside(path)
    if unfinished is not None and unfinished.size is not None:
        resumed = f"{beside}.{unfinished.token}{PARTIAL}"
        is_whole = is_own(resumed) and (os.path.isdir(resumed) or os.path.getsize(resumed) >= unfinished.size)
        resumed = resumed if is_whole else None
    for found in _partials(path):
        if (other := os.path.join(os.path.dirname(path), found)) != resumed:
            discard(other)
    if unfinished is None or resumed is not None:
        return resumed or beside + PARTIAL
    unfinished.token, unfinished.size = uuid.uuid4().hex[:8], None
    return f"{beside}.{unfinished.token}{PARTIAL}"


def _take_place(partial: str, path: str) -> None:
    """Rename a finished output; a folder that it replaces is moved aside first, from where `recover` takes it back."""
    aside, debris = named_beside(path) + REPLACED, named_beside(path) + PARTIAL
    moved = os.path.isdir(path) or (os.path.isdir(partial) and os.path.lexists(path))
    if moved:
        discard(aside)  # an older output, whose successor is the one at the path
        os.rename(path, aside)
    try:
        os.replace(partial, path)
    except BaseException:
        if moved:
            os.rename(aside, path)
        raise
    with suppress(OSError):  # the output is complete; the next run removes what is left of the old one
        if os.path.lexists(aside):
            discard(debris)
            os.rename(aside, debris)  # half removed, it must not be taken for what is to be recovered
            discard(debris)


def recover(path: str) -> None:
    """Restore an output that a process moved aside and was killed before replacing; refuse one that it does replace.

    Raises
    ------
    OutputError
        If anything else has the name that such an output has: who knows it may have put a link there.
    """
    if is_url(path):
        with output_lock(path):
            recover_at_url(path)
        return
    aside = named_beside(path) + REPLACED
    if os.path.lexists(aside) and not os.path.lexists(path):
        with output_lock(path):
            if os.path.lexists(aside) and not os.path.lexists(path):
                _check_own_folder(aside)
                os.rename(aside, path)


def _check_own_folder(aside: str) -> None:
    """Refuse what is not a folder that was moved aside: one of ours, or an empty one, which outputs may replace."""
    if os.path.islink(aside) or not os.path.isdir(aside):
        what = "a link" if os.path.islink(aside) else "not a folder"
    elif os.listdir(aside) and group_attribute(aside) is None:
        what = "a folder that streampca has not written"
    else:
        return
    raise OutputError(
        f"{aside} is {what}, and only an output that a run was replacing when it was killed has such a name; remove or "
        "rename it."
    )


def check_output(path: str, kind: str, *, overwrite: bool, axes: int | None = None) -> str:
    """Return the ending of an output's name, or refuse it.

    Parameters
    ----------
    path : str
        Of the output.
    kind : {"scores", "images", "components"}
        Of what will be written. Only the same kind is replaced.
    overwrite : bool
        Whether an existing output may be replaced.
    axes : int, optional
        Number of axes of the array, where it is known.

    Raises
    ------
    RequestError
        If the ending is of no format for it, or of one whose package is not installed.
    OutputError
        As `check_existing`.
    """
    bare, suffix = path.rstrip("/"), check_ending(path, ENDINGS[kind])
    if suffix == PARQUET and find_spec("pyarrow") is None:
        raise RequestError(
            f"output {path} is written with pyarrow, which is not installed; pip install 'streampca[parquet]', or "
            "choose another format, such as .csv."
        )
    check_existing(bare, kind, overwrite=overwrite, is_another=lambda path: _is_another(path, suffix, kind, axes))
    return suffix


def check_ending(path: str, endings: Sequence[str]) -> str:
    """Return the ending of an output's name in lower case.

    Raises
    ------
    RequestError
        If it is none of those that work, which the message lists.
    """
    suffix = os.path.splitext(path.rstrip("/"))[1].lower()
    if suffix not in endings:
        raise RequestError(f"output {path} ends in none of {', '.join(endings)}; choose one of these formats.")
    return suffix


def check_file(
    path: str, *, overwrite: bool, what: str = "such a file", is_another: Callable[[str], bool] = lambda _: False
) -> None:
    """Refuse a path where no file can be written, or where one must stay, before anything is computed.

    Parameters
    ----------
    path : str
        Of the file.
    overwrite : bool
        Whether an existing file may be replaced.
    what : str
        What is written, for the message.
    is_another : callable, optional
        Whether an existing file is something else, which is never replaced.

    Raises
    ------
    OutputError
        If it is a folder, or as `check_existing`.
    """
    if is_url(path):
        check_place(path)
    recover(path)
    if os.path.isdir(path):
        raise OutputError(f"{path} is a folder; choose another output.")
    check_existing(path, what, overwrite=overwrite, is_another=lambda path: os.path.isfile(path) and is_another(path))


def is_present(path: str) -> bool:
    """Return whether there is anything at a path or URL."""
    return is_there(path) if is_url(path) else os.path.lexists(path)


def check_existing(path: str, what: str, *, overwrite: bool, is_another: Callable[[str], bool]) -> None:
    """Refuse an output where something else is, or where one must stay, or `check_place` refuses it."""
    recover(path)
    if is_present(path):
        if is_another(path):
            raise OutputError(f"{path} exists and is not {what} written by streampca; choose another output.")
        if not overwrite:
            raise OutputError(
                f"{path} exists already; choose another output, or replace it with --overwrite (overwrite=True)."
            )
    if not is_url(path):
        check_place(path)


def _is_another(path: str, suffix: str, kind: str, axes: int | None) -> bool:
    """Return whether what exists is not an output of a kind; files without metadata are what their ending says."""
    if suffix == ".zarr":
        about = group_attribute(path)
        return about is None or about.get("kind") != kind
    if not is_file(path):
        return True
    with open_file(path) if is_url(path) else open(path, "rb") as file:
        if suffix in TIFF or suffix == PARQUET:
            return is_another_tiff(file) if suffix in TIFF else not _is_own_table(file)
        if suffix == ".csv":
            first = file.readline(len(CSV_START))
            return bool(first) and first != CSV_START
        try:
            read = {1: npy_format.read_array_header_1_0, 2: npy_format.read_array_header_2_0}
            shape, _, dtype = read[npy_format.read_magic(file)[0]](file)
        except (ValueError, KeyError):
            return False
    wanted = axes or (2 if kind == "scores" else None)
    return dtype.kind != "f" or (len(shape) < 2 if wanted is None else len(shape) != wanted)


def _is_own_table(file: IO[bytes]) -> bool:
    """Return whether a file is a Parquet file of ours."""
    from pyarrow import ArrowInvalid, parquet

    try:
        return ATTRIBUTE.encode() in (parquet.read_schema(file).metadata or {})
    except ArrowInvalid:
        return False


def group_attribute(path: str) -> dict[str, Any] | None:
    """Return our root attribute of a Zarr group; None of anything else, and where others put files into it."""
    try:
        with naming(path):
            document = json.loads(file_bytes(os.path.join(path, "zarr.json"), MOST_METADATA))
        about = document["attributes"][ATTRIBUTE]
        listed = names_in(path) if is_url(path) else os.listdir(path)
        others = [name for name in listed if name != "zarr.json" and not name.startswith(".")]
        if is_url(path):  # where each file is a request
            own = {*others} <= {*document["consolidated_metadata"]["metadata"]}
        else:
            own = all(os.path.isfile(os.path.join(path, name, "zarr.json")) for name in others)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if is_url(path) and isinstance(error, SourceError):  # its store did not answer, or refused
            raise
        return None
    return about if own and isinstance(about, dict) else None


def discard(path: str) -> None:
    """Remove a file or folder, or what is at a URL and below it, if it is there."""
    if is_url(path):
        remove_at_url(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)
