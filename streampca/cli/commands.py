"""The commands: each receives a `RunFile` built from its options, passes it to `pipeline` and prints the result."""

from __future__ import annotations

import json
from dataclasses import replace

import click

from ..errors import NotConvergedError, RequestError
from .help import PATH, SECTION_MARK
from .main import cli, main
from .monitoring import Monitor, as_typed
from .option_texts import read_count
from .options import (
    Decorator,
    KindCommand,
    argument,
    combined,
    option,
    options,
    takes_run,
    words_of,
)
from .printing import SHOWN, console, print_facts, print_graph, print_json, print_left_out, print_verified, say
from .run_file import RunFile
from .sections import COLUMNS

# -- shared options and output


def _output(key: str, metavar: str, text: str) -> Decorator:
    return option(key, "-o", "--output", required=True, metavar=metavar, help=text)


_source = argument("collection.source", "SOURCE...", nargs=-1, required=True)
_model = argument("apply", "MODEL")
_stored_model = click.argument("model", type=PATH)
_opening = options("collection", omit=("collection.source", *(f"collection.{name}" for name in COLUMNS)))
_preparing = options("prepare")
_budget = options("run.memory")
_sharing = options("run.workers", "run.cluster", "run.cluster_options", "run.worker_memory", "run.cluster_timeout",
                   "run.dashboard")  # fmt: skip
_saving = options("run.checkpoint", "run.checkpoint_every", "run.require_same_bits")
_overwriting = options("run.overwrite")
_quiet = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
_reporting = combined(_quiet, options("run.log_format", "run.metrics"))
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_plan = click.option("--plan", is_flag=True, help="Say how it would be done, and stop.")
_print_config = click.option("--print-config", is_flag=True, help="Print the run as a run file and stop.")
_writing = combined(_overwriting, _reporting, _print_config)


def _carry_out(run: RunFile, *, quiet: bool, print_config: bool) -> bool:
    """Carry out a run with progress, and print the result; or print it as a run file, and return False."""
    if print_config:
        from .run_arguments import with_guessed_axes

        click.echo(with_guessed_axes(run).to_yaml(), nl=False)
        return False
    from .pipeline import execute
    from .terminal import print_fit

    with _monitor().listening(run.run, quiet=quiet) as listener:
        result = execute(run, listener)
    shows_model = result.plan is not None or run.output.directory  # not one that is only applied
    if shows_model and result.model is not None:
        _monitor().note_model(result.model)
    print_fit(console(), result.model if shows_model else None, result.plan, result.written)
    for path in result.kept:
        say(f"kept {path}")
    if result.compression is not None:
        say(result.compression.line())
    if result.graph is not None:
        print_graph(result.graph)
    if shows_model and result.model is not None and result.model.failure is not None:
        raise NotConvergedError(f"{', '.join(result.written)}: {result.model.failure}")
    return True


def _monitor() -> Monitor:
    """Return the monitor of the command that is being called."""
    return click.get_current_context().ensure_object(Monitor)


# -- the commands


@cli.command(examples=["streampca demo", "streampca demo -o /tmp/demo --memory 64MiB"])
@click.option(
    "-o", "--output", default="streampca-demo", show_default=True, type=PATH, help="Folder for data, models, pictures."
)
@click.option("--memory", default="32MiB", show_default=True, metavar="SIZE", help="Budget of each fit.")
def demo(output: str, memory: str) -> None:
    """Analyse two real collections within a tiny memory budget."""
    from .demo import guided_tour

    guided_tour(console(), output, memory)


@cli.command(examples=["streampca info scans/", "streampca info film.tif --json"])
@_source
@_opening
@_as_json
@takes_run
def info(run: RunFile, as_json: bool) -> None:
    """Say what a collection is: samples, shape, dtype, storage."""
    from .run_arguments import open_run

    collection = open_run(run.collection)
    facts = collection.facts()
    if not as_json:
        print_facts(facts.items())
        print_left_out("skipped", collection.skipped, len(collection.skipped))
        return
    plain = {
        "source": collection.source,
        "samples": collection.n_samples,
        "sample_shape": list(collection.sample_shape),
        "mixed": collection.mixed,
        "axes": None if collection.axes is None else list(collection.axes),
        "assumed": None if collection.guessed_axes is None else collection.guessed_axes.line(),
        "features": collection.n_features,
        "dtype": collection.dtype.str,
        "bytes": collection.nbytes,
        "chunks": {"samples": collection.chunks.samples, "features": collection.chunks.features},
        "first": facts["first"],
        "last": facts["last"],
        "skipped": [list(item) for item in collection.skipped],
    }
    print_json(plain)


