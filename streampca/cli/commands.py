"""The commands: each gets a `Run` built from its options, hands it to `pipeline` and prints the outcome."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..errors import RequestError, readable
from ..planning.hsic import ESTIMATORS, METHODS
from .command_line import Decorator, argument, combined, option, options, takes_run, words_of
from .help import PATH
from .main import as_typed, cli, main
from .option_texts import number_or_word, read_count
from .options import Run

if TYPE_CHECKING:
    from rich.console import Console

    from ..manifold.neighbor_graph import NeighborGraph

SHOWN = 10  # components listed
LEADING = ("fit.n_components", "fit.method")  # of the options of a fit, those that the help names first


# -- what commands share


def _output(key: str, metavar: str, about: str) -> Decorator:
    return option(key, "-o", "--output", required=True, metavar=metavar, help=about)


_source = argument("collection.source", "SOURCE...", nargs=-1, required=True)
_model = argument("model", "MODEL")
_stored_model = click.argument("model", type=PATH)
_opening = options("collection", omit=("collection.source",))
_preparing = options("prepare")
_leading = options(*LEADING)
_budget = options("fit.memory")
_sharing = options("execution", omit=("execution.kind",))
_saving = options("checkpoint")
_quiet = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_plan = click.option("--plan", is_flag=True, help="Say how it would be done, and stop.")
_print_config = click.option("--print-config", is_flag=True, help="Print the run as a run file and stop.")
_writing = combined(options("output.overwrite"), _quiet, _print_config)


def _carry_out(run: Run, *, quiet: bool, print_config: bool) -> bool:
    """Hand a run to the pipeline, with progress, and print the outcome; or print it as a run file, and return False."""
    if print_config:
        from .from_config import with_guessed_axes

        click.echo(with_guessed_axes(run).to_yaml(), nl=False)
        return False
    from .pipeline import execute
    from .terminal import Progress, print_fit

    with Progress(quiet=quiet) as listener:
        result = execute(run, listener)
    fits = (
        result.plan is not None or run.embed.kind or run.output.directory
    )  # a model that is only applied is not shown
    print_fit(_console(), result.model if fits else None, result.plan, result.written)
    if result.compression is not None:
        _say(result.compression.line())
    if result.graph is not None:
        _print_graph(result.graph)
    return True


def _print_graph(graph: NeighborGraph) -> None:
    """Say what a graph of nearest neighbours is, and what was found out about it."""
    from ..manifold.graph_facts import sentences

    for sentence in sentences(graph):
        _say(sentence)


def _print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print headings and texts, wrapped at the width of the terminal, or 80 columns."""
    from ..units import facts_as_text

    _say(facts_as_text(facts, shutil.get_terminal_size().columns))


def _say(text: str) -> None:
    """Print text; control characters of names and attributes in it are escaped."""
    click.echo("\n".join(map(readable, text.split("\n"))))


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, emoji=False)  # paths are printed as they are


# -- the commands


@cli.command(examples=["streampca demo", "streampca demo -o /tmp/demo --memory 64MiB"])
@click.option(
    "-o", "--output", default="streampca-demo", show_default=True, type=PATH, help="Folder for data, models, pictures."
)
@click.option("--memory", default="32MiB", show_default=True, metavar="SIZE", help="Budget of each fit.")
def demo(output: str, memory: str) -> None:
    """Analyse two real collections within a tiny memory budget."""
    from .demo import guided_tour

    guided_tour(_console(), output, memory)


