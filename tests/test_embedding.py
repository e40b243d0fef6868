"""Embeddings by a graph of neighbours: against scikit-learn's dense solvers, new samples, parts, refusals, resuming."""

from __future__ import annotations

import re

import by_options
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from click.testing import CliRunner
from planned import remedy, unwrapped
from shell import succeeded
from sklearn import manifold
from sklearn.cluster import SpectralClustering
from sklearn.datasets import load_digits, make_blobs, make_circles, make_moons, make_swiss_roll
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import streampca
from streampca.cli.commands import cli
from streampca.cli.config import make_run
from streampca.cli.pipeline import execute
from streampca.eigensolvers import sparse
from streampca.errors import BudgetError, DataError, ModelError, NotConvergedError, RequestError
from streampca.events import Planned, Warned, describe
from streampca.manifold import laplacian_factorization, maximum_variance
from streampca.manifold.isomap import Scaling
from streampca.models.embedding import EmbeddingModel
from streampca.readers.stored.flat import FlatArray
from streampca.storage.outputs import SCRATCH

NEIGHBORS = 12
KINDS = ("isomap", "locally-linear-embedding", "spectral-embedding")


def apart(ours, theirs):
    """Return the largest difference, relative to the largest entry, of columns up to sign."""
    signs = np.sign((ours * theirs).sum(axis=0))
    return np.abs(ours * signs - theirs).max() / np.abs(theirs).max()


