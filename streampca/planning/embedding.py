"""Plans of embeddings: all stages, landmarks, the samples that place new ones, and the memory of each phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import DataError, RequestError
from ..units import MIB, facts_as_text, format_bytes, format_seconds, format_shape
from .candidate_sizes import Sizes, search_or_refuse
from .memory import Phase, runtime
from .neighbors import NeighborsPlan
from .plan import Plan
from .request import Problem, Request
from .transform import Application
from .transform_pieces import Piecewise

UNFOLDING, ACTING = "maximum-variance-unfolding", "action-respecting-embedding"
SPECTRAL = ("spectral-embedding", "spectral-clustering")
WEIGHTED = ("locally-linear-embedding", UNFOLDING)  # kinds whose landmarks place the other samples by weights
FEWER = (500, 200, 100, 50, 20, 10, 5, 2, 1)  # principal components that are proposed in place of all features
LONG = 60.0  # seconds of a search for which fewer are proposed
EXACT_SAMPLES = 2000  # samples up to which Isomap solves for all of them: some seconds
LANDMARKS = 300  # of more samples
UNFOLDED = 2000  # samples that are unfolded together: 20 to 60 s
SOURCES = 16  # samples that geodesic distances are measured from at a time
SHOWN = 10  # dimensions of which Isomap's residual variance is measured
EXPLAINED = 1000  # samples whose distances from the landmarks give it
SCALED_BLOCK = 4 * MIB  # squared distances of samples that are placed at a time
ACTED = 1000  # most samples in time: the work grows with the third power of their neighbours and pairs of actions
UNFOLDING_BYTES = 16_000  # bytes of an edge by the factorised route: products of 40 smooth vectors with each other
MATRICES = 6  # of the order of the edges, that the interior-point method holds
# Edges and samples up to which the interior-point method unfolds, where both routes take as long (one thread of BLAS):
# 600 random points of a roll with 1464 edges take 4.7 s, by factors 7.8 s; 689 with 1299 edges 7.4 and 5.4 s.
EXACT_EDGES, EXACT_UNFOLDED = 1800, 600
MOST_LANDMARKS = 10_000  # of locally linear embedding, where the factors of all samples do not fit
REFERENCES = 20_000  # fitted samples that new ones are placed by
BASIS = 40  # vectors of the Lanczos basis
EDGE_BYTES = 12  # bytes of an entry of a sparse matrix: a float64 and a 32-bit index
SPECTRAL_COPIES = 5  # of the affinities: the Laplacian, what its factors are estimated from, and its graph
PART_ROWS = 2000  # rows of the part by which the size of all factors is estimated
PART_ENTRIES = 2 * PART_ROWS**2 // 5  # of its factors, in high dimensions
# Pairs of equal actions that become constraints. On 110 views with 1438 pairs, 800 of them take 6 s of CPU time and
# leave actions off by 0.2 to 1.4 % of a step, all take 12 s and leave 0.02 to 0.8 %.
MOST_PAIRS = 1500
JUDGED = 2000  # samples of which trustworthiness is measured
MOST_COMPARED = 50  # neighbours of each of them
COMPARED_BLOCK = 2 * MIB  # distances of a block of them to all of them


def component_counts(request: Request, n_samples: int, n_features: int) -> tuple[int, ...]:
    """Return numbers of principal components by whose scores samples can be compared, the best first; 0 for features.

    The n - 1 components of n samples of more features keep all distances. That takes several times as long as a search
    among the features, and n x n numbers in memory in place of n x p.
    """
    most = min(n_features, n_samples - 1)
    if (count := request.options.pca_components) is not None:
        return (min(int(count), most),)
    return (0, most) if most < n_features else (0,)


def spans_samples(count: int, n_samples: int, n_features: int) -> bool:
    """Return True for all n - 1 components of n samples of more features, beside which others have a part outside."""
    return count == n_samples - 1 < n_features


@dataclass(frozen=True, kw_only=True)
class CoordinatesPlan(Sizes):
    """Plan of the last stage of an embedding: from n samples by d scores each and their graph to coordinates.

    Attributes
    ----------
    problem : Problem
        Sizes of the samples as they are compared: n x d.
    request : Request
        The request.
    n_landmarks : int
        Samples that geodesic distances are measured from, or that are embedded in place of all; n for all.
    n_references : int
        Fitted samples that the model keeps to place others.
    components_bytes : int
        Bytes of the principal components that are in memory beside.
    reading : mapping of str to int
        Memory by name of reading what is compared.
    budget : (int, str)
        Bytes allowed, and where that comes from.
    room : int
        Bytes that the factors of a sparse matrix may take, or the matrices of actions.
    """

    request: Request
    n_landmarks: int
    n_references: int
    components_bytes: int = 0
    reading: Mapping[str, int] = field(default_factory=dict)

    def decisive(self) -> dict[str, Any]:
        """Return the fields that decide the answer."""
        return {"n_landmarks": self.n_landmarks, "n_references": self.n_references}

    @property
    def budget(self) -> tuple[int, str]:
        """Bytes allowed, and where that comes from."""
        return self.problem.machine.budget(self.request.memory)

    @property
    def room(self) -> int:
        """Bytes that are left for factors of a sparse matrix, which come beside what is planned, or for matrices."""
        # The matrices of actions are counted again when their constraints are known.
        beside = sum(self._held().values()) if self.request.kind == ACTING else next(self.phases()).total
        return self.budget[0] - beside

    def _held(self) -> dict[str, int]:
        """Bytes by name of what is in memory throughout."""
        n, d, request = self.problem.n_samples, self.problem.n_features, self.request
        return {
            f"samples as they are compared, {n} x {d}": n * d * self.problem.itemsize,
            f"graph of {request.options.n_neighbors} neighbours": 16 * n * request.options.n_neighbors,
            "principal components": self.components_bytes,
            f"embedding, {n} x {request.options.axes} float64": 8 * n * request.options.axes,
        }

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        n, d, k = self.problem.n_samples, self.problem.n_features, self.request.options.n_neighbors
        axes, references, held = self.request.options.axes, self.n_references, self._held()
        # References are the samples themselves where all are.
        size = references * d * self.problem.itemsize if references < n else 0
        kept = {f"{references} samples that place others": size}
        if self.request.kind in (UNFOLDING, ACTING):
            yield _unfolding(self.request, held, self.n_landmarks)
        elif self.request.kind == "isomap":
            yield from self._scaling(kept)
        else:
            degree, copies = (2 * k, SPECTRAL_COPIES) if self.request.kind in SPECTRAL else (k * k, 3)
            matrix = {f"sparse matrix of {degree} entries a row, and copies": copies * EDGE_BYTES * n * min(degree, n)}
            yield from _eigenvectors(self.request, {**held, **matrix}, n)
        yield Phase.of("reading again", held, self.reading, runtime())
        judged = min(n, JUDGED)
        # For each of three sets of points: distances of a block, what they are sorted in, their order and ranks.
        judging = {
            f"{judged} samples and their principal components": 8 * judged * (3 * d + 2 * axes),
            "distances between them, and their ranks": 10 * COMPARED_BLOCK,
            "neighbours that are compared": 4 * 8 * judged * MOST_COMPARED,
            "covariances": 4 * 8 * min(judged, d) ** 2,
        }
        yield Phase.of("diagnostics", held, kept, judging, runtime())

    def _scaling(self, kept: dict[str, int]) -> Iterator[Phase]:
        """Yield the memory of geodesic distances and their scaling, and add the distances that the model keeps."""
        n, landmarks, references, held = self.problem.n_samples, self.n_landmarks, self.n_references, self._held()
        edges, width = n * self.request.options.n_neighbors, 8 if landmarks == n else 4
        distances = {f"geodesic distances from {landmarks} samples, {landmarks} x {n}": width * landmarks * n}
        paths = {"graph in both directions, and paths": 40 * edges + (8 * SOURCES + 70) * n}
        if self.request.workers > 1:
            paths["distances that are put together"] = width * landmarks * n
        yield Phase.of("geodesics", held, distances, paths, runtime())
        kept[f"geodesic distances of {references} samples, {references} x {landmarks}"] = width * references * landmarks
        squares = {f"matrix of {landmarks} landmarks, and its eigenvectors": 5 * 8 * landmarks**2}
        compared = {f"distances of {landmarks} landmarks that are compared": 6 * 8 * landmarks * min(n, EXPLAINED)}
        shown = {f"coordinates of {n} samples in {SHOWN} dimensions": 3 * 8 * SHOWN * n}
        block = {"squared distances of a block": 2 * SCALED_BLOCK}
        yield Phase.of("scaling", held, distances, squares, shown, block, runtime())
        yield Phase.of("residual variance", held, distances, kept, compared, shown, runtime())


@dataclass(frozen=True, kw_only=True)
class AffinitiesPlan(CoordinatesPlan):
    """Plan of eigenvectors by a matrix of affinities in memory, made of a table or given.

    Attributes
    ----------
    n_entries : int
        Entries of the matrix that are stored: n * n of a dense one.
    table_bytes : int
        Bytes of the table that the matrix is made of.
    """

    n_entries: int
    table_bytes: int

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        n, entries, axes = self.problem.n_samples, self.n_entries, self.request.options.axes
        held = {
            "samples": self.table_bytes,
            f"affinities, {entries} entries": (8 if entries == n * n else EDGE_BYTES) * entries,
            "sparse copies of the affinities": SPECTRAL_COPIES * EDGE_BYTES * entries,
            f"embedding, {n} x {axes} float64": 8 * n * axes,
        }
        yield from _eigenvectors(self.request, held, n)


@dataclass(frozen=True, kw_only=True)
class EmbeddingPlan(Sizes):
    """Plan of all stages of an embedding; printable.

    Attributes
    ----------
    problem : Problem
        Sizes of the collection.
    request : Request
        The request.
    components, scores : Plan and Application or Piecewise, or None
        Fit of the principal components, and writing of the scores along them; None where features are compared.
    read_rows : int
        Samples to a block in which what is compared is read once more, for the coordinates.
    neighbors : NeighborsPlan or None
        Search for neighbours; None for a graph that is given.
    coordinates : CoordinatesPlan
        Embedding of all samples, as if the graph were connected.
    shorter : (int, float) or None
        Number of principal components that would take less time, and its seconds, where all features take minutes.
    """

    request: Request
    components: Plan | None
    scores: Application | Piecewise | None
    read_rows: int
    neighbors: NeighborsPlan | None
    coordinates: CoordinatesPlan
    shorter: tuple[int, float] | None = None

    @property
    def method(self) -> str:
        """Kind of the embedding."""
        return self.request.kind

    @property
    def n_components(self) -> int:
        """Number of principal components by whose scores samples are compared; 0 where features are."""
        return 0 if self.components is None else cast("int", self.components.request.n_components)

    @property
    def spans_samples(self) -> bool:
        """True where the components are all that the samples have; see `spans_samples`."""
        return spans_samples(self.n_components, self.problem.n_samples, self.problem.n_features)

    @property
    def seconds(self) -> float:
        """Predicted time of the principal components and of the search."""
        return sum(plan.seconds for plan in (self.components, self.neighbors) if plan is not None)

    def decisive(self) -> dict[str, Any]:
        """Return the fields that decide the answer."""
        return {"pca_components": self.n_components, **self.coordinates.decisive()}

    @property
    def passes(self) -> float:
        """Reads of all samples."""
        return (self.neighbors is not None) + 1 if self.components is None else self.components.passes + 1

    @property
    def memory(self) -> int:
        """Budget in bytes."""
        return self.problem.machine.budget(self.request.memory)[0]

    def phases(self) -> Iterator[Phase]:
        """Yield the phases of all stages, each under the name of its stage too."""
        stages = {
            "components": self.components,
            "scores": self.scores,
            "neighbours": self.neighbors,
            "embedding": self.coordinates,
        }
        for stage, plan in stages.items():
            if plan is None:
                continue
            estimate = plan.memory_estimate
            if isinstance(estimate, Phase):
                yield Phase(stage, estimate.items)
            else:
                yield from (Phase(f"{stage}, {phase.name}", phase.items) for phase in estimate.phases)

    def __str__(self) -> str:
        return facts_as_text(self.lines())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        stages = {"components": self.components, "neighbors": self.neighbors}
        return {
            "request": self.request.given,
            **{name: None if plan is None else plan.to_json() for name, plan in stages.items()},
            "n_landmarks": self.coordinates.n_landmarks,
            "n_references": self.coordinates.n_references,
            "passes": self.passes,
            "memory": self.memory,
            "memory_estimate": {phase.name: dict(phase.items) for phase in self.memory_estimate.phases},
        }

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the plan in words, as (heading, text) pairs; memory, phase by phase, comes last."""
        problem, request = self.problem, self.request
        n, p = problem.n_samples, problem.n_features
        yield "collection", f"{n} samples of {format_shape(problem.sample_shape)}"
        axes = "clusters" if request.kind == "spectral-clustering" else "dimensions"
        by = "time and actions" if request.kind == ACTING else f"{request.options.n_neighbors} neighbours"
        default = ", the default number" if request.counts_by_default else ""
        yield "embedding", f"{request.kind} in {request.options.axes} {axes}{default}, by {by}"
        if self.components is None:
            yield "distances", "by the only feature" if p == 1 else f"by all {p} features"
        else:
            fit = self.components
            count = f"all {self.n_components}" if self.spans_samples else self.n_components
            yield "components", f"{count} by method {fit.method}: {fit.why}; about {format_seconds(fit.seconds)}"
            yield "scores", f"{n} samples projected on these components, in one more pass"
        if self.neighbors is None:
            yield "neighbours", "from the graph given"
        else:
            found = self.neighbors
            again = "twice as long if the graph is not connected"
            why = "" if request.options.pca_components is None else f", {found.why}"
            yield "neighbours", f"{found.how}{why}; about {format_seconds(found.seconds)}, {again}"
        if self.shorter is not None:
            count, seconds = self.shorter
            less = f"by {count} principal components (--pca-components {count}, pca_components={count})"
            yield "", f"{less} about {format_seconds(seconds)}, without what lies outside them"
        if request.kind != ACTING:
            several = "its largest component is embedded" if request.options.largest_component else "it is refused"
            most = 1 if request.options.largest_component else request.options.most_components
            yield (
                "",
                f"if the graph {'is not connected' if most == 1 else f'has more than {most} components'}, {several}",
            )
        yield "coordinates", self._how()
        kept = self.coordinates.n_references
        size = format_bytes(kept * self.coordinates.problem.n_features * self.coordinates.problem.itemsize)
        which = "all" if kept == n else kept
        yield "new samples", f"placed by {which} of the fitted samples, which the model keeps: at most {size}"
        allowed, source = problem.machine.budget(request.memory)
        planned = format_bytes(self.memory_estimate.total)
        yield "memory", f"{planned} planned, {format_bytes(allowed)} allowed ({source})"
        for phase in self.phases():
            yield "", f"{format_bytes(phase.total):>9}  {phase.name}; the largest share is the {phase.largest_share}"

    def _how(self) -> str:
        """Say how coordinates are found."""
        request, n, landmarks = self.request, self.problem.n_samples, self.coordinates.n_landmarks
        some = f"all {n} samples" if landmarks == n else f"{landmarks} landmarks"
        rest = "" if landmarks == n else f"; the other {n - landmarks} samples are placed by their weights"
        if request.kind == "isomap":
            chosen = "" if landmarks == n else f" ({request.options.landmark_choice})"
            return f"geodesic distances from {some}{chosen}, and their scaling"
        if request.kind in SPECTRAL:
            clusters = (
                f", and {request.options.n_clusters} clusters of them" if request.kind == "spectral-clustering" else ""
            )
            return f"{request.options.axes} eigenvectors of the graph's {request.options.laplacian} Laplacian{clusters}"
        if request.kind in (UNFOLDING, ACTING):
            return f"semidefinite program of {some}{rest}"
        if landmarks < n or request.landmarks == "all":
            return f"eigenvectors by the weights of {some}{rest}"
        room = format_bytes(self.coordinates.room)
        return f"eigenvectors by the weights of {some}; of landmarks if their factors do not fit {room}"


