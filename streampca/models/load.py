"""`load`: a stored model of any kind, its components in memory or on disk; or a graph of neighbours."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..preprocessing.sizes_for_planning import this_machine
from ..storage.disk import expanded
from ..storage.integrity import read_model, read_unreplaced
from ..storage.outputs import group_attribute
from ..units import parse_bytes
from .map_arrays import required
from .model import Model
from .pca import PCAModel
from .registry import MODEL_KINDS, model_class
from .store import read_fields, read_statistic


def load(
    path: str | os.PathLike[str],
    *,
    statistic: bool = False,
    memory: int | str | None = None,
    kernel: Callable[[Any, Any], float] | None = None,
    components: bool = True,
) -> Any:
    """Load a model of any kind, or a graph of nearest neighbours.

    Components of at most a quarter of the budget are read into memory. Larger ones stay on disk and are read piece by
    piece when they are needed: ``model.components`` is then a `streampca.storage.components.StoredComponents`, which
    gives arrays when it is sliced.

    Parameters
    ----------
    path : path
        Folder that `fit`, `Model.save` or `neighbors` wrote, or the command of the same name.
    statistic : bool, default=False
        Also load the statistic that `partial_fit` updates, 8 p^2 bytes, if the model has it.
    memory : int or str, optional
        Most bytes to use with the model, such as ``"2 GiB"``; half of what the machine allows by default.
    kernel : callable, optional
        Kernel that the model was fitted with, if it is a function of your own: models store only its name.
    components : bool, default=True
        Read components into memory if they fit; False leaves them on disk.

    Returns
    -------
    Model or NeighborGraph
        Model of the class that belongs to its kind, such as `PCAModel`. The other parameters are for models alone.

    Raises
    ------
    ModelError
        If there is no model or graph, or it is incomplete, damaged, of an unknown kind, or of a newer format.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> digits = load_digits().images
    >>> model = streampca.fit(digits, n_components=10, output="model.zarr")
    >>> streampca.load("model.zarr")
    PCAModel(10 components of 8 x 8 samples, 73.8% of the variance of 1797 samples)
    """
    about = group_attribute(expanded(path))
    if about is not None and about.get("kind") not in MODEL_KINDS:
        from ..manifold.stored_graph import is_graph, load_graph  # half of all imports, which models do without

        if is_graph(path):
            return load_graph(path)
    return load_model(path, statistic=statistic, memory=memory, kernel=kernel, components=components)


def load_model(
    path: str | os.PathLike[str],
    *,
    statistic: bool = False,
    memory: int | str | None = None,
    kernel: Callable[[Any, Any], float] | None = None,
    components: bool = True,
) -> Model:
    """Load a model, and refuse a graph; parameters and errors as of `load`."""
    budget, _ = this_machine().budget(parse_bytes(memory))
    folder = expanded(path)

    def read() -> Model:
        opened = read_model(folder, MODEL_KINDS, memory=budget)
        kind = model_class(opened.about["kind"])
        model = kind.of_fields(
            read_fields(opened, budget if components else 0, kernel),
            {name: required(opened, f"{kind.prefix}{name}")[()] for name in kind.own_arrays()},  # arrays, and numbers
        )
        if statistic and isinstance(model, PCAModel):
            return replace(model, statistic=read_statistic(folder, memory=budget))
        return model

    # Reads again if another process replaced the model meanwhile, so that all arrays belong together.
    return read_unreplaced(folder, read)