def theirs(kind):
    if kind == "isomap":
        return manifold.Isomap(n_neighbors=NEIGHBORS, n_components=3, eigen_solver="dense")
    if kind == "locally-linear-embedding":
        return manifold.LocallyLinearEmbedding(n_neighbors=NEIGHBORS, n_components=3, eigen_solver="dense")
    return manifold.SpectralEmbedding(
        3, affinity="nearest_neighbors", n_neighbors=NEIGHBORS + 1, eigen_solver="arpack", eigen_tol=1e-12,
        random_state=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def samples():
    # scikit-learn chooses among equal distances by chance: digits are jittered, so that there are none.
    jitter = np.random.default_rng(0).normal(scale=1e-3, size=(600, 64))
    return {"digits": load_digits().data[:600] + jitter, "roll": make_swiss_roll(900, random_state=0)[0]}


@pytest.fixture(scope="module")
def fitted(samples):
    return {
        (name, kind): by_options.fit(rows, kind=kind, n_components=3, n_neighbors=NEIGHBORS)
        for name, rows in samples.items()
        for kind in KINDS
    }


@pytest.mark.parametrize("name", ["digits", "roll"])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_scikit_learn(samples, fitted, name, kind):
    reference, model = theirs(kind), fitted[name, kind]
    assert apart(model.embedding, reference.fit_transform(samples[name])) < 1e-6
    if hasattr(reference, "transform"):
        new = samples[name][:40] + np.random.default_rng(0).normal(scale=0.1, size=samples[name][:40].shape)
        assert apart(np.asarray(model.transform(new)), reference.transform(new)) < 1e-6
    if kind != "isomap":
        assert model.embedding_residuals.max() < 1e-10


@pytest.fixture(scope="module")
def wide():
    """150 samples of 400 features on a surface, with noise; and others, of which some lie far outside their span."""
    random = np.random.default_rng(0)
    rows = np.sin(3 * random.random((150, 2)) @ random.normal(size=(2, 400))) + random.normal(0, 0.01, (150, 400))
    return rows, np.concatenate([rows[:20] + random.normal(0, scale, (20, 400)) for scale in (0.1, 3)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [None, 149])
def test_fewer_samples_than_features(wide, kind, count):
    """By features, and by all components of the samples, beside which new samples keep their part outside the span."""
    (rows, new), reference = wide, theirs(kind)
    model = by_options.fit(rows, kind=kind, n_components=3, n_neighbors=NEIGHBORS, pca_components=count)
    assert model.pca.n_components == (count or 0)
    assert apart(model.embedding, reference.fit_transform(rows)) < 1e-6
    if hasattr(reference, "transform"):
        assert apart(np.asarray(model.transform(new)), reference.transform(new)) < 1e-6
    else:  # Nystroem's extension has no counterpart there
        other = by_options.fit(rows, kind=kind, n_components=3, n_neighbors=NEIGHBORS)
        assert apart(np.asarray(model.transform(new)), np.asarray(other.transform(new))) < 1e-6


def test_budgets_and_the_number_of_components(tmp_path, wide):
    """Features that do not fit give way to all components, and these to a number that the refusal names."""
    np.save(tmp_path / "rows.npy", np.repeat(wide[0], 60, axis=1).astype(np.float32))  # 14 MB
    source, kind = str(tmp_path / "rows.npy"), streampca.LocallyLinearEmbedding(2, n_neighbors=NEIGHBORS)
    features = streampca.fit(source, kind, memory="1GiB")
    spanned = streampca.fit(source, kind, memory="90MiB", output=tmp_path / "model.zarr")
    assert (features.pca.n_components, spanned.pca.n_components) == (0, 149)
    assert apart(spanned.embedding, features.embedding) < 1e-4
    with pytest.raises(BudgetError, match=r"compare samples by \d+ principal components") as raised:
        streampca.fit(source, kind, memory="45MiB")
    count = int(re.search(r"pca_components=(\d+)\)", str(raised.value))[1])
    assert streampca.fit(source, kind.replaced(pca_components=count), memory="45MiB").pca.n_components == count
    assert streampca.plan(source, kind, memory=remedy(raised.value)).n_components == 149


def test_fewer_landmarks_are_named_where_they_fit():
    """The distances from them do not matter where the samples alone are too many bytes."""

    def plan(shape, landmarks):
        return streampca.plan(shape=shape, kind=streampca.Isomap(2, landmarks=landmarks), dtype="f8", memory="50MiB")

    with pytest.raises(BudgetError, match="fewer landmarks") as refused:
        plan((3000, 16), 800)
    fewest = re.search(r"\(landmarks\), down to (\d+) \(", str(refused.value))[1]
    assert plan((3000, 16), int(fewest)).memory_estimate.total < 50 * 2**20
    with pytest.raises(BudgetError, match=r"needs 183 MiB") as refused:
        plan((600, 100, 100), 10)
    assert "landmarks" not in str(refused.value)


def test_plans_of_minutes_name_a_number_that_takes_less():
    plan = by_options.plan(shape=(60000, 28, 28), kind="isomap", memory="2GiB")
    count, seconds = plan.shorter
    assert (plan.n_components, plan.neighbors.method) == (0, "exact")
    assert seconds < 60 < plan.seconds
    assert by_options.plan(shape=(60000, 28, 28), kind="isomap", pca_components=count, memory="2GiB").seconds == seconds
    assert f"(pca_components={count})" in unwrapped(str(plan))


def test_spectral_clustering(samples):
    ours = streampca.SpectralClustering(6, n_neighbors=NEIGHBORS).fit(samples["roll"])
    other = SpectralClustering(6, affinity="nearest_neighbors", n_neighbors=NEIGHBORS + 1, random_state=0)
    assert adjusted_rand_score(ours.labels_, other.fit_predict(samples["roll"])) > 0.98
    assert adjusted_rand_score(ours.predict(samples["roll"]), ours.labels_) > 0.9


def scikit_learns_examples(n=240):
    """Return the samples, true clusters and their number of scikit-learn's page that compares clustering methods."""
    blobs, of_blobs = make_blobs(n, random_state=170)
    examples = {
        "circles": (*make_circles(n, factor=0.5, noise=0.05, random_state=30), 2),
        "moons": (*make_moons(n, noise=0.05, random_state=30), 2),
        "varied": (*make_blobs(n, cluster_std=[1, 2.5, 0.5], random_state=170), 3),
        "aniso": (blobs @ [[0.6, -0.6], [-0.4, 0.8]], of_blobs, 3),
        "blobs": (*make_blobs(n, random_state=8), 3),
        "no structure": (np.random.default_rng(30).random((n, 2)), None, 3),
    }
    return {name: (StandardScaler().fit_transform(x), of, count) for name, (x, of, count) in examples.items()}


@pytest.mark.filterwarnings("ignore:Graph is not fully connected")  # scikit-learn's
@pytest.mark.parametrize("name", scikit_learns_examples())
def test_clusters_of_scikit_learns_examples(name):
    """The graphs are connected, or their components are the clusters, as those of the moons."""
    x, true, count = scikit_learns_examples()[name]
    other = SpectralClustering(count, affinity="nearest_neighbors", random_state=0).fit_predict(x)
    ours = streampca.SpectralClustering(count, n_neighbors=9).fit(x)
    if true is None:
        assert adjusted_rand_score(ours.labels_, other) > 0.99
    else:
        assert abs(adjusted_rand_score(ours.labels_, true) - adjusted_rand_score(other, true)) < 0.01
    assert adjusted_rand_score(ours.predict(x), ours.labels_) > 0.9


@pytest.fixture(scope="module")
def clumps():
    """Three clumps that 5 neighbours do not connect, in mixed order, and the clump of each sample."""
    random = np.random.default_rng(0)
    clump = random.permutation(np.repeat([0, 1, 2], [60, 30, 20]))
    return np.array([[0, 0, 0], [50, 0, 0], [0, 80, 0]])[clump] + random.normal(size=(110, 3)), clump


@pytest.mark.parametrize("laplacian", ["normalized", "unnormalized"])
def test_components_of_the_graph_are_clusters(tmp_path, clumps, laplacian):
    """Their indicators are the eigenvectors of eigenvalue 0; further clusters split a component."""
    (rows, clump), how = clumps, {"n_neighbors": 5, "laplacian": laplacian}
    model = streampca.fit(rows, streampca.SpectralClustering(3, **how), output=tmp_path / "model.zarr")
    assert adjusted_rand_score(model.labels, clump) == 1
    indicators = model.embedding / model.embedding.max(axis=0)
    np.testing.assert_allclose(indicators, clump[:, None] == np.arange(3), atol=1e-8)
    np.testing.assert_allclose(model.laplacian_eigenvalues[:3], 0, atol=1e-10)
    assert model.laplacian_eigenvalues[3] > 1e-3
    assert model.measured["normalized_cut"] == pytest.approx(0)
    new = rows + np.random.default_rng(1).normal(0, 0.1, rows.shape)
    np.testing.assert_array_equal(streampca.load(tmp_path / "model.zarr").predict(new), model.labels)
    finer = streampca.SpectralClustering(4, **how).fit(rows)
    assert len({*zip(finer.labels_.tolist(), clump.tolist(), strict=True)}) == 4
    assert np.all(np.diff(finer.eigenvalues_[2:]) > 1e-3)


def test_more_components_than_clusters_are_refused_with_remedies_that_work(clumps):
    rows, clump = clumps
    kind = streampca.SpectralClustering(2, n_neighbors=5)
    with pytest.raises(DataError, match=r"3 components, of 60, 30, 20 samples; .*largest_component=True") as raised:
        streampca.fit(rows, kind)
    said = dict(re.findall(r"(n_clusters|n_neighbors)=(\d+)", str(raised.value)))
    assert (
        adjusted_rand_score(streampca.fit(rows, kind.replaced(n_clusters=int(said["n_clusters"]))).labels, clump) == 1
    )
    assert len(streampca.fit(rows, kind.replaced(n_neighbors=int(said["n_neighbors"]))).embedding) == 110
    told = []
    model = streampca.fit(rows, kind.replaced(n_clusters=3, largest_component=True), listener=told.append)
    np.testing.assert_array_equal(model.embedded_samples, np.flatnonzero(clump == 0))
    (warned,) = (event.message for event in told if isinstance(event, Warned))
    assert re.match(r"50 samples outside the largest component left out, .*, of 60, 30, 20 samples; ", warned)
    assert "without largest_component=True, each component is clustered" in warned


def test_affinities_in_several_parts(clumps):
    """Samples by themselves are parts, too, and new samples have no place."""
    matrix = np.kron(np.diag([1, 1, 0]), np.ones((5, 5)))[:11, :11]
    found = streampca.SpectralClustering(3, affinity="precomputed").fit(matrix)
    assert adjusted_rand_score(found.labels_, np.arange(11) // 5) == 1
    assert found.cuts_ == {"normalized_cut": 0, "ratio_cut": 0}
    with pytest.raises(DataError, match=r"of 5, 5, 1, and n_clusters is 2; ask for 3 clusters"):
        streampca.SpectralClustering(2, affinity="precomputed").fit(matrix)
    near = streampca.SpectralClustering(3, affinity="rbf", gamma=1.0).fit(clumps[0])  # 0 between the clumps
    assert adjusted_rand_score(near.labels_, clumps[1]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_stored_models_place_new_samples_lazily_and_to_files(tmp_path, samples, fitted, kind):
    model, path, rows = fitted["roll", kind], tmp_path / "model.zarr", samples["roll"]
    model.save(path)
    loaded = streampca.load(path)
    assert isinstance(loaded, EmbeddingModel)
    assert loaded.kind == kind
    np.testing.assert_array_equal(loaded.embedding, model.embedding)
    placed = model.transform(rows[:100])
    np.save(tmp_path / "rows.npy", rows[:100])
    np.testing.assert_array_equal(np.asarray(loaded.transform(str(tmp_path / "rows.npy"))), placed)
    loaded.write_scores(str(tmp_path / "rows.npy"), tmp_path / "places.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "places.npy"), placed)
    spread = np.ptp(model.embedding)
    assert np.abs(placed - model.embedding[:100]).max() < 0.05 * spread
    with pytest.raises(AttributeError, match=r"which needs principal components; fit with pca_components"):
        loaded.inverse_transform(placed)
    with pytest.raises(RequestError, match="not whitened"):
        loaded.transform(rows, whiten=True)
    assert loaded.pca.kind == "pca"


@pytest.mark.parametrize("reg", [1e-3, 1e-6, 1e-12])
def test_no_axis_is_constant_where_others_cost_as_little(reg):
    plane = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), -1).reshape(-1, 2)
    model = by_options.fit(plane, kind="locally-linear-embedding", n_neighbors=8, reg=reg)
    np.testing.assert_allclose(model.embedding.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(model.embedding.T @ model.embedding, np.eye(2), atol=1e-10)


@pytest.mark.parametrize("count", [4, 7, 8, 9])
def test_locally_linear_embeddings_in_many_dimensions_are_orthonormal(count):
    """Rows of 8 float64 have 64 bytes, on which numpy 2.4 negates columns wrongly."""
    x = np.random.default_rng(0).normal(size=(200, 10))
    embedding = by_options.fit(x, kind="locally-linear-embedding", n_components=count, n_neighbors=15).embedding
    np.testing.assert_allclose(embedding.T @ embedding, np.eye(count), atol=1e-10)
    assert np.all(np.abs(embedding).max(axis=0) == embedding.max(axis=0))


def test_affinities_that_underflow_between_parts_are_refused():
    x = np.random.default_rng(0).normal(0, 0.1, (120, 2)) + np.repeat([[0, 0], [40, 0]], 60, axis=0)
    graph = streampca.neighbors(x, n_neighbors=60)
    with pytest.raises(DataError, match=r"affinities are 0 between 2 parts .* give a smaller gamma, or none"):
        by_options.fit(x, graph=graph, kind="spectral-embedding", gamma=1.0)


def test_an_axis_that_places_nothing_is_named():
    line = np.arange(8.0)[:, None]
    model = by_options.fit(line, kind="spectral-embedding", n_components=3, n_neighbors=2)
    with pytest.raises(ModelError, match=r"eigenvalue 1 of the Laplacian makes .* along axis 3 unstable"):
        model.transform(line)
    assert np.isfinite(by_options.fit(line, kind="spectral-embedding", n_neighbors=2).transform(line)).all()


def test_three_samples_make_two_clusters():
    x = np.array([[0.0, 0], [0, 1], [5, 5]])
    model = by_options.fit(x, kind="spectral-clustering", n_clusters=2, n_neighbors=2)
    assert len(set(model.labels.tolist())) == 2


def test_images_are_projected_first():
    """60 images of a blob on a circle: neighbours by principal components find the circle."""
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    y, x = np.mgrid[-1:1:12j, -1:1:12j]
    right, down = np.cos(angles)[:, None, None] / 2, np.sin(angles)[:, None, None] / 2
    images = np.exp(-8 * ((x - right) ** 2 + (y - down) ** 2))
    model = by_options.fit(images, kind="spectral-embedding", n_neighbors=4, pca_components=10)
    assert model.pca.components.shape == (10, 12, 12)
    found = np.unwrap(np.arctan2(*model.embedding.T))
    slope = np.polyfit(angles, found, 1)
    assert np.abs(np.polyval(slope, angles) - found).max() < 0.15
    assert abs(abs(slope[0]) - 1) < 0.05


@pytest.mark.slow
def test_landmarks_approach_all(samples):
    """Isomap by 200 of 900 samples lies near that by all; landmarks are embedded as they would be by themselves."""
    rows = samples["roll"]
    whole = by_options.fit(rows, n_neighbors=NEIGHBORS, kind="isomap")
    some = by_options.fit(rows, n_neighbors=NEIGHBORS, landmarks=200, kind="isomap")
    assert some.geodesics.shape == (900, 200)
    assert apart(some.embedding, whole.embedding) < 0.05
    placed = np.asarray(some.transform(rows))
    assert np.abs(placed - some.embedding).max() < 1e-4 * np.ptp(some.embedding)
    how = {"kind": "locally-linear-embedding", "n_neighbors": NEIGHBORS}
    model = by_options.fit(rows, **how, landmarks=400)
    drawn = model.reference_samples
    np.testing.assert_array_equal(model.embedding[drawn], by_options.fit(rows[drawn], **how).embedding)
    assert model.measured["n_landmarks"] == len(drawn) == 400


def test_a_graph_that_is_given(tmp_path, samples):
    rows = samples["roll"]
    np.save(tmp_path / "rows.npy", rows)
    source, path = str(tmp_path / "rows.npy"), tmp_path / "graph.zarr"
    streampca.neighbors(source, n_neighbors=NEIGHBORS, output=path)
    whole = by_options.fit(rows, kind="spectral-embedding", n_neighbors=NEIGHBORS)
    given = by_options.fit(source, kind="spectral-embedding", graph=path)
    np.testing.assert_array_equal(given.embedding, whole.embedding)
    assert given.n_neighbors == NEIGHBORS
    graph = streampca.NeighborGraph(*(getattr(streampca.load(path), each) for each in ("indices", "distances")))
    np.testing.assert_array_equal(
        by_options.fit(rows, graph=graph, kind="isomap").embedding,
        by_options.fit(source, graph=path, kind="isomap").embedding,
    )
    with pytest.raises(RequestError, match="of 900 samples, and numpy array has 899"):
        by_options.fit(rows[:899], graph=path, kind="isomap")
    np.save(tmp_path / "others.npy", rows + 1)
    with pytest.raises(RequestError, match="other samples"):
        by_options.fit(str(tmp_path / "others.npy"), graph=path, kind="isomap")


def test_laplacians_and_cuts(samples):
    """The unnormalized Laplacian's eigenvectors are those of D - W; cuts are those counted by hand."""
    rows = samples["roll"][:300]
    model = by_options.fit(
        rows, kind="spectral-clustering", n_clusters=2, n_neighbors=NEIGHBORS, laplacian="unnormalized", gamma=0.01
    )
    graph = sp.csr_array(manifold_graph(rows))
    dense = np.diag(graph.sum(axis=1)) - graph.toarray()
    values = np.linalg.eigvalsh(dense)[:2]
    np.testing.assert_allclose(model.embedding_eigenvalues, values, atol=1e-10)
    inside = model.labels == 0
    crossing = graph.toarray()[inside][:, ~inside].sum()
    assert model.measured["ratio_cut"] == pytest.approx(crossing / inside.sum() + crossing / (~inside).sum())


def manifold_graph(rows):
    distances = np.linalg.norm(rows[:, None] - rows, axis=-1)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1)[:, :NEIGHBORS]
    weights = np.zeros_like(distances)
    np.put_along_axis(weights, nearest, np.exp(-0.01 * np.take_along_axis(distances, nearest, 1) ** 2), 1)
    return (weights + weights.T) / 2


def test_a_disconnected_graph_is_refused_with_remedies_that_work():
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(60, 3)), 50 + random.normal(size=(20, 3))])
    with pytest.raises(DataError, match=r"60, 20.*largest_component=True") as raised:
        by_options.fit(rows, n_neighbors=5, kind="isomap")
    model = by_options.fit(rows, n_neighbors=5, largest_component=True, kind="isomap")
    np.testing.assert_array_equal(model.embedded_samples, np.arange(60))
    assert "20 samples outside" in " ".join(model.notes)
    for kind in ("locally-linear-embedding", "maximum-variance-unfolding", "spectral-embedding"):
        assert len(by_options.fit(rows, kind=kind, n_neighbors=5, largest_component=True).embedding) == 60
    connecting = int(str(raised.value).split("n_neighbors=")[1].split()[0])
    assert len(by_options.fit(rows, n_neighbors=connecting, kind="isomap").embedding) == 80


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"n_neighbors": 40}, RequestError, "n_neighbors 40 is not below the 40 samples"),
        ({"landmarks": 50}, RequestError, "landmarks 50 do not go with 40 samples"),
        ({"n_components": 40}, RequestError, "n_components 40 is too large for 40 samples; give at most 39"),
        ({"kind": "locally-linear-embedding", "reg": 0}, RequestError, "reg = 0: give a number above 0"),
        ({"reg": 0.1}, TypeError, r"'reg' is an option of kinds of model; give it to one, such as streampca.Locally"),
        ({"kind": "locally-linear-embedding", "landmarks": 4}, RequestError, "give 6 to 40"),
        ({"kind": "spectral-embedding", "gamma": 1e9}, RequestError, "gamma is too large"),
        ({"memory": "1 MiB"}, BudgetError, "Set memory to at least"),
    ],
)
def test_refusals(how, error, match):
    with pytest.raises(error, match=match):
        by_options.fit(np.random.default_rng(0).random((40, 3)), **{"kind": "isomap"} | how)


