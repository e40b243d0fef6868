"""`Accumulator`: the protocol of every statistic."""

from __future__ import annotations

from typing import Literal, Protocol, Self

from ..arrays import Array, Float64


class Accumulator(Protocol):
    """Statistic built up from pieces of a collection.

    `kind` names the statistic where its state is stored; `axis` says along which axis the pieces are cut. `constants`
    names large entries of the state that are given when the accumulator is made, such as the vectors that it multiplies
    with: sums that workers send to one another lack them, as `from_state` can be given them again. `update` and
    `absorb` mutate only the accumulator itself; nothing writes to an argument, and nothing returned shares memory with
    the accumulator.
    """

    kind: str
    axis: Literal["samples", "features"]
    constants: tuple[str, ...] = ()

    def update(self, block: Array, *, at: int = 0, weights: Float64 | None = None) -> None:
        """Absorb a piece of shape (rows, features) whose first row (or feature) has position `at`.

        `weights`, (rows,), are the weights of the samples.
        """

    def merge(self, other: Self) -> Self:
        """Return the statistic of both pieces together as a new value."""
        both = self.from_state(self.state())
        both.absorb(other)
        return both

    def absorb(self, other: Self) -> None:
        """Merge another statistic into this one, in place."""

    def release(self) -> None:
        """Free the working memory, if any; `update` allocates it again."""
        return

    def state(self, *, copy: bool = True) -> dict[str, Array]:
        """Return the whole accumulator as plain arrays; `from_state` is the exact inverse.

        Without `copy`, large arrays can be read-only views, to be stored at once.
        """

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> Self:
        """Return the accumulator whose `state` this is."""
