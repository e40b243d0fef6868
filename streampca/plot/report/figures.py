"""Figures of a report, each with a title, a caption of one sentence and an alternative text.

A figure and its samples are drawn, encoded and released before the next, so that one is in memory at a time.
"""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, features

from ... import plot
from ...arrays import Array
from ...errors import RequestError
from ...kinds.options import FigureWidth
from ...kinds.values import RefusedValueError, accepted
from ...machine import hand_back
from ...manifold.graph_facts import components_sentence
from ...models.accuracy import percent
from ...models.classical_mds import PairsModel
from ...models.components import ComponentsModel
from ...models.compression import Compression
from ...models.embedding import EmbeddingModel, IsomapModel, SpectralClusteringModel, SpectralEmbeddingModel
from ...models.model import Model
from ...readers import Collection
from ...units import counted
from ..figure_data import figure_data
from ..overview_figure import encode, fit_to, image_boxes, smallest_text
from ..quantile_grid import QUANTILES
from ..spectrum import reached
from .survey import AXES, RowsOf, Survey, keeps_everything
from .text import T2, place_of

FORMATS = ("pdf", "svg", "png")  # of files of figures
PNG = "image/png"
CHART, COLUMNS = 90.0, 180.0  # mm: the usual widths of one column, and of two
LEAST_WIDTHS = {"unusual": 120.0}  # mm: two samples side by side, each with its name
NAMES = (
    *("series", "scree", "components", "walks", "compression"),
    *("reconstructions", "scores", "quantiles", "outliers", "unusual"),
    *("neighborhoods", "graph"),  # of embeddings
)  # all possible pictures, in their order
CHARTS = {"scree", "compression", "scores", "outliers", "neighborhoods", "graph"}
DRAWN = 8  # components drawn as images
WALKED = 4
CSS_DPI, CHART_DPI = 140, 112  # CSS pixels per inch of images, with text of 8 points, and of charts, with 10 points
LEADING = {"series": 5.0, "components": 5.0, "scree": 5.3}  # inches of those side by side on the first screen ...
LEADING_TEXT = 9  # ... and points of their largest texts
READABLE = 12  # CSS pixels of the smallest text of a page
QUALITY, LONGEST = 82, 16_383  # quality of WebP, and the largest number of pixels of a side


@dataclass(frozen=True)
class FigureText:
    """Texts of a figure.

    Attributes
    ----------
    name : str
        Name of its file, without the ending, and of its place in the page.
    title : str
        Heading.
    caption, alt : str
        Sentence below the figure, and sentence that replaces it for screen readers.
    """

    name: str
    title: str
    caption: str
    alt: str

    @property
    def is_chart(self) -> bool:
        """True if no part of it is an image, so that it is inverted as a whole on a dark page."""
        return self.name in CHARTS


@dataclass(frozen=True)
class ReportFigure(FigureText):
    """Figure to be drawn: `draw` returns the figure, or axes on it."""

    draw: Callable[[], Any]


@dataclass(frozen=True)
class DrawnFigure(FigureText):
    """Encoded figure.

    Attributes
    ----------
    data : bytes
        File in a format of `FORMATS`, empty if none was asked for.
    kind : str
        Format of the file.
    numbers : bytes
        What it shows as CSV, empty if that was not asked for.
    width, height : int
        Size in CSS pixels.
    least : int
        Width in CSS pixels at which its smallest text has 12 pixels.
    shown, media_type : bytes, str
        File in the page, and its media type.
    boxes : sequence of (left, top, right, bottom)
        Places of images in the figure, in per cent of its width and height.
    """

    data: bytes
    kind: str
    width: int
    height: int
    least: int = 0
    shown: bytes = b""
    media_type: str = ""
    boxes: Sequence[Sequence[float]] = ()
    numbers: bytes = b""

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.name}.{self.kind}"


