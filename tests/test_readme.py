"""What README.md shows is run, loaded or parsed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from streampca.cli import cli
from streampca.config import load_run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTALLED = 'python3 -m venv .venv && .venv/bin/python -m pip install -q -e ".[test]" && '


def blocks(language):
    """Fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands():
    """Lines of the console blocks that call streampca."""
    lines = (line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines())
    return [line for line in lines if line.startswith("streampca ")]


def test_the_two_commands():
    assert [line for block in blocks("") for line in block.splitlines() if line.startswith("python3 -m venv")] == [
        INSTALLED + ".venv/bin/streampca demo",
        INSTALLED + ".venv/bin/python -m pytest",
    ]


def test_there_is_something_to_test():
    assert blocks("python")
    assert commands()


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks("python"), ids=range(len(blocks("python"))))
def test_python(code, tmp_path):
    """Each block by itself, in an empty folder, with warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", blocks("yaml"), ids=range(len(blocks("yaml"))))
def test_run_files(text, tmp_path):
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    load_run(str(tmp_path / "run.yaml"))


@pytest.mark.parametrize("line", commands())
def test_commands_parse(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, name, *words = shlex.split(line.partition(" #")[0])
    command = cli.commands[name]
    context = command.make_context(name, words, resilient_parsing=False, help_option_names=["-h", "--help"])
    with context:
        assert isinstance(command, click.Command)
    if name == "run":
        load_run(context.params["config"], context.params["overrides"])


@pytest.mark.parametrize("script", re.findall(r"^python (\S+\.py)", "\n".join(blocks("console")), re.MULTILINE))
def test_scripts_are_there(script):
    assert (ROOT / script).is_file()


@pytest.mark.parametrize("target", re.findall(r"\]\((?!https?:|#)([^)]+)\)", README))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()
