"""Statistics that can be split and merged: one statistic per file, one protocol for all.

The idea: everything a method needs from the data is a small sum that can be built from any cutting of the data, in any
process, and merged. The laws (identity, symmetry, associativity, any cutting gives the same, state round-trips,
inputs are never written to) are run for every accumulator by `streampca.testing.AccumulatorLaws`. `methods` decides
what is accumulated and when; nothing here knows storage, executors or the budget.
"""

from .class_scatter import ClassScatter
from .cross_moments import CrossMoments
from .cross_scatter import CrossScatter
from .finite import NotFiniteError, not_finite
from .frequent_directions import FrequentDirections
from .gram import CentredGram, Gram
from .gram_block import GramBlock
from .gram_probes import GramProbes, sample_directions
from .group_moments import GroupMoments
from .group_scatter import GroupScatter
from .kernel_sums import KernelSums
from .observed_regression import ObservedRegression
from .probes import Directions
from .protocol import Accumulator
from .row_buffer import RowBuffer
from .scatter import Scatter
from .scatter_block import ScatterBlock
from .symmetric_block import EntryError, SymmetricBlock, SymmetricRows

__all__ = [
    "ACCUMULATORS",
    "Accumulator",
    "CentredGram",
    "ClassScatter",
    "CrossMoments",
    "CrossScatter",
    "Directions",
    "EntryError",
    "FrequentDirections",
    "Gram",
    "GramBlock",
    "GramProbes",
    "GroupMoments",
    "GroupScatter",
    "KernelSums",
    "NotFiniteError",
    "ObservedRegression",
    "RowBuffer",
    "Scatter",
    "ScatterBlock",
    "SymmetricBlock",
    "SymmetricRows",
    "not_finite",
    "sample_directions",
]

# Stored states name their kind; its class restores the accumulator.
ACCUMULATORS: dict[str, type[Accumulator]] = {
    kind.kind: kind
    for kind in (
        Scatter,
        Gram,
        ScatterBlock,
        GramBlock,
        FrequentDirections,
        GroupMoments,
        GroupScatter,
        ClassScatter,
        CrossScatter,
        ObservedRegression,
    )
}
