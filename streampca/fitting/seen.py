"""`Seen`: record of a source that a model was fitted to, so that none of its samples counts twice.

A source that is given again is compared with its record; the files and dates of a new source are looked up in the
records of all others.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_type_hints

import numpy as np
import numpy.typing as npt

from ..errors import ChangedError, DuplicatesError, RequestError
from ..events import Listener, Warned
from ..kinds.values import accepted_entries
from ..preprocessing import Prepared
from ..readers import Collection
from ..readers.collection import digest, encoded_states, first_change, growth_states, place_of
from ..readers.duplicates import ALL, ERROR, KEEP_ALL, KEEP_FIRST, SERIES, files_of
from ..readers.opening_record import MOST_KEPT, OpeningRecord
from ..storage.integrity import naming_damage
from ..units import counted

Keys = npt.NDArray[np.int64]

SEEN = "seen"  # key in the provenance of a model: its sources, one entry each
MOST_TEXT = 2**16  # characters of dates that are recorded, as the attributes of a model are kept small


@dataclass(frozen=True)
class Seen:
    """Record of a source as a model saw it; plain data.

    Attributes
    ----------
    place : str or None
        Place of the source; None if it is unknown.
    options : mapping or None
        Options of opening it.
    n_samples : int
        Number of samples it had.
    states : str
        States of these samples (`streampca.readers.collection.encoded_states`).
    files, dates : str
        Digests of its files and packed dates of its samples, see `noted`.
    """

    place: str | None
    options: Mapping[str, Any] | None
    n_samples: int
    states: str
    files: str = ""
    dates: str = ""

    @classmethod
    def of(cls, collection: Prepared) -> Self:
        """Return the record of a source as it is now."""
        states = encoded_states(growth_states(collection))
        return cls(
            place_of(collection.raw), _options(collection.raw), collection.n_samples, states, **noted(collection.raw)
        )

    def is_of(self, raw: Collection) -> bool:
        """Return whether a collection is this source, possibly with samples added at its end."""
        place = place_of(raw)
        return place is not None and self.place == place and _without(self.options) == _without(_options(raw))

    def check(self, whole: Collection, model: str) -> None:
        """Refuse a source whose recorded samples have changed.

        The last storage chunk is not compared if the recorded samples did not fill it, as adding samples rewrites it.

        Raises
        ------
        ChangedError
            If one of the samples has changed.
        RequestError
            If the source does not show whether they have.
        """
        first, n = self.n_samples, whole.n_samples
        if n < first:
            raise ChangedError(
                f"{whole.source} has {n} samples now, and {model} was fitted to {first}; fit a new model to them."
            )
        states = growth_states(whole) if n == first else whole.states_of_first(first)
        if states is None:
            raise RequestError(
                f"{whole.source} does not show whether the {first} samples that {model} was fitted to are unchanged; "
                f"give the new ones alone: --samples {first}:{n} (samples=slice({first}, {n}))."
            )
        recorded, full = self.states.split(), first // whole.chunks.samples * whole.chunks.samples
        if n > first and full < first and states[-1].first == full:
            recorded, states = recorded[:-1], states[:-1]
        if (changed := first_change(" ".join(recorded), states)) is not None:
            raise ChangedError(f"{changed} has changed since {model} was fitted; fit a new model to all samples.")

    def shares_samples(self, other: Seen) -> bool | None:
        """Return whether two sources read samples from the same places of the same files.

        None if they share files, and the options of opening do not tell whether also places. Arrays in memory share
        samples if all their values are equal.
        """
        if self.place is None and other.place is None:
            return (self.n_samples, self.states) == (other.n_samples, other.states)
        mine, theirs = set(_halves(self.files)), set(_halves(other.files))
        if not mine & theirs:
            return False
        if _without(self.options, "samples") != _without(other.options, "samples"):
            return None
        my_places, their_places = self._places, other._places
        # Places count from the first file on: they can be compared if all files are shared, or all samples are used.
        are_single = len(self.files.split()) == len(other.files.split()) == 1
        are_comparable = are_single or mine == theirs or self._is_whole or other._is_whole
        if my_places is None or their_places is None or not are_comparable:
            return None
        return bool(np.isin(my_places, their_places).any())

    @property
    def keys(self) -> Keys:
        """Keys of the samples (`Collection.sample_keys`), ascending; empty if none are recorded."""
        if not self.dates:
            return np.empty(0, np.int64)
        return np.cumsum(np.frombuffer(zlib.decompress(base64.b85decode(self.dates)), "<i8"))

    @property
    def _is_whole(self) -> bool:
        """True if all samples of the source were used."""
        return "samples" not in (self.options or {}).get("options", {})

    @property
    def _places(self) -> npt.NDArray[np.int64] | None:
        """Places of the used samples in the whole source; None if they are unknown."""
        if self._is_whole:
            return np.arange(self.n_samples)
        samples = (self.options or {})["options"]["samples"]
        if not isinstance(samples, dict):
            return np.asarray(samples, np.int64)
        start, _, step = samples["slice"]  # a negative start counts from an end that is not recorded
        return None if (start or 0) < 0 else (start or 0) + (step or 1) * np.arange(self.n_samples)


def noted(collection: Collection) -> dict[str, str]:
    """Return a record of a collection's files and dates as short texts; empty where these are unknown.

    Returns
    -------
    dict
        ``files``: two digests of 12 digits for each file, of its path and of its inode, size and time, which links to
        it share. ``dates``: `Collection.sample_keys` in order, as differences, compressed.
    """
    paths, keys = files_of(collection), collection.sample_keys()
    files = " ".join(map(_file_digests, paths)) if len(paths) <= MOST_KEPT else ""
    dates = ""
    if keys is not None:  # differences of ascending keys, which repeat, compress to a few bytes
        differences = np.diff(np.unique(keys).astype("<i8"), prepend=np.zeros(1, "<i8"))
        dates = base64.b85encode(zlib.compress(differences.tobytes())).decode()
    return {"files": files, "dates": dates if len(dates) <= MOST_TEXT else ""}


def _file_digests(path: str) -> str:
    """Return digests of a file's path and of its inode; of a folder or URL both are of the path."""
    place, identity = path if "://" in path else os.path.realpath(path), path
    if os.path.isfile(path):
        state = os.stat(path)
        identity = repr((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))
    return digest(place)[:12] + digest(identity)[:12]


