"""Fits by a few passes, killed or stopped inside and between them, that go on to the same answer, bit for bit."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from judged import of, warnings
from resumed import Died, bits, dying, number, undisturbed
from shell import python
from threadpoolctl import threadpool_limits

import streampca
import streampca.planning.randomized_features as planning
from streampca.errors import DataError, OutputError, Stopped
from streampca.events import BlockDone, Checkpoint, Converging, PassFinished, PassStarted, Resumed
from streampca.execution.checkpoint import Checkpointing
from streampca.execution.signals import Switch
from streampca.fitting.fit import fit_collection
from streampca.fitting.methods.randomized_start import sample_runs
from streampca.fitting.plan import prepared
from streampca.planning import sample_rows
from streampca.planning.blocks import spans_of
from streampca.planning.request import Request

pytestmark = pytest.mark.usefixtures("unsynced")

N, P = 500, 144
BLOCK_ROWS = 128


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Many small products, each with the same bits."""
    with threadpool_limits(1):
        yield


def images(offset=0.0):
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(length, P)))[0] for length in (N, P))
    x = (left * np.sqrt(1e3 * N / np.arange(1, P + 1))) @ right.T
    return (x + offset).astype(np.float32).reshape(N, 12, 12)


def uncentred():
    """Images of which the start has seen only the darker: its mean is far off."""
    x = images()
    unseen = np.ones(N, bool)
    for run in sample_runs(N, sample_rows(N, 12), 1):
        unseen[slice(*run)] = False
    x[unseen] += 1e5
    return x


