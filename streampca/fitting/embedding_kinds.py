"""Coordinates of samples by each kind of embedding, from their scores and the graph of their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ..arrays import Array, Float64
from ..eigensolvers.sparse import FactorsTooLargeError
from ..errors import DataError
from ..events import BlockDone, Listener, PassStarted, Solving, Warned, reported
from ..execution import Executor, LocalExecutor
from ..execution.checkpoint import StageCheckpoint
from ..execution.consecutive_rows import ConsecutiveRows
from ..manifold.action_respecting import embed_with_actions
from ..manifold.geodesics import geodesic_distances, landmarks_of
from ..manifold.isomap import Scaling, residual_variances
from ..manifold.laplacian import affinity, clustered, cut_values, eigenmap
from ..manifold.locally_linear import locally_linear_embedding
from ..manifold.maximum_variance import Violations, edges_of, exact_remedy, unfold
from ..manifold.neighbor_graph import NeighborGraph
from ..manifold.placement import BarycentricPlacement
from ..planning.blocks import Span, blocks_of, span_count, spans_of
from ..planning.candidate_sizes import too_small
from ..planning.embedding import MOST_LANDMARKS, SHOWN, SOURCES, CoordinatesPlan, least_landmarks
from ..planning.request import Request
from ..units import format_bytes

REFERENCE, LANDMARK, CLUSTERS = 25, 26, 27  # streams of random numbers, which no other part of a fit uses


@dataclass(frozen=True)
class EmbeddingJob:
    """Scores and graph of the samples to embed, with the request and the plan.

    Attributes
    ----------
    scores : ndarray of shape (n, s)
    graph : NeighborGraph
        Connected graph.
    request : Request
    plan : CoordinatesPlan
    listener : callable
    stage : callable or None
        Returns the checkpoint of a stage by its name.
    neighbors_of : callable
        Returns the graph of landmarks from their scores, without the few that it does not connect, and their rows.
    samples : ndarray of shape (n,)
        Indices of the samples in the collection.
    actions : ndarray of shape (n - 1,), optional
        Labels of the actions between consecutive samples.
    weights : sparse array of shape (n, n), optional
        Affinities as input in place of scores and graph, which are then empty.
    executor : Executor, optional
        Executor that shares geodesic distances; by default this process computes them.
    """

    scores: Array
    graph: NeighborGraph
    request: Request
    plan: CoordinatesPlan
    listener: Listener
    stage: Callable[[str], StageCheckpoint] | None
    neighbors_of: Callable[[Array], tuple[npt.NDArray[np.intp], NeighborGraph]]
    samples: npt.NDArray[np.intp]
    actions: Array | None = None
    weights: sp.csr_array | None = None
    executor: Executor = field(default_factory=LocalExecutor)

    def affinities(self) -> sp.csr_array:
        """Return the affinities of samples: the input, or those of the graph."""
        return affinity(self.graph, self.request.options.gamma) if self.weights is None else self.weights

    def saved(self, name: str, compute: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
        """Return the arrays of a stage: from its checkpoint if it was finished, else computed and saved."""
        if self.stage is None:
            return compute()
        checkpoint = self.stage(name)
        if (partial := checkpoint.load(0)) is not None:
            return partial.state
        arrays = _Arrays(compute())
        checkpoint.save_if_due(0, 0, len(self.scores), arrays, now=True)
        return arrays.arrays

    def random_landmarks(self, count: int) -> tuple[npt.NDArray[np.intp], NeighborGraph]:
        """Return the rows of `count` landmarks, drawn at random, and their graph; those of all samples if all are."""
        if count == len(self.scores):
            return np.arange(count), self.graph
        random = np.random.default_rng([self.request.seed, LANDMARK])
        landmarks = np.sort(random.choice(len(self.scores), count, replace=False))
        kept, graph = self.neighbors_of(self.scores[landmarks])
        return landmarks[kept], graph

    def placed(
        self,
        coordinates: Float64,
        landmarks: npt.NDArray[np.intp],
        pairs: tuple[Float64, Float64],
        own_fields: Mapping[str, Any],
        measured: Mapping[str, Any],
    ) -> Embedded:
        """Return the embedding of all samples: others than landmarks are placed by barycentric weights.

        Parameters
        ----------
        coordinates : ndarray of shape (m, d)
            Coordinates of the landmarks.
        landmarks : ndarray of shape (m,)
            Rows of the landmarks; all samples if there are no others.
        pairs : (ndarray, ndarray)
            Eigenvalues and residuals.
        own_fields, measured : mapping
            See `Embedded`.
        """
        n = len(self.scores)
        if len(landmarks) == n:
            return Embedded(coordinates, *pairs, self.references(), own_fields, measured)
        self.listener(Solving(f"places of the other {n - len(landmarks)} samples"))
        placement = BarycentricPlacement(
            references=self.scores[landmarks],
            n_neighbors=self.request.options.n_neighbors,
            coordinates=coordinates,
            reg=self.request.options.reg,
        )
        all_coordinates = placement(self.scores)
        all_coordinates[landmarks] = coordinates
        return Embedded(all_coordinates, *pairs, landmarks, own_fields, measured)

    def references(self) -> npt.NDArray[np.intp]:
        """Return the rows of the samples that place others."""
        n, count = len(self.scores), self.plan.n_references
        random = np.random.default_rng([self.request.seed, REFERENCE])
        return np.arange(n) if count >= n else np.sort(random.choice(n, count, replace=False))


@dataclass(frozen=True)
class _Arrays:
    """Finished arrays of a stage, as a checkpoint saves them."""

    arrays: Mapping[str, Array]

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the arrays."""
        return dict(self.arrays)


