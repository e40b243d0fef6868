"""Error bounds hold what a preparation rounds: fits against the steps in long double, over dtypes and offsets."""

from __future__ import annotations

import by_options
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streampca
from streampca import PCA, Preparation, load, merge, open_collection, update
from streampca.errors import DataError
from streampca.fitting.preparation_rounding import measured_errors
from streampca.planning.blocks import Span, blocks_of
from streampca.planning.memory import measured_rows
from streampca.preprocessing import Prepared
from streampca.preprocessing.resize import LineResampler, resized

WIDE = np.longdouble
EPS = np.finfo(np.float64).eps
N, K = 200, 3
FLAT = {"mean": 30000.0, "deviation": 5.0}


def made(dtype, shape=(12, 12), *, mean, deviation, seed=0, n=N):
    """Samples of a few patterns and noise about an offset, as large as the dtype holds."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(K, *shape))
    values = np.tensordot(rng.normal(size=(n, K)) * [1.0, 0.6, 0.4], patterns, 1) + 0.3 * rng.normal(size=(n, *shape))
    values = mean + deviation * values
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        values = np.rint(values).clip(np.iinfo(kind).min, np.iinfo(kind).max)
    return values.astype(kind)


def exactly(x, steps):
    """Rows of features of the steps in long double, (n, p): the definition, not our code; resize is left to it."""
    x = x.astype(WIDE)
    if steps.get("crop"):
        x = x[:, *(slice(*cut) for cut in steps["crop"])]
    if steps.get("grey"):
        x = sum(x[..., channel] * WIDE(weight) for channel, weight in enumerate((0.299, 0.587, 0.114)))
    side = steps.get("bin", 1)
    if side > 1:
        height, width = x.shape[1] // side, x.shape[2] // side
        cut = x[:, : height * side, : width * side]
        x = cut.reshape(len(x), height, side, width, side, *x.shape[3:]).mean(axis=(2, 4))
    rows = x[:, steps["mask"]] if "mask" in steps else x
    rows = rows.reshape(len(x), -1)
    if steps.get("standardize"):
        rows = rows - rows.mean(axis=0)
        deviation = np.sqrt((rows**2).mean(axis=0))
        rows = rows / np.where(deviation > 0, deviation, 1)
    rows = rows * WIDE(steps.get("scale", 1.0))
    how = steps.get("normalize")
    if how == "norm":
        return rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    level = rows.mean(axis=1, keepdims=True)
    return {"mean": rows - level, "ratio": rows / level if how == "ratio" else None}.get(how, rows)


def residuals(model, rows):
    """True |C v - lambda v| / lambda of a model's pairs, (k,), for the covariance C of rows in long double."""
    centred = rows - rows.mean(axis=0)
    components = np.asarray(model.subspace.components).astype(WIDE)
    values = model.explained_variance.astype(WIDE)
    image = (components @ centred.T) @ centred / (len(rows) - 1)
    found = np.sqrt(((image - components * values[:, None]) ** 2).sum(axis=1)) / values
    return found.astype(np.float64)


def fitted(x, steps, **options):
    return by_options.fit(x, n_components=K, memory="256 MiB", preparation=Preparation(**steps), **options)


def errors_of_values(model, rows):
    """True relative errors of the variances, (k,)."""
    centred = rows - rows.mean(axis=0)
    true = np.linalg.eigvalsh((centred.T @ centred / (len(rows) - 1)).astype(np.float64))[::-1][:K]
    return np.abs(model.explained_variance / true - 1)


# -- the examples: bounds far below the truth, and rows that were float32 in double precision

