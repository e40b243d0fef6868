"""Groups and dates of a source's samples for the steps anomaly and detrend, in terms of what a model learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import Array
from ..errors import ModelError, RequestError
from ..readers.collection import Collection
from ..readers.dates import Dates, dates_of
from ..storage.coordinate import Coordinate
from .learned import SampleKeys
from .preparation import Preparation

WITH_DATES = (
    "give a file or an xarray.DataArray with a time coordinate, or labels that are dates such as 2001-07-23 "
    "(--labels, labels=)"
)
WITH_LABELS = "give one for each sample with --labels (labels=)"


@dataclass(frozen=True)
class SampleFacts:
    """Metadata of n samples.

    Attributes
    ----------
    subject : str
        Name of the samples in messages.
    named : callable
        ``named(i)`` is the name of sample i.
    coordinates : callable
        ``coordinates()`` returns the coordinates along the samples by name, n values each; it can open many files.
    axis : str or None
        Name of the axis that counts samples.
    labels : ndarray of shape (n,) or None
        Label of each sample.
    """

    subject: str
    named: Callable[[int], str]
    coordinates: Callable[[], Mapping[str, Coordinate]] = dict
    axis: str | None = None
    labels: Array | None = None

    @classmethod
    def of(cls, collection: Collection) -> SampleFacts:
        """Return the metadata of a collection's samples."""
        along, axis = collection.sample_coordinates, collection.sample_axis
        return cls(collection.source, collection.named, along, axis, collection.labels)

    @property
    def dates(self) -> Dates | None:
        """Dates of the samples, if they have any."""
        return dates_of(self.coordinates(), self.axis, self.labels)


def groups_of(preparation: Preparation, facts: SampleFacts) -> Array | None:
    """Return the month, day of the year or label of each sample, (n,); None without the step anomaly.

    Raises
    ------
    RequestError
        If the samples have no dates, or no labels.
    """
    if preparation.anomaly is None:
        return None
    if preparation.anomaly != "label":
        return _dates(preparation, facts, f"anomaly {preparation.anomaly!r}").number_of(preparation.anomaly)
    if facts.labels is None:
        raise RequestError(f"anomaly 'label' needs labels, and {facts.subject} has none; {WITH_LABELS}.")
    return facts.labels


def dated(preparation: Preparation, facts: SampleFacts) -> Dates | None:
    """Return the dates for the trend, None without the step detrend; raises the errors of `groups_of`."""
    return _dates(preparation, facts, "detrend") if preparation.detrend else None


def _dates(preparation: Preparation, facts: SampleFacts, step: str) -> Dates:
    dates = facts.dates
    if dates is None:
        raise RequestError(f"{step} needs dates, and the samples of {facts.subject} have none; {WITH_DATES}.")
    return dates


def keys_of(preparation: Preparation, facts: SampleFacts) -> SampleKeys | None:
    """Return the keys of samples into the learned level; None if the level is the same for all samples.

    Raises
    ------
    ModelError
        If samples lack dates or labels, a sample belongs to a group without samples in the fit, or dates have another
        calendar.
    """
    learned = preparation.learned
    if learned is None or not learned.is_of_samples:
        return None
    try:
        groups, dates = groups_of(preparation, facts), dated(preparation, facts)
    except RequestError:
        raise lacking(preparation, facts.subject) from None
    if dates is not None and dates.calendar != learned.calendar:
        raise ModelError(
            f"{facts.subject} has dates of the calendar {dates.calendar!r} and the trend was fitted along those of "
            f"{learned.calendar!r}; convert them to that calendar."
        )
    days = None if dates is None else dates.days - learned.origin
    if groups is not None and learned.groups is not None:
        return SampleKeys(_rows_of(groups, learned.groups, preparation, facts), days)
    return SampleKeys(np.zeros(0 if days is None else len(days), np.int32), days)


def _rows_of(keys: Array, groups: Array, preparation: Preparation, facts: SampleFacts) -> npt.NDArray[np.int32]:
    """Return the row of each sample's group in `groups`."""
    what = preparation.anomaly
    if (keys.dtype.kind == "U") != (groups.dtype.kind == "U"):
        raise ModelError(
            f"{facts.subject} has labels such as {keys[0].item()!r} and the samples fitted had such as "
            f"{groups[0].item()!r}; give labels of the same kind."
        )
    # Keys beyond the last group are found at len(groups); comparing with the last group reveals them.
    rows = np.minimum(np.searchsorted(groups, keys), len(groups) - 1)
    unknown = np.flatnonzero(groups[rows] != keys)
    if len(unknown):
        first = int(unknown[0])
        raise ModelError(
            f"{facts.named(first)} is of {what} {keys[first]}, of which the model was fitted to no sample and has no "
            "mean; leave such samples out with --samples (samples=) or --where (where=), or fit another model to "
            "samples with some of them."
        )
    return rows.astype(np.int32)


def lacking(preparation: Preparation, subject: str) -> ModelError:
    """Return the error for samples without the dates or labels that their level depends on."""
    if preparation.anomaly == "label":
        step, remedy = "the mean of their label", WITH_LABELS
    else:
        means = {"month": "the mean of their month", "dayofyear": "the mean of their day of the year"}
        step, remedy = means.get(preparation.anomaly or "", "the trend at their date"), WITH_DATES
    what = "labels" if preparation.anomaly == "label" else "dates"
    return ModelError(f"{subject} has no {what}, and the model takes {step} off samples; {remedy}.")
