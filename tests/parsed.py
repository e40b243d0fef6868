"""A page of HTML as a browser would parse it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path


class Parsed(HTMLParser):
    """Elements of a page, every one of them closed, and its text by the element it is in."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.open = [], [], []
        self.text, self.by_tag = "", {}
        self.source = page if isinstance(page, str) and page.startswith("<") else Path(page).read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attributes)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.by_tag.setdefault(self.open[-1] if self.open else "", []).append(data)
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.attributes if name == tag]

    @property
    def pictures(self):
        """Figures of the sections: images with a size, which the sheets of what moves have not."""
        return [image for image in self.all("img") if "width" in image]

    @property
    def sections(self):
        return [section["id"] for section in self.all("section")]
