"""How a collection was opened is kept as plain data, and opens the same samples again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from contract import refused_as
from PIL import Image

import streampca
from streampca.errors import RequestError
from streampca.readers import OpeningRecord

X = np.arange(5 * 3 * 4 * 6, dtype=np.uint16).reshape(5, 3, 4, 6)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    return "x.npy"


@pytest.mark.parametrize("options", [
    {},
    {"select": {1: 2}},
    {"select": {np.int64(1): slice(0, 2), 3: slice(2, None)}, "sample_axes": (2, 3)},
    {"sample_axes": (-2, -1)},
    {"sample_axes": 3},
    {"samples": slice(1, None, 2)},
    {"samples": [0, 3]},
    {"samples": np.array([True, False, True, True, False])},
    {"samples": (1, 4)},
    {"select": {1: 0}, "patches": {"size": (2, 3), "step": (1, 1)}},
    {"select": {1: 0}, "patches": 2},
    {"labels": np.arange(5) / 4, "where": "label>0.3"},
    {"labels": ["a", "b", "a", "b", "a"], "where": "label=a"},
    {"on_bad_file": "error"},
], ids=str)  # fmt: skip
def test_the_same_samples_are_opened_again(path, options):
    first = streampca.open_collection(path, **options)
    kept = OpeningRecord.from_json(json.loads(json.dumps(first.opened.to_json())), "m")
    assert kept.not_kept == ()
    again = streampca.open_collection(kept.source, **kept.options)
    assert again.shape == first.shape
    assert again.fingerprint() == first.fingerprint()
    everything = slice(0, first.n_samples)
    np.testing.assert_array_equal(again.read(everything), first.read(everything))
    np.testing.assert_array_equal(again.labels, first.labels)


def test_lists_of_paths_are_kept(path):
    np.save("y.npy", X[:2])
    first = streampca.open_collection([path, "y.npy"])
    again = streampca.open_collection(first.opened.to_json()["source"])
    assert again.fingerprint() == first.fingerprint()


@pytest.mark.parametrize(("options", "name"), [
    ({"labels": np.arange(5000)}, "labels"),
    ({"labels": np.full(5000, np.nan)}, "labels"),
    ({"samples": np.arange(0, 5000, 2)}, "samples"),
])  # fmt: skip
def test_long_lists_are_not_kept(options, name):
    found = streampca.open_collection(np.zeros((5000, 2, 2)), **options)
    assert found.opened.to_json() == {
        "source": None, "options": {"sample_axes": [1, 2]}, "not_kept": [name], "guessed": True
    }  # fmt: skip


def test_a_collection_that_is_opened_in_steps(path):
    """Steps that one call would do in another order are not kept as if it did them."""
    half = streampca.open_collection(path, samples=slice(0, 4), select={1: 0})
    labelled = streampca.open_collection(half, labels=np.arange(4))
    kept = labelled.opened.to_json()
    assert kept["not_kept"] == ["samples"]
    taken = {"select": [[1, 0]], "sample_axes": [2, 3]}  # axes that were taken by position are kept, too
    assert kept["options"] == {**taken, "labels": [0, 1, 2, 3]}
    assert half.opened.to_json()["options"] == {**taken, "samples": {"slice": [0, 4, None]}}


def test_options_come_too_late_for_a_collection_that_is_open(path):
    opened = streampca.open_collection(path)
    for late in ({"select": {1: 0}}, {"key": "x"}):
        refused_as(opened, r"was given for x.npy, which is open already; open it with", error=RequestError, **late)


def test_labels_stay_apart_from_outputs_where_files_are_chosen(tmp_path):
    """A collection of some of the files still knows the table that its labels were read from."""
    for number in range(6):
        shape = (4, 6, 3) if number < 2 else (4, 6)
        Image.fromarray(np.full(shape, number, np.uint8)).save(tmp_path / f"{number}.png")
    table = tmp_path / "labels.csv"
    table.write_text("y\n" + "0\n1\n" * 3)
    how = {"labels": f"{table}:y", "on_bad_file": "skip"}
    for collection in (
        streampca.open_collection(tmp_path, **how),
        streampca.open_collection(tmp_path, **how, where="label=1"),
        streampca.open_collection(streampca.open_collection(tmp_path, **how), where="label=1"),
        streampca.open_collection(tmp_path, **how).fitting(lambda shape: shape),
    ):
        assert str(table) in collection.paths()


def test_images_that_were_left_out_later_are_remembered(tmp_path):
    """A preparation leaves images out after opening, and the record still has the collection's options."""
    for number in range(8):
        shape = (6, 4) if number in (2, 5) else (4, 6)
        Image.fromarray(np.full(shape, number, np.uint8)).save(tmp_path / f"{number}.png")
    model = streampca.fit(tmp_path, on_bad_file="skip", n_components=1)
    assert model.n_samples == 6
    assert model.provenance["opened"]["options"] == {"on_bad_file": "skip"}