def check_embedding(request: Request, n_samples: int) -> None:
    """Refuse options that do not go with a number of samples.

    Raises
    ------
    DataError, RequestError
        If there are too few samples, or more neighbours, landmarks, axes or clusters than these allow.
    """
    n = n_samples
    if n < 3:
        raise DataError(f"an embedding needs at least 3 samples, and there are {n}; give more.")
    if request.options.n_neighbors >= n:
        raise RequestError(
            f"n_neighbors {request.options.n_neighbors} is not below the {n} samples; give at most {n - 1}."
        )
    if request.kind == ACTING and n > ACTED:
        raise RequestError(
            f"kind {ACTING!r} takes up to {ACTED} samples, and there are {n}; give some of them (--samples, samples)."
        )
    least = least_landmarks(request)
    if isinstance(request.landmarks, int) and not least <= request.landmarks <= n:
        raise RequestError(
            f"landmarks {request.landmarks} do not go with {n} samples, {request.options.axes} axes and "
            f"{request.options.n_neighbors} neighbours; give {least} to {n}."
        )
    most = n - 1 if request.kind in ("isomap", "spectral-clustering") else n - 2
    if request.options.axes > most:
        name = "n_clusters" if request.kind == "spectral-clustering" else "n_components"
        raise RequestError(f"{name} {request.options.axes} is too large for {n} samples; give at most {most}.")


