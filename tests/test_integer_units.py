"""Whole numbers multiplied on integer units have the bits of Python's integers, and units that saturate are refused."""

from __future__ import annotations

import sys
from dataclasses import replace

import by_options
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streampca
from streampca import machine
from streampca.accumulators import Gram, Scatter, integer_products
from streampca.accumulators.integer_products import (
    SIGNED,
    IntegerKernel,
    IntegerProducts,
    as_whole,
    graph,
    is_exact,
    onnxruntime_kernel,
    signed_bytes,
    tile_columns,
    tiles_of,
    tried_shapes,
)
from streampca.execution import LocalExecutor
from streampca.fitting.methods import METHODS, Job
from streampca.fitting.open_fit import prepare
from streampca.models.accuracy import sentences
from streampca.planning import make_plan
from streampca.planning.blocks import spans_of
from streampca.planning.memory import INTEGER_TILE
from streampca.planning.request import Problem
from streampca.preprocessing.sizes_for_planning import problem_of

P = 5
DTYPES = ("u1", "i1", "b1", "u2", "i2", ">u2", "f4", "f8")


def by_numpy(x, y, start, stop, out):
    out[...] = x[:, start:stop].astype(np.int32).T @ y[:, :stop].astype(np.int32)


def saturating_pairs(x, y, start, stop, out):
    """Products as processors without VNNI or AMX make them: pairs are added in 16 bits, which saturate."""
    x, y = (np.pad(some, ((0, len(x) % 2), (0, 0))).astype(np.int32) for some in (x[:, start:stop], y[:, :stop]))
    pairs = x[::2, :, None] * y[::2, None] + x[1::2, :, None] * y[1::2, None]
    out[...] = np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=0, dtype=np.int32)


EXACT, SATURATING = IntegerKernel(by_numpy, signed=True), IntegerKernel(saturating_pairs, signed=True)


