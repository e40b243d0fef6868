"""Plans: integers in, decisions out; what does not fit is refused with a remedy that works."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca.errors import BudgetError, RequestError
from streampca.events import Warned
from streampca.execution import SerialExecutor
from streampca.fitting.methods import Job
from streampca.fitting.methods.covariance import fit_covariance
from streampca.planning import DENSE_FEATURES, Plan, least_memory, make_plan, plan_application
from streampca.planning.blocks import Span, blocks_of
from streampca.planning.request import Machine, Problem, Request
from streampca.preprocessing import Prepared
from streampca.preprocessing.problem import problem_of
from streampca.units import GIB, MIB, budget_size, parse_bytes

MACHINE = Machine(2, 16 * GIB)


def problem(n, shape, dtype="u1", **storage):
    kind = np.dtype(dtype)
    p = int(np.prod(shape))
    return Problem(n, p, shape, p * kind.itemsize, kind.itemsize, kind.kind, **{"machine": MACHINE, **storage})


LAYOUTS = {
    "digits": problem(60000, (28, 28)),
    "faces, a file each": problem(400, (112, 92)),
    "thumbnails in zarr": problem(1_000_000, (64, 64), chunk_samples=1000, decode_bytes=100 * MIB),
    "climate, a map a chunk": problem(30_000, (60, 100), "f4", chunk_samples=1, decode_bytes=1 * MIB),
    "large chunks": problem(200_000, (32, 32), "u2", chunk_samples=50_000, decode_bytes=110 * MIB),
    "raw doubles": problem(5_000, (30, 40), "f8"),
    "tiny": problem(20, (3,), "f8"),
    "more samples than features": problem(12_000, (112, 92)),
}

SNAPSHOTS = {
    ("digits", 0.95, "1GiB"): "single dense, blocks of 10699, products of 2048, room for 784, 2 spans, 47040000 B read",
    ("digits", 50, "32MiB"): "single dense, blocks of 5349, products of 1337, room for 50, 1 span, 47040000 B read",
    ("more samples than features", 50, "2GiB"): (
        "single lanczos, blocks of 2442, products of 2048, room for 50, 1 span, 123648000 B read"
    ),
    ("thumbnails in zarr", 50, "1GiB"): (
        "single lanczos, blocks of 6000, products of 2048, room for 50, 1 span, 4096000000 B read"
    ),
    ("climate, a map a chunk", 0.9, "1GiB"): (
        "single lanczos, blocks of 1048, products of 1048, room for 4183, 1 span, 720000000 B read"
    ),
    ("large chunks", 20, "256MiB"): (
        "single dense, blocks of 16384, products of 2048, room for 20, 1 span, 1638400000 B read"
    ),
    ("raw doubles", None, "256MiB"): (
        "double dense, blocks of 2621, products of 2048, room for 1200, 1 span, 48000000 B read"
    ),
}


def in_short(plan: Plan) -> str:
    spans = "1 span" if len(plan.spans) == 1 else f"{len(plan.spans)} spans"
    return (
        f"{plan.precision} {plan.solver}, blocks of {plan.block_rows}, products of {plan.product_rows}, "
        f"room for {plan.room}, {spans}, {plan.bytes_read} B read"
    )


@pytest.mark.parametrize(("name", "wanted", "memory"), SNAPSHOTS)
def test_decisions_on_real_layouts(name, wanted, memory):
    """A change here is a change of what users get: mean it, then write it down."""
    plan = make_plan(LAYOUTS[name], Request(wanted, memory=parse_bytes(memory)))
    assert in_short(plan) == SNAPSHOTS[name, wanted, memory]


def test_a_plan_in_words():
    text = str(make_plan(LAYOUTS["digits"], Request(50, memory=32 * MIB)))
    for line in (
        "collection  60000 samples of 28 x 28, 44.9 MiB",
        "method      covariance: the 784 x 784 scatter matrix fits the budget; exact, in one pass",
        "not dual: 60000 samples are no fewer than 784 features",
        "reading     1 pass, 44.9 MiB in blocks of 5349 samples",
        "of 32.0 MiB allowed (as asked)",
        "4.7 MiB  scatter matrix, 784 x 784 float64",
    ):
        assert line in text


def test_chunks_decoded_again_are_counted_and_said():
    plan = make_plan(LAYOUTS["large chunks"], Request(20, memory=256 * MIB))
    touched = sum(-(-block.stop // 50_000) - block.start // 50_000 for block in blocks_of(Span(0, 200_000), 16_384))
    assert plan.bytes_read == touched * 50_000 * 2048
    assert "each is decoded about 4 times" in str(plan)
    whole = make_plan(LAYOUTS["large chunks"], Request(20, memory=2 * GIB))
    assert whole.block_rows % 50_000 == 0
    assert whole.bytes_read == 200_000 * 2048


# -- a plan is a value


@pytest.mark.parametrize("name", LAYOUTS)
def test_equal_requests_make_equal_plans(name):
    one = make_plan(LAYOUTS[name], Request(2, memory=2 * GIB))
    other = make_plan(replace(LAYOUTS[name]), Request(2, memory=2 * GIB))
    assert one == other
    assert hash(one) == hash(other)
    assert one != make_plan(LAYOUTS[name], Request(1, memory=2 * GIB))
    with pytest.raises(AttributeError):
        one.block_rows = 1


def test_a_plan_is_plain_data():
    plan = make_plan(LAYOUTS["digits"], Request(50, memory=1 * GIB))
    data = json.loads(json.dumps(plan.to_json()))
    assert data == plan.to_json()
    assert data["bill_total"] == plan.memory_estimate.total
    assert data["request"]["n_components"] == 50
    assert sum(data["bill"][plan.memory_estimate.largest.name].values()) == plan.memory_estimate.total


@given(
    n=st.integers(2, 10**8),
    p=st.integers(1, 3000),
    dtype=st.sampled_from(["u1", "u2", "i4", "f4", "f8"]),
    chunk=st.integers(1, 10**5),
    memory=st.integers(1, 4096),
    wanted=st.sampled_from([1, 10, 0.5, 0.99, None]),
)
def test_every_plan_is_sound_or_refused(n, p, dtype, chunk, memory, wanted):
    """Within the budget; blocks cover every sample once; whole storage chunks where one fits."""
    layout = problem(n, (p,), dtype, chunk_samples=min(chunk, n), decode_bytes=min(chunk, n) * p)
    request = Request(wanted if wanted != 10 else min(10, layout.most_components), memory=memory * MIB)
    try:
        plan = make_plan(layout, request)
    except BudgetError as error:
        least = remedy(error)
        assert least > memory * MIB
        assert make_plan(layout, replace(request, memory=least)).memory_estimate.total <= least
        return
    if plan.method != "covariance":
        assert plan.memory_estimate.total <= plan.memory == memory * MIB
        return
    assert plan.memory_estimate.total <= plan.memory == memory * MIB
    assert 1 <= plan.product_rows <= max(64, plan.block_rows)
    assert plan.spans[0].start == 0
    assert plan.spans[-1].stop == n
    assert 1 <= plan.room <= layout.most_components
    assert plan.bytes_read >= n * layout.row_bytes
    rows, whole = plan.block_rows, layout.chunk_samples
    assert rows >= n or rows % whole == 0 or rows < whole
    assert rows * layout.row_bytes <= max(plan.memory // 4, layout.row_bytes)


def test_blocks_end_where_chunks_do():
    plan = make_plan(LAYOUTS["thumbnails in zarr"], Request(50, memory=1 * GIB))
    assert plan.block_rows % 1000 == 0
    for span in plan.spans:
        assert all(block.stop % 1000 == 0 for block in blocks_of(span, plan.block_rows))


def test_precision_follows_the_dtype():
    for dtype, expected in {
        "b1": "single", "u1": "single", "i2": "single", "f2": "single", "f4": "single", "i4": "double", "f8": "double"
    }.items():  # fmt: skip
        layout = problem(10**7, (20,), dtype)
        assert make_plan(layout, Request(2, memory=GIB)).precision == expected
        assert make_plan(problem(1000, (20,), dtype), Request(2, memory=GIB)).precision == "double"  # costs nothing
        assert make_plan(layout, Request(2, memory=GIB, precision="double")).precision == "double"
        assert make_plan(layout, Request(2, memory=GIB, precision="single")).precision == "single"


def test_solver_follows_p_and_k():
    wide = problem(10**6, (DENSE_FEATURES + 1,))
    assert make_plan(wide, Request(50, memory=4 * GIB)).solver == "lanczos"
    assert make_plan(wide, Request(1000, memory=4 * GIB)).solver == "dense"
    assert make_plan(wide, Request(None, memory=4 * GIB)).solver == "dense"
    assert make_plan(problem(10**6, (DENSE_FEATURES,)), Request(50, memory=4 * GIB)).solver == "dense"


def test_default_budget_is_said():
    plan = make_plan(LAYOUTS["digits"], Request(10))
    assert plan.memory > 0
    assert re.match("half of (physical memory|the control group's limit|SLURM's allotment)", plan.budget_source)


# -- refusals


def remedy(error):
    found = re.search(r"Set memory to at least (\d+MiB)", str(error))
    assert found, str(error)
    assert "\n" not in str(error)
    return parse_bytes(found[1])


@pytest.mark.parametrize("wanted", [50, 0.95, None])
@pytest.mark.parametrize(
    "name", ["digits", "more samples than features", "thumbnails in zarr", "climate, a map a chunk", "large chunks"]
)
def test_a_refusal_says_what_would_do(name, wanted):
    """That much is accepted, and one MiB less is not."""
    request = Request(wanted, method="covariance", memory=MIB)
    with pytest.raises(
        BudgetError, match=r"^method 'covariance' needs .* and memory allows 1.0 MiB \(as asked\)"
    ) as caught:
        make_plan(LAYOUTS[name], request)
    least = remedy(caught.value)
    assert least_memory(LAYOUTS[name], request) <= least
    assert make_plan(LAYOUTS[name], replace(request, memory=least)).memory_estimate.total <= least
    with pytest.raises(BudgetError):
        make_plan(LAYOUTS[name], replace(request, memory=least - MIB))


@given(p=st.integers(10, 5000), wanted=st.sampled_from([5, 0.9]), extra=st.integers(0, 300))
def test_more_memory_is_never_refused(p, wanted, extra):
    layout = problem(10**6, (p,), chunk_samples=700, decode_bytes=3 * 700 * p)
    try:
        make_plan(layout, Request(wanted, memory=MIB))
    except BudgetError as error:
        make_plan(layout, Request(wanted, memory=remedy(error) + extra * MIB))


def test_applying_is_refused_with_what_would_do():
    sizes = {"n_features": 4096, "n_components": 500, "component_itemsize": 4, "out_bytes": 2000}
    layout = LAYOUTS["thumbnails in zarr"]
    with pytest.raises(BudgetError, match="applying 500 components of 4096 features needs") as caught:
        plan_application(problem=layout, memory=20 * MIB, **sizes)
    least = remedy(caught.value)
    found = plan_application(problem=layout, memory=least, **sizes)
    assert found.block_rows >= 1
    assert found.memory_estimate.total <= least
    with pytest.raises(BudgetError):
        plan_application(problem=layout, memory=least - MIB, **sizes)


@pytest.mark.parametrize("memory", [64, 200, 4096])
@pytest.mark.parametrize("out_bytes", [8, 200, 4096 * 8])
def test_applying_keeps_to_its_budget(memory, out_bytes):
    found = plan_application(
        problem=LAYOUTS["digits"], n_features=784, n_components=50, component_itemsize=4, out_bytes=out_bytes,
        memory=memory * MIB,
    )  # fmt: skip
    assert found.memory_estimate.total <= memory * MIB
    assert found.block_rows % found.chunk_rows == 0
    assert 1 <= found.block_rows <= 60000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components=0 is neither a whole number of at least 1 nor a fraction"),
        ({"n_components": -3}, "n_components=-3 is neither"),
        ({"n_components": 1.5}, "n_components=1.5 is neither"),
        ({"n_components": 0.0}, "n_components=0.0 is neither"),
        ({"n_components": float("nan")}, "n_components=nan is neither"),
        ({"n_components": True}, "n_components=True is neither"),
        ({"n_components": "50"}, "n_components='50' is neither"),
        ({"n_components": 1.0}, "n_components=1.0 is ambiguous; write 1 for one component or None for all"),
        ({"method": "covarance"}, "method 'covarance' is not one of .* Did you mean 'covariance'"),
        ({"precision": "half"}, "precision 'half' is not one of auto, single, double"),
        ({"seed": -1}, "seed -1 is not a whole number of at least 0"),
        ({"seed": None}, "seed None is not a whole number of at least 0; use for example 0"),
        ({"seed": 1.5}, "seed 1.5 is not"),
        ({"n_components": [1]}, r"n_components=\[1\] is neither"),
        ({"n_components": np.ones(2)}, r"n_components=array.* is neither"),
        ({"workers": 0}, "workers 0 is not a whole number of at least 1"),
        ({"workers": "2"}, "workers '2' is not a whole number of at least 1"),
    ],
)
def test_wrong_options_are_refused_by_name(options, message):
    with pytest.raises(RequestError, match=message):
        Request(**options)


def test_numpy_numbers_are_numbers():
    assert Request(np.int64(5)) == Request(5)
    assert Request(np.float64(0.5)).n_components == 0.5
    assert Request(np.float32(0.9)).n_components == pytest.approx(0.9)


def test_more_components_than_there_are():
    with pytest.raises(RequestError, match=r"n_components=4 exceeds 3, .* 20 samples of 3 features"):
        make_plan(LAYOUTS["tiny"], Request(4))
    with pytest.raises(RequestError, match=r"n_components=400 exceeds 399"):
        make_plan(LAYOUTS["faces, a file each"], Request(400))
    assert make_plan(LAYOUTS["tiny"], Request(3, memory=GIB)).room == 3


# -- planning for data that are not here


def test_declared_shapes_plan_as_the_data_would(tmp_path):
    x = np.zeros((500, 9, 8), np.uint16)
    np.save(tmp_path / "x.npy", x)
    options = {"n_components": 5, "memory": "64MiB"}
    real = streampca.plan(tmp_path / "x.npy", **options)
    for shape in ("500x9x8", "500 x 9 x 8", (500, 9, 8)):
        declared = streampca.plan(shape=shape, dtype="uint16", **options)
        assert in_short(declared) == in_short(real)
        assert declared.memory_estimate.total <= real.memory_estimate.total  # less only by what the reader decodes with
    assert in_short(streampca.plan(x, **options)) == in_short(real)


@pytest.mark.parametrize("shape", ["500", "500x", "0x9", "500x-9", "ax9", (500,), (500, 0), (500, -9)])
def test_shapes_that_are_none(shape):
    with pytest.raises(RequestError, match=r"shape .* is not understood; write"):
        streampca.plan(shape=shape)


def test_dtypes_that_are_none():
    with pytest.raises(RequestError, match="dtype 'foo'"):
        streampca.plan(shape="500x9x8", dtype="foo")
    with pytest.raises(RequestError, match="complex64"):
        streampca.plan(shape="500x9x8", dtype="complex64")


def test_a_preparation_is_planned_for(tmp_path):
    """p shrinks, the row as read does not."""
    x = np.zeros((300, 20, 30), np.uint8)
    plain = problem_of(streampca.open_collection(x))
    preparation = streampca.Preparation(bin=2, mask=np.arange(150).reshape(10, 15) % 3 == 0)
    plan = streampca.plan(x, n_components=5, memory="64MiB", preparation=preparation)
    assert plan.problem.n_features == 50
    assert plan.problem.sample_shape == (10, 15)
    assert plan.problem.kind == "f"
    assert plan.problem.row_bytes == plain.row_bytes
    assert plan.problem.prepared_bytes > 0
    assert plan.bytes_read == plan.problem.n_samples * plain.row_bytes


def test_a_cropped_collection_is_not_decoded_again():
    """What is cut away is read too, once; that is not decoding again."""
    x = np.zeros((300, 40, 40), np.uint8)
    plan = streampca.plan(x, n_components=5, memory="64MiB", preparation=streampca.Preparation(crop=((0, 5), (0, 5))))
    assert plan.bytes_read == x.nbytes
    assert "decoded about" not in str(plan)


def test_where_no_dense_solve_fits_lanczos_keeps_what_it_settled():
    """A flat spectrum, and no memory to fall back on: fewer components, a warning, and bounds that hold."""
    x = np.random.default_rng(0).standard_normal((4000, 300))
    x[:, :4] *= 20
    collection = Prepared(streampca.open_collection(x), streampca.Preparation())
    planned = make_plan(problem_of(collection), Request(40, memory=64 * MIB))
    events = []
    run = replace(planned, solver="lanczos", dense_room=0)
    found = fit_covariance(Job(collection, run, SerialExecutor(), listener=events.append))
    warned = [event.message for event in events if isinstance(event, Warned)]
    true = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    k = len(found.explained_variance)
    assert len(warned) == 1
    assert "too flat" in warned[0]
    assert 4 <= k <= 40
    np.testing.assert_allclose(found.explained_variance[:4], true[:4], rtol=1e-8)
    assert np.all(np.abs(found.explained_variance - true[:k]) <= found.error_bound * true[:k])


def test_lanczos_gives_way_where_a_dense_solve_has_more_room(tmp_path):
    """Components beyond Lanczos's room are not cut off when the dense solver has room for them."""
    x = np.random.default_rng(0).standard_normal((500, 80)) * np.linspace(10, 1, 80)
    collection = Prepared(streampca.open_collection(x), streampca.Preparation())
    planned = make_plan(problem_of(collection), Request(0.5, memory=64 * MIB))
    few = replace(planned, solver="lanczos", room=2, dense_room=80)
    found = fit_covariance(Job(collection, few, SerialExecutor()))
    assert found.explained_variance.sum() >= 0.5 * found.total_variance


@pytest.mark.parametrize("text", ["2.5", 2.5, 4096, "1048575", "1.5"])
def test_a_size_without_a_unit_is_not_taken_for_bytes(text):
    with pytest.raises(
        RequestError, match=rf"{re.escape(repr(text))} has no unit and .* write (\S+)GiB or "
    ) as refused:
        parse_bytes(text)
    remedies = re.findall(r"[\d.]+(?:GiB|MiB|B)\b", str(refused.value).partition("write")[2])
    assert len(remedies) == 3
    assert [parse_bytes(remedy) for remedy in remedies[:2]] == [int(float(text) * 2**30), int(float(text) * 2**20)]
    assert parse_bytes(remedies[2]) >= 1


def test_bytes_count_from_one_mebibyte():
    assert parse_bytes(2**20) == parse_bytes("1048576") == 2**20
    assert parse_bytes("4096B") == parse_bytes("4 KiB") == 4096


@pytest.mark.parametrize("count", [1, 2**20, 2**20 + 1, 99 * 2**30 + 1, 100 * 2**30, 3**30, 7**20])
def test_a_round_budget_holds_what_it_is_for(count):
    text = budget_size(count)
    assert count <= parse_bytes(text) < 1.02 * count + 2**20
    assert len(text) <= 9
