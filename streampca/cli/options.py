"""Every option of a run, declared once: its name, type, range, default and meaning.

A field here is a key of run files and of their JSON schema, and an option of the commands that use it: `command_line`
makes those. `CommandLine` beside a field's type says what differs there. The parameters of `streampca.fit`,
`open_collection`, `Preparation` and others are written out where they are used; ``tests/test_options.py`` proves names
and defaults equal to these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from ..planning.blocks import part_of
from ..planning.request import RULES, RuleName
from . import notation


@dataclass(frozen=True)
class CommandLine:
    """What an option's field does not say about it on the command line.

    Attributes
    ----------
    metavar : str, optional
        Placeholder for the value in the help.
    names : tuple of str
        By default the field's name, with dashes.
    help : str, optional
        Where a value is written in another way than in a run file; by default the field's description.
    read : callable, optional
        Makes a run file's value of the text.
    flag : str, optional
        Value that the option stands for by being there.
    multiple : bool
        Whether it may be given several times.
    """

    metavar: str | None = None
    names: tuple[str, ...] = ()
    help: str | None = None
    read: Callable[[Any], Any] | None = None
    flag: str | None = None
    multiple: bool = False


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


_Int = Annotated[int, BeforeValidator(_number)]  # inside lists, which `Section` does not look into


class PatchesConfig(Section):
    """Sliding windows of an image."""

    size: tuple[_Int, _Int] = Field(description="[height, width] of a window")
    step: tuple[_Int, _Int] | None = Field(None, description="[rows, columns] between windows; by default the size")


class CollectionConfig(Section):
    """Where samples come from; see `streampca.open_collection`."""

    source: Annotated[str | list[str], CommandLine(read=notation.one_or_list)] = Field(
        description="path, glob, URL, @list.txt, table.csv:column, or list of paths"
    )
    key: Annotated[str | None, CommandLine("NAME")] = Field(
        None, description="which array, where the source holds several"
    )
    sample_axes: Annotated[
        list[int | str] | None,
        CommandLine(
            "AXES", help="axes of one image, e.g. 1,2 or y,x; all but the first by default", read=notation.read_axes
        ),
    ] = Field(None, description="axes that make one image; all but the first by default")
    select: Annotated[
        dict[int | str, _Int | tuple[_Int, _Int]] | None,
        CommandLine(
            "AXIS=ENTRY",
            help="entry (c=0) or range (z=10:20) of another axis",
            read=notation.read_selections,
            multiple=True,
        ),
    ] = Field(None, description="what to take on other axes: an entry, or [start, stop]")
    patches: Annotated[
        PatchesConfig | None,
        CommandLine(
            "SIZE", help="windows of the image as samples: 16x16, or 16x16/8x8 with a step", read=notation.read_patches
        ),
    ] = Field(None, description="windows of the image as samples")
    samples: Annotated[
        list[_Int | None] | None,
        Field(min_length=2, max_length=3),
        CommandLine("RANGE", help="some samples only: START:STOP or START:STOP:STEP", read=notation.read_samples),
    ] = Field(None, description="some samples only: [start, stop] or [start, stop, step]")
    labels: Annotated[str | None, CommandLine("COLUMN")] = Field(
        None, description="a label a sample: .npy, IDX, table.csv:column, or folder"
    )
    where: Annotated[str | None, CommandLine("CONDITION")] = Field(
        None, description="samples by label only, e.g. label=3 or label!=0"
    )
    on_bad_file: Literal["error", "skip"] = Field(
        "error", description="stop at a file that cannot be read, or leave such files out"
    )
    keep_orientation: bool = Field(False, description="leave images as stored, whatever their orientation tags say")
    coordinates: Annotated[
        Literal["check", "ignore"],
        CommandLine(
            names=("--ignore-coordinates",),
            help="take pixels by place, whatever latitudes and the like say",
            flag="ignore",
        ),
    ] = Field(
        "check", description="compare latitudes and the like with other files' and the model's, or take pixels by place"
    )


class PrepareConfig(Section):
    """What is done to every sample first; see `streampca.Preparation`."""

    crop: Annotated[
        list[tuple[_Int | None, _Int | None]] | None,
        CommandLine("RANGES", help="keep these pixels, e.g. 10:100,20:200 or 5:-5", read=notation.read_crop),
    ] = Field(None, description="[start, stop] kept of each axis; negative ends count from its end, null is the edge")
    grey: bool = Field(False, description="turn colours into grey")
    resize: Annotated[
        tuple[_Int, _Int] | None,
        CommandLine("HxW", help="bring every image to this size, e.g. 64x64", read=notation.read_size),
    ] = Field(None, description="[height, width] every image is brought to")
    bin: Annotated[int, CommandLine("Q")] = Field(1, ge=1, description="average squares of Q x Q pixels")
    mask: Annotated[str | None, CommandLine("FILE")] = Field(
        None, description="image or .npy of the pixels to keep, or valid: those never missing"
    )
    scale: Annotated[float | str | None, CommandLine("FACTOR", read=notation.read_scale)] = Field(
        None, description="number, .npy of one a pixel, or area (by latitude); undone by reconstruct"
    )
    normalize: Literal["mean", "norm", "ratio"] | None = Field(
        None, description="each image alone: less its mean, over its norm, or over its mean"
    )


class FitConfig(Section):
    """What is asked of the fit; see `streampca.fit`."""

    n_components: Annotated[
        int | float | RuleName | None,
        BeforeValidator(_count_or_rule),
        CommandLine(
            "K",
            names=("-k", "--n-components"),
            help="count (50), share of the variance (0.95), elbow, mp, mle or all",
            read=notation.read_components,
        ),
    ] = Field(0.95, description="a number, a fraction of the variance, elbow, mp, mle, or null for all")
    method: Annotated[str, CommandLine("METHOD")] = Field(
        "auto", description="how: auto, covariance, dual or randomized"
    )
    memory: Annotated[int | str | None, CommandLine("SIZE")] = Field(
        None, description="budget, e.g. 512MiB or 2GiB; half of the machine's by default"
    )
    precision: Annotated[str, CommandLine("PRECISION")] = Field(
        "auto", description="of products: auto, single or double"
    )
    tol: Annotated[float, CommandLine("TOL")] = Field(
        1e-4,
        gt=0,
        lt=1,
        description="residual of a component, relative to its variance, at which method randomized stops",
    )
    max_passes: Annotated[int | None, CommandLine("N")] = Field(
        None, ge=1, description="most passes of method randomized; 1 makes a sketch; by default as many as tol takes"
    )
    sample_weight: Annotated[str | None, CommandLine("COLUMN")] = Field(
        None, description="how often each sample counts: a column, as for labels"
    )
    scratch: Annotated[str | None, CommandLine("FOLDER")] = Field(
        None, description="folder for a scratch copy; beside the output by default"
    )
    part: Annotated[
        str | None,
        AfterValidator(_part),
        CommandLine("I/N", read=notation.read_part),
    ] = Field(None, description="samples of part I of N only, such as 3/16; streampca merge makes one model of all")
    seed: Annotated[int, CommandLine("N")] = Field(0, ge=0, description="of everything random")


class OutputConfig(Section):
    """What is written, and where."""

    directory: str | None = Field(None, description="a run directory: model, scores, config, log, report")
    model: str | None = Field(None, description="where the model goes; DIRECTORY/model.zarr in a run directory")
    scores: str | None = Field(None, description="where scores go (.zarr, .npy, .csv)")
    images: str | None = Field(None, description="where reconstructed images go (.zarr, .npy)")
    collection: str | None = Field(None, description="where a copy of the prepared collection goes (.zarr)")
    transform: bool = Field(False, description="write DIRECTORY/scores.zarr")
    report: bool = Field(False, description="write DIRECTORY/report.html and DIRECTORY/pictures")
    whiten: bool = Field(False, description="divide scores by the deviation along each component")
    n_components: Annotated[int | None, CommandLine("K", names=("-k", "--n-components"))] = Field(
        None, ge=1, description="components used in reconstruction; all by default"
    )
    residual: bool = Field(
        False, description="write what reconstruction leaves of each image, in place of the reconstruction"
    )
    whole: bool = Field(False, description="put pictures back from their patches, the mean where these overlap")
    overwrite: bool = Field(False, description="replace outputs that exist")


class ExecutionConfig(Section):
    """Who runs the tasks."""

    kind: Literal["local", "dask"] = Field("local", description="this process, or a dask cluster")
    address: Annotated[str | None, CommandLine("URL")] = Field(
        None, description="scheduler of a dask cluster whose workers share the work, such as tcp://10.0.0.1:8786"
    )
    cluster: str | None = Field(None, description="class that makes a cluster, such as dask_jobqueue.SLURMCluster")
    options: dict[str, Any] | None = Field(None, description="what that class is called with")
    workers: Annotated[int | None, CommandLine("N")] = Field(
        None, ge=1, description="share the work among so many processes, or among so many workers of the cluster"
    )
    memory: Annotated[int | str | None, CommandLine("SIZE", names=("--worker-memory",))] = Field(
        None, description="memory of each process of this machine, such as 4GiB; as the budget needs by default"
    )
    wait: float | None = Field(None, gt=0, description="seconds to wait for the first worker")


class CheckpointConfig(Section):
    """How a run is saved as it goes, beside its outputs, so that the same run resumes when it was stopped."""

    enabled: Annotated[bool, CommandLine(names=("--checkpoint/--no-checkpoint",))] = Field(
        True, description="save as it goes, to resume from; the default"
    )
    every: Annotated[float, CommandLine("SECONDS", names=("--checkpoint-every",))] = Field(
        30.0, ge=0, description="least seconds between saves, which never take 3 % of the time"
    )


class Run(Section):
    """One run: a collection, and either a fit or a model to apply."""

    collection: CollectionConfig
    model: str | None = Field(None, description="a fitted model to apply; none means fit")
    prepare: PrepareConfig = PrepareConfig()
    fit: FitConfig = FitConfig()
    output: OutputConfig = OutputConfig()
    execution: ExecutionConfig = ExecutionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    def to_yaml(self) -> str:
        """Return the run as a run file; keys at their defaults are left out."""
        import yaml

        data = self.model_dump(exclude_defaults=True)  # not mode="json": its keys are text, and axis 0 is not axis "0"
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        breaks = any(mark in text for mark in "\x85\u2028\u2029")  # ends of lines to YAML, which PyYAML leaves bare
        return yaml.safe_dump(data, sort_keys=False) if breaks else text


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
