"""Memory is a promise: peaks of fresh processes against the budget and the memory estimate."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import by_options
import h5py
import numpy as np
import pytest
import zarr
from PIL import Image
from shell import measured
from zarr.codecs import GzipCodec

from streampca.errors import BudgetError
from streampca.units import MIB, parse_bytes

pytestmark = pytest.mark.slow

# Everything is imported and opened before the meter starts; what happens after is what the budget is for.
IMPORTED = f"""
import json, sys
sys.path.append({str(Path(__file__).parent)!r})
import by_options
import streampca
from streampca.fitting import fit
from streampca.models import pca, store, transform
from streampca.storage import outputs
from streampca.machine import PeakMeter
"""
FIT = """
source, options = sys.argv[1:]
options = json.loads(options)
if schedule := options.pop("schedule", None):
    from streampca.planning import by_features, dual, randomized
    by_features.SCHEDULES = dual.SCHEDULES = randomized.SCHEDULES = (schedule,)
    randomized.WORTH_TURNING, randomized.WORTH_SECONDS = float("inf"), 0  # which then goes along samples
collection = streampca.open_collection(source)
plan = by_options.plan(collection, **options)
meter = PeakMeter()
by_options.fit(collection, listener=lambda event: None, **options)
found = {"peak": meter.peak(), "estimate": plan.memory_estimate.total}
print(json.dumps(found | {name: getattr(plan, name) for name in ("solver", "side", "schedule", "stored")}))
"""

ALL = """
source, folder, memory = sys.argv[1:]
collection = streampca.open_collection(source)
meter = PeakMeter()
model = streampca.fit(collection, n_components=20, memory=memory)
model.write_scores(collection, f"{folder}/scores.npy", memory=memory)
model.write_reconstruction(f"{folder}/scores.npy", f"{folder}/images.npy", memory=memory)
print(json.dumps({"peak": meter.peak()}))
"""


def fitted(source, **options):
    """Fit in a process of its own; return what was planned and what it took."""
    return measured(IMPORTED + FIT, source, json.dumps(options))


def blocks_of_images(n, shape, dtype, step=2048):
    """Images of 12 patterns and noise, a few at a time: what is tested is never whole in memory."""
    rng = np.random.default_rng(0)
    p = int(np.prod(shape))
    patterns = rng.standard_normal((12, p), dtype=np.float32) * 20 * 0.8 ** np.arange(12, dtype=np.float32)[:, None]
    noise = rng.standard_normal((min(step, n), p), dtype=np.float32) + 128
    for start in range(0, n, step):
        x = rng.standard_normal((min(step, n - start), 12), dtype=np.float32) @ patterns
        x += np.roll(noise, start // step, axis=1)[: len(x)]
        if np.dtype(dtype).kind == "u":
            x = np.clip(x, 0, np.iinfo(dtype).max)
        yield start, x.astype(dtype).reshape(-1, *shape)


def write(path, n, shape, dtype, layout):
    """Store images block by block."""
    if layout == "npy":
        with open(f"{path}.npy", "wb") as file:
            header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (n, *shape)}
            np.lib.format.write_array_header_1_0(file, header)
            for _, block in blocks_of_images(n, shape, dtype):
                file.write(block.data)
        return f"{path}.npy"
    if layout == "png":
        path.mkdir()
        for start, block in blocks_of_images(n, shape, dtype):
            for number, image in enumerate(block, start):
                Image.fromarray(image).save(path / f"{number}.png", compress_level=1)
        return str(path)
    if layout == "hdf5":
        with h5py.File(f"{path}.h5", "w") as file:
            made = file.create_dataset("x", (n, *shape), dtype, chunks=(n, *shape), compression="gzip", shuffle=True)
            made[...] = np.concatenate([block for _, block in blocks_of_images(n, shape, dtype)])
        return f"{path}.h5"
    options = {
        "one chunk": {"chunks": (n, *shape), "compressors": GzipCodec(level=1)},
        "singles": {"chunks": (1, *shape)},
        "plain": {"chunks": (512, *shape), "compressors": None},
        "zarr": {"chunks": (256, *shape)},
        "across": {"chunks": (2048, shape[0] // 4, shape[1])},
        "sharded": {"chunks": (64, *shape), "shards": (2048, *shape)},
    }[layout]
    made = zarr.create_array(f"{path}.zarr", shape=(n, *shape), dtype=dtype, **options)
    for start, block in blocks_of_images(n, shape, dtype, step=max(2048, made.chunks[0])):
        made[start : start + len(block)] = block
    return f"{path}.zarr"


@pytest.mark.parametrize(
    ("layout", "dtype", "shape", "memory"),
    [
        ("npy", "f4", (32768, 20, 20), "24MiB"),
        pytest.param("npy", "f4", (65536, 32, 32), "64MiB", marks=pytest.mark.campaign),
        pytest.param("plain", "u2", (32768, 32, 32), "48MiB", marks=pytest.mark.campaign),
    ],
)
def test_data_larger_than_the_budget(tmp_path, monkeypatch, layout, dtype, shape, memory):
    """Data of twice the budget (four times in a campaign) are fitted, transformed and reconstructed within it."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)  # all threads of BLAS, which have buffers
    source = write(tmp_path / "source", shape[0], shape[1:], dtype, layout)
    found = measured(IMPORTED + ALL, source, tmp_path, memory)
    print(round(found["peak"] / MIB, 1))
    assert found["peak"] <= parse_bytes(memory)
    assert np.load(tmp_path / "scores.npy", mmap_mode="r").shape == (shape[0], 20)
    assert np.load(tmp_path / "images.npy", mmap_mode="r").shape == shape


