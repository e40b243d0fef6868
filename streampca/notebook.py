"""HTML for notebooks, from which models, plans and collections build their own; all text in it is escaped.

Colours are the page's own, so that light and dark pages both do; there is no script, and nothing is loaded or read.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

from .errors import readable, without_secrets, worded

LONGEST = 300  # characters of a text
_CSS = """
.streampca-view{font-size:0.92em;line-height:1.4}
.streampca-view table{border-collapse:collapse;margin:0.4em 0;color:inherit;background:transparent}
.streampca-view th,.streampca-view td{padding:0.1em 0.9em 0.1em 0;text-align:left;vertical-align:top;
background:transparent;color:inherit;border:0;max-width:60em;overflow-wrap:anywhere}
.streampca-view th{font-weight:600;white-space:nowrap}
.streampca-view table.numbers th,.streampca-view table.numbers td{text-align:right}
.streampca-view table.numbers td.text,.streampca-view table.numbers th.text{text-align:left}
.streampca-view table.numbers thead th{border-bottom:1px solid currentColor}
.streampca-view figure{display:inline-block;margin:0.2em 0.6em 0.2em 0;text-align:center}
.streampca-view img{height:80px;width:auto;image-rendering:pixelated;border:1px solid #8888}
"""


def view(title: str, *parts: str) -> str:
    """Return a box with a title, and parts that are HTML already."""
    return f'<div class="streampca-view"><style>{_CSS}</style><strong>{_text(title)}</strong>{"".join(parts)}</div>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values; a value that is None or empty is left out."""
    known = ((name, value) for name, value in pairs if value)
    rows = "".join(f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>' for name, value in known)
    return f"<table><tbody>{rows}</tbody></table>"


def numbers(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of numbers whose first column names the rows."""
    head = _cells("th", heads)
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cells(tag: str, texts: Sequence[str]) -> str:
    first, *others = (_text(text) for text in texts)
    return f'<{tag} class="text">{first}</{tag}>' + "".join(f"<{tag}>{text}</{tag}>" for text in others)


def images(named: Iterable[tuple[str, bytes]]) -> str:
    """Return PNG images side by side, each above its name."""
    return "".join(
        f'<figure><img alt="{_text(name)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        f"<figcaption>{_text(name)}</figcaption></figure>"
        for name, png in named
    )


def _text(text: object) -> str:
    whole = readable(worded(without_secrets(str(text))))
    half = LONGEST // 2
    return escape(whole if len(whole) <= LONGEST else f"{whole[:half]} \N{HORIZONTAL ELLIPSIS} {whole[-half:]}")
