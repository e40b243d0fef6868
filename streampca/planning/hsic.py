"""Plans of the Hilbert-Schmidt independence criterion: by tiles of both kernel matrices, or by features in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Self

from ..errors import DataError, RequestError
from ..kinds.hsic import LEAST_TEST, HsicDescription
from ..units import MIB, counted, facts_as_text, format_bytes
from .blocks import BLOCK_SHARES, MOST_BLOCK, Span, block_rows, span_count, spans_of
from .candidate_sizes import SizesByBudget, most_that_fits, search_or_refuse
from .memory import Phase, decoding_bytes, decoding_items, runtime, thread_count
from .request import Problem

DRAWN = ("rbf", "laplacian")  # kernels of which random Fourier features are known
DELTA = "delta"  # kernel of classes: 1 of two samples of one class, else 0; computed exactly, whatever their number
LANDMARKS = 200  # default
EXACT_SAMPLES = 10_000  # up to so many "auto" is exact: some seconds on two cores
EXACT_TEST = 2_000  # samples whose n x n kernels are permuted: 200 permutations take some seconds
FEATURES = {"landmarks": "Nystroem features", "fourier": "random Fourier features"}  # by method, in words
TILES = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)  # samples along the side of a tile
TILE_COPIES = 6  # arrays of the size of a tile: two kernels, and what one is made with
PIECE = 8 * MIB  # float64 arrays that rows are mapped in at a time
LEAST_PIECE, MOST_PIECE = 64, 8192  # rows mapped at a time; fewer would centre the landmarks too often
MEDIAN_BYTES = 32 * MIB  # bytes in float64 of the sample of rows whose median distance is taken
MEDIAN_ROWS = (50, 1000)  # rows of this sample, at least and at most


@dataclass(frozen=True, kw_only=True)
class HsicRequest(HsicDescription):
    """Options of `streampca.hsic`, with checked values, the budget in bytes, and how many workers share the work."""

    memory: int | None = None
    workers: int = 1


@dataclass(frozen=True)
class Side:
    """Sizes of one of the two collections, and of the features that stand for its kernel.

    Attributes
    ----------
    problem : Problem
        Sizes of the collection.
    exact_width : int or None
        Number of features that give its kernel exactly, for classes and the linear kernel; None for other kernels.
    name : str
        Name of the kernel, for messages.
    """

    problem: Problem
    exact_width: int | None
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


@dataclass(frozen=True, kw_only=True)
class HsicPlan(SizesByBudget):
    """Plan for computing and testing the criterion of two collections; before it is chosen, a candidate.

    Attributes
    ----------
    problem : Problem
        Sizes of the first collection.
    sides : (Side, Side)
        Both collections.
    request : HsicRequest
        The request.
    method : {"exact", "landmarks", "fourier"}
    block_rows : int
        Samples read at a time; for "exact", samples along the side of a tile.
    share : int
        Share of the budget, one in so many, that a block takes at most.
    threads, ahead : int
        Spans at a time, blocks of each read ahead.
    test : {"exact", "landmarks", "none"}
        Kernel values that are permuted, exact or by features.
    test_samples : int
        Number of samples permuted; a random sample where they are not all.
    test_rows : int
        Samples along the side of a tile for "exact", samples mapped at a time for "landmarks".
    """

    sides: tuple[Side, Side]
    request: HsicRequest
    method: str
    threads: int
    ahead: int
    block_rows: int = 0
    share: int = 0
    test: str = "none"
    test_samples: int = 0
    test_rows: int = 0

    def decisive(self) -> dict[str, Any]:
        """Return the fields that decide the bits of the answer, as plain data."""
        names = ("method", "block_rows", "piece_rows", "threads", "ahead", "test", "test_samples", "test_rows")
        return {name: getattr(self, name) for name in names} | {"spans": [list(span) for span in self.spans]}

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans of samples; for "exact", of tiles."""
        n, count = self.problem.n_samples, span_count(self.request.workers, self.threads)
        if self.method == "exact":
            return spans_of(tile_count(n, self.block_rows), count)
        return spans_of(n, count, self.block_rows)

    @property
    def piece_rows(self) -> int:
        """Samples mapped at a time."""
        return self.block_rows if self.method == "exact" else self._piece_rows(self.method, self.block_rows)

    # -- in words

    def __str__(self) -> str:
        return facts_as_text(self.lines())

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the plan in words, as (heading, text) pairs."""
        for heading, side in zip(("collections", ""), self.sides, strict=True):
            of = counted(side.problem.n_features, "feature")
            yield heading, f"{side.problem.n_samples} samples of {of}, kernel {side.name}"
        if self.method == "exact":
            yield "method", f"exact kernels, in tiles of {self.block_rows} x {self.block_rows} samples"
        else:
            widths = " and ".join(map(str, self._widths(self.method)))
            yield "method", f"{widths} {FEATURES[self.method]}, in one pass by blocks of {self.block_rows} samples"
        yield "test", self.tested or "none"
        estimate, budget = self.memory_estimate, self.problem.machine.budget(self.request.memory)[0]
        yield "memory", f"{format_bytes(estimate.total)} planned, {format_bytes(budget)} allowed"
        for name, count in estimate.largest.items:
            yield "", f"{format_bytes(count):>9}  {name}"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        phases = {phase.name: dict(phase.items) for phase in self.memory_estimate.phases}
        memory = self.problem.machine.budget(self.request.memory)[0]
        return {**self.decisive(), "memory": memory, "memory_estimate": phases}

    # -- the search

    def cut(self, memory: int) -> Self:
        """Return the sizes with a block of their share, and a test of as many samples as so many bytes allow."""
        sizes = self
        if self.share:
            n, chunk, stored = self.problem.n_samples, self.problem.chunk_samples, self._stored_bytes
            span_rows = -(-n // span_count(self.request.workers, self.threads))
            rows = block_rows(stored, chunk, min(MOST_BLOCK, memory // self.share))
            sizes = replace(self, block_rows=min(rows, n, -(-span_rows // chunk) * chunk))
        # Where the sums themselves do not fit, nobody needs to know how many samples could be permuted.
        return sizes._with_test(memory) if sizes._sums_phase().total <= memory else sizes

    def _with_test(self, memory: int) -> Self:
        """Choose what is permuted, of how many samples, and by how many at a time."""
        n = self.problem.n_samples
        if not self.request.permutations:
            return self
        if n <= EXACT_TEST:
            for rows in TILES:
                if self._exact_test_phase(rows).total <= memory:
                    return replace(self, test="exact", test_samples=n, test_rows=rows)
        most = min(n, self.request.test_samples)
        count = most_that_fits(lambda rows: self._features_test_phase(rows).total <= memory, most)
        count = max(count, min(LEAST_TEST, n))
        return replace(self, test="landmarks", test_samples=count, test_rows=self._piece_rows("landmarks", count))

    # -- memory

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        yield self._sampling_phase()
        yield self._sums_phase()
        if self.test == "exact":
            yield self._exact_test_phase(self.test_rows)
        elif self.test == "landmarks":
            yield self._features_test_phase(self.test_samples)

    @property
    def _stored_bytes(self) -> int:
        """Bytes of a sample of both collections as read."""
        return sum(side.problem.sample_bytes for side in self.sides)

    @property
    def tested(self) -> str:
        """Description of the test; empty without one."""
        n, count = self.problem.n_samples, self.test_samples
        if self.test == "none":
            return ""
        samples = f"all {n} samples" if count == n else f"{count} of {n} samples, drawn at random"
        values = "the exact kernels" if self.test == "exact" else "Nystroem features"
        return f"{counted(self.request.permutations, 'permutation')} of {values} of {samples}"

    def _widths(self, method: str) -> list[int]:
        return [side.width(method, self.request) for side in self.sides]

    def _piece_rows(self, method: str, most: int) -> int:
        """Return the rows that are mapped at a time."""
        widths = self._widths(method)
        row = sum(side.mapping_bytes(width) for side, width in zip(self.sides, widths, strict=True))
        # Multiplying few rows takes less time than adding the product.
        least = max(LEAST_PIECE, min(MOST_PIECE // 16, min(widths) // 4))
        return min(most, max(least, min(MOST_PIECE, PIECE // row)))

    def _sampling_phase(self) -> Phase:
        """Memory while kernels' parameters are found in a sample of rows: as read, in float64, their distances."""
        rows = {"sample of rows, for the kernels' parameters": 0, "distances of these": 0}
        for side in self.sides:
            count, p = side.median_rows, side.problem.n_features
            rows["sample of rows, for the kernels' parameters"] += count * (side.problem.sample_bytes + 16 * p)
            rows["distances of these"] = max(rows["distances of these"], 16 * count * count)
        return Phase.of("sample", rows, self._decoding(1000, 1), runtime())

    def _decoding(self, rows: int, threads: int) -> dict[str, int]:
        """Bytes by name that are held while a block of either collection is read."""
        largest = max((side.problem for side in self.sides), key=lambda problem: decoding_bytes(problem, rows))
        return decoding_items(largest, rows, threads)

    def _sums_phase(self) -> Phase:
        """Memory while both collections are read: by tiles of kernels, or by blocks whose features are multiplied."""
        rows, threads, ahead = self.block_rows, self.threads, self.ahead
        decoding = self._decoding(rows, threads)
        if self.method == "exact":
            return Phase.of("kernels", self._tile_items(rows, threads, ahead), decoding, runtime(threads))
        widths = self._widths(self.method)
        items = {
            f"{1 + ahead} blocks of {rows} samples as read": threads * (1 + ahead) * rows * self._stored_bytes,
            **self._mapping_items(self.method, self.piece_rows, threads),
            f"cross-scatter, {widths[0]} x {widths[1]} float64": (1 + 3 * threads) * 8 * widths[0] * widths[1],
        }
        return Phase.of("features", items, decoding, runtime(threads))

    def _tile_items(self, rows: int, threads: int, ahead: int) -> dict[str, int]:
        """Bytes by name of tiles of a side of so many samples."""
        widest = max(side.problem.sample_bytes + 16 * side.problem.n_features for side in self.sides)
        return {
            f"{2 + ahead} strips of {rows} samples as read": threads * (2 + ahead) * rows * self._stored_bytes,
            "strips in float64": threads * 2 * rows * widest,
            f"tiles of two kernels, {rows} x {rows} float64": threads * TILE_COPIES * 8 * rows * rows,
            "sums of rows, and diagonals": 2 * threads * 4 * 8 * self.problem.n_samples,
        }

    def _mapping_items(self, method: str, rows: int, threads: int) -> dict[str, int]:
        """Bytes by name of both maps, and of so many samples that are mapped at a time."""
        maps = sum(side.map_bytes(method, self.request) for side in self.sides)
        row = sum(side.mapping_bytes(side.width(method, self.request)) for side in self.sides)
        name = "frequencies" if method == "fourier" else "landmarks"
        return {f"{name} of both": maps, f"{rows} samples while they are mapped": threads * rows * row}

    def _exact_test_phase(self, rows: int) -> Phase:
        """Memory while kernels of all samples are made of tiles, and permuted."""
        n = self.problem.n_samples
        matrices = {f"both kernels, and one permuted, {n} x {n} float64": 5 * 8 * n * n}
        tiles = self._tile_items(rows, 1, 0) | self._decoding(rows, 1)
        return Phase.of("permutations", tiles, runtime(), matrices)

    def _features_test_phase(self, count: int) -> Phase:
        """Memory while the features of some samples are permuted."""
        widths, piece = self._widths("landmarks"), self._piece_rows("landmarks", count)
        items = {
            f"features of {count} samples, and those permuted": 8 * count * (widths[0] + 2 * widths[1] + 4),
            f"{piece} samples as read": 2 * piece * self._stored_bytes,
            **self._mapping_items("landmarks", piece, 1),
            "cross-scatter": 2 * 8 * widths[0] * widths[1],
        }
        return Phase.of("permutations", items, self._decoding(piece, 1), runtime())


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
        if side.name not in DRAWN and not side.is_exact(method, request):
            raise RequestError(
                f"random features are of kernels {' and '.join(DRAWN)}, and the kernel is {side.name}; use method "
                "'landmarks'."
            )
    more = ", or give fewer landmarks or features" if method != "exact" else ", or use method 'landmarks'"
    doing, budget = f"HSIC of {n} samples by method {method!r}", first.problem.machine.budget(request.memory)
    return search_or_refuse(doing, candidate_sizes((first, second), request, method), budget, more)


def candidate_sizes(sides: tuple[Side, Side], request: HsicRequest, method: str) -> list[list[HsicPlan]]:
    """Return the sizes of a method, each by itself: most threads and the largest blocks, which are fastest, first."""
    problem = sides[0].problem
    most = 1 if request.workers > 1 else thread_count(problem.machine.cores)
    cuts = [(rows, 0) for rows in TILES] if method == "exact" else [(0, share) for share in BLOCK_SHARES]
    return [
        [
            HsicPlan(
                problem=problem, sides=sides, request=request, method=method, threads=threads, ahead=ahead,
                block_rows=rows, share=share,
            )
        ]
        for threads, (rows, share), ahead in product(range(most, 0, -1), cuts, (1, 0))
    ]  # fmt: skip


def tile_count(n: int, side: int) -> int:
    """Return the tiles of the upper triangle of an n x n matrix."""
    strips = -(-n // side)
    return strips * (strips + 1) // 2
