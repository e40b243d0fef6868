"""`partial_fit` gives what one fit gives, whatever the batches; a sketch says by how much it may be off."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace
from functools import cache

import dask.array as da
import numpy as np
import pytest
from by_options import request
from judged import ROUNDING
from sklearn import decomposition
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

import streampca
from streampca import PCA, Preparation, Run
from streampca.accumulators import Scatter
from streampca.errors import BudgetError, DataError, ModelError, RequestError
from streampca.fitting import incremental
from streampca.planning.incremental import SKETCH, incremental_plan, sketch_rows
from streampca.planning.request import Machine, Problem

DIGITS = load_digits().data
IMAGES = DIGITS.astype(np.uint8).reshape(-1, 8, 8)
NUMBERS = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "var_")


def given(estimator, x, rows, weights=None):
    """The estimator after batches of so many rows."""
    for start in range(0, len(x), rows):
        some = slice(start, start + rows)
        estimator.partial_fit(x[some], sample_weight=None if weights is None else weights[some])
    return estimator


def assert_same(one, other, rtol=0.0):
    """Equal numbers, to the last bit unless rounding is allowed."""
    for name in NUMBERS:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, atol=rtol, err_msg=name)


@cache
def whole(kind="images"):
    return PCA(6, method="covariance").fit({"images": IMAGES, "digits": DIGITS}[kind])


# -- one fit


@pytest.mark.parametrize("rows", [1, 7, 256, 1000, 2000])
def test_whole_numbers_have_the_bits_of_one_fit(rows):
    ours = given(PCA(6), IMAGES, rows)
    assert_same(ours, whole())
    assert (ours.n_samples_seen_, ours.n_samples_, ours.n_components_) == (len(IMAGES), len(IMAGES), 6)


@pytest.mark.parametrize(("rows", "dtype"), [(5, "f8"), (300, "f8"), (300, "f4"), (300, "i4")])
def test_other_numbers_agree_to_rounding(rows, dtype):
    ours = given(PCA(6), DIGITS.astype(dtype), rows)
    expected = PCA(6, method="covariance").fit(DIGITS.astype(dtype))
    assert_same(ours, expected, rtol=1e-7 if dtype == "f4" else 1e-10)  # components of float32 are stored as such
    covariance = np.cov(DIGITS.T)
    residuals = np.linalg.norm(covariance @ ours.components_.T - ours.components_.T * ours.explained_variance_, axis=0)
    variances = ours.explained_variance_
    assert np.all(residuals <= ours.residual_bound_ * variances + ROUNDING * variances[0])


def test_rows_in_threads_and_products_in_both_precisions(monkeypatch):
    """Small limits: buffers are added in threads, and products become single when one fit's would."""
    monkeypatch.setattr(incremental, "THREAD_ROWS", 100)
    monkeypatch.setattr("streampca.planning.incremental.WAITING_BYTES", 200 * 64 * 4)
    monkeypatch.setattr("streampca.planning.candidate_sizes.SMALL_PRODUCT", 700 * 64**2)
    x = np.random.default_rng(0).normal(30000, 5, (1500, 64)).astype(np.float32)
    x[:, :6] *= np.linspace(1.001, 1.002, 1500)[:, None]
    ours = given(PCA(6), x, 50)
    assert ours.model_.provenance["plan"]["precision"] == "single"
    assert_same(ours, PCA(6, method="covariance", precision="double").fit(x), rtol=3e-5)
    assert_same(given(PCA(6), IMAGES, 50), whole())


def test_scores_and_attributes_are_those_of_scikit_learn():
    ours, theirs = (
        given(PCA(20, whiten=True), DIGITS, 100),
        decomposition.IncrementalPCA(20, batch_size=100).fit(DIGITS),
    )
    np.testing.assert_allclose(ours.var_, theirs.var_, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, atol=1e-12)
    assert ours.n_samples_seen_ == theirs.n_samples_seen_
    exact = decomposition.PCA(20, whiten=True, svd_solver="full").fit(DIGITS)
    scores = exact.transform(DIGITS)
    np.testing.assert_allclose(ours.transform(DIGITS), scores, atol=1e-8)
    np.testing.assert_allclose(ours.inverse_transform(scores), exact.inverse_transform(scores), atol=1e-8)
    assert ours.noise_variance_ == pytest.approx(exact.noise_variance_)


