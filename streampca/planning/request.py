"""`Problem`, the size of a collection and how it is stored, and `Request`, what the user asks: planning starts here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Self

from ..errors import RequestError, nearest
from ..kinds.classical_mds import INNER_PRODUCTS
from ..kinds.description import Description, default_of, fields_of
from ..kinds.pca import PCADescription
from ..kinds.registry import kind_class
from ..units import format_bytes
from .registry import METHODS

ELBOW_SHOWN = 50  # variances an elbow is looked for in, always: where it lies depends on how many are shown
RUN_FIELDS = frozenset(
    {"memory", "workers", "scratch", "output", "device", "network"}
)  # change how an answer is found, not the answer
STOPPING = frozenset({"tol", "tol_variance", "max_passes"})  # stop iterative methods; exact methods ignore them
APART = 30  # times that the square root of an error of a variance exceeds the residual that it takes (1/f images) ...
TOGETHER = 10  # ... and the error itself, at most: bounds from probes are up to so many times the residual
USUAL_TOL = 1e-4  # residual aimed at unless a tolerance is given
UNKNOWN_COUNT = 0.5  # any fraction: how many components come out is open
# Options that some kinds have, with the defaults by which the others are fitted.
OF_SOME_KINDS: dict[str, Any] = {
    "method": "auto",
    "precision": "auto",
    "missing": "error",
    "metric": "euclidean",  # input: samples; "precomputed" and "kernel": a matrix of distances or inner products
    "tol": None,
    "tol_variance": None,
    "max_passes": None,
    "half_life": None,
    "landmarks": None,
}


def _derived() -> Any:
    """Declare a field that is computed from the others once: planning reads some for every candidate."""
    return field(init=False, repr=False, compare=False)


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
    device : str
        Device that multiplies; empty for the processor.
    device_memory : int, optional
        Bytes that are free on that device.
    """

    cores: int = 1
    memory: int = 0
    limit: str = "physical memory"
    held: int = 0
    integer_units: str = "none"
    device: str = ""
    device_memory: int | None = None

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
    sparse_values, sparse_bytes : int or None, int
        Values that sparse samples store, None of dense ones; and bytes that they take from the first read on.
    machine : Machine
        Where the work is done; two collections that differ in nothing else are equal.
    weighted : bool
        Whether samples have weights. This and what follows is computed from the above.
    bytes_after : int
        Most bytes that what follows the fit holds, beside what the fit's passes do.
    sample_bytes : int
        Bytes of one sample of a block, as read and as prepared.
    is_prepared : bool
        Whether samples are prepared after reading, and so are read whole.
    is_narrow : bool
        Whether float32 holds the values: integers of up to 16 bits, and float32 itself.
    suits_single : bool
        Whether float32 holds the values less their mean, which is taken off before they are rounded.
    most_components : int
        Largest number of components: min(n - 1, p), at most the rank of a target that bounds it; or a kernel's.
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
    sparse_values: int | None = None
    sparse_bytes: int = 0
    machine: Machine = field(default=Machine(), compare=False)

    weighted: bool = _derived()
    bytes_after: int = _derived()
    sample_bytes: int = _derived()
    is_prepared: bool = _derived()
    is_narrow: bool = _derived()
    suits_single: bool = _derived()
    most_components: int = _derived()

    def __post_init__(self) -> None:
        set_ = partial(object.__setattr__, self)
        set_("chunk_features", min(self.chunk_features or self.n_features, self.n_features))
        set_("weighted", self.total_weight is not None)
        set_("bytes_after", max(self.following_bytes, self.measuring_bytes))
        set_("sample_bytes", self.row_bytes + self.prepared_bytes)
        set_("is_prepared", bool(self.prepared_bytes or self.scratch_bytes))
        set_("is_narrow", self.itemsize <= (4 if self.kind == "f" else 2))
        set_("suits_single", self.is_narrow or self.narrow)
        most = min(self.n_samples - 1, self.n_features)
        set_("most_components", self.kernel_rank or (min(most, self.target_rank) if self.target_rank else most))

    def to_json(self) -> dict[str, Any]:
        """Return the sizes as plain data, without the machine and what is computed from others; see `from_json`."""
        given = (each.name for each in fields(self) if each.init and each.name != "machine")
        return {**{name: getattr(self, name) for name in given}, "sample_shape": list(self.sample_shape)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], machine: Machine) -> Self:
        """Return the problem whose `to_json` this is, on a machine."""
        return cls(**{**data, "sample_shape": tuple(data["sample_shape"])}, machine=machine)