def least_landmarks(request: Request) -> int:
    """Return the smallest number of landmarks that axes and neighbours allow."""
    axes: int = request.options.axes
    return max(axes, request.options.n_neighbors if request.kind in WEIGHTED else 0) + 1


def plan_coordinates(problem: Problem, request: Request, **memory: Any) -> CoordinatesPlan:
    """Choose landmarks and references; `memory` beside as for `CoordinatesPlan`.

    Raises
    ------
    BudgetError
        If the scores and the graph do not fit, or the distances from the landmarks.
    """
    n = problem.n_samples
    landmarks = _landmarks(request, n)
    some_embedded = request.kind in WEIGHTED and landmarks < n
    references = landmarks if some_embedded else min(n, max(REFERENCES, landmarks))
    sizes = CoordinatesPlan(problem=problem, request=request, n_landmarks=landmarks, n_references=references, **memory)
    return search_or_refuse(f"{request.kind} of {n} samples", [[sizes]], sizes.budget)


def plan_affinities(problem: Problem, request: Request, *, n_entries: int, table_bytes: int) -> AffinitiesPlan:
    """Plan eigenvectors by a matrix of affinities; see `AffinitiesPlan`.

    Raises
    ------
    DataError, RequestError
        See `check_embedding`.
    BudgetError
        If the matrix, its sparse copies and a basis do not fit the budget.
    """
    n = problem.n_samples
    check_embedding(request.asking(n_neighbors=1), n)
    sizes = AffinitiesPlan(
        problem=problem, request=request, n_landmarks=n, n_references=n, n_entries=n_entries, table_bytes=table_bytes
    )
    return search_or_refuse(f"{request.kind} of {n} samples", [[sizes]], sizes.budget)


