"""CONTRIBUTING.md is true: reasons to skip tests, versions, and that each tool of CI runs before a commit, too."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from skips import LISTED, failing_if_unlisted

import streampca

HERE = Path(__file__).parent
OTHERS = {"SCIPY_ARRAY_API is not set: not checking array_api input"}  # said by scikit-learn's checks of estimators
ROOT = HERE.parent


def text(*names):
    return ROOT.joinpath(*names).read_text(encoding="utf-8")


# -- skipped tests


def reason_of(node):
    """Text of a reason, with three dots for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
    return node.value


def reasons_in(path):
    """Reasons for which a file skips tests. A missing package is none: the extra has them all."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "").startswith("skip")):
            continue
        called = ast.unparse(node.func)
        if called == "pytest.skip":
            yield reason_of(node.args[0])
        elif called in ("pytest.mark.skip", "pytest.mark.skipif"):
            yield next(reason_of(word.value) for word in node.keywords if word.arg == "reason")


def test_reasons_to_skip_are_listed_and_no_others():
    reasons = {reason for path in HERE.glob("*.py") for reason in reasons_in(path)}
    assert {re.sub(r"^\S+ is not in ", "... is not in ", reason) for reason in reasons} | OTHERS == set(LISTED)


@pytest.mark.parametrize("ci", ["true", ""])
@pytest.mark.parametrize(
    ("reason", "listed"),
    [("root may write anywhere", True), ("could not import 'xeofs'", False), ("root may write anywhere else", False)],
)
def test_ci_fails_where_a_test_is_skipped_for_another_reason(monkeypatch, ci, reason, listed):
    monkeypatch.setenv("CI", ci)
    report = pytest.CollectReport("test_some.py", "skipped", ("test_some.py", 1, f"Skipped: {reason}"), [])
    report = failing_if_unlisted(report)
    assert report.failed == (ci == "true" and not listed)
    assert reason in str(report.longrepr)


# -- versions and tools


def test_versions_are_equal():
    version = tomllib.loads(text("pyproject.toml"))["project"]["version"]
    assert version == streampca.__version__ == str(yaml.safe_load(text("CITATION.cff"))["version"])
    assert f"\n## {version} (" in text("CHANGELOG.md")


def test_ci_runs_on_the_versions_of_python_that_are_promised():
    said = tomllib.loads(text("pyproject.toml"))["project"]["classifiers"]
    promised = [line.rpartition(" ")[2] for line in said if re.search(r":: 3\.\d+$", line)]
    (job,) = yaml.safe_load(text(".github", "workflows", "ci.yml"))["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == promised
    assert job["steps"][-1] == {"run": "bash .ci/run"}


def test_tools_of_ci_run_before_a_commit():
    (repository,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    before = {" ".join(word for word in hook["entry"].split() if word[0] != "-") for hook in repository["hooks"]}
    tools = re.findall(r"^ *\"\$venv/bin/(ruff|mypy)\"( \w+)?", text(".ci", "run"), re.MULTILINE)
    assert before == {tool + command for tool, command in tools}


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", text("CONTRIBUTING.md"))
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
