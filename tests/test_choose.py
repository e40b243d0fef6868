"""How many components: rules judged by spectra whose answer is known, and by scikit-learn's own."""

from __future__ import annotations

from dataclasses import replace

import by_options
import numpy as np
import pytest
from sklearn.decomposition import PCA

import streampca
from streampca import plot
from streampca.eigensolvers.n_components import Rule, above_noise, count_components, elbow, most_likely, mp_median
from streampca.errors import RequestError
from streampca.events import Warned
from streampca.execution import LocalExecutor
from streampca.fitting.methods import Job
from streampca.fitting.methods.covariance import fit_covariance
from streampca.fitting.open_fit import plan_collection, prepare
from streampca.models.accuracy import trust_of


def spiked(n, p, sizes, seed=0):
    """White noise with a few strong directions."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p))
    directions = np.linalg.qr(rng.standard_normal((p, len(sizes))))[0]
    return x + (rng.standard_normal((n, len(sizes))) * sizes) @ directions.T


def spectrum(x):
    values = np.linalg.svd(x - x.mean(axis=0), compute_uv=False) ** 2
    return values[: min(len(x) - 1, x.shape[1])]


def test_elbow_is_the_point_furthest_below_the_chord():
    values = np.array([100.0, 60.0, 30.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5])
    assert elbow(values) == 3

    values = 1.0 / np.arange(1, 400)
    assert elbow(values) == elbow(values[:50]) == elbow(values[:120])  # at fifty values, whatever there are
    assert elbow(np.ones(7)) == elbow(np.array([3.0])) == elbow(np.array([3.0, 1.0])) == 1


@pytest.mark.parametrize(("n", "p"), [(2000, 100), (100, 2000), (400, 400), (500, 60)])
def test_marchenko_pastur_counts_the_planted_components(n, p):
    edge = (p / n) ** 0.25  # below this strength nothing stands out of the noise
    values = spectrum(spiked(n, p, edge * np.array([6.0, 5.0, 4.0, 3.0])))
    assert above_noise(values, values.sum(), n, p, complete=True) == 4
    for known in (10, 30):
        assert above_noise(values[:known], values.sum(), n, p, complete=False) == 4


def test_marchenko_pastur_finds_nothing_in_noise():
    values = spectrum(np.random.default_rng(3).standard_normal((600, 200)))
    assert above_noise(values, values.sum(), 600, 200, complete=True) == 0
    assert above_noise(values[:20], values.sum(), 600, 200, complete=False) == 0


def test_median_of_the_law_is_that_of_noise():
    values = spectrum(np.random.default_rng(4).standard_normal((4001, 1000))) / 4000
    assert mp_median(0.25) == pytest.approx(np.median(values), rel=3e-3)


def test_marchenko_pastur_asks_for_more_while_all_stand_out():
    values = spectrum(spiked(500, 60, np.full(12, 8.0)))
    rule = Rule("mp", 500, 60)
    assert count_components(values[:8], values.sum(), rule) is None
    assert count_components(values[:20], values.sum(), rule) == 12
    assert count_components(values, values.sum(), rule, complete=True) == 12


@pytest.mark.parametrize("seed", range(5))
def test_most_likely_rank_is_scikit_learns(seed):
    sizes = np.random.default_rng(seed).uniform(0.3, 4, size=8)
    x = spiked(300, 30, sizes, seed)
    assert most_likely(spectrum(x), 300) == PCA("mle").fit(x).n_components_


@pytest.mark.parametrize("p", [100, 2200])  # by LAPACK, by Lanczos
@pytest.mark.parametrize("rule", ["elbow", "mp"])
def test_fit_by_rule_is_fit_by_its_number(rule, p):
    n = 400
    x = spiked(n, p, np.array([80.0, 70.0, 60.0, 50.0, 45.0]))
    values = spectrum(x)
    known = {"elbow": elbow(values), "mp": above_noise(values, values.sum(), n, p, complete=p == 100)}[rule]
    model = streampca.fit(x, n_components=rule)
    assert model.n_components == known == 5
    plain = streampca.fit(x, n_components=known)
    np.testing.assert_allclose(model.explained_variance, plain.explained_variance, rtol=1e-9)


def test_fit_by_evidence_is_scikit_learns():
    x = spiked(500, 40, np.array([5.0, 4.0, 3.0]))
    assert streampca.fit(x, n_components="mle").n_components == PCA("mle").fit(x).n_components_ == 3


def test_evidence_is_not_of_constant_features():
    """scikit-learn's takes constant features for the noise, and so finds all other directions."""
    x = spiked(500, 40, np.array([5.0, 4.0, 3.0]))
    with_constants = np.pad(x, ((0, 0), (0, 5)), constant_values=7.0)
    assert streampca.fit(with_constants, n_components="mle").n_components == 3
    assert PCA("mle", svd_solver="full").fit(with_constants).n_components_ == 40


