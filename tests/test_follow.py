"""Following a source that is being written: complete samples are added in order, and the stored model is valid."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import by_options
import h5py
import numpy as np
import pytest
import yaml
import zarr
from PIL import Image
from shell import refused, typed
from test_update import X, made, same, whole, write_folder, write_series, write_zarr

import streampca
from streampca.accumulators.scatter import Scatter
from streampca.errors import ChangedError, DataError, ModelError, RequestError, SourceError
from streampca.events import Solving, Stored, Warned, silent
from streampca.fitting import follow, incremental
from streampca.fitting.follow import Pace, follow_source
from streampca.readers import open_collection
from streampca.readers.image_files import listing
from streampca.readers.zarr import settled_entries
from streampca.units import parse_seconds

AT_ONCE = {"settle": 0.0, "interval": 0.0}
WRITERS = {
    "zarr": ("x.zarr", write_zarr),
    "zarr, chunks across bursts": ("x.zarr", lambda path, x: write_zarr(path, x, rows=64)),
    "folder": ("images", write_folder),
    "series": ("series/*.npy", write_series),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def followed(opened, listener=silent, k=4, **pace):
    return follow_source(
        opened, "model.zarr", by_options.request(k), None, Pace(**{**AT_ONCE, **pace}).in_seconds(), listener
    )


def in_bursts(path, write, bursts):
    """Return a function that writes the next burst and opens the source."""
    left = iter(bursts)

    def opened():
        burst = next(left, None)
        if burst is not None and len(burst):
            write(path, burst)
        return open_collection(path)

    return opened


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", WRITERS)
def test_it_ends_with_the_bits_of_one_fit(kind):
    path, write = WRITERS[kind]
    stored = []

    def listen(event):
        if isinstance(event, Stored):
            stored.append(event.samples)
            assert streampca.load("model.zarr").n_samples == event.samples

    model = followed(in_bursts(path, write, np.split(X, [100, 250, 260, 500])), listen, until=700)
    same(model, whole())
    same(streampca.load("model.zarr"), whole())
    assert stored == sorted(set(stored))
    assert len(stored) >= 2
    assert model.provenance["source"] == path
    assert model.provenance["opened"]["source"] == path


@pytest.mark.parametrize("kind", ["zarr, chunks across bursts", "folder", "series"])
def test_it_goes_on_where_it_was_and_refuses_what_has_changed(kind):
    path, write = WRITERS[kind]
    first = followed(in_bursts(path, write, [X[:128], X[128:256]]), until=256)
    same(first, whole(X[:256]))
    second = followed(in_bursts(path, write, [X[256:512]]), until=512)
    same(second, whole(X[:512]))
    assert second.provenance["batches"] == first.provenance["batches"] + 1
    if kind == "folder":
        Image.fromarray(X[0] // 2).save("images/image00007.png")
    elif kind == "series":
        np.save("series/00000.npy", X[:64] // 2)
    else:
        zarr.open_array(path)[7] = X[0]
    with pytest.raises(
        ChangedError, match=r"has changed since model\.zarr was fitted; fit a new model to all samples\.$"
    ):
        followed(in_bursts(path, write, [X[512:]]), until=700)
    same(streampca.load("model.zarr"), whole(X[:512]))


def test_half_an_image_is_never_taken():
    folder = made("images")
    write_folder("images", X[:20])
    image = (folder / "image00019.png").read_bytes()
    (folder / "image00019.png").write_bytes(image[: len(image) // 2])
    looks, warnings = [], []

    def opened():
        looks.append(len(looks))
        if len(looks) == 4:
            assert streampca.load("model.zarr").n_samples == 19
            (folder / "image00019.png").write_bytes(image)
        return open_collection("images")

    model = followed(opened, lambda event: warnings.append(event) if isinstance(event, Warned) else None, until=20)
    same(model, whole(X[:20]))
    assert len(looks) >= 4
    assert any("image00019.png" in event.message for event in warnings)


def test_an_image_that_stays_damaged_is_named_and_those_before_are_kept():
    write_folder("images", X[:20])
    Path("images/image00012.png").write_bytes(b"no picture")
    warnings = []
    with pytest.raises(SourceError, match=r"image00012\.png"):
        followed(lambda: open_collection("images"), warnings.append, until=20, idle=0.5)
    assert any("image00012.png" in event.message for event in warnings if isinstance(event, Warned))
    x = X.astype(float)
    bad = x.copy()
    bad[150, 2, 2] = np.nan

    def write(path, burst):
        np.save(made("series") / f"{len(os.listdir('series')):05d}.npy", burst)

    with pytest.raises(DataError, match=r"00002\.npy"):
        followed(in_bursts("series/*.npy", write, [bad[:50], bad[50:100], bad[100:200], bad[200:]]), until=700)
    assert streampca.load("model.zarr").n_samples == 100


def test_an_interrupt_stores_what_was_added():
    looks = []

    def opened():
        looks.append(len(looks))
        if len(looks) == 3:
            raise KeyboardInterrupt
        return open_collection("images")

    write_folder("images", X[:300])
    same(followed(opened, interval=1000.0), whole(X[:300]))


@pytest.mark.parametrize("name", ["absorb", "_note"])
def test_an_interrupt_while_a_batch_is_added_loses_nothing(name, monkeypatch):
    """Signals wait until a batch is added completely, and the stored model has its samples."""
    monkeypatch.setattr(incremental, "WAITING_BYTES", 1)
    calls, owner = [], Scatter if name == "absorb" else incremental.IncrementalFit
    plain = getattr(owner, name)

    def interrupted(self, *args):
        calls.append(name)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return plain(self, *args)

    monkeypatch.setattr(owner, name, interrupted)
    write_folder("images", X[:200])

    def opened():
        if calls:
            write_folder("images", X[200:300])
        return open_collection("images")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # some packages replace it when they are imported
    try:
        same(followed(opened, interval=1000.0), whole(X[:300]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(calls) == 2


class Clock:
    """Clock whose time passes only in `sleep`, which also makes the writes due at a time."""

    def __init__(self, at):
        self.now, self.at = 1e9, sorted(at.items())
        self.written = {}

    def time(self):
        return self.now

    monotonic = perf_counter = time

    def time_ns(self):
        return int(self.now * 1e9)

    def sleep(self, seconds):
        until = self.now + seconds
        while self.at and 1e9 + self.at[0][0] <= until:
            after, (write, count) = self.at.pop(0)
            self.now = 1e9 + after
            write()
            self.written |= dict.fromkeys(range(len(self.written), count), self.now)
        self.now = until


@pytest.mark.slow
@pytest.mark.parametrize("step", [5.2, *(pytest.param(step, marks=pytest.mark.campaign) for step in (0.4, 3.0, 8.0))])
@pytest.mark.parametrize("solving", [0.0, 3.0])
def test_an_image_is_in_the_stored_model_in_time(step, solving, monkeypatch):
    """The delay is at most the interval, the time to settle and two looks, with the time that solving takes."""

    def write(first, stop):
        for number in range(first, stop):
            path = f"images/image{number:05d}.png"
            Image.fromarray(X[number]).save(path)
            os.utime(path, (clock.now, clock.now))

    count = 5 + max(6, int(30 / step))
    later = {(at - 4) * step: (partial(write, at, at + 1), at + 1) for at in range(5, count)}
    clock = Clock({0.0: (partial(write, 0, 5), 5), **later})
    for module in (follow, listing):
        monkeypatch.setattr(module, "time", clock)
    made("images")
    clock.sleep(0)
    late, in_time = [], 10 + 5 + 2 * Pace(5.0).in_seconds().look

    def listen(event):
        late.extend(at for at in range(stored[-1], len(clock.written)) if clock.now - clock.written[at] > in_time)
        if isinstance(event, Solving):
            clock.sleep(solving)
        if isinstance(event, Stored):
            stored.append(event.samples)

    stored = [0]
    followed(lambda: open_collection("images"), listen, settle=5.0, interval=10.0, until=count)
    assert stored[-1] == count
    assert len(stored) > 2
    assert not late


def test_a_listing_that_misses_a_file_does_no_harm():
    """A listing made while files are added may lack a file and yet have a later one."""
    write_folder("images", X[:300])
    looks = []

    def opened():
        looks.append(len(looks))
        missing = Path("images/image00290.png")
        hidden = missing.with_suffix(".hidden")
        if len(looks) == 1:
            missing.rename(hidden)
        elif hidden.exists():
            hidden.rename(missing)
        return open_collection("images")

    same(followed(opened, until=300), whole(X[:300]))


def test_it_waits_for_a_source_and_ends_when_nothing_comes():
    warnings = []
    with pytest.raises(SourceError, match=r"^no model was stored: none does not exist .* Check the path\.$"):
        followed(lambda: open_collection("none"), warnings.append, idle=0.0)
    assert [type(event) for event in warnings] == [Warned]
    write_folder("images", X[:300])
    same(followed(lambda: open_collection("images"), idle=0.0), whole(X[:300]))


def test_another_number_of_components_needs_no_new_samples():
    write_folder("images", X[:300])
    streampca.follow("images", output="model.zarr", n_components=2, pace=streampca.Pace(settle=0, idle=0))
    found = streampca.follow("images", output="model.zarr", n_components=4, pace=streampca.Pace(settle=0, until=300))
    same(found, whole(X[:300]))
    same(streampca.load("model.zarr"), whole(X[:300]))
    write_folder("others", X[300:600])
    with pytest.raises(ModelError, match=r"model\.zarr is of another source than others"):
        streampca.follow("others", output="model.zarr", n_components=2, pace=streampca.Pace(settle=0, until=300))
    first = next(iter(sorted(Path("images").iterdir())))
    Image.fromarray(X[5]).save(first)
    with pytest.raises(ChangedError, match=re.escape(str(first))):
        streampca.follow("images", output="model.zarr", n_components=2, pace=streampca.Pace(settle=0, until=300))
    same(streampca.load("model.zarr"), whole(X[:300]))


def test_a_missing_value_is_refused_with_a_remedy_that_there_is():
    x = X[:60].astype("f4")
    x[45, 2, 2] = np.nan
    write_series("series/*.npy", x)
    write_series("series/*.npy", x[:10])
    with pytest.raises(DataError, match=r"Leave it out with samples= or where=, or fill it"):
        streampca.follow("series/*.npy", output="model.zarr", pace=streampca.Pace(settle=0, idle=0))


def test_sources_and_models_that_cannot_be_followed():
    with h5py.File("x.h5", "w") as file:
        file["x"] = X
    with pytest.raises(RequestError, match=r"x\.h5.* cannot be followed: .* by streampca\.update and samples=\.$"):
        streampca.follow("x.h5", output="model.zarr", pace=streampca.Pace(idle=0))
    with pytest.raises(RequestError, match=r"follow needs a path, .* and got ndarray; give the path of the data"):
        streampca.follow(X, output="model.zarr")
    write_folder("images", X[:50])
    write_folder("others", X[50:90])
    streampca.follow("images", output="model.zarr", n_components=3, pace=streampca.Pace(settle=0, idle=0))
    with pytest.raises(streampca.StreampcaError, match=r"model\.zarr is of another source than others"):
        streampca.follow("others", output="model.zarr", n_components=3, pace=streampca.Pace(settle=0, idle=0, until=60))
    assert "output.scores" in refused("run", _run_file({"scores": "s.zarr", "model": "m.zarr"}), code=2)


def _run_file(output):
    Path("run.yaml").write_text(
        yaml.safe_dump({"collection": {"source": "images"}, "follow": {"enabled": True}, "output": output})
    )
    return "run.yaml"


def test_the_command_says_what_it_stored():
    write_folder("images", X)
    said = typed("fit", "images", "-k", 4, "-o", "model.zarr", "--follow", "--settle", "0s", "--until", 700)
    assert said.code == 0, said.err
    assert "model.zarr: 700 samples" in said.err
    assert "of the variance of 700 samples" in said.out
    same(streampca.load("model.zarr"), whole())
    assert "'12 x' is not a duration" in refused("fit", "images", "-o", "m.zarr", "--follow", "--idle", "12 x", code=2)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), (5, 5), ("30s", 30), ("10 min", 600), ("2h", 7200), (".5", 0.5)]
)
def test_durations(text, seconds):
    assert parse_seconds(text) == seconds


def test_a_number_to_follow_until_is_at_least_two():
    with pytest.raises(RequestError, match="until 1 "):
        streampca.follow("x.zarr", output="model.zarr", pace=streampca.Pace(until=1))


@pytest.mark.parametrize("text", ["", "-1", "5 days", "nan", "min", None])
def test_what_is_no_duration(text):
    with pytest.raises(RequestError, match="is not a duration"):
        parse_seconds(text)


# -- HDF5 in SWMR mode

SWMR_WRITER = """
import sys, h5py, numpy as np
def made(path, **options):
    global file, data
    file = h5py.File(path, "w", libver="latest")
    data = file.create_dataset("x", shape=(0, 8, 8), maxshape=(None, 8, 8), dtype="u1", **options)
    file.swmr_mode = True
