"""`PCA` keeps scikit-learn's promises and gives scikit-learn's numbers."""

from __future__ import annotations

import pickle
import re
from importlib.metadata import version

import dask.array as da
import numpy as np
import pytest
from judged import ROUNDING
from sklearn import decomposition
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import streampca
from streampca import PCA, Preparation, Run, machine
from streampca.errors import DataError, ModelError, RequestError
from streampca.fitting import build_model as making

DIGITS, TARGETS = load_digits(return_X_y=True)


@pytest.fixture(scope="module")
def pair():
    """The same fit by both, float64 throughout."""
    return PCA(n_components=20).fit(DIGITS), decomposition.PCA(n_components=20, svd_solver="full").fit(DIGITS)


@parametrize_with_checks([
    PCA(),
    PCA(n_components=1, method="randomized", whiten=True, random_state=None, tol=1e-6, max_passes=20),
    PCA(n_components=2, method="dual", whiten=True, precision="double"),
    PCA(missing="drop-samples"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::FutureWarning")  # scikit-learn announces changes of its own
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.campaign
@parametrize_with_checks([
    PCA(n_components=0.5, whiten=True, precision="double"),
    PCA(n_components="elbow"),
    PCA(n_components="mp", method="covariance", whiten=True),  # "mp" depends on weights
    PCA(n_components=0),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_scikit_learn_contract_of_other_numbers(estimator, check):
    check(estimator)


def test_weights_are_copies():
    counts = np.random.default_rng(0).integers(0, 4, size=len(DIGITS))
    weighted = PCA(n_components=12).fit(DIGITS, sample_weight=counts)
    copied = PCA(n_components=12).fit(DIGITS.repeat(counts, axis=0))
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(copied, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("weights", "message"), [
    (np.zeros(len(DIGITS)), "all zero"),
    (3.0 * (np.arange(len(DIGITS)) == 7), "only sample 7 of .* has a weight above 0, .* at least two samples"),
    (np.full(len(DIGITS), 1e-4), "add up to 0.1797, .* must exceed 1; multiply them"),
    (-np.ones(len(DIGITS)), "sample 0 of .* is -1.0; give numbers of at least 0"),
    (np.full(len(DIGITS), np.nan), "is nan; give numbers"),
    (np.array(["a"] * len(DIGITS)), "holds .*; give numbers"),
])  # fmt: skip
def test_weights_that_are_none(weights, message):
    with pytest.raises(ValueError, match=message):
        PCA(n_components=2).fit(DIGITS, sample_weight=weights)


def test_samples_of_weight_0_differ_in_vain():
    rows = np.concatenate([DIGITS[:5], DIGITS[:1]])
    with pytest.raises(DataError, match="all samples of weight above 0 are equal"):
        PCA(1).fit(rows, sample_weight=[2, 0, 0, 0, 0, 1])
    with pytest.raises(NotFittedError, match="needs at least two samples of weight above 0, and has seen one"):
        PCA(1).partial_fit(rows, sample_weight=[3, 0, 0, 0, 0, 0]).components_  # noqa: B018


@pytest.mark.parametrize("name", [
    "components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "noise_variance_",
    "n_components_", "n_samples_", "n_features_in_",
])  # fmt: skip
def test_attributes_equal_those_of_pca(pair, name):
    ours, theirs = pair
    np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("whiten", [False, True])
def test_scores_and_the_way_back_equal_those_of_pca(whiten):
    ours = PCA(n_components=20, whiten=whiten).fit(DIGITS)
    theirs = decomposition.PCA(n_components=20, whiten=whiten, svd_solver="full").fit(DIGITS)
    scores = theirs.transform(DIGITS)
    np.testing.assert_allclose(ours.transform(DIGITS), scores, atol=1e-8)
    np.testing.assert_allclose(ours.fit_transform(DIGITS), scores, atol=1e-8)
    np.testing.assert_allclose(ours.inverse_transform(scores), theirs.inverse_transform(scores), atol=1e-8)


def test_whitened_scores_are_as_good_features_as_those_of_pca():
    """With all components: three pixels of the digits never change, and their directions have no variance."""
    classify = make_pipeline(PCA(None, whiten=True), LogisticRegression(max_iter=1000))
    assert cross_val_score(classify, DIGITS, TARGETS, cv=3).mean() >= 0.88


@pytest.mark.parametrize("kind", ["array", "list", "frame"])
def test_features_that_are_missing_can_be_masked_in_tables_too(kind):
    form = pytest.importorskip("pandas").DataFrame if kind == "frame" else np.ndarray.tolist
    form = np.asarray if kind == "array" else form
    rows = DIGITS.copy()
    rows[::7, 20] = np.nan
    ours = PCA(5, preparation=Preparation(mask="valid")).fit(form(rows))
    theirs = decomposition.PCA(5, svd_solver="full").fit(np.delete(rows, 20, axis=1))
    np.testing.assert_allclose(np.abs(ours.transform(form(rows))), np.abs(theirs.transform(np.delete(rows, 20, 1))))
    rows[40, 21] = np.nan
    with pytest.raises(DataError, match=r"^sample 40 of numpy array holds NaN"):
        ours.transform(form(rows))
    with pytest.raises(DataError, match=r"^sample 0 of numpy array holds NaN"):
        PCA(5).fit(form(rows))


@pytest.mark.parametrize("wanted", [1, 0.5, 0.99, None, np.int32(5), np.float32(0.75)])
def test_number_of_components_equals_that_of_pca(wanted):
    ours = PCA(n_components=wanted).fit(DIGITS)
    theirs = decomposition.PCA(n_components=getattr(wanted, "item", lambda: wanted)(), svd_solver="full").fit(DIGITS)
    assert ours.n_components_ == theirs.n_components_
    np.testing.assert_allclose(ours.noise_variance_, theirs.noise_variance_, rtol=1e-9, atol=1e-12)


def test_small_fits_look_things_up_once(monkeypatch):
    """The cores allowed and the versions of packages stand in files, and are asked for throughout a fit."""
    read, asked, real = [], [], machine._text
    machine._quota.cache_clear()
    making.versions.cache_clear()
    monkeypatch.setattr(machine, "_text", lambda path: (read.append(path), real(path))[1])
    monkeypatch.setattr(making, "version", lambda name: (asked.append(name), version(name))[1])
    for _ in range(2):
        PCA(10).fit(DIGITS)
    assert read.count("/sys/fs/cgroup/cpu.max") == 1
    assert sorted(asked) == sorted(making.VERSIONS)


RANK_5 = np.random.default_rng(0).normal(size=(40, 5)) @ np.random.default_rng(1).normal(size=(5, 30)) + 7


@pytest.mark.parametrize("method", ["auto", "covariance", "dual", "randomized", "batches"])
@pytest.mark.parametrize(("x", "wanted"), [(DIGITS[:10], 10), (RANK_5, 12), (RANK_5, 30), (RANK_5.T, 30)])
def test_every_method_gives_as_many_components_as_were_asked_for(method, x, wanted):
    """Ten samples span nine directions, and components that nothing varies along complete them."""
    if method == "batches":
        ours = PCA(wanted).partial_fit(x[:4]).partial_fit(x[4:])
    else:
        ours = PCA(wanted, method=method).fit(x)
    theirs = decomposition.PCA(wanted, svd_solver="full").fit(x)
    assert ours.n_components_ == len(ours.explained_variance_) == wanted == theirs.n_components_
    np.testing.assert_allclose(ours.components_ @ ours.components_.T, np.eye(wanted), atol=1e-9)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-8, atol=1e-8)
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_, abs=1e-9)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(x)), x, atol=1e-6)
    assert ours.model_.summary()["trust"]["leading"] >= 1
    if method != "randomized":  # which refuses to find all
        assert ours.set_params(n_components=None).fit(x).n_components_ == min(x.shape)


@pytest.mark.parametrize("fitted", [lambda pca: pca.fit(DIGITS), lambda pca: pca.partial_fit(DIGITS)])
def test_no_component_is_a_mean_and_a_variance(fitted):
    ours, theirs = fitted(PCA(0)), decomposition.PCA(0).fit(DIGITS)
    assert (ours.n_components_, ours.transform(DIGITS).shape) == (0, (len(DIGITS), 0))
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_)
    np.testing.assert_allclose(ours.inverse_transform(np.empty((2, 0))), [DIGITS.mean(axis=0)] * 2, atol=1e-9)
    assert "0 components" in repr(ours.model_)
    assert ours.model_._repr_html_()
    assert fitted(ours.set_params(n_components=1)).n_components_ == 1
    with pytest.raises(RequestError, match=r"n_components=0 must be between 1 and .*; ask for at least that"):
        PCA(0, method="randomized").fit(DIGITS)


