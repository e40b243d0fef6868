"""A row in each registry concerned, and models of kind 'ppca' are fitted, saved, loaded, shown and applied."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from ppca_fitting import fit_ppca
from sklearn.decomposition import PCA

import streampca
from streampca.cli.commands import cli
from streampca.errors import ModelError, RequestError
from streampca.fitting.methods import METHODS as FITTED
from streampca.models.registry import MODEL_KINDS
from streampca.planning.registry import KINDS
from streampca.planning.registry import METHODS as PLANNED

IMAGES = np.random.default_rng(0).integers(0, 256, (90, 6, 5), dtype=np.uint8)


@pytest.fixture(autouse=True)
def rows(monkeypatch):
    """Add the rows, as editing the registries would."""
    monkeypatch.setitem(MODEL_KINDS, "ppca", ("ppca_model", "ProbabilisticPCA"))
    monkeypatch.setitem(KINDS, "ppca", "")
    monkeypatch.setitem(PLANNED, "ppca", "ppca_planning")
    monkeypatch.setitem(FITTED, "ppca", fit_ppca)


@pytest.fixture
def model():
    """A model of four components."""
    return streampca.fit(IMAGES, n_components=4, kind="ppca")


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


def test_it_is_loaded_as_what_it_is(model, tmp_path):
    """By the kind that its root attribute names; and projects as every model does."""
    model.save(tmp_path / "model.zarr")
    loaded = streampca.load_model(tmp_path / "model.zarr")
    assert type(loaded) is type(model)
    assert loaded.noise == model.noise
    np.testing.assert_array_equal(loaded.transform(IMAGES), model.transform(IMAGES))


def test_another_version_refuses_it_by_name(model, tmp_path, monkeypatch):
    """One without the row."""
    model.save(tmp_path / "model.zarr")
    monkeypatch.delitem(MODEL_KINDS, "ppca")
    with pytest.raises(ModelError, match="holds a 'ppca', not a model of kind 'pca'"):
        streampca.load_model(tmp_path / "model.zarr")


def test_the_command_line_knows_it(tmp_path, monkeypatch):
    """Every command, without a word about it in any of them."""
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", IMAGES)
    assert "ppca" not in commanded("plan", "images.npy", "-k", 4)
    assert "ppca: the 30 x 30 scatter matrix" in commanded("plan", "images.npy", "-k", 4, "--kind", "ppca")
    commanded("fit", "images.npy", "--kind", "ppca", "-k", 4, "-o", "model.zarr")
    shown = json.loads(commanded("inspect", "model.zarr", "--json", "--verify"))
    assert shown["kind"] == "ppca"
    assert shown["noise"] > 0
    commanded("transform", "model.zarr", "images.npy", "-o", "scores.npy")
    assert np.load("scores.npy").shape == (90, 4)


def test_a_method_makes_its_own_kind_only():
    """Another method is refused, and the message names the right one."""
    with pytest.raises(
        RequestError, match=r"method 'ppca' makes a model of kind 'ppca', and kind is 'pca'; use .*kind="
    ):
        streampca.fit(IMAGES, n_components=4, method="ppca")
    with pytest.raises(RequestError, match="use method 'auto' or 'ppca', or give kind='pca'"):
        streampca.fit(IMAGES, n_components=4, method="covariance", kind="ppca")


def test_samples_are_not_added_to_it(model):
    """Its noise is that of the samples before an update."""
    with pytest.raises(ModelError, match="is of kind 'ppca', and only models of kind 'pca' can be updated and merged"):
        streampca.update(model, IMAGES)
    with pytest.raises(ModelError, match="fit all samples together"):
        streampca.merge([model, model])
    with pytest.raises(RequestError, match="models of kind 'ppca' are not merged from parts"):
        streampca.fit(IMAGES, n_components=4, kind="ppca", part=(1, 2))


def test_there_must_be_noise():
    """All components leave none."""
    with pytest.raises(RequestError, match="ask for fewer components"):
        streampca.fit(IMAGES, n_components=None, kind="ppca")
