"""Tables of scores that this package wrote, .csv and .parquet: one row per sample, one column per component."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack

import numpy as np

from ..arrays import Array
from ..errors import SourceError, first_line
from ..storage import remote
from ..storage.table_cells import of_cell
from ..storage.writers import ATTRIBUTE, CSV_DIGITS, PARQUET, SAMPLE
from ..units import MIB
from .collection import Collection, State, refuse_key
from .stored.array import ArrayCollection, StoredArray
from .stored.files import FileStates, opened
from .stored.kept_chunk import KeptChunk
from .stored.layout import Box, SampleAxes, pieces_of

_CHUNK = MIB  # bytes of text that are decoded at a time
_MANTISSA = re.compile(rb",-?([0-9.]+)")
_TELLING = 2**16  # bytes of text that tell the data type


def open_score_table(source: str, *, key: str | None = None, **axes: Unpack[SampleAxes]) -> Collection:
    """Open scores in a table as samples of shape (k,)."""
    refuse_key(key, source)
    array = (ParquetScores if _is_parquet(source) else CsvScores)(source)
    return ArrayCollection(array, source=source, **axes)


def is_score_table(path: Any) -> bool:
    """Return whether a source is a table of scores as `write_scores` writes it, by its header or metadata."""
    if not isinstance(path, str) or remote.is_url(path):
        return False
    if not _is_parquet(path):
        with opened(path) as file:
            return _columns(file.readline(_CHUNK).decode("utf-8", "replace")) > 0
    try:
        metadata = _parquet(path).schema_arrow.metadata or {}
        return bool(json.loads(metadata[ATTRIBUTE.encode()])["kind"] == "scores")
    except (ImportError, OSError, ValueError, KeyError, TypeError):  # the error of a table that is not read says more
        return False


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(PARQUET)


def _parquet(path: str) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(path)


def _columns(header: str) -> int:
    """Return the number of columns of scores that a header names, 0 if it is that of another table."""
    first, *names = next(csv.reader([header]), [""])
    stems = {name.rpartition("_")[0] for name in names}
    numbered = [name.rpartition("_")[2] for name in names] == [str(number + 1) for number in range(len(names))]
    return len(names) if first == SAMPLE and numbered and len(stems) == 1 else 0


class CsvScores(StoredArray):
    """Scores in a csv file, as an array of shape (n, k); the places of its rows are found when it is opened.

    Numbers of at most 9 significant digits are float32, which these restore to the bit, others float64.
    """

    counts_first, encoded, dims = True, True, (SAMPLE, "component")

    def __init__(self, path: str) -> None:
        self._path, self.files, self._kept = path, FileStates((path,)), KeptChunk()
        ends = self._ends_of_rows()
        with opened(path) as file:
            count = _columns(file.read(ends[0]).decode("utf-8", "replace"))
            start = file.read(_TELLING)
        self.shape = (len(ends) - 1, count)
        # A name that looks like a number only makes the data type wider; a number that is cut has fewer digits.
        mantissas = (digits.replace(b".", b"").strip(b"0") for digits in _MANTISSA.findall(start))
        is_long = any(len(digits) > CSV_DIGITS[4] for digits in mantissas)
        self.dtype = np.dtype(np.float64 if is_long else np.float32)
        longest = int(np.diff(ends).max(initial=1))
        self.chunk_shape = (max(1, min(self.shape[0], _CHUNK // longest)), count)
        self._places = [*ends[: -1 : self.chunk_shape[0]], ends[-1]]
        # The text of a chunk, that as str, and its numbers.
        self.decode_bytes = 3 * longest * self.chunk_shape[0] + 8 * self.chunk_shape[0] * count

    def _ends_of_rows(self) -> Array:
        """Return the place after each row, that of the header first; ends of lines in quotation marks are text."""
        ends, is_quoted, place = [np.zeros(0, np.int64)], 0, 0
        for block in self._blocks():
            quotes = np.cumsum(block == ord('"')) + is_quoted
            ends.append(np.flatnonzero((block == ord("\n")) & (quotes % 2 == 0)) + place + 1)
            is_quoted, place = int(quotes[-1]) % 2, place + len(block)
        rows = np.concatenate(ends)
        if not len(rows) or rows[-1] != place:
            raise SourceError(f"{self._path} ends within a row; it was cut short, write the scores again.")
        return rows

    def _blocks(self) -> Iterator[Array]:
        with opened(self._path) as file:
            while data := file.read(_CHUNK):
                yield np.frombuffer(data, np.uint8)

    def read_into(self, box: Box, out: Array) -> None:
        """Read the chunks of the box one by one."""
        for piece, inside in pieces_of(box, self.chunk_shape, self.chunk_shape[0] * self.shape[1]):
            self._kept.read_into(piece, self.chunk_shape, self.shape, out[inside], self._decode)

    def _decode(self, chunk: Box) -> Array:
        columns = range(1, self.shape[1] + 1)
        try:
            rows = np.loadtxt(
                io.StringIO(self._text(chunk[0].start), newline=""),
                self.dtype, comments=None, delimiter=",", quotechar='"', usecols=columns, ndmin=2,
            )  # fmt: skip
        except ValueError as error:
            raise SourceError(f"{self._path} is damaged ({first_line(error)}); write the scores again.") from error
        if len(rows) != chunk[0].stop - chunk[0].start:
            raise SourceError(f"{self._path} has changed while it was read; read it again once it does not change.")
        return rows

    def _text(self, start: int) -> str:
        """Return the text of the chunk that begins with a row."""
        first, last = self._places[start // self.chunk_shape[0] :][:2]
        with opened(self._path) as file:
            file.seek(first)
            return file.read(last - first).decode("utf-8", "replace")

    def names(self, axis: str) -> Sequence[str] | None:
        """Return the names of samples, None if these are numbered."""
        if axis != SAMPLE:
            return None
        texts = (self._text(start) for start in range(0, self.shape[0], self.chunk_shape[0]))
        names = [of_cell(row[0]) for text in texts for row in csv.reader(io.StringIO(text, newline=""))]
        return None if names == [str(number) for number in range(len(names))] else names

    def states(self, *, now: bool = False) -> list[State]:
        """Return the state of the file."""
        return self.files.states(now=now)


class ParquetScores(StoredArray):
    """Scores in a Parquet file, as an array of shape (n, k), read by its groups of rows."""

    counts_first, encoded, dims = True, True, (SAMPLE, "component")

    def __init__(self, path: str) -> None:
        self._path, self.files = path, FileStates((path,))
        file = _parquet(path)
        self._columns = [name for name in file.schema_arrow.names if re.fullmatch(r"[^\W\d]+_[0-9]+", name)]
        self.dtype = np.dtype(file.schema_arrow.field(self._columns[0]).type.to_pandas_dtype())
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self._ends = np.cumsum([0, *groups])
        self.shape = (int(self._ends[-1]), len(self._columns))
        self.chunk_shape = (max(groups, default=1), self.shape[1])
        self.decode_bytes = 2 * self.chunk_shape[0] * self.shape[1] * self.dtype.itemsize  # as stored, and decoded

    @cached_property
    def attributes(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Attributes of the scores, such as whether they are whitened."""
        return dict(json.loads(_parquet(self._path).schema_arrow.metadata[ATTRIBUTE.encode()]))

    def read_into(self, box: Box, out: Array) -> None:
        """Read the groups of rows that the box touches, and the columns that it names."""
        rows, names, file = box[0], self._columns[box[1]], _parquet(self._path)
        try:
            for number, (start, stop) in enumerate(zip(self._ends, self._ends[1:], strict=False)):
                first, last = max(rows.start, start), min(rows.stop, stop)
                if first < last:
                    group = file.read_row_group(number, columns=names)
                    for column, name in enumerate(names):
                        out[first - rows.start : last - rows.start, column] = group[name].to_numpy()[
                            first - start : last - start
                        ]
        except (OSError, ValueError) as error:
            raise SourceError(f"{self._path} is damaged ({first_line(error)}); write the scores again.") from error

    def names(self, axis: str) -> Sequence[str] | None:
        """Return the names of samples, None if these are numbered."""
        file = _parquet(self._path)
        if axis != SAMPLE or SAMPLE not in file.schema_arrow.names:
            return None
        column = file.read(columns=[SAMPLE])[SAMPLE]
        return None if str(column.type) == "int64" else [str(name) for name in column.to_pylist()]

    def states(self, *, now: bool = False) -> list[State]:
        """Return the state of the file."""
        return self.files.states(now=now)
