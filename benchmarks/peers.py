"""Time, memory and error of streampca beside its peers, each in fresh processes, in alternating rounds.

Peers get their best case: arrays that are in memory before their clock starts, as float32, as float64, and as stored
(of uint8 scikit-learn makes float64 itself); ours starts from the file. So there are two ratios to our time: of their
fit alone, and with loading, on its own clock, added. Errors are those of the 1st, 10th and last variance against a
reference in float64. Run it on digits and on data with a large offset, which some automatic choices lose:

    python benchmarks/peers.py
    python benchmarks/peers.py --problem offset

or on pictures of which neither p x p nor n x n fits the budget, where several passes are made (the reference alone then
takes minutes, and 8 GB), or with many more pixels than pictures:

    python benchmarks/peers.py --problem photographs --only randomized,compressed,xeofs
    python benchmarks/peers.py --problem textures --only randomized

Peers that are not installed are named as such; `pip install dask-ml xeofs scikit-learn-intelex` adds rows.
`--only eigh,auto` takes the rows with one of these words in their name: IncrementalPCA takes minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fresh import alternating, folder, in_fresh_process, machine, measured, mib, print_table, tell, warm
from scipy.linalg import eigh
from scipy.sparse.linalg import LinearOperator, eigsh
from synthetic import Draw, clouds, npy_of, offset, photographs, strokes, textures

Floats = npt.NDArray[np.floating[Any]]


class Problem(NamedTuple):
    """Pictures, how many and how large, and the budget of our fit."""

    draw: Draw
    samples: int
    side: int
    memory: str | None = None


PROBLEMS = {
    "digits": Problem(strokes, 200_000, 28),
    "offset": Problem(offset, 20_000, 28),
    "clouds": Problem(clouds, 200_000, 32),
    "textures": Problem(textures, 1000, 512, "512 MiB"),
    "photographs": Problem(photographs, 30_000, 128, "1 GiB"),
}
OURS = "streampca.fit, from the file"
TINY = "tiny.npy"  # beside the data
BLOCK = 16_384  # rows of 28 x 28 to a block for peers that take blocks, or as many bytes of others
PANEL = 2048
DENSE = 4096  # features up to which the reference is found by LAPACK, which for more takes an hour


class Result(NamedTuple):
    """What one peer took, and the variances it found."""

    loading: float
    seconds: float
    peak: int | None
    variances: Floats


class Peer(NamedTuple):
    """One row: ``load(path)`` before the clock starts, ``fit(loaded, k)`` while it runs gives the variances.

    Ours is told the budget, too.
    """

    package: str
    load: Callable[[Path], Any]
    fit: Callable[..., Floats]


def ours(path: Path, k: int, memory: str | None = None, **options: Any) -> Floats:
    import streampca

    return streampca.fit(path, streampca.PCA(k, **options), memory=memory).explained_variance


def pca(data: Floats, k: int, solver: str) -> Floats:
    from sklearn.decomposition import PCA

    return PCA(k, svd_solver=solver, random_state=0).fit(data).explained_variance_


def incremental(data: Floats, k: int) -> Floats:
    from sklearn.decomposition import IncrementalPCA

    return IncrementalPCA(k).fit(data).explained_variance_


def incremental_blocks(path: Path, k: int) -> Floats:
    from sklearn.decomposition import IncrementalPCA

    model = IncrementalPCA(k)
    for block in blocks(path, np.float32):
        if len(block) >= k:
            model.partial_fit(block)
    return model.explained_variance_


def online(path: Path, k: int) -> Floats:
    from sklearnex.preview.decomposition import IncrementalPCA

    model = IncrementalPCA(k)
    for block in blocks(path, np.float32):
        if len(block) >= k:
            model.partial_fit(block)
    return model.explained_variance_


def dask_pca(path: Path, k: int, **options: Any) -> Floats:
    import dask.array as da
    from dask_ml.decomposition import PCA

    data = da.from_array(
        mapped(path), chunks=(block_rows(mapped(path).shape[1]), -1), name=False, asarray=False
    ).astype(np.float32)
    return PCA(k, random_state=0, **options).fit(data).explained_variance_


def dask_compressed(path: Path, k: int, iterations: int, dtype: type[np.floating[Any]] = np.float32) -> Floats:
    import dask.array as da

    data = da.from_array(
        mapped(path), chunks=(block_rows(mapped(path).shape[1]), -1), name=False, asarray=False
    ).astype(dtype)
    sizes = da.linalg.svd_compressed(data - data.mean(axis=0), k, n_power_iter=iterations, seed=0)[1].compute()
    return sizes**2 / (len(data) - 1)


def xeofs_eof(data: Floats, k: int) -> Floats:
    import xarray as xr
    import xeofs as xe

    model = xe.single.EOF(n_modes=k, random_state=0)
    places = {"sample": np.arange(len(data)), "pixel": np.arange(data.shape[1])}  # it fails where there are none
    model.fit(xr.DataArray(data, coords=places, dims=("sample", "pixel")), dim="sample")
    return model.explained_variance().values


def mapped(path: Path) -> npt.NDArray[Any]:
    """Rows of a file, (n, p), as a memory map."""
    stored = np.load(path, mmap_mode="r")
    return stored.reshape(len(stored), -1)


def blocks(path: Path, dtype: type[np.floating[Any]]) -> Iterator[Floats]:
    """Rows of a file, block by block, converted; read, since mapped pages would count as memory used."""
    (n, p), stored, offset = mapped(path).shape, mapped(path).dtype, np.load(path, mmap_mode="r").offset
    rows = block_rows(p)
    for start in range(0, n, rows):
        values = np.fromfile(path, stored, min(rows, n - start) * p, offset=offset + start * p * stored.itemsize)
        yield values.astype(dtype, copy=False).reshape(-1, p)


def block_rows(p: int) -> int:
    """Rows to a block."""
    return max(1, BLOCK * 28 * 28 // p)


def array(path: Path, dtype: type[np.floating[Any]] | None = None) -> npt.NDArray[Any]:
    """All rows of a file in memory, (n, p), as stored or converted."""
    dtype = dtype or mapped(path).dtype.type
    rows = np.empty(mapped(path).shape, dtype)
    start = 0
    for block in blocks(path, dtype):
        rows[start : start + len(block)] = block
        start += len(block)
    return rows


def itself(path: Path) -> Path:
    return path


PEERS = {
    OURS: Peer("streampca", itself, ours),
    "streampca.fit with tol=0.1, randomized": Peer("streampca", itself, partial(ours, tol=0.1, method="randomized")),
    "sklearn PCA covariance_eigh, float32 array": Peer(
        "sklearn", partial(array, dtype=np.float32), partial(pca, solver="covariance_eigh")
    ),
    "sklearn PCA covariance_eigh, float64 array": Peer(
        "sklearn", partial(array, dtype=np.float64), partial(pca, solver="covariance_eigh")
    ),
    "sklearn PCA auto, array as stored": Peer("sklearn", array, partial(pca, solver="auto")),
    "sklearn PCA randomized, float32 array": Peer(
        "sklearn", partial(array, dtype=np.float32), partial(pca, solver="randomized")
    ),
    "sklearn IncrementalPCA.fit, memory map": Peer("sklearn", mapped, incremental),
    "sklearn IncrementalPCA.partial_fit, blocks": Peer("sklearn", itself, incremental_blocks),
    "scikit-learn-intelex IncrementalPCA, blocks": Peer("sklearnex", itself, online),
    "dask-ml PCA tsqr, memory map": Peer("dask_ml", itself, partial(dask_pca, svd_solver="tsqr")),
    "dask-ml PCA randomized, memory map": Peer(
        "dask_ml", itself, partial(dask_pca, svd_solver="randomized", iterated_power=2)
    ),
    "dask svd_compressed, 2 power iterations, memory map": Peer("dask", itself, partial(dask_compressed, iterations=2)),
    "dask svd_compressed, 3 power iterations": Peer("dask", itself, partial(dask_compressed, iterations=3)),
    "dask svd_compressed, 4 power iterations, float64": Peer(
        "dask", itself, partial(dask_compressed, iterations=4, dtype=np.float64)
    ),
    "xeofs EOF, float32 array": Peer("xeofs", partial(array, dtype=np.float32), xeofs_eof),
}


def run(peer: Peer, path: Path, k: int, **words: str | None) -> Result | str:
    """Run one peer in this process, and say in words if it fails.

    Imports, and what is done once in a process, are done before on a tiny array.
    """

    def work() -> tuple[float, float, Floats]:
        began = time.perf_counter()
        data = peer.load(path)
        loaded = time.perf_counter()
        variances = peer.fit(data, k, **words)
        return loaded - began, time.perf_counter() - loaded, np.asarray(variances)

    warnings.simplefilter("ignore")  # peers' own
    try:
        peer.fit(peer.load(path.with_name(TINY)), 4)
        (loading, seconds, variances), _, peak = measured(work)
    except Exception as error:  # peers fail in their own ways, and the others are still of interest
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return Result(loading, seconds, peak, variances)


def reference(path: Path, k: int) -> Floats:
    """Leading variances by a textbook: two passes, everything in float64; kept beside the data."""
    kept = path.with_suffix(f".reference-{k}.npy")
    if not kept.exists():
        np.save(kept, computed(path, k))
    return np.load(kept)


def computed(path: Path, k: int) -> Floats:
    n, p = mapped(path).shape
    if n < p:
        return eigh(gram(path), eigvals_only=True, subset_by_index=(n - k, n - 1))[::-1] / (n - 1)
    mean = sum(block.sum(axis=0) for block in blocks(path, np.float64)) / n
    scatter = np.zeros((p, p))
    for block in blocks(path, np.float64):
        block -= mean
        for start in range(0, p, PANEL):  # a symmetric update of all at once may crash (streampca.accumulators.blas)
            scatter[start : start + PANEL] += block[:, start : start + PANEL].T @ block
    if p <= DENSE:
        return eigh(scatter, eigvals_only=True, subset_by_index=(p - k, p - 1))[::-1] / (n - 1)
    product = LinearOperator((p, p), matvec=scatter.__matmul__, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(p)
    return eigsh(product, k, ncv=6 * k, tol=1e-12, v0=start, return_eigenvectors=False)[::-1] / (n - 1)


def gram(path: Path) -> Floats:
    """Products of all pairs of rows about their mean, of as many features at a time as of rows elsewhere."""
    stored = mapped(path)
    total = np.zeros((len(stored), len(stored)))
    for start in range(0, stored.shape[1], PANEL):
        part = stored[:, start : start + PANEL].astype(np.float64)
        part -= part.mean(axis=0)
        total += part @ part.T
    return total


def row(name: str, results: list[Result], truth: Floats, baseline: float) -> list[str]:
    """One peer's medians, its time to ours, and its errors."""
    loading = statistics.median(result.loading for result in results)
    seconds = statistics.median(result.seconds for result in results)
    peaks = [result.peak for result in results if result.peak is not None]
    errors = np.abs(results[0].variances / truth - 1)[ranks(len(truth))]
    times = [f"{loading:.2f}", f"{seconds:.2f}", f"{seconds / baseline:.1f}", f"{(loading + seconds) / baseline:.1f}"]
    return [name, *times, mib(statistics.median(peaks) if peaks else None), *(f"{error:.0e}" for error in errors)]


