"""Missing values: every entry point follows the rule for tables and images, in Python, commands and run files."""

from __future__ import annotations

import json
from itertools import product

import by_options
import dask.array as da
import numpy as np
import pytest
from scipy.linalg import subspace_angles
from shell import DATA, refused, succeeded, typed

import streampca
from streampca import PCA, Preparation
from streampca.errors import BudgetError, DataError, RequestError, StreampcaError
from streampca.events import Converging, PassStarted, Warned
from streampca.fitting.methods import em

N, SHAPE = 90, (6, 5)
LAND = (0, 2)  # missing in every sample
HOLES = {4: (1, 1), 17: (3, 3), 60: (1, 1)}  # sample: missing pixel
WHOLE = np.array([at not in HOLES for at in range(N)])
RIGID = {"n_components": 3, "precision": "double", "memory": "64 MiB"}


def field(seed=0, *, land=True):
    """Return images of which a few have a missing pixel, and one pixel is missing in all of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 4)) @ rng.normal(size=(4, 30)) + 0.1 * rng.normal(size=(N, 30)) + 7
    x = x.reshape(N, *SHAPE)
    for at, pixel in HOLES.items():
        x[(at, *pixel)] = np.inf if at == 17 else np.nan
    if land:
        x[(slice(None), *LAND)] = np.nan
    return x


def without(*pixels):
    """Return a mask of all pixels but these."""
    mask = np.ones(SHAPE, bool)
    for pixel in pixels:
        mask[pixel] = False
    return mask


def assert_same(ours, theirs):
    np.testing.assert_array_equal(ours.explained_variance, theirs.explained_variance)
    np.testing.assert_array_equal(ours.components, theirs.components)
    np.testing.assert_array_equal(ours.mean, theirs.mean)


@pytest.mark.parametrize("method", ["covariance", "dual", "randomized"])
def test_samples_left_out_are_as_if_they_were_not_there(method, tmp_path):
    np.save(tmp_path / "x.npy", field())
    ours = by_options.fit(tmp_path / "x.npy", missing="drop-samples", method=method, **RIGID)
    kept = Preparation(mask=without(LAND))
    assert_same(ours, by_options.fit(field()[WHOLE], preparation=kept, method=method, **RIGID))
    assert ours.n_samples == N - len(HOLES)
    dropped = ours.provenance["dropped"]
    assert dropped["samples"] == len(HOLES)
    assert [name.split()[1] for name, _ in dropped["listed"]] == ["4", "17", "60"]
    assert dropped["listed"][0][1] == "holds NaN or infinity in 1 of its 29 features"


@pytest.mark.parametrize("given", [None, without((0, 0)), "valid"])
def test_features_left_out_are_those_of_mask_valid(given):
    x = field()
    ours = by_options.fit(x, missing="drop-features", preparation=Preparation(mask=given), **RIGID)
    mask = without(LAND, *HOLES.values(), *([(0, 0)] if isinstance(given, np.ndarray) else []))
    assert_same(ours, by_options.fit(x, preparation=Preparation(mask=mask), **RIGID))
    np.testing.assert_array_equal(ours.mask, mask)
    assert "dropped" not in ours.provenance


@pytest.mark.parametrize("rule", ["drop-features", "drop-samples"])
def test_nothing_is_left_out_where_nothing_is_missing(rule):
    x = np.random.default_rng(0).normal(size=(50, *SHAPE))
    for values in (x, (40 * x).astype("i2")):
        events = []
        ours = by_options.fit(values, missing=rule, listener=events.append, **RIGID)
        assert_same(ours, by_options.fit(values, **RIGID))
        labels = [event.label for event in events if isinstance(event, PassStarted)]
        assert labels == ["valid pixels" if rule == "drop-features" else "complete samples"] * (
            values.dtype.kind == "f"
        ) + ["scatter matrix"]


def test_weights_are_those_of_the_samples_that_are_left():
    weights = np.random.default_rng(1).random(N)
    ours = by_options.fit(field(), missing="drop-samples", sample_weight=weights, **RIGID)
    mask = Preparation(mask=without(LAND))
    theirs = by_options.fit(field()[WHOLE], preparation=mask, sample_weight=weights[WHOLE], **RIGID)
    assert_same(ours, theirs)
    estimator = PCA(3, missing="drop-samples", precision="double", preparation=mask)
    estimator.fit(field(), sample_weight=weights)
    np.testing.assert_array_equal(estimator.explained_variance_, theirs.explained_variance)
    with pytest.raises(RequestError, match="89 values"):
        streampca.fit(field(), streampca.PCA(missing="drop-samples"), sample_weight=weights[1:])


@pytest.mark.parametrize("images", [True, False])
def test_estimator(images):
    x = field(land=False)
    x = x if images else x.reshape(N, -1)
    with pytest.raises(DataError, match=r"sample 4 .*drop-samples"):
        PCA(3).fit(x)
    ours = PCA(3, missing="drop-samples", precision="double").fit(x)
    theirs = PCA(3, precision="double").fit(x[WHOLE])
    np.testing.assert_array_equal(ours.components_, theirs.components_)
    assert ours.n_samples_ == N - len(HOLES)
    scores = ours.transform(x)
    assert scores.shape == (N, 3)
    np.testing.assert_array_equal(np.isnan(scores).all(axis=1), ~WHOLE)
    np.testing.assert_array_equal(scores[WHOLE], theirs.transform(x[WHOLE]))
    fewer = PCA(3, missing="drop-features").fit(x)
    assert np.isfinite(fewer.transform(x)).all()
    assert ours.__sklearn_tags__().input_tags.allow_nan
    assert not theirs.__sklearn_tags__().input_tags.allow_nan
    for rule in ("drop-features", "drop-samples", "em"):
        with pytest.raises(AttributeError) as error:
            PCA(3, missing=rule).partial_fit(x)
        assert f"missing='{rule}' needs a pass over all samples" in str(error.value.__cause__)


FORMS = {
    "numpy": lambda x, path: x,
    "dask": lambda x, path: da.from_array(x, (20, -1, -1)),
    "file": lambda x, path: path,
}


@pytest.fixture(scope="module")
def models():
    x = field(land=False)[WHOLE]
    return {rule: by_options.fit(x, missing=rule, **RIGID) for rule in ("error", "drop-features", "drop-samples")}


@pytest.mark.parametrize("name", ["transform", "reconstruct", "residual", "reconstruction_error", "hotelling_t2"])
@pytest.mark.parametrize("form", FORMS)
def test_models_apply_the_rule_to_other_samples(models, tmp_path, name, form):
    x = field(land=False)
    np.save(tmp_path / "x.npy", x)

    def applied(model, **how):
        return np.asarray(getattr(model, name)(FORMS[form](x, tmp_path / "x.npy"), **how))

    for rule in ("error", "drop-features"):
        with pytest.raises(DataError, match=r"^sample \d+ of .* holds NaN or infinity.*missing=.drop-samples"):
            applied(models[rule])
    found = applied(models["drop-samples"])
    np.testing.assert_array_equal(found, applied(models["error"], missing="drop-samples"))
    np.testing.assert_array_equal(found[WHOLE], np.asarray(getattr(models["error"], name)(x[WHOLE])))
    assert np.isnan(found[~WHOLE]).all()
    with pytest.raises(DataError, match=r"sample \d+"):
        applied(models["drop-samples"], missing="error")
    with pytest.raises(RequestError, match="missing 'drop' is not one of error, drop-features"):
        applied(models["error"], missing="drop")


@pytest.mark.parametrize("ending", ["zarr", "npy", "csv"])
def test_commands(here, ending):
    np.save("x.npy", field())
    np.save("complete.npy", field()[WHOLE])
    line = refused("fit", "x.npy", "-k", 3, "-o", "m.zarr")
    assert "sample 0 of x.npy" in line
    said = succeeded("fit", "x.npy", "-k", 3, "--missing", "drop-samples", "-o", "m.zarr", "-q")
    assert "left out 3 samples with missing values" in said
    assert "left out    sample 17 of x.npy: holds NaN or infinity in 1 of its 29 features" in succeeded(
        "inspect", "m.zarr"
    )
    succeeded("transform", "m.zarr", "x.npy", "-o", f"all.{ending}", "-q")
    succeeded("transform", "m.zarr", "complete.npy", "-o", f"whole.{ending}", "-q")
    every, whole = read_scores(f"all.{ending}"), read_scores(f"whole.{ending}")
    np.testing.assert_array_equal(every[WHOLE], whole)
    assert np.isnan(every[~WHOLE]).all()
    assert "sample 4 of x.npy" in refused("transform", "m.zarr", "x.npy", "--missing", "error", "-o", f"no.{ending}")


def read_scores(path):
    if path.endswith(".csv"):
        return np.genfromtxt(path, delimiter=",", skip_header=1)[:, -3:]
    if path.endswith(".npy"):
        return np.load(path)
    import zarr

    return zarr.open_group(path)["scores"][:]


def test_run_file(here, undrawn):
    np.save("x.npy", field())
    with open("run.yaml", "w") as file:
        json.dump(
            {
                "collection": {"source": "x.npy"},
                "model": {"n_components": 3, "missing": "drop-samples"},
                "run": {"memory": "64MiB"},
                "output": {"directory": "out", "transform": True, "images": "back.npy", "report": True},
            },
            file,
        )
    said = succeeded("run", "run.yaml", "-q")
    assert "left out 3 samples with missing values" in said
    # As in Python, outputs have every sample; those left out are missing.
    scores, images = read_scores("out/scores.zarr"), np.load("back.npy")
    assert scores.shape == (N, 3)
    assert np.flatnonzero(np.isnan(scores).any(axis=1)).tolist() == sorted(HOLES)
    assert images.shape == (N, *SHAPE)
    assert np.isnan(images[(slice(None), *LAND)]).all()
    assert np.count_nonzero(np.isnan(images)) == len(images) - len(HOLES) + np.isnan(images[list(HOLES)]).sum()
    said = typed("run", "run.yaml", "--set", "model.missing=drop-features", "-q")
    assert "replaced: it was fitted with missing 'drop-samples' and this run has 'drop-features'" in said.err


def test_a_part_and_its_checkpoint_know_the_rule(tmp_path):
    np.save(tmp_path / "x.npy", field())
    parts = []
    for number in (1, 2):
        parts.append(tmp_path / f"{number}.zarr")
        by_options.fit(tmp_path / "x.npy", missing="drop-samples", part=(number, 2), output=parts[-1], **RIGID)
    merged = streampca.merge(parts)
    whole = by_options.fit(tmp_path / "x.npy", missing="drop-samples", **RIGID)
    np.testing.assert_allclose(merged.explained_variance, whole.explained_variance, rtol=1e-12)
    assert merged.n_samples == N - len(HOLES)


def test_a_model_that_is_updated_keeps_its_rule():
    x = field(land=False)
    first = by_options.fit(x[:50], missing="drop-samples", **RIGID)
    ours = streampca.update(first, x[50:60])
    theirs = by_options.fit(x[:60], missing="drop-samples", **RIGID)
    np.testing.assert_allclose(ours.explained_variance, theirs.explained_variance, rtol=1e-12)
    assert np.isnan(ours.transform(x)).all(axis=1).tolist() == (~WHOLE).tolist()
    with pytest.raises(DataError, match=r"sample 0 .*Leave it out with samples="):
        streampca.update(first, x[60:])


def test_what_cannot_be_left_out():
    x = field(land=False)
    with pytest.raises(RequestError, match=r"missing = 'drop-sample': give .* Did you mean 'drop-samples'"):
        streampca.fit(x, streampca.PCA(missing="drop-sample"))
    x[np.arange(N), 2, np.arange(N) % 5] = np.nan
    with pytest.raises(DataError, match=r"has 0 samples without missing values, of 90; .*missing=.drop-features"):
        streampca.fit(x, streampca.PCA(2, missing="drop-samples"))
    assert streampca.fit(x, streampca.PCA(2, missing="drop-features")).n_features == 23
    x[np.arange(N), np.arange(N) % 6] = np.nan
    with pytest.raises(DataError, match=r"no pixel that is finite in every sample; .*missing=.drop-samples"):
        streampca.fit(x, streampca.PCA(2, missing="drop-features"))


def test_plan_leaves_out_what_fit_does():
    for rule, n, p in (("drop-samples", N - 3, 29), ("drop-features", N, 27)):
        problem = streampca.plan(field(), streampca.PCA(2, missing=rule)).problem
        assert (problem.n_samples, problem.n_features) == (n, p)


def test_means_are_learned_of_what_is_left_of_features():
    x, weights = field(), np.random.default_rng(1).random(N)
    how = {"missing": "drop-features", "sample_weight": weights}
    ours = by_options.fit(x, preparation=Preparation(standardize=True), **how, **RIGID)
    left = Preparation(standardize=True, mask=without(LAND, *HOLES.values()))
    assert_same(ours, by_options.fit(x, preparation=left, sample_weight=weights, **RIGID))
    gone = ours.transform(x, missing="drop-samples")
    np.testing.assert_array_equal(gone, ours.transform(x))
    x[0, 0, 0] = np.nan
    images = ours.reconstruct(x, missing="drop-samples")
    assert np.isnan(images[0]).all()
    assert np.isfinite(images[1:, ours.mask]).all()
    with pytest.raises(RequestError, match=r"would change the samples or pixels of which standardize=True .*leave"):
        by_options.fit(x, preparation=ours.preparation, missing="drop-features", **RIGID)


@pytest.mark.parametrize("rule", ["drop-samples", "em"])
@pytest.mark.parametrize("steps", [{"anomaly": "label"}, {"detrend": True}, {"standardize": True}])
def test_means_are_learned_of_all_samples_or_refused(rule, steps):
    preparation = Preparation(**steps)
    message = rf"missing='{rule}' does not go with {next(iter(steps))}=.*use missing='drop-features'"
    with pytest.raises(RequestError, match=message):
        streampca.fit(field(), streampca.PCA(2, missing=rule), preparation=preparation)
    with pytest.raises(RequestError, match=message):
        streampca.plan(field(), streampca.PCA(2, missing=rule), preparation=preparation)
    with pytest.raises(RequestError, match=message):
        PCA(2, preparation=preparation, missing=rule).fit(field())


# -- probabilistic PCA by EM


def gaps(shape, share, seed=0, *, side=1):
    """Return which values are missing: a share of each image, in squares."""
    rng, missing = np.random.default_rng(seed), np.zeros(shape, bool)
    for image in missing:
        while image.mean() < share:
            row, column = (rng.integers(0, length - side + 1) for length in shape[1:])
            image[row : row + side, column : column + side] = True
    return missing


def angle(components, others):
    """Return the largest angle between two subspaces, in degrees."""
    rows = [np.asarray(each, np.float64).reshape(len(each), -1).T for each in (components, others)]
    return float(np.degrees(subspace_angles(*rows)).max())


def mixed(n=400, shape=(8, 9), dtype="f8", offset=0.0, noise=0.1, seed=0):
    """Return images that are sums of four patterns of different strength and noise."""
    rng = np.random.default_rng(seed)
    patterns = np.linalg.qr(rng.normal(size=(np.prod(shape), 4)))[0].T
    x = rng.normal(size=(n, 4)) * [8, 5, 3, 2] @ patterns + noise * rng.normal(size=(n, np.prod(shape))) + offset
    return x.reshape(n, *shape).astype(dtype)


def further(x, model, steps):
    """Return variances, components and noise of probabilistic PCA of rows with gaps, after steps of plain EM.

    Formulas of Tipping and Bishop, a row at a time.
    """
    n, k, seen = len(x), model.n_components, np.isfinite(x)
    noise, mean = model.provenance["missing"]["noise_variance"] * (n - 1) / n, model.mean.ravel()
    loads = model.components.reshape(k, -1).T * np.sqrt(model.explained_variance * (n - 1) / n - noise)
    for _ in range(steps):
        sides, grams = np.zeros((x.shape[1], k + 1)), np.zeros((x.shape[1], k + 1, k + 1))
        for row, there in zip(x - mean, seen, strict=True):
            own = loads[there]
            spread = np.linalg.inv(own.T @ own + noise * np.eye(k))
            z = np.append(spread @ own.T @ row[there], 1)
            second = np.outer(z, z)
            second[:k, :k] += noise * spread
            sides[there] += row[there, None] * z
            grams[there] += second
        solved = np.linalg.solve(grams, sides[..., None])[..., 0]
        noise = (np.nansum((x - mean) ** 2) - np.sum(solved * sides)) / seen.sum()
        loads, mean = solved[:, :k], mean + solved[:, k]
    vectors, sizes, _ = np.linalg.svd(loads, full_matrices=False)
    return np.square(sizes) + noise, vectors.T, noise


@pytest.fixture
def whole(monkeypatch):
    """Fits by EM hold no value out, and have no latent variables beside those asked for."""
    from streampca.accumulators import observed_regression
    from streampca.planning import em as planning

    regression = observed_regression.ObservedRegression
    monkeypatch.setattr(em, "ObservedRegression", lambda *args, **how: regression(*args, **how, held_out=0))
    em.ObservedRegression.from_state = regression.from_state
    monkeypatch.setattr(planning, "EXTRA", 0)


def test_em_finds_the_most_likely_model(whole):
    x = mixed(150, (4, 5), noise=0.7)
    x[gaps(x.shape, 0.25)] = np.nan
    ours = streampca.fit(x, streampca.PCA(3, missing="em", tol=1e-14, max_passes=400), memory="64MiB")
    values, vectors, noise = further(x.reshape(150, -1), ours, 5)  # which stay put, within the root of tol
    np.testing.assert_allclose(ours.explained_variance, values * 150 / 149, rtol=1e-7)
    assert angle(ours.components, vectors) < 1e-4
    np.testing.assert_allclose(ours.provenance["missing"]["noise_variance"], noise * 150 / 149, rtol=1e-7)


@pytest.mark.parametrize(
    ("precision", "dtype", "offset", "scale"),
    [
        *product(["single", "double"], ["f4"], [0.0, 30000.0], [1.0]),
        ("double", "f8", 1.0, 1e-100),  # whose squares are beyond float32
    ],
)
def test_em_is_near_the_complete_answer(precision, dtype, offset, scale):
    x = mixed(offset=offset) * scale
    complete = streampca.fit(x, streampca.PCA(4, precision="double"))
    x = x.astype(dtype)
    x[gaps(x.shape, 0.3, side=2)] = np.nan
    events = []
    ours = streampca.fit(x, streampca.PCA(4, missing="em", precision=precision), memory="64MiB", listener=events.append)
    assert angle(ours.components, complete.components) < 1.3  # degrees; noise of 0.1, patterns of 2 and more
    np.testing.assert_allclose(ours.explained_variance, complete.explained_variance, rtol=0.02)
    np.testing.assert_allclose(ours.total_variance, complete.total_variance, rtol=0.01)
    np.testing.assert_allclose(ours.mean, complete.mean, atol=0.4 * scale)
    found = ours.provenance["missing"]
    np.testing.assert_allclose(found["share"], np.isnan(x).mean(), rtol=1e-12)
    assert 0.09 < found["held_out"]["rmse"] / scale < 0.15 < 0.9 < found["held_out"]["rmse_of_mean"] / scale < 1.4
    shown = [event for event in events if isinstance(event, Converging)]
    assert len(shown) == ours.provenance["passes"] == shown[-1].passes
    assert shown[-1].residual <= 1e-4 < shown[0].residual
    assert "held out" in shown[-1].beside
    assert np.isnan(ours.residual_bound).all()
    assert np.isnan(ours.angle_bound).all()
    assert ours.outside is None


@pytest.mark.parametrize(("n", "features"), [(300, 16), (300, 17), (17, 40), (18, 40), (300, 30)])
def test_em_is_orthonormal_whatever_the_number_of_latent_variables(n, features):
    """With 8 latent variables, rows of vectors have 64 bytes, on which numpy 2.4 negates columns wrongly."""
    rng = np.random.default_rng(features)
    x = rng.normal(size=(n, 5)) * [8, 5, 3, 2, 1] @ rng.normal(size=(5, features))
    x += 0.1 * rng.normal(size=x.shape)
    complete = streampca.fit(x, streampca.PCA(3, precision="double"))
    x[rng.random(x.shape) < 0.05] = np.nan
    for count in (3, 4, 5):
        ours = streampca.fit(x, streampca.PCA(count, missing="em", precision="double"), memory="64MiB")
        assert abs(ours.components @ ours.components.T - np.eye(count)).max() < 1e-12
        np.testing.assert_allclose(ours.explained_variance[:3], complete.explained_variance, rtol=0.1)
        assert ours.provenance["plan"]["width"] >= count


def test_em_refuses_components_that_are_not_orthonormal(monkeypatch):
    x = mixed()
    x[gaps(x.shape, 0.1)] = np.nan
    monkeypatch.setattr(em, "fix_signs", lambda vectors: vectors * 1.001)  # as by a library that is wrong
    with pytest.raises(StreampcaError, match=r"not orthonormal \(by 2\.0e-03\).*faulty"):
        streampca.fit(x, streampca.PCA(4, missing="em"), memory="64MiB")


@pytest.mark.parametrize(("n", "noise", "worse"), [(60, 0.1, False), (12, 10.0, True)])
def test_em_says_where_held_out_values_are_predicted_worse_than_by_their_mean(n, noise, worse):
    x, events = mixed(n, noise=noise), []
    x[gaps(x.shape, 0.3)] = np.nan
    asked = {"n_components": 5, "missing": "em", "memory": "64MiB", "max_passes": 100}
    model = by_options.fit(x, listener=events.append, **asked)
    found = model.provenance["missing"]["held_out"]
    assert (found["rmse"] > found["rmse_of_mean"]) == worse
    said = [event.message for event in events if isinstance(event, Warned) and "held out" in event.message]
    assert len(said) == worse
    if worse:  # the remedy
        x = mixed(400, noise=0.1)
        x[gaps(x.shape, 0.3)] = np.nan
        found = by_options.fit(x, **asked).provenance["missing"]["held_out"]
        assert found["rmse"] < found["rmse_of_mean"]


@pytest.mark.slow
def test_em_by_ranges_and_in_pieces_is_the_same(tmp_path):
    x = mixed(300, (50, 44), dtype="f4")
    x[gaps(x.shape, 0.2, side=5)] = np.nan
    np.save(tmp_path / "x.npy", x)
    asked = {"n_components": 5, "missing": "em", "precision": "double"}
    with pytest.raises(BudgetError, match=r"method 'em' needs .* Set memory to at least \w+") as error:
        by_options.fit(tmp_path / "x.npy", memory="8MiB", **asked)
    least = str(error.value).split("at least ")[1].split()[0]
    ours = [by_options.fit(tmp_path / "x.npy", memory=memory, **asked) for memory in ("256MiB", least)]
    plans = [model.provenance["plan"] for model in ours]
    assert [plan["product_features"] for plan in plans] == [2200, 550]
    assert 4 * ours[0].provenance["passes"] == ours[1].provenance["passes"]
    assert plans[1]["memory_needed"] <= plans[1]["memory"]
    np.testing.assert_allclose(ours[0].explained_variance, ours[1].explained_variance, rtol=1e-9)
    assert angle(ours[0].components, ours[1].components) < 1e-5


def test_em_takes_weights_for_copies():
    x = mixed(200, (5, 6))
    x[gaps(x.shape, 0.2)] = np.nan
    weights = np.random.default_rng(0).integers(0, 3, 200)
    ours = streampca.fit(x, streampca.PCA(4, missing="em", tol=1e-9, max_passes=90), sample_weight=weights)
    copies = streampca.fit(x.repeat(weights, axis=0), streampca.PCA(4, missing="em", tol=1e-9, max_passes=90))
    assert ours.n_samples == np.count_nonzero(weights)
    assert ours.total_weight == weights.sum() == copies.n_samples
    np.testing.assert_allclose(ours.explained_variance, copies.explained_variance, rtol=0.02)  # held-out values differ
    assert angle(ours.components, copies.components) < 1


def test_em_masks_what_is_never_observed_and_counts_empty_samples():
    x = mixed(200, (5, 6), dtype="f4")
    x[gaps(x.shape, 0.2)] = np.nan
    x[:, 2, 3] = np.inf
    x[[7, 90]] = np.nan
    said = []
    ours = streampca.fit(x, streampca.PCA(4, missing="em"), listener=said.append)
    assert (ours.n_samples, ours.n_features) == (198, 29)
    assert not ours.mask[2, 3]
    assert any(
        "2 samples of numpy array without any value are not used" in event.message
        for event in said
        if isinstance(event, Warned)
    )
    scores = ours.transform(x)
    assert np.flatnonzero(np.isnan(scores).any(axis=1)).tolist() == [7, 90]
    images = ours.reconstruct(x)
    assert np.isnan(images[:, 2, 3]).all()
    assert np.isfinite(np.delete(images, [7, 90], axis=0)[:, ours.mask]).all()


@pytest.mark.parametrize(("wanted", "count"), [(0.9, 3), (0.999, 20), ("elbow", 4)])
def test_em_counts_components(wanted, count):
    x = mixed(200, (5, 8), noise=0.3)
    x[gaps(x.shape, 0.1)] = np.nan
    said = []
    ours = streampca.fit(x, streampca.PCA(wanted, missing="em"), listener=said.append)
    assert ours.n_components == count
    warned = [event.message for event in said if isinstance(event, Warned)]
    assert bool(warned) == (wanted == 0.999)


@pytest.mark.parametrize(("options", "message"), [
    ({"n_components": None}, "needs all variances, and missing='em' finds the leading ones"),
    ({"n_components": "mle"}, "needs all variances"),
    ({"method": "covariance"}, "method 'covariance' needs every value"),
    ({"method": "em", "missing": "error"}, "method 'em' is for missing values"),
    ({"part": (1, 2)}, "leaves no sum that parts could be merged from"),
    ({"preparation": Preparation(normalize="mean")}, "normalize 'mean' needs all values of a sample"),
])  # fmt: skip
def test_what_em_cannot_do(options, message):
    with pytest.raises(RequestError, match=message):
        by_options.fit(field(), **{"n_components": 3, "missing": "em", **options})


def test_em_starts_though_the_first_samples_have_no_weight():
    x = np.where(gaps((300, 4, 5), 0.1), np.nan, mixed(300, (4, 5)))
    weights = np.repeat([0.0, 1.0], [100, 200])
    weighted = streampca.fit(x, streampca.PCA(2, missing="em", tol=1e-7, max_passes=100), sample_weight=weights)
    alone = streampca.fit(x[100:], streampca.PCA(2, missing="em", tol=1e-7, max_passes=100))
    # Other values are held out of the two.
    np.testing.assert_allclose(weighted.explained_variance, alone.explained_variance, rtol=1e-3)


def test_em_where_it_is_not_needed():
    said, x = [], mixed(100, (4, 5))
    ours = streampca.fit(x, streampca.PCA(3, missing="em"), listener=said.append)
    assert any("leave missing='em' out" in event.message for event in said if isinstance(event, Warned))
    assert angle(ours.components, streampca.fit(x, n_components=3).components) < 0.5
    whole = (20 * x).astype("i2")
    ours = streampca.fit(whole, streampca.PCA(3, missing="em"))
    assert_same(ours, streampca.fit(whole, n_components=3))
    with pytest.raises(DataError, match="no variance"):
        streampca.fit(np.where(gaps((50, 4, 5), 0.2), np.nan, 3.0), streampca.PCA(2, missing="em"))
    with pytest.raises(DataError, match="holds no finite value"):
        streampca.fit(np.full((50, 4, 5), np.nan), streampca.PCA(2, missing="em"))
    few = []
    streampca.fit(field(land=False), streampca.PCA(3, missing="em", max_passes=1), listener=few.append)
    assert any("allow more passes (max_passes=" in event.message for event in few if isinstance(event, Warned))


# -- scores of samples that lack some values


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("whiten", [False, True])
def test_scores_are_those_of_least_squares(tmp_path, form, whiten):
    x = field(land=False)
    x[gaps(x.shape, 0.4, seed=3)] = np.nan
    x[30] = np.nan
    x[40:50] = field(1, land=False)[40:50]
    model = streampca.fit(mixed(100, SHAPE), streampca.PCA(3, precision="double"))
    np.save(tmp_path / "x.npy", x)
    found = np.asarray(model.transform(FORMS[form](x, tmp_path / "x.npy"), missing="em", whiten=whiten))
    components, mean = model.components.reshape(3, -1).T, model.mean.ravel()
    for row, scores in zip(x.reshape(N, -1), found, strict=True):
        seen = np.isfinite(row)
        expected = np.linalg.lstsq(components[seen], (row - mean)[seen])[0] if seen.any() else np.nan
        np.testing.assert_allclose(
            scores * np.sqrt(model.explained_variance) if whiten else scores, expected, rtol=1e-9, atol=1e-9
        )


def test_what_few_values_do_not_determine_is_left_at_the_mean():
    model = streampca.fit(mixed(100, SHAPE), streampca.PCA(4, precision="double"))
    x = np.full((3, 30), np.nan)
    x[0, 3] = 50.0
    x[1, [3, 4]] = 50.0
    components = model.components.reshape(4, -1)
    scores = model.transform(x, missing="em")
    along = components[:, 3] / np.linalg.norm(components[:, 3])
    np.testing.assert_allclose(scores[0], along * (along @ scores[0]), atol=1e-9)  # one value determines one direction
    np.testing.assert_allclose((scores @ components + model.mean.ravel())[0, 3], 50.0)
    assert np.isnan(scores[2]).all()


def test_what_is_filled_in_and_what_is_left(tmp_path):
    complete = mixed(200, (6, 7))
    x = complete.copy()
    x[gaps(x.shape, 0.3, side=2)] = np.nan
    model = streampca.fit(x, streampca.PCA(4, missing="em"), output=tmp_path / "m.zarr")
    for applied in (model, streampca.load(tmp_path / "m.zarr")):
        filled, left = applied.reconstruct(x), applied.residual(x)
        gone = np.isnan(x)
        assert np.sqrt(np.mean((filled - complete)[gone] ** 2)) < 0.15
        np.testing.assert_array_equal(np.isnan(left), gone)
        np.testing.assert_allclose((filled + left)[~gone], x[~gone])
        errors = applied.reconstruction_error(x)
        np.testing.assert_allclose(errors, np.nansum(left.reshape(200, -1) ** 2, axis=1), rtol=1e-9)
        scores = applied.transform(x)
        t2 = np.sum(scores**2 / applied.explained_variance, axis=1)
        np.testing.assert_allclose(applied.hotelling_t2(x), t2, rtol=1e-9)
        with pytest.raises(DataError, match=r"missing=.em"):
            applied.transform(x, missing="error")
    np.save(tmp_path / "x.npy", x)
    model.write_scores(tmp_path / "x.npy", tmp_path / "s.npy", memory="64MiB")
    np.testing.assert_allclose(np.load(tmp_path / "s.npy"), scores, rtol=1e-6, atol=1e-6)
    compression = model.write_reconstruction(tmp_path / "x.npy", tmp_path / "i.npy", memory="64MiB")
    np.testing.assert_allclose(np.load(tmp_path / "i.npy"), filled, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(compression.rmse[0] ** 2 * x.size, errors.sum(), rtol=1e-5)
    with pytest.raises(BudgetError, match="applying 4 components"):
        model.write_scores(tmp_path / "x.npy", tmp_path / "t.npy", memory="9MiB")


def test_models_that_normalize_fill_nothing_in():
    model = streampca.fit(mixed(100, SHAPE, offset=9), n_components=3, preparation=Preparation(normalize="norm"))
    with pytest.raises(RequestError, match="normalizes each sample by all its values"):
        model.transform(field(land=False), missing="em")
    scores = model.transform(field(land=False) + 9, missing="drop-samples")
    np.testing.assert_array_equal(np.isnan(scores).all(axis=1), ~WHOLE)


@pytest.mark.parametrize("images", [True, False])
def test_estimator_by_em(images):
    x = mixed(200, (5, 6))
    x[gaps(x.shape, 0.2)] = np.nan
    x = x if images else x.reshape(200, -1)
    ours = PCA(4, missing="em").fit(x)
    scores = ours.transform(x)
    assert np.isfinite(scores).all()
    filled = ours.inverse_transform(scores)
    assert np.nanstd(filled - x) < 0.15
    with pytest.raises(RequestError, match="missing='em' finds the leading ones"):
        PCA(None, missing="em").fit(x)


def test_commands_by_em(here, undrawn):
    x = mixed(120, (6, 7), dtype="f4")
    x[gaps(x.shape, 0.2)] = np.nan
    np.save("x.npy", x)
    assert "em: values may be missing" in succeeded("plan", "x.npy", "-k", 3, "--missing", "em")
    said = succeeded("fit", "x.npy", "-k", 3, "--missing", "em", "-o", "m.zarr", "-q")
    assert "not measured" in said
    said = succeeded("inspect", "m.zarr")
    assert "% of the values were missing: these are components of the most likely model" in said
    assert "values held out were predicted to 0." in said
    succeeded("transform", "m.zarr", "x.npy", "-o", "s.npy", "-q")
    assert np.isfinite(np.load("s.npy")).all()
    said = succeeded("reconstruct", "m.zarr", "x.npy", "-o", "i.npy", "-q")
    assert np.isfinite(np.load("i.npy")).all()
    with open("run.yaml", "w") as file:
        json.dump({
            "collection": {"source": "x.npy"}, "model": {"n_components": 3, "missing": "em"},
            "output": {"directory": "out", "transform": True, "report": True},
        }, file)  # fmt: skip
    succeeded("run", "run.yaml", "-q")
    np.testing.assert_array_equal(read_scores("out/scores.zarr"), np.load("s.npy"))
    with open("out/report.html", encoding="utf-8") as file:
        assert "of the values were missing" in file.read()


# -- real faces


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "frey_faces.npy").exists(), reason="frey_faces.npy is not in ../shared/data")
@pytest.mark.parametrize(("share", "side", "within"), [(0.3, 4, 3.0), (0.1, 1, 1.2)])
def test_faces(share, side, within):
    """Compare five components with those of complete faces, and errors of missing values with the mean face's."""
    x = np.load(DATA / "frey_faces.npy").astype(np.float32)
    complete = streampca.fit(x, streampca.PCA(5, precision="double"))
    missing = gaps(x.shape, share, side=side) if side > 1 else np.random.default_rng(0).random(x.shape) < share
    gone = np.where(missing, np.nan, x)
    mean = np.nanmean(gone, axis=0)
    imputed = streampca.fit(np.where(missing, mean, x), streampca.PCA(5, precision="double"))
    by_mean = angle(imputed.components, complete.components)
    ours = streampca.fit(gone, streampca.PCA(20, missing="em"), memory="64MiB")
    five = angle(ours.components[:5], complete.components)
    alone = angle(streampca.fit(gone, streampca.PCA(5, missing="em"), memory="64MiB").components, complete.components)
    filled = ours.reconstruct(gone)
    missed = np.sqrt(np.mean((filled - x)[missing] ** 2)) / np.sqrt(np.mean((mean - x)[missing] ** 2))
    print(f"{five:.2f}, {alone:.2f} degrees, by the mean {by_mean:.2f}; {missed:.2f} of the mean's error")
    assert max(five, alone) < within
    assert 2 * max(five, alone) < by_mean
    assert missed < 2 / 3
