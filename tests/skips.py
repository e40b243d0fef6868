"""Reasons to skip a test: those that CONTRIBUTING.md lists. In CI a test that is skipped for another reason fails."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).parents[1]
SECTION = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### Tests that are skipped\n")[2]
LISTED = re.findall(r"^\| `(.+?)` \|", SECTION.partition("\n## ")[0], re.MULTILINE)  # three dots stand for any text
_PATTERN = re.compile("|".join(re.escape(reason).replace(re.escape("..."), ".*") for reason in LISTED))

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def failing_if_unlisted(report: Report) -> Report:
    """Return the report, as one of a failure where CI skipped a test for a reason that is not listed."""
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not _PATTERN.fullmatch(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped, for a reason that CONTRIBUTING.md does not list: {reason}"
    return report
