"""Reports: what they say, what they examine, and that nothing in a file's name or on the way can break them."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import os
import re
import struct
from dataclasses import replace
from importlib import resources
from pathlib import Path

import by_options
import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import LineCollection
from parsed import Parsed
from pictured import assert_readable, texts_of
from PIL import Image
from shell import not_drawn, succeeded, typed

import streampca
from streampca.errors import BudgetError, ModelError, OutputError, RequestError, readable
from streampca.events import BlockDone, Drawing, PassStarted, Warned
from streampca.models.accuracy import bound_text
from streampca.plot.overview_figure import encode, figure_of
from streampca.plot.report import figures, survey, write_report
from streampca.plot.report.survey import FEWEST_RUNS, _spread, places_in, runs_spread
from streampca.preprocessing import Preparation
from streampca.readers import idx
from streampca.readers.stored import flat
from streampca.units import format_seconds

HOSTILE = ('"><img src=x onerror=alert(1)>.png', "$x_1$ <b>bold<|b> &amp; 日本\u202e.png", "{{ 7 * 7 }}'`.png")
OF_MODEL = ["components", "scree", "walks", "compression"]
ORDERED = ["series", "scree", "components", "walks", "compression"]  # where samples have an order: without labels
OF_SAMPLES = ["reconstructions", "scores", "quantiles", "outliers", "unusual"]
PLAIN = ["trust", "plan", "settings"]
DRAWN = {"scree", "components"}  # in the report of most tests
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "footer", "h1", "h2", "h3"),
    *("p", "a", "ul", "li", "dfn", "details", "summary", "dl", "dt", "dd", "div", "figure", "img", "figcaption"),
    *("table", "thead", "tbody", "tr", "th", "td", "script"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "src", "alt", "scope"),
    *(
        "width",
        "height",
        "style",
        "aria-label",
        "aria-labelledby",
        "hidden",
        "type",
        "role",
        "tabindex",
        "open",
        "data-boxes",
    ),
}


def blobs(n, side=12, seed=0):
    """uint8 images (n, side, side) of a blob here or there: a few directions, and noise."""
    rng = np.random.default_rng(seed)
    at, size = rng.uniform(3, side - 3, (n, 2)), rng.uniform(1.5, 3, n)
    y, x = np.indices((side, side))
    distance = (y - at[:, 0, None, None]) ** 2 + (x - at[:, 1, None, None]) ** 2
    clean = 200 * np.exp(-distance / size[:, None, None] ** 2)
    return np.clip(clean + rng.normal(20, 4, clean.shape), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def folder(place):
    """Images in folders that are their labels; three are odd to look at, and have hostile names."""
    images, labels = blobs(48), ("left", "<i>right</i>".replace("/", "|"))
    for number, image in enumerate(images):
        name = HOSTILE[number] if number < len(HOSTILE) else f"{number:02d}.png"
        target = place / "images" / labels[number % 2] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(255 - image if number < len(HOSTILE) else image).save(target)
    return place / "images"


@pytest.fixture(scope="module")
def model(place, folder):
    found = streampca.fit(folder, n_components=6, memory="64MiB")
    found.save(place / "model.zarr")
    return found


def by_command(place, folder):
    """Return a report that the command made, with all files, in a folder."""
    words = ["-o", folder / "report.html", "--figures", folder / "figures", "--data", folder / "data"]
    succeeded("report", place / "model.zarr", "--labels", "folder", "--memory", "64MiB", "-q", *words)
    return Parsed(folder / "report.html")


@pytest.fixture(scope="module")
def page(place, folder, model):
    """A report of which two figures are drawn, as drawing takes nearly all of its time."""

    def sparing(picture, *how, **more):
        return (figures.drawn if picture.name in DRAWN else not_drawn)(picture, *how, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streampca.plot.report.page.drawn", sparing)
        return by_command(place, place / "page")


@pytest.fixture(scope="module")
def whole_page(place, folder, model):
    """A report of which all figures are drawn."""
    return by_command(place, place / "whole")


# -- the page


@pytest.mark.slow
def test_sections_and_facts(page, folder, model):
    assert page.sections == [*OF_MODEL, *OF_SAMPLES, *PLAIN]
    assert [*figures.NAMES] == [*ORDERED, *OF_SAMPLES, "neighborhoods", "graph"]
    links = [link["href"] for link in page.all("a")]
    assert {link.removeprefix("#") for link in links} == set(page.sections)
    for fact in (
        "Principal components of images", f"{folder}", "48 samples", "12 x 12 (y, x), 144 features", "dual",
        "By North's rule of thumb (sampling error of 48 independent samples)", "variance bound", "64.0 MiB (as asked)",
        "passes over the collection", "n components", "uint8", "the range of the data type", np.__version__,
        model.provenance["fingerprint"],
    ):  # fmt: skip
        assert fact in page.text, fact


def test_first_screen_is_a_sentence_and_the_components(page, model):
    (sentence,) = (text for text in page.by_tag["p"] if text.startswith("6 components hold"))
    assert f"{100 * model.explained_variance_ratio.sum():.3g} % of the variance of 48 samples" in sentence
    assert sentence.endswith(".png.")
    at = [
        page.source.index(part)
        for part in ("<nav", "<h1", 'class="finding"', 'class="trust"', 'id="components"', 'id="scree"', "<dl>")
    ]
    assert at == sorted(at)
    assert "All 6 components are determined to 0.001 degrees" in page.text
    assert page.by_tag["dfn"].count("dual") <= 1, "words are explained once"


@pytest.mark.slow
def test_pictures_are_embedded_and_written(whole_page, place):
    images, files = whole_page.pictures, place / "whole" / "figures"
    assert len(images) == len(OF_MODEL) + len(OF_SAMPLES)
    for image, name in zip(images, [*OF_MODEL, *OF_SAMPLES], strict=True):
        assert len(image["alt"]) > 20
        start, data = image["src"].split(";base64,")
        assert start in ("data:image/png", "data:image/webp")
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data, validate=True))).convert("L"), float)
        assert np.unique(shown).size > 20, f"{name} shows something"
        assert abs(shown.shape[1] / shown.shape[0] - int(image["width"]) / int(image["height"])) < 0.02
        # A point of PDF is 1/72 inch: figures are as wide as one column or two.
        (wide,) = re.findall(rb"/MediaBox \[ ?0 0 ([0-9.]+) ", (files / f"{name}.pdf").read_bytes())
        assert float(wide) / 72 * 25.4 == pytest.approx(90 if name in figures.CHARTS else 180, abs=0.1)
    assert {file.stem for file in (place / "whole" / "data").iterdir()} == {*OF_MODEL, *OF_SAMPLES}


def test_numbers_behind_figures_are_written(page, place, model):
    data = place / "page" / "data"
    with open(data / "scree.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["series"] == "kept"]
    shares = 100 * np.asarray(model.explained_variance_ratio)
    np.testing.assert_allclose([float(row["y"]) for row in rows], shares, rtol=1e-6)
    assert {(row["x name"], row["y name"]) for row in rows} == {("component", "variance (%)")}
    with open(data / "components.csv", newline="") as file:
        first = [row for row in csv.DictReader(file) if row["panel"] == "2"]
    pixels = np.zeros((12, 12))
    for row in first:
        pixels[int(row["y"]), int(row["x"])] = float(row["value"])
    np.testing.assert_allclose(pixels, np.asarray(model.components[0]).reshape(12, 12), rtol=1e-5, atol=1e-7)
    assert {file.stem for file in data.iterdir()} >= DRAWN


def test_page_asks_for_nothing(page):
    """No script but its own, no style sheet, no font, no address of another place."""
    source = re.sub(r"data:image/(png|webp|jpeg);base64,[A-Za-z0-9+/=]+", "DATA", page.source)
    source = re.sub(r'content="default-src[^"]*"', "", source)  # a hash may have two slashes
    assert not re.search(r"https?:|//|url\(|@import|<link|<iframe|<object|<base", source.replace("</", "<"))
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    kinds = [script.get("type") for script in page.all("script")]
    assert kinds == ["application/json", "application/json", None]
    script = page.by_tag["script"][-1]
    assert script == resources.files("streampca.plot.report").joinpath("page.js").read_text("utf-8")
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def test_sliders_hold_the_mean_and_the_components(page, model):
    """What the script adds up is `inverse_transform`, to a small part of a grey level."""
    sliders, points = (json.loads(text) for text in page.by_tag["script"][:2])
    sheet = sheet_of(page, 0)
    halves = sheet.reshape(7, 2, 12, 12).astype(float)
    low, high = np.array(sliders["ends"]).T[:, :, None, None]
    images = low + (256 * halves[:, 0] + halves[:, 1] - 1) / 65534 * (high - low)
    scores = np.array([point["scores"] for point in points["points"]])
    found, expected = images[0] + np.tensordot(scores, images[1:], axes=1), model.inverse_transform(scores)
    ((black, white),) = sliders["limits"]
    assert 255 * np.abs(found - expected).max() / (white - black) < 0.1
    np.testing.assert_allclose(np.square(sliders["deviations"]), model.explained_variance)


def test_points_show_their_samples(page, folder, model):
    points = json.loads(page.by_tag["script"][1])
    raw = streampca.open_collection(folder)
    images = raw.read(slice(0, 48)).reshape(-1, 12, 12)
    scores = np.asarray(model.transform(images))
    assert [point["name"] for point in points["points"]] == [
        readable(os.path.relpath(raw.where(at), folder)) for at in range(48)
    ]
    assert [point["label"] for point in points["points"]] == ["<i>right<|i>"] * 24 + ["left"] * 24
    assert [group["name"] for group in points["groups"]] == ["<i>right<|i>", "left"]
    np.testing.assert_allclose([point["scores"] for point in points["points"]], scores, rtol=1e-4, atol=1e-2)
    (tall, wide), columns, sheet = points["tile"], points["columns"], sheet_of(page, 1).astype(float)
    backs = np.asarray(model.inverse_transform(scores))
    for at, (image, back) in enumerate(zip(images.astype(float), backs, strict=True)):
        top, left = at // columns * 2 * tall, at % columns * wide
        low, high = image.min(), image.max()
        for lower, expected in ((0, image), (tall, back)):
            tile = sheet[top + lower : top + lower + tall, left : left + wide]
            assert np.abs(tile - np.clip(255 * (expected - low) / (high - low), 0, 255)).mean() < 6, "but for JPEG"


def sheet_of(page, number):
    """Pixels of the image of one of the parts that move."""
    sheet = [image["src"] for image in page.all("img") if "width" not in image][number]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet.split(",")[1]))))


def test_dates_stand_for_numbers_of_samples(undrawn, here):
    """A monthly field with a coast: dates name samples and lie under their scores; land is outlined."""
    xarray = pytest.importorskip("xarray")
    rng, times = (
        np.random.default_rng(0),
        np.arange("1980-01", "1985-01", dtype="datetime64[M]").astype("datetime64[ns]"),
    )
    field = rng.standard_normal((60, 9, 14)) + 5 * rng.standard_normal((60, 1, 1)) * np.linspace(-1, 1, 14)
    field[:, 2:5, 3:7] = np.nan
    grid = {"time": times, "lat": np.arange(9.0), "lon": np.arange(14.0)}
    sea = xarray.DataArray(field, grid, ("time", "lat", "lon"), name="sst")
    model = streampca.fit(sea, n_components=2, preparation=Preparation(mask="valid"))
    found = survey(model, streampca.open_collection(sea))
    assert all(re.fullmatch(r"198\d-\d\d-01", sample.name) for sample in found.unusual)
    page = reported(model, collection=sea)
    assert page.sections == [*ORDERED, *OF_SAMPLES, *PLAIN]
    assert json.loads(page.by_tag["script"][1])["points"][13]["name"] == "1981-02-01"
    assert re.search(r"the most unusual is 198\d-\d\d-01\.", page.text)
    assert "sample 3" not in page.text
    series = next(each for each in figures.pictures_of_samples(found) if each.name == "series").draw()
    assert_readable(series)
    np.testing.assert_array_equal(series[0, 1].lines[1].get_xdata(), times)
    np.testing.assert_allclose(series[1, 1].lines[1].get_ydata(), np.asarray(model.transform(sea))[:, 1], rtol=1e-5)
    (coast,) = (each for each in series[0, 0].collections if isinstance(each, LineCollection))
    assert len(coast.get_segments()) == 4
    some = survey(model, streampca.open_collection(sea), examine=16)
    along, scores = some.in_order()
    assert len(along) == 16 + np.isnan(scores[:, 0]).sum() > 16, "gaps between runs"


def series_of(model, rows, **how):
    """Axes of the figure of the scores along the samples, and its sentence."""
    examined = survey(model, streampca.open_collection(rows), **how)
    figure = next(figure for figure in figures.pictures_of_samples(examined) if figure.name == "series")
    return figure.draw()[0, 1].lines[1:], figure.caption


def test_series_invents_nothing_between_samples_that_were_not_examined(undrawn):
    """No segment of the line spans samples that were left out, however many samples a part holds."""
    rows = np.random.default_rng(0).standard_normal((30_000, 3)).astype(np.float32)
    model = streampca.fit(rows, n_components=1)
    (line,), caption = series_of(model, rows, examine=16_000)
    x, y = line.get_data()
    steps = np.diff(x)[~np.isnan(y[1:]) & ~np.isnan(y[:-1])]
    assert np.isnan(y).sum() == 63, "64 runs"
    assert steps.max() <= 250, "the length of a run"
    assert "breaks where samples were not examined" in caption
    (line,), caption = series_of(model, rows)
    assert not np.isnan(line.get_ydata()).any()
    assert "breaks" not in caption


def test_series_shows_extremes_of_samples_that_are_not_drawn_as_dots(undrawn):
    """A budget for few dots hides no oscillation of the period in which they are taken."""
    rows = np.random.default_rng(0).standard_normal((30_000, 3)).astype(np.float32)
    rows[:, 0] = 50 * np.where(np.arange(30_000) % 2, -1, 1)
    model = streampca.fit(rows, n_components=1)
    (line,), _ = series_of(model, rows, memory="64MiB")
    assert np.ptp(line.get_ydata().reshape(-1, 2), axis=1).min() > 95
    scores = np.asarray(model.transform(rows))[:, 0]
    np.testing.assert_allclose(
        [line.get_ydata().min(), line.get_ydata().max()], [scores.min(), scores.max()], rtol=1e-5
    )


def test_samples_out_of_the_order_of_their_axis_are_joined_only_if_they_are_all_drawn(undrawn):
    xarray = pytest.importorskip("xarray")
    rows = np.random.default_rng(0).standard_normal((400, 3))
    times = np.random.default_rng(1).permutation(400).astype(float)
    field = xarray.DataArray(rows, {"depth": times}, ("depth", "x"))
    model = streampca.fit(field, n_components=1)
    (line,), _ = series_of(model, field)
    np.testing.assert_array_equal(line.get_xdata(), np.arange(400))
    (line, dots), _ = series_of(model, field, examine=64)
    assert np.isnan(line.get_ydata()[1::2]).all(), "no segment"
    assert len(dots.get_xdata()) == 64


@pytest.mark.slow
def test_report_of_200_images_is_less_than_2_mb(tmp_path):
    images = blobs(200, side=96)
    write_report(streampca.fit(images, n_components=20), tmp_path / "r.html", collection=images)
    assert (tmp_path / "r.html").stat().st_size < 2_000_000
    sheets = [image["src"] for image in Parsed(tmp_path / "r.html").all("img") if "width" not in image]
    assert len(sheets[0]) < 300_000


@pytest.mark.slow
def test_texts_of_a_figure_as_wide_as_a_column_are_readable(folder, model):
    """At least 6 points, none cut or covered."""
    found = survey(model, streampca.open_collection(folder), memory="64MiB")
    for picture in (
        *figures.pictures_of_model(model, model, model.compression(), None),
        *figures.pictures_of_samples(found),
    ):
        axes = picture.draw()
        encode(axes, io.BytesIO(), "svg", figures.FigureForm("svg", 85).inches(picture.name))
        assert_readable(axes)
        assert min(text.get_fontsize() for text in texts_of(figure_of(axes))) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5, 2, 9, 9), (8, 90)])
def test_no_text_of_a_figure_is_cut(shape):
    """Titles of samples of several pictures, and of wide ones, stay within their figures, and cover no other text."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((40, 4)) @ rng.standard_normal((4, int(np.prod(shape))))).reshape(40, *shape)
    model = streampca.fit(x + rng.standard_normal(x.shape), n_components=6)
    found = survey(model, streampca.open_collection(x))
    for picture in (
        *figures.pictures_of_model(model, model, model.compression(), None),
        *figures.pictures_of_samples(found),
    ):
        assert_readable(picture.draw())


