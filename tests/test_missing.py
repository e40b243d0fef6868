"""Missing values: one rule at every door, in tables and images, in Python, commands and run files."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import pytest
from shell import refused, succeeded

import streampca
from streampca import Preparation, StreamingPCA
from streampca.errors import DataError, RequestError
from streampca.events import PassStarted

N, SHAPE = 90, (6, 5)
LAND = (0, 2)  # missing in every sample
HOLES = {4: (1, 1), 17: (3, 3), 60: (1, 1)}  # samples, and a pixel that each of them lacks
WHOLE = np.array([at not in HOLES for at in range(N)])
RIGID = {"n_components": 3, "precision": "double", "memory": "64 MiB"}


def field(seed=0, *, land=True):
    """Images with two missing pixels elsewhere, in a few of them, and one that is missing in all."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 4)) @ rng.normal(size=(4, 30)) + 0.1 * rng.normal(size=(N, 30)) + 7
    x = x.reshape(N, *SHAPE)
    for at, pixel in HOLES.items():
        x[(at, *pixel)] = np.inf if at == 17 else np.nan
    if land:
        x[(slice(None), *LAND)] = np.nan
    return x


def without(*pixels):
    """A mask of all pixels but these."""
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
    ours = streampca.fit(tmp_path / "x.npy", missing="drop-samples", method=method, **RIGID)
    kept = Preparation(mask=without(LAND))
    assert_same(ours, streampca.fit(field()[WHOLE], preparation=kept, method=method, **RIGID))
    assert ours.n_samples == N - len(HOLES)
    dropped = ours.provenance["dropped"]
    assert dropped["samples"] == len(HOLES)
    assert [name.split()[1] for name, _ in dropped["listed"]] == ["4", "17", "60"]
    assert dropped["listed"][0][1] == "holds NaN or infinity in 1 of its 29 features"


@pytest.mark.parametrize("given", [None, without((0, 0)), "valid"])
def test_features_left_out_are_those_of_mask_valid(given):
    x = field()
    ours = streampca.fit(x, missing="drop-features", preparation=Preparation(mask=given), **RIGID)
    mask = without(LAND, *HOLES.values(), *([(0, 0)] if isinstance(given, np.ndarray) else []))
    assert_same(ours, streampca.fit(x, preparation=Preparation(mask=mask), **RIGID))
    np.testing.assert_array_equal(ours.mask, mask)
    assert "dropped" not in ours.provenance


@pytest.mark.parametrize("rule", ["drop-features", "drop-samples"])
def test_nothing_is_left_out_where_nothing_is_missing(rule):
    x = np.random.default_rng(0).normal(size=(50, *SHAPE))
    for values in (x, (40 * x).astype("i2")):
        events = []
        ours = streampca.fit(values, missing=rule, listener=events.append, **RIGID)
        assert_same(ours, streampca.fit(values, **RIGID))
        labels = [event.label for event in events if isinstance(event, PassStarted)]
        assert labels == ["valid pixels" if rule == "drop-features" else "complete samples"] * (
            values.dtype.kind == "f"
        ) + ["scatter matrix"]


def test_weights_are_those_of_the_samples_that_are_left():
    weights = np.random.default_rng(1).random(N)
    ours = streampca.fit(field(), missing="drop-samples", sample_weight=weights, **RIGID)
    mask = Preparation(mask=without(LAND))
    theirs = streampca.fit(field()[WHOLE], preparation=mask, sample_weight=weights[WHOLE], **RIGID)
    assert_same(ours, theirs)
    estimator = StreamingPCA(3, missing="drop-samples", precision="double", preparation=mask)
    estimator.fit(field(), sample_weight=weights)
    np.testing.assert_array_equal(estimator.explained_variance_, theirs.explained_variance)
    with pytest.raises(RequestError, match="89 values"):
        streampca.fit(field(), missing="drop-samples", sample_weight=weights[1:])


@pytest.mark.parametrize("images", [True, False])
def test_estimator(images):
    x = field(land=False)
    x = x if images else x.reshape(N, -1)
    with pytest.raises(DataError, match=r"sample 4 .*drop-samples"):
        StreamingPCA(3).fit(x)
    ours = StreamingPCA(3, missing="drop-samples", precision="double").fit(x)
    theirs = StreamingPCA(3, precision="double").fit(x[WHOLE])
    np.testing.assert_array_equal(ours.components_, theirs.components_)
    assert ours.n_samples_ == N - len(HOLES)
    scores = ours.transform(x)
    assert scores.shape == (N, 3)
    np.testing.assert_array_equal(np.isnan(scores).all(axis=1), ~WHOLE)
    np.testing.assert_array_equal(scores[WHOLE], theirs.transform(x[WHOLE]))
    fewer = StreamingPCA(3, missing="drop-features").fit(x)
    assert np.isfinite(fewer.transform(x)).all()
    assert ours.__sklearn_tags__().input_tags.allow_nan
    assert not theirs.__sklearn_tags__().input_tags.allow_nan
    with pytest.raises(RequestError, match="missing='drop-samples' takes a pass over all samples"):
        StreamingPCA(3, missing="drop-samples").partial_fit(x)


FORMS = {
    "numpy": lambda x, path: x,
    "dask": lambda x, path: da.from_array(x, (20, -1, -1)),
    "file": lambda x, path: path,
}


@pytest.fixture(scope="module")
def models():
    x = field(land=False)[WHOLE]
    return {rule: streampca.fit(x, missing=rule, **RIGID) for rule in ("error", "drop-features", "drop-samples")}


