"""Record of how a collection was opened: plain data, stored in a model to open the same samples again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import index as as_index
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import ModelError, RequestError, without_secrets
from ..kinds.description import hints_of, make
from ..kinds.opening import DtypeName, Opening, Value
from ..kinds.values import RefusedValueError, accepted
from ..units import counted

MOST_KEPT = 1_000  # longest list of paths or indices that is kept: attributes of a model are small
ELSEWHERE = frozenset({"listing", "allow_remote"})  # options of a run, which do not affect its samples
COMPOSED = frozenset({"patches", "samples", "labels", "where"})  # applied in sequence, each to the result so far
# Options that say what a sample is, whatever the source, as a record holds them.
OF_SAMPLES: dict[str, Any] = {
    "key": str,
    "sample_axes": list[int | str],
    "select": list[tuple[int | str, int | tuple[int | None, int | None, int | None]]],
    "sel": list[tuple[str, Value | tuple[Value | None, Value | None]]],
    "patches": int | list[int] | dict[Literal["size", "step"], int | list[int]],
    "fill_value": Value,
    "dtype": DtypeName,
}
# Options of one source, as a record holds them.
OF_SOURCE: dict[str, Any] = {
    "samples": dict[Literal["slice"], tuple[int | None, int | None, int | None]] | list[int | bool],
    "labels": str | list[Value | bool],
    **{name: hints_of(Opening)[name] for name in ("where", "on_bad_file", "keep_orientation", "coordinates")},
    "duplicates": hints_of(Opening)["duplicates"],
}


class GuessedAxes(NamedTuple):
    """Axes of an array, by name or number, that were assigned to one sample and to the samples by position alone."""

    sample: tuple[int | str, ...]
    samples: tuple[int | str, ...]

    def line(self) -> str:
        """Return the line that tells the guess, and the option that overrides it."""
        along = ", ".join(f"{axis}" for axis in self.samples)
        of_one = ",".join(map(str, self.sample))
        return (
            f"samples are taken along axis {along}, by its position alone; --sample-axes (sample_axes) names the axes "
            f"of one sample, here {of_one}"
        )


class ArrayAxes(NamedTuple):
    """Axes of a whole array: their names, none if it has no names, their number, and those that count samples."""

    names: tuple[str, ...]
    n_axes: int
    samples: tuple[int, ...]

    def number(self, axis: Any) -> int | None:
        """Return the number of an axis, counted from 0; None for a name that no axis has, as of a coordinate."""
        if axis in self.names:
            return self.names.index(axis)
        is_number = not isinstance(axis, str) or axis.removeprefix("-").isdecimal()
        return int(axis) % self.n_axes if is_number else None

    def normal(self, axis: Any) -> int | str:
        """Return an axis in its normal form: a name as it is, a number counted from 0."""
        number = None if axis in self.names else self.number(axis)
        return axis if number is None else number


@dataclass(frozen=True)
class OpeningRecord:
    """Record of how a collection was opened.

    Attributes
    ----------
    source : str, list of str or None
        Paths, as given to `open_collection`; None for an object.
    options : mapping of str to Any
        Options of `open_collection` that were given, as given.
    not_kept : tuple of str
        Names of options that were given as arrays or long lists, and are not kept.
    guessed : bool
        Whether `sample_axes` was not given, but chosen by position; the record holds for any later default.
    counting : tuple of int or str
        Axes in `select` and `sel` that count samples, so that the part of them that was selected is of one source.
    columns : tuple of str
        Names of the columns of a table; empty for other sources, and for tables of more columns than are kept.
    """

    source: str | list[str] | None
    options: Mapping[str, Any]
    not_kept: tuple[str, ...] = ()
    guessed: bool = False
    counting: tuple[int | str, ...] = ()
    columns: tuple[str, ...] = ()

    def again(self, more: Opening) -> OpeningRecord:
        """Return the record of a collection opened with more options; an option applied twice cannot be kept."""
        added = given_of(more)
        twice = COMPOSED & {*self.options, *self.not_kept} if COMPOSED & added.keys() else ()
        options = {name: value for name, value in {**self.options, **added}.items() if name not in twice}
        return replace(self, options=options, not_kept=(*self.not_kept, *sorted({*twice} - {*self.not_kept})))

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        options = {name: _plain(name, value) for name, value in self.options.items()}
        lost = tuple(name for name, value in options.items() if value is None)
        return {
            "source": self.source,
            "options": {name: value for name, value in options.items() if value is not None},
            "not_kept": [*self.not_kept, *lost],
            **({"guessed": True} if self.guessed else {}),
            **({"counting": [*self.counting]} if self.counting else {}),
            **({"columns": [*self.columns]} if self.columns else {}),
        }

    @classmethod
    def from_json(cls, data: Any, model: str, *, remedy: str = "fit it again") -> OpeningRecord:
        """Inverse of `to_json`, for the record that a model holds; options of a run in it are left out.

        Raises
        ------
        ModelError
            If the data are not a record, or an option has a value that it does not allow.
        """
        try:
            stored = {name: value for name, value in data["options"].items() if name not in ELSEWHERE}
            for name, value in stored.items():
                accepted({**OF_SAMPLES, **OF_SOURCE}[name], value)
            options = {name: _given(name, value) for name, value in stored.items()}
            make(Opening, options)
            source = accepted(str | list[str] | None, data["source"])
            not_kept, guessed = accepted(list[str], data["not_kept"]), accepted(bool, data.get("guessed", False))
            counting = accepted(list[int | str], data.get("counting", []))
            columns = accepted(list[str], data.get("columns", []))
        except (RefusedValueError, RequestError, LookupError, TypeError, ValueError, AttributeError):
            raise ModelError(f"{model} holds a damaged record of how its samples were opened; {remedy}.") from None
        return cls(source, options, tuple(not_kept), guessed, tuple(counting), tuple(columns))

    def check_columns(self, columns: Sequence[str], model: str) -> None:
        """Refuse a table whose columns are not those that a model was fitted to, in their order.

        Raises
        ------
        ModelError
            If both have names of columns, and they differ.
        """
        if not columns or not self.columns or tuple(columns) == self.columns:
            return
        pairs = enumerate(zip_longest(columns, self.columns), start=1)
        number, (name, fitted) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        has = "the table has no" if name is None else f"the table has {name!r} as"
        wants = "no more" if fitted is None else f"{fitted!r} there"
        raise ModelError(
            f"{has} column {number}, and {model} was fitted to {wants}; give the "
            f"{counted(len(self.columns), 'column')} of the fit in their order."
        )


def inherited_options(model: Any) -> dict[str, Any]:
    """Return the options that say what a sample is among those that a model's fit was given.

    Parts of axes that count samples are of the source that was fitted, and are left out, as are axes that were
    chosen by position.

    Raises
    ------
    ModelError
        If the record in the model is damaged.
    """
    data = model.provenance.get("opened")
    if data is None:
        return {}
    remedy = "fit it again, or give samples opened by open_collection without like="
    record = OpeningRecord.from_json(data, model.name, remedy=remedy)
    options = {name: value for name, value in record.options.items() if name in OF_SAMPLES}
    if record.guessed:
        options.pop("sample_axes", None)
    for option in ("select", "sel"):
        kept = {axis: item for axis, item in options.pop(option, {}).items() if axis not in record.counting}
        options |= {option: kept} if kept else {}
    return options


def shared_record(records: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the record, as plain data, of several sources whose samples were opened alike; None if they were not."""
    shared = [None if record is None else _of_samples(record) for record in records]
    return None if shared[0] is None or any(other != shared[0] for other in shared) else shared[0]


