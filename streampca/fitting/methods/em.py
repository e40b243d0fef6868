"""Method for missing values: probabilistic PCA by EM, started from mean imputation.

A step regresses every feature on the scores of latent variables, over the samples in which it is observed, in one read
of the collection, or in one read for each range of features (`streampca.accumulators.ObservedRegression`). By their
estimated mean and covariance, latent variables are then rotated and scaled so that loadings are orthonormal and the
covariance is diagonal (parameter-expanded EM; Liu, Rubin & Wu, Biometrika 85, 1998), which needs fewer steps.

The result is the most likely model of the observed values, not a solution of an eigenproblem: no residual bounds its
error. Instead, the error of predicting held-out values is measured.

Cost: about 2 n p l^2 + n l^3 flops a step, for l latent variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from scipy.linalg import eigh, qr

from ...accumulators import ObservedRegression
from ...accumulators.plain_state import as_arrays, as_values
from ...accumulators.products import products_on
from ...arrays import Array, Float64
from ...eigensolvers import Solution, count_components
from ...eigensolvers.signs import fix_signs
from ...errors import DataError
from ...events import Converging, PassStarted, Solving
from ...execution.checkpoint import StageCheckpoint
from ...execution.threads import one_blas_thread
from ...machine import hand_back
from ...planning.blocks import Span, blocks_of
from ...planning.em import sample_rows
from ...planning.memory import SOLVED_FEATURES
from ...signals import safe_point
from ...units import counted, counted_passes
from .data_checks import check_orthonormal, check_variance
from .job import Decomposition, Job, stored_dtype
from .leading_pairs import chosen_of, wanted_of
from .randomized_start import sample_runs
from .tasks import SamplesTask

MOST_STEPS = 50  # default number of steps
STAGE = "em"  # name of the checkpoint between passes
LEAST_NOISE = {"single": 1e-9, "double": 1e-14}  # relative to the mean variance of a feature, above rounding
RIDGE = 1e-10  # relative increase of the diagonal of normal equations, which few samples can leave singular
MEASURE = "share of the components' variance that turned"
LEAST_STEPS = 2
ROUNDED = 1e-13  # share of missing values up to which rounding explains it
_STREAM = 6  # distinguishes these random numbers from others of the same seed


@dataclass(kw_only=True)
class EMIteration:
    """State of the iteration: the model, and the part of the next one that is already regressed.

    Attributes
    ----------
    vectors, variances, noise, centre : ndarray of shape (p, l), (l,), float, ndarray of shape (p,)
        V, L, s2 and m of the model, see `ObservedRegression`.
    next_vectors, next_centre : ndarray of shape (p, l), (p,)
        Regressions of the first `done` features on the scores of this model.
    done : int
        Features regressed so far in this step.
    squares, explained, observed : float
        Sums over these features: squares about the centre, squares that regressions explain, and observed values, all
        weighted.
    passes, steps : int
        Reads of the collection, and complete steps.
    turned : float
        Share of the components' variance that lay outside them before the last step; infinite before the first.
    n_samples, weight : int, float
        Samples of nonzero weight with any value, and the sum of their weights.
    total : float
        Sum of all eigenvalues of the model's covariance, before small noise is raised to `LEAST_NOISE`.
    missing : float
        Share of missing values in all samples of nonzero weight.
    held : ndarray of shape (3,)
        Number of held-out values, and sums of their squared errors by the model before the last step and by the mean;
        see `ObservedRegression`.
    count : int
        Number of leading components that decide convergence; 0 for all latent variables.
    """

    vectors: Float64
    variances: Float64
    noise: float
    centre: Float64
    next_vectors: Float64
    next_centre: Float64
    done: int = 0
    squares: float = 0.0
    explained: float = 0.0
    observed: float = 0.0
    passes: int = 0
    steps: int = 0
    turned: float = np.inf
    n_samples: int = 0
    weight: float = 0.0
    total: float = 0.0
    missing: float = 0.0
    held: Float64
    count: int = 0

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return everything as plain arrays; without `copy` the arrays in use."""
        arrays = as_arrays(vars(self))
        return {name: array.copy() if copy else array for name, array in arrays.items()}

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Self:
        """Return the iteration whose state this is."""
        return cls(**as_values(state))

    @property
    def eigenvalues(self) -> Float64:
        """Leading eigenvalues of the model's covariance, V L V^T + s2, descending."""
        return self.variances + self.noise

    @property
    def trace(self) -> float:
        """Sum of all eigenvalues of the model's covariance."""
        return float(self.variances.sum()) + len(self.centre) * self.noise

    @property
    def held_out(self) -> dict[str, float | int | None]:
        """Errors of predicting held-out values by the model and by the mean; None if there are none."""
        count, missed, squares = self.held.tolist()
        errors = (None, None) if not count else ((missed / count) ** 0.5, (squares / count) ** 0.5)
        return {"values": int(count), "rmse": errors[0], "rmse_of_mean": errors[1]}

    def is_settled(self, tol: float) -> bool:
        """Return whether the last step was complete and turned the components by at most a tolerance."""
        return self.done == 0 and self.steps >= LEAST_STEPS and self.turned <= tol

    def checkpoint(self, job: Job) -> StageCheckpoint | None:
        """Return the checkpoint of the next pass, after saving the iteration that the pass belongs to."""
        checkpoint = job.checkpoint("regression")
        if checkpoint is not None:
            # The pass and the iteration are saved under one number, so that they are resumed together.
            checkpoint.number = self.passes + 1
            checkpoint.save_first(STAGE, self.passes, self)
        return checkpoint

    def learn(self, found: ObservedRegression) -> None:
        """Regress the features of a pass; after the last features, form the next model."""
        self.passes += 1
        # On narrow matrices, threads wait for one another or for a core longer than they compute: on a busy machine, a
        # QR decomposition of 560 x 25 took 0.4 s, and 0.3 ms in one thread.
        with one_blas_thread():
            self._regress(found)
            self.squares += found.squares
            self.done = found.features.stop
            if self.done == len(self.centre):
                self._step(found)

    def _regress(self, found: ObservedRegression) -> None:
        """Solve the normal equations of a range of features."""
        width, first = found.width, found.features.start
        upper = np.triu_indices(width)
        for tile in blocks_of(found.features, SOLVED_FEATURES):
            safe_point()
            equations, features = slice(tile.start - first, tile.stop - first), slice(*tile)
            sums, sides = found.moments[equations], found.products[equations]
            # Unknowns of each feature: its row of V and its mean; moments fill the symmetric normal equations.
            matrix = np.zeros((tile.size, width + 1, width + 1))
            matrix[:, upper[0], upper[1]] = matrix[:, upper[1], upper[0]] = sums[:, : len(upper[0])]
            matrix[:, :-1, -1] = matrix[:, -1, :-1] = sums[:, len(upper[0]) : -1]
            matrix[:, -1, -1] = sums[:, -1]
            # A view: the next two lines change the matrices.
            diagonal = np.einsum("nii->ni", matrix)
            diagonal *= 1 + RIDGE
            diagonal[diagonal == 0] = 1  # a feature whose few values were all held out
            solved = np.linalg.solve(matrix, sides[..., None])[..., 0]
            self.next_vectors[features] = solved[:, :-1]
            self.next_centre[features] = found.centre[features] + solved[:, -1]
            self.explained += float(np.einsum("ij,ij->", solved, sides))
            self.observed += float(sums[:, -1].sum())

    def _step(self, found: ObservedRegression) -> None:
        """Form the next model from all regressions, with orthonormal vectors and diagonal covariance."""
        width, p = found.width, len(self.centre)
        upper, weight = np.triu_indices(width), found.weight or 1.0
        mean = found.score_moments[len(upper[0]) : -1] / weight
        second = np.zeros((width, width))
        second[upper] = second[upper[::-1]] = found.score_moments[: len(upper[0])] / weight
        # Covariance of the scores.
        second -= np.outer(mean, mean)
        # Scores get mean 0: their mean moves the centre.
        self.centre = self.next_centre + self.next_vectors @ mean
        # V' = Q R; with R C R^T = T M T^T for the scores' covariance C, the loadings Q T are orthonormal.
        basis, triangle = qr(self.next_vectors, mode="economic", overwrite_a=True, check_finite=False)
        values, turn = eigh(triangle @ second @ triangle.T)
        before, self.vectors = self.vectors, fix_signs(np.ascontiguousarray(basis @ turn[:, ::-1]))
        check_orthonormal(self.vectors)
        # Residual variance of the regressions, per observed value.
        noise = max(0.0, self.squares - self.explained) / (self.observed or 1.0)
        self.total = trace = float(np.maximum(values, 0).sum()) + p * noise
        # `ObservedRegression` needs a positive noise.
        self.noise = max(noise, LEAST_NOISE[found.precision] * trace / p) or 1.0
        self.variances = np.maximum(values[::-1], LEAST_NOISE[found.precision] * self.noise)
        self.next_vectors, self.next_centre = np.zeros_like(self.vectors), np.zeros(p)
        # Share of the leading components' variance outside the span of as many components before the step.
        count = self.count or len(self.variances)
        share = 1 - np.square(before[:, :count].T @ self.vectors[:, :count]).sum(axis=0)
        self.turned = float(max(0.0, share @ self.variances[:count] / self.variances[:count].sum()))
        self.n_samples, self.weight, self.held = found.n_samples, found.weight, found.held
        missing = 1 - found.observed / (p * (found.weight + found.empty or 1.0))
        self.missing = missing if missing > ROUNDED else 0.0
        self.steps += 1
        self.done, self.squares, self.explained, self.observed = 0, 0.0, 0.0, 0.0


