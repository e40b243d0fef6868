"""Models of kind "kernel-pca": exact, by landmarks and by random features, and the accuracy they report."""

from __future__ import annotations

import json
from pathlib import Path

import by_options
import numpy as np
import pytest
import yaml
from resumed import bits
from shell import refused, succeeded
from sklearn.datasets import load_digits, make_circles
from sklearn.decomposition import PCA, KernelPCA

import streampca
from streampca.accumulators.kernel_residual import Checked, KernelResidual
from streampca.errors import ModelError, RequestError
from streampca.events import BlockDone, PassStarted
from streampca.fitting.kernel_residuals import LABEL
from streampca.models.kernel_pca import KernelPCAModel
from streampca.plot import mean_and_components, reconstructions, walks
from streampca.preprocessing.feature_map import KernelMap
from streampca.preprocessing.kernels import Kernel

DIGITS = load_digits().images
FITTED, OTHERS = DIGITS[:600], DIGITS[600:700]
# name: parameters, which scikit-learn calls the same
KERNELS = {
    "linear": {},
    "polynomial": {"gamma": 1e-3, "degree": 2, "coef0": 0.5},
    "rbf": {"gamma": 1e-3},
    "sigmoid": {"gamma": 1e-4, "coef0": 0.0},
    "cosine": {},
}


def fitted(source=FITTED, n_components=10, **given):
    return by_options.fit(
        source, n_components=n_components, kind="kernel-pca", **{"kernel": "rbf", "gamma": "auto"} | given
    )


def exact_residuals(model, images, weights=None):
    """Return |K~ u - l u| / l of every component, computed from the whole kernel matrix."""
    rows = images.reshape(len(images), -1)
    weights = np.ones(len(rows)) if weights is None else weights
    scores = model.transform(images)
    products = model.kernel.matrix(rows, rows) @ (scores * weights[:, None])
    products -= weights @ products / weights.sum()
    values = weights @ np.square(scores)
    return np.sqrt(weights @ np.square(products - values * scores)) / values**1.5


@pytest.fixture(scope="module")
def approximate():
    return fitted(landmarks=100, n_components=20)


@pytest.mark.parametrize("name", KERNELS)
def test_exact_models_are_scikit_learns(name):
    theirs = KernelPCA(6, kernel={"polynomial": "poly"}.get(name, name), eigen_solver="dense", **KERNELS[name]).fit(
        FITTED.reshape(600, 64)
    )
    model = fitted(n_components=6, kernel=name, **KERNELS[name])
    np.testing.assert_allclose(599 * model.explained_variance, theirs.eigenvalues_, rtol=1e-7)
    wanted = theirs.transform(OTHERS.reshape(100, 64))
    np.testing.assert_allclose(np.abs(model.transform(OTHERS)), np.abs(wanted), atol=1e-7 * np.abs(wanted).max())
    assert isinstance(model, KernelPCAModel)
    # The residuals of an exact model are rounding, and its landmarks leave nothing out.
    assert model.residual_estimate.max() < 1e-9
    assert model.left_out < 1e-9
    assert "exact" in model.notes[0]


@pytest.mark.parametrize("n", [200, 400])
def test_eigenvalues_that_fall_to_rounding_leave_the_first_right(n):
    """The kernel of points in a plane is smooth: a third of its eigenvalues is above rounding."""
    points = make_circles(n, factor=0.3, noise=0.05, random_state=0)[0]
    theirs = KernelPCA(8, kernel="rbf", gamma=2, eigen_solver="dense").fit(points)
    model = fitted(points, 8, kernel="rbf", gamma=2)
    np.testing.assert_allclose((n - 1) * model.explained_variance, theirs.eigenvalues_, rtol=1e-6)


def test_the_linear_kernel_is_dual_pca():
    few = FITTED[:50]
    model, dual = fitted(few, 8, kernel="linear"), streampca.fit(few, streampca.PCA(8, method="dual"))
    np.testing.assert_allclose(model.explained_variance, dual.explained_variance, rtol=1e-8)
    wanted = np.abs(dual.transform(OTHERS))
    np.testing.assert_allclose(np.abs(model.transform(OTHERS)), wanted, atol=1e-8 * wanted.max())


@pytest.mark.parametrize("given", [{"landmarks": 100}, {"random_features": 256}], ids=["landmarks", "random"])
def test_residuals_are_those_of_the_whole_kernel_matrix_if_all_rows_are_taken(given):
    images = FITTED[:400]  # larger collections are sampled
    weights = np.arange(400) % 3 + 1.0
    for counts in (None, weights):
        model = fitted(images, landmarks=given.get("landmarks"), random_features=given.get("random_features"),
                       sample_weight=counts)  # fmt: skip
        found = model.residual_estimate
        # The estimate divides by 1 - 1/n, as for sampled rows, though all rows are taken.
        np.testing.assert_allclose(found, exact_residuals(model, images, counts), rtol=5e-3)


