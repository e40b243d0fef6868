"""Plans of the Hilbert-Schmidt independence criterion: by tiles of both kernel matrices, or by features in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import DataError, RequestError
from ..kinds.options import TARGET_TYPES
from ..units import MIB, whole_number
from .blocks import Span, block_rows, spans_of
from .budget import BLOCK_SHARES, MOST_BLOCK, most_that_fits, span_count, too_small
from .memory import MemoryEstimate, Phase, decoding_bytes, runtime
from .request import Problem
from .sizes import thread_count

DELTA = "delta"  # kernel of classes: 1 of two samples of one class, else 0; computed exactly, whatever their number
METHODS = ("exact", "landmarks", "fourier")
ESTIMATORS = ("biased", "unbiased")
LANDMARKS, FEATURES = 200, 1024  # defaults: landmarks are far more accurate, so that more features are needed
EXACT_SAMPLES = 10_000  # up to so many "auto" is exact: some seconds on two cores
EXACT_TEST = 2_000  # samples whose n x n kernels are permuted: 200 permutations take some seconds
LEAST_TEST = 50  # samples of a test, of which fewer tell little
TILES = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)  # samples along the side of a tile
TILE_COPIES = 6  # arrays of the size of a tile: two kernels, and what one is made with
PIECE = 8 * MIB  # float64 arrays that rows are mapped in at a time
LEAST_PIECE, MOST_PIECE = 64, 8192  # rows mapped at a time; fewer would centre the landmarks too often
MEDIAN_BYTES = 32 * MIB  # bytes in float64 of the sample of rows whose median distance is taken
MEDIAN_ROWS = (50, 1000)  # rows of this sample, at least and at most


@dataclass(frozen=True)
class HsicRequest:
    """Options of `streampca.hsic` that concern planning; see there."""

    method: str = "auto"
    estimator: str = "biased"
    landmarks: int | None = None
    random_features: int = FEATURES
    permutations: int = 200
    test_samples: int = 10_000
    random_state: int = 0
    memory: int | None = None
    workers: int = 1
    target_type: str = "auto"

    def __post_init__(self) -> None:
        allowed = {"method": ("auto", *METHODS), "estimator": ESTIMATORS, "target_type": TARGET_TYPES}
        for name, known in allowed.items():
            if getattr(self, name) not in known:
                raise RequestError(f"{name} {getattr(self, name)!r} is not one of {', '.join(known)}.")
        counts = {"landmarks": 2, "random_features": 2, "permutations": 0, "test_samples": LEAST_TEST}
        for name, least in counts.items():
            if getattr(self, name) is not None:
                example = str(max(least, getattr(HsicRequest, name) or LANDMARKS))
                object.__setattr__(self, name, whole_number(getattr(self, name), name, least=least, example=example))


@dataclass(frozen=True)
class Side:
    """Sizes of one of the two collections, and of the features that stand for its kernel.

    Attributes
    ----------
    problem : Problem
        Sizes of the collection.
    exact_width : int or None
        Number of features that give its kernel exactly, for classes and the linear kernel; None for other kernels.
    draws : bool
        Whether random Fourier features are known for its kernel.
    name : str
        Name of the kernel, for messages.
    """

    problem: Problem
    exact_width: int | None
    draws: bool
    name: str

    def width(self, method: str, request: HsicRequest) -> int:
        """Return the number of features by which the kernel is computed."""
        landmarks = min(request.landmarks or LANDMARKS, self.problem.n_samples)
        most = request.random_features if method == "fourier" else landmarks
        if self.exact_width is not None and (self.name == DELTA or self.exact_width <= most):
            return self.exact_width
        return most

    def is_exact(self, method: str, request: HsicRequest) -> bool:
        """Return whether these features give the kernel exactly."""
        return self.width(method, request) == self.exact_width

    @property
    def median_rows(self) -> int:
        """Rows of the sample by which the kernel's parameters are found."""
        least, most = MEDIAN_ROWS
        return min(self.problem.n_samples, max(least, min(most, MEDIAN_BYTES // (8 * self.problem.n_features))))

    def map_bytes(self, method: str, request: HsicRequest) -> int:
        """Return the bytes of the map: landmarks as stored, and centred in float64 while a piece is mapped."""
        p, q = self.problem.n_features, self.width(method, request)
        if self.is_exact(method, request):
            return 8 * p
        return 8 * p * q if method == "fourier" else p * q * (self.problem.itemsize + 16) + 8 * q * q

    def mapping_bytes(self, width: int) -> int:
        """Return the bytes of a row while it is mapped: in float64, less the origin, its kernel values and features."""
        return 8 * (2 * self.problem.n_features + 6 * width)


@dataclass(frozen=True)
class HsicPlan:
    """Plan for computing and testing the criterion of two collections.

    Attributes
    ----------
    method : {"exact", "landmarks", "fourier"}
    block_rows : int
        Samples read at a time; for "exact", samples along the side of a tile.
    piece_rows : int
        Samples mapped at a time.
    spans : tuple of Span
        Spans of samples; for "exact", of tiles.
    threads, ahead : int
        Spans at a time, blocks of each read ahead.
    test : {"exact", "landmarks", "none"}
        Kernel values that are permuted, exact or by features.
    test_samples : int
        Number of samples permuted; a random sample where they are not all.
    test_rows : int
        Samples along the side of a tile for "exact", samples mapped at a time for "landmarks".
    memory_estimate : MemoryEstimate
        Bytes by name, phase by phase.
    """

    method: str
    block_rows: int
    piece_rows: int
    spans: tuple[Span, ...]
    threads: int
    ahead: int
    test: str
    test_samples: int
    test_rows: int
    memory_estimate: MemoryEstimate

    def decisive(self) -> dict[str, Any]:
        """Return the fields that decide the bits of the answer, as plain data."""
        names = ("method", "block_rows", "piece_rows", "threads", "ahead", "test", "test_samples", "test_rows")
        return {name: getattr(self, name) for name in names} | {"spans": [list(span) for span in self.spans]}


def plan_hsic(first: Side, second: Side, request: HsicRequest) -> HsicPlan:
    """Choose method, blocks and test.

    Raises
    ------
    DataError
        If there are fewer than four samples.
    RequestError
        If there are more landmarks than samples, or no random features of a kernel.
    BudgetError
        If nothing fits the budget, naming the one that would do.
    """
    n, method = first.problem.n_samples, request.method
    if n < 4:
        raise DataError(f"HSIC needs at least 4 samples, and there are {n}; give more.")
    if request.landmarks is not None and request.landmarks > n:
        raise RequestError(f"landmarks {request.landmarks} are more than the {n} samples; give at most {n}.")
    if method == "auto":
        method = "exact" if n <= EXACT_SAMPLES else "landmarks"
    for side in (first, second) if method == "fourier" else ():
        if not side.draws and not side.is_exact(method, request):
            raise RequestError(
                f"random features are of kernels rbf and laplacian, and the kernel is {side.name}; use method "
                "'landmarks'."
            )
    budget = first.problem.machine.budget(request.memory)
    plans = list(_plans(first, second, request, method, budget[0]))
    found = next((plan for plan in plans if plan.memory_estimate.total <= budget[0]), None)
    if found is None:
        least = min(plans, key=lambda plan: plan.memory_estimate.total).memory_estimate
        raise too_small(
            f"HSIC of {n} samples by method {method!r}",
            least.total,
            budget,
            share=f"{least.largest.largest_share} takes much of it",
            more=", or give fewer landmarks or features" if method != "exact" else ", or use method 'landmarks'",
        )
    return found


def _plans(first: Side, second: Side, request: HsicRequest, method: str, budget: int) -> Iterator[HsicPlan]:
    """Yield plans by one method, the fastest first."""
    n, cores = first.problem.n_samples, first.problem.machine.cores
    sampling = _sampling(first, second)
    test, samples, tested, testing = _test(first, second, request, budget)
    most = 1 if request.workers > 1 else thread_count(cores)
    for threads in range(most, 0, -1):
        for sizes in (
            _tiles(first, second, threads)
            if method == "exact"
            else _blocks(first, second, request, method, threads, budget)
        ):
            rows, piece, ahead, phase = sizes
            units = n if method != "exact" else tile_count(n, rows)
            spans = spans_of(units, span_count(request.workers, threads), rows if method != "exact" else 1)
            estimate = MemoryEstimate((sampling, phase, *testing))
            yield HsicPlan(method, rows, piece, spans, threads, ahead, test, samples, tested, estimate)


def tile_count(n: int, side: int) -> int:
    """Return the tiles of the upper triangle of an n x n matrix."""
    strips = -(-n // side)
    return strips * (strips + 1) // 2


def _sampling(first: Side, second: Side) -> Phase:
    """Memory while kernels' parameters are found in a sample of rows: as read, in float64, their distances."""
    rows = {"sample of rows, for the kernels' parameters": 0, "distances of these": 0}
    for side in (first, second):
        count, p = side.median_rows, side.problem.n_features
        rows["sample of rows, for the kernels' parameters"] += count * (side.problem.sample_bytes + 16 * p)
        rows["distances of these"] = max(rows["distances of these"], 16 * count * count)
    return Phase.of("sample", rows, _decoding(first, second, 1000, 1), runtime())


def _decoding(first: Side, second: Side, rows: int, threads: int) -> dict[str, int]:
    needed = [
        decoding_bytes(side.problem, rows)
        for side in (first, second)
        if side.problem.decode_bytes or side.problem.scratch_bytes
    ]
    return {"storage being decoded": threads * max(needed)} if needed else {}


def _tiles(first: Side, second: Side, threads: int) -> Iterator[tuple[int, int, int, Phase]]:
    """Yield sides of tiles, what is read ahead, and the memory of that, largest first."""
    n = first.problem.n_samples
    sizes = {side.problem.sample_bytes + 16 * side.problem.n_features for side in (first, second)}
    stored = first.problem.sample_bytes + second.problem.sample_bytes
    for rows in TILES:
        for ahead in (1, 0):
            items = {
                f"{2 + ahead} strips of {rows} samples as read": threads * (2 + ahead) * rows * stored,
                "strips in float64": threads * 2 * rows * max(sizes),
                f"tiles of two kernels, {rows} x {rows} float64": threads * TILE_COPIES * 8 * rows * rows,
                "sums of rows, and diagonals": 2 * threads * 4 * 8 * n,
            }
            decoding = _decoding(first, second, rows, threads)
            yield rows, rows, ahead, Phase.of("kernels", items, decoding, runtime(threads))


def _blocks(
    first: Side, second: Side, request: HsicRequest, method: str, threads: int, budget: int
) -> Iterator[tuple[int, int, int, Phase]]:
    """Yield rows of blocks and of pieces, what is read ahead, and the memory of that, largest first."""
    n, widths = first.problem.n_samples, [side.width(method, request) for side in (first, second)]
    stored = first.problem.sample_bytes + second.problem.sample_bytes
    chunk = first.problem.chunk_samples
    each = -(-n // span_count(request.workers, threads))  # samples of a span, in whole chunks
    for share in BLOCK_SHARES:
        rows = block_rows(stored, chunk, min(MOST_BLOCK, budget // share))
        rows = min(rows, n, -(-each // chunk) * chunk)
        piece = piece_rows(first, second, widths, rows)
        for ahead in (1, 0):
            items = {
                f"{1 + ahead} blocks of {rows} samples as read": threads * (1 + ahead) * rows * stored,
                **_mapping(first, second, request, method, piece, threads),
                f"cross-scatter, {widths[0]} x {widths[1]} float64": (1 + 3 * threads) * 8 * widths[0] * widths[1],
            }
            decoding = _decoding(first, second, rows, threads)
            yield rows, piece, ahead, Phase.of("features", items, decoding, runtime(threads))


def piece_rows(first: Side, second: Side, widths: list[int], most: int) -> int:
    """Return the rows that are mapped at a time."""
    row = sum(side.mapping_bytes(width) for side, width in zip((first, second), widths, strict=True))
    # Multiplying few rows takes less time than adding the product.
    least = max(LEAST_PIECE, min(MOST_PIECE // 16, min(widths) // 4))
    return min(most, max(least, min(MOST_PIECE, PIECE // row)))


def _mapping(first: Side, second: Side, request: HsicRequest, method: str, rows: int, threads: int) -> dict[str, int]:
    sides = (first, second)
    maps = sum(side.map_bytes(method, request) for side in sides)
    row = sum(side.mapping_bytes(side.width(method, request)) for side in sides)
    name = "frequencies" if method == "fourier" else "landmarks"
    return {f"{name} of both": maps, f"{rows} samples while they are mapped": threads * rows * row}


def _test(first: Side, second: Side, request: HsicRequest, budget: int) -> tuple[str, int, int, list[Phase]]:
    """Choose what is permuted, of how many samples, by how many at a time, and its memory."""
    n = first.problem.n_samples
    if not request.permutations:
        return "none", 0, 0, []
    if n <= EXACT_TEST:
        matrices = {f"both kernels, and one permuted, {n} x {n} float64": 5 * 8 * n * n}
        for rows, _, ahead, phase in _tiles(first, second, 1):
            tested = Phase.of("permutations", dict(phase.items), matrices)
            if not ahead and tested.total <= budget:
                return "exact", n, rows, [tested]
    most = min(n, request.test_samples)
    count = most_that_fits(lambda rows: _features_test(first, second, request, rows)[1].total <= budget, most)
    count = max(count, min(LEAST_TEST, n))
    piece, tested = _features_test(first, second, request, count)
    return "landmarks", count, piece, [tested]


def _features_test(first: Side, second: Side, request: HsicRequest, count: int) -> tuple[int, Phase]:
    """Return the rows mapped at a time, and the memory of permuting the features of some samples."""
    widths = [side.width("landmarks", request) for side in (first, second)]
    piece = piece_rows(first, second, widths, count)
    stored = first.problem.sample_bytes + second.problem.sample_bytes
    items = {
        f"features of {count} samples, and those permuted": 8 * count * (widths[0] + 2 * widths[1] + 4),
        f"{piece} samples as read": 2 * piece * stored,
        **_mapping(first, second, request, "landmarks", piece, 1),
        "cross-scatter": 2 * 8 * widths[0] * widths[1],
    }
    return piece, Phase.of("permutations", items, _decoding(first, second, piece, 1), runtime())
