"""Solvers on matrices whose answer is known."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.linalg import subspace_angles

import streampca
from streampca.eigensolvers import count_components, resume_lanczos, solve_dense, start_lanczos
from streampca.eigensolvers.signs import fix_signs
from streampca.planning.memory import block_width, dense_bytes, lanczos_bytes, step_bytes

SPECTRA = {
    "decaying": 1e4 * 0.8 ** np.arange(120),
    "flat": np.linspace(2, 1, 120),
    "power law": 1e3 / np.arange(1, 121),
    "rank deficient": np.append(np.arange(30, 0, -1.0), np.zeros(90)),
    "repeated": np.repeat([9.0, 4.0, 1.0, 0.5], 30),
    "identity": np.ones(120),
    "tiny": 1e-18 * 0.9 ** np.arange(120),
    "huge": 1e18 * 0.9 ** np.arange(120),
}


def rotation(p, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(p, p)))[0]


def matrix_of(spectrum, seed=0):
    turned = rotation(len(spectrum), seed)
    return (turned * spectrum) @ turned.T


def dense(matrix, wanted, most=None, **options):
    return solve_dense(lambda: np.asfortranarray(np.triu(matrix)), wanted, most=most or len(matrix), **options)


def lanczos(matrix, wanted, most=None, **options):
    state = start_lanczos(len(matrix), wanted=wanted, total=float(np.trace(matrix)), **options)
    while state.solution is None:
        assert state.passes < 200
        state = state.step(np.asfortranarray(matrix @ state.wants))
    return state.solution


SOLVERS = {"dense": dense, "lanczos": lanczos}
every_solver = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS.keys())


def assert_right(solution, matrix, spectrum, k):
    """Eigenvalues, orthonormality, residuals, and Eckart-Young: no k columns leave less over."""
    assert solution.values.shape == (k,)
    assert solution.vectors.shape == (len(matrix), k)
    largest = spectrum[0]
    np.testing.assert_allclose(solution.values, spectrum[:k], rtol=1e-9, atol=1e-12 * largest)
    assert np.all(np.diff(solution.values) <= 1e-12 * largest)
    assert np.all(solution.values >= 0)
    np.testing.assert_allclose(solution.vectors.T @ solution.vectors, np.eye(k), atol=1e-11)
    residuals = np.linalg.norm(matrix @ solution.vectors - solution.vectors * solution.values, axis=0)
    assert np.all(residuals <= 1e-9 * solution.values + 1e-11 * largest)
    left_over = np.linalg.norm(matrix - (solution.vectors * solution.values) @ solution.vectors.T, 2)
    allowed = spectrum[k] if k < len(spectrum) else 0.0
    assert left_over <= allowed * (1 + 1e-9) + 1e-9 * largest


def test_equal_eigenvalues_are_all_there():
    """LAPACK's dsyevr finds no pair of this matrix at all when it is asked for some leading ones."""
    matrix = np.diag(np.r_[-1e-3, np.ones(299)])
    matrix -= matrix.mean(axis=0)
    matrix -= matrix.mean(axis=1)[:, None]
    assert_right(dense(matrix, 3), matrix, np.ones(298), 3)


@every_solver
@pytest.mark.parametrize("k", [1, 30, 40])
@pytest.mark.parametrize("name", SPECTRA)
def test_known_spectra(solve, name, k):
    spectrum = SPECTRA[name]
    matrix = matrix_of(spectrum)
    assert_right(solve(matrix, k), matrix, spectrum, k)


@every_solver
@pytest.mark.parametrize("p", [1, 2, 3, 13])
def test_tiny_and_whole(solve, p):
    """k = p, down to a single number."""
    spectrum = np.arange(p, 0, -1.0)
    matrix = matrix_of(spectrum)
    assert_right(solve(matrix, p), matrix, spectrum, p)


@pytest.mark.parametrize("k", [3, 75])
@pytest.mark.parametrize("scale", [1e-300, 1e290])
def test_dense_solves_what_products_would_overflow(scale, k):
    unit = matrix_of(SPECTRA["decaying"] / 1e4)
    found = dense(unit * scale, k)
    np.testing.assert_allclose(found.values / scale, SPECTRA["decaying"][:k] / 1e4, rtol=1e-9, atol=1e-12)
    assert np.abs(unit @ found.vectors - found.vectors * (found.values / scale)).max() < 1e-11


@every_solver
def test_diagonal(solve):
    """A matrix with nothing but zeros beside its diagonal, which LAPACK's shortcuts see at once."""
    spectrum = np.arange(60, 0, -1.0)
    matrix = np.diag(spectrum[::-1])
    solution = solve(matrix, 4)
    assert_right(solution, matrix, spectrum, 4)
    np.testing.assert_allclose(np.abs(solution.vectors), np.eye(60)[:, ::-1][:, :4], atol=1e-9)