@cli.command(examples=["streampca info scans/", "streampca info film.tif --json"])
@_source
@_opening
@_as_json
@takes_run
def info(run: Run, as_json: bool) -> None:
    """Say what a collection is: samples, shape, dtype, storage."""
    from .from_config import open_run

    found = open_run(run.collection)
    facts = found.facts()
    if not as_json:
        _print_facts(facts.items())
        _list_left_out("skipped", found.skipped, len(found.skipped))
        return
    plain = {
        "source": found.source,
        "samples": found.n_samples,
        "sample_shape": list(found.sample_shape),
        "mixed": found.mixed,
        "axes": None if found.axes is None else list(found.axes),
        "assumed": None if found.guessed_axes is None else found.guessed_axes.line(),
        "features": found.n_features,
        "dtype": found.dtype.str,
        "bytes": found.nbytes,
        "chunks": {"samples": found.chunks.samples, "features": found.chunks.features},
        "first": facts["first"],
        "last": facts["last"],
        "skipped": [list(item) for item in found.skipped],
    }
    click.echo(json.dumps(plain, indent=1))


def _list_left_out(word: str, listed: Sequence[Sequence[str]], count: int, stored: str = "all") -> None:
    """Print the first files or samples that were left out, each with its reason."""
    for name, reason in listed[:SHOWN]:
        _say(f"{word:<12}{name}: {reason}")
    if count > SHOWN:
        _say(f"{'':<12}... and {count - SHOWN} more (--json lists {stored})")


@cli.command(examples=["streampca plan scans/ -k 50 --memory 2GiB", "streampca plan --shape 60000x28x28 -k 50"])
@argument("collection.source", "[SOURCE]...", nargs=-1)
@_opening
@_preparing
@_leading
@options("fit", omit=(*LEADING, "fit.part", "fit.seed", "fit.update", "fit.approximate"))
@click.option("--shape", metavar="SHAPE", help="Plan for data that are not here yet, e.g. 60000x28x28.")
@click.option("--dtype", default="uint8", show_default=True, help="Type of the data given by --shape.")
@click.option("--workers", type=click.IntRange(1), default=1, metavar="N", help="Processes; --memory is that of each.")
@_as_json
@takes_run
def plan(run: Run, shape: str | None, dtype: str, workers: int, as_json: bool) -> None:
    """Say how a fit would be done, and why not otherwise."""
    from .from_config import plan_run

    if bool(run.collection.source) == bool(shape):
        raise click.UsageError("give either SOURCE or --shape.")
    chosen = plan_run(run, shape=shape, dtype=dtype, workers=workers)
    if as_json:
        click.echo(json.dumps(chosen.to_json(), indent=1))
    else:
        _print_facts(chosen.lines())


@cli.command(
    examples=[
        "streampca fit scans/ -k 50 --memory 2GiB -o model.zarr",
        "streampca fit air.nc --key air --anomaly month --scale area -k 0.9 -o model.zarr",
    ]
)
@_source
@option(
    "output.model", "-o", "--output", metavar="MODEL", help="Folder for the model, e.g. model.zarr [default: --update]."
)
@_opening
@_preparing
@_leading
@options("fit", omit=LEADING)
@options("follow")
@_sharing
@_saving
@_writing
@takes_run
def fit(run: Run, quiet: bool, print_config: bool) -> None:
    """Learn components: write a model, or update one (--update)."""
    if run.output.model is None:
        if run.fit.update is None:
            raise click.UsageError("Missing option '-o' / '--output'.")
        run = run.model_copy(update={"output": run.output.model_copy(update={"model": run.fit.update})})
    if not _carry_out(run, quiet=quiet, print_config=print_config):
        return
    if run.fit.part is not None:
        _say(f"next, with all {run.fit.part.partition('/')[2]} parts: streampca merge PARTS... -o model.zarr")
        return
    model = str(run.output.model)
    labels = words_of("collection", only="labels")
    _say(f"next: {as_typed('report', model, *labels, '-o', 'report.html')}")
    _say(f"next: {as_typed('transform', model, *words_of('collection'), '-o', 'scores.zarr')}")