@dataclass(frozen=True)
class Embedded:
    """Coordinates, the fields that a model of the kind adds, and measurements."""

    coordinates: Float64
    eigenvalues: Float64
    residuals: Float64
    reference_samples: npt.NDArray[np.intp]
    own_fields: Mapping[str, Any]
    measured: Mapping[str, Any]


def isomap(job: EmbeddingJob) -> Embedded:
    """Embed by geodesic distances from landmarks."""
    request, axes = job.request, job.request.options.axes
    n, count = len(job.scores), job.plan.n_landmarks
    edges = job.graph.to_csr()

    def geodesics() -> dict[str, Array]:
        landmarks = landmarks_of(edges, count, request.options.landmark_choice, request.seed)
        dtype = np.float64 if count == n else np.float32
        executor, spans = job.executor, spans_of(len(landmarks), span_count(job.executor.workers), SOURCES)
        task = _Geodesics(edges, landmarks, np.dtype(dtype), max(span.size for span in spans))
        # Workers are sent the graph: what they need is memory.
        needed = next(phase.total for phase in job.plan.phases() if phase.name == "geodesics")
        executor.check(int, needed, job.listener)
        with reported(job.listener, PassStarted("geodesic distances", 1, 1, len(landmarks), 0)):
            distances = executor.fold(task, spans, ConsecutiveRows.absorb, listener=job.listener)["distances"]
        return {"landmarks": landmarks, "distances": distances}

    arrays = job.saved("geodesics", geodesics)
    landmarks, distances = arrays["landmarks"], arrays["distances"]
    job.listener(Solving(f"scaling of {len(landmarks)} landmarks"))
    # With more dimensions than requested, for the curve of the residual variance.
    scaled = Scaling.of(distances, landmarks, max(axes, SHOWN))
    # If all samples are landmarks the distances have no more dimensions, and further coordinates are 0.
    if len(scaled.weights) < axes and len(landmarks) < n:
        raise DataError(
            f"geodesic distances from {len(landmarks)} landmarks have {len(scaled.weights)} positive eigenvalues, "
            f"and {axes} dimensions were asked for; ask for as many at most, or give more landmarks."
        )
    placed = scaled.place(distances.T)
    scaling, references = scaled.first(axes), job.references()
    fields = {
        "geodesics": _columns(distances, references),
        "landmarks": landmarks,
        "scaling_weights": scaling.weights,
        "scaling_mean": scaling.mean,
        "scaling_centre": scaling.centre,
        "residual_variance": residual_variances(distances, placed, landmarks),
        "negative_share": scaling.negative_share,
    }
    unknown = np.full(axes, np.nan)
    measured = {"n_landmarks": len(landmarks)}
    coordinates = np.pad(placed[:, :axes], ((0, 0), (0, max(0, axes - placed.shape[1]))))
    return Embedded(coordinates, scaling.eigenvalues, unknown, references, fields, measured)


@dataclass(frozen=True)
class _Geodesics:
    """Measure geodesic distances from landmarks; see `streampca.execution.Task`. Spans count landmarks."""

    edges: sp.csr_array
    landmarks: npt.NDArray[np.intp]
    dtype: np.dtype[Any]
    longest: int  # landmarks of a span

    def start(self) -> ConsecutiveRows:
        return ConsecutiveRows({"distances": ((self.edges.shape[0],), self.dtype)}, self.longest)

    def restore(self, state: dict[str, Array]) -> ConsecutiveRows:
        return ConsecutiveRows.from_state(state)

    def blocks(self, span: Span) -> Iterable[Span]:
        return blocks_of(span, SOURCES)

    def counts(self, block: Span) -> BlockDone:
        return BlockDone(block.size, 0)

    def fetch(self, block: Span) -> npt.NDArray[np.intp]:
        return self.landmarks[slice(*block)]

    def feed(self, accumulator: ConsecutiveRows, block: Span, fetched: npt.NDArray[np.intp]) -> None:
        accumulator.put(block.start, distances=geodesic_distances(self.edges, fetched))


