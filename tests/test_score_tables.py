"""Scores that were written as tables are read again, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from shell import pictures, refused, succeeded

import streampca
from streampca.readers import score_tables
from streampca.storage.outputs import open_writer
from streampca.storage.writers import OutputArray

FORMS = [".zarr", ".npy", ".csv", ".parquet"]


@pytest.fixture
def there(here):
    np.save("images.npy", pictures(60))
    succeeded("fit", "images.npy", "-k", 4, "-o", "model.zarr", "-q")
    return here


@pytest.mark.parametrize("more", [(), ("--whiten",)], ids=["", "whitened"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_that_is_written_is_reconstructed_to_the_same_bits(there, form, more):
    succeeded("transform", "model.zarr", "images.npy", "-o", f"scores{form}", *more, "-q")
    said = () if form in (".zarr", ".parquet") else more  # these say themselves that they are whitened
    succeeded("reconstruct", "model.zarr", f"scores{form}", "-o", "images-of-scores.npy", *said, "-q")
    succeeded("transform", "model.zarr", "images.npy", "-o", "plain.npy", *more, "-q")
    succeeded("reconstruct", "model.zarr", "plain.npy", "-o", "expected.npy", *more, "-q")
    np.testing.assert_array_equal(np.load("images-of-scores.npy"), np.load("expected.npy"), strict=True)


@pytest.mark.parametrize("form", [".csv", ".parquet"])
def test_graphs_are_made_of_tables(there, form):
    outputs = f"output: {{directory: out, scores: scores{form}, graph: graph.zarr}}"
    Path("run.yaml").write_text(f"collection: {{source: images.npy}}\nmodel: {{n_components: 4}}\n{outputs}\n")
    succeeded("run", "run.yaml", "-q")
    succeeded("transform", "model.zarr", "images.npy", "-o", "plain.npy", "-q")
    indices = streampca.neighbors("plain.npy").indices
    np.testing.assert_array_equal(streampca.load("graph.zarr").indices, indices)


@given(
    st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: arrays(dtype, st.tuples(st.integers(1, 40), st.integers(1, 5)))
    ),
    st.booleans(),
)
def test_tables_hold_the_bits_of_scores(tmp_path_factory, scores, are_named):
    """Names may hold ends of lines, quotation marks, commas and signs of formulas; chunks are of a few rows."""
    folder = tmp_path_factory.mktemp("tables")
    names = [f"={number}\n\"a\",'b'" for number in range(len(scores))] if are_named else None
    for form in (".csv", ".parquet"):
        path = str(folder / f"scores{form}")
        table = OutputArray("scores", scores.shape, ("sample", "component"), scores.dtype, names=names)
        with open_writer(path, table) as writer:
            writer.write(0, scores)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(score_tables, "_CHUNK", 64)
            array = score_tables.ParquetScores(path) if form == ".parquet" else score_tables.CsvScores(path)
            read = array.read_all()
            assert array.names("sample") == names
        assert read.dtype in (scores.dtype, np.float32)  # float64 of a few digits are float32 in csv
        np.testing.assert_array_equal(read, scores)


def test_a_table_that_was_cut_short_is_refused(there):
    succeeded("transform", "model.zarr", "images.npy", "-o", "scores.csv", "-q")
    whole = Path("scores.csv").read_bytes()
    Path("scores.csv").write_bytes(whole[:-3])
    assert "scores.csv ends within a row" in refused("reconstruct", "model.zarr", "scores.csv", "-o", "i.npy")
    Path("scores.csv").write_bytes(whole.replace(b",", b",x", 9))
    assert "scores.csv is " in refused("reconstruct", "model.zarr", "scores.csv", "-o", "i.npy")
