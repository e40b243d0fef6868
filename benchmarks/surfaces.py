"""Isomap of surfaces whose coordinates are known: a roll of many points, and images of a blob that moves and turns.

R2 is the share of the variance of each true coordinate that an affine map of the embedding explains. New samples are
off by the root mean square distance between where they are placed and where their true coordinates are in the
embedding, as a share of its standard deviation. The roll is embedded by Isomap and by spectral embedding, from one
graph, each in a fresh process within 4 GiB. Ends with status 1 if a figure misses what is promised: R2 above 0.99, new
samples within 2 %, and 20 minutes of CPU time for everything about the roll.

    python benchmarks/surfaces.py
    python benchmarks/surfaces.py --points 1000000 --only roll
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fresh import folder, in_fresh_process, machine, measured, mib, print_table
from scipy.interpolate import LinearNDInterpolator

import streampca
from streampca.units import GIB

Floats = npt.NDArray[np.float64]

NEW, NEIGHBORS = 500, 10
BUDGET, MOST_CPU = "4GiB", 1200.0
LEAST_R2, MOST_OFF = 0.99, 0.02


class Surface(NamedTuple):
    """Samples, and their two coordinates on the surface, (n, 2)."""

    samples: npt.NDArray[np.float32]
    places: Floats


def roll(n: int, seed: int) -> Surface:
    """Return a roll in three dimensions, and its arc length and height."""
    rng = np.random.default_rng(seed)
    angle, height = 1.5 * np.pi * (1 + 2 * rng.uniform(size=n)), 21 * rng.uniform(size=n)
    arc = (angle * np.sqrt(1 + angle**2) + np.arcsinh(angle)) / 2
    samples = np.column_stack([angle * np.cos(angle), height, angle * np.sin(angle)])
    return Surface(samples.astype(np.float32), np.column_stack([arc, height]))


def blobs(n: int, seed: int) -> Surface:
    """Return images of an oblong blob that moves along a diagonal and turns from 0 to 90 degrees.

    The diagonal lies across the blob when it has turned halfway: it then is as far from one place to the next at both
    ends of the turn, and the surface is nearly flat. Along an axis of the image it is not, and no map to a plane keeps
    all distances.
    """
    rng = np.random.default_rng(seed)
    place, turn = rng.uniform(-0.3, 0.3, n), rng.uniform(0, np.pi / 2, n)
    y, x = np.mgrid[-1:1:16j, -1:1:16j]
    shift = (place / np.sqrt(2))[:, None, None]
    cos, sin = np.cos(turn)[:, None, None], np.sin(turn)[:, None, None]
    along, across = cos * (x - shift) + sin * (y + shift), cos * (y + shift) - sin * (x - shift)
    images = 255 * np.exp(-np.square(along / 0.6) - np.square(across / 0.25))
    return Surface(images.astype(np.float32), np.column_stack([place, turn]))


def explained(embedding: Floats, truth: Floats) -> Floats:
    """Return R2 of each true coordinate by an affine map of the embedding."""
    known = np.column_stack([embedding, np.ones(len(embedding))])
    left = truth - known @ np.linalg.lstsq(known, truth, rcond=None)[0]
    found: Floats = 1 - np.square(left).sum(axis=0) / np.square(truth - truth.mean(axis=0)).sum(axis=0)
    return found


def misplaced(model: Any, surface: Surface, new: Surface) -> float:
    """Return how far new samples are placed from where they belong, as a share of the embedding's spread."""
    where = LinearNDInterpolator(surface.places, model.embedding)(new.places)
    inside = np.isfinite(where).all(axis=1)
    off = np.asarray(model.transform(new.samples))[inside] - where[inside]
    return float(np.sqrt(np.square(off).sum(axis=1).mean()) / model.embedding.std())


def timed(source: Path, kind: Any, output: Path) -> tuple[float, int | None]:
    """Write an embedding, or the graph of neighbours where no kind is given; return its CPU seconds, and its peak."""
    run = streampca.Run(memory=BUDGET, output=output)
    began = time.process_time()
    if kind is None:
        _, _, peak = measured(lambda: streampca.neighbors(str(source), n_neighbors=NEIGHBORS, run=run))
    else:
        _, _, peak = measured(lambda: streampca.fit(str(source), kind, run=run))
    return time.process_time() - began, peak


def judged(name: str, surface: Surface, new: Surface, place: Path) -> tuple[list[list[str]], bool]:
    """Return rows of the table for one surface, and whether it keeps what is promised."""
    source, graph = place / f"{name}.npy", place / f"{name}-graph.zarr"
    np.save(source, surface.samples)
    kinds: dict[str, Any] = {"isomap": streampca.Isomap(n_neighbors=NEIGHBORS)}
    if name == "roll":
        of_graph: dict[str, Any] = {"n_neighbors": NEIGHBORS, "graph": str(graph)}
        kinds = {
            "neighbours": None,
            "spectral-embedding": streampca.SpectralEmbedding(**of_graph),
            "isomap": streampca.Isomap(landmarks=min(300, len(surface.samples)), **of_graph),
        }
    rows, total, good = [], 0.0, True
    for step, kind in kinds.items():
        output = graph if kind is None else place / f"{name}-{step}.zarr"
        cpu, peak = in_fresh_process(timed, source, kind, output)
        total, cells = total + cpu, ["", "", ""]
        if step == "isomap":
            model = streampca.load(output)
            r2, off = explained(model.embedding, surface.places), misplaced(model, surface, new)
            cells = [*(f"{value:.5f}" for value in r2), f"{off:.2%}"]
            good &= bool(r2.min() > LEAST_R2 and off < MOST_OFF)
        good &= (peak or 0) <= 4 * GIB
        rows.append([name, str(len(surface.samples)), step, f"{cpu:.0f}", mib(peak), *cells])
    return rows, good and total <= MOST_CPU


def main() -> int:
    """Print the table; return 1 if a figure misses what is promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=60000, help="points of the roll")
    parser.add_argument("--images", type=int, default=20000, help="images of the blob")
    parser.add_argument("--only", choices=["roll", "blob"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path)
    asked = parser.parse_args()
    print(machine())
    rows, kept = [], True
    with folder(asked.directory) as place:
        for name, make, n in (("blob", blobs, asked.images), ("roll", roll, asked.points)):
            if asked.only in (None, name):
                found, good = judged(name, make(n, asked.seed), make(NEW, asked.seed + 1), place)
                rows, kept = [*rows, *found], kept and good
    columns = ["surface", "samples", "step", "CPU, s", "peak, MiB", "R2, first", "R2, second", "new samples off by"]
    print_table(columns, rows)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