@pytest.mark.parametrize("wanted", [None, 0.9, "elbow", "mp"])
def test_every_rule_counts_as_in_one_fit_and_may_be_set_later(wanted):
    ours = given(PCA(2), IMAGES, 500)
    assert ours.n_components_ == 2
    expected = PCA(wanted, method="covariance").fit(IMAGES)
    assert_same(ours.set_params(n_components=wanted), expected)
    assert ours.set_params(n_components=3).n_components_ == 3


def test_weights_are_copies():
    weights = np.random.default_rng(0).integers(0, 3, len(DIGITS)).astype(float)
    rows = DIGITS.copy()
    rows[weights == 0] = np.nan  # samples of weight 0 may hold anything
    ours = given(PCA(6), rows, 100, weights)
    assert_same(ours, PCA(6, method="covariance").fit(DIGITS, sample_weight=weights), rtol=1e-10)
    assert (ours.n_samples_, ours.n_samples_seen_) == (np.count_nonzero(weights), len(DIGITS))
    with pytest.raises(RequestError, match="sample_weight of sample 1 of numpy array is -1"):
        ours.partial_fit(DIGITS[:2], sample_weight=[1, -1])


@pytest.mark.parametrize("rows", [1, 60, 500, 1797])
def test_a_half_life_is_a_fit_with_weights(rows, monkeypatch):
    monkeypatch.setattr("streampca.planning.incremental.WAITING_BYTES", 200 * 64 * 8)
    x = DIGITS[:600] if rows == 1 else DIGITS
    n, own = len(x), np.random.default_rng(3).integers(0, 3, len(x))
    after = 0.5 ** (np.arange(n)[::-1] / 250)
    ours = given(PCA(6, half_life=250), x, rows)
    assert_same(ours, PCA(6, method="covariance").fit(x, sample_weight=after), rtol=1e-8)
    weighted = given(PCA(6, half_life=250), x, rows, own)
    assert_same(weighted, PCA(6, method="covariance").fit(x, sample_weight=own * after), rtol=1e-8)
    once = PCA(6, half_life=250, method="covariance").fit(x, sample_weight=own)
    assert_same(weighted, once, rtol=1e-8)
    assert ours.n_samples_seen_ == n
    assert ours.model_.total_weight == pytest.approx(after.sum(), rel=1e-12)


def test_samples_long_ago_are_forgotten():
    """Weights fall below what float64 holds: a fit of the last samples is left."""
    ours = given(PCA(3, half_life=1), DIGITS, 300)
    last = DIGITS[-64:]
    weights = 0.5 ** np.arange(64)[::-1]
    assert_same(ours, PCA(3, method="covariance").fit(last, sample_weight=weights), rtol=1e-8)
    with pytest.raises(RequestError, match=r"^half_life has changed since the first batch"):
        ours.set_params(half_life=2).partial_fit(DIGITS[:5])


@pytest.mark.parametrize("half_life", [0, -1, 0.5, np.inf, np.nan, "10", True])
def test_what_is_no_half_life(half_life):
    with pytest.raises(RequestError, match=r"^half_life = .*: give a number of at least 1 or None"):
        PCA(half_life=half_life).partial_fit(DIGITS)


def test_a_batch_is_whatever_fit_takes(tmp_path):
    pandas = pytest.importorskip("pandas")
    np.save(tmp_path / "part.npy", IMAGES[200:900])
    ours = PCA(6).partial_fit(IMAGES[:200]).partial_fit(tmp_path / "part.npy")
    ours.partial_fit(da.from_array(IMAGES[900:1000])).partial_fit(streampca.open_collection(IMAGES[1000:]))
    assert_same(ours, whole())
    about = ours.model_.provenance
    assert (about["batches"], about["nbytes"]) == (4, IMAGES.nbytes)
    assert str(tmp_path / "part.npy") in about["source"]
    frame = pandas.DataFrame(DIGITS, columns=[f"pixel {j}" for j in range(64)])
    tables = PCA(6).partial_fit(frame[:1000])
    with pytest.raises(ValueError, match="feature names"):
        tables.partial_fit(frame[1000:].rename(columns={"pixel 0": "other"}))
    assert_same(tables.partial_fit(frame[1000:]), whole("digits"), rtol=1e-10)


def test_images_are_prepared():
    how = Preparation(crop=((1, 7),), bin=2, normalize="mean")
    expected = PCA(3, method="covariance", preparation=how).fit(IMAGES)
    assert_same(given(PCA(3, preparation=how), IMAGES, 90), expected, rtol=1e-6)


