"""The scatter matrix applied to a block: the laws, and exactness."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.accumulators import NotFiniteError, ScatterBlock
from streampca.accumulators.probes import probe_directions
from streampca.planning.sizes import PROBES_OF_PASS
from streampca.testing import AccumulatorLaws, assert_same_state

P, WIDTH = 7, 3
TOLERANCE = {"single": 1e-6, "double": 1e-13}  # of what is summed, about the centre


def samples(rows, dtype, offset, seed, features=P):
    """Rows of which some features are alike, and one is constant, with a mean of about `offset`."""
    rng = np.random.default_rng(seed)
    x = 5 * rng.normal(size=(rows, features))
    x[:, 1] += x[:, 0]
    x[:, 5] = 0
    if np.dtype(dtype).kind == "u":
        top = np.iinfo(dtype).max
        return np.clip(np.rint(x + min(offset, top / 2)), 0, top).astype(dtype)
    return (x + offset).astype(dtype)


def block(features=P, width=WIDTH, seed=9):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(features, width)))[0]


def beginning(dtype, offset, precision, mean=None, **more):
    """How an accumulator begins, its centre one off the mean."""
    centre = np.full(P, (min(offset, 127.0) if dtype == "u1" else offset) + 1)
    known = None if mean is None else mean - centre
    return partial(ScatterBlock, block(), centre, offset=known, precision=precision, **more)


@st.composite
def pieces(draw):
    """A dtype, an offset, and a matrix of them cut in three or four; parts may be empty."""
    lengths = draw(st.lists(st.integers(0, 40), min_size=3, max_size=4))
    dtype, offset = draw(st.sampled_from(["u1", "f4", "f8"])), draw(st.sampled_from([0.0, 3.0, 30000.0]))
    x = samples(sum(lengths), dtype, offset, seed=draw(st.integers(0, 1000)))
    return dtype, offset, [part.copy() for part in np.split(x, np.cumsum(lengths)[:-1])]


def taken(applied):
    """S Q about the mean; leaves the accumulator as it was."""
    return ScatterBlock.from_state(applied.state()).take()


def summed(applied):
    """Trace of the scatter about the centre: what rounding is in proportion to."""
    return applied._squares + applied.drift if applied.probes() else np.linalg.norm(taken(applied)) + applied.drift


def same_statistic(one, other):
    """Equal numbers of samples, products, means, traces and probes, to the rounding the precision allows."""
    assert (one.n_samples, one.weight) == (other.n_samples, other.weight)
    allowed = 10 * TOLERANCE[one.precision] * max(summed(one), summed(other)) + 1e-16
    assert np.linalg.norm(taken(one) - taken(other)) <= allowed
    if one.probes() is None:
        assert other.probes() is None
        return
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9, atol=1e-6)
    assert abs(one.trace - other.trace) <= allowed
    assert np.linalg.norm(one.probes()[0] - other.probes()[0]) <= 10 * allowed


@pytest.mark.parametrize("known", [False, True], ids=["measured", "known mean"])
@pytest.mark.parametrize("precision", ["single", "double"])
@given(cut=pieces())
def test_laws(precision, known, cut):
    dtype, offset, parts = cut
    x = np.concatenate(parts).astype(np.float64)
    mean = x.mean(axis=0) if known and len(x) else np.full(P, offset) if known else None
    for more in ({}, {"product_rows": 5}):
        AccumulatorLaws(beginning(dtype, offset, precision, mean, **more), same_statistic).check(parts)


class LosesTheTail(ScatterBlock):
    def update(self, block, *, at=0, weights=None):
        super().update(block[:-1] if len(block) > 1 else block, at=at, weights=weights)


@pytest.mark.parametrize("wrong", [LosesTheTail])
def test_laws_catch_a_planted_mistake(wrong):
    cut = [part.copy() for part in np.split(samples(30, "f4", 3.0, seed=1), [11, 20])]
    AccumulatorLaws(partial(ScatterBlock, block(), np.zeros(P)), same_statistic).check(cut)
    with pytest.raises((AssertionError, ValueError)):
        AccumulatorLaws(partial(wrong, block(), np.zeros(P)), same_statistic).check(cut)


def scatter(x, weights=None):
    """S of centred samples, their mean and their trace, in float64."""
    x, weights = x.astype(np.float64), np.ones(len(x)) if weights is None else weights
    mean = np.average(x, axis=0, weights=weights)
    centred = (x - mean) * np.sqrt(weights)[:, None]
    return centred.T @ centred, mean


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("known", [False, True], ids=["measured", "known mean"])
@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize(("dtype", "offset"), [("f4", 0.0), ("f4", 10000.0), ("u1", 100.0), ("f8", 10000.0)])
def test_products_are_right(dtype, offset, precision, known, weighted):
    """S Q, mean, trace and S W, against float64 throughout; the centre is a unit off."""
    x = samples(2000, dtype, offset, seed=3, features=40)
    weights = np.random.default_rng(4).gamma(2.0, size=2000) if weighted else None
    s, mean = scatter(x, weights)
    q = block(40, 6)
    applied = ScatterBlock(
        q,
        mean.round() + 1,
        offset=mean - mean.round() - 1 if known else None,
        precision=precision,
        product_rows=300,
        seed=5,
    )
    for start in range(0, 2000, 700):
        rows = slice(start, start + 700)
        applied.update(x[rows], at=start, weights=None if weights is None else weights[rows])
    norm, allowed = np.linalg.norm(s, 2), {"single": 1e-6, "double": 1e-11}[precision]  # numpy's mean of large offsets
    assert applied.n_samples == 2000
    assert applied.weight == pytest.approx(2000 if weights is None else weights.sum(), rel=1e-13)
    np.testing.assert_array_equal(applied.vectors, q.astype(applied.vectors.dtype))
    found = applied.probes()
    if known:
        assert found is None
    else:
        products, rounding = found
        directions = probe_directions(40, 5, PROBES_OF_PASS)
        assert np.linalg.norm(products - s @ directions) <= 10 * allowed * norm * np.linalg.norm(directions)
        assert np.linalg.norm(rounding) <= 10 * allowed * norm * np.linalg.norm(directions)
        np.testing.assert_allclose(applied.mean, mean, rtol=1e-9, atol=1e-6)
        assert applied.trace == pytest.approx(np.trace(s), rel=allowed)
        assert applied.drift == pytest.approx(applied.weight * np.sum((mean - mean.round() - 1) ** 2), rel=1e-3)
    vectors = applied.vectors.astype(np.float64)
    product = applied.take()
    assert product.flags.f_contiguous
    assert np.linalg.norm(product - s @ vectors) <= allowed * norm * np.linalg.norm(vectors)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_samples_count_as_often_as_they_weigh(precision):
    """Two is twice, none is not there: whatever the row holds."""
    x = samples(300, "f4", 3.0, seed=6)
    weights = np.random.default_rng(7).integers(0, 3, 300).astype(np.float64)
    repeated = np.repeat(x, weights.astype(int), axis=0)
    x[np.flatnonzero(weights == 0)[:2]] = np.array([[np.nan], [np.inf]])
    one, other = (ScatterBlock(block(), np.zeros(P), precision=precision, product_rows=64) for _ in range(2))
    one.update(x, weights=weights)
    other.update(repeated)
    assert one.n_samples == np.count_nonzero(weights)
    assert one.weight == other.weight == len(repeated)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6)
    assert one.trace == pytest.approx(other.trace, rel=TOLERANCE[precision])
    allowed = TOLERANCE[precision] * summed(other)
    assert np.linalg.norm(taken(one) - taken(other)) <= allowed
    assert np.linalg.norm(one.probes()[0] - other.probes()[0]) <= 20 * allowed


def test_a_block_without_weight_changes_nothing():
    applied = ScatterBlock(block(), np.zeros(P))
    applied.update(samples(20, "f4", 0.0, seed=0))
    before = applied.state()
    applied.update(np.full((5, P), np.nan, np.float32), weights=np.zeros(5))
    assert_same_state(applied.state(), before)


@pytest.mark.parametrize("known", [False, True], ids=["measured", "known mean"])
@pytest.mark.parametrize(
    ("bad", "precision", "said"),
    [
        (np.nan, "single", "NaN or infinity in 1 of its 7 features"),
        (np.inf, "double", "NaN or infinity in 1 of its 7 features"),
        (-np.inf, "single", "NaN or infinity in 1 of its 7 features"),
        (1e30, "single", "precision='double'"),
    ],
)
def test_what_is_no_number_is_named_with_its_sample(bad, precision, said, known):
    x = samples(40, "f4", 0.0, seed=0)
    x[23, 3] = bad
    weights = np.ones(40)
    for given_weights in (None, weights, np.where(np.arange(40) == 5, 0, weights)):
        applied = ScatterBlock(
            block(), np.zeros(P), offset=np.zeros(P) if known else None, precision=precision, product_rows=16
        )
        with pytest.raises(NotFiniteError) as error:
            applied.update(x, at=100, weights=given_weights)
        assert error.value.sample == 123
        assert said in error.value.problem


def test_an_overflow_along_one_vector_is_seen():
    """The others are orthogonal to all samples, and their products are finite."""
    q = block()
    x = np.outer(np.linspace(1, 2, 20), 1e20 * q[:, 2]).astype(np.float32)
    with pytest.raises(NotFiniteError, match=r"squares overflow; use precision='double'"):
        ScatterBlock(q, np.zeros(P), offset=np.zeros(P)).update(x)


def test_other_blocks_or_centres_are_not_added():
    one = ScatterBlock(block(), np.zeros(P))
    for other in (
        ScatterBlock(block(seed=1), np.zeros(P)),
        ScatterBlock(block(), np.ones(P)),
        ScatterBlock(block(), np.zeros(P), offset=np.zeros(P)),
        ScatterBlock(block(), np.zeros(P), precision="double"),
    ):
        with pytest.raises(ValueError, match="cannot be added"):
            one.merge(other)


@pytest.mark.parametrize("known", [False, True], ids=["measured", "known mean"])
def test_a_state_goes_on_in_the_middle(known):
    """To the same bits, its sum taken over or copied."""
    x = samples(500, "f4", 1e4, seed=8)
    centre = x[:9].mean(axis=0, dtype=np.float64)  # no float32 holds it: it is centred on in two parts
    new = partial(ScatterBlock, block(), centre, offset=np.full(P, 0.1) if known else None, product_rows=64)
    whole, half = new(), new()
    for start in range(0, 500, 100):
        whole.update(x[start : start + 100], at=start)
    for start in range(0, 200, 100):
        half.update(x[start : start + 100], at=start)
    half.release()
    state = half.state(copy=False)
    kept = {name: values.copy() for name, values in state.items()}
    for copy in (True, False):
        later = ScatterBlock.from_state(kept, copy=copy)
        for start in range(200, 500, 100):
            later.update(x[start : start + 100], at=start)
        assert_same_state(later.state(), whole.state())