@pytest.mark.parametrize("method", ["auto", "covariance", "dual", "randomized", "batches"])
@pytest.mark.parametrize("x", [DIGITS, RANK_5], ids=["falling", "with null directions"])
def test_float32_in_is_float32_out(method, x):
    x = x.astype(np.float32)
    ours = PCA(12, whiten=True, method="auto" if method == "batches" else method)
    ours = ours.partial_fit(x) if method == "batches" else ours.fit(x)
    scores = ours.transform(x)
    found = [ours.components_, ours.mean_, scores, ours.inverse_transform(scores), ours.transform(da.from_array(x))]
    assert [each.dtype for each in found] == [np.float32] * 5
    assert ours.transform(x.astype(float)).dtype == np.float64
    wide = PCA(12, whiten=True).fit(x.astype(float))
    assert wide.components_.dtype == np.float64
    real = wide.explained_variance_ > 1e-3 * wide.explained_variance_[0]
    np.testing.assert_allclose(scores[:, real], wide.transform(x)[:, real], atol=2e-3)


def test_bounds_hold(pair):
    ours, _ = pair
    covariance = np.cov(DIGITS.T)
    residuals = covariance @ ours.components_.T - ours.components_.T * ours.explained_variance_
    most = ours.residual_bound_ * ours.explained_variance_ + ROUNDING * ours.explained_variance_[0]
    assert np.all(np.linalg.norm(residuals, axis=0) <= most)
    assert ours.residual_bound_.max() < 1e-9
    assert ours.angle_bound_.shape == (20,)


