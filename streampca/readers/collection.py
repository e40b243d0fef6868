"""`Collection`, n samples that can be read in pieces: the one protocol between storage and everything else."""

from __future__ import annotations

import abc
import glob
import hashlib
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ChangedError, DataError, RequestError, SourceError, without_secrets
from ..notebook import facts, view
from ..storage.coordinate import Coordinate
from ..units import counted, format_bytes, format_shape
from .opening_record import GuessedAxes

Array = npt.NDArray[Any]

COLOURS = (3, 4)  # lengths of a last axis that is taken for colours when axes have no names
MOST_STATES = 256  # groups of samples of which a state is kept: some 6 kB of text in a model


class Chunks(NamedTuple):
    """Samples and features of a storage chunk. A read that touches a chunk decodes all of it."""

    samples: int
    features: int


class State(NamedTuple):
    """State of what a group of samples is read from.

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
    """A file left out because it is bad: its path, and what is wrong with it in one line."""

    path: str
    reason: str


class Collection(abc.ABC):
    r"""n samples, each an array of `sample_shape`, read as rows of p = prod(sample_shape) features.

    It is sliced as an array is: ``collection[0]`` is a sample, ``collection[2:10]`` a collection of eight, of which
    nothing is read, and ``numpy.asarray(collection[2:10])`` their values.

    A collection holds a path, not a handle: it pickles small, and works in any process and thread. Handles and
    caches are opened on first use and dropped by pickling. Subclasses set `source`, `shape`, `dtype`, and where they
    know better `axes` and `chunks`, and define `read`.

    Attributes
    ----------
    source : str
        Name that the user would give it: a path, or ``"numpy array"``.
    shape : tuple of int
        (n, \*sample_shape).
    dtype : numpy.dtype
        Dtype as stored, which `read` returns. Always one of bool, integer, or real floating.
    axes : tuple of str or None
        Names of the sample's axes where the format has them.
    mixed : bool
        Whether images differ in shape: `shape` is then that of the largest, only `each` gives them, and only a
        preparation that resizes makes rows of them.
    one_size : bool
        Whether mixed images differ in their colours only.
    skipped : tuple of Skipped
        Files left out on request, which are no samples.
    kept : ndarray of bool or None
        Mask of the source's samples that are here, where it is known how many were left out with those files.
    reading : mapping of str to str or None
        Treatment of the tags of image files, see ``streampca.readers.tags``; None for other sources.
    labels : ndarray of shape (n,) or None
        A value a sample, numbers or text, where labels were given on opening.
    opened : OpeningRecord or None
        How `open_collection` opened it.
    compares_coordinates : bool
        Whether `coordinates` are compared with a model's before it is applied.
    beside : tuple of str
        Files it was opened from that `source` does not name: of an array, a list, or labels.
    grows : bool
        Whether a writer may add samples while it is open: it has states of its first samples only.
    """

    source: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...] | None = None
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
        """Return what it is, in words to show by name: source, samples, values, storage, first and last sample."""
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
        """Take samples as of an array of shape `shape`.

        Parameters
        ----------
        item : int, slice, list of int, n bools, or tuple
            Samples, and in a tuple pixels after them: whole numbers and slices, negative ones from the end.

        Returns
        -------
        ndarray or Collection
            One sample for a number, of its own shape. For several, a collection of these in the order given, of which
            nothing is read; with pixels, an array of their values, of which only the features between the outermost
            are read.

        Raises
        ------
        IndexingError
            If samples are not there, none are taken, or one twice; a RequestError and an IndexError.
        SourceError
            If a sample cannot be read.
        """
        from .views.items import item_of

        return item_of(self, item)

    def __iter__(self) -> Iterator[Array]:
        """Yield the samples in order, each an array of its own shape; a piece of up to about 8 MiB is read ahead."""
        from .views.items import samples_of

        return samples_of(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Read all samples into an array; refused where that takes more than the memory allowed."""
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
        """Return rows of features, (m, p), in the shape of samples, (m, *sample_shape)."""
        return rows.reshape(len(rows), *self.sample_shape)

    @property
    def ndim(self) -> int:
        """Number of axes, that of samples included."""
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

    @property
    def chunks(self) -> Chunks:
        """Storage chunks; one sample and all features unless the format says otherwise."""
        return Chunks(1, self.n_features)

    @property
    def decode_bytes(self) -> int:
        """Largest number of bytes `read` holds beside the block it returns: chunks being decoded, scratch buffers."""
        return 0

    @property
    def converted_bytes(self) -> int:
        """Bytes of memory held from the first `read` on, beside the source and what a read takes."""
        return 0

    @property
    def encoded(self) -> bool:
        """True where `read` decodes, as of compressed chunks and picture files, rather than copies bytes."""
        return False

    @property
    def keeps(self) -> bool:
        """True where a chunk that was decoded for some of its samples is kept for reads of those after them."""
        return False

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Plain data the format keeps with the array."""
        return {}

    @property
    def coordinates(self) -> Mapping[str, Coordinate]:
        """Coordinates of the sample's own axes (lat, lon, wavelength ...), by name, where the source has them."""
        return {}

    @property
    def sample_axis(self) -> str | None:
        """Name of the one axis that counts samples (time ...), where the source has one with a name."""
        return None

    @property
    def series(self) -> Mapping[str, Any]:
        """Names and values that identify the series of all samples (member, model ...), where the source has them."""
        return {}

    @property
    def samples_along(self) -> tuple[str, ...]:
        """Names of the axes that are flattened into samples, where the source has names."""
        return () if self.sample_axis is None else (self.sample_axis,)

    @property
    def guessed_axes(self) -> GuessedAxes | None:
        """Axes that were taken for one sample by their positions alone; None where the source or the caller says so."""
        return None

    def sample_coordinates(self) -> Mapping[str, Coordinate]:
        """Return the coordinates along the samples (time ...), n values each, by name, where the source has them."""
        return {}

    def sample_keys(self) -> npt.NDArray[np.int64] | None:
        """Return numbers, (n,), that are equal for samples of one date of one series; None of samples without dates."""
        from .duplicates import times_of

        times = times_of(self)
        return None if times is None else times.keys

    @abc.abstractmethod
    def read(self, rows: slice, features: slice | None = None) -> Array:
        """Read samples ``rows.start`` to ``rows.stop`` (step 1, within range).

        Parameters
        ----------
        rows : slice
            Which samples; both ends given, ``0 <= start <= stop <= n``.
        features : slice, optional
            Which features of the flattened (C order) sample; all by default.

        Returns
        -------
        ndarray of shape (rows, features)
            Values as stored, C-contiguous, of dtype `dtype`. The caller never writes to it.

        Raises
        ------
        SourceError
            If they cannot be read; the message names the file.
        """

    @property
    def fills(self) -> bool:
        """True where `read_into` fills its target directly, but for parts of lines, which are read whole first."""
        return False

    def read_into(self, rows: slice, features: slice | None, out: Array) -> None:
        """Read as `read` does, into `out`, (rows, features), C-contiguous and of dtype `dtype`."""
        out[...] = self.read(rows, features)

    def each(self, rows: slice, function: Callable[[int, Array], None]) -> None:
        """Call ``function(i, image)`` for every sample ``rows.start + i``, an image of its own shape.

        In any order and, where each is a file to decode, from several threads at once. What `function` is given is
        not kept: no more images are in memory than are being worked on.

        Raises
        ------
        SourceError
            As `read`.
        """
        for at in range(rows.start, rows.stop):
            function(at - rows.start, self.read(slice(at, at + 1)).reshape(self.sample_shape))

    def fitting(self, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Collection:
        """Return the collection without the images that a preparation cannot make one shape with most of the others.

        Only where files may be left out and images differ in shape; any other collection is returned as it is.

        Parameters
        ----------
        shape_of : callable
            ``shape_of(shape)`` is the shape of a prepared image; it raises RequestError where there is none.
        """
        return self

    def where(self, index: int) -> str:
        """Say where sample `index` (from 0) comes from, e.g. ``"scans/b.tif, page 12"``."""
        return f"sample {index} of {self.source}"

    def sample_names(self) -> Sequence[str] | None:
        """Return the samples' own names (file names, say), or None where they are only numbered."""
        return None

    def named(self, index: int) -> str:
        """Say which sample it is and where it comes from, e.g. ``"scans/b.tif, page 12 (sample 40)"``."""
        where = self.where(index)
        return where if where.startswith("sample ") else f"{where} (sample {index})"

    def paths(self) -> list[str]:
        """Return the files, folders and globs that are read, as far as they are known."""
        return [*self.beside, file_and_key(self.source)[0]]

    def states(self, *, now: bool = False) -> list[State]:
        """Return the states of what samples are read from, by groups of samples in ascending order.

        Readers define it, and views derive theirs from the collection below; fingerprints and every comparison of a
        source with itself at another time are made of it. By default nothing is known, and no change is noticed.

        Parameters
        ----------
        now : bool, default=False
            Return the states at the time of the call rather than those at the time when the source was opened.

        Returns
        -------
        list of State
            At most about `MOST_STATES`. The first group begins at sample 0. Groups have a power of two of entries, so
            that those of a collection to which samples were added begin where they did.

        Raises
        ------
        SourceError
            If a source cannot be asked for its state.
        """
        return [State(0, self.source, "")]

    def begun(self, first: int = 0) -> int:
        """Return how many of the first samples have at least begun to be written; the `first` are known to have."""
        return self.n_samples

    def settled(self, seconds: float, first: int = 0, before: int = 0) -> int | None:
        """Return how many of the first samples are complete, while others are being written behind them.

        Parameters
        ----------
        seconds : float
            A sample is complete where what it is read from has not changed for so long, or further samples follow.
        first : int
            Samples known to be complete, which are not looked at again.
        before : int
            Samples that had begun to be written that long ago, by the value of `begun` then.

        Returns
        -------
        int or None
            None where nobody can tell.
        """
        return None

    def states_of_first(self, n: int, *, now: bool = False) -> list[State] | None:
        """Return the states that a collection of the first n samples alone would have; None where nobody can tell.

        So a source to which samples were appended is compared with itself before. Samples of a last chunk that was not
        full then are in a group of their own, as it is written anew when more are added.
        """
        return None

    def fingerprint(self) -> str:
        """Return a short text that changes when the source does: a digest of `states`, source, shape and dtype."""
        return fingerprint_of(self, self.states())


class Filled(Collection):
    """A collection whose reads fill arrays: `read` is `read_into` of a new one."""

    @property
    def fills(self) -> bool:
        """True: `read_into` fills its target directly."""
        return True

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
    """Split what a collection calls its source: ``a.h5, dataset 'x'`` where a file holds several arrays."""
    part = re.fullmatch(r"(.+), \w+ '(.+)'", source)
    return (source, None) if part is None or os.path.lexists(source) else (part[1], part[2])


def place_of(collection: Collection) -> str | None:
    """Return where the source of a collection is, whatever folder a process works in; None for an object in memory."""
    if collection.opened is None or collection.opened.source is None:
        return None
    path, key = file_and_key(collection.source)
    if not os.path.exists(path) and not glob.has_magic(path) and "://" not in path:  # it says how many files there are
        given = collection.opened.source
        return f"list {digest(*map(os.path.abspath, [given] if isinstance(given, str) else given))}"
    place = path if "://" in path else os.path.abspath(path)
    return place if key is None else f"{place}, {key}"


def sample_dims(collection: Collection, taken: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of a sample's axes: the source's own if none is taken, else by their number and lengths."""
    shape, names = collection.sample_shape, collection.axes
    if names and len(set(names)) == len(names) and not {"component", "eigenvalue", "sample", *taken} & set(names):
        return names
    if len(shape) == 2:
        return ("y", "x")
    if len(shape) == 3:
        return ("y", "x", "channel") if shape[-1] in COLOURS else ("z", "y", "x")
    return tuple(f"axis_{number}" for number in range(len(shape)))


def counting_dim(collection: Collection, dims: Sequence[str]) -> str:
    """Name the axis of samples in an output that has axes `dims` beside it: as the source does, else "sample"."""
    name = collection.sample_axis
    return "sample" if name is None or name in (*dims, "component", "eigenvalue", "scores", "images") else name


def fingerprint_of(collection: Collection, states: Sequence[State]) -> str:
    """Return the fingerprint of a collection whose states are known already."""
    return digest(collection.source, collection.shape, collection.dtype.str, encoded_states(states))


def encoded_states(states: Sequence[State]) -> str:
    """Return states as one line of text, ``"0:1f3a... 4:90bc..."``, for `first_change` to compare others with."""
    return " ".join(f"{first}:{digest(state)}" for first, _, state in states)


def first_change(before: str | Sequence[State], states: Sequence[State]) -> str | None:
    """Return the name of the first group whose state differs from an earlier one; None where all are the same.

    Earlier states may be encoded; names are theirs where they have any, as files may be gone since.
    """
    if before == states:
        return None
    known, text = (states, before) if isinstance(before, str) else (before, encoded_states(before))
    pairs = zip_longest(text.split(), encoded_states(states).split())
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if at is None:
        return None
    return (known[at] if at < len(known) else states[min(at, len(states) - 1)]).what


def growth_states(collection: Collection, states: Sequence[State] | None = None) -> Sequence[State]:
    """Return the states that tell if a grown source has kept its first samples; for a file, those of its parts."""
    states = collection.states() if states is None else states
    parts = collection.states_of_first(collection.n_samples) if len(states) == 1 else None
    return parts or states


def data_difference(provenance: Mapping[str, Any], collection: Collection) -> str | None:
    """Say what tells a collection from the data of a fit with this provenance; None where they are the same."""
    known, states = provenance.get("states"), collection.states()
    if known is None:
        return f"the model is of an earlier version, which recorded too little to tell if {collection.source} changed"
    either = states, growth_states(collection, states)  # models that followed a file have the latter
    if any(provenance.get("fingerprint") == fingerprint_of(collection, each) for each in either):
        return None
    changed = first_change(known, states) or collection.source
    return f"{changed} has changed since the fit, or is opened with other options (key, select, samples ...)"


def states_by_name(states: Sequence[State]) -> dict[str, str]:
    """Return states as entries of the identity of a run, named as its difference from another is told."""
    return {f"state of {what}" + (f" (from sample {first})" if first else ""): state for first, what, state in states}


def group_size(count: int) -> int:
    """Return the smallest power of two of entries to a group that makes at most `MOST_STATES` groups of `count`."""
    return 1 << max(0, (-(-count // MOST_STATES) - 1).bit_length())


def span_of(first: str, last: str) -> str:
    """Name a group of files by its first and last one."""
    return first if first == last else f"one of {first} to {last}"


def with_ends(states: Sequence[State], n: int) -> Iterator[tuple[State, int]]:
    """Yield each state with where its group ends; states that begin at the same sample concern the same group."""
    firsts = sorted({state.first for state in states})
    ends = dict(zip(firsts, [*firsts[1:], n], strict=True))
    for state in states:
        yield state, ends[state.first]


@contextmanager
def unchanged(collection: Collection, states: Sequence[State] | None = None) -> Iterator[None]:
    """Refuse what was read of a source that changed meanwhile."""
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
    """Return the size in bytes and time of last change in nanoseconds, which tell states of a file apart cheaply."""
    try:
        state = os.stat(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; check that it is still there.") from error
    return state.st_size, state.st_mtime_ns


def refuse_key(key: str | None, subject: str) -> None:
    """Refuse a key for a source that holds one thing only: ignoring it could read something else than was meant."""
    if key is not None:
        raise RequestError(f"key {key!r} was given, but {subject} holds a single array; leave key out.")


def by_key(name: str) -> str:
    """Write the option that names an array, for the command line and for Python."""
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
    """Return the smallest floating dtype that holds the numbers of a dtype, and NaN."""
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def unmasked(values: Array) -> Array:
    """Return an array of numbers with NaN where it is masked, in a floating dtype; as it is where nothing is masked."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not np.ma.is_masked(values) or values.dtype.kind not in "biuf":
        return np.asarray(values)
    found: Array = values.data.astype(with_nan(values.dtype))
    found[np.ma.getmaskarray(values)] = np.nan
    return found


def check_shape(shape: tuple[int, ...], subject: str) -> tuple[int, ...]:
    """Return `shape` if it is samples by at least one feature, else say what is missing."""
    if len(shape) < 2:
        raise SourceError(f"{subject} has shape {shape}; PCA needs an axis of samples and at least one of features.")
    if 0 in shape:
        raise SourceError(f"{subject} has shape {shape} and so no values; give a collection with samples in it.")
    return shape
