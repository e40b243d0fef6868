"""Run scikit-learn's own tests of its estimators on this package's, through the adapters.

    python tests/sklearn_suite.py {decomposition,manifold} [options of pytest]

The tests are those of the installed scikit-learn, float32 included. `sklearn_failures.yaml` lists those that fail, each
with its reason, and those left out because they use none of the estimators; the run fails where another test fails, or
a listed one passes. The script is a pytest plugin as well: it puts the adapters in the place of scikit-learn's classes
before the tests import them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import pytest
import sklearn
import yaml

HERE = Path(__file__).parent
# package of scikit-learn -> its modules of tests, and the adapters of its estimators
SUITES = {
    "decomposition": (
        ("test_pca", "test_incremental_pca", "test_kernel_pca"),
        {"PCA": "sklearn_adapter", "IncrementalPCA": "sklearn_adapter", "KernelPCA": "sklearn_kernel_adapter"},
    ),
    "manifold": (
        ("test_isomap", "test_locally_linear", "test_spectral_embedding"),
        {
            "Isomap": "sklearn_manifold_adapter",
            "LocallyLinearEmbedding": "sklearn_manifold_adapter",
            "SpectralEmbedding": "sklearn_spectral_adapter",
        },
    ),
}
OURS = ("estimators", "streampca")
LISTED = yaml.safe_load((HERE / "sklearn_failures.yaml").read_text())


def pytest_configure():
    for package, (_, adapters) in SUITES.items():
        replaced = import_module(f"sklearn.{package}")
        for name, adapter in adapters.items():
            setattr(replaced, name, getattr(import_module(adapter), name))


def tests_ours(module):
    """Return whether a module of tests has the adapters in the place of scikit-learn's classes."""
    return all(
        vars(module).get(name, ours) is ours and getattr(import_module(f"sklearn.{package}"), name) is ours
        for package, (_, adapters) in SUITES.items()
        for name, ours in ((name, getattr(import_module(adapter), name)) for name, adapter in adapters.items())
    )


def pytest_collection_modifyitems(config, items):
    """Leave out tests of scikit-learn's own functions, and expect the listed tests to fail; mark tests of ours."""
    modules = {item.path.stem for item in items}
    elsewhere = [item for item in items if f"{item.path.stem}::{item.originalname}" in LISTED["no_estimator"]]
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = [item for item in items if item not in elsewhere]
    unused = {pattern for entry in LISTED["failures"] for pattern in entry["tests"]}
    unused = {pattern for pattern in unused if pattern.partition("::")[0] in modules}
    listed = 0
    for item in items:
        if tests_ours(item.module):
            item.user_properties.append(OURS)  # which workers report, too
        name = f"{item.path.stem}::{item.name}"
        for entry in LISTED["failures"]:
            found = [pattern for pattern in entry["tests"] if fnmatchcase(name, pattern)]
            if found:
                kinds = pytest.fail.Exception if entry.get("did_not_raise") else None
                runs = not entry.get("decided_by_rounding")
                item.add_marker(pytest.mark.xfail(reason=entry["reason"], raises=kinds, run=runs, strict=True))
                unused.difference_update(found)
                listed += 1
                break
    if unused and not config.option.keyword:
        raise pytest.UsageError(f"no test is called {', '.join(sorted(unused))}; take it off sklearn_failures.yaml.")


def pytest_terminal_summary(terminalreporter):
    reports = {name: terminalreporter.stats.get(name, ()) for name in ("passed", "xfailed", "failed")}
    counts = Counter({name: len(found) for name, found in reports.items()})
    ours = sum(OURS in report.user_properties for found in reports.values() for report in found)
    terminalreporter.write_line(
        f"scikit-learn {sklearn.__version__} (list of {LISTED['scikit-learn']}): {sum(counts.values())} entries, "
        f"{counts['passed']} pass, {counts['xfailed']} listed, {counts['failed']} fail otherwise; {ours} test the "
        "estimators of this package"
    )


def main(options):
    """Run them in a folder of scikit-learn's, whose fixtures they need, by none of our options."""
    os.environ["SKLEARN_RUN_FLOAT32_TESTS"] = "1"
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    package, *options = options
    tests = [f"sklearn.{package}.tests.{module}" for module in SUITES[package][0]]
    plain = ["-c", os.devnull, "--rootdir", str(Path(sklearn.__file__).parent), "-p", "no:cacheprovider", "-q"]
    plugin = ["-p", Path(__file__).stem]  # by its name, so that workers of pytest-xdist load it, too
    return pytest.main([*plain, *plugin, "--tb=short", "--pyargs", *tests, *options])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
