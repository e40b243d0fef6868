"""`Arguments`: the kind of model, the run and the options of opening, from what a caller gives."""

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

DEFAULT: Any = PCADescription.n_components


@dataclass(frozen=True, eq=False)
class Arguments:
    """Arguments of a function that fits or plans, with checked values.

    Attributes
    ----------
    model : Description
        The kind of model and its options.
    preparation : Preparation or None
        Steps before it, with the feature map that it asks for.
    run : Run
        How it is carried out.
    opening : mapping
        Options of `open_collection`.
    """

    model: Description
    preparation: Preparation | None
    run: Run
    opening: OpeningOptions

    @property
    def listener(self) -> Listener:
        """Function that is told what happens."""
        return or_logged(self.run.listener)

    def request(self, *, workers: int = 1) -> Request:
        """Return the request that the kind of model and the run make."""
        scratch = None if self.run.scratch is None else expanded(self.run.scratch)
        how: dict[str, Any] = {"memory": self.run.budget, "workers": workers, "scratch": scratch}
        return Request(self.model.solved_as(), output=self.run.output is not None, **how)


def arguments_of(
    function: Callable[..., Any],
    kind: Description | None,
    n_components: Any,
    preparation: Preparation | None,
    options: Mapping[str, Any],
) -> Arguments:
    """Return the arguments of a function that fits or plans, checked.

    An estimator also holds a preparation and a run, which stand where none is given.

    Raises
    ------
    TypeError
        If an option is neither one of a run nor one of opening, naming where it belongs.
    RequestError
        If the kind is not one, has a number of components beside that which is given, or a value is wrong.
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
        _check_own_parameters(kind)
        model = checked(kind)
    held = getattr(kind, "preparation", None)
    if held is not None and preparation is not None:
        raise RequestError("preparation is given, and so is one with the kind; give one of them.")
    run, opening = run_and_opening(function, {"run": getattr(kind, "run", None), **options})
    if run.part is not None and model.uses_graph:
        raise RequestError(f"part is of sums, and kind {model.kind!r} has none; leave it out.")
    if run.scratch is not None and model.uses_graph:
        raise RequestError(f"kind {model.kind!r} makes no scratch copy (scratch={run.scratch!r}); leave it out.")
    return Arguments(model, with_features(held if preparation is None else preparation, model), run, opening)


def _check_own_parameters(kind: Description) -> None:
    """Refuse parameters of an estimator that its kind does not have: they are of scikit-learn's methods alone."""
    described = {*fields_of(description_class(type(kind))), "preparation", "run"}
    for name, field in fields_of(type(kind)).items():
        if name not in described and getattr(kind, name) != default_of(field):
            raise RequestError(
                f"{name}={getattr(kind, name)!r} is a parameter of the estimator alone, for its own methods; call its "
                "own fit, or leave it out."
            )
