"""A Sphinx extension: the directive ``run-keys``, tables of all keys of a run file, made of their JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from streampca.cli.schema import json_schema


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("run-keys", RunKeys)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def tables() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the title and the rows (key, default, meaning) of each section, of the model one for each kind."""
    schema = json_schema()["properties"]
    plain = {name: section for name, section in schema.items() if not {"properties", "anyOf"} & section.keys()}
    yield "at the top", [_entry(name, section, plain) for name, section in plain.items()]
    for name, section in schema.items():
        for one in section.get("anyOf", [section]):
            if "properties" in one:
                title = f"{name}, kind {one['title']}" if "title" in one else name
                yield title, [_entry(key, about, one) for key, about in one["properties"].items() if key != "kind"]


def _entry(key: str, about: dict[str, Any], section: dict[str, Any]) -> tuple[str, str, str]:
    """Return the row of a key."""
    is_required = key in section.get("required", [])
    return key, "required" if is_required else json.dumps(about.get("default")), about.get("description", "")


class RunKeys(Directive):
    """A table for each section: key, default, meaning."""

    def run(self) -> list[nodes.Node]:
        """Make the tables."""
        return [node for title, rows in tables() for node in (nodes.rubric(text=title), _table(rows))]


def _table(rows: list[tuple[str, str, str]]) -> nodes.table:
    table = nodes.table("", classes=["run-keys"])
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in (20, 15, 65)), cols=3)
    body = nodes.tbody("", *(_row([nodes.literal(text=key), nodes.literal(text=default), *_meaning(text)])
                             for key, default, text in rows))  # fmt: skip
    head = nodes.thead("", _row([nodes.Text(text) for text in ("key", "default", "meaning")]))
    return table.__class__("", group.__class__("", *group.children, head, body, cols=3), classes=["run-keys"])


def _row(cells: list[nodes.Node]) -> nodes.row:
    key, default, *meaning = cells
    paragraphs = ([key], [default], meaning)
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *parts)) for parts in paragraphs))


def _meaning(text: str) -> list[nodes.Node]:
    """Return a description, options in it as literals."""
    parts = re.split(r"(--[a-z-]+|[A-Z]+/[a-z./]+)", text)
    return [nodes.literal(text=part) if at % 2 else nodes.Text(part) for at, part in enumerate(parts) if part]
