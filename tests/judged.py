"""Problems for fits by a few passes, and judgements of their models against the samples' covariance in float64."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from math import prod

import by_options
import numpy as np
import pytest

import streampca
from streampca.events import Planned, Warned
from streampca.execution import LocalExecutor
from streampca.fitting.methods import METHODS, Job
from streampca.fitting.open_fit import plan_collection, prepare
from streampca.planning import randomized as sides

ROUNDING = 1e-14  # of residuals and variances computed in float64, in first variances: bounds of exact sums are below

# -- samples


def noise(shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape)


def turned(values, shape, seed=0):
    """Samples whose scatter has about these eigenvalues times n, in directions at random."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(length, len(values))))[0] for length in shape)
    return (left * np.sqrt(np.asarray(values) * shape[0])) @ right.T


def pictures(n, shape, seed=4):
    """Images whose amplitudes fall as 1/f, one a row."""
    f = np.hypot(*np.meshgrid(*map(np.fft.fftfreq, shape), indexing="ij"))
    f[0, 0] = 1 / shape[0]
    return np.fft.ifft2(np.fft.fft2(noise((n, *shape), seed)) / f).real.reshape(n, -1)


def drifting(x):
    """The same samples, brighter from one to the next, by five deviations in all."""
    return x + np.linspace(0, 5 * x.std(), len(x))[:, None]


def spiked(n, p, strength):
    strong = noise((n, 8), seed=2) * strength * np.array([30, 24, 18, 14, 11, 9, 7, 5])
    return noise((n, p)) + strong @ np.linalg.qr(noise((p, 8), seed=3))[0].T


def problems(n, shape, strength=1):
    """Return functions that make the samples, (n, p), of each problem, by name."""
    p = prod(shape)
    return {
        "1/i": lambda: turned(1e3 / np.arange(1, min(n, p + 1)), (n, p)),
        "spiked noise": lambda: spiked(n, p, strength),
        "exponential": lambda: turned(1e4 * 0.7 ** np.arange(60), (n, p)),
        "1/f images": lambda: pictures(n, shape),
        "drifting mean": lambda: drifting(pictures(n, shape)),
    }


def images_of(made, n, shape):
    """A function of a problem's name and an offset: its images, read-only, each made once."""

    @cache
    def problem(name, offset=0.0):
        x = (made[name]() + offset).astype(np.float32).reshape(n, *shape)
        x.flags.writeable = False
        return x

    return problem


# -- how it is fitted


def fit(x, k, precision="single", memory="256MiB", **more):
    """A model by method 'randomized', and what happened."""
    events = []
    words = {"method": "randomized", "precision": precision, "memory": memory, "listener": events.append, **more}
    return by_options.fit(x, n_components=k, **words), events


def carried_out(collection, plan):
    """Return the model and the events of a plan that the planner would not choose within any budget."""
    events = []
    return METHODS["randomized"](Job(collection, plan, LocalExecutor(), listener=events.append)), events


# -- what happened


def along_samples(patch):
    """Have method 'randomized' go along samples wherever that fits, whatever it costs."""
    patch.setattr(sides, "WORTH_TURNING", np.inf)
    patch.setattr(sides, "WORTH_SECONDS", 0)


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def warnings(events):
    return [event.message for event in of(Warned, events)]


# -- the answer


def check_signs(written, held):
    """Assert that components on disk and in memory have positive largest loadings, and agree except for ties."""
    one, other = (np.asarray(model.components).reshape(len(model.components), -1) for model in (written, held))
    for rows in (one, other):
        assert np.all(rows.max(axis=1) >= -rows.min(axis=1) * (1 - 1e-5))
    high, low = other.max(axis=1), -other.min(axis=1)
    clear = (np.abs(high - low) > 1e-5 * high) & (np.abs(np.sum(one * other, axis=1)) > 0.9)
    assert np.count_nonzero(clear) > 0.8 * len(clear)
    assert np.all(np.sum(one * other, axis=1)[clear] > 0)


@dataclass
class Truth:
    """Centred samples, of which ``rows.T @ rows`` is the covariance; its values, descending; the mean."""

    rows: np.ndarray
    values: np.ndarray
    mean: np.ndarray

    @cached_property
    def vectors(self):
        """A row each."""
        return np.linalg.svd(self.rows, full_matrices=False)[2]


def truth(x, weights=None):
    x = np.asarray(x, np.float64).reshape(len(x), -1)
    weights = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    return _truth(x.tobytes(), weights.tobytes())


@lru_cache(maxsize=16)  # the same samples are judged again and again, and an SVD takes longer than a fit
def _truth(samples, weighed):
    weights = np.frombuffer(weighed)
    x = np.frombuffer(samples).reshape(len(weights), -1)
    mean = np.average(x, axis=0, weights=weights)
    rows = (x - mean) * np.sqrt(weights / (weights.sum() - 1))[:, None]
    return Truth(rows, np.linalg.svd(rows, compute_uv=False) ** 2, mean)


