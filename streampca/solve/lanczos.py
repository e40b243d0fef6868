"""Block Lanczos with full re-orthogonalization and thick restart, by reverse communication.

The solver never sees the matrix: `state.wants` is a block Q, its caller multiplies it, and `state.step(product)` is
the next state, until `state.solution` is there. States are values made of plain arrays, so a run can be saved between
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

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas, eigh, qr

from .choose import Rule, Wanted, count_components
from .protocol import Solution, fix_signs

Float64 = npt.NDArray[np.float64]

ROUNDING = 1e-14  # of the largest eigenvalue: residuals below are rounding, and directions below are not followed
SETTLED = 1e-2  # of its value: the residual of a pair worth having when the iteration ends early
GRAM_FLOOR = 1e-7  # squared, what float64 resolves of a Gram matrix with room to spare
FRACTION_SHARE = 4  # a fraction of the variance may need a basis of up to p over this; then a dense solver is cheaper


@dataclass(frozen=True)
class Lanczos:
    """A state of the iteration; see the module.

    Attributes
    ----------
    basis : ndarray of shape (p, m)
        Orthonormal directions whose products are known.
    projected : ndarray of shape (m, m)
        basis^T S basis.
    wants : ndarray of shape (p, l)
        The block to multiply next, orthonormal and orthogonal to the basis.
    residuals : ndarray
        Of the Ritz pairs after the last step, by descending value.
    solution : Solution or None
        There when every wanted pair has a residual of at most `tol` times its value.
    """

    wanted: Wanted
    total: float
    tol: float
    width: int
    limit: int
    basis: Float64
    projected: Float64
    wants: Float64
    residuals: Float64 = field(default_factory=lambda: np.zeros(0))
    passes: int = 0
    solution: Solution | None = None

    def step(self, product: Float64) -> Lanczos:
        """Return the next state, given ``S @ wants``."""
        basis, projected, rest = self._extended(product)
        values, ritz = (turned[..., ::-1] for turned in eigh(projected, check_finite=False))
        residuals = _norms_of_product(rest, ritz[-self.wants.shape[1] :])
        block = _orthonormal(rest, basis, ROUNDING * abs(values[0]))
        done = replace(self, basis=basis, projected=projected, wants=block, residuals=residuals, passes=self.passes + 1)
        k = count_components(values, self.total, self.wanted)
        if block.shape[1] == 0 and k is None:  # nothing is left to find: what was found is everything
            k = len(values)
        # A rule has judged the next value too, which must not rise any more.
        judged = k if k is None or not isinstance(self.wanted, Rule) else k + 1
        if k is not None and (block.shape[1] == 0 or self._converged(values[:judged], residuals[:judged])):
            vectors = fix_signs(_multiply(basis, ritz[:, :k]))
            after = float(values[k] + residuals[k]) if k < len(values) else None
            found = Solution(np.maximum(values[:k], 0.0), vectors, residuals[:k], None, self.passes + 1, after)
            return replace(done, solution=found)
        return done._restarted(values, ritz, k or 0)

    def _extended(self, product: Float64) -> tuple[Float64, Float64, Float64]:
        """Append the block to the basis; return also what of the product lies outside (projected twice)."""
        # Beside an empty basis, concatenate would turn to C order, which BLAS copies at every product.
        basis = np.concatenate([self.basis, self.wants], axis=1) if self.basis.size else self.wants
        coupling = _multiply(basis, product, transposed=True)
        rest = product - _multiply(basis, coupling)
        rest -= _multiply(basis, _multiply(basis, rest, transposed=True))
        m, width = self.basis.shape[1], self.wants.shape[1]
        projected = np.zeros((m + width, m + width))
        projected[:m, :m] = self.projected
        projected[:, m:] = coupling
        projected[m:, :m] = coupling[:m].T
        corner = coupling[m:]
        projected[m:, m:] = (corner + corner.T) / 2
        return basis, projected, rest

    def _converged(self, values: Float64, residuals: Float64) -> bool:
        allowed = np.maximum(self.tol * values, ROUNDING * len(self.basis) ** 0.5 * values[0])
        return bool(np.all(residuals <= allowed))

    def _restarted(self, values: Float64, ritz: Float64, k: int) -> Lanczos:
        """Keep the leading Ritz vectors only, when the basis would outgrow its limit."""
        if self.basis.shape[1] + self.wants.shape[1] <= self.limit:
            return self
        keep = min(max(self.width, k + self.width // 2), self.limit - self.wants.shape[1], len(values))
        basis = _multiply(self.basis, ritz[:, :keep])
        return replace(self, basis=basis, projected=np.diag(values[:keep]))

    def so_far(self) -> Solution:
        """The leading pairs that are settled to a hundredth of their value, no more than wanted, at least one."""
        values, ritz = (turned[..., ::-1] for turned in eigh(self.projected, check_finite=False))
        residuals = self.residuals[: len(values)]
        loose = np.flatnonzero(residuals > SETTLED * values)
        k = min(
            count_components(values, self.total, self.wanted) or len(values), loose[0] if len(loose) else len(values)
        )
        k = max(1, int(k))
        vectors = fix_signs(_multiply(self.basis, ritz[:, :k]))
        after = float(values[k] + residuals[k]) if k < len(residuals) else None
        return Solution(np.maximum(values[:k], 0.0), vectors, residuals[:k], None, self.passes, after)

    @property
    def flops(self) -> float:
        """Cost of the next step, its product included."""
        p, m, width = len(self.basis), self.basis.shape[1], self.wants.shape[1]
        return float(2 * p * p * width + 8 * p * (m + width) * width + 10 * (m + width) ** 3)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that change from step to step."""
        return {
            "basis": self.basis,
            "projected": self.projected,
            "wants": self.wants,
            "residuals": self.residuals,
            "passes": np.array(self.passes),
        }


