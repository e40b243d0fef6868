"""HSIC: its values against the definition and theorems, and its test against the level asked for."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from planned import unwrapped
from shell import measured, succeeded, typed
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import pairwise_kernels

import streampca
from streampca import hsic
from streampca.accumulators import CrossMoments, KernelSums
from streampca.errors import BudgetError, DataError, OutputError, RequestError, Stopped, StreampcaError
from streampca.events import Assumed, Warned
from streampca.fitting.hsic import HsicRequest, KernelSide
from streampca.fitting.hsic_tasks import KernelTiles, MappedPairs
from streampca.fitting.kernel_sides import kernel_of
from streampca.fitting.permutation_test import permuted_features, permuted_kernels
from streampca.planning.blocks import Span
from streampca.planning.hsic import plan_hsic
from streampca.preprocessing.kernels import Kernel

PAIRS = range(100)  # independent pairs, by seed
untested = partial(hsic, permutations=0)


def direct(k, m):
    """Return the biased and the unbiased estimate of two kernel matrices by their definitions."""
    n = len(k)
    h, ones = np.eye(n) - 1 / n, np.ones(n)
    biased = np.trace(k @ h @ m @ h) / (n - 1) ** 2
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    pairs = np.trace(k @ m) + (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    return biased, (pairs - 2 / (n - 2) * (ones @ k @ m @ ones)) / (n * (n - 3))


def pairs(n=300, seed=0, p=4):
    """Return two collections of samples that are dependent but hardly correlated."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, p))
    return x, np.column_stack([np.cos(2 * x[:, 0]), random.normal(size=n)]) + 0.3 * random.normal(size=(n, 2))


def assert_direct(found, k, m):
    np.testing.assert_allclose([found.biased, found.unbiased], direct(k, m), rtol=1e-10)


# -- the statistic


@pytest.mark.parametrize("name", ["rbf", "laplacian", "polynomial", "cosine", "linear", "sigmoid"])
def test_tiles_add_up_to_the_definition(name, monkeypatch):
    """The tiles do not divide the samples, and three strips of them are read at a time."""
    monkeypatch.setattr("streampca.planning.hsic.TILES", (64,))
    x, y = pairs()
    found = untested(x, y, kernel=Kernel(name, gamma=0.3), y_kernel="rbf", y_gamma=0.7)
    assert found.plan.block_rows == 64
    given = {key: value for key, value in Kernel(name, gamma=0.3).to_json().items() if key != "name"}
    assert_direct(found, pairwise_kernels(x, metric=name, **given), pairwise_kernels(y, metric="rbf", gamma=0.7))


def test_digits_and_their_labels():
    digits = load_digits()
    rows, labels = digits.data[:900].astype(np.uint8), digits.target[:900]
    found = untested(rows, target=labels)
    k = pairwise_kernels(rows.astype(float), metric="rbf", gamma=found.gammas[0])
    assert_direct(found, k, (labels[:, None] == labels).astype(float))
    assert found.kernels[1] == "delta (10 classes)"
    text = untested(rows, target=np.array(["zero", "one"])[labels % 2], gamma=found.gammas[0])
    assert_direct(text, k, (labels[:, None] % 2 == labels % 2).astype(float))
    as_numbers = untested(rows, target=labels, gamma=found.gammas[0], y_kernel="linear")
    assert_direct(as_numbers, k, np.outer(labels, labels).astype(float))


