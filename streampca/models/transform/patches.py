"""Pictures assembled from the windows that they were cut into, and written line by line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...errors import RequestError
from ...planning.boxes import Box
from ...planning.component_chunks import Cut
from ...preprocessing import Frame
from ...readers import Collection
from ...readers.collection import counting_dim, sample_dims
from ...readers.views.patches import Patches
from ...readers.windows import Lines, Windows
from ...storage.writers import OutputArray, Writer


def patches_of(collection: Collection, frame: Frame) -> Patches:
    """Return the patches that the prepared samples of a collection are.

    Raises
    ------
    RequestError
        If samples are not patches, or are prepared to another shape.
    """
    raw = getattr(collection, "raw", collection)
    if not isinstance(raw, Patches):
        raise RequestError(
            f"{collection.source} is not cut into patches, of which whole pictures could be put together; give "
            "--patches (patches=...) as for the fit, without samples or where, or leave out --whole (whole=True)."
        )
    if raw.sample_shape != frame.sample_shape:
        raise RequestError(
            f"patches of {collection.source} are prepared to another shape, and do not fit its pictures any more; "
            "leave out --whole (whole=True), or fit a model of patches as they are."
        )
    return raw


def table_of(patches: Patches, table: OutputArray) -> OutputArray:
    """Return the output table of the pictures that windows were cut from; of a single picture, its lines are rows."""
    base, windows, dims = patches.base, patches.windows, sample_dims(patches.base)
    if base.n_samples == 1:
        rows: dict[str, Any] = {"shape": windows.image, "dims": dims, "names": None, "chunk_rows": windows.band_lines}
        return replace(table, **rows, counts=False, coordinates=base.coordinates, sample_coordinates={}, renamed={})
    box = (1, min(windows.band_lines, windows.image[0]), *windows.image[1:])
    return replace(
        table,
        shape=base.shape,
        dims=(counting_dim(base), *dims),
        names=base.sample_names(),
        coordinates=base.coordinates,
        sample_coordinates=base.sample_coordinates(),
        renamed={},
        cut=Cut(box, box),
    )


def write_lines(writer: Writer, finished: Iterable[Lines], windows: Windows, *, several: bool) -> None:
    """Write finished lines of pictures, those of a single one as rows; see `table_of`."""
    for lines in finished:
        if several:
            inside: Box = (slice(lines.start, lines.start + len(lines.values)),)
            inside += tuple(slice(0, length) for length in windows.image[1:])
            writer.write(lines.image, lines.values[None], inside)
        else:
            writer.write(lines.start, lines.values)
