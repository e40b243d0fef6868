"""Graphs of nearest neighbours, exact and by HNSW: CPU time, recall, peak memory beside its estimate, and repeats.

Scores are those of 50 components of images (`--images train-images-idx3-ubyte.gz` of MNIST), or of seeded clusters.
Each search runs in a fresh process; HNSW several times, as its graph must be the same each time. Ends with status 1 if
a peak exceeds its estimate, a repeat differs, or the recall of HNSW is below 0.99:

    python benchmarks/neighbors.py --images train-images-idx3-ubyte.gz
    python benchmarks/neighbors.py --samples 1000000 --features 3 --methods exact       # a roll, by a k-d tree
    python benchmarks/neighbors.py --parameters         # links and candidates of HNSW, of which the defaults are chosen
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from fresh import folder, in_fresh_process, machine, measured, mib, print_table, tell

LEAST_RECALL = 0.99
PARAMETERS = ((16, 100, 64), (16, 200, 64), (24, 100, 64), (32, 60, 64), (32, 100, 32), (32, 100, 64), (32, 100, 128),
              (32, 200, 64), (48, 100, 64))  # links, candidates while adding and while searching  # fmt: skip


class Made(NamedTuple):
    """A graph that was made, and what it cost."""

    cpu: float
    predicted: float
    peak: int | None
    estimate: int
    recall: float | None
    digest: str
    components: dict[str, object]


def clusters(n: int, p: int) -> npt.NDArray[np.float32]:
    """Return clusters of variances that fall as 1/i, or a roll of three features, (n, p)."""
    random = np.random.default_rng(0)
    if p == 3:
        angle, height = 1.5 * np.pi * (1 + 2 * random.random(n)), 21 * random.random(n)
        return np.column_stack([angle * np.cos(angle), height, angle * np.sin(angle)]).astype(np.float32)
    spread = 1 / np.sqrt(np.arange(1, p + 1))
    centres = 2 * random.standard_normal((10, p)) * spread
    rows: npt.NDArray[np.float32] = random.standard_normal((n, p), dtype=np.float32)
    rows *= spread.astype(np.float32)
    rows += centres.astype(np.float32)[random.integers(0, 10, n)]
    return rows


def scores(directory: Path, images: Path | None, n: int, p: int) -> Path:
    """Write the scores unless they exist, and return their path."""
    path = directory / (f"scores-{n}-{p}.npy" if images is None else f"scores-{images.name}-{p}.npy")
    if path.exists():
        return path
    if images is None:
        np.save(path, clusters(n, p))
    else:
        import streampca

        streampca.fit(images, n_components=p).write_scores(images, path)
    return path


def make(path: Path, method: str, memory: str, k: int) -> Made:
    """Make a graph, after importing everything that this needs."""
    from sklearn.neighbors import NearestNeighbors

    import streampca.fitting.neighbors
    from streampca.events import Planned

    if method == "hnsw":
        import faiss  # noqa: F401

    small = np.random.default_rng(0).random((300, 8))
    NearestNeighbors(algorithm="brute").fit(small).kneighbors(small)
    plans = []

    def listen(event: object) -> None:
        if isinstance(event, Planned):
            plans.append(event.plan)

    how = {"n_neighbors": k, "method": method, "memory": memory, "listener": listen}
    began = time.process_time()
    graph, _, peak = measured(lambda: streampca.neighbors(path, **how))
    cpu, plan = time.process_time() - began, plans[0]
    recall = graph.provenance.get("recall", {}).get("share")
    digest = hashlib.sha256(graph.indices.tobytes() + graph.distances.tobytes()).hexdigest()[:12]
    cores = plan.problem.machine.cores
    components = graph.provenance["facts"]["components"]
    return Made(cpu, cores * plan.seconds, peak, plan.memory_estimate.total, recall, digest, components)


def recalled(path: Path, links: int, adding: int, searching: int, k: int) -> tuple[float, float, float]:
    """Return the seconds of adding and of searching by HNSW with some parameters, and the recall."""
    import faiss

    rows = np.ascontiguousarray(np.load(path), np.float32)
    index = faiss.IndexHNSWFlat(rows.shape[1], links)
    index.hnsw.efConstruction, index.hnsw.efSearch = adding, searching
    faiss.omp_set_num_threads(1)
    began = time.process_time()
    index.add(rows)
    added = time.process_time()
    _, found = index.search(rows, k + 1)
    searched = time.process_time()
    chosen = np.random.default_rng(0).choice(len(rows), min(1000, len(rows)), replace=False)
    _, exact = faiss.knn(rows[chosen], rows, k + 1)
    share = np.mean([len(np.intersect1d(found[i], true)) for i, true in zip(chosen, exact, strict=True)]) / (k + 1)
    return added - began, searched - added, float(share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="images whose scores are searched; else seeded clusters")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--neighbors", type=int, default=15)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--methods", default="exact,hnsw")
    parser.add_argument("--repeats", type=int, default=3, help="of method hnsw")
    parser.add_argument("--parameters", action="store_true", help="compare parameters of HNSW instead")
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    print(machine())
    with folder(given.directory) as directory:
        path = scores(directory, given.images, given.samples, given.features)
        if given.parameters:
            _compare(path, given.neighbors)
            return
        sys.exit(_table(path, given))


def _compare(path: Path, k: int) -> None:
    """Print what parameters of HNSW cost, and the recall."""
    rows = []
    for one in PARAMETERS:
        tell(f"HNSW {one}")
        adding, searching, recall = in_fresh_process(recalled, path, *one, k)
        rows.append([" ".join(map(str, one)), f"{adding:.1f}", f"{searching:.1f}", f"{recall:.4f}"])
    print_table(["links, adding, searching", "adding, CPU s", "searching, CPU s", "recall"], rows)


def _table(path: Path, given: argparse.Namespace) -> int:
    """Print a row for each search, and return 1 if one misses what is promised."""
    rows, failed, digests = [], False, {}
    for method in given.methods.split(","):
        for number in range(given.repeats if method == "hnsw" else 1):
            tell(f"{method} {number}")
            made = in_fresh_process(make, path, method, given.memory, given.neighbors)
            failed |= made.peak is not None and made.peak > made.estimate
            failed |= made.recall is not None and made.recall < LEAST_RECALL
            failed |= digests.setdefault(method, made.digest) != made.digest
            recall = "" if made.recall is None else f"{made.recall:.4f}"
            figures = [f"{made.cpu:.1f}", f"{made.predicted:.1f}", recall, mib(made.peak), mib(made.estimate)]
            rows.append([method, *figures, made.digest, str(made.components["count"])])
    headings = ["method", "CPU, s", "predicted", "recall", "peak, MiB", "estimated", "digest", "components"]
    print_table(headings, rows)
    return int(failed)


if __name__ == "__main__":
    main()