def test_whole_numbers_in_floating_point_are_classes_unless_they_are_said_to_be_numbers(tmp_path):
    digits = load_digits()
    rows, labels, said = digits.data[:300], digits.target[:300], []
    expected = untested(rows, target=labels)
    for dtype in ("f2", "f4", "f8", "u1"):
        assert repr(untested(rows, target=labels.astype(dtype), listener=said.append)) == repr(expected)
    taken = [event.message for event in said if isinstance(event, Assumed)]
    assert len(taken) == 4
    assert all("is taken for 10 classes, as it holds whole numbers" in message for message in taken)
    said.clear()
    assert repr(untested(rows, target=labels * 1.0, target_type="classes", listener=said.append)) == repr(expected)
    assert not any(isinstance(event, Assumed | Warned) for event in said)
    numbers = untested(rows, target=labels, target_type="numbers")
    assert (
        numbers.biased == untested(rows, labels[:, None]).biased == untested(rows, target=labels, y_kernel="rbf").biased
    )
    counts = np.random.default_rng(0).integers(0, 10**6, 300)
    assert untested(rows, target=counts).biased == untested(rows, counts[:, None]).biased
    np.save(tmp_path / "x.npy", rows)
    (tmp_path / "y.csv").write_text("label\n" + "".join(f"{label}.0\n" for label in labels))
    words = ("hsic", str(tmp_path / "x.npy"), "--target", f"{tmp_path}/y.csv:label", "--permutations", 0, "--json")
    for more, found in (
        ((), expected),
        (("--target-type", "classes"), expected),
        (("--target-type", "numbers"), numbers),
    ):
        assert json.loads(succeeded(*words, *more))["biased"] == found.biased


def test_linear_kernels_give_the_norm_of_the_covariance():
    """An offset of the samples costs no digits."""
    x, y = pairs()
    norm = np.sum(np.cov(x.T, y.T)[:4, 4:] ** 2)
    for method in ("exact", "landmarks"):
        found = untested(x + 1e5, y - 1e5, kernel="linear", y_kernel="linear", method=method)
        assert found.biased == pytest.approx(norm, rel=1e-7), method


def test_distances_give_the_covariance_of_distances():
    """The kernel of squared distances is the linear one up to terms that centring removes."""
    x, y = pairs()
    expected = untested(x, y, kernel="linear", y_kernel="linear")
    found = untested(x, y, kernel="distance", y_kernel="distance")
    np.testing.assert_allclose([found.biased, found.unbiased], [expected.biased, expected.unbiased], rtol=1e-9)


def test_all_samples_for_landmarks_are_exact():
    x, y = pairs()
    found = untested(x, y, method="landmarks", landmarks=300)
    k, m = (pairwise_kernels(rows, metric="rbf", gamma=gamma) for rows, gamma in zip((x, y), found.gammas, strict=True))
    np.testing.assert_allclose([found.biased, found.unbiased], direct(k, m), rtol=1e-8)


def test_features_come_near_the_exact_value():
    """So does the unbiased estimate, which leaves out the diagonals."""
    x, y = pairs(1000, p=2)
    exact, few = untested(x, y), untested(x, y, method="landmarks")
    many = untested(x, y, method="fourier", random_features=1024)
    assert few.biased == pytest.approx(exact.biased, rel=0.01)
    assert few.unbiased == pytest.approx(exact.unbiased, rel=0.01)
    assert many.biased == pytest.approx(exact.biased, rel=0.02)
    assert many.unbiased == pytest.approx(exact.unbiased, rel=0.02)
    assert few.gammas == exact.gammas
    assert max(few.widths) <= 200 < 1024 == many.widths[0]


def test_classes_are_exact_however_many_there_are():
    """There are more classes than landmarks."""
    x, labels = pairs(600)[0], np.arange(600) % 250
    exact, few = untested(x, target=labels), untested(x, target=labels, method="landmarks", landmarks=240)
    assert few.widths[1] == 250
    assert few.biased == pytest.approx(exact.biased, rel=0.02)


@pytest.mark.parametrize("method", ["exact", "landmarks"])
def test_parts_merge_and_states_round_trip(method):
    """Sums that are merged, one of them restored from its state, give the estimates of all samples."""
    x, y = pairs(40)
    if method == "exact":
        k, m = x @ x.T, y @ y.T
        spans = [Span(0, 15), Span(15, 40)]
        found, other = KernelSums(40), KernelSums(40)
        for target, (one, two) in ((found, (0, 0)), (other, (0, 1)), (other, (1, 1))):
            rows, columns = slice(*spans[one]), slice(*spans[two])
            target.update(spans[one], spans[two], (k[rows, columns], m[rows, columns]))
    else:
        centres = x[0], y[0]
        found, other = CrossMoments(*centres), CrossMoments(*centres)
        found.update(x[:11], y[:11])
        other.update(x[11:30], y[11:30])
        other.update(x[30:], y[30:])
    kind = type(found)
    merged = kind.from_state(found.state())
    merged.absorb(kind.from_state(other.state()))
    np.testing.assert_allclose(merged.estimates(), direct(x @ x.T, y @ y.T), rtol=1e-11)


