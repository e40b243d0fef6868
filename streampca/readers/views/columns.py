"""Columns with one value per sample: labels and weights, and the choice of samples by their labels."""

from __future__ import annotations

import codecs
import csv
import math
import operator
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import IO, Any

import numpy as np

from ...arrays import Array
from ...errors import RequestError, SourceError, first_line, nearest
from ...storage.disk import expanded, open_regular
from ...storage.outputs import CSV_START
from ...storage.table_cells import of_cell
from ...units import format_bytes
from ..collection import Collection, unmasked
from ..idx import is_idx, read_idx
from ..npy import read_header
from ..stored.files import check_kind
from ..stored.flat import FlatHeader
from .chosen import Chosen
from .patches import Patches

TABLES = (".csv", ".tsv")
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
LONGEST_LINE = 2**20  # characters of a line of a list or table
_WIDEST = 2**16  # bytes of one sample's value: text, or several numbers
_LISTED = 10  # values that an error names
_CONDITION = re.compile(r"\s*labels?\s*(==|!=|<=|>=|=|<|>)\s*(\S.*?)\s*")
_AND = re.compile(r"\sand\s+(?=labels?\s*[=!<>])")  # not the word within a text, such as "cats and dogs"
_DIGITS = re.compile(r"[+-]?[0-9]+")
_TRUTH = {"true": 1, "false": 0}
_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip


def open_column(source: Any, collection: Collection, *, wide: bool = False) -> Array:
    """Read a value for every sample of a collection.

    Parameters
    ----------
    source : array-like, path or ``"folder"``
        An array or list of n values; a ``.npy`` file, ``file.npz:array``, an IDX file, plain or gzipped;
        ``table.csv:column`` (or ``.tsv``, with tabs), one row per sample in order, numbers if all cells are; or
        ``"folder"``, the name of the folder of each sample's file.
    collection : Collection
        Collection of these samples. The column can also have a value for every sample that they were chosen from, or
        if they are windows, for every image.
    wide : bool, default=False
        If True, a sample can have several numbers, in an array of two axes.

    Returns
    -------
    ndarray of shape (n,), or (n, l)
        Numbers or text.

    Raises
    ------
    SourceError
        If the column cannot be read, or holds neither numbers nor text.
    RequestError
        If it has another number of values, or samples have no folders.
    """
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str) and source == "folder":
        return _folders(collection)
    subject = f"column {source}" if isinstance(source, str) else "the column given"
    most = _most_values(collection)
    values = _read(expanded(source), most) if isinstance(source, str) else _array(source, subject)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    is_wide = wide and values.ndim == 2 and values.shape[1] > 0 and values.dtype.kind in "biuf"
    if not (values.ndim == 1 or is_wide) or values.dtype.kind not in "biufUS":
        raise SourceError(
            f"{subject} holds {values.dtype} values of shape {values.shape}; give one number or text for each sample."
        )
    values = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
    fitted = _fitted(values, collection)
    if fitted is None:
        raise RequestError(
            f"{subject} has {len(values)} values and {collection.source} has {_counts(collection)} samples; give one "
            "value for each sample, in their order."
        )
    return fitted


def matching(condition: str, collection: Collection) -> Array:
    """Return the ascending indices of the samples whose labels meet a condition, or several joined by ``and``."""
    parts = [_CONDITION.fullmatch(part) for part in _AND.split(condition)] if isinstance(condition, str) else [None]
    if None in parts:
        raise RequestError(
            f"where {condition!r} is not a condition; give such as 'label=3', 'label!=0,1' or 'label>=5 and label<9'."
        )
    if collection.labels is None:
        raise RequestError(
            f"the condition {condition!r} needs labels, and {collection.source} has none; give --labels (labels=...) "
            "too."
        )
    met = np.ones(collection.n_samples, np.bool_)
    for part in filter(None, parts):
        sign, text = part.groups()
        operands = _wanted(text, sign, condition, collection.labels)
        if sign in _ORDERS:
            met &= _ORDERS[sign](collection.labels, operands[0])
        else:
            met &= np.isin(collection.labels, operands, invert=sign == "!=")
    places = np.flatnonzero(met)
    if not len(places):
        raise RequestError(
            f"where {condition!r} takes no sample of {collection.source}; its labels are {_values(collection.labels)}."
        )
    return places


