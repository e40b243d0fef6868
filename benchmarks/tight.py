"""Whether the budgets that plans accept hold, seen from outside, and stay usable: seeded cases of every format.

A case is a collection of some format, compression, chunk size and dtype, and a command with the smallest budget that
it accepts, or a little more. Each runs in a fresh process, watched by this one: the most memory that the process and
its children held above what the process held after importing, with writing and closing words. The same runs with four
times the budget, in a process that was forked after importing. Ends with status 1 if a peak exceeds its budget, or a
run takes more than 20 times as long as with four times the budget:

    python benchmarks/tight.py                             # 120 cases, ten of each format; some 20 minutes
    python benchmarks/tight.py --formats npy,png --cases 0:4
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import multiprocessing
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import tifffile
import zarr
from fresh import folder, machine, mib, print_table, status_bytes, tell
from PIL import Image
from zarr.codecs import GzipCodec, ZstdCodec

import streampca  # noqa: F401 - processes started here have its settings before they import numpy, as the command has

MIB = 2**20
EACH = 10  # cases of a format
COMMANDS = ("fit", "transform", "reconstruct", "copy", "report")
FACTORS = (1.0, 1.0, 1.0, 1.2, 1.5, 2.0, 3.0)  # of the smallest budget
SLOWER = 20  # times as long as with four times the budget
MOST_REFUSALS = 3  # before a budget is accepted; the first is of one that nothing fits
FLOOR = 0.5  # seconds that count as no time
PATTERNS = 12
Array = npt.NDArray[Any]
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["streampca.cli.commands", "streampca.fitting.fit", "streampca.plot.report"])


class Opened(NamedTuple):
    """A source as the command line takes it: words, and how it is stored, for the table."""

    words: tuple[str, ...]
    stored: str


@dataclass(frozen=True)
class Draw:
    """What a case is made of."""

    x: Array
    chunk: tuple[int, ...]
    rng: np.random.Generator

    @property
    def chunks(self) -> str:
        """Say how large a chunk is."""
        return f"{math.prod(self.chunk) * self.x.itemsize / MIB:.2g} MiB"


def npy(path: Path, draw: Draw) -> Opened:
    fortran = draw.rng.random() < 0.2
    np.save(path.with_suffix(".npy"), np.asfortranarray(draw.x) if fortran else draw.x)
    return Opened((f"{path}.npy",), "Fortran order" if fortran else "C order")


def as_zarr(*compressors: Any, shards: int = 0) -> Callable[[Path, Draw], Opened]:
    def write(path: Path, draw: Draw) -> Opened:
        options: dict[str, Any] = {"compressors": compressors or None}
        chunk = draw.chunk
        if shards:
            options = {"shards": tuple(min(4, -(-n // c)) * c for n, c in zip(draw.x.shape, chunk, strict=True))}
        zarr.create_array(f"{path}.zarr", data=draw.x, chunks=chunk, **options)
        return Opened((f"{path}.zarr",), f"chunks of {draw.chunks}")

    return write


def hdf5(**options: Any) -> Callable[[Path, Draw], Opened]:
    def write(path: Path, draw: Draw) -> Opened:
        chunked = bool(options) or draw.rng.random() < 0.5
        own = options | ({"shuffle": bool(draw.rng.random() < 0.5)} if options else {})
        with h5py.File(f"{path}.h5", "w") as file:
            file.create_dataset("images", data=draw.x, chunks=draw.chunk if chunked else None, **own)
        return Opened((f"{path}.h5",), f"chunks of {draw.chunks}" if chunked else "contiguous")

    return write


def netcdf(path: Path, draw: Draw) -> Opened:
    """Write as netCDF-4 does: dimension scales, shuffled and deflated."""
    with h5py.File(f"{path}.nc", "w") as file:
        made = file.create_dataset(
            "field", data=draw.x, chunks=draw.chunk, compression="gzip", compression_opts=1, shuffle=True
        )
        for axis, name in enumerate(("sample", "lat", "lon")):
            file[name] = np.arange(draw.x.shape[axis])
            file[name].make_scale(name)
            made.dims[axis].attach_scale(file[name])
    return Opened((f"{path}.nc", "--key", "field"), f"chunks of {draw.chunks}")


def tiff(path: Path, draw: Draw) -> Opened:
    compression = draw.rng.choice(["none", "deflate", "lzw", "zstd"])
    with tifffile.TiffWriter(f"{path}.tif", bigtiff=True) as file:
        for page in draw.x:
            own = None if compression == "none" else compression
            file.write(page, compression=own, contiguous=own is None and draw.rng.random() < 0.5)
    return Opened((f"{path}.tif",), f"pages, {compression}")


def tiff_folder(path: Path, draw: Draw) -> Opened:
    path.mkdir()
    compression = str(draw.rng.choice(["none", "deflate"]))
    for number, page in enumerate(draw.x):
        tifffile.imwrite(path / f"{number:05d}.tif", page, compression=None if compression == "none" else compression)
    return Opened((str(path),), compression)


def png(path: Path, draw: Draw) -> Opened:
    path.mkdir()
    for number, picture in enumerate(draw.x):
        Image.fromarray(picture).save(path / f"{number:05d}.png", compress_level=1)
    return Opened((str(path),), "files")


def idx(path: Path, draw: Draw) -> Opened:
    header = struct.pack(">HBB3I", 0, 8, 3, *draw.x.shape)
    with gzip.open(f"{path}-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(header + draw.x.tobytes())
    return Opened((f"{path}-idx3-ubyte.gz",), "gzip stream")


ANY = ("u1", "u2", "f4", "f8")


class Format(NamedTuple):
    """How sources of a format are written, of which dtypes, and of how many samples at most (files take time)."""

    write: Callable[[Path, Draw], Opened]
    dtypes: tuple[str, ...] = ANY
    most: int = 2**20


FORMATS = {
    "npy": Format(npy),
    "zarr plain": Format(as_zarr()),
    "zarr zstd": Format(as_zarr(ZstdCodec(level=1))),
    "zarr gzip": Format(as_zarr(GzipCodec(level=1))),
    "zarr sharded": Format(as_zarr(shards=4)),
    "hdf5 plain": Format(hdf5()),
    "hdf5 gzip": Format(hdf5(compression="gzip", compression_opts=1)),
    "tiff": Format(tiff, most=2000),
    "tiff folder": Format(tiff_folder, most=1000),
    "png": Format(png, ("u1", "u2"), most=1000),
    "idx": Format(idx, ("u1",)),
    "netcdf": Format(netcdf, ("u2", "f4", "f8")),
}


class Case(NamedTuple):
    """A source, and a command to be given it but for its budget."""

    name: str
    words: tuple[str, ...]
    factor: float


class Run(NamedTuple):
    """Seconds and peak of a command; its exit code, closing words, and the modules it loaded."""

    seconds: float
    peak: int
    code: int
    said: str
    modules: list[str]


def pictures(rng: np.random.Generator, n: int, side: int, dtype: str, noise: float) -> Array:
    """Images of a few patterns with noise, of a share of `dtype`'s range."""
    patterns = rng.standard_normal((PATTERNS, side * side), dtype=np.float32) * 20
    x = rng.standard_normal((n, PATTERNS), dtype=np.float32) @ patterns
    x += noise * rng.standard_normal((n, side * side), dtype=np.float32)
    if dtype[0] == "f":
        return (x + 1000).astype(dtype).reshape(n, side, side)
    top = np.iinfo(dtype).max
    return np.clip(x * (top / 512) + top / 2, 0, top).astype(dtype).reshape(n, side, side)


