"""Examples of README.md are run, loaded or parsed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from shell import succeeded
from test_docs import _BLOCK, Block, check_run_file, commands_of, parse

from streampca.cli.config import load_run

ROOT = Path(__file__).parents[1]
BLOCKS = [Block(*found.groups()) for found in _BLOCK.finditer((ROOT / "README.md").read_text(encoding="utf-8"))]
INSTALLED = 'python3 -m venv .venv && .venv/bin/python -m pip install -q -e ".[test]" && '


def texts(language):
    """Return the blocks in a language, in order."""
    return [block.text for block in BLOCKS if block.language == language]


COMMANDS = [words for block in BLOCKS if block.language == "console" for words in commands_of(block)]


def test_the_two_commands():
    assert [line for text in texts("") for line in text.splitlines() if line.startswith("python3 -m venv")] == [
        INSTALLED + ".venv/bin/streampca demo",
        INSTALLED + ".venv/bin/python -m pytest",
    ]


def test_there_is_something_to_test():
    assert texts("python")
    assert COMMANDS


def test_every_extra_is_named():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    said = (ROOT / "README.md").read_text(encoding="utf-8").partition("\nExtras: ")[2].partition("\n\n")[0]
    assert set(extras) <= set(re.findall(r"`(\w+)`", said))


@pytest.fixture
def scans(here):
    """The folder that the first screen names, of tiny TIFFs."""
    (here / "scans").mkdir()
    for number, image in enumerate(np.random.default_rng(0).integers(0, 4096, (20, 12, 16), dtype=np.uint16)):
        tifffile.imwrite(here / "scans" / f"{number}.tif", image)


@pytest.mark.parametrize("code", texts("python"), ids=range(len(texts("python"))))
def test_python(code, scans, undrawn):
    """Each block by itself, in a folder with scans; the report of the commands has its figures drawn."""
    exec(compile(code, "README.md, a block of Python", "exec"), {"__name__": "__main__"})  # noqa: S102 - our page


@pytest.mark.slow
def test_the_five_commands(scans):
    five = [words for block in BLOCKS[:2] if block.language == "console" for words in commands_of(block)]
    assert [words[0] for words in five] == ["info", "plan", "fit", "report", "transform"]
    for words in five:
        succeeded(*words)


@pytest.mark.parametrize("text", texts("yaml"), ids=range(len(texts("yaml"))))
def test_run_files(text, here):
    check_run_file(text)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_parse(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    parse(words)
    if words[0] == "run":
        load_run(words[1], [word for word in words[2:] if word != "--set"])


@pytest.mark.parametrize("script", re.findall(r"^python (\S+\.py)", "\n".join(texts("console")), re.MULTILINE))
def test_scripts_are_there(script):
    assert (ROOT / script).is_file()
