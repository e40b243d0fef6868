"""Text in cells of csv files, which spreadsheets would take for a formula where it begins like one."""

from __future__ import annotations

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")  # first characters of what spreadsheets take for a formula


def as_cell(text: str) -> str:
    """Return text for a cell of a table; an apostrophe keeps a spreadsheet from taking it for a formula."""
    return f"'{text}" if text.lstrip("'").startswith(FORMULA_SIGNS) else text


def of_cell(cell: str) -> str:
    """Inverse of `as_cell`; other cells stay as they are."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA_SIGNS) else cell