DUAL = {"n_components": 20, "memory": "80MiB", "method": "dual", "schedule": "sweep"}
ALONG = DUAL | {"method": "randomized"}
FEW_PASSES = {"n_components": 20, "memory": "64MiB", "max_passes": 4}  # each inflates the chunk, and noise takes 30
CASES = {
    "npy, uint8, dense": ("npy", "u1", 60000, (28, 28), {"n_components": 50, "memory": "48MiB"}),
    "npy, wide, dense": ("npy", "f4", 4000, (44, 44), {"n_components": 0.9, "memory": "200MiB"}),
    "npy, wide, all": ("npy", "f8", 3000, (36, 36), {"n_components": None, "memory": "200MiB"}),
    "npy, Lanczos": ("npy", "u1", 1200, (44, 44), {"n_components": 10, "memory": "200MiB"}),
    "zarr by samples": ("zarr", "u2", 12000, (32, 32), {"n_components": 20, "memory": "128MiB"}),
    "zarr across features": ("across", "f4", 16384, (32, 32), {"n_components": 20, "memory": "128MiB"}),
    "zarr sharded": ("sharded", "f4", 16384, (32, 32), {"n_components": 20, "memory": "128MiB"}),
    "one chunk, gzip": ("one chunk", "f4", 3000, (32, 32), FEW_PASSES),
    "one chunk, HDF5": ("hdf5", "f4", 3000, (32, 32), FEW_PASSES),
    "pictures": ("png", "u1", 800, (48, 40), {"n_components": 20, "memory": "128MiB"}),
    "products": (
        "npy",
        "u1",
        2000,
        (96, 96),
        {"n_components": 10, "memory": "160MiB", "method": "randomized", "tol": 1e-6},
    ),
    "products, double": ("zarr", "f8", 1000, (80, 80), {"n_components": 10, "memory": "96MiB", "method": "randomized"}),
    "em": ("npy", "f4", 5000, (48, 48), {"n_components": 5, "memory": "40MiB", "missing": "em"}),
    "em, in ranges": ("zarr", "f4", 1500, (128, 128), {"n_components": 20, "memory": "104MiB", "missing": "em"}),
    "sweep": ("npy", "f4", 400, (200, 200), DUAL | {"memory": "64MiB"}),
    "sweep, all": ("npy", "f4", 600, (200, 200), DUAL | {"n_components": None, "memory": "350MiB"}),
    "sweep, singles": ("singles", "u1", 400, (256, 256), DUAL),
    "sweep, float64": ("npy", "f8", 400, (160, 160), DUAL),
    "scratch": ("singles", "f4", 400, (200, 200), DUAL | {"memory": "64MiB", "schedule": "scratch"}),
    "stored": ("npy", "f4", 400, (256, 256), DUAL | {"n_components": 300}),
    "along samples": ("npy", "u1", 3000, (120, 120), ALONG | {"memory": "90MiB"}),
    "along samples, to double": ("npy", "u1", 3000, (120, 120), ALONG | {"memory": "100MiB", "tol": 1e-8}),
    "along samples, double": ("npy", "f8", 400, (200, 200), ALONG | {"n_components": 8, "memory": "96MiB"}),
    "along samples, scratch": ("singles", "f4", 400, (256, 256), ALONG | {"schedule": "scratch"}),
    "along samples, stored": (
        "npy",
        "f4",
        400,
        (256, 256),
        ALONG | {"n_components": 200, "memory": "88MiB", "max_passes": 3},
    ),
}
# One case for each method, side and schedule, and pictures; the others run in a campaign.
IN_THE_SUITE = [
    "npy, uint8, dense", "pictures", "products", "em", "sweep", "scratch", "along samples, stored",
]  # fmt: skip


