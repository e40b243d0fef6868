"""Text of a report: facts, tables, and formats of numbers and names."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from ...errors import readable, without_secrets
from ...models.accuracy import COLUMNS, component_rows, percent, trust_sentence
from ...models.components import ComponentsModel
from ...models.compression import Compression
from ...models.embedding import EmbeddingModel
from ...models.model import Model
from ...units import counted, format_bytes, format_seconds, format_shape
from ..score_plots import samples_of
from .survey import Survey, keeps_everything

LISTED = 12  # components in the table
LADDER = 8  # numbers of components in the table of sizes and errors
DONE = ("precision", "solver", "schedule", "cores", "workers", "threads")  # fields of a plan that are shown
RECORDED = ("fingerprint", "dtype", "sample_weight", "exact_sums")  # fields of provenance that are shown here only
SHORTEST = 0.1  # seconds; shorter durations are not given
T2 = "T\N{SUPERSCRIPT TWO}"
# Words that are explained where they first stand in a page.
GLOSSARY = {
    "dual": "by the n x n matrix of products between the n samples, in place of the p x p one between features",
    "Gram matrix": "the matrix of inner products between samples",
    "scatter matrix": "the matrix of sums of products between features, n - 1 times their covariance",
    "randomized": "by a block of random vectors that passes over the data turn towards the leading components",
    "probe": "a random vector that estimates what lies outside the components",
    "probes": "random vectors that estimate what lies outside the components",
    T2: "the squared distance from the mean in the space of the components, each score in its standard deviations",
    "PSNR": "peak signal-to-noise ratio, in decibels: the larger, the nearer",
    "elbow": "the number of components after which the variances fall along a straight line",
}

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """Table of texts.

    Attributes
    ----------
    headings : sequence of str
        Headings of the columns.
    rows : sequence of sequences of str
        Cells; the first of a row is its heading.
    note : str
        Text below the table.
    words : tuple of int
        Columns of words, which are aligned left.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: tuple[int, ...] = ()


def short_source(model: Model) -> str:
    """Return the last part of the path of a model's collection."""
    source = shown_name(str(model.provenance.get("source", "a collection")))
    return source if any(letter in source for letter in "*?[") else os.path.basename(source.rstrip(os.sep)) or source


def kind_in_words(model: Model) -> str:
    """Return a model's kind as a title begins: "Principal components", "Isomap", "Kernel PCA"."""
    if model.kind == "pca":
        return "Principal components"
    words = model.kind.replace("-", " ").replace("pca", "PCA").replace("mds", "MDS")
    return words[0].upper() + words[1:]


def finding(model: Model, survey: Survey | None) -> str:
    """Return the sentence at the head of the page."""
    if isinstance(model, EmbeddingModel):
        return (
            f"{counted(len(model.embedding), 'sample')} placed in {counted(model.n_scores, 'dimension')} by the graph "
            f"of their {model.n_neighbors} nearest neighbours."
        )
    ratios, count = model.basis.explained_variance_ratio, model.basis.n_components
    shares = [percent(ratio) for ratio in ratios[:3]]
    firsts = shares[0] if len(shares) == 1 else f"{', '.join(shares[:-1])} and {shares[-1]}"
    text = (
        f"{counted(count, 'component')} {'hold' if count > 1 else 'holds'} {percent(ratios.sum())} of the variance of "
        f"{counted(model.n_samples, 'sample')}"
    )
    if count > 1:
        text += f", the first {'two' if len(shares) == 2 else 'three'} of them {firsts}"
    if survey is not None and survey.unusual:
        text += f"; the most unusual is {place_of(survey.unusual[0].name, survey.raw.source)}"
    return f"{text}."


def trust(model: Model) -> str:
    """Return the line on trust below the finding, empty if there is nothing to say."""
    line = trust_sentence(model.basis)
    return sentence(line) if line else ""


def left_out(survey: Survey, model: Model) -> list[str]:
    """Return sentences on the samples and components that a report leaves out."""
    notes = []
    if survey.examined < survey.n_samples:
        number = samples_of(survey.examined, survey.n_samples)
        notes.append(f"Examined are {number}, spread evenly over the collection; --examine (examine=) sets the number.")
    if survey.model.n_components < model.shown.n_components:
        notes.append(f"Samples are seen by {_used(survey, model)}; allow more by --memory (memory=).")
    return notes


def _used(survey: Survey, model: Model) -> str:
    used = survey.model.n_components
    return f"the first {used} of {model.shown.n_components} components, which are those that fit the memory allowed"


