"""Every option of a run, declared once: its name, type, range, default and meaning.

A field here is a key of run files and of their JSON schema, and an option of the commands that use it: `command_line`
makes those, and `CommandLine` says what differs there. The parameters of `streampca.fit`,
`open_collection`, `Preparation` and others are written out where they are used; ``tests/test_options.py`` proves names
and defaults equal to these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from ..execution.cluster_options import CLUSTERS, COMMAND_OPTIONS, CONFIGURED, TIMEOUT, checked_options, kind_of
from ..planning.blocks import part_of
from ..planning.embedding import EMBEDDING_KINDS
from ..planning.neighbors import EF_SEARCH, N_NEIGHBORS
from ..planning.neighbors import METHODS as SEARCHES
from ..planning.registry import KINDS, METHODS, TargetType
from ..planning.request import RULES, Metric, MissingRule, RuleName
from ..preprocessing.kernel_features import CHOICES
from ..preprocessing.kernels import KERNELS
from ..units import parse_seconds
from . import option_texts
from .variables import Place, escaped, put_back

# Placeholders of options that take paths.
PATHS = ("MODEL", "SCORES", "IMAGES", "GRAPH", "FILE", "FOLDER", "COLUMN", "SOURCE")


@dataclass(frozen=True)
class CommandLine:
    """An option's form on the command line, as far as its field does not say it.

    Attributes
    ----------
    metavar : str, optional
        Placeholder for the value in the help.
    names : tuple of str
        Names; by default the field's, with dashes.
    help : str, optional
        Meaning, where a value is written in another way than in a run file; by default the field's description.
    read : callable, optional
        Returns a run file's value of the text.
    flag : str, optional
        Value that the option stands for by being there.
    multiple : bool
        Whether it may be given several times.
    choices : callable, optional
        Returns the only values that it takes, which the help lists and shells complete.
    """

    metavar: str | None = None
    names: tuple[str, ...] = ()
    help: str | None = None
    read: Callable[[Any], Any] | None = None
    flag: str | None = None
    multiple: bool = False
    choices: Callable[[], tuple[str, ...]] | None = None


def option(
    default: Any,
    description: str,
    command_line: str | CommandLine = CommandLine(),
    *,
    ge: float | None = None,
    gt: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declare an option: its default, its meaning, its placeholder on the command line or more of it, and its range."""
    field: Any = Field(default, description=description, ge=ge, gt=gt, lt=lt)
    field.metadata.append(command_line if isinstance(command_line, CommandLine) else CommandLine(command_line))
    return field


class Section(BaseModel):
    """A part of a run: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _not_yes_or_no(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse what YAML reads from yes, no, on and off where a number is meant: True would pass for 1."""
        return _number(value) if info.field_name and _takes_numbers(cls, info.field_name) else value


def _takes_numbers(section: type[Section], name: str) -> bool:
    annotation = section.model_fields[name].annotation
    return bool({int, float} & {annotation, *get_args(annotation)})


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("input should be a number, not yes or no")
    return value


def _count_or_rule(value: Any) -> Any:
    """Say what may stand for a number of components, which a union's own message does not."""
    if isinstance(value, str) and value not in RULES:
        try:
            float(value)  # PyYAML leaves 1e-4 a text
        except ValueError:
            raise ValueError(f"input should be a number, null, or one of {', '.join(RULES)}") from None
    return value


def _part(value: str) -> str:
    part_of(value)
    return value


def _duration(value: float | str) -> float:
    return parse_seconds(value)


_Int = Annotated[int, BeforeValidator(_number)]  # inside lists, which `Section` does not look into


def _text_of_date(value: Any) -> Any:
    """Return a date, which YAML reads from 1990-05-17, as its text."""
    return value.isoformat() if isinstance(value, date) else _number(value)


_Value = Annotated[int | float | str, BeforeValidator(_text_of_date)]


class PatchesConfig(Section):
    """Sliding windows of an image."""

    size: tuple[_Int, _Int] = option(..., "[height, width] of a window")
    step: tuple[_Int, _Int] | None = option(None, "[rows, columns] between windows; by default the size")


