"""Sources and doors: whatever holds samples gives, at every door, the bits of the numpy array of the same values."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import streampca
from streampca import PCA
from streampca.errors import RequestError, SourceError

X = np.random.default_rng(2).integers(0, 200, (60, 6)).astype("f4")
NAMES = [f"c{at}" for at in range(X.shape[1])]


@dataclass
class OfArray:
    """A tensor that numpy converts, of a dtype whose name numpy does not know."""

    values: np.ndarray
    dtype: str = "framework.float32"
    shape = property(lambda tensor: tensor.values.shape)
    ndim = property(lambda tensor: tensor.values.ndim)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __getitem__(self, item):
        return OfArray(self.values[item], self.dtype)


@dataclass
class OfDlpack:
    """A tensor in the memory of the processor that speaks DLPack alone."""

    values: np.ndarray
    shape = property(lambda tensor: tensor.values.shape)

    def __dlpack__(self, **how: Any) -> Any:
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class HalfPrecision(OfArray):
    """A tensor of bfloat16 as torch's, which requires a gradient and converts when it is float32."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")

    def detach(self):
        return HalfPrecision(self.values, "framework.bfloat16")

    def float(self):
        return OfArray(self.values)


class OfBoth(OfArray):
    """A tensor as jax's, which speaks both protocols, and becomes an array of bfloat16, for which ml_dtypes stands."""

    def __dlpack__(self, **how: Any) -> Any:
        raise BufferError("bfloat16 has no counterpart in numpy")


class OfArrow:
    """A table of a library of which only Arrow's protocol is known."""

    def __init__(self, table):
        self.table, self.columns = table, table.column_names

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def module(name):
    return pytest.importorskip(name)


def arrow(x):
    return module("pyarrow").table(dict(zip(NAMES, x.T, strict=True)))


def in_file(write):
    def made(x, path):
        write(path, x)
        return path

    return made


def h5(path, x):
    with h5py.File(path, "w") as file:
        file["x"] = x


def parts(x, folder):
    np.save(folder / "p0.npy", x[:25])
    np.save(folder / "p1.npy", x[25:])
    return [folder / "p0.npy", folder / "p1.npy"]


def pandas_of_numbers(x):
    pandas = module("pandas")
    return pandas.DataFrame(
        {name: pandas.array(column, dtype="Float32") for name, column in zip(NAMES, x.T, strict=True)}
    )


IN_MEMORY = {
    "numpy": np.asarray,
    "rows": list,
    "sparse": sp.csr_array,
    "pandas": lambda x: module("pandas").DataFrame(x, columns=NAMES),
    "pandas' own numbers": pandas_of_numbers,
    "tables in a list": lambda x: [module("pandas").DataFrame(part, columns=NAMES) for part in (x[:9], x[9:])],
    "polars": lambda x: module("polars").DataFrame(x, schema=NAMES),
    "arrow": arrow,
    "arrow's protocol": lambda x: OfArrow(arrow(x)),
    "tensor": OfArray,
    "tensor by DLPack": OfDlpack,
    "tensor of bfloat16 as jax's": lambda x: OfBoth(x.astype(module("ml_dtypes").bfloat16), "bfloat16"),
    "tensor of bfloat16": lambda x: HalfPrecision(x, "framework.bfloat16"),
}
LAZY = {
    "dask": lambda x, _: da.from_array(x, chunks=(13, 6)),
    "dask, sparse": lambda x, _: da.from_array(x, chunks=(13, 4)).map_blocks(sp.coo_array),
    "dask frame": lambda x, _: module("dask.dataframe").from_pandas(
        module("pandas").DataFrame(x, columns=NAMES), npartitions=3
    ),
    "xarray": lambda x, _: module("xarray").DataArray(x, dims=("time", "x")),
    "zarr": lambda x, _: zarr.array(x),
    "h5py": lambda x, folder: h5py.File(in_file(h5)(x, folder / "o.h5"))["x"],
    "path": lambda x, folder: in_file(np.save)(x, folder / "x.npy"),
    "text": lambda x, folder: str(in_file(h5)(x, folder / "x.h5")),
    "paths": parts,
    "collection": lambda x, _: streampca.open_collection(x),
}
SOURCES = [*IN_MEMORY, *LAZY]
KIND = {"n_components": 2, "method": "covariance"}


def made(name, x, folder):
    return IN_MEMORY[name](x) if name in IN_MEMORY else LAZY[name](x, folder)


@pytest.fixture(scope="module")
def fitted():
    return streampca.fit(X, PCA(**KIND)), PCA(**KIND).fit(X)


def of_model(model):
    return [model.components, model.mean, model.explained_variance]


DOORS = {
    "fit": lambda source, model, estimator: of_model(streampca.fit(source, PCA(**KIND))),
    "plan": lambda source, model, estimator: [streampca.plan(source, PCA(**KIND)).passes],
    "open_collection": lambda source, model, estimator: [np.asarray(streampca.open_collection(source)[:])],
    "transform": lambda source, model, estimator: [model.transform(source)],
    "reconstruct": lambda source, model, estimator: [model.reconstruct(source)],
    "score": lambda source, model, estimator: [model.score(source)],
    "PCA.fit": lambda source, model, estimator: of_model(PCA(**KIND).fit(source).model_),
    "PCA.transform": lambda source, model, estimator: [estimator.transform(source)],
    "PCA.partial_fit": lambda source, model, estimator: of_model(PCA(2).partial_fit(source).model_),
    "neighbors": lambda source, model, estimator: [streampca.neighbors(source, n_neighbors=4).distances],
    "hsic": lambda source, model, estimator: [streampca.hsic(source, X[:, :2], permutations=0).biased],
}


