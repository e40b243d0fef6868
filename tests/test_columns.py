"""Columns beside the samples: labels, weights, and samples taken by their labels."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from contract import refused_as
from PIL import Image

from streampca.errors import RequestError, SourceError
from streampca.readers import open_collection, open_column


def images(n=6):
    return np.arange(n * 6, dtype="u1").reshape(n, 2, 3)


def folder_of(tmp_path, folders):
    """One small image for each entry, in the folder it names."""
    for at, name in enumerate(folders):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 3), at, "u1")).save(tmp_path / name / f"{at}.png")
    return tmp_path


# --- where columns come from ---


def npy(path):
    np.save(path / "c.npy", np.array([3, 1, 4, 1, 5, 9], "i2"))
    return path / "c.npy"


def npz(path):
    np.savez(path / "c.npz", labels=[3, 1, 4, 1, 5, 9], other=0)
    return f"{path}/c.npz:labels"


def idx(path):
    with gzip.open(path / "train-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">BBBBI6B", 0, 0, 8, 1, 6, 3, 1, 4, 1, 5, 9))
    return f"{path}/train-labels-idx1-ubyte.gz"


def table(path):
    (path / "c.csv").write_text("\ufeffname, digit\n" + "".join(f"x,{value}\n" for value in (3, 1, 4, 1, 5, 9)))
    return f"{path}/c.csv:digit"


@pytest.mark.parametrize("source", [npy, npz, idx, table, lambda path: [3, 1, 4, 1, 5, 9], lambda path: PI[:, None]])
def test_every_source_of_a_column(tmp_path, source):
    found = open_column(source(tmp_path), open_collection(images()))
    assert found.tolist() == [3, 1, 4, 1, 5, 9]
    assert found.dtype.kind in "iu"


PI = np.array([3, 1, 4, 1, 5, 9])


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (("1", "2.5", "-1e3"), "f", [1, 2.5, -1000]),
        (("1", "2", "3"), "i", [1, 2, 3]),
        (("1.0", "1e3"), "i", [1, 1000]),
        (("1e300", "2"), "f", [1e300, 2]),
        (("1", "two", ""), "U", ["1", "two", ""]),
        (("1_1", "11", "1_2"), "U", ["1_1", "11", "1_2"]),
        (("9007199254740992", "9007199254740993"), "i", [2**53, 2**53 + 1]),
        (("100000000000000000000", "100000000000000000001"), "U", [f"{10**20}", f"{10**20 + 1}"]),
        (("100000000000000000000", "300000000000000000000"), "f", [1e20, 3e20]),
        (("1", "1.0", "100000000000000000000"), "f", [1, 1, 1e20]),
        (("9007199254740993", "9007199254740992", "1.5"), "U", ["9007199254740993", "9007199254740992", "1.5"]),
        (('"a, b"', "c ", "a"), "U", ["a, b", "c", "a"]),
    ],
)
def test_tables_hold_numbers_where_all_are(tmp_path, cells, kind, values):
    (tmp_path / "c.csv").write_text("id,what\n" + "".join(f"{at},{cell}\n" for at, cell in enumerate(cells)))
    found = open_column(f"{tmp_path}/c.csv:what", open_collection(images(len(cells))))
    assert found.dtype.kind == kind
    assert found.tolist() == values


def test_folders_are_labels(tmp_path):
    source = folder_of(tmp_path, ["train/cat", "train/cat", "train/dog", "test/cat"])
    found = open_collection(source, labels="folder")
    assert found.labels.tolist() == [name.split("/")[-2] for name in found.sample_names()]
    assert sorted(found.labels) == ["cat", "cat", "cat", "dog"]
    refused_as(source / "train" / "cat", r"all files of .* lie in one folder", error=RequestError, labels="folder")
    refused_as(images(), "are not files", error=RequestError, labels="folder")


@pytest.mark.parametrize(
    ("write", "source", "error", "said"),
    [
        (None, "none.npy", SourceError, r"none\.npy does not exist"),
        (None, "none.csv:x", SourceError, r"none\.csv does not exist; check the path of the table"),
        (None, "none.txt", SourceError, "does not exist; check the path, and give a"),
        ("1\n2\n", "c.txt", SourceError, "unknown format"),
        ("a,b\n1,2\n", "c.csv:bb", RequestError, "no column 'bb'; its columns are a, b. Did you mean 'b'"),
        ("a,b\n1,2\n", "c.csv", RequestError, r"c\.csv:COLUMN"),
        ("a,b\n1,2\n3\n", "c.csv:b", SourceError, "line 3 ends before column 'b'"),
        ("a,b\n1,2\n", "c.csv:b", RequestError, r"has 1 values and numpy array has 6 samples"),
        ("a\n" + "x\udcff", "c.csv:a", SourceError, "is not UTF-8; save it as UTF-8"),
    ],
)
def test_columns_that_cannot_be_read(tmp_path, write, source, error, said):
    if write is not None:
        (tmp_path / source.split(":")[0]).write_bytes(write.encode(errors="surrogateescape"))
    with pytest.raises(error, match=said) as caught:
        open_column(f"{tmp_path}/{source}", open_collection(images()))
    assert "\n" not in str(caught.value)


def test_columns_are_never_unpickled(tmp_path):
    np.save(tmp_path / "c.npy", np.array([print, 1], dtype=object))
    with pytest.raises(SourceError, match="cannot be read"):
        open_column(tmp_path / "c.npy", open_collection(images(2)))
    with pytest.raises(SourceError, match="object values"):
        open_column([print, 1], open_collection(images(2)))
    with pytest.raises(SourceError, match="is not an array"):
        open_column([[1], [1, 2]], open_collection(images(2)))


# --- columns of what was chosen from ---


def test_columns_are_cut_as_samples_are():
    base = open_collection(images())
    chosen = open_collection(base, samples=(1, None, 2))
    assert open_column(PI, chosen).tolist() == [1, 1, 9]
    assert open_column([7, 8, 9], chosen).tolist() == [7, 8, 9]
    assert open_column(PI, open_collection(chosen, samples=[2])).tolist() == [9]
    with pytest.raises(RequestError, match="has 4 values and numpy array has 3 of 6 samples"):
        open_column([1, 2, 3, 4], chosen)


def test_columns_are_cut_as_files_are(tmp_path):
    source = folder_of(tmp_path, ["a"] * 3 + ["b"] * 3)
    found = open_collection(source, labels=PI, samples=[0, 4, 5], where="label>4")
    assert found.labels.tolist() == [5, 9]
    assert found.read(slice(0, 2))[:, 0].tolist() == [4, 5]
    assert open_column(np.arange(6), found).tolist() == [4, 5]


def test_columns_skip_what_was_skipped(tmp_path):
    source = folder_of(tmp_path, ["a"] * 6)
    (source / "a" / "2.png").write_bytes(b"\x89PNG\r\n")
    found = open_collection(source, on_bad_file="skip", labels=PI)
    assert found.labels.tolist() == [3, 1, 1, 5, 9]
    found = open_collection(found, samples=[0, 2])
    assert open_column(np.arange(6), found).tolist() == [0, 3]


def test_windows_have_the_labels_of_their_images(tmp_path):
    found = open_collection(images(), sample_axes=(1, 2), patches=(1, 3), labels=PI)
    assert found.labels.tolist() == np.repeat(PI, 2).tolist()
    assert open_collection(
        images(), sample_axes=(1, 2), patches=(1, 3), labels=range(12), where="label>10"
    ).labels.tolist() == [11]
    source = folder_of(tmp_path, ["a", "b"])
    assert open_collection(source, patches=(2, 1), labels="folder").labels.tolist() == ["a"] * 3 + ["b"] * 3
    some = open_collection(source, patches=(2, 1), samples=(1, None, 2), labels="folder")
    assert some.labels.tolist() == ["a", "b", "b"]


def test_the_callers_collection_stays_as_it_was():
    base = open_collection(images())
    assert open_collection(base, labels=PI).labels is not None
    assert base.labels is None


# --- where ---


@pytest.mark.parametrize(
    ("condition", "places"),
    [
        ("label=1", [1, 3]),
        ("labels == 1", [1, 3]),
        ("label=3, 9", [0, 5]),
        ("label!=1,3", [2, 4, 5]),
        ("label<3", [1, 3]),
        ("label <= 3", [0, 1, 3]),
        ("label>4.5", [4, 5]),
        ("label>=5", [4, 5]),
        ("label>=3 and label<9", [0, 2, 4]),
        ("label!=1,9  and  labels > 3 and label <= 5", [2, 4]),
    ],
)
def test_samples_by_label(condition, places):
    found = open_collection(images(), labels=PI, where=condition)
    np.testing.assert_array_equal(found.read(slice(0, found.n_samples)), images()[places].reshape(len(places), -1))
    assert found.labels.tolist() == PI[places].tolist()


def test_samples_by_text():
    names = ["cat", "dog", "cat", "cow", "dog", "ant"]
    assert open_collection(images(), labels=names, where="label=dog,ant").labels.tolist() == ["dog", "dog", "ant"]
    assert open_collection(images(), labels=names, where="label<cat").labels.tolist() == ["ant"]
    named = ["cat and dog", "cat", "labels and all", "dog", "dog", "ant"]
    assert open_collection(images(), labels=named, where="label=cat and dog").labels.tolist() == ["cat and dog"]
    assert open_collection(images(), labels=named, where="label>cat and label!=dog").labels.tolist() == [
        named[0],
        named[2],
    ]


def test_conditions_are_exact_and_of_truth():
    large = np.array([2**53, 2**53 + 1, 5])
    for labels, condition, places in (
        (large, f"label={2**53 + 1}", [1]),
        (large, "label<5.5", [2]),
        (np.array([True, False, True]), "label=True", [0, 2]),
        (np.array([True, False, True]), "label=0", [1]),
        (np.array(["b", "a", "b"], object), "label=b", [0, 2]),
    ):
        found = open_collection(images(3), labels=labels, where=condition)
        np.testing.assert_array_equal(found.read(slice(0, len(places))), images(3)[places].reshape(len(places), -1))


@pytest.mark.parametrize(
    ("labels", "condition", "said"),
    [
        (PI, "label=7", r"takes no sample of numpy array; its labels are 1, 3, 4, 5, 9\."),
        (PI, "label=cat", r"compares with 'cat', and the labels are numbers: 1, 3, 4, 5, 9\."),
        (PI, "digit=3", "is not a condition"),
        (PI, "label=", "is not a condition"),
        (PI, 3, r"where = 3: give a text or None \(samples to select by label"),
        (PI, "label>3 and label<4", "takes no sample of numpy array"),
        (None, "label=3", "needs labels"),
        (list("abcdef") * 2 + list("ghijklmn"), "label=x", r"labels are a, b, c, d, e, f, g, h, i, j and 4 more\."),
    ],
)
def test_conditions_that_take_nothing(labels, condition, said):
    x = images(6 if labels is None else len(labels))
    refused_as(x, said, error=RequestError, labels=labels, where=condition)
