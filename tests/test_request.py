"""Tolerance and passes of iterative methods: the same options everywhere, stored with the model."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import by_options
import numpy as np
import pytest
from shell import pictures, succeeded

import streampca
from streampca import PCA
from streampca.events import PassFinished, Warned
from streampca.planning.request import Request

STOPS = {"tol": 1e-6, "tol_variance": 1e-3, "max_passes": 4}
RUN = "collection: {source: images.npy}\nmodel: {n_components: 2}\noutput: {directory: out}\n"


def requested(model):
    """Return the request that a model records."""
    return model.provenance["plan"]["request"]


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", pictures(40))
    return "images.npy"


# -- the value


@pytest.mark.parametrize("tol", [np.float64(0.25), np.float32(0.25), Fraction(1, 4)])
def test_other_numbers_are_numbers(tol):
    """They become plain numbers, which JSON holds."""
    request = by_options.request(tol=tol, max_passes=np.int64(3))
    assert (type(request.tol), type(request.max_passes)) == (float, int)
    assert (
        len({request, by_options.request(tol=0.25, max_passes=3), by_options.request(), by_options.request(tol=0.25)})
        == 3
    )


@pytest.mark.parametrize("tol", [1e-4, 1e-300, np.nextafter(1, 0), 1 / 3])
def test_a_request_comes_back_from_json(tol):
    request = by_options.request(5, tol=tol, max_passes=2)
    assert Request.from_given(json.loads(json.dumps(request.given))) == request


# -- wherever a fit is asked for


def test_every_way_to_ask_keeps_them(source):
    options = ["-k", 2, "--tol", "1e-6", "--tol-variance", "1e-3", "--max-passes", 4]
    succeeded("fit", source, *options, "-o", "m.zarr", "-q")
    Path("run.yaml").write_text(
        RUN.replace("n_components: 2", "n_components: 2, tol: 1e-6, tol_variance: 1e-3, max_passes: 4")
    )
    succeeded("run", "run.yaml", "-q")
    models = {
        "fit": by_options.fit(source, n_components=2, **STOPS),
        "estimator": PCA(2, **STOPS).fit(source).model_,
        "command": streampca.load("m.zarr"),
        "run file": streampca.load("out/model.zarr"),
    }
    for way, model in models.items():
        assert requested(model).items() >= STOPS.items(), way
    assert by_options.plan(source, n_components=2, **STOPS).request == by_options.request(2, **STOPS)
    planned = json.loads(succeeded("plan", source, *options, "--json"))
    assert planned["request"].items() >= STOPS.items()


@pytest.mark.parametrize("method", ["covariance", "dual"])
def test_exact_methods_take_no_notice(method):
    x, loose = pictures(30, 9, 9), {"tol": 0.5, "max_passes": 1}
    one, other = (by_options.fit(x, n_components=4, method=method, **stops) for stops in ({}, loose))
    np.testing.assert_array_equal(one.components, other.components)
    np.testing.assert_array_equal(one.residual_bound, other.residual_bound)


# -- what they do to method 'randomized'


def rows(n=300, p=120):
    """Samples whose variances fall slowly, so that a pass more is told from a pass less."""
    rng = np.random.default_rng(2)
    return (rng.normal(size=(n, p)) / np.arange(1, p + 1)) @ np.linalg.qr(rng.normal(size=(p, p)))[0]


def passes_of(**stops):
    events = []
    model = by_options.fit(rows(), n_components=8, method="randomized", listener=events.append, **stops)
    warned = [event.message for event in events if isinstance(event, Warned)]
    return sum(isinstance(event, PassFinished) for event in events), warned, model


def test_a_tighter_tolerance_takes_more_passes_and_is_kept():
    loose, _, _ = passes_of(tol=1e-1)
    tight, warned, model = passes_of(tol=1e-6)
    assert loose < tight
    assert warned == []
    centred = rows() - rows().mean(axis=0)
    v, variances = model.subspace.components.T, model.explained_variance
    residuals = np.linalg.norm(centred.T @ (centred @ v) / (len(centred) - 1) - v * variances, axis=0) / variances
    assert residuals.max() <= 1e-6
    assert (residuals <= model.residual_bound).all()


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_passes_than_allowed_with_a_warning_of_the_bound_reached(most):
    done, warned, model = passes_of(tol=1e-9, max_passes=most)
    assert done == most
    assert len(warned) == 1
    assert f"{model.residual_bound.max():.1e} of their variances" in warned[0]
    assert "max_passes" in warned[0]
    assert passes_of(tol=1e-9, max_passes=30)[1] == []  # the remedy


def test_a_warning_is_logged_where_nobody_listens(caplog):
    model = PCA(8, method="randomized", max_passes=1).fit(rows()).model_
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("streampca", "WARNING")
    assert f"after 1 pass: their errors are at most {model.residual_bound.max():.1e}" in record.getMessage()
