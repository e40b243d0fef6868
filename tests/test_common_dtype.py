"""In which dtype sources are joined, with numpy's astype and xarray's decoding as the oracles."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import h5py
import netCDF4
import numpy as np
import pytest
import scipy.sparse
import tifffile
import xarray as xr
import zarr
from contract import refused_as
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from shell import refused, succeeded

import streampca
from streampca.errors import ModelError, RequestError, SourceError
from streampca.readers import open_collection
from streampca.readers.common_dtype import WORKSPACE

KINDS = {"uint8": ["u1"], "u": ["u2", "u4", "u8"], "i": ["i1", "i2", "i4", "i8"], "f": ["f2", "f4", "f8"]}
OF = {name: kind for kind, names in KINDS.items() for name in names}
ASKED = ["uint8", "uint16", "int8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64"]
ODD = [-1, 200, 300, 70_000, 2**40, 2**63, 0.5, 1e30, math.nan, -math.inf]
SHAPE = (4, 5)


def native(x):
    return x.astype(x.dtype.newbyteorder("="))


def npy(path, x):
    np.save(f"{path}.npy", x)


def npz(path, x):
    np.savez_compressed(f"{path}.npz", x=x)


def h5(path, x):
    with h5py.File(f"{path}.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(2, *SHAPE), compression="gzip")


def stored(path, x):
    zarr.save_array(f"{path}.zarr", x, zarr_format=2)


def nc(path, x):
    with netCDF4.Dataset(f"{path}.nc", "w") as file:
        for name, length in zip(("time", "y", "x"), x.shape, strict=True):
            file.createDimension(name, length)
        order = "big" if x.dtype.byteorder == ">" else "little"
        file.createVariable("v", x.dtype, ("time", "y", "x"), endian=order)[:] = x


def stack(path, x):
    tifffile.imwrite(f"{path}.tif", x, byteorder={">": ">"}.get(x.dtype.byteorder, "<"), photometric="minisblack")


def pages(path, x):
    with tifffile.TiffWriter(f"{path}.tif", append=Path(f"{path}.tif").exists()) as file:
        for page in native(x):
            file.write(page, photometric="minisblack", contiguous=False)


def images(path, x):
    for number, image in enumerate(x):
        if x.dtype.kind == "u" and x.dtype.itemsize < 4 and number % 2:
            Image.fromarray(native(image)).save(f"{path}-{number}.png")
        else:
            stack(f"{path}-{number}", image)


# What writes samples to a path, and the dtypes that it can write.
FORMS = {
    "npy": (npy, [*OF]), "npz": (npz, [*OF]), "h5": (h5, [*OF]), "zarr": (stored, [*OF]),
    "nc": (nc, [name for name in OF if name != "f2"]), "stacks": (stack, [*OF]), "pages": (pages, [*OF]),
    "images": (images, [*OF]), "rows": (None, [*OF]), "sparse": (None, [name for name in OF if name != "f2"]),
}  # fmt: skip


class Case(NamedTuple):
    """Parts of a source: their form, dtypes with byte order, number that stands out, and the dtype asked for."""

    form: str
    dtypes: tuple[str, ...]
    odd: float | None
    asked: str | None


@st.composite
def cases(draw):
    form = draw(st.sampled_from([*FORMS]))
    names = FORMS[form][1]
    if draw(st.booleans()):
        kind = draw(st.sampled_from([kind for kind in KINDS if kind != "uint8"]))
        names = [name for name in names if OF[name] == kind]
    asked = draw(st.sampled_from([None, None, *ASKED]))
    chosen = draw(st.lists(st.sampled_from(names), min_size=2, max_size=3))
    orders = [draw(st.sampled_from("<>")) for _ in chosen]
    return Case(form, tuple(map("".join, zip(orders, chosen, strict=True))), draw(st.sampled_from([None, *ODD])), asked)


def values_of(case):
    """Return the samples of each part; the odd number is where a dtype holds it."""
    rng = np.random.default_rng(len(case.dtypes))
    parts = [rng.integers(0, 99, (2, *SHAPE)).astype(dtype) for dtype in case.dtypes]
    for part in parts:
        if case.odd is not None and (part.dtype.kind == "f" or holds(part.dtype, case.odd)):
            with np.errstate(over="ignore"):
                part[1, 2, 3] = case.odd
    return parts


def holds(dtype, number):
    """Whether a dtype of whole numbers has a number, by Python's exact arithmetic."""
    number = float(number)
    return number.is_integer() and np.iinfo(dtype).min <= int(number) <= np.iinfo(dtype).max


def is_lost(parts, dtype):
    """Whether a conversion loses a number of some part, by Python's exact arithmetic."""
    numbers = [number.item() for part in parts for number in part.ravel()]
    if dtype.kind != "f":
        return not all(holds(dtype, number) if isinstance(number, float) else
                       np.iinfo(dtype).min <= number <= np.iinfo(dtype).max for number in numbers)  # fmt: skip
    with np.errstate(over="ignore"):
        return any(math.isfinite(number) and np.isinf(np.float64(number).astype(dtype)) for number in numbers)


