"""Examples of the documentation are run: a page's blocks in order, in one folder and namespace, on data the page makes.

A comment before a block says what cannot be: ``<!-- cluster -->`` needs machines that are not here, ``<!-- parsed -->``
data or time; their commands are parsed, and the classes named in their YAML looked for. ``<!-- output -->`` stands
before what the commands above it print.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import click
import matplotlib as mpl
import numpy as np
import pytest
from shell import DATA, succeeded
from sklearn.decomposition import PCA, IncrementalPCA

from streampca.cli.commands import cli
from streampca.cli.config import load_run
from streampca.plot import nearest_to_quantiles

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
GALLERY = sorted((DOCS / "gallery").glob("*.py"))

_BLOCK = re.compile(r"^(?:<!-- (\w+) -->\n)?```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKS = {None, "cluster", "parsed", "output"}
_LANGUAGES = {"python", "console", "bash", "yaml", "toml", "text"}
_ELSEWHERE = ("python3 -m venv ", "python ", "sphinx-build ", "pip install ", "pytest ", "cd ", "git ")  # not ours


class Block(NamedTuple):
    """A fenced block: its mark, if it has one, its language and its text."""

    mark: str | None
    language: str
    text: str


def blocks_of(page):
    """Blocks of a page in order; MyST's own directives are not code."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        block = Block(*found.groups())
        if not block.language.startswith("{"):
            assert block.mark in _MARKS, f"{page.name} has a block marked {block.mark!r}"
            assert block.language in _LANGUAGES, f"{page.name} has a block in {block.language!r}"
            yield block


def commands_of(block):
    """Words of the lines that call streampca; lines end in a backslash where they go on."""
    for line in block.text.replace("\\\n", " ").splitlines():
        command = line.partition(" #")[0].strip().removeprefix("exec ")
        if command.startswith("streampca "):
            yield shlex.split(command)[1:]
        elif block.language == "console" and command:
            assert command.startswith(_ELSEWHERE), f"{command!r} is not a command that is known here"


def parse(words):
    """Have the command line understand a command, without doing it."""
    name, *rest = (re.sub(r"\$\w+", "3", word) for word in words)
    cli.commands[name].make_context(name, rest, parent=click.Context(cli, **cli.context_settings))


def check_run_file(text):
    Path("run.yaml").write_text(text, encoding="utf-8")
    load_run("run.yaml")


def check_output(shown, printed):
    """Every line shown was printed, in this order; a line of dots stands for any."""
    lines = iter(printed.splitlines())
    for line in shown.splitlines():
        if line.strip() != "...":
            assert any(line.rstrip() == other.rstrip() for other in lines), f"{line!r} was not printed:\n{printed}"


