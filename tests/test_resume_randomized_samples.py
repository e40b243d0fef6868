"""Fits of method 'randomized' along samples, killed or stopped anywhere, that go on to the same answer, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from judged import along_samples, of, warnings
from resumed import Died, bits, dying, number, undisturbed
from threadpoolctl import threadpool_limits

import streampca
import streampca.planning.randomized_samples as planning
from streampca.errors import OutputError, Stopped
from streampca.events import BlockDone, Checkpoint, Converging, PassFinished, PassStarted, Planned, Resumed
from streampca.execution.checkpoint import Checkpointing
from streampca.execution.signals import Switch
from streampca.fitting.fit import Place, fit_collection
from streampca.fitting.plan import prepared
from streampca.planning import randomized as sides
from streampca.planning.request import Request

pytestmark = pytest.mark.usefixtures("unsynced")

N, SHAPE = 90, (20, 30)
P, RANGE = 600, 150


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Many small products, each with the same bits."""
    with threadpool_limits(1):
        yield


# What a fit asks for, and what is done with its plan.
KINDS = {
    "fixed": ({"k": 5}, {"width": 15, "columns": 75}),
    "fraction": ({"k": 0.8}, {"width": 20, "columns": N}),
    "begins again": ({"k": 6}, {"width": 14, "columns": 28}),
    "to double": ({"k": 4, "tol": 1e-8}, {"width": 15, "columns": 75}),
    "weighted": ({"k": 3}, {"width": 15, "columns": 75}),
    "sketch": ({"k": 5, "max_passes": 3}, {"width": 15, "columns": 75}),
    "scratch": ({"k": 5}, {"width": 15, "columns": 75, "schedule": "scratch", "bytes_written": 4 * N * P}),
    "stored": ({"k": 5}, {"width": 15, "columns": 75, "stored": True, "component_features": RANGE,
                          "precision": "double"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(length, N)))[0] for length in (N, P))
    x = (left * np.sqrt(1e3 * N / np.arange(1, N + 1))) @ right.T + 100
    path = tmp_path_factory.mktemp("resume") / "images.npy"
    np.save(path, x.astype(np.float32).reshape(N, *SHAPE))
    return path


def run(path, kind, output, folder=None, listener=lambda event: None, switch=None, **more):
    """A fit in four ranges of features, kept after every one."""
    (words, sizes), whole = KINDS[kind], planning._planned
    words = {**words, **more}

    def planned(*about):
        return replace(whole(*about), block_features=RANGE, product_features=64, block_rows=32, **sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_planned", planned)
        along_samples(patch)
        patch.setattr(planning, "_allowed", lambda request, schedule: 10**6)
        request = Request(words.pop("k"), "randomized", 64 * 2**20, "single", output=True, **words)
        how = None if folder is None else Checkpointing(str(folder), 0, switch or Switch())
        weights = np.random.default_rng(1).integers(0, 3, N).astype(np.float64) if kind == "weighted" else None
        collection, place = prepared(streampca.open_collection(path), None), Place(str(output), overwrite=False)
        about = {"weights": weights, "checkpoint": how, "place": place, "listener": listener}
        return fit_collection(collection, request, **about)


@pytest.fixture(scope="module")
def unbroken(images, tmp_path_factory):
    """Of a kind: the answer, and what happened."""
    folder = tmp_path_factory.mktemp("unbroken")
    return undisturbed(lambda kind, listener: run(images, kind, folder / f"{kind}.zarr", listener=listener))


def test_these_fits_do_what_they_are_named_for(unbroken):
    """Or the other tests would show nothing."""
    happened = {kind: unbroken(kind)[1] for kind in KINDS}
    products = {kind: number(Converging, events) for kind, events in happened.items()}
    labels = {kind: [event.label for event in of(PassStarted, events)] for kind, events in happened.items()}
    told = {kind: warnings(events) for kind, events in happened.items()}
    assert {event.plan.side for events in happened.values() for event in of(Planned, events)} == {"samples"}
    assert products["fixed"] >= 4
    assert products["begins again"] > products["fixed"]
    assert products["to double"] > products["fixed"]
    assert products["sketch"] == 2
    assert "after 2 passes" in told["sketch"][0]
    assert labels["scratch"] == ["scratch copy", *labels["fixed"]]
    assert labels["fixed"][-1] == "components"
    assert not told["fixed"] + told["fraction"] + told["to double"] + told["stored"]


@pytest.mark.parametrize("kind", KINDS)
def test_dead_after_any_block(images, tmp_path, unbroken, kind):
    """In any pass; what was kept is not done again, and nothing is left but the answer."""
    expected, events = unbroken(kind)
    blocks = number(BlockDone, events)
    few = kind in ("fraction", "weighted", "sketch")  # another solver, and nothing else that is kept
    for count in sorted({2, 2 * blocks // 3} if few else {2, blocks // 3, 2 * blocks // 3, blocks - 1}):
        folder, output, after = tmp_path / f"{count}", tmp_path / f"{count}.zarr", []
        with pytest.raises(Died):
            run(images, kind, output, folder, dying(count))
        assert bits(run(images, kind, output, folder, after.append)) == expected, count
        assert number(BlockDone, after) <= blocks - count + 1
        assert {path.name for path in tmp_path.iterdir() if path.name.startswith(f"{count}")} == {output.name}
    assert number(Resumed, after)


@pytest.mark.parametrize("moment", [PassFinished, Converging, Checkpoint])
def test_dead_between_passes_and_at_saves(images, tmp_path, unbroken, moment):
    """When it has ended a pass, has thought, or has saved; with a copy to lose."""
    kind = "scratch"
    events = unbroken(kind)[1].copy()
    if moment is Checkpoint:  # of which there are none where nothing is kept
        run(images, kind, tmp_path / "whole.zarr", tmp_path / "whole", events.append)
    most = number(moment, events)
    for count in sorted({1, most // 2, most}):
        folder, output = tmp_path / f"{count}", tmp_path / f"{count}.zarr"
        with pytest.raises(Died):
            run(images, kind, output, folder, dying(count, moment))
        assert bits(run(images, kind, output, folder)) == unbroken(kind)[0]
        assert not folder.exists()


@pytest.mark.parametrize("kind", ["fixed", "stored"])
def test_told_to_stop(images, tmp_path, unbroken, kind):
    """After any block; it loses nothing."""
    expected, events = unbroken(kind)
    blocks = number(BlockDone, events)
    for count in (blocks // 2, blocks - 1):
        switch, seen, after, output = Switch(), [], [], tmp_path / f"{count}.zarr"

        def listen(event, switch=switch, seen=seen, count=count):
            seen.append(event)
            if number(BlockDone, seen) == count:
                switch.asked = "SIGTERM"

        with pytest.raises(Stopped, match=r"stopped by SIGTERM; what was done is kept in .*kept\.$"):
            run(images, kind, output, tmp_path / "kept", listen, switch)
        assert bits(run(images, kind, output, tmp_path / "kept", after.append)) == expected
        assert number(BlockDone, seen) + number(BlockDone, after) <= blocks
        assert not (tmp_path / "kept").exists()


def test_another_plan_is_refused_by_name(images, tmp_path, monkeypatch):
    """What was begun along samples does not go on along features."""
    with pytest.raises(Died):
        run(images, "fixed", tmp_path / "m.zarr", tmp_path / "kept", dying(6))
    monkeypatch.setattr(sides, "_turns", lambda problem: False)
    with pytest.raises(OutputError, match="holds an unfinished run planned with"):
        run(images, "fixed", tmp_path / "m.zarr", tmp_path / "kept")