def source_of(case, folder, parts):
    if case.form == "rows":
        return [row for part in parts for row in part.reshape(len(part), -1)]
    if case.form == "sparse":
        return [scipy.sparse.csr_array(native(part).reshape(len(part), -1)) for part in parts]
    for number, part in enumerate(parts):
        FORMS[case.form][0](folder / ("x" if case.form == "pages" else str(number)), part)
    return str(folder / "x.tif" if case.form == "pages" else folder)


def check_law(folder, case):
    """The values are those of numpy's astype; kinds are refused beside one another, and the remedy of that works."""
    folder.mkdir()
    parts, how = values_of(case), {} if case.asked is None else {"dtype": case.asked}
    source, kinds = source_of(case, folder, parts), {OF[name[1:]] for name in case.dtypes}
    if case.asked is None and len(kinds) > 1:
        with pytest.raises(SourceError, match=r"give dtype='(\w+)' ") as caught:
            open_collection(source)
        if len(kinds) > 2:  # the message names two of the kinds
            return
        how = {"dtype": re.search(r"dtype='(\w+)' if all have one scale", str(caught.value))[1]}
    dtype = np.dtype(how.get("dtype") or np.result_type(*(part.dtype.newbyteorder("=") for part in parts)))
    if is_lost(parts, dtype):
        with pytest.raises(SourceError, match=rf"has the value .*, which {dtype} does not hold; give dtype='\w+'"):
            np.asarray(open_collection(source, **how))
        return
    found = open_collection(source, **how)
    assert found.dtype.newbyteorder("=") == dtype
    expected = np.concatenate([part.astype(dtype) for part in parts])
    np.testing.assert_array_equal(np.asarray(found).reshape(expected.shape), expected)
    np.testing.assert_array_equal(found.read(slice(1, 4), slice(3, 17)), expected.reshape(len(expected), -1)[1:4, 3:17])
    if case.odd is None:
        np.save(folder.with_suffix(".npy"), expected.reshape(found.shape))
        kind = streampca.PCA(1, method="covariance")
        one, many = streampca.fit(folder.with_suffix(".npy"), kind), streampca.fit(source, kind, **how)
        np.testing.assert_array_equal(many.components, one.components)
        np.testing.assert_array_equal(many.explained_variance, one.explained_variance)


@settings(max_examples=50)
@given(case=cases())
def test_sources_are_joined_in_one_dtype(tmp_path_factory, case):
    check_law(tmp_path_factory.mktemp("d") / "x", case)


@pytest.mark.campaign
@settings(max_examples=500)
@given(case=cases())
def test_sources_are_joined_in_one_dtype_at_length(tmp_path_factory, case):
    check_law(tmp_path_factory.mktemp("d") / "x", case)


# --- packed values


@st.composite
def packings(draw):
    """Stored dtype, scale and offset of each file; numpy's types of the last two decide what xarray decodes to."""
    number = st.sampled_from([np.float32, np.float64])
    factors = [
        (
            draw(number)(draw(st.sampled_from([0.5, 0.1, 2.0]))),
            draw(st.sampled_from([None, np.float32(3), np.float64(-7)])),
        )
        for _ in range(draw(st.integers(2, 3)))
    ]
    return [(draw(st.sampled_from(["i1", "i2", "u1", "i4"])), *each) for each in factors]


def check_packed(folder, packing, asked):
    folder.mkdir()
    for number, (dtype, scale, offset) in enumerate(packing):
        with netCDF4.Dataset(folder / f"{number}.nc", "w") as file:
            for name, length in zip(("time", "y", "x"), (2, *SHAPE), strict=True):
                file.createDimension(name, length)
            variable = file.createVariable("v", dtype, ("time", "y", "x"), fill_value=99)
            variable.set_auto_maskandscale(False)
            variable.scale_factor = scale
            if offset is not None:
                variable.add_offset = offset
            variable[:] = np.random.default_rng(number).integers(0, 99, (2, *SHAPE))
    decoded = []
    for path in sorted(folder.glob("*.nc")):
        with xr.open_dataset(path) as dataset:
            decoded.append(dataset["v"].values)
    dtype = np.result_type(*decoded) if asked is None else np.dtype(asked)
    found = open_collection(folder, **({} if asked is None else {"dtype": asked}))
    if is_lost(decoded, dtype):
        with pytest.raises(SourceError, match="does not hold"):
            np.asarray(found)
        return
    np.testing.assert_array_equal(np.asarray(found), np.concatenate([part.astype(dtype) for part in decoded]))
    assert found.dtype == dtype


@settings(max_examples=25)
@given(packing=packings(), asked=st.sampled_from([None, None, "float32", "int16"]))
def test_files_packed_in_different_ways_are_joined_by_their_values(tmp_path_factory, packing, asked):
    check_packed(tmp_path_factory.mktemp("p") / "x", packing, asked)


