"""Georeferencing of images: tags of GeoTIFF, and the variable ``spatial_ref`` that CF and rioxarray make of them.

References: OGC GeoTIFF Standard 1.1 (19-008r4); CF conventions, section 5.6 (grid mappings); GDAL's GeoTransform, of
which ``x = c + a * column + b * row`` and ``y = f + d * column + e * row`` give the outer corner of a pixel. Nothing is
reprojected, and no library of projections is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .coordinate import Coordinate

SPATIAL_REF = "spatial_ref"
GRID_MAPPING = "grid_mapping"  # attribute that names an array's reference (CF, section 5.6)
BAND = "band"  # the axis of values beside one another in a pixel of a georeferenced image
SIDES = ("y", "x")

_SCALE, _TIEPOINTS, _TRANSFORMATION = 33550, 33922, 34264
_DIRECTORY, _DOUBLES, _ASCII = 34735, 34736, 34737
_NO_DATA = 42113  # GDAL's
# Tags whose values are kept as they are, under the names that the standard gives them.
_KEY_TAGS = {_DIRECTORY: "GeoKeyDirectoryTag", _DOUBLES: "GeoDoubleParamsTag", _ASCII: "GeoAsciiParamsTag"}
_PLACE_TAGS = {_SCALE: "ModelPixelScaleTag", _TIEPOINTS: "ModelTiepointTag", _TRANSFORMATION: "ModelTransformationTag"}
_MODEL_TYPE, _RASTER_TYPE, _CITATION, _GEOGRAPHIC, _PROJECTED, _LINEAR_UNITS = 1024, 1025, 1026, 2048, 3072, 3076
_PROJECTED_MODEL, _GEOGRAPHIC_MODEL = 1, 2
_POINT, _USER_DEFINED = 2, 32767
_UNITS = {9001: "metre", 9002: "foot", 9003: "US_survey_foot"}
_PE_STRING = "ESRI PE String = "
_CODE = re.compile(r'(?:AUTHORITY\["EPSG",\s*"?(\d+)"?\]|ID\["EPSG",\s*(\d+)\])\s*\]\s*$', re.IGNORECASE)
_TOLERANCE = 1 / 8  # of a pixel, by which places of images that are rotated may differ


class Georeference(NamedTuple):
    """Where the pixels of an image lie.

    Attributes
    ----------
    transform : tuple of 6 floats, or None
        ``(c, a, b, f, d, e)``; None where tie points say more than such a map does, or nothing.
    attributes : tuple of (str, value)
        Those of ``spatial_ref``.
    geographic : bool
        Whether coordinates are latitudes and longitudes.
    units : str or None
        Unit of the others, where it is said.
    """

    transform: tuple[float, ...] | None
    attributes: tuple[tuple[str, Any], ...]
    geographic: bool
    units: str | None

    @property
    def is_rotated(self) -> bool:
        """True where rows and columns do not lie along the axes of the coordinates."""
        return self.transform is not None and (self.transform[2] != 0 or self.transform[4] != 0)

    def coordinates(self, rows: int, columns: int) -> dict[str, Coordinate]:
        """Return the centres of pixels along ``y`` and ``x``, unless these are rotated, and ``spatial_ref``."""
        found: dict[str, Coordinate] = {}
        about = {name: list(value) if isinstance(value, tuple) else value for name, value in self.attributes}
        if self.is_rotated:
            about["GeoTransform"] = " ".join(map(repr, self.transform or ()))
        elif self.transform is not None:
            c, a, _, f, _, e = self.transform
            found["y"] = Coordinate(f + e * (np.arange(rows) + 0.5), self._axis("Y"))
            found["x"] = Coordinate(c + a * (np.arange(columns) + 0.5), self._axis("X"))
        return {**found, SPATIAL_REF: Coordinate(np.array(0), about)}

    def _axis(self, letter: str) -> dict[str, str]:
        if self.geographic:
            name, unit = ("latitude", "degrees_north") if letter == "Y" else ("longitude", "degrees_east")
            return {"axis": letter, "standard_name": name, "units": unit}
        said = {} if self.units is None else {"units": self.units}
        return {"axis": letter, "standard_name": f"projection_{letter.lower()}_coordinate", **said}


def georeference_of(value_of: Callable[[int], Any]) -> Georeference | None:
    """Return what the tags of a page say, given a function that returns a tag's value or None; None where nothing."""
    tags = {code: value_of(code) for code in (*_PLACE_TAGS, *_KEY_TAGS)}
    if all(value is None for value in tags.values()):
        return None
    keys = _keys(tags[_DIRECTORY], tags[_DOUBLES], tags[_ASCII])
    transform = _transform(tags, point=keys.get(_RASTER_TYPE) == _POINT)
    kept = _KEY_TAGS if transform is not None else _KEY_TAGS | _PLACE_TAGS
    raw = {name: _plain(tags[code]) for code, name in kept.items() if tags[code] is not None}
    text = next((str(value) for key, value in keys.items() if _PE_STRING in str(value)), "")
    wkt = text.partition(_PE_STRING)[2].strip("|\0 ")
    geographic = keys.get(_MODEL_TYPE) == _GEOGRAPHIC_MODEL
    code = keys.get(_GEOGRAPHIC if geographic else _PROJECTED)
    said: dict[str, Any] = {"crs_wkt": wkt, SPATIAL_REF: wkt} if wkt else {}
    if isinstance(code, int) and 0 < code < _USER_DEFINED:
        said = {"epsg_code": f"EPSG:{code}", SPATIAL_REF: f"EPSG:{code}"} | said
    unit = keys.get(_LINEAR_UNITS)
    return Georeference(transform, tuple({**said, **raw}.items()), geographic, _UNITS.get(unit) if unit else None)


