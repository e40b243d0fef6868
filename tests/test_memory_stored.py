"""Models twice as large as the budget: peaks of fresh processes against it."""

from __future__ import annotations

import json
import re
from math import prod

import numpy as np
import pytest
import zarr
from shell import measured

import streampca
from streampca.errors import BudgetError
from streampca.models.load import load_model
from streampca.models.pca import PCAModel
from streampca.models.store import ModelWriter
from streampca.planning.component_chunks import POOLS, WRITE_COPIES, component_cut, tile_bytes
from streampca.preprocessing import Preparation
from streampca.units import MIB, parse_bytes

pytestmark = pytest.mark.slow

K, SHAPE, N = 208, (512, 512), 16
BUDGET = "104MiB"  # components take 208 MiB
MASK = np.hypot(*np.meshgrid(np.arange(512) - 256, np.arange(512) - 256)) < 248

# Everything is imported and opened before the meter starts; what happens after is what the budget is for.
WORKER = """
import json, sys
import dask.array
import streampca
from streampca.models import pca, store
from streampca.models.transform import projection as pieces
from streampca.machine import PeakMeter

task, source, output, stored, memory = sys.argv[1:]
plans, plan_pieces = [], pieces.plan_pieces
pieces.plan_pieces = lambda *sizes: plans.append(plan_pieces(*sizes)) or plans[-1]
collection = streampca.open_collection(source)
meter = PeakMeter()
model = streampca.load(stored, memory=memory)
assert not isinstance(model.components, type(model.mean))
if task == "inspect":
    model.summary(), repr(model), model.components[3]
elif task == "save":
    model.save(output)
elif task == "lazy":
    model.transform(collection).compute(scheduler="sync")
else:
    name, _, residual = task.partition(" of ")
    getattr(model, name)(collection, output, memory=memory, **({"residual": True} if residual else {}))
print(json.dumps({"peak": meter.peak(), "estimate": plans[0].memory_estimate.total if plans else None}))
"""

SINK = """
import json, sys
import numpy as np
import zarr
from streampca.storage.components import ComponentWriter
from streampca.machine import PeakMeter

path, shape, most = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
sink = ComponentWriter(zarr.create_group(path), tuple(shape), dims=("y", "x"), dtype="f4")
ranges = sink.ranges(most)
values = np.random.default_rng(0).standard_normal((shape[0], max(span.size for span in ranges)), dtype=np.float32)
meter = PeakMeter()
for span in ranges:
    sink.write(span, values[:, : span.size])
print(json.dumps({"peak": meter.peak()}))
"""


