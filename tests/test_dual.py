"""Method 'dual': every schedule gives the components that float64 gives, reads what was planned, and cleans up."""

from __future__ import annotations

import math
from dataclasses import replace

import by_options
import judged
import numpy as np
import pytest
from judged import along_samples, angles

import streampca
from streampca.errors import BudgetError, DataError, OutputError, SourceError
from streampca.events import PassStarted, Planned, Warned
from streampca.execution import LocalExecutor
from streampca.fitting.methods import METHODS, Job
from streampca.planning import make_plan
from streampca.planning.blocks import Span, blocks_of
from streampca.preprocessing import Preparation, Prepared
from streampca.preprocessing.sizes_for_planning import problem_of
from streampca.readers import Chunks, Collection, Storage
from streampca.units import MIB

SCHEDULES = ("sweep", "scratch")


class Counted(Collection):
    """An array stored in chunks, that counts what decoding them would take."""

    def __init__(self, array, chunk_samples=1, chunk_features=None):
        self.source, self.shape, self.dtype = "counted", array.shape, array.dtype
        self._rows = array.reshape(len(array), -1)
        self.storage = Storage(Chunks(chunk_samples, chunk_features or self._rows.shape[1]))
        self.decoded = 0

    def read(self, rows, features=None):
        features = features or slice(0, self.n_features)
        touched = 1
        for part, cut, length in zip((rows, features), self.chunks, self._rows.shape, strict=True):
            if part.stop > part.start:
                touched *= min(-(-part.stop // cut) * cut, length) - part.start // cut * cut
        self.decoded += touched * self.dtype.itemsize
        return self._rows[rows, features].copy()


def images(dtype="f4", n=60, shape=(20, 45), offset=0.0, seed=0):
    """More pixels than images, a decaying spectrum, and noise."""
    rng = np.random.default_rng(seed)
    strengths = 1.5 ** -np.arange(20)
    x = (rng.normal(size=(n, 20)) * strengths) @ rng.normal(size=(20, math.prod(shape)))
    x = (x + 0.01 * rng.normal(size=x.shape)).reshape(n, *shape)
    if np.dtype(dtype).kind in "iu":
        return np.clip(np.rint(25 * x + 128), 0, 255).astype(dtype)
    return (x + offset).astype(dtype)


def truth(x, weights=None):
    """Mean, variances and components in float64."""
    right = judged.truth(x, weights)
    return right.mean, right.values, right.vectors


def plan_of(collection, schedule, k=10, memory=64 * MIB, **cut):
    """A plan of one schedule, cut small, so that there are many ranges."""
    problem = problem_of(collection)
    request = by_options.request(k, "dual", memory, output=True, **cut.pop("request", {}))
    plan = make_plan(problem, request)
    spans = (Span(0, 512), Span(512, problem.n_features))
    cut = {"block_rows": 7, "block_features": 256, "spans": spans, **cut}
    return replace(plan, schedule=schedule, product_features=100, bytes_written=collection.nbytes, **cut)


def run(x, schedule, tmp_path, weights=None, events=None, **options):
    collection = x if isinstance(x, Collection) else Prepared(streampca.open_collection(x), Preparation())
    plan = plan_of(collection, schedule, **options)
    listener = (lambda event: None) if events is None else events.append
    scratch = str(tmp_path / "copy.scratch")
    found = METHODS["dual"](Job(collection, plan, LocalExecutor(), weights=weights, scratch=scratch, listener=listener))
    assert not (tmp_path / "copy.scratch").exists()
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("dtype", "offset", "allowed"),
    [("u1", 0.0, 1e-11), ("f4", 0.0, 1e-7), ("f4", 1e4, 1e-5), ("f8", 1e4, 1e-9), ("i2", 0.0, 1e-11)],
)
def test_every_schedule_gives_what_float64_gives(schedule, dtype, offset, allowed, tmp_path):
    x = images(dtype, offset=offset)
    mean, variances, components = truth(x)
    for precision in ("auto",) if dtype == "f8" else ("auto", "single"):
        found = run(x, schedule, tmp_path, request={"precision": precision})
        np.testing.assert_allclose(found.explained_variance, variances[:10], rtol=allowed)
        assert found.total_variance == pytest.approx(variances.sum(), rel=max(allowed, 1e-7))
        np.testing.assert_allclose(found.mean, mean, rtol=1e-7, atol=1e-7)
        kept = found.components.astype(np.float64)
        np.testing.assert_allclose(kept @ kept.T, np.eye(10), atol=2e-6)
        residual = (kept @ components.T * variances) @ components - found.explained_variance[:, None] * kept
        size = np.linalg.norm(residual, axis=1) / found.explained_variance
        assert np.all(size <= np.maximum(found.residual_bound, 1e-12))
        assert np.all(kept[np.arange(10), np.argmax(np.abs(kept), axis=1)] > 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_range_that_holds_all_is_read_once(schedule, tmp_path):
    counted = Counted(images())
    events = []
    found = run(counted, schedule, tmp_path, events=events, block_features=900, spans=(Span(0, 900),))
    np.testing.assert_allclose(found.explained_variance, truth(images())[1][:10], rtol=1e-7)
    assert counted.decoded == counted.nbytes
    started = [event for event in events if isinstance(event, PassStarted)]
    assert [event.of for event in started] == [len(started)] * len(started)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_repeated_images_have_the_rank_of_what_is_repeated(schedule, kind, tmp_path):
    x = np.repeat(images(kind, n=12), 5, axis=0)
    events = []
    found = run(x, schedule, tmp_path, k=30, events=events, request={"precision": "single"})
    assert len(found.explained_variance) == 11
    np.testing.assert_allclose(found.explained_variance, truth(x)[1][:11], rtol=1e-6)
    assert np.isfinite(found.components).all()
    assert any("spans 11 dimensions" in event.message for event in events if isinstance(event, Warned))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights_are_copies(schedule, tmp_path):
    x, copies = images("f8"), np.random.default_rng(1).integers(0, 4, 60).astype(np.float64)
    found = run(x, schedule, tmp_path, weights=copies)
    mean, variances, _ = truth(x, copies)
    np.testing.assert_allclose(found.explained_variance, variances[:10], rtol=1e-10)
    np.testing.assert_allclose(found.mean, mean, atol=1e-12)
    assert (found.n_samples, found.total_weight) == (np.count_nonzero(copies), copies.sum())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ((41, 3, 4), r"sample 41 of numpy array holds NaN"),
        (np.s_[:, :4], r"NaN or infinity in 180 of its 900 features.*mask=.valid"),  # counted over the whole sample
    ],
)
def test_a_sample_that_is_no_number_is_named_and_nothing_is_left(schedule, missing, said, tmp_path):
    x = images()
    x[missing] = np.nan
    with pytest.raises(DataError, match=said):
        run(x, schedule, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equal_images_are_refused(schedule, tmp_path):
    with pytest.raises(DataError, match="no variance"):
        run(np.broadcast_to(images()[3], (60, 20, 45)), schedule, tmp_path)


def test_a_source_that_fails_leaves_no_copy(tmp_path):
    class Fails(Counted):
        def read(self, rows, features=None):
            if rows.start >= 28:
                raise SourceError("counted cannot be read; check it.")
            return super().read(rows, features)

    with pytest.raises(SourceError):
        run(Fails(images()), "scratch", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_copy_has_no_name_that_a_kill_could_leave(tmp_path):
    """From the first read of it on, its folder is empty; only the open file keeps it."""
    seen = []

    def look(event):
        if isinstance(event, PassStarted):
            seen.append((event.label, list(tmp_path.iterdir())))

    counted = Counted(images())
    METHODS["dual"](
        Job(counted, plan_of(counted, "scratch"), LocalExecutor(), scratch=str(tmp_path / "c"), listener=look)
    )
    assert [label for label, _ in seen] == ["scratch copy", "Gram matrix", "components"]
    assert not any(left for _, left in seen)


def test_two_runs_to_one_place_keep_their_copies_apart(tmp_path):
    found = {}
    inner = Counted(100 * images())

    def other(event):
        if isinstance(event, PassStarted) and event.label == "Gram matrix" and not found:
            found["inner"] = None
            found["inner"] = run(inner, "scratch", tmp_path)

    counted = Counted(images())
    scratch = str(tmp_path / "copy.scratch")
    outer = METHODS["dual"](Job(counted, plan_of(counted, "scratch"), LocalExecutor(), scratch=scratch, listener=other))
    np.testing.assert_allclose(outer.explained_variance * 1e4, found["inner"].explained_variance, rtol=1e-5)


def test_a_folder_for_scratch_copies_that_is_none_is_refused(tmp_path):
    for place in (tmp_path / "none", ""):
        with pytest.raises(OutputError, match="is not a folder"):
            streampca.fit(images(), scratch=place)


def test_a_copy_that_does_not_fit_the_disk_is_refused_before_reading(tmp_path):
    counted = Counted(images())
    plan = replace(plan_of(counted, "scratch"), bytes_written=2**60)
    with pytest.raises(OutputError, match=r"scratch copy .* free some space, or choose another folder by scratch="):
        METHODS["dual"](Job(counted, plan, LocalExecutor(), scratch=str(tmp_path / "x.scratch")))
    assert counted.decoded == 0


# -- through the front door


def planned(events):
    return next(event.plan for event in events if isinstance(event, Planned))


@pytest.mark.parametrize(
    ("chunks", "memory"),
    [((1, None), "32 MiB"), ((4, None), "34 MiB"), ((1, 100), "34 MiB"), ((1, 100), "64 MiB"), ((60, 64), "32 MiB")],
)
def test_bytes_read_are_as_planned(chunks, memory, tmp_path):
    """Whatever the plan chooses, by a reader that counts decoded chunks."""
    x = np.repeat(images("u1", shape=(90, 300)), 4, axis=0) + np.arange(240, dtype="u1")[:, None, None]
    counted = Counted(x, *chunks)
    events = []
    streampca.fit(counted, n_components=5, memory=memory, output=tmp_path / "m.zarr", listener=events.append)
    plan = planned(events)
    assert counted.decoded + copied_back(plan) == plan.bytes_read


def copied_back(plan):
    """Return the bytes read of a scratch copy: all of it once, and again except for the range still in memory."""
    p, width = plan.problem.n_features, plan.block_features
    again = 0 if width >= p else p if plan.stored else (p - 1) // width * width
    return plan.bytes_written * (p + again) // p


@pytest.mark.slow
def test_components_that_fit_no_memory_go_to_the_output(tmp_path):
    x = images("f4", n=120, shape=(200, 300))
    plan = streampca.plan(x, streampca.PCA(100, method="dual"), memory="68 MiB", output=tmp_path / "m.zarr")
    assert plan.stored
    model = streampca.fit(x, streampca.PCA(100, method="dual"), memory="68 MiB", output=tmp_path / "m.zarr")
    assert not isinstance(model.components, np.ndarray)
    centred = x.reshape(120, -1).astype(np.float64) - x.reshape(120, -1).mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(centred @ centred.T)  # an SVD of so many features takes longer than the fit
    np.testing.assert_allclose(model.explained_variance, values[::-1][:100] / 119, rtol=1e-9)
    components = (vectors[:, ::-1][:, :20] / np.sqrt(values[::-1][:20])).T @ centred
    overlap = np.abs(np.sum(np.asarray(model.components)[:20].reshape(20, -1) * components, axis=1))
    np.testing.assert_allclose(overlap, 1, atol=1e-9)
    again = streampca.load(tmp_path / "m.zarr", memory="1 GiB")
    np.testing.assert_array_equal(np.asarray(again.components), np.asarray(model.components))


def test_without_an_output_they_are_refused_with_a_remedy(tmp_path):
    x = images("f4", n=120, shape=(200, 300))
    with pytest.raises(BudgetError, match=r"an output \(output=\.\.\.\) to write"):
        streampca.fit(x, n_components=100, memory="60 MiB")


# -- all components


def decaying(decay, n=120, p=1500):
    """Images whose deviations along orthogonal directions fall as `decay` does."""
    rng = np.random.default_rng(3)
    return (np.linalg.qr(rng.normal(size=(n, n)))[0] * decay(np.arange(1, n + 1))) @ rng.normal(size=(n, p))


DECAYS = {
    "even": lambda i: np.ones(len(i)),
    "1/i^2": lambda i: i**-2.0,
    "0.8^i": lambda i: 0.8**i,
}


def off(components):
    """How far components are from orthonormal."""
    rows = components.reshape(len(components), -1).astype(np.float64)
    return np.abs(rows @ rows.T - np.eye(len(rows))).max()


@pytest.mark.parametrize(
    ("method", "precision", "dtype"),
    [
        ("dual", "single", "f4"),
        ("dual", "double", "f8"),
        ("randomized", "single", "f8"),
        ("randomized", "double", "f4"),
    ],
)
@pytest.mark.parametrize("decay", DECAYS)
def test_components_of_any_variance_are_orthonormal(decay, method, precision, dtype, monkeypatch):
    """Rounding of what makes components of little variance lies along those of much, and is magnified."""
    along_samples(monkeypatch)
    x = decaying(DECAYS[decay]).astype(dtype)
    found = streampca.fit(x, streampca.PCA(None if method == "dual" else 20, method=method, precision=precision))
    assert off(found.components) <= (1e-6 if precision == "single" else 1e-12)
    assert np.all(judged.residuals(found, judged.truth(x)) <= found.residual_bound)
    if method == "dual" and precision == "double":  # they are right as well
        assert np.all(found.residual_bound <= 1e-13 * found.explained_variance[0] / found.explained_variance)


class Memory:
    """Takes components as they are made, and keeps them in memory."""

    identity, resumed = "some", False

    def __init__(self, count, dtype, p):
        self.components, self._p = np.zeros((count, p), dtype), p

    def ranges(self, most_features):
        return list(blocks_of(Span(0, self._p), 400))

    def write(self, features, values):
        self.components[:, slice(*features)] = values

    def read(self, features):
        return self.components[:, slice(*features)].copy()

    def sync(self):
        pass


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("decay", DECAYS)
def test_components_that_are_written_at_once_are_orthonormal_or_left_out(decay, precision):
    x, events, sinks = decaying(DECAYS[decay]).astype("f4"), [], []
    collection = Prepared(streampca.open_collection(x), Preparation())
    plan = plan_of(collection, "sweep", k=None, request={"precision": precision})

    def sink(count, dtype, begun):
        sinks.append(Memory(count, dtype, collection.n_features))
        return sinks[-1]

    job = Job(collection, replace(plan, stored=True), LocalExecutor(), listener=events.append, sink=sink)
    found = replace(METHODS["dual"](job), components=sinks[0].components)
    assert off(found.components) <= 1e-6
    assert np.all(judged.residuals(found, judged.truth(x)) <= found.residual_bound)
    left_out = [event.message for event in events if isinstance(event, Warned)]
    least = 1e-3 if precision == "single" else 1e-9
    assert np.all(found.explained_variance > least * found.explained_variance[0])
    count = np.count_nonzero(truth(x)[1] > 1e-12 * found.explained_variance[0])
    assert bool(left_out) == (len(found.explained_variance) < min(count, len(x) - 1))
    assert all("are not orthogonal to the others" in message for message in left_out)


@pytest.mark.parametrize("decay", [0.9, 0.7])
def test_storage_in_float32_is_no_error_of_variances(decay):
    """Bounds on variances are those of components before rounding, and the rounding is not divided by gaps.

    Components of small variance (a decay of 0.7) are made orthogonal after they were rounded.
    """
    rng = np.random.default_rng(0)
    rows, turn = rng.standard_normal((60, 60)), np.linalg.qr(rng.standard_normal((300, 60)))[0].T
    x = ((rows * decay ** np.arange(60)) @ turn + 3).astype(np.float32)
    found = streampca.fit(x, streampca.PCA(8, method="dual"))
    centred = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    _, sizes, vectors = np.linalg.svd(centred, full_matrices=False)
    values, vectors = sizes[:8] ** 2 / 59, vectors[:8]
    assert np.all(np.abs(values / found.explained_variance - 1) <= found.error_bound)
    assert found.components.dtype == np.float32
    assert (found.error_bound * found.explained_variance).max() < 1e-13 * found.explained_variance[0]
    assert np.all(angles(found.components, vectors) <= found.angle_bound)
    assert found.angle_bound.max() < 4e-7
