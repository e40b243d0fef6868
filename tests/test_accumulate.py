"""Statistics obey the laws that let them be split and merged, and are as accurate as promised."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.accumulators import NotFiniteError, Scatter
from streampca.planning.sizes import scatter_bytes
from streampca.testing import AccumulatorLaws, assert_same_state

ACCUMULATORS = {
    "scatter, single": partial(Scatter, 7, precision="single"),
    "scatter, double": partial(Scatter, 7, precision="double"),
    "scatter, short products": partial(Scatter, 7, precision="single", product_rows=5),
}
TOLERANCE = {"single": 1e-6, "double": 1e-13}  # of the trace; a first block of one row makes a poor centre


def samples(rows, dtype, offset, seed, spread=5.0):
    """Rows of 7 features, some alike and one constant, with a mean of about `offset`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 7)) @ np.diag([1, 1, 0.3, 0.1, 2, 0, 1]) * spread
    x[:, 1] += x[:, 0]
    if np.dtype(dtype).kind == "u":
        top = np.iinfo(dtype).max
        return np.clip(np.rint(x + min(offset, top)), 0, top).astype(dtype)
    return (x + offset).astype(dtype)


@st.composite
def pieces(draw, dtypes=("u1", "u2", "f4", "f8")):
    """A matrix of one dtype, cut in three or four; parts may be empty."""
    lengths = draw(st.lists(st.integers(0, 40), min_size=3, max_size=4))
    offset = draw(st.sampled_from([0.0, 3.0, 130.0, 30000.0]))
    dtype = draw(st.sampled_from(dtypes))
    x = samples(sum(lengths), dtype, offset, seed=draw(st.integers(0, 1000)))
    return [part.copy() for part in np.split(x, np.cumsum(lengths)[:-1])]


def covariance(scatter):
    """The matrix about the mean, both triangles."""
    upper = np.triu(scatter.matrix())
    return upper + np.triu(upper, 1).T


def same_statistic(one, other):
    """Equal numbers of samples, means and matrices, to the rounding the precision allows."""
    assert one.n_samples == other.n_samples
    np.testing.assert_allclose(one.mean, other.mean, rtol=TOLERANCE[one.precision], atol=1e-5)
    if not one.n_samples:
        return
    allowed = TOLERANCE[one.precision] * max(one.trace, other.trace) + 1e-20 * float(np.sum(one.mean**2))
    assert np.linalg.norm(covariance(one) - covariance(other)) <= allowed
    assert abs(one.trace - other.trace) <= 7 * allowed
    size = np.linalg.norm(one.probe_directions)
    assert np.linalg.norm(one.probe_products - other.probe_products) <= 10 * size * allowed


def fed(new, parts):
    accumulator, at = new(), 0
    for part in parts:
        accumulator.update(part, at=at)
        at += len(part)
    return accumulator


@pytest.mark.parametrize("new", ACCUMULATORS.values(), ids=ACCUMULATORS.keys())
@given(cut=pieces())
def test_laws(new, cut):
    AccumulatorLaws(new, same_statistic).check(cut)


@pytest.mark.parametrize("new", ACCUMULATORS.values(), ids=ACCUMULATORS.keys())
@given(cut=pieces(dtypes=("u1", "b1")))
def test_narrow_integers_have_the_same_bits_whatever_the_cut(new, cut):
    whole, merged, one_by_one = fed(new, [np.concatenate(cut)]), new(), fed(new, cut)
    for part in cut:
        merged.absorb(fed(new, [part]))
    for scatter in (whole, merged, one_by_one):
        assert scatter.exact
        scatter.settle()
    for other in (merged, one_by_one):
        np.testing.assert_array_equal(np.triu(other.matrix()), np.triu(whole.matrix()))
        np.testing.assert_array_equal(other.mean, whole.mean)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2"])
def test_worst_case_integers_are_exact(dtype):
    """Values at both ends of their range: the largest products there are."""
    rng = np.random.default_rng(0)
    top = 255 if dtype == "u2" else np.iinfo(dtype).max
    low = 0 if dtype == "u2" else np.iinfo(dtype).min
    x = rng.choice(np.array([low, top], dtype), size=(5000, 9))
    scatter = Scatter(9)
    for part in np.split(x, [1, 700, 4900]):
        scatter.update(part)
    centre = np.rint(x.mean(axis=0, dtype=np.float64)).astype(np.int64)
    exact = (x.astype(np.int64) - centre).T @ (x.astype(np.int64) - centre)
    scatter.settle()
    assert scatter.exact
    np.testing.assert_array_equal(np.triu(scatter.upper), np.triu(exact))


class ForgetsTheMean(Scatter):
    """Adds scatters about different centres: the classical mistake."""

    def absorb(self, other):
        other = Scatter.from_state(other.state())
        other._centre = self._centre.copy()
        super().absorb(other)


