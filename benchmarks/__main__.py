"""The benchmarks as one suite: listed, run, and the results of the peers as a table and a figure.

python -m benchmarks                                     list the scripts
python -m benchmarks run peers --json peers.json         run one, with its own options
python -m benchmarks table peers.json                    what peers took, as a table in Markdown
python -m benchmarks figure peers.json peers.svg         their errors of the last variance against their times
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

FOLDER = Path(__file__).parent
NO_ERROR = 1e-16  # drawn for an error of 0, which no logarithm has


def scripts() -> dict[str, str]:
    """Return the scripts that are run by themselves, each with the first line of its docstring."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("[!_]*.py"))}
    said = {name: ast.get_docstring(ast.parse(text)) or "" for name, text in texts.items() if "def main()" in text}
    return {name: text.partition("\n")[0] for name, text in said.items()}


def table(results: dict[str, Any]) -> str:
    """Return the medians of each peer as a table in Markdown."""
    last = results["k"]
    lines = [
        f"{results['what']}; {results['machine']}",
        "",
        f"| | fit, s | loading, s | peak, MiB | variance {last} off by |",
        "|---|---|---|---|---|",
    ]
    for name, found in results["peers"].items():
        peaks = [peak for peak in found["peaks"] if peak is not None]
        peak = f"{median(peaks) / 2**20:.0f}" if peaks else ""
        times = (f"{median(found[key]):.2f}" for key in ("seconds", "loading"))
        lines.append(f"| {name} | {' | '.join(times)} | {peak} | {found['error']:.0e} |")
    return "\n".join(lines)


def figure(results: dict[str, Any], path: Path) -> None:
    """Draw the error of the last variance against time, loading included: a numbered point for each peer."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9, 4.5), layout="constrained")
    axes = drawn.add_subplot(xscale="log", yscale="log", xlabel="fit and loading, s")
    axes.set_ylabel(f"relative error of variance {results['k']}")
    axes.set_title(results["what"])
    packages = [name.replace(".", " ").split()[0] for name in results["peers"]]
    colours = {package: f"C{number}" for number, package in enumerate(dict.fromkeys(packages))}
    for number, (package, (name, found)) in enumerate(zip(packages, results["peers"].items(), strict=True), 1):
        seconds = median(map(sum, zip(found["seconds"], found["loading"], strict=True)))
        place, colour = (seconds, max(found["error"], NO_ERROR)), colours[package]
        axes.plot(*place, "*" if name.startswith("streampca") else "o", color=colour, label=f"{number:>2}  {name}")
        axes.annotate(str(number), place, (5, 3), textcoords="offset points", fontsize="small", color=colour)
    axes.margins(x=0.1)
    drawn.legend(loc="outside right upper", fontsize="small")
    # Text as text takes a third of the size; without a date and random names, equal results make equal files.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "streampca"}):
        drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command")
    runs = commands.add_parser("run", help="run a script", add_help=False)
    runs.add_argument("name", choices=scripts())
    tables = commands.add_parser("table", help="print results of peers")
    figures = commands.add_parser("figure", help="draw results of peers")
    for each in (tables, figures):
        each.add_argument("results", type=Path, help="written by run peers --json")
    figures.add_argument("output", type=Path, help=".svg, .png or .pdf")
    asked, options = parser.parse_known_args()
    if options and asked.command != "run":
        parser.error(f"unrecognized arguments: {' '.join(options)}")
    match asked.command:
        case "run":
            sys.exit(subprocess.call([sys.executable, str(FOLDER / f"{asked.name}.py"), *options]))
        case "table":
            print(table(json.loads(asked.results.read_text(encoding="utf-8"))))
        case "figure":
            figure(json.loads(asked.results.read_text(encoding="utf-8")), asked.output)
        case _:
            for name, said in scripts().items():
                print(f"{name:<16}{said}")


if __name__ == "__main__":
    main()
