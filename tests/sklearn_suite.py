"""Run scikit-learn's own tests of PCA, IncrementalPCA and KernelPCA on this package's, through the adapters.

    python tests/sklearn_suite.py [options of pytest]

The tests are those of the installed scikit-learn, float32 included. `sklearn_failures.yaml` lists those that fail, each
with its reason; the run fails where another test fails, or a listed one passes. The script is a pytest plugin as well:
it puts the adapter in the place of both classes before the tests import them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import sklearn
import yaml

HERE = Path(__file__).parent
MODULES = ("test_pca", "test_incremental_pca", "test_kernel_pca")
LISTED = yaml.safe_load((HERE / "sklearn_failures.yaml").read_text())


def pytest_configure():
    import sklearn.decomposition as replaced
    from sklearn_adapter import PCA, IncrementalPCA
    from sklearn_kernel_adapter import KernelPCA

    replaced.PCA, replaced.IncrementalPCA, replaced.KernelPCA = PCA, IncrementalPCA, KernelPCA


def pytest_collection_modifyitems(items):
    """Expect the listed tests to fail."""
    unused = {pattern for entry in LISTED["failures"] for pattern in entry["tests"]}
    listed = 0
    for item in items:
        name = f"{item.path.stem}::{item.name}"
        for entry in LISTED["failures"]:
            found = [pattern for pattern in entry["tests"] if fnmatchcase(name, pattern)]
            if found:
                kinds = pytest.fail.Exception if entry.get("did_not_raise") else None
                item.add_marker(pytest.mark.xfail(reason=entry["reason"], raises=kinds, strict=True))
                unused.difference_update(found)
                listed += 1
                break
    if unused and len({item.path for item in items}) == len(MODULES):
        raise pytest.UsageError(f"no test is called {', '.join(sorted(unused))}; take it off sklearn_failures.yaml.")


def pytest_terminal_summary(terminalreporter):
    counts = Counter({name: len(terminalreporter.stats.get(name, ())) for name in ("passed", "xfailed", "failed")})
    terminalreporter.write_line(
        f"scikit-learn {sklearn.__version__} (list of {LISTED['scikit-learn']}): {sum(counts.values())} entries, "
        f"{counts['passed']} pass, {counts['xfailed']} listed, {counts['failed']} fail otherwise"
    )


def main(options):
    """Run them in a folder of scikit-learn's, whose fixtures they need, by none of our options."""
    os.environ["SKLEARN_RUN_FLOAT32_TESTS"] = "1"
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    tests = [f"sklearn.decomposition.tests.{module}" for module in MODULES]
    plain = ["-c", os.devnull, "--rootdir", str(Path(sklearn.__file__).parent), "-p", "no:cacheprovider", "-q"]
    return pytest.main([*plain, "--tb=short", "--pyargs", *tests, *options], plugins=[sys.modules[__name__]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
