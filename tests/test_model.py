"""Models: what they keep on disk, and what they do to samples however these are given."""

from __future__ import annotations

import csv
import json
import os
from itertools import cycle, islice

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from PIL import Image
from shell import python
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import streampca
from streampca.errors import DataError, ModelError, OutputError, RequestError
from streampca.models import store
from streampca.models.load import load_model
from streampca.models.store import PER_COMPONENT
from streampca.readers import dask as dask_arrays


@pytest.fixture(scope="module")
def digits():
    """1797 digits of 8 x 8, uint8."""
    images = load_digits().images.astype(np.uint8)
    images.flags.writeable = False
    return images


@pytest.fixture(scope="module")
def model(digits):
    return streampca.fit(digits, n_components=10, memory="256MiB")


@pytest.fixture(scope="module")
def whole(digits):
    """All components there are."""
    return streampca.fit(digits, streampca.PCA(None, precision="double"), memory="256MiB")


MASK = np.hypot(*np.meshgrid(np.arange(9) - 4, np.arange(10) - 4.5)) < 4.3  # 10 x 9, round


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of 30 colour pictures of 24 x 22, and their values."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, size=(30, 24, 22, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("pictures")
    for number, picture in enumerate(values):
        Image.fromarray(picture).save(path / f"p{number}.png")  # p10 follows p9, not p1
    return path, values


@pytest.fixture(scope="module")
def preparation():
    return streampca.Preparation(crop=((2, 22), (3, 21)), grey=True, bin=2, mask=MASK)


@pytest.fixture(scope="module")
def of_folder(folder, preparation, tmp_path_factory):
    """A model of the pictures, prepared, and where it is saved."""
    fitted = streampca.fit(folder[0], streampca.PCA(5, precision="double"), preparation=preparation, memory="64MiB")
    path = tmp_path_factory.mktemp("model") / "m.zarr"
    fitted.save(path)
    return fitted, path


def by_hand(values):
    """The same preparation, written out: rows of pixels inside the mask."""
    red, green, blue = (values[:, 2:22, 3:21, channel].astype(np.float64) for channel in range(3))
    grey = 0.299 * red + 0.587 * green + 0.114 * blue
    squares = (grey[:, 0::2, 0::2] + grey[:, 1::2, 0::2] + grey[:, 0::2, 1::2] + grey[:, 1::2, 1::2]) / 4
    return squares[:, MASK]


