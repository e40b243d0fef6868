"""Record of how a collection was opened: plain data, stored in a model to open the same samples again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index as as_index
from typing import Any, NamedTuple

import numpy as np

from ..errors import without_secrets

MOST_KEPT = 1_000  # longest list of paths or indices that is kept: attributes of a model are small
# Values that are left out, like options that were not given.
DEFAULTS = {"on_bad_file": "error", "keep_orientation": False, "coordinates": "check", "duplicates": "error"}
ELSEWHERE = frozenset({"listing", "allow_remote"})  # options of a run, which do not affect its samples
COMPOSED = frozenset({"patches", "samples", "labels", "where"})  # applied in sequence, each to the result so far


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
    """

    source: str | list[str] | None
    options: Mapping[str, Any]
    not_kept: tuple[str, ...] = ()

    def again(self, **more: Any) -> OpeningRecord:
        """Return the record of a collection opened with more options; an option applied twice cannot be kept."""
        twice = COMPOSED & {*self.options, *self.not_kept} if COMPOSED & more.keys() else ()
        options = {name: value for name, value in {**self.options, **more}.items() if name not in twice}
        return OpeningRecord(self.source, options, (*self.not_kept, *sorted({*twice} - {*self.not_kept})))

    def without(self, name: str) -> OpeningRecord:
        """Return the record with one option moved to those that cannot be kept."""
        options = {option: value for option, value in self.options.items() if option != name}
        return OpeningRecord(self.source, options, (*self.not_kept, *({name} - {*self.not_kept})))

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        options = {name: _plain(name, value) for name, value in self.options.items()}
        lost = tuple(name for name, value in options.items() if value is None)
        return {
            "source": self.source,
            "options": {name: value for name, value in options.items() if value is not None},
            "not_kept": [*self.not_kept, *lost],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpeningRecord:
        """Inverse of `to_json`."""
        options = {name: _given(name, value) for name, value in data["options"].items()}
        return cls(data["source"], options, tuple(data["not_kept"]))


def record_of(source: Any, options: Mapping[str, Any]) -> OpeningRecord:
    """Return the record of a source opened with options of `open_collection`; defaults are left out."""
    return OpeningRecord(_paths(source), given_of(options))


def given_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults and affect the samples."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and name not in ELSEWHERE and not (name in DEFAULTS and value == DEFAULTS[name])
    }


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