# -- its life


def test_batches_of_another_kind_are_refused_after_a_large_one():
    x = np.random.default_rng(0).normal(size=(2000, 1000))
    with pytest.raises(ModelError, match="uint8"):
        PCA(3).partial_fit(x).partial_fit(np.ones((10, 1000), np.uint8))


def test_components_wait_until_there_are_enough():
    ours = PCA(6)
    for count in range(5):
        ours.partial_fit(DIGITS[count : count + 1])
        with pytest.raises(
            NotFittedError, match=f"no components_ yet: n_components=6 needs .* 6 .* has seen {count + 1}"
        ):
            ours.components_  # noqa: B018
        assert not hasattr(ours, "explained_variance_")
    assert ours.partial_fit(DIGITS[5:6]).n_components_ == 6
    assert ours.model_ is ours.model_, "solved once"
    np.testing.assert_allclose(ours.mean_, DIGITS[:6].mean(axis=0))
    assert_same(ours.partial_fit(DIGITS[6:7]), PCA(6, method="covariance").fit(DIGITS[:7]), rtol=1e-10)
    with pytest.raises(NotFittedError, match="as many samples as features, 64, and has seen 7"):
        ours.set_params(n_components="mle").transform(DIGITS)
    with pytest.raises(DataError, match="no variance"):
        PCA(1).partial_fit(DIGITS[:1]).partial_fit(DIGITS[:1]).model_  # noqa: B018


def test_it_goes_on_after_a_fit_a_pickle_and_a_stored_model(tmp_path):
    fitted = PCA(6, method="covariance").fit(IMAGES[:700])
    before = fitted.model_
    kept = before.statistic.state()
    fitted = pickle.loads(pickle.dumps(fitted.partial_fit(IMAGES[700:900])))  # noqa: S301 - made on this line
    fitted.model_.save(tmp_path / "half.zarr")
    for name, values in before.statistic.state().items():  # of the model given out before
        np.testing.assert_array_equal(values, kept[name])
    loaded = PCA.from_model(streampca.load(tmp_path / "half.zarr", statistic=True))
    assert loaded.n_components == 6
    np.testing.assert_array_equal(loaded.components_, fitted.components_)
    for half in (fitted, loaded):
        assert_same(half.partial_fit(IMAGES[900:]), whole())
    assert loaded.fit(IMAGES[:50]).n_samples_seen_ == 50
    np.testing.assert_array_equal(loaded.components_, PCA(6).fit(IMAGES[:50]).components_)
    assert not hasattr(clone(fitted), "n_samples_seen_")
    merged = streampca.merge([before, given(PCA(6), IMAGES[700:], 100).model_])
    np.testing.assert_array_equal(merged.explained_variance, whole().explained_variance_)


def test_models_without_a_statistic_are_refused_with_a_remedy(tmp_path):
    wide = np.tile(IMAGES, (1, 4, 4))
    with pytest.raises(ModelError, match=r"method 'dual', which leaves nothing .*; fit it with method='covariance'"):
        PCA(3).fit(wide[:10]).partial_fit(wide)
    whole().model_.save(tmp_path / "model.zarr")
    with pytest.raises(ModelError, match="load it with statistic=True"):
        PCA.from_model(streampca.load(tmp_path / "model.zarr")).partial_fit(IMAGES)
    part = streampca.fit(IMAGES, n_components=3, part="1/2")
    with pytest.raises(ModelError, match="part 1/2 of a collection; merge"):
        PCA.from_model(part).partial_fit(IMAGES)
    for method in ("dual", "randomized"):
        assert not hasattr(PCA(3, method=method), "partial_fit")
        with pytest.raises(RequestError, match="nothing to which later batches could be added; use method 'auto'"):
            incremental_plan(problem(100), request(3, method))


# -- what is refused leaves it as it was


@pytest.mark.parametrize("where", ["update", "absorb", "settle"])
def test_what_was_broken_off_while_it_was_added_is_not_used(monkeypatch, where):
    def broken_off(self, *given, **options):
        raise KeyboardInterrupt

    ours = PCA(3).partial_fit(IMAGES[:50])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(Scatter, where, broken_off)
        patch.setattr(incremental, "WAITING_BYTES", 0 if where == "absorb" else incremental.WAITING_BYTES)
        ours.partial_fit(IMAGES[50:90]).model_  # noqa: B018
    for further in (lambda: ours.components_, lambda: ours.partial_fit(IMAGES[:5])):
        with pytest.raises(DataError, match=r"interrupted, .*; call fit, or give all batches"):
            further()
    assert_same(ours.fit(IMAGES), PCA(3).fit(IMAGES))


