"""Memory of a device that multiplies blocks of samples, and what is refused there."""

from __future__ import annotations

from ..errors import BudgetError, RequestError
from ..units import format_bytes
from .memory import PROBES_OF_PASS
from .plan import Plan

METHODS = ("covariance", "dual", "randomized")
# Libraries of CUDA, torch's allocator of memory in pieces, and a product's own workspace.
RUNTIME = 512 * 2**20


def device_bytes(plan: Plan) -> int:
    """Return the bytes that a plan takes of the device's memory, in its most precise pass."""
    problem, itemsize = plan.problem, 8 if plan.precision == "double" else 4
    if plan.method == "randomized":  # which can go on in double precision
        itemsize = 8
    n, p = problem.n_samples, problem.n_features
    # Along features rows are multiplied, in tiles of so many features with all samples otherwise.
    long, piece = (n, plan.product_features) if plan.product_features else (p, plan.product_rows)
    width = plan.width + PROBES_OF_PASS if plan.method == "randomized" else long
    total = (8 + itemsize) * long * width
    # A block as stored and in double precision while it is centred, centred, and its squares.
    blocks = (problem.itemsize + 8 + 2 * itemsize) * long * piece
    vectors = 2 * itemsize * long * (width if plan.method == "randomized" else PROBES_OF_PASS)
    return total + blocks + vectors + RUNTIME


def check_device(plan: Plan) -> None:
    """Refuse a plan whose products its device cannot make.

    Raises
    ------
    RequestError
        If its method does not multiply on devices.
    BudgetError
        If it needs more memory than the device has free.
    """
    device = plan.request.device
    if plan.method not in METHODS:
        methods = f"{', '.join(METHODS[:-1])} and {METHODS[-1]}"
        raise RequestError(
            f"method {plan.method!r} is not computed on a device (device={device!r}), only {methods} are; leave device "
            "out."
        )
    if plan.problem.sparse_values:
        raise RequestError(f"sparse samples are not multiplied on a device (device={device!r}); leave device out.")
    needed, free = device_bytes(plan), plan.problem.machine.device_memory
    if needed > free:
        raise BudgetError(
            f"method {plan.method!r} needs {format_bytes(needed)} of the memory of device {device!r}, and "
            f"{format_bytes(free)} are free; leave device out to multiply on the processor."
        )