@cli.command(
    cls=KindCommand, examples=["streampca plan scans/ -k 50 --memory 2GiB", "streampca plan --shape 60000x28x28 -k 50"]
)
@argument("collection.source", "[SOURCE]...", nargs=-1)
@options("run.memory", "run.workers", "run.network", "run.scratch", "run.device", "run.part")
@_as_json
@click.option("--shape", metavar="SHAPE", help="Shape of data not here yet, such as 60000x28x28, of uint8 or --dtype.")
@options("collection.sample_weight")
@_opening
@_preparing
@takes_run
def plan(run: RunFile, shape: str | None, as_json: bool) -> None:
    """Show the plan, and why other methods were rejected."""
    from .run_arguments import plan_of

    if bool(run.collection.source) == bool(shape):
        raise click.UsageError("give either SOURCE or --shape.")
    result = plan_of(run, shape=shape) if shape else plan_of(run, measure=True)
    if as_json:
        print_json(result.to_json())
    else:
        print_facts(result.lines())


@cli.command(
    cls=KindCommand,
    examples=[
        "streampca fit scans/ -k 50 --memory 2GiB -o model.zarr",
        "streampca fit scores.zarr --kind isomap --n-neighbors 10 -o map.zarr",
    ],
)
@_source
@option("output.model", "-o", "--output", metavar="MODEL", help="Folder for the model [default: that of --update].")
@_writing
@_budget
@options("run.scratch", "run.device", "run.part")
@_saving
@_sharing
@options("run.network")
@options("update", "follow", "collection.sample_weight", omit=("update.enabled",))
@_opening
@_preparing
@takes_run
def fit(run: RunFile, quiet: bool, print_config: bool) -> None:
    """Fit a kind of model: write it, or update one (--update)."""
    if run.output.model is None:
        if run.update.model is None:
            raise click.UsageError("Missing option '-o' / '--output'.")
        run = replace(run, output=replace(run.output, model=run.update.model))
    if not _carry_out(run, quiet=quiet, print_config=print_config):
        return
    if run.run.part is not None:
        say(f"next, with all {run.run.part.partition('/')[2]} parts: streampca merge PARTS... -o model.zarr")
        return
    model = str(run.output.model)
    labels = words_of("collection", only="labels")
    say(f"next: {as_typed('report', model, *labels, '-o', 'report.html')}")
    columns = words_of("collection", only="target") + words_of("collection", only="sample_weight")
    words = [word for word in words_of("collection") if word not in columns]
    source = ["NEW"] if type(run.model).uses_graph else words  # an embedding holds the coordinates of its own samples
    say(f"next: {as_typed('transform', model, *source, '-o', 'scores.zarr')}")


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
@option("model.n_components", show_default=False)
@options("update.approximate", "run.memory")
@_saving
@_overwriting
@_reporting
@options("collection.coordinates")
@takes_run
def merge(run: RunFile, parts: tuple[str, ...], output: str, quiet: bool) -> None:
    """Make the model of a whole from those of its parts.

    PARTS are the models of all parts of a collection, as fit --part wrote them, in any order; or models of several
    collections, fitted alike. The samples are not read again. The number of components is that of the parts, unless
    it is given.
    """
    import streampca

    from .run_arguments import checkpoint_beside
    from .terminal import print_model

    count = getattr(run.model, "n_components", None)
    with _monitor().listening(run.run, quiet=quiet) as listener:
        model = streampca.merge(
            parts,
            n_components=("all" if count is None else count) if run.is_given("model", "n_components") else None,
            approximate=run.update.approximate,
            coordinates=run.collection.coordinates,
            run=run.how(output=output, checkpoint=checkpoint_beside(run, output), listener=listener),
        )
    _monitor().note_model(model)
    print_model(console(), model)
    say(f"wrote {output}")


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
@options("run.device")
@_sharing
@_saving
@_writing
@takes_run
def transform(run: RunFile, quiet: bool, print_config: bool) -> None:
    """Project a collection on a model's components: write scores."""
    _carry_out(run, quiet=quiet, print_config=print_config)


