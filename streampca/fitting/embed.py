"""The stages of an embedding: principal components, the graph of nearest neighbours, and coordinates from it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .. import __version__
from ..arrays import Array
from ..errors import DataError
from ..events import Listener, Planned, Solving, Warned
from ..execution.checkpoint import CheckpointFolder, Checkpointing, path_beside
from ..execution.session import Session
from ..machine import hand_back
from ..manifold.graph_components import component_labels, largest_component
from ..manifold.graph_facts import components_sentence, facts_of
from ..manifold.laplacian import given_affinities
from ..manifold.neighbor_graph import NeighborGraph
from ..manifold.neighbors import NeighborSearch
from ..manifold.quality import quality
from ..manifold.stored_graph import load_graph
from ..models.embedding import EmbeddingModel
from ..models.load import load_model
from ..models.pca import PCAModel
from ..models.provenance import DeferredFacts
from ..models.registry import model_class
from ..models.subspace import working_dtype
from ..planning.blocks import Span, block_rows, blocks_of
from ..planning.embedding import ACTING, JUDGED, CoordinatesPlan, EmbeddingPlan, plan_affinities
from ..planning.neighbors import algorithm_of
from ..planning.request import RUN_FIELDS, Request
from ..preprocessing import Prepared, unflatten
from ..preprocessing.sizes_for_planning import problem_of_scores
from ..readers import open_collection
from ..readers.collection import digest, states_by_name, unchanged
from ..storage.free_space import check_free_spaces
from ..storage.outputs import SCRATCH, discard, is_present, recover
from ..storage.remote import is_url
from ..units import MIB, counted
from .build_model import data_of, model_of, versions
from .embedding_kinds import Embedded, EmbeddingJob, embedded
from .embedding_plan import components_request, plan_last, search_request
from .fit import ModelOutput, fit_collection
from .identity import described
from .methods import Decomposition
from .neighbors import EDGE_BYTES, graph_of
from .open_fit import Opened, prepare

STRAGGLERS = 0.1  # share of landmarks outside the largest component of their graph up to which they are left out
BLOCK = 2 * MIB  # bytes of differences from the mean that are squared at a time
SCORES_FILE = "scores.npy"
STAGES = f"stages{SCRATCH}"  # folder of finished stages, inside that of the checkpoint


def plan_of_affinities(request: Request, table: Any, matrix: Any) -> CoordinatesPlan:
    """Plan an embedding by a matrix of affinities; None for a dense one that will be computed from a table.

    Raises
    ------
    BudgetError, DataError, RequestError
        See `plan_affinities`.
    """
    n = table.shape[0]
    entries = matrix.nnz if sp.issparse(matrix) else n * n
    arrays = (table.data, table.indices, table.indptr) if sp.issparse(table) else (table,)
    table_bytes = 0 if matrix is table else sum(array.nbytes for array in arrays)
    problem = problem_of_scores(n, table.shape[1], 8)
    return plan_affinities(problem, request, n_entries=entries, table_bytes=table_bytes)


def embed_affinities(matrix: Any, request: Request, plan: CoordinatesPlan, *, listener: Listener) -> Embedded:
    """Embed samples by a matrix of their affinities, (n, n), dense or sparse, with a spectral kind.

    Raises
    ------
    DataError, RequestError
        See `given_affinities`.
    """
    weights = given_affinities(matrix, request.options.most_components)
    n = weights.shape[0]
    empty = np.empty((n, 0))
    graph, rows = NeighborGraph(empty, empty), np.arange(n)
    job = EmbeddingJob(empty, graph, request, plan, listener, None, lambda scores: (rows, graph), rows, None, weights)
    return embedded(job)


@contextmanager
def _empty_folder(folder: str) -> Iterator[str]:
    """Create a folder for the duration of a block; one from a killed process is removed first."""
    discard(folder)
    os.makedirs(folder)
    try:
        yield folder
    finally:
        discard(folder)


def _is_finished(path: str) -> bool:
    """Return whether an earlier run has written the output of a stage, in a folder or at a URL."""
    recover(path)
    return is_present(path)


@dataclass(frozen=True, eq=False)
class EmbeddingRun:
    """One embedding: its inputs, and the session in which it is carried out.

    Features are read twice: for the neighbours, and for the coordinates. With principal components, samples are read
    for these and for their scores, and scores are read in place of features. The last stage has the compared features
    or scores, (n, s), and the graph, (n, k), in memory.
    """

    opened: Opened
    session: Session

    @property
    def collection(self) -> Prepared:
        """Samples to embed."""
        return self.opened.collection

    @property
    def request(self) -> Request:
        """Kind of embedding and budget."""
        return self.opened.request

    @property
    def listener(self) -> Listener:
        """Receiver of events."""
        return self.session.listener

    def carry_out(self) -> EmbeddingModel:
        """Run the stages, and write the model."""
        output, checkpointing = self.session.output, self.session.checkpointing
        self.listener(Planned(self.plan))
        plan = self.plan.coordinates
        self._warn_of_disk(plan)
        with self._stages() as (folder, saved):
            compared = self._compared(folder, checkpointing)
            # The whole graph gets no name here, so that its memory is free before the eigenproblem.
            graph, kept, facts = self._connected(
                self._graph(compared, folder, checkpointing) if self.opened.graph is None else self.opened.graph, saved
            )
            if len(kept) < self.collection.n_samples:
                plan = plan_last(self.collection, self.request, len(kept), self.plan.n_components, reading={})
            scores = self._in_memory(compared)
            pca = self._pca(folder, scores)
            if len(kept) < len(scores):
                scores = scores[kept]
            job = EmbeddingJob(
                scores,
                graph,
                self.request,
                plan,
                self.listener,
                None if saved is None else saved.stage,
                self._landmark_graph,
                kept,
                self.opened.actions,
                executor=self.session.executor,
            )
            embedding = embedded(job)
            recall = {name: graph.provenance[name] for name in ("recall",) if name in graph.provenance}
            measured = {**facts, **recall, **embedding.measured}
            model = self._model(pca, embedding, scores, kept, measured)
            hand_back()
            if output is not None:
                model.save(output, overwrite=self.session.overwrite)
        if output is not None and not isinstance(model.pca.components, np.ndarray):
            model = cast("EmbeddingModel", load_model(output, memory=self.request.memory))
        return model

    def _warn_of_disk(self, plan: CoordinatesPlan) -> None:
        """Warn if the model, or the stages in the folder of the checkpoint, may not fit the disk."""
        n, scores = self.collection.n_samples, self.plan.n_components or self.collection.n_features
        distances = plan.n_landmarks if self.request.kind == "isomap" else 0
        needed, folder = {}, self.session.checkpoint_disk
        if self.session.output is not None:
            needed[self.session.output] = 8 * (n * self.request.options.axes + plan.n_references * (scores + distances))
        if folder is not None:
            graph = EDGE_BYTES * self.request.options.n_neighbors
            needed[folder] = n * (8 * scores + graph + 2 * 8 * distances)  # the last two states of the distances
        check_free_spaces(needed, at_most=self.listener)

    @cached_property
    def plan(self) -> EmbeddingPlan:
        """Plan of all stages."""
        return self.opened.plan_stages()

    @property
    def _digest_of_actions(self) -> str | None:
        """Short digest of the labels of actions, if there are any."""
        return None if self.opened.actions is None else digest(self.opened.actions.tolist())

    @contextmanager
    def _stages(self) -> Iterator[tuple[str, CheckpointFolder | None]]:
        """Create the folder of finished stages, which is removed with the checkpoint, or at the end without one."""
        if self.session.checkpointing is None:
            if self.session.output is None:
                with tempfile.TemporaryDirectory() as folder:
                    yield folder, None
            else:
                with _empty_folder(path_beside(self.session.output) + SCRATCH) as folder:
                    yield folder, None
            return
        states, source = self.collection.states(), self.collection.source
        # Without `largest_component`, which no finished stage depends on: a run that was refused without it resumes.
        requested = {
            name: value
            for name, value in self.request.given.items()
            if name != "largest_component" and name not in RUN_FIELDS
        }
        identity = {
            **described(source, requested, self.collection.preparation, self.collection.mask, None, None),
            "actions": self._digest_of_actions,
            "version of streampca": __version__,
            "number of samples": self.collection.n_samples,
            **states_by_name(states),
        }
        saved = self.session.checkpoint(identity)
        assert saved is not None  # noqa: S101 - the session has checkpoints
        folder = os.path.join(saved.folder, STAGES)
        saved.begin(self.plan.decisive(), scratch=folder)
        if not is_url(folder):
            os.makedirs(folder, exist_ok=True)
        with saved.running():
            yield folder, saved

    def _compared(self, folder: str, checkpointing: Checkpointing | None) -> Prepared:
        """Return the collection of features, or of scores written to the folder, by which samples are compared."""
        if not self.plan.n_components:
            return self.collection
        path = os.path.join(folder, SCORES_FILE)
        if not _is_finished(path):
            self._components(folder, checkpointing).write_scores(
                self.collection.raw,
                path,
                memory=self.request.memory,
                checkpoint=None if checkpointing is None else replace(checkpointing, folder=f"{path}-checkpoint"),
                cluster=self.session.executor,
                listener=self.listener,
            )
            hand_back()
        return prepare(open_collection(path))

    def _in_memory(self, compared: Prepared) -> Array:
        """Read the features or scores by which samples are compared, (n, s).

        If the components span all samples, a last column has the distance from that span: 0 here, not for new samples.
        """
        n, p = compared.n_samples, compared.n_features
        rows = np.zeros((n, p + self.plan.spans_samples), working_dtype(compared.dtype, np.float32))
        with unchanged(compared):
            for block in blocks_of(Span(0, n), self.plan.read_rows):
                values = compared.read(slice(*block))
                if not (finite := np.isfinite(values).all(axis=1)).all():
                    name = compared.named(block.start + int(np.argmin(finite)))
                    raise DataError(f"{name} holds NaN or infinity; leave such samples out.")
                rows[slice(*block), :p] = values
        return rows

    def _pca(self, folder: str, compared: Array) -> PCAModel:
        """Return the principal components whose scores are compared; a model without components for features."""
        if self.plan.n_components:
            pca = self._components(folder, None)
            if self.session.output is None and not isinstance(pca.components, np.ndarray):
                rows = np.asarray(pca.subspace.components)  # before the folder of stages is removed
                pca = replace(pca, components=unflatten(rows, pca.sample_shape, pca.mask))
            return pca
        collection, mean = self.collection, compared.mean(axis=0, dtype=np.float64)
        total = sum(
            float(np.square(compared[slice(*block)] - mean).sum())
            for block in blocks_of(Span(0, len(compared)), block_rows(8 * len(mean), 1, BLOCK))
        )
        if not total:
            raise DataError(f"all samples of {collection.source} are equal; an embedding needs different ones.")
        decomposition = Decomposition(
            mean=mean,
            components=np.empty((0, len(mean)), compared.dtype),
            explained_variance=np.empty(0),
            residual_bound=np.empty(0),
            angle_bound=np.empty(0),
            total_variance=total / (len(compared) - 1),
            n_samples=collection.n_samples,
            total_weight=collection.n_samples,
        )
        provenance = {
            "streampca": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **data_of(collection, collection.states(), None, None),
            "versions": dict(versions()),
        }
        return cast("PCAModel", model_of(collection, decomposition, provenance, decomposition.components))

    def _components(self, folder: str, checkpointing: Checkpointing | None) -> PCAModel:
        """Fit the principal components, or load those of a resumed run."""
        path = os.path.join(folder, "pca.zarr")
        if not _is_finished(path):
            fit_collection(
                Opened(self.collection, components_request(self.request, self.plan.n_components)),
                output=ModelOutput(path),
                executor=self.session.executor,
                checkpoint=None if checkpointing is None else replace(checkpointing, folder=f"{path}-checkpoint"),
                listener=self.listener,
            )
        return cast("PCAModel", load_model(path, memory=self.request.memory))

    def _graph(self, compared: Prepared, folder: str, checkpointing: Checkpointing | None) -> NeighborGraph:
        """Find the graph of all samples, or load that of a resumed run."""
        request = search_request(self.request)
        if checkpointing is None:
            return graph_of(compared, request, executor=self.session.executor, listener=self.listener)
        path = os.path.join(folder, "graph.zarr")
        if not _is_finished(path):
            nested = replace(checkpointing, folder=f"{path}-checkpoint")
            how: dict[str, Any] = {"executor": self.session.executor, "checkpoint": nested}
            graph_of(compared, request, output=path, listener=self.listener, **how)
        return load_graph(path)

    def _landmark_graph(self, scores: Array) -> tuple[npt.NDArray[np.intp], NeighborGraph]:
        """Return the landmarks that their graph connects, and it; refuse to leave out more than a few."""
        search, k = NeighborSearch(scores, algorithm_of(scores.shape[1])), self.request.options.n_neighbors
        kept, graph = largest_component(NeighborGraph(*search.query(scores, k, own=np.arange(len(scores)))))
        if (lost := len(scores) - len(kept)) > STRAGGLERS * len(scores):
            raise DataError(
                f"the graph of {k} neighbours of {len(scores)} landmarks of {self.collection.source} is not connected, "
                f"and {lost} lie outside its largest component; give more neighbours (--n-neighbors, n_neighbors)."
            )
        if lost:
            message = f"{counted(lost, 'landmark')} outside the largest component of the graph of {len(scores)}"
            self.listener(Warned(f"{message} placed like the other samples; more neighbours would connect them."))
        return kept, graph

    def _connected(
        self, graph: NeighborGraph, saved: CheckpointFolder | None
    ) -> tuple[NeighborGraph, npt.NDArray[np.intp], dict[str, Any]]:
        """Return a graph that the kind can embed, its samples, and facts of the whole graph for the measurements.

        A graph with more components than that is refused; on request, any is replaced by its largest component.
        """
        if self.request.kind == ACTING:  # samples are connected by time, not by the graph
            return graph, np.arange(graph.n_samples), {}
        facts, sizes = graph.provenance.get("facts"), component_labels(graph)[1]
        if facts is None:
            facts = facts_of(graph, sizes, looked_up_to=graph.n_neighbors)
        options, count = self.request.options, len(sizes)
        if count == 1 or (count <= options.most_components and not options.largest_component):
            return graph, np.arange(graph.n_samples), {"facts": facts}
        sentence = components_sentence(facts, exact=graph.provenance.get("method") != "hnsw")
        if options.largest_component:
            kept, largest = largest_component(graph)
            self.listener(Warned(self._left_out(graph.n_samples - len(kept), sentence, count)))
            return largest, kept, {"facts": facts}
        remedy = "--largest-component (largest_component=True) leaves the samples of the others out"
        if options.most_components > 1:
            remedy = (
                f"--n-clusters {count} (n_clusters={count}) makes each a cluster, in place of {options.axes}; {remedy}"
            )
        if saved is not None and self.opened.graph is None:
            saved.refuse()
            remedy += f", and goes on from the graph in {saved}"
        raise DataError(
            f"the graph of {graph.n_neighbors} neighbours of {self.collection.source} is {sentence}; {remedy}."
        )

    def _left_out(self, n_samples: int, sentence: str, count: int) -> str:
        """Say which samples the largest component leaves out."""
        message = f"{counted(n_samples, 'sample')} outside the largest component left out, as the graph is {sentence}"
        if count <= self.request.options.most_components:
            message += "; without --largest-component (largest_component=True), each component is clustered"
        return f"{message}."

    def _model(
        self,
        pca: PCAModel,
        embedding: Embedded,
        scores: Array,
        kept: npt.NDArray[np.intp],
        measured: dict[str, Any],
    ) -> EmbeddingModel:
        """Return the model of the embedding, of the samples with the numbers `kept`."""
        kind = cast("type[EmbeddingModel]", model_class(self.request.kind))
        references, coordinates, seed = embedding.reference_samples, embedding.coordinates, self.request.seed
        record = {**self.request.given, "actions": self._digest_of_actions, "seconds": round(self.session.seconds, 3)}
        about = pca.provenance

        def provenance() -> dict[str, Any]:
            judged = {**measured, **quality(scores, coordinates, JUDGED, seed)}
            return {**about, "embedding": {**record, "measured": judged}}

        # Ranks of all distances take longer than the embedding of some hundred samples. They wait for a reader where
        # nothing but the references, which the model has anyway, is kept for them.
        waits = self.session.output is None and len(references) == len(scores) <= JUDGED
        if not waits:
            self.listener(Solving("how far neighbours are kept"))
        return kind.on(
            pca,
            provenance=DeferredFacts(provenance) if waits else provenance(),
            name="the model",
            embedding=embedding.coordinates,
            embedded_samples=kept.astype(np.int64),
            embedding_eigenvalues=embedding.eigenvalues,
            embedding_residuals=embedding.residuals,
            references=scores if len(references) == len(scores) else scores[references],
            reference_samples=references.astype(np.int64),
            n_neighbors=self.request.options.n_neighbors,
            **embedding.own_fields,
        )
