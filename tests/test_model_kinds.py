"""Every kind of model: saved, loaded, described and applied alike, without a name that it refuses always."""

from __future__ import annotations

import copy
import inspect
import json

import numpy as np
import pytest
from shell import refused, succeeded
from sklearn.datasets import load_digits, make_moons

import streampca
from streampca import plot
from streampca.errors import DataError, Door, ModelError, RequestError, messages_at
from streampca.manifold.isomap import Scaling
from streampca.manifold.placement import BarycentricPlacement, GeodesicPlacement, NystroemPlacement
from streampca.models.embedding import PlacedSubspace
from streampca.models.images import InvertibleModel, ReconstructingModel
from streampca.models.registry import MODEL_KINDS, model_class
from streampca.models.store import AXES
from streampca.models.subspace import Subspace
from streampca.units import format_bytes

DIGITS = load_digits().images[:80].astype(np.uint8)
LABELS = load_digits().target[:80]
ROWS = DIGITS.reshape(80, -1).astype(np.float64)
DISTANCES = np.linalg.norm(ROWS[:, None] - ROWS, axis=-1)
GRAPH = {"n_neighbors": 8, "pca_components": 10}
LINE = 2 * np.abs(np.abs(np.arange(40) % 20 - 10) - 5) / 5 - 1  # back and forth
BLOBS = np.exp(-((np.linspace(-2, 2, 30) - LINE[:, None]) ** 2) / 0.1)