@pytest.mark.filterwarnings("ignore:X (has|does not have) .*feature names:UserWarning")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_has_the_bits_of_numpy_at_every_door(name, door, fitted, tmp_path):
    found = DOORS[door](made(name, X, tmp_path), *fitted)
    for ours, expected in zip(found, DOORS[door](X, *fitted), strict=True):
        if name in IN_MEMORY and hasattr(expected, "dtype"):
            assert isinstance(ours, np.ndarray), "what is in memory is answered at once"
        np.testing.assert_array_equal(np.asarray(ours), expected)


def batches(x=X, rows=17):
    return (x[start : start + rows] for start in range(0, len(x), rows))


def test_batches_are_fitted_by_the_doors_that_read_them_once(tmp_path, fitted):
    model, estimator = fitted
    for ours in (streampca.fit(batches(), n_components=2, output=tmp_path / "m.zarr"), PCA(2).fit(batches()).model_):
        for mine, expected in zip(of_model(ours), of_model(model), strict=True):
            np.testing.assert_array_equal(mine, expected)
    np.testing.assert_array_equal(streampca.load(tmp_path / "m.zarr").components, model.components)
    for door in DOORS:
        if door in ("fit", "PCA.fit"):
            continue
        with pytest.raises(RequestError, match=r"can only be iterated over; PCA\.fit takes batches as iter") as error:
            DOORS[door](batches(), model, estimator)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("kind", "options", "said"), [
    (streampca.Isomap(2), {}, "kind 'isomap' reads samples again"),
    (PCA(2, method="dual"), {}, "method='dual' reads samples again"),
    (PCA(2), {"sample_weight": np.ones(5)}, "sample_weight needs samples that can be read again"),
    (PCA(2), {"checkpoint": "saved"}, "checkpoint needs samples that can be read again"),
    (PCA(6), {}, "give more batches, or ask for fewer components"),
])  # fmt: skip
def test_batches_are_refused_where_samples_are_read_again(kind, options, said):
    with pytest.raises(RequestError, match=said):
        streampca.fit(batches(X[:5]), kind, **options)


@pytest.mark.parametrize(("source", "said"), [
    ([[1.0, 2.0], [3.0]], "not all of one length"),
    ([X, X], "each of which may be one sample, or a batch of samples"),
    ({1, 2}, "can only be iterated over"),
    (3, "an object of type int is not a collection"),
    (X + 1j, "complex128, which is not a real number|complex64, which is not a real number"),
    (lambda: module("pandas").DataFrame({"a": [1, 2], "b": ["x", "y"]}), "column 'b' of pandas DataFrame has dtype"),
    (lambda: module("polars").DataFrame({"a": [1, 2], "b": ["x", "y"]}), "column 'b' of polars DataFrame has dtype"),
], ids=lambda value: value if isinstance(value, str) else type(value).__name__)  # fmt: skip
def test_what_holds_no_samples_is_refused_in_a_line_at_every_door(source, said, fitted):
    source = source() if callable(source) else source
    for door in ("fit", "open_collection", "transform", "neighbors"):
        with pytest.raises((SourceError, RequestError), match=said) as error:
            DOORS[door](source, *fitted)
        assert "\n" not in str(error.value)


def test_missing_numbers_of_tables_are_nan():
    pandas, polars = module("pandas"), module("polars")
    tables = (
        pandas.DataFrame({"a": pandas.array([1, None], dtype="Int64"), "b": [1.5, 2]}),
        polars.DataFrame({"a": [1, None], "b": [1.5, 2]}),
        module("pyarrow").table({"a": [1, None], "b": [1.5, 2]}),
    )
    for table in tables:
        np.testing.assert_array_equal(streampca.open_collection(table)[:], [[1, 1.5], [np.nan, 2]])


@pytest.mark.slow
def test_tables_and_tensors_import_nothing():
    script = (
        "import sys, numpy, streampca; streampca.fit(numpy.random.default_rng(0).random((20, 4)), n_components=2)"
        "; print([name for name in ('pandas', 'polars', 'pyarrow', 'torch', 'jax', 'xarray') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_batches_and_numbers_are_refused_with_what_a_model_takes():
    model = streampca.fit(X, n_components=2)
    with pytest.raises(RequestError, match=r"all else takes one array, np\.concatenate\(list\(X\)\)"):
        model.transform(X[at : at + 20] for at in (0, 20, 40))
    batches = (X[at : at + 20] for at in (0, 20, 40))
    np.testing.assert_array_equal(model.transform(np.concatenate(list(batches))), model.transform(X))
    with pytest.raises(streampca.errors.ModelError, match=r"have shape \(\) and"):
        model.transform(np.array(3.0))