def table_column(source: str) -> tuple[str, str] | None:
    """Return the path of a table and the name of a column if `source` is ``table.csv:column``, else None."""
    path, _, column = source.rpartition(":")
    return (path, column) if path.lower().endswith(TABLES) and not os.path.exists(source) else None


def short_lines(file: Iterable[str], path: str) -> Iterator[str]:
    """Yield the lines of a text file; a line that is too long for a path or a row is refused before its end."""
    read: Callable[[int], str] = file.readline  # type: ignore[attr-defined]
    while line := read(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise SourceError(f"{path} has a line of more than {LONGEST_LINE} characters; give a text file of lines.")
        if "\0" in line:  # UTF-16 without a byte order mark
            raise SourceError(f"{path} holds characters of several bytes, as UTF-16 has; save it as UTF-8.")
        yield line


def undecoded(path: str, error: UnicodeDecodeError) -> SourceError:
    """Return the error for a text file that is not UTF-8."""
    is_wide = error.start == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return SourceError(f"{path} is {'UTF-16' if is_wide else 'not UTF-8'}; save it as UTF-8.")


def array_of_table(path: str) -> str | None:
    """Return what makes an array of a table of numbers, for errors; None for any other table, as one of scores."""
    try:
        with open_regular(path, "r", encoding="utf-8-sig") as file:
            lines = [file.readline(LONGEST_LINE) for _ in range(2)]
    except (OSError, UnicodeDecodeError):
        return None
    if lines[0].encode().startswith(CSV_START):
        return None
    for separator in _SEPARATORS:
        is_numeric = [all(map(_is_number, line.split(separator))) for line in lines if line.strip()]
        if separator in lines[0] and is_numeric and is_numeric[-1]:
            names = "" if is_numeric[0] else ", skiprows=1"
            return f"numpy.save('table.npy', numpy.loadtxt({path!r}, delimiter={separator!r}{names}))"
    return None


def _is_number(text: str) -> bool:
    try:
        _number(text.strip())
    except ValueError:
        return False
    return True


def cells(path: str, column: str) -> Iterator[str]:
    """Yield the texts of a column; rows are read one at a time."""
    try:
        with open_regular(path, "r", encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(short_lines(file, path), delimiter="\t" if path.lower().endswith(".tsv") else ",")
            names = [name.strip() for name in next(rows, [])]
            _check_header_line(path, names, column)
            if column not in names:
                raise RequestError(
                    f"{path} has no column {column!r}; its columns are {', '.join(names) or 'none'}."
                    f"{nearest(column, names)}"
                )
            at = names.index(column)
            for row in rows:
                if not row:  # an empty line
                    continue
                if len(row) <= at:
                    raise SourceError(f"{path}, line {rows.line_num} ends before column {column!r}; correct that line.")
                yield of_cell(row[at].strip())
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist; check the path of the table.") from None
    except UnicodeDecodeError as error:
        raise undecoded(path, error) from error
    except (OSError, csv.Error) as error:
        raise SourceError(f"{path} cannot be read as a table ({first_line(error)}); give a CSV file.") from error


def _check_header_line(path: str, names: list[str], column: str) -> None:
    """Refuse a table whose columns are separated in another way, or have one name twice."""
    own = "\t" if path.lower().endswith(".tsv") else ","
    other = next((sign for sign in _SEPARATORS if sign != own and sign in names[0]), own) if len(names) == 1 else own
    if other != own and column not in names:
        raise RequestError(
            f"{path} separates its columns by {_SEPARATORS[other]}, and its name stands for {_SEPARATORS[own]}; save "
            f"it with {_SEPARATORS[own]}."
        )
    if names.count(column) > 1:
        raise RequestError(f"{path} has {names.count(column)} columns {column!r}; give each a name of its own.")


def _read(source: str, most: int) -> Array:
    table = table_column(source)
    path, _, member = source.rpartition(":")
    for each in (source, path):
        check_kind(each, "save what comes from there as a file, and give that")
    if table is not None:
        return _numbers_or_text(*table, most)
    if path.lower().endswith(".npz") and not os.path.exists(source):
        return _loaded(path, member, most)
    if source.lower().endswith(".npy"):
        return _loaded(source, "", most)
    if is_idx(source):
        return read_idx(source, lambda header: _check_header(header, source, most))
    if not os.path.exists(source):
        raise SourceError(
            f"{source} does not exist; check the path, and give a .npy, .npz:array, IDX or .csv:column, or 'folder'."
        )
    if source.lower().endswith(TABLES):
        raise RequestError(f"{source} is a table; say which of its columns with {source}:COLUMN.")
    raise SourceError(f"column {source} is of an unknown format; give a .npy, .npz:array, IDX or .csv:column.")


def _loaded(path: str, member: str, most: int) -> Array:
    """Return an array saved by numpy, alone or in an archive; refuse one whose header announces too many values."""
    try:
        if not member:
            with open_regular(path) as file:
                _check_count(file, path, most)
                file.seek(0)
                return np.asarray(np.load(file, allow_pickle=False))
        with open_regular(path) as whole, zipfile.ZipFile(whole) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            if member not in names:
                raise RequestError(f"{path} has no array {member!r}; it holds {', '.join(names)}.")
            with archive.open(f"{member}.npy") as file:
                _check_count(file, f"{path}:{member}", most)
            with archive.open(f"{member}.npy") as file:
                return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except (RequestError, SourceError):
        raise
    except Exception as error:  # numpy and zipfile raise many kinds of errors for a damaged file
        if isinstance(error, FileNotFoundError):
            raise SourceError(f"column {path} does not exist; check the path.") from None
        raise SourceError(f"{path} cannot be read ({first_line(error)}); save the column again by numpy.") from error


def _check_count(file: IO[bytes], subject: str, most: int) -> None:
    _check_header(read_header(file, subject), subject, most)


def _check_header(header: FlatHeader, subject: str, most: int) -> None:
    """Refuse a column of more values than samples, or of too large values, before it is read."""
    row = math.prod(header.shape[1:]) * header.dtype.itemsize
    if row > _WIDEST:
        raise SourceError(
            f"column {subject} holds {header} values, {format_bytes(row)} a sample; give one number or text a sample."
        )
    if header.shape and header.shape[0] > most:
        raise RequestError(
            f"column {subject} has {header.shape[0]} values, and there are at most {most} samples to give one; "
            "give one value for each sample, in their order."
        )


def _most_values(collection: Collection) -> int:
    """Return the most values a column can have: one for every sample before any choice, skipped files included."""
    base, mask = _base(collection), () if collection.kept is None else collection.kept
    return max(collection.n_samples, len(mask), 0 if base is None else _most_values(base[0]))


def _array(column: Any, subject: str) -> Array:
    try:
        values = np.asarray(unmasked(column))
    except ValueError as error:
        raise SourceError(f"{subject} is not an array ({first_line(error)}); give one value for each sample.") from None
    texts = values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat)  # as pandas has them
    return values.astype(np.str_) if texts else values


def _numbers_or_text(path: str, column: str, most: int) -> Array:
    """Return a column of a table as whole numbers or numbers if all its cells are, else as text."""

    def texts() -> Iterator[str]:
        """Return the cells, at most one more than allowed."""
        return islice(cells(path, column), most + 1)

    numbers = _numbers(texts)
    if len(numbers) > most:
        raise RequestError(
            f"column {path}:{column} has more than {most} values, and there are at most {most} samples to give one; "
            "give one value a sample, in their order."
        )
    return numbers


def _numbers(texts: Callable[[], Iterator[str]]) -> Array:
    """Return texts as whole numbers or numbers if all of them are, else as they are."""
    try:
        numbers = np.fromiter(map(_number, texts()), np.float64)
    except (SourceError, RequestError):
        raise
    except (ValueError, OverflowError):
        return _coded(texts())
    is_whole = np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all()
    is_large = np.abs(numbers) >= 2**53
    if not is_large.any():
        return numbers.astype(np.int64) if is_whole else numbers
    # Large whole numbers are usually identifiers, and floating point could round several of them to one.
    exact = {number for text in texts() if isinstance(number := _number(text), int) and abs(number) >= 2**53}
    if is_whole and exact:
        with suppress(OverflowError):
            return np.fromiter((int(_number(text)) for text in texts()), np.int64)
    return _coded(texts()) if len({float(number) for number in exact}) < len(exact) else numbers


def _number(text: str) -> int | float:
    """Parse a number of a table: Python would also accept underscores, which occur in names."""
    if "_" in text:
        raise ValueError(f"{text} is no number")
    return int(text) if _DIGITS.fullmatch(text) else float(text)


def _coded(texts: Iterable[str]) -> Array:
    """Return texts as an array, with each distinct text in memory only once until then."""
    codes: dict[str, int] = {}
    numbers = np.fromiter((codes.setdefault(text, len(codes)) for text in texts), np.int32)
    return np.array(list(codes), np.str_)[numbers] if codes else np.empty(0, np.str_)


def _base(collection: Collection) -> tuple[Collection, Array] | None:
    """Return the base collection and the index of each sample in it; None for a collection without a base."""
    if isinstance(collection, Chosen):
        return collection.base, np.asarray(collection.places)
    if isinstance(collection, Patches):
        return collection.base, np.repeat(np.arange(collection.base.n_samples), collection.per_image)
    return None


def _folders(collection: Collection) -> Array:
    """Return the name of the folder of each sample's file."""
    if (base := _base(collection)) is not None:
        return np.asarray(_folders(base[0])[base[1]])
    names = collection.sample_names()
    if names is None:
        raise RequestError(
            f"labels 'folder' was given, and the samples of {collection.source} are not files; give a column."
        )
    folders = _coded(os.path.basename(os.path.dirname(name)) for name in names)
    if not folders[0] and (folders == "").all():
        raise RequestError(
            f"labels 'folder' was given, and all files of {collection.source} lie in one folder; give the folder above "
            "theirs as the source."
        )
    return folders


def _fitted(values: Array, collection: Collection) -> Array | None:
    """Return the values of the samples, from a column for them or for all samples they were chosen from."""
    if len(values) == collection.n_samples:
        return values
    if (base := _base(collection)) is not None:
        before = _fitted(values, base[0])
        return None if before is None else before[base[1]]
    if collection.kept is not None and len(values) == len(collection.kept):
        return np.asarray(values[collection.kept])
    return None


def _counts(collection: Collection) -> str:
    if isinstance(collection, Chosen):
        return f"{collection.n_samples} of {_counts(collection.base)}"
    if isinstance(collection, Patches):
        return f"{collection.n_samples} (windows of {_counts(collection.base)} images)"
    return str(collection.n_samples)


def _wanted(text: str, sign: str, condition: str, labels: Array) -> Array:
    """Return the values that a condition compares labels with, as numbers if the labels are, else as text."""
    texts = [text] if sign in _ORDERS else [part.strip() for part in text.split(",")]
    if labels.dtype.kind == "U":
        return np.array(texts, np.str_)
    try:
        if labels.dtype.kind == "b":
            return np.array([_TRUTH.get(part.lower(), part) for part in texts]).astype(np.float64)
        return np.array([_number(part) for part in texts])
    except ValueError:
        raise RequestError(
            f"where {condition!r} compares with {text!r}, and the labels are numbers: {_values(labels)}."
        ) from None


def _values(labels: Array) -> str:
    different = np.unique(labels)
    named = ", ".join(str(value) for value in different[:_LISTED])
    return f"{named} and {len(different) - _LISTED} more" if len(different) > _LISTED else named
