"""Number of components: given, by a fraction of the variance, all, or by a rule on the spectrum.

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
from scipy.special import gammaln

from ..arrays import Float64
from ..planning.request import ELBOW_SHOWN

NOISE_STEPS = 20  # steps of a fixed-point iteration, each of which shrinks the error by about count (1 + p/n) / p
NEGLIGIBLE = 1e-15  # share of the first variance below which variances are rounding, which Minka's evidence cannot use


@dataclass(frozen=True)
class Rule:
    """Rule that counts components by the spectrum.

    Attributes
    ----------
    name : {"elbow", "mp", "mle"}
        The point of the scree plot furthest below the line from its first to its 50th variance; components above the
        Marchenko-Pastur edge of white noise; or Minka's maximum of the evidence, for which all eigenvalues must be
        known.
    n_samples, n_features : int
        n and p of the collection.
    total_weight : float, optional
        Sum of the samples' weights; n by default. A rule counts as if each sample were repeated as often as its weight.
    """

    name: str
    n_samples: int
    n_features: int
    total_weight: float | None = None

    @property
    def copies(self) -> float:
        """Number of samples, each counted as often as its weight."""
        return self.n_samples if self.total_weight is None else self.total_weight

    def count(self, values: Float64, total: float, complete: bool) -> int | None:
        """Return the number of components by leading eigenvalues, None if more are needed; see `count_components`."""
        complete = complete or len(values) >= min(self.n_samples - 1, self.n_features)
        if complete:
            values = self.of_copies(values)
        if self.name == "elbow":
            return elbow(values) if complete or len(values) >= ELBOW_SHOWN else None
        if self.name == "mp":
            count = above_noise(values, total, self.copies, self.n_features, complete=complete)
            return max(1, count) if complete or count < len(values) else None
        return most_likely(values, self.copies) if complete else None

    def of_copies(self, values: Float64) -> Float64:
        """Return the eigenvalues of repeated samples, given all those of the samples: repetition adds zeros."""
        size = int(min(self.copies - 1, self.n_features))
        if size >= len(values):
            return np.append(values, np.zeros(size - len(values)))
        return values[: max(size, int(np.count_nonzero(values > NEGLIGIBLE * values[0])))]


Wanted = int | float | Rule | None


def count_components(values: Float64, total: float, wanted: Wanted, *, complete: bool = False) -> int | None:
    """Return the number of leading components that `wanted` requests, or None if `values` do not suffice yet.

    Parameters
    ----------
    values : ndarray of shape (m,)
        Leading eigenvalues, descending: all, or those computed so far.
    total : float
        Sum of all eigenvalues.
    wanted : int, float, Rule or None
        A number of components; or a fraction f, 0 < f < 1: the least k whose values sum to at least f of the total;
        or a rule; or None: all values given.
    complete : bool
        Whether `values` are all eigenvalues.
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
    """Return the number of components before the elbow of the scree plot of the first 50 values; at least 1.

    The elbow is the point furthest below the straight line from the first point to the last. Its component is the first
    of the flat part, and is not counted.
    """
    shown = np.asarray(values[:ELBOW_SHOWN], np.float64)
    if len(shown) < 3 or shown[0] <= shown[-1]:
        return 1
    line = np.linspace(shown[0], shown[-1], len(shown))
    return max(1, int(np.argmax(line - shown)))


def noise_edge(values: Float64, total: float, count: int, n_samples: float, n_features: int) -> float:
    """Return the upper edge of eigenvalues of white noise whose total variance is what `count` leading values leave.

    Sampling inflates leading eigenvalues by noise. Each is replaced by the true variance that would be inflated to it
    (Kritchman and Nadler, 2008), or the noise would be underestimated.
    """
    ratio = n_features / (n_samples - 1)
    noise = max(total, 0.0) / n_features
    for _ in range(NOISE_STEPS):
        sizes = values[:count] / noise if noise > 0 else np.zeros(0)
        middle = sizes + 1 - ratio
        # Inverse of the inflation t (1 + ratio / (t - 1)) of a variance t, in units of the noise.
        true = (middle + np.sqrt(np.maximum(middle**2 - 4 * sizes, 0.0))) / 2
        noise = max(0.0, total - noise * float(np.sum(true - 1))) / n_features
    return float(noise * (1 + ratio**0.5) ** 2)


