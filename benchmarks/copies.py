"""Whether copying a collection costs more than reading it and writing it, and what chose the copy's chunks and codec.

The pictures are kept as .npy, as Zarr cut by samples, and as Zarr cut across features. The floor of each is to read
every value once, in the order its storage has them, and to write as many bytes in files of a copy's size. Each copy
runs in a fresh process under a budget much smaller than the data; its peak stands beside it:

    python benchmarks/copies.py                                           # 1 GB under 256 MiB
    python benchmarks/copies.py --codecs images.npy                       # codecs and chunks on your own pictures
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from budget import as_npy, as_zarr
from fresh import alternating, folder, in_fresh_process, machine, measured, mib, print_table, warm
from zarr.codecs import BloscCodec, ZstdCodec

LAYOUTS = ("npy", "samples", "across")
PIECE = 64 * 2**20  # bytes to a file of the floor


def stored(layout: str, directory: Path, n: int, side: int) -> Path:
    """The pictures in a layout, written unless they are there."""
    if layout == "npy":
        return as_npy(directory, n, side)
    chunks = {"samples": (2048, side, side), "across": (n, 1, side)}[layout]
    return as_zarr(directory, n, side, name=layout, chunks=chunks)


def pieces(source: Path) -> Iterator[Any]:
    """All values of a source, a piece at a time, in the order they are stored."""
    if source.suffix == ".npy":
        with source.open("rb", buffering=0) as file:
            while block := file.read(PIECE):
                yield block
        return
    array = zarr.open_array(source, mode="r")
    across = array.chunks[0] == array.shape[0]
    step = max(1, PIECE // (array.nbytes // array.shape[across]))
    for start in range(0, array.shape[across], step):
        yield array[:, start : start + step] if across else array[start : start + step]


def floor(source: Path, output: Path) -> float:
    """Seconds to read a source and write its bytes."""
    began = time.perf_counter()
    output.mkdir()
    for number, piece in enumerate(pieces(source)):
        (output / str(number)).write_bytes(piece if isinstance(piece, bytes) else np.ascontiguousarray(piece).data)
    seconds = time.perf_counter() - began
    shutil.rmtree(output)
    return seconds


def copied(source: Path, output: Path, memory: str) -> tuple[float, int | None, int, int]:
    """Seconds, peak, files and bytes of a copy."""
    import streampca
    from streampca.preprocessing.copy import copy_collection

    collection = streampca.open_collection(source)
    _, seconds, peak = measured(partial(copy_collection, collection, output, memory=memory))
    files = [path for path in output.rglob("*") if path.is_file()]
    found = seconds, peak, len(files), sum(path.stat().st_size for path in files)
    shutil.rmtree(output)
    return found


def compare(directory: Path, n: int, side: int, memory: str, rounds: int) -> None:
    rows = []
    for layout in LAYOUTS:
        source = stored(layout, directory, n, side)
        for file in [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]:
            warm(file)
        floor_job = partial(in_fresh_process, floor, source, directory / "floor")
        copy_job = partial(in_fresh_process, copied, source, directory / "copy.zarr", memory)
        found: dict[str, list[Any]] = alternating(rounds, {"floor": floor_job, "copy": copy_job})
        least = statistics.median(found["floor"])
        seconds = statistics.median(one[0] for one in found["copy"])
        _, peak, files, size = found["copy"][-1]
        rate = n * side * side / seconds
        rows.append(
            [
                layout,
                f"{least:.2f}",
                f"{seconds:.2f}",
                f"{seconds / least:.1f}",
                mib(rate),
                mib(peak),
                str(files),
                mib(size),
            ]
        )
    print_table(["layout", "floor, s", "copy, s", "to floor", "MiB/s", "peak, MiB", "files", "MiB written"], rows)


CODECS: dict[str, Any] = {
    "none": None,
    "zstd, level 0 (Zarr's default)": ZstdCodec(level=0),
    "zstd, level 1": ZstdCodec(level=1),
    **{
        f"Blosc {name} {level}, {shuffle}": BloscCodec(cname=name, clevel=level, shuffle=shuffle)
        for name, level in (("lz4", 5), ("zstd", 1), ("zstd", 3))
        for shuffle in ("shuffle", "bitshuffle")
    },
}
CHUNKS = (2**18, 2**20, 2**21, 2**22, 2**24)


def codecs(images: Path, directory: Path, rounds: int) -> None:
    """Size and speed of every codec in chunks of 2 MiB, and of the copy's own in chunks of other sizes."""
    x = np.load(images)
    row = x[0].nbytes
    cases = {name: (codec, 2**21) for name, codec in CODECS.items()}
    cases |= {f"Blosc zstd 1, shuffle, {c / 2**20:g} MiB": (CODECS["Blosc zstd 1, shuffle"], c) for c in CHUNKS}
    jobs = {
        name: partial(rates, x, directory / "codec.zarr", codec, max(1, min(len(x), chunk // row)))
        for name, (codec, chunk) in cases.items()
    }
    table = []
    for name, found in alternating(rounds, jobs).items():
        size, writing, reading = (statistics.median(values) for values in zip(*found, strict=True))
        table.append([name, f"{size / x.nbytes:.3f}", mib(x.nbytes / writing), mib(x.nbytes / reading)])
    print_table(["codec", "size", "writing, MiB/s", "reading, MiB/s"], table)


def rates(x: np.ndarray, path: Path, codec: Any, rows: int) -> tuple[int, float, float]:
    """Bytes stored, and seconds to write and to read."""
    shard = min(-(-len(x) // rows), max(1, PIECE // (rows * x[0].nbytes))) * rows
    began = time.perf_counter()
    made = zarr.create_array(
        path, shape=x.shape, dtype=x.dtype, chunks=(rows, *x.shape[1:]), shards=(shard, *x.shape[1:]), compressors=codec
    )
    for start in range(0, len(x), shard):
        made[start : start + shard] = x[start : start + shard]
    written = time.perf_counter()
    for start in range(0, len(x), shard):
        made[start : start + shard]
    read = time.perf_counter()
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    shutil.rmtree(path)
    return size, written - began, read - written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codecs", type=Path, metavar="IMAGES.npy", help="compare codecs on these pictures instead")
    parser.add_argument("--directory", type=Path, help="where the data are kept for the next run")
    asked = parser.parse_args()
    print(machine())
    with folder(asked.directory) as directory:
        if asked.codecs is not None:
            codecs(asked.codecs, directory, asked.rounds)
        else:
            compare(directory, asked.samples, asked.side, asked.memory, asked.rounds)


if __name__ == "__main__":
    main()
