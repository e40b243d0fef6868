"""Small fits of every method and schedule, planned in several blocks, and what tells that two have the same answer."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from functools import cache

import by_options
import fsspec
import numpy as np
import pytest
from hypothesis import strategies as st
from judged import turned
from sklearn.metrics import pairwise_distances

import streampca
from streampca.errors import Stopped
from streampca.events import BlockDone, Checkpoint
from streampca.execution.checkpoint import Checkpointing
from streampca.fitting import fit as fitting
from streampca.fitting import open_fit as opening
from streampca.fitting.methods.randomized_start import sample_runs
from streampca.fitting.open_fit import Opened, prepare
from streampca.planning import component_chunks, sample_rows
from streampca.planning.blocks import spans_of
from streampca.preprocessing.kernel_features import KernelFeatures
from streampca.preprocessing.kernels import Kernel
from streampca.readers.target import Target
from streampca.signals import stopping_on_signals

TALL, WIDE = (500, 12, 12), (90, 20, 30)  # shapes of the two collections
ROWS, RANGE = 128, 150  # samples to a block of the first, features to a range of the second
TILE = 2**11  # bytes of a storage tile of components, so that there are many

_ROWS = {"block_rows": ROWS, "product_rows": ROWS, "ahead": 0, "threads": 1}
_RANGES = {"block_rows": 32, "block_features": RANGE, "product_features": 64, "schedule": "sweep"}
_RANGES |= {"threads": 1, "ahead": 0, "spans": spans_of(600, 1), "solver": "lanczos"}
_DENSE = _RANGES | {"solver": "dense"}
_SCRATCH = {"schedule": "scratch", "bytes_written": 4 * 90 * 600}
_STORED = {"stored": True, "precision": "double"}
_SAMPLES = _RANGES | {"width": 15, "columns": 75}

_DISTANCES = {"method": "symmetric", "kind": "classical-mds", "metric": "precomputed"}

# What a fit asks for, and what is changed in its plan: all that a resumed fit must remember stands in one of them.
KINDS = {
    "covariance": ({"method": "covariance"}, _ROWS),
    "covariance in threads": ({"method": "covariance"}, _ROWS | {"threads": 2}),
    "dual sweep": ({"method": "dual"}, _DENSE),
    "dual scratch": ({"method": "dual"}, _DENSE | _SCRATCH),
    "dual sweep, stored": ({"method": "dual"}, _DENSE | _STORED),
    "dual scratch, stored": ({"method": "dual"}, _DENSE | _SCRATCH | _STORED),
    "randomized": ({}, _ROWS),
    "fraction": ({"n_components": 0.8}, _ROWS | {"width": 20, "columns": 144}),
    "full basis": ({"n_components": 0.95}, _ROWS | {"width": 20, "columns": 60}),
    "begins again": ({"n_components": 8}, _ROWS | {"width": 18, "columns": 36}),
    "variances": ({"n_components": 4, "tol_variance": 1e-3}, _ROWS),
    "to double": ({"n_components": 4, "tol": 1e-8}, _ROWS),
    "weighted, in threads": ({"n_components": 3}, _ROWS | {"threads": 2}),
    "off": ({"n_components": 2}, _ROWS | {"width": 12, "columns": 48}),
    "sketch": ({"max_passes": 2}, _ROWS),
    "em": ({"missing": "em", "method": "em"}, _ROWS),
    "em, weighted, in ranges": ({"missing": "em", "method": "auto"}, _ROWS | {"threads": 2, "product_features": 60}),
    "supervised": ({"kind": "supervised-pca", "method": "auto", "n_components": 3}, _ROWS),
    "discriminant": ({"kind": "fisher-discriminant", "method": "auto", "n_components": 3}, _ROWS),
    "screening": ({"kind": "supervised-principal-components", "method": "auto", "n_components": 3}, _ROWS),
    "symmetric": (_DISTANCES, _ROWS | {"width": 12, "columns": 96, "solver": "lanczos", "schedule": "products"}),
    "symmetric, in memory": (_DISTANCES, _ROWS | {"solver": "dense", "schedule": "samples"}),
    "kernel matrix": ({"kind": "kernel-pca", "method": "kernel-matrix"}, _DENSE | {"precision": "double"}),
    "kernel matrix, scratch": (
        {"kind": "kernel-pca", "method": "kernel-matrix"},
        _RANGES | _SCRATCH | _STORED | {"stored": False},
    ),
    "samples": ({}, _SAMPLES),
    "samples, begins again": ({"n_components": 6}, _SAMPLES | {"width": 14, "columns": 28}),
    "samples, weighted, scratch": ({"n_components": 3}, _SAMPLES | _SCRATCH),
    "samples, fraction, stored": ({"n_components": 0.8}, _SAMPLES | _STORED | {"width": 20, "columns": 90}),
}


def write_collections(folder):
    """Write the collections that `run` reads."""
    tall = turned(1e3 / np.arange(1, 145), (500, 144)).astype(np.float32) + np.float32(100)
    wide = turned(1e3 / np.arange(1, 91), (90, 600)).astype(np.float32) + np.float32(100)
    off, unseen = tall.copy(), np.ones(500, bool)
    for rows in sample_runs(500, sample_rows(500, 144, 12), 1):
        unseen[slice(*rows)] = False
    off[unseen] += 1e5  # the start has seen only the darker: its mean is far off
    gaps = np.where(np.random.default_rng(0).random(tall.shape) < 0.2, np.float32(np.nan), tall)
    np.save(folder / "distances.npy", pairwise_distances(tall).astype(np.float32))
    for name, x, shape in (("tall", tall, TALL), ("wide", wide, WIDE), ("off", off, TALL), ("gaps", gaps, TALL)):
        np.save(folder / f"{name}.npy", x.reshape(shape))


def source_of(folder, kind):
    if kind.startswith(("em", "symmetric")):
        return folder / ("gaps.npy" if kind.startswith("em") else "distances.npy")
    name = (
        "off" if kind == "off" else "tall" if "threads" in KINDS[kind][1] and "spans" not in KINDS[kind][1] else "wide"
    )
    return folder / f"{name}.npy"


_PLANS = {}


def run(path, kind, output, folder=None, *, listener=lambda event: None, overwrite=False, **more):
    """A fit to an output, saved after every block where there is a folder to save it in."""
    words, sizes = KINDS[kind]
    whole = opening.plan_collection
    options = {"n_components": 5, "method": "randomized", "memory": 64 * 2**20, "precision": "single", "output": True}
    request = by_options.request(**options | words | more)

    def planned(collection, request, **others):
        key = repr((path, request, others))  # a plan takes as long as a fit
        plan = _PLANS.get(key) or _PLANS.setdefault(key, whole(collection, request, **others))
        spans = sizes.get("spans") or spans_of(plan.problem.n_samples, sizes["threads"], ROWS)
        return replace(plan, **sizes | {"spans": spans})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "plan_collection", planned)
        patch.setattr(component_chunks, "TILE", TILE)
        patch.setattr(component_chunks, "LEAST_RUN", 64)
        collection = prepare(streampca.open_collection(path), None)
        if words.get("kind") == "kernel-pca":
            collection = collection.awaiting(KernelFeatures(kernel=Kernel("rbf", 1e-6)), holds_landmarks=False)
        n = collection.n_samples
        weights = np.random.default_rng(1).integers(0, 3, n).astype(np.float64) if "weighted" in kind else None
        place = fitting.ModelOutput(str(output), overwrite=overwrite)
        how = None if folder is None else Checkpointing(str(folder), 0)
        target = Target(np.arange(n) % 4, np.arange(4)) if kind in ("supervised", "discriminant") else None
        target = Target(np.sin(np.arange(n))[:, None]) if kind == "screening" else target
        opened = Opened(collection, request, weights, target)
        return fitting.fit_collection(opened, checkpoint=how, output=place, listener=listener)


_ARRAYS = ("components", "mean", "explained_variance", "residual_bound", "angle_bound", "error_bound")


def bits(model):
    """All that a fit finds out."""
    found = [np.asarray(getattr(model, name)).tobytes() for name in _ARRAYS]
    found += [] if model.preparation.mapped is None else [model.preparation.mapped.digest]
    return [*found, model.total_variance, model.n_samples, model.outside, model.provenance["passes"]]


IN_STORE = "memory://saved/run"  # a folder of checkpoints in an object store


def in_store():
    """Return the paths of what is in the store."""
    return fsspec.filesystem("memory").find("/saved")


class Died(BaseException):
    """Exception that nothing catches, as good as a kill."""


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


def ends_at(*moments):
    """Some ends of a run: at which kind of event, how far through the run, and how."""
    end = st.tuples(st.sampled_from(moments), st.floats(0, 1), st.sampled_from(["dies", "stops"]))
    return st.lists(end, min_size=1, max_size=3)


def ended(again, events, output, folder, ends):
    """Start a run again after each of these ends, until it is done: what it returns, and what happened in the last run.

    An unbroken run tells these events; no more than the block of each death is done again.
    """
    seen, deaths = [], 0
    for end in [*ends, None]:
        last = []
        try:
            with stopping_on_signals(owns_process=True):
                found = again(listener=_ending(end, events, last))
            break
        except Died:
            deaths += 1
        except Stopped as error:
            if not re.fullmatch(
                rf"stopped by SIGTERM; progress (up to the last checkpoint )?is saved in {folder}\.", str(error)
            ):
                raise
        finally:
            seen += last
        assert not os.path.exists(output)
    assert number(BlockDone, seen) <= number(BlockDone, events) + deaths
    return found, last


def _ending(end, events, seen):
    """A listener that ends a run so: it dies, or is told to stop."""
    moment, share, how = end or (None, 0, None)
    most = number(BlockDone if moment is Checkpoint else moment, events) if end else 0

    def listen(event):
        seen.append(event)
        if end and isinstance(event, moment) and number(moment, seen) == 1 + int(share * (most - 1)):
            if how == "dies":
                raise Died
            signal.raise_signal(signal.SIGTERM)

    return listen


def unbroken_fits(folder, outputs):
    """A function of a kind of fit: the answer, and what happened; each is made once."""

    @cache
    def unbroken(kind):
        events = []
        return bits(run(source_of(folder, kind), kind, outputs / f"{kind}.zarr", listener=events.append)), events

    return unbroken
