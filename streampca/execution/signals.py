"""Stopping a run when it is asked to: at the end of a block, where a checkpoint can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..errors import Stopped
from ..events import BlockDone, Event, Listener, PassFinished, PassStarted

SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")  # a person, a system that takes its machine back, SLURM before a time limit


class Switch:
    """Tells a run to stop, at the end of a block.

    Attributes
    ----------
    asked : str or None
        Signal that asked for it, e.g. ``"SIGTERM"``.
    has_checkpoint : bool
        Whether the running pass has a checkpoint, which ends it once it has saved what was done.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self.has_checkpoint = False
        self._passing = False

    def watched(self, listener: Listener) -> Listener:
        """Return a listener that ends a pass without a checkpoint at its next block."""

        def told(event: Event) -> None:
            listener(event)
            if isinstance(event, PassStarted | PassFinished):
                self._passing = isinstance(event, PassStarted)
                self.has_checkpoint = self.has_checkpoint and self._passing
            if isinstance(event, BlockDone | PassFinished) and self.asked and not self.has_checkpoint:
                raise Stopped(f"stopped by {self.asked}.")

        return told

    def turn(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first waits for the block being worked on, if there is one; another does not.

        Raises
        ------
        KeyboardInterrupt
            If there is nothing to wait for.
        """
        again, self.asked = self.asked is not None, signal.Signals(number).name
        if again or not self._passing:
            raise KeyboardInterrupt


@contextmanager
def signals_wait() -> Iterator[None]:
    """Delay signals that stop a run until a short block is done, which must not be interrupted halfway."""
    came: list[tuple[int, FrameType | None]] = []
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():  # signals arrive in the main thread only
        ours = {}
    try:
        for number in ours:
            signal.signal(number, lambda *signalled: came.append(signalled))
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
    for number, frame in came[:1]:
        ours[signal.Signals(number)](number, frame)


@contextmanager
def stopping_on_signals(switch: Switch) -> Iterator[None]:
    """Turn a switch on SIGINT, SIGTERM and SIGUSR1 while the block lasts; signals that are ignored stay so."""
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, switch.turn)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
