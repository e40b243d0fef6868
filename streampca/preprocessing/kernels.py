"""`Kernel`: a similarity of samples that is an inner product of features, and its matrix between rows.

Schölkopf, Smola and Müller (1998), Nonlinear component analysis as a kernel eigenvalue problem. The values of each
kernel equal those of `sklearn.metrics.pairwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Array, Float64
from ..errors import RequestError, nearest
from ..units import whole_number

AUTO = "auto"
# Parameters of each kernel.
KERNELS: dict[str, tuple[str, ...]] = {
    "linear": (),
    "polynomial": ("gamma", "degree", "coef0"),
    "rbf": ("gamma",),
    "laplacian": ("gamma",),
    "sigmoid": ("gamma", "coef0"),
    "cosine": (),
    "distance": (),
}
ALIASES = {"poly": "polynomial", "gaussian": "rbf"}
# Kernels that depend only on differences of samples. A common origin is subtracted from the rows first: with a large
# offset, |x|^2 - 2 x.y + |y|^2 would lose all digits.
OF_DIFFERENCES = ("rbf", "laplacian", "distance")
# Kernels that are functions of inner products and squared norms, which add up over ranges of features.
OF_PRODUCTS = ("linear", "polynomial", "rbf", "sigmoid", "cosine", "distance")
# Flops of a matrix product that take as long as one value of a kernel from an inner product (25 ns), and as one
# absolute difference of two numbers (benchmarks/rates.py).
VALUE_FLOPS, DIFFERENCE_FLOPS = 1500, 30
ASYMMETRY = 1e-8  # largest difference of k(x, y) and k(y, x) relative to the largest value; rounding is smaller
COMPARED = 20  # rows on either side in the check of symmetry
MEDIAN_OF = 1000  # rows whose distances give the median


def unknown_kernel(name: str, *others: str) -> RequestError:
    """Return the error of a name that is neither a kernel's nor one of `others`."""
    names = [*KERNELS, *ALIASES, *others]
    return RequestError(f"kernel {name!r} is not one of {', '.join(names)}.{nearest(str(name), names)}")


