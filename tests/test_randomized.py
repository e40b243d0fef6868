"""Method 'randomized' against numpy's float64 eigenvectors, on spectra of every kind, along features and samples."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import judged
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from judged import (
    SAMPLES,
    Along,
    angles,
    carried_out,
    check_wide,
    noise,
    of,
    pictures,
    problems,
    residuals,
    rows_of,
    truth,
    turned,
    warnings,
)  # fmt: skip
from scipy.linalg import subspace_angles
from shell import DATA
from sklearn.utils.extmath import randomized_svd

import streampca
from streampca.errors import DataError, RequestError
from streampca.events import BlockDone, Converging, PassStarted
from streampca.fitting.methods.randomized_start import sample_runs
from streampca.models.accuracy import sentences
from streampca.planning import sample_rows
from streampca.planning.blocks import Span
from streampca.readers.views.chosen import Chosen

N, SIDE = 900, 20
P = SIDE * SIDE


# -- what is fitted, how, and how it is judged


def classes():
    """Images of ten kinds, all of one first, then all of the next."""
    return np.repeat(20 * noise((10, P), seed=5), N // 10, axis=0) * 0.3 + pictures(N, (SIDE, SIDE))


FEATURES = Along("features", N, (SIDE, SIDE), {**problems(N, (SIDE, SIDE)), "sorted by class": classes}, "256MiB", 2e-7)
WAYS = {"features": FEATURES, "samples": SAMPLES}
problem, fit, quiet, planned, check = (
    FEATURES.problem, FEATURES.fit, FEATURES.quiet, FEATURES.planned, FEATURES.check,
)  # fmt: skip
both_ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def cases(*rows):
    """Mark a test with rows of a way, by name, and other parameters."""
    return [pytest.param(WAYS[side], *others, id=f"{side}-{'-'.join(map(str, others))}") for side, *others in rows]


FAR = {("features", "1/f images"), ("features", "drifting mean"), ("samples", "1/i"), ("samples", "exponential")}


def offset_of(side, name):
    """Half of the problems lie far from zero."""
    return 1e4 if (side, name) in FAR else 0.0


@cache
def eight(side, name):
    """Eight components of a problem, and what happened; fitted once."""
    return WAYS[side].fit(WAYS[side].problem(name, offset_of(side, name)), 8)


# -- right answers


@pytest.mark.parametrize(("side", "name"), [(side, name) for side, way in WAYS.items() for name in way.made])
def test_components_are_numpys(side, name):
    model, events = eight(side, name)
    check_wide(model, WAYS[side].check(model, WAYS[side].problem(name, offset_of(side, name))))
    assert warnings(events) == []


@pytest.mark.parametrize(
    ("way", "dtype", "precision"),
    cases(
        ("features", "u1", "single"),
        ("features", "f8", "double"),
        ("samples", "u1", "double"),
        ("samples", "u2", "single"),
        ("samples", "f8", "single"),
    ),
)
def test_any_dtype(way, dtype, precision):
    x = way.problem("1/f images", 0.0)
    x = ((x - x.min()) * (250 / (x.max() - x.min()))).astype(dtype)
    way.check(way.quiet(x, 5, precision), x)


def test_bounds_are_near_the_truth():
    """Within twice it; what float32 leaves of a residual near nothing is beside the point."""
    near = []
    for name in FEATURES.made:
        model, _ = eight("features", name)
        left = residuals(model, truth(problem(name, offset_of("features", name))))
        near.extend((model.residual_bound / left)[left > 1e-6])
    assert 1 <= np.median(near) < 2


def test_tol_is_what_is_certified():
    """And variances, to the square of residuals, are certified near the truth.

    Residuals of Nystrom's pairs, by which the first fit ends, are known by 16 probes alone: up to 5 times the truth.
    """
    x = problem("1/f images", 0.0)
    for tol, most in ((1e-2, 50), (1e-3, 30), (1e-4, 30)):
        model = streampca.fit(x, streampca.PCA(8, method="randomized", tol=tol, precision="double"))
        values = model.explained_variance
        true = np.abs(truth(x).values[: len(values)] - values) / values
        assert np.all(true <= model.error_bound + 10 * np.finfo(float).eps)
        assert np.median(model.error_bound / np.maximum(true, 10 * np.finfo(float).eps)) <= most
        assert model.error_bound.max() <= model.residual_bound.max() <= tol


def test_leading_directions_are_right():
    model, _ = eight("features", "spiked noise")
    right = truth(problem("spiked noise", 0.0))
    assert subspace_angles(rows_of(model.components).T, right.vectors[:8].T).max() < 2e-3
    resolved = np.isfinite(model.angle_bound)
    assert resolved.sum() >= 6
    true = angles(model.components, right.vectors[:8])
    assert np.all(true[resolved] <= model.angle_bound[resolved] + 1e-7)


def outside_of_runs(n, k):
    """Return which of `n` samples the start has not read."""
    collection, plan = planned(np.zeros((n, SIDE, SIDE), np.float32), k)
    unseen = np.ones(n, bool)
    for run in sample_runs(n, sample_rows(n, P, plan.width), collection.chunks.samples):
        unseen[slice(*run)] = False
    assert unseen.any()
    return unseen


@given(n=st.integers(1, 5000), count=st.integers(1, 5000), chunk=st.integers(1, 5000))
@example(n=3000, count=390, chunk=3000)
@example(n=3000, count=390, chunk=1000)
def test_runs_of_samples_are_about_as_many_as_are_asked_for(n, count, chunk):
    """In order, none twice, from all parts of the collection."""
    count = min(n, count)
    runs = sample_runs(n, count, min(n, chunk))
    assert runs[0].start >= 0
    assert runs[-1].stop <= n
    assert all(one.start < one.stop <= other.start for one, other in pairwise([*runs, Span(n, n)]))
    total = sum(run.size for run in runs)
    assert count / 2 <= total < count + len(runs)  # chunks that do not divide the rest leave a little out
    if count >= 8 and chunk <= n // 8:
        assert len(runs) >= 8
        assert runs[-1].stop > n * 3 // 4


def with_unseen(values, deviation, unseen):
    """Rows of these eigenvalues and of one direction more, which is in samples that the start has not seen alone."""
    direction = np.linalg.qr(noise((P, 1), seed=7))[0].ravel()
    x = turned(values, (1800, P))
    return x - np.outer(x @ direction, direction) + np.outer(deviation * noise(1800) * unseen, direction), direction


def test_the_largest_component_may_be_in_no_sample_of_the_start():
    """Without random columns it would converge without this component."""
    x, direction = with_unseen(np.append(0, 1 / np.arange(1, 60)), 50, outside_of_runs(1800, 5))
    x = (x + 1e4).astype(np.float32).reshape(1800, SIDE, SIDE)
    model = quiet(x, 5)
    right = check(model, x)
    assert right.values[0] > 100 * right.values[1]
    assert np.abs(rows_of(model.components)[0] @ direction) > 1 - 1e-6


@pytest.fixture(scope="module")
def off():
    """Images of which those that the start knows nothing of are brighter, by 1e4 deviations."""
    unseen = outside_of_runs(1800, 3)
    x = turned(1.0 / np.arange(1, 60), (1800, P))
    x += 1e4 * x.std() * unseen[:, None]
    return x.astype(np.float32).reshape(1800, SIDE, SIDE)


def test_a_start_far_off_the_mean_is_made_again(off):
    """About the exact mean: the first pass is for that alone."""
    model, events = fit(off, 3)
    right = truth(off)
    assert len(of(PassStarted, events)) == len(of(Converging, events)) + 1
    np.testing.assert_allclose(model.mean.ravel(), right.mean, rtol=1e-9)
    assert np.all(residuals(model, right) <= model.residual_bound)
    assert np.all(residuals(model, right) <= 1.1e-4)
    np.testing.assert_allclose(model.explained_variance, right.values[:3], rtol=1e-5)


@pytest.mark.parametrize("most", [1, 2])
def test_a_start_far_off_the_mean_may_be_all_that_is_allowed(off, most):
    """Then it is worth what it is worth."""
    model, _ = fit(off, 3, max_passes=most)
    assert np.all(residuals(model, truth(off)) <= model.residual_bound)


@pytest.mark.parametrize("tol", [1e-4, 1e-6])
def test_whole_numbers_between_which_the_mean_lies(tol):
    """The mean of ones and zeros is far off either, beside how they vary: no reason to start again for ever."""
    x = (np.random.default_rng(3).random((N, SIDE, SIDE)) < 0.45).astype(np.uint8)
    x[:, :5, :5] &= x[:, :1, :1]
    check(quiet(x, 1, tol=tol), x, tol=tol)


@pytest.mark.parametrize(
    ("way", "dtype"), cases(("features", "f4"), ("features", "f8"), ("samples", "f4"), ("samples", "f8"))
)
def test_there_are_no_more_components_than_the_data_have(way, dtype):
    x = way.turned(100 / np.arange(1, 6)).astype(dtype)
    model, events = way.fit(x, 10, "double" if dtype == "f8" else "single")
    assert model.n_components == 5
    assert any("5 dimensions; there are no more components" in message for message in warnings(events))
    way.check(model, x)


@pytest.mark.parametrize(("dtype", "k"), [("u1", 3), ("f4", 1), ("f4", 2), ("f8", 3)])
def test_nearly_nothing_varies(dtype, k):
    """One pixel blinks, and another is bright once, which no sample of the start need hold."""
    x = np.zeros((N, SIDE, SIDE), dtype)
    x[:, 0, 0] = np.arange(N) % 2
    x[5, 7, 7] = 9
    model, events = fit(x, k)
    right = truth(x)
    assert model.n_components == min(k, 2)
    np.testing.assert_allclose(model.explained_variance, right.values[: min(k, 2)], rtol=1e-5)  # rounding adds up here
    assert np.all(residuals(model, right) <= model.residual_bound)
    assert len(warnings(events)) == (k > 2)


@pytest.mark.parametrize("k", [60, 65])
def test_more_components_than_single_precision_tells(k):
    """The last of sixty are rounding of float32 products: what there is comes out right all the same."""
    x = FEATURES.made["exponential"]().reshape(N, SIDE, SIDE)
    model, events = fit(x, k)
    assert model.n_components == min(k, 60)
    check(model, x)
    assert sum("60 dimensions" in message for message in warnings(events)) == (k > 60)


@pytest.mark.parametrize(
    ("way", "n", "k"),
    cases(
        ("features", N, 1), ("features", 3, 1), ("features", 9, 8), ("features", 30, 5), ("samples", 2, 1),
        ("samples", 12, 11),
    ),
)  # fmt: skip
def test_few_samples_and_few_components(way, n, k):
    """The block is as wide as there are components."""
    x = way.problem("1/f images", 0.0)[:n]
    model = way.quiet(x, k)
    assert model.n_components == k
    way.check(model, x)


@both_ways
def test_weights_are_repetitions(way):
    x, weights = way.problem("1/f images", 1e4), np.random.default_rng(8).integers(0, 3, way.n).astype(np.float64)
    bad = np.where(weights[:, None, None] == 0, np.float32(np.nan), x) if way is FEATURES else x
    weighted = way.quiet(bad, 5, sample_weight=weights)
    way.check(weighted, np.where(weights[:, None, None] == 0, 0, x), weights=weights)
    repeated = way.quiet(np.repeat(x, weights.astype(int), axis=0), 5)
    np.testing.assert_allclose(weighted.explained_variance, repeated.explained_variance, rtol=1e-6)


def test_no_sample_of_the_start_needs_to_count():
    x = pictures(1800, (SIDE, SIDE)).astype(np.float32).reshape(1800, SIDE, SIDE)
    weights = outside_of_runs(1800, 1).astype(np.float64)
    check(quiet(x, 1, sample_weight=weights), x, weights=weights)


def test_seeds_agree_within_bounds():
    x = problem("1/f images", 1e4)
    one, other, again = (quiet(x, 6, random_state=seed) for seed in (0, 1, 1))
    assert not np.array_equal(one.components, other.components)
    apart = np.abs(one.explained_variance - other.explained_variance)
    assert np.all(apart <= (one.residual_bound + other.residual_bound) * one.explained_variance)
    np.testing.assert_allclose(one.explained_variance, other.explained_variance, rtol=1e-6)
    np.testing.assert_array_equal(again.components, other.components)


# -- how many passes, and when they end


class Counting(Chosen):
    """Counts the samples that are read."""

    def __init__(self, base):
        super().__init__(base, range(base.n_samples))
        self.count = 0

    def read(self, rows, features=None):
        self.count += rows.stop - rows.start
        return super().read(rows, features)


@pytest.mark.parametrize(
    ("way", "name", "fraction"),
    cases(
        ("features", "1/f images", 0.8), ("features", "exponential", 0.999), ("samples", "1/f images", 0.9),
        ("samples", "spiked noise", 0.6),
    ),
)  # fmt: skip
def test_a_fraction_takes_as_many_components_as_numpys(way, name, fraction):
    x = way.problem(name, 0.0)
    right = truth(x)
    model = way.quiet(x, fraction)
    assert model.n_components == int(np.argmax(np.cumsum(right.values) >= fraction * right.values.sum())) + 1
    way.check(model, x)


def test_a_fraction_grows_without_starting_over():
    """Every read of the collection is one of its passes, and the blocks of all fit the basis."""
    x = problem("1/f images", 0.0)
    collection, plan = planned(Counting(streampca.open_collection(x)), 0.9)
    plan = replace(plan, width=30, columns=P)
    found, events = carried_out(collection, plan)
    check(found, x)
    passes = len(of(PassStarted, events))
    assert found.passes == passes
    assert len(found.components) > 2 * plan.width  # it did grow
    assert passes <= -(-P // plan.width)  # were it to begin again, the last of so many would take more
    sample = sum(run.size for run in sample_runs(N, sample_rows(N, P, plan.width), collection.chunks.samples))
    assert collection.raw.count == passes * N + sample
    assert sum(event.samples for event in of(BlockDone, events)) == passes * N


def test_a_fraction_that_needs_more_than_the_basis_holds():
    """The components found are kept and converged, and a warning says so."""
    x = problem("1/i", 0.0)
    collection, plan = planned(x, 0.95)
    found, events = carried_out(collection, replace(plan, width=30, columns=90))
    check(found, x)
    k = len(found.explained_variance)
    assert 30 <= k <= 60
    share = found.explained_variance.sum() / found.total_variance
    (message,) = warnings(events)
    assert message.startswith(
        f"memory allows {k} components, which hold {share:.2%} of the variance, and 95.00% was asked"
    )


@pytest.mark.parametrize(("way", "blocks"), cases(("features", 3), ("features", 2), ("samples", 2)))
def test_a_small_basis_begins_again_and_gets_there(way, blocks):
    """With more passes."""
    x = way.problem("1/i", 1e4)
    collection, plan = way.planned(x, 10)
    whole, free = carried_out(collection, plan)
    found, events = carried_out(collection, replace(plan, columns=blocks * plan.width))
    way.check(found, x)
    assert warnings(events) == []
    assert len(of(Converging, free)) + (blocks == 2) <= len(of(Converging, events)) <= 20
    np.testing.assert_allclose(found.explained_variance, whole.explained_variance, rtol=1e-6)


@pytest.mark.parametrize("name", ["1/i", "exponential", "drifting mean"])
def test_one_pass_is_a_sketch_with_an_honest_bound(name):
    x = problem(name, 0.0)
    model, events = fit(x, 8, max_passes=1)
    assert len(of(PassStarted, events)) == 1
    assert np.all(residuals(model, truth(x)) <= model.residual_bound)
    values, true = model.explained_variance, truth(x).values
    assert np.all(np.abs(values[:, None] - true).min(axis=1) <= model.error_bound * values)
    rows = (x - x.mean(axis=0)).reshape(len(x), -1)
    sketched = randomized_svd(rows, 8, n_iter=0, random_state=0)[1] ** 2 / (len(x) - 1)
    assert np.abs(values - true[:8]).sum() < np.abs(sketched - true[:8]).sum()
    if name != "exponential":
        (message,) = warnings(events)
        said = f"after 1 pass: their errors are at most {model.residual_bound.max():.1e} of their variances."
        assert said in message
        assert "max_passes" in message


def test_one_pass_is_no_proof_that_no_component_is_missing_and_says_so():
    """The third component is in no sample of the start, and found by the products of random columns all the same."""
    x, _ = with_unseen(0.75 ** np.arange(60), 0.8, outside_of_runs(1800, 4))
    x = x.astype(np.float32).reshape(1800, SIDE, SIDE)
    model, events = fit(x, 4, max_passes=1)
    values, true, bound = model.explained_variance, truth(x).values, model.error_bound
    assert np.all(np.abs(values - true[:4]) <= bound * values)
    assert np.all(values <= true[:4])  # as Nystrom's are
    (message,) = warnings(events)
    missed = "but components with larger variances may have been missed."
    assert f"Each is right within its variance bound, {missed}" in message
    assert any("with larger variances may have been missed" in sentence for sentence in sentences(model))
    enough = quiet(x, 4)
    np.testing.assert_allclose(enough.explained_variance, true[:4], rtol=1e-5)
    assert not any("not for certain" in sentence for sentence in sentences(enough))


def test_a_fraction_that_one_pass_does_not_reach():
    """More memory would be no remedy."""
    model, events = fit(problem("1/i", 0.0), 0.99, max_passes=1)
    assert np.all(residuals(model, truth(problem("1/i", 0.0))) <= model.residual_bound)
    assert any("max_passes" in message for message in warnings(events))
    assert not any("memory" in message for message in warnings(events))


@both_ways
def test_what_single_precision_does_not_reach_double_does(way):
    """Products are double from where it shows, and components are stored so."""
    x = way.problem("1/i", 1e4)
    model, events = way.fit(x, 6, tol=1e-8)
    assert warnings(events) == []
    assert of(Converging, events)[-1].residual <= 1e-8
    right = way.check(model, x, tol=1e-8)
    assert residuals(model, right).max() <= 1.1e-8
    np.testing.assert_allclose(model.explained_variance, right.values[:6], rtol=1e-12)
    assert model.components.dtype == np.float64
    assert len(of(PassStarted, events)) <= 20


@pytest.mark.parametrize("most", [1, 2, 4, 6, *(pytest.param(most, marks=pytest.mark.campaign) for most in (3, 5, 7))])
def test_passes_may_end_wherever_it_stands(most):
    """Where products become double, too; and what is left out is not said not to be there."""
    brightening = (problem("1/i", 0.0) + np.linspace(0, 1e5, N)[:, None, None]).astype(np.float32)
    for x, k, tol in ((problem("1/i", 0.0), 6, 1e-8), (brightening, 10, 1e-4)):
        model, events = fit(x, k, tol=tol, max_passes=most)
        assert len(of(PassStarted, events)) <= most
        assert np.all(residuals(model, truth(x)) <= model.residual_bound)
        assert not any("no more components" in message for message in warnings(events))


@pytest.mark.parametrize("wanted", [0.1, 1e-3, 1e-6])
@pytest.mark.parametrize(
    ("way", "name"), cases(*((side, name) for side in WAYS for name in ("1/i", "spiked noise", "1/f images")))
)
def test_variances_are_as_near_as_asked_for(way, name, wanted):
    """Whatever the spectrum; in no more passes than the residual takes, unless single precision does not do."""
    x = way.problem(name, 0.0)
    model, events = way.fit(x, 8, tol_variance=wanted)
    true = truth(x).values[:8]
    assert warnings(events) == []
    assert np.all(np.abs(model.explained_variance - true) <= wanted * true)
    assert np.all(np.abs(model.explained_variance - true) <= model.error_bound * true)
    assert model.error_bound.max() <= wanted
    if way is FEATURES and wanted > 1e-6:
        assert len(of(Converging, events)) <= len(of(Converging, way.fit(x, 8, tol=wanted)[1]))


def test_variances_that_are_not_as_near_as_asked_for_say_so():
    model, events = fit(problem("1/i", 0.0), 8, tol_variance=1e-6, max_passes=2)
    (message,) = warnings(events)
    said = f"to tol_variance=1e-06 after 2 passes: their errors are at most {model.error_bound.max():.1e} of them."
    assert said in message
    assert model.error_bound.max() > 1e-6


def test_what_is_told_of_the_residual_is_true():
    """After every pass, of the components that are wanted; in the end, what is certified."""
    x = problem("1/i", 0.0)
    model, events = fit(x, 6)
    told = of(Converging, events)
    assert [event.passes for event in told] == list(range(1, len(told) + 1))
    assert {event.tol for event in told} == {1e-4}
    assert told[-1].residual <= 1e-4 < told[-2].residual
    assert told[-1].residual == model.residual_bound.max() >= residuals(model, truth(x)).max()


def test_more_passes_are_more_exact():
    x = problem("1/i", 0.0)
    worst = [residuals(fit(x, 8, max_passes=most)[0], truth(x)).max() for most in (1, 2, 4)]
    assert np.all(np.diff(worst) < 0)
    assert worst[-1] < 1e-2 * worst[0]


@pytest.mark.parametrize(
    ("way", "rule", "exact"), cases(("features", "mp", "covariance"), ("samples", "elbow", "dual"))
)
def test_rules(way, rule, exact):
    x = way.problem("spiked noise", 0.0)
    model, _ = way.fit(x, rule)
    assert model.n_components == streampca.fit(x, streampca.PCA(rule, method=exact)).n_components
    way.check(model, x)


# -- data and requests that will not do


@pytest.mark.parametrize(("at", "value"), [(0, np.nan), (0, "both infinities"), (700, np.inf), (700, np.nan)])
def test_samples_that_hold_no_number_are_named(at, value):
    """In the sample of the start and elsewhere."""
    x = problem("1/i", 0.0).copy()
    x[at, 3, 3], x[at, 4, 4] = (np.inf, -np.inf) if isinstance(value, str) else (value, 0)
    count = 2 if isinstance(value, str) else 1
    with pytest.raises(DataError, match=f"^sample {at} of numpy array holds NaN or infinity in {count} of its 400"):
        fit(x, 3)


def test_the_right_sample_is_named_among_large_ones():
    """Their sums overflow although the values are finite."""
    x = problem("1/i", 0.0).copy()
    x[0] = 1e38
    x[2, 3, 3] = np.nan
    with pytest.raises(DataError, match=r"^sample (0 .* squares overflow|2 .* NaN or infinity in 1 of its 400)"):
        fit(x, 3)


@both_ways
def test_equal_samples_are_refused(way):
    for value, dtype in ((7, "u1"), (0.1, "f4"), (1e9, "f8")):
        with pytest.raises(DataError, match=f"has no variance: all {way.n} samples are equal"):
            way.fit(np.full((way.n, *way.shape), value, dtype), 2)


def test_one_sample_and_all_components_are_refused():
    with pytest.raises(DataError, match="has one sample, and variance needs at least two"):
        fit(problem("1/i", 0.0)[:1], 1)
    with pytest.raises(RequestError, match="asks for all components, and method 'randomized' finds the leading ones"):
        fit(problem("1/i", 0.0), None)


# -- real images


@pytest.mark.parametrize(
    ("name", "source"), [("frey", "frey_faces.npy"), pytest.param("orl", "orl", marks=pytest.mark.campaign)]
)
def test_faces(name, source):
    """95 per cent of the variance, against an SVD in memory."""
    if not (DATA / source).exists():
        pytest.skip(f"{source} is not in ../shared/data")
    answers = json.loads((DATA / "references.json").read_text())[name]
    arrays = np.load(DATA / f"reference_{name}.npz")
    model, events = judged.fit(DATA / source, 0.95)
    assert warnings(events) == []
    k = model.n_components
    assert k == answers["n_components"]["95"]
    np.testing.assert_allclose(model.explained_variance_ratio[:10], answers["evr10"], rtol=1e-6)
    true = arrays["eigenvalues"][:k]
    np.testing.assert_allclose(model.explained_variance, true, rtol=1e-6)
    assert np.all(np.abs(model.explained_variance - true) <= model.residual_bound * model.explained_variance)
    assert subspace_angles(rows_of(model.components[:20]).T, arrays["components"][:20].T).max() < 1e-2
    np.testing.assert_allclose(model.mean.ravel(), arrays["mean"], rtol=1e-9)
