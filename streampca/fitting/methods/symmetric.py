"""Method for a matrix of pairs of samples: eigenpairs of B = H A H, H = I - (1/n) 1 1^T.

A is -1/2 D^2, squared entry by entry, for a matrix D of distances, or the matrix of a kernel itself.

If the matrix fits in memory, all eigenvalues are computed; otherwise block Lanczos multiplies it with blocks of
vectors, pass after pass (`streampca.accumulators.SymmetricBlock`). B can have negative eigenvalues: distances are then
not those of points in any Euclidean space, and a matrix of inner products is refused. The sum of the negative
eigenvalues is computed if all are known, and otherwise bounded by the Ritz values and by the trace and the Frobenius
norm of B, which one pass measures.

The components are the eigenvectors U, their variances are eigenvalues over n - 1, and the mean is that of the columns
of A: a sample with squared distances d to the fitted ones is placed at Lambda^-1/2 U^T (-1/2 d - mean) (Gower, 1968).

Cost: 2 n^2 l flops a pass for a block of l vectors; 16/3 n^3 for a dense solve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...accumulators import EntryError, SymmetricBlock, SymmetricRows, sample_directions
from ...accumulators.gram_probes import remove_mean_part
from ...accumulators.symmetric_block import MatrixMeasures, entries_of, tolerance_of
from ...arrays import Float64
from ...eigensolvers import (
    Certificate,
    Solution,
    certificate_of,
    certify,
    product_bounds,
    solve_dense,
    start_lanczos,
    value_bounds,
)
from ...errors import DataError
from ...events import Listener, PassStarted, Solving
from ...machine import hand_back
from ...planning import Plan
from ...planning.blocks import Span, blocks_of
from ...planning.rates import solve_work
from ...units import counted
from .data_checks import check_variance
from .job import Decomposition, Job
from .lanczos_iteration import MOST_PASSES, STAGE, LanczosIteration, beginning
from .leading_pairs import chosen_of, wanted_of
from .tasks import SamplesTask

EPS = float(np.finfo(np.float64).eps)
LOOKED_AT = 8  # rows compared with their columns if products show that the matrix is not symmetric
SKEW = 1e-13  # rounding of A w - A^T w, relative to the largest entry, for each row
LEAST_NORM = 1e-280  # squared norm of B below which squares of its eigenvalues lose digits
_STREAM = 8  # distinguishes these random numbers from others of the same seed


def fit_symmetric(job: Job) -> Decomposition:
    """Carry out a plan of method 'symmetric'.

    Raises
    ------
    DataError
        If an entry is not finite, or differs from the transposed one; if a distance is negative, or not 0 on the
        diagonal; if a kernel has negative eigenvalues; or if no eigenvalue is above 0.
    """
    try:
        return _solved(job) if job.plan.solver == "dense" else _iterated(job)
    except EntryError as error:
        source, (row, column) = job.collection.source, (error.row, error.column)
        expected = "distances, with zeros on its diagonal" if _is_of_distances(job) else "inner products"
        raise DataError(
            f"entry ({row}, {column}) of {source}, counted from 0, {error.problem}; give a symmetric matrix of "
            f"{expected}."
        ) from None


@dataclass(frozen=True)
class Spectrum:
    """Sums over all eigenvalues of B, and bounds on the sum of the negative ones.

    Attributes
    ----------
    trace, norm_squared : float
        Sum of the eigenvalues, and of their squares.
    smallest : float
        Smallest eigenvalue, or the smallest Ritz value, which is at least as large.
    least_negative, most_negative : float
        Bounds on the sum of the absolute values of negative eigenvalues; equal if all are known.
    about_negative : float or None
        Estimate of this sum between the bounds, if any.
    """

    trace: float
    norm_squared: float
    smallest: float
    least_negative: float
    most_negative: float
    about_negative: float | None = None

    @property
    def total(self) -> float:
        """Lower bound on the sum of the absolute values of all eigenvalues."""
        return self.trace + 2 * self.least_negative

    @property
    def shares(self) -> Float64:
        """Bounds on the share of negative eigenvalues in the sum of absolute values, (2,)."""
        return np.array([self._share(self.least_negative), self._share(self.most_negative)])

    @property
    def estimated_share(self) -> float | None:
        """Estimate of the share of negative eigenvalues, if any."""
        return None if self.about_negative is None else self._share(self.about_negative)

    def _share(self, negative: float) -> float:
        return min(max(negative / (self.trace + 2 * negative), 0.0), 1.0)

    @classmethod
    def known(cls, values: Float64) -> Spectrum:
        """Return the spectrum, given all eigenvalues, descending."""
        negative = float(np.abs(values[values < 0]).sum())
        return cls(float(values.sum()), float(values @ values), float(values[-1]), negative, negative, negative)


# -- the matrix in memory


def _solved(job: Job) -> Decomposition:
    """Read the whole matrix into memory, and solve it."""
    plan, n = job.plan, job.collection.n_samples
    new = partial(SymmetricRows, n, distances=_is_of_distances(job))
    task = SamplesTask.of(job, new, partial(SymmetricRows.from_state, copy=False))
    with job.reporting_pass(PassStarted("matrix", 1, 1, n, plan.bytes_read)):
        matrix = task.fold(job, job.checkpoint("rows")).matrix
    check_symmetric(matrix, tolerance_of(job.collection.dtype))
    largest = max(float(matrix.max()), -float(matrix.min()))
    # Centre on both sides, in place.
    mean: Float64 = matrix.mean(axis=0)
    matrix -= mean
    matrix -= matrix.mean(axis=1)[:, None]
    _check_kernel(float(np.trace(matrix)) / n, largest, job)
    check_variance(float(np.trace(matrix)), job.collection.source, plan)
    _check_norm(float(np.einsum("ij,ij->", matrix, matrix)), job)
    directions = sample_directions(np.ones(n), plan.request.seed)
    products = remove_mean_part(matrix @ directions, np.ones(n))
    seconds = solve_work(n, "dense").seconds(plan.cores, rates=plan.rates)
    job.listener(Solving(f"eigenvectors of a {n} x {n} matrix", seconds))
    solution = solve_dense(
        lambda: np.array(matrix, order="F"), wanted_of(plan), most=n - 1, room=plan.dense_room, signed=True
    )
    _warn_of_few(len(solution.values), job)
    eigenvalues = np.asarray(solution.spectrum)
    values = np.delete(eigenvalues, np.argmin(np.abs(eigenvalues)))  # without the eigenvalue 0 of the vector of ones
    spectrum = Spectrum.known(values)
    _check_kernel(spectrum.smallest, largest, job)
    # A fraction is of the sum of positive eigenvalues.
    chosen = chosen_of(solution, spectrum.trace + spectrum.least_negative, plan, job.listener)
    after = float(values[len(chosen.values)]) if len(chosen.values) < len(values) else -np.inf
    certificate = certify(chosen.values, chosen.vectors, directions=directions, products=products, next_value=after)
    return replace(_decomposed(job, chosen, certificate, mean, spectrum), eigenvalues=values / (n - 1))


def check_symmetric(matrix: Float64, tolerance: float) -> None:
    """Refuse a matrix that differs from its transpose by more than a share of its largest entry.

    Raises
    ------
    EntryError
        If it does; names the first entry.
    """
    allowed = tolerance * max(float(matrix.max()), -float(matrix.min()))
    for rows in blocks_of(Span(0, len(matrix)), 256):
        off = np.abs(matrix[slice(*rows)] - matrix[:, slice(*rows)].T)
        if off.max() > allowed:
            row, column = np.unravel_index(int(np.argmax(off)), off.shape)
            raise _asymmetric(rows.start + int(row), int(column))


def _asymmetric(row: int, column: int) -> EntryError:
    return EntryError(row, column, f"is not equal to entry ({column}, {row})")


# -- the matrix read pass after pass


@dataclass(kw_only=True)
class AlongRows(LanczosIteration[SymmetricBlock]):
    """Iteration on B.

    Attributes
    ----------
    mean : ndarray of shape (n,) or None
        Means of the columns of A; None until they are measured.
    norm_squared : float
        Sum of the squares of the eigenvalues of B, times the square of the scale.
    largest : float
        Largest absolute value of an entry of A.
    """

    mean: Float64 | None = None
    norm_squared: float = 0.0
    largest: float = 0.0

    def _learn(self, found: SymmetricBlock, job: Job, *, may_continue: bool) -> None:
        """Store a pass, see `LanczosIteration`; refuse a matrix that is not symmetric, or not of inner products."""
        measured = found.probes()
        if measured is not None:
            check_skew(measured, job)
            _check_kernel(measured.trace / len(measured.means), measured.largest, job)
        super()._learn(found, job, may_continue=may_continue)

    def _measure(self, found: SymmetricBlock, job: Job) -> None:
        """Store the measures of the first pass; refuse a matrix with entries that are too small."""
        measured = found.probes()
        assert measured is not None  # noqa: S101 - called for measured passes only
        _check_norm(measured.norm_squared, job)
        self.products, self.mean = measured.products * self.scale, measured.means
        self.norm_squared, self.largest = measured.norm_squared * self.scale**2, measured.largest

    def step(self, product: Float64, listener: Listener, *, may_continue: bool) -> None:
        """Extend the basis, see `LanczosIteration.step`; make the next block orthogonal to the vector of ones."""
        super().step(product, listener, may_continue=may_continue)
        block = self.solver.wants
        block[...] = remove_mean_part(block, np.ones(len(block)))

    def _with_direction(self, solution: Solution, job: Job) -> Solution:
        """Return the pairs with positive eigenvalues above rounding."""
        count, converged = self._directions(solution, self.solver), self.solver.solution is not None
        _warn_of_few(count, job, after=None if converged else self.passes)
        if count == len(solution.values):
            return solution
        return replace(solution.first(count), next_value=0.0) if converged else solution.first(count)

    def spectrum(self) -> Spectrum:
        """Bound the sum of negative eigenvalues by the projected matrix, the trace and the Frobenius norm.

        With B = [[T, C^T], [C, R]] in a basis, the sum of absolute values of negative eigenvalues is at least that of
        T, and at most that of T plus the singular values of C plus the maximum for the trace and the norm of R.
        """
        values, (residual_norm, across) = self._values, self._residual_norms()
        n_rest = len(self.solver.columns) - 1 - self.solver.known
        of_basis = float(np.abs(values[values < 0]).sum())
        rest = self.trace - float(values.sum())
        # Eigenvalues of R with sum `rest` have absolute values that sum to at most the root of their number times the
        # norm.
        of_rest = max(0.0, (max(n_rest, 0) ** 0.5 * residual_norm - rest) / 2)
        # Positive Ritz values above the trace need negative eigenvalues to balance them.
        least = max(of_basis, float(values[values > 0].sum()) - self.trace, 0.0)
        nuclear = float(np.linalg.svd(self.solver.coupling, compute_uv=False).sum()) if across else 0.0
        most, about, unscaled = of_basis + nuclear + of_rest, self._about_negative(), 1 / self.scale
        return Spectrum(
            trace=self.trace * unscaled,
            norm_squared=self.norm_squared * unscaled**2,
            smallest=float(values[-1]) * unscaled,
            least_negative=least * unscaled,
            most_negative=most * unscaled,
            about_negative=None if about is None else min(max(about, least), most) * unscaled,
        )

    def _about_negative(self) -> float | None:
        """Estimate the sum of the absolute values of negative eigenvalues by Gauss quadrature from the random block.

        Stochastic Lanczos quadrature: for a function f, tr f(B) is about (n - 1) / l times the sum of f(theta) times
        the squared lengths of the Ritz vectors' parts in the first l columns of the basis (Ubaru, Chen and Saad, 2017).
        None if the basis was restarted, and begins with other columns.
        """
        solver = self.solver
        if self.passes * solver.width > solver.limit:
            return None
        values, ritz = solver.krylov.ritz
        weights = np.square(ritz[: solver.width]).sum(axis=0)
        return float(weights @ np.maximum(-values, 0.0)) * (len(solver.columns) - 1) / solver.width

    def outside(self, count: int) -> float:
        """Bound the largest eigenvalue outside the leading pairs, by the Frobenius norm of B."""
        values, (residual_norm, _) = self._values, self._residual_norms()
        if count >= len(values):
            return residual_norm
        _, ritz = self.solver.krylov.ritz
        unclaimed = self.solver.coupling @ ritz[:, count:]
        across = float(np.linalg.norm(unclaimed, 2)) if unclaimed.size else 0.0
        inside = float(values[count])
        # As in `RestOfBasis`: the largest eigenvalue of the matrix of the blocks' norms.
        return (inside + residual_norm) / 2 + float(np.hypot((inside - residual_norm) / 2, across))

    def certified(self, solution: Solution, seed: int) -> tuple[Certificate, float, Float64]:
        """Return residuals, a bound on the largest eigenvalue outside, and bounds on the eigenvalues' errors."""
        return self.once(len(solution.values), lambda: self._certified(solution, seed))

    def _certified(self, solution: Solution, seed: int) -> tuple[Certificate, float, Float64]:
        if self.products is None:
            raise AssertionError("no pass has measured anything")
        values, count = solution.values, len(solution.values)
        directions, outside = sample_directions(np.ones(len(self.solver.columns)), seed), self.outside(count)
        wrong = self.wrong(directions, count)
        sketched = certify(values, solution.vectors, directions=directions, products=self.products).residual
        residual = np.minimum(sketched, solution.residuals + wrong)
        certificate = certificate_of(values, residual, next_value=outside)
        return certificate, outside, value_bounds(values, residual, outside, wrong)

    def asked_bounds(self, solution: Solution, plan: Plan) -> Float64:
        """See `LanczosIteration`."""
        certificate, _, bounds = self.certified(solution, plan.request.seed)
        return certificate.relative if plan.request.tol_variance is None else bounds / solution.values

    @property
    def _values(self) -> Float64:
        """Ritz values, descending."""
        return self.solver.krylov.ritz[0]

    def _residual_norms(self) -> tuple[float, float]:
        """Return the Frobenius norms of R and of C."""
        values, across = self._values, float(np.linalg.norm(self.solver.coupling)) if self.solver.coupling.size else 0.0
        # |B|^2 = |T|^2 + 2 |C|^2 + |R|^2.
        squares = self.norm_squared - float(values @ values) - 2 * across**2
        return max(squares, 1e-15 * self.norm_squared) ** 0.5, across

    def wrong(self, directions: Float64, count: int) -> Float64:
        """Bound the errors of the products from which the leading pairs were computed."""
        if self.products is None:
            raise AssertionError("no pass has measured anything")
        solver = self.solver
        values, ritz = solver.krylov.ritz
        along = (solver.basis.T @ directions).T @ ritz[:, :count] * values[:count]
        residual = (directions.T @ solver.wants) @ (solver.coupling @ ritz[:, :count])
        return product_bounds((solver.basis.T @ self.products).T @ ritz[:, :count], along + residual)


