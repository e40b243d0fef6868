"""Default fill values of NetCDF, which files without ``_FillValue`` hold where no value was written.

The numbers are those of netcdf.h (https://docs.unidata.ucar.edu/nug/current/, "Fill Values"). Bytes have none here: the
documentation advises against treating their default as missing, as all of their 256 values are in use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_FLOAT = float.fromhex("0x1.ep+122")
_OF_KIND = {
    "i2": -32767, "i4": -2147483647, "i8": -9223372036854775806, "u2": 65535, "u4": 4294967295,
    "u8": 18446744073709551614, "f4": _FLOAT, "f8": _FLOAT,
}  # fmt: skip


def default_fill(dtype: np.dtype[Any]) -> Any:
    """Return the default fill value of a dtype as a numpy number in native byte order; None if it has none."""
    number = _OF_KIND.get(dtype.str[1:])
    return None if number is None else dtype.newbyteorder("=").type(number)
