"""How the documentation is built: ``sphinx-build -W --keep-going -b html docs docs/_build/html``, without a network."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from click import Choice, Context
from pygments.lexers.shell import BashLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))
os.environ.setdefault("MPLBACKEND", "agg")

from scripts import Arguments

import streampca

project = "streampca"
author = "The streampca developers"
copyright = author  # noqa: A001 - Sphinx's name
version = release = streampca.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_click",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "docstrings",
    "mathml",
    "run_keys",
    "scripts",
]
exclude_patterns = ["_build", "images", "gallery", "sg_execution_times.rst"]
templates_path = ["_templates"]
default_role = "autolink"  # `fit` in a docstring is a link where the page of such a thing exists
nitpicky = True
# Parameters, attributes, and what other packages have stand in backticks too, and have no pages here.
nitpick_ignore_regex = [
    ("py:obj", r"([A-Z]\w+\.)?[a-z_]\w*"),
    ("py:obj", r"(dask|matplotlib|numpy|xarray)\..*"),
]

# -- pages

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# -- the reference

autosummary_generate = True
autodoc_typehints = "none"  # types are in the docstrings, for people
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # the template of classes lists them
numpydoc_xref_param_type = False

# -- the gallery

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "capture_repr": ("_repr_html_",),
    "reset_argv": Arguments(),
}


def placeholders(_: Sphinx, context: Context, lines: list[str]) -> None:
    """Show what people type, as in `--resize <SIZE>` and `--anomaly <NAME>`, in place of a parameter's name."""
    shown = {
        each.name: "NAME" if isinstance(each.type, Choice) else each.make_metavar(context)
        for each in context.command.params
        if each.name
    }
    lines[:] = [re.sub(r"(?<= )<(\w+)>", lambda found: f"<{shown.get(found[1], found[1])}>", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Read blocks of commands as commands, though no prompt stands before them; name options by what they take."""
    app.add_lexer("console", BashLexer)
    app.connect("sphinx-click-process-options", placeholders)


# -- the site

html_theme = "pydata_sphinx_theme"
html_title = "streampca"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["streampca.css"]
html_show_sourcelink = False
html_theme_options: dict[str, Any] = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 4,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    # The button with a field has another name for screen readers than the one that it shows.
    "navbar_persistent": ["search-button"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
