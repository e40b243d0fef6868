"""Other inputs of `PCA` give the numbers of the same samples as an array."""

from __future__ import annotations

import pickle
import re

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given as given_
from hypothesis import settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.base import clone

import streampca
from streampca import PCA, Run
from streampca.errors import BudgetError, ChangedError, DataError, ModelError, RequestError, SourceError
from streampca.readers import open_collection

RNG = np.random.default_rng(0)
FILLED = RNG.random((300, 40)) * (RNG.random((300, 40)) < 0.15) * np.linspace(1, 3, 40)


def same(ours, theirs, rtol=0.0):
    for name in ("components_", "explained_variance_", "mean_", "noise_variance_", "n_samples_seen_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=rtol, atol=rtol, err_msg=name)


# -- sparse matrices


@pytest.mark.parametrize("method", ["covariance", "dual", "randomized"])
@pytest.mark.parametrize(("form", "kind", "dtype"), [
    ("csr", sp.coo_array, "f8"), ("csr", sp.coo_matrix, "f4"), ("csc", sp.coo_array, "i8"),
    ("lil", sp.coo_matrix, "f8"),
])  # fmt: skip
def test_sparse_samples_have_the_model_of_dense_ones(method, form, kind, dtype):
    dense = (10 * FILLED).astype(dtype)
    given = kind(dense).asformat(form)
    ours, theirs = (PCA(4, method=method, whiten=True, tol=1e-10).fit(each) for each in (given, dense))
    is_exact = method == "covariance" and dtype == "i8"  # sums of whole numbers have the same bits
    same(ours, theirs, rtol=0 if is_exact else 1e-5 if dtype == "f4" else 1e-8)
    scores, expected = ours.transform(given), theirs.transform(dense)
    assert (type(scores), scores.dtype) == (np.ndarray, expected.dtype)
    np.testing.assert_allclose(scores, expected, atol=1e-5 if dtype == "f4" else 1e-12)
    np.testing.assert_array_equal(ours.fit_transform(given), scores)


def test_sparse_batches():
    rows = sp.csr_array(FILLED)
    ours = PCA(4).partial_fit(rows[:100]).partial_fit(FILLED[100:150]).partial_fit(rows[150:].tocsc())
    same(ours, PCA(4, method="covariance").fit(FILLED), rtol=1e-10)
    weights = RNG.integers(0, 3, 300)
    weighted = PCA(4).partial_fit(rows, sample_weight=weights)
    same(weighted, PCA(4).fit(rows, sample_weight=weights), rtol=1e-10)


def test_sparse_samples_are_taken_by_everything_else():
    rows = sp.csr_array(FILLED)
    model = streampca.fit(rows, n_components=3)
    for name in ("transform", "reconstruct", "reconstruction_error", "hotelling_t2"):
        np.testing.assert_allclose(getattr(model, name)(rows), getattr(model, name)(FILLED), atol=1e-9)


def test_sparse_samples_that_are_refused():
    rows = sp.csr_array(FILLED)
    ours = PCA(3).fit(rows)
    with pytest.raises(ValueError, match="X has 30 features, but PCA is expecting 40"):
        ours.transform(rows[:, :30])
    with pytest.raises(ModelError, match="csr matrix holds whole numbers"):
        ours.transform(rows.astype(int))
    rows.data[rows.indptr[17]] = np.nan
    for call in (PCA(3).fit, ours.transform, ours.partial_fit):
        with pytest.raises(DataError, match="sample 17 of csr matrix holds NaN"):
            call(rows)


def test_a_matrix_that_changes_while_it_is_read_is_noticed():
    rows = sp.csr_array(FILLED)

    def change(event):
        rows.data[200:] += 1

    with pytest.raises(ChangedError, match=r"csr matrix \(rows \d+ to \d+\) changed while it was read"):
        streampca.fit(rows, n_components=3, listener=change)


def test_what_is_converted_is_taken_off_the_budget():
    columns = sp.csc_array((RNG.random((50000, 50)) > 0.5).astype(float))
    PCA(3, run=Run(memory="16 MiB")).fit(columns.tocsr())
    with pytest.raises(BudgetError, match=r"as asked, less 14.\d MiB for the samples as converted") as caught:
        PCA(3, run=Run(memory="16 MiB")).fit(columns)
    enough = re.search(r"Set memory to at least (\w+)\.", str(caught.value))[1]
    ours = PCA(3, run=Run(memory=enough))
    same(ours.fit(columns), PCA(3).fit(columns.tocsr()), rtol=1e-8)
    with pytest.raises(BudgetError, match="for the samples as converted"):
        PCA(3, run=Run(memory="16 MiB")).partial_fit(columns)


def test_a_sparse_collection_is_converted_once_and_pickles_without_it():
    collection = open_collection(sp.csc_array(FILLED))
    collection.read(slice(0, 2))
    assert collection.array._rows() is collection.array._rows()
    assert "_csr" not in collection.array.__getstate__()


# -- lists, batches and data frames


def batches(rows=50, upto=300):
    return (FILLED[start : start + rows] for start in range(0, upto, rows))


def test_a_list_of_images_is_an_array_of_them_once_their_shape_is_known():
    images = list(FILLED.reshape(-1, 8, 5))
    ours = PCA(3).fit(np.stack(images))
    np.testing.assert_array_equal(ours.transform(images), ours.transform(np.stack(images)))
    same(PCA(3).fit(FILLED.tolist()), PCA(3).fit(FILLED))
    same(PCA(3).fit(list(FILLED)), PCA(3).fit(FILLED))
    assert PCA(3).partial_fit(np.stack(images[:9])).partial_fit(images[9:]).model_.sample_shape == (8, 5)
    pictures = [Image.fromarray(image.astype(np.uint8)) for image in images]
    same(PCA(3).fit(pictures), PCA(3).fit(np.stack(images).astype(np.uint8)))
    masked = np.ma.masked_less(images[0], 0.1)
    with pytest.raises(DataError, match="NaN"):
        ours.transform([images[1], masked])


def test_a_generator_of_batches():
    ours = PCA(4).fit(batches())
    same(ours, PCA(4, method="covariance").fit(FILLED), rtol=1e-10)
    assert len(pickle.dumps(ours)) < 8 * 40 * 40
    same(ours.partial_fit(FILLED[:9]), given(PCA(4), FILLED, FILLED[:9]), rtol=1e-10)
    same(ours.fit(batches()), PCA(4).fit(FILLED), rtol=1e-8)  # begins anew
    assert PCA(None).fit(batches(upto=20, rows=7)).n_components_ == 21


class Bare:
    """An object that is an array to numpy alone."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


class Tensor(Bare):
    """An array of which numpy does not know the dtype, as those of torch."""

    dtype = "torch.float64"
    shape = property(lambda tensor: tensor.values.shape)
    ndim = property(lambda tensor: tensor.values.ndim)

    def __getitem__(self, item):
        return Tensor(self.values[item])


class OnDevice(Tensor):
    """A tensor in the memory of another device."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert cuda:0 device type tensor to numpy.\nUse Tensor.cpu().")


