"""Environment variables in run files, ``${NAME}``: replaced by their values, and written back as they were.

A run file may come from somebody else, and a variable may hold a secret. Local paths and numbers do not leave this
machine, so any variable is replaced there. Elsewhere, and in texts with an address, only variables are replaced that
the user allows by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import ConfigError

VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")  # $${ stands for ${ itself

Place = tuple[str | int, ...]  # keys, and indices of lists, that lead to a text


def replaced(
    data: Any, subject: str, takes_variables: Callable[[Place], bool], allowed: Collection[str] = ()
) -> tuple[Any, dict[Place, str]]:
    """Replace the variables in the texts of plain data.

    Parameters
    ----------
    data : dict
        Plain data of a run file.
    subject : str
        Name of the run file, for messages.
    takes_variables : callable
        Returns True for the place of a path or a number.
    allowed : collection of str
        Names of the variables that are replaced everywhere.

    Returns
    -------
    data : dict
        Data with the values of the variables.
    written : dict
        Texts that held variables, as they were written, by their place.

    Raises
    ------
    ConfigError
        If a variable is not set, or not allowed at its place.
    """
    written: dict[Place, str] = {}

    def walked(value: Any, place: Place) -> Any:
        if isinstance(value, dict):
            return {key: walked(item, (*place, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walked(item, (*place, index)) for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        text = _text(value, f"{subject}: {'.'.join(map(str, place))}", allowed, anywhere=takes_variables(place))
        if any(match["name"] for match in VARIABLE.finditer(value)):
            written[place] = value
        return text

    return walked(data, ()), written


def _text(value: str, key: str, allowed: Collection[str], *, anywhere: bool) -> str:
    """Return a text with its variables replaced; `anywhere` allows all of them, unless the text holds an address."""
    names = [match["name"] for match in VARIABLE.finditer(value) if match["name"]]
    text = VARIABLE.sub(lambda match: os.environ.get(match["name"], "") if match["name"] else "${", value)
    allows_all = anywhere and "://" not in value + text
    for name in names:
        if not allows_all and name not in allowed:
            raise ConfigError(
                f"{key} = {value!r} names the environment variable {name}, which is replaced in local paths and "
                f"numbers only; if its value may leave this machine, give --allow-env {name}, or write "
                f"$${{{name}}} for the text itself."
            )
        if name not in os.environ:
            raise ConfigError(
                f"{key} = {value!r} names the environment variable {name}, which is not set; set it, or write "
                f"$${{{name}}} for the text itself."
            )
    return text


def escaped(data: Any) -> Any:
    """Return plain data with ``${`` escaped in all texts, so that reading a run file gives the same texts."""
    if isinstance(data, dict):
        return {key: escaped(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [escaped(value) for value in data]
    return data.replace("${", "$${") if isinstance(data, str) else data


def put_back(data: Any, written: Mapping[Place, str]) -> None:
    """Put the texts with variables back in their places, as they were written."""
    for place, text in written.items():
        parent = data
        for part in place[:-1]:
            parent = parent.setdefault(part, {}) if isinstance(parent, dict) else parent[part]
        parent[place[-1]] = text
