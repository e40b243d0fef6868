"""A Sphinx extension that says what scripts of the gallery are called with, and copies the report that one writes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

REPORT = Path(__file__).parents[1] / "auto_gallery" / "report.html"  # kept beside what else the scripts made


def setup(app: Sphinx) -> dict[str, Any]:
    """Have the report copied when the pages are there."""
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _copy(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        shutil.copy(REPORT, app.outdir / REPORT.name)


class Arguments:
    """The arguments of a script: a path for the one that writes a report."""

    def __call__(self, gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
        """Return them."""
        return [str(REPORT)] if Path(script_vars["src_file"]).stem == REPORT.stem else []

    def __repr__(self) -> str:
        return "Arguments()"  # Sphinx compares settings with those of the last build by their text
