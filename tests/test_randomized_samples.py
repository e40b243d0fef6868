"""Method 'randomized' along samples, of fewer samples than features, against numpy's float64 eigenvectors."""

from __future__ import annotations

from dataclasses import replace

import judged
import numpy as np
import pytest
from judged import along_samples, check_signs, check_wide, images_of, of, problems, residuals, truth, turned, warnings
from threadpoolctl import threadpool_limits

import streampca
from streampca.errors import DataError
from streampca.events import Converging, PassStarted, Planned
from streampca.fitting.plan import plan_collection, prepared
from streampca.planning.blocks import spans_of
from streampca.planning.request import Request

N, SIDES = 240, (40, 60)
P = SIDES[0] * SIDES[1]
OFFSETS = [0.0, 1e4]


@pytest.fixture(scope="module", autouse=True)
def everything_along_samples():
    """Whenever that fits; and one thread, as there are many small products."""
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        along_samples(patch)
        patch.setattr("streampca.machine.cores", lambda: 2)
        yield


# -- what is fitted


PROBLEMS = problems(N, SIDES, strength=10)
problem = images_of(PROBLEMS, N, SIDES)


# -- how they are fitted and judged


def fit(x, k, precision="single", memory="64MiB", **more):
    """A model, and what happened."""
    model, events = judged.fit(x, k, precision, memory, **more)
    assert [event.plan.side for event in of(Planned, events)] == ["samples"]
    return model, events


def check(found, x, **more):
    """Components are products with the samples, which nothing makes orthogonal again; in float32 that is so far off."""
    return judged.check(found, x, orthonormal=1e-6, **more)


def carried_out(x, k, sizes, **more):
    """A fit by a plan of sizes that no budget makes the planner take, and what happened."""
    collection = prepared(streampca.open_collection(x), None)
    request = Request(k, "randomized", 64 * 2**20, "single")
    plan = plan_collection(collection, request)
    return judged.carried_out(collection, replace(plan, request=replace(request, **more), **sizes))


# -- right answers


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_components_are_numpys(name, offset):
    x = problem(name, offset)
    model, events = fit(x, 8)
    check_wide(model, check(model, x))
    assert warnings(events) == []


def test_a_flat_spectrum_is_settled_in_the_end():
    """Blocks stay free of the mean, which each product would bring back fiftyfold."""
    x = (turned(np.linspace(1.02, 1, N - 1), (N, P)).reshape(N, *SIDES) + 10.0).astype(np.float32)
    found, events = carried_out(x, 6, {"width": 10, "columns": 60})
    assert len(of(PassStarted, events)) > 12
    check(found, x)
    assert warnings(events) == []


