"""What `StreamingPCA` takes beside arrays: sparse matrices, with the numbers of the same samples as an array."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp

import streampca
from streampca import StreamingPCA
from streampca.errors import BudgetError, ChangedError, DataError, ModelError
from streampca.readers import open_collection

RNG = np.random.default_rng(0)
FILLED = sp.random_array((300, 40), density=0.15, rng=RNG).toarray() * np.linspace(1, 3, 40)


def same(ours, theirs, rtol=0.0):
    for name in ("components_", "explained_variance_", "mean_", "noise_variance_", "n_samples_seen_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=rtol, atol=rtol, err_msg=name)


# -- sparse matrices


@pytest.mark.parametrize("method", ["covariance", "dual", "randomized"])
@pytest.mark.parametrize(("form", "kind", "dtype"), [
    ("csr", sp.coo_array, "f8"), ("csr", sp.coo_matrix, "f4"), ("csc", sp.coo_array, "i8"),
    ("lil", sp.coo_matrix, "f8"),
])  # fmt: skip
def test_sparse_samples_have_the_bits_of_dense_ones(method, form, kind, dtype):
    dense = (10 * FILLED).astype(dtype)
    given = kind(dense).asformat(form)
    ours, theirs = (StreamingPCA(4, method=method, whiten=True).fit(each) for each in (given, dense))
    same(ours, theirs)
    scores, expected = ours.transform(given), theirs.transform(dense)
    assert (type(scores), scores.dtype) == (np.ndarray, expected.dtype)
    np.testing.assert_allclose(scores, expected, atol=1e-5 if dtype == "f4" else 1e-12)
    np.testing.assert_array_equal(ours.fit_transform(given), scores)


def test_sparse_batches():
    rows = sp.csr_array(FILLED)
    ours = StreamingPCA(4).partial_fit(rows[:100]).partial_fit(FILLED[100:150]).partial_fit(rows[150:].tocsc())
    same(ours, StreamingPCA(4, method="covariance").fit(FILLED), rtol=1e-10)
    weights = RNG.integers(0, 3, 300)
    weighted = StreamingPCA(4).partial_fit(rows, sample_weight=weights)
    same(weighted, StreamingPCA(4).fit(rows, sample_weight=weights), rtol=1e-10)


def test_sparse_samples_are_taken_by_everything_else():
    rows = sp.csr_array(FILLED)
    model = streampca.fit(rows, n_components=3)
    for name in ("transform", "reconstruct", "reconstruction_error", "hotelling_t2"):
        np.testing.assert_allclose(getattr(model, name)(rows), getattr(model, name)(FILLED), atol=1e-9)


def test_sparse_samples_that_are_refused():
    rows = sp.csr_array(FILLED)
    ours = StreamingPCA(3).fit(rows)
    with pytest.raises(ValueError, match="X has 30 features, but StreamingPCA is expecting 40"):
        ours.transform(rows[:, :30])
    with pytest.raises(ModelError, match="csr matrix holds whole numbers"):
        ours.transform(rows.astype(int))
    rows.data[rows.indptr[17]] = np.nan
    for call in (StreamingPCA(3).fit, ours.transform, ours.partial_fit):
        with pytest.raises(DataError, match="sample 17 of csr matrix holds NaN"):
            call(rows)


def test_a_matrix_that_changes_while_it_is_read_is_noticed():
    rows = sp.csr_array(FILLED)

    def change(event):
        rows.data[200:] += 1

    with pytest.raises(ChangedError, match=r"csr matrix \(rows \d+ to \d+\) was changed"):
        streampca.fit(rows, n_components=3, listener=change)


def test_what_is_converted_is_taken_off_the_budget():
    columns = sp.csc_array((RNG.random((50000, 50)) > 0.5).astype(float))
    StreamingPCA(3, memory="16 MiB").fit(columns.tocsr())
    with pytest.raises(BudgetError, match=r"as asked, less 14.\d MiB for the samples as converted") as caught:
        StreamingPCA(3, memory="16 MiB").fit(columns)
    enough = re.search(r"Set memory to at least (\w+)\.", str(caught.value))[1]
    ours = StreamingPCA(3, memory=enough)
    same(ours.fit(columns), StreamingPCA(3).fit(columns.tocsr()), rtol=1e-8)
    with pytest.raises(BudgetError, match="for the samples as converted"):
        StreamingPCA(3, memory="16 MiB").partial_fit(columns)


def test_a_sparse_collection_is_converted_once_and_pickles_without_it():
    collection = open_collection(sp.csc_array(FILLED))
    collection.read(slice(0, 2))
    assert collection.array._rows() is collection.array._rows()
    assert "_csr" not in collection.array.__getstate__()
