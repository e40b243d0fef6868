"""Fits and plans by one mapping of options, for tests whose parameters are options of kinds and of runs alike."""

from __future__ import annotations

import streampca
from streampca.kinds.description import fields_of, make
from streampca.kinds.registry import kind_class
from streampca.planning.request import Request


def kind_of(options):
    """Return the description of a kind that flat options ask for, and the options that are not of the kind."""
    cls = kind_class(options.pop("kind", "pca"))
    own = {name: options.pop(name) for name in [*options] if name in fields_of(cls)}
    return cls(**own), options


def fit(source, **options):
    """Fit by flat options."""
    kind, run = kind_of(options)
    return streampca.fit(source, kind, **run)


def plan(source=None, **options):
    """Plan by flat options."""
    kind, run = kind_of(options)
    return streampca.plan(source, kind, **run)


def request(n_components=0.95, method="auto", memory=None, precision="auto", **options):
    """Return the request that flat options make, checked."""
    run = {name: options.pop(name) for name in ("workers", "scratch", "output") if name in options}
    cls = kind_class(options.pop("kind", "pca"))
    asked = {"n_components": n_components, "method": method, "precision": precision}
    own = {name: value for name, value in asked.items() if name in fields_of(cls)} | options
    return Request(make(cls, own), memory=memory, **run)
