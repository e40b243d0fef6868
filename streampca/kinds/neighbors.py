"""`NeighborsDescription`: options of a graph of nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .options import Seed
from .values import Count


@dataclass(frozen=True, eq=False, repr=False)
class NeighborsDescription:
    """Options of `streampca.neighbors`.

    Parameters
    ----------
    n_neighbors : int, default=15
        Number of neighbours of each sample, itself not included.
    method : {"auto", "exact", "hnsw"}, default="auto"
        Method of the search.
    ef_search : int, default=64
        Method hnsw: candidates kept during a search. More are slower and find more true neighbours.
    random_state : int, default=0
        Seed of the samples by which the recall of hnsw is estimated.
    """

    n_neighbors: Count = 15
    method: Literal["auto", "exact", "hnsw"] = "auto"
    ef_search: Count = 64
    random_state: Seed = 0