class CollectionConfig(Section):
    """The samples; see `streampca.open_collection`."""

    source: str | list[str] = option(
        ...,
        "path, glob, URL, @list.txt, table.csv:column, or list of paths",
        CommandLine("SOURCE", read=option_texts.one_or_list),
    )
    key: str | None = option(
        None, "which array, where the source holds several; several variables of one field as NAME,NAME", "NAME"
    )
    sample_axes: list[int | str] | None = option(
        None,
        "axes of one image, such as 1,2 or y,x; by default those that by attributes and names do not count samples",
        CommandLine("AXES", read=option_texts.read_axes),
    )
    select: dict[int | str, _Int | tuple[_Int, _Int]] | None = option(
        None,
        "what to take on other axes by number: an entry, or [start, stop]",
        CommandLine(
            "AXIS=ENTRY",
            help="entry (c=0) or range (z=10:20) of another axis",
            read=option_texts.read_selections,
            multiple=True,
        ),
    )
    sel: dict[str, _Value | tuple[_Value | None, _Value | None]] | None = option(
        None,
        "what to take on other axes by their values: a number, text or date, or [first, last]",
        CommandLine(
            "AXIS=VALUE",
            help="value (level=500, c=GFP, time=1990) or range (lat=30:60, time=1990-05:2000) of another axis",
            read=option_texts.read_values,
            multiple=True,
        ),
    )
    patches: PatchesConfig | None = option(
        None,
        "windows of the image as samples",
        CommandLine(
            "SIZE",
            help="windows of the image as samples: 16x16, or 16x16/8x8 with a step",
            read=option_texts.read_patches,
        ),
    )
    samples: Annotated[list[_Int | None] | None, Field(min_length=2, max_length=3)] = option(
        None,
        "take only some samples: [start, stop] or [start, stop, step]",
        CommandLine(
            "RANGE", help="take only some samples: START:STOP or START:STOP:STEP", read=option_texts.read_samples
        ),
    )
    labels: str | None = option(
        None,
        "a label for each sample, used by where, anomaly and reports: .npy, IDX, table.csv:column, or folder",
        CommandLine(
            "COLUMN",
            help="label of each sample, used by --where, --anomaly (a model's, too) and reports: .npy, IDX, "
            "table.csv:column, or folder",
        ),
    )
    where: str | None = option(
        None, "take only samples with some labels, e.g. label=3, label!=0,1 or 'label>=1 and label<3'", "CONDITION"
    )
    fill_value: int | float | str | None = option(
        None,
        "stored number that stands for no value, where the file does not say so; none where every number is a value",
        CommandLine("NUMBER", read=option_texts.read_fill_value),
    )
    on_bad_file: Literal["error", "skip"] = option(
        "error", "stop at a file that cannot be read, or leave such files out"
    )
    keep_orientation: bool = option(False, "leave images as stored, whatever their orientation tags say")
    coordinates: Literal["check", "ignore"] = option(
        "check",
        "compare latitudes and the like with other files' and the model's, or take pixels by place",
        CommandLine(
            names=("--ignore-coordinates",),
            help="take pixels by place, whatever latitudes and the like say",
            flag="ignore",
        ),
    )
    duplicates: Literal["error", "first", "all"] = option(
        "error",
        "stop at a file that is there twice and at a date that two files of one series have, take the first, "
        "or take all",
    )
    allow_remote: bool = option(False, "fetch URLs that a list of paths, a table, a run file or a model names")


