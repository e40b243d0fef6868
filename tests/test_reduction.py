"""The tree along which workers add up: the same sum whoever folds, joins and dies."""

from __future__ import annotations

import random
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.execution.panels import ArrayForm, PanelArray
from streampca.execution.reduction import MOST_HELD, RUN, Node, Reduction, Tree


def expected(tree, part):
    """The order in which the sum of a part adds up, as nested pairs."""
    if part.first == part.last:
        return part.first
    if part.last - part.first < RUN:
        return (expected(tree, Node(part.first, part.last - 1)), part.last)
    half = RUN
    while 2 * half < part.last + 1 - part.first:
        half *= 2
    middle = part.first + half
    return (expected(tree, Node(part.first, middle - 1)), expected(tree, Node(middle, part.last)))


@given(start=st.integers(0, 9), n=st.integers(1, 70))
def test_partners_meet_in_a_sum_of_the_tree(start, n):
    tree = Tree(start, start + n)
    parts, joined = [Node(i, i) for i in range(start, start + n)], 0
    while len(parts) > 1:
        for part in parts:
            other, is_left = tree.partner(part)
            if other in parts:
                left, right = (other, part) if is_left else (part, other)
                assert tree.partner(left) == (right, False) or left.first == left.last
                parts = sorted({*parts, Node(left.first, right.last)} - {left, right})
                break
        joined += 1
        assert joined < n
    assert parts == [tree.root]
    assert tree.partner(tree.root) is None


@given(n=st.integers(1, 70), first=st.integers(0, 69), last=st.integers(0, 69))
def test_parts_of_a_tree_are_those_that_its_sums_pass_through(n, first, last):
    def passed(part):
        yield part
        if part.first < part.last:
            left, right = (part.last, part.last) if part.last - part.first < RUN else (None, None)
            if left is None:
                half = RUN
                while 2 * half < part.last + 1 - part.first:
                    half *= 2
                left = right = part.first + half
            yield from passed(Node(part.first, left - 1))
            yield from passed(Node(right, part.last))

    if first <= last < n:
        tree = Tree(0, n)
        assert tree.has(Node(first, last)) == (Node(first, last) in set(passed(tree.root)))


@given(n=st.integers(1, 60), workers=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_sums_add_up_in_one_order_whatever_happens_to_workers(n, workers, seed):
    tree, luck = Tree(0, n), random.Random(seed)  # noqa: S311 - nothing secret
    reduction, sums, there, born = Reduction(tree), {}, [f"w{i}" for i in range(workers)], workers
    reduction.fold(range(n))
    deaths, pauses, paused = luck.randrange(4), luck.randrange(4), set()
    for _ in range(100 * n + 100):
        if reduction.is_complete:
            break
        event = luck.random()
        if pauses and event > 0.9 and len(paused) < len(there) - 1:  # for ever
            paused.add(luck.choice(there))
            pauses -= 1
        if deaths and event < 0.1:
            worker, deaths = luck.choice(there), deaths - 1
            there.remove(worker)
            paused.discard(worker)
            there.append(f"w{born}")
            born += 1
            for other in [*reduction.jobs]:
                if other == worker or any(reduction.held[part] == worker for part in reduction.jobs[other].inputs):
                    reduction.give_back(other)
            for part in [part for part, holder in reduction.held.items() if holder == worker]:
                reduction.lose(part)
                reduction.fold(range(part.first, part.last + 1))
                del sums[part]
        elif event < 0.5 and reduction.jobs:
            worker = luck.choice(sorted(reduction.jobs))
            job = reduction.finish(worker)
            right = job.span if job.right is None else sums.pop(job.right)
            if right is None:  # taken over
                continue
            sums[job.result] = right if job.left is None else (sums.pop(job.left), right)
        else:
            idle = [worker for worker in there if worker not in reduction.jobs and worker not in paused]
            if idle:
                reduction.start(luck.choice(idle), paused)
    assert reduction.is_complete
    assert sums == {tree.root: expected(tree, tree.root)}


@given(runs=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_as_many_sums_travel_as_there_are_workers(runs, seed):
    """Workers of about the same speed, one a run: each sum of a run travels at most once, and few spans besides."""
    luck = random.Random(seed)  # noqa: S311 - nothing secret
    reduction, workers, time = Reduction(Tree(0, RUN * runs)), [f"w{i}" for i in range(runs)], 0.0
    reduction.fold(range(RUN * runs))
    until, travelled, most = {}, 0, 0
    while not reduction.is_complete:
        for worker in workers:
            if worker not in reduction.jobs and (job := reduction.start(worker)):
                until[worker] = time + (luck.uniform(0.95, 1.05) if job.span is not None else 0.01)
                travelled += sum(reduction.held[part] != worker for part in job.inputs)
        worker = min(until, key=until.get)
        time = until.pop(worker)
        reduction.finish(worker)
        most = max(most, *map(len, map(reduction.held_by, workers)))
    assert travelled <= 2 * runs
    assert most <= MOST_HELD
    assert time < RUN * 1.05 + 1.06 + 0.01 * (runs + 8)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(7, 9), (30,), (3, 4, 5), (0, 4)])
def test_an_array_of_another_process_is_added_by_panels_of_which_two_are_here(order, shape):
    rng, read, most = np.random.default_rng(0), [], []
    there, here = (np.asarray(rng.normal(size=shape), order=order) for _ in range(2))

    def begin(index):
        panel = there[index].copy()
        assert panel.nbytes <= 160
        read.append(weakref.ref(panel))
        most.append(sum(other() is not None for other in read))
        return lambda: panel

    array, expected = PanelArray(ArrayForm.of(there), 160, begin), here + there
    left, right = here.copy(order=order), here.copy(order=order)
    result = left
    result += array
    assert result is left
    np.testing.assert_array_equal(left, expected)
    result = array
    result += right
    assert result is right
    np.testing.assert_array_equal(right, expected)
    most_read = list(most)
    np.testing.assert_array_equal(array * 2.0, there * 2.0)
    np.testing.assert_array_equal(array.T[:1], there.T[:1])
    assert max(most_read, default=0) == min(2, len(ArrayForm.of(there).panels(160)))
