"""Supervised principal components beside regression on principal components.

Held-out samples are predicted, seed by seed: R^2 of a planted problem, in which 30 of so many features follow a number
and the others follow stronger things that have nothing to do with it; and the share of two digits told apart by a
number above or below the middle, with two axes of a hundred training digits. Digits are scikit-learn's, or those of an
``.npz`` file of images and labels. Principal components are as many, and as many as predict the held-out samples best,
which favours them. With faces, the third problem is the brightness of a patch at one eye, of people not seen before, by
two axes of the pixels at least 5 away from it. The other table is of the planted problem:

    python benchmarks/screening.py                              # ends with 1 if supervised components are not better
    python benchmarks/screening.py --digits zip_train.npz --features 2000 --faces "orl/s*/*.pgm"
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from fresh import machine, print_table
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

import streampca

Array = npt.NDArray[Any]

SEEDS = range(5)
EYE, APART, IMAGES_EACH = (slice(40, 50), slice(20, 40)), 5, 10  # of the faces of ORL
COMPONENTS = (1, 2, 5, 10, 20, 50)  # of regression on principal components
FOLLOWING = 30  # features that follow the number
WAYS = ("supervised", "as many principal", "best number of principal")
CLEAR = 0.1  # R^2 by which supervised components are to be better


def planted(n: int, p: int, seed: int) -> tuple[Array, Array]:
    """Return samples and the number that few features follow; the others follow four stronger ones."""
    rng = np.random.default_rng(seed)
    number, x = rng.normal(size=n), rng.normal(size=(n, p))
    x[:, :FOLLOWING] += 0.8 * number[:, None]
    x[:, FOLLOWING:] += rng.normal(size=(n, 4)) @ rng.normal(size=(4, p - FOLLOWING))
    return x, number + 0.5 * rng.normal(size=n)


def r_squared(found: Array, y: Array) -> float:
    """Return the share of the variance that is predicted."""
    return float(1 - np.sum((y - found) ** 2) / np.sum((y - y.mean()) ** 2))


def accuracy(found: Array, y: Array) -> float:
    """Return the share of two numbers that predictions lie nearer to."""
    middle = (y.min() + y.max()) / 2
    return float(np.mean((found > middle) == (y > middle)))


def on_components(x: Array, y: Array, other: Array, count: int) -> Array:
    """Predict by regression on principal components of all features."""
    model = streampca.PCA(count).fit(x)
    found: Array = LinearRegression().fit(model.transform(x), y).predict(model.transform(other))
    return found


def compared(train: Array, test: Array, numbers: Array, truth: Array, judge: Any, k: int) -> tuple[list[float], Any]:
    """Return how well held-out samples are predicted in each way, and the fit of supervised components."""
    fitted = streampca.SupervisedPrincipalComponents(k).fit(train, numbers)
    most = min(train.shape) - 1
    others = {count: judge(on_components(train, numbers, test, count), truth) for count in COMPONENTS if count <= most}
    return [judge(fitted.predict(test), truth), others[k], max(others.values())], fitted


def faces(source: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """Return pixels of half of the people, those of the other half, and the brightness of a patch in both."""
    images = np.asarray(streampca.open_collection(source)).astype(np.float64)
    rows, columns = EYE
    around = np.ones(images.shape[1:], bool)
    around[rows.start - APART : rows.stop + APART, columns.start - APART : columns.stop + APART] = False
    person = np.arange(len(images)) // IMAGES_EACH
    half = np.random.default_rng(seed).permutation(person[-1] + 1)[: (person[-1] + 1) // 2]
    x, y, train = images[:, around], images[:, rows, columns].mean(axis=(1, 2)), np.isin(person, half)
    return x[train], x[~train], y[train], y[~train]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", help=".npz of images and labels; scikit-learn's digits by default")
    parser.add_argument("--faces", help="images of faces, ten of each person in turn, 112 x 92")
    parser.add_argument("--features", type=int, default=5000, help="of the planted problem")
    parser.add_argument("--samples", type=int, default=100, help="to learn from")
    asked = parser.parse_args()
    print(machine())
    digits = load_digits() if asked.digits is None else np.load(asked.digits)
    images, labels = digits["images"], digits["target" if asked.digits is None else "labels"]
    some = np.isin(labels, (2, 3))
    x, y = images[some].reshape(some.sum(), -1).astype(np.float64), labels[some].astype(np.float64)
    rows: dict[str, list[list[float]]] = {"planted": [], "2 against 3": []} | ({"an eye": []} if asked.faces else {})
    errors, kept = [], []
    for seed in SEEDS:
        many, number = planted(asked.samples + 1000, asked.features, seed)
        n = asked.samples
        found, fitted = compared(many[:n], many[n:], number[:n], number[n:], r_squared, 1)
        rows["planted"].append(found)
        errors.append(1 - fitted.cv_error_.min())
        kept.append(f"{fitted.kept_[:FOLLOWING].sum()} + {fitted.kept_[FOLLOWING:].sum()}")
        train, test, numbers, truth = train_test_split(x, y, train_size=n, random_state=seed, stratify=y)
        rows["2 against 3"].append(compared(train, test, numbers, truth, accuracy, 2)[0])
        if asked.faces:
            rows["an eye"].append(compared(*faces(asked.faces, seed), r_squared, 2)[0])
    table = [
        [f"{name}: {way}", *(f"{value:.4f}" for value in values), f"{statistics.mean(values):.4f}"]
        for name, seeds in rows.items()
        for way, values in zip(WAYS, zip(*seeds, strict=True), strict=True)
    ]
    print_table(["held-out samples", *(f"seed {seed}" for seed in SEEDS), "mean"], table)
    cells = [["R^2 by cross-validation", *(f"{value:.4f}" for value in errors), f"{statistics.mean(errors):.4f}"]]
    cells.append(["features kept, planted and others", *kept, ""])
    print_table(["planted", *(f"seed {seed}" for seed in SEEDS), "mean"], cells)
    gained = [own - best for own, _, best in rows["planted"]]
    sys.exit(0 if min(gained) > CLEAR else 1)


if __name__ == "__main__":
    main()