# -- the test


def test_values_of_permutations_are_those_of_samples_in_that_order():
    x, y = pairs(60)
    k, m = (pairwise_kernels(rows, metric="rbf") for rows in (x, y))
    orders = np.random.default_rng(5)
    orders = [orders.permutation(60) for _ in range(3)]
    for estimator, at in (("biased", 0), ("unbiased", 1)):
        by_kernels = permuted_kernels(np.stack([k, m]), 3, estimator, np.random.default_rng(5))
        linear = permuted_features(x.copy(), y.copy(), 3, estimator, np.random.default_rng(5))
        expected = [direct(k, m[np.ix_(order, order)])[at] for order in orders]
        np.testing.assert_allclose(by_kernels.null, expected, rtol=1e-10)
        assert by_kernels.observed == pytest.approx(direct(k, m)[at], rel=1e-11)
        expected = [direct(x @ x.T, y[order] @ y[order].T)[at] for order in orders]
        np.testing.assert_allclose(linear.null, expected, rtol=1e-10)
        assert linear.observed == pytest.approx(direct(x @ x.T, y @ y.T)[at], rel=1e-11)


def independent(seed, n=60):
    random = np.random.default_rng(seed)
    return random.normal(size=(n, 2)), random.exponential(size=(n, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "estimator"),
    [("exact", "biased"), pytest.param("landmarks", "unbiased", marks=pytest.mark.campaign)],
)
def test_independent_pairs_are_rejected_as_often_as_the_level_says(way, estimator, monkeypatch):
    """A level of 5 % rejects 5 of 100 on average, and 1 to 11 except once in a hundred runs."""
    monkeypatch.setattr("streampca.planning.hsic.EXACT_TEST", 10_000 if way == "exact" else 0)
    rejected = 0
    for seed in PAIRS:
        found = hsic(*independent(seed), permutations=99, landmarks=20, random_state=seed, estimator=estimator)
        assert found.plan.test == way
        rejected += found.p_value <= 0.05
    assert 1 <= rejected <= 11


def test_a_random_sample_is_tested_where_there_are_more(monkeypatch):
    x, y = pairs(3000)
    found = hsic(x, y, test_samples=500, permutations=50)
    assert found.test == "50 permutations of Nystroem features of 500 of 3000 samples, drawn at random"
    assert found.p_value == pytest.approx(1 / 51)
    assert 0.5 < found.observed / found.biased < 2
    assert "all 3000 samples" in hsic(x, y, permutations=1).test


def test_dependence_without_correlation_is_found():
    """The power is over 0.9, while linear kernels reject about as often as by chance."""
    found, seen = [], []
    for seed in range(20):
        random = np.random.default_rng(seed)
        angle = random.uniform(0, 2 * np.pi, 80)
        x, y = np.cos(angle), np.sin(angle) + 0.1 * random.normal(size=80)
        found.append(hsic(x[:, None], y[:, None], permutations=99).p_value)
        seen.append(hsic(x[:, None], y[:, None], kernel="linear", y_kernel="linear", permutations=99).p_value)
    assert np.mean(np.array(found) <= 0.05) > 0.9
    assert np.mean(np.array(seen) <= 0.05) < 0.3


def test_the_three_cases_are_ranked():
    """The cases are independence, x2 = sin x1, which has little covariance over whole periods, and x2 = 2 x1."""
    random = np.random.default_rng(0)
    x = random.uniform(-4 * np.pi, 4 * np.pi, (500, 1))
    others = {"independent": random.uniform(-1, 1, (500, 1)), "sine": np.sin(x), "line": 2 * x}
    found = {name: hsic(x, y, gamma=0.5) for name, y in others.items()}
    assert found["independent"].p_value > 0.05
    assert found["sine"].p_value < 0.01
    assert found["independent"].statistic < found["sine"].statistic < found["line"].statistic
    correlation = {name: abs(np.corrcoef(x.T, y.T)[0, 1]) for name, y in others.items()}
    assert correlation["sine"] < 0.25 < correlation["line"]


