"""The page: sections of words, tables and pictures, put into one HTML file that needs nothing beside it.

Everything that comes from files (names, labels, metadata) is text to the template, which escapes it; and the page
itself forbids scripts and the network to whoever shows it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import IO

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from ...errors import readable
from .figures import FORMATS, DrawnFigure
from .tables import Pairs, Table

TEMPLATE = "page.html.jinja"


@dataclass(frozen=True)
class ReportSection:
    """A part of the page with a heading of its own.

    Attributes
    ----------
    anchor, title : str
        What links to it say, and its heading.
    texts : sequence of str
        Paragraphs.
    picture : DrawnFigure or None
        Below them.
    table : Table or None
        Below that.
    lists : mapping of str to sequence of (name, value)
        Below that, by heading.
    """

    anchor: str
    title: str
    texts: Sequence[str] = ()
    picture: DrawnFigure | None = None
    table: Table | None = None
    lists: Mapping[str, Pairs] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """All of a report: a title, facts about the model, what is to be said first of all, and sections."""

    title: str
    facts: Pairs
    notes: Sequence[str]
    sections: Sequence[ReportSection]
    footer: str

    @property
    def pictures(self) -> list[DrawnFigure]:
        """Of all sections."""
        return [section.picture for section in self.sections if section.picture is not None]


def write_page(page: Page, file: IO[bytes]) -> None:
    """Write a page as UTF-8, piece by piece: pictures are encoded as they are written."""
    for piece in _template().generate(page=page):
        file.write(piece.encode("utf-8", "backslashreplace"))


def data_uri(drawn: DrawnFigure) -> Markup:
    """A picture as part of the page: letters that need no escaping."""
    return Markup(f"data:{FORMATS[drawn.kind]};base64,{base64.b64encode(drawn.data).decode('ascii')}")  # noqa: S704


def _plain(value: object) -> object:
    """Write out what cannot be printed in anything that is put into the page as text."""
    return readable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, finalize=_plain, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["data_uri"] = data_uri
    return environment.from_string(files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8"))
