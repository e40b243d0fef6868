"""Plans of method 'randomized': a few passes with a block of vectors, where neither p x p nor n x n fits.

Block Lanczos on the scatter matrix without forming it. A pass is one product X^T (X Q); a wider block Q costs more
flops a pass and takes fewer passes, a basis of fewer blocks is restarted and takes more.

Vectors lie along features or along samples. A pass costs the same either way. Along features it is one read in the
order of storage, and the first block comes from a sample; along samples it is a sweep of ranges of features (see
`by_features`), a pass or two more, and far less memory for the basis.

Of the widths, bases and blocks that fit the budget the fastest are taken, or along features those with fewer passes
that take little longer, as data are often slower to read than rates say; where the system keeps them in memory, those
with narrower blocks, whose last pass goes less far beyond what is asked. So for a number of components more memory
makes the fastest plan no slower. With fewer passes than any width needs, blocks are as wide as they are nearly free:
narrow on data that are read fast, wide where reading takes most of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import groupby, product
from typing import NamedTuple, Self

from ..units import MIB, counted_passes, format_shape
from .blocks import MOST_BLOCK, block_rows, concurrencies
from .by_features import SCHEDULES, WORTH_CHANGING, SizesByFeatures, places, reason_against_schedule
from .candidate_sizes import Cost, Groups, MethodSizes, Schedule, most_that_fits, precision_of, search, smallest_sizes
from .decoding import read_boxes, read_runs
from .device import start_phase, vectors_phase
from .lanczos_basis import LEAST_BESIDE, WIDTHS, Basis, bases, basis_of, counted_on
from .memory import (
    COMPONENT_COPIES,
    PROBES,
    PROBES_OF_PASS,
    THREAD_BYTES,
    Phase,
    block_items,
    check_rows,
    decoding_items,
    dense_flops,
    gram_block_bytes,
    in_double,
    in_threads,
    runtime,
    scatter_block_bytes,
    thread_count,
)
from .plan import Plan
from .rates import Work, products
from .request import Problem, Request

# Of the predicted time along features, what going along samples must take less than: predictions favour the former
# (benchmarks/wide.py sides: 0.6 predicted, 0.2 measured), and the order of storage is the safer one to read in.
WORTH_TURNING = 0.5
WORTH_SECONDS = 1.0  # along features, below which nobody waits

OPEN_SHARE = 2  # columns of an open basis for every component that there is to be room for
TWICE = 2 * THREAD_BYTES  # packing buffers of two libraries of BLAS: passes use the one, steps the other

FEWER_PASSES = 1.2  # times as long that a plan along features with fewer passes, or narrower blocks, may take ...
FEWER_DECODED = 1.25  # ... and so many times that where a pass decodes: decoders and links differ most from their rates
KEPT = 64  # times that plain files go into memory, where the system surely keeps them from pass to pass
LEAST_ROOM = 0.9  # for components where k is open, to what there could be
AT_ONCE = 1.1  # and one in threads (0.83 of the time; 30000 x 128 x 128), or that reads ahead: rates know neither
STEP = 16  # flops for each number of the block and column of the basis, which is projected out three times, in a step
PROJECTED = 1.5  # eigenproblems of the basis in a pass: one, and those by which certainty is looked for near the end
# Work of a fit beside its passes, in values added for each feature and pieces found: probes, bounds, vectors of the
# start (20736 features: 0.08 s; 2304: 0.02 s).
APART_OF_FEATURE, APART = 4000, 1000
PRODUCT_ROWS, LEAST_PRODUCT_ROWS = 512, 32  # samples multiplied at a time ...
PRODUCT_BYTES = (128 * MIB, 32 * MIB)  # ... as many as take so much as float64; of few, adding up costs the most
MOST_AGAIN = 4  # times that a chunk may be decoded in a pass; smaller budgets are refused, not read for days
BLOCKS = (MOST_BLOCK, 4 * MIB, MIB)  # bytes of a block of samples
# Rows of the start sample for every column of the block that is made of them: as many as take at most a third of a
# pass. More rows gain half a decade (6000 x 4096, blocks of 125: 750 rows take as long as a pass, which gains two).
SAMPLE_BLOCKS = (6, 4, 3, 2)
WORTH_SAMPLING = 0.3
SAMPLE_RUNS = 8  # that they are read in, or more where storage chunks are short
CHECK_COPIES = 2  # as float64, and centred, while probes are checked in the first pass
GRAM_COPIES = 3  # Gram matrices of the sample: itself, LAPACK's copy, and its vectors and workspace
MEAN_BYTES = 8 * (3 + 5 * 8)  # a feature: means and the products of probes, of which eight are kept to the end

RANDOM_START_PASSES = 1  # extra passes of a block at random, beside one of a sample (30000 x 128 x 128; 1/f images)
OPEN_PARTS = 4  # of the components there can be, where k is open: all, a fourth, and so on are tried along samples
START_COPIES = 4  # copies of the start block: as drawn, made orthogonal to the roots, and LAPACK's
BOUND_COPIES = 8  # copies of products with probes, while bounds are made of them
PROBE_BYTES = 8 * (2 * PROBES_OF_PASS + 2 * PROBES)  # a sample, kept to the end

APPROXIMATE = True
KINDS = ("pca", "kernel-pca", "classical-mds")


def schedules(problem: Problem, request: Request) -> Iterator[Schedule]:
    """Yield one schedule, whose vectors lie along the better side."""
    yield Schedule("randomized", [[BetterSide(*sides(problem, request))]])


def sides(problem: Problem, request: Request) -> tuple[Groups[AlongFeatures], Groups[AlongSamples]]:
    """Return the candidates along features, and along samples."""
    return [_along_features(problem, request)], _along_samples(problem, request)


class BetterSide(NamedTuple):
    """Family of the best along either side: along features, unless along samples alone fits or is much faster."""

    along_features: Groups[AlongFeatures]
    along_samples: Groups[AlongSamples]

    def within(self, memory: int) -> Iterator[AlongFeatures | AlongSamples]:
        """Yield the better of the best along features and along samples."""
        usual, turned = search(self.along_features, memory), search(self.along_samples, memory)
        if usual is None or turned is None:
            yield from (sizes for sizes in (usual, turned) if sizes is not None)
            return
        is_faster = not turned.cost.late and turned.seconds < WORTH_TURNING * usual.seconds
        yield turned if is_faster and usual.seconds > WORTH_SECONDS else usual

    def smallest(self) -> Iterator[AlongFeatures | AlongSamples]:
        """Yield the smallest along either side."""
        yield smallest_sizes(self.along_features)
        if self.along_samples:
            yield smallest_sizes(self.along_samples)


# -- of either side


def _multiplications(problem: Problem, request: Request) -> int:
    """Multiplications of all passes with narrow blocks; of one where k is open, as small variances need double."""
    width, passes = counted_on(problem, request) + LEAST_BESIDE, 1 if request.is_open else WIDTHS[0][1]
    return 2 * problem.n_samples * problem.n_features * min(width, problem.most_components) * passes


# -- along features


class Cuttings(NamedTuple):
    """Family of sizes with one basis, the largest blocks first; where they fit, no smaller ones are priced."""

    sizes: AlongFeatures
    lengths: list[int]

    def within(self, memory: int) -> Iterator[AlongFeatures]:
        """Yield those that fit, down to one that smaller ones would only be slower than; where k is open, all."""
        best = None
        for sizes in self.cut():
            fitting = list(sizes.within(memory))
            yield from fitting
            best = best or (sizes.product_rows, next(self._shortest.smallest()).at_once)
            if fitting and (sizes.product_rows, fitting[0].at_once) == best and not sizes.request.is_open:
                return

    def smallest(self) -> Iterator[AlongFeatures]:
        """Yield all, in several threads or one."""
        for sizes in self.cut():
            yield from sizes.smallest()

    @property
    def _shortest(self) -> AlongFeatures:
        return replace(self.sizes, block_rows=self.lengths[-1])

    def cut(self) -> Iterator[AlongFeatures]:
        """Yield the sizes with blocks of every length, and pieces of them of two lengths."""
        pieces = [_product_rows(self.sizes.problem, size) for size in PRODUCT_BYTES]
        for rows in self.lengths:
            for most in sorted({min(piece, rows) for piece in pieces}, reverse=True):
                yield replace(self.sizes, block_rows=rows, product_rows=most)


def _along_features(problem: Problem, request: Request) -> list[Cuttings]:
    """Return a family of sizes for every basis."""
    precision = precision_of(problem, request, _multiplications(problem, request))
    sizes = partial(AlongFeatures, problem=problem, request=request, k=counted_on(problem, request), schedule="lanczos")
    lengths = _block_lengths(problem)
    return [
        Cuttings(sizes(precision=precision, basis=basis), lengths)
        for basis in bases(problem, request, problem.n_features)
    ]


def _product_rows(problem: Problem, size: int) -> int:
    rows = min(PRODUCT_ROWS, size // (8 * problem.n_features))
    return min(max(LEAST_PRODUCT_ROWS, rows), problem.n_samples)


def _block_lengths(problem: Problem) -> list[int]:
    """Return samples to a block: storage chunks of so many bytes, as many as are multiplied at a time, and their parts.

    They do not depend on the budget, so what there is to choose from only grows with it.
    """
    n, chunk = problem.n_samples, min(problem.chunk_samples, problem.n_samples)
    row = problem.sample_bytes
    lengths = {min(n, block_rows(row, chunk, max(limit, chunk * row))) for limit in BLOCKS}
    whole = min(n, -(-_product_rows(problem, PRODUCT_BYTES[0]) // chunk) * chunk)
    lengths |= {-(-whole // 2**power) for power in range(17)}
    most = MOST_AGAIN * n * problem.row_bytes
    kept = {rows for rows in lengths if read_boxes(problem, rows, problem.n_features).bytes <= most}
    return sorted(kept or {max(lengths)}, reverse=True)


@cache
def sample_rows(n: int, p: int, width: int) -> int:
    """Return the number of samples, of n, that the start block of `width` columns, (p, width), is made from."""
    a_pass = products(4 * float(n) * p * width, "single").seconds(1)
    for blocks in SAMPLE_BLOCKS:
        rows = min(n, blocks * width)
        if _start_work(rows, p, width, "single").seconds(1) <= WORTH_SAMPLING * a_pass:
            break
    return rows


def _start_work(rows: int, p: int, width: int, precision: str) -> Work:
    """Work of the start block from a sample."""
    work = products(float(p) * rows**2, precision) + products(2 * float(p) * rows * width, "double")
    return work + Work(centring=float(p) * rows, solving=dense_flops(rows))


@dataclass(frozen=True, kw_only=True)
class AlongFeatures(MethodSizes):
    """Sizes with which components could be found along features; fields as in `Plan`."""

    precision: str
    basis: Basis

    @property
    def at_once(self) -> tuple[int, int]:
        """Threads, and blocks that each reads ahead."""
        return self.threads, self.ahead

    @property
    def overshoot(self) -> tuple[int, float]:
        """Sort key among those that take about as long: passes, or columns, that may prove to be in vain."""
        problem, cost = self.problem, self.cost
        is_kept = not problem.encoded and problem.n_samples * problem.row_bytes <= problem.machine.memory // KEPT
        return (0, self.basis.width) if is_kept else (cost.late, cost.passes)

    # -- the search

    def smallest(self) -> Iterator[Self]:
        """Yield the same in several threads or one, read ahead or not, the best first."""
        problem, request = self.problem, self.request
        several = thread_count(problem.machine.cores) if self.precision == "single" and request.workers == 1 else 1
        for threads, ahead in concurrencies(problem, self.block_rows, several):
            yield replace(self, threads=threads, ahead=ahead)

    def within(self, memory: int) -> Iterator[Self]:
        """Yield the best that fits; where k is open all that fit, each with as large a basis as does."""
        for sizes in self.smallest():
            if sizes.fits(memory):
                yield sizes._with_basis(memory)
                if not self.request.is_open:
                    return  # others of the same blocks take as long, and are no better

    @classmethod
    def preferred(cls, fitting: Sequence[Self]) -> Self:
        """Return the fastest, or one with fewer passes or narrower blocks, or in threads, if it takes little longer.

        Where no block needs as few passes as are allowed, fewer missing ones stand for fewer passes: a wide block, if
        reading takes most of the time.
        """
        fitting = [sizes for sizes in fitting if sizes.cost.late == 0] or fitting
        fastest = min(sizes.seconds for sizes in fitting)
        longer = FEWER_PASSES * (FEWER_DECODED if fitting[0].problem.encoded else 1)
        near = [sizes for sizes in fitting if sizes.seconds <= longer * fastest]
        least = min(sizes.overshoot for sizes in near)
        near = [sizes for sizes in near if sizes.overshoot == least]
        fastest = min(sizes.seconds for sizes in near)
        room = max(sizes.k for sizes in near)
        near = [sizes for sizes in near if sizes.seconds <= AT_ONCE * fastest and sizes.k >= LEAST_ROOM * room] or near
        most = max(sizes.at_once for sizes in near)
        near = [sizes for sizes in near if sizes.at_once == most]
        return min(near, key=lambda sizes: (sizes.seconds, -sizes.basis.columns))

    def _with_basis(self, memory: int) -> Self:
        """Return, where k is open, the largest basis that there is memory for, and room for components of it."""
        basis, p, most = self.basis, self.problem.n_features, self.problem.most_components
        if not self.request.is_open:
            return self

        def fits(columns: int) -> bool:
            room = max(self.k, min(columns // OPEN_SHARE, most))
            return replace(self, basis=basis._replace(columns=columns), k=room).fits(memory)

        def has_room(k: int) -> bool:
            return grown._components_phase(k).total <= memory

        columns = max(basis.columns, most_that_fits(fits, min(p, most + basis.width)))
        grown = replace(self, basis=basis_of(self.problem, p, basis.width, columns, basis.passes - basis.restarting))
        return replace(grown, k=max(self.k, most_that_fits(has_room, min(most, columns))))

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        cost = self.cost
        made = f"{counted_passes(cost.passes)} with {self.basis.width} vectors need{'s' if cost.passes == 1 else ''}"
        why = self.basis.reason(made, self.problem, self.request, cost.late)
        plan = self.planned("randomized", why, precision=self.precision, solver="lanczos")
        return replace(plan, width=self.basis.width, columns=self.basis.columns)

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device at the start, and in a pass."""
        problem, width = self.problem, self.basis.width
        yield start_phase(problem, sample_rows(problem.n_samples, problem.n_features, width), width)
        yield vectors_phase(problem, problem.n_features, self.product_rows, width)

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        yield self._start_phase()
        yield self._step_phase()
        yield self._components_phase(self.k)
        yield self._pass_phase()

    def _pass_phase(self) -> Phase:
        """Memory while samples are multiplied, block by block."""
        p, width, threads = self.problem.n_features, self.basis.width, self.threads
        multiplying = scatter_block_bytes(p, width, self.product_rows)
        multiplying["rows of it multiplied again, as a check"] = (
            CHECK_COPIES * 8 * min(check_rows(p), self.product_rows) * p
        )
        items = self.basis.items(p) | in_threads(multiplying, threads)
        items["the vectors, as handed to a task"] = 8 * p * width
        if self.request.workers > 1:
            items["product of another worker, as sent and merged"] = 2 * 8 * p * width
        blocks = block_items(self.problem, self.block_rows, threads, self.ahead)
        return Phase.of("pass", items, blocks, runtime(threads, TWICE))

    def _components_phase(self, k: int) -> Phase:
        """Memory while k components are made of the basis."""
        p = self.problem.n_features
        items = {f"{k} components": COMPONENT_COPIES * 8 * p * k, "mean and probes": MEAN_BYTES * p}
        return Phase.of("components", self.basis.items(p), items, runtime())

    def _start_phase(self) -> Phase:
        """Memory while the first block is made of a sample's components and of random columns."""
        problem, p, width = self.problem, self.problem.n_features, self.basis.width
        rows = sample_rows(problem.n_samples, p, width)
        run = -(-rows // SAMPLE_RUNS)
        items = {
            f"sample of {rows} rows, centred": (4 if problem.is_narrow else 8) * rows * p,
            f"{run} rows of it as read": run * problem.sample_bytes,
            f"Gram matrix of the sample, {format_shape((rows, rows))} float64, solved": GRAM_COPIES * 8 * rows * rows,
            f"start block, {format_shape((p, width))} float64": 2 * 8 * p * width,
        }
        return Phase.of("start", items, decoding_items(problem, run), runtime(more=TWICE))

    def _step_phase(self) -> Phase:
        """Memory while the basis is extended by a block."""
        p = self.problem.n_features
        means = {"mean and probes": MEAN_BYTES * p}
        return Phase.of("step", self.basis.items(p), self.basis.step_items(p), means, runtime())

    @property
    def sent(self) -> tuple[int, int]:
        """The vectors; the product with them, means, and products with probes."""
        p, width, item = self.problem.n_features, self.basis.width, 8 if self.precision == "double" else 4
        return item * p * width, 8 * p * (width + 2 * PROBES_OF_PASS + 2)

    @property
    def alone(self) -> Work:
        """Steps between passes, and the start block of a sample."""
        problem, width = self.problem, self.basis.width
        sample = sample_rows(problem.n_samples, problem.n_features, width)
        read = read_runs(problem, sample, SAMPLE_RUNS).work(problem)
        start = _start_work(sample, problem.n_features, width, self.precision)
        steps = _steps_work(problem.n_features, width, int(self.cost.passes), problem.most_components)
        return read + (steps + start)

    @cached_property
    def cost(self) -> Cost:
        """The passes' products, added up piece by piece, the steps between, and the start block of a sample."""
        problem, basis, precision, width = self.problem, self.basis, self.precision, self.basis.width
        passes = min(basis.passes, self.request.max_passes or basis.passes)
        sample = sample_rows(problem.n_samples, problem.n_features, width)
        read = read_boxes(problem, self.block_rows, problem.n_features).times(passes)
        read = read.plus(read_runs(problem, sample, SAMPLE_RUNS))
        n, p = float(problem.n_samples), float(problem.n_features)
        work = products(4 * n * p * width * passes, precision)
        work += Work(centring=n * p * passes, adding=passes * n / self.product_rows * p * width)
        work += _steps_work(problem.n_features, width, passes, problem.most_components)
        start = _start_work(sample, problem.n_features, width, precision)
        apart = Work(adding=APART_OF_FEATURE * p, accesses=APART)
        return Cost(passes, read.bytes, read.work(problem) + (work + start + apart), basis.passes - passes)


def _steps_work(size: int, width: int, passes: int, columns: int) -> Work:
    """Work between passes: blocks of vectors of a size made orthogonal to a basis of so many columns, and projected."""
    held = float(min(passes * width, columns))
    work = products((STEP * float(size) * held * width / 2 + 8 * float(size) * width**2) * passes, "double")
    return work + _projected_work(width, passes, columns)


def _projected_work(width: int, passes: int, most: int) -> Work:
    """Eigenproblems of the products projected on the basis, which grows by a block in each pass."""
    return Work(solving=PROJECTED * sum(dense_flops(min(held * width, most)) for held in range(1, passes + 1)))


# -- along samples


def passes_beside(schedule: str) -> int:
    """Passes beside those with products: for components, and for a scratch copy."""
    return 1 + (schedule == "scratch")


def _along_samples(problem: Problem, request: Request) -> list[list[AlongSamples]]:
    """Return sizes for every width of a block, and every way of reading that leaves a pass for a product.

    There are none where samples are not the smaller side, and several groups where k is open.
    """
    names = [name for name in SCHEDULES if not reason_against_schedule(name, request)]
    names = [name for name in names if request.max_passes is None or request.max_passes > passes_beside(name)]
    if problem.n_samples >= problem.n_features or not names:
        return []
    readings = list(product(names, places(request)))
    return [
        [
            AlongSamples(
                problem=problem, request=request, k=k, bases=choices, basis=choices[0], schedule=name, stored=stored
            )
            for choices in of_widths
            for name, stored in readings
        ]
        for k, of_widths in _bases_to_try(problem, request)
    ]  # fmt: skip


def _bases_to_try(problem: Problem, request: Request) -> Iterator[tuple[int, list[tuple[Basis, ...]]]]:
    """Yield components to make room for, and bases for them: those of every width, the largest first.

    Where k is open, there are several counts to be tried in turn: all components there are, and fewer.
    """
    n, most = problem.n_samples, problem.most_components
    choices = list(bases(problem, request, n, later=RANDOM_START_PASSES))
    if not request.is_open:
        widths = groupby(choices, key=lambda basis: basis.width)
        yield counted_on(problem, request), [tuple(same_width)[::-1] for _, same_width in widths]
        return
    (least,) = choices
    for part in range(math.ceil(math.log(most, OPEN_PARTS)) + 1):
        k = max(1, most // OPEN_PARTS**part)
        columns = min(max(least.columns, OPEN_SHARE * k), n)
        yield k, [(basis_of(problem, n, least.width, columns, least.passes - least.restarting),)]


@dataclass(frozen=True, kw_only=True)
class AlongSamples(SizesByFeatures):
    """Sizes with which components could be found along samples; `bases` are those to try, the largest first."""

    basis: Basis
    bases: tuple[Basis, ...]

    # -- the search

    def within(self, memory: int) -> Iterator[Self]:
        """Yield the sizes that fit with the largest basis that anything fits with."""
        for basis in self.bases:
            sizes = replace(self, basis=basis)
            # The smallest are asked first, as what fits does not tell as soon.
            if any(narrow.fits(memory) for narrow in super(AlongSamples, sizes).smallest()):
                yield from super(AlongSamples, sizes).within(memory)
                return

    def smallest(self) -> Iterator[Self]:
        """Yield the narrowest ranges with the smallest basis."""
        yield from super(AlongSamples, replace(self, basis=self.bases[-1])).smallest()

    @property
    def rank(self) -> tuple[int, float]:
        """Missing passes, then predicted time; a plan that stores components must be much faster."""
        return self.cost.late, self.seconds / (WORTH_CHANGING if self.stored else 1)

    @property
    def multiplications(self) -> int:
        """Multiplications of all passes with narrow blocks, by which the precision is chosen."""
        return _multiplications(self.problem, self.request)

    def plan(self) -> Plan:
        """Return the plan with these sizes."""
        cost, basis = self.cost, self.basis
        number = "1 product" if cost.passes == 1 else f"{cost.passes:g} products"
        made = f"{number} with {basis.width} vectors along samples need{'s' if cost.passes == 1 else ''}"
        why = basis.reason(made, self.problem, self.request, cost.late)
        plan = self.planned(
            "randomized", why, precision=self.precision, solver="lanczos", bytes_written=self.bytes_written
        )
        passes = passes_beside(self.schedule) + (0 if plan.reads_once else cost.passes)
        return replace(plan, passes=passes, width=basis.width, columns=basis.columns)

    def device_phases(self) -> Iterator[Phase]:
        """Yield the memory of a device in a pass, and while components are made."""
        yield vectors_phase(self.problem, self.problem.n_samples, self.product_features, self.basis.width)
        yield from super().device_phases()

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of each phase."""
        n, k, width, columns = self.problem.n_samples, self.k, self.basis.width, self.basis.columns
        basis, held, step = self.basis.items(n), self.held_items(), self.basis.step_items(n)
        blas, probes = self.runtime(TWICE), {"probes": PROBE_BYTES * n}
        start = {f"start block, {format_shape((n, width))} float64": START_COPIES * 8 * n * width}
        bounds = {
            f"{k} eigenvectors of {n} samples": COMPONENT_COPIES * 8 * n * k + 8 * 5 * columns**2,
            "probes, and bounds of errors": (PROBE_BYTES + BOUND_COPIES * 8 * PROBES_OF_PASS) * n,
        }
        made = self.components_phase()
        beside = {"products of samples with probes": 4 * 8 * PROBES * n, "a second library of BLAS": TWICE}
        yield from self.copy_phases()
        yield Phase.of("start", basis, start, blas)
        yield self._pass_phase(basis | held, blas)
        yield Phase.of("step", basis, held, step, probes, blas)
        yield Phase.of("bounds", basis, held, bounds, blas)
        yield Phase.of(made.name, dict(made.items), beside)
        yield from self.last_phases()

    def _pass_phase(self, beside: dict[str, int], blas: dict[str, int]) -> Phase:
        """Memory while ranges of features are multiplied, also where products in single precision prove not to do."""
        n, width, tile, item = self.problem.n_samples, self.basis.width, self.product_features, self.itemsize
        threads = thread_count(self.problem.machine.cores)
        items = beside | self.read_items()
        planned = gram_block_bytes(n, width, tile, itemsize=item, threads=threads)
        fewer, less = in_double(tile, threads)
        doubled = planned if item == 8 else gram_block_bytes(n, width, fewer, itemsize=8, threads=less)
        items |= {name: max(count, doubled[name]) for name, count in planned.items()}
        items["the vectors, as handed to a task"] = 8 * n * width
        items["probes"] = PROBE_BYTES * n
        if self.request.workers > 1:
            items["product of another worker, as sent and merged"] = 2 * 8 * n * (width + 2 * (PROBES_OF_PASS + PROBES))
        if self.problem.weighted:
            items["sample weights"] = 2 * 8 * n
        pools = {name: count + (THREAD_BYTES * threads if threads > 1 else 0) for name, count in blas.items()}
        return Phase.of("pass", items, pools)

    @property
    def sent(self) -> tuple[int, int]:
        """The vectors; the product with them, and products with probes."""
        n, width = self.problem.n_samples, self.basis.width
        return self.itemsize * n * width, 8 * n * (width + 2 * (PROBES_OF_PASS + PROBES))

    @property
    def alone(self) -> Work:
        """Steps between passes, and the components, for which samples are read again."""
        n, p, k, width = self.problem.n_samples, self.problem.n_features, self.k, self.basis.width
        made = Work(centring=float(n) * p) + products(2.0 * n * p * k, self.precision)
        if self.precision == "single":
            made += products(2.0 * p * k**2, "single")
        steps = _steps_work(n, width, int(self.cost.passes), self.basis.columns)
        return self.reading(0)[0] + made + steps

    @cached_property
    def cost(self) -> Cost:
        """The products of all passes, the steps between, and the components."""
        problem, precision, (width, columns, needed, _) = self.problem, self.precision, self.basis
        n, p, k, most = float(problem.n_samples), float(problem.n_features), self.k, self.request.max_passes
        passes = needed if most is None else min(needed, most - passes_beside(self.schedule))
        reading, bytes_read, _ = self.reading(passes)
        tiles = -(-problem.n_features // self.product_features)
        work = products(4 * n * p * width * passes + 2 * n * p * k, precision)
        work += Work(centring=n * p * (passes + 1), adding=float(passes * tiles) * n * width)
        work += _steps_work(problem.n_samples, width, int(passes), columns)
        if precision == "single":
            work += products(2 * p * k**2, "single")  # components with one another
        return Cost(passes, bytes_read, reading + work, needed - passes)
