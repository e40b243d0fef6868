"""Plans of every method: integers in, decisions out; what does not fit is refused with a remedy that works."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import by_options
import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planned import PROBLEMS, layouts, plan_of, problem, remedy, unwrapped

import streampca
from streampca.errors import BudgetError, RequestError
from streampca.events import Warned, silent
from streampca.execution import LocalExecutor
from streampca.fitting.identity import DECISIVE
from streampca.fitting.methods import Job
from streampca.fitting.methods.covariance import fit_covariance
from streampca.fitting.methods.leading_pairs import TELLING, leading_pairs
from streampca.planning import DENSE_FEATURES, Plan, dual, least_memory, make_plan, plan_application, randomized
from streampca.planning.blocks import MOST_BLOCK, Span, blocks_of
from streampca.planning.by_features import WORTH_CHANGING
from streampca.planning.candidate_sizes import smallest
from streampca.planning.choose_method import METHODS
from streampca.planning.rates import Rates
from streampca.preprocessing import Prepared
from streampca.preprocessing.sizes_for_planning import problem_of
from streampca.units import GIB, MIB, budget_size, format_seconds, parse_bytes


def in_short(plan: Plan) -> str:
    by_features = plan.schedule in ("sweep", "scratch")
    read = f"blocks of {f'{plan.block_features} features x ' if by_features else ''}{plan.block_rows}"
    read += f", products of {plan.product_features or plan.product_rows}"
    read += f", {plan.threads} threads" * (plan.threads > 1) + ", ahead" * bool(plan.ahead) + ", stored" * plan.stored
    basis = f", {plan.width} vectors of {plan.columns}" if plan.width else ""
    written = f", {plan.bytes_written} B written" if plan.bytes_written else ""
    return (
        f"{plan.method} {plan.schedule}, {plan.precision} {plan.solver}{basis}, room for {plan.room}; {read}; "
        f"{plan.passes:g} passes, {plan.bytes_read} B read{written}"
    )


DECISIONS, WORDS = yaml.safe_load_all((Path(__file__).parent / "data" / "plans.yaml").read_text())


@pytest.mark.parametrize(("name", "wanted", "memory", "options", "decided"), DECISIONS)
def test_decisions_on_named_problems(name, wanted, memory, options, decided):
    plan = make_plan(PROBLEMS[name], by_options.request(wanted, memory=parse_bytes(memory), **options))
    assert in_short(plan) == decided
    assert plan.memory_estimate.total <= plan.memory


@pytest.mark.parametrize(("name", "wanted", "memory", "options", "lines"), WORDS)
def test_a_plan_in_words(name, wanted, memory, options, lines):
    text = str(make_plan(PROBLEMS[name], by_options.request(wanted, memory=parse_bytes(memory), **options)))
    assert max(map(len, text.splitlines())) <= 80
    for line in lines:
        assert unwrapped(line) in unwrapped(text)


@pytest.mark.parametrize(
    ("method", "name"),
    [("auto", "digits"), ("auto", "faces in files"), ("auto", "pictures"), ("randomized", "1 GB, in files")],
)
def test_plans_are_plain_data_and_the_same_again(method, name):
    request = by_options.request(2, method, 32 * GIB, output=True)
    plan = make_plan(PROBLEMS[name], request)
    again = make_plan(replace(PROBLEMS[name]), request)
    assert plan == again == replace(plan, rates=Rates(single=1.0), others=())
    assert hash(plan) == hash(again)
    assert plan != make_plan(PROBLEMS[name], request.asking(n_components=1))
    data = json.loads(json.dumps(plan.to_json()))
    assert data == plan.to_json()
    assert set(DECISIVE) <= data.keys()
    assert data["request"]["n_components"] == 2
    assert data["memory_needed"] == sum(data["memory_estimate"][plan.memory_estimate.largest.name].values())
    assert data["memory_needed"] == plan.memory_estimate.total
    with pytest.raises(AttributeError):
        plan.block_rows = 1


# -- soundness of every method

OF_COMPONENTS = [name for name, module in METHODS.items() if "pca" in import_module(module, "streampca.planning").KINDS]


@settings(max_examples=2 * settings.default.max_examples)
@given(
    method=st.sampled_from(["auto", *OF_COMPONENTS]),
    layout=layouts(),
    memory=st.integers(12, 20_000),
    wanted=st.sampled_from([1, 20, 300, 0.9, "elbow", None]),
    output=st.booleans(),
    workers=st.sampled_from([1, 4]),
    most=st.sampled_from([None, None, 1, 4]),
    tol=st.sampled_from([1e-4, 1e-2, 1e-9]),
    extra=st.integers(0, 300),
)
def test_every_plan_keeps_to_its_budget_or_is_refused_with_one_that_would_do(
    method, layout, memory, wanted, output, workers, most, tol, extra
):
    """The budget that a refusal names works, and so does any larger one."""
    assume(wanted is not None or method not in ("randomized", "em"))
    wanted = min(wanted, layout.most_components) if isinstance(wanted, int) else wanted
    how = {"output": output, "workers": workers, "max_passes": most, "tol": tol}
    how["missing"] = "em" if method == "em" else "error"
    request = by_options.request(wanted, method, memory * MIB, **how)
    try:
        plan = make_plan(layout, request)
    except BudgetError as error:
        least = remedy(error)
        assert least > memory * MIB
        assert make_plan(layout, replace(request, memory=least)).memory_estimate.total <= least
        make_plan(layout, replace(request, memory=least + extra * MIB))
        return
    assert plan.memory_estimate.total <= plan.memory == memory * MIB
    assert 1 <= plan.room <= layout.most_components
    assert 1 <= plan.block_rows <= layout.n_samples
    length = layout.n_features if plan.schedule in ("sweep", "scratch") else layout.n_samples
    assert (plan.spans[0].start, plan.spans[-1].stop) == (0, length)
    assert all(one.stop == other.start for one, other in pairwise(plan.spans))
    assert not plan.stored or output
    assert (plan.bytes_written > 0) == (plan.schedule == "scratch")
    CHECKS[plan.method](plan, layout, request)


def check_covariance(plan, layout, request):
    """Whole storage chunks where one fits."""
    assert 1 <= plan.product_rows <= max(64, plan.block_rows)
    assert plan.bytes_read >= layout.n_samples * layout.row_bytes
    rows, whole = plan.block_rows, layout.chunk_samples
    assert rows >= layout.n_samples or rows % whole == 0 or rows < whole
    assert rows * layout.row_bytes <= max(plan.memory // 4, layout.row_bytes)


def check_dual(plan, layout, request):
    assert 1 <= plan.product_features <= layout.n_features
    assert 1 <= plan.block_features <= layout.n_features
    assert plan.schedule != "sweep" or (plan.passes == 1) == plan.reads_once


def check_randomized(plan, layout, request):
    assert plan.room <= plan.columns
    assert plan.room <= plan.width <= layout.most_components or not isinstance(request.n_components, int)
    assert plan.width <= plan.columns <= min(layout.n_features, layout.most_components + plan.width)
    assert 1 <= plan.passes <= (request.max_passes or plan.passes)
    if plan.side == "features":
        assert 1 <= plan.product_rows <= plan.block_rows
        assert plan.bytes_read >= plan.passes * layout.n_samples * layout.row_bytes
        return
    assert layout.n_samples < layout.n_features
    assert plan.columns <= layout.n_samples
    assert 1 <= plan.product_features <= plan.block_features
    assert plan.bytes_read >= (plan.passes - 1) * layout.n_samples * layout.row_bytes  # one may be of the copy


# The most that a plan which is preferred to the fastest of its schedule may be slower, by the gains it may have.
GAINS = {
    "sweep": {(dual, "WORTH_CHANGING"): 1 / WORTH_CHANGING},
    "scratch": {(dual, "WORTH_CHANGING"): 1 / WORTH_CHANGING},
    "along features": {
        (randomized, "FEWER_PASSES"): randomized.FEWER_PASSES,
        (randomized, "FEWER_DECODED"): randomized.FEWER_DECODED,
        (randomized, "AT_ONCE"): randomized.AT_ONCE,
    },
}


@pytest.mark.parametrize("way", GAINS)
@settings(max_examples=settings.default.max_examples // 2)
@given(
    layout=layouts(3000),
    memory=st.integers(12, 3000),
    more=st.integers(1, 3000),
    wanted=st.sampled_from([1, 20, 300, 0.9]),
    output=st.booleans(),
    exactly=st.booleans(),
)
def test_more_memory_makes_the_fastest_plan_no_slower(way, layout, memory, more, wanted, output, exactly):
    """Preferred plans are slower by their gains at most, and with gains of 1 not at all."""
    assume(wanted != 0.9 or way == "along features")  # of the others more memory makes room for more components first
    gains = GAINS[way]
    wanted = min(wanted, layout.most_components) if isinstance(wanted, int) else wanted
    request = by_options.request(wanted, scratch="/fast", output=output)
    with pytest.MonkeyPatch.context() as patch:
        for where in gains if exactly else ():
            patch.setattr(*where, 1.0)
        less, plenty = (plan_of(way, layout, replace(request, memory=size * MIB)) for size in (memory, memory + more))
    if less is not None:
        assert plenty.seconds <= less.seconds * (1 if exactly else np.prod([*gains.values()])) * (1 + 1e-9)


def check_em(plan, layout, request):
    assert plan.room <= plan.width <= layout.most_components
    assert 1 <= plan.product_rows <= plan.block_rows
    assert 1 <= plan.product_features <= layout.n_features
    ranges = -(-layout.n_features // plan.product_features)
    assert plan.passes <= (request.max_passes or 4 * ranges)
    assert ranges <= plan.passes or layout.kind != "f"
    assert plan.bytes_read >= plan.passes * layout.n_samples * layout.row_bytes


CHECKS = {"covariance": check_covariance, "dual": check_dual, "randomized": check_randomized, "em": check_em}

REFUSED = [
    ("covariance", "digits", 50),
    ("dual", "1 GB, one file", 50),
    ("dual", "calcium stack", 50),
    ("randomized", "digits", 0.95),
    ("randomized", "a million, packed", 50),
    ("randomized", "volumes", 50),
]


@pytest.mark.parametrize(("method", "name", "wanted"), REFUSED)
def test_a_refusal_names_the_least_budget(method, name, wanted):
    """That much is accepted, and one MiB less is not; nor is less with an output than the message says."""
    for output in (False, True) if method == "dual" else (False,):
        request = by_options.request(wanted, method, MIB, output=output)
        says = rf"^method '{method}' needs .* and memory allows 1.0 MiB \(as asked\); the largest share is the .*"
        with pytest.raises(BudgetError, match=says) as caught:
            make_plan(PROBLEMS[name], request)
        least = remedy(caught.value)
        assert least_memory(PROBLEMS[name], request) <= least
        assert make_plan(PROBLEMS[name], replace(request, memory=least)).memory_estimate.total <= least
        with pytest.raises(BudgetError):
            make_plan(PROBLEMS[name], replace(request, memory=least - MIB))
        written = re.search(r"or to (\d+MiB) with an output", str(caught.value))
        assert method != "dual" or (written is None) == output
        if written:
            make_plan(PROBLEMS[name], replace(request, memory=parse_bytes(written[1]), output=True))


def test_chunks_decoded_again_are_counted_and_said():
    plan = make_plan(PROBLEMS["large chunks"], by_options.request(20, memory=256 * MIB))
    touched = sum(-(-block.stop // 50_000) - block.start // 50_000 for block in blocks_of(Span(0, 200_000), 16_384))
    assert plan.bytes_read == touched * 50_000 * 2048
    assert "every storage chunk is decoded about 4 times" in unwrapped(str(plan))
    whole = make_plan(PROBLEMS["large chunks"], by_options.request(20, memory=2 * GIB))
    assert whole.block_rows % 50_000 == 0
    assert whole.bytes_read == 200_000 * 2048


def test_a_chunk_that_is_kept_is_decoded_once_whatever_the_block():
    plan = make_plan(replace(PROBLEMS["large chunks"], keeps=True), by_options.request(20, memory=256 * MIB))
    assert plan.block_rows < 50_000
    assert plan.bytes_read == 200_000 * 2048
    assert "decoded about" not in str(plan)


@pytest.mark.parametrize(("chunk", "pieces"), [(3000, 2), (500, 6), (1, 8)])
def test_pieces_of_a_transform_share_few_chunks_that_are_kept(chunk, pieces):
    """A piece keeps the chunk that it decoded: two of one chunk decode it twice, and eight would eight times."""
    layout = problem(3000, (64, 64), "f4", chunk_samples=chunk, encoded=True, keeps=True, decode_bytes=MIB)
    sizes = {"components_shape": (20, 4096), "component_itemsize": 4, "out_bytes": 80, "memory": GIB}
    assert plan_application(problem=layout, **sizes, threads=2).pieces == pieces


def test_a_plan_says_what_a_little_more_memory_would_do():
    """One chunk of all samples, decoded for every block of a few: with memory for it, ten times faster and more."""
    layout = problem(3000, (64, 64), "f4", chunk_samples=3000, encoded=True, decode_bytes=145 * MIB)
    request = by_options.request(20, memory=154 * MIB, output=True)
    plan = make_plan(layout, request)
    more, seconds = re.search(r"time +about .+ \(with memory='(\w+)': (.+?)\)", unwrapped(str(plan))).groups()
    better = make_plan(layout, replace(request, memory=parse_bytes(more)))
    assert parse_bytes(more) <= 2 * request.memory
    assert 10 * better.seconds <= plan.seconds
    assert seconds == format_seconds(better.seconds)
    assert better.faster is None
    assert plan.to_json().keys() == better.to_json().keys()
    assert "faster" not in plan.to_json()


def test_no_other_method_is_priced_beside_an_exact_one_of_a_moment():
    """Not even one that would be faster: pricing it takes longer; a method that is asked for is taken all the same."""
    few = problem(60, (8, 8))
    plan, other = (make_plan(few, by_options.request(5, method)) for method in ("auto", "dual"))
    assert (plan.method, other.method) == ("covariance", "dual")
    assert {name for name, _ in plan.rejected} == {"dual", "randomized"}
    assert "less than a millisecond" in dict(plan.rejected)["dual"]
    assert make_plan(problem(60, (80, 80)), by_options.request(5)).method == "dual"


def test_precision_follows_the_dtype():
    for dtype, expected in {
        "b1": "single", "u1": "single", "i2": "single", "f2": "single", "f4": "single", "i4": "double", "f8": "double"
    }.items():  # fmt: skip
        layout = problem(10**7, (20,), dtype)
        assert make_plan(layout, by_options.request(2, memory=GIB)).precision == expected
        assert (
            make_plan(problem(1000, (20,), dtype), by_options.request(2, memory=GIB)).precision == "double"
        )  # costs nothing
        assert make_plan(layout, by_options.request(2, memory=GIB, precision="double")).precision == "double"
        assert make_plan(layout, by_options.request(2, memory=GIB, precision="single")).precision == "single"


def test_solver_follows_p_and_k():
    wide = problem(10**6, (DENSE_FEATURES + 1,))
    assert make_plan(wide, by_options.request(50, memory=4 * GIB)).solver == "lanczos"
    assert make_plan(wide, by_options.request(1000, memory=4 * GIB)).solver == "dense"
    assert make_plan(wide, by_options.request(None, memory=4 * GIB)).solver == "dense"
    assert make_plan(problem(10**6, (DENSE_FEATURES,)), by_options.request(50, memory=4 * GIB)).solver == "dense"


def test_a_plan_says_in_six_lines_what_it_does_and_in_its_headline_that_the_number_is_the_default():
    by_default, asked = (make_plan(PROBLEMS["digits"], by_options.request(**of)) for of in ({}, {"n_components": 3}))
    assert len(repr(by_default).splitlines()) == len(repr(asked).splitlines()) == 6
    assert "as many as hold 95 % of the variance, the default" in repr(by_default)
    assert "components  as many as hold 95 % of the variance, the default; set the number" in str(by_default)
    assert "components  3\n" in repr(asked)
    assert "default" not in str(asked)


def test_default_budget_is_said():
    plan = make_plan(PROBLEMS["digits"], by_options.request(10))
    assert plan.memory > 0
    assert re.match("half of (physical memory|the control group's limit|SLURM's allotment)", plan.budget_source)


def test_applying_is_refused_with_what_would_do():
    sizes = {"components_shape": (500, 4096), "component_itemsize": 4, "out_bytes": 2000}
    layout = PROBLEMS["thumbnails in zarr"]
    with pytest.raises(BudgetError, match="applying 500 components of 4096 features needs") as caught:
        plan_application(problem=layout, memory=20 * MIB, **sizes)
    least = remedy(caught.value)
    found = plan_application(problem=layout, memory=least, **sizes)
    assert found.block_rows >= 1
    assert found.memory_estimate.total <= least
    with pytest.raises(BudgetError):
        plan_application(problem=layout, memory=least - MIB, **sizes)


def test_a_sample_larger_than_a_block_is_applied_alone():
    sizes = {"components_shape": (2, 1300 * 1300), "component_itemsize": 4, "out_bytes": 8}
    assert 2 * 4 * 1300 * 1300 < MOST_BLOCK < 6 * 4 * 1300 * 1300
    found = plan_application(problem=problem(6, (1300, 1300), "f4"), memory=2 * GIB, **sizes)
    assert found.block_rows == 1


def test_a_question_that_nothing_answers_ends():
    with pytest.raises(ValueError, match="no number of bytes"):
        smallest(lambda memory: False)


@pytest.mark.parametrize("memory", [64, 200, 4096])
@pytest.mark.parametrize("out_bytes", [8, 200, 4096 * 8])
def test_applying_keeps_to_its_budget(memory, out_bytes):
    found = plan_application(
        problem=PROBLEMS["digits"], components_shape=(50, 784), component_itemsize=4, out_bytes=out_bytes,
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
        ({"precision": "half"}, "precision = 'half': give 'auto', 'single' or 'double'"),
        ({"random_state": -1}, "random_state = -1: give a whole number of at least 0"),
        ({"random_state": 1.5}, "random_state = 1.5: give a whole number"),
        ({"n_components": [1]}, r"n_components=\[1\] is neither"),
        ({"n_components": np.ones(2)}, r"n_components=array.* is neither"),
        *(
            ({"tol": tol}, rf"^tol = {re.escape(repr(tol))}: give a number above 0 and below 1 or None \(res")
            for tol in (0, 1, -1e-4, 2, float("nan"), float("inf"), True, "1e-4", 1j, [0.1])
        ),
        *(
            ({"max_passes": most}, rf"^max_passes = {re.escape(repr(most))}: give a whole number of at least 1 or None")
            for most in (0, -1, 2.5, float("nan"), True, "4", [4])
        ),
    ],
)
def test_wrong_options_are_refused_by_name(options, message):
    with pytest.raises(RequestError, match=message):
        by_options.request(**options)


def test_numpy_numbers_are_numbers():
    assert by_options.request(np.int64(5)) == by_options.request(5)
    assert by_options.request(np.float64(0.5)).n_components == 0.5
    assert by_options.request(np.float32(0.9)).n_components == pytest.approx(0.9)


def test_more_components_than_there_are():
    with pytest.raises(RequestError, match=r"n_components=4 exceeds 3, .* 20 samples of 3 features"):
        make_plan(PROBLEMS["tiny"], by_options.request(4))
    with pytest.raises(RequestError, match=r"n_components=400 exceeds 399"):
        make_plan(PROBLEMS["faces"], by_options.request(400))
    assert make_plan(PROBLEMS["tiny"], by_options.request(3, memory=GIB)).room == 3


# -- planning for data that are not here


def test_declared_shapes_plan_as_the_data_would(tmp_path):
    """The plans differ only in read-ahead, which only files need."""
    x = np.zeros((500, 9, 8), np.uint16)
    np.save(tmp_path / "x.npy", x)
    options = {"n_components": 5, "memory": "64MiB"}
    real = replace(by_options.plan(tmp_path / "x.npy", **options), ahead=0)
    for shape in ("500x9x8", "500 x 9 x 8", (500, 9, 8)):
        declared = by_options.plan(shape=shape, dtype="uint16", **options)
        assert in_short(declared) == in_short(real)
        assert declared.memory_estimate.total <= real.memory_estimate.total  # less only by what the reader decodes with
    assert in_short(by_options.plan(x, **options)) == in_short(real)


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
    """The pixels cut away are read once too, which is not counted as repeated decoding."""
    x = np.zeros((300, 40, 40), np.uint8)
    plan = streampca.plan(x, n_components=5, memory="64MiB", preparation=streampca.Preparation(crop=((0, 5), (0, 5))))
    assert plan.bytes_read == x.nbytes
    assert "decoded about" not in str(plan)


def test_where_no_dense_solve_fits_lanczos_keeps_what_it_settled():
    """A flat spectrum, and no memory to fall back on: fewer components, a warning, and bounds that hold."""
    x = np.random.default_rng(0).standard_normal((4000, 300))
    x[:, :4] *= 20
    collection = Prepared(streampca.open_collection(x), streampca.Preparation())
    planned = make_plan(problem_of(collection), by_options.request(40, memory=64 * MIB))
    events = []
    run = replace(planned, solver="lanczos", dense_room=0)
    found = fit_covariance(Job(collection, run, LocalExecutor(), listener=events.append))
    warned = [event.message for event in events if isinstance(event, Warned)]
    true = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    k = len(found.explained_variance)
    assert len(warned) == 1
    assert "did not converge" in warned[0]
    assert 4 <= k <= 40
    np.testing.assert_allclose(found.explained_variance[:4], true[:4], rtol=1e-8)
    assert np.all(np.abs(found.explained_variance - true[:k]) <= found.residual_bound * true[:k])


def test_lanczos_gives_way_where_a_dense_solve_has_more_room(tmp_path):
    """Components beyond Lanczos's room are not cut off when the dense solver has room for them."""
    x = np.random.default_rng(0).standard_normal((500, 80)) * np.linspace(10, 1, 80)
    collection = Prepared(streampca.open_collection(x), streampca.Preparation())
    planned = make_plan(problem_of(collection), by_options.request(0.5, memory=64 * MIB))
    few = replace(planned, solver="lanczos", room=2, dense_room=80)
    found = fit_covariance(Job(collection, few, LocalExecutor()))
    assert found.explained_variance.sum() >= 0.5 * found.total_variance


