"""Feature maps as the last step of a preparation: derived from samples, stored with the model, and applied."""

from __future__ import annotations

import by_options
import dask.array as da
import numpy as np
import pytest
from resumed import bits
from sklearn.datasets import load_digits
from sklearn.decomposition import KernelPCA

import streampca
from streampca import Preparation
from streampca.errors import BudgetError, DataError, ModelError, RequestError
from streampca.events import BlockDone, PassStarted
from streampca.fitting.landmarks import CHOOSE
from streampca.fitting.open_fit import prepare
from streampca.planning import by_features
from streampca.preprocessing.feature_map import KernelMap
from streampca.preprocessing.kernel_features import CHOICES, KernelFeatures
from streampca.preprocessing.kernels import Kernel
from streampca.readers import open_collection
from streampca.units import parse_bytes

DIGITS = load_digits().images
FITTED, OTHERS = DIGITS[:200], DIGITS[200:260]
RBF = Kernel("rbf", gamma=1e-3)
STEPS = {
    "none": {},
    "bin": {"bin": 2},
    "mask": {"mask": np.arange(64).reshape(8, 8) % 5 != 0, "scale": np.linspace(1, 2, 64).reshape(8, 8)},
    "standardize": {"crop": ((1, 7), (1, 7)), "standardize": True, "normalize": "norm"},
}


def overlap(first, second):
    return float(first @ second) + 1.0


def of_landmarks(count=40, **given):
    return KernelFeatures(**{"kernel": RBF, "landmarks": count} | given)


def fitted(features, source=FITTED, **given):
    made = {"preparation": Preparation(feature_map=features, **given.pop("steps", {}))}
    return by_options.fit(source, **{"n_components": 5} | made | given)


@pytest.mark.parametrize(("name", "their"), [("rbf", "rbf"), ("polynomial", "poly"), ("linear", "linear")])
def test_all_samples_as_landmarks_are_exact_kernel_pca(name, their):
    theirs = KernelPCA(5, kernel=their, gamma=1e-3, eigen_solver="dense").fit(FITTED.reshape(200, 64))
    model = fitted(KernelFeatures(kernel=Kernel(name, gamma=1e-3)))
    np.testing.assert_allclose(199 * model.explained_variance, theirs.eigenvalues_, rtol=1e-10)
    wanted = theirs.transform(OTHERS.reshape(-1, 64))
    np.testing.assert_allclose(np.abs(model.transform(OTHERS)), np.abs(wanted), atol=1e-9 * np.abs(wanted).max())


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_a_model_applies_the_map_after_all_other_steps_wherever_samples_are(steps, tmp_path):
    model = fitted(of_landmarks(), steps=steps)
    rows = prepare(open_collection(FITTED), model.preparation.unmapped).read(slice(0, 200))
    mapped = model.preparation.mapped(rows)
    centred = mapped - mapped.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / 199)
    np.testing.assert_allclose(model.explained_variance, values[::-1][:5], rtol=1e-9)
    scores = model.transform(FITTED)
    np.testing.assert_allclose(np.abs(scores), np.abs(centred @ vectors[:, ::-1][:, :5]), atol=1e-9)
    np.save(tmp_path / "digits.npy", FITTED)
    model.save(tmp_path / "m.zarr")
    model.write_scores(tmp_path / "digits.npy", tmp_path / "scores.npy")
    for found in (
        model.transform(da.from_array(FITTED, chunks=(64, 8, 8))).compute(),
        model.transform(tmp_path / "digits.npy").compute(),
        np.load(tmp_path / "scores.npy"),
    ):
        np.testing.assert_allclose(found, scores, rtol=0, atol=1e-12)
    loaded = streampca.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(loaded.transform(FITTED), scores)
    assert loaded.preparation.mapped.digest == model.preparation.mapped.digest


def test_random_features_are_stored_and_applied(tmp_path):
    model = fitted(KernelFeatures(kernel=RBF, random_features=96, seed=3))
    model.save(tmp_path / "m.zarr")
    assert model.sample_shape == (96,)
    with pytest.raises(ModelError, match="was fitted with kernel 'rbf', which takes no function; leave kernel out"):
        streampca.load(tmp_path / "m.zarr", kernel=overlap)
    np.testing.assert_array_equal(streampca.load(tmp_path / "m.zarr").transform(OTHERS), model.transform(OTHERS))


def test_a_function_of_ones_own_is_named_and_asked_for_again(tmp_path):
    model = fitted(of_landmarks(20, kernel=Kernel("overlap", function=overlap)), FITTED[:60])
    model.save(tmp_path / "m.zarr")
    with pytest.raises(ModelError, match=r"kernel 'overlap'.*load\(.*kernel=overlap\)"):
        streampca.load(tmp_path / "m.zarr")
    loaded = streampca.load(tmp_path / "m.zarr", kernel=overlap)
    np.testing.assert_array_equal(loaded.transform(OTHERS), model.transform(OTHERS))


