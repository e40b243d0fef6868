"""Wrong products and damaged sums show in the error bounds and in a warning; right ones give no warning."""

from __future__ import annotations

import by_options
import numpy as np
import pytest
from judged import along_samples, residuals, truth, warnings

import streampca
from streampca.accumulators import Gram, Scatter, products
from streampca.accumulators.products import BlasProducts
from streampca.errors import StreampcaError
from streampca.fitting.methods import dual_components

K = 5


def samples(rows, p, seed=0):
    """Rows with variances that fall as 1/i^2, about a mean of 30."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, p)) / np.arange(1, p + 1) @ np.linalg.qr(rng.normal(size=(p, p)))[0]
    return (60 * x + 30).astype(np.float32)


TALL, WIDE = samples(3000, 60), samples(40, 900)
# name: data, method, the module of the product that goes wrong, and its name there
FITS = {
    "covariance": (TALL, "covariance", products, "among"),
    "dual": (WIDE, "dual", products, "among"),
    "components of dual": (WIDE, "dual", dual_components, "times"),
    "randomized along features": (TALL, "randomized", BlasProducts, "twice"),
    "randomized along samples": (WIDE, "randomized", BlasProducts, "twice"),
}


def wrong_at(product, call, size):
    """A product that comes out wrong in one entry at one of its calls."""
    calls = []

    def multiply(*args, **kwargs):
        found = product(*args, **kwargs)
        made = args[0].pending(0) if isinstance(found, bool) else found  # the product of `twice` is pending
        if len(calls) == call:
            made[1, 3] += np.asarray(size * np.abs(made).max(), made.dtype)
        calls.append(call)
        return found and bool(np.isfinite(made).all()) if isinstance(found, bool) else found

    return multiply


def fitted(name):
    """The model of a fit, and the warnings it gave."""
    x, method, *_ = FITS[name]
    events = []
    # In single precision a wrong product of the iteration looks like rounding: it is made good in double precision.
    precision = "double" if method == "randomized" else "single"
    with pytest.MonkeyPatch.context() as patch:
        if name == "randomized along samples":
            along_samples(patch)
        model = streampca.fit(x, streampca.PCA(K, method=method, precision=precision), listener=events.append)
    return model, warnings(events)


def assert_bounded(model, x):
    """|S v - theta v| is within its bound, by float64 from the samples."""
    assert np.all(residuals(model, truth(x)) <= model.residual_bound * (1 + 1e-6))


@pytest.mark.parametrize("size", [1.0, 0.03])
@pytest.mark.parametrize("name", FITS)
def test_a_wrong_product_shows_in_the_bounds_and_in_a_warning(monkeypatch, name, size):
    clean, warned = fitted(name)
    assert not warned
    x, _, module, product = FITS[name]
    monkeypatch.setattr(module, product, wrong_at(getattr(module, product), 0, size))
    model, warned = fitted(name)
    assert any("products were wrong" in message for message in warned)
    assert np.max(model.residual_bound) > 10 * np.max(clean.residual_bound)
    assert_bounded(model, x)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("name", ["covariance", "dual", "randomized along features", "randomized along samples"])
def test_a_product_that_is_not_finite_is_refused(monkeypatch, name, value):
    _, _, module, product = FITS[name]
    monkeypatch.setattr(module, product, wrong_at(getattr(module, product), 0, value))
    with pytest.raises(StreampcaError, match=r"infinite or NaN|squares overflow"):
        fitted(name)


@pytest.mark.parametrize(("method", "kind"), [("covariance", Scatter), ("dual", Gram)])
def test_a_unit_that_is_missing_from_exact_sums_is_told(monkeypatch, method, kind):
    """The least that can be wrong, which no bound made in single precision would see."""
    x = np.random.default_rng(1).integers(0, 256, (300, 40)).astype(np.uint8)
    x, whole, heard = x if kind is Scatter else x.T.copy(), kind.update, []
    how = {"n_components": K, "method": method, "precision": "single", "listener": heard.append}
    assert by_options.fit(x, **how).provenance["exact_sums"]
    assert not warnings(heard)

    def damaged(self, block, **place):
        whole(self, block, **place)
        (self._scatter if kind is Scatter else self._gram)[3, 7] += 1

    monkeypatch.setattr(kind, "update", damaged)
    found = by_options.fit(x, **how)
    assert any("sums of whole numbers were wrong" in message for message in warnings(heard))
    assert not found.provenance["exact_sums"]
    assert_bounded(found, x)


@pytest.mark.parametrize(("name", "kind", "finish"), [("covariance", Scatter, "settle"), ("dual", Gram, "centred")])
@pytest.mark.parametrize("bit", [20, 40, 48, 51, 52, 53, 54, 63])
def test_a_flipped_bit_of_a_sum_lies_within_the_bounds(monkeypatch, name, kind, finish, bit):
    whole = getattr(kind, finish)

    def damaged(self, *args):
        upper = self._scatter if kind is Scatter else self._gram
        word = upper[7, 20].view(np.uint64) ^ np.uint64(1 << bit)
        upper[7, 20] = word.view(np.float64)
        return whole(self, *args)

    monkeypatch.setattr(kind, finish, damaged)
    assert_bounded(fitted(name)[0], FITS[name][0])
