"""The run file's schema: what every command and every run file is turned into before anything happens.

YAML is read by the safe loader only; unknown and doubled keys are refused, with the nearest known name.
"""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..errors import ConfigError, first_line, nearest
from ..planning.blocks import part_of
from ..planning.request import RULES, RuleName
from ..storage.disk import expanded

COMMAND = "the command"  # the subject of runs that are made of a command's options
MERGE_TAG = "tag:yaml.org,2002:merge"  # of the key <<, which may stand in a mapping as often as one likes


def _not_yes_or_no(value: Any) -> Any:
    """Refuse what YAML reads from yes, no, on and off where a number is meant: True would pass for 1."""
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
    return _not_yes_or_no(value)


def _part(value: str) -> str:
    part_of(value)
    return value


_Count = int | float | RuleName | None
_Int = Annotated[int, BeforeValidator(_not_yes_or_no)]
_Positive = Annotated[int, Field(ge=1), BeforeValidator(_not_yes_or_no)]


class Section(BaseModel):
    """A part of a run: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PatchesConfig(Section):
    """Sliding windows of an image."""

    size: tuple[_Int, _Int] = Field(description="[height, width] of a window")
    step: tuple[_Int, _Int] | None = Field(None, description="[rows, columns] between windows; by default the size")


class CollectionConfig(Section):
    """Where samples come from; see `streampca.open_collection`."""

    source: str | list[str] = Field(description="path, glob, URL, @list.txt, table.csv:column, or list of paths")
    key: str | None = Field(None, description="which array, where the source holds several")
    sample_axes: list[int | str] | None = Field(None, description="axes that make one image; all but the first")
    select: dict[int | str, _Int | tuple[_Int, _Int]] | None = Field(
        None, description="what to take on other axes: an entry, or [start, stop]"
    )
    patches: PatchesConfig | None = Field(None, description="windows of the image as samples")
    samples: Annotated[list[_Int | None] | None, Field(min_length=2, max_length=3)] = Field(
        None, description="some samples only: [start, stop] or [start, stop, step]"
    )
    labels: str | None = Field(None, description="a label a sample: .npy, IDX, table.csv:column, or folder")
    where: str | None = Field(None, description="samples by label only, such as label=3")
    on_bad_file: Literal["error", "skip"] = Field("error", description="stop at a file that cannot be read, or skip it")
    keep_orientation: bool = Field(False, description="leave images as stored, whatever their orientation tags say")
    coordinates: Literal["check", "ignore"] = Field(
        "check", description="compare latitudes and the like with other files' and the model's, or take pixels by place"
    )


class PrepareConfig(Section):
    """What is done to every sample first; see `streampca.Preparation`."""

    crop: list[tuple[_Int | None, _Int | None]] | None = Field(
        None, description="[start, stop] kept of each axis; negative ends count from its end, null is the edge"
    )
    grey: bool = Field(False, description="weigh colours into one grey value")
    resize: tuple[_Int, _Int] | None = Field(None, description="[height, width] every image is brought to")
    bin: _Int = Field(1, description="mean of squares of so many pixels a side")
    mask: str | None = Field(None, description="image or .npy of the pixels to keep, or valid: those never missing")
    scale: Annotated[float | str | None, BeforeValidator(_not_yes_or_no)] = Field(
        None, description="a factor, or a .npy file of one a pixel; undone by reconstruct"
    )
    normalize: Literal["mean", "norm", "ratio"] | None = Field(
        None, description="each image alone: less its mean, over its norm, or over its mean"
    )


class FitConfig(Section):
    """What is asked of the fit; see `streampca.fit`."""

    n_components: Annotated[_Count, BeforeValidator(_count_or_rule)] = Field(
        0.95, description="a number, a fraction of the variance, elbow, mp, mle, or null for all"
    )
    method: str = Field("auto", description="auto, covariance, dual or randomized")
    memory: Annotated[int | str | None, BeforeValidator(_not_yes_or_no)] = Field(
        None, description="budget, such as 2 GiB; half of the machine's by default"
    )
    precision: str = "auto"
    tol: Annotated[float, Field(gt=0, lt=1), BeforeValidator(_not_yes_or_no)] = Field(
        1e-4, description="residual of a component, relative to its variance, at which method randomized stops"
    )
    max_passes: _Positive | None = Field(
        None, description="most passes of method randomized; 1 makes a sketch, null as many as tol takes"
    )
    sample_weight: str | None = Field(None, description="how often each sample counts: a column, as for labels")
    scratch: str | None = Field(None, description="folder for a scratch copy; beside the output by default")
    part: Annotated[str, AfterValidator(_part)] | None = Field(
        None, description="3/16: the third of 16 runs of samples only; streampca merge makes one model of all"
    )
    seed: _Int = 0


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
    n_components: _Int | None = Field(None, description="components used in reconstruction; all by default")
    residual: bool = Field(False, description="what reconstruction leaves of the samples, in place of images")
    whole: bool = Field(False, description="put pictures back from their patches, the mean where these overlap")
    overwrite: bool = Field(False, description="replace outputs that exist")


class ExecutionConfig(Section):
    """Who runs the tasks."""

    kind: Literal["local", "dask"] = Field("local", description="this process, or a dask cluster")
    address: str | None = Field(None, description="of a scheduler that runs, such as tcp://10.0.0.1:8786")
    cluster: str | None = Field(None, description="class that makes a cluster, such as dask_jobqueue.SLURMCluster")
    options: dict[str, Any] | None = Field(None, description="what that class is called with")
    workers: _Positive | None = Field(None, description="how many; of this machine, processes")
    memory: Annotated[int | str | None, BeforeValidator(_not_yes_or_no)] = Field(
        None, description="of each process of this machine, such as 4 GiB"
    )
    wait: Annotated[float, Field(gt=0)] | None = Field(None, description="seconds to wait for the first worker")


class CheckpointConfig(Section):
    """How a run is kept as it goes, beside its outputs, so that the same run goes on when it was stopped."""

    enabled: bool = Field(True, description="keep it")
    every: float = Field(30.0, ge=0, description="least seconds between saves, which never take 3 % of the time")


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
        """The run as a run file; keys at their defaults are left out."""
        data = self.model_dump(exclude_defaults=True)  # not mode="json": its keys are text, and axis 0 is not axis "0"
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        breaks = any(mark in text for mark in "\x85\u2028\u2029")  # ends of lines to YAML, which PyYAML leaves bare
        return yaml.safe_dump(data, sort_keys=False) if breaks else text


def json_schema() -> dict[str, Any]:
    """The JSON schema of run files."""
    about = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": about, **Run.model_json_schema(), "title": "streampca run file"}


def load_run(path: str, overrides: Iterable[str] = ()) -> Run:
    """Read a run file.

    Parameters
    ----------
    path : str
        A YAML file.
    overrides : iterable of str
        ``"fit.n_components=20"``: a dotted key and a YAML value, applied in order.

    Raises
    ------
    ConfigError
        If it is missing, not YAML, or has unknown or doubled keys or wrong values.
    """
    try:
        text = Path(expanded(path)).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"run file {path} does not exist; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"run file {path} cannot be read: {first_line(error)}; give a text file in YAML.") from None
    data = _parsed(text, f"run file {path}")
    if not isinstance(data, dict):
        raise ConfigError(f"run file {path} holds no keys; it needs at least 'collection: {{source: PATH}}'.")
    for override in overrides:
        _apply_override(data, override)
    return make_run(data, f"run file {path}")


def make_run(data: Mapping[str, Any], subject: str = "the run") -> Run:
    """Validate plain data as a run; errors name the key."""
    try:
        return Run.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, subject)) from None


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r} is not KEY=VALUE; write for example fit.n_components=20.")
    *sections, last = key.strip().split(".")
    place = data
    for section in sections:
        if place.get(section) is None:
            place[section] = {}
        place = place[section]
        if not isinstance(place, dict):
            raise ConfigError(f"--set {override!r}: {section} is a value, not a section; check the key.")
    place[last] = _parsed(value, f"--set {override!r}")


class _Loader(yaml.SafeLoader):
    """The safe loader, refusing doubled keys, which YAML forbids and PyYAML lets the last win."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == MERGE_TAG:
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, Hashable):
            break  # construct_mapping says so, and where
        if key in seen:
            raise ConfigError(
                f"key {key!r} stands twice, the second time in line {key_node.start_mark.line + 1}; keep one."
            )
        seen.add(key)
    return loader.construct_mapping(node)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _parsed(text: str, subject: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except ConfigError as error:
        raise ConfigError(f"{subject}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
        raise ConfigError(f"{subject} is not YAML: {problem}{line}; mend that line.") from None


def _explain(error: ValidationError, subject: str) -> str:
    """Say what is wrong first, by its dotted key; a misspelt key comes before the one it leaves missing.

    What a command was given is named by the command's option instead, which is what its user knows.
    """
    errors = error.errors(include_url=False)
    first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    place, given = _place(first["loc"]), reprlib.repr(first["input"])
    key = ".".join(place)
    match first["type"]:
        case "extra_forbidden":
            known = list(_section(place[:-1]).model_fields)
            hint = nearest(place[-1], known) or f" Known here: {', '.join(known)}."
            return f"{subject}: key {key!r} is not known.{hint}"
        case "missing" if len(first["loc"]) == len(place):
            return f"{subject}: key {key!r} is missing; add it."
        case "model_type":
            known = list(_section(place).model_fields)
            remedy = f"give keys under it ({', '.join(known)}), or leave it out"
            return f"{subject}: {key} = {given} is not a section; {remedy}."
        case "invalid_key":
            return f"{subject}: key {given} is not a name; correct it."
    if first["type"] == "missing":
        first["msg"] = "input has too few entries"
    message = first["msg"].removeprefix("Value error, ").removesuffix(".")
    meaning = _section(place[:-1]).model_fields[place[-1]].description
    named = _option(key) if subject == COMMAND else f"{subject}: {key} ="
    return f"{named} {given}: {message[0].lower()}{message[1:]}; correct it{f' ({meaning})' if meaning else ''}."


def _option(key: str) -> str:
    """Name the option of a command that a dotted key is given by."""
    name = {"fit.n_components": "k", "execution.memory": "worker-memory"}.get(key, key.rpartition(".")[2])
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def _place(loc: tuple[int | str, ...]) -> list[str]:
    """The part of pydantic's location that people typed: sections and a key, without the branches of a union."""
    place: list[str] = []
    for part in loc:
        place.append(str(part))
        if not _is_section(place):
            break
    return place


def _is_section(place: list[str]) -> bool:
    *sections, last = place
    field = _section(sections).model_fields.get(last)
    return field is not None and _section_in(field.annotation) is not None


def _section_in(annotation: Any) -> type[Section] | None:
    """The section a key holds, if it holds one (or none)."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def _section(place: list[str]) -> type[BaseModel]:
    section: type[BaseModel] = Run
    for name in place:
        inner = _section_in(section.model_fields[name].annotation)
        assert inner is not None  # noqa: S101 - `_place` ends at what is no section
        section = inner
    return section
