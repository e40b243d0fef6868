"""Rules by which the tags of image files are followed, and their record in a model.

Models fitted by versions that followed fewer tags are applied to files as these were read then.
"""

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
        Whether an image is turned as its orientation tag says (Exif, TIFF).
    values : bool
        Whether the values of a TIFF page are those its tags give the stored numbers: black is the lowest even if stored
        as the highest, less than 8 bits are scaled to 8, and numbers that stand for no value are NaN.
    """

    orientation: bool = True
    values: bool = True

    def record(self) -> dict[str, str]:
        """Return plain data for a model's provenance; the inverse of `of`."""
        return {
            "orientation": "applied" if self.orientation else "kept",
            "values": "as tagged" if self.values else "as stored",
        }

    @classmethod
    def of(cls, record: Mapping[str, str]) -> TagRules:
        """Return the reading that a record describes."""
        return cls(record["orientation"] == "applied", record["values"] == "as tagged")

    def __str__(self) -> str:
        turned = "turned by their orientation tags" if self.orientation else "with orientation tags left alone"
        return f"{turned}, values {self.record()['values']}"


# What versions did that recorded nothing.
BEFORE = TagRules(orientation=False, values=False)


def check_reading(collection: Collection, provenance: Mapping[str, Any], model: str) -> None:
    """Refuse a collection of image files that was opened to be read otherwise than those a model was fitted on."""
    fitted = fitted_reading(provenance)
    if fitted is None or collection.reading is None or (reading := TagRules.of(collection.reading)) == fitted:
        return
    raise ModelError(
        f"images of {collection.source} are {reading}, and those that {model} was fitted on were {fitted}; give the "
        "path of the images, or open them with like=model, and leave out --keep-orientation (keep_orientation)."
    )


def fitted_reading(provenance: Mapping[str, Any]) -> TagRules | None:
    """Return how the image files that a model was fitted on were read; None where there were none, or nobody knows."""
    if "streampca" not in provenance:
        return None
    record = provenance.get("reading", BEFORE.record())
    return None if record is None else TagRules.of(record)
