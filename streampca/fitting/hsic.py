"""`hsic`: how far two collections depend on each other, by the Hilbert-Schmidt independence criterion.

References
----------
Gretton, Bousquet, Smola and Schölkopf (2005), Measuring statistical dependence with Hilbert-Schmidt norms.
Gretton, Fukumizu, Teo, Song, Schölkopf and Smola (2007), A kernel statistical test of independence.
Song, Smola, Gretton, Bedo and Borgwardt (2012), Feature selection via dependence maximization.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..accumulators import CrossMoments, KernelSums
from ..accumulators.kernel_sums import Estimates
from ..errors import DataError, RequestError
from ..events import Listener, PassStarted, Solving, check_listener, or_logged, reported
from ..execution import Executor, LocalExecutor
from ..execution.checkpoint import StageCheckpoint
from ..execution.executor import as_of
from ..execution.session import Session, run_session
from ..kinds.values import seed_of
from ..machine import hand_back
from ..planning.blocks import Span, blocks_of
from ..planning.hsic import DELTA, FEATURES, HsicPlan, HsicRequest, plan_hsic
from ..preprocessing import Preparation
from ..preprocessing.kernels import AUTO, Kernel
from ..preprocessing.run_options import OF_FITS, FitOptions, run_and_opening
from ..readers import Collection, open_collection
from ..readers.collection import states_by_name, unchanged
from ..signals import stopping_on_signals
from ..units import counted
from .hsic_tasks import Kernels, KernelTiles, MappedPairs, absorb_sums
from .kernel_sides import KernelSide, SideMap, checked, drawn, kernel_of, target_side
from .methods.job import one_span
from .permutation_test import Permuted, permuted_features, permuted_kernels
from .prepare import prepare

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
        names = ("biased", "unbiased", "estimator", "statistic", "p_value", "observed", "n_samples", "sources")
        more = ("kernels", "gammas", "method", "widths", "how", "test")
        found = {name: getattr(self, name) for name in (*names, *more)}
        found["permutations"] = len(self.null)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


@stopping_on_signals()
def hsic(
    x: Any,
    y: Any = None,
    *,
    target: Any = None,
    target_type: str = "auto",
    kernel: str | Kernel = "rbf",
    gamma: float | str | None = AUTO,
    y_kernel: str | Kernel | None = None,
    y_gamma: float | str | None = AUTO,
    method: str = "auto",
    estimator: str = "biased",
    landmarks: int | None = None,
    random_features: int = FEATURES,
    permutations: int = 200,
    test_samples: int = 10_000,
    random_state: Any = 0,
    preparation: Preparation | None = None,
    **options: Unpack[FitOptions],
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
    target_type : {"auto", "classes", "numbers"}, default="auto"
        What the target is taken for: as in `fit` for kind "supervised-pca", and numbers where `y_kernel` is given.
    kernel : str or Kernel, default="rbf"
        Kernel of x: a name, see `streampca.preprocessing.kernels.Kernel`, or a kernel with all parameters.
    gamma : float, "auto" or None, default="auto"
        Parameter of a kernel given by name. "auto" takes the median distance of a random sample of up to 1000 samples.
    y_kernel, y_gamma : optional
        Kernel of y, or of a target of numbers, and its parameter: "rbf" by default. Classes have the kernel "delta",
        which is 1 for two samples of one class and 0 else.
    method : {"auto", "exact", "landmarks", "fourier"}, default="auto"
        "exact" computes both kernel matrices, tile by tile; "landmarks" one pass with Nystroem features; "fourier" one
        pass with random features of kernels "rbf" and "laplacian". "auto" is exact up to 10000 samples, and takes
        landmarks beyond.
    estimator : {"biased", "unbiased"}, default="biased"
        Estimate that is the `statistic` and is tested; both are computed. The biased one is too large by about the
        mean of the test's null values, which is much of it where dependence is weak.
    landmarks : int, optional
        Number of random samples of each side; 200 by default, or all where there are fewer. Classes, and linear kernels
        of fewer features, need none and are exact.
    random_features : int, default=1024
        Number of Fourier features of each side for method "fourier", at quasi-random frequencies. Method "landmarks" is
        more accurate and faster for most data; Fourier features hold no samples.
    permutations : int, default=200
        Number of permutations of the test; 0 for none. The smallest p-value is 1 / (1 + permutations).
    test_samples : int, default=10000
        Largest number of samples permuted by features. Up to 2000 samples are permuted by their exact kernels.
    random_state : int, RandomState, Generator or None, default=0
        Seed of the random numbers: samples drawn, random features and permutations.
    preparation : Preparation, optional
        Steps applied to the samples of x.
    **options
        How it is carried out, see `streampca.Run`, and how x is opened, see `open_collection`.

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
    >>> found = streampca.hsic(digits[:200], target=load_digits().target[:200])
    >>> found.p_value < 0.05
    True
    """
    run, opening = run_and_opening(hsic, options, unused=(*OF_FITS, "output", "overwrite"))
    listener = or_logged(run.listener)
    check_listener(listener)
    request = HsicRequest(
        method,
        estimator,
        landmarks,
        random_features,
        permutations,
        test_samples,
        seed_of(random_state),
        run.budget,
        target_type=target_type,
    )
    first = KernelSide(
        prepare(
            open_collection(x, listener=listener, **opening),
            preparation,
            listener,
            memory=request.memory,
        ),
        kernel_of(kernel, gamma),
    )
    second = _second(y, target, first.collection, y_kernel, y_gamma, request, listener)
    with run_session("", run) as current:
        return HsicRun((first, second), request, current).carried_out()


