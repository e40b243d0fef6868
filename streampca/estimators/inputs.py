"""Kinds of input to an estimator: tables that scikit-learn checks, images, batches, and all that can be opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeGuard

import numpy as np
from scipy.sparse import issparse, vstack

from ..errors import RequestError
from ..readers import Collection
from ..readers.array_objects import as_numpy, refuse_several, shape_in_list
from ..readers.collection import unmasked
from ..readers.detect import is_array, is_dataset, is_lazy_frame
from ..units import counted


def is_batches(X: Any) -> TypeGuard[Iterator[Any]]:
    """Return whether samples come in batches, each of which is there once: a generator, or another iterator."""
    return isinstance(X, Iterator) and not hasattr(X, "shape")


def is_table(X: Any) -> bool:
    """Return whether scikit-learn takes `X`: a two-dimensional array, sparse or not, or data frame, or a list."""
    if isinstance(X, (str, os.PathLike, Collection)) or getattr(X, "ndim", 2) > 2 or is_lazy_frame(X) or is_dataset(X):
        return False
    if isinstance(X, (list, tuple)) and X and all(isinstance(item, (str, os.PathLike)) for item in X):
        return False  # image files
    return isinstance(X, (np.ndarray, list, tuple)) or issparse(X) or hasattr(X, "iloc") or not hasattr(X, "dtype")


def as_samples(X: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return what stands for an array or a table as one, and all else that can be opened as it is.

    Tensors and the like become numpy's arrays. Data frames in a list, or sparse matrices, are put one after another;
    pictures, and arrays of the shape that samples are known to have, are stacked.

    Parameters
    ----------
    X : object
    shape : tuple of int, optional
        Shape of one sample, where it is known.

    Raises
    ------
    SourceError
        If it is a list of arrays, each of which may be a sample or a batch of samples.
    RequestError
        If it is a mapping, or can only be iterated over.
    """
    if isinstance(X, (list, tuple)):
        return _of_list(X, shape)
    _refuse_mapping(X, "X is {}, of which one is the samples; give X[{!r}]")
    if is_iterated(X):
        raise RequestError(
            f"X is a {type(X).__name__}, whose parts can only be iterated over; PCA.fit takes batches as "
            "iter(X), and all else takes one array or one batch at a time."
        )
    is_bare = hasattr(X, "__array__") and not hasattr(X, "shape") and not is_dataset(X)
    if is_bare:
        return np.asarray(X)
    return as_numpy(X, f"a {type(X).__name__}") if is_array(X) else X


def batch_of(item: Any) -> Any:
    """Return the batch that an iterator yields: itself, or the one array that a list or tuple holds.

    Raises
    ------
    RequestError
        If it is a list of several arrays, or a mapping, of which any part may be the samples.
    """
    _refuse_mapping(item, "a batch is {}, of which one is the samples; give (b[{!r}] for b in loader)")
    if not isinstance(item, (list, tuple)):
        return item
    shapes = [shape_in_list(part) for part in item]
    if all(len(shape) < 2 for shape in shapes):
        return item  # rows, or paths
    if len(item) == 1 and not isinstance(item[0], (list, tuple)):
        return item[0]
    images = ", or (np.stack(b) for b in loader) where each is one sample" if len(set(shapes)) == 1 else ""
    raise RequestError(
        f"a batch is a list of {counted(len(item), 'array')}, of which one is the samples; give (b[0] for b in loader)"
        f"{images}."
    )


def is_iterated(X: Any) -> bool:
    """Return whether an object can only be iterated over, as generators and loaders of batches can."""
    return hasattr(X, "__iter__") and not any(hasattr(X, name) for name in ("__getitem__", "__array__", "shape"))


def _refuse_mapping(X: Any, message: str) -> None:
    """Refuse arrays by name; the message is given a description of them, and the name of one with several axes."""
    if not isinstance(X, Mapping) or is_dataset(X) or issparse(X):  # some sparse matrices are dictionaries
        return
    several = (name for name in X if len(shape_in_list(X[name])) > 1)
    name = next(several, next(iter(X), "name"))
    raise RequestError(message.format(f"a {type(X).__name__} of {counted(len(X), 'array')}", name) + ".")


def _of_list(items: Sequence[Any], shape: tuple[int, ...] | None) -> Any:
    """Return a list as one array or table; of rows or paths, as it is."""
    if items and all(issparse(item) for item in items):
        return vstack(items, format="csr")
    if items and all(hasattr(item, "columns") for item in items):
        return _joined_frames(items)
    values = [unmasked(item) for item in items]
    is_pictures = all(hasattr(item, "__array_interface__") and not hasattr(item, "shape") for item in items)
    if items and (is_pictures or (shape and len(shape) > 1 and {shape_in_list(item) for item in items} == {shape})):
        return np.stack(values)
    refuse_several(items)
    return values


def _joined_frames(frames: Sequence[Any]) -> Any:
    """Return data frames of one library with the same columns as one."""
    names, package = [list(frame.columns) for frame in frames], type(frames[0]).__module__.partition(".")[0]
    other = next((at for at, found in enumerate(names) if found != names[0]), None)
    if other is not None:
        raise RequestError(
            f"data frame {other} of a list has columns {names[other]}, and the first has {names[0]}; give all the same "
            "columns in one order."
        )
    library = import_module({"dask": "dask.dataframe"}.get(package, package))
    return library.concat(frames, **({"how": "vertical_relaxed"} if package == "polars" else {}))
