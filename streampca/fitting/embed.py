"""`embed`: principal components, the graph of nearest neighbours, and the coordinates found on it, stage by stage."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .. import __version__
from ..errors import DataError, RequestError
from ..events import Finished, Listener, Planned, Solving, check_listener, logged, one_at_a_time
from ..execution import Executor
from ..execution.checkpoint import CheckpointFolder, Checkpointing, checkpointing
from ..execution.executor import executing
from ..machine import hand_back
from ..manifold.graph_components import component_labels, largest_component
from ..manifold.graph_facts import components_sentence, facts_of
from ..manifold.laplacian import given_affinities
from ..manifold.neighbor_graph import NeighborGraph
from ..manifold.neighbors import NeighborSearch
from ..manifold.quality import quality
from ..manifold.stored_graph import load_graph
from ..models.embedding import EmbeddingModel
from ..models.pca import PCAModel, load_model
from ..models.registry import model_class
from ..models.subspace import working_dtype
from ..planning.blocks import Span, block_rows, blocks_of
from ..planning.embedding import ACTING, JUDGED, CoordinatesPlan, EmbeddingRequest, plan_affinities
from ..planning.neighbors import way_of
from ..preprocessing import Preparation, Prepared
from ..preprocessing.sizes_for_planning import this_machine
from ..readers import Opening, check_apart, open_collection, open_column, paths_of
from ..readers.collection import data_difference, digest, states_by_name, unchanged
from ..signals import stopping_on_signals
from ..storage.disk import expanded
from ..storage.free_space import check_free_spaces
from ..storage.locks import checkpoint_lock, output_lock
from ..storage.outputs import SCRATCH, discard
from ..units import MIB, parse_bytes
from .build_model import data_of, model_of, versions
from .embedding_kinds import Embedded, EmbeddingJob, embedded
from .embedding_plan import components_request, n_scores_of, plan_last, plan_stages, search_request
from .fit import Place, fit_collection
from .identity import check_beside, described
from .methods import Decomposition
from .neighbors import EDGE_BYTES, graph_of
from .open_fit import Opened, prepare
from .plan import check_options

Array = npt.NDArray[Any]

BLOCK = 2 * MIB  # samples in float64 that are read at a time where features are taken as they are
SCORES_FILE = "scores.npy"
STAGES = f"stages{SCRATCH}"  # folder of finished stages, in that of the checkpoint


@stopping_on_signals()
def embed(
    source: Any,
    *,
    kind: str = "isomap",
    n_components: int = 2,
    n_neighbors: int = 15,
    graph: NeighborGraph | str | os.PathLike[str] | None = None,
    actions: Any = None,
    pca_components: int | None = None,
    landmarks: int | str | None = None,
    landmark_choice: str = "random",
    reg: float = 1e-3,
    gamma: float | None = None,
    laplacian: str = "normalized",
    n_clusters: int = 8,
    largest_component: bool = False,
    memory: int | str | None = None,
    preparation: Preparation | None = None,
    missing: str = "error",
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    checkpoint: str | os.PathLike[str] | Checkpointing | None = None,
    cluster: Any = None,
    listener: Listener = logged,
    **opening: Unpack[Opening],
) -> EmbeddingModel:
    """Embed a collection of images in few dimensions, by the graph of their nearest neighbours.

    Images are projected on their principal components first; neighbours are those of the scores.

    Parameters
    ----------
    source : path, glob, list of paths, array or Collection
        Images, or scores of images; see `open_collection`.
    kind : str, default="isomap"
        "isomap": distances between points are lengths of paths along the graph. "spectral-embedding": eigenvectors of
        the graph's Laplacian (Laplacian eigenmaps). "spectral-clustering": clusters of the rows of such eigenvectors.
        "locally-linear-embedding": points are rebuilt by the weights that rebuild samples from their neighbours.
        "maximum-variance-unfolding": points are as far apart as the lengths of the graph's edges allow.
        "action-respecting-embedding": samples follow each other in time by `actions`, each of which is a rotation or
        reflection and a shift of the points.
    n_components : int, default=2
        Number of dimensions of the embedding; for "spectral-clustering" it is that of clusters.
    n_neighbors : int, default=15
        Number of neighbours of each sample. Kind "action-respecting-embedding" takes them to place new samples only,
        and goes by distances in time.
    graph : NeighborGraph or path, optional
        Graph of the samples that is there already, as `neighbors` finds it; by default it is found. Features are then
        taken as they are, and `n_neighbors` is that of the graph.
    actions : array, path or str, optional
        Labels of the actions of "action-respecting-embedding": a column as for labels, whose value for a sample is the
        action that leads to the next one, or an array of n - 1.
    pca_components : int, optional
        Number of principal components by whose scores neighbours are found; 0 takes features as they are, which is the
        default for up to 50 features, such as scores. Of more features it is 50.
    landmarks : int or "all", optional
        For "isomap", the number of samples that distances are measured from: all up to 2000 samples, else 300 by
        default. For "locally-linear-embedding", the number of random samples that are embedded while the others are
        placed by their weights: all by default, or up to 10000 where the eigenproblem of all does not fit the budget.
        So for "maximum-variance-unfolding": all up to 2000 samples, else 2000.
    landmark_choice : {"random", "farthest"}, default="random"
        How the landmarks of "isomap" are chosen: "farthest" covers the outskirts, and outliers.
    reg : float, default=1e-3
        Regularisation of the weights of "locally-linear-embedding", and of those that place new samples, relative to
        the trace of the neighbours' Gram matrix. It decides the quality: give 0.1 for images of many components.
    gamma : float, optional
        Weights of edges of length d for spectral kinds are exp(-gamma d^2); by default all weigh 1.
    laplacian : {"normalized", "unnormalized"}, default="normalized"
        Laplacian of the spectral kinds: the first relaxes the normalised cut, the second the ratio cut.
    n_clusters : int, default=8
        Number of clusters of "spectral-clustering".
    largest_component : bool, default=False
        Embed the largest connected part of the graph only, where it has several.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    preparation : Preparation, optional
        Applied to every sample first, and stored in the model.
    missing : {"error", "drop-features", "drop-samples"}, default="error"
        Treatment of missing values; see `fit`.
    seed : int, default=0
        Seed of the random numbers.
    output : path, optional
        Folder to write the model to.
    overwrite : bool, default=False
        Replace a model that is there already.
    checkpoint : path or Checkpointing, optional
        Folder to save finished stages in. When the process dies, the same call resumes with the first unfinished stage
        and gives the same model; the folder is removed when it is complete.
    cluster : int, str or distributed.Client, optional
        Shares the passes over the images; see `fit`.
    listener : callable, optional
        Told what happens (`streampca.events`), first the plan of all stages; by default warnings are logged.
    **opening
        ``key``, ``sample_axes``, ``select`` ...: see `open_collection`.

    Returns
    -------
    EmbeddingModel
        ``embedding`` holds the coordinates; `transform` places further images.

    Raises
    ------
    DataError
        If the graph has several parts, there are too few samples, or values are missing.
    RequestError
        If an option is wrong for this collection.
    BudgetError
        If it does not fit the budget.
    SourceError, ClusterError, OutputError
        As `fit`.

    Notes
    -----
    Samples are read twice: for the principal components, and for their scores. The rest takes the scores (n x s) and
    the graph (n x k) in memory.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.embed(digits[:500], kind="isomap", n_neighbors=10)
    >>> model.embedding.shape
    (500, 2)
    >>> model.transform(digits[:5]).shape
    (5, 2)
    """
    check_listener(listener)
    request = EmbeddingRequest(
        kind=kind,
        n_components=n_components,
        n_neighbors=n_neighbors,
        pca_components=pca_components,
        landmarks=landmarks,
        landmark_choice=landmark_choice,
        reg=reg,
        gamma=gamma,
        laplacian=laplacian,
        n_clusters=n_clusters,
        largest_component=largest_component,
        seed=seed,
        memory=parse_bytes(memory),
    )
    check_options(embed, opening)
    place = None if output is None else Place(expanded(output), overwrite)
    if place is not None:
        check_apart([place.path], paths_of(source))
    how = checkpointing(checkpoint)
    raw = open_collection(source, listener=listener, **opening)
    with executing(cluster, request.memory, listener=listener) as executor:
        collection = prepare(raw, preparation, listener, memory=request.memory, missing=missing)
        return embed_collection(
            collection,
            request,
            actions=actions,
            graph=graph,
            missing=missing,
            place=place,
            executor=executor,
            checkpoint=how,
            listener=listener,
        )


@stopping_on_signals()
def embed_collection(
    collection: Prepared,
    request: EmbeddingRequest,
    *,
    actions: Any = None,
    graph: NeighborGraph | str | os.PathLike[str] | None = None,
    missing: str,
    place: Place | None,
    executor: Executor,
    checkpoint: Checkpointing | None,
    listener: Listener,
) -> EmbeddingModel:
    """Embed an opened collection, and write the model where there is a place for it; see `embed`."""
    if checkpoint is not None:
        check_beside(checkpoint.folder, None if place is None else place.path)
    request, found, labels = completed(request, collection, graph, actions)
    with output_lock(place.path if place else None), checkpoint_lock(checkpoint.folder if checkpoint else None):
        told = one_at_a_time(listener)
        work = _Work(collection, request, place, executor, told, missing, labels, found)
        return work.carried_out(checkpoint)


def plan_of_affinities(request: EmbeddingRequest, table: Any, matrix: Any) -> CoordinatesPlan:
    """Plan an embedding by a matrix of affinities, or, for None, by a dense one that is yet to be made of a table.

    Raises
    ------
    BudgetError, DataError, RequestError
        See `plan_affinities`.
    """
    n = table.shape[0]
    entries = matrix.nnz if sp.issparse(matrix) else n * n
    held = 0 if matrix is table else _bytes_of(table)
    return plan_affinities(request, this_machine(), n_samples=n, n_entries=entries, table_bytes=held)


def _bytes_of(table: Any) -> int:
    """Return the bytes of a dense table or of a sparse one by rows."""
    parts = (table.data, table.indices, table.indptr) if sp.issparse(table) else (table,)
    return sum(part.nbytes for part in parts)


def embed_affinities(matrix: Any, request: EmbeddingRequest, plan: CoordinatesPlan, *, listener: Listener) -> Embedded:
    """Embed samples by a matrix of affinities between all of them, (n, n), dense or sparse, of the spectral kinds.

    Raises
    ------
    DataError, RequestError
        See `given_affinities`.
    """
    weights = given_affinities(matrix)
    n = weights.shape[0]
    nothing = np.empty((n, 0))
    graph = NeighborGraph(nothing, nothing)
    job = EmbeddingJob(nothing, graph, request, plan, listener, None, lambda scores: graph, np.arange(n), None, weights)
    return embedded(job)


def completed(
    request: EmbeddingRequest,
    collection: Prepared,
    graph: NeighborGraph | str | os.PathLike[str] | None,
    actions: Any,
) -> tuple[EmbeddingRequest, NeighborGraph | None, Array | None]:
    """Return a request with what a graph and actions that were given decide, and these.

    Raises
    ------
    RequestError
        If the graph is of other samples, or actions are missing or not wanted.
    """
    found = None if graph is None else _given_graph(graph, collection)
    if found is not None:
        known = digest(found.indices.tobytes(), found.distances.tobytes())
        request = replace(request, n_neighbors=found.n_neighbors, pca_components=0, graph=known)
    labels = _actions_of(actions, collection, request.kind)
    if labels is not None:
        request = replace(request, actions=digest(labels.tolist()))
    return request, found, labels


def _given_graph(given: NeighborGraph | str | os.PathLike[str], collection: Prepared) -> NeighborGraph:
    """Return a graph that was given, or refuse one that is of other samples."""
    graph = given if isinstance(given, NeighborGraph) else load_graph(given)
    if graph.n_samples != collection.n_samples:
        raise RequestError(
            f"the graph is of {graph.n_samples} samples, and {collection.source} has {collection.n_samples}; give the "
            "samples that it was made of."
        )
    if graph.provenance and (difference := data_difference(graph.provenance, collection)):
        raise RequestError(f"the graph is of other samples than {collection.source} has: {difference}; make it anew.")
    return graph


def _actions_of(given: Any, collection: Prepared, kind: str) -> Array | None:
    """Return the labels of actions between samples, (n - 1,), for the kind that takes them."""
    if given is None and kind == ACTING:
        raise RequestError(f"kind {kind!r} needs the labels of actions; give --actions COLUMN (actions=...).")
    if given is not None and kind != ACTING:
        raise RequestError(f"kind {kind!r} takes no actions; leave --actions (actions=) out.")
    if given is None:
        return None
    n = collection.n_samples
    if collection.n_dropped:
        raise RequestError(
            f"{collection.n_dropped} of the samples of {collection.source} have missing values and are left out, and "
            "actions lead from each sample to the next one; embed a run of samples without any (--samples, samples=)."
        )
    if isinstance(given, (np.ndarray, list, tuple)) and len(given) == n - 1:
        return np.asarray(given)
    return np.asarray(open_column(given, collection.raw))[: n - 1]


@contextmanager
def _emptied(folder: str) -> Iterator[str]:
    """Make a folder for the block, in place of the one that a process left which was killed."""
    discard(folder)
    os.makedirs(folder)
    try:
        yield folder
    finally:
        discard(folder)


@dataclass(frozen=True)
class _Work:
    """One embedding: the collection, what is wanted of it, and who does it."""

    collection: Prepared
    request: EmbeddingRequest
    place: Place | None
    executor: Executor
    listener: Listener
    missing: str
    actions: Array | None = None
    given_graph: NeighborGraph | None = None

    def carried_out(self, how: Checkpointing | None) -> EmbeddingModel:
        """Run the stages, and write the model."""
        began = time.perf_counter()
        planned = plan_stages(
            self.collection, self.request, missing=self.missing, has_graph=self.given_graph is not None
        )
        self.listener(Planned(planned))
        plan = planned.coordinates
        self._warn_of_disk(plan, how)
        with self._stages(how, plan) as (folder, saved):
            compared = self._compared(folder, how)
            # No name is left for the whole graph, whose memory is free before the eigenproblem.
            graph, kept, facts = self._connected(
                self._graph(compared, folder, how) if self.given_graph is None else self.given_graph, saved
            )
            if len(kept) < self.collection.n_samples:
                plan = plan_last(self.collection, self.request, len(kept))
            pca, scores = self._scored(compared, folder)
            if len(kept) < len(scores):
                scores = scores[kept]
            job = EmbeddingJob(
                scores,
                graph,
                self.request,
                plan,
                self.listener,
                None if saved is None else saved.stage,
                self._graph_of_some,
                kept,
                self.actions,
            )
            found = embedded(job)
            self.listener(Solving("how far neighbours are kept"))
            recall = {name: graph.provenance[name] for name in ("recall",) if name in graph.provenance}
            measured = {**facts, **recall, **found.measured}
            measured |= quality(scores, found.coordinates, JUDGED, self.request.seed)
            hand_back()
            model = self._model(pca, found, scores, kept, measured, time.perf_counter() - began)
            if self.place is not None:
                model.save(self.place.path, overwrite=self.place.overwrite)
        if self.place is not None and not isinstance(model.components, np.ndarray):
            model = cast("EmbeddingModel", load_model(self.place.path, memory=self.request.memory))
        self.listener(Finished("embed", time.perf_counter() - began))
        return model

    def _warn_of_disk(self, plan: CoordinatesPlan, how: Checkpointing | None) -> None:
        """Warn where the model, or the stages in the folder of the checkpoint, may not fit the disk."""
        n, scores = self.collection.n_samples, self.n_scores or self.collection.n_features
        distances = plan.n_landmarks if self.request.kind == "isomap" else 0
        needed = {}
        if self.place is not None:
            needed[self.place.path] = 8 * (n * self.request.n_components + plan.n_references * (scores + distances))
        if how is not None:
            graph = EDGE_BYTES * self.request.n_neighbors
            needed[how.folder] = n * (8 * scores + graph + 2 * 8 * distances)  # the last two states of the distances
        check_free_spaces(needed, at_most=self.listener)

    @property
    def n_scores(self) -> int:
        """Number of principal components; 0 where features are taken as they are."""
        return n_scores_of(self.collection, self.request)

    @contextmanager
    def _stages(
        self, how: Checkpointing | None, plan: CoordinatesPlan
    ) -> Iterator[tuple[str, CheckpointFolder | None]]:
        """Make the folder of finished stages, which goes with the checkpoint, or at the end."""
        if how is None:
            if self.place is None:
                with tempfile.TemporaryDirectory() as folder:
                    yield folder, None
            else:
                with _emptied(self.place.path.rstrip("/") + SCRATCH) as folder:
                    yield folder, None
            return
        states, source = self.collection.states(), self.collection.source
        # No stage depends on what is done about a graph in several components: with it, later ones are not reached.
        requested = {name: value for name, value in self.request.given.items() if name != "largest_component"}
        identity = {
            **described(source, requested, self.collection.preparation, self.collection.mask, None, None),
            "missing": self.missing,
            "version of streampca": __version__,
            "number of samples": self.collection.n_samples,
            **states_by_name(states),
        }
        overwrite = self.place is not None and self.place.overwrite
        saved = CheckpointFolder(how, identity, overwrite=overwrite, listener=self.listener)
        folder = os.path.join(how.folder, STAGES)
        saved.begin(plan.decisive(), scratch=folder)
        os.makedirs(folder, exist_ok=True)
        with saved.running():
            yield folder, saved

    def _compared(self, folder: str, how: Checkpointing | None) -> Prepared:
        """Return the samples whose neighbours are found: scores, written to the folder, or features as they are."""
        if not self.n_scores:
            return self.collection
        path = os.path.join(folder, SCORES_FILE)
        if not os.path.exists(path):
            self._components(folder, how).write_scores(
                self.collection.raw,
                path,
                memory=self.request.memory,
                checkpoint=None if how is None else replace(how, folder=f"{path}-checkpoint"),
                cluster=self.executor,
                listener=self.listener,
            )
            hand_back()
        return prepare(open_collection(path), None)

    def _scored(self, compared: Prepared, folder: str) -> tuple[PCAModel, Array]:
        """Return the model whose scores were compared, and these in memory."""
        if not self.n_scores:
            return self._as_they_are()
        pca = self._components(folder, None)
        if self.place is None:  # the folder of stages is removed
            pca = replace(pca, components=np.asarray(pca.components))
        scores: Array = np.load(os.path.join(folder, SCORES_FILE))
        return pca, scores

    def _as_they_are(self) -> tuple[PCAModel, Array]:
        """Return a model whose components are the features, and these."""
        collection, p = self.collection, self.collection.n_features
        rows = np.empty((collection.n_samples, p), working_dtype(collection.dtype, np.float32))
        blocks = list(blocks_of(Span(0, len(rows)), block_rows(8 * p, 1, BLOCK)))
        with unchanged(collection):
            for block in blocks:
                some = rows[slice(*block)]
                some[...] = collection.read(slice(*block))
                if not (known := np.isfinite(some).all(axis=1)).all():
                    name = collection.named(block.start + int(np.argmin(known)))
                    raise DataError(f"{name} holds NaN or infinity; leave such samples out.")
        mean, squares, unknown = rows.mean(axis=0, dtype=np.float64), np.zeros(p), np.full(p, np.nan)
        for block in blocks:
            squares += np.square(rows[slice(*block)] - mean).sum(axis=0)
        variances = squares / (len(rows) - 1)
        total = float(variances.sum())
        if not total:
            raise DataError(f"all samples of {collection.source} are equal; an embedding needs different ones.")
        found = Decomposition(
            mean=np.zeros(p),
            components=np.eye(p, dtype=rows.dtype),
            explained_variance=variances,
            error_bound=unknown,
            angle_bound=unknown,
            total_variance=total,
            n_samples=collection.n_samples,
            total_weight=collection.n_samples,
        )
        about = {
            "streampca": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **data_of(collection, collection.states(), None, None),
            "versions": dict(versions()),
        }
        return model_of(collection, found, about, found.components), rows

    def _components(self, folder: str, how: Checkpointing | None) -> PCAModel:
        """Fit the principal components, or load those of the run that is resumed."""
        path = os.path.join(folder, "pca.zarr")
        if not os.path.isdir(path):
            fit_collection(
                Opened(self.collection, components_request(self.collection, self.request, self.missing)),
                place=Place(path),
                executor=self.executor,
                checkpoint=None if how is None else replace(how, folder=f"{path}-checkpoint"),
                listener=self.listener,
            )
        return load_model(path, memory=self.request.memory)

    def _graph(self, compared: Prepared, folder: str, how: Checkpointing | None) -> NeighborGraph:
        """Find the graph of all samples, or load that of the run that is resumed."""
        path = os.path.join(folder, "graph.zarr")
        if not os.path.isdir(path):
            graph_of(
                compared,
                search_request(self.request),
                output=path,
                checkpoint=None if how is None else replace(how, folder=f"{path}-checkpoint"),
                listener=self.listener,
            )
        return load_graph(path)

    def _graph_of_some(self, scores: Array) -> NeighborGraph:
        """Return the graph of landmarks; refused where it has several components."""
        search, request = NeighborSearch(scores, way_of(scores.shape[1])), self.request
        graph = NeighborGraph(*search.query(scores, request.n_neighbors, own=np.arange(len(scores))))
        if len(component_labels(graph)[1]) > 1:
            raise DataError(
                f"the graph of {request.n_neighbors} neighbours of {len(scores)} landmarks of {self.collection.source} "
                "is not connected; give more neighbours (--n-neighbors)."
            )
        return graph

    def _connected(
        self, graph: NeighborGraph, saved: CheckpointFolder | None
    ) -> tuple[NeighborGraph, npt.NDArray[np.intp], dict[str, Any]]:
        """Return a graph that is connected, its samples, and the facts of the whole, to be measured with the embedding.

        A graph in several components is refused, or replaced by the largest of them.
        """
        if self.request.kind == ACTING:  # which goes by time
            return graph, np.arange(graph.n_samples), {}
        facts = graph.provenance.get("facts")
        if facts is None:
            facts = facts_of(graph, component_labels(graph)[1], looked_up_to=graph.n_neighbors)
        kept, largest = largest_component(graph)
        if len(kept) == graph.n_samples or self.request.largest_component:
            return largest, kept, {"facts": facts}
        found = components_sentence(facts, exact=graph.provenance.get("method") != "hnsw")
        remedy = "--largest-component (largest_component=True) leaves the samples of the others out"
        if saved is not None and self.given_graph is None:
            saved.refuse()
            remedy += f", and goes on from the graph in {saved.folder}"
        raise DataError(
            f"the graph of {graph.n_neighbors} neighbours of {self.collection.source} is {found}; {remedy}."
        )

    def _model(
        self,
        pca: PCAModel,
        found: Embedded,
        scores: Array,
        kept: npt.NDArray[np.intp],
        measured: dict[str, Any],
        seconds: float,
    ) -> EmbeddingModel:
        kind = cast("type[EmbeddingModel]", model_class(self.request.kind))
        about = {**self.request.given, "measured": measured, "seconds": round(seconds, 3)}
        own = {each.name: getattr(pca, each.name) for each in fields(PCAModel)}
        own |= {"provenance": {**pca.provenance, "embedding": about}, "statistic": None, "name": "the model"}
        return kind(
            **own,
            embedding=found.coordinates,
            embedded_samples=kept.astype(np.int64),
            embedding_eigenvalues=found.eigenvalues,
            embedding_residuals=found.residuals,
            references=scores[found.reference_samples],
            reference_samples=found.reference_samples.astype(np.int64),
            n_neighbors=self.request.n_neighbors,
            **found.own_fields,
        )