def again(path):
    global file, data
    file = h5py.File(path, "r+", libver="latest")
    file.swmr_mode, data = True, file["x"]
def write(start, stop):
    if len(data) < stop:
        data.resize(stop, axis=0)
    data[start:stop] = np.load("all.npy")[start:stop]
    file.flush()
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.fixture
def writer(tmp_path):
    """Return a function that runs a line in another process, as HDF5 opens a file once in a process."""
    np.save("all.npy", X)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", SWMR_WRITER], text=True, cwd=tmp_path, **pipes) as process:

        def run(line):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        yield run
        process.stdin.close()


def lines_before_looks(writer, *lines):
    left = iter(lines)

    def opened():
        for line in next(left, ()):
            writer(line)
        return open_collection("x.h5")

    return opened


def extended(start, stop):
    return f"data.resize({stop}, axis=0); file.flush()", f"write({start}, {stop})"


@pytest.mark.slow
@pytest.mark.parametrize("options", ["chunks=(50, 8, 8)", "chunks=(150, 8, 8), compression='gzip', shuffle=True"])
def test_hdf5_is_followed_while_it_is_written(options, writer):
    """Bursts end inside chunks, following is broken off twice, and the writer closes the file and opens it again."""
    start = f"made('x.h5', {options})", "write(0, 130)"
    opened = lines_before_looks(writer, start, extended(130, 260), (), extended(260, 300))
    same(followed(opened, until=300), whole(X[:300]))
    again = "write(300, 310)", "file.close()", "again('x.h5')", "write(310, 400)"
    opened = lines_before_looks(writer, ("write(300, 310)",), again, ("file.close()",))
    same(followed(opened, until=400), whole(X[:400]))
    opened = lines_before_looks(writer, ("again('x.h5')", *extended(400, 700)), ("file.close()",))
    model = followed(opened, until=700)
    same(model, whole())
    assert model.provenance["source"] == "x.h5, dataset 'x'"
    assert followed(lambda: open_collection("x.h5"), idle=0.0).n_samples == 700
    same(streampca.fit("x.h5", streampca.PCA(4, method="covariance")), whole())


