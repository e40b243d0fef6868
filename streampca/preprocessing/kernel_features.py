"""`KernelFeatures`: the options of a feature map, with which a preparation ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy.typing as npt

from ..errors import RequestError, nearest
from ..planning.registry import KERNEL_KINDS
from ..units import whole_number
from .feature_map import FeatureMap, FourierMap, KernelMap
from .kernels import AUTO, Kernel

ALL = "all"
LANDMARK_SCALING = "classical-mds"  # the kind whose landmarks are always compared by distances
CHOICES = ("uniform", "k-means++", "leverage")
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
        own = {name: data[name] for name in STORED if name in data}
        return cls(kernel=Kernel.from_json(data["kernel"], function), **own)


@dataclass(frozen=True)
class KernelOptions:
    """Options of `streampca.fit` that ask for a feature map; see there."""

    kernel: str | Callable[[Any, Any], float] | None = None
    gamma: float | str | None = AUTO
    degree: int = 3
    coef0: float = 1.0
    landmarks: int | str | None = None
    random_features: int | None = None
    landmark_choice: str = CHOICES[0]

    @classmethod
    def of(cls, owner: Any) -> Self:
        """Return the options that an estimator, or the fit of a run file, has as attributes of these names."""
        return cls(**{option.name: getattr(owner, option.name) for option in fields(cls)})

    @property
    def given(self) -> list[str]:
        """Names of the options that differ from their defaults."""
        return [option.name for option in fields(self) if getattr(self, option.name) != option.default]


def features_asked(
    kind: str, options: KernelOptions, *, rank: int | None = None, seed: int = 0
) -> KernelFeatures | None:
    """Return the feature map that the options of a fit ask for; None where samples are not mapped.

    Parameters
    ----------
    kind : str
        Kind of model; a key of `streampca.planning.registry.KINDS`.
    options : KernelOptions
        Kernel, landmarks and random features.
    rank, seed : optional
        See `KernelFeatures`.

    Raises
    ------
    RequestError
        If an option is wrong, or is given for a kind without a kernel, or without the name of the kernel it is of.
    """
    given, landmarks, choice = options.given, options.landmarks, options.landmark_choice
    if kind == LANDMARK_SCALING and landmarks is not None:
        given = [name for name in given if not name.startswith("landmark")]
        if not given:
            return KernelFeatures(kernel=Kernel("distance"), landmarks=landmarks, choice=choice, rank=rank, seed=seed)
    if kind not in KERNEL_KINDS and given:
        first = next(iter(KERNEL_KINDS))
        raise RequestError(
            f"{given[0]} is of kinds of model with a kernel ({', '.join(KERNEL_KINDS)}), and kind is {kind!r}; leave "
            f"it out, or give --kind {first} (kind={first!r})."
        )
    kernel = KERNEL_KINDS.get(kind) if options.kernel is None else options.kernel
    if kernel is None:
        if given:
            raise RequestError(
                f"{given[0]} is of a kernel, and kind {kind!r} has none unless it is named; leave it out, or give "
                "--kernel rbf (kernel='rbf')."
            )
        return None
    name = getattr(kernel, "__name__", type(kernel).__name__) if callable(kernel) else kernel
    function = kernel if callable(kernel) else None
    return KernelFeatures(
        kernel=Kernel(name, options.gamma, options.degree, options.coef0, function),
        landmarks=landmarks,
        random_features=options.random_features,
        choice=choice,
        seed=seed,
    )
