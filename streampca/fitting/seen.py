"""`Seen`: record of a source that a model has absorbed, so that none of its samples counts twice.

A source that is given again is compared with what was seen of it; files and dates of other sources are looked for among
those that were seen.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..errors import ChangedError, DuplicatesError, RequestError
from ..events import Listener, Warned
from ..preprocessing import Prepared
from ..readers import Collection
from ..readers.collection import digest, encoded_states, first_change, growth_states, place_of
from ..readers.duplicates import ALL, ERROR, KEEP_ALL, KEEP_FIRST, SERIES, files_of
from ..readers.opening_record import MOST_KEPT
from ..units import counted

Keys = npt.NDArray[np.int64]

SEEN = "seen"  # in provenance: what a model was fitted on, an entry a source
MOST_TEXT = 2**16  # characters of dates that are noted: attributes of a model are small


@dataclass(frozen=True)
class Seen:
    """Source as a model has seen it; plain data.

    Attributes
    ----------
    place : str or None
        Its place; None where that is not known.
    options : mapping or None
        Options that it was opened with.
    n_samples : int
        Number of samples it had.
    states : str
        Their states (`streampca.readers.collection.encoded_states`).
    files, dates : str
        What `noted` says of its files and of the dates of its samples.
    """

    place: str | None
    options: Mapping[str, Any] | None
    n_samples: int
    states: str
    files: str = ""
    dates: str = ""

    @classmethod
    def of(cls, collection: Prepared) -> Self:
        """Return a source as it is now."""
        states = encoded_states(growth_states(collection))
        return cls(
            place_of(collection.raw), _options(collection.raw), collection.n_samples, states, **noted(collection.raw)
        )

    def is_of(self, raw: Collection) -> bool:
        """Return whether a collection is this source, perhaps after samples were added to it."""
        place = place_of(raw)
        return place is not None and self.place == place and _without(self.options) == _without(_options(raw))

    def check(self, whole: Prepared, model: str) -> None:
        """Refuse a source of whose samples that were seen some have changed.

        A storage chunk that they did not fill is not compared: it is written anew when samples are added.

        Raises
        ------
        ChangedError, RequestError
            If one has changed, or if nobody can tell.
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
        known, full = self.states.split(), first // whole.chunks.samples * whole.chunks.samples
        if n > first and full < first and states[-1].first == full:
            known, states = known[:-1], states[:-1]
        if (changed := first_change(" ".join(known), states)) is not None:
            raise ChangedError(f"{changed} has changed since {model} was fitted; fit a new model to all samples.")

    def shares_samples(self, other: Seen) -> bool | None:
        """Return whether samples of two sources are read from the same places of the same files.

        None where they are of the same files, and options leave it open whether of the same places. Arrays in memory
        are the same where all their values are.
        """
        if self.place is None and other.place is None:
            return (self.n_samples, self.states) == (other.n_samples, other.states)
        mine, theirs = set(_halves(self.files)), set(_halves(other.files))
        if not mine & theirs:
            return False
        if _without(self.options, "samples") != _without(other.options, "samples"):
            return None
        one, another = self._places, other._places
        alone = len(self.files.split()) == len(other.files.split()) == 1
        if one is None or another is None or not (alone or mine == theirs or self._is_whole or other._is_whole):
            return None
        return bool(np.isin(one, another).any())

    @property
    def keys(self) -> Keys:
        """Keys of the samples (`Collection.sample_keys`) in ascending order, as far as they are noted."""
        if not self.dates:
            return np.empty(0, np.int64)
        return np.cumsum(np.frombuffer(zlib.decompress(base64.b85decode(self.dates)), "<i8"))

    @property
    def _is_whole(self) -> bool:
        return "samples" not in (self.options or {}).get("options", {})

    @property
    def _places(self) -> npt.NDArray[np.int64] | None:
        """Places of the samples in all of the source; None where they are not known."""
        if self._is_whole:
            return np.arange(self.n_samples)
        asked = (self.options or {})["options"]["samples"]
        if not isinstance(asked, dict):
            return np.asarray(asked, np.int64)
        start, _, step = asked["slice"]
        return None if (start or 0) < 0 else (start or 0) + (step or 1) * np.arange(self.n_samples)


def noted(collection: Collection) -> dict[str, str]:
    """Return what is noted of a collection's samples, as short texts by name; empty where that is not known.

    Returns
    -------
    dict
        ``files``: for each file 12 digits of a digest of its path, and 12 of its inode, size and time, which its links
        share. ``dates``: `Collection.sample_keys` in order, as differences, packed.
    """
    paths, keys = files_of(collection), collection.sample_keys()
    files = " ".join(map(_file_digests, paths)) if len(paths) <= MOST_KEPT else ""
    dates = "" if keys is None else base64.b85encode(zlib.compress(_differences(keys).tobytes())).decode()
    return {"files": files, "dates": dates if len(dates) <= MOST_TEXT else ""}


