"""`Collection`, n samples that can be read in pieces: the only protocol between storage and everything else."""

from __future__ import annotations

import abc
import glob
import hashlib
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..errors import ChangedError, DataError, SourceError, UnusedOptionError, without_secrets
from ..notebook import facts, view
from ..storage.coordinate import Coordinate
from ..units import counted, format_bytes, format_shape
from .opening_record import ArrayAxes, GuessedAxes
from .storage_record import Chunks, Storage

COLOURS = (3, 4)  # lengths of a last axis without a name that count as colours
COPIED_KEY = "key"  # attribute of a copy that names the array, or variables, of its source
MOST_STATES = 256  # groups of samples that have a state of their own: some 6 kB of text in a model


class State(NamedTuple):
    """State of the file or array that a group of samples is read from.

    Attributes
    ----------
    first : int
        First sample of the group; the group ends where the next one begins.
    what : str
        Name for messages: a file, or the first and last of several.
    state : str
        Text that changes when the data do, such as a file's size and time of change.
    """

    first: int
    what: str
    state: str


class Skipped(NamedTuple):
    """A file left out because it is bad: its path, and the reason in one line."""

    path: str
    reason: str


class Collection(abc.ABC):
    r"""n samples, each an array of `sample_shape`, read as rows of p = prod(sample_shape) features.

    It is sliced like an array: ``collection[0]`` is a sample, ``collection[2:10]`` a lazy collection of eight, and
    ``numpy.asarray(collection[2:10])`` their values.

    A collection holds a path, not a handle: it pickles small, and works in any process and thread. Handles and
    caches are opened on first use and dropped by pickling. Subclasses set `source`, `shape` and `dtype`, define `read`,
    and set `axes` and `storage` where the format has them.

    Attributes
    ----------
    source : str
        Name in the user's terms: a path, or ``"numpy array"``.
    shape : tuple of int
        (n, \*sample_shape).
    dtype : numpy.dtype
        Dtype as stored, which `read` returns: bool, integer, or real floating.
    axes : tuple of str or None
        Names of the sample's axes where the format has them.
    sample_axis : str or None
        Name of the one axis that counts samples (time ...), where the source has one with a name.
    samples_along : tuple of str
        Names of the axes that are flattened into samples, where the source has names.
    guessed_axes : GuessedAxes or None
        Axes assigned to a sample by their positions alone; None if the source or the caller determines them.
    array_axes : ArrayAxes or None
        Axes of the whole array, the dropped ones included, where the source is one, or several alike.
    mixed : bool
        Whether images differ in shape: `shape` is then that of the largest image, only `each` yields the images, and
        only a preparation that resizes makes rows of them.
    one_size : bool
        Whether mixed images differ in their colours only.
    skipped : tuple of Skipped
        Files left out on request, which are not samples.
    kept : ndarray of bool or None
        Mask of the source's samples that the collection has, if the number of samples in the skipped files is known.
    reading : mapping of str to str or None
        Treatment of the tags of image files, see ``streampca.readers.tags``; None for other sources.
    labels : ndarray of shape (n,) or None
        One value per sample, number or text, if labels were given on opening.
    opened : OpeningRecord or None
        Record of how `open_collection` opened it.
    compares_coordinates : bool
        Whether `coordinates` are compared with a model's before the model is applied.
    beside : tuple of str
        Files it was opened from that `source` does not name: of an array, a list, or labels.
    grows : bool
        Whether a writer can add samples while it is open; it then has states of its first samples only.
    """

    source: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...] | None = None
    sample_axis: str | None = None
    samples_along: tuple[str, ...] = ()
    guessed_axes: GuessedAxes | None = None
    array_axes: ArrayAxes | None = None
    mixed: bool = False
    one_size: bool = False
    skipped: tuple[Skipped, ...] = ()
    kept: Array | None = None
    reading: Mapping[str, str] | None = None
    labels: Array | None = None
    opened: Any = None
    compares_coordinates: bool = True
    beside: tuple[str, ...] = ()
    grows: bool = False

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.sample_shape))
        return f"{type(self).__name__}({self.source!r}: {self.n_samples} samples of {shape}, {self.dtype.name})"

    def _repr_html_(self) -> str:
        more = {
            "labels": None if self.labels is None else f"{len(self.labels)}, one a sample",
            "skipped": f"{len(self.skipped)} files that are bad" if self.skipped else None,
        }
        return view("Collection", facts([*self.facts().items(), *more.items()]))

    def facts(self) -> dict[str, str]:
        """Return a description in words, by name: source, samples, values, storage, first and last sample."""
        axes = f" ({', '.join(self.axes)})" if self.axes else ""
        upto = "images of several sizes, up to " if self.mixed else ""
        samples, features = self.chunks
        return {
            "source": self.source,
            "samples": f"{self.n_samples} of {upto}{format_shape(self.sample_shape)}{axes}",
            "values": f"{self.dtype.name}, {self.n_features} features a sample, {format_bytes(self.nbytes)} in all",
            **({} if self.guessed_axes is None else {"axes": self.guessed_axes.line()}),
            "storage": f"chunks of {counted(samples, 'sample')} x {features} features",
            "first": without_secrets(self.where(0)),
            "last": without_secrets(self.where(self.n_samples - 1)),
        }

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, item: Any) -> Any:
        """Index the samples like an array of shape `shape`.

        Parameters
        ----------
        item : int, slice, list of int, n bools, or tuple
            Samples, and in a tuple pixels after them: whole numbers and slices; negative numbers count from the end.

        Returns
        -------
        ndarray or Collection
            For a number, one sample of its own shape. For several, a lazy collection of them in the given order. With
            pixels, an array of their values; only the features between the outermost pixels are read.

        Raises
        ------
        IndexingError
            If a sample does not exist or is named twice, or none is left; a RequestError and an IndexError.
        SourceError
            If a sample cannot be read.
        """
        from .views.items import item_of

        return item_of(self, item)

    def __iter__(self) -> Iterator[Array]:
        """Yield the samples in order, each an array of its own shape; up to about 8 MiB are read ahead."""
        from .views.items import samples_of

        return samples_of(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Read all samples into an array; refused if it would exceed the memory limit."""
        if copy is False:
            raise ValueError(f"{self.source} cannot be an array without being read: give copy=None or copy=True.")
        from .views.items import whole_array

        return whole_array(self, dtype)

    def to_dask(self) -> Any:
        """Return the samples as a lazy dask array of shape `shape`, chunked by samples; nothing is read.

        Raises
        ------
        RequestError
            If images are of several sizes.
        """
        from .dask import lazy_samples

        return lazy_samples(self)

    def as_images(self, rows: Array) -> Array:
        """Reshape rows of features, (m, p), to samples, (m, *sample_shape)."""
        return rows.reshape(len(rows), *self.sample_shape)

    @property
    def ndim(self) -> int:
        """Number of axes, including the axis of samples."""
        return len(self.shape)

    @property
    def n_samples(self) -> int:
        """Number of samples, n."""
        return self.shape[0]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.shape[1:]

    @property
    def n_features(self) -> int:
        """Number of features, p."""
        return math.prod(self.shape[1:])

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample as stored, decoded."""
        return self.n_features * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all samples as stored, decoded."""
        return self.n_samples * self.row_bytes

    @cached_property
    def storage(self) -> Storage:
        """Record of the storage; by default single samples, read without further memory. Readers and views set it."""
        return Storage(Chunks(1, self.n_features))

    @property
    def chunks(self) -> Chunks:
        """Storage chunks, those of `storage`."""
        return self.storage.chunks

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Plain data the format keeps with the array."""
        return {}

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of the sample's own axes (lat, lon, wavelength ...) by name, where the source has them."""
        return {}

    @property
    def series(self) -> Mapping[str, Any]:
        """Names and values that identify the series of all samples (member, model ...), where the source has them."""
        return {}

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the coordinates along the samples (time ...), n values each, by name, where the source has them."""
        return {}

    def sample_keys(self) -> npt.NDArray[np.int64] | None:
        """Return numbers, (n,), equal for samples of one date of one series; None if samples have no dates."""
        from .duplicates import times_of

        times = times_of(self)
        return None if times is None else times.keys

    @abc.abstractmethod
    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read samples ``rows.start`` to ``rows.stop`` (step 1, within range).

        Parameters
        ----------
        rows : slice
            Range of samples with both ends, ``0 <= start <= stop <= n``.
        features : slice, optional
            Range of features of the flattened (C order) sample; all by default.

        Returns
        -------
        ndarray of shape (rows, features)
            Values as stored, C-contiguous, of dtype `dtype`. The caller never writes to it.

        Raises
        ------
        SourceError
            If the samples cannot be read; the message names the file.
        """

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Read as `read` does, into `out`, (rows, features), C-contiguous and of dtype `dtype`."""
        out[...] = self.read(rows, features)

    def read_sparse(self, rows: slice) -> Any:
        """Read samples as sparse rows of SciPy in form CSR, without repeated entries; not to be written to.

        Collections whose storage is `sparse` define it.
        """
        raise NotImplementedError(f"{self.source} is not sparse")

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Call ``function(i, image)`` for every sample ``rows.start + i``, an image of its own shape.

        The order is arbitrary, and files to decode are handled in several threads at once. Images are not kept: memory
        holds only those that `function` is working on.

        Raises
        ------
        SourceError
            As `read`.
        """
        for at in range(rows.start, rows.stop):
            function(at - rows.start, self.read(slice(at, at + 1)).reshape(self.sample_shape))

    def fitting(self, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Collection:
        """Return the collection without the images that a preparation does not bring to the most common shape.

        It concerns collections that can leave out files and whose images differ in shape; others are returned as is.

        Parameters
        ----------
        shape_of : callable
            ``shape_of(shape)`` is the shape of a prepared image; it raises RequestError if it cannot be prepared.
        """
        return self

    def where(self, index: int) -> str:
        """Return the origin of sample `index` (from 0), e.g. ``"scans/b.tif, page 12"``."""
        return f"sample {index} of {self.source}"

    def sample_names(self) -> Sequence[str] | None:
        """Return the samples' own names (file names, say), or None if they are only numbered."""
        return None

    def named(self, index: int) -> str:
        """Return origin and number of a sample, e.g. ``"scans/b.tif, page 12 (sample 40)"``."""
        where = self.where(index)
        return where if where.startswith("sample ") else f"{where} (sample {index})"

    def paths(self) -> list[str]:
        """Return the files, folders and globs that are read, where known."""
        return [*self.beside, file_and_key(self.source)[0]]

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of the files or arrays behind the samples, by groups of samples in ascending order.

        Readers define it, and views derive their states from the base collection. Fingerprints, and every comparison of
        a source with its earlier self, are made of states. The default has no state, so that no change is noticed.

        Parameters
        ----------
        now : bool, default=False
            Return the states at the time of the call rather than at the time when the source was opened.

        Returns
        -------
        list of State
            At most about `MOST_STATES`. The first group begins at sample 0. The number of entries in a group is a power
            of two, so that groups begin at the same samples after samples were added.

        Raises
        ------
        SourceError
            If the state of a source cannot be determined.
        """
        return [State(0, self.source, "")]

    def begun(self, first: int = 0) -> int:
        """Return the number of leading samples whose writing has begun; for the first `first` this is known."""
        return self.n_samples

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Return the number of leading samples that are complete, while others are being written behind them.

        Parameters
        ----------
        seconds : float
            A sample is complete if its file or chunk has not changed for this time, or further samples follow.
        first : int
            Number of samples known to be complete, which are not looked at again.
        before : int
            Number of samples whose writing had begun that long ago: the value of `begun` at that time.

        Returns
        -------
        int or None
            None if it cannot be determined.
        """
        return None

    def states_of_first(self, n: int, *, now: bool = False) -> list[State] | None:
        """Return the states that a collection of the first n samples alone would have; None if they are not known.

        They serve to compare a source with its state before samples were appended. Samples of a last chunk that was not
        full then form a group of their own, as the chunk is rewritten when samples are added.
        """
        return None

    def fingerprint(self) -> str:
        """Return a short text that changes when the source does: a digest of `states`, source, shape and dtype."""
        return fingerprint_of(self, self.states())


class Filled(Collection):
    """A collection whose reads fill arrays: `read` calls `read_into` with a new array, and `storage.fills` is True."""

    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read into a new array; see `Collection.read`."""
        width = self.n_features if features is None else features.stop - features.start
        out = np.empty((rows.stop - rows.start, width), self.dtype)
        self.read_into(rows, features, out)
        return out

    @abc.abstractmethod
    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Read into an array; see `Collection.read_into`."""


def file_and_key(source: str) -> tuple[str, str | None]:
    """Split a collection's source into file and key: ``a.h5, dataset 'x'`` names one of several arrays of a file."""
    part = re.fullmatch(r"(.+), \w+ '(.+)'", source)
    return (source, None) if part is None or os.path.lexists(source) else (part[1], part[2])


def place_of(collection: Collection) -> str | None:
    """Return an absolute name for the source of a collection; None for an object in memory."""
    if collection.opened is None or collection.opened.source is None:
        return None
    path, key = file_and_key(collection.source)
    # The source of a list is a text that tells only the number of its files: the list itself identifies it.
    if not os.path.exists(path) and not glob.has_magic(path) and "://" not in path:
        source = collection.opened.source
        return f"list {digest(*map(os.path.abspath, [source] if isinstance(source, str) else source))}"
    place = path if "://" in path else os.path.abspath(path)
    return place if key is None else f"{place}, {key}"


def sample_dims(collection: Collection) -> tuple[str, ...]:
    """Return the names of a sample's axes: the source's, else by their number and lengths."""
    shape, names = collection.sample_shape, collection.axes
    if names and len(set(names)) == len(names):
        return names
    if len(shape) == 2:
        return ("y", "x")
    if len(shape) == 3:
        return ("y", "x", "channel") if shape[-1] in COLOURS else ("z", "y", "x")
    return tuple(f"axis_{number}" for number in range(len(shape)))


def counting_dim(collection: Collection) -> str:
    """Return a name for the axis of samples in an output: the source's, else "sample"."""
    return collection.sample_axis or "sample"


def fingerprint_of(collection: Collection, states: Sequence[State]) -> str:
    """Return the fingerprint of a collection whose states are known already."""
    return digest(collection.source, collection.shape, collection.dtype.str, encoded_states(states))


def encoded_states(states: Sequence[State]) -> str:
    """Return states as one line of text, ``"0:1f3a... 4:90bc..."``, which `first_change` can compare."""
    return " ".join(f"{first}:{digest(state)}" for first, _, state in states)


def first_change(before: str | Sequence[State], states: Sequence[State]) -> str | None:
    """Return the name of the first group whose state differs from an earlier one; None if all are the same.

    Earlier states can be encoded, and have no names then; otherwise names are the earlier ones, as files can be gone.
    """
    if before == states:
        return None
    named, text = (states, before) if isinstance(before, str) else (before, encoded_states(before))
    pairs = zip_longest(text.split(), encoded_states(states).split())
    at = next((at for at, (earlier, later) in enumerate(pairs) if earlier != later), None)
    if at is None:
        return None
    return (named[at] if at < len(named) else states[min(at, len(states) - 1)]).what


def growth_states(collection: Collection, states: Sequence[State] | None = None) -> Sequence[State]:
    """Return states by which a grown source can be found to have kept its first samples; for a file, of its parts."""
    states = collection.states() if states is None else states
    parts = collection.states_of_first(collection.n_samples) if len(states) == 1 else None
    return parts or states


def data_difference(provenance: Mapping[str, Any], collection: Collection) -> str | None:
    """Return how a collection differs from the data of the fit with this provenance; None if they are the same."""
    recorded, states = provenance.get("states"), collection.states()
    if recorded is None:
        return f"the model was not fitted on one source, so that it cannot be told if {collection.source} has changed"
    candidates = states, growth_states(collection, states)  # models that followed a file have the latter
    if any(provenance.get("fingerprint") == fingerprint_of(collection, candidate) for candidate in candidates):
        return None
    changed = first_change(recorded, states) or collection.source
    return f"{changed} has changed since the fit, or is opened with other options (key, select, samples ...)"


def states_by_name(states: Sequence[State]) -> dict[str, str]:
    """Return states as entries of a run's identity, keyed by the names that a difference is reported with."""
    return {f"state of {what}" + (f" (from sample {first})" if first else ""): state for first, what, state in states}


def group_size(count: int) -> int:
    """Return the smallest power of two as group size that divides `count` entries into at most `MOST_STATES` groups."""
    return 1 << max(0, (-(-count // MOST_STATES) - 1).bit_length())


def span_of(first: str, last: str) -> str:
    """Name a group of files by its first and last one."""
    return first if first == last else f"one of {first} to {last}"


def with_ends(states: Sequence[State], n: int) -> Iterator[tuple[State, int]]:
    """Yield each state with the end of its group; states with the same first sample belong to the same group."""
    firsts = sorted({state.first for state in states})
    ends = dict(zip(firsts, [*firsts[1:], n], strict=True))
    for state in states:
        yield state, ends[state.first]


@contextmanager
def unchanged(collection: Collection, states: Sequence[State] | None = None) -> Iterator[None]:
    """Raise ChangedError if the source changes while the context is active, also in place of an error of reading."""
    before = collection.states() if states is None else states
    try:
        yield
    except (SourceError, DataError) as error:
        changed = first_change(before, collection.states(now=True))
        if changed is None:
            raise
        raise _changed(changed, collection) from error
    changed = first_change(before, collection.states(now=True))
    if changed is not None:
        raise _changed(changed, collection)


def _changed(what: str, collection: Collection) -> ChangedError:
    within = "" if collection.source in what else f" ({collection.source})"
    return ChangedError(
        f"{what} changed while it was read{within}; the result would mix old and new data, and is discarded. Run it "
        "again once the data no longer change."
    )


def digest(*parts: object) -> str:
    """Hash a few plain values into 16 hexadecimal digits."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def file_state(path: str) -> tuple[int, int]:
    """Return size in bytes and time of last change in nanoseconds: a cheap way to detect changes of a file."""
    try:
        state = os.stat(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; check that it is still there.") from error
    return state.st_size, state.st_mtime_ns


def refuse_key(key: str | None, subject: str) -> None:
    """Refuse a key for a source with a single array: ignoring the key could read something that was not meant."""
    if key is not None:
        raise UnusedOptionError(
            f"key {key!r} was given, but {subject} holds a single array; leave key out.", option="key"
        )


def by_key(name: str) -> str:
    """Return the option that names an array, as on the command line and in Python."""
    return f"--key {shlex.quote(name)} (key={name!r})"


def check_dtype(dtype: np.dtype[Any], subject: str) -> np.dtype[Any]:
    """Return `dtype` if its values are real numbers, else refuse it by name."""
    if dtype.kind in "biuf" and dtype.itemsize <= 8:
        return dtype
    remedy = {
        "c": "analyse its real part, or its magnitude, saved as a float array",
        "O": "save it again with a numeric dtype; objects are never unpickled",
        "f": "save it again as float64",
    }.get(dtype.kind, "save it again with a numeric dtype such as uint8 or float32")
    raise SourceError(f"{subject} has dtype {dtype}, which is not a real number of up to 8 bytes; {remedy}.")


def with_nan(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the smallest floating dtype that holds the numbers of `dtype` and NaN."""
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def unmasked(values: Array) -> Array:
    """Return an array of numbers with NaN for masked entries, in a floating dtype; unchanged if nothing is masked."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not np.ma.is_masked(values) or values.dtype.kind not in "biuf":
        return np.asarray(values)
    filled: Array = values.data.astype(with_nan(values.dtype))
    filled[np.ma.getmaskarray(values)] = np.nan
    return filled


def check_shape(shape: tuple[int, ...], subject: str) -> tuple[int, ...]:
    """Return `shape` if it has samples and at least one axis of features, else refuse it."""
    if len(shape) < 2:
        raise SourceError(f"{subject} has shape {shape}; PCA needs an axis of samples and at least one of features.")
    if 0 in shape:
        raise SourceError(f"{subject} has shape {shape} and so no values; give a collection with samples in it.")
    return shape
