"""Anomalies, trends and standard deviations are those of xarray and scikit-learn, and live in the model."""

from __future__ import annotations

import json
from dataclasses import replace

import by_options
import numpy as np
import pytest
import xarray as xr
import zarr
from PIL import Image
from shell import succeeded
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import streampca
from streampca import Preparation
from streampca.cli.run_arguments import preparation_of
from streampca.cli.run_file import make_run
from streampca.errors import BudgetError, DataError, ModelError, OutputError, RequestError
from streampca.events import BlockDone, Resumed, Warned
from streampca.execution.checkpoint import Checkpointing
from streampca.fitting import fit, open_fit
from streampca.fitting.learning import learned_for
from streampca.fitting.open_fit import Opened, plan_collection, prepare
from streampca.models.transform import write
from streampca.models.transform.resume import digest_of
from streampca.planning.incremental import batch_plan, scatter_candidates, sketch_candidates
from streampca.plot.report.survey import survey
from streampca.preprocessing.copy import copy_collection
from streampca.readers import open_collection
from streampca.storage import integrity
from streampca.units import MIB, parse_bytes

LAT, LON = np.arange(-75.0, 76, 10), np.arange(0.0, 360, 15)
LAND = (abs(LAT)[:, None] < 30) & (abs(LON - 60) < 40)
HEIGHT = np.sqrt(np.cos(np.radians(LAT)))[:, None]
PATTERNS = np.stack(
    [
        np.cos(np.radians(LAT))[:, None] * np.cos(np.radians(2 * LON)),
        np.sin(np.radians(2 * LAT))[:, None] * np.sin(np.radians(LON)),
    ]
)
ALL = {"mask": "valid", "anomaly": "month", "detrend": True, "standardize": True, "scale": "area"}


def field(months=372, dtype="f8"):
    """Months of a field of which the seasons are nearly all, with two patterns beneath, a trend, and land missing."""
    rng = np.random.default_rng(0)
    time = np.datetime64("1990-01", "M") + np.arange(months)
    season = np.cos(2 * np.pi * np.arange(months) / 12)[:, None, None] * np.cos(np.radians(LAT))[:, None]
    x = 290 + 8 * season + 2 * np.cos(4 * np.pi * np.arange(months) / 12)[:, None, None]
    x = x + np.tensordot(rng.normal(size=(months, 2)) * [1, 0.7], PATTERNS, 1)
    x += 1e-3 * np.arange(months)[:, None, None] + rng.normal(0, 0.05, (months, len(LAT), len(LON)))
    along = {"time": time.astype("datetime64[ns]"), "lat": LAT, "lon": LON}
    return xr.DataArray(np.where(LAND, np.nan, x).astype(dtype), along, ("time", "lat", "lon"), name="sst")


def sea(images):
    """The pixels of the sea, as rows."""
    return np.asarray(images)[..., ~LAND].reshape(-1, int((~LAND).sum()))


def by_hand(x, group="time.month", *, detrend=False, standardize=False, like=None):
    """What xarray makes of a field, weighed by area; with the means of another."""
    like = x if like is None else like
    anomaly = x.groupby(group) - like.groupby(group).mean()
    known = like.groupby(group) - like.groupby(group).mean()
    if detrend:
        line = known.polyfit("time", 1).polyfit_coefficients
        anomaly, known = anomaly - xr.polyval(anomaly.time, line), known - xr.polyval(known.time, line)
    if standardize:
        anomaly = anomaly / known.std("time")
    return (anomaly * xr.DataArray(HEIGHT[:, 0], {"lat": LAT}, "lat")).transpose("time", "lat", "lon")


def assert_pca_of(model, rows, atol=1e-8):
    """The model is that of these rows: variances, and scores but for their signs."""
    u, s, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    k = model.n_components
    np.testing.assert_allclose(model.explained_variance, s[:k] ** 2 / (len(rows) - 1), rtol=0, atol=atol)
    return np.abs(u[:, :k] * s[:k])