@pytest.fixture
def units(monkeypatch):
    """Integer units that are exact on every processor: of unsigned bytes, by the same library."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(SIGNED, "amx", False)
    monkeypatch.setattr(machine, "integer_units", lambda: "amx")


def as_integers(x):
    return np.rint(x.astype(np.float64)).astype(np.int64)


@settings(max_examples=30)
@given(
    data=st.data(), dtype=st.sampled_from(DTYPES), rows=st.integers(1, 40), p=st.integers(1, 9), tile=st.integers(2, 8)
)
def test_blocks_are_multiplied_as_python_multiplies_them(data, dtype, rows, p, tile):
    """About any whole numbers, in tiles of any size; extreme values come often."""
    word = {"f4": "i2", "f8": "u2", "b1": "u1"}.get(dtype, dtype)
    low, high = (0, 1) if dtype == "b1" else (np.iinfo(word).min, np.iinfo(word).max)
    number = st.sampled_from([low, high]) | st.integers(low, high)
    x = np.array(data.draw(st.lists(number, min_size=rows * p, max_size=rows * p))).reshape(rows, p)
    centre = np.array(data.draw(st.lists(number, min_size=p, max_size=p)), np.float64)
    total = np.zeros((p, p), order="F")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_products, "INTEGER_TILE", tile // 2 * 2)
        sums, squares = IntegerProducts(EXACT).add(as_whole(x.astype(dtype)), centre, total)
    about = x.astype(object) - centre.astype(int).astype(object)
    np.testing.assert_array_equal(np.triu(total), np.triu((about.T @ about).astype(np.float64)))
    np.testing.assert_array_equal(sums, about.sum(axis=0).astype(np.float64))
    np.testing.assert_array_equal(squares, (about**2).sum(axis=0).astype(np.float64))


@settings(max_examples=30)
@given(
    data=st.data(), dtype=st.sampled_from(DTYPES), n=st.integers(1, 12), p=st.integers(1, 30), tile=st.integers(2, 8)
)
def test_samples_are_multiplied_as_python_multiplies_them(data, dtype, n, p, tile):
    """About any whole numbers among those of each feature, in tiles of any size."""
    word = {"f4": "i2", "f8": "u2", "b1": "u1"}.get(dtype, dtype)
    low, high = (0, 1) if dtype == "b1" else (np.iinfo(word).min, np.iinfo(word).max)
    number = st.sampled_from([low, high]) | st.integers(low, high)
    x = np.array(data.draw(st.lists(number, min_size=n * p, max_size=n * p))).reshape(n, p)
    centre = x[data.draw(st.integers(0, n - 1))].astype(np.float64)
    total = np.zeros((n, n), order="F")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_products, "INTEGER_TILE", tile // 2 * 2)
        patch.setattr(integer_products, "TURNED_COLUMNS", 7)
        squares = IntegerProducts(EXACT).add_among(as_whole(x.astype(dtype)), centre, total)
    about = x.astype(object) - centre.astype(int).astype(object)
    np.testing.assert_array_equal(np.triu(total), np.triu((about @ about.T).astype(np.float64)))
    np.testing.assert_array_equal(squares, (about**2).sum(axis=1).astype(np.float64))


def test_70000_rows_of_extreme_values():
    """More than int32 holds at once: 255 * 128 * 65794 is beyond."""
    assert 255 * 128 * EXACT.most_rows < 2**31 <= 255 * 128 * (EXACT.most_rows + 1)
    x = np.random.default_rng(0).choice(np.array([0, 2**16 - 1], np.uint16), (70_000, P))
    x[:, 0] = 2**16 - 1
    total, products, centre = np.zeros((P, P), order="F"), IntegerProducts(EXACT), np.full(P, 32768.0)
    for start in range(0, len(x), 65_000):
        products.add(as_whole(x[start : start + 65_000]), centre, total)
    about = x.astype(np.int64) - 32768
    np.testing.assert_array_equal(np.triu(total), np.triu(about.T @ about))


# -- the self-test


@pytest.mark.parametrize("width", [1, 2, 3, 17, 64, 100, INTEGER_TILE + 13])
def test_units_that_saturate_pairs_are_refused_at_every_shape(width):
    """Remainders included; and those that are exact are taken."""
    assert is_exact(EXACT, width)
    assert not is_exact(SATURATING, width)
    for rows, columns in tried_shapes(SATURATING, width):
        assert not integer_products._is_exact(SATURATING, rows, columns, tile_columns(width)), (rows, columns)


@pytest.mark.parametrize("of", [2, 4, 16, 64])
def test_units_that_are_wrong_in_remainders_only_are_refused(of):
    def multiply(x, y, start, stop, out):
        whole = len(x) // of * of
        by_numpy(x[:whole], y[:whole], start, stop, out)
        rest = np.empty_like(out)
        saturating_pairs(x[whole:], y[whole:], start, stop, rest)
        out += rest

    kernel = IntegerKernel(multiply, signed=True)
    assert of == 2 or not is_exact(kernel, 100)  # of pairs, one row is left, which is exact


def test_what_is_not_there_is_not_used(monkeypatch):
    assert integer_products.integer_products("none", P) is None
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    onnxruntime_kernel.cache_clear()
    try:
        assert integer_products.integer_products("amx", P) is None
    finally:
        onnxruntime_kernel.cache_clear()


def test_the_library_multiplies_by_our_graph():
    pytest.importorskip("onnxruntime")
    assert len(graph(signed=True)) < 400
    kernel, rng = onnxruntime_kernel(signed=False), np.random.default_rng(0)
    for rows, width in [(1, 1), (7, 3), (64, 100), (33, INTEGER_TILE + 5)]:
        assert is_exact(kernel, width)
        x = rng.integers(0, 256, (rows, width)).astype(np.uint8)
        for start, stop in tiles_of(width, tile_columns(width)):
            out = np.empty((stop - start, stop), np.int32)
            kernel.multiply(x, x, start, stop, out)
            np.testing.assert_array_equal(out, x[:, start:stop].astype(int).T @ x[:, :stop])
    signed = onnxruntime_kernel(signed=True)  # right on some processors only, and then always
    x, out = rng.integers(0, 256, (64, 9)).astype(np.uint8), np.empty((9, 9), np.int32)
    signed.multiply(x, signed_bytes(x), 0, 9, out)
    assert np.array_equal(out, x.astype(int).T @ signed_bytes(x)) or not is_exact(signed, 9)


# -- the scatter matrix


def fed(parts, **how):
    found = Scatter(parts[0].shape[1], **how)
    for part in parts:
        found.update(part)
    found.settle()
    return found


def assert_same_sums(one, other):
    np.testing.assert_array_equal(np.triu(one.upper), np.triu(other.upper))
    np.testing.assert_array_equal(one.mean, other.mean)
    assert one.trace == other.trace
    assert one.agrees
    assert other.agrees


@pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "f4"])
def test_scatters_have_the_same_bits_with_and_without_units(units, dtype):
    """By blocks of any size; 16 bits beside float64, as float32 does not hold their products."""
    high = 256 if dtype in ("u1", "f4") else 2**15
    x = np.random.default_rng(1).integers(0, high, (4200, 70)).astype(dtype)
    without = fed([x], precision="single" if high == 256 else "double")
    assert not without.n_on_integer_units
    for rows in (1, 7, 1000, 4096):
        few = x[:300] if rows == 1 else x
        found = fed(np.split(few, range(rows, len(few), rows)), integer_units="amx")
        assert found.n_on_integer_units == len(few)
        assert_same_sums(found, fed([few], precision="double") if rows == 1 else without)


def test_probes_of_exact_rows_are_made_of_their_sums(units):
    """When fractions, weights or other sums follow: then as if every row had been multiplied with them."""
    x = np.random.default_rng(8).integers(0, 256, (1200, 40)).astype(np.float32)
    parts = [x[:500], x[500:600] + np.float32(0.25), x[600:]]
    expected = fed(parts, precision="double")
    joined = fed(parts[:1], precision="double", integer_units="amx")
    joined.absorb(fed(parts[1:], precision="double", integer_units="amx"))
    joined.settle()
    state = Scatter(40, precision="double", integer_units="amx")
    state.update(parts[0])
    resumed = Scatter.from_state(state.state(), integer_units="amx")
    for part in parts[1:]:
        resumed.update(part)
    resumed.settle()
    for found in (fed(parts, precision="double", integer_units="amx"), joined, resumed):
        assert found.n_on_integer_units == 1100
        scale = np.abs(expected.probe_products).max()
        np.testing.assert_allclose(found.probe_products, expected.probe_products, rtol=0, atol=1e-12 * scale)


def test_bits_of_probes_do_not_depend_on_when_a_scatter_was_saved(units):
    """After the last row as before it: probes are made of the sums once, about the mean, and not for a state."""
    x = np.random.default_rng(9).integers(0, 256, (900, 40)).astype(np.uint8)
    unbroken, saved, resumed = (Scatter(40, integer_units="amx") for _ in range(3))
    for start in (0, 300, 600):
        for each in (unbroken, saved, resumed):
            each.update(x[start : start + 300])
        saved.state()
        resumed = Scatter.from_state(resumed.state(), integer_units="amx")
    for each in (unbroken, saved, resumed):
        each.settle()
        np.testing.assert_array_equal(each.probe_products, unbroken.probe_products)


def test_exact_sums_that_are_wrong_leave_no_bounds(units):
    """Unless what S lacks is noticed before fractions hide it, probes made of S would agree with it."""
    x = np.random.default_rng(9).integers(0, 256, (600, 40)).astype(np.float32)
    found = Scatter(40, integer_units="amx")
    found.update(x)
    found._scatter[3, 7] += 1
    assert found.agrees is False
    found.update(x + np.float32(0.5))
    assert np.isnan(found.probe_products).any()


def gram_of(parts, **how):
    """Gram matrix of samples whose features come in parts."""
    found, at = Gram(len(parts[0]), **how), 0
    for part in parts:
        found.update(part, at=at)
        at += part.shape[1]
    return found


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2"])
@pytest.mark.parametrize("threads", [1, 2])
def test_gram_matrices_on_units_are_exact_however_features_are_cut(units, dtype, threads):
    bounds = np.iinfo(dtype)
    x = np.random.default_rng(6).integers(bounds.min, bounds.max, (30, 3000), endpoint=True).astype(dtype)
    about = x.astype(np.int64) - np.rint(x.mean(axis=0)).astype(np.int64)
    exact = np.triu(about @ about.T)
    for cuts in ([], [1000], [1, 700, 2000]):
        for size in (4096, 256):
            how = {"integer_units": "amx", "threads": threads, "product_features": size}
            found = gram_of(np.split(x, cuts, axis=1), **how)
            assert found.n_on_integer_units == 3000
            assert found.sums_exactly
            assert found.agrees
            np.testing.assert_array_equal(np.triu(found.products()[0]), exact)


def test_gram_matrices_resume_with_and_without_units(units):
    x = np.random.default_rng(6).integers(0, 256, (40, 2000)).astype(np.uint8)
    whole = gram_of([x]).centred()
    for first, then in (("amx", "none"), ("none", "amx")):
        half = gram_of([x[:, :900]], integer_units=first)
        found = Gram.from_state(half.state(), integer_units=then)
        found.update(x[:, 900:], at=900)
        assert 0 < found.n_on_integer_units < 2000
        assert found.agrees
        np.testing.assert_array_equal(np.triu(found.centred().upper), np.triu(whole.upper))


def test_wrong_sums_of_a_gram_matrix_on_units_are_noticed(units):
    found = gram_of([np.random.default_rng(6).integers(0, 256, (40, 500)).astype(np.uint8)], integer_units="amx")
    found._gram[3, 7] += 1
    assert found.agrees is False


def test_a_state_goes_on_with_other_units(units):
    x = np.random.default_rng(2).integers(0, 256, (3000, 40)).astype(np.uint8)
    whole = fed([x])
    for first, then in (("amx", "none"), ("none", "amx")):
        half = Scatter(40, integer_units=first)
        half.update(x[:1234])
        found = Scatter.from_state(half.state(), integer_units=then)
        found.update(x[1234:])
        found.settle()
        assert 0 < found.n_on_integer_units < 3000
        assert_same_sums(found, whole)


def test_fractions_and_weights_are_multiplied_in_floating_point(units):
    x = np.random.default_rng(3).integers(0, 256, (900, 40)).astype(np.float32)
    parts = [x[:300], x[300:600] + np.float32(0.5), x[600:]]
    assert fed(parts, integer_units="amx").n_on_integer_units == 600
    weighted = Scatter(40, integer_units="amx")
    weighted.update(x, weights=np.full(900, 0.3))
    assert weighted.n_on_integer_units == 0
    assert not weighted.exact


@pytest.mark.parametrize("precision", ["single", "double"])
def test_fractions_before_cost_whole_numbers_far_from_zero_nothing(units, precision):
    """Centred before they are added: products about zero would lose 7 digits in a total that holds fractions."""
    x = np.random.default_rng(7).integers(60_000, 60_004, (20_000, 64)).astype(np.float32)
    first = np.full((1, 64), 60_000.5, np.float32)
    found = fed([first, x], integer_units="amx", precision=precision)
    assert found.n_on_integer_units == len(x)
    exact = np.concatenate([first, x]).astype(np.float64) - 60_000
    exact -= exact.mean(axis=0)
    np.testing.assert_allclose(np.triu(found.upper), np.triu(exact.T @ exact), rtol=0, atol=3e-12 * len(x))


def test_values_beyond_16_bits_are_multiplied_in_floating_point(units):
    x = np.random.default_rng(4).integers(-(2**15), 2**16, (90, 40)).astype(np.float32)
    x[0, :2] = -(2**15), 2**16 - 1
    assert as_whole(x) is None
    assert as_whole(x.astype(np.int32)) is None
    assert fed([x], integer_units="amx").n_on_integer_units == 0


# -- whole fits


def images(dtype, high):
    return np.random.default_rng(5).integers(0, high, (30_000, 300)).astype(dtype)


@pytest.mark.parametrize(("dtype", "high"), [("u1", 256), ("f4", 256), ("u2", 2**16)])
def test_fits_on_units_are_exact_and_say_so(units, monkeypatch, dtype, high):
    x = images(dtype, high)
    how = {"n_components": 5, "method": "covariance", "precision": "single"}
    found = by_options.fit(x, **how)
    assert found.provenance["plan"]["integer_units"] == "amx"
    assert found.provenance["samples_on_integer_units"] == len(x)
    assert found.provenance["exact_sums"]
    assert np.all(found.error_bound < 1e-13)
    assert "30000 samples were multiplied exactly, on integer units" in sentences(found)
    monkeypatch.setattr(machine, "integer_units", lambda: "none")
    other = by_options.fit(x, **how)
    assert other.provenance["exact_sums"] == (high == 256)
    if high == 256:
        for name in ("mean", "components", "explained_variance", "total_variance"):
            np.testing.assert_array_equal(getattr(found, name), getattr(other, name))


def test_dual_fits_on_units_are_exact_and_say_so(units, monkeypatch):
    x = np.random.default_rng(5).integers(0, 256, (600, 6000)).astype(np.uint8)
    how = {"n_components": 5, "method": "dual", "precision": "single"}
    found = by_options.fit(x, **how)
    assert found.provenance["plan"]["integer_units"] == "amx"
    assert found.provenance["samples_on_integer_units"] == len(x)
    assert found.provenance["exact_sums"]
    monkeypatch.setattr(machine, "integer_units", lambda: "none")
    other = by_options.fit(x, **how)
    for name in ("mean", "components", "explained_variance", "total_variance"):
        np.testing.assert_array_equal(getattr(found, name), getattr(other, name))


def test_units_that_saturate_decline_themselves(monkeypatch):
    monkeypatch.setattr(machine, "integer_units", lambda: "amx")
    monkeypatch.setattr(integer_products, "onnxruntime_kernel", lambda **_: SATURATING)
    found = streampca.fit(images("u1", 256), streampca.PCA(5, method="covariance", precision="single"))
    assert found.provenance["plan"]["integer_units"] == "amx"
    assert "samples_on_integer_units" not in found.provenance
    assert found.provenance["exact_sums"]


def test_spans_and_blocks_change_no_bit(units):
    collection = prepare(streampca.open_collection(images("u1", 256)[:9000]), None)
    plan = make_plan(
        problem_of(collection), by_options.request(5, memory=2**30, precision="single", method="covariance")
    )
    plan = replace(plan, integer_units="amx")
    found = [
        METHODS["covariance"](
            Job(
                collection,
                replace(plan, block_rows=rows, spans=spans_of(9000, spans, rows), threads=threads),
                LocalExecutor(),
            )
        )
        for rows, spans, threads in ((9000, 1, 1), (1000, 2, 2), (700, 3, 2))
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other.explained_variance, found[0].explained_variance)
        np.testing.assert_array_equal(other.components, found[0].components)


# -- the plan


def problem(n, p, dtype, units, **more):
    kind = np.dtype(dtype)
    made = Problem(n, p, (p,), p * kind.itemsize, kind.itemsize, kind.kind, **more)
    return replace(made, machine=replace(made.machine, cores=2, memory=2**34, integer_units=units))


@pytest.mark.parametrize(
    ("dtype", "units", "taken"),
    [
        ("u1", "amx", True), ("u1", "vnni", True), ("u1", "arm", True), ("u1", "none", False),
        ("u2", "amx", True), ("u2", "vnni", False), ("f4", "amx", True), ("f4", "vnni", False), ("i4", "amx", False),
    ],
)  # fmt: skip
def test_units_are_planned_where_they_are_faster(dtype, units, taken):
    planned = make_plan(problem(200_000, 784, dtype, units), by_options.request(50, method="covariance"))
    assert (planned.integer_units != "none") == taken
    assert ("integer units" in str(planned)) == taken


def test_small_budgets_and_small_problems_decline_units():
    large = problem(200_000, 784, "u1", "amx")
    small = make_plan(large, by_options.request(50, method="covariance", memory=64 * 2**20))
    assert small.integer_units == "none"
    assert (
        make_plan(problem(1000, 100, "u1", "amx"), by_options.request(5, method="covariance")).integer_units == "none"
    )
    assert (
        make_plan(replace(large, total_weight=9.0), by_options.request(50, method="covariance")).integer_units == "none"
    )
    wide = problem(1000, 250_000, "u1", "amx")
    assert make_plan(wide, by_options.request(50, method="dual")).integer_units == "amx"
    least = make_plan(wide, by_options.request(5, method="dual", memory=80 * 2**20))
    assert least.integer_units == "none"


@pytest.mark.parametrize(("method", "shape"), [("covariance", (200_000, 784)), ("dual", (1000, 250_000))])
@pytest.mark.parametrize(("dtype", "units"), [("u1", "amx"), ("u2", "none")])
def test_workers_have_units_where_their_bits_do_not_depend_on_it(method, shape, dtype, units):
    """Another worker without them would round products of 16 bits."""
    assert make_plan(problem(*shape, dtype, "amx"), by_options.request(50, method=method)).integer_units == "amx"
    assert (
        make_plan(problem(*shape, dtype, "amx"), by_options.request(50, method=method, workers=2)).integer_units
        == units
    )


def test_the_predicted_time_knows_integer_units():
    """Numbers of 16 bits are four products of bytes each; of floats it is not known that they are whole."""
    seconds = {
        (dtype, units): make_plan(
            problem(10**6, 2000, dtype, units), by_options.request(20, method="covariance")
        ).seconds
        for dtype in ("u1", "u2", "f4")
        for units in ("none", "amx")
    }
    assert 2 * seconds["u1", "amx"] < seconds["u1", "none"]
    assert seconds["u1", "amx"] < seconds["u2", "amx"] < seconds["u2", "none"]
    assert seconds["f4", "amx"] == pytest.approx(seconds["f4", "none"], rel=0.5)
