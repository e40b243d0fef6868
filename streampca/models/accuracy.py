"""Accuracy of a model's numbers, as values and in words: digits, directions, sampling, and what was left outside.

Everything follows from what a model stores. What it does not know is not said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..eigensolvers import Cluster, clusters, unseparated
from ..errors import RequestError

if TYPE_CHECKING:
    from .components import ComponentsModel
    from .model import Model

Float64 = npt.NDArray[np.float64]

LISTED = 4  # groups of components named in a sentence
_DEGREES = 0.001  # of an angle; less is not worth a figure


@dataclass(frozen=True)
class Trust:
    """Accuracy of k components.

    Attributes
    ----------
    digits : tuple of int or None
        Digits of each variance that can be trusted; None where its error is not known.
    together : tuple of Cluster
        Groups of components that are only defined together.
    mixed : tuple of int
        Components, from 0, that sampling does not separate from a neighbour, by North's rule of thumb.
    outside : float or None
        Largest variance that may have been left outside, where that is known to be less than the first component's or
        was measured.
    leading : int
        How many of the first components are sure to be the leading ones, as nothing larger was left outside.
    """

    digits: tuple[int | None, ...]
    together: tuple[Cluster, ...]
    mixed: tuple[int, ...]
    outside: float | None
    leading: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data; components are counted from 1, angles in radians, None where not finite."""
        return {
            "digits": list(self.digits),
            "together": [
                {"components": [c.first + 1, c.last + 1], "angle_bound": c.angle if np.isfinite(c.angle) else None}
                for c in self.together
            ],
            "mixed_by_sampling": [number + 1 for number in self.mixed],
            "largest_left_outside": self.outside,
            "leading": self.leading,
        }


def trust_of(model: ComponentsModel) -> Trust:
    """Say how far the numbers of a model can be trusted."""
    values, residual = model.explained_variance, _residuals(model)
    if not len(values):
        return Trust((), (), (), None, 0)
    known = bool(np.all(np.isfinite(residual)))
    together = clusters(values, residual, _at_most_next(model, residual)) if known else []
    mixed = np.zeros(len(values), bool) if model.about_axes else unseparated(values, _copies(model), _next(model))
    outside = largest_outside(model)
    leading = int(np.count_nonzero(values - residual >= outside)) if known else 0
    if model.outside is None and leading == 0:
        outside = np.nan  # that it is less than all that is left says nothing
    return Trust(
        digits=tuple(digits_of(bound) for bound in sharpest_bounds(model)),
        together=tuple(together),
        mixed=tuple(np.flatnonzero(mixed).tolist()),
        outside=float(outside) if np.isfinite(outside) else None,
        leading=leading,
    )


def sharpest_bounds(model: ComponentsModel) -> Float64:
    """Bound on the relative error of each variance, shape (k,); NaN where it is not known."""
    return model.error_bound if model.variance_bound is None else np.fmin(model.error_bound, model.variance_bound)


def null_directions(model: ComponentsModel) -> npt.NDArray[np.bool_]:
    """Return which components have a variance that is no more than rounding, shape (k,).

    A component is null where its variance lies below the rounding of float64, or below the bound on its own error,
    where that is known: single-precision products round far above the former.
    """
    return np.asarray((model.explained_variance <= null_variance(model)) | (sharpest_bounds(model) >= 1))


def null_variance(model: ComponentsModel) -> float:
    """Return the largest variance that may be rounding of float64: eps max(n, p) times the first one."""
    eps = np.finfo(np.float64).eps
    return float(eps * max(model.n_samples, model.n_features) * model.explained_variance[:1].sum())


def check_variances(model: ComponentsModel, count: int) -> None:
    """Refuse the first components of a model if one of them is null."""
    null = np.flatnonzero(null_directions(model)[:count])
    if len(null):
        fewer = f"; take the first {null[0]} (n_components={null[0]})" if null[0] else ""
        raise RequestError(f"component {null[0] + 1} of {model.name} has no variance above rounding{fewer}.")


def rounding_unit(model: ComponentsModel) -> float:
    """Return the relative rounding of the sums of products that variances were computed from."""
    plan = model.provenance.get("plan") or {}
    single = plan.get("precision") == "single" and not model.provenance.get("exact_sums")
    return float(np.finfo(np.float32 if single else np.float64).eps)


