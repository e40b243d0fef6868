"""A folder of a million image files: time and memory to list and open it, with and without a kept listing.

python benchmarks/many_files.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from fresh import folder, in_fresh_process, machine, measured, mib, print_table, tell

# Links to one file: ext4 allows 65000.
LINKS = 60_000


def make(top: Path, files: int, each: int) -> None:
    """Fill nested folders with files of 20-letter names, hard links to a few PGM files of 8 x 8 pixels."""
    if (top / f"{files}-made").exists():
        return
    pixels = np.random.default_rng(0)
    seed = top
    for number in range(files):
        if number % LINKS == 0:
            seed = top / f".seed-{number}.pgm"
            with contextlib.suppress(FileExistsError), seed.open("xb") as file:
                file.write(b"P5 8 8 255\n" + pixels.integers(0, 256, 64, np.uint8).tobytes())
        place, within = divmod(number, each)
        where = top / f"part{place // 10}" / f"plate{place}"
        if within == 0:
            tell(f"making {number} of {files} files")
            where.mkdir(parents=True, exist_ok=True)
        os.link(seed, where / f"image-{number:010d}.pgm")
    (top / f"{files}-made").touch()
    tell("")


def info(top: str, listing: str | None) -> tuple[str, float, int | None, float]:
    """Open a folder as ``streampca info`` does: what it holds, seconds, peak bytes, seconds of a fingerprint."""
    import streampca
    from streampca.readers import images  # noqa: F401 - imported before the clock starts

    def work() -> Any:
        return streampca.open_collection(top, listing=listing, duplicates="all")  # hard links

    collection, seconds, peak = measured(work)
    began = time.perf_counter()
    collection.fingerprint()
    return " x ".join(map(str, collection.shape)), seconds, peak, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=1000, help="files in a folder")
    parser.add_argument("--directory", type=Path, help="where to keep the files for the next run")
    options = parser.parse_args()
    print(machine())
    with folder(options.directory) as top:
        tree = top / "tree"
        tree.mkdir(exist_ok=True)
        make(tree, options.files, options.each)
        rows = []
        table = top / "listing.npz"
        table.unlink(missing_ok=True)
        time.sleep(2.5)  # a folder that has just changed is listed again
        for name, listing in (("listed", None), ("listed and kept", table), ("from the kept listing", table)):
            tell(name)
            shape, seconds, peak, printed = in_fresh_process(info, str(tree), listing and str(listing))
            rows.append([name, shape, f"{seconds:.1f}", mib(peak), f"{printed:.1f}"])
        tell("")
        print_table(["", "samples", "opening, s", "peak, MiB", "fingerprint, s"], rows)


if __name__ == "__main__":
    main()
