"""Every command by two processes on one output: one completes, as if it were alone, and one is refused in one line."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from shell import FORKED, Said, not_drawn, pictures, succeeded, typed, undated

from streampca.errors import OutputError
from streampca.storage import locks as locking

RUN = """
collection: {source: images.npy}
model: {n_components: 3}
output: {directory: out, transform: true, images: pixels.npy, collection: copied.zarr, report: true}
"""
SAVE = "import streampca; streampca.load('model.zarr').save('saved.zarr')"
# Each command, or call from Python, and what it writes.
COMMANDS = {
    "fit": ("fit images.npy -k 3 -o fitted.zarr", ["fitted.zarr"]),
    "fit without checkpoints": ("fit images.npy -k 3 --no-checkpoint -o fitted.zarr", ["fitted.zarr"]),
    "update": ("fit images.npy --update model.zarr -o more.zarr", ["more.zarr"]),
    "embed": ("fit images.npy --kind isomap -o embedded.zarr", ["embedded.zarr"]),
    "merge": ("merge part1.zarr part2.zarr -o merged.zarr", ["merged.zarr"]),
    "transform to zarr": ("transform model.zarr images.npy -o scores.zarr", ["scores.zarr"]),
    "transform to npy": ("transform model.zarr images.npy -o scores.npy", ["scores.npy"]),
    "transform to csv": ("transform model.zarr images.npy -o scores.csv", ["scores.csv"]),
    "reconstruct": ("reconstruct model.zarr images.npy -o rebuilt.npy", ["rebuilt.npy"]),
    "neighbors": ("neighbors scored.npy -o graph.zarr", ["graph.zarr"]),
    "copy": ("copy images.npy -o copied.zarr", ["copied.zarr"]),
    "export to tif": ("export model.zarr -o pages.tif", ["pages.tif"]),
    "export to npy": ("export model.zarr -o pages.npy", ["pages.npy"]),
    "report": ("report model.zarr -o page.html --figures drawn", ["page.html", "drawn"]),
    "run": ("run run.yaml", ["out", "pixels.npy", "copied.zarr"]),
    "hsic": ("hsic images.npy images.npy --permutations 20 --checkpoint ck", []),
    "save": (SAVE, ["saved.zarr"]),
}
CAMPAIGN = 20  # rounds


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Folder with what the commands read."""
    folder = tmp_path_factory.mktemp("given")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.save("images.npy", pictures(120, 8, 7))
        Path("run.yaml").write_text(RUN)
        for words in ("-o model.zarr", "--part 1/2 -o part1.zarr", "--part 2/2 -o part2.zarr"):
            succeeded("fit", "images.npy", "-k", 3, "--method", "covariance", "-q", *words.split())
        succeeded("transform", "model.zarr", "images.npy", "-o", "scored.npy", "-q")
    return folder


def carried_out(words):
    """Outcome of a command, or of a line of Python, in this process."""
    if not words.startswith("import"):
        return typed(*words.split(), *([] if words.startswith("export") else ["-q"]))
    try:
        exec(words)  # noqa: S102
    except OutputError as error:
        return Said(error.exit_code, "", f"streampca: {error}\n")
    return Said(0, "", "")


def twin(words, folder, barrier, other_ended, said):
    """Carry out a command that waits, when it opens its output, until the other process opens it too.

    With `other_ended`, the one that has the output waits until the other has ended.
    """
    os.chdir(folder)
    acquired, sign, opened = locking._acquired, locking._sign, []

    def acquired_by_one(*lock):
        if not opened:
            barrier.wait(20)
        opened.append(lock)
        return acquired(*lock)

    def signed(handle):
        sign(handle)
        if len(opened) == 1 and other_ended is not None:
            assert other_ended.wait(20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locking, "_acquired", acquired_by_one)
        patch.setattr(locking, "_sign", signed)
        patch.setattr("streampca.plot.report.page.drawn", not_drawn)
        found = carried_out(words)
    if other_ended is not None:
        other_ended.set()
    said.put((os.getpid(), found))


def by_two(words, folder, *, at_once):
    """Outcomes of a command by two processes, by their number; `at_once`: neither ends before the other has begun."""
    barrier, said = FORKED.Barrier(2), FORKED.Queue()
    ended = FORKED.Event() if at_once else None
    twins = [FORKED.Process(target=twin, args=(words, str(folder), barrier, ended, said)) for _ in range(2)]
    for process in twins:
        process.start()
    found = dict(said.get(timeout=40) for _ in twins)
    for process in twins:
        process.join(60)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, pytest.param(CAMPAIGN, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("name", COMMANDS)
def test_one_completes_and_one_is_refused(given, here, undrawn, name, rounds):
    words, outputs = COMMANDS[name]
    shutil.copytree(given, here, dirs_exist_ok=True)
    before = set(os.listdir())
    assert carried_out(words).code == 0
    alone, made = undated(outputs), set(os.listdir())
    assert len(alone) > 0 or not outputs
    for at_once in rounds * [True, False]:
        for path in made - before:
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        found = by_two(words, here, at_once=at_once)
        (loser, said), (winner, completed) = sorted(found.items(), key=lambda one: -one[1].code)
        assert completed.code == 0, completed.err
        if at_once:
            assert f" is being written by process {winner} on " in said.complaint, loser
        elif said.code:  # the other may have ended before
            assert re.search(f"is being written by process {winner} on |exists already", said.complaint)
        else:
            assert name in ("run", "hsic"), "which use again what is there, or write nothing"
        assert undated(outputs) == alone
        assert set(os.listdir()) == made
        assert not list(here.rglob("*streampca-*")), "nothing is left behind"
