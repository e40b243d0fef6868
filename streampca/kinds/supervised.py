"""Kinds of model that learn from a target: a label or number of each sample."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

from ..errors import RequestError
from .description import TargetRule, fields_of
from .options import DropOptions, Function, KernelOptions, NComponents, Precision, SeededOptions, TargetType
from .values import Range

Correlation = Annotated[float, Range(least=0, below=1)]


@dataclass(eq=False, repr=False)
class SupervisedDescription(DropOptions, SeededOptions):
    """Base of descriptions of kinds that learn from a target.

    Parameters
    ----------
    precision : {"auto", "single", "double"}, default="auto"
        Precision of products of samples with each other. Products with the target, and sums, are always double.
        "double" helps where classes lie thousands of deviations apart.
    half_life : float, optional
        Number of samples after which a sample counts half as much; by default all count alike.
    """

    _: KW_ONLY
    precision: Precision = "auto"
    half_life: Annotated[float, Range(least=1)] | None = None


@dataclass(eq=False, repr=False)
class SupervisedPCADescription(KernelOptions, SupervisedDescription):
    """Description of supervised principal component analysis.

    Parameters
    ----------
    n_components : int, float or None, default=None
        Number of axes, share of the criterion, or None for all. All are one less than there are classes, or as many as
        a sample has numbers.
    kernel : str or callable, optional
        Kernel in whose features the axes are found; by default in those of the samples.
    target_type : {"auto", "classes", "numbers"}, default="auto"
        Type of the target; auto goes by its values, and says what it chose. "auto" takes text, yes or no, and whole
        numbers of any dtype for classes, unless more than half of the whole numbers are different; all else for
        numbers. It refuses whole numbers without gaps of which more than half are different and some are not.
    """

    kind: ClassVar[str] = "supervised-pca"
    target_rule: ClassVar[TargetRule] = "features"

    n_components: NComponents = None
    _: KW_ONLY
    kernel: str | Function | None = None
    target_type: TargetType = "auto"

    def check(self) -> None:
        """Refuse options of a kernel if there is no kernel."""
        super().check()
        if self.kernel is not None:
            return
        for name, field in fields_of(KernelOptions).items():
            if getattr(self, name) != field.default:
                raise RequestError(
                    f"{name} is of a kernel, and kind {self.kind!r} has none unless it is named; leave it out, or give "
                    "--kernel rbf (kernel='rbf')."
                )


@dataclass(eq=False, repr=False)
class SupervisedPrincipalComponentsDescription(SupervisedDescription):
    """Description of supervised principal components.

    Parameters
    ----------
    n_components : int, float or None, default=1
        Number of components, share of the variance of the features kept, or None for all.
    threshold : float or "auto", default="auto"
        Least correlation with the target of features that are kept, either way; auto is cross-validated. It compares
        numbers of features, each half as large again as the last, and chooses that with the least squared error.
    n_folds : int, default=5
        Number of folds of that cross-validation, into which random_state deals the samples.
    target_type : {"auto", "numbers"}, default="auto"
        Type of the target: numbers, or text of two labels, which stand for 0 and 1. Classes are refused.
    """

    kind: ClassVar[str] = "supervised-principal-components"
    target_rule: ClassVar[TargetRule] = "number"

    n_components: NComponents = 1
    _: KW_ONLY
    threshold: Correlation | Literal["auto"] = "auto"
    n_folds: Annotated[int, Range(least=2)] = 5
    target_type: Literal["auto", "numbers"] = "auto"


@dataclass(eq=False, repr=False)
class FisherDiscriminantDescription(SupervisedDescription):
    """Description of Fisher's linear discriminants.

    Parameters
    ----------
    n_components : int, float or None, default=None
        Number of axes, share of the separation along all, or None for all: the classes less one.
    shrinkage : float, optional
        Share by which covariances move towards multiples of the identity, from 0 to 1; by default none. As in
        scikit-learn's LinearDiscriminantAnalysis. It is needed where features are constant, follow from others, or
        outnumber samples.
    target_type : {"auto", "classes"}, default="auto"
        Type of the target: text and whole numbers are classes; "classes" also allows fractions. Numbers are refused.
    """

    kind: ClassVar[str] = "fisher-discriminant"
    target_rule: ClassVar[TargetRule] = "classes"

    n_components: NComponents = None
    _: KW_ONLY
    shrinkage: Annotated[float, Range(least=0, most=1)] | None = None
    target_type: Literal["auto", "classes"] = "auto"


@dataclass(eq=False, repr=False)
class SlicedInverseRegressionDescription(SupervisedDescription):
    """Description of sliced inverse regression.

    Parameters
    ----------
    n_components : int, float or None, default=None
        Number of directions, share of the separation along all, or None for all. They are fewer than slices.
    n_slices : int, default=10
        Number of parts of the sorted target, at least 2. Equal numbers are of one slice, so that there may be fewer.
    target_type : {"auto", "numbers"}, default="auto"
        Type of the target: numbers. Classes are refused.
    """

    kind: ClassVar[str] = "sliced-inverse-regression"
    target_rule: ClassVar[TargetRule] = "slices"

    n_components: NComponents = None
    _: KW_ONLY
    n_slices: Annotated[int, Range(least=2)] = 10
    target_type: Literal["auto", "numbers"] = "auto"
