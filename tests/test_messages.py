"""Messages that people read most often are those of the package, and say what is wrong and what to do."""

from __future__ import annotations

import ast
import copy
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

import streampca
from streampca.errors import Door, RequestError, messages_at, worded
from streampca.events import Warned

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


@pytest.mark.parametrize(("text", "typed", "python"), [
    ("say which with --key sst (key='sst').", "say which with --key sst.", "say which with key='sst'."),
    ("say --key 'a (b)' (key='a (b)')", "say --key 'a (b)'", "say key='a (b)'"),
    ("--bin 2x2 (bin=(2, 2)), or --grey (grey=True)", "--bin 2x2, or --grey", "bin=(2, 2), or grey=True"),
    ("--bin 2 --grey (Preparation(bin=2, grey=True)), or", "--bin 2 --grey, or", "Preparation(bin=2, grey=True), or"),
    ("set the number with -k (n_components)", "set the number with -k", "set the number with n_components"),
    ("leave --part (part) out", "leave --part out", "leave part out"),
    ("allow more (--max-passes, max_passes), or", "allow more (--max-passes), or", "allow more (max_passes), or"),
    ("follow it by --follow (streampca.follow).", "follow it by --follow.", "follow it by streampca.follow."),
    ("--kind isomap (it embeds) and non-negative (x=3)",) * 3,
])  # fmt: skip
def test_messages_name_options_as_their_reader_gives_them(text, typed, python):
    error = RequestError(text)
    assert str(error) == str(copy.copy(error)) == worded(python) == Warned(text).message == python
    with messages_at(Door.COMMAND_LINE):
        assert str(error) == worded(typed) == Warned(text).message == typed
    with messages_at(Door.UNKNOWN):  # on a worker
        nested = RequestError(f"worker 3: {error}")
    assert str(nested) == f"worker 3: {python}"


OPTION = re.compile(r"(?<![\w-])(--[a-z]|-[ko]\b)")
OTHERS = re.compile(r"wsl --install|^--no-dashboard|^--dashboard-address|^ --grey$")  # of other programs; a part


def whole_texts(module):
    """Texts of a module but for docstrings, with 0 for the values in them."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    documented = [
        node.body[0].value
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
    ]
    parts = [part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values]
    inside = {id(node) for node in (*documented, *parts)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def test_every_message_names_options_for_both_doors():
    root = Path(streampca.__file__).parent
    modules = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] != "cli"]
    texts = [text for module in modules for text in whole_texts(module) if OPTION.search(OTHERS.sub("", text))]
    assert len(texts) > 100
    assert [text for text in texts if OPTION.search(worded(text))] == []
    with messages_at(Door.COMMAND_LINE):
        assert [text for text in texts if "=True)" in worded(text)] == []