# -- in scikit-learn's company


def test_pipeline_and_grid_search():
    steps = make_pipeline(StandardScaler(), PCA(), LogisticRegression(max_iter=2000))
    search = GridSearchCV(steps, {"pca__n_components": [5, 20]}, cv=3).fit(DIGITS[:600], TARGETS[:600])
    assert search.best_params_ == {"pca__n_components": 20}
    theirs = make_pipeline(
        StandardScaler(), decomposition.PCA(20, svd_solver="full"), LogisticRegression(max_iter=2000)
    )
    expected = theirs.fit(DIGITS[:600], TARGETS[:600]).predict(DIGITS[600:])
    assert np.mean(search.predict(DIGITS[600:]) == expected) > 0.999


@pytest.mark.parametrize("method", ["covariance", "dual", "randomized"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_pickled_fit_holds_no_statistic(method, dtype):
    n, p, k = (2000, 400, 4) if method == "covariance" else (60, 9000, 4)
    x = np.random.default_rng(0).normal(size=(n, p)).astype(dtype) * np.geomspace(9, 1, p, dtype=dtype)
    ours = PCA(k, method=method, whiten=True, tol=1e-2).fit(x)
    stored = pickle.dumps(ours)
    assert len(stored) <= (k + 3) * x.itemsize * p + 100_000
    again = pickle.loads(stored)  # noqa: S301 - made above
    np.testing.assert_array_equal(again.transform(x), ours.transform(x))
    for name in ("components_", "mean_", "explained_variance_", "noise_variance_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(ours, name))
    if method == "covariance":
        for each in (again, pickle.loads(pickle.dumps(again))):  # noqa: S301 - made on this line
            np.testing.assert_array_equal(each.var_, ours.var_)


def test_partial_fit_after_a_pickled_fit_says_what_to_do(tmp_path):
    ours = PCA(4, method="covariance").fit(DIGITS[:1000])
    with pytest.raises(
        ModelError, match=r"is not pickled with a fit; give all .*, or store the model with model_.save"
    ):
        pickle.loads(pickle.dumps(ours)).partial_fit(DIGITS[1000:])  # noqa: S301 - made on this line
    ours.model_.save(tmp_path / "model.zarr")
    model = streampca.load(tmp_path / "model.zarr", statistic=True)
    batches = PCA(4).partial_fit(DIGITS[:1000])
    for each in (PCA.from_model(model), ours, batches):
        again = pickle.loads(pickle.dumps(each)) if each is not ours else each  # noqa: S301 - made on this line
        whole = again.partial_fit(DIGITS[1000:])
        np.testing.assert_allclose(whole.components_, PCA(4).fit(DIGITS).components_, atol=1e-9)
    assert len(pickle.dumps(batches)) < 8 * 64 * (64 + 2 * len(DIGITS))


@pytest.mark.parametrize("estimator", [
    streampca.ActionRespectingEmbedding(), streampca.ClassicalMDS(), streampca.Isomap(), streampca.SpectralClustering(),
    streampca.SpectralEmbedding(affinity="rbf"),
], ids=lambda estimator: type(estimator).__name__)  # fmt: skip
def test_what_fit_does_not_take_is_refused_by_all_that_fit(estimator):
    for name in {"fit_transform", "fit_predict"} & set(dir(estimator)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'sample_weight'"):
            getattr(estimator, name)(DIGITS[:40], np.zeros(39), sample_weight=np.ones(40))


def test_parameters_and_clone():
    preparation = Preparation(bin=2)
    given = PCA(3, whiten=True, run=Run(memory="64 MiB"), precision="double", preparation=preparation, random_state=7)
    given.set_params(tol=1e-6, max_passes=3)
    params = given.get_params()
    assert params == {
        "n_components": 3, "whiten": True, "method": "auto", "run": Run(memory="64 MiB"), "precision": "double",
        "preparation": preparation, "random_state": 7, "tol": 1e-6, "max_passes": 3, "half_life": None,
        "tol_variance": None, "missing": "error",
    }  # fmt: skip
    copy = clone(given)
    assert copy.get_params().keys() == params.keys()
    assert not hasattr(copy, "model_")
    assert given.set_params(n_components=2).n_components == 2


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(DIGITS, columns=[f"pixel {j}" for j in range(64)])
    ours = PCA(n_components=3).set_output(transform="pandas").fit(frame)
    scores = ours.transform(frame)
    assert list(scores.columns) == ["pca0", "pca1", "pca2"]
    np.testing.assert_allclose(scores, PCA(n_components=3).fit_transform(DIGITS))
    assert list(ours.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        ours.transform(frame.rename(columns={"pixel 0": "other"}))


@pytest.mark.parametrize(
    ("estimator", "target"),
    [
        (streampca.FisherDiscriminant(2), "classes"),
        (streampca.SlicedInverseRegression(2), "numbers"),
        (streampca.KernelPCA(14), None),  # the last columns are 0, as the samples have 12 features
    ],
    ids=["fisher", "sliced", "kernel"],
)
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_scores_that_an_estimator_changes_are_frames(estimator, target, library):
    pytest.importorskip(library)
    rows = DIGITS[::4, 18:30]
    y = {"classes": TARGETS[::4], "numbers": rows.sum(axis=1), None: None}[target]
    plain = clone(estimator).fit(rows, y)
    ours = clone(estimator).set_output(transform=library).fit(rows, y)
    scores = ours.transform(rows)
    assert list(scores.columns) == list(ours.get_feature_names_out())
    np.testing.assert_array_equal(scores.to_numpy(), plain.transform(rows))
    if target is not None:
        np.testing.assert_array_equal(ours.inverse_transform(scores), plain.inverse_transform(scores.to_numpy()))


def test_random_states():
    for state in (0, 3, np.random.RandomState(3), None):
        ours = PCA(n_components=3, random_state=state).fit(DIGITS)
        np.testing.assert_array_equal(ours.components_, PCA(n_components=3).fit(DIGITS).components_)


# -- beyond scikit-learn: images, paths, lazy arrays


IMAGES = DIGITS.astype(np.uint8).reshape(-1, 8, 8)


def test_images():
    ours = PCA(n_components=4).fit(IMAGES)
    assert ours.n_features_in_ == 64
    assert ours.components_.shape == (4, 64)
    assert ours.model_.components.shape == (4, 8, 8)
    scores = ours.transform(IMAGES)
    expected = decomposition.PCA(4, svd_solver="full").fit(DIGITS)
    np.testing.assert_allclose(scores, expected.transform(DIGITS), atol=1e-3)
    assert ours.inverse_transform(scores).shape == IMAGES.shape
    np.testing.assert_allclose(ours.transform(DIGITS), scores, atol=1e-3)
    assert PCA(n_components=4).fit_transform(IMAGES).shape == (len(IMAGES), 4)


def test_colour_images_with_a_preparation():
    colours = np.random.default_rng(0).integers(0, 256, (50, 8, 6, 3), dtype=np.uint8)
    ours = PCA(n_components=2, preparation=Preparation(grey=True, bin=2)).fit(colours)
    assert (ours.n_features_in_, ours.components_.shape) == (8 * 6 * 3, (2, 12))
    scores = ours.transform(colours)
    assert scores.shape == (50, 2)
    assert ours.inverse_transform(scores).shape == (50, 4, 3)


def write_files(folder):
    from PIL import Image

    paths = [folder / f"{number}.png" for number in range(12)]
    for path, image in zip(paths, IMAGES, strict=False):
        Image.fromarray(image).save(path)
    return paths


def write_npy(folder):
    np.save(folder / "images.npy", IMAGES)
    return folder / "images.npy"


@pytest.mark.parametrize(
    "given",
    [
        write_npy,
        lambda folder: str(write_npy(folder)),
        write_files,
        lambda folder: da.from_array(IMAGES, chunks=(500, 8, 3)),
        lambda folder: da.from_array(IMAGES.reshape(-1, 64), chunks=(500, 64)),
        lambda folder: streampca.open_collection(IMAGES),
    ],
    ids=["path", "text", "files", "dask", "dask, flat", "collection"],
)
def test_other_kinds_of_samples(given, tmp_path):
    """Analysed as arrays in memory are, and mapped when asked for."""
    samples = given(tmp_path)
    ours = PCA(n_components=4, run=Run(memory="64 MiB")).fit(samples)
    images = IMAGES[: ours.n_samples_]
    theirs = PCA(n_components=4).fit(images)
    np.testing.assert_array_equal(ours.components_, theirs.components_)
    scores = ours.transform(samples)
    assert isinstance(scores, da.Array)
    assert isinstance(PCA(n_components=4).fit_transform(samples), da.Array)
    np.testing.assert_allclose(scores.compute(), theirs.transform(images), atol=1e-5)
    back = ours.inverse_transform(scores)
    assert isinstance(back, da.Array)
    expected = theirs.inverse_transform(theirs.transform(images))
    np.testing.assert_allclose(back.compute().reshape(expected.shape), expected, atol=1e-4)


# -- what is refused


def test_before_fit():
    for call in ("transform", "inverse_transform"):
        with pytest.raises(NotFittedError):
            getattr(PCA(), call)(DIGITS)
    with pytest.raises(NotFittedError):
        PCA().get_feature_names_out()


@pytest.mark.parametrize(("options", "message"), [
    ({"n_components": -1}, "whole number of at least 1"),
    ({"n_components": True}, "whole number of at least 1"),
    ({"n_components": 65}, "must be between 0 and min(n_samples, n_features)=64, .*; ask for at most that"),
    ({"run": Run(memory="much")}, "512MiB"),
    ({"run": Run(memory="1 MiB")}, "at least"),
])  # fmt: skip
def test_parameters_out_of_range(options, message):
    with pytest.raises((RequestError, MemoryError), match=re.escape(message).replace(r"\.\*", ".*")):
        PCA(**options).fit(DIGITS)


def test_samples_of_another_shape():
    ours = PCA(n_components=2).fit(IMAGES)
    for wrong in (IMAGES[:, :7], DIGITS[:, :60], IMAGES[0]):
        with pytest.raises(ModelError, match="8 x 8"):
            ours.transform(wrong)
    with pytest.raises(RequestError, match="1 to 2 components"):
        ours.inverse_transform(np.zeros((3, 5)))


def test_masked_tables_are_refused():
    x = np.ma.masked_array(np.arange(40.0).reshape(10, 4) ** 2, np.zeros((10, 4), bool))
    estimator = PCA(n_components=2).fit(x)
    x[3, 1] = np.ma.masked
    for call in (estimator.fit, estimator.transform):
        with pytest.raises(ValueError, match="sample 3 of numpy array holds NaN"):
            call(x)
    with pytest.raises(RequestError, match="sample_weight of sample 3 of numpy array is nan"):
        PCA(n_components=2).fit(x.data, sample_weight=x[:, 1])


def test_unfitted_repr_is_scikit_learns():
    assert repr(PCA(n_components=3)) == "PCA(n_components=3)"


@pytest.mark.parametrize("name", sorted(name for name in vars(PCA) if name.endswith("_") and name[0] != "_"))
def test_an_attribute_of_a_fit_names_itself_before_it(name):
    with pytest.raises(NotFittedError, match=f"not fitted yet and has no {name}; call fit first"):
        getattr(PCA(), name)
    assert not hasattr(PCA(), name)