def carry_out(page):
    """Run a page in the current folder."""
    namespace, printed = {"__name__": page.stem}, ""
    for block in blocks_of(page):
        if block.language == "python":
            code = compile(block.text, f"{page.name}, a block of Python", "exec")
            if block.mark is None:
                exec(code, namespace)  # noqa: S102 - our pages
        elif block.language in ("console", "bash"):
            printed = ""
            for words in commands_of(block):
                parse(words)
                if block.language == "console" and block.mark is None:
                    printed += succeeded(*words)
        elif block.language == "yaml":
            check_run_file(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.mark == "output":
            check_output(block.text, printed)


@pytest.fixture
def quiet_pictures(monkeypatch):
    """Figures that nobody looks at."""
    monkeypatch.setenv("COLUMNS", "120")
    with mpl.rc_context({"backend": "agg"}):
        yield


LONG = {
    "climate", "course", "manifolds", "merging", "netcdf", "parquet", "pictures", "tiff_folder", "zarr_workers",
}  # fmt: skip


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page.stem in LONG), id=page.stem) for page in PAGES]
)
def test_page(page, here, quiet_pictures):
    carry_out(page)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    """Links between pages, as people follow them in the repository; built pages are checked by Sphinx."""
    for target in re.findall(r"\]\((?!https?:|#|<)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("auto_gallery/") or (page.parent / target).exists(), target


def test_the_page_for_users_of_scikit_learn_maps_every_parameter_and_attribute():
    page, x = (DOCS / "coming_from.md").read_text(encoding="utf-8"), np.random.default_rng(0).random((30, 4))
    for other in (PCA, IncrementalPCA):
        names = {*inspect.signature(other).parameters, *vars(other(2).fit(x))}
        assert not {name for name in names if not name.startswith("_") and f"`{name}`" not in page}, other


def test_a_package_adds_a_reader(here):
    """The steps of the page on extending suffice for every command to know the format."""
    example = DOCS / "extending_example"
    (toml,) = (block.text for block in blocks_of(DOCS / "extending.md") if block.language == "toml")
    ((group, entries),) = tomllib.loads(toml)["project"]["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    installed = here / "site" / "raw_reader-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: raw-reader\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")
    np.arange(120, dtype="<u2").tofile("cells_4x6x5_uint16.raw")
    paths = os.pathsep.join([str(installed.parent), str(example), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "streampca", "info", "cells_4x6x5_uint16.raw", "--json"],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sample_shape"] == [6, 5]


def test_a_formula_that_cannot_be_drawn_is_shown_as_it_is():
    pytest.importorskip("sphinx", reason="the pages are built with it")
    from docutils import nodes

    mathml = runpy.run_path(str(DOCS / "_extensions" / "mathml.py"))["_mathml"]
    assert "<mi>a</mi>" in mathml(nodes.math("", "a < b"), as_block=False)
    assert mathml(nodes.math("", r"\nothing <script>"), as_block=False) == r"<code>\nothing &lt;script&gt;</code>"


def made_by(script, monkeypatch, *arguments):
    """Run a script of the gallery; its names, once its pictures are closed."""
    from matplotlib import pyplot

    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
    try:
        return runpy.run_path(str(script), run_name="__main__"), pyplot.get_fignums()
    finally:
        pyplot.close("all")


def denoised(names):
    """Pictures with noise come nearest to the clean ones with an intermediate number of components."""
    found = names["figures"]
    assert found.n_components[0] < found.best < found.n_components[-1]
    frey = names["model"].n_samples == 1965
    assert found.psnr.max() > found.given_psnr + (6 if frey else 1)
    assert 20 < found.best < 60 or not frey


def put_back(names):
    """So does a photograph, from windows that overlap."""
    assert names["ladder"][0] < names["best"] < names["ladder"][-1]
    assert max(names["found"]) > names["psnr"](names["noisy"]) + 2


def threes_alike(names):
    """The textbook's figures, where they are its threes; and what its picture shows, in the images ours arranges."""
    if names["model"].n_samples != 658:
        pytest.skip("zip_train.npz is not in ../shared/data")
    sums = np.cumsum(names["model"].explained_variance_ratio)
    assert sums[[11, 49]] == pytest.approx([0.63, 0.90], abs=0.006)
    ink = names["pictures"][nearest_to_quantiles(names["scores"])] > 0  # (up, across, y, x)
    widths = np.array([[np.ptp(np.flatnonzero(image.any(axis=0))) for image in line] for line in ink])
    assert np.all(np.diff(widths.mean(axis=0)) > 0), "tails lengthen to the right"
    assert np.ptp(widths.mean(axis=1)) < np.ptp(widths.mean(axis=0)) / 3, "and not upwards"
    assert np.all(np.diff(ink.mean(axis=(1, 2, 3))) < 0), "strokes thicken upwards"


REAL = {"denoise_faces": "frey_faces.npy", "threes": "zip_train.npz", "calcium_movie": "calcium_imaging.tif"}
SHOWN = {"denoise_faces": denoised, "photograph_by_patches": put_back, "threes": threes_alike}


@pytest.mark.every(6)
@pytest.mark.parametrize("script", GALLERY, ids=lambda script: script.stem)
def test_gallery(script, here, quiet_pictures, monkeypatch):
    """On real data where these are; building the pages runs all scripts on what comes with scikit-learn."""
    path = DATA / REAL.get(script.stem, "")
    names, figures = made_by(script, monkeypatch, *([path] if path.is_file() else []))
    assert figures, "no picture was made"
    if script.stem in SHOWN:
        SHOWN[script.stem](names)