def assert_same_model(one, other):
    for name in ("components", "mean", *PER_COMPONENT, "eigenvalues", "mask"):
        values = getattr(one, name)
        assert (values is None) == (getattr(other, name) is None), name
        if values is not None:
            assert values.dtype == getattr(other, name).dtype, name
            np.testing.assert_array_equal(values, getattr(other, name), err_msg=name)
    for name in ("total_variance", "n_samples", "sample_dims", "raw_shape", "raw_kind", "provenance"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.preparation.to_json() == other.preparation.to_json()


# -- on disk


def test_saving_keeps_every_bit(model, tmp_path):
    model.save(tmp_path / "m.zarr")
    assert_same_model(streampca.load(tmp_path / "m.zarr"), model)


def test_saving_keeps_a_preparation(folder, of_folder):
    fitted, path = of_folder
    loaded = streampca.load(path)
    assert_same_model(loaded, fitted)
    np.testing.assert_array_equal(loaded.transform(folder[1]), fitted.transform(folder[1]))
    with xarray.open_zarr(path) as data:
        assert data["components"].shape == (5, 10, 9)
        np.testing.assert_array_equal(np.isnan(data["components"].values), np.broadcast_to(~MASK, (5, 10, 9)))
        np.testing.assert_array_equal(np.isnan(data["mean"].values), ~MASK)
        np.testing.assert_array_equal(data["mask"].values, MASK)


def test_the_statistic_is_kept_where_wanted(model, tmp_path):
    for name, keep in (("default", None), ("yes", True), ("no", False)):
        model.save(tmp_path / name, keep_state=keep)
        kept = load_model(tmp_path / name, statistic=True).statistic
        assert (kept is None) == (keep is False)
        if kept is not None:
            for key, values in kept.state().items():
                np.testing.assert_array_equal(values, model.statistic.state()[key])
    model.without_statistic().save(tmp_path / "dropped")
    assert load_model(tmp_path / "dropped", statistic=True).statistic is None


def test_xarray_shows_named_dimensions(model, tmp_path):
    model.save(tmp_path / "m.zarr")
    with xarray.open_zarr(tmp_path / "m.zarr") as data:
        assert dict(data.sizes) == {"component": 10, "y": 8, "x": 8, "eigenvalue": 64}
        assert data["components"].dims == ("component", "y", "x")
        assert data["mean"].dims == ("y", "x")
        assert list(data["component"].values) == list(range(1, 11))
        for name in PER_COMPONENT:
            assert data[name].dims == ("component",)
        np.testing.assert_array_equal(data["components"].values, model.components)
        assert int(data["n_samples"]) == 1797
        assert float(data["total_variance"]) == model.total_variance
        assert data.attrs["streampca"]["format"] == 1


def test_xarray_shows_the_sources_own_names(tmp_path):
    maps = xarray.DataArray(np.random.default_rng(0).normal(size=(30, 4, 6)), dims=("time", "lat", "lon"))
    streampca.fit(maps, n_components=2, memory="64MiB", sample_axes=("lat", "lon")).save(tmp_path / "m.zarr")
    with xarray.open_zarr(tmp_path / "m.zarr") as data:
        assert data["components"].dims == ("component", "lat", "lon")


def attribute(path, **changes):
    group = zarr.open_group(path, mode="r+")
    group.attrs.put({"streampca": {**group.attrs["streampca"], **changes}})


@pytest.fixture
def saved(model, tmp_path):
    model.save(tmp_path / "m.zarr")
    return tmp_path / "m.zarr"


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "m.zarr is a model of format 2 and this version reads up to 1; upgrade"),
        ({"kind": "future"}, "m.zarr holds a 'future', not a model of kind 'pca' or "),
        ({"complete": False}, "m.zarr is not a complete model; the fit that wrote it did not finish"),
    ],
)
def test_what_cannot_be_opened_is_refused_by_name(saved, changes, message):
    attribute(saved, **changes)
    with pytest.raises(ModelError, match=message):
        streampca.load(saved)


def test_what_is_not_a_model(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "folder").mkdir()
    zarr.create_array(tmp_path / "array.zarr", shape=(3,), dtype="f4")
    zarr.create_group(tmp_path / "group.zarr")
    said = dict.fromkeys(("notes.txt", "folder", "array.zarr"), "is not a model")
    for name, words in (said | {"m.zarr": "does not exist", "group.zarr": "is a Zarr group, but not a model"}).items():
        with pytest.raises(ModelError, match=f"{name} {words}"):
            streampca.load(tmp_path / name)


def test_an_existing_model_is_kept_unless_told(model, saved):
    before = (saved / "zarr.json").read_bytes()
    with pytest.raises(OutputError, match=r"m.zarr exists already; .*with overwrite=True\.$"):
        model.save(saved)
    assert (saved / "zarr.json").read_bytes() == before
    model.save(saved, overwrite=True)
    assert_same_model(streampca.load(saved), model)


@pytest.mark.parametrize("written", [0, 1, 3])
def test_what_an_interrupted_save_left_is_replaced(model, tmp_path, monkeypatch, written):
    """Stopped after any number of arrays: nothing takes the name."""
    path = tmp_path / "m.zarr"

    def write(group, arrays, own=store.write_arrays):
        own(group, dict(islice(arrays.items(), written)))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_arrays", write)
        with pytest.raises(KeyboardInterrupt):
            model.save(path)
    with pytest.raises(ModelError, match="does not exist"):
        streampca.load(path)
    model.save(path)
    assert_same_model(streampca.load(path), model)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "zarr array", "zarr group with a mean", "empty zarr group"])