def ranks(k: int) -> list[int]:
    """Which variances, counted from 0, are compared: the 1st, the 10th and the last."""
    return sorted({0, min(9, k - 1), k - 1})


def report(results: dict[str, list[Result | str]], truth: Floats, ours: str = OURS) -> None:
    """Print the table; what is not in it, and why."""
    whole = {name: [one for one in runs if isinstance(one, Result)] for name, runs in results.items()}
    baseline = statistics.median(result.seconds for result in whole[ours])
    headings = (
        "",
        "load s",
        "fit s",
        "to ours",
        "with load",
        "peak MiB",
        *(f"error {rank + 1}" for rank in ranks(len(truth))),
    )
    print_table(headings, [row(name, runs, truth, baseline) for name, runs in whole.items() if runs])
    for name, runs in results.items():
        for problem in sorted({one for one in runs if isinstance(one, str)}):
            print(f"{name}: failed, {problem}")


def as_json(what: str, about: str, results: dict[str, list[Result | str]], truth: Floats) -> dict[str, Any]:
    """Return what each peer took, round by round, and by how much its last variance is off, as plain data."""
    whole = {name: [one for one in runs if isinstance(one, Result)] for name, runs in results.items()}
    peers = {
        name: {
            "loading": [one.loading for one in runs],
            "seconds": [one.seconds for one in runs],
            "peaks": [one.peak for one in runs],
            "error": float(abs(runs[0].variances[-1] / truth[-1] - 1)),
        }
        for name, runs in whole.items()
        if runs
    }
    return {"what": what, "machine": about, "k": len(truth), "peers": peers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=PROBLEMS, default="digits")
    parser.add_argument("--samples", type=int, help="default: those of the problem")
    parser.add_argument("--side", type=int, help="pixels along each side of a sample, likewise")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="words, one of which a row's name has; ours always runs")
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    parser.add_argument("--json", type=Path, help="write the results there, for python -m benchmarks table")
    args = parser.parse_args()
    problem = PROBLEMS[args.problem]
    n, side, k, words = (
        args.samples or problem.samples,
        args.side or problem.side,
        args.components,
        args.only.split(","),
    )
    chosen = [name for name in PEERS if name == OURS or any(word in name for word in words)]
    installed = [name for name in chosen if find_spec(PEERS[name].package)]

    with folder(args.directory) as directory:
        path = npy_of(directory, problem.draw, n, side)
        np.save(directory / TINY, np.concatenate([*islice(problem.draw(512, 8), 512)]))
        warm(path)
        what = f"{args.problem}: {n} x {side} x {side} {mapped(path).dtype}, k = {k}"
        about = machine()  # before the rounds, whose load is not that of others
        print(f"{what}; {about}")
        tell("reference in float64")
        truth = in_fresh_process(reference, path, k)
        told = {"streampca": partial(run, memory=problem.memory)}
        jobs = {
            name: partial(in_fresh_process, told.get(PEERS[name].package, run), PEERS[name], path, k)
            for name in installed
        }
        results = alternating(args.rounds, jobs)
        report(results, truth)
        if args.json is not None:
            found = as_json(what, about, results, truth)
            args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name in chosen:
        if name not in installed:
            print(f"{name}: not installed")


if __name__ == "__main__":
    main()