def fit_em(job: Job) -> Decomposition:
    """Carry out a plan of method 'em'.

    Raises
    ------
    DataError
        If squares of values overflow, or all samples are equal.
    """
    iteration, plan = _initial(job), job.plan
    parts = list(blocks_of(Span(0, plan.problem.n_features), plan.product_features))
    # Whole steps only: a step needs a pass for each range of features.
    most = (plan.request.max_passes or MOST_STEPS * len(parts)) // len(parts) * len(parts)
    while iteration.passes < most and not iteration.is_settled(plan.request.tol):
        # Ranges of features take turns; scores always use all features.
        part = parts[iteration.passes % len(parts)]
        iteration.learn(_pass(iteration, part, job))
        hand_back()
        if iteration.done == 0:
            check_variance(iteration.total * iteration.weight, job.collection.source, plan)
            job.listener(
                Converging(iteration.passes, iteration.turned, plan.request.tol, MEASURE, _held_out_text(iteration))
            )
        checkpoint = job.checkpoint(STAGE)
        if checkpoint is not None:
            checkpoint.save_if_due(0, 0, iteration.passes, iteration)
    _warn(iteration, job)
    return _decomposed(iteration, job)


def _pass(iteration: EMIteration, features: Span, job: Job) -> ObservedRegression:
    """Read all samples, and accumulate the normal equations of a range of features."""
    plan = job.plan
    model = (iteration.vectors, iteration.variances, iteration.noise, iteration.centre)
    how: dict[str, Any] = {"precision": plan.precision, "product_rows": plan.product_rows, "seed": plan.request.seed}
    device = plan.request.device
    new = partial(ObservedRegression, *model, features=features, device=device, **how)
    restored = partial(ObservedRegression.from_state, vectors=iteration.vectors, copy=False, device=device)
    task = SamplesTask.of(job, new, restored)
    label, number = f"regressions on {plan.width} latent variables", iteration.passes + 1
    with job.reporting_pass(PassStarted(label, number, None, plan.problem.n_samples, job.collection.nbytes)):
        return task.fold(job, iteration.checkpoint(job))


