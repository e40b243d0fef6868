"""`RunFile`, the contents of a run file with checked values, which every command builds as well."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from typing import Annotated, Any, get_args, get_origin

from ..errors import ConfigError, RequestError, nearest
from ..kinds.description import Description, default_of, fields_of, hints_of, make
from ..kinds.hsic import HsicDescription
from ..kinds.neighbors import NeighborsDescription
from ..kinds.registry import KINDS, kind_class, kinds_with
from ..kinds.run import Run
from ..kinds.values import members, value_of_text, written
from .sections import (
    NOT_WRITTEN,
    SECTIONS,
    CollectionSection,
    FollowSection,
    OutputSection,
    PrepareSection,
    RunSection,
    UpdateSection,
)
from .variables import Place, escaped, put_back

COMMAND = "the command"  # subject of messages about a run made from a command's options
ORDER = ("collection", "apply", "prepare", "model", "update", "follow", "neighbors", "run", "output")


@dataclass(frozen=True, eq=False)
class RunFile:
    """Contents of a run file, with checked values.

    Attributes
    ----------
    collection, prepare, model, run, output, update, follow, neighbors
        Sections of the run file.
    apply : str or None
        Path of a fitted model to apply; None to fit one.
    hsic : HsicDescription
        Options of the command ``hsic``, which a run file cannot have.
    given : mapping
        Names of the keys that were given, by section.
    as_written : mapping
        Texts of the run file with environment variables, by their place.
    """

    collection: CollectionSection
    model: Description
    prepare: PrepareSection
    run: RunSection
    output: OutputSection
    update: UpdateSection
    follow: FollowSection
    neighbors: NeighborsDescription
    apply: str | None = None
    hsic: HsicDescription = field(default_factory=HsicDescription)
    given: Mapping[str, frozenset[str]] = field(default_factory=dict)
    as_written: Mapping[Place, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunFile):
            return False
        return bool(escaped(self.data(complete=True)) == escaped(other.data(complete=True)))

    def __hash__(self) -> int:
        return hash((self.model.kind, self.apply))

    def is_given(self, section: str, name: str) -> bool:
        """Return whether a key was given, as opposed to left at its default."""
        return name in self.given.get(section, ())

    def how(self, **others: Any) -> Run:
        """Return the `Run` of the section `run`, with other values of some fields: an output, a checkpoint ..."""
        values = {field.name: getattr(self.run, field.name) for field in fields(Run) if field.name not in NOT_WRITTEN}
        return Run(**{**values, "checkpoint": None, **others})

    def to_yaml(self, *, complete: bool = False) -> str:
        """Return the text of the run file, without keys that only a command line can give.

        Keys at their defaults are left out, unless the text is to be `complete`. Environment variables stay as they
        were written.
        """
        import yaml

        from ..execution.cluster_options import COMMAND_OPTIONS, CONFIGURED

        data = escaped(self.data(complete=complete))
        if self.as_written:
            put_back(data, self.as_written)
        data["collection"].pop("allow_remote", None)
        run = data.get("run", {})
        for name in COMMAND_OPTIONS:
            (run.get("cluster_options") or {}).pop(name, None)
        if "://" in (self.run.cluster or ""):
            run["cluster"] = CONFIGURED
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        # YAML takes these characters for ends of lines, and PyYAML escapes them only where it escapes all of Unicode.
        has_breaks = any(mark in text for mark in "\x85\u2028\u2029")
        return yaml.safe_dump(data, sort_keys=False) if has_breaks else text

    def data(self, *, complete: bool) -> dict[str, Any]:
        """Return the keys with other values than their defaults; if `complete`, all keys of sections that apply."""
        is_idle = {
            "model": self.apply is not None or self.update.model is not None,
            "prepare": self.apply is not None or self.update.model is not None,
            "update": self.update.model is None and not self.update.enabled,
            "follow": not self.follow.enabled,
            "neighbors": self.output.graph is None,
        }
        data: dict[str, Any] = {}
        # An update changes the keys of the model that were given, also those given at their defaults.
        changed = self.given.get("model", frozenset()) if self.update.model is not None else frozenset()
        for name in ORDER:
            section = getattr(self, name)
            if name == "apply":
                data |= {} if section is None else {name: section}
                continue
            listed = {
                key: getattr(section, key)
                for key, field in fields_of(type(section)).items()
                if key not in NOT_WRITTEN
                and (
                    (complete and not is_idle.get(name))
                    or (name == "model" and key in changed)
                    or getattr(section, key) != default_of(field)
                )
            }
            if name == "model" and (section.kind != "pca" or (complete and not is_idle["model"])):
                listed = {"kind": section.kind, **listed}
            if listed or name == "collection":
                data[name] = listed
        return data


def make_run(data: Mapping[str, Any], subject: str = "the run") -> RunFile:
    """Return the run file of plain data, such as YAML or the options of a command.

    Raises
    ------
    ConfigError
        If a key is unknown or has a wrong value. The first is named by its dotted key, or by its option if the data
        come from a command.
    """
    names, classes = [*SECTIONS, "model", "apply"], {**SECTIONS, "model": _kind_class(data.get("model"), subject)}
    if subject == COMMAND:
        names, classes = [*names, "hsic"], {**classes, "hsic": HsicDescription}
    for name in data:
        if name not in names:
            hint = nearest(str(name), names) or _elsewhere(name) or f" Known here: {', '.join(names)}."
            raise ConfigError(f"{subject}: key {name!r} is not known.{hint}")
    sections: dict[str, Any] = {}
    given: dict[str, frozenset[str]] = {}
    for name, cls in classes.items():
        values = _mapping(data.get(name), name, cls, subject)
        if name == "model":
            values.pop("kind", None)
        sections[name], given[name] = _section(cls, name, values, subject), frozenset(values)
    if "source" not in given["collection"]:
        raise ConfigError(f"{subject}: key 'collection.source' is missing; add it.")
    apply = data.get("apply")
    if apply is not None and not isinstance(apply, str):
        raise ConfigError(f"{subject}: apply = {reprlib.repr(apply)}: give the path of a fitted model.")
    if sections["run"].cluster is not None or sections["run"].cluster_options is not None:
        _check_cluster(sections["run"], subject)
    return RunFile(**sections, apply=apply, given=given)


def _kind_class(model: Any, subject: str) -> type[Description]:
    """Return the class of the kind that the section of the model names, or of the default."""
    kind = model.get("kind", "pca") if isinstance(model, Mapping) else "pca"
    if not isinstance(kind, str) or kind not in KINDS:
        hint = nearest(str(kind), [*KINDS])
        raise ConfigError(f"{subject}: model.kind = {reprlib.repr(kind)}: give one of {', '.join(KINDS)}.{hint}")
    return kind_class(kind)


def _mapping(values: Any, section: str, cls: type, subject: str) -> dict[Any, Any]:
    """Return the values of a section by key; refuse unknown keys."""
    keys = [name for name in fields_of(cls) if name not in NOT_WRITTEN]
    keys = (["kind"] if section == "model" else []) + keys
    if values is None:
        return {}
    if values is True and "enabled" in keys:
        return {"enabled": True}
    if not isinstance(values, Mapping):
        remedy = f"give keys under it ({', '.join(keys)}), or leave it out"
        raise ConfigError(f"{subject}: {section} = {reprlib.repr(values)} is not a section; {remedy}.")
    for name in values:
        if name not in keys:
            raise ConfigError(f"{subject}: {_unknown_key(str(name), section, cls, keys)}")
    return dict(values)


def _unknown_key(name: str, section: str, cls: type, keys: list[str]) -> str:
    """Return the message that a key is unknown, with the place where it, or a similar one, belongs."""
    if section == "model":
        kind = cls.kind  # type: ignore[attr-defined]
        if kinds := kinds_with(name):
            listed = f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else kinds[0]
            return (
                f"model.{name} is not a parameter of {kind}, but of {listed}; give kind: {kinds[0]}, or leave it out."
            )
        what = f"model.{name} is not a parameter of {kind}."
    else:
        what = f"{section}.{name} is not a key of run files."
    if hint := nearest(name, keys):
        return what + hint.replace("'", f"{section}.", 1).replace("'", "")
    return what + (_elsewhere(name) or f" Known here: {', '.join(keys)}.")


def _elsewhere(name: Any) -> str:
    """Return a hint at the sections that have a key, if there are any."""
    sections = [section for section, cls in SECTIONS.items() if name in fields_of(cls) and name not in NOT_WRITTEN]
    sections += ["model"] if kinds_with(name) else []
    return f" Did you mean {' or '.join(f'{section}.{name}' for section in sections)}?" if sections else ""


def _section(cls: type, section: str, values: Mapping[str, Any], subject: str) -> Any:
    """Return a section, with checked values; messages name the option of a command."""
    hints = hints_of(cls)

    def about(name: str, value: Any) -> str:
        if subject != COMMAND:
            return f"{section}.{name} = {reprlib.repr(value)}"
        from .options import names_of  # which imports this module

        return f"{names_of(f'{section}.{name}')[-1]} {value}"

    typed = {name: _typed(written(hints[name]), value) for name, value in values.items()}
    try:
        return make(cls, typed, about, is_written=True)
    except RequestError as error:
        raise ConfigError(str(error) if subject == COMMAND else f"{subject}: {error}") from None


def _typed(annotation: Any, value: Any) -> Any:
    """Return a value in the type of its field: PyYAML reads 1e-4 as text, and variables are texts."""
    if isinstance(value, str):
        return value_of_text(annotation, value)
    if isinstance(value, date):  # YAML reads 1990-05-17 as one, and fields hold dates as text
        return value.isoformat()
    for member in members(annotation):
        base = get_args(member)[0] if get_origin(member) is Annotated else member
        kind, parts = get_origin(base), get_args(base)
        if isinstance(value, list) and kind is list:
            return [_typed(parts[0], item) for item in value]
        if isinstance(value, list) and kind is tuple and len(parts) == len(value):
            return [_typed(part, item) for part, item in zip(parts, value, strict=True)]
        if isinstance(value, dict) and kind is dict:
            return {key: _typed(parts[1], item) for key, item in value.items()}
    return value


def _check_cluster(run: RunSection, subject: str) -> None:
    """Refuse an unknown kind of cluster, and options of its jobs that are unknown or not plain values."""
    from ..execution.cluster_options import checked_options, kind_of

    try:
        kind_of(run.cluster or "local")
        checked_options(run.cluster_options or {})
    except RequestError as error:
        raise ConfigError(f"{'' if subject == COMMAND else f'{subject}: '}{error}") from None
