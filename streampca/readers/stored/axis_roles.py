"""Roles of axes, by which they count samples or make one, from attributes of their coordinates, then from their names.

Attributes are those of the CF conventions (https://cfconventions.org, section 4): ``axis``, ``standard_name``, and
``units`` of dates and of degrees. Names are those of climate models (WRF, ROMS, NEMO, MOM, CORDEX), projected grids,
pictures and microscopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ...storage.coordinate import Coordinate, Described
from ...storage.georeference import GRID_MAPPING, reference_name
from ...storage.pixel_sizes import is_colour
from ..coordinates import DEGREES_EAST, DEGREES_NORTH, has_dates


class Role(Enum):
    """Role of an axis. `PIXELS` lie along the surface of the earth, in an unknown direction."""

    SAMPLES = "samples"
    Y = "y"
    X = "x"
    PIXELS = "pixels"
    COLOURS = "colours"
    FEATURES = "features"
    OTHER = "other"


class DefaultAxes(NamedTuple):
    """Axes chosen for one sample, and whether their position alone decided."""

    inner: tuple[int, ...]
    by_position: bool = False


_PAIRS = (
    ("y", "x"), ("lat", "lon"), ("latitude", "longitude"), ("lats", "lons"), ("nlat", "nlon"), ("rlat", "rlon"),
    ("grid_latitude", "grid_longitude"), ("projection_y_coordinate", "projection_x_coordinate"),
    ("south_north", "west_east"), ("south_north_stag", "west_east_stag"), ("xlat", "xlong"),
    ("eta_rho", "xi_rho"), ("eta_u", "xi_u"), ("eta_v", "xi_v"), ("eta_psi", "xi_psi"), ("eta", "xi"),
    ("nav_lat", "nav_lon"), ("j", "i"), ("nj", "ni"), ("j_g", "i_g"), ("ny", "nx"), ("yc", "xc"), ("yg", "xg"),
    ("yh", "xh"), ("yq", "xq"), ("yt_ocean", "xt_ocean"), ("yu_ocean", "xu_ocean"),
    ("northing", "easting"), ("northings", "eastings"), ("row", "column"), ("rows", "columns"), ("row", "col"),
    ("rows", "cols"),
)  # fmt: skip
_PICTURE = {"height": Role.Y, "width": Role.X}  # only together: a height alone is above the ground
_TIMES = ("time", "times", "t", "date", "dates", "datetime", "time_counter", "ocean_time", "valid_time")
_WORDS = (
    "sample", "samples", "member", "members", "realization", "realizations", "realisation", "ensemble", "ens",
    "ensemble_member", "number", "run", "runs", "position", "positions", "scene", "scenes", "frame", "frames",
)  # fmt: skip
_FEATURES = ("feature", "features", "component", "components", "variable", "variables", "pc", "mode", "modes")
_OF_NAME = {
    **{y: Role.Y for y, _ in _PAIRS},
    **{x: Role.X for _, x in _PAIRS},
    **dict.fromkeys((*_TIMES, *_WORDS), Role.SAMPLES),
    **dict.fromkeys(_FEATURES, Role.FEATURES),
}
_OF_AXIS = {"T": Role.SAMPLES, "Y": Role.Y, "X": Role.X, "Z": Role.OTHER, "C": Role.COLOURS}
_OF_STANDARD_NAME = {
    **dict.fromkeys(("time", "forecast_reference_time", "realization"), Role.SAMPLES),
    **dict.fromkeys(("latitude", "grid_latitude", "projection_y_coordinate"), Role.Y),
    **dict.fromkeys(("longitude", "grid_longitude", "projection_x_coordinate"), Role.X),
}


def roles_of(dims: Sequence[str], described: Mapping[str, Described | Coordinate]) -> tuple[Role, ...]:
    """Return the role of each axis, given its name and the attributes of the coordinates along the axes, by name.

    In order of precedence: attributes of the coordinate with the axis's name, other coordinates along the axis that
    count samples, the axis's name, and a grid of latitudes and longitudes over two axes.
    """
    names = {dim.lower() for dim in dims}
    roles: dict[str, Role | None] = {}
    for dim in dims:
        coordinate_of_axis = described.get(dim)
        others = [coord.attributes for name, coord in described.items() if name != dim and coord.along(name) == (dim,)]
        roles[dim] = (
            (None if coordinate_of_axis is None else role_of_attributes(coordinate_of_axis.attributes))
            or (Role.SAMPLES if any(role_of_attributes(about) is Role.SAMPLES for about in others) else None)
            or role_of_name(dim, names)
        )
    for name, coord in described.items():
        undecided = [dim for dim in coord.along(name) if roles.get(dim, Role.OTHER) is None]
        curved = len(coord.along(name)) > 1 and 0 < len(undecided) <= 2
        if curved and (role_of_attributes(coord.attributes) or role_of_name(name)) in (Role.Y, Role.X):
            roles |= dict.fromkeys(undecided, Role.PIXELS)
    return tuple(roles[dim] or Role.OTHER for dim in dims)


def role_of(name: str, attributes: Mapping[str, Any]) -> Role:
    """Return the role of an axis, given its name and the attributes of its coordinate."""
    return role_of_attributes(attributes) or role_of_name(name) or Role.OTHER


def role_of_attributes(attributes: Mapping[str, Any]) -> Role | None:
    """Return the role of an axis by the attributes of its coordinate; None if they do not determine it."""
    axis, standard, units = (attributes.get(name) for name in ("axis", "standard_name", "units"))
    if isinstance(axis, str) and axis.upper() in _OF_AXIS:
        return _OF_AXIS[axis.upper()]
    if isinstance(standard, str) and standard in _OF_STANDARD_NAME:
        return _OF_STANDARD_NAME[standard]
    if has_dates(attributes):
        return Role.SAMPLES
    if isinstance(units, str) and units in (*DEGREES_NORTH, *DEGREES_EAST):
        return Role.Y if units in DEGREES_NORTH else Role.X
    return Role.OTHER if "positive" in attributes else None  # only vertical axes have that attribute


def role_of_name(name: str, beside: Iterable[str] = ()) -> Role | None:
    """Return the role of an axis by its name, in any case; `beside` are the lower-case names of other axes."""
    name = name.lower()
    if name in _PICTURE and {*_PICTURE} <= {name, *beside}:
        return _PICTURE[name]
    return _OF_NAME.get(name) or (Role.COLOURS if is_colour(name) else None)


def grid_mapping(dims: Sequence[str], known: Mapping[str, Coordinate]) -> dict[str, str]:
    """Return the attribute that names the reference system of an array's pixels; none of one without y and x axes."""
    name = reference_name(known)
    if name is None:
        return {}
    over = sum(role in (Role.Y, Role.X, Role.PIXELS) for role in roles_of(dims, known))
    return {GRID_MAPPING: name} if over > 1 else {}


