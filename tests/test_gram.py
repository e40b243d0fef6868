"""The Gram matrix: the laws, exactness, weights and probes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.accumulators import Gram, NotFiniteError
from streampca.accumulators.probes import Directions
from streampca.planning.blocks import Span, blocks_of
from streampca.testing import AccumulatorLaws

N = 6
GRAMS = {
    "single": partial(Gram, N, precision="single"),
    "double": partial(Gram, N, precision="double"),
    "narrow tiles": partial(Gram, N, precision="single", product_features=5),
}
TOLERANCE = {"single": 1e-6, "double": 1e-13}  # of the trace


def samples(features, dtype, offset, seed):
    """Six samples of some features, two of them equal, with a mean of about `offset`."""
    rng = np.random.default_rng(seed)
    x = 5 * rng.normal(size=(N, features)) + rng.normal(size=(N, 1))
    x[4] = x[1]
    if np.dtype(dtype).kind == "u":
        return np.clip(np.rint(x + min(offset, 130)), 0, np.iinfo(dtype).max).astype(dtype)
    return (x + offset).astype(dtype)


@st.composite
def pieces(draw):
    """A matrix of one dtype, its features cut in three or four; parts may be empty."""
    lengths = draw(st.lists(st.integers(0, 40), min_size=3, max_size=4))
    dtype, offset = draw(st.sampled_from(["u1", "u2", "f4", "f8"])), draw(st.sampled_from([0.0, 3.0, 30000.0]))
    x = samples(sum(lengths), dtype, offset, seed=draw(st.integers(0, 1000)))
    return [part.copy() for part in np.split(x, np.cumsum(lengths)[:-1], axis=1)]


def symmetric(centred):
    """Both triangles of a matrix about the mean."""
    return np.triu(centred.upper) + np.triu(centred.upper, 1).T


def about_the_mean(gram, weights=None):
    """The matrix about the mean; leaves the accumulator as it was."""
    return Gram.from_state(gram.state()).centred(weights)


def same_statistic(one, other):
    """Equal matrices, traces and probes, to the rounding the precision allows."""
    assert one.n_features == other.n_features
    first, second = about_the_mean(one), about_the_mean(other)
    allowed = TOLERANCE[one.precision] * max(first.trace, second.trace) + 1e-16
    assert np.linalg.norm(symmetric(first) - symmetric(second)) <= allowed
    assert abs(first.trace - second.trace) <= N * allowed
    largest = max(np.abs(first.products).max(), np.abs(second.products).max(), 1.0)
    np.testing.assert_allclose(first.products, second.products, atol=1e-5 * largest)


def fed(new, parts):
    gram, at = new(), 0
    for part in parts:
        gram.update(part, at=at)
        at += part.shape[1]
    return gram


def reference(x, weights=None):
    """G of centred samples in float64."""
    weights = np.ones(len(x)) if weights is None else weights
    centred = x.astype(np.float64) - np.average(x.astype(np.float64), axis=0, weights=weights)
    centred *= np.sqrt(weights)[:, None]
    return centred @ centred.T


@pytest.mark.parametrize("new", GRAMS.values(), ids=GRAMS.keys())
@given(cut=pieces())
def test_laws(new, cut):
    AccumulatorLaws(new, same_statistic).check(cut)


class ForgetsWhereItIs(Gram):
    """Takes the first rows of W wherever the range lies."""

    def update(self, block, *, at=0, weights=None):
        super().update(block, at=0)


class LosesAFeature(Gram):
    def update(self, block, *, at=0, weights=None):
        super().update(block[:, :-1] if block.shape[1] > 1 else block, at=at)


@pytest.mark.parametrize("wrong", [ForgetsWhereItIs, LosesAFeature])
def test_laws_catch_a_planted_mistake(wrong):
    cut = [part.copy() for part in np.split(samples(60, "f4", 3.0, seed=1), [11, 40], axis=1)]
    with pytest.raises(AssertionError):
        AccumulatorLaws(partial(wrong, N), same_statistic).check(cut)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2"])
def test_worst_case_integers_are_exact(dtype):
    """Values at both ends of their range: the largest products there are; the bits do not depend on the cut."""
    rng = np.random.default_rng(0)
    low, top = (0, 255) if dtype == "u2" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = rng.choice(np.array([low, top], dtype), size=(N, 20000))
    exact = reference(x)
    whole = fed(partial(Gram, N), [x])
    cut = fed(partial(Gram, N), np.split(x, [1, 700, 4900, 19000], axis=1))
    for gram in (whole, cut):
        assert gram.exact
        np.testing.assert_allclose(symmetric(gram.centred()), exact, rtol=0, atol=1e-15 * np.trace(exact))


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_float32_with_an_offset_loses_nothing(offset):
    """Mean 10000 times the deviation, whose squares alone would fill float32."""
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(40, 30000)) + offset).astype(np.float32)
    exact = reference(x)
    new = partial(Gram, 40)
    found = fed(new, np.split(x, 3, axis=1)).centred()
    assert np.linalg.norm(symmetric(found) - exact, 2) <= 1e-6 * np.linalg.norm(exact, 2)
    assert found.trace == pytest.approx(np.trace(exact), rel=3e-7)


def test_weights_are_copies():
    rng = np.random.default_rng(7)
    x, copies = rng.normal(size=(N, 300)), np.array([2.0, 0.0, 1.0, 3.0, 1.0, 2.0])
    weighted = fed(partial(Gram, N, precision="double"), [x]).centred(copies)
    np.testing.assert_allclose(symmetric(weighted), reference(x, copies), atol=1e-12)
    repeated = np.repeat(x, copies.astype(int), axis=0)
    np.testing.assert_allclose(weighted.trace, np.trace(reference(repeated)), rtol=1e-13)


def test_equal_samples_have_no_trace():
    x = np.broadcast_to(np.float32(0.1) + np.arange(50, dtype=np.float32), (N, 50))
    assert fed(partial(Gram, N), [x]).centred().trace == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e30])
def test_a_sample_that_is_no_number_is_named(value):
    x = samples(50, "f4", 0.0, seed=0)
    x[3, 17] = value
    with pytest.raises(NotFiniteError) as caught:
        fed(partial(Gram, N), [x])
    assert caught.value.sample == 3


def test_probes_are_products_with_the_directions_of_their_features():
    x = samples(700, "f8", 3.0, seed=2)
    gram = Gram(N, precision="double", product_features=100, seed=9)
    for features in blocks_of(Span(0, 700), 130):
        gram.update(x[:, slice(*features)], at=features.start)
    found = gram.centred()
    centred = x - x.mean(axis=0)
    np.testing.assert_allclose(found.products, centred @ Directions(9).rows(0, 700), atol=1e-11)


def test_directions_are_the_same_whichever_part_is_drawn():
    whole = Directions(4).rows(0, 200_000)
    part = Directions(4)
    for start, stop in ((199_990, 200_000), (65_530, 65_545), (0, 3), (131_072, 131_072), (10, 140_000)):
        np.testing.assert_array_equal(part.rows(start, stop), whole[start:stop])
    assert abs(np.corrcoef(whole[:65536, 0], whole[65536:131072, 0])[0, 1]) < 0.02