@pytest.mark.slow
def test_images_of_hdf5_that_are_not_written_yet_are_waited_for(writer, monkeypatch):
    """The file has chunks that are not stored, images that are still the fill value, and half an image."""
    half = "data[60, :4] = np.load('all.npy')[60, :4]; file.flush()"
    clock = Clock(
        {
            0.0: (lambda: [writer("made('x.h5', chunks=(50, 8, 8))"), writer("write(0, 40)")], 40),
            20.0: (lambda: writer("data.resize(200, axis=0); file.flush()"), 40),
            40.0: (lambda: writer("write(40, 60)"), 60),
            60.0: (lambda: writer(half), 60),
            64.0: (lambda: writer("write(60, 61)"), 61),
            80.0: (lambda: writer("file.close()"), 200),
        }
    )
    monkeypatch.setattr(follow, "time", clock)
    clock.sleep(0)
    stored = {}

    def listen(event):
        if isinstance(event, Stored):
            stored[event.samples] = clock.now - 1e9
            if event.samples == 61:
                same(streampca.load("model.zarr"), whole(X[:61]))

    model = followed(lambda: open_collection("x.h5"), listen, settle=5.0, interval=0.0, until=200)
    assert list(stored) == [40, 60, 61, 200]
    assert 5 <= stored[40] <= 7
    assert 45 <= stored[60] <= 47
    assert 65 <= stored[61] <= 67
    assert 85 <= stored[200] <= 87  # once the file is closed, the fill value is final
    same(model, whole(np.concatenate([X[:61], np.zeros((139, 8, 8), "u1")])))


