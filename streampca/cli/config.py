"""Run files: YAML read by the safe loader only, and checked against the declarations of `options`.

Unknown and doubled keys are refused, with the nearest known name. A run file may be somebody else's: it chooses neither
what is run nor what this machine connects to, see also `variables`.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from ..errors import ConfigError, first_line, nearest
from ..execution.cluster_options import COMMAND_OPTIONS
from ..readers.paths import check_not_remote
from ..storage.disk import expanded, open_regular
from ..units import format_bytes
from .options import PATHS, Run, command_line_of, field_of, names_of, section_in, section_of
from .variables import VARIABLE, Place, replaced

LONGEST = 256 * 2**10  # bytes of a run file: PyYAML reads about 100 KiB a second
MOST_VALUES = 100_000  # of a run file, with aliases written out
COMMAND = "the command"  # the subject of runs that are made of a command's options
# Tags of what a run file is made of. Others become values that are checked as no text and validated as one: bytes
# (!!binary), sets, ordered mappings.
TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp", "seq", "map")
)
MERGE_TAG = "tag:yaml.org,2002:merge"  # of the key <<, which may stand in a mapping as often as one likes


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of run files."""
    about = "https://json-schema.org/draft/2020-12/schema"
    schema = Run.model_json_schema()
    del schema["$defs"]["CollectionConfig"]["properties"]["allow_remote"]  # for the command line
    return {"$schema": about, **schema, "title": "streampca run file"}


def load_run(
    path: str, overrides: Iterable[str] = (), *, allow_remote: bool = False, allow_env: Collection[str] = ()
) -> Run:
    """Read a run file.

    Parameters
    ----------
    path : str
        A YAML file.
    overrides : iterable of str
        ``"fit.n_components=20"``: a dotted key and a YAML value, applied in order.
    allow_remote : bool, default=False
        Let the file name URLs to be read, itself or in lists.
    allow_env : collection of str
        Names of environment variables that are replaced in all of its texts, URLs and options of clusters among them;
        others are in local paths and numbers only.

    Raises
    ------
    ConfigError
        If it is missing, not YAML, or has unknown or doubled keys or wrong values; names a scheduler's address, or what
        a cluster runs; or a variable that is not set, or not allowed where it stands.
    RequestError
        If it names a URL to be read, which is not allowed.
    """
    subject, data = f"run file {path}", _read(path)
    _refuse_commands(data, subject)
    _refuse_address(data, subject)
    from_file, _ = replaced(data, subject, _takes_variables, allow_env)
    _refuse_address(from_file, subject)
    _check_remote(from_file, subject, allowed=allow_remote)
    if allow_remote and isinstance(data.get("collection"), dict):
        data["collection"]["allow_remote"] = True
    for override in overrides:
        _apply_override(data, override)
    data, written = replaced(data, subject, _takes_variables, allow_env)
    run = make_run(data, subject)
    run._written = written
    return run


def is_run_file(path: str) -> bool:
    """Return True of a run file, whatever its environment variables stand for."""
    try:
        Run.model_validate(_read(path))
    except ConfigError:
        return False
    except ValidationError as error:
        inputs = [item["input"] for item in error.errors(include_url=False)]
        return all(isinstance(text, str) and VARIABLE.search(text) for text in inputs)
    return True


def _read(path: str) -> dict[str, Any]:
    """Return the contents of a run file as plain data."""
    try:
        with open_regular(expanded(path)) as file:
            size, content = os.fstat(file.fileno()).st_size, file.read(LONGEST + 1)
        if max(size, len(content)) > LONGEST:
            raise ConfigError(
                f"run file {path} has {format_bytes(size)}, and run files have at most {format_bytes(LONGEST)}; put "
                "long lists of paths in a text file, and give it as '@list.txt'."
            )
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"run file {path} does not exist; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"run file {path} cannot be read: {first_line(error)}; give a text file in YAML.") from None
    data = _parsed(text, f"run file {path}")
    if not isinstance(data, dict):
        raise ConfigError(f"run file {path} holds no keys; it needs at least 'collection: {{source: PATH}}'.")
    return data


def _takes_variables(place: Place) -> bool:
    """Return whether the key at a place takes a path or a number; an unknown key does, and is refused by its name."""
    key = _place(place)
    try:
        field = field_of(".".join(key))
    except KeyError:
        return True
    return command_line_of(field).metavar in PATHS or bool({int, float} & set(_types_in(field.annotation)))