@pytest.mark.parametrize("choice", CHOICES)
def test_landmarks_are_samples_chosen_by_the_seed_and_come_near_the_exact_variances(choice):
    exact = fitted(KernelFeatures(kernel=RBF)).explained_variance
    model, again, other = (fitted(of_landmarks(60, choice=choice, seed=seed)) for seed in (0, 0, 1))
    assert bits(model) == bits(again) != bits(other)
    landmarks = model.preparation.mapped.landmarks
    assert len({tuple(row) for row in landmarks}) == 60
    assert {tuple(row) for row in landmarks} <= {tuple(row) for row in FITTED.reshape(200, 64)}
    # Nystroem variances are those of projections, and so at most the exact ones.
    assert np.all(model.explained_variance <= exact * (1 + 1e-9))
    assert np.all(model.explained_variance >= 0.7 * exact)


def test_chosen_landmarks_leave_out_less_than_uniform_ones():
    # Twenty clusters of very different sizes: uniform landmarks miss the small ones.
    random = np.random.default_rng(0)
    sizes = np.repeat(np.arange(20), [1000] + [10] * 19)
    rows = 20 * random.standard_normal((20, 6))[sizes] + 0.5 * random.standard_normal((len(sizes), 6))
    order = random.permutation(len(rows))
    kernel = Kernel("rbf", gamma=0.02)

    def left_out(choice, seed):
        chosen = CHOOSE[choice](rows[order], kernel, 30, seed)
        found = KernelMap.nystroem(kernel, chosen)
        return len(rows) - float(np.square(found(rows)).sum())

    lost = {choice: np.mean([left_out(choice, seed) for seed in range(4)]) for choice in CHOICES}
    assert lost["k-means++"] < 0.5 * lost["uniform"]
    assert lost["leverage"] < 0.8 * lost["uniform"]


def test_gamma_goes_by_the_median_distance_of_a_sample():
    model = fitted(of_landmarks(kernel=Kernel("rbf")))
    expected = Kernel("rbf").resolved(FITTED.reshape(200, 64)).gamma
    assert model.preparation.mapped.kernel.gamma == pytest.approx(expected, rel=1e-12)
    assert model.preparation.feature_map.kernel == model.preparation.mapped.kernel


def test_samples_of_weight_0_are_no_landmarks_and_do_not_count():
    weights = np.r_[np.ones(80), np.zeros(120)]
    some = fitted(KernelFeatures(kernel=RBF), FITTED[:80])
    model = fitted(KernelFeatures(kernel=RBF), sample_weight=weights)
    np.testing.assert_allclose(model.explained_variance, some.explained_variance, rtol=1e-10)


def test_a_killed_fit_resumes_with_the_same_landmarks(tmp_path):
    whole, blocks = fitted(of_landmarks(), DIGITS), []

    def dies(event):
        if isinstance(event, BlockDone):
            blocks.append(event)
            if len(blocks) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(of_landmarks(), DIGITS, checkpoint=tmp_path / "c", listener=dies)
    assert bits(fitted(of_landmarks(), DIGITS, checkpoint=tmp_path / "c")) == bits(whole)


def test_missing_values_are_named_or_left_out():
    holes = FITTED.copy()
    holes[7, 3, 3] = np.nan
    with pytest.raises(DataError, match="sample 7 of"):
        fitted(KernelFeatures(kernel=RBF), holes)
    with pytest.raises(DataError, match="sample 7 of"):
        fitted(of_landmarks(), holes)
    model = fitted(of_landmarks(), holes, missing="drop-samples")
    scores = model.transform(holes)
    assert np.isnan(scores[7]).all()
    assert np.isfinite(np.delete(scores, 7, axis=0)).all()
    with pytest.raises(RequestError, match="missing='em' estimates features"):
        fitted(of_landmarks(), holes, missing="em")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"landmarks": 0}, "landmarks 0"),
        ({"landmarks": 5, "random_features": 5}, "two ways"),
        ({"choice": "kmeans++"}, r"choice 'kmeans\+\+' is not one of.*k-means\+\+"),
        ({"random_features": 5, "kernel": Kernel("cosine")}, "random features are of kernels rbf and laplacian"),
        ({"rank": 0}, "rank 0"),
    ],
)
def test_what_is_wrong_by_itself_is_refused(given, said):
    with pytest.raises(RequestError, match=said):
        KernelFeatures(**given)


def test_more_landmarks_than_samples_are_refused_before_anything_is_read():
    events = []
    with pytest.raises(RequestError, match=r"landmarks=500 are more than the 200 samples; give at most 200, or 'all'"):
        fitted(of_landmarks(500), listener=events.append)
    assert not [event for event in events if isinstance(event, PassStarted)]


