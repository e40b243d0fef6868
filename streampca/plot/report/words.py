"""Numbers and names in the words of a report."""

from __future__ import annotations

import os

import numpy as np

from ...errors import readable, without_secrets
from ...units import format_seconds

SHORTEST = 0.1  # seconds told

T2 = "T\N{SUPERSCRIPT TWO}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``"1 sample"``, ``"2 samples"``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(share: float) -> str:
    """A share to three digits; what is not quite all is not called all."""
    text = f"{100 * share:.3g}"
    return "more than 99.9 %" if text == "100" and share < 1 - 1e-9 else f"{text} %"


def picked_of(some: int, n_samples: int) -> str:
    """How many of all: ``"20000 of 100000000 samples"``."""
    return counted(n_samples, "sample") if some >= n_samples else f"{some} of {n_samples} samples"


def degrees(angle: float) -> str:
    """An angle in radians to one digit, or that there is none."""
    return f"{max(np.degrees(angle), 0.001):.1g}°" if np.isfinite(angle) else "unresolved"


def shown_name(name: str) -> str:
    """Where a sample comes from, readable and without secrets."""
    return readable(without_secrets(name))


def place_of(name: str, source: str) -> str:
    """Where a sample comes from, as seen from its collection."""
    for prefix in (f"{source}, ", os.path.join(source, "")):
        name = name.removeprefix(prefix)
    return shown_name(name.removesuffix(f" of {source}"))


def duration(seconds: float) -> str:
    """Seconds as people write them."""
    return format_seconds(seconds) if seconds >= SHORTEST else f"less than {SHORTEST} s"


def sentence(text: str) -> str:
    """Text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