@cli.command(
    examples=[
        "streampca embed scans/ -k 2 -o embedding.zarr",
        "streampca embed scores.zarr --kind spectral-clustering --n-clusters 10 -o clusters.zarr",
    ]
)
@_source
@option("output.model", "-o", "--output", metavar="MODEL", help="Folder for the model, e.g. embedding.zarr.")
@options("embed")
@options("fit.missing")
@_opening
@_preparing
@_budget
@_sharing
@_saving
@_plan
@_writing
@takes_run
def embed(run: Run, plan: bool, quiet: bool, print_config: bool) -> None:
    """Embed images by the graph of their neighbours.

    SOURCE holds images, which are projected on principal components first, or scores of up to 50 features, which are
    taken as they are. The model places further images: see transform, inspect and report.
    """
    run = run.model_copy(update={"embed": run.embed.model_copy(update={"kind": run.embed.kind or "isomap"})})
    if plan:
        from .from_config import plan_embedding

        _print_facts(plan_embedding(run).lines())
        return
    if run.output.model is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    if _carry_out(run, quiet=quiet, print_config=print_config):
        model = str(run.output.model)
        _say(f"next: {as_typed('report', model, '-o', 'report.html')}")
        _say(f"next: {as_typed('transform', model, 'NEW', '-o', 'places.zarr')}")


@cli.command(
    examples=[
        "streampca merge part-1.zarr part-2.zarr -o model.zarr",
        "streampca merge january.zarr february.zarr -k 20 -o winter.zarr",
    ]
)
@click.argument("parts", nargs=-1, required=True, type=PATH)
@click.option(
    "-o", "--output", required=True, type=PATH, metavar="MODEL", help="Folder for the model, e.g. model.zarr."
)
@option("fit.n_components", show_default=False)
@click.option("--approximate", is_flag=True, help="Merge models without a statistic by their components.")
@_budget
@options("output.overwrite")
@_quiet
@options("collection.coordinates")
@takes_run
def merge(run: Run, parts: tuple[str, ...], output: str, approximate: bool, quiet: bool) -> None:
    """Make the model of a whole from those of its parts.

    PARTS are the models of all parts of a collection, as fit --part wrote them, in any order; or models of several
    collections, fitted alike. The samples are not read again. The number of components is that of the parts, unless
    it is given.
    """
    from ..fitting.merge import merge as merged
    from .terminal import Progress, print_model

    with Progress(quiet=quiet) as listener:
        model = merged(
            parts,
            output,
            n_components=(run.fit.n_components or "all") if "n_components" in run.fit.model_fields_set else None,
            approximate=approximate,
            memory=run.fit.memory,
            overwrite=run.output.overwrite,
            coordinates=run.collection.coordinates,
            listener=listener,
        )
    print_model(_console(), model)
    _say(f"wrote {output}")


@cli.command(
    examples=[
        "streampca transform model.zarr scans/ -o scores.zarr",
        "streampca transform model.zarr new.npy --whiten -o scores.csv",
    ]
)
@_model
@_source
@_output("output.scores", "SCORES", "Scores: .zarr or .npy; .csv or .parquet for other programs.")
@options("output.whiten", "output.missing")
@_opening
@_budget
@_sharing
@_saving
@_writing
@takes_run
def transform(run: Run, quiet: bool, print_config: bool) -> None:
    """Project a collection on a model's components: write scores."""
    _carry_out(run, quiet=quiet, print_config=print_config)


@cli.command(
    examples=[
        "streampca reconstruct model.zarr scores.zarr -o images.zarr",
        "streampca reconstruct model.zarr scans/ -k 10 --residual -o residual.npy",
    ]
)
@_model
@_source
@_output("output.images", "IMAGES", "Images: .zarr or .npy; .tif for ImageJ and Fiji.")
@options("output.n_components", "output.residual", "output.whole", "output.missing")
@option("output.whiten", help="Scores are whitened (those in .zarr say so themselves).")
@_opening
@_budget
@_sharing
@_saving
@_writing
@takes_run
def reconstruct(run: Run, quiet: bool, print_config: bool) -> None:
    """Rebuild images from scores, or themselves: say what is lost.

    SOURCE holds scores in .zarr or .npy, as transform writes them (.csv and .parquet are not read), or images, which
    are projected first.
    """
    _carry_out(run, quiet=quiet, print_config=print_config)


