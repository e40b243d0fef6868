"""A row in each registry of methods, and method 'svd' is planned, fitted, certified and known to the command line."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import streampca
from streampca.cli.commands import cli
from streampca.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 9, 7), dtype=np.uint8)
SVD = streampca.PCA(3, method="svd")


def commanded(*words):
    """Run a command; return what it printed."""
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("n_components", [5, 0.9, "elbow", None])
def test_it_finds_what_the_exact_methods_find(n_components):
    """Components, variances and the number of them, within the bounds that it gives."""
    svd, exact = (streampca.fit(IMAGES, streampca.PCA(n_components, method=name)) for name in ("svd", "covariance"))
    assert svd.n_components == exact.n_components
    difference = np.abs(svd.explained_variance / exact.explained_variance - 1)
    assert np.all(difference <= svd.residual_bound + exact.residual_bound)
    assert np.abs(svd.components[0] - exact.components[0]).max() < 1e-6
    assert np.all(svd.residual_bound < 1e-4)


def test_weights_count_samples_as_often_as_they_say():
    """A sample of weight 2 is the sample twice."""
    weights = np.arange(60) % 3
    weighted = streampca.fit(IMAGES, SVD, sample_weight=weights)
    repeated = streampca.fit(np.repeat(IMAGES, weights, axis=0), SVD)
    np.testing.assert_allclose(weighted.explained_variance, repeated.explained_variance)
    assert weighted.n_samples == np.count_nonzero(weights)


def test_plans_compare_it():
    """It stands among the methods of every plan, and is refused where it does not fit."""
    assert "svd: would take about" in str(streampca.plan(None, n_components=3, shape="5000x28x28"))
    assert streampca.plan(IMAGES, SVD).passes == 1
    with pytest.raises(streampca.errors.BudgetError, match=r"method 'svd' needs .* Set memory to at least"):
        streampca.plan(None, SVD, shape="1000000x64x64", memory="1 GiB")


def test_the_command_line_knows_it(tmp_path, monkeypatch):
    """Every command, without a word about it in any of them."""
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", IMAGES)
    assert "svd: all samples fit in memory" in commanded("plan", "images.npy", "--method", "svd")
    commanded("fit", "images.npy", "--method", "svd", "-k", 3, "-o", "model.zarr")
    shown = json.loads(commanded("inspect", "model.zarr", "--json"))
    assert shown["provenance"]["plan"]["method"] == "svd"
    commanded("transform", "model.zarr", "images.npy", "-o", "scores.npy")
    assert np.load("scores.npy").shape == (60, 3)


def test_a_sample_that_is_not_finite_is_named():
    """By the sample, as in every method."""
    images = IMAGES.astype(np.float32)
    images[17, 2, 3] = np.nan
    with pytest.raises(DataError, match="sample 17 "):
        streampca.fit(images, SVD)