def test_estimators_give_all_samples_a_place_in_their_type(monkeypatch):
    """Samples outside the largest component, and no others, are placed as `transform` places them."""
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(60, 3)), 9 + random.normal(size=(20, 3))]).astype(np.float32)
    placed, transform = [], EmbeddingModel.transform
    monkeypatch.setattr(
        EmbeddingModel, "transform", lambda self, some, **how: placed.append(len(some)) or transform(self, some, **how)
    )
    for estimator in (
        streampca.Isomap(largest_component=True),
        streampca.SpectralClustering(2, largest_component=True),
    ):
        placed.clear()
        with pytest.warns(UserWarning, match="20 samples outside the largest"):
            estimator.fit(rows)
        assert estimator.embedding_.shape == (80, 2)
        assert estimator.embedding_.dtype == np.float32
        np.testing.assert_array_equal(estimator.embedding_[60:], estimator.transform(rows[60:]))
        assert placed == [20, 20]
    assert estimator.labels_.shape == (80,)
    np.testing.assert_array_equal(estimator.labels_[60:], estimator.predict(rows[60:]))


def test_isomap_has_scikit_learns_attributes(samples):
    rows = samples["roll"][:300]
    ours, other = streampca.Isomap(n_neighbors=8).fit(rows), manifold.Isomap(n_neighbors=8).fit(rows)
    np.testing.assert_allclose(ours.dist_matrix_, other.dist_matrix_, rtol=1e-12)
    assert ours.reconstruction_error() == pytest.approx(other.reconstruction_error(), rel=1e-8)
    with pytest.raises(AttributeError, match="only landmarks were measured from"):
        streampca.Isomap(n_neighbors=8, landmarks=50).fit(rows).reconstruction_error()
    with pytest.raises(RequestError, match="n_neighbors"):
        streampca.Isomap(n_neighbors=None).fit(rows)


