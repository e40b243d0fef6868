"""The demonstration's two collections: 60000 digits and 60000 patches of photographs, made from scikit-learn's data.

Nothing is downloaded: both start from pictures that scikit-learn installs. A collection is one Zarr array, written
piece by piece in a few MiB. Each piece has random numbers of its own, so that the first n samples of a seed are equal
for every length.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OutputError, RequestError
from ..events import BlockDone, Listener, PassStarted, reported, silent
from ..signals import safe_point
from ..storage.disk import expanded
from ..storage.outputs import staged

SIDE = 32  # pixels along an edge of every image
CHUNK = 1024  # samples that are made and written together: 1 MiB as uint8
STORED = 512  # samples in a chunk as stored, which a block of a fit within 32 MiB holds whole: each is decoded once
WARPS = 32  # different shifts, turns and sizes in a chunk of digits; each serves CHUNK / WARPS images
PITCH = 3.0  # pixels for one pixel of the 8 x 8 originals: a digit is 24 pixels high and can shift by 3 within 32

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def make_digits(path: str | os.PathLike[str], n: int = 60_000, seed: int = 0, *, listener: Listener = silent) -> Path:
    """Write grey images of handwritten digits, each shifted, turned and scaled a little.

    Parameters
    ----------
    path : path-like
        The Zarr array to make, uint8 of shape (n, 32, 32) with dimensions (sample, y, x). The digits shown go beside
        it, to `labels_path(path)`, uint8 of shape (n,). Both are left as they are if they exist.
    n : int, default=60000
        Number of samples.
    seed : int, default=0
        Seed of the choice of digits and of their warps.
    listener : callable
        Called with each event, if the collection is made.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    RequestError
        If `n` is less than 1.
    OutputError
        If `path` holds something else, or cannot be written.
    """
    from sklearn.datasets import load_digits

    safe_point()  # scikit-learn takes a second to import

    def chunks() -> Iterator[Images]:
        bunch = load_digits()
        digits = (bunch.data / 16).astype(np.float32)  # stored as 0 to 16
        for start in range(0, n, CHUNK):
            rng = np.random.default_rng([seed, start])
            drawn = rng.permutation(len(digits))[:CHUNK]  # none twice, so that no two images of a warp are equal
            labels[start : start + CHUNK] = bunch.target[drawn][: n - start]
            yield _warped_digits(digits[drawn], rng)

    labels = np.empty(max(n, 0), np.uint8)

    def save_labels() -> None:
        with staged(str(labels_path(path))) as partial, open(partial, "wb") as file:
            np.save(file, labels)

    _check_labels(labels_path(path))
    recipe = {"pictures": "digits", "n": int(n), "seed": int(seed)}
    return _write(Path(expanded(path)), recipe, chunks, listener, save_labels)


def make_patches(path: str | os.PathLike[str], n: int = 60_000, seed: int = 0, *, listener: Listener = silent) -> Path:
    """Write grey patches of 32 x 32 pixels, cut at random from two photographs, turned and mirrored.

    Parameters
    ----------
    path : path-like
        The Zarr array to make, uint8 of shape (n, 32, 32) with dimensions (sample, y, x); left as it is if it exists.
    n : int, default=60000
        Number of samples.
    seed : int, default=0
        Seed of the places of the patches.
    listener : callable
        Called with each event, if the collection is made.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    RequestError, OutputError
        As `make_digits`.
    """
    from sklearn.datasets import load_sample_images

    safe_point()

    def chunks() -> Iterator[Images]:
        photographs = [_grey(image) for image in load_sample_images().images]
        for start in range(0, n, CHUNK):
            yield _patches(photographs, np.random.default_rng([seed, start]))

    return _write(Path(expanded(path)), {"pictures": "patches", "n": int(n), "seed": int(seed)}, chunks, listener)


def labels_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of the labels of `make_digits`: ``digits.zarr`` has ``digits-labels.npy``."""
    return Path(expanded(path)).with_name(f"{Path(path).stem}-labels.npy")


def _check_labels(path: Path) -> None:
    """Refuse to replace a file that cannot be labels of `make_digits`."""
    try:
        labels = np.load(path, mmap_mode="r", allow_pickle=False) if path.exists() else None
    except (OSError, ValueError, EOFError):
        labels = np.empty((0, 0))
    if labels is not None and (labels.ndim, labels.dtype) != (1, np.uint8):
        raise OutputError(f"{path} exists and does not hold the demonstration's labels; choose another folder.")


def _warped_digits(digits: Floats, rng: np.random.Generator) -> Images:
    """Draw digits (CHUNK, 64) as images (CHUNK, 32, 32); consecutive ones get different warps."""
    out = np.empty((CHUNK, SIDE * SIDE), np.uint8)
    for first in range(WARPS):
        drawn = digits[first::WARPS] @ _warp(rng)
        # Interpolating coarse pixels blurs the strokes: a steeper grey ramp gives them an edge again.
        out[first::WARPS] = np.clip(255 * (1.5 * drawn - 0.25), 0, 255)
    return out.reshape(CHUNK, SIDE, SIDE)


