"""`follow`: keep a model up to date while an acquisition writes its samples.

The source is looked at again and again. Complete samples are added as a batch, in order; components are computed and
the model is replaced at intervals. Before anything is added, the samples that were added earlier are checked for
changes.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Unpack

from ..errors import ChangedError, DataError, DuplicatesError, ModelError, RequestError, SourceError, Stopped
from ..events import Listener, Planned, Stored, Warned, check_listener
from ..execution.session import session
from ..kinds.description import Description
from ..kinds.pca import PCADescription
from ..machine import hand_back
from ..models.pca import PCAModel
from ..models.store import check_model_output
from ..planning.request import Request
from ..preprocessing import Preparation
from ..preprocessing.run_options import DEVICE, OF_FITS, SHARING, FitOptions, refuse_unused
from ..readers import Collection, check_apart, open_collection, paths_of
from ..readers.collection import file_and_key
from ..readers.views.beginning import Beginning
from ..readers.views.chosen import Chosen
from ..signals import heed_stop, safe_point, stopping_on_signals
from ..storage.disk import expanded
from ..units import parse_seconds, whole_number
from .arguments import DEFAULT, arguments_of
from .build_model import data_of
from .incremental import BatchExecution, IncrementalFit
from .seen import Seen, provenance_of_sources, seen_by
from .update import load_to_update, updating_request

PathLike = str | os.PathLike[str]

LOOK = 1.0  # seconds between two looks at the source, or a fifth of `settle` where that is less
TRIES = 3  # looks after which an unreadable sample is an error, and no longer taken to be incomplete


@dataclass(frozen=True)
class Pace:
    """Times and end of following a source.

    Parameters
    ----------
    settle : float or str, default=5.0
        Time that a sample must not change before it is added, in seconds, or such as 10s. Its file or chunk must not
        have changed for so long, unless later samples exist already. A sample of an HDF5 file must have existed for so
        long.
    interval : float or str, default=30.0
        Time from one replacement of the model to the next; more if solving takes over a third of it.
    until : int, optional
        Number of samples at which following ends; by default there is none.
    idle : float or str, optional
        Time without samples after which following ends, such as 10min; by default only `until` or Ctrl-C ends it.
    """

    settle: float | str = 5.0
    interval: float | str = 30.0
    until: int | None = None
    idle: float | str | None = None

    def in_seconds(self) -> PaceSeconds:
        """Return the times in seconds, checked."""
        until = None if self.until is None else whole_number(self.until, "until", least=2, example="1000")
        idle = None if self.idle is None else parse_seconds(self.idle)
        return PaceSeconds(parse_seconds(self.settle), parse_seconds(self.interval), until, idle)


class PaceSeconds(NamedTuple):
    """The times of a `Pace` in seconds."""

    settle: float
    interval: float
    until: int | None
    idle: float | None

    @property
    def look(self) -> float:
        """Seconds between two looks at the source."""
        return max(0.02, min(LOOK, self.settle / 5))


@stopping_on_signals()
def follow(
    source: Any,
    kind: Description | None = None,
    *,
    n_components: int | float | str | None = DEFAULT,
    pace: Pace = Pace(),
    preparation: Preparation | None = None,
    **options: Unpack[FitOptions],
) -> PCAModel:
    """Fit a source while it is being written, and keep the model at `output` up to date.

    An existing model is updated: after a kill, or when more samples come, the same call continues where it was.

    Parameters
    ----------
    source : path, glob or list of paths
        A Zarr array on this machine, an HDF5 file that its writer keeps in SWMR mode, a folder or glob of images, or a
        series of files, to whose end samples are added. It need not exist yet.
    kind : PCA, optional
        Principal components with their options; by default ``streampca.PCA(n_components)``. An existing model keeps all
        its options but the number of components.
    n_components : int, float or str, default=0.95
        As for `fit`.
    pace : Pace, optional
        Time for samples to settle, interval between stored models, and the condition that ends following.
    preparation : Preparation, optional
        Steps applied to every sample first; an existing model keeps its own.
    **options
        ``output``, which is required: the folder of the model, replaced in one step, so that it can be loaded at any
        time. ``memory`` and ``listener``: see `streampca.Run`. ``key``, ``sample_axes``, ``on_bad_file`` ...: see
        `open_collection`.

    Returns
    -------
    PCAModel
        Model of all samples that were complete; the same as at `output`.

    Raises
    ------
    ChangedError
        If a sample that was added has changed since.
    RequestError
        If the source is not a path, or cannot be followed, such as an HDF5 file that is rewritten when it grows.
    ModelError
        If the model at `output` was fitted to other data.
    SourceError, DataError
        If a sample is unreadable although others follow it, or holds NaN or infinity. The model of the samples added
        before is stored first, without those that came together with the bad one.
    DuplicatesError
        If a file comes again, or one with dates of earlier files; the model is stored as for a bad sample.
    BudgetError, OutputError
        As `fit`.

    Notes
    -----
    A sample is in the stored model no later than `settle` + `interval` + two looks at the source (a fifth of `settle`
    each, 1 s at most) after it was written. This holds if batches are read faster than they come, and solving takes at
    most a third of `interval`; three times the duration of a longer solution stand in place of `interval`.

    An HDF5 file is never locked, so that its writer can open and close it at any time. In SWMR mode the writer makes a
    dataset longer before it writes the values. Samples whose chunks are not stored, and last ones that hold nothing but
    the fill value, are therefore waited for until the file is closed. The writer must flush values within `settle`.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> import numpy as np
    >>> import zarr
    >>> images = zarr.create_array("scans.zarr", data=load_digits().images)
    >>> streampca.follow("scans.zarr", output="model.zarr", n_components=10, pace=streampca.Pace(settle=0, until=1797))
    PCAModel(10 components of 8 x 8 samples, 73.8% of the variance of 1797 samples)
    """
    arguments = arguments_of(follow, kind, n_components, preparation, options)
    run, listener = arguments.run, arguments.listener
    refuse_unused(follow, run, (*SHARING, *OF_FITS, *DEVICE, "checkpoint"))
    check_listener(listener)
    if run.output is None:
        raise RequestError("follow keeps a model up to date in a folder; give output='model.zarr'.")
    if not isinstance(source, (str, os.PathLike, list, tuple)):
        raise RequestError(
            "follow needs a path, a glob or a list of paths, by which it opens the source again and again, and got "
            f"{type(source).__name__}; give the path of the data that are being written."
        )
    if arguments.model.kind != PCADescription.kind:
        raise RequestError(
            f"follow adds samples to principal components, and kind is {arguments.model.kind!r}; give PCA."
        )
    path = expanded(run.output)
    check_apart([path], paths_of(source))
    open_source = partial(open_collection, source, **arguments.opening)
    return follow_source(open_source, path, arguments.request(), arguments.preparation, pace.in_seconds(), listener)


def follow_source(
    open_source: Callable[[], Collection],
    path: str,
    request: Request,
    preparation: Preparation | None,
    pace: PaceSeconds,
    listener: Listener,
) -> PCAModel:
    """Follow the collection that a function opens; see `follow`."""
    with session("fit", output=path, listener=listener) as current:
        check_model_output(path, overwrite=True)
        following = _Following(open_source, path, request, preparation, pace, current.listener)
        try:
            following.run()
        except (KeyboardInterrupt, Stopped):
            heed_stop()
            following.end()
        except (SourceError, DataError, DuplicatesError):
            following.store()  # with the samples before the bad one
            raise
        if following.model is None:
            raise SourceError(f"no model was stored: {(following.waits_for or 'no sample came').rstrip('.')}.")
    return following.model


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep messages of opening an incomplete source, which every look repeats, out of the log."""

    def reject(record: logging.LogRecord) -> bool:
        return False

    log = logging.getLogger("streampca")
    log.addFilter(reject)
    try:
        yield
    finally:
        log.removeFilter(reject)


