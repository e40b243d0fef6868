"""`fit`, the engine's story: open the collection, plan, run the method, build the model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..events import Finished, Listener, Planned, check_listener, logged, one_at_a_time, silent
from ..execution import Executor, LocalExecutor
from ..execution.checkpoint import CheckpointFolder, Checkpointing, checkpointing, clear_finished
from ..execution.executor import as_of, executing
from ..execution.threads import one_blas_thread
from ..machine import PeakMeter, hand_back
from ..models.pca import PCAModel
from ..models.store import ModelWriter, check_model_output
from ..planning.blocks import Part, part_of
from ..planning.registry import MAPPING_KINDS
from ..planning.request import Request
from ..preprocessing import Preparation, Prepared
from ..preprocessing.kernel_features import KernelOptions
from ..preprocessing.kernels import AUTO
from ..preprocessing.preparation import with_features
from ..readers import Opening, check_apart, column_paths, open_collection, paths_of
from ..readers.stored.axis_roles import grid_mapping
from ..readers.target import check_target, digest_of
from ..readers.weights import weights_digest
from ..signals import stopping_on_signals
from ..storage.components import ComponentWriter, UnfinishedComponents
from ..storage.disk import expanded
from ..storage.locks import checkpoint_lock, output_lock
from ..units import parse_bytes
from .build_model import coordinates_of, data_of, dims_of, model_of, provenance_of
from .executor import resumable_scratch_name, scratch_name, suited
from .identity import check_beside, decisive_fields, identity_of
from .kernel_residuals import with_residuals
from .methods import METHODS, Decomposition, Job
from .open_fit import Opened, open_fit
from .plan import check_options, warn_of_disk
from .preparation_rounding import with_rounding

Float64 = npt.NDArray[np.float64]

ONE_THREAD_SECONDS = 1.0  # predicted work of one core up to which BLAS has one thread


@stopping_on_signals()
def fit(
    source: Any,
    *,
    kind: str = "pca",
    target: Any = None,
    target_type: str = "auto",
    shrinkage: float | None = None,
    n_slices: int = 10,
    threshold: float | str = "auto",
    n_folds: int = 5,
    metric: str = "euclidean",
    n_components: int | float | str | None = 0.95,
    method: str = "auto",
    memory: int | str | None = None,
    precision: str = "auto",
    tol: float = 1e-4,
    max_passes: int | None = None,
    half_life: float | None = None,
    preparation: Preparation | None = None,
    missing: str = "error",
    sample_weight: Any = None,
    kernel: str | Callable[[Any, Any], float] | None = None,
    gamma: float | str | None = AUTO,
    degree: int = 3,
    coef0: float = 1.0,
    landmarks: int | str | None = None,
    random_features: int | None = None,
    landmark_choice: str = "uniform",
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    part: str | tuple[int, int] | None = None,
    checkpoint: str | os.PathLike[str] | Checkpointing | None = None,
    cluster: Any = None,
    listener: Listener = logged,
    **opening: Unpack[Opening],
) -> PCAModel:
    """Learn the principal components of a collection of images.

    Parameters
    ----------
    source : path, glob, list of paths, array or Collection
        See `open_collection`.
    kind : str, default="pca"
        Kind of model. "pca": principal components. "kernel-pca": those of the features of a kernel. "classical-mds":
        points whose distances are those of samples, as nearly as so few dimensions allow. "supervised-pca",
        "discriminant", "sliced-inverse-regression": axes learned from a `target`, which are those along which samples
        depend most on it, Fisher's discriminants of classes, or the directions by which a number changes.
        "supervised-components": principal components of the features that correlate with a number, which they predict.
    target : array, path or str, optional
        Label or number of each sample, which supervised kinds learn from: anything `open_column` takes, or label
        features of shape (n, l).
    target_type : {"auto", "classes", "numbers"}, default="auto"
        What the target is taken for. Kind "discriminant" learns from classes, "sliced-inverse-regression" and
        "supervised-components" from numbers (the latter takes text of two labels for 0 and 1), and they refuse the
        other. For "supervised-pca", "auto" takes text, yes or no, and whole numbers of any dtype for classes, unless
        more than half of the whole numbers are different; all else for numbers. It refuses what may be either, whole
        numbers without gaps of which more than half are different and some are not, and a warning says what it took.
    shrinkage : float, optional
        Shrinkage of kind "discriminant", from 0 to 1, as in scikit-learn's LinearDiscriminantAnalysis: for few samples,
        or features that others determine.
    n_slices : int, default=10
        Number of slices that kind "sliced-inverse-regression" cuts the sorted target into.
    threshold : float or "auto", default="auto"
        Least correlation with the target, either way, of the features that kind "supervised-components" keeps, from 0
        to below 1; "auto" chooses it by cross-validation.
    n_folds : int, default=5
        Number of folds of that cross-validation, into which `seed` deals the samples.
    metric : {"euclidean", "precomputed", "kernel"}, default="euclidean"
        Input of kind "classical-mds": "euclidean" takes samples of features, whose points are then those of principal
        components; "precomputed" a symmetric matrix of distances, n samples of n numbers each; "kernel" one of inner
        products, which gives the scores of kernel PCA.
    n_components : int, float, {"elbow", "mp", "mle"} or None, default=0.95
        A number of components; a fraction of the variance, between 0 and 1; None for all; or a rule: up to the elbow
        of the first 50 variances, above the Marchenko-Pastur edge (assumes white noise), or of the largest evidence
        (Minka; needs n >= p).
    method : {"auto", "covariance", "dual", "randomized", "em", "symmetric", "kernel-matrix"}, default="auto"
        "auto" lets the plan choose: p x p, or n x n where there are more features than samples, both exact; or a few
        passes with a block of vectors, where neither fits or few components are wanted of many. "em" is the method of
        ``missing="em"``, and "symmetric" that of ``metric="precomputed"`` and ``"kernel"``; both are taken with these
        alone. Each supervised kind has one method of its own. "kernel-matrix" is the method of kind "kernel-pca" for
        samples that do not fit in memory, where the kernel between all pairs does; "auto" takes it there.
    memory : int or str, optional
        Most bytes to use, e.g. ``"2 GiB"``; half of what the machine allows by default.
    precision : {"auto", "single", "double"}, default="auto"
        Precision of products; sums are always double. "auto" takes single for integers of up to 16 bits and float32,
        except for small work (n p^2 of up to 2e9).
    tol : float, default=1e-4
        Residual of a component, relative to its variance, at which method "randomized" stops, once every component
        that is wanted is there, and "symmetric" where it reads pass after pass; between 0 and 1. Method "em" stops when
        its last step turned no more than this share of the components' variance out of the subspace before. Exact
        methods take no notice of it.
    max_passes : int, optional
        Most passes of methods "randomized" and "em" over the collection; by default as many as `tol` takes, up to 30
        (of "em", 50 steps). 1 is a sketch. Where "randomized" ends before `tol` is met a warning says which bound was
        reached, and `error_bound` holds, but of the distance to some true variance: that of the same rank is certain
        for the leading components only. A product with a block of vectors counts as a pass even where all samples are
        in memory and are read once.
    half_life : float, optional
        Samples after which a sample counts half as much: sample i of n has the weight 2^(-(n - 1 - i) / half_life),
        times its `sample_weight`. By default samples are not forgotten.
    preparation : Preparation, optional
        Applied to every sample first, and stored in the model.
    missing : {"error", "drop-features", "drop-samples", "em"}, default="error"
        Treatment of missing values (NaN or infinity). "error": the first sample that holds one is named.
        "drop-features": pixels missing in any sample are left out, as by ``mask="valid"``, also inside a mask that is
        an array. "drop-samples": samples are left out in which a pixel is missing that others have; pixels missing in
        every sample are masked; ``provenance["dropped"]`` says what was left out. "em": nothing is left out but pixels
        missing in every sample; components are those of the most likely model of what is there (probabilistic PCA by
        EM, several passes, started from means in place of what is missing). No bound on their error is known;
        ``provenance["missing"]`` says how well values are predicted that were held out, one in 64. It needs a number
        of components, a fraction or "elbow". All but "error" take a pass over the collection before planning. The model
        applies the rule to other samples, too; see `PCAModel.transform`.
    sample_weight : array, path or str, optional
        How often each sample counts, n numbers of at least 0: a sample of weight 2 counts as if it were there twice.
        Anything `open_column` takes.
    kernel : {"rbf", "polynomial", "linear", "cosine", "sigmoid", "laplacian"} or callable, optional
        Kernel of kind "kernel-pca", "rbf" by default, and of "supervised-pca", none by default: axes are then those of
        samples as they are. Or a function of two samples (p,) and (p,), of which models hold the name only.
    gamma, degree, coef0 : optional
        Parameters of the kernel; see `streampca.preprocessing.kernels.Kernel`. gamma="auto" goes by the median distance
        of a sample.
    landmarks : int or "all", optional
        Number of samples that kinds "kernel-pca" and "classical-mds" compare all others with; 1000 are accurate enough
        for most collections. By default all, which is exact; "kernel-pca" then takes n x n numbers.
    random_features : int, optional
        Number of random Fourier features, in place of landmarks.
    landmark_choice : {"uniform", "k-means++", "leverage"}, default="uniform"
        Choice of landmarks: at random, far apart, or by how much they add to others.
    seed : int, default=0
        Seed of the random numbers: probes that bound the error, landmarks, folds of samples, and the start of method
        "randomized".
    output : path, optional
        Folder to write the model to. Components larger than the budget are written there as they are computed, and stay
        on disk; without an output they are refused.
    overwrite : bool, default=False
        Replace a model that is there already.
    scratch : path, optional
        Folder for a copy of the collection, in the order in which it is analysed, where the plan finds that faster
        than decoding it several times; beside `output` by default. It is removed afterwards.
    part : str or (int, int), optional
        ``"3/16"`` or (3, 16): the third of 16 nearly equal runs of samples only. The model stores the statistic that
        `merge` combines into the full model, as it would be without parts; only method "covariance" can. Weights and
        preparation are those of the whole collection.
    checkpoint : path or Checkpointing, optional
        Folder to save the fit in as it goes. When the process dies, the same call resumes there and gives the
        same model; the folder is removed when it is complete.
    cluster : int, str or distributed.Client, optional
        Shares the work: so many processes of this machine, or the workers of a dask cluster, by its scheduler's
        address or through a client. `memory` is then that of each. (A script that asks for processes needs
        ``if __name__ == "__main__":``, as with `multiprocessing`.)
    listener : callable, optional
        Told what happens (`streampca.events`); by default warnings are logged.
    **opening
        ``key``, ``sample_axes``, ``select``, ``on_bad_file`` ...: see `open_collection`.

    Returns
    -------
    PCAModel
        With error bounds. The peak memory measured is in ``provenance["peak_bytes"]``.

    Raises
    ------
    SourceError
        If the source cannot be read; as a ChangedError, if it changed since it was opened.
    DataError
        If it has one sample only, NaN or infinity, or no variance.
    RequestError
        If an option is wrong for this collection, or `output` is what is read, holds it or lies in it.
    BudgetError
        If the request does not fit the budget; before any data is read.
    ClusterError
        If there is no cluster, its workers lack a package, memory or the data, or it is lost.
    OutputError
        If `output` exists (and `overwrite` is false) or cannot be written, or the disk is too small for a scratch copy.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> model
    PCAModel(10 components of 8 x 8 samples, 73.8% of the variance of 1797 samples)
    >>> model.transform(digits).shape
    (1797, 10)
    >>> model.reconstruct(digits).shape
    (1797, 8, 8)
    """
    check_listener(listener)
    request = Request(
        n_components=n_components,
        method=method,
        memory=parse_bytes(memory),
        precision=precision,
        seed=seed,
        scratch=None if scratch is None else expanded(scratch),
        output=output is not None,
        tol=tol,
        max_passes=max_passes,
        half_life=half_life,
        missing=missing,
        kind=kind,
        target_type=target_type,
        shrinkage=shrinkage,
        n_slices=n_slices,
        threshold=threshold,
        n_folds=n_folds,
        metric=metric,
    )
    check_options(fit, opening)
    check_target(target, kind)
    options = KernelOptions(kernel, gamma, degree, coef0, landmarks, random_features, landmark_choice)
    preparation = with_features(preparation, kind, options, seed=request.seed)
    place = None if output is None else Place(expanded(output), overwrite)
    if place is not None:
        check_apart([place.path], [*paths_of(source), *column_paths(opening.get("labels"), sample_weight, target)])
    opened = open_fit(
        open_collection(source, listener=listener, **opening),
        request,
        preparation,
        sample_weight=sample_weight,
        target=target,
        shared=cluster is not None,
        listener=listener,
    )
    wanted = part_of(part)
    with executing(cluster, request.memory, listener=listener) as executor:
        return fit_collection(
            opened,
            place=place,
            part=wanted,
            executor=executor,
            checkpoint=checkpointing(checkpoint),
            listener=listener,
        )


@dataclass(frozen=True)
class Place:
    """Folder that a model is to be written to.

    Attributes
    ----------
    path : str
        The folder to make.
    overwrite : bool
        Whether a model that is there is replaced.

    Raises
    ------
    OutputError
        If something is there already, or nothing can be written there.
    """

    path: str
    overwrite: bool = False

    def __post_init__(self) -> None:
        clear_finished(self.path)
        check_model_output(self.path, overwrite=self.overwrite)


@stopping_on_signals()
def fit_collection(
    opened: Opened,
    *,
    place: Place | None = None,
    part: Part | None = None,
    executor: Executor | None = None,
    checkpoint: Checkpointing | None = None,
    listener: Listener = silent,
) -> PCAModel:
    """Plan and carry out a fit that was opened, and write the model where there is a place for it; see `fit`."""
    if checkpoint is not None:
        check_beside(checkpoint.folder, None if place is None else place.path)
    place_alone = output_lock(None if place is None else place.path)
    with place_alone, checkpoint_lock(None if checkpoint is None else checkpoint.folder):
        return _fitted(
            opened,
            place=place,
            part=part,
            runner=executor or LocalExecutor(),
            checkpoint=checkpoint,
            listener=one_at_a_time(listener),
        )


def _fitted(
    opened: Opened,
    *,
    place: Place | None,
    part: Part | None,
    runner: Executor,
    checkpoint: Checkpointing | None,
    listener: Listener,
) -> PCAModel:
    """See `fit_collection`; no other process writes the model, or works in the folder of the checkpoint."""
    collection, request, weights, target = opened.collection, opened.request, opened.weights, opened.target
    began, states = time.perf_counter(), collection.states()
    saved = None
    if checkpoint is not None:
        identity = identity_of(collection, request, weights_digest(weights), part, states, digest_of(target))
        overwrite = place is not None and place.overwrite
        how: dict[str, Any] = {"overwrite": overwrite, "scratch_folder": request.scratch}
        saved = CheckpointFolder(checkpoint, identity, **how, listener=listener)
    with as_of(runner):
        chosen = replace(opened, request=suited(request, runner, saved)).plan(part=part)
    runner.check(partial(collection.read, slice(0, 1)), chosen.memory_estimate.total, listener)
    scratch = scratch_name(request, None if place is None else place.path)
    listener(Planned(chosen, chosen.assumed))
    if saved is None or not saved.record:  # a run that is resumed has written some of it
        folder = None if saved is None else saved.folder
        warn_of_disk(chosen, None if place is None else place.path, folder, listener, part=part)
    if saved is not None:
        copy = resumable_scratch_name(request, saved) if chosen.schedule == "scratch" else None
        saved.begin(decisive_fields(chosen), scratch=copy, memory=chosen.memory, workers=chosen.workers)
        scratch = saved.scratch
    meter = PeakMeter()
    job = Job(
        collection,
        chosen,
        runner,
        weights=weights,
        listener=listener,
        stage=None if saved is None else saved.stage,
        scratch=scratch,
        states=states,
        target=target,
    )

    def about(found: Decomposition) -> dict[str, Any]:
        seconds = time.perf_counter() - began
        return provenance_of(
            data_of(collection, states, weights, part, target), chosen, found, seconds=seconds, peak=meter.peak()
        )

    # Threads of BLAS spin while they wait for one another: 1797 digits took twice the processor time with two.
    is_small = chosen.work.seconds(1, 1, chosen.rates) < ONE_THREAD_SECONDS
    with one_blas_thread() if is_small else nullcontext(), nullcontext() if saved is None else saved.running():
        if chosen.stored and place is not None:
            model = _written(collection, job, place, about)
        else:
            found = METHODS[chosen.method](job).of_kind(request.kind)
            if request.kind in MAPPING_KINDS and found.mapped is None:
                found = with_residuals(job, found)
            model = model_of(collection, found, about(found), found.components)
            model = with_rounding(model, collection, weights)
            if place is not None:
                # The C library kept 27 MiB of the 80 that the passes freed, beside the buffers of writing.
                hand_back()
                model.save(place.path, overwrite=place.overwrite)
    listener(Finished("fit", time.perf_counter() - began))
    return model


def _written(
    collection: Prepared, job: Job, place: Place, about: Callable[[Decomposition], dict[str, Any]]
) -> PCAModel:
    """Return a model whose components are written as they are computed, and stay on disk."""
    with ModelWriter(place.path, overwrite=place.overwrite, keeps=job.stage is not None) as writer:
        kind = job.plan.request.kind
        dims, known = dims_of(collection, kind), coordinates_of(collection, kind)
        like: dict[str, Any] = {"dims": dims, "mask": collection.mask, "attributes": grid_mapping(dims, known)}

        def sink(count: int, dtype: np.dtype[Any], unfinished: UnfinishedComponents | None) -> ComponentWriter:
            return writer.components((count, *collection.sample_shape), dtype=dtype, resume=unfinished, **like)

        found = METHODS[job.plan.method](replace(job, sink=sink)).of_kind(job.plan.request.kind)
        model = model_of(collection, found, about(found), writer.stored())
        model = with_rounding(model, collection, job.weights, writer.begun(collection.mask))
        writer.finish(model)
    return model
