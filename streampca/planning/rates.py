"""Fixed rates of a machine, and the work of a plan, from which its time is predicted.

The rates are those of one ordinary machine, fixed so that the same request gives the same plan everywhere; they rank
methods, whose costs differ by factors. `benchmarks/rates.py` measures all of them. A calibration on the machine and
the data at hand changes the time that is predicted, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add, attrgetter, sub

from .memory import dense_flops

LANCZOS = 2e3  # times size^2: twice what 20 steps of some 60 columns take at the rate of solving (1.7 s at 6000)


@dataclass(frozen=True)
class Rates:
    """Operations, values and bytes a second; those of computing and decoding are of one core.

    Attributes
    ----------
    single, double : float
        Floating-point operations of matrix products; a symmetric update of p columns by n rows counts n p^2.
    solving : float
        Floating-point operations of LAPACK's reduction to tridiagonal form.
    centring : float
        Values converted and centred; memory is the limit, not cores.
    adding : float
        Values of a product added to its sum; likewise.
    reading, writing : float
        Bytes copied from and to files as they are.
    decoding : float
        Decoded bytes of compressed chunks and picture files.
    accesses : float
        Pieces of a file found and read, whatever their size.
    chunks : float
        Chunks or picture files found, opened and handed to a decoder, whatever their size.
    sparse : float
        Nanoseconds of sparse products a second, in one thread; see `streampca.planning.sparse`.
    """

    single: float = 1.2e11
    double: float = 6e10
    solving: float = 1e10
    centring: float = 1e9
    adding: float = 1e9
    reading: float = 4e9
    writing: float = 4e8
    decoding: float = 3e8
    accesses: float = 1e5
    chunks: float = 3e3
    sparse: float = 1e9


# benchmarks/rates.py on 2 cores with AVX-512. Reading is a fast disk's, half of the system cache's; decoding lies
# between zlib (0.8e8) and zstd (5e8).
RATES = Rates()

# Products of bytes a second and core, by kernel class; a symmetric update of p columns by n rows counts n p^2.
# AMX was measured on another machine than the other rates: 7.8 times its float32 updates of 784 features. VNNI: 2.1
# times those of float32 (1.9e11 beside 0.9e11, 784 to 2048 features). ARM is not measured: taken for as fast as VNNI.
INTEGER_RATES = {"amx": 9e11, "vnni": 2.4e11, "arm": 2.4e11}


@dataclass(frozen=True)
class Work:
    """Counts of operations, values and bytes. Adds and subtracts like a vector.

    Attributes
    ----------
    single, double, solving : float
        Floating-point operations, as in `Rates`.
    centring, adding : float
        Values.
    reading, writing, decoding : float
        Bytes.
    accesses, chunks : float
        Pieces read as they are, or decoded.
    sparse : float
        Nanoseconds.
    """

    single: float = 0.0
    double: float = 0.0
    solving: float = 0.0
    centring: float = 0.0
    adding: float = 0.0
    reading: float = 0.0
    writing: float = 0.0
    decoding: float = 0.0
    accesses: float = 0.0
    chunks: float = 0.0
    sparse: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*map(add, _values(self), _values(other)))

    def __sub__(self, other: Work) -> Work:
        return Work(*map(sub, _values(self), _values(other)))

    def seconds(self, cores: int, rates: Rates = RATES) -> float:
        """Predict the time of one process; nothing is assumed to overlap."""
        scaling = (self.single / rates.single) + (self.double / rates.double)
        scaling += self.decoding / rates.decoding + self.chunks / rates.chunks
        other = self.centring / rates.centring + self.adding / rates.adding + self.reading / rates.reading
        other += self.writing / rates.writing + self.accesses / rates.accesses + self.sparse / rates.sparse
        return scaling / cores + other + self.solving / (rates.solving * cores)


_values = attrgetter(*(count.name for count in fields(Work)))  # looked up once: a plan adds up hundreds of candidates


def products(flops: float, precision: str) -> Work:
    """Matrix products of a precision."""
    return Work(double=flops) if precision == "double" else Work(single=flops)


def integer_products(flops: float, units: str) -> Work:
    """Products of bytes on integer units, as single-precision products that take as long."""
    return Work(single=flops * RATES.single / INTEGER_RATES[units])


def solve_work(size: int, solver: str) -> Work:
    """Work of an eigenproblem; Lanczos gives way when it has cost as much as a dense solve, and rarely comes near."""
    dense = dense_flops(size)
    return Work(solving=2.0 * dense if solver == "dense" else min(0.5 * dense, LANCZOS * float(size) ** 2))
