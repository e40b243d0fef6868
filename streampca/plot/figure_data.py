"""Numbers behind a figure: what its lines, points, bars and images show, as rows of a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from ..storage.table_cells import as_cell
from .overview_figure import figure_of

COLUMNS = ("panel", "title", "series", "x name", "x", "y name", "y", "value")
MOST_PIXELS = 200_000  # of all images of a figure; more are arrays of the model or the source, and no table


def figure_data(figure_or_axes: Any) -> bytes:
    """Return the numbers that a figure shows as CSV in UTF-8, one row for each point, bar or pixel.

    Columns are the number and title of the panel, the name of a line or group of points, the names of the axes with
    their units, coordinates, and the value of a pixel or of a coloured point. Images are left out if a figure has more
    than 200000 pixels.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    panels: list[Any] = figure_of(figure_or_axes).axes
    pixels = sum(image.get_array().size for ax in panels for image in ax.images)
    for number, ax in enumerate(panels, start=1):
        if ax.get_label() == "<colorbar>":
            continue
        title = ax.get_title() or ax.get_title(loc="left")
        names = [axis.get_label_text() for axis in (ax.xaxis, ax.yaxis)]
        for series, x, y, value in _rows(ax, has_images=pixels <= MOST_PIXELS):
            words = map(as_cell, (title.replace("\n", ", "), series, names[0], names[1]))
            title_cell, series_cell, x_name, y_name = words
            writer.writerow([number, title_cell, series_cell, x_name, x, y_name, y, value])
    return text.getvalue().encode("utf-8", "backslashreplace")


def _rows(ax: Any, *, has_images: bool) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield name, coordinates and value of all that a panel shows, but lines across all of it."""
    names = (f"series {number}" for number in count(1))
    for line in ax.lines:
        if line.get_transform() != ax.transData:  # a mark across the panel, at a value or a quantile
            continue
        label = str(line.get_label())
        name = next(names) if label.startswith("_") else label
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
            yield name, _plain(x), _plain(y), ""
    for points in ax.collections:
        places, values = np.ma.getdata(points.get_offsets()), points.get_array()
        if len(places) > 1 or values is not None:
            name = next(names)
            shown = [""] * len(places) if values is None else np.ma.getdata(values).ravel().tolist()
            for (x, y), value in zip(places.tolist(), shown, strict=False):
                yield name, _plain(x), _plain(y), value
    for bars in ax.containers:
        name = str(bars.get_label())
        for bar in getattr(bars, "patches", []):
            yield name, _plain(bar.get_x() + bar.get_width() / 2), _plain(bar.get_height()), ""
    for image in ax.images if has_images else ():
        pixels: Any = np.asarray(np.ma.filled(np.ma.asarray(image.get_array(), float), np.nan))
        for channel, plane in zip(
            ("",) if pixels.ndim == 2 else ("red", "green", "blue"), _planes(pixels), strict=False
        ):
            for (row, column), value in np.ndenumerate(plane):
                yield f"image {channel}".strip(), column, row, _plain(value)


def _planes(pixels: Any) -> Any:
    return (pixels,) if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def _plain(value: Any) -> Any:
    """Return a number with the digits that restore it as float32, and a date as ISO 8601 writes it."""
    if isinstance(value, np.datetime64):
        return np.datetime_as_string(value, unit="auto")
    return f"{float(value):.9g}"
