"""Sections of a run file other than the kind of model: plain dataclasses, as the kinds are.

A field is a key of run files and of their JSON schema, and an option of the commands that use it; the first sentence of
its entry in the docstring is the help. Names and defaults repeat those of `streampca.Preparation` and other functions;
``tests/test_options.py`` checks that they are equal.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

from ..errors import RequestError
from ..kinds.neighbors import NeighborsDescription
from ..kinds.opening import Opening
from ..kinds.options import FigureWidth, MissingRule
from ..kinds.run import Run
from ..kinds.values import Check, Count, Range
from ..units import parse_seconds

Pixel = int | None
Seconds = Annotated[float | str, Check(parse_seconds)]


def _range(value: Any) -> Any:
    """Return [start, stop] or [start, stop, step]."""
    if value is not None and (not isinstance(value, (list, tuple)) or not 2 <= len(value) <= 3):
        raise RequestError(f"samples = {value!r}: give [start, stop] or [start, stop, step].")
    return value


def _seconds(value: Any) -> Any:
    """Return a time in seconds, or None."""
    return None if value is None else parse_seconds(value)


def _metrics(value: Any) -> Any:
    """Return the path of a file of metrics, or None."""
    if isinstance(value, str) and not value.endswith((".json", ".prom")):
        raise RequestError("give a path that ends in .json or .prom.")
    return value


@dataclass(frozen=True, eq=False, repr=False)
class CollectionSection(Opening):
    """Samples and how they are opened, with a weight and target for each; see `streampca.open_collection`.

    Parameters
    ----------
    source : str or list of str
        Path, glob, URL, @list.txt, table.csv:column, or list of paths.
    sample_weight : path, optional
        Weight of each sample: a column, as for labels.
    target : path, optional
        Label or number of each sample to learn from: a column.
    """

    source: str | list[str] = ""
    _: KW_ONLY
    samples: Annotated[list[Pixel] | None, Check(_range)] = None
    sample_weight: str | None = None
    target: str | None = None


COLUMNS = ("sample_weight", "target")  # keys of the collection that are not options of opening it


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PrepareSection:
    """Steps applied to every sample; see `streampca.Preparation`.

    Parameters
    ----------
    crop : list of [start, stop], optional
        Pixels to keep of each axis; negative ends count from its end.
    grey : bool, default=False
        Turn colours into grey.
    resize : [height, width], optional
        Size that every image is brought to.
    bin : int, default=1
        Average squares of Q x Q pixels.
    mask : path or "valid", optional
        Image or .npy of the pixels to keep, or valid.
    anomaly : {"month", "dayofyear", "label"}, optional
        Subtract the mean of each month, day of the year or label. Reconstruct adds it again.
    detrend : bool, default=False
        Subtract each pixel's linear trend along the dates.
    standardize : bool, default=False
        Divide each pixel by its standard deviation.
    scale : float, path or "area", optional
        Multiply pixels by a number, .npy, or area (by latitude). Reconstruct undoes it.
    normalize : {"mean", "norm", "ratio"}, optional
        Subtract an image's mean, or divide by its norm or mean.
    """

    crop: list[tuple[Pixel, Pixel]] | None = None
    grey: bool = False
    resize: tuple[Count, Count] | None = None
    bin: Count = 1
    mask: str | None = None
    anomaly: Literal["month", "dayofyear", "label"] | None = None
    detrend: bool = False
    standardize: bool = False
    scale: float | str | None = None
    normalize: Literal["mean", "norm", "ratio"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunSection(Run):
    """How a run is carried out; see `streampca.Run`.

    Parameters
    ----------
    checkpoint : bool, default=True
        Save progress beside the outputs, to resume from.
    log_format : {"text", "json"}, default="text"
        Format of messages. With json, every event and error is one JSON object in a line of standard error.
    metrics : path, optional
        File of metrics: .json, or .prom (Prometheus). Each run replaces it, also one that fails.
    """

    checkpoint: bool = True
    log_format: Literal["text", "json"] = "text"
    metrics: Annotated[str | None, Check(_metrics)] = None


# Fields of `Run` and `Opening` that no section of a run file has.
NOT_WRITTEN = ("output", "listener", "reuse", "listing")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OutputSection:
    """Outputs and where they go.

    Parameters
    ----------
    directory : path, optional
        Run directory: model, scores, configuration, log, report.
    model : path, optional
        Folder for the model, such as model.zarr. DIRECTORY/model.zarr in a run directory.
    scores : path, optional
        Scores: .zarr, .npy, .csv or .parquet.
    images : path, optional
        Reconstructed images: .zarr, .npy or .tif.
    collection : path, optional
        Copy of the prepared collection: .zarr.
    graph : path, optional
        Graph of nearest neighbours: .zarr. It is made from the scores, or else from the collection.
    transform : bool, default=False
        Write DIRECTORY/scores.zarr.
    report : bool, default=False
        Write DIRECTORY/report.html and DIRECTORY/pictures.
    whiten : bool, default=False
        Divide scores by the standard deviation along each component.
    n_components : int, optional
        Number of components used in reconstruction; by default all.
    missing : {"error", "drop-features", "drop-samples", "em"}, optional
        Treatment of NaN in samples a model is applied to; by default as fitted. An error, scores of NaN
        (drop-samples), or least squares over the other pixels (em).
    residual : bool, default=False
        Write images less their reconstructions.
    whole : bool, default=False
        Join patches to whole pictures. Overlapping patches are averaged.
    examine : int or None, default=200000
        Samples that the report examines at most; null for all.
    figure_format : {"pdf", "svg", "png"}, default="pdf"
        Format of the report's figures in the folder figures of the directory.
    figure_width : float, optional
        Width of these figures in mm [default: 90 for charts, 180 for others].
    figure_data : bool, default=False
        Write the numbers behind each figure of the report to the folder data of the directory, as CSV.
    """

    directory: str | None = None
    model: str | None = None
    scores: str | None = None
    images: str | None = None
    collection: str | None = None
    graph: str | None = None
    transform: bool = False
    report: bool = False
    whiten: bool = False
    n_components: Count | None = None
    missing: MissingRule | None = None
    residual: bool = False
    whole: bool = False
    examine: Count | None = 200_000
    figure_format: Literal["pdf", "svg", "png"] = "pdf"
    figure_width: FigureWidth | None = None
    figure_data: bool = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class UpdateSection:
    """Adding samples to a model; see `streampca.update`.

    Parameters
    ----------
    model : path, optional
        Model to add the samples to. Of a source that has grown, only the new samples are added.
    approximate : bool, default=False
        Let components stand for a statistic that a model lacks.
    enabled : bool, default=False
        Add samples that the source has gained to the model of the run directory. Short for it is update: true.
    """

    model: str | None = None
    approximate: bool = False
    enabled: bool = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FollowSection:
    """Following a source that is being written; see `streampca.follow`.

    Parameters
    ----------
    enabled : bool, default=False
        Keep the model up to date while the source grows.
    settle : float or str, default=5.0
        Time that a followed sample must not change, such as 10s.
    interval : float or str, default=30.0
        Time from one replacement of a followed model to the next.
    until : int, optional
        Number of samples at which following ends.
    idle : float or str, optional
        Time without samples after which following ends.
    """

    enabled: bool = False
    settle: Seconds = 5.0
    interval: Seconds = 30.0
    until: Annotated[int, Range(least=2)] | None = None
    idle: Annotated[float | str | None, Check(_seconds)] = None


SECTIONS: dict[str, type] = {
    "collection": CollectionSection,
    "prepare": PrepareSection,
    "run": RunSection,
    "output": OutputSection,
    "update": UpdateSection,
    "follow": FollowSection,
    "neighbors": NeighborsDescription,
}
# Keys that hold a path, and its name in help. No other texts can hold environment variables.
PATHS = {
    "collection.source": "SOURCE", "collection.labels": "COLUMN", "collection.sample_weight": "COLUMN",
    "collection.target": "COLUMN", "prepare.mask": "FILE", "prepare.scale": "FACTOR", "model.graph": "GRAPH",
    "run.scratch": "FOLDER", "run.metrics": "FILE", "output.directory": "FOLDER", "output.model": "MODEL",
    "output.scores": "SCORES",
    "output.images": "IMAGES", "output.collection": "IMAGES", "output.graph": "GRAPH", "update.model": "MODEL",
    "apply": "MODEL",
}  # fmt: skip
