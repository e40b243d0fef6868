"""`KernelPCAModel`: components in the feature space of a kernel, and pre-images of points of that space.

References
----------
Schölkopf, Smola and Müller (1998), Nonlinear component analysis as a kernel eigenvalue problem.
Mika, Schölkopf, Smola, Müller, Scholz and Rätsch (1998), Kernel PCA and de-noising in feature spaces (fixed points).
Bakır, Weston and Schölkopf (2004), Learning to find pre-images (regression).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, ClassVar, Unpack

import numpy as np

from ..accumulators.products import double_products
from ..arrays import Array, Float64
from ..errors import ModelError, RequestError
from ..kinds.opening import OpeningOptions
from ..planning.registry import OF_KERNEL
from ..preprocessing import Frame, Preparation
from ..preprocessing.feature_map import FeatureMap, KernelMap
from ..preprocessing.kernels import Kernel
from ..preprocessing.landmark_rows import LandmarkRows
from ..readers.coordinates import CHECK
from ..readers.detect import is_data_array
from .components import ComponentsModel
from .data_arrays import MapResult
from .images import array_of_scores
from .likelihood import DensityModel
from .model import over
from .pca import PCAModel
from .subspace import Subspace, multiplied_there
from .transform import map_array

RIDGE = 1e-3  # relative to the mean diagonal of the kernel of scores
REFERENCES = 2000  # most samples that pre-images are learned from: their kernel matrix is solved in memory
REFERENCE_BYTES = 128 * 2**20  # most bytes of these samples as float64, where they are read from disk
FIXED_STEPS, FIXED_TOLERANCE = 100, 1e-6  # most iterations; the largest last step, relative to the landmarks
PRE_IMAGE_METHODS = ("ridge", "fixed-point")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class KernelPCAModel(DensityModel):
    """Principal components in the feature space of a kernel; see `PCAModel` for the other attributes.

    Samples are mapped to q features whose inner products equal or approximate the kernel's values. `components` and
    `mean` have these features, (k, q) and (q,), and `error_bound` holds for mapped samples. `residual_estimate` and
    `left_out` measure the distance of the map from the kernel; they are estimates, not bounds.

    Attributes
    ----------
    residual_estimate : ndarray of shape (k,)
        Estimates of |K~ u - l u| / l for the centred kernel matrix K~ of all samples and the unit vector u of their
        scores along each component, from `checked_rows` rows chosen at random. Some eigenvalue of K~ lies within
        this share of l.
    left_out : float
        Largest share of the variance of the kernel's own features that landmarks may leave out; NaN with random
        features.
    checked_rows : int
        Number of rows of the kernel matrix that were computed.
    references : ndarray of shape (r, p)
        Samples, not mapped, from which pre-images are learned where there are no landmarks.
    """

    kind: ClassVar[str] = "kernel-pca"

    residual_estimate: Float64 = field(metadata=over("component"))
    left_out: float = field(metadata=over())
    checked_rows: int = field(metadata=over())
    references: Array = field(metadata=over("reference", "pixel"))

    @property
    def instead(self) -> str:
        """Remedy where principal components are required; see `Model.instead`."""
        return "in Python, reconstruct and inverse_transform give lazy arrays of its pre-images"

    @property
    def mapping(self) -> FeatureMap:
        """The feature map."""
        assert self.preparation.mapped is not None  # noqa: S101 - of models of this kind
        return self.preparation.mapped

    @property
    def kernel(self) -> Kernel:
        """The kernel, with the parameters that were estimated."""
        return self.mapping.kernel

    def __repr__(self) -> str:
        return repr_in_features(self, self.mapping)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the map, and about the variance that it leaves out."""
        mapping, request = self.mapping, self.preparation.feature_map
        if not isinstance(mapping, KernelMap):
            features = f"{mapping.n_features} random features"
        elif request is not None and request.is_exact:
            features = f"all {len(mapping.landmarks)} samples as landmarks: exact"
        else:
            features = (
                f"{len(mapping.landmarks)} landmarks, which leave out at most {self.left_out:.2%} of the variance"
            )
        of_map = f"kernel {self.kernel} by {features}"
        if not self.n_components:
            return (of_map,)
        worst = int(np.argmax(self.residual_estimate))
        if isinstance(mapping, KernelMap) and self.checked_rows >= len(mapping.landmarks) and self.left_out == 0:
            residuals = f"residuals in the kernel's own features are at most {self.residual_estimate[worst]:.2g}"
            return (of_map, f"{residuals}, by the whole kernel matrix")
        return (
            of_map,
            f"residuals in the kernel's own features are about {np.median(self.residual_estimate):.2g} (median), at "
            f"most {self.residual_estimate[worst]:.2g} (component {worst + 1}), as estimated from "
            f"{int(self.checked_rows)} rows of the kernel matrix: no bounds; those above hold for mapped "
            "samples",
        )

    def as_images(self) -> PCAModel:
        """Return a model of images to draw in place of this one, in the units of prepared images.

        Its mean is the pre-image of the mean. Its components, of unit length, are the differences between the
        pre-images of two points on each component, one standard deviation to either side of the mean.
        """
        steps = np.diag(np.sqrt(self.explained_variance))
        images = np.asarray(self.inverse_transform(np.vstack([np.zeros((1, len(steps))), steps, -steps])))
        k = len(steps)
        differences = images[1 : k + 1] - images[k + 1 :]
        lengths = np.sqrt(np.nansum(np.square(differences).reshape(k, -1), axis=1)).reshape(
            k, *[1] * (differences.ndim - 1)
        )
        of_images = {
            "components": np.divide(differences, lengths, out=differences, where=lengths > 0),
            "mean": images[0],
            "sample_dims": image_dims(images.shape[1:]),
            "raw_shape": images.shape[1:],
            "raw_kind": "f",
            "mask": self.image_frame.mask,
            "preparation": Preparation(),
        }
        return PCAModel(**{entry.name: getattr(self, entry.name) for entry in fields(ComponentsModel)} | of_images)

    @property
    def embedding(self) -> Float64:
        """Scores of the samples fitted, (n, k), where all of them are landmarks.

        Raises
        ------
        ModelError
            If some are not, or if they have weights and are not in memory; `transform` the samples then.
        """
        mapping, request = self.mapping, self.preparation.feature_map
        if isinstance(mapping, KernelMap) and request is not None and request.is_exact:
            if isinstance(mapping.landmarks, np.ndarray):
                return self.transform_rows(mapping.landmarks)
            # The map's weights are eigenvectors over square roots of eigenvalues, so no landmark has to be read.
            if self.total_weight is None:
                scores: Float64 = mapping.weights.T * ((self.n_samples - 1) * self.explained_variance)
                return scores
        raise ModelError(f"{self.name} does not hold the scores of the samples it was fitted on; transform them.")

    def transform_rows(self, rows: Array) -> Float64:
        """Map rows of features with the kernel's map and return their scores, (m, p) to (m, k)."""
        scores: Float64 = self.subspace.project(self.mapping(rows)).astype(np.float64, copy=False)
        return scores

    # -- pre-images

    def inverse_transform(
        self, scores: Any, *, whiten: bool = False, coordinates: str = CHECK, method: str = "ridge"
    ) -> Any:
        """Return pre-images: samples whose features lie near those of scores. No exact inverse exists.

        Parameters
        ----------
        scores : ndarray or dask array of shape (n, j)
            Scores along the first j components, j <= k.
        whiten, coordinates
            As for `InvertibleModel.inverse_transform`.
        method : {"ridge", "fixed-point"}, default="ridge"
            "ridge" regresses landmarks (with random features, `references`) on their scores. "fixed-point", for kernel
            "rbf" with landmarks, iterates from that pre-image to the sample with the nearest features (Mika et al.), a
            weighted mean of landmarks.

        Returns
        -------
        ndarray or dask array of shape (n, *image_shape)
            Prepared images, scale and standardize undone; NaN outside the mask.

        Raises
        ------
        RequestError
            If scores have more columns than there are components, or this kernel has no fixed points.
        """
        self._check_pre_image_method(method)
        if is_data_array(scores):
            raise RequestError("pre-images are made of arrays of scores; give scores.data.")
        array = array_of_scores(scores, self.n_components)
        function = partial(self._images_of, method=method, whiten=whiten)
        return map_array(
            array, function, shape=self.image_frame.sample_shape, dtype=np.float64, named="scores {}".format
        )

    def reconstruct(
        self,
        samples: Any,
        /,
        n_components: int | None = None,
        *,
        missing: str | None = None,
        method: str = "ridge",
        device: str | None = None,
        **opening: Unpack[OpeningOptions],
    ) -> Any:
        """Return pre-images of the projections of samples on the first components; see `inverse_transform`."""
        self._check_pre_image_method(method)
        subspace = multiplied_there(self._first(n_components, missing), device, self.frame.device_bytes)
        steps = self.preparation.multiplying(double_products(device))
        function = partial(self._reconstructed, subspace=subspace, method=method)
        shape = self.image_frame.sample_shape
        result = MapResult(image_dims(shape), "images", shape=shape, dtype=np.float64)
        return self._mapped(samples, function, result, steps, opening=opening, missing=subspace.missing)

    @property
    def image_frame(self) -> Frame:
        """Conversion of raw images to the rows that the kernel compares, and back."""
        return self.frame.before_map

    def _check_pre_image_method(self, method: str) -> None:
        if method not in PRE_IMAGE_METHODS:
            raise RequestError(f"method {method!r} is not one of {', '.join(PRE_IMAGE_METHODS)}.")
        plan = self.provenance.get("plan") or {}
        if method == "fixed-point" and self.provenance.get("sample_weight") and plan.get("method") == OF_KERNEL:
            raise RequestError(
                f"fixed points are of samples that weigh the same, and {self.name} was fitted with weights by method "
                f"{OF_KERNEL!r}; use method='ridge'."
            )
        if method == "fixed-point" and not (self.kernel.name == "rbf" and isinstance(self.mapping, KernelMap)):
            raise RequestError(
                f"fixed points are of kernel 'rbf' with landmarks, and the kernel is {self.kernel.name!r}"
                f"{'' if isinstance(self.mapping, KernelMap) else ' with random features'}; use method='ridge'."
            )

    def _reconstructed(self, rows: Array, *, subspace: Subspace, method: str) -> Array:
        """Return images of mapped rows."""
        return self._images_of(subspace.project(rows), method=method)

    def _images_of(self, scores: Array, *, method: str, whiten: bool = False) -> Array:
        """Return images of scores along the first components."""
        scores = np.asarray(scores, np.float64)
        if whiten:
            scores = scores * np.sqrt(self.explained_variance[: scores.shape[1]])
        complete = np.isfinite(scores).all(axis=1)
        rows = np.full((len(scores), self.image_frame.n_features), np.nan)
        rows[complete] = self._score_regression.rows_at(scores[complete])
        if method == "fixed-point":
            rows[complete] = self._fixed_points(scores[complete], rows[complete])
        return self.image_frame.images(rows)

    @cached_property
    def _score_regression(self) -> ScoreRegression:
        """Regression of samples on their scores."""
        mapping = self.mapping
        rows = mapping.landmarks if isinstance(mapping, KernelMap) else self.references
        streamed = isinstance(rows, LandmarkRows)
        most = max(2, REFERENCE_BYTES // (8 * rows.shape[1])) if streamed else REFERENCES
        # Evenly spaced, so that samples ordered in time or by class are all represented.
        indices = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), REFERENCES, most)).astype(np.intp))
        references = rows.take(indices) if isinstance(rows, LandmarkRows) else rows[indices]
        return ScoreRegression.fit(self.transform_rows(references), np.asarray(references, np.float64))

    def _fixed_points(self, scores: Float64, start: Float64) -> Float64:
        """Iterate from starting rows to fixed points, which are weighted means of landmarks."""
        mapping = self.mapping
        assert isinstance(mapping, KernelMap)  # noqa: S101 - see `_check_pre_image_method`
        kept = np.asarray(self.components[: scores.shape[1]], np.float64)
        weights = (self.mean + scores @ kept) @ mapping.weights
        # A map centred on the mean of the landmarks gives each of them an equal share of that mean.
        if mapping.offset.any():
            weights += (1 - weights.sum(axis=1, keepdims=True)) / weights.shape[1]
        points, landmarks = start - mapping.origin, mapping.compared
        moving = np.arange(len(points))
        for _ in range(FIXED_STEPS):
            # The gradient of the distance in feature space vanishes where a point is this weighted mean of landmarks.
            terms = weights[moving] * self.kernel.between(points[moving], landmarks)
            totals = terms.sum(axis=1, keepdims=True)
            usable = np.abs(totals[:, 0]) > np.finfo(float).tiny  # a point far from all landmarks stays where it is
            moving, terms, totals = moving[usable], terms[usable], totals[usable]
            moved = terms @ landmarks / totals
            step = np.abs(moved - points[moving]).max(axis=1, initial=0)
            points[moving] = moved
            moving = moving[step > FIXED_TOLERANCE * max(1.0, float(np.abs(landmarks).max()))]
            if not len(moving):
                break
        return points + mapping.origin


