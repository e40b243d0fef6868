"""Plans of method 'dual': which schedule, what it reads, what it holds, and what is said when nothing fits."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from itertools import pairwise, product
from types import SimpleNamespace

import by_options
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from planned import PROBLEMS, in_files, in_one_file, plan_of, problem, unwrapped

import streampca
from streampca.errors import BudgetError, RequestError
from streampca.fitting import calibration
from streampca.fitting.calibration import calibrated
from streampca.planning import make_plan
from streampca.planning.blocks import Span, blocks_of
from streampca.planning.by_features import SCHEDULES, WORTH_CHANGING
from streampca.planning.decoding import read_boxes
from streampca.planning.rates import RATES, Rates
from streampca.preprocessing import Prepared
from streampca.preprocessing.sizes_for_planning import problem_of
from streampca.readers import Chunks, Storage
from streampca.units import GIB, MIB, format_seconds


def test_sweeps_that_decode_again_say_so():
    plan = plan_of("sweep", PROBLEMS["1 GB, in files"], by_options.request(50, memory=512 * MIB))
    assert "every storage chunk is decoded about 3 times in each pass" in unwrapped(str(plan))


# -- bytes read, exactly


def boxes_read(plan):
    """Every box that a plan reads of its collection, as (samples, features)."""
    layout = plan.problem
    n, p = layout.n_samples, layout.n_features
    blocks = list(blocks_of(Span(0, n), plan.block_rows))
    if plan.schedule == "scratch":
        return [(rows, Span(0, p)) for rows in blocks]
    ranges = list(blocks_of(Span(0, p), plan.block_features))
    again = ranges if plan.stored and len(ranges) > 1 else ranges[:-1]  # the last is in memory still
    return [(rows, features) for features in ranges + again for rows in blocks]


def bytes_decoded(layout, rows, features):
    """Return the bytes of the chunks that a box touches."""

    def out(span, cut, length):
        return min(-(-span.stop // cut) * cut, length) - span.start // cut * cut

    samples = out(rows, layout.chunk_samples, layout.n_samples)
    return samples * out(features, layout.chunk_features, layout.n_features) * layout.row_bytes // layout.n_features


def bytes_kept(layout, boxes):
    """Return the bytes decoded for boxes one after another, of each the chunks in order, where the last one is kept."""
    total, kept = 0, None
    for box in boxes:
        cuts = layout.chunk_samples, layout.chunk_features
        touched = (range(side.start // cut, -(-side.stop // cut)) for side, cut in zip(box, cuts, strict=True))
        for at in product(*touched):
            spans = [Span(number * cut, number * cut + 1) for number, cut in zip(at, cuts, strict=True)]
            total += 0 if at == kept else bytes_decoded(layout, *spans)
            stops = zip(at, cuts, (layout.n_samples, layout.n_features), box, strict=True)
            ends = all(min((number + 1) * cut, length) <= side.stop for number, cut, length, side in stops)
            kept = None if ends else at
    return total


@given(
    n=st.integers(10, 400),
    shape=st.sampled_from([(40, 50), (64, 512), (300, 300)]),
    chunk=st.tuples(st.sampled_from([1, 7, 50, 400]), st.sampled_from([1, 100, 1024, 5000, None])),
    memory=st.integers(20, 200),
    schedule=st.sampled_from(SCHEDULES),
    encoded=st.booleans(),
    keeps=st.booleans(),
)
def test_bytes_read_are_those_of_the_boxes_read(n, shape, chunk, memory, schedule, encoded, keeps):
    p = int(np.prod(shape))
    cut = {"chunk_samples": min(chunk[0], n), "chunk_features": chunk[1] or p}
    keeps &= cut["chunk_features"] >= 1000  # of large chunks only
    layout = problem(n, shape, "f4", encoded=encoded, keeps=keeps, **cut)
    plan = plan_of(schedule, layout, by_options.request(5, memory=memory * MIB, scratch="/fast"))
    if plan is None:
        return
    again = (p - 1) // plan.block_features * plan.block_features
    copied = n * (p + again) * 4 if schedule == "scratch" else 0
    apart = sum(bytes_decoded(layout, *box) for box in boxes_read(plan))
    if not keeps:
        assert plan.bytes_read - copied == apart
    elif layout.chunk_features >= p:
        assert plan.bytes_read - copied == bytes_kept(layout, boxes_read(plan))
    else:  # not counted on where a chunk holds neither whole samples nor all of them
        assert bytes_kept(layout, boxes_read(plan)) <= plan.bytes_read - copied <= apart


def test_prepared_samples_are_read_whole():
    layout = replace(problem(100, (10, 10), "f8", chunk_samples=3), row_bytes=50_000, prepared_bytes=800)
    assert read_boxes(layout, 3, 40).bytes == 3 * 100 * 50_000


# -- soundness, and what more memory does


@pytest.mark.parametrize("name", ["satellite tiles", "climate, a map a chunk"])
def test_room_for_a_dense_solve_is_not_bought_with_time(name):
    """It is taken where there is memory for it; but the ranges for which little is left then are read many times."""
    plans = [plan_of("sweep", PROBLEMS[name], by_options.request(50, "dual", size * GIB)) for size in range(5, 200, 8)]
    plans = [plan for plan in plans if plan is not None]
    assert not plans[0].dense_room
    assert plans[-1].dense_room == 50
    for less, more in pairwise(plans):
        assert more.seconds <= less.seconds / WORTH_CHANGING


@pytest.mark.parametrize("method", ["auto", "dual"])
def test_an_output_is_a_remedy_that_works(method):
    """Where components alone do not fit, this very memory does with an output."""
    layout, request = PROBLEMS["1 GB, one file"], by_options.request(300, method, 256 * MIB)
    enough = r"; or give an output \(output=\.\.\.\) to write components to: this memory is then enough\."
    with pytest.raises(BudgetError, match=enough):
        make_plan(layout, request)
    plan = make_plan(layout, replace(request, output=True))
    assert plan.stored
    assert plan.memory_estimate.total <= request.memory


def test_smaller_samples_are_a_remedy_that_works():
    layout = PROBLEMS["microscope frames, floats"]
    with pytest.raises(BudgetError, match=r"or make the samples smaller \(resize, bin, crop or mask\)"):
        make_plan(layout, by_options.request(50, memory=256 * MIB))
    assert make_plan(in_files(1000, (256, 256), "f4"), by_options.request(50, memory=256 * MIB)).method == "dual"


def test_making_rounding_good_is_in_the_memory_estimate():
    """Many components: products with one another are several matrices of k x k, when the data are gone."""
    plan = make_plan(in_one_file(6000, (80, 80), "f4"), by_options.request(3000, "dual", 4 * GIB))
    items = next(dict(phase.items) for phase in plan.memory_estimate.phases if phase.name == "polish")
    assert items["products of components, 3000 x 3000 float64"] == 6 * 8 * 3000**2
    assert items["3000 components"] == 3000 * 6400 * 8
    written = make_plan(PROBLEMS["1 GB, one file"], by_options.request(300, "dual", 256 * MIB, output=True))
    assert "polish" not in [phase.name for phase in written.memory_estimate.phases]


# -- what is chosen


def test_methods_are_chosen_by_what_they_take():
    """Few samples: dual; many: covariance; where p is a little more than n, whichever reads and multiplies less."""
    memory = 4 * GIB
    assert make_plan(in_one_file(400, (100, 100)), by_options.request(20, memory=memory)).method == "dual"
    assert make_plan(in_one_file(40_000, (100, 100)), by_options.request(20, memory=memory)).method == "covariance"
    assert make_plan(in_one_file(40_000, (100, 100)), by_options.request(20, "dual", 64 * GIB)).method == "dual"


def test_a_method_that_was_asked_for_is_taken():
    for method in ("covariance", "dual", "randomized"):
        plan = make_plan(in_one_file(400, (50, 50)), by_options.request(20, method, GIB))
        assert plan.method == method
        assert all(name.startswith("dual") == (method == "dual") for name, _ in plan.rejected)


def test_evidence_needs_a_spectrum():
    with pytest.raises(RequestError, match="needs the whole spectrum, which method 'randomized' does not find"):
        make_plan(PROBLEMS["digits"], by_options.request("mle", "randomized"))
    assert make_plan(PROBLEMS["digits"], by_options.request("mle", memory=GIB)).method == "covariance"


def test_components_of_an_open_number_get_what_room_there_is():
    few, many = (
        make_plan(PROBLEMS["1 GB, one file"], by_options.request(0.9, memory=size * MIB)) for size in (512, 4096)
    )
    assert few.room < many.room <= 999
    assert make_plan(PROBLEMS["1 GB, one file"], by_options.request(0.9, memory=512 * MIB, output=True)).room == 999


# -- from real storage


@pytest.fixture
def opened(tmp_path):
    """Compressed chunks across features."""
    images = np.random.default_rng(0).random((32, 64, 64), dtype=np.float32)
    return streampca.open_collection(zarr.create_array(tmp_path / "x.zarr", data=images, chunks=(8, 8, 64)))


def test_problems_know_how_storage_is_cut(opened):
    for collection in (opened, Prepared(opened, streampca.Preparation())):
        found = problem_of(collection)
        assert (found.chunk_samples, found.chunk_features, found.encoded, found.is_prepared) == (8, 512, True, False)
    found = problem_of(Prepared(opened, streampca.Preparation(bin=2)))
    assert (found.chunk_samples, found.chunk_features, found.encoded, found.is_prepared) == (8, 1024, True, True)


# -- calibration


def test_calibration_changes_the_time_and_nothing_else(opened):
    opened = Prepared(opened, streampca.Preparation())
    plan = make_plan(problem_of(opened), by_options.request(5, memory=256 * MIB))
    began = time.process_time()
    found = calibrated(plan, opened)
    assert time.process_time() - began < 5  # a fraction of a second on an idle machine
    assert found == plan
    times = {"seconds": 0, "rejected": []}
    assert found.to_json() | times == plan.to_json() | times
    assert 0 < found.seconds < 60


def test_what_is_rejected_is_priced_by_the_rates_of_what_is_chosen(monkeypatch):
    """At a hundredth of all rates everything takes a hundred times as long."""
    plan = make_plan(PROBLEMS["faces in files"], by_options.request(5, memory=GIB, scratch="/fast"))
    rates = Rates(**{each.name: getattr(RATES, each.name) / 100 for each in fields(RATES)})
    monkeypatch.setattr(calibration, "_computing_rates", lambda cores: rates)
    monkeypatch.setattr(calibration, "_with_reading", lambda rates, plan, collection: rates)
    slow = calibrated(plan, None)
    assert slow.seconds == pytest.approx(100 * plan.seconds)
    slower = {each.name: each.plan.seconds for each in plan.others if each.plan is not None}
    assert slower
    for name, seconds in slower.items():
        assert f"about {format_seconds(seconds)}," in dict(plan.rejected)[name]
        assert f"about {format_seconds(100 * seconds)}," in dict(slow.rejected)[name]
    assert not {"others", "rates"} & plan.to_json().keys()


def test_a_slow_source_is_predicted_to_be_slow(monkeypatch):
    """Reading takes five milliseconds a sample by the test's own clock."""
    now = 0.0

    class Slow(streampca.Collection):
        source, shape, dtype, storage = "slow", (200, 16, 16), np.dtype("f4"), Storage(Chunks(1, 256), encoded=True)

        def read(self, rows, features=None):
            nonlocal now
            now += 0.005 * (rows.stop - rows.start)
            return np.ones((rows.stop - rows.start, 256), "f4")

    opened = Prepared(Slow(), streampca.Preparation())
    plan = make_plan(problem_of(opened), by_options.request(5, "covariance", 256 * MIB))
    assert plan.seconds < 0.3
    monkeypatch.setattr(calibration, "_computing_rates", lambda cores: RATES)
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: now))
    assert 1 <= calibrated(plan, opened).seconds < 1.3
