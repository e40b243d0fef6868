"""Exact kernel PCA of pictures larger than the budget: time, peaks, and scores beside the samples' own.

Pictures of 512 x 512, in Zarr cut in boxes, are fitted under a budget smaller than they are, by the kernel matrix of
streamed inner products; the model, with the samples in it, is loaded within the budget and applied to some of them. Fit
and transform run in fresh processes; their peaks (above what the process held once everything was imported) stand
beside the budget. Ends with status 1 if a peak exceeds it, or scores of fitted samples are not those of the fit:

    python benchmarks/kernel_matrix.py                         # 1000 float32 pictures, 1000 MiB under 150 MiB
    python benchmarks/kernel_matrix.py --dtype uint8 --memory 150MiB --kernel polynomial
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from fresh import folder, in_fresh_process, machine, measured, mib, print_table, tell

SIDE, ROWS = 512, 100
TOLERANCE = 1e-6  # of scores as float32, relative to the largest


class Done(NamedTuple):
    """Time and memory of a fit or a transform."""

    cpu: float
    peak: int | None
    estimate: int = 0
    off: float = 0.0  # residual of components, or the largest error of scores


def stored(directory: Path, n: int, dtype: str) -> Path:
    """Write pictures of a wave, a spot and noise unless they exist, and return their path."""
    path = directory / f"pictures-{n}-{dtype}.zarr"
    if path.exists():
        return path
    rng, (y, x) = np.random.default_rng(0), np.mgrid[:SIDE, :SIDE] / SIDE
    array = zarr.create_array(
        path, shape=(n, SIDE, SIDE), chunks=(ROWS, SIDE // 8, SIDE), dtype=dtype, compressors=None
    )
    for start in range(0, n, ROWS):
        drawn = rng.random((min(ROWS, n - start), 4))
        waves = [60 * np.sin(2 * np.pi * (3 * a * x + b * y + c)) for a, b, c, _ in drawn]
        spots = [40 * np.exp(-30 * ((x - d) ** 2 + (y - b) ** 2)) for _, b, _, d in drawn]
        made = 128 + np.add(waves, spots) + rng.normal(0, 5, (len(drawn), SIDE, SIDE))
        array[start : start + len(made)] = made.clip(0, 255).astype(dtype)
    return path


def fit(path: Path, output: Path, kernel: str, memory: str) -> Done:
    """Fit the pictures, after importing everything that the fit needs."""
    import streampca.fitting.fit
    import streampca.fitting.methods
    import streampca.models.store
    from streampca.events import Planned

    estimates: list[int] = []

    def listen(event: object) -> None:
        if isinstance(event, Planned):
            estimates.append(event.plan.memory_estimate.total)

    kind = streampca.KernelPCA(10, kernel=kernel, gamma="auto", method="kernel-matrix")
    run = streampca.Run(memory=memory, output=str(output), overwrite=True, listener=listen)
    cpu = time.process_time()
    model, _, peak = measured(lambda: streampca.fit(str(path), kind, run=run))
    return Done(time.process_time() - cpu, peak, *estimates, float(model.residual_estimate.max()))


def transform(path: Path, model_path: Path, count: int, memory: str) -> Done:
    """Write scores of some of the pictures, after importing everything that it needs."""
    import streampca
    import streampca.models.store

    scores = model_path.with_suffix(".npy")

    def work() -> np.ndarray:
        model = streampca.load(model_path, memory=memory)
        samples = streampca.open_collection(str(path))[:count]
        model.write_scores(samples, scores, memory=memory, overwrite=True)
        return np.asarray(model.embedding)

    cpu = time.process_time()
    embedding, _, peak = measured(work)
    off = np.abs(np.load(scores) - embedding[:count]).max() / np.abs(embedding).max()
    return Done(time.process_time() - cpu, peak, off=float(off))


def main() -> None:
    """Make the pictures, fit and transform them, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--others", type=int, default=300, help="samples to transform")
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    parser.add_argument("--kernel", default="rbf")
    parser.add_argument("--memory", default="150MiB", help="the budget")
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    args = parser.parse_args()

    from streampca.units import parse_bytes

    budget, size = parse_bytes(args.memory), args.samples * SIDE**2 * np.dtype(args.dtype).itemsize
    print(f"{args.samples} pictures, {mib(size)} MiB {args.dtype}, kernel {args.kernel}, {args.memory}; {machine()}")
    with folder(args.directory) as directory:
        tell("making the pictures")
        path, output = stored(directory, args.samples, args.dtype), directory / "model.zarr"
        tell("fitting")
        fitted = in_fresh_process(fit, path, output, args.kernel, args.memory)
        tell("transforming")
        applied = in_fresh_process(transform, path, output, args.others, args.memory)
    tell("")
    lines = [
        ("fit", f"{fitted.cpu:.1f}", mib(fitted.peak), mib(fitted.estimate), f"residual {fitted.off:.1e}"),
        (f"transform {args.others}", f"{applied.cpu:.1f}", mib(applied.peak), "", f"scores off by {applied.off:.1e}"),
    ]
    print_table(("", "CPU s", "peak MiB", "estimate MiB", "accuracy"), lines)
    if any(done.peak is not None and done.peak > budget for done in (fitted, applied)):
        sys.exit("a peak exceeds the budget")
    if applied.off > TOLERANCE:
        sys.exit(f"scores of fitted samples are off by more than {TOLERANCE:g}")


if __name__ == "__main__":
    main()
