"""Kernels and feature maps compared with scikit-learn's and with theorems."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, KernelPCA
from sklearn.metrics.pairwise import pairwise_kernels

from streampca.errors import RequestError
from streampca.preprocessing.feature_map import FourierMap, KernelMap
from streampca.preprocessing.kernels import KERNELS, Kernel

DIGITS = load_digits().data[:300]


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "distance"])
def test_values_are_those_of_scikit_learn(name: str) -> None:
    kernel = Kernel(name, gamma=1e-3, degree=2, coef0=0.5)
    given = {key: value for key, value in kernel.to_json().items() if key != "name"}
    wanted = pairwise_kernels(DIGITS[:9], DIGITS[9:30], metric=name, **given)
    np.testing.assert_allclose(kernel.matrix(DIGITS[:9], DIGITS[9:30]), wanted, rtol=1e-12)


@pytest.mark.parametrize(("name", "their"), [("rbf", "rbf"), ("polynomial", "poly"), ("cosine", "cosine")])
def test_all_samples_for_landmarks_give_kernel_pca(name: str, their: str) -> None:
    fitted, others = DIGITS[:200], DIGITS[200:]
    theirs = KernelPCA(5, kernel=their, gamma=1e-3, eigen_solver="dense").fit(fitted)
    mapped = KernelMap.nystroem(Kernel(name, gamma=1e-3), fitted, rank=5, centred=True)
    np.testing.assert_allclose(np.square(mapped(fitted)).sum(axis=0), theirs.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(np.abs(mapped(others)), np.abs(theirs.transform(others)), atol=1e-10)


def test_distances_give_classical_scaling_which_is_pca() -> None:
    fitted, others = DIGITS[:200], DIGITS[200:]
    mapped = KernelMap.nystroem(Kernel("distance"), fitted, rank=4)
    scores = PCA(4).fit(fitted).transform(others)
    np.testing.assert_allclose(np.abs(mapped(others)), np.abs(scores), atol=1e-10)


def test_inner_products_of_mapped_landmarks_are_the_kernel() -> None:
    kernel = Kernel("rbf", gamma=1e-3)
    mapped = KernelMap.nystroem(kernel, DIGITS[:50])
    rows = mapped(DIGITS[:50])
    np.testing.assert_allclose(rows @ rows.T, kernel.matrix(DIGITS[:50], DIGITS[:50]), atol=1e-10)


def test_a_large_offset_takes_no_digits() -> None:
    near = DIGITS.astype(np.float32)
    far = near + np.float32(2**18)  # exact: digits are whole numbers
    for name in ("rbf", "laplacian"):
        kernel = Kernel(name, gamma=1e-3)
        np.testing.assert_allclose(kernel.matrix(far[:9], far[9:]), kernel.matrix(near[:9], near[9:]), rtol=1e-12)


@pytest.mark.parametrize("name", ["rbf", "laplacian"])
def test_random_features_come_near_the_kernel(name: str) -> None:
    # The standard error of a mean of q values of at most 2 is at most 2 / sqrt(q); 6 of these are allowed.
    kernel, rows = Kernel(name, gamma=1e-3), DIGITS[:40]
    mapped = FourierMap.random(kernel, rows.mean(axis=0), 4096, seed=0)(rows)
    assert np.abs(mapped @ mapped.T - kernel.matrix(rows, rows)).max() < 12 / np.sqrt(4096)


def test_random_features_come_nearer_than_independent_ones() -> None:
    random, rows = np.random.default_rng(0), np.random.default_rng(1).standard_normal((60, 3))
    kernel, q = Kernel("rbf", gamma=0.2), 1023  # odd: one sine is missing
    mapped = FourierMap.random(kernel, rows.mean(axis=0), q, seed=0)(rows)
    plain = np.sqrt(2 / q) * np.cos(rows @ random.normal(0, np.sqrt(0.4), (3, q)) + random.uniform(0, 2 * np.pi, q))
    ours, theirs = (np.abs(each @ each.T - kernel.matrix(rows, rows)).mean() for each in (mapped, plain))
    assert ours < theirs / 2
    even = FourierMap.random(kernel, rows.mean(axis=0), 1024, seed=0)(rows)
    np.testing.assert_allclose(np.sum(even**2, axis=1), 1, rtol=1e-12)


def test_automatic_gamma_is_of_the_median_distance() -> None:
    found = Kernel("rbf").resolved(DIGITS)
    assert found.gamma == pytest.approx(1 / (2 * np.median(pdist(DIGITS)) ** 2))
    assert Kernel("polynomial", gamma=None).resolved(DIGITS).gamma == 1 / 64


def test_a_function_of_ones_own_is_called_for_pairs() -> None:
    def overlap(first, second):
        return float(np.minimum(first, second).sum())

    kernel = Kernel("overlap", function=overlap)
    assert kernel.matrix(DIGITS[:3], DIGITS[3:5])[2, 1] == overlap(DIGITS[2], DIGITS[4])
    assert kernel.to_json()["name"] == "overlap"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "rbff"}, "rbf"),
        ({"gamma": 0}, "gamma 0 is not a number above 0"),
        ({"gamma": float("nan")}, "gamma nan"),
        ({"degree": 0}, "degree"),
        ({"coef0": "x"}, "coef0 'x'"),
        ({"name": "rbf", "function": min}, "built in"),
    ],
)
def test_wrong_parameters_are_refused(wrong: dict, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        Kernel(**wrong)


def test_what_is_no_inner_product_is_refused() -> None:
    with pytest.raises(RequestError, match="no inner product"):
        KernelMap.nystroem(Kernel("minus", function=lambda a, b: -float(np.abs(a - b).sum())), DIGITS[:20])
    with pytest.raises(RequestError, match="most are equal"):
        Kernel("rbf").resolved(np.ones((10, 3)))
