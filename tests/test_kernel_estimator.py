"""The estimator `KernelPCA`, beyond scikit-learn's own tests of its namesake (see test_sklearn_suite)."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import KernelPCA as Theirs
from sklearn.exceptions import NotFittedError

import streampca
from streampca.errors import DataError, RequestError

ROWS = load_digits().data[:300]
OTHERS = load_digits().data[300:360]


def matrix_of(rows, others):
    return np.exp(-1e-3 * np.square(rows[:, None] - others).sum(axis=2))


@pytest.mark.parametrize("name", ["linear", "poly", "rbf", "sigmoid", "cosine"])
def test_exact_fits_are_scikit_learns_pre_images_and_all(name):
    given = {"n_components": 8, "kernel": name, "gamma": 1e-3, "coef0": 0.5, "fit_inverse_transform": True}
    given |= {"gamma": 1e-4} if name == "sigmoid" else {}
    ours, theirs = streampca.KernelPCA(**given).fit(ROWS), Theirs(eigen_solver="dense", **given).fit(ROWS)
    np.testing.assert_allclose(ours.eigenvalues_, theirs.eigenvalues_, rtol=1e-7)
    np.testing.assert_allclose(ours.eigenvectors_, theirs.eigenvectors_, atol=1e-7)
    scores = theirs.transform(OTHERS)
    np.testing.assert_allclose(ours.transform(OTHERS), scores, atol=1e-7 * np.abs(scores).max())
    np.testing.assert_allclose(ours.inverse_transform(scores), theirs.inverse_transform(scores), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [{}, {"method": "kernel-matrix"}, {"landmarks": 60}])
def test_signs_are_those_of_copies(given):
    """The largest score is positive, whatever the weights; copies of samples stand for weights."""
    rows = ROWS[:60] + np.random.default_rng(0).normal(0, 1e-3, (60, 64))
    for weights in (np.full(60, 3), np.arange(60) % 5 + 1):
        ours = streampca.KernelPCA(6, kernel="rbf", gamma=1e-3, **given).fit(rows, sample_weight=weights)
        copies = Theirs(6, kernel="rbf", gamma=1e-3, eigen_solver="dense").fit(rows.repeat(weights, axis=0))
        np.testing.assert_allclose(ours.transform(OTHERS), copies.transform(OTHERS), atol=1e-7)


def test_a_precomputed_kernel_is_that_kernel(tmp_path):
    matrix, others = matrix_of(ROWS, ROWS), matrix_of(OTHERS, ROWS)
    ours = streampca.KernelPCA(np.int64(6), kernel="precomputed").fit(matrix)
    assert ours.gamma_ is None
    same = streampca.KernelPCA(6, kernel="rbf", gamma=1e-3).fit(ROWS)
    np.testing.assert_allclose(ours.eigenvalues_, same.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(ours.transform(others), same.transform(OTHERS), atol=1e-9)
    np.testing.assert_allclose(ours.eigenvectors_, same.eigenvectors_, atol=1e-9)
    ours.model_.save(tmp_path / "model.zarr")
    np.testing.assert_allclose(streampca.load(tmp_path / "model.zarr").transform(others), ours.transform(others))


@pytest.mark.parametrize(
    "given", [{"landmarks": 60}, {"random_features": 200}, {"landmarks": 60, "n_components": None}]
)
def test_approximate_fits_are_cloned_pickled_and_say_how_far_off_they_are(given):
    ours = clone(streampca.KernelPCA(**{"n_components": 4, "kernel": "rbf", "gamma": "auto"} | given)).fit(ROWS)
    again = pickle.loads(pickle.dumps(ours))  # noqa: S301 - our own
    np.testing.assert_array_equal(again.transform(OTHERS), ours.transform(OTHERS))
    assert len(ours.residual_estimate_) == ours.n_components_ == len(ours.get_feature_names_out())
    assert ours.gamma_ > 0
    with pytest.raises(AttributeError, match="needs all samples as landmarks"):
        _ = ours.eigenvectors_


def test_paths_and_images_are_taken(tmp_path):
    np.save(tmp_path / "digits.npy", ROWS.reshape(-1, 8, 8))
    ours = streampca.KernelPCA(3, kernel="rbf", gamma=1e-3, landmarks=50)
    scores = ours.fit_transform(tmp_path / "digits.npy").compute()
    np.testing.assert_allclose(clone(ours).fit_transform(ROWS.reshape(-1, 8, 8)), scores, atol=1e-12)
    assert ours.n_features_in_ == 64
    assert ours.model_.reconstruct(OTHERS.reshape(-1, 8, 8)).shape == (60, 8, 8)


@pytest.mark.parametrize("steps", [{"scale": 0.01}, {"mask": np.arange(64) % 4 > 0}, {"standardize": True}])
def test_pre_images_are_of_samples_before_they_were_scaled(steps):
    """Each is near its sample, as the model's own are, and pixels outside the mask are NaN."""
    given = {"kernel": "rbf", "gamma": "auto", "fit_inverse_transform": True, "alpha": 1e-6}
    ours = streampca.KernelPCA(20, preparation=streampca.Preparation(**steps), **given).fit(ROWS)
    scores = ours.transform(ROWS)
    images, models = ours.inverse_transform(scores), ours.model_.inverse_transform(scores)
    assert images.shape == ROWS.shape
    np.testing.assert_array_equal(np.isnan(images), np.isnan(models))
    assert np.nanmean(np.square(images - ROWS)) < 0.5 * ROWS.var()
    np.testing.assert_allclose(images, models, atol=0.5 * ROWS.max())