def _initial(job: Job) -> EMIteration:
    """Return the iteration from its checkpoint, or started from components of a sample with mean imputation."""
    state, plan, source = job.saved(STAGE), job.plan, job.collection.source
    if state is not None:
        return EMIteration.from_state(state)
    job.listener(Solving(f"start vectors, from a sample of {source}"))
    width, p, n = plan.width, plan.problem.n_features, plan.problem.n_samples
    rows = _sampled(job, sample_rows(n, width))
    seen = np.isfinite(rows)
    np.copyto(rows, 0, where=~seen)
    counts, total = seen.sum(axis=0), rows.sum(axis=0, dtype=np.float64)
    # A feature without values in the sample starts from the mean of all values.
    centre = np.where(counts > 0, total / np.maximum(counts, 1), total.sum() / max(1, int(counts.sum())))
    # Mean imputation: missing values become 0 after centring.
    rows -= centre.astype(rows.dtype)
    np.copyto(rows, 0, where=~seen)
    del seen
    products = products_on(plan.request.device, rows.dtype, one_thread=True)
    block = products.block(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        gram = block.times(block.T).astype(np.float64) / max(1, len(rows))
    if not np.isfinite(gram).all():
        raise DataError(f"{source} holds values whose squares overflow; divide all samples by their largest value.")
    with one_blas_thread():
        values, turn = eigh(gram, check_finite=False)
    values, turn = values[::-1][:width], turn[:, ::-1][:, :width]
    kept = values > 1e-10 * max(values[0], np.finfo(float).tiny)
    # Random columns stand for directions that the sample lacks.
    vectors = np.random.default_rng([_STREAM, plan.request.seed]).standard_normal((p, width)) / p**0.5
    if kept.any():
        scaled = (turn[:, kept] / np.sqrt(len(rows) * values[kept])).astype(rows.dtype)
        vectors[:, : int(kept.sum())] = block.T.times(scaled)
    del block
    with one_blas_thread():
        vectors = qr(vectors, mode="economic", overwrite_a=True, check_finite=False)[0]
    trace = float(np.trace(gram)) or 1.0
    # The components of the sample can explain all its variance: keep at least a thousandth of it as noise.
    noise = max(trace - float(values.sum()), 1e-3 * trace) / p
    # Variances above the noise; latent variables beyond the sample's rank start with the noise.
    variances = np.full(width, noise)
    variances[: len(values)] = np.maximum(values - noise, noise)
    hand_back()
    empty: dict[str, Any] = {"next_vectors": np.zeros((p, width)), "next_centre": np.zeros(p), "held": np.zeros(3)}
    wanted = wanted_of(plan)
    count = wanted if isinstance(wanted, int) else 0
    return EMIteration(
        vectors=vectors, variances=np.sort(variances)[::-1], noise=noise, centre=centre, count=count, **empty
    )


def _sampled(job: Job, count: int) -> Array:
    """Read samples of nonzero weight, spread over the collection, in the precision of products."""
    collection = job.collection
    dtype = np.float64 if job.plan.precision == "double" else np.float32
    rows, filled = np.empty((count, collection.n_features), dtype), 0
    for run in sample_runs(collection.n_samples, count, collection.chunks.samples):
        read = collection.read(slice(*run))[: count - filled]
        if job.weights is not None:
            read = read[job.weights[run.start : run.start + len(read)] > 0]
        rows[filled : filled + len(read)] = read
        filled += len(read)
    if not filled and job.weights is not None:
        # All sampled runs had weight 0: one sample is enough to start from.
        first = int(np.argmax(job.weights > 0))
        rows[0], filled = collection.read(slice(first, first + 1))[0], 1
    return rows[:filled]


def _held_out_text(iteration: EMIteration) -> str:
    """Return a phrase on the errors of predicting held-out values."""
    errors = iteration.held_out
    if not errors["values"]:
        return ""
    return f"values held out predicted to {errors['rmse']:.4g} (RMS), by the mean to {errors['rmse_of_mean']:.4g}"


def _warn(iteration: EMIteration, job: Job) -> None:
    """Warn of useless components, samples without values, a collection without missing ones, and no convergence."""
    source, tol, empty = job.collection.source, job.plan.request.tol, _count_empty(iteration, job)
    # Squared errors of held-out values by the model, and by the mean.
    if iteration.held[1] > iteration.held[2]:
        job.warn(
            f"{_held_out_text(iteration)}, which is better: the components of {source} do not describe what is "
            "missing; ask for fewer components (-k, n_components=), or give more samples."
        )
    if empty:
        job.warn(f"{counted(empty, 'sample')} of {source} without any value {'is' if empty == 1 else 'are'} not used.")
    if iteration.missing == 0:
        job.warn(f"no value of {source} is missing; leave missing='em' out for exact components with error bounds.")
    if not iteration.is_settled(tol):
        reached = f"{iteration.turned:.1e}" if np.isfinite(iteration.turned) else "an unknown share"
        job.warn(
            f"the components have not converged after {counted_passes(iteration.passes)}: {reached} of their variance "
            f"changed direction in the last step, and tol is {tol:.1e}; allow more passes (--max-passes, max_passes=), "
            "or a larger --tol (tol)."
        )


def _count_empty(iteration: EMIteration, job: Job) -> int:
    """Count the samples of nonzero weight without any value."""
    counted_on = job.collection.n_samples if job.weights is None else int(np.count_nonzero(job.weights))
    return counted_on - iteration.n_samples


def _decomposed(iteration: EMIteration, job: Job) -> Decomposition:
    """Return the requested components of the iteration's model."""
    plan, weight = job.plan, iteration.weight
    # Maximum likelihood divides by n; variances of models by n - 1.
    scale = weight / (weight - 1) if weight > 1 else 1.0
    values, trace, wanted = iteration.eigenvalues, iteration.trace, wanted_of(plan, job.total_weight)
    count = count_components(values, trace, wanted) if isinstance(wanted, int | float) else len(values)
    if count is None:
        job.warn(
            f"{len(values)} components, the most that missing='em' finds for a fraction, hold "
            f"{float(values.sum()) / trace:.2%} of the variance, and {wanted:.2%} was asked for; these were kept. Ask "
            "for a larger number of components for the rest."
        )
    count = min(count or len(values), plan.room)
    solution = Solution(values[:count], iteration.vectors[:, :count], np.full(count, np.nan))
    chosen = chosen_of(solution, trace, plan, job.listener, full=False, total_weight=job.total_weight)
    unknown = np.full(len(chosen.values), np.nan)
    missing = {
        "share": iteration.missing,
        "latent_variables": plan.width,
        "empty_samples": _count_empty(iteration, job),
        "turned": iteration.turned,
        "noise_variance": iteration.noise * scale,
        "held_out": iteration.held_out,
    }
    return Decomposition(
        mean=iteration.centre,
        components=np.ascontiguousarray(chosen.vectors.T, dtype=stored_dtype(chosen.values, plan)),
        explained_variance=chosen.values * scale,
        residual_bound=unknown,
        angle_bound=unknown.copy(),
        total_variance=trace * scale,
        n_samples=iteration.n_samples,
        total_weight=weight,
        passes=iteration.passes,
        measured={"missing": missing},
    )
