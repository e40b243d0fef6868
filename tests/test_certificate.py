"""Statements about components hold: values, groups, directions, sampling, and the variance left outside."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st
from judged import angles
from scipy.linalg import subspace_angles

import streampca
from streampca.cli.commands import cli
from streampca.eigensolvers import (
    KrylovBasis,
    certificate_of,
    certify,
    clusters,
    outside_bound,
    product_bounds,
    rest_of_basis,
    start_lanczos,
    unseparated,
    value_bounds,
)
from streampca.eigensolvers.error_bounds import angle_bounds, gaps_around
from streampca.models.accuracy import bound_text, digits_of, sentences, trust_of, trust_sentence

SEEDS = st.integers(0, 2**32 - 1)


def rotation(p, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(p, p)))[0]


def matrix_of(spectrum, seed=0):
    turned = rotation(len(spectrum), seed)
    return (turned * spectrum) @ turned.T


def probes(matrix, seed, count=8):
    directions = np.random.default_rng([seed, 1]).normal(size=(len(matrix), count))
    return {"directions": directions, "products": matrix @ directions}


@st.composite
def problems(draw):
    """A positive semi-definite matrix, its eigenpairs, and claimed pairs: Ritz pairs of a basis that is a little off.

    Eigenvalues come in groups, of which members may be equal.
    """
    p, seed = draw(st.integers(6, 30)), draw(SEEDS)
    rng = np.random.default_rng(seed)
    levels = rng.exponential(size=p) ** draw(st.sampled_from([1, 3]))
    values = np.sort(rng.choice(levels, size=p) if draw(st.booleans()) else levels)[::-1] / levels.max()
    basis = rotation(p, seed)
    matrix = (basis * values) @ basis.T
    k = draw(st.integers(1, p - 1))
    off = draw(st.sampled_from([1e-7, 1e-4, 1e-2]))
    near = np.linalg.qr(basis[:, :k] + off * rng.normal(size=(p, k)))[0]
    claimed, turn = np.linalg.eigh(near.T @ matrix @ near)
    return matrix, values, basis, claimed[::-1], near @ turn[:, ::-1]


def residuals(matrix, values, vectors):
    return np.linalg.norm(matrix @ vectors - vectors * values, axis=0)


# -- residuals and angles

POWER_LAW = 1e3 / np.arange(1, 121)


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-4, 0.1, 1.0])
def test_bounds_hold_for_pairs_right_and_wrong(size):
    """From rounding to nonsense, over many probes: never below the truth, seldom 60 times above it."""
    matrix, turned = matrix_of(POWER_LAW), rotation(120)
    rng = np.random.default_rng(1)
    vectors = turned[:, :20] + size * rng.normal(size=(120, 20)) / np.sqrt(120)
    vectors /= np.linalg.norm(vectors, axis=0)
    values = POWER_LAW[:20] * (1 + size * rng.normal(size=20))
    true = residuals(matrix, values, vectors)
    for seed in range(100):
        found = certify(values, vectors, **probes(matrix, seed))
        assert np.all(found.residual >= true * 0.999)
        if size > 1e-8:
            assert np.median(found.residual / true) < 60
        np.testing.assert_allclose(found.relative, np.where(values > 0, found.residual / values, np.inf))


@pytest.mark.parametrize("k", [1, pytest.param(5, marks=pytest.mark.campaign)])
def test_bounds_miss_as_often_as_they_say(k):
    """At failure = 0.1 about a tenth of all certificates has a bound below the truth; fewer where bounds share."""
    matrix = matrix_of(POWER_LAW)
    rng = np.random.default_rng(2)
    vectors = np.linalg.qr(rng.normal(size=(120, k)))[0]
    values = np.sort(rng.uniform(1, 100, size=k))[::-1]
    true = residuals(matrix, values, vectors)
    rounds = 4000
    missed = sum(
        bool(np.any(certify(values, vectors, failure=0.1, **probes(matrix, seed)).residual < true))
        for seed in range(rounds)
    )
    deviation = np.sqrt(0.1 * 0.9 / rounds)
    assert abs(missed / rounds - 0.1) < 4 * deviation + 0.01 * (k > 1)


def test_rounding_of_the_probes_widens_the_bound():
    matrix, pairs = matrix_of(POWER_LAW), (POWER_LAW[:5], rotation(120)[:, :5])
    exact, rounding = probes(matrix, 0), 1e-3 * np.random.default_rng(1).normal(size=(120, 8))
    plain = certify(*pairs, **exact)
    widened = certify(*pairs, **{**exact, "products": exact["products"] + rounding}, rounding=rounding)
    assert np.all(widened.residual > 1e3 * plain.residual)
    assert np.all(widened.residual >= np.linalg.norm(rounding.T @ pairs[1], axis=0))


@pytest.mark.parametrize("seed", range(20))
def test_angle_bounds_hold(seed):
    """Directions of a perturbed matrix against those of the true one, wherever a bound is given."""
    spectrum = 1e3 * 0.7 ** np.arange(40)
    matrix, turned = matrix_of(spectrum, seed), rotation(40, seed)
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(40, 40))
    perturbed = matrix + 10.0 ** -(seed % 5) * (noise + noise.T)
    values, vectors = (array[..., ::-1][..., :12] for array in np.linalg.eigh(perturbed))
    found = certify(values, vectors, next_value=float(spectrum[12]), **probes(matrix, seed))
    true = angles(vectors.T, turned[:, :12].T)
    given = np.isfinite(found.angle)
    assert np.all(true[given] <= found.angle[given])
    if seed % 5 == 4:
        assert given.sum() >= 6


def test_bounds_from_true_residuals_hold_too():
    """The deterministic half alone: with exact residuals the angle bound is a theorem (Davis and Kahan)."""
    spectrum = np.linspace(20, 1, 20)
    matrix, turned = matrix_of(spectrum), rotation(20)
    rng = np.random.default_rng(1)
    for size in np.geomspace(1e-6, 0.3, 40):
        vectors = turned + size * rng.normal(size=(20, 20)) / np.sqrt(20)
        vectors /= np.linalg.norm(vectors, axis=0)
        values = np.einsum("ij,ij->j", vectors, matrix @ vectors)
        angle = angle_bounds(values, residuals(matrix, values, vectors), -np.inf)
        true = angles(vectors.T, turned.T)
        given = np.isfinite(angle)
        assert np.all(true[given] <= angle[given] + 1e-13)


@given(problems(), st.sampled_from([1e-8, 1e-5, 1e-2]))
def test_angles_of_rounded_vectors_hold(problem, size):
    """Rounding of vectors after they were computed adds to their angles, and is not divided by the gap."""
    matrix, true, basis, values, vectors = problem
    k = len(values)
    stored = vectors + size * np.random.default_rng(k).normal(size=vectors.shape) / np.sqrt(len(matrix))
    found = certificate_of(values, residuals(matrix, values, vectors) + 1e-14, next_value=float(true[k]))
    angle = found.of_stored(np.linalg.norm(stored - vectors, axis=0))
    given = np.isfinite(angle)
    # A direction of the same rank: gaps around the claimed values exclude others.
    apart = angles(stored.T / np.linalg.norm(stored, axis=0)[:, None], basis[:, :k].T)
    nearest = np.abs(true[:, None] - values).argmin(axis=0) == np.arange(k)
    assert np.all((apart <= angle + 1e-7)[given & nearest])
    assert np.all(found.angle[given] <= angle[given])


# -- values


@given(problems())
def test_values_are_within_their_bounds(problem):
    matrix, true, _, values, vectors = problem
    residual = residuals(matrix, values, vectors) + 1e-14
    nothing_wrong = np.zeros(len(values))
    found = value_bounds(values, residual, float(true[len(values)]), nothing_wrong)
    nearest = np.abs(true[:, None] - values).min(axis=0)
    assert np.all(nearest <= found + 1e-13)
    assert np.all(found <= residual)


@given(problems(), SEEDS, st.sampled_from([1e-9, 1e-5, 1e-2]))
def test_wrong_products_are_in_the_bounds_of_values(problem, seed, wrong):
    """A solver that was given S + dS returns values off by v^T dS v, which no gap makes small."""
    matrix, true, basis, _, _ = problem
    p, k = len(matrix), max(1, len(matrix) // 3)
    noise = wrong * np.random.default_rng(seed).normal(size=(p, p))
    seen = matrix + noise + noise.T
    near = np.linalg.qr(basis[:, :k] + 1e-3 * noise[:, :k] / wrong)[0]
    values, turn = np.linalg.eigh(near.T @ seen @ near)
    values, vectors = values[::-1], near @ turn[:, ::-1]
    given_probes = probes(matrix, seed)
    residual = certify(values, vectors, **given_probes).residual + 1e-14
    sketched = (given_probes[name].T @ array for name, array in (("products", vectors), ("directions", seen @ vectors)))
    off = product_bounds(*sketched) + 1e-14
    assert np.all(off >= np.linalg.norm((noise + noise.T) @ vectors, axis=0) * (1 - 1e-6))
    found = value_bounds(values, residual, float(true[k]), off)
    assert np.all(np.abs(true[:, None] - values).min(axis=0) <= found + 1e-13)


def test_an_isolated_value_is_good_to_the_square_of_its_residual():
    residual = np.full(3, 1e-3)
    values = np.array([10.0, 5.0, 4.999])
    found = value_bounds(values, residual, 1.0, np.full(3, 1e-9))
    assert found[0] == pytest.approx(1e-9 + 1e-6 / (5 - 2e-3), rel=1e-6)
    np.testing.assert_array_equal(found[1:], residual[1:])
    np.testing.assert_array_equal(value_bounds(values, residual, 1.0), residual)
    assert gaps_around(values, residual, None)[2] == -np.inf


# -- clusters


@given(problems())
def test_groups_of_components_are_near_the_true_ones(problem):
    """Every group's subspace is within its angle of the true one; what is in no group has an angle of its own."""
    matrix, true, basis, values, vectors = problem
    residual = residuals(matrix, values, vectors) + 1e-14
    after = float(true[len(values)])
    found = clusters(values, residual, after)
    for group in found:
        assert group.last > group.first
        if np.isfinite(group.angle):
            own = slice(group.first, group.last + 1)
            assert subspace_angles(vectors[:, own], basis[:, own]).max() <= group.angle + 1e-9
    angles = certify(values, vectors, **probes(matrix, 0), next_value=after).angle
    assert len(angles) == len(values)
    members = {number for group in found for number in range(group.first, group.last + 1)}
    gaps = gaps_around(values, residual, after)
    alone = [number for number in range(len(values) - 1) if number not in members]
    assert np.all(gaps[alone] > residual[alone])


