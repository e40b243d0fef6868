"""A collection of 20 GB within 1 GiB: passes, time to reading alone, peak, bound, and time per sample as it grows.

Images of 256 x 256 uint16 in Zarr, compressed, of a known spectrum: 50 directions over noise. Smaller collections are
its first samples. The system's cache is dropped before every pass and every bare reading, by `posix_fadvise`, so that
what is read comes from the disk; with `--cached` it is left as it is. The floor is reading and decoding
everything by Zarr alone, as often as the fit does:

    python benchmarks/large.py                       # needs about 10 GB of disk
    python benchmarks/large.py --gigabytes 2 --peers # and what else fits images that are larger than memory
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr
from fresh import folder, in_fresh_process, machine, measured, mib, print_table, tell
from zarr.codecs import BloscCodec

SIDE, CHUNK = 256, 64
COMPONENTS = 50
LEVEL, NOISE = 2000.0, 8.0  # mean and deviation of every pixel without the signal
FIRST, LAST = 3000.0, 300.0  # deviations along the first and the last direction
APART = 0.15  # that the time per sample may differ between sizes


class Fit(NamedTuple):
    """What a fit took and found."""

    seconds: float
    peak: int | None
    passes: int
    off: float
    bound: float


def directions() -> npt.NDArray[np.float32]:
    """Orthonormal smooth images, (50, 65536): products of cosines."""
    along = np.cos(np.pi * np.arange(9)[:, None] * (np.arange(SIDE) + 0.5) / SIDE)
    products = (along[:, None, :, None] * along[None, :, None, :]).reshape(81, -1)[1 : COMPONENTS + 1]
    return (products / np.linalg.norm(products, axis=1, keepdims=True)).astype(np.float32)


def deviations() -> npt.NDArray[np.float64]:
    return np.geomspace(FIRST, LAST, COMPONENTS)


def make(path: Path, n: int) -> None:
    """Write the collection, or find it already there."""
    if path.exists():
        return
    part = path.with_suffix(".partial")
    array = zarr.create_array(
        part,
        shape=(n, SIDE, SIDE),
        chunks=(CHUNK, SIDE, SIDE),
        dtype="uint16",
        overwrite=True,
        compressors=[BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")],
    )
    scaled = directions() * deviations()[:, None].astype(np.float32)
    step = 8 * CHUNK
    for start in range(0, n, step):
        tell(f"making {path}: {start} of {n}")
        rng = np.random.default_rng([0, start])
        rows = min(step, n - start)
        block = rng.standard_normal((rows, COMPONENTS), dtype=np.float32) @ scaled
        block += LEVEL + NOISE * rng.standard_normal(block.shape, dtype=np.float32)
        array[start : start + rows] = np.clip(np.rint(block), 0, 65535).reshape(rows, SIDE, SIDE)
    part.rename(path)


def drop(path: Path) -> None:
    """Have the system forget the files of a folder, which it has written by now."""
    for name in path.rglob("*"):
        if name.is_file():
            handle = os.open(name, os.O_RDONLY)
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def reading(path: Path, n: int, cached: bool) -> float:
    """Seconds in which Zarr alone reads and decodes the first samples."""
    array: Any = zarr.open_array(path, mode="r")
    if not cached:
        drop(path)
    began = time.perf_counter()
    for start in range(0, n, 4 * CHUNK):
        array[start : min(start + 4 * CHUNK, n)]
    return time.perf_counter() - began


def fit(path: Path, n: int, memory: str, cached: bool, device: str | None = None) -> Fit:
    """Fit the first samples, on the processor or a device."""
    import streampca
    from streampca.events import PassStarted

    passes = 0

    def listen(event: object) -> None:
        nonlocal passes
        if isinstance(event, PassStarted):
            passes += 1
            if not cached:
                drop(path)

    on_device = partial(streampca.fit, path, memory=memory, device=device)
    on_device(streampca.PCA(2, method="randomized"), samples=slice(0, min(128, n)))
    pca = streampca.PCA(COMPONENTS, method="randomized")
    work = partial(on_device, pca, samples=slice(0, n), listener=listen)
    model, seconds, peak = measured(work)
    truth = deviations() ** 2 + NOISE**2 + 1 / 12
    found = np.asarray(model.explained_variance)
    return Fit(seconds, peak, passes, float(np.abs(found / truth - 1).max()), float(model.residual_bound.max()))


def incremental(path: Path, n: int) -> float:
    """Worst relative error of scikit-learn's IncrementalPCA, chunk by chunk."""
    from sklearn.decomposition import IncrementalPCA

    array: Any = zarr.open_array(path, mode="r")
    model = IncrementalPCA(COMPONENTS)
    for start in range(0, n - COMPONENTS, 4 * CHUNK):
        block = array[start : min(start + 4 * CHUNK, n)]
        model.partial_fit(block.reshape(len(block), -1).astype(np.float32))
    return off(model.explained_variance_)


