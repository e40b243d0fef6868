"""Accuracy of a model's numbers, as values and in words: digits, directions, sampling, and variance left outside.

Everything is computed from the arrays that a model stores. Unknown figures are left out of the sentences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arrays import Float64
from ..eigensolvers import Cluster, clusters, unseparated
from ..errors import RequestError

if TYPE_CHECKING:
    from .components import ComponentsModel
    from .model import Model


LISTED = 4  # groups of components named in a sentence
_DEGREES = 0.001  # smallest angle that is shown


@dataclass(frozen=True)
class Trust:
    """Accuracy of k components.

    Attributes
    ----------
    digits : tuple of int or None
        Digits of each variance that can be trusted; None if its error is unknown.
    together : tuple of Cluster
        Groups of components of which only the common subspace is defined.
    mixed : tuple of int
        Components, from 0, that sampling does not separate from a neighbour, by North's rule of thumb.
    outside : float or None
        Largest variance that may have been left outside, if it was measured or is known to be less than the first
        component's.
    leading : int
        Number of first components that are certain to be the leading ones, as nothing larger was left outside.
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
    """Return the accuracy of a model's components."""
    values, residual = model.explained_variance, _residuals(model)
    if not len(values):
        return Trust((), (), (), None, 0)
    is_bounded = bool(np.all(np.isfinite(residual)))
    groups = clusters(values, residual, bound_on_variance_after(model)) if is_bounded else []
    # Residuals include the rounding of stored components, which bounds on angles need not divide by the gap.
    resolved = np.isfinite(model.angle_bound)
    together = [group for group in groups if not resolved[group.first : group.last + 1].all()]
    mixed = (
        np.zeros(len(values), bool)
        if model.about_axes
        else unseparated(values, _sample_count(model), _variance_after(model))
    )
    outside = largest_outside(model)
    # A component is certain to be leading if its variance, less its error, exceeds all that may be outside.
    leading = int(np.count_nonzero(values - residual >= outside)) if is_bounded else 0
    if model.outside is None and leading == 0:
        outside = np.nan  # the bound is the whole remaining variance, which tells nothing
    return Trust(
        digits=tuple(digits_of(bound) for bound in model.error_bound),
        together=tuple(together),
        mixed=tuple(np.flatnonzero(mixed).tolist()),
        outside=float(outside) if np.isfinite(outside) else None,
        leading=leading,
    )


def null_directions(model: ComponentsModel) -> npt.NDArray[np.bool_]:
    """Return which components have a variance within rounding, shape (k,).

    A component is null if its variance lies below the rounding of float64, or below the bound on its own error where
    that is known: single-precision products round far above float64.
    """
    return np.asarray((model.explained_variance <= null_variance(model)) | (model.error_bound >= 1))


def null_variance(model: ComponentsModel) -> float:
    """Return the largest variance that can be rounding of float64: eps max(n, p) times the first one."""
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
    """Return the number of correct digits for a bound on a relative error, 0 to 15; None if it is unknown."""
    return int(np.clip(np.floor(-np.log10(max(bound, 1e-15))), 0, 15)) if np.isfinite(bound) else None


def _sample_count(model: ComponentsModel) -> float:
    """Return the number of samples, each counted by its weight."""
    return model.total_weight or model.n_samples


def _variance_after(model: ComponentsModel) -> float | None:
    """Return variance k + 1: None if it is unknown, minus infinity if the k components are all."""
    if model.eigenvalues is None:
        return None
    after = model.eigenvalues[len(model.explained_variance) :]
    return float(after[0]) if len(after) else -np.inf


def bound_on_variance_after(model: ComponentsModel) -> float | None:
    """Return an upper bound on variance k + 1, from the angle bound where it is not stored; None if unknown."""
    after, angle = _variance_after(model), model.angle_bound[-1]
    if after is not None or not np.isfinite(angle):
        return after
    if model.outside is not None:
        return model.outside
    # The angle bound is at least the residual before rounding over the gap to variance k + 1, so it tells that gap.
    last = model.explained_variance[-1]
    gap = last * model.error_bound[-1] / angle if angle > 0 else 0.0
    return float(last - last * model.residual_bound[-1] - gap)


