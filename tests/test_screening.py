"""Supervised principal components: features kept by their correlation with a number, and what predicts it."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import by_options
import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from judged import warnings
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import streampca
from streampca import PCA, Preparation, SupervisedPrincipalComponents
from streampca.cli.commands import cli
from streampca.errors import BudgetError, StreampcaError
from streampca.planning.screening import STEP

DIGITS, LABELS = load_digits(return_X_y=True)
TWO = (LABELS == 2) | (LABELS == 3)
ROWS, NUMBERS = DIGITS[TWO], LABELS[TWO] + 0.5


def commanded(*words):
    """Run a command and return its output."""
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def fitted(x=ROWS, target=NUMBERS, n_components=2, **options):
    return by_options.fit(
        x, kind="supervised-principal-components", target=target, n_components=n_components, **options
    )


def planted(n=100, p=2000, few=30, seed=0):
    """Return samples in which few features have to do with a number, and most with others of larger variance."""
    rng = np.random.default_rng(seed)
    latent, x = rng.normal(size=n), rng.normal(size=(n, p))
    x[:, :few] += 0.8 * latent[:, None]
    x[:, few:] += rng.normal(size=(n, 4)) @ rng.normal(size=(4, p - few))
    return x, latent + 0.5 * rng.normal(size=n)


def directly(x, y, weights, size, k):
    """Return the regression on k components of the features of the largest scores, by dense matrices."""
    mean, level = np.average(x, axis=0, weights=weights), np.average(y, weights=weights)
    roots = np.sqrt(weights)
    about, late = (x - mean) * roots[:, None], (y - level) * roots
    with np.errstate(invalid="ignore"):
        scores = np.nan_to_num(about.T @ late / np.sqrt(np.sum(about**2, axis=0)))
    own = np.sort(np.argsort(-np.abs(scores), kind="stable")[:size])
    vectors = np.linalg.svd(about[:, own], full_matrices=False)[2][:k]
    slope = np.zeros(x.shape[1])
    slope[own] = vectors.T @ np.linalg.lstsq(about[:, own] @ vectors.T, late, rcond=1e-12)[0]
    kept = np.isin(np.arange(len(slope)), own)
    correlation = scores / np.linalg.norm(late)
    return SimpleNamespace(mean=mean, level=level, slope=slope, kept=kept, correlation=correlation)


def predicted(found, x):
    return found.level + (x - found.mean) @ found.slope


def left_out_errors(x, y, weights, sizes, k, folds=5):
    """Return the error of predicting left-out samples, over that of the mean, for each number of features."""
    codes = np.full(len(x), -1)
    codes[weights > 0] = np.random.default_rng(0).permutation(int((weights > 0).sum())) % folds
    errors, spread = np.zeros(len(sizes)), 0.0
    for fold in range(folds):
        out, rest = codes == fold, (codes >= 0) & (codes != fold)
        spread += weights[out] @ (y[out] - np.average(y[rest], weights=weights[rest])) ** 2
        for place, size in enumerate(sizes):
            found = directly(x[rest], y[rest], weights[rest], size, k)
            errors[place] += weights[out] @ (y[out] - predicted(found, x[out])) ** 2
    return errors / spread


# -- against dense matrices


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("data", ["digits", "wide"])
def test_features_components_and_errors_are_those_of_dense_matrices(data, weighted):
    # Without pixels that few digits reach: two that only one digit reaches have the same score but for rounding.
    x, y = (ROWS[:, np.count_nonzero(ROWS, axis=0) > 20], NUMBERS) if data == "digits" else planted(60, 300, 10)
    weights = np.random.default_rng(1).integers(0, 3, len(x)).astype(float) if weighted else np.ones(len(x))
    model = fitted(x, y, sample_weight=weights if weighted else None)
    sizes = model.tried_features
    assert (sizes[0], sizes[-1]) == (2, x.shape[1])
    assert (np.diff(sizes) > 0).all()
    assert (sizes[1:] <= STEP * (sizes[:-1] + 1)).all()
    np.testing.assert_allclose(model.cv_error, left_out_errors(x, y, weights, sizes, 2), atol=1e-8)
    best = sizes[np.argmin(model.cv_error)]
    expected = directly(x, y, weights, best, 2)
    np.testing.assert_allclose(model.correlation, expected.correlation, atol=1e-8)
    np.testing.assert_array_equal(model.kept, expected.kept)
    assert model.n_kept == best
    assert model.threshold == np.abs(model.correlation[model.kept]).min()
    np.testing.assert_allclose(model.predict(x), predicted(expected, x), atol=1e-8)
    scores = model.transform(x)
    np.testing.assert_allclose(
        scores.T @ (scores * weights[:, None]) / (weights.sum() - 1), np.diag(model.explained_variance), atol=1e-8
    )
    explained = 1 - weights @ (y - model.predict(x)) ** 2 / (weights @ (y - np.average(y, weights=weights)) ** 2)
    assert model.target_share.sum() == pytest.approx(explained, abs=1e-8)
    total = weights @ np.sum((x - expected.mean) ** 2, axis=1) / (weights.sum() - 1)
    assert model.total_variance == pytest.approx(total, rel=1e-10)


def test_a_threshold_is_a_correlation_and_0_keeps_everything():
    model = fitted(threshold=0.3, n_components=3)
    np.testing.assert_array_equal(model.kept, np.abs(model.correlation) >= 0.3)
    expected = directly(ROWS, NUMBERS, np.ones(len(ROWS)), model.n_kept, 3)
    np.testing.assert_allclose(model.predict(ROWS), predicted(expected, ROWS), atol=1e-8)
    assert not model.components[:, ~model.kept].any()
    assert not len(model.tried_features)
    assert not len(model.cv_error)
    everything, plain = fitted(threshold=0.0, n_components=3), streampca.fit(ROWS, n_components=3)
    np.testing.assert_allclose(everything.components, plain.components, atol=1e-8)
    np.testing.assert_allclose(everything.explained_variance, plain.explained_variance)
    scores = plain.transform(ROWS)
    regression = LinearRegression().fit(scores, NUMBERS)
    np.testing.assert_allclose(everything.predict(ROWS), regression.predict(scores), atol=1e-8)
    np.testing.assert_allclose(everything.coefficients, regression.coef_, atol=1e-8)


def test_a_share_of_components_is_of_the_features_kept():
    few, every = fitted(threshold=0.3, n_components=0.8), fitted(threshold=0.3, n_components=None)
    shares = np.cumsum(every.explained_variance) / every.explained_variance.sum()
    assert every.n_components == every.n_kept
    assert few.n_components == np.searchsorted(shares, 0.8) + 1
    least_squares = LinearRegression().fit(ROWS[:, every.kept], NUMBERS)
    np.testing.assert_allclose(every.predict(ROWS), least_squares.predict(ROWS[:, every.kept]), atol=1e-8)


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_any_blocks_and_order_give_the_same(monkeypatch, dtype):
    """Several blocks a pass, in single precision; and in another order, which deals the samples otherwise."""
    x, y = DIGITS.astype(dtype), np.sin(LABELS) + LABELS
    blocks = [fitted(x, y, precision="single")]
    monkeypatch.setattr("streampca.planning.blocks.BLOCKS", (2**14,))
    blocks.append(fitted(x, y, precision="single"))
    assert (
        blocks[1].provenance["plan"]["block_rows"] < len(x) // 6 < len(x) == blocks[0].provenance["plan"]["block_rows"]
    )
    for name in ("correlation", "cv_error", "threshold", "target_share"):
        np.testing.assert_allclose(getattr(blocks[1], name), getattr(blocks[0], name), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(blocks[1].kept, blocks[0].kept)
    order = np.random.default_rng(0).permutation(len(x))
    there, back = fitted(DIGITS, y, threshold=0.2), fitted(DIGITS[order], y[order], threshold=0.2)
    np.testing.assert_allclose(back.predict(DIGITS), there.predict(DIGITS), atol=1e-9)


def test_weights_are_copies_where_the_threshold_is_given():
    weights = np.random.default_rng(0).integers(0, 3, len(ROWS))
    ours = fitted(sample_weight=weights.astype(float), threshold=0.25)
    copies = fitted(np.repeat(ROWS, weights, axis=0), np.repeat(NUMBERS, weights), threshold=0.25)
    np.testing.assert_allclose(ours.predict(ROWS), copies.predict(ROWS), atol=1e-9)
    assert ours.n_samples == np.count_nonzero(weights)


# -- many features


@pytest.mark.slow
def test_few_features_of_many_predict_better_than_components_of_all():
    """Of held-out samples, where most features have to do with other things: by a clear margin, seed by seed."""
    for seed in range(2):
        x, y = planted(300, 1000, 12, seed=seed)
        train, test = slice(0, 100), slice(100, None)
        found = SupervisedPrincipalComponents().fit(x[train], y[train])
        assert found.kept_[:12].sum() > 3 * found.kept_[12:].sum()
        score = found.score(x[test], y[test])
        others = [make_pipeline(PCA(k), LinearRegression()).fit(x[train], y[train]) for k in (1, 5, 20)]
        assert score > 0.15 + max(other.score(x[test], y[test]) for other in others)
        assert 1 - found.cv_error_.min() == pytest.approx(score, abs=0.15)  # nothing left out is seen in training


def test_nothing_that_is_left_out_is_seen_in_choosing_features():
    """Of noise, features that all samples have chosen would seem to predict the left-out ones."""
    rng = np.random.default_rng(0)
    noise = fitted(rng.normal(size=(50, 500)), rng.normal(size=50), n_components=1)
    assert noise.cv_error.min() > 0.8
    assert noise.target_share.sum() > 0.3


def test_with_less_memory_fewer_features_are_tried():
    x, y = planted()
    few = fitted(x, y, memory="16 MiB")
    tried = few.provenance["plan"]["product_features"]
    assert 64 <= tried < 400
    most = few.tried_features[-1]
    assert 2 <= most <= tried
    np.testing.assert_allclose(few.cv_error, left_out_errors(x, y, np.ones(len(x)), few.tried_features, 2), atol=1e-8)
    np.testing.assert_array_equal(few.kept, directly(x, y, np.ones(len(x)), few.n_kept, 2).kept)


def test_a_best_number_that_is_the_largest_tried_is_told(tmp_path):
    rng = np.random.default_rng(0)
    latent = rng.normal(size=200)
    x, events = latent[:, None] + 3 * rng.normal(size=(200, 2000)), []
    model = fitted(x, latent, 1, memory="16 MiB", listener=events.append)
    (said,) = warnings(events)
    threshold = float(re.search(r"by a threshold below (\S+) \(threshold\)", said)[1])
    assert fitted(x, latent, 1, threshold=0.95 * threshold).n_kept > model.n_kept


# -- stored, shown and applied


def test_a_model_is_stored_shown_and_applied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, names = ROWS.reshape(-1, 8, 8).astype("u1"), np.where(LABELS[TWO] == 2, "two", "three")
    np.save("x.npy", images)
    (tmp_path / "t.csv").write_text("name\n" + "\n".join(names))
    words = ["x.npy", "--kind", "supervised-principal-components", "--target", "t.csv:name", "-k", 2, "--n-folds", 4]
    assert "screening: scores of single features in one pass" in commanded("plan", *words)
    told = commanded("fit", *words, "-o", "m.zarr") + commanded("inspect", "m.zarr")
    assert "SupervisedComponentsModel" in told
    assert re.search(r"supervised principal components of \d+ of 64 features", " ".join(told.split()))
    shown = json.loads(commanded("inspect", "m.zarr", "--json", "--verify"))
    assert shown["kind"] == "supervised-principal-components"
    assert "correlation" not in shown
    model = streampca.load("m.zarr")
    assert shown["n_kept"] == model.n_kept
    assert model.classes.tolist() == ["three", "two"]
    ours = fitted(images, names, n_folds=4)
    np.testing.assert_array_equal(model.kept, ours.kept)
    np.testing.assert_array_equal(model.correlation, ours.correlation)
    found = model.predict(images)
    np.testing.assert_array_equal(found, ours.predict(images))
    assert np.mean((found > 0.5) == (names == "two")) > 0.95
    lazy = model.predict(da.from_array(images, chunks=(50, 8, 8)))
    np.testing.assert_allclose(lazy.compute(), found, atol=1e-6)  # blocks of other sizes are rounded as float32
    np.testing.assert_allclose(model.predict("x.npy").compute(), found, atol=1e-5)
    commanded("transform", "m.zarr", "x.npy", "-o", "s.npy", "--whiten")
    np.testing.assert_allclose(np.load("s.npy").std(axis=0, ddof=1), 1, rtol=1e-5)
    rebuilt = model.reconstruct(images.astype(float))
    assert (rebuilt[:, ~model.kept] == model.mean[~model.kept]).all()
    dataset = model.to_xarray()
    assert dataset["kept"].dims == dataset["mean"].dims
    with pytest.raises(AttributeError, match=r"'score_samples', which needs principal components; fit a model of kind"):
        model.score_samples(images)


def test_pixels_outside_a_mask_are_neither_kept_nor_scored(tmp_path):
    mask = np.arange(64).reshape(8, 8) % 3 > 0
    model = fitted(ROWS.reshape(-1, 8, 8), preparation=Preparation(mask=mask), threshold=0.1)
    model.save(tmp_path / "m.zarr")
    for each in (model, streampca.load(tmp_path / "m.zarr")):
        assert not each.kept[~mask].any()
        np.testing.assert_array_equal(np.isnan(each.correlation), ~mask)
        assert (each.components[:, mask & ~each.kept] == 0).all()
        assert each.kept.dtype == bool
    estimator = SupervisedPrincipalComponents(2, threshold=0.1, preparation=Preparation(mask=mask.ravel()))
    estimator.fit(ROWS, NUMBERS)
    np.testing.assert_array_equal(estimator.kept_, model.kept[mask])
    np.testing.assert_allclose(estimator.correlation_, model.correlation[mask])


def test_run_files_and_the_estimator_give_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", ROWS)
    np.save("y.npy", NUMBERS)
    text = (
        "collection: {source: x.npy, target: y.npy}\nmodel: {kind: supervised-principal-components, n_components: 2, "
    )
    (tmp_path / "run.yaml").write_text(text + "threshold: 0.2, n_folds: 3}\noutput: {model: m.zarr}\n")
    commanded("run", "run.yaml", "-q")
    estimator = SupervisedPrincipalComponents(2, threshold=0.2).fit(ROWS, NUMBERS)
    model = streampca.load("m.zarr")
    np.testing.assert_array_equal(estimator.predict(ROWS), model.predict(ROWS))
    np.testing.assert_array_equal(estimator.transform(ROWS), model.transform(ROWS))
    np.testing.assert_array_equal(estimator.coefficients_, model.coefficients)
    assert estimator.threshold_ == 0.2
    assert not hasattr(estimator, "classes_")
    whitened = SupervisedPrincipalComponents(2, threshold=0.2, whiten=True).fit(ROWS, NUMBERS)
    np.testing.assert_array_equal(whitened.predict(ROWS), estimator.predict(ROWS))
    assert estimator.get_feature_names_out().tolist() == [f"supervisedprincipalcomponents{k}" for k in range(2)]


@parametrize_with_checks([SupervisedPrincipalComponents()])
@pytest.mark.filterwarnings("ignore::FutureWarning")  # scikit-learn announces changes of its own
def test_scikit_learn_contract(estimator, check):
    if check.func.__name__.startswith("check_sample_weight_equivalence"):
        pytest.skip("copies of a sample may be of several folds, a weighted sample is of one; see above for thresholds")
    check(estimator)


# -- refusals


@pytest.mark.parametrize(("options", "message"), [
    ({"target": np.full(len(ROWS), 3)}, r"is \[3.0\] for every sample, from which nothing can be learned"),
    ({"target": None}, "learns from a label or number of each sample"),
    ({"target": LABELS[TWO].astype(str) + np.resize(["a", "b"], len(ROWS))}, "has 4 labels, and kind 'supervised-p"),
    ({"target": np.where(NUMBERS > 3, np.inf, 1)}, r"the target of sample 1 of numpy array is \[inf\]"),
    ({"target": np.ones((len(ROWS), 2))}, "give one number or text for each sample"),
    ({"threshold": 0.99}, r"no feature of numpy array reach a correlation of 0.99 .* at most 0.8\d*, or 'auto'"),
    ({"threshold": 0.7, "n_components": 30}, r"\d+ of the 64 features .* takes 30 at least; give a threshold of at"),
    ({"threshold": 1}, "threshold = 1: give a number of at least 0 and below 1"),
    ({"threshold": "best"}, "threshold = 'best': give a number .* or 'auto'"),
    ({"n_folds": 1}, "n_folds"),
    ({"n_folds": 500}, "n_folds=500 exceeds the 360 samples; ask for at most as many, or give a threshold"),
    ({"n_components": 65}, "n_components=65 exceeds 64, the most that 360 samples of 64 features have"),
    ({"n_components": "elbow"}, "'elbow' counts principal components of all features"),
    ({"missing": "em"}, "missing = 'em': give 'error'"),
    ({"part": "1/2"}, "are not merged from parts of a collection"),
    ({"memory": "4 MiB"}, r"method 'screening' needs .* Set memory to at least"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_line(options, message):
    with pytest.raises(StreampcaError, match=message) as said:
        fitted(**options)
    assert "\n" not in str(said.value)


def test_the_options_of_screening_are_refused_for_other_kinds():
    for name, value in (("threshold", 0.3), ("n_folds", 3)):
        with pytest.raises(TypeError, match=f"'{name}' is an option of kinds of model"):
            by_options.fit(ROWS, **{name: value})


def test_samples_that_do_not_vary_with_the_target_are_refused():
    x = np.tile(ROWS[:10], (2, 1))
    with pytest.raises(StreampcaError, match="no feature of numpy array correlates with the target at all"):
        fitted(x[:, :1] * 0 + np.resize([0.0, 1.0], (20, 1)), np.repeat([0.0, 1.0], 10), 1)
    with pytest.raises(StreampcaError, match="has no variance"):
        fitted(np.ones((20, 5)), np.arange(20), 1)


def test_remedies_of_refusals_work():
    with pytest.raises(StreampcaError) as said:
        fitted(threshold=0.99)
    highest = float(re.search(r"at most ([0-9.]+),", str(said.value))[1])
    assert fitted(threshold=highest, n_components=1).n_kept >= 1
    x, y = planted()
    with pytest.raises(BudgetError, match="reach a correlation of 0 with the target, and memory allows") as said:
        fitted(x, y, threshold=0, memory="16 MiB")
    least = float(re.search(r"a threshold of at least ([0-9.]+), or more memory", str(said.value))[1])
    assert fitted(x, y, threshold=least, memory="16 MiB").n_kept > 200
    with pytest.raises(BudgetError) as said:
        fitted(memory="4 MiB")
    assert fitted(memory=re.search(r"Set memory to at least (\d+MiB)", str(said.value))[1]).n_kept
