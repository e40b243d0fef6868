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
place, memory, held, drawn = sys.argv[1:]
for kind in {"samples": ("model",), "none": ("model", "samples")}[drawn]:
    setattr(streampca.plot.report.page, f"pictures_of_{kind}", lambda *given: iter(()))
model = streampca.load_model(f"{place}.zarr", memory=held or None)
meter = PeakMeter()
streampca.write_report(model, f"{place}.html", collection=f"{place}.npy", memory=memory, examine=None)
print(json.dumps(meter.peak()))
"""


def test_reports_stay_within_the_budget(tmp_path):
    """Of samples that are more than the budget, by components that stay on disk, and of tall and of large pictures."""
    rng = np.random.default_rng(0)
    shapes = {"tall": (200, 40, 16), "large": (200, 300, 300), "many": (2_400, 128, 128)}
    for name, shape in shapes.items():
        x = rng.integers(0, 256, shape, dtype=np.uint8)
        np.save(tmp_path / f"{name}.npy", x)
        model = streampca.fit(x[:250], n_components=240 if name == "many" else 10)
        model.save(tmp_path / f"{name}.zarr", keep_state=False)
    tall = tmp_path / "tall"
    with pytest.raises(BudgetError) as refusal:
        streampca.write_report(f"{tall}.zarr", f"{tall}.html", collection=f"{tall}.npy", memory=MIB)
    least = re.search(r"at least (\w+)\.", str(refusal.value))[1]
    # The largest pictures are those of samples; the survey of many samples needs none.
    asked = {"tall": (least, "", "samples"), "large": ("76MiB", "", "samples"), "many": ("32MiB", "1B", "none")}
    command = [sys.executable, "-c", WORKER]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = {name: subprocess.Popen([*command, tmp_path / name, *how], **pipes) for name, how in asked.items()}
    for name, process in running.items():
        out, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors[-2000:]
        peak, budget = json.loads(out), parse_bytes(asked[name][0])
        if peak is None:
            pytest.skip("this system does not tell a process its peak")
        assert budget / 3 < peak < budget, (name, peak)
    said = (tmp_path / "many.html").read_text()
    assert "2400 samples" in said
    assert "of 240 components, which are those that fit the memory allowed" in said