class PrepareConfig(Section):
    """Preparation of every sample; see `streampca.Preparation`."""

    crop: list[tuple[_Int | None, _Int | None]] | None = option(
        None,
        "[start, stop] kept of each axis; negative ends count from its end, null is the edge",
        CommandLine("RANGES", help="keep these pixels, e.g. 10:100,20:200 or 5:-5", read=option_texts.read_crop),
    )
    grey: bool = option(False, "turn colours into grey")
    resize: tuple[_Int, _Int] | None = option(
        None,
        "[height, width] every image is brought to",
        CommandLine("HxW", help="bring every image to this size, e.g. 64x64", read=option_texts.read_size),
    )
    bin: int = option(1, "average squares of Q x Q pixels", "Q", ge=1)
    mask: str | None = option(None, "image or .npy of the pixels to keep, or valid: those never missing", "FILE")
    anomaly: Literal["month", "dayofyear", "label"] | None = option(
        None, "take off the mean of each month, day of the year or label; added again by reconstruct"
    )
    detrend: bool = option(False, "take off the line that fits each pixel best along the dates")
    standardize: bool = option(False, "divide each pixel by its standard deviation: PCA of correlations")
    scale: float | str | None = option(
        None,
        "multiply pixels: by a number, a .npy of one for each pixel, or area (by latitude); undone by reconstruct",
        CommandLine("FACTOR", read=option_texts.number_or_word),
    )
    weights: float | str | None = option(
        None,
        "another name of scale; coslat is area",
        CommandLine("FACTOR", read=option_texts.number_or_word),
    )
    normalize: Literal["mean", "norm", "ratio"] | None = option(
        None, "of each image, subtract its mean, or divide by its norm, or by its mean (ratio)"
    )


class FitConfig(Section):
    """Options of the fit; see `streampca.fit`."""

    kind: str = option("pca", "kind of model", CommandLine("KIND", choices=lambda: tuple(KINDS)))
    target: str | None = option(
        None, "label or number of each sample, for supervised kinds: a column, as for labels", "COLUMN"
    )
    target_type: TargetType = option(
        "auto", "take the target for classes or numbers; auto goes by its values, and says what it took", "TYPE"
    )
    shrinkage: float | None = option(
        None, "kind discriminant: share by which covariances move towards multiples of the identity", "SHARE", ge=0
    )
    n_slices: int = option(10, "kind sliced-inverse-regression: number of parts of the sorted target", "N", ge=2)
    threshold: float | str = option(
        "auto",
        "kind supervised-components: least correlation with the target of features that are kept; auto is chosen by "
        "cross-validation",
        CommandLine("R", read=option_texts.number_or_word),
    )
    n_folds: int = option(5, "kind supervised-components: number of folds of that cross-validation", "N", ge=2)
    metric: Metric = option(
        "euclidean",
        "kind classical-mds: euclidean for samples; precomputed for a matrix of distances, kernel for one of inner "
        "products",
        "METRIC",
    )
    n_components: Annotated[int | float | RuleName | None, BeforeValidator(_count_or_rule)] = option(
        0.95,
        "a number, a fraction of the variance, elbow, mp, mle, or null for all",
        CommandLine(
            "K",
            names=("-k", "--n-components"),
            help="count (50), share of the variance (0.95), elbow, mp, mle or all",
            read=option_texts.read_components,
        ),
    )
    method: str = option("auto", "method of the fit", CommandLine("METHOD", choices=lambda: ("auto", *METHODS)))
    memory: int | str | None = option(None, "budget, e.g. 512MiB or 2GiB; half of the machine's by default", "SIZE")
    precision: str = option(
        "auto", "precision of products", CommandLine("PRECISION", choices=lambda: ("auto", "single", "double"))
    )
    tol: float = option(
        1e-4, "residual of a component, relative to its variance, at which method randomized stops", "TOL", gt=0, lt=1
    )
    max_passes: int | None = option(
        None, "largest number of passes of method randomized; by default as many as tol takes", "N", ge=1
    )
    half_life: float | None = option(
        None, "number of samples after which a sample counts half as much; by default all count alike", "N", ge=1
    )
    missing: MissingRule = option(
        "error",
        "values that are NaN or infinite: an error, pixels or samples with any left out (drop-features, drop-samples), "
        "or probabilistic PCA of the others (em)",
        "RULE",
    )
    kernel: str | None = option(
        None,
        "kernel of kinds kernel-pca (rbf by default) and supervised-pca",
        CommandLine("NAME", choices=lambda: tuple(name for name in KERNELS if name != "distance")),
    )
    gamma: float | str | None = option(
        "auto",
        "gamma of the kernel; auto is derived from the median distance of samples, null is 1/p",
        CommandLine(
            "GAMMA",
            help="gamma of the kernel; auto is derived from the median distance of samples",
            read=option_texts.number_or_word,
        ),
    )
    degree: int = option(3, "degree of kernel polynomial", "D", ge=1)
    coef0: float = option(1.0, "constant of kernels polynomial and sigmoid", "C")
    landmarks: int | str | None = option(
        None,
        "number of samples that all others are compared with, by a kernel or classical-mds; by default all",
        CommandLine("M", read=option_texts.read_landmarks),
    )
    random_features: int | None = option(None, "number of random Fourier features, in place of landmarks", "Q", ge=1)
    landmark_choice: str = option(
        "uniform", "how landmarks are chosen", CommandLine("HOW", choices=lambda: tuple(CHOICES))
    )
    sample_weight: str | None = option(None, "how often each sample counts: a column, as for labels", "COLUMN")
    update: str | None = option(
        None, "a model to add the samples to; only the new ones, where its own source has grown", "MODEL"
    )
    approximate: bool = option(False, "update a model that keeps no statistic from its components, approximately")
    scratch: str | None = option(None, "folder for a scratch copy; beside the output by default", "FOLDER")
    part: Annotated[str, AfterValidator(_part)] | None = option(
        None,
        "fit only part I of N of the samples, such as 3/16; streampca merge combines the parts",
        "I/N",
    )
    seed: int = option(0, "seed of the random numbers", "N", ge=0)


