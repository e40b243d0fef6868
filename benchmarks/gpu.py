"""Fits on a GPU beside the processor, cuML and torch's own `pca_lowrank`, and beside the limits of link and device.

The pictures of `limits.py` and a collection that is larger than memory (`large.py`). Ours starts from the file, on the
processor and on the device; peers get an array that is in memory before their clock starts, as stored, and move it to
the device themselves. All are fresh processes in alternating rounds, with the errors of the variances beside the
seconds. The limits are the rates at which memory of the process, pinned and pageable, reaches the device, and at which
the device multiplies without TF32; from them follows what the bytes and the products of our plan take by themselves:

    python benchmarks/gpu.py --json gpu.json                   # a GPU; needs about 10 GB of disk, and minutes
    python benchmarks/gpu.py --cases digits,clouds             # without the largest
    python benchmarks/gpu.py --device torch:cpu --samples 2000 --side 16 --gigabytes 0.05  # torch without a GPU

Peers that are not installed, or do not run there, are named.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import large
import numpy as np
import numpy.typing as npt
from fresh import alternating, folder, in_fresh_process, machine, mib, print_table, tell, warm
from limits import CASES, Case
from peers import TINY, Floats, Peer, Result, array, as_json, itself, mapped, reference, report, run
from synthetic import npy_of

LARGE = "large"
NAMES = ("digits", "clouds", "textures", "photographs", LARGE)
SPARE = 10  # columns of torch's sketch beside the components
ITERATIONS = (2, 6)  # of torch's sketch: its default, and more for accuracy
TIMES = 5  # that a limit is measured, of which the fastest counts


# -- ours and theirs


def ours(path: Path, k: int, memory: str | None = None, device: str | None = None) -> Floats:
    import streampca

    return streampca.fit(path, n_components=k, memory=memory, device=device).explained_variance


def torch_lowrank(data: npt.NDArray[Any], k: int, device: str, iterations: int) -> Floats:
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    there = torch.from_numpy(data).to(_in_torch(device)).to(torch.float32)
    sizes = torch.pca_lowrank(there, q=min(k + SPARE, *there.shape), niter=iterations)[1][:k]
    return np.asarray((sizes**2 / (len(data) - 1)).cpu().numpy())


def cuml_pca(data: Floats, k: int) -> Floats:
    from cuml.decomposition import PCA

    return np.asarray(PCA(n_components=k, output_type="numpy").fit(data).explained_variance_)


def _in_torch(device: str) -> str:
    return device.removeprefix("torch:")


def ours_on(device: str) -> str:
    return f"streampca on {device}, from the file"


def peers_on(device: str, memory: str | None) -> dict[str, Peer]:
    """Return ours, on the device and on the processor, and everybody else."""
    peers = {
        ours_on(device): Peer("streampca", itself, partial(ours, memory=memory, device=device)),
        "streampca on the processor, from the file": Peer("streampca", itself, partial(ours, memory=memory)),
        "cuML PCA, float32 array": Peer("cuml", partial(array, dtype=np.float32), cuml_pca),
    }
    for count in ITERATIONS:
        fit = partial(torch_lowrank, device=device, iterations=count)
        peers[f"torch.pca_lowrank on {device}, niter={count}, array as stored"] = Peer("torch", array, fit)
    return peers


# -- limits


def about_device(device: str) -> str:
    import torch

    named = torch.cuda.get_device_name(device) if device.startswith("cuda") else "the processor"
    return f"{device}: {named}; torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"


def rate(work: Callable[[], Any], amount: float, device: str) -> float:
    """Amount of work in a nanosecond, as it is done the fastest of several times."""
    import torch

    seconds = []
    for _ in range(TIMES + 1):  # the first is not counted
        began = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 1e-9 * amount / min(seconds[1:])


def limits_of(device: str, megabytes: int, order: int) -> dict[str, float | None]:
    """GB/s from memory of the process to the device, None of what there is none of, and GFLOP/s of its products."""
    import torch

    torch.set_float32_matmul_precision("highest")
    there, count = _in_torch(device), megabytes * 10**6
    pageable, target = torch.ones(count, dtype=torch.uint8), torch.empty(count, dtype=torch.uint8, device=there)
    found: dict[str, float | None] = {"link, pageable, GB/s": rate(lambda: target.copy_(pageable), count, device)}
    found["link, pinned, GB/s"] = None
    if device.startswith("cuda"):
        pinned = pageable.pin_memory()
        found["link, pinned, GB/s"] = rate(lambda: target.copy_(pinned, non_blocking=True), count, device)
    for dtype in (torch.float32, torch.float64):
        left = torch.ones((order, order), dtype=dtype, device=there)
        out = torch.empty_like(left)
        name = f"products, {str(dtype).removeprefix('torch.')}, GFLOP/s"
        found[name] = rate(partial(torch.matmul, left, left, out=out), 2 * order**3, device)
    return found


def parts_of(path: Path, k: int, memory: str | None, device: str, limits: dict[str, float | None]) -> dict[str, float]:
    """Seconds that the bytes and the products of our plan take by themselves at these rates."""
    import streampca

    plan = streampca.plan(path, n_components=k, memory=memory, device=device)
    n, p = mapped(path).shape
    link = limits["link, pinned, GB/s"] or limits["link, pageable, GB/s"] or 0.0
    each = {"covariance": 2.0 * n * p * p, "dual": 2.0 * n * n * p + 2.0 * n * p * k}
    operations = each.get(plan.method, 4.0 * n * p * plan.width * plan.passes)
    rate_of_products = limits[f"products, {'float64' if plan.precision == 'double' else 'float32'}, GFLOP/s"] or 0.0
    return {
        f"the link alone, {plan.passes:g} passes": 1e-9 * mapped(path).nbytes * plan.passes / link,
        f"products alone, {plan.method}, {plan.precision}": 1e-9 * operations / rate_of_products,
    }


def memory_there(path: Path, k: int, memory: str | None, device: str) -> tuple[int, int | None]:
    """Bytes of the device's memory as planned, and the most that torch has allocated, if it tells."""
    import torch

    import streampca

    model = streampca.fit(path, n_components=k, memory=memory, device=device)
    most = torch.cuda.max_memory_reserved(device) if device.startswith("cuda") else None
    return int(model.provenance["plan"]["device_bytes"]), most