def test_neighbours_too_close_are_one_group():
    values = np.array([10.0, 5.0, 4.999, 4.998, 1.0, 0.5])
    (group,) = clusters(values, np.full(6, 1e-3), 0.2)
    assert (group.first, group.last) == (1, 3)
    assert group.angle == pytest.approx(np.arcsin(np.sqrt(3) * 1e-3 / (3.998 - 2e-3)))
    assert clusters(values, np.full(6, 1e-5), 0.2) == []
    angle = angle_bounds(values, np.full(6, 1e-3), 0.2)
    np.testing.assert_array_equal(np.isnan(angle), [False, True, True, True, False, False])
    assert angle[0] == pytest.approx(1e-3 / (5 - 2e-3))


def test_the_last_group_needs_the_next_value():
    values, residual = np.array([10.0, 5.0, 4.999]), np.full(3, 1e-3)
    (known,), (unknown,), (cut,) = (clusters(values, residual, after) for after in (1.0, None, 4.9985))
    assert known.angle == pytest.approx(np.sqrt(2) * 1e-3 / (3.998), rel=1e-3)
    assert np.isnan(unknown.angle)
    assert np.isnan(cut.angle)
    values, residual = np.array([10.0, 5.0]), np.full(2, 1e-3)
    assert np.isnan(angle_bounds(values, residual, None)[1])
    assert angle_bounds(values, residual, 4.0)[1] == pytest.approx(1e-3 / (1 - 1e-3))
    assert angle_bounds(values, residual, -np.inf)[1] == pytest.approx(1e-3 / (5 - 2e-3))


