"""Block Lanczos with full re-orthogonalization and thick restart, by reverse communication.

The solver never sees the matrix: the caller multiplies the block `state.wants`, and `state.step(product)` returns the
next state, until `state.solution` is set. States are values made of plain arrays, so a run can be saved between
products, and a test drives the solver with a plain matrix in three lines::

    state = start_lanczos(p, wanted=10, total=np.trace(S), seed=0)
    while state.solution is None:
        state = state.step(S @ state.wants)

References
----------
G. H. Golub, R. Underwood, "The block Lanczos method for computing eigenvalues", Mathematical Software III, 1977.
K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", SIAM J. Matrix Anal. 22, 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh, qr

from .. import machine
from ..accumulators.plain_state import as_arrays, as_values
from ..arrays import Float64
from ..execution.threads import map_in_threads, one_blas_thread
from ..planning.blocks import spans_of
from ..planning.memory import FRACTION_SHARE, block_width
from .krylov_basis import KrylovBasis, ritz_pairs
from .n_components import Rule, Wanted, count_components
from .nystrom import nystrom_pairs
from .signs import fix_signs
from .solution import Solution

ROUNDING = 1e-14  # residuals below this share of the largest eigenvalue are rounding; smaller directions are dropped
SETTLED = 1e-2  # largest relative residual of a pair that is returned when the iteration ends early
GRAM_FLOOR = 1e-7  # smallest relative singular value: its square is well above the rounding of a float64 Gram matrix
NEARLY = 1e-1  # largest relative residual of a pair that further products would settle
TURNED_ROWS = 512  # rows of the basis turned at a time: a copy of 4096 rows exceeded the memory planned for a step
SUBTRACTED_ROWS = 2048  # rows from which a product is subtracted at a time, to need little memory beside the block
THREADED_FLOPS = 10**8  # products of more flops, some milliseconds in one thread, are computed by several


@dataclass(frozen=True)
class Lanczos:
    """State of the iteration; see the module.

    States share the memory of the basis: after a step, the earlier state must not be used.

    Attributes
    ----------
    columns : ndarray of shape (p, limit)
        Basis, then the block to multiply next, then free columns.
    known, asked : int
        Number of columns of the basis, and of the block.
    projected : ndarray of shape (m, m)
        basis^T S basis, for the m columns of the basis.
    coupling : ndarray of shape (l, m)
        The part of S basis outside of the basis is ``wants @ coupling``.
    residuals : ndarray
        Residuals of the Ritz pairs after the last step, by descending value.
    worst : float
        Largest residual of a requested pair over its value; infinite while there are fewer pairs than requested.
    rounding : float
        Largest asymmetry so far of a column of Q^T S Q, which is due to rounding of the products alone.
    passes : int
        Number of products so far.
    solution : Solution or None
        Set when every requested pair has a residual of at most `tol` times its value.
    is_rough : bool
        Whether rounding of the products prevents that, so that they must be more precise (`refined`).
    apart : ndarray of shape (p, l) or None
        The block, if there is a solution and the columns are full.
    pairs : (ndarray, ndarray) or None
        Ritz values, descending, and vectors of the last step, until their memory is needed for a product.
    """

    wanted: Wanted
    total: float
    tol: float
    width: int
    limit: int
    columns: Float64
    known: int
    asked: int
    projected: Float64
    coupling: Float64 = field(default_factory=lambda: np.zeros((0, 0)))
    residuals: Float64 = field(default_factory=lambda: np.zeros(0))
    worst: float = np.inf
    rounding: float = 0.0
    passes: int = 0
    solution: Solution | None = None
    is_rough: bool = False
    apart: Float64 | None = None
    pairs: tuple[Float64, Float64] | None = field(default=None, repr=False)

    @property
    def basis(self) -> Float64:
        """Orthonormal directions whose products are known, (p, m)."""
        return self.columns[:, : self.known]

    @property
    def wants(self) -> Float64:
        """Block to multiply next, (p, l), orthonormal and orthogonal to the basis."""
        return self.columns[:, self.known : self.known + self.asked] if self.apart is None else self.apart

    @cached_property
    def krylov(self) -> KrylovBasis:
        """Basis, and what is known of S on it."""
        return KrylovBasis(self.basis, self.projected, self.wants, self.coupling, self.pairs)

    @cached_property
    def nystrom_pairs(self) -> tuple[Float64, Float64]:
        """Eigenvalues and vectors of Nystrom's approximation (`nystrom_pairs`), computed once as `krylov`'s are."""
        return nystrom_pairs(self.krylov, self.rounding)

    @one_blas_thread()
    def step(self, product: Float64) -> Lanczos:
        """Return the next state, given ``S @ wants``, which is overwritten if it is in Fortran order."""
        projected, rest, rounding = self._extended(product)
        values, ritz = ritz_pairs(projected)
        basis = self.columns[:, : self.known + self.asked]
        block = _orthonormal(rest, basis, ROUNDING * abs(values[0]))
        coupling = np.zeros((block.shape[1], basis.shape[1]))
        within = coupling[:, self.known :] = _multiply(block, rest, transposed=True)
        # Column norms of `rest` equal those of `within` unless directions were dropped.
        residuals = _norms_of_product(within if block.shape[1] == self.asked else rest, ritz[-self.asked :])
        done = replace(
            self, known=basis.shape[1], asked=0, projected=projected, coupling=coupling, residuals=residuals,
            rounding=rounding, passes=self.passes + 1, pairs=(values, ritz),
        )  # fmt: skip
        k = count_components(values, self.total, self.wanted)
        if block.shape[1] == 0 and k is None:  # the basis is invariant: there are no more pairs to find
            k = len(values)
        if k is None:
            return replace(done, worst=np.inf)._restarted(values, ritz, 0, block.shape[1])._asking(block)
        # A rule depends on the next value too, so that one must have converged as well.
        judged = values[: k + isinstance(self.wanted, Rule)]
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = float(np.max(residuals[: len(judged)] / judged, initial=0.0))
        done = replace(done, worst=worst, is_rough=done._is_rough(judged))
        if block.shape[1] == 0 or done._converged(judged):
            solved = replace(done, solution=done._solution(values, ritz, k))
            return (
                solved._asking(block) if solved.known + block.shape[1] <= self.limit else replace(solved, apart=block)
            )
        return done._restarted(values, ritz, k, block.shape[1])._asking(block)

    def _extended(self, product: Float64) -> tuple[Float64, Float64, float]:
        """Return the projection on basis and block, the part of the product outside of both, and the rounding."""
        basis = self.columns[:, : self.known + self.asked]
        rest = np.require(product, np.float64, ("F", "W"))
        coupling = _multiply(basis, rest, transposed=True)
        rest = _subtract_product(rest, basis, coupling)
        # A single subtraction leaves up to 4e-5 of the part along the basis.
        rest = _subtract_product(rest, basis, _multiply(basis, rest, transposed=True))
        m = self.known
        projected = np.zeros((basis.shape[1], basis.shape[1]))
        projected[:m, :m] = self.projected
        projected[:, m:] = coupling
        projected[m:, :m] = coupling[:m].T
        corner = coupling[m:]
        # Only rounding makes the corner asymmetric: average it out, and measure it.
        projected[m:, m:] = (corner + corner.T) / 2
        rounding = float(np.linalg.norm(corner - corner.T, axis=0).max(initial=0.0)) / 2
        return projected, rest, max(rounding, self.rounding)

    def _converged(self, values: Float64) -> bool:
        allowed = np.maximum(self.tol * values, ROUNDING * len(self.columns) ** 0.5 * values[0])
        return bool(np.all(self.residuals[: len(values)] <= allowed)) and self.rounding <= allowed[-1]

    def _is_rough(self, values: Float64) -> bool:
        """Return whether rounding exceeds the residual allowed for pairs that are nearly settled."""
        floor = ROUNDING * len(self.columns) ** 0.5 * values[0]
        settled = np.all(self.residuals[: len(values)] <= NEARLY * values)
        return bool(settled) and self.rounding > max(self.tol * values[-1], floor)

    def _restarted(self, values: Float64, ritz: Float64, k: int, block: int) -> Lanczos:
        """Keep only the leading Ritz vectors if the basis would outgrow its limit (thick restart)."""
        if self.known + block <= self.limit:
            return self
        # Half a block more than requested: these extra Ritz vectors speed up convergence after the restart.
        keep = min(max(self.width, k + self.width // 2), self.limit - block, len(values))
        return self._turned(values, ritz, keep)

    def _turned(self, values: Float64, ritz: Float64, keep: int) -> Lanczos:
        """Return the state whose basis is `keep` Ritz vectors, turned in place, as there is memory for one basis."""
        turn = np.asfortranarray(ritz[:, :keep])
        for start in range(0, len(self.columns), TURNED_ROWS):
            rows = self.columns[start : start + TURNED_ROWS]
            rows[:, :keep] = _multiply(np.asfortranarray(rows[:, : self.known]), turn)
        kept: dict[str, Any] = {"coupling": self.coupling @ turn, "residuals": self.residuals[:keep]}
        return replace(self, known=keep, projected=np.diag(values[:keep]), pairs=None, **kept)

    def _asking(self, block: Float64) -> Lanczos:
        """Return the state with a block to multiply next."""
        self.columns[:, self.known : self.known + block.shape[1]] = block
        return replace(self, asked=block.shape[1])

    def refined(self) -> Lanczos:
        """Return a new iteration from the leading Ritz vectors, for products that are more precise."""
        values, ritz = self.krylov.ritz
        restarted = self._turned(values, ritz, min(self.width, len(values)))
        width = restarted.known
        reset: dict[str, Any] = {
            "solution": None,
            "apart": None,
            "projected": np.zeros((0, 0)),
            "coupling": np.zeros((0, 0)),
            "residuals": np.zeros(0),
        }
        return replace(restarted, known=0, asked=width, rounding=0.0, is_rough=False, **reset)

    def so_far(self, settled: float = SETTLED) -> Solution:
        """Return leading pairs with relative residuals up to `settled`: at least one, at most as many as requested."""
        values, ritz = self.krylov.ritz
        residuals = self.residuals[: len(values)]
        unsettled = np.flatnonzero(residuals > settled * values)
        k = min(
            count_components(values, self.total, self.wanted) or len(values),
            unsettled[0] if len(unsettled) else len(values),
        )
        return self._solution(values, ritz, max(1, int(k)))

    def tightened(self, tol: float) -> Lanczos:
        """Return the state that goes on to a smaller tolerance, from a solution as well; itself if nothing is left."""
        block = self.wants.copy()
        if self.solution is None or not block.shape[1]:
            return self if self.solution is not None else replace(self, tol=tol)
        values, ritz = self.krylov.ritz
        going = replace(self, solution=None, apart=None, asked=0, tol=tol)
        return going._restarted(values, ritz, len(self.solution.values), block.shape[1])._asking(block)

    def nystrom(self) -> Solution:
        """Return the leading pairs of Nystrom's approximation, for a matrix without negative eigenvalues.

        They are nearer than those of `so_far`, which leave out what the products hold outside of the basis. Residuals
        are 0, as nothing is known of them without another product.
        """
        values, turned = self.nystrom_pairs
        k = count_components(values, self.total, self.wanted) or len(self.residuals)
        vectors = fix_signs(_multiply(self.columns[:, : self.known + self.asked], turned[:, :k]))
        return Solution(np.maximum(values[:k], 0.0), vectors, np.zeros(k), None, self.passes)

    def _solution(self, values: Float64, ritz: Float64, k: int) -> Solution:
        vectors = fix_signs(_multiply(self.basis, ritz[:, :k]))
        after = float(values[k] + self.residuals[k]) if k < len(self.residuals) else None
        return Solution(np.maximum(values[:k], 0.0), vectors, self.residuals[:k], None, self.passes, after)

    @property
    def flops(self) -> float:
        """Flops of the next step, including its product."""
        p, m, width = len(self.columns), self.known, self.asked
        return float(2 * p * p * width + 8 * p * (m + width) * width + 10 * (m + width) ** 3)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays, which are not copied, and numbers that change from step to step."""
        names = ("known", "projected", "coupling", "residuals", "worst", "rounding", "passes", "is_rough")
        columns = self.columns[:, : self.known + self.asked].T
        return as_arrays({"columns": columns, **{name: getattr(self, name) for name in names}})