EPS32 = float(np.finfo(np.float32).eps)


def rows_of(components):
    return np.asarray(components, np.float64).reshape(len(components), -1)


def angles(components, others):
    """Angle of each pair of unit rows, exact for small ones, which the arc cosine is not."""
    rows, others = rows_of(components), rows_of(others)
    along = np.sum(rows * others, axis=1)
    return np.arctan2(np.linalg.norm(rows - others * along[:, None], axis=1), np.abs(along))


def residuals(found, right):
    """|C v - value v| / value of every component, as stored."""
    vectors, values = rows_of(found.components), np.asarray(found.explained_variance)
    return np.linalg.norm((vectors @ right.rows.T) @ right.rows - values[:, None] * vectors, axis=1) / values


def check(found, x, *, tol=1e-4, weights=None, orthonormal=2e-7):
    """Assert that components are the leading ones, orthonormal, as exact as `tol` makes them, and within bounds."""
    right, k = truth(x, weights), len(found.explained_variance)
    vectors, values, true = rows_of(found.components), np.asarray(found.explained_variance), right.values[:k]
    assert np.abs(vectors @ vectors.T - np.eye(k)).max() <= orthonormal
    left = residuals(found, right)
    assert np.all(left <= found.residual_bound)
    assert np.all(left <= 1.1 * tol + 1e-6 * values[0] / values)
    # From a residual r: r, or r^2 / gap; the gap of a value that is wanted is that to those that are not.
    following = right.values[k] if k < len(right.values) else 0.0
    squared = k * (tol * values) ** 2 / np.maximum(true - following, 1e-300)
    # Scores along a component are rounded like the samples, whose length is that of the largest scores.
    rounding = 2 * EPS32 * np.sqrt(true[0] * true)
    assert np.all(np.abs(values - true) <= np.minimum(squared, tol * values) + 1e-6 * true + rounding)
    assert np.all(np.abs(values - true) <= found.error_bound * values)
    outside = np.linalg.norm(right.rows - (right.rows @ vectors.T) @ vectors, 2) ** 2
    assert outside <= following + 1e-3 * true[-1]
    assert outside <= found.outside * (1 + 1e-6) + 1e-9 * values[0]
    np.testing.assert_allclose(found.mean.ravel(), right.mean, rtol=1e-9, atol=1e-5 * np.sqrt(true[0]))
    assert found.total_variance == pytest.approx(np.sum(right.values), rel=1e-6)
    assert found.n_samples == (len(x) if weights is None else np.count_nonzero(weights))
    return right


def check_wide(found, right):
    """Assert that values far from the next are much better than `check` asks of those in narrow gaps."""
    k = len(found.explained_variance)
    wide = right.values[:k] - right.values[1 : k + 1] >= 1e-2 * right.values[:k]
    assert wide.any()
    np.testing.assert_allclose(found.explained_variance[wide], right.values[:k][wide], rtol=1e-6)


# -- along features, and along samples


class Along:
    """Fits along features, of more samples than these, or along samples, of fewer."""

    def __init__(self, side, n, shape, made, memory, orthonormal):
        self.side, self.n, self.shape, self.memory = side, n, shape, memory
        self.made, self.problem, self.orthonormal = made, images_of(made, n, shape), orthonormal

    @contextmanager
    def _chosen(self):
        """Have the planner go along samples, on two cores, if that is what is tried."""
        with pytest.MonkeyPatch.context() as patch:
            if self.side == "samples":
                along_samples(patch)
                patch.setattr("streampca.machine.cores", lambda: 2)
            yield

    def fit(self, x, k, precision="single", **more):
        """A model, and what happened."""
        with self._chosen():
            model, events = fit(x, k, precision, **{"memory": self.memory, **more})
        assert [event.plan.side for event in of(Planned, events)] == [self.side]
        return model, events

    def quiet(self, x, k, *about, **more):
        """A model fitted without a warning."""
        model, events = self.fit(x, k, *about, **more)
        assert warnings(events) == []
        return model

    def check(self, found, x, **more):
        return check(found, x, orthonormal=self.orthonormal, **more)

    def turned(self, values):
        """Images with these eigenvalues."""
        return turned(values, (self.n, prod(self.shape))).reshape(self.n, *self.shape)

    def planned(self, x, k, **more):
        """A plan of the method; take `replace(plan, ...)` of it for what no budget makes the planner take."""
        collection = prepare(streampca.open_collection(x), None)
        request = by_options.request(k, "randomized", int(self.memory[:-3]) * 2**20, "single", **more)
        with self._chosen():
            plan = plan_collection(collection, request)
        assert plan.side == self.side
        return collection, plan


# Components along samples are products with these, which nothing makes orthogonal again; in float32 that is so far off.
SAMPLES = Along("samples", 240, (40, 60), problems(240, (40, 60), strength=10), "64MiB", 1e-6)
