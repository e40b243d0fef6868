"""Events of a run, as plain values passed to listeners: progress bars, logs, notebooks and services.

The engine emits events and knows no listener; a listener must be quick and must not raise.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from .errors import RequestError, without_secrets, worded
from .units import counted_passes, format_bytes, format_seconds

WORTH_TELLING = 2.0  # seconds from which the expected time of a solve is told


class _Worded:
    """Event whose texts name options as the door in use does."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, str) and field.name != "path":
                object.__setattr__(self, field.name, worded(value))


@dataclass(frozen=True, slots=True)
class Planned(_Worded):
    """A plan was made; `plan` is a `streampca.planning.Plan`, `assumed` what had to be guessed for it, on one line."""

    plan: Any
    assumed: str = ""


@dataclass(frozen=True, slots=True)
class PassStarted:
    """A pass over the data begins: `number` (from 1) of `of` (None when unknown), `samples` and `bytes` to come."""

    label: str
    number: int
    of: int | None
    samples: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BlockDone:
    """A block of `samples` samples and `bytes` stored bytes was absorbed or written."""

    samples: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PassFinished:
    """The pass last started is over after `seconds` seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Solving:
    """The small problem is being solved; `what` says which, in words.

    `seconds` is how long it takes, as predicted by the rates of the plan; 0 where that is not known.
    """

    what: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture is being drawn; `what` says which, in words: `number` (from 1) of `of`, or 0 where it is alone."""

    what: str
    number: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class Converging:
    """After `passes` passes the largest residual of a wanted component is `residual` of its variance, `tol` the aim.

    Infinite while fewer components are found than are wanted; what is certified, once that is at most `tol`. `measure`
    names the quantity that is to become small, where that is no residual; `beside` is what else is known, in words.
    """

    passes: int
    residual: float
    tol: float
    measure: str = "largest residual"
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State was saved at `path` after `samples` samples of the current pass."""

    path: str
    samples: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A model of `samples` samples was stored at `path`, while its source is being written."""

    path: str
    samples: int


@dataclass(frozen=True, slots=True)
class Kept(_Worded):
    """The output of an earlier run at `path` stands; `why` completes the sentence that its path begins."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The current pass resumes from a checkpoint, with so many samples and stored bytes done."""

    samples: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Warned(_Worded):
    """Something the user should know; `message` is one line."""

    message: str


@dataclass(frozen=True, slots=True)
class Assumed(_Worded):
    """Something had to be guessed; `message` is one line that says what was taken, and what settles it."""

    message: str


@dataclass(frozen=True, slots=True)
class FileSkipped(_Worded):
    """A damaged file was left out; `reason` is one line."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A piece of work is complete: `what` in words, after `seconds` seconds."""

    what: str
    seconds: float


Event: TypeAlias = (
    Planned
    | PassStarted
    | BlockDone
    | PassFinished
    | Solving
    | Drawing
    | Converging
    | Checkpoint
    | Stored
    | Kept
    | Resumed
    | Warned
    | Assumed
    | FileSkipped
    | Finished
)
Listener: TypeAlias = Callable[[Event], None]


def describe(event: Event) -> str:
    """Return one line for a log, without secrets of URLs; empty for events too frequent for one."""
    return without_secrets(_described(event))


def _described(event: Event) -> str:
    match event:
        case Planned(plan, assumed):
            memory = f"{format_bytes(plan.memory_estimate.total)} of memory planned, {format_bytes(plan.memory)}"
            what = f"plan: method {plan.method}, {counted_passes(plan.passes)}, {memory} allowed"
            return f"{what}; {assumed}" if assumed else what
        case PassStarted(label, samples=samples, bytes=count):
            return f"{label}: started, {samples} samples" + (f", {format_bytes(count)}" if count else "")
        case Resumed(samples):
            return f"resumed: {samples} samples of the pass were done before"
        case PassFinished(seconds):
            return f"pass finished after {format_seconds(seconds)}"
        case Solving(what, seconds):
            return f"solving: {what}" + (f", about {format_seconds(seconds)}" if seconds >= WORTH_TELLING else "")
        case Drawing(what, number, of):
            return f"drawing{f' {number} of {of}' if of else ''}: {what}"
        case Converging(passes, residual, tol, measure, beside):
            reached = f"{measure} {residual:.1e}, to reach {tol:.1e}{beside and '; '}{beside}"
            found = reached if residual < math.inf else "not all components are found yet"
            return f"after {counted_passes(passes)}: {found}"
        case Finished(what, seconds):
            return f"{what} finished after {format_seconds(seconds)}"
        case Stored(path, samples):
            return f"{path}: {samples} samples"
        case Kept(path, why):
            return f"{path} {why}"
        case Warned(message):
            return f"warning: {message}"
        case Assumed(message):
            return message
        case FileSkipped(path, reason):
            return f"skipped {path}: {reason}"
    return ""


def or_logged(listener: Listener | None) -> Listener:
    """Return a listener, or where there is none, that which logs warnings."""
    return logged if listener is None else listener


def check_listener(listener: Any) -> None:
    """Refuse a listener that cannot be called, before anything is read.

    Raises
    ------
    RequestError
        If it is not callable.
    """
    if not callable(listener):
        raise RequestError(f"listener {listener!r} is not a function of one event; give one, such as print.")


_PASS: ContextVar[PassStarted | None] = ContextVar("the pass that the running call reports", default=None)


@contextmanager
def reported(listener: Listener, started: PassStarted) -> Iterator[None]:
    """Tell a listener that a pass starts, and when it is over how long it took."""
    began, before = time.perf_counter(), _PASS.set(started)
    try:
        listener(started)
        yield
        listener(PassFinished(time.perf_counter() - began))
    finally:
        _PASS.reset(before)


def current_pass() -> PassStarted | None:
    """Return the pass that is being reported around the caller; None outside passes."""
    return _PASS.get()


def one_at_a_time(listener: Listener) -> Listener:
    """Return a listener that several threads may call, and that passes on one event at a time."""
    lock = threading.RLock()

    def told(event: Event) -> None:
        with lock:
            listener(event)

    return told


def silent(event: Event) -> None:
    """Ignore every event."""


def logged(event: Event) -> None:
    """Log warnings, and what had to be assumed, and ignore every other event: the default listener of a fit."""
    if isinstance(event, Warned):
        logging.getLogger("streampca").warning("%s", event.message)
    elif isinstance(event, Assumed):
        logging.getLogger("streampca").info("%s", event.message)
    elif isinstance(event, Planned) and event.assumed:
        logging.getLogger("streampca").info("%s", event.assumed)
