"""All figures of a model on one page, and figures written to files."""

from __future__ import annotations

import os
import warnings
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from ..errors import OutputError
from ..models.sample_images import view_of
from ..storage.disk import expanded
from ..storage.outputs import staged
from .components import mean_and_components
from .drawing import DPI, AxesGrid, new_figure
from .reconstruction import reconstructions
from .score_plots import scores as draw_scores
from .spectrum import scree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..models.model import Model
    from .score_plots import Labels

SMALLEST, NARROW = 7, 110 / 25.4  # points of texts in figures for print, one less in those not as wide (inches)
LEAST_ROW = 0.65  # inches of a row of panels, with ticks and a title
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # dates would make equal figures differ


def overview(
    model: Model,
    scores: Any,
    samples: Any,
    labels: Labels | None = None,
    n_samples: int | None = None,
) -> Figure:
    r"""Draw variances and scores above components and reconstructions in one figure.

    Parameters
    ----------
    model : Model
        The model.
    scores : array of shape (n, k), collection or path of one
        Result of `PCAModel.transform`.
    samples : array of shape (n, \*raw_shape), sequence of images, collection, or a source for `open_collection`
        Samples to reconstruct; the first three are read and drawn, or two of more than one slice.
    labels : sequence of shape (n,), optional
        One for each row of the scores.
    n_samples : int, optional
        Total number of samples, if `scores` are of some of them only.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> figure = streampca.plot.overview(model, model.transform(digits), digits, labels=load_digits().target)
    """
    view = view_of(model.as_images())
    one = len(view.positions) == 1  # slices need more room, so fewer are drawn
    rows, wide = (3, 1.2) if one else (2, 1.9)
    height = max(3.0, rows * (wide * view.aspect + 0.25) + 0.8)
    figure = new_figure(12.0, 4.6 + height)
    above, below = cast("AxesGrid", figure.subfigures(2, 1, height_ratios=(4.6, height), hspace=0.03))
    left, right = above.subplots(1, 2)
    scree(model.basis, left)
    draw_scores(model, scores, labels, ax=right, n_samples=n_samples)
    left, right = cast("AxesGrid", below.subfigures(1, 2, wspace=0.03))
    left.suptitle("Mean and components, with their shares of the variance", fontsize="medium")
    right.suptitle("Samples and their reconstructions", fontsize="medium")
    mean_and_components(model, 8 if one else 2, left)
    reconstructions(model, samples, None if one else [model.basis.n_components], count=rows, figure=right)
    return figure


def save(figure_or_axes: Figure | Axes | AxesGrid, path: str | os.PathLike[str]) -> None:
    """Write the figure of these axes, in the format of the file's ending (png, pdf, svg).

    The same figure gives the same bytes.

    Raises
    ------
    OutputError
        If the ending is not of a format, or the file cannot be written.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10)
    >>> streampca.plot.save(streampca.plot.scree(model), "scree.png")
    """
    kind = os.path.splitext(path)[1].lstrip(".").lower()
    if kind not in figure_of(figure_or_axes).canvas.get_supported_filetypes():
        raise OutputError(f"{os.fspath(path)} has no ending that names a picture format; call it .png, .pdf or .svg.")
    with staged(expanded(path)) as partial:
        encode(figure_or_axes, partial, kind)


def encode(
    figure_or_axes: Figure | Axes | AxesGrid, file: str | IO[bytes], kind: str, width: float | None = None
) -> tuple[float, float]:
    """Write the figure of these axes to a path or an open file, in a format of matplotlib.

    With a `width` in inches, such as that of a column, the figure is laid out anew for it, with texts of 6 or 7 points,
    which journals ask for.

    Returns
    -------
    (float, float)
        Width and height of the figure in inches.
    """
    from matplotlib import rc_context

    figure = figure_of(figure_or_axes)
    if width is not None:
        fit_to(figure, width, SMALLEST - (width < NARROW))
    # Text stays text, which programs for drawing can edit.
    look: dict[Any, Any] = {"svg.hashsalt": "streampca", "svg.fonttype": "none", "pdf.fonttype": 42}
    with warnings.catch_warnings(), rc_context(look):
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # names in other scripts
        figure.savefig(file, dpi=DPI, format=kind, metadata=_UNDATED.get(kind))
    width, height = figure.get_size_inches()
    return float(width), float(height)


def fit_to(figure_or_axes: Any, width: float, largest: float) -> None:
    """Lay a figure out anew for a width in inches, with texts of at most `largest` points.

    It keeps its proportions, unless rows of panels would be too low.
    """
    from matplotlib.text import Text

    figure = figure_of(figure_or_axes)
    wide, high = figure.get_size_inches()
    grids = (ax.get_subplotspec() for ax in figure.axes)
    rows = max((grid.get_gridspec().nrows for grid in grids if grid is not None), default=1)
    figure.set_size_inches(width, max(width * high / wide, LEAST_ROW * rows))
    for text in figure.findobj(Text):
        text.set_fontsize(min(text.get_fontsize(), largest))


def image_boxes(figure_or_axes: Any) -> list[list[float]]:
    """Return the places of images and colour bars in a figure that was written.

    Returns
    -------
    list of (left, top, right, bottom)
        In per cent of the width and height of the figure, from its upper left corner.
    """
    figure = figure_of(figure_or_axes)
    wide, high = figure.bbox.width, figure.bbox.height
    drawn = [ax.get_window_extent() for ax in figure.axes if ax.images or ax.get_label() == "<colorbar>"]
    places = [(box.x0 / wide, 1 - box.y1 / high, box.x1 / wide, 1 - box.y0 / high) for box in drawn]
    return [[round(100 * float(edge), 2) for edge in place] for place in places]


def smallest_text(figure_or_axes: Any) -> float:
    """Return the size of the smallest text in a figure, in points."""
    from matplotlib.text import Text

    texts = figure_of(figure_or_axes).findobj(Text)
    return min((float(text.get_fontsize()) for text in texts if text.get_visible() and text.get_text()), default=10.0)


def figure_of(figure_or_axes: Any) -> Figure:
    """Return the whole figure of axes, of a grid of axes, or of a part of a figure."""
    # Subfigures and axes know the canvas of their whole figure.
    first = figure_or_axes.flat[0] if isinstance(figure_or_axes, np.ndarray) else figure_or_axes
    return cast("Figure", getattr(first, "figure", first).canvas.figure)
