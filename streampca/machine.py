"""Cores, memory and peak memory of this process, read from the system."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil

from .errors import RequestError

M_ARENA_MAX = -8  # malloc.h

_limits: list[int] = []


def cores() -> int:
    """Return the cores this process may run on: its affinity or the control group's quota, whichever is less."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(count, _quota() or count)
    return min(count, _limits[-1]) if _limits else count


@cache  # read once: planning asks for every candidate, and containers set it before they start a process
def _quota() -> int | None:
    """Return the whole cores that the control group allows, at least 1; None without a limit."""
    quota, _, period = _text("/sys/fs/cgroup/cpu.max").partition(" ")
    return max(1, int(quota) // int(period)) if quota.isdecimal() and period.strip().isdecimal() else None


@contextlib.contextmanager
def limit_cores(count: int) -> Iterator[None]:
    """Limit `cores` to at most `count` during the block, in every thread of this process.

    For a cluster's workers, each of which has a share of its machine, and for planning their work. It holds in threads
    that readers start too, so it is no context variable.
    """
    _limits.append(count)
    try:
        yield
    finally:
        _limits.pop()


def integer_units() -> str:
    """Return the instructions by which bytes are multiplied exactly; "none" without a library that uses them."""
    return _integer_instructions() if _has_onnxruntime() else "none"


@cache  # the search takes as long as a tenth of a small fit
def _has_onnxruntime() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


@cache
def _integer_instructions() -> str:
    """Return the best of this processor, as Linux names them; elsewhere macOS on ARM is known to have them."""
    if sys.platform == "darwin":
        return "arm" if platform.machine() == "arm64" else "none"
    flags = set(_text("/proc/cpuinfo").split())
    known = {"amx": ["amx_int8"], "vnni": ["avx512_vnni", "avx_vnni"], "arm": ["asimddp", "i8mm"]}
    return next((name for name, signs in known.items() if flags.intersection(signs)), "none")


def device_memory(device: str) -> int:
    """Return the bytes that are free on a device of torch; of the processor, half of this process's limit.

    Raises
    ------
    RequestError
        If torch is missing, or the device is.
    """
    try:
        import torch  # takes seconds to load
    except ImportError:
        raise RequestError(f"device {device!r} needs torch: pip install 'streampca[gpu]'.") from None
    if device == "torch:cpu":
        return memory_limit()[0] // 2
    count = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= count:
        raise RequestError(
            f"device {device!r} is not here: torch finds {count} devices of CUDA; leave --device (device) out."
        )
    # Memory that torch keeps after an earlier fit of this process is free as well.
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + held)


def memory_limit() -> tuple[int, str]:
    """Return the bytes this process could have at most, and what sets that limit.

    The least of physical memory, the control group's limit (v2 or v1) and SLURM's allotment.
    """
    limits = [(_physical_memory(), "physical memory")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _text(path).strip()
        if text.isdecimal():
            limits.append((int(text), "the control group's limit"))
    per_node, per_cpu = (os.environ.get(f"SLURM_MEM_PER_{part}", "") for part in ("NODE", "CPU"))  # in MiB
    slurm = int(per_node) if per_node.isdecimal() else 0
    if not slurm and per_cpu.isdecimal():
        slurm = int(per_cpu) * int(os.environ.get("SLURM_CPUS_PER_TASK", "1"))
    if slurm:
        limits.append((slurm * 2**20, "SLURM's allotment"))
    return min(limits)


@cache
def _physical_memory() -> int:
    return int(psutil.virtual_memory().total)


def share_pools() -> None:
    """Let threads that start from now on allocate from one pool, where the C library would give each its own.

    For the command line, which owns its process; a library leaves its caller's settings alone. With a pool per decoding
    thread, freed chunks stay in the pool of the thread that freed them: writing scores from Zarr took 49 MiB so, and 47
    with one pool.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc: it may know better
        _c_library().mallopt(M_ARENA_MAX, 1)


def hand_back() -> None:
    """Return freed memory to the system, where the C library would hold it for later.

    glibc holds freed blocks of up to 32 MiB once it has seen one, and cannot use them for a larger one: between the
    parts of a run this took 6 MiB of 65.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc: it may know better
        _c_library().malloc_trim(0)


@cache  # loading it makes classes each time
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def is_running(pid: int, since: float) -> bool:
    """Return whether a process of this host runs that had been started at a time, in seconds of the epoch."""
    try:
        process = psutil.Process(pid)
        # A number is given again to another process; times are rounded to seconds.
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < since + 2
    except psutil.NoSuchProcess:
        return False


def peak_resident() -> int:
    """Return the most bytes that this process held since a `PeakMeter` was made last; what it holds elsewhere."""
    return _status_bytes("VmHWM") or psutil.Process().memory_info().rss


class PeakMeter:
    """Measures the most memory this process held above what it held when the meter was made.

    On Linux the kernel's high-water mark is reset, after handing freed memory back so that it cannot hide what is
    used next; elsewhere the peak since the process started is all there is, and `peak` then says at most that.
    """

    def __init__(self) -> None:
        self._resets = False
        hand_back()
        self._start = _status_bytes("VmRSS") or psutil.Process().memory_info().rss
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self._resets = True

    def peak(self) -> int | None:
        """Bytes above the start at the highest point since, or None where the system cannot tell."""
        high = _status_bytes("VmHWM")
        return max(0, high - self._start) if high and self._resets else None


def _status_bytes(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", _text("/proc/self/status"), flags=re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