def _halves(files: str) -> Iterator[str]:
    """Yield the two digests of each file."""
    for pair in files.split():
        yield from (pair[:12], pair[12:])


def _options(raw: Collection) -> dict[str, Any] | None:
    return None if raw.opened is None else {**raw.opened.to_json(), "source": None}


def _without(options: Mapping[str, Any] | None, *names: str) -> Any:
    """Return options of opening without some of them, and without the treatment of duplicates."""
    if options is None:
        return None
    others = {name: value for name, value in options["options"].items() if name not in ("duplicates", *names)}
    return {**options, "options": others}


def places_to_add(
    whole: Prepared, seen: Sequence[Seen], before: Seen | None, model: str, listener: Listener
) -> range | npt.NDArray[np.int64]:
    """Return the places of the samples of a source that a model has not seen.

    Parameters
    ----------
    whole : Prepared
        The source as it is now.
    seen : sequence of Seen
        All sources of the model.
    before : Seen or None
        The one of them that is this source, with fewer samples.
    model : str
        Name of the model, for messages.
    listener : callable
        Called with a warning if it is unclear whether samples are the same.

    Raises
    ------
    DuplicatesError
        If samples belong to a file, or a date, of another source of the model, and no option says what to do with them.
    """
    raw, first = whole.raw, 0 if before is None else before.n_samples
    places = range(first, raw.n_samples)
    rule = ERROR if raw.opened is None else raw.opened.options.get("duplicates", ERROR)
    others = [source for source in seen if source is not before]
    if rule == ALL or not others or not len(places):
        return places
    keys = raw.sample_keys()
    if keys is None or not all(source.dates for source in others):
        _check_files(whole, others, model, listener)
    is_repeated = np.zeros(len(places), np.bool_)
    if keys is not None:
        is_repeated = np.isin(keys[first:], np.concatenate([source.keys for source in others]))
    if is_repeated.any() and rule == ERROR:
        raise DuplicatesError(
            f"{raw.source} has {counted(int(np.count_nonzero(is_repeated)), 'sample')} of dates that {model} was "
            f"fitted to, {raw.named(first + int(is_repeated.argmax()))} first, and they would count twice; "
            f"{KEEP_FIRST}, or {SERIES} {KEEP_ALL}."
        )
    return first + np.flatnonzero(~is_repeated) if is_repeated.any() else places


