"""The memory of an embedding: peaks of fresh processes against the budget, and against what the plan says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from planned import remedy
from shell import measured

import streampca
from streampca.errors import BudgetError
from streampca.units import MIB, parse_bytes

pytestmark = pytest.mark.slow

# Everything is imported before the meter starts. Stages measure peaks of their own, which resets the kernel's mark:
# the highest of what it says at each event is that of the whole.
WORKER = """
import json, sys
import numpy as np
import streampca
from streampca import machine
from streampca.events import Planned

source, options = sys.argv[1], json.loads(sys.argv[2])
kind, memory = getattr(streampca, options.pop("kind")), options.pop("memory")
streampca.fit(np.random.default_rng(0).random((300, 60)), kind())
collection, marks, plans = streampca.open_collection(source), [], []

def listener(event):
    marks.append(machine._status_bytes("VmHWM"))
    if isinstance(event, Planned):
        plans.append(event.plan)

meter = machine.PeakMeter()
model = streampca.fit(collection, kind(**options), memory=memory, listener=listener)
peak = meter.peak() and max(*marks, machine._status_bytes("VmHWM")) - meter._start
found = {"peak": peak, "estimate": plans[0].memory_estimate.total, "samples": len(model.embedding)}
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("kind", "n", "more"),
    [
        ("Isomap", 8_000, {"landmarks": 300}),
        ("SpectralEmbedding", 4_000, {"pca_components": 20}),
    ],
    ids=["isomap of scores", "spectral embedding of images"],
)
def test_embeddings_stay_within_the_least_budget_and_their_plan(tmp_path, kind, n, more):
    """Of points on a curved surface in 60 dimensions, within the budget that a refusal names."""
    random = np.random.default_rng(0)
    place = random.random((n, 2)) * [4, 2]
    waves = np.arange(60) % 12 / 4
    rows = np.sin(place[:, :1] * waves + np.arange(60)) + np.cos(place[:, 1:] * waves[::-1])
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    how = {"n_neighbors": 10, **more}
    with pytest.raises(BudgetError) as raised:
        streampca.fit(str(tmp_path / "rows.npy"), getattr(streampca, kind)(**how), memory=MIB)
    budget = parse_bytes(remedy(raised.value))
    found = measured(WORKER, tmp_path / "rows.npy", json.dumps({"kind": kind, **how, "memory": budget}))
    print(*(round(found[name] / MIB, 1) for name in ("peak", "estimate")), budget / MIB)
    assert found["samples"] == n
    assert budget / 3 < found["peak"] <= found["estimate"] <= budget
