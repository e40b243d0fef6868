"""`READERS`, the registry of formats: a new one takes a file in this folder and a row here.

A row holds the function that recognizes a source (`detect.py`) and the function that opens it. Other packages add rows
by the entry-point group ``streampca.readers``: each entry is a `Format`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from . import detect
from .collection import Collection


@dataclass(frozen=True)
class Format:
    """One row of the table.

    Attributes
    ----------
    name : str
        Common name of the format.
    matches : callable
        ``matches(source) -> bool``; source is a path as text, a list of paths, or an object. It must be cheap: it can
        read a file's first bytes.
    module, function : str
        Location of ``function(source, *, key, sample_axes, select) -> Collection``; imported on first use.
    options : tuple of str
        Further options of `Opening` that the function accepts as keywords. With "opener", it takes a
        `streampca.readers.opener.Opener` in their
        place, which opens the files that the source is made of.
    """

    name: str
    matches: Callable[[Any], bool]
    module: str
    function: str
    options: tuple[str, ...] = ()

    def open(self, source: Any, **options: Any) -> Collection:
        """Open `source` with this format's function."""
        function = getattr(import_module(self.module, __package__), self.function)
        collection: Collection = function(source, **options)
        return collection


READERS: list[Format] = [
    Format("sparse", detect.is_sparse, ".sparse", "open_sparse"),
    Format("lazy frame", detect.is_lazy_frame, ".dask", "open_frame"),
    Format("array", detect.is_array, ".array_objects", "open_array"),
    Format("container", detect.is_container, ".array_objects", "open_container"),
    Format("npy", detect.is_npy, ".npy", "open_npy"),
    Format("npz", detect.is_npz, ".npy", "open_npz"),
    Format("idx", detect.is_idx, ".idx", "open_idx"),
    Format("zarr", detect.is_zarr, ".zarr", "open_zarr"),
    Format("tiff", detect.is_tiff, ".tiff", "open_tiff", options=("coordinates", "reading", "dtype")),
    Format("gif", detect.is_animated_gif, ".gif", "open_gif"),
    Format("hdf5", detect.is_hdf5, ".hdf5", "open_hdf5"),
    Format("netcdf", detect.is_classic_netcdf, ".netcdf", "open_netcdf"),
    Format("fits", detect.is_fits, ".fits", "open_fits"),
    Format("score table", detect.is_score_table, ".score_tables", "open_score_table"),
    Format("joined", detect.is_array_files, ".views.joined", "open_joined", options=("opener",)),
    Format("images", detect.is_paths, ".images", "open_images", options=("opener",)),
]


@cache
def readers() -> tuple[Format, ...]:
    """Return all rows: first those of other packages, so that they can replace a format, then ours."""
    return (*(entry.load() for entry in entry_points(group="streampca.readers")), *READERS)