def _second(
    y: Any,
    target: Any,
    collection: Collection,
    kernel: str | Kernel | None,
    gamma: float | str | None,
    request: HsicRequest,
    listener: Listener,
) -> KernelSide:
    """Return the side that a collection is compared with."""
    if (y is None) == (target is None):
        raise RequestError(
            "HSIC compares a collection with another (y), or with a label or number a sample (target); give one."
        )
    if getattr(y, "ndim", 0) == 1:
        y, target = None, y
    if kernel == DELTA:
        raise RequestError(
            "kernel 'delta' is of labels; give these as --target (target=) with --target-type classes "
            "(target_type='classes'), and leave the kernel out."
        )
    if target is not None:
        return target_side(target, collection, kernel, gamma, target_type=request.target_type, listener=listener)
    if request.target_type != "auto":
        raise RequestError(
            f"target_type {request.target_type!r} is of a target, and a collection is given (y); leave it out, or give "
            "--target (target=)."
        )
    other = prepare(open_collection(y), None)
    if other.n_samples != collection.n_samples:
        raise RequestError(
            f"{collection.source} has {collection.n_samples} samples and {other.source} has {other.n_samples}; give as "
            "many of both, in the same order."
        )
    return KernelSide(other, kernel_of(kernel or "rbf", gamma))


