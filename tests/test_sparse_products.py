"""Sparse data by sparse products: what dense data give, to rounding, for every statistic, method and format."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

import streampca
from streampca import PCA
from streampca.accumulators import Gram, GramBlock, NotFiniteError, Scatter, ScatterBlock
from streampca.accumulators.sparse_rows import HeldRows
from streampca.errors import DataError
from streampca.readers.sparse import SparseArray

N, P = 60, 40
WEIGHTS = np.random.default_rng(3).random(N) + 0.1


def sparse_rows(*, whole: bool = False, offset: float = 0.0, seed: int = 0) -> sp.csr_array:
    """Return rows of which one feature is dense and has an offset, and another has one value."""
    rng = np.random.default_rng(seed)
    rows = sp.random_array((N, P), density=0.05, rng=rng).toarray()
    rows[:, 5] = offset + rng.normal(size=N)
    rows[:, 7] = np.eye(N)[3]
    return sp.csr_array(np.rint(100 * rows) if whole else rows)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize(("whole", "offset"), [(False, 0.0), (False, 1e4), (True, 30.0)])
def test_sparse_blocks_give_what_dense_ones_do(whole, offset, weights):
    rows = sparse_rows(whole=whole, offset=offset)
    dense, rng = rows.toarray(), np.random.default_rng(1)
    roots = np.ones(N) if weights is None else np.sqrt(weights)
    centred = (dense - np.average(dense, axis=0, weights=weights)) * roots[:, None]
    along, across = rng.normal(size=(P, 3)), rng.normal(size=(N, 3))
    across -= np.outer(roots, roots @ across) / (roots @ roots)

    scatter, gram = Scatter(P, precision="double"), Gram(N, precision="double")
    centre = np.zeros(P)
    centre[5] = round(offset)
    block = ScatterBlock(along, centre, precision="double")
    of_gram = GramBlock(across, roots=None if weights is None else roots, precision="double")
    for part in (slice(0, 20), slice(20, N)):
        for statistic in (scatter, block):
            statistic.update(rows[part], at=part.start, weights=None if weights is None else weights[part])
    for statistic in (gram, of_gram):
        statistic.update(rows)
    scatter.settle()

    close = {"rtol": 0, "atol": 1e-6 if whole else 1e-9}
    np.testing.assert_allclose(np.triu(scatter.matrix()), np.triu(centred.T @ centred), **close)
    np.testing.assert_allclose([scatter.trace, block.trace, of_gram.trace], np.sum(centred**2), rtol=1e-12)
    np.testing.assert_allclose(block.take(), centred.T @ (centred @ along), **close)
    np.testing.assert_allclose(np.triu(gram.centred(weights).upper), np.triu(centred @ centred.T), **close)
    np.testing.assert_allclose(of_gram.take(), centred @ (centred.T @ across), **close)


def test_exact_sums_of_sparse_blocks_have_the_bits_of_dense_ones():
    rows = sparse_rows(whole=True, offset=2.0)
    sparse, dense, mixed = (Scatter(P, precision="double") for _ in range(3))
    sparse.update(rows)
    dense.update(rows.toarray())
    mixed.update(rows[:11].toarray())
    mixed.update(rows[11:], at=11)  # about a centre that would fill it
    for statistic in (sparse, dense, mixed):
        statistic.settle()
        assert statistic.sums_exactly
        assert statistic.agrees
        assert np.array_equal(np.triu(statistic.upper), np.triu(dense.upper))
        assert np.array_equal(statistic.mean, dense.mean)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_sparse_values_without_squares_are_refused_by_sample(value):
    rows = sparse_rows()
    rows.data[rows.indptr[41]] = value
    for statistic in (Scatter(P, precision="double"), ScatterBlock(np.eye(P, 2), np.zeros(P), precision="double")):
        with pytest.raises(NotFiniteError, match="sample 51"):
            statistic.update(rows, at=10)


def in_halves(rows: sp.csr_array) -> sp.csr_array:
    """Return rows of which every value is stored as two halves."""
    halves = np.column_stack((rows.data // 2, rows.data - rows.data // 2)).ravel()
    return sp.csr_array((halves, np.repeat(rows.indices, 2), 2 * rows.indptr), shape=rows.shape)


FORMATS = {
    "csr": sp.csr_array,
    "csc": sp.csc_matrix,
    "bsr": lambda rows: sp.bsr_array(rows, blocksize=(1, 2)),
    "with entries twice": lambda rows: in_halves(rows),
    "dask": lambda rows: da.from_array(rows.toarray(), chunks=(25, 24)).map_blocks(
        sp.csr_matrix, meta=sp.csr_matrix((0, 0), dtype=rows.dtype)
    ),
}
METHODS = {"covariance": N, "dual": 30, "randomized": N, "randomized along samples": 30}


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("made", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize(("method", "n"), METHODS.items(), ids=METHODS.keys())
def test_sparse_samples_have_the_model_of_dense_ones(method, n, made, weights):
    rows = sparse_rows(offset=2.0)[:n]
    weights = None if weights is None else weights[:n]
    kind = PCA(4, method=method.split()[0], tol=1e-9, precision="double")
    plan = streampca.plan(made(rows), kind)
    model = streampca.fit(made(rows), kind, sample_weight=weights)
    expected = streampca.fit(rows.toarray(), PCA(4), sample_weight=weights)
    assert plan.sparse
    assert plan.side == ("samples" if "samples" in method else "features")
    np.testing.assert_allclose(model.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(model.total_variance, expected.total_variance, rtol=1e-12)
    np.testing.assert_allclose(model.explained_variance, expected.explained_variance, rtol=1e-10)
    np.testing.assert_allclose(model.components, expected.components, atol=1e-6)
    relative = np.abs(model.explained_variance / expected.explained_variance - 1)
    assert np.all(relative <= model.error_bound + 1e-14)


def test_sparse_samples_are_made_dense_where_a_step_changes_them():
    rows, steps = sparse_rows(), streampca.Preparation(scale=2.0)
    for kind, run in ((PCA(3, precision="single"), {}), (PCA(3), {"preparation": steps})):
        assert not streampca.plan(rows, kind, **run).sparse
        model = streampca.fit(rows, kind, **run)
        expected = streampca.fit(rows.toarray(), kind, **run)
        np.testing.assert_allclose(model.explained_variance, expected.explained_variance, rtol=1e-6)


def test_plans_of_sparse_samples_count_stored_values():
    few, many = (sp.random_array((3000, 3000), density=share, rng=0, format="csr") for share in (1e-3, 1e-2))
    plans = [streampca.plan(rows, PCA(5, method="randomized")) for rows in (few, many)]
    assert all(plan.sparse for plan in plans)
    assert plans[0].memory_estimate.total < plans[1].memory_estimate.total < 3000 * 3000 * 8
    assert plans[0].seconds < plans[1].seconds
    dense = streampca.plan(sp.random_array((300, 300), density=0.5, rng=0, format="csr"), PCA(5))
    assert not dense.sparse


def without_two_values(rows: sp.csr_array) -> sp.csr_array:
    """Return rows of which one has a NaN and another an infinite value."""
    rows = rows.copy()
    rows.data[rows.indptr[[3, 41]]] = np.nan, np.inf
    return rows


@pytest.mark.parametrize("made", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_sparse_samples_have_the_scores_of_dense_ones(made, dtype, monkeypatch, tmp_path):
    rows = sparse_rows(whole=np.dtype(dtype).kind == "i", offset=1e4).astype(dtype)
    model, dense = streampca.fit(rows.toarray(), PCA(4)), rows.toarray()
    expected = {whiten: model.transform(dense, whiten=whiten) for whiten in (False, True)}
    monkeypatch.setattr(SparseArray, "read_into", None)  # sparse rows are not made dense
    source = made(rows)
    collection = streampca.open_collection(source)
    np.testing.assert_array_equal(collection.read_sparse(slice(7, 30)).toarray(), dense[7:30])
    model.write_scores(source, tmp_path / "scores.npy", memory="300 MiB")
    close = {"rtol": 0, "atol": np.finfo(expected[False].dtype).eps * 2e4}
    for whiten, scores in expected.items():
        for mapped in (model.transform(source, whiten=whiten), model.transform(collection, whiten=whiten)):
            assert mapped.dtype == scores.dtype
            np.testing.assert_allclose(np.asarray(mapped), scores, **close)
    np.testing.assert_allclose(np.asarray(model.transform(source)), PCA(4).fit(dense).transform(source), **close)
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected[False], **close)


@pytest.mark.parametrize("missing", ["error", "drop-samples", "em"])
def test_sparse_samples_with_missing_values_are_scored_as_dense_ones(missing):
    rows = sparse_rows()
    model, rows = streampca.fit(rows, PCA(4)), without_two_values(rows)
    for source in (rows, FORMATS["dask"](rows)):
        if missing == "error":
            with pytest.raises(DataError, match=r"sample (3|41) .*holds NaN or infinity"):
                np.asarray(model.transform(source))
        else:
            expected = model.transform(rows.toarray(), missing=missing)
            np.testing.assert_allclose(np.asarray(model.transform(source, missing=missing)), expected, atol=1e-12)


def test_whole_numbers_beyond_float64_are_refused_in_sparse_chunks():
    rows = sp.csr_array(([1, 2**53 + 1], ([0, 7], [1, 2])), shape=(N, P), dtype=np.int64)
    model = streampca.fit(sparse_rows(whole=True).astype(np.int64), PCA(2))
    for source in (rows, da.from_array(rows, chunks=(N, P), asarray=False)):
        with pytest.raises(DataError, match="sample 7"):
            np.asarray(model.transform(source))


def test_held_rows_are_centred_once_for_each_centre():
    rows, centres = sparse_rows(offset=2.0), [np.zeros(P), np.eye(P)[5]]
    held = HeldRows(rows)
    for centre in (centres[0], centres[1], centres[1].copy()):
        centred = held.centred(centre, None)
        assert held.centred(centre, None) is centred
        np.testing.assert_array_equal(centred.toarray(), rows.toarray() - centre)
    assert held.centred(centres[1], np.sqrt(WEIGHTS)) is not centred
    assert HeldRows.of(rows, held) is held
    assert HeldRows.of(rows.copy(), held) is not held
