"""What the benchmarks share: work in fresh processes, in alternating rounds, with its time, its peak and a table."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

INSTRUCTIONS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "amx_int8",
    "asimddp",
    "i8mm",
)  # that products are made by


def in_fresh_process(job: Callable[..., T], *arguments: Any) -> T:
    """Run a function of a script's top level in an interpreter that was started for it alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(job, *arguments).result()


def alternating(rounds: int, jobs: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Results of each job, run in turns, so that a machine that slows down does so for all of them."""
    results: dict[str, list[T]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name, job in jobs.items():
            tell(f"round {number + 1} of {rounds}: {name}")
            results[name].append(job())
    tell("")
    return results


def tell(what: str) -> None:
    """Say on a terminal what is being done, on a line that the next call replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def measured(work: Callable[[], T]) -> tuple[T, float, int | None]:
    """Return a result, the seconds it took, and its peak: most bytes held meanwhile above those held before.

    The peak is None where the system does not tell (it is Linux that does).
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget what importing once took
    held = status_bytes("VmRSS")
    began = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - began
    return result, seconds, max(0, status_bytes("VmHWM") - held) if held else None


def median_seconds(work: Callable[[], Any], rounds: int) -> float:
    """Median time of a call, after one that is not counted."""
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def status_bytes(key: str, pid: int | str = "self") -> int:
    """Return a size that the system states of a process, such as VmHWM; 0 where it does not tell."""
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), flags=re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


@contextlib.contextmanager
def folder(asked: Path | None) -> Iterator[Path]:
    """Yield the folder asked for, where data are kept for the next run, or a temporary one."""
    if asked is not None:
        asked.mkdir(parents=True, exist_ok=True)
        yield asked
    else:
        with tempfile.TemporaryDirectory(prefix="streampca-benchmark-") as made:
            yield Path(made)


def warm(path: Path) -> None:
    """Read a file once, so that it comes from memory from now on."""
    with path.open("rb", buffering=0) as file:
        while file.read(2**22):
            pass


def machine() -> str:
    """One line about what the figures were measured on."""
    import numpy as np
    import scipy
    from threadpoolctl import threadpool_info

    blas = {f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}" for pool in threadpool_info()}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    about = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*:\s*(.*)$", about, flags=re.MULTILINE)
    units = [name for name in INSTRUCTIONS if name in about.split()]
    processor = f"{model[1] if model else platform.machine()} with {', '.join(units) or 'other instructions'}"
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}"
    return f"{processor}, {cores} cores{load}; {versions}; {', '.join(sorted(blas))}"


def spread(values: Sequence[float]) -> list[str]:
    """Median, least and most, as cells of a table."""
    return [f"{value:.3f}" for value in (statistics.median(values), min(values), max(values))]


def mib(count: float | None) -> str:
    """Bytes as a cell of a table, in MiB."""
    return "?" if count is None else f"{count / 2**20:.0f}"


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, ["-" * width for width in widths], *rows):
        first, *others = (
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())