def default_axes(axes: Sequence[int], shape: Sequence[int], roles: Sequence[Role] | None) -> DefaultAxes:
    """Choose the axes of one sample among some axes of an array; all but the first without names.

    All axes with the role of samples count samples. Without one, samples are counted by the first axis with several
    entries that is not along a picture, nor of colours or features. Without such an axis, an axis of features counts
    pictures, or makes the rows of a table; otherwise the array is a single image.
    """
    if len(axes) < 2:
        return DefaultAxes(())
    if roles is None:
        return DefaultAxes(tuple(axes[1:]), by_position=True)
    outer = [axis for axis in axes if roles[axis] is Role.SAMPLES]
    others = [axis for axis in axes if roles[axis] is Role.OTHER]
    others = [axis for axis in others if shape[axis] > 1] or others
    if len(outer) == len(axes):
        return DefaultAxes(tuple(axes[1:]), by_position=True)
    features = [axis for axis in axes if roles[axis] is Role.FEATURES]
    if not outer and not others and features:
        if len(axes) > 2:  # several pictures, such as the components of a model
            return DefaultAxes(tuple(axis for axis in axes if axis != features[0]))
        return DefaultAxes((features[-1],), by_position=True)
    by_position = not outer and len(others) > 1
    outer = outer or others[:1]
    return DefaultAxes(tuple(axis for axis in axes if axis not in outer), by_position)


def page_axes(axes: Sequence[int], dims: Sequence[str]) -> DefaultAxes:
    """Choose the axes of one page of a file of pages: y, x and colours."""
    inner = tuple(axis for axis in axes if dims[axis] in ("y", "x") or is_colour(dims[axis]))
    return DefaultAxes(inner or tuple(axes[1:]))
