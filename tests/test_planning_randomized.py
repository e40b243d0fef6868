"""Plans of method 'randomized': how wide a block, how large a basis, how many passes; and when it is chosen."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import by_options
import pytest
from planned import PROBLEMS, problem

from streampca.errors import BudgetError, RequestError
from streampca.fitting.methods.randomized_start import sample_runs
from streampca.planning import choose_method as choose
from streampca.planning import least_memory, make_plan, sample_rows
from streampca.planning.decoding import read_boxes, read_runs
from streampca.planning.memory import basis_bytes, scatter_block_bytes, step_bytes
from streampca.planning.randomized import SAMPLE_RUNS, sides
from streampca.units import GIB, MIB, parse_bytes


def test_passes_that_restarts_take_are_said():
    plan = make_plan(PROBLEMS["pictures"], by_options.request(50, memory=95 * MIB))
    assert plan.columns == 3 * plan.width
    assert "9 passes with 65 vectors need" in plan.why
    assert plan.why.endswith("; 2 fewer would do with a larger basis, which does not fit the budget")


# -- what it takes


def test_bytes_read_are_those_of_the_passes_and_of_the_sample():
    layout = problem(10_000, (64, 64), "u2", chunk_samples=3000, encoded=True, decode_bytes=80 * MIB)
    for memory in (150, 1000):
        plan = make_plan(layout, by_options.request(10, "randomized", memory * MIB))
        once = read_boxes(layout, plan.block_rows, 4096).bytes
        rows = sample_rows(10_000, 4096, plan.width)
        assert plan.bytes_read == plan.passes * once + read_runs(layout, rows, SAMPLE_RUNS).bytes
    assert plan.block_rows == 3000
    assert sample_rows(100, 4096, 50) == 100
    assert [sample_rows(n, 4096, 125) // 125 for n in (6000, 20_000, 100_000)] == [3, 4, 6]  # of what a pass takes


def test_the_memory_estimate_is_made_of_the_prices_of_what_runs():
    layout = replace(PROBLEMS["pictures"], decode_bytes=5 * MIB, total_weight=2.0)
    plan = make_plan(layout, by_options.request(50, memory=GIB, workers=4))
    p, width, columns = 16384, plan.width, plan.columns
    phases = {phase.name: dict(phase.items) for phase in plan.memory_estimate.phases}
    for name in ("pass", "step", "components"):
        assert phases[name][f"basis, 16384 x {columns} float64"] == basis_bytes(p, columns)
    assert scatter_block_bytes(p, width, plan.product_rows).items() <= phases["pass"].items()
    assert phases["pass"]["product of another worker, as sent and merged"] == 16 * p * width
    assert phases["pass"]["storage being decoded"] == 5 * MIB
    assert step_bytes(p, width, columns) in phases["step"].values()
    rows = sample_rows(layout.n_samples, p, width)
    assert phases["start"][f"sample of {rows} rows, centred"] == 4 * rows * p
    doubles = make_plan(problem(3000, (50, 50), "f8"), by_options.request(20, "randomized", GIB))
    rows = sample_rows(3000, 2500, doubles.width)
    assert dict(doubles.memory_estimate.phases[0].items)[f"sample of {rows} rows, centred"] == 8 * rows * 2500


@pytest.mark.parametrize(("n", "chunk"), [(100_000, 1), (100_000, 7), (100_000, 1000), (100_000, 60_000), (50, 3)])
def test_a_sample_is_read_in_runs(n, chunk):
    """The rows decoded are those of all chunks that its runs touch."""
    layout = problem(n, (10, 10), chunk_samples=chunk, encoded=True)
    count = sample_rows(n, 100, 30)
    runs = sample_runs(n, count, chunk)
    touched = {row // chunk for run in runs for row in range(*run)}
    expected = sum(min(chunk, n - at * chunk) for at in touched) * 100
    assert all(run.size <= -(-count // len(runs)) for run in runs)
    assert expected <= read_runs(layout, count, SAMPLE_RUNS).bytes <= expected + 100 * (chunk + SAMPLE_RUNS)


def test_more_rows_are_multiplied_at_a_time_where_they_are_short():
    rows = {p: make_plan(problem(10**5, (p,)), by_options.request(5, "randomized", 64 * GIB)).product_rows
            for p in (100, 8192, 16_384, 65_536, 10**6)}  # fmt: skip
    assert rows == {100: 512, 8192: 512, 16_384: 512, 65_536: 256, 10**6: 32}


def test_a_smaller_tolerance_takes_more_passes():
    plans = [
        make_plan(PROBLEMS["pictures"], by_options.request(50, memory=GIB, tol=10.0**-power)) for power in range(1, 9)
    ]
    assert [plan.passes for plan in plans] == [
        2,
        4,
        5,
        5,
        6,
        7,
        8,
        9,
    ]  # the 2nd and 3rd in narrower blocks
    assert make_plan(PROBLEMS["pictures"], by_options.request(50, memory=GIB, tol=5e-5)).passes == 6


def test_slow_storage_is_read_fewer_times():
    """Decoding costs more than products do, and a wide block is worth it."""
    fast, slow = (replace(PROBLEMS["pictures"], encoded=encoded) for encoded in (False, True))
    wide, narrow = (make_plan(layout, by_options.request(10, memory=GIB)) for layout in (slow, fast))
    assert wide.passes <= narrow.passes
    assert make_plan(slow, by_options.request(50, memory=GIB)).passes == 4


@pytest.mark.parametrize("most", [1, 3])
def test_passes_are_kept_to_what_was_asked(most):
    """Narrow blocks where reading costs little, wide ones where it costs most; what more would take is said."""
    asked = by_options.request(50, "randomized", GIB, max_passes=most)
    link = replace(PROBLEMS["pictures"], encoded=True)
    for layout, width, needed in ((PROBLEMS["pictures"], 65, 7), (link, 300, 4)):
        plan = make_plan(layout, asked)
        assert (plan.passes, plan.width) == (most, width)
        assert plan.why.endswith(f"; a residual of 0.0001 would take about {needed} passes")
        assert plan.bytes_read < (most + 0.1) * 30_000 * 16384


def test_as_many_passes_as_are_needed_are_better_than_a_narrow_block():
    plan = make_plan(PROBLEMS["pictures"], by_options.request(50, "randomized", GIB, max_passes=4))
    assert (plan.passes, plan.width) == (4, 300)


def test_passes_to_spare_change_nothing():
    plain, capped = (
        make_plan(PROBLEMS["pictures"], by_options.request(50, memory=GIB, max_passes=most)) for most in (None, 8)
    )
    assert replace(capped, request=plain.request) == plain


def test_a_block_of_everything_is_done_at_once():
    """All of p in one pass; all that n samples span in two, as random columns lie outside."""
    plan = make_plan(problem(1000, (40,)), by_options.request(35, "randomized", GIB))
    assert plan.passes == 1
    assert "decoded about" not in str(plan)
    plan = make_plan(problem(41, (500,)), by_options.request(35, "randomized", GIB))
    assert (plan.width, plan.passes) == (40, 2)


def test_spans_are_for_the_workers_of_a_cluster():
    for workers in (1, 4):
        plan = make_plan(PROBLEMS["pictures"], by_options.request(50, "randomized", GIB, workers=workers))
        assert (len(plan.spans), plan.threads) == ((2, 2) if workers == 1 else (4 * workers, 1))
        assert (plan.spans[0].start, plan.spans[-1].stop) == (0, 30_000)
        assert all(one.stop == other.start for one, other in pairwise(plan.spans))


# -- a number of components that comes out of the data


@pytest.mark.parametrize("wanted", [0.95, "mp"])
def test_an_open_basis_takes_what_memory_there_is(wanted):
    plans = [
        make_plan(PROBLEMS["pictures"], by_options.request(wanted, "randomized", size * MIB))
        for size in (130, 500, 2000)
    ]
    for less, more in pairwise(plans):
        assert less.columns < more.columns
        assert less.room < more.room <= more.columns
        assert less.passes >= more.passes
    assert all(plan.width == 125 for plan in plans)
    assert plans[-1].memory_estimate.total > 1900 * MIB


def test_an_open_basis_is_no_larger_than_what_there_is():
    plan = make_plan(PROBLEMS["digits"], by_options.request(0.95, "randomized", GIB))
    assert (plan.columns, plan.room) == (784, 784)
    plan = make_plan(PROBLEMS["faces"], by_options.request(0.95, "randomized", GIB))
    assert (plan.columns, plan.room) == (399 + plan.width, 399)


def test_an_elbow_is_looked_for_among_fifty():
    of_rule, of_number = (
        make_plan(PROBLEMS["pictures"], by_options.request(k, "randomized", GIB)) for k in ("elbow", 50)
    )
    assert (of_rule.room, of_rule.width, of_rule.columns) == (50, of_number.width, of_number.columns)


# -- refusals


@pytest.mark.parametrize(
    ("name", "wanted", "method"),
    [
        ("digits", 300, "covariance"),
        ("faces", 10, "dual"),
        ("pictures", 10, "randomized"),
    ],
)
def test_a_refusal_is_of_the_method_that_needs_least(name, wanted, method):
    request = by_options.request(wanted, memory=8 * MIB)
    with pytest.raises(BudgetError, match=f"^method '{method}' needs") as caught:
        make_plan(PROBLEMS[name], request)
    least = parse_bytes(re.search(r"at least (\d+MiB)", str(caught.value))[1])
    assert make_plan(PROBLEMS[name], replace(request, memory=least)).method == method
    for other in ("covariance", "dual", "randomized"):
        assert least <= least_memory(PROBLEMS[name], request.asking(method=other))


def test_all_components_are_refused_with_what_would_do():
    request = by_options.request(None, "randomized", 4 * GIB)
    with pytest.raises(RequestError, match=r"all components.*use method 'auto', or a number such as 50"):
        make_plan(PROBLEMS["digits"], request)
    assert make_plan(PROBLEMS["digits"], request.asking(method="auto")).method == "covariance"
    for number in (50, 0.95):
        assert make_plan(PROBLEMS["digits"], request.asking(n_components=number)).method == "randomized"
    assert "randomized" not in dict(make_plan(PROBLEMS["digits"], by_options.request(None, memory=GIB)).rejected)


# -- what is chosen


def test_it_is_chosen_where_no_exact_method_fits():
    for memory, method in ((1, "randomized"), (4, "covariance")):
        plan = make_plan(PROBLEMS["pictures"], by_options.request(50, memory=memory * GIB))
        assert plan.method == method
    assert dict(plan.rejected)["randomized"] == "approximate, in 5 passes; covariance is exact, in 1 pass"
    assert make_plan(PROBLEMS["volumes"], by_options.request(20, memory=16 * GIB)).method == "dual"


def test_it_is_chosen_where_it_is_much_faster(monkeypatch):
    layout = PROBLEMS["a million"]
    assert make_plan(layout, by_options.request(20, memory=64 * GIB)).method == "randomized"
    assert "would take about" in dict(make_plan(layout, by_options.request(20, memory=64 * GIB)).rejected)["covariance"]
    monkeypatch.setattr(choose, "WORTH_APPROXIMATING", 10**9)
    assert make_plan(layout, by_options.request(20, memory=64 * GIB)).method == "covariance"


@pytest.mark.parametrize("asked", [{"tol": 1e-4}, {"tol": 1e-3}, {"tol_variance": 1e-3}, {"max_passes": 1}])
def test_it_is_chosen_wherever_it_is_faster_if_a_tolerance_is_asked_for(asked):
    """Unless an exact method is, or the number of components is open."""
    cases = (("pictures", 50, "randomized"), ("digits", 300, "covariance"), ("pictures", 0.9, "covariance"))
    for name, wanted, method in cases:
        plan = make_plan(PROBLEMS[name], by_options.request(wanted, memory=64 * GIB, **asked))
        assert plan.method == method
        assert make_plan(PROBLEMS[name], by_options.request(wanted, memory=64 * GIB)).method == "covariance"
        assert isinstance(wanted, float) or all(
            plan.seconds <= other.plan.seconds for other in plan.others if other.plan
        )


@pytest.mark.parametrize(("wanted", "method"), [(20, "randomized"), (0.9, "covariance"), (1000, "covariance")])
def test_many_components_and_open_numbers_prefer_an_exact_method(monkeypatch, wanted, method):
    """However fast the other would be: it is not known how many passes a fraction takes."""
    monkeypatch.setattr(choose, "WORTH_APPROXIMATING", 0)
    assert make_plan(problem(10**6, (64, 64)), by_options.request(wanted, memory=8 * GIB)).method == method
    assert (
        make_plan(problem(10**6, (64, 64)), by_options.request(wanted, "randomized", memory=8 * GIB)).method
        == "randomized"
    )


@pytest.mark.parametrize("name", ["digits", "pictures", "large chunks", "faces in files", "a million, packed"])
def test_blocks_that_are_not_priced_would_not_be_taken(name):
    for memory, tol in ((60 * MIB, 1e-4), (300 * MIB, 1e-2), (2 * GIB, 0.3)):
        request = by_options.request(20, "randomized", memory, tol=tol)
        ((families,), _) = sides(PROBLEMS[name], request)
        priced = [sizes for family in families for sizes in family.within(memory)]
        every = [sizes for family in families for cut in family.cut() for sizes in cut.within(memory)]
        assert priced == every == [] or priced[0].preferred(priced) == every[0].preferred(every)