def start_lanczos(
    n_features: int,
    *,
    wanted: Wanted,
    total: float,
    tol: float = 1e-10,
    width: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Lanczos:
    """Begin from a Gaussian block.

    Parameters
    ----------
    n_features : int
        p.
    wanted : int, float or Rule
        See `count_components`.
    total : float
        Trace of the matrix, for fractions.
    tol : float, default=1e-10
        Residual allowed, relative to each wanted eigenvalue.
    width : int, optional
        Columns of a block; by default a quarter more than the components wanted, at least 10 more.
    limit : int, optional
        Most columns of the basis; 4 blocks by default. A fraction needs room for its components.
    seed : int
        Of the start block.
    """
    width = min(width or block_width(wanted), n_features)
    limit = min(
        limit or (4 * width if isinstance(wanted, int) else max(4 * width, n_features // FRACTION_SHARE)), n_features
    )
    start = np.random.default_rng([1, seed]).standard_normal((n_features, width))
    empty = np.zeros((n_features, 0))
    wants = qr(start, mode="economic", overwrite_a=True, check_finite=False)[0]
    return Lanczos(wanted, total, tol, width, limit, empty, np.zeros((0, 0)), np.asfortranarray(wants))


def block_width(wanted: Wanted) -> int:
    """Columns of a block by default: enough beyond k that the last wanted pairs converge as the first do."""
    k = wanted if isinstance(wanted, int) else 50
    return k + max(10, k // 4)


def _orthonormal(rest: Float64, basis: Float64, negligible: float) -> Float64:
    """Orthonormal columns spanning `rest`, cut where it has lost rank, orthogonal to the basis.

    By the singular vectors of its Gram matrix, twice: products only, where Householder QR of so narrow a block runs at
    a tenth of their speed. Directions below 1e-7 of the largest are lost to that; they hold no pair still wanted.
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
        block -= _multiply(basis, _multiply(basis, block, transposed=True))
    return block


def _norms_of_product(left: Float64, right: Float64) -> Float64:
    """Norms of the columns of left @ right, a few columns at a time: the product may be as large as the basis."""
    some = max(1, left.shape[1])
    pieces = (right[:, start : start + some] for start in range(0, right.shape[1], some))
    return np.concatenate([np.linalg.norm(_multiply(left, piece), axis=0) for piece in pieces])


def _multiply(left: Float64, right: Float64, transposed: bool = False) -> Float64:
    """`left` (or its transpose) times `right` by scipy's BLAS, which the matrix products beside it use too."""
    if 0 in left.shape or 0 in right.shape:
        return (left.T if transposed else left) @ right
    return blas.dgemm(1.0, left, right, trans_a=transposed)  # type: ignore[no-any-return]


def lanczos_bytes(p: int, wanted: Wanted) -> int:
    """Bytes `Lanczos` needs at its default width and limit, while a step holds two bases and several blocks.

    Beside them the projected matrix, its eigenvectors and LAPACK's copies of it.
    """
    width = min(block_width(wanted), p)
    limit = min(4 * width, p) if isinstance(wanted, int) else p // FRACTION_SHARE
    columns = limit + width
    return 8 * (p * (2 * columns + 5 * width) + 5 * columns * columns)
