"""Plans of graphs of nearest neighbours: by exact search, or by HNSW where that would take too long.

The constants that the search allocates by stand here. `benchmarks/neighbors.py` measures the rates, the recall of HNSW
and the peaks of fresh processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from ..errors import DataError, RequestError
from ..kinds.neighbors import NeighborsDescription
from ..units import MIB, counted, facts_as_text, format_bytes, format_seconds, format_shape
from .blocks import MOST_BLOCK, Span, block_rows, span_count, spans_of
from .candidate_sizes import Sizes, refusal, search, smallest_sizes
from .memory import Phase, decoding_items, runtime
from .request import Problem

# Parameters of HNSW, by benchmarks/neighbors.py: with 32 links and 100 candidates the index is built as fast as with 16
# links, and the recall is 0.9995 at 60000 x 50; 200 candidates take twice as long for 0.9998.
LINKS, EF_CONSTRUCTION = 32, 100
EXACT_SECONDS = 60.0  # of one core: up to so many "auto" searches exactly
TREE_FEATURES = 6  # up to so many a k-d tree compares few pairs; from 10 on it compares all
MARGIN = 16  # candidates beyond the neighbours, which show that no other sample is as near
CANDIDATE_BYTES = 8 * MIB  # candidates that a thread compares at a time
COPIES = 9  # numbers of 8 bytes for each candidate: places, distances, their orders, and what the finder holds
PIECE = 2 * MIB  # differences of candidates at a time
LEAST_REACH, REACH, REACH_NUMBERS = 128, 8, 2_000_000  # see `reach_of`
RECALL_SAMPLES = 1000  # samples whose neighbours by HNSW are compared with the exact ones
CHUNK = 256  # rows that scikit-learn multiplies at a time, which of float32 are float64 before
BLOCKS = (4096, 2048, 1024, 512, 128)  # samples whose neighbours are looked for at a time: few take far longer
PAIRS, LEAST_BLOCK = 250_000_000, 512  # pairs of a block, some seconds: one that is told to stop ends with its block
SEARCH_RUNTIME = 12 * MIB  # of scikit-learn's or faiss's threads, and of a second BLAS
LARGE = 200  # features, beyond which scores of fewer are worth a word

# Seconds of one core (2 cores, AVX-512): a pair of samples, and each of its features; a sample whose candidates are put
# in order, and each of its features; a visit of a leaf of the tree, of which features multiply the number; a sample
# added to HNSW and looked for in it, for each doubling of samples, and by features.
PAIR, PAIR_FEATURE = 4.2e-9, 5.7e-11
ROW, ROW_FEATURE = 2e-5, 4e-7
TREE_LEAF = 4e-6
HNSW_STEP, HNSW_FEATURE = 7e-6, 7e-8


@dataclass(frozen=True)
class NeighborsRequest(NeighborsDescription):
    """Options of `streampca.neighbors`, with checked values, the budget in bytes, and how many workers share the work.

    The budget is that of each worker, and of the process that was started.
    """

    memory: int | None = None
    workers: int = 1


@dataclass(frozen=True, kw_only=True)
class NeighborsPlan(Sizes):
    """Plan of a graph of nearest neighbours; before it is chosen, a candidate.

    Attributes
    ----------
    problem : Problem
        Sizes of the samples.
    request : NeighborsRequest
        The request.
    algorithm : {"products", "tree", "hnsw"}
        How candidates are found.
    why : str
        Reason for the method.
    block_rows : int
        Samples whose neighbours are looked for at a time.
    read_rows, ahead : int
        Samples to a block that is read, and blocks read ahead.
    """

    request: NeighborsRequest
    algorithm: str
    why: str
    block_rows: int
    read_rows: int
    ahead: int

    passes = 1  # over the samples

    @property
    def method(self) -> str:
        """Method: "exact" or "hnsw"."""
        return "hnsw" if self.algorithm == "hnsw" else "exact"

    @property
    def memory(self) -> int:
        """Budget in bytes."""
        return self.problem.machine.budget(self.request.memory)[0]

    @property
    def seconds(self) -> float:
        """Time that the search is predicted to take, and as long again where the graph has to be connected."""
        return _core_seconds(self.problem, self.algorithm) / (self.request.workers * max(1, self.problem.machine.cores))

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans of samples whose neighbours are looked for."""
        return spans_of(self.problem.n_samples, span_count(self.request.workers), self.block_rows)

    @property
    def reach(self) -> int:
        """Neighbours up to which a number is looked for that connects a graph; see `reach_of`."""
        return reach_of(self.problem.n_samples, self.request.n_neighbors)

    @property
    def how(self) -> str:
        """Description of the search."""
        return _NAMES[self.algorithm]

    def decisive(self) -> dict[str, Any]:
        """Return what must be the same for an unfinished run to be resumed."""
        return {"method": self.method, "algorithm": self.algorithm}

    def __str__(self) -> str:
        return facts_as_text(self.lines())

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the plan in words, as (heading, text) pairs."""
        problem, k = self.problem, self.request.n_neighbors
        of = f"{problem.n_samples} samples of {problem.n_features} features"
        if len(problem.sample_shape) > 1:
            of += f" (values of {format_shape(problem.sample_shape)})"
        yield "collection", of
        yield "neighbours", f"{k} nearest of each sample: {self.how}, {self.why}"
        if problem.n_features > LARGE:
            yield "", "a search among scores of fewer components is faster: see streampca fit and transform"
        seconds, cores = format_seconds(self.seconds), counted(problem.machine.cores, "core")
        if self.request.workers > 1:
            cores = f"{self.request.workers} workers of {cores}"
        yield "time", f"about {seconds} on {cores}, twice as long if the graph is not connected"
        estimate = self.memory_estimate
        yield "memory", f"{format_bytes(estimate.total)} planned, {format_bytes(self.memory)} allowed"
        for name, count in estimate.largest.items:
            yield "", f"{format_bytes(count):>9}  {name}"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        phases = {phase.name: dict(phase.items) for phase in self.memory_estimate.phases}
        facts = {
            name: getattr(self, name) for name in ("method", "algorithm", "why", "block_rows", "read_rows", "seconds")
        }
        return {**facts, "n_neighbors": self.request.n_neighbors, "memory": self.memory, "memory_estimate": phases}

    # -- memory

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of reading the samples, of the search, and of what is made of the graph."""
        problem, rows, read, ahead = self.problem, self.block_rows, self.read_rows, self.ahead
        n, p, k = problem.n_samples, problem.n_features, self.request.n_neighbors
        item = 4 if problem.is_narrow else 8
        held = {f"{n} samples of {p} features, float{8 * item}": n * p * item}
        blocks = {f"{1 + ahead} blocks of {read} samples as read": (2 + ahead) * read * problem.sample_bytes}
        yield Phase.of("reading", held, blocks, decoding_items(problem, read), runtime())
        yield Phase.of("comparison of equal samples", held, {"digests of samples, and their order": 40 * n}, runtime())
        graph_bytes = (12 if n < 2**31 else 16) * n * k
        graph = {f"graph of {n} x {k} neighbours": graph_bytes}
        count, cores = self.reach + 1 + MARGIN, max(1, problem.machine.cores)
        compared = min(rows, cores * candidates_at_once(count))
        items = {
            f"candidates of a block of {rows} samples": 8 * COPIES * compared * count,
            f"neighbours of a block of {rows} samples": 8 * 4 * rows * count,
            "candidates of one sample among all": cores * 8 * COPIES * n,
            "differences of candidates": cores * 2 * PIECE,
            f"block of {rows} samples in float64": 3 * 8 * rows * p,
            "places of samples": 16 * n,
            "chunks of both sides in float64": chunk_bytes(p, cores)
            if self.algorithm == "products" and item == 4
            else 0,
            **self._index_items(item),
        }
        if self.request.workers > 1:  # in a worker, or in the process that was started, which has no block
            items["rows of the graph that are put together"] = graph_bytes
        yield Phase.of("search", held, graph, items, runtime(cores, SEARCH_RUNTIME))
        facts = {"copy of the graph, and one turned round": 2 * graph_bytes, "components of samples": 48 * n}
        yield Phase.of("components", held, graph, facts, self._index_items(4), runtime())

    def _index_items(self, item: int) -> dict[str, int]:
        """Bytes by name of the index, made of samples of so many bytes a value."""
        n, p = self.problem.n_samples, self.problem.n_features
        if self.algorithm == "tree":
            return {"k-d tree": n * (8 * p + 40)}
        if self.algorithm == "hnsw":
            index = {f"HNSW index, {LINKS} links": n * (4 * p + 8 * LINKS + 40)}
            return index | ({"samples as float32": 4 * n * p} if item == 8 else {})
        return {}