@dataclass(frozen=True)
class FigureForm:
    """Files to make of each figure, besides that in the page.

    Attributes
    ----------
    kind : str
        Format of the file, empty for none.
    width : float or None
        Its width in mm; by default that of a column for charts, and that of two for other figures. Unusual samples have
        at least 120 mm.
    has_numbers : bool
        Whether to make the numbers behind it, too.

    Raises
    ------
    RequestError
        If the format is unknown, or the width out of range.
    """

    kind: str = ""
    width: float | None = None
    has_numbers: bool = False

    def __post_init__(self) -> None:
        if self.kind and self.kind not in FORMATS:
            raise RequestError(
                f"figure format {self.kind!r} is not known; give {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."
            )
        try:
            accepted(FigureWidth | None, self.width)
        except RefusedValueError:
            raise RequestError(
                f"--figure-width {self.width} (figure_width={self.width!r}) is not a width from 60 to 400 mm; give for "
                "example 90, the width of a column."
            ) from None

    def inches(self, name: str) -> float:
        """Return the width of a figure's file."""
        width = self.width or (CHART if name in CHARTS else COLUMNS)
        return max(width, LEAST_WIDTHS.get(name, 0.0)) / 25.4


def figure_files(folder: str, kind: str) -> list[str]:
    """Return the paths in a folder of all figures that a report can have."""
    return [os.path.join(folder, f"{name}.{kind}") for name in NAMES]


def drawn(picture: ReportFigure, form: FigureForm, *, recodes: bool = True) -> DrawnFigure:
    """Draw and encode a figure for the page, in fewer bytes if `recodes`, and as the files that are asked for."""
    page, file = io.BytesIO(), io.BytesIO()
    is_chart = picture.name in CHARTS
    dpi = CHART_DPI if is_chart else CSS_DPI
    figure = picture.draw()
    if picture.name in LEADING:
        fit_to(figure, LEADING[picture.name], LEADING_TEXT)
    width, height = (round(dpi * inches) for inches in encode(figure, page, "png"))
    boxes, points = image_boxes(figure), smallest_text(figure)
    numbers = figure_data(figure) if form.has_numbers else b""
    if form.kind:
        encode(figure, file, form.kind, form.inches(picture.name))
    del figure
    gc.collect()  # figures contain reference cycles
    hand_back()
    shown, media_type = _smaller(page, is_chart) if recodes else (page.getvalue(), PNG)
    words = (picture.name, picture.title, picture.caption, picture.alt)
    least = round(width * READABLE / (dpi / 72 * points))
    return DrawnFigure(*words, file.getvalue(), form.kind, width, height, least, shown, media_type, boxes, numbers)