def test_what_is_not_ours_is_never_replaced(model, tmp_path, kind, overwrite):
    """Not even when told to: somebody's data."""
    path = tmp_path / "mine"
    if kind == "file":
        path.write_text("thesis")
    elif kind == "folder":
        path.mkdir()
        (path / "thesis.txt").write_text("thesis")
    elif kind == "zarr array":
        zarr.create_array(path, shape=(3,), dtype="f4")[...] = 1
    elif kind == "empty zarr group":
        zarr.create_group(path, attributes={"title": "thesis"})
    else:
        xarray.Dataset({"mean": ("t", np.ones(3))}).to_zarr(path, consolidated=False, zarr_format=3)
    before = sorted((file, file.read_bytes()) for file in [path, *path.rglob("*")] if file.is_file())
    with pytest.raises(OutputError, match="mine exists and is not a model written by streampca; choose another"):
        model.save(path, overwrite=overwrite)
    assert before == sorted((file, file.read_bytes()) for file in [path, *path.rglob("*")] if file.is_file())
    assert path.exists()


def test_an_empty_folder_is_taken(model, tmp_path):
    (tmp_path / "m.zarr").mkdir()
    model.save(tmp_path / "m.zarr")
    assert_same_model(streampca.load(tmp_path / "m.zarr"), model)


# -- applied to samples


