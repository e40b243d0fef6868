"""Exact kernel PCA of samples that are not in memory together: method "kernel-matrix"."""

from __future__ import annotations

import re

import by_options
import numpy as np
import pytest
import zarr
from sklearn.datasets import load_digits
from sklearn.decomposition import KernelPCA

import streampca
from streampca.accumulators import Gram
from streampca.cli.config import make_run
from streampca.cli.pipeline import execute
from streampca.errors import BudgetError, ChangedError, DataError, ModelError, RequestError
from streampca.planning import landmarks as landmark_sizes
from streampca.planning.landmarks import box_of_rows
from streampca.preprocessing import Preparation
from streampca.preprocessing.kernels import Kernel
from streampca.preprocessing.landmark_rows import RowsOfCollection, RowsOfModel

DIGITS = load_digits().images
FITTED, OTHERS = DIGITS[:300], DIGITS[300:380]
# name: parameters, which scikit-learn calls the same
KERNELS = {
    "linear": {},
    "polynomial": {"gamma": 1e-3, "degree": 2, "coef0": 0.5},
    "rbf": {"gamma": 1e-3},
    "sigmoid": {"gamma": 1e-4, "coef0": 0.0},
    "cosine": {},
}
FORCED = {"kind": "kernel-pca", "method": "kernel-matrix", "kernel": "rbf", "gamma": "auto"}


def fitted(source=FITTED, n_components=8, **given):
    return by_options.fit(source, n_components=n_components, **FORCED | given)


def as_rows(images):
    return np.asarray(images, np.float64).reshape(len(images), -1)


