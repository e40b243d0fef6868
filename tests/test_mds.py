"""Classical scaling: principal coordinates of distances, and diagnostics of distances that are not Euclidean."""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from pathlib import Path

import by_options
import numpy as np
import pytest
import zarr
from judged import warnings
from scipy.sparse.csgraph import shortest_path
from scipy.spatial import procrustes
from shell import measured, succeeded
from sklearn import decomposition, manifold
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.utils.estimator_checks import parametrize_with_checks

import streampca
from streampca import plot
from streampca.accumulators import EntryError, SymmetricBlock, SymmetricRows
from streampca.accumulators.gram_probes import remove_mean_part
from streampca.errors import BudgetError, DataError, ModelError, RequestError
from streampca.planning import symmetric
from streampca.testing import AccumulatorLaws
from streampca.units import parse_bytes

try:
    from sklearn.manifold.tests import test_classical_mds as sklearn_tests
except ImportError:
    sklearn_tests = None

HOW = {"kind": "classical-mds", "metric": "precomputed"}
KERNEL = {"kind": "kernel-pca", "kernel": "precomputed"}
RNG = np.random.default_rng(0)
POINTS = RNG.standard_normal((300, 20)) / np.arange(1, 21)
DISTANCES = pairwise_distances(POINTS)


def apart(one, other):
    """Return the largest difference of coordinates, up to the sign of each axis, relative to the largest coordinate."""
    signs = np.sign(np.einsum("ij,ij->j", one, other))
    return np.abs(one * signs - other).max() / np.abs(other).max()