def _residuals(model: ComponentsModel) -> Float64:
    """Return a bound on |C v - lambda v| of each pair, shape (k,); all NaN if that of one is unknown.

    Components of variance 0, added by `with_n_components`, have no relative bound; their residual counts as 0.
    """
    values, bounds = model.explained_variance, model.residual_bound
    residuals: Float64 = np.multiply(values, bounds, out=np.zeros(len(values)), where=values > 0)
    return residuals if np.all(np.isfinite(residuals)) else np.full(len(values), np.nan)


def largest_outside(model: ComponentsModel) -> float:
    """Return an upper bound on the largest variance outside the components: at most the whole remaining variance."""
    after = _variance_after(model)
    if after is not None:
        return max(0.0, after)
    remaining = model.variance_left + _residuals(model).sum()
    return float(np.fmin(remaining, np.nan if model.outside is None else model.outside))


# -- in words


COLUMNS = ("component", "variance %", "cumulative %", "variance bound", "angle bound")  # of `component_rows`


def bound_text(bound: float) -> str:
    """Write a bound on a relative error, rounded up: ``"1e-13"``, ``"0.04"``; empty if it is unknown.

    Bounds below a thousandth are rounded to a power of ten: further digits differ between machines.
    """
    if not np.isfinite(bound):
        return ""
    if bound <= 1e-3:
        return f"{10.0 ** np.ceil(np.log10(max(bound, 1e-15))):.0e}"
    unit = 10.0 ** np.floor(np.log10(bound))  # of the first digit, to which the bound is rounded up
    return f"{np.ceil(bound / unit) * unit:g}"


def percent(share: float) -> str:
    """Return a share in per cent to three digits; 100 % only if the rest is rounding."""
    text = f"{100 * share:.3g}"
    return "more than 99.9 %" if text == "100" and share < 1 - 1e-9 else f"{text} %"


def component_rows(model: Any, count: int) -> list[tuple[str, ...]]:
    """Return rows for a table of the first components with the heads `COLUMNS`; a column has the same decimals."""
    ratios = np.asarray(model.explained_variance_ratio)
    columns = [column[:count] for column in (ratios, np.cumsum(ratios), model.error_bound, model.angle_bound)]
    # As many decimals as give the smallest share two digits.
    least = min((100 * ratio for ratio in columns[0].tolist() if ratio > 0), default=1.0)
    places = int(np.clip(1 - np.floor(np.log10(least)), 2, 6))
    rows: list[tuple[str, ...]] = []
    for number, (ratio, total, bound, angle) in enumerate(zip(*columns, strict=True), start=1):
        cumulative = f"{100 * total:.{places}f}"
        if cumulative.startswith("100") and total < 1 - 1e-9:  # 100 only if the rest is rounding
            cumulative = f"99.{'9' * places}"
        direction = f"{max(np.degrees(angle), _DEGREES):.1g}°"
        if not np.isfinite(angle):
            direction = "unresolved" if np.isfinite(bound) else "not measured"
        bound_cell = bound_text(bound) or "not measured"
        rows.append((str(number), f"{100 * ratio:.{places}f}", cumulative, bound_cell, direction))
    return rows


def sentences(model: Model) -> list[str]:
    """Describe the accuracy of a model in a few sentences; unknown figures are left out."""
    basis = model.basis
    if basis.about_axes:
        return [basis.about_axes, *model.notes]
    trust = trust_of(basis)
    on_integer_units = basis.provenance.get("samples_on_integer_units")
    lines = [
        _missing_sentence(basis),
        f"{on_integer_units} samples were multiplied exactly, on integer units" if on_integer_units else "",
        _cluster_sentence(trust),
        _sampling_sentence(trust, _sample_count(basis)),
        _rank_sentence(basis, trust),
        _outside_sentence(basis, trust),
    ]
    return [line for line in (*lines, *model.notes) if line]


