"""`verify`: read all of a stored model or graph, and compare it with its checksums."""

from __future__ import annotations

import os

from ..manifold.stored_graph import is_graph, verify_graph
from ..storage.disk import expanded
from .store import Verified, verify_model


def verify(path: str | os.PathLike[str]) -> Verified:
    """Read all of a stored model or graph, one file at a time, and compare it with its checksums.

    Parameters
    ----------
    path : path
        Folder of a model, or of a graph of neighbours.

    Returns
    -------
    Verified
        Number of ``arrays``, and their ``nbytes`` as decoded.

    Raises
    ------
    ModelError
        If there is no model or graph, or an array is damaged; names the first.

    Examples
    --------
    >>> import streampca
    >>> from sklearn.datasets import load_digits
    >>> model = streampca.fit(load_digits().images, n_components=10, output="model.zarr")
    >>> streampca.verify("model.zarr").arrays > 10
    True
    """
    if is_graph(path):
        return Verified(*verify_graph(path))
    return verify_model(expanded(path))