def make(directory: Path, name: str, number: int) -> Case:
    """Draw and write case `number` of a format."""
    rng = np.random.default_rng([list(FORMATS).index(name), number])
    kind, command = FORMATS[name], COMMANDS[number % len(COMMANDS)]
    methods = ("covariance", "dual", "randomized", "auto")
    method = str(rng.choice(methods)) if command == "fit" else "auto"
    side = int(rng.choice([96, 160, 256] if method == "dual" else [16, 28, 48, 80]))
    dtype, total = str(rng.choice(kind.dtypes)), 2.0 ** rng.uniform(3, 6) * MIB
    n = max(30, min(kind.most, int(total / side**2 / np.dtype(dtype).itemsize)))
    rows = int(2.0 ** rng.uniform(0, math.log2(n))) if rng.random() < 0.7 else n
    across = side if rng.random() < 0.7 else -(-side // 3)
    x = pictures(rng, n, side, dtype, noise=float(rng.choice([0.5, 20])))
    path = directory / f"{name.replace(' ', '-')}-{number}"
    opened = kind.write(path, Draw(x, (rows, across, side), rng))
    steps: tuple[str, ...] = ()
    if command in ("fit", "copy") and rng.random() < 0.4:
        steps = (("--mask", "valid"), ("--bin", "2"), ("--normalize", "norm"))[rng.integers(3)]
    output = directory / "output"
    if command in ("transform", "reconstruct", "report"):
        model, k = f"{path}-model.zarr", str(int(rng.choice([3, 10, 20])))
        call("fit", *opened.words, "-k", k, "-o", model)
        ending = ".html" if command == "report" else str(rng.choice([".npy", ".zarr"]))
        given = (model, "--collection") if command == "report" else (model,)
        words = (command, *given, *opened.words, "-o", f"{output}{ending}")
    elif command == "copy":
        words = (command, *opened.words, *steps, "-o", f"{output}.zarr")
    else:
        count = ("-k", str(rng.choice(["5", "20", "0.9"])))
        if method == "randomized":  # with many passes, and a basis that is large beside the blocks
            count = ("-k", "40", "--tol", "1e-8")
        words = (command, *opened.words, *steps, *count, "--method", method, "-o", f"{output}.zarr")
    about = f"{name} {number}: {command}, {n} x {side} x {side} {dtype}, {opened.stored}"
    about += f", {method}" if command == "fit" else ""
    return Case(about + (f", {' '.join(steps)}" if steps else ""), words, float(rng.choice(FACTORS)))


def _carry_out(link: Any, words: tuple[str, ...]) -> None:
    """Be a process that runs a command, and send its seconds, exit code, last words and modules."""
    from streampca.cli.main import main as command

    with tempfile.TemporaryFile() as said, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(said.fileno(), 2)
        sys.argv, began = ["streampca", *words], time.perf_counter()
        try:
            command()
        except SystemExit as ended:
            sys.stderr.flush()
            said.seek(0)
            text, code = said.read().decode().strip(), int(ended.code or 0)
        link.send(Run(time.perf_counter() - began, 0, code, text.splitlines()[-1] if text else "", list(sys.modules)))


def forked(*words: str, limit: float = 600) -> Run:
    """Run a command in a process that has imported the package already; its peak is not known."""
    here, there = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=_carry_out, args=(there, words))
    began = time.monotonic()
    process.start()
    there.close()
    found: Run = here.recv() if here.poll(limit) else Run(time.monotonic() - began, 0, -9, "took too long", [])
    process.kill() if found.code == -9 else process.join()
    return found


