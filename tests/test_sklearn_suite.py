"""scikit-learn's own tests of its estimators pass on this package's, except for a list."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import sklearn
from sklearn_suite import HERE, LISTED, SUITES


@pytest.mark.parametrize("adapter", sorted(HERE.glob("sklearn_*adapter.py")), ids=lambda path: path.stem)
def test_the_adapter_is_thin(adapter):
    assert len(adapter.read_text().splitlines()) <= 40


def test_few_tests_of_manifolds_are_listed():
    names = {name.partition("?")[0].partition("*")[0] for entry in LISTED["failures"] for name in entry["tests"]}
    assert len({name for name in names if name.partition("::")[0] in SUITES["manifold"][0]}) <= 12


# Left to a campaign: most of 228 fits of sparse samples, tests of large samples whose values quicker tests check, and
# solvers "arpack" and "full", which the adapter fits as it does "auto".
SLOW = (
    "svd_solver_auto", "n_oversamples", "test_explained_variances", "test_singular_values", "solvers_equivalence",
    "gridsearch", "arpack", "(full and not array_api)",
)  # fmt: skip
QUICK = ["-k", " and not ".join(["(not sparse or incremental or 42-1-covariance_eigh-csr_array-2-0.1)", *SLOW])]
# pyamg, a solver of scikit-learn's, may not be there. The others are solvers, which the adapter ignores, most tests of
# float32, and a fit of all digits.
QUICK_MANIFOLD = (
    "(not float32 or dtype) and not amg and not FW and not D-auto and not D-dense and not D-arpack and not auto-dense "
    "and not auto-arpack and not lobpcg and not csr_matrix and not both_set"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "chosen", "expected"),
    [
        ("decomposition", QUICK, (161, 22)),
        ("decomposition", ["-n", "1", "-k", "test_pca_score"], (8, 5)),
        ("manifold", ["-k", QUICK_MANIFOLD], (44, 19)),
        pytest.param("decomposition", [], (476, 48), marks=pytest.mark.campaign),
        pytest.param("manifold", ["-k", "not amg"], (169, 35), marks=pytest.mark.campaign),
    ],
    ids=["decomposition", "in a worker", "manifold", "all of decomposition", "all of manifold"],
)
@pytest.mark.skipif(
    sklearn.__version__.split(".")[:2] != LISTED["scikit-learn"].split(".")[:2],
    reason=f"tests/sklearn_failures.yaml lists what fails of scikit-learn {LISTED['scikit-learn']}",
)
def test_all_but_the_listed_tests_pass(tmp_path, package, chosen, expected):
    run = subprocess.run(
        [sys.executable, HERE / "sklearn_suite.py", package, *chosen],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr
    found = re.search(r": (\d+) entries, \d+ pass, (\d+) listed, .*; (\d+) test the estimators of", run.stdout).groups()
    assert tuple(map(int, found)) == (*expected, expected[0])
