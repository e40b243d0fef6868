"""The budget: the share of it that a block takes, the smallest that would do, and the refusal of one too small."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import BudgetError
from ..units import MIB, budget_size, format_bytes
from .request import Machine, Problem, Request

MOST_BLOCK = 24 * MIB  # of a block: glibc keeps the pages of up to 32 MiB for the next one (benchmarks/choices.py)
BLOCK_SHARES = (8, 16, 32, 64, 128)  # a block takes at most this fraction of the budget: the first that fits ...
SPANS_A_WORKER = 4  # a task is then short enough for the last ones to end together
SMALL_PRODUCT = 2 * 10**9  # multiplications that double precision takes a few hundredths of a second for
DENSE_FEATURES = 2048  # below, LAPACK's whole spectrum costs less than a second (benchmarks/choices.py)
NO_MACHINE = 2**60  # bytes
CHUNK_SHARE = 4  # ... or this one, when that saves decoding a storage chunk several times


def block_limit(machine: Machine, memory: int | None) -> int:
    """Return the most bytes of a block of a pass that multiplies nothing, by a budget as for `Request`."""
    return min(MOST_BLOCK, machine.budget(memory)[0] // BLOCK_SHARES[0])


def smallest(accepts: Callable[[int], bool], unit: int = MIB) -> int:
    """The least number of bytes, a whole multiple of `unit`, that is accepted; more must be accepted too.

    Raises
    ------
    ValueError
        If as much as no machine has is not accepted: the fault is that of the question.
    """
    low, high = 0, 1
    while not accepts(high * unit):
        low, high = high, 2 * high
        if high > NO_MACHINE:
            raise ValueError("no number of bytes is accepted")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepts(middle * unit) else (middle, high)
    return high * unit


def check_budget(what: str, fits: Callable[[int], bool], budget: int, source: str, more: str = "") -> None:
    """Refuse a budget in bytes in which something does not fit, naming the smallest that would do, and other remedies.

    Raises
    ------
    BudgetError
        Says what does not fit, in words, and where the budget comes from.
    """
    if not fits(budget):
        raise too_small(what, smallest(fits), (budget, source), more=more)


def most_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """The largest count of 1 to `most` that fits, 0 where none does; fewer must fit where more do."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def too_small(
    doing: str, least: int, budget: tuple[int, str], *, needed: int = 0, share: str = "", more: str = ""
) -> BudgetError:
    """Return the refusal of a budget, naming the least that would do.

    Parameters
    ----------
    doing : str
        What does not fit.
    least : int
        Bytes that would do.
    budget : (int, str)
        Bytes allowed, and where that comes from.
    needed : int, optional
        Bytes that it needs within this budget, where that is not `least`.
    share : str, optional
        What takes much of it.
    more : str, optional
        Other remedies.
    """
    allowed, source = budget
    return BudgetError(
        f"{doing} needs {format_bytes(needed or least)} and memory allows {format_bytes(allowed)} ({source})"
        f"{share and '; '}{share}. Set memory to at least {budget_size(least)}{more}."
    )


def span_count(workers: int, threads: int = 1) -> int:
    """Tasks that the work is cut into: one a thread, or a few a worker."""
    return threads if workers == 1 else SPANS_A_WORKER * workers


def precision_of(problem: Problem, request: Request, multiplications: int) -> str:
    """Precision of products: single where float32 holds the values and there is enough to multiply."""
    if request.precision != "auto":
        return request.precision
    return "single" if problem.suits_single and multiplications > SMALL_PRODUCT else "double"


def solver_of(size: int, request: Request, most: int) -> str:
    """Solver of an eigenproblem of order `size`, of which `most` eigenvalues are not zero."""
    wanted = request.counted_on(most)
    if request.n_components == "mle" or size <= DENSE_FEATURES or wanted is None:
        return "dense"
    return "lanczos" if isinstance(wanted, float) or wanted <= size // 8 else "dense"
