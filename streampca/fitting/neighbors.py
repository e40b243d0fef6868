"""`neighbors`: the graph of nearest neighbours of a collection's samples, computed within a budget and stored.

Samples are read into memory once. Their neighbours are searched block by block, by this process or by workers, which
are sent all samples; a run that was killed resumes with the next block. If the graph has several components, a second
search finds how many neighbours would connect it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..accumulators.finite import has_safe_squares, not_finite
from ..arrays import Array, Float64
from ..errors import DataError
from ..events import (
    BlockDone,
    Listener,
    PassStarted,
    Planned,
    Solving,
    check_listener,
    or_logged,
    reported,
    silent,
)
from ..execution import Executor, LocalExecutor
from ..execution.checkpoint import CheckpointFolder, Checkpointing, StageCheckpoint
from ..execution.consecutive_rows import ConsecutiveRows
from ..execution.executor import planning_for
from ..execution.fold import one_span
from ..execution.session import Session, run_session, session
from ..execution.task import SampleBlocks
from ..kinds.description import make
from ..kinds.run import Run
from ..machine import PeakMeter, hand_back
from ..manifold.equal_samples import searched_samples
from ..manifold.graph_components import Crossings, component_labels
from ..manifold.graph_facts import facts_of
from ..manifold.neighbor_graph import NeighborGraph
from ..manifold.neighbors import NeighborSearch, held_dtype, load_faiss, origin_of
from ..manifold.stored_graph import check_graph_output, save_graph
from ..planning.blocks import Span, blocks_of
from ..planning.neighbors import (
    EF_CONSTRUCTION,
    LINKS,
    RECALL_SAMPLES,
    NeighborsPlan,
    NeighborsRequest,
)
from ..planning.neighbors import plan_neighbors as make_neighbors_plan
from ..preprocessing import Preparation, Prepared
from ..preprocessing.run_options import DEVICE, OF_FITS, FitOptions, run_and_opening
from ..preprocessing.sizes_for_planning import problem_of
from ..readers import check_apart, open_collection, paths_of
from ..readers.collection import State, states_by_name, unchanged
from ..signals import stopping_on_signals
from ..storage.disk import expanded
from ..storage.free_space import check_free_spaces
from ..units import counted
from .build_model import data_of
from .methods.data_checks import bad_sample
from .open_fit import open_samples
from .plan import DeclaredOptions, declared

Ints = npt.NDArray[np.intp]

SMALLEST = 1e-130  # smallest range of the widest feature: below it squared distances can underflow
EDGE_BYTES = 12  # bytes of a stored neighbour: its index and distance


@stopping_on_signals()
def neighbors(
    source: Any,
    *,
    n_neighbors: int = 15,
    method: str = "auto",
    ef_search: int = 64,
    random_state: Any = 0,
    preparation: Preparation | None = None,
    **options: Unpack[FitOptions],
) -> NeighborGraph:
    """Find the nearest neighbours of every sample, by Euclidean distance.

    Parameters
    ----------
    source : path, glob, list of paths, array or Collection
        n samples, usually scores of some dozen components; see `open_collection`. Images are compared as vectors.
    n_neighbors : int, default=15
        Number of neighbours of each sample, itself not counted.
    method : {"auto", "exact", "hnsw"}, default="auto"
        "exact" compares all pairs by matrix products, or uses a k-d tree for up to 6 features. "hnsw" finds nearly all
        of the same neighbours (Malkov and Yashunin, 2020) and needs faiss. "auto" is exact if that is predicted to take
        no more than a minute of one core.
    ef_search : int, default=64
        Method "hnsw": number of candidates during a search. More are slower, and find more of the neighbours.
    random_state : int, RandomState, Generator or None, default=0
        Seed of the sample by which the recall of "hnsw" is estimated.
    preparation : Preparation, optional
        Steps applied to every sample first.
    **options
        Options of the run, see `streampca.Run`: ``output`` is a folder for the graph, ending in ``.zarr``, see
        `load`. Options of opening the source, see `open_collection`.

    Returns
    -------
    NeighborGraph
        ``provenance["facts"]`` has its components, equal samples and hubs; ``provenance["recall"]`` the share of true
        neighbours that method "hnsw" has found, estimated on a sample of rows.

    Raises
    ------
    SourceError
        If the source cannot be read; as a ChangedError, if it changed since it was opened.
    DataError
        If it has a single sample, NaN or infinity, or all samples are equal.
    RequestError
        If there are no more samples than neighbours, an option is wrong, or faiss is needed and not installed.
    BudgetError
        If it does not fit the budget; before samples are read.
    OutputError
        If `output` exists (and `overwrite` is false) or cannot be written.

    Notes
    -----
    Distances are computed from differences in float64. Neighbours at equal distances are ordered by index, so the
    result does not depend on blocks and threads; nor does that of "hnsw".

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> streampca.neighbors(np.array([[0.0], [1.0], [5.0]]), n_neighbors=1).indices
    array([[1],
           [0],
           [1]], dtype=int32)
    """
    run, opening = run_and_opening(neighbors, options, unused=(*OF_FITS, *DEVICE))
    listener = or_logged(run.listener)
    check_listener(listener)
    request = _request(n_neighbors, method, ef_search, random_state, run)
    path = None if run.output is None else expanded(run.output)
    if path is not None:
        check_apart([path], paths_of(source))
    raw = open_collection(source, listener=listener, **opening)
    collection = open_samples(raw, preparation, memory=request.memory, listener=listener)
    with run_session("neighbours", run, path) as current:
        return graph_in(current, collection, request)


def plan_neighbors(
    source: Any = None,
    *,
    n_neighbors: int = 15,
    method: str = "auto",
    ef_search: int = 64,
    random_state: Any = 0,
    preparation: Preparation | None = None,
    **options: Unpack[DeclaredOptions],
) -> NeighborsPlan:
    """Plan the work of `neighbors`, reading headers only.

    Parameters
    ----------
    source : optional
        As for `neighbors`; omitted if `shape` is an option.
    n_neighbors, method, ef_search, random_state, preparation : optional
        As for `neighbors`.
    **options
        As for `neighbors`. Also ``shape`` of data that do not exist yet, samples first, and their ``dtype``, by default
        "uint8".

    Returns
    -------
    NeighborsPlan
        Plan, to be printed.

    Raises
    ------
    BudgetError, RequestError, SourceError
        As `neighbors`.

    Examples
    --------
    >>> import streampca
    >>> streampca.plan_neighbors(shape=(10**6, 50), dtype="float32", method="exact", memory="8 GiB").method
    'exact'
    """
    shape = options.pop("shape", None)
    dtype = "uint8" if shape is None else options.pop("dtype", None) or "uint8"
    run, opening = run_and_opening(plan_neighbors, options)
    request = _request(n_neighbors, method, ef_search, random_state, run)
    raw = open_collection(source if shape is None else declared(shape, dtype), **opening)
    collection = open_samples(raw, preparation, memory=request.memory, foreseen=True)
    return make_neighbors_plan(problem_of(collection), request, collection.source)


def _request(n_neighbors: int, method: str, ef_search: int, random_state: Any, run: Run) -> NeighborsRequest:
    """Return the checked request."""
    values = {"n_neighbors": n_neighbors, "method": method, "ef_search": ef_search, "random_state": random_state}
    return make(NeighborsRequest, {**values, "memory": run.budget, "workers": run.workers or 1})


def graph_of(
    collection: Prepared,
    request: NeighborsRequest,
    *,
    output: str | None = None,
    overwrite: bool = False,
    executor: Executor | None = None,
    checkpoint: Checkpointing | None = None,
    listener: Listener = silent,
) -> NeighborGraph:
    """Plan and make the graph of an opened collection, and write it if there is an output; see `neighbors`."""
    how: dict[str, Any] = {"executor": executor, "checkpointing": checkpoint, "listener": listener}
    with session("neighbours", output=output, overwrite=overwrite, **how) as current:
        return graph_in(current, collection, request)


def graph_in(current: Session, collection: Prepared, request: NeighborsRequest) -> NeighborGraph:
    """Plan and make a graph within a session; see `neighbors`."""
    output, overwrite = current.output, current.overwrite
    if output is not None:
        check_graph_output(output, overwrite=overwrite)
    executor = current.executor
    limits: dict[str, Any] = {"memory": request.memory or executor.memory}
    limits["workers"] = max(request.workers, executor.workers)
    with planning_for(executor):
        plan = make_neighbors_plan(problem_of(collection), replace(request, **limits), collection.source)
    if plan.method == "hnsw":
        load_faiss()  # refuses a missing package before samples are read
    # Workers are sent the samples: what they need is memory, and the package of the search.
    packages = ("faiss",) if plan.method == "hnsw" else ()
    executor.check(int, plan.memory_estimate.total, current.listener, packages=packages)
    states = collection.states()
    current.listener(Planned(plan))
    edges = collection.n_samples * request.n_neighbors * EDGE_BYTES
    disks = ((output, edges), (current.checkpoint_disk, 2 * edges))
    needed = {path: count for path, count in disks if path is not None}
    check_free_spaces(needed, at_most=current.listener)
    identity = partial(_identity_of, collection, request, states)
    with current.resumable(identity, plan.decisive(), spans=[[*span] for span in plan.spans]) as saved:
        graph = GraphRun(collection, plan, states, saved, current).graph()
        if output is not None:
            save_graph(graph, output, overwrite=overwrite)
    return graph


def _identity_of(collection: Prepared, request: NeighborsRequest, states: list[State]) -> dict[str, Any]:
    """Return the facts that must be unchanged for an unfinished search to be resumed."""
    return {
        "work": "neighbors",
        **{name: value for name, value in vars(request).items() if name not in ("memory", "workers")},
        **collection.preparation.to_json(),
        "source": collection.source,
        "number of samples": collection.n_samples,
        **states_by_name(states),
    }


@dataclass(frozen=True)
class GraphRun:
    """The making of one graph."""

    collection: Prepared
    plan: NeighborsPlan
    states: list[State]
    saved: CheckpointFolder | None
    session: Session

    @property
    def listener(self) -> Listener:
        """Receiver of events."""
        return self.session.listener

    def graph(self) -> NeighborGraph:
        """Read the samples, find their neighbours, and describe the graph."""
        meter, plan = PeakMeter(), self.plan
        samples = self.searchable(self.read())
        hand_back()  # buffers of reading, before the search needs memory
        n, k = self.collection.n_samples, plan.request.n_neighbors
        if plan.method == "hnsw":
            self.listener(Solving(f"HNSW index of {counted(len(samples.references), 'sample')}"))
        search = samples.search(plan.algorithm, plan.request.ef_search)
        search.build()
        stage = self.stage("neighbors")
        longest = max(span.size for span in self.spans)
        new, restored = partial(_Rows.reserved, n, k, longest), partial(_Rows.from_state, most=longest)
        rows = self.fold("neighbours", new, restored, samples, search, k, stage)
        graph = NeighborGraph(rows["indices"], rows["distances"])
        recall = self.recall(graph, samples) if plan.method == "hnsw" else None
        labels, sizes = component_labels(graph)
        hand_back()
        connecting = None
        if len(sizes) > 1 and plan.reach > k:
            if stage is not None:
                last = len(self.spans) - 1
                stage.save_if_due(0, last, n, rows, now=True)  # the next search takes as long as this one
            crossings = self.fold(
                "neighbours that connect the graph",
                partial(Crossings, labels),
                partial(Crossings.from_state, labels),
                samples,
                search,
                plan.reach,
                self.stage("connecting"),
            )
            connecting = crossings.connecting()
        hnsw = {"links": LINKS, "ef_construction": EF_CONSTRUCTION, "ef_search": plan.request.ef_search}
        provenance = {
            "streampca": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **data_of(self.collection, self.states, None, None),
            "preparation": self.collection.preparation.to_json(),
            "n_features": self.collection.n_features,
            "metric": "euclidean",
            "method": plan.method,
            "plan": plan.to_json(),
            **({} if recall is None else {"recall": recall, "hnsw": hnsw}),
            "facts": facts_of(graph, sizes, connecting=connecting, looked_up_to=plan.reach),
            "seconds": round(self.session.seconds, 3),
            "peak_bytes": meter.peak(),
        }
        return NeighborGraph(graph.indices, graph.distances, provenance)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans of samples whose neighbours are searched: those of the run that is resumed, or of the plan."""
        recorded = None if self.saved is None else self.saved.record.get("spans")
        return self.plan.spans if recorded is None else tuple(Span(*span) for span in recorded)

    def stage(self, name: str) -> StageCheckpoint | None:
        """Return the checkpoint of a search, if there is one."""
        return None if self.saved is None else self.saved.stage(name)

    def read(self) -> _AllSamples:
        """Read all samples into memory."""
        collection, plan = self.collection, self.plan
        n, p = collection.n_samples, collection.n_features
        task = _Reading(collection, plan.read_rows)
        with (
            reported(self.listener, PassStarted("reading", 1, 1, n, n * collection.row_bytes)),
            unchanged(collection, self.states),
        ):
            samples = LocalExecutor().fold(task, [Span(0, n)], one_span, ahead=plan.ahead, listener=self.listener)
        if (samples.low == samples.high).all():
            raise DataError(
                f"all {n} samples of {collection.source} are equal, so that none is nearer to a sample than another; "
                f"check how these {counted(p, 'value')} a sample were made."
            )
        if (widest := float((samples.high.astype(np.float64) - samples.low).max())) < SMALLEST:
            raise DataError(
                f"samples of {collection.source} differ by {widest:.1e} at most, and squares of that are too small for "
                "float64; multiply all of them."
            )
        return samples

    def searchable(self, collected: _AllSamples) -> _Samples:
        """Return the samples to search among, shifted near the origin; further copies of equal samples are left out.

        The others are moved up within the array, as there may be no memory for another one.
        """
        samples, origin = collected.samples, origin_of(collected.low, collected.high)
        if origin.any():
            samples -= origin
        distinct = searched_samples(samples, self.plan.reach + 1)
        if distinct is None:
            return _Samples(samples, None, None)
        kept, positions = distinct
        for start in range(0, len(kept), self.plan.block_rows):
            numbers = kept[start : start + self.plan.block_rows]
            samples[start : start + len(numbers)] = samples[numbers]
        return _Samples(samples[: len(kept)], kept, positions)

    def fold(
        self,
        label: str,
        new: Callable[[], T],
        restored: Callable[[dict[str, Array]], T],
        samples: _Samples,
        search: NeighborSearch,
        k: int,
        stage: StageCheckpoint | None,
    ) -> T:
        """Search for the neighbours of all samples, block by block."""
        n = self.collection.n_samples
        task = _Searching(new, restored, samples, search, k, self.plan.block_rows)
        with reported(self.listener, PassStarted(label, 1, 1, n, n * samples.row_bytes)):
            how: dict[str, Any] = {"listener": self.listener, "checkpoint": stage}
            return self.session.executor.fold(task, self.spans, _absorb, **how)

    def recall(self, graph: NeighborGraph, samples: _Samples) -> dict[str, Any]:
        """Return the share of the true neighbours of random samples that a graph has, compared by distance."""
        n, k = graph.n_samples, graph.n_neighbors
        random = np.random.default_rng(self.plan.request.random_state)
        numbers = np.sort(random.choice(n, min(n, RECALL_SAMPLES), replace=False))
        self.listener(Solving(f"recall, by an exact search for {counted(len(numbers), 'sample')}"))
        search, true_neighbors = samples.search("products", self.plan.request.ef_search), 0
        for start in range(0, len(numbers), self.plan.block_rows):
            block = numbers[start : start + self.plan.block_rows]
            _, distances = search.query(samples.rows(block), k, block)
            # By distance and not by index: of neighbours at equal distances any is right.
            true_neighbors += int(np.count_nonzero(graph.distances[block] <= distances[:, -1:]))
        return {"share": true_neighbors / (k * len(numbers)), "samples": len(numbers)}


