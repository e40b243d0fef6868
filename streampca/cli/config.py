"""Run files: YAML read by the safe loader only, and checked against the kinds of model and the `sections`.

Unknown and doubled keys are refused, with the nearest known name. A run file may be somebody else's: it chooses neither
what is run nor what this machine connects to, see also `variables`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args

import yaml

from ..errors import ConfigError, first_line
from ..execution.cluster_options import COMMAND_OPTIONS
from ..kinds.description import fields_of, hints_of
from ..kinds.registry import KINDS, kind_class
from ..kinds.values import written
from ..readers.paths import check_not_remote
from ..storage.disk import expanded, open_regular
from ..units import format_bytes
from .run_file import RunFile, make_run
from .sections import PATHS, SECTIONS
from .variables import VARIABLE, Place, replaced

LONGEST = 256 * 2**10  # bytes of a run file: PyYAML reads about 100 KiB a second
MOST_VALUES = 100_000  # of a run file, with aliases written out
# Tags of what a run file is made of. Others become values that are checked as no text and validated as one: bytes
# (!!binary), sets, ordered mappings.
TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp", "seq", "map")
)
MERGE_TAG = "tag:yaml.org,2002:merge"  # of the key <<, which may stand in a mapping as often as one likes


def load_run(
    path: str, overrides: Iterable[str] = (), *, allow_remote: bool = False, allow_env: Collection[str] = ()
) -> RunFile:
    """Read a run file.

    Parameters
    ----------
    path : str
        A YAML file.
    overrides : iterable of str
        ``"model.n_components=20"``: a dotted key and a YAML value, applied in order.
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
    from_file, _ = replaced(data, subject, takes_variables, allow_env)
    _refuse_address(from_file, subject)
    _check_remote(from_file, subject, allowed=allow_remote)
    if allow_remote and isinstance(data.get("collection"), dict):
        data["collection"]["allow_remote"] = True
    for override in overrides:
        _apply_override(data, override)
    data, as_written = replaced(data, subject, takes_variables, allow_env)
    return replace(make_run(data, subject), as_written=as_written)


def is_run_file(path: str) -> bool:
    """Return True of a file whose keys are those of run files, whatever their values."""
    try:
        data = _read(path)
    except ConfigError:
        return False
    known = {name: fields_of(section) for name, section in SECTIONS.items()}
    return isinstance(data.get("collection"), dict) and all(
        name in ("model", "apply") or (name in known and (section is None or {*section} <= {*known[name]}))
        for name, section in data.items()
    )


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


def takes_variables(place: Place) -> bool:
    """Return whether the key at a place takes a path or a number; an unknown key does, and is refused by its name."""
    section, *names = place[:2]
    key = ".".join(str(part) for part in place[:2])
    if section == "model" and names:
        classes: list[type] = [kind_class(kind) for kind in KINDS]
    else:
        classes = [SECTIONS[section]] if section in SECTIONS else []
    hints = [hints_of(cls)[name] for cls in classes for name in names if name in fields_of(cls)]
    if key == "model.kind":
        return False
    return not hints or key in PATHS or any({int, float} & set(_types_in(written(hint))) for hint in hints)


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
        if section == "apply":
            check_not_remote(values, subject)
        elif section != "output" and isinstance(values, dict):  # outputs at URLs are refused whoever names them
            for value in values.values():
                check_not_remote(value, subject)


def _refuse_commands(data: dict[str, Any], subject: str) -> None:
    """Refuse options by which a run file, perhaps somebody else's, would choose what is run on a cluster."""
    run = data.get("run")
    options = run.get("cluster_options") if isinstance(run, dict) else None
    for name in COMMAND_OPTIONS:
        if isinstance(options, dict) and name in options:
            key = f"run.cluster_options.{name}"
            raise ConfigError(
                f"{subject}: {key} chooses what a cluster runs; give it on the command line: --set {key}=..."
            )


def _refuse_address(data: dict[str, Any], subject: str) -> None:
    """Refuse the address of a scheduler: it could send this process anything to run."""
    run = data.get("run")
    for key, value in run.items() if isinstance(run, dict) else ():
        if not any("://" in text for text in _texts_in(value)):
            continue
        if key == "scratch":
            raise ConfigError(
                f"{subject}: run.scratch = {value!r} is an address, and a scratch copy lies on this machine; give a "
                "folder, or leave it out."
            )
        if key == "cluster_options":
            raise ConfigError(
                f"{subject}: run.cluster_options holds an address, which a run file cannot choose; if you trust what "
                "is there, give that option on the command line: --set run.cluster_options.NAME=..."
            )
        raise ConfigError(
            f"{subject}: run.{key} names a scheduler's address, which a run file cannot choose; if you trust what runs "
            "there, write run: {cluster: configured}, and set DASK_SCHEDULER_ADDRESS or give --set run.cluster=..."
        )


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts that a value holds, in lists and mappings too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item)


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r} is not KEY=VALUE; write for example model.n_components=20.")
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