def test_points_on_a_line_have_no_second_dimension():
    line = np.arange(6)[:, None] * np.array([3.0, 4.0])  # whose distances are exact in float32
    found = streampca.Isomap(n_neighbors=2, n_components=2).fit(line)
    np.testing.assert_array_equal(found.embedding_[:, 1], 0)
    assert np.ptp(found.embedding_[:, 0]) == pytest.approx(25)
    np.testing.assert_allclose(found.transform(line), found.embedding_, atol=1e-12)
    assert any("are 0 beyond 1 dimension:" in note for note in found.model_.notes)
    with pytest.raises(DataError, match="from 3 landmarks have 1 positive eigenvalues, and 2"):
        streampca.Isomap(n_neighbors=2, n_components=2, landmarks=3).fit(line)


def test_affinities_of_a_matrix(samples):
    rows = samples["roll"][:200] / 10
    kernel = rbf_kernel(rows, gamma=0.5)
    theirs = manifold.SpectralEmbedding(3, affinity="rbf", gamma=0.5, eigen_solver="arpack", random_state=0)
    expected = theirs.fit_transform(rows)
    cases = [("rbf", rows, 0.5), ("precomputed", kernel, None), ("precomputed", sp.csr_array(kernel), None)]
    for how, given, gamma in cases:
        ours = streampca.SpectralEmbedding(3, affinity=how, gamma=gamma).fit(given)
        assert apart(ours.embedding_, expected) < 1e-6
        assert abs(ours.affinity_matrix_ - theirs.affinity_matrix_).max() < 1e-12
    with pytest.raises(AttributeError, match="affinities place no other samples"):
        ours.transform(rows)
    clusters = streampca.SpectralClustering(3, affinity="rbf", gamma=0.5).fit(rows)
    other = SpectralClustering(3, affinity="rbf", gamma=0.5, random_state=0).fit(rows)
    assert adjusted_rand_score(clusters.labels_, other.labels_) > 0.98
    assert 0 < clusters.cuts_["normalized_cut"] < 3
    for name in ("rbf", "chi2"):  # whose gamma is 1 by default
        ours, other = (
            cls(2, affinity=name).fit(abs(rows)) for cls in (streampca.SpectralClustering, SpectralClustering)
        )
        np.testing.assert_allclose(ours.affinity_matrix_, other.affinity_matrix_)


