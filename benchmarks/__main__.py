"""The benchmarks as one suite: listed, run, and the results of the peers as a table.

python -m benchmarks                                     list the scripts
python -m benchmarks run peers --json peers.json         run one, with its own options
python -m benchmarks table peers.json                    what peers took, as a table in Markdown
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


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command")
    runs = commands.add_parser("run", help="run a script", add_help=False)
    runs.add_argument("name", choices=scripts())
    tables = commands.add_parser("table", help="print results of peers")
    tables.add_argument("results", type=Path, help="written by run peers --json")
    asked, options = parser.parse_known_args()
    if options and asked.command != "run":
        parser.error(f"unrecognized arguments: {' '.join(options)}")
    match asked.command:
        case "run":
            sys.exit(subprocess.call([sys.executable, str(FOLDER / f"{asked.name}.py"), *options]))
        case "table":
            print(table(json.loads(asked.results.read_text(encoding="utf-8"))))
        case _:
            for name, said in scripts().items():
                print(f"{name:<16}{said}")


if __name__ == "__main__":
    main()
