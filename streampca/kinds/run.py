"""`Run`: the options of carrying out work, none of which changes its result."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import index as as_index
from typing import Annotated, Any, NamedTuple, Self, TypedDict

from ..errors import RequestError
from ..units import parse_bytes, parse_rate, parse_seconds
from .description import NamedFields, make
from .values import Check, Count, InPython, Range

SLOWEST = "1Mbit"  # link of a worker; a slower one is a mistake of units

Path = str | Annotated[os.PathLike[str], InPython()]


def _check_memory(value: Any) -> Any:
    parse_bytes(value)
    return value


def _check_network(value: Any) -> Any:
    if value is not None and parse_rate(value) < parse_rate(SLOWEST):
        raise RequestError(f"network = {value!r} is below {SLOWEST}, the slowest link of a worker; give its rate.")
    return value


def _check_part(value: Any) -> Any:
    part_of(value)
    return value


def _check_checkpoint(value: Any) -> Any:
    if value is None or isinstance(value, (str, os.PathLike)) or hasattr(value, "folder"):
        return value
    raise RequestError(f"checkpoint = {value!r}: give the path or URL of a folder to save progress in, or None.")


def _check_cluster(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        raise RequestError(f"cluster = {value!r} is a number of processes; give workers={value} in its place.")
    return value


def _check_device(value: Any) -> Any:
    if value is None or (isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?|torch:cpu", value)):
        return value
    raise RequestError(
        f"device = {value!r} is not a device: give 'cuda' or one of several, such as 'cuda:1'; leave --device "
        "(device) out to multiply on the processor ('torch:cpu' does so by torch)."
    )


@dataclass(frozen=True, repr=False, kw_only=True)
class Run(NamedFields):
    """How something is carried out.

    Parameters
    ----------
    memory : int or str, optional
        Most bytes to use, such as 2GiB; by default half of what the machine allows. Of each worker, where several share
        the work.
    output : path, optional
        Path to write the result to; by default it is returned only. Components larger than the budget are written there
        as they are computed, and stay on disk; without an output they are refused.
    overwrite : bool, default=False
        Replace an output that exists.
    reuse : bool, default=False
        Return the model at the output if the same fit of the same data wrote it. Another one is refused, or replaced
        with overwrite.
    scratch : path, optional
        Folder for a scratch copy of the collection; by default beside the output. A copy in the order in which
        the collection is analysed is made where the plan finds that faster than decoding it several times. It is
        removed afterwards. That of an output or a checkpoint at a URL is in the current directory.
    checkpoint : path or Checkpointing, optional
        Folder to save progress in, from which the same call resumes; by default none is saved. It is removed when the
        result is complete. It can be the URL of a folder in an object store.
    checkpoint_every : float, default=30.0
        Shortest time between two saves, in seconds. Saving takes at most 3 % of the run. 0 saves after every block.
    require_same_bits : bool, default=False
        Refuse to resume with other threads or another kernel of BLAS. These may round otherwise than those that the run
        began with; by default that is a warning.
    workers : int, optional
        Number of processes or workers that share the work; by default none. Of a scheduler that runs,
        how many to plan for. (A script that asks for processes needs ``if __name__ == "__main__":``, as with
        `multiprocessing`.)
    cluster : str, distributed.Client or cluster of dask's, optional
        Cluster that shares the work, by kind, such as slurm, or address; by default this machine. Kinds are local,
        slurm, pbs, sge, lsf and kubernetes, which are started, and configured, for the scheduler that dask's
        configuration names. Not in run files: a scheduler's address, such as tcp://10.0.0.1:8786.
    cluster_options : mapping, optional
        Options of the jobs of a cluster that is started, such as queue=long; by default none.
    worker_memory : int or str, optional
        Memory of each worker that is started; by default as the budget needs. Such as 4GiB.
    cluster_timeout : float or str, default=600.0
        Time to wait for the first worker, and when all are gone, such as 10min.
    dashboard : bool, default=False
        Serve dask's dashboard to all on this machine.
    network : str, optional
        Rate of a worker's link; by default 10Gbit. Such as 25Gbit or 1.2GB/s. Plans take the method that is fastest at
        this rate, and say how many workers are worth having. Of workers and clusters only.
    device : str, optional
        Device for products; by default the processor. Such as cuda or cuda:1, by torch (extra
        ``gpu``), of fits by every method, and of models that are applied; plans fit these into its memory.
        Eigenproblems stay on the processor.
    part : str or (int, int), optional
        Part of the samples to fit, such as 3/16; by default all. The third of 16 nearly equal runs of samples.
        The model stores the statistic that `merge` combines into the full model, as it would be without parts; only
        method "covariance" can. Weights and preparation are those of the whole collection.
    listener : callable, optional
        Function that is called with each event (`streampca.events`); by default warnings are logged.
    """

    memory: Annotated[int | str | None, Check(_check_memory)] = None
    output: Path | None = None
    overwrite: bool = False
    reuse: bool = False
    scratch: Path | None = None
    checkpoint: Annotated[str | Annotated[Any, InPython()] | None, Check(_check_checkpoint)] = None
    checkpoint_every: Annotated[float, Range(least=0)] = 30.0
    require_same_bits: bool = False
    workers: Count | None = None
    cluster: Annotated[str | Annotated[Any, InPython()] | None, Check(_check_cluster)] = None
    cluster_options: Mapping[str, Any] | None = None
    worker_memory: Annotated[int | str | None, Check(_check_memory)] = None
    cluster_timeout: Annotated[float | str, Check(parse_seconds)] = 600.0
    dashboard: bool = False
    network: Annotated[str | None, Check(_check_network)] = None
    device: Annotated[str | None, Check(_check_device)] = None
    part: Annotated[str | Annotated[Any, InPython()] | None, Check(_check_part)] = None
    listener: Annotated[Callable[[Any], None], InPython()] | None = None

    def __sklearn_clone__(self) -> Self:
        """Return the run itself: clients and listeners cannot be copied with an estimator."""
        return self

    def __repr__(self) -> str:
        shown = (
            f"{item.name}={getattr(self, item.name)!r}"
            for item in fields(self)
            if getattr(self, item.name) != item.default
        )
        return f"Run({', '.join(shown)})"

    @property
    def budget(self) -> int | None:
        """Budget in bytes; None for the default."""
        return parse_bytes(self.memory)

    @property
    def is_shared(self) -> bool:
        """True if workers share the work."""
        return self.cluster is not None or self.workers is not None

    def check_device(self) -> None:
        """Refuse a device where workers share the work, each of which would need one."""
        if self.device is not None and self.is_shared:
            raise RequestError(
                f"device {self.device!r} multiplies for one process; leave out --workers (workers) and --cluster "
                "(cluster)."
            )


class RunOptions(TypedDict, total=False):
    """The fields of `Run` as keywords of functions, and a `Run` that holds others."""

    run: Run | None
    memory: int | str | None
    output: str | os.PathLike[str] | None
    overwrite: bool
    reuse: bool
    scratch: str | os.PathLike[str] | None
    checkpoint: Any
    checkpoint_every: float
    require_same_bits: bool
    workers: int | None
    cluster: Any
    cluster_options: Mapping[str, Any] | None
    worker_memory: int | str | None
    cluster_timeout: float | str
    dashboard: bool
    network: str | None
    device: str | None
    part: Any
    listener: Callable[[Any], None] | None


def run_of(options: Mapping[str, Any]) -> Run:
    """Return the run with the values of keywords, checked, and those of the keyword `run`.

    Raises
    ------
    RequestError
        If a value is wrong, or is in both.
    """
    defaults = {item.name: item.default for item in fields(Run)}
    keywords = {name: value for name, value in options.items() if name != "run"}
    run = Run() if options.get("run") is None else options["run"]
    if not isinstance(run, Run):
        raise RequestError(f"run = {run!r}: give a Run, such as Run(memory='2 GiB') (how the fit is carried out).")
    values = {item.name: getattr(run, item.name) for item in fields(run) if getattr(run, item.name) is not item.default}
    for name in keywords:
        # A keyword at its default, as functions with explicit parameters pass it, does not conflict.
        if name in values and keywords[name] is not defaults[name]:
            raise RequestError(f"{name} is given, and so is run={run!r}, which has it too; give one of them.")
    return make(Run, {**keywords, **values})


class Part(NamedTuple):
    """One of `of` nearly equal runs of samples, fitted separately and merged; numbered from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def part_of(value: str | tuple[int, int] | None) -> Part | None:
    """Read ``"3/16"`` or (3, 16); None for the whole.

    Raises
    ------
    RequestError
        If it is neither, or there is no such part.
    """
    if value is None:
        return None
    try:
        number, of = map(int, value.split("/")) if isinstance(value, str) else map(as_index, value)
    except (TypeError, ValueError):
        raise RequestError(f"part {value!r} is not PART/PARTS; give for example 3/16 for the third of 16.") from None
    if not 1 <= number <= of:
        last = max(of, 1)
        raise RequestError(f"part {number}/{of} does not exist; parts count from 1, as in 1/{last} to {last}/{last}.")
    return Part(number, of)
