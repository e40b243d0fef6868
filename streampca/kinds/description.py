"""`Description`: base of the dataclasses that say what a kind of model is asked for."""

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
        """First sentence, where None for all components is written as all."""
        return re.sub(r"(;|,? or) None for all", ", or all", self.first_sentence)


@dataclass(eq=False, repr=False)
class Description:
    """Base of descriptions.

    Attributes
    ----------
    kind : str
        Name of the kind of model.
    grows : bool
        Whether samples can be added to its models: by parts that are merged, updating and following.
    target_rule : str
        How the kind reads its target: "" for none; as label features ("features"), classes, slices of sorted numbers,
        one number a sample, or actions between samples.
    uses_graph : bool
        Whether samples are embedded by the graph of their nearest neighbours.
    maps_samples : bool
        Whether samples always go through the feature map of a kernel.
    """

    kind: ClassVar[str] = ""
    grows: ClassVar[bool] = False
    target_rule: ClassVar[TargetRule] = ""
    uses_graph: ClassVar[bool] = False
    maps_samples: ClassVar[bool] = False

    def check(self) -> None:
        """Refuse values that do not go together.

        Raises
        ------
        RequestError
        """

    def solved_as(self) -> Description:
        """Return the description of the kind whose methods solve this one; itself for all but a few values."""
        return self

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with other values, which are not checked."""
        new = copy.copy(self)
        for name, value in changes.items():
            setattr(new, name, value)
        return new

    @property
    def given(self) -> dict[str, Any]:
        """The kind and all values as plain data; a function is known by its name."""
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
    """Return the subject of a message about a value given in Python."""
    return f"{name} = {value!r}"


def make(cls: type[T], values: Mapping[str, Any], subject: Subject = in_python, *, is_written: bool = False) -> T:
    """Return a description, or a run, with checked values.

    Parameters
    ----------
    cls : type
        The description's class.
    values : mapping of str to object
        Values by the names of fields; fields that are left out have their defaults.
    subject : callable, default=in_python
        Returns how a message names a field and its value, as these were given.
    is_written : bool, default=False
        Whether the values stand in a run file or command: objects of Python are refused.

    Raises
    ------
    RequestError
        If a name is not a field, a value is not of its field's type or range, or two of them do not go together.
    """
    hints, known = hints_of(cls), fields_of(cls)
    for name in values:
        if name not in known:
            whose = getattr(cls, "kind", "") or cls.__name__
            raise RequestError(f"{name} is not a parameter of {whose}.{nearest(name, list(known))}")
    plain = {}
    for name, value in values.items():
        check = check_of(hints[name])
        try:
            if is_written:  # first, as a check of its own speaks of objects of Python
                accepted(written(hints[name]), value)
            plain[name] = accepted(hints[name], value) if check is None else check(value)
        except RequestError as error:  # of a check of its own
            if re.match(rf"{name} ?=", str(error)):
                raise
            raise RequestError(f"{subject(name, value)}: {error}") from None
        except RefusedValueError:
            entry = entries_of(cls).get(name, Entry("", ""))
            meaning = entry.as_written if is_written else entry.first_sentence
            about = f" ({meaning[0].lower()}{meaning[1:].rstrip('.')})" if meaning else ""
            allowed = words_of(hints[name], none="null", in_python=not is_written)
            hint = nearest(value, literals_of(hints[name])) if isinstance(value, str) else ""
            raise RequestError(f"{subject(name, value)}: give {allowed}{about}.{hint}") from None
    description = cls(**plain)
    if isinstance(description, Description):
        description.check()
    return description


def checked(description: Description) -> Description:
    """Return the plain description that an estimator, or a description, holds, with checked values."""
    cls = description_class(type(description))
    return make(cls, {name: getattr(description, name) for name in fields_of(cls)})


def description_class(cls: type) -> type[Description]:
    """Return the class of plain descriptions that an estimator's class is made from, or the class itself."""
    from .registry import KINDS, kind_class

    kind = getattr(cls, "kind", None)
    return kind_class(kind) if kind in KINDS else cls


F = TypeVar("F", bound=Callable[..., Any])


def _cached(function: F) -> F:
    """Keep the results of a function of a class; mypy does not take classes of dataclasses for hashable."""
    return cast("F", cache(function))


@_cached
def hints_of(cls: Any) -> dict[str, Any]:
    """Return the annotations of a class's fields, evaluated."""
    return get_type_hints(cls, include_extras=True)


@_cached
def fields_of(cls: Any) -> dict[str, Field[Any]]:
    """Return the fields of a description or a run by name: what is given by position first."""
    return {field.name: field for field in sorted(fields(cls), key=lambda field: bool(field.kw_only))}


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


@_cached
def entries_of(cls: Any) -> dict[str, Entry]:
    """Return the entries of a class's fields from the docstrings of the class and its bases; empty under ``-OO``."""
    found: dict[str, Entry] = {}
    for base in reversed(cls.__mro__):
        found |= dict(entries_in(base.__dict__.get("__doc__")))
    return {name: found[name] for name in fields_of(cls) if name in found}


def entries_in(doc: str | None) -> Iterator[tuple[str, Entry]]:
    """Yield the names and entries of the section "Parameters" of a docstring, which may be missing."""
    doc = inspect.cleandoc(doc or "")
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", doc, re.MULTILINE | re.DOTALL)
    for entry in re.finditer(
        r"^(\w+) : ([^\n]*)\n((?:[ \t]+[^\n]*\n?|\n)*)", section[1] if section else "", re.MULTILINE
    ):
        yield entry[1], Entry(entry[2], " ".join(entry[3].split()))
