"""`Reopening`, what readers that keep something open have in common: it does not travel with them."""

from __future__ import annotations

from typing import Any, ClassVar


class Reopening:
    """Holds a path and, once used, what it opened there; in a process it is sent to, that is opened anew.

    Subclasses name in `_left_behind` the attributes that do not travel, and set them in `_forget` as they are when
    nothing is open; their constructors call it.
    """

    _left_behind: ClassVar[tuple[str, ...]]

    def _forget(self) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._left_behind}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