def _iterated(job: Job) -> Decomposition:
    """Multiply the matrix with blocks of vectors until the requested pairs have converged."""
    iteration, most = _initial(job), job.plan.request.max_passes or MOST_PASSES
    chosen = iteration.chosen(iteration.iterate(job, most, lambda: _pass(iteration, job)), job)
    if iteration.mean is None:
        raise AssertionError("no pass has measured anything")
    values, scale = chosen.values, iteration.scale
    certificate, outside, bounds = iteration.certified(chosen, job.plan.request.seed)
    if not iteration.is_settled(certificate.relative, bounds / values, job.plan):
        job.warn(iteration.unsettled(certificate.relative, bounds / values, job.plan))
    spectrum = iteration.spectrum()
    _check_kernel(spectrum.smallest, iteration.largest, job)
    return replace(
        _decomposed(job, chosen.scaled(1 / scale), certificate, iteration.mean, spectrum),
        passes=iteration.passes,
        outside=outside / scale / (job.collection.n_samples - 1),
        error_bound=bounds / values,
    )


def _initial(job: Job) -> AlongRows:
    """Return the iteration from a random block, or from its checkpoint."""
    plan, begin, state = job.plan, beginning(job), job.saved(STAGE)
    if state is not None:
        return AlongRows.from_state(state, begin)
    n = plan.problem.n_samples
    block = np.random.default_rng([_STREAM, plan.request.seed]).standard_normal((n, plan.width))
    solver = start_lanczos(n, start=remove_mean_part(block, np.ones(n)), **begin)
    del block
    hand_back()
    return AlongRows(solver=solver, precision=plan.precision)


