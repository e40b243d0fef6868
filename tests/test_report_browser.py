"""Reports as a browser shows them: what moves, what is said, and that no text is cut."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, browser
from PIL import Image
from test_report import blobs

import streampca
from streampca.plot.report import write_report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]

PIXELS = """(() => {
  const canvas = document.querySelector(".stage canvas");
  const bytes = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return [...bytes].filter((_, at) => at % 4 == 0);
})()"""
AXE = Path(os.environ.get("AXE", "node_modules/axe-core/axe.min.js"))  # https://github.com/dequelabs/axe-core
VIOLATIONS = "axe.run().then(({ violations }) => violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`))"
SMALL = """[...document.querySelectorAll("body *")].filter((element) =>
  [...element.childNodes].some((node) => node.nodeType == 3 && node.data.trim()) &&
  element.checkVisibility() && parseFloat(getComputedStyle(element).fontSize) < 12
).map((element) => element.outerHTML)"""
NARROW = """[...document.querySelectorAll(".picture")].filter((picture) => picture.checkVisibility() &&
  picture.querySelector("img").clientWidth < parseFloat(picture.style.getPropertyValue("--least")) - 1
).map((picture) => picture.closest("section").id)"""
SHARES = """[...document.querySelectorAll(".pan img:not(.over)")].filter((image) => image.checkVisibility()).map(
  (image) => [image.closest("section").id, image.clientWidth / image.getAttribute("width")]
)"""
STARTED = """new Promise((done) => {
  const look = () => (document.getElementById("ID").hidden ? setTimeout(look) : done());
  look();
})"""
CUT = """(() => {
  const cut = [], wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) cut.push("the page scrolls sideways");
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode, range = document.createRange();
    if (!text.data.trim() || !text.parentElement.checkVisibility()) continue;
    range.selectNodeContents(text);
    for (const box of range.getClientRects())
      for (let holder = text.parentElement; holder !== document.body; holder = holder.parentElement) {
        const style = getComputedStyle(holder), own = holder.getBoundingClientRect();
        if (/auto|scroll/.test(style.overflowX)) break;
        if (style.display != "inline" && (box.right > own.right + 1.5 || box.left < own.left - 1.5)) {
          cut.push(text.data.trim());
          break;
        }
      }
  }
  return cut;
})()"""


@pytest.fixture(scope="module")
def images():
    return blobs(120, side=20)


@pytest.fixture(scope="module")
def model(images):
    return streampca.fit(images, n_components=10)


@pytest.fixture(scope="module")
def tab(images, model, tmp_path_factory):
    """The page of a report, of images that are in folders by their number modulo 3."""
    place = tmp_path_factory.mktemp("browser")
    for number, image in enumerate(images):
        path = place / "images" / "abc"[number % 3] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    write_report(model, place / "r.html", collection=place / "images", labels="folder")
    with browser(place / "profile") as tab:
        tab.place = place / "r.html"
        yield tab


def test_canvas_is_inverse_transform(tab, model):
    tab.open(tab.place)
    tab.run(STARTED.replace("ID", "sliders"))
    sheet = tab.run("JSON.parse(document.querySelector('#sliders script').textContent)")
    ((black, white),) = sheet["limits"]
    for seed in range(4):
        steps = np.random.default_rng(seed).uniform(-3, 3, 8)
        for number, step in enumerate(steps, start=1):
            slider = f"document.getElementById('slider-{number}')"
            tab.run(f"{slider}.value = {step}, {slider}.dispatchEvent(new Event('input')), 0")
        found = np.array(
            tab.run(f"(() => {{ const c = document.querySelector('.stage canvas'); return {PIXELS}; }})()")
        )
        scores = np.zeros((1, 10))
        scores[0, :8] = steps * np.sqrt(model.explained_variance[:8])
        levels = 255 * (np.asarray(model.inverse_transform(scores)).ravel() - black) / (white - black)
        assert np.abs(found - np.clip(levels, 0, 255)).max() <= 1


def test_points_show_their_samples(tab):
    tab.open(tab.place)
    tab.run(STARTED.replace("ID", "points"))
    points = tab.run("JSON.parse(document.querySelector('#points script').textContent).points")
    shown = "document.querySelector('#points .name').textContent"
    for point in points[:: len(points) // 20]:
        label = f"{point['name']}, label {point['label']}"
        box = tab.run(
            f"""(() => {{
              const dot = document.querySelector('#points circle[aria-label="{label}"]');
              dot.scrollIntoView({{ block: "center", behavior: "instant" }});
              const box = dot.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        tab.point(*box)
        assert tab.run(shown) == point["name"]
    tab.run("document.querySelector('#points circle[tabindex=\"0\"]').focus()")
    before = tab.run(shown)
    tab.press("ArrowRight")
    after = tab.run(shown)
    assert after != before
    assert tab.run("document.activeElement.getAttribute('aria-label')").startswith(after)
    tab.press("Enter")
    chosen = tab.run("document.querySelector('#sliders select').selectedOptions[0].textContent")
    assert chosen == after, "its scores are on the sliders"
    tab.press("ArrowLeft")
    assert tab.run(shown) == before


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_cut_or_complained_of(tab, width, dark):
    tab.open(tab.place, width, dark)
    tab.run(STARTED.replace("ID", "points"))
    assert tab.run(CUT) == []
    assert tab.messages == []
    paper = tab.run("getComputedStyle(document.documentElement).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (not dark)


def test_pictures_open_by_a_click(tab):
    tab.open(tab.place)
    tab.run("document.querySelector('figure img').click()")
    assert tab.run("document.querySelector('dialog').open")
    assert tab.run("document.querySelector('dialog img').width > document.querySelector('figure img').width")
    tab.run("document.querySelector('dialog').click()")
    assert not tab.run("document.querySelector('dialog').open")


@pytest.mark.parametrize("width", [1440, 900, 400])
def test_texts_are_large_enough_and_the_contents_are_there(tab, width):
    tab.open(tab.place, width)
    tab.run(STARTED.replace("ID", "points"))
    assert tab.run(SMALL) == []
    # The smallest texts of both have 8 points, at 112 pixels to the inch of charts, and 140 of others.
    shares = dict(tab.run(SHARES))
    assert min(shares["scree"] * 8 * 112 / 72, shares["components"] * 8 * 140 / 72) > 11.9
    assert tab.run(NARROW) == []
    assert tab.run("document.querySelector('nav details').open") == (width > 1200), "folded where it is not at the side"
    assert not tab.run("document.querySelector('figure.still').checkVisibility()"), "the points that move replace it"
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.run("document.querySelector('figure.still').checkVisibility()")
    tab.call("Emulation.setEmulatedMedia", media="")


def test_axes_of_the_scatter_can_be_chosen(tab):
    tab.open(tab.place)
    tab.run(STARTED.replace("ID", "points"))
    points = tab.run("JSON.parse(document.querySelector('#points script').textContent).points")
    axis = "document.getElementById('axis-0')"
    tab.run(f"{axis}.value = 3, {axis}.dispatchEvent(new Event('change')), 0")
    dots = "[...document.querySelectorAll('#points circle')]"
    named = f"{dots}.map((dot) => [dot.getAttribute('aria-label'), dot.cx.baseVal.value])"
    across = {name.rpartition(", label ")[0]: at for name, at in tab.run(named)}
    scores = np.array([point["scores"][3] for point in points])
    places = np.array([across[point["name"]] for point in points])
    assert np.corrcoef(scores, places)[0, 1] > 1 - 1e-6


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm install axe-core, or its path in AXE")
@pytest.mark.parametrize("width", [1440, 400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_is_accessible(tab, width, dark):
    tab.open(tab.place, width, dark)
    tab.run(STARTED.replace("ID", "points"))
    tab.run(f"{AXE.read_text('utf-8')}; 0")
    assert tab.run(VIOLATIONS) == []