# -- the tables


def measured_case(
    name: str, case: Case, args: argparse.Namespace, directory: Path, limits: dict[str, float | None]
) -> dict[str, Any]:
    """Run everybody on a case, print its table, and return it as plain data."""
    n, side, k = args.samples or case.samples, args.side or case.side, args.components
    path = npy_of(directory, case.draw, n, side)
    warm(path)
    what = f"{name}: {n} x {side} x {side} {mapped(path).dtype}, k = {k}"
    print(f"\n{what}")
    tell("reference in float64")
    truth = in_fresh_process(reference, path, k)
    peers = peers_on(args.device, case.memory)
    jobs = {
        each: partial(in_fresh_process, run, peer, path, k) for each, peer in peers.items() if find_spec(peer.package)
    }
    results: dict[str, list[Result | str]] = alternating(args.rounds, jobs)
    report(results, truth, ours=ours_on(args.device))
    for each in peers.keys() - jobs.keys():
        print(f"{each}: not installed")
    parts = in_fresh_process(parts_of, path, k, case.memory, args.device, limits)
    print_table(("by themselves", "s"), [(part, f"{seconds:.3f}") for part, seconds in parts.items()])
    planned, allocated = in_fresh_process(memory_there, path, k, case.memory, args.device)
    print(f"memory of the device: {mib(planned)} MiB planned, {mib(allocated)} MiB held by torch")
    there = {"planned": planned, "held": allocated}
    return {**as_json(what, machine(), results, truth), "parts": parts, "device_memory": there}


def measured_large(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Fit the collection larger than memory on the device and on the processor; peers need all of it at once."""
    n = max(2 * large.COMPONENTS, int(args.gigabytes * 1e9 / (2 * large.SIDE**2)))
    path = directory / f"large-{n}.zarr"
    large.make(path, n)
    print(f"\n{LARGE}: {args.gigabytes:g} GB of Zarr, {n} x {large.SIDE} x {large.SIDE} uint16, k = {large.COMPONENTS}")
    bare = in_fresh_process(large.reading, path, n, True)
    found = {
        where: in_fresh_process(large.fit, path, n, args.memory, True, device)
        for where, device in ((f"on {args.device}", args.device), ("on the processor", None))
    }
    rows = [
        [f"streampca {where}, within {args.memory}", f"{fit.seconds:.1f}", f"{fit.passes}", mib(fit.peak),
         f"{fit.off:.0e}", f"{fit.bound:.0e}"]
        for where, fit in found.items()
    ]  # fmt: skip
    rows.append(["reading and decoding alone", f"{bare:.1f}", "1", "", "", ""])
    print_table(("", "s", "passes", "peak MiB", "off", "bound"), rows)
    print("cuML, torch.pca_lowrank: not run, they need all samples on the device")
    return {"samples": n, "reading": bare, "fits": {where: fit._asdict() for where, fit in found.items()}}


def cases(args: argparse.Namespace, limits: dict[str, float | None]) -> Iterator[tuple[str, dict[str, Any]]]:
    with folder(args.directory) as directory:
        tiny = islice(CASES["digits"].draw(512, 8), 512)
        np.save(directory / TINY, np.concatenate([*tiny]))
        for name in args.cases.split(","):
            if name == LARGE:
                yield name, measured_large(args, directory)
            else:
                yield name, measured_case(name, CASES[name], args, directory, limits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="as streampca names it: cuda, cuda:1, torch:cpu")
    parser.add_argument("--cases", default=",".join(NAMES), help="default: %(default)s")
    parser.add_argument("--samples", type=int, help="instead of the case's")
    parser.add_argument("--side", type=int, help="pixels along each side of a sample, instead of the case's")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--gigabytes", type=float, default=20, help="of the case larger than memory")
    parser.add_argument("--memory", default="1 GiB", help="our budget there")
    parser.add_argument("--megabytes", type=int, default=256, help="sent at a time to measure the link")
    parser.add_argument("--order", type=int, default=8192, help="of the matrices multiplied to measure the device")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="keep the data here; by default a temporary folder")
    parser.add_argument("--json", type=Path, help="write the results there")
    args = parser.parse_args()
    if unknown := set(args.cases.split(",")) - set(NAMES):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(NAMES)}")
    if not find_spec("torch"):
        sys.exit("torch is not installed: pip install 'streampca[gpu]'")
    about, device = machine(), in_fresh_process(about_device, args.device)
    print(f"{about}\n{device}")
    limits = in_fresh_process(limits_of, args.device, args.megabytes, args.order)
    print_table(("limits", ""), [(name, "none" if one is None else f"{one:.1f}") for name, one in limits.items()])
    results: dict[str, Any] = {"machine": about, "device": device, "limits": limits, "cases": {}}
    for name, found in cases(args, limits):
        results["cases"][name] = found
        sys.stdout.flush()
        if args.json is not None:  # after every case: the last takes the longest
            args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