def header(model: Model) -> Pairs:
    """Return the facts at the head of the page."""
    about = model.provenance
    axes, inside = f" ({', '.join(model.sample_dims)})", "" if model.mask is None else " inside the mask"
    features = counted(model.n_features, "feature") + inside
    created = str(about.get("created") or "at an unknown time").replace("T", " ").replace("+00:00", " UTC")
    facts = [
        ("Collection", shown_name(str(about.get("source", "not recorded")))),
        ("Samples", _samples(model)),
        ("Each sample", f"{format_shape(model.sample_shape)}{axes}, {features}"),
        ("Method", str((about.get("plan") or {}).get("method", ""))),
        ("Fitted", f"{created} by streampca {about.get('streampca', '(unknown version)')}"),
    ]
    return [fact for fact in facts if fact[1]]


def _samples(model: Model) -> str:
    about, text = model.provenance, str(model.n_samples)
    if "part" in about:
        text += ", part {} of {} of the collection".format(*about["part"])
    if model.basis.total_weight is not None:
        text += f", weighing {model.basis.total_weight:g} together"
    skipped = len(about.get("skipped") or ())
    dropped = (about.get("dropped") or {}).get("samples", 0)
    text += f"; {counted(skipped, 'bad file')} left out" if skipped else ""
    return text + (f"; {counted(dropped, 'sample')} with missing values left out" if dropped else "")


def components_table(model: ComponentsModel) -> Table:
    """List the first components with their shares of the variance."""
    rows = [row[:3] for row in component_rows(model, LISTED)]
    return Table(COLUMNS[:3], rows, _rest(model, rows))


def bounds_table(model: ComponentsModel) -> Table | None:
    """List the variances of the first components with the bounds on their errors; None if no error is known."""
    if not model.n_components or not np.isfinite(model.residual_bound).all():
        return None
    rows = [
        (row[0], f"{variance:.6g}", *row[3:])
        for row, variance in zip(component_rows(model, LISTED), model.explained_variance, strict=False)
    ]
    return Table((COLUMNS[0], "variance", *COLUMNS[3:]), rows, _rest(model, rows))


def _rest(model: ComponentsModel, rows: Sequence[Any]) -> str:
    rest = model.n_components - len(rows)
    return f"and {rest} more" if rest > 0 else ""


def compression_table(figures: Compression) -> Table:
    """List sizes and errors for several numbers of components."""
    # Evenly spaced in the logarithm, as curves are steep at small numbers.
    ladder = np.unique(np.geomspace(1, len(figures.n_components), LADDER).round().astype(int)) - 1
    heads, *rows = figures.table(ladder)
    note = f"The original is {format_bytes(figures.original_bytes)}; stored are scores, components and mean together."
    if figures.peak is not None:
        note += f" PSNR compares RMSE, the error, with the peak, {figures.peak:.6g}, the range of the data type."
    return Table(heads, rows, note)


def unusual_table(survey: Survey) -> Table:
    """List the unusual samples by their number in the figures, with errors unless these are rounding."""
    unusual, labels = survey.unusual, survey.raw.labels
    columns = {
        "no.": [str(number) for number in range(1, len(unusual) + 1)],
        "sample": [place_of(sample.name, survey.raw.source) for sample in unusual],
        "picked for": [T2 if sample.by == "T2" else "error" for sample in unusual],
        T2: [f"{sample.t2:.4g}" for sample in unusual],
    }
    note = f"Half of the samples examined have a {T2} below {np.median(survey.t2):.3g}"
    if not keeps_everything(survey.model):
        columns["squared error"] = [f"{sample.spe:.4g}" for sample in unusual]
        note += f" and a squared error below {np.median(survey.spe):.3g}"
    if labels is not None:
        chosen = [labels[sample.position] for sample in unusual]
        columns["label"] = [f"{x:.6g}" if isinstance(x, np.floating) else shown_name(str(x)) for x in chosen]
    return Table([*columns], [*zip(*columns.values(), strict=True)], f"{note}.", words=(1, 2))


def examined(survey: Survey, model: Model) -> Pairs:
    """Return the facts on the examined samples: their number, the collection if another, components if not all."""
    number = samples_of(survey.examined, survey.n_samples)
    spread = ", spread evenly over the collection" if survey.examined < survey.n_samples else ""
    other = "" if survey.raw.source == model.provenance.get("source") else f" of {shown_name(survey.raw.source)}"
    facts = [("Examined", f"{number}{spread}{other}")]
    if survey.model.n_components < model.shown.n_components:
        facts.append(("Seen by", _used(survey, model)))
    return facts