# -- sampling


def test_norths_rule_holds_neighbours_against_the_sampling_error():
    """A variance of 200 samples has a sampling error of a tenth."""
    values = np.array([100.0, 50.0, 46.0, 20.0, 10.0])
    np.testing.assert_array_equal(unseparated(values, 200, 9.5), [False, True, True, False, True])
    np.testing.assert_array_equal(unseparated(values, 200, None), [False, True, True, False, False])
    np.testing.assert_array_equal(unseparated(values, 20000, 9.5), [False] * 5)


def test_norths_rule_tells_which_components_come_back_in_other_samples():
    """On two halves of normal data, separated directions agree better than mixed ones."""
    rng = np.random.default_rng(0)
    deviations = np.sqrt([9.0, 4.0, 1.0, 0.98, 0.3])
    halves = [np.linalg.eigh(np.cov((rng.normal(size=(2000, 5)) * deviations).T)) for _ in range(2)]
    agree = np.abs(np.sum(halves[0][1] * halves[1][1], axis=0))[::-1]
    mixed = unseparated(deviations**2, 2000, -np.inf)
    np.testing.assert_array_equal(mixed, [False, False, True, True, False])
    assert agree[~mixed].min() > 0.99 > agree[mixed].max()


# -- what was left outside


def largest_left(matrix, vectors):
    left = np.eye(len(matrix)) - vectors @ np.linalg.pinv(vectors)
    return np.linalg.eigvalsh(left @ matrix @ left)[-1]