MAPS = ("transform", "reconstruct", "residual", "reconstruction_error", "hotelling_t2", "score_samples")
FORMS = {
    "numpy": lambda x, path: x,
    "rows": lambda x, path: x.reshape(len(x), -1),
    "dask": lambda x, path: da.from_array(x, chunks=(-(-len(x) // 7), 3, 5)),
    "collection": lambda x, path: streampca.open_collection(x),
    "file": lambda x, path: path,
    "DataArray": lambda x, path: xarray.DataArray(x, dims=("time", "y", "x")),
}


@pytest.mark.parametrize("name", [*MAPS, "inverse_transform"])
def test_every_kind_of_samples_gives_the_same(model, digits, tmp_path, name):
    """At once where arrays are in memory, else lazily."""
    np.save(tmp_path / "digits.npy", digits)
    given = {form: make(digits, tmp_path / "digits.npy") for form, make in FORMS.items() if form != "DataArray"}
    given["text"] = str(given["file"])
    if name == "inverse_transform":
        given = {form: model.transform(samples) for form, samples in given.items()}
    expected = getattr(model, name)(given["numpy"])
    for form, samples in given.items():
        found = getattr(model, name)(samples)
        assert isinstance(found, np.ndarray if form in ("numpy", "rows") else da.Array)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        near = {"rtol": 0, "atol": 2e-5} if name == "transform" else {"rtol": 2e-5, "atol": 5e-5}
        np.testing.assert_allclose(np.asarray(found), expected, **near)


def test_masked_entries_are_missing(model, digits):
    samples = np.ma.masked_array(digits, np.zeros(digits.shape, bool))
    np.testing.assert_array_equal(model.transform(samples), model.transform(digits))
    samples[7, 3, 4] = np.ma.masked
    for given in (samples, da.from_array(samples, chunks=(500, 8, 8))):
        with pytest.raises(DataError, match=r"sample 7 of (numpy|dask) array holds NaN"):
            np.asarray(model.transform(given))
    with pytest.raises(ModelError, match=r"numpy array holds fractions .* was fitted on whole numbers"):
        model.transform(streampca.open_collection(samples))


def test_scores_are_those_of_float64(model, digits):
    rows = digits.reshape(1797, 64).astype(np.float64)
    expected = (rows - rows.mean(axis=0)) @ model.components.reshape(10, 64).astype(np.float64).T
    np.testing.assert_allclose(model.transform(digits), expected, atol=2e-5)
    found = model.transform(digits.astype(np.float64))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_lazy_results_compute_nothing_early(model, digits):
    """Neither when asked for nor when chained; the graph does not grow with the samples in a chunk."""
    reads = []

    class Watched:
        shape, dtype, ndim = digits.shape, digits.dtype, 3

        def __getitem__(self, key):
            reads.append(key)
            return digits[key]

    def refuse(*args, **kwargs):
        raise AssertionError("computed early")

    with dask.config.set(scheduler=refuse):
        scores = model.transform(Watched())
        images = model.inverse_transform(scores)
        model.reconstruct(Watched())
        model.reconstruction_error(da.from_array(digits, chunks=(100, 8, 8)))
        assert len(dict(scores.__dask_graph__())) < 10
    assert reads == []
    np.testing.assert_allclose(images.compute(scheduler="sync"), model.reconstruct(digits), atol=1e-4)
    assert reads


@pytest.mark.parametrize("named", [lambda x: x, lambda x: xarray.DataArray(x, dims=("n", "y", "x"), name="x")])
def test_two_arrays_of_one_shape_are_not_confused(model, digits, named):
    """dask shares work between tasks of one name. A row's last bits depend on its place in a product."""
    one, other = (model.transform(streampca.open_collection(named(x))) for x in (digits, digits[::-1].copy()))
    first, second = dask.compute(one, other, scheduler="sync")
    np.testing.assert_allclose(first, second[::-1], atol=1e-4)


def test_part_of_a_lazy_result_reads_part(model, digits, tmp_path):
    zarr.create_array(tmp_path / "d.zarr", data=digits, chunks=(100, 8, 8))
    np.testing.assert_allclose(
        model.transform(tmp_path / "d.zarr")[250:260].compute(scheduler="sync"), model.transform(digits[250:260]),
        atol=2e-5,
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["single", "double"])
def test_whitened_scores_equal_those_of_pca_and_are_0_along_null_directions(digits, precision, tmp_path):
    """Three pixels never change: of 64 components 61 have a variance."""
    streampca.fit(digits, streampca.PCA(None, precision=precision), output=tmp_path / "m.zarr")
    fitted, rows = load_model(tmp_path / "m.zarr"), digits.reshape(len(digits), -1).astype(np.float64)
    theirs = PCA(n_components=61, whiten=True, svd_solver="full").fit(rows).transform(rows)
    fitted.write_scores(digits, tmp_path / "s.npy", whiten=True)
    fitted.write_reconstruction(tmp_path / "s.npy", tmp_path / "back.npy", whiten=True)
    lazy = fitted.transform(da.from_array(digits, chunks=(600, 8, 8)), whiten=True)
    for ours in (fitted.transform(digits, whiten=True), lazy.compute(scheduler="sync"), np.load(tmp_path / "s.npy")):
        np.testing.assert_allclose(np.abs(ours[:, :61]), np.abs(theirs), atol=1e-6)
        np.testing.assert_array_equal(ours[:, 61:], 0)
        np.testing.assert_allclose(fitted.inverse_transform(ours, whiten=True), digits, atol=1e-9)
    np.testing.assert_allclose(np.load(tmp_path / "back.npy"), digits, atol=1e-9)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_variance_below_its_own_bound_is_null(precision):
    """Products of fractions round: in single precision, far above the rounding of float64."""
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(300, 6)) @ rng.normal(size=(6, 20))).astype(np.float32)
    fitted = streampca.fit(rows, streampca.PCA(None, precision=precision))
    scores = fitted.transform(rows, whiten=True)
    above = fitted.explained_variance[6] > 300 * np.finfo(np.float64).eps * fitted.explained_variance[0]
    assert above == (precision == "single")
    np.testing.assert_array_equal(scores[:, 6:], 0)
    np.testing.assert_allclose(scores[:, :6].std(axis=0, ddof=1), 1, rtol=1e-4)
    np.testing.assert_allclose(fitted.hotelling_t2(rows), np.square(scores).sum(axis=1), rtol=1e-3)


def test_going_back_is_reconstructing(model, digits):
    np.testing.assert_allclose(
        model.inverse_transform(model.transform(digits)), model.reconstruct(digits), rtol=1e-5, atol=1e-5
    )
    few = model.inverse_transform(model.transform(digits)[:, :3])
    np.testing.assert_allclose(few, model.reconstruct(digits, n_components=3), rtol=1e-5, atol=1e-5)


def test_all_components_lose_nothing(whole, digits):
    np.testing.assert_allclose(whole.reconstruct(digits), digits, atol=1e-9)
    assert np.all(whole.reconstruction_error(digits) < 1e-16 * 64 * 256**2)


@pytest.mark.parametrize("k", [1, 5, 30])
def test_mean_error_is_the_variance_left_out(whole, digits, k):
    """Averaged over the samples fitted: (n - 1) / n times the sum of the discarded variances."""
    expected = (1796 / 1797) * whole.explained_variance[k:].sum()
    assert np.mean(whole.reconstruction_error(digits, n_components=k)) == pytest.approx(expected, rel=1e-10)
    single = streampca.fit(digits, streampca.PCA(k, precision="single"), memory="64MiB")
    assert np.mean(single.reconstruction_error(digits)) == pytest.approx(expected, rel=1e-5)
    assert single.reconstruction_error(digits).dtype == np.float64


@pytest.mark.parametrize("offset", [0, 30000])
def test_float32_samples_far_from_zero_keep_their_scores(offset):
    """float32 cannot hold the mean of such data to more than 1/1000; scores are right to 1/100 of that."""
    x = (np.random.default_rng(0).normal(size=(500, 40)) * np.linspace(5, 1, 40) + offset).astype(np.float32)
    fitted = streampca.fit(x, n_components=5, memory="64MiB")
    rows = x.astype(np.float64)
    expected = (rows - rows.mean(axis=0)) @ fitted.components.astype(np.float64).T
    np.testing.assert_allclose(fitted.transform(x), expected, atol=1e-5)


def test_wrong_samples_are_refused_by_name(model, digits, tmp_path):
    with pytest.raises(ModelError, match=r"8 x 8, which is that of one sample of the model; .* samples\[None\] of one"):
        model.transform(digits[0])
    with pytest.raises(ModelError, match="samples have shape 1797 x 8 and the model was fitted on samples of 8 x 8"):
        model.transform(digits[:, 0])
    with pytest.raises(ModelError, match="samples have shape 3 x 7 x 8"):
        model.transform(da.zeros((3, 7, 8)))
    np.save(tmp_path / "small.npy", digits[:, :7])
    np.save(tmp_path / "floats.npy", digits / 16)
    with pytest.raises(
        ModelError, match=r"small.npy has samples of 7 x 8 and the model was fitted on samples of 8 x 8"
    ):
        model.transform(tmp_path / "small.npy")
    with pytest.raises(ModelError, match=r"floats.npy holds fractions \(float64\) and the model was .* whole numbers"):
        model.transform(tmp_path / "floats.npy")
    model.save(tmp_path / "m.zarr")
    with pytest.raises(ModelError, match=r"and .*m.zarr was fitted on samples of 8 x 8"):
        streampca.load(tmp_path / "m.zarr").transform(tmp_path / "small.npy")
    with pytest.raises(RequestError, match="n_components=11 is no whole number between 1 and 10"):
        model.reconstruct(digits, n_components=11)
    with pytest.raises(RequestError, match=r"scores have shape \(5, 11\); give n rows of 1 to 10 components"):
        model.inverse_transform(np.zeros((5, 11)))
    for path in ("scores.npy", tmp_path / "scores.npy"):
        with pytest.raises(
            RequestError, match=r"scores have shape \(\); .*as an array; write_reconstruction takes files"
        ):
            model.inverse_transform(path)


@pytest.mark.parametrize("count", [0, 1.5, 3.0, np.nan, "3", (3,)])
def test_what_is_no_number_of_components(model, digits, count):
    with pytest.raises(RequestError, match=r"n_components=.* is no whole number between 1 and 10, what the model has"):
        model.reconstruct(digits, count)


# -- a preparation travels with the model


def test_a_preparation_equals_the_hand_prepared_computation(folder, of_folder):
    fitted, rows = of_folder[0], by_hand(folder[1])
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2 / 29
    np.testing.assert_allclose(fitted.explained_variance, values[:5], rtol=1e-6)
    np.testing.assert_allclose(fitted.total_variance, values.sum(), rtol=1e-6)
    np.testing.assert_allclose(fitted.mean[MASK], rows.mean(axis=0), rtol=1e-6)
    assert fitted.n_features == MASK.sum()


SCRIPT = """
import sys, streampca
model = streampca.load(sys.argv[1])
model.write_scores(sys.argv[2], sys.argv[3], memory="64MiB")
model.write_reconstruction(sys.argv[2], sys.argv[4], memory="64MiB", n_components=2)
"""


@pytest.mark.slow
def test_a_preparation_is_applied_in_a_new_process(folder, of_folder, tmp_path):
    """Fitted here, applied to the raw files there: equals numpy on hand-prepared pixels."""
    fitted, path = of_folder
    done = python(SCRIPT, path, folder[0], tmp_path / "scores.npy", tmp_path / "images.npy")
    assert (done.returncode, done.stderr) == (0, "")
    rows = by_hand(folder[1])
    components = fitted.components[:, MASK].astype(np.float64)
    expected = (rows - rows.mean(axis=0)) @ components.T
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected, atol=5e-4)
    images = np.load(tmp_path / "images.npy")
    np.testing.assert_allclose(images[:, MASK], rows.mean(axis=0) + expected[:, :2] @ components[:2], atol=5e-4)
    assert np.isnan(images[:, ~MASK]).all()


