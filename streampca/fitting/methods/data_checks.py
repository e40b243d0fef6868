"""Refusals of data that no method can use (NaN, infinity, no variance), naming the sample and a remedy."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ...accumulators import NotFiniteError
from ...errors import DataError, StreampcaError
from ...events import Listener, Warned
from ...planning import Plan
from ...preprocessing import Prepared, missing_share
from ...readers import Collection

# Errors relative to the trace: with correct products, bounds stayed below a tenth of this on all data of the tests.
ROUNDING = {"float32": 1e-4, "float64": 1e-9}
NOT_ORTHONORMAL = 1e-10  # far above the rounding of a QR decomposition in float64 and a rotation, about 1e-14
BOUND_OF_RESIDUAL = 30  # a bound from 8 probes is 12 times the residual on average, and hardly ever 30 times


def bad_sample(error: NotFiniteError, collection: Collection, remedy: str = "") -> DataError:
    """Return the error for a sample that is not finite, with its name and a remedy, by default the one of fits."""
    if "overflow" in error.problem:
        remedy = "The values are finite; only their squares are not."
    return DataError(f"{collection.named(error.sample)} {error.problem}. {remedy or _remedy(collection)}")


def _remedy(collection: Collection) -> str:
    """Return the remedy of fits: a mask if pixels are missing in every sample, such as land."""
    # A share of 1 or 0 has another cause than pixels outside an area.
    share = missing_share(collection) if isinstance(collection, Prepared) and collection.mask is None else 0.0
    if 0 < share < 1:
        return (
            f"{100 * share:.2g} % of its features are missing in all samples looked at; leave them out with --mask "
            'valid (mask="valid").'
        )
    return (
        'Leave the sample out with --missing drop-samples (missing="drop-samples"), mask the pixels with --missing '
        'drop-features (missing="drop-features"), or, for kind "pca", fit what is there with --missing em '
        '(missing="em").'
    )


def place_of_feature(collection: Collection, feature: int) -> int | tuple[int, ...]:
    """Return the position of a feature in a sample: its number, or its indices if samples have several axes."""
    mask = getattr(collection, "mask", None)
    number = feature if mask is None else np.flatnonzero(mask)[feature]
    place = tuple(int(index) for index in np.unravel_index(number, collection.sample_shape))
    return place if len(place) > 1 else place[0]


def check_products(products: npt.NDArray[np.float64], source: str, plan: Plan) -> None:
    """Reject samples whose probe products overflow.

    Raises
    ------
    DataError
        If one is infinite or NaN.
    """
    if not np.isfinite(products).all():
        remedy = "use precision='double'" if plan.precision == "single" else "divide all samples by their largest value"
        raise DataError(f"{source} holds values whose squares overflow; {remedy}.")


def warn_of_wrong_products(
    bounds: npt.NDArray[np.float64],
    trace: float,
    coarsest: npt.DTypeLike,
    listener: Listener,
    *,
    residuals: npt.NDArray[np.float64] | float = 0.0,
) -> None:
    """Warn if errors of products far exceed rounding and the solver's residuals: processor or memory is faulty.

    Parameters
    ----------
    bounds : ndarray of shape (k,)
        Bounds on the errors of the products S v, in the units of the eigenvalues.
    trace : float
        Sum of all eigenvalues.
    coarsest : dtype
        Dtype of products or of components, whichever has fewer digits.
    listener : callable
        Receives the warning.
    residuals : ndarray of shape (k,), optional
        Residuals of the solver, if the bounds include them.
    """
    allowed = ROUNDING[np.dtype(coarsest).name] * trace
    if not np.all(bounds <= allowed + BOUND_OF_RESIDUAL * residuals):
        listener(
            Warned(
                f"products were wrong: they are off by up to {float(np.max(bounds)):.1e} where rounding explains "
                f"{allowed:.1e} at most. The error bounds of the components hold all the same. Fit again, on another "
                "machine if this is seen twice."
            )
        )


def warn_of_wrong_sums(agrees: bool | None, listener: Listener) -> None:
    """Warn if exact sums of products do not match those along random directions, that is if `agrees` is False."""
    if agrees is False:
        listener(
            Warned(
                "sums of whole numbers were wrong: they are not those along random directions, so the machine's memory "
                "or processor is faulty. The error bounds of the components hold all the same. Fit again, on another "
                "machine if this is seen twice."
            )
        )


def check_orthonormal(vectors: npt.NDArray[np.float64]) -> None:
    """Refuse vectors, the columns of (p, l), that are not orthonormal after a QR decomposition and a rotation.

    Raises
    ------
    StreampcaError
        If an inner product is wrong by more than rounding. Cost: 2 p l^2 flops.
    """
    error = float(np.abs(vectors.T @ vectors - np.eye(vectors.shape[1])).max())
    if not error <= NOT_ORTHONORMAL:  # NaN compares as false
        raise StreampcaError(
            f"components came out not orthonormal (by {error:.1e}), so the machine's memory or processor, or its "
            "numerical library, is faulty. Remove the checkpoint, if there is one, and fit again, on another machine "
            "or with another release of numpy if this is seen twice."
        )


def check_variance(trace: float, source: str, plan: Plan) -> None:
    """Refuse samples that are all equal, or differ by too little to be squared.

    Parameters
    ----------
    trace : float
        Sum of squared distances from the mean.
    source : str
        Name of the collection.
    plan : Plan
        Plan of the fit, for its problem and precision.

    Raises
    ------
    DataError
        If the trace is 0 or not finite, or if the mean square is below the smallest normal number of the products'
        dtype: squares then lose digits, and error bounds miss it because the probes lose the same digits.
    """
    if trace > 0 and np.isfinite(trace):
        single = plan.precision == "single"
        # Mean square of a difference from the mean.
        square = trace / (plan.problem.n_samples * plan.problem.n_features)
        if square >= float(np.finfo(np.float32).tiny if single else np.finfo(np.float64).tiny):
            return
        apart = math.sqrt(square)
        remedy = "use precision='double', or multiply" if single else "multiply"
        raise DataError(
            f"the samples of {source} differ by about {apart:.1e}, whose square float{32 if single else 64} does not "
            f"hold to full precision; {remedy} all samples by a factor such as 1e{-math.floor(math.log10(apart))}."
        )
    tiny = ", or they differ by less than float32 squares can hold (try precision='double')"
    if plan.precision == "double":
        tiny = ", or they differ by less than float64 squares can hold (multiply them by a factor such as 1e150)"
    samples = "samples of weight above 0" if plan.problem.weighted else f"{plan.problem.n_samples} samples"
    raise DataError(
        f"{source} has no variance: all {samples} are equal"
        f"{tiny if plan.problem.kind == 'f' else ''}; give samples that differ."
    )
