"""scikit-learn's own tests of PCA, IncrementalPCA and KernelPCA pass on this package's, except for a list."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import sklearn
from sklearn_suite import HERE, LISTED


@pytest.mark.parametrize("adapter", ["sklearn_adapter.py", "sklearn_kernel_adapter.py"])
def test_the_adapter_is_thin(adapter):
    assert len((HERE / adapter).read_text().splitlines()) <= 40


# Left to a campaign: most of 228 fits of sparse samples, tests of large samples whose values quicker tests check, and
# solvers "arpack" and "full", which the adapter fits as it does "auto".
SLOW = (
    "svd_solver_auto", "n_oversamples", "test_explained_variances", "test_singular_values", "solvers_equivalence",
    "gridsearch", "arpack", "(full and not array_api)",
)  # fmt: skip
QUICK = ["-k", " and not ".join(["(not sparse or incremental or 42-1-covariance_eigh-csr_array-2-0.1)", *SLOW])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [(QUICK, (161, 19)), pytest.param([], (476, 43), marks=pytest.mark.campaign)],
    ids=["quick", "all"],
)
@pytest.mark.skipif(
    sklearn.__version__.split(".")[:2] != LISTED["scikit-learn"].split(".")[:2],
    reason=f"tests/sklearn_failures.yaml lists what fails of scikit-learn {LISTED['scikit-learn']}",
)
def test_all_but_the_listed_tests_pass(tmp_path, chosen, expected):
    run = subprocess.run(
        [sys.executable, HERE / "sklearn_suite.py", *chosen],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr
    found = re.search(r": (\d+) entries, \d+ pass, (\d+) listed", run.stdout).groups()
    assert tuple(map(int, found)) == expected
