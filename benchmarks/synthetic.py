"""Seeded pictures of any number and size, made in blocks: what the benchmarks are run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.fft import idctn

Floats = npt.NDArray[np.float32]
Draw = Callable[[int, int, int], Iterator[npt.NDArray[Any]]]

MODES = 12  # waves along each side: 144 directions of signal
BLOCK = 8192


def _waves(side: int) -> Floats:
    """Products of cosines, (144, side^2), with amplitudes that fall with the frequency."""
    orders = np.arange(MODES)
    along = np.cos(np.pi * orders[:, None] * (np.arange(side) + 0.5) / side)
    amplitude = 1 / (4 + np.hypot(orders[:, None], orders))
    amplitude[0, 0] /= 2  # overall brightness varies less than shape
    waves = amplitude[:, :, None, None] * along[:, None, :, None] * along[None, :, None, :]
    return waves.reshape(MODES**2, side * side).astype(np.float32)


def _fields(n: int, side: int, seed: int) -> Iterator[Floats]:
    """Smooth random fields of unit variance in every pixel, (rows, side^2), block by block."""
    waves = _waves(side)
    waves /= np.linalg.norm(waves, axis=0)
    for start in range(0, n, BLOCK):
        rng = np.random.default_rng([seed, start])
        yield rng.standard_normal((min(BLOCK, n - start), len(waves)), dtype=np.float32) @ waves


def strokes(n: int, side: int, seed: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
    """uint8 pictures, (rows, side, side), that are to PCA what MNIST's digits are, where it counts here.

    Three quarters of the pixels are zero, the mean is 33, the brightest are 255, edges are black; 151 components hold
    95 % of the variance (MNIST: 154), and exact products are about as long (MNIST's 1024 rows at 28 x 28).
    """
    y, x = (np.indices((side, side)).reshape(2, -1) + 0.5) / side * 2 - 1
    window = np.clip(1.2 - 1.6 * (x * x + y * y), 0, 1).astype(np.float32)
    for field in _fields(n, side, seed):
        field *= 400
        field -= 60
        field *= window
        np.clip(field, 0, 255, out=field)
        yield field.astype(np.uint8).reshape(-1, side, side)


def smooth(n: int, side: int, seed: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
    """uint8 pictures, (rows, side, side), of smooth grey clouds about 128."""
    return _whole(_fields(n, side, seed), side, np.uint8, mean=128, deviation=40)


def counts(n: int, side: int, seed: int = 0) -> Iterator[npt.NDArray[np.uint16]]:
    """uint16 pictures, (rows, side, side), as from a 16-bit camera: smooth clouds about 20000 that vary by 5000."""
    return _whole(_fields(n, side, seed), side, np.uint16, mean=20000, deviation=5000)


def _whole(
    fields: Iterator[Floats], side: int, dtype: type[np.unsignedinteger[Any]], *, mean: float, deviation: float
) -> Iterator[npt.NDArray[Any]]:
    """Whole numbers of a mean and a deviation, limited to the range of their dtype."""
    for field in fields:
        field *= deviation
        field += mean
        np.clip(field, 0, np.iinfo(dtype).max, out=field)
        yield field.astype(dtype).reshape(-1, side, side)


def clouds(n: int, side: int, seed: int = 0) -> Iterator[Floats]:
    """float32 pictures, (rows, side, side), of smooth clouds of mean 10 and unit variance: not whole numbers."""
    for field in _fields(n, side, seed):
        field += 10
        yield field.reshape(-1, side, side)


def offset(n: int, side: int, seed: int = 0) -> Iterator[Floats]:
    """float32 pictures, (rows, side, side), with mean 30000 and standard deviation 5: raw counts of a camera, say."""
    for field in _fields(n, side, seed):
        field *= 5
        field += 30000
        yield field.reshape(-1, side, side)


def textures(n: int, side: int, seed: int = 0, noise: float = 0.1) -> Iterator[npt.NDArray[np.float32]]:
    """float32 pictures, one at a time, (1, side, side), whose amplitudes fall as one over the frequency, and noise."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)) * side
    frequency[0, 0] = 1
    for number in range(n):
        rng = np.random.default_rng([seed, number])
        white = rng.standard_normal((2, *frequency.shape), dtype=np.float32)
        picture = np.fft.irfft2((white[0] + 1j * white[1]) / frequency, (side, side)) * side
        grain = noise * rng.standard_normal((side, side), dtype=np.float32)
        yield (picture + grain + 5).astype(np.float32)[None]


def photographs(n: int, side: int, seed: int = 0) -> Iterator[npt.NDArray[np.uint8]]:
    """uint8 pictures, one at a time, (1, side, side): textures of little noise, their spread a sixth of the range."""
    for texture in textures(n, side, seed, noise=0.005):
        texture -= 5
        texture *= 700
        texture += 128
        np.clip(texture, 0, 255, out=texture)
        yield texture.astype(np.uint8)


def decaying(n: int, side: int, seed: int = 0) -> Iterator[Floats]:
    """float32 pictures, (rows, side, side), whose variances fall with the square root of their rank."""
    return _of_variances(np.arange(1, side * side + 1) ** -0.5, n, side, seed)


def low_rank(n: int, side: int, seed: int = 0) -> Iterator[Floats]:
    """float32 pictures, (rows, side, side), of 60 directions with variances 1, 1/2, 1/3 ..., and noise of 1e-4."""
    ranks = np.arange(1, side * side + 1)
    return _of_variances(np.where(ranks <= 60, 1 / ranks, 1e-4), n, side, seed)


def _of_variances(variances: npt.NDArray[np.float64], n: int, side: int, seed: int) -> Iterator[Floats]:
    """Pictures of mean 5 whose cosine waves, from the longest to the shortest, have given variances, (side^2,)."""
    y, x = np.indices((side, side))
    amplitudes = np.empty(side * side, np.float32)
    amplitudes[np.argsort(np.hypot(y, x).ravel(), kind="stable")] = np.sqrt(variances)
    rows = max(1, 2**22 // side**2)
    for start in range(0, n, rows):
        rng = np.random.default_rng([seed, start])
        waves = rng.standard_normal((min(rows, n - start), side, side), dtype=np.float32)
        waves *= amplitudes.reshape(side, side)
        yield idctn(waves, axes=(1, 2), norm="ortho", overwrite_x=True) + np.float32(5)


def npy_of(directory: Path, draw: Draw, n: int, side: int, seed: int = 0) -> Path:
    """Write pictures to one .npy file, (n, side, side), or find it already there."""
    path = directory / f"{draw.__name__}-{n}x{side}x{side}-{seed}.npy"
    if not path.exists():
        partial = path.with_suffix(".partial")
        dtype = next(draw(1, side, seed)).dtype
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n, side, side)}
        with partial.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for pictures in draw(n, side, seed):
                file.write(pictures.data)
        partial.rename(path)
    return path
