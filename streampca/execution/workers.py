"""`Workers` of a cluster: which are there, and whether they have the packages, data and memory they need."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from distributed import Client

from .. import __version__
from ..errors import ClusterError, ClusterLostError, first_line
from ..events import Listener, Warned, silent
from ..units import MIB, budget_size, format_bytes
from .packing import packed
from .worker import given, installed, try_to_read

PYTHON_BYTES = 200 * MIB  # of a worker before it does anything: Python, dask, numpy, scipy, Zarr; 170 measured
SHARE = 0.8  # of a worker's memory that is used: above it dask gives it nothing more to do
MOST_SENT = 256 * MIB  # of a collection's description, which the scheduler keeps
PACKAGES = ("streampca", "numpy", "scipy", "zarr", "h5py", "sklearn", "threadpoolctl", "psutil")
LOOK = 1.0  # seconds between looks at who is there
ANSWER = 60.0  # seconds that a worker has to read a sample
SHOWN = 3  # workers named
RESTARTED = "worker-restart-memory"  # dask's topic for workers that it ends at 95 % of their limit
MOST_EXHAUSTED = 2  # workers that may be killed for want of memory: of one, something else may have taken it
RETURN = 10.0  # seconds for the only worker to come back after that


def budget_within(limit: int) -> int:
    """Bytes that a plan may use of a worker that has so many; not positive where it is too small."""
    return int(SHARE * limit) - PYTHON_BYTES


def limit_around(budget: int) -> int:
    """Memory that a worker needs for a plan of such a budget: what `budget_within` is the inverse of."""
    return -int(-(budget + PYTHON_BYTES) // SHARE)


class Workers:
    """Workers of a cluster that can do the work.

    Parameters
    ----------
    client : distributed.Client
        Connected to it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._fit: set[str] = set()
        self._unfit: set[str] = set()
        self._wrong: Callable[[Mapping[str, Any]], str] | None = None
        self._listener: Listener = silent
        self._looked, self._found = 0.0, list[str]()
        self._planned = 0  # bytes
        self._held: dict[str, tuple[int, int]] = {}  # bytes that workers were last seen with, and their limits
        self._exhausted: dict[str, tuple[int, int]] = {}  # the same of those that were killed for it

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._workers())

    @property
    def cores(self) -> int:
        """Threads of a worker, the least of all."""
        return min((about["nthreads"] for about in self._workers().values()), default=1)

    @property
    def memory(self) -> int | None:
        """Bytes that a worker has, the least of all; None where none has a limit."""
        return min((about["memory_limit"] for about in self._workers().values() if about["memory_limit"]), default=None)

    @cached_property
    def near(self) -> bool:
        """True where this process reaches workers directly: partials then need not go through the scheduler."""
        where = urlsplit(next(iter(self._workers()), ""))
        try:
            socket.create_connection((where.hostname or "", where.port or 0), timeout=LOOK).close()
        except (OSError, ValueError):
            return False
        return True

    def check(self, read: Callable[[], object], memory: int, listener: Listener) -> None:
        """See `DaskExecutor.check`."""
        try:
            reading = packed(read)
        except Exception as error:  # whatever is raised by an object that holds a lock, a connection or an open file
            problem = f"the collection cannot be sent to workers ({type(error).__name__}: {first_line(error)})"
            raise ClusterError(f"{problem}; save it where they can read it, and give the path.") from error
        if reading.nbytes > MOST_SENT:
            raise ClusterError(
                f"the collection is {format_bytes(reading.nbytes)} in this process's memory and workers are sent at "
                f"most {format_bytes(MOST_SENT)}; save it where they can read it, and give the path."
            )

        def wrong(workers: Mapping[str, Any]) -> str:
            return self._lacking(workers) or _too_small(workers, memory) or self._blind(workers, reading)

        self._fit = self._refuse(wrong)
        self._wrong, self._listener, self._planned = wrong, listener, memory

    def check_versions(self) -> None:
        """See `DaskExecutor.check_versions`."""
        self._refuse(self._lacking)

    def _refuse(self, wrong: Callable[[Mapping[str, Any]], str]) -> set[str]:
        """Return the workers that are there, or raise what is wrong with them."""
        workers = self._workers()
        try:
            message = wrong(workers)
        except OSError as error:
            raise ClusterError(f"a worker does not answer ({first_line(error)}); see its log.") from error
        except (asyncio.CancelledError, CancelledError) as error:  # which is all that dask says of a restart
            raise ClusterLostError(
                "the cluster was restarted while its workers were being checked; give the same command again."
            ) from error
        if message:
            raise ClusterError(message)
        return set(workers)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hear of workers that dask ends because of their memory."""

        def ended(event: tuple[float, Mapping[str, Any]]) -> None:
            address, held = event[1]["worker"], event[1]["rss"]
            self._exhausted[address] = (held, self._held.get(address, (0, held))[1])

        self._exhausted = {}
        self._client.subscribe_topic(RESTARTED, ended)
        try:
            yield
        finally:
            if self._client.status == "running":
                self._client.unsubscribe_topic(RESTARTED)

    def exhausted(self, alone: float) -> str:
        """Say which worker was killed for want of memory, once that is not worth another try.

        Parameters
        ----------
        alone : float
            Seconds for which no worker has been there.
        """
        if not (len(self._exhausted) >= MOST_EXHAUSTED or (self._exhausted and alone > RETURN)):
            return ""
        address, (held, limit) = list(self._exhausted.items())[-1]
        return (
            f"worker {address} was killed by its memory limit, last seen with {format_bytes(held)} of "
            f"{format_bytes(limit)} in use; give workers more (--worker-memory), or the run less (--memory)."
        )

    def present(self) -> list[str]:
        """Addresses of workers that can be given work, in the order in which they came; looked up once a second."""
        if time.monotonic() - self._looked > LOOK:
            known = self._known()
            self._note_memory(known)
            workers = _running(known)
            for address, about in workers.items():
                self._admit(address, about)
            self._found = [address for address in workers if self._wrong is None or address in self._fit]
            self._looked = time.monotonic()
        return self._found

    def _admit(self, address: str, about: Mapping[str, Any]) -> None:
        """Check one that came later: it is left out, where the others go on."""
        if self._wrong is None or address in self._fit | self._unfit:
            return
        try:
            message = self._wrong({address: about})
        except (OSError, asyncio.CancelledError, CancelledError):
            return  # it died or was restarted while it was asked; if another comes at its address, that is asked
        (self._unfit if message else self._fit).add(address)
        if message:
            self._listener(Warned(f"a worker is left out: {message}"))

    def _note_memory(self, known: Mapping[str, Any]) -> None:
        """Note what workers hold; one that is gone and held more than its plan says was killed for it.

        It was seen up to two seconds before, so that it may have had less than its limit by as much as it takes then.
        """
        for address, (held, limit) in self._held.items():
            if address not in known and held > max(limit / 2, min(self._planned + PYTHON_BYTES, SHARE * limit)):
                self._exhausted.setdefault(address, (held, limit))
        self._held = {
            address: (about["metrics"].get("memory", 0), about["memory_limit"])
            for address, about in known.items()
            if about["memory_limit"]
        }

    def _known(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]  # some versions default to 5
        return found

    def _workers(self) -> dict[str, Any]:
        return _running(self._known())

    def _lacking(self, workers: Mapping[str, Any]) -> str:
        """Say which workers lack a package, or have other versions of this one or of numpy."""
        here, lacks = installed(PACKAGES), defaultdict[str, list[str]](list)
        # By reference: a function that is sent itself cannot be read by another version of Python.
        for address, there in self._client.run(installed, PACKAGES, workers=list(workers), on_error="return").items():
            if isinstance(there, OSError):
                raise there
            if isinstance(there, Exception):  # it has no such function, or not what this module imports
                lacks[f"streampca {__version__} ({first_line(there)})"].append(address)
                continue
            other = [
                f"{name} {here[name]} (it has {version})" if version else name
                for name, version in there.items()
                if not version or version != here[name]
            ]
            if other:
                lacks[", ".join(other)].append(address)
        return "; ".join(
            f"{_named(addresses)} {'lack' if len(addresses) > 1 else 'lacks'} {what}; install there what is here: "
            f"pip install 'streampca[cluster]=={__version__}' numpy=={here['numpy']}."
            for what, addresses in list(lacks.items())[:1]
        )

    def _blind(self, workers: Mapping[str, Any], reading: Any) -> str:
        """Say which workers cannot read the data."""
        sent = self._client.submit(given, reading, pure=False)
        asked = {
            address: self._client.submit(try_to_read, sent, workers=[address], pure=False, priority=1)
            for address in workers
        }
        answers: dict[str, list[str]] = {}
        until = time.monotonic() + ANSWER
        try:
            for address, future in asked.items():
                answers.setdefault(str(future.result(timeout=max(0, until - time.monotonic()))), []).append(address)
        except TimeoutError:
            late = [address for address, future in asked.items() if not future.done()]
            self._client.cancel([asked[address] for address in late], force=True)
            return f"{_named(late)} did not read a sample within {ANSWER:.0f} s; see what else they do, or their log."
        answers.pop("", None)
        for problem, addresses in answers.items():
            return (
                f"{_named(addresses)} cannot read the collection ({problem}); put it where every worker finds it by "
                "the same absolute path, or give a URL."
            )
        return ""


def _running(known: Mapping[str, Any]) -> dict[str, Any]:
    return {address: about for address, about in known.items() if about["status"] == "running"}


def _too_small(workers: Mapping[str, Any], memory: int) -> str:
    """Say which workers have too little memory for a plan that needs so much."""
    limits = {address: about["memory_limit"] for address, about in workers.items() if about["memory_limit"]}
    small = [address for address, limit in limits.items() if budget_within(limit) < memory]
    if not small:
        return ""
    limit = min(limits[address] for address in small)
    left = budget_within(limit)
    less = f", or set memory to at most {format_bytes(left // MIB * MIB)}" if left > MIB else ""
    return (
        f"{_named(small)} {'have' if len(small) > 1 else 'has'} {format_bytes(limit)} of memory, of which a plan may "
        f"use {format_bytes(max(0, left))}, and this one needs {format_bytes(memory)}; give workers at least "
        f"{budget_size(limit_around(memory))}{less}."
    )


def _named(addresses: Iterable[str]) -> str:
    known = sorted(addresses)
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"worker{'s' if len(known) > 1 else ''} {', '.join(known[:SHOWN])}{more}"
