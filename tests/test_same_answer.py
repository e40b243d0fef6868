"""The same digits in every format, held in memory and behind URLs, cut every way, in both precisions: one answer."""

from __future__ import annotations

import gzip
import re
import struct
from dataclasses import replace
from functools import cache, partial

import by_options
import dask.array as da
import fsspec
import h5py
import numpy as np
import pytest
import tifffile
import xarray
import zarr
from astropy.io import fits
from judged import ROUNDING, angles
from PIL import Image
from scipy.linalg import subspace_angles
from shell import DATA
from sklearn.datasets import load_digits

import streampca
from streampca.errors import BudgetError
from streampca.execution import LocalExecutor
from streampca.fitting.methods import METHODS, Job
from streampca.fitting.open_fit import prepare
from streampca.planning import make_plan
from streampca.planning.blocks import spans_of
from streampca.preprocessing.sizes_for_planning import problem_of

MNIST = DATA / "mnist" / "t10k-images-idx3-ubyte.gz"
N = 400
CUTS = {"whole": (N, 1), "blocks of 300": (300, 1), "blocks of 64": (64, 1), "many spans": (40, 7)}


@cache
def images(dtype):
    """Real handwritten digits: MNIST where it is, else scikit-learn's, enlarged to about that size and shifted."""
    if MNIST.exists():  # the inner 20 x 20 pixels, which the digits were made to fill
        digits = streampca.open_collection(MNIST).read(slice(0, N)).reshape(N, 28, 28)[:, 4:24, 4:24].copy()
    else:
        small = load_digits().images[np.arange(N) % 1797]
        large = np.rint(np.kron(small, np.ones((1, 3, 3))) * 15).astype(np.uint8)
        shifts = np.random.default_rng(0).integers(0, 5, (N, 2))  # or they would have 49 dimensions only
        digits = np.stack([image[y : y + 20, x : x + 20] for image, (y, x) in zip(large, shifts, strict=True)])
    if dtype == "f4":  # no whole numbers, some offset: nothing is exact
        digits = (digits / np.float32(255) + np.float32(10)).astype(np.float32)
    digits.flags.writeable = False
    return digits


def write(folder, name, x):
    """Store the images; return what `open_collection` is given."""
    path = folder / name.replace(" ", "_")
    if (given := WRITERS[name](path, x)) is not None:  # an array, or a URL
        return given
    found = sorted(folder.glob(f"{path.name}*"))
    return str(found[0]) if len(found) == 1 else [str(part) for part in found]


def write_zarr(path, x, **options):
    made = zarr.create_array(f"{path}.zarr", shape=x.shape, dtype=x.dtype, **options)
    made[...] = x


def write_ome(path, x, version="0.5"):
    """Two levels; the first is meant."""
    axes = [{"name": name} for name in "tyx"]
    levels = [{"path": path, "coordinateTransformations": []} for path in "01"]
    picture = [{"version": version, "axes": axes, "datasets": levels}]
    group = zarr.create_group(f"{path}.zarr", attributes={"ome": {"version": version, "multiscales": picture}})
    group.create_array("0", data=x, chunks=(256, 10, 10))
    group.create_array("1", data=x[:, ::2, ::2], chunks=(256, 10, 10))


def write_hdf5(path, x, **options):
    with h5py.File(f"{path}.h5", "w") as file:
        file.create_dataset("deep/images", data=x, **options)


def write_netcdf(path, x, **options):
    xarray.DataArray(x, dims=("time", "y", "x"), name="images").to_netcdf(f"{path}.nc", **options)


def write_pictures(path, x, suffix):
    path.mkdir()
    for number, image in enumerate(x):
        Image.fromarray(image).save(path / f"{number}{suffix}", **({"compress_level": 1} if suffix == ".png" else {}))


def write_idx(path, x, opener=open):
    code = {"u1": 8, "f4": 13}[x.dtype.str[1:]]
    with opener(path, "wb") as file:
        file.write(struct.pack(">BBBB3I", 0, 0, code, x.ndim, *x.shape) + x.astype(x.dtype.newbyteorder(">")).tobytes())


def write_url(path, x, opener):
    """In the memory of this process; `opener` writes the same on disk."""
    opener(path, x)
    (stored,) = path.parent.glob(f"{path.name}*")
    url = f"memory:/{stored}"
    fsspec.filesystem("memory").put(str(stored), url, recursive=True)
    return url