# What a fit asks for, and what is done with its plan.
KINDS = {
    "fixed": ({"k": 5}, {}),
    "two threads": ({"k": 5}, {"threads": 2}),
    "fraction": ({"k": 0.8}, {"width": 20, "columns": P}),
    "full basis": ({"k": 0.95}, {"width": 20, "columns": 60}),
    "begins again": ({"k": 8}, {"width": 18, "columns": 36}),
    "to double": ({"k": 4, "tol": 1e-8}, {}),
    "weighted": ({"k": 3}, {}),
    "off": ({"k": 2}, {"width": 12, "columns": 48}),
    "sketch": ({"k": 5, "max_passes": 2}, {}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    np.save(folder / "images.npy", images(100.0))
    np.save(folder / "off.npy", uncentred())
    return folder


def source_of(files, kind):
    return files / ("off.npy" if kind == "off" else "images.npy")


def run(path, kind, folder=None, listener=lambda event: None, switch=None, **more):
    """A fit in blocks of 128 samples, kept after every block."""
    (words, sizes), whole = KINDS[kind], planning._planned
    words = {**words, **more}

    def planned(*about):
        plan = whole(*about)
        cut = {"threads": 1, **sizes}  # in several, the order of events is a race
        spans = spans_of(N, cut["threads"], BLOCK_ROWS)
        return replace(plan, **cut, spans=spans, block_rows=BLOCK_ROWS, product_rows=BLOCK_ROWS)

    planning._planned = planned
    try:
        k = words.pop("k")
        request = Request(k, "randomized", 64 * 2**20, "single", **words)
        how = None if folder is None else Checkpointing(str(folder), 0, switch or Switch())
        weights = np.random.default_rng(1).integers(0, 3, N).astype(np.float64) if kind == "weighted" else None
        collection = prepared(streampca.open_collection(path), None)
        return fit_collection(collection, request, weights=weights, checkpoint=how, listener=listener)
    finally:
        planning._planned = whole


def some(count):
    """Of so many moments about six, the first two and the last among them; of blocks, any place in a pass."""
    return sorted({*range(1, min(count, 2) + 1), *range(count, 2, -max(1, count // 4 | 1))})


@pytest.fixture(scope="module")
def unbroken(files):
    """Of a kind: the answer, and what happened."""
    return undisturbed(lambda kind, listener: run(source_of(files, kind), kind, listener=listener))


def test_these_fits_do_what_they_are_named_for(unbroken):
    """Or the other tests would show nothing."""
    happened = {kind: unbroken(kind)[1] for kind in KINDS}
    passes = {kind: number(PassStarted, events) for kind, events in happened.items()}
    told = {kind: warnings(events) for kind, events in happened.items()}
    assert passes["fixed"] >= 3
    assert passes["fraction"] >= 3
    assert passes["begins again"] > passes["fixed"]
    assert passes["to double"] >= 5
    assert passes["off"] == number(Converging, happened["off"]) + 1
    assert "the budget holds" in told["full basis"][0]
    assert "after 2 passes" in told["sketch"][0]
    assert not told["fixed"] + told["fraction"] + told["to double"] + told["off"]
    assert {event.label for event in of(PassStarted, happened["begins again"])} == {"products with 18 vectors"}


@pytest.mark.parametrize("kind", KINDS)
def test_dead_after_any_block(files, tmp_path, unbroken, kind):
    """In any pass; what was kept is not done again, and the folder is gone in the end."""
    expected, events = unbroken(kind)
    blocks, passes = number(BlockDone, events), number(PassStarted, events)
    assert blocks == 4 * passes
    for count in some(blocks):
        folder, after = tmp_path / f"{count}", []
        with pytest.raises(Died):
            run(source_of(files, kind), kind, folder, dying(count))
        assert bits(run(source_of(files, kind), kind, folder, after.append)) == expected
        assert number(BlockDone, after) <= blocks - count + 1
        assert number(PassStarted, after) <= passes - (count - 1) // 4
        assert number(Resumed, after) or count % 4 == 1
        assert not folder.exists()


@pytest.mark.parametrize(
    ("kind", "moment"),
    [(kind, moment) for kind in ("to double", "off") for moment in (PassFinished, Converging, Checkpoint)],
)
def test_dead_between_passes_and_at_saves(files, tmp_path, unbroken, kind, moment):
    """When it has ended a pass, has thought, or has saved."""
    events = unbroken(kind)[1].copy()
    if moment is Checkpoint:  # of which there are none where nothing is kept
        run(source_of(files, kind), kind, tmp_path / "whole", events.append)
    for count in some(number(moment, events)):
        with pytest.raises(Died):
            run(source_of(files, kind), kind, tmp_path / "kept", dying(count, moment))
        assert bits(run(source_of(files, kind), kind, tmp_path / "kept")) == unbroken(kind)[0]
        assert not (tmp_path / "kept").exists()


def test_dead_again_and_again(files, tmp_path, unbroken):
    """After every second block that is done anew."""
    for _ in range(100):
        try:
            found = run(source_of(files, "to double"), "to double", tmp_path / "kept", dying(2))
            break
        except Died:
            continue
    assert bits(found) == unbroken("to double")[0]
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_told_to_stop(files, tmp_path, unbroken, kind):
    """After any block; it loses nothing."""
    expected, events = unbroken(kind)
    blocks = number(BlockDone, events)
    for count in (1, blocks // 2, blocks - 1):
        switch, seen, after = Switch(), [], []

        def listen(event, switch=switch, seen=seen, count=count):
            seen.append(event)
            if number(BlockDone, seen) == count:
                switch.asked = "SIGTERM"

        with pytest.raises(Stopped, match=r"stopped by SIGTERM; what was done is kept in .*kept\.$"):
            run(source_of(files, kind), kind, tmp_path / "kept", listen, switch)
        assert bits(run(source_of(files, kind), kind, tmp_path / "kept", after.append)) == expected
        assert number(BlockDone, seen) + number(BlockDone, after) <= blocks
        assert not (tmp_path / "kept").exists()


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_resume_randomized as tests
from streampca.execution import slots
from threadpoolctl import threadpool_limits

_, _, path, kind, folder, moment = sys.argv
count, whole = 0, slots._write_array

def half(file, name, array):
    global count
    count += 1
    if count == int(moment):
        file.write(b"begun")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(file, name, array)

slots._write_array = half
with threadpool_limits(1):
    tests.run(path, kind, folder)
"""


@pytest.mark.parametrize("moment", [3, 20, 45, 90])
def test_killed_while_a_state_is_written(files, tmp_path, unbroken, moment):
    """Of the solver, or of a pass, the first or later."""
    path, folder = source_of(files, "fixed"), tmp_path / "kept"
    words = [str(Path(__file__).parent), str(path), "fixed", str(folder), str(moment)]
    done = python(CHILD, *words)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert bits(run(path, "fixed", folder)) == unbroken("fixed")[0]
    assert not folder.exists()


@pytest.mark.parametrize("stage", ["lanczos", "product"])
@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_state_is_passed_over(files, tmp_path, unbroken, stage, damaged):
    """The one before is taken; with both damaged it begins again from what the rest allows."""
    path = source_of(files, "fixed")
    for count in (3, 6, 11):
        with pytest.raises(Died):
            run(path, "fixed", tmp_path / "kept", dying(count))
        slots = sorted((tmp_path / "kept").glob(f"{stage}-0.*"), key=os.path.getmtime)
        for slot in slots[-damaged:]:
            content = bytearray(slot.read_bytes())
            content[len(content) // 2] ^= 1
            slot.write_bytes(content)
        assert bits(run(path, "fixed", tmp_path / "kept")) == unbroken("fixed")[0]


def test_another_fit_is_refused_by_name(files, tmp_path):
    path, folder = source_of(files, "fixed"), tmp_path / "kept"
    with pytest.raises(Died):
        run(path, "fixed", folder, dying(6))
    for more, said in (
        ({"k": 6}, "n_components 5, and this one has 6"),
        ({"tol": 1e-5}, r"tol 0\.0001, and this one has 1e-05"),
        ({"max_passes": 9}, "max_passes None, and this one has 9"),
        ({"seed": 3}, "seed 0, and this one has 3"),
    ):
        with pytest.raises(OutputError, match=said):
            run(path, "fixed", folder, **more)


def test_data_that_will_not_do_leave_nothing(tmp_path):
    """In the first pass, when something was kept already."""
    x = images()
    x[-3, 3, 3] = np.nan
    np.save(tmp_path / "x.npy", x)
    events = []
    with pytest.raises(DataError, match=r"sample 497 .*NaN"):
        run(tmp_path / "x.npy", "fixed", tmp_path / "kept", events.append)
    assert number(Checkpoint, events)
    assert not (tmp_path / "kept").exists()
