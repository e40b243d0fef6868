"""`Description`: base of the dataclasses that describe a kind of model."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, cast, get_type_hints

from ..errors import RequestError, nearest
from .values import RefusedValueError, accepted, check_of, literals_of, words_of, written

TargetRule = Literal["", "features", "classes", "slices", "number", "actions"]
Subject = Callable[[str, Any], str]
T = TypeVar("T")


class Entry(NamedTuple):
    """Entry of a parameter in a class's docstring: its type and default, and its meaning."""

    type: str
    text: str

    @property
    def first_sentence(self) -> str:
        """First sentence of the meaning."""
        return re.split(r"(?<=[.])\s", self.text, maxsplit=1)[0]

    @property
    def as_written(self) -> str:
        """First sentence for a run file or a command, where "None for all" is written as "all"."""
        return re.sub(r"(;|,? or) None for all", ", or all", self.first_sentence)


class NamedFields:
    """Base of dataclasses whose constructor refuses an unknown keyword with the nearest known name."""

    def __new__(cls, *_: Any, **values: Any) -> Self:
        """Check names; raises TypeError."""
        known = fields_of(cls) if values else {}
        for name in values.keys() - known.keys():
            # A subclass with a constructor of its own may take other names.
            taken = inspect.signature(cls.__init__).parameters.values()
            if all(name != parameter.name and parameter.kind != parameter.VAR_KEYWORD for parameter in taken):
                raise TypeError(f"{name!r} is not a parameter of {cls.__name__}.{nearest(name, list(known))}")
        return super().__new__(cls)


@dataclass(eq=False, repr=False)
class Description(NamedFields):
    """Base of descriptions.

    Attributes
    ----------
    kind : str
        Name of the kind of model.
    grows : bool
        True if samples can be added to its models, by merging parts, updating and following.
    target_rule : str
        Meaning of the target: "" for none; "features" of labels or numbers, "classes", "slices" of sorted numbers, one
        "number" for each sample, or "actions" between samples.
    uses_graph : bool
        True if samples are embedded by the graph of their nearest neighbours.
    axes_parameter : str
        Name of the parameter that counts components, axes or clusters.
    maps_samples : bool
        True if samples are always mapped to features of a kernel.
    """

    kind: ClassVar[str] = ""
    grows: ClassVar[bool] = False
    target_rule: ClassVar[TargetRule] = ""
    uses_graph: ClassVar[bool] = False
    axes_parameter: ClassVar[str] = "n_components"
    maps_samples: ClassVar[bool] = False

    def check(self) -> None:
        """Refuse values that conflict with each other.

        Raises
        ------
        RequestError
        """

    def solved_as(self) -> Description:
        """Return the description whose methods solve this one: another kind for a few values, else itself."""
        return self

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with other values, which are not checked."""
        new = copy.copy(self)  # not `dataclasses.replace`, which would call the constructor of an estimator
        for name, value in changes.items():
            setattr(new, name, value)
        return new

    @property
    def given(self) -> dict[str, Any]:
        """The kind and all values as plain data; a function is given by its name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind, **{name: _plain(value) for name, value in values.items()}}

    def __repr__(self) -> str:
        shown = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if repr(getattr(self, field.name)) != repr(field.default)
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return value


def in_python(name: str, value: Any) -> str:
    """Return the subject of a message about a value in Python."""
    return f"{name} = {value!r}"


def make(cls: type[T], values: Mapping[str, Any], subject: Subject = in_python, *, is_written: bool = False) -> T:
    """Return a description, or a run, with checked values.

    Parameters
    ----------
    cls : type
        The description's class.
    values : mapping of str to object
        Values by the names of fields; other fields have their defaults.
    subject : callable, default=in_python
        Returns the subject of a message from the name of a field and its value.
    is_written : bool, default=False
        True for values from a run file or command: objects of Python are refused.

    Raises
    ------
    RequestError
        If a name is not a field, a value has the wrong type or range, or two values conflict.
    """
    hints, names = hints_of(cls), fields_of(cls)
    for name in values:
        if name not in names:
            owner = getattr(cls, "kind", "") or cls.__name__
            raise RequestError(f"{name} is not a parameter of {owner}.{nearest(name, list(names))}")
    accepted_values = {}
    for name, value in values.items():
        check = check_of(hints[name])
        if value is names[name].default and check is None:  # most are, and a test holds that defaults are accepted
            accepted_values[name] = value
            continue
        try:
            if is_written:  # first, as the message of a field's own check can mention objects of Python
                accepted(written(hints[name]), value)
            accepted_values[name] = accepted(hints[name], value) if check is None else check(value)
        except RequestError as error:  # from a field's own check
            if re.match(rf"{name} ?=", str(error)):
                raise
            raise RequestError(f"{subject(name, value)}: {error}") from None
        except RefusedValueError:
            entry = entries_of(cls).get(name, Entry("", ""))
            meaning = entry.as_written if is_written else entry.first_sentence
            explanation = f" ({meaning[0].lower()}{meaning[1:].rstrip('.')})" if meaning else ""
            allowed = words_of(hints[name], none="null", in_python=not is_written)
            hint = nearest(value, literals_of(hints[name])) if isinstance(value, str) else ""
            raise RequestError(f"{subject(name, value)}: give {allowed}{explanation}.{hint}") from None
    description = cls(**accepted_values)
    if isinstance(description, Description):
        description.check()
    return description


def checked(description: Description) -> Description:
    """Return the plain description of an estimator or a description, with checked values."""
    cls = description_class(type(description))
    return make(cls, {name: getattr(description, name) for name in fields_of(cls)})


def description_class(cls: type) -> type[Description]:
    """Return the class of plain descriptions from which an estimator's class is derived, or the class itself."""
    from .registry import KINDS, kind_class

    kind = getattr(cls, "kind", None)
    return kind_class(kind) if kind in KINDS else cls


F = TypeVar("F", bound=Callable[..., Any])


def _cached(function: F) -> F:
    """Cache the results of a function of a class; mypy does not accept classes of dataclasses as hashable."""
    return cast("F", cache(function))


@_cached
def hints_of(cls: Any) -> dict[str, Any]:
    """Return the annotations of a class's fields, evaluated."""
    return get_type_hints(cls, include_extras=True)


@_cached
def fields_of(cls: Any) -> dict[str, Field[Any]]:
    """Return the fields of a description or a run by name, positional ones first."""
    return {field.name: field for field in sorted(fields(cls), key=lambda field: bool(field.kw_only))}


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


@_cached
def entries_of(cls: Any) -> dict[str, Entry]:
    """Return the entries of a class's fields from the docstrings of the class and its bases; empty under ``-OO``."""
    entries: dict[str, Entry] = {}
    for base in reversed(cls.__mro__):
        entries |= dict(entries_in(base.__dict__.get("__doc__")))
    return {name: entries[name] for name in fields_of(cls) if name in entries}


def entries_in(doc: str | None) -> Iterator[tuple[str, Entry]]:
    """Yield the names and entries of the section "Parameters" of a docstring, which may be missing."""
    doc = inspect.cleandoc(doc or "")
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", doc, re.MULTILINE | re.DOTALL)
    for entry in re.finditer(
        r"^(\w+) : ([^\n]*)\n((?:[ \t]+[^\n]*\n?|\n)*)", section[1] if section else "", re.MULTILINE
    ):
        yield entry[1], Entry(entry[2], " ".join(entry[3].split()))
