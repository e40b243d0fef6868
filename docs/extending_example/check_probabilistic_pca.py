"""A row in each registry, and probabilistic PCA is fitted, saved, loaded, shown and applied, at every door."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.base import clone
from sklearn.decomposition import PCA

import streampca
from streampca.cli.commands import cli
from streampca.errors import ModelError, RequestError
from streampca.models.registry import MODEL_KINDS

IMAGES = np.random.default_rng(0).integers(0, 256, (90, 6, 5), dtype=np.uint8)


@pytest.fixture
def model():
    """A model of four components."""
    return streampca.fit(IMAGES, streampca.ProbabilisticPCA(4))


def commanded(*words):
    """Run a command; return what it printed."""
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_likelihoods_are_scikit_learns(model):
    """By its class of the same model."""
    flat = IMAGES.reshape(len(IMAGES), -1)
    theirs = PCA(4, svd_solver="full").fit(flat)
    assert model.noise == pytest.approx(theirs.noise_variance_)
    np.testing.assert_allclose(model.log_likelihood(IMAGES), theirs.score_samples(flat), rtol=1e-5)


def test_the_estimator_fits_the_same_model(model):
    """And is cloned, shown and searched over as every estimator."""
    estimator = clone(streampca.ProbabilisticPCA(4)).fit(IMAGES)
    assert estimator.noise_ == model.noise
    np.testing.assert_array_equal(estimator.transform(IMAGES), model.transform(IMAGES))


def test_it_is_loaded_as_what_it_is(model, tmp_path):
    """By the kind that its root attribute names; and projects as every model does."""
    model.save(tmp_path / "model.zarr")
    loaded = streampca.load(tmp_path / "model.zarr")
    assert type(loaded) is type(model)
    assert loaded.noise == model.noise
    np.testing.assert_array_equal(loaded.transform(IMAGES), model.transform(IMAGES))


def test_another_version_refuses_it_by_name(model, tmp_path, monkeypatch):
    """One without the row."""
    model.save(tmp_path / "model.zarr")
    monkeypatch.delitem(MODEL_KINDS, "probabilistic-pca")
    with pytest.raises(ModelError, match="holds a 'probabilistic-pca', not a model of kind 'pca'"):
        streampca.load(tmp_path / "model.zarr")


def test_the_command_line_knows_it(tmp_path, monkeypatch):
    """Every command, without a word about it in any of them."""
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", IMAGES)
    assert "probabilistic-pca" not in commanded("plan", "images.npy", "-k", 4)
    asked = ("images.npy", "--kind", "probabilistic-pca", "-k", 4)
    assert "probabilistic: the 30 x 30 scatter matrix" in commanded("plan", *asked)
    commanded("fit", *asked, "-o", "model.zarr")
    shown = json.loads(commanded("inspect", "model.zarr", "--json", "--verify"))
    assert shown["kind"] == "probabilistic-pca"
    assert shown["noise"] > 0
    commanded("transform", "model.zarr", "images.npy", "-o", "scores.npy")
    assert np.load("scores.npy").shape == (90, 4)


def test_a_method_makes_its_own_kind_only():
    """Another method is refused, and the message names the right one."""
    with pytest.raises(RequestError, match="method 'probabilistic' makes a model of kind 'probabilistic-pca'"):
        streampca.fit(IMAGES, streampca.PCA(4, method="probabilistic"))
    with pytest.raises(RequestError, match="use method 'auto' or 'probabilistic'"):
        streampca.fit(IMAGES, streampca.ProbabilisticPCA(4, method="covariance"))


def test_samples_are_not_added_to_it(model):
    """Its noise is that of the samples before an update."""
    with pytest.raises(ModelError, match="only models of kind 'pca' can be updated and merged"):
        streampca.update(model, IMAGES)
    with pytest.raises(ModelError, match="fit all samples together"):
        streampca.merge([model, model])
    with pytest.raises(RequestError, match="models of kind 'probabilistic-pca' are not merged from parts"):
        streampca.fit(IMAGES, streampca.ProbabilisticPCA(4), part=(1, 2))


def test_there_must_be_noise():
    """All components leave none."""
    with pytest.raises(RequestError, match="ask for fewer components"):
        streampca.fit(IMAGES, streampca.ProbabilisticPCA(None))
