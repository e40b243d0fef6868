"""Pictures of samples: walks, the figure of quantiles, outliers, compression; and rules in the scree plot."""

from __future__ import annotations

import weakref
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import xarray
from pictured import assert_pictured, assert_readable, fitted, samples_like, spectrum

import streampca
from streampca import plot
from streampca.eigensolvers import Rule, count_components
from streampca.errors import DataError, ModelError, RequestError
from streampca.models.compression import Compression
from streampca.plot.spectrum import reached
from streampca.preprocessing import Preparation

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@pytest.fixture(scope="module")
def x():
    return samples_like((8, 7))


@pytest.fixture(scope="module")
def model(x):
    return fitted(x, 4)


@pytest.mark.parametrize("noise", [0.01, 1.0], ids=["few", "none"])
def test_rules_of_thumb_are_drawn_where_the_engine_finds_them(noise):
    rng = np.random.default_rng(0)
    n, p = 400, 60
    signal = rng.standard_normal((n, 4)) * [9, 7, 5, 4] @ np.linalg.qr(rng.standard_normal((p, 4)))[0].T
    values = np.linalg.eigvalsh(np.cov((signal + rng.standard_normal((n, p)) * noise**0.5).T))[::-1]
    total = values.sum()
    ax = plot.scree(replace_spectrum(values, total, 6, n, p, known=True))
    assert_readable(ax)
    found = {rule: count_components(values, total, Rule(rule, n, p), complete=True) for rule in ("elbow", "mp")}
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert f"elbow: {found['elbow']} components" in words
    assert f"Marchenko\N{EN DASH}Pastur edge of white noise: {found['mp']} above" in words
    edge = next(line for line in ax.lines if line.get_linestyle() == "--").get_ydata()[0]
    assert np.count_nonzero(100 * values / total > edge) == found["mp"] == 4
    assert len(ax.lines[1].get_xdata()) == 50 - 6  # known, and not kept


def replace_spectrum(values, total, kept, n, p, *, known):
    return replace(spectrum(values[:kept], values if known else None, n, p), total_variance=total)


def test_shares_named_elsewhere_are_those_that_are_marked():
    """80 % of white noise takes more components than are shown, so neither picture nor caption names a number."""
    for values, some in ((np.linspace(1.2, 0.8, 200), False), (np.geomspace(1, 1e-6, 200), True)):
        model = replace_spectrum(values, values.sum(), 6, 100_000, 200, known=True)
        right = plot.scree(model).figure.axes[-1]
        marked = [text.get_text() for text in right.texts]
        assert marked == [f"{100 * mark:.0f} % by {number}" for number, mark in reversed(reached(model).items())]
        assert bool(marked) == some


def test_nothing_is_drawn_that_is_not_known():
    values = np.geomspace(1, 0.01, 200)
    ax = plot.scree(replace_spectrum(values, values.sum(), 20, 100_000, 200, known=False))
    assert ax.get_legend() is None  # all 20 are above the edge, and an elbow is looked for in 50
    assert len(ax.lines) == 1
    ax = plot.scree(replace_spectrum(values, values.sum(), 60, 100_000, 200, known=False))
    assert any(text.get_text().startswith("elbow") for text in ax.get_legend().get_texts())


def test_an_edge_below_the_scale_is_said_and_not_drawn():
    values = np.geomspace(1, 1e-12, 300)
    ax = plot.scree(replace_spectrum(values, values.sum(), 50, 100_000, 300, known=True))
    assert ax.get_legend().get_texts()[-1].get_text().endswith("(off the scale)")
    assert not [line for line in ax.lines if line.get_linestyle() == "--"]


def test_walks_go_from_the_mean_by_standard_deviations(model):
    grid = plot.walks(model, count=2, deviations=(-2, 0, 3))
    assert grid.shape == (2, 3)
    assert_readable(grid)
    for number, row in enumerate(grid):
        step = np.sqrt(model.explained_variance[number]) * model.components[number]
        for ax, times in zip(row, (-2, 0, 3), strict=True):
            np.testing.assert_allclose(ax.images[0].get_array(), model.mean + times * step)
            assert ax.images[0].get_clim() == grid[0, 0].images[0].get_clim()
    assert [ax.get_title() for ax in grid[0]] == ["\N{MINUS SIGN}2 sd", "mean", "+3 sd"]


