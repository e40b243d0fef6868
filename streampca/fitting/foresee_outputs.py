"""Refuse a run of several outputs beforehand if memory or disk does not allow one of them.

A run fits a model and writes scores, images, a graph and a report. Each of these steps checks its own needs, but only
when its turn comes, after hours perhaps, and with the outputs before it written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..errors import RequestError
from ..events import silent
from ..execution.checkpoint import CheckpointFolder, checkpointing_of
from ..kinds.description import Description
from ..kinds.kernel_pca import PRECOMPUTED
from ..kinds.run import Run, part_of
from ..models.components import ComponentsModel
from ..models.images import ReconstructingModel
from ..models.model import Model, require
from ..models.store import check_model_output, fits_in_memory
from ..models.transform import ComponentsToCome, check_foreseen
from ..planning import Plan
from ..planning.embedding import EmbeddingPlan
from ..preprocessing import Preparation, Prepared
from ..preprocessing.copy import foresee_copy
from ..readers import Collection
from ..readers.target import check_target
from ..readers.weights import weights_digest
from ..storage.disk import expanded
from ..storage.free_space import check_free_spaces
from ..storage.outputs import UNCOMPRESSED, is_present, partial_bytes
from .arguments import DEFAULT, arguments_of
from .earlier_model import Fate, fate_of
from .identity import identity_of
from .open_fit import Opened, open_fit


@dataclass(frozen=True)
class AppliedOutputs:
    """Outputs of a run that a model is applied for.

    Attributes
    ----------
    scores, images, collection, graph : str or None
        Their paths; None for those that are not written.
    has_report : bool
        A report is written.
    is_stored : bool
        The model is written.
    n_components, residual, whole
        Options of `PCAModel.write_reconstruction`.
    search : mapping
        Options of `neighbors`.
    run : Run
        Memory, and permission to replace outputs.
    """

    scores: str | None
    images: str | None
    collection: str | None
    graph: str | None
    has_report: bool
    is_stored: bool
    n_components: int | None
    residual: bool
    whole: bool
    search: dict[str, Any]
    run: Run

    def check_disk(self, n_samples: int, k: int, sample_shape: tuple[int, ...], itemsize: int) -> None:
        """Refuse scores and images that the disk has no space for together; compressed formats are not counted."""
        # Pictures put together from windows are smaller than all windows; their size is checked when they are opened.
        values = {self.scores: k, None if self.whole else self.images: prod(sample_shape)}
        check_free_spaces(
            {
                path: n_samples * count * itemsize - partial_bytes(path)
                for path, count in values.items()
                if path is not None and path.lower().endswith(UNCOMPRESSED)
            }
        )

    def check_report(self, collection: Prepared, model: ComponentsModel | None = None) -> None:
        """Refuse a report that does not fit the memory; of a model, if it is fitted already."""
        if self.has_report:
            from ..plot.report import check_room  # loads drawing, which other runs do without

            check_room(self.run.memory, collection, model)

    def check_graph(self, n_samples: int, k: int) -> None:
        """Refuse a graph of the scores along k components that does not fit the memory."""
        if self.graph:
            from .neighbors import plan_neighbors  # loads the manifolds, half of scipy

            plan_neighbors(shape=(n_samples, k), dtype="float32", memory=self.run.memory, **self.search)


def foresee_fit(
    collection: Collection,
    kind: Description,
    outputs: AppliedOutputs,
    *,
    target: Any = None,
    sample_weight: Any = None,
    preparation: Preparation | None = None,
) -> Plan | EmbeddingPlan:
    """Plan a fit and the outputs that follow it; reads headers only.

    Raises
    ------
    BudgetError, OutputError, RequestError
        If the fit or an output does not fit; the first of them is named.
    """
    columns = {"target": target, "sample_weight": sample_weight}
    # Any path: components may then be larger than memory.
    run = replace(outputs.run, output="model" if outputs.is_stored else None)
    opened = _open(collection, kind, run, preparation, columns)
    if outputs.collection:
        foresee_copy(opened.collection, outputs.collection, memory=run.budget, overwrite=run.overwrite)
    outputs.check_report(opened.collection)
    if opened.request.model.uses_graph:
        if outputs.images:
            raise RequestError(f"output.images: kind {kind.kind!r} makes no images; leave it out.")
        return opened.plan_stages()
    plan = opened.plan()
    if outputs.scores or outputs.images:
        _check_applying(opened, plan, outputs)
    return plan


def foresee_model(
    collection: Collection,
    kind: Description,
    run: Run,
    *,
    target: Any = None,
    sample_weight: Any = None,
    preparation: Preparation | None = None,
) -> Fate:
    """Return what a fit will do to its output, ``run.output``; reads headers only.

    Raises
    ------
    OutputError
        If another model or the checkpoint of other work is there, which the fit would refuse.
    """
    path, checkpoint, part = expanded(str(run.output)), checkpointing_of(run), part_of(run.part)
    opened = _open(collection, kind, run, preparation, {"target": target, "sample_weight": sample_weight})
    fate = Fate(None, None, "")
    if is_present(path):
        if run.reuse:
            fate = fate_of(path, opened, part, overwrite=run.overwrite)
            if fate.model is not None:
                return fate
        check_model_output(path, overwrite=run.overwrite)
    if checkpoint is not None and not opened.request.model.uses_graph:
        digest = None if opened.target is None else opened.target.digest
        about: Any = weights_digest(opened.weights), part, opened.collection.states(), digest
        identity = identity_of(opened.collection, opened.request, *about)
        if CheckpointFolder(checkpoint, identity, overwrite=run.overwrite, listener=silent).record:
            return fate._replace(why="the fit is resumed")
    return fate


def _open(
    collection: Collection, kind: Description, run: Run, preparation: Preparation | None, columns: dict[str, Any]
) -> Opened:
    """Open a fit that is foreseen."""
    options: dict[str, Any] = {name: getattr(run, name) for name in ("memory", "scratch", "output", "device")}
    arguments = arguments_of(foresee_fit, kind, DEFAULT, preparation, options)
    check_target(columns["target"], arguments.model)
    request, steps = arguments.request(), arguments.preparation
    return open_fit(collection, request, steps, **columns, shared=run.is_shared, foreseen=True)


def foresee_applying(model: Model, raw: Collection, outputs: AppliedOutputs) -> None:
    """Refuse outputs of an existing model that do not fit; raises as `foresee_fit`."""
    if outputs.images:
        form: dict[str, Any] = {"residual": outputs.residual, "whole": outputs.whole}
        what, kind = "images are made of principal components", ReconstructingModel
        images = require(model, kind, what)  # type: ignore[type-abstract] # which is only compared
        collection = images.check_reconstruction(raw, n_components=outputs.n_components, **form)
        if outputs.scores:
            used = images.subspace.first(images.count_of(outputs.n_components))
            check_foreseen(
                collection,
                images.frame,
                ComponentsToCome(len(used.components), used.components.dtype, not used.is_held),
                makes_images=True,
                memory=outputs.run.memory,
                device=outputs.run.device,
                **form,
            )
    if outputs.has_report:
        outputs.check_report(model.prepared(raw), model.shown)
    outputs.check_disk(raw.n_samples, model.n_scores, model.sample_shape, model.basis.components.dtype.itemsize)
    if outputs.scores:
        outputs.check_graph(raw.n_samples, model.n_scores)


def _check_applying(opened: Opened, plan: Plan, outputs: AppliedOutputs) -> None:
    """Refuse scores and images for which the components, which are still to be fitted, leave no memory."""
    model, collection, run = opened.request.model, opened.collection, outputs.run
    is_of_distances = opened.request.metric != "euclidean"
    if outputs.images and (model.maps_samples or is_of_distances):
        is_matrix = getattr(model, "kernel", None) == PRECOMPUTED or is_of_distances
        what = "a matrix of pairs of samples" if is_matrix else f"kind {model.kind!r}"
        raise RequestError(f"output.images: models of {what} write no images; leave it out.")
    k, dtype = plan.fewest_components, np.dtype(f"f{plan.component_itemsize}")
    nbytes = dtype.itemsize * k * prod(collection.sample_shape)
    stored = plan.stored or (outputs.is_stored and not fits_in_memory(nbytes, plan.memory))
    outputs.check_disk(collection.n_samples, k, collection.sample_shape, dtype.itemsize)
    components = ComponentsToCome(k, dtype, stored)
    how: dict[str, Any] = {"memory": run.memory, "device": run.device}
    if outputs.scores:
        check_foreseen(collection, collection.frame, components, makes_images=False, **how)
        outputs.check_graph(collection.n_samples, k)
    if outputs.images:
        most = k if isinstance(plan.request.n_components, int) else plan.problem.most_components
        if (outputs.n_components or 1) > most:
            raise RequestError(
                f"output.n_components {outputs.n_components} is more than the {most} components that are fitted; "
                "give no more."
            )
        # Reconstruction reads samples before normalize, to give each image its own mean or norm again.
        images = Prepared(collection.raw, collection.preparation.unnormalized)
        count = min(k, outputs.n_components or k)
        options: dict[str, Any] = {"residual": outputs.residual, "whole": outputs.whole, **how}
        check_foreseen(images, collection.frame, replace(components, count=count), makes_images=True, **options)
