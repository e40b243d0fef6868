"""`Opener`: opens a source by the first format that recognizes it, as options say and as for a model's fit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import (
    ChangedError,
    MissingEntryError,
    ModelError,
    RepeatedAxisError,
    RequestError,
    SourceError,
    StreampcaError,
    UnusedOptionError,
    without_secrets,
)
from ..events import Listener, silent
from ..kinds.description import make
from ..kinds.opening import Opening
from ..storage.disk import expanded
from .collection import COPIED_KEY, Collection, file_state
from .coordinates import is_checked
from .detect import is_dataset, is_result
from .opening_record import inherited_options
from .paths import resolve_source
from .registry import readers
from .source import as_source
from .stored.array import ArrayCollection
from .stored.cf import with_fill_value
from .tags import TagRules, fitted_reading
from .views.compose import cut
from .views.converted import as_dtype
from .views.variables import Variables, variables_fitted, variables_in, variables_of

LAYOUT = frozenset({"sample_axes", "select", "sel", "patches"})  # options by which an array is laid out as samples
BY_AXIS = ("select", "sel")


@dataclass(frozen=True)
class Opener:
    """Options by which a source, and each file that it is made of, is opened.

    Attributes
    ----------
    given : Opening
        Options that were given.
    reading : TagRules
        Rules for the tags of image files.
    listener : callable
        Function that receives an event while files are checked.
    model : object
        Model whose fit the samples are opened for, as `open_collection` takes it; None if there is none.
    inherited : mapping of str to Any
        Options that this fit was given. Those of them that do not suit the source are left out.
    variables : str or None
        Variables of one field that it was fitted to, by their names.
    """

    given: Opening = field(default_factory=Opening)
    reading: TagRules = field(default_factory=TagRules)
    listener: Listener = silent
    model: Any = None
    inherited: Mapping[str, Any] = field(default_factory=dict)
    variables: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], listener: Listener, model: Any) -> Opener:
        """Return the opener of options as they were given, and for a model, where there is one.

        Raises
        ------
        RequestError
            If the value of an option is wrong.
        ModelError
            If the model's record of its fit is damaged.
        """
        given = make(Opening, {name: value for name, value in options.items() if value is not None})
        if given.key is not None and not isinstance(given.key, str):
            given = replace(given, key=",".join(given.key))
        axes = given.sample_axes
        if axes is not None and (isinstance(axes, str) or not isinstance(axes, Iterable)):
            given = replace(given, sample_axes=[axes])
        if given.listing is not None:
            given = replace(given, listing=expanded(given.listing))
        reading = (None if model is None else fitted_reading(model.provenance)) or TagRules()
        if given.keep_orientation:
            reading = reading._replace(orientation=False)
        if model is None:
            return cls(given, reading, listener)
        names = None if given.key is not None else variables_fitted(model.sample_dims, model.coordinates)
        variables = None if names is None else ",".join(names)
        return cls(given, reading, listener, model, inherited_options(model), variables)

    @cached_property
    def options(self) -> Opening:
        """All options: those that were given stand in place of inherited ones, of axes one by one."""
        merged = {**self.inherited, **self.given.given}
        given = {axis for name in BY_AXIS for axis in getattr(self.given, name) or {}}
        for name in BY_AXIS:
            if name in merged:
                kept = {axis: item for axis, item in self.inherited.get(name, {}).items() if axis not in given}
                merged[name] = {**kept, **(getattr(self.given, name) or {})}
        return Opening(**merged)

    @property
    def key(self) -> str | None:
        """Names of the array or variables to read."""
        return self.options.key or self.variables  # type: ignore[return-value]  # a text by now

    def opened(self, source: Any) -> tuple[Collection, Opener]:
        """Open a source; return it, and the opener with the inherited options that suit it.

        Raises
        ------
        SourceError, RequestError
            As `open`.
        ModelError
            If the source is a copy of another array than that which the model was fitted to.
        """
        collection, opener = self._opened(source)
        copied = collection.attributes.get(COPIED_KEY) if is_result(source) else None
        if copied is not None and self.given.key is None and self.key not in (None, copied):
            raise ModelError(
                f"{collection.source} is a copy of {copied!r}, and {self.model.name} was fitted to {self.key!r}; give "
                "a copy of that, or samples opened by open_collection without like=."
            )
        return collection, opener

    def _opened(self, source: Any) -> tuple[Collection, Opener]:
        if not self.inherited and self.variables is None:
            return self.open(source), self
        error: RequestError | None = None
        try:
            collection = self.open(source)
            is_suited = self._suits(collection)
        except UnusedOptionError as unused:
            if unused.option not in self.inherited:
                raise
            return self.without({unused.option})._opened(source)
        except RepeatedAxisError as repeated:
            inherited = [axis for axis in repeated.axes if axis not in (self.given.select or {})]
            if not inherited:
                raise
            return self._without_entry(inherited[0])._opened(source)
        except RequestError as refusal:
            error, is_suited = refusal, False
        if not is_suited:
            self._refuse_layout(source)
        if isinstance(error, MissingEntryError) and not is_result(source):  # of an axis that the source has
            raise error
        for opener in self._others(source, is_suited=is_suited):
            with suppress(StreampcaError):
                other = opener.open(source)
                if opener._suits(other) and not self._counts_dropped(other, opener):
                    return other, opener
        if error is not None:
            raise error
        return collection, self

    def _suits(self, collection: Collection) -> bool:
        """Return whether samples are of the shape that the model was fitted to, or scores."""
        shape = cut(collection, self.options).sample_shape
        return collection.mixed or shape in (self.model.raw_shape, (self.model.n_scores,))

    def _are_scores(self, collection: Collection) -> bool:
        """Return whether samples are scores of the model, which have a dtype of their own."""
        if self.model is None or self.given.dtype is not None:
            return False
        shape = collection.sample_shape
        return shape == (self.model.n_scores,) and (shape != self.model.raw_shape or "whiten" in collection.attributes)

    def _refuse_layout(self, source: Any) -> None:
        """Refuse parts of axes that were given for a source whose samples are as the model takes them."""
        named = next((name for name in BY_AXIS if getattr(self.given, name)), None)
        if named is None:
            return
        plain = replace(self, given=replace(self.given, select=None, sel=None)).without(LAYOUT)
        try:
            collection = plain.open(source)
            is_suited = plain._suits(collection) and not self._counts_dropped(collection, plain)
        except StreampcaError:
            return
        if is_suited:
            raise RequestError(
                f"{named}={getattr(self.given, named)!r} was given, and samples of {collection.source} have the shape "
                f"that {self.model.name} was fitted to without it; leave it out."
            )

    def _without_entry(self, axis: int | str) -> Opener:
        """Return the opener without the entry of an axis among inherited ones."""
        kept = {name: item for name, item in self.inherited["select"].items() if name != axis}
        return replace(self, inherited={**self.inherited, "select": kept})

    def _counts_dropped(self, collection: Collection, opener: Opener) -> bool:
        """Return whether samples may be counted along an axis of which the fit took one entry, and the opener none."""
        names = [name for name in BY_AXIS if name not in opener.inherited]
        items = [item for name in names for item in self.inherited.get(name, {}).items()]
        dropped = {axis for axis, item in items if not isinstance(item, slice)}
        along = collection.samples_along  # empty where axes have no names: the first alone counts samples
        return not dropped.isdisjoint(along) or (len(along) > 1 and any(not isinstance(axis, str) for axis in dropped))

    def _others(self, source: Any, *, is_suited: bool) -> Iterator[Opener]:
        """Yield openers without inherited options, for a source that may hold the samples as the model takes them."""
        if "patches" in self.inherited:  # samples that are windows already could be cut into windows of one each
            yield self.without({"patches"})
        if is_suited:
            return
        is_laid_out = bool(LAYOUT & self.inherited.keys())
        if is_laid_out:
            yield self.without(LAYOUT)
        # A copy or scores have one array; an array may have the variables along an axis. Any other array is another
        # quantity than that which the model was fitted to.
        if is_result(source) or (self.variables is not None and not is_dataset(source)):
            yield self.without({"key"})
            if is_laid_out:
                yield self.without({"key", *LAYOUT})

    def without(self, names: Set[str]) -> Opener:
        """Return the opener without some inherited options."""
        inherited = {name: value for name, value in self.inherited.items() if name not in names}
        return replace(self, inherited=inherited, variables=None if "key" in names else self.variables)

    def of_part(self) -> Opener:
        """Return the opener of one of several files that are joined; what concerns all of them is left out."""
        options, checked = self.options, self.options.coordinates
        names = ("sample_axes", "select", "sel", "fill_value", "dtype", "duplicates")
        of_each = {name: getattr(options, name) for name in names}
        return Opener(Opening(key=self.key, coordinates=checked, **of_each), self.reading)

    def open(self, source: Any) -> Collection:
        """Open a source by the first format that recognizes it, with the options that the format accepts.

        Raises
        ------
        SourceError
            If the source is missing, broken, ambiguous or of an unknown format.
        RequestError
            If an option does not suit the source; as an UnusedOptionError, if it suits no source of its sort.
        """
        if isinstance(source, Collection):
            return source
        options = self.options
        source = resolve_source(as_source(source, dtype=options.dtype), allow_remote=options.allow_remote)
        before = file_state(source) if isinstance(source, str) and os.path.isfile(source) else None
        row = next((row for row in readers() if row.matches(source)), None)
        if row is None:
            raise SourceError(
                f"an object of type {type(source).__name__} is not a collection; give a path, a glob, a list of image "
                "files, a table, or an array with shape, dtype and slicing."
            )
        names: list[str] = []
        if self.key is not None:
            names = variables_in(self.key)
        elif is_dataset(source):
            names = variables_of(source)
        if len(names) > 1 and row.name != "joined":  # every joined file holds the variables itself
            parts = [replace(self, given=replace(self.given, key=name)).open(source) for name in names]
            whole = "xarray Dataset" if is_dataset(source) else None
            return Variables(parts, names, source=whole, checked=is_checked(options.coordinates))
        if "opener" in row.options:
            collection = row.open(source, opener=self)
        else:
            values = {**vars(options), "key": self.key, "reading": self.reading}
            collection = row.open(source, **{name: values[name] for name in (*AXES_AND_KEY, *row.options)})
            if options.sel and "sel" not in row.options:
                collection = _selected(collection, options.sel)
            if options.fill_value is not None and "fill_value" not in row.options:
                collection = _filled(collection, options.fill_value)
        if options.dtype is not None and not self._are_scores(collection):
            collection = as_dtype(collection, np.dtype(options.dtype))
        if before is not None and not collection.grows and file_state(source) != before:
            raise ChangedError(f"{source} was changed while it was opened; open it when it is written to its end.")
        if collection.source != (shown := without_secrets(collection.source)):  # models and outputs keep it
            collection.source = shown
        return collection


AXES_AND_KEY = ("key", "sample_axes", "select")  # options that every format accepts


def _selected(collection: Collection, sel: Mapping[str, Any]) -> Collection:
    """Select entries of a collection's axes by the values of their coordinates."""
    if isinstance(collection, ArrayCollection):
        return collection.selected(sel)
    raise UnusedOptionError(
        f"{collection.source} has no values along its axes to take by with sel; leave it out.", option="sel"
    )


def _filled(collection: Collection, number: int | float | str) -> Collection:
    """Treat a stored number of a collection as missing."""
    if isinstance(collection, ArrayCollection):
        return collection.of_array(with_fill_value(collection.array, number, collection.source))
    raise UnusedOptionError(
        f"{collection.source} is no array of which numbers stand for no value; leave fill_value out.",
        option="fill_value",
    )
