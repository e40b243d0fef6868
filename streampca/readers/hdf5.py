"""An h5py dataset held by the caller, made to travel: it pickles as its file's path and its own name."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from ..errors import SourceError


class HeldDataset:
    """An `h5py.Dataset` that is opened again, by path, in a process it was sent to.

    Parameters
    ----------
    dataset : h5py.Dataset
        Of an open file; closing that file ends reading in this process only.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._path, self.name = str(dataset.file.filename), str(dataset.name)
        self.shape: tuple[int, ...] = tuple(dataset.shape)
        self.dtype: np.dtype[Any] = dataset.dtype
        self.chunks: tuple[int, ...] | None = dataset.chunks
        labels = tuple(dimension.label for dimension in dataset.dims)
        self.dims = labels if all(labels) else None

    def __getitem__(self, key: Any) -> Any:
        """Read a slice."""
        if self._dataset is None:
            try:
                self._dataset = h5py.File(self._path, "r")[self.name]
            except (OSError, KeyError) as error:
                raise SourceError(
                    f"dataset {self.name} of {self._path} cannot be opened here ({error}); keep the file where it was."
                ) from error
        return self._dataset[key]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dataset": None}