@every_solver
def test_more_components_than_rank(solve):
    """The rest are orthonormal directions of no variance, not noise and not NaN."""
    spectrum = np.append([5.0, 3.0, 2.0], np.zeros(97))
    matrix = matrix_of(spectrum)
    solution = solve(matrix, 3)
    assert_right(solution, matrix, spectrum, 3)
    if solve is dense:
        assert_right(dense(matrix, 10), matrix, spectrum, 10)
        return
    rest = lanczos(matrix, 10)  # the pairs found are all there are
    np.testing.assert_allclose(rest.values[:3], [5, 3, 2], rtol=1e-10)
    assert np.all(rest.values[3:] < 1e-12)
    assert np.isfinite(rest.vectors).all()


@every_solver
def test_signs(solve):
    """The largest loading of every component is positive, so that two runs draw the same picture."""
    vectors = solve(matrix_of(SPECTRA["decaying"]), 20).vectors
    assert np.all(vectors[np.abs(vectors).argmax(axis=0), np.arange(20)] > 0)


def test_signs_of_ties_and_zeros():
    vectors = np.asfortranarray([[-1.0, 0.0, 1.0], [1.0, 0.0, -2.0]])
    np.testing.assert_array_equal(fix_signs(vectors), [[1.0, 0.0, -1.0], [-1.0, 0.0, 2.0]])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("layout", ["C", "F", "every second row", "last column first"])
@pytest.mark.parametrize("columns", range(1, 71))
def test_signs_in_every_layout(columns, layout, dtype):
    """Columns are whole or negated as wholes; numpy 2.4 negates some strided views in place wrongly."""
    given = np.random.default_rng(columns).normal(size=(37, columns)).astype(dtype)
    vectors = {
        "C": lambda: given.copy(),
        "F": lambda: given.copy("F"),
        "every second row": lambda: np.repeat(given, 2, axis=0)[::2],
        "last column first": lambda: given[:, ::-1].copy()[:, ::-1],
    }[layout]()
    largest = [column[abs(column).argmax()] for column in given.T.tolist() for column in [np.array(column)]]
    fixed = fix_signs(vectors)
    assert fixed is vectors
    np.testing.assert_array_equal(fixed, [[x if top > 0 else 0 - x for x, top in zip(row, largest, strict=True)]
                                          for row in given.tolist()])  # fmt: skip


@every_solver
@pytest.mark.parametrize("fraction", [0.05, 0.5, 0.9, 0.999])
def test_fractions(solve, fraction):
    """The least k that reaches the fraction, by the whole spectrum."""
    spectrum = SPECTRA["decaying"]
    matrix = matrix_of(spectrum)
    k = int(np.searchsorted(np.cumsum(spectrum) / spectrum.sum(), fraction)) + 1
    assert_right(solve(matrix, fraction), matrix, spectrum, k)


def test_counting_components():
    values = np.array([4.0, 3.0, 2.0, 1.0])
    assert count_components(values, 10.0, 0.4) == 1
    assert count_components(values, 10.0, 0.7) == 2
    assert count_components(values, 10.0, 0.70001) == 3
    assert count_components(values, 20.0, 0.7) is None
    assert count_components(values, 10.0, 4) == 4
    assert count_components(values, 10.0, 5) is None
    assert count_components(values, 10.0, None) == 4


def test_dense_keeps_to_its_room_and_gives_the_whole_spectrum():
    spectrum = SPECTRA["power law"]
    solution = dense(matrix_of(spectrum), 0.999, most=100, room=7)
    assert solution.values.shape == (7,)
    assert solution.spectrum.shape == (100,)
    np.testing.assert_allclose(solution.spectrum, spectrum[:100], rtol=1e-10)


# -- Lanczos, the machine


def test_restarts_reach_the_same_answer():
    """A basis of at most 3 blocks, restarted many times, against one that never is."""
    spectrum = SPECTRA["power law"]
    matrix = matrix_of(spectrum)
    free, tight = lanczos(matrix, 6, width=8, limit=120), lanczos(matrix, 6, width=8, limit=24)
    assert tight.passes > 3
    assert free.passes <= tight.passes
    for solution in (free, tight):
        assert_right(solution, matrix, spectrum, 6)
    assert subspace_angles(free.vectors, tight.vectors).max() < 1e-8


@pytest.mark.parametrize(("name", "how"), [("flat", {"width": 8, "limit": 24}), ("rank deficient", {"width": 12})])
def test_what_is_wanted_is_orthonormal_outside_the_basis_and_within_the_limit(name, how):
    matrix = matrix_of(SPECTRA[name])
    state = start_lanczos(120, wanted=6 if "limit" in how else 25, total=float(np.trace(matrix)), **how)
    while state.solution is None:
        wants = state.wants
        assert state.basis.shape[1] + wants.shape[1] <= how.get("limit", 120)
        np.testing.assert_allclose(wants.T @ wants, np.eye(wants.shape[1]), atol=1e-13)
        np.testing.assert_allclose(state.basis.T @ wants, 0, atol=1e-13)
        state = state.step(matrix @ wants)