@given(problems(), SEEDS, st.booleans())
def test_nothing_larger_was_left_outside(problem, seed, single):
    matrix, _, _, values, vectors = problem
    residual = residuals(matrix, values, vectors)
    stored = vectors.astype(np.float32) if single else vectors
    bound = outside_bound(
        stored, **probes(matrix, seed), residual=residual, left=float(np.trace(matrix) - values.sum())
    )  # fmt: skip
    assert largest_left(matrix, stored.astype(float)) <= bound * (1 + 1e-6) + 1e-6 * values[0] * single


@given(problems(), SEEDS)
def test_a_component_that_was_missed_is_told(problem, seed):
    """The leading pair left out: the bound says that something so large may be outside."""
    matrix, _, basis, _, _ = problem
    values = np.einsum("ij,ij->j", basis, matrix @ basis)
    assume(values[0] > 0)
    bound = outside_bound(basis[:, 1:4], **probes(matrix, seed), residual=np.zeros(3), left=np.trace(matrix))
    assert bound >= values[0] * (1 - 1e-9)


@pytest.mark.parametrize(
    "tail", ["nothing", "power", *(pytest.param(tail, marks=pytest.mark.campaign) for tail in ("flat", "another"))]
)
def test_bounds_of_what_is_left_fail_no_more_often_than_they_say(tail):
    """At failure = 0.1: just as often for a single direction, less with more beside it."""
    p, rounds, rng = 60, 3000, np.random.default_rng(0)
    rest = {"nothing": 0 * np.arange(p), "flat": 0.3 + 0 * np.arange(p), "another": np.arange(p) == 1,
            "power": 1 / (1.0 + np.arange(p))}[tail]  # fmt: skip
    spectrum = np.where(np.arange(p) == 0, 1.0, rest)
    missed = 0
    for _ in range(rounds):
        directions = rng.normal(size=(p, 8))
        products = directions * spectrum[:, None]
        missed += outside_bound(np.zeros((p, 1)), directions=directions, products=products, failure=0.1) < 1
    assert missed / rounds <= 0.1 + 4 * np.sqrt(0.09 / rounds)
    if tail == "nothing":
        assert missed / rounds >= 0.1 - 4 * np.sqrt(0.09 / rounds)


