"""`ModelEstimator`, the base of the estimators: validate input as scikit-learn does, fit and apply the model."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from ..arrays import Array
from ..errors import RequestError
from ..fitting.arguments import DEFAULT, Arguments, arguments_of
from ..fitting.fit import carry_out, fit, output_of
from ..fitting.open_fit import Opened, drop_misfit_images, open_fit
from ..kinds.description import Description, description_class, fields_of
from ..kinds.run import Run, run_of
from ..models.images import InvertibleModel
from ..models.model import Model
from ..planning.request import Request
from ..preprocessing import Preparation
from ..readers import Collection, open_collection
from ..readers.collection import unmasked
from ..readers.detect import is_dataset, is_lazy_frame, is_sparse
from ..readers.source import as_known_frame, as_source, is_frame, refuse_mapping
from .docstrings import with_parameters
from .scikit_learn import TransformerBase


def of_model(name: str, meaning: str) -> Any:
    """Return a property of estimators that reads an attribute of the fitted model."""
    return property(lambda estimator: getattr(estimator._fitted(f"{name}_"), name), doc=meaning)


def read_only(value: Any) -> Any:
    """Return an array as a view that refuses to be edited, which would change some uses of a model and not others."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _read_only_property(member: property) -> property:
    """Return a property whose arrays are read-only."""
    return property(lambda estimator: read_only(member.__get__(estimator)), doc=member.__doc__)