class EmbedConfig(Section):
    """Options of an embedding; see `streampca.embed`."""

    kind: str | None = option(
        None,
        "kind of embedding, in place of a fit",
        CommandLine("KIND", help="kind of embedding, by default isomap", choices=lambda: tuple(EMBEDDING_KINDS)),
    )
    n_components: int = option(2, "number of dimensions", CommandLine("K", names=("-k", "--n-components")), ge=1)
    n_neighbors: int = option(15, "number of neighbours of each sample", "N", ge=1)
    graph: str | None = option(
        None, "graph of the samples' neighbours, as streampca neighbors writes it; made by default", "GRAPH"
    )
    actions: str | None = option(
        None,
        "for action-respecting-embedding: the action that leads from each sample to the next, a column as for labels",
        "COLUMN",
    )
    pca_components: int | None = option(
        None,
        "principal components by whose scores neighbours are found; 0 takes features as they are; by default 0 for up "
        "to 50 features, and 50 for more",
        "N",
        ge=0,
    )
    landmarks: int | str | None = option(
        None,
        "for isomap: samples that distances are measured from, by default all of up to 2000, else 300; for "
        "locally-linear-embedding and maximum-variance-unfolding: samples that are embedded and place the others, by "
        "default all if memory allows, and 2000; a number, or all",
        CommandLine("M", read=option_texts.read_landmarks),
    )
    landmark_choice: Literal["random", "farthest"] = option("random", "for isomap: how landmarks are chosen")
    reg: float = option(
        1e-3,
        "regularisation of the weights that rebuild samples from neighbours, in locally-linear-embedding and to place "
        "new samples; give 0.1 for images",
        "SHARE",
        gt=0,
    )
    gamma: float | None = option(
        None, "for spectral kinds: edges of length d weigh exp(-gamma d^2); all weigh 1 by default", "GAMMA", gt=0
    )
    laplacian: Literal["normalized", "unnormalized"] = option(
        "normalized", "for spectral kinds: relax the normalised cut, or the ratio cut"
    )
    n_clusters: int = option(8, "for spectral-clustering: number of clusters", "C", ge=1)
    largest_component: bool = option(
        False, "embed the largest component of a graph that is not connected, which is refused otherwise"
    )
    seed: int = option(0, "seed of the random numbers", "N", ge=0)


