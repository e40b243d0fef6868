"""What stands in a report, and in which order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ... import __version__
from ...events import Drawing, Listener
from ...models.accuracy import sentences
from ...models.compression import Compression
from ...models.pca import PCAModel
from . import tables as facts
from .figures import DrawnFigure, ReportFigure, drawn, pictures_of_model, pictures_of_samples
from .page import Page, ReportSection
from .survey import Survey
from .words import sentence, shown_name

TITLE = "Principal components of"
LEFT_OUT = (
    "Left out are samples, their reconstructions and scores, and the unusual ones: {}. Give the collection by "
    "--collection (collection=), with the options it was opened with."
)
BOUNDS = (
    "Each variance and direction in the table of components carries a bound on its error, computed from the data after "
    "the fit; all of them hold together but for a chance of one in a million."
)


def page_of(model: PCAModel, survey: Survey | None, *, missing: str, kind: str, listener: Listener) -> Page:
    """Draw all pictures of a report, one at a time, and put its page together.

    Parameters
    ----------
    model : PCAModel
        The model.
    survey : Survey or None
        What was seen of a collection.
    missing : str
        Why nothing was, in words.
    kind : str
        Format of the pictures, of `figures.FORMATS`.
    listener : callable
        Told which picture is drawn.
    """
    used = survey.model if survey else model
    figures = model.compression()

    def draw(picture: ReportFigure) -> DrawnFigure:
        listener(Drawing(picture.title.lower()))
        return drawn(picture, kind)

    pictures = [draw(picture) for picture in pictures_of_model(model, used, figures)]
    if survey is not None:
        pictures += [draw(picture) for picture in pictures_of_samples(survey)]
    source = shown_name(str(model.provenance.get("source", "a collection")))
    return Page(
        title=f"{TITLE} {source}",
        facts=[*facts.header(model), *(facts.examined(survey, model) if survey else ())],
        notes=[LEFT_OUT.format(shown_name(missing))] if survey is None else [],
        sections=[*_sections(model, survey, figures, pictures)],
        footer=f"Written by streampca {__version__}.",
    )


def _sections(
    model: PCAModel, survey: Survey | None, figures: Compression, pictures: list[DrawnFigure]
) -> Iterator[ReportSection]:
    for each in pictures:
        yield ReportSection(each.name, each.title, picture=each, table=_table_of(each.name, model, survey, figures))
    if survey is not None and survey.unusual and "unusual" not in {each.name for each in pictures}:
        yield ReportSection("unusual", "The most unusual samples", table=facts.unusual_table(survey))
    known = [BOUNDS] if np.isfinite(model.error_bound).all() else []
    yield ReportSection(
        "trust", "How far to trust the numbers", [*known, *(sentence(text) for text in sentences(model))]
    )
    yield ReportSection(
        "plan",
        "The plan, and what happened",
        [sentence(text) for text in facts.reasons(model)],
        table=facts.plan_table(model),
    )
    yield ReportSection("settings", "Settings and versions", lists=facts.settings(model))


def _table_of(name: str, model: PCAModel, survey: Survey | None, figures: Compression) -> facts.Table | None:
    """What stands below a picture."""
    match name:
        case "scree":
            return facts.components_table(model)
        case "compression":
            return facts.compression_table(figures)
        case "unusual" if survey is not None:
            return facts.unusual_table(survey)
    return None
