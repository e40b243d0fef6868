"""Tables that are larger than the budget once they are dense: peaks of fresh processes."""

from __future__ import annotations

import pytest
from shell import measured

from streampca.units import MIB, parse_bytes

pytestmark = pytest.mark.slow

IMPORTED = """
import json, sys
import numpy as np, scipy.sparse
import streampca
from streampca.fitting import fit
from streampca.models import pca, store, transform
from streampca.estimators.pca import PCA
from streampca.machine import PeakMeter
memory = sys.argv[1]
rng = np.random.default_rng(0)
"""
SPARSE = """
n, p, each = 120_000, 500, 5
columns = rng.integers(0, p, n * each, dtype=np.int32)
values = rng.standard_normal(n * each) + np.repeat(rng.standard_normal(n), each)
x = scipy.sparse.csr_array((values, columns, np.arange(0, n * each + 1, each, dtype=np.int32)), shape=(n, p))
x = x.asformat(sys.argv[2])
meter = PeakMeter()
pca = PCA(10, run=streampca.Run(memory=memory)).fit(x)
fitted = meter.peak()
scores = pca.transform(x)
print(json.dumps({"peak": meter.peak(), "fit": fitted, "scores": scores.nbytes}))
"""


@pytest.mark.parametrize(
    ("form", "memory"), [("csr", "32MiB"), pytest.param("csc", "40MiB", marks=pytest.mark.campaign)]
)
def test_a_sparse_matrix_of_458_mib_in_all(form, memory):
    found = measured(IMPORTED + SPARSE, memory, form)
    print(form, *(round(found[name] / MIB, 1) for name in ("fit", "peak")))
    assert found["fit"] <= parse_bytes(memory)
    assert found["peak"] <= parse_bytes(memory) + found["scores"]


LAZY = """
import pandas, dask.dataframe
def part(number):
    drawn = np.random.default_rng(number).standard_normal((25_000, 30))
    return pandas.DataFrame(drawn * np.arange(1, 31), columns=[f"c{column}" for column in range(30)])
x = dask.dataframe.from_map(part, range(40), meta=part(0)[:0])
meter = PeakMeter()
pca = PCA(5, run=streampca.Run(memory=memory)).fit(x)
print(json.dumps({"peak": meter.peak(), "samples": pca.n_samples_, "first": pca.explained_variance_[0]}))
"""


def test_a_lazy_data_frame_of_229_mib():
    pytest.importorskip("dask.dataframe")
    found = measured(IMPORTED + LAZY, "64MiB")
    print(round(found["peak"] / MIB, 1))
    assert found["samples"] == 1_000_000
    assert found["first"] == pytest.approx(900, rel=0.02)
    assert found["peak"] <= 64 * MIB
