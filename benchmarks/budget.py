"""Whether a collection larger than its budget is fitted, transformed and reconstructed within that budget.

The pictures are kept as .npy, as Zarr cut by samples, as Zarr cut across features, and as a folder of PNG files of
256 x 256 pixels, which are binned to 32 x 32. Each step of each runs in a fresh process; its peak (above what the
process held once everything was imported and the collection opened) stands beside the budget and beside the memory
estimate computed before the step. Ends with status 1 if a peak exceeds the budget:

    python benchmarks/budget.py                                     # 2 GB under 512 MiB; needs 12 GB of disk
    python benchmarks/budget.py --gigabytes 0.3 --memory 64MiB --layouts npy,png
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from fresh import folder, in_fresh_process, machine, measured, mib, print_table, tell
from PIL import Image
from synthetic import npy_of, smooth

PNG_SIDE, PNG_BIN = 256, 8  # few files for many bytes, and still few features
CHUNK = 2048  # samples to a Zarr chunk


class Step(NamedTuple):
    """What one step took."""

    seconds: float
    peak: int | None
    estimate: int


def as_npy(directory: Path, n: int, side: int) -> Path:
    return npy_of(directory, smooth, n, side)


def as_zarr(directory: Path, n: int, side: int, *, name: str, chunks: tuple[int, int, int]) -> Path:
    path = directory / f"{name}-{n}x{side}x{side}.zarr"
    if not path.exists():
        chunks = (min(n, chunks[0]), min(side, chunks[1]), min(side, chunks[2]))
        partial_path = path.with_suffix(".partial")
        shutil.rmtree(partial_path, ignore_errors=True)
        array = zarr.create_array(partial_path, shape=(n, side, side), chunks=chunks, dtype="uint8")
        start = 0
        for block in gathered(smooth(n, side), chunks[0]):
            array[start : start + len(block)] = block
            start += len(block)
        partial_path.rename(path)
    return path


def gathered(blocks: Iterator[np.ndarray], rows: int) -> Iterator[np.ndarray]:
    """Blocks of at least `rows` rows, whole multiples of them but for the last, so that chunks are written once."""
    held: list[np.ndarray] = []
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) % rows == 0:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def as_png(directory: Path, n: int, side: int) -> Path:
    path = directory / f"png-{n}x{side}x{side}"
    if not path.exists():
        partial_path = path.with_suffix(".partial")
        partial_path.mkdir(exist_ok=True)
        numbers = count()
        with ThreadPoolExecutor() as pool:
            for block in smooth(n, side):
                names = [partial_path / f"{next(numbers):07d}.png" for _ in block]
                list(pool.map(save_png, names, block))
        partial_path.rename(path)
    return path


def save_png(path: Path, picture: np.ndarray) -> None:
    Image.fromarray(picture).save(path, compress_level=1)


LAYOUTS: dict[str, Callable[[Path, int, int], Path]] = {
    "npy": as_npy,
    "zarr by samples": partial(as_zarr, name="samples", chunks=(CHUNK, 2**20, 2**20)),
    "zarr across features": partial(as_zarr, name="features", chunks=(4 * CHUNK, 12, 2**20)),
    "png": as_png,
}


def opened(path: Path) -> Any:
    """The collection, binned where it is of PNG files; imports what the steps need."""
    import streampca.fitting.fit
    import streampca.fitting.open_fit
    import streampca.models.transform.write
    import streampca.storage.outputs

    preparation = streampca.Preparation(bin=PNG_BIN if path.name.startswith("png") else 1)
    return streampca.fitting.open_fit.prepare(streampca.open_collection(path), preparation)


def fit(path: Path, model: Path, k: int, memory: str) -> Step:
    """Fit a collection and save the model."""
    import streampca
    from streampca.events import Planned

    estimates: list[int] = []

    def listen(event: object) -> None:
        if isinstance(event, Planned):
            estimates.append(event.plan.memory_estimate.total)

    collection = opened(path)

    def work() -> None:
        streampca.fit(collection, n_components=k, memory=memory, output=model, overwrite=True, listener=listen)

    return Step(*measured(work)[1:], *estimates)


def apply(path: Path, model: Path, verb: str, output: Path, memory: str) -> Step:
    """Write the scores or the reconstruction of a collection by a saved model, and remove them."""
    import streampca.models.transform.write

    estimates: list[int] = []
    plan_application = streampca.models.transform.write.plan_application

    def noted(**sizes: Any) -> Any:
        application = plan_application(**sizes)
        estimates.append(application.memory_estimate.total)
        return application

    streampca.models.transform.write.plan_application = noted
    collection = opened(path).raw

    def work() -> None:
        getattr(streampca.load(model), verb)(collection, output, memory=memory, overwrite=True)

    step = Step(*measured(work)[1:], *estimates)
    shutil.rmtree(output) if output.is_dir() else output.unlink()
    return step


def steps(path: Path, k: int, memory: str) -> dict[str, Step]:
    """All steps of one layout, each in a fresh process."""
    model = path.with_name(f"{path.name}-model.zarr")
    ending = ".npy" if path.suffix == ".npy" else ".zarr"
    results = {"fit": in_fresh_process(fit, path, model, k, memory)}
    for name, verb in {"transform": "write_scores", "reconstruct": "write_reconstruction"}.items():
        tell(f"{path.name}: {name}")
        output = path.with_name(f"{path.name}-{name}{ending}")
        results[name] = in_fresh_process(apply, path, model, verb, output, memory)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="bytes of each collection, decoded, in 10^9")
    parser.add_argument("--memory", default="512MiB", help="the budget")
    parser.add_argument("--side", type=int, default=48, help="pixels along each side of a sample, PNG apart")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="which of: %(default)s")
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    args = parser.parse_args()

    from streampca.units import parse_bytes

    budget = parse_bytes(args.memory)
    print(f"{args.gigabytes:g} GB under {args.memory}, k = {args.components}; {machine()}")
    rows, exceeded = [], 0
    with folder(args.directory) as directory:
        for name in args.layouts.split(","):
            tell(f"making {name}")
            side = PNG_SIDE if name == "png" else args.side
            path = LAYOUTS[name](directory, max(2, int(args.gigabytes * 1e9) // side**2), side)
            for verb, step in steps(path, args.components, args.memory).items():
                exceeded += step.peak is not None and step.peak > budget
                sizes = (mib(step.peak), mib(step.estimate), mib(budget))
                rows.append((f"{name}: {verb}", f"{step.seconds:.1f}", *sizes))
            if args.directory is None:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    tell("")
    print_table(("", "seconds", "peak MiB", "estimate MiB", "budget MiB"), rows)
    if exceeded:
        sys.exit(f"{exceeded} of {len(rows)} peaks exceed the budget")


if __name__ == "__main__":
    main()
