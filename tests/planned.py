"""Problems that plans are made for, by name and at random; and the remedies that refusals name."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from streampca.planning import dual, randomized
from streampca.planning.candidate_sizes import search
from streampca.planning.request import Machine, Problem
from streampca.units import GIB, MIB, parse_bytes

MACHINE = Machine(2, 16 * GIB)


def problem(n, shape, dtype="u1", **storage):
    kind = np.dtype(dtype)
    p = int(np.prod(shape))
    return Problem(n, p, shape, p * kind.itemsize, kind.itemsize, kind.kind, **{"machine": MACHINE, **storage})


def in_files(n, shape, dtype="u1"):
    """One image a file, as `ImageFiles` says of itself."""
    made = problem(n, shape, dtype, encoded=True)
    return replace(made, decode_bytes=2 * (3 * made.row_bytes + MIB))


def in_one_file(n, shape, dtype="u1"):
    """Plain values, as `FlatArray` says of itself."""
    return problem(n, shape, dtype, chunk_features=4096 // np.dtype(dtype).itemsize, decode_bytes=2 * MIB)


def in_chunks(n, shape, dtype, samples, features):
    """Compressed chunks, as `ZarrArray` says of itself."""
    decode_bytes = 5 * samples * features * np.dtype(dtype).itemsize + 10 * MIB
    cut = {"chunk_samples": samples, "chunk_features": features}
    return problem(n, shape, dtype, encoded=True, decode_bytes=decode_bytes, **cut)


PROBLEMS = {
    "digits": problem(60000, (28, 28)),
    "tiny": problem(20, (3,), "f8"),
    "raw doubles": problem(5_000, (30, 40), "f8"),
    "more samples than features": problem(12_000, (112, 92)),
    "thumbnails in zarr": problem(1_000_000, (64, 64), chunk_samples=1000, decode_bytes=100 * MIB),
    "small maps, one a chunk": problem(30_000, (60, 100), "f4", chunk_samples=1, decode_bytes=1 * MIB),
    "large chunks": problem(200_000, (32, 32), "u2", chunk_samples=50_000, decode_bytes=110 * MIB),
    "faces": problem(400, (112, 92)),
    "faces in files": in_files(400, (112, 92)),
    "microscope frames, floats": in_files(1000, (4096, 4096), "f4"),
    "satellite tiles": in_chunks(20_000, (256, 256, 4), "u2", 16, 256 * 256 * 4),
    "climate, chunks across time": in_chunks(24_000, (721, 1440), "f4", 24_000, 10 * 1440),
    "climate, a map a chunk": in_chunks(24_000, (721, 1440), "f4", 1, 721 * 1440),
    "hyperspectral, pixels of 200 bands": in_one_file(2_250_000, (200,), "u2"),
    "hyperspectral, bands of pixels": in_one_file(200, (1500, 1500), "u2"),
    "calcium stack": in_files(3000, (512, 512), "u2"),
    "1 GB, one file": in_one_file(1000, (512, 512), "f4"),
    "1 GB, in files": in_files(1000, (512, 512), "f4"),
    "1 GB, chunks across": in_chunks(1000, (512, 512), "f4", 20, 64 * 512),
    "pictures": problem(30_000, (128, 128)),
    "a million": problem(1_000_000, (256, 256)),
    "a million, packed": problem(
        1_000_000, (256, 256), chunk_samples=100, encoded=True, fills=False, decode_bytes=30 * MIB
    ),
    "on a cluster": problem(10**8, (256, 256)),
    "volumes": problem(2000, (160, 160, 160), "f4"),
    "megapixels": problem(20_000, (1000, 1000), chunk_features=1000),
    "megapixels, packed": problem(20_000, (1000, 1000), encoded=True, fills=False, decode_bytes=8 * MIB),
}


@st.composite
def layouts(draw, samples=10**6):
    """Any collection of square samples: fewer or more than features, however it is cut and stored."""
    n, side = draw(st.integers(2, samples)), draw(st.integers(2, 3000))
    rows, part = min(draw(st.sampled_from([1, 1, 7, 64, 5000])), n), draw(st.sampled_from([1, 1, 3, 100]))
    encoded = draw(st.booleans())
    cut = {"chunk_samples": rows, "chunk_features": max(1, side * side // part)}
    how = {"encoded": encoded, "fills": not encoded, "decode_bytes": rows * side * side * 8}
    return problem(n, (side, side), draw(st.sampled_from(["u1", "u2", "f4", "f8"])), **cut, **how)


def plan_of(schedule, problem, request):
    """The plan of one schedule of method 'dual', or of one side of 'randomized', by its name; None where none fits."""
    if schedule in ("along features", "along samples"):
        groups = randomized.sides(problem, request)[schedule == "along samples"]
    else:
        schedules = dual.schedules(problem, request.asking(method="dual"))
        groups = next(each.groups for each in schedules if each.name == f"dual ({schedule})")
    sizes = search(groups, problem.machine.budget(request.memory)[0])
    return None if sizes is None else sizes.plan()


def remedy(error):
    """The memory that a refusal says would do."""
    found = re.search(r"Set memory to at least (\d+[MGT]iB)", str(error))
    assert found, str(error)
    assert "\n" not in str(error)
    return parse_bytes(found[1])


def unwrapped(text):
    """Text on one line, with single spaces."""
    return " ".join(text.split())
