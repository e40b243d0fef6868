"""Where results go: complete, or visibly not.

An output is written beside its place, under a name ending in ``.streampca-partial``, and takes its own name when it is
whole; until then, what is to be replaced stays. One that may be gone on with has a token in that name besides, so that
no other run's is taken for it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from numpy.lib import format as npy_format

from ..errors import OutputError, RequestError
from ..units import MIB
from .writers import ATTRIBUTE, WRITERS, OutputArray, UnfinishedOutput, Writer, wait_for_writes

PARTIAL, REPLACED = ".streampca-partial", ".streampca-replaced"  # nobody else's names: what has them is removed
SCRATCH = ".streampca-scratch"  # what the name of a scratch copy ends in
# Formats of each kind of array: images of more than one axis do not fit a table.
ENDINGS = {"scores": (".zarr", ".npy", ".csv"), "images": (".zarr", ".npy"), "components": (".npy",)}
CSV_START = b"sample,component_1"  # of a table of scores
NEXT_TO_NOTHING = 1 * MIB  # free on a disk: no model or table fits


@contextmanager
def open_writer(
    path: str, table: OutputArray, *, overwrite: bool = False, unfinished: UnfinishedOutput | None = None
) -> Iterator[Writer]:
    """Open an output for writing by the ending of its name; complete it when the block ends well.

    An `unfinished` output is gone on with if it is there as it says, and stays if it breaks off; see `staged`.

    Raises
    ------
    OutputError
        If it exists already and `overwrite` is false, or cannot be written.
    RequestError
        If the ending is of no format that holds such an array, see `ENDINGS`.
    """
    suffix = check_output(path, table.name, overwrite=overwrite, axes=len(table.shape))
    with staged(path, unfinished) as partial:
        sink = WRITERS[suffix](partial, table, unfinished)
        try:
            yield sink
            sink.close()
        except BaseException:
            sink.abandon()
            raise


@contextmanager
def staged(path: str, unfinished: UnfinishedOutput | None = None) -> Iterator[str]:
    """Give the name to write an output under; it takes the output's name when the block ends well, else it is removed.

    What has the output's name already stays until then. Folders above it are made.

    Parameters
    ----------
    path : str
        Of the output.
    unfinished : UnfinishedOutput, optional
        What was written before, to go on with. Where it is not there as it says, it is set to one that begins anew;
        and what is begun by its account when the block breaks off is not removed.

    Raises
    ------
    OutputError
        If something cannot be written.
    """
    path = path.rstrip("/")
    with writing(path):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        partial = _place(path, unfinished)
        try:
            yield partial
            _take_place(partial, path)
        except BaseException:
            if unfinished is None or not unfinished.is_resumable:
                _give_up(partial)
            raise


def _give_up(partial: str) -> None:
    """Remove what was begun, when nobody writes there any more."""
    wait_for_writes()
    with suppress(OSError):
        discard(partial)


def _place(path: str, unfinished: UnfinishedOutput | None) -> str:
    """Where to write an output, or go on; what other runs left there is removed, or recovered."""
    recover(path)
    kept = f"{path}.{unfinished.token}{PARTIAL}" if unfinished is not None and unfinished.is_resumable else None
    if unfinished is not None and kept is not None and not _holds(kept, unfinished.size or 0):
        kept = None
    for other in _partials(path):
        if other != kept:
            discard(other)
    if unfinished is None or kept is not None:
        return kept or path + PARTIAL
    unfinished.token, unfinished.size = uuid.uuid4().hex[:8], None
    return f"{path}.{unfinished.token}{PARTIAL}"


def _holds(partial: str, size: int) -> bool:
    """Whether a partial output is there, and as long as it was."""
    return os.path.isdir(partial) or (os.path.isfile(partial) and os.path.getsize(partial) >= size)


def _partials(path: str) -> list[str]:
    """What runs that broke off left of an output."""
    folder, name = os.path.split(path)
    ours = re.compile(re.escape(name) + r"(\.[0-9a-f]{8})?" + re.escape(PARTIAL))
    return [os.path.join(folder, found) for found in os.listdir(folder or ".") if ours.fullmatch(found)]


def _take_place(partial: str, path: str) -> None:
    """Give a finished output its name; what has it stays whole until then, beside it if it is a folder.

    A process that is killed between the two renames leaves the old output under its other name, for `recover`.
    """
    aside, debris = path + REPLACED, path + PARTIAL
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
    """Give an output its name again that a process which was killed while replacing it had put aside."""
    if os.path.lexists(path + REPLACED) and not os.path.lexists(path):
        os.rename(path + REPLACED, path)


def check_output(path: str, kind: str, *, overwrite: bool, axes: int | None = None) -> str:
    """Return the ending of an output's name, or say why nothing of a kind can be written there.

    Parameters
    ----------
    path : str
        Of the output.
    kind : {"scores", "images", "components"}
        Of what will be written. Only the same kind is replaced.
    overwrite : bool
        Whether what is there may be replaced.
    axes : int, optional
        Number of axes of the array, where it is known.

    Raises
    ------
    RequestError
        If the ending is of no format for it.
    OutputError
        If something else is there, or the same and it must stay; or see `check_place`.
    """
    bare, suffix = path.rstrip("/"), check_ending(path, ENDINGS[kind])
    recover(bare)
    if os.path.lexists(bare):
        if _is_another(bare, suffix, kind, axes):
            raise OutputError(f"{path} exists and is not {kind} written by streampca; choose another output.")
        _check_replacing(path, overwrite)
    check_place(bare)
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
    path: str, *, overwrite: bool, what: str = "such a file", is_another: Callable[[str], bool] | None = None
) -> None:
    """Refuse a place where no file can be made, or where one must stay, before anything is computed.

    Parameters
    ----------
    path : str
        Of the file.
    overwrite : bool
        Whether a file that is there may be replaced.
    what : str
        What is written, for the message.
    is_another : callable, optional
        Says of a file that is there whether it is something else, which is never replaced.

    Raises
    ------
    OutputError
        If it is a folder or something else, exists already and `overwrite` is false, or see `check_place`.
    """
    recover(path)
    if os.path.isdir(path):
        raise OutputError(f"{path} is a folder; choose another output.")
    if os.path.lexists(path):
        if is_another is not None and os.path.isfile(path) and is_another(path):
            raise OutputError(f"{path} exists and is not {what} written by streampca; choose another output.")
        _check_replacing(path, overwrite)
    check_place(path)


def _check_replacing(path: str, overwrite: bool) -> None:
    if not overwrite:
        raise OutputError(
            f"{path} exists already; choose another output, or replace it with --overwrite (overwrite=True)."
        )


def check_place(path: str) -> None:
    """Refuse a place where no file can be made, before anything is computed.

    Raises
    ------
    OutputError
        If it is an URL, or the nearest folder above that exists is none, or may not be written to.
    """
    if "://" in path:
        raise OutputError(f"{path} cannot be written: outputs are files and folders; give a path, and copy it there.")
    above = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise OutputError(f"{path} cannot be written: {above} is not a folder; choose another output.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(f"{path} cannot be written: no permission to write in {above}; choose another output.")


def _is_another(path: str, suffix: str, kind: str, axes: int | None) -> bool:
    """Whether what exists is something else than an output of a kind, which is not to be replaced even if asked.

    Files that say nothing of themselves are taken for what their ending says.
    """
    if suffix == ".zarr":
        about = group_attribute(path)
        return about is None or about.get("kind") != kind
    if not os.path.isfile(path):
        return True
    with open(path, "rb") as file:
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


def group_attribute(path: str) -> dict[str, Any] | None:
    """Return what a Zarr group of ours says of itself; None of anything else, and where others put files into it."""
    try:
        with open(os.path.join(path, "zarr.json"), encoding="utf-8") as file:
            about = json.load(file)["attributes"][ATTRIBUTE]
        own = all(name == "zarr.json" or name.startswith(".") or _is_member(path, name) for name in os.listdir(path))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return about if own and isinstance(about, dict) else None


def _is_member(path: str, name: str) -> bool:
    return os.path.isfile(os.path.join(path, name, "zarr.json"))


def discard(path: str) -> None:
    """Remove a file or folder, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn what the system says about a failed write into one line that helps."""
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(output_problem(path, error)) from error


def output_problem(path: str, error: OSError) -> str:
    """One line about a failed write, with the remedy."""
    folder = os.path.dirname(os.path.abspath(path))
    free = shutil.disk_usage(folder).free if os.path.isdir(folder) else 0
    # Where one thread cannot make a folder for want of space, another may be told that there is no such folder.
    starved = error.errno == errno.ENOENT and os.path.isdir(folder) and free < NEXT_TO_NOTHING
    if starved or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"{path} could not be written: {os.strerror(errno.ENOSPC if starved else error.errno or errno.ENOSPC)} "
            f"({free // MIB} MiB free in {folder}). "
            "Free some space or choose another place, then run the same command again."
        )
    return f"{path} could not be written: {error.strerror or error}; check the folder and its permissions."
