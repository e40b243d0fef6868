"""Principal component analysis."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from ..errors import RequestError
from .options import MissingRule, NComponents, SpectrumOptions


@dataclass(eq=False, repr=False)
class PCADescription(SpectrumOptions):
    """Description of principal component analysis.

    Parameters
    ----------
    n_components : int, float, {"elbow", "mp", "mle"} or None, default=0.95
        Number of components, share of the variance, or a rule that counts them; None for all. The rules: up to the
        elbow of the first 50 variances; above the Marchenko-Pastur edge, which assumes white noise; or of the largest
        evidence (Minka; needs n >= p).
    missing : {"error", "drop-features", "drop-samples", "em"}, default="error"
        Treatment of NaN and infinity: an error, pixels or samples left out, or probabilistic PCA (em). "error" names
        the first sample that holds one. "drop-features" leaves out pixels missing in any sample, as ``mask="valid"``
        does; "drop-samples" leaves out samples in which a pixel is missing that others have, and masks pixels missing
        in every sample; ``provenance["dropped"]`` says what was left out. "em" leaves out nothing but pixels missing in
        every sample; components are those of the most likely model of the values that exist (EM, several passes,
        started from means in place of missing values). No bound on their error is known; ``provenance["missing"]``
        says how well values are predicted that were held out, one in 64; which ones depends on the order of samples,
        and so does the result, by more than `tol`. It needs a number of components, a fraction or "elbow". All but
        "error" need a pass over the collection before planning.
    """

    kind: ClassVar[str] = "pca"
    grows: ClassVar[bool] = True

    n_components: NComponents = 0.95
    _: KW_ONLY
    missing: MissingRule = "error"

    def check(self) -> None:
        """Refuse methods and numbers of components that conflict with the rule for missing values."""
        super().check()
        if self.method == "em" and self.missing != "em":
            raise RequestError("method 'em' is for missing values; give --missing em (missing='em') with it.")
        if self.missing != "em":
            return
        if self.method not in ("auto", "em"):
            raise RequestError(f"method {self.method!r} needs every value, and missing is 'em'; leave the method out.")
        if self.tol_variance is not None:
            raise RequestError(
                "tol_variance needs bounds on the errors of variances, and none are known with missing='em'; give "
                "--tol (tol) instead."
            )
        if self.n_components in (None, "mp", "mle"):
            raise RequestError(
                f"n_components={self.n_components!r} needs all variances, and missing='em' finds the leading ones; ask "
                "for a number such as 10, a fraction such as 0.9, or 'elbow'."
            )