@dataclass(frozen=True)
class HsicRun:
    """One computation: sides, options, and the session in which it is carried out."""

    sides: tuple[KernelSide, KernelSide]
    request: HsicRequest
    session: Session

    @property
    def executor(self) -> Executor:
        """Executor of the pass over both sides."""
        return self.session.executor

    @property
    def listener(self) -> Listener:
        """Function that is told what happens."""
        return self.session.listener

    def random(self, what: int) -> np.random.Generator:
        """Return the stream of random numbers for one use, independent of the others."""
        return np.random.default_rng([self.request.random_state, what])

    def carried_out(self) -> HSIC:
        """Plan the computation, read the samples, and test."""
        executor, (first, second) = self.executor, self.sides
        request = replace(self.request, memory=self.request.memory or executor.memory, workers=max(1, executor.workers))
        with as_of(executor):
            plan = plan_hsic(first.sizes, second.sizes, request)
        for side in self.sides:
            executor.check(partial(side.collection.read, slice(0, 1)), plan.memory_estimate.total, self.listener)
        with ExitStack() as stack:
            for side in self.sides:
                stack.enter_context(unchanged(side.collection))
            sides = first.resolved(self.random(X)), second.resolved(self.random(Y))
            work = replace(self, sides=sides)
            with work.saved(plan) as stage:
                # The test comes first: glibc takes back what this thread freed, but not what the threads of a pass did.
                tested = work.tested(plan)
                hand_back()
                found, widths = work.estimated(plan, stage)
            return work.result(plan, found, widths, tested)

    @contextmanager
    def saved(self, plan: HsicPlan) -> Iterator[StageCheckpoint | None]:
        """Open the checkpoint of the pass, if there is to be one."""
        if self.session.checkpointing is None:
            yield None
            return
        identity: dict[str, Any] = {"version of streampca": __version__, "work": "hsic"}
        identity |= {name: value for name, value in vars(self.request).items() if name != "memory"}
        for name, side in zip("xy", self.sides, strict=True):
            states = states_by_name(side.collection.states())
            identity |= {f"{name}, {key}": value for key, value in (side.identity | states).items()}
        folder = self.session.checkpoint(identity)
        assert folder is not None  # noqa: S101 - checkpoints are asked for
        folder.begin(plan.decisive())
        with folder.running():
            yield folder.stage("dependence")

    def estimated(self, plan: HsicPlan, stage: StageCheckpoint | None) -> tuple[Estimates, tuple[int, int] | None]:
        """Return both estimates, and how many features they were computed by."""
        n, widths = self.sides[0].collection.n_samples, None
        if plan.method == "exact":
            tiles = KernelTiles(partial(KernelSums, n), KernelSums.from_state, self.sides, plan.block_rows)
            found: Any = self.folded(tiles, plan, stage)
        else:
            maps = self.maps(plan.method)
            widths = maps[0].n_features, maps[1].n_features
            pairs = MappedPairs(self.sides, maps, self.centres(maps), plan.block_rows, plan.piece_rows)
            found = self.folded(pairs, plan, stage)
        estimates: Estimates = found.estimates()
        if not np.isfinite(estimates).all():
            raise DataError("the kernel of some samples is NaN or infinite; give a smaller gamma or degree.")
        return estimates, widths

    def folded(self, task: Any, plan: HsicPlan, stage: StageCheckpoint | None) -> KernelSums | CrossMoments:
        """Fold a task over the plan's spans."""
        collection = self.sides[0].collection
        stored = collection.n_samples * sum(side.collection.row_bytes for side in self.sides)
        found: KernelSums | CrossMoments
        with reported(self.listener, PassStarted("dependence", 1, 1, collection.n_samples, stored)):
            found = self.executor.fold(
                task, plan.spans, absorb_sums, threads=plan.threads, ahead=plan.ahead, listener=self.listener,
                checkpoint=stage,
            )  # fmt: skip
        hand_back()
        return found

    def maps(self, method: str) -> tuple[SideMap, SideMap]:
        """Return the features of both sides."""
        one, other = (
            side.feature_map(method, self.request, self.random(what))
            for side, what in zip(self.sides, (X_MAP, Y_MAP), strict=True)
        )
        return one, other

    def centres(self, maps: tuple[SideMap, SideMap]) -> tuple[Float64, Float64]:
        """Return points near the means of the features of both sides."""
        places = drawn(self.sides[0].collection.n_samples, CENTRE_ROWS, self.random(CENTRE))
        one, other = (features.mean(axis=0) for features in self.features(maps, places, CENTRE_ROWS))
        return one, other

    def features(
        self, maps: tuple[SideMap, SideMap], places: npt.NDArray[np.intp], rows: int
    ) -> tuple[Float64, Float64]:
        """Return the features of some samples, by ascending places, mapped so many at a time."""
        found = []
        for side, map_ in zip(self.sides, maps, strict=True):
            some, made = side.some(places), np.empty((len(places), map_.n_features))
            for span in blocks_of(Span(0, len(places)), rows):
                made[slice(*span)] = map_(checked(some.read(slice(*span)), some, span.start))
            found.append(made)
        return found[0], found[1]

    def tested(self, plan: HsicPlan) -> Permuted | None:
        """Return the criterion of permuted samples, as the plan says; None without a test."""
        if plan.test == "none":
            return None
        count, estimator, n = self.request.permutations, self.request.estimator, self.sides[0].collection.n_samples
        self.listener(Solving(f"{counted(count, 'permutation')} of {_what_is_permuted(plan, n)}"))
        if plan.test == "exact":
            tiles = KernelTiles(partial(Kernels, n), Kernels.from_state, self.sides, plan.test_rows)
            whole = [Span(0, tiles.n_tiles)]
            kernels = LocalExecutor().fold(tiles, whole, one_span, listener=lambda event: None)
            return permuted_kernels(kernels.matrices, count, estimator, self.random(ORDER))
        places = drawn(n, plan.test_samples, self.random(TEST))
        features = self.features(self.maps("landmarks"), places, plan.test_rows)
        return permuted_features(*features, count, estimator, self.random(ORDER))

    def result(self, plan: HsicPlan, found: Estimates, widths: tuple[int, int] | None, tested: Permuted | None) -> HSIC:
        """Return both estimates with the outcome of the test."""
        (one, other), n = self.sides, self.sides[0].collection.n_samples
        return HSIC(
            biased=found.biased,
            unbiased=found.unbiased,
            estimator=self.request.estimator,
            p_value=None if tested is None else tested.p_value,
            null=np.empty(0) if tested is None else tested.null,
            observed=None if tested is None else tested.observed,
            n_samples=n,
            sources=(one.collection.source, other.collection.source),
            kernels=(str(one), str(other)),
            gammas=(one.gamma, other.gamma),
            method=plan.method,
            widths=widths,
            test=""
            if tested is None
            else f"{counted(len(tested.null), 'permutation')} of {_what_is_permuted(plan, n)}",
            plan=plan,
        )


def _what_is_permuted(plan: HsicPlan, n: int) -> str:
    if plan.test == "exact":
        return f"the exact kernels of all {n} samples"
    some = f"all {n} samples" if plan.test_samples == n else f"{plan.test_samples} of {n} samples, drawn at random"
    return f"Nystroem features of {some}"
