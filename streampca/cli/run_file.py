"""`RunFile`, the contents of a run file with checked values: every command builds one, too."""

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

COMMAND = "the command"  # the subject of runs that are made of a command's options
ORDER = ("collection", "apply", "prepare", "model", "update", "follow", "neighbors", "run", "output")


@dataclass(frozen=True, eq=False)
class RunFile:
    """Contents of a run file, with checked values.

    Attributes
    ----------
    collection, prepare, model, run, output, update, follow, neighbors
        The sections.
    apply : str or None
        A fitted model to apply; None to fit one.
    hsic : HsicDescription
        Options of a command that no run file stands for.
    given : mapping
        The names of the keys that were given, by section.
    as_written : mapping
        Texts of the run file that held variables, by their place.
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
        return bool(escaped(self._data(complete=True)) == escaped(other._data(complete=True)))

    def __hash__(self) -> int:
        return hash((self.model.kind, self.apply))

    def is_given(self, section: str, name: str) -> bool:
        """Return whether a key was given, as opposed to left at its default."""
        return name in self.given.get(section, ())

    def how(self, **others: Any) -> Run:
        """Return the run that the section `run` describes, with other fields of it: an output, a checkpoint ..."""
        own = {item.name: getattr(self.run, item.name) for item in fields(Run) if item.name not in NOT_WRITTEN}
        return Run(**{**own, "checkpoint": None, **others})

    def to_yaml(self, *, complete: bool = False) -> str:
        """Return the text of the run file, without what no run file may hold.

        Keys at their defaults are left out, or if `complete` given where they apply. Environment variables stay as they
        were written.
        """
        import yaml

        from ..execution.cluster_options import COMMAND_OPTIONS, CONFIGURED

        data = escaped(self._data(complete=complete))
        put_back(data, self.as_written)
        data["collection"].pop("allow_remote", None)  # only a command line may give it
        run = data.get("run", {})
        for name in COMMAND_OPTIONS:
            (run.get("cluster_options") or {}).pop(name, None)
        if "://" in (self.run.cluster or ""):
            run["cluster"] = CONFIGURED
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        breaks = any(mark in text for mark in "\x85\u2028\u2029")  # ends of lines to YAML, which PyYAML leaves bare
        return yaml.safe_dump(data, sort_keys=False) if breaks else text

    def _data(self, *, complete: bool) -> dict[str, Any]:
        """Return the keys that are not at their defaults; if `complete`, also those that are, where they apply."""
        idle = {
            "model": self.apply is not None or self.update.model is not None,
            "prepare": self.apply is not None or self.update.model is not None,
            "update": self.update.model is None,
            "follow": not self.follow.enabled,
            "neighbors": self.output.graph is None,
        }
        data: dict[str, Any] = {}
        kept = self.given.get("model", frozenset()) if self.update.model is not None else frozenset()
        for name in ORDER:
            section = getattr(self, name)
            if name == "apply":
                data |= {} if section is None else {name: section}
                continue
            listed = {
                key: value
                for key, value in _values(section).items()
                if (complete and not idle.get(name))
                or (name == "model" and key in kept)
                or value != default_of(fields_of(type(section))[key])
            }
            if name == "model" and (section.kind != "pca" or (complete and not idle["model"])):
                listed = {"kind": section.kind, **listed}
            if listed or name == "collection":
                data[name] = listed
        return data


def _values(section: Any) -> dict[str, Any]:
    return {name: getattr(section, name) for name in fields_of(type(section)) if name not in NOT_WRITTEN}


def make_run(data: Mapping[str, Any], subject: str = "the run") -> RunFile:
    """Return a run file of plain data.

    Raises
    ------
    ConfigError
        Of the first key that is unknown or has a value that it does not take, by its dotted name; what a command was
        given is named by the command's option instead.
    """
    known, classes = [*SECTIONS, "model", "apply"], {**SECTIONS, "model": _kind_asked(data.get("model"), subject)}
    if subject == COMMAND:
        known, classes = [*known, "hsic"], {**classes, "hsic": HsicDescription}
    for name in data:
        if name not in known:
            hint = nearest(str(name), known) or _elsewhere(name) or f" Known here: {', '.join(known)}."
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
    _check_cluster(sections["run"], subject)
    return RunFile(**sections, apply=apply, given=given)


def _kind_asked(model: Any, subject: str) -> type[Description]:
    """Return the class of the kind that the section of the model names, or the default."""
    kind = model.get("kind", "pca") if isinstance(model, Mapping) else "pca"
    if not isinstance(kind, str) or kind not in KINDS:
        hint = nearest(str(kind), [*KINDS])
        raise ConfigError(f"{subject}: model.kind = {reprlib.repr(kind)}: give one of {', '.join(KINDS)}.{hint}")
    return kind_class(kind)


def _mapping(values: Any, section: str, cls: type, subject: str) -> dict[Any, Any]:
    """Return the keys of a section, none of which is unknown."""
    known = [name for name in fields_of(cls) if name not in NOT_WRITTEN]
    known = (["kind"] if section == "model" else []) + known
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        remedy = f"give keys under it ({', '.join(known)}), or leave it out"
        raise ConfigError(f"{subject}: {section} = {reprlib.repr(values)} is not a section; {remedy}.")
    for name in values:
        if name not in known:
            raise ConfigError(f"{subject}: {_unknown(str(name), section, cls, known)}")
    return dict(values)


def _unknown(name: str, section: str, cls: type, known: list[str]) -> str:
    """Say that a key is unknown, and where it, or one like it, belongs."""
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
    if close := nearest(name, known):
        return what + close.replace("'", f"{section}.", 1).replace("'", "")
    return what + (_elsewhere(name) or f" Known here: {', '.join(known)}.")


def _elsewhere(name: Any) -> str:
    """Say in which sections a key is known, if it is in any."""
    sections = [each for each, cls in SECTIONS.items() if name in fields_of(cls) and name not in NOT_WRITTEN]
    sections += ["model"] if kinds_with(name) else []
    return f" Did you mean {' or '.join(f'{section}.{name}' for section in sections)}?" if sections else ""


def _section(cls: type, section: str, values: Mapping[str, Any], subject: str) -> Any:
    hints = hints_of(cls)

    def about(name: str, value: Any) -> str:
        if subject != COMMAND:
            return f"{section}.{name} = {reprlib.repr(value)}"
        from .options import names_of

        return f"{names_of(f'{section}.{name}')[-1]} {value}"

    typed = {name: _typed(written(hints[name]), value) for name, value in values.items()}
    try:
        return make(cls, typed, about, is_written=True)
    except RequestError as error:
        raise ConfigError(str(error) if subject == COMMAND else f"{subject}: {error}") from None


def _typed(annotation: Any, value: Any) -> Any:
    """Return a value as it is meant where its field takes no text: PyYAML leaves 1e-4 one, and variables are texts."""
    if isinstance(value, str):
        return value_of_text(annotation, value)
    if isinstance(value, date):  # which YAML reads from 1990-05-17
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
    """Refuse kinds of cluster that do not exist, and options of jobs that are unknown or not plain values."""
    if run.cluster is None and run.cluster_options is None:
        return
    from ..execution.cluster_options import checked_options, kind_of

    try:
        kind_of(run.cluster or "local")
        checked_options(run.cluster_options or {})
    except RequestError as error:
        raise ConfigError(f"{'' if subject == COMMAND else f'{subject}: '}{error}") from None
