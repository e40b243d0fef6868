"""`Workers` of a cluster: the present ones, with checks of their packages, data and memory."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from distributed import Client

from .. import __version__
from ..errors import ClusterError, ClusterLostError, first_line
from ..events import Listener, Warned, silent
from ..units import MIB, budget_size, format_bytes
from .packing import Packed, packed
from .worker import identity, installed, try_to_read

T = TypeVar("T")
Problem: TypeAlias = tuple[list[str], str]  # addresses of workers, and a message that names them

PYTHON_BYTES = 200 * MIB  # memory of an idle worker: Python, dask, numpy, scipy, Zarr; 170 measured
SHARE = 0.8  # share of a worker's memory that plans use: above it dask sends the worker no more tasks
MOST_SENT = 256 * MIB  # largest description of a collection, which the scheduler keeps
PACKAGES = ("streampca", "numpy", "scipy", "zarr", "h5py", "sklearn", "threadpoolctl", "psutil")
LOOK = 1.0  # seconds between queries for the present workers
ANSWER = 60.0  # most seconds for a worker to read a sample
SHOWN = 3  # largest number of workers in a message
RESTARTED = "worker-restart-memory"  # dask's topic for workers that it ends at 95 % of their limit
MOST_EXHAUSTED = 2  # workers out of memory that end the run: for a single one, another program can be the cause
RETURN = 10.0  # most seconds for the only worker to return after that


def budget_within(limit: int) -> int:
    """Return the bytes that a plan can use of a worker with a memory limit; not positive if that is too small."""
    return int(SHARE * limit) - PYTHON_BYTES


def limit_around(budget: int) -> int:
    """Return the memory limit that a worker needs for a plan with a budget: the inverse of `budget_within`."""
    return -int(-(budget + PYTHON_BYTES) // SHARE)


class Workers:
    """Workers of a cluster that can do the work.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._suitable: set[str] = set()
        self._unsuitable: set[str] = set()
        self._problems_of: Callable[[Mapping[str, Any]], Iterable[Problem]] | None = None
        self._checks: dict[tuple[str, ...], Future[list[Problem]]] = {}
        self._listener: Listener = silent
        self._looked, self._present, self._folders = 0.0, list[str](), dict[str, str]()
        self._known: dict[str, Any] = {}  # last answer of the scheduler
        self._near: bool | None = None  # not known yet
        self._paused: dict[str, float] = {}  # time of the first report of each paused worker
        self._paused_idle = set[str]()
        self._planned = 0  # bytes of the plan
        self._memory_use: dict[str, tuple[int, int]] = {}  # bytes in use when workers were last seen, and their limits
        self._exhausted: dict[str, tuple[int, int]] = {}  # the same for workers that were killed for their memory

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._workers())

    @property
    def cores(self) -> int:
        """Smallest number of threads of a worker."""
        return min((info["nthreads"] for info in self._workers().values()), default=1)

    @property
    def memory(self) -> int | None:
        """Smallest memory limit of a worker in bytes; None if none has a limit."""
        return min((info["memory_limit"] for info in self._workers().values() if info["memory_limit"]), default=None)

    @property
    def near(self) -> bool:
        """True if this process reaches workers directly: then partials do not go through the scheduler."""
        first = next(iter(self._workers()), "") if self._near is None else ""
        if first:  # else asked again: adaptive clusters can have no worker for a while
            address = urlsplit(first)
            try:
                socket.create_connection((address.hostname or "", address.port or 0), timeout=LOOK).close()
                self._near = True
            except (OSError, ValueError):
                self._near = False
        return bool(self._near)

    def check(self, read: Callable[[], object], memory: int, listener: Listener, packages: Sequence[str] = ()) -> None:
        """See `DaskExecutor.check`."""
        try:
            reading = packed(read)
        except Exception as error:  # of many kinds: the object holds a lock, a connection or an open file
            problem = f"the collection cannot be sent to workers ({type(error).__name__}: {first_line(error)})"
            raise ClusterError(f"{problem}; save it where they can read it, and give the path.") from error
        if reading.nbytes > MOST_SENT:
            raise ClusterError(
                f"the collection is {format_bytes(reading.nbytes)} in this process's memory and workers are sent at "
                f"most {format_bytes(MOST_SENT)}; save it where they can read it, and give the path."
            )

        def problems_of(workers: Mapping[str, Any]) -> Iterator[Problem]:
            checks = (
                partial(self._missing_packages, packages=packages),
                partial(_too_small, memory=memory),
                partial(self._cannot_read, reading),
            )
            for check in checks:
                for addresses, message in check(workers):
                    yield addresses, message
                    workers = {address: info for address, info in workers.items() if address not in addresses}

        self._suitable = self._refuse(problems_of)
        self._problems_of, self._listener, self._planned = problems_of, listener, memory

    def check_versions(self) -> None:
        """See `DaskExecutor.check_versions`."""
        self._refuse(self._missing_packages)

    def _refuse(self, problems_of: Callable[[Mapping[str, Any]], Iterable[Problem]]) -> set[str]:
        """Return the addresses of the present workers, or raise an error with their first problem."""
        while True:
            workers = self._workers()
            try:
                _, message = next(iter(problems_of(workers)), ((), ""))
            except OSError as error:
                if not self._has_lost(workers):
                    raise ClusterError(f"a worker does not answer ({first_line(error)}); see its log.") from error
            except (asyncio.CancelledError, CancelledError) as error:  # the only sign of a restart
                raise ClusterLostError(
                    "the cluster was restarted while its workers were being checked; give the same command again."
                ) from error
            else:
                break
        if message:
            raise ClusterError(message)
        return set(workers)

    def _has_lost(self, workers: Iterable[str]) -> bool:
        """Return whether a worker is gone, as where an adaptive cluster shrinks; the scheduler may be late."""
        until = time.monotonic() + LOOK
        while set(workers) <= self._scheduler_info().keys():
            if time.monotonic() > until:
                return False
            time.sleep(LOOK / 10)
        return True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note workers that dask ends because of their memory."""

        def note_exhausted(event: tuple[float, Mapping[str, Any]]) -> None:
            address, used = event[1]["worker"], event[1]["rss"]
            self._exhausted[address] = (used, self._memory_use.get(address, (0, used))[1])

        self._exhausted = {}
        self._client.subscribe_topic(RESTARTED, note_exhausted)
        try:
            yield
        finally:
            if self._client.status == "running":
                self._client.unsubscribe_topic(RESTARTED)

    def exhausted(self, alone: float) -> str:
        """Return a message about a worker that ran out of memory, if another try would not help; else an empty text.

        Parameters
        ----------
        alone : float
            Seconds without any worker.
        """
        hopeless = len(self._exhausted) >= MOST_EXHAUSTED or alone > RETURN
        return self.last_exhausted() if hopeless else ""

    def last_exhausted(self) -> str:
        """Return a message about the worker that was last killed by its memory limit, or an empty text."""
        if not self._exhausted:
            return ""
        address, (used, limit) = list(self._exhausted.items())[-1]
        return (
            f"worker {address} was killed by its memory limit, last seen with {format_bytes(used)} of "
            f"{format_bytes(limit)} in use; give workers more (--worker-memory, worker_memory), or the "
            "run less (--memory, memory)."
        )

    def present(self) -> list[str]:
        """Return the addresses of suitable workers in the order in which they joined; queried once a second."""
        self._look()
        return self._present

    def folders(self) -> dict[str, str]:
        """Return the scratch folders of all workers by address, of paused ones too; each process has its own."""
        self._look()
        return self._folders

    def _look(self) -> None:
        if time.monotonic() - self._looked > LOOK:
            all_workers = self._scheduler_info()
            self._note_memory(all_workers)
            self._folders = {address: info["local_directory"] for address, info in all_workers.items()}
            workers = _running(all_workers)
            self._admit(workers)
            self._present = [address for address in workers if self._problems_of is None or address in self._suitable]
            self._note_paused(all_workers)
            self._looked = time.monotonic()

    def paused_idle(self) -> set[str]:
        """Return the paused workers that run no task: what they were given since does not begin before they resume."""
        self._look()
        return self._paused_idle

    def _note_paused(self, workers: Mapping[str, Any]) -> None:
        """Note which paused workers run nothing, by a report that is later than the first one seen of the pause."""
        paused = {address: info for address, info in workers.items() if info["status"] == "paused"}
        self._paused = {address: self._paused.get(address, info["last_seen"]) for address, info in paused.items()}
        self._paused_idle = {
            address
            for address, info in paused.items()
            if info["last_seen"] > self._paused[address] and not info["metrics"]["task_counts"].get("executing")
        }

    def _admit(self, workers: Mapping[str, Any]) -> None:
        """Check workers that joined later, all new ones together and in a thread, as one can take a minute to answer.

        The run continues without unsuitable ones, with a warning.
        """
        if self._problems_of is None:
            return
        for addresses, check in [(addresses, check) for addresses, check in self._checks.items() if check.done()]:
            del self._checks[addresses]
            if isinstance(check.exception(), OSError | asyncio.CancelledError | CancelledError):
                continue  # one died or was restarted meanwhile: those that are there are checked again
            problems = check.result()
            unsuitable = {address for group, _ in problems for address in group}
            self._unsuitable |= unsuitable
            self._suitable |= set(addresses) - unsuitable
            for _, message in problems:
                self._listener(
                    Warned(f"{'a worker is' if len(unsuitable) == 1 else 'workers are'} left out: {message}")
                )
        known = self._suitable.union(self._unsuitable, *self._checks)
        joined = {address: info for address, info in workers.items() if address not in known}
        if joined:
            problems_of = self._problems_of
            self._checks[tuple(joined)] = _in_thread(lambda: list(problems_of(joined)))

    def _note_memory(self, workers: Mapping[str, Any]) -> None:
        """Note the memory in use; a worker that is gone and used more than its plan was killed for it.

        The last report can be two seconds old, so the limit itself need not show in it.
        """
        for address, (used, limit) in self._memory_use.items():
            if address not in workers and used > max(limit / 2, min(self._planned + PYTHON_BYTES, SHARE * limit)):
                self._exhausted.setdefault(address, (used, limit))
        self._memory_use = {
            address: (info["metrics"].get("memory", 0), info["memory_limit"])
            for address, info in workers.items()
            if info["memory_limit"]
        }

    def _scheduler_info(self) -> dict[str, Any]:
        """Ask the scheduler for its workers; the last answer if it is not reached.

        `Client.scheduler_info` returns none of them, now and then: a regular look without workers, in the thread of the
        client, can replace the answer before it is returned.
        """
        if self._client.status == "running":
            with suppress(OSError):
                self._known = self._client.sync(self._client.scheduler.identity, n_workers=-1)["workers"]
        return self._known

    def _workers(self) -> dict[str, Any]:
        return _running(self._scheduler_info())

    def _missing_packages(self, workers: Mapping[str, Any], packages: Sequence[str] = ()) -> Iterator[Problem]:
        """Name the workers that lack a package, or have other versions of this one or of numpy."""
        needed = (*PACKAGES, *packages)
        here, lacks = installed(needed), defaultdict[str, list[str]](list)
        # `installed` goes by reference: another version of Python could not unpickle the function itself.
        for address, there in self._client.run(installed, needed, workers=list(workers), on_error="return").items():
            if isinstance(there, OSError):
                raise there
            if isinstance(there, Exception):  # its version has no such function, or lacks an import of this module
                lacks[f"streampca {__version__} ({first_line(there)})"].append(address)
                continue
            differences = [
                f"{name} {here[name]} (it has {version})" if version else name
                for name, version in there.items()
                if not version or version != here[name]
            ]
            if differences:
                lacks[", ".join(differences)].append(address)
        for names, addresses in lacks.items():
            yield (
                addresses,
                f"{_names(addresses)} {'lack' if len(addresses) > 1 else 'lacks'} {names}; install there what is "
                f"here: pip install 'streampca[cluster]=={__version__}' numpy=={here['numpy']}.",
            )

    def _cannot_read(self, reading: Packed, workers: Mapping[str, Any]) -> Iterator[Problem]:
        """Name the workers that cannot read the data."""
        group = f"check-reading-{uuid.uuid4().hex}"
        sent = self._client.submit(identity, reading, key=(f"send-{group}",), pure=False)
        futures = {
            address: self._client.submit(
                try_to_read, sent, key=(group, address), workers=[address], pure=False, priority=1
            )
            for address in workers
        }
        until = time.monotonic() + ANSWER
        while (late := [address for address, future in futures.items() if not future.done()]) and (
            remaining := until - time.monotonic()
        ) > 0:
            with suppress(TimeoutError):
                futures[late[0]].exception(timeout=min(LOOK, remaining))
            for address in set(late) - self._scheduler_info().keys():  # nobody would answer for it
                self._client.cancel(futures.pop(address), force=True)
        if late:
            self._client.cancel([futures[address] for address in late], force=True)
            yield (
                late,
                f"{_names(late)} did not read a sample within {ANSWER:.0f} s; see what else they do, or their log.",
            )
        answers = defaultdict[str, list[str]](list)
        for address in futures.keys() - late:
            answers[str(futures[address].result())].append(address)
        answers.pop("", None)
        for problem, addresses in answers.items():
            yield (
                addresses,
                f"{_names(addresses)} cannot read the collection ({problem}); put it where every worker finds it by "
                "the same absolute path, or give a URL.",
            )


def _running(workers: Mapping[str, Any]) -> dict[str, Any]:
    return {address: info for address, info in workers.items() if info["status"] == "running"}


def _in_thread(call: Callable[[], T]) -> Future[T]:
    """Call a function in a thread that does not hold up the end of the process."""
    future: Future[T] = Future()

    def called() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=called, name="streampca-admission", daemon=True).start()
    return future


def _too_small(workers: Mapping[str, Any], memory: int) -> Iterator[Problem]:
    """Name the workers that have too little memory for a plan that needs `memory` bytes."""
    limits = {address: info["memory_limit"] for address, info in workers.items() if info["memory_limit"]}
    small = [address for address, limit in limits.items() if budget_within(limit) < memory]
    if not small:
        return
    limit = min(limits[address] for address in small)
    usable = budget_within(limit)
    less = f", or set memory to at most {format_bytes(usable // MIB * MIB)}" if usable > MIB else ""
    yield (
        small,
        f"{_names(small)} {'have' if len(small) > 1 else 'has'} {format_bytes(limit)} of memory, of which a plan may "
        f"use {format_bytes(max(0, usable))}, and this one needs {format_bytes(memory)}; give workers at least "
        f"{budget_size(limit_around(memory))}{less}.",
    )


def _names(addresses: Iterable[str]) -> str:
    names = sorted(addresses)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"worker{'s' if len(names) > 1 else ''} {', '.join(names[:SHOWN])}{more}"
