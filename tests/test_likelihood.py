"""Likelihoods, covariance and precision of probabilistic PCA are scikit-learn's, and take no p x p array."""

from __future__ import annotations

import re
from dataclasses import replace

import by_options
import dask.array as da
import numpy as np
import pytest
import xarray
from scipy.stats import multivariate_normal
from shell import measured
from sklearn import decomposition
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import streampca
from streampca import PCA, Preparation, Run
from streampca.errors import BudgetError, DataError, ModelError, RequestError
from streampca.models import likelihood
from streampca.models.store import BOUNDS
from streampca.units import MIB

DIGITS = load_digits().data
IMAGES = load_digits().images.astype(np.uint8)
NEAR = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(scope="module")
def model():
    return streampca.fit(DIGITS, n_components=20)


@pytest.fixture(scope="module")
def whole():
    """All 64 components, of which three have no variance."""
    return streampca.fit(DIGITS, n_components=None)


def theirs(count, rows=DIGITS, **options):
    return decomposition.PCA(count, svd_solver="full", **options).fit(rows)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("count", [1, 20, 40])
def test_the_estimator_equals_pca(count, whiten):
    """With whitened scores too, where scikit-learn's likelihoods are those of other samples."""
    ours, known = PCA(count, whiten=whiten).fit(DIGITS), theirs(count)
    np.testing.assert_allclose(ours.score_samples(DIGITS), known.score_samples(DIGITS), **NEAR)
    np.testing.assert_allclose(ours.get_covariance(), known.get_covariance(), **NEAR)
    np.testing.assert_allclose(ours.get_precision(), known.get_precision(), **NEAR)
    assert ours.noise_variance_ == pytest.approx(known.noise_variance_, rel=1e-10)
    assert ours.score(DIGITS) == pytest.approx(known.score(DIGITS), rel=1e-10)


def test_the_model_equals_pca(model, whole):
    """Also with the first components only, whose noise is that of all others."""
    known = theirs(20)
    squares = np.square(known.transform(DIGITS)) / known.explained_variance_
    np.testing.assert_allclose(model.hotelling_t2(DIGITS), squares.sum(axis=1), **NEAR)
    for ours, count in [(model, None), (whole, 20)]:
        np.testing.assert_allclose(ours.score_samples(DIGITS, count), known.score_samples(DIGITS), **NEAR)
        np.testing.assert_allclose(ours.get_covariance(count), known.get_covariance(), **NEAR)
        np.testing.assert_allclose(ours.get_precision(count), known.get_precision(), **NEAR)
        assert ours.score(DIGITS, count) == pytest.approx(known.score(DIGITS), rel=1e-10)


def exact_likelihood(count):
    """Return log-likelihoods of the digits in extended precision, from eigenpairs refined by Ogita & Aishima (2018)."""
    wide, n = DIGITS[:, DIGITS.std(axis=0) > 0].astype(np.longdouble), len(DIGITS)
    total = wide.sum(axis=0)
    covariance = (n * (wide.T @ wide) - np.outer(total, total)) / (n * (n - 1))  # sums of whole numbers are exact
    vectors = np.linalg.eigh(covariance.astype(float))[1].astype(np.longdouble)
    for _ in range(3):
        left, turned = np.eye(len(vectors)) - vectors.T @ vectors, vectors.T @ covariance @ vectors
        values = np.diag(turned) / (1 - np.diag(left))
        apart = values - values[:, None] + np.eye(len(values))
        vectors += vectors @ np.where(np.eye(len(values)), left / 2, (turned + values * left) / apart)
    values, vectors = values[::-1], vectors[:, ::-1]
    noise = values[count:].sum() / (64 - count)
    variance = values[:count]
    squares = np.square((wide - total / n) @ vectors)
    exponent = squares[:, :count] @ (1 / variance) + squares[:, count:].sum(axis=1) / noise
    logs = np.log(variance).sum() + (64 - count) * np.log(noise) + 64 * np.log(2 * np.longdouble(np.pi))
    return (-(logs + exponent) / 2).astype(float)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 2e-19, reason="needs a long double of more digits than a double")
@pytest.mark.parametrize("count", [5, 40, 60])
def test_digits_are_kept_down_to_the_last_component(count):
    """The digits have 61 components; at the last ones scikit-learn rounds to 1e-9."""
    found = PCA(count).fit(DIGITS).score_samples(DIGITS)
    np.testing.assert_allclose(found, exact_likelihood(count), rtol=1e-10)


