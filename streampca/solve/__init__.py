"""From small matrices, or from products asked for, to eigenpairs with error bounds: one solver a file.

`dense` hands a matrix to LAPACK; `lanczos` asks its caller for products and so works on anything that can multiply;
`certificate` bounds the error of pairs however they were found; `choose` turns what was asked for into a number of
components. Plain arrays in and out: nothing here knows a reader, an executor or the budget.
"""

from .certificate import FAILURE, Certificate, Sketch, certify
from .choose import Rule, Wanted, count_components, elbow, noise_edge
from .dense import dense_bytes, dense_flops, solve_dense
from .lanczos import Lanczos, lanczos_bytes, start_lanczos
from .protocol import Solution

__all__ = [
    "FAILURE",
    "Certificate",
    "Lanczos",
    "Rule",
    "Sketch",
    "Solution",
    "Wanted",
    "certify",
    "count_components",
    "dense_bytes",
    "dense_flops",
    "elbow",
    "lanczos_bytes",
    "noise_edge",
    "solve_dense",
    "start_lanczos",
]
