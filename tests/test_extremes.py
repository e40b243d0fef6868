"""Values at the edge of what floats hold: every method gives a bound that is true, or refuses."""

from __future__ import annotations

from dataclasses import replace

import by_options
import numpy as np
import pytest
from judged import ROUNDING, along_samples, noise

import streampca
from streampca.errors import DataError
from streampca.events import silent
from streampca.preprocessing import Preparation

WAYS = {  # how samples are analysed: the shape that takes it there, and the method
    "covariance": ((400, 120), "covariance"),
    "dual": ((60, 700), "dual"),
    "along features": ((400, 120), "randomized"),
    "along samples": ((60, 700), "randomized"),
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Shape of samples, and a function that fits them."""
    if request.param == "along samples":
        along_samples(monkeypatch)
    shape, method = WAYS[request.param]

    def fit(x, k=4, **more):
        return by_options.fit(x, n_components=k, method=method, listener=silent, **more)

    return shape, fit


def decaying(shape):
    """Deviations of about 1 that fall as 1/i, in directions at random."""
    n, p = shape
    turn = np.linalg.qr(noise((p, 40), seed=5))[0]
    return noise((n, 40), seed=6) / np.arange(1, 41) @ turn.T * 10


def centred(x):
    """Samples less their mean, by exact differences from the first; divided by a power of two, which is returned."""
    apart = np.asarray(x, np.float64) - np.float64(x[0]) if x.dtype.kind == "f" else (x - x[0]).astype(np.float64)
    unit = 2.0 ** np.floor(np.log2(np.abs(apart).max()))
    apart /= unit
    return apart - apart.mean(axis=0), unit


def check_bounds(model, x):
    """Assert that the components found leave no larger residual than they say, and that the total is right."""
    rows, unit = centred(x)
    values, vectors = model.explained_variance / unit / unit, model.components.reshape(len(model.components), -1)
    left = np.linalg.norm((vectors @ rows.T) @ rows / (len(rows) - 1) - values[:, None] * vectors, axis=1)
    true = np.linalg.svd(rows, compute_uv=False) ** 2 / (len(rows) - 1)
    most = model.residual_bound * values + ROUNDING * values[0]
    assert np.all(left <= most)
    assert np.all(np.abs(values - true[: len(values)]) <= most)
    assert model.total_variance / unit / unit == pytest.approx(true.sum(), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-150, 1e-78, 1e150])
def test_bounds_hold_at_any_scale(way, scale):
    """Squares of variances of these no float64 holds."""
    shape, fit = way
    x = decaying(shape) * scale
    model = fit(x)
    check_bounds(model, x)
    assert np.all(model.residual_bound <= 1e-3)
    assert np.all(model.residual_bound > 0)
    assert np.all(np.nan_to_num(model.angle_bound, nan=1.0) > 0)


@pytest.mark.parametrize(
    ("dtype", "scale", "precision", "remedy"),
    [
        ("f8", 1e-160, "double", r"; multiply all samples by a factor such as 1e16\d\.$"),
        ("f4", 1e-21, "single", r"; use precision='double', or multiply all samples by a factor such as 1e2\d\.$"),
    ],
)
def test_differences_whose_squares_lose_digits_are_refused(way, dtype, scale, precision, remedy):
    shape, fit = way
    x = (decaying(shape) * scale).astype(dtype)
    with pytest.raises(DataError, match=rf"differ by about \d\.\de-\d+, whose square .*{remedy}"):
        fit(x, precision=precision)
    factor = 2.0**530 if dtype == "f8" else 1.0
    check_bounds(fit(x * factor, precision="double"), x * factor)


@pytest.mark.parametrize(("dtype", "scale"), [("f8", 1e-200), ("f4", 1e-30)])
def test_samples_whose_squares_are_zero_are_not_just_called_equal(way, dtype, scale):
    shape, fit = way
    with pytest.raises(DataError, match=r"differ by (less than float\d\d squares can hold|about \d.*full precision)"):
        fit((decaying(shape) * scale).astype(dtype), precision="double" if dtype == "f8" else "single")


@pytest.mark.parametrize(("dtype", "largest", "precision"), [("f8", 1.7e308, "double"), ("f4", 3e38, "single")])
def test_the_largest_numbers_are_refused_by_name(way, dtype, largest, precision):
    """Neither their squares fit the dtype nor their sums and differences."""
    shape, fit = way
    x = (np.sign(noise(shape)) * largest).astype(dtype)
    with pytest.raises(DataError, match=r"^sample \d+ of numpy array holds values up to .* squares overflow"):
        fit(x, precision=precision)


def test_float32_of_any_size_is_analysed_in_double_precision(way):
    """The squares of these fit float64; the differences do not fit float32."""
    shape, fit = way
    x = (np.sign(noise(shape)) * np.linspace(1, 3e38, shape[1])).astype(np.float32)
    check_bounds(fit(x, precision="double"), x)


@pytest.mark.parametrize(("offset", "precision"), [(1e12, "double"), (1e15, "single")])
def test_float64_far_from_zero_is_centred_before_it_is_rounded(way, offset, precision):
    """The mean of these fills all digits of float64, and what it lacks is a good part of a deviation."""
    shape, fit = way
    x = decaying(shape) + offset
    model = fit(x, precision=precision)
    check_bounds(model, x)
    assert np.all(model.residual_bound <= 5e-4)
    assert np.all(np.abs(model.mean - x.mean(axis=0)) <= 2 * np.spacing(offset) * len(x) ** 0.5)


def test_wide_whole_numbers_are_centred_before_they_are_rounded(way):
    """Differences of these fit float32, the numbers do not."""
    shape, fit = way
    x = (np.rint(decaying(shape)) + 1_999_999_999).astype(np.int32)
    model = fit(x, precision="single")
    check_bounds(model, x)
    assert np.all(model.residual_bound <= 5e-4)


# -- whole numbers of 64 bits

BASES = {"i8": 2**60, "u8": 2**63 + 2**62}


def whole(shape, dtype, base):
    """Whole numbers near a base, of which float64 holds the differences only."""
    apart = np.rint(300 * decaying(shape)).astype(np.int64)
    return (apart.astype(np.uint64) + np.uint64(base)).view(np.dtype(dtype))


@pytest.mark.parametrize("dtype", BASES)
def test_whole_numbers_that_float64_does_not_hold_are_refused(way, dtype):
    """The remedies that refusals name work."""
    shape, fit = way
    x = whole(shape, dtype, BASES[dtype])
    with pytest.raises(DataError, match=r"^sample \d+ of numpy array holds \d{19,20}, .* \(2\^53 - 1\) only; subtract"):
        fit(x)
    fewer = (x - x[0]).view(np.int64)
    check_bounds(fit(fewer), fewer)
    if dtype == "i8":
        floats = x.astype(np.float64)
        check_bounds(fit(floats), floats)


@pytest.mark.parametrize("value", [2**53 - 1, 1 - 2**53])
def test_whole_numbers_that_float64_holds_are_analysed(way, value):
    shape, fit = way
    x = whole(shape, "i8", 0) + value // abs(value) * (abs(value) - 10**6)
    check_bounds(fit(x), x)
    x[7, 3] = value + np.sign(value)
    with pytest.raises(DataError, match=f"sample 7 of numpy array holds {x[7, 3]}, and float64"):
        fit(x)


@pytest.mark.parametrize("steps", [{"scale": 0.5}, {"normalize": "mean"}, {"bin": 2}, {"resize": (4, 4)}])
def test_preparing_them_is_refused_too(steps):
    x = whole((50, 64), "i8", BASES["i8"]).reshape(50, 8, 8)
    with pytest.raises(DataError, match=r"sample 0 of numpy array holds \d{19}, and float64"):
        streampca.fit(x, n_components=2, preparation=Preparation(**steps))


def test_what_a_mask_leaves_out_may_be_any_number():
    x = whole((50, 64), "i8", 0).reshape(50, 8, 8)
    x[:, 0] = np.iinfo(np.int64).min  # as a missing value
    mask = np.ones((8, 8), bool)
    mask[0] = False
    model = streampca.fit(x, n_components=2, preparation=Preparation(mask=mask))
    check_bounds(replace(model, components=model.components[:, 1:]), x[:, 1:].reshape(50, -1))
    assert np.isfinite(model.transform(x)).all()


def test_they_are_not_projected_either(tmp_path):
    x = whole((50, 64), "i8", 0)
    model = streampca.fit(x, n_components=2)
    x[20] += 2**60
    np.save(tmp_path / "x.npy", x)
    for apply in (model.transform, model.reconstruct, model.residual, model.reconstruction_error, model.hotelling_t2):
        with pytest.raises(DataError, match=r"sample 20 of numpy array holds \d{19}, and float64"):
            apply(x)
    with pytest.raises(DataError, match=r"sample 20 of .*x.npy holds \d{19}, and float64"):
        model.write_scores(str(tmp_path / "x.npy"), str(tmp_path / "scores.npy"))


@pytest.mark.parametrize(("largest", "exact"), [(1e3, True), (3e8, False)])
def test_sums_that_float64_rounds_are_not_called_exact(way, largest, exact):
    """Squares of 3e8 are 9e16, which is more than 2^53."""
    shape, fit = way
    x = np.rint(noise(shape) * largest).astype(np.int64)
    model = fit(x, precision="double")
    assert model.provenance["exact_sums"] == (exact and model.provenance["plan"]["method"] != "randomized")
    check_bounds(model, x)


def test_products_that_overflow_where_squares_do_not_are_refused():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((300, 40)) @ rng.standard_normal((40, 40)) * 1e17).astype("f4")
    with pytest.raises(DataError, match="use precision='double'"):
        streampca.fit(x, streampca.PCA(3, precision="single", method="covariance"))
    assert np.isfinite(streampca.fit(x, streampca.PCA(3, method="covariance", precision="double")).residual_bound).all()