@dataclass(frozen=True)
class Request:
    """A kind of model and a run, as integers and names.

    Parameters
    ----------
    model : Description
        Description of the kind of model, with checked values.
    memory : int, optional
        Budget in bytes; half of what the machine allows by default.
    workers : int, default=1
        Processes that share the work; `memory` is that of each.
    scratch : str, optional
        Folder for a copy of the collection, cut as the analysis reads it; beside the output by default.
    output : bool, default=False
        Whether there is an output: components larger than memory are written to it as they are made, and a copy may
        lie beside it.
    device : str, default=""
        Device that multiplies blocks of samples; the processor by default.
    device_memory : int, optional
        Bytes that were free on it when a fit that is resumed was planned.
    network : float, optional
        Bytes a second of each worker's link; by default `streampca.planning.network.NETWORK` is assumed.

    Attributes
    ----------
    kind : str
        Name of the kind of model.
    n_components : int, float, str or None
        Number of components or axes, a share of the variance, a rule, or None for all.
    method, precision, missing, metric, seed, tol, tol_variance, max_passes, half_life, landmarks, shrinkage
        Options of the kind; kinds that lack one are fitted as those that leave it at its default.
    options : Description
        The description, for the methods and stages of one kind, which know its class.
    is_open : bool
        Whether the number of components depends on the data.
    names_accuracy : bool
        Whether a tolerance, or the most passes, is given.

    Raises
    ------
    RequestError
        If there is no method of the name that is asked for.
    """

    model: Description = field(default_factory=PCADescription)
    memory: int | None = None
    workers: int = 1
    scratch: str | None = None
    output: bool = False
    device: str = ""
    device_memory: int | None = None
    network: float | None = None

    kind: str = _derived()
    n_components: int | float | str | None = _derived()
    method: str = _derived()
    precision: str = _derived()
    missing: str = _derived()
    metric: str = _derived()
    seed: int = _derived()
    tol: float = _derived()
    tol_variance: float | None = _derived()
    max_passes: int | None = _derived()
    half_life: float | None = _derived()
    landmarks: int | str | None = _derived()
    shrinkage: float = _derived()
    options: Any = _derived()  # noqa: RUF009 - returns a field
    is_open: bool = _derived()
    names_accuracy: bool = _derived()

    def __post_init__(self) -> None:
        set_, model = partial(object.__setattr__, self), self.model
        for name, default in OF_SOME_KINDS.items():
            set_(name, getattr(model, name, default))
        set_("names_accuracy", any(getattr(self, name) is not None for name in STOPPING))
        set_("tol", self.tol or USUAL_TOL)
        set_("seed", getattr(model, "random_state", 0))
        set_("shrinkage", getattr(model, "shrinkage", None) or 0.0)
        set_("options", model)
        set_("kind", model.kind)
        set_("n_components", self.options.axes if model.uses_graph else self.options.n_components)
        set_("is_open", isinstance(self.counted_on(ELBOW_SHOWN), float))
        known = ("auto", *METHODS)
        if self.method not in known:
            raise RequestError(
                f"method {self.method!r} is not one of {', '.join(known)}.{nearest(self.method, list(known))}"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.given == other.given

    def __hash__(self) -> int:
        return hash((self.kind, self.memory, self.workers))

    @property
    def input_option(self) -> str:
        """Option of the kind that says whether the input is samples or a matrix of pairs of them."""
        return "kernel='precomputed'" if self.metric == INNER_PRODUCTS else f"metric={self.metric!r}"

    @property
    def residual(self) -> float:
        """Residual, relative to each variance, that is aimed at first."""
        wanted = self.tol_variance
        return self.tol if wanted is None else max(wanted / TOGETHER, wanted**0.5 / APART)

    @property
    def counts_by_default(self) -> bool:
        """True where the number of components, axes or clusters is the default of the kind."""
        name = self.model.axes_parameter
        return bool(getattr(self.model, name) == default_of(fields_of(type(self.model))[name]))

    def asking(self, **changes: Any) -> Self:
        """Return the request with other options of its kind."""
        return replace(self, model=self.model.replaced(**changes))

    def counted_on(self, most: int) -> int | float | None:
        """Components to reserve memory for, at most `most`: a number, a fraction where k is open, None for all."""
        count = self.n_components
        if count == "elbow":
            return min(ELBOW_SHOWN, most)
        return UNKNOWN_COUNT if isinstance(count, str) else count

    @property
    def given(self) -> dict[str, Any]:
        """Request as plain data: the kind, its options, and the run."""
        absent = {name for name in ("device", "network") if not getattr(self, name)}
        run = {name: getattr(self, name) for name in sorted(RUN_FIELDS - absent)}
        return {**self.model.given, **run}

    @classmethod
    def from_given(cls, data: Mapping[str, Any]) -> Self:
        """Return the request whose `given` this is."""
        options = {name: value for name, value in data.items() if name not in RUN_FIELDS and name != "kind"}
        model = kind_class(data["kind"])().replaced(**options)
        return cls(model, **{name: data[name] for name in RUN_FIELDS if name in data})