def test_a_fast_decaying_rest_is_bounded_below_the_last_component():
    """A slowly decaying rest is bounded too, by about ten times its largest variance."""
    i = np.arange(400)
    for spectrum, k, most in ((0.5**i, 8, 15), (1 / (1 + i), 20, 20)):
        basis, matrix = rotation(400), matrix_of(spectrum)
        residual = np.full(k, 1e-6 * spectrum[k])
        bounds = [outside_bound(basis[:, :k], **probes(matrix, seed), residual=residual) for seed in range(9)]
        assert spectrum[k] <= min(bounds)
        assert np.median(bounds) <= most * spectrum[k]


def test_all_that_is_left_bounds_what_is_left():
    basis, matrix = rotation(40), matrix_of(np.append([5.0, 3.0], np.full(38, 1e-3)))
    given_probes, residual = probes(matrix, 0), np.full(2, 1e-5)
    assert outside_bound(basis[:, :2], **given_probes, residual=residual, left=1e-3) == pytest.approx(1e-3 + 2e-5)
    assert outside_bound(basis, **given_probes) == 0


def test_errors_widen_the_bound():
    basis, matrix = rotation(60), matrix_of(0.5 ** np.arange(60))
    plain = outside_bound(basis[:, :9], **probes(matrix, 0), residual=np.zeros(9))
    rounding = np.full((60, 8), 1e-3)
    assert outside_bound(basis[:, :9], **probes(matrix, 0), residual=np.full(9, 1e-2)) > 2 * plain
    assert outside_bound(basis[:, :9], **probes(matrix, 0), residual=np.zeros(9), rounding=rounding) > 2 * plain


@given(problems(), SEEDS, st.sampled_from([0.0, 1e-6, 1e-2]))
def test_a_basis_bounds_what_its_leading_pairs_leave(problem, seed, wrong):
    """Whatever the products were off by, in the last block or before; any basis is one block."""
    matrix, _, _, _, basis = problem
    p, m = basis.shape
    noise = wrong * np.random.default_rng(seed).normal(size=(p, p))
    seen = matrix + (noise + noise.T) / p
    projected, k = basis.T @ seen @ basis, m // 2
    block, coupling = np.linalg.qr(seen @ basis - basis @ projected)
    block = block[:, : p - m]  # of what is left there is no more
    coupling = coupling[: p - m]
    claimed = basis @ np.linalg.eigh(projected)[1][:, ::-1][:, :k]
    krylov = KrylovBasis(basis, projected, block, coupling)
    bound = rest_of_basis(krylov, **probes(matrix, seed), total=float(np.trace(matrix))).beyond(krylov, k)
    assert largest_left(matrix, claimed) <= bound * (1 + 1e-9) + 1e-12


def lanczos_basis(matrix, k, *, width, limit, passes, start=None):
    """Basis after so many passes, its projected matrix, the next block, and how that comes in."""
    state = start_lanczos(
        len(matrix), wanted=k, total=np.trace(matrix), tol=1e-15, width=width, limit=limit, start=start
    )
    for _ in range(passes):
        state = state.step(np.asfortranarray(matrix @ state.wants))
    basis, block = state.basis, state.wants
    return KrylovBasis(basis, state.projected, block, block.T @ matrix @ basis)


@pytest.mark.parametrize(("limit", "most"), [(600, 4), (90, 20)], ids=["a basis that grows", "restarted"])
def test_a_lanczos_basis_sharpens_the_bound(limit, most):
    """On a slow decay, where the components alone leave a bound of more than ten times the truth."""
    spectrum = 1 / np.arange(1, 1001.0)
    matrix = np.diag(spectrum)
    k = 20
    found = lanczos_basis(matrix, k, width=30, limit=limit, passes=8)
    basis, inside = found.basis, found.basis @ found.projected
    np.testing.assert_allclose(matrix @ basis - inside, found.block @ found.coupling, atol=1e-12)
    given_probes = probes(matrix, 0)
    leading = basis @ found.ritz[1][:, :k]
    alone = outside_bound(leading, **given_probes, residual=np.full(k, 1e-4))
    bound = rest_of_basis(found, **given_probes, total=float(spectrum.sum())).beyond(found, k)
    assert spectrum[k] * 0.999 <= bound <= most * spectrum[k]
    assert bound < alone


