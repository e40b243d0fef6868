"""`PCAModel`: principal components that reconstruct images, define a density, and merge with others."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from ..accumulators import Accumulator
from ..events import Listener, logged
from ..readers.coordinates import CHECK
from ..storage.disk import expanded
from ..units import GIB
from .images import ImageModel
from .likelihood import DensityModel
from .store import ModelWriter

if TYPE_CHECKING:
    from .rotation import RotatedPCAModel

STATE_LIMIT = 1 * GIB  # a larger statistic is saved only with keep_state=True


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PCAModel(ImageModel, DensityModel):
    """Principal components of a collection, with what is needed to apply them to raw images.

    `Model` and `ComponentsModel` document the other attributes.

    Attributes
    ----------
    statistic : Accumulator or None
        The mergeable statistic, if it was kept.
    """

    kind: ClassVar[str] = "pca"

    statistic: Accumulator | None = None

    def merge(
        self,
        *others: PCAModel | str | os.PathLike[str],
        n_components: int | float | str | None = None,
        approximate: bool = False,
        memory: int | str | None = None,
        coordinates: str = CHECK,
        listener: Listener = logged,
    ) -> PCAModel:
        """Return the model of this one's samples and those of others, without reading a sample again.

        Parameters
        ----------
        *others : PCAModel or path
            Models with the same preparation and features, fitted to other samples.
        n_components, approximate, memory, coordinates, listener
            As for `streampca.merge`, which this method calls.
        """
        # Imported by name: merging solves an eigenproblem, and `fitting` lies a layer above.
        merged: PCAModel = import_module("streampca.fitting.merge").merge(
            [self, *others],
            n_components=n_components,
            approximate=approximate,
            memory=memory,
            coordinates=coordinates,
            listener=listener,
        )
        return merged

    def rotate(
        self,
        n_components: int | None = None,
        *,
        power: float = 1,
        max_iterations: int = 1000,
        memory: int | str | None = None,
    ) -> RotatedPCAModel:
        """Rotate the first components so that each has few large loadings: varimax, and promax by a power above 1.

        Loadings are components times their standard deviations, each pixel's scaled to unit length during the rotation
        (Kaiser's normalization); the result depends on how many components are rotated. Scores stay uncorrelated with
        varimax. Promax rotates further, obliquely towards the varimax loadings raised to the power, and scores
        correlate.

        Parameters
        ----------
        n_components : int, optional
            Number of components to rotate, at least 2; all by default.
        power : float, default=1
            Power of promax, at least 1 (varimax); usually 4. A higher power gives simpler patterns and more correlated
            scores.
        max_iterations : int, default=1000
            Most iterations, each a pass over the components: 4 p k^2 flops.
        memory : int or str, optional
            Most bytes to use; half of what the machine allows by default.

        Returns
        -------
        RotatedPCAModel
            Components beyond memory are read piece by piece; the rotated ones are in memory.

        Raises
        ------
        RequestError
            If there are fewer components, one of them has no variance, or the power is below 1.
        ModelError
            If the iterations do not converge.
        BudgetError
            If the rotated components do not fit the budget.

        Examples
        --------
        >>> import streampca
        >>> from sklearn.datasets import load_digits
        >>> digits = load_digits().images
        >>> model = streampca.fit(digits, n_components=10)
        >>> model.rotate(4, power=4).transform(digits).shape
        (1797, 4)
        """
        from .rotation import rotated

        return rotated(self, n_components, power, max_iterations, memory)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, keep_state: bool | None = None) -> None:
        """Write the model to a folder in Zarr: one xarray Dataset.

        Parameters
        ----------
        path : path
            New folder, ``.zarr`` or without an ending; complete only when the call returns.
        overwrite : bool, default=False
            Replace an existing model.
        keep_state : bool, optional
            Save the statistic that `merge` and `partial_fit` require (8 p^2 bytes, or those of a sketch); by default if
            it has at most 1 GiB, or if the model is a part.

        Raises
        ------
        OutputError
            If the path exists, or cannot be written.
        ModelError
            If there are no components, as in an embedding by all features.
        """
        self.count_of(None)
        if keep_state is None:
            state = {} if self.statistic is None else self.statistic.state(copy=False)
            size = sum(values.nbytes for values in state.values())
            keep_state = "part" in self.provenance or size <= STATE_LIMIT
        with ModelWriter(expanded(path), overwrite=overwrite) as writer:
            writer.finish(self, self.statistic if keep_state else None)

    def without_statistic(self) -> PCAModel:
        """Return the model without the p x p statistic, whose memory is freed."""
        return replace(self, statistic=None)