def test_a_state_that_was_kept_goes_on_to_the_same():
    """Bit for bit, whichever state it was, restarts included; products are used up, read-only ones not."""
    matrix = matrix_of(SPECTRA["power law"])

    how = {"wanted": 5, "total": float(np.trace(matrix)), "width": 8, "limit": 16}
    kept, state = [], start_lanczos(120, **how)
    while state.solution is None:
        kept.append({name: array.copy() for name, array in state.state().items()})
        product = np.asfortranarray(matrix @ state.wants)
        product.flags.writeable = False
        state = state.step(product)
    assert len(kept) > 5
    for before in kept:
        again = resume_lanczos(before, **how)
        while again.solution is None:
            again = again.step(np.asfortranarray(matrix @ again.wants))
        assert again.passes == state.passes
        np.testing.assert_array_equal(again.solution.vectors, state.solution.vectors)
        np.testing.assert_array_equal(again.solution.values, state.solution.values)


def test_rounding_is_seen_and_better_products_mend_it():
    """Products rounded to single precision: a tolerance they cannot meet is met after them, not claimed with them."""
    matrix = matrix_of(SPECTRA["decaying"])
    rough, state = matrix.astype(np.float32), start_lanczos(120, wanted=20, total=float(np.trace(matrix)), tol=1e-6)
    while not state.is_rough:
        assert state.solution is None
        state = state.step((rough @ state.wants.astype(np.float32)).astype(np.float64))
    assert state.rounding > 1e-9 * SPECTRA["decaying"].max()
    state, passes = state.refined(), state.passes
    while state.solution is None:
        state = state.step(matrix @ state.wants)
    assert passes < state.passes < passes + 8
    solution = state.solution
    true = np.linalg.norm(matrix @ solution.vectors - solution.vectors * solution.values, axis=0)
    assert np.all(true <= 1e-6 * solution.values)


def test_own_residuals_are_true():
    matrix = matrix_of(SPECTRA["power law"])
    solution = lanczos(matrix, 10, tol=1e-5)
    true = np.linalg.norm(matrix @ solution.vectors - solution.vectors * solution.values, axis=0)
    np.testing.assert_allclose(solution.residuals, true, rtol=1e-3, atol=1e-10)


def test_bytes_cover_what_a_state_holds():
    p, k = 600, 20
    matrix = matrix_of(1.0 / np.arange(1, p + 1))
    state, most = start_lanczos(p, wanted=k, total=float(np.trace(matrix))), 0
    while state.solution is None:
        state = state.step(matrix @ state.wants)
        most = max(most, sum(array.nbytes for array in state.state().values()))
    assert most <= lanczos_bytes(p, k)
    assert dense_bytes(p, k) >= 8 * (p * p + p * k)
    assert block_width(k) >= k + 10


def test_what_is_settled_so_far_is_true():
    """Stopped early, a state gives leading pairs that are near true ones, and not the loose rest."""
    p = 300
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((p, p)))[0]
    values = np.concatenate([[1000.0, 500.0, 200.0], np.linspace(1.1, 1.0, p - 3)])
    matrix = np.asfortranarray((q * values) @ q.T)
    state = start_lanczos(p, wanted=40, total=values.sum(), width=45, limit=180)
    for _ in range(3):
        state = state.step(matrix @ state.wants)
    assert state.solution is None
    found = state.so_far()
    assert 3 <= len(found.values) <= 40
    np.testing.assert_allclose(found.values[:3], values[:3], rtol=1e-6)
    left = np.linalg.norm(matrix @ found.vectors - found.vectors * found.values, axis=0)
    assert np.all(left <= 1.01e-2 * found.values)
    assert len(found.first(2).values) == 2


@pytest.mark.parametrize("k", [1, 4, 20])
def test_lanczos_keeps_an_eye_on_the_value_that_comes_next(k):
    rng = np.random.default_rng(k)
    basis = np.linalg.qr(rng.standard_normal((300, 300)))[0]
    values = np.geomspace(1e4, 1, 300)
    matrix = (basis * values) @ basis.T
    state = start_lanczos(300, wanted=k, total=values.sum(), seed=0)
    while state.solution is None:
        state = state.step(matrix @ state.wants)
    assert values[k] * (1 - 1e-12) <= state.solution.next_value < values[k - 1]
    if k > 1:
        assert state.solution.first(k - 1).next_value == pytest.approx(values[k - 1], rel=1e-9)


def test_the_last_direction_is_bounded_without_the_whole_spectrum():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 2100)) * np.geomspace(50, 1, 2100)
    model = streampca.fit(x, streampca.PCA(4, method="covariance"))
    assert model.eigenvalues is None
    assert np.all(model.angle_bound < 1e-5)


def test_a_step_holds_what_is_planned_for_it():
    """Parts of the basis are multiplied where they lie: copies of them would grow with every pass."""
    p, width, limit = 6400, 40, 600
    matrix = np.arange(1, p + 1.0) ** -0.3
    state = start_lanczos(p, wanted=30, total=matrix.sum(), tol=1e-12, width=width, limit=limit)
    for _ in range(limit // width + 1):  # one that restarts
        product = np.asfortranarray(matrix[:, None] * state.wants)
        tracemalloc.start()
        state = state.step(product)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak + product.nbytes <= step_bytes(p, width, limit)
