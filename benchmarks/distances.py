"""Classical scaling of a matrix of distances larger than its budget: passes, residual, time and peak.

The matrix is that of points in some dimensions whose variances fall as 1/i, float32, in a .npy file, or in Zarr cut in
squares. The fit runs in a fresh process; its peak (above what the process held once everything was imported) stands
beside the budget, and its eigenvalues beside those of the points. Ends with status 1 if the peak exceeds the budget, or
the passes or the residual what is asked for:

    python benchmarks/distances.py                             # 20000 x 20000, 1.5 GiB under 192 MiB
    python benchmarks/distances.py --samples 4000 --memory 64MiB --layout zarr
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zarr
from fresh import folder, in_fresh_process, machine, measured, mib, print_table, tell, warm

ROWS = 1000
MOST_PASSES = 10
TOL = 1e-5


class Fitted(NamedTuple):
    """Result of a fit, with its time, memory and passes."""

    seconds: float
    peak: int | None
    estimate: int
    passes: int
    residual: float
    eigenvalues: list[float]
    negative: list[float]


def points(n: int, dimensions: int) -> npt.NDArray[np.float64]:
    """Return centred points, (n, dimensions)."""
    made = np.random.default_rng(0).standard_normal((n, dimensions)) / np.sqrt(np.arange(1, dimensions + 1))
    return made - made.mean(axis=0)


def distances(of: npt.NDArray[np.float64]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield blocks of rows of the matrix of distances between points."""
    squares = np.einsum("ij,ij->i", of, of)
    for start in range(0, len(of), ROWS):
        some = slice(start, start + ROWS)
        block = squares[some, None] + squares - 2 * of[some] @ of.T
        np.maximum(block, 0, out=block)
        block[np.arange(len(block)), start + np.arange(len(block))] = 0
        yield np.sqrt(block, out=block).astype(np.float32)


def stored(directory: Path, n: int, dimensions: int, layout: str) -> Path:
    """Write the matrix unless it exists, and return its path."""
    path = directory / f"distances-{n}-{dimensions}.{layout}"
    if path.exists():
        return path
    if layout == "npy":
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, n))
    else:
        array = zarr.create_array(path, shape=(n, n), chunks=(ROWS, ROWS), dtype="float32")
    for number, block in enumerate(distances(points(n, dimensions))):
        array[number * ROWS : number * ROWS + len(block)] = block
    return path


def fit(path: Path, k: int, memory: str) -> Fitted:
    """Fit the matrix, after importing everything that the fit needs."""
    import streampca.fitting.fit
    import streampca.fitting.methods
    import streampca.models.classical_mds
    from streampca.events import Planned

    estimates: list[int] = []

    def listen(event: object) -> None:
        if isinstance(event, Planned):
            estimates.append(event.plan.memory_estimate.total)

    kind = streampca.ClassicalMDS(k, metric="precomputed", tol=TOL)
    model, seconds, peak = measured(lambda: streampca.fit(str(path), kind, memory=memory, listener=listen))
    about, found = model.provenance, model.mds_eigenvalues
    residual = about["matrix"]["residual"]
    return Fitted(seconds, peak, *estimates, about["passes"], residual, found.tolist(), model.negative_share.tolist())


def main() -> None:
    """Make the matrix, fit it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--dimensions", type=int, default=300, help="of the points")
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--memory", default="192MiB", help="the budget")
    parser.add_argument("--layout", choices=("npy", "zarr"), default="npy")
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    args = parser.parse_args()

    from streampca.units import parse_bytes

    budget, n, k = parse_bytes(args.memory), args.samples, args.components
    print(f"{n} x {n} float32, {mib(4 * n * n)} MiB under {args.memory}, k = {k}; {machine()}")
    with folder(args.directory) as directory:
        tell("making the matrix")
        path = stored(directory, n, args.dimensions, args.layout)
        if path.is_file():
            warm(path)
        tell("fitting")
        found = in_fresh_process(fit, path, k, args.memory)
    tell("")
    exact = np.linalg.svd(points(n, args.dimensions), compute_uv=False)[:k] ** 2
    apart = float(np.abs(np.array(found.eigenvalues) / exact - 1).max())
    headings = ("passes", "residual", "eigenvalues off by", "seconds", "peak MiB", "estimate MiB", "budget MiB")
    cells = (f"{found.residual:.1e}", f"{apart:.1e}", f"{found.seconds:.1f}")
    print_table(
        ("", *headings), [(args.layout, str(found.passes), *cells, *map(mib, (found.peak, found.estimate, budget)))]
    )
    print(f"share of negative eigenvalues between {found.negative[0]:.2g} and {found.negative[1]:.2g}")
    if found.peak is not None and found.peak > budget:
        sys.exit("the peak exceeds the budget")
    if found.passes > MOST_PASSES or found.residual > TOL:
        sys.exit(f"more than {MOST_PASSES} passes, or a residual above {TOL:g}")


if __name__ == "__main__":
    main()
