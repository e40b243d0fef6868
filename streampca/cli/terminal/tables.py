"""Tables of components with the accuracy of each, and the lines printed after a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...models.accuracy import component_rows, sentences
from ...planning.embedding import EMBEDDING_KINDS
from ...units import counted, format_bytes

if TYPE_CHECKING:
    from ...models.pca import PCAModel
    from ...planning import Plan

SHOWN = 10  # components listed


def components_table(model: PCAModel, count: int = SHOWN) -> Table:
    """Lay out the first `count` components: share of the variance, the sum so far, and how far each can be trusted."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("component", "variance", "sum so far", "good to", "direction within"):
        table.add_column(heading, justify="right")
    for row in component_rows(model, count):
        table.add_row(*row)
    return table


def print_trust(console: Console, model: PCAModel) -> None:
    """Say in a few lines which components stand alone, and whether something larger may have been left outside."""
    for sentence in sentences(model):
        console.print(Text(sentence), soft_wrap=True)


def print_model(console: Console, model: PCAModel, count: int = SHOWN) -> None:
    """Say what a model is, and list its first components."""
    _say(console, repr(model))
    console.print(components_table(model, count))
    if model.n_components > count:
        _say(console, f"... and {model.n_components - count} more")


def print_fit(console: Console, model: PCAModel | None, plan: Plan | None, written: Sequence[str]) -> None:
    """List the components of a fit, or what was found of an embedding, its memory, and what was written."""
    peak = None
    if model is not None:
        if model.kind in EMBEDDING_KINDS:  # whose classes load the manifolds, half of scipy with them
            for line in model.notes:
                _say(console, line)
        else:
            print_model(console, model)
        peak = model.provenance.get("peak_bytes")
        skipped = len(model.provenance.get("skipped") or ())
        if skipped:
            _say(console, f"skipped {skipped} bad {'file' if skipped == 1 else 'files'}; the model lists them")
        dropped = model.provenance.get("dropped")
        if dropped:
            _say(console, f"left out {counted(dropped['samples'], 'sample')} with missing values; the model lists them")
    if plan is not None and peak is not None:
        _say(console, f"peak {format_bytes(peak)} of {format_bytes(plan.memory)} allowed")
    for path in written:
        _say(console, f"wrote {path}")


def _say(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)