def _columns(distances: Array, columns: npt.NDArray[np.intp]) -> Array:
    """Return columns as rows, by blocks: indexing and transposing at once would copy them twice."""
    result = np.empty((len(columns), len(distances)), distances.dtype)
    for start in range(0, len(distances), SOURCES):
        rows = slice(start, start + SOURCES)
        result[:, rows] = distances[rows, columns].T
    return result


def spectral_embedding(job: EmbeddingJob, *, drop_first: bool = True) -> Embedded:
    """Embed by eigenvectors of the graph's Laplacian."""
    request = job.request
    weights = job.affinities()

    def eigenvectors() -> dict[str, Array]:
        job.listener(Solving(f"{request.options.axes} eigenvectors of the graph's Laplacian"))
        solution = eigenmap(
            weights,
            request.options.axes,
            laplacian=request.options.laplacian,
            drop_first=drop_first,
            seed=request.seed,
            room=job.plan.room,
        )
        return {**vars(solution), "solver": np.array(solution.solver)}

    arrays = job.saved("eigenvectors", eigenvectors)
    measured: dict[str, Any] = {"solver": str(arrays["solver"])}
    if request.options.laplacian == "unnormalized":  # the scale of its eigenvalues
        measured["mean_degree"] = float(weights.sum() / weights.shape[0])
    fields = {
        "gamma": np.nan if request.options.gamma is None else request.options.gamma,
        "laplacian_eigenvalues": arrays["smallest"],
    }
    pairs = arrays["eigenvalues"], arrays["residuals"]
    return Embedded(arrays["coordinates"], *pairs, job.references(), fields, measured)


def spectral_clustering(job: EmbeddingJob) -> Embedded:
    """Find clusters by k-means of the rows of Laplacian eigenvectors, including the constant one."""
    request, embedding = job.request, spectral_embedding(job, drop_first=False)
    job.listener(Solving(f"{request.options.n_clusters} clusters"))
    seed = int(np.random.default_rng([request.seed, CLUSTERS]).integers(2**31))
    labels, centers = clustered(embedding.coordinates, request.options.n_clusters, seed)
    fields = {**embedding.own_fields, "labels": labels, "centers": centers}
    measured = {**embedding.measured, **cut_values(job.affinities(), labels)}
    return replace(embedding, own_fields=fields, measured=measured)


def locally_linear(job: EmbeddingJob) -> Embedded:
    """Embed by barycentric weights: all samples, or landmarks if the factors for all do not fit in memory."""
    request, n = job.request, len(job.scores)
    options: dict[str, Any] = {"reg": request.options.reg, "seed": request.seed, "room": job.plan.room}

    def eigenvectors() -> dict[str, Array]:
        job.listener(Solving(f"{request.options.axes} eigenvectors of locally linear embedding"))
        count, needed = job.plan.n_landmarks, 0
        while True:
            landmarks, graph = job.random_landmarks(count)
            scores = job.scores if len(landmarks) == n else job.scores[landmarks]
            try:
                solution = locally_linear_embedding(scores, graph.indices, request.options.axes, **options)
                break
            except FactorsTooLargeError as error:  # their size is known only after the analysis of the matrix
                # Fewer samples lie further apart, so that their factors are fuller: a second try is usual.
                count, needed = min(MOST_LANDMARKS, error.fill.rows_in(job.plan.room)), needed or error.needed
                if request.landmarks is not None or count < least_landmarks(request):
                    raise
        if needed:
            job.listener(
                Warned(
                    f"the factors of all {n} samples take about {format_bytes(needed)}, beyond memory; "
                    f"{len(landmarks)} random samples are embedded, and the others placed by their weights."
                )
            )
        return {**vars(solution), "solver": np.array(solution.solver), "landmarks": landmarks}

    arrays = job.saved("eigenvectors", eigenvectors)
    measured: dict[str, Any] = {"solver": str(arrays["solver"])}
    if len(arrays["landmarks"]) < n:
        measured["n_landmarks"] = len(arrays["landmarks"])
    pairs = arrays["eigenvalues"], arrays["residuals"]
    return job.placed(arrays["coordinates"], arrays["landmarks"], pairs, {"reg": request.options.reg}, measured)


