"""`Preparation`, the steps from raw samples to features: their options, and the shapes they make of shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import index as as_index
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..errors import RequestError, nearest
from ..kinds.description import Description, NamedFields
from ..readers.collection import COLOURS
from ..readers.coordinates import Grid, named_coordinates
from ..readers.detect import is_data_array
from ..units import format_shape, whole_number
from .dtypes import float_of, is_coarse
from .feature_map import FeatureMap, NewProducts
from .grey import greyed
from .kernel_features import KernelFeatures, features_asked, mapping_options
from .learned import Learned
from .normalize import NORMALIZATIONS
from .resize import binned, resized

Range = tuple[int | None, int | None]

ANOMALIES = ("month", "dayofyear", "label")
STORED = ("crop", "grey", "resize", "bin", "normalize", "anomaly", "detrend", "standardize")  # plain


@dataclass(frozen=True, eq=False, kw_only=True)
class Preparation(NamedFields):
    """Steps that make a row of features of each raw sample, in this order.

    Parameters
    ----------
    crop : sequence of (start, stop), optional
        Range kept of each leading axis of the sample, in pixels; negative ones count from the end, None is the edge.
    grey : bool, default=False
        Weigh the last axis (3 or 4 colour channels) into one grey value; alpha is left out. Grey images among coloured
        ones, or where images are resized, stay as they are.
    resize : (height, width), optional
        Resample the first two axes to this size, smoothly, in float32. Images may then be of any size.
    bin : int, default=1
        Replace each q x q square of the first two axes by its mean; a remainder at the far edges is dropped.
    mask : bool ndarray or "valid", optional
        Shape of the sample after the steps above (or of its leading axes); only pixels where it is True are features.
        "valid": those that are finite in every sample. An `xarray.DataArray` is put in the order of the samples' axes
        and coordinates; an array has theirs.
    anomaly : {"month", "dayofyear", "label"}, optional
        Take off the mean of all samples of the same month, day of the year (1 to 366) or label. Months and days are
        those of the dates along the samples, or of labels such as ``"2001-07-23"``.
    detrend : bool, default=False
        Take off the line that fits each feature best along the dates of the samples, after their anomalies were taken.
    standardize : bool, default=False
        Take off each feature's mean and divide it by its standard deviation (dividing by n), after the steps above:
        the analysis is then of correlations. Constant features are left as they are.
    scale : float, ndarray or "area", optional
        Multiplies the features: one positive factor, or one a pixel (shaped as a mask). "area": sqrt(cos(latitude)),
        which weighs the variance of pixels by the area they stand for.
    normalize : {"mean", "norm", "ratio"}, optional
        Last, each row by itself, over the pixels inside the mask: take off its mean; divide it by its Euclidean norm;
        divide it by its mean (as for bleaching).
    feature_map : KernelFeatures, optional
        Last of all: map each row of p features to q others, whose inner products are the values of a kernel, or nearly
        so. Components are then those of kernel PCA.
    learned : Learned, optional
        Arrays that a fit found for anomaly, detrend and standardize; a model applies them to other samples.
    mapped : KernelMap or FourierMap, optional
        Feature map that a fit made for `feature_map`: landmarks and weights, or random frequencies.
    grids : mapping of str to Grid, optional
        Axes and coordinates of mask and scale that were given as a DataArray, until `resolved` has compared them.
    precision : {"single", "double"}, default="single"
        Precision of rows, which a fit sets to its own. "double": float64, whatever the steps. "single": float32 only
        where no offset makes that coarse: departures from what was learned, and whole numbers of 8 bits.

    Attributes
    ----------
    makes_images : bool
        Whether a step computes other images.
    learns : bool
        Whether a step takes off or divides by what is learned of the samples fitted.
    maps : bool
        Whether the last step maps rows of features to others.
    rounds : bool
        Whether a step computes values, and does not only choose some.
    is_identity : bool
        Whether samples are left as they are.
    is_mapped : bool
        Whether the feature map is made, or none is asked for.
    is_resolved : bool
        Whether nothing is left to be found in the data; see `resolved` and ``fitting/learning.py``.

    Raises
    ------
    RequestError
        If a value is wrong by itself.
    """

    crop: tuple[Range, ...] | None = None
    grey: bool = False
    resize: tuple[int, int] | None = None
    bin: int = 1
    mask: npt.NDArray[np.bool_] | str | None = None
    anomaly: str | None = None
    detrend: bool = False
    standardize: bool = False
    scale: float | Array | str | None = None
    normalize: str | None = None
    feature_map: KernelFeatures | None = None
    learned: Learned | None = field(default=None, repr=False)
    mapped: FeatureMap | None = field(default=None, repr=False)
    grids: Mapping[str, Grid] = field(default_factory=dict, repr=False)
    precision: str = field(default="single", repr=False)
    makes_images: bool = field(init=False, repr=False)
    learns: bool = field(init=False, repr=False)
    maps: bool = field(init=False, repr=False)
    rounds: bool = field(init=False, repr=False)
    is_identity: bool = field(init=False, repr=False)
    is_mapped: bool = field(init=False, repr=False)
    is_resolved: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if self.crop is not None:
            try:
                set_(self, "crop", tuple((_end(start), _end(stop)) for start, stop in self.crop))
            except (TypeError, ValueError):
                raise RequestError(
                    f"crop {self.crop!r} is not a range of whole numbers for each axis; give such as ((10, 100), "
                    "(20, 200))."
                ) from None
        if self.resize is not None:
            set_(self, "resize", _size(self.resize))
        set_(self, "bin", whole_number(self.bin, "bin", least=1, example="2, to average squares of 2 x 2 pixels"))
        for name in ("grey", "detrend", "standardize"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise RequestError(f"{name} {getattr(self, name)!r} is neither True nor False; give one of these.")
        if self.feature_map is not None and not isinstance(self.feature_map, KernelFeatures):
            raise RequestError(f"feature_map {self.feature_map!r} is not a KernelFeatures; give one.")
        for value, (name, word) in ((self.mask, ("mask", "valid")), (self.scale, ("scale", "area"))):
            if isinstance(value, str) and value != word:
                raise RequestError(f"{name} {value!r} is not {word!r}; give that, or an array.")
        arrays: dict[str, Any] = {"mask": self.mask, "scale": self.scale}
        named = {name: value for name, value in arrays.items() if value is not None and is_data_array(value)}
        own = {
            name: Grid(tuple(map(str, each.dims)), named_coordinates(each)) for name, each in named.items() if each.ndim
        }
        set_(self, "grids", {**self.grids, **own})
        if self.mask is not None and not isinstance(self.mask, str):
            set_(self, "mask", _kept(self.mask))
        if self.scale is not None and not isinstance(self.scale, str):
            set_(self, "scale", _factor(self.scale))
        for name, choices in (("anomaly", ANOMALIES), ("normalize", NORMALIZATIONS)):
            value = getattr(self, name)
            if value is not None and value not in choices:
                known = list(choices)
                raise RequestError(f"{name} {value!r} is not one of {', '.join(known)}.{nearest(str(value), known)}")
        set_(self, "makes_images", self.grey or self.resize is not None or self.bin > 1)
        set_(self, "learns", self.anomaly is not None or self.detrend or self.standardize)
        set_(self, "maps", self.feature_map is not None)
        weighs = self.scale is not None or self.normalize is not None
        set_(self, "rounds", self.makes_images or self.learns or self.maps or weighs)
        set_(self, "is_identity", not self.rounds and self.crop is None and self.mask is None)
        set_(self, "is_mapped", self.mapped is not None or not self.maps)
        found = (self.learned is not None or not self.learns) and self.is_mapped
        by_name = isinstance(self.mask, str) or isinstance(self.scale, str)
        set_(self, "is_resolved", found and not by_name and not self.grids)

    @property
    def reads_samples(self) -> bool:
        """True where samples are still to be read, to find what the steps need."""
        return isinstance(self.mask, str) or (self.learns and self.learned is None) or not self.is_mapped

    @property
    def of_images(self) -> Preparation:
        """The steps that make images of images, without mask and what comes after it."""
        return self if self.is_identity else replace(self.unlearned, mask=None, grids={}, precision=self.precision)

    @property
    def unlearned(self) -> Preparation:
        """Steps up to the mask, on which anomaly, detrend and standardize learn; in float64."""
        steps = replace(self.unmapped, anomaly=None, detrend=False, standardize=False, learned=None)
        return replace(steps, scale=None, normalize=None, precision="double")

    @property
    def unnormalized(self) -> Preparation:
        """Steps without normalize; all steps where rows are mapped, as mapping is not undone."""
        return self if self.maps else replace(self, normalize=None)

    def multiplying(self, products: NewProducts | None) -> Preparation:
        """Return the same steps with a feature map whose products a device computes, or the processor for None."""
        if self.mapped is None or self.mapped.products is products:
            return self
        return replace(self, mapped=self.mapped.on(products))

    @property
    def unmapped(self) -> Preparation:
        """Steps before the feature map."""
        return replace(self, feature_map=None, mapped=None) if self.maps else self

    def to_json(self) -> dict[str, Any]:
        """Return everything but arrays as plain data; a scale that is one is called "array"."""
        return {
            "crop": None if self.crop is None else [list(pair) for pair in self.crop],
            "grey": self.grey,
            "resize": None if self.resize is None else list(self.resize),
            "bin": self.bin,
            "scale": "array" if isinstance(self.scale, np.ndarray) else self.scale,
            "normalize": self.normalize,
            "anomaly": self.anomaly,
            "detrend": self.detrend,
            "standardize": self.standardize,
            **({} if self.precision == "single" else {"precision": self.precision}),
            **({} if self.feature_map is None else {"feature_map": self.feature_map.to_json()}),
        }

    @classmethod
    def from_json(
        cls,
        data: Mapping[str, Any],
        mask: Array | None = None,
        scale: Array | None = None,
        learned: Learned | None = None,
        feature_map: KernelFeatures | None = None,
        mapped: FeatureMap | None = None,
    ) -> Preparation:
        """Return the preparation whose `to_json` this is, given arrays and feature map; other keys are left alone."""
        stored = {"precision": data.get("precision", "single"), **{name: data[name] for name in STORED}}
        scale = scale if data["scale"] == "array" else data["scale"]
        return cls(**stored, mask=mask, scale=scale, learned=learned, feature_map=feature_map, mapped=mapped)

    def in_precision(self, precision: str) -> Preparation:
        """Return the steps as a fit of a precision takes them: what was "double" once stays so."""
        return replace(self, precision="double") if precision == "double" else self

    def apply(self, samples: Array, dtype: np.dtype[Any] | None = None, *, coloured: bool = True) -> Array:
        """Make images of images, (m, *raw_shape) to (m, *prepared_shape): crop, grey (where coloured), resize, bin.

        Steps that weigh values compute in `dtype`, by default as for rows.
        """
        dtype = self.working_dtype(samples.dtype) if dtype is None else dtype
        samples = self.cropped(samples)
        if coloured and self.weighs(samples.shape[1:]):
            samples = greyed(samples, dtype)
        if self.resize is not None:
            samples = resized(samples, self.resize, dtype)
        if self.bin > 1:
            samples = binned(samples, self.bin, dtype)
        return samples

    def cropped(self, samples: Array) -> Array:
        """Return what `crop` keeps of raw samples, (m, *raw_shape)."""
        if self.crop is None:
            return samples
        return samples[(slice(None), *(slice(*pair) for pair in self.ranges(samples.shape[1:])))]

    def cropped_shape(self, raw_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that `crop` leaves of raw samples of a shape."""
        ranges = self.ranges(raw_shape)
        return (*(stop - start for start, stop in ranges), *raw_shape[len(ranges) :])

    def dtype_of(self, raw: npt.DTypeLike) -> np.dtype[Any]:
        """Return the dtype of rows made of raw values of a dtype."""
        if not self.rounds:
            return np.dtype(raw)
        keeps_single = self.precision == "single" and (self.learns or is_coarse(raw))
        return float_of(self._weighed(raw)) if keeps_single else np.dtype(np.float64)

    def working_dtype(self, raw: npt.DTypeLike) -> np.dtype[Any]:
        """Return the dtype that steps compute in, of raw values of a dtype: float64 until a level is taken off."""
        return np.dtype(np.float64) if self.learns else self.dtype_of(raw)

    def last_dtype(self, before: Preparation, rows: npt.DTypeLike) -> np.dtype[Any]:
        """Return the dtype of what the last step makes of rows of a dtype, that steps `before` it made."""
        return float_of(rows) if before.rounds else self.dtype_of(rows)

    def is_narrow(self, raw: npt.DTypeLike) -> bool:
        """Return whether float32 holds the digits of rows less their mean, whatever dtype they come in."""
        return self.precision == "single" and float_of(self._weighed(raw)) == np.float32

    def _weighed(self, raw: npt.DTypeLike) -> np.dtype[Any]:
        """Return a dtype that has the digits of values that are weighed: resized ones are float32."""
        return np.dtype(np.float32 if self.resize is not None else raw)

    def shape_of_image(self, raw_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a prepared image among others of more or fewer channels; grey ones need no `grey`."""
        return self.of_images.shape_of(raw_shape, coloured=len(raw_shape) > 2)

    def shape_of(self, raw_shape: tuple[int, ...], *, coloured: bool = True) -> tuple[int, ...]:
        """Return the shape of a prepared sample; `grey` is for those that are coloured.

        Raises
        ------
        RequestError
            If a step does not fit samples of `raw_shape`.
        """
        if self.is_identity:
            return raw_shape
        shape = raw_shape if self.crop is None else self.cropped_shape(raw_shape)
        if coloured and self.weighs(shape):
            shape = shape[:-1]
        if self.resize is not None:
            if len(shape) < 2:
                raise RequestError(f"resize needs samples of two axes; they have {len(shape)}. Leave it out.")
            shape = (*self.resize, *shape[2:])
        if self.bin > 1:
            if len(shape) < 2 or min(shape[:2]) < self.bin:
                raise RequestError(
                    f"bin {self.bin} needs samples of at least {self.bin} x {self.bin} pixels; they are "
                    f"{format_shape(shape)}. Use a smaller bin."
                )
            shape = (shape[0] // self.bin, shape[1] // self.bin, *shape[2:])
        self.unmapped._check_arrays(shape)
        return shape if self.mapped is None else (self.mapped.n_features,)

    def image_bytes(self, raw_shape: tuple[int, ...], raw: npt.DTypeLike, working: npt.DTypeLike) -> int:
        """Return the most bytes that `apply` to one sample, mask and scale hold, beside the sample and its row.

        Steps that compute images do so in the dtype `working`.
        """
        cropped = self.cropped_shape(raw_shape)
        given = np.dtype(raw).itemsize * math.prod(cropped)
        width, made = np.dtype(working).itemsize, math.prod(self.unmapped.shape_of(raw_shape))
        weighed = width * math.prod(cropped[:-1]) if self.weighs(cropped) else 0
        most, images = 2 * weighed, weighed  # the sum of colours, and the one being added
        if self.resize is not None:
            plane, sized = math.prod(cropped[:2]), self.resize[0] * self.resize[1]
            channels = 1 if weighed else math.prod(cropped[2:])
            copies = 1 if weighed and width == 4 else 2  # Pillow's own, and one as float32
            half = cropped[0] * self.resize[1]  # rows are shortened first, then columns; the result is copied
            planes, images = 4 * (copies * plane + half + 2 * sized), width * sized * channels
            most = max(most, weighed + planes + images)
        if self.bin > 1:
            most, images = max(most, images + width * made), width * made
        if not self.makes_images and self.crop is not None:
            images = given  # a cropped block is copied when it is flattened
        beside = 0
        if self.mask is not None:
            beside += (
                8 + 1 + (width if self.makes_images else np.dtype(raw).itemsize)
            ) * made  # numbers of pixels kept
        return max(most, images + beside + self.factor_bytes(self.unmapped.shape_of(raw_shape), working))

    def factor_bytes(self, shape: tuple[int, ...], working: npt.DTypeLike) -> int:
        """Return the bytes of the factors of pixels while they are applied to samples of a shape, in a dtype."""
        if not isinstance(self.scale, np.ndarray):
            return 0
        copied = 8 if self.mask is not None or self.scale.shape != shape else 0
        return (copied + np.dtype(working).itemsize % 8) * math.prod(shape)

    def full_mask(self, shape: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
        """Return the mask over the whole prepared sample (a mask of leading axes covers every channel)."""
        return None if self.mask is None or self.maps else _over(np.asarray(self.mask, dtype=bool), shape)

    def full_scale(self, shape: tuple[int, ...]) -> Array | None:
        """Return the factors over the whole prepared sample, shape (*shape), or None where there is one or none."""
        return _over(self.scale, shape) if isinstance(self.scale, np.ndarray) and not self.maps else None

    def weighs(self, shape: tuple[int, ...]) -> bool:
        """Return whether `grey` has colours to weigh in samples of a shape; refuse what is neither colour nor grey."""
        if not self.grey or (self.resize is not None and len(shape) == 2):
            return False
        if len(shape) < 2 or shape[-1] not in COLOURS:
            raise RequestError(
                f"grey needs 3 or 4 colour channels last; samples are {format_shape(shape)}. Leave it out."
            )
        return True

    def ranges(self, raw_shape: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return the range that `crop` keeps of each leading axis of a raw sample."""
        crop = self.crop or ()
        if len(crop) > len(raw_shape):
            raise RequestError(
                f"crop has {len(crop)} ranges and samples are {format_shape(raw_shape)}; give one an axis."
            )
        ranges = []
        for (start, stop), length in zip(crop, raw_shape, strict=False):
            first = 0 if start is None else start + length * (start < 0)
            last = length if stop is None else stop + length * (stop < 0)
            if not 0 <= first < last <= length:
                text = f"{'' if start is None else start}:{'' if stop is None else stop}"
                fault = "takes nothing of" if 0 <= last <= first <= length else "lies outside"
                raise RequestError(
                    f"crop {text} {fault} an axis of {length} pixels; samples are {format_shape(raw_shape)}. "
                    "Keep within it."
                )
            ranges.append((first, last))
        return ranges

    def _check_arrays(self, shape: tuple[int, ...]) -> None:
        """Refuse a mask or factors that do not fit prepared samples of a shape."""
        for name in ("mask", "scale"):
            array: Any = getattr(self, name)
            if isinstance(array, np.ndarray) and array.shape != shape[: array.ndim]:
                raise RequestError(
                    f"{name} has shape {format_shape(array.shape)} and prepared samples have {format_shape(shape)}; "
                    f"give a {name} of the samples' shape."
                )
        mask = None if isinstance(self.mask, str) else self.full_mask(shape)
        if mask is not None and not mask.any():
            raise RequestError("mask leaves no pixel; mark the pixels to keep with True.")
        factors = self.full_scale(shape)
        if factors is None:
            return
        bad = ~(np.isfinite(factors) & (factors > 0)) & (True if mask is None else mask)
        if bad.any():
            raise RequestError(
                f"scale is not a positive number at {int(bad.sum())} of the pixels analysed; leave them out with "
                "--mask (mask), or give them a factor."
            )


def is_mask(values: Array) -> bool:
    """Return whether an array can say which pixels are kept: by True and False, whole numbers, or 0.0 and 1.0."""
    return values.dtype.kind in "biu" or (values.dtype.kind == "f" and bool(np.isin(values, (0, 1)).all()))


def _kept(value: Any) -> Array:
    """Check a mask."""
    array = _kept_for_ever(value, None)
    if not is_mask(array):
        raise RequestError(
            "mask is not an array of True and False, or of 0 and 1; compare it with a number, as mask > 0."
        )
    return _kept_for_ever(array, bool)


def _end(value: Any) -> int | None:
    return None if value is None else as_index(value)


def _size(value: Any) -> tuple[int, int]:
    """Check (height, width)."""
    try:
        height, width = (as_index(length) for length in value)
    except (TypeError, ValueError):
        raise RequestError(f"resize {value!r} is not a height and a width; give two, such as (64, 64).") from None
    if min(height, width) < 1:
        raise RequestError(f"resize {height} x {width} leaves no pixel; give a height and a width of at least 1.")
    return height, width


def _factor(value: Any) -> float | Array:
    """Check a scale: one positive factor, or an array of numbers, whose values are checked inside the mask only."""
    array = _kept_for_ever(value, float)
    if array.ndim:
        return array
    if not (math.isfinite(array) and array > 0):
        raise RequestError(f"scale {float(array):g} is not a positive number; give a factor such as 0.01.")
    return float(array)


def _kept_for_ever(value: Any, dtype: type | None) -> Array:
    """Copy an array, so that nobody writes to it any more."""
    if np.ma.is_masked(value):
        raise RequestError("an array for mask or scale has masked entries; fill them first, as by array.filled(0).")
    try:
        array: Array = np.array(value, dtype=dtype)
    except (TypeError, ValueError):
        raise RequestError(f"a {type(value).__name__} is no array of numbers; give one for mask and scale.") from None
    array.flags.writeable = False
    return array


def _over(array: Array, shape: tuple[int, ...]) -> Array:
    """Repeat an array of leading axes over the others."""
    return np.broadcast_to(array.reshape(*array.shape, *(1,) * (len(shape) - array.ndim)), shape)


def with_features(preparation: Preparation | None, model: Description) -> Preparation | None:
    """Return a preparation that ends with the feature map that a kind of model asks for; see `features_asked`.

    Raises
    ------
    RequestError
        As for `features_asked`; or if the preparation has a feature map already, and options ask for one.
    """
    if not (hasattr(model, "kernel") or hasattr(model, "landmarks")):  # its kind maps no samples
        return preparation
    features = features_asked(model)
    if isinstance(preparation, Preparation) and preparation.maps:
        if given := mapping_options(model):
            raise RequestError(
                f"{given[0]} asks for a feature map, and the preparation ends with one already; give one of them."
            )
        return preparation
    if features is None or not isinstance(preparation, (Preparation, type(None))):
        return preparation
    return replace(preparation or Preparation(), feature_map=features)