def repr_in_features(model: ComponentsModel, mapping: FeatureMap) -> str:
    """Return the representation of a model whose components lie in the features of a kernel."""
    ratio, options = float(model.explained_variance_ratio.sum()), model.preparation.feature_map
    if options is not None and options.is_exact:  # the number of features depends on the method
        return (
            f"{type(model).__name__}({model.n_components} components, kernel {mapping.kernel} of all "
            f"{model.n_samples} samples, {ratio:.1%} of the variance)"
        )
    return (
        f"{type(model).__name__}({model.n_components} components in {mapping.n_features} features of kernel "
        f"{mapping.kernel}, {ratio:.1%} of their variance over {model.n_samples} samples)"
    )


def image_dims(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return names for the axes of images, of which the components, in mapped features, have none."""
    return ("y", "x") if len(shape) == 2 else tuple(f"axis_{axis}" for axis in range(len(shape)))


@dataclass(frozen=True, eq=False)
class ScoreRegression:
    """Kernel ridge regression of rows on scores.

    Attributes
    ----------
    kernel : Kernel
        Kernel between scores: "rbf", with gamma from the median of their distances.
    scores : ndarray of shape (m, k)
    weights : ndarray of shape (m, p)
    mean : ndarray of shape (p,)
        Mean of the rows.
    """

    kernel: Kernel
    scores: Float64
    weights: Float64
    mean: Float64

    @classmethod
    def fit(cls, scores: Float64, rows: Float64) -> ScoreRegression:
        """Solve for the weights, which takes m^3 / 3 + 2 m^2 p flops."""
        # The median distance of equal scores is 0, which is no width of a kernel.
        spread = bool(len(scores) > 1 and np.ptp(scores, axis=0).any())
        kernel = Kernel("rbf").resolved(scores) if spread else Kernel("linear")
        matrix, mean = kernel.matrix(scores, scores), rows.mean(axis=0)
        matrix[np.diag_indices_from(matrix)] += RIDGE * max(float(matrix.diagonal().mean()), np.finfo(float).tiny)
        return cls(kernel, scores, np.linalg.solve(matrix, rows - mean), mean)

    def rows_at(self, scores: Float64) -> Float64:
        """Return the rows predicted from scores along the first components; those along the others count as 0."""
        padded = np.zeros((len(scores), self.scores.shape[1]))
        padded[:, : scores.shape[1]] = scores
        rows: Float64 = self.kernel.matrix(padded, self.scores) @ self.weights
        rows += self.mean
        return rows