def test_equal_values_count_against_a_rejection():
    """With two classes of three samples, 2 of the 20 labellings are the observed one and its mirror image."""
    found = hsic(np.arange(6.0)[:, None] > 2, target=[0, 0, 0, 1, 1, 1], permutations=400, kernel="linear")
    assert found.p_value == pytest.approx(2 / 20, abs=0.05)


# -- how it runs


def test_the_same_seed_gives_the_same_numbers():
    x, y = pairs(2100)
    one, other = (hsic(x, y, method="landmarks", permutations=20, random_state=3) for _ in range(2))
    assert (one.biased, one.p_value) == (other.biased, other.p_value)
    np.testing.assert_array_equal(one.null, other.null)
    assert hsic(x, y, method="landmarks", permutations=0, random_state=4).biased != one.biased


class _StopError(Exception):
    pass


@pytest.mark.parametrize("method", ["exact", "landmarks"])
def test_a_stopped_pass_is_resumed(method, tmp_path, monkeypatch):
    x, y = pairs(900)
    monkeypatch.setattr("streampca.planning.hsic.TILES", (128,))
    monkeypatch.setattr("streampca.planning.hsic.MOST_BLOCK", 100 * 48)
    monkeypatch.setattr("streampca.planning.hsic.thread_count", lambda cores: 1)
    how = {"method": method, "permutations": 0, "memory": 2**30, "checkpoint": tmp_path / "c", "checkpoint_every": 0}
    seen = []

    def run(listener):
        return hsic(x, y, **how, listener=listener)

    def stop(event):
        seen.append(event)
        if len(seen) == 8:
            raise _StopError

    whole = untested(x, y, method=method)
    with pytest.raises(_StopError):
        run(stop)
    after = []
    found = run(after.append)
    assert (found.biased, found.unbiased) == pytest.approx((whole.biased, whole.unbiased), rel=1e-12)
    assert "Resumed" in {type(event).__name__ for event in after}
    assert not (tmp_path / "c").exists()


def test_a_checkpoint_of_other_work_is_refused(tmp_path):
    x, y = pairs(100)

    def stop(event):
        if type(event).__name__ == "BlockDone":
            raise Stopped("now")

    with pytest.raises(Stopped):
        hsic(x, y, checkpoint=tmp_path / "c", checkpoint_every=0, listener=stop)
    with pytest.raises(OutputError, match="landmarks"):
        hsic(x, y, landmarks=50, checkpoint=tmp_path / "c")


def test_tasks_travel_to_workers():
    """A pickled task reads and adds up the same."""
    sides = tuple(KernelSide(streampca.open_collection(rows), Kernel("rbf", gamma=0.3)) for rows in (X, Y))
    sides = tuple(side.resolved(np.random.default_rng(0)) for side in sides)
    maps = tuple(side.feature_map("landmarks", HsicRequest(), np.random.default_rng(0)) for side in sides)
    centres = tuple(np.zeros(each.n_features) for each in maps)
    tiles = KernelTiles(sides, 20)
    for task, whole in ((tiles, Span(0, tiles.n_tiles)), (MappedPairs(sides, 30, maps, centres, 7), Span(0, 50))):
        other = pickle.loads(pickle.dumps(task))  # noqa: S301 - our own bytes
        sums = []
        for each in (task, other):
            sums.append(each.start())
            for block in each.blocks(whole):
                each.feed(sums[-1], block, each.fetch(block))
        assert sums[0].estimates() == sums[1].estimates()
        assert sums[0].estimates().biased == pytest.approx(untested(X, Y, gamma=0.3, y_gamma=0.3).biased)
        assert sum(each.counts(block).samples for block in each.blocks(whole)) == 50