@pytest.mark.parametrize("steps", [{"bin": 2}, {"mask": np.eye(8) == 0, "scale": np.arange(1.0, 9)}])
def test_an_equal_preparation_is_not_a_changed_one(steps):
    ours = given(PCA(6, preparation=Preparation(**steps)), IMAGES[:900], 300)
    ours.set_params(preparation=Preparation(**steps)).partial_fit(IMAGES[900:])
    assert ours.n_samples_seen_ == len(IMAGES)
    for other in ({"crop": ((0, 4),)}, {**steps, "normalize": "mean"}, {**steps, "mask": np.eye(8) == 1}):
        ours.set_params(preparation=Preparation(**other))
        with pytest.raises(RequestError, match="preparation has changed"):
            ours.partial_fit(IMAGES)


@pytest.mark.parametrize("rows", [5, 1000])
def test_a_refused_batch_leaves_the_estimator_as_it_was(rows, monkeypatch):
    monkeypatch.setattr(incremental, "WAITING_BYTES", 100 * 64 * 8)  # larger batches are read as in a fit
    ours = given(PCA(6), DIGITS[:900], 300)
    for value, error in ((np.nan, "sample 3 of numpy array holds NaN"), (1e200, "whose squares overflow")):
        bad = DIGITS[:rows].copy()
        bad[3, 7] = value
        with pytest.raises(DataError, match=error):
            ours.partial_fit(bad)
        with pytest.raises(DataError, match=error):
            (fresh := PCA(6)).partial_fit(bad)
        assert not hasattr(fresh, "n_features_in_")
    for wrong, error in (
        (DIGITS[:, :60], "60 features"), (IMAGES, "samples of 8 x 8"), (IMAGES.reshape(-1, 64), "whole numbers"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=error):
            ours.partial_fit(wrong)
    with pytest.raises(BudgetError):
        ours.set_params(run=Run(memory="1 MiB")).components_  # noqa: B018
    ours.set_params(run=None, precision="double")
    with pytest.raises(RequestError, match="precision has changed"):
        ours.partial_fit(DIGITS)
    ours.set_params(precision="auto")
    assert ours.n_samples_seen_ == 900
    assert_same(ours.partial_fit(DIGITS[900:]), whole("digits"), rtol=1e-10)


@pytest.mark.parametrize(("options", "message"), [
    ({"n_components": 65}, "exceeds 64, the number of features"),
    ({"preparation": Preparation(mask="valid")}, "give the mask as an array"),
    ({"method": "covariance", "run": Run(memory="9 MiB")}, "'covariance' needs .* Set memory to at least"),
    ({"run": Run(memory="1 MiB"), "n_components": 5}, "a sketch of 64 rows needs"),
])  # fmt: skip
def test_what_no_batches_can_give(options, message):
    with pytest.raises((RequestError, MemoryError), match=message):
        PCA(**options).partial_fit(DIGITS)


def test_the_fast_way_of_plain_arrays_is_the_long_one(monkeypatch):
    fast = given(PCA(6), IMAGES, 40)
    monkeypatch.setattr(PCA, "_buffers", lambda *_: False)
    long = given(PCA(6), IMAGES, 40)
    assert_same(fast, long)
    assert fast.model_.provenance["nbytes"] == long.model_.provenance["nbytes"]
    assert fast.model_.provenance["batches"] == long.model_.provenance["batches"]


# -- beyond p x p


def problem(p, n=1000, memory=2**30):
    return Problem(n, p, (p,), 4 * p, 4, "f", machine=Machine(2, 2 * memory))


def test_plans_take_the_exact_statistic_where_it_fits_and_state_the_rows_of_a_sketch():
    assert incremental_plan(problem(1000), request(20)).method == "covariance"
    plan = incremental_plan(problem(100_000), request(20))
    assert (plan.method, plan.product_rows) == (SKETCH, 80)
    assert "sketch of 80 rows" in plan.why
    assert plan.memory_estimate.total <= 2**30
    assert [sketch_rows(request(k), 1000) for k in (2, 50, 0.9)] == [64, 200, 200]
    for wanted in (None, "mle"):
        with pytest.raises(
            RequestError, match=r"asks for all variances.* set memory to at least .*, or ask for a number"
        ):
            incremental_plan(problem(100_000), request(wanted))
    with pytest.raises(BudgetError, match=r"at least (\d+) ?GiB"):
        incremental_plan(problem(100_000), request(20, "covariance"))


@pytest.fixture(scope="module")
def sketched():
    """220 features that fit no budget, samples that drift, and their covariance."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 40)) * np.geomspace(30, 0.5, 40) @ np.linalg.qr(rng.normal(size=(220, 40)))[0].T
    x += rng.normal(size=(1500, 220)) + 50 + np.linspace(0, 5, 1500)[:, None]
    return x, np.cov(x.T)


@pytest.fixture
def no_room(monkeypatch):
    """No budget has room for p x p."""
    monkeypatch.setattr("streampca.planning.incremental.scatter_candidates", too_large)


def too_large(problem, request, real=incremental.scatter_candidates):
    """Of covariance: as if there were eight times as many features."""
    return real(replace(problem, n_features=8 * problem.n_features), request)


@pytest.mark.usefixtures("no_room")
def test_a_sketch_says_how_far_off_it_may_be(sketched, caplog, tmp_path):
    x, covariance = sketched
    options = {"run": Run(memory="32 MiB")}
    with caplog.at_level(logging.WARNING, "streampca"):
        ours = given(PCA(10, **options), x, 37)
        model = ours.model_
        ours.partial_fit(x[:1]).model_  # noqa: B018
    assert [record.message.count("sketched in 64 rows") for record in caplog.records] == [1]
    assert model.provenance["plan"]["method"] == SKETCH
    exact = np.linalg.eigvalsh(covariance)[::-1][:10]
    values, vectors = model.explained_variance, model.components.T
    bounds = model.residual_bound * values
    assert np.all(np.abs(values - exact) <= bounds)
    assert np.all(np.linalg.norm(covariance @ vectors - vectors * values, axis=0) <= bounds)
    assert 0 < bounds[0] < 0.1 * values[0]
    assert np.trace(vectors.T @ covariance @ vectors) >= 0.98 * exact.sum()
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(10), atol=1e-10)
    left = covariance - covariance @ vectors @ vectors.T
    assert np.linalg.eigvalsh((left + left.T) / 2)[-1] <= model.outside * (1 + 1e-9)
    assert model.total_variance == pytest.approx(np.trace(covariance), rel=1e-12)
    half = given(PCA(10, **options), x[:1000], 37)
    half.model_.save(tmp_path / "half.zarr")
    loaded = PCA.from_model(streampca.load(tmp_path / "half.zarr", statistic=True), **options)
    again = [given(each, x[1000:], 37) for each in (pickle.loads(pickle.dumps(half)), half, loaded)]  # noqa: S301
    at_once = PCA(10, **options).partial_fit(x)  # more than may wait: read in blocks
    for each in (*again, at_once):
        assert np.all(np.abs(each.explained_variance_ - exact) <= each.residual_bound_ * each.explained_variance_)
    np.testing.assert_allclose(again[0].components_, again[2].components_, atol=1e-9)
    np.testing.assert_allclose(again[1].var_, x.var(axis=0), rtol=1e-10)
    half.model_.statistic.rows = 10**12
    half.model_.save(tmp_path / "vast.zarr")
    with pytest.raises(ModelError, match="damaged in state: ValueError: its arrays"):
        streampca.load(tmp_path / "vast.zarr", statistic=True)


@pytest.mark.usefixtures("no_room")
def test_a_sketch_by_every_rule_and_of_few_samples(sketched):
    x, _ = sketched
    ours = given(PCA(0.9, run=Run(memory="32 MiB")), x, 1000)
    assert ours.explained_variance_ratio_.sum() >= 0.9
    for rule in ("elbow", "mp"):
        assert 1 <= ours.set_params(n_components=rule).n_components_ <= 200
    with pytest.raises(RequestError, match="sketch of 200 rows can tell"):
        ours.set_params(n_components=210).model_  # noqa: B018
    few = PCA(5, run=Run(memory="32 MiB")).partial_fit(x[:30])
    exact = decomposition.PCA(5, svd_solver="full").fit(x[:30])
    np.testing.assert_allclose(few.explained_variance_, exact.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(np.abs(few.transform(x[:9])), np.abs(exact.transform(x[:9])), atol=1e-8)
    assert few.residual_bound_.max() < 1e-10