def named(names, asked=()):
    """Parametrize with names, and with others that are asked for only."""
    return pytest.mark.parametrize("name", [*names, *(pytest.param(n, marks=pytest.mark.campaign) for n in asked)])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """``source(name)``: where the images of a case are, written once."""
    folder = tmp_path_factory.mktemp("sources")

    @cache
    def written(layout, dtype, n, shape):
        return write(folder / f"{layout} {dtype} {n} {shape}", n, shape, dtype, layout)

    return lambda name: written(*CASES[name][:-1])


def check(found, memory):
    print({name: round(value / MIB, 1) if name in ("peak", "estimate") else value for name, value in found.items()})
    assert 0.6 * found["estimate"] - 16 * MIB < found["peak"] < 1.1 * found["estimate"] + 16 * MIB
    assert found["peak"] <= parse_bytes(memory)


@named(IN_THE_SUITE, sorted(CASES.keys() - set(IN_THE_SUITE)))
def test_the_memory_estimate_is_honest(source, tmp_path, name):
    """0.6 x estimate - 16 MiB < peak < 1.1 x estimate + 16 MiB, and never above the budget."""
    options, expected = CASES[name][-1], {}
    if schedule := options.get("schedule"):
        side = "samples" if name.startswith("along samples") else "features"
        expected = {"schedule": schedule, "side": side} | ({"stored": True} if name.endswith("stored") else {})
        options = options if name.endswith("all") else options | {"output": str(tmp_path / "written.zarr")}
    found = fitted(source(name), **options)
    assert expected.items() <= found.items()
    check(found, options["memory"])


@named(["npy, Lanczos", "one chunk, gzip", "one chunk, HDF5"], ["pictures", "npy, wide, dense", "zarr across features"])
def test_the_least_budget_is_kept(source, tmp_path, name):
    """The budget that a refusal names suffices: the peak stays within it."""
    options = {**CASES[name][-1], "memory": "1MiB"}
    with pytest.raises(BudgetError) as caught:
        by_options.plan(source(name), **options)
    options["memory"] = re.search(r"at least (\w+)", str(caught.value))[1]
    found = fitted(source(name), **options)
    print(name, options["memory"], round(found["peak"] / MIB, 1))
    assert found["peak"] <= parse_bytes(options["memory"])


