"""`LandmarkRows`: landmarks outside memory, read a box of rows and features at a time.

They are samples of a collection until the model is stored, and then an array of the stored model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..planning.blocks import Span, blocks_of
from ..planning.landmarks import box_of_rows
from ..readers.collection import Collection, State, unchanged

if TYPE_CHECKING:
    from ..storage.components import StoredComponents  # imports Zarr


class LandmarkRows(ABC):
    """Rows of features, (m, p), read in boxes, and convertible to a numpy array.

    Attributes
    ----------
    shape : (int, int)
        (m, p).
    dtype : numpy.dtype
    box : (int, int)
        Rows and features of a box.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    box: tuple[int, int]

    @abstractmethod
    def read(self, rows: Span, features: Span) -> Array:
        """Read a box."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[None]:
        """Return a context that raises an error if the landmarks change while it is active."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all values, which are not in memory."""
        return self.size * self.dtype.itemsize

    @property
    def box_bytes(self) -> int:
        """Bytes of a box."""
        return math.prod(self.box) * self.dtype.itemsize

    def pieces(self) -> Iterator[tuple[Span, Span, Array]]:
        """Read everything box by box; yield rows, features and values."""
        m, p = self.shape
        with self.reading():
            for rows in blocks_of(Span(0, m), self.box[0]):
                for features in blocks_of(Span(0, p), self.box[1]):
                    yield rows, features, self.read(rows, features)

    def take(self, places: npt.NDArray[np.intp]) -> Array:
        """Return the rows with the given ascending indices."""
        out = np.empty((len(places), self.shape[1]), self.dtype)
        for rows, features, values in self.pieces():
            within = slice(*np.searchsorted(places, rows))
            out[within, slice(*features)] = values[places[within] - rows.start]
        return out

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("landmarks that are not in memory have to be read, which makes a copy")
        return self.take(np.arange(len(self))).astype(self.dtype if dtype is None else dtype, copy=False)


@dataclass(frozen=True, eq=False)
class RowsOfCollection(LandmarkRows):
    """Samples of a collection, which must exist, unchanged, whenever they are read.

    Attributes
    ----------
    collection : Collection
        Collection that is read by boxes of whole storage chunks, if these are no larger than a box.
    states : sequence of State
        States that it must have.
    """

    collection: Collection
    states: Sequence[State]

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(n, p)."""
        return self.collection.n_samples, self.collection.n_features

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """Dtype of the samples."""
        return self.collection.dtype

    @property
    def box(self) -> tuple[int, int]:  # type: ignore[override]
        """Rows and features of a box."""
        return box_of_rows(self.shape, self.collection.chunks, self.dtype.itemsize)

    def read(self, rows: Span, features: Span) -> Array:
        """Read a box."""
        whole = features.size == self.shape[1]
        return self.collection.read(slice(*rows), None if whole else slice(*features))

    def reading(self) -> AbstractContextManager[None]:
        """Refuse samples that have changed since the fit."""
        return unchanged(self.collection, self.states)


@dataclass(frozen=True, eq=False)
class RowsOfModel(LandmarkRows):
    """Landmarks of a stored model.

    Attributes
    ----------
    stored : StoredComponents
        The array.
    box : (int, int)
        Rows and features of its chunks, or of several.
    """

    stored: StoredComponents
    box: tuple[int, int]

    @classmethod
    def of(cls, stored: StoredComponents, chunk: tuple[int, int]) -> RowsOfModel:
        """Return the rows of an array that is stored in chunks of shape `chunk`."""
        return cls(stored, box_of_rows((stored.shape[0], stored.shape[1]), chunk, stored.dtype.itemsize))

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(m, p)."""
        return self.stored.shape[0], self.stored.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """Dtype as stored."""
        return self.stored.dtype

    def read(self, rows: Span, features: Span) -> Array:
        """Read a box; raises ModelError if values are damaged."""
        return self.stored[slice(*rows), slice(*features)]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return an empty context: every read checks that the model is still the same."""
        yield