ARRAYS = {
    "array": np.asarray, "bare": Bare, "tensor": Tensor, "dask": lambda x: da.from_array(x, chunks=-1),
    "masked": np.ma.masked_array,
}  # fmt: skip
TABLES = {
    "sparse": sp.csr_array,
    "pandas": lambda x: pytest.importorskip("pandas").DataFrame(x).add_prefix("c"),
    "polars": lambda x: pytest.importorskip("polars").DataFrame(x, schema=[f"c{at}" for at in range(x.shape[1])]),
}
YIELDED = {
    "itself": lambda batch: batch, "list": lambda batch: [batch], "tuple": lambda batch: (batch,),
}  # fmt: skip
REFUSED = {
    "pair": lambda batch: (batch, batch),
    "with a target": lambda batch: [batch, np.arange(3)],
    "mapping": lambda batch: {"label": 3, "image": batch},
    "mapping of one": lambda batch: {"image": batch},
}


def remedy(error, **names):
    """What the remedies of a refusal give, `names` being what they speak of."""
    found = re.findall(
        r"\(b\[.+?\] for b in loader\)|np\.\w+\(arrays\)|np\.ma\.\w+\(arrays\)|X\['\w+'\]", str(error.value)
    )
    return [eval(text, {"np": np, **names}) for text in found]  # noqa: S307 - our own messages