STEPS = {
    "scaled": Preparation(scale=np.linspace(0.5, 2, 56).reshape(8, 7)),
    "one factor": Preparation(scale=0.5),
    "own mean": Preparation(normalize="mean", scale=np.linspace(0.5, 2, 56).reshape(8, 7)),
    "own norm": Preparation(normalize="norm"),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_pictures_are_in_the_units_of_images(x, steps):
    """Pictures made from components are the model's reconstructions."""
    model = fitted(x, 3, steps)
    grid = plot.reconstructions(model, x[:2], ladder=[2])
    for row, image, kept in zip(grid, x, model.reconstruct(x[:2], 2), strict=False):
        np.testing.assert_allclose(row[0].images[0].get_array(), image)
        np.testing.assert_allclose(row[1].images[0].get_array(), kept)
    middle = plot.walks(model, 1, [0.0])[0, 0].images[0].get_array()
    np.testing.assert_allclose(middle, model.inverse_transform(np.zeros((1, 1)))[0])
    np.testing.assert_allclose(plot.mean_and_components(model, 1)[0].images[0].get_array(), middle)


def test_samples_nearest_to_quantiles_are_arranged_as_their_scores(model, x):
    scores = model.transform(x)
    nearest = plot.nearest_to_quantiles(scores, QUANTILES, (1, 2))
    across, upwards = (np.quantile(scores[:, axis], QUANTILES) for axis in (0, 1))
    for (row, column), found in np.ndenumerate(nearest):
        distance = np.hypot(scores[:, 0] - across[column], scores[:, 1] - upwards[-1 - row])
        assert distance[found] == distance.min()
    asked = []

    class Samples:
        def __getitem__(self, row):
            asked.append(row)
            return x[row]

    grid = plot.quantiles(model, scores, Samples())
    assert sorted(asked) == sorted(set(nearest.ravel().tolist()))
    assert_readable(grid)
    for ax, row in zip(grid.flat, nearest.flat, strict=True):
        np.testing.assert_allclose(ax.images[0].get_array(), x[row])
    rings = next(ax for ax in grid[0, 0].figure.figure.axes if ax not in grid).lines[-1].get_xydata()
    np.testing.assert_array_equal(rings, scores[nearest.ravel(), :2])


def test_kernel_pca_shows_images_at_quantiles(x):
    model = streampca.fit(x, streampca.KernelPCA(2, kernel="rbf", gamma="auto"))
    grid = plot.quantiles(model, model.transform(x), x)
    assert all(ax.images for ax in grid.flat)


def test_embeddings_have_no_components_to_draw(x):
    model = streampca.fit(x, streampca.Isomap(n_neighbors=8))
    scores = model.transform(x)
    for draw in (
        lambda: plot.reconstructions(model, x),
        lambda: plot.unusual(model, x[:2], [1, 2], [1, 2]),
        lambda: plot.series(model, scores),
    ):
        with pytest.raises(ModelError, match="kind 'isomap'; fit with pca_components"):
            draw()


def test_samples_at_quantiles_are_read_one_at_a_time(model, x):
    """An image is released before the next is read, so that a report holds one raw image."""
    alive = []

    class Samples:
        def __getitem__(self, row):
            assert not any(each() is not None for each in alive)
            image = x[row].copy()
            alive.append(weakref.ref(image))
            return image

    plot.quantiles(model, model.transform(x), Samples())
    assert len(alive) > 1


def test_outliers_are_ringed_and_numbered(model):
    rng = np.random.default_rng(0)
    t2, spe = rng.chisquare(4, 500), rng.chisquare(20, 500)
    t2[:6], spe[:6] = 60 + 0.01 * np.arange(6), 200  # on top of each other
    spe[7] = 0.0
    ax = plot.outliers(model, t2, spe, marked=[0, 1, 2, 3, 4, 5, 9])
    assert_readable(ax)
    assert [text.get_text() for text in ax.texts] == list("1234567")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.lines[0].get_ydata().min() == spe[spe > 0].min()
    crowd = plot.outliers(model, np.tile(t2, 50), np.tile(spe, 50))
    assert crowd.collections[0].get_array().sum() == 25_000
    assert_readable(plot.outliers(model, np.array([np.inf, np.nan, 1.0]), np.zeros(3), n_samples=9))


def test_unusual_samples_stand_beside_what_is_missed(model, x):
    for count, names in ((1, None), (5, [f"scans/day-{day}/image.png" for day in range(5)])):
        grid = plot.unusual(model, x[:count], np.arange(count), np.arange(count) * 1e6, names)
        assert grid.shape == (count, 3)
        assert_readable(grid)
        for row, image in zip(grid, x, strict=False):
            left, kept, missed = (ax.images[0] for ax in row)
            np.testing.assert_allclose(left.get_array(), image)
            np.testing.assert_allclose(missed.get_array(), image - kept.get_array(), atol=1e-12)
            assert left.get_clim() == kept.get_clim()
            assert sum(missed.get_clim()) == 0
            assert missed.get_cmap().name == "RdBu_r"


SIZES = Compression(np.array([1, 5, 50]), np.array([100, 400, 3000]), 2000, np.array([9.0, 4.0, 6.0]), 60, peak=255.0)


@pytest.mark.parametrize(
    "figures",
    [SIZES, replace(SIZES, peak=None), replace(SIZES, given_rmse=7.0), SIZES.at(5)],
    ids=["psnr", "rmse", "noisy", "one"],
)
def test_compression_shows_what_is_kept_and_what_it_costs(figures):
    ax = plot.compression(figures)
    assert_readable(ax)
    shown = figures.rmse if figures.psnr is None else figures.psnr
    np.testing.assert_allclose(ax.lines[0].get_ydata(), shown)
    right = next(other for other in ax.figure.axes if other is not ax)
    np.testing.assert_allclose(right.lines[0].get_ydata(), 100 * figures.stored_bytes / 2000)
    if figures.given_rmse is not None:
        assert [text.get_text() for text in ax.get_legend().get_texts()][-1] == "best: 5 components"


def test_one_component_is_a_histogram_by_label(x):
    model = fitted(x, 1)
    scores = np.vstack([model.transform(x), np.full((1, 1), np.nan)])  # one that has no place
    ax = plot.scores(model, scores, np.arange(61) % 3, n_samples=10**8)
    assert_readable(ax)
    assert ax.get_title() == "61 of 100000000 samples"
    assert sum(bar.get_height() for bar in ax.patches) >= 60
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["0", "1", "2"]


def test_a_bad_sample_is_refused_by_name(model, x):
    images = x[:4].astype(np.float64)
    images[2].flat[1] = np.nan
    with pytest.raises(DataError, match="sample 2 of those given holds NaN"):
        plot.reconstructions(model, images)


def test_a_plot_of_a_fitted_model(x):
    """From a fit, and not from an SVD in a test."""
    model = streampca.fit(x, n_components=3)
    scores = np.asarray(model.transform(x))
    for ax in (*plot.mean_and_components(model), *plot.walks(model, 1, (-2, 2)).flat):
        assert_pictured(ax)
    np.testing.assert_allclose(plot.scree(model).lines[0].get_ydata(), 100 * model.explained_variance_ratio)
    np.testing.assert_array_equal(plot.scores(model, scores).lines[0].get_xydata(), scores[:, :2])


FORMS = {
    "path": lambda x, path: path,
    "text": lambda x, path: str(path),
    "collection": lambda x, path: streampca.open_collection(path),
    "list": lambda x, path: list(x),
    "dask": lambda x, path: da.from_array(x, chunks=(7, 8, 7)),
    "DataArray": lambda x, path: xarray.DataArray(np.moveaxis(x, 0, 1), dims=("y", "n", "x")),
}


def pictures_of(model, scores, samples):
    """Yield the axes of each picture that reads samples."""
    yield plot.reconstructions(model, samples, count=3)
    yield plot.quantiles(model, scores, samples)
    yield np.array(plot.overview(model, scores, samples).axes)


def pixels(grid):
    return [image.get_array() for ax in grid.flat for image in ax.images]


@pytest.fixture(scope="module")
def wanted(model, x):
    return [pixels(grid) for grid in pictures_of(model, model.transform(x), x)]


@pytest.mark.every(3)
@pytest.mark.parametrize("form", FORMS)
def test_samples_of_every_kind_are_drawn(model, x, wanted, tmp_path, form):
    """The same pixels, and only of those that are drawn."""
    np.save(tmp_path / "x.npy", x)
    made = pictures_of(model, model.transform(x), FORMS[form](x, tmp_path / "x.npy"))
    for grid, others in zip(made, wanted if form == "path" else wanted[:2], strict=False):
        for image, other in zip(pixels(grid), others, strict=True):
            np.testing.assert_allclose(image, other, atol=1e-9)


def test_views_of_a_collection_are_drawn(model, x, tmp_path):
    np.save(tmp_path / "x.npy", x)
    collection, strangest = streampca.open_collection(tmp_path / "x.npy"), [40, 3, 17]
    np.save(tmp_path / "three.npy", x[strangest])
    for given in (collection[strangest], tmp_path / "three.npy"):
        grid = plot.unusual(model, given, np.ones(3), np.ones(3))
        for row, number in zip(grid, strangest, strict=True):
            np.testing.assert_allclose(row[0].images[0].get_array(), x[number])


def test_written_scores_are_drawn(model, x, tmp_path):
    """Scores are given by their path or as a collection."""
    np.save(tmp_path / "x.npy", x)
    model.write_scores(tmp_path / "x.npy", tmp_path / "scores.zarr")
    scores = np.asarray(model.transform(x))
    for given in (tmp_path / "scores.zarr", str(tmp_path / "scores.zarr"), streampca.open_collection(scores)):
        np.testing.assert_allclose(plot.scores(model, given).lines[0].get_xydata(), scores[:, :2], rtol=1e-6)
        np.testing.assert_array_equal(plot.nearest_to_quantiles(given), plot.nearest_to_quantiles(scores))
        assert plot.quantiles(model, given, tmp_path / "x.npy").shape == (5, 5)
    with pytest.raises(RequestError, match=r"give model.transform\(samples\)"):
        plot.scores(model, tmp_path / "x.npy")


def test_samples_of_another_kind_are_refused_where_they_are_opened(model, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 9, 9)))
    with pytest.raises(ModelError, match="has samples of 9 x 9 and the model was fitted on samples of 8 x 7"):
        plot.reconstructions(model, tmp_path / "x.npy")
