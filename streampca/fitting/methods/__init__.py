"""Methods of fitting, one per file, in the registry `METHODS`.

A method is a function of a `Job` (a collection, a plan, an executor and a listener) that returns a `Decomposition`;
`fitting` picks it from the table below and makes a model of the result.
"""

from collections.abc import Callable

from .class_scatter import fit_class_scatter
from .covariance import decompose, fit_covariance
from .cross_scatter import fit_cross_scatter
from .data_checks import check_products, check_variance
from .dual import fit_dual
from .em import fit_em
from .frequent_directions import decompose_sketch, sketch_of_model
from .job import Decomposition, Job
from .kernel_matrix import fit_kernel_matrix
from .randomized_features import fit_randomized
from .screening import fit_screening
from .symmetric import fit_symmetric

__all__ = [
    "METHODS",
    "Decomposition",
    "Job",
    "check_products",
    "check_variance",
    "decompose",
    "decompose_sketch",
    "sketch_of_model",
]

METHODS: dict[str, Callable[[Job], Decomposition]] = {
    "covariance": fit_covariance,
    "dual": fit_dual,
    "randomized": fit_randomized,
    "em": fit_em,
    "cross-scatter": fit_cross_scatter,
    "class-scatter": fit_class_scatter,
    "screening": fit_screening,
    "symmetric": fit_symmetric,
    "kernel-matrix": fit_kernel_matrix,
}