@dataclass(frozen=True)
class Kernel:
    """A kernel and its parameters.

    Parameters
    ----------
    name : {"linear", "polynomial", "rbf", "laplacian", "sigmoid", "cosine", "distance"}, default="rbf"
        Kernel, with x.y the inner product: x.y; (gamma x.y + coef0)^degree; exp(-gamma |x - y|^2);
        exp(-gamma |x - y|_1); tanh(gamma x.y + coef0); x.y / (|x| |y|); -|x - y|^2 / 2, which gives classical
        multidimensional scaling. The name is stored with a model; a `function` needs any other name.
    gamma : float, "auto" or None, default="auto"
        Factor of distances or products. With d the median distance between some of the rows and p the number of
        features, "auto" is 1 / (2 d^2) for "rbf", 1 / d for "laplacian" (d the sum of absolute differences), and 1 / p
        for the others; None is 1 / p for all.
    degree : int, default=3
    coef0 : float, default=1
    function : callable, optional
        Kernel of your own: it receives two rows, (p,) each, and returns a number. It is called for every pair and never
        stored.

    Raises
    ------
    RequestError
        If a parameter is invalid.
    """

    name: str = "rbf"
    gamma: float | str | None = AUTO
    degree: int = 3
    coef0: float = 1.0
    function: Callable[[Array, Array], float] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "name", ALIASES.get(self.name, self.name))
        if self.function is None and self.name not in KERNELS:
            raise unknown_kernel(self.name)
        if self.function is not None and self.name in KERNELS:
            raise RequestError(f"kernel {self.name!r} is built in; give a function of your own another name.")
        set_(self, "degree", whole_number(self.degree, "degree", least=1, example="3"))
        gamma = self.gamma
        if not (gamma is None or gamma == AUTO) and not (_is_number(gamma) and float(gamma) > 0):
            raise RequestError(f"gamma {gamma!r} is not a number above 0; give one, or 'auto'.")
        if not _is_number(self.coef0):
            raise RequestError(f"coef0 {self.coef0!r} is not a number; give one such as 1.")

    @property
    def is_resolved(self) -> bool:
        """True if no parameter has to be determined from the samples."""
        return "gamma" not in KERNELS.get(self.name, ()) or _is_number(self.gamma)

    @property
    def centred_only(self) -> bool:
        """True if the kernel is only conditionally positive definite: an inner product of centred samples."""
        return self.name == "distance"

    def resolved(self, rows: Array) -> Kernel:
        """Return the kernel with `gamma` determined from rows, (m, p).

        Raises
        ------
        RequestError
            If more than half of the distances are 0.
        """
        if self.is_resolved:
            return self
        if self.goes_by_distance:
            return self._by_median(median_distance(rows, absolute=self.name == "laplacian"), len(rows))
        return replace(self, gamma=1 / rows.shape[1])

    def resolved_by_products(self, products: Float64, n_features: int, counted: Array) -> Kernel:
        """Return the kernel with `gamma` determined from inner products of rows, (n, n), upper triangle.

        See `resolved`; `counted` are the ascending indices of the rows to use.
        """
        if self.is_resolved or not self.goes_by_distance:
            return self if self.is_resolved else replace(self, gamma=1 / n_features)
        squares, squared_distances = products.diagonal(), []
        drawn = counted[_spread_evenly(len(counted))]
        for at, row in enumerate(drawn[:-1]):
            others = drawn[at + 1 :]
            squared_distances.append(squares[row] + squares[others] - 2 * products[row, others])
        # Rounding can make the squared distance of equal rows negative.
        distances = np.sqrt(np.maximum(np.concatenate(squared_distances), 0.0)) if squared_distances else np.zeros(1)
        return self._by_median(float(np.median(distances)), len(counted))

    @property
    def goes_by_distance(self) -> bool:
        """True if `gamma` has yet to be determined from the median distance of samples."""
        return not self.is_resolved and self.gamma == AUTO and self.name in OF_DIFFERENCES

    def _by_median(self, distance: float, count: int) -> Kernel:
        if distance <= 0:
            raise RequestError(
                f"gamma='auto' takes the median distance of {count} samples, which is 0, as most are equal; give gamma "
                "a number."
            )
        return replace(self, gamma=1 / distance if self.name == "laplacian" else 1 / (2 * distance**2))

    @property
    def is_of_products(self) -> bool:
        """True if the kernel is a function of the inner product of two samples and their norms."""
        return self.function is None and self.name in OF_PRODUCTS

    def of_products(self, products: Float64, squares: Float64, other_squares: Float64) -> Float64:
        """Convert inner products, (n, m), to the kernel in place, given the squared norms, (n,) and (m,).

        Products and norms are those of rows after `compared`.
        """
        if self.name == "linear":
            return products
        if self.name in ("rbf", "distance"):
            products *= -2.0
            products += squares[:, None]
            products += other_squares
            np.maximum(products, 0.0, out=products)  # squared distances, which rounding can make negative
            products *= -0.5 if self.name == "distance" else -float(self.gamma or 0)  # gamma is resolved here
            return products if self.name == "distance" else np.exp(products, out=products)
        if self.name == "cosine":
            products /= np.sqrt(np.where(squares > 0, squares, 1.0))[:, None]
            products /= np.sqrt(np.where(other_squares > 0, other_squares, 1.0))
            return products
        products *= float(self.gamma or 0)
        products += self.coef0
        if self.name == "sigmoid":
            return np.tanh(products, out=products)
        with np.errstate(over="ignore"):  # callers refuse infinite values
            powers: Float64 = np.power(products, self.degree, out=products)
        return powers

    def matrix(self, rows: Array, others: Array, origin: Array | None = None) -> Float64:
        """Return the kernel between rows (n, p) and others (m, p), shape (n, m), float64.

        Parameters
        ----------
        rows, others : ndarray
            Rows of any real dtype; the kernel is computed in float64.
        origin : ndarray of shape (p,), optional
            Point subtracted from both for kernels of differences; the mean of `others` by default. With the same point
            for all blocks, the bits of a value do not depend on the blocks.

        Notes
        -----
        Cost: 2 n m p flops, n m exponentials; float64 copies of both.
        """
        if origin is None and self.name in OF_DIFFERENCES:
            origin = np.asarray(others, np.float64).mean(axis=0)
        return self.between(self.compared(rows, origin), self.compared(others, origin))

    def compared(self, rows: Array, origin: Array | None) -> Float64:
        """Return rows for `between`: in float64, with the origin subtracted for kernels of differences."""
        if origin is None or self.name not in OF_DIFFERENCES:
            return np.asarray(rows, np.float64)
        return np.subtract(rows, origin, dtype=np.float64)

    def between(self, first: Float64, second: Float64) -> Float64:
        """Return the kernel, (n, m), between rows returned by `compared`, (n, p) and (m, p)."""
        from sklearn.metrics.pairwise import euclidean_distances, pairwise_kernels

        if self.name == "distance":
            squares: Float64 = euclidean_distances(first, second, squared=True)
            return np.multiply(squares, -0.5, out=squares)
        parameters = {name: getattr(self, name) for name in KERNELS.get(self.name, ())}
        values: Float64 = pairwise_kernels(first, second, metric=self.function or self.name, **parameters)
        return values

    def diagonal(self, rows: Float64) -> Float64:
        """Return the kernel of each row with itself, (n,), given rows returned by `compared`."""
        if self.function is not None:
            return np.array([self.function(row, row) for row in rows], np.float64)
        if self.name in OF_DIFFERENCES:
            return np.full(len(rows), 0.0 if self.name == "distance" else 1.0)
        squares: Float64 = np.einsum("ij,ij->i", rows, rows)
        if self.name == "cosine":
            return np.where(squares > 0, 1.0, 0.0)
        if self.name == "linear":
            return squares
        inner = float(self.gamma or 0) * squares + self.coef0  # gamma is resolved here
        values: Float64 = np.tanh(inner) if self.name == "sigmoid" else inner**self.degree
        return values

    def check_symmetric(self, rows: Array) -> None:
        """Refuse a kernel function that is not symmetric for some of these rows, (m, p).

        Raises
        ------
        RequestError
            If k(x, y) and k(y, x) differ beyond rounding.
        """
        half = min(COMPARED, len(rows) // 2)
        if self.function is None or not half:
            return
        first, second = self.compared(rows[:half], None), self.compared(rows[half : 2 * half], None)
        forward, backward = self.between(first, second), self.between(second, first).T
        apart = float(np.abs(forward - backward).max())
        if apart > ASYMMETRY * float(np.abs(forward).max()):
            raise RequestError(
                f"kernel {self} is not symmetric: k(x, y) and k(y, x) differ by up to {apart:.3g}; give another."
            )

    def row_flops(self, p: int, m: int) -> int:
        """Return the flops of a matrix product that take as long as comparing a row of p features with m others."""
        return m * (VALUE_FLOPS + (DIFFERENCE_FLOPS if self.name == "laplacian" else 2) * p)

    def row_bytes(self, p: int, m: int) -> int:
        """Return the bytes, with the result, of `compared` and `between` for a row of p features and m others."""
        return 8 * (2 * p + 2 * m)  # "cosine" and "laplacian" copy the rows and the result

    @classmethod
    def from_json(cls, data: Mapping[str, Any], function: Callable[[Array, Array], float] | None = None) -> Kernel:
        """Return the kernel from the data of `to_json`, and its function if the name is not a built-in kernel.

        Raises
        ------
        RequestError
            If the name is not a built-in kernel, and no function is given.
        """
        parameters = {name: data[name] for name in ("gamma", "degree", "coef0") if name in data}
        used_function = None if data["name"] in KERNELS else function
        return cls(data["name"], function=used_function, **parameters)

    def to_json(self) -> dict[str, Any]:
        """Return name and parameters as plain data."""
        return {"name": self.name, **{name: getattr(self, name) for name in KERNELS.get(self.name, ())}}

    def __str__(self) -> str:
        parameters = ", ".join(
            f"{name} = {value:.4g}" if _is_number(value) else f"{name} = {value}"
            for name, value in self.to_json().items()
            if name != "name"
        )
        return f"{self.name} ({parameters})" if parameters else self.name


class Compared:
    """Rows that others are compared with, on a device where its products are given.

    Parameters
    ----------
    kernel : Kernel
        Resolved kernel.
    rows : ndarray of shape (m, p)
        Rows returned by `Kernel.compared`.
    products : Products, optional
        Float64 products of a device, of `streampca.accumulators`, a layer above. Kernels that are no functions of inner
        products are computed on the processor.
    """

    def __init__(self, kernel: Kernel, rows: Float64, products: Any = None) -> None:
        self.kernel, self.rows = kernel, rows
        self._products = products if kernel.is_of_products else None
        if self._products is not None:
            self._there, self._squares = self._products.block(rows), np.einsum("ij,ij->i", rows, rows)

    def kernel_with(self, rows: Float64) -> Float64:
        """Return the kernel between rows, (n, p), and these, (n, m)."""
        if self._products is None:
            return self.kernel.between(rows, self.rows)
        inner = self._products.block(rows).times(self._there.T)
        return self.kernel.of_products(inner, np.einsum("ij,ij->i", rows, rows), self._squares)


def median_distance(rows: Array, *, absolute: bool = False) -> float:
    """Return the median of the Euclidean distances between rows, or of the sums of absolute differences.

    Of more than 1000 rows, 1000 evenly spread ones are used.
    """
    from scipy.spatial.distance import pdist

    drawn = rows if len(rows) <= MEDIAN_OF else rows[_spread_evenly(len(rows))]
    distances = pdist(np.asarray(drawn, np.float64), "cityblock" if absolute else "euclidean")
    return float(np.median(distances)) if len(distances) else 0.0


def _spread_evenly(count: int) -> npt.NDArray[np.intp]:
    """Return the indices of at most 1000 rows that are spread evenly over `count` rows."""
    return np.linspace(0, count - 1, min(count, MEDIAN_OF)).astype(np.intp)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and bool(np.isfinite(value))
