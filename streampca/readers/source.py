"""`as_source`: the one rule for what holds samples; tables, tensors and lists in memory become numpy's arrays.

What can be opened as it is stays as it is: paths, collections, arrays that are read in pieces (dask, zarr, h5py,
xarray), sparse matrices, dask's data frames, and arrays by name. No package is imported to find out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeGuard

import numpy as np

from ..arrays import Array
from ..errors import RequestError, SourceError, first_line
from ..units import counted, format_shape
from .collection import Collection, unmasked
from .common_dtype import common_dtype, convert, dtype_remedy
from .dask import joined_frames
from .detect import is_array, is_dataset, is_lazy_frame, is_sparse


def as_source(source: Any, shape: tuple[int, ...] | None = None, *, dtype: str | None = None) -> Any:
    """Return what can be opened: tables, tensors and lists as numpy's arrays, all else as it is.

    Data frames or sparse matrices in a list are put one after another; pictures, and arrays of the shape that samples
    are known to have, are stacked.

    Parameters
    ----------
    source : object
        Anything that `open_collection` takes.
    shape : tuple of int, optional
        Shape of one sample, where it is known.
    dtype : str, optional
        Dtype to which the arrays of a list are converted; by default they are joined as files are.

    Raises
    ------
    SourceError
        If values cannot be converted, or a list holds arrays each of which may be a sample or a batch of samples, or
        arrays that are not joined, see `common_dtype`.
    RequestError
        If it is an iterator, or can only be iterated over.
    """
    if isinstance(source, np.ndarray):
        return _as_plain(source)
    if isinstance(source, (str, os.PathLike, Collection)) or is_sparse(source) or is_lazy_frame(source):
        return source
    if isinstance(source, (list, tuple)):
        return _of_list(source, shape, dtype)
    if is_frame(source):
        return _of_frame(source)
    if is_batches(source) or is_iterated(source):
        raise RequestError(
            f"X is a {type(source).__name__}, whose parts can only be iterated over; PCA.fit takes batches as iter(X), "
            "as fit does for principal components, and all else takes one array, np.concatenate(list(X)), or one batch "
            "at a time."
        )
    return _of_tensor(source) if _is_tensor(source) else source


# -- batches


def is_batches(source: Any) -> TypeGuard[Iterator[Any]]:
    """Return whether samples come in batches, each of which is there once: a generator, or another iterator."""
    return isinstance(source, Iterator) and not hasattr(source, "shape")


def is_iterated(source: Any) -> bool:
    """Return whether an object can only be iterated over, as generators and loaders of batches can."""
    others = ("__getitem__", "__array__", "__dlpack__", "shape")
    return hasattr(source, "__iter__") and not any(hasattr(source, name) for name in others)


def batch_of(item: Any) -> Any:
    """Return the batch that an iterator yields: itself, or the one array that a list or tuple holds.

    Raises
    ------
    RequestError
        If it is a list of several arrays, or a mapping, of which any part may be the samples.
    """
    refuse_mapping(item, "a batch is {}, of which one is the samples; give (b[{!r}] for b in loader)")
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


def refuse_mapping(source: Any, message: str) -> None:
    """Refuse arrays by name; the message is given a description of them, and the name of one with several axes.

    Raises
    ------
    RequestError
    """
    if not isinstance(source, Mapping) or is_dataset(source) or is_sparse(source):  # some sparse matrices are mappings
        return
    several = (name for name in source if len(shape_in_list(source[name])) > 1)
    name = next(several, next(iter(source), "name"))
    raise RequestError(message.format(f"a {type(source).__name__} of {counted(len(source), 'array')}", name) + ".")


# -- tensors


def _is_tensor(source: Any) -> bool:
    """Return whether an object is an array in memory that is not numpy's, such as a tensor of torch or jax."""
    if hasattr(source, "__dlpack__"):
        return True
    if not hasattr(source, "__array__") or is_dataset(source):
        return False
    if not hasattr(source, "shape") or not hasattr(source, "dtype"):
        return not hasattr(source, "shape")
    try:
        np.dtype(source.dtype)
    except TypeError:
        return True
    return False


