"""streampca: principal components of image collections that do not fit in memory.

Public names are listed here by hand and loaded on first use (PEP 562): importing costs numpy and little more.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if os.name != "posix":  # files are read and written at positions, locked, and replaced while they are open
    raise ImportError(
        f"streampca runs on Linux and macOS, and this Python is built for {os.name!r}. On Windows, install it in the "
        "Windows Subsystem for Linux (wsl --install)."
    )

# Threads of OpenBLAS that have nothing to do wait, spinning, for 2**26 cycles by default, some 20 ms. After 2**14 they
# sleep: a few per cent faster where nothing else runs, with less processor time, and up to eight times faster where
# other processes use the cores. It is read when a library with OpenBLAS is loaded: numpy, and scipy after it.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "14")

# public name -> the module that holds it
_HOME = {
    "Collection": ".readers",
    "open_collection": ".readers",
    "Preparation": ".preprocessing",
    "Plan": ".planning",
    "plan": ".fitting.plan",
    "fit": ".fitting.fit",
    "merge": ".fitting.merge",
    "update": ".fitting.update",
    "follow": ".fitting.follow",
    "Model": ".models.model",
    "PCAModel": ".models.pca",
    "load": ".models.load",
    "hsic": ".fitting.hsic",
    "neighbors": ".fitting.neighbors",
    "plan_hsic": ".fitting.hsic",
    "plan_neighbors": ".fitting.neighbors",
    "copy": ".fitting.copy",
    "export_components": ".models.export",
    "is_graph": ".manifold.stored_graph",
    "verify": ".models.verify",
    "storage_options": ".storage.remote",
    "NeighborGraph": ".manifold.neighbor_graph",
    "bootstrap": ".models.bootstrap",
    "Run": ".kinds.run",
    "Opening": ".kinds.opening",
    "Pace": ".fitting.follow",
    "PCA": ".estimators.pca",
    "SupervisedPCA": ".estimators.supervised",
    "SupervisedPrincipalComponents": ".estimators.supervised",
    "FisherDiscriminant": ".estimators.supervised",
    "SlicedInverseRegression": ".estimators.supervised",
    "KernelPCA": ".estimators.kernel_pca",
    "ClassicalMDS": ".estimators.classical_mds",
    "ActionRespectingEmbedding": ".estimators.manifold",
    "Isomap": ".estimators.manifold",
    "LocallyLinearEmbedding": ".estimators.manifold",
    "MaximumVarianceUnfolding": ".estimators.manifold",
    "SpectralClustering": ".estimators.manifold",
    "SpectralEmbedding": ".estimators.manifold",
    "from_patches": ".readers.windows",
    "write_report": ".plot.report",
    "StreampcaError": ".errors",
}
_MODULES = ("errors", "events", "plot", "testing")

__all__ = [*_HOME]

if TYPE_CHECKING:
    from .errors import StreampcaError as StreampcaError
    from .estimators.classical_mds import ClassicalMDS as ClassicalMDS
    from .estimators.kernel_pca import KernelPCA as KernelPCA
    from .estimators.manifold import ActionRespectingEmbedding as ActionRespectingEmbedding
    from .estimators.manifold import Isomap as Isomap
    from .estimators.manifold import LocallyLinearEmbedding as LocallyLinearEmbedding
    from .estimators.manifold import MaximumVarianceUnfolding as MaximumVarianceUnfolding
    from .estimators.manifold import SpectralClustering as SpectralClustering
    from .estimators.manifold import SpectralEmbedding as SpectralEmbedding
    from .estimators.pca import PCA as PCA
    from .estimators.supervised import FisherDiscriminant as FisherDiscriminant
    from .estimators.supervised import SlicedInverseRegression as SlicedInverseRegression
    from .estimators.supervised import SupervisedPCA as SupervisedPCA
    from .estimators.supervised import SupervisedPrincipalComponents as SupervisedPrincipalComponents
    from .fitting.copy import copy as copy
    from .fitting.fit import fit as fit
    from .fitting.follow import Pace as Pace
    from .fitting.follow import follow as follow
    from .fitting.hsic import hsic as hsic
    from .fitting.hsic import plan_hsic as plan_hsic
    from .fitting.merge import merge as merge
    from .fitting.neighbors import neighbors as neighbors
    from .fitting.neighbors import plan_neighbors as plan_neighbors
    from .fitting.plan import plan as plan
    from .fitting.update import update as update
    from .kinds.opening import Opening as Opening
    from .kinds.run import Run as Run
    from .manifold.neighbor_graph import NeighborGraph as NeighborGraph
    from .manifold.stored_graph import is_graph as is_graph
    from .models.bootstrap import bootstrap as bootstrap
    from .models.export import export_components as export_components
    from .models.load import load as load
    from .models.model import Model as Model
    from .models.pca import PCAModel as PCAModel
    from .models.verify import verify as verify
    from .planning import Plan as Plan
    from .plot.report import write_report as write_report
    from .preprocessing import Preparation as Preparation
    from .readers import Collection as Collection
    from .readers import open_collection as open_collection
    from .readers.windows import from_patches as from_patches
    from .storage.remote import storage_options as storage_options


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name], __name__), name)
    elif name in _MODULES:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])
