"""Run files: read as YAML by the safe loader, and checked against the kinds of model and the `sections`.

Unknown and doubled keys are refused, with the nearest known name. A run file may come from somebody else, so it must
not choose programs to run or addresses to connect to, see also `variables`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import yaml

from ..errors import ConfigError, first_line
from ..execution.cluster_options import COMMAND_OPTIONS
from ..kinds.description import fields_of, hints_of
from ..kinds.pca import PCADescription
from ..kinds.registry import KINDS, kind_class
from ..kinds.values import written
from ..readers.paths import check_not_remote
from ..storage.disk import expanded, open_regular
from ..units import format_bytes
from .run_file import RunFile, make_run
from .sections import PATHS, SECTIONS
from .variables import VARIABLE, Place, replaced

LONGEST = 256 * 2**10  # bytes of a run file: PyYAML reads about 100 KiB a second
MOST_VALUES = 100_000  # values in a run file with its aliases written out, which can grow exponentially
# Tags of the values of a run file. Values of others, such as bytes (!!binary), sets and ordered mappings, would pass
# the checks of texts for variables and addresses.
TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp", "seq", "map")
)
MERGE_TAG = "tag:yaml.org,2002:merge"  # of the key <<, which a mapping may have several times


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
        Accept URLs, in the file and in lists that it names.
    allow_env : collection of str
        Names of environment variables that are replaced in all texts, also in URLs and options of clusters; others are
        replaced in local paths and numbers only.

    Raises
    ------
    ConfigError
        If the file is missing, is not YAML, or has unknown or doubled keys or wrong values; if it names a scheduler's
        address or a command of a cluster; or a variable that is not set, or not allowed at its place.
    RequestError
        If it names a URL without `allow_remote`.
    """
    subject, data = f"run file {path}", _read(path)
    # The file alone is checked, before the user's own overrides: these may name commands and addresses.
    _refuse_foreign_code(data, subject)
    from_file, _ = replaced(data, subject, partial(takes_variables, kind=_kind_of(data)), allow_env)
    _refuse_foreign_code(from_file, subject)
    _check_remote(from_file, subject, allowed=allow_remote)
    if allow_remote and isinstance(data.get("collection"), dict):
        data["collection"]["allow_remote"] = True
    for override in overrides:
        _apply_override(data, override)
    data, as_written = replaced(data, subject, partial(takes_variables, kind=_kind_of(data)), allow_env)
    return replace(make_run(data, subject), as_written=as_written)


def is_run_file(path: str) -> bool:
    """Return whether the keys of a file are those of run files, whatever their values."""
    try:
        data = _read(path)
    except ConfigError:
        return False
    keys = {name: fields_of(section) for name, section in SECTIONS.items()}
    return isinstance(data.get("collection"), dict) and all(
        name in ("model", "apply") or (name in keys and (section is None or {*section} <= {*keys[name]}))
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


def _kind_of(data: Mapping[str, Any]) -> str:
    """Return the kind of model of a run file; the default for an unknown one, which is refused later."""
    model = data.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    return kind if isinstance(kind, str) and kind in KINDS else PCADescription.kind


def takes_variables(place: Place, kind: str) -> bool:
    """Return whether the key at a place holds a path or a number; True for an unknown key, which is refused later."""
    section, *names = place[:2]
    key = ".".join(str(part) for part in place[:2])
    cls = kind_class(kind) if section == "model" else SECTIONS.get(section)  # type: ignore[arg-type]
    hints = [] if cls is None else [hints_of(cls)[name] for name in names if name in fields_of(cls)]
    if key == "model.kind":
        return False
    return not hints or key in PATHS or any({int, float} & set(_types_in(written(hint))) for hint in hints)


def _types_in(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is made of."""
    parts = get_args(annotation)
    yield from (leaf for part in parts for leaf in _types_in(part))
    if not parts:
        yield annotation


def _check_remote(data: dict[str, Any], subject: str, *, allowed: bool) -> None:
    """Refuse URLs that a run file names, unless the command line allows them."""
    if isinstance(collection := data.get("collection"), dict) and "allow_remote" in collection:
        raise ConfigError(f"{subject}: collection.allow_remote is for the command line; give --allow-remote there.")
    for section, values in data.items() if not allowed else ():
        if section == "apply":
            check_not_remote(values, subject)
        elif isinstance(values, dict):
            for value in values.values():
                check_not_remote(value, subject, "written" if section == "output" else "fetched")


def _refuse_foreign_code(data: dict[str, Any], subject: str) -> None:
    """Refuse commands of a cluster, and the address of a scheduler, which could send this process any code to run."""
    run = data["run"] if isinstance(data.get("run"), dict) else {}
    options = run.get("cluster_options")
    for name in COMMAND_OPTIONS:
        if isinstance(options, dict) and name in options:
            key = f"run.cluster_options.{name}"
            raise ConfigError(
                f"{subject}: {key} chooses what a cluster runs; give it on the command line: --set {key}=..."
            )
    for key, value in run.items():
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
    """Yield the texts in a value, also those in lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item)


def _apply_override(data: dict[str, Any], override: str) -> None:
    """Set the value of a dotted key, making its sections."""
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
    """The safe loader, which also refuses doubled keys: YAML forbids them, and PyYAML keeps the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    """Return the mapping of a node, without doubled keys."""
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == MERGE_TAG:
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, Hashable):
            break  # construct_mapping raises the error, with the line
        if key in seen:
            raise ConfigError(
                f"key {key!r} is given twice, the second time in line {key_node.start_mark.line + 1}; keep one."
            )
        seen.add(key)
    return loader.construct_mapping(node)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _parsed(text: str, subject: str) -> Any:
    """Return YAML text as plain data."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None and _count_values(node, {}) > MOST_VALUES:
            raise ConfigError(f"its aliases stand for more than {MOST_VALUES} values; leave them out.")
        return None if node is None else loader.construct_document(node)
    except ConfigError as error:
        raise ConfigError(f"{subject}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
        # Inside the braces of a mapping, YAML takes those of ${...} for its own.
        is_variable = mark is not None and VARIABLE.match(text, max(mark.index - 1, 0))
        remedy = ": put the text that holds ${...} in quotation marks" if is_variable else ""
        raise ConfigError(f"{subject} is not YAML: {problem}{line}; correct that line{remedy}.") from None
    except RecursionError:
        raise ConfigError(f"{subject} is nested too deeply; a run has three levels.") from None
    except (ValueError, TypeError, AttributeError, OverflowError) as error:  # of a date, a number or a tagged value
        raise ConfigError(
            f"{subject} holds a value that cannot be read: {first_line(error)}; put it in quotation marks."
        ) from None


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Count the values in a node, an alias as often as it is used; refuse values with tags of other types."""
    if id(node) not in counts:
        if node.tag not in TAGS and node.tag != MERGE_TAG:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise ConfigError(
                f"line {node.start_mark.line + 1} has a value with the tag {tag}, and run files hold texts, numbers, "
                "lists and mappings; write it as one of these."
            )
        counts[id(node)] = 1  # ends the recursion of a node that contains itself, which constructing it refuses
        parts: list[Any] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        counts[id(node)] = 1 + sum(_count_values(part, counts) for part in parts)
    return counts[id(node)]