class Counted:
    """Diagonal matrix in memory that counts products with it."""

    def __init__(self, values):
        self.values, self.size, self.trace, self.products = values, len(values), float(values.sum()), 0

    def matrix(self):
        return np.asfortranarray(np.diag(self.values))

    def multiply(self, block):
        self.products += 1
        return self.values[:, None] * block


@pytest.mark.parametrize(("ratio", "most"), [(0.7, 20), (0.9999, TELLING)], ids=["steep", "flat"])
def test_lanczos_gives_way_once_what_is_left_takes_longer_than_a_dense_solve(ratio, most):
    """A few steps tell; a spectrum that converges is solved by these steps alone."""
    collection = streampca.open_collection(np.zeros((1000, 600)))
    planned = make_plan(problem_of(collection), by_options.request(40, memory=256 * MIB))
    matrix = Counted(ratio ** np.arange(600.0))
    solution = leading_pairs(matrix, replace(planned, solver="lanczos", room=40, dense_room=40), silent)
    assert matrix.products <= most
    assert (solution.spectrum is None) == (ratio < 0.9)  # a dense solve finds all values
    np.testing.assert_allclose(solution.values, matrix.values[:40], rtol=1e-9)


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


def test_samples_of_a_stream_are_not_planned_as_files_that_are_opened(tmp_path):
    images = np.zeros((60_000, 4, 4), np.uint8)
    header = b"\0\0\x08\x03" + np.array(images.shape, ">u4").tobytes()
    with gzip.open(tmp_path / "images.gz", "wb") as file:
        file.write(header + images.tobytes())
    np.save(tmp_path / "images.npy", images)
    stream, plain = (streampca.plan(tmp_path / name, n_components=2) for name in ("images.gz", "images.npy"))
    assert stream.seconds < plain.seconds + 0.1, "the file is decoded in a hundredth of a second"