def tree(depth):
    """Return distances between the nodes of a binary tree along its edges, all of length 1."""
    n = 2**depth - 1
    found = np.zeros((n, n), np.uint8)
    for one in range(n):
        for other in range(n):
            a, b, steps = one + 1, other + 1, 0
            while a != b:
                a, b, steps = (a // 2, b, steps + 1) if a > b else (a, b // 2, steps + 1)
            found[one, other] = steps
    return found


def roads(n=120):
    """Return distances between places along roads, where each place has a road to its four nearest neighbours."""
    places = np.random.default_rng(5).uniform(0, 100, (n, 2))
    straight = pairwise_distances(places)
    near = np.where(straight <= np.sort(straight, axis=1)[:, [4]], straight, 0)
    found = shortest_path(np.maximum(near, near.T), directed=False)
    assert np.isfinite(found).all()
    return (found + found.T) / 2


def centred(distances):
    """Return B = -1/2 H D^2 H."""
    made = -0.5 * distances.astype(np.float64) ** 2
    return made - made.mean(axis=0) - made.mean(axis=1)[:, None] + made.mean()


@pytest.fixture(params=["held", "products"])
def way(request, monkeypatch):
    """Schedule of a fit: the matrix is held in memory, or read pass after pass however small it is."""
    if request.param == "products":
        monkeypatch.setattr(symmetric, "WORTH_ITERATING", 0)
        monkeypatch.setattr(symmetric.HeldSizes, "fits", lambda sizes, memory: False)
    return request.param


# -- the sums


@pytest.mark.parametrize("cuts", [[1, 9, 9], [30, 31, 60]])
def test_sums_obey_the_laws(cuts):
    """They hold to rounding, as the number of rows converted to float64 at a time depends on the cuts."""
    matrix = DISTANCES[:64, :64].astype(np.float32)
    block = remove_mean_part(RNG.standard_normal((64, 3)), np.ones(64))

    def same(one, other):
        for name, value in one.state().items():
            np.testing.assert_allclose(value, other.state()[name], rtol=1e-9, atol=1e-9, err_msg=name)

    for measures in (True, False):
        new = partial(SymmetricBlock, block, distances=False, measures=measures, product_rows=7)
        AccumulatorLaws(new, same).check(np.split(matrix.copy(), cuts))
    AccumulatorLaws(lambda: SymmetricRows(64, distances=False)).check(np.split(matrix.copy(), cuts))


def test_products_and_sums_are_those_of_the_centred_matrix():
    """The norm loses no digits where entries are far from 0."""
    block = remove_mean_part(RNG.standard_normal((300, 4)), np.ones(300))
    found, exact = SymmetricBlock(block), centred(DISTANCES)
    found.update(DISTANCES)
    measured = found.probes()
    assert measured.trace == pytest.approx(np.trace(exact), rel=1e-12)
    assert measured.norm_squared == pytest.approx(np.sum(exact**2), rel=1e-12)
    assert np.abs(measured.skew).max() < 1e-10
    np.testing.assert_allclose(found.take(), exact @ block, atol=1e-10)


# -- what it finds


def test_distances_of_points_give_their_principal_components(way):
    """Scores, variances and their shares are those of scikit-learn's PCA, within the bounds reported."""
    pca = PCA(6).fit(POINTS)
    model = by_options.fit(DISTANCES, n_components=6, tol=1e-9, **HOW)
    assert model.provenance["plan"]["solver"] == ("dense" if way == "held" else "lanczos")
    assert apart(model.embedding, pca.transform(POINTS)) < 1e-8
    np.testing.assert_allclose(model.explained_variance, pca.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio, pca.explained_variance_ratio_, rtol=1e-8)
    np.testing.assert_allclose(model.mds_eigenvalues, np.sum(model.embedding**2, axis=0))
    assert np.all(np.abs(model.explained_variance / pca.explained_variance_ - 1) <= model.residual_bound + 1e-15)
    assert model.negative_share[0] < 1e-12
    assert model.summary()["trust"]["leading"] == 6


def test_a_matrix_of_inner_products_gives_the_scores_of_kernel_pca(way, tmp_path):
    """The axes are eigenvectors of H K H, and new samples are placed by their rows of the kernel, also lazily."""
    rows, others = POINTS[:250], POINTS[250:]
    np.save(tmp_path / "kernel.npy", rbf_kernel(rows, gamma=0.5))
    model = by_options.fit(tmp_path / "kernel.npy", n_components=5, tol=1e-9, **KERNEL)
    peer = decomposition.KernelPCA(5, kernel="rbf", gamma=0.5).fit(rows)
    assert apart(model.embedding, peer.transform(rows)) < 1e-8
    np.testing.assert_allclose(model.mds_eigenvalues, peer.eigenvalues_, rtol=1e-9)
    across = rbf_kernel(others, rows, gamma=0.5)
    assert apart(model.transform(across), peer.transform(others)) < 1e-8
    np.save(tmp_path / "across.npy", across)
    assert apart(model.transform(str(tmp_path / "across.npy")).compute(), peer.transform(others)) < 1e-8
    assert "by their kernel" in repr(model)
    with pytest.raises(AttributeError, match="by their pairs with those fitted, which have no features"):
        model.reconstruct(across)
    with pytest.raises(RequestError, match="compares samples as a whole, so missing 'em'"):
        model.transform(across, missing="em")
    with pytest.raises(ModelError, match=r"draws are made of .* with those fitted, which have no features"):
        streampca.bootstrap(model, across)
    with pytest.raises(ModelError, match="of kind 'classical-mds-of-pairs', which has no images; draw its scores"):
        plot.mean_and_components(model)


@pytest.mark.parametrize("matrix", [-(POINTS @ POINTS.T), DISTANCES, np.diag(np.r_[-0.5, np.ones(299)])])
def test_what_is_no_matrix_of_inner_products_is_refused(way, matrix):
    with pytest.raises(DataError, match=r"has an eigenvalue of -[\d.e-]+ or less"):
        by_options.fit(matrix, n_components=3, **KERNEL)


def test_features_give_the_same_as_their_distances():
    """Features take the fit of principal components, which projects and makes images."""
    digits = load_digits().data
    model = by_options.fit(digits, kind="classical-mds", n_components=10)
    by_distances = by_options.fit(pairwise_distances(digits), n_components=10, **HOW)
    assert model.kind == "classical-mds"
    assert apart(by_distances.embedding, model.transform(digits)) < 1e-8
    assert apart(model.transform(digits), PCA(10).fit_transform(digits)) < 1e-8
    np.testing.assert_allclose(model.mds_eigenvalues, by_distances.mds_eigenvalues, rtol=1e-8)
    assert model.reconstruct(digits[:3]).shape == (3, 64)
    assert not hasattr(model, "embedding")


def test_a_map_is_found_in_its_distances():
    """The map of 50 places is found up to rotation and reflection."""
    places = RNG.uniform(0, 1000, (50, 2))
    model = by_options.fit(pairwise_distances(places), n_components=2, **HOW)
    *_, disparity = procrustes(places, model.embedding)
    assert disparity < 1e-20
    assert model.explained_variance_ratio.sum() == pytest.approx(1)
    assert model.stress(pairwise_distances(places)) < 1e-10


def test_new_samples_are_placed_by_their_distances(way, tmp_path):
    """They are placed where their features would be projected, at once, lazily and to files."""
    new = POINTS[:9] + 0.01 * RNG.standard_normal((9, 20))
    rows = pairwise_distances(new, POINTS)
    model = by_options.fit(DISTANCES, n_components=6, tol=1e-9, **HOW)
    pca = PCA(6).fit(POINTS)
    expected = pca.transform(new) * np.sign(np.sum(model.embedding * pca.transform(POINTS), axis=0))
    np.testing.assert_allclose(model.transform(rows), expected, atol=1e-7)
    np.testing.assert_allclose(model.transform(DISTANCES), model.embedding, atol=1e-7)
    np.save(tmp_path / "new.npy", rows)
    lazy = model.transform(tmp_path / "new.npy")
    np.testing.assert_array_equal(lazy.compute(), model.transform(rows))
    model.write_scores(tmp_path / "new.npy", tmp_path / "scores.zarr")
    np.testing.assert_allclose(zarr.open_group(tmp_path / "scores.zarr")["scores"][:], expected, atol=1e-7)
    assert model.transform(rows.astype(np.float32)).dtype == np.float64


@pytest.mark.parametrize(("distances", "lost"), [(tree(7), 0.0446), (roads(), 0.1385)], ids=["tree", "roads"])
def test_what_is_not_euclidean_is_said(way, distances, lost):
    """The share of negative eigenvalues is within its bounds, which are equal where all eigenvalues are known."""
    exact = np.linalg.eigvalsh(centred(distances))
    share = np.abs(exact[exact < 0]).sum() / np.abs(exact).sum()
    assert share == pytest.approx(lost, abs=1e-3)
    model = by_options.fit(distances, n_components=4, tol=1e-8, **HOW)
    least, most = model.negative_share
    assert least - 1e-12 <= share <= most + 1e-12
    np.testing.assert_allclose(model.mds_eigenvalues, exact[::-1][:4], rtol=1e-7)
    found = model.provenance["matrix"]
    assert found["trace"] == pytest.approx(exact.sum())
    assert found["frobenius_norm"] == pytest.approx(np.linalg.norm(exact))
    assert found["smallest_eigenvalue"] >= exact[0] - 1e-9
    assert model.outside is None or model.outside >= exact[-5] / (len(exact) - 1) * (1 - 1e-9)
    about = model.estimated_negative_share
    assert least - 1e-12 <= about <= most + 1e-12
    assert about == pytest.approx(share, rel=0.25)
    if way == "held":
        assert least == most
        assert (model.eigenvalues * (len(exact) - 1))[[0, -1]] == pytest.approx(exact[[-1, 0]])
        assert f"negative ones have {share:.2%}" in repr(model)


def test_how_many_dimensions_the_eigenvalues_say():
    """A fraction is one of the positive eigenvalues, None takes those above rounding, and too large a number warns."""
    square = pairwise_distances(RNG.standard_normal((30, 3)) * [3, 2, 1])
    assert by_options.fit(square, n_components=0.9, **HOW).n_components in (2, 3)
    assert by_options.fit(square, n_components=None, **HOW).n_components == 3
    events = []
    model = by_options.fit(square, n_components=5, listener=events.append, **HOW)
    assert model.n_components == 3
    assert warnings(events) == [
        "numpy array has 3 positive eigenvalues above rounding among those found, and 5 dimensions were asked for; "
        "there are no more."
    ]


def test_it_is_stored_as_what_it_is(tmp_path):
    """A loaded model is of the same class, and has no methods that need features."""
    model = by_options.fit(DISTANCES, n_components=3, **HOW)
    model.save(tmp_path / "model.zarr")
    loaded = streampca.load(tmp_path / "model.zarr")
    assert type(loaded) is type(model)
    np.testing.assert_array_equal(loaded.embedding, model.embedding)
    np.testing.assert_array_equal(loaded.transform(DISTANCES[:4]), model.transform(DISTANCES[:4]))
    assert "classical-mds" in json.dumps(loaded.summary())
    for name in ("reconstruct", "inverse_transform", "compression", "score_samples"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}', .* fitted, which have no features"):
            getattr(loaded, name)
    with pytest.raises(ModelError, match=r"5 rows and .* was fitted to 300 samples"):
        loaded.stress(DISTANCES[:5])


def test_the_negative_share_is_estimated_where_bounds_are_loose(monkeypatch):
    """The estimate by the random block is closer to the share than the bounds are."""
    monkeypatch.setattr(symmetric.HeldSizes, "fits", lambda sizes, memory: False)
    distances = pairwise_distances(load_digits().data[:600], metric="manhattan")
    exact = np.linalg.eigvalsh(centred(distances))
    share = np.abs(exact[exact < 0]).sum() / np.abs(exact).sum()
    for seed in range(3):
        model = by_options.fit(distances, n_components=5, random_state=seed, **HOW)
        assert np.abs(model.negative_share / share - 1).min() > 0.06
        assert model.estimated_negative_share == pytest.approx(share, rel=0.04)
    assert f", about {model.estimated_negative_share:.2%}" in repr(model)


# -- what is planned and refused


def test_plans_name_their_memory_and_say_what_was_not_taken():
    """A large matrix is read pass after pass; where that does not fit either, the refusal names the least memory."""
    plan = by_options.plan(shape="20000x20000", dtype="float32", n_components=10, memory="192 MiB", tol=1e-5, **HOW)
    assert (plan.method, plan.solver, plan.schedule) == ("symmetric", "lanczos", "products")
    assert plan.passes <= 10
    assert plan.memory_estimate.total <= 192 * 2**20
    assert "not taken   symmetric (dense): needs" in str(plan)
    with pytest.raises(BudgetError, match=r"method 'symmetric' needs .* Set memory to at least (\d+)MiB") as refusal:
        by_options.plan(shape="20000x20000", dtype="float32", n_components=10, memory="20 MiB", **HOW)
    least = re.search(r"at least (\w+)", str(refusal.value))[1]
    by_options.plan(shape="20000x20000", dtype="float32", n_components=10, memory=least, **HOW)


def spoilt(row, column, value, *, both=True):
    """Return the matrix of distances with one entry replaced."""
    made = DISTANCES.copy()
    made[row, column] = value
    if both:
        made[column, row] = value
    return made


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (
            spoilt(17, 250, 3.0, both=False),
            r"entry \((17, 250|250, 17)\) .* is not equal to entry \((250, 17|17, 250)\)",
        ),
        (spoilt(17, 17, 0.5), r"entry \(17, 17\) .* is 0.5, the distance of a sample from itself"),
        (spoilt(17, 250, -1.0), r"entry \(17, 250\) .* is -1, and no distance is negative"),
        (spoilt(17, 250, np.nan), r"entry \(17, 250\) .* is not finite"),
        (1e-100 * DISTANCES, "holds numbers so small that float64 does not hold their powers"),
        (1e100 * DISTANCES, r"entry \(0, \d+\) .* too large"),
        (np.zeros((9, 9)), "has no variance: all 9 samples are equal"),
    ],
)
def test_what_is_no_matrix_of_distances_is_refused(way, matrix, message):
    """The refusal is one line that names an entry."""
    with pytest.raises(DataError, match=message) as refusal:
        by_options.fit(matrix, n_components=3, **HOW)
    assert "\n" not in str(refusal.value)
    assert copy.copy(EntryError(1, 2, "is odd")).column == 2  # workers send a copy


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (POINTS, HOW, "takes a square matrix, and this one has 300 rows of 20 columns"),
        (DISTANCES, HOW | {"sample_weight": np.arange(300)}, "samples of a matrix of pairs count alike"),
        (
            DISTANCES,
            HOW | {"preparation": streampca.Preparation(scale=2.0)},
            "pairs of samples is analysed as it is",
        ),
        (DISTANCES, HOW | {"missing": "drop-samples"}, "a matrix of pairs of samples must have every entry"),
        (DISTANCES, HOW | {"n_components": "mp"}, "is a rule for samples of features"),
        (
            DISTANCES,
            HOW | {"method": "dual"},
            "takes samples of features, which metric='precomputed' is not",
        ),
        (DISTANCES, HOW | {"metric": "manhattan"}, "metric = 'manhattan': give 'euclidean' or 'precomputed'"),
        (DISTANCES, {"method": "symmetric"}, "method 'symmetric' makes a model of kind 'classical-mds'"),
    ],
)
def test_what_does_not_go_together_is_refused(source, options, message):
    """The refusal comes before anything is read."""
    with pytest.raises(RequestError, match=message):
        by_options.fit(source, **options)


