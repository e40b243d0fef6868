"""Fits that die at a known moment, and what tells that they went on to the same answer, bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np

from streampca.events import BlockDone

_ARRAYS = ("components", "mean", "explained_variance", "error_bound", "angle_bound", "variance_bound")


def bits(model):
    """All that a fit finds out."""
    found = [np.asarray(getattr(model, name)).tobytes() for name in _ARRAYS]
    return [*found, model.total_variance, model.n_samples, model.outside, model.provenance["passes"]]


class Died(BaseException):
    """As good as killed: nobody catches it."""


def number(kind, events):
    return sum(isinstance(event, kind) for event in events)


def dying(count, kind=BlockDone):
    """A listener that ends everything at an event."""
    seen = []

    def listen(event):
        seen.append(event)
        if number(kind, seen) == count:
            raise Died

    return listen


def undisturbed(run):
    """A function of a kind of fit: the answer of ``run(kind, listener)``, and what happened; each is made once."""

    @cache
    def unbroken(kind):
        events = []
        return bits(run(kind, events.append)), events

    return unbroken
