"""Folders of very many files, of several sizes and with bad ones among them."""

from __future__ import annotations

import os
import pickle
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tifffile
from contract import refused_as
from hypothesis import given
from hypothesis import strategies as st
from sources import save

import streampca
from streampca.errors import OutputError, RequestError, SourceError
from streampca.events import BlockDone, PassFinished, PassStarted
from streampca.kinds.opening import Opening
from streampca.preprocessing import Preparation, Prepared
from streampca.readers import open_collection
from streampca.readers.collection import Skipped
from streampca.readers.image_files import census
from streampca.readers.image_files.find import find_images
from streampca.readers.image_files.listing import Listing
from streampca.readers.image_files.names import FileNames, natural, natural_name
from streampca.readers.images import MixedImages, open_images
from streampca.readers.opener import Opener
from streampca.readers.threads import for_each

SKIP = 'give on_bad_file="skip"'


def pictures(n=12, height=9, width=7, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width), dtype="u1")


def settle(folder):
    """Make folders look as if nothing had changed in them for an hour."""
    past = time.time() - 3600
    for here, _, _ in os.walk(folder):
        os.utime(here, (past, past))


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures in folders s0, s1 and s2."""
    for at, pixels in enumerate(pictures()):
        save(tmp_path / "in" / f"s{at // 4}" / f"{at}.png", pixels)
    settle(tmp_path / "in")
    return tmp_path / "in"


# --- names and their order ---


def naive(path):
    """Return a key of natural order in plain lists: texts and numbers folder by folder, then the name itself."""
    parts = [re.split(rb"([0-9]+)", part) for part in os.fsencode(path).split(b"/")]
    texts_and_numbers = [[int(piece) if odd % 2 else piece for odd, piece in enumerate(part)] for part in parts]
    return [(pieces, b"".join(part)) for pieces, part in zip(texts_and_numbers, parts, strict=True)]


NAMES = st.text(st.sampled_from("ab.-0129é\U0001f600"), min_size=1, max_size=8)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@given(st.lists(PATHS, max_size=8))
def test_natural_order_is_that_of_the_naive_key(paths):
    assert sorted(paths, key=natural) == sorted(paths, key=naive)


def test_a_longer_number_is_greater():
    assert natural_name(b"9" * 250) < natural_name(b"1" + b"0" * 250)


def test_a_folder_is_listed_in_naive_order(tmp_path):
    rng = np.random.default_rng(5)
    letters = np.array(list("ab019-."))
    for _ in range(300):
        depth = rng.integers(1, 4)
        parts = ["x" + "".join(rng.choice(letters, rng.integers(0, 6))) for _ in range(depth)]
        (tmp_path / "/".join(parts[:-1])).mkdir(parents=True, exist_ok=True)
        (tmp_path / ("/".join(parts) + ".PGM")).touch()
    (tmp_path / ".hidden").mkdir()
    for name in (".hidden/a.pgm", ".b.pgm", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "x7").mkdir(exist_ok=True)
    (tmp_path / "x7" / "back").symlink_to(tmp_path)
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(tmp_path / "pipe.png")
    found = find_images(str(tmp_path))
    walked = [
        os.path.relpath(os.path.join(here, name), tmp_path)
        for here, _, files in os.walk(tmp_path)
        for name in files
        if name.endswith(("PGM", "gone.png")) and not name.startswith(".")
    ]
    assert list(found.names) == sorted(walked, key=naive)
    sizes, times = found.states
    assert sizes[list(found.names).index("gone.png")] == -1
    fresh = Listing(found.root, found.names)
    np.testing.assert_array_equal(fresh.states, [sizes, times])
    (tmp_path / "x7" / "back").unlink()  # a glob would go round
    assert list(find_images(f"{tmp_path}/**/*.PGM").names) == sorted(
        (name for name in walked if name.endswith("PGM")), key=naive
    )


def test_a_link_to_nothing_is_no_silent_gap(folder):
    (folder / "s1" / "5b.png").symlink_to("nowhere.png")
    refused_as(str(folder), r"s1/5b\.png cannot be opened: No such file")
    assert open_collection(str(folder), on_bad_file="skip").n_samples == 12


def test_names_are_taken_and_travel_small():
    names = FileNames(f"part/{at}.png" for at in range(1000))
    some = names.select(np.arange(1000) % 7 == 3)
    assert list(some) == [f"part/{at}.png" for at in range(3, 1000, 7)]
    assert list(names[5:8]) == ["part/5.png", "part/6.png", "part/7.png"]
    assert len(names[8:5]) == 0
    assert len(pickle.dumps(names)) < 1000 * 22
    assert list(pickle.loads(pickle.dumps(some))) == list(some)  # noqa: S301 - made here
    strange = FileNames([os.fsdecode(b"\xff\xfe.png"), "é.png"])
    assert [os.fsencode(name) for name in strange] == [b"\xff\xfe.png", "é.png".encode()]


# --- a listing that is kept ---


def forbid_listing(monkeypatch):
    def listed(*_):
        raise AssertionError("the folder was listed again")

    monkeypatch.setattr(os, "scandir", listed)


def test_a_kept_listing_is_used_again(folder, tmp_path, monkeypatch):
    table = str(tmp_path / "table.npz")
    first = open_collection(str(folder), listing=table)
    plain = open_collection(str(folder))
    with monkeypatch.context() as patch:
        forbid_listing(patch)
        again = open_images(str(folder), opener=Opener(Opening(listing=table)))
    assert list(again.sample_names()) == list(plain.sample_names())
    assert again.fingerprint() == plain.fingerprint() == first.fingerprint()
    np.testing.assert_array_equal(again.read(slice(0, 12)), pictures().reshape(12, -1))
    save(folder / "s0" / "3.png", pictures(seed=1)[0])
    assert open_collection(str(folder), listing=table).fingerprint() != plain.fingerprint()
    assert [name for name in os.listdir(tmp_path) if name not in ("in", "table.npz")] == []


@pytest.mark.parametrize("change", ["file", "folder", "gone", "elsewhere", "young"])
def test_a_changed_folder_is_listed_again(folder, tmp_path, change):
    table, where = str(tmp_path / "table.npz"), folder
    if change == "young":
        os.utime(folder / "s1")
    open_collection(str(where), listing=table)
    expected = [f"s{at // 4}/{at}.png" for at in range(12)]
    if change == "file":
        save(folder / "s1" / "4b.png", pictures()[0])
        expected.insert(5, "s1/4b.png")
    elif change == "folder":
        save(folder / "s10" / "1.png", pictures()[0])
        expected.append("s10/1.png")
    elif change == "gone":
        (folder / "s2" / "9.png").unlink()
        expected.remove("s2/9.png")
    elif change == "elsewhere":
        where = folder / "s1"
        expected = [f"{at}.png" for at in range(4, 8)]
    else:  # changed in the very moment in which it was listed: its time of change is the same
        state = os.stat(folder / "s1")
        os.remove(folder / "s1" / "4.png")
        os.utime(folder / "s1", ns=(state.st_atime_ns, state.st_mtime_ns))
        expected.remove("s1/4.png")
    assert list(open_collection(str(where), listing=table).sample_names()) == expected


def no_listing(folder, table, pattern, error=RequestError):
    refused_as(str(folder), pattern, error=error, listing=str(table))


def test_nothing_else_is_written_over(folder, tmp_path):
    for path in (tmp_path / "mine.txt", tmp_path / "mine.npz", tmp_path / "objects.npz"):
        path.write_text("precious")
        if path.stem == "mine" and path.suffix == ".npz":
            np.savez(path, x=np.zeros(3))
        elif path.stem == "objects":
            np.savez(path, format=np.array([{}], dtype=object))
        before = path.read_bytes()
        no_listing(folder, path, "is no listing of files; give listing another path")
        assert path.read_bytes() == before
    no_listing(folder, folder / "s1" / "table.npz", r"table\.npz lies in .*/in, the folder it lists")
    said = r"table\.npz could not be written: .*; give listing another path"
    no_listing(folder, tmp_path / "mine.txt" / "table.npz", said, OutputError)


def test_a_damaged_table_is_refused(folder, tmp_path):
    table = tmp_path / "table.npz"
    open_collection(str(folder), listing=str(table))
    whole = table.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:40], b"", whole.replace(b".png", b".jpg", 1)):
        table.write_bytes(damaged)
        no_listing(folder, table, "is no listing of files")


# --- several sizes ---


SHAPES = [(9, 7), (5, 6), (9, 7, 3), (12, 4, 4), (3, 3), (9, 7)]


@pytest.fixture
def sizes(tmp_path):
    """Six pictures of five shapes."""
    rng = np.random.default_rng(3)
    images = [rng.integers(0, 256, shape, dtype="u1") for shape in SHAPES]
    for at, image in enumerate(images):
        save(tmp_path / "sizes" / f"{at}.png", image)
    return str(tmp_path / "sizes"), images


def each_of(collection, start, stop):
    found = {}

    def keep(at, image):
        found[at] = np.array(image)

    collection.each(slice(start, stop), keep)
    return [found[at] for at in range(stop - start)]


@pytest.mark.parametrize("threads", [False, True])
def test_images_of_several_sizes_come_one_by_one(sizes, monkeypatch, threads):
    if threads:
        monkeypatch.setattr("streampca.readers.threads._WORTH_A_THREAD", 0)
    source, images = sizes
    collection = open_collection(source)
    assert collection.mixed
    assert (collection.shape, collection.axes) == ((6, 9, 7, 4), ("y", "x", "channel"))
    assert list(collection.sample_names()) == [f"{at}.png" for at in range(6)]
    for one in (collection, pickle.loads(pickle.dumps(collection))):  # noqa: S301 - made here
        for start, stop in ((0, 6), (2, 4), (3, 3)):
            for read, expected in zip(each_of(one, start, stop), images[start:stop], strict=True):
                np.testing.assert_array_equal(read, expected)
        assert one.fingerprint() == collection.fingerprint()
    part = open_collection(source, select={"sample": slice(1, 3)})
    assert part.n_samples == 2
    assert part.where(1) == f"{source}/2.png"
    assert list(part.sample_names()) == ["1.png", "2.png"]
    np.testing.assert_array_equal(each_of(part, 1, 2)[0], images[2])
    assert part.fingerprint() != collection.fingerprint()


def test_rows_of_several_sizes_are_refused(sizes):
    source, _ = sizes
    message = rf"{source} holds images of several sizes, e\.g\. {source}/0\.png \(9 x 7\) and {source}/1\.png \(5 x 6\)"
    refused_as(source, message + r"; give Preparation\(resize=\(64, 64\)\), or leave out the others\.$")
    for options in ({"sample_axes": ("y",)}, {"select": {"y": slice(0, 2)}}, {"select": {"sample": 1}}):
        refused_as(source, "can take no axis but the samples", error=RequestError, **options)
    refused_as(source, "no axis 'z'", error=RequestError, select={"z": 1})


def test_a_few_of_another_size_can_be_left_out(folder):
    save(folder / "s1" / "4b.png", np.zeros((30, 40), "u1"))
    refused_as(str(folder), r"4b\.png \(30 x 40\); .* or leave out the others \(on_bad_file='skip'\)")
    found = open_collection(str(folder), on_bad_file="skip")
    assert Prepared(found, Preparation()).shape == (12, 9, 7)
    for sides in ({"sample_axes": ("y",)}, {"select": {"y": slice(0, 9)}}):
        assert len(open_collection(str(folder), on_bad_file="skip", **sides).skipped) == 1


@pytest.mark.parametrize("on_bad_file", ["error", "skip"])
def test_the_commonest_scale_is_that_of_most_files_not_of_most_alike(sizes, on_bad_file):
    source, _ = sizes
    for at in range(3):
        save(Path(source, f"deep{at}.png"), np.zeros((9, 8), "u2"))
    said = r"deep0\.png is 9 x 8 uint16, unlike most images of .* \(9 x 7 uint8\)"
    if on_bad_file == "error":
        refused_as(source, said)
    else:
        collection = open_collection(source, on_bad_file="skip")
        assert collection.shape == (6, 9, 7, 4)
        assert len(collection.skipped) == 3
        assert re.search(said, " ".join(collection.skipped[0]))


def test_all_headers_are_read_where_sizes_differ(tmp_path):
    for at in range(200):
        save(tmp_path / "in" / f"{at}.pgm", np.zeros((4, 5) if at % 10 else (6, 5), "u1"))
    save(tmp_path / "in" / "1.pgm", np.zeros((40, 50), "u1"))
    collection = open_collection(str(tmp_path / "in"))
    assert collection.shape == (200, 40, 50)
    assert collection.storage.decode_bytes >= 40 * 50
    save(tmp_path / "in" / "2.pgm", np.zeros((400, 50), "u1"))
    with pytest.raises(SourceError, match=r"2\.pgm is 400 x 50 uint8, more than the largest image looked at"):
        collection.each(slice(0, 5), lambda at, image: None)


def test_a_far_larger_image_than_those_looked_at_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(census, "_ALL_HEADERS", 100)
    for at in range(200):
        save(tmp_path / f"{at}.pgm", np.zeros((4, 5) if at % 2 else (6, 5), "u1"))
    save(tmp_path / "1.pgm", np.zeros((12, 5), "u1"))
    collection = open_collection(str(tmp_path))
    assert collection.shape == (200, 6, 5)
    assert each_of(collection, 1, 2)[0].shape == (12, 5)
    save(tmp_path / "1.pgm", np.zeros((13, 5), "u1"))
    with pytest.raises(SourceError, match=r"1\.pgm is 13 x 5 uint8, more than twice the largest"):
        each_of(collection, 1, 2)
    save(tmp_path / "1.png", np.zeros((4, 5), "u2"))
    os.replace(tmp_path / "1.png", tmp_path / "1.pgm")
    with pytest.raises(SourceError, match=r"1\.pgm is 4 x 5 uint16, unlike .*; give dtype='uint16' if"):
        each_of(collection, 1, 2)


def test_scales_are_not_mixed(sizes):
    source, _ = sizes
    save(Path(source, "deep.png"), np.zeros((9, 7), "u2"))
    refused_as(source, rf"deep\.png is 9 x 7 uint16, unlike most .*{re.escape(SKIP)}")
    collection = open_collection(source, on_bad_file="skip")
    assert collection.mixed
    assert collection.n_samples == 6
    assert [os.path.basename(path) for path, _ in collection.skipped] == ["deep.png"]


def test_uniform_images_come_one_by_one_too(folder):
    expected = pictures()
    collection = open_collection(str(folder), select={"y": slice(2, 9), "sample": slice(3, 12)})
    for read, image in zip(each_of(collection, 1, 8), expected[4:11, 2:9], strict=True):
        np.testing.assert_array_equal(read, image)
    turned = open_collection(str(folder), sample_axes=("x", "y"))
    np.testing.assert_array_equal(each_of(turned, 5, 6)[0], expected[5].T)
    columns = open_collection(str(folder), sample_axes=("y",))
    np.testing.assert_array_equal(each_of(columns, 7, 9), expected[1].T[:2])


def test_each_reads_no_block(folder, monkeypatch):
    collection = open_collection(str(folder))
    monkeypatch.setattr(type(collection.array), "read_into", None)
    assert len(each_of(collection, 0, 12)) == 12


# --- bad files ---


@pytest.fixture
def spoiled(folder):
    """The folder with two files that cannot be read, one of another shape and one of another depth."""
    (folder / "s0" / "2b.png").write_bytes(b"\x89PNG\r\n\x1a\n nonsense")
    (folder / "s0" / "10.png").write_bytes(b"")
    save(folder / "s1" / "5b.png", np.zeros((3, 4), "u1"))
    save(folder / "s2" / "9b.png", np.zeros((9, 7), "u2"))
    settle(folder)
    return folder


BAD = ["s0/2b.png", "s0/10.png", "s1/5b.png", "s2/9b.png"]


def check_spoiled(collection, folder):
    assert [skip.path for skip in collection.skipped] == [f"{folder}/{name}" for name in BAD if "5b" not in name]
    collection = Prepared(collection, Preparation()).raw  # to which an image of another shape is bad, too
    assert [skip.path for skip in collection.skipped] == [f"{folder}/{name}" for name in BAD]
    words = (
        "cannot be decoded",
        "not of a known format",
        "is 3 x 4 uint8, unlike most",
        "is 9 x 7 uint16, unlike most",
    )
    for skip, word in zip(collection.skipped, words, strict=True):
        assert isinstance(skip, Skipped)
        assert word in skip.reason
        assert "\n" not in skip.reason
        assert str(folder / "s") not in skip.reason
    assert collection.shape == (12, 9, 7)
    assert list(collection.sample_names()) == [f"s{at // 4}/{at}.png" for at in range(12)]
    np.testing.assert_array_equal(collection.read(slice(0, 12)), pictures().reshape(12, -1))


@pytest.mark.parametrize("threads", [False, True])
def test_bad_files_are_left_out_on_request(spoiled, caplog, monkeypatch, threads):
    if threads:
        monkeypatch.setattr("streampca.readers.threads._WORTH_A_THREAD", 0)
    events = []
    with caplog.at_level("INFO", "streampca"):
        collection = open_collection(str(spoiled), on_bad_file="skip", listener=events.append)
        Prepared(collection, Preparation())
        Prepared(collection, Preparation())
    said = [record.message.split(":")[0] for record in caplog.records]
    assert said == [
        f"left out 3 of the 16 files of {spoiled}, {spoiled}/{BAD[0]} first.",
        *(f"left out {spoiled}/{BAD[at]}" for at in (0, 1, 3)),
        f"left out 1 of the 13 files of {spoiled}, {spoiled}/{BAD[2]} first.",
        f"left out {spoiled}/{BAD[2]}",
    ]
    check_spoiled(collection, spoiled)
    start, *blocks, end = events
    size = sum(path.stat().st_size for path in spoiled.rglob("*.png"))
    assert start == PassStarted("checking files", 1, 1, 16, size)
    assert isinstance(end, PassFinished)
    assert all(isinstance(block, BlockDone) for block in blocks)
    assert sum(block.samples for block in blocks) == 16
    assert sum(block.bytes for block in blocks) == size
    model = streampca.fit(collection, n_components=3)
    assert model.n_samples == 12


def test_without_the_request_the_first_bad_file_ends_it_and_the_remedy_works(spoiled):
    refused_as(str(spoiled), r"s0/2b\.png cannot be decoded .*" + re.escape(SKIP))
    with pytest.raises(SourceError) as caught:
        open_collection(str(spoiled / "s0" / "2b.png"))
    assert "on-bad-file" not in str(caught.value)
    with pytest.raises(RequestError, match="on_bad_file = 'ignore': give 'error' or 'skip'"):
        open_collection(str(spoiled), on_bad_file="ignore")
    check_spoiled(open_collection(str(spoiled), on_bad_file="skip"), spoiled)


def test_a_file_that_breaks_later_is_named_with_the_remedy(folder):
    collection = open_collection(str(folder), on_bad_file="skip")
    (folder / "s1" / "6.png").write_bytes(b"gone")
    with pytest.raises(SourceError, match=r"s1/6\.png is not of a known format.*" + re.escape(SKIP)):
        collection.read(slice(0, 12))


def test_nothing_but_bad_files(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.png").write_bytes(b"x")
    refused_as(
        str(tmp_path), rf"none of the 2 files of {tmp_path} can be used; {tmp_path}/a\.png is not", on_bad_file="skip"
    )


def test_lists_and_globs_skip_too(spoiled, tmp_path):
    paths = [str(spoiled / name) for name in ("s2/8.png", "s0/10.png", "s0/1.png")]
    listed = open_collection(paths, on_bad_file="skip", listing=str(tmp_path / "table.npz"))
    assert [skip.path for skip in listed.skipped] == [paths[1]]
    np.testing.assert_array_equal(listed.read(slice(0, 2)), pictures()[[8, 1]].reshape(2, -1))
    globbed = open_collection(f"{spoiled}/s0/*.png", on_bad_file="skip")
    assert list(globbed.sample_names()) == [f"{at}.png" for at in range(4)]


def test_an_outlier_in_size_is_not_decoded(folder, monkeypatch):
    save(folder / "s1" / "4b.png", np.zeros((90, 70), "u1"))
    looked_at = census._spread
    monkeypatch.setattr(census, "_spread", lambda n: [at for at in looked_at(n) if at != 5])
    ((path, reason),) = open_collection(str(folder), on_bad_file="skip").skipped
    assert path == f"{folder}/s1/4b.png"
    assert "more than twice the largest image looked at first" in reason


def decodings(monkeypatch):
    """Paths that a census decodes from now on."""
    paths, read = [], census.read_picture

    def counted(path, *how):
        paths.append(os.path.basename(path))
        return read(path, *how)

    monkeypatch.setattr(census, "read_picture", counted)
    return paths


def test_a_census_is_kept_and_only_what_changed_is_checked_again(spoiled, tmp_path, monkeypatch):
    table = str(tmp_path / "table.npz")
    check_spoiled(open_collection(str(spoiled), on_bad_file="skip", listing=table), spoiled)
    decoded = decodings(monkeypatch)
    with monkeypatch.context() as patch:
        forbid_listing(patch)
        before = os.stat(table).st_mtime_ns
        check_spoiled(open_images(str(spoiled), opener=Opener(Opening(on_bad_file="skip", listing=table))), spoiled)
        assert os.stat(table).st_mtime_ns == before
    assert decoded == []
    save(spoiled / "s0" / "10.png", pictures()[0])  # mended
    (spoiled / "s2" / "11.png").write_bytes(b"broken now")
    save(spoiled / "s1" / "new.png", pictures()[1])
    settle(spoiled)
    collection = open_collection(str(spoiled), on_bad_file="skip", listing=table)
    assert sorted(decoded) == ["10.png", "11.png", "new.png"]
    collection = Prepared(collection, Preparation()).raw
    assert collection.n_samples == 13
    fresh = Prepared(open_collection(str(spoiled), on_bad_file="skip"), Preparation()).raw
    assert collection.skipped == fresh.skipped
    assert collection.fingerprint() == fresh.fingerprint()
    assert list(collection.sample_names()) == list(fresh.sample_names())
    other = pickle.loads(pickle.dumps(collection))  # noqa: S301 - made here
    assert list(other.sample_names()) == list(fresh.sample_names())


def test_a_skipped_few_among_several_sizes(sizes):
    source, images = sizes
    Path(source, "2b.png").write_bytes(b"")
    collection = open_collection(source, on_bad_file="skip")
    assert collection.mixed
    assert [os.path.basename(path) for path, _ in collection.skipped] == ["2b.png"]
    for read, expected in zip(each_of(collection, 0, 6), images, strict=True):
        np.testing.assert_array_equal(read, expected)
    assert isinstance(collection, MixedImages)


# --- threads ---


@pytest.mark.parametrize("each_bytes", [0, 2**20])
def test_work_is_done_once_and_the_first_error_wins(monkeypatch, each_bytes):
    monkeypatch.setattr("streampca.machine.cores", lambda: 4)
    done, lock = [], threading.Lock()

    def work(at):
        with lock:
            done.append(at)
        if at in (70, 50, 90):
            time.sleep(0.02 if at == 50 else 0)
            raise SourceError(str(at))
        if at > 90:
            time.sleep(0.02)  # meanwhile the threads that have failed say so

    with pytest.raises(SourceError, match=r"^50$"):
        for_each(work, 10**9, each_bytes)
    assert set(range(51)) <= set(done)
    assert len(set(done)) == len(done) < (200 if each_bytes else 52)


def test_a_stray_page_is_one_bad_file(folder):
    tifffile.imwrite(folder / "s1" / "7b.tif", np.zeros((3, 9, 7), "u1"), photometric="minisblack")
    ((path, reason),) = open_collection(str(folder), on_bad_file="skip").skipped
    assert path.endswith("7b.tif")
    assert "has 3 pages" in reason


@pytest.mark.parametrize("suffix", ["png", "jpg", "jp2", "pgm", "gif"])
def test_a_picture_is_asked_for_its_state_once_on_opening_and_once_on_reading(tmp_path, monkeypatch, suffix):
    """Of files on a network each question takes as long as reading a small picture."""
    count, rng, asked = 300, np.random.default_rng(0), []
    for number in range(count):
        save(tmp_path / f"{number:03d}.{suffix}", rng.integers(0, 255, (8, 8), dtype=np.uint8))

    def asking(path, *args, stat=os.stat, **options):
        if str(path).endswith(suffix):
            asked.append(str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", asking)
    found = open_collection(str(tmp_path))
    assert len(asked) <= count + census._LOOKED_AT + 20  # and some headers are read
    asked.clear()
    found.read(slice(0, count))
    assert len(asked) == len(set(asked)) == count
