"""Models made in memory, and assertions on what a reader would see of a figure."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text

from streampca.models.pca import PCAModel
from streampca.preprocessing import Frame, Preparation, unflatten

DIMS = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}


def fitted(raw, k, preparation=Preparation(), residual_bound=3e-7, dims=None, coordinates=None):  # noqa: B008 - frozen
    """Fit a model by an SVD in memory."""
    frame = Frame.of(preparation, raw.shape[1:])
    rows = frame.rows(raw.reshape(len(raw), -1)).astype(float)
    _, sigma, vt = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    variances, shape = sigma**2 / (len(raw) - 1), frame.sample_shape
    coloured = len(shape) == 3 and shape[-1] in (1, 3, 4)
    return PCAModel(
        components=unflatten(vt[:k], shape, frame.mask),
        mean=unflatten(rows.mean(axis=0)[None], shape, frame.mask)[0],
        explained_variance=variances[:k],
        residual_bound=np.full(k, residual_bound),
        angle_bound=np.full(k, np.nan),
        error_bound=np.full(k, residual_bound),
        total_variance=variances.sum(),
        n_samples=len(raw),
        sample_dims=dims or (("y", "x", "channel") if coloured else DIMS[len(shape)]),
        raw_shape=raw.shape[1:],
        raw_kind=raw.dtype.kind,
        mask=frame.mask,
        preparation=preparation,
        coordinates=coordinates or {},
    )


def spectrum(ratios, eigenvalues=None, n_samples=1000, n_features=500):
    """Return a model with a spectrum; its components do not matter."""
    return PCAModel(
        n_samples=n_samples,
        sample_dims=("x",),
        raw_shape=(n_features,),
        raw_kind="f",
        mean=np.zeros(n_features),
        components=np.eye(len(ratios), n_features),
        explained_variance=ratios,
        residual_bound=np.zeros(len(ratios)),
        angle_bound=np.zeros(len(ratios)),
        error_bound=np.zeros(len(ratios)),
        total_variance=1.0,
        eigenvalues=eigenvalues,
    )


def samples_like(shape, seed=0, count=60):
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((count, 5)) * [9, 5, 3, 2, 1]
    return 100 + (factors @ rng.standard_normal((5, int(np.prod(shape))))).reshape(count, *shape)


def drawn(axes):
    """Lay out and draw the whole figure that these axes are on."""
    figure = np.ravel(axes)[0].figure.canvas.figure
    figure.draw_without_rendering()
    return figure


def hidden_labels(figure):
    """Labels of ticks outside the range of their axis, which exist but are not drawn."""
    hidden = set()
    for ax in figure.findobj(Axes):
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    hidden |= {id(tick.label1), id(tick.label2)}
    return hidden


def texts_of(figure):
    """All texts that are seen."""
    hidden = hidden_labels(figure)
    return [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in hidden]


def assert_readable(axes):
    """Assert that no two texts overlap and that none is cut by the figure's edge."""
    figure = drawn(axes)
    boxes = [
        (text.get_text(), Text.get_window_extent(text))  # an annotation's own box would include its arrow
        for text in texts_of(figure)
    ]
    assert boxes
    edge = figure.bbox.padded(1)
    for name, box in boxes:
        assert edge.x0 <= box.x0, name
        assert box.x1 <= edge.x1, name
        assert edge.y0 <= box.y0, name
        assert box.y1 <= edge.y1, name
    for (a, first), (b, second) in combinations(boxes, 2):
        width = min(first.x1, second.x1) - max(first.x0, second.x0)
        height = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert width <= 1 or height <= 1, f"{a!r} covers {b!r}"


def assert_pictured(ax):
    """Assert that the panel shows an image or line that is not all one value."""
    values = np.ma.compressed(ax.images[0].get_array()) if ax.images else ax.lines[-1].get_ydata()
    assert np.ptp(values) > 0
