"""Groups of parameters that several kinds of model share, with their types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args

from ..errors import RequestError
from .description import Description
from .values import Check, Count, Fraction, InPython, Range, Word, seed_of

RuleName = Literal["elbow", "mp", "mle"]  # rules that count components, see `streampca.eigensolvers.n_components`
RULES: tuple[RuleName, ...] = get_args(RuleName)
MissingRule = Literal["error", "drop-features", "drop-samples", "em"]  # treatment of values that are NaN or infinite
MISSING: tuple[MissingRule, ...] = get_args(MissingRule)
DropRule = Literal["error", "drop-features", "drop-samples"]
Precision = Literal["auto", "single", "double"]
LandmarkChoice = Literal["uniform", "k-means++", "leverage"]
TargetType = Literal["auto", "classes", "numbers"]  # meaning of the values of a target
FigureWidth = Annotated[float, Range(least=60, most=400)]  # mm
Seed = Annotated[Annotated[int, Range(least=0)] | Annotated[Any, InPython()], Check(seed_of)]


def components(value: Any) -> int | float | str | None:
    """Return a number of components as a plain number, rule or None, also from numpy's numbers.

    Raises
    ------
    RequestError
        If it is none of these.
    """
    if value is None or (isinstance(value, str) and value in RULES):
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        if isinstance(value, Integral):
            if int(value) >= 1:
                return int(value)
        elif 0 < float(value) < 1:
            return float(value)
        elif value == 1:
            raise RequestError(
                f"n_components={float(value)} is ambiguous; write 1 for one component or None for all of the variance."
            )
    raise RequestError(
        f"n_components={value!r} is neither a whole number of at least 1 nor a fraction between 0 and 1; "
        f"use for example 50, 0.95 for 95 % of the variance, or a rule ({', '.join(RULES)})."
    )


All = Annotated[None, Word("all")]
NComponents = Annotated[Count | Fraction | RuleName | All, Check(components)]
Landmarks = Annotated[int, Range(least=1)] | Literal["all"] | None
Function = Annotated[Callable[[Any, Any], float], InPython()]


@dataclass(eq=False, repr=False)
class SeededOptions(Description):
    """Options of kinds that draw random numbers.

    Parameters
    ----------
    random_state : int, RandomState, Generator or None, default=0
        Seed of the random numbers. They choose the probes that bound errors, the starts of iterations, landmarks and
        folds. None draws a seed from numpy's own.
    """

    _: KW_ONLY
    random_state: Seed = 0


@dataclass(eq=False, repr=False)
class SpectrumOptions(SeededOptions):
    """Options of kinds whose components are found by several methods.

    Parameters
    ----------
    method : str, default="auto"
        Method of the fit. "auto" lets the plan choose: "covariance" (p x p), or "dual" (n x n) where there are more
        features than samples, both exact; or "randomized", a few passes with a block of vectors, where neither fits or
        few components are asked for. "em" is the method of ``missing="em"``, "symmetric" that of matrices of pairs of
        samples, and "kernel-matrix" that of kernels between all samples.
    precision : {"auto", "single", "double"}, default="auto"
        Precision of products. Sums are always double. "auto" chooses single for integers of up to 16 bits and float32,
        except for small work (n p^2 of up to 2e9).
    tol : float, optional
        Residual of a component, relative to its variance, at which method randomized stops; by default 1e-4. It is what
        is certified, once every component that is asked for has been found. Method "symmetric" stops so where it reads
        pass after pass; method "em" stops when its last step turned no more than this share of the components' variance
        out of the subspace before. Exact methods ignore it. Where it is given, method "auto" takes an approximate
        method wherever it is predicted to be faster.
    tol_variance : float, optional
        Error of a variance to stop at, in place of tol. It is relative to the variance: methods randomized and
        symmetric stop where the bound on the error of every variance that is asked for is at most this much. Where
        variances are well apart, their errors are about the squares of residuals: 1e-3 takes about as many passes as a
        tol of 1e-3, and 1e-6 as one of 3e-5. Exact methods ignore it, and method "auto" takes an approximate one
        wherever it is predicted to be faster.
    max_passes : int, optional
        Largest number of passes of "randomized" and "em". By default they are as many as tol needs, up to 30 for
        "randomized", and 50 steps of "em". 1 is a sketch. Where "randomized" ends before `tol` is met a warning says
        which bound was reached; each bound then holds for *some* eigenvalue, and only the leading ones are matched by
        rank. A product with a block of vectors counts as a pass even where all samples are in memory and are read once.
        Where it is given, method "auto" takes an approximate method wherever it is predicted to be faster.
    half_life : float, optional
        Number of samples after which a sample counts half as much; by default all count alike. Sample i of n has the
        weight 2^(-(n - 1 - i) / half_life), times its `sample_weight`.
    """

    _: KW_ONLY
    method: str = "auto"
    precision: Precision = "auto"
    tol: Fraction | None = None
    tol_variance: Fraction | None = None
    max_passes: Count | None = None
    half_life: Annotated[float, Range(least=1)] | None = None


@dataclass(eq=False, repr=False)
class DropOptions(Description):
    """Treatment of missing values by kinds that need every value.

    Parameters
    ----------
    missing : {"error", "drop-features", "drop-samples"}, default="error"
        Treatment of NaN and infinity: an error, or pixels or samples with any are left out. "error" names the first
        sample that holds one. "drop-features" leaves out pixels missing in any sample, as ``mask="valid"`` does;
        "drop-samples" leaves out samples in which a pixel is missing that others have, and masks pixels missing in
        every sample; ``provenance["dropped"]`` says what was left out.
    """

    _: KW_ONLY
    missing: DropRule = "error"


@dataclass(eq=False, repr=False)
class KernelOptions(Description):
    """Options of a kernel and of the features that stand for it.

    Parameters
    ----------
    gamma : float, "auto" or None, default=None
        Gamma of kernels; by default 1 / n_features. "auto" is derived from the median distance between
        samples.
    degree : int, default=3
        Degree of kernel polynomial.
    coef0 : float, default=1.0
        Constant of kernels polynomial and sigmoid.
    landmarks : int or "all", optional
        Number of samples that all others are compared with (Nystroem); by default all, which is exact. 1000 are
        accurate enough for most collections. All of them take n x n numbers.
    random_features : int, optional
        Number of random Fourier features, in place of landmarks; by default none.
    landmark_choice : {"uniform", "k-means++", "leverage"}, default="uniform"
        Choice of landmarks: at random, far apart, or by how much they add to others.
    """

    _: KW_ONLY
    gamma: Annotated[float, Range(above=0)] | Literal["auto"] | None = None
    degree: Count = 3
    coef0: float = 1.0
    landmarks: Landmarks = None
    random_features: Count | None = None
    landmark_choice: LandmarkChoice = "uniform"

    def check(self) -> None:
        """Refuse landmarks together with random features."""
        super().check()
        if self.random_features is not None and self.landmarks is not None:
            raise RequestError("landmarks and random_features are two ways to map samples; give one of them.")