@dataclass(frozen=True)
class _Samples:
    """Samples to search among; their indices, and the row of each sample's equal; None if all samples are distinct."""

    references: Array
    numbers: Ints | None
    positions: Ints | None

    @property
    def row_bytes(self) -> int:
        return int(self.references.shape[1] * self.references.itemsize)

    def rows(self, numbers: Ints) -> Array:
        """Return the values of samples by their indices."""
        rows: Array = self.references[numbers if self.positions is None else self.positions[numbers]]
        return rows

    def search(self, algorithm: str, ef_search: int) -> NeighborSearch:
        """Return a search among the samples."""
        return NeighborSearch(self.references, algorithm, ef_search=ef_search, numbers=self.numbers, shifted=True)


class _AllSamples:
    """Accumulator of a whole collection in memory: its samples, (n, p), and the range of each feature."""

    def __init__(self, n: int, p: int, dtype: np.dtype[Any]) -> None:
        self.samples = np.empty((n, p), dtype)
        self.low, self.high = np.full(p, np.inf, dtype), np.full(p, -np.inf, dtype)

    def update(self, start: int, rows: Array) -> None:
        block = self.samples[start : start + len(rows)]
        block[...] = rows
        np.minimum(self.low, block.min(axis=0), out=self.low)
        np.maximum(self.high, block.max(axis=0), out=self.high)

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return no arrays: the samples are read again."""
        return {}


@dataclass(frozen=True)
class _Reading(SampleBlocks):
    """Read a collection into memory; see `streampca.execution.Task`."""

    collection: Prepared
    block_rows: int

    def start(self) -> _AllSamples:
        collection = self.collection
        return _AllSamples(collection.n_samples, collection.n_features, held_dtype(collection.dtype))

    def restore(self, state: dict[str, Array]) -> _AllSamples:
        raise AssertionError("samples are not saved")

    def feed(self, accumulator: _AllSamples, block: Span, fetched: Array) -> None:
        if not has_safe_squares(fetched, "double"):
            error = not_finite(fetched, block.start, "double")
            raise bad_sample(error, self.collection, "Leave it out with --samples (samples=) or --where (where=).")
        accumulator.update(block.start, fetched)


class _TakesNeighbors(Protocol):
    """Accumulator of neighbours."""

    def update(self, start: int, indices: Ints, distances: Float64) -> None:
        """Absorb the neighbours of samples `start` onwards, (b, k), nearest first."""

    def absorb(self, other: Self) -> None:
        """Absorb the neighbours of the samples that follow."""

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the whole state as plain arrays."""