def _of_tensor(source: Any) -> Array:
    """Return a tensor as an array, without a copy where its dtype allows it."""
    name = f"{type(source).__module__.partition('.')[0]} {type(source).__name__}"
    tensor = source.detach() if hasattr(source, "detach") else source
    try:
        if "bfloat16" in str(getattr(tensor, "dtype", "")) and hasattr(tensor, "float"):
            tensor = tensor.float()  # numpy has no such numbers, which float32 holds
        values = np.asarray(tensor) if hasattr(tensor, "__array__") else np.from_dlpack(tensor)
    except Exception as error:  # third-party conversions raise any kind of error
        why = f" ({first_line(error)})"
    else:
        if values.dtype.kind != "O" and values.shape == tuple(getattr(source, "shape", values.shape)):
            return _as_plain(values)
        why = ""
    raise SourceError(
        f"{name} of dtype {getattr(source, 'dtype', 'unknown')} cannot be made an array of numpy{why}; move it to the "
        "memory of the processor, or convert it to a numpy array."
    )


def _as_plain(values: Array) -> Array:
    """Return numbers of half precision that numpy does not know as float32, which holds them all."""
    is_foreign = values.dtype.kind == "V" and "float" in values.dtype.name
    return values.astype(np.float32) if is_foreign else values


# -- tables


def is_frame(source: Any) -> bool:
    """Return whether an object is a table of columns in memory, of pandas, polars, Arrow or the like."""
    if hasattr(source, "dtype") or is_lazy_frame(source):  # a column or an array
        return False
    return hasattr(source, "columns") and any(
        hasattr(source, name) for name in ("iloc", "__arrow_c_stream__", "__dataframe__")
    )


def column_names(frame: Any) -> list[Any]:
    """Return the names of a table's columns."""
    return list(getattr(frame, "column_names", None) or frame.columns)


def text_columns(source: Any) -> tuple[str, ...]:
    """Return the names of a table's columns, or of those of the first of several; none unless all are text."""
    table = source[0] if isinstance(source, (list, tuple)) and len(source) else source
    names = column_names(table) if is_frame(table) or is_lazy_frame(table) else []
    return tuple(names) if all(isinstance(name, str) for name in names) else ()


def as_known_frame(frame: Any) -> Any:
    """Return a table of pandas, polars or Arrow as it is, and of any other library as Arrow's, by its protocol."""
    is_known = any(hasattr(frame, way) for way in ("iloc", "get_columns", "itercolumns"))
    return frame if is_known else import_module("pyarrow").table(frame)


def _of_frame(frame: Any) -> Array:
    """Return the numbers of a table, in a dtype that holds those of all columns; missing ones are NaN."""
    name = f"{type(frame).__module__.partition('.')[0]} {type(frame).__name__}"
    frame = as_known_frame(frame)
    columns = [_numbers(column) for column in _columns(frame)]
    names = column_names(frame)
    for label, column in zip(names, columns, strict=True):
        if column.dtype.kind not in "biuf":
            raise SourceError(
                f"column {label!r} of {name} has dtype {column.dtype}, which is not of real numbers; leave it out, or "
                "convert it to numbers."
            )
    values = np.empty((len(frame), len(columns)), np.result_type(*columns) if columns else np.float64)
    for number, column in enumerate(columns):
        values[:, number] = column
    return values


def _columns(frame: Any) -> Iterator[Any]:
    """Yield the columns of a table of pandas, polars or Arrow."""
    if hasattr(frame, "iloc"):
        return (frame.iloc[:, number] for number in range(frame.shape[1]))
    return iter(frame.get_columns() if hasattr(frame, "get_columns") else frame.itercolumns())


def _numbers(column: Any) -> Array:
    """Return a column as an array; numbers of which some are missing are floats with NaN."""
    dtype = getattr(column, "dtype", None)
    if getattr(dtype, "kind", "") in ("b", "i", "u", "f") and not isinstance(dtype, np.dtype):  # pandas' own
        if column.isna().any():
            return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
        return np.asarray(column.to_numpy(dtype=getattr(dtype, "numpy_dtype", None)))
    return np.asarray(column.to_numpy())


# -- lists