def apart(found, wanted):
    """Return the largest difference of scores up to sign, relative to the largest score."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return np.abs(found * np.sign((found * wanted).sum(axis=0)) - wanted).max() / np.abs(wanted).max()


@pytest.fixture
def small_boxes(monkeypatch):
    """Landmarks in many boxes, and tiles that do not divide them."""
    monkeypatch.setattr(landmark_sizes, "BOX_BYTES", 3000)
    monkeypatch.setattr("streampca.preprocessing.feature_map.TILE_ROWS", 7)
    monkeypatch.setattr("streampca.preprocessing.feature_map.TILE_FEATURES", 10)


@pytest.mark.parametrize("name", KERNELS)
def test_scores_are_scikit_learns(name, small_boxes):
    given = KERNELS[name]
    theirs = KernelPCA(8, kernel={"polynomial": "poly"}.get(name, name), eigen_solver="dense", **given)
    theirs.fit(as_rows(FITTED))
    for dtype in (np.float64, np.uint8):
        model = fitted(FITTED.astype(dtype), kernel=name, **given)
        assert model.provenance["plan"]["method"] == "kernel-matrix"
        tolerance = 1e-7 if dtype == np.uint8 else 1e-10  # scores of small whole numbers are float32
        np.testing.assert_allclose(299 * model.explained_variance, theirs.eigenvalues_, rtol=1e-10)
        assert apart(model.embedding, theirs.transform(as_rows(FITTED))) < 1e-10
        both, wanted = np.concatenate([FITTED, OTHERS]), as_rows(np.concatenate([FITTED, OTHERS]))
        assert apart(model.transform(both.astype(dtype)), theirs.transform(wanted)) < tolerance
        assert model.residual_estimate.max() < 1e-10
        assert np.all(model.residual_bound < 1e-10)


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_the_map_of_all_samples_as_landmarks(name):
    given = KERNELS[name] if name == "sigmoid" else {}  # by default it is 1 for all of these
    ours, theirs = fitted(kernel=name, **given), fitted(kernel=name, method="auto", sample_weight=np.ones(300), **given)
    assert theirs.provenance["plan"]["method"] != "kernel-matrix"
    assert ours.kernel == theirs.kernel or np.isclose(ours.kernel.gamma, theirs.kernel.gamma, rtol=1e-12)
    np.testing.assert_allclose(ours.explained_variance, theirs.explained_variance, rtol=1e-9)
    np.testing.assert_allclose(ours.total_variance, theirs.total_variance, rtol=1e-9)
    assert apart(ours.transform(OTHERS), theirs.transform(OTHERS)) < 1e-9


@pytest.mark.parametrize("n_components", [8, None, 0.9])
def test_samples_that_fit_in_memory_are_held(n_components):
    held = fitted(n_components=n_components, method="auto")
    read = fitted(n_components=n_components)
    assert held.provenance["plan"]["method"] == "kernel-matrix"
    np.testing.assert_array_equal(held.mapping.landmarks, as_rows(FITTED))
    np.testing.assert_array_equal(held.components, read.components)
    np.testing.assert_array_equal(held.explained_variance, read.explained_variance)
    assert apart(held.transform(OTHERS), read.transform(OTHERS)) < 1e-9
    assert np.isfinite(held.inverse_transform(np.zeros((1, held.n_components)), method="fixed-point")).all()


def test_differences_of_samples_far_from_zero_have_all_digits():
    far = (FITTED + 1e6).astype(np.float64)
    assert apart(fitted(far).embedding, fitted().embedding) < 1e-9


def test_a_weight_is_a_number_of_copies():
    counts = np.random.default_rng(0).integers(0, 3, len(FITTED))
    weighted = fitted(sample_weight=counts)
    copied = fitted(np.repeat(FITTED, counts, axis=0), gamma=weighted.kernel.gamma)
    np.testing.assert_allclose(weighted.explained_variance, copied.explained_variance, rtol=1e-9)
    assert apart(weighted.transform(OTHERS), copied.transform(OTHERS)) < 1e-9
    with pytest.raises(ModelError, match="transform them"):
        _ = weighted.embedding


def test_samples_of_no_weight_do_not_count_in_gamma():
    """Nor are fixed points made of samples that weigh differently, which they assume not."""
    far = np.concatenate([FITTED, 100 * DIGITS[300:500]])
    weighted = fitted(far, sample_weight=np.repeat([1.0, 0.0], [300, 200]))
    assert weighted.kernel.gamma == pytest.approx(fitted().kernel.gamma)
    with pytest.raises(RequestError, match="fitted with weights"):
        weighted.inverse_transform(np.zeros((1, 8)), method="fixed-point")


def test_a_model_of_another_kernel_is_not_used_again(tmp_path):
    np.save(tmp_path / "digits.npy", FITTED)
    given = {
        "collection": {"source": str(tmp_path / "digits.npy")},
        "model": {**FORCED, "n_components": 3},
        "output": {"directory": str(tmp_path / "run")},
    }
    first = execute(make_run(given)).model
    assert execute(make_run(given)).model.kernel.gamma == first.kernel.gamma
    for kernel in ({"gamma": 1e-4}, {"kernel": "cosine"}):
        other = execute(make_run({**given, "model": {**given["model"], **kernel}})).model
        assert other.kernel != first.kernel


def test_samples_are_prepared_first():
    mask = np.ones((4, 4), bool)
    mask[0, 0] = False
    steps = Preparation(bin=2, mask=mask)
    rows = DIGITS[:380].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4))[:, mask]
    model = fitted(preparation=steps, kernel="rbf", gamma=1e-3)
    theirs = KernelPCA(8, kernel="rbf", gamma=1e-3, eigen_solver="dense").fit(rows[:300])
    assert apart(model.transform(OTHERS), theirs.transform(rows[300:])) < 1e-9


@pytest.fixture(scope="module", params=[(300, 3, 8), (50, 8, 8), (64, 4, 8)], ids=str)
def stored(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    array = zarr.create_array(folder / "samples.zarr", shape=FITTED.shape, chunks=request.param, dtype="f4")
    array[:] = FITTED
    return str(folder / "samples.zarr"), str(folder / "model.zarr"), array


@pytest.mark.every(3)
def test_a_stored_model_reads_what_it_compares_with(stored, small_boxes, tmp_path):
    source, output, _ = stored
    model = fitted(source, output=output, overwrite=True)
    assert isinstance(model.mapping.landmarks, RowsOfCollection)
    np.testing.assert_array_equal(np.asarray(model.mapping.landmarks), as_rows(FITTED))
    held, streamed = streampca.load(output), streampca.load(output, memory="100000B")
    assert isinstance(held.mapping.landmarks, np.ndarray)
    assert isinstance(streamed.mapping.landmarks, RowsOfModel)
    wanted = model.transform(OTHERS.astype(np.float32))
    for each in (held, streamed):
        assert apart(each.transform(OTHERS.astype(np.float32)), wanted) < 1e-6
        assert apart(each.embedding, model.embedding) < 1e-9
        assert each.notes == model.notes
    streamed.write_scores(source, tmp_path / "scores.npy", memory="80 MiB")
    assert apart(np.load(tmp_path / "scores.npy"), model.embedding) < 1e-6
    assert np.isfinite(streamed.reconstruct(OTHERS[:3].astype(np.float32))).all()
    with pytest.raises(ModelError, match="load it with more memory"):
        streamed.inverse_transform(np.zeros((1, 8)), method="fixed-point")
    assert np.isfinite(held.inverse_transform(np.zeros((1, 8)), method="fixed-point")).all()
    streamed.save(str(tmp_path / "again.zarr"))
    again = streampca.load(str(tmp_path / "again.zarr"))
    np.testing.assert_array_equal(again.mapping.landmarks, as_rows(FITTED))


def test_a_model_of_few_samples_is_applied_within_the_budget_of_its_fit(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (400, 112, 92), np.uint8)
    np.save(tmp_path / "x.npy", images)
    fitted(tmp_path / "x.npy", output=tmp_path / "m.zarr", memory="40MiB")
    model = streampca.load(tmp_path / "m.zarr", memory="40MiB")
    assert isinstance(model.mapping.landmarks, RowsOfModel)
    model.write_scores(images[:10], tmp_path / "scores.npy", memory="40MiB")
    assert apart(np.load(tmp_path / "scores.npy"), model.embedding[:10]) < 1e-6


def test_a_source_that_changes_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", FITTED)
    model = fitted(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", FITTED[:200])
    with pytest.raises(ChangedError, match=r"x\.npy"):
        model.transform(OTHERS)


def test_the_plan_takes_it_where_samples_do_not_fit():
    rbf = {"kind": "kernel-pca", "kernel": "rbf", "gamma": "auto", "n_components": 6}
    given = {"shape": "1000x512x512", "dtype": "float32", **rbf}
    plan = by_options.plan(memory="300 MiB", **given)
    assert plan.method == "kernel-matrix"
    assert plan.memory_estimate.total <= plan.memory
    assert any("1000 x 1000 float64" in name for phase in plan.memory_estimate.phases for name, _ in phase.items)
    assert "kernel-matrix: the 1000 x 1000 kernel matrix fits the budget" in " ".join(str(plan).split())
    whole = by_options.plan(memory="16 GiB", **given)
    assert whole.method == "kernel-matrix"
    assert (whole.problem.held_bytes, plan.problem.held_bytes) == (4 * 1000 * 512 * 512, 0)  # all samples, or none
    with pytest.raises(BudgetError, match="method 'kernel-matrix' needs") as refused:
        by_options.plan(memory="20 MiB", **given)
    enough = re.search(r"at least (\S+?)[,.]", str(refused.value))[1]
    assert by_options.plan(memory=enough, **given).method == "kernel-matrix"
    with pytest.raises(BudgetError, match=r"comparing all 1000 samples .*give a number of landmarks") as refused:
        by_options.plan(memory="300 MiB", **given | {"kernel": "laplacian"})
    enough = re.search(r"at least (\S+?)[,.]", str(refused.value))[1]
    by_options.plan(memory=enough, **given | {"kernel": "laplacian"})
    many = {"shape": "20000x28x28", "memory": "400 MiB", **rbf}
    with pytest.raises(BudgetError, match=r"such as landmarks=1000"):
        by_options.plan(**many)
    by_options.plan(landmarks=1000, **many)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"kernel": "laplacian"}, RequestError, "which kernel 'laplacian' does not; use method 'auto'"),
        ({"kernel": np.dot}, RequestError, "which kernel 'dot' does not"),
        ({"landmarks": 20}, RequestError, "which landmarks=20 does not"),
        ({"random_features": 20}, RequestError, "which random features does not"),
        ({"n_components": 300}, RequestError, r"exceeds 299, .* \(n_samples - 1\)"),
        ({"n_components": "mp"}, RequestError, "ask for a number such as 10"),
        ({"kernel": "polynomial", "degree": 200, "gamma": 1.0}, DataError, "NaN or infinite; give a smaller gamma"),
        ({"kernel": "polynomial", "coef0": -9.0, "degree": 2, "n_components": None}, RequestError, "no inner product"),
    ],
)
def test_what_it_cannot_do_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        fitted(**given)


@pytest.mark.parametrize(("gamma", "is_alone"), [(1.0, True), ("auto", False)])
def test_a_gamma_that_makes_all_samples_alike_is_told(gamma, is_alone):
    events = []
    fitted(gamma=gamma, listener=events.append)
    said = " ".join(str(event) for event in events)
    assert ("nearly the identity" in said and "gamma='auto'" in said) == is_alone


def test_it_makes_models_of_one_kind():
    with pytest.raises(RequestError, match="makes a model of kind 'kernel-pca'"):
        streampca.fit(FITTED, streampca.PCA(method="kernel-matrix"))


def test_bad_samples_are_named():
    broken = FITTED.copy()
    broken[17, 2, 2] = np.nan
    with pytest.raises(DataError, match="17"):
        fitted(broken)
    with pytest.raises(RequestError, match="median distance of 300 samples, which is 0"):
        fitted(np.ones_like(FITTED))
    with pytest.raises(DataError, match="no variance in the features of kernel"):
        fitted(np.ones_like(FITTED), gamma=1.0)


def test_the_estimator_takes_it_where_samples_do_not_fit():
    rows, run = np.random.default_rng(0).standard_normal((100, 30_000)), streampca.Run(memory="90 MiB")
    estimator = streampca.KernelPCA(4, kernel="rbf", run=run).fit(rows)
    theirs = KernelPCA(4, kernel="rbf", eigen_solver="dense").fit(rows)
    assert estimator.model_.provenance["plan"]["method"] == "kernel-matrix"
    assert apart(estimator.transform(rows[:10]), theirs.transform(rows[:10])) < 1e-9
    assert apart(estimator.eigenvectors_, theirs.eigenvectors_) < 1e-9
    with pytest.raises(RequestError, match="leave it out"):
        streampca.KernelPCA(4, kernel="rbf", run=run, fit_inverse_transform=True).fit(rows)


def test_products_about_zero_are_those_of_samples_as_they_are():
    x = np.random.default_rng(0).standard_normal((20, 50)) + 3
    for about in ("zero", "mean"):
        parts = []
        for some in (slice(0, 31), slice(31, 50)):
            parts.append(Gram(20, precision="double", product_features=8, about=about, centres=50))
            parts[-1].update(x[:, some], at=some.start)
        sums = Gram.from_state(parts[0].merge(parts[1]).state())
        products, centre = sums.products()
        np.testing.assert_allclose(np.triu(products), np.triu((x - centre) @ (x - centre).T), rtol=1e-10, atol=1e-10)
        assert (not centre.any()) == (about == "zero")


@pytest.mark.parametrize("name", [*KERNELS, "distance"])
def test_kernels_of_products_are_kernels_of_rows(name):
    kernel = Kernel(name, 0.1, 2, 0.5)
    rows, others = as_rows(FITTED[:20]) / 16, as_rows(OTHERS[:9]) / 16
    rows[3] = 0
    squares = [np.square(each).sum(axis=1) for each in (rows, others)]
    np.testing.assert_allclose(
        kernel.of_products(rows @ others.T, *squares), kernel.matrix(rows, others, np.zeros(64)), atol=1e-12
    )


@pytest.mark.parametrize(
    ("chunk", "box"),
    [((10, 1000), (40, 1000)), ((100, 10), (100, 400)), ((1000, 1000), (40, 1000)), ((1, 10), (40, 1000))],
)
def test_boxes_are_of_whole_chunks(chunk, box, monkeypatch):
    monkeypatch.setattr(landmark_sizes, "BOX_BYTES", 40_000)
    assert box_of_rows((100, 1000), chunk, 1) == box
