"""How models, plans and collections show themselves in notebooks: a little HTML, all text in it escaped.

Colours are the page's own, so that light and dark pages both do; there is no script, and nothing is loaded or read.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from .errors import readable, without_secrets
from .units import format_bytes, format_shape

LONGEST = 300  # characters of a text
ROWS = 8  # components listed
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

Pairs = Iterable[tuple[str, str]]


def view(title: str, *parts: str) -> str:
    """A box with a title, and parts that are HTML already."""
    return f'<div class="streampca-view"><style>{_CSS}</style><strong>{_text(title)}</strong>{"".join(parts)}</div>'


def facts(pairs: Pairs) -> str:
    """A table of names and what is to be said of them."""
    rows = "".join(f'<tr><th scope="row">{_text(name)}</th><td>{_text(text)}</td></tr>' for name, text in pairs)
    return f"<table><tbody>{rows}</tbody></table>"


def numbers(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of numbers, with what they are of in the first column."""
    head = _cells("th", heads)
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cells(tag: str, texts: Sequence[str]) -> str:
    first, *others = (_text(text) for text in texts)
    return f'<{tag} class="text">{first}</{tag}>' + "".join(f"<{tag}>{text}</{tag}>" for text in others)


def pictures(named: Iterable[tuple[str, bytes]]) -> str:
    """Pictures in PNG side by side, each above its name."""
    return "".join(
        f'<figure><img alt="{_text(name)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        f"<figcaption>{_text(name)}</figcaption></figure>"
        for name, png in named
    )


def _text(text: object) -> str:
    whole = readable(without_secrets(str(text)))
    half = LONGEST // 2
    return escape(whole if len(whole) <= LONGEST else f"{whole[:half]} \N{HORIZONTAL ELLIPSIS} {whole[-half:]}")


def model_html(model: Any, thumbnails: Iterable[tuple[str, bytes]]) -> str:
    """A `PCAModel`: what it is of, its first components, and pictures of them."""
    about, shape = model.provenance, format_shape(model.sample_shape)
    share = float(model.explained_variance_ratio.sum())
    known = [
        ("fitted on", f"{model.n_samples} samples of {shape} ({', '.join(model.sample_dims)})"),
        ("features", f"{model.n_features}" + ("" if model.mask is None else " inside the mask")),
        ("components", f"{model.n_components}, {share:.1%} of the variance"),
        ("source", about.get("source")),
        ("method", (about.get("plan") or {}).get("method")),
        ("fitted", " by streampca ".join(str(about[key]) for key in ("created", "streampca") if key in about)),
        ("components are", None if hasattr(model.components, "flags") else f"on disk, in {model.components.path}"),
    ]
    heads = ("component", "variance", "share", "cumulative", "error bound")
    left = model.n_components - ROWS
    more = f"<div>and {left} more</div>" if left > 0 else ""
    return view(
        "PCAModel",
        facts((name, text) for name, text in known if text),
        pictures(thumbnails),
        numbers(heads, _components(model)),
        more,
    )


def _components(model: Any) -> Iterable[list[str]]:
    """The first components, a row each."""
    total = 0.0
    columns = (model.explained_variance, model.explained_variance_ratio, model.error_bound)
    for number, (variance, share, bound) in enumerate(zip(*(each[:ROWS] for each in columns), strict=True), 1):
        total += float(share)
        known = f"{bound:.1e}" if bound == bound else "unknown"
        yield [str(number), f"{variance:.4g}", f"{share:.2%}", f"{total:.2%}", known]


def plan_html(plan: Any) -> str:
    """A `Plan`: what will be done, what it takes in memory by name, and why not otherwise."""
    estimate = ((name, format_bytes(count)) for name, count in plan.memory_estimate.largest.items)
    return view("Plan", facts(plan.facts()), numbers(("in memory at once", "size"), estimate))


def collection_html(collection: Any) -> str:
    """A `Collection`: what it is and how it is stored; none of it is read."""
    axes = f" ({', '.join(collection.axes)})" if collection.axes else ""
    upto = "images of several sizes, up to " if collection.mixed else ""
    chunks = collection.chunks
    known = [
        ("source", collection.source),
        ("samples", f"{collection.n_samples} of {upto}{format_shape(collection.sample_shape)}{axes}"),
        ("values", f"{collection.dtype.name}, {collection.n_features} features a sample"),
        ("size", f"{format_bytes(collection.nbytes)} in all, as stored"),
        ("storage", f"chunks of {chunks.samples} samples x {chunks.features} features"),
        ("first", collection.where(0)),
        ("last", collection.where(collection.n_samples - 1)),
        ("labels", None if collection.labels is None else f"{len(collection.labels)}, one a sample"),
        ("skipped", f"{len(collection.skipped)} files that are bad" if collection.skipped else None),
    ]
    return view("Collection", facts((name, text) for name, text in known if text))