def test_blocks_and_tests_shrink_with_the_budget():
    """The refusal of a smaller budget names one that suffices."""
    big = np.broadcast_to(np.float32(0), (10**6, 64))
    side = KernelSide(streampca.open_collection(big), kernel_of("rbf", 1.0)).sizes
    plans = [plan_hsic(side, side, HsicRequest(memory=size * 2**20)) for size in (512, 64)]
    assert plans[0].method == "landmarks"
    assert all(plan.memory_estimate.total <= size * 2**20 for plan, size in zip(plans, (512, 64), strict=True))
    assert plans[0].test_samples == 10_000 > plans[1].test_samples
    for method, workers in (("landmarks", 1), ("fourier", 3)):  # blocks of the latter grow with the budget
        request = HsicRequest(method=method, memory=2**20, workers=workers)
        with pytest.raises(BudgetError, match=rf"HSIC of 1000000 samples by method '{method}' needs") as refused:
            plan_hsic(side, side, request)
        least = int(str(refused.value).partition("at least ")[2].partition("MiB")[0]) * 2**20
        assert plan_hsic(side, side, replace(request, memory=least)).method == method


@pytest.mark.parametrize("method", ["exact", "landmarks"])
def test_a_plan_without_the_work(method, here):
    """It is the plan of the run, at each door."""
    np.save("x.npy", X)
    np.save("y.npy", Y)
    options = ("x.npy", "y.npy", "--method", method, "--memory", "256MiB")
    plan = streampca.plan_hsic("x.npy", "y.npy", method=method, memory="256 MiB")
    assert plan == streampca.hsic("x.npy", "y.npy", method=method, memory="256 MiB").plan
    assert unwrapped(succeeded("hsic", *options, "--plan")) == unwrapped(str(plan))
    assert json.loads(succeeded("hsic", *options, "--plan", "--json"))["method"] == method
    assert plan.tested in unwrapped(str(plan))