@dataclass(eq=False, repr=False)
class ModelEstimator(TransformerBase, Description):
    """Base of estimators that fit a model, and apply it to tables, images and everything that can be opened.

    Each estimator is a subclass of the description of its kind, whose fields are its parameters.

    Parameters
    ----------
    preparation : Preparation, optional
        Steps applied to every sample first, and stored in the model; by default none.
    run : Run, optional
        Memory, output, checkpoint and workers of fits, such as ``Run(memory="2 GiB")``, see `streampca.Run`; by default
        half of the memory in this process.
    """

    _: KW_ONLY
    preparation: Preparation | None = None
    run: Run | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make arrays of results read-only; add parameters to the docstring, which is missing under ``-OO``."""
        super().__init_subclass__(**kwargs)
        for name, member in list(vars(cls).items()):
            if isinstance(member, property) and name.endswith("_"):
                setattr(cls, name, _read_only_property(member))
        if cls.kind and cls.__doc__ and "__init__" not in vars(cls):
            cls.__doc__ = with_parameters(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, read_only(value) if name.endswith("_") else value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled estimator, whose arrays numpy unpickles as writable ones."""
        super().__setstate__({name: read_only(value) if name.endswith("_") else value for name, value in state.items()})

    def _arguments(self, **changes: Any) -> Arguments:
        """Return the checked arguments of a fit, with other values of some parameters of the kind."""
        cls = description_class(type(self))
        values = {name: getattr(self, name) for name in fields_of(cls)}
        return arguments_of(fit, cls(**{**values, **changes}), DEFAULT, self.preparation, {"run": self.run})

    def _open(self, raw: Collection, target: Any = None, sample_weight: Any = None) -> Opened:
        """Open and prepare the inputs of a fit, as `streampca.fit` does."""
        if self.target_rule and target is None:
            raise RequestError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; give "
                f"{'the action after' if self.target_rule == 'actions' else 'a label or number of'} each sample."
            )
        arguments = self._arguments()
        output_of(arguments.run, raw, sample_weight, target)  # refuses a wrong output before samples are read
        raw = drop_misfit_images(raw, arguments.preparation)  # `_within` must not count them
        return open_fit(
            raw,
            self._within(arguments.request(), raw.n_samples),
            arguments.preparation,
            sample_weight=sample_weight,
            target=target,
            shared=arguments.run.is_shared,
            listener=arguments.listener,
        )

    def _within(self, request: Request, n_samples: int) -> Request:
        """Return a request of no more components than n_samples samples have; scikit-learn allows some more."""
        return request

    def _carry_out(self, opened: Opened) -> Any:
        """Carry out an opened fit, and store the model here and at the output of the run."""
        run = run_of({"run": self.run})
        output = output_of(run, opened.collection.raw)
        fitted = carry_out(opened, run, output)
        model = self._finished(fitted, opened)
        if output is not None and model is not fitted:  # `carry_out` has written the model before it was finished
            model.save(output.path, overwrite=True)
        self._model: Model | None = model
        return model

    def _finished(self, model: Any, opened: Opened) -> Any:
        """Return a fitted model with the signs and number of components that scikit-learn defines."""
        return model

    @property
    def model_(self) -> Any:
        """The fitted model, of the class of its kind, with names, saving and lazy application."""
        return self._fitted("model_")

    def _fitted(self, name: str) -> Any:
        """Return the model; before a fit, raise an error that names the attribute in question."""
        model: Model | None = self.__dict__.get("_model")
        if model is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet and has no {name}; call fit first.")
        return model

    def __sklearn_is_fitted__(self) -> bool:
        return "_model" in self.__dict__

    @property
    def _memory(self) -> int | str | None:
        """Memory budget of the run, if one is given."""
        return None if self.run is None else self.run.memory

    @property
    def _where(self) -> dict[str, str]:
        """The device of the run, if one is given, as an option of the model's methods."""
        return {} if self.run is None or self.run.device is None else {"device": self.run.device}

    @property
    def _whitens(self) -> bool:
        """True where scores are divided by their standard deviations."""
        return bool(getattr(self, "whiten", False))

    @property
    def _n_features_out(self) -> int:
        return int(self.model_.n_scores)

    def transform(self, X: Any) -> Any:
        """Return scores of samples, (n, n_components_), as float32 for samples in float32; whitened with `whiten`."""
        check_is_fitted(self)
        samples = self._values(X)
        scores = self._scores(samples)
        return scores.astype(np.float32) if is_single(getattr(samples, "dtype", None)) else scores

    def _scores(self, samples: Any) -> Any:
        """Return scores of opened samples; kinds change them here, as scikit-learn wraps what `transform` returns."""
        return self.model_.transform(samples, whiten=self._whitens, **self._where)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit the model, and return the scores of the samples that it was fitted to."""
        return self.fit(X, y, **fit_params).transform(X)

    def inverse_transform(self, X: Any) -> Any:
        """Return samples from scores, in the shape of those fitted: (n, p) or images."""
        check_is_fitted(self)
        where = self._where if isinstance(self.model_, InvertibleModel) else {}
        return self.model_.inverse_transform(as_source(X), whiten=self._whitens, **where)

    def _values(self, X: Any) -> Any:
        """Return samples for the model's `transform`: tables validated as by scikit-learn, others opened or unchanged.

        NaN passes, as the model refuses it inside its mask only, and names the sample.
        """
        source = self._source(X, self.model_.raw_shape)
        is_images = isinstance(source, np.ndarray) and self.model_.raw_shape != (self.n_features_in_,)
        if is_table(source) and not is_images:
            return self._checked(X, source, reset=False, ensure_all_finite=False)
        if is_lazy_frame(source):
            self._check_names(X, reset=False)
        return source if hasattr(source, "dtype") else open_collection(source, like=self.model_)

    def _opened(
        self, X: Any, *, least: int = 2, reset: bool = True, sample_shape: tuple[int, ...] | None = None
    ) -> Collection:
        """Open at least `least` samples, of a shape that may be known; tables are validated as scikit-learn does."""
        source = self._source(X, sample_shape)
        if is_lazy_frame(source):
            self._check_names(X, reset=reset)
        if is_table(source):
            source = self._checked(X, source, reset=reset, ensure_min_samples=least, ensure_all_finite=False)
        collection = open_collection(source)
        if reset:
            self.n_features_in_ = collection.n_features
        return collection

    def _source(self, X: Any, shape: tuple[int, ...] | None = None) -> Any:
        """Return the source of samples, see `as_source`; refuse arrays by name, as no key chooses one of them."""
        refuse_mapping(X, "X is {}, of which one is the samples; give X[{!r}]")
        return as_source(X, shape)

    def _checked(self, X: Any, table: Any, *, reset: bool = True, **checks: Any) -> Any:
        """Return a table validated as scikit-learn does, with the column names of `X` if it is a data frame."""
        checks = {"dtype": "numeric", "accept_sparse": True, **checks}
        if self._check_names(X, reset=reset):
            return check_array(table, input_name="X", estimator=self, **checks)
        return validate_data(self, unmasked(table), reset=reset, **checks)

    def _check_names(self, X: Any, *, reset: bool) -> bool:
        """Record the names of a data frame's columns, or compare them with the recorded ones; False for others."""
        frame = X[0] if isinstance(X, (list, tuple)) and len(X) else X
        if is_lazy_frame(frame):
            frame = frame._meta
        elif not is_frame(frame):
            return False
        validate_data(self, as_known_frame(frame), reset=reset, skip_check_array=True)
        return True

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: `X` may be sparse, and NaN by some rules of `missing`; float32 is preserved."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = getattr(self, "missing", "error") != "error"
        tags.target_tags.required = bool(self.target_rule)
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@dataclass(eq=False, repr=False)
class PaddedEstimator(ModelEstimator):
    """Base of estimators with as many components as requested: those that the samples lack have eigenvalue 0.

    scikit-learn does so. Models hold the others alone.
    """

    @property
    def _pads(self) -> bool:
        """True where components of eigenvalue 0 are kept."""
        return True

    def _limited(self, opened: Opened) -> Opened:
        """Return a fit of no more components than the mapped samples have."""
        collection, count = opened.collection, opened.request.n_components
        if not isinstance(count, int) or opened.request.metric != "euclidean":
            return opened
        most = collection.n_samples - 1
        if collection.pending is None:
            most = min(collection.n_features, most)
        return replace(opened, request=opened.request.asking(n_components=min(count, most)))

    def _set_eigenvalues(self, values: Array) -> None:
        """Store the eigenvalues of the model, and 0 for further components that were requested."""
        self._rank = len(values)
        count = getattr(self, "n_components", None)
        missing = int(count) - len(values) if isinstance(count, Integral) and self._pads else 0
        self.eigenvalues_: Array = np.pad(values, (0, max(0, missing)))

    def _scores(self, samples: Any) -> Any:
        return self._padded(super()._scores(samples))

    def _padded(self, scores: Any) -> Any:
        """Append columns of 0 to scores, for components of eigenvalue 0."""
        missing = len(self.eigenvalues_) - scores.shape[1]
        if missing < 1:
            return scores
        if isinstance(scores, np.ndarray):
            return np.pad(scores, ((0, 0), (0, missing)))
        raise RequestError(
            f"{missing} components have no variance; ask for n_components={scores.shape[1]} to transform lazily."
        )

    @property
    def n_components_(self) -> int:
        """Number of components."""
        check_is_fitted(self)
        return len(self.eigenvalues_)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_


