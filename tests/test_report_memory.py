"""The memory of a report: peaks of a fresh process against the budget."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import streampca
from streampca.errors import BudgetError
from streampca.units import MIB, parse_bytes

pytestmark = pytest.mark.slow

# Everything is imported, and fonts are found, before the meter starts.
WORKER = """
import io, json, sys
import numpy as np
import streampca, streampca.plot.report
from matplotlib.figure import Figure
from streampca.machine import PeakMeter

figure = Figure(layout="constrained")
ax = figure.add_subplot(title="a title")
figure.colorbar(ax.hexbin(*np.eye(2, 9), bins="log"), ax=ax)
figure.savefig(io.BytesIO(), format="png")
peaks = {}
for name, memory, held in json.loads(sys.argv[2]):
    model = streampca.load_model(f"{sys.argv[1]}/{name}.zarr", memory=held)
    meter = PeakMeter()
    streampca.write_report(model, f"{sys.argv[1]}/{name}.html", memory=memory, examine=None)
    peaks[name] = meter.peak()
print(json.dumps(peaks))
"""


def test_reports_stay_within_the_budget(tmp_path):
    """Of samples that are more than the budget, by components that stay on disk, and of tall and of large pictures."""
    rng = np.random.default_rng(0)
    shapes = {"tall": (200, 40, 16), "large": (200, 300, 300), "many": (48_000, 32, 32), "wide": (250, 128, 128)}
    for name, shape in shapes.items():
        np.save(tmp_path / f"{name}.npy", rng.integers(0, 256, shape, dtype=np.uint8))
        k = 240 if name == "wide" else 10
        streampca.fit(tmp_path / f"{name}.npy", n_components=k, output=tmp_path / f"{name}.zarr")
    with pytest.raises(BudgetError) as refusal:
        streampca.write_report(tmp_path / "tall.zarr", tmp_path / "tall.html", memory=MIB)
    least = parse_bytes(re.search(r"at least (\w+)\.", str(refusal.value))[1])
    budgets = {"tall": least, "large": 76 * MIB, "many": 32 * MIB, "wide": 32 * MIB}
    asked = json.dumps([(name, budget, "1B" if name == "wide" else None) for name, budget in budgets.items()])
    command = [sys.executable, "-c", WORKER, str(tmp_path), asked]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    peaks = json.loads(done.stdout)
    if None in peaks.values():
        pytest.skip("this system does not tell a process its peak")
    for name, budget in budgets.items():
        assert budget / 3 < peaks[name] < budget, peaks
    assert "48000 samples" in (tmp_path / "many.html").read_text()
    assert "of 240 components, which are those that fit the memory allowed" in (tmp_path / "wide.html").read_text()
