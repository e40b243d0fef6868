"""Executors of this process: the same answer in the same order, whoever runs the spans, and how they end."""

from __future__ import annotations

import re
import signal
import threading
import time
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from streampca.errors import Stopped
from streampca.events import BlockDone, Resumed, Warned, silent
from streampca.execution import LocalExecutor, SavedPartial
from streampca.execution.checkpoint import CheckpointFolder, Checkpointing
from streampca.execution.fold import warning_of_stalls
from streampca.execution.threads import blas_threads_for, one_blas_thread, share_blas_threads
from streampca.planning.blocks import Span, blocks_of, spans_of
from streampca.signals import stopping_on_signals


class Words:
    """An accumulator that remembers in which order things came."""

    def __init__(self, said=()):
        self.said = list(said)

    def absorb(self, other):
        self.said.append(tuple(other.said))

    def state(self, *, copy=True):
        return {"said": np.array([str(word) for word in self.said])}


@dataclass
class Task:
    """Says each block; perhaps fails at one, and counts what is read ahead."""

    rows: int = 2
    fails: int = -1
    fetched: list = field(default_factory=list)
    fed: list = field(default_factory=list)
    most: int = 0

    def start(self):
        return Words()

    def restore(self, state):
        return Words(state["said"].tolist())

    def blocks(self, span):
        return blocks_of(span, self.rows)

    def counts(self, block):
        return BlockDone(block.size, 10 * block.size)

    def fetch(self, block):
        self.fetched.append(block)
        return block.start

    def feed(self, accumulator, block, fetched):
        self.most = max(self.most, len(self.fetched) - len(self.fed))
        assert fetched == block.start
        if fetched == self.fails:
            raise ValueError(f"block {fetched}")
        self.fed.append(block)
        accumulator.said.append(fetched)


class Checkpointer:
    """Keeps everything it is offered."""

    def __init__(self, kept=None):
        self.kept, self.offers = dict(kept or {}), []

    def load(self, first):
        return self.kept.get(first)

    def save_if_due(self, first, last, at, accumulator, *, now=False):
        self.offers.append((first, last, at))
        self.kept[first] = SavedPartial(last, at, accumulator.state())


def fold(task, spans, threads=1, ahead=1, listener=lambda event: None, checkpoint=None):
    return LocalExecutor().fold(
        task, spans, Words.absorb, threads=threads, ahead=ahead, listener=listener, checkpoint=checkpoint
    )


@given(
    n=st.integers(1, 40),
    count=st.integers(1, 9),
    rows=st.integers(1, 5),
    threads=st.integers(1, 4),
    ahead=st.integers(0, 1),
)
def test_the_same_order_by_everyone(n, count, rows, threads, ahead):
    spans = spans_of(n, count, rows)
    expected = fold(Task(rows), spans).said
    assert fold(Task(rows), spans, threads, ahead).said == expected
    first = [block.start for block in blocks_of(spans[0], rows)]
    assert expected[: len(first)] == first
    assert [len(part) for part in expected[len(first) :]] == [len(list(blocks_of(span, rows))) for span in spans[1:]]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_listener_is_told_of_every_block_one_call_at_a_time(threads):
    inside, events = threading.Lock(), []

    def listen(event):
        assert inside.acquire(blocking=False)
        events.append(event)
        inside.release()

    fold(Task(), spans_of(400, 8), threads, listener=listen)
    assert sum(event.samples for event in events) == 400
    assert sum(event.bytes for event in events) == 4000


@pytest.mark.parametrize("ahead", [0, 1])
def test_no_more_is_read_ahead_than_asked(ahead):
    task = Task()
    fold(task, spans_of(60, 1), ahead=ahead)
    assert task.most == 1 + ahead


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_ends_all_and_is_raised_as_it_is(threads, ahead):
    task = Task(fails=30)
    with pytest.raises(ValueError, match="block 30"):
        fold(task, spans_of(200_000, 2), threads, ahead)
    assert len(task.fed) < 90_000


