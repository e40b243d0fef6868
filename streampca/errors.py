"""Everything streampca raises on purpose: one tree, each message giving subject, value, limit and a remedy that works.

A message is one line. The command line prints it as it is and ends with the exit code of its class, so nothing here
needs a traceback to be understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum, auto

# What may be secret in a URL: a user with a password, or over HTTP alone, and a query, which may be signed.
_USER = re.compile(r"(?:(?<=http://)|(?<=https://)|(?<=://)(?=[^/\s@]*:))[^/\s]*@", re.IGNORECASE)
_QUERY = re.compile(r"(\w://[^\s?]*\?)\S*?(?=[.,;:)\]'\"]*(?:\s|$))")


def without_secrets(text: str) -> str:
    """Return text with user, password and query of the URLs in it replaced by ``***``."""
    return _QUERY.sub(r"\1***", _USER.sub("***@", text)) if "://" in text else text


def readable(text: str) -> str:
    """Return text with control characters, lone surrogates and changes of direction escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class Door(Enum):
    """Where messages are read, which decides how they name options, and what outlives the call."""

    PYTHON = auto()
    COMMAND_LINE = auto()
    UNKNOWN = auto()  # on a worker, whose messages are worded where they arrive


_door: ContextVar[Door] = ContextVar("door", default=Door.PYTHON)

# An option for both doors is ``--grey (grey=True)``, ``--tol (tol)`` or, in parentheses, ``(--part 1/4, part=1/4)``.
_QUOTED = r"'[^']*'|\"[^\"]*\""
_VALUES = rf"(?:{_QUOTED}|\((?:{_QUOTED}|[^()'\"])*\)|[^()'\"])*"
_BOTH_DOORS = re.compile(
    rf"(?<![\w-])(?P<option>(?P<name>--?[a-z][a-z-]*)(?:{_QUOTED}|(?! --)[^()'\"]){{0,40}}?)"
    rf" \((?P<python>[a-z_]+={_VALUES}|[a-z_]+|streampca\.[a-z_]+)\)"
    rf"|(?<![\w-])(?P<steps>--[a-z][^()]{{0,40}}?) \((?P<preparation>Preparation\({_VALUES}\))\)"
    rf"|(?<=\()(?P<within>--?[a-z][a-z-]*(?:{_QUOTED}|[^,()'\"])*), (?P<keyword>[a-z_]+(?:={_VALUES})?)(?=\))"
)


@contextmanager
def messages_at(door: Door) -> Iterator[None]:
    """Word the messages of this thread, and of threads that it starts, for a door."""
    token = _door.set(door)
    try:
        yield
    finally:
        _door.reset(token)


def door() -> Door:
    """Return where messages of this thread are read."""
    return _door.get()


def worded(text: str) -> str:
    """Return a message with its options as the door in use names them, where it names them for both doors."""
    if (where := door()) is Door.UNKNOWN:
        return text

    def option(match: re.Match[str]) -> str:
        python = match["python"] or match["preparation"] or match["keyword"]
        typed = match["option"] or match["steps"] or match["within"]
        if match["python"] and "=" not in python and "." not in python:  # or something else in parentheses
            is_short = len(match["name"]) == 2 == len(typed)
            if not is_short and not python.startswith(typed.strip("-").replace("-", "_")):
                return match[0]
        return typed if where is Door.COMMAND_LINE else python

    return _BOTH_DOORS.sub(option, text)


RESUMABLE = 75  # exit code of a run that ended before it was complete, and that the same command resumes


class StreampcaError(Exception):
    """Base of every error raised on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(arg) if isinstance(arg, str) else arg for arg in args))

    def __str__(self) -> str:
        return worded(str(self.args[0])) if self.args else ""


class SourceError(StreampcaError, ValueError):
    """A path, URL or object that cannot be read as a collection: missing, broken, ambiguous or of an unknown format."""


class ChangedError(SourceError):
    """A source that changed while it was read, so that the result is of no one state of the data."""


class DataError(StreampcaError, ValueError):
    """Values no analysis can use: NaN or infinity, one sample only, no variance at all."""


class RequestError(StreampcaError, ValueError):
    """An option that is wrong by itself or wrong for this collection."""

    exit_code = 2


class IndexingError(RequestError, IndexError):
    """Samples or pixels of a collection that are not there, or that it cannot be indexed by."""


class MissingEntryError(RequestError):
    """An entry or value that an axis of a source does not have."""


class EmptySelectionError(MissingEntryError):
    """A range of values that no entry of an axis lies in; of files that are joined, those without any are left out."""


class RepeatedAxisError(RequestError):
    """An axis that `select` names twice, in the two forms `axes`: by name and by number, or from either end."""

    def __init__(self, *args: object, axes: tuple[int | str, ...] = ()) -> None:
        super().__init__(*args)
        self.axes = axes


class UnusedOptionError(RequestError):
    """An option of opening that sources of a sort, such as single arrays or image files, have no use for."""

    def __init__(self, *args: object, option: str = "") -> None:
        super().__init__(*args)
        self.option = option


class DuplicatesError(RequestError):
    """Samples that are there twice: files that are one file, or dates that several files of one series have."""


class ConfigError(RequestError):
    """A run file that cannot be understood: unknown or doubled keys, a value of the wrong type."""


class BudgetError(StreampcaError, MemoryError):
    """A request that does not fit the memory allowed; raised while planning, before any data is read."""


class NotConvergedError(StreampcaError, RuntimeError):
    """A model that was written, with its figures, although its iteration ended far from the answer."""


class ModelError(StreampcaError, ValueError):
    """A stored model that is incomplete, of a newer format, or does not fit the collection it is applied to."""


class OutputError(StreampcaError, OSError):
    """An output that exists already, cannot be written, or ran out of disk."""


class ClusterError(StreampcaError, RuntimeError):
    """A cluster that cannot be reached, is lost, or whose workers lack what the work takes."""


class ClusterLostError(ClusterError):
    """A cluster that was lost during a run; a fit with checkpoints (`exit_code` 75) can be resumed."""


class Stopped(StreampcaError):  # noqa: N818 - it is no error that somebody stops a run
    """A run was told to stop; `exit_code` is 75 where the same command resumes it."""

    exit_code = 130

    def __init__(self, *args: object, resumable: bool = False) -> None:
        super().__init__(*args)
        if resumable:
            self.exit_code = RESUMABLE


# Names of options elsewhere that no spelling leads from: short ones of formulas and commands, and other packages'.
_ELSEWHERE = {
    "k": ("n_components", "n_neighbors"),
    "num_components": ("n_components",),
    "o": ("output",),
    "seed": ("random_state",),
    "n_jobs": ("workers",),
    "jobs": ("workers",),
    "dims": ("sample_axes",),
    "weights": ("sample_weight",),
    "y": ("target",),
}


def nearest(name: str, known: list[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the known name closest to `name`, or an empty string when none is close."""
    closest = closest_name(name, known)
    return f" Did you mean {closest!r}?" if closest else ""


def closest_name(name: str, known: list[str]) -> str:
    """Return the known name that is meant by `name`, or the closest one; empty when none is close."""
    import difflib

    for meant in _ELSEWHERE.get(name.lower(), ()):
        if meant in known:
            return meant
    written = {each.lower(): each for each in reversed(known)}
    close = difflib.get_close_matches(name.lower(), [each.lower() for each in known], n=1)
    return written[close[0]] if close else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without a final full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
