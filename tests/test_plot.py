"""The pictures: readable by themselves, for samples of every shape, and leaving nothing behind."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from pictured import assert_pictured, assert_readable, fitted, samples_like, spectrum
from PIL import Image
from sklearn.datasets import load_digits

from streampca import plot
from streampca.errors import ModelError, OutputError, RequestError
from streampca.plot.drawing import draw
from streampca.preprocessing import Preparation


@pytest.fixture(scope="module")
def digits():
    bunch = load_digits()
    return bunch.images, bunch.target


@pytest.fixture(scope="module")
def model(digits):
    return fitted(digits[0], 30)


SHAPES = {
    "tall": (60, 8),
    "colour": (12, 12, 3),
    "alpha": (12, 12, 4),
    "one-channel": (12, 12, 1),
    "profile": (40,),
}


def test_scree_marks_the_components_that_reach_a_share(model):
    ax = plot.scree(model)
    assert_readable(ax)
    assert ax.get_xlabel() == "component"
    assert "variance (%)" in ax.get_ylabel()
    sums = np.cumsum(model.explained_variance_ratio)
    right = next(other for other in ax.figure.axes if other is not ax)
    assert "cumulative variance (%)" in right.get_ylabel()
    expected = {f"{mark:.0f} % by {np.flatnonzero(sums >= mark / 100)[0] + 1}" for mark in (80, 90, 95)}
    assert {text.get_text() for text in right.texts} == expected
    assert ax.get_title() == f"30 components hold {100 * sums[-1]:.3g} % of the variance"


@pytest.mark.parametrize(
    "ratios",
    [[0.2], [0.999, 1e-3, 0, 0], [0.01] * 100, [0.8, 0.1, 0.05, 0.045, *[1e-5] * 100]],
    ids=["one", "zeros", "flat", "marks-close"],
)
def test_scree_is_readable_for_any_spectrum_even_when_small(ratios):
    ratios = np.array(ratios)
    ax = Figure(figsize=(5, 3), layout="constrained").add_subplot()
    assert_readable(plot.scree(spectrum(ratios), ax))
    assert len(ax.lines[0].get_xdata()) == len(ratios)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_samples_of_every_shape_are_drawn(shape):
    x = samples_like(shape)
    model = fitted(x, 3)
    axes = plot.mean_and_components(model)
    assert axes.shape == (4,)
    assert axes[0].get_title().startswith("mean")
    assert axes[1].get_title() == f"1: {100 * model.explained_variance_ratio[0]:.3g} %"
    grid = plot.reconstructions(model, x, ladder=[1, 3], count=1)
    assert grid.shape == (1, 3)
    for panels in (axes, grid):
        assert_readable(panels)
        for ax in panels.ravel():
            assert_pictured(ax)


def test_components_are_symmetric_about_zero_and_the_mean_is_grey(model):
    axes = plot.mean_and_components(model, count=3)
    assert axes[0].images[0].get_cmap().name == "gray"
    for index, ax in enumerate(axes[1:]):
        low, high = ax.images[0].get_clim()
        assert -low == high == np.abs(model.components[index]).max()
        np.testing.assert_array_equal(ax.images[0].get_array(), model.components[index])


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_pixels_are_hard_where_there_is_room_for_them_and_averaged_where_there_is_not(kind, tmp_path):
    """A chequered image of 200 x 200 pixels: two colours, or their mean."""
    chequered = np.indices((200, 200)).sum(axis=0) % 2 * 1.0
    for inches, levels in ((2.1, 1.0), (3.0, 1.0), (0.9, 0.1)):  # 315, 450 and 135 pixels
        ax = Figure(figsize=(inches, inches), dpi=150).add_axes((0, 0, 1, 1))
        draw(ax, chequered[None])
        plot.save(ax, tmp_path / f"figure.{kind}")
        shown = pixels_of(tmp_path / f"figure.{kind}")[9:-9, 9:-9]
        assert np.ptp(shown) == pytest.approx(255 * levels, abs=0.1 * 255 * (levels < 1))
        assert levels < 1 or set(np.unique(shown)) == {0, 255}


def pixels_of(path):
    """Grey levels of a PNG, or of the largest one in an SVG."""
    if path.suffix == ".svg":
        embedded = re.findall(r'base64,([^"]+)"', path.read_text())
        path = io.BytesIO(max(map(base64.b64decode, embedded), key=len))
    with Image.open(path) as image:
        return np.asarray(image.convert("L"), np.int64)


def test_unknown_bounds_are_not_shown(digits):
    unknown = fitted(digits[0], 3, residual_bound=np.nan)
    assert plot.mean_and_components(unknown)[1].get_title() == "1: 14.9 %"


@pytest.mark.parametrize("shape", [(20, 14), (20, 14, 3)], ids=["grey", "colour"])
def test_outside_the_mask_is_blank(shape):
    mask = np.ones(shape, bool)
    mask[:5] = False
    x = samples_like(shape)
    model = fitted(x, 3, Preparation(mask=mask))
    panels = [*plot.mean_and_components(model), *plot.reconstructions(model, x, count=1).ravel()]
    for ax in panels:
        image = ax.images[0]
        opacity = image.to_rgba(image.get_array())[..., 3]
        assert not opacity[:5].any()
        assert opacity[5:].all()


def test_an_even_mean_looks_even():
    x = np.random.default_rng(0).integers(0, 256, (500, 8, 8)).astype(float)
    for scale in (None, 0.01, np.geomspace(0.01, 1, 64).reshape(8, 8)):
        image = plot.mean_and_components(fitted(x, 2, Preparation(scale=scale)))[0].images[0]
        np.testing.assert_allclose(image.get_array(), x.mean(axis=0))
        assert np.ptp(image.norm(image.get_array())) < 0.5
    faces = x + 1000 * np.eye(8)
    assert plot.mean_and_components(fitted(faces, 2))[0].images[0].get_clim() == (
        faces.mean(axis=0).min(),
        faces.mean(axis=0).max(),
    )


def test_hues_survive():
    # An even orange stretched from its own least to its greatest value would be drawn in any colour at all.
    x = np.full((10, 6, 6, 3), (250.0, 120.0, 20.0)) + np.random.default_rng(0).random((10, 6, 6, 3))
    mean = plot.mean_and_components(fitted(x, 2))[0].images[0].get_array()
    np.testing.assert_allclose(mean[..., :3].mean(axis=(0, 1)), np.array([250, 120, 20]) / 255, atol=0.02)


def test_errors_under_reconstructions_are_what_is_left_of_the_distance_from_the_mean(model, digits):
    sample = digits[0][:1]
    axes = plot.reconstructions(model, sample, ladder=[4, 30])
    for ax, k in zip(axes[0, 1:], (4, 30), strict=True):
        left = np.linalg.norm(model.reconstruct(sample, k) - sample) / np.linalg.norm(sample - model.mean)
        assert ax.get_xlabel() == f"error {100 * left:.3g} %"
        assert ax.get_title() == f"{k} components"


def test_originals_are_shown_as_prepared():
    x = samples_like((20, 14))
    prepared = Preparation(crop=((2, 18), (1, 13)), bin=2)
    axes = plot.reconstructions(fitted(x, 4, prepared), x, ladder=[4], count=1)
    np.testing.assert_allclose(axes[0, 0].images[0].get_array(), prepared.apply(x)[0])
    assert axes[0, 1].images[0].get_array().shape == (8, 6)
    assert_readable(axes)


def test_perfect_reconstructions_show_no_rounding():
    x = samples_like((6, 6))
    assert plot.reconstructions(fitted(x, 5), x, ladder=[5])[0, 1].get_xlabel() == "error < 0.1 %"


def test_scores_are_scattered_by_label(model, digits):
    x, target = digits
    ax = plot.scores(model, model.transform(x), target)
    assert_readable(ax)
    assert ax.get_xlabel() == "component 1 (14.9 %)"
    assert ax.get_ylabel() == "component 2 (13.6 %)"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [str(digit) for digit in range(10)]
    assert len({line.get_color() for line in ax.lines}) == len({line.get_marker() for line in ax.lines}) == 10
    np.testing.assert_array_equal(ax.lines[3].get_xydata(), model.transform(x)[target == 3][:, :2])


def test_groups_are_named_at_their_centres_in_natural_order(model):
    rng = np.random.default_rng(0)
    kinds = rng.integers(1, 11, 300)
    places = np.column_stack([100 * kinds, rng.standard_normal(300)])
    ax = plot.scores(model, places, [f"day {kind}" for kind in kinds])
    assert_readable(ax)
    names = [f"day {kind}" for kind in range(1, 11)]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == names
    assert [text.get_text() for text in ax.texts] == names
    np.testing.assert_allclose([text.xy[0] for text in ax.texts], 100 * np.arange(1, 11))
    same = plot.scores(model, rng.standard_normal((300, 2)), [f"day {kind}" for kind in kinds])
    assert_readable(same)  # names of groups on top of each other


def test_one_label_takes_no_legend(model):
    for columns in (1, 2):
        ax = plot.scores(model, np.eye(20, columns), ["day"] * 20)
        assert ax.get_legend() is None
        assert not ax.texts


def test_samples_whose_label_is_unknown_are_shown_too(model, digits):
    x, target = digits
    scores, some = model.transform(x), np.where(target < 3, np.nan, target)
    ax = plot.scores(model, scores, some)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [*map(str, range(3, 10)), "unknown"]
    np.testing.assert_array_equal(ax.lines[-1].get_xydata(), scores[target < 3][:, :2])
    ax = plot.scores(model, scores, some + 0.5)
    assert_readable(ax)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["unknown"]
    np.testing.assert_array_equal(ax.lines[-1].get_xydata(), scores[target < 3][:, :2])
    bars = plot.scores(model, scores[:, :1], some).patches
    assert sum(bar.get_height() for bar in bars) >= 1797


def test_one_sample_far_away_leaves_a_histogram_as_it_is(model):
    far = np.random.default_rng(0).standard_normal((2000, 1))
    far[7] = 1e7
    assert len(plot.scores(model, far).patches) <= 100


def test_many_labels_share_one_colour(model, digits):
    ax = plot.scores(model, model.transform(digits[0]), np.arange(1797) % 40)
    assert_readable(ax)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["31 others", *map(str, range(9))]
    assert sum(len(line.get_xdata()) for line in ax.lines) == 1797


def test_of_crowds_some_points_are_drawn_over_the_density_of_all(model):
    crowd = np.random.default_rng(0).standard_normal((30_000, 30))
    ax = plot.scores(model, crowd)
    assert_readable(ax)
    assert ax.collections[0].get_array().sum() == 30_000
    assert [len(line.get_xdata()) for line in ax.lines] == [4000]
    labelled = plot.scores(model, crowd, np.arange(30_000) % 3)
    assert labelled.get_title() == "30000 samples, 4000 of them as points"
    assert labelled.collections[0].get_array().sum() == 30_000
    assert sum(len(line.get_xdata()) for line in labelled.lines) == 4000
    assert_readable(labelled)
    assert_readable(plot.scores(model, crowd, np.linspace(0, 1, 30_000), axes=(2, 5)))


def test_overview_is_readable(model, digits):
    x, target = digits
    figure = plot.overview(model, model.transform(x), x[:5], target, n_samples=4000)
    assert_readable(figure.axes)
    assert any(ax.get_title() == "1797 of 4000 samples" for ax in figure.axes)
    panels = [ax for ax in figure.axes if ax.images]
    assert len(panels) == 9 + 3 * 5
    for ax in panels:
        assert_pictured(ax)


def test_a_single_component_has_an_overview_too(digits):
    model = fitted(digits[0], 1)
    figure = plot.overview(model, model.transform(digits[0]), digits[0][:3])
    assert_readable(figure.axes)


def test_given_axes_are_drawn_into(model):
    ax = Figure().add_subplot()
    assert plot.scree(model, ax) is ax
    assert plot.scores(model, np.zeros((3, 30)), ax=ax) is ax


def test_save_writes_figures_and_axes(model, tmp_path):
    path = tmp_path / "picture.png"
    axes = plot.mean_and_components(model, 1)
    for what in (axes, axes[0], axes[0].figure):
        plot.save(what, path)
        assert path.stat().st_size > 1000
        path.unlink()


@pytest.mark.parametrize("ending", ["pdf", "svg"])
def test_the_same_picture_is_the_same_file(model, tmp_path, monkeypatch, ending):
    files = []
    for moment in ("1000000000", "1700000000"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", moment)  # what matplotlib takes for now
        plot.save(plot.scores(model, np.eye(30)), tmp_path / f"{moment}.{ending}")
        files.append((tmp_path / f"{moment}.{ending}").read_bytes())
    assert files[0] == files[1]
    assert len(files[0]) > 1000


def test_save_says_what_is_wrong(model, tmp_path):
    ax = plot.scree(model)
    with pytest.raises(OutputError, match=r"picture\.doc has no ending .* call it \.png"):
        plot.save(ax, tmp_path / "picture.doc")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot be written: .* is not a folder"):
        plot.save(ax, tmp_path / "file" / "picture.png")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: plot.scores(m, x, axes=(1, 31)), r"axes are \(1, 31\) .* 1 to 30"),
        (lambda m, x: plot.scores(m, x, labels=[1]), "1 labels for 4 samples"),
        (lambda m, x: plot.reconstructions(m, np.zeros((2, 8, 8)), ladder=[31]), "has 30 components"),
        (lambda m, x: plot.scores(m, x, labels=np.zeros((4, 2))), "4 x 2 labels for 4 samples"),
        (lambda m, x: plot.reconstructions(m, np.zeros((2, 8, 8)), ladder=np.array([0, 2])), "has 30 components"),
        (lambda m, x: plot.reconstructions(m, [np.zeros((8, 8)), np.zeros((9, 9))]), "1 x 9 x 9 and .* on .* 8 x 8"),
        (lambda m, x: plot.quantiles(m, np.eye(4, 30), np.zeros((4, 9, 9))), "1 x 9 x 9 and .* on samples of 8 x 8"),
        (lambda m, x: plot.quantiles(m, np.full((4, 30), np.nan), x), "hold NaN or infinity"),
        (lambda m, x: plot.reconstructions(m, np.zeros((0, 8, 8))), "give 1 or more"),
        (lambda m, x: plot.mean_and_components(m, count=0), "at least 1 component"),
        (lambda m, x: plot.walks(m, 0), "at least 1 component"),
        (lambda m, x: plot.walks(m, 1, ()), "deviations are empty"),
        (lambda m, x: plot.nearest_to_quantiles(np.zeros((5, 2)), (0.9, 0.1)), "numbers between 0 and 1 that ascend"),
        (lambda m, x: plot.nearest_to_quantiles(np.zeros((5, 2)), axes=(1, 3)), "components 1 to 2"),
        (lambda m, x: plot.nearest_to_quantiles(np.zeros((0, 2))), "no scores"),
        (lambda m, x: plot.outliers(m, np.ones(3), np.ones(4)), "one of each for every sample"),
        (lambda m, x: plot.outliers(m, np.ones(3), np.ones(3), [3]), "rows 3 to 3 of 3; count rows from 0"),
        (lambda m, x: plot.unusual(m, x[:2], [1], [1, 2]), "t2 has 1 entries for 2 samples"),
        (lambda m, x: plot.unusual(m, x[:2], [1, 2], [1, 2], ["a"]), "names has 1 entries for 2 samples"),
        (lambda m, x: plot.unusual(m, [], [], []), "give 1 or more"),
    ],
)
def test_wrong_requests_are_refused_by_name(model, call, message):
    with pytest.raises((RequestError, ModelError), match=message):
        call(model, np.zeros((4, 30)))