def _check_files(whole: Prepared, others: Sequence[Seen], model: str, listener: Listener) -> None:
    """Refuse a source that shares samples with other sources of a model; warn if that is unclear."""
    now = Seen.of(whole)
    shares = [source.shares_samples(now) for source in others]
    if True in shares:
        files = set(_halves(others[shares.index(True)].files))
        path = next((path for path in files_of(whole.raw) if files & set(_halves(_file_digests(path)))), None)
        what = f"{whole.source} has the values of samples" if path is None else f"{path} is among the files"
        raise DuplicatesError(
            f"{what} that {model} was fitted to, and its samples would count twice; leave it out, or {KEEP_ALL}."
        )
    if None in shares:
        listener(
            Warned(
                f"{model} was fitted to files of {whole.source} opened with other options; samples that are the same "
                "count twice."
            )
        )


def seen_by(about: Mapping[str, Any], model: str) -> list[Seen]:
    """Return the sources of a model, as far as its provenance records them.

    Raises
    ------
    ModelError
        If the record, or that of how they were opened, is damaged.
    """
    opened = about.get("opened")
    if opened is not None:  # also that of a merged model, which `shared_record` compares with those of others
        OpeningRecord.from_json(opened, model)
    with naming_damage(model, "its record of the samples"):
        if SEEN in about:
            return [_restored(entry, model) for entry in about[SEEN]]
        if about.get("states") is None or "plan" not in about:  # embeddings, which are not updated: plans of stages
            return []
        entry = {"place": about.get("place"), "options": None if opened is None else {**opened, "source": None}}
        entry |= {"n_samples": about["plan"]["problem"]["n_samples"]}
        entry |= {"states": about.get("states_of_parts", about["states"])}
        return [_restored(entry | {name: about.get(name, "") for name in ("files", "dates")}, model)]


def _restored(entry: Mapping[str, Any], model: str) -> Seen:
    """Return the source that a record in a model is of, with checked values."""
    seen = Seen(**accepted_entries(get_type_hints(Seen), entry))
    if seen.options is not None:
        OpeningRecord.from_json(seen.options, model)
    seen.keys  # noqa: B018 - dates that cannot be decoded
    return seen


def samples_added(about: Mapping[str, Any], raw: Collection, model: str) -> int:
    """Return how many samples a source has gained since the fit of a provenance; 0 if others have changed as well."""
    before = next((source for source in seen_by(about, model) if source.is_of(raw)), None)
    if before is None or raw.n_samples <= before.n_samples:
        return 0
    try:
        before.check(raw, model)
    except (ChangedError, RequestError):  # or if the source does not show whether they have
        return 0
    return raw.n_samples - before.n_samples


def files_inserted(about: Mapping[str, Any], raw: Collection, model: str) -> list[str]:
    """Return the files that a source has gained since the fit of a provenance; none if others have changed as well."""
    before = next((source for source in seen_by(about, model) if source.is_of(raw)), None)
    if before is None or not before.files:
        return []
    recorded, paths = {*before.files.split()}, {_file_digests(path): path for path in files_of(raw)}
    return [path for digests, path in paths.items() if digests not in recorded] if recorded <= {*paths} else []


def provenance_of_sources(seen: Sequence[Seen], last: Mapping[str, Any], fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a model of several sources.

    Parameters
    ----------
    seen : sequence of Seen
        The sources, in order.
    last : mapping
        Provenance of the data of the last source, see `data_of`; used if it is the only one.
    fitted : mapping
        Provenance of the fit.
    """
    entries = {SEEN: [vars(source) for source in seen]}
    if len(seen) > 1:
        return {**fitted, **entries}
    weights = fitted.get("sample_weight")
    return {**fitted, **last, **entries, "sample_weight": weights}