def digits_of(bound: float) -> int | None:
    """Digits that a bound on a relative error vouches for, 0 to 15; None where it is not known."""
    return int(np.clip(np.floor(-np.log10(max(bound, 1e-15))), 0, 15)) if np.isfinite(bound) else None


def _copies(model: ComponentsModel) -> float:
    """Number of samples, each counted as many times as its weight says."""
    return model.total_weight or model.n_samples


def _next(model: ComponentsModel) -> float | None:
    """Variance k + 1, where it is known; minus infinity where there is none."""
    if model.eigenvalues is None:
        return None
    after = model.eigenvalues[len(model.explained_variance) :]
    return float(after[0]) if len(after) else -np.inf


def _at_most_next(model: ComponentsModel, residual: Float64) -> float | None:
    """Return an upper bound on variance k + 1; where it is not stored, by the gap behind the last angle."""
    known, angle = _next(model), model.angle_bound[-1]
    if known is not None or not np.isfinite(angle):
        return known
    gap = residual[-1] / angle if angle > 0 else 0.0
    return float(model.explained_variance[-1] - residual[-1] - gap)


def _residuals(model: ComponentsModel) -> Float64:
    """Bound on |C v - lambda v| of each pair, shape (k,); NaN of all where that of one is not known.

    Components of variance 0 complete the others (`with_n_components`): relative to theirs a residual has no bound.
    """
    values, bounds = model.explained_variance, model.error_bound
    found: Float64 = np.multiply(values, bounds, out=np.zeros(len(values)), where=values > 0)
    return found if np.all(np.isfinite(found)) else np.full(len(values), np.nan)


def largest_outside(model: ComponentsModel) -> float:
    """Return the largest variance that the components may have left outside: no more than all that is left."""
    residual = _residuals(model)
    after, left = _next(model), model.variance_left + residual.sum()
    if after is not None:
        return max(0.0, after)
    return float(np.fmin(left, np.nan if model.outside is None else model.outside))


# -- in words


COLUMNS = ("component", "variance %", "cumulative %", "error bound", "angle bound")  # of `component_rows`


def bound_text(bound: float) -> str:
    """Write a bound on a relative error, rounded up: ``"1e-13"``, ``"0.04"``; empty where it is not known.

    Below a thousandth to a power of ten: a digit more would be that of the machine.
    """
    if not np.isfinite(bound):
        return ""
    if bound <= 1e-3:
        return f"{10.0 ** np.ceil(np.log10(max(bound, 1e-15))):.0e}"
    unit = 10.0 ** np.floor(np.log10(bound))
    return f"{np.ceil(bound / unit) * unit:g}"


def percent(share: float) -> str:
    """Return a share in per cent to three digits; 100 % only for all but rounding."""
    text = f"{100 * share:.3g}"
    return "more than 99.9 %" if text == "100" and share < 1 - 1e-9 else f"{text} %"


def component_rows(model: Any, count: int) -> list[tuple[str, ...]]:
    """Return rows for a table of the first components, as headed by `COLUMNS`; decimals are the same in a column."""
    ratios = np.asarray(model.explained_variance_ratio)
    columns = [column[:count] for column in (ratios, np.cumsum(ratios), sharpest_bounds(model), model.angle_bound)]
    places = _places(columns[0])
    return [
        (
            str(number),
            f"{100 * ratio:.{places}f}",
            _cumulative(total, places),
            bound_text(bound) or "not measured",
            _direction(angle, bound),
        )
        for number, (ratio, total, bound, angle) in enumerate(zip(*columns, strict=True), start=1)
    ]


def _places(ratios: Float64) -> int:
    """Return the decimals, 2 to 6, at which the smallest of some shares in per cent has two digits."""
    least = min((100 * ratio for ratio in ratios.tolist() if ratio > 0), default=1.0)
    return int(np.clip(1 - np.floor(np.log10(least)), 2, 6))


def _cumulative(share: float, places: int) -> str:
    """Return a sum of shares in per cent; as 100 only where all but rounding is reached."""
    text = f"{100 * share:.{places}f}"
    return f"99.{'9' * places}" if text.startswith("100") and share < 1 - 1e-9 else text


def _direction(angle: float, bound: float) -> str:
    """Return the bound on a component's angle as text, given the bound on its residual."""
    if np.isfinite(angle):
        return f"{max(np.degrees(angle), _DEGREES):.1g}°"
    return "unresolved" if np.isfinite(bound) else "not measured"