class FollowConfig(Section):
    """Following a source that is being written; see `streampca.follow`."""

    enabled: bool = option(
        False, "keep the model up to date while samples are added to the source", CommandLine(names=("--follow",))
    )
    settle: Annotated[float | str, AfterValidator(_duration)] = option(
        5.0, "with --follow: how long a sample must not change before it is taken, such as 10s", "TIME"
    )
    interval: Annotated[float | str, AfterValidator(_duration)] = option(
        30.0, "with --follow: time from one replacement of the model to the next", "TIME"
    )
    until: int | None = option(None, "with --follow: samples at which to end", "N", ge=2)
    idle: Annotated[float | str, AfterValidator(_duration)] | None = option(
        None, "with --follow: end when nothing came for so long, such as 10min; by default never", "TIME"
    )


class NeighborsConfig(Section):
    """Options of a graph of nearest neighbours; see `streampca.neighbors`."""

    n_neighbors: int = option(N_NEIGHBORS, "neighbours of each sample", "K", ge=1)
    method: str = option("auto", "method of the search", CommandLine("METHOD", choices=lambda: ("auto", *SEARCHES)))
    ef_search: int = option(
        EF_SEARCH, "method hnsw: candidates kept during a search; more are slower, and find more neighbours", "N", ge=1
    )


class OutputConfig(Section):
    """Outputs and where they go."""

    directory: str | None = option(None, "a run directory: model, scores, config, log, report", "FOLDER")
    model: str | None = option(None, "where the model goes; DIRECTORY/model.zarr in a run directory", "MODEL")
    scores: str | None = option(None, "where scores go (.zarr, .npy, .csv, .parquet)", "SCORES")
    images: str | None = option(None, "where reconstructed images go (.zarr, .npy, .tif)", "IMAGES")
    collection: str | None = option(None, "where a copy of the prepared collection goes (.zarr)", "IMAGES")
    graph: str | None = option(
        None,
        "where the graph of nearest neighbours goes (.zarr): of the scores written, or else of the collection",
        "GRAPH",
    )
    transform: bool = option(False, "write DIRECTORY/scores.zarr")
    report: bool = option(False, "write DIRECTORY/report.html and DIRECTORY/pictures")
    whiten: bool = option(False, "divide scores by the deviation along each component")
    n_components: int | None = option(
        None, "components used in reconstruction; all by default", CommandLine("K", ("-k", "--n-components")), ge=1
    )
    missing: MissingRule | None = option(
        None,
        "values that are NaN or infinite in samples that a model is applied to: an error, scores of NaN "
        "(drop-samples), or least squares over the others (em); as fitted by default",
        "RULE",
    )
    residual: bool = option(
        False, "write the difference of each image and its reconstruction, in place of the reconstruction"
    )
    whole: bool = option(False, "put whole pictures together from their patches, with means where these overlap")
    overwrite: bool = option(False, "replace outputs that exist")


class ExecutionConfig(Section):
    """The executor of the tasks: this process or a dask cluster."""

    kind: Literal["local", "dask"] = option("local", "this process, or a dask cluster")
    cluster: Annotated[str, AfterValidator(kind_of)] | None = option(
        None,
        f"cluster whose workers share the work: {', '.join(CLUSTERS)}, configured (the scheduler that dask's "
        "configuration names), or, not in run files, a scheduler's address such as tcp://10.0.0.1:8786; local with "
        "workers alone, else configured",
        CommandLine("KIND|URL", ("--cluster", "--address")),
    )
    options: Annotated[dict[str, Any], AfterValidator(checked_options)] | None = option(
        None,
        "options of the jobs of a cluster that is started, such as queue=long",
        CommandLine("NAME=VALUE", ("--cluster-option",), read=option_texts.read_options, multiple=True),
    )
    workers: int | None = option(
        None, "number of processes, or of workers of the cluster, that share the work", "N", ge=1
    )
    memory: int | str | None = option(
        None,
        "memory of each worker that is started, such as 4GiB; as the budget needs by default",
        CommandLine("SIZE", ("--worker-memory",)),
    )
    timeout: Annotated[float | str, AfterValidator(_duration)] = option(
        TIMEOUT,
        "how long to wait for the first worker, and when all are gone, such as 10min",
        CommandLine("TIME", ("--cluster-timeout",)),
    )
    dashboard: bool = option(False, "serve dask's dashboard to everybody who is logged in on this machine")