@pytest.mark.parametrize("name", ["transform", "reconstruct", "residual", "reconstruction_error", "hotelling_t2"])
@pytest.mark.parametrize("form", FORMS)
def test_models_apply_the_rule_to_other_samples(models, tmp_path, name, form):
    x = field(land=False)
    np.save(tmp_path / "x.npy", x)

    def applied(model, **how):
        return np.asarray(getattr(model, name)(FORMS[form](x, tmp_path / "x.npy"), **how))

    for rule in ("error", "drop-features"):
        with pytest.raises(DataError, match=r"^sample \d+ of .* holds NaN or infinity.*--missing drop-samples"):
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


def test_run_file(here):
    np.save("x.npy", field())
    with open("run.yaml", "w") as file:
        json.dump(
            {
                "collection": {"source": "x.npy"},
                "fit": {"n_components": 3, "missing": "drop-samples", "memory": "64MiB"},
                "output": {"directory": "out", "transform": True, "images": "back.npy", "report": True},
            },
            file,
        )
    said = succeeded("run", "run.yaml", "-q")
    assert "left out 3 samples with missing values" in said
    # Outputs of the run are of the samples that it learned from.
    assert read_scores("out/scores.zarr").shape == (N - len(HOLES), 3)
    images = np.load("back.npy")
    assert images.shape == (N - len(HOLES), *SHAPE)
    assert np.isnan(images[(slice(None), *LAND)]).all()
    assert np.count_nonzero(np.isnan(images)) == len(images)
    assert "drop-features" in refused("run", "run.yaml", "--set", "fit.missing=drop-features")


def test_a_part_and_its_checkpoint_know_the_rule(tmp_path):
    np.save(tmp_path / "x.npy", field())
    parts = []
    for number in (1, 2):
        parts.append(tmp_path / f"{number}.zarr")
        streampca.fit(tmp_path / "x.npy", missing="drop-samples", part=(number, 2), output=parts[-1], **RIGID)
    merged = streampca.merge(parts)
    whole = streampca.fit(tmp_path / "x.npy", missing="drop-samples", **RIGID)
    np.testing.assert_allclose(merged.explained_variance, whole.explained_variance, rtol=1e-12)
    assert merged.n_samples == N - len(HOLES)


def test_a_model_that_is_updated_keeps_its_rule():
    x = field(land=False)
    first = streampca.fit(x[:50], missing="drop-samples", **RIGID)
    ours = streampca.update(first, x[50:60])
    theirs = streampca.fit(x[:60], missing="drop-samples", **RIGID)
    np.testing.assert_allclose(ours.explained_variance, theirs.explained_variance, rtol=1e-12)
    assert np.isnan(ours.transform(x)).all(axis=1).tolist() == (~WHOLE).tolist()
    with pytest.raises(DataError, match=r"sample 0 .*drop-samples"):
        streampca.update(first, x[60:])


def test_what_cannot_be_left_out():
    x = field(land=False)
    with pytest.raises(RequestError, match=r"missing 'drop-sample' is not one of .*drop-samples"):
        streampca.fit(x, missing="drop-sample")
    x[np.arange(N), 2, np.arange(N) % 5] = np.nan
    with pytest.raises(DataError, match=r"has 0 samples without missing values, of 90; .*--missing drop-features"):
        streampca.fit(x, missing="drop-samples", n_components=2)
    assert streampca.fit(x, missing="drop-features", n_components=2).n_features == 23
    x[np.arange(N), np.arange(N) % 6] = np.nan
    with pytest.raises(DataError, match=r"no pixel that is finite in every sample; .*--missing drop-samples"):
        streampca.fit(x, missing="drop-features", n_components=2)


def test_plan_leaves_out_what_fit_does():
    for rule, n, p in (("drop-samples", N - 3, 29), ("drop-features", N, 27)):
        problem = streampca.plan(field(), missing=rule, n_components=2).problem
        assert (problem.n_samples, problem.n_features) == (n, p)


def test_means_are_learned_of_what_is_left_of_features():
    x, weights = field(), np.random.default_rng(1).random(N)
    how = {"missing": "drop-features", "sample_weight": weights}
    ours = streampca.fit(x, preparation=Preparation(standardize=True), **how, **RIGID)
    left = Preparation(standardize=True, mask=without(LAND, *HOLES.values()))
    assert_same(ours, streampca.fit(x, preparation=left, sample_weight=weights, **RIGID))
    gone = ours.transform(x, missing="drop-samples")
    np.testing.assert_array_equal(gone, ours.transform(x))
    x[0, 0, 0] = np.nan
    images = ours.reconstruct(x, missing="drop-samples")
    assert np.isnan(images[0]).all()
    assert np.isfinite(images[1:, ours.mask]).all()
    with pytest.raises(RequestError, match=r"would change the samples or pixels of which standardize=True .*leave"):
        streampca.fit(x, preparation=ours.preparation, missing="drop-features", **RIGID)


@pytest.mark.parametrize("rule", ["drop-samples"])
@pytest.mark.parametrize("steps", [{"anomaly": "label"}, {"detrend": True}, {"standardize": True}])
def test_means_are_learned_of_all_samples_or_refused(rule, steps):
    preparation = Preparation(**steps)
    message = rf"missing='{rule}' does not go with {next(iter(steps))}=.*use missing='drop-features'"
    with pytest.raises(RequestError, match=message):
        streampca.fit(field(), preparation=preparation, missing=rule, n_components=2)
    with pytest.raises(RequestError, match=message):
        streampca.plan(field(), preparation=preparation, missing=rule, n_components=2)
    with pytest.raises(RequestError, match=message):
        StreamingPCA(2, preparation=preparation, missing=rule).fit(field())