@pytest.mark.parametrize(
    ("matrix", "error", "match"),
    [
        (np.ones((4, 3)), RequestError, "give a square matrix"),
        (np.triu(np.ones((9, 9))), RequestError, "is not symmetric"),
        (1 - 2 * np.eye(9)[::-1], RequestError, "below 0"),
        (np.where(np.eye(9)[::-1], np.nan, 1), DataError, "NaN or infinity"),
        (np.kron(np.eye(3), np.ones((3, 3))), DataError, "0 between 3 parts of the samples, of 3, 3, 3"),
    ],
)
def test_bad_affinities_are_refused(matrix, error, match):
    with pytest.raises(error, match=match):
        streampca.SpectralEmbedding(1, affinity=lambda rows: matrix).fit(np.arange(len(matrix))[:, None])


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"affinity": "rfb"}, "'rfb' is not one of nearest_neighbors, precomputed, .*rbf"),
        ({"affinity": "rbf", "n_neighbors": 5}, "n_neighbors does nothing with affinity 'rbf'"),
        ({"affinity": "rbf", "largest_component": True}, "largest_component does nothing"),
        ({"affinity": "cosine", "gamma": 2.0}, "gamma does nothing with affinity 'cosine'"),
        ({"affinity": "precomputed", "gamma": 2.0}, "gamma does nothing with affinity 'precomputed'"),
    ],
)
def test_options_that_do_nothing_with_an_affinity_are_refused(how, match):
    with pytest.raises(RequestError, match=match):
        streampca.SpectralEmbedding(1, **how).fit(np.eye(9) + 1)


def test_a_kernel_is_refused_before_it_is_made(monkeypatch):
    rows = np.random.default_rng(0).random((1200, 3))
    with pytest.raises(BudgetError) as raised:
        streampca.SpectralEmbedding(2, affinity="rbf", run=streampca.Run(memory="60 MiB")).fit(rows)
    least = remedy(raised.value)
    found = streampca.SpectralEmbedding(2, affinity="rbf", run=streampca.Run(memory=least)).fit(rows)
    assert np.isfinite(found.embedding_).all()
    monkeypatch.setattr("sklearn.metrics.pairwise.pairwise_kernels", None)
    with pytest.raises(BudgetError):
        streampca.SpectralEmbedding(2, affinity="rbf", run=streampca.Run(memory=least - 2**21)).fit(rows)


@pytest.mark.campaign
@parametrize_with_checks(
    [streampca.Isomap(largest_component=True), streampca.LocallyLinearEmbedding(largest_component=True)]
)
@pytest.mark.filterwarnings("ignore:the number of connected components")
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", ["isomap", "spectral-embedding"])
def test_the_budget_that_is_named_is_enough(kind):
    images, how = load_digits().images[:400], {"kind": kind, "pca_components": 20, "n_neighbors": 15}
    with pytest.raises(BudgetError) as raised:
        by_options.fit(images, **how, memory="1 MiB")
    by_options.fit(images, **how, memory=remedy(raised.value))


