"""`HsicDescription`: options of the Hilbert-Schmidt independence criterion, a measure of dependence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .options import Seed, TargetType
from .values import InPython, Range

LEAST_TEST = 50  # smallest number of samples of a test: fewer have little power

Named = str | Annotated[Any, InPython()]
Gamma = Annotated[float, Range(above=0)] | Literal["auto"] | None
Features = Annotated[int, Range(least=2)]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HsicDescription:
    """Options of `streampca.hsic`: kernels, how they are computed, and the test.

    Parameters
    ----------
    target_type : {"auto", "classes", "numbers"}, default="auto"
        Type of the target: as for kind "supervised-pca", and numbers where `y_kernel` is given.
    kernel : str or Kernel, default="rbf"
        Kernel of the first collection. A name, see `streampca.preprocessing.kernels.Kernel`, or a kernel with all
        parameters.
    gamma : float, "auto" or None, default="auto"
        Gamma of that kernel, or auto. "auto" takes the median distance of a random sample of up to 1000 samples; None
        is 1 / n_features.
    y_kernel : str or Kernel, optional
        Kernel of the second collection, or of a target of numbers; by default rbf. Classes have the kernel "delta",
        which is 1 for two samples of one class and 0 else.
    y_gamma : float, "auto" or None, default="auto"
        Gamma of the kernel of the second collection, or auto.
    method : {"auto", "exact", "landmarks", "fourier"}, default="auto"
        Way to compute kernels. "exact" computes both kernel matrices, tile by tile; "landmarks" one pass with Nystroem
        features; "fourier" one pass with random features of kernels "rbf" and "laplacian". "auto" is exact up to 10000
        samples, and takes landmarks beyond.
    estimator : {"biased", "unbiased"}, default="biased"
        Estimate that is tested. It is the `statistic`; both are computed. The biased one is too large by about the mean
        of the test's null values, which is much of it where dependence is weak.
    landmarks : int, optional
        Number of random samples of each side that others are compared with; by default 200. All are taken where there
        are fewer. Classes, and linear kernels of fewer features, need none and are exact.
    random_features : int, default=1024
        Number of Fourier features of each side. They are of method "fourier", at quasi-random frequencies. Method
        "landmarks" is more accurate and faster for most data; Fourier features hold no samples.
    permutations : int, default=200
        Number of permutations; 0 for no test. The smallest p-value is 1 / (1 + permutations).
    test_samples : int, default=10000
        Largest number of samples in the test by features. Up to 2000 samples are permuted by their exact kernels.
    random_state : int, RandomState, Generator or None, default=0
        Seed of the samples drawn, random features and permutations.
    """

    target_type: TargetType = "auto"
    kernel: Named = "rbf"
    gamma: Gamma = "auto"
    y_kernel: Named | None = None
    y_gamma: Gamma = "auto"
    method: Literal["auto", "exact", "landmarks", "fourier"] = "auto"
    estimator: Literal["biased", "unbiased"] = "biased"
    landmarks: Features | None = None
    random_features: Features = 1024
    permutations: Annotated[int, Range(least=0)] = 200
    test_samples: Annotated[int, Range(least=LEAST_TEST)] = 10_000
    random_state: Seed = 0
