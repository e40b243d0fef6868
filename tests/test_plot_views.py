"""Views of samples: the part shown, which way up, read no further than drawn; and labels shown as they are."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from pictured import assert_readable, drawn, fitted, samples_like, texts_of

from streampca import plot
from streampca.models.load import load_model
from streampca.models.sample_images import MOST, SLICES, sample_view, view_of
from streampca.preprocessing import Preparation
from streampca.storage.components import StoredComponents
from streampca.storage.coordinate import Coordinate

LAT, LON = Coordinate(np.linspace(-60, 60, 7)), Coordinate(np.linspace(0, 350, 9), {"units": "degrees_east"})


class Watched:
    """Components that count what is read of them, as `StoredComponents` would."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.read = values, values.shape, values.dtype, 0

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        part = self.values[key]
        self.read += part.size
        return part

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("all components were read")


def test_north_is_up_whichever_way_it_is_stored():
    x = samples_like((7, 9))
    for name in ("lat", "somewhere"):
        for order in (1, -1):
            latitude = Coordinate(LAT.values[::order], {"standard_name": "latitude"})
            model = fitted(x, 2, dims=(name, "lon"), coordinates={name: latitude, "lon": LON})
            axes = plot.mean_and_components(model, 1)
            np.testing.assert_allclose(axes[0].images[0].get_array(), model.mean[::-order])
            np.testing.assert_allclose(axes[1].images[0].get_array(), model.components[0][::-order])
            assert axes[0].get_ylabel() == f"{name} \N{MINUS SIGN}60 to 60"
            assert axes[0].get_xlabel() == "lon 0 to 350"
    assert_readable(axes)


def test_longitude_goes_across_whichever_axis_it_is():
    model = fitted(samples_like((9, 7)), 1, dims=("lon", "lat"), coordinates={"lat": LAT, "lon": LON})
    axes = plot.mean_and_components(model, 1)
    np.testing.assert_allclose(axes[0].images[0].get_array(), model.mean.T[::-1])
    assert axes[0].get_ylabel().startswith("lat")


def test_rows_of_an_image_stay_downwards():
    model = fitted(
        samples_like((7, 9)), 1, coordinates={"y": Coordinate(np.arange(7.0)), "x": Coordinate(np.arange(9))}
    )
    np.testing.assert_array_equal(plot.mean_and_components(model)[0].images[0].get_array(), model.mean)


SHOWN = [
    ((12, 5, 6), ("z", "y", "x"), ("z 1", "z 3", "z 5", "z 7", "z 9", "z 11"), "6 of 12 along z"),
    ((5, 6, 2), ("y", "x", "channel"), ("channel 0", "channel 1"), ""),
    ((5, 6, 3), ("y", "x", "channel"), (), ""),
    ((5, 6, 7), ("z", "y", "x"), tuple(f"z {z}" for z in range(5)), ""),
    ((2, 5, 6), ("band", "y", "x"), ("red", "infrared"), ""),
    ((2, 2, 5, 6), ("t", "z", "y", "x"), ("t 0, z 0", "t 0, z 1", "t 1, z 0", "t 1, z 1"), ""),
    ((4, 5, 6, 3), ("z", "y", "x", "c"), ("z 0", "z 1", "z 2", "z 3"), ""),
    ((1, 5, 6), ("z", "y", "x"), (), ""),
]


@pytest.mark.parametrize(("shape", "dims", "captions", "note"), SHOWN)
def test_slices_and_channels_are_named(shape, dims, captions, note):
    band = {"band": Coordinate(np.array(["red", "infrared"]))}
    model = fitted(samples_like(shape, count=12), 3, dims=dims, coordinates=band if dims[0] == "band" else {})
    assert (view_of(model).captions, view_of(model).note) == (captions, note)


@pytest.mark.parametrize(("shape", "dims", "captions", "note"), SHOWN[:3])
def test_slices_and_channels_are_shown_beside_each_other(shape, dims, captions, note):
    model = fitted(samples_like(shape, count=12), 3, dims=dims)
    axes = plot.mean_and_components(model, 1)
    assert_readable(axes)
    for ax in axes:
        assert len(ax.images) == max(1, len(captions))
        assert tuple(text.get_text() for text in ax.texts) == captions
    for grid in (plot.walks(model, 1, (0, 1)), plot.reconstructions(model, samples_like(shape)[:1], [1])):
        assert all(len(ax.images) == min(4, max(1, len(captions))) for ax in grid.flat)


def test_each_slice_is_where_its_caption_says():
    model = fitted(samples_like((12, 5, 6), count=12), 2)
    mean, first = plot.mean_and_components(model, 1)
    for number, at in enumerate((1, 3, 5, 7, 9, 11)):
        np.testing.assert_array_equal(mean.images[number].get_array(), model.mean[at])
        np.testing.assert_array_equal(first.images[number].get_array(), model.components[0, at])
        assert first.images[number].get_clim() == first.images[0].get_clim()  # one scale for one component


