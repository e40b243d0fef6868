"""Job arrays: each part is killed at random operations and requeued, and the parts merge to the bits of the whole."""

from __future__ import annotations

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from shell import python, succeeded

import streampca
from streampca.errors import RESUMABLE, Stopped

pytestmark = pytest.mark.slow

N, P, OF, AT_ONCE = 96_000, 24, 16, 3
MOST_KILLS = 2  # of a part

# A job that gets SIGTERM before one operation that changes files, and SIGKILL before another one; 0: not at all. Each
# start is on another node.
JOB = """
import os, signal, socket, sys
from streampca.cli.commands import main
from streampca.storage import lock_holder, locks

task, restarts, has_flock, term, kill = map(int, sys.argv[1:])
os.environ.update(SLURM_JOB_ID=str(4710 + task), SLURM_ARRAY_TASK_ID=str(task), SLURM_RESTART_COUNT=str(restarts))
socket.gethostname, lock_holder._space = (lambda: f"node{restarts}"), (lambda: f"boot{restarts}/1")
if not has_flock:
    locks._has_flock = lambda folder: False
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link"}
done = 0

def count(event, arguments):
    global done
    if event in CHANGES or event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        done += 1
        if done == term:
            os.kill(os.getpid(), signal.SIGTERM)
        if done == kill:
            os.kill(os.getpid(), signal.SIGKILL)

sys.dont_write_bytecode = True
sys.argv[1:] = ["fit", "x.npy", "-k", "2", "--memory", "20MiB", "--checkpoint-every", "0", "--part", f"{task}/16",
                "-o", f"part{task}.zarr", "-q"]
sys.addaudithook(count)
try:
    main()
finally:
    print(done)
"""


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """Model of all samples, in a folder that holds them."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).integers(0, 200, (N, P), np.uint8))
    return streampca.fit("x.npy", streampca.PCA(2, method="covariance"), memory="64 MiB")


def run_to_its_end(task, has_flock, changes, luck):
    """Start a job until it ends by itself; return how often it was killed, and stopped."""
    ends = []
    while True:
        term = luck.randint(1, changes) if len(ends) < MOST_KILLS else 0
        kill = term and term + luck.choice([1, 2, 3, 5, 8, changes])
        done = python(JOB, task, len(ends), has_flock, term, kill)
        ends.append(done.returncode)
        if done.returncode == 0:
            return ends
        assert done.returncode in (-signal.SIGKILL, RESUMABLE, Stopped.exit_code), (ends, term, kill, done.stderr)
        assert term, done.stderr


@pytest.mark.parametrize(("seed", "has_flock"), [(0, 1), (1, 0), *(
    pytest.param(seed, seed % 2, marks=pytest.mark.campaign) for seed in range(2, 12)
)])  # fmt: skip
def test_parts_that_are_killed_and_requeued_merge_to_the_whole(whole, seed, has_flock):
    """Nothing is left beside them, with and without locks of the file system."""
    unbroken = python(JOB, 1, 0, has_flock, 0, 0)
    assert unbroken.returncode == 0, unbroken.stderr
    changes, others = int(unbroken.stdout.split()[-1]), range(2, OF + 1)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        lucks = [random.Random(f"{seed} {task}") for task in others]  # noqa: S311 - nothing secret
        ends = list(pool.map(run_to_its_end, others, [has_flock] * OF, [changes] * OF, lucks))
    assert sum(map(len, ends)) > 2 * len(others), "they were killed"
    assert {0, -signal.SIGKILL, RESUMABLE} <= {code for each in ends for code in each}
    succeeded("merge", "part*.zarr", "-o", "model.zarr", "-q")
    merged = streampca.load("model.zarr")
    for name in ("components", "explained_variance", "mean"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    assert sorted(os.listdir()) == sorted(["x.npy", "model.zarr", *(f"part{task}.zarr" for task in range(1, OF + 1))])
