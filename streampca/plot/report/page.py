"""Page of a report: its sections in order, and the HTML file they are written to.

Everything from files (names, labels, metadata) is text to the template, which escapes it. The page itself forbids
browsers any network access, and all scripts except its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import IO

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from ... import __version__
from ...errors import readable, worded
from ...events import Drawing, Listener, Warned
from ...execution.checkpoint import StageCheckpoint
from ...models.accuracy import sentences
from ...models.components import ComponentsModel
from ...models.compression import Compression
from ...models.embedding import EmbeddingModel
from ...models.images import ImageModel
from ...models.model import Model
from ...models.rotation import RotatedComponents
from ...readers import Collection
from ...signals import safe_point
from . import text
from .figures import NAMES, DrawnFigure, DrawnFigures, FigureForm, drawn, pictures_of_model, pictures_of_samples
from .interactive import Widget, points_of, sliders_of
from .survey import Survey
from .text import Glossary, Pairs, Table, shown_name
from .thumbnails import moves

TEMPLATE, STYLE, SCRIPT = "page.html.jinja", "page.css", "page.js"
WRITER = '<meta name="generator" content="streampca">'  # in the head of every report, by the template
LEFT_OUT = (
    "Left out are samples, their reconstructions and scores, and the unusual ones: {}. Give the collection by "
    "--collection (collection=), with the options it was opened with."
)
STILL = (
    "This page has no sliders, and points of the scatter do not show their samples: both need images that are sums of "
    "a mean and components."
)
ROTATED = (
    "The components are rotated, and scores and unusual samples are along these. The curve of the variance and the "
    "figures of compression are those of the principal components before rotation."
)
BOUNDS = (
    "Each variance and direction has a bound on its error, computed from the data after the fit; all of them hold "
    "together but for a chance of one in a million."
)


@dataclass(frozen=True)
class ReportSection:
    """Part of the page with its own heading.

    Attributes
    ----------
    anchor, title : str
        Target of links, and heading.
    texts : sequence of str
        Paragraphs.
    widget : Widget or None
        Interactive part below them, if scripts run.
    picture : DrawnFigure or None
        Figure below that.
    table : Table or None
        Table below that.
    lists : mapping of str to sequence of (name, value)
        Lists below that, by heading.
    """

    anchor: str
    title: str
    texts: Sequence[str] = ()
    widget: Widget | None = None
    picture: DrawnFigure | None = None
    table: Table | None = None
    lists: Mapping[str, Pairs] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """Whole report: title, a sentence of findings, one on trust, facts about the model, notes, and sections."""

    title: str
    finding: str
    trust: str
    facts: Pairs
    notes: Sequence[str]
    sections: Sequence[ReportSection]
    footer: str

    @property
    def leading(self) -> Sequence[ReportSection]:
        """Sections of the first screen."""
        return self.sections[: len(_leading_names(section.anchor for section in self.sections))]

    @property
    def pictures(self) -> list[DrawnFigure]:
        """Figures of all sections."""
        return [section.picture for section in self.sections if section.picture is not None]


def page_of(
    model: Model,
    survey: Survey | None,
    raw: Collection | None,
    *,
    missing: str,
    form: FigureForm,
    checkpoint: StageCheckpoint | None,
    listener: Listener,
) -> Page:
    """Draw all figures of a report, one at a time, and return its page; `missing` is the reason for no survey.

    Figures that a checkpoint has are not drawn again.

    For a model of a matrix of distances, which has no images, the page shows the positions of its samples; for an
    embedding also images and labels of `raw`, its fitted samples, if these can be read.
    """
    shown = survey.model if survey else model.shown
    basis = model.basis
    figures = basis.compression() if isinstance(basis, ImageModel) and not isinstance(model, EmbeddingModel) else None
    planned = [*pictures_of_model(model, shown, figures, raw), *(pictures_of_samples(survey) if survey else ())]
    done = DrawnFigures()
    if checkpoint is not None and (saved := checkpoint.load(0)) is not None:
        done.restore(planned, form.kind, saved.state)
    pictures = done.figures
    for number, picture in enumerate(planned[len(pictures) :], start=len(pictures) + 1):
        safe_point()
        listener(Drawing(picture.title.lower(), number, len(planned)))
        pictures.append(drawn(picture, form, recodes=survey is None or survey.recodes))
        if checkpoint is not None:
            checkpoint.save_if_due(0, 0, number, done)
    if survey is not None:
        # Figures of the model and of samples are drawn separately, and interleaved in the page.
        pictures.sort(key=lambda picture: NAMES.index(picture.name))
    notes = [LEFT_OUT.format(shown_name(missing))] if survey is None and missing else []
    if survey is not None:
        notes += text.left_out(survey, model)
    notes = [worded(note) for note in notes]
    for note in notes:
        listener(Warned(note))
    # Facts about the page, not warnings.
    notes += [] if moves(shown) else [STILL]
    notes += [ROTATED] if isinstance(shown, RotatedComponents) else []
    return Page(
        title=f"{text.kind_in_words(model)} of {text.short_source(model)}",
        finding=text.finding(model, survey),
        trust=text.trust(model),
        facts=[*text.header(model), *(text.examined(survey, model) if survey else ())],
        notes=notes,
        sections=_in_order([*_sections(model, shown, survey, figures, pictures)]),
        footer=f"Written by streampca {__version__}.",
    )


def _sections(
    model: Model,
    shown: ComponentsModel,
    survey: Survey | None,
    figures: Compression | None,
    pictures: list[DrawnFigure],
) -> Iterator[ReportSection]:
    tables = {"scree": text.components_table(model.basis)} if model.basis.n_components else {}
    if isinstance(shown, RotatedComponents):
        tables["components"] = text.components_table(shown)
    if figures is not None:
        tables["compression"] = text.compression_table(figures)
    if survey is not None:
        tables["unusual"] = text.unusual_table(survey)
    widgets = {"walks": sliders_of(shown)} if moves(shown) else {}
    if survey is not None and (points := points_of(survey)) is not None:
        widgets["scores"] = points
    # Tables and widgets accompany the figure of the same name.
    for picture in pictures:
        widget = widgets.get(picture.name)
        yield ReportSection(picture.name, picture.title, widget=widget, picture=picture, table=tables.get(picture.name))
    if survey is not None and survey.unusual and "unusual" not in {picture.name for picture in pictures}:
        yield ReportSection("unusual", "The most unusual samples", table=tables["unusual"])
    bounds = text.bounds_table(model.basis)
    lines = [*([] if bounds is None else [BOUNDS]), *(text.sentence(line) for line in sentences(model))]
    yield ReportSection("trust", "Bounds", lines, table=bounds)
    yield ReportSection(
        "plan",
        "Planned and actual",
        [text.sentence(line) for line in text.reasons(model)],
        table=text.plan_table(model),
    )
    yield ReportSection("settings", "Settings and versions", lists=text.settings(model))


def _leading_names(names: Iterable[str]) -> list[str]:
    """Return the sections of the first screen: components, beside their scores if these have an order, and variances.

    Embeddings, which have no components, lead with the places of their samples.
    """
    known = {*names}
    first = "series" if "series" in known else "components" if "components" in known else "scores"
    return [name for name in (first, "scree") if name in known]


def _in_order(sections: list[ReportSection]) -> list[ReportSection]:
    """Put the sections of the first screen first."""
    names = _leading_names(section.anchor for section in sections)
    leading = sorted(
        (section for section in sections if section.anchor in names), key=lambda each: names.index(each.anchor)
    )
    return [*leading, *(section for section in sections if section.anchor not in names)]


def write_page(page: Page, file: IO[bytes]) -> None:
    """Write a page as UTF-8, piece by piece, so that pictures are encoded one at a time."""
    script = _packaged(SCRIPT)
    # The content security policy allows only the script with this hash.
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    parts = {"page": page, "style": _packaged(STYLE), "script": script, "script_hash": allowed, "glossed": Glossary()}
    for piece in _template().generate(parts):
        file.write(piece.encode("utf-8", "backslashreplace"))


def data_uri(data: bytes, media_type: str) -> Markup:
    """Return a file as a data URI, which needs no escaping."""
    return Markup(f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}")  # noqa: S704


def _packaged(name: str) -> Markup:
    """Return a file of this package, which is not escaped in the page."""
    return Markup(files(__package__).joinpath(name).read_text(encoding="utf-8"))  # noqa: S704


def _plain(value: object) -> object:
    """Escape unprintable characters in any text of the page."""
    return readable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, finalize=_plain, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["data_uri"] = data_uri
    return environment.from_string(_packaged(TEMPLATE))