def test_what_a_start_without_chance_has_missed_is_told():
    """Converged, residuals and all, on the wrong components: the third is in no start column."""
    spectrum = 0.8 ** np.arange(100.0)
    start = np.random.default_rng(0).normal(size=(100, 12))
    start[2] = 0
    found = lanczos_basis(np.diag(spectrum), 5, width=12, limit=60, passes=4, start=start)
    assert np.linalg.norm(found.coupling) < 1e-3
    bound = rest_of_basis(found, **probes(np.diag(spectrum), 1), total=spectrum.sum()).beyond(found, 5)
    assert bound >= spectrum[2]
    missed = model(np.delete(spectrum, 2)[:5], outside=bound, total_variance=spectrum.sum())
    assert trust_of(missed).leading <= 2


# -- in words


def model(values, *, bound=1e-6, angle=None, n=10_000, **known):
    values = np.asarray(values, dtype=float)
    bounds = np.broadcast_to(bound, values.shape).astype(float)
    angles = np.full(len(values), np.nan) if angle is None else np.broadcast_to(angle, values.shape).astype(float)
    fields = {
        "provenance": {},
        "total_weight": None,
        "eigenvalues": None,
        "about_axes": "",
        "outside": None,
        "error_bound": bounds,
        "total_variance": 100.0,
        "notes": [],
        "kind": "pca",
        **known,
    }
    fields["variance_left"] = fields["total_variance"] - values.sum()
    fields |= {"explained_variance": values, "residual_bound": bounds, "angle_bound": angles, "n_samples": n}
    return SimpleNamespace(basis=SimpleNamespace(**fields), **fields)


def said(given_model):
    return " / ".join(sentences(given_model))


def test_an_old_model_says_what_it_knows():
    """Stored before anything but bounds was: no word of what was left outside."""
    old = model([20, 10, 9.999985, 2])
    assert said(old) == (
        "components 2-3 (within 0.001°) are only defined together: their variances are too close to tell them apart / "
        "by North's rule of thumb (sampling error of 10000 independent samples), components 2-3 are not separated from "
        "their neighbours"
    )
    nothing = model([20, 10], bound=np.nan)
    assert trust_of(nothing).digits == (None, None)
    assert said(nothing).startswith("by North's rule")
    assert "outside" not in said(nothing)


def test_what_is_left_is_said_where_it_is_known():
    values = [20, 10, 5, 2]
    assert said(model(values, eigenvalues=np.array([20, 10, 5, 2, 1.0]))).endswith(
        "no component with a larger variance was missed"
    )
    assert said(model(values, total_variance=38)).endswith("no component with a larger variance was missed")
    assert said(model(values, outside=1.5)).endswith("no component with a larger variance was missed")
    assert said(model(values, outside=6.0)).endswith(
        "no component with more than 6 % of the variance was missed, so components 1-2 are certain to be the leading "
        "ones"
    )
    assert said(model(values, outside=12.0)).endswith("so component 1 is certain to be the leading one")
    assert said(model(values, outside=31.0)).endswith("no component with more than 31 % of the variance was missed")
    whole = model(values, eigenvalues=np.array([20, 10, 5, 2.0]), total_variance=37)
    assert "outside" not in said(whole)


def test_variances_that_may_be_of_another_rank_are_told():
    """Bounds are of the distance to some true variance, wherever something larger may have been missed."""
    values, words = (
        [20, 10, 5, 2],
        "are right within their variance bounds, but some with larger variances may have been missed between them",
    )
    assert f"the components {words} / " in said(model(values, outside=31.0))
    assert f"components 3 to 4 {words} / " in said(model(values, outside=6.0))
    missed = "but one with a larger variance may have been missed before it / "
    assert f"component 4 is right within its variance bound, {missed}" in said(model(values, outside=4.0))
    for sure in ({"outside": 1.5}, {"eigenvalues": np.array([20, 10, 5, 2, 1.0])}, {}):
        assert "may have been missed" not in said(model(values, **sure))