def plan_table(model: Model) -> Table | None:
    """Compare the plan with the fit; None if the model holds no plan."""
    about, plan = model.provenance, model.provenance.get("plan")
    if not plan:
        return None
    rows: list[tuple[str, str, str]] = []

    # Rows without a planned value are omitted.
    def add(name: str, planned: Any, actual: Any, words: Any) -> None:
        if planned is not None:
            rows.append((name, words(planned), "not recorded" if actual is None else words(actual)))

    add("time (planned by fixed rates)", plan.get("seconds"), about.get("seconds"), duration)
    add("peak memory", plan.get("memory_needed"), about.get("peak_bytes"), format_bytes)
    add("passes over the collection", plan.get("passes"), about.get("passes"), "{:.3g}".format)
    return Table(("of the fit", "planned", "actual"), rows, _allowed(plan), words=(0,))


def _allowed(plan: Mapping[str, Any]) -> str:
    if "memory" not in plan:
        return ""
    source = plan.get("budget_source")
    return f"Memory allowed: {format_bytes(plan['memory'])}{f' ({source})' if source else ''}."


def reasons(model: Model) -> list[str]:
    """Return the reasons for the method, and against the others."""
    plan = model.provenance.get("plan") or {}
    lines = [f"method {plan['method']}: {plan['why']}"] if {"method", "why"} <= plan.keys() else []
    lines += [f"not taken, {method}: {reason}" for method, reason in plan.get("rejected") or ()]
    if {"bytes_read", "block_rows"} <= plan.keys():
        lines.append(f"to be read: {format_bytes(plan['bytes_read'])}, in blocks of {plan['block_rows']} samples")
    return lines


def settings(model: Model) -> dict[str, Pairs]:
    """Return preparation, request, method and versions of a fit, by heading."""
    about = model.provenance
    plan = about.get("plan") or {}
    # A binning factor of 1 is no step.
    steps = {name: value for name, value in model.preparation.to_json().items() if (name, value) != ("bin", 1)}
    if model.mask is not None:
        steps["mask"] = f"{model.n_features} of {math.prod(model.sample_shape)} pixels"
    request = dict(plan.get("request") or {})
    request.pop("output", None)  # records only that there was one
    versions = {"streampca": about.get("streampca"), **(about.get("versions") or {})}
    parts = {
        "Preparation of each sample": {name: value for name, value in steps.items() if value is not False},
        "Asked of the fit": request,
        "How it was done": {name: plan.get(name) for name in DONE} | _recorded(about),
        "Versions": versions,
    }
    return {heading: _plain(values) or [("none", "")] for heading, values in parts.items()}


def _recorded(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of the data in provenance, with the name of the dtype."""
    recorded = {name: about.get(name) for name in RECORDED}
    if recorded["dtype"] is not None:
        recorded["dtype"] = np.dtype(recorded["dtype"]).name
    return recorded


def _plain(values: Mapping[str, Any]) -> Pairs:
    """Return names and values as text, without those that are None."""
    words = {True: "yes", False: "no"}
    pairs = []
    for name, value in values.items():
        if value is not None:
            text = words[value] if isinstance(value, bool) else str(value)
            text = format_bytes(value) if name == "memory" else text
            pairs.append((name.replace("_", " "), shown_name(text)))
    return pairs


# -- formats of numbers and names


def shown_name(name: str) -> str:
    """Return a name from a file, readable and without secrets."""
    return readable(without_secrets(name))


def place_of(name: str, source: str) -> str:
    """Return the origin of a sample, relative to its collection's source."""
    for prefix in (f"{source}, ", os.path.join(source, "")):
        name = name.removeprefix(prefix)
    return shown_name(name.removesuffix(f" of {source}"))


def duration(seconds: float) -> str:
    """Return a duration in the usual units."""
    return format_seconds(seconds) if seconds >= SHORTEST else f"less than {SHORTEST} s"


def sentence(text: str) -> str:
    """Return text with an initial capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


class Glossary:
    """Explanations of words, each given once, where the word first stands."""

    def __init__(self) -> None:
        self._left = dict(GLOSSARY)

    def __call__(self, text: str) -> Markup:
        """Return escaped text in which words that stand for the first time carry their explanations."""
        text = readable(text)
        pieces, place = list[str](), 0
        for match in _WORDS.finditer(text):
            meaning = self._left.pop(match[0], None)
            if meaning is not None:
                pieces.append(f"{escape(text[place : match.start()])}<dfn>{escape(match[0])}</dfn> ({escape(meaning)})")
                place = match.end()
        return Markup("".join([*pieces, escape(text[place:])]))  # noqa: S704 - all parts are escaped


# The longest words first, so that parts of them are not taken.
_WORDS = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in sorted(GLOSSARY, key=len, reverse=True)))
