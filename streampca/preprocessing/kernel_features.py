"""`KernelFeatures`: the options of a feature map, with which a preparation ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy.typing as npt

from ..errors import RequestError, nearest
from ..kinds.classical_mds import ClassicalMDSDescription
from ..kinds.description import Description, fields_of
from ..kinds.kernel_pca import PRECOMPUTED, KernelPCADescription
from ..kinds.options import KernelOptions, LandmarkChoice
from ..units import whole_number
from .feature_map import FeatureMap, FourierMap, KernelMap
from .kernels import ALIASES, KERNELS, Kernel, unknown_kernel

ALL = "all"
CHOICES: tuple[str, ...] = get_args(LandmarkChoice)
STORED = ("landmarks", "random_features", "choice", "rank", "seed")  # fields beside the kernel


@dataclass(frozen=True, kw_only=True)
class KernelFeatures:
    """Options of a feature map of a kernel: by landmarks (Nystroem), or random (Fourier).

    Parameters
    ----------
    kernel : Kernel, default=Kernel("rbf")
    landmarks : int or "all", optional
        Number of samples that all others are compared with, m; "all" takes every sample: the map is then exact. By
        default all, unless random features are asked for.
    random_features : int, optional
        Number of random Fourier features in place of landmarks, q; for kernels "rbf" and "laplacian".
    choice : {"uniform", "k-means++", "leverage"}, default="uniform"
        Choice of landmarks: at random; far apart; or by how much each adds to others.
    rank : int, optional
        Largest number of features that landmarks give, those of the largest eigenvalues; by default all above rounding.
    seed : int, default=0
        Seed of landmarks and random features.

    Raises
    ------
    RequestError
        If a value is wrong by itself, or landmarks and random features are both given.
    """

    kernel: Kernel = field(default_factory=Kernel)
    landmarks: int | str | None = None
    random_features: int | None = None
    choice: str = CHOICES[0]
    rank: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if self.random_features is not None and self.landmarks is not None:
            raise RequestError("landmarks and random_features are two ways to map samples; give one of them.")
        if self.random_features is None and self.landmarks is None:
            set_(self, "landmarks", ALL)
        if self.landmarks is not None and self.landmarks != ALL:
            set_(self, "landmarks", whole_number(self.landmarks, "landmarks", least=1, example="1000, or 'all'"))
        for name in ("random_features", "rank"):
            value = getattr(self, name)
            if value is not None:
                set_(self, name, whole_number(value, name, least=1, example="1000"))
        set_(self, "seed", whole_number(self.seed, "seed", least=0, example="0, the default"))
        if self.choice not in CHOICES:
            known = list(CHOICES)
            raise RequestError(
                f"choice {self.choice!r} is not one of {', '.join(known)}.{nearest(str(self.choice), known)}"
            )
        if self.random_features is not None:
            FourierMap.check(self.kernel)

    @property
    def is_exact(self) -> bool:
        """True where all samples are landmarks."""
        return self.landmarks == ALL

    @property
    def is_centred(self) -> bool:
        """True where the mean of the landmarks is the origin of the features."""
        return self.is_exact or self.kernel.centred_only

    def count_of(self, n_samples: int) -> int:
        """Return the number of landmarks among so many samples.

        Raises
        ------
        RequestError
            If there are fewer samples.
        """
        if not isinstance(self.landmarks, int):
            return n_samples
        if self.landmarks > n_samples:
            raise RequestError(
                f"landmarks={self.landmarks} are more than the {n_samples} samples; give at most {n_samples}, or "
                "'all', which is exact."
            )
        return self.landmarks

    def foreseen(self, n_samples: int, n_features: int, dtype: npt.DTypeLike) -> FeatureMap:
        """Return a map with the sizes of the fitted one, which takes no memory."""
        if self.random_features is not None:
            return FourierMap.foreseen(self.kernel, n_features, self.random_features)
        count = self.count_of(n_samples)
        most = max(1, count - self.is_centred)
        q = most if self.rank is None else min(self.rank, most)
        return KernelMap.foreseen(self.kernel, count, n_features, q, dtype)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data, the kernel's function by its name."""
        return {"kernel": self.kernel.to_json(), **{name: getattr(self, name) for name in STORED}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], function: Callable[[Any, Any], float] | None = None) -> KernelFeatures:
        """Return the options whose `to_json` this is, given the kernel's function; raises as `Kernel.from_json`."""
        own = {name: data[name] for name in STORED}
        return cls(kernel=Kernel.from_json(data["kernel"], function), **own)


def features_asked(model: Description) -> KernelFeatures | None:
    """Return the feature map that a kind of model asks for; None where samples are not mapped.

    Parameters
    ----------
    model : Description
        Kernel, landmarks and random features are among its options, if its kind has them.

    Raises
    ------
    RequestError
        If an option is wrong.
    """
    model = model.solved_as()  # a matrix of inner products has no samples to map
    options: Any = model
    kernel = getattr(model, "kernel", None)
    if isinstance(model, ClassicalMDSDescription) and model.landmarks is not None:
        return KernelFeatures(
            kernel=Kernel("distance"),
            landmarks=model.landmarks,
            choice=model.landmark_choice,
            rank=model.rank,
            seed=model.random_state,
        )
    if kernel is None:
        return None
    name = getattr(kernel, "__name__", type(kernel).__name__) if callable(kernel) else kernel
    function = kernel if callable(kernel) else None
    if function is None and name not in {*KERNELS, *ALIASES}:
        raise unknown_kernel(name, *([PRECOMPUTED] if isinstance(model, KernelPCADescription) else []))
    return KernelFeatures(
        kernel=Kernel(name, options.gamma, options.degree, options.coef0, function),
        landmarks=options.landmarks,
        random_features=options.random_features,
        choice=options.landmark_choice,
        seed=options.random_state,
    )


def mapping_options(model: Description) -> list[str]:
    """Return the names of the options of a kind that ask for a feature map, and differ from their defaults."""
    names = ("kernel", *fields_of(KernelOptions))
    known = {name: field for name, field in fields_of(type(model)).items() if name in names}
    return [name for name, field in known.items() if getattr(model, name) != field.default]