@pytest.mark.parametrize("dtype", ["u1", "u2", "f8"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_of_every_dtype(dtype, precision):
    x = problem("1/f images")
    x = (x - x.min()) * (250 / (x.max() - x.min()))
    x = x.astype(dtype)
    model, events = fit(x, 5, precision)
    check(model, x)
    assert warnings(events) == []


@pytest.mark.parametrize("offset", OFFSETS)
def test_weighted(offset):
    x, weights = problem("1/f images", offset), np.random.default_rng(3).integers(0, 5, N).astype(np.float64)
    model, events = fit(x, 6, sample_weight=weights)
    check(model, x, weights=weights)
    assert warnings(events) == []
    repeated, _ = fit(np.repeat(x, weights.astype(int), axis=0), 6)
    np.testing.assert_allclose(model.explained_variance, repeated.explained_variance, rtol=1e-6)


def test_masked():
    x, mask = problem("1/f images", 1e4).copy(), np.zeros(SIDES, bool)
    mask[5:35, 7:50] = True
    x[:, ~mask] = np.nan
    model, events = fit(x, 5, preparation=streampca.Preparation(mask=mask))
    assert np.isnan(model.components[:, ~mask]).all()
    inside, _ = fit(x[:, 5:35, 7:50].copy(), 5)
    np.testing.assert_allclose(model.explained_variance, inside.explained_variance, rtol=1e-6)
    assert warnings(events) == []


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_there_are_no_more_components_than_the_data_have(dtype):
    x = turned(100 / np.arange(1, 6), (N, P)).astype(dtype).reshape(N, *SIDES)
    model, events = fit(x, 10, "double" if dtype == "f8" else "single")
    assert model.n_components == 5
    assert any("5 dimensions; there are no more components" in message for message in warnings(events))
    check(model, x)


@pytest.mark.parametrize("n", [2, 3, 12])
def test_of_few_samples_every_component(n):
    x = problem("1/f images")[:n]
    model, _ = fit(x, n - 1)
    assert model.n_components == n - 1
    check(model, x)


@pytest.mark.parametrize("wanted", [0.5, 0.9])
def test_a_fraction_of_the_variance(wanted):
    x = problem("1/f images", 1e4)
    model, events = fit(x, wanted)
    true = check(model, x).values
    assert model.n_components == np.searchsorted(np.cumsum(true), wanted * true.sum()) + 1
    assert warnings(events) == []


def test_a_fraction_that_there_is_no_room_for():
    x = problem("1/f images")
    found, events = carried_out(x, 0.9, {"room": 20})
    assert len(found.explained_variance) == 20
    assert "the budget holds 20 components" in warnings(events)[0]
    found, events = carried_out(x, 0.99, {"columns": 60, "width": 20})
    assert "the budget holds" in warnings(events)[0]


@pytest.mark.parametrize("rule", ["elbow", "mp"])
def test_a_rule(rule):
    x = problem("spiked noise")
    model, _ = fit(x, rule)
    exact = streampca.fit(x, n_components=rule, method="dual")
    assert model.n_components == exact.n_components


def test_a_small_tolerance_makes_products_double():
    x = problem("1/i", 1e4)
    model, events = fit(x, 5, tol=1e-9)
    check(model, x, tol=1e-9)
    assert warnings(events) == []
    assert model.components.dtype == np.float64
    assert np.all(model.error_bound < 1e-7)


@pytest.mark.parametrize("most", [2, 4])
def test_passes_are_kept_to_what_was_asked(most):
    """One of them is for the components."""
    x = problem("1/i")
    found, events = carried_out(x, 8, {"width": 18, "columns": 90, "block_features": 600}, max_passes=most)
    assert len(list(of(PassStarted, events))) == found.passes == most
    assert "Allow more by --max-passes" in warnings(events)[0]
    assert np.all(residuals(found, truth(x)) <= found.error_bound)


def test_one_pass_goes_along_features():
    """Along samples the components take another."""
    events = []
    streampca.fit(problem("1/i"), n_components=8, method="randomized", max_passes=1, listener=events.append)
    assert [event.plan.side for event in of(Planned, events)] == ["features"]


def test_a_basis_that_begins_again():
    x = problem("1/i")
    whole, events = carried_out(x, 8, {"width": 18})
    small, more = carried_out(x, 8, {"columns": 36, "width": 18})
    assert len(of(Converging, more)) > len(of(Converging, events))
    np.testing.assert_allclose(small.explained_variance, whole.explained_variance, rtol=1e-6)


def test_the_same_whichever_way_it_is_cut():
    """Ranges, tiles and spans; only rounding differs."""
    x = problem("1/f images", 1e4)
    expected, _ = carried_out(x, 5, {"block_features": P})
    for sizes in (
        {"block_features": 500},
        {"block_features": 256, "product_features": 100, "block_rows": 7},
        {"block_features": 300, "spans": spans_of(P, 4, 300)},
    ):
        found, events = carried_out(x, 5, sizes)
        np.testing.assert_allclose(found.explained_variance, expected.explained_variance, rtol=1e-6)
        assert np.abs(found.components @ expected.components.T - np.eye(5)).max() <= 1e-4
        assert {event.samples for event in of(PassStarted, events)} == {N}


# -- scratch copies, and components on disk


def scratched(patch):
    """Take a copy, whatever it costs."""
    patch.setattr("streampca.planning.by_features.SCHEDULES", ("scratch",))


def test_from_a_scratch_copy(monkeypatch, tmp_path):
    x = problem("1/f images", 1e4)
    expected, _ = fit(x, 5)
    scratched(monkeypatch)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "here").mkdir()
    model, events = fit(tmp_path / "x.npy", 5, scratch=tmp_path / "here")
    check(model, x)
    assert of(PassStarted, events)[0].label == "scratch copy"
    assert model.provenance["plan"]["schedule"] == "scratch"
    np.testing.assert_allclose(model.explained_variance, expected.explained_variance, rtol=1e-6)
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("schedule", ["sweep", "scratch"])
def test_components_may_be_written_as_they_are_made(monkeypatch, tmp_path, schedule):
    x = problem("1/f images", 1e4)
    monkeypatch.setattr("streampca.planning.by_features.SCHEDULES", (schedule,))
    monkeypatch.setattr("streampca.planning.by_features.places", lambda request: (True,))
    model, events = fit(x, 20, precision="auto", memory="40MiB", output=tmp_path / "m.zarr")
    assert model.provenance["plan"]["stored"]
    check(model, x)
    check(streampca.load_model(tmp_path / "m.zarr"), x)
    assert warnings(events) == []
    monkeypatch.undo()
    along_samples(monkeypatch)
    check_signs(model, fit(x, 20, precision="auto", memory="40MiB")[0])


@pytest.mark.parametrize("schedule", ["sweep", "scratch"])
def test_a_sample_that_holds_no_number_is_named(monkeypatch, tmp_path, schedule):
    x = problem("1/f images").copy()
    x[17, 20, 3] = np.nan
    monkeypatch.setattr("streampca.planning.by_features.SCHEDULES", (schedule,))
    with pytest.raises(DataError, match=r"sample 17 of numpy array holds NaN or infinity in 1 of its 2400 features"):
        fit(x, 3, scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("dtype", "value"), [("u1", 7), ("f4", 0.1), ("f8", 1e9)])
def test_equal_samples_are_refused(dtype, value):
    with pytest.raises(DataError, match="has no variance"):
        fit(np.full((30, 20, 30), value, dtype), 2)
