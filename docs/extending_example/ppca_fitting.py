"""Method 'ppca': method 'covariance', and the variance that its components leave, taken for noise.

Inside the package it is streampca/fitting/methods/ppca.py, with the row ``"ppca": fit_ppca`` in
`fitting.methods.METHODS`.
"""

from dataclasses import replace

from streampca.errors import RequestError
from streampca.fitting.methods.covariance import fit_covariance


def fit_ppca(job):
    """Carry out a plan of method 'ppca'."""
    found = fit_covariance(job)
    left_out = job.plan.problem.n_features - len(found.explained_variance)
    left = found.total_variance - found.explained_variance.sum()
    if left_out == 0 or left <= 0:
        raise RequestError("method 'ppca' needs variance that the components leave out; ask for fewer components.")
    return replace(found, kind="ppca", own_fields={"noise": left / left_out})