def _plain(value: Any) -> Any:
    """Return a tag's value as text or a tuple of numbers."""
    if isinstance(value, (str, bytes)):
        return (value.decode("latin-1") if isinstance(value, bytes) else value).rstrip("\0")
    return tuple(np.atleast_1d(np.asarray(value)).tolist())


def _keys(directory: Any, doubles: Any, texts: Any) -> dict[int, Any]:
    """Return the values of geographic keys by number; what a broken directory points to is left out."""
    if directory is None or isinstance(directory, (str, bytes)):
        return {}
    numbers = np.atleast_1d(np.asarray(directory)).tolist()
    text = _plain(texts) if isinstance(texts, (str, bytes)) else ""
    values = _plain(doubles) if doubles is not None else ()
    found: dict[int, Any] = {}
    for key, place, count, value in (numbers[at : at + 4] for at in range(4, len(numbers) - 3, 4)):
        if place == 0:
            found[int(key)] = int(value)
        elif place == _DOUBLES:
            found[int(key)] = tuple(values[value : value + count])
        elif place == _ASCII:
            found[int(key)] = text[value : value + count].rstrip("|")
    return found


def _transform(tags: Mapping[int, Any], *, point: bool) -> tuple[float, ...] | None:
    """Return the map from columns and rows to coordinates of outer corners, whether tags are of corners or centres."""
    found: list[tuple[Any, ...]] = [
        () if tags[code] is None or isinstance(tags[code], (str, bytes)) else _plain(tags[code])
        for code in (_SCALE, _TIEPOINTS, _TRANSFORMATION)
    ]
    scale, ties, matrix = found
    if len(scale) >= 2 and len(ties) >= 6 and scale[0] and scale[1]:
        a, b, d, e = float(scale[0]), 0.0, 0.0, -abs(float(scale[1]))  # a negative scale is taken so by GDAL, too
        c, f = ties[3] - ties[0] * a, ties[4] - ties[1] * e
    elif len(matrix) == 16:
        a, b, c, d, e, f = (float(matrix[at]) for at in (0, 1, 3, 4, 5, 7))
    else:
        return None
    if point:
        c, f = c - (a + b) / 2, f - (d + e) / 2
    numbers = (float(c), a, b, float(f), d, e)
    return numbers if np.isfinite(numbers).all() and a * e - b * d != 0 else None


