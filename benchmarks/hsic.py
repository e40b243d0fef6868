"""HSIC: its level and power as a test, features beside exact values, and a million samples within a budget.

Ends with 1 where a figure misses what is promised.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from fresh import folder, in_fresh_process, machine, measured, mib, print_table, tell
from sklearn.metrics.pairwise import rbf_kernel

from streampca import hsic

Float64 = npt.NDArray[np.float64]


def definition(x: Float64, y: Float64, gammas: tuple[float, float]) -> tuple[float, float]:
    """Return the biased and the unbiased estimate of whole kernel matrices by their definitions."""
    k, m = rbf_kernel(x, gamma=gammas[0]), rbf_kernel(y, gamma=gammas[1])
    n = len(k)
    centred = k - k.mean(axis=0)
    centred -= centred.mean(axis=1)[:, None]
    biased = float(np.vdot(centred, m)) / (n - 1) ** 2
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    a, b = k.sum(axis=0), m.sum(axis=0)
    pairs = float(np.vdot(k, m)) + a.sum() * b.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * float(a @ b)
    return biased, pairs / (n * (n - 3))


def weakly_dependent(n: int, seed: int = 0, p: int = 5) -> tuple[Float64, Float64]:
    """Return float32 samples whose first values depend on each other weakly and not linearly."""
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(n, p)), random.normal(size=(n, p))
    y[:, 0] += 1.5 * np.cos(2 * x[:, 0])
    return x.astype(np.float32), y.astype(np.float32)


def rejected(count: int, n: int) -> int:
    """Return how many independent pairs, seeds 0 to count - 1, are rejected at 5 %."""
    found = 0
    for seed in range(count):
        tell(f"independent pair {seed + 1} of {count}")
        random = np.random.default_rng(seed)
        x, y = random.normal(size=(n, 2)), random.exponential(size=(n, 3))
        found += hsic(x, y, random_state=seed).p_value <= 0.05  # type: ignore[operator]
    tell("")
    return found


def power(count: int, n: int) -> tuple[float, float]:
    """Return the shares of uncorrelated pairs on a noisy circle that rbf and linear kernels detect."""
    found = np.zeros((count, 2), bool)
    for seed in range(count):
        tell(f"dependent pair {seed + 1} of {count}")
        random = np.random.default_rng(seed)
        angle = random.uniform(0, 2 * np.pi, (n, 1))
        x, y = np.cos(angle), np.sin(angle) + 0.1 * random.normal(size=(n, 1))
        linear = hsic(x, y, kernel="linear", y_kernel="linear", random_state=seed)
        tests = (hsic(x, y, random_state=seed), linear)
        found[seed] = [each.p_value <= 0.05 for each in tests]  # type: ignore[operator]
    tell("")
    by_rbf, by_line = found.mean(axis=0)
    return float(by_rbf), float(by_line)


def cases(n: int) -> list[list[str]]:
    """Return name, HSIC, p-value and correlation of three cases."""
    random = np.random.default_rng(0)
    x = random.uniform(-4 * np.pi, 4 * np.pi, (n, 1))
    others = {"independent": random.uniform(-1, 1, (n, 1)), "x2 = sin x1": np.sin(x), "x2 = 2 x1": 2 * x}
    rows = []
    for name, y in others.items():
        found = hsic(x, y, gamma=0.5)
        correlation = abs(np.corrcoef(x.T, y.T)[0, 1])
        rows.append([name, f"{found.statistic:.5f}", f"{found.p_value:.3f}", f"{correlation:.3f}"])
    return rows


def written(where: Path, n: int) -> tuple[Path, Path]:
    """Store samples block by block, each made from its own seed."""
    paths = where / f"x{n}.npy", where / f"y{n}.npy"
    if all(path.exists() for path in paths):
        return paths
    files = [np.lib.format.open_memmap(path, "w+", np.float32, (n, 5)) for path in paths]
    for number, start in enumerate(range(0, n, 50_000)):
        some = slice(start, min(start + 50_000, n))
        for file, rows in zip(files, weakly_dependent(some.stop - start, seed=number), strict=True):
            file[some] = rows
    return paths


def of_many(paths: tuple[Path, Path], options: dict[str, Any]) -> tuple[Any, float, int | None, int]:
    """Return the result of one call on stored samples, with its time, peak and memory estimate."""
    hsic(np.eye(60), np.eye(60), gamma=1.0, y_gamma=1.0, permutations=1, method="landmarks")  # imports, and BLAS
    found, seconds, peak = measured(lambda: hsic(*map(str, paths), memory="512MiB", **options))
    return found.to_json(), seconds, peak, found.plan.memory_estimate.total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200, help="independent pairs")
    parser.add_argument("--samples", type=int, default=5000, help="of the comparison with exact values")
    parser.add_argument("--many", type=int, default=10**6, help="samples of the large collection")
    parser.add_argument("--features", type=int, default=4096, help="random features a side, of the comparison")
    parser.add_argument("--draws", type=int, default=3, help="draws of samples, and of landmarks and features")
    parser.add_argument("--directory", type=Path, help="keep the data here")
    asked = parser.parse_args()
    print(machine(), "\n")
    missed = []

    def promise(kept: bool, what: str) -> None:
        if not kept:
            missed.append(what)

    count = rejected(asked.pairs, 100)
    print(f"independent pairs rejected at 5 %: {count} of {asked.pairs}")
    promise(asked.pairs != 200 or 3 <= count <= 19, "level")
    by_rbf, by_line = power(min(50, asked.pairs), 120)
    print(f"power on a noisy circle of 120 samples: {by_rbf:.2f}; of the norm of the covariance: {by_line:.2f}\n")
    promise(by_rbf > 0.9, "power")
    rows = cases(500)
    print_table(["500 samples", "HSIC", "p", "correlation"], rows)
    promise(float(rows[0][1]) < float(rows[1][1]) < float(rows[2][1]), "three cases")
    promise(float(rows[0][2]) > 0.05 > float(rows[1][2]), "the sine")

    x, y = weakly_dependent(asked.samples)
    exact = hsic(x, y, permutations=0, method="exact")
    gammas: Any = exact.gammas
    direct = definition(x.astype(np.float64), y.astype(np.float64), gammas)
    given = {"permutations": 0, "gamma": gammas[0], "y_gamma": gammas[1]}
    off = max(abs(found / wanted - 1) for found, wanted in zip((exact.biased, exact.unbiased), direct, strict=True))
    print(f"\nexact, {asked.samples} samples: {exact.biased:.6g}, unbiased {exact.unbiased:.6g}; off by {off:.1e}")
    print(f"the biased estimate is {100 * (exact.biased / exact.unbiased - 1):.0f} % high\n")
    promise(off < 1e-10, "the definition")
    errors = {}
    for name, options, limit in (
        ("200 landmarks", {"method": "landmarks"}, 0.02),
        (f"{asked.features} random features", {"method": "fourier", "random_features": asked.features}, 0.05),
    ):
        found = [hsic(x, y, random_state=seed, **given, **options) for seed in range(asked.draws)]
        errors[name] = [100 * (each.biased / exact.biased - 1) for each in found]
        apart = [100 * (each.unbiased / exact.unbiased - 1) for each in found]
        errors[f"{name}, unbiased"] = apart
        promise(asked.samples != 5000 or max(map(abs, errors[name])) <= 100 * limit, name)
    print_table(
        [f"off by, %, of {asked.draws} draws", "mean", "least", "most"],
        [
            [name, *(f"{value:+.2f}" for value in (np.mean(all_), min(all_), max(all_)))]
            for name, all_ in errors.items()
        ],
    )

    spread = np.array([_estimates(asked.samples, 1000 + seed, given) for seed in range(asked.draws)])
    print(f"\n{asked.draws} other draws of {asked.samples} samples, exact: ", end="")
    print(", ".join(f"{name} {a:.6g} +- {s:.2g}" for name, a, s in zip(
        ("biased", "unbiased"), spread.mean(axis=0), spread.std(axis=0, ddof=1), strict=True)), "\n")  # fmt: skip
    rows = []
    with folder(asked.directory) as where:
        paths = written(where, asked.many)
        for name, options in (
            ("200 landmarks", {"method": "landmarks"}),
            ("512 random features", {"method": "fourier", "random_features": 512}),
            ("200 landmarks, tested", {"method": "landmarks", "permutations": 200}),
        ):
            told, seconds, peak, estimate = in_fresh_process(of_many, paths, given | options)
            values = [f"{told[key]:.6g}" for key in ("biased", "unbiased")]
            tested = "" if told["p_value"] is None else f"{told['p_value']:.4f}"
            rows.append([name, *values, tested, f"{seconds:.1f}", mib(peak), mib(estimate)])
            promise(peak is None or peak <= 512 * 2**20, "the budget")
            promise(peak is None or peak <= estimate, "the memory estimate")
    print_table([f"{asked.many} samples", "biased", "unbiased", "p", "s", "peak, MiB", "estimate"], rows)
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


def _estimates(n: int, seed: int, given: dict[str, Any]) -> tuple[float, float]:
    found = hsic(*weakly_dependent(n, seed), method="exact", **given)
    return found.biased, found.unbiased


if __name__ == "__main__":
    main()