def test_a_fraction_of_a_flat_spectrum_keeps_the_budget(tmp_path):
    """80 % of the variance of noise take a thousand components and more, and their solver keeps the budget."""
    noise = np.random.default_rng(0).standard_normal((3000, 46, 46), dtype=np.float32)
    np.save(tmp_path / "noise.npy", noise)
    found = fitted(tmp_path / "noise.npy", n_components=0.8, memory="84MiB")
    assert found["solver"] == "lanczos"
    assert found["peak"] <= 84 * MIB


LEARNED = """
import numpy as np
from streampca import Preparation
source, folder, memory, labels = sys.argv[1:]
collection = streampca.open_collection(source, labels=labels)
preparation = Preparation(anomaly="label", standardize=True)
asked = {"n_components": 5, "memory": memory, "preparation": preparation, "max_passes": 4}  # noise converges in 30
plan = by_options.plan(collection, **asked)
meter = PeakMeter()
model = by_options.fit(collection, **asked, listener=lambda event: None)
fit = meter.peak()
model.write_scores(collection, f"{folder}/scores.npy", memory=memory)
model.write_reconstruction(collection, f"{folder}/images.npy", memory=memory)
phases = {phase.name: phase.total for phase in plan.memory_estimate.phases}
print(json.dumps({"fit": fit, "peak": meter.peak(), "estimate": plan.memory_estimate.total, "phases": phases}))
"""


def test_means_of_many_groups_are_counted(tmp_path):
    """The means of 366 groups take 11 MiB, and the samples 21 MiB."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(1400, 63, 63)).astype(np.float32) + 300)
    np.save(tmp_path / "labels.npy", np.arange(1400) % 366)
    found = measured(IMPORTED + LEARNED, tmp_path / "x.npy", tmp_path, "44MiB", tmp_path / "labels.npy")
    print({name: round(found[name] / MIB, 1) for name in ("fit", "peak", "estimate")}, found["phases"])
    assert found["fit"] <= found["estimate"] <= 44 * MIB
    assert found["peak"] <= 44 * MIB
    assert found["phases"]["pass before the fit"] > 8 * 366 * 63 * 63


PREPARED = """
import scipy.sparse  # imported on use
from PIL import Image
from streampca import Preparation
source, options, steps = sys.argv[1:]
preparation, options = Preparation(**json.loads(steps)), json.loads(options)
collection = streampca.open_collection(source)
plan = by_options.plan(collection, preparation=preparation, **options)
meter = PeakMeter()
by_options.fit(collection, preparation=preparation, listener=lambda event: None, **options)
print(json.dumps({"peak": meter.peak(), "estimate": plan.memory_estimate.total, "method": plan.method}))
"""


@pytest.mark.parametrize(
    ("layout", "dtype", "shape", "steps", "options"),
    [
        ("npy", "u2", (24, 900, 800), {"scale": 0.1, "normalize": "ratio"}, {"memory": "132MiB"}),
        ("npy", "u1", (24, 900, 800), {"scale": 0.1}, {"memory": "112MiB"}),
        ("npy", "u1", (24, 900, 800), {"scale": 0.1}, {"memory": "132MiB", "precision": "double"}),
        ("npy", "u2", (12, 1600, 1500), {"scale": 0.1}, {"memory": "122MiB", "output": True}),
        ("npy", "u2", (12, 1600, 1500), {"bin": 2, "normalize": "mean"}, {"memory": "82MiB", "output": True}),
        ("png", "u1", (120, 700, 600), {"resize": (64, 64)}, {"memory": "64MiB", "precision": "double"}),
        ("zarr", "u2", (6000, 32, 32), {"bin": 2, "standardize": True}, {"memory": "48MiB"}),
    ],
    ids=["long, float64", "long, float32", "long, double", "large", "large, binned", "resized", "standardized"],
)
def test_what_a_preparation_rounds_is_measured_within_the_estimate(tmp_path, layout, dtype, shape, steps, options):
    """At budgets that a copy of a few prepared samples would not keep to, some the least that are accepted."""
    source = write(tmp_path / "source", shape[0], shape[1:], dtype, layout)
    if options.get("output"):
        options = options | {"output": str(tmp_path / "written.zarr")}
    words = (source, json.dumps({"n_components": 3, **options}), json.dumps(steps))
    found = measured(IMPORTED + PREPARED, *words)
    print(found["method"], {name: round(found[name] / MIB, 1) for name in ("peak", "estimate")}, options)
    assert found["peak"] <= found["estimate"] <= parse_bytes(options["memory"])


VARIABLES = """
source, folder, memory = sys.argv[1:]
collection = streampca.open_collection(source, key="u,v")
plan = streampca.plan(collection, n_components=5, memory=memory)
meter = PeakMeter()
model = streampca.fit(collection, n_components=5, memory=memory, listener=lambda event: None)
fit = meter.peak()
model.write_scores(source, f"{folder}/scores.npy", memory=memory)
model.write_reconstruction(source, f"{folder}/images.npy", memory=memory)
print(json.dumps({"fit": fit, "peak": meter.peak(), "estimate": plan.memory_estimate.total}))
"""


def test_several_variables_of_a_file_are_read_in_blocks(tmp_path):
    """One variable is in compressed chunks, one is contiguous, and they take 53 MiB together."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("u", (12000, 24, 24), "f4")
        file.create_dataset("v", (12000, 24, 24), "f4", chunks=(500, 12, 24), compression="gzip", compression_opts=1)
        for start, block in blocks_of_images(12000, (24, 24), "f4"):
            for name in file:
                file[name][start : start + len(block)] = np.round(block)
    found = measured(IMPORTED + VARIABLES, tmp_path / "x.h5", tmp_path, "36MiB")
    print({name: round(value / MIB, 1) for name, value in found.items()})
    assert found["fit"] <= found["estimate"] <= 36 * MIB
    assert found["peak"] <= 36 * MIB
    assert np.load(tmp_path / "images.npy", mmap_mode="r").shape == (12000, 24, 24, 2)


