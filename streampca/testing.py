"""Contract suites to inherit, for readers and accumulators of other packages.

As in `zarr.testing`, a suite is a class whose methods are tests; pytest finds them in a subclass. Nothing here needs
pytest itself.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from .accumulators import Accumulator
from .arrays import Array
from .readers import Collection
from .readers.collection import MOST_STATES

if not __debug__:
    raise ImportError(
        "streampca.testing checks by assert statements, which python -O leaves out: every contract would pass; run "
        "Python without -O (and PYTHONOPTIMIZE)."
    )

# Bytes a small collection may take when pickled: it holds a path, not its data.
_PICKLED = 64 * 1024


class CollectionContract:
    r"""Contract of every `Collection`.

    Subclasses define the fixtures (or attributes) `collection` and `expected`.

    Attributes
    ----------
    collection : Collection
        Under test, small: everything in it is read several times.
    expected : ndarray of shape (n, \*sample_shape)
        Its samples, of its dtype.
    cuts : int
        Random cuts of rows and of features to try.
    """

    collection: Any
    expected: Any
    cuts = 20

    def test_shape_and_dtype(self, collection: Collection, expected: Array) -> None:
        """Shape and dtype are the array's; the names of axes fit."""
        assert collection.shape == expected.shape
        assert collection.dtype == expected.dtype
        assert collection.n_features == int(np.prod(expected.shape[1:]))
        assert collection.axes is None or len(collection.axes) == len(collection.sample_shape)
        assert collection.source
        assert isinstance(collection.source, str)

    def test_reads_everything(self, collection: Collection, expected: Array) -> None:
        """One read of all rows gives the array, flattened in C order."""
        assert_same_rows(collection.read(slice(0, collection.n_samples)), _flat(expected))

    def test_any_cut_of_rows_gives_the_same(self, collection: Collection, expected: Array) -> None:
        """Blocks of any sizes, put together, are the whole."""
        rows = _flat(expected)
        rng = np.random.default_rng(0)
        for _ in range(self.cuts):
            inside = np.sort(rng.integers(0, len(rows) + 1, size=rng.integers(0, 4)))
            edges = [0, *map(int, inside), len(rows)]
            for start, stop in pairwise(edges):
                assert_same_rows(collection.read(slice(start, stop)), rows[start:stop])

    def test_feature_ranges_are_slices_of_the_whole(self, collection: Collection, expected: Array) -> None:
        """A read of some features of some rows is that rectangle."""
        rows = _flat(expected)
        rng = np.random.default_rng(1)
        for _ in range(self.cuts):
            top, bottom = (int(edge) for edge in np.sort(rng.integers(0, rows.shape[0] + 1, size=2)))
            left, right = (int(edge) for edge in np.sort(rng.integers(0, rows.shape[1] + 1, size=2)))
            read = collection.read(slice(top, bottom), slice(left, right))
            assert_same_rows(read, rows[top:bottom, left:right])

    def test_reads_into_what_it_is_given(self, collection: Collection, expected: Array) -> None:
        """Values are read into the caller's memory and nowhere else."""
        rows = _flat(expected)
        rng = np.random.default_rng(2)
        for cut in range(self.cuts):
            top, bottom = (int(edge) for edge in np.sort(rng.integers(0, rows.shape[0] + 1, size=2)))
            left, right = (int(edge) for edge in np.sort(rng.integers(0, rows.shape[1] + 1, size=2)))
            some = slice(left, right) if cut % 2 else None
            wanted = rows[top:bottom, some or slice(None)]
            out = np.zeros((len(wanted) + 2, wanted.shape[1]), expected.dtype)
            collection.read_into(slice(top, bottom), some, out[1:-1])
            assert_same_rows(out[1:-1], wanted)
            assert not out[[0, -1]].any()

    def test_is_sliced_as_an_array(self, collection: Collection, expected: Array) -> None:
        """Samples by number, views of some of them in any order, all of them in turn, and all as an array."""
        n = len(expected)
        assert len(collection) == n
        for number in {0, n - 1, -1, -n}:
            assert_same_rows(collection[number], expected[number])
        rng = np.random.default_rng(3)
        for key in (slice(n // 3, None, 2), slice(None, None, -1), rng.permutation(n)[: -(-n // 2)]):
            view = collection[key]
            assert view.shape == expected[key].shape
            assert_same_rows(np.asarray(view), expected[key])
            assert_same_rows(view[-1], expected[key][-1])
        for image, wanted in zip(collection, expected, strict=True):
            assert_same_rows(image, wanted)
        assert_same_rows(np.asarray(collection), expected)

    def test_empty_ranges(self, collection: Collection, expected: Array) -> None:
        """A range without samples or features gives an array without values, of the right shape and dtype."""
        n, p = collection.n_samples, collection.n_features
        for at in (0, n // 2, n):
            assert_same_rows(collection.read(slice(at, at)), np.empty((0, p), expected.dtype))
        for at in (0, p // 2, p):
            assert_same_rows(collection.read(slice(0, n), slice(at, at)), np.empty((n, 0), expected.dtype))

    def test_pickles_small_and_reads_the_same(self, collection: Collection, expected: Array) -> None:
        """It travels to other processes, before and after it has been read from."""
        for _ in range(2):
            text = pickle.dumps(collection)
            assert len(text) < _PICKLED + self.held_bytes(expected)
            other = pickle.loads(text)  # noqa: S301 - our own bytes, made in the line above
            read = (collection.shape, collection.dtype, collection.storage)
            assert (other.shape, other.dtype, other.storage) == read
            assert_same_rows(other.read(slice(0, other.n_samples)), _flat(expected))
            collection.read(slice(0, 1))

    def held_bytes(self, expected: Array) -> int:
        """Bytes the collection has to carry itself: none, unless it is an array in memory."""
        return 0

    def test_reads_the_same_from_threads(self, collection: Collection, expected: Array) -> None:
        """Eight threads reading here and there, twice each, read what one would."""
        rows = _flat(expected)
        n = len(rows)
        places = [(int(start), min(n, int(start) + 3)) for start in np.linspace(0, max(0, n - 1), 8)] * 2
        with ThreadPoolExecutor(8) as pool:
            reads = list(pool.map(lambda place: collection.read(slice(*place)), places))
        for (start, stop), read in zip(places, reads, strict=True):
            assert_same_rows(read, rows[start:stop])

    def test_names_where_samples_come_from(self, collection: Collection) -> None:
        """First and last sample have a place in words, one line each; names, where there are any, are one a sample."""
        for index in (0, collection.n_samples - 1):
            place = collection.where(index)
            assert isinstance(place, str)
            assert place
            assert "\n" not in place
        names = collection.sample_names()
        if names is not None:
            assert len(names) == collection.n_samples
            assert len(set(names)) == len(names)
            assert all(isinstance(name, str) for name in (names[0], names[-1]))

    def test_chunks_lie_within_the_collection(self, collection: Collection) -> None:
        """A chunk has at least one sample and feature and no more than there are."""
        stored = collection.storage
        samples, features = stored.chunks
        assert collection.chunks == stored.chunks
        assert 1 <= samples <= collection.n_samples
        assert 1 <= features <= collection.n_features
        assert min(stored.decode_bytes, stored.converted_bytes) >= 0

    def test_fingerprint_is_stable(self, collection: Collection) -> None:
        """It stays the same over reading and pickling."""
        before = collection.fingerprint()
        collection.read(slice(0, 1))
        assert before
        assert collection.fingerprint() == before
        other = pickle.loads(pickle.dumps(collection))  # noqa: S301 - our own bytes
        assert other.fingerprint() == before

    def test_states_are_those_of_groups_in_order(self, collection: Collection) -> None:
        """There are few, the first begins at the first sample, and they are the same when read again."""
        states = collection.states()
        firsts = [state.first for state in states]
        assert firsts[0] == 0
        assert firsts == sorted(firsts)
        assert firsts[-1] < collection.n_samples
        assert len(states) <= MOST_STATES + 1
        assert all(state.what and state.state for state in states)
        assert collection.states(now=True) == states


def assert_same_rows(read: Array, expected: Array) -> None:
    """Assert that a read has exactly these values (NaN equal to itself), this dtype, and is C-contiguous."""
    assert isinstance(read, np.ndarray)
    assert read.dtype == expected.dtype
    assert read.shape == expected.shape
    assert read.flags.c_contiguous
    np.testing.assert_array_equal(read, expected)


def _flat(expected: Array) -> Array:
    return np.ascontiguousarray(expected).reshape(len(expected), -1)


A = TypeVar("A", bound=Accumulator)


@dataclass(frozen=True)
class AccumulatorLaws(Generic[A]):
    """The laws of every accumulator, checked on a matrix cut in pieces; `check` runs them all.

    Attributes
    ----------
    new : callable
        ``new() -> Accumulator``, empty.
    same : callable
        ``same(one, other)`` asserts that two accumulators hold the same statistic, to the rounding that is allowed;
        the default asks for equal states, bit for bit.
    """

    new: Callable[[], A]
    same: Callable[[A, A], None] = lambda one, other: assert_same_state(one.state(), other.state())

    def check(self, pieces: Sequence[Array]) -> None:
        """Assert every law on the pieces of one matrix, in order; some may be empty.

        Parameters
        ----------
        pieces : sequence of at least 3 ndarrays of shape (rows, features)
            Cut along the accumulator's axis. They are made read-only.
        """
        for piece in pieces:
            piece.flags.writeable = False
        self.any_cutting_gives_the_same(pieces)
        self.merging_is_feeding_on(pieces)
        self.symmetry(pieces)
        self.associativity(pieces)
        self.identity(pieces)
        self.absorb_equals_merge(pieces)
        self.state_round_trips(pieces)
        self.nothing_is_shared(pieces)

    def fed(self, pieces: Sequence[Array], at: int = 0) -> A:
        """Return a new accumulator that has absorbed the pieces, the first of them at position `at`."""
        accumulator = self.new()
        axis = _cut_axis(accumulator)
        for piece in pieces:
            before = piece.copy()
            accumulator.update(piece, at=at)
            np.testing.assert_array_equal(piece, before)
            at += piece.shape[axis]
        return accumulator

    def parts(self, pieces: Sequence[Array]) -> list[A]:
        """Return one accumulator a piece."""
        axis = _cut_axis(self.new())
        starts = np.cumsum([0, *(piece.shape[axis] for piece in pieces)])
        return [self.fed([piece], int(start)) for piece, start in zip(pieces, starts, strict=False)]

    def any_cutting_gives_the_same(self, pieces: Sequence[Array]) -> None:
        """Pieces one after another are the whole at once."""
        whole = np.concatenate(pieces, axis=_cut_axis(self.new()))
        whole.flags.writeable = False
        self.same(self.fed(pieces), self.fed([whole]))

    def merging_is_feeding_on(self, pieces: Sequence[Array]) -> None:
        """Partials merged from left to right are the pieces fed one after another."""
        self.same(reduce(lambda left, right: left.merge(right), self.parts(pieces)), self.fed(pieces))

    def symmetry(self, pieces: Sequence[Array]) -> None:
        """A + b = b + a."""
        a, b = self.parts(pieces)[:2]
        self.same(a.merge(b), b.merge(a))

    def associativity(self, pieces: Sequence[Array]) -> None:
        """Merging from the left gives what merging from the right gives."""
        a, b, c = self.parts(pieces)[:3]
        self.same(a.merge(b).merge(c), a.merge(b.merge(c)))

    def identity(self, pieces: Sequence[Array]) -> None:
        """An empty accumulator changes nothing, on either side, and neither does an empty piece."""
        a = self.fed(pieces)
        self.same(a.merge(self.new()), a)
        self.same(self.new().merge(a), a)
        before = a.state()
        a.update(np.take(pieces[0], [], axis=_cut_axis(a)), at=0)
        assert_same_state(a.state(), before)

    def absorb_equals_merge(self, pieces: Sequence[Array]) -> None:
        """In place or not, the bits are the same; `merge` changes neither side, `absorb` only its own."""
        a, b = self.parts(pieces)[:2]
        left, right = a.state(), b.state()
        both = a.merge(b).state()
        assert_same_state(a.state(), left)
        a.absorb(b)
        assert_same_state(a.state(), both)
        assert_same_state(b.state(), right)

    def state_round_trips(self, pieces: Sequence[Array]) -> None:
        """`from_state` undoes `state` exactly, and the copy continues as the original would, bit for bit."""
        original = self.fed(pieces[:-1])
        copy = type(original).from_state(original.state())
        assert_same_state(copy.state(), original.state())
        for accumulator in (original, copy):
            accumulator.update(pieces[-1])
        assert_same_state(copy.state(), original.state())

    def nothing_is_shared(self, pieces: Sequence[Array]) -> None:
        """Writing to a state, or feeding an accumulator, changes no other."""
        a, b = self.parts(pieces)[:2]
        state, both = a.state(), a.merge(b)
        copy = type(a).from_state(state)
        kept, kept_both = _copied(state), _copied(both.state())
        for values in state.values():
            values[...] = 0
        assert_same_state(a.state(), kept)
        assert_same_state(copy.state(), kept)
        for accumulator in (a, b):
            accumulator.update(pieces[-1])
        assert_same_state(both.state(), kept_both)
        assert_same_state(copy.state(), kept)


def assert_same_state(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    """Assert that two states hold the same arrays, bit for bit."""
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert isinstance(values, np.ndarray), name
        assert values.dtype == other[name].dtype, name
        np.testing.assert_array_equal(values, other[name], err_msg=name)


def _copied(state: Mapping[str, Array]) -> dict[str, Array]:
    return {name: values.copy() for name, values in state.items()}


def _cut_axis(accumulator: Accumulator) -> int:
    return 0 if accumulator.axis == "samples" else 1