def test_a_plan_of_all_stages_without_the_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", load_digits().images[:300])
    words = ("plan", "images.npy", "--n-neighbors", 12, "--memory", "1GiB", "--kind")
    with monkeypatch.context() as patched:
        patched.setattr(FlatArray, "read_into", None)
        said = succeeded(*words, "isomap")
        weights = succeeded(*words, "locally-linear-embedding", "--landmarks", 100, "--largest-component")
        scores = succeeded(*words, "isomap", "--pca-components", 20)
    assert "by all 64 features" in said
    assert "20 by method covariance" in scores
    assert "exact search by matrix products" in said
    assert "geodesic distances from all 300 samples" in said
    assert "if the graph is not connected, it is refused" in said
    phases = ("components, pass", "scores", "neighbours, search", "embedding, geodesics", "embedding, diagnostics")
    for phase in phases:
        assert re.search(rf"^ +\d.*B  {phase}; the largest", scores, re.MULTILINE), phase
    assert "by the weights of 100 landmarks; the other 200 samples are placed by their weights" in " ".join(
        weights.split()
    )
    assert "placed by 100 of the fitted samples" in weights
    assert "its largest component is embedded" in weights
    told = []
    by_options.fit("images.npy", n_neighbors=12, memory="1GiB", listener=told.append, kind="isomap")
    assert str(next(event.plan for event in told if isinstance(event, Planned))) == said.rstrip("\n")
    streampca.neighbors("images.npy", n_neighbors=12, output="graph.zarr")
    assert "from the graph given" in succeeded(*words, "isomap", "--graph", "graph.zarr")


def test_bad_samples_are_refused_in_a_line():
    with pytest.raises(DataError, match="equal"):
        by_options.fit(np.ones((30, 4)), n_neighbors=5, kind="isomap")
    rows = np.random.default_rng(0).random((30, 4))
    rows[7, 2] = np.nan
    with pytest.raises(DataError, match=r"sample 7.*NaN"):
        by_options.fit(rows, n_neighbors=5, kind="isomap")
    with pytest.raises(DataError, match="at least 3 samples"):
        by_options.fit(rows[:2], n_neighbors=1, kind="isomap")


@pytest.mark.parametrize("count", [None, 3])
def test_incomplete_samples_are_placed_as_they_were_fitted(count):
    """Samples that the fit left out get no place, whatever they are compared by."""
    rows = np.random.default_rng(0).random((30, 4))
    rows[7, 2] = np.nan
    description = streampca.Isomap(2, n_neighbors=5, missing="drop-samples", pca_components=count)
    placed = np.asarray(streampca.fit(rows, description).transform(rows))
    np.testing.assert_array_equal(np.isnan(placed).all(axis=1), np.arange(30) == 7)


def test_sparse_pairs_equal_dense_ones():
    """Products, factors and LAPACK find the same pairs of a ring's Laplacian; factors that do not fit are refused."""
    n = 1500
    ring = sp.diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[1, -1]).tolil()
    ring[0, n - 1] = ring[n - 1, 0] = 1
    laplacian = (sp.diags_array(np.full(n, 2.0)) - ring.tocsr()).tocsr() + sp.diags_array(np.linspace(0, 1e-3, n))
    expected = np.linalg.eigvalsh(laplacian.toarray())
    found = sparse.smallest_pairs(laplacian, 4, seed=0, room=2**30)
    assert found.solver == "factors"
    np.testing.assert_allclose(found.values, expected[:4], rtol=1e-8)
    top = sparse.largest_pairs((4 * sp.eye_array(n) - laplacian).tocsr(), 4, seed=0, bound=4.0, room=2**30)
    np.testing.assert_allclose(4 - top.values, expected[:4], rtol=1e-6)
    assert top.residuals.max() < 1e-8
    full = sp.csr_array(rbf_kernel(np.linspace(0, 3, 700)[:, None]))
    found = sparse.largest_pairs(full, 4, seed=0, bound=700.0, room=2**30)
    assert found.solver == "products"
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(full.toarray())[:-5:-1], rtol=1e-8)
    with pytest.raises(sparse.FactorsTooLargeError, match="memory leaves 0"):
        sparse.smallest_pairs(laplacian, 4, seed=0, room=0)


def test_the_budget_that_is_named_holds_the_factors(monkeypatch):
    monkeypatch.setattr(sparse, "FACTOR_BYTES", 2**14)
    how = {"kind": "locally-linear-embedding", "landmarks": "all", "reg": 0.1}
    how["n_neighbors"] = 15
    rows = load_digits().data[:700]
    with pytest.raises(BudgetError, match="factors of the matrix") as raised:
        by_options.fit(rows, memory="600 MiB", **how)
    assert len(by_options.fit(rows, memory=remedy(raised.value), **how).embedding) == 700


@pytest.mark.parametrize("factor_bytes", [2**20, 2**22])
def test_factors_that_do_not_fit_make_landmarks(monkeypatch, factor_bytes):
    """Where factors are taken to be larger than memory, as many samples as fit are embedded and place the others.

    The first number of landmarks, taken from the factors of all, has larger factors than memory in the second case.
    """
    monkeypatch.setattr(sparse, "FACTOR_BYTES", factor_bytes)
    told = []
    model = by_options.fit(
        load_digits().data, kind="locally-linear-embedding", n_neighbors=15, reg=0.1,
        memory="400 GiB", listener=told.append,
    )  # fmt: skip
    count = model.measured["n_landmarks"]
    assert 100 < count < 1797
    assert len(model.embedding) == 1797
    assert any(f"{count} random samples" in getattr(event, "message", "") for event in told)


def test_landmarks_that_their_graph_does_not_connect_are_placed():
    """A clump at the end of a chain: most landmarks are embedded, and the clump is placed like other samples."""
    random, told = np.random.default_rng(0), []
    chain = np.column_stack([np.arange(1.5, 4.9), np.zeros(4)])
    rows = np.concatenate([random.normal(0, 0.5, (300, 2)), chain, random.normal([5, 0], 0.05, (30, 2))])
    kind = streampca.LocallyLinearEmbedding(2, n_neighbors=4, landmarks=150)
    model = streampca.fit(rows, kind, listener=told.append)
    (warned,) = (event.message for event in told if isinstance(event, Warned))
    left_out = int(re.match(r"(\d+) landmarks outside the largest component", warned)[1])
    assert 0 < left_out < 15
    assert model.measured["n_landmarks"] == len(model.reference_samples) == 150 - left_out
    assert model.embedding.shape == (334, 2)
    assert np.isfinite(model.embedding).all()
    with pytest.raises(DataError, match=r"is not connected, and \d+ lie outside .* give more neighbours"):
        streampca.fit(rows, kind.replaced(n_neighbors=2, landmarks=40, largest_component=True))