@cli.command(
    examples=[
        "streampca neighbors scores.zarr -o graph.zarr",
        "streampca neighbors scores.zarr --n-neighbors 30 --method exact --plan",
    ]
)
@_source
@option("output.graph", "-o", "--output", metavar="GRAPH", help="Graph: .zarr.")
@options("neighbors")
@option("fit.seed", help="Seed of the samples by which the recall of method hnsw is estimated.")
@_opening
@_preparing
@_budget
@_saving
@_plan
@_writing
@takes_run
def neighbors(run: Run, plan: bool, quiet: bool, print_config: bool) -> None:
    """Find the nearest neighbours of every sample: write a graph.

    SOURCE holds scores, as transform writes them, or any samples of few features.
    """
    if plan:
        from .from_config import plan_graph

        _print_facts(plan_graph(run).lines())
        return
    if run.output.graph is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    _carry_out(run, quiet=quiet, print_config=print_config)


@cli.command(examples=["streampca inspect model.zarr -n 20", "streampca inspect model.zarr --verify"])
@_stored_model
@click.option("-n", "--count", "asked", type=click.IntRange(1), help=f"Components to list [default: {SHOWN}].")
@click.option("--verify", is_flag=True, help="Read all of it, and compare it with its checksums.")
@_as_json
def inspect(model: str, asked: int | None, verify: bool, as_json: bool) -> None:
    """Show a model, and how far to trust it; or a graph."""
    from ..manifold.stored_graph import is_graph
    from ..models.pca import load_but_components
    from ..models.store import verify_model
    from ..units import format_bytes
    from .terminal import print_model, print_trust

    if is_graph(model):
        if asked is not None:
            raise RequestError(f"--count {asked} is of a model's components, and {model} is a graph; leave it out.")
        _inspect_graph(model, verify=verify, as_json=as_json)
        return
    count = asked or SHOWN
    found = load_but_components(model)
    verified = verify_model(found.name) if verify else None
    if as_json:
        more = {} if verified is None else {"verified": verified._asdict()}
        click.echo(json.dumps(found.summary() | more, indent=1))
        return
    print_model(_console(), found, count)
    print_trust(_console(), found)
    if len(found.constant_features):
        listed = ", ".join(str(tuple(place)) for place in found.constant_features[:count].tolist())
        rest = len(found.constant_features) - count
        listed += f" and {rest} more" if rest > 0 else ""
        _say(f"constant features, which standardize does not divide: {listed}")
    about = found.provenance
    part = "part {} of {} of ".format(*about["part"]) if "part" in about else ""
    source = f"{part}{about.get('source')}"
    _say(f"\nfitted {about.get('created')} from {source} by streampca {about.get('streampca')}")
    skipped, dropped = about.get("skipped") or [], about.get("dropped")
    _list_left_out("skipped", skipped, len(skipped))
    if dropped is not None:
        _list_left_out("left out", dropped["listed"], dropped["samples"], "up to 1000")
    if verified is not None:
        said = (
            "every checksum agrees" if verified.sealed else "it was written without checksums, so damage may not show"
        )
        _say(f"read all of {verified.arrays} arrays, {format_bytes(verified.nbytes)}: {said}")


