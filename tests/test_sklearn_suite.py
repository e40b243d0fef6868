"""scikit-learn's own tests of PCA and IncrementalPCA pass on `StreamingPCA`, but for those of a list."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import sklearn
from sklearn_suite import HERE, LISTED


def test_the_adapter_is_thin():
    assert len((HERE / "sklearn_adapter.py").read_text().splitlines()) <= 40


# Of 216 sparse fits those that differ in scale only are run on request.
QUICK = ["-k", "not test_pca_sparse[ or 42-1-"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "entries"), [(QUICK, 293), pytest.param([], 437, marks=pytest.mark.campaign)], ids=["quick", "all"]
)
@pytest.mark.skipif(
    sklearn.__version__.split(".")[:2] != LISTED["scikit-learn"].split(".")[:2],
    reason=f"tests/sklearn_failures.yaml lists what fails of scikit-learn {LISTED['scikit-learn']}",
)
def test_all_but_the_listed_tests_pass(tmp_path, chosen, entries):
    run = subprocess.run(
        [sys.executable, HERE / "sklearn_suite.py", *chosen],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr
    found = re.search(r": (\d+) entries, \d+ pass, (\d+) listed", run.stdout).groups()
    assert tuple(map(int, found)) == (entries, 60)