class CheckpointConfig(Section):
    """Checkpoints, next to the outputs, from which the same run resumes after it was stopped."""

    enabled: bool = option(
        True, "save progress, to resume from; the default", CommandLine(names=("--checkpoint/--no-checkpoint",))
    )
    every: float = option(
        30.0,
        "shortest time between saves, in seconds; saving takes at most 3 % of the run",
        CommandLine("SECONDS", ("--checkpoint-every",)),
        ge=0,
    )
    require_same_bits: bool = option(
        False, "refuse to resume a run that was begun with other threads or another kernel of BLAS"
    )


class Run(Section):
    """One run: a collection, and either a fit or a model to apply."""

    collection: CollectionConfig
    model: str | None = option(None, "a fitted model to apply; none means fit", "MODEL")
    prepare: PrepareConfig = PrepareConfig()
    fit: FitConfig = FitConfig()
    embed: EmbedConfig = EmbedConfig()
    follow: FollowConfig = FollowConfig()
    neighbors: NeighborsConfig = NeighborsConfig()
    output: OutputConfig = OutputConfig()
    execution: ExecutionConfig = ExecutionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    _written: dict[Place, str] = PrivateAttr(default_factory=dict)  # texts of its run file that held variables

    def with_sample_axes(self, axes: Sequence[int | str]) -> Run:
        """Return the run with the axes of one sample that its collection was found to have."""
        return self.model_copy(update={"collection": self.collection.model_copy(update={"sample_axes": list(axes)})})

    def to_yaml(self, *, complete: bool = False) -> str:
        """Return the run as a run file, without what no run file may hold.

        Keys at their defaults are left out, or if `complete` given where they apply. Environment variables stay as they
        were written.
        """
        import yaml

        # Not mode="json": its keys are text, and axis 0 is not axis "0".
        data = self.model_dump(exclude=self._without_effect()) if complete else self.model_dump(exclude_defaults=True)
        data = escaped(data)
        put_back(data, self._written)
        data.get("collection", {}).pop("allow_remote", None)  # only a command line may give it
        execution = data.get("execution", {})
        for name in COMMAND_OPTIONS:
            (execution.get("options") or {}).pop(name, None)
        if "://" in (self.execution.cluster or ""):
            execution["cluster"] = CONFIGURED
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        breaks = any(mark in text for mark in "\x85\u2028\u2029")  # ends of lines to YAML, which PyYAML leaves bare
        return yaml.safe_dump(data, sort_keys=False) if breaks else text

    def _without_effect(self) -> dict[str, Any]:
        """Return the keys that are not given and have no say in a run of this kind, which refuses them if given."""
        exclude: dict[str, Any] = {}
        if self.embed.kind is None:
            exclude["embed"] = True
        if self.embed.kind is not None or self.fit.update is not None:
            kept = self.fit.model_fields_set | ({"memory", "missing"} if self.fit.update is None else {"memory"})
            exclude["fit"] = set(FitConfig.model_fields) - kept
        if self.fit.update is not None:
            exclude["prepare"] = True
        return exclude


def section_of(place: Sequence[str]) -> type[BaseModel]:
    """Return the section at a place, given by the keys that lead to it."""
    section: type[BaseModel] = Run
    for name in place:
        inner = section_in(section.model_fields[name].annotation)
        assert inner is not None  # noqa: S101 - places are ours, or end at what is no section
        section = inner
    return section


def section_in(annotation: Any) -> type[Section] | None:
    """Return the section that a key holds, if it holds one (or none)."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def field_of(key: str) -> FieldInfo:
    """Return the declaration of a dotted key."""
    *place, name = key.split(".")
    return section_of(place).model_fields[name]


def command_line_of(field: FieldInfo) -> CommandLine:
    """Return what differs on the command line."""
    return next((item for item in field.metadata if isinstance(item, CommandLine)), CommandLine())


def names_of(key: str) -> tuple[str, ...]:
    """Return the names of an option on the command line, the one for messages first."""
    return command_line_of(field_of(key)).names or (f"--{key.rpartition('.')[2].replace('_', '-')}",)
