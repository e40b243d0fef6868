"""Ctrl-C and other signals: the work stops at a safe point, says so in one line, and loses nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from functools import cache
from pathlib import Path

import by_options
import numpy as np
import psutil
import pytest
from resumed import bits
from shell import pictures, succeeded

import streampca
from streampca.errors import RESUMABLE, Stopped
from streampca.events import BlockDone
from streampca.signals import heed_stop, safe_point, stop_asked, stopping_on_signals, stops_delayed

# A process that says when it handles signals; what comes before is Python's own start.
STARTED = """
import os, signal
from streampca.signals import stopping_on_signals
try:
    with stopping_on_signals(owns_process=True):
        os.write(1, b"started\\n")
        from streampca.__main__ import main
        main()
finally:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as `main` leaves it, which the block around it does not
"""

COMMANDS = {
    "demo": "demo -o out.demo",
    "info": "info images.npy --json",
    "plan": "plan images.npy -k 5",
    "fit covariance": "fit images.npy -k 5 --method covariance --memory 20MiB -o out.zarr",
    "fit dual": "fit wide.npy -k 5 --method dual -o out.zarr",
    "fit randomized": "fit images.npy -k 5 --method randomized --memory 26MiB -o out.zarr",
    "fit em": "fit images.npy -k 3 --missing em -o out.zarr",
    "embed": "fit scores.zarr --kind isomap -o out.zarr --n-neighbors 8",
    "merge": "merge part1.zarr part2.zarr -o out.zarr",
    "transform": "transform model.zarr images.npy --memory 26MiB -o out.zarr",
    "reconstruct": "reconstruct model.zarr images.npy --memory 26MiB -o out.zarr",
    "neighbors": "neighbors scores.zarr -o out.zarr --n-neighbors 8",
    "inspect": "inspect model.zarr --verify",
    "report": "report model.zarr -o out.html",
    "hsic": "hsic scores.zarr scores.zarr --permutations 500",
    "copy": "copy images.npy -o out.zarr",
    "export": "export model.zarr -o out.tif",
    "run": "run run.yaml",
    "schema": "schema",
}
PATIENCE = 2.0  # seconds of processor time within which a command ends


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Folder of what the commands read."""
    folder = tmp_path_factory.mktemp("signals")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.save("images.npy", pictures(6000, 24, 24))
        np.save("wide.npy", pictures(200, 100, 100))
        succeeded("fit", "images.npy", "-k", 20, "-o", "model.zarr", "-q")
        succeeded("transform", "model.zarr", "images.npy", "-o", "scores.zarr", "-q")
        for number in (1, 2):
            succeeded("fit", "images.npy", "-k", 5, "--part", f"{number}/2", "-o", f"part{number}.zarr", "-q")
        Path("run.yaml").write_text(
            "collection: {source: images.npy}\nmodel: {n_components: 5}\nrun: {memory: 20 MiB}\n"
            "output: {directory: out, transform: true}\n"
        )
    return folder


def begun(words, folder):
    """Start a command; return it when it handles signals."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, *words.split()], cwd=folder, text=True, bufsize=0,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    assert process.stdout.readline() == "started\n", process.stderr.read()
    return process


@cache
def seconds_of(words, folder):
    """Return how long a command takes when it is left alone, and names of what it leaves."""
    with begun(words, folder) as process:
        start = time.monotonic()
        said = process.communicate()
        took = time.monotonic() - start
    assert process.returncode == 0, said
    left = {path.name for path in folder.iterdir() if path.name.startswith("out")}
    cleared(folder)
    return took, left


def processor_seconds():
    """Return the processor time of processes that have ended."""
    return sum(os.times()[2:4])


def cleared(folder):
    for path in folder.iterdir():
        if path.name.startswith("out"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _interrupted(words, folder, share):
    """Send a command Ctrl-C after a share of its time, and give it again; return its exit code and how long it took.

    The latter in seconds of processor time, which a busy machine does not change.
    """
    cleared(folder)  # of what a command left that failed here
    took, expected = seconds_of(words, folder)
    before = processor_seconds()
    with begun(words, folder) as process:
        time.sleep(share * took)
        spent = sum(psutil.Process(process.pid).cpu_times()[:2])
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    waited = processor_seconds() - before - spent
    assert "Traceback" not in out + err, err
    assert "Exception ignored" not in err, err
    if process.returncode not in (0, -signal.SIGINT):  # else it was done when the signal came; -2: as Python ended
        assert process.returncode in (RESUMABLE, Stopped.exit_code), err
        (line,) = (line for line in err.splitlines() if line.startswith("streampca: "))
        assert line.startswith("streampca: stopped by SIGINT"), line
        assert ("Resume with: streampca" in line) == (process.returncode == RESUMABLE), line
        with begun(words, folder) as again:
            out, err = again.communicate()
        assert again.returncode == 0 or "exists already" in err, err
    left = {path.name for path in folder.iterdir() if path.name.startswith("out")}
    assert left == expected, left ^ expected
    cleared(folder)
    return process.returncode, waited


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share"), [("info", 0.3), ("fit covariance", 0.8), ("transform", 0.6), ("report", 0.7), ("run", 0.9)]
)
def test_an_interrupted_command_ends_in_one_line_and_resumes(inputs, name, share):
    _interrupted(COMMANDS[name], inputs, share)


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_interrupted_at_random_moments(inputs, name):
    random = np.random.default_rng(list(name.encode()))
    found = [_interrupted(COMMANDS[name], inputs, share) for share in random.uniform(0, 1, 11)]
    print(name, [(code, round(waited, 2)) for code, waited in found])
    assert max(waited for _, waited in found) < PATIENCE


@pytest.mark.slow
@pytest.mark.parametrize("p", [2500, pytest.param(6500, marks=pytest.mark.campaign)])
def test_a_second_signal_ends_an_eigensolve_at_once(tmp_path, p):
    """LAPACK takes seconds, and returns to Python for neither signal."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(p, p)).astype(np.float32))
    words = f"fit x.npy -k all --method covariance --memory {p * p * 60}B -o out.zarr"
    with begun(words, tmp_path) as process:
        while "eigenvectors" not in (line := process.stderr.readline()):
            assert line, "it ended before"
        time.sleep(0.5)  # it has reached LAPACK by then
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        process.wait()
    assert process.returncode == -signal.SIGINT
    assert time.monotonic() - sent < 0.5
    assert not (tmp_path / "out.zarr").exists()


