"""Examples of README.md are run, loaded or parsed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("code", texts("python"), ids=range(len(texts("python"))))
def test_python(code, here):
    """Each block by itself, in an empty folder."""
    exec(compile(code, "README.md, a block of Python", "exec"), {"__name__": "__main__"})  # noqa: S102 - our page


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