def above_noise(values: Float64, total: float, n_samples: float, n_features: int, *, complete: bool) -> int:
    """Return the number of leading eigenvalues above the Marchenko-Pastur edge; assumes white noise.

    If all eigenvalues are known, the noise is estimated from their median, which outliers do not affect. Otherwise it
    is estimated from what the leading ones leave of the exact total, removing one after the other.
    """
    if complete:
        edge = median_edge(values, n_samples, n_features)
        return int(np.count_nonzero(values > edge))
    count = 0
    while count < len(values) and values[count] > noise_edge(values, total, count, n_samples, n_features):
        count += 1
    return count


def median_edge(values: Float64, n_samples: float, n_features: int) -> float:
    """Return the upper edge of white noise with the same median eigenvalue as `values`, all min(n - 1, p) of them."""
    n, p = n_samples - 1, n_features
    ratio = min(n, p) / max(n, p)
    # Eigenvalues of the smaller of X^T X and X X^T, in units of the noise times the longer side.
    return float(np.median(values[: max(1, int(min(n, p)))]) / mp_median(ratio) * (1 + ratio**0.5) ** 2)


def mp_median(ratio: float) -> float:
    """Return the median of the Marchenko-Pastur law of unit noise and aspect ratio 0 < ratio <= 1."""
    # Loaded on use: together they take about as long to load as the rest of scipy that every command needs.
    from scipy.integrate import quad
    from scipy.optimize import brentq

    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2

    def mass_above(x: float) -> float:
        # Substituting t = middle + half sin(a) removes the square root at the edges, where quadrature is poor.
        middle, half = (high + low) / 2, (high - low) / 2
        start = float(np.arcsin(np.clip((x - middle) / half, -1, 1)))

        def density(a: float) -> float:
            return float((half * np.cos(a)) ** 2 / (2 * np.pi * ratio * (middle + half * np.sin(a) + 1e-300)))

        return float(quad(density, start, np.pi / 2, epsabs=1e-12)[0])

    return float(brentq(lambda x: mass_above(x) - 0.5, low, high, xtol=1e-12))


def most_likely(spectrum: Float64, n_samples: float) -> int:
    """Return the number of components of the largest evidence (Minka), given all eigenvalues, descending; at least 1.

    Notes
    -----
    Cost: p^2. The scale does not matter; as in scikit-learn, the full rank is not considered.

    Variances that are rounding are excluded, as in Minka's own program: directions without variance, such as constant
    pixels, are not noise. scikit-learn counts them as noise; its evidence is then unbounded if everything else is kept,
    so that with a constant feature it keeps all other components.
    """
    values = np.asarray(spectrum, np.float64) / (n_samples - 1)
    values = values[values > NEGLIGIBLE * values[0]]
    return int(np.argmax(_evidence(values, n_samples))) + 1 if len(values) > 1 else 1


def _evidence(values: Float64, n: float) -> Float64:
    """Return the logarithm of Minka's evidence (his equation 30) for 1 to p - 1 components of these variances."""
    p, logs = len(values), np.log(values)
    ranks = np.arange(1, p)
    noise = (np.sum(values) - np.cumsum(values))[:-1] / (p - ranks)
    noise = np.maximum(noise, values[-1])  # a mean is at least the smallest value; the difference of sums is rounded
    # Volume of the directions, likelihood, and volume of the parameters: factors of Minka's equation 30.
    halves = (p - ranks + 1) / 2
    directions = np.cumsum(gammaln(halves) - np.log(np.pi) * halves) - ranks * np.log(2.0)
    likelihood = -n / 2 * (np.cumsum(logs)[:-1] + (p - ranks) * np.log(noise))
    free = p * ranks - ranks * (ranks + 1) / 2
    volume = np.log(2 * np.pi) * (free + ranks) / 2
    evidence = directions + likelihood + volume - (_curvature(values, noise) + free * np.log(n)) / 2
    return evidence - ranks * np.log(n) / 2  # type: ignore[no-any-return]


def _curvature(values: Float64, noise: Float64) -> Float64:
    """Return log of the product, over i up to r and j after i, of (v_i - v_j) (1/w_j - 1/w_i), for every rank r.

    w_i is v_i up to i = r, and the noise of rank r after. Pairs up to r give (v_i - v_j)^2 / (v_i v_j), so sums of
    log(v_i - v_j) over rows and over columns serve all ranks at once.
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
    omitted = [
        np.sum(np.log(np.maximum(1 / level - 1 / values[:r], tiny))) for r, level in zip(ranks, noise, strict=True)
    ]
    return np.cumsum(rows)[:-1] + within + (p - ranks) * np.array(omitted)  # type: ignore[no-any-return]
