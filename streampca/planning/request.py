"""`Problem`, the size of a collection and how it is stored, and `Request`, what the user asks: planning starts here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal, get_args

from ..errors import RequestError, nearest
from ..units import format_bytes, whole_number
from .registry import KINDS, METHODS, TARGET_TYPES

RuleName = Literal["elbow", "mp", "mle"]  # rules that count components, see `streampca.eigensolvers.n_components`
RULES: tuple[RuleName, ...] = get_args(RuleName)
ELBOW_SHOWN = 50  # variances an elbow is looked for in, always: where it lies depends on how many are shown
PRECISIONS = ("auto", "single", "double")
MissingRule = Literal["error", "drop-features", "drop-samples", "em"]  # treatment of values that are NaN or infinite
# Euclidean distances between samples of features; a matrix of distances; a matrix of inner products (a kernel).
Metric = Literal["euclidean", "precomputed", "kernel"]
METRICS: tuple[Metric, ...] = get_args(Metric)
MISSING: tuple[MissingRule, ...] = get_args(MissingRule)
HOW = frozenset({"memory", "workers", "scratch", "output"})  # change how an answer is found, not the answer
STOPPING = frozenset({"tol", "max_passes"})  # options that stop iterative methods; exact methods ignore them
# Options that plans are stored without where they have their defaults, as before these options existed.
LATER = ("kind", "target_type", "shrinkage", "n_slices", "threshold", "n_folds", "metric")
OPEN = 0.5  # any fraction: how many components come out is open


@dataclass(frozen=True)
class Machine:
    """The machine that a plan is made for.

    Attributes
    ----------
    cores : int
        Cores that a process may use.
    memory : int
        Bytes that a process may have at most.
    limit : str
        What sets that limit.
    held : int
        Bytes that the samples take all the time, beside everything that is planned: off every budget.
    integer_units : str
        Instructions that multiply bytes exactly, where there is a library that uses them: "amx", "vnni", "arm", "none".
    """

    cores: int = 1
    memory: int = 0
    limit: str = "physical memory"
    held: int = 0
    integer_units: str = "none"

    def budget(self, given: int | None) -> tuple[int, str]:
        """Return the bytes allowed, as given or half of the machine's, and where that comes from."""
        allowed, source = (self.memory // 2, f"half of {self.limit}") if given is None else (given, "as asked")
        if self.held:
            return max(1, allowed - self.held), f"{source}, less {format_bytes(self.held)} for the samples as converted"
        return allowed, source


@dataclass(frozen=True)
class Problem:
    """Sizes of a collection, its storage, and the machine: all that planning needs to know.

    Attributes
    ----------
    n_samples, n_features : int
        n and p, after preparation.
    sample_shape : tuple of int
        Of one prepared sample.
    row_bytes, prepared_bytes : int
        Bytes of one sample as stored and decoded, and what preparing it takes beside.
    itemsize : int
        Bytes of one prepared value.
    kind : str
        numpy's dtype kind of the prepared values: ``"b"``, ``"i"``, ``"u"`` or ``"f"``.
    chunk_samples : int
        Samples to a storage chunk.
    decode_bytes : int
        Most bytes reading holds beside the block it returns.
    scratch_bytes : int
        Most bytes that preparing samples holds beside, whatever the block; images decoded one by one included.
    total_weight : float or None
        Sum of the samples' weights; None where they have none.
    chunk_features : int
        Features to a storage chunk; p where a sample is always read whole.
    encoded : bool
        Whether reading decodes (compressed chunks, picture files), rather than copies bytes.
    keeps : bool
        Whether a chunk that was decoded for some of its samples is kept for reads of those after them.
    fills : bool
        Whether reading fills memory that is there, and can go on in another thread without keeping any of its own.
    held_bytes : int
        Bytes of what a preparation has learned, which is in memory throughout.
    learning_bytes : int
        Most bytes of the pass that learns it, before all others; 0 where there is none.
    following_bytes : int
        Most bytes that a pass after the fit holds, beside what the fit's passes do; 0 where there is none.
    measuring_bytes : int
        Most bytes that measuring the rounding of a preparation takes after the fit, beside a block; 0 where it rounds
        nothing.
    narrow : bool
        Whether float32 holds the digits of values less their mean, although they come in float64.
    mapping_flops, following_flops : int
        Floating-point operations of mapping a sample to the features of a kernel, in every pass, and of what the pass
        after the fit does with it; 0 where it is not mapped.
    target_width, target_rank : int
        Number of label features that a target is made into (one for each class, slice or number), 0 where the kind of
        model takes no target; and the rank of these, centred, 0 where it does not bound the number of axes.
    kernel_rank : int
        Largest rank of samples that the fit itself maps to features of a kernel, by the matrix of all pairs; 0 where it
        does not.
    landmark_bytes : int
        Bytes of landmarks that are read again for every block of samples, as they are not in memory.
    machine : Machine
        Where the work is done; two collections that differ in nothing else are equal.
    """

    n_samples: int
    n_features: int
    sample_shape: tuple[int, ...]
    row_bytes: int
    itemsize: int
    kind: str
    chunk_samples: int = 1
    decode_bytes: int = 0
    prepared_bytes: int = 0
    scratch_bytes: int = 0
    total_weight: float | None = None
    chunk_features: int = 0
    encoded: bool = False
    keeps: bool = False
    fills: bool = True
    held_bytes: int = 0
    learning_bytes: int = 0
    following_bytes: int = 0
    measuring_bytes: int = 0
    narrow: bool = False
    mapping_flops: int = 0
    following_flops: int = 0
    target_width: int = 0
    target_rank: int = 0
    kernel_rank: int = 0
    landmark_bytes: int = 0
    machine: Machine = field(default=Machine(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_features", min(self.chunk_features or self.n_features, self.n_features))

    @property
    def weighted(self) -> bool:
        """True where samples have weights."""
        return self.total_weight is not None

    @property
    def bytes_after(self) -> int:
        """Most bytes that what follows the fit holds, beside what the fit's passes do."""
        return max(self.following_bytes, self.measuring_bytes)

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample of a block, as read and as prepared."""
        return self.row_bytes + self.prepared_bytes

    @property
    def is_prepared(self) -> bool:
        """True where samples are prepared after reading, and so are read whole."""
        return bool(self.prepared_bytes or self.scratch_bytes)

    @property
    def is_narrow(self) -> bool:
        """True where float32 holds the values: integers of up to 16 bits, and float32 itself."""
        return self.itemsize <= (4 if self.kind == "f" else 2)

    @property
    def suits_single(self) -> bool:
        """True where float32 holds the values less their mean, which is taken off before they are rounded."""
        return self.is_narrow or self.narrow

    @property
    def most_components(self) -> int:
        """Largest number of components: min(n - 1, p), at most the rank of a target that bounds it; or a kernel's."""
        if self.kernel_rank:
            return self.kernel_rank
        most = min(self.n_samples - 1, self.n_features)
        return min(most, self.target_rank) if self.target_rank else most


@dataclass(frozen=True)
class Request:
    """A request of the user.

    Parameters
    ----------
    n_components : int, float, {"elbow", "mp", "mle"} or None, default=0.95
        A number of components; a fraction of the variance, between 0 and 1; a rule that counts them by the spectrum:
        up to the elbow of the first 50 variances, above the Marchenko-Pastur edge of white noise, or of the largest
        evidence (Minka); or None for all.
    method : {"auto", "covariance", "dual", "randomized", "em", "symmetric"}
        Method; "auto" lets the plan choose, and never takes "em", unless `missing` is "em".
    memory : int, optional
        Budget in bytes; half of what the machine allows by default.
    precision : {"auto", "single", "double"}
        Of products; "auto" takes single for integers of up to 16 bits and float32, double for wider ones and where
        there is so little to multiply that it costs nothing. Sums are always double.
    seed : int, default=0
        Seed of the random numbers: probes, and the start of method "randomized".
    workers : int, default=1
        Processes that share the work; `memory` is that of each.
    scratch : str, optional
        Folder for a copy of the collection, cut as the analysis reads it; beside the output by default.
    output : bool, default=False
        Whether there is an output: components larger than memory are written to it as they are made, and a copy may
        lie beside it.
    tol : float, default=1e-4
        Residual of a component, relative to its variance, at which method "randomized" stops, once every component
        that is wanted is there; between 0 and 1.
    max_passes : int, optional
        Most passes of method "randomized" over the collection, at least 1; by default as many as `tol` takes, up to 30.
    half_life : float, optional
        Samples after which a sample counts half as much, at least 1; by default all count alike.
    missing : {"error", "drop-features", "drop-samples", "em"}
        Treatment of missing values. Features and samples are left out before planning; "em" takes method "em", for
        floating-point values.
    kind : str, default="pca"
        Kind of model, a key of ``streampca.planning.registry.KINDS``; only methods that make it are considered.
    target_type : {"auto", "classes", "numbers"}
        What the target of a supervised kind is taken for; see `streampca.fit`.
    shrinkage : float, optional
        Share, from 0 to 1, by which kind "discriminant" moves the covariances within and between classes to a multiple
        of the identity.
    n_slices : int, default=10
        Number of slices, at least 2, that kind "sliced-inverse-regression" cuts the sorted target into.
    threshold : float or "auto", default="auto"
        Least correlation with the target, from 0 to below 1, of the features that kind "supervised-components" keeps;
        "auto" chooses it by cross-validation.
    n_folds : int, default=5
        Number of folds of that cross-validation, at least 2.
    metric : {"euclidean", "precomputed", "kernel"}
        Input of kind "classical-mds": samples of features, whose Euclidean distances are meant; or a matrix of n rows
        of n, of distances or of inner products.

    Raises
    ------
    RequestError
        If a value is out of range by itself.
    """

    n_components: int | float | str | None = 0.95
    method: str = "auto"
    memory: int | None = None
    precision: str = "auto"
    seed: int = 0
    workers: int = 1
    scratch: str | None = None
    output: bool = False
    tol: float = 1e-4
    max_passes: int | None = None
    half_life: float | None = None
    missing: str = "error"
    kind: str = "pca"
    target_type: str = "auto"
    shrinkage: float | None = None
    n_slices: int = 10
    threshold: float | str = "auto"
    n_folds: int = 5
    metric: str = "euclidean"

    def __post_init__(self) -> None:
        if self.scratch is not None:
            object.__setattr__(self, "scratch", os.path.expanduser(os.fspath(self.scratch)))
        allowed = {"method": ("auto", *METHODS), "precision": PRECISIONS, "missing": MISSING, "kind": (*KINDS,)}
        allowed |= {"metric": METRICS, "target_type": TARGET_TYPES}
        for name, known in allowed.items():
            value = getattr(self, name)
            if value not in known:
                raise RequestError(
                    f"{name} {value!r} is not one of {', '.join(known)}.{nearest(str(value), list(known))}"
                )
        set_ = object.__setattr__
        set_(self, "n_components", _components(self.n_components))
        self._check_missing()
        self._check_supervised()
        self._check_metric()
        set_(self, "seed", whole_number(self.seed, "seed", least=0, example="0, the default"))
        set_(self, "workers", whole_number(self.workers, "workers", least=1, example="2"))
        set_(self, "tol", _fraction(self.tol))
        if self.max_passes is not None:
            example = "8, or None for as many as tol takes"
            set_(self, "max_passes", whole_number(self.max_passes, "max_passes", least=1, example=example))
        if self.half_life is not None:
            set_(self, "half_life", _half_life(self.half_life))

    def _check_supervised(self) -> None:
        """Check the options of single kinds of model, and refuse them beside others."""
        self._check_target_type()
        screening = "supervised-components"
        own: dict[str, tuple[str, object]] = {"threshold": (screening, "auto"), "n_folds": (screening, 5)}
        own |= {"shrinkage": ("discriminant", None), "n_slices": ("sliced-inverse-regression", 10)}
        for name, (kind, default) in own.items():
            if getattr(self, name) != default and self.kind != kind:
                raise RequestError(f"{name} is an option of kind {kind!r}, and kind is {self.kind!r}; leave it out.")
        object.__setattr__(self, "n_slices", whole_number(self.n_slices, "n_slices", least=2, example="10"))
        object.__setattr__(self, "n_folds", whole_number(self.n_folds, "n_folds", least=2, example="5"))
        self._check_threshold()
        share = self.shrinkage
        if share is None:
            return
        if not isinstance(share, Real) or isinstance(share, bool) or not 0 <= float(share) <= 1:
            raise RequestError(f"shrinkage {share!r} is not a number from 0 to 1; use for example 0.1, or None.")
        object.__setattr__(self, "shrinkage", float(share))

    def _check_target_type(self) -> None:
        """Refuse a type of target that the kind of model does not learn from."""
        rule, given = KINDS[self.kind], self.target_type
        if given == "auto" or rule == "features":
            return
        if not rule:
            raise RequestError(
                f"target_type {given!r} is of a target, and kind {self.kind!r} learns from none; leave it out."
            )
        only = "classes" if rule == "classes" else "numbers"
        if given != only:
            raise RequestError(
                f"kind {self.kind!r} learns from {only}, and target_type is {given!r}; leave it out, or use kind "
                "'supervised-pca'."
            )

    def _check_threshold(self) -> None:
        """Check the threshold of correlations with the target."""
        least = self.threshold
        if isinstance(least, str) and least == "auto":
            return
        if not isinstance(least, Real) or isinstance(least, bool) or not 0 <= float(least) < 1:
            raise RequestError(
                f"threshold {least!r} is not a correlation from 0 to below 1; use for example 0.3, or 'auto'."
            )
        object.__setattr__(self, "threshold", float(least))

    def _check_missing(self) -> None:
        """Refuse methods and numbers of components that do not go with the rule for missing values."""
        if self.method == "em" and self.missing != "em":
            raise RequestError("method 'em' is for missing values; give --missing em (missing='em') with it.")
        if self.missing != "em":
            return
        if self.kind != "pca":
            raise RequestError(
                f"missing='em' fits models of kind 'pca', and kind is {self.kind!r}; use missing 'drop-samples' or "
                "'drop-features'."
            )
        if self.method not in ("auto", "em"):
            raise RequestError(f"method {self.method!r} needs every value, and missing is 'em'; leave the method out.")
        if self.n_components in (None, "mp", "mle"):
            raise RequestError(
                f"n_components={self.n_components!r} needs all variances, and missing='em' finds the leading ones; ask "
                "for a number such as 10, a fraction such as 0.9, or 'elbow'."
            )

    def _check_metric(self) -> None:
        """Refuse a matrix of pairs of samples for kinds and rules that need samples of features."""
        if self.metric == "euclidean":
            return
        if self.kind != "classical-mds":
            raise RequestError(
                f"metric={self.metric!r} is for a matrix of pairs of samples, of which kind 'classical-mds' makes a "
                f"model, and kind is {self.kind!r}; give --kind classical-mds (kind='classical-mds') with it."
            )
        if self.n_components in ("mp", "mle"):
            raise RequestError(
                f"n_components={self.n_components!r} is a rule for samples of features; ask for a number such as 10 of "
                "a matrix of pairs of samples, or a fraction such as 0.9."
            )
        if self.missing != "error":
            raise RequestError(
                f"missing={self.missing!r} is for samples of features, and a matrix of pairs of samples must have "
                f"every entry; leave missing out with metric={self.metric!r}."
            )

    def counted_on(self, most: int) -> int | float | None:
        """Components to reserve memory for, at most `most`: a number, a fraction where k is open, None for all."""
        if self.n_components == "elbow":
            return min(ELBOW_SHOWN, most)
        return OPEN if isinstance(self.n_components, str) else self.n_components

    @property
    def given(self) -> dict[str, Any]:
        """Request as plain data, without later options (`LATER`) where they have their defaults."""
        data = vars(self)
        left_out = {each.name for each in fields(self) if each.name in LATER and data[each.name] == each.default}
        return {name: value for name, value in data.items() if name not in left_out}

    @property
    def is_open(self) -> bool:
        """True where the number of components depends on the data."""
        return isinstance(self.counted_on(ELBOW_SHOWN), float)


def _fraction(tol: Any) -> float:
    """A tolerance as a plain float, if it is one; numpy's numbers too."""
    if isinstance(tol, Real) and not isinstance(tol, bool) and 0 < float(tol) < 1:
        return float(tol)
    raise RequestError(
        f"tol {tol!r} is not a number between 0 and 1; use for example 1e-4, the residual of a component relative to "
        "its variance."
    )


def _half_life(samples: Any) -> float:
    """A half-life as a plain float, if it is one."""
    if isinstance(samples, Real) and not isinstance(samples, bool) and 1 <= float(samples) < float("inf"):
        return float(samples)
    raise RequestError(
        f"half_life {samples!r} is not a number of samples of at least 1; use for example 1000, or None where all "
        "samples count alike."
    )


def _components(wanted: Any) -> int | float | str | None:
    """Return n_components as a plain number, rule or None; numpy's numbers are accepted."""
    if wanted is None or (isinstance(wanted, str) and wanted in RULES):
        return wanted
    if isinstance(wanted, Real) and not isinstance(wanted, bool):
        if isinstance(wanted, Integral):
            if int(wanted) >= 1:
                return int(wanted)
        elif 0 < float(wanted) < 1:
            return float(wanted)
        elif wanted == 1:
            raise RequestError(
                f"n_components={float(wanted)} is ambiguous; write 1 for one component or None for all of the variance."
            )
    raise RequestError(
        f"n_components={wanted!r} is neither a whole number of at least 1 nor a fraction between 0 and 1; "
        f"use for example 50, 0.95 for 95 % of the variance, or a rule ({', '.join(RULES)})."
    )
