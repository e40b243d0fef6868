"""`Projection`: scores or images to compute from a collection, and its sizes as integers for planning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ...planning.request import Problem
from ...planning.transform_pieces import Parts, Piecewise, plan_pieces
from ...preprocessing import Frame
from ...preprocessing.normalize import normalizing_bytes
from ...preprocessing.sizes_for_planning import multiplied_on, problem_of
from ...readers import Collection
from ...readers.windows import Windows
from ...storage.components import StoredRows
from ..subspace import Subspace, working_dtype


@dataclass(frozen=True)
class Projection:
    """Scores or images to compute from a collection.

    Attributes
    ----------
    subspace, frame : Subspace, Frame
        The model's numbers, and the conversion of rows to images.
    collection : Collection
        Prepared samples, not yet normalized if images are computed from them; or scores.
    whiten : bool
        True if scores are to be whitened, or are whitened already.
    from_scores : bool
        True if the collection holds scores.
    makes_images : bool
        True if images are computed, False for scores.
    residual : bool
        Replace images by the samples minus the images.
    windows : Windows or None
        Windows from which pictures are assembled; None if they are not.
    grid_bytes : int
        Bytes of the coordinates along several axes, of the model and of the samples.
    """

    subspace: Subspace
    frame: Frame
    collection: Collection
    whiten: bool = False
    from_scores: bool = False
    makes_images: bool = False
    residual: bool = False
    windows: Windows | None = None
    grid_bytes: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the result."""
        return working_dtype(self.collection.dtype, self.subspace.components.dtype)

    @property
    def normalizes(self) -> bool:
        """True if samples are normalized after reading: images need the numbers that normalized them."""
        return self.makes_images and not self.from_scores and self.frame.preparation.normalize is not None

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """Dtype of prepared samples, normalized if need be."""
        if not self.normalizes:
            return self.collection.dtype
        return self.frame.normalized(np.ones((1, self.subspace.n_features), self.collection.dtype))[0].dtype

    @property
    def working(self) -> np.dtype[Any]:
        """Dtype in which samples and components are multiplied."""
        if self.from_scores:
            return np.dtype(np.float32 if self.collection.dtype == np.float32 else np.float64)
        return working_dtype(self.row_dtype, self.subspace.components.dtype)

    def sizes(self) -> Problem:
        """Return the sizes of the collection, with those of undoing a preparation's learned steps."""
        problem, frame = problem_of(self.collection), self.frame
        if self.subspace.device:
            problem = multiplied_on(self.subspace.device, problem, beside=self.frame.device_bytes)
        if not self.makes_images or frame.preparation.learned is None:
            return problem
        undoing = problem.scratch_bytes + frame.undoing_bytes
        return replace(problem, scratch_bytes=undoing, held_bytes=max(problem.held_bytes, frame.held_bytes))

    def problem(self) -> Problem:
        """Return the sizes with those of normalizing the samples."""
        # Rows as read and rows as normalized are in memory at the same time.
        problem, p = self.sizes(), self.subspace.n_features
        if not self.normalizes:
            return problem
        row = problem.prepared_bytes + p * self.row_dtype.itemsize
        return replace(problem, prepared_bytes=row, scratch_bytes=problem.scratch_bytes + normalizing_bytes())

    def plan(self, memory: int | None) -> Piecewise:
        """Return the pieces that fit a budget in bytes; raises as `plan_pieces`."""
        return plan_pieces(self.problem(), self.parts(), memory)

    def parts(self) -> Parts:
        """Return the sizes of the model and of its products with samples."""
        components = self.subspace.components
        k, p = components.shape
        stored = components if isinstance(components, StoredRows) else None
        # Whole rows on disk are copied into the piece of features that is read from them.
        copies = 2 if stored is not None and not stored.is_cut else 1
        cast = 0 if self.working == components.dtype else self.working.itemsize
        return Parts(
            n_components=k,
            n_features=p,
            nbytes=k * p * components.dtype.itemsize,
            column_bytes=k * (copies * components.dtype.itemsize + cast),
            held_bytes=self._held_bytes(),
            tile_features=stored.tile_features if stored is not None else 1,
            reading_bytes=stored.reading_bytes if stored is not None else 0,
            value_bytes=self.working.itemsize,
            sample_bytes=0 if self.from_scores else self.row_dtype.itemsize,
            out_bytes=self.dtype.itemsize,
            makes_images=self.makes_images,
            reads_again=self.residual,
        )

    def _held_bytes(self) -> int:
        """Return the bytes of mean, scale, mask and grid, over pixels and features, and of components in memory."""
        pixels, p = prod(self.frame.sample_shape), self.subspace.n_features
        masked = self.frame.mask is not None
        scaled = 0 if self.frame.preparation.scale is None else 8 * (2 * pixels + p)
        held = self.subspace.components.nbytes if isinstance(self.subspace.components, np.ndarray) else 0
        return 8 * pixels + (8 * p + 2 * pixels if masked else 0) + scaled + (1 + masked) * held + self.grid_bytes
