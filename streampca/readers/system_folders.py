"""Folders that systems and viewers keep for themselves: what they hold is left out of folders and globs."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterator, Sequence

from ..units import counted

# In lower case: the bins and indices of Windows, Linux, macOS and Synology, and copies of images at a small size.
SYSTEM_FOLDERS = frozenset(
    ("$recycle.bin", "@eadir", "system volume information", "lost+found", "__macosx", ".thumbnails", "thumbnails")
)
_NAMED = 4  # folders that a message names

_log = logging.getLogger("streampca")


def is_system_folder(name: str) -> bool:
    """Return whether a folder of this name holds no samples of anybody's."""
    return name.lower() in SYSTEM_FOLDERS


def matching(pattern: str, left_out: list[str] | None = None) -> Iterator[str]:
    """Yield the paths that a glob matches, without those in system folders that it does not name itself.

    The folders are added to `left_out`, each once.
    """
    own = {part for part in pattern.split(os.sep) if is_system_folder(part)}
    for path in glob.iglob(pattern, recursive=True):
        parts = path.split(os.sep)
        at = next((at for at, part in enumerate(parts) if is_system_folder(part) and part not in own), None)
        if at is None:
            yield path
        elif left_out is not None and (folder := os.sep.join(parts[: at + 1])) not in left_out:
            left_out.append(folder)


def log_left_out(folders: Sequence[str], source: str) -> None:
    """Say which system folders of a source were left out."""
    if folders:
        names = ", ".join(folders[:_NAMED]) + (f" and {len(folders) - _NAMED} more" if len(folders) > _NAMED else "")
        _log.warning(
            "left out %s of %s that systems and viewers keep for themselves: %s. Give such a folder by its name to "
            "read it.",
            counted(len(folders), "folder"), source, names,
        )  # fmt: skip
