"""Tables of components with the accuracy of each, and the lines printed after a fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import Plan
from ...errors import readable, without_secrets
from ...models.accuracy import COLUMNS, component_rows, sentences
from ...units import HEADING, counted, format_bytes, format_seconds
from .pictures import draw_leading

if TYPE_CHECKING:
    from ... import Model
    from ...planning.embedding import EmbeddingPlan

SHOWN = 10  # components in the table


def components_table(model: Any, count: int = SHOWN) -> Table:
    """Return a table of the first `count` components of a model: shares of the variance, and error bounds."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
    for row in component_rows(model, count):
        table.add_row(*row)
    return table


def print_trust(console: Console, model: Model) -> None:
    """Print the sentences on a model's accuracy; see `streampca.models.accuracy.sentences`."""
    for sentence in sentences(model):
        _say(console, sentence)


def print_model(console: Console, model: Model, count: int = SHOWN) -> None:
    """Print a model's representation, pictures of its leading components on a terminal, and a table of the first."""
    _say(console, repr(model))
    shown = model.shown
    if console.is_terminal:
        draw_leading(console, model)
    if shown.n_components:  # an embedding of all features has no components
        console.print(components_table(shown, count))
    if shown.n_components > count:
        _say(console, f"... and {shown.n_components - count} more")


def print_fit(console: Console, model: Model | None, plan: Plan | EmbeddingPlan | None, written: Sequence[str]) -> None:
    """Print the components of a fit, or the notes of another kind, its time and memory, and the written paths."""
    if model is not None:
        if model.basis is not model:  # its principal components are only an intermediate result
            for line in model.notes:
                _say(console, line)
        else:
            print_model(console, model)
        skipped = len(model.provenance.get("skipped") or ())
        if skipped:
            _say(console, f"skipped {skipped} bad {'file' if skipped == 1 else 'files'}; the model lists them")
        dropped = model.provenance.get("dropped")
        if dropped:
            _say(console, f"left out {counted(dropped['samples'], 'sample')} with missing values; the model lists them")
        if plan is not None:
            for line in planned_and_actual(plan, model):
                _say(console, line)
    for path in written:
        console.print(
            Text(readable(without_secrets(f"wrote {path}"))), soft_wrap=True
        )  # a wrapped path could not be copied


def planned_and_actual(plan: Plan | EmbeddingPlan, model: Model) -> Iterator[str]:
    """Yield lines of the time and memory of a fit, the latter beside its plan.

    A fit measures no rates, so that its plan's time would be another than that of the command `plan`.
    """
    seconds, peak = (model.provenance.get(name) for name in ("seconds", "peak_bytes"))
    if seconds is not None:
        yield f"{'time':<{HEADING}}{format_seconds(seconds)}"
    if peak is not None:
        planned, allowed = format_bytes(plan.memory_estimate.total), format_bytes(plan.memory)
        yield f"{'memory':<{HEADING}}{planned} planned, {format_bytes(peak)} actual, {allowed} allowed"


def _say(console: Console, line: str) -> None:
    """Print a sentence: wrapped on a terminal, on one line elsewhere."""
    console.print(Text(readable(line)), soft_wrap=not console.is_terminal)
