"""Bounds on single pairs of a subspace are never below the truth, and near it where sums are exact."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from test_certificate import problems

from streampca.accumulators import Scatter
from streampca.eigensolvers import nystrom_bounds, rest_of_basis, start_lanczos
from streampca.eigensolvers.pair_bounds import pair_bounds
from streampca.fitting.methods.exact_residuals import exact_bounds, sum_errors

SEEDS = st.integers(0, 2**32 - 1)
EPS = float(np.finfo(float).eps)


def parts(matrix, values, vectors):
    """What is known of a matrix on a basis: the deviation from the values, the lengths outside, and the rest."""
    products = matrix @ vectors
    within = vectors.T @ products - np.diag(values)
    rest = np.eye(len(matrix)) - vectors @ vectors.T
    return within, np.linalg.norm(rest @ products, axis=0), float(np.linalg.eigvalsh(rest @ matrix @ rest)[-1])


def angles_of(vectors, basis, true, values, count):
    """Angles to the eigenvectors of the same ranks; of equal eigenvalues, to their space."""
    apart = np.empty(count)
    for number in range(count):
        space = basis[:, np.abs(true - true[number]) < 1e-13 * true[0]]
        apart[number] = np.linalg.norm(vectors[:, number] - space @ (space.T @ vectors[:, number]))
    return np.arcsin(np.minimum(apart, 1))


@given(problems(), SEEDS, st.sampled_from([0, 1e-9, 1e-4]), st.booleans())
def test_pairs_are_within_their_bounds(problem, seed, wrong, known):
    """Ritz pairs of a basis, and values and products that are off; groups of equal eigenvalues too."""
    matrix, true, basis, values, vectors = problem
    values = np.sort(values + wrong * np.random.default_rng(seed).normal(size=len(values)))[::-1]
    within, across, outside = parts(matrix, values, vectors)
    count = int(np.random.default_rng(seed).integers(1, len(values) + 1))
    error = np.abs(true[:count] - values[:count])
    near = 2 * error + 1e-14 if known else None
    found = pair_bounds(values, np.abs(within) + 1e-15, across + 1e-15, outside + 1e-15, count=count, near=near)
    assert np.all(error <= found.value + 1e-14)
    given_angles = np.isfinite(found.angle)
    apart = angles_of(vectors, basis, true, values, count)
    assert np.all((apart <= found.angle + 1e-7)[given_angles])


def test_neighbours_widen_only_what_points_at_them():
    """Two pairs as near as their residuals are long, which point outside: residual over gap would be 1."""
    values, nothing, across = np.array([2.0, 2 - 1e-4]), np.zeros((2, 2)), np.array([1e-4, 1e-4])
    found = pair_bounds(values, nothing, across, 1.0, count=2)
    np.testing.assert_allclose(found.value, 1e-8, rtol=0.1)
    np.testing.assert_allclose(found.angle, 2**0.5 * 1e-4, rtol=0.1)
    turned = pair_bounds(values, np.array([[0, 1e-5], [1e-5, 0]]), across, 1.0, count=2)
    np.testing.assert_allclose(turned.angle, 0.1, rtol=0.3)
    equal = pair_bounds(np.array([2.0, 2.0]), nothing, across, 1.0, count=2)
    np.testing.assert_allclose(equal.value, 2e-8, rtol=0.1)
    assert np.isnan(equal.angle).all()


@given(problems(), SEEDS, st.integers(1, 4), st.sampled_from([0, 1e-9, 1e-5]))
def test_pairs_of_a_basis_are_within_their_bounds(problem, seed, passes, wrong):
    """Of Nystrom's approximation on a Lanczos basis; products are off by what only random directions tell."""
    matrix, true, basis, _, _ = problem
    p, noise = len(matrix), np.random.default_rng(seed).normal(size=(2, *matrix.shape))
    state = start_lanczos(p, wanted=2, total=np.trace(matrix), tol=1e-15, width=max(2, p // 6), seed=seed)
    for _ in range(passes):
        if state.solution is None:
            state = state.step(np.asfortranarray(matrix @ state.wants + wrong * noise[0] @ state.wants / p))
    drawn = np.random.default_rng([seed, 2]).normal(size=(p, 16))
    known = {"directions": drawn, "products": matrix @ drawn, "rounding": None}
    rest, (values, turn), count = rest_of_basis(state.krylov, **known), state.nystrom_pairs, min(3, state.known)
    found = nystrom_bounds(state.krylov, (values, turn), count, rest=rest.outside, **known)
    assert np.all(np.abs(true[:count] - values[:count]) <= found.pairs.value + 1e-13)
    vectors = np.hstack([state.basis, state.wants]) @ turn[:, :count]
    apart = angles_of(vectors, basis, true, values, count)
    given_angles = np.isfinite(found.pairs.angle)
    assert np.all((apart <= found.pairs.angle + 1e-7)[given_angles])


@st.composite
def whole_numbers(draw):
    """Samples of whole numbers of 8 or 16 bits: with equal or nearly equal variances, constant features, and steps."""
    rng, n = np.random.default_rng(draw(SEEDS)), draw(st.integers(5, 40))
    half, most = draw(st.integers(1, 5)), draw(st.sampled_from([3, 255, 65535]))
    rows = rng.integers(0, most, (n, half)) // rng.integers(1, most + 1, half)
    kind = draw(st.sampled_from(["own", "twice", "nearly", "constant", "few"]))
    if kind in ("twice", "nearly"):  # two blocks that do not meet have the same variances
        blank = np.full_like(rows, rows.mean())
        rows = np.block([[rows, blank], [blank, rows]])
        rows[0, 0] += kind == "nearly"
    if kind == "constant":
        rows = np.concatenate([rows, np.full_like(rows, most)], axis=1)
    return rows[: max(2, half)] if kind == "few" else rows


def truth(rows, weights=None):
    """Eigenpairs of the scatter matrix in long double (Ogita and Aishima, 2018), and the gaps of the values."""
    rows, weights = rows.astype(np.longdouble), np.ones(len(rows)) if weights is None else weights
    counts = weights.astype(np.longdouble)[:, None]
    rows -= (counts * rows).sum(axis=0) / counts.sum()
    rows *= np.sqrt(counts)
    matrix = np.einsum("ij,ik->jk", rows, rows)
    vectors = np.linalg.eigh(matrix.astype(float))[1][:, ::-1].astype(np.longdouble)
    for _ in range(2):
        off = np.eye(len(matrix)) - np.einsum("ij,ik->jk", vectors, vectors)
        along = np.einsum("ij,ik->jk", vectors, np.einsum("ij,jk->ik", matrix, vectors))
        values = along.diagonal() / (1 - off.diagonal())
        apart, noise = values - values[:, None], 2 * np.abs(along - np.diag(values)).max() + 2e-19 * values[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(np.abs(apart) > noise, (along + values * off) / apart, off / 2)
        np.fill_diagonal(step, off.diagonal() / 2)
        vectors = vectors + np.einsum("ij,jk->ik", vectors, step)
    apart = np.abs(apart.astype(float))
    np.fill_diagonal(apart, np.inf)
    return matrix, values, vectors, apart.min(axis=0, initial=np.inf)


def sums_of(rows, centre):
    """Exact sums about a whole centre, as a scatter keeps them."""
    rows = rows - centre
    upper = np.asfortranarray(np.triu(rows.T @ rows).astype(float))
    return SimpleNamespace(upper=upper, total=rows.sum(axis=0).astype(float), weight=float(len(rows)))


@given(whole_numbers(), st.booleans(), st.sampled_from([0, 1e-12, 1e-8]), SEEDS)
@example(np.diag([60000, 60000, 1]), False, 0, 0)
@example(np.array([[0, 0, 65535], [1, 0, 65535], [0, 1, 0], [1, 1, 0]]), True, 0, 0)
def test_pairs_of_exact_sums_are_within_bounds_near_the_truth(rows, is_far, wrong, seed):
    centre = np.rint(rows.mean(axis=0)).astype(int) - 1000 * is_far
    sums, (matrix, true, basis, apart) = sums_of(rows, centre), truth(rows)
    values, vectors = (array[..., ::-1] for array in np.linalg.eigh(matrix.astype(float)))
    k = max(1, len(values) - 1)
    values, vectors = (
        np.maximum(values, 0),
        vectors[:, :k] + wrong * np.random.default_rng(seed).normal(size=(len(values), k)),
    )
    found = exact_bounds(sums, values[:k], vectors, float(values[k]) if k < len(values) else -np.inf)
    ulp = 1e-19 * len(rows) * float(np.sum(np.square(rows - rows.mean(axis=0)))) + 1e-300
    left = residuals(sums, values[:k], vectors)
    assert np.all(left <= found.residual)
    mean_part = float(sums.total @ sums.total) / sums.weight
    assert np.all(found.residual <= 1.01 * left + EPS * (0.1 * values[0] + 8 * mean_part) + 1e-300)
    off = np.abs(true[:k] - values[:k]).astype(float)
    assert np.all(off <= found.value + ulp)
    given_angles = np.isfinite(found.angle) & (apart[:k] > 1e3 * ulp)
    unit = vectors / np.sqrt(np.sum(vectors.astype(np.longdouble) ** 2, axis=0))
    along = np.einsum("ij,ij->j", unit, basis[:, :k])
    turned = np.sqrt(np.sum((unit - along * basis[:, :k]) ** 2, axis=0)).astype(float)
    assert np.all((turned <= found.angle + ulp / np.maximum(apart[:k], 1e-300) + 1e-18)[given_angles])


@st.composite
def rounded_rows(draw):
    """Samples whose sums round: nearly equal variances, few dimensions, few values, offsets, drifts, of any size."""
    rng, n, p = np.random.default_rng(draw(SEEDS)), draw(st.integers(4, 60)), draw(st.integers(2, 12))
    kind = draw(st.sampled_from(["normal", "steep", "twice", "few", "two values", "constant", "drifting"]))
    rows = rng.standard_normal((n, p))
    if kind == "steep":
        rows *= 0.1 ** np.arange(p)
    if kind == "twice":
        rows = np.block([[rows, 0 * rows], [0 * rows, rows * (1 + 1e-9 * draw(st.integers(0, 1)))]])
    if kind == "few":
        rows[:, 2:] = rows[:, :2] @ rng.standard_normal((2, p - 2))
    if kind == "two values":  # whose rounding is the same in many samples
        rows = np.where(rng.random((n, 1)) < 0.5, rng.standard_normal(p), rng.standard_normal(p))
    if kind == "constant":
        rows[:, -1] = 0.1
    if kind == "drifting":
        rows += np.linspace(0, 30, n)[:, None] * rng.standard_normal(p)
    turn = np.linalg.qr(rng.standard_normal((rows.shape[1],) * 2))[0] if draw(st.booleans()) else np.eye(rows.shape[1])
    offset = draw(st.sampled_from([0, 0.3, 3, 1e4])) * rng.standard_normal(rows.shape[1])
    return (rows @ turn + offset) * draw(st.sampled_from([1.0, 1e-120, 1e120]))


@given(rounded_rows(), st.integers(1, 60), st.sampled_from([8, 16, 32]), st.booleans(), st.booleans(), SEEDS)
def test_pairs_of_rounded_sums_are_within_their_bounds(rows, cut, count, merges, weighs, seed):
    """Sums of float64 samples in one accumulator or two that are added, against long double."""
    weights = np.random.default_rng(seed).uniform(0.1, 3, len(rows)) if weighs else None
    scatters = [Scatter(rows.shape[1], precision="double", seed=seed, probes=size) for size in (count, 8)]
    for number, part in enumerate((slice(cut), slice(cut, None))):
        scatters[number * merges].update(rows[part], weights=None if weights is None else weights[part])
    if merges:
        scatters[1].settle()
        scatters[0].absorb(scatters[1])
    scatter = scatters[0]
    scatter.settle()
    full = np.triu(scatter.matrix())
    values, vectors = (array[..., ::-1] for array in np.linalg.eigh(full + np.triu(full, 1).T))
    k = max(1, len(values) - 1)
    after = float(values[k]) if k < len(values) else -np.inf
    values, vectors = np.maximum(values[:k], 0), np.ascontiguousarray(vectors[:, :k])
    if not values[0]:  # fits refuse samples that are all equal
        return
    found = exact_bounds(scatter, values, vectors, after, sum_errors(scatter, vectors))
    matrix, true, basis, apart = truth(rows, weights)
    ulp = 1e-18 * len(values) * float(np.trace(matrix)) + 1e-300
    left = np.einsum("ij,jk->ik", matrix, vectors.astype(np.longdouble)) - values * vectors.astype(np.longdouble)
    assert np.all(np.sqrt(np.sum((left / values[0]) ** 2, axis=0)) <= found.residual / values[0] + 1e-18)
    assert np.all(np.abs(true[:k] - values).astype(float) <= found.value + ulp)
    given_angles = np.isfinite(found.angle) & (apart[:k] > 1e3 * ulp)
    unit = vectors / np.sqrt(np.sum(vectors.astype(np.longdouble) ** 2, axis=0))
    along = np.einsum("ij,ij->j", unit, basis[:, :k])
    turned = np.sqrt(np.sum((unit - along * basis[:, :k]) ** 2, axis=0)).astype(float)
    assert np.all((turned <= found.angle + ulp / np.maximum(apart[:k], 1e-300) + 1e-18)[given_angles])


def test_wrong_sums_are_within_their_bounds():
    """An entry of the matrix that is off, as a faulty memory leaves it, shows in all bounds."""
    rows = np.random.default_rng(0).standard_normal((300, 20)) * np.linspace(3, 1, 20)
    scatter = Scatter(20, precision="double")
    scatter.update(rows)
    scatter.settle()
    state = scatter.state()
    state["scatter"][2, 5] *= 1 + 1e-3
    scatter = Scatter.from_state(state)
    full = np.triu(scatter.matrix())
    values, vectors = (array[..., ::-1] for array in np.linalg.eigh(full + np.triu(full, 1).T))
    vectors = np.ascontiguousarray(vectors[:, :5])
    found = exact_bounds(scatter, values[:5], vectors, float(values[5]), sum_errors(scatter, vectors))
    _, true, basis, _ = truth(rows)
    assert np.all(np.abs(true[:5] - values[:5]) <= found.value)
    turned = angles_of(vectors, basis.astype(float), true.astype(float), values, 5)
    assert np.all((turned <= found.angle)[np.isfinite(found.angle)])
    assert found.value.max() < 1e-1 * values[0]


def residuals(sums, values, vectors):
    """Lengths of the residuals, by rational numbers."""
    exact = np.vectorize(Fraction, otypes=[object])
    upper, total, columns = exact(sums.upper), exact(sums.total), exact(vectors)
    matrix = upper + np.triu(upper, 1).T - np.outer(total, total) / Fraction(sums.weight)
    left = matrix.dot(columns) - columns * exact(values)
    return np.array([float(square) ** 0.5 for square in np.sum(left * left, axis=0)])
