"""Two supervised axes beside two principal ones, by 5 nearest neighbours along them; and what discriminants cost.

Axes are learned from the training half alone, seed by seed, and neighbours are looked for along them. Digits are
scikit-learn's, or those of an ``.npz`` file of images and labels. Two classes have one axis by their kernel alone; with
the identity added to it, which tells all samples apart, a second. Axes in the features of a kernel are of an rbf, by so
many landmarks: one axis for two classes, too. The other table is of a fit of discriminants beside
one of principal components, in turns, on the same pictures:

    python benchmarks/supervised.py                                      # ends with 1 if ten digits gain nothing
    python benchmarks/supervised.py --digits zip_train.npz --samples 0   # the accuracies alone
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from fresh import alternating, machine, print_table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from synthetic import strokes

import streampca
from streampca.preprocessing.kernels import Kernel

Array = npt.NDArray[Any]

SEEDS = range(5)
MOST = 1.5  # times a fit of principal components
PROBLEMS = {"2 against 3": (2, 3), "ten digits": tuple(range(10))}
MOST_TARGETS = 2000  # largest number of samples for a kernel with the identity added
# Name of axes in the features of an rbf kernel: multiple of gamma="auto".
KERNELS = {"supervised, rbf kernel": 1.0, "supervised, rbf of half the width": 4.0}


def axes_of(name: str, x: Array, y: Array, landmarks: int) -> Any:
    """Learn two axes, or one where there is only one."""
    if name == "principal":
        return streampca.PCA(2).fit(x)
    if name == "discriminants":
        return streampca.FisherDiscriminant(min(2, len(np.unique(y)) - 1), shrinkage=0.01).fit(x, y)
    target = y
    if name == "supervised, two axes":
        target = np.hstack([y[:, None] == np.unique(y), np.eye(len(y))]).astype(float)
    count = 1 if target is y and len(np.unique(y)) == 2 else 2
    if name in KERNELS:
        gamma = KERNELS[name] * Kernel("rbf").resolved(x[:1000]).gamma
        chosen = landmarks if landmarks < len(x) else None
        return streampca.SupervisedPCA(count, kernel="rbf", gamma=gamma, landmarks=chosen).fit(x, target)
    return streampca.SupervisedPCA(count).fit(x, target)


def accuracy(name: str, x: Array, y: Array, seed: int, landmarks: int) -> float:
    """Return the share of test samples that 5 nearest training samples along the axes classify correctly."""
    train, test, train_labels, test_labels = train_test_split(x, y, test_size=0.5, random_state=seed, stratify=y)
    axes = axes_of(name, train, train_labels, landmarks)
    neighbours = KNeighborsClassifier(5).fit(axes.transform(train), train_labels)
    return float(neighbours.score(axes.transform(test), test_labels))


def accuracies(x: Array, y: Array, landmarks: int) -> bool:
    """Print the accuracies of every seed; return whether supervised axes of ten digits are better."""
    rows, better = [], True
    for problem, labels in PROBLEMS.items():
        some = np.isin(y, labels)
        names = ["principal", "supervised", *KERNELS, "discriminants"]
        if some.sum() <= MOST_TARGETS and len(labels) == 2:
            names.insert(2, "supervised, two axes")
        found = {name: [accuracy(name, x[some], y[some], seed, landmarks) for seed in SEEDS] for name in names}
        for name, values in found.items():
            difference = statistics.mean(values) - statistics.mean(found["principal"])
            better &= difference > 0 or name != "supervised" or len(labels) == 2
            cells = [f"{value:.4f}" for value in values]
            rows.append([f"{problem}: {name}", *cells, f"{statistics.mean(values):.4f}", f"{difference:+.4f}"])
    print_table(["5 neighbours on two axes", *(f"seed {seed}" for seed in SEEDS), "mean", "to principal"], rows)
    return better


def seconds(kind: Any, x: Array, labels: Array) -> float:
    """Return the seconds of a fit."""
    began = time.perf_counter()
    streampca.fit(x, kind, target=labels if kind.target_rule else None)
    return time.perf_counter() - began


def costs(n: int, side: int, rounds: int) -> bool:
    """Print the times of fits in turns; return whether discriminants keep within their share."""
    pictures = np.concatenate(list(strokes(n, side)))
    labels = np.arange(n) % 10
    # Some pixels are black in every picture, so that discriminants need shrinkage.
    kinds = (streampca.PCA(9), streampca.FisherDiscriminant(9, shrinkage=0.01), streampca.SupervisedPCA(9))
    found = alternating(rounds, {each.kind: partial(seconds, each, pictures, labels) for each in kinds})
    median = {kind: statistics.median(values) for kind, values in found.items()}
    rows = [[kind, f"{value:.2f}", f"{value / median['pca']:.2f}"] for kind, value in median.items()]
    print_table([f"{n} x {side * side}", "fit, s", "to pca"], rows)
    return median["fisher-discriminant"] <= MOST * median["pca"]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", help=".npz of images and labels; scikit-learn's digits by default")
    parser.add_argument("--landmarks", type=int, default=1000, help="of the kernel; all samples where these are fewer")
    parser.add_argument("--samples", type=int, default=200_000, help="of the second table; 0 for none")
    parser.add_argument("--side", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print(machine())
    digits = load_digits() if asked.digits is None else np.load(asked.digits)
    images, labels = digits["images"], digits["target" if asked.digits is None else "labels"]
    kept = accuracies(images.reshape(len(images), -1), labels, asked.landmarks)
    kept &= not asked.samples or costs(asked.samples, asked.side, asked.rounds)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