def held_hdf5(path, x):
    write_hdf5(path, x, chunks=(100, 7, 20))
    return h5py.File(f"{path}.h5")["deep/images"]


def held_zarr(path, x):
    write_zarr(path, x, chunks=(128, 20, 9))
    return zarr.open_array(f"{path}.zarr", mode="r")


def write_parts(path, x):
    for number, part in enumerate(np.array_split(x, 7)):
        np.save(f"{path}{number}.npy", part)


WRITERS = {
    "npy": lambda path, x: np.save(f"{path}.npy", x),
    "fortran": lambda path, x: np.save(f"{path}.npy", np.asfortranarray(x)),
    "npz": lambda path, x: np.savez(f"{path}.npz", images=x),
    "compressed": lambda path, x: np.savez_compressed(f"{path}.npz", images=x),
    "parts": write_parts,
    "by samples": partial(write_zarr, chunks=(128, 20, 20)),
    "across features": partial(write_zarr, chunks=(500, 5, 20)),
    "sharded": partial(write_zarr, chunks=(50, 20, 9), shards=(400, 20, 36)),
    "zarr v2": partial(write_zarr, chunks=(333, 10, 10), zarr_format=2),
    "ome": write_ome,
    "hdf5": write_hdf5,
    "hdf5 gzip": partial(write_hdf5, chunks=(100, 7, 20), compression="gzip", shuffle=True),
    "tiff": lambda path, x: tifffile.imwrite(f"{path}.tif", x, photometric="minisblack"),
    "tiff lzw": lambda path, x: tifffile.imwrite(f"{path}.tif", x, compression="lzw", photometric="minisblack"),
    "bigtiff zstd": lambda path, x: tifffile.imwrite(
        f"{path}.tif", x, compression="zstd", bigtiff=True, photometric="minisblack"
    ),
    "netcdf3": lambda path, x: write_netcdf(path, x.astype("i2"), format="NETCDF3_64BIT", engine="scipy"),
    "netcdf4": partial(write_netcdf, engine="netcdf4"),
    "fits": lambda path, x: fits.PrimaryHDU(x).writeto(f"{path}.fits"),
    "idx": write_idx,
    "idx gzip": partial(write_idx, opener=partial(gzip.open, compresslevel=1)),
    "numpy array": lambda path, x: x,
    "dask array": lambda path, x: da.from_array(x, chunks=(300, 7, 20)),
    "xarray array": lambda path, x: xarray.DataArray(x, dims=("time", "y", "x")),
    "h5py dataset": held_hdf5,
    "zarr array": held_zarr,
    "npy at a url": partial(write_url, opener=lambda path, x: np.save(f"{path}.npy", x)),
    "zarr at a url": partial(write_url, opener=partial(write_zarr, chunks=(128, 20, 20))),
    "png": partial(write_pictures, suffix=".png"),
    "bmp": partial(write_pictures, suffix=".bmp"),
    "pgm": partial(write_pictures, suffix=".pgm"),
}
OF_WHOLE_NUMBERS = ("png", "bmp", "pgm", "netcdf3")  # the last is written as such: NetCDF-3 has no unsigned bytes
OF_FRACTIONS = tuple(name for name in WRITERS if name not in OF_WHOLE_NUMBERS)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """``fitted(dtype, format, cut, precision)``: a decomposition, each computed once."""
    folder = tmp_path_factory.mktemp("formats")

    @cache
    def source(dtype, name):
        (folder / dtype).mkdir(exist_ok=True)
        return streampca.open_collection(write(folder / dtype, name, images(dtype)))

    @cache
    def fit(dtype, name, cut="whole", precision="single"):
        collection = prepare(source(dtype, name), None)
        plan = make_plan(problem_of(collection), by_options.request(50, memory=2**30, precision=precision))
        rows, spans = CUTS[cut]
        plan = replace(plan, block_rows=rows, spans=spans_of(N, spans, rows))
        return METHODS[plan.method](Job(collection, plan, LocalExecutor()))

    yield fit
    fsspec.filesystem("memory").store.clear()


