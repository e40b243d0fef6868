"""Text in cells of csv files, protected from spreadsheets that would run it as a formula."""

from __future__ import annotations

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")  # first characters of formulas in spreadsheets


def as_cell(text: str) -> str:
    """Return text for a cell of a table; a leading apostrophe prevents its evaluation as a formula."""
    # Text that begins with apostrophes before a sign gets one more, so that `of_cell` restores it.
    return f"'{text}" if text.lstrip("'").startswith(FORMULA_SIGNS) else text


def of_cell(cell: str) -> str:
    """Return the text of a cell, the inverse of `as_cell`; other cells are not changed."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(FORMULA_SIGNS) else cell
