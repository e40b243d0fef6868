"""The ``streampca`` group, which lists commands by one-line summaries and loads them when one is called.

Loading the commands also loads the kinds of model that their options are made from, which ``--help`` can do without.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

import click

from .. import __version__
from ..errors import Door, StreampcaError, messages_at
from ..signals import safe_point, stopping_on_signals
from .help import GroupedCommand
from .monitoring import EXIT_CODES, Monitor, ending

# Errors that end a command with one line.
EXPECTED = (click.ClickException, click.exceptions.Abort, StreampcaError, MemoryError, OSError)

# First sentences of the commands' docstrings, in the order in which users need the commands.
SUMMARIES = {
    "demo": "Analyse two real collections within a tiny memory budget.",
    "info": "Say what a collection is: samples, shape, dtype, storage.",
    "plan": "Show the plan, and why other methods were rejected.",
    "fit": "Fit a kind of model: write it, or update one (--update).",
    "merge": "Make the model of a whole from those of its parts.",
    "transform": "Project a collection on a model's components: write scores.",
    "reconstruct": "Rebuild images from scores, or themselves: say what is lost.",
    "neighbors": "Find the nearest neighbours of every sample: write a graph.",
    "inspect": "Show a model, and how far to trust it; or a graph.",
    "report": "Draw a model and its collection: write one HTML page.",
    "hsic": "Measure how far A depends on B, or on labels, and test it.",
    "copy": "Copy a collection, prepared or not, to Zarr that reads fast.",
    "export": "Write a model's mean and components as pages of a TIFF file.",
    "run": "Carry out a run file: model, scores, pictures in a directory.",
}


class _Commands(click.Group):
    """A group that lists its commands without loading them."""

    command_class = GroupedCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from . import commands  # noqa: F401 - importing it adds the commands to the group

        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, SUMMARIES))
        stubs = (click.Command(name, help=summary) for name, summary in SUMMARIES.items())
        with formatter.section("Commands"):
            formatter.write_dl([(str(stub.name), stub.get_short_help_str(limit)) for stub in stubs])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="streampca")
@click.pass_context
def cli(context: click.Context) -> None:
    """Principal components of image collections that do not fit in memory.

    SOURCE is a folder, glob or list of images, one array in a file (.npy, .npz, TIFF, Zarr, HDF5, NetCDF, FITS, IDX),
    several such files as one, @list.txt, table.csv:column, or an URL.

    Start with: streampca demo
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        return
    if context.obj is not None:  # set by `main`, whose process is a command's own and may share one pool of memory
        from ..machine import share_pools

        share_pools()
    safe_point()  # loading the commands took a second


@messages_at(Door.COMMAND_LINE)
def main() -> NoReturn:
    """Run the command line; errors of `streampca.errors` are one line, with the exit code of their kind."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may be any bytes
    monitor, code = Monitor(sys.argv[1:]), 1  # the code of an error that is not expected, which Python prints
    try:
        with stopping_on_signals(owns_process=True):
            # No safe point follows: a command whose outputs are complete succeeds, even if asked to stop at the end.
            code = cli.main(standalone_mode=False, obj=monitor) or 0
    except BrokenPipeError:
        # The reader has gone: what is left in the buffer must not fail again when Python flushes it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (*EXPECTED, KeyboardInterrupt) as error:
        message, code = ending(error)
        monitor.complain(message, code)
    finally:
        monitor.finish(code)
    sys.exit(code)