def test_what_does_not_fit_the_budget_is_refused_with_remedies_that_work():
    many = np.broadcast_to(np.zeros((), np.uint8), (20000, 28, 28))
    exact, request = (
        Preparation(feature_map=KernelFeatures(kernel=RBF)),
        by_options.request(memory=parse_bytes("1 GiB")),
    )
    with pytest.raises(
        BudgetError,
        match=r"all 20000 samples .* kernel of 20000 .* give a number of landmarks below that of samples\.$",
    ) as refused:
        prepare(open_collection(many), exact, request, is_planned=True)
    enough = str(refused.value).split("Set memory to at least ")[1].split(",")[0]
    streampca.plan(many, preparation=exact, memory=enough)
    streampca.plan(many, preparation=Preparation(feature_map=of_landmarks(1000)), memory="256 MiB")


def test_means_taken_off_before_the_map_are_learned_within_the_budget():
    steps = Preparation(standardize=True, feature_map=of_landmarks(20))
    large = {"shape": "100000x2000", "dtype": "float32", "preparation": steps, "n_components": 2}
    assert streampca.plan(**large, memory="30 MiB").problem.learning_bytes <= parse_bytes("30 MiB")


def test_a_map_that_does_not_fit_is_refused_before_means_are_learned():
    told = []
    steps = Preparation(standardize=True, feature_map=KernelFeatures(kernel=RBF))
    with pytest.raises(BudgetError, match=r"comparing all 1797 samples .* needs"):
        streampca.fit(DIGITS, n_components=2, preparation=steps, memory="40 MiB", listener=told.append)
    assert not [event for event in told if isinstance(event, PassStarted)]


def test_the_pass_that_estimates_residuals_is_in_the_budget_that_a_refusal_names():
    large = {"shape": "100000x2000", "dtype": "float32", "n_components": 2}
    large |= {"kind": "kernel-pca", "kernel": "rbf", "landmarks": 20}
    with pytest.raises(BudgetError, match="the rows of the kernel matrix") as refused:
        by_options.plan(**large, gamma=1e-3, memory="40 MiB")
    enough = str(refused.value).split("Set memory to at least ")[1].rstrip(".")
    by_options.plan(**large, gamma=1e-3, memory=enough)


def test_the_predicted_time_counts_the_kernel():
    """In each pass; a model of kind 'kernel-pca' has one more, in which rows of the kernel matrix are computed."""
    given = {"shape": "100000x500", "dtype": "uint8", "n_components": 2, "memory": "1 GiB"}
    linear = streampca.plan(**given)
    mapped = streampca.plan(**given, preparation=Preparation(feature_map=of_landmarks(1000)))
    estimated = by_options.plan(**given, kind="kernel-pca", kernel="rbf", gamma=1e-6, landmarks=1000)
    flops = 100_000 * 1000 * 2 * (500 + 1000)
    assert mapped.work.double - linear.work.double > flops
    assert estimated.work.double - mapped.work.double > flops


def test_samples_of_weight_0_become_no_landmarks_where_others_are_dropped():
    rows, weights = FITTED.reshape(len(FITTED), -1).astype(float), np.ones(len(FITTED))
    rows[5, 3], weights[7] = np.nan, 0
    model = streampca.fit(
        rows, streampca.KernelPCA(2, gamma=1e-3, missing="drop-samples", kernel="rbf"), sample_weight=weights
    )
    np.testing.assert_array_equal(model.mapping.landmarks, np.delete(rows, [5, 7], axis=0))


def test_components_whose_residuals_are_estimated_stay_in_memory():
    assert by_features.places(by_options.request(output=True)) == (False, True)
    assert by_features.places(by_options.request(kind="kernel-pca", output=True)) == (False,)


def test_two_feature_maps_are_refused():
    own = Preparation(feature_map=of_landmarks())
    with pytest.raises(RequestError, match="gamma asks for a feature map, and the preparation ends with one already"):
        streampca.fit(FITTED, streampca.KernelPCA(0.95, gamma=0.1, kernel="rbf"), preparation=own)
    assert streampca.plan(FITTED, streampca.KernelPCA(0.95), preparation=own).problem.n_features < len(FITTED)


def test_a_kernel_that_is_none_is_refused():
    uneven = Kernel("uneven", function=lambda a, b: float(a[20] - b[20]) + float(a @ b))
    with pytest.raises(RequestError, match="not symmetric"):
        fitted(of_landmarks(20, kernel=uneven))
    with pytest.raises(TypeError, match="step of preparation"):
        streampca.fit(FITTED, feature_map=of_landmarks())


def test_models_of_mapped_samples_are_updated_and_take_batches():
    first = fitted(of_landmarks(), FITTED[:120])
    whole = fitted(None, FITTED, preparation=first.preparation)
    updated = streampca.update(first, FITTED[120:])
    np.testing.assert_allclose(updated.explained_variance, whole.explained_variance, rtol=1e-10)
    estimator = streampca.PCA(5, preparation=Preparation(feature_map=of_landmarks()))
    with pytest.raises(RequestError, match="a feature map is learned from all samples before a fit"):
        estimator.partial_fit(FITTED)
    estimator.set_params(preparation=first.preparation)
    for batch in np.split(FITTED, [50, 120]):
        estimator.partial_fit(batch)
    np.testing.assert_allclose(estimator.explained_variance_, whole.explained_variance, rtol=1e-10)