def _eigenvectors(request: Request, base: dict[str, int], n: int) -> tuple[Phase, Phase]:
    """Return the phases of the eigenvectors of a sparse matrix, which is in `base`."""
    vectors = max(BASIS, 2 * request.options.axes + 1)
    basis = {f"Lanczos basis of {vectors} vectors, and residuals": 8 * n * (vectors + 4 * request.options.axes + 16)}
    part = {"factors of a part of the matrix": EDGE_BYTES * PART_ENTRIES}
    return Phase.of("eigenvectors", base, basis, runtime()), Phase.of("size of factors", base, basis, part)


def unfolded_exactly(n_edges: int, n_samples: int) -> bool:
    """Return True where the interior-point method unfolds: its time grows with the third powers of both."""
    return n_edges <= EXACT_EDGES and n_samples <= EXACT_UNFOLDED


def _unfolding(request: Request, base: dict[str, int], count: int) -> Phase:
    """Return the memory of a semidefinite program of so many samples."""
    edges = count * request.options.n_neighbors if request.kind == UNFOLDING else 10 * count + MOST_PAIRS
    exact = edges
    if request.kind == UNFOLDING:  # edges between neighbours of each other count once, so that there can be fewer
        exact = min(edges, EXACT_EDGES) if count <= EXACT_UNFOLDED else 0
    matrices = {
        **({f"matrices of {exact} edges": MATRICES * 8 * exact**2} if exact else {}),
        f"kernel matrices of {count} samples": 6 * 8 * count**2,
    }
    if edges > exact:
        matrices[f"products of smooth vectors along {edges} edges"] = UNFOLDING_BYTES * edges
    return Phase.of("unfolding", base, matrices, runtime())


def _landmarks(request: Request, n: int) -> int:
    """Return the number of landmarks: as asked for, or all where that takes seconds."""
    if isinstance(request.landmarks, int):
        return request.landmarks
    if request.kind == UNFOLDING and request.landmarks is None:
        return min(n, UNFOLDED)
    if request.landmarks == "all" or request.kind != "isomap" or n <= EXACT_SAMPLES:
        return n
    return LANDMARKS
