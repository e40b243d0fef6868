"""Kernel PCA by landmarks beside a linear fit of as many features and the products that the kernel takes.

CPU times of fresh processes, and peaks: a fit by method "covariance" of as many uint8 features as there are landmarks;
the products of samples with landmarks and of the kernel with the map's weights alone; and kernel PCA, whose last pass
multiplies 500 rows of the kernel matrix too. Then the residuals that a model reports beside those of the whole kernel
matrix, of some samples:

    python benchmarks/kernels.py          # ends with 1 if time, memory or a residual misses what is promised
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from fresh import alternating, folder, in_fresh_process, machine, measured, mib, print_table
from synthetic import strokes
from threadpoolctl import threadpool_limits

import streampca
from streampca.planning.landmarks import CHECKED_ROWS
from streampca.units import MIB

Array = npt.NDArray[Any]

MEMORY = "512 MiB"
MOST = 3.0  # times the linear fit, beside the kernel's products
NEAR = (0.8, 2.0)  # reported residuals to exact ones, of components 3 to 20
PIECE = 256  # rows multiplied at a time


def linear(n: int, p: int, k: int) -> tuple[float, int | None]:
    """Return CPU seconds and peak of a linear fit of n x p uint8."""
    values = np.random.default_rng(0).integers(0, 255, (4096, p), np.uint8)
    samples = np.resize(values, (n, p))
    began = time.process_time()
    _, _, peak = measured(partial(streampca.fit, samples, streampca.PCA(k, method="covariance"), memory=MEMORY))
    return time.process_time() - began, peak


def products(n: int, p: int, m: int) -> tuple[float, int | None]:
    """Return CPU seconds of the kernel's products and exponentials alone, for a fit and the pass after it."""
    random = np.random.default_rng(0)
    rows, landmarks = random.random((PIECE, p)), random.random((m, p))
    checked, weights = random.random((CHECKED_ROWS, p)), random.random((m, m))
    began = time.process_time()
    with threadpool_limits(1):  # waiting threads would add CPU time
        for _ in range(0, n, PIECE):
            for _ in range(2):  # both passes map samples
                np.exp(-(rows @ landmarks.T)) @ weights
            np.exp(-(rows @ checked.T))
    return time.process_time() - began, None


def kernel(source: str, m: int, k: int) -> tuple[float, int | None]:
    """Return CPU seconds and peak of kernel PCA by landmarks."""
    streampca.KernelPCA(1, kernel="rbf").fit(np.eye(4))  # imports on first use
    began = time.process_time()
    kind = streampca.KernelPCA(k, kernel="rbf", gamma="auto", landmarks=m)
    _, _, peak = measured(partial(streampca.fit, source, kind, memory=MEMORY))
    return time.process_time() - began, peak


def residuals(samples: Array, m: int, k: int) -> Array:
    """Return the ratio of each reported residual to that of the whole kernel matrix."""
    model: Any = streampca.fit(samples, streampca.KernelPCA(k, kernel="rbf", gamma="auto", landmarks=m))
    rows = samples.reshape(len(samples), -1)
    scores = np.asarray(model.transform(samples), np.float64)
    made = model.kernel.matrix(rows, rows) @ scores
    made -= made.mean(axis=0)
    values = np.square(scores).sum(axis=0)
    exact = np.linalg.norm(made - values * scores, axis=0) / values**1.5
    found: Array = model.residual_estimate / exact
    return found


def main() -> int:
    """Print both tables; return 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", help="a collection in place of pictures that are made: MNIST's images in IDX, say")
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--side", type=int, default=28)
    parser.add_argument("--landmarks", type=int, default=1000)
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--subset", type=int, default=5000, help="samples whose whole kernel matrix is formed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    m, k = options.landmarks, options.components
    with folder(options.directory) as place:
        source = options.source
        if source is None:
            source = str(place / "strokes.npy")
            np.save(source, np.concatenate(list(strokes(options.samples, options.side))))
        collection = streampca.open_collection(source)
        n, p = collection.n_samples, collection.n_features
        jobs = {
            f"linear, {m} features": partial(in_fresh_process, linear, n, m, k),
            "products alone": partial(in_fresh_process, products, n, p, m),
            f"kernel PCA, {m} landmarks": partial(in_fresh_process, kernel, source, m, k),
        }
        found = alternating(options.rounds, jobs)
        few = collection.as_images(collection.read(slice(0, min(n, options.subset))))
        ratios = residuals(few, min(m, len(few) // 2), k)
    times = [float(np.median([seconds for seconds, _ in each])) for each in found.values()]
    peaks = [max((peak or 0) for _, peak in each) for each in found.values()]
    beside = (times[2] - times[1]) / times[0]
    print(machine())
    cells = [(name, f"{taken:.1f}", mib(peak or None)) for name, taken, peak in zip(found, times, peaks, strict=True)]
    print_table((f"{n} x {p}, k = {k}", "CPU s", "peak, MiB"), cells)
    print(f"beside its products, kernel PCA takes {beside:.2f} times the linear fit (at most {MOST:g})\n")
    cells = [(str(at + 1), f"{ratio:.2f}") for at, ratio in enumerate(ratios)]
    print_table(("component", "reported / exact residual"), cells)
    wrong = not all(NEAR[0] <= ratio <= NEAR[1] for ratio in ratios[2:])
    return int(beside > MOST or peaks[2] > 512 * MIB or wrong)


if __name__ == "__main__":
    sys.exit(main())