def test_scaling_of_points_in_a_plane_is_exact():
    """Landmark scaling of Euclidean distances gives the points back, whatever the landmarks."""
    points = np.random.default_rng(0).normal(size=(200, 2)) * [3, 1]
    points -= points.mean(axis=0)
    points = points @ np.linalg.eigh(points.T @ points)[1][:, ::-1]
    landmarks = np.arange(0, 200, 9)
    distances = np.linalg.norm(points[landmarks][:, None] - points, axis=-1)
    scaling = Scaling.of(distances, landmarks, 2)
    assert apart(scaling.place(distances.T), points) < 1e-10
    assert scaling.negative_share < 1e-10


class Stopping:
    """Listener that breaks a run off when a stage begins, and lists what it was told."""

    def __init__(self, word=None):
        self.word, self.told = word, []

    def __call__(self, event):
        what = getattr(event, "label", getattr(event, "what", ""))
        self.told.append(what)
        if self.word is not None and self.word in what:
            raise KeyboardInterrupt


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("kind", "word", "done"),
    [
        ("isomap", "neighbours", ["scores"]),
        ("isomap", "geodesic", ["scores", "neighbours"]),
        ("isomap", "scaling", ["scores", "neighbours", "geodesic"]),
        ("spectral-embedding", "eigenvectors of the graph", ["scores", "neighbours"]),
        ("locally-linear-embedding", "how far", ["scores", "neighbours", "eigenvectors of locally"]),
    ],
)
def test_finished_stages_are_not_done_again(tmp_path, kind, word, done):
    images = load_digits().images[:300]
    np.save(tmp_path / "images.npy", images)
    how = {"kind": kind, "n_neighbors": 10, "pca_components": 20}
    whole = by_options.fit(str(tmp_path / "images.npy"), **how)
    how |= {"checkpoint": tmp_path / "checkpoint", "output": tmp_path / "model.zarr"}
    with pytest.raises(KeyboardInterrupt):
        by_options.fit(str(tmp_path / "images.npy"), **how, listener=Stopping(word))
    told = Stopping()
    resumed = by_options.fit(str(tmp_path / "images.npy"), **how, listener=told)
    np.testing.assert_array_equal(resumed.embedding, whole.embedding)
    assert not [each for each in told.told if each.startswith(tuple(done))]
    assert not (tmp_path / "checkpoint").exists()


def test_what_a_killed_process_left_goes_with_the_next_one(tmp_path):
    left = tmp_path / f"model.zarr{SCRATCH}"
    left.mkdir()
    (left / "scores.npy").write_bytes(b"of half a run")
    by_options.fit(load_digits().images[:100], output=tmp_path / "model.zarr", kind="isomap")
    assert [each.name for each in tmp_path.iterdir()] == ["model.zarr"]


def test_another_request_is_not_resumed(tmp_path):
    rows = np.random.default_rng(0).random((60, 4))
    how = {"kind": "isomap", "checkpoint": tmp_path / "checkpoint"}
    with pytest.raises(KeyboardInterrupt):
        by_options.fit(rows, n_neighbors=8, **how, listener=Stopping("scaling"))
    with pytest.raises(streampca.errors.OutputError, match="n_neighbors 8"):
        by_options.fit(rows, n_neighbors=9, **how)


def test_a_refused_graph_is_kept_for_its_largest_component(tmp_path):
    """Its remedies work in the same place: the same request with it goes on, one of more neighbours begins anew."""
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(60, 3)), 50 + random.normal(size=(20, 3))])
    how = {"kind": "isomap", "pca_components": 2, "checkpoint": tmp_path / "checkpoint"}
    for _ in range(2):
        with pytest.raises(DataError, match=r"goes on from the graph in .*checkpoint\.$") as raised:
            by_options.fit(rows, n_neighbors=5, **how)
    told = Stopping()
    assert len(by_options.fit(rows, n_neighbors=5, largest_component=True, **how, listener=told).embedding) == 60
    assert not {"scores", "neighbours"} & set(told.told)
    assert not (tmp_path / "checkpoint").exists()
    with pytest.raises(DataError):
        by_options.fit(rows, n_neighbors=5, **how)
    connecting = int(str(raised.value).split("n_neighbors=")[1].split()[0])
    told = []
    assert len(by_options.fit(rows, n_neighbors=connecting, **how, listener=told.append).embedding) == 80
    assert any("starts from the beginning" in getattr(event, "message", "") for event in told)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
def test_report_draws_labels_and_images(tmp_path):
    digits = load_digits()
    np.save(tmp_path / "images.npy", digits.images[:200])
    np.save(tmp_path / "labels.npy", digits.target[:200])
    model = by_options.fit(
        str(tmp_path / "images.npy"), n_neighbors=10, labels=str(tmp_path / "labels.npy"), kind="isomap"
    )
    pictures = tmp_path / "pictures"
    streampca.write_report(model, tmp_path / "report.html", figures=pictures)
    assert {path.stem for path in pictures.iterdir()} == {"scores", "quantiles", "scree", "neighborhoods"}
    page = (tmp_path / "report.html").read_text()
    assert "<title>Isomap of images.npy</title>" in page
    assert "coloured by label" in page
    assert "trustworthiness" in page.lower()
    gaps = by_options.fit(digits.data[:200], kind="spectral-embedding", n_neighbors=10)
    assert "largest gap" in streampca.plot.eigengap(gaps).get_title()
    with pytest.raises(ModelError, match="kind 'isomap'"):
        streampca.plot.residual_variance(gaps)