_NAMES = {
    "products": "exact search by matrix products",
    "tree": "exact search by a k-d tree",
    "hnsw": "approximate search by HNSW",
}


def plan_neighbors(problem: Problem, request: NeighborsRequest, source: str = "the collection") -> NeighborsPlan:
    """Choose method and blocks.

    Raises
    ------
    DataError
        If there is one sample only.
    RequestError
        If more neighbours are asked for than there are other samples.
    BudgetError
        If nothing fits, naming the budget that would do.
    """
    n = problem.n_samples
    if n < 2:
        raise DataError(f"{source} has one sample, and neighbours need two; give more.")
    if request.n_neighbors >= n:
        raise RequestError(
            f"n_neighbors {request.n_neighbors} is not less than the {n} samples of {source}; give at most {n - 1} "
            "(--n-neighbors, n_neighbors)."
        )
    budget, against = problem.machine.budget(request.memory), ""
    methods = [(request.method, "as asked")] if request.method != "auto" else list(_preferred(problem))
    smallest = []
    for method, why in methods:
        candidates = candidate_sizes(problem, request, method, why + against)
        if plan := search(candidates, budget[0]):
            return plan
        smallest.append(smallest_sizes(candidates))
        against = f"; {method} does not fit, as it needs {format_bytes(smallest[-1].memory_estimate.total)}"
    least = min(smallest, key=lambda sizes: sizes.least_budget)
    more = ", or give scores of fewer components" if problem.n_features > 2 else ""
    doing = f"the graph of {request.n_neighbors} neighbours of {n} x {problem.n_features} samples"
    raise refusal(doing, least.least_budget, least.memory_estimate, budget, more)


