"""The choice of integer units for products of whole numbers, and the memory that they take."""

from __future__ import annotations

from .candidate_sizes import SMALL_PRODUCT
from .memory import INTEGER_LIBRARY, in_threads, integer_bytes
from .rates import INTEGER_RATES, RATES
from .request import Problem, Request


def worthwhile_units(problem: Problem, request: Request, multiplications: int, precision: str) -> str:
    """Return the integer units that make so many products faster than floating point does, or "none".

    Samples of a floating-point dtype may turn out to hold whole numbers of 16 bits. Products of these are rounded where
    there are no such units, so that a result would depend on which worker has any.
    """
    units = problem.machine.integer_units
    if units not in INTEGER_RATES or multiplications <= SMALL_PRODUCT:
        return "none"
    if problem.kind != "f" and problem.itemsize > 2:
        return "none"
    if request.workers > 1 and bytes_a_number(problem) > 1:
        return "none"
    rate = RATES.double if precision == "double" else RATES.single
    return units if INTEGER_RATES[units] > rate * bytes_a_number(problem) ** 2 else "none"


def bytes_a_number(problem: Problem) -> int:
    """Bytes of the whole numbers that samples hold, or may hold."""
    return 2 if problem.kind == "f" else problem.itemsize


def integer_items(n_columns: int, bytes_a_number: int, rows: int, threads: int) -> dict[str, int]:
    """Bytes by name of products of columns on integer units: the library, and what each of so many threads holds."""
    library = {"library for integer units": INTEGER_LIBRARY}
    return library | in_threads(integer_bytes(n_columns, bytes_a_number, rows), threads)