# -- the variable


def is_reference(attributes: Mapping[str, Any]) -> bool:
    """Return whether a variable of no axis says in which reference system coordinates are."""
    return not attributes.keys().isdisjoint(
        ("crs_wkt", SPATIAL_REF, "grid_mapping_name", "epsg_code", *_KEY_TAGS.values())
    )


def reference_name(known: Mapping[str, Coordinate]) -> str | None:
    """Return the name of the reference system among coordinates; None where there is none."""
    return next(
        (name for name, each in known.items() if np.ndim(each.values) == 0 and is_reference(each.attributes)), None
    )


def reference_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what one and another reference say, where that is comparable and not the same; of maps, all six numbers.

    Systems are compared by their code of EPSG, by their text (WKT), or by their keys of numbers.
    """
    systems = _system(one), _system(other)
    if systems[0] and systems[1] and systems[0][0] == systems[1][0] and systems[0] != systems[1]:
        return str(systems[0][1]), str(systems[1][1])
    maps = _map_of(one), _map_of(other)
    if maps[0] is None and maps[1] is None:
        names = _PLACE_TAGS.values()
        raw = [str([list(about.get(name, ())) for name in names]) for about in (one, other)]
        return (f"tie points {raw[0]}", f"tie points {raw[1]}") if raw[0] != raw[1] else None
    texts = [str(about.get("GeoTransform", "none")) for about in (one, other)]
    if maps[0] is not None and maps[1] is not None:
        pixel = float(np.abs(maps[1][[1, 2, 4, 5]]).max())
        tolerance = np.array([1, 1e-6, 1e-6, 1, 1e-6, 1e-6]) * _TOLERANCE * pixel
        if (np.abs(maps[0] - maps[1]) <= tolerance).all():
            return None
    return f"GeoTransform {texts[0]}", f"GeoTransform {texts[1]}"


def _map_of(about: Mapping[str, Any]) -> np.ndarray[Any, Any] | None:
    """Return the six numbers of a rotated map, which stand in no coordinates; None where there is none."""
    try:
        numbers = np.array(str(about.get("GeoTransform", "")).split(), np.float64)
    except ValueError:
        return None
    return numbers if len(numbers) == 6 and (numbers[2] or numbers[4]) else None


def _system(about: Mapping[str, Any]) -> tuple[str, Any] | None:
    wkt = str(about.get("crs_wkt") or about.get(SPATIAL_REF) or "")
    code = re.fullmatch(r"EPSG:(\d+)", str(about.get("epsg_code") or wkt)) or _CODE.search(wkt)
    if code:
        return "EPSG", f"EPSG:{code[1] or code[2]}"
    if wkt:
        return "WKT", wkt
    directory, doubles = about.get(_KEY_TAGS[_DIRECTORY]), about.get(_KEY_TAGS[_DOUBLES])
    keys = {key: value for key, value in _keys(directory, doubles, None).items() if not isinstance(value, str)}
    keys.pop(_RASTER_TYPE, None)
    return ("keys", keys) if keys else None


def moved(reference: Coordinate, axis: int, start: float, step: float) -> Coordinate:
    """Return a reference whose rows (axis 0) or columns (axis 1) begin at pixel `start`, and are `step` pixels each."""
    numbers = _map_of(reference.attributes)
    if numbers is None:
        return reference
    c, a, b, f, d, e = numbers.tolist()
    dx, dy = (b, e) if axis == 0 else (a, d)
    c, f = c + dx * start, f + dy * start
    a, b, d, e = (a, b * step, d, e * step) if axis == 0 else (a * step, b, d * step, e)
    text = " ".join(map(repr, (c, a, b, f, d, e)))
    return reference._replace(attributes={**reference.attributes, "GeoTransform": text})


# -- writing


def geotiff_tags(known: Mapping[str, Coordinate]) -> list[tuple[int, str, int, Any, bool]]:
    """Return the tags that keep coordinates ``y`` and ``x`` and their reference, as `tifffile` takes further tags.

    NaN stands for no value. Without a reference system there is this tag alone.
    """
    tags: list[tuple[int, str, int, Any, bool]] = [(_NO_DATA, "s", 0, "nan", False)]
    name = reference_name(known)
    if name is None:
        return tags
    about = known[name].attributes
    keys = {code: about[name] for code, name in _KEY_TAGS.items() if name in about} or _keys_of(about)
    found: dict[int, Any] = {code: about[name] for code, name in _PLACE_TAGS.items() if name in about}
    numbers = _map_of(about)
    transform = _map_along(known) if numbers is None else tuple(numbers.tolist())
    if transform is not None:
        point = _keys(keys.get(_DIRECTORY), None, None).get(_RASTER_TYPE) == _POINT
        found = _place_tags(transform, shift=0.5 if point else 0.0)
    for code, value in sorted({**found, **keys}.items()):
        if isinstance(value, str):
            tags.append((code, "s", 0, value, False))
        else:
            tags.append((code, "H" if code == _DIRECTORY else "d", len(value), tuple(value), False))
    return tags


def _map_along(known: Mapping[str, Coordinate]) -> tuple[float, ...] | None:
    """Return the map of coordinates along rows and columns that are evenly apart; None where they are not."""
    y, x = (_start_and_step(known.get(name)) for name in SIDES)
    if y is None or x is None or y[1] is x[1] is None:
        return None
    # A single line is as wide as its pixels are long.
    e, a = (-abs(x[1] or 0) if y[1] is None else y[1]), (abs(y[1] or 0) if x[1] is None else x[1])
    return x[0] - a / 2, a, 0.0, y[0] - e / 2, 0.0, e


def _start_and_step(each: Coordinate | None) -> tuple[float, float | None] | None:
    values = None if each is None else np.asarray(each.values)
    if values is None or values.ndim != 1 or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        return None
    values = values.astype(np.float64)
    if len(values) < 2:
        return float(values[0]), None
    step = (values[-1] - values[0]) / (len(values) - 1)
    off = np.abs(values - (values[0] + step * np.arange(len(values)))).max()
    return (float(values[0]), float(step)) if step and off <= _TOLERANCE * abs(step) else None


def _place_tags(transform: Sequence[float], *, shift: float) -> dict[int, Any]:
    """Return a scale and a tie point where rows go south and columns east, else a matrix, of places in pixels."""
    c, a, b, f, d, e = transform
    x, y = c + (a + b) * shift, f + (d + e) * shift
    if b == d == 0 and a > 0 > e:
        return {_SCALE: (a, -e, 0.0), _TIEPOINTS: (0.0, 0.0, 0.0, x, y, 0.0)}
    return {_TRANSFORMATION: (a, b, 0.0, x, d, e, 0.0, y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)}


def _keys_of(about: Mapping[str, Any]) -> dict[int, Any]:
    """Return keys of areas in a system that is known by its code, or by its text as ArcGIS writes it."""
    system, wkt = _system(about), str(about.get("crs_wkt") or about.get(SPATIAL_REF) or "")
    is_geographic = wkt.upper().startswith("GEOG") or about.get("grid_mapping_name") == "latitude_longitude"
    model = _GEOGRAPHIC_MODEL if is_geographic else _PROJECTED_MODEL
    entries = [(_MODEL_TYPE, 0, 1, model), (_RASTER_TYPE, 0, 1, 1)]
    found: dict[int, Any] = {}
    if system is not None and system[0] == "EPSG":
        code = int(system[1].partition(":")[2])
        entries.append((_GEOGRAPHIC if is_geographic else _PROJECTED, 0, 1, code))
    elif wkt:
        found[_ASCII] = f"{_PE_STRING}{wkt}|"
        entries.append((_CITATION, _ASCII, len(found[_ASCII]), 0))
        entries.append((_GEOGRAPHIC if is_geographic else _PROJECTED, 0, 1, _USER_DEFINED))
    return {_DIRECTORY: (1, 1, 0, len(entries), *(number for entry in entries for number in entry)), **found}
