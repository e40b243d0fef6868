"""`Beginning`: the first samples of a collection that can grow after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ...arrays import Array
from ...errors import RequestError
from ...storage.coordinate import Coordinate
from ..collection import Collection, State
from .view import View


class Beginning(View):
    """The first n samples of a collection, unaffected by samples added after them."""

    def __init__(self, base: Collection, n: int) -> None:
        super().__init__(base)
        self.opened, self.shape, self.storage = base.opened, (n, *base.sample_shape), base.storage
        self.labels = None if base.labels is None else base.labels[:n]

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read from the base."""
        return self.base.read(rows, features)

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Read from the base."""
        self.base.read_into(rows, features, out)

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Call the function for the images of the base."""
        self.base.each(rows, function)

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the coordinates of the first samples."""
        coords = self.base.sample_coordinates()
        return {name: coord._replace(values=coord.values[: self.n_samples]) for name, coord in coords.items()}

    def sample_keys(self) -> npt.NDArray[np.int64] | None:
        """Return the keys of the first samples."""
        keys = self.base.sample_keys()
        return None if keys is None else keys[: self.n_samples]

    def sample_names(self) -> Sequence[str] | None:
        """Return the first names of the base."""
        names = self.base.sample_names()
        return None if names is None else names[: self.n_samples]

    def states_of_first(self, n: int, *, now: bool = False) -> list[State] | None:
        """Return the states that the base has for its first samples."""
        return self.base.states_of_first(n, now=now)

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the first samples alone, which do not change as the base grows."""
        states = self.base.states_of_first(self.n_samples, now=now)
        if states is None:
            raise RequestError(
                f"{self.source} cannot be compared with itself while it grows; read it when it is complete."
            )
        return states