def test_residuals_of_some_rows_are_near_those_of_all(approximate):
    assert approximate.checked_rows == 500
    many = np.concatenate([DIGITS, DIGITS[:, ::-1]])
    model = fitted(many, 20, landmarks=200)
    ratio = model.residual_estimate / exact_residuals(model, many)
    assert np.all((ratio > 0.8) & (ratio < 1.25)), ratio


def test_the_share_left_out_bounds_that_of_the_whole_kernel_matrix(approximate):
    rows = FITTED.reshape(600, 64)
    matrix = approximate.kernel.matrix(rows, rows)
    whole = np.trace(matrix) - matrix.mean(axis=0).sum()
    lost = 1 - 599 * approximate.total_variance / whole
    assert lost <= approximate.left_out <= 1.2 * lost
    assert fitted(landmarks=300).left_out < approximate.left_out


def test_sums_merge_and_are_restored():
    kernel, rows = Kernel("rbf", gamma=1e-3), FITTED[:90].reshape(90, 64)
    mapping = KernelMap.nystroem(kernel, rows[:10])
    mapped = mapping(rows)
    checked = Checked(mapping, mapped.mean(axis=0), np.eye(10)[:3], rows[40:60])
    whole, parts = KernelResidual(checked), [KernelResidual(checked, 7) for _ in range(3)]
    whole.update(rows)
    for part, some in zip(parts, np.split(rows, [20, 50]), strict=True):
        part.update(some)
    merged = parts[0].merge(parts[1].merge(parts[2]))
    again = KernelResidual.restored(merged.state(), checked)
    np.testing.assert_allclose(again.relative(), whole.relative(), rtol=1e-9)
    assert again.left_out == pytest.approx(whole.left_out, rel=1e-9)


def test_models_are_stored_shown_and_applied_by_commands(tmp_path, monkeypatch, approximate):
    monkeypatch.chdir(tmp_path)
    np.save("digits.npy", FITTED)
    asked = ["--kind", "kernel-pca", "--kernel", "rbf", "--gamma", "auto", "--landmarks", 100, "-k", 20]
    said = succeeded("plan", "digits.npy", *asked)
    assert "600 samples of 100" in said
    assert "pass after the fit estimates how far" in " ".join(said.split())
    succeeded("fit", "digits.npy", *asked, "-o", "m.zarr", "-q")
    model = streampca.load("m.zarr")
    np.testing.assert_array_equal(model.transform(OTHERS), approximate.transform(OTHERS))
    np.testing.assert_array_equal(model.residual_estimate, approximate.residual_estimate)
    said = " ".join(succeeded("inspect", "m.zarr").split())
    assert "by 100 landmarks, which leave out at most" in said
    assert "as estimated from 500 rows of the kernel matrix: no bounds" in said
    shown = json.loads(succeeded("inspect", "m.zarr", "--json"))
    assert shown["kind"] == "kernel-pca"
    assert shown["preparation"]["feature_map"]["kernel"]["gamma"] == model.kernel.gamma
    succeeded("transform", "m.zarr", "digits.npy", "-o", "scores.npy", "-q")
    np.testing.assert_allclose(np.load("scores.npy"), model.transform(FITTED), atol=1e-12)
    said = refused("reconstruct", "m.zarr", "digits.npy", "-o", "images.npy")
    assert "'kernel-pca'; in Python, reconstruct and inverse_transform give lazy arrays of its pre-images" in said
    assert model.to_xarray().sizes["landmark"] == 100


def test_a_report_says_what_is_estimated(tmp_path, undrawn):
    np.save(tmp_path / "digits.npy", FITTED[:200])
    fitted(tmp_path / "digits.npy", 3, landmarks=40, output=tmp_path / "m.zarr")
    (page,) = streampca.write_report(tmp_path / "m.zarr", tmp_path / "m.html")
    assert "rows of the kernel matrix: no bounds" in Path(page).read_text()


def test_reconstructions_are_drawn_as_pre_images(approximate):
    axes = reconstructions(approximate, FITTED, [2, 6], count=2)
    shown = [np.asarray(ax.images[0].get_array()) for ax in axes[1]]
    images = [approximate.inverse_transform(approximate.transform(FITTED[1:2])[:, :step])[0] for step in (2, 6)]
    for picture, expected in zip(shown, [FITTED[1], *images], strict=True):
        np.testing.assert_allclose(picture, expected, atol=1e-9)
    labels = [float(ax.get_xlabel().split()[1]) / 100 for ax in axes[1, 1:]]
    assert labels[1] < labels[0] < 1