def write_model(path, mask=None, preparation=None):
    """Components made range by range, as a method would: random, of about unit length."""
    rng, p = np.random.default_rng(0), prod(SHAPE) if mask is None else int(mask.sum())
    mean = np.full(SHAPE, 100.0) if mask is None else np.where(mask, 100.0, np.nan)
    with ModelWriter(str(path)) as writer:
        sink = writer.components((K, *SHAPE), dims=("y", "x"), dtype="f4", mask=mask)
        for span in sink.ranges(40_000):
            sink.write(span, rng.standard_normal((K, span.size), dtype=np.float32) / np.float32(np.sqrt(p)))
        ones = np.full(K, 1e-6)
        model = PCAModel(
            components=writer.stored(), mean=mean, explained_variance=np.linspace(9, 1, K), residual_bound=ones,
            angle_bound=ones, error_bound=ones, total_variance=1e4, n_samples=1000, sample_dims=("y", "x"),
            raw_shape=SHAPE, raw_kind="f", mask=mask, preparation=preparation or Preparation(),
        )  # fmt: skip
        writer.finish(model)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models and collections, written once."""
    folder = tmp_path_factory.mktemp("stored")
    x = np.random.default_rng(1).standard_normal((N, *SHAPE), dtype=np.float32) * 10 + 100
    np.save(folder / "rows.npy", x)
    zarr.create_array(folder / "whole.zarr", data=x, chunks=(4, *SHAPE))
    preparation = Preparation(mask=MASK, scale=np.full(SHAPE, 2.0), normalize="mean")
    models = {"plain": write_model(folder / "plain.zarr"), "masked": write_model(folder / "m.zarr", MASK, preparation)}
    expected = {}
    for name, path in models.items():
        held = load_model(path)
        made = {"write_scores": held.transform, "write_reconstruction": held.reconstruct}
        expected |= {(name, task): make(x[:3]) for task, make in made.items()}
        if name == "plain":
            expected[name, "write_reconstruction of residuals"] = held.residual(x[:3])
            np.save(folder / "scores.npy", held.transform(x))
    return folder, models, expected


CASES = {
    "scores of whole samples": ("plain", "write_scores", "whole.zarr", "s.zarr", BUDGET),
    "scores, masked": ("masked", "write_scores", "rows.npy", "s.npy", "128MiB"),
    "images to zarr": ("plain", "write_reconstruction", "rows.npy", "i.zarr", BUDGET),
    "images, masked": ("masked", "write_reconstruction", "rows.npy", "i.zarr", "128MiB"),
    "residuals": ("plain", "write_reconstruction of residuals", "rows.npy", "i.npy", BUDGET),
    "images from scores": ("plain", "write_reconstruction", "scores.npy", "i.zarr", BUDGET),
}


IN_THE_SUITE = ["scores of whole samples", "images, masked", "images from scores"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.campaign] * (name not in IN_THE_SUITE)) for name in CASES]
)
def test_a_model_larger_than_the_budget_is_applied_within_it(files, tmp_path, name):
    folder, models, expected = files
    model, task, source, output, memory = CASES[name]
    found = measured(WORKER, task, folder / source, tmp_path / output, models[model], memory)
    print(name, memory, {key: round(value / MIB, 1) for key, value in found.items()})
    assert found["peak"] <= parse_bytes(memory)
    assert 0.6 * found["estimate"] - 16 * MIB < found["peak"] < 1.1 * found["estimate"] + 16 * MIB
    array = "scores" if task == "write_scores" else "images"
    path = tmp_path / output
    values = np.load(path, mmap_mode="r") if path.suffix == ".npy" else zarr.open_group(path, mode="r")[array]
    assert values.shape[0] == N
    np.testing.assert_allclose(values[:3], expected[model, task], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("task", ["inspect", "save", "lazy"])
def test_the_rest_stays_within_it_too(files, tmp_path, task):
    folder, models, _ = files
    source = folder / "rows.npy"
    memory = "200MiB" if task == "lazy" else BUDGET  # a chunk of a lazy result holds up to 64 MiB of samples, twice
    found = measured(WORKER, task, source, tmp_path / "copy.zarr", models["plain"], memory)
    print(task, round(found["peak"] / MIB, 1))
    # Looking at a model, and at one component of it, takes less than a tenth of what all components would.
    assert found["peak"] <= (32 * MIB if task == "inspect" else parse_bytes(memory))


@pytest.mark.parametrize(
    ("task", "output"),
    [pytest.param("write_scores", "s.npy", marks=pytest.mark.campaign), ("write_reconstruction", "i.zarr")],
)
def test_the_least_budget_is_kept(files, tmp_path, task, output):
    """The budget that a refusal names suffices."""
    folder, models, _ = files
    model = load_model(models["plain"], memory="20MiB")
    with pytest.raises(BudgetError) as caught:
        getattr(model, task)(streampca.open_collection(folder / "rows.npy"), tmp_path / output, memory="20MiB")
    least = re.search(r"at least (\w+)", str(caught.value))[1]
    found = measured(WORKER, task, folder / "rows.npy", tmp_path / output, models["plain"], least)
    print(task, least, round(found["peak"] / MIB, 1))
    assert found["peak"] <= parse_bytes(least)


@pytest.mark.parametrize(("shape", "most"), [((300, 125, 600), 1), ((2000, 50, 300), 100_000)])
def test_writing_a_range_takes_a_few_tiles(tmp_path, shape, most):
    """Beside the values, whatever their range."""
    found = measured(SINK, tmp_path / "made.zarr", json.dumps(shape), most)
    tile = tile_bytes(shape, 4)
    assert tile <= max(8 * MIB, 16384 * shape[0])
    print(shape, most, component_cut(shape, 4), round(found["peak"] / tile, 2), "tiles")
    assert found["peak"] <= WRITE_COPIES * tile + POOLS