@st.composite
def cut_samples(draw):
    """Samples, rows or images, whole numbers or not, and the same in batches, of one length as a rule."""
    shape = draw(st.sampled_from([(6,), (2, 3), (3, 2, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.integers(0, 200, (draw(st.integers(12, 60)), *shape)).astype(
        draw(st.sampled_from(["u1", "i4", "f4", "f8"]))
    )
    rows = draw(st.integers(1, len(x)))
    return x, [x[start : start + rows] for start in range(0, len(x), rows)]


@pytest.mark.parametrize("examples", [20, pytest.param(500, marks=pytest.mark.campaign)])
def test_batches_are_what_numpy_concatenates(examples):
    """Law: whatever a loader yields, the samples are those of `np.concatenate`, or they are refused with a remedy."""

    @settings(max_examples=examples)
    @given_(cut_samples(), st.sampled_from([*ARRAYS, *TABLES]), st.sampled_from([*YIELDED, *REFUSED]))
    def law(cut, kind, how):
        x, parts = cut
        if kind in TABLES:
            parts = [part.reshape(len(part), -1) for part in parts]
        whole = np.concatenate(parts)
        made = [(ARRAYS | TABLES)[kind](part) for part in parts]
        expected = PCA(2, method="covariance").fit(whole)
        if how in YIELDED:
            ours = PCA(2).fit(map(YIELDED[how], made))
        else:
            loader = list(map(REFUSED[how], made))
            with pytest.raises(RequestError, match="of which one is the samples; give") as error:
                PCA(2).fit(iter(loader))
            assert "\n" not in str(error.value)
            ours = PCA(2).fit(remedy(error, loader=loader)[0])
        same(ours, expected, rtol=1e-4 if x.dtype == "f4" else 1e-8)
        np.testing.assert_allclose(ours.mean_, whole.reshape(len(x), -1).mean(axis=0), rtol=1e-5)
        assert ours.n_features_in_ == whole[0].size
        assert ours.model_.sample_shape == whole.shape[1:]

    law()


@pytest.mark.parametrize("examples", [20, pytest.param(500, marks=pytest.mark.campaign)])
def test_lists_of_batches_are_concatenated_tables_or_refused(examples):
    """Law: a list of tables is `np.concatenate` of them; one of arrays is refused, and its remedies are numpy's."""

    @settings(max_examples=examples)
    @given_(cut_samples(), st.sampled_from([*ARRAYS, *TABLES]), st.booleans())
    def law(cut, kind, at_once):
        _, parts = cut
        learn = (lambda X: PCA(2).fit(X)) if at_once else lambda X: PCA(2).partial_fit(X)
        if kind in TABLES:
            whole = np.concatenate([part.reshape(len(part), -1) for part in parts])
            ours = learn([TABLES[kind](part.reshape(len(part), -1)) for part in parts])
            same(ours, PCA(2, method="covariance").fit(whole), rtol=1e-4)
            return
        arrays = [ARRAYS[kind](part) for part in parts]
        for call in (learn, streampca.open_collection):
            with pytest.raises(SourceError, match=r"a list of .* was given") as error:
                call(arrays)
        assert "\n" not in str(error.value)
        found = remedy(error, arrays=arrays)
        whole = np.concatenate(parts)
        assert found[-1].shape == whole.shape
        same(learn(np.asarray(found[-1])), PCA(2, method="covariance").fit(whole), rtol=1e-4)
        if len({len(part) for part in parts}) == 1:
            assert found[0].shape == np.stack(parts).shape
        else:
            assert len(found) == 1

    law()


def every_estimator():
    """An estimator of each kind, with a target."""
    y = np.arange(60) % 3
    options = {streampca.FisherDiscriminant: {"shrinkage": 0.1}, streampca.SpectralClustering: {"n_clusters": 2}}
    kinds = (
        PCA, streampca.KernelPCA, streampca.ClassicalMDS, streampca.SupervisedPCA,
        streampca.SupervisedPrincipalComponents, streampca.FisherDiscriminant, streampca.SlicedInverseRegression,
        streampca.Isomap, streampca.LocallyLinearEmbedding, streampca.SpectralEmbedding, streampca.SpectralClustering,
    )  # fmt: skip
    return [pytest.param(kind(**options.get(kind, {})), y, id=kind.__name__) for kind in kinds]


@pytest.mark.parametrize(("estimator", "y"), every_estimator())
def test_every_door_of_every_estimator_tells_batches_from_samples(estimator, y):
    pandas = pytest.importorskip("pandas")
    x = np.random.default_rng(3).normal(size=(60, 6))
    batches, fitted = [x[:20], x[20:40], x[40:]], clone(estimator).fit(x, y)
    doors = [estimator.fit, *(getattr(fitted, name) for name in ("transform", "predict", "score_samples")
                              if hasattr(fitted, name))]  # fmt: skip
    for door in doors:
        more = (y,) if door == estimator.fit else ()
        with pytest.raises(SourceError, match=r"a list of 3 arrays was given, the first of 20 x 6.*np.concatenate"):
            door(batches, *more)
        with pytest.raises(RequestError, match=r"a dict of 1 array, of which one is the samples; give X\['image'\]"):
            door({"image": x}, *more)
        if not (estimator.__class__ is PCA and more):
            with pytest.raises(RequestError, match="can only be iterated over"):
                door(iter(batches), *more)
    frames = [pandas.DataFrame(part).add_prefix("c") for part in batches]
    joined, expected = clone(estimator).fit(frames, y), clone(estimator).fit(pandas.concat(frames), y)
    np.testing.assert_array_equal(joined.transform(frames), expected.transform(pandas.concat(frames)))
    np.testing.assert_array_equal(np.asarray(fitted.transform(Tensor(x))), fitted.transform(x))


def test_lists_that_are_no_one_table_are_refused_in_a_line():
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    one, two = pandas.DataFrame(FILLED[:9]).add_prefix("c"), pandas.DataFrame(FILLED[:9]).add_prefix("d")
    pca = PCA(2)
    for given, message in {
        "columns": ([one, two], "data frame 1 of a list has columns"),
        "shapes": ([FILLED[:9], FILLED[:9, :5]], "not all of one shape; give one of them"),
        "table and row": ([FILLED[:9], FILLED[0]], "not all of one shape; give one of them"),
        "collections": ([open_collection(FILLED)], r"give np.stack\(arrays\) if"),
        "nested": ([[FILLED[:9]]], r"the first of 1 x 9 x 40"),
        "device": (OnDevice(FILLED), r"made an array of numpy \(can't convert cuda:0 device type tensor to numpy\)"),
        "loader": ({1, 2}, r"PCA.fit takes batches as iter\(X\)"),
    }.values():
        with pytest.raises(ValueError, match=message) as error:
            pca.fit(given)
        assert "\n" not in str(error.value)
    for item in ([FILLED.tolist()], [[FILLED]]):
        with pytest.raises(RequestError, match=r"a list of 1 array, of which one is the samples"):
            pca.fit(iter([item]))
    lazy = [frames.from_pandas(one, npartitions=2), frames.from_pandas(one, npartitions=1)]
    same(pca.fit(lazy), PCA(2).fit(np.concatenate([FILLED[:9]] * 2)), rtol=1e-8)
    same(pca.fit(iter([list(FILLED[:9]), FILLED[9:].tolist()])), PCA(2).fit(FILLED), rtol=1e-8)


def given(estimator, *parts):
    for part in parts:
        estimator.partial_fit(part)
    return estimator


@pytest.mark.parametrize(("options", "more", "message"), [
    ({}, {"sample_weight": np.ones(300)}, "give each batch with its weights to partial_fit"),
    ({"run": Run(checkpoint="saved")}, {}, "pickle the estimator between batches"),
    ({"method": "dual"}, {}, "fit batches by 'auto' or 'covariance'"),
    ({"n_components": 31}, {"X": batches(upto=30, rows=30)}, "needs at least 31 samples and has seen 30; give more"),
    ({}, {"X": iter([])}, "give at least one"),
    ({}, {"X": iter([FILLED, FILLED[:, :9]])}, "X has 9 features, but PCA is expecting 40"),
])  # fmt: skip
def test_batches_that_are_refused_leave_the_estimator_as_it_was(options, more, message):
    ours = PCA(2).fit(FILLED[:, :20])
    before = ours.components_
    with pytest.raises(ValueError, match=message):
        ours.set_params(**options).fit(**{"X": batches(), **more})
    np.testing.assert_array_equal(ours.set_params(n_components=2).components_, before)
    assert ours.n_features_in_ == 20


def frames():
    """A module each that makes data frames, and how: some may not be installed."""
    return {
        "pandas": lambda module, x, names: module.DataFrame(x, columns=names),
        "polars": lambda module, x, names: module.DataFrame(x, schema=names),
        "dask.dataframe": lambda module, x, names: module.from_pandas(
            pytest.importorskip("pandas").DataFrame(x, columns=names), npartitions=7
        ),
    }


@pytest.mark.parametrize("library", frames())
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_data_frames_of_every_library(library, dtype):
    module = pytest.importorskip(library)
    names, x = [f"pixel {number}" for number in range(40)], FILLED.astype(dtype)
    frame = frames()[library](module, x, names)
    ours, theirs = PCA(4).fit(frame), PCA(4).fit(x)
    same(ours, theirs, rtol=1e-6 if dtype == "f4" else 1e-10)
    assert list(ours.feature_names_in_) == names
    scores = ours.transform(frame)
    assert (ours.components_.dtype, scores.dtype) == (dtype, dtype)
    np.testing.assert_allclose(np.asarray(scores), theirs.transform(x), atol=1e-5)
    batches = given(PCA(4), frame, frame)
    assert batches.n_samples_seen_ == 600
    for call in (ours.transform, batches.partial_fit):
        with pytest.raises(ValueError, match="feature names should match"):
            call(frame[names[::-1]])


def test_a_lazy_frame_is_read_partition_by_partition():
    frames, pandas = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    made, lengths = [], [100, 0, 150, 50]

    def part(number):
        made.append(number)
        start = sum(lengths[:number])
        rows = pandas.DataFrame(FILLED[start : start + lengths[number]]).add_prefix("c")
        return rows.astype({"c0": "f4"})

    frame = frames.from_map(part, range(4), meta=part(1))
    collection = open_collection(frame)
    assert (collection.shape, collection.chunks, collection.dtype) == ((300, 40), (150, 40), np.float64)
    expected = FILLED.copy()
    expected[:, 0] = expected[:, 0].astype("f4")
    made.clear()
    for rows in (slice(0, 60), slice(60, 120), slice(120, 290), slice(290, 300)):
        np.testing.assert_array_equal(collection.read(rows), expected[rows])
    assert made == [0, 2, 3], "each is computed once"
    np.testing.assert_array_equal(collection.read(slice(90, 260), slice(3, 5)), expected[90:260, 3:5])
    again = pickle.loads(pickle.dumps(open_collection(frames.from_pandas(part(2), npartitions=2))))  # noqa: S301
    np.testing.assert_array_equal(again.read(slice(40, 90)), expected[140:190])
    lengths[3] = 49
    with pytest.raises(ChangedError, match="partition 3 of dask DataFrame has 49 rows, and had 50"):
        collection.read(slice(0, 300))
    texts = frames.from_pandas(pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}), npartitions=1)
    with pytest.raises(SourceError, match=r"column 'b' of dask DataFrame has dtype .*: frame.astype"):
        streampca.fit(texts)
