"""Options of a run and of opening, as keywords of functions that open a source and work on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from inspect import signature
from typing import Any, cast

from ..errors import RequestError, nearest
from ..kinds.description import default_of, fields_of
from ..kinds.opening import OpeningOptions
from ..kinds.pca import PCADescription
from ..kinds.registry import KINDS, kind_class, kinds_with
from ..kinds.run import Run, RunOptions, run_of
from .preparation import Preparation

SHARING = ("workers", "cluster")  # options of a run whose work is shared ...
OF_FITS = ("part", "scratch", "reuse", "network")  # ... of one that fits a model
DEVICE = ("device",)  # ... and of one that multiplies


class FitOptions(RunOptions, OpeningOptions, total=False):
    """Options of `Run` and of `open_collection`, as keywords of functions that open a source and work on it."""


def run_and_opening(
    function: Callable[..., Any], options: Mapping[str, Any], *, unused: Collection[str] = (), own: Iterable[str] = ()
) -> tuple[Run, OpeningOptions]:
    """Return the run and the options of opening that the keywords of a function hold; raises as `arguments_of`.

    Options of a run that the function has no use for are refused by name; `own` are its other keywords.
    """
    check_options(function, options, own)
    opening = {name: value for name, value in options.items() if name in OpeningOptions.__annotations__}
    run = run_of({name: value for name, value in options.items() if name in RunOptions.__annotations__})
    refuse_unused(function, run, unused)
    return run, cast("OpeningOptions", opening)


def refuse_unused(function: Callable[..., Any], run: Run, names: Collection[str]) -> None:
    """Refuse options of a run that a function has no use for.

    Raises
    ------
    RequestError
    """
    for name in names:
        if getattr(run, name) != default_of(fields_of(Run)[name]):
            if name in DEVICE:
                raise RequestError(f"{function.__name__} computes on the processor only; leave --device (device) out.")
            raise RequestError(f"{function.__name__} has no use for {name}={getattr(run, name)!r}; leave it out.")


def check_options(function: Callable[..., Any], options: Mapping[str, Any], own: Iterable[str] = ()) -> None:
    """Refuse keywords that are no options of a run, of opening or the function's own, naming where they belong.

    Raises
    ------
    TypeError
    """
    known = {*OpeningOptions.__annotations__, *RunOptions.__annotations__, *own}
    for name in options:
        if name in known:
            continue
        if name in {field.name for field in fields(Preparation)}:
            raise TypeError(f"{name!r} is a step of preparation; give preparation=Preparation({name}=...).")
        if kinds := kinds_with(name):
            cls = "PCA" if name in fields_of(PCADescription) else estimator_name(kinds[0])
            raise TypeError(
                f"{name!r} is an option of kinds of model; give it to one, such as streampca.{cls}({name}=...)."
            )
        parameters = [each for each in signature(function).parameters if each != "options"]
        if "n_components" in parameters:  # a function that fits: a name meant for a kind leads to the kind
            parameters += [each for kind in KINDS for each in fields_of(kind_class(kind))]
        raise TypeError(f"{name!r} is not an option.{nearest(name, [*parameters, *known])}")


def estimator_name(kind: str) -> str:
    """Return the name of the estimator's class of a kind of model."""
    return kind_class(kind).__name__.removesuffix("Description")
