"""Plans for sparse samples, which are held in memory and multiplied as they are: by stored values, not by features.

Every method of PCA has its sizes here beside those for dense samples, which are planned where these do not fit. Reads
are free, so block Lanczos has narrow blocks: they take many passes, and by far the fewest products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from ..units import counted_passes
from .by_features import SizesByFeatures
from .candidate_sizes import Cost, Groups, MethodSizes
from .covariance import CovarianceSizes
from .dual import OPEN_SHARES, DualSizes, components_counted_on
from .lanczos_basis import Basis, bases, counted_on
from .memory import COMPONENT_COPIES, PROBES, PROBES_OF_PASS, SPARSE_TILE, Phase, basis_bytes, runtime, step_bytes
from .plan import Plan
from .randomized import (
    BOUND_COPIES,
    MEAN_BYTES,
    PROBE_BYTES,
    AlongFeatures,
    AlongSamples,
)
from .rates import Work, solve_work
from .request import USUAL_TOL, Problem, Request

MOST_DENSITY = 0.2  # share of values that are stored, beyond which BLAS multiplies dense samples faster
ENTRY_BYTES = 16  # bytes of a stored value in float64 with its index, at most
COPIES = 3  # of stored values while they are multiplied: in float64, less a centre, and by columns
TILE_BYTES = SPARSE_TILE * 28  # of a tile of products of rows with one another, sparse and then dense

# Columns of a narrow block, of its basis and of all products up to a residual of 1e-4, of random sparse matrices, whose
# spectra are nearly flat (20000 x 2000 with 1 %, 20000 x 20000 with 0.1 % and 5000 x 5000 with 5 %, k = 10 and 50).
LEAST_WIDTH, WIDTH_SHARE = 4, 6
BASIS_TIMES, BASIS_MORE = 3, 40
COLUMNS_TIMES, COLUMNS_MORE = 12, 150
PASS_ACCESSES = 100  # that a pass takes as long as, beside its products: a millisecond

# Nanoseconds of a product of two values in a product with vectors, of one of sparse matrices, and of an entry of it.
MULTIPLIED, MATCHED, ENTERED = 1.0, 4.0, 25.0


def has_few(values: int, n_samples: int, n_features: int) -> bool:
    """Tell whether so few values are stored that sparse products are faster."""
    return values < MOST_DENSITY * n_samples * n_features


def suits_sparse(problem: Problem, request: Request) -> bool:
    """Tell whether samples are multiplied as sparse rows: in double precision, and by one process."""
    is_alone = request.workers == 1 and request.precision != "single" and not request.output
    values = problem.sparse_values
    return is_alone and values is not None and has_few(values, problem.n_samples, problem.n_features)


def sparse_groups(method: str, problem: Problem, request: Request) -> Groups[MethodSizes]:
    """Return the candidates of a method for sparse samples, none where it has none."""
    n, p = problem.n_samples, problem.n_features
    if method == "covariance":
        return [[SparseCovariance(problem=problem, request=request, sparse=True)]]
    if method == "dual" and (n < p or request.method == "dual"):
        sizes = SparseDual(problem=problem, request=request, schedule="sweep", k=0, dense=True, sparse=True)
        counts = components_counted_on(problem, request, OPEN_SHARES)
        return [[replace(sizes, k=k, dense=dense) for dense in sizes.dense_choices] for k in counts]
    if method == "randomized" and not request.is_open:
        side, basis = min(n, p), narrow_basis(problem, request)
        choices = [basis] if request.max_passes is None else list(bases(problem, request, side))
        common: dict[str, Any] = {
            "problem": problem,
            "request": request,
            "k": counted_on(problem, request),
            "sparse": True,
        }
        if n < p and request.max_passes is None:
            return [[SparseAlongSamples(basis=basis, bases=(basis,), schedule="sweep", **common)]]
        common |= {"precision": "double", "schedule": "lanczos", "block_rows": n, "product_rows": n}
        return [[SparseAlongFeatures(basis=basis, **common) for basis in choices]]
    return []


def narrow_basis(problem: Problem, request: Request) -> Basis:
    """Return a basis of narrow blocks, and the passes to the residual asked for."""
    k, most = counted_on(problem, request), problem.most_components
    width = min(max(LEAST_WIDTH, k // WIDTH_SHARE), most)
    columns = min(BASIS_TIMES * k + BASIS_MORE, most + width, min(problem.n_samples, problem.n_features))
    digits = math.log(request.residual) / math.log(USUAL_TOL)
    passes = math.ceil(min(digits * (COLUMNS_TIMES * k + COLUMNS_MORE), most + width) / width)
    return Basis(width, columns, max(2, passes), 0)


def stored_items(problem: Problem) -> dict[str, int]:
    """Return the bytes by name of stored values: held, and while they are multiplied."""
    values = problem.sparse_values or 0
    return {
        "stored values, held": problem.sparse_bytes,
        "stored values, centred and by columns": COPIES * ENTRY_BYTES * values,
    }


def vector_work(problem: Problem, width: float) -> Work:
    """Return the work of X^T (X Q) for Q of so many columns."""
    values = problem.sparse_values or 0
    return Work(sparse=MULTIPLIED * 2.0 * values * width, adding=2.0 * (problem.n_samples + problem.n_features) * width)


def symmetric_work(problem: Problem, size: int) -> Work:
    """Return the work of products of all rows, or columns, with one another, (size, size)."""
    values = float(problem.sparse_values or 0)
    matched = values**2 / max(1, problem.n_samples + problem.n_features - size)
    return Work(sparse=MATCHED * matched + ENTERED * min(matched, float(size) ** 2), adding=2.0 * float(size) ** 2)


@dataclass(frozen=True, kw_only=True)
class SparseCovariance(CovarianceSizes):
    """Sizes of method 'covariance': X^T X of all samples at once."""

    @cached_property
    def precision(self) -> str:
        """Double precision, as all sparse products."""
        return "double"

    def cut(self, memory: int) -> Self:
        """Return the sizes with room for components, and all samples in one block."""
        n = self.problem.n_samples
        return replace(super().cut(memory), block_rows=n, product_rows=n, threads=1, ahead=0)

    def pass_phase(self) -> Phase:
        """Memory while samples are absorbed."""
        p = self.problem.n_features
        items = {
            f"scatter matrix, {p} x {p} float64": 8 * p * p,
            "tile of products": min(TILE_BYTES, 28 * p * p),
            "probes and means": 6 * 8 * PROBES * p,
        }
        return Phase.of("pass", items, stored_items(self.problem), runtime())

    @cached_property
    def cost(self) -> Cost:
        """Cost of the only pass, and of the solve."""
        problem = self.problem
        work = symmetric_work(problem, problem.n_features) + vector_work(problem, PROBES) + self.solve_work
        return Cost(1, ENTRY_BYTES * (problem.sparse_values or 0), work)


@dataclass(frozen=True, kw_only=True)
class SparseByFeatures(SizesByFeatures):
    """Sizes of a method along samples: all features are read at once."""

    @cached_property
    def precision(self) -> str:
        """Double precision, as all sparse products."""
        return "double"

    def within(self, memory: int) -> Iterator[Self]:
        """Yield all features at once, if that fits."""
        for sizes in self.smallest():
            if sizes.fits(memory):
                yield sizes

    def smallest(self) -> Iterator[Self]:
        """Yield the same."""
        n, p = self.problem.n_samples, self.problem.n_features
        yield replace(self, block_features=p, product_features=p, block_rows=n)

    def held_items(self) -> dict[str, int]:
        """Stored values."""
        return stored_items(self.problem)

    def read_items(self, *, wide: bool = False) -> dict[str, int]:
        """Nothing, as samples are held."""
        return {}

    def components_phase(self) -> Phase:
        """Memory while components are made from eigenvectors."""
        n, p, k = self.problem.n_samples, self.problem.n_features, self.k
        items = {
            f"{k} eigenvectors of {n} samples, as found and scaled": n * k * 24,
            "products of samples with them": 2 * 8 * (k + PROBES) * p,
        }
        return Phase.of("components", items, self.held_items(), self._components(), {"mean": 24 * p}, self.runtime())


@dataclass(frozen=True, kw_only=True)
class SparseDual(SparseByFeatures, DualSizes):
    """Sizes of method 'dual': X X^T of all features at once."""

    def _gram_phase(self) -> Phase:
        """Memory while the Gram matrix is computed."""
        n, p = self.problem.n_samples, self.problem.n_features
        items = {
            f"Gram matrix, {n} x {n} float64": 8 * n * n,
            "tile of products": min(TILE_BYTES, 28 * n * n),
            "mean and probes": 16 * p + PROBES * (2 * 8 * n + 12 * p),
        }
        return Phase.of("Gram matrix", items, self.held_items(), self.runtime())

    @cached_property
    def cost(self) -> Cost:
        """Passes, bytes and work."""
        problem, n = self.problem, self.problem.n_samples
        work = symmetric_work(problem, n) + solve_work(n, self.solver) + vector_work(problem, self.k + PROBES)
        return Cost(1, ENTRY_BYTES * (problem.sparse_values or 0), work)


@dataclass(frozen=True, kw_only=True)
class SparseAlongFeatures(AlongFeatures):
    """Sizes of method 'randomized' along features."""

    def smallest(self) -> Iterator[Self]:
        """Yield the only member, of one thread."""
        yield self

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        return replace(super().plan(), why=reason(self.basis, self.cost))

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        n, p, width = self.problem.n_samples, self.problem.n_features, self.basis.width
        columns = width + PROBES_OF_PASS
        stored, basis = stored_items(self.problem), self.basis.items(p)
        yield Phase.of("start", basis, stored, {"start block": 4 * 8 * p * width}, runtime())
        products = {
            f"products with {width} vectors and {PROBES_OF_PASS} probes": 8 * columns * (4 * p + 2 * n),
            "mean, sums and probes": (3 + 6 * PROBES_OF_PASS) * 8 * p,
        }
        yield Phase.of("pass", basis, stored, products, runtime())
        means = {"mean and probes": MEAN_BYTES * p}
        yield Phase.of("step", basis, stored, self.basis.step_items(p), means, runtime())
        made = {f"{self.k} components": COMPONENT_COPIES * 8 * p * self.k}
        yield Phase.of("components", basis, stored, made, means, runtime())

    @cached_property
    def cost(self) -> Cost:
        """The products of all passes, and the steps between."""
        return passes_cost(self.problem, self.request, self.basis, self.problem.n_features)


@dataclass(frozen=True, kw_only=True)
class SparseAlongSamples(SparseByFeatures, AlongSamples):
    """Sizes of method 'randomized' along samples."""

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        return replace(super().plan(), why=reason(self.basis, self.cost))

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        n, p, (width, columns, _, _) = self.problem.n_samples, self.problem.n_features, self.basis
        basis = {f"basis, {n} x {columns} float64": basis_bytes(n, columns)}
        more = 8 * (width + PROBES_OF_PASS) * (4 * n + 2 * p) + (PROBE_BYTES + BOUND_COPIES * 8 * PROBES_OF_PASS) * n
        products = {f"products with {width} vectors, and probes": more + PROBES * 12 * p}
        yield Phase.of("pass", basis, self.held_items(), products, self.runtime())
        step = {"step, and probes": step_bytes(n, width, columns) + PROBE_BYTES * n}
        yield Phase.of("step", basis, self.held_items(), step, self.runtime())
        yield self.components_phase()
        yield from self.last_phases()

    @cached_property
    def cost(self) -> Cost:
        """The products of all passes, the steps between, and the components."""
        cost = passes_cost(self.problem, self.request, self.basis, self.problem.n_samples)
        return cost._replace(work=cost.work + vector_work(self.problem, self.k + PROBES))


def passes_cost(problem: Problem, request: Request, basis: Basis, size: int) -> Cost:
    """Cost of passes with blocks of vectors of a size, and of the steps between, which read the basis four times."""
    passes = min(basis.passes, request.max_passes or basis.passes)
    held = float(min(passes * basis.width, basis.columns))
    work = vector_work(problem, basis.width * passes + PROBES_OF_PASS)
    work += Work(adding=4.0 * size * held * passes, accesses=PASS_ACCESSES * passes)
    work += Work(double=(4.0 * size * held * basis.width + 8.0 * size * basis.width**2) * passes)
    values = ENTRY_BYTES * (problem.sparse_values or 0)
    return Cost(passes, passes * values, work, basis.passes - passes)


def reason(basis: Basis, cost: Cost) -> str:
    """Say why the method is chosen."""
    made = f"{counted_passes(cost.passes)} over sparse samples in memory with {basis.width} vectors"
    return f"{made} take less time than products of all features or samples with one another"