def start_lanczos(
    n_features: int,
    *,
    wanted: Wanted,
    total: float,
    tol: float = 1e-10,
    width: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    start: Float64 | None = None,
) -> Lanczos:
    """Start an iteration from a Gaussian block or a given one.

    Parameters
    ----------
    n_features : int
        p.
    wanted : int, float or Rule
        See `count_components`.
    total : float
        Trace of the matrix, for fractions.
    tol : float, default=1e-10
        Allowed residual, relative to each requested eigenvalue.
    width : int, optional
        Columns of a block; by default a quarter more than the requested components, at least 10 more.
    limit : int, optional
        Largest number of columns of basis and block; 4 blocks by default, or more for a fraction or a rule.
    seed : int
        Seed of the start block.
    start : ndarray of shape (p, width), optional
        Columns that span the start block. Some must be random: directions orthogonal to all are never found.
    """
    width, limit = _sizes(n_features, wanted, width, limit)
    if start is None:
        start = np.random.default_rng([1, seed]).standard_normal((n_features, width))
    columns: Float64 = np.empty((n_features, limit), order="F")
    empty = Lanczos(wanted, total, tol, width, limit, columns, 0, 0, np.zeros((0, 0)))
    return empty._asking(qr(start, mode="economic", overwrite_a=True, check_finite=False)[0])


