"""Application of a model to a collection: as a lazy dask array, or block by block into an output.

The graph of a lazy result is small and holds the collection's path, not its data; each chunk reads its own samples.
Outputs are written within a budget: by blocks of samples if the components fit in memory beside them, else by pieces of
both, as `streampca.planning.plan_pieces` plans; with a checkpoint they resume after a kill.
"""

from .before_fit import ComponentsToCome, check_foreseen
from .finite import Named, OfNumbered, RowMap, applied, refuse_bad
from .lazy import is_dask_array, lazy_components, map_array, map_collection, map_now
from .measurement import measure, rows_beside
from .patches import patches_of
from .projection import Projection
from .row_maps import images_of, reconstructions_of, scores_of
from .write import write_projection

__all__ = [
    "ComponentsToCome",
    "Named",
    "OfNumbered",
    "Projection",
    "RowMap",
    "applied",
    "check_foreseen",
    "images_of",
    "is_dask_array",
    "lazy_components",
    "map_array",
    "map_collection",
    "map_now",
    "measure",
    "patches_of",
    "reconstructions_of",
    "refuse_bad",
    "rows_beside",
    "scores_of",
    "write_projection",
]
