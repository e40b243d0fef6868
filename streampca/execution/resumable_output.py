"""`resumable_output`: an output that a fold writes, from the beginning or from the checkpoint of an earlier run.

Rows are on disk before a checkpoint counts them, and rows that are written again after a kill go to the same place, so
the output has the bits of an uninterrupted run.
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
    """Open an output to write or to resume, and the checkpoint of its fold, which is removed at completion.

    Parameters
    ----------
    current : Session
        The current session.
    saved : CheckpointFolder or None
        Checkpoint of the work; None to write without one. States that a fold saves in it have the ``size`` that
        `Writer.sync` returns.
    plan : mapping
        Plain data that determine the limits of blocks, and the bits.
    path : str
        Path of the output.
    table : OutputArray
        Array to write.
    """
    options: dict[str, Any] = {"overwrite": current.overwrite, "listener": current.listener}
    if saved is None:
        with open_writer(path, table, **options) as writer:
            yield writer, None
        return
    checkpoint, unfinished = saved.stage(table.name), UnfinishedOutput()
    checkpoint.is_shared = False  # by the states that it saves, this process knows that the output can be resumed
    token = str(saved.record.get("partial"))
    # A token and no path, as anybody can have written the record.
    if TOKEN.fullmatch(token) and (partial := checkpoint.load_any()):
        unfinished = UnfinishedOutput(token, int(partial.state["size"]))
        del partial  # its arrays can be large
    with saved.running(), open_writer(path, table, unfinished=unfinished, **options) as writer:
        saved.begin(plan, resumes=unfinished.is_resumable, partial=unfinished.token)
        try:
            yield writer, checkpoint
        except BaseException:
            if not saved.is_recorded:  # without a record no run could resume the partial output: let it be removed
                unfinished.size = None
            raise
