"""The demo, step by step: two real collections, a tiny budget, and their components."""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING

from rich.markup import escape

from .. import fit, open_collection, plan, plot
from ..errors import OutputError
from ..events import Drawing
from ..execution.threads import one_blas_thread
from ..plot.report import overview, survey
from ..storage.disk import expanded
from ..units import HEADING, facts_as_text, format_bytes, format_seconds
from .demo_data import labels_path, make_digits, make_patches
from .terminal import Progress, components_table, draw_leading, planned_and_actual

if TYPE_CHECKING:
    from rich.console import Console

COMPONENTS = 16
LISTED = 6
EXAMINED = 20_000  # samples whose scores are drawn


@one_blas_thread()  # products of a small budget: two threads take twice the processor's time, mostly to wait
def guided_tour(console: Console, folder: str, memory: str) -> None:
    """Make the two collections, fit each within `memory`, and show the results.

    Parameters
    ----------
    console : rich.console.Console
        Where to print.
    folder : str
        Folder for data, models and pictures; data of an earlier demo are reused.
    memory : str
        Budget of each fit.
    """
    began, folder = time.perf_counter(), expanded(folder)
    _check_folder(folder)
    os.makedirs(folder, exist_ok=True)
    console.print(f"[bold]Making two collections of 60000 images[/bold] in {escape(folder)} ...")
    with Progress() as listener:
        digits = make_digits(os.path.join(folder, "digits.zarr"), listener=listener)
        patches = make_patches(os.path.join(folder, "patches.zarr"), listener=listener)
    _show(console, "Handwritten digits, shifted and turned", str(digits), memory)
    _show(console, "Patches of two photographs", str(patches), memory)
    console.print(f"\nAll in {format_seconds(time.perf_counter() - began)}. To look closer:")
    stem, labels = str(digits).removesuffix(".zarr"), labels_path(digits)
    words = ["report", f"{stem}-model.zarr", "--labels", str(labels), "-o", f"{stem}.html"]
    console.print(f"  streampca {shlex.join(words)}", style="bold", soft_wrap=True, markup=False)
    console.print("Now your own pictures:")
    console.print("  streampca fit path/to/images -k 50 --memory 2GiB -o model.zarr", style="bold")


def _check_folder(folder: str) -> None:
    """Refuse to replace models and pictures that no demo wrote."""
    for stem in ("digits", "patches"):
        if os.path.lexists(os.path.join(folder, f"{stem}.zarr")):
            continue  # `make_digits` and `make_patches` refuse the data of others
        for name in (f"{stem}-model.zarr", f"{stem}.png"):
            if os.path.lexists(path := os.path.join(folder, name)):
                raise OutputError(f"{path} exists and no demonstration wrote it; choose another folder (-o).")


def _show(console: Console, title: str, source: str, memory: str) -> None:
    """Plan and fit a collection, and draw its components and scores."""
    console.rule(f"[bold]{title}")
    made = plan(source, n_components=COMPONENTS, memory=memory)
    console.print(facts_as_text(made.lines(), console.width), markup=False, soft_wrap=True)
    stem = source.removesuffix(".zarr")
    with Progress() as listener:
        output = f"{stem}-model.zarr"
        model = fit(source, n_components=COMPONENTS, memory=memory, output=output, overwrite=True, listener=listener)
    collection = open_collection(source)
    for line in planned_and_actual(made, model):
        console.print(line)
    console.print(f"{'data':<{HEADING}}{format_bytes(collection.nbytes)}")
    draw_leading(console, model)
    console.print(components_table(model.basis, LISTED))
    with Progress() as listener:
        examined = survey(model.basis, collection, examine=EXAMINED, listener=listener)
        listener(Drawing("overview of the samples"))
        plot.save(overview(examined), f"{stem}.png")
    console.print(f"wrote {stem}-model.zarr and {stem}.png", soft_wrap=True, markup=False)