# kind -> description, samples, target
FITS = {
    "pca": (streampca.PCA(4), DIGITS, None),
    "kernel-pca": (streampca.KernelPCA(4, kernel="rbf"), DIGITS, None),
    "classical-mds": (streampca.ClassicalMDS(4), DIGITS, None),
    "classical-mds-of-pairs": (streampca.ClassicalMDS(4, metric="precomputed"), DISTANCES, None),
    "supervised-pca": (streampca.SupervisedPCA(4), DIGITS, LABELS),
    "fisher-discriminant": (streampca.FisherDiscriminant(4, shrinkage=0.1), DIGITS, LABELS),
    "sliced-inverse-regression": (
        streampca.SlicedInverseRegression(2), DIGITS[:, 2:4, 2:5], DIGITS.sum(axis=(1, 2)) / 7,
    ),
    "supervised-principal-components": (streampca.SupervisedPrincipalComponents(1, threshold=0.1), DIGITS, LABELS > 4),
    "isomap": (streampca.Isomap(2, **GRAPH), DIGITS, None),
    "locally-linear-embedding": (streampca.LocallyLinearEmbedding(2, **GRAPH), DIGITS, None),
    "maximum-variance-unfolding": (streampca.MaximumVarianceUnfolding(2, **GRAPH), DIGITS, None),
    "spectral-embedding": (streampca.SpectralEmbedding(2, **GRAPH), DIGITS, None),
    "spectral-clustering": (streampca.SpectralClustering(3, **GRAPH), DIGITS, None),
    "action-respecting-embedding": (
        streampca.ActionRespectingEmbedding(1, n_neighbors=2), BLOBS, np.where(np.diff(LINE) > 0, "on", "back"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def fitted():
    """A model of each kind."""
    models = {kind: streampca.fit(x, description, target=y) for kind, (description, x, y) in FITS.items()}
    pca = models["pca"]
    bootstrap = streampca.bootstrap(pca, pca.transform(DIGITS), n_replicates=10)
    return models | {"rotated-pca": pca.rotate(3, power=4), "bootstrap": bootstrap}


def samples_of(kind):
    return FITS.get(kind, FITS["pca"])[1][:9]


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_it_is_stored_described_and_applied_as_all_others(fitted, kind, tmp_path):
    model, x = fitted[kind], samples_of(kind)
    model.save(tmp_path / "m.zarr")
    loaded = streampca.load(tmp_path / "m.zarr")
    assert type(loaded) is type(model) is model_class(kind)
    for name in model.own_arrays():
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    scores = model.transform(x)
    assert scores.shape == (9, model.n_scores)
    np.testing.assert_array_equal(loaded.transform(x), scores)
    np.testing.assert_array_equal(copy.deepcopy(loaded).transform(x), scores)
    np.save(tmp_path / "x.npy", x)
    np.testing.assert_array_equal(loaded.transform(tmp_path / "x.npy").compute(), scores)
    loaded.write_scores(tmp_path / "x.npy", tmp_path / "scores.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), scores)
    shown = json.loads(json.dumps(loaded.summary(), allow_nan=False))
    assert (shown["kind"], shown["n_samples"]) == (kind, model.n_samples)
    assert shown.keys() == model.summary().keys()
    counts = [len(v) for name, v in shown.items() if name.startswith(("explained_variance", "residual_bound"))]
    assert set(counts) <= {model.n_scores}  # facts about the components that it contains are apart
    assert {name for name, axes in model.own_arrays().items() if not axes} <= shown.keys()
    assert repr(loaded).startswith(type(model).__name__)
    assert type(model).__name__ in loaded._repr_html_()
    dataset = loaded.to_xarray()
    assert {"components", "mean", *(f"{model.prefix}{name}" for name in model.own_arrays())} <= {*dataset.variables}
    assert loaded.notes == model.notes
    said = " ".join(succeeded("inspect", tmp_path / "m.zarr").split())
    assert all(" ".join(note.split()) in said for note in loaded.notes)


def test_stored_names_are_of_one_array_each():
    for kind in map(model_class, MODEL_KINDS):
        assert not {f"{kind.prefix}{name}" for name in kind.own_arrays()} & {*AXES, "components", "component"}


CALLS = {
    "transform": lambda m, x, scores, path: m.transform(x),
    "write_scores": lambda m, x, scores, path: m.write_scores(x, path),
    "number_of_each": lambda m, x, scores, path: m.number_of_each(x, lambda rows: rows.sum(axis=1), "sum"),
    "rule_for": lambda m, x, scores, path: m.rule_for(None),
    "prepared": lambda m, x, scores, path: m.prepared(x),
    "raw_samples": lambda m, x, scores, path: m.raw_samples(x),
    "summary": lambda m, x, scores, path: m.summary(),
    "to_xarray": lambda m, x, scores, path: m.to_xarray(),
    "save": lambda m, x, scores, path: m.save(path.with_suffix(".zarr")),
    "count_of": lambda m, x, scores, path: m.count_of(1),
    "reconstruction_error": lambda m, x, scores, path: m.reconstruction_error(x),
    "hotelling_t2": lambda m, x, scores, path: m.hotelling_t2(x),
    "weights_of": lambda m, x, scores, path: m.weights_of(scores),
    "variance_outside": lambda m, x, scores, path: m.variance_outside(np.arange(1, m.n_components + 1)),
    "inverse_transform": lambda m, x, scores, path: m.inverse_transform(scores),
    "reconstruct": lambda m, x, scores, path: m.reconstruct(x),
    "residual": lambda m, x, scores, path: m.residual(x),
    "write_reconstruction": lambda m, x, scores, path: m.write_reconstruction(x, path),
    "check_reconstruction": lambda m, x, scores, path: m.check_reconstruction(streampca.open_collection(x)),
    "compression": lambda m, x, scores, path: m.compression(x),
    "score_samples": lambda m, x, scores, path: m.score_samples(x),
    "score": lambda m, x, scores, path: m.score(x),
    "get_covariance": lambda m, x, scores, path: m.get_covariance(),
    "get_precision": lambda m, x, scores, path: m.get_precision(),
    "merge": lambda m, x, scores, path: m.merge(streampca.fit(DIGITS[1:], m_like(m)), approximate=True),
    "rotate": lambda m, x, scores, path: m.rotate(2),
    "without_statistic": lambda m, x, scores, path: m.without_statistic(),
    "predict": lambda m, x, scores, path: m.predict(x),
    "stress": lambda m, x, scores, path: m.stress(DISTANCES),
    "play": lambda m, x, scores, path: m.play(scores[0], ["on"]),
    "transform_rows": lambda m, x, scores, path: m.transform_rows(x.reshape(len(x), -1)),
    "intervals": lambda m, x, scores, path: m.intervals(),
    "component_error": lambda m, x, scores, path: m.component_error(),
    "on": lambda m, x, scores, path: type(m).on(m.pca, **{name: getattr(m, name) for name in m.own_arrays()}),
    "own_arrays": lambda m, x, scores, path: m.own_arrays(),
    "of_fields": lambda m, x, scores, path: type(m).of_fields,  # by every model that is loaded
}


def m_like(model):
    """Return the description by which a model was fitted."""
    return FITS[model.kind][0]


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_no_kind_has_a_public_name_that_it_refuses_always(fitted, kind, tmp_path):
    """Each method works for some samples, and each property has a value; a kind without images cannot draw any."""
    model, x = fitted[kind], samples_of(kind)
    scores = model.transform(x)
    for number, name in enumerate(name for name in dir(type(model)) if not name.startswith("_")):
        value = getattr(model, name)
        if inspect.isroutine(value) and name != "as_images":
            CALLS[name](model, x, scores, tmp_path / f"{number}.npy")


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_what_a_kind_lacks_is_said_in_one_line(fitted, kind, tmp_path, monkeypatch):
    """Attributes, functions and commands say of what kind the model is, or what would do."""
    monkeypatch.chdir(tmp_path)
    model = fitted[kind]
    for name in ("merge", "score_samples", "reconstruct", "components", "statistic"):
        if not hasattr(model, name):
            with pytest.raises(
                AttributeError, match=f"no attribute '{name}', which needs principal components; "
            ) as said:
                getattr(model, name)
            assert "\n" not in str(said.value)
    assert not hasattr(model, "nothing")
    model.save("m.zarr")
    np.save("x.npy", samples_of(kind))
    if not isinstance(model, ReconstructingModel):
        said = " ".join(refused("reconstruct", "m.zarr", "x.npy", "-o", "y.npy").split())
        why = f"images are made of principal components, and m.zarr is of kind '{kind}'"
        with messages_at(Door.COMMAND_LINE):
            assert str(ModelError(f"{why}; {model.instead}.")) in said
    if not isinstance(model, InvertibleModel):
        with pytest.raises(ModelError, match=f"images are made of principal components, and .* '{kind}'; "):
            streampca.export_components("m.zarr", "c.tif")
    if kind != "pca":
        for add in (lambda: streampca.update("m.zarr", "x.npy"), lambda: streampca.merge(["m.zarr", model])):
            with pytest.raises(ModelError, match=f"of kind '{kind}', and only models of kind 'pca' can be updated"):
                add()
        with pytest.raises(ModelError, match="draws are made of principal components"):
            streampca.bootstrap(model, model.transform(samples_of(kind)))


@pytest.mark.parametrize("kind", ["isomap", "rotated-pca", "bootstrap"])
def test_what_a_model_contains_does_what_it_lacks(fitted, kind, tmp_path):
    """The principal components are those that were fitted, in memory and stored, and are drawn in its place."""
    fitted[kind].save(tmp_path / "m.zarr")
    pca = streampca.load(tmp_path / "m.zarr").pca
    assert type(pca) is streampca.PCAModel
    np.testing.assert_array_equal(pca.components, fitted[kind].pca.components)
    assert pca.reconstruct(DIGITS).shape == DIGITS.shape
    assert len(plot.mean_and_components(fitted[kind], 2)) == 3


def test_contained_components_keep_no_statistic(fitted, tmp_path):
    """Refusals speak of the components that were given, not of the stored model that contains them."""
    fitted["rotated-pca"].save(tmp_path / "m.zarr")
    pca = streampca.load(tmp_path / "m.zarr").pca
    with pytest.raises(ModelError, match=r"the principal components of .*m\.zarr .* statistic"):
        streampca.update(pca, DIGITS[:9] + 1)
    for other in (pca, fitted["pca"]):
        merged = streampca.merge([other, streampca.fit(DIGITS[1:] + 1, FITS["pca"][0])], approximate=True)
        assert merged.n_samples == 159


def test_an_embedding_by_all_features_contains_no_components(tmp_path):
    """What needs some is refused in a line whose remedy a command offers."""
    model = streampca.fit(DIGITS, streampca.Isomap(2, n_neighbors=8))
    pca, said = model.pca, r"all features; fit with pca_components, or fit a model of kind 'pca'\."
    for call in (
        lambda: pca.transform(DIGITS),
        lambda: pca.reconstruct(DIGITS),
        lambda: pca.write_reconstruction(DIGITS, tmp_path / "y.npy"),
        pca.compression,
        lambda: pca.score_samples(DIGITS),
        lambda: pca.save(tmp_path / "pca.zarr"),
        lambda: pca.rotate(),
        lambda: streampca.export_components(pca, tmp_path / "c.npy"),
        lambda: streampca.update(pca, DIGITS),
        lambda: streampca.merge([pca, pca], approximate=True),
        lambda: streampca.bootstrap(pca, np.zeros((80, 0))),
        lambda: plot.mean_and_components(model),
        lambda: plot.scree(pca),
        lambda: plot.reconstructions(pca, DIGITS),
    ):
        with pytest.raises(ModelError, match=said):
            call()
    model.save(tmp_path / "m.zarr")
    assert "--pca-components" in refused("export", tmp_path / "m.zarr", "-o", tmp_path / "c.npy")
    assert streampca.load(tmp_path / "m.zarr").transform(DIGITS).shape == (80, 2)


@pytest.mark.parametrize("kind", ["isomap", "rotated-pca", "bootstrap"])
def test_figures_of_variances_and_compression_are_of_principal_components(fitted, kind):
    for draw in (plot.scree, plot.compression):
        with pytest.raises(ModelError, match=f"and the model is of kind '{kind}'; use those that it contains"):
            draw(fitted[kind])
    with pytest.raises(ModelError, match=r"the figure is of its compression; give model\.compression\(\)"):
        plot.compression(fitted[kind].pca)


@pytest.mark.parametrize("kind", [*sorted(FITS.keys() - {"classical-mds-of-pairs"}), "rotated-pca"])
def test_samples_with_missing_values_are_refused_with_rules_that_their_kind_has(kind, tmp_path):
    description, samples, target = FITS.get(kind, FITS["pca"])
    model = streampca.fit(samples.astype(np.float64), description, target=target)
    model, x = model.rotate(3) if kind == "rotated-pca" else model, samples[:9].astype(np.float64)
    x[3].flat[1] = np.nan
    np.save(tmp_path / "x.npy", x)
    for apply in (
        lambda **rule: model.transform(x, **rule),
        lambda **rule: model.transform(tmp_path / "x.npy", **rule).compute(),
        lambda **rule: model.write_scores(tmp_path / "x.npy", tmp_path / "s.npy", overwrite=True, **rule),
    ):
        with pytest.raises(DataError, match=r"holds NaN or infinity, .* missing=.drop-samples") as error:
            apply()
        apply(missing="drop-samples")
        if 'missing="em"' in str(error.value):
            apply(missing="em")
        else:
            with pytest.raises(RequestError, match="cannot fill single values in"):
                apply(missing="em")


@pytest.mark.parametrize("components", [None, 10])
def test_plan_and_model_say_how_much_the_samples_that_place_others_take(components):
    kind = streampca.Isomap(2, n_neighbors=8, pca_components=components)
    images = DIGITS.astype(np.float64)
    model, planned = streampca.fit(images, kind), dict(streampca.plan(images, kind).lines())["new samples"]
    kept = format_bytes(model.references.nbytes)
    assert planned == f"placed by all of the fitted samples, which the model keeps: at most {kept}"
    assert f"new samples are placed by 80 of the fitted ones, which the model keeps: {kept}" in model.notes


def test_coordinates_have_no_variances_to_be_whitened(fitted):
    with pytest.raises(RequestError, match="'isomap', whose coordinates are not whitened; leave whiten out"):
        fitted["isomap"].transform(DIGITS, whiten=True)
    rotated = fitted["rotated-pca"]
    np.testing.assert_allclose(rotated.transform(DIGITS, whiten=True).var(axis=0, ddof=1), 1, rtol=1e-4)


@pytest.mark.parametrize("kind", ["isomap", "lle", "spectral"])
def test_distances_of_placed_samples_take_in_their_residuals(kind):
    """Samples outside the span of the scores lie where they lie by all features."""
    x, _ = make_moons(60, random_state=0)
    span, others = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0], {}
    wide = np.column_stack([x, np.zeros((60, 3))]) @ span.T
    new = wide[:7] + 0.3 * span[:, 3]
    if kind == "isomap":
        scaling = Scaling(np.ones((2, 3)) * [1, 2, 3], np.zeros(3), np.zeros(2), np.ones(2), 0.0)
        cls, others = GeodesicPlacement, {"geodesics": np.abs(x @ np.ones((2, 3))) * [1, 2, 3], "scaling": scaling}
    elif kind == "lle":
        cls, others = BarycentricPlacement, {"coordinates": x**2, "reg": 1e-9}
    else:
        cls, others = NystroemPlacement, {"coordinates": x**2, "eigenvalues": np.array([0.1, 0.2]), "gamma": 2.0}
    by_features = cls(references=wide, n_neighbors=5, **others)
    by_scores = cls(references=np.column_stack([x, np.zeros(60)]), n_neighbors=5, **others)
    subspace = Subspace(np.zeros(5), span.T[:2], np.ones(2))
    placed = PlacedSubspace(**vars(subspace), placement=by_scores).project(new)
    np.testing.assert_allclose(placed, by_features(new), atol=1e-6)
