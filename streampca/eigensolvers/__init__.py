"""Eigenpairs with error bounds, from small matrices or from requested products: one solver per file.

`dense` calls LAPACK; `lanczos` requests products from its caller, and so works on anything that can multiply; what it
knows of the matrix is a `krylov_basis`, of which `nystrom` takes more than Ritz pairs do; `error_bounds` bounds the
errors of pairs, whatever computed them, `pair_bounds` those of a basis more closely, and `omitted_variance` the largest
eigenvalue that is missing; `separation` finds pairs that are defined only together; `n_components` turns a request into
a number of components. Input and output are plain arrays: nothing here knows a reader, an executor or the budget.
"""

from .dense import solve_dense
from .error_bounds import FAILURE, Certificate, Sketch, certificate_of, certify, product_bounds, value_bounds
from .generalized import solve_generalized
from .krylov_basis import KrylovBasis
from .lanczos import Lanczos, resume_lanczos, start_lanczos
from .n_components import Rule, Wanted, count_components, elbow, noise_edge
from .nystrom import nystrom_bounds
from .omitted_variance import RestOfBasis, outside_bound, rest_of_basis
from .separation import Cluster, clusters, unseparated
from .signs import extremes, fix_signs, larger
from .solution import Solution

__all__ = [
    "FAILURE",
    "Certificate",
    "Cluster",
    "KrylovBasis",
    "Lanczos",
    "RestOfBasis",
    "Rule",
    "Sketch",
    "Solution",
    "Wanted",
    "certificate_of",
    "certify",
    "clusters",
    "count_components",
    "elbow",
    "extremes",
    "fix_signs",
    "larger",
    "noise_edge",
    "nystrom_bounds",
    "outside_bound",
    "product_bounds",
    "rest_of_basis",
    "resume_lanczos",
    "solve_dense",
    "solve_generalized",
    "start_lanczos",
    "unseparated",
    "value_bounds",
]
