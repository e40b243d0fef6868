"""Help of the commands: options under headings, examples at the end, and completion of paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..errors import closest_name

HEADINGS = ("Model", "Output", "Running", "Input", "Preparation", "Updating and following")  # in this order

# Headings of the sections of a run; and of single options that are listed elsewhere, or belong to no section.
_SECTIONS = {
    "collection": "Input", "prepare": "Preparation", "model": "Model", "neighbors": "Model", "hsic": "Model",
    "output": "Output", "run": "Running", "follow": "Updating and following", "update": "Updating and following",
}  # fmt: skip
_OPTIONS = {
    "collection__target": "Model", "output__missing": "Model", "run__overwrite": "Output",
    "shape": "Input", "overrides": "Input", "examine": "Input",
    "output": "Output", "overwrite": "Output", "figures": "Output", "data": "Output",
    "as_json": "Output", "asked": "Output", "count": "Output", "mean": "Output",
    "memory": "Running", "quiet": "Running", "plan": "Running", "print_config": "Running",
    "dry_run": "Running", "verify": "Running", "help": "Running", "checkpoint": "Running", "schema": "Running",
}  # fmt: skip
SECTION_MARK = "__"  # between section and key in the name of click's parameter of a run's option


class PathText(click.types.StringParamType):
    """A path or URL as text, which a shell completes as a path."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Leave the completion of files and folders to the shell."""
        return [CompletionItem(incomplete, type="file")]


PATH = PathText()


def typed_value(words: Sequence[str], option: str) -> str | None:
    """Return the value of an option in the words of a command, which click has not parsed yet; None without it."""
    value = None
    for word, after in zip_longest(words, words[1:]):
        if word == option:
            value = after
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value


def _as_name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


class GroupedCommand(click.Command):
    """A command that refuses doubled options, and whose help lists options under headings, with examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse options of one value that are given twice, of which click would silently use the last."""
        try:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
        except click.NoSuchOption as error:
            options = {_as_name(written): written for param in self.get_params(ctx) for written in param.opts}
            if closest := closest_name(_as_name(error.option_name), [*options]):
                message = f"No such option {error.option_name!r}. Did you mean {options[closest]!r}?"
                raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None
            raise
        for option, count in Counter(order).items():
            is_single = isinstance(option, click.Option) and not (option.is_flag or option.multiple)
            if is_single and count > 1 and not ctx.resilient_parsing:
                ctx.fail(f"{option.opts[0]} takes one value and is given {count} times; keep one.")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            name = "help" if "--help" in parameter.opts else parameter.name or ""
            if record is not None:
                heading = _OPTIONS.get(name) or _SECTIONS.get(name.partition(SECTION_MARK)[0], "Model")
                groups[heading].append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, unwrapped."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
