"""Embeddings of a collection by each kind, beside scikit-learn's of samples of it.

Each runs in a fresh process within a budget. The trustworthiness of 12 neighbours among the scores is then
measured on a few samples of 5000: that of its coordinates, that of scikit-learn's method of the same
parameters fitted to this sample alone, and that of the first two principal components. Spectral clustering is compared
with k-means of the same scores by the adjusted Rand index to labels.

    python benchmarks/embeddings.py train-images-idx3-ubyte.gz --labels train-labels-idx1-ubyte.gz
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
from fresh import folder, in_fresh_process, machine, measured, mib, print_table
from sklearn.cluster import KMeans
from sklearn.manifold import Isomap, LocallyLinearEmbedding, SpectralEmbedding, trustworthiness
from sklearn.metrics import adjusted_rand_score

import streampca
from streampca.units import GIB

Array = npt.NDArray[Any]

MEMORY, MOST_CPU = "1GiB", 180.0
NEIGHBORS, JUDGED, SAMPLE, SAMPLES = 15, 12, 5000, 3
LESS = 0.02  # trustworthiness that the whole collection may lose to scikit-learn's embedding of a sample
BETTER = 0.2  # adjusted Rand index above that of k-means
LARGEST: dict[str, Any] = {"n_neighbors": NEIGHBORS, "largest_component": True, "pca_components": 50}
KINDS = {
    "isomap": streampca.Isomap(landmarks=300, **LARGEST),
    "spectral-embedding": streampca.SpectralEmbedding(**LARGEST),
    "locally-linear-embedding": streampca.LocallyLinearEmbedding(landmarks=8000, reg=0.1, **LARGEST),
}
THEIRS = {
    "isomap": lambda: Isomap(n_neighbors=NEIGHBORS),
    "spectral-embedding": lambda: SpectralEmbedding(
        affinity="nearest_neighbors", n_neighbors=NEIGHBORS + 1, random_state=0
    ),
    "locally-linear-embedding": lambda: LocallyLinearEmbedding(n_neighbors=NEIGHBORS, reg=0.1, random_state=0),
}


def embedded(source: str, kind: Any, output: Path) -> tuple[float, int | None]:
    """Embed a collection; return the CPU seconds that it took, and its peak."""
    began = time.process_time()
    _, _, peak = measured(partial(streampca.fit, source, kind, memory=MEMORY, output=output, overwrite=True))
    return time.process_time() - began, peak


def trusted(scores: Array, coordinates: Array) -> float:
    """Return the trustworthiness of coordinates."""
    return float(trustworthiness(scores, coordinates, n_neighbors=JUDGED))


def main() -> int:
    """Print both tables; return 1 if a figure misses what is promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--labels", help="a label a sample, for the clusters")
    parser.add_argument("--directory", type=Path)
    asked = parser.parse_args()
    print(machine())
    missed, rows = False, []
    with folder(asked.directory) as place:
        scores = None
        for kind, described in KINDS.items():
            cpu, peak = in_fresh_process(embedded, asked.source, described, place / f"{kind}.zarr")
            model: Any = streampca.load(place / f"{kind}.zarr")
            if scores is None:
                scores = np.asarray(model.pca.transform(asked.source))
            kept = model.embedded_samples
            cells, theirs, plain = [], [], []
            for seed in range(SAMPLES):
                some = np.sort(np.random.default_rng(seed).choice(len(kept), min(SAMPLE, len(kept)), replace=False))
                own = scores[kept[some]]
                cells.append(trusted(own, model.embedding[some]))
                theirs.append(trusted(own, THEIRS[kind]().fit_transform(own)))
                plain.append(trusted(own, own[:, :2]))
            good = all(a >= b - LESS and a > c for a, b, c in zip(cells, theirs, plain, strict=True))
            missed |= not good or cpu > MOST_CPU or (peak or 0) > GIB
            listed = [" ".join(f"{value:.3f}" for value in values) for values in (cells, theirs, plain)]
            rows.append([kind, f"{cpu:.0f}", mib(peak), str(len(kept)), *listed])
        print_table(["kind", "CPU, s", "peak, MiB", "samples", "trustworthiness", "scikit-learn", "components"], rows)
        if asked.labels is not None and scores is not None:
            labels, rows = np.asarray(streampca.open_collection(asked.source, labels=asked.labels).labels), []
            for seed in range(SAMPLES):
                clustering = streampca.SpectralClustering(10, random_state=seed, **LARGEST)
                cpu, _ = in_fresh_process(embedded, asked.source, clustering, place / "c.zarr")
                clustered: Any = streampca.load(place / "c.zarr")
                own = labels[clustered.embedded_samples]
                ours = adjusted_rand_score(own, clustered.labels)
                means = adjusted_rand_score(labels, KMeans(10, n_init=10, random_state=seed).fit_predict(scores))
                rows.append([str(seed), f"{cpu:.0f}", f"{ours:.3f}", f"{means:.3f}"])
            print_table(["seed", "CPU, s", "spectral clustering", "k-means"], rows)
            gain = np.mean([float(row[2]) - float(row[3]) for row in rows])
            print(f"mean gain {gain:.3f}")
            missed |= bool(gain < BETTER)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
