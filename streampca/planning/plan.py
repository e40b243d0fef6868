"""`Plan`: what will be done, as a value and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from ..notebook import facts, numbers, view
from ..units import (
    HEADING,
    budget_size,
    counted,
    counted_passes,
    facts_as_text,
    format_bytes,
    format_rate,
    format_seconds,
    format_shape,
)
from .blocks import Span
from .decoding import read_boxes
from .memory import MemoryEstimate
from .network import EFFICIENCY, MOST_WORKERS, NETWORK, SharedPasses, Sharing
from .rates import RATES, Rates, Work
from .request import Problem, Request


class Candidate(NamedTuple):
    """The fastest plan of a method, or of one of its schedules, that fits the budget.

    Attributes
    ----------
    name : str
        As in `Plan.rejected`.
    plan : Plan or None
        None where nothing fits, or the plan is not to be taken whatever its time.
    reason : str
        Why there is no plan; empty where there is one.
    """

    name: str
    plan: Plan | None
    reason: str = ""


def _worth_having(sharing: Sharing) -> str:
    """Say beyond which number of workers little is gained."""
    most, workers, now = sharing.most_workers, sharing.workers, f"{100 * sharing.efficiency:.0f} %"
    if most == MOST_WORKERS:
        return f"more of them gain as much: of the time of {workers} in passes {now} goes into samples"
    goes = f"{100 * EFFICIENCY:.0f} % of their time in passes goes into samples, and {now} of that of {workers}"
    return f"up to {counted(most, 'worker')} {'is' if most == 1 else 'are'} worth having: {goes}"


@dataclass(frozen=True, kw_only=True)
class PlannedSizes:
    """Sizes that a plan and the candidates that it is chosen from have: how data are cut, read and multiplied.

    Attributes
    ----------
    schedule : {"samples", "sweep", "scratch", "lanczos", "em", "products"}
        Order of reading: blocks of samples; ranges of features; ranges of features of a scratch copy; or blocks
        of samples again, pass after pass, for products with a block of vectors (of a start sample, or of random ones),
        or for regressions on latent variables.
    room, dense_room : int
        Most components there is memory for, by the solver and by a dense one, which takes over from Lanczos where it
        converges slowly; 0 where a dense one does not fit.
    block_rows, product_rows : int
        Samples in memory at once; samples multiplied at a time.
    block_features, product_features : int
        Features to a range in memory at once (p where samples are held whole), and to a tile multiplied at a time
        (0 where rows are multiplied whole).
    stored : bool
        Whether components are written to the output as they are made, being larger than the memory for them.
    threads : int
        Spans that a process works on at the same time, a BLAS thread each; 1 where BLAS has all its threads.
    ahead : int
        Blocks of each span that are read ahead, 0 or 1.
    integer_units : str
        Kernel class by which whole numbers are multiplied: "amx", "vnni" or "arm"; "none" for floating point.
    sparse : bool
        Whether samples are held and multiplied as sparse rows.
    """

    schedule: str = "samples"
    room: int = 0
    dense_room: int = 0
    block_rows: int = 1
    product_rows: int = 0
    block_features: int = 0
    product_features: int = 0
    stored: bool = False
    threads: int = 1
    ahead: int = 0
    integer_units: str = "none"
    sparse: bool = False


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(PlannedSizes):
    """Method, schedule, sizes, memory and time of a fit; printable, comparable, storable.

    Sizes are those of `PlannedSizes`.

    Attributes
    ----------
    method, why : str
        The method and the reason for it.
    precision : {"single", "double"}
        Precision of products.
    solver : {"dense", "lanczos"}
        Solver of the p x p or n x n problem.
    spans : tuple of Span
        Spans that each task folds.
    passes : float
        Reads of all the data. Of method 'randomized' a prediction, which leaves out the sample that it starts from.
    bytes_read : int
        Decoded bytes over all passes, of the collection and of its scratch copy, and of a sample to start from; chunks
        decoded more than once are counted so.
    bytes_written : int
        Bytes of a scratch copy; the model itself is not counted.
    memory_estimate : MemoryEstimate
        Memory, phase by phase.
    work : Work
        Operations, by which the time is predicted.
    width, columns : int
        Vectors to a block that samples are multiplied with, and most that a basis of them may have, the block to be
        multiplied next included; 0 without such products. They are along features, or along samples where data are
        walked by ranges of features (`side`).
    device_bytes : int
        Bytes that products take of the memory of a device that multiplies, at most; 0 on the processor.
    others : tuple of Candidate
        Candidates that were considered and not taken.
    rates : Rates
        Rates by which times are predicted.
    assumed : str
        What was taken for a sample, where that had to be guessed.
    faster : Plan or None
        The plan by a budget not much larger, if it would take a tenth of the time.
    shared : SharedPasses or None
        Passes that workers share; None for one process.
    memory, budget_source : int, str
        Budget in bytes of each process, and where it comes from. These and the following are computed from the above.
    cores, workers : int
        Cores used of each process; processes that share the spans.
    seconds : float
        Predicted time.
    """

    problem: Problem
    request: Request
    method: str
    why: str
    precision: str
    solver: str
    spans: tuple[Span, ...]
    passes: float
    bytes_read: int
    memory_estimate: MemoryEstimate
    work: Work = field(compare=False)
    bytes_written: int = 0
    width: int = 0
    columns: int = 0
    device_bytes: int = 0
    others: tuple[Candidate, ...] = field(default=(), compare=False, repr=False)
    rates: Rates = field(default=RATES, compare=False, repr=False)
    assumed: str = field(default="", compare=False, repr=False)
    faster: Plan | None = field(default=None, compare=False, repr=False)
    shared: SharedPasses | None = field(default=None, compare=False, repr=False)

    memory: int = field(init=False, compare=False, repr=False)
    budget_source: str = field(init=False, compare=False, repr=False)
    cores: int = field(init=False, compare=False, repr=False)
    workers: int = field(init=False, compare=False, repr=False)
    seconds: float = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        machine, (memory, source) = self.problem.machine, self.problem.machine.budget(self.request.memory)
        names = ("memory", "budget_source", "cores", "workers")
        for name, value in zip(names, (memory, source, machine.cores, self.request.workers), strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "seconds", self.seconds_by(self.rates))

    def seconds_by(self, rates: Rates) -> float:
        """Return the time predicted by the rates of another plan."""
        if self.sharing is None:
            return self.work.seconds(self.cores, rates)
        return replace(self.sharing, rates=rates).seconds_of(self.work)

    @property
    def sharing(self) -> Sharing | None:
        """Passes that workers share, and what they are sent; None for one process."""
        network = self.request.network or NETWORK
        return None if self.shared is None else Sharing(self.shared, self.workers, self.cores, network, self.rates)

    @property
    def requests(self) -> int:
        """Storage chunks, or runs of a plain file, that are read in all passes, about: requests to an object store."""
        p = self.problem.n_features
        reading = read_boxes(self.problem, self.block_rows, min(self.block_features or p, p))
        return round(self.passes * (reading.pieces if self.problem.encoded else max(reading.reads, len(self.spans))))

    @property
    def rejected(self) -> tuple[tuple[str, str], ...]:
        """The methods and schedules that were not taken, with the reasons: (name, reason)."""
        return tuple((name, reason if plan is None else self._slower(plan)) for name, plan, reason in self.others)

    def _slower(self, other: Plan) -> str:
        seconds = other.seconds_by(self.rates)
        written = f" and writing {format_bytes(other.bytes_written)}" if other.bytes_written else ""
        return f"would take about {format_seconds(seconds)}, reading {format_bytes(other.bytes_read)}{written}"

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, equal to itself when read back from JSON: lists, not tuples."""
        left_out = {"others", "rates", "memory_estimate", "faster", "shared"}
        left_out |= {name for name in ("assumed", "device_bytes") if not getattr(self, name)}
        data = {each.name: getattr(self, each.name) for each in fields(self) if each.init and each.name not in left_out}
        data["problem"], data["request"] = self.problem.to_json(), self.request.given
        data["work"] = asdict(self.work)
        data["rejected"] = [list(pair) for pair in self.rejected]
        for name in ("memory", "budget_source", "cores", "workers", "seconds"):
            data[name] = getattr(self, name)
        data["memory_estimate"] = {phase.name: dict(phase.items) for phase in self.memory_estimate.phases}
        data["memory_needed"] = self.memory_estimate.total
        data["spans"] = [list(span) for span in self.spans]
        return data if self.sharing is None else data | {"sharing": self._sharing_facts(self.sharing)}

    def _sharing_facts(self, sharing: Sharing) -> dict[str, Any]:
        """Return what workers send one another, in each pass that they share, as plain data."""
        return {
            "passes": sharing.shared.passes,
            "network": sharing.network,
            "network_assumed": self.request.network is None,
            "bytes_broadcast": sharing.shared.vectors * self.workers,
            "bytes_reduced": sharing.shared.partial * sharing.n_sums,
            "bytes_of_a_sum": sharing.shared.partial,
            "depth": sharing.depth,
            "tasks": sharing.n_tasks,
            "requests": self.requests,
            "seconds_a_pass": sharing.seconds_a_pass,
            "efficiency": sharing.efficiency,
            "most_workers": sharing.most_workers,
        }

    def __repr__(self) -> str:
        """The plan in six lines; printing it gives all of it."""
        facts = [
            ("components", self._components()),
            ("method", f"{self.method}, {self.precision} precision, {self.solver} eigensolver"),
            ("reading", self._reading()),
            ("time", f"about {format_seconds(self.seconds)}"),
            ("memory", self._memory()),
        ]
        lines = [f"Plan of kind {self.request.kind}: {self._collection()}"]
        return "\n".join([*lines, *(f"  {heading:<{HEADING}}{text}" for heading, text in facts)])

    def __str__(self) -> str:
        return facts_as_text(self.lines())

    def _repr_html_(self) -> str:
        items = ((name, format_bytes(count)) for name, count in self.memory_estimate.largest.items)
        return view("Plan", facts(self.facts()), numbers(("in memory at once", "size"), items))

    def lines(self) -> Iterator[tuple[str, str]]:
        """The plan in words, as (heading, text) pairs; what it takes in memory, item by item, comes last."""
        yield from self.facts()
        for name, count in self.memory_estimate.largest.items:
            yield "", f"{format_bytes(count):>9}  {name}"

    def facts(self) -> Iterator[tuple[str, str]]:
        """The plan in words, without the items in memory."""
        p = self.problem
        yield "collection", self._collection()
        if self.assumed:
            yield "", self.assumed
        if self.request.counts_by_default:
            yield "components", f"{self._components()}; set the number with -k (n_components)"
        yield "method", f"{self.method}: {self.why}"
        for index, (name, reason) in enumerate(self.rejected):
            yield "" if index else "not taken", f"{name}: {reason}"
        if self.schedule != "samples":
            yield "schedule", f"{self.schedule}: {self._schedule()}"
        if self.stored:
            yield "", "components are written to the output as they are computed, as they do not fit in memory together"
        yield "reading", self._reading() + ("; the next block is read ahead" if self.ahead else "")
        again = self.bytes_read / ((self.passes + self._is_sampled) * p.n_samples * p.row_bytes)
        if again > 1.5:
            why = (
                "it is larger than a block"
                if self.schedule in ("samples", "products")
                else "chunks are cut along samples, and reading is by features"
            )
            why += "; more memory allows larger blocks" if self.schedule == "samples" else ""
            per_pass = "" if self.passes == 1 else " in each pass"
            yield "", f"every storage chunk is decoded about {again:.0f} times{per_pass}, as {why}"
        if self.bytes_written:
            yield "writing", f"{format_bytes(self.bytes_written)}, a scratch copy {self._place()}, removed afterwards"
        if p.learning_bytes:
            yield (
                "",
                "one more pass before the fit learns means, trends, deviations or landmarks of the preparation",
            )
        if p.following_bytes:
            yield "", "one more pass after the fit estimates how far its components are from those of the kernel matrix"
        where = f"device {self.request.device}" if self.request.device else self._machines()
        yield "computing", f"{self.precision} precision products on {where}, {self.solver} eigensolver"
        if self.integer_units != "none":
            yield "", f"whole numbers are multiplied exactly, on integer units ({self.integer_units})"
        yield "time", f"about {format_seconds(self.seconds)}{self._with_more()}"
        if self.sharing is not None:
            yield from self._sharing(self.sharing)
        if self.request.device:
            yield "", "by the rates of one core of the processor, as those of the device are not known"
        yield "memory", self._memory()
        if self.request.device:
            free = format_bytes(p.machine.device_memory or 0)
            yield "", f"{format_bytes(self.device_bytes)} of the device, where {free} are free"

    def _collection(self) -> str:
        p = self.problem
        return f"{p.n_samples} samples of {format_shape(p.sample_shape)}, {format_bytes(self._size)}"

    def _components(self) -> str:
        """Describe how many components are asked for, and if that is the default."""
        count = self.request.n_components
        if isinstance(count, float):
            words = f"as many as hold {100 * count:g} % of the variance"
        elif count is None:
            words = f"all, at most {self.problem.most_components}"
        else:
            words = f"counted by rule {count!r}" if isinstance(count, str) else str(count)
        return f"{words}, the default" if self.request.counts_by_default else words

    def _reading(self) -> str:
        passes = counted_passes(self.passes) + (" and a sample to start from" if self._is_sampled else "")
        return f"{passes}, {format_bytes(self.bytes_read)} in blocks of {self.block_rows} samples"

    def _memory(self) -> str:
        needed, allowed = format_bytes(self.memory_estimate.total), format_bytes(self.memory)
        return f"{needed} planned, {allowed} allowed ({self.budget_source})"

    def _with_more(self) -> str:
        """Say how much faster the plan would be with a little more memory, where it is so by far."""
        if self.faster is None:
            return ""
        memory = budget_size(self.faster.request.memory or 0)
        seconds = self.faster.seconds_by(self.rates)
        return f" (with --memory {memory} (memory={memory!r}): {format_seconds(seconds)})"

    @property
    def side(self) -> str:
        """Along which side vectors lie that data are multiplied with: ``"features"``, or ``"samples"``."""
        return "samples" if self.width and self.schedule in ("sweep", "scratch") else "features"

    @property
    def fewest_components(self) -> int:
        """Fewest components that the fit can find: of a fraction or a rule it may be one."""
        count, most = self.request.n_components, self.problem.most_components
        if count is None:
            return most
        return min(count, most) if isinstance(count, int) else 1

    @property
    def component_itemsize(self) -> int:
        """Bytes of a loading."""
        return 4 if self.problem.suits_single and self.request.precision != "double" else 8

    @property
    def state_bytes(self) -> int:
        """Bytes of the matrix or basis that a checkpoint holds, about; 0 where that is little."""
        n, p = self.problem.n_samples, self.problem.n_features
        if self.width:
            return 8 * self.columns * (n if self.side == "samples" else p)
        order = {"covariance": p, "dual": n, "kernel-matrix": n}.get(self.method, 0)
        return 8 * order**2

    @property
    def _is_sampled(self) -> bool:
        """True where the method starts from a sample."""
        return self.schedule in ("lanczos", "em")

    @property
    def reads_once(self) -> bool:
        """True where all samples stay in memory from the first read by ranges of features to the last."""
        by_features = self.schedule in ("sweep", "scratch")
        return by_features and self.workers == 1 and self.block_features >= self.problem.n_features

    @property
    def _size(self) -> int:
        """Bytes of all prepared samples."""
        return self.problem.n_samples * self.problem.n_features * self.problem.itemsize

    def _machines(self) -> str:
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        if self.threads > 1:
            return f"{cores}, {self.threads} threads"
        return cores if self.workers == 1 else f"{self.workers} workers of {cores}, {len(self.spans)} spans"

    def _sharing(self, sharing: Sharing) -> Iterator[tuple[str, str]]:
        """Say what workers send one another, and how many are worth having."""
        passes = sharing.shared.passes * sharing.seconds_a_pass
        beside = self.seconds - passes
        if beside > (1 - EFFICIENCY) * self.seconds:
            yield "", f"{format_seconds(beside)} of it are work of the process that was started, whatever the workers"
        assumed = ", as none is given by --network (network)" if self.request.network is None else ""
        vectors = f"every worker is sent {format_bytes(sharing.shared.vectors)} of vectors, and " if self.width else ""
        sums, partial = counted(sharing.n_sums, "sum"), format_bytes(sharing.shared.partial)
        yield "network", f"{format_rate(sharing.network)}{assumed}"
        yield "", f"in each pass {vectors}{sums} of {partial} travel along a tree of {counted(sharing.depth, 'level')}"
        tasks, requests = counted(sharing.n_tasks, "task"), counted(self.requests, "request")
        yield "", f"{tasks} in each pass; about {requests} to the store in all"
        yield "workers", _worth_having(sharing)

    def _place(self) -> str:
        if self.request.scratch is None:
            return "beside the output (of a URL: in the current directory)"
        return f"in {self.request.scratch}"

    def _schedule(self) -> str:
        """Describe the schedule in words."""
        p = self.problem.n_features
        if self.schedule == "em":
            features = "all features" if self.product_features >= p else f"{self.product_features} features"
            return f"each pass regresses {features} on {self.width} latent variables"
        products = f"each pass multiplies by {self.width} vectors along {self.side}; a basis of at most {self.columns}"
        if self.schedule in ("lanczos", "products"):
            return products
        where = "a scratch copy" if self.schedule == "scratch" else "the collection"
        if self.block_features >= p:
            read = f"all samples of {where} are in memory at once, and stay there"
        else:
            ranges = counted(-(-p // self.block_features), "range")
            read = f"all samples of {where} are read in {ranges} of {self.block_features} features"
        return f"{read}; {products}" if self.width else read
