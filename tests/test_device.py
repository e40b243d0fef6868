"""Products on a device, on torch's own processor device: the laws, the bits of exact sums, and rounding."""

from __future__ import annotations

import pickle
import signal
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from shell import python, refused, succeeded
from test_accumulate import NEW, along, fed, new_for, same_statistic, values

import streampca
from streampca.accumulators import SymmetricBlock
from streampca.accumulators.products import double_products, products_on
from streampca.errors import BudgetError, OutputError, RequestError
from streampca.events import Checkpoint, Resumed
from streampca.fitting.methods.dual_components import project
from streampca.fitting.methods.gram_pairs import Factors
from streampca.fitting.methods.randomized_start import leading_vectors
from streampca.planning.blocks import Span
from streampca.testing import AccumulatorLaws, assert_same_state
from streampca.units import GIB, MIB

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

DEVICE = "torch:cpu"
# All but those of single numbers of each feature, and the sketch that updates keep.
KINDS = [kind for kind in NEW if not kind.startswith(("group_moments", "frequent"))]


@cache
def multiplying_there(kind):
    """Return a class of accumulators that stay on the device when they are made of a state, as laws make them."""

    class OnDevice(kind):
        def __init__(self, *given, **options):
            super().__init__(*given, **options | {"device": DEVICE})

        @classmethod
        def from_state(cls, state, **options):
            return super().from_state(state, **{"device": DEVICE} | options)

    return OnDevice


