"""Every statistic obeys the laws that let it be split and merged, and is as accurate as promised."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.accumulators import (
    ACCUMULATORS,
    ClassScatter,
    CrossScatter,
    FrequentDirections,
    Gram,
    GramBlock,
    GroupMoments,
    GroupScatter,
    NotFiniteError,
    ObservedRegression,
    Scatter,
    ScatterBlock,
    sample_directions,
)
from streampca.accumulators.centering import rounded_centre, split
from streampca.accumulators.probes import Directions, probe_directions
from streampca.planning.blocks import Span, blocks_of
from streampca.planning.memory import PROBES_OF_PASS
from streampca.testing import AccumulatorLaws, assert_same_state

SHORT = 7  # length of the axis that is not cut
COPIES = np.array([2.0, 0.0, 1.0, 3.0, 1.0, 2.0, 0.0])
FEW = settings(max_examples=settings.default.max_examples // 4)  # of every kind: 5, and 125 in a campaign
TOLERANCE = {"single": 1e-6, "double": 1e-13}  # of the trace; a first block of one row makes a poor centre


# -- what is accumulated


def values(length, dtype="f4", offset=0.0, seed=0, spread=5.0, width=SHORT):
    """Rows of some columns, of which some are alike and one is constant, with a mean of about `offset`."""
    x = spread * np.random.default_rng(seed).normal(size=(length, width))
    x[:, 1] += x[:, 0]
    x[:, 4] = x[:, 1]
    x[:, 5] = 0
    if np.dtype(dtype).kind in "bu":
        top = 1 if dtype == "b1" else np.iinfo(dtype).max
        return np.clip(np.rint(x + min(offset, top / 2)), 0, top).astype(dtype)
    return (x + offset).astype(dtype)


@st.composite
def cut_values(draw, dtypes=("u1", "u2", "f4", "f8")):
    """A matrix of one dtype, its rows cut in three or four; parts may be empty."""
    lengths = draw(st.lists(st.integers(0, 40), min_size=3, max_size=4))
    dtype, offset = draw(st.sampled_from(dtypes)), draw(st.sampled_from([0.0, 3.0, 130.0, 30000.0]))
    x = values(sum(lengths), dtype, offset, seed=draw(st.integers(0, 1000)))
    return [part.copy() for part in np.split(x, np.cumsum(lengths)[:-1])]


def block(roots=None, size=SHORT, width=3, seed=9):
    """Orthonormal columns, orthogonal to the roots of weights if they are given."""
    columns = np.random.default_rng(seed).normal(size=(size, width))
    return np.linalg.qr(columns if roots is None else columns - np.outer(roots, roots @ columns / (roots @ roots)))[0]


def scatter_block(x, known=False, **more):
    """Its centre is one off the mean."""
    mean = x.mean(axis=0, dtype=np.float64) if len(x) else np.zeros(x.shape[1])
    centre = np.rint(mean) + 1
    return partial(ScatterBlock, block(size=len(mean)), centre, offset=mean - centre if known else None, **more)


def gram_block(x, weights=None, **more):
    roots = np.ones(len(x)) if weights is None else np.sqrt(weights)
    return partial(GramBlock, block(roots, len(x)), roots=None if weights is None else roots, **more)


def group_moments(x, **more):
    """Return moments of five groups in turn, at times that are not evenly spaced."""
    return partial(GroupMoments, x.shape[1], np.arange(len(x)) % 5, 5, times=np.arange(len(x)) ** 1.5, **more)


def group_scatter(x, **more):
    """Return scatters, over some features, of three groups in turn and one that stays empty."""
    return partial(GroupScatter, np.array([0, 2, 3, 6]), 4, np.arange(len(x)) % 3, **more)


def class_scatter(x, **more):
    """Return a scatter of three classes in turn and one that stays empty."""
    return partial(ClassScatter, x.shape[1], 4, np.arange(len(x)) % 3, **more)


def cross_scatter(x, **more):
    """Return products with three targets that are far from 0; two of them are features of the samples."""
    targets = np.column_stack([x[:, :2].astype(np.float64), np.arange(len(x)) % 3]) + 1e3
    return partial(CrossScatter, x.shape[1], 3, targets, **more)


def regression(x, **more):
    """Return a regression on three latent variables, about a mean that is 1 too large."""
    mean = x.mean(axis=0, dtype=np.float64) if len(x) else np.zeros(x.shape[1])
    return partial(ObservedRegression, block(size=len(mean)), np.array([9.0, 4, 1]), 2.0, np.rint(mean) + 1, **more)


# How to make an empty accumulator for a matrix (n, p), by its kind and what is special about it.
NEW = {
    "scatter": lambda x, **more: partial(Scatter, x.shape[1], **more),
    "scatter, double": lambda x: partial(Scatter, x.shape[1], precision="double"),
    "scatter, short products": lambda x: partial(Scatter, x.shape[1], product_rows=5),
    "scatter_block": scatter_block,
    "scatter_block, double": partial(scatter_block, precision="double"),
    "scatter_block, known mean": partial(scatter_block, known=True),
    "scatter_block, short products": partial(scatter_block, product_rows=5),
    "gram": lambda x, **more: partial(Gram, len(x), **more),
    "gram, double": lambda x: partial(Gram, len(x), precision="double"),
    "gram, narrow tiles": lambda x: partial(Gram, len(x), product_features=5),
    "gram_block": gram_block,
    "gram_block, double": partial(gram_block, precision="double"),
    "gram_block, not measured": partial(gram_block, measures=False),
    "gram_block, narrow tiles": partial(gram_block, product_features=5, threads=2),
    "gram_block, weighted": partial(gram_block, weights=COPIES),
    "frequent_directions": lambda x: partial(FrequentDirections, x.shape[1], rows=3),
    "group_moments": lambda x: partial(GroupMoments, x.shape[1]),
    "group_moments, in groups": group_moments,
    "group_moments, in groups, apart": partial(group_moments, apart=True),
    "group_scatter": group_scatter,
    "group_scatter, double": partial(group_scatter, precision="double"),
    "group_scatter, one group": lambda x: partial(GroupScatter, x.shape[1]),
    "class_scatter": class_scatter,
    "class_scatter, double": partial(class_scatter, precision="double"),
    "class_scatter, short products": partial(class_scatter, product_rows=5),
    "cross_scatter": cross_scatter,
    "cross_scatter, classes": lambda x: partial(CrossScatter, x.shape[1], 3, np.arange(len(x)) % 3),
    "observed_regression": partial(regression, held_out=0),
    "observed_regression, double": partial(regression, held_out=0, precision="double"),
    "observed_regression, some features": partial(regression, held_out=0, features=Span(2, 6), product_rows=5),
}
_SAMPLES = ("scatter", "frequent", "group", "class", "cross", "observed")
ALONG_SAMPLES = [kind for kind in NEW if kind.startswith(_SAMPLES)]
# Accumulators whose samples have no positions.
_PLACED = ("group_moments, in groups", "group_scatter", "class", "cross")
ANYWHERE = [kind for kind in ALONG_SAMPLES if not kind.startswith(_PLACED)]
UNDISCOUNTED = ("scatter_block", "group", "cross", "observed")  # used in single fits, which know all weights beforehand
every_kind = pytest.mark.parametrize("kind", NEW)


def along(kind, parts):
    """Parts of rows as an accumulator absorbs them: rows are samples, or features."""
    return parts if kind in ALONG_SAMPLES else [np.ascontiguousarray(part.T) for part in parts]


def new_for(kind, parts):
    """How to make an accumulator of a kind, for parts as it absorbs them."""
    return NEW[kind](np.concatenate(parts, axis=0 if kind in ALONG_SAMPLES else 1))


def fed(new, parts):
    accumulator, at = new(), 0
    for part in parts:
        accumulator.update(part, at=at)
        at += part.shape[0 if accumulator.axis == "samples" else 1]
    return accumulator


def copied(accumulator):
    return type(accumulator).from_state(accumulator.state())


def symmetric(triangle):
    return np.triu(triangle) + np.triu(triangle, 1).T


def centred(x, weights=None):
    """Samples about their mean, each times the root of its weight, in float64."""
    weights = np.ones(len(x)) if weights is None else weights
    x = x.astype(np.float64)
    return (x - np.average(x, axis=0, weights=weights)) * np.sqrt(weights)[:, None]


def scatter_of(x, weights=None):
    return centred(x, weights).T @ centred(x, weights)


def gram_of(x, weights=None):
    return centred(x, weights) @ centred(x, weights).T


def assert_near(one, other, rtol=1e-6):
    assert np.linalg.norm(one - other) <= rtol * np.linalg.norm(other)


def results(accumulator):
    """All that an accumulator is for, and what rounding of all of that is in proportion to."""
    match copied(accumulator):
        case ClassScatter() as found:
            size = found.trace + 1e-14 * float(np.sum(found.mean**2) * found.weight)
            return [symmetric(found.matrix()), found.between * size**0.5, found.class_weights * size], size
        case Scatter() as found:
            size = found.trace + 1e-14 * float(np.sum(found.mean**2))
            return [
                symmetric(found.matrix()),
                found.mean * size / (1 + np.linalg.norm(found.mean)),
                found.trace,
                found.probe_products / 30,
            ], size
        case ScatterBlock() as found:
            measured = found.probes()
            product = found.take()
            if measured is None:
                return [product], float(np.linalg.norm(product)) + found.drift
            size = found.trace + found.drift
            mean = found.mean * size / (1 + np.linalg.norm(found.mean))
            return [product, mean, found.trace, measured[0] / 30], size
        case FrequentDirections() as found:  # what is exact; the sketch depends on the cut, see below
            size = found.trace + 1e-14 * float(np.sum(found.mean**2))
            mean = found.mean * size / (1 + np.linalg.norm(found.mean))
            return [found.trace, found.feature_variance * found.weight, mean], size
        case GroupScatter() as found:
            (whole, size), groups = results(found.joined(range(len(found.scatters)))), found.scatters
            return [
                *(symmetric(each.matrix()) for each in groups),
                *(each.weight * size for each in groups),
                *whole,
            ], size
        case GroupMoments() as found:
            size = float(found.squares.sum() + 1e-14 * np.sum(found.means**2 * found.weights[:, None]))
            mean = found.means * size / (1 + np.linalg.norm(found.means))
            late = 1 + float(np.linalg.norm(found.mean_times))
            return [found.weights * size, mean, found.squares, found.products / late**2], size
        case CrossScatter() as found:
            # Where all samples are of one class, only the rounding of the means is left.
            about = 1e-3 * found.weight * float(np.linalg.norm(found.mean)) * (1 + np.linalg.norm(found.other_mean))
            size = float(np.linalg.norm(found.products)) + about
            return [found.products, found.mean * 1e-5 * size, found.other_mean * 1e-5 * size], size
        case ObservedRegression() as found:
            size = float(np.linalg.norm(found.score_moments)) + found.squares
            sums = [found.moments, found.products, found.squares, found.score_moments, found.held]
            return [*sums, found.empty * size, found.observed * size], size
        case Gram() as found:
            about = found.centred()
            size = about.trace
            return [symmetric(about.upper), about.trace, about.products * size**0.5 / 30], size
        case GramBlock() as found:
            measured = found.probes()
            product = found.take()
            if measured is None:
                return [product], float(np.linalg.norm(product))
            size = measured.whole
            return [product, found.trace, measured.products / 30, measured.along * size**0.5 / 30], size


def same_statistic(one, other):
    """Equal counts and results, to the rounding the precision allows."""
    for name in ("n_samples", "n_features", "weight"):
        assert getattr(one, name, None) == getattr(other, name, None)
    if not one.n_features or not getattr(one, "n_samples", 1):
        return
    (mine, size), (its, other_size) = results(one), results(other)
    for found, expected in zip(mine, its, strict=True):
        assert np.linalg.norm(found - expected) <= 10 * TOLERANCE[one.precision] * max(size, other_size) + 1e-14


# -- laws


def test_every_kind_has_a_row():
    assert {kind.split(",")[0] for kind in NEW} == set(ACCUMULATORS)


@every_kind
@FEW
@given(cut=cut_values())
def test_laws(kind, cut):
    parts = along(kind, cut)
    AccumulatorLaws(new_for(kind, parts), same_statistic).check(parts)


@FEW
@given(cut=cut_values(["f4", "f8"]), seed=st.integers(0, 100))
def test_laws_where_values_are_missing_and_some_held_out(cut, seed):
    rng = np.random.default_rng(seed)
    for part in cut:
        part[rng.random(part.shape) < 0.3] = np.nan
        part[rng.random(len(part)) < 0.1] = np.inf
    new = partial(ObservedRegression, block(), np.array([9.0, 4, 1]), 2.0, np.full(SHORT, 3.0))
    AccumulatorLaws(partial(new, held_out=0.2), same_statistic).check(cut)


def test_regressions_are_those_of_each_row_by_itself():
    """Compare with the formulas, a row at a time; values held out only take part in their own prediction."""
    x = values(40, "f8", 3.0, seed=5)
    x[np.random.default_rng(0).random(x.shape) < 0.3] = np.nan
    x[11] = np.nan
    vectors, variances, noise = block(), np.array([9.0, 4, 1]), 2.0
    found = ObservedRegression(vectors, variances, noise, np.full(SHORT, 3.0), precision="double", held_out=0.2)
    found.update(x, at=100)
    left_out = np.zeros(x.shape, bool)
    left_out[found._held_out(np.isfinite(x), 100 + np.arange(40))] = True
    moments, products, held = np.zeros((SHORT, 4, 4)), np.zeros((SHORT, 4)), np.zeros(3)
    for row, out in zip(x - 3, left_out, strict=True):
        seen = np.isfinite(row) & ~out
        own = vectors[seen]
        spread = np.linalg.inv(own.T @ own + np.diag(noise / variances))
        z = np.append(spread @ own.T @ row[seen], 1)
        second = np.outer(z, z)
        second[:3, :3] += noise * spread
        moments[seen] += second
        products[seen] += row[seen, None] * z
        if seen.any():
            held += out.sum(), np.sum((row[out] - vectors[out] @ z[:3]) ** 2), np.sum(row[out] ** 2)
    upper = np.triu_indices(3)
    np.testing.assert_allclose(found.moments[:, :6], moments[:, upper[0], upper[1]], rtol=1e-10)
    np.testing.assert_allclose(found.moments[:, 6:], moments[:, 3], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.products, products, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(found.held, held, rtol=1e-10)
    assert left_out.sum() > 20
    assert (found.n_samples, found.empty, found.observed) == (39, 1, np.isfinite(x).sum())


class ForgetsTheMean(Scatter):
    """Adds scatters about different centres: the classical mistake."""

    def absorb(self, other):
        other = copied(other)
        other._centre = self._centre.copy()
        super().absorb(other)


class WritesToItsInput(Scatter):
    def update(self, block, *, at=0):
        if len(block):
            block -= block[0]
        super().update(block, at=at)


class ForgetsInItsState(Scatter):
    def state(self):
        return {**super().state(), "total": np.zeros(self.n_features)}


class SharesItsState(Scatter):
    def state(self):
        return {**super().state(), "scatter": self._scatter}


class MergesInPlace(Scatter):
    def merge(self, other):
        self.absorb(other)
        return self


class OrderMatters(Scatter):
    """Weighs what comes second half."""

    def absorb(self, other):
        super().absorb(other)
        if self.n_samples > other.n_samples > 0:
            self._scatter -= other._scatter / 2


def loses_the_last(block, at):
    return block[tuple(slice(-1) if length == 1 or length > SHORT else slice(None) for length in block.shape)], at


def forgets_where_it_is(block, at):
    """Takes the first rows of W wherever the range lies."""
    return block, 0


def misled(kind, mistake):
    """The kind of accumulator, given what a mistake makes of a block and its place."""

    class Wrong(kind):
        def update(self, block, *, at=0, weights=None):
            block, at = mistake(block, at)
            super().update(block, at=at)

    return Wrong


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *[
            ("scatter", wrong)
            for wrong in (
                ForgetsTheMean, WritesToItsInput, ForgetsInItsState, SharesItsState, MergesInPlace, OrderMatters,
            )
        ],
        *[(kind, misled(ACCUMULATORS[kind], loses_the_last)) for kind in ACCUMULATORS],
        *[(kind, misled(ACCUMULATORS[kind], forgets_where_it_is)) for kind in ("gram", "gram_block")],
        ("group_moments, in groups", misled(GroupMoments, forgets_where_it_is)),
        ("group_scatter", misled(GroupScatter, forgets_where_it_is)),
    ],
)  # fmt: skip
def test_laws_catch_a_planted_mistake(kind, wrong):
    """The test of the test: each breaks a law, and `check` says so."""
    x = values(60, "f4", 130.0, seed=1)
    x[40:] += 40  # parts of different means
    parts = along(kind, [part.copy() for part in np.split(x, [11, 40])])
    new = new_for(kind, parts)
    AccumulatorLaws(new, same_statistic).check(parts)
    with pytest.raises((AssertionError, ValueError)):
        AccumulatorLaws(partial(wrong, *new.args, **new.keywords), same_statistic).check(parts)


@every_kind
def test_a_state_goes_on_in_the_middle(kind):
    """To the same bits, whether its sum is copied or taken over, and working memory was given back meanwhile."""
    parts = along(kind, np.split(values(500, "f4", 1e4, seed=8), 5))
    new = new_for(kind, parts)
    whole, half, axis = fed(new, parts), fed(new, parts[:2]), 0 if kind in ALONG_SAMPLES else 1
    half.release()
    state = {name: array.copy(order="K") for name, array in half.state(copy=False).items()}
    for later in (half, *(type(half).from_state(state, copy=copy) for copy in (True, False))):
        for number, part in enumerate(parts[2:], 2):
            later.update(part, at=number * part.shape[axis])
        assert_same_state(later.state(), whole.state())


@pytest.mark.parametrize(
    ("kind", "unlike", "said"),
    [
        ("scatter", {"seed": 1}, "seed"),
        ("gram", {"seed": 1}, "seed"),
        *[("scatter_block", other, "cannot be added") for other in ({"known": True}, {"precision": "double"})],
        ("gram_block", {"weights": COPIES}, "weighted otherwise"),
        ("gram_block", {"measures": False}, "was measured"),
    ],
)
def test_unlike_accumulators_are_not_merged(kind, unlike, said):
    """Other probes or another block would give a wrong bound, not an error, later."""
    x = values(SHORT)
    with pytest.raises(ValueError, match=said):
        fed(NEW[kind](x), [x]).merge(fed(NEW[kind](x, **unlike), [x]))


@given(cut=cut_values(), counts=st.data(), rows=st.integers(1, 5))
def test_a_sketch_is_within_what_its_shrinks_took(cut, counts, rows):
    """0 <= x^T (S - B^T B) x <= Delta <= trace / l, over any cuts, weights and merges."""
    weights = [
        np.array(counts.draw(st.lists(st.integers(0, 2), min_size=len(part), max_size=len(part)))) for part in cut
    ]
    sketch = FrequentDirections(SHORT, rows=rows)
    for number, (part, weight) in enumerate(zip(cut, weights, strict=True)):
        if number % 2:
            other = FrequentDirections(SHORT, rows=rows)
            other.update(part, weights=weight.astype(float))
            sketch.absorb(other)
        else:
            sketch.update(part, weights=weight.astype(float))
    if not sketch.weight:
        return
    exact = scatter_of(np.concatenate(cut), np.concatenate(weights))
    lost = np.linalg.eigvalsh(exact - sketch.sketch.T @ sketch.sketch)
    rounding = 1e-12 * (sketch.trace + float(np.sum(sketch.mean**2)))
    assert -rounding <= lost[0]
    assert lost[-1] <= sketch.shrunk + rounding
    assert sketch.shrunk <= sketch.trace / rows + rounding
    assert sketch.trace == pytest.approx(np.trace(exact), rel=1e-10, abs=rounding)


# -- whole numbers


@pytest.mark.parametrize("kind", ["scatter", "scatter, double", "scatter, short products"])
@given(cut=cut_values(dtypes=("u1", "b1")))
def test_narrow_integers_have_the_same_bits_whatever_the_cut(kind, cut):
    new = new_for(kind, cut)
    whole, merged, one_by_one = fed(new, [np.concatenate(cut)]), new(), fed(new, cut)
    for part in cut:
        merged.absorb(fed(new, [part]))
    for scatter in (whole, merged, one_by_one):
        assert scatter.exact
        scatter.settle()
    for other in (merged, one_by_one):
        np.testing.assert_array_equal(np.triu(other.matrix()), np.triu(whole.matrix()))
        np.testing.assert_array_equal(other.mean, whole.mean)


@pytest.mark.parametrize("kind", ["scatter", "gram"])
@pytest.mark.parametrize(("dtype", "quiet"), [("u1", 0), ("i1", 0), ("u2", 0), ("u2", 256)])
def test_worst_case_integers_are_exact(dtype, quiet, kind):
    """Values at both ends of their range: the largest products there are; the bits do not depend on the cut.

    Small ones at first promise that long pieces stay exact: what follows is multiplied again, in halves.
    """
    low, top = (0, 255) if dtype == "u2" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.random.default_rng(0).choice(np.array([low, top], dtype), size=(20000, SHORT))
    x[:quiet] = x[:quiet] > 0
    for cut in ([], [1, 700, 4900, 19000]):
        parts = along(kind, np.split(x, cut))
        found = fed(new_for(kind, parts), parts)
        assert found.exact
        if kind == "gram":
            centred = SHORT * x.astype(np.int64) - x.sum(axis=1, dtype=np.int64)[:, None]
            exact = (centred.T @ centred) / SHORT**2  # by int64: BLAS's sums are off by 1e-14
            np.testing.assert_allclose(symmetric(found.centred().upper), exact, rtol=0, atol=1e-15 * np.trace(exact))
        else:
            found.settle()
            whole = x.astype(np.int64) - np.rint(x.mean(axis=0, dtype=np.float64)).astype(np.int64)
            np.testing.assert_array_equal(np.triu(found.upper), np.triu(whole.T @ whole))


def exact_scatter(x):
    """n^2 times the scatter matrix of whole numbers over n, about their mean, as Python integers."""
    x = x.astype(object)
    total = x.sum(axis=0)
    return len(x) * (x.T @ x) - np.outer(total, total)


@given(
    numbers=st.lists(st.lists(st.integers(0, 2**16 - 1), min_size=SHORT, max_size=SHORT), min_size=2, max_size=30),
    cut=st.integers(0, 30),
    dtype=st.sampled_from(["u1", "i1", "u2", "i2", "f4", "f8"]),
)
@pytest.mark.parametrize("precision", ["single", "double"])
def test_whole_numbers_are_summed_as_python_sums_them(numbers, cut, dtype, precision):
    """Rounding to float64 comes last; float32 products are exact up to 8 bits, those of float64 up to 16."""
    narrow = dtype in ("u1", "i1") or precision == "single"
    low = {"i1": -128, "i2": -(2**15)}.get(dtype, 0)
    x = (np.array(numbers) // (256 if narrow else 1) + low).astype(dtype)
    found = fed(partial(Scatter, SHORT, precision=precision), np.split(x, [min(cut, len(x))]))
    found.settle()
    assert found.sums_exactly
    right = np.array(exact_scatter(x) / len(x), np.float64)
    np.testing.assert_allclose(symmetric(found.matrix()), right, rtol=1e-15, atol=1e-15 * np.abs(right).max())


@pytest.mark.parametrize("kind", ["scatter", "gram"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("offset", [0, 30000])
def test_whole_numbers_of_a_floating_point_dtype_have_the_bits_of_integers(kind, dtype, offset):
    whole = np.random.default_rng(2).integers(offset, offset + 256, (70_000, SHORT))
    parts, others = ([part.astype(word) for part in np.split(whole, [1, 7, 30_000])] for word in (dtype, "u2"))
    found, other = (fed(new_for(kind, along(kind, some)), along(kind, some)) for some in (parts, others))
    assert found.sums_exactly
    assert other.sums_exactly
    assert_same_state(found.state(), other.state())


@pytest.mark.parametrize("kind", ["scatter", "gram"])
def test_exact_sums_are_checked_to_the_last_unit(kind):
    """However large they are, and wherever the centre has been: a block of zeros moves it far from all others."""
    x = np.random.default_rng(6).integers(0, 2**16, (4000, 40)).astype(np.uint16)
    parts = along(kind, [x, np.full((3000, 40), 60_000, np.uint16), np.zeros((1, 40), np.uint16)])
    found = fed(partial(Scatter if kind == "scatter" else Gram, 40, precision="double"), parts)
    assert found.sums_exactly
    assert found.agrees
    (found._scatter if kind == "scatter" else found._gram)[3, 7] += 1
    assert not found.agrees


@pytest.mark.parametrize("at", [0, 2, 4], ids=["at the start", "in the middle", "at the end"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_block_of_fractions_costs_no_other_its_exactness(at, precision):
    """What is off is the rounding of that block alone, of one sample in 1000."""
    parts = np.split(
        np.random.default_rng(3).integers(0, 256, (20_000, SHORT)).astype("f4"), [5000, 9000, 9020, 15_000]
    )
    parts.insert(at, parts.pop(2) + np.float32(0.125))
    found = fed(partial(Scatter, SHORT, precision=precision), parts)
    assert not found.exact
    found.settle()
    x = np.concatenate(parts)
    right = np.array(exact_scatter((8 * x).astype(np.int64)) / len(x) / 64, np.float64)
    off = np.linalg.norm(symmetric(found.matrix()) - right)
    assert off <= (3e-10 if precision == "single" else 1e-14) * np.linalg.norm(right)
    assert found.trace == pytest.approx(np.trace(right), rel=3e-10)


def test_whole_numbers_far_from_zero_keep_their_variances():
    x = np.random.default_rng(4).integers(60_000, 60_004, (30_000, 64)).astype(np.uint16)
    found = Scatter(64)
    for _ in range(25):
        found.update(x)
    found.settle()
    about = x.astype(np.int64) - 60_000
    total = about.sum(axis=0)
    right = 25 * (len(x) * (about.T @ about) - np.outer(total, total)) / len(x)
    np.testing.assert_allclose(np.diag(found.matrix()), np.diag(right), rtol=1e-15)
    np.testing.assert_allclose(np.linalg.eigvalsh(symmetric(found.matrix())), np.linalg.eigvalsh(right), rtol=1e-12)


# -- accuracy


def assert_right(scatter, x):
    expected = scatter_of(x)
    found = symmetric(scatter.matrix())
    assert np.linalg.norm(found - expected, 2) < 3e-7 * np.linalg.norm(expected, 2)
    return found, expected


@pytest.mark.parametrize(
    ("dtype", "mean", "deviation", "rows"),
    [("f4", 30000.0, 5.0, 1000), ("u2", 10000.0, 300.0, 137), ("u2", 10000.0, 5.0, 1000)],
)
def test_large_offsets_keep_single_precision(dtype, mean, deviation, rows):
    """Where E[xx^T] - mm^T in float32 has no right digit."""
    x = np.random.default_rng(5).normal(mean, deviation, size=(20000, 60)).astype(dtype)
    scatter = fed(partial(Scatter, 60), np.split(x, range(rows, len(x), rows)))
    variances, right = map(np.linalg.eigvalsh, assert_right(scatter, x))
    np.testing.assert_allclose(variances, right, rtol=1e-5)
    np.testing.assert_allclose(scatter.mean, x.mean(axis=0, dtype=np.float64), rtol=1e-9)


@pytest.mark.parametrize("dtype", ["f4", "u2", "f8"])
def test_a_drifting_mean_is_followed(dtype):
    """Samples in order of acquisition, the lamp getting brighter: the first block's mean is far from the last's."""
    x = np.random.default_rng(3).normal(0, 5, size=(6000, 20)) + np.linspace(100, 60000, 6000)[:, None]
    x = x.astype(dtype)
    assert_right(fed(partial(Scatter, 20), np.array_split(x, 40)), x)


def test_a_bad_first_block_does_not_spoil_the_rest():
    """Dark frames first: the provisional mean is then off by 6000 deviations."""
    light = np.random.default_rng(4).normal(30000, 5, size=(4000, 30)).astype(np.float32)
    parts = [np.zeros((10, 30), np.float32), *np.array_split(light, 8)]
    assert_right(fed(partial(Scatter, 30), parts), np.concatenate(parts))


def test_a_centre_takes_one_subtraction_where_samples_spread_far():
    centre = np.array([0.1, 30000.1])
    assert not split(rounded_centre(centre, 1000.0, "single"), np.dtype("f4"))[1].any()
    for spread, precision in ((5.0, "single"), (1000.0, "double")):
        assert np.array_equal(rounded_centre(centre, spread, precision), centre)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_gram_of_float32_with_an_offset_loses_nothing(offset):
    """Mean 10000 times the deviation, whose squares alone would fill float32."""
    x = (np.random.default_rng(5).normal(size=(40, 30000)) + offset).astype(np.float32)
    exact, found = gram_of(x), fed(partial(Gram, 40), np.split(x, 3, axis=1)).centred()
    assert np.linalg.norm(symmetric(found.upper) - exact, 2) <= 1e-6 * np.linalg.norm(exact, 2)
    assert found.trace == pytest.approx(np.trace(exact), rel=3e-7)


@pytest.mark.parametrize("known", [False, True], ids=["measured", "known mean"])
@pytest.mark.parametrize(
    ("dtype", "offset", "precision", "weighted"),
    [
        ("f4", 0.0, "double", True), ("f4", 10000.0, "single", False), ("f4", 10000.0, "single", True),
        ("u1", 100.0, "single", True), ("f8", 10000.0, "single", False), ("f8", 10000.0, "double", True),
    ],
)  # fmt: skip
def test_products_with_the_scatter_are_right(dtype, offset, precision, known, weighted):
    """S Q, mean, trace and S W, against float64 throughout; the centre is a unit off."""
    x = values(2000, dtype, offset, seed=3, width=40)
    weights = np.random.default_rng(4).gamma(2.0, size=2000) if weighted else np.ones(2000)
    s, mean = scatter_of(x, weights), np.average(x.astype(np.float64), axis=0, weights=weights)
    centre = mean.round() + 1
    how = {"precision": precision, "product_rows": 300, "seed": 5}
    applied = ScatterBlock(block(size=40, width=6), centre, offset=mean - centre if known else None, **how)
    for start in range(0, 2000, 700):
        rows = slice(start, start + 700)
        applied.update(x[rows], at=start, weights=weights[rows] if weighted else None)
    allowed = {"single": 1e-6, "double": 1e-11}[precision] * np.linalg.norm(s, 2)  # numpy's mean of large offsets
    assert applied.n_samples == 2000
    assert applied.weight == pytest.approx(weights.sum(), rel=1e-13)
    found, vectors = applied.probes(), applied.vectors.astype(np.float64)
    assert (found is None) == known
    if found is not None:
        directions = probe_directions(40, 5, PROBES_OF_PASS)
        assert np.linalg.norm(found[0] - s @ directions) <= 10 * allowed * np.linalg.norm(directions)
        assert np.linalg.norm(found[1]) <= 10 * allowed * np.linalg.norm(directions)
        np.testing.assert_allclose(applied.mean, mean, rtol=1e-9, atol=1e-6)
        assert applied.trace == pytest.approx(np.trace(s), rel=allowed / np.linalg.norm(s, 2))
        assert applied.drift == pytest.approx(applied.weight * np.sum((mean - centre) ** 2), rel=1e-3)
    product = applied.take()
    assert product.flags.f_contiguous
    assert np.linalg.norm(product - s @ vectors) <= allowed * np.linalg.norm(vectors)


@pytest.mark.parametrize(
    ("dtype", "offset", "precision", "weighted"),
    [
        ("u1", 100.0, "single", False), ("f4", 0.0, "double", True), ("f4", 1e4, "single", True),
        ("f8", -300.0, "single", False), ("f8", -300.0, "double", False),
    ],
)  # fmt: skip
def test_products_with_the_gram_matrix_are_right(dtype, offset, precision, weighted):
    n, p = 40, 3000
    x = np.ascontiguousarray(values(p, dtype, offset, seed=3, width=n).T)
    weights = np.random.default_rng(5).integers(0, 4, n).astype(np.float64) if weighted else None
    roots = np.ones(n) if weights is None else np.sqrt(weights)
    right, whole = gram_of(x, weights), centred(x, weights)
    new = gram_block(x, weights, precision=precision, product_features=256, threads=2)
    crossed = fed(new, np.split(x, range(700, p, 700), axis=1))
    found, allowed = crossed.probes(), (3e-8 if precision == "single" else 1e-14) * np.trace(right)
    assert crossed.trace == pytest.approx(np.trace(right), rel=1e-7 if precision == "single" else 1e-12)
    directions = sample_directions(roots, 0)
    assert np.abs(roots @ directions).max() < 1e-6 * n
    off = np.linalg.norm(found.products - right @ directions)
    assert off <= 10 * allowed
    assert_near(found.along, whole @ probe_directions(p, 0))
    if precision == "single":
        assert 0 < off <= 3 * np.linalg.norm(found.products_rounding)
    vectors, product = crossed.vectors.astype(np.float64), crossed.take()
    assert np.linalg.norm(product - right @ vectors) <= allowed
    assert np.abs(roots @ product).max() <= 1e-12 * np.linalg.norm(product)


# -- what no statistic can be made of


@every_kind
@pytest.mark.parametrize(("value", "at"), [(np.nan, 0), (np.inf, 171), (-np.inf, 298), (1e30, 0), (1e30, 17)])
def test_what_is_not_finite_is_named(kind, value, at):
    """The message names the sample: a row, or the third one where data are cut by features."""
    x = values(300, "f4", 3.0, seed=0)
    new = new_for(kind, along(kind, [x]))
    x[at, 2:4] = value
    if kind in ALONG_SAMPLES and value != 1e30:
        x[at + 1 :, 6] = np.nan  # later offenders are not blamed
    if (value == 1e30 and new().precision == "double") or (value != 1e30 and kind.startswith("observed")):
        return
    with pytest.raises(NotFiniteError) as caught:
        new().update(along(kind, [x])[0], at=1000 if kind in ALONG_SAMPLES else 0)
    assert caught.value.sample == (1000 + at if kind in ALONG_SAMPLES else 2)
    if value == 1e30:
        assert "precision='double'" in caught.value.problem
    elif kind in ALONG_SAMPLES:
        assert caught.value.problem == f"holds NaN or infinity in 2 of its {new().n_features} features"


@pytest.mark.parametrize(("dtype", "size"), [("f4", 1e25), ("f4", 1e38), ("f8", 1e39), ("f8", 1e60)])
def test_values_whose_float32_squares_overflow_say_so(dtype, size):
    """The remedy that the refusal names works."""
    x = values(200, "f8")
    x[150, 4] = 1000
    x = (x * (size / 1000)).astype(dtype)
    with pytest.raises(NotFiniteError, match=r"sample \d+ holds values up to .*; use precision='double'") as caught:
        Scatter(SHORT).update(x)
    assert caught.value.sample == 150
    scatter = fed(partial(Scatter, SHORT, precision="double"), [x])
    assert_near(symmetric(scatter.matrix()), scatter_of(x), 1e-13)


def test_values_whose_double_squares_overflow_are_not_sent_to_double():
    x = values(20, "f8") * 1e200
    with pytest.raises(NotFiniteError, match=r"whose squares overflow; divide") as caught:
        Scatter(SHORT, precision="double").update(x)
    assert "precision" not in str(caught.value)
    assert fed(partial(Scatter, SHORT, precision="double"), [x / 1e100]).trace > 0


def test_an_overflow_along_one_vector_is_seen():
    """The others are orthogonal to all samples, and their products are finite."""
    q = block()
    x = np.outer(np.linspace(1, 2, 20), 1e20 * q[:, 2]).astype(np.float32)
    with pytest.raises(NotFiniteError, match=r"squares overflow; use precision='double'"):
        ScatterBlock(q, np.zeros(SHORT), offset=np.zeros(SHORT)).update(x)


@pytest.mark.parametrize(
    ("dtype", "precision"), [("f4", "single"), ("f8", "single"), ("f8", "double"), ("i2", "single")]
)
def test_equal_samples_have_no_variance(dtype, precision):
    x = np.repeat(np.random.default_rng(0).normal(size=(1, 500)) * 1e3, 30, axis=0).astype(dtype)
    assert fed(gram_block(x, precision=precision), [x]).trace == 0
    assert fed(partial(Gram, 30, precision=precision), [x]).centred().trace == 0


# -- weights


@pytest.mark.parametrize("kind", ANYWHERE)
@FEW
@given(cut=cut_values(), data=st.data())
def test_a_weight_is_so_many_copies(kind, cut, data):
    counts = [data.draw(st.lists(st.integers(0, 3), min_size=len(part), max_size=len(part))) for part in cut]
    weights, new = [np.array(count, dtype=np.int64) for count in counts], new_for(kind, cut)
    weighted = new()
    for part, weight in zip(cut, weights, strict=True):
        weighted.update(part, weights=weight.astype(float))
    expected = fed(new, [part.repeat(weight, axis=0) for part, weight in zip(cut, weights, strict=True)])
    assert weighted.weight == expected.weight == expected.n_samples
    weighted.n_samples = expected.n_samples
    same_statistic(weighted, expected)


@pytest.mark.parametrize("kind", [kind for kind in ALONG_SAMPLES if not kind.startswith(UNDISCOUNTED)])
@pytest.mark.parametrize("dtype", ["u1", "f8"])
def test_a_discount_multiplies_the_weights_of_all_samples_so_far(kind, dtype):
    x = values(40, dtype, offset=130.0)
    new = new_for(kind, [x])
    found, weighted = fed(new, [x[:25]]), new()
    found.discount(0.3)
    found.update(x[25:])
    weighted.update(x[:25], weights=np.full(25, 0.3))
    weighted.update(x[25:])
    assert (found.n_samples, found.weight) == (40, pytest.approx(22.5, rel=1e-14))
    np.testing.assert_allclose(found.mean, weighted.mean, rtol=1e-6)
    assert found.trace == pytest.approx(weighted.trace, rel=1e-6)
    if isinstance(found, Scatter):
        assert not found.exact
        scale = found.trace
        np.testing.assert_allclose(found.matrix(), weighted.matrix(), atol=1e-6 * scale)
        np.testing.assert_allclose(found.probe_products, weighted.probe_products, atol=1e-5 * scale)
    else:
        assert found.shrunk == pytest.approx(weighted.shrunk, rel=1e-12)
        np.testing.assert_allclose(
            found.sketch.T @ found.sketch, weighted.sketch.T @ weighted.sketch, atol=1e-9 * found.trace
        )


def test_weights_of_a_gram_matrix_are_copies():
    x = np.random.default_rng(7).normal(size=(SHORT, 300))
    weighted = fed(partial(Gram, SHORT, precision="double"), [x]).centred(COPIES)
    np.testing.assert_allclose(symmetric(weighted.upper), gram_of(x, COPIES), atol=1e-12)
    repeated = np.repeat(x, COPIES.astype(int), axis=0)
    np.testing.assert_allclose(weighted.trace, np.trace(gram_of(repeated)), rtol=1e-13)


@pytest.mark.parametrize("kind", ANYWHERE)
def test_unit_weights_change_no_bit_and_a_sample_of_weight_nought_may_hold_anything(kind):
    x = values(30, "f4", 30.0, seed=1)
    new, weights = new_for(kind, [x]), np.ones(30)
    plain, weighted = fed(new, [x]), new()
    weighted.update(x, weights=weights)
    assert_same_state(plain.state(), weighted.state())
    clean, weighted = fed(new, [np.delete(x, 11, axis=0)]), new()
    x[11], weights[11] = np.nan, 0
    weighted.update(x, weights=weights)
    assert_same_state(clean.state(), weighted.state())
    weighted.update(x, weights=np.zeros(30))
    assert_same_state(clean.state(), weighted.state())
    x[20] = np.inf
    if kind.startswith("observed"):
        return
    with pytest.raises(NotFiniteError) as error:
        new().update(x, at=100, weights=weights)
    assert error.value.sample == 120


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_moments_of_groups_are_numpys(dtype):
    """Weighted samples are far from 0, and their cycle is much larger than the residuals."""
    rng = np.random.default_rng(3)
    groups, times, weights = rng.integers(0, 4, 300), np.cumsum(rng.gamma(2.0, size=300)), rng.gamma(2.0, size=300)
    x = values(300, dtype, 100.0) + (1000 * groups[:, None] if dtype == "f8" else 0)
    found = GroupMoments(SHORT, groups, 4, times)
    for start in range(0, 300, 70):
        found.update(x[start : start + 70], at=start, weights=weights[start : start + 70])
    wide, squares, products = x.astype(np.float64), 0, 0
    for group in range(4):
        own, count = wide[groups == group], weights[groups == group]
        late = times[groups == group] - np.average(times[groups == group], weights=count)
        mean = np.average(own, axis=0, weights=count)
        np.testing.assert_allclose(found.means[group], mean, rtol=1e-13)
        squares, products = squares + count @ (own - mean) ** 2, products + (count * late) @ (own - mean)
    np.testing.assert_allclose(found.weights, np.bincount(groups, weights), rtol=1e-13)
    np.testing.assert_allclose(found.squares, squares, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(found.products, products, rtol=1e-10, atol=1e-8 * np.abs(products).max())


def test_groups_kept_apart_are_joined_to_their_samples():
    """Of some features, weighted; a group has no samples, and its neighbours are merged from parts."""
    rng = np.random.default_rng(5)
    groups, weights, x = rng.integers(0, 3, 300) * 2, rng.integers(0, 3, 300).astype(float), values(300, "f8", 100.0)
    times, own, some = x[:, 3] ** 2, np.array([0, 3, 6]), np.isin(groups, [0, 4])
    new = partial(GroupMoments, SHORT, groups, 5, times, apart=True), partial(GroupScatter, own, 5, groups)
    moments, scatters = (each() for each in new)
    for start in range(0, 300, 70):
        rows = slice(start, start + 70)
        for whole, each in zip((moments, scatters), new, strict=True):
            part = each()
            part.update(x[rows], at=start, weights=weights[rows])
            whole.absorb(part)
    found, matrix = moments.of_features(own).joined([0, 3, 4]), scatters.joined([0, 4])
    expected, y = x[some][:, own], times[some]
    about, late = centred(expected, weights[some]), centred(y[:, None], weights[some])
    np.testing.assert_allclose(found.squares[0], np.sum(about**2, axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.products[0], (about.T @ late)[:, 0], rtol=1e-9)
    np.testing.assert_allclose(found.means[0], np.average(expected, axis=0, weights=weights[some]), rtol=1e-12)
    assert found.mean_times[0] == pytest.approx(np.average(y, weights=weights[some]))
    assert found.weight == matrix.weight == weights[some].sum()
    np.testing.assert_allclose(symmetric(matrix.matrix()), about.T @ about, atol=1e-5 * matrix.trace)


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_scatters_between_classes_are_numpys(dtype, precision):
    """Compare weighted samples far from 0, merged from parts about other centres."""
    rng = np.random.default_rng(4)
    codes, weights = rng.integers(0, 4, 300), rng.integers(0, 3, 300).astype(float)
    x = values(300, dtype, 100.0) + (8 * codes[:, None]).astype(dtype)
    new = partial(ClassScatter, SHORT, 5, codes, precision=precision, product_rows=50)
    parts = [new(), new()]
    for start in range(0, 300, 70):
        some = slice(start, min(start + 70, 300))
        parts[start > 140].update(x[some], at=start, weights=weights[some])
    found, wide = parts[0].merge(parts[1]), x.astype(np.float64)
    expected = np.array([np.average(wide[codes == c], axis=0, weights=weights[codes == c]) for c in range(4)])
    counts = np.bincount(codes, weights)
    between = (expected - np.average(wide, axis=0, weights=weights)) * np.sqrt(counts)[:, None]
    scale = np.abs(between).max()
    np.testing.assert_allclose(found.between[:4], between, atol=scale * (1e-5 if precision == "single" else 1e-12))
    assert (found.between[4] == 0).all()


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_products_of_pairs_are_numpys(dtype):
    """Compare weighted pairs far from 0; targets are known beforehand, or given with each block."""
    rng = np.random.default_rng(3)
    x, weights = values(300, dtype, 3e4), rng.integers(0, 4, 300).astype(float)
    y = np.column_stack([x[:, 0], rng.normal(size=300)]) + 1e4
    found, given_with = CrossScatter(SHORT, 2, y), CrossScatter(SHORT, 2)
    for start in range(0, 300, 70):
        some = slice(start, min(start + 70, 300))
        found.update(x[some], at=start, weights=weights[some])
        given_with.update(x[some], y[some], weights=weights[some])
    expected = centred(x, weights).T @ centred(y, weights)
    np.testing.assert_allclose(found.products, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_array_equal(found.products, given_with.products)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_any_weights_are_numpys(precision):
    x = values(5000, "f4", 30.0, seed=2)
    weights = np.random.default_rng(0).gamma(2.0, size=5000)
    scatter = Scatter(SHORT, precision=precision, product_rows=512)
    for start in range(0, 5000, 700):
        scatter.update(x[start : start + 700], weights=weights[start : start + 700])
    np.testing.assert_allclose(scatter.mean, np.average(x.astype(np.float64), axis=0, weights=weights), rtol=1e-6)
    assert np.linalg.norm(symmetric(scatter.matrix()) - scatter_of(x, weights)) <= TOLERANCE[precision] * scatter.trace
    assert scatter.weight == pytest.approx(weights.sum(), rel=1e-13)


# -- probes and memory


def test_probe_rounding_is_measured():
    """The difference between the float32 and the float64 probes of the same rows is of the size `rounding` says."""
    x = values(5000, "f4", 30.0, seed=2)
    single, double = (fed(partial(Scatter, SHORT, precision=precision), [x]) for precision in TOLERANCE)
    true = np.linalg.norm(single.probe_products - double.probe_products)
    measured = np.linalg.norm(single.probe_rounding)
    assert 0 < true < 100 * measured
    assert measured < 1e-5 * np.linalg.norm(double.probe_products)


def test_probes_are_products_with_the_directions_of_their_features():
    x = np.ascontiguousarray(values(700, "f8", 3.0, seed=2).T)
    gram = Gram(SHORT, precision="double", product_features=100, seed=9)
    for features in blocks_of(Span(0, 700), 130):
        gram.update(x[:, slice(*features)], at=features.start)
    np.testing.assert_allclose(gram.centred().products, centred(x) @ Directions(9).rows(0, 700), atol=1e-11)


def test_directions_are_the_same_whichever_part_is_drawn():
    whole = Directions(4).rows(0, 200_000)
    part = Directions(4)
    for start, stop in ((199_990, 200_000), (65_530, 65_545), (0, 3), (131_072, 131_072), (10, 140_000)):
        np.testing.assert_array_equal(part.rows(start, stop), whole[start:stop])
    assert abs(np.corrcoef(whole[:65536, 0], whole[65536:131072, 0])[0, 1]) < 0.02