@pytest.fixture(scope="module")
def sst(tmp_path_factory):
    """A folder with a field but for its last year, and with that."""
    folder = tmp_path_factory.mktemp("sst")
    whole = field()
    whole[:-12].to_netcdf(folder / "sst.nc")
    whole[-12:].to_netcdf(folder / "next.nc")
    return folder


def test_patterns_beneath_the_seasons_are_found_by_one_command(sst, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, later = field()[:-12], field()[-12:]
    means = x.groupby("time.month").mean()
    assert 0.975 < float(means.var("month").sum() / x.var("time").sum()) < 0.985
    asked = ["--anomaly", "month", "--scale", "area", "--mask", "valid", "-k", 2]
    succeeded("fit", sst / "sst.nc", *asked, "-o", "m.zarr", "-q")
    model = streampca.load("m.zarr")
    found = sea(model.components)
    true = sea(PATTERNS * HEIGHT)
    assert np.abs(np.corrcoef(found, true)[:2, 2:].diagonal()).min() > 0.99
    scores = assert_pca_of(model, sea(by_hand(x)))
    np.testing.assert_allclose(np.abs(model.transform(x)), scores, atol=1e-8)
    # Of the next year, the months' means are those of the years before.
    rows = sea(by_hand(later, like=x))
    expected = (rows - sea(by_hand(x)).mean(axis=0)) @ found.T
    succeeded("transform", "m.zarr", sst / "next.nc", "-o", "next.zarr", "-q")
    np.testing.assert_allclose(zarr.open_group("next.zarr")["scores"][:], expected, atol=1e-8)
    np.testing.assert_allclose(model.transform(later), expected, atol=1e-8)
    np.testing.assert_allclose(model.transform(sst / "next.nc").compute(), expected, atol=1e-8)
    # And they come back: from samples, and from their scores, which keep the dates.
    back = means.sel(month=later.time.dt.month).values + (expected @ found).reshape(12, -1)[:, :0].sum()
    back = sea(back) + expected @ found / sea(np.broadcast_to(HEIGHT, LAND.shape))
    for source, output in ((sst / "next.nc", "of_samples.zarr"), ("next.zarr", "of_scores.zarr")):
        succeeded("reconstruct", "m.zarr", source, "-o", output, "-q")
        np.testing.assert_allclose(sea(zarr.open_group(output)["images"][:]), back, atol=1e-8)
    np.testing.assert_allclose(sea(model.reconstruct(later)), back, atol=1e-8)
    anomalies = sea(model.inverse_transform(model.transform(later)))
    np.testing.assert_allclose(anomalies, back - sea(means.sel(month=later.time.dt.month)), atol=1e-8)


@pytest.mark.parametrize("group", ["month", "dayofyear"])
@pytest.mark.parametrize("steps", [{}, {"detrend": True}, {"detrend": True, "standardize": True}])
def test_steps_are_xarrays_by_hand(group, steps):
    days = np.datetime64("1999-01-01") + np.sort(np.random.default_rng(1).choice(1500, 300, replace=False))
    x = field(300).assign_coords(time=days.astype("datetime64[ns]"))
    if group == "dayofyear":
        x = x[np.isin(x.time.dt.dayofyear, np.arange(1, 60))]
    preparation = Preparation(mask="valid", anomaly=group, scale="area", **steps)
    model = streampca.fit(x, n_components=3, preparation=preparation)
    scores = assert_pca_of(model, sea(by_hand(x, f"time.{group}", **steps)))
    np.testing.assert_allclose(np.abs(model.transform(x)), scores, atol=1e-8)
    if steps:  # beyond the dates that were fitted the line goes on
        later = x.assign_coords(time=x.time + np.timedelta64(8 * 1461, "D"))
        rows = sea(by_hand(later, f"time.{group}", **steps, like=x)) - sea(by_hand(x, f"time.{group}", **steps)).mean(0)
        np.testing.assert_allclose(model.transform(later), rows @ sea(model.components).T, atol=1e-8)


def test_a_trend_alone_is_numpys():
    x = field(60)
    model = streampca.fit(x, n_components=2, preparation=Preparation(mask="valid", detrend=True))
    line = x.polyfit("time", 1).polyfit_coefficients
    left = sea((x - xr.polyval(x.time, line)).transpose("time", "lat", "lon"))
    scores = assert_pca_of(model, left)
    np.testing.assert_allclose(np.abs(model.transform(x)), scores, atol=1e-8)
    np.testing.assert_allclose(sea(model.reconstruct(x) + model.residual(x)), sea(x), atol=1e-9)


# -- correlations


def uneven(n=200, dtype="f8"):
    """Rows of features of very different spread, far from 0, of which two are constant."""
    x = np.random.default_rng(3).normal(size=(n, 30)) * np.geomspace(0.1, 100, 30) + 1000
    x[:, 1] += x[:, 0]
    x[:, [7, 21]] = 7, 0.1
    return x.astype(dtype)


def test_correlation_pca_is_scikit_learns(tmp_path):
    x, told = uneven(), []
    model = streampca.fit(
        x.reshape(-1, 5, 6), n_components=28, preparation=Preparation(standardize=True), listener=told.append
    )
    scaled = StandardScaler().fit_transform(x)
    pca = PCA(28, svd_solver="full").fit(scaled)
    np.testing.assert_allclose(model.explained_variance, pca.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(model.explained_variance_ratio, pca.explained_variance_ratio_, rtol=1e-8)
    cosines = np.abs(np.sum(model.components.reshape(28, -1) * pca.components_, axis=1))
    np.testing.assert_allclose(cosines, 1, atol=1e-8)
    np.testing.assert_allclose(np.abs(model.transform(x)), np.abs(pca.transform(scaled)), atol=1e-8)
    # Constant features are listed, and come back as they were.
    assert model.constant_features.tolist() == [[1, 1], [3, 3]]
    assert model.summary()["constant_features"] == [[1, 1], [3, 3]]
    [warned] = [event.message for event in told if isinstance(event, Warned)]
    assert warned.startswith("2 of 30 features are constant")
    assert "(1, 1), (3, 3)" in warned
    model.save(tmp_path / "m.zarr")
    assert "constant features, which standardize does not divide: (1, 1), (3, 3)" in succeeded(
        "inspect", tmp_path / "m.zarr"
    )
    for made in (model.reconstruct(x), model.inverse_transform(model.transform(x))):
        np.testing.assert_allclose(made.reshape(-1, 30), x, rtol=1e-10)
        np.testing.assert_allclose(made.reshape(-1, 30)[:, [7, 21]], np.tile([7, 0.1], (200, 1)), rtol=1e-12)


@pytest.mark.parametrize("method", ["covariance", "dual", "randomized"])
def test_estimators_standardize(method):
    x = uneven(90)
    scaled = StandardScaler().fit_transform(x)
    pca = PCA(5, svd_solver="full").fit(scaled)
    own = streampca.PCA(5, method=method, tol=1e-9, preparation=Preparation(standardize=True)).fit(x)
    np.testing.assert_allclose(own.explained_variance_, pca.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(np.abs(own.transform(x)), np.abs(pca.transform(scaled)), atol=1e-6)
    if method == "covariance":  # what comes later is divided by the same deviations
        own.partial_fit(2 * x)
        both = np.concatenate([scaled, StandardScaler().fit(x).transform(2 * x)])
        np.testing.assert_allclose(own.explained_variance_, PCA(5).fit(both).explained_variance_, rtol=1e-8)


def test_small_deviations_far_from_nought_are_kept_in_float32():
    """The mean is taken off before values are divided, and both in float64."""
    x = (1e4 + np.round(np.random.default_rng(0).normal(size=(500, 20)), 2)).astype(np.float32)
    model = streampca.fit(x, n_components=3, preparation=Preparation(standardize=True))
    scaled = StandardScaler().fit_transform(x.astype(np.float64))
    expected = PCA(3, svd_solver="full").fit(scaled).explained_variance_
    np.testing.assert_allclose(model.explained_variance, expected, rtol=1e-7)
    assert model.transform(x).dtype == np.float32


@pytest.mark.parametrize("n_components", [3, "elbow", "mp", "mle"])
def test_a_weight_is_so_many_copies(n_components):
    x = field(120)
    counts = np.random.default_rng(5).integers(0, 4, 120)
    kept = np.flatnonzero(counts)
    few = {"crop": ((2, 6), (10, 15)), **ALL, "mask": None}  # mle wants more samples than features
    weighted = streampca.fit(x, n_components=n_components, preparation=Preparation(**few), sample_weight=counts)
    copies = x.isel(time=np.repeat(np.arange(120), counts))
    copied = streampca.fit(copies, n_components=n_components, preparation=Preparation(**few))
    assert weighted.n_components == copied.n_components
    np.testing.assert_allclose(weighted.explained_variance, copied.explained_variance, rtol=1e-9)
    one, other = weighted.preparation.learned, copied.preparation.learned
    for name in ("means", "weights", "trend", "deviation"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(weighted.transform(x[kept]), copied.transform(x[kept]), atol=1e-7)


# -- any samples, however they are read


def test_labels_are_groups(tmp_path, monkeypatch):
    """Labels are text or numbers, image files have several sizes, and the model is stored and loaded."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "scans").mkdir()
    for number in range(12):
        image = rng.integers(0, 100, (10 + number % 2, 9)) + 60 * (number % 3)
        Image.fromarray(image.astype("u1")).save(tmp_path / "scans" / f"{number:02}.png")
    text = np.array(["left", "middle", "right"])[np.arange(12) % 3]
    resized = Preparation(resize=(6, 5))
    rows = prepare(open_collection("scans"), resized).read(slice(0, 12)).astype("f8")
    for labels in (text, np.arange(12) % 3 * 10):
        source = open_collection("scans", labels=labels)
        model = streampca.fit(source, n_components=2, preparation=Preparation(resize=(6, 5), anomaly="label"))
        means = np.stack([rows[np.arange(12) % 3 == group].mean(axis=0) for group in range(3)])
        assert_pca_of(model, rows - means[np.arange(12) % 3], atol=1e-3)
        model.save("m.zarr", overwrite=True)
        again = streampca.load("m.zarr")
        np.testing.assert_array_equal(again.preparation.learned.groups, np.unique(labels))
        np.testing.assert_array_equal(again.transform(source).compute(), model.transform(source).compute())
        back = np.asarray(again.reconstruct(source) + again.residual(source))
        np.testing.assert_allclose(back.reshape(12, -1), rows, atol=1e-3)
        other = open_collection("scans", labels=["other" if labels is text else 5] * 12)
        with pytest.raises(ModelError, match=r"00\.png.* is of label (other|5), of which .* where="):
            again.transform(other)
    with pytest.raises(ModelError, match=r"labels such as 'left'.* of the same kind"):
        again.transform(open_collection("scans", labels=text))


def test_labels_that_are_dates_are_dates():
    x = field(48)
    values, days = x.values, x.time.values.astype("datetime64[D]").astype(str)
    steps = Preparation(mask="valid", anomaly="month", detrend=True)
    one = streampca.fit(x, n_components=2, preparation=steps)
    other = streampca.fit(open_collection(values, labels=days), n_components=2, preparation=steps)
    np.testing.assert_allclose(other.explained_variance, one.explained_variance, rtol=1e-12)


def test_however_samples_are_cut_they_are_the_same(sst):
    """Lazy arrays of any chunks, axes in any order, further axes of samples, and some of the samples."""
    x = field()[:-12]
    model = streampca.fit(x, n_components=3, preparation=Preparation(**ALL))
    expected = model.transform(x).values
    lazy = model.transform(x.chunk(time=7))
    assert lazy.chunks is not None
    np.testing.assert_allclose(lazy, expected, atol=1e-9)
    np.testing.assert_allclose(model.reconstruct(x.chunk(time=7)), model.reconstruct(x), atol=1e-9)
    np.testing.assert_allclose(model.transform(x.transpose("lon", "time", "lat")), expected, atol=1e-9)
    members = xr.concat([x, x + 1], "member").transpose("time", "member", "lat", "lon")
    np.testing.assert_allclose(model.transform(members).isel(member=0), expected, atol=1e-9)
    some = open_collection(sst / "sst.nc", samples=slice(5, 300, 7))
    np.testing.assert_allclose(model.transform(some).compute(), expected[5:300:7], atol=1e-9)
    assert model.reconstruction_error(x).dims == ("time",)
    left = model.total_variance - model.explained_variance.sum()
    np.testing.assert_allclose(float(model.reconstruction_error(x).mean()), left * (len(x) - 1) / len(x), rtol=1e-9)


def test_images_are_made_range_by_range_of_features(tmp_path, monkeypatch):
    """Of components that do not fit, to what is made with all of them in memory."""
    model = streampca.fit(field()[:-12], n_components=60, preparation=Preparation(**ALL))
    model.save(tmp_path / "m.zarr")
    field()[-12:].to_netcdf(tmp_path / "next.nc")
    stored = streampca.load(tmp_path / "m.zarr", memory=f"{4 * model.components.nbytes - 1}B")
    budget = "64MiB"
    assert not isinstance(stored.components, np.ndarray)

    def too_small(*_, **__):
        raise BudgetError("too small")

    monkeypatch.setattr(write, "_plan_blocks", too_small)
    for number, residual in enumerate((False, True)):
        stored.write_reconstruction(tmp_path / "next.nc", tmp_path / f"{number}.npy", residual=residual, memory=budget)
        expected = (model.residual if residual else model.reconstruct)(field()[-12:])
        np.testing.assert_allclose(sea(np.load(tmp_path / f"{number}.npy")), sea(expected), atol=1e-6)


def test_parts_make_the_whole(sst, tmp_path):
    how = {"n_components": 3, "method": "covariance", "preparation": Preparation(**ALL)}
    parts = [by_options.fit(sst / "sst.nc", part=(number, 2), **how) for number in (1, 2)]
    whole = by_options.fit(sst / "sst.nc", **how)
    np.testing.assert_allclose(streampca.merge(parts).explained_variance, whole.explained_variance, rtol=1e-12)
    other = by_options.fit(sst / "next.nc", **how | {"preparation": Preparation(mask=~LAND, standardize=True)})
    another = by_options.fit(sst / "sst.nc", **how | {"preparation": Preparation(mask=~LAND, standardize=True)})
    with pytest.raises(ModelError, match="means"):
        streampca.merge([other, another])


class Died(BaseException):
    """Exception that nothing catches, as good as a kill."""


def test_a_fit_is_resumed_to_the_same_bits(sst, tmp_path):
    def run(folder, listener=lambda event: None, **changed):
        preparation = Preparation(**ALL | changed)
        collection = prepare(open_collection(sst / "sst.nc"), preparation, listener=listener)
        request = by_options.request(n_components=3, method="covariance", memory=64 * MIB)
        plan = replace(plan_collection(collection, request), block_rows=50)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(open_fit, "plan_collection", lambda *_, **__: plan)
            checkpoint = Checkpointing(str(tmp_path / folder), 0)
            return fit.fit_collection(Opened(collection, request), checkpoint=checkpoint, listener=listener)

    blocks = []

    def die(event):
        blocks.append(event) if isinstance(event, BlockDone) else None
        if len(blocks) == 5:  # those of the valid pixels and of the means, and three of the fit
            raise Died

    whole = run("whole")
    with pytest.raises(Died):
        run("c", die)
    with pytest.raises(OutputError, match=r"unfinished run with anomaly 'month'|anomaly"):
        run("c", anomaly="dayofyear")
    told = []
    again = run("c", told.append)
    assert any(isinstance(event, Resumed) for event in told)
    assert again.components.tobytes() == whole.components.tobytes()


# -- the model on disk


def test_what_was_learned_is_stored_with_names(tmp_path):
    x = field(60)
    model = streampca.fit(x, n_components=2, preparation=Preparation(**ALL))
    model.save(tmp_path / "m.zarr")
    opened = xr.open_zarr(tmp_path / "m.zarr")
    xr.testing.assert_equal(opened.load(), model.to_xarray())
    means = opened["group_mean"]
    assert means.dims == ("group", "lat", "lon")
    np.testing.assert_allclose(means.sel(group=3), x.groupby("time.month").mean().sel(month=3), rtol=1e-13)
    assert np.isnan(opened["deviation"].values[LAND]).all()
    assert opened["group_weight"].sum() == 60
    again = streampca.load(tmp_path / "m.zarr")
    assert again.preparation.learned.digest == model.preparation.learned.digest
    np.testing.assert_array_equal(again.transform(x), model.transform(x))


@pytest.mark.parametrize("name", ["group_mean", "group_weight", "group", "trend", "deviation"])
def test_a_model_without_what_it_learned_is_damaged(tmp_path, name):
    path = tmp_path / "m.zarr"
    streampca.fit(field(24), n_components=2, preparation=Preparation(**ALL)).save(path)
    document = json.loads((path / "zarr.json").read_text())
    del document["consolidated_metadata"]["metadata"][name]
    (path / "zarr.json").write_text(json.dumps(document))
    integrity.seal(str(path))  # or the root would be said to differ from its checksum
    with pytest.raises(ModelError, match="damaged"):
        streampca.load(path)


# -- refusals


def test_samples_without_dates_are_refused_and_remedies_work(tmp_path):
    x = field(36)
    model = streampca.fit(x, n_components=2, preparation=Preparation(mask="valid", anomaly="month"))
    for samples in (x.values, x.chunk(time=5).data, x.drop_vars("time")):
        with pytest.raises(ModelError, match=r"has no dates.*takes the mean of their month off.*\(labels=\)"):
            model.transform(samples)
    np.save(tmp_path / "x.npy", x.values)
    with pytest.raises(ModelError, match=r"x\.npy has no dates"):
        model.transform(tmp_path / "x.npy")
    labels = x.time.values.astype("datetime64[D]").astype(str)
    dated = open_collection(tmp_path / "x.npy", labels=labels)
    np.testing.assert_allclose(model.transform(dated).compute(), model.transform(x), atol=1e-12)
    # Of scores, too: files of numbers alone say no dates.
    model.write_scores(dated, tmp_path / "s.npy")
    with pytest.raises(ModelError, match=r"s\.npy has no dates"):
        model.write_reconstruction(tmp_path / "s.npy", tmp_path / "i.npy")
    given = open_collection(tmp_path / "s.npy", labels=labels)
    model.write_reconstruction(given, tmp_path / "i.npy")
    np.testing.assert_allclose(sea(np.load(tmp_path / "i.npy")), sea(model.reconstruct(x)), atol=1e-9)
    with pytest.raises(RequestError, match="write_report"):
        streampca.plot.reconstructions(model, x.values[:2])


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"anomaly": "month"}, r"anomaly 'month' needs dates, and the samples of numpy array have none; .*\(labels=\)"),
        ({"anomaly": "dayofyear"}, "anomaly 'dayofyear' needs dates"),
        ({"anomaly": "label"}, "anomaly 'label' needs labels, and numpy array has none; .* labels="),
        ({"detrend": True}, "detrend needs dates"),
    ],
)
def test_a_fit_without_dates_is_refused_before_it_reads(steps, words):
    for function in (streampca.fit, streampca.plan):
        with pytest.raises(RequestError, match=words):
            function(np.ones((4, 3)), preparation=Preparation(**steps))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"anomaly": "moth"}, "anomaly 'moth' is not one of month, dayofyear, label. Did you mean 'month'"),
        ({"standardize": "yes"}, "standardize 'yes' is neither True nor False"),
        ({"detrend": 1}, "detrend 1 is neither"),
        ({"scale": "cosine"}, "scale 'cosine' is not 'area'"),
    ],
)
def test_steps_wrong_by_themselves(options, words):
    with pytest.raises(RequestError, match=words):
        Preparation(**options)


def test_weights_of_pixels_are_read_from_files(tmp_path):
    np.save(tmp_path / "w.npy", np.arange(1.0, 4))

    def scale_of(given):
        return preparation_of(make_run({"collection": {"source": "x.npy"}, "prepare": {"scale": given}})).scale

    np.testing.assert_array_equal(scale_of(str(tmp_path / "w.npy")), [1, 2, 3])
    assert scale_of("area") == "area"
    assert scale_of(2) == 2
    assert "learned" not in repr(Preparation(standardize=True))


def test_samples_of_which_there_is_no_mean_are_refused():
    x = field(36)
    model = streampca.fit(
        x[x.time.dt.month != 7], n_components=2, preparation=Preparation(mask="valid", anomaly="month")
    )
    with pytest.raises(ModelError, match=r"sample 6 of the DataArray is of month 7, of which .* no sample.*leave such"):
        model.transform(x)
    counts = np.where(x.time.dt.month == 7, 0, 1)
    with pytest.raises(DataError, match=r"all samples of .* of month 7 have weight 0"):
        streampca.fit(x, n_components=2, preparation=Preparation(mask="valid", anomaly="month"), sample_weight=counts)
    with pytest.raises(DataError, match="all of one date, and detrend needs two"):
        streampca.fit(x.assign_coords(time=x.time[:1].values.repeat(36)), preparation=Preparation(detrend=True))
    missing = x.copy()
    missing[5, 0, 0] = np.nan
    with pytest.raises(DataError, match=r"sample 5 .*holds NaN or infinity in 1 of its"):
        streampca.fit(missing, n_components=2, preparation=Preparation(mask=~LAND, standardize=True))
    noleap = xr.date_range("2000-01-01", periods=36, freq="MS", calendar="noleap", use_cftime=True)
    trend = streampca.fit(x, n_components=2, preparation=Preparation(mask="valid", detrend=True))
    with pytest.raises(ModelError, match="calendar 'noleap' and the trend was fitted along those of 'real'"):
        trend.transform(x.assign_coords(time=noleap))


def test_batches_do_not_say_what_all_samples_have():
    estimator = streampca.PCA(2, preparation=Preparation(standardize=True))
    with pytest.raises(RequestError, match=r"are learned from all samples before a fit.*preparation of a model"):
        estimator.partial_fit(uneven(20))
    fitted = streampca.fit(uneven(90), n_components=2, preparation=Preparation(standardize=True))
    again = streampca.PCA(2, preparation=fitted.preparation).partial_fit(uneven(90)[:40]).partial_fit(uneven(90)[40:])
    np.testing.assert_allclose(again.explained_variance_, fitted.explained_variance, rtol=1e-10)


# -- plans


def test_plans_count_what_is_learned(sst):
    days = Preparation(mask=~LAND, anomaly="dayofyear", detrend=True)
    options = {"shape": "4000x16x24", "dtype": "float32", "n_components": 5, "memory": "64MiB", "preparation": days}
    plan = streampca.plan(**options)
    p = int((~LAND).sum())
    assert plan.problem.held_bytes >= 8 * 366 * p
    assert dict(plan.memory_estimate.largest.items)
    phases = {phase.name: dict(phase.items) for phase in plan.memory_estimate.phases}
    held = "means, trends and deviations of features, or landmarks"
    assert all(items[held] == plan.problem.held_bytes for name, items in phases.items() if "before" not in name)
    assert "pass before the fit" in phases
    assert "one more pass before" in str(plan)
    assert plan.request.memory == 64 * MIB
    with pytest.raises(BudgetError, match="Set memory to at least") as error:
        streampca.plan(**options | {"memory": "12MiB"})
    least = parse_bytes(str(error.value).split("at least ")[1].split(" ")[0].rstrip(".,"))
    streampca.plan(**options | {"memory": least})
    # Also where the pass before takes most, and before that is made.
    told = []
    with pytest.raises(BudgetError, match=r"method .* needs .* Set memory to at least") as error:
        streampca.fit(
            sst / "sst.nc", n_components=2, memory="9.1MiB", preparation=Preparation(**ALL | {"mask": ~LAND}),
            listener=told.append,
        )  # fmt: skip
    assert not told
    least = str(error.value).split("at least ")[1].split(" ")[0].rstrip(".,")
    streampca.fit(sst / "sst.nc", n_components=2, memory=least, preparation=Preparation(**ALL | {"mask": ~LAND}))
    days = (np.datetime64("2000-01-01") + np.arange(366)).astype(str)
    with pytest.raises(BudgetError, match="taking the means of 366 groups of samples off 2000 features needs"):
        learned_for(open_collection(np.zeros((366, 2000)), labels=days), Preparation(anomaly="dayofyear"), memory=MIB)
    # Samples that are added later need the means, too.
    batch = replace(plan.problem, n_samples=100, learning_bytes=0)
    for candidates in (scatter_candidates, sketch_candidates):
        more = batch_plan(candidates(batch, plan.request), batch, plan.request)
        assert all(dict(phase.items)[held] == plan.problem.held_bytes for phase in more.memory_estimate.phases)
    # Without reading: of a file, the dates say how many groups there are.
    seen = streampca.plan(sst / "sst.nc", n_components=2, preparation=Preparation(anomaly="month", standardize=True))
    assert 8 * 12 * LAND.size < seen.problem.held_bytes < 8 * 20 * LAND.size


def test_copies_are_of_anomalies(tmp_path):
    x = field(60).fillna(0.0)
    copy_collection(prepare(open_collection(x), Preparation(anomaly="month", detrend=True)), str(tmp_path / "c.zarr"))
    copied, expected = xr.open_zarr(tmp_path / "c.zarr")["images"], by_hand(x, detrend=True) / HEIGHT
    np.testing.assert_allclose(copied, expected, atol=1e-10)
    xr.testing.assert_equal(copied.time, x.time)


def test_reports_draw_anomalies(sst):
    """Pictures say no dates: what is drawn are departures, of a model of such."""
    steps = Preparation(crop=((0, 14), (1, None)), **ALL | {"mask": ~LAND[:14, 1:], "normalize": "norm"})
    model = streampca.fit(sst / "sst.nc", n_components=3, preparation=steps)
    raw = open_collection(sst / "next.nc")
    seen = survey(model, raw)
    np.testing.assert_allclose(seen.scores, model.transform(raw).compute(), atol=1e-9)
    np.testing.assert_allclose(seen.spe, model.reconstruction_error(raw).compute(), atol=1e-9)
    left = np.asarray(model.reconstruct(raw)) - np.asarray(seen.model.reconstruct(seen.raw))
    x = field()[:-12]
    level = np.asarray(model.reconstruct(raw) + model.residual(raw)) - seen.raw.read(slice(0, 12)).reshape(left.shape)
    np.testing.assert_allclose(left, level, atol=1e-9)
    means = x.groupby("time.month").mean().values[:, :14, 1:]
    assert np.nanmax(np.abs(level - means)) < 1  # but for the trend


def test_further_samples_are_set_against_the_means_that_were_learned(tmp_path):
    """Of a store that has grown: as by one fit of all with the first one's preparation."""
    x = field(120)
    x[:108].to_zarr(tmp_path / "x.zarr", consolidated=False, encoding={"sst": {"chunks": (12, 16, 24)}})
    how = {"n_components": 3, "method": "covariance"}
    first = by_options.fit(tmp_path / "x.zarr", preparation=Preparation(**ALL), **how)
    first.save(tmp_path / "m.zarr")
    x[108:].to_zarr(tmp_path / "x.zarr", append_dim="time", consolidated=False)
    updated = streampca.update(tmp_path / "m.zarr", tmp_path / "x.zarr")
    assert updated.n_samples == 120
    whole = by_options.fit(tmp_path / "x.zarr", preparation=first.preparation, **how)
    np.testing.assert_allclose(updated.explained_variance, whole.explained_variance, rtol=1e-10)
    assert updated.preparation.learned.digest == first.preparation.learned.digest


def test_scores_of_other_dates_are_other_work():
    """A run is resumed only with samples of the same months."""
    x = field(36)
    model = streampca.fit(x, n_components=2, preparation=Preparation(mask="valid", anomaly="month"))
    frames = [model.prepared(x.assign_coords(time=time)).frame for time in (x.time, x.time.values[::-1], x.time)]
    one, other, again = (digest_of(model.subspace, frame) for frame in frames)
    assert one == again != other
