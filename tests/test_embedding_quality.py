"""How far an embedding can be trusted: measured as scikit-learn does, stored, said in words, and drawn."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from pictured import fitted
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness

import streampca
from streampca.errors import ModelError
from streampca.manifold import quality as module
from streampca.manifold.quality import principal_coordinates, quality


@pytest.mark.slow
def test_measurements_are_those_of_scikit_learn(monkeypatch):
    """For all numbers of neighbours, whatever the blocks; of a sample, those of the samples drawn."""
    random = np.random.default_rng(0)
    scores = random.normal(size=(300, 20)) * 0.8 ** np.arange(20)
    coordinates = scores[:, :3] + 0.3 * random.normal(size=(300, 3))
    found = quality(scores, coordinates, 1000, 0)
    levels = found["neighborhoods"]
    assert levels["neighbors"] == [5, 10, 12, 20, 50]
    components = PCA(3).fit_transform(scores)
    for at, k in enumerate(levels["neighbors"]):
        how = {"n_neighbors": k}
        assert levels["trustworthiness"][at] == pytest.approx(trustworthiness(scores, coordinates, **how))
        assert levels["continuity"][at] == pytest.approx(trustworthiness(coordinates, scores, **how))
        assert levels["components_trustworthiness"][at] == pytest.approx(trustworthiness(scores, components, **how))
        assert levels["components_continuity"][at] == pytest.approx(trustworthiness(components, scores, **how))
    assert found["trustworthiness"] == levels["trustworthiness"][2]
    assert (found["compared_neighbors"], found["compared_samples"]) == (12, 300)
    monkeypatch.setattr(module, "COMPARED_BLOCK", 8 * 300 * 7)
    assert quality(scores, coordinates, 1000, 0) == found
    assert quality(scores, coordinates, 100, 0)["compared_samples"] == 100
    assert quality(scores[:5], coordinates[:5], 100, 0)["neighborhoods"]["neighbors"] == [2]


def test_components_of_more_features_than_samples():
    samples = np.random.default_rng(0).normal(size=(10, 30))
    ours, theirs = principal_coordinates(samples, 4), PCA(4).fit_transform(samples)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-10)


@pytest.fixture(scope="module")
def in_parts():
    """The largest component of a graph of three."""
    random = np.random.default_rng(0)
    rows = np.concatenate([center + random.normal(size=(n, 3)) for center, n in ((0, 60), (50, 20), (-50, 7))])
    return streampca.fit(rows, streampca.Isomap(n_neighbors=5, largest_component=True))


def test_measurements_that_wait_for_a_reader_are_those_that_are_stored(in_parts, tmp_path):
    """Of few samples in memory they wait; saved models and copies have them."""
    embedding = streampca.fit(in_parts.references, streampca.Isomap(n_neighbors=5))
    assert embedding.provenance._compute is not None
    assert copy.deepcopy(embedding).measured["trustworthiness"] == embedding.measured["trustworthiness"]
    assert embedding.provenance._compute is None
    model = streampca.fit(in_parts.references, streampca.Isomap(n_neighbors=5), output=tmp_path / "m.zarr")
    assert dict(model.measured) == dict(streampca.load(tmp_path / "m.zarr").measured) == dict(embedding.measured)


@pytest.mark.slow
def test_components_of_the_graph_and_neighbours_kept_are_drawn_and_said(in_parts, tmp_path):
    notes = " ".join(in_parts.notes)
    assert "3 components, of 60, 20, 7 samples; n_neighbors=20 would connect them" in notes
    assert "27 samples outside" in notes
    assert "2 principal components have 0." in notes
    bars = streampca.plot.graph_components(in_parts)
    assert [bar.get_height() for bar in bars.patches] == [60, 20, 7]
    assert bars.get_title() == "3 components by 5 neighbours; 20 connect them"
    assert bars.patches[0].get_facecolor() != bars.patches[1].get_facecolor() == bars.patches[2].get_facecolor()
    curves = {line.get_label(): line.get_ydata() for line in streampca.plot.neighborhoods(in_parts).lines}
    stored = in_parts.measured["neighborhoods"]
    np.testing.assert_array_equal(curves["trustworthiness"], stored["trustworthiness"])
    np.testing.assert_array_equal(curves["continuity, 2 principal components"], stored["components_continuity"])
    streampca.write_report(in_parts, tmp_path / "report.html", figures=tmp_path / "pictures")
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == {"scores", "scree", "neighborhoods", "graph"}
    assert "27 samples outside the largest component, in grey, are left out" in (tmp_path / "report.html").read_text()


def test_models_without_these_measurements_are_shown_without_them(in_parts, tmp_path):
    about = dict(in_parts.provenance["embedding"])
    about["measured"] = {
        name: value
        for name, value in about["measured"].items()
        if name not in ("facts", "neighborhoods", "trustworthiness")
    }
    replace(in_parts, provenance={**in_parts.provenance, "embedding": about}).save(tmp_path / "few.zarr")
    few = streampca.load(tmp_path / "few.zarr")
    assert "principal components have" not in " ".join(few.notes)
    streampca.write_report(few, tmp_path / "report.html", figures=tmp_path / "pictures")
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == {"scores", "scree"}
    for draw in (streampca.plot.neighborhoods, streampca.plot.graph_components):
        with pytest.raises(ModelError, match=r"which holds no .*; give another embedding"):
            draw(few)
        with pytest.raises(ModelError, match="kind 'pca'"):
            draw(fitted(np.random.default_rng(0).random((9, 4)), 2))