def exact_sums():
    """Whole-number samples, by each method that sums them exactly: images of an unlike spread, many or few."""
    rng = np.random.default_rng(7)
    shades = np.cumsum(np.cumsum(rng.normal(size=(600, 12, 12)), axis=1), axis=2)
    tall = np.clip(shades * 6 + 128, 0, 255).reshape(600, -1).astype(np.uint8)
    wide = np.repeat(np.repeat(tall[:60].reshape(60, 12, 12), 3, axis=1), 2, axis=2).reshape(60, -1)
    return {"covariance": tall, "dual": wide, "floats": tall.astype(np.float32), "counts": tall // 250}


@pytest.mark.parametrize("name", exact_sums())
def test_bounds_of_exact_sums_are_those_of_the_solver(name):
    """Against long double: the components as stored, and variances to 1e-13 of the first."""
    x = exact_sums()[name]
    found = streampca.fit(x, streampca.PCA(20, method="dual" if name == "dual" else "covariance", precision="single"))
    assert found.provenance["exact_sums"]
    rows = x.astype(np.longdouble)
    rows -= rows.sum(axis=0) / len(x)
    few, scale = (rows @ rows.T if len(x) < rows.shape[1] else rows.T @ rows), len(x) - 1
    _, vectors = np.linalg.eigh(few.astype(np.float64))
    vectors = vectors[:, ::-1][:, :20].astype(np.longdouble)
    true = np.einsum("ij,ij->j", vectors, few @ vectors) / np.einsum("ij,ij->j", vectors, vectors) / scale
    first, off = found.explained_variance[0], np.abs(found.explained_variance - true)
    assert np.all(off <= found.error_bound * found.explained_variance)
    assert np.all(found.error_bound * found.explained_variance <= 1e-13 * first)
    stored = found.components.astype(np.longdouble)
    left = (stored @ rows.T) @ rows / scale - stored * found.explained_variance[:, None]
    left = np.sqrt(np.sum(left**2, axis=1)).astype(np.float64) / found.explained_variance
    assert np.all(left <= found.residual_bound)
    assert np.median(found.residual_bound / left) <= 20


def test_digits_of_exact_sums_are_the_solvers():
    """Not those of probes, which are multiplied in single precision."""
    images = np.random.default_rng(2).integers(0, 256, (900, 12, 12)).astype(np.uint8)
    rows = images.reshape(900, -1).astype(np.float64)
    true = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2 / 899
    single, double = (
        streampca.fit(images, streampca.PCA(5, method="covariance", precision=word)) for word in ("single", "double")
    )
    for fitted in (single, double):
        assert fitted.provenance["exact_sums"]
        np.testing.assert_allclose(fitted.explained_variance, true[:5], rtol=1e-13)
    assert np.all(single.error_bound < 1e-13)
    assert np.all(double.residual_bound < 1e-13)


def test_north_in_words():
    few = {"n": 200, "bound": 1e-9}
    assert "all components are separated" in said(model([50, 20, 10, 5], **few))
    assert "no component is separated" in said(model([10, 9.9, 9.8], **few))
    assert "components 2 on are not separated" in said(model([50, 10, 9.9, 9.8], **few))
    assert "components 1-2 and 4-5 are not" in said(model([50, 49, 20, 10, 9.9, 2], **few))
    last = model([50, 20, 10], eigenvalues=np.array([50, 20, 10, 9.9]), **few)
    assert "component 3 is not separated from its neighbours" in said(last)


def test_many_groups_are_not_all_named():
    values = np.repeat(10.0 * 0.5 ** np.arange(9), 2)
    assert "components 1-2 (within 0.001°), 3-4 (within 0.001°), 5-6 (within 0.001°) and 6 more groups are" in said(
        model(values, n=10**9)
    )


def test_the_last_angle_tells_what_comes_next():
    """Models do not store variance k + 1; where the last direction was resolved the last group can be."""
    values, residual, after = np.array([10.0, 5.0, 4.9]), np.array([1e-3, 1e-3, 0.0]), 1.0
    known = model(values, bound=residual / values, angle=[1e-4, 1e-2, 0.0])
    assert trust_of(known).together == ()
    angle = 1e-3 / (4.0 - 1e-3 - after)
    resolved = model([10.0, 5.0, 4.0], bound=1e-3 / np.array([10.0, 5.0, 4.0]), angle=[np.nan, np.nan, angle])
    assert trust_of(resolved).together == ()


def test_what_was_measured_is_kept_and_inspected(tmp_path):
    rng = np.random.default_rng(0)
    fitted = streampca.fit(rng.normal(size=(500, 30)) * 0.7 ** np.arange(30), n_components=4)
    known = replace(fitted, eigenvalues=None, outside=float(fitted.explained_variance[1]) * 0.99)
    known = replace(known, error_bound=np.array([1e-8, 1e-9, 1e-4, 1e-7]), residual_bound=np.full(4, 1e-4))
    known = replace(known, total_variance=10 * fitted.total_variance)  # so that the rest is no bound itself
    known.save(tmp_path / "model.zarr")
    back = streampca.load(tmp_path / "model.zarr")
    assert back.outside == known.outside
    np.testing.assert_array_equal(back.error_bound, known.error_bound)
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "model.zarr")]).output
    assert [line.split()[3] for line in shown.splitlines()[2:6]] == ["1e-08", "1e-09", "1e-04", "1e-07"]
    assert shown.count("so components 1-2 are certain to be the leading ones\n") == 1
    told = json.loads(CliRunner().invoke(cli, ["inspect", str(tmp_path / "model.zarr"), "--json"]).output)["trust"]
    assert (told["digits"], told["leading"]) == ([8, 9, 4, 7], 2)
    assert told["largest_left_outside"] == known.outside