MEASURED = """
import json, sys
import numpy as np
import streampca
from streampca.machine import PeakMeter

source, memory = sys.argv[1:]
for method in ("exact", "landmarks", "fourier"):  # imports, and threads of BLAS
    streampca.hsic(np.eye(90), np.eye(90), gamma=1.0, y_gamma=1.0, method=method, permutations=1)
asked = {"permutations": 3, "memory": memory, "gamma": 1e-5, "y_gamma": 1e-5, "listener": lambda event: None}
found = {"peak": 0, "cases": []}
for method, n, options in (("exact", 2600, {}), ("landmarks", 16000, {}), ("fourier", 16000, {"random_features": 512})):
    x = streampca.open_collection(source, samples=slice(0, n))
    meter = PeakMeter()
    plan = streampca.hsic(x, x, method=method, **options, **asked).plan
    found["cases"].append((method, meter.peak(), plan.memory_estimate.total))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_memory_estimate_holds_in_a_fresh_process(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (16000, 512), np.uint8)
    np.save(tmp_path / "x.npy", rows)
    for method, peak, estimate in measured(MEASURED, tmp_path / "x.npy", "96MiB")["cases"]:
        print(method, round(peak / 2**20, 1), round(estimate / 2**20, 1))
        assert peak <= estimate <= 96 * 2**20, method


X, Y = pairs(50)
CODES = np.arange(50) % 2


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"target": np.zeros(50, int)}, DataError, "0 for every sample, and dependence needs two classes"),
        ({"target": np.arange(50), "target_type": "classes"}, DataError, "differs for each of its 50 samples"),
        (
            {"target": np.arange(50) // 1.5 % 30},
            RequestError,
            r"give target_type='classes' or 'numbers'",
        ),
        (
            {"target": CODES, "target_type": "label"},
            RequestError,
            "target_type = 'label': give 'auto', 'classes' or 'num",
        ),
        ({"target": CODES, "target_type": "classes", "y_kernel": "rbf"}, RequestError, "leave one of the two out"),
        ({"target": CODES, "y_kernel": "delta"}, RequestError, "and leave the kernel out"),
        ({"target": CODES.astype(str), "target_type": "numbers"}, RequestError, "text such as '0', which is no number"),
        ({"target": np.where(CODES, np.nan, 1), "target_type": "classes"}, DataError, r"sample 1 of .* is \[nan\]"),
        ({"y": Y, "target_type": "numbers"}, RequestError, "is of a target, and a collection is given"),
        ({"target": [f"a{i % 3}" for i in range(50)], "y_kernel": "rbf"}, RequestError, "is text, such as 'a0'"),
        ({"y": Y[:40]}, RequestError, "has 50 samples and numpy array has 40"),
        ({"target": CODES[:40]}, RequestError, "has 40 values"),
        ({"y": Y, "gamma": 0}, RequestError, "gamma = 0: give a number above 0, 'auto' or None"),
        ({"y": Y, "landmarks": 51}, RequestError, "landmarks 51 are more than the 50 samples"),
        ({"y": Y, "landmarks": 1}, RequestError, "landmarks = 1: give a whole number of at least 2"),
        ({"y": Y, "method": "quick"}, RequestError, "give 'auto', 'exact', 'landmarks' or 'fourier'"),
        ({"y": Y, "kernel": "cosine", "method": "fourier"}, RequestError, "the kernel is cosine; use method 'landm"),
        ({"y": Y, "y_kernel": "delta"}, RequestError, "kernel 'delta' is of labels"),
        ({"y": Y, "target": CODES}, RequestError, "give one"),
        ({}, RequestError, "give one"),
        ({"y": np.where(np.arange(100).reshape(50, 2) == 31, np.nan, Y)}, DataError, "sample 15 of"),
        ({"y": np.zeros((50, 2))}, RequestError, "most are equal; give gamma a number"),
        ({"y": Y, "y_kernel": Kernel("rbf", gamma=1.0), "y_gamma": 0.5}, RequestError, "is for kernels given by name"),
        ({"y": Y, "y_kernel": Kernel("own", function=lambda a, b: float(a[0]))}, RequestError, "is not symmetric"),
        ({"y": Y, "y_kernel": Kernel("own", function=lambda a, b: -1.0)}, RequestError, "no inner product"),
        ({"y": Y, "kernel": Kernel("polynomial", gamma=1e9, degree=90)}, DataError, "smaller gamma or degree"),
        ({"y": Y, "test_samples": 3}, RequestError, "test_samples = 3: give a whole number of at least 50"),
    ],
)
def test_bad_input_is_refused_in_one_line(wrong, error, said):
    with pytest.raises(error, match=said) as refused:
        hsic(X, **wrong)
    assert isinstance(refused.value, StreampcaError)
    assert "\n" not in str(refused.value)


def test_an_unknown_option_is_named_with_the_nearest():
    with pytest.raises(TypeError, match=r"'landmark' is not an option\. Did you mean 'landmarks'"):
        hsic(X, Y, landmark=3)


def test_three_samples_are_too_few():
    with pytest.raises(DataError, match="at least 4 samples, and there are 3"):
        hsic(X[:3], Y[:3])


def test_the_command_prints_and_refuses(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    np.save(tmp_path / "labels.npy", CODES)
    x, y, labels = (str(tmp_path / name) for name in ("x.npy", "y.npy", "labels.npy"))
    expected = hsic(x, y, gamma=0.5, y_kernel="laplacian", permutations=19, random_state=2)
    words = ("--gamma", "0.5", "--y-kernel", "laplacian", "--permutations", 19, "--random-state", 2)
    assert succeeded("hsic", x, y, *words).strip() == repr(expected)
    told = json.loads(succeeded("hsic", x, "--target", labels, "--permutations", 9, "--json"))
    assert told == hsic(x, target=labels, permutations=9).to_json()
    assert told["sources"] == [x, labels]
    assert "landmarks 60 are more than the 50 samples" in typed("hsic", x, y, "--landmarks", 60).err
    assert "--gamma 0: give a number above 0, auto or null" in typed("hsic", x, y, "--gamma", 0).err
    assert "give one" in typed("hsic", x).err


def test_the_result_says_how_it_was_found():
    found = hsic(X, target=CODES, permutations=9)
    assert repr(found).splitlines()[0].startswith("HSIC of 50 samples: 0.0")
    assert "by exact kernels" in repr(found)
    told = found.to_json()
    assert json.loads(json.dumps(told)) == told
    assert (told["permutations"], told["kernels"][1]) == (9, "delta (2 classes)")
