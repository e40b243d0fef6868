"""Bootstrap in the space of scores: the draws are those of the samples themselves, and intervals cover the truth."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import streampca
from streampca.errors import BudgetError, RequestError
from streampca.models import bootstrap as module

VARIANCES = np.r_[30.0, 12, 5, 2, np.full(12, 0.3)]


def rows_of(n=100, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 16)) * np.sqrt(VARIANCES)


def fitted(rows, count):
    """A model as a fit makes it, of rows with 4 x 4 pixels, without planning: hundreds are needed."""
    return streampca.fit(rows.reshape(len(rows), 4, 4), streampca.PCA(count, precision="double"))


@pytest.fixture(scope="module")
def model():
    return fitted(rows_of(), 5)


@pytest.fixture(scope="module")
def scores(model):
    return model.transform(rows_of())


def drawn(n, seed, draws, block=1):
    """The samples of each draw, as documented."""
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        starts = rng.integers(0, n, -(-n // block))
        yield ((starts[:, None] + np.arange(block)) % n).ravel()[:n]


@pytest.mark.parametrize("block", [1, 7])
def test_draws_are_those_of_the_samples(block):
    """With all components nothing is left out: each draw is PCA of the samples drawn."""
    rows = rows_of(40)
    model = fitted(rows, None)
    found = streampca.bootstrap(model, model.transform(rows), n_replicates=6, random_state=3, block=block)
    for number, some in enumerate(drawn(40, 3, 6, block)):
        values, vectors = np.linalg.eigh(np.cov(rows[some].T))
        np.testing.assert_allclose(found.variances[number], values[::-1], rtol=1e-9)
        own = model.components.reshape(16, 16).T @ found.turns[number]
        np.testing.assert_allclose(np.abs((own * vectors[:, ::-1]).sum(axis=0))[:4], 1, rtol=1e-9)
        assert (np.diagonal(found.turns[number]) >= 0).all()


def test_errors_of_components_are_those_over_draws(model, scores):
    found = streampca.bootstrap(model, scores, n_replicates=50)
    components = np.einsum("bij,ip->bjp", found.turns, model.components.reshape(5, 16))
    expected = components.std(axis=0, ddof=1).reshape(5, 4, 4)
    np.testing.assert_allclose(found.component_error(), expected, rtol=1e-6, atol=1e-12)
    angles = np.arccos(np.clip((components * model.components.reshape(5, 16)).sum(axis=2), 0, 1))
    np.testing.assert_allclose(found.angle, np.quantile(angles, 0.9, axis=0), atol=1e-6)


def test_intervals_cover_the_truth():
    """Intervals of 90 % cover the four separated variances in most of 80 draws of 100 samples."""
    covered = np.zeros(4)
    for seed in range(80):
        rows = rows_of(seed=seed)
        model = fitted(rows, 6)
        found = streampca.bootstrap(model, model.transform(rows), n_replicates=60, random_state=seed)
        lower, upper = found.variance_interval[:4].T
        covered += (lower <= VARIANCES[:4]) & (upper >= VARIANCES[:4])
    print(covered / 80)
    assert (covered >= 0.80 * 80).all()
    assert (covered <= 0.98 * 80).all()


def test_a_higher_level_is_a_wider_interval(model, scores):
    narrow, wide = (streampca.bootstrap(model, scores, level=level) for level in (0.5, 0.99))
    assert (narrow.variance_interval[:, 0] > wide.variance_interval[:, 0]).all()
    assert (narrow.variance_interval[:, 1] < wide.variance_interval[:, 1]).all()
    assert (narrow.angle < wide.angle).all()


def test_neighbours_that_are_alike_are_drawn_together():
    """Each sample 8 times: single draws take 8 times as many for independent, and intervals are too narrow."""
    rows = np.repeat(rows_of(60), 8, axis=0)
    model = fitted(rows, 3)
    scores = model.transform(rows)
    single, blocks = (streampca.bootstrap(model, scores, block=block) for block in (1, 16))
    widths = [np.log(found.variance_interval[:, 1] / found.variance_interval[:, 0]) for found in (single, blocks)]
    assert (widths[1] > 1.8 * widths[0]).all()


@pytest.mark.parametrize("form", ["file", "collection", "dask", "DataArray"])
def test_scores_of_every_kind_give_the_same(model, scores, tmp_path, form):
    np.save(tmp_path / "scores.npy", scores)
    given = {
        "file": lambda: tmp_path / "scores.npy",
        "collection": lambda: streampca.open_collection(scores),
        "dask": lambda: streampca.open_collection(scores).to_dask(),
        "DataArray": lambda: xr.DataArray(scores.T, dims=("component", "time")),
    }[form]()
    found = streampca.bootstrap(model, given, 3, n_replicates=20)
    np.testing.assert_allclose(found.variances, streampca.bootstrap(model, scores, 3, n_replicates=20).variances)


def test_masked_pixels_and_components_on_disk(tmp_path, monkeypatch):
    images = rows_of(60).reshape(60, 4, 4)
    mask = np.indices((4, 4)).sum(axis=0) > 1
    steps = streampca.Preparation(mask=mask)
    streampca.fit(images, n_components=3, preparation=steps, output=tmp_path / "m.zarr")
    held = streampca.load(tmp_path / "m.zarr")
    stored = streampca.load(tmp_path / "m.zarr", memory="1KiB")
    assert not stored.subspace.is_held
    monkeypatch.setattr(module, "PIECE", 12)
    errors = [
        streampca.bootstrap(each, each.transform(images), n_replicates=20).component_error() for each in (held, stored)
    ]
    np.testing.assert_array_equal(np.isnan(errors[0][0]), ~mask)
    np.testing.assert_allclose(*errors)


def test_as_a_dataset(model, scores):
    found = streampca.bootstrap(model, scores, 3, n_replicates=20)
    made = found.intervals()
    assert made.sizes["component"] == 3
    np.testing.assert_array_equal(made["variance_lower"], found.variance_interval[:, 0])
    assert made["component_error"].dims == ("component", "y", "x")
    assert made["angle"].attrs == {"long_name": "angle to the components of 90 % of the draws", "units": "radian"}


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda m, s: streampca.bootstrap(m, s[:50]), RequestError, "have shape 50 x 5 and the model was fitted on 100"),
    (lambda m, s: streampca.bootstrap(m, s[:, :3]), RequestError, "give the scores of these along 5 components"),
    (lambda m, s: streampca.bootstrap(m, s[:, ::-1]), RequestError, "scores have other variances than the components"),
    (lambda m, s: streampca.bootstrap(m, s / s.std(axis=0)), RequestError, "not whitened"),
    (lambda m, s: streampca.bootstrap(m, s, 6), RequestError, "n_components=6 is no whole number between 1 and 5"),
    (lambda m, s: streampca.bootstrap(m, s, level=90), RequestError, "level 90 is not between 0 and 1"),
    (lambda m, s: streampca.bootstrap(m, s, n_replicates=1), RequestError, "n_replicates 1 is not a whole number"),
    (lambda m, s: streampca.bootstrap(m, s, block=0), RequestError, "block 0 is not a whole number of at least 1"),
    (lambda m, s: streampca.bootstrap(m, s, block=100), RequestError, "block 100 is not below .* use for example 10"),
    (lambda m, s: streampca.bootstrap(m, s, memory="1MiB"), BudgetError, "500 draws of 100 samples in the space of 5"),
])  # fmt: skip
def test_what_makes_no_sense(model, scores, call, error, message):
    with pytest.raises(error, match=message):
        call(model, scores)


def test_the_longest_block_allowed_gives_draws_that_differ(model, scores):
    found = streampca.bootstrap(model, scores, block=99, n_replicates=20)
    assert (np.ptp(found.variances, axis=0) > 0).all()


def test_components_without_variance_are_refused():
    rows = np.random.default_rng(0).normal(size=(30, 3)) @ np.random.default_rng(1).normal(size=(3, 16))
    model = fitted(rows, 4)
    with pytest.raises(RequestError, match=r"component 4 of the model has no variance .* \(n_components=3\)"):
        streampca.bootstrap(model, model.transform(rows.reshape(30, 4, 4)))
    assert streampca.bootstrap(model, model.transform(rows.reshape(30, 4, 4)), 3).variances.shape == (500, 3)


def test_sample_weights_are_refused():
    rows = rows_of(30)
    model = streampca.fit(rows, n_components=2, sample_weight=np.arange(30))
    with pytest.raises(RequestError, match="was fitted with sample weights"):
        streampca.bootstrap(model, model.transform(rows))
