"""Products by BLAS: the right numbers in any order of memory, and no more threads than it can bear."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import streampca
from streampca import machine
from streampca.accumulators import blas as products
from streampca.accumulators.products import BlasProducts
from streampca.events import Solving
from streampca.fitting import fit as fitting
from streampca.fitting.methods import randomized_features


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_symmetric_updates(dtype, order):
    rng = np.random.default_rng(0)
    rows, before = rng.standard_normal((30, 50)), rng.standard_normal((30, 30))
    out = np.array(before, dtype, order="F")
    products.update_among(np.array(rows, dtype, order=order), out)
    expected = before + rows @ rows.T
    np.testing.assert_allclose(np.triu(out), np.triu(expected), rtol=1e-4 if dtype == np.float32 else 1e-12, atol=1e-5)


@pytest.mark.parametrize(("limit", "threads"), [(10**6, 2), (8, 1)])
def test_large_symmetric_updates_have_one_thread(monkeypatch, limit, threads):
    """Two threads of OpenBLAS write beyond their buffers there, and the process dies."""
    assert min(16000 * 8, 30000 * 4) > products.THREADED_BYTES, "where it was seen"
    seen, dsyrk = [], products.blas.dsyrk

    def noted(*words, **options):
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return dsyrk(*words, **options)

    monkeypatch.setattr(products.blas, "dsyrk", noted)
    monkeypatch.setattr(products, "THREADED_BYTES", limit)
    with threadpool_limits(2, user_api="blas"), machine.limit_cores(1):  # as by a container's quota
        if all(pool["num_threads"] == 1 for pool in threadpool_info() if pool["user_api"] == "blas"):
            pytest.skip("BLAS has one thread here, whatever it is told")
        products.update_among(np.ones((3, 4)), np.zeros((3, 3), order="F"))
    assert seen
    assert set(seen) == {threads}


@pytest.mark.parametrize(("most", "threads"), [(1.0, 1), (0.0, 2)])
def test_small_fits_have_one_thread(monkeypatch, most, threads):
    """Threads that wait for small products take more time than these."""
    seen = []

    def noted(event):
        if isinstance(event, Solving):
            seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")

    monkeypatch.setattr(fitting, "ONE_THREAD_SECONDS", most)
    with threadpool_limits(2, user_api="blas"), machine.limit_cores(1):  # as by a container's quota
        if all(pool["num_threads"] == 1 for pool in threadpool_info() if pool["user_api"] == "blas"):
            pytest.skip("BLAS has one thread here, whatever it is told")
        streampca.fit(np.eye(20, 5), n_components=2, listener=noted)
    assert seen
    assert set(seen) == {threads}


@pytest.mark.parametrize(("fewest", "threads"), [(randomized_features.THREADED_FLOPS, 1), (0, 2)])
def test_small_products_with_a_block_have_one_thread(monkeypatch, fewest, threads):
    """Threads that wait for one another in products of few rows take 20 times as long where others use the cores."""
    seen, product = [], BlasProducts.twice

    def noted(*given):
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return product(*given)

    monkeypatch.setattr(fitting, "ONE_THREAD_SECONDS", 0.0)
    monkeypatch.setattr(randomized_features, "THREADED_FLOPS", fewest)
    monkeypatch.setattr(BlasProducts, "twice", noted)
    with threadpool_limits(2, user_api="blas"), machine.limit_cores(1):
        if all(pool["num_threads"] == 1 for pool in threadpool_info() if pool["user_api"] == "blas"):
            pytest.skip("BLAS has one thread here, whatever it is told")
        streampca.fit(np.random.default_rng(0).random((60, 40)), streampca.PCA(2, method="randomized"))
    assert seen
    assert set(seen) == {threads}


@pytest.mark.parametrize(("own", "expected"), [(None, "14"), ("20", "20")])
def test_threads_that_wait_soon_sleep(own, expected):
    """The package says so before numpy is loaded, which reads it then; a user's own setting stays."""
    name = "OPENBLAS_THREAD_TIMEOUT"
    code = f"import os, sys, streampca; assert 'numpy' not in sys.modules; print(os.environ['{name}'])"
    environment = {key: value for key, value in os.environ.items() if key != name} | ({name: own} if own else {})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == expected