def _of_samples(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record, as plain data, with the options alone that say what a sample is."""
    options = {option: value for option, value in record["options"].items() if option in OF_SAMPLES}
    return {**record, "source": None, "options": options, "not_kept": []}


def record_of(source: Any, options: Opening, guessed: GuessedAxes | None, axes: ArrayAxes | None) -> OpeningRecord:
    """Return the record of a source opened with options; defaults are left out, but for axes chosen by position.

    Axes are those of the whole array, None for a source without any.
    """
    given = given_of(options)
    if axes is not None:
        for name in {"select", "sel"} & given.keys():
            given[name] = {axes.normal(axis): item for axis, item in given[name].items()}
        if "sample_axes" in given:
            named = given["sample_axes"]
            given["sample_axes"] = [axes.normal(axis) for axis in ([named] if isinstance(named, (str, int)) else named)]
    parts = [part for name in ("select", "sel") for part in given.get(name, {}).items()]
    counting = tuple(axis for axis, item in parts if _counts(axis, item, axes))
    if guessed is not None:
        given["sample_axes"] = guessed.sample
    return OpeningRecord(_paths(source), given, guessed=guessed is not None, counting=counting)


def _counts(axis: int | str, item: Any, axes: ArrayAxes | None) -> bool:
    """Return whether samples are counted along an axis, or may be where it is not known."""
    number = None if axes is None else axes.number(axis)
    return isinstance(item, slice) if axes is None or number is None else number in axes.samples


def given_of(options: Opening) -> dict[str, Any]:
    """Return the options that differ from their defaults and affect the samples."""
    return {name: value for name, value in options.given.items() if name not in ELSEWHERE}


def _paths(source: Any) -> str | list[str] | None:
    if isinstance(source, (str, os.PathLike)):
        return without_secrets(os.fspath(source))
    if isinstance(source, (list, tuple)) and all(isinstance(item, (str, os.PathLike)) for item in source):
        return [without_secrets(os.fspath(item)) for item in source] if len(source) <= MOST_KEPT else None
    return None


def _plain(name: str, value: Any) -> Any:
    """Return an option as JSON data, None if it is an array or a long list of values."""
    if name == "select":
        entries = {axis: _numbers(item) if isinstance(item, slice) else as_index(item) for axis, item in value.items()}
        return [[axis if isinstance(axis, str) else as_index(axis), item] for axis, item in entries.items()]
    if name == "sel":
        return [[axis, [item.start, item.stop] if isinstance(item, slice) else item] for axis, item in value.items()]
    if name == "samples" and isinstance(value, (slice, tuple)):
        return {"slice": _numbers(value if isinstance(value, slice) else slice(*value))}
    if name == "patches" and isinstance(value, Mapping):
        return {key: _listed(item) for key, item in value.items() if item is not None}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if isinstance(value, (str, bool, int, float)) else _listed(value)


def _numbers(item: slice) -> list[int | None]:
    return [None if end is None else as_index(end) for end in (item.start, item.stop, item.step)]


def _listed(value: Any) -> Any:
    """Return a number, or a short list of numbers and text, as plain data; None for anything else."""
    array = np.asarray(value)
    if array.ndim > 1 or array.size > MOST_KEPT or array.dtype.kind not in "biufU":
        return None
    if array.dtype.kind == "f" and not np.isfinite(array).all():  # which JSON lacks
        return None
    return list(value) if isinstance(value, (list, tuple)) and array.dtype.kind == "U" else array.tolist()


def _given(name: str, value: Any) -> Any:
    """Return an option in the form that `open_collection` accepts."""
    if name == "select":
        return {axis: slice(*item) if isinstance(item, list) else item for axis, item in value}
    if name == "sel":
        return {axis: slice(*item) if isinstance(item, list) else item for axis, item in value}
    if name == "samples" and isinstance(value, dict):
        return slice(*value["slice"])
    return value