COLOURED = {"grey": True, "bin": 2, "scale": 0.1}
EXAMPLES = {
    "scale": ("u2", (12, 12), FLAT, {"scale": 0.1}, "double", 1e-12),
    "ratio": ("u2", (12, 12), FLAT, {"normalize": "ratio"}, "double", 1e-12),
    "bin": ("f4", (12, 12), {"mean": 30000.0, "deviation": 0.5}, {"bin": 2}, "double", 1e-13),
    "colours": ("i2", (12, 12, 3), {"mean": 3000.0, "deviation": 5.0}, COLOURED, "auto", 1e-7),
    "grey": ("f8", (12, 12, 3), {"mean": 3.0, "deviation": 5.0}, {"grey": True}, "double", 1e-13),
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape", "about", "steps", "precision", "most"), EXAMPLES.values(), ids=EXAMPLES)
def test_bounds_hold_the_preparation(dtype, shape, about, steps, precision, most):
    x = made(dtype, shape, **about)
    model = fitted(x, steps, method="covariance", precision=precision)
    true = residuals(model, exactly(x, steps))
    assert np.all(true <= model.residual_bound)
    assert np.all(errors_of_values(model, exactly(x, steps)) <= model.residual_bound + 10 * EPS)
    assert true.max() <= most


STEPS = {
    "scale": {"scale": 0.1},
    "bin": {"bin": 2},
    "crop, mask": {"crop": ((1, 11), (0, 10)), "mask": np.arange(100).reshape(10, 10) % 7 > 0},
    "mean": {"normalize": "mean"},
    "norm": {"normalize": "norm"},
    "ratio": {"normalize": "ratio"},
    "standardize": {"standardize": True},
    "bin, scale": {"bin": 3, "scale": 1 / 3},
}


@pytest.mark.parametrize("steps", [*STEPS.values(), {"grey": True}], ids=[*STEPS, "grey"])
def test_a_large_offset_is_taken_off_before_anything_is_rounded(steps):
    """The README's sentence on offsets, of every step: right to 2e-10; float32 rows were 1e-5 off."""
    x = made("u2", (12, 12, 3) if "grey" in steps else (12, 12), **FLAT)
    learned = "standardize" in steps  # departures, which are float32
    model = fitted(x, steps, method="covariance")
    assert errors_of_values(model, exactly(x, steps)).max() <= (3e-8 if learned else 2e-10)
    double = fitted(x, steps, method="covariance", precision="double")
    assert errors_of_values(double, exactly(x, steps)).max() <= 2e-12


def test_deviations_are_learned_about_an_offset():
    """Means of many long samples are added up piece by piece, and a mean of 1e6 has digits that float64 does not."""
    x = made("f8", (60, 60), mean=1e6, deviation=1.0)
    model, rows = fitted(x, {"standardize": True}, precision="double"), exactly(x, {"standardize": True})
    assert residuals(model, rows).max() <= 1e-14  # 1e-12 with means of one part
    assert np.all(residuals(model, rows) <= model.residual_bound)


# -- the law


@st.composite
def cases(draw):
    dtype = draw(st.sampled_from(["u1", "i1", "i2", "u2", "i4", "f2", "f4", "f8"]))
    coarse = dtype in ("u1", "i1", "f2")
    mean = draw(
        st.sampled_from(
            [30.0, 60.0, 90.0] if dtype == "i1" else [60.0, 120.0, 200.0] if coarse else [30.0, 500.0, 30000.0]
        )
    )
    deviation = draw(st.sampled_from([2.0, 10.0, 40.0])) if coarse or dtype[0] in "iu" else 0.5
    colours = draw(st.booleans())
    steps = {}
    if colours and draw(st.booleans()):
        steps["grey"] = True
    if draw(st.booleans()):
        steps["bin"] = draw(st.sampled_from([2, 3]))
    if draw(st.booleans()):
        steps["scale"] = draw(st.sampled_from([0.1, 0.5, 1 / 255, 3.7]))
    if draw(st.integers(0, 3)) == 0:
        steps["standardize"] = True
    else:
        steps["normalize"] = draw(st.sampled_from([None, "mean", "norm", "ratio"]))
    precision = draw(st.sampled_from(["auto", "single", "double"]))
    method = draw(st.sampled_from(["covariance", "dual", "randomized"]))
    x = made(dtype, (12, 12, 3) if colours else (12, 12), mean=mean, deviation=deviation, seed=draw(st.integers(0, 99)))
    return x, steps, precision, method


RATIOS: list[float] = []


def check(case):
    x, steps, precision, method = case
    model = fitted(x, steps, precision=precision, method=method, tol=1e-9, max_passes=12)
    true = residuals(model, exactly(x, steps))
    assert np.all(model.residual_bound + 10 * EPS >= true), (x.dtype, steps, precision, method, true)
    RATIOS.append(float(np.median(model.residual_bound / np.maximum(true, 10 * EPS))))


def median_ratio(law):
    RATIOS.clear()
    law()
    return np.median(RATIOS)


def test_bounds_hold_and_are_near():
    """A bound is never below the truth, and in the median at most 20 times it."""
    assert median_ratio(settings(max_examples=50)(given(cases())(check))) <= 20


@pytest.mark.campaign
def test_bounds_hold_and_are_near_at_length():
    assert median_ratio(settings(max_examples=500)(given(cases())(check))) <= 20


# -- precision belongs to the preparation


@pytest.mark.every(2)
@pytest.mark.parametrize("steps", [*STEPS.values(), {"resize": (5, 7)}], ids=[*STEPS, "resize"])
@pytest.mark.parametrize("dtype", ["u1", "u2", "f4"])
def test_double_is_float64_from_the_first_step_on(tmp_path, dtype, steps):
    """In the fit, in `transform`, and in the model as it is loaded again."""
    x = made(dtype, mean=100.0, deviation=9.0)
    model = fitted(x, steps, precision="double")
    assert model.preparation.precision == "double"
    model.save(tmp_path / "m.zarr")
    loaded = load(tmp_path / "m.zarr")
    assert loaded.preparation.precision == "double"
    scores = loaded.transform(x)
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(scores, np.asarray(loaded.transform(open_collection(x))))
    if "resize" in steps:
        return
    rows = exactly(x, steps)
    true = (rows - rows.mean(axis=0)) @ model.subspace.components.T.astype(WIDE)
    np.testing.assert_allclose(scores, true.astype(np.float64), atol=1e-12 * np.abs(true).max().astype(float))


def test_every_door_takes_double(tmp_path):
    x = made("u1", mean=100.0, deviation=9.0)
    steps = Preparation(scale=0.1)
    np.save(tmp_path / "x.npy", x)
    estimator = PCA(K, preparation=steps, precision="double").fit(x)
    batches = PCA(K, preparation=steps, precision="double").partial_fit(x)
    assert estimator.model_.preparation.precision == batches.model_.preparation.precision == "double"
    streampca.fit(x, streampca.PCA(K, precision="double"), preparation=steps, output=tmp_path / "m.zarr")
    assert update(tmp_path / "m.zarr", x[::-1]).preparation.precision == "double"
    assert streampca.plan(x, streampca.PCA(precision="double"), preparation=steps).problem.itemsize == 8
    assert streampca.plan(x, preparation=steps).problem.itemsize == 4


# -- resize


def resized_exactly(x, size):
    return LineResampler.of(x.shape[1:3], size).lines(
        lambda lines: x[:, slice(*lines)], Span(0, size[0]), np.dtype(WIDE)
    )


@pytest.mark.parametrize("size", [(5, 7), (30, 9), (12, 12), (1, 64)])
def test_weights_of_resizing_are_pillows(size):
    x = made("f4", (17, 13), mean=0.0, deviation=1.0, n=4)
    exact = resized_exactly(x, size).astype(np.float64)
    np.testing.assert_allclose(resized(x, size, np.dtype(np.float32)), exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8"])
@pytest.mark.parametrize("precision", ["auto", "double"])
def test_bounds_hold_what_pillow_rounds(dtype, precision):
    x = made(dtype, (17, 13), mean=200.0 if dtype == "u1" else 30000.0, deviation=5.0)
    model = fitted(x, {"resize": (6, 8)}, method="covariance", precision=precision)
    true = residuals(model, resized_exactly(x, (6, 8)).reshape(N, -1))
    assert np.all(true <= model.residual_bound)
    assert np.median(model.residual_bound / np.maximum(true, 10 * EPS)) <= 40


def test_a_missing_pixel_stays_local_where_images_are_resized():
    x = made("f4", (20, 20), **FLAT)
    x[3, 0, 0] = np.nan
    rows = Prepared(open_collection(x), Preparation(resize=(5, 5))).read(slice(3, 4))
    assert np.count_nonzero(np.isnan(rows)) == 1


# -- statistics carry it


def test_bounds_of_batches_parts_and_updates_hold_it(tmp_path):
    """Merged, updated and in batches; some of one sample."""
    steps = {"scale": 0.1}
    x = made("u1", mean=200.0, deviation=3.0)
    rows, preparation = exactly(x, steps), Preparation(scale=0.1)
    own = {"n_components": K, "method": "covariance", "precision": "auto", "preparation": preparation}
    parts = [tmp_path / f"{number}.zarr" for number in (1, 2)]
    for number, part in enumerate(parts, start=1):
        by_options.fit(x, **own, part=(number, 2), output=part)
    batches = PCA(K, preparation=preparation)
    for batch in (x[:1], x[1:2], x[2:90], x[90:]):
        batches.partial_fit(batch)
    by_options.fit(x[:100], **own, output=tmp_path / "m.zarr")
    models = [merge(parts, n_components=K), batches.model_, update(tmp_path / "m.zarr", x[100:])]
    for model in models:
        assert np.all(residuals(model, rows) <= model.residual_bound)


def test_samples_that_do_not_count_or_are_refused_are_not_measured():
    x = made("f4", **FLAT)
    x[::2, 3] = np.nan
    weights = np.arange(N) % 2
    model = fitted(x, {"scale": 0.1}, sample_weight=weights)
    assert np.isfinite(model.residual_bound).all()
    assert np.all(residuals(model, exactly(x[1::2], {"scale": 0.1})) <= model.residual_bound)
    batches = PCA(K, preparation=Preparation(scale=0.1)).partial_fit(x[1::2])
    with pytest.raises(DataError, match="NaN"):
        batches.partial_fit(x)


def test_what_is_measured_is_planned():
    """Some samples, which grow fewer as they grow long; none where nothing is rounded."""
    assert [measured_rows(p) for p in (1, 784, 4096, 10**7)] == [64, 41, 8, 4]
    x = made("u1", mean=100.0, deviation=9.0)
    plain, scaled = (streampca.plan(x, preparation=Preparation(**steps)) for steps in ({}, {"scale": 0.1}))
    assert plain.problem.measuring_bytes == 0 < scaled.problem.measuring_bytes
    assert any(phase.name == "rounding of the preparation" for phase in scaled.memory_estimate.phases)


@pytest.mark.parametrize("mask", [None, np.arange(72).reshape(9, 8) % 5 > 0], ids=["whole", "masked"])
def test_components_on_disk_have_the_same_bounds(tmp_path, monkeypatch, mask):
    """Components that are stored as they are made are read before their model is complete."""
    monkeypatch.setattr("streampca.planning.dual.places", lambda request: (bool(request.output),))
    x = made("u2", (9, 8), **FLAT, n=30)
    steps = {"scale": 0.1} if mask is None else {"scale": 0.1, "mask": mask}
    own = {"method": "dual", "precision": "double"}
    kind = streampca.PCA(K, **own)
    plan = streampca.plan(x, kind, preparation=Preparation(**steps), output=tmp_path / "m.zarr")
    assert plan.stored
    written, held = fitted(x, steps, output=tmp_path / "m.zarr", **own), fitted(x, steps, **own)
    np.testing.assert_allclose(written.residual_bound, held.residual_bound, rtol=0.05)
    np.testing.assert_array_equal(load(tmp_path / "m.zarr").residual_bound, written.residual_bound)
    assert np.all(residuals(written, exactly(x, steps)) <= written.residual_bound)


# -- by pieces


PIECEWISE = {
    "lines": ((40, 300), {"scale": 0.1, "mask": np.arange(12000).reshape(40, 300) % 7 > 0}),
    "one line": ((1, 9000), {"scale": 0.1, "normalize": "norm"}),
    "numbers": ((9000,), {"normalize": "ratio", "crop": ((100, None),)}),
    "colours": ((90, 120, 3), {"grey": True, "bin": 3, "normalize": "mean"}),
    "colours binned": ((200, 101, 3), {"bin": 2, "scale": 1 / 3}),
    "standardized": ((100, 100), {"standardize": True, "normalize": "mean"}),
}


@pytest.mark.parametrize(("shape", "steps"), PIECEWISE.values(), ids=PIECEWISE)
@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_exact_pieces_are_the_steps_in_more_digits(monkeypatch, shape, steps, dtype):
    """Whatever the pieces: they follow one another, and hold what the steps make in long double."""
    monkeypatch.setattr("streampca.preprocessing.exact_rows.PIECE", 1000)
    x = made(dtype, shape, mean=120.0, deviation=9.0, n=5)
    collection = fitted_collection(x, steps)
    rows, pieces = collection.read_with_exact(slice(0, 5))
    found, exact = np.empty(rows.shape, WIDE), exactly(x, steps)
    at = 0
    for features, values in pieces:
        assert features.start == at < features.stop
        found[:, features] = values
        at = features.stop
    assert at == collection.n_features
    np.testing.assert_allclose(found, exact, rtol=0, atol=float(500 * np.finfo(values.dtype).eps))
    np.testing.assert_allclose(rows, exact.astype(float), rtol=0, atol=float(5e-5 * np.abs(exact).max().clip(max=1)))


def fitted_collection(x, steps):
    raw = open_collection(x)
    return Prepared(raw, fitted(x, steps).preparation)


@pytest.mark.parametrize("size", [(3, 250), (80, 5), (7, 7)])
def test_lines_are_resampled_as_whole_images_are(monkeypatch, size):
    monkeypatch.setattr("streampca.preprocessing.resize.PIECE", 40)
    x = made("u2", (30, 40, 3), **FLAT, n=2)
    resampler = LineResampler.of(x.shape[1:3], size)
    parts = [
        resampler.lines(lambda lines: x[:, slice(*lines)], lines, np.dtype(WIDE))
        for lines in blocks_of(Span(0, size[0]), 2)
    ]
    monkeypatch.undo()
    np.testing.assert_allclose(np.concatenate(parts, axis=1), resized_exactly(x, size), rtol=1e-15)


def test_sums_of_features_stand_for_long_samples(monkeypatch):
    """Of more features than are held, products of rows and errors are sums with random signs: the same to 2 % or so."""
    rng = np.random.default_rng(3)
    column = np.where(np.arange(200) % 40 == 0, 50.0, 1.0)  # most of the variance in few columns
    x = (30000 + column * rng.normal(size=(6, 200, 200))).astype("u2")
    model, collection = fitted(x, {"scale": 0.1}), fitted_collection(x, {"scale": 0.1})
    found = measured_errors(collection, None, model.subspace.mean, model.subspace)
    monkeypatch.setattr("streampca.fitting.preparation_rounding.MEASURED_WIDTH", 10**6)
    whole = measured_errors(collection, None, model.subspace.mean, model.subspace)
    assert found.sketches.shape[-1] < whole.sketches.shape[-1] == 40000
    assert found.norm == pytest.approx(whole.norm, rel=0.05)
    np.testing.assert_allclose(found.residuals(), whole.residuals(), rtol=0.05)
    np.testing.assert_array_equal(found.along, whole.along)
