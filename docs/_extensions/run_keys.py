"""A Sphinx extension: the directive ``run-keys``, a table of all keys of a run file, made of their declarations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import NoneType
from typing import Any, get_args

from docutils import nodes
from docutils.parsers.rst import Directive
from pydantic_core import PydanticUndefined
from sphinx.application import Sphinx

from streampca.cli.options import Run, section_in


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("run-keys", RunKeys)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def keys(section: type = Run, place: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str, str]]:
    """Yield section, key, default and meaning of every key, sections in the order of their declarations."""
    fields = section.model_fields.items()
    for name, field in sorted(fields, key=lambda item: section_in(item[1].annotation) is not None):
        inside = section_in(field.annotation)
        if inside is None or NoneType in get_args(field.annotation):
            default = "required" if field.default is PydanticUndefined else json.dumps(field.default)
            yield ".".join(place), name, default, field.description or ""
        if inside is not None:
            yield from keys(inside, (*place, name))


class RunKeys(Directive):
    """A table a section: key, default, meaning."""

    def run(self) -> list[nodes.Node]:
        """Make the tables."""
        made: dict[str, list[tuple[str, str, str]]] = {}
        for section, *row in keys():
            made.setdefault(section, []).append(tuple(row))
        found: list[nodes.Node] = []
        for section, rows in made.items():
            found += [nodes.rubric(text=section or "at the top"), _table(rows)]
        return found


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
