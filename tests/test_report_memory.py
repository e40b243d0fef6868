"""The memory of a report: peaks of a fresh process against the budget."""

from __future__ import annotations

import re

import numpy as np
import pytest
from shell import measured

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
from PIL import Image
from streampca.machine import PeakMeter

figure = Figure(layout="constrained")
ax = figure.add_subplot(title="a title")
figure.colorbar(ax.hexbin(*np.eye(2, 9), bins="log"), ax=ax)
figure.savefig(io.BytesIO(), format="png")
Image.preinit()
place, memory, held, drawn = sys.argv[1:]
for kind in {"samples": ("model",), "none": ("model", "samples")}[drawn]:
    setattr(streampca.plot.report.page, f"pictures_of_{kind}", lambda *given: iter(()))
model = streampca.load(f"{place}.zarr", memory=held or None)
meter = PeakMeter()
streampca.write_report(model, f"{place}.html", collection=f"{place}.npy", memory=memory, examine=None)
print(json.dumps({"peak": meter.peak()}))
"""


@pytest.mark.parametrize(
    ("shape", "memory", "held", "drawn"),
    [
        ((200, 40, 16), None, "", "samples"),
        pytest.param((200, 300, 300), "76MiB", "", "samples", marks=pytest.mark.campaign),
        ((2_400, 128, 128), "32MiB", "1B", "none"),
    ],
    ids=["tall pictures", "large pictures", "many samples"],
)
def test_reports_stay_within_the_budget(tmp_path, shape, memory, held, drawn):
    """A report of pictures of samples, or a survey of samples larger than the budget by components read from disk."""
    place, x = tmp_path / "x", np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.save(f"{place}.npy", x)
    streampca.fit(x[:250], n_components=240 if held else 10).save(f"{place}.zarr", keep_state=False)
    if memory is None:
        with pytest.raises(BudgetError) as refusal:
            streampca.write_report(f"{place}.zarr", f"{place}.html", collection=f"{place}.npy", memory=MIB)
        memory = re.search(r"at least (\w+)\.", str(refusal.value))[1]
    peak, budget = measured(WORKER, place, memory, held, drawn)["peak"], parse_bytes(memory)
    print(round(peak / MIB, 1))
    assert budget / 3 < peak < budget
    if held:
        said = (tmp_path / "x.html").read_text()
        assert "2400 samples" in said
        assert "of 240 components, which are those that fit the memory allowed" in said
