"""The Gram matrix applied to a block: the laws, and exactness."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.accumulators import GramBlock, NotFiniteError, sample_directions
from streampca.accumulators.probes import probe_directions
from streampca.testing import AccumulatorLaws, assert_same_state

N, WIDTH = 7, 3
TOLERANCE = {"single": 1e-6, "double": 1e-13}  # of the trace


def samples(features, dtype, offset, seed, n=N):
    """Samples of some features, two of them equal, with a mean of about `offset`."""
    rng = np.random.default_rng(seed)
    x = 5 * rng.normal(size=(n, features)) + rng.normal(size=(n, 1))
    x[4] = x[1]
    if np.dtype(dtype).kind == "u":
        return np.clip(np.rint(x + min(offset, 130)), 0, np.iinfo(dtype).max).astype(dtype)
    return (x + offset).astype(dtype)


def weights_of(n):
    """Some of them 0."""
    return np.random.default_rng(5).integers(0, 4, n).astype(np.float64)


def block(roots, width=WIDTH):
    """Orthonormal columns orthogonal to the roots."""
    columns = np.random.default_rng(9).normal(size=(len(roots), width))
    return np.linalg.qr(columns - np.outer(roots, roots @ columns / (roots @ roots)))[0]


def beginning(precision, weights=None, n=N, **more):
    roots = np.ones(n) if weights is None else np.sqrt(weights)
    return partial(
        GramBlock, block(roots), roots=None if weights is None else roots, precision=precision, **more
    )  # fmt: skip


@st.composite
def pieces(draw):
    """A matrix of one dtype, its features cut in three or four; parts may be empty."""
    lengths = draw(st.lists(st.integers(0, 40), min_size=3, max_size=4))
    dtype, offset = draw(st.sampled_from(["u1", "f4", "f8"])), draw(st.sampled_from([0.0, 3.0, 30000.0]))
    x = samples(sum(lengths), dtype, offset, seed=draw(st.integers(0, 1000)))
    return [part.copy() for part in np.split(x, np.cumsum(lengths)[:-1], axis=1)]


def taken(crossed):
    """G U about the mean; leaves the accumulator as it was."""
    return GramBlock.from_state(crossed.state()).take()


def same_statistic(one, other):
    """Equal products, traces and probes, to the rounding the precision allows."""
    assert one.n_features == other.n_features
    found = one.probes(), other.probes()
    whole = max(np.linalg.norm(taken(each)) for each in (one, other)) if found[0] is None else found[0].whole
    allowed = 10 * TOLERANCE[one.precision] * whole + 1e-16
    assert np.linalg.norm(taken(one) - taken(other)) <= allowed
    if found[0] is None:
        assert found[1] is None
        return
    assert abs(one.trace - other.trace) <= allowed
    assert np.linalg.norm(found[0].products - found[1].products) <= 10 * allowed
    assert np.linalg.norm(found[0].along - found[1].along) <= 10 * TOLERANCE[one.precision] * whole**0.5 * 30 + 1e-16


@pytest.mark.parametrize("more", [{}, {"measures": False}, {"product_features": 5}, {"weights": weights_of(N)}],
                         ids=["measured", "not measured", "narrow tiles", "weighted"])  # fmt: skip
@pytest.mark.parametrize("precision", ["single", "double"])
@given(cut=pieces())
def test_laws(precision, more, cut):
    AccumulatorLaws(beginning(precision, **more), same_statistic).check(cut)


class ForgetsWhereItIs(GramBlock):
    """Takes the first rows of W wherever the range lies."""

    def update(self, block, *, at=0, weights=None):
        super().update(block, at=0)


class LosesAFeature(GramBlock):
    def update(self, block, *, at=0, weights=None):
        super().update(block[:, :-1] if block.shape[1] > 1 else block, at=at)


@pytest.mark.parametrize("wrong", [ForgetsWhereItIs, LosesAFeature])
def test_laws_catch_a_planted_mistake(wrong):
    cut = [part.copy() for part in np.split(samples(60, "f4", 3.0, seed=1), [11, 40], axis=1)]
    AccumulatorLaws(partial(GramBlock, block(np.ones(N))), same_statistic).check(cut)
    with pytest.raises((AssertionError, ValueError)):
        AccumulatorLaws(partial(wrong, block(np.ones(N))), same_statistic).check(cut)


def gram(x, weights=None):
    """Rows about their mean, times the roots of their weights, and G of them, in float64."""
    x, weights = x.astype(np.float64), np.ones(len(x)) if weights is None else weights
    centred = (x - np.average(x, axis=0, weights=weights)) * np.sqrt(weights)[:, None]
    return centred, centred @ centred.T


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize(("dtype", "offset"), [("u1", 100.0), ("f4", 0.0), ("f4", 1e4), ("f8", -300.0)])
def test_products_are_those_of_the_centred_samples(dtype, offset, precision, weighted):
    n, p = 40, 3000
    x = samples(p, dtype, offset, seed=3, n=n)
    weights = weights_of(n) if weighted else None
    centred, right = gram(x, weights)
    crossed = beginning(precision, weights, n, product_features=256, threads=2)()
    for start in range(0, p, 700):
        crossed.update(x[:, start : start + 700], at=start)
    roots = np.ones(n) if weights is None else np.sqrt(weights)
    found, allowed = crossed.probes(), (3e-8 if precision == "single" else 1e-14) * np.trace(right)
    assert crossed.trace == pytest.approx(np.trace(right), rel=1e-7 if precision == "single" else 1e-12)
    directions = sample_directions(roots, 0)
    assert np.abs(roots @ directions).max() < 1e-6 * n
    assert np.linalg.norm(found.products - right @ directions) <= 10 * allowed
    along = centred @ probe_directions(p, 0)
    assert np.linalg.norm(found.along - along) <= 1e-6 * np.linalg.norm(along)
    if precision == "single":
        assert 0 < np.linalg.norm(found.products - right @ directions) <= 3 * np.linalg.norm(found.products_rounding)
    vectors = crossed.vectors.astype(np.float64)
    product = crossed.take()
    assert np.linalg.norm(product - right @ vectors) <= allowed
    assert np.abs(roots @ product).max() <= 1e-12 * np.linalg.norm(product)


def test_equal_samples_have_no_variance():
    x = np.repeat(np.random.default_rng(0).normal(size=(1, 500)) * 1e3, 30, axis=0)
    for dtype, precision in (("f4", "single"), ("f8", "single"), ("f8", "double"), ("i2", "single")):
        crossed = beginning(precision, n=30)()
        crossed.update(x.astype(dtype))
        assert crossed.trace == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_sample_that_holds_no_number_is_named(bad):
    x = samples(600, "f4", 3.0, seed=2)
    x[5, 320] = bad
    with pytest.raises(NotFiniteError, match="sample 5 holds") as caught:
        beginning("single", product_features=100, threads=2)().update(x)
    assert caught.value.sample == 5


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_was_kept_goes_on_bit_for_bit(copy, weighted):
    x = samples(900, "f4", 1e4, seed=8)
    begin = beginning("single", weights_of(N) if weighted else None, product_features=50)
    whole, first = begin(), begin()
    for start in range(0, 900, 300):
        whole.update(x[:, start : start + 300], at=start)
    first.update(x[:, :300])
    later = GramBlock.from_state(first.state(copy=copy), copy=copy)
    for start in (300, 600):
        later.update(x[:, start : start + 300], at=start)
    assert_same_state(later.state(), whole.state())


def test_other_blocks_are_not_added():
    one, other = (GramBlock(block(np.ones(N)) * sign) for sign in (1, -1))
    with pytest.raises(ValueError, match="other blocks"):
        one.absorb(other)
    with pytest.raises(ValueError, match="was measured"):
        one.absorb(GramBlock(block(np.ones(N)), measures=False))
    with pytest.raises(ValueError, match="not measured"):
        _ = GramBlock(block(np.ones(N)), measures=False).trace