def on_device(kind, parts):
    new = new_for(kind, parts)
    return partial(multiplying_there(new.func), *new.args, **new.keywords)


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["u1", "u2", ">f4", "f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_laws_and_answers_are_those_of_the_processor(kind, dtype):
    parts = along(kind, np.split(values(300, dtype, 100.0, seed=3), [11, 11, 140]))
    new = on_device(kind, parts)
    AccumulatorLaws(new, same_statistic).check(parts)
    same_statistic(fed(new, parts), fed(new_for(kind, parts), parts))


@pytest.mark.parametrize("measures", [True, False])
def test_laws_of_a_matrix_of_pairs(measures):
    """Distances where no entries are checked, as the laws move rows, and inner products else."""
    matrix = distances("f4")[:64, :64]
    block = np.random.default_rng(6).normal(size=(64, 3))
    how = {"distances": not measures, "measures": measures, "product_rows": 7}
    new = partial(multiplying_there(SymmetricBlock), block - block.mean(axis=0), **how)

    def same(one, other):
        for name, value in one.state().items():
            np.testing.assert_allclose(value, other.state()[name], rtol=1e-9, atol=1e-9, err_msg=name)

    parts = np.split(matrix, [1, 9, 9])
    AccumulatorLaws(new, same).check(parts)
    same(fed(new, parts), fed(partial(SymmetricBlock, *new.args, **new.keywords), parts))


@pytest.mark.parametrize(("kind", "name"), [("scatter", "scatter"), ("gram", "gram")])
def test_exact_sums_have_the_bits_of_the_processor(kind, name):
    parts = along(kind, np.split(values(3000, "u2", 1e4, seed=3), [11, 1140]))
    found, expected = fed(on_device(kind, parts), parts), fed(new_for(kind, parts), parts)
    assert found.sums_exactly
    assert found.agrees
    np.testing.assert_array_equal(np.triu(found.state()[name]), np.triu(expected.state()[name]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_in_the_middle_changes_no_bit(kind):
    parts = along(kind, np.split(values(500, "f4", 1e4, seed=8), 5))
    new, axis = on_device(kind, parts), 1 if kind.startswith("gram") else 0
    whole, half = fed(new, parts), fed(new, parts[:2])
    half.release()
    later = type(half).from_state(half.state())
    for number, part in enumerate(parts[2:], 2):
        later.update(part, at=number * part.shape[axis])
        later.state()
    assert_same_state(later.state(), whole.state())


@pytest.mark.parametrize("share", [None, np.arange(1, 61) / 1830])
@pytest.mark.parametrize("dtype", ["u1", "f8"])
def test_projections_are_those_of_the_processor(dtype, share):
    """Components, means, probes and the rounding of these, of some features of all samples."""
    stored, rng = values(60, dtype, 100.0, seed=3), np.random.default_rng(4)
    vectors, along = rng.normal(size=(60, 5)), rng.normal(size=(60, 8))
    factors = Factors(vectors, along - along.mean(axis=0), share, "single", stored.shape[1])
    found, expected = (
        project(factors, Span(0, stored.shape[1]), stored, products_on(device, factors.dtype))
        for device in (DEVICE, "")
    )
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-7)
    for name in ("values", "products", "rounding"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-3)
    assert found.checked == expected.checked > 0


def test_leading_vectors_of_a_sample_are_those_of_the_processor():
    rows = np.random.default_rng(5).normal(size=(30, 200)).astype("f4") * (1 + np.arange(200, dtype="f4"))
    found, expected = leading_vectors(rows, 6, DEVICE), leading_vectors(rows, 6, "")
    np.testing.assert_allclose(found, expected * np.sign((found * expected).sum(axis=0)), atol=1e-5)


# -- fits


def images(method, dtype="u1"):
    """Samples for a method, of slowly falling variances."""
    shape = (60, 3000) if method == "dual" else (6000, 120)
    x = np.random.default_rng(0).normal(size=shape) / np.sqrt(1 + np.arange(shape[1]))
    return (60 * x + 120).clip(0, 255).astype(dtype)


def labelled(dtype):
    """Samples of four classes, and a number of each that depends on few features."""
    x = np.random.default_rng(1).normal(size=(3000, 40))
    x += (np.arange(3000) % 4)[:, None] * np.linspace(0, 2, 40)
    return np.rint(9 * x + 120).clip(0, 255).astype(dtype)


def gaps(dtype):
    x = labelled("f4")[:600]
    x[np.random.default_rng(2).random(x.shape) < 0.2] = np.nan
    return x


def distances(dtype):
    points = np.random.default_rng(3).normal(size=(1000, 4)) * [4, 3, 2, 1]
    return np.sqrt(np.square(points[:, None] - points).sum(axis=2)).astype("f4")


CLASSES = np.arange(3000) % 4
MORE = {
    "class-scatter": (streampca.FisherDiscriminant(2), labelled, CLASSES),
    "cross-scatter": (streampca.SupervisedPCA(2), labelled, CLASSES),
    "screening": (streampca.SupervisedPrincipalComponents(2), labelled, CLASSES + np.sin(np.arange(3000))),
    "em": (streampca.PCA(2, missing="em", max_passes=3), gaps, None),
    "symmetric": (streampca.ClassicalMDS(3, metric="precomputed"), distances, None),
    "kernel-matrix": (streampca.KernelPCA(3), lambda dtype: labelled(dtype)[:200], None),
}
METHODS = ["covariance", "dual", "randomized", *MORE]


def fitted(method, dtype="u1", **run):
    if method in MORE:
        kind, samples, target = MORE[method]
        found = streampca.fit(samples(dtype), kind, **{} if target is None else {"target": target}, **run)
        assert found.provenance["plan"]["method"] == method
        return found
    return streampca.fit(images(method, dtype), streampca.PCA(4, method=method), **run)


@pytest.mark.parametrize("dtype", ["u1", "f4"])
@pytest.mark.parametrize("method", [method for method in METHODS if method not in ("em", "symmetric")])
def test_fits_have_the_answer_of_the_processor(method, dtype):
    found, expected = fitted(method, dtype, device=DEVICE), fitted(method, dtype)
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance, rtol=1e-8)
    np.testing.assert_allclose(found.components, expected.components, atol=1e-5)
    assert found.provenance["plan"]["request"]["device"] == DEVICE
    assert 512 * MIB < found.provenance["plan"]["device_bytes"] < 600 * MIB
    if method in MORE:
        return
    if method != "randomized" and dtype == "u1":
        assert found.provenance["exact_sums"]
        np.testing.assert_array_equal(found.explained_variance, expected.explained_variance)
    if method == "covariance" and dtype == "u1":  # those of `dual` are products of samples with eigenvectors
        np.testing.assert_array_equal(found.components, expected.components)


@pytest.mark.parametrize("method", ["em", "symmetric"])
def test_fits_to_floating_point_numbers_have_the_answer_of_the_processor(method):
    test_fits_have_the_answer_of_the_processor(method, "f4")


class Died(Exception):  # noqa: N818
    pass


def die():
    raise Died


def at_checkpoint(count, end):
    """A listener that calls a function at a checkpoint."""
    seen = []

    def listener(event):
        seen.extend([event] * isinstance(event, Checkpoint))
        if len(seen) == count:
            end()

    return listener


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_device

def die():
    os.kill(os.getpid(), signal.SIGKILL)

test_device.saving(sys.argv[2], sys.argv[3], listener=test_device.at_checkpoint(2, die))
"""


def saving(method, folder, **run):
    """A fit on the device that saves a checkpoint after every block."""
    where = {"device": DEVICE, "memory": "150 MiB", "checkpoint": folder, "checkpoint_every": 0}
    return fitted(method, "f4", **where | run)


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_a_fit_that_died_resumes_to_the_same_bits_there_and_nowhere_else(tmp_path, method, killed):
    if killed:
        done = python(CHILD, Path(__file__).parent, method, tmp_path / "kept")
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    else:
        with pytest.raises(Died):
            saving(method, tmp_path / "kept", listener=at_checkpoint(2, die))
    with pytest.raises(OutputError, match="an unfinished run with device"):
        saving(method, tmp_path / "kept", device=None)
    events = []
    found, whole = saving(method, tmp_path / "kept", listener=events.append), saving(method, None)
    assert any(isinstance(event, Resumed) for event in events)
    for name in ("components", "explained_variance", "mean", "error_bound"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


# -- applying models


@pytest.fixture
def used(monkeypatch):
    """Devices that models multiply on."""
    devices = []

    def products(device, *given, **options):
        devices.append(device)
        return products_on(device, *given, **options)

    monkeypatch.setattr("streampca.models.subspace.products_on", products)
    return devices


APPLYING = {
    "numpy": lambda model, x, path, **how: model.transform(x, **how),
    "dask": lambda model, x, path, **how: model.transform(da.from_array(x, chunks=(50, -1, -1)), **how).compute(),
    "path": lambda model, x, path, **how: model.transform(path, whiten=True, **how).compute(),
    "images": lambda model, x, path, **how: model.reconstruct(path, 3, **how).compute(),
    "residual": lambda model, x, path, **how: model.residual(x, 3, **how),
    "inverse": lambda model, x, path, **how: model.inverse_transform(model.transform(x), **how),
    "error": lambda model, x, path, **how: model.reconstruction_error(x, **how),
    "T2": lambda model, x, path, **how: model.hotelling_t2(x, **how),
    "rotated": lambda model, x, path, **how: model.rotate(3).reconstruct(x, 2, **how),
    "scores": lambda model, x, path, **how: written(model.write_scores, path, **how),
    "file": lambda model, x, path, **how: written(model.write_reconstruction, path, **how),
}


def written(write, path, **how):
    write(path, path.with_name("out.npy"), overwrite=True, **how)
    return np.load(path.with_name("out.npy"))


@pytest.mark.parametrize("dtype", ["u1", ">f4", "f8"])
@pytest.mark.parametrize("door", APPLYING)
def test_models_are_applied_there_as_by_the_processor(tmp_path, used, door, dtype):
    x = images("covariance", dtype)[:400].reshape(400, 12, 10)
    np.save(tmp_path / "x.npy", x)
    model, apply = streampca.fit(x, n_components=5), APPLYING[door]
    expected = apply(model, x, tmp_path / "x.npy")
    assert DEVICE not in used
    np.testing.assert_allclose(apply(model, x, tmp_path / "x.npy", device=DEVICE), expected, rtol=1e-4, atol=1e-3)
    assert DEVICE in used


@pytest.mark.parametrize(
    "options", [{"landmarks": 40}, {"landmarks": 40, "kernel": "poly"}, {"random_features": 32}], ids=str
)
def test_samples_are_compared_there_where_kernels_are_of_products(tmp_path, options):
    """A fit through a feature map, which the model then applies anywhere; and the model, applied there."""
    x = labelled("f4")[:400]
    kind = streampca.KernelPCA(3, **{"kernel": "rbf", "gamma": 1e-4} | options)
    found, expected = streampca.fit(x, kind, device=DEVICE), streampca.fit(x, kind)
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance, rtol=1e-8)
    np.testing.assert_allclose(found.residual_estimate, expected.residual_estimate, atol=1e-8)
    assert found.preparation.mapped.products is None
    np.save(tmp_path / "x.npy", x)
    scores = expected.transform(x)
    for there in (
        expected.transform(x, device=DEVICE),
        expected.transform(tmp_path / "x.npy", device=DEVICE).compute(),
        written(expected.write_scores, tmp_path / "x.npy", device=DEVICE),
    ):
        np.testing.assert_allclose(there, scores, atol=1e-10)
    on_device = pickle.loads(pickle.dumps(expected.preparation.multiplying(double_products(DEVICE))))  # noqa: S301 - ours
    assert on_device.mapped.products is not None
    np.testing.assert_allclose(on_device.mapped(x[:5]), expected.mapping(x[:5]), atol=1e-12)


def test_distances_are_squared_there():
    points = np.random.default_rng(2).normal(size=(60, 3))
    distances = np.sqrt(np.square(points[:, None] - points).sum(axis=2))
    model = streampca.fit(distances[:50, :50], streampca.ClassicalMDS(3, metric="precomputed"))
    rows = distances[50:, :50]
    np.testing.assert_allclose(model.transform(rows, device=DEVICE), model.transform(rows), rtol=1e-10)


def test_every_door_applies_there(tmp_path, used):
    x = images("covariance", "f4")[:300]
    np.save(tmp_path / "x.npy", x)
    estimator = streampca.PCA(3, run=streampca.Run(device=DEVICE)).fit(x)
    scores = estimator.transform(x)
    estimator.inverse_transform(scores)
    assert used == [DEVICE, DEVICE]
    streampca.fit(x, n_components=3, output=tmp_path / "m.zarr")
    succeeded("transform", tmp_path / "m.zarr", tmp_path / "x.npy", "-o", tmp_path / "a.npy", "--device", DEVICE)
    succeeded("reconstruct", tmp_path / "m.zarr", tmp_path / "a.npy", "-o", tmp_path / "b.npy", "--device", DEVICE)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), scores)
    assert used[2:] == [DEVICE, DEVICE]
    used.clear()
    text = f"{{collection: {{source: {tmp_path}/x.npy}}, model: {{n_components: 3}}, run: {{device: 'torch:cpu'}}, "
    (tmp_path / "run.yaml").write_text(text + f"output: {{directory: {tmp_path}/run, transform: true}}}}")
    succeeded("run", tmp_path / "run.yaml")
    assert used == [DEVICE]


def test_scores_resume_to_the_same_bits_there_and_nowhere_else(tmp_path):
    x = images("covariance", "f4")
    np.save(tmp_path / "x.npy", x)
    model = streampca.fit(x, n_components=5)

    def write(name, **how):
        where = {"checkpoint": tmp_path / "kept", "checkpoint_every": 0, "memory": "150 MiB", "device": DEVICE}
        model.write_scores(tmp_path / "x.npy", tmp_path / f"{name}.npy", **where | how)

    with pytest.raises(Died):
        write("a", listener=at_checkpoint(1, die))
    with pytest.raises(OutputError, match="an unfinished run with device"):
        write("a", device=None)
    write("a")
    write("b", checkpoint=None)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))


def test_components_larger_than_a_device_go_there_in_pieces_and_what_fits_nowhere_is_refused(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(60, 60_000)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    model = streampca.fit(x, n_components=50)
    expected = model.transform(x)
    has(monkeypatch, 711 * MIB)
    found = written(model.write_scores, tmp_path / "x.npy", device=DEVICE)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    found = written(model.write_reconstruction, tmp_path / "x.npy", device=DEVICE)
    np.testing.assert_allclose(found, model.inverse_transform(expected), rtol=1e-4, atol=1e-3)
    message = (
        r"applying 50 components of 60000 features.* needs .* of device 'torch:cpu', and 500 MiB are free. Leave dev"
    )
    has(monkeypatch, 500 * MIB)
    with pytest.raises(BudgetError, match=message):
        model.write_scores(tmp_path / "x.npy", tmp_path / "y.npy", device=DEVICE)
    with pytest.raises(BudgetError, match=message):
        model.transform(x, device=DEVICE)
    with pytest.raises(BudgetError, match=r"memory allows 1.0 MiB"):
        model.write_scores(tmp_path / "x.npy", tmp_path / "y.npy", device=DEVICE, memory="1 MiB")
    with pytest.raises(RequestError, match="for one process; leave out workers"):
        model.write_scores(tmp_path / "x.npy", tmp_path / "y.npy", device=DEVICE, workers=2)


# -- the device's memory


def has(patch, count):
    """Let a device have so many bytes free."""
    patch.setattr("streampca.machine.device_memory", lambda device: count)


def planned(method, free=None, *, of="f4", **how):
    """A plan of 4 components of 20000 large images, or of few larger ones, on a device with so many bytes free."""
    how = {"shape": (1000, 200, 200) if method == "dual" else (20_000, 100, 100), "memory": "8 GiB"} | how
    with pytest.MonkeyPatch.context() as patch:
        has(patch, free)
        where = {} if free is None else {"device": DEVICE}
        return streampca.plan(dtype=of, kind=streampca.PCA(4, method=method), **how, **where)


def test_a_plan_fits_the_device_and_auto_takes_a_method_that_does():
    ample, less = planned("auto", 8 * GIB), planned("auto", 1720 * MIB)
    assert (ample.method, less.method) == ("covariance", "covariance")
    assert GIB < less.device_bytes <= 1720 * MIB < ample.device_bytes <= 8 * GIB
    assert less.product_rows < ample.product_rows
    little = planned("auto", GIB)
    assert little.method == "randomized"
    assert little.device_bytes <= GIB
    assert "of the device, where 1.0 GiB are free" in str(little)
    assert "covariance: on the device it needs 1." in " ".join(str(little).split())
    assert little.to_json()["device_bytes"] == little.device_bytes
    assert "device_bytes" not in planned("auto").to_json()
    tile = planned("dual", 600 * MIB).product_features
    assert tile < planned("dual", 8 * GIB).product_features


def test_a_device_without_enough_memory_is_refused_and_the_remedies_work():
    message = r"'covariance' needs 1\..* GiB of the memory of device 'torch:cpu', and 1.0 GiB are free"
    with pytest.raises(BudgetError, match=f"{message}. Use method 'randomized', which needs .* there, or leave device"):
        planned("covariance", GIB)
    assert planned("randomized", GIB).device_bytes <= GIB
    assert planned("covariance").method == "covariance"
    with pytest.raises(BudgetError, match=r"'randomized' needs .* and 520 MiB are free. Leave device out to multiply"):
        planned("auto", 520 * MIB)
    with pytest.raises(BudgetError, match=r"memory allows 20\.0 MiB"):  # nor does the budget
        planned("covariance", GIB, memory="20 MiB")


def test_a_resumed_fit_has_the_plan_that_it_began_with(tmp_path, monkeypatch):
    """With as little free as a new fit would be cut to, it is refused; with enough it goes on."""
    with pytest.raises(Died):
        saving("covariance", tmp_path / "kept", listener=at_checkpoint(2, die))
    has(monkeypatch, 514 * MIB)
    with pytest.raises(BudgetError, match=r"the fit to resume was planned with .* and 514 MiB are free now; resume it"):
        saving("covariance", tmp_path / "kept")
    assert saving("covariance", None).provenance["plan"]["device_bytes"] <= 514 * MIB
    has(monkeypatch, 600 * MIB)
    assert saving("covariance", tmp_path / "kept").provenance["plan"]["device_bytes"] > 514 * MIB


@pytest.mark.parametrize(
    ("kind", "run", "message"),
    [
        (streampca.PCA(2), {"device": "tpu"}, "'tpu' is not a device"),
        (streampca.PCA(2), {"device": "cuda:99"}, "is not here: torch finds . devices"),
        (streampca.PCA(2), {"device": DEVICE, "workers": 2}, "for one process; leave out workers"),
        (streampca.Isomap(2), {"device": DEVICE}, "'isomap' is not computed on a device"),
    ],
)
def test_what_is_not_multiplied_there_is_refused(kind, run, message):
    with pytest.raises(RequestError, match=message):
        streampca.fit(images("covariance", "f4")[:200], kind, **run)


def test_what_only_the_processor_computes_says_so(tmp_path):
    x = labelled("f4")[:50]
    model = streampca.fit(x, n_components=2, output=tmp_path / "m.zarr")
    for refusing, given in (
        (streampca.hsic, (x, x)),
        (streampca.neighbors, (x,)),
        (streampca.update, (tmp_path / "m.zarr", x)),
        (streampca.write_report, (model, tmp_path / "r.html")),
    ):
        with pytest.raises(RequestError, match=f"{refusing.__name__} computes on the processor only; leave device out"):
            refusing(*given, device=DEVICE)


def test_remedies_are_worded_for_the_command_line(tmp_path):
    np.save(tmp_path / "x.npy", images("covariance", "f4")[:200])
    line = refused("plan", tmp_path / "x.npy", "--workers", "2", "--device", DEVICE, code=2)
    assert line.endswith("; leave out --workers and --cluster.")


def test_sparse_samples_are_refused():
    with pytest.raises(RequestError, match="sparse samples are not multiplied on a device"):
        streampca.fit(sparse.random_array((300, 200), density=0.01, format="csr"), streampca.PCA(2), device=DEVICE)