RBF = {"kernel": "rbf", "gamma": "auto"}
KIND = """
import scipy.spatial.distance, scipy.stats, sklearn.metrics.pairwise  # imported on use
source, folder, memory, options, target = sys.argv[1:]
asked = {"n_components": 5, "memory": memory, **json.loads(options)}
if asked["kind"] != "kernel-pca":
    asked["target"] = target
plan = by_options.plan(source, **asked)
meter = PeakMeter()
model = by_options.fit(source, **asked, listener=lambda event: None)
fit = meter.peak()
model.write_scores(source, f"{folder}/scores.npy", memory=memory)
print(json.dumps({"fit": fit, "peak": meter.peak(), "estimate": plan.memory_estimate.total}))
"""


@pytest.mark.parametrize(
    ("options", "memory"),
    [
        ({"kind": "kernel-pca", **RBF, "landmarks": 100}, "96MiB"),
        ({"kind": "supervised-pca"}, "64MiB"),
        pytest.param({"kind": "kernel-pca", **RBF, "random_features": 256}, "128MiB", marks=pytest.mark.campaign),
        pytest.param({"kind": "supervised-pca", **RBF, "landmarks": 200}, "128MiB", marks=pytest.mark.campaign),
        pytest.param({"kind": "fisher-discriminant"}, "64MiB", marks=pytest.mark.campaign),
        pytest.param({"kind": "supervised-principal-components"}, "64MiB", marks=pytest.mark.campaign),
    ],
)
def test_other_kinds_of_model_keep_to_their_estimates(tmp_path, options, memory):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 256, (14000, 28, 28), dtype=np.uint8))
    np.save(tmp_path / "kinds.npy", np.arange(14000) % 10)
    words = (tmp_path / "x.npy", tmp_path, memory, json.dumps(options), tmp_path / "kinds.npy")
    found = measured(IMPORTED + KIND, *words)
    print({name: round(value / MIB, 1) for name, value in found.items()})
    assert found["fit"] <= found["estimate"] <= parse_bytes(memory)
    assert found["peak"] <= parse_bytes(memory)
