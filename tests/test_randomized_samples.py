"""Method 'randomized' along samples, of fewer samples than features: how these are read, cut and copied."""

from __future__ import annotations

from dataclasses import replace

import judged
import numpy as np
import pytest
from judged import SAMPLES, along_samples, check_signs, of, residuals, truth, warnings

import streampca
from streampca.errors import DataError
from streampca.events import PassStarted, Planned
from streampca.planning.blocks import spans_of

fit, check, problem = SAMPLES.fit, SAMPLES.check, SAMPLES.problem
N, SIDES = SAMPLES.n, SAMPLES.shape
P = SIDES[0] * SIDES[1]


def carried_out(x, k, sizes, **more):
    """A fit by a plan of sizes that no budget makes the planner take, and what happened."""
    collection, plan = SAMPLES.planned(x, k)
    return judged.carried_out(collection, replace(plan, request=plan.request.asking(**more), **sizes))


def test_a_flat_spectrum_is_settled_in_the_end():
    """Blocks stay free of the mean, which each product would bring back fiftyfold."""
    x = (SAMPLES.turned(np.linspace(1.02, 1, N - 1)) + 10.0).astype(np.float32)
    found, events = carried_out(x, 6, {"width": 10, "columns": 60})
    assert len(of(PassStarted, events)) > 12
    check(found, x)
    assert warnings(events) == []


def test_masked():
    x, mask = problem("1/f images", 1e4).copy(), np.zeros(SIDES, bool)
    mask[5:35, 7:50] = True
    x[:, ~mask] = np.nan
    model, events = fit(x, 5, preparation=streampca.Preparation(mask=mask))
    assert np.isnan(model.components[:, ~mask]).all()
    inside, _ = fit(x[:, 5:35, 7:50].copy(), 5)
    np.testing.assert_allclose(model.explained_variance, inside.explained_variance, rtol=1e-6)
    assert warnings(events) == []


def test_a_fraction_that_there_is_no_room_for():
    x = problem("1/f images", 0.0)
    found, events = carried_out(x, 0.9, {"room": 20})
    assert len(found.explained_variance) == 20
    assert "memory allows 20 components" in warnings(events)[0]
    found, events = carried_out(x, 0.99, {"columns": 60, "width": 20})
    assert "memory allows" in warnings(events)[0]


@pytest.mark.parametrize("most", [2, 4])
def test_passes_are_kept_to_what_was_asked(most):
    """One of them is for the components."""
    x = problem("1/i", 0.0)
    found, events = carried_out(x, 8, {"width": 18, "columns": 90, "block_features": 600}, max_passes=most)
    assert len(list(of(PassStarted, events))) == found.passes == most
    assert "Allow more passes by max_passes=" in warnings(events)[0]
    assert np.all(residuals(found, truth(x)) <= found.residual_bound)


def test_one_pass_goes_along_features(monkeypatch):
    """Along samples the components take another."""
    along_samples(monkeypatch)
    _, events = judged.fit(problem("1/i", 0.0), 8, max_passes=1)
    assert [event.plan.side for event in of(Planned, events)] == ["features"]


def test_the_same_whichever_way_it_is_cut():
    """Ranges, tiles and spans; only rounding differs."""
    x = problem("1/f images", 1e4)
    expected, _ = carried_out(x, 5, {"block_features": P})
    for sizes in (
        {"block_features": 800, "product_features": 300, "block_rows": 50},
        {"block_features": 600, "spans": spans_of(P, 4, 600)},
    ):
        found, events = carried_out(x, 5, sizes)
        np.testing.assert_allclose(found.explained_variance, expected.explained_variance, rtol=1e-6)
        assert np.abs(found.components @ expected.components.T - np.eye(5)).max() <= 1e-4
        assert {event.samples for event in of(PassStarted, events)} == {N}


# -- scratch copies, and components on disk


def test_from_a_scratch_copy(monkeypatch, tmp_path):
    x = problem("1/f images", 1e4)
    expected, _ = fit(x, 5)
    monkeypatch.setattr("streampca.planning.randomized.SCHEDULES", ("scratch",))
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
    monkeypatch.setattr("streampca.planning.randomized.SCHEDULES", (schedule,))
    monkeypatch.setattr("streampca.planning.randomized.places", lambda request: (True,))
    model, events = fit(x, 20, precision="auto", memory="40MiB", output=tmp_path / "m.zarr")
    assert model.provenance["plan"]["stored"]
    check(model, x)
    check(streampca.load(tmp_path / "m.zarr"), x)
    assert warnings(events) == []
    monkeypatch.undo()
    check_signs(model, fit(x, 20, precision="auto", memory="40MiB")[0])


@pytest.mark.parametrize("schedule", ["sweep", "scratch"])
def test_a_sample_that_holds_no_number_is_named(monkeypatch, tmp_path, schedule):
    x = problem("1/f images", 0.0).copy()
    x[17, 20, 3] = np.nan
    monkeypatch.setattr("streampca.planning.randomized.SCHEDULES", (schedule,))
    with pytest.raises(DataError, match=r"sample 17 of numpy array holds NaN or infinity in 1 of its 2400 features"):
        fit(x, 3, scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []
