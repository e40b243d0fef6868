"""Graphs of nearest neighbours in Zarr, format 1: the rows of a sparse matrix of distances, in CSR form.

``indices`` and ``data`` hold the neighbours of every sample and their distances, row by row; sample i has entries
``indptr[i]`` to ``indptr[i + 1]``. The root attribute ``streampca`` holds ``kind: "neighbors"``, ``complete: true`` and
the provenance. Every chunk has a checksum.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import RequestError
from ..storage.disk import expanded
from ..storage.integrity import FORMAT, GRAPH, OpenModel, read_model
from ..storage.locks import output_lock
from ..storage.outputs import check_existing, group_attribute
from ..storage.stored_arrays import NamedArray, write_group
from .neighbor_graph import NeighborGraph

KIND = "neighbors"


def save_graph(graph: NeighborGraph, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a graph to a folder ending in ``.zarr``, which gets this name when it is complete.

    Raises
    ------
    RequestError
        If the name does not end in ``.zarr``.
    OutputError
        If the path exists (and `overwrite` is false, or it is not a graph), or cannot be written.
    """
    path = expanded(path)
    n, k = graph.indices.shape
    arrays = {
        # CSR form, which other programs read as a sparse matrix.
        "indptr": NamedArray(("row_start",), np.arange(n + 1, dtype=np.int64) * k),
        "indices": NamedArray(("edge",), graph.indices.reshape(-1)),
        "data": NamedArray(("edge",), graph.distances.reshape(-1)),
        "n_samples": NamedArray((), np.int64(n)),
    }
    with output_lock(path):
        check_graph_output(path, overwrite=overwrite)
        write_group(path, arrays, {"format": FORMAT, "kind": KIND, "provenance": dict(graph.provenance)})


def check_graph_output(path: str, *, overwrite: bool) -> None:
    """Refuse a path where a graph cannot be written; raises as `save_graph`."""
    bare = path.rstrip("/")
    if not bare.lower().endswith(".zarr"):
        raise RequestError(f"output {path} does not end in .zarr, and graphs are Zarr folders; choose such a name.")
    check_existing(bare, "a graph", overwrite=overwrite, is_another=lambda path: not is_graph(path))


def is_graph(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a graph of neighbours, as `neighbors` writes it.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> graph = streampca.neighbors(np.array([[0.0], [1.0], [5.0]]), n_neighbors=1, output="graph.zarr")
    >>> streampca.is_graph("graph.zarr")
    True
    """
    about = group_attribute(expanded(path))
    return about is not None and about.get("kind") == KIND


def load_graph(path: str | os.PathLike[str]) -> NeighborGraph:
    """Read a graph written by `streampca.neighbors`.

    Raises
    ------
    ModelError
        If it is missing, incomplete, damaged, or of a newer format.
    """
    opened = _opened(path)
    indptr, indices, distances = (_required(opened, name) for name in ("indptr", "indices", "data"))
    # Every sample has the same number of neighbours, so that the rows form a matrix.
    n = len(indptr) - 1
    k = len(indices) // n if n > 0 else 0
    if n < 1 or k < 1 or not np.array_equal(indptr, np.arange(n + 1) * k) or len(distances) != len(indices):
        raise opened.damaged("indptr", "rows differ in their number of neighbours")
    if indices.min() < 0 or indices.max() >= n:
        raise opened.damaged("indices", "numbers of samples are out of range")
    if not (distances.min() >= 0 and np.isfinite(distances.max())):
        raise opened.damaged("data", "some values are not distances")
    return NeighborGraph(indices.reshape(n, k), distances.reshape(n, k), opened.about.get("provenance") or {})


def verify_graph(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Read all of a graph and compare it with its checksums; return the number of arrays and of bytes.

    Raises
    ------
    ModelError
        As `load_graph`.
    """
    opened, names = _opened(path), ("data", "indices", "indptr", "n_samples")
    return len(names), sum(map(opened.verify, names))


def _opened(path: str | os.PathLike[str]) -> OpenModel:
    return read_model(expanded(path), (KIND,), GRAPH)


def _required(opened: OpenModel, name: str) -> Array:
    values: Any = opened.read(name)
    if values is None or values.ndim != 1 or not len(values):
        raise opened.damaged(name, "it is missing, or not a row of values")
    return np.asarray(values)
