"""Options that commands share, and how their texts become the parts of a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ..errors import RequestError
from ..planning.blocks import part_of
from ..planning.request import RULES

if TYPE_CHECKING:
    from .config import Run


def together(*options: Callable[..., Any]) -> Callable[[Any], Any]:
    """One decorator of several, in the order `--help` shows them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _components(context: click.Context, option: click.Parameter, text: str | None) -> int | float | str | None:
    """Read -k: 50, 0.95, a rule or all."""
    if text is None or text == "all" or text in RULES:
        return text
    number: int | float = 0
    with suppress(ValueError):
        number = float(text) if "." in text or "e" in text.lower() else int(text)
    if 0 < number < 1 or (isinstance(number, int) and number >= 1):
        return number
    if number == 1:
        raise RequestError(f"-k {text} is ambiguous; give 1 for one component, or all.")
    raise RequestError(
        f"-k {text} is neither a whole number of at least 1 nor a fraction between 0 and 1; give such as 50, 0.95, a "
        f"rule ({', '.join(RULES)}) or all."
    )


def part_asked(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Read --part: I/N."""
    try:
        part_of(text)
    except RequestError as error:
        raise RequestError(f"--{error}") from None
    return text


def count_or_all(context: click.Context, option: click.Parameter, text: str) -> int | None:
    """Read a number of samples, or all, which is None."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise RequestError(f"{option.opts[0]} {text!r} is not a number of samples; give one such as 20000, or all.")
    return int(text)


def one_or_list(source: str | tuple[str, ...]) -> str | list[str]:
    """What is typed as a source: one word by itself, several as a list."""
    return source if isinstance(source, str) else source[0] if len(source) == 1 else list(source)


ignoring = click.option(
    "--ignore-coordinates", is_flag=True, help="Take pixels by place, whatever latitudes and the like say."
)
opening = together(
    click.option("--key", help="Which array, where the source holds several."),
    click.option(
        "--sample-axes", metavar="AXES", help="Axes of one image, e.g. 1,2 or y,x [default: all but the first]."
    ),
    click.option(
        "--select", metavar="AXIS=WHAT", multiple=True, help="Entry (c=0) or range (z=10:20) of another axis."
    ),
    click.option("--patches", metavar="SIZE", help="Windows of the image as samples: 16x16, or 16x16/8x8 with a step."),
    click.option("--samples", metavar="RANGE", help="Some samples only: START:STOP or START:STOP:STEP."),
    click.option("--labels", metavar="COLUMN", help="A label a sample: .npy, IDX, table.csv:column, or folder."),
    click.option("--where", metavar="CONDITION", help="Samples by label only, e.g. label=3 or label!=0."),
    click.option(
        "--on-bad-file",
        type=click.Choice(["error", "skip"]),
        default="error",
        show_default=True,
        help="Stop at a file that cannot be read, or leave such files out.",
    ),
    click.option(
        "--keep-orientation", is_flag=True, help="Leave images as stored, whatever their orientation tags say."
    ),
    ignoring,
)
preparing = together(
    click.option("--crop", metavar="RANGES", help="Keep these pixels, e.g. 10:100,20:200 or 5:-5."),
    click.option("--grey", is_flag=True, help="Turn colours into grey."),
    click.option("--resize", metavar="HxW", help="Bring every image to this size, e.g. 64x64."),
    click.option("--bin", type=click.IntRange(1), default=1, metavar="Q", help="Average squares of Q x Q pixels."),
    click.option("--mask", metavar="FILE", help="Image or .npy of the pixels to keep, or valid: those never missing."),
    click.option(
        "--scale", metavar="FACTOR", help="Number, .npy of one a pixel, or area (by latitude); undone by reconstruct."
    ),
    click.option("--normalize", metavar="HOW", help="Each image alone: mean, norm or ratio."),
)
asking = together(
    click.option(
        "-k",
        "--n-components",
        callback=_components,
        metavar="K",
        help="Count (50), share of the variance (0.95), elbow, mp, mle or all [default: 0.95].",
    ),
    click.option("--memory", metavar="SIZE", help="Budget, e.g. 2GiB [default: half of the machine's]."),
    click.option("--method", default="auto", show_default=True, help="auto, covariance, dual or randomized."),
    click.option("--precision", default="auto", show_default=True, help="Of products: auto, single or double."),
    click.option(
        "--tol",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        metavar="TOL",
        help="Residual at which randomized stops, relative to each variance [default: 1e-4].",
    ),
    click.option(
        "--max-passes",
        type=click.IntRange(1),
        metavar="N",
        help="Most passes of randomized; 1 makes a sketch [default: as many as --tol takes].",
    ),
    click.option("--sample-weight", metavar="COLUMN", help="How often each sample counts; as for --labels."),
    click.option("--scratch", metavar="FOLDER", help="Where a scratch copy may go [default: beside the output]."),
)
budgeting = click.option(
    "--memory", metavar="SIZE", help="Budget, e.g. 512MiB or 2GiB [default: half of the machine's]."
)
writing = together(
    click.option("--overwrite", is_flag=True, help="Replace the output if it exists."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    click.option("--print-config", is_flag=True, help="Print the run as a run file and stop."),
)
keeping = together(
    click.option("--checkpoint/--no-checkpoint", default=True, help="Save as it goes, to go on from [default: yes]."),
    click.option("--checkpoint-every", type=click.FloatRange(0), metavar="SECONDS", help="At least [default: 30]."),
)
sharing = together(
    click.option("--workers", type=click.IntRange(1), metavar="N", help="Share the work among so many processes."),
    click.option("--worker-memory", metavar="SIZE", help="Memory of each process [default: as the budget needs]."),
    click.option("--address", metavar="URL", help="Scheduler of a dask cluster whose workers share the work."),
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def run_of(source: str | tuple[str, ...], **given: Any) -> Run:
    """Build the run that a command's options stand for; options at their defaults are left out."""
    from .config import COMMAND, make_run

    output = {key: value for key, value in given.get("output", {}).items() if value is not None}
    data = {
        "collection": _collection(source, given),
        "prepare": _preparation(given),
        "fit": _fit(given),
        "output": output,
        "model": given.get("model"),
        "checkpoint": _checkpoint(given),
        "execution": _execution(given),
    }
    return make_run(data, COMMAND)


def opening_words(given: dict[str, Any]) -> list[str]:
    """The options a collection was opened with, as they are typed, for the command that is to follow."""
    single = ("key", "sample_axes", "patches", "samples", "labels", "where")
    words = [(name, given[name]) for name in single if given.get(name) is not None]
    words += [("select", text) for text in given.get("select") or ()]
    if given.get("on_bad_file") == "skip":
        words.append(("on_bad_file", "skip"))
    flags = [name for name in ("keep_orientation", "ignore_coordinates") if given.get(name)]
    words += [(name, None) for name in flags]
    return [word for name, text in words for word in (f"--{name.replace('_', '-')}", text) if word is not None]


def _collection(source: str | tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    axes, patches, samples = given.get("sample_axes"), given.get("patches"), given.get("samples")
    return {
        "source": one_or_list(source),
        "key": given.get("key"),
        "sample_axes": None if axes is None else [_axis(name) for name in axes.split(",")],
        "select": dict(_selected(text) for text in given.get("select") or ()) or None,
        "patches": None if patches is None else _patches(patches),
        "samples": None if samples is None else _steps(samples),
        "labels": given.get("labels"),
        "where": given.get("where"),
        "on_bad_file": given.get("on_bad_file") or "error",
        "keep_orientation": given.get("keep_orientation", False),
        "coordinates": "ignore" if given.get("ignore_coordinates") else "check",
    }


def _preparation(given: dict[str, Any]) -> dict[str, Any]:
    crop, resize, scale = given.get("crop"), given.get("resize"), given.get("scale")
    return {
        "crop": None if crop is None else [_sides_kept(text) for text in crop.split(",")],
        "grey": given.get("grey", False),
        "resize": None if resize is None else _sides(resize, "--resize"),
        "bin": given.get("bin", 1),
        "mask": given.get("mask"),
        "scale": scale if scale is None else _number(scale),
        "normalize": given.get("normalize"),
    }


def _fit(given: dict[str, Any]) -> dict[str, Any]:
    names = ("memory", "method", "precision", "tol", "max_passes", "seed", "sample_weight", "scratch", "part")
    fit = {key: given[key] for key in names if given.get(key) is not None}
    wanted = given.get("n_components")
    if wanted is not None:
        fit["n_components"] = None if wanted == "all" else wanted
    return fit


def _checkpoint(given: dict[str, Any]) -> dict[str, Any]:
    every = given.get("checkpoint_every")
    return {"enabled": given.get("checkpoint", True)} | ({} if every is None else {"every": every})


def _execution(given: dict[str, Any]) -> dict[str, Any]:
    names = {"address": "address", "workers": "workers", "worker_memory": "memory"}
    asked = {key: given[name] for name, key in names.items() if given.get(name) is not None}
    return {"kind": "dask", **asked} if asked else {}


def _axis(name: str) -> int | str:
    name = name.strip()
    return int(name) if name.lstrip("-").isdecimal() else name


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _range(text: str, option: str) -> list[int]:
    start, colon, stop = text.partition(":")
    if not (colon and start.strip().isdecimal() and stop.strip().isdecimal()):
        raise RequestError(f"{option} {text!r} is not START:STOP; write for example 10:100.")
    return [int(start), int(stop)]


def _ends(text: str, most: int, problem: str) -> list[int | None]:
    """Read START:STOP, with up to `most` numbers, as a slice is written: each may be left out or negative."""
    parts = [part.strip() for part in text.split(":")]
    if not 2 <= len(parts) <= most or not all(part.removeprefix("-").isdecimal() or not part for part in parts):
        raise RequestError(problem)
    return [int(part) if part else None for part in parts]


def _steps(text: str) -> list[int | None]:
    problem = f"--samples {text!r} is not START:STOP or START:STOP:STEP; write for example 0:1000:2."
    return _ends(text, 3, problem)


def _sides_kept(text: str) -> list[int | None]:
    return _ends(
        text, 2, f"--crop {text!r} is not START:STOP; write for example 10:100, or 10:-10 for all but the edges."
    )


def _sides(text: str, option: str) -> list[int]:
    sides = [side.strip() for side in text.lower().split("x")]
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise RequestError(f"{option} {text!r} is not HEIGHTxWIDTH; write for example 64x64.")
    return [int(sides[0]), int(sides[-1])]


def _patches(text: str) -> dict[str, list[int]]:
    size, slash, step = text.partition("/")
    sides = {"size": _sides(size, "--patches")}
    return sides | {"step": _sides(step, "--patches")} if slash else sides


def _selected(text: str) -> tuple[int | str, int | list[int]]:
    axis, equals, what = text.partition("=")
    if not equals:
        raise RequestError(f"--select {text!r} is not AXIS=WHAT; write for example c=0 or z=10:20.")
    if what.strip().lstrip("-").isdecimal():
        return _axis(axis), int(what)
    return _axis(axis), _range(what, "--select")