def call(*words: str) -> None:
    """Run a command that has to succeed."""
    done = forked(*words, "-q")
    if done.code:
        sys.exit(done.said)


def watched(words: tuple[str, ...], memory: int, modules: list[str], limit: float) -> Run:
    """Run a command in a fresh process with a budget, and watch it; it is killed after so many seconds."""
    here, there = socket.socketpair()
    script = str(Path(__file__).with_name("metered.py"))
    given = [*words, "--memory", f"{memory}B", "--overwrite"]
    process = subprocess.Popen(
        [sys.executable, script, str(there.fileno()), *given],
        pass_fds=[there.fileno()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    there.close()
    with here, here.makefile("rw") as link, process:
        print(json.dumps(modules), file=link, flush=True)
        held, peak = int(link.readline()), 0
        here.settimeout(0.01)
        began, answer = time.monotonic(), ""
        while not answer.endswith("\n"):
            peak = max(peak, held_by(process.pid))
            if time.monotonic() - began > limit:
                process.kill()
                return Run(time.monotonic() - began, peak - held, -9, "killed: took too long", [])
            try:
                received = here.recv(2**16).decode()
            except TimeoutError:
                continue
            if not received:
                break
            answer += received
        peak = max(peak, held_by(process.pid))
        here.settimeout(None)
        here.sendall(b"\n")
        assert process.stderr is not None
        said = process.stderr.read().strip()
        code = process.wait()
    seconds, loaded = json.loads(answer) if answer else (0.0, [])
    return Run(seconds, peak - held, code, said.splitlines()[-1] if said else "", loaded)


def held_by(pid: int) -> int:
    """High-water marks of a process and its children, in bytes."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return status_bytes("VmHWM", pid) + sum(held_by(int(child)) for child in children)


class Result(NamedTuple):
    """A case as measured; `smallest` and `budget` in bytes."""

    case: Case
    smallest: int
    budget: int
    run: Run
    with_more: float
    complaint: str


def measure(case: Case, most: float) -> Result:
    """Find the smallest budget of a case, and run it with its own and with four times that."""
    smallest, refusals, modules = MIB, 0, list[str]()
    while refusals <= MOST_REFUSALS:
        budget = int(case.factor * smallest)
        asked = forked(
            *case.words, "--memory", f"{budget if refusals == 0 else 4 * budget}B", "--overwrite", limit=most
        )
        modules = asked.modules or modules  # one that took too long told none
        run = asked if refusals == 0 else watched(case.words, budget, modules, SLOWER * asked.seconds + 30)
        named = re.search(r"memory to at least (\d+)(\w+)", run.said)
        if run.code == 0 or named is None:
            break
        smallest, refusals = int(named[1]) * {"KiB": 2**10, "MiB": MIB, "GiB": 2**30}[named[2]], refusals + 1
    complaint, with_more = "", asked.seconds
    if run.code:
        complaint = run.said or f"ended with {run.code}"
    elif run.peak > budget:
        complaint = "over"
    elif run.seconds > SLOWER * max(FLOOR, with_more):
        complaint = "slow"
    elif refusals > 1:
        complaint = "named too little"
    return Result(case, smallest, budget, run, with_more, complaint)


def summary(results: dict[str, list[Result]]) -> list[tuple[str, ...]]:
    """Rows of the table by format."""
    rows = []
    for name, found in results.items():
        ended = [each for each in found if each.run.code == 0]
        shares = [each.run.peak / each.budget for each in ended]
        times = [max(FLOOR, each.run.seconds) / max(FLOOR, each.with_more) for each in ended]
        smallest = sorted(each.smallest for each in found)
        over = sum(each.complaint == "over" for each in found)
        others = sum(bool(each.complaint) for each in found) - over
        spread = f"{mib(smallest[0])} to {mib(smallest[-1])}"
        largest = (f"{max(shares):.2f}", f"{max(times):.1f}") if ended else ("", "")
        rows.append((name, str(len(found)), spread, *largest, str(over), str(others)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS), help="which of: %(default)s")
    parser.add_argument("--cases", default=f"0:{EACH}", help="which cases of each, START:STOP (default: %(default)s)")
    parser.add_argument("--longest", type=float, default=120, help="most seconds of a run with four times the budget")
    parser.add_argument("--json", type=Path, help="append a line for each case")
    parser.add_argument("--directory", type=Path, help="make the data here; by default in a temporary folder")
    args = parser.parse_args()
    start, stop = map(int, args.cases.split(":"))
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2"))
    results: dict[str, list[Result]] = {}
    print(machine())
    with folder(args.directory) as directory:
        for name in args.formats.split(","):
            for number in range(start, stop):
                place = directory / "case"
                place.mkdir()
                tell(f"{name} {number}")
                result = measure(make(place, name, number), args.longest)
                shutil.rmtree(place)
                results.setdefault(name, []).append(result)
                tell("")
                print(line_of(result), flush=True)
                if args.json is not None:
                    with args.json.open("a") as file:
                        file.write(json.dumps(facts(result)) + "\n")
    print()
    headings = ("", "cases", "smallest, MiB", "peak to budget", "time to that of 4 x", "over", "otherwise")
    print_table(headings, summary(results))
    bad = [each for found in results.values() for each in found if each.complaint]
    if bad:
        sys.exit(f"{len(bad)} of {sum(map(len, results.values()))} cases are over, slow, or fail")


def line_of(result: Result) -> str:
    run, budget = result.run, result.budget
    sizes = f"smallest {mib(result.smallest)}, budget {budget / MIB:.1f}, peak {run.peak / MIB:.1f} MiB"
    return f"{result.case.name}: {sizes}; {run.seconds:.1f} s, {result.with_more:.1f} s; {result.complaint or 'ok'}"


def facts(result: Result) -> dict[str, Any]:
    run = result.run
    return {
        "name": result.case.name, "words": result.case.words, "smallest": result.smallest, "budget": result.budget,
        "peak": run.peak, "seconds": run.seconds, "with_more": result.with_more, "complaint": result.complaint,
    }  # fmt: skip


if __name__ == "__main__":
    main()