def test_few_samples_of_many_features():
    """Noise is the mean over min(n, p) - k directions, as scikit-learn counts them."""
    rows = np.random.default_rng(0).normal(size=(30, 200))
    for count in (1, 12, 28):
        ours, known = streampca.fit(rows, n_components=count), theirs(count, rows)
        assert ours.noise_variance == pytest.approx(known.noise_variance_, rel=1e-10)
        np.testing.assert_allclose(ours.score_samples(rows), known.score_samples(rows), rtol=1e-9)


def test_all_components_of_full_rank_leave_no_noise():
    rows = np.random.default_rng(0).normal(size=(100, 6)) * np.arange(1, 7)
    ours, known = PCA(None).fit(rows), theirs(6, rows)
    assert ours.noise_variance_ == known.noise_variance_ == 0
    np.testing.assert_allclose(ours.score_samples(rows + 3), known.score_samples(rows + 3), rtol=1e-10)
    np.testing.assert_allclose(ours.get_precision(), np.linalg.inv(np.cov(rows.T)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", ["null pixels", "few samples", "single precision", "far from zero"])
def test_without_noise_it_is_the_density_over_the_subspace(whole, case):
    """That of scipy's degenerate Gaussian: minus infinity for samples beside it, and only for these."""
    rng = np.random.default_rng(1)
    rows = DIGITS if case == "null pixels" else rng.normal(size=(20, 40)) * 0.9 ** np.arange(40)
    if case == "single precision":
        rows = (rng.normal(size=(300, 6)) @ rng.normal(size=(6, 40))).astype(np.float32)
    rows = rows + 1e9 if case == "far from zero" else rows
    options = {"n_components": None, "precision": "single" if case == "single precision" else "double"}
    ours = whole if case == "null pixels" else by_options.fit(rows, **options)
    assert ours.noise_variance == 0
    found = ours.score_samples(rows)
    assert np.isfinite(found).all()
    if case in ("null pixels", "few samples"):
        density = multivariate_normal(rows.mean(axis=0), np.cov(rows.T), allow_singular=True)
        np.testing.assert_allclose(found, density.logpdf(rows), rtol=1e-7)
    beside = rows + np.eye(rows.shape[1], dtype=rows.dtype)[0]
    np.testing.assert_array_equal(ours.score_samples(beside), -np.inf)
    with pytest.raises(ModelError, match="has no inverse: they hold all variance") as refused:
        ours.get_precision()
    remedy = int(re.search(r"get_precision\(n_components=(\d+)\)", str(refused.value))[1])
    np.testing.assert_allclose(
        ours.get_precision(remedy) @ ours.get_covariance(remedy), np.eye(ours.n_features), atol=1
    )
    assert np.isfinite(ours.score_samples(beside, remedy // 2)).all()


def test_no_components_are_noise_alone(model):
    none = {name: getattr(model, name)[:0] for name in ("components", "explained_variance", *BOUNDS)}
    ours, known = replace(model, **none), theirs(0)
    assert ours.noise_variance == pytest.approx(known.noise_variance_, rel=1e-12)
    np.testing.assert_allclose(ours.score_samples(DIGITS), known.score_samples(DIGITS), **NEAR)
    np.testing.assert_allclose(ours.get_covariance(), known.get_covariance(), **NEAR)


@pytest.mark.parametrize("offset", [0, 30000])
def test_samples_in_single_precision_are_multiplied_in_double(offset):
    x = (np.random.default_rng(0).normal(size=(500, 40)) * np.linspace(5, 1, 40) + offset).astype(np.float32)
    ours, rows = streampca.fit(x, n_components=5), x.astype(np.float64)
    assert ours.components.dtype == np.float32
    np.testing.assert_allclose(ours.score_samples(x), theirs(5, rows).score_samples(rows), rtol=1e-7)


def test_weights_are_copies():
    counts = np.random.default_rng(0).integers(0, 3, size=40)
    rows = DIGITS[:40]
    ours, known = streampca.fit(rows, n_components=8, sample_weight=counts), theirs(8, rows.repeat(counts, axis=0))
    assert ours.noise_variance == pytest.approx(known.noise_variance_, rel=1e-10)
    np.testing.assert_allclose(ours.score_samples(DIGITS), known.score_samples(DIGITS), rtol=1e-9)


def test_weights_below_one_leave_noise():
    """Fewer than components in sum, they say nothing of how many directions there are."""
    rows = np.random.default_rng(0).normal(size=(60, 30))
    halved = streampca.fit(rows, n_components=20, sample_weight=np.full(60, 0.2))
    assert halved.noise_variance * 10 == pytest.approx(halved.total_variance - halved.explained_variance.sum())


def test_a_mask_and_a_preparation_come_first():
    """The density is of prepared pixels, inside the mask."""
    mask = np.hypot(*np.mgrid[-3.5:4, -3.5:4]) < 4
    ours = streampca.fit(IMAGES, n_components=9, preparation=Preparation(mask=mask, scale=0.5))
    rows = 0.5 * IMAGES[:, mask]
    np.testing.assert_allclose(ours.score_samples(IMAGES), theirs(9, rows).score_samples(rows), rtol=1e-6)
    np.testing.assert_allclose(ours.get_covariance(), theirs(9, rows).get_covariance(), rtol=1e-5, atol=1e-5)


def test_the_mean_is_that_of_all_kinds_of_samples(tmp_path):
    """A file is read once, in blocks."""
    np.save(tmp_path / "digits.npy", IMAGES)
    ours = PCA(12, whiten=True).fit(IMAGES)
    expected = ours.score_samples(IMAGES)
    lazy = ours.score_samples(tmp_path / "digits.npy")
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), expected)
    named = xarray.DataArray(IMAGES, dims=("time", "y", "x"))
    found = ours.score_samples(named)
    assert (found.dims, found.name) == (("time",), "log_likelihood")
    np.testing.assert_array_equal(found, expected)
    for given in (IMAGES, named, da.from_array(IMAGES, chunks=(500, 8, 8)), tmp_path / "digits.npy"):
        assert ours.score(given) == pytest.approx(expected.mean(), rel=1e-12)
    assert ours.model_.score(tmp_path / "digits.npy", memory="16MiB") == pytest.approx(
        ours.model_.score_samples(IMAGES).mean(), rel=1e-12
    )


def test_stored_components_are_read_range_by_range(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(40, 3000)).astype(np.float32)
    streampca.fit(rows, n_components=10, output=tmp_path / "m.zarr")
    held, stored = (streampca.load(tmp_path / "m.zarr", memory=memory) for memory in ("1GiB", "64KiB"))
    assert not stored.subspace.is_held
    expected = held.score_samples(rows)
    np.testing.assert_allclose(stored.score_samples(rows), expected, rtol=1e-12)
    monkeypatch.setattr(likelihood, "PIECE", 700)
    np.testing.assert_allclose(held.score_samples(rows), expected, rtol=1e-12)
    np.save(tmp_path / "rows.npy", rows)
    assert stored.score(tmp_path / "rows.npy", memory="32MiB") == pytest.approx(expected.mean(), rel=1e-12)


def test_cross_validation_finds_the_patterns_in_noise():
    """Estimators without a target are compared by `score`."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 5)) * [5, 4, 3, 2, 1] @ rng.normal(size=(5, 40)) + 3 * rng.normal(size=(300, 40))
    search = GridSearchCV(PCA(), {"n_components": [2, 5, 8, 20]}, cv=3).fit(rows)
    assert search.best_params_ == {"n_components": 5}


# -- what is refused


@pytest.mark.parametrize("name", ["score_samples", "score", "get_covariance", "get_precision"])
def test_before_fit(name):
    with pytest.raises(NotFittedError):
        getattr(PCA(), name)(*([DIGITS] if name.startswith("score") else []))


@pytest.mark.parametrize("name", ["get_covariance", "get_precision"])
def test_matrices_that_do_not_fit_are_refused(model, name):
    word = name.removeprefix("get_")
    with pytest.raises(
        BudgetError, match=rf"the {word} of 64 x 64 features needs .* allows 1.0 MiB .*; score"
    ) as refused:
        getattr(model, name)(memory="1MiB")
    remedy = re.search(r"Set memory to at least (\S+);", str(refused.value))[1]
    assert getattr(model, name)(memory=remedy).shape == (64, 64)
    with pytest.raises(BudgetError, match="needs"):
        getattr(PCA(3).fit(DIGITS).set_params(run=Run(memory="1MiB")), name)()


def test_the_number_of_components_is_checked(model):
    for name in ("get_covariance", "get_precision"):
        with pytest.raises(RequestError, match="n_components=21 is no whole number between 1 and 20"):
            getattr(model, name)(21)
    with pytest.raises(RequestError, match="n_components=0 is no"):
        model.score_samples(DIGITS, 0)
    with pytest.raises(RequestError, match=r"n_components=1.5 is no"):
        model.score(DIGITS, 1.5)


# -- memory

WIDE = """
import json, sys
import numpy as np, streampca
from streampca.machine import PeakMeter
from streampca.models import likelihood
from streampca.models.store import BOUNDS
model, source = streampca.load(sys.argv[1]), streampca.open_collection(sys.argv[2])
rows = np.load(sys.argv[2], mmap_mode="r")[:8].copy()
meter = PeakMeter()
some = model.score_samples(rows)
held, mean = meter.peak(), model.score(source, memory="80MiB")
print(json.dumps({"held": held, "peak": meter.peak(), "some": some.tolist(), "mean": mean}))
"""


@pytest.mark.slow
def test_a_hundred_thousand_features_take_no_square_array(tmp_path):
    """Measured from outside: 80 GB if there were one. Samples are equal to what p x p would give, by the n x n dual."""
    n, p, k = 60, 100_000, 10
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, k), np.float32) @ (3 * rng.standard_normal((k, p), np.float32))
    rows += rng.standard_normal((n, p), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    fitted = streampca.fit(rows, PCA(k, method="dual", precision="double"))
    fitted.save(tmp_path / "m.zarr")
    found = measured(WIDE, tmp_path / "m.zarr", tmp_path / "rows.npy")
    print({name: round(found[name] / MIB, 1) for name in ("held", "peak")})
    assert found["held"] <= 24 * MIB
    assert found["peak"] <= 80 * MIB
    values = np.linalg.svd(rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64), full_matrices=False)
    scores, variance = values[0] * values[1], values[1] ** 2 / (n - 1)
    noise = variance[k:].sum() / (n - k)
    exponent = (scores[:, :k] ** 2 / variance[:k]).sum(axis=1) + (scores[:, k:] ** 2).sum(axis=1) / noise
    known = -(p * np.log(2 * np.pi) + np.log(variance[:k]).sum() + (p - k) * np.log(noise) + exponent) / 2
    np.testing.assert_allclose(found["some"], known[:8], rtol=1e-7)
    assert found["mean"] == pytest.approx(known.mean(), rel=1e-7)


@pytest.fixture(scope="module")
def holey():
    """Digits that lack a fifth of their pixels, and one that lacks all."""
    rows = np.where(np.random.default_rng(0).random(DIGITS.shape) < 0.2, np.nan, DIGITS)[:400]
    rows[3] = np.nan
    return rows


def marginals(rows, mean, covariance):
    there = np.isfinite(rows)
    blocks = ((row[o], mean[o], covariance[np.ix_(o, o)]) for row, o in zip(rows, there, strict=True) if o.any())
    found = np.zeros(len(rows))
    found[there.any(axis=1)] = [multivariate_normal(*of).logpdf(row) for row, *of in blocks]
    return found


def test_incomplete_samples_have_the_density_of_what_is_there(holey, tmp_path, monkeypatch):
    model = streampca.fit(holey, PCA(8, missing="em", max_passes=5, method="em", tol=0.5))
    model.save(tmp_path / "model.zarr")
    monkeypatch.setattr(likelihood, "PIECE", 500)  # so that a few rows and features are processed at a time
    rows = np.concatenate([holey[:60], DIGITS[:5]])
    for count in (8, 3):
        known = marginals(rows, model.subspace.mean, model.get_covariance(count))
        assert known[3] == 0
        for each in (model, streampca.load(tmp_path / "model.zarr")):
            np.testing.assert_allclose(each.score_samples(rows, count), known, rtol=1e-10)
            np.testing.assert_allclose(each.score_samples(da.from_array(rows, chunks=9), count), known, rtol=1e-10)
            assert each.score(rows, count) == pytest.approx(known.mean(), rel=1e-10)
    single = rows.astype(np.float32)
    np.testing.assert_allclose(
        model.score_samples(single),
        marginals(single.astype(float), model.subspace.mean, model.get_covariance()),
        rtol=1e-10,
    )


def test_the_estimator_takes_incomplete_samples(holey):
    ours = PCA(5, missing="em", max_passes=3, tol=0.5, whiten=True).fit(holey)
    known = marginals(holey[:50], ours.mean_, ours.get_covariance())
    np.testing.assert_allclose(ours.score_samples(holey[:50]), known, rtol=1e-10)


def test_incomplete_samples_are_refused_without_noise(holey):
    rows = holey[:20, :6]
    ours = streampca.fit(rows, PCA(6, missing="em", max_passes=3, tol=0.5))
    with pytest.raises(DataError, match=r"sample 0.*holds NaN .*fewer components \(n_components\)"):
        ours.score_samples(rows[3:])
    assert np.isfinite(ours.score_samples(rows, 2)).all()