class LosesTheTail(Scatter):
    """Leaves out the last sample of a block of more than one."""

    def update(self, block, *, at=0):
        super().update(block[:-1] if len(block) > 1 else block, at=at)


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


@pytest.mark.parametrize(
    "wrong",
    [
        ForgetsTheMean, LosesTheTail, WritesToItsInput, ForgetsInItsState, SharesItsState, MergesInPlace, OrderMatters,
    ],
)  # fmt: skip
def test_laws_catch_a_planted_mistake(wrong):
    """The test of the test: each breaks a law, and `check` says so."""
    x = samples(30, "f4", 130.0, seed=1)
    x[20:] += 40  # parts of different means
    cut = [part.copy() for part in np.split(x, [11, 20])]
    AccumulatorLaws(partial(Scatter, 7), same_statistic).check(cut)
    with pytest.raises((AssertionError, ValueError)):
        AccumulatorLaws(partial(wrong, 7), same_statistic).check(cut)


def reference(x):
    centred = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    return centred.T @ centred


@pytest.mark.parametrize("block", [1000, 137])
@pytest.mark.parametrize(
    ("dtype", "mean", "deviation"), [("f4", 30000.0, 5.0), ("u2", 10000.0, 300.0), ("u2", 10000.0, 5.0)]
)
def test_large_offsets_keep_single_precision(dtype, mean, deviation, block):
    """Where E[xx^T] - mm^T in float32 has no right digit."""
    x = np.random.default_rng(5).normal(mean, deviation, size=(20000, 60)).astype(dtype)
    expected = reference(x)
    scatter = Scatter(60)
    for start in range(0, len(x), block):
        scatter.update(x[start : start + block], at=start)
    found = covariance(scatter)
    assert np.linalg.norm(found - expected, 2) < 3e-7 * np.linalg.norm(expected, 2)
    variances, right = np.linalg.eigvalsh(found), np.linalg.eigvalsh(expected)
    np.testing.assert_allclose(variances, right, rtol=1e-5)
    np.testing.assert_allclose(scatter.mean, x.mean(axis=0, dtype=np.float64), rtol=1e-9)


@pytest.mark.parametrize("dtype", ["f4", "u2", "f8"])
def test_a_drifting_mean_is_followed(dtype):
    """Samples in order of acquisition, the lamp getting brighter: the first block's mean is far from the last's."""
    rng = np.random.default_rng(3)
    n = 6000
    x = (rng.normal(0, 5, size=(n, 20)) + np.linspace(100, 60000, n)[:, None]).astype(dtype)
    scatter = fed(partial(Scatter, 20), np.array_split(x, 40))
    expected = reference(x)
    assert np.linalg.norm(covariance(scatter) - expected, 2) < 3e-7 * np.linalg.norm(expected, 2)


def test_a_bad_first_block_does_not_spoil_the_rest():
    """Dark frames first: the provisional mean is then off by 6000 deviations."""
    rng = np.random.default_rng(4)
    dark = np.zeros((10, 30), np.float32)
    light = rng.normal(30000, 5, size=(4000, 30)).astype(np.float32)
    scatter = fed(partial(Scatter, 30), [dark, *np.array_split(light, 8)])
    expected = reference(np.concatenate([dark, light]))
    assert np.linalg.norm(covariance(scatter) - expected, 2) < 3e-7 * np.linalg.norm(expected, 2)


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 17, 171, 299])
def test_what_is_not_finite_is_named(row, value, precision):
    x = samples(300, "f4", 3.0, seed=0)
    x[row, 2:4] = value
    x[row + 1 :, 5] = np.nan  # later offenders are not blamed
    with pytest.raises(NotFiniteError, match=f"^sample {1000 + row} holds NaN or infinity in 2 of its 7 features$"):
        Scatter(7, precision=precision).update(x, at=1000)


@pytest.mark.parametrize(("dtype", "size"), [("f4", 1e25), ("f4", 1e38), ("f8", 1e39), ("f8", 1e60)])
def test_values_whose_float32_squares_overflow_say_so(dtype, size):
    """And the remedy works."""
    x = samples(200, "f8", 0.0, seed=0)
    x[150, 4] = 1000
    x = (x * (size / 1000)).astype(dtype)
    with pytest.raises(NotFiniteError, match=r"sample \d+ holds values up to .*; use precision='double'") as caught:
        Scatter(7).update(x)
    assert caught.value.sample == 150
    scatter = fed(partial(Scatter, 7, precision="double"), [x])
    assert np.linalg.norm(covariance(scatter) - reference(x)) <= 1e-13 * np.linalg.norm(reference(x))


