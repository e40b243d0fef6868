"""Views of models, plans and collections in notebooks: facts and pictures, escaped and bounded, without reading."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from parsed import Parsed
from pictured import fitted
from PIL import Image
from rich.console import Console

import streampca
from streampca.cli.terminal.tables import print_fit
from streampca.errors import worded
from streampca.models.load import load_model
from streampca.models.notebook import png_of, thumbnails_of
from streampca.readers.stored.array import ArrayCollection
from streampca.storage.coordinate import Coordinate

TAGS = {"div", "style", "strong", "table", "thead", "tbody", "tr", "th", "td", "figure", "img", "figcaption"}
NASTY = "<script>alert('x')</script>&\"'.npy"


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (60, 130, 200), dtype=np.uint8)


@pytest.fixture(scope="module")
def model(images, tmp_path_factory):
    path = tmp_path_factory.mktemp("n") / NASTY.replace("/", "_")
    np.save(path, images)
    return streampca.fit(path, n_components=12, memory="256MiB")


def pictures_of(page):
    sources = [attrs["src"] for attrs in page.all("img")]
    prefix = "data:image/png;base64,"
    assert all(source.startswith(prefix) for source in sources)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(source.removeprefix(prefix))))) for source in sources]


def test_a_model_shows_itself(model):
    html = model._repr_html_()
    page = Parsed(html)
    assert len(html) < 300_000, "noise of 200 x 130 pixels, which compresses least"
    for fact in ("60 samples of 130 x 200 (y, x)", "26000", "dual", "and 4 more"):
        assert fact in page.text
    cells = page.by_tag["td"]
    assert cells[cells.index("1") + 1] == f"{100 * model.explained_variance_ratio[0]:.2f}"
    mean, *components = pictures_of(page)
    assert len(components) == 6
    assert max(mean.shape[:2]) <= 96
    assert mean.std() > 0


def test_nothing_in_a_file_can_inject_anything(model, tmp_path):
    for shown in (model, streampca.open_collection(model.provenance["source"])):
        html = shown._repr_html_()
        page = Parsed(html)
        assert "<script" not in html
        assert "alert('x')" in page.text, "shown as it is"
        assert set(page.tags) <= TAGS
        assert not re.search(r"\bon\w+=|https?://|url\(|@import", html)
        assert not re.search(
            r"color:(?!inherit)", re.sub(r"border[^;}]*", "", html).replace("background:transparent", "")
        )


def test_names_cannot_turn_the_view_around(images):
    """Unprintable characters are escaped, as a change of direction would reorder all text after it."""
    found = streampca.open_collection(images)
    found.source = "scans\u202egnp.exe\udcff\x07"
    page = Parsed(found._repr_html_())
    assert "scans\\u202egnp.exe\\udcff\\x07" in page.text


def test_provenance_may_be_empty(model):
    bare = replace(model, provenance=dict.fromkeys(model.provenance))
    assert "60 samples of 130 x 200" in Parsed(bare._repr_html_()).text
    console = Console(file=io.StringIO())
    print_fit(console, bare, None, ())
    assert "skipped" not in console.file.getvalue()


def test_components_on_disk_are_not_read(model, tmp_path, monkeypatch):
    model.save(tmp_path / "m.zarr")
    stored = load_model(tmp_path / "m.zarr", memory="1B")
    monkeypatch.setattr(type(stored.components), "__getitem__", None)
    page = Parsed(stored._repr_html_())
    assert "on disk, in" in page.text
    assert len(pictures_of(page)) == 1, "the mean"


def test_a_plan_shows_what_it_takes_and_why(images):
    plan = streampca.plan(images, n_components=5, memory="256MiB")
    page = Parsed(plan._repr_html_())
    for name, reason in plan.rejected:
        assert worded(f"{name}: {reason}") in page.text
    for name, _ in plan.memory_estimate.largest.items:
        assert page.text.count(name) == 1, "and in no line beside the table"


def test_a_collection_is_not_read(images, monkeypatch, tmp_path):
    np.save(tmp_path / "x.npy", images)
    found = streampca.open_collection(tmp_path / "x.npy")
    monkeypatch.setattr(ArrayCollection, "read", None)
    page = Parsed(found._repr_html_())
    for fact in (str(tmp_path / "x.npy"), "60 of 130 x 200", "uint8, 26000 features a sample"):
        assert fact in page.text


@pytest.mark.parametrize("shape", [(9,), (12, 7), (12, 7, 3), (4, 12, 7), (12, 7, 5)])
def test_samples_of_any_axes_have_a_view(shape):
    x = np.random.default_rng(1).normal(size=(20, *shape))
    page = Parsed(streampca.fit(x, n_components=2, memory="64MiB")._repr_html_())
    assert len(pictures_of(page)) == (0 if len(shape) == 1 else 3)


def test_colours_have_signs_and_what_is_unknown_is_blank():
    image = np.array([[-2.0, 0.0, 1.0], [np.nan, 2.0, -1.0]])
    found = np.asarray(Image.open(io.BytesIO(png_of(image, signed=True))))
    np.testing.assert_array_equal(found[..., 3], [[255, 255, 255], [0, 255, 255]])
    blue, red = found[0, 0], found[1, 1]
    assert blue[2] > blue[0]
    assert red[0] > red[2]
    assert found[0, 1, :3].min() > 240, "zero is white"
    grey = np.asarray(Image.open(io.BytesIO(png_of(image))))
    assert (grey[..., 0] == grey[..., 2]).all()


@pytest.mark.parametrize("dims", [("lat", "lon"), ("lon", "lat")])
@pytest.mark.parametrize("order", [1, -1])
def test_north_is_up_and_east_to_the_right(dims, order):
    """Views are the pictures of reports, and undo the scale as these do."""
    axes = {"lat": Coordinate(np.array([-30.0, 0.0, 30.0])[::order]), "lon": Coordinate(np.array([0.0, 90.0]))}
    rows = np.random.default_rng(0).normal(size=(20, 3, 2)) + np.arange(6.0).reshape(3, 2)[::order] * 100
    scale = np.array([0.1, 1.0, 0.1])[:, None].repeat(2, 1)
    rows, scale = (rows, scale) if dims[0] == "lat" else (rows.swapaxes(1, 2), scale.T)
    model = fitted(rows, 1, streampca.Preparation(scale=scale), dims=dims, coordinates=axes)
    mean = np.asarray(Image.open(io.BytesIO(dict(thumbnails_of(model))["mean"])))[..., 0]
    np.testing.assert_allclose(mean, [[204, 255], [102, 153], [0, 51]], atol=2)
