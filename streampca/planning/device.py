"""Memory of a device that multiplies blocks of samples, phase by phase, and what is refused there."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import BudgetError, RequestError
from ..units import MIB, format_bytes, format_shape
from .memory import PROBES, PROBES_OF_PASS, REGRESSED_FEATURES, Phase, upper_entries
from .request import Problem

# Libraries of CUDA, torch's allocator of memory in pieces, and a product's own workspace.
RUNTIME = {"libraries of the device": 512 * MIB}
# Samples are projected, and made, by tiles of this size: large beside what starting a product takes, and small beside a
# device's memory. A tile has at least TILE_ROWS rows, as every tile multiplies all components.
TILE_BYTES, TILE_ROWS = 64 * MIB, 64


def among_phase(name: str, problem: Problem, order: int, piece: int, precision: str) -> Phase:
    """Return the memory while pieces of samples, or of features, are multiplied with themselves.

    Parameters
    ----------
    name : str
        Name of the matrix of all products.
    problem : Problem
        The collection.
    order, piece : int
        Order of that matrix, and number of the other side of a piece.
    precision : {"single", "double"}
        Precision of products; those in double are added to the sum as they are made.
    """
    shape = format_shape((order, order))
    items = {f"{name}, {shape} float64": 8 * order**2}
    if precision == "single":
        items[f"product of a piece, {shape} float32"] = 4 * order**2
    return Phase.of(name, items, _piece_items(problem, order, piece, precision, PROBES_OF_PASS), RUNTIME)


def vectors_phase(problem: Problem, length: int, piece: int, width: int) -> Phase:
    """Return the memory while pieces are multiplied with vectors of a length, which can go on in double precision."""
    width += PROBES_OF_PASS
    shape = format_shape((length, width))
    items = {
        f"product with vectors, {shape} float64": 8 * length * width,
        "product of a piece, and the vectors": 3 * 8 * length * width,
    }
    return Phase.of("pass", items, _piece_items(problem, length, piece, "double", width), RUNTIME)


def start_phase(problem: Problem, rows: int, width: int) -> Phase:
    """Return the memory while so many sampled rows, and a block of vectors, are multiplied."""
    p, itemsize = problem.n_features, 4 if problem.is_narrow else 8
    items = {
        f"sample of {rows} rows, centred": itemsize * rows * p,
        f"Gram matrix of the sample, {format_shape((rows, rows))}": 12 * rows**2,
        "start block": itemsize * width * (rows + p),
    }
    return Phase.of("start", items, RUNTIME)


def paired_phase(problem: Problem, rows: int, width: int) -> Phase:
    """Return the memory while so many samples are multiplied with numbers of each, in double precision."""
    p = problem.n_features
    items = {
        f"product with {width} numbers of each sample": 2 * 8 * p * width,
        "numbers of a piece": 8 * rows * width,
    }
    return Phase.of("products", items, _piece_items(problem, p, rows, "double", 1), RUNTIME)


def regression_phase(problem: Problem, features: int, width: int, rows: int, itemsize: int) -> Phase:
    """Return the memory while features are regressed on the scores of so many latent variables, a piece at a time."""
    p, numbers = problem.n_features, upper_entries(width + 1) + width + 1
    tile = min(REGRESSED_FEATURES, p)
    items = {
        f"normal equations of {features} features": 8 * features * numbers,
        "the vectors": itemsize * p * width,
        f"centred piece of {rows} samples, and what of a tile is observed": (p + 2 * tile) * rows * itemsize,
        "scores of a piece, and their moments": rows * (8 + 2 * itemsize) * numbers,
        "tile of the vectors, and products of it": tile * itemsize * 3 * numbers,
    }
    return Phase.of("pass", items, RUNTIME)


def components_phase(problem: Problem, piece: int, k: int) -> Phase:
    """Return the memory while features of all samples are projected, in double precision where that is needed."""
    n, columns = problem.n_samples, k + PROBES
    items = {
        f"{k} eigenvectors of {n} samples, and probes": 8 * n * columns,
        "components of a tile": 8 * columns * piece,
    }
    return Phase.of("components", items, _piece_items(problem, n, piece, "double", PROBES), RUNTIME)


def applied_phase(stored: int, k: int, features: int, itemsize: int) -> Phase:
    """Return the memory while samples are projected on k components of so many features, and made of these.

    Values of samples have `stored` bytes each, and `itemsize` as they are multiplied.
    """
    rows, wide = rows_on_device(features, itemsize), stored + 8 * (itemsize == 8)
    items = {
        f"{k} components of {features} features": itemsize * k * features,
        f"tile of {rows} samples, as stored and centred, or as made": (wide + 2 * itemsize) * rows * features,
        "their scores": 2 * itemsize * rows * k,
    }
    return Phase.of("apply", items, RUNTIME)


def rows_on_device(features: int, itemsize: int) -> int:
    """Return how many rows of so many features are projected, or made, on a device at a time."""
    return max(TILE_ROWS, TILE_BYTES // (itemsize * max(1, features)))


def features_on_device(problem: Problem, k: int, itemsize: int) -> int:
    """Return the most features of k components that a device holds; without one, all of the problem."""
    free, p = problem.machine.device_memory, problem.n_features
    if free is None:
        return p
    fits = (features for features in _halves(p) if applied_phase(problem.itemsize, k, features, itemsize).total <= free)
    return next(fits, 1)


def _halves(count: int) -> Iterator[int]:
    while count > 1:
        yield count
        count = -(-count // 2)
    yield 1


def _piece_items(problem: Problem, length: int, piece: int, precision: str, width: int) -> dict[str, int]:
    """A piece as stored and in double precision while it is centred, centred, and its squares; and times vectors."""
    itemsize = 8 if precision == "double" else 4
    return {
        f"piece of {piece} x {length}, as stored and centred": (problem.itemsize + 8 + 2 * itemsize) * length * piece,
        "probes": itemsize * width * (2 * length + piece),
    }


def check_applied(k: int, features: int, device: str, free: int) -> None:
    """Refuse to apply k components of so many features on a device to samples of any dtype.

    Raises
    ------
    BudgetError
        If it has not enough memory.
    """
    needed = applied_phase(8, k, features, 8).total
    if needed > free:
        raise device_refusal(f"applying {k} components of {features} features", device, format_bytes(needed), free)


def check_device(problem: Problem) -> None:
    """Refuse a problem that a device does not multiply for.

    Raises
    ------
    RequestError
        If samples are sparse.
    """
    if problem.sparse_values:
        raise RequestError("sparse samples are not multiplied on a device; leave --device (device) out.")


def device_refusal(doing: str, device: str, needed: str, free: int, other: str = "") -> BudgetError:
    """Return the refusal of products that need more memory than their device has free.

    Parameters
    ----------
    doing, device : str
        What does not fit, and the device.
    needed : str
        Its memory there, in words.
    free : int
        Bytes that are free.
    other : str, optional
        Another remedy, as a sentence's beginning.
    """
    leave = f"{other}, or leave" if other else "Leave"
    return BudgetError(
        f"{doing} needs {needed} of the memory of device {device!r}, and {format_bytes(free)} are free. "
        f"{leave} --device (device) out to multiply on the processor."
    )
