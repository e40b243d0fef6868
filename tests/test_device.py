"""Products on a device, on torch's own processor device: the laws, the bits of exact sums, and rounding."""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec

import numpy as np
import pytest
from scipy import sparse
from test_accumulate import along, fed, new_for, same_statistic, values

import streampca
from streampca import machine
from streampca.errors import BudgetError, OutputError, RequestError
from streampca.events import Checkpoint
from streampca.testing import AccumulatorLaws, assert_same_state

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

DEVICE = "torch:cpu"
KINDS = ["scatter", "scatter_block", "gram", "gram_block", "gram_block, weighted", "scatter, double", "gram, double"]


@cache
def multiplying_there(kind):
    """Return a class of accumulators that stay on the device when they are made of a state, as laws make them."""

    class OnDevice(kind):
        def __init__(self, *given, **options):
            super().__init__(*given, **options | {"device": DEVICE})

    return OnDevice


def on_device(kind, parts):
    new = new_for(kind, parts)
    return partial(multiplying_there(new.func), *new.args, **new.keywords)


@pytest.mark.parametrize("dtype", ["u1", "u2", ">f4", "f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_laws_and_answers_are_those_of_the_processor(kind, dtype):
    parts = along(kind, np.split(values(300, dtype, 100.0, seed=3), [11, 11, 140]))
    new = on_device(kind, parts)
    AccumulatorLaws(new, same_statistic).check(parts)
    same_statistic(fed(new, parts), fed(new_for(kind, parts), parts))


@pytest.mark.parametrize(("kind", "name"), [("scatter", "scatter"), ("gram", "gram")])
def test_exact_sums_have_the_bits_of_the_processor(kind, name):
    parts = along(kind, np.split(values(3000, "u2", 1e4, seed=3), [11, 1140]))
    found, expected = fed(on_device(kind, parts), parts), fed(new_for(kind, parts), parts)
    assert found.sums_exactly
    assert found.agrees
    np.testing.assert_array_equal(np.triu(found.state()[name]), np.triu(expected.state()[name]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_in_the_middle_changes_no_bit(kind):
    parts = along(kind, np.split(values(500, "f4", 1e4, seed=8), 5))
    new, axis = on_device(kind, parts), 1 if kind.startswith("gram") else 0
    whole, half = fed(new, parts), fed(new, parts[:2])
    half.release()
    later = type(half).from_state(half.state())
    for number, part in enumerate(parts[2:], 2):
        later.update(part, at=number * part.shape[axis])
        later.state()
    assert_same_state(later.state(), whole.state())


# -- fits


def images(method, dtype="u1"):
    """Samples for a method, of slowly falling variances."""
    shape = (60, 3000) if method == "dual" else (6000, 120)
    x = np.random.default_rng(0).normal(size=shape) / np.sqrt(1 + np.arange(shape[1]))
    return (60 * x + 120).clip(0, 255).astype(dtype)


def fitted(method, dtype="u1", **run):
    return streampca.fit(images(method, dtype), streampca.PCA(4, method=method), **run)


@pytest.mark.parametrize("dtype", ["u1", "f4"])
@pytest.mark.parametrize("method", ["covariance", "dual", "randomized"])
def test_fits_have_the_answer_of_the_processor(method, dtype):
    found, expected = fitted(method, dtype, device=DEVICE), fitted(method, dtype)
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance, rtol=1e-8)
    np.testing.assert_allclose(found.components, expected.components, atol=1e-5)
    assert found.provenance["plan"]["request"]["device"] == DEVICE
    if method != "randomized" and dtype == "u1":
        assert found.provenance["exact_sums"]
        np.testing.assert_array_equal(found.components, expected.components)


class Died(Exception):  # noqa: N818
    pass


def dying_after(blocks):
    seen = []

    def listener(event):
        seen.extend([event] * isinstance(event, Checkpoint))
        if len(seen) == blocks:
            raise Died

    return listener


@pytest.mark.parametrize("method", ["covariance", "dual", "randomized"])
def test_a_fit_that_died_resumes_to_the_same_bits_there_and_nowhere_else(tmp_path, method):
    run = {"checkpoint": tmp_path / "kept", "checkpoint_every": 0, "memory": "150 MiB"}
    whole = fitted(method, "f4", device=DEVICE, memory="150 MiB")
    with pytest.raises(Died):
        fitted(method, "f4", device=DEVICE, listener=dying_after(2), **run)
    with pytest.raises(OutputError, match="an unfinished run with device"):
        fitted(method, "f4", **run)
    found = fitted(method, "f4", device=DEVICE, **run)
    for name in ("components", "explained_variance", "mean", "error_bound"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


def test_a_device_without_enough_memory_is_refused_and_the_remedy_works():
    free = machine.device_memory(DEVICE)
    how = {"shape": (10**6, int((free / 10) ** 0.5)), "dtype": "float32", "memory": 20 * free}
    with pytest.raises(
        BudgetError, match=r"'covariance' needs .* of the memory of device 'torch:cpu', and .* are free"
    ):
        streampca.plan(**how, kind=streampca.PCA(4, method="covariance"), device=DEVICE)
    assert streampca.plan(**how, kind=streampca.PCA(4, method="covariance")).method == "covariance"
    plan = streampca.plan(**how, kind=streampca.PCA(4, method="randomized"), device=DEVICE)
    assert f"products on device {DEVICE}" in str(plan)


@pytest.mark.parametrize(
    ("kind", "run", "message"),
    [
        (streampca.PCA(2), {"device": "tpu"}, "'tpu' is not a device"),
        (streampca.PCA(2), {"device": "cuda:99"}, "is not here: torch finds . devices"),
        (streampca.PCA(2), {"device": DEVICE, "workers": 2}, "for one process; leave out workers"),
        (streampca.Isomap(2), {"device": DEVICE}, "'isomap' is not computed on a device"),
        (streampca.PCA(2, missing="em"), {"device": DEVICE}, "method 'em' is not computed on a device"),
    ],
)
def test_what_is_not_multiplied_there_is_refused(kind, run, message):
    with pytest.raises(RequestError, match=message):
        streampca.fit(images("covariance", "f4")[:200], kind, **run)


def test_sparse_samples_are_refused():
    with pytest.raises(RequestError, match="sparse samples are not multiplied on a device"):
        streampca.fit(sparse.random_array((300, 200), density=0.01, format="csr"), streampca.PCA(2), device=DEVICE)