def _differences(keys: Keys) -> Keys:
    return np.diff(np.unique(keys).astype("<i8"), prepend=np.zeros(1, "<i8"))


def _file_digests(path: str) -> str:
    """Digests of a file's path and of its inode; of a folder or URL the path alone."""
    place, own = path if "://" in path else os.path.realpath(path), path
    if os.path.isfile(path):
        state = os.stat(path)
        own = repr((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))
    return digest(place)[:12] + digest(own)[:12]


def _halves(files: str) -> Iterator[str]:
    for each in files.split():
        yield from (each[:12], each[12:])


def _options(raw: Collection) -> dict[str, Any] | None:
    return None if raw.opened is None else {**raw.opened.to_json(), "source": None}


def _without(options: Mapping[str, Any] | None, *names: str) -> Any:
    """Return options of opening without some, and without what to do with samples that are there twice."""
    if options is None:
        return None
    own = {name: value for name, value in options["options"].items() if name not in ("duplicates", *names)}
    return {**options, "options": own}


def places_to_add(
    whole: Prepared, known: Sequence[Seen], before: Seen | None, model: str, listener: Listener
) -> range | npt.NDArray[np.int64]:
    """Return the places of samples that a model has not seen, in a source of which it may have seen the first ones.

    Raises
    ------
    DuplicatesError
        If samples are of a file, or a date, of another source that it has seen, and nothing says what to do with them.
    """
    raw, first = whole.raw, 0 if before is None else before.n_samples
    places = range(first, raw.n_samples)
    wish = ERROR if raw.opened is None else raw.opened.options.get("duplicates", ERROR)
    others = [each for each in known if each is not before]
    if wish == ALL or not others or not len(places):
        return places
    keys = raw.sample_keys()
    if keys is None or not all(each.dates for each in others):
        _check_files(whole, others, model, listener)
    again = np.zeros(len(places), np.bool_)
    if keys is not None:
        again = np.isin(keys[first:], np.concatenate([each.keys for each in others]))
    if again.any() and wish == ERROR:
        raise DuplicatesError(
            f"{raw.source} has {counted(int(np.count_nonzero(again)), 'sample')} of dates that {model} was fitted to, "
            f"{raw.named(first + int(again.argmax()))} first, and they would count twice; {KEEP_FIRST}, or {SERIES} "
            f"{KEEP_ALL}."
        )
    return first + np.flatnonzero(~again) if again.any() else places


def _check_files(whole: Prepared, others: Sequence[Seen], model: str, listener: Listener) -> None:
    now = Seen.of(whole)
    found = [(each, each.shares_samples(now)) for each in others]
    shared = next((each for each, shares in found if shares), None)
    unclear = next((each for each, shares in found if shares is None), None)
    if shared is not None:
        files = set(_halves(shared.files))
        path = next((each for each in files_of(whole.raw) if files & set(_halves(_file_digests(each)))), None)
        what = f"{whole.source} has the values of samples" if path is None else f"{path} is among the files"
        raise DuplicatesError(
            f"{what} that {model} was fitted to, and its samples would count twice; leave it out, or {KEEP_ALL}."
        )
    if unclear is not None:
        listener(
            Warned(
                f"{model} was fitted to files of {whole.source} opened with other options; samples that are the same "
                "count twice."
            )
        )


def seen_by(about: Mapping[str, Any]) -> list[Seen]:
    """Return what a model was fitted on, by its provenance, as far as it was noted."""
    if SEEN in about:
        return [Seen(**entry) for entry in about[SEEN]]
    if about.get("states") is None:
        return []
    options = None if about.get("opened") is None else {**about["opened"], "source": None}
    states = about.get("states_of_parts", about["states"])
    n_samples = about["plan"]["problem"]["n_samples"]
    return [Seen(about.get("place"), options, n_samples, states, about.get("files", ""), about.get("dates", ""))]


def provenance_of_sources(seen: Sequence[Seen], last: Mapping[str, Any], fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a model of all sources seen.

    Parameters
    ----------
    seen : sequence of Seen
        The sources, in order.
    last : mapping
        Provenance of the data of the last source, see `data_of`; that of the model where it is the only one.
    fitted : mapping
        Provenance of the fit.
    """
    entries = {SEEN: [vars(each) for each in seen]}
    if len(seen) > 1:
        return {**fitted, **entries}
    weights = fitted.get("sample_weight")
    return {**fitted, **last, **entries, "sample_weight": weights}
