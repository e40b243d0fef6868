"""Messages that people read most often are those of the package, and say what is wrong and what to do."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
import yaml

import streampca
from streampca.errors import at_command_line

MESSAGES = yaml.safe_load((Path(__file__).parent / "data" / "messages.yaml").read_text())
LEAST = 0.22  # of a message that is fixed text of one sentence of the package: the rest are values and remedies


@cache
def sentences(module):
    """Fixed parts of each text in a module, in their order; values stand between them."""
    nodes = ast.walk(ast.parse((Path(streampca.__file__).parent / module).read_text()))
    return [parts for node in nodes if (parts := fixed_parts(node))]


def fixed_parts(node):
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def holds(message, parts):
    """Whether a message holds these parts in this order."""
    place = 0
    for part in parts:
        place = message.find(part, place) + len(part)
        if place < len(part):
            return False
    return True


@pytest.mark.parametrize("entry", MESSAGES, ids=lambda entry: entry["message"][:40])
def test_messages_are_those_of_the_package(entry):
    message = entry["message"]
    found = [sum(map(len, parts)) for parts in sentences(entry["in"]) if holds(message, parts)]
    assert max(found, default=0) >= LEAST * len(message), f"{entry['in']} has no such message (any more)"
    assert entry["means"]
    assert entry["do"]


def test_there_are_45_of_them():
    assert len({entry["message"] for entry in MESSAGES}) == len(MESSAGES) >= 45


@pytest.mark.parametrize(("text", "shown"), [
    ("say which with --key sst (key='sst').", "say which with --key sst."),
    ("such as --resize 64x64 (resize=(64, 64)), or --grey (grey=True)", "such as --resize 64x64, or --grey"),
    ("give --resize 64x64 --grey (Preparation(resize=(64, 64), grey=True)), or", "give --resize 64x64 --grey, or"),
    ("set the number with -k (n_components)", "set the number with -k"),
    ("allow more passes (--max-passes, max_passes=), or stop", "allow more passes (--max-passes), or stop"),
    ("give their number, workers (--workers)", "give their number, --workers"),
    ("--kind isomap (it embeds) and non-negative (x=3)", "--kind isomap (it embeds) and non-negative (x=3)"),
])  # fmt: skip
def test_commands_name_options_in_their_own_words(text, shown):
    assert at_command_line(text) == shown