def _inspect_graph(path: str, *, verify: bool, as_json: bool) -> None:
    """Show a graph of nearest neighbours."""
    from ..manifold.stored_graph import load_graph, verify_graph
    from ..units import format_bytes

    graph = load_graph(path)
    verified = verify_graph(path) if verify else None
    about = graph.provenance
    if as_json:
        found = {"n_samples": graph.n_samples, "n_neighbors": graph.n_neighbors, **about}
        more = {} if verified is None else {"verified": {"arrays": verified[0], "nbytes": verified[1], "sealed": True}}
        click.echo(json.dumps(found | more, indent=1))
        return
    _print_graph(graph)
    _say(f"\nmade {about.get('created')} from {about.get('source')} by streampca {about.get('streampca')}")
    if verified is not None:
        _say(f"read all of {verified[0]} arrays, {format_bytes(verified[1])}: every checksum agrees")


@cli.command(
    examples=[
        "streampca report model.zarr -o report.html",
        "streampca report model.zarr --labels kinds.csv:kind -o report.html",
    ]
)
@_stored_model
@click.option("-o", "--output", required=True, type=PATH, metavar="FILE", help="Page to write: .html.")
@option(
    "collection.source", "--collection", multiple=True, metavar="SOURCE", help="Samples [default: those of the fit]."
)
@_opening
@click.option(
    "--examine",
    default="200000",
    show_default=True,
    callback=lambda context, parameter, text: read_count(text),
    metavar="N",
    help="Number of samples to draw and examine at most, or all.",
)
@click.option("--pictures", type=PATH, metavar="FOLDER", help="Write the pictures there, too.")
@click.option(
    "--picture-format", type=click.Choice(["png", "svg"]), default="png", show_default=True, help="Format of these."
)
@_budget
@options("output.overwrite")
@_quiet
@takes_run
def report(
    run: Run, model: str, output: str, examine: int | None, pictures: str | None, picture_format: str, quiet: bool
) -> None:
    """Draw a model and its collection: write one HTML page."""
    from ..plot.report import write_report
    from .from_config import opening_of
    from .terminal import Progress

    with Progress(quiet=quiet) as listener:
        written = write_report(
            model,
            output,
            collection=run.collection.source or None,
            examine=examine,
            pictures=pictures,
            picture_format=picture_format,
            memory=run.fit.memory,
            overwrite=run.output.overwrite,
            listener=listener,
            **opening_of(run.collection),
        )
    for path in written:
        _say(f"wrote {path}")