def maximum_variance(job: EmbeddingJob) -> Embedded:
    """Maximize the variance of samples, or of landmarks that place the others, at fixed lengths of the edges."""
    request, n, count = job.request, len(job.scores), job.plan.n_landmarks
    landmarks, graph = job.random_landmarks(count)

    def unfolding() -> dict[str, Array]:
        job.listener(Solving(f"semidefinite program of {len(landmarks)} samples"))
        edges, lengths = edges_of(graph)
        solution = unfold(edges, lengths, len(landmarks), n_components=request.options.axes, seed=request.seed)
        violations = solution.violations
        return {
            "coordinates": solution.embedding,
            "eigenvalues": solution.eigenvalues[: request.options.axes],
            "violations": np.array([violations.median, violations.percentile_95, violations.largest]),
            "gap": np.array(solution.gap),
            "converged": np.array(solution.converged),
            "method": np.array(solution.method),
            "short_circuits": solution.short_circuits,
        }

    arrays = job.saved("unfolding", unfolding)
    median, most, largest = arrays["violations"].tolist()
    gap = float(arrays["gap"])
    measured = {
        "median_violation": median,
        "violation_95": most,
        "largest_violation": largest,
        "gap": gap if np.isfinite(gap) else None,
        "converged": bool(arrays["converged"]),
        "solver": str(arrays["method"]),
        "short_circuits": job.samples[landmarks[arrays["short_circuits"]]].tolist(),
    }
    if not measured["converged"]:
        off = Violations(largest, most, median)
        remedy = exact_remedy(request.options.n_neighbors, request.options.axes)
        job.listener(Warned(f"the unfolding has not converged: {off}; {remedy}."))
    if measured["short_circuits"]:
        job.listener(
            Warned(
                f"{len(measured['short_circuits'])} edges of the graph keep the samples from unfolding; take fewer "
                "neighbours (--n-neighbors, n_neighbors), or leave their samples out: inspect lists them."
            )
        )
    coordinates, unknown = arrays["coordinates"], np.full(request.options.axes, np.nan)
    if count < n:
        measured["n_landmarks"] = len(landmarks)
    return job.placed(coordinates, landmarks, (arrays["eigenvalues"], unknown), {"reg": request.options.reg}, measured)


def action_respecting(job: EmbeddingJob) -> Embedded:
    """Embed consecutive samples so that each action is a rigid motion."""
    request, actions = job.request, job.actions
    assert actions is not None  # noqa: S101 - checked before anything is read

    def unfolding() -> dict[str, Array]:
        job.listener(Solving(f"semidefinite program of {len(job.scores)} samples and their actions"))
        solution = embed_with_actions(
            job.scores, actions, n_components=request.options.axes, seed=request.seed, room=job.plan.room
        )
        moves = list(solution.actions.values())
        return {
            "coordinates": solution.embedding,
            "eigenvalues": solution.eigenvalues[: request.options.axes],
            "action_rotations": np.stack([move.rotation for move in moves]),
            "action_shifts": np.stack([move.shift for move in moves]),
            "action_errors": np.array([move.error for move in moves]),
            "action_steps": np.array([move.step for move in moves]),
            "action_counts": np.array([move.n_samples for move in moves]),
            "labels": np.array(list(solution.actions)),
            "facts": np.array([solution.excess, solution.mismatch, solution.gap, solution.converged]),
            "pairs": np.array([solution.n_pairs, solution.n_pairs_used]),
        }

    arrays = job.saved("unfolding", unfolding)
    excess, mismatch, gap, converged = arrays["facts"].tolist()
    measured = {
        "excess": excess,
        "mismatch": mismatch,
        "gap": gap if np.isfinite(gap) else None,
        "converged": bool(converged),
        "actions": arrays["labels"].tolist(),
        "n_pairs": int(arrays["pairs"][0]),
        "n_pairs_used": int(arrays["pairs"][1]),
    }
    fields = {"reg": request.options.reg, **{name: arrays[name] for name in arrays if name.startswith("action_")}}
    unknown = np.full(request.options.axes, np.nan)
    return job.placed(
        arrays["coordinates"], np.arange(len(job.scores)), (arrays["eigenvalues"], unknown), fields, measured
    )


def embedded(job: EmbeddingJob) -> Embedded:
    """Embed samples by the kind of the request.

    Raises
    ------
    BudgetError
        If the factors of a matrix, whose size is known only now, do not fit; names a sufficient budget.
    """
    try:
        return KINDS[job.request.kind](job)
    except FactorsTooLargeError as error:
        plan, rows = job.plan, len(job.samples)
        raise too_small(
            f"{job.request.kind} of {rows} samples",
            plan.budget[0] - plan.room + error.needed,
            plan.budget,
            share=f"the largest share is the factors of the matrix (about {format_bytes(error.needed)})",
            more="" if job.weights is not None else ", or give fewer neighbours (--n-neighbors, n_neighbors)",
        ) from None


# kind -> function that embeds
KINDS: dict[str, Callable[[EmbeddingJob], Embedded]] = {
    "isomap": isomap,
    "spectral-embedding": spectral_embedding,
    "spectral-clustering": spectral_clustering,
    "locally-linear-embedding": locally_linear,
    "maximum-variance-unfolding": maximum_variance,
    "action-respecting-embedding": action_respecting,
}
