"""Sizes of what a method reads by ranges of features, all samples of each together: their memory, and what is read.

*Sweep*: ranges of the collection; storage cut by samples (a file an image) is decoded again for every range. *Scratch*:
one copy in ranges of features, then sweeps of that.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import Self

from ..units import MIB, format_shape
from .blocks import MOST_BLOCK, block_rows
from .candidate_sizes import MethodSizes, most_that_fits, precision_of
from .component_chunks import POOLS, WRITE_COPIES, tile_bytes
from .decoding import read_boxes
from .device import components_phase
from .memory import PROBES, Phase, decoding_items, gram_threads, runtime
from .rates import Work
from .request import Request

SCHEDULES = ("sweep", "scratch")
WORTH_CHANGING = 0.8  # a plan to be preferred gives way to one that takes less than so much of its time
TILES = (4096, 1024, 256)  # features multiplied at a time: adding n x n then costs little beside making it
ALL, CORES = math.inf, 0.0  # limits of a block that are no bytes: all samples, and a storage chunk for each core
LIMITS = (ALL, CORES, MOST_BLOCK, 4 * MIB, MIB // 2, 1)  # bytes of a block as it is read; the last is a single sample
POLISH_PART = 8 * MIB  # of components being multiplied with one another, and as much of what comes of it
# k x k: their products, a part's, LAPACK's copy and work, eigenvectors, and these scaled; or a Cholesky factor of them.
POLISH_SQUARES = {"single": 6, "double": 3}
COPY_POOLS = 26 * MIB  # 8 to 25 measured, with Zarr


def reason_against_schedule(schedule: str, request: Request) -> str:
    """Return why a schedule is out of the question; empty where it is not."""
    if schedule == "scratch" and request.workers > 1:
        return "workers may not share a disk for the scratch copy"
    if schedule == "scratch" and request.scratch is None and not request.output:
        return "no folder for the scratch copy is known; give one by --scratch (scratch=), or give an output"
    return ""


def places(request: Request) -> tuple[bool, ...]:
    """Return the choices for `SizesByFeatures.stored`: components go to disk only where there is an output.

    Kinds of mapped samples have none: their residuals are estimated from components in memory.
    """
    return (False, True) if request.output and not request.model.maps_samples else (False,)


@dataclass(frozen=True, kw_only=True)
class SizesByFeatures(MethodSizes):
    """Sizes of a method that reads by ranges of features; fields as in `Plan`."""

    block_features: int = 1
    product_features: int = 1

    @property
    @abstractmethod
    def multiplications(self) -> int:
        """Multiplications of all passes, by which the precision is chosen: independent of the budget."""

    @cached_property
    def precision(self) -> str:
        """Precision of products; components stored as they are made cannot be made good, so these have double."""
        if self.stored and self.request.precision == "auto":
            return "double"
        return precision_of(self.problem, self.request, self.multiplications)

    @property
    def makes_components(self) -> bool:
        """True where the samples are read once more, to make components of them."""
        return True

    @property
    def itemsize(self) -> int:
        """Bytes of a value being multiplied."""
        return 8 if self.precision == "double" else 4

    @property
    def tiles_at_once(self) -> int:
        """Tiles multiplied at a time."""
        return gram_threads(self.problem.n_samples, self.precision, self.problem.machine.cores)

    @property
    def is_whole(self) -> bool:
        """True where a range holds all features."""
        return self.block_features == self.problem.n_features

    # -- the search

    def within(self, memory: int) -> Iterator[Self]:
        """Yield the largest ranges of each tile and block that fit a budget."""
        for tile, limit in product(TILES, LIMITS):
            unit = self._unit(tile)
            cut = partial(self._cut, tile, limit)

            def fits(count: int, cut: Callable[[int], Self] = cut, unit: int = unit) -> bool:
                return cut(count * unit).fits(memory)

            p = self.problem.n_features
            most = -(-p // unit)
            if fits(most):  # asked apart: a range of everything is kept while the eigenproblem is solved
                yield cut(p)
            elif count := most_that_fits(fits, most - 1):
                ranges = -(-p // (unit * count))  # no more of them than the widest make, but of nearly one width
                yield cut(-(-p // (unit * ranges)) * unit)

    def smallest(self) -> Iterator[Self]:
        """Yield the narrowest ranges of each tile and block."""
        for tile, limit in product(TILES, LIMITS):
            yield self._cut(tile, limit, self._unit(tile))

    def _cut(self, tile: int, limit: float, width: int) -> Self:
        """Return the same in ranges of so many features, in tiles, and in blocks within a limit."""
        p, width = self.problem.n_features, min(width, self.problem.n_features)
        rows = self._block_rows(limit, width)
        return replace(self, block_features=width, product_features=min(tile, p), block_rows=rows)

    def _unit(self, tile: int) -> int:
        """Return the unit of ranges of features: a tile, or a storage chunk where that is wider."""
        p, chunk = self.problem.n_features, self.problem.chunk_features
        if self.schedule == "scratch" or chunk >= p:
            return min(tile, p)
        return chunk if chunk > tile else tile // chunk * chunk

    def _block_rows(self, limit: float, width: int) -> int:
        """Samples to a block: all, storage chunks enough to keep cores busy, or as many as take so many bytes."""
        n, chunk = self.problem.n_samples, self.problem.chunk_samples
        if limit in (ALL, CORES):
            return n if limit == ALL else min(n, chunk * self.problem.machine.cores)
        return min(n, block_rows(self._row_bytes(width, wide=self.schedule == "scratch"), chunk, int(limit)))

    @property
    def axis_of_spans(self) -> tuple[int, int, int]:
        """Features, those of a range, and those of a tile or storage chunk."""
        return self.problem.n_features, self.block_features, self._unit(self.product_features)

    # -- memory

    def copy_phases(self) -> Iterator[Phase]:
        """Yield the memory while a scratch copy is written, if there is one."""
        if self.schedule == "scratch":
            turned = self.block_rows * self.problem.n_features * self.problem.itemsize
            turned_items = {"the block, transposed for writing": turned}
            yield Phase.of("scratch copy", self.read_items(wide=True), turned_items, runtime())

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device while components are made."""
        yield components_phase(self.problem, self.product_features, self.k)

    def components_phase(self) -> Phase:
        """Memory while components are made from eigenvectors."""
        n, k = self.problem.n_samples, self.k
        items = {f"{k} eigenvectors of {n} samples, as found and scaled": n * k * (24 if self.itemsize == 8 else 28)}
        items |= self.held_items() | self.read_items()
        # Components much smaller than the first are made in double precision, which the plan cannot know beforehand.
        tile = self.tiles_at_once * (n + 2 * k + 2 * PROBES) * self.product_features * 8
        items["centred tile of the samples, and of the components"] = tile
        if self.request.workers > 1 and not self.stored:  # of a worker, or of the process that was started
            items["rows of components that are put together"] = self.rows_bytes
        return Phase.of("components", items, self._components(), {"mean": 24 * self.problem.n_features}, self.runtime())

    @property
    def rows_bytes(self) -> int:
        """Bytes of rows of components, one for each feature, with what bounds their errors; in double precision.

        That is as for the tile of components, and an upper bound for those of single precision.
        """
        return 8 * self.problem.n_features * (self.k + 2 * PROBES + 2)

    def last_phases(self) -> Iterator[Phase]:
        """Yield the memory after the last read: while components are completed, and those in memory are written.

        What is written has its signs fixed, a tile of storage at a time; else components are multiplied with one
        another, to make good what rounding did.
        """
        k, p = self.k, self.problem.n_features
        vectors = {f"{k} eigenvectors of {self.problem.n_samples} samples, as found": 8 * self.problem.n_samples * k}
        made, end = self._components(), {"mean": 24 * p} | runtime()
        if self.stored:
            yield Phase.of("signs", vectors, made, end)
            return
        squares = {
            f"products of components, {format_shape((k, k))} float64": POLISH_SQUARES[self.precision] * 8 * k * k
        }
        parts = {"parts of components, multiplied": 2 * min(POLISH_PART, 8 * k * p)}
        yield Phase.of("polish", vectors, squares, made, parts, end)
        if self.request.output:
            written = {"components being written": WRITE_COPIES * min(self._tile_bytes(), 8 * k * p) + POOLS}
            yield Phase.of("writing the model", made, written, end)

    def _components(self) -> dict[str, int]:
        """Components in memory, and what is kept beside them; with a mask, also as they go into the model.

        Of stored ones a tile as it is gathered, written and in pools of Zarr's threads; signs of each in every tile.
        """
        k, p, frame = self.k, self.problem.n_features, math.prod(self.problem.sample_shape)
        if self.stored:
            tile = self._tile_bytes()
            # In one of some 20 fits on busy cores, Zarr's threads had not let go of the tile before: the last of these.
            return {
                "tile of components being written": (2 + WRITE_COPIES + 1) * tile,
                "signs of components in each tile": k * -(-8 * k * p // tile),
            }
        items = {f"{k} components": 8 * k * p, "probes of components": PROBES * 8 * p}
        return items if frame == p else {**items, "components in their frame": 8 * k * frame}

    def _tile_bytes(self) -> int:
        return tile_bytes((self.k, *self.problem.sample_shape), 8)

    def held_items(self) -> dict[str, int]:
        """The range of features in memory, as stored."""
        width = self.block_features
        name = "all samples as stored" if self.is_whole else f"{width} features of all samples, as stored"
        return {name: self.problem.n_samples * width * self.problem.itemsize}

    def read_items(self, *, wide: bool = False) -> dict[str, int]:
        """A block as it is read, and what decodes it; all samples of a range read at once are the range itself."""
        rows, scratch, items = self.block_rows, self.schedule == "scratch", {}
        at_once = scratch or rows >= self.problem.n_samples
        if wide or not (at_once and self._is_read_in_place(self.block_features)):
            items[f"block of {rows} samples as read"] = rows * self._row_bytes(self.block_features, wide=wide)
        return items if scratch and not wide else items | decoding_items(self.problem, rows)

    def _row_bytes(self, width: int, *, wide: bool) -> int:
        """Bytes held for one sample of a read: whole, or `width` features asked for within what covers them."""
        problem, p = self.problem, self.problem.n_features
        if wide:
            return problem.sample_bytes
        if self._is_read_in_place(width):
            return width * problem.itemsize
        if problem.is_prepared:
            return problem.sample_bytes + (width * problem.itemsize if width < p else 0)
        return (min(p, width + 2 * math.prod(problem.sample_shape[1:])) + width) * problem.itemsize

    def _is_read_in_place(self, width: int) -> bool:
        """Tell whether a range is read straight into place: from the copy, or whole lines of samples as stored."""
        lines = width % math.prod(self.problem.sample_shape[1:]) == 0
        whole = lines or width == self.problem.n_features
        return self.schedule == "scratch" or (whole and not self.problem.is_prepared)

    def runtime(self, more: int = 0) -> dict[str, int]:
        """Bytes that threads hold besides tiles and products, and that threads which decoded for a copy retain."""
        return runtime(
            self.tiles_at_once, more + (COPY_POOLS if self.schedule == "scratch" and self.problem.encoded else 0)
        )

    # -- work

    @property
    def bytes_written(self) -> int:
        """Bytes of a scratch copy."""
        n, p = self.problem.n_samples, self.problem.n_features
        return n * p * self.problem.itemsize if self.schedule == "scratch" else 0

    def reading(self, sweeps: int) -> tuple[Work, int, int]:
        """Count what is read in `sweeps` sweeps and for the components, and written: work, bytes read, features again.

        A process alone reads nothing again where it holds all samples. Else the range that it read last is there still
        when components are made, unless these are written in order. The third number is the features that are read for
        them.
        """
        n, p, width = self.problem.n_samples, self.problem.n_features, self.block_features
        alone = self.request.workers == 1
        once = alone and self.is_whole
        again = 0 if once or not self.makes_components else (p - 1) // width * width if alone and not self.stored else p
        sweeps = 1 if once else sweeps
        if self.schedule == "scratch":
            copied = n * (sweeps * p + again) * self.problem.itemsize
            pieces = float(-(-n // self.block_rows) * -(-p // width))
            read = read_boxes(self.problem, self.block_rows, p)
            work = read.work(self.problem) + Work(reading=copied, writing=self.bytes_written, accesses=pieces)
        else:
            copied = 0
            read = read_boxes(self.problem, self.block_rows, width).times(sweeps)
            read = read.plus(read_boxes(self.problem, self.block_rows, width, width=again))
            work = read.work(self.problem)
        if self.stored:
            work += Work(writing=2 * 8.0 * self.k * p, reading=8.0 * self.k * p)  # again, for the signs
        return work, read.bytes + copied, again