def test_a_run_file_names_kind_and_kernel(tmp_path):
    np.save(tmp_path / "digits.npy", FITTED[:100])
    config = {
        "collection": {"source": str(tmp_path / "digits.npy")},
        "model": {"kind": "kernel-pca", "kernel": "cosine", "landmarks": 20, "n_components": 3},
        "output": {"model": str(tmp_path / "m.zarr")},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    succeeded("run", tmp_path / "run.yaml", "-q")
    assert streampca.load(tmp_path / "m.zarr").kernel == Kernel("cosine")


def test_a_fit_that_dies_in_its_last_pass_resumes_to_the_same_bits(tmp_path):
    whole, passes = fitted(landmarks=50), []

    def dies(event):
        passes.append(event.label if isinstance(event, PassStarted) else None)
        if isinstance(event, BlockDone) and LABEL in passes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(landmarks=50, checkpoint=tmp_path / "c", listener=dies)
    assert LABEL in passes
    again = fitted(landmarks=50, checkpoint=tmp_path / "c")
    assert bits(again) == bits(whole)
    np.testing.assert_array_equal(again.residual_estimate, whole.residual_estimate)


def test_circles_that_linear_components_cannot_separate():
    rows, inside = make_circles(400, factor=0.3, noise=0.05, random_state=0)
    leading = fitted(rows, 1, gamma=2.0).transform(rows)[:, 0]
    assert abs(np.corrcoef(leading, inside)[0, 1]) > 0.9
    assert np.abs(np.corrcoef(PCA(2).fit_transform(rows).T, inside)[:2, 2]).max() < 0.1


@pytest.mark.parametrize(
    "given", [{}, {"landmarks": 150}, {"random_features": 400}], ids=["exact", "landmarks", "random"]
)
def test_pre_images_come_nearer_to_samples_than_their_mean(given):
    model = fitted(n_components=40, **given)
    spread = np.square(OTHERS - FITTED.mean(axis=0)).mean()
    made = np.asarray(model.reconstruct(OTHERS))
    assert made.shape == OTHERS.shape
    assert np.square(made - OTHERS).mean() < 0.5 * spread
    np.testing.assert_allclose(model.inverse_transform(model.transform(OTHERS)), made)
    assert np.square(np.asarray(model.reconstruct(OTHERS, 5)) - OTHERS).mean() > np.square(made - OTHERS).mean()
    if "random_features" not in given:
        fixed = np.asarray(model.reconstruct(OTHERS, method="fixed-point"))
        assert np.square(fixed - OTHERS).mean() < 0.5 * spread


def test_fixed_points_are_nearest_in_feature_space():
    """No small step from one of them increases its kernel with the projection, a sum of kernels with landmarks."""
    model = fitted(n_components=10)
    projected = model.subspace.reconstruct(model.transform(OTHERS[:20]))
    points = np.asarray(model.reconstruct(OTHERS[:20], method="fixed-point"))
    shares = projected @ model.mapping.weights
    shares += (1 - shares.sum(axis=1, keepdims=True)) / shares.shape[1]

    def nearness(images):
        return (model.mapping.similarities(images.reshape(20, 64)) * shares).sum(axis=1)

    steps = np.random.default_rng(0).normal(size=(10, 20, 8, 8))
    assert all(np.all(nearness(points + 0.1 * step) <= nearness(points) + 1e-9) for step in steps)


def test_pre_images_along_components_are_drawn(approximate):
    axes = walks(approximate, 2, (-1, 0, 1))
    assert axes.shape == (2, 3)
    drawn = np.asarray(axes[0, 1].images[0].get_array()).reshape(8, 8)
    np.testing.assert_allclose(drawn, np.asarray(approximate.inverse_transform(np.zeros((1, 20))))[0], atol=1e-6)
    assert len(mean_and_components(approximate, 3)) == 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kernel": "rbff"}, "kernel 'rbff' is not one of .*rbf, .*, precomputed.*Did you mean 'rbf'"),
        ({"gamma": 0}, "gamma = 0: give a number above 0"),
        ({"landmarks": 5000}, "landmarks=5000 are more than the 600 samples"),
        ({"landmarks": 5, "random_features": 5}, "two ways"),
        ({"landmark_choice": "kmeans"}, "landmark_choice = 'kmeans': give .* Did you mean 'k-means\\+\\+'"),
        ({"method": "em", "missing": "em"}, "missing = 'em': give 'error'"),
        ({"part": "1/2"}, "models of kind 'kernel-pca' are not merged"),
    ],
)
def test_bad_requests_are_one_line(given, said):
    with pytest.raises(RequestError, match=said) as refused:
        fitted(**given)
    assert "\n" not in str(refused.value)


def test_kernels_are_of_kinds_that_have_one():
    for function, option in ((streampca.fit, {"landmarks": 100}), (streampca.plan, {"kernel": "linear"})):
        with pytest.raises(TypeError, match=r"give it to one, such as streampca.KernelPCA"):
            function(FITTED, **option)


def test_what_such_a_model_cannot_do_is_refused(approximate, tmp_path):
    with pytest.raises(AttributeError, match="inverse_transform give lazy arrays of its pre-images"):
        approximate.residual(OTHERS)
    with pytest.raises(RequestError, match="fixed points are of kernel 'rbf'"):
        fitted(kernel="linear", landmarks=20).reconstruct(OTHERS, method="fixed-point")
    with pytest.raises(ModelError, match="only models of kind 'pca' can be updated"):
        streampca.update(approximate, OTHERS)