def test_channels_have_grey_scales_of_their_own():
    x = samples_like((6, 7, 2), count=12) * [1, 1000]
    images = plot.mean_and_components(fitted(x, 1, dims=("y", "x", "channel")))[0].images
    assert images[0].get_clim()[1] < images[1].get_clim()[0]


def test_lines_have_their_coordinates():
    wavelength = Coordinate(np.linspace(400, 700, 40))
    model = fitted(samples_like((40,)), 3, dims=("wavelength",), coordinates={"wavelength": wavelength})
    axes = plot.mean_and_components(model)
    np.testing.assert_array_equal(axes[0].lines[-1].get_xdata(), wavelength.values)
    assert_readable(axes)
    assert "wavelength" in {text.get_text() for text in texts_of(axes[0].figure)}


def test_large_images_are_drawn_by_the_means_of_blocks():
    shape = (MOST * 2 + 3, 31)
    values = np.random.default_rng(0).random((1, *shape))
    values[0, :50, :4] = np.nan
    made = sample_view(shape, ("y", "x")).read(values)[0, 0]
    assert made.shape == (-(-shape[0] // 3), 11)
    np.testing.assert_allclose(made[100, 5], values[0, 300:303, 15:18].mean())
    np.testing.assert_allclose(made[-1, -1], values[0, 600:, 30:].mean())
    assert np.isnan(made[:16, 0]).all()
    np.testing.assert_allclose(made[0, 1], np.nanmean(values[0, :3, 3:6]))  # what is known of a block


def test_no_more_is_read_than_is_drawn():
    model = fitted(samples_like((12, 20, 30)), 30)
    watched = Watched(model.components)
    plot.mean_and_components(replace(model, components=watched), 4)
    assert watched.read == 4 * SLICES * 20 * 30
    watched.read = 0
    plot.walks(replace(model, components=watched), 3)
    assert watched.read == 3 * 4 * 20 * 30
    watched.read = 0
    plot.scree(replace(model, components=watched))
    assert watched.read == 0


@pytest.mark.slow
def test_huge_components_on_disk_are_drawn_in_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("streampca.planning.component_chunks.TILE", 1 << 20)  # several copies of one are held
    side, k = 1200, 8
    rng = np.random.default_rng(0)
    vectors = np.tile(rng.standard_normal((k, 1, side), np.float32) / side, (1, side, 1))
    shape = (side, side)
    small = fitted(samples_like((4, 5)), k)
    plot.mean_and_components(small)  # what is loaded on first use is not counted
    model = replace(small, components=vectors, mean=rng.random(shape), raw_shape=shape)
    model.save(tmp_path / "model.zarr")
    stored = load_model(tmp_path / "model.zarr", memory="64 MiB")
    assert isinstance(stored.components, StoredComponents)
    sample = rng.random(shape, np.float32)
    for draw in (
        lambda: plot.walks(stored, deviations=(0, 1)),
        lambda: plot.reconstructions(stored, [sample]),
    ):
        tracemalloc.start()
        draw()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.85 * stored.components.nbytes


HOSTILE = ["$\\frac{", "_under", "<script>alert(1)</script>", "two\nlines", "a" * 300, "\udcff", "$x^2$"]


def test_names_are_shown_as_they_are_and_cut():
    x = samples_like((9, 8))
    model = fitted(x, 3)
    labels = np.array(HOSTILE)[np.arange(60) % len(HOSTILE)]
    axes = plot.scores(model, model.transform(x), labels)
    assert_readable(axes)
    shown = {text.get_text() for text in axes.get_legend().get_texts()}
    assert {"$\\frac{", "_under", "two lines", "$x^2$", "?"} <= shown
    assert max(map(len, shown)) == 20
    names, numbers = [HOSTILE[0], *HOSTILE[3:6]], np.linspace(1, 9, 4)
    grid = plot.unusual(model, x[:4], numbers, numbers, names)
    assert_readable(grid)
    assert grid[0, 0].get_ylabel().split("\n") == ["1 $\\frac{", "T\N{SUPERSCRIPT TWO} 1", "SPE 1"]
    named = fitted(x, 1, dims=("$y_{", "$x"), coordinates={"$x": Coordinate(np.arange(8))})
    assert_readable(plot.mean_and_components(named))
    volumes = samples_like((12, 5, 6), count=3)  # whose axis of slices is named beside the colours
    drawn(plot.unusual(fitted(volumes, 1, dims=("$\\frac{$", "y", "x")), volumes[:1], [1], [1]))


def test_margins_that_are_never_known_are_blank_and_constant_images_grey():
    x = samples_like((9, 8))
    mask = np.zeros((9, 8), bool)
    mask[3:6, 2:7] = True
    model = fitted(x, 2, Preparation(mask=mask))
    x[0] = 7.0
    axes = plot.reconstructions(model, x[:1], [2])
    np.testing.assert_array_equal(np.isfinite(axes[0, 0].images[0].get_array()), mask)
    even = axes[0, 0].images[0]
    assert even.norm(7.0) == 0.5
    assert_readable(axes)