def compressed(path: Path, n: int) -> float:
    """Worst relative error of dask's svd_compressed with two power iterations."""
    import dask.array as da

    data = da.from_zarr(path)[:n].reshape(n, -1).rechunk((4 * CHUNK, -1)).astype(np.float32)
    sizes = da.linalg.svd_compressed(data - data.mean(axis=0), COMPONENTS, n_power_iter=2, seed=0)[1].compute()
    return off(sizes**2 / (n - 1))


def off(found: npt.NDArray[np.floating[Any]]) -> float:
    return float(np.abs(found / (deviations() ** 2 + NOISE**2 + 1 / 12) - 1).max())


def peer(which: str, path: Path, n: int) -> tuple[float, float, int | None]:
    """Error, seconds and peak of a peer."""
    return measured(partial({"incremental": incremental, "compressed": compressed}[which], path, n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[2, 5, 10, 20])
    parser.add_argument("--memory", default="1 GiB")
    parser.add_argument("--cached", action="store_true", help="leave the system's cache as it is")
    parser.add_argument("--peers", action="store_true", help="also scikit-learn and dask on the smallest collection")
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    args = parser.parse_args()
    print(machine())
    counts = [max(2 * COMPONENTS, int(size * 1e9 / (2 * SIDE * SIDE))) for size in sorted(args.gigabytes)]
    rows, each = [], []
    with folder(args.directory) as directory:
        path = directory / f"large-{counts[-1]}.zarr"
        make(path, counts[-1])
        for n in counts:
            tell(f"{n} samples")
            bare = in_fresh_process(reading, path, n, args.cached)
            found = in_fresh_process(fit, path, n, args.memory, args.cached)
            each.append(found.seconds / found.passes / n)
            floor = bare * found.passes
            rows.append([
                f"{2e-9 * n * SIDE * SIDE:.2g} GB, streampca", f"{found.seconds:.1f}", f"{found.passes}", f"{bare:.1f}",
                f"{found.seconds / floor:.2f}", f"{1e6 * each[-1]:.0f}", mib(found.peak), f"{found.off:.0e}",
                f"{found.bound:.0e}",
            ])  # fmt: skip
        for which in ("incremental", "compressed") if args.peers else ():
            error, seconds, peak = in_fresh_process(peer, which, path, counts[0])
            name = {"incremental": "scikit-learn IncrementalPCA", "compressed": "dask svd_compressed"}[which]
            rows.append([f"the first, {name}", f"{seconds:.1f}", "", "", "", "", mib(peak), f"{error:.0e}", ""])
    tell("")
    headings = ("", "fit s", "passes", "reading s", "to floor", "us a sample a pass", "peak MiB", "off", "bound")
    print_table(headings, rows)
    apart = max(each) / min(each) - 1
    print(f"time per sample and pass differs by {apart:.0%} between sizes")
    if len(each) > 1 and apart > APART and 2e-9 * counts[0] * SIDE * SIDE >= 1:
        sys.exit(f"more than {APART:.0%} apart")


if __name__ == "__main__":
    main()