def _of_list(items: Sequence[Any], shape: tuple[int, ...] | None, dtype: str | None) -> Any:
    """Return a list of paths as it is, and of anything else as one array, matrix or lazy table."""
    if all(isinstance(item, (str, os.PathLike)) for item in items):
        return items
    if all(is_sparse(item) for item in items):
        from scipy.sparse import vstack

        _check_alike(items, dtype)
        return vstack(items, format="csr")
    if all(is_frame(item) or is_lazy_frame(item) for item in items):
        return _joined_frames(items)
    values = [unmasked(item) for item in items]
    is_pictures = all(hasattr(item, "__array_interface__") and not hasattr(item, "shape") for item in items)
    if is_pictures or (shape and len(shape) > 1 and {shape_in_list(item) for item in items} == {shape}):
        samples = [np.asarray(as_source(item) if is_array(item) else item) for item in values]
        return np.stack(_of_one_dtype(samples, dtype))
    refuse_several(items)
    rows = _of_one_dtype(values, dtype)
    try:
        return np.asarray(rows)
    except ValueError:
        raise SourceError(
            f"a list of {counted(len(items), 'row')} was given, which are not all of one length; give rows of one."
        ) from None


def _of_one_dtype(items: Sequence[Any], dtype: str | None) -> list[Any]:
    """Return items of a list with its arrays converted to a dtype; by default refuse those that are not joined."""
    _check_alike(items, dtype)
    if dtype is None:
        return [*items]
    return [_converted(item, dtype, f"array {at} of a list") for at, item in enumerate(items)]


def _converted(item: Any, dtype: str, name: str) -> Any:
    """Return an array of numbers with a dtype, and anything else as it is."""
    if not isinstance(item, np.ndarray) or item.dtype.kind not in "biuf" or item.dtype == dtype:
        return item
    out = np.empty((1, *item.shape), dtype)
    convert(np.ascontiguousarray(item)[None], out, lambda _: name)
    return out[0]


def _check_alike(items: Sequence[Any], dtype: str | None) -> None:
    """Refuse arrays of numbers that are not joined unless it is said in which dtype."""
    numbered = ((at, np.dtype(item.dtype)) for at, item in enumerate(items) if is_array(item) or is_sparse(item))
    dtypes = [(at, dtype) for at, dtype in numbered if dtype.kind in "biuf"]
    for at, other in dtypes if dtype is None else ():
        if common_dtype(other, dtypes[0][1]) is None:
            raise SourceError(
                f"array {at} of a list has dtype {other}, unlike array {dtypes[0][0]} ({dtypes[0][1]}); "
                f"{dtype_remedy(other, dtypes[0][1])}, or convert them by astype."
            )


def _joined_frames(frames: Sequence[Any]) -> Any:
    """Return tables with the same columns one after another."""
    names = [column_names(frame) for frame in frames]
    other = next((at for at, listed in enumerate(names) if listed != names[0]), None)
    if other is not None:
        raise RequestError(
            f"data frame {other} of a list has columns {names[other]}, and the first has {names[0]}; give all the same "
            "columns in one order."
        )
    if is_lazy_frame(frames[0]):
        return joined_frames(frames)
    return np.concatenate([_of_frame(frame) for frame in frames])


def refuse_several(arrays: Sequence[Any]) -> None:
    """Refuse a list that holds arrays of two axes or more: each could be one sample, or a batch of samples.

    Raises
    ------
    SourceError
        Names the calls of numpy that make one array of them; not raised if the list holds no such arrays.
    """
    shapes = [shape_in_list(item) for item in arrays]
    if all(len(shape) < 2 for shape in shapes):
        return
    first = next(shape for shape in shapes if len(shape) > 1)
    numpy = "np.ma" if any(isinstance(item, np.ma.MaskedArray) for item in arrays) else "np"
    if len({shape[1:] for shape in shapes}) > 1:
        which, how = "not all of one shape", "give one of them"
    elif len(set(shapes)) > 1:
        which, how = "of several lengths", f"if these are batches of samples, give {numpy}.concatenate(arrays)"
    else:
        which = "each of which may be one sample, or a batch of samples"
        how = f"give {numpy}.stack(arrays) if it is one sample, or {numpy}.concatenate(arrays) if it is a batch"
    raise SourceError(
        f"a list of {counted(len(shapes), 'array')} was given, the first of {format_shape(first)}, {which}; {how}."
    )


def shape_in_list(item: Any) -> tuple[int, ...]:
    """Return the shape of an item of a list: () for numbers, paths and anything but arrays; nothing is computed."""
    if isinstance(item, (list, tuple)):  # only the first row is looked at: long lists of numbers are common
        return (len(item), *shape_in_list(item[0])) if item else (0,)
    if hasattr(item, "shape"):
        return tuple(item.shape)
    return np.shape(item) if hasattr(item, "__array__") and not is_dataset(item) else ()