def test_unfolding_by_model(tmp_path, samples):
    """A strip rolled up is unfolded, and stored; 150 landmarks place the others."""
    random = np.random.default_rng(0)
    angle = np.repeat(np.linspace(4, 9, 20), 5) + random.normal(scale=0.03, size=100)
    height = np.tile(np.linspace(0, 4, 5), 20) + random.normal(scale=0.1, size=100)
    rows = np.column_stack([angle * np.cos(angle), height, angle * np.sin(angle)])
    found = streampca.MaximumVarianceUnfolding(n_neighbors=6).fit(rows)
    assert found.violations_["largest_violation"] < 5e-3
    assert found.gap_ < 1e-4
    assert not found.short_circuits_
    arc = (angle * np.sqrt(1 + angle**2) + np.arcsinh(angle)) / 2
    assert np.corrcoef(found.embedding_[:, 0], arc)[0, 1] ** 2 > 0.99
    found.model_.save(tmp_path / "model.zarr")
    loaded = streampca.load(tmp_path / "model.zarr")
    assert np.abs(np.asarray(loaded.transform(rows)) - found.embedding_).max() < 0.05 * np.ptp(found.embedding_)
    some = by_options.fit(rows, kind="maximum-variance-unfolding", n_neighbors=6, landmarks=60)
    assert some.measured["n_landmarks"] == 60
    assert len(some.embedding) == 100


def test_an_unfolding_that_has_not_converged_is_written_marked_and_refused(tmp_path, monkeypatch):
    """One soft round leaves edges wrong by tens of per cent; the landmarks that the message names unfold exactly."""
    angle = 1.5 * np.pi * (1 + 2 * np.random.default_rng(0).random((150, 1)))
    rows = np.hstack([angle * np.cos(angle), angle * np.sin(angle), 10 * np.random.default_rng(1).random((150, 1))])
    np.save(tmp_path / "roll.npy", rows)
    monkeypatch.setattr(laplacian_factorization, "_ROUNDS", 1)
    monkeypatch.setattr(laplacian_factorization, "_STIFFNESS", 2.0)
    monkeypatch.setattr(maximum_variance, "unfolded_exactly", lambda n_edges, n_samples: n_samples <= 100)
    options = ["--kind", "maximum-variance-unfolding", "--n-neighbors", "18", "-q"]
    command = ["fit", tmp_path / "roll.npy", *options, "-o", tmp_path / "model.zarr"]
    ended = CliRunner().invoke(cli, [str(word) for word in command])
    model = streampca.load(tmp_path / "model.zarr")
    assert isinstance(ended.exception, NotConvergedError)
    assert ended.exception.exit_code == 1
    assert str(ended.exception) == f"{tmp_path / 'model.zarr'}: {model.failure}"
    assert model.measured["median_violation"] > 0.02
    assert not model.measured["converged"]
    assert any("not converged: 100 landmarks" in note for note in model.notes)
    events = []
    some = streampca.fit(
        rows,
        streampca.MaximumVarianceUnfolding(n_neighbors=18, landmarks=100),
        run=streampca.Run(listener=events.append),
    )
    assert some.failure is None
    assert some.measured["violation_95"] < 1e-3
    assert not any("converged" in event.message for event in events if isinstance(event, Warned))


def test_actions_by_model(tmp_path):
    """15 steps forward and 7 back move images of a blob on a line by one shift each; both are played forward."""
    steps = np.repeat([0.1, -0.1], [15, 7])
    at = np.append(0, np.cumsum(steps))
    images = np.exp(-((np.linspace(-1, 2.5, 60) - at[:, None]) ** 2) / 0.1)
    actions = np.repeat(["on", "back"], [15, 7])
    found = streampca.ActionRespectingEmbedding(1, n_neighbors=2).fit(images, actions)
    assert np.corrcoef(found.embedding_[:, 0], at)[0, 1] ** 2 > 0.9999
    found.model_.save(tmp_path / "model.zarr")
    loaded = streampca.load(tmp_path / "model.zarr")
    path = loaded.play(loaded.embedding[3], ["on", "on", "back"])
    np.testing.assert_allclose(path[:, 0], found.embedding_[[3, 4, 5, 4], 0], atol=1e-3)
    assert list(loaded.actions) == ["back", "on"]
    with pytest.raises(RequestError, match="'up' was not learned"):
        loaded.play(loaded.embedding[3], ["up"])
    np.save(tmp_path / "actions.npy", np.append(actions, "end"))
    by_column = by_options.fit(
        images, kind="action-respecting-embedding", n_components=1, n_neighbors=2, target=tmp_path / "actions.npy"
    )
    np.testing.assert_array_equal(by_column.embedding, found.embedding_)
    images[5, 3] = np.nan
    with pytest.raises(RequestError, match=r"1 of the samples .* actions lead from each sample to the next one"):
        by_options.fit(images, kind="action-respecting-embedding", target=actions, missing="drop-samples")
    with pytest.raises(RequestError, match="learns from the action after each sample; give target=column"):
        by_options.fit(images, kind="action-respecting-embedding")
    with pytest.raises(RequestError, match="target is what supervised kinds of model learn from, and kind is 'isomap'"):
        by_options.fit(images, target=actions, kind="isomap")


def test_run_files_embed_and_use_their_model_again(tmp_path):
    steps = np.repeat([1, -1], [12, 6])
    at = np.append(0, np.cumsum(steps))
    np.save(tmp_path / "views.npy", np.exp(-((np.linspace(-5, 15, 40) - at[:, None]) ** 2) / 8))
    np.save(tmp_path / "moves.npy", np.append(steps, 0))
    given = {
        "collection": {"source": str(tmp_path / "views.npy"), "target": str(tmp_path / "moves.npy")},
        "model": {"kind": "action-respecting-embedding", "n_components": 1, "n_neighbors": 3},
        "output": {"directory": str(tmp_path / "run"), "transform": True},
    }  # fmt: skip
    first = execute(make_run(given))
    assert first.model.kind == "action-respecting-embedding"
    assert np.asarray(zarr.open_array(tmp_path / "run" / "scores.zarr" / "scores")).shape == (19, 1)
    told = Stopping()
    again = execute(make_run(given), told)
    np.testing.assert_array_equal(again.model.embedding, first.model.embedding)
    assert not any("semidefinite" in each for each in told.told)
    events = []
    execute(make_run({**given, "model": {**given["model"], "n_neighbors": 4}}), events.append)
    assert any("replaced: it was fitted with n_neighbors 3 and this run has 4" in describe(event) for event in events)
    with pytest.raises(RequestError, match=r"model\.n_clusters is not a parameter of action-respecting-embedding"):
        execute(make_run({**given, "model": {**given["model"], "n_clusters": 3}}))
