"""Calibration: rates of this machine and this source, measured in a fraction of a second, to predict a plan's time.

A product, a pass over values and the reading of a few samples are timed. Only the predicted times change: method and
blocks never depend on a measurement, so that equal requests have equal plans.
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

SIDE, DEPTH = 512, 2048  # shape of the timed product: about 1e9 operations, large enough for all cores
READ = 8 * MIB  # bytes of samples read at each place
PLACES = (0.3, 0.5, 0.7)  # of the collection, as fractions of its length
ROUNDS = 3  # of computing; the shortest counts, as other processes only make it slower


def calibrated(plan: Plan, collection: Collection) -> Plan:
    """Return the same plan with times, also of the rejected methods, predicted by rates measured here.

    Parameters
    ----------
    plan : Plan
        Plan for the collection.
    collection : Collection
        Collection of which a few samples are read, at three places.

    Raises
    ------
    SourceError
        If they cannot be read.
    """
    return replace(plan, rates=_with_reading(_computing_rates(plan.cores), plan, collection))


def _computing_rates(cores: int) -> Rates:
    """Measure the rates of products, in both precisions, and of centring; scale solving and adding with these."""
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
    """Return multiplications a second of a symmetric product, by all cores."""
    rows = np.ones((SIDE, DEPTH), dtype)
    product = np.zeros((SIDE, SIDE), dtype, order="F")
    syrk = blas.ssyrk if dtype is np.float32 else blas.dsyrk
    return SIDE * SIDE * DEPTH / _shortest(lambda: syrk(1.0, rows.T, trans=1, beta=0.0, c=product, overwrite_c=1))


def _centring_rate() -> float:
    """Return values a second that are converted and centred, by one core."""
    stored, mean = np.ones((64, 16384), np.uint8), np.ones(16384, np.float32)
    centred = np.empty(stored.shape, np.float32)

    def centre() -> None:
        np.copyto(centred, stored, casting="unsafe")
        np.subtract(centred, mean, out=centred)

    return stored.size / _shortest(centre)


def _with_reading(rates: Rates, plan: Plan, collection: Collection) -> Rates:
    """Scale the rates of reading by the predicted over the measured time of a few samples."""
    problem = plan.problem
    rows = max(1, min(plan.block_rows, READ // max(1, problem.row_bytes), problem.n_samples))
    collection.read(slice(0, 1))  # opens files and loads their decoders, which is not timed
    times = []
    for place in PLACES:  # a place is read once only: the system's cache would serve a second reading
        start = int(place * (problem.n_samples - rows))
        began = time.perf_counter()
        collection.read(slice(start, start + rows))
        times.append(time.perf_counter() - began)
    predicted = read_boxes(replace(problem, n_samples=rows), rows, problem.n_features).work(problem)
    if problem.is_prepared:
        predicted += Work(centring=float(rows) * problem.n_features)
    factor = predicted.seconds(plan.cores, rates=rates) / max(min(times), 1e-9)
    names = ("decoding", "chunks") if problem.encoded else ("reading", "accesses")
    return replace(rates, **{name: factor * getattr(rates, name) for name in names})


def _shortest(work: Callable[[], Any]) -> float:
    """Return the shortest time of some rounds of work, in seconds."""
    work()  # the first round also loads code and touches memory
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return max(min(times), 1e-9)
