"""Bases of block Lanczos: columns of a block and of the basis, and the passes over the samples that they take.

A wider block takes fewer passes, which cost more flops each; a basis of fewer blocks is restarted, and takes more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ..units import counted_passes, format_shape
from .memory import basis_bytes, step_bytes
from .request import USUAL_TOL, Problem, Request

# Columns of a block for every component, and passes to a residual of USUAL_TOL: of images, whose spectra fall slowly
# (30000 x 128 x 128, k = 50; 1/f images).
WIDTHS = ((1.3, 7), (2.0, 6), (2.5, 5), (6.0, 4))
# Up to there, passes grow with the decades of the residual to this power, within 10 % (3000 x 2304, 1/f and slow decay,
# k = 10 and 50, blocks of 25 to 200): the first passes gain a third of a decade, later ones one.
PASSES_OF_DECADES = 0.63
LEAST_BESIDE = 15  # columns beside those for the components: of few, reading and centring samples take most of a pass
KERNEL, NARROW = 16, 48  # columns that BLAS multiplies at once: 32 take as long as 25, and among many few more are free
MANY = 10  # times that the narrow go into all there are, or a basis would soon be everything
SPARE = 1  # blocks of a basis that is never restarted, beside one a pass: should it take a pass more
RESTARTS = ((4, 1), (3, 2), (2, 5), (1, 10))  # blocks of a smaller one, and the passes more that its restarts take
OPEN_COMPONENTS, OPEN_WIDTH = 100, 1.25  # counted on where k is open, when the basis grows with every pass


def counted_on(problem: Problem, request: Request) -> int:
    """Components to make room for."""
    count = request.counted_on(problem.most_components)
    return min(count if isinstance(count, int) else OPEN_COMPONENTS, problem.most_components)


class Basis(NamedTuple):
    """Columns of a block and of the basis, and the passes it takes, those for restarts included."""

    width: int
    columns: int
    passes: int
    restarting: int

    def items(self, length: int) -> dict[str, int]:
        """Bytes of the basis, of vectors of a length, by name."""
        return {f"basis, {format_shape((length, self.columns))} float64": basis_bytes(length, self.columns)}

    def step_items(self, length: int) -> dict[str, int]:
        """Bytes by name while the basis is extended by a block."""
        name = f"product with {self.width} vectors, being projected, and small matrices"
        return {name: step_bytes(length, self.width, self.columns)}

    def reason(self, made: str, problem: Problem, request: Request, late: int) -> str:
        """Say why the method is chosen, and which memory or passes it lacks."""
        n, p = problem.n_samples, problem.n_features
        why = f"{made} neither the {format_shape((p, p))} scatter matrix nor the {format_shape((n, n))} Gram matrix"
        if self.restarting:
            why += f"; {self.restarting} fewer would do with a larger basis, which does not fit the budget"
        if late:
            why += f"; a residual of {request.residual:.1g} would take about {counted_passes(self.passes)}"
        return why


def bases(problem: Problem, request: Request, size: int, *, later: int = 0) -> Iterator[Basis]:
    """Yield bases of every width and size; where k is open, of every width the smallest, which is to grow.

    Parameters
    ----------
    problem, request : Problem, Request
        Collection and options.
    size : int
        Length of the vectors: the number of features, or of samples.
    later : int
        Passes taken beyond those from a sample's components.
    """
    k, most = counted_on(problem, request), problem.most_components
    for ratio, passes in ((OPEN_WIDTH, WIDTHS[0][1]),) if request.is_open else WIDTHS:
        width = max(math.ceil(ratio * k), k + LEAST_BESIDE)
        rounds = width < NARROW <= most / MANY
        width = min(-(-width // KERNEL) * KERNEL if rounds else width, most)
        least = min(width + k, most + width, size)
        passes = _passes_to(request.residual, passes) + later
        blocks = {passes + SPARE, *(number for number, _ in RESTARTS)}
        larger = {min(number * width, most + width, size) for number in blocks}
        for columns in (
            (least,) if request.is_open else sorted({least} | {columns for columns in larger if columns > least})
        ):
            yield basis_of(problem, size, width, columns, passes)


def _passes_to(residual: float, usual: int) -> int:
    """Return the passes to a residual, at least two, with blocks that take so many to the usual one."""
    beyond = math.log10(USUAL_TOL / residual)
    if beyond >= 0:
        return usual + math.ceil(beyond - 1e-9)
    share = max(0.0, math.log10(residual) / math.log10(USUAL_TOL))
    return max(2, math.ceil(usual * math.pow(share, PASSES_OF_DECADES) - 0.1))


def basis_of(problem: Problem, size: int, width: int, columns: int, passes: int) -> Basis:
    """Return a basis with the passes that its restarts take: none where all fit, or where it holds everything there is.

    Blocks of random features lie outside of what fewer samples span; those of samples do not.
    """
    most = problem.most_components
    passes = min(passes, -(-most // width) + (most < size == problem.n_features))
    if columns >= min(passes * width, most):
        return Basis(width, columns, passes, 0)
    restarting = next(more for blocks, more in RESTARTS if columns >= blocks * width)
    return Basis(width, columns, passes + restarting, restarting)