def test_small_asymmetry_of_rounding_passes():
    """Distances computed row by row in float32 are asymmetric by that much."""
    noisy = DISTANCES.astype(np.float32) * (1 + 1e-7 * RNG.standard_normal((300, 300)).astype(np.float32))
    model = by_options.fit(noisy, n_components=3, **HOW)
    assert apart(model.embedding, PCA(3).fit_transform(POINTS)) < 1e-5


LARGE = """
import json, sys
import numpy as np
import streampca
from streampca.fitting import fit, methods
from streampca.models import classical_mds, store
from streampca.machine import PeakMeter
source, memory = sys.argv[1:]
kind = streampca.ClassicalMDS(5, metric="precomputed")
collection = streampca.open_collection(source)
plan = streampca.plan(collection, kind, memory=memory)
meter = PeakMeter()
model = streampca.fit(collection, kind, memory=memory)
print(json.dumps({"peak": meter.peak(), "estimate": plan.memory_estimate.total, "solver": plan.solver}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "solver"), [("40MiB", "lanczos"), ("1GiB", "dense")])
def test_the_memory_estimate_is_honest(tmp_path, memory, solver):
    """The matrix of 69 MiB is read pass after pass, and one of 17 MiB is held."""
    n = 1500 if solver == "dense" else 3000
    points = RNG.standard_normal((n, 50)) / np.arange(1, 51)
    layout = zarr.create_array(tmp_path / "d.zarr", shape=(n, n), chunks=(100, 500), dtype="float64")
    layout[:] = pairwise_distances(points)
    found = measured(LARGE, tmp_path / "d.zarr", memory)
    print(memory, round(found["peak"] / 2**20, 1), round(found["estimate"] / 2**20, 1))
    assert found["solver"] == solver
    assert found["peak"] <= found["estimate"] <= parse_bytes(memory)


# -- the estimator


@pytest.mark.skipif(sklearn_tests is None, reason="this scikit-learn has no ClassicalMDS, which came with 1.8")
def test_the_estimator_is_scikit_learns(tmp_path):
    """Coordinates, signs and eigenvalues agree for features, for distances and for a metric."""
    theirs = manifold.ClassicalMDS(3).fit(POINTS)
    np.save(tmp_path / "d.npy", DISTANCES)
    for given, how in ((POINTS, {}), (DISTANCES, {"metric": "precomputed"}), (POINTS, {"metric": "minkowski"})):
        ours = streampca.ClassicalMDS(3, **how)
        np.testing.assert_allclose(ours.fit_transform(given), theirs.embedding_, atol=1e-10)
        np.testing.assert_allclose(ours.eigenvalues_, theirs.eigenvalues_)
        np.testing.assert_allclose(ours.transform(given), ours.embedding_, atol=1e-10)
        assert list(ours.get_feature_names_out()) == ["classicalmds0", "classicalmds1", "classicalmds2"]
    on_disk = streampca.ClassicalMDS(3, metric="precomputed").fit(tmp_path / "d.npy")
    np.testing.assert_allclose(on_disk.embedding_, theirs.embedding_, atol=1e-10)
    with pytest.raises(RequestError, match="metric 'cosine' needs a table in memory"):
        streampca.ClassicalMDS(3, metric="cosine").fit(tmp_path / "d.npy")
    with pytest.raises(RequestError, match="n_components='many' is neither a whole number"):
        streampca.ClassicalMDS("many").fit(POINTS)


@pytest.mark.parametrize("metric", ["euclidean", "precomputed", "minkowski"])
def test_dimensions_that_samples_lack_are_0(metric):
    points = RNG.standard_normal((20, 2))
    given = pairwise_distances(points) if metric == "precomputed" else points
    ours = streampca.ClassicalMDS(4, metric=metric)
    embedding = ours.fit_transform(given)
    assert ours.n_components_ == len(ours.get_feature_names_out()) == 4
    np.testing.assert_array_equal(ours.eigenvalues_[2:], 0)
    np.testing.assert_array_equal(embedding[:, 2:], 0)
    np.testing.assert_allclose(pairwise_distances(embedding), pairwise_distances(points), atol=1e-12)
    np.testing.assert_allclose(ours.transform(given), embedding, atol=1e-12)
    if metric == "euclidean":
        np.testing.assert_allclose(ours.inverse_transform(embedding), points, atol=1e-12)


def test_landmarks_stand_for_all_samples():
    """All samples as landmarks give classical scaling, and some of them give little more stress."""
    digits = load_digits().data
    distances = pairwise_distances(digits)

    def stress(points):
        return np.linalg.norm(distances - pairwise_distances(points)) / np.linalg.norm(distances)

    exact = streampca.ClassicalMDS(10).fit(digits)
    every = streampca.ClassicalMDS(10, landmarks=len(digits)).fit(digits)
    assert apart(every.embedding_, exact.embedding_) < 1e-8
    some = streampca.ClassicalMDS(10, landmarks=150, rank=50).fit(digits)
    assert stress(some.embedding_) < 1.015 * stress(exact.embedding_)
    np.testing.assert_allclose(some.transform(digits[:9]), some.embedding_[:9], atol=1e-9)
    found = by_options.fit(digits, kind="classical-mds", landmarks=150, n_components=10)
    assert stress(found.transform(digits)) < 1.01 * stress(exact.embedding_)
    assert exact.inverse_transform(exact.transform(digits[:3])).shape == (3, 64)
    with pytest.raises(RequestError, match="rank=3 is an option of landmarks"):
        streampca.ClassicalMDS(2, rank=3).fit(digits)
    with pytest.raises(RequestError, match="metric_params belong to metrics that scikit-learn computes"):
        streampca.ClassicalMDS(2, metric_params={"p": 3}).fit(digits)
    with pytest.raises(RequestError, match="landmarks=5 are of metric 'euclidean'"):
        streampca.ClassicalMDS(2, metric="precomputed", landmarks=5).fit(distances)
    with pytest.raises(RequestError, match="landmarks=5000 are more than the 1797 samples"):
        streampca.ClassicalMDS(2, landmarks=5000).fit(digits)


@pytest.mark.parametrize("name", [name for name in dir(sklearn_tests) if name.startswith("test_")])
def test_scikit_learns_own_tests_pass(name, monkeypatch):
    """Only the words of a refusal differ."""
    monkeypatch.setattr(sklearn_tests, "ClassicalMDS", streampca.ClassicalMDS)
    if name == "test_classical_mds_wrong_inputs":
        with pytest.raises(AssertionError, match="Array must be symmetric"):
            getattr(sklearn_tests, name)()
    else:
        getattr(sklearn_tests, name)()


@parametrize_with_checks([streampca.ClassicalMDS()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# -- the command line


def test_the_command_line_scales_a_matrix(tmp_path, monkeypatch):
    """Commands fit, inspect and apply a model, and the run file they print makes the same model."""
    monkeypatch.chdir(tmp_path)
    np.save("d.npy", DISTANCES)
    np.save("new.npy", DISTANCES[:5])
    words = ["fit", "d.npy", "--kind", "classical-mds", "--metric", "precomputed", "-k", "3"]
    assert "3 dimensions by their distances" in succeeded(*words, "-o", "m.zarr")
    shown = json.loads(succeeded("inspect", "m.zarr", "--json"))
    assert (shown["kind"], shown["from_distances"]) == ("classical-mds-of-pairs", True)
    succeeded("transform", "m.zarr", "new.npy", "-o", "z.npy")
    assert apart(np.load("z.npy"), streampca.load("m.zarr").embedding[:5]) < 1e-10
    Path("run.yaml").write_text(succeeded(*words, "-o", "again.zarr", "--print-config"))
    succeeded("run", "run.yaml")
    again, model = (streampca.load(path) for path in ("again.zarr", "m.zarr"))
    np.testing.assert_array_equal(again.components, model.components)