@pytest.mark.parametrize("weights", [np.full(60, 2.0), np.arange(60) % 4 / 2])
def test_eigenvectors_are_those_of_the_weighted_kernel_matrix(weights):
    rows, share = ROWS[:60], weights / weights.sum()
    ours = streampca.KernelPCA(5, kernel="rbf", gamma=1e-3).fit(rows, sample_weight=weights)
    centring = np.eye(60) - share
    matrix = centring @ matrix_of(rows, rows) @ centring.T * np.sqrt(np.outer(weights, weights))
    vectors = ours.eigenvectors_
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(5), atol=1e-9)
    np.testing.assert_allclose(matrix @ vectors, vectors * ours.eigenvalues_, atol=1e-9)
    assert not vectors[weights == 0].any()


@pytest.mark.parametrize(
    ("given", "rows", "said"),
    [
        (
            {"kernel": "precomputed"},
            ROWS[:20],
            "takes a square matrix, and this one has 20 rows of 64 columns",
        ),
        (
            {"kernel": "precomputed"},
            np.triu(np.ones((20, 20))),
            r"is not equal to entry .* give a symmetric matrix of inner products",
        ),
        ({"kernel": "precomputed"}, -matrix_of(ROWS[:20], ROWS[:20]), "has an eigenvalue of -.* or less"),
        ({"kernel": "precomputed", "landmarks": 3}, np.eye(20), "solved as it is; leave landmarks out"),
        ({"kernel": "rbff"}, ROWS[:20], "kernel 'rbff' is not one of"),
        ({"kernel": "rbf", "gamma": 0}, ROWS[:20], "gamma = 0: give a number above 0, 'auto' or None"),
        ({"landmarks": 21}, ROWS[:20], "landmarks=21 are more than the 20 samples"),
        (
            {"kernel": "precomputed", "preparation": streampca.Preparation(scale=2.0)},
            np.eye(20),
            "leave preparation and",
        ),
        ({"n_components": 0}, ROWS[:20], "n_components=0"),
        ({"n_components": True}, ROWS[:20], "n_components=True"),
    ],
)
def test_bad_input_is_refused_in_one_line(given, rows, said):
    with pytest.raises((DataError, RequestError), match=said) as refused:
        streampca.KernelPCA(**given).fit(rows)
    assert "\n" not in str(refused.value)


def test_an_estimator_whose_fit_failed_is_not_fitted():
    estimator = streampca.KernelPCA(2).fit(ROWS)
    with pytest.raises(DataError):
        estimator.fit(np.full((10, 4), np.nan))
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        estimator.transform(ROWS)
