"""Printing of commands: sentences, facts, JSON and lists, with names of files and attributes escaped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..errors import readable, without_secrets

if TYPE_CHECKING:
    from rich.console import Console

    from .. import NeighborGraph

SHOWN = 10  # components and files in a list


def print_graph(graph: NeighborGraph) -> None:
    """Print the sentences that describe a graph of nearest neighbours."""
    for sentence in graph.notes:
        say(sentence)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print headings and texts, wrapped to the width of the terminal, or 80 columns."""
    from ..units import facts_as_text

    say(facts_as_text(facts, shutil.get_terminal_size().columns))


def print_json(data: Any) -> None:
    """Print plain data as JSON."""
    click.echo(json.dumps(data, indent=1))


def say(text: str) -> None:
    """Print text with control characters of names and attributes escaped, and without secrets of URLs."""
    click.echo("\n".join(map(readable, without_secrets(text).split("\n"))))


def console() -> Console:
    """Return a console for tables, which takes no part of a name for markup."""
    from rich.console import Console

    return Console(highlight=False, emoji=False)  # rich would change paths and numbers


def print_left_out(word: str, items: Sequence[Sequence[str]], count: int, in_json: str = "all") -> None:
    """Print the first files or samples that were left out, each with its reason."""
    for name, reason in items[:SHOWN]:
        say(f"{word:<12}{name}: {reason}")
    if count > SHOWN:
        say(f"{'':<12}... and {count - SHOWN} more (--json lists {in_json})")


def print_verified(verified: dict[str, int] | None) -> None:
    """Print what was read to compare checksums, if anything."""
    from ..units import format_bytes

    if verified is not None:
        say(f"read all of {verified['arrays']} arrays, {format_bytes(verified['nbytes'])}: every checksum agrees")