def test_a_changed_image_of_hdf5_is_refused_by_name(writer):
    lines = ("made('x.h5', chunks=(50, 8, 8))", "write(0, 300)"), (), ("data[7] = 5", "write(300, 400)")
    with pytest.raises(ChangedError, match=r"^x\.h5, dataset 'x' \(rows 0 to 49\) has changed since model\.zarr"):
        followed(lines_before_looks(writer, *lines), until=400)
    same(streampca.load("model.zarr"), whole(X[:300]))


def test_hdf5_that_is_not_in_swmr_mode(writer):
    writer("made('x.h5', chunks=(50, 8, 8))")
    writer("write(0, 300)")
    with pytest.raises(
        SourceError, match=r"^x\.h5, dataset 'x' is being written, in SWMR mode: .* by streampca\.follow\.$"
    ):
        streampca.fit("x.h5", n_components=4)
    with pytest.raises(SourceError, match=r"is being written, in SWMR mode"):
        open_collection(["x.h5", "x.h5"], duplicates="all")
    writer("file.close()")
    writer("file = h5py.File('x.h5', 'r+', libver='latest')")
    with pytest.raises(
        SourceError, match=r"no model was stored: x\.h5 is marked as open for writing, and not in SWMR mode \(.*"
    ):
        followed(lambda: open_collection("x.h5"), idle=0.0)
    writer("file.close()")
    with h5py.File("whole.h5", "w", libver="latest") as file:
        file["x"] = X
    with pytest.raises(RequestError, match=r"whole\.h5, dataset 'x' cannot be followed: .*file\.swmr_mode = True"):
        followed(lambda: open_collection("whole.h5"), idle=0.0)


