"""Environment variables in run files, ``${NAME}``: where they are replaced by their values, and kept as written.

A run file may be somebody else's. Paths of this machine and numbers stay on it, so variables are replaced in these;
elsewhere, and in texts that hold an address, only those are that the user allows by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import ConfigError

VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")  # $${ stands for a ${ that is no variable
_ADDRESS = re.compile(r"://" if os.name == "posix" else r"://|^[\\/]{2}")  # Windows asks the host of //HOST/NAME

Place = tuple[str | int, ...]  # the keys, and numbers of entries of lists, that lead to a text


def replaced(
    data: Any, subject: str, takes_variables: Callable[[Place], bool], allowed: Collection[str] = ()
) -> tuple[Any, dict[Place, str]]:
    """Replace the variables in the texts of plain data.

    Parameters
    ----------
    data : dict
        Plain data, as YAML gives them.
    subject : str
        Name of the run file, for messages.
    takes_variables : callable
        Returns True of the place of a path or a number.
    allowed : collection of str
        Names of the variables that are replaced wherever they stand.

    Returns
    -------
    data : dict
        With the values of the variables.
    written : dict
        The texts that held variables, as they were written, by their place.

    Raises
    ------
    ConfigError
        If a variable is not set, or is not replaced where it stands.
    """
    written: dict[Place, str] = {}

    def walked(value: Any, place: Place) -> Any:
        if isinstance(value, dict):
            return {key: walked(each, (*place, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [walked(each, (*place, number)) for number, each in enumerate(value)]
        if not isinstance(value, str):
            return value
        text = _text(value, f"{subject}: {'.'.join(map(str, place))}", allowed, anywhere=takes_variables(place))
        if any(found["name"] for found in VARIABLE.finditer(value)):
            written[place] = value
        return text

    return walked(data, ()), written


def _text(value: str, key: str, allowed: Collection[str], *, anywhere: bool) -> str:
    """Return a text with the values of its variables: of those allowed, or of all if it then holds no address."""
    names = [found["name"] for found in VARIABLE.finditer(value) if found["name"]]
    text = VARIABLE.sub(lambda found: os.environ.get(found["name"], "") if found["name"] else "${", value)
    open_to_all = anywhere and not _ADDRESS.search(value) and not _ADDRESS.search(text)
    for name in names:
        if not open_to_all and name not in allowed:
            raise ConfigError(
                f"{key} = {value!r} names the environment variable {name}, which is replaced in local paths and "
                f"numbers only; if what is run may tell its value to others, give --allow-env {name}, or write "
                f"$${{{name}}} for the text itself."
            )
        if name not in os.environ:
            raise ConfigError(
                f"{key} = {value!r} names the environment variable {name}, which is not set; set it, or write "
                f"$${{{name}}} for the text itself."
            )
    return text


def escaped(data: Any) -> Any:
    """Return plain data, of dictionaries and lists, whose texts hold no variables as a run file is read."""
    if isinstance(data, dict):
        return {key: escaped(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [escaped(value) for value in data]
    return data.replace("${", "$${") if isinstance(data, str) else data


def put_back(data: Any, written: Mapping[Place, str]) -> None:
    """Put the texts that held variables where they were, as they were written."""
    for place, text in written.items():
        at = data
        for part in place[:-1]:
            at = at.setdefault(part, {}) if isinstance(at, dict) else at[part]
        at[place[-1]] = text