def test_names_cannot_inject(page):
    assert set(page.tags) <= TAGS
    assert {name for _, attributes in page.attributes for name in attributes} <= ATTRIBUTES
    # Figures that are not drawn have no type.
    assert all(re.match(r"data:(image/(png|webp|jpeg))?;base64,", image["src"]) for image in page.all("img"))
    assert "<" not in "".join(page.by_tag["script"][:2]), "names are text in JSON, too"
    assert all(link["href"].startswith("#") for link in page.all("a"))
    cells = page.by_tag["td"]
    for name in HOSTILE:
        (cell,) = (cell for cell in cells if cell.endswith(readable(name)))
        assert "49" not in cell, "text is not run as a template"
    assert "<i>right<|i>" in cells


def test_direction_and_control_characters_are_written_out():
    assert readable("a\u202eb\x00\udcff\n<>") == "a\\u202eb\\x00\\udcff\\n<>"


def test_short_times_are_some_time():
    assert [format_seconds(seconds) for seconds in (0, 0.04, 0.4, 12)] == ["0.001 s", "0.04 s", "0.4 s", "12 s"]


def test_unusual_samples_are_measured_exactly(folder, model):
    """They have the largest T2 and, among the others, the largest errors, as the model's own methods compute them."""
    raw = streampca.open_collection(folder)
    rows = raw.read(slice(0, 48)).reshape(-1, 12, 12)
    errors, scores = model.reconstruction_error(rows), model.transform(rows).astype(np.float64)
    t2 = (scores**2 / model.explained_variance).sum(axis=1)
    found = survey(model, raw, memory="64MiB")
    by_error = [sample for sample in found.unusual if sample.by == "SPE"]
    assert {sample.position for sample in found.unusual if sample.by == "T2"} == set(np.argsort(-t2)[:4].tolist())
    for sample in found.unusual:
        np.testing.assert_allclose((sample.t2, sample.spe), (t2[sample.position], errors[sample.position]), rtol=1e-4)
    left = [at for at in np.argsort(-errors) if at not in set(np.argsort(-t2)[:4].tolist())]
    assert [sample.position for sample in by_error] == left[:4]
    np.testing.assert_allclose(found.t2, t2, rtol=1e-4)
    np.testing.assert_allclose(found.spe, errors, rtol=1e-4)


