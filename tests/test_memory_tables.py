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
from streampca.estimators.streaming_pca import StreamingPCA
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
pca = StreamingPCA(10, memory=memory).fit(x)
fitted = meter.peak()
scores = pca.transform(x)
print(json.dumps({"peak": meter.peak(), "fit": fitted, "scores": scores.nbytes}))
"""


@pytest.mark.parametrize(("form", "memory"), [("csr", "32MiB"), ("csc", "40MiB")])
def test_a_sparse_matrix_of_458_mib_in_all(form, memory):
    found = measured(IMPORTED + SPARSE, memory, form)
    print(form, *(round(found[name] / MIB, 1) for name in ("fit", "peak")))
    assert found["fit"] <= parse_bytes(memory)
    assert found["peak"] <= parse_bytes(memory) + found["scores"]