T = TypeVar("T", bound=_TakesNeighbors)


def _absorb(left: T, right: T) -> None:
    left.absorb(right)


class _Rows(ConsecutiveRows):
    """Accumulator of the rows of a graph, in order."""

    @classmethod
    def reserved(cls, n: int, k: int, most: int) -> _Rows:
        """Return no rows of a graph of n samples and k neighbours, with memory for so many of a span."""
        return cls({"indices": ((k,), np.int32 if n < 2**31 else np.int64), "distances": ((k,), np.float64)}, most)

    def update(self, start: int, indices: Ints, distances: Float64) -> None:
        self.put(start, indices=indices, distances=distances)


@dataclass(frozen=True)
class _Searching(Generic[T]):
    """Find the neighbours of samples; see `streampca.execution.Task`.

    Attributes
    ----------
    new, restored : callable
        Return an accumulator, empty or restored from a state.
    samples : _Samples
    search : NeighborSearch
    k : int
        Number of neighbours.
    block_rows : int
        Number of samples whose neighbours are searched at a time.
    """

    new: Callable[[], T]
    restored: Callable[[dict[str, Array]], T]
    samples: _Samples
    search: NeighborSearch
    k: int
    block_rows: int

    def start(self) -> T:
        return self.new()

    def restore(self, state: dict[str, Array]) -> T:
        return self.restored(state)

    def blocks(self, span: Span) -> Iterable[Span]:
        return blocks_of(span, self.block_rows)

    def counts(self, block: Span) -> BlockDone:
        return BlockDone(block.size, block.size * self.samples.row_bytes)

    def fetch(self, block: Span) -> Ints:
        return np.arange(*block)

    def feed(self, accumulator: T, block: Span, fetched: Ints) -> None:
        accumulator.update(block.start, *self.search.query(self.samples.rows(fetched), self.k, fetched))