# -- the flag, and the handlers of the program around it


def test_a_signal_in_the_callback_of_a_weak_reference_is_not_lost():
    class Thing:
        pass

    with stopping_on_signals(owns_process=True):
        thing = Thing()
        reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        assert reference() is None
        with pytest.raises(Stopped, match=r"^stopped by SIGINT\.$"):
            safe_point()
    safe_point()


def test_stops_are_delayed_and_heeded():
    with stopping_on_signals(owns_process=True):
        with stops_delayed():
            signal.raise_signal(signal.SIGTERM)
            safe_point()
            assert stop_asked() == "SIGTERM"
        with pytest.raises(Stopped, match="SIGTERM"):
            safe_point()
        heed_stop()
        safe_point()


@pytest.fixture
def handler():
    """Function that sets the program's own handler of SIGINT, and what was called."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda function: signal.signal(signal.SIGINT, function)
    signal.signal(signal.SIGINT, before)


def interrupting(event):
    if isinstance(event, BlockDone):
        signal.raise_signal(signal.SIGINT)


def test_the_handler_of_a_program_decides(handler):
    """It is called at once; a run ends by what it raises, and goes on where it returns."""
    called, images = [], pictures(50)

    def own(number, frame):
        called.append(number)

    def leaving(number, frame):
        sys.exit(7)

    handler(own)
    assert streampca.fit(images, n_components=2, listener=interrupting).n_components == 2
    assert set(called) == {signal.SIGINT}
    assert signal.getsignal(signal.SIGINT) is own
    handler(leaving)
    with pytest.raises(SystemExit):
        streampca.fit(images, n_components=2, listener=interrupting)
    assert signal.getsignal(signal.SIGINT) is leaving


def test_a_fit_saves_before_an_interrupt_is_raised(handler, tmp_path):
    """The KeyboardInterrupt of scripts and notebooks says where; the same call resumes."""
    handler(signal.default_int_handler)
    np.save(tmp_path / "x.npy", pictures(600, 24, 24))
    how = {"n_components": 3, "method": "covariance", "memory": "20MiB"}
    with pytest.raises(KeyboardInterrupt) as raised:
        by_options.fit(tmp_path / "x.npy", **how, checkpoint=tmp_path / "kept", listener=interrupting)
    assert str(raised.value.__cause__) == f"stopped by SIGINT; progress is saved in {tmp_path}/kept."
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    model = by_options.fit(tmp_path / "x.npy", **how, checkpoint=tmp_path / "kept")
    assert bits(model) == bits(by_options.fit(tmp_path / "x.npy", **how))


def test_an_interrupt_after_the_last_safe_point_is_raised(handler):
    handler(signal.default_int_handler)

    @stopping_on_signals()
    def work():
        signal.raise_signal(signal.SIGINT)
        return "done"

    with pytest.raises(KeyboardInterrupt):
        work()
    with pytest.raises(KeyboardInterrupt) as raised, stopping_on_signals():  # noqa: PT012 - raised on leaving
        signal.raise_signal(signal.SIGINT)
        raise OSError("a stop that a library took for an error of its own")
    assert isinstance(raised.value.__cause__, OSError)


def test_threads_stop_with_the_program_and_work_without_it():
    found = []

    def fit():
        try:
            found.append(streampca.fit(pictures(50), n_components=2, listener=interrupting).n_components)
        except Stopped as error:
            found.append(str(error))

    def in_thread(function):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    with stopping_on_signals(owns_process=True):
        signal.raise_signal(signal.SIGINT)
        in_thread(fit)
    in_thread(lambda: found.append(streampca.fit(pictures(50), n_components=2).n_components))
    assert found == ["stopped by SIGINT.", 2]


SECOND = """
import signal, sys, time
from streampca.signals import stopping_on_signals
if sys.argv[1] == "session":
    sys.ps1 = ">>> "
try:
    with stopping_on_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    sys.exit(3)
"""


@pytest.mark.parametrize(("where", "code"), [("script", -signal.SIGINT), ("session", 3)])
def test_a_second_signal_ends_a_script_and_spares_a_session(where, code):
    """The process of a notebook holds variables that nobody wants to lose."""
    assert subprocess.run([sys.executable, "-c", SECOND, where], check=False).returncode == code
