"""`Variables`: several variables of the same samples, such as u and v of a wind field, read as one collection.

A sample holds the values of all variables at each pixel: where a variable has the axes (time, lat, lon), a sample has
the axes (lat, lon, variable), and principal components are patterns of the variables together. All must have the same
number of samples, sample shape and axes, and coordinates of the same values, in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...arrays import Array
from ...errors import SourceError
from ...planning.blocks import Span, blocks_of
from ...storage.coordinate import Coordinate
from ...units import format_shape
from ..collection import Collection, Filled, State, digest, file_and_key, sample_dims
from ..coordinates import CommonGrid, Grid
from ..storage_record import Chunks, Storage
from ..stored import cf
from .blocks import piece_bytes, piece_rows
from .reordered import Reordered
from .view import View

VARIABLE = "variable"


def variables_in(key: str) -> list[str]:
    """Return the names that a key lists, as in ``"u,v"``."""
    return [name.strip() for name in key.split(",") if name.strip()]


def variables_of(dataset: Any) -> list[str]:
    """Return the names of the variables of an `xarray.Dataset` that can hold images."""
    attributes = {str(name): {**array.attrs, **array.encoding} for name, array in dataset.variables.items()}
    describing = cf.auxiliary(attributes)
    return [
        str(name)
        for name, array in dataset.data_vars.items()
        if array.ndim >= 2 and array.dtype.kind in "biuf" and name not in describing
    ]


def variables_fitted(dims: Sequence[str], coordinates: Mapping[str, Coordinate]) -> list[str] | None:
    """Return the variables that a model with these sample axes was fitted on; None if it was fitted on an array."""
    names = coordinates.get(VARIABLE)
    if names is None or tuple(dims[-1:]) != (VARIABLE,) or names.values.dtype.kind != "U":
        return None
    return [str(name) for name in names.values]


class Variables(Filled, View):
    """Collections of the same samples on one grid, with the values of a pixel side by side.

    Parameters
    ----------
    parts : sequence of Collection
        Collections, one a variable, at least one.
    names : sequence of str
        Names of the variables.
    source : str, optional
        Common source; by default, that of the first.
    checked : bool, default=True
        Whether coordinates are compared, see `open_collection`; parts in another order are put in the first one's.

    Raises
    ------
    SourceError
        If parts differ in their number of samples, the shape or axes of a sample, or their coordinates.
    """

    def __init__(
        self, parts: Sequence[Collection], names: Sequence[str], *, source: str | None = None, checked: bool = True
    ) -> None:
        first = parts[0]
        super().__init__(first)
        axes, samples = CommonGrid(SourceError, checked=checked), CommonGrid(SourceError, checked=checked, fixed=(0,))
        self.names, self.parts = tuple(names), []
        for name, part in zip(names, parts, strict=True):
            _check_alike(name, part, names[0], first)
            axis, along = part.sample_axis or "", part.sample_coordinates()
            samples.add(Grid((axis,), {axis: along[axis]} if axis in along else {}), part.source)
            orders = axes.add(Grid(part.axes or (), part.coordinates), part.source)
            self.parts.append(Reordered(part, orders) if orders else part)
        if VARIABLE in (first.axes or ()):
            raise SourceError(
                f"{first.source} has an axis {VARIABLE!r} already, and so cannot be put beside others; rename it."
            )
        self._coordinates = {**axes.coordinates, VARIABLE: Coordinate(np.array(names, np.str_))}
        self.source = f"{source or file_and_key(first.source)[0]}, variables {','.join(names)!r}"
        self.shape = (*first.shape, len(parts))
        self.axes = (*sample_dims(first), VARIABLE)
        self.dtype = np.result_type(*(part.dtype for part in parts))
        stored = [part.storage for part in self.parts]
        samples, features = (max(sizes) for sizes in zip(*(part.chunks for part in stored), strict=True))
        self.storage = Storage(
            Chunks(samples, features * len(parts)),
            sum(part.decode_bytes for part in stored) + max(map(piece_bytes, self.parts)),
            sum(part.converted_bytes for part in stored),
            encoded=any(part.encoded for part in stored),
            keeps=all(part.keeps for part in stored),
            fills=True,
        )

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes that are the same in all parts."""
        others = [part.attributes for part in self.parts[1:]]
        return {
            name: value
            for name, value in self.base.attributes.items()
            if all(name in attributes and np.array_equal(attributes[name], value) for attributes in others)
        }

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates that all parts share, and the names of the variables."""
        return self._coordinates

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the coordinates of the first part whose names all other parts have."""
        shared = [part.sample_coordinates().keys() for part in self.parts[1:]]
        coordinates = self.base.sample_coordinates().items()
        return {name: coordinate for name, coordinate in coordinates if all(name in names for names in shared)}

    def of_parts(self, change: Callable[[Collection], Collection]) -> Variables:
        """Return the variables with a change applied to each part."""
        return Variables(
            [change(part) for part in self.parts],
            self.names,
            source=file_and_key(self.source)[0],
            checked=self.compares_coordinates,
        )

    def where(self, index: int) -> str:
        """Name the sample by its number."""
        return Collection.where(self, index)

    def named(self, index: int) -> str:
        """Name the sample by its number."""
        return Collection.named(self, index)

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Read the pixels of each part that hold some of the features, a piece of samples at a time."""
        wanted, step = features or slice(0, self.n_features), len(self.parts)
        for number, part in enumerate(self.parts):
            pixels = slice(*(-((number - end) // step) for end in (wanted.start, wanted.stop)))
            if pixels.stop <= pixels.start:
                continue
            target = out[:, pixels.start * step + number - wanted.start :: step]
            for span in blocks_of(Span(rows.start, rows.stop), piece_rows(part, pixels)):
                target[span.start - rows.start : span.stop - rows.start] = part.read(slice(*span), pixels)

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of all parts."""
        return self._together([part.states(now=now) for part in self.parts])

    def states_of_first(self, n: int, *, now: bool = False) -> list[State] | None:
        """Return the states of the first samples of all parts."""
        states_of_parts = [part.states_of_first(n, now=now) for part in self.parts]
        known_states = [states for states in states_of_parts if states is not None]
        return self._together(known_states) if len(known_states) == len(states_of_parts) else None

    def begun(self, first: int = 0) -> int:
        """Return how many of the first samples have begun to be written in all parts."""
        return min(part.begun(first) for part in self.parts)

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Return how many of the first samples are complete in all parts."""
        counts = [part.settled(seconds, first, before) for part in self.parts]
        known_counts = [count for count in counts if count is not None]
        return min(known_counts) if len(known_counts) == len(counts) else None

    def _together(self, states_of_parts: Sequence[Sequence[State]]) -> list[State]:
        """Return a state for each group if all parts have the same groups, else the states of all parts."""
        firsts = [[state.first for state in states] for states in states_of_parts]
        if any(group_starts != firsts[0] for group_starts in firsts):
            return sorted((state for states in states_of_parts for state in states), key=lambda state: state.first)
        return [
            group[0]._replace(state=digest(self.names, [state.state for state in group]))
            for group in zip(*states_of_parts, strict=True)
        ]


def _check_alike(name: str, part: Collection, first_name: str, first: Collection) -> None:
    """Refuse a variable whose samples differ from the first variable's in number, shape or axes."""
    for value, expected in zip(_samples_of(part), _samples_of(first), strict=True):
        if value != expected:
            raise SourceError(
                f"variable {name!r} of {file_and_key(part.source)[0]} has {value}, and {first_name!r} has {expected}; "
                "variables of one field have the same samples and axes: bring them to one grid, or name those that do, "
                f"such as --key {first_name} (key={first_name!r})."
            )


def _samples_of(part: Collection) -> tuple[str, ...]:
    """Describe the samples of a variable: their number, the axes that count them, their shape and their axes."""
    return (
        f"{part.n_samples} samples",
        f"samples along {', '.join(part.samples_along) or 'axes without names'}",
        f"samples of {format_shape(part.sample_shape)}",
        f"samples with axes {', '.join(part.axes or ()) or 'without names'}",
    )
