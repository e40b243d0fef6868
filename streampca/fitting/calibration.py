"""Calibration: rates of this machine and this source, measured in a fraction of a second, to predict a plan's time.

A product, a pass over values and a read of a few samples are timed. The plan stays as it is but for the times it tells:
that it depends on nothing else is what makes equal requests equal plans.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import blas

from ..planning import Plan
from ..planning.decoding import read_boxes
from ..planning.rates import RATES, Rates, Work
from ..readers import Collection
from ..units import MIB

SIDE, DEPTH = 512, 2048  # of a product: about 1e9 operations, large enough for all cores
READ = 8 * MIB  # bytes of samples that are read
PLACES = (0.3, 0.5, 0.7)  # of the collection, where these are read
ROUNDS = 3  # of what is quick; the best counts, as others on the machine only make it slower


def calibrated(plan: Plan, collection: Collection) -> Plan:
    """Return the same plan with its time, and those of the methods it rejects, predicted by rates measured here.

    Parameters
    ----------
    plan : Plan
        For the collection.
    collection : Collection
        A few samples of it are read, in three places.

    Raises
    ------
    SourceError
        If they cannot be read.
    """
    rates = _of_machine(plan.cores)
    rates = _of_source(plan, collection, rates)
    return replace(plan, rates=rates)


def _of_machine(cores: int) -> Rates:
    """Rates with those of computing measured, in both precisions; what was not is taken to scale with these."""
    single, double = (_product_rate(dtype) / cores for dtype in (np.float32, np.float64))
    centring = _centring_rate()
    return replace(
        RATES,
        single=single,
        double=double,
        solving=RATES.solving * double / RATES.double,
        centring=centring,
        adding=RATES.adding * centring / RATES.centring,
    )


def _product_rate(dtype: Any) -> float:
    rows = np.ones((SIDE, DEPTH), dtype)
    product = np.zeros((SIDE, SIDE), dtype, order="F")
    syrk = blas.ssyrk if dtype is np.float32 else blas.dsyrk
    return SIDE * SIDE * DEPTH / _best(lambda: syrk(1.0, rows.T, trans=1, beta=0.0, c=product, overwrite_c=1))


def _centring_rate() -> float:
    stored, mean = np.ones((64, 16384), np.uint8), np.ones(16384, np.float32)
    centred = np.empty(stored.shape, np.float32)

    def centre() -> None:
        np.copyto(centred, stored, casting="unsafe")
        np.subtract(centred, mean, out=centred)

    return stored.size / _best(centre)


def _of_source(plan: Plan, collection: Collection, rates: Rates) -> Rates:
    """Rates with those of reading scaled by what reading a few samples took, of what it should have."""
    problem = plan.problem
    rows = max(1, min(plan.block_rows, READ // max(1, problem.row_bytes), problem.n_samples))
    collection.read(slice(0, 1))  # opens files, and loads what decodes them
    times = []
    for part in PLACES:  # others each time, as nothing is read from the system's cache twice; memory is there by then
        start = int(part * (problem.n_samples - rows))
        began = time.perf_counter()
        collection.read(slice(start, start + rows))
        times.append(time.perf_counter() - began)
    seconds = min(times)
    share = replace(problem, n_samples=rows)
    expected = read_boxes(share, rows, problem.n_features).work(problem)
    if problem.is_prepared:
        expected += Work(centring=float(rows) * problem.n_features)
    factor = expected.seconds(plan.cores, rates=rates) / max(seconds, 1e-9)
    names = ("decoding", "chunks") if problem.encoded else ("reading", "accesses")
    return replace(rates, **{name: factor * getattr(rates, name) for name in names})


def _best(work: Callable[[], Any]) -> float:
    work()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return max(min(times), 1e-9)
