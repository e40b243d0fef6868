"""`hsic`: how far two collections depend on each other, by the Hilbert-Schmidt independence criterion.

References
----------
Gretton, Bousquet, Smola and Schölkopf (2005), Measuring statistical dependence with Hilbert-Schmidt norms.
Gretton, Fukumizu, Teo, Song, Schölkopf and Smola (2007), A kernel statistical test of independence.
Song, Smola, Gretton, Bedo and Borgwardt (2012), Feature selection via dependence maximization.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..accumulators import CrossMoments, KernelSums
from ..accumulators.kernel_sums import Estimates
from ..errors import DataError, RequestError
from ..events import Listener, PassStarted, Solving, check_listener, or_logged, reported
from ..execution.checkpoint import StageCheckpoint
from ..execution.executor import as_of
from ..execution.session import Session, run_session
from ..kinds.description import fields_of, make
from ..kinds.hsic import HsicDescription
from ..machine import hand_back
from ..planning.blocks import Span, blocks_of
from ..planning.hsic import DELTA, HsicPlan, HsicRequest, plan_hsic
from ..preprocessing import Preparation
from ..preprocessing.run_options import OF_FITS, FitOptions, run_and_opening
from ..readers import Collection, open_collection
from ..readers.collection import states_by_name, unchanged
from ..signals import safe_point, stopping_on_signals
from ..units import counted
from .hsic_tasks import KernelTiles, MappedPairs, absorb_sums
from .kernel_sides import KernelSide, SideMap, drawn, kernel_of, target_side
from .open_fit import open_samples
from .permutation_test import Permuted, permuted_features, permuted_kernels

Float64 = npt.NDArray[np.float64]

CENTRE_ROWS = 256  # samples, the mean of whose features is near that of all
X, Y, X_MAP, Y_MAP, CENTRE, TEST, ORDER = range(7)  # streams of random numbers, one for each use


@dataclass(frozen=True, eq=False)
class HSIC:
    """Dependence of two collections.

    Attributes
    ----------
    biased : float
        tr(K H L H) / (n - 1)^2.
    unbiased : float
        The estimate of Song and others (2012), whose expectation is 0 for independent samples; it may be negative.
    estimator : {"biased", "unbiased"}
        Name of the estimate that is the `statistic`, and was tested.
    p_value : float or None
        (1 + permutations with at least the observed value) / (1 + permutations); None where none were asked for.
    null : ndarray of shape (permutations,)
        Values of the permutations.
    observed : float or None
        Value that `null` is compared with: the statistic, or that of the samples or features permuted (see `test`).
    n_samples : int
    sources : (str, str)
        Names of the two collections.
    kernels : (str, str)
        Kernels of the two collections, with parameters.
    gammas : (float or None, float or None)
        Parameters of the kernels, as found; None for kernels without one.
    method : {"exact", "landmarks", "fourier"}
    widths : (int, int) or None
        Numbers of features by which kernels were computed; None for method "exact".
    test : str
        Description of the test; empty without one.
    plan : HsicPlan
        Blocks and memory.
    """

    biased: float
    unbiased: float
    estimator: str
    p_value: float | None
    null: Float64
    observed: float | None
    n_samples: int
    sources: tuple[str, str]
    kernels: tuple[str, str]
    gammas: tuple[float | None, float | None]
    method: str
    widths: tuple[int, int] | None
    test: str
    plan: HsicPlan

    @property
    def statistic(self) -> float:
        """Estimate that was asked for."""
        return self.biased if self.estimator == "biased" else self.unbiased

    @property
    def how(self) -> str:
        """Description of how kernels were computed."""
        if self.widths is None:
            return "exact kernels"
        features = {"landmarks": "Nystroem features", "fourier": "random Fourier features"}[self.method]
        return "{} and {} {}".format(*self.widths, features)

    def __repr__(self) -> str:
        tested = "not tested" if self.p_value is None else f"p = {self.p_value:.4g}"
        lines = [
            f"HSIC of {counted(self.n_samples, 'sample')}: {self.biased:.6g} (unbiased {self.unbiased:.6g}), {tested}",
            *(f"  {source}: {kernel}" for source, kernel in zip(self.sources, self.kernels, strict=True)),
            f"  by {self.how}",
        ]
        return "\n".join([*lines, *([f"  tested by {self.test}"] if self.test else [])])

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data, without the values of the permutations."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("null", "plan")}
        own |= {"statistic": self.statistic, "how": self.how, "permutations": len(self.null)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}


class HsicOptions(FitOptions, total=False):
    """The fields of `HsicDescription`, and options of a run and of opening, as keywords of `hsic`."""

    target_type: str
    kernel: Any
    gamma: float | str | None
    y_kernel: Any
    y_gamma: float | str | None
    method: str
    estimator: str
    landmarks: int | None
    random_features: int
    permutations: int
    test_samples: int
    random_state: Any


@stopping_on_signals()
def hsic(
    x: Any,
    y: Any = None,
    *,
    target: Any = None,
    preparation: Preparation | None = None,
    **options: Unpack[HsicOptions],
) -> HSIC:
    """Measure and test how far two collections of paired samples depend on each other.

    The Hilbert-Schmidt independence criterion is the squared norm of the covariance of features of x with features of
    y, those whose inner products are the kernels. With kernels such as "rbf" it is 0 for independent samples only,
    whatever the dependence; with linear kernels it is the squared norm of the covariance itself.

    Parameters
    ----------
    x : path, glob, list of paths, array or Collection
        n samples; see `open_collection`.
    y : path, glob, list of paths, array or Collection, optional
        The n samples that belong to them, in the same order. An array of one axis is a `target`.
    target : array, path or str, optional
        Label or number of each sample, instead of y; as `open_column` takes it.
    preparation : Preparation, optional
        Steps applied to the samples of x.
    **options
        ``kernel``, ``gamma``, ``y_kernel``, ``y_gamma``, ``target_type``, ``method``, ``estimator``, ``landmarks``,
        ``random_features``, ``permutations``, ``test_samples``, ``random_state``: what is computed, see
        `streampca.kinds.hsic.HsicDescription`. ``memory``, ``checkpoint``, ``workers`` ...: how it is carried out, see
        `streampca.Run`. ``key``, ``sample_axes`` ...: how x is opened, see `open_collection`.

    Returns
    -------
    HSIC

    Raises
    ------
    SourceError
        If a source cannot be read.
    RequestError
        If both y and target are given or neither, y has another number of samples, there are more landmarks than
        samples, or an option is out of range.
    DataError
        If labels are of one class, there are fewer than four samples, or NaN or infinity.
    BudgetError
        If it does not fit the budget; before samples are read.

    Notes
    -----
    Samples must be drawn independently of each other for the p-value to mean what it says: neighbouring times or
    windows are not. Cost with p features: n^2 p flops and n^2 exponentials for "exact", which reads the samples several
    times; one pass and 2 n (p m + m^2) flops a side for m landmarks. The test permutes n x n matrices, or features of
    up to `test_samples` samples, drawn at random where there are more: one of all of them would see weaker dependence.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> dependence = streampca.hsic(digits[:200], target=load_digits().target[:200])
    >>> dependence.p_value < 0.05
    True
    """
    described = fields_of(HsicDescription)
    own: dict[str, Any] = {name: value for name, value in options.items() if name in described}
    unused = (*OF_FITS, "output", "overwrite")
    run, opening = run_and_opening(hsic, options, unused=unused, own=described)
    listener = or_logged(run.listener)
    check_listener(listener)
    request = make(HsicRequest, {**own, "memory": run.budget})
    raw = open_collection(x, listener=listener, **opening)
    collection = open_samples(raw, preparation, memory=run.budget, listener=listener)
    first = KernelSide(collection, kernel_of(request.kernel, request.gamma))
    second = _second(y, target, collection, request, listener)
    with run_session("", run) as current:
        return HsicRun((first, second), request, current).carried_out()


def _second(y: Any, target: Any, collection: Collection, request: HsicRequest, listener: Listener) -> KernelSide:
    """Return the side that a collection is compared with."""
    if (y is None) == (target is None):
        raise RequestError(
            "HSIC compares a collection with another (y), or with a label or number a sample (target); give one."
        )
    if getattr(y, "ndim", 0) == 1:
        y, target = None, y
    if request.y_kernel == DELTA:
        raise RequestError(
            "kernel 'delta' is of labels; give these as --target (target=) with --target-type classes "
            "(target_type='classes'), and leave the kernel out."
        )
    if target is not None:
        return target_side(target, collection, request, listener)
    if request.target_type != "auto":
        raise RequestError(
            f"target_type {request.target_type!r} is of a target, and a collection is given (y); leave it out, or give "
            "--target (target=)."
        )
    other = open_samples(open_collection(y), None, memory=request.memory)
    if other.n_samples != collection.n_samples:
        raise RequestError(
            f"{collection.source} has {collection.n_samples} samples and {other.source} has {other.n_samples}; give as "
            "many of both, in the same order."
        )
    return KernelSide(other, kernel_of(request.y_kernel or "rbf", request.y_gamma))


@dataclass(frozen=True)
class HsicRun:
    """One computation: sides, options, and the session in which it is carried out."""

    sides: tuple[KernelSide, KernelSide]
    request: HsicRequest
    session: Session

    def random(self, use: int) -> np.random.Generator:
        """Return the stream of random numbers for one use, independent of the others."""
        return np.random.default_rng([self.request.random_state, use])

    def carried_out(self) -> HSIC:
        """Plan the computation, read the samples, and test."""
        executor, (first, second) = self.session.executor, self.sides
        request = replace(self.request, memory=self.request.memory or executor.memory, workers=max(1, executor.workers))
        with as_of(executor):
            plan = plan_hsic(first.sizes, second.sizes, request)
        with ExitStack() as stack:
            for side in self.sides:
                read = partial(side.collection.read, slice(0, 1))
                executor.check(read, plan.memory_estimate.total, self.session.listener)
                stack.enter_context(unchanged(side.collection))
            work = replace(self, sides=(first.resolved(self.random(X)), second.resolved(self.random(Y))))
            saved = stack.enter_context(self.session.resumable(work.identity, plan.decisive()))
            # The test comes first: glibc takes back what this thread freed, but not what the threads of a pass did.
            permuted = work.permuted(plan)
            hand_back()
            estimates, widths = work.estimated(plan, None if saved is None else saved.stage("dependence"))
        return work.result(plan, estimates, widths, permuted)

    def identity(self) -> Mapping[str, Any]:
        """Return what must be the same for an unfinished run to be resumed."""
        kernels = ("memory", "kernel", "gamma", "y_kernel", "y_gamma")  # sides know what was found of these
        identity = {name: value for name, value in vars(self.request).items() if name not in kernels}
        for name, side in zip("xy", self.sides, strict=True):
            states = states_by_name(side.collection.states())
            identity |= {f"{name}, {key}": value for key, value in (side.identity | states).items()}
        return {"work": "hsic", **identity}

    def estimated(self, plan: HsicPlan, stage: StageCheckpoint | None) -> tuple[Estimates, tuple[int, int] | None]:
        """Return both estimates, and how many features they were computed by."""
        collection, widths = self.sides[0].collection, None
        task: Any = KernelTiles(self.sides, plan.block_rows)
        if plan.method != "exact":
            maps = self.maps(plan.method)
            widths = maps[0].n_features, maps[1].n_features
            places = drawn(collection.n_samples, CENTRE_ROWS, self.random(CENTRE))
            one, other = (rows.mean(axis=0) for rows in self.features(maps, places, CENTRE_ROWS))
            task = MappedPairs(self.sides, maps, (one, other), plan.block_rows, plan.piece_rows)
        how: dict[str, Any] = {"threads": plan.threads, "ahead": plan.ahead, "checkpoint": stage}
        started = PassStarted("dependence", 1, 1, collection.n_samples, collection.n_samples * task.row_bytes)
        with reported(self.session.listener, started):
            sums: KernelSums | CrossMoments = self.session.executor.fold(
                task, plan.spans, absorb_sums, listener=self.session.listener, **how
            )
        hand_back()
        estimates = sums.estimates()
        if not np.isfinite(estimates).all():
            raise DataError("the kernel of some samples is NaN or infinite; give a smaller gamma or degree.")
        return estimates, widths

    def maps(self, method: str) -> tuple[SideMap, SideMap]:
        """Return the features of both sides."""
        first, second = self.sides
        return (
            first.feature_map(method, self.request, self.random(X_MAP)),
            second.feature_map(method, self.request, self.random(Y_MAP)),
        )

    def features(
        self, maps: tuple[SideMap, SideMap], places: npt.NDArray[np.intp], rows: int
    ) -> tuple[Float64, Float64]:
        """Return the features of samples at ascending places, of which `rows` are mapped at a time."""
        mapped = []
        for side, map_ in zip(self.sides, maps, strict=True):
            features = np.empty((len(places), map_.n_features))
            for span in blocks_of(Span(0, len(places)), rows):
                features[slice(*span)] = map_(side.read_rows(places, slice(*span)))
            mapped.append(features)
        return mapped[0], mapped[1]

    def permuted(self, plan: HsicPlan) -> Permuted | None:
        """Return the criterion of permuted samples, as the plan says; None without a test."""
        if plan.test == "none":
            return None
        count, estimator, n = self.request.permutations, self.request.estimator, self.sides[0].collection.n_samples
        self.session.listener(Solving(f"{counted(count, 'permutation')} of {_what_is_permuted(plan, n)}"))
        if plan.test == "exact":
            matrices = np.empty((2, n, n))
            for first, second, tiles in KernelTiles(self.sides, plan.test_rows).all_tiles():
                safe_point()
                for matrix, tile in zip(matrices, tiles, strict=True):
                    matrix[slice(*first), slice(*second)] = tile
                    matrix[slice(*second), slice(*first)] = tile.T
            return permuted_kernels(matrices, count, estimator, self.random(ORDER))
        places = drawn(n, plan.test_samples, self.random(TEST))
        features = self.features(self.maps("landmarks"), places, plan.test_rows)
        return permuted_features(*features, count, estimator, self.random(ORDER))

    def result(
        self, plan: HsicPlan, estimates: Estimates, widths: tuple[int, int] | None, permuted: Permuted | None
    ) -> HSIC:
        """Return both estimates with the outcome of the test."""
        (one, other), n, test = self.sides, self.sides[0].collection.n_samples, ""
        if permuted is not None:
            test = f"{counted(len(permuted.null), 'permutation')} of {_what_is_permuted(plan, n)}"
        return HSIC(
            **estimates._asdict(),
            estimator=self.request.estimator,
            p_value=None if permuted is None else permuted.p_value,
            null=np.empty(0) if permuted is None else permuted.null,
            observed=None if permuted is None else permuted.observed,
            n_samples=n,
            sources=(one.collection.source, other.collection.source),
            kernels=(str(one), str(other)),
            gammas=(one.gamma, other.gamma),
            method=plan.method,
            widths=widths,
            test=test,
            plan=plan,
        )


def _what_is_permuted(plan: HsicPlan, n: int) -> str:
    if plan.test == "exact":
        return f"the exact kernels of all {n} samples"
    some = f"all {n} samples" if plan.test_samples == n else f"{plan.test_samples} of {n} samples, drawn at random"
    return f"Nystroem features of {some}"