def test_values_whose_double_squares_overflow_are_not_sent_to_double():
    x = samples(20, "f8", 0.0, seed=0) * 1e200
    with pytest.raises(NotFiniteError, match=r"whose squares overflow; divide") as caught:
        Scatter(7, precision="double").update(x)
    assert "precision" not in str(caught.value)
    assert fed(partial(Scatter, 7, precision="double"), [x / 1e100]).trace > 0


def test_unlike_accumulators_are_not_merged():
    """Other probes or another width would give a wrong bound, not an error, later."""
    with pytest.raises(ValueError, match="seed"):
        Scatter(7, seed=1).absorb(fed(partial(Scatter, 7, seed=2), [samples(5, "f4", 0, 0)]))


def test_probe_rounding_is_measured():
    """The difference between the float32 and the float64 probes of the same rows is of the size `rounding` says."""
    x = samples(5000, "f4", 30.0, seed=2)
    single, double = Scatter(7), Scatter(7, precision="double")
    for scatter in (single, double):
        scatter.update(x)
    true = np.linalg.norm(single.probe_products - double.probe_products)
    measured = np.linalg.norm(single.probe_rounding)
    assert 0 < true < 100 * measured
    assert measured < 1e-5 * np.linalg.norm(double.probe_products)


def test_memory_estimate_is_what_is_held():
    """Array by array; the 16-bit product included."""
    scatter = Scatter(300, product_rows=400)
    scatter.update(np.random.default_rng(0).normal(size=(1000, 300)).astype("f4"))
    held = sum(
        values.nbytes
        for owner in (scatter, scatter._probes)
        for values in vars(owner).values()
        if isinstance(values, np.ndarray)
    )
    estimated = sum(scatter_bytes(300, "single", 400).values())
    assert held <= estimated <= 1.5 * held


def test_release_gives_memory_back_and_goes_on():
    x = samples(100, "f4", 3.0, seed=0)
    scatter, other = fed(partial(Scatter, 7), [x[:50]]), fed(partial(Scatter, 7), [x[:50]])
    scatter.release()
    for accumulator in (scatter, other):
        accumulator.update(x[50:])
    assert_same_state(scatter.state(), other.state())


@pytest.mark.parametrize("new", ACCUMULATORS.values(), ids=ACCUMULATORS.keys())
@given(cut=pieces(), data=st.data())
def test_a_weight_is_so_many_copies(new, cut, data):
    counts = [data.draw(st.lists(st.integers(0, 3), min_size=len(part), max_size=len(part))) for part in cut]
    weights = [np.array(count, dtype=np.int64) for count in counts]
    weighted, at = new(), 0
    for part, weight in zip(cut, weights, strict=True):
        weighted.update(part, at=at, weights=weight.astype(float))
        at += len(part)
    copied = fed(new, [part.repeat(weight, axis=0) for part, weight in zip(cut, weights, strict=True)])
    assert weighted.weight == copied.weight == copied.n_samples
    weighted.n_samples = copied.n_samples
    same_statistic(weighted, copied)


def test_unit_weights_change_no_bit():
    x = samples(300, "f4", 30.0, seed=1)
    plain, weighted = Scatter(7), Scatter(7)
    plain.update(x)
    weighted.update(x, weights=np.ones(300))
    assert_same_state(plain.state(), weighted.state())


def test_a_sample_of_weight_nought_may_hold_anything():
    x = samples(30, "f4", 30.0, seed=1)
    clean, weighted = Scatter(7), Scatter(7)
    clean.update(np.delete(x, 11, axis=0))
    x[11] = np.nan
    weights = np.ones(30)
    weights[11] = 0
    weighted.update(x, weights=weights)
    assert_same_state(clean.state(), weighted.state())
    x[20] = np.inf
    with pytest.raises(NotFiniteError) as error:
        Scatter(7).update(x, at=100, weights=weights)
    assert error.value.sample == 120


@pytest.mark.parametrize("precision", ["single", "double"])
def test_any_weights_are_numpys(precision):
    x = samples(5000, "f4", 30.0, seed=2)
    weights = np.random.default_rng(0).gamma(2.0, size=5000)
    scatter = Scatter(7, precision=precision, product_rows=512)
    for start in range(0, 5000, 700):
        scatter.update(x[start : start + 700], weights=weights[start : start + 700])
    expected = np.cov(x.astype(np.float64), rowvar=False, aweights=weights, bias=True) * weights.sum()
    np.testing.assert_allclose(scatter.mean, np.average(x.astype(np.float64), axis=0, weights=weights), rtol=1e-6)
    assert np.linalg.norm(covariance(scatter) - expected) <= TOLERANCE[precision] * scatter.trace
    assert scatter.weight == pytest.approx(weights.sum(), rel=1e-13)