def test_digits():
    assert [digits_of(bound) for bound in (3e-7, 0.05, 7.0, 0.0, np.nan, np.inf)] == [6, 1, 0, 15, None, None]
    texts = [bound_text(bound) for bound in (3.01e-7, 3e-7, 9.2e-5, 0.051, 0.5, 7.0, 0.0, np.nan)]
    assert texts == ["1e-06", "1e-06", "1e-04", "0.06", "0.5", "7", "1e-15", ""], "rounded up"
    sharper = model([20, 10], bound=1e-4, error_bound=np.array([1e-7, 1e-4]))
    assert trust_of(sharper).digits == (7, 4)


def test_trust_in_one_line():
    angles = ([1e-6, np.nan, np.nan, 1e-6], [0.021, np.nan, np.nan, 1e-6], [1e-6, np.nan, np.nan, np.inf], np.nan)
    texts = [trust_sentence(model([20, 10, 9.99998, 2], angle=angle)) for angle in angles]
    together = "2 and 3 only together"
    assert texts == [
        f"all 4 components are determined to 0.001 degrees; {together}",
        f"all 4 components are determined to 2 degrees; {together}",
        f"3 of 4 components are determined to 0.001 degrees; {together}; the directions of 1 are not resolved",
        f"2 of 4 components are determined to 0.001 degrees; {together}; the directions of 2 are not resolved",
    ]
    assert trust_sentence(model([20, 10], angle=np.nan)) == ""
    assert trust_sentence(model([20], angle=0.001)) == "the component is determined to 0.06 degrees"


def test_plain_data_count_components_from_one():
    told = trust_of(model([20, 10, 9.99998, 2], outside=3.0)).to_json()
    assert told["together"] == [{"components": [2, 3], "angle_bound": pytest.approx(1.77e-6, rel=1e-2)}]
    assert told["largest_left_outside"] == 3.0
    assert told["leading"] == 3