def sentences(model: Model) -> list[str]:
    """Say in a few lines how far to trust a model; nothing is said of what is not known."""
    basis = model.basis
    if basis.about_axes:
        return [basis.about_axes, *model.notes]
    trust = trust_of(basis)
    said = [
        _of_missing(basis),
        _of_integer_units(basis),
        _of_clusters(trust),
        _of_sampling(trust, _copies(basis)),
    ]
    said += [_of_rank(basis, trust), _of_outside(basis, trust), *model.notes]
    return [sentence for sentence in said if sentence]


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers, ascending, each as its first and its last."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def _of_clusters(trust: Trust) -> str:
    if not trust.together:
        return ""
    within = [
        f" (within {max(np.degrees(group.angle), _DEGREES):.1g}°)" if np.isfinite(group.angle) else ""
        for group in trust.together
    ]
    named = [f"{group.first + 1}-{group.last + 1}{angle}" for group, angle in zip(trust.together, within, strict=True)]
    return f"components {_listed(named)} are only defined together: their variances are too close to tell them apart"


def _of_sampling(trust: Trust, n_samples: float) -> str:
    rule = f"by North's rule of thumb (sampling error of {n_samples:.15g} independent samples)"
    count = len(trust.digits)
    if count == 0:
        return ""
    if not trust.mixed:
        return f"{rule}, {'all components are' if count > 1 else 'the component is'} separated"
    runs = runs_of(trust.mixed)
    if runs == [(0, count - 1)]:
        return f"{rule}, no component is separated from its neighbours"
    named = [_run(first, last, count) for first, last in runs]
    one = len(trust.mixed) == 1
    verb, whose = ("is", "its") if one else ("are", "their")
    return f"{rule}, component{'' if one else 's'} {_listed(named)} {verb} not separated from {whose} neighbours"


def _of_rank(model: ComponentsModel, trust: Trust) -> str:
    """Say which bounds are to some true variance, where larger ones may have been missed."""
    count = len(trust.digits)
    if model.outside is None or trust.leading == count:
        return ""
    if trust.leading == count - 1:
        return (
            f"component {count} is right within its error bound, but one with a larger variance may have been missed "
            "before it"
        )
    which = f"components {trust.leading + 1} to {count}" if trust.leading else "the components"
    return (
        f"{which} are right within their error bounds, but some with larger variances may have been missed between them"
    )


def _of_missing(model: ComponentsModel) -> str:
    """Say what the components are, and what is known of their error, where values were missing."""
    found = model.provenance.get("missing")
    if not found:
        return ""
    text = (
        f"{percent(found['share'])} of the values were missing: these are components of the most likely model of the "
        "others (probabilistic PCA by EM), and no bound on their error is known"
    )
    held = found["held_out"]
    if not held["values"]:
        return text
    return (
        f"{text}; {held['values']} values held out were predicted to {held['rmse']:.3g} (RMS), and by the mean to "
        f"{held['rmse_of_mean']:.3g}"
    )


def _of_integer_units(model: ComponentsModel) -> str:
    """Say how many samples were multiplied on integer units, if any."""
    count = model.provenance.get("samples_on_integer_units")
    return f"{count} samples were multiplied exactly, on integer units" if count else ""


def _of_outside(model: ComponentsModel, trust: Trust) -> str:
    count = len(trust.digits)
    if trust.outside is None or trust.outside == 0:
        return ""
    if trust.leading == count:
        return "no component with a larger variance was missed"
    share = f"no component with more than {100 * trust.outside / model.total_variance:.2g} % of the variance was missed"
    if trust.leading == 0:
        return share
    sure = "component 1 is" if trust.leading == 1 else f"components 1-{trust.leading} are"
    return f"{share}, so {sure} certain to be the leading {'one' if trust.leading == 1 else 'ones'}"


def _run(first: int, last: int, count: int) -> str:
    """A run of components, counted from 1, in words."""
    if first == last:
        return str(first + 1)
    return f"{first + 1} on" if last == count - 1 else f"{first + 1}-{last + 1}"


def _listed(names: list[str]) -> str:
    """Names with commas and an "and"; of many the first few."""
    if len(names) > LISTED:
        names = [*names[: LISTED - 1], f"{len(names) - LISTED + 1} more groups"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