def _warp(rng: np.random.Generator) -> Floats:
    """Return a random warp as a matrix (64, 1024) from pixels of an 8 x 8 digit to pixels of the image.

    As interpolation is linear in the original's pixels, all images of one warp are one product: 60000 images take under
    a second.
    """
    angle, size = np.radians(rng.uniform(-15, 15)), PITCH * rng.uniform(0.9, 1.1)
    shift_y, shift_x = rng.uniform(-3, 3, size=2)
    y, x = np.indices((SIDE, SIDE)).reshape(2, -1) - (SIDE - 1) / 2
    y, x = (y - shift_y) / size, (x - shift_x) / size
    rows = 3.5 + np.cos(angle) * y + np.sin(angle) * x
    columns = 3.5 - np.sin(angle) * y + np.cos(angle) * x
    source = np.arange(8)[:, None]
    weights = _cubic(rows - source)[:, None] * _cubic(columns - source)[None, :]
    return weights.reshape(64, -1).astype(np.float32)


def _cubic(distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weight of a pixel at a distance in pixels: cubic convolution (Keys 1981), 0 from 2 on."""
    d = np.minimum(np.abs(distance), 2)
    return np.where(d < 1, (1.5 * d - 2.5) * d * d + 1, ((-0.5 * d + 2.5) * d - 4) * d + 2)


def _patches(photographs: list[Images], rng: np.random.Generator) -> Images:
    """Cut one chunk of patches (CHUNK, 32, 32)."""
    out = np.empty((CHUNK, SIDE, SIDE), np.uint8)
    chosen = rng.integers(len(photographs), size=CHUNK)
    turns, mirrored = rng.integers(4, size=CHUNK), rng.random(CHUNK) < 0.5
    positions = rng.random((CHUNK, 2))  # as fractions of the height and width
    for index, photograph in enumerate(photographs):
        windows = np.lib.stride_tricks.sliding_window_view(photograph, (SIDE, SIDE))
        patches = np.flatnonzero(chosen == index)
        y, x = (positions[patches] * windows.shape[:2]).astype(np.intp).T
        out[patches] = windows[y, x]
    for turn in range(1, 4):
        out[turns == turn] = np.rot90(out[turns == turn], turn, axes=(1, 2))
    out[mirrored] = out[mirrored][:, :, ::-1]
    return out


def _grey(image: Images) -> Images:
    """Return the luma of an RGB image (y, x, 3), by the weights of ITU-R BT.601 in 256ths."""
    red, green, blue = (image[:, :, channel].astype(np.uint16) for channel in range(3))
    return ((77 * red + 150 * green + 29 * blue) >> 8).astype(np.uint8)


def _write(
    path: Path,
    recipe: dict[str, Any],
    chunks: Callable[[], Iterator[Images]],
    listener: Listener,
    finish: Callable[[], None] = lambda: None,
) -> Path:
    """Write chunks as one Zarr array, which gets its name when it is complete."""
    if recipe["n"] < 1:
        raise RequestError(f"n is {recipe['n']}; a collection needs at least 1 sample.")
    if path.exists():
        _check_made(path, recipe)
        return path
    n, size = recipe["n"], SIDE * SIDE
    making = PassStarted(f"making {recipe['pictures']}", 1, 1, n, n * size)
    with staged(str(path)) as partial, reported(listener, making):
        array = _create(partial, recipe)
        for start, images in zip(range(0, n, CHUNK), chunks(), strict=True):
            safe_point()
            images = images[: n - start]  # the last chunk may have fewer samples
            array[start : start + CHUNK] = images
            listener(BlockDone(len(images), len(images) * size))
        finish()
    return path


def _create(path: str, recipe: dict[str, Any]) -> Any:
    import zarr
    from zarr.codecs import BloscCodec

    return zarr.create_array(
        path,
        shape=(recipe["n"], SIDE, SIDE),
        chunks=(STORED, SIDE, SIDE),
        dtype="uint8",
        compressors=BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle"),  # speed matters here, bytes do not
        dimension_names=("sample", "y", "x"),
        attributes={"streampca_demo": recipe},
    )


def _check_made(path: Path, recipe: dict[str, Any]) -> None:
    """Refuse a collection at `path` that was not made by the same recipe."""
    import zarr

    try:
        made = zarr.open_array(path, mode="r").attrs.get("streampca_demo")
    except (OSError, ValueError):
        made = None
    if made is None:
        raise OutputError(f"{path} exists and is not a collection of the demo; remove it or give another path.")
    if made != recipe:
        raise OutputError(f"{path} was made as {made} and {recipe} is asked for; remove it or give another path.")
