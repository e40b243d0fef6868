"""Refuse scores, images and graphs that do not fit before a run of several outputs makes the first of them.

A run fits a model and writes scores, images, a graph and a report of it. Each of these refuses by itself what memory or
disk do not allow, but only when the outputs before it have been written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..errors import RequestError
from ..kinds.description import Description
from ..kinds.kernel_pca import PRECOMPUTED
from ..kinds.run import Run
from ..models.images import ImageModel
from ..models.model import Model, require
from ..models.store import are_held
from ..models.transform import ComponentsToCome, check_foreseen
from ..planning import Plan
from ..planning.embedding import EmbeddingPlan
from ..preprocessing import Preparation, Prepared
from ..preprocessing.copy import foresee_copy
from ..readers import Collection
from ..readers.target import check_target
from ..storage.components import StoredComponents
from ..storage.free_space import check_free_spaces
from ..storage.outputs import UNCOMPRESSED, partial_bytes
from .arguments import DEFAULT, arguments_of
from .open_fit import Opened, open_fit


@dataclass(frozen=True)
class AppliedOutputs:
    """Outputs that a model is applied for.

    Attributes
    ----------
    scores, images, collection, graph : str or None
        Their paths.
    has_report : bool
        Whether a report is written.
    is_stored : bool
        Whether the model is written, too.
    n_components, residual, whole
        How images are made.
    search : mapping
        Options of `neighbors`.
    run : Run
        Memory, and whether outputs are replaced.
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
        """Refuse scores and images that the disk has no space for together: uncompressed ones."""
        # Pictures put together of windows are smaller than all windows, and refused when they are opened.
        values = {self.scores: k, None if self.whole else self.images: prod(sample_shape)}
        check_free_spaces(
            {
                path: n_samples * count * itemsize - partial_bytes(path)
                for path, count in values.items()
                if path is not None and path.lower().endswith(UNCOMPRESSED)
            }
        )

    def check_report(self, collection: Prepared) -> None:
        """Refuse a report of a collection that does not fit."""
        if self.has_report:
            from ..plot.report import check_room  # loads drawing, which other runs do without

            check_room(self.run.memory, collection)

    def check_graph(self, n_samples: int, k: int) -> None:
        """Refuse a graph of the scores of k components that does not fit."""
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
    """Plan a fit, and refuse it or the outputs that follow where they do not fit; reads headers only.

    Raises
    ------
    BudgetError, OutputError, RequestError
        Of the first that does not fit.
    """
    options: dict[str, Any] = {"memory": outputs.run.memory, "scratch": outputs.run.scratch}
    if outputs.is_stored:
        options["output"] = "model"  # any: components that do not fit in memory are then written as they are made
    given = arguments_of(foresee_fit, kind, DEFAULT, preparation, options)
    check_target(target, given.model)
    request = given.request()
    how: dict[str, Any] = {"sample_weight": sample_weight, "target": target, "shared": outputs.run.is_shared}
    opened = open_fit(collection, request, given.preparation, **how, foreseen=True)
    if outputs.collection:
        run = outputs.run
        foresee_copy(opened.collection, outputs.collection, memory=run.budget, overwrite=run.overwrite)
    outputs.check_report(opened.collection)
    if given.model.uses_graph:
        if outputs.images:
            raise RequestError(f"output.images: kind {kind.kind!r} makes no images; leave it out.")
        return opened.plan_stages()
    plan = opened.plan()
    if outputs.scores or outputs.images:
        _check_applying(opened, plan, outputs)
    return plan


def foresee_applying(model: Model, raw: Collection, outputs: AppliedOutputs) -> None:
    """Refuse outputs of a model that is there which do not fit; raises as `foresee_fit`."""
    if outputs.images:
        how: dict[str, Any] = {"residual": outputs.residual, "whole": outputs.whole}
        images = require(model, ImageModel, "images are made of principal components")
        collection = images.check_reconstruction(raw, n_components=outputs.n_components, **how)
        if outputs.scores:
            check_foreseen(
                collection,
                images.frame,
                ComponentsToCome(
                    outputs.n_components or images.n_components,
                    images.components.dtype,
                    isinstance(images.components, StoredComponents),
                ),
                makes_images=True,
                memory=outputs.run.memory,
                **how,
            )
    if outputs.has_report:
        outputs.check_report(model.prepared(raw))
    outputs.check_disk(raw.n_samples, model.n_scores, model.sample_shape, model.basis.components.dtype.itemsize)
    if outputs.scores:
        outputs.check_graph(raw.n_samples, model.n_scores)


def _check_applying(opened: Opened, plan: Plan, outputs: AppliedOutputs) -> None:
    """Refuse scores and images that the components to be fitted leave no memory for."""
    model, collection, run = opened.request.model, opened.collection, outputs.run
    if outputs.images and (model.maps_samples or opened.request.metric != "euclidean"):
        is_matrix = getattr(model, "kernel", None) == PRECOMPUTED or opened.request.metric != "euclidean"
        what = "a matrix of pairs of samples" if is_matrix else f"kind {model.kind!r}"
        raise RequestError(f"output.images: models of {what} write no images; leave it out.")
    k, dtype = plan.fewest_components, np.dtype(f"f{plan.component_itemsize}")
    nbytes = dtype.itemsize * k * prod(collection.sample_shape)
    stored = plan.stored or (outputs.is_stored and not are_held(nbytes, plan.memory))
    outputs.check_disk(collection.n_samples, k, collection.sample_shape, dtype.itemsize)
    components = ComponentsToCome(k, dtype, stored)
    if outputs.scores:
        check_foreseen(collection, collection.frame, components, makes_images=False, memory=run.memory)
        outputs.check_graph(collection.n_samples, k)
    if outputs.images:
        most = k if isinstance(plan.request.n_components, int) else plan.problem.most_components
        if (outputs.n_components or 1) > most:
            raise RequestError(
                f"output.n_components {outputs.n_components} is more than the {most} components that are fitted; "
                "give no more."
            )
        made = Prepared(collection.raw, collection.preparation.unnormalized)
        count = min(k, outputs.n_components or k)
        how: dict[str, Any] = {"residual": outputs.residual, "whole": outputs.whole, "memory": run.memory}
        check_foreseen(made, collection.frame, replace(components, count=count), makes_images=True, **how)
