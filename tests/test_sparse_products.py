"""Sparse data by sparse products: what dense data give, to rounding, for every statistic, method and format."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from streampca.accumulators import Gram, GramBlock, NotFiniteError, Scatter, ScatterBlock

N, P = 60, 40
WEIGHTS = np.random.default_rng(3).random(N) + 0.1


def sparse_rows(*, whole: bool = False, offset: float = 0.0, seed: int = 0) -> sp.csr_array:
    """Return rows of which one feature is dense and has an offset, and another has one value."""
    rng = np.random.default_rng(seed)
    rows = sp.random_array((N, P), density=0.1, rng=rng).toarray()
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