@dataclass
class _Following:
    """State of following a source.

    Attributes
    ----------
    fit : IncrementalFit or None
        Fit of the samples added; None before the first.
    seen : Seen or None
        Record of the source with the samples added.
    model : PCAModel or None
        Model as it is stored.
    waits_for : str
        Reason why nothing can be added yet.
    """

    open_source: Callable[[], Collection]
    path: str
    request: Request
    preparation: Preparation | None
    pace: PaceSeconds
    listener: Listener
    fit: IncrementalFit | None = None
    seen: Seen | None = None
    model: PCAModel | None = None
    waits_for: str = ""
    _adding: tuple[Seen, dict[str, Any]] | None = None
    _data: dict[str, Any] | None = None
    _stored: int = 0
    _is_planned: bool = False
    _failures: int = 0
    _looks: list[tuple[float, int]] = field(default_factory=lambda: [(-math.inf, 0)])  # time, samples begun by then

    @property
    def count(self) -> int:
        """Number of samples added."""
        return 0 if self.seen is None else self.seen.n_samples

    def run(self) -> None:
        """Look at the source until there are enough samples, or none has come for the time of `Pace.idle`."""
        self._load()
        last_came = time.monotonic()
        due = last_came + self.pace.interval / 2  # early, as the duration of the first solution is not known
        while self.pace.until is None or self.count < self.pace.until:
            safe_point()
            begun = self._looks[-1][1]
            is_added = self._look()
            if is_added or self._looks[-1][1] > begun:
                last_came = time.monotonic()
            elif self.pace.idle is not None and time.monotonic() - last_came >= self.pace.idle:
                break
            if not is_added:
                time.sleep(max(0.0, min(self.pace.look, due - time.monotonic())) or self.pace.look)
            if (began := time.monotonic()) >= due:
                self.store()
                # The next model is stored within the interval, unless reading then has less than half of the time.
                duration = time.monotonic() - began
                due = began + max(self.pace.interval - duration, 2 * duration)
        self.store()

    def _load(self) -> None:
        """Continue from the model that is stored already, if there is one."""
        if not os.path.lexists(self.path):
            return
        self.model = model = load_to_update(self.path, self.request.memory)
        seen = [source for source in seen_by(model.provenance, model.name) if source.place is not None]
        if len(seen) != 1:
            raise ModelError(f"{self.path} was not made by following one source; choose another output.")
        fitted = updating_request(model)
        self.seen, self._stored = seen[0], seen[0].n_samples
        self.request = replace(fitted.asking(n_components=self.request.n_components), memory=self.request.memory)
        self.fit = IncrementalFit.from_model(model, self.request)
        if fitted.n_components != self.request.n_components:
            self._solve_anew(self.fit, self.seen)

    def _solve_anew(self, fit: IncrementalFit, seen: Seen) -> None:
        """Have the model stored with another number of components, even if no samples come."""
        try:
            with _unlogged():
                raw = self.open_source()
        except (SourceError, OSError):  # the source is away: the model is stored anew when the next samples come
            return
        self._check_source(raw)
        whole = fit.template.prepared(Beginning(raw, seen.n_samples))
        seen.check(whole, self.path)
        self._data, self._stored = data_of(whole, whole.states(), None, None), 0

    def _check_source(self, raw: Collection) -> None:
        """Refuse a source other than the one of the samples added."""
        if self.seen is not None and not self.seen.is_of(raw):
            raise ModelError(f"{self.path} is of another source than {raw.source}; choose another output.")

    def _look(self) -> bool:
        """Add complete samples; return whether there were any."""
        try:
            with _unlogged():
                raw = self.open_source()
            begun_before, last_begun = self._begun_before_settling(), self._looks[-1][1]
            begun = raw.begun(self.count)
            self._looks.append((time.monotonic(), begun))
            ready = raw.settled(self.pace.settle, self.count, begun_before)
        except (SourceError, OSError) as error:  # it does not exist yet, or its first file is not complete
            self._wait(str(error))
            return False
        self._check_source(raw)
        if self._is_first_of_several(raw, ready):
            self._wait(f"{raw.source} is the only file yet")
            return False
        if ready is None:
            raise RequestError(
                f"{raw.source} cannot be followed: it does not show which of its samples are complete. Follow Zarr on "
                "this machine, a folder or glob of images, a series of files, or HDF5 in SWMR mode, which its writer "
                "sets (h5py.File(..., libver='latest'), a dataset with chunks and maxshape=(None, ...), then "
                "file.swmr_mode = True); of others fit what is there, and add the rest later by --update "
                "(streampca.update) and --samples (samples=)."
            )
        # A listing made while files are added may show later files without earlier ones. By now, the files up to the
        # last one of the previous look are all listed.
        ready = min(ready, last_begun, self.pace.until or ready)
        if ready <= self.count or ready < 2:
            return False
        for count in (ready, ready - 1):
            # The last sample may be incomplete as long as none follows it; those before it can be added.
            if count <= max(self.count, 1):
                break
            try:
                self._add(Beginning(raw, count))
            except SourceError as error:
                self._failures += count < min(ready, raw.n_samples)
                if isinstance(error, ChangedError) or self._failures >= TRIES:
                    raise
                self._wait(str(error))
            else:
                self._failures, self.waits_for = 0, ""
                return True
        return False

    def _begun_before_settling(self) -> int:
        """Return the number of samples whose writing had begun the settling time ago."""
        latest = time.monotonic() - self.pace.settle
        while len(self._looks) > 1 and self._looks[1][0] <= latest:
            del self._looks[0]
        return self._looks[0][1] if self._looks[0][0] <= latest else 0

    def _is_first_of_several(self, raw: Collection, ready: int | None) -> bool:
        """Return whether a source is the first file of a folder, glob or list that is to match several."""
        if raw.opened is None:
            return False
        path, source = file_and_key(raw.source)[0], raw.opened.source
        is_of_several = os.path.isfile(path) and not (isinstance(source, str) and os.path.isfile(expanded(source)))
        return source != path and (ready is None or is_of_several)

    def _wait(self, reason: str) -> None:
        """Record why nothing is added, and tell it once."""
        if reason != self.waits_for:
            self.listener(Warned(f"waiting for samples: {reason}"))
        self.waits_for = reason

    def _add(self, beginning: Beginning) -> None:
        """Add the new ones among the first samples of a source, after a check that the others are unchanged."""
        new = Chosen(beginning, range(self.count, beginning.n_samples)) if self.seen else beginning
        if self.fit is None:
            self.fit = IncrementalFit.begin(new, self.preparation, self.request)
        if not self._is_planned:
            self._is_planned = True
            self.listener(Planned(self.fit.plan_for(self.fit.template.prepared(new), None, BatchExecution())))
        whole = self.fit.template.prepared(beginning)
        now = Seen.of(whole)
        if self.seen is not None:
            self.seen.check(whole, self.path)
        self._adding = now, data_of(whole, whole.states(), None, None)
        self.fit.add(new, None, self.listener)
        self._note()

    def _note(self) -> None:
        """Record the samples added last as seen."""
        if self._adding is not None:
            (self.seen, self._data), self._adding = self._adding, None

    def end(self) -> None:
        """Store the model when following is interrupted."""
        # A batch is added as a whole or not at all: the number of samples tells whether this one was.
        if self._adding is not None and self.fit is not None and self.fit.n_samples == self._adding[0].n_samples:
            self._note()
        self.store()

    def store(self) -> None:
        """Compute the components of all samples so far, and replace the stored model."""
        if self.fit is None or self.seen is None or self._data is None or self.count == self._stored:
            return
        if shortage := self.fit.shortage(self.request):
            self._wait(shortage)
            return
        model = self.fit.model(self.request, self.listener)
        self.model = replace(model, provenance=provenance_of_sources([self.seen], self._data, model.provenance))
        hand_back()
        self.model.save(self.path, overwrite=True, keep_state=True)
        self._stored = self.count
        self.listener(Stored(self.path, self.count))
