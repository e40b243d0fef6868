"""`DeferredFacts`: a mapping that is computed when it is first read.

A fit of a few hundred samples takes milliseconds, and describing it may take longer than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any


class DeferredFacts(Mapping[str, Any]):
    """Facts of a fit that `compute` returns once; copies and pickles are plain dictionaries.

    `compute` must not refer to the samples of the fit, which would stay in memory with the model.
    """

    def __init__(self, compute: Callable[[], Mapping[str, Any]]) -> None:
        self._compute: Callable[[], Mapping[str, Any]] | None = compute

    @cached_property
    def _facts(self) -> dict[str, Any]:
        compute = self._compute
        if compute is None:  # another thread has just computed them
            return self._facts
        facts = dict(compute())
        self.__dict__["_facts"] = facts
        self._compute = None
        return facts

    def __getitem__(self, key: str) -> Any:
        return self._facts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __repr__(self) -> str:
        return repr(self._facts)

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (self._facts,)
