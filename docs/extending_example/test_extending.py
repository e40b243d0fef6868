"""Apply each worked diff to a copy of the package, and run its checks there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "streampca"

# diff -> the new files beside it, and their places in the package
EXAMPLES = {
    "n_init": {},
    "svd": {"svd_planning.py": "planning/svd.py", "svd_fitting.py": "fitting/methods/svd.py"},
    "probabilistic_pca": {
        "probabilistic_pca_kind.py": "kinds/probabilistic_pca.py",
        "probabilistic_pca_estimator.py": "estimators/probabilistic_pca.py",
        "probabilistic_pca_planning.py": "planning/probabilistic.py",
        "probabilistic_pca_fitting.py": "fitting/methods/probabilistic.py",
        "probabilistic_pca_model.py": "models/probabilistic_pca.py",
    },
}


@pytest.mark.parametrize(
    "name", ["n_init", *(pytest.param(name, marks=pytest.mark.slow) for name in ("svd", "probabilistic_pca"))]
)
def test_example(name, tmp_path):
    """New files in their places and the diff are all that it takes."""
    shutil.copytree(PACKAGE, tmp_path / "streampca")
    for file, place in EXAMPLES[name].items():
        shutil.copy(HERE / file, tmp_path / "streampca" / place)
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PYTHONPATH": str(tmp_path)}
    run(["git", "apply", str(HERE / f"{name}.diff")], tmp_path, outside)
    checks = shutil.copy(HERE / f"check_{name}.py", tmp_path)
    run([sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:xdist", checks], tmp_path, outside)


def run(command, folder, environment):
    """Run a command, which must succeed."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    assert done.returncode == 0, done.stdout + done.stderr