def resume_lanczos(
    state: Mapping[str, npt.NDArray[Any]],
    *,
    wanted: Wanted,
    total: float,
    tol: float = 1e-10,
    width: int | None = None,
    limit: int | None = None,
) -> Lanczos:
    """Resume an iteration of the same options from its `Lanczos.state`, whose columns must not be used again."""
    values = as_values(state)
    rows = np.require(values.pop("columns"), np.float64, ("C", "O", "W"))
    width, limit = _sizes(rows.shape[1], wanted, width, limit)
    asked = len(rows) - values["known"]
    rows.resize((limit, rows.shape[1]), refcheck=False)  # in place, as there is memory for one basis
    arrays = {name: np.array(value) for name, value in values.items() if isinstance(value, np.ndarray)}
    resumed = {**values, **arrays, "columns": rows.T, "asked": asked}
    return replace(Lanczos(wanted, total, tol, width, limit, rows.T, 0, 0, np.zeros((0, 0))), **resumed)


def _sizes(n_features: int, wanted: Wanted, width: int | None, limit: int | None) -> tuple[int, int]:
    """Return the columns of a block, and the largest number of columns of basis and block."""
    width = min(width or block_width(wanted), n_features)
    # The number of components of a fraction or a rule is unknown beforehand.
    default = 4 * width if isinstance(wanted, int) else max(4 * width, n_features // FRACTION_SHARE)
    return width, min(limit or default, n_features)


def _orthonormal(rest: Float64, basis: Float64, negligible: float) -> Float64:
    """Return orthonormal columns that span `rest` up to lost rank, and are orthogonal to the basis.

    Computed twice from the eigenvectors of the Gram matrix, that is by products, which are ten times as fast as
    Householder QR of so narrow a block. Directions below 1e-7 of the largest are lost; they hold no pair that is still
    needed. The part of `rest` along the basis, 1e-16 of it, can grow to 1e-9 as small directions are scaled up, so it
    is subtracted last.
    """
    block = rest
    room = len(basis) - basis.shape[1]
    for cut in (max(negligible * len(rest) ** 0.5, 0.0), 0.5):
        squares, turned = eigh(_multiply(block, block, transposed=True), check_finite=False)
        sizes = np.sqrt(np.maximum(squares, 0.0))
        kept = np.flatnonzero((sizes > cut) & (sizes > GRAM_FLOOR * sizes[-1]))[-room:]
        if room == 0 or len(kept) == 0:
            return rest[:, :0]
        block = _multiply(block, np.asfortranarray(turned[:, kept] / sizes[kept]))
    return _subtract_product(block, basis, _multiply(basis, block, transposed=True))


def _norms_of_product(left: Float64, right: Float64) -> Float64:
    """Return norms of the columns of ``left @ right``, some at a time: the product can be as large as the basis."""
    width = max(1, left.shape[1])
    pieces = (right[:, start : start + width] for start in range(0, right.shape[1], width))
    return np.concatenate([np.linalg.norm(_multiply(left, piece), axis=0) for piece in pieces])


def _multiply(left: Float64, right: Float64, transposed: bool = False) -> Float64:
    """Return ``left @ right``, or ``left.T @ right``, in Fortran order; parts of a large `left` run in threads.

    Each has one BLAS thread: BLAS's own threads spin while they wait, which took 15 times as long on busy cores.
    """
    first, right = left.T if transposed else left, np.asfortranarray(right)  # others miss BLAS in older numpy
    product = np.empty((right.shape[1], len(first)))

    def multiply(rows: slice) -> None:
        np.matmul(right.T, first[rows].T, out=product[:, rows])

    _in_threads(multiply, len(first), 2 * first.size * right.shape[1])
    return product.T


def _subtract_product(matrix: Float64, left: Float64, right: Float64) -> Float64:
    """Subtract ``left @ right`` from a matrix in place, and return it; parts of large products run in threads."""
    turned = matrix.T

    def subtract(rows: slice) -> None:
        for start in range(rows.start, rows.stop, SUBTRACTED_ROWS):
            chunk = slice(start, min(start + SUBTRACTED_ROWS, rows.stop))
            turned[:, chunk] -= np.matmul(right.T, left[chunk].T)  # rows are contiguous; `np.dot` copies `left`

    _in_threads(subtract, len(matrix), 2 * left.size * right.shape[1])
    return matrix


def _in_threads(work: Callable[[slice], None], length: int, flops: int) -> None:
    """Call `work` on a whole range, or on a part of it in each of several threads if there are many flops."""
    threads = min(machine.cores(), length) if flops > THREADED_FLOPS else 1
    for _ in map_in_threads(lambda span: work(slice(*span)), spans_of(length, threads, 1), threads):
        pass