def _pass(iteration: AlongRows, job: Job) -> SymmetricBlock:
    """Read all rows, and multiply the solver's block."""
    plan, block = job.plan, iteration.block
    how: dict[str, Any] = {"product_rows": plan.product_rows, "seed": plan.request.seed}
    how |= {"distances": _is_of_distances(job), "measures": iteration.products is None}
    device = plan.request.device
    restored = partial(SymmetricBlock.from_state, vectors=block, copy=False, device=device)
    task = SamplesTask.of(job, partial(SymmetricBlock, block, device=device, **how), restored)
    label, n = f"products with {block.shape[1]} vectors", plan.problem.n_samples
    with job.reporting_pass(PassStarted(label, iteration.passes + 1, None, n, job.collection.nbytes)):
        return task.fold(job, iteration.checkpoint(job))


def check_skew(found: MatrixMeasures, job: Job) -> None:
    """Refuse a matrix whose products with random directions show that it is not symmetric, naming an entry.

    To find the entry, only the rows that differ most from their columns are compared with these.

    Raises
    ------
    EntryError
        If an entry differs from the transposed one by more than rounding.
    """
    collection, n, off = job.collection, len(found.skew), np.abs(found.skew)
    allowed = tolerance_of(collection.dtype) * found.largest
    for place in np.argsort(off)[::-1][:LOOKED_AT].tolist():
        if off[place] <= SKEW * n * found.largest:
            return
        # A column is read from all rows, block by block.
        column = np.concatenate(
            [
                collection.read(slice(*rows), slice(place, place + 1))
                for rows in blocks_of(Span(0, n), job.plan.block_rows)
            ]
        )
        row = collection.read(slice(place, place + 1))
        distances = _is_of_distances(job)
        differences = np.abs(entries_of(row, distances=distances)[0] - entries_of(column, distances=distances)[:, 0])
        if differences.max() > allowed:
            raise _asymmetric(place, int(np.argmax(differences)))


