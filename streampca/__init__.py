"""streampca: principal components of image collections that do not fit in memory.

Public names are listed here by hand and loaded on first use (PEP 562): importing costs numpy and little more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> the module that holds it
_HOME = {
    "Collection": ".readers",
    "open_collection": ".readers",
    "Preparation": ".preprocessing",
    "Plan": ".planning",
    "Request": ".planning.request",
    "plan": ".fitting.plan",
    "fit": ".fitting.fit",
    "merge": ".fitting.merge",
    "PCAModel": ".models.pca",
    "load_model": ".models.pca",
    "StreamingPCA": ".estimators.streaming_pca",
    "from_patches": ".readers.windows",
    "write_report": ".plot.report",
    "StreampcaError": ".errors",
}
_MODULES = ("errors", "events", "plot", "testing")

__all__ = [
    "Collection",
    "PCAModel",
    "Plan",
    "Preparation",
    "Request",
    "StreamingPCA",
    "StreampcaError",
    "fit",
    "from_patches",
    "load_model",
    "merge",
    "open_collection",
    "plan",
    "write_report",
]

if TYPE_CHECKING:
    from .errors import StreampcaError
    from .estimators.streaming_pca import StreamingPCA
    from .fitting.fit import fit
    from .fitting.merge import merge
    from .fitting.plan import plan
    from .models.pca import PCAModel, load_model
    from .planning import Plan
    from .planning.request import Request
    from .plot.report import write_report
    from .preprocessing import Preparation
    from .readers import Collection, open_collection
    from .readers.windows import from_patches


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