def test_evidence_needs_more_samples_than_features():
    with pytest.raises(RequestError, match=r"'mle' needs at least as many samples as features, .*use 'elbow'"):
        streampca.fit(np.random.default_rng(0).standard_normal((20, 30)), n_components="mle")
    with pytest.raises(RequestError, match="60 samples, weighing 30 together, of 40 features"):
        streampca.fit(spiked(60, 40, [9.0, 8.0]), n_components="mle", sample_weight=np.full(60, 0.5))


FAINT = spiked(120, 30, np.array([3.0, 2.0, 1.2, 1.0, 0.9, 0.8, 0.7, 0.6]))  # the more samples, the more stand out


@pytest.mark.parametrize("rule", ["elbow", "mp", "mle"])
def test_rules_count_samples_as_often_as_their_weights_say(rule):
    counts, how = np.arange(120) % 4, {"n_components": rule, "precision": "double"}
    repeated = by_options.fit(FAINT.repeat(counts, axis=0), **how).n_components
    for method in ("covariance", "dual", "randomized")[: 2 if rule == "mle" else 3]:
        assert by_options.fit(FAINT, sample_weight=counts, method=method, **how).n_components == repeated
    parts = [by_options.fit(FAINT, sample_weight=counts, part=(number, 3), **how) for number in (1, 2, 3)]
    assert streampca.merge(parts).n_components == repeated


@pytest.mark.parametrize("rule", ["elbow", "mp", "mle"])
def test_copies_of_few_samples_make_no_more_dimensions(rule):
    """30 samples of 40 features, 7 times each: 29 variances, and 11 zeros."""
    x = spiked(30, 40, np.array([9.0, 8.0]))
    weighted = streampca.fit(x, n_components=rule, sample_weight=np.full(30, 7))
    repeated = streampca.fit(x.repeat(7, axis=0), n_components=rule)
    assert weighted.n_components == repeated.n_components
    assert streampca.fit(x, n_components=rule, sample_weight=np.full(30, 1.5)).n_components <= 29


def test_what_else_counts_samples_counts_them_as_often():
    """North's rule of thumb, the mean variance left out, and the edge that the scree plot draws."""
    x, counts = spiked(50, 30, np.array([9.0, 8.0])), np.full(50, 9)
    weighted = streampca.PCA(6).fit(x, sample_weight=counts)
    repeated = streampca.PCA(6).fit(x.repeat(9, axis=0))
    mixed = [trust_of(each.model_).mixed for each in (weighted, repeated, streampca.PCA(6).fit(x))]
    assert mixed[0] == mixed[1] != mixed[2]
    few, many = streampca.PCA(3).fit(x[:20], sample_weight=counts[:20]), streampca.PCA(3).fit(x[:20].repeat(9, axis=0))
    np.testing.assert_allclose(few.noise_variance_, many.noise_variance_, rtol=1e-9)
    edges = [
        next(line for line in plot.scree(each.model_).lines if line.get_linestyle() == "--").get_ydata()[0]
        for each in (weighted, repeated)
    ]
    np.testing.assert_allclose(*edges, rtol=1e-9)


def test_nothing_above_the_noise_keeps_one_and_says_so():
    told = []
    noise = np.random.default_rng(2).standard_normal((800, 100))
    assert streampca.fit(noise, n_components="mp", listener=told.append).n_components == 1
    assert any("no component has more variance" in event.message for event in told if isinstance(event, Warned))


def test_more_above_the_noise_than_the_budget_holds_are_at_least_so_many():
    collection, told = prepare(streampca.open_collection(spiked(300, 100, np.linspace(90, 80, 30))), None), []
    plan = replace(plan_collection(collection, by_options.request("mp", "covariance")), room=20, dense_room=20)
    found = fit_covariance(Job(collection, plan, LocalExecutor(), listener=told.append))
    assert len(found.explained_variance) == 20
    assert any("components or more" in event.message for event in told if isinstance(event, Warned))