@cli.command(
    examples=[
        "streampca reconstruct model.zarr scores.zarr -o images.zarr",
        "streampca reconstruct model.zarr scans/ --n-components 10 --residual -o residual.npy",
    ]
)
@_model
@_source
@_output("output.images", "IMAGES", "Images: .zarr or .npy; .tif for ImageJ and Fiji.")
@options("output.n_components", "output.residual", "output.whole", "output.missing")
@option("output.whiten", help="Scores are whitened (those in .zarr say so themselves).")
@_opening
@_budget
@options("run.device")
@_sharing
@_saving
@_writing
@takes_run
def reconstruct(run: RunFile, quiet: bool, print_config: bool) -> None:
    """Rebuild images from scores, or themselves: say what is lost.

    SOURCE holds scores, as transform writes them, or images, which are projected first.
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
@_opening
@_preparing
@_budget
@_sharing
@_saving
@_plan
@_writing
@takes_run
def neighbors(run: RunFile, plan: bool, quiet: bool, print_config: bool) -> None:
    """Find the nearest neighbours of every sample: write a graph.

    SOURCE holds scores, as transform writes them, or any samples of few features.
    """
    if plan:
        from .run_arguments import plan_of_graph

        print_facts(plan_of_graph(run).lines())
        return
    if run.output.graph is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    _carry_out(run, quiet=quiet, print_config=print_config)


@cli.command(examples=["streampca inspect model.zarr --count 20", "streampca inspect model.zarr --verify"])
@_stored_model
@click.option("--count", "requested", type=click.IntRange(1), help=f"Components to list [default: {SHOWN}].")
@click.option("--verify", is_flag=True, help="Read all of it, and compare it with its checksums.")
@_as_json
def inspect(model: str, requested: int | None, verify: bool, as_json: bool) -> None:
    """Show a model, and how far to trust it; or a graph."""
    import streampca

    from .terminal import print_model, print_trust

    if streampca.is_graph(model):
        if requested is not None:
            raise RequestError(f"--count {requested} is of a model's components, and {model} is a graph; leave it out.")
        _inspect_graph(model, verify=verify, as_json=as_json)
        return
    count = requested or SHOWN
    loaded = streampca.load(model, components=False)
    verified = streampca.verify(model)._asdict() if verify else None
    if as_json:
        print_json(loaded.summary() | ({} if verified is None else {"verified": verified}))
        return
    print_model(console(), loaded, count)
    print_trust(console(), loaded)
    if len(loaded.constant_features):
        listed = ", ".join(str(tuple(place)) for place in loaded.constant_features[:count].tolist())
        rest = len(loaded.constant_features) - count
        listed += f" and {rest} more" if rest > 0 else ""
        say(f"constant features, which standardize does not divide: {listed}")
    provenance = loaded.provenance
    part = "part {} of {} of ".format(*provenance["part"]) if "part" in provenance else ""
    source = f"{part}{provenance.get('source')}"
    say(f"\nfitted {provenance.get('created')} from {source} by streampca {provenance.get('streampca')}")
    skipped, dropped = provenance.get("skipped") or [], provenance.get("dropped")
    print_left_out("skipped", skipped, len(skipped))
    if dropped is not None:
        print_left_out("left out", dropped["listed"], dropped["samples"], "up to 1000")
    print_verified(verified)


def _inspect_graph(path: str, *, verify: bool, as_json: bool) -> None:
    """Show a graph of nearest neighbours."""
    import streampca

    graph = streampca.load(path)
    verified = streampca.verify(path)._asdict() if verify else None
    provenance = graph.provenance
    if as_json:
        facts = {"n_samples": graph.n_samples, "n_neighbors": graph.n_neighbors, **provenance}
        print_json(facts | ({} if verified is None else {"verified": verified}))
        return
    print_graph(graph)
    say(
        f"\nmade {provenance.get('created')} from {provenance.get('source')} by streampca {provenance.get('streampca')}"
    )
    print_verified(verified)


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
@click.option("--figures", type=PATH, metavar="FOLDER", help="Write each figure there, for a paper.")
@option("output.figure_format", help="Format of these.")
@option("output.figure_width", metavar="MM", help="Their width [default: 90 for charts, 180 for others].")
@click.option("--data", type=PATH, metavar="FOLDER", help="Write the numbers behind each figure there, as CSV.")
@_budget
@_sharing
@_saving
@_overwriting
@_reporting
@takes_run
def report(
    run: RunFile,
    model: str,
    output: str,
    examine: int | None,
    figures: str | None,
    data: str | None,
    quiet: bool,
) -> None:
    """Draw a model and its collection: write one HTML page."""
    import streampca

    from .run_arguments import checkpoint_beside, opening_of

    with _monitor().listening(run.run, quiet=quiet) as listener:
        written = streampca.write_report(
            model,
            output,
            collection=run.collection.source or None,
            examine=examine,
            figures=figures,
            figure_format=run.output.figure_format,
            figure_width=run.output.figure_width,
            data=data,
            run=run.how(checkpoint=checkpoint_beside(run, output), listener=listener),
            **opening_of(run.collection),
        )
    for path in written:
        say(f"wrote {path}")


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
@options("hsic")
@_budget
@_sharing
@click.option("--checkpoint", type=PATH, metavar="FOLDER", help="Folder to save progress in, to resume from.")
@_plan
@_reporting
@_as_json
@_opening
@_preparing
@takes_run
def hsic(
    run: RunFile,
    a: str,
    b: str | None,
    target: str | None,
    checkpoint: str | None,
    plan: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure how far A depends on B, or on labels, and test it.

    A and B are collections of the same samples, in the same order. Options of opening and preparation are for A.
    """
    import streampca

    from .run_arguments import opening_of, preparation_of

    options = {"target": target, "preparation": preparation_of(run), **vars(run.hsic), **opening_of(run.collection)}
    if plan:
        planned = streampca.plan_hsic(a, b, run=run.how(), **options)
        if as_json:
            print_json(planned.to_json())
        else:
            print_facts(planned.lines())
        return
    with _monitor().listening(run.run, quiet=quiet) as listener:
        dependence = streampca.hsic(a, b, run=run.how(checkpoint=checkpoint, listener=listener), **options)
    if as_json:
        print_json(dependence.to_json())
    else:
        say(repr(dependence))