class DrawnFigures:
    """The figures of a report that are drawn, in order; saved with the files of each, and restored without drawing."""

    def __init__(self) -> None:
        self.figures: list[DrawnFigure] = []

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the files of all figures, and their sizes, as plain arrays."""
        arrays: dict[str, Array] = {}
        for figure in self.figures:
            files = (figure.data, figure.shown, figure.media_type.encode(), figure.numbers)
            arrays |= {f"{figure.name}.{at}": np.frombuffer(file, np.uint8) for at, file in enumerate(files)}
            arrays[f"{figure.name}.size"] = np.array([figure.width, figure.height, figure.least])
            arrays[f"{figure.name}.boxes"] = np.array(figure.boxes, np.float64).reshape(-1, 4)
        return arrays

    def restore(self, planned: Iterable[ReportFigure], kind: str, state: Mapping[str, Array]) -> None:
        """Take over the figures of a state."""
        for picture in planned:
            if f"{picture.name}.size" in state:
                data, shown, media_type, numbers = (state[f"{picture.name}.{at}"].tobytes() for at in range(4))
                width, height, least = state[f"{picture.name}.size"].tolist()
                words = (picture.name, picture.title, picture.caption, picture.alt)
                boxes = state[f"{picture.name}.boxes"].tolist()
                how: Any = (width, height, least, shown, media_type.decode(), boxes, numbers)
                self.figures.append(DrawnFigure(*words, data, kind, *how))


def _smaller(file: io.BytesIO, is_chart: bool) -> tuple[bytes, str]:
    """Return a PNG with 256 colours, for charts, or as lossy WebP, and its media type."""
    with Image.open(file) as png:
        picture = png.convert("RGB")
    smaller = io.BytesIO()
    if is_chart:
        # Charts have few colours, so that a palette loses nothing visible.
        colours = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        colours.save(smaller, "PNG", optimize=True)
        return smaller.getvalue(), PNG
    # Pillow can be built without WebP, which limits the size of sides.
    if not features.check("webp") or max(picture.size) > LONGEST:
        return file.getvalue(), PNG
    picture.save(smaller, "WEBP", quality=QUALITY)
    return smaller.getvalue(), "image/webp"


def overview(survey: Survey) -> Any:
    """Draw variances, scores, components and a few samples in one figure."""
    return plot.overview(survey.model, survey.scores, _laddered(survey), survey.labels, survey.n_samples)


def pictures_of_model(
    model: Model, used: ComponentsModel, figures: Compression | None, raw: Collection | None
) -> Iterator[ReportFigure]:
    """Yield the figures that need no survey; `used` is the model of components that fit in memory.

    `figures` are those of compression, None for a model that does not reconstruct. `raw` are the fitted samples of an
    embedding, if they can be read.
    """
    if isinstance(model, EmbeddingModel):
        yield from _embedded(model, raw)
        return
    if isinstance(model, PairsModel):
        yield _embedding(model)
        yield _scree(model)
        return
    yield _components(used)
    yield _walks(used)
    yield _scree(model.basis)
    # A curve needs more than one number of components.
    if figures is not None and model.basis.n_components > 1:
        yield _compression(figures)


def pictures_of_samples(survey: Survey) -> Iterator[ReportFigure]:
    """Yield the figures of a collection's samples."""
    # Samples with labels, but without a coordinate, have no order.
    if len(survey.scores) > 1 and (survey.labels is None or survey.axis is not None):
        yield _series(survey)
    yield _reconstructions(survey)
    yield _scores(survey)
    if len(survey.pinned):
        yield _quantiles(survey)
    if survey.unusual and not keeps_everything(survey.model):  # otherwise differences are rounding
        yield _outliers(survey)
        yield _unusual(survey)


def _scree(model: ComponentsModel) -> ReportFigure:
    ratios, count = model.explained_variance_ratio, model.n_components
    takes = [f"{percent(mark)} takes {number}" for number, mark in reached(model).items()]
    hold = "hold" if count > 1 else "holds"
    text = f"{counted(count, 'component')} {hold} {percent(ratios.sum())} of the variance"
    marks = f" ({', '.join(takes)})" if takes else ""
    return ReportFigure(
        "scree",
        "Variance of the components",
        f"Share of the variance of each component, in blue, and cumulative, in red: {text}{marks}.",
        f"Curve of the variance along each component; {text}, the first alone {percent(ratios[0])}.",
        lambda: plot.scree(model),
    )


def _embedding(model: PairsModel) -> ReportFigure:
    return ReportFigure(
        "scores",
        "Where samples lie",
        "The fitted samples along the first two dimensions: the distances between points are those of the samples, as "
        "nearly as the dimensions allow.",
        "Scatter of the first two coordinates.",
        lambda: plot.scores(model, model.embedding),
    )