# -- shared by both


def _check_norm(norm_squared: float, job: Job) -> None:
    """Refuse entries so small that squares of eigenvalues do not fit float64."""
    if norm_squared < LEAST_NORM:
        raise DataError(
            f"{job.collection.source} holds numbers so small that float64 does not hold their powers; multiply all by "
            "a factor such as 1e100."
        )


def _check_kernel(bound: float, largest: float, job: Job) -> None:
    """Refuse a matrix of inner products with an eigenvalue that is negative beyond errors of its entries.

    `bound` is an upper bound on the smallest eigenvalue: a Ritz value, or the mean of all eigenvalues.
    """
    if _is_of_distances(job):
        return
    allowed = max(tolerance_of(job.collection.dtype), EPS) * job.collection.n_samples * largest
    if bound < -allowed:
        raise DataError(
            f"{job.collection.source} has an eigenvalue of {bound:.3g} or less, with entries of up to {largest:.3g}; "
            "give a matrix of inner products, which has none below 0, or one of distances with --metric precomputed "
            "(metric='precomputed')."
        )


def _is_of_distances(job: Job) -> bool:
    """Return whether entries are distances, not inner products."""
    return job.plan.request.metric == "precomputed"


def _warn_of_few(count: int, job: Job, *, after: int | None = None) -> None:
    """Warn if too few eigenvalues are positive, `after` a number of passes if more may follow."""
    asked = job.plan.request.n_components
    if isinstance(asked, int) and count < asked:
        rest = "there are no more" if after is None else f"{counted(after, 'pass')} found no more"
        job.warn(
            f"{job.collection.source} has {count} positive eigenvalues above rounding among those found, and "
            f"{asked} dimensions were asked for; {rest}."
        )


def _decomposed(
    job: Job, solution: Solution, certificate: Certificate, mean: Float64, spectrum: Spectrum
) -> Decomposition:
    """Return the decomposition of pairs of B, with the bounds of their certificate."""
    n = job.collection.n_samples
    measured = {
        "trace": spectrum.trace,
        "frobenius_norm": spectrum.norm_squared**0.5,
        "smallest_eigenvalue": spectrum.smallest,
        "estimated_negative_share": spectrum.estimated_share,
        "all_eigenvalues": job.plan.solver == "dense",
        "residual": float(np.max(solution.residuals / solution.values, initial=0.0)),
    }
    return Decomposition(
        mean=mean,
        components=np.ascontiguousarray(solution.vectors.T),
        explained_variance=solution.values / (n - 1),
        residual_bound=certificate.relative,
        angle_bound=certificate.angle,
        total_variance=spectrum.total / (n - 1),
        n_samples=n,
        total_weight=n,
        measured={"matrix": measured},
        kind="classical-mds-of-pairs",
        own_fields={"from_distances": _is_of_distances(job), "negative_share": spectrum.shares},
    )