def trust_sentence(model: ComponentsModel) -> str:
    """Say in one line how well the directions are determined: empty where no bound on them is known."""
    count = len(model.explained_variance)
    groups = trust_of(model).together
    angles = np.array(model.angle_bound, dtype=float)
    for group in groups:
        angles[group.first : group.last + 1] = group.angle
    known = np.isfinite(angles)
    if model.about_axes or not known.any():
        return ""
    largest = max(float(np.degrees(angles[known].max())), _DEGREES)
    unit = 10.0 ** np.floor(np.log10(largest))
    # Bounds are rounded up; the small term is that of the division.
    degrees = f"{np.ceil(largest / unit - 1e-9) * unit:g} degrees"
    if known.all():
        all_of_them = f"all {count} components are" if count > 1 else "the component is"
    else:
        all_of_them = f"{np.count_nonzero(known)} of {count} components are"
    text = f"{all_of_them} determined to {degrees}"
    pairs = [
        f"{group.first + 1} {'and' if group.last == group.first + 1 else 'to'} {group.last + 1}"
        for group in groups
        if known[group.first]
    ]
    unresolved = np.count_nonzero(~known)
    text += f"; {_listed(pairs)} only together" if pairs else ""
    return text + (f"; the directions of {unresolved} are not resolved" if unresolved else "")


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers, ascending, each as its first and last number."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def _cluster_sentence(trust: Trust) -> str:
    if not trust.together:
        return ""
    angles = [
        f" (within {max(np.degrees(group.angle), _DEGREES):.1g}°)" if np.isfinite(group.angle) else ""
        for group in trust.together
    ]
    ranges = [f"{group.first + 1}-{group.last + 1}{angle}" for group, angle in zip(trust.together, angles, strict=True)]
    return f"components {_listed(ranges)} are only defined together: their variances are too close to tell them apart"


def _sampling_sentence(trust: Trust, n_samples: float) -> str:
    rule = f"by North's rule of thumb (sampling error of {n_samples:.15g} independent samples)"
    count = len(trust.digits)
    if count == 0:
        return ""
    if not trust.mixed:
        return f"{rule}, {'all components are' if count > 1 else 'the component is'} separated"
    runs = runs_of(trust.mixed)
    if runs == [(0, count - 1)]:
        return f"{rule}, no component is separated from its neighbours"
    names = []
    for first, last in runs:
        until_end = "" if first == last else " on" if last == count - 1 else f"-{last + 1}"
        names.append(f"{first + 1}{until_end}")
    single = len(trust.mixed) == 1
    verb, whose = ("is", "its") if single else ("are", "their")
    return f"{rule}, component{'' if single else 's'} {_listed(names)} {verb} not separated from {whose} neighbours"


def _rank_sentence(model: ComponentsModel, trust: Trust) -> str:
    """Say which variances are near some true one of unknown rank, as larger ones may have been missed."""
    count = len(trust.digits)
    if model.outside is None or trust.leading == count:
        return ""
    if trust.leading == count - 1:
        return (
            f"component {count} is right within its variance bound, but one with a larger variance may have been "
            "missed before it"
        )
    subject = f"components {trust.leading + 1} to {count}" if trust.leading else "the components"
    missed = "but some with larger variances may have been missed between them"
    return f"{subject} are right within their variance bounds, {missed}"


def _missing_sentence(model: ComponentsModel) -> str:
    """Say that components are estimates of EM, and how well held-out values were predicted."""
    missing = model.provenance.get("missing")
    if not missing:
        return ""
    text = (
        f"{percent(missing['share'])} of the values were missing: these are components of the most likely model of the "
        "others (probabilistic PCA by EM), and no bound on their error is known"
    )
    held_out = missing["held_out"]
    if not held_out["values"]:
        return text
    return (
        f"{text}; {held_out['values']} values held out were predicted to {held_out['rmse']:.3g} (RMS), and by the mean "
        f"to {held_out['rmse_of_mean']:.3g}"
    )


def _outside_sentence(model: ComponentsModel, trust: Trust) -> str:
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


def _listed(names: list[str]) -> str:
    """Join names with commas and "and"; only the first few of many."""
    if len(names) > LISTED:
        names = [*names[: LISTED - 1], f"{len(names) - LISTED + 1} more groups"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