def _types_in(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is made of."""
    parts = get_args(annotation)
    yield from (each for part in parts for each in _types_in(part))
    if not parts:
        yield annotation


def _check_remote(data: dict[str, Any], subject: str, *, allowed: bool) -> None:
    """Refuse URLs that a run file names to be read, unless they are allowed, which the file itself cannot do."""
    if isinstance(collection := data.get("collection"), dict) and "allow_remote" in collection:
        raise ConfigError(f"{subject}: collection.allow_remote is for the command line; give --allow-remote there.")
    for section, values in data.items() if not allowed else ():
        if section == "model":
            check_not_remote(values, subject)
        elif section != "output" and isinstance(values, dict):  # outputs at URLs are refused whoever names them
            for value in values.values():
                check_not_remote(value, subject)


def make_run(data: Mapping[str, Any], subject: str = "the run") -> Run:
    """Validate plain data as a run; errors name the key."""
    try:
        return Run.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, subject)) from None


def _refuse_commands(data: dict[str, Any], subject: str) -> None:
    """Refuse options by which a run file, perhaps somebody else's, would choose what is run on a cluster."""
    execution = data.get("execution")
    options = execution.get("options") if isinstance(execution, dict) else None
    for name in COMMAND_OPTIONS:
        if isinstance(options, dict) and name in options:
            key = f"execution.options.{name}"
            raise ConfigError(
                f"{subject}: {key} chooses what a cluster runs; give it on the command line: --set {key}=..."
            )


def _refuse_address(data: dict[str, Any], subject: str) -> None:
    """Refuse the address of a scheduler: it could send this process anything to run."""
    execution = data.get("execution")
    for key, value in execution.items() if isinstance(execution, dict) else ():
        if key != "options" and any("://" in text for text in _texts_in(value)):
            raise ConfigError(
                f"{subject}: execution.{key} names a scheduler's address, which a run file cannot choose; if you trust "
                "what runs there, write execution: {kind: dask}, and set DASK_SCHEDULER_ADDRESS or give --set "
                "execution.cluster=..."
            )


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts that a value holds, in lists and mappings too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(each)


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
                f"key {key!r} is given twice, the second time in line {key_node.start_mark.line + 1}; keep one."
            )
        seen.add(key)
    return loader.construct_mapping(node)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _parsed(text: str, subject: str) -> Any:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            _check_tags(node, set())
        if node is not None and _expanded(node, {}) > MOST_VALUES:
            raise ConfigError(f"its aliases stand for more than {MOST_VALUES} values; leave them out.")
        return None if node is None else loader.construct_document(node)
    except ConfigError as error:
        raise ConfigError(f"{subject}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
        bare = mark is not None and VARIABLE.match(text, max(mark.index - 1, 0))  # a variable, inside braces
        how = ": put the text that holds ${...} in quotation marks" if bare else ""
        raise ConfigError(f"{subject} is not YAML: {problem}{line}; correct that line{how}.") from None
    except RecursionError:
        raise ConfigError(f"{subject} is nested too deeply; a run has three levels.") from None
    except (ValueError, TypeError, AttributeError, OverflowError) as error:  # of a date, a number or a tagged value
        raise ConfigError(
            f"{subject} holds a value that cannot be read: {first_line(error)}; put it in quotation marks."
        ) from None


def _check_tags(node: yaml.Node, seen: set[int]) -> None:
    """Refuse a node, or one within it, that is no plain text, number, date, list or mapping."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if node.tag not in TAGS and node.tag != MERGE_TAG:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise ConfigError(
            f"line {node.start_mark.line + 1} has a value with the tag {tag}, and run files hold texts, numbers, lists "
            "and mappings; write it as one of these."
        )
    parts = node.value if isinstance(node, (yaml.SequenceNode, yaml.MappingNode)) else ()
    for part in parts:
        for each in part if isinstance(part, tuple) else (part,):
            _check_tags(each, seen)


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values that a node stands for, each alias as often as it is used."""
    if id(node) not in known:
        known[id(node)] = 1  # a node that holds itself is refused when it is constructed
        parts: list[Any] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]


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
            known = list(section_of(place[:-1]).model_fields)
            sections = [name for name in Run.model_fields if _is_section([name])]
            elsewhere = [f"{name}.{place[-1]}" for name in sections if place[-1] in section_of([name]).model_fields]
            if elsewhere:
                return f"{subject}: key {key!r} is not known. Did you mean {' or '.join(elsewhere)}?"
            hint = nearest(place[-1], known) or f" Known here: {', '.join(known)}."
            return f"{subject}: key {key!r} is not known.{hint}"
        case "missing" if len(first["loc"]) == len(place):
            return f"{subject}: key {key!r} is missing; add it."
        case "model_type":
            known = list(section_of(place).model_fields)
            remedy = f"give keys under it ({', '.join(known)}), or leave it out"
            return f"{subject}: {key} = {given} is not a section; {remedy}."
        case "invalid_key":
            return f"{subject}: key {given} is not a name; correct it."
    if first["type"] == "missing":
        first["msg"] = "input has too few entries"
    message = first["msg"].removeprefix("Value error, ").removesuffix(".")
    meaning = field_of(key).description
    named = names_of(key)[0] if subject == COMMAND else f"{subject}: {key} ="
    return f"{named} {given}: {message[0].lower()}{message[1:]}; correct it{f' ({meaning})' if meaning else ''}."


def _place(loc: tuple[int | str, ...]) -> list[str]:
    """Return the part of pydantic's location that people typed: sections and a key, without branches of a union."""
    place: list[str] = []
    for part in loc:
        place.append(str(part))
        if not _is_section(place):
            break
    return place


def _is_section(place: list[str]) -> bool:
    *sections, last = place
    field = section_of(sections).model_fields.get(last)
    return field is not None and section_in(field.annotation) is not None