# -- written block by block


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(("ending", "memory"), [("zarr", "16MiB"), ("npy", "256MiB"), ("csv", "16MiB")])
def test_written_scores_are_the_scores(model, digits, tmp_path, ending, memory):
    np.save(tmp_path / "digits.npy", digits)
    path = tmp_path / f"scores.{ending}"
    model.write_scores(tmp_path / "digits.npy", path, memory=memory)
    expected = model.transform(digits)
    if ending == "npy":
        found = np.load(path)
        assert found.dtype == np.float32
    elif ending == "csv":
        rows = rows_of(path)
        assert rows[0] == ["sample", *(f"component_{j}" for j in range(1, 11))]
        assert [row[0] for row in rows[1:]] == [str(i) for i in range(1797)]
        found = np.array([row[1:] for row in rows[1:]], dtype=np.float32)
    else:
        with xarray.open_zarr(path) as data:
            assert data["scores"].dims == ("sample", "component")
            assert list(data["component"].values) == list(range(1, 11))
            found = data["scores"].values
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-5)
    assert sorted(os.listdir(tmp_path)) == ["digits.npy", path.name]


def test_csv_keeps_every_digit(model, digits, tmp_path):
    """Read back as what it was, the numbers are the same bits."""
    for dtype in (np.uint8, np.float64):
        fitted = streampca.fit(digits.astype(dtype), n_components=4, memory="64MiB")
        fitted.write_scores(digits.astype(dtype), tmp_path / "s.csv", memory="64MiB", overwrite=True)
        fitted.write_scores(digits.astype(dtype), tmp_path / "s.npy", memory="64MiB", overwrite=True)
        written = np.load(tmp_path / "s.npy")
        text = np.loadtxt(tmp_path / "s.csv", delimiter=",", skiprows=1)[:, 1:].astype(written.dtype)
        np.testing.assert_array_equal(text, written)