@cli.command(
    examples=["streampca hsic scans/ --target kinds.npy", "streampca hsic left.npy right.npy --permutations 500"]
)
@click.argument("a", type=PATH)
@click.argument("b", required=False, type=PATH)
@click.option(
    "--target",
    type=PATH,
    metavar="COLUMN",
    help="Label or number of each sample, in place of B: a column, as for labels.",
)
@option("fit.target_type")
@click.option("--kernel", default="rbf", show_default=True, metavar="NAME", help="Kernel of A.")
@click.option("--gamma", default="auto", show_default=True, metavar="NUMBER", help="Gamma of that kernel, or auto.")
@click.option("--y-kernel", metavar="NAME", help="Kernel of B, or of a target of numbers [default: rbf].")
@click.option("--y-gamma", default="auto", show_default=True, metavar="NUMBER", help="Gamma of that kernel, or auto.")
@click.option("--method", type=click.Choice(("auto", *METHODS)), default="auto", show_default=True, help="Method.")
@click.option(
    "--estimator", type=click.Choice(ESTIMATORS), default="biased", show_default=True, help="Estimate that is tested."
)
@click.option("--landmarks", type=int, metavar="M", help="Number of landmarks [default: 200].")
@click.option("--features", type=int, default=1024, show_default=True, metavar="Q", help="Number of Fourier features.")
@click.option(
    "--permutations", type=int, default=200, show_default=True, metavar="B", help="Permutations; 0 for no test."
)
@click.option(
    "--test-samples", type=int, default=10_000, show_default=True, metavar="N", help="Most samples in the test."
)
@option("fit.seed", help="Seed of the samples drawn, features and permutations.")
@_opening
@_preparing
@_budget
@_sharing
@click.option("--checkpoint", type=PATH, metavar="FOLDER", help="Folder to save progress in, to resume from.")
@_quiet
@_as_json
@takes_run
def hsic(
    run: Run,
    a: str,
    b: str | None,
    target: str | None,
    gamma: str,
    y_gamma: str,
    checkpoint: str | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure how far A depends on B, or on labels, and test it.

    A and B are collections of the same samples, in the same order. Options of opening and preparation are for A.
    """
    from ..fitting.hsic import hsic as measured
    from .from_config import cluster_of, opening_of, preparation_of
    from .terminal import Progress

    with Progress(quiet=quiet) as listener:
        found = measured(
            a,
            b,
            target=target,
            target_type=run.fit.target_type,
            gamma=number_or_word(gamma),
            y_gamma=number_or_word(y_gamma),
            seed=run.fit.seed,
            memory=run.fit.memory,
            preparation=preparation_of(run.prepare),
            checkpoint=checkpoint,
            cluster=cluster_of(run),
            listener=listener,
            **given,
            **opening_of(run.collection),
        )
    _say(json.dumps(found.to_json(), indent=1) if as_json else repr(found))


@cli.command(
    examples=["streampca copy scans/ -o scans.zarr", "streampca copy photos/ --resize 64x64 --grey -o small.zarr"]
)
@_source
@_output("output.collection", "IMAGES", "Copy: .zarr.")
@_opening
@_preparing
@_budget
@_writing
@takes_run
def copy(run: Run, quiet: bool, print_config: bool) -> None:
    """Copy a collection, prepared or not, to Zarr that reads fast."""
    _carry_out(run, quiet=quiet, print_config=print_config)


@cli.command(
    examples=[
        "streampca export model.zarr -o components.tif",
        "streampca export model.zarr -k 5 --no-mean -o components.npy",
    ]
)
@_stored_model
@click.option("-o", "--output", required=True, type=PATH, metavar="FILE", help="Pictures: .tif (Fiji, ImageJ) or .npy.")
@click.option("-k", "--n-components", "count", type=click.IntRange(1), help="Components to export [default: all].")
@click.option("--mean/--no-mean", default=True, help="Write the mean first [default: yes].")
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
def export(model: str, output: str, count: int | None, mean: bool, overwrite: bool) -> None:
    """Write a model's mean and components as pages of a TIFF file."""
    from ..models.export import export_components

    export_components(model, output, n_components=count, mean=mean, overwrite=overwrite)
    _say(f"wrote {output}")


@cli.command("run", examples=["streampca run run.yaml", "streampca run run.yaml --set fit.n_components=20 --dry-run"])
@click.argument("config", type=PATH)
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Change a key, e.g. fit.n_components=20.")
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@click.option("--allow-remote", is_flag=True, help="Fetch URLs that the run file names.")
@click.option(
    "--allow-env",
    metavar="NAME",
    multiple=True,
    help="Replace this environment variable in any text of the run file, URLs among them.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the plan and what would be written, reading headers only, and stop."
)
@_quiet
@_print_config
def run_command(
    config: str,
    overrides: tuple[str, ...],
    overwrite: bool,
    allow_remote: bool,
    allow_env: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
    print_config: bool,
) -> None:
    """Carry out a run file: model, scores, pictures in a directory.

    Paths and numbers in the file may hold environment variables, as ${NAME}.
    """
    from .config import load_run

    changes = [*overrides, *(["output.overwrite=true"] if overwrite else [])]
    run = load_run(config, changes, allow_remote=allow_remote, allow_env=allow_env)
    if dry_run:
        from .pipeline import foresee

        _print_facts(foresee(run))
        return
    _carry_out(run, quiet=quiet, print_config=print_config)


@cli.command(examples=["streampca schema", "streampca schema > run-schema.json"])
def schema() -> None:
    """Print the JSON schema of run files, for editors."""
    from .config import json_schema

    click.echo(json.dumps(json_schema(), indent=1))


__all__ = ["cli", "main"]