def test_components_that_are_rounding_count_in_no_measure(undrawn):
    """The last variance is far below what float32 scores tell: the page says what the model says."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((60, 6)) * [9, 7, 5, 3, 1, 1e-4] + 100).astype(np.float32)
    model = streampca.fit(rows, n_components=6)
    model = replace(model, components=np.float32(model.components))
    assert 1e-12 < model.explained_variance[-1] / model.explained_variance[0] < 1e-7
    found, t2 = survey(model, streampca.open_collection(rows)), np.asarray(model.hotelling_t2(rows))
    np.testing.assert_allclose(found.t2, t2, rtol=1e-4)
    for sample in found.unusual:
        np.testing.assert_allclose(sample.t2, t2[sample.position], rtol=1e-4)


def test_samples_are_read_as_they_are_drawn(folder, model):
    found = survey(model, streampca.open_collection(folder), memory="64MiB")
    assert [each.name for each in figures.pictures_of_samples(replace(found, samples=None))] == ["series", *OF_SAMPLES]


def test_every_dot_is_drawn_once(folder, model, monkeypatch):
    """Some unusual samples are among the dots drawn, and the others are added to them."""
    found = survey(model, streampca.open_collection(folder), memory="64MiB")
    drawn = []
    monkeypatch.setattr(figures.plot, "outliers", lambda model, t2, spe, **how: drawn.append((t2, spe, how["marked"])))
    some = replace(found, places=range(0, 48, 2), t2=found.t2[::2], spe=found.spe[::2])
    others = sum(sample.position % 2 for sample in found.unusual)
    assert 0 < others < len(found.unusual)
    for survey_, count in ((found, 48), (some, 24 + others)):
        next(each for each in figures.pictures_of_samples(survey_) if each.name == "outliers").draw()
        t2, spe, marked = drawn.pop()
        assert len(t2) == len(spe) == count
        for row, sample in zip(marked, found.unusual, strict=True):
            np.testing.assert_allclose((t2[row], spe[row]), (sample.t2, sample.spe))


def test_what_was_drawn_is_let_go(model):
    planned = next(figures.pictures_of_model(model, model, model.compression(), None))
    first = figures.drawn(planned, figures.FigureForm("png"))
    assert not hasattr(first, "draw")


# -- which samples


@given(st.integers(1, 5000), st.integers(1, 700), st.integers(1, 5000))
def test_examined_samples_are_spread(n, chunk, count):
    places = np.asarray(places_in(runs_spread(n, chunk, count), n))
    assert 0 < len(places) <= max(count, 1)
    assert np.all(np.diff(places) > 0)
    assert places[0] >= 0
    assert places[-1] < n
    if count >= n:
        assert len(places) == n
    elif count // chunk >= FEWEST_RUNS:
        assert set(places // chunk) >= {0, (n - 1) // chunk}, "the first and the last chunk"
        assert len(places) > count / 4
        _, sizes = np.unique(places[places < n // chunk * chunk] // chunk, return_counts=True)
        assert np.all(sizes == chunk), "whole chunks"


def test_whole_chunks_are_taken():
    places = np.asarray(places_in(runs_spread(100_000, 100, 5_000), 100_000))
    assert len(places) == 5_000
    assert np.array_equal(np.unique(places // 100, return_counts=True)[1], np.full(50, 100))


def test_sampling_is_stated(undrawn, tmp_path):
    images = blobs(600)
    found = streampca.fit(images, n_components=3)
    events = []
    write_report(found, tmp_path / "r.html", collection=images, examine=50, memory="64MiB", listener=events.append)
    assert "50 of 600 samples, spread evenly over the collection" in Parsed(tmp_path / "r.html").text
    (warned,) = (event.message for event in events if isinstance(event, Warned))
    assert warned.startswith("Examined are 50 of 600 samples")
    assert warned in Parsed(tmp_path / "r.html").text
    assert sum(event.samples for event in events if isinstance(event, BlockDone)) == 50
    assert [event.samples for event in events if isinstance(event, PassStarted)] == [50]
    assert sum(isinstance(event, Drawing) for event in events) == 10


def test_stream_is_decoded_few_times(undrawn, tmp_path, monkeypatch):
    """Forty samples are read out of a stream that only runs forward: once for all of them."""
    images = blobs(2000)
    path = tmp_path / "images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBIII", 0, 8, 3, *images.shape) + images.tobytes()))
    found = streampca.fit(path, n_components=4)
    opened = []
    unzipped = idx.unzipped
    for module in (idx, flat):
        monkeypatch.setattr(module, "unzipped", lambda path: opened.append(path) or unzipped(path))
    write_report(found, tmp_path / "r.html", memory="64MiB")
    headers = 2  # is it IDX, and what is in it
    assert len(opened) <= headers + 2


# -- without the collection


def test_what_a_model_shows_by_itself(tmp_path):
    """Nothing but the model: what needs no samples is drawn, as SVG if asked, and one line says what is left out."""
    np.save(tmp_path / "x.npy", blobs(60))
    streampca.fit(tmp_path / "x.npy", n_components=1, output=tmp_path / "model.zarr")
    os.remove(tmp_path / "x.npy")
    words = ("-o", tmp_path / "r.html", "--figures", tmp_path / "p", "--figure-format", "svg")
    said = typed("report", tmp_path / "model.zarr", *words, "-q")
    assert said.code == 0
    assert "warning: Left out are samples" in said.err
    page, pictures = Parsed(tmp_path / "r.html"), OF_MODEL[:3]  # sizes at one number of components are no curve
    assert page.sections == [*pictures, *PLAIN]
    (note,) = (text for text in page.by_tag["p"] if text.startswith("Left out"))
    assert "x.npy does not exist" in note
    assert "x.npy does not exist" in said.err
    assert sorted(os.listdir(tmp_path / "p")) == sorted(f"{name}.svg" for name in pictures)
    assert said.out.count("wrote ") == 4
    for name in pictures:
        assert b"<svg" in (tmp_path / "p" / f"{name}.svg").read_bytes()
    assert b"component</text>" in (tmp_path / "p" / "scree.svg").read_bytes(), "text stays text"


def reported(model, **how):
    """Write a report into the working folder and return its page."""
    write_report(model, "r.html", overwrite=True, **how)
    return Parsed("r.html")


def test_one_model_has_the_same_figures_at_every_door(undrawn, here):
    """PSNR by one peak, which is printed, and one bound of each variance: 12 bits of a camera in 16."""
    np.save("x.npy", blobs(60).astype(np.uint16) * 16)
    succeeded("fit", "x.npy", "-k", 3, "-o", "m.zarr", "-q")
    said = succeeded("reconstruct", "m.zarr", "x.npy", "-o", "y.npy")
    psnr = re.search(r"PSNR (\S+ dB) \(peak 65535\)", said)[1]
    page = reported(streampca.load("m.zarr"))
    assert f"{psnr}" in page.text
    assert "compares RMSE, the error, with the peak, 65535" in page.text
    bounds = json.loads(succeeded("inspect", "m.zarr", "--json"))["error_bound"]
    cells = [line.split()[3] for line in succeeded("inspect", "m.zarr").splitlines()[2:5]]
    assert cells == [bound_text(bound) for bound in bounds]
    assert cells[0] in page.by_tag["td"]


@pytest.mark.parametrize("kind", [streampca.PCA(3), streampca.KernelPCA(3)], ids=["pca", "kernel-pca"])
def test_changed_collection_is_not_taken_for_the_one_fitted(undrawn, here, kind):
    np.save("x.npy", blobs(60))
    found = streampca.fit("x.npy", kind)
    assert "Left out" not in reported(found).text
    np.save("x.npy", blobs(60, seed=1))
    os.utime("x.npy", (1, 1))
    assert "has changed since the fit" in reported(found).text
    assert "Left out" not in reported(found, collection="x.npy").text, "where it is named, it is used"


def test_array_of_a_file_is_found_again(undrawn, here):
    np.savez("x.npz", first=blobs(40), other=blobs(50, seed=1))
    assert "50 samples" in reported(streampca.fit("x.npz", key="other", n_components=3)).text


def test_arrays_in_memory_are_not_looked_for_as_paths(undrawn, here):
    text = reported(streampca.fit(blobs(60), n_components=3)).text
    assert "the model was fitted on numpy array, which cannot be opened again by itself" in text
    assert "does not exist" not in text


def test_choices_that_a_model_does_not_keep_are_asked_for(undrawn, here):
    """Long lists are not kept: the report says which option to give, and giving it is enough."""
    np.save("x.npy", blobs(1500)[:, :4, :4])
    places = np.delete(np.arange(1500), 7)
    found = streampca.fit("x.npy", samples=places, n_components=3)
    assert "it was opened with samples that a model does not keep" in reported(found).text
    assert "Left out" not in reported(found, samples=places).text


@pytest.mark.parametrize("words", [
    ("x.npy", "--labels", "labels.csv:kind", "--where", "label=1"),
    ("x.npy", "--labels", "labels.npy", "--samples", "0:60:2"),
    ("z.npy", "--select", "1=0", "--sample-axes", "2,3", "--patches", "6x6/3x3"),
    ("scans", "--on-bad-file", "skip", "--labels", "folder"),
    ("scans/a/0.png", "scans/a/1.png", *(f"scans/b/{number}.png" for number in range(26)), "--grey"),
], ids=lambda words: " ".join(words[:4]))  # fmt: skip
def test_a_collection_is_opened_as_it_was_for_the_fit(undrawn, here, words):
    """How it was opened is part of the model, so that a report has every picture."""
    images = blobs(60)
    np.save("x.npy", images)
    np.save("z.npy", np.stack([images, images[::-1]], axis=1))
    np.save("labels.npy", np.arange(60) % 3)
    Path("labels.csv").write_text("\n".join(["kind", *(str(at % 2) for at in range(60))]))
    for number, image in enumerate(images[:54]):
        path = Path("scans", "ab"[number % 2], f"{number // 2}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.repeat(image[:, :, None], 3, axis=2)).save(path)
    Path("scans/a/broken.png").write_bytes(Path("scans/a/0.png").read_bytes()[:90])
    succeeded("fit", *words, "-k", 3, "--memory", "64MiB", "-o", "m.zarr", "-q")
    succeeded("report", "m.zarr", "-o", "r.html", "--memory", "64MiB", "-q")
    page = Parsed("r.html")
    assert "Left out" not in page.text
    assert page.sections == [*(OF_MODEL if "--labels" in words else ORDERED), *OF_SAMPLES, *PLAIN]


@pytest.mark.parametrize("how", [{"kind": "kernel-pca"}, {}], ids=["kernel-pca", "rows"])
def test_pages_on_which_nothing_moves_say_so(undrawn, here, how):
    """Sums of a mean and components are no images of kernel PCA, and rows of numbers are none at all."""
    images = blobs(60) if how else blobs(60).reshape(60, -1)
    np.save("x.npy", images)
    page = reported(by_options.fit("x.npy", n_components=3, **how))
    assert "This page has no sliders" in page.text
    assert "sliders" not in {widget.get("id") for widget in page.all("div")}


def test_single_component_and_all_of_them(undrawn, here):
    """One component has no quantiles; where nothing is left out, errors say nothing, and are not told."""
    images = blobs(60)[:, 4:6, 4:6]
    some = ["reconstructions", "scores"]
    for k, sections in ((1, [*some, "outliers", "unusual"]), (4, [*some, "quantiles", "unusual"])):
        page = reported(streampca.fit(images, n_components=k), collection=images)
        assert page.sections == [*ORDERED[: 4 if k == 1 else 5], *sections, *PLAIN]
        assert ("squared error" in page.text) == (k == 1)


def test_values_that_give_an_axis_no_limits(model):
    """Measures of one sample, taken twice, are the same but for rounding; labels may be missing or infinite."""
    same = np.array([3.0, 3.0 * (1 + 1e-15)])
    figures.plot.outliers(model, same, same, marked=[0, 1]).figure.canvas.draw()
    labels = np.array([0.5, np.nan, np.inf])
    coloured = figures.plot.scores(model, np.eye(3), labels).collections[0]
    assert coloured.get_array().count() == 1


# -- places, budgets, interruptions


def test_bad_places(undrawn, place, folder, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there.html").write_text("mine")
    Path("file").touch()
    bad = {
        ("-o", "there.html"): "there.html exists already",
        ("-o", tmp_path): "is a folder",
        ("-o", "r.html", "--figures", "file"): "file is not a folder",
        ("-o", "r.html", "--figures", folder / "more", "--figure-format", "png"): "would become part of the collection",
        ("-o", "file/r.html"): "not a folder",
        ("-o", "r.html", "--collection", "nothing.npy"): "nothing.npy does not exist",
        ("-o", "r.html", "--labels", "nothing.npy"): "column nothing.npy does not exist",
        ("-o", "r.html", "--memory", "1MiB"): "Set memory to at least",
    }
    for words, problem in bad.items():
        said = typed("report", place / "model.zarr", *words, "-q")
        assert problem in said.complaint
        assert said.code == (2 if "part of" in problem else 1)
        assert sorted(os.listdir()) == ["file", "there.html"]
    assert "--examine '0'" in typed("report", place / "model.zarr", "-o", "r.html", "--examine", "0").complaint
    with pytest.raises(RequestError, match="figure format 'gif'"):
        write_report(place / "model.zarr", "r.html", figure_format="gif")
    with pytest.raises(RequestError, match=r"^figure_width=20 is not a width from 60 to 400 mm; give for example 90"):
        write_report(place / "model.zarr", "r.html", figure_width=20)
    with pytest.raises(ModelError, match="fitted on samples of 12 x 12"):
        write_report(place / "model.zarr", "r.html", collection=blobs(5, side=9))
    succeeded("report", place / "model.zarr", "-o", "there.html", "--overwrite", "-q")
    assert "Principal components" in Parsed("there.html").text


def test_remedy_for_memory_works(undrawn, model, folder, tmp_path):
    with pytest.raises(BudgetError) as refusal:
        write_report(model, tmp_path / "r.html", memory="4MiB")
    least = re.search(r"at least (\w+)\.", str(refusal.value))[1]
    write_report(model, tmp_path / "r.html", memory=least)


@pytest.fixture
def sources(here):
    """The same samples as arrays in files, as image files, and as a list of these."""
    images = blobs(20)
    os.mkdir("scans")
    for number, image in enumerate(images):
        Image.fromarray(image).save(f"scans/{number}.png")
    np.save("x.npy", images)
    with h5py.File("x.h5", "w") as file:
        file["x"], file["other"] = images, images[:, :5]
    Path("list.txt").write_text("".join(f"scans/{number}.png\n" for number in range(20)))


@pytest.mark.parametrize(("source", "page", "pictures", "named"), [
    ("x.npy", "x.npy", None, False),
    ("x.h5", "x.h5", None, False),
    ("x.h5", "x.h5", None, True),
    ("scans/*.png", "scans/3.png", None, True),
    ("scans/*.png", "r.html", "scans", False),
    ("@list.txt", "list.txt", None, False),
    ("@list.txt", "scans/3.png", None, True),
])  # fmt: skip
def test_samples_are_not_overwritten(undrawn, sources, source, page, pictures, named):
    """Neither by the page nor by pictures, which would be taken for samples the next time."""
    options = {"key": "x"} if source == "x.h5" else {}
    model = by_options.fit(source, n_components=2, **options)
    there = sorted(os.listdir()), sorted(os.listdir("scans"))
    if named:
        options["collection"] = source
    with pytest.raises(RequestError, match=r"is what the run reads|would become part of the collection"):
        write_report(model, page, figures=pictures, figure_format="png", overwrite=True, **options)
    assert (sorted(os.listdir()), sorted(os.listdir("scans"))) == there
    write_report(model, "elsewhere.html", figures="elsewhere", **options)
    assert "Left out" not in Parsed("elsewhere.html").text


def test_pictures_in_the_way_are_found_before_anything_is_computed(model, folder, tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "unusual.pdf").write_text("mine")
    events = []
    with pytest.raises(OutputError, match=r"unusual\.pdf exists already"):
        write_report(model, tmp_path / "r.html", figures=tmp_path / "p", collection=folder, listener=events.append)
    assert events == []


def test_interrupted_report_leaves_what_was_there(model, tmp_path, monkeypatch):
    """Ctrl-C while pictures are drawn: no half page, no pictures, and the old page stays."""
    (tmp_path / "r.html").write_text("old")

    def interrupted(picture, form, **how):
        if picture.name == "walks":
            raise KeyboardInterrupt
        return figures.DrawnFigure(picture.name, picture.title, picture.caption, picture.alt, b"", form.kind, 1, 1)

    monkeypatch.setattr("streampca.plot.report.page.drawn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(model, tmp_path / "r.html", figures=tmp_path / "p", overwrite=True)
    assert os.listdir(tmp_path) == ["r.html"]
    assert (tmp_path / "r.html").read_text() == "old"


def test_examples_are_of_different_seasons():
    for years, count in ((10, 4), (50, 4), (30, 8)):
        found = _spread(12 * years, count)
        np.testing.assert_array_equal(np.asarray(found) * count // (12 * years), np.arange(count))
        assert len({month % 12 for month in found}) > count // 2
    assert list(_spread(3, 4)) == [0, 1, 2]
