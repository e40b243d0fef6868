"""`resumable_output`: an output that a fold writes, from its beginning or from where an earlier run was ended.

Rows are on disk before a checkpoint says so, and rows that are written again after a kill are written in the same
place: the output is bit for bit that of an unbroken run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..storage.outputs import open_writer
from ..storage.writers import OutputArray, UnfinishedOutput, Writer
from .checkpoint import CheckpointFolder, StageCheckpoint
from .session import Session

TOKEN = re.compile(r"[0-9a-f]{8}")


@contextmanager
def resumable_output(
    current: Session, saved: CheckpointFolder | None, plan: Mapping[str, Any], path: str, table: OutputArray
) -> Iterator[tuple[Writer, StageCheckpoint | None]]:
    """Open an output to write or to resume, and the checkpoint of its fold, which is removed when it is complete.

    Parameters
    ----------
    current : Session
        Session in which it is written.
    saved : CheckpointFolder or None
        Checkpoint of the work; None to write without one. States that a fold saves in it have the ``size`` that
        `Writer.sync` returns.
    plan : mapping
        Plain data that decide where blocks begin, and the bits.
    path : str
        Path of the output.
    table : OutputArray
        Array to write.
    """
    how: dict[str, Any] = {"overwrite": current.overwrite, "listener": current.listener}
    if saved is None:
        with open_writer(path, table, **how) as writer:
            yield writer, None
        return
    checkpoint, unfinished = saved.stage(table.name), UnfinishedOutput()
    token = str(saved.record.get("partial"))
    if TOKEN.fullmatch(token) and (partial := checkpoint.load_any()):  # no path: anybody may have written the record
        unfinished = UnfinishedOutput(token, int(partial.state["size"]))
        del partial  # its arrays may be large
    with saved.running(), open_writer(path, table, unfinished=unfinished, **how) as writer:
        saved.begin(plan, resumes=unfinished.is_resumable, partial=unfinished.token)
        try:
            yield writer, checkpoint
        except BaseException:
            if not saved.is_recorded:  # nobody would find what was written again
                unfinished.size = None
            raise
