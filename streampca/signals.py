"""Stopping a run when a signal asks for it: handlers set a flag, which long work reads at safe points.

A handler that raises does so wherever the program is: in the callback of a weak reference the exception is lost, and
elsewhere it may leave sums half added. So a handler raises nothing here. The first signal restores the default action:
a second one ends the process at once, even inside a call of LAPACK that takes minutes.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType
from typing import Any, TypeAlias

from .errors import Stopped

SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")  # a person, a system that takes its machine back, SLURM before a time limit

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None  # as `signal.getsignal` returns it


class _Handling:
    """Handlers of this process while a run lasts, and what a signal asked for.

    Parameters
    ----------
    owns_process : bool
        True for the command line, which stops at every signal. In a program that calls this package, the program's own
        handlers decide: each is called at once, and what it raises is raised at the next safe point.
    """

    def __init__(self, *, owns_process: bool) -> None:
        self.asked: str | None = None
        self.raised: BaseException | None = None
        self.delays, self.lock = 0, threading.Lock()
        self._owns_process = owns_process
        numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        handlers = {number: signal.getsignal(number) for number in numbers}
        self._before: dict[int, Handler] = {  # a signal that is ignored stays so
            number: handler
            for number, handler in handlers.items()
            if callable(handler) or (owns_process and handler == signal.SIG_DFL)
        }
        for number in self._before:
            self._await_first(number)

    def restore(self) -> None:
        """Give every signal the handler that it had before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _await_first(self, number: int) -> None:
        """Handle a signal from now on; let the system restore a default action for the second as it delivers the first.

        Python calls its handlers between its own instructions, thus after a call of LAPACK only. Without `sysv_signal`,
        which is glibc's, the default action is restored there.
        """
        signal.signal(number, self._handle)
        if self._for_second(number) != signal.SIG_DFL:
            return
        with suppress(OSError, AttributeError):
            current, once = _signal_functions()
            once(number, current(number))

    def _for_second(self, number: int) -> Handler:
        """Return what handles a signal after the first: the default action, unless it would end a program's session."""
        before = self._before[number]
        is_default = before == signal.SIG_DFL or before is signal.default_int_handler
        is_session = hasattr(sys, "ps1")  # of Python, IPython or Jupyter, whose variables are lost with the process
        return signal.SIG_DFL if self._owns_process or (is_default and not is_session) else before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self._before[number]
        if callable(before) and not self._owns_process:
            try:
                before(number, frame)
            except BaseException as error:
                self.raised = error
            else:
                self._await_first(number)  # the program does not want to stop
                return
        self.asked = signal.Signals(number).name
        for each in self._before:
            signal.signal(each, self._for_second(each))


@cache  # takes 5 ms at first, in which signals are handled already, and makes classes each time
def _signal_functions() -> tuple[Callable[[int], Any], Callable[[int, Any], Any]]:
    """Return Python's function for the current handler of a signal, and glibc's for handling one signal only."""
    import ctypes

    current = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(("PyOS_getsig", ctypes.pythonapi))
    once = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(("sysv_signal", ctypes.CDLL(None)))
    return current, once


_handling: _Handling | None = None  # one in a process, as there is one handler of each signal


@contextmanager
def stopping_on_signals(*, owns_process: bool = False) -> Iterator[None]:
    """Stop the work inside at its next safe point when SIGINT, SIGTERM or SIGUSR1 comes; also used as a decorator.

    Inside another such block, and in threads other than the main one, the handlers that are there are left alone: a
    thread stops when the main thread is inside such a block.

    Parameters
    ----------
    owns_process : bool, default=False
        True for a program that is nothing but this work, and stops at each of these signals with `Stopped`. Else a
        signal calls the handler that the program has, if it has one in Python, and the work stops if that raises.

    Raises
    ------
    BaseException
        Raised by the program's handler, such as KeyboardInterrupt, whatever became of the work inside.
    """
    global _handling
    if _handling is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    handling = _handling = _Handling(owns_process=owns_process)
    try:
        yield
    except BaseException as error:
        if handling.raised is None:
            raise
        raise handling.raised from error
    finally:
        handling.restore()
        _handling = None
    if handling.raised is not None:  # since the last safe point
        raise handling.raised


def stop_asked() -> str | None:
    """Return the name of the signal that asked this process to stop, None if none did."""
    return None if _handling is None else _handling.asked


def safe_point() -> None:
    """End the work here if a signal asked for it, unless stops are delayed.

    Raises
    ------
    Stopped
        If it did.
    """
    if _handling is not None and _handling.asked and not _handling.delays:
        raise Stopped(f"stopped by {_handling.asked}.")


@contextmanager
def stops_delayed() -> Iterator[None]:
    """Make safe points inside do nothing, in all threads: what is done here must be done wholly, or saves itself."""
    handling = _handling
    if handling is None:
        yield
        return
    with handling.lock:
        handling.delays += 1
    try:
        yield
    finally:
        with handling.lock:
            handling.delays -= 1


def heed_stop() -> None:
    """Forget the signal that asked to stop: the work ends because of it, and needs safe points no more."""
    if _handling is not None:
        _handling.asked = _handling.raised = None
