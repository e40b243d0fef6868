"""Number of components: a given one, a fraction of the variance, all, or what a rule finds in the spectrum.

References
----------
V. Satopaa et al., "Finding a 'kneedle' in a haystack", ICDCS Workshops, 2011 (the elbow).
V. Marchenko, L. Pastur, "Distribution of eigenvalues for some sets of random matrices", Mat. Sb. 72, 1967.
S. Kritchman, B. Nadler, "Determining the number of components in a factor model from limited noisy data",
Chemometrics and Intelligent Laboratory Systems 94, 2008.
M. Gavish, D. Donoho, "The optimal hard threshold for singular values is 4/sqrt(3)", IEEE Trans. Inf. Theory 60, 2014
(noise from the median eigenvalue).
T. Minka, "Automatic choice of dimensionality for PCA", NIPS 2000.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from ..planning.request import ELBOW_SHOWN

Float64 = npt.NDArray[np.float64]

NOISE_STEPS = 20  # of a fixed point whose error shrinks by about count (1 + p/n) / p in each
NEGLIGIBLE = 1e-15  # of the first variance: below lies rounding, which Minka's evidence cannot use


@dataclass(frozen=True)
class Rule:
    """A rule that counts components by the spectrum.

    Attributes
    ----------
    name : {"elbow", "mp", "mle"}
        The point of the scree plot furthest below the line from its first to its 50th variance; components above the
        Marchenko-Pastur edge of white noise; or Minka's maximum of the evidence, for which all eigenvalues must be
        known.
    n_samples, n_features : int
        n and p of the collection.
    total_weight : float, optional
        Sum of the samples' weights; n by default. A rule counts what it would count were each sample there as many
        times as its weight says.
    """

    name: str
    n_samples: int
    n_features: int
    total_weight: float | None = None

    @property
    def copies(self) -> float:
        """Number of samples, each counted as many times as its weight says."""
        return self.n_samples if self.total_weight is None else self.total_weight

    def count(self, values: Float64, total: float, complete: bool) -> int | None:
        """Count components by leading eigenvalues, or return None where more must be known; see `count_components`."""
        complete = complete or len(values) >= min(self.n_samples - 1, self.n_features)
        if complete:
            values = self.of_copies(values)
        if self.name == "elbow":
            return elbow(values) if complete or len(values) >= ELBOW_SHOWN else None
        if self.name == "mp":
            found = above_noise(values, total, self.copies, self.n_features, complete=complete)
            return max(1, found) if complete or found < len(values) else None
        return most_likely(values, self.copies) if complete else None

    def of_copies(self, values: Float64) -> Float64:
        """Return as many eigenvalues as repeated samples have, given all there are: copies add zeros to these."""
        size = int(min(self.copies - 1, self.n_features))
        if size >= len(values):
            return np.append(values, np.zeros(size - len(values)))
        return values[: max(size, int(np.count_nonzero(values > NEGLIGIBLE * values[0])))]


Wanted = int | float | Rule | None


def count_components(values: Float64, total: float, wanted: Wanted, *, complete: bool = False) -> int | None:
    """Return the number of leading components `wanted` asks for, or None when `values` do not reach it yet.

    Parameters
    ----------
    values : ndarray of shape (m,)
        Leading eigenvalues, descending: all of them, or as many as are known.
    total : float
        Sum of all eigenvalues.
    wanted : int, float, Rule or None
        A number of components; or a fraction f, 0 < f < 1: the least k whose values sum to at least f of the total;
        or a rule; or None: all values given.
    complete : bool
        Whether these are all eigenvalues there are.
    """
    if wanted is None:
        return len(values)
    if isinstance(wanted, Rule):
        return wanted.count(values, total, complete)
    if isinstance(wanted, int):
        return wanted if wanted <= len(values) else None
    reached = np.flatnonzero(np.cumsum(values) >= wanted * total)
    return int(reached[0]) + 1 if len(reached) else None


def elbow(values: Float64) -> int:
    """Number of components up to the elbow of the scree plot of the first 50 values, descending; at least 1.

    The elbow is the point furthest below the straight line from the first point to the last. Of the components up to
    it the last is the first of the flat part, and not counted.
    """
    shown = np.asarray(values[:ELBOW_SHOWN], np.float64)
    if len(shown) < 3 or shown[0] <= shown[-1]:
        return 1
    line = np.linspace(shown[0], shown[-1], len(shown))
    return max(1, int(np.argmax(line - shown)))


def noise_edge(values: Float64, total: float, count: int, n_samples: float, n_features: int) -> float:
    """Upper edge of the eigenvalues of white noise, its strength what `count` leading values leave of the total.

    A leading value holds noise of its own, sample covariances stretching what is large: it counts for the variance
    that would have been stretched to it (Kritchman and Nadler, 2008), or the noise would be judged too weak.
    """
    ratio = n_features / (n_samples - 1)
    noise = max(total, 0.0) / n_features
    for _ in range(NOISE_STEPS):
        sizes = values[:count] / noise if noise > 0 else np.zeros(0)
        middle = sizes + 1 - ratio
        true = (middle + np.sqrt(np.maximum(middle**2 - 4 * sizes, 0.0))) / 2
        noise = max(0.0, total - noise * float(np.sum(true - 1))) / n_features
    return float(noise * (1 + ratio**0.5) ** 2)


def above_noise(values: Float64, total: float, n_samples: float, n_features: int, *, complete: bool) -> int:
    """Number of leading eigenvalues above the Marchenko-Pastur edge; assumes white noise.

    The noise is judged by the median eigenvalue where all are known, which outliers leave alone; else by what the
    leading ones leave of the exact total, removing one after the other.
    """
    if complete:
        edge = median_edge(values, n_samples, n_features)
        return int(np.count_nonzero(values > edge))
    count = 0
    while count < len(values) and values[count] > noise_edge(values, total, count, n_samples, n_features):
        count += 1
    return count


def median_edge(values: Float64, n_samples: float, n_features: int) -> float:
    """Upper edge of white noise whose median eigenvalue is that of `values`, all min(n - 1, p) of them."""
    n, p = n_samples - 1, n_features
    ratio = min(n, p) / max(n, p)
    # Eigenvalues of the smaller Gram matrix, a unit being the noise times the longer side.
    return float(np.median(values[: max(1, int(min(n, p)))]) / mp_median(ratio) * (1 + ratio**0.5) ** 2)


def mp_median(ratio: float) -> float:
    """Median of the Marchenko-Pastur law of unit noise and aspect ratio 0 < ratio <= 1."""
    # Loaded on use: together they take about as long as the rest of scipy that every command loads.
    from scipy.integrate import quad
    from scipy.optimize import brentq

    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2

    def mass_above(x: float) -> float:
        # With t = middle + half sin(a) the square root at the edges, where quadrature is poor, is gone.
        middle, half = (high + low) / 2, (high - low) / 2
        start = float(np.arcsin(np.clip((x - middle) / half, -1, 1)))

        def density(a: float) -> float:
            return float((half * np.cos(a)) ** 2 / (2 * np.pi * ratio * (middle + half * np.sin(a) + 1e-300)))

        return float(quad(density, start, np.pi / 2, epsabs=1e-12)[0])

    return float(brentq(lambda x: mass_above(x) - 0.5, low, high, xtol=1e-12))


def most_likely(spectrum: Float64, n_samples: float) -> int:
    """Number of components of the largest evidence (Minka), given all p eigenvalues, descending; at least 1.

    Notes
    -----
    Cost p^2. Scale-free; as in scikit-learn, the rank that keeps everything is not considered.

    Variances of no more than rounding are left out, as in Minka's own program: directions without variance, such as
    constant pixels, are not noise. scikit-learn counts them as noise; the evidence is then unbounded where everything
    else is kept, so that with a constant feature it finds every other component.
    """
    values = np.asarray(spectrum, np.float64) / (n_samples - 1)
    values = values[values > NEGLIGIBLE * values[0]]
    return int(np.argmax(_evidence(values, n_samples))) + 1 if len(values) > 1 else 1


def _evidence(values: Float64, n: float) -> Float64:
    """Logarithm of Minka's evidence (his equation 30) for 1 to p - 1 components of the given variances."""
    p, logs = len(values), np.log(values)
    ranks = np.arange(1, p)
    noise = (np.sum(values) - np.cumsum(values))[:-1] / (p - ranks)
    noise = np.maximum(noise, values[-1])  # the mean of what is left; the difference of sums rounds
    halves = (p - ranks + 1) / 2
    directions = np.cumsum(gammaln(halves) - np.log(np.pi) * halves) - ranks * np.log(2.0)
    likelihood = -n / 2 * (np.cumsum(logs)[:-1] + (p - ranks) * np.log(noise))
    free = p * ranks - ranks * (ranks + 1) / 2
    volume = np.log(2 * np.pi) * (free + ranks) / 2
    evidence = directions + likelihood + volume - (_curvature(values, noise) + free * np.log(n)) / 2
    return evidence - ranks * np.log(n) / 2  # type: ignore[no-any-return]


def _curvature(values: Float64, noise: Float64) -> Float64:
    """Logarithm of the product, over i among the first r and j after i, of (v_i - v_j) (1/w_j - 1/w_i), for every r.

    w is v where it is kept and the noise of rank r after. Kept pairs give (v_i - v_j)^2 / (v_i v_j); so sums of
    log(v_i - v_j) over rows and over columns are enough for all ranks at once.
    """
    p, tiny = len(values), np.finfo(float).tiny
    rows, columns = np.zeros(p), np.zeros(p)
    for i in range(p - 1):
        gaps = np.log(np.maximum(values[i] - values[i + 1 :], tiny))
        rows[i] = np.sum(gaps)
        columns[i + 1 :] += gaps
    ranks, logs = np.arange(1, p), np.log(values)
    within = np.cumsum(columns)[:-1] - (ranks - 1) * np.cumsum(logs)[:-1]
    # Sums over i < r of log(1/noise - 1/v_i): a triangle, row by row.
    beside = [np.sum(np.log(np.maximum(1 / one - 1 / values[:r], tiny))) for r, one in zip(ranks, noise, strict=True)]
    return np.cumsum(rows)[:-1] + within + (p - ranks) * np.array(beside)  # type: ignore[no-any-return]