def test_rows_of_chunks_that_are_complete():
    """Rows 0 and 1 are full, row 2 holds 4 of 10, row 3 is missing; times are set, not waited for."""
    array = zarr.create_array(store="x.zarr", shape=(24, 8, 8), chunks=(10, 8, 4), dtype="u1", fill_value=0)
    array[:] = X[:24]

    def settled(seconds, first=0, resized=None, **changed):
        for row, times in {"0": 100, "1": 90, "2": 80, **changed}.items():
            for part in (0, 1):
                age(f"x.zarr/c/{row.lstrip('_')}/0/{part}", times)
        age("x.zarr/zarr.json", 200 if resized is None else resized)
        return settled_entries(zarr.open_array("x.zarr"), "x.zarr", seconds, first)

    assert settled(50) == 24
    assert settled(85) == 20  # the last row is young
    assert settled(85, first=24) == 24  # and known to be complete
    assert settled(50, resized=10) == 20  # the array was made longer after the last row was written
    array.resize((60, 8, 8))
    assert settled(50, first=24, resized=10) == 24  # row 2 is still to be written again
    assert settled(50, first=24, resized=90) == 30
    os.remove("x.zarr/c/1/0/1")
    assert settled_entries(zarr.open_array("x.zarr"), "x.zarr", 50, 0) == 0


def age(path, seconds):
    now = time.time() - seconds
    os.utime(path, (now, now))


FOLLOWER = """
import sys, streampca
from streampca.events import Stored
def listen(event):
    if isinstance(event, Stored):
        print(event.samples, flush=True)
pace = streampca.Pace(settle=0, interval=0, until=700)
streampca.follow(sys.argv[1], output="model.zarr", n_components=4, pace=pace, listener=listen)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zarr", pytest.param("folder", marks=pytest.mark.campaign)])
def test_a_process_that_is_killed_goes_on_from_the_model_it_stored(kind):
    path, write = WRITERS[kind]
    command = [sys.executable, "-c", FOLLOWER, path]
    for start, stop in ((0, 300), (300, 500)):
        write(path, X[start:stop])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            while int(follower.stdout.readline()) < stop:
                pass
            follower.kill()
        same(streampca.load("model.zarr"), whole(X[:stop]))
    write(path, X[500:])
    streampca.follow(path, output="model.zarr", n_components=4, pace=streampca.Pace(settle=0, interval=0, until=700))
    same(streampca.load("model.zarr"), whole())