def test_rows_carry_the_samples_names(folder, tmp_path):
    fitted = streampca.fit(folder[0], n_components=3, memory="64MiB")
    names = list(streampca.open_collection(folder[0]).sample_names())
    assert len(names) == 30
    assert names[10].endswith("p10.png")
    fitted.write_scores(folder[0], tmp_path / "s.csv", memory="64MiB")
    fitted.write_scores(folder[0], tmp_path / "s.zarr", memory="64MiB")
    assert [row[0] for row in rows_of(tmp_path / "s.csv")][1:] == names
    with xarray.open_zarr(tmp_path / "s.zarr") as data:
        assert list(data["sample"].values) == names
        assert data["scores"].sel(sample=names[7]).shape == (3,)


@pytest.mark.parametrize("ending", ["zarr", "npy"])
def test_written_reconstructions(model, digits, tmp_path, ending):
    """From images, and from scores stored before: the same pictures."""
    np.save(tmp_path / "digits.npy", digits)
    for scores in ("scores.npy", "scores.zarr"):
        model.write_scores(tmp_path / "digits.npy", tmp_path / scores, memory="64MiB")
    expected = model.reconstruct(digits, n_components=6)
    for source in ("digits.npy", "scores.npy", "scores.zarr"):
        path = tmp_path / f"from {source}.{ending}"
        model.write_reconstruction(tmp_path / source, path, n_components=6, memory="64MiB")
        if ending == "npy":
            found = np.load(path)
        else:
            with xarray.open_zarr(path) as data:
                assert data["images"].dims == ("sample", "y", "x")
                found = data["images"].values
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-5)