@cli.command(
    examples=["streampca copy scans/ -o scans.zarr", "streampca copy photos/ --resize 64x64 --grey -o small.zarr"]
)
@_source
@_output("output.collection", "IMAGES", "Copy: .zarr.")
@_opening
@_preparing
@_budget
@_sharing
@_saving
@_writing
@takes_run
def copy(run: RunFile, quiet: bool, print_config: bool) -> None:
    """Copy a collection, prepared or not, to Zarr that reads fast."""
    _carry_out(run, quiet=quiet, print_config=print_config)


@cli.command(
    examples=[
        "streampca export model.zarr -o components.tif",
        "streampca export model.zarr --n-components 5 --no-mean -o components.npy",
    ]
)
@_stored_model
@click.option("-o", "--output", required=True, type=PATH, metavar="FILE", help="Pictures: .tif (Fiji, ImageJ) or .npy.")
@click.option("--n-components", "count", type=click.IntRange(1), help="Components to export [default: all].")
@click.option("--mean/--no-mean", default=True, help="Write the mean first [default: yes].")
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
def export(model: str, output: str, count: int | None, mean: bool, overwrite: bool) -> None:
    """Write a model's mean and components as pages of a TIFF file."""
    import streampca

    streampca.export_components(model, output, n_components=count, mean=mean, overwrite=overwrite)
    say(f"wrote {output}")


def _print_schema(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
    """Print the schema of run files and end, if the option is given."""
    if is_given and not context.resilient_parsing:
        from .schema import json_schema

        print_json(json_schema())
        context.exit()


@cli.command("run", examples=["streampca run run.yaml", "streampca run run.yaml --set model.n_components=20 --dry-run"])
@click.argument("config", type=PATH)
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Change a key, e.g. model.n_components=20."
)
@option("run.overwrite", default=None)
@click.option("--allow-remote", is_flag=True, help="Read from and write to URLs that the run file names.")
@click.option(
    "--allow-env",
    metavar="NAME",
    multiple=True,
    help="Replace this environment variable in any text of the run file, URLs among them.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the plan and what would be written, reading headers only, and stop."
)
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,  # before missing arguments are refused
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON schema of run files, for editors, and stop.",
)
@_quiet
@option("run.log_format", default=None, show_default=False)  # by default as in the run file
@option("run.metrics")
@_print_config
def run_command(
    config: str,
    overrides: tuple[str, ...],
    allow_remote: bool,
    allow_env: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
    print_config: bool,
    **run_options: str | bool | None,
) -> None:
    """Carry out a run file: model, scores, pictures in a directory.

    Paths and numbers in the file may hold environment variables, as ${NAME}.
    """
    from .config import load_run

    typed = {name.replace(SECTION_MARK, "."): value for name, value in run_options.items() if value is not None}
    changes = [*overrides, *(f"{key}={json.dumps(value)}" for key, value in typed.items())]
    run = load_run(config, changes, allow_remote=allow_remote, allow_env=allow_env)
    if dry_run:
        from .pipeline import foresee

        facts, refusal = foresee(run)
        print_facts(facts)
        if refusal is not None:
            raise refusal
        return
    _carry_out(run, quiet=quiet, print_config=print_config)


__all__ = ["cli", "main"]