def _embedded(model: EmbeddingModel, raw: Collection | None) -> Iterator[ReportFigure]:
    """Yield the figures of an embedding: samples by label, images of some, and curves of its quality."""
    samples = None if raw is None else raw[model.embedded_samples]
    labels = None if samples is None else samples.labels
    labels = model.labels if isinstance(model, SpectralClusteringModel) else labels
    coloured = "" if labels is None else ", coloured by label"
    yield ReportFigure(
        "scores",
        "Where samples lie",
        f"The fitted samples along the first two axes of the embedding{coloured}: neighbours here are neighbours in "
        "the graph, as nearly as the axes allow.",
        "Scatter of the first two coordinates.",
        lambda: plot.scores(model, model.embedding, labels),
    )
    if samples is not None and model.n_scores > 1:
        yield ReportFigure(
            "quantiles",
            "Samples across the embedding",
            "Images of the samples nearest to a grid of quantiles of the first two axes.",
            "Images arranged by the first two coordinates.",
            lambda: plot.quantile_images(model, model.embedding, samples),
        )
    if isinstance(model, IsomapModel):
        yield ReportFigure(
            "scree",
            "How many dimensions",
            "Share of the variance of geodesic distances that distances in the first so many dimensions do not "
            "explain: a bend shows how many the samples need.",
            "Curve of the residual variance against the number of dimensions.",
            lambda: plot.residual_variance(model),
        )
    if isinstance(model, SpectralEmbeddingModel):
        yield ReportFigure(
            "scree",
            "Eigenvalues",
            "Smallest eigenvalues of the graph's Laplacian: a large gap after some of them shows the number of "
            "clusters.",
            "Eigenvalues by their number.",
            lambda: plot.eigengap(model),
        )
    if "neighborhoods" in model.measured:
        yield _neighborhoods(model)
    if "facts" in model.measured and model.measured["facts"]["components"]["count"] > 1:
        yield _graph(model)


def _neighborhoods(model: EmbeddingModel) -> ReportFigure:
    components = counted(model.measured["neighborhoods"]["components"], "principal component")
    return ReportFigure(
        "neighborhoods",
        "How far neighbours are kept",
        "Trustworthiness falls where neighbours in the embedding are not neighbours among the samples, continuity "
        "where neighbours among the samples are torn apart, by the number of neighbours; dashed, the same for "
        f"{components}.",
        f"Curves of trustworthiness and continuity of the embedding and of {components}.",
        lambda: plot.neighborhoods(model),
    )


def _graph(model: EmbeddingModel) -> ReportFigure:
    facts = model.measured["facts"]
    left_out = model.n_samples - len(model.embedding)
    state = components_sentence(facts, exact="recall" not in model.measured)
    return ReportFigure(
        "graph",
        "Components of the graph",
        f"The graph of neighbours is {state}; {counted(left_out, 'sample')} outside the largest component, in grey, "
        f"{'is' if left_out == 1 else 'are'} left out.",
        f"Bars of the sizes of the graph's {facts['components']['count']} components.",
        lambda: plot.graph_components(model),
    )


def _components(model: ComponentsModel) -> ReportFigure:
    count = min(DRAWN, model.n_components)
    first = "the first component" if count == 1 else f"the first {count} components"
    share = "" if count == 1 else ", each"
    return ReportFigure(
        "components",
        "Mean and leading components",
        f"The mean of all samples and {first}{share} with its share of the variance: a sample is the mean and more or "
        "less of every component's pattern.",
        f"The mean image and {first} as images.",
        lambda: plot.mean_and_components(model, count),
    )


def _walks(model: ComponentsModel) -> ReportFigure:
    count = min(WALKED, model.n_components)
    first = "the first component" if count == 1 else f"each of the first {count} components"
    return ReportFigure(
        "walks",
        "What a component changes",
        f"The mean, moved along {first} by up to two standard deviations of the scores: what lies between the left and "
        "the right column is what the component means.",
        f"Rows of images, from the mean less two standard deviations along {first} to the mean plus two.",
        lambda: plot.walks(model, count),
    )


def _compression(figures: Compression) -> ReportFigure:
    last = figures.n_components[-1]
    return ReportFigure(
        "compression",
        "How small, and how good",
        "Size of scores, components and mean together, and the error of the images made of them, against the number of "
        "components kept.",
        f"Curves of size and error against the number of components, up to {last}.",
        lambda: plot.compression(figures),
    )


def _laddered(survey: Survey) -> list[Array]:
    return [survey.samples[at] for at in survey.laddered]


def _reconstructions(survey: Survey) -> ReportFigure:
    count, k = len(survey.laddered), survey.model.n_components
    kept = "1 component" if k == 1 else f"1 to {k} components"
    return ReportFigure(
        "reconstructions",
        "Samples and what components keep of them",
        f"{counted(count, 'sample')} spread over the collection, and what {kept} keep{'s' if k == 1 else ''} of "
        f"{'it' if count == 1 else 'each'}; the error is what is left of its distance from the mean.",
        f"{counted(count, 'sample')} beside reconstructions from {kept}.",
        lambda: plot.reconstructions(survey.model, _laddered(survey), count=count),
    )


