"""Names, texts and URLs of strangers: never raw on a terminal, no formulas in tables, nothing fetched unasked."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from shell import pictures, refused, succeeded, typed

import streampca
from streampca.errors import RequestError
from streampca.readers.views.columns import cells
from streampca.storage import remote
from streampca.storage.table_cells import as_cell, of_cell

ESCAPE = "\x1b]0;owned\x07\x1b[31m"
URL = "http://127.0.0.1:9/x.npy"  # of a port that nothing listens to


@pytest.fixture
def unasked(monkeypatch):
    """List of the URLs that are asked for, none of which may be."""
    asked = []
    real = remote.filesystem
    monkeypatch.setattr(remote, "filesystem", lambda url: asked.append(url) or real(url))
    return asked


def test_names_of_files_are_escaped_on_a_terminal(here):
    folder = here / f"pictures{ESCAPE}"
    folder.mkdir()
    for number, image in enumerate(pictures()[:6]):
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(folder / f"{number}{ESCAPE}.png")
    said = [
        typed("info", folder),
        typed("fit", folder, "-o", "m.zarr", "-k", "2"),
        typed("inspect", "m.zarr"),
        typed("info", here / f"missing{ESCAPE}"),
    ]
    texts = [each.out + each.err for each in said]
    assert any("owned" in text for text in texts)
    assert not any(sign in text for text in texts for sign in "\x1b\x07")


def test_the_log_of_a_run_has_no_control_characters(here):
    np.save(here / f"x{ESCAPE}.npy", pictures())
    written = ESCAPE.replace("\x1b", "\\e").replace("\x07", "\\a")
    (here / "run.yaml").write_text(f'collection: {{source: "x{written}.npy"}}\n')
    succeeded("run", "run.yaml", "--set", "output.directory=out", "--set", "model.n_components=2")
    assert "\x1b" not in (here / "out" / "run.log").read_text()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'=x", "''=x"])
def test_formulas_become_text_and_come_back(text):
    assert as_cell(text) == f"'{text}"
    assert of_cell(as_cell(text)) == text


@pytest.mark.parametrize("text", ["", "a", "1", "'", "'a", "a=1", " =1"])
def test_other_texts_stay_as_they_are(text):
    assert as_cell(text) == of_cell(text) == text


def test_scores_in_tables_hold_no_formulas_but_numbers_as_they_are(here):
    (here / "pictures").mkdir()
    for number, image in enumerate(pictures()[:6]):
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(here / "pictures" / f"=cmd{number}.png")
    succeeded("fit", "pictures", "-o", "m.zarr", "-k", "2")
    succeeded("transform", "m.zarr", "pictures", "-o", "scores.csv")
    with open("scores.csv", newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert [row[0] for row in rows] == [f"'=cmd{number}.png" for number in range(6)]
    assert any(cell.startswith("-") for row in rows for cell in row[1:])
    assert list(cells("scores.csv", "sample")) == [f"=cmd{number}.png" for number in range(6)]


@pytest.mark.parametrize("name", ["list.txt", "list.csv"])
def test_lists_fetch_no_urls_unless_that_is_allowed(here, unasked, name):
    (here / name).write_text(f"file\n{URL}\n" if name.endswith("csv") else f"{URL}\n")
    source = f"{name}:file" if name.endswith("csv") else f"@{name}"
    with pytest.raises(RequestError, match=r"names http://127\.0\.0\.1:9/x\.npy, .* allow_remote=True"):
        streampca.open_collection(source)
    assert "--allow-remote" in refused("info", source, code=2)
    assert unasked == []
    assert typed("info", source, "--allow-remote").code == 1
    assert unasked != []


@pytest.mark.parametrize("allowed", [False, True])
def test_lists_of_files_are_opened_as_before(here, allowed):
    for number in range(2):
        np.save(f"{number}.npy", pictures())
    (here / "list.txt").write_text("0.npy\n1.npy\n")
    assert streampca.open_collection("@list.txt", allow_remote=allowed).n_samples == 2 * len(pictures())


@pytest.mark.parametrize(
    "key", ["collection: {source: URL}", "collection: {source: [a.npy, URL]}", "prepare: {mask: URL}"]
)
def test_run_files_fetch_no_urls_unless_that_is_allowed(here, unasked, key):
    text = key.replace("URL", f"'{URL}'")
    start = "" if key.startswith("collection") else "collection: {source: a.npy}\n"
    (here / "run.yaml").write_text(f"{start}{text}\noutput: {{directory: out}}\n")
    assert "--allow-remote" in refused("run", "run.yaml", code=2)
    assert unasked == []
    assert "--allow-remote" not in typed("run", "run.yaml", "--allow-remote").complaint


def test_run_files_cannot_allow_it_themselves(here):
    (here / "run.yaml").write_text(f"collection: {{source: '{URL}', allow_remote: true}}\n")
    assert "is for the command line" in refused("run", "run.yaml", code=2)


@pytest.mark.slow
def test_reports_do_not_fetch_what_a_model_names(here, unasked):
    model = streampca.fit(pictures(), n_components=2, listener=lambda event: None)
    about = {**model.provenance, "source": URL, "opened": {"source": URL, "options": {}, "not_kept": []}}
    replace(model, provenance=about).save("m.zarr")
    said = typed("report", "m.zarr", "-o", "report.html")
    assert said.code == 0
    assert "--allow-remote" in said.err
    assert unasked == []


def test_reports_write_and_fetch_nothing_that_the_record_of_a_model_names(here, unasked, undrawn):
    (here / "pics").mkdir()
    for number, image in enumerate(pictures()[:6]):
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(here / "pics" / f"{number}.png")
    model = streampca.fit("pics", n_components=2, listener=lambda event: None)
    for options in ({"listing": str(here / "evil.csv")}, {"allow_remote": True, "labels": URL}):
        model.provenance["opened"] = {"source": "pics", "options": options, "not_kept": []}
        streampca.write_report(model, "r.html", overwrite=True, listener=lambda event: None)
        assert not (here / "evil.csv").exists()
    assert unasked == []