@cache
def reference(dtype):
    """In-memory float64: variances, components."""
    rows = images(dtype).reshape(N, -1).astype(np.float64)
    _, singular, components = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    return singular**2 / (N - 1), components


def assert_same_bits(one, other):
    for name in ("mean", "components", "explained_variance", "eigenvalues"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.total_variance == other.total_variance


def assert_within_bounds(one, other):
    """Differences are within the two error bounds together."""
    allowed = one.residual_bound * one.explained_variance + other.residual_bound * other.explained_variance
    assert np.all(np.abs(one.explained_variance - other.explained_variance) <= allowed)
    true = angles(one.components, other.components)
    given = np.isfinite(one.angle_bound + other.angle_bound)
    assert np.all(true[given] <= (one.angle_bound + other.angle_bound)[given])


def widest_angle(one, other, k=20):
    return subspace_angles(one[:k].T.astype(np.float64), other[:k].T.astype(np.float64)).max()


@pytest.mark.parametrize("name", WRITERS)
def test_whole_numbers_have_the_same_bits_in_every_format(fitted, name):
    assert_same_bits(fitted("u1", name), fitted("u1", "npy"))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["npy", "across features"])
def test_whole_numbers_have_the_same_bits_however_cut(fitted, name, cut):
    found = fitted("u1", name, cut)
    assert found.exact
    assert_same_bits(found, fitted("u1", "npy"))


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "single") for name in OF_FRACTIONS), ("hdf5 gzip", "double"), ("tiff", "double")]
)
def test_the_same_cut_has_the_same_bits_in_every_format(fitted, name, precision):
    """Rounding and all: probes and bounds too."""
    one = fitted("f4", name, "blocks of 64", precision)
    other = fitted("f4", "npy", "blocks of 64", precision)
    assert_same_bits(one, other)
    np.testing.assert_array_equal(one.residual_bound, other.residual_bound)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("precision", "variances", "angle"), [("single", 1e-6, 1e-5), ("double", 1e-11, 1e-8)])
def test_fractions_agree_however_cut(fitted, cut, precision, variances, angle):
    """Between cuts and with numpy in float64."""
    found, other = fitted("f4", "npy", cut, precision), fitted("f4", "npy", "whole", precision)
    assert not found.exact
    np.testing.assert_allclose(found.explained_variance, other.explained_variance, rtol=variances)
    assert widest_angle(found.components, other.components) < angle
    assert_within_bounds(found, other)
    values, components = reference("f4")
    np.testing.assert_allclose(found.explained_variance, values[:50], rtol=variances)
    assert widest_angle(found.components, components) < angle


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_precisions_agree_within_their_bounds(fitted, dtype):
    single, double = fitted(dtype, "npy"), fitted(dtype, "npy", "whole", "double")
    np.testing.assert_allclose(single.explained_variance, double.explained_variance, rtol=1e-6)
    assert widest_angle(single.components, double.components) < 1e-5
    assert_within_bounds(single, double)


@pytest.mark.parametrize("dtype", ["u1", "f4"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_bounds_hold_against_the_reference(fitted, dtype, precision):
    """The bounds of each component hold."""
    found = fitted(dtype, "npy", "whole", precision)
    values, components = reference(dtype)
    most = found.residual_bound * found.explained_variance + ROUNDING * values[0]
    assert np.all(np.abs(found.explained_variance - values[:50]) <= most)
    true = angles(found.components, components[:50])
    given = np.isfinite(found.angle_bound)
    assert np.all(true[given] <= found.angle_bound[given] + 1e-12)
    assert given.sum() >= 20
    assert np.all(found.residual_bound < (1e-4 if precision == "single" else 1e-11))


def test_the_budget_changes_blocks_and_nothing_else(tmp_path):
    path = write(tmp_path, "npy", np.repeat(images("u1"), 3, axis=0))
    with pytest.raises(BudgetError) as caught:
        streampca.plan(path, n_components=50, memory="1MiB")
    least = re.search(r"at least (\w+)", str(caught.value))[1]
    small, large = (streampca.fit(path, n_components=50, memory=memory) for memory in (least, "1GiB"))
    assert small.provenance["plan"]["block_rows"] < large.provenance["plan"]["block_rows"] == 3 * N
    np.testing.assert_array_equal(small.explained_variance, large.explained_variance)