def _series(survey: Survey) -> ReportFigure:
    count = survey.scores.shape[1]
    first = "the first component" if count == 1 else f"each of the first {count} components"
    is_numeric = survey.axis is not None and not survey.axis.is_text
    name = survey.axis.label if survey.axis is not None and is_numeric else "sample"
    order = f"along the samples' {name}" if is_numeric else "in the order of the samples"
    gaps = " The line breaks where samples were not examined." if survey.examined < survey.n_samples else ""

    def draw() -> Any:
        along, scores = survey.in_order()
        return plot.series(survey.model, scores, along, name, count)

    return ReportFigure(
        "series",
        "Components and their scores over time" if name == "date" else "Components and their scores along the samples",
        f"Scores on {first}, {order}, beside the component: the higher the line, the more of the component a sample "
        f"has.{gaps}",
        f"Curves of the scores on {first}.",
        draw,
    )


def _scores(survey: Survey) -> ReportFigure:
    coloured = " in the colours of their labels" if survey.labels is not None else ""
    if survey.scores.shape[1] < 2:
        what, seen = "Scores along the only component", "Histogram of the scores."
    else:
        what, seen = "Scores along the first two components", "Scatter of the first two scores."
    return ReportFigure(
        "scores",
        "Where samples lie",
        f"{what}{coloured}: samples that are alike lie close together.",
        seen,
        lambda: plot.scores(survey.model, survey.scores, survey.labels, n_samples=survey.n_samples),
    )


def _quantiles(survey: Survey) -> ReportFigure:
    levels = ", ".join(f"{100 * level:g}" for level in QUANTILES)
    return ReportFigure(
        "quantiles",
        "Examples across the first two components",
        f"The samples nearest to the {levels} % quantiles of the first two scores: from left to right component 1 "
        "grows, upwards component 2.",
        f"Images of the {len(survey.pinned)} samples next to the crossings of quantiles of two scores.",
        lambda: plot.quantile_images(survey.model, survey.scores, RowsOf(survey.samples, survey.places), axes=AXES),
    )


def _outliers(survey: Survey) -> ReportFigure:
    return ReportFigure(
        "outliers",
        "How unusual samples are",
        f"Far to the right, by Hotelling's {T2}, a sample is an extreme mixture of the components; far up, by its "
        "squared prediction error, it has what no component can show. The numbered ones are drawn below.",
        f"Scatter of T squared against the squared prediction error of {counted(len(survey.t2), 'sample')}.",
        lambda: _dots(survey),
    )


def _dots(survey: Survey) -> Any:
    """Draw the sampled measures, with the unusual samples that are not among these."""
    t2, spe = survey.t2, survey.spe
    marked: list[int] = []
    for sample in survey.unusual:
        if sample.position in survey.places:
            marked.append(survey.places.index(sample.position))
        else:
            # Not among the drawn dots: add it.
            marked.append(len(t2))
            t2, spe = np.append(t2, sample.t2), np.append(spe, sample.spe)
    return plot.outliers(survey.model, t2, spe, marked=marked, n_samples=survey.n_samples)


def _unusual(survey: Survey) -> ReportFigure:
    names = [place_of(sample.name, survey.raw.source) for sample in survey.unusual]
    t2, spe = (np.array([getattr(sample, name) for sample in survey.unusual]) for name in ("t2", "spe"))
    return ReportFigure(
        "unusual",
        "The most unusual samples",
        f"The samples with the largest {T2} and those with the largest squared prediction errors, what the components "
        "make of them, and the difference.",
        f"{counted(len(names), 'unusual sample')} beside their reconstructions and residuals.",
        lambda: plot.unusual(
            survey.model, [survey.samples[sample.position] for sample in survey.unusual], t2, spe, names=names
        ),
    )
