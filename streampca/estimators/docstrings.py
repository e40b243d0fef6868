"""Docstrings of estimators, with the parameters that the description of their kind documents."""

from __future__ import annotations

import re
import textwrap
from inspect import cleandoc
from itertools import pairwise
from typing import Any

from ..kinds.description import Description, entries_in, entries_of
from .scikit_learn import TransformerBase

LINES: dict[str, Any] = {
    "width": 116, "initial_indent": "    ", "subsequent_indent": "    ", "break_on_hyphens": False,
    "break_long_words": False,
}  # fmt: skip
SECTION = re.compile(r"^\w[\w ]*\n-{3,}\n", re.MULTILINE)


def with_parameters(cls: type) -> str:
    """Return an estimator's docstring with the entries of all its parameters, in the order of its signature.

    Parameters of the kind come first, then those of all estimators, then its own.
    """
    bases = [base for base in cls.__mro__ if issubclass(base, Description)]
    entries = dict(entries_of(next(base for base in bases if not issubclass(base, TransformerBase))))
    for base in reversed(bases):  # dataclasses order fields from the last base to the class itself
        if issubclass(base, TransformerBase):
            entries |= dict(entries_in(base.__doc__))
    doc = cleandoc(cls.__doc__ or "")
    starts = [match.start() for match in SECTION.finditer(doc)]
    summary, *sections = (doc[start:end].strip() for start, end in pairwise([0, *starts, len(doc)]))
    parameters = "Parameters\n----------\n" + "\n".join(
        f"{name} : {entry.type}\n{textwrap.fill(entry.text, **LINES)}" for name, entry in entries.items()
    )
    others = (text for text in sections if not text.startswith("Parameters\n"))
    return "\n\n".join([summary, parameters, *others]) + "\n"
