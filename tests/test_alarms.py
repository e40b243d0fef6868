"""Wrong products and damaged sums are caught, and clean runs raise no alarm."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pytest
from shell import DATA

import streampca
from streampca.accumulators import Gram, Scatter
from streampca.accumulators import scatter as scatter_module
from streampca.accumulators import tile_product as tiles_module
from streampca.accumulators.checksums import FaultError
from streampca.accumulators.probes import Probes
from streampca.eigensolvers import certify
from streampca.planning.blocks import Span
from streampca.testing import assert_same_state

P = 60


def samples(rows=3000, p=P, dtype="f4", offset=30.0, seed=0):
    """Rows with variances that fall as 1/i."""
    rng = np.random.default_rng(seed)
    x = 60 * rng.normal(size=(rows, p)) / np.sqrt(np.arange(1, p + 1)) @ np.linalg.qr(rng.normal(size=(p, p)))[0]
    return (np.rint(x) if np.dtype(dtype).kind in "iu" else x + offset).astype(dtype)


def alarms(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "streampca"]


class Wrong:
    """A product that has one wrong entry at some of its calls."""

    def __init__(self, product, at, size):
        self.product, self.at, self.size, self.calls = product, at, size, 0

    def __call__(self, *args, **kwargs):
        made = self.product(*args, **kwargs)
        if self.calls in self.at:
            size = self.size(self.calls) if callable(self.size) else self.size
            made[min(5, made.shape[0] - 1), min(17, made.shape[1] - 1)] += size * made.diagonal().mean()
        self.calls += 1
        return made


def fed(new, x, block=700):
    scatter = new()
    for start in range(0, len(x), block):
        scatter.update(x[start : start + block], at=start)
    return scatter


@pytest.mark.parametrize("one_thread", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "i2"])
@pytest.mark.parametrize("size", [-1e3, 1.0, 0.03, np.inf, np.nan])
def test_a_wrong_product_is_done_again(monkeypatch, caplog, dtype, size, one_thread):
    new, x = partial(Scatter, P, product_rows=512, one_thread=one_thread), samples(dtype=dtype)
    clean = fed(new, x)
    assert not alarms(caplog)
    monkeypatch.setattr(scatter_module, "among", Wrong(scatter_module.among, {4}, size))
    found = fed(new, x)
    (alarm,) = alarms(caplog)
    assert "product of samples" in alarm
    assert "computed again" in alarm
    assert_same_state(found.state(), clean.state())


def test_the_block_is_named(monkeypatch, caplog):
    monkeypatch.setattr(scatter_module, "among", Wrong(scatter_module.among, {3}, 1.0))
    fed(partial(Scatter, P, product_rows=512), samples(), block=1000)
    assert "samples 1512 to 1999 " in alarms(caplog)[0]


def test_a_wrong_checksum_is_done_again(monkeypatch, caplog):
    clean, calls, multiply = fed(partial(Scatter, P), samples()), [], Probes.multiply

    def wrong(self, rows):
        made = multiply(self, rows)
        calls.append(len(rows))
        if len(calls) == 1:
            made[7] *= 2
        return made

    monkeypatch.setattr(Probes, "multiply", wrong)
    found = fed(partial(Scatter, P), samples())
    assert len(alarms(caplog)) == 1
    assert_same_state(found.state(), clean.state())


def test_a_product_wrong_twice_in_different_ways_is_refused(monkeypatch):
    monkeypatch.setattr(scatter_module, "among", Wrong(scatter_module.among, {2, 3}, float))
    with pytest.raises(FaultError, match=r"samples \d+ to \d+ came out wrong twice.*Use another machine"):
        fed(partial(Scatter, P), samples())


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_wrong_tile_is_done_again(monkeypatch, caplog, precision, threads):
    """Of a Gram matrix: among themselves, where not added at once, and of panels that meet."""
    x = samples(40, 900, "f4")
    new = partial(Gram, 40, precision=precision, product_features=300, threads=threads)
    first, second, centre = Span(0, 25), Span(25, 40), x.mean(axis=0, dtype=np.float64)

    def swept():
        gram = new()
        gram.update(x)
        return gram

    def paired():
        gram = new()
        gram.update_pair(first, x[:25], second, x[25:], centre)
        return gram

    clean = swept(), paired()
    for name, make, expected in (("among", swept, clean[0]), ("times", paired, clean[1])):
        if precision == "double" and name == "among":
            continue
        caplog.clear()
        monkeypatch.setattr(tiles_module, name, Wrong(getattr(tiles_module, name), {1}, 0.1))
        assert_same_state(make().state(), expected.state())
        assert len(alarms(caplog)) == 1
        assert "300 features of samples 0 to " in alarms(caplog)[0]


def flip(values, entry, bit):
    """Flip a bit of one entry of a float64 array, or none."""
    if bit is None:
        return
    word = values[entry].view(np.uint64) ^ np.uint64(1 << bit)
    values[entry] = word.view(np.float64)


def usual_entry(upper):
    """Where the size of an entry above the diagonal is the median of all."""
    rows, columns = np.triu_indices(len(upper), 1)
    sizes = np.abs(upper[rows, columns])
    middle = np.argsort(sizes)[len(sizes) // 2]
    return rows[middle], columns[middle]


def left_over(x, values, vectors):
    """Norms of S v - theta v, by float64 from the samples, for pairs (theta, v)."""
    exact = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    return np.linalg.norm(exact.T @ (exact @ vectors) - vectors * values, axis=0)


LEADING = {"single": 6, "double": 30}  # bits of the mantissa that are caught at least


@pytest.mark.parametrize("precision", LEADING)
@pytest.mark.parametrize("where", ["above the diagonal", "on the diagonal"])
def test_a_flipped_bit_is_caught_or_lies_within_the_bounds(caplog, precision, where):
    """Of the running scatter, half way: by an alarm or bounds 10 times what they were."""
    x = samples(4000, 40)

    def solved(bit):
        scatter = Scatter(40, precision=precision, product_rows=512)
        scatter.update(x[:2000])
        upper = scatter._scatter
        flip(upper, usual_entry(upper) if where == "above the diagonal" else (20, 20), bit)
        scatter.update(x[2000:])
        scatter.settle()
        values, vectors = np.linalg.eigh(scatter.matrix(), UPLO="U")
        values, vectors = values[::-1][:8], vectors[:, ::-1][:, :8]
        probes = scatter.probe_directions, scatter.probe_products, scatter.probe_rounding
        residual = certify(values, vectors, **dict(zip(("directions", "products", "rounding"), probes, strict=True)))
        assert np.all(left_over(x, values, vectors) <= residual.residual), bit
        return residual.residual

    clean, caught, refused = solved(None), [], []
    assert not alarms(caplog)
    for bit in range(64):
        caplog.clear()
        try:
            residual = solved(bit)
        except FaultError:
            refused.append(bit)
            continue
        if alarms(caplog) or np.any(residual > 10 * clean):
            caught.append(bit)
    assert set(range(52 - LEADING[precision], 64)) <= {*caught, *refused}
    assert refused


def test_a_flipped_bit_of_a_gram_matrix_shows_in_the_bounds(monkeypatch):
    """Its components are multiplied with the samples again."""
    x, finish = samples(24, 400), Gram.centred
    fit = partial(streampca.fit, x, n_components=5, method="dual")
    clean = fit().error_bound

    def damaged(self, *args):
        flip(self._gram, usual_entry(self._gram), bit)
        return finish(self, *args)

    monkeypatch.setattr(Gram, "centred", damaged)
    caught = []
    for bit in range(64):
        try:
            model = fit()
        except FaultError:
            caught.append(bit)
            continue
        if np.any(model.error_bound > 10 * clean):
            caught.append(bit)
        values, vectors = model.explained_variance * 23, model.components.T.astype(np.float64)
        assert np.all(left_over(x, values, vectors) <= model.error_bound * values), bit
    assert set(range(52 - LEADING["single"], 64)) <= set(caught)


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("size", [1e-30, 1e-22, 1e8])
def test_features_of_any_size_raise_no_alarm(caplog, precision, size):
    """Squares that are below the smallest float32, and rows that are all alike."""
    x = samples(1500, 40, "f4", offset=0.0)
    x[:, 5:] *= np.float32(size)
    x[700:900] = x[700]
    scatter = fed(partial(Scatter, 40, precision=precision), x)
    scatter.settle()
    for rows in (x[:30], x[:30] * np.float32(size)):
        gram = Gram(30, precision=precision, product_features=15)
        gram.update(rows)
        gram.centred()
    x[20] *= np.float32(1e-30)
    gram = Gram(30, precision=precision)
    gram.update_panel(Span(0, 30), x[:30], np.zeros(40))
    gram.centred()
    assert not alarms(caplog)


def real(name):
    """Real pictures as rows."""
    if not DATA.exists():
        pytest.skip("the real data are not here")
    if name == "frey":
        return np.load(DATA / "frey_faces.npy").reshape(1965, -1)[:, ::4]
    with np.load(DATA / "zip_train.npz") as file:
        return next(file[key] for key in file if file[key].ndim > 1).reshape(7291, -1)[::6, ::2]


@pytest.mark.parametrize("source", ["frey", "zip", "bytes", "words", "fractions"])
def test_a_hundred_clean_runs_raise_no_alarm(caplog, source):
    """Twenty of each source: precisions, offsets, weights, threads, cuts and seeds."""
    made = {"bytes": "u1", "words": "i2", "fractions": "f4"}
    for run in range(20):
        rng = np.random.default_rng(run)
        x = np.abs(samples(2000, 50, made[source], seed=run)) if source in made else real(source)
        x = x.astype("f4") + (0.0, 1e4)[run // 2 % 2] if run % 4 < 2 or x.dtype.kind == "f" else x
        how = {"precision": ("single", "double")[run % 2], "seed": run}
        scatter = Scatter(x.shape[1], product_rows=int(rng.integers(100, 2048)), one_thread=run % 5 == 0, **how)
        other = Scatter(x.shape[1], **how)
        weights = rng.gamma(2.0, size=len(x)) if run % 3 == 0 else None
        half, step = len(x) // 2, int(rng.integers(50, 900))
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            each = scatter if start < half else other
            each.update(x[part], at=start, weights=None if weights is None else weights[part])
        scatter.absorb(other)
        scatter.settle()
        scatter.check()
        gram = Gram(200, product_features=int(rng.integers(20, 200)), **how)
        gram.update(x[:200])
        gram = Gram(200, product_features=64, **how)
        gram.update_pair(Span(0, 150), x[:150], Span(150, 200), x[150:200], scatter.mean)
        assert not alarms(caplog)


def test_states_of_before_have_no_check_and_are_taken(caplog):
    state = fed(partial(Scatter, P), samples()).state()
    del state["allowed"]
    Scatter.from_state(state).settle()
    assert not alarms(caplog)
    assert logging.getLogger("streampca").handlers == []