def candidate_sizes(problem: Problem, request: NeighborsRequest, method: str, why: str) -> list[list[NeighborsPlan]]:
    """Return the sizes of a method, each by itself: the largest blocks, which are fastest, first."""
    algorithm = "hnsw" if method == "hnsw" else algorithm_of(problem.n_features)
    n, chunk, row = problem.n_samples, problem.chunk_samples, problem.sample_bytes
    reads = sorted({min(n, block_rows(row, chunk, limit)) for limit in (MOST_BLOCK, 4 * MIB, MIB)}, reverse=True)
    most = n if algorithm != "products" else max(LEAST_BLOCK, PAIRS // n)
    blocks = sorted({min(rows, n, most) for rows in BLOCKS}, reverse=True)
    return [
        [
            NeighborsPlan(
                problem=problem, request=request, algorithm=algorithm, why=why, block_rows=rows, read_rows=read,
                ahead=ahead,
            )
        ]
        for rows, read, ahead in product(blocks, reads, (1, 0) if problem.fills else (0,))
    ]  # fmt: skip


def _preferred(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the methods that "auto" takes, with reasons, the better first."""
    algorithm = algorithm_of(problem.n_features)
    exact, seconds = _core_seconds(problem, algorithm), format_seconds(_core_seconds(problem, algorithm))
    if exact <= EXACT_SECONDS:
        yield "exact", f"as that takes no more than {format_seconds(EXACT_SECONDS)} of one core ({seconds})"
        yield "hnsw", f"in place of {seconds} of exact search"
    else:
        yield "hnsw", f"as exact search would take {seconds} of one core (method 'exact')"
        yield "exact", f"in {seconds} of one core"


def algorithm_of(n_features: int) -> str:
    """Return how exact search finds candidates of so many features."""
    return "tree" if n_features <= TREE_FEATURES else "products"


def reach_of(n_samples: int, n_neighbors: int) -> int:
    """Return up to which number of neighbours one is looked for that connects a graph.

    Half of the samples always connect it: on one side of any cut there are no more. Beyond some thousand samples it is
    8 times the neighbours of the graph, at least 128, and more where samples are few.
    """
    most = max(REACH * n_neighbors, LEAST_REACH, REACH_NUMBERS // n_samples)
    return max(n_neighbors, min(n_samples // 2, most))


def chunk_bytes(n_features: int, threads: int) -> int:
    """Return the bytes of the chunks in float64 that threads multiply while they look for candidates of float32."""
    return threads * 2 * CHUNK * 8 * n_features


def candidates_at_once(count: int) -> int:
    """Return how many rows of so many candidates each are compared at a time."""
    return max(1, CANDIDATE_BYTES // (8 * COPIES * count))


def _core_seconds(problem: Problem, algorithm: str) -> float:
    """Predict the seconds of one core that a search takes."""
    n, p = problem.n_samples, problem.n_features
    ordering = n * (ROW + ROW_FEATURE * p)
    if algorithm == "products":
        return ordering + float(n) * n * (PAIR + PAIR_FEATURE * p)
    if algorithm == "tree":
        return ordering + n * TREE_LEAF * 1.5**p
    return ordering + n * math.log2(n) * (HNSW_STEP + HNSW_FEATURE * p)
