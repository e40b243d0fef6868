"""The rates that plans count with (`streampca.planning.rates`), measured here: computing, reading, decoding, writing.

python benchmarks/rates.py
"""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import scipy.sparse
import tifffile
import zarr
from fresh import folder, machine, median_seconds, print_table
from scipy.linalg import blas

import streampca
from streampca.eigensolvers import solve_dense
from streampca.execution.threads import ONE_THREAD_ORDER
from streampca.machine import cores
from streampca.planning.memory import dense_flops
from streampca.planning.rates import RATES
from streampca.planning.sparse import MULTIPLIED
from streampca.preprocessing.feature_map import KernelMap
from streampca.preprocessing.kernels import Kernel


def computing(n: int, rounds: int) -> dict[str, float]:
    """Symmetric products of n rows, LAPACK's reductions of n x n, and passes over values."""
    found = {}
    for name, dtype, syrk in (("single", np.float32, blas.ssyrk), ("double", np.float64, blas.dsyrk)):
        rows = np.random.default_rng(0).random((n, 4096)).astype(dtype)
        product = np.zeros((n, n), dtype, order="F")
        seconds = median_seconds(
            lambda rows=rows, product=product, syrk=syrk: syrk(
                1.0, rows.T, trans=1, beta=0.0, c=product, overwrite_c=1
            ),
            rounds,
        )
        found[name] = n * n * 4096 / seconds / cores()
    scatter = np.asfortranarray(np.cov(np.random.default_rng(0).standard_normal((n, n))))
    seconds = median_seconds(lambda: solve_dense(lambda: scatter.copy(order="F"), 50, most=n), 1)
    found["solving"] = 2 * dense_flops(n) / seconds / (1 if n <= ONE_THREAD_ORDER else cores())
    stored = np.random.default_rng(0).integers(0, 255, (n, 8192), np.uint8)
    mean = stored.mean(axis=0, dtype=np.float32)
    found["centring"] = stored.size / median_seconds(lambda: stored.astype(np.float32) - mean, rounds)
    total, product = np.zeros((n, n), order="F"), np.ones((n, n), np.float32, order="F")
    found["adding"] = n * n / median_seconds(lambda: np.add(total, product, out=total), rounds)
    return found


def sparse_products(rounds: int) -> dict[str, float]:
    """A product of sparse rows with ten vectors, and of their transposes with the result; in one thread."""
    rows = scipy.sparse.random_array((20_000, 2_000), density=0.01, format="csr", rng=np.random.default_rng(0))
    vectors = np.random.default_rng(0).standard_normal((2_000, 10))
    seconds = median_seconds(lambda: rows.T @ (rows @ vectors), rounds)
    return {"sparse": MULTIPLIED * 2 * rows.nnz * vectors.shape[1] / seconds}


def mapping(landmarks: int, rounds: int) -> list[tuple[str, str, str]]:
    """Seconds of mapping 1000 samples of 784 features by landmarks, measured and as planned."""
    samples = np.random.default_rng(0).random((1000, 784))
    found = []
    for name in ("rbf", "laplacian"):
        mapped = KernelMap.nystroem(Kernel(name, gamma=1 / 784), samples[:landmarks])
        seconds = median_seconds(lambda mapped=mapped: mapped(samples), rounds)
        found.append((name, f"{seconds:.2g}", f"{len(samples) * mapped.row_flops / RATES.double / cores():.2g}"))
    return found


def plain_files(directory: Path, megabytes: int, rounds: int) -> dict[str, float]:
    """A file written, then read from the system's cache, whole and in runs of a page."""
    values = np.random.default_rng(0).random((megabytes, 512, 512), dtype=np.float32)
    path = directory / "plain.npy"

    def write() -> None:
        with path.open("wb") as file:
            np.save(file, values)
            os.fsync(file.fileno())

    found = {"writing": values.nbytes / median_seconds(write, 1)}
    collection = streampca.open_collection(path)
    found["reading"] = values.nbytes / median_seconds(lambda: read_all(collection, 16), rounds)
    runs = median_seconds(lambda: collection.read(slice(0, megabytes), slice(1024, 2048)), rounds)
    return found | {"accesses": megabytes / runs}


def encoded_files(directory: Path, megabytes: int, rounds: int) -> dict[str, float]:
    """Compressed images of 1 MiB, as Zarr chunks and as TIFF files; and many tiny chunks. The slower of each counts."""
    smooth = np.cumsum(np.random.default_rng(0).integers(-9, 9, (megabytes, 512, 512)), axis=2).astype(np.float32)
    zarr.create_array(directory / "large.zarr", shape=smooth.shape, chunks=(1, 512, 512), dtype="f4")[:] = smooth
    (directory / "tiff").mkdir(exist_ok=True)
    for number, image in enumerate(smooth):
        tifffile.imwrite(directory / "tiff" / f"{number}.tif", image, compression="zlib", predictor=True)
    rates = []
    for name in ("large.zarr", "tiff"):
        collection = streampca.open_collection(directory / name)
        rates.append(smooth.nbytes / median_seconds(lambda one=collection: read_all(one, 16), rounds) / cores())
    tiny = zarr.create_array(directory / "tiny.zarr", shape=(1024, 8, 8), chunks=(1, 8, 8), dtype="u1")
    tiny[:] = 1
    collection = streampca.open_collection(directory / "tiny.zarr")
    seconds = median_seconds(lambda: collection.read(slice(0, 1024)), rounds)
    return {"decoding": min(rates), "chunks": 1024 / seconds / cores()}


def read_all(collection: streampca.Collection, rows: int) -> None:
    """Read a collection in blocks."""
    for start in range(0, collection.n_samples, rows):
        collection.read(slice(start, min(start + rows, collection.n_samples)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000, help="order of the matrices")
    parser.add_argument("--megabytes", type=int, default=128, help="of files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="write files here; by default in a temporary folder")
    options = parser.parse_args()
    print(machine())
    found = computing(options.samples, options.rounds) | sparse_products(options.rounds)
    with folder(options.directory) as directory:
        found |= plain_files(directory, options.megabytes, options.rounds)
        found |= encoded_files(directory, options.megabytes, options.rounds)
    print()
    rows = [(each.name, f"{found[each.name]:.2g}", f"{getattr(RATES, each.name):.2g}") for each in fields(RATES)]
    print_table(("a second", "measured", "planned with"), rows)
    print()
    print_table(("seconds of mapping", "measured", "planned with"), mapping(options.samples, options.rounds))


if __name__ == "__main__":
    main()
