"""Compare the versions in this environment with the lower bounds of pyproject.toml.

The oldest Python that is promised must get exactly these. Newer ones get the lowest versions that have wheels for them.
"""

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version


def bounds(project: dict) -> dict[str, Version]:
    """Return the lower bound of each package that the package or its tests need."""
    listed = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return {
        requirement.name: max(Version(part.version) for part in requirement.specifier)
        for requirement in map(Requirement, listed)
        if requirement.specifier
    }


def main() -> None:
    """Exit with the bounds that differ."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    exact = sys.version_info[:2] == Version(project["requires-python"].removeprefix(">=")).release[:2]
    wrong = []
    for name, bound in bounds(project).items():
        installed = Version(version(name))
        if installed < bound or (exact and installed.release[: len(bound.release)] != bound.release):
            wrong.append(f"{name}>={bound} is the bound, and {installed} the lowest version for this Python")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
