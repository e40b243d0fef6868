"""Rules by which the tags of image files are followed, and their record in a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import ModelError
from .collection import Collection


class TagRules(NamedTuple):
    """Tags of image files that are followed.

    Attributes
    ----------
    orientation : bool
        Whether an image is turned by its orientation tag (Exif, TIFF).
    """

    orientation: bool = True

    def record(self) -> dict[str, str]:
        """Return plain data for a model's provenance; the inverse of `of`."""
        return {"orientation": "applied" if self.orientation else "kept"}

    @classmethod
    def of(cls, record: Mapping[str, str]) -> TagRules:
        """Return the reading that a record describes."""
        return cls(record["orientation"] == "applied")

    def __str__(self) -> str:
        return "turned by their orientation tags" if self.orientation else "with orientation tags left alone"


def check_reading(collection: Collection, provenance: Mapping[str, Any], model: str) -> None:
    """Refuse a collection of image files that follows other tags than the files a model was fitted on."""
    fitted = fitted_reading(provenance)
    if fitted is None or collection.reading is None or (reading := TagRules.of(collection.reading)) == fitted:
        return
    raise ModelError(
        f"images of {collection.source} are {reading}, and those that {model} was fitted on were {fitted}; give the "
        "path of the images, or open them with like=model, and leave out --keep-orientation (keep_orientation)."
    )


def fitted_reading(provenance: Mapping[str, Any]) -> TagRules | None:
    """Return the rules by which the image files of a fit were read; None if there were none."""
    record = provenance.get("reading")
    return None if record is None else TagRules.of(record)
