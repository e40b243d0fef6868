"""`hsic`: dependence of two collections, measured by the Hilbert-Schmidt independence criterion.

References
----------
Gretton, Bousquet, Smola and Schölkopf (2005), Measuring statistical dependence with Hilbert-Schmidt norms.
Gretton, Fukumizu, Teo, Song, Schölkopf and Smola (2007), A kernel statistical test of independence.
Song, Smola, Gretton, Bedo and Borgwardt (2012), Feature selection via dependence maximization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..accumulators import CrossMoments, KernelSums
from ..accumulators.kernel_sums import Estimates
from ..arrays import Float64
from ..errors import DataError, RequestError
from ..events import Listener, PassStarted, Solving, check_listener, or_logged, reported
from ..execution.checkpoint import StageCheckpoint
from ..execution.executor import planning_for
from ..execution.session import Session, run_session
from ..kinds.description import fields_of, make
from ..kinds.hsic import HsicDescription
from ..kinds.run import Run
from ..machine import hand_back
from ..planning.blocks import Span, blocks_of
from ..planning.hsic import DELTA, FEATURES, HsicPlan, HsicRequest
from ..planning.hsic import plan_hsic as make_hsic_plan
from ..preprocessing import Preparation
from ..preprocessing.run_options import DEVICE, OF_FITS, FitOptions, run_and_opening
from ..readers import Collection, open_collection
from ..readers.collection import states_by_name, unchanged
from ..signals import safe_point, stopping_on_signals
from ..units import counted
from .hsic_tasks import KernelTiles, MappedPairs
from .kernel_sides import KernelSide, SideMap, drawn, kernel_of, target_side
from .open_fit import open_samples
from .permutation_test import Permuted, permuted_features, permuted_kernels

CENTRE_ROWS = 256  # random samples whose mean features are the provisional centre of the sums
SIDES, MAPS = (0, 1), (2, 3)  # streams of random numbers, one for each purpose, and of some one for each side
CENTRE, TEST, ORDER = 4, 5, 6


@dataclass(frozen=True, eq=False)
class HSIC:
    """Dependence of two collections.

    Attributes
    ----------
    biased : float
        tr(K H L H) / (n - 1)^2.
    unbiased : float
        The estimate of Song and others (2012), whose expectation is 0 for independent samples; it can be negative.
    estimator : {"biased", "unbiased"}
        Estimate that is the `statistic`, and was tested.
    p_value : float or None
        (1 + permutations with at least the observed value) / (1 + permutations); None without a test.
    null : ndarray of shape (permutations,)
        Values of the permutations.
    observed : float or None
        Value that `null` is compared with: the statistic, or its value for the permuted samples or features (see
        `test`).
    n_samples : int
    sources : (str, str)
        Names of the two collections.
    kernels : (str, str)
        Kernels of the two collections, with parameters.
    gammas : (float or None, float or None)
        Parameters of the kernels, as estimated; None for kernels without one.
    method : {"exact", "landmarks", "fourier"}
    widths : (int, int) or None
        Numbers of features that represent the kernels; None for method "exact".
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
        """The estimate named by `estimator`."""
        return self.biased if self.estimator == "biased" else self.unbiased

    @property
    def representation(self) -> str:
        """Description of the computation of the kernels."""
        if self.widths is None:
            return "exact kernels"
        return "{} and {} {}".format(*self.widths, FEATURES[self.method])

    def __repr__(self) -> str:
        tested = "not tested" if self.p_value is None else f"p = {self.p_value:.4g}"
        lines = [
            f"HSIC of {counted(self.n_samples, 'sample')}: {self.biased:.6g} (unbiased {self.unbiased:.6g}), {tested}",
            *(f"  {source}: {kernel}" for source, kernel in zip(self.sources, self.kernels, strict=True)),
            f"  by {self.representation}",
        ]
        return "\n".join([*lines, *([f"  tested by {self.test}"] if self.test else [])])

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data, without the values of the permutations and the plan."""
        data = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("null", "plan")}
        data |= {"statistic": self.statistic, "representation": self.representation, "permutations": len(self.null)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


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
    """Measure and test the dependence of two collections of paired samples.

    The Hilbert-Schmidt independence criterion is the squared norm of the covariance between the features of x and of y
    whose inner products are the kernels. With kernels such as "rbf" it detects any dependence: it is 0 for independent
    samples only. With linear kernels it is the squared norm of the covariance itself.

    Parameters
    ----------
    x : path, glob, list of paths, array or Collection
        n samples; see `open_collection`.
    y : path, glob, list of paths, array or Collection, optional
        The n samples paired with them, in the same order. An array of one axis is a `target`.
    target : array, path or str, optional
        Label or number of each sample, instead of y; anything that `open_column` opens.
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
    The p-value is valid if samples are drawn independently of each other; consecutive times or overlapping windows are
    not. Cost with p features: n^2 p flops and n^2 exponentials for "exact", which reads the samples several times; one
    pass and 2 n (p m + m^2) flops a side for m landmarks. The test permutes n x n matrices, or features of up to
    `test_samples` random samples; with all samples it would detect weaker dependence.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> dependence = streampca.hsic(digits[:200], target=load_digits().target[:200])
    >>> dependence.p_value < 0.05
    True
    """
    sides, request, run = _opened(hsic, (x, y, target), preparation, options)
    with run_session("", run) as current:
        return HsicRun(sides, request, current).carry_out()


def plan_hsic(
    x: Any,
    y: Any = None,
    *,
    target: Any = None,
    preparation: Preparation | None = None,
    **options: Unpack[HsicOptions],
) -> HsicPlan:
    """Plan the work of `hsic`, reading headers and the target only.

    Parameters
    ----------
    x, y, target, preparation
        As for `hsic`.
    **options
        As for `hsic`; ``workers`` processes share the work, each within the budget.

    Returns
    -------
    HsicPlan
        Plan, to be printed.

    Raises
    ------
    BudgetError, DataError, RequestError, SourceError
        As `hsic`.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> x = np.zeros((20_000, 5), np.float32)
    >>> streampca.plan_hsic(x, x, memory="1 GiB").method
    'landmarks'
    """
    (first, second), request, run = _opened(plan_hsic, (x, y, target), preparation, options, foreseen=True)
    return make_hsic_plan(first.sizes, second.sizes, replace(request, workers=run.workers or 1))


def _opened(
    caller: Callable[..., Any],
    sources: tuple[Any, Any, Any],
    preparation: Preparation | None,
    options: Mapping[str, Any],
    *,
    foreseen: bool = False,
) -> tuple[tuple[KernelSide, KernelSide], HsicRequest, Run]:
    """Return both sides, the checked request and the run, of x, y and target of `caller`."""
    names = fields_of(HsicDescription)
    description: dict[str, Any] = {name: value for name, value in options.items() if name in names}
    unused = (*OF_FITS, *DEVICE, "output", "overwrite")
    run, opening = run_and_opening(caller, options, unused=unused, own=names)
    listener = or_logged(run.listener)
    check_listener(listener)
    request = make(HsicRequest, {**description, "memory": run.budget})
    x, y, target = sources
    raw = open_collection(x, listener=listener, **opening)
    collection = open_samples(raw, preparation, memory=run.budget, foreseen=foreseen, listener=listener)
    first = KernelSide(collection, kernel_of(request.kernel, request.gamma))
    return (first, _second_side(y, target, collection, request, listener)), request, run


def _second_side(y: Any, target: Any, collection: Collection, request: HsicRequest, listener: Listener) -> KernelSide:
    """Return the side that a collection is compared with: another collection or a target."""
    if (y is None) == (target is None):
        raise RequestError(
            "HSIC compares a collection with another (y), or with a label or number a sample (target); give one."
        )
    if getattr(y, "ndim", 0) == 1:
        y, target = None, y
    if request.y_kernel == DELTA:
        raise RequestError(
            "kernel 'delta' is of labels; give these as --target (target) with --target-type classes "
            "(target_type='classes'), and leave the kernel out."
        )
    if target is not None:
        return target_side(target, collection, request, listener)
    if request.target_type != "auto":
        raise RequestError(
            f"target_type {request.target_type!r} is of a target, and a collection is given (y); leave it out, or give "
            "--target (target)."
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
        """Return the stream of random numbers for one purpose, independent of the others."""
        return np.random.default_rng([self.request.random_state, use])

    def carry_out(self) -> HSIC:
        """Plan the computation, read the samples, and test."""
        executor, (first, second) = self.session.executor, self.sides
        request = replace(self.request, memory=self.request.memory or executor.memory, workers=max(1, executor.workers))
        with planning_for(executor):
            plan = make_hsic_plan(first.sizes, second.sizes, request)
        with ExitStack() as stack:
            for side in self.sides:
                read = partial(side.collection.read, slice(0, 1))
                executor.check(read, plan.memory_estimate.total, self.session.listener)
                stack.enter_context(unchanged(side.collection))
            first, second = (side.resolved(self.random(use)) for side, use in zip(self.sides, SIDES, strict=True))
            work = replace(self, sides=(first, second))
            saved = stack.enter_context(self.session.resumable(work.identity, plan.decisive()))
            # The test comes first: glibc returns memory that this thread has freed, but not that of a pass's threads.
            permuted = work.permute(plan)
            hand_back()
            estimates, widths = work.estimate(plan, None if saved is None else saved.stage("dependence"))
        return work.result(plan, estimates, widths, permuted)

    def identity(self) -> Mapping[str, Any]:
        """Return the facts that must be unchanged for an unfinished run to be resumed."""
        # The identities of the sides contain the kernels with estimated parameters.
        other = ("memory", "kernel", "gamma", "y_kernel", "y_gamma")
        identity = {name: value for name, value in vars(self.request).items() if name not in other}
        for name, side in zip("xy", self.sides, strict=True):
            states = states_by_name(side.collection.states())
            identity |= {f"{name}, {key}": value for key, value in (side.identity | states).items()}
        return {"work": "hsic", **identity}

    def estimate(self, plan: HsicPlan, stage: StageCheckpoint | None) -> tuple[Estimates, tuple[int, int] | None]:
        """Return both estimates, and the numbers of features of both sides; None for exact kernels."""
        collection, widths = self.sides[0].collection, None
        task: Any = KernelTiles(self.sides, plan.block_rows)
        if plan.method != "exact":
            maps = self.maps(plan.method)
            widths = maps[0].n_features, maps[1].n_features
            indices = drawn(collection.n_samples, CENTRE_ROWS, self.random(CENTRE))
            x_centre, y_centre = (rows.mean(axis=0) for rows in self.features(maps, indices, CENTRE_ROWS))
            task = MappedPairs(self.sides, plan.block_rows, maps, (x_centre, y_centre), plan.piece_rows)
        started = PassStarted("dependence", 1, 1, collection.n_samples, collection.n_samples * task.row_bytes)
        with reported(self.session.listener, started):
            sums: KernelSums | CrossMoments = self.session.executor.fold(
                task,
                plan.spans,
                lambda left, right: left.absorb(right),
                threads=plan.threads,
                ahead=plan.ahead,
                listener=self.session.listener,
                checkpoint=stage,
            )
        hand_back()
        estimates = sums.estimates()
        # A kernel such as "poly" overflows for large samples, which only the sums show.
        if not np.isfinite(estimates).all():
            raise DataError("the kernel of some samples is NaN or infinite; give a smaller gamma or degree.")
        return estimates, widths

    def maps(self, method: str) -> tuple[SideMap, SideMap]:
        """Return the feature maps of both sides."""
        sides = zip(self.sides, MAPS, strict=True)
        first, second = (side.feature_map(method, self.request, self.random(use)) for side, use in sides)
        return first, second

    def features(
        self, maps: tuple[SideMap, SideMap], indices: npt.NDArray[np.intp], rows: int
    ) -> tuple[Float64, Float64]:
        """Return the features of samples with ascending indices, mapping `rows` samples at a time."""
        mapped = []
        for side, map_ in zip(self.sides, maps, strict=True):
            features = np.empty((len(indices), map_.n_features))
            for span in blocks_of(Span(0, len(indices)), rows):
                features[slice(*span)] = map_(side.read_rows(indices, slice(*span)))
            mapped.append(features)
        return mapped[0], mapped[1]

    def permute(self, plan: HsicPlan) -> Permuted | None:
        """Return the criterion of permuted samples by the plan's test; None without a test."""
        if plan.test == "none":
            return None
        count, estimator, n = self.request.permutations, self.request.estimator, self.sides[0].collection.n_samples
        self.session.listener(Solving(plan.tested))
        if plan.test == "exact":
            matrices = np.empty((2, n, n))
            for first, second, tiles in KernelTiles(self.sides, plan.test_rows).all_tiles():
                safe_point()
                for matrix, tile in zip(matrices, tiles, strict=True):
                    matrix[slice(*first), slice(*second)] = tile
                    matrix[slice(*second), slice(*first)] = tile.T
            return permuted_kernels(matrices, count, estimator, self.random(ORDER))
        indices = drawn(n, plan.test_samples, self.random(TEST))
        features = self.features(self.maps("landmarks"), indices, plan.test_rows)
        return permuted_features(*features, count, estimator, self.random(ORDER))

    def result(
        self, plan: HsicPlan, estimates: Estimates, widths: tuple[int, int] | None, permuted: Permuted | None
    ) -> HSIC:
        """Return both estimates with the outcome of the test."""
        first, second = self.sides
        return HSIC(
            **estimates._asdict(),
            estimator=self.request.estimator,
            p_value=None if permuted is None else permuted.p_value,
            null=np.empty(0) if permuted is None else permuted.null,
            observed=None if permuted is None else permuted.observed,
            n_samples=first.collection.n_samples,
            sources=(first.collection.source, second.collection.source),
            kernels=(str(first), str(second)),
            gammas=(first.gamma, second.gamma),
            method=plan.method,
            widths=widths,
            test=plan.tested,
            plan=plan,
        )
