"""A Sphinx extension for docstrings that are read in the source, too: as plain text there, as links and names here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import streampca

# Signs that mean something to reStructuredText: (n, *shape), |S v|, components_.
_SIGNS = re.compile(r"(?<![\\*\w])\*(?=\w+\))|(?<!\\)\|(?!\|)|(?<=\w)_(?=[\s,.:)]|$)")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both; signs are escaped before numpydoc reads the docstrings."""
    app.connect("autodoc-process-docstring", _plain, priority=100)
    app.connect("missing-reference", _public)
    app.connect("missing-reference", _elsewhere)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _plain(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Have signs of prose stand for themselves, but in literals."""
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``|`[^`]*`)", line)
        parts[::2] = [_SIGNS.sub(lambda sign: f"\\{sign[0]}", part) for part in parts[::2]]
        lines[number] = "".join(parts)


def _public(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.TextElement
) -> nodes.reference | None:
    """Find the public page of a name that a docstring calls by the module it lives in."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in streampca.__all__:
        return None
    python = env.domains.python_domain
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", f"streampca.{name}", node, content)


def _elsewhere(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.TextElement
) -> nodes.TextElement | None:
    """Leave as text what methods inherited from scikit-learn refer to: pages of its own documentation."""
    places = (str(each.source) for each in (node, *_above(node)))
    return content if any("docstring of sklearn." in place for place in places) else None


def _above(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node
