"""Silencing of decoding libraries, whose messages would bury our own one-line errors.

Pillow warns and tifffile logs a line for every odd tag of a broken file, over a hundred for some; Zarr warns of foreign
files in a group. A problem that matters reaches the user as a `SourceError` that names the file.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Modules whose warnings are dropped.
_MODULES = (r"PIL\.", r"tifffile\.", r"zarr\.core\.group", r"astropy\.")
_LOGGERS = ("tifffile", "PIL")

_lock = threading.Lock()
_users = 0
_caught: warnings.catch_warnings[None] | None = None


def _drop(record: logging.LogRecord) -> bool:
    return False


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the decoding libraries until the last thread leaves the context.

    Users are counted: warning filters are one list for all threads, and two threads that restored it in the wrong order
    would leave it changed for good.
    """
    global _users, _caught
    with _lock:
        _users += 1
        if _users == 1:
            _caught = warnings.catch_warnings()
            _caught.__enter__()
            for module in _MODULES:
                warnings.filterwarnings("ignore", module=module)
            for name in _LOGGERS:
                logging.getLogger(name).addFilter(_drop)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _caught is not None:
                for name in _LOGGERS:
                    logging.getLogger(name).removeFilter(_drop)
                _caught.__exit__(None, None, None)
                _caught = None
