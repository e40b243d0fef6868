"""`TaskKeys`: names of the tasks of a fold, by which dask's dashboard groups and colours them.

dask reads the words before the first number of a name as its prefix, which the progress of tasks is shown by, and the
first item of a tuple as its group. So tasks of equal passes have one prefix, those of one pass one group, and both are
called what the pass is called by progress bars and logs.
"""

from __future__ import annotations

import re
import uuid
from itertools import count
from typing import TypeAlias

from ..events import current_pass
from .reduction import Node

Key: TypeAlias = tuple[str | int, ...]

NAMELESS = "spans"  # of folds outside passes


class TaskKeys:
    """Keys of the tasks of one fold, each of which is used once.

    Attributes
    ----------
    topic : str
        Name of the fold, for messages.
    """

    def __init__(self) -> None:
        started = current_pass()
        words = re.findall(r"[a-z]+", started.label.lower()) if started is not None else []
        number = 1 if started is None else started.number
        self.topic = f"{'-'.join(words) or NAMELESS}-{number}-{uuid.uuid4().hex}"
        self._numbers = count()

    def fold(self, span: int) -> Key:
        """Return a key for folding a span."""
        return (self.topic, span, next(self._numbers))

    def merge(self, part: Node) -> Key:
        """Return a key for merging two sums into that of a part."""
        return (f"merge-{self.topic}", *part, next(self._numbers))

    def send(self) -> Key:
        """Return a key for a value that workers are sent."""
        return (f"send-{self.topic}", next(self._numbers))

    def has(self, key: object) -> bool:
        """Return whether a task of the cluster folds or merges for this fold."""
        return isinstance(key, tuple) and str(key[0]).removeprefix("merge-") == self.topic