def test_an_interrupt_ends_all():
    """It comes where the main thread waits; threads end at their next block."""
    task = Task()

    def listen(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fold(task, spans_of(200_000, 2), 2, listener=listen)
    assert len(task.fed) < 10


@given(n=st.integers(2, 40), count=st.integers(1, 5), data=st.data())
def test_what_was_kept_is_not_done_again(n, count, data):
    """Whoever kept it, and whoever goes on."""
    spans = spans_of(n, count, 2)
    before = Checkpointer()
    fold(Task(), spans, data.draw(st.integers(1, 2)), checkpoint=before)
    expected = [str(word) for word in fold(Task(), spans).said]
    offers = sorted({(first, last, at) for first, last, at in before.offers if first == last})
    kept = {}
    for first, last, at in data.draw(st.lists(st.sampled_from(offers), unique_by=lambda offer: offer[0])):
        said = [str(block.start) for block in blocks_of(Span(spans[first].start, at), 2)]
        kept[first] = SavedPartial(last, at, {"said": np.array(said)})
    task, events = Task(), []
    threads = data.draw(st.integers(1, 2))
    found = fold(task, spans, threads, checkpoint=Checkpointer(kept), listener=events.append)
    assert [str(word).replace("'", "") for word in found.said] == expected
    done = [block for first, saved in kept.items() for block in blocks_of(Span(spans[first].start, saved.at), 2)]
    assert not set(done) & set(task.fed)
    assert sum(event.samples for event in events if isinstance(event, BlockDone | Resumed)) == n


def test_what_was_merged_is_kept_as_one():
    checkpoint = Checkpointer()
    spans = spans_of(24, 4, 2)
    fold(Task(), spans, checkpoint=checkpoint)
    assert (0, 3, 24) in checkpoint.offers
    task = Task()
    again = Checkpointer({0: checkpoint.kept[0]})
    fold(task, spans, 2, checkpoint=again)
    assert task.fed == []


class Sum:
    """An accumulator of numbers."""

    def __init__(self, total=0):
        self.total = total

    def absorb(self, other):
        self.total += other.total

    def state(self, *, copy=True):
        return {"total": np.array(self.total)}


class Summing(Task):
    """Adds up where blocks begin."""

    def start(self):
        return Sum()

    def restore(self, state):
        return Sum(int(state["total"]))

    def feed(self, accumulator, block, fetched):
        self.fed.append(block)
        accumulator.total += fetched


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("block", [1, 7, 16, 29])
def test_a_run_told_to_stop_does_nothing_again(tmp_path, threads, block):
    """Not what is merged, nor what other threads have done, though saves were not due."""
    spans, fed = spans_of(60, 6, 2), []
    signalled = []

    def folded():
        folder = CheckpointFolder(Checkpointing(str(tmp_path / "ck"), every=1000), {}, listener=silent)
        with folder.running():
            folder.begin({})
            task = Summing(fed=fed)
            how = {"threads": threads, "listener": heard, "checkpoint": folder.stage("sum")}
            return LocalExecutor().fold(task, spans, Sum.absorb, **how).total

    def heard(event):
        if isinstance(event, BlockDone) and len(fed) >= block and not signalled:
            signalled.append(event)  # a second signal would end this process
            signal.raise_signal(signal.SIGTERM)

    with stopping_on_signals(owns_process=True), pytest.raises(Stopped, match="progress is saved"):
        folded()
    assert folded() == sum(range(0, 60, 2))
    assert sorted(fed) == sorted(set(fed))
    assert len(fed) == 30
    assert not (tmp_path / "ck").exists()


class Held(Task):
    """Fetches or feeds no block after the first before it is let go on."""

    def hold(self, block):
        if block.start > 0:
            assert self.go.wait(60)

    def fetch(self, block):
        if self.held == "read":
            self.hold(block)
        return super().fetch(block)

    def feed(self, accumulator, block, fetched):
        if self.held == "absorbed":
            self.hold(block)
        super().feed(accumulator, block, fetched)


@pytest.mark.parametrize("held", ["read", "absorbed"])
@pytest.mark.parametrize(("threads", "ahead"), [(1, 0), (1, 1), (2, 1)])
def test_a_fold_that_finishes_no_block_says_once_what_it_waits_for(held, threads, ahead):
    task, heard = Held(2), []
    task.held, task.go = held, threading.Event()

    def listener(event):
        heard.append(event)
        if isinstance(event, Warned) and "from 2 on" in event.message:
            task.go.set()

    spans = [Span(0, 6), Span(6, 10)]
    fold = LocalExecutor(stalled=0.3).fold
    fold(task, spans, Words.absorb, threads=threads, ahead=ahead, listener=listener)
    (told,) = (event.message for event in heard if isinstance(event, Warned) and "from 2 on" in event.message)
    second = rf"(?: and the block from 6 on to be {held})?" if threads > 1 else ""  # it may begin late
    waits = rf"the block from 2 on to be {held}{second} \(of 10\)"
    assert re.fullmatch(rf"no block was finished for \d\.\d s; waiting for {waits}\.", told)
    assert [event.samples for event in heard if isinstance(event, BlockDone)] == [2] * 5


# -- threads of BLAS


def blas_threads():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_limits_of_several_threads_on_blas_end_with_the_last_of_them():
    """Each would restore what it found: that which ends last has found the limit of the other."""
    with threadpool_limits(2, user_api="blas"):
        one, other = one_blas_thread(), one_blas_thread()
        one.__enter__()
        other.__enter__()
        assert blas_threads() == {1}
        one.__exit__(None, None, None)
        assert blas_threads() == {1}
        other.__exit__(None, None, None)
        assert blas_threads() == {2}


def test_limits_on_blas_never_add_threads():
    with threadpool_limits(1, user_api="blas"), share_blas_threads(2):
        assert blas_threads() == {1}
    with threadpool_limits(2, user_api="blas"), one_blas_thread(), blas_threads_for(10**4), share_blas_threads(1):
        assert blas_threads() == {1}


def test_a_fold_is_not_held_after_its_end_and_its_listener_ends_no_other_watch(monkeypatch):
    class Heard(list):
        def __call__(self, event):
            self.append(event)

    def failing(event):
        raise RuntimeError("a listener's")

    raised, stalled = [], Heard()
    monkeypatch.setattr(threading, "excepthook", lambda details: raised.append(details.exc_value))
    with warning_of_stalls(failing, lambda: "a block", 0.01), warning_of_stalls(stalled, lambda: "a block", 0.05):
        until = time.monotonic() + 10
        while not stalled and time.monotonic() < until:
            time.sleep(0.01)
        heard, stalled = list(stalled), weakref.ref(stalled)
    assert [str(error) for error in raised] == ["a listener's"]
    assert [type(event) for event in heard] == [Warned]
    assert stalled() is None
