r"""`Compression`: bytes of images stored as scores and components, and the error of their reconstructions.

One pass gives the figures of every number of components. With z the scores of a sample x along orthonormal components
1 ... K, and b those of the image c that it is compared with (x itself, or the same image without noise),

    \|c - x_k\|^2 = \|c - c_K\|^2 + \sum_{i \le k} (z_i - b_i)^2 + \sum_{k < i \le K} b_i^2

where x_k and c_K are the reconstructions from k and from all K components. All terms are squares, so nothing cancels.
Over the fitted samples, with c = x, the mean is the sum of the variances left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..errors import ModelError, RequestError
from ..planning.blocks import Span
from ..preprocessing import Preparation, Prepared
from ..readers import Collection
from ..readers.views.patches import Patches
from ..units import format_bytes
from .subspace import Subspace, squared_lengths, working_dtype
from .transform import applied, measure, rows_beside

Counts = npt.NDArray[np.int64]

SHOWN = 12  # rows of the table


@dataclass(frozen=True, eq=False)
class Compression:
    """Size of a collection as scores and components, and the error of reconstruction, by the number of components.

    Attributes
    ----------
    n_components : ndarray of int of shape (L,)
        Numbers of components, ascending.
    stored_bytes : ndarray of int of shape (L,)
        Bytes of that many scores per sample, of the components and of the mean, before any compression of files.
    original_bytes : int
        Bytes of the samples as stored, decoded; for patches, of the images they were cut from.
    rmse : ndarray of shape (L,)
        Root of the mean squared error of a feature, in the units of prepared samples (scaled and normalized).
    n_samples : int
        Number of samples.
    peak : float or None
        Largest possible range of values, in the same units; None if unknown.
    given_rmse : float or None
        The same error of the samples themselves, if they were compared with others; else None.
    is_measured : bool
        True if the error was measured on these samples; else it follows from the variances of the fitted samples.
    """

    n_components: Counts
    stored_bytes: Counts
    original_bytes: int
    rmse: Float64
    n_samples: int
    peak: float | None = None
    given_rmse: float | None = None
    is_measured: bool = True

    @property
    def ratio(self) -> Float64:
        """Compression ratio, shape (L,): bytes of the samples over those stored."""
        return self.original_bytes / self.stored_bytes

    @property
    def psnr(self) -> Float64 | None:
        """Peak signal-to-noise ratio, 20 log10(peak / rmse), in dB, shape (L,); None if the peak is unknown."""
        return None if self.peak is None else _decibels(self.peak, self.rmse)

    @property
    def given_psnr(self) -> float | None:
        """Peak signal-to-noise ratio of the samples themselves, if they were compared with others; else None."""
        if self.peak is None or self.given_rmse is None:
            return None
        return float(_decibels(self.peak, np.array(self.given_rmse)))

    @property
    def best(self) -> int:
        """The number of components with the least error; an intermediate one for noisy samples against clean images."""
        return int(self.n_components[np.argmin(self.rmse)])

    def at(self, n_components: int) -> Compression:
        """Return the figures of a single number of components.

        Raises
        ------
        RequestError
            If there are no figures for it.
        """
        index = np.flatnonzero(self.n_components == n_components)
        if not len(index):
            raise RequestError(
                f"n_components={n_components} is not among the {len(self.n_components)} numbers there are figures for, "
                f"{self.n_components[0]} to {self.n_components[-1]}; ask for it in ladder."
            )
        figures = {name: getattr(self, name)[index] for name in ("n_components", "stored_bytes", "rmse")}
        return replace(self, **figures)

    def line(self) -> str:
        """Return the figures of the largest number of components as a line of text."""
        stored, original = (format_bytes(int(count)) for count in (self.stored_bytes[-1], self.original_bytes))
        error = f"RMSE {self.rmse[-1]:.4g}"
        if self.psnr is not None:
            error += f", PSNR {self.psnr[-1]:.2f} dB (peak {self.peak:.6g})"
        population = "" if self.is_measured else " over the samples fitted"
        return (
            f"{self.n_components[-1]} components: {stored} of scores and components for {original} of samples, ratio "
            f"{self.ratio[-1]:.3g}; {error}{population}"
        )

    def __str__(self) -> str:
        peak = "" if self.peak is None else f", peak {self.peak:.6g}"
        last = len(self.n_components) - 1
        shown = np.unique(np.linspace(0, last, min(SHOWN, last + 1)).round().astype(int))
        lines = ["".join(f"{cell:>12}" for cell in cells) for cells in self.table(shown)]
        return "\n".join([f"{self.n_samples} samples, {format_bytes(self.original_bytes)}{peak}", *lines])

    def table(self, rows: Counts) -> list[list[str]]:
        """Return the heads of a table, and the cells of the figures at some indices."""
        columns = {
            "components": [str(count) for count in self.n_components[rows]],
            "stored": [format_bytes(int(count)) for count in self.stored_bytes[rows]],
            "ratio": [f"{ratio:.3g}" for ratio in self.ratio[rows]],
            "RMSE": [f"{rmse:.4g}" for rmse in self.rmse[rows]],
        }
        if self.psnr is not None:
            columns["PSNR"] = [f"{level:.2f} dB" if np.isfinite(level) else "exact" for level in self.psnr[rows]]
        return [[*columns], *(list(cells) for cells in zip(*columns.values(), strict=True))]


def _decibels(peak: float, rmse: Float64) -> Float64:
    with np.errstate(divide="ignore"):
        return 20 * np.log10(peak / rmse)


def peak_of(preparation: Preparation, dtype: np.dtype[Any] | None) -> float | None:
    """Return the range of prepared values of an integer dtype, signed or not: (2^bits - 1) times the scale.

    None for floats, and where each pixel or each sample has its own scale.
    """
    uneven = preparation.normalize or preparation.standardize or preparation.maps
    if dtype is None or dtype.kind not in "biu" or uneven or isinstance(preparation.scale, np.ndarray):
        return None
    range_of_dtype = 1 if dtype.kind == "b" else 2 ** (8 * dtype.itemsize) - 1
    return range_of_dtype * float(preparation.scale or 1)


def check_compared(samples: Any, against: Any, peak: float | None) -> None:
    """Refuse a range of values that is not positive, and `against` without samples."""
    if peak is not None and not peak > 0:
        raise RequestError(f"peak {peak} is not a positive number; give the range of values there can be, such as 255.")
    if samples is None and against is not None:
        raise RequestError("against is given without samples; give the samples to be compared with it.")


def fitted_compression(model: Any, ladder: Sequence[int] | None, peak: float | None) -> Compression:
    """Return the figures of the collection that a `PCAModel` was fitted on, by its variances; nothing is read."""
    counts = _checked(ladder, model.n_components)
    weight = model.total_weight or model.n_samples
    # Variances divide by n - 1, the mean squared error by n.
    rmse = np.sqrt(np.maximum(model.variance_outside(counts), 0) * (weight - 1) / (weight * model.n_features))
    dtype = raw_dtype(model)
    # The bytes recorded with a part are those of the whole collection.
    original = None if "part" in model.provenance else model.provenance.get("nbytes")
    if original is None:
        original = model.n_samples * math.prod(model.raw_shape) * (dtype or model.components.dtype).itemsize
    rows = model.preparation.dtype_of(dtype or model.components.dtype)
    # Scores have the dtype in which `transform` multiplies.
    stored = kept_bytes(model, counts, model.n_samples, working_dtype(rows, model.components.dtype))
    if peak is None:
        peak = peak_of(model.preparation, dtype)
    return Compression(counts, stored, original, rmse, model.n_samples, peak, is_measured=False)


def written_compression(model: Any, collection: Collection, count: int, squares: float | None) -> Compression:
    """Return the figures of `count` components and of a collection whose reconstructions were written.

    Parameters
    ----------
    model : PCAModel
        Model that reconstructed them.
    collection : Prepared or Collection
        Prepared samples, or scores.
    count : int
        Number of components used.
    squares : float or None
        Sum of the squared errors of features as analysed; if None, the error is that of the fitted samples.
    """
    fitted, n_samples, counts = fitted_compression(model, [count], None), collection.n_samples, np.array([count])
    if squares is None or not isinstance(collection, Prepared):
        original = fitted.original_bytes * n_samples // fitted.n_samples
        stored = kept_bytes(model, counts, n_samples, collection.dtype)
        return replace(fitted, n_samples=n_samples, stored_bytes=stored, original_bytes=original)
    rows = model.preparation.dtype_of(collection.raw.dtype)
    stored = kept_bytes(model, counts, n_samples, working_dtype(rows, model.components.dtype))
    rmse = np.sqrt([squares / (n_samples * model.n_features)])
    peak = peak_of(model.preparation, collection.raw.dtype)
    return Compression(counts, stored, original_bytes(collection.raw), rmse, n_samples, peak)


def original_bytes(raw: Collection) -> int:
    """Return the bytes of a collection as stored, decoded; for patches, which can overlap, of the images."""
    return raw.base.nbytes if isinstance(raw, Patches) else raw.nbytes


def raw_dtype(model: Any) -> np.dtype[Any] | None:
    """Return the dtype of the samples a `PCAModel` was fitted on, as stored; None if it is not recorded."""
    name = model.provenance.get("dtype")
    return None if name is None else np.dtype(name)


def kept_bytes(model: Any, counts: Counts, n_samples: int, scores: np.dtype[Any]) -> Counts:
    """Return the bytes of scores of a dtype, of components and of the mean, for each number of components."""
    p = model.n_features
    component_bytes = n_samples * scores.itemsize + p * model.components.dtype.itemsize
    stored: Counts = counts * component_bytes + 8 * p
    return stored


def measured_compression(
    model: Any,
    samples: Prepared,
    against: Prepared | None,
    ladder: Sequence[int] | None,
    *,
    peak: float | None,
    memory: int | str | None,
) -> Compression:
    """Measure the figures in one pass over samples and those they are compared with; see `PCAModel.compression`."""
    counts = _checked(ladder, model.n_components)
    if against is not None and against.n_samples != samples.n_samples:
        raise ModelError(
            f"{samples.source} has {samples.n_samples} samples and {against.source}, to compare them with, has "
            f"{against.n_samples}; give one for each, in the same order."
        )
    errors, given_squares = _squared_errors(model, samples, against, memory)
    features = samples.n_samples * model.n_features
    dtype = working_dtype(samples.dtype, model.components.dtype)
    return Compression(
        counts,
        kept_bytes(model, counts, samples.n_samples, dtype),
        original_bytes(samples.raw),
        np.sqrt(errors[counts - 1] / features),
        samples.n_samples,
        peak_of(model.preparation, (against or samples).raw.dtype) if peak is None else peak,
        None if against is None else math.sqrt(given_squares / features),
    )


def _checked(ladder: Sequence[int] | None, most: int) -> Counts:
    """Return the numbers of components, ascending; all by default."""
    counts = np.arange(1, most + 1) if ladder is None else np.unique(np.asarray(ladder))
    if not len(counts) or counts.dtype.kind not in "iu" or not 1 <= counts[0] <= counts[-1] <= most:
        raise RequestError(f"ladder {ladder!r} is not of whole numbers between 1 and {most}, what the model has.")
    return counts.astype(np.int64)


def _squared_errors(
    model: Any, samples: Prepared, against: Prepared | None, memory: int | str | None
) -> tuple[Float64, float]:
    """Return the sums of squared errors with 1 ... K components, shape (K,), and of the samples themselves."""
    pair = [samples] if against is None else [samples, against]
    # With "em" the error would be over the observed pixels only, which is not comparable: refuse such samples.
    stored: Subspace = replace(model.subspace, missing="error")
    fit = rows_beside(stored, model.frame, pair, memory)
    subspace = stored.held() if fit.are_held else stored
    errors, given_squares = np.zeros(len(stored.components)), np.zeros(1)

    def compare(block: Span, blocks: list[Array]) -> None:
        """Add the terms of the formula at the head of this file: z are `scores`, b are `targets`."""
        projections = [
            applied(subspace.project, rows, collection.named, block.start)
            for collection, rows in zip(pair, blocks, strict=True)
        ]
        scores, targets = (subspace.along_basis(part.astype(np.float64)) for part in (projections[0], projections[-1]))
        differences, lost = np.square(scores - targets).sum(axis=0), np.square(targets).sum(axis=0)
        outside = subspace.squared_error(blocks[-1], projections[-1]).sum()
        errors[:] += outside + np.cumsum(differences) + np.append(np.cumsum(lost[:0:-1])[::-1], 0.0)
        given_squares[:] += 0.0 if against is None else squared_lengths(*blocks).sum()

    measure(compare, pair, fit.at_once, ahead=fit.ahead)
    return errors, float(given_squares[0])
