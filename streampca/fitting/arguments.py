"""`Arguments`: checked arguments of a function that fits or plans, whichever door they come through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import RequestError
from ..events import Listener, or_logged
from ..kinds.description import Description, checked, default_of, description_class, fields_of, make
from ..kinds.opening import OpeningOptions
from ..kinds.pca import PCADescription
from ..kinds.run import Run
from ..planning.request import Request
from ..preprocessing import Preparation
from ..preprocessing.preparation import with_features
from ..preprocessing.run_options import check_options, estimator_name, run_and_opening
from ..storage.disk import expanded
from ..units import parse_rate

DEFAULT: Any = PCADescription.n_components


@dataclass(frozen=True, eq=False)
class Arguments:
    """Kind of model, preparation, run and options of opening, with checked values.

    Attributes
    ----------
    model : Description
        The kind of model and its options.
    preparation : Preparation or None
        Steps before the model, ending with the feature map that the kind asks for.
    run : Run
        Memory, output, workers and the like.
    opening : mapping
        Options of `open_collection`.
    """

    model: Description
    preparation: Preparation | None
    run: Run
    opening: OpeningOptions

    @property
    def listener(self) -> Listener:
        """Listener of the run; the log where it has none."""
        return or_logged(self.run.listener)

    def request(self, *, workers: int = 1) -> Request:
        """Return the request that is planned for: the kind of model within the budget of the run."""
        scratch = None if self.run.scratch is None else expanded(self.run.scratch)
        has_output = self.run.output is not None
        where: dict[str, Any] = {"scratch": scratch, "output": has_output, "device": self.run.device or ""}
        where["network"] = None if self.run.network is None else parse_rate(self.run.network)
        return Request(self.model.solved_as(), self.run.budget, workers, **where)


def arguments_of(
    function: Callable[..., Any],
    kind: Description | None,
    n_components: Any,
    preparation: Preparation | None,
    options: Mapping[str, Any],
) -> Arguments:
    """Return the arguments of a function that fits or plans, checked.

    An estimator holds a preparation and a run of its own, which are used unless others are given.

    Raises
    ------
    TypeError
        If an option belongs neither to a run nor to opening; the message says where it belongs.
    RequestError
        If `kind` is not a kind of model, `n_components` is given beside it, or a value is wrong.
    """
    check_options(function, options)
    if kind is None:
        model: Description = make(PCADescription, {"n_components": n_components})
    elif not isinstance(kind, Description):
        what = f"the class {kind.__name__}" if isinstance(kind, type) else repr(kind)
        raise RequestError(f"kind = {what}: give a kind of model with its options, such as streampca.Isomap(2).")
    elif n_components is not DEFAULT:
        raise RequestError(
            f"n_components={n_components!r} and kind={kind!r} are given; give the number to the kind, such as "
            f"{estimator_name(kind.kind)}(n_components={n_components!r})."
        )
    else:
        if type(kind) is not description_class(type(kind)):
            _check_own_parameters(kind)
        model = checked(kind)
    of_estimator = getattr(kind, "preparation", None)
    if of_estimator is not None and preparation is not None:
        raise RequestError("preparation is given, and so is one with the kind; give one of them.")
    run, opening = run_and_opening(function, {"run": getattr(kind, "run", None), **options})
    if run.part is not None and model.uses_graph:
        raise RequestError(
            f"part={run.part!r}: parts are merged by their sums, and kind {model.kind!r} has none; leave part out."
        )
    if run.scratch is not None and model.uses_graph:
        raise RequestError(f"kind {model.kind!r} makes no scratch copy (scratch={run.scratch!r}); leave it out.")
    if run.device is not None and model.uses_graph:
        raise RequestError(f"kind {model.kind!r} is not computed on a device; leave --device (device) out.")
    if run.device is not None:
        run.check_device()
    return Arguments(model, with_features(of_estimator if preparation is None else preparation, model), run, opening)


def _check_own_parameters(kind: Description) -> None:
    """Refuse parameters that only the methods of an estimator use, and a fit of its kind would ignore."""
    described = {*fields_of(description_class(type(kind))), "preparation", "run"}
    for name, field in fields_of(type(kind)).items():
        if name not in described and getattr(kind, name) != default_of(field):
            raise RequestError(
                f"{name}={getattr(kind, name)!r} is a parameter of the estimator alone, for its own methods; call its "
                "own fit, or leave it out."
            )