def test_outputs_are_refused_or_replaced(model, digits, tmp_path):
    for ending in ("npy", "csv", "zarr"):
        path = tmp_path / f"s.{ending}"
        model.write_scores(digits[:5], path, memory="64MiB")
        with pytest.raises(OutputError, match=rf"s.{ending} exists already; .*overwrite=True"):
            model.write_scores(digits[:7], path, memory="64MiB")
        model.write_scores(digits[:7], path, memory="64MiB", overwrite=True)
    assert np.load(tmp_path / "s.npy").shape == (7, 10)
    with pytest.raises(RequestError, match=r"ends in none of .zarr, .npy, .csv"):
        model.write_scores(digits, tmp_path / "scores.txt")
    with pytest.raises(RequestError, match=r"ends in none of .zarr, .npy, .tif, .tiff;"):
        model.write_reconstruction(digits, tmp_path / "images.csv")
    assert not (tmp_path / "images.csv").exists()
    with pytest.raises(OutputError, match="is not a folder"):
        model.write_scores(digits, tmp_path / "s.npy" / "deep" / "x.npy", memory="64MiB")


@pytest.fixture(scope="module")
def fitted():
    """50 samples with a pixel that is never there, and models of them."""
    x = np.random.default_rng(0).normal(size=(50, 6, 5))
    x[:, 0, 0] = np.nan
    steps = {"masked": {"mask": "valid"}, "normalized": {"mask": "valid", "normalize": "norm"}}
    preparations = {name: streampca.Preparation(**each) for name, each in steps.items()}
    return x, {
        name: streampca.fit(x, n_components=2, memory="64MiB", preparation=each) for name, each in preparations.items()
    }


@pytest.mark.parametrize(("name", "given"), list(zip(cycle(MAPS), FORMS, strict=False)))
def test_a_bad_sample_is_refused_by_its_number(fitted, name, given, tmp_path, monkeypatch):
    """At once where an array is in memory, else when its chunk is computed; not where the mask leaves it out."""
    monkeypatch.setattr(dask_arrays, "LAZY_BLOCK_BYTES", 8 * 240)  # chunks of 8 samples, of which 31 is in the fourth
    good, models = fitted

    def applied(kind, x):
        np.save(tmp_path / "x.npy", x)
        return np.asarray(getattr(models[kind], name)(FORMS[given](x, tmp_path / "x.npy")))

    assert np.isfinite(applied("masked", good)[..., -1]).all()
    x = good.copy()
    x[31, 2, 2] = np.inf if name == "transform" else np.nan
    with pytest.raises(DataError, match=r"^sample 31 of .* holds NaN or infinity, .*leave (the sample|it) out"):
        applied("masked", x)
    x[31] = 0  # has no direction
    with pytest.raises(DataError, match=r"^sample 31 of .* has only zeros, so its norm is 0"):
        applied("normalized", x)


@pytest.mark.parametrize("lazy", [False, True])
def test_bad_scores_are_refused_by_name(model, digits, lazy):
    scores = model.transform(digits)
    scores[700, 3] = np.nan
    with pytest.raises(DataError, match=r"^sample 700 of the scores holds NaN"):
        np.asarray(model.inverse_transform(da.from_array(scores, chunks=(300, 10)) if lazy else scores))


def test_a_bad_sample_leaves_no_output(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 6))
    fitted = streampca.fit(x, n_components=2, memory="64MiB")
    x[31, 2] = np.nan
    for ending in ("npy", "csv", "zarr"):
        with pytest.raises(
            streampca.errors.DataError, match="sample 31 of numpy array holds NaN or infinity, which has no scores"
        ):
            fitted.write_scores(x, tmp_path / f"s.{ending}", memory="64MiB")
    assert os.listdir(tmp_path) == []


def test_provenance_is_plain_data(model):
    text = json.dumps(dict(model.provenance))
    assert json.loads(text) == dict(model.provenance)
    assert model.provenance["plan"]["method"] == "covariance"
    assert model.provenance["source"] == "numpy array"
