"""`Prepared`, a collection seen through a preparation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .. import machine
from ..arrays import Array
from ..errors import ModelError, RequestError, SourceError
from ..planning.memory import MEASURED_AT_ONCE, MEASURED_PIECE, measuring_bytes
from ..readers.collection import Collection, Skipped, State, digest, with_ends, with_nan
from ..readers.storage_record import Chunks
from ..readers.views.items import sample_of
from ..readers.views.view import View
from ..signals import safe_point
from ..storage.coordinate import Coordinate
from ..units import format_shape
from .coordinates import prepared_coordinates
from .dtypes import SampleError, check_digits, has_float_digits
from .exact_rows import Pieces, exact_bytes, exact_pieces
from .feature_map import KernelMap
from .frame import Frame, unflatten
from .kernel_features import KernelFeatures
from .preparation import Preparation
from .sample_keys import SampleFacts, keys_of

MAPPED = ("feature",)  # axis of samples that went through a feature map


@dataclass(frozen=True)
class PreparingSizes:
    """Memory and work of preparing samples, by the names of `planning.request.Problem`.

    Attributes
    ----------
    prepared_bytes : int
        Bytes of one prepared sample besides what is read of it.
    scratch_bytes : int
        Most bytes held besides any block to prepare it, with decoded images where they come one by one.
    held_bytes : int
        Bytes of what the preparation has learned, and of groups and dates of the samples.
    measuring_bytes : int
        Most bytes held besides a block while the rounding of the steps is measured.
    mapping_flops : int
        Floating-point operations in whose time a sample is mapped to features.
    landmark_bytes : int
        Bytes of landmarks that are read for every block, as they are not in memory.
    narrow : bool
        Whether float32 holds the digits of float64 rows less their mean; see `Preparation`.
    """

    prepared_bytes: int = 0
    scratch_bytes: int = 0
    held_bytes: int = 0
    measuring_bytes: int = 0
    mapping_flops: int = 0
    landmark_bytes: int = 0
    narrow: bool = False


class Prepared(View):
    """A collection seen through a preparation: its rows are the features the analysis sees.

    Where images are resized and storage keeps them one by one, each is resized as soon as it is decoded, so that no
    more of them are in memory than are being worked on; else blocks are read raw, and prepared.

    Attributes
    ----------
    raw : Collection
        Collection that is read.
    preparation : Preparation
        Steps that its samples go through.
    frame : Frame
        Frame that applies them.
    mask : ndarray of bool or None
        Over the prepared sample; `n_features` counts its True pixels.
    unmapped : Prepared or None
        The collection as it is before the feature map; None where there is none.
    learning_bytes : int
        Largest memory of the pass in which the preparation learned, in bytes; 0 where this collection had none.
    pending : KernelFeatures or None
        Feature map that the fit itself makes, from the kernel between all samples; None where there is none.
    holds_landmarks : bool
        True if all samples fit in memory as the landmarks of that map.
    dropped, n_dropped : tuple of Skipped, int
        The first samples left out because values are missing, and how many there are in all; see `complete_samples`.

    Raises
    ------
    RequestError
        If a step does not fit the samples, or is still to be `resolved`.
    SourceError
        If images are of several sizes and not resized.
    """

    learning_bytes: int = 0
    holds_landmarks: bool = False

    def __init__(self, raw: Collection, preparation: Preparation) -> None:
        if not preparation.is_resolved:
            raise RequestError(
                'mask "valid", scale "area", what anomaly, detrend and standardize take off, and feature maps are '
                "found in a collection; fit a model, whose preparation is resolved."
            )
        raw = raw.fitting(preparation.shape_of_image)
        if raw.mixed and preparation.resize is None and not (preparation.grey and raw.one_size):
            raw.read(slice(0, 0))  # refused by the reader, which can name two of them
            raise SourceError(
                f"{raw.source} holds images of several sizes, up to {format_shape(raw.sample_shape)}; make them one "
                "size, such as --resize 64x64 (resize=(64, 64))."
            )
        super().__init__(raw)
        self.raw, self.preparation = raw, preparation
        self.unmapped = Prepared(raw, preparation.unmapped) if preparation.maps else None
        self.pending: KernelFeatures | None = None
        self.dropped: tuple[Skipped, ...] = ()
        self.n_dropped = 0
        keys = keys_of(preparation, SampleFacts.of(raw)) if preparation.learned is not None else None
        self.frame = replace(Frame.of(preparation, raw.sample_shape), keys=keys)
        self.shape = (raw.n_samples, *self.frame.sample_shape)
        self.mask, self._n_features = self.frame.mask, self.frame.n_features
        self.dtype = preparation.dtype_of(raw.dtype)
        one_by_one = raw.mixed or raw.storage.chunks == (1, raw.n_features)
        self._by_image = (preparation.resize is not None or raw.mixed) and one_by_one
        sides = len(self.sample_shape)
        self.axes = raw.axes[:sides] if raw.axes is not None and len(raw.axes) >= sides else None
        if self.unmapped is not None:
            self.axes = MAPPED
        # A sample that any step changes is read whole. Images resized as they are decoded count as `scratch_bytes`.
        identity, stored = preparation.is_identity, raw.storage
        self.storage = replace(
            stored,
            chunks=stored.chunks if identity else Chunks(stored.chunks.samples, self.n_features),
            decode_bytes=0 if self._by_image else stored.decode_bytes,
            fills=identity and stored.fills,
            sparse=stored.sparse if identity else None,
        )

    def awaiting(self, wanted: KernelFeatures, *, holds_landmarks: bool) -> Prepared:
        """Return the collection as a fit takes it that makes a feature map itself: not mapped yet."""
        made = self.with_steps(self.preparation)
        made.pending, made.holds_landmarks = wanted, holds_landmarks
        return made

    def with_steps(self, preparation: Preparation) -> Prepared:
        """Return the same samples seen through another preparation."""
        made = Prepared(self.raw, preparation)
        made.dropped, made.n_dropped, made.learning_bytes = self.dropped, self.n_dropped, self.learning_bytes
        return made

    @property
    def asked(self) -> Preparation:
        """The preparation, with the options of a map that is pending."""
        return self.preparation if self.pending is None else replace(self.preparation, feature_map=self.pending)

    @property
    def n_features(self) -> int:
        """Pixels inside the mask, or all of them."""
        return self._n_features

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample of a block as read: raw, or prepared where each sample is prepared as it is decoded."""
        if self.unmapped is not None:
            return self.unmapped.row_bytes
        return self.n_features * self.dtype.itemsize if self._by_image else self.raw.row_bytes

    @cached_property
    def preparing(self) -> PreparingSizes:
        """Memory and work of preparing the samples, as a plan counts them."""
        if self.preparation.is_identity:
            return PreparingSizes()
        raw, row_bytes, mapped = self.raw, self.n_features * self.dtype.itemsize, self.preparation.mapped
        prepared, scratch = (0 if self._by_image else row_bytes), self.frame.scratch_bytes(raw.dtype)
        if self.unmapped is not None:
            before = self.unmapped.preparing
            prepared, scratch = (
                before.prepared_bytes + row_bytes,
                before.scratch_bytes + self.frame.mapping_bytes(raw.n_samples),
            )
        elif self._by_image:
            larger = raw.row_bytes / (raw.n_features * raw.dtype.itemsize)  # than the images known of, some may be
            scratch = raw.storage.decode_bytes + raw.row_bytes + machine.cores() * math.ceil(larger * scratch)
        at_once = self.measured_at_once
        measuring = measuring_bytes(self.n_features, at_once) + at_once * exact_bytes(self.frame, raw.dtype)
        return PreparingSizes(
            prepared_bytes=prepared,
            scratch_bytes=scratch,
            held_bytes=self.frame.held_bytes,
            measuring_bytes=measuring if self.preparation.rounds else 0,
            mapping_flops=0 if mapped is None else mapped.row_flops,
            landmark_bytes=mapped.landmarks.nbytes if isinstance(mapped, KernelMap) and mapped.is_streamed else 0,
            narrow=self.is_narrow and self.dtype == np.float64,
        )

    @property
    def measured_at_once(self) -> int:
        """Number of samples prepared at a time while that is measured."""
        widest = max(self.n_features, math.prod(self.raw.sample_shape))
        return 1 if self._by_image else max(1, min(MEASURED_AT_ONCE, MEASURED_PIECE // (8 * widest)))

    @property
    def is_narrow(self) -> bool:
        """True where float32 holds the digits of rows less their mean, whatever their dtype; see `Preparation`."""
        return self.preparation.rounds and self.preparation.is_narrow(self.raw.dtype)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """No attributes: those of the raw collection describe other values."""
        return {}

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of the prepared sample's axes: cut, resampled or averaged as the pixels are."""
        raw = self.raw
        return prepared_coordinates(self.preparation, raw.coordinates, raw.axes or (), raw.sample_shape)

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read raw samples and prepare them; see `Collection.read`."""
        safe_point()
        if self.unmapped is not None:
            mapped = self.frame.mapped(self.unmapped.read(rows))
            return mapped if features is None else np.ascontiguousarray(mapped[:, features])
        identity = self.preparation.is_identity
        raw = None if self._by_image else self.raw.read(rows, features if identity else None)
        try:
            prepared = self._one_by_one(rows) if raw is None else self.frame.rows(raw, rows.start)
        except SampleError as error:
            raise error.of(self.named, rows.start) from None
        return prepared if identity else np.ascontiguousarray(prepared if features is None else prepared[:, features])

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Read by the raw collection where no step changes it."""
        if self.preparation.is_identity:
            self.raw.read_into(rows, features, out)
            try:
                check_digits(out, self.dtype)
            except SampleError as error:
                raise error.of(self.named, rows.start) from None
        else:
            super().read_into(rows, features, out)

    def read_sparse(self, rows: slice) -> Any:
        """Read sparse rows by the raw collection, which no step changes."""
        safe_point()
        read = self.raw.read_sparse(rows)
        if not has_float_digits(read.data, read.dtype):
            self.read(rows)  # refuses the sample with too many digits, by name
        return read

    def read_with_exact(self, rows: slice) -> tuple[Array, Pieces]:
        """Return samples as `read` does, (m, n_features), and the same before anything is rounded, piece by piece.

        Samples of images that are prepared one by one are asked for one by one; see `exact_pieces`.
        """
        safe_point()
        start, shape = rows.start, self.raw.sample_shape
        images = sample_of(self.raw, start)[None] if self._by_image else self.raw.read(rows).reshape(-1, *shape)
        coloured = images.ndim == 1 + len(shape)
        try:
            if self._by_image:
                self._check_image(start, images.shape[1:])
                found = self.frame.row(images[0], start)[None]
            else:
                found = self.frame.rows(images.reshape(len(images), math.prod(shape)), start)
        except SampleError as error:
            raise error.of(self.named, start) from None
        return found, exact_pieces(self.frame, images, start, coloured=coloured)

    def as_images(self, rows: Array) -> Array:
        """Return rows in the shape of prepared samples; NaN outside the mask, in a floating dtype."""
        rows = rows if self.mask is None else rows.astype(with_nan(rows.dtype), copy=False)
        return unflatten(rows, self.sample_shape, self.mask)

    def _one_by_one(self, rows: slice) -> Array:
        """Prepare each image as it is decoded, in the thread that decoded it."""
        out = np.empty((rows.stop - rows.start, self.n_features), self.dtype)

        def fill(at: int, image: Array) -> None:
            self._check_image(rows.start + at, image.shape)
            try:
                out[at] = self.frame.row(image, rows.start + at)
            except SampleError as error:
                raise type(error)(at, error.problem) from None

        self.raw.each(rows, fill)
        return out

    def _check_image(self, index: int, shape: tuple[int, ...]) -> None:
        """Refuse an image whose prepared shape is not that of the others, with its name."""
        if shape == self.raw.sample_shape:
            return
        try:
            made = self.preparation.shape_of_image(shape)
        except RequestError as error:
            raise SourceError(f"{self.named(index)} does not fit its preparation: {error}") from None
        if made != self.sample_shape:
            remedy = "make them one size, such as with --resize 64x64 (resize=(64, 64))"
            if self.preparation.resize is not None:
                remedy = "turn colours into grey with --grey (grey=True)"
            raise SourceError(
                f"{self.named(index)} is {format_shape(shape)} and others are {format_shape(self.raw.sample_shape)}; "
                f"{remedy}, or leave it out."
            )

    def states(self, *, now: bool = False) -> list[State]:
        """Return those of the raw collection, with the preparation."""
        states = self.raw.states(now=now)
        return states if self.preparation.is_identity else self._with_preparation(states, self.n_samples)

    def states_of_first(self, n: int, *, now: bool = False) -> list[State] | None:
        """Return those of the raw collection, with the preparation."""
        states = self.raw.states_of_first(n, now=now)
        return states if states is None or self.preparation.is_identity else self._with_preparation(states, n)

    def _with_preparation(self, states: list[State], n: int) -> list[State]:
        """Return states of the first n samples as read that are those of the samples as prepared."""
        scale = self.preparation.scale
        arrays = [array.tobytes() for array in (self.mask, scale) if isinstance(array, np.ndarray)]
        learned = self.preparation.learned
        found = [each.digest for each in (learned, self.preparation.mapped) if each is not None]
        arrays += [each.encode() for each in found]
        done, keys = digest(self.preparation.to_json(), arrays), self.frame.keys
        if keys is None:
            return [state._replace(state=digest(state.state, done)) for state in states]
        named = []
        for state, end in with_ends(states, n):
            own = [array[state.first : end].tobytes() for array in keys if array is not None]
            named.append(state._replace(state=digest(state.state, done, own)))
        return named


def check_raw(raw: Collection, preparation: Preparation, shape: tuple[int, ...], kind: str, model: str) -> None:
    """Refuse a collection that is not of the raw kind a model was fitted on."""
    if not _fits(preparation, raw.sample_shape, shape):
        if "whiten" in raw.attributes:
            raise ModelError(
                f"{raw.source} holds scores of {format_shape(raw.sample_shape)} components by the model "
                f"{raw.attributes.get('model')}; give that model, or images of {format_shape(shape)}."
            )
        unit = " features" if len(raw.sample_shape) == len(shape) == 1 else ""
        raise ModelError(
            f"{raw.source} has samples of {format_shape(raw.sample_shape)}{unit} and {model} was fitted on samples of "
            f"{format_shape(shape)}{unit}; give it a collection of that shape, or fit another model."
        )
    if (raw.dtype.kind == "f") != (kind == "f"):
        words = {True: "fractions", False: "whole numbers"}
        remedy = "give --dtype float32 (dtype='float32') if they have the scale of the fitted samples"
        if kind != "f":
            remedy = "convert them to the scale and kind of the fitted samples"
        raise ModelError(
            f"{raw.source} holds {words[raw.dtype.kind == 'f']} ({raw.dtype}) and {model} was fitted on "
            f"{words[kind == 'f']}; {remedy}, or fit another model."
        )


def _fits(preparation: Preparation, shape: tuple[int, ...], fitted: tuple[int, ...], *, coloured: bool = True) -> bool:
    """Return whether raw samples of a shape are prepared to the shape of those of shape `fitted`, and may be."""
    if shape == fitted or not (preparation.resize is not None or (preparation.grey and shape[:2] == fitted[:2])):
        return shape == fitted
    try:
        steps = preparation.of_images
        return steps.shape_of(shape, coloured=coloured) == steps.shape_of(fitted)
    except RequestError:
        return False


def shape_like(preparation: Preparation, fitted: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `fitted`, the raw shape a model was fitted on, for images of a shape that it takes; see `fitting`."""
    coloured = not (preparation.grey and len(shape) == 2 < len(fitted))
    if not _fits(preparation, shape, fitted, coloured=coloured):
        raise RequestError(f"is {format_shape(shape)}, and the model was fitted on samples of {format_shape(fitted)}.")
    return fitted


def given_shape(
    shape: tuple[int, ...], preparation: Preparation, fitted: tuple[int, ...], model: str
) -> tuple[int, ...]:
    r"""Return the shape of raw samples in an array of a shape, (n, \*fitted) or flattened, or as `resize` allows."""
    flat = math.prod(fitted)
    if tuple(shape[1:]) == (flat,):
        return fitted
    if len(shape) < 2 or not _fits(preparation, tuple(shape[1:]), fitted):
        if tuple(shape) == fitted:
            raise ModelError(
                f"samples have shape {format_shape(shape)}, which is that of one sample of {model}; give n of them, or "
                "samples[None] of one."
            )
        raise ModelError(
            f"samples have shape {format_shape(shape)} and {model} was fitted on samples of {format_shape(fitted)}; "
            f"give n samples of that shape, or of {flat} features."
        )
    return tuple(shape[1:])
