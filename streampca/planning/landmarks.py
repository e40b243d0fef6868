"""Memory of choosing landmarks and making a feature map of them, before anything is fitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ..units import KIB, MIB
from .candidate_sizes import Sizes, search_or_refuse
from .memory import Phase, decoding_items, runtime

NAME = "landmarks"
CHECKED_ROWS = 500  # rows of the kernel matrix that residuals are estimated from: good to a factor of 1.2 (benchmarks)
MOST_PIECE = 512  # samples whose kernel with these rows is computed at a time
SQUARES = 6  # m x m float64 at a time: the kernel, its copy for LAPACK, workspace of two, and the weights made of it
BOX_BYTES = 4 * MIB  # of landmarks that are not in memory, read or written at a time
# Few landmarks are cut into several boxes, as reading and writing hold copies of a box.
LEAST_BOX, LEAST_BOXES = 512 * KIB, 8
TILE_ROWS, TILE_FEATURES = 512, 1024  # of a box, and of samples, that are float64 while they are multiplied
COPIES = 2  # copies of rows as float64: less their origin, and as they are compared


@dataclass(frozen=True, kw_only=True)
class LandmarkSizes(Sizes):
    """Sizes of making a feature map; the problem is of the samples before they are mapped.

    Attributes
    ----------
    landmarks : int
        Number of landmarks, m; 0 for random features.
    rows : int
        Number of samples that are read for it.
    weights : int
        Bytes of the map's other arrays.
    """

    landmarks: int
    rows: int
    weights: int

    def phases(self) -> Iterator[Phase]:
        """Yield the memory of the only phase."""
        m, rows, problem = self.landmarks, self.rows, self.problem
        items = {
            f"{rows} samples to choose from": rows * (problem.sample_bytes + COPIES * 8 * problem.n_features),
            f"kernel of {m} landmarks, {m} x {m} float64, and its eigenvectors": SQUARES * 8 * m * m,
            "similarities of samples to choose from": 3 * 8 * m * rows if rows > m else 0,
            "feature map": self.weights,
        }
        items = {name: size for name, size in items.items() if size}
        yield Phase.of(NAME, items, decoding_items(problem, 1), runtime())


def box_of_rows(shape: tuple[int, int], chunk: tuple[int, int], itemsize: int) -> tuple[int, int]:
    """Return the rows and features of boxes in which landmarks are read that are not in memory.

    Boxes are of whole storage chunks, with as many features as they have room for, unless a chunk is larger than a box.

    Parameters
    ----------
    shape : (int, int)
        Landmarks and features.
    chunk : (int, int)
        Rows and features of a storage chunk.
    itemsize : int
        Bytes of a value.
    """
    rows, features = (max(1, min(*lengths)) for lengths in zip(shape, chunk, strict=True))
    room = min(BOX_BYTES // itemsize, max(LEAST_BOX // itemsize, prod(shape) // LEAST_BOXES))
    if rows * features > room:
        return max(1, room // features), features
    features = min(shape[1], room // (rows * features) * features)
    return (min(shape[0], room // (rows * features) * rows) if features == shape[1] else rows), features


def box_bytes(shape: tuple[int, int], chunk: tuple[int, int], itemsize: int) -> int:
    """Return the bytes of a box of landmarks."""
    rows, features = box_of_rows(shape, chunk, itemsize)
    return rows * features * itemsize


def residual_bytes(n_features: int, k: int, piece_rows: int, row_bytes: int) -> int:
    """Return the bytes held while residuals of components are estimated from rows of the kernel matrix, in a thread.

    Parameters
    ----------
    n_features : int
        Number of features p, before samples are mapped.
    k : int
        Number of components.
    piece_rows, row_bytes : int
        Samples that are mapped at a time, and bytes that each takes.
    """
    checked = 8 * CHECKED_ROWS * (2 * n_features + 3 * k)
    return checked + min(piece_rows, MOST_PIECE) * (2 * row_bytes + 8 * 2 * (CHECKED_ROWS + n_features))


def check_landmarks(sizes: LandmarkSizes, memory: int | None, *, median: bool, is_exact: bool) -> None:
    """Refuse landmarks whose map does not fit the budget; `median` tells that samples are read to find gamma.

    `is_exact` tells that all samples are landmarks as none were asked for.

    Raises
    ------
    BudgetError
        Names the budget that would do.
    """
    doing = f"a feature map of {sizes.landmarks} landmarks" if sizes.landmarks else "a map to random features"
    more = f", or ask for fewer {'--landmarks (landmarks)' if sizes.landmarks else 'features'}"
    if is_exact:
        doing = f"comparing all {sizes.landmarks} samples with one another, which is exact,"
        more = ", or give a number of --landmarks (landmarks) below that of samples"
    more += ", with a number for --gamma (gamma), which is else found in many samples" if median else ""
    search_or_refuse(doing, [[sizes]], sizes.problem.machine.budget(memory), more)
