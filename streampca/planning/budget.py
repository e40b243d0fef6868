"""The budget: the search for what fits, the share of it that a block takes, and the refusal of one too small."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..errors import BudgetError
from ..units import MIB, budget_size, format_bytes
from .request import Machine, Problem, Request

if TYPE_CHECKING:
    from .candidate_sizes import Groups, Sizes
    from .memory import MemoryEstimate, Phase

S = TypeVar("S", bound="Sizes")

MOST_BLOCK = 24 * MIB  # of a block: glibc keeps the pages of up to 32 MiB for the next one (benchmarks/choices.py)
BLOCK_SHARES = (8, 16, 32, 64, 128)  # a block takes at most this fraction of the budget: the first that fits ...
SPANS_A_WORKER = 4  # a task is then short enough for the last ones to end together
SMALL_PRODUCT = 2 * 10**9  # multiplications that double precision takes a few hundredths of a second for
DENSE_FEATURES = 2048  # below, LAPACK's whole spectrum costs less than a second (benchmarks/choices.py)
NO_MACHINE = 2**40  # MiB
CHUNK_SHARE = 4  # ... or this one, when that saves decoding a storage chunk several times


def block_limit(machine: Machine, memory: int | None) -> int:
    """Return the most bytes of a block of a pass that multiplies nothing, by a budget as for `Request`."""
    return min(MOST_BLOCK, machine.budget(memory)[0] // BLOCK_SHARES[0])


def search(groups: Groups[S], memory: int) -> S | None:
    """Return the best sizes of the first group of which any fit in so many bytes; None where none do."""
    for group in groups:
        fitting: list[S] = []
        for family in group:
            fitting.extend(family.within(memory))
        if fitting:
            best = fitting[0] if len(fitting) == 1 else fitting[0].preferred(fitting)
            return best.grown(memory)
    return None


def smallest_sizes(groups: Groups[S]) -> S:
    """Return the sizes that need least memory, which are in the last group."""
    return min((sizes for family in groups[-1] for sizes in family.smallest()), key=lambda sizes: sizes.least_budget)


def search_or_refuse(doing: str, groups: Groups[S], budget: tuple[int, str], more: str = "") -> S:
    """Return the best sizes that fit a budget, which is given with where it comes from.

    Raises
    ------
    BudgetError
        If none fit: the refusal quotes the smallest, and names other remedies (`more`).
    """
    sizes = search(groups, budget[0])
    if sizes is None:
        smallest = smallest_sizes(groups)
        raise refusal(doing, smallest.least_budget, smallest.memory_estimate, budget, more)
    return sizes


def refusal(
    doing: str, least: int, estimate: MemoryEstimate | Phase, budget: tuple[int, str], more: str = ""
) -> BudgetError:
    """Return the refusal of a budget in which not even the smallest sizes fit, with their estimate."""
    # Work before and after the methods, which their estimates leave out, can need more memory than they do.
    needed = estimate.total if estimate.total > budget[0] else least
    share = f"the largest share is the {estimate.largest_share}"
    return too_small(doing, least, budget, needed=needed, share=share, more=more)


def smallest(accepts: Callable[[int], bool], at_least: int = 1) -> int:
    """Return the least number of bytes, in whole MiB, that is accepted; more must be accepted too.

    Raises
    ------
    ValueError
        If as much as no machine has is not accepted: the fault is that of the question.
    """
    low, high, step = (at_least - 1) // MIB, -(-at_least // MIB), 1
    while not accepts(high * MIB):
        low, high, step = high, high + step, 2 * step
        if high > NO_MACHINE:
            raise ValueError("no number of bytes is accepted")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if accepts(middle * MIB) else (middle, high)
    return high * MIB


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
        Bytes that it needs, where that is not `least`.
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
    count = request.counted_on(most)
    if request.n_components == "mle" or size <= DENSE_FEATURES or count is None:
        return "dense"
    return "lanczos" if isinstance(count, float) or count <= size // 8 else "dense"