@dataclass(eq=False, repr=False)
class WhiteningEstimator(ModelEstimator):
    """Base of estimators whose scores can be whitened.

    Parameters
    ----------
    whiten : bool, default=False
        Divide scores by the standard deviation along each component. Scores along components whose variance is rounding
        error become 0; scores along axes that are not orthogonal may stay correlated.
    """

    _: KW_ONLY
    whiten: bool = False

    @property
    def _dtype(self) -> Any:
        """Dtype of the fitted samples, as text; None if it is not known."""
        return self.model_.provenance.get("dtype")

    def _in_dtype_of_samples(self, values: Array) -> Array:
        """Return values as float32 if the samples were."""
        return values.astype(np.float32, copy=False) if is_single(self._dtype) else values

    @property
    def components_(self) -> Array:
        """Components as rows of features."""
        return self._in_dtype_of_samples(np.asarray(self._fitted("components_").subspace.components))

    @property
    def mean_(self) -> Array:
        """Mean as a row of features."""
        return self._in_dtype_of_samples(self._fitted("mean_").subspace.mean)

    explained_variance_ = of_model("explained_variance", "Variance along each component.")
    explained_variance_ratio_ = of_model("explained_variance_ratio", "Share of the total variance of each component.")
    n_components_ = of_model("n_components", "Number of components found.")


def is_table(source: Any) -> bool:
    """Return whether scikit-learn validates what `as_source` returned: an array of up to two axes, or none at all."""
    if isinstance(source, np.ndarray):
        return source.ndim <= 2
    if isinstance(source, (list, tuple)):
        return not source  # else they are paths
    is_opened = isinstance(source, (str, os.PathLike, Collection)) or is_lazy_frame(source) or is_dataset(source)
    return is_sparse(source) or not (is_opened or hasattr(source, "dtype"))


def rows_of_all(rows: Array, raw: Collection, chosen: Collection) -> Array:
    """Return a row for every sample of `raw`: the rows of the chosen samples, and NaN for all others."""
    if chosen.kept is None or len(rows) == raw.n_samples:
        return rows
    kept = chosen.kept if raw.kept is None else chosen.kept[raw.kept]  # both count the samples of one base collection
    all_rows = np.full((len(kept), *rows.shape[1:]), np.nan, rows.dtype)
    all_rows[kept] = rows
    return all_rows


def is_single(dtype: Any) -> bool:
    """Return whether a dtype, or None, is float32 in any byte order."""
    return dtype is not None and np.dtype(dtype).newbyteorder("=") == np.float32