@pytest.mark.campaign
@settings(max_examples=250)
@given(packing=packings(), asked=st.sampled_from([None, None, "float32", "int16"]))
def test_files_packed_in_different_ways_are_joined_by_their_values_at_length(tmp_path_factory, packing, asked):
    check_packed(tmp_path_factory.mktemp("p") / "x", packing, asked)


# --- doors, models, memory


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """A folder with images of 8 and 16 bits, and their values."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).integers(0, 200, (12, 6, 5)).astype("u1")
    Path("mixed").mkdir()
    for number, image in enumerate(x):
        Image.fromarray(image.astype("u2" if number % 3 else "u1")).save(f"mixed/{number}.png")
    return x


def test_every_door_takes_the_dtype_and_the_model_keeps_it(mixed):
    line = refused("fit", "mixed", "-k", 2, "-o", "m.zarr", code=1)
    assert "give --dtype uint16 if all have one scale" in line
    direct = streampca.fit("mixed", n_components=2, dtype=np.float32)
    np.testing.assert_array_equal(direct.components, streampca.fit(mixed.astype("f4"), n_components=2).components)
    succeeded("fit", "mixed", "-k", 2, "--dtype", "float32", "-o", "m.zarr")
    Path("run.yaml").write_text(
        "collection: {source: mixed, dtype: float32}\nmodel: {n_components: 2}\noutput: {model: r.zarr}\n"
    )
    succeeded("run", "run.yaml")
    expected = np.asarray(direct.transform(mixed.astype("f4")))
    for path in ("m.zarr", "r.zarr"):
        model = streampca.load(path)
        assert model.provenance["opened"]["options"] == {"dtype": "float32"}
        np.testing.assert_array_equal(model.components, direct.components)
        np.testing.assert_array_equal(model.transform("mixed"), expected)
    np.save("bytes.npy", mixed)
    succeeded("transform", "m.zarr", "bytes.npy", "-o", "s.zarr")
    np.testing.assert_array_equal(open_collection("s.zarr")[:][:], expected)
    succeeded("reconstruct", "m.zarr", "s.zarr", "-o", "i.npy")  # scores have a dtype of their own
    growing = streampca.fit("mixed", streampca.PCA(2, method="covariance"), dtype="float32")
    assert streampca.update(growing, "bytes.npy").n_samples == 24
    assert '"row_bytes": 64,' in succeeded("plan", "--shape", "60x8x8", "--json")
    assert '"row_bytes": 512,' in succeeded("plan", "--shape", "60x8x8", "--dtype", "float64", "--json")


def test_a_model_of_fractions_takes_whole_numbers_where_it_is_said(mixed):
    model = streampca.fit(mixed.astype("f4"), n_components=2)
    np.save("bytes.npy", mixed)
    with pytest.raises(ModelError, match=r"give dtype='float32' if"):
        np.asarray(model.transform("bytes.npy"))
    np.testing.assert_array_equal(model.transform("bytes.npy", dtype="float32"), model.transform(mixed.astype("f4")))


def test_other_options_go_with_it(tmp_path, mixed):
    """Windows of a single image, variables, fill values, a choice of samples, folders with bad and odd files."""
    image = mixed.reshape(24, 15)
    windows = open_collection(image, patches=3, dtype="float32")
    np.testing.assert_array_equal(np.asarray(windows), np.asarray(open_collection(image.astype("f4"), patches=3)))
    filled = open_collection(mixed, fill_value=7, dtype="float64", samples=slice(2, 9))
    np.testing.assert_array_equal(np.asarray(filled), np.where(mixed == 7, np.nan, mixed)[2:9])
    Image.fromarray(np.zeros((3, 3), "u1")).save("mixed/12.png")
    Path("mixed/13.png").write_bytes(b"")
    skipped = open_collection("mixed", on_bad_file="skip")
    assert (skipped.dtype, len(skipped.skipped)) == (np.uint16, 6)
    every = open_collection("mixed", on_bad_file="skip", dtype="int16").fitting(lambda shape: shape)
    np.testing.assert_array_equal(np.asarray(every), mixed)
    for wrong in ("complex64", "word", 3, ["f4"]):
        refused_as(mixed, "dtype = .*: give 'uint8', ", error=RequestError, dtype=wrong)
    with pytest.raises(RequestError, match=r"dtype was given for .*, which is open already"):
        open_collection(open_collection(mixed), dtype="float32")


def test_the_memory_of_a_conversion_is_planned(tmp_path):
    for number, dtype in enumerate(("u2", "u4")):
        np.save(tmp_path / f"{number}.npy", np.zeros((1000, 60, 70), dtype))
    alike = open_collection(str(tmp_path / "0.npy")), open_collection(str(tmp_path / "1.npy"))
    mixed = open_collection(tmp_path)
    piece = 8 * 2**20
    assert mixed.storage.decode_bytes >= piece + WORKSPACE + max(part.storage.decode_bytes for part in alike)
    assert open_collection(str(tmp_path / "0.npy"), dtype="float32").storage.decode_bytes >= piece + WORKSPACE
